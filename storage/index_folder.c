/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_folder.c - the folder of the index. Nothing here is synced: after loss of power a mark may
 * be missing, and then the damage is met again.
 */
#include <config.h>

#include "storage/index_folder.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#define DAMAGED "DAMAGED"
#define TRIES "TRIES"
#define ROOM "ROOM"

#define TRIES_MAX 2
#define ROOM_BYTES (8u << 20) /* what opening may write */

static char *path_with(const char *path, const char *tail)
{
	size_t n = strlen(path), m = strlen(tail) + 1;
	char *s = alloc_zero(n + m);

	if (s) {
		memcpy(s, path, n);
		memcpy(s + n, tail, m);
	}
	return s;
}

int index_folder_init(struct index_folder *f, const char *path)
{
	assert(path && path[0] != '\0');
	*f = (struct index_folder){
		.path = alloc_str(path),
		.bad = path_with(path, ".bad"),
		.damaged = path_with(path, "/" DAMAGED),
		.tries = path_with(path, "/" TRIES),
		.room = path_with(path, "/" ROOM),
	};
	return f->path && f->bad && f->damaged && f->tries && f->room ? 0 : -ENOMEM;
}

void index_folder_fini(struct index_folder *f)
{
	alloc_free(f->path);
	alloc_free(f->bad);
	alloc_free(f->damaged);
	alloc_free(f->tries);
	alloc_free(f->room);
}

typedef int name_fn(int dir_fd, const char *name, void *arg);

static int each_name(const char *path, name_fn *fn, void *arg)
{
	DIR *dir = opendir(path);
	struct dirent *d;
	int r = 0;

	if (!dir)
		return -errno;
	while (r == 0 && (errno = 0, d = readdir(dir)))
		if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
			r = fn(dirfd(dir), d->d_name, arg);
	if (r == 0 && errno != 0)
		r = -errno;
	closedir(dir);
	return r;
}

struct contents {
	bool any, current, damaged;
	off_t tries;
};

static int note_name(int dir_fd, const char *name, void *arg)
{
	struct contents *c = arg;
	struct stat st;

	c->any = true;
	c->current |= strcmp(name, "CURRENT") == 0;
	c->damaged |= strcmp(name, DAMAGED) == 0;
	if (strcmp(name, TRIES) == 0 && fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		c->tries = st.st_size;
	return 0;
}

int index_folder_look(const struct index_folder *f, struct err *e)
{
	struct contents c = { 0 };
	int r = each_name(f->path, note_name, &c);

	if (r == -ENOENT || (r == 0 && !c.any))
		return 0;
	if (r < 0)
		return err_code(e, r, "read the folder");
	if (c.damaged)
		return err_set(e, CKPT_ECORRUPT, "it was found damaged in use");
	if (c.tries >= TRIES_MAX)
		return err_set(e, CKPT_ECORRUPT, "the last %d processes to open it died of it",
			       TRIES_MAX);
	if (!c.current)
		return err_set(e, CKPT_ECORRUPT, "it has no CURRENT file");
	return 1;
}

static int remove_name(int dir_fd, const char *name, void *arg)
{
	(void)arg;
	return unlinkat(dir_fd, name, 0) == 0 ? 0 : -errno;
}

int index_folder_set_aside(const struct index_folder *f, struct err *e)
{
	int r = each_name(f->bad, remove_name, NULL); /* RocksDB's folders have no subfolders */

	if (r == 0 && rmdir(f->bad) != 0)
		r = -errno;
	if (r < 0 && r != -ENOENT)
		return err_code(e, r, "remove '%s', an older damaged index, by hand: it cannot be "
				"removed", f->bad);
	if (rename(f->path, f->bad) != 0)
		return err_code(e, -errno, "set index '%s' aside", f->path);
	return 0;
}

int index_folder_make(const struct index_folder *f, struct err *e)
{
	if (mkdir(f->path, 0700) != 0 && errno != EEXIST)
		return err_code(e, -errno, "make the folder");
	return 0;
}

/*
 * Debian's librocksdb has its assertions on, and one of them ends the process when the info log is
 * written to again after an error: opening on a full disk does that. So try the room first.
 */
static int try_room(const struct index_folder *f)
{
	int fd = open(f->room, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), r = 0;

	if (fd < 0)
		return -errno;
	if (fallocate(fd, 0, 0, ROOM_BYTES) != 0 && errno != EOPNOTSUPP)
		r = -errno;
	close(fd);
	unlink(f->room);
	return r;
}

static int count_try(const struct index_folder *f)
{
	int fd = open(f->tries, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), r = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, "x", 1) != 1)
		r = -errno;
	close(fd);
	return r;
}

int index_folder_before_open(const struct index_folder *f, struct err *e)
{
	int r = try_room(f);

	if (r == 0)
		r = count_try(f);
	return r < 0 ? err_code(e, r, "reserve %u bytes in it", ROOM_BYTES) : 0;
}

void index_folder_after_open(const struct index_folder *f)
{
	unlink(f->tries);
}

void index_folder_mark_damaged(const struct index_folder *f)
{
	int fd = open(f->damaged, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	if (fd >= 0)
		close(fd);
}
