/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_folder.c - the folder of the index. Nothing here is synced: after loss of power a mark may
 * be missing, and then the damage is met again.
 */
#include <config.h>

#include "storage/index_folder.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#define DAMAGED "DAMAGED"
#define TRIES "TRIES"
#define ROOM "ROOM"

#define TRIES_MAX 2
#define ROOM_BYTES (8u << 20) /* what opening may write */

static char *with_tail(const char *text, const char *tail)
{
	size_t n = strlen(text), m = strlen(tail) + 1;
	char *s = alloc_zero(n + m);

	if (s) {
		memcpy(s, text, n);
		memcpy(s + n, tail, m);
	}
	return s;
}

int index_folder_init(struct index_folder *f, const struct beneath *in, const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	assert(name[0] != '\0');
	*f = (struct index_folder){
		.in.folder = -1,
		.at.folder = -1,
		.path = alloc_str(path),
		.bad = with_tail(path, ".bad"),
		.bad_name = with_tail(name, ".bad"),
	};
	if (!f->path || !f->bad || !f->bad_name)
		return -ENOMEM;
	f->name = f->path + (name - path);
	return beneath_again(in, &f->in);
}

void index_folder_fini(struct index_folder *f)
{
	beneath_close(&f->at);
	beneath_close(&f->in);
	alloc_free(f->path);
	alloc_free(f->bad);
	alloc_free(f->bad_name);
}

/* Resolves the folder and locks it. */
static int enter(struct index_folder *f)
{
	int r = beneath_enter(&f->in, f->name, &f->at);

	if (r < 0)
		return r;
	snprintf(f->rocksdb, sizeof(f->rocksdb), "/proc/self/fd/%d", f->at.folder);
	/* Not every file system can lock a folder: the data folder's LOCK is what counts. */
	if (flock(f->at.folder, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return 0;
	beneath_close(&f->at);
	return -EBUSY;
}

/* ---- What is in it ---- */

struct contents {
	const struct index_folder *folder;
	uid_t owner;
	bool any, current, damaged;
	off_t tries;
	struct err strange; /* code 0: everything may be opened */
};

/* (2) */
static void judge(struct contents *c, const char *name, const struct stat *st)
{
	if (S_ISLNK(st->st_mode))
		err_set(&c->strange, CKPT_ECORRUPT, "'%s' in it is a symbolic link", name);
	else if (!S_ISREG(st->st_mode))
		err_set(&c->strange, CKPT_ECORRUPT, "'%s' in it is no regular file", name);
	else if (st->st_uid != c->owner)
		err_set(&c->strange, CKPT_ECORRUPT, "'%s' in it belongs to user %u, not to %u",
			name, (unsigned)st->st_uid, (unsigned)c->owner);
}

static int note_name(void *arg, const char *name, bool is_dir)
{
	struct contents *c = arg;
	struct stat st;
	int r = beneath_stat(&c->folder->at, name, &st);

	(void)is_dir;
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	c->any = true;
	c->current |= strcmp(name, "CURRENT") == 0;
	c->damaged |= strcmp(name, DAMAGED) == 0;
	if (strcmp(name, TRIES) == 0)
		c->tries = st.st_size;
	judge(c, name, &st);
	return 0;
}

static int look_inside(const struct index_folder *f, struct err *e)
{
	struct contents c = {.folder = f, .owner = f->in.uid};
	int r = beneath_list(&f->at, "", note_name, &c);

	if (r < 0)
		return err_code(e, r, "read the folder");
	if (!c.any)
		return 0;
	if (c.strange.code)
		return err_set(e, CKPT_ECORRUPT, "%s", c.strange.text);
	if (c.damaged)
		return err_set(e, CKPT_ECORRUPT, "it was found damaged in use");
	if (c.tries >= TRIES_MAX)
		return err_set(e, CKPT_ECORRUPT, "the last %d processes to open it died of it",
			       TRIES_MAX);
	if (!c.current)
		return err_set(e, CKPT_ECORRUPT, "it has no CURRENT file");
	return 1;
}

int index_folder_look(struct index_folder *f, struct err *e)
{
	struct stat st;
	int r = beneath_stat(&f->in, f->name, &st);

	if (r == 0 && S_ISDIR(st.st_mode) && st.st_uid != f->in.uid)
		return err_set(e, CKPT_ECORRUPT, "it belongs to user %u, not to %u",
			       (unsigned)st.st_uid, (unsigned)f->in.uid);
	r = enter(f);
	if (r == -ENOENT)
		return 0;
	if (r == -ELOOP)
		return err_set(e, CKPT_ECORRUPT, "it is a symbolic link, which is not followed");
	if (r < 0)
		return err_code(e, r, r == -EBUSY ? "it is in use" : "read the folder");
	return look_inside(f, e);
}

/* ---- Setting aside ---- */

static int remove_name(void *arg, const char *name, bool is_dir)
{
	const struct beneath *bad = arg;

	return beneath_remove(bad, name, is_dir); /* RocksDB's folders have no subfolders */
}

static int remove_bad(const struct index_folder *f)
{
	struct beneath bad;
	int r = beneath_enter(&f->in, f->bad_name, &bad);

	if (r == -ELOOP || r == -ENOTDIR)
		return beneath_remove(&f->in, f->bad_name, false); /* the link, not its target */
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = beneath_list(&bad, "", remove_name, &bad);
	beneath_close(&bad);
	return r < 0 ? r : beneath_remove(&f->in, f->bad_name, true);
}

int index_folder_set_aside(struct index_folder *f, struct err *e)
{
	int r = remove_bad(f);

	if (r < 0)
		return err_code(e, r, "remove '%s', an older damaged index, by hand: it cannot be "
				"removed", f->bad);
	r = beneath_rename(&f->in, f->name, f->bad_name);
	if (r < 0)
		return err_code(e, r, "set index '%s' aside", f->path);
	beneath_close(&f->at);
	return 0;
}

int index_folder_make(struct index_folder *f, struct err *e)
{
	int r = beneath_mkdir(&f->in, f->name);

	if (r < 0 && r != -EEXIST)
		return err_code(e, r, "make the folder");
	if (f->at.folder >= 0)
		return 0;
	r = enter(f);
	return r < 0 ? err_code(e, r, "open the folder") : 0;
}

/* ---- Around an attempt ---- */

/*
 * Debian's librocksdb has its assertions on, and one of them ends the process when the info log is
 * written to again after an error: opening on a full disk does that. So try the room first.
 */
static int try_room(const struct index_folder *f)
{
	int fd = beneath_file(&f->at, ROOM, O_WRONLY | O_CREAT), r = 0;

	if (fd < 0)
		return fd;
	if (fallocate(fd, 0, 0, ROOM_BYTES) != 0 && errno != EOPNOTSUPP)
		r = -errno;
	close(fd);
	ignore_result(beneath_remove(&f->at, ROOM, false) /* the next attempt does */);
	return r;
}

static int count_try(const struct index_folder *f)
{
	int fd = beneath_file(&f->at, TRIES, O_WRONLY | O_CREAT | O_APPEND), r = 0;

	if (fd < 0)
		return fd;
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
	ignore_result(beneath_remove(&f->at, TRIES, false) /* one try more is counted */);
}

void index_folder_mark_damaged(const struct index_folder *f)
{
	int fd = beneath_file(&f->at, DAMAGED, O_WRONLY | O_CREAT);

	if (fd >= 0)
		close(fd);
}
