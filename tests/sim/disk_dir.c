/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_dir.c - calls on names of the simulated disk.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "tests/sim/disk_int.h"
#include "tests/sim/heap.h"

int sim_dir_mkdir(struct disk *disk, const char *path)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *parent;
	const char *name;
	bool was_done = true, bad;

	world_op(d->world, "mkdir", d->options.op_ns_max);
	parent = names_parent(&d->names, path, &name);
	if (!parent)
		return disk_done(d, path, -ENOENT);
	bad = disk_name_fault(d, path, &was_done);
	if (was_done && !folder_get(parent, name))
		names_set(&d->names, parent, name, inode_new(&d->names, true), NULL);
	return disk_done(d, path, bad ? -EIO : 0);
}

int sim_dir_rmdir(struct disk *disk, const char *path)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *parent, *gone;
	const char *name;
	bool was_done = true, bad;

	world_op(d->world, "rmdir", d->options.op_ns_max);
	parent = names_parent(&d->names, path, &name);
	gone = parent ? folder_get(parent, name) : NULL;
	if (!gone)
		return disk_done(d, path, -ENOENT);
	if (!gone->is_dir)
		return disk_done(d, path, -ENOTDIR);
	if (gone->folder.n_live)
		return disk_done(d, path, -ENOTEMPTY);
	bad = disk_name_fault(d, path, &was_done);
	if (was_done)
		names_set(&d->names, parent, name, NULL, gone);
	return disk_done(d, path, bad ? -EIO : 0);
}

/* A shard file has been the first job's bytes; no other job may have it. */
static void note_owner(struct sim_disk *d, struct inode *inode, const char *path)
{
	if (inode->class != CLASS_SHARD || strncmp(path, "jobs/", 5) != 0)
		return;
	assert(strlen(path) > 5 + sizeof(inode->job));
	if (inode->job[0] && strncmp(inode->job, path + 5, sizeof(inode->job) - 1) != 0)
		d->leak = "a job is given a file of another job";
	memcpy(inode->job, path + 5, sizeof(inode->job) - 1);
}

int sim_dir_rename(struct disk *disk, const char *from, const char *to)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *a, *b, *inode, *old;
	const char *from_name, *to_name;
	bool was_done = true, bad;

	world_op(d->world, "rename", d->options.op_ns_max);
	a = names_parent(&d->names, from, &from_name);
	b = names_parent(&d->names, to, &to_name);
	inode = a ? folder_get(a, from_name) : NULL;
	if (!inode || !b)
		return disk_done(d, from, -ENOENT);
	old = folder_get(b, to_name);
	assert(!(old && old->is_dir)); /* nobody needs it; keep the model small */
	bad = disk_name_fault(d, from, &was_done);
	/* Two names of one file: rename(2) does nothing. */
	if (was_done && old != inode) {
		note_owner(d, inode, from);
		names_move(&d->names, a, from_name, b, to_name, inode);
		inode->class = disk_class_of(to);
		inode->unreadable = false;
		note_owner(d, inode, to);
		inode->heir =
			old && (old->heir || old->unreadable || old->content.n_damage > 0);
	}
	disk_done(d, to, bad ? -EIO : 0);
	return disk_done(d, from, bad ? -EIO : 0);
}

int sim_dir_link(struct disk *disk, const char *from, const char *to)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *inode, *b;
	const char *to_name;
	bool was_done = true, bad;

	world_op(d->world, "link", d->options.op_ns_max);
	inode = names_find(&d->names, from);
	b = names_parent(&d->names, to, &to_name);
	if (!inode || !b)
		return disk_done(d, from, -ENOENT);
	if (folder_get(b, to_name))
		return disk_done(d, to, -EEXIST);
	bad = disk_name_fault(d, to, &was_done);
	if (was_done) {
		names_set(&d->names, b, to_name, inode, NULL);
		inode->class = disk_class_of(to);
	}
	return disk_done(d, to, bad ? -EIO : 0);
}

int sim_dir_unlink(struct disk *disk, const char *path)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *parent, *gone;
	const char *name;
	bool was_done = true, bad;

	world_op(d->world, "unlink", d->options.op_ns_max);
	parent = names_parent(&d->names, path, &name);
	gone = parent ? folder_get(parent, name) : NULL;
	if (!gone)
		return disk_done(d, path, -ENOENT);
	if (gone->is_dir)
		return disk_done(d, path, -EISDIR);
	bad = disk_name_fault(d, path, &was_done);
	if (was_done)
		names_set(&d->names, parent, name, NULL, NULL);
	return disk_done(d, path, bad ? -EIO : 0);
}

int sim_dir_sync_dir(struct disk *disk, const char *path)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *folder;

	world_op(d->world, "sync folder", d->options.sync_ns_max);
	folder = names_find(&d->names, path);
	if (!folder || !folder->is_dir)
		return disk_done(d, path, folder ? -ENOTDIR : -ENOENT);
	if (disk_fault(d, disk_class_of(path), FAULT_SYNC_EIO)) {
		names_sync_failed(&d->names, folder, d->world);
		folder->unreadable = true;
		return disk_done(d, path, -EIO);
	}
	names_sync(&d->names, folder);
	return disk_done(d, path, 0);
}

void walk_free(struct walk *walk)
{
	for (size_t i = 0; i < walk->n; i++)
		free(walk->names[i].name);
	free(walk->names);
	list_del(&walk->link);
	free(walk);
}

/* A copy, in an order that says nothing: who walks may change the folder. */
static struct walk *walk_new(struct sim_disk *d, const struct folder *folder)
{
	struct walk *walk = sim_zero(sizeof(*walk));
	size_t n = folder->n_live, turn = n ? (size_t)world_random(d->world, n) : 0;

	walk->names = sim_zero(n * sizeof(*walk->names));
	walk->n = n;
	list_add_tail(&d->walks, &walk->link);
	for (size_t i = 0; i < n; i++) {
		const struct name *from = &folder->live[(i + turn) % n];

		walk->names[i].name = sim_str(from->name);
		walk->names[i].inode = from->inode->is_dir ? from->inode : NULL;
	}
	return walk;
}

int sim_dir_list(struct disk *disk, const char *path, disk_name_fn *fn, void *arg)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *folder;
	struct walk *walk;
	int r = 0;

	world_op(d->world, "list", d->options.op_ns_max);
	folder = names_find(&d->names, path);
	if (!folder || !folder->is_dir)
		return disk_done(d, path, folder ? -ENOTDIR : -ENOENT);
	if (disk_fault(d, disk_class_of(path), FAULT_READ_EIO))
		return disk_done(d, path, -EIO);
	walk = walk_new(d, &folder->folder);
	for (size_t i = 0; i < walk->n && r == 0; i++)
		r = fn(arg, walk->names[i].name, walk->names[i].inode != NULL);
	walk_free(walk);
	return disk_done(d, path, r);
}

int sim_dir_space(struct disk *disk, uint64_t *ret_free, uint64_t *ret_total)
{
	struct sim_disk *d = sim_disk_of(disk);
	uint64_t used = disk_used(d);

	*ret_free = used < d->options.bytes ? d->options.bytes - used : 0;
	*ret_total = d->options.bytes;
	return 0;
}
