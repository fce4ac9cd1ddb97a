/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_disk.c - see test_disk.h. One thread. Knows only what the log's files need.
 */
#include <config.h>

#include "coord/test_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


struct test_inode {
	struct test_inode *next;
	bool dir, sync_failed;
	uint8_t *data, *synced;
	size_t size, synced_size;
};

struct test_file {
	struct disk_file f;
	struct test_inode *inode;
};

static struct test_disk *disk_of(struct disk *disk)
{
	return (struct test_disk *)disk;
}

static void broken(const char *rule, const char *what)
{
	fprintf(stderr, "test disk: rule broken: %s: '%s'\n", rule, what);
	abort();
}

/* ---- Faults ---- */

static bool fails(struct test_disk *d)
{
	bool yes;

	d->op++;
	if (d->hook && d->op == d->hook_at) {
		void (*hook)(void *arg) = d->hook;

		d->hook = NULL;
		hook(d->hook_arg);
	}
	yes = d->fail_at && (d->op == d->fail_at || (d->persistent && d->op > d->fail_at));
	d->fired = d->fired || yes;
	return yes;
}

/* An operation: `act` is done unless it fails before; *r_ its result. */
#define OPERATION(d, act)                                                                          \
	do {                                                                                       \
		bool fail_ = fails(d);                                                             \
		int r_;                                                                            \
												   \
		if (fail_ && (d)->fault == FAIL_BEFORE)                                            \
			return -EIO;                                                               \
		r_ = (act);                                                                        \
		return fail_ ? -EIO : r_;                                                          \
	} while (0)

/* ---- Names ---- */

static struct test_name *name_find(struct test_disk *d, const char *path)
{
	for (unsigned i = 0; i < TEST_DISK_NAMES; i++)
		if (strcmp(d->names[i].path, path) == 0)
			return &d->names[i];
	return NULL;
}

static struct test_name *name_make(struct test_disk *d, const char *path)
{
	struct test_name *n = name_find(d, path);

	if (n)
		return n;
	for (unsigned i = 0; i < TEST_DISK_NAMES; i++) {
		n = &d->names[i];
		if (n->now || n->durable)
			continue;
		snprintf(n->path, sizeof(n->path), "%s", path);
		return n;
	}
	broken("test needs more names", path);
	return NULL;
}

static void parent_of(const char *path, char *ret)
{
	const char *slash = strrchr(path, '/');

	snprintf(ret, DISK_PATH_MAX + 1, "%.*s", slash ? (int)(slash - path) : 0, path);
}

static struct test_inode *lookup(struct test_disk *d, const char *path)
{
	struct test_name *n;

	if (!*path || *path == '/' || strstr(path, "..") || strlen(path) > DISK_PATH_MAX)
		broken("paths are relative and clean", path);
	n = name_find(d, path);
	return n ? n->now : NULL;
}

static bool folder_is_there(struct test_disk *d, const char *dir)
{
	struct test_inode *i = *dir ? lookup(d, dir) : NULL;

	return !*dir || (i && i->dir);
}

static struct test_inode *inode_new(struct test_disk *d, bool dir)
{
	struct test_inode *i = calloc(1, sizeof(*i)); /* not the subject's: never fails here */

	if (!i)
		abort();
	i->dir = dir;
	i->next = d->inodes;
	d->inodes = i;
	return i;
}

static int name_add(struct test_disk *d, const char *path, struct test_inode *i)
{
	char parent[DISK_PATH_MAX + 1];

	parent_of(path, parent);
	if (!folder_is_there(d, parent))
		return -ENOENT;
	if (lookup(d, path))
		return -EEXIST;
	name_make(d, path)->now = i;
	return 0;
}

static int do_mkdir(struct test_disk *d, const char *path)
{
	struct test_inode *i = lookup(d, path);

	if (i)
		return i->dir ? 0 : -EEXIST;
	return name_add(d, path, inode_new(d, true));
}

static int do_link(struct test_disk *d, const char *from, const char *to)
{
	struct test_inode *i = lookup(d, from);

	return i ? name_add(d, to, i) : -ENOENT;
}

