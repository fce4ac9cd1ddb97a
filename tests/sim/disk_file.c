/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_file.c - calls on files of the simulated disk: open, space, sync, locks, descriptors.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/bytes.h"
#include "tests/sim/disk_int.h"
#include "tests/sim/heap.h"

static void unlock(struct handle *h)
{
	if (h->locked && h->exclusive)
		h->inode->exclusive_lock = false;
	else if (h->locked)
		h->inode->shared_locks--;
	h->locked = false;
}

static struct handle *handle_new(struct sim_disk *d, struct inode *inode, unsigned flags)
{
	struct handle *h = sim_zero(sizeof(*h));

	h->file.disk = &d->disk;
	h->inode = inode;
	h->flags = flags;
	inode->opens++;
	list_add_tail(&d->handles, &h->link);
	return h;
}

void handle_free(struct handle *h)
{
	unlock(h);
	assert(h->inode->opens > 0);
	h->inode->opens--;
	list_del(&h->link);
	free(h);
}

/* Begin of a call on a file: time passes. End: nobody else used the file meanwhile. */
static struct sim_disk *enter(struct handle *h, const char *what, bool sync)
{
	struct sim_disk *d = sim_disk_of(h->file.disk);

	assert(!h->busy); /* one file, one thread at a time */
	h->busy = true;
	world_op(d->world, what, sync ? d->options.sync_ns_max : d->options.op_ns_max);
	return d;
}

static int leave(struct handle *h, const char *what, int r)
{
	struct sim_disk *d = sim_disk_of(h->file.disk);

	h->busy = false;
	world_note(d->world, what, h->inode->number,
		   h->inode->class == CLASS_LOCK ? 0 : h->inode->content.size,
		   (uint64_t)(int64_t)r);
	return r;
}

static int create(struct sim_disk *d, const char *path, struct inode **ret)
{
	const char *name;
	struct inode *parent = names_parent(&d->names, path, &name);

	if (!parent)
		return -ENOENT;
	if (disk_fault(d, disk_class_of(path), FAULT_NO_SPACE))
		return -ENOSPC;
	*ret = inode_new(&d->names, false);
	(*ret)->class = disk_class_of(path);
	names_set(&d->names, parent, name, *ret, NULL);
	return 0;
}

static int open_inode(struct sim_disk *d, const char *path, unsigned flags, struct inode **ret)
{
	struct inode *inode = names_find(&d->names, path);
	bool was_done = true;
	int r;

	if (inode && (flags & DISK_EXCL))
		return -EEXIST;
	if (inode && inode->is_dir)
		return -EISDIR;
	if (!inode && !(flags & DISK_CREATE))
		return -ENOENT;
	if (disk_name_fault(d, path, &was_done) && (inode || !was_done)) {
		if (inode)
			inode->unreadable = true;
		return -EIO;
	}
	if (!inode) {
		r = create(d, path, &inode);
		if (r < 0)
			return r;
		if (!was_done)
			return -EIO;
	}
	*ret = inode;
	return 0;
}

int sim_file_open(struct disk *disk, const char *path, unsigned flags, struct disk_file **ret)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *inode;
	struct handle *h;
	int r;

	assert((flags & DISK_CREATE) || !(flags & DISK_EXCL));
	world_op(d->world, "open", d->options.op_ns_max);
	r = open_inode(d, path, flags, &inode);
	if (r < 0)
		return disk_done(d, path, r);
	h = handle_new(d, inode, flags);
	h->owner = d->world->current;
	disk_track(d);
	*ret = &h->file;
	return disk_done(d, path, 0);
}

void sim_file_close(struct disk_file *f)
{
	struct handle *h = handle_of(f);

	assert(!h->busy && h->in_flight == 0);
	handle_free(h);
}

int sim_file_size(struct disk_file *f, uint64_t *ret)
{
	*ret = handle_of(f)->inode->content.size;
	return 0;
}

int sim_file_links(struct disk_file *f, uint64_t *ret)
{
	*ret = names_links(&sim_disk_of(f->disk)->names, handle_of(f)->inode);
	return 0;
}

int sim_file_is_private(struct disk_file *f, bool *ret)
{
	(void)f;
	*ret = true;
	return 0;
}

uint64_t disk_used_by(struct disk *disk, enum disk_class class)
{
	struct sim_disk *d = sim_disk_of(disk);
	uint64_t used = 0;
	struct inode *i;

	list_each(i, &d->names.inodes, link)
		if (!i->is_dir && i->class == class)
			used += max_u64(i->content.size, i->content.reserved);
	return used;
}

uint64_t disk_used(struct sim_disk *d)
{
	uint64_t used = 0;
	struct inode *i;

	names_collect(&d->names);
	list_each(i, &d->names.inodes, link)
		used += i->is_dir ? 512 : max_u64(i->content.size, i->content.reserved);
	return used;
}

