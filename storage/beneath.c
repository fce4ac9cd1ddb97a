/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beneath.c - see beneath.h.
 *
 * A library can be handed a path, and RocksDB must be: it gets /proc/self/fd/N of a folder that
 * was opened here (index_folder.c), in a process that is the owner's.
 */
#include <config.h>

#include "storage/beneath.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MODE 0600 /* of new files; folders have 0700 */
#define TRIES_MAX 1000

/* Relative, no empty, "." or ".." part: what the callers promise, checked where it matters. */
static bool path_allowed(const char *path)
{
	size_t len = strlen(path);
	const char *part = path;

	if (len == 0 || len > DISK_PATH_MAX)
		return false;
	for (;;) {
		size_t n = strcspn(part, "/");

		if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && memcmp(part, "..", 2) == 0))
			return false;
		if (part[n] == '\0')
			return true;
		part += n + 1;
	}
}

/* ---- (2): as the owner ---- */

static void become_owner(const struct beneath *b)
{
	if (!b->as_owner)
		return;
	setfsgid(b->gid);
	setfsuid(b->uid);
}

static void become_root(const struct beneath *b)
{
	if (!b->as_owner)
		return;
	setfsuid(0);
	setfsgid(0);
}

/* setfsuid() does not say that it failed: ask what is in force. */
static bool owner_usable(const struct beneath *b)
{
	bool usable;

	become_owner(b);
	usable = (uid_t)setfsuid((uid_t)-1) == b->uid && (gid_t)setfsgid((gid_t)-1) == b->gid;
	become_root(b);
	return usable;
}

int beneath_become_owner(struct beneath *b, struct err *e)
{
	if (!b->as_owner)
		return 0;
	if (setgroups(1, &b->gid) != 0 || setresgid(b->gid, b->gid, b->gid) != 0 ||
	    setresuid(b->uid, b->uid, b->uid) != 0)
		return err_code(e, -errno, "become user %u, who owns the data folder",
				(unsigned)b->uid);
	assert(geteuid() == b->uid);
	b->as_owner = false;
	return 0;
}

/* ---- (1): resolving ---- */