static int do_unlink(struct test_disk *d, const char *path)
{
	if (!lookup(d, path))
		return -ENOENT;
	name_find(d, path)->now = NULL;
	return 0;
}

static bool in_folder(const struct test_name *n, const char *dir)
{
	char parent[DISK_PATH_MAX + 1];

	parent_of(n->path, parent);
	return n->path[0] && strcmp(parent, dir) == 0;
}

static int do_sync_dir(struct test_disk *d, const char *dir)
{
	if (!folder_is_there(d, dir))
		return -ENOENT;
	for (unsigned i = 0; i < TEST_DISK_NAMES; i++)
		if (in_folder(&d->names[i], dir))
			d->names[i].durable = d->names[i].now;
	return 0;
}

/* In an order that is not that of the names. */
static int do_list(struct test_disk *d, const char *dir, disk_name_fn *fn, void *arg)
{
	int r = 0;

	if (!folder_is_there(d, dir))
		return -ENOENT;
	for (unsigned i = TEST_DISK_NAMES; i-- > 0 && r == 0;) {
		const struct test_name *n = &d->names[i];

		if (n->now && in_folder(n, dir))
			r = fn(arg, n->path + (*dir ? strlen(dir) + 1 : 0), n->now->dir);
	}
	return r;
}

static int op_mkdir(struct disk *disk, const char *path)
{
	OPERATION(disk_of(disk), do_mkdir(disk_of(disk), path));
}

static int op_link(struct disk *disk, const char *from, const char *to)
{
	OPERATION(disk_of(disk), do_link(disk_of(disk), from, to));
}

static int op_unlink(struct disk *disk, const char *path)
{
	OPERATION(disk_of(disk), do_unlink(disk_of(disk), path));
}

static int op_sync_dir(struct disk *disk, const char *path)
{
	OPERATION(disk_of(disk), do_sync_dir(disk_of(disk), path));
}

static int op_list(struct disk *disk, const char *path, disk_name_fn *fn, void *arg)
{
	OPERATION(disk_of(disk), do_list(disk_of(disk), path, fn, arg));
}

/* ---- Files ---- */

static struct test_inode *inode_of(struct disk_file *f)
{
	return ((struct test_file *)f)->inode;
}

static int op_open(struct disk *disk, const char *path, unsigned flags, struct disk_file **ret)
{
	struct test_disk *d = disk_of(disk);
	bool fail = fails(d);
	struct test_inode *i;
	struct test_file *f;

	if (fail && d->fault == FAIL_BEFORE)
		return -EIO;
	i = lookup(d, path);
	if (i && (flags & DISK_CREATE) && (flags & DISK_EXCL))
		return -EEXIST;
	if (!i) {
		int r;

		if (!(flags & DISK_CREATE))
			return -ENOENT;
		i = inode_new(d, false);
		r = name_add(d, path, i);
		if (r < 0)
			return r;
	}
	if (fail)
		return -EIO;
	f = calloc(1, sizeof(*f));
	if (!f)
		abort();
	f->f.disk = disk;
	f->inode = i;
	d->open_files++;
	*ret = &f->f;
	return 0;
}

static void op_close(struct disk_file *f)
{
	disk_of(f->disk)->open_files--;
	free(f);
}

static int op_size(struct disk_file *f, uint64_t *ret)
{
	if (fails(disk_of(f->disk)))
		return -EIO;
	*ret = inode_of(f)->size;
	return 0;
}

static int op_read(struct disk_file *f, void *buf, size_t len, uint64_t offset)
{
	struct test_inode *i = inode_of(f);

	if (fails(disk_of(f->disk)))
		return -EIO;
	if (offset > i->size || len > i->size - offset)
		return -ENODATA;
	memcpy(buf, i->data + offset, len);
	return 0;
}