int sim_file_allocate(struct disk_file *f, uint64_t length)
{
	struct handle *h = handle_of(f);
	struct sim_disk *d = enter(h, "allocate", false);
	struct content *c = &h->inode->content;
	uint64_t have = max_u64(c->size, c->reserved);

	assert(!(h->flags & DISK_READ));
	if (disk_fault(d, h->inode->class, FAULT_NO_SPACE) ||
	    (length > have && disk_used(d) + (length - have) > d->options.bytes))
		return leave(h, "allocated", -ENOSPC);
	c->reserved = max_u64(c->reserved, length);
	if (length > c->size)
		content_resize(c, length);
	return leave(h, "allocated", 0);
}

int sim_file_truncate(struct disk_file *f, uint64_t length)
{
	struct handle *h = handle_of(f);
	struct sim_disk *d = enter(h, "truncate", false);

	assert(!(h->flags & DISK_READ));
	if (disk_fault(d, h->inode->class, FAULT_WRITE_EIO))
		return leave(h, "truncated", -EIO);
	content_resize(&h->inode->content, length);
	h->inode->content.reserved = min_u64(h->inode->content.reserved, length);
	return leave(h, "truncated", 0);
}

int sim_file_sync(struct disk_file *f)
{
	struct handle *h = handle_of(f);
	struct sim_disk *d = enter(h, "sync", true);

	/* A caller that syncs again after an error has not understood what the error meant. */
	assert(!h->sync_failed);
	if (disk_fault(d, h->inode->class, FAULT_SYNC_EIO)) {
		h->sync_failed = true;
		content_sync_failed(&h->inode->content, d->world, d->options.sector);
		return leave(h, "synced", -EIO);
	}
	content_sync(&h->inode->content);
	return leave(h, "synced", 0);
}

int sim_file_read(struct disk_file *f, void *buf, size_t len, uint64_t offset)
{
	struct handle *h = handle_of(f);
	int r;

	enter(h, "read", false);
	r = handle_read(h, buf, len, offset);
	if (r >= 0)
		r = (size_t)r < len ? -ENODATA : 0;
	return leave(h, "have read", r);
}

int sim_file_write(struct disk_file *f, const void *buf, size_t len, uint64_t offset)
{
	struct handle *h = handle_of(f);
	int r;

	enter(h, "write", false);
	r = handle_write(h, buf, len, offset);
	return leave(h, "written", r < 0 ? r : 0);
}

int sim_file_lock(struct disk_file *f, bool exclusive)
{
	struct handle *h = handle_of(f);
	struct inode *i = h->inode;
	bool others;

	enter(h, "lock", false);
	others = i->shared_locks > (h->locked && !h->exclusive) ||
		 (i->exclusive_lock && !(h->locked && h->exclusive));
	if (exclusive ? others : i->exclusive_lock && !(h->locked && h->exclusive))
		return leave(h, "locked", -EAGAIN);
	unlock(h);
	h->locked = true;
	h->exclusive = exclusive;
	if (exclusive)
		i->exclusive_lock = true;
	else
		i->shared_locks++;
	return leave(h, "locked", 0);
}

static void file_fd_unref(void *object)
{
	handle_free(object);
}
static const struct sim_fd_ops file_fd_ops = { "file", file_fd_unref };

int sim_file_export_fd(struct disk_file *f)
{
	struct sim_disk *d = sim_disk_of(f->disk);
	struct handle *h = handle_of(f);

	assert(h->flags & DISK_READ);
	h->inode->exported = true;
	/* Without a lock: a process may drop it at once. */
	return sim_fd_new(d->world, d->world->current, &file_fd_ops,
			  handle_new(d, h->inode, h->flags));
}

int sim_file_in_use(struct disk_file *f, bool *ret)
{
	*ret = handle_of(f)->inode->opens > 1;
	return 0;
}

void sim_file_forget(struct disk_file *f)
{
	/* There is no cache: what is read is what is there, but for FAULT_STALE. */
	assert(handle_of(f)->flags & DISK_READ);
}

int disk_fd_read(struct world *w, int fd, void *buf, size_t len, uint64_t offset)
{
	struct handle *h = sim_fd_object(w, fd, &file_fd_ops);
	int r = h ? handle_read(h, buf, len, offset) : -EBADF;

	if (r > 0 && h->flags & DISK_EXACT &&
	    disk_fault(sim_disk_of(h->file.disk), h->inode->class, FAULT_STALE)) {
		((uint8_t *)buf)[world_random(w, (uint64_t)r)] ^= 1;
		h->stale = true;
	}
	return r;
}

bool disk_fd_stale(struct world *w, int fd)
{
	struct handle *h = sim_fd_object(w, fd, &file_fd_ops);

	return h && h->stale;
}

uint64_t disk_fd_number(struct world *w, int fd)
{
	struct handle *h = sim_fd_object(w, fd, &file_fd_ops);

	return h ? h->inode->number : 0;
}

bool disk_fd_hit(struct world *w, int fd)
{
	struct handle *h = sim_fd_object(w, fd, &file_fd_ops);

	return h && (h->inode->content.n_damage > 0 || h->inode->unreadable);
}