static bool is_link(int dir, const char *name)
{
	struct stat st;

	return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

/* name has one part. Of a link that it does not follow the kernel says ENOTDIR with O_DIRECTORY,
 * and with O_PATH alone it opens the link itself. */
static int open_part(int dir, const char *name, int flags)
{
	int fd, r;

	if ((flags & (O_PATH | O_DIRECTORY)) == O_PATH && is_link(dir, name))
		return -ELOOP;

	do
		fd = openat(dir, name, flags | O_CLOEXEC | O_NOFOLLOW, MODE);
	while (fd < 0 && errno == EINTR);
	if (fd >= 0)
		return fd;
	r = -errno;
	return r == -ENOTDIR && is_link(dir, name) ? -ELOOP : r;
}

static int open_by_parts(const struct beneath *b, const char *path, int flags)
{
	char name[DISK_PATH_MAX + 1];
	int dir = b->folder, fd;

	for (;;) {
		size_t n = strcspn(path, "/");
		bool last = path[n] == '\0';

		memcpy(name, path, n);
		name[n] = '\0';
		fd = open_part(dir, name, last ? flags : O_PATH | O_DIRECTORY);
		if (dir != b->folder)
			close(dir);
		if (fd < 0 || last)
			return fd;
		dir = fd;
		path += n + 1;
	}
}

/* path: allowed, or ".". */
static int resolve(const struct beneath *b, const char *path, int flags)
{
	struct open_how how = {
		.flags = (uint64_t)(flags | O_CLOEXEC),
		.mode = flags & O_CREAT ? MODE : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	int fd, tries = 0;

	if (!b->openat2)
		return open_by_parts(b, path, flags);
	/* EAGAIN: a folder above was renamed meanwhile, or somebody holds a lease of the file. */
	do
		fd = (int)syscall(SYS_openat2, b->folder, path, &how, sizeof(how));
	while (fd < 0 && (errno == EINTR || (errno == EAGAIN && ++tries < TRIES_MAX)));
	return fd < 0 ? -errno : fd;
}

/* The folder that holds path's last part, which is at *ret_leaf. The caller closes. */
static int open_parent(const struct beneath *b, const char *path, const char **ret_leaf)
{
	const char *slash = strrchr(path, '/');
	char parent[DISK_PATH_MAX + 1];
	int fd;

	if (!path_allowed(path))
		return -EINVAL;
	snprintf(parent, sizeof(parent), "%.*s", slash ? (int)(slash - path) : 0, path);
	fd = resolve(b, slash ? parent : ".", O_PATH | O_DIRECTORY);
	if (fd >= 0)
		*ret_leaf = slash ? slash + 1 : path;
	return fd;
}

/* ---- The folder ---- */

static bool openat2_usable(struct beneath *b)
{
	const char *forced = getenv("CKPT_DISK_OPENAT2");
	int fd;

	if (forced && strcmp(forced, "off") == 0)
		return false;
	b->openat2 = true;
	fd = resolve(b, ".", O_PATH | O_DIRECTORY);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

int beneath_open(const char *folder, struct beneath *ret, struct err *e)
{
	struct beneath b = {.folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC)};
	struct stat st;

	if (b.folder < 0)
		return err_code(e, -errno, "cannot open data folder '%s'", folder);
	if (fstat(b.folder, &st) != 0) {
		int r = err_code(e, -errno, "look at data folder '%s'", folder);

		beneath_close(&b);
		return r;
	}
	b.uid = st.st_uid;
	b.gid = st.st_gid;
	b.as_owner = geteuid() == 0 && st.st_uid != 0;
	if (b.as_owner && !owner_usable(&b)) {
		beneath_close(&b);
		return err_set(e, -EPERM,
			       "data folder '%s' belongs to user %u, and root may not act as that "
			       "user here (CAP_SETUID): run this as user %u",
			       folder, (unsigned)st.st_uid, (unsigned)st.st_uid);
	}
	b.openat2 = openat2_usable(&b);
	*ret = b;
	return 0;
}

int beneath_is_named(const struct beneath *b, const char *name)
{
	struct stat named, open;

	if (fstat(b->folder, &open) < 0 || stat(name, &named) < 0)
		return -errno;
	return named.st_dev == open.st_dev && named.st_ino == open.st_ino ? 0 : -EXDEV;
}

int beneath_again(const struct beneath *b, struct beneath *ret)
{
	int fd = fcntl(b->folder, F_DUPFD_CLOEXEC, 3);

	if (fd < 0)
		return -errno;
	*ret = *b;
	ret->folder = fd;
	return 0;
}

int beneath_enter(const struct beneath *b, const char *path, struct beneath *ret)
{
	int fd = beneath_folder(b, path);

	if (fd < 0)
		return fd;
	*ret = *b;
	ret->folder = fd;
	return 0;
}

void beneath_close(struct beneath *b)
{
	if (b->folder >= 0)
		close(b->folder);
	b->folder = -1;
}

/* ---- Names ---- */

/* An open of a FIFO waits for its other end, and one of a device may do anything. */
static int regular_only(int fd, int flags)
{
	struct stat st;
	int r = 0;

	if (fstat(fd, &st) != 0)
		r = -errno;
	else if (!S_ISREG(st.st_mode))
		r = S_ISDIR(st.st_mode) ? -EISDIR : -ENXIO;
	else if (!(flags & O_NONBLOCK) && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) != 0)
		r = -errno;
	if (r < 0)
		close(fd);
	return r < 0 ? r : fd;
}

int beneath_file(const struct beneath *b, const char *path, int flags)
{
	int fd;

	assert(b->folder >= 0);
	if (!path_allowed(path))
		return -EINVAL;
	become_owner(b);
	fd = resolve(b, path, flags | O_NONBLOCK);
	become_root(b);
	return fd < 0 ? fd : regular_only(fd, flags);
}

int beneath_folder(const struct beneath *b, const char *path)
{
	int fd;

	assert(b->folder >= 0);
	if (path[0] && !path_allowed(path))
		return -EINVAL;
	become_owner(b);
	fd = resolve(b, path[0] ? path : ".", O_RDONLY | O_DIRECTORY);
	become_root(b);
	return fd;
}

int beneath_stat(const struct beneath *b, const char *path, struct stat *ret)
{
	const char *leaf;
	int fd, r;

	if (!path[0])
		return fstat(b->folder, ret) == 0 ? 0 : -errno;
	become_owner(b);
	r = fd = open_parent(b, path, &leaf);
	if (fd >= 0)
		r = fstatat(fd, leaf, ret, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : -errno;
	become_root(b);
	if (fd >= 0)
		close(fd);
	return r;
}

/* A link is refused by its own name: nothing of ours is one. What is only to be there was opened:
 * faccessat2 may be forbidden. */
int beneath_access(const struct beneath *b, const char *path, int mode)
{
	int fd, r;

	if (path[0] && !path_allowed(path))
		return -EINVAL;
	become_owner(b);
	r = fd = resolve(b, path[0] ? path : ".", O_PATH);
	if (fd >= 0 && mode == F_OK)
		r = 0;
	else if (fd >= 0)
		r = faccessat(fd, "", mode, AT_EACCESS | AT_EMPTY_PATH) == 0 ? 0 : -errno;
	become_root(b);
	if (fd >= 0)
		close(fd);
	return r;
}

int beneath_mkdir(const struct beneath *b, const char *path)
{
	const char *leaf;
	int fd, r;

	become_owner(b);
	r = fd = open_parent(b, path, &leaf);
	if (fd >= 0)
		r = mkdirat(fd, leaf, 0700) == 0 ? 0 : -errno;
	become_root(b);
	if (fd >= 0)
		close(fd);
	return r;
}

int beneath_remove(const struct beneath *b, const char *path, bool is_dir)
{
	const char *leaf;
	int fd, r;

	become_owner(b);
	r = fd = open_parent(b, path, &leaf);
	if (fd >= 0)
		r = unlinkat(fd, leaf, is_dir ? AT_REMOVEDIR : 0) == 0 ? 0 : -errno;
	become_root(b);
	if (fd >= 0)
		close(fd);
	return r;
}

/* The owner's rights are in force. Links are names here: rename and link do not follow them. */
static int second_name(const struct beneath *b, const char *from, const char *to, bool keep)
{
	const char *leaf_from, *leaf_to;
	int x = open_parent(b, from, &leaf_from), y, r;

	if (x < 0)
		return x;
	r = y = open_parent(b, to, &leaf_to);
	if (y >= 0) {
		r = keep ? linkat(x, leaf_from, y, leaf_to, 0) : renameat(x, leaf_from, y, leaf_to);
		r = r < 0 ? -errno : 0;
		close(y);
	}
	close(x);
	return r;
}

int beneath_rename(const struct beneath *b, const char *from, const char *to)
{
	int r;

	become_owner(b);
	r = second_name(b, from, to, false);
	become_root(b);
	return r;
}

int beneath_link(const struct beneath *b, const char *from, const char *to)
{
	int r;

	become_owner(b);
	r = second_name(b, from, to, true);
	become_root(b);
	return r;
}

static bool entry_is_dir(int fd, const struct dirent *entry)
{
	struct stat st;

	if (entry->d_type != DT_UNKNOWN)
		return entry->d_type == DT_DIR;
	return fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* fn runs with this process's own rights. */
int beneath_list(const struct beneath *b, const char *path, disk_name_fn *fn, void *arg)
{
	int fd = beneath_folder(b, path), r = 0;
	struct dirent *entry;
	DIR *dir;

	if (fd < 0)
		return fd;
	dir = fdopendir(fd);
	if (!dir) {
		r = -errno;
		close(fd);
		return r;
	}
	while (r == 0) {
		errno = 0;
		entry = readdir(dir);
		if (!entry) {
			r = -errno;
			break;
		}
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			r = fn(arg, entry->d_name, entry_is_dir(fd, entry));
	}
	closedir(dir);
	return r;
}

/* ---- (3): who has a name in hand ---- */

#define LINKS_MAX 40    /* as the kernel has it */
#define NO_GROUP  65534 /* of a user that nothing is known of */

struct walk {
	int at;                 /* the folder that rest begins in */
	char rest[2 * PATH_MAX]; /* what is left of the path */
	unsigned links;
};

static int walk_to(struct walk *w, int fd)
{
	if (w->at >= 0)
		close(w->at);
	w->at = fd;
	return fd < 0 ? -errno : 0;
}

/* rest goes on where root's link at fd leads. */
static int walk_link(struct walk *w, int fd)
{
	char to[PATH_MAX], joined[sizeof(w->rest)];
	ssize_t n = readlinkat(fd, "", to, sizeof(to) - 1);

	if (n < 0)
		return -errno;
	to[n] = '\0';
	if (++w->links > LINKS_MAX)
		return -ELOOP;
	if (snprintf(joined, sizeof(joined), "%s/%s", to, w->rest) >= (int)sizeof(joined))
		return -ENAMETOOLONG;
	memcpy(w->rest, joined, sizeof(joined));
	return to[0] == '/' ? walk_to(w, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) : 0;
}

/* One part further: 1, it is not root's, and st says whose. */
static int walk_part(struct walk *w, struct stat *st)
{
	size_t slashes = strspn(w->rest, "/"), n = strcspn(w->rest + slashes, "/");
	char name[NAME_MAX + 1];
	int fd, r;

	if (n > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(name, w->rest + slashes, n);
	name[n] = '\0';
	memmove(w->rest, w->rest + slashes + n, strlen(w->rest + slashes + n) + 1);
	if (n == 0)
		return 0;
	fd = openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, st) != 0) {
		r = -errno;
		if (fd >= 0)
			close(fd);
		return r;
	}
	if (st->st_uid == 0 && !S_ISLNK(st->st_mode))
		return walk_to(w, fd);
	r = st->st_uid != 0 ? 1 : walk_link(w, fd);
	close(fd);
	return r;
}

/* The user's own, which the group of a folder of theirs need not be. */
static gid_t group_of(uid_t uid)
{
	struct passwd p, *found = NULL;
	char buf[4096];

	return getpwuid_r(uid, &p, buf, sizeof(buf), &found) == 0 && found ? p.pw_gid : NO_GROUP;
}

static struct beneath of_rights(const struct beneath_rights *r)
{
	return (struct beneath){.folder = -1, .as_owner = r->lent, .uid = r->uid, .gid = r->gid};
}

int beneath_whose(const char *path, struct beneath_rights *ret)
{
	struct walk w = {.at = -1};
	struct beneath as;
	struct stat st = {0};
	size_t len = 0;
	int r;

	*ret = (struct beneath_rights){0};
	if (geteuid() != 0)
		return 0;
	if (path[0] != '/') { /* the folder that root is in may be another user's, too */
		if (!getcwd(w.rest, PATH_MAX))
			return -errno;
		len = strlen(w.rest);
		w.rest[len++] = '/';
	}
	if (strlen(path) >= PATH_MAX)
		return -ENAMETOOLONG;
	strcpy(w.rest + len, path);
	r = walk_to(&w, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
	while (r == 0 && w.rest[0])
		r = walk_part(&w, &st);
	if (w.at >= 0)
		close(w.at);
	if (r <= 0)
		return r;
	*ret = (struct beneath_rights){true, st.st_uid, group_of(st.st_uid)};
	as = of_rights(ret);
	return owner_usable(&as) ? 0 : -EPERM;
}

void beneath_lend(const struct beneath_rights *r)
{
	const struct beneath as = of_rights(r);

	become_owner(&as);
}

void beneath_own_rights(const struct beneath_rights *r)
{
	const struct beneath as = of_rights(r);

	become_root(&as);
}

/* ---- Whom a daemon trusts ---- */

/* In a folder that others may write to, only the sticky bit keeps them from exchanging what is in
 * it, and only what belongs to root or to us. */
static bool may_be_exchanged(const struct stat *parent, const struct stat *st)
{
	if (!(parent->st_mode & (S_IWGRP | S_IWOTH)))
		return false;
	return !(parent->st_mode & S_ISVTX) || (st->st_uid != 0 && st->st_uid != geteuid());
}

static int say_above(int parent, const struct stat *st, const char *name, struct err *e)
{
	char link[40], path[200] = "";
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", parent);
	n = readlink(link, path, sizeof(path) - 1);
	if (n > 0)
		path[n] = '\0';
	else
		snprintf(path, sizeof(path), "%.190s/..", name);
	return err_set(e, -EPERM,
		       "data folder '%.150s' lies in '%s', which group or others may write to "
		       "(mode %04o): they could put another in its place: 'chmod go-w %s', or name "
		       "another folder with --data",
		       name, path, (unsigned)st->st_mode & 07777, path);
}

/* By "..": what the folder lies in, whatever the path said that led here. */
static int check_above(const struct beneath *b, const char *name, struct err *e)
{
	int at = openat(b->folder, ".", O_PATH | O_DIRECTORY | O_CLOEXEC), up, r = 0;
	struct stat st, above;

	if (at < 0 || fstat(at, &st) != 0)
		r = -errno;
	while (r == 0) {
		up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (up < 0 || fstat(up, &above) != 0)
			r = -errno;
		close(at);
		at = up;
		if (r < 0 || (above.st_ino == st.st_ino && above.st_dev == st.st_dev))
			break;
		if (may_be_exchanged(&above, &st))
			r = say_above(up, &above, name, e);
		st = above;
	}
	if (r < 0 && r != -EPERM)
		err_code(e, r, "look at the folders above data folder '%.150s'", name);
	if (at >= 0)
		close(at);
	return r;
}

int beneath_check_private(const struct beneath *b, const char *name, struct err *e)
{
	struct stat st;

	if (fstat(b->folder, &st) != 0)
		return err_code(e, -errno, "look at data folder '%.150s'", name);
	if (st.st_uid != geteuid())
		return err_set(e, -EPERM,
			       "data folder '%.150s' belongs to user %u, and this ckptd runs as "
			       "user %u: run it as user %u, or name another folder with --data",
			       name, (unsigned)st.st_uid, (unsigned)geteuid(), (unsigned)st.st_uid);
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return err_set(e, -EPERM,
			       "data folder '%.150s' can be written to by group or others (mode "
			       "%04o): whoever can, can change what is loaded: 'chmod go-w %.150s'",
			       name, (unsigned)st.st_mode & 07777, name);
	return check_above(b, name, e);
}