static int op_write(struct disk_file *f, const void *buf, size_t len, uint64_t offset)
{
	struct test_inode *i = inode_of(f);
	bool fail = fails(disk_of(f->disk));

	if (i->synced)
		broken("what is synced is not written again", "write");
	if (fail && disk_of(f->disk)->fault == FAIL_BEFORE)
		len /= 2;
	if (offset + len > i->size) {
		i->data = realloc(i->data, offset + len);
		if (!i->data)
			abort();
		i->size = offset + len;
	}
	memcpy(i->data + offset, buf, len);
	return fail ? -EIO : 0;
}

static int op_sync(struct disk_file *f)
{
	struct test_inode *i = inode_of(f);
	bool fail = fails(disk_of(f->disk));

	if (i->sync_failed)
		broken("a failed sync is final", "sync");
	i->sync_failed = fail;
	if (fail && disk_of(f->disk)->fault == FAIL_BEFORE)
		return -EIO;
	free(i->synced);
	i->synced = malloc(i->size + 1);
	if (!i->synced)
		abort();
	memcpy(i->synced, i->data, i->size);
	i->synced_size = i->size;
	return fail ? -EIO : 0;
}

/* ---- The test's side ---- */

static const struct disk_ops test_disk_ops = {
	.open = op_open, .close = op_close, .size = op_size, .sync = op_sync, .read = op_read,
	.write = op_write, .mkdir = op_mkdir, .link = op_link, .unlink = op_unlink,
	.sync_dir = op_sync_dir, .list = op_list,
};

void test_disk_init(struct test_disk *d)
{
	memset(d, 0, sizeof(*d));
	d->disk.ops = &test_disk_ops;
	d->disk.backend = "test";
}

void test_disk_fini(struct test_disk *d)
{
	if (d->open_files)
		broken("files are closed", "test_disk_fini");
	while (d->inodes) {
		struct test_inode *i = d->inodes;

		d->inodes = i->next;
		free(i->data);
		free(i->synced);
		free(i);
	}
}

void test_disk_fail(struct test_disk *d, unsigned at, bool persistent, enum test_disk_fault fault)
{
	d->op = 0;
	d->fail_at = at;
	d->persistent = persistent;
	d->fault = fault;
	d->fired = false;
}

static bool chance(struct test_disk *d)
{
	d->seed = d->seed * 6364136223846793005u + 1442695040888963407u;
	return d->seed >> 63;
}

void test_disk_power_loss(struct test_disk *d, int keep)
{
	char parent[DISK_PATH_MAX + 1];
	bool again = true;

	for (unsigned i = 0; i < TEST_DISK_NAMES; i++) {
		struct test_name *n = &d->names[i];

		if (n->now != n->durable && (keep == 1 || (keep == 2 && chance(d))))
			n->durable = n->now;
		n->now = n->durable;
	}
	for (struct test_inode *i = d->inodes; i; i = i->next) {
		i->size = i->synced ? i->synced_size : i->size / 2; /* torn */
		if (i->synced)
			memcpy(i->data, i->synced, i->size);
	}
	while (again) { /* what lost its folder is lost */
		again = false;
		for (unsigned i = 0; i < TEST_DISK_NAMES; i++) {
			struct test_name *n = &d->names[i];

			parent_of(n->path, parent);
			if (n->now && !folder_is_there(d, parent)) {
				n->now = n->durable = NULL;
				again = true;
			}
		}
	}
}

void test_disk_put(struct test_disk *d, const char *path, const void *bytes, size_t len)
{
	struct test_name *n = name_make(d, path);
	struct test_inode *i = NULL;

	if (bytes) {
		i = inode_new(d, false);
		i->data = malloc(len + 1);
		i->synced = malloc(len + 1);
		if (!i->data || !i->synced)
			abort();
		memcpy(i->data, bytes, len);
		memcpy(i->synced, bytes, len);
		i->size = i->synced_size = len;
	}
	n->now = n->durable = i;
}

unsigned test_disk_count(struct test_disk *d, const char *dir, const char *prefix)
{
	unsigned count = 0;

	for (unsigned i = 0; i < TEST_DISK_NAMES; i++) {
		const struct test_name *n = &d->names[i];

		count += n->now && in_folder(n, dir) &&
			 strncmp(n->path + strlen(dir) + 1, prefix, strlen(prefix)) == 0;
	}
	return count;
}
