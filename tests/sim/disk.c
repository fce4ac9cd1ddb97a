/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.c - the simulated disk as a whole: faults, the end of its users, the power, and what the
 * oracle may ask. What is modelled, and the fault atlas, stand in disk.h; calls on files are in
 * disk_file.c, on names in disk_dir.c, transfers in disk_io.c.
 *
 * Each call lets time pass first (world_op: it may be the life's last moment) and then takes
 * effect at once: "done, but the answer was lost" is a kill at the life's next step.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/bytes.h"
#include "tests/sim/disk_int.h"
#include "tests/sim/heap.h"

/* ---- Faults ---- */

enum disk_class disk_class_of(const char *path)
{
	const char *name = strrchr(path, '/');

	name = name ? name + 1 : path;
	if (strncmp(path, "spare/", 6) == 0)
		return CLASS_SPARE;
	/* A tool's; the reserve is kept from checkpoints that ckptd writes. */
	if (strncmp(path, "incoming/", 9) == 0)
		return CLASS_OTHER;
	if (strncmp(path, "declarations/", 13) == 0 || strncmp(path, "layouts/", 8) == 0)
		return CLASS_OBJECT;
	if (strcmp(path, "LOCK") == 0)
		return CLASS_LOCK;
	if (strstr(path, "/log/"))
		return CLASS_LOG;
	if (strstr(name, "COMMIT"))
		return CLASS_COMMIT;
	/* One that is written again is a temporary until it has the name of the damaged one. */
	if (strncmp(name, "rank-", 5) == 0 || strncmp(name, "tmp-rank-", 9) == 0)
		return CLASS_SHARD;
	return CLASS_OTHER;
}

bool disk_may_be_damaged(enum disk_class c)
{
	return c == CLASS_COMMIT || c == CLASS_SHARD || c == CLASS_OBJECT || c == CLASS_SPARE;
}

bool disk_fault(struct sim_disk *d, enum disk_class c, enum disk_fault f)
{
	if (d->injected[f] >= d->options.budget[f] ||
	    !world_one_in(d->world, d->options.one_in[c][f]))
		return false;
	/* The atlas: whatever the options say. */
	if ((f == FAULT_FLIP || f == FAULT_MISDIRECT) && !disk_may_be_damaged(c))
		return false;
	d->injected[f]++;
	world_note(d->world, "disk fault", f, c, 0);
	return true;
}

void disk_options_default(struct disk_options *o)
{
	*o = (struct disk_options){ .bytes = 64u << 20, .sector = 512, .op_ns_max = 100 * SIM_US,
				    .sync_ns_max = 2 * SIM_MS };
}

void disk_options_atlas(struct disk_options *o, struct world *w)
{
	for (int f = 0; f < DISK_FAULTS; f++) {
		uint32_t rate = world_one_in(w, 2) ? 0 : 20u << world_random(w, 6);

		o->budget[f] = 1 + (uint32_t)world_random(w, 4);
		for (int c = 0; c < DISK_CLASSES; c++)
			o->one_in[c][f] = rate;
	}
	/* Few files are read through the page cache. */
	for (int c = 0; c < DISK_CLASSES; c++)
		o->one_in[c][FAULT_STALE] /= 16;
	o->sector = 64u << world_random(w, 4);
}

int disk_done(struct sim_disk *d, const char *path, int r)
{
	world_note(d->world, path, 0, 0, (uint64_t)(int64_t)r);
	return r;
}

/* A call on a name that fails: half of the time it was done nevertheless. */
bool disk_name_fault(struct sim_disk *d, const char *path, bool *ret_done)
{
	if (!disk_fault(d, disk_class_of(path), FAULT_NAME_EIO))
		return false;
	*ret_done = world_one_in(d->world, 2);
	return true;
}

static const struct disk_ops sim_ops = {
	.open = sim_file_open,
	.close = sim_file_close,
	.size = sim_file_size,
	.links = sim_file_links,
	.is_private = sim_file_is_private,
	.allocate = sim_file_allocate,
	.truncate = sim_file_truncate,
	.sync = sim_file_sync,
	.read = sim_file_read,
	.write = sim_file_write,
	.lock = sim_file_lock,
	.export_fd = sim_file_export_fd,
	.in_use = sim_file_in_use,
	.forget = sim_file_forget,
	.mkdir = sim_dir_mkdir,
	.rmdir = sim_dir_rmdir,
	.rename = sim_dir_rename,
	.link = sim_dir_link,
	.unlink = sim_dir_unlink,
	.sync_dir = sim_dir_sync_dir,
	.list = sim_dir_list,
	.space = sim_dir_space,
	.queue_open = sim_queue_open,
	.queue_close = sim_queue_close,
	.submit = sim_queue_submit,
	.reap = sim_queue_reap,
	.queue_register = sim_queue_register,
	.queue_unregister = sim_queue_unregister,
};

/* ---- Users: lives that have something open ---- */

struct disk_user {
	struct life_hook hook;
	struct list link;
	struct sim_disk *disk;
	struct life *life;
};

static void user_ended(struct life_hook *hook)
{
	struct disk_user *u = container_of(hook, struct disk_user, hook);
	struct disk_queue *q, *next_q;
	struct handle *h, *next_h;

	list_each_safe(q, next_q, &u->disk->queues, link) {
		if (q->owner == u->life)
			sim_queue_abandon(q);
	}
	list_each_safe(h, next_h, &u->disk->handles, link) {
		if (h->owner != u->life)
			continue;
		h->owner = NULL;
		handle_free(h);
	}
	list_del(&u->link);
	free(u);
}

void disk_track(struct sim_disk *d)
{
	struct life *l = d->world->current;
	struct disk_user *u;

	if (!l)
		return;
	list_each(u, &d->users, link) {
		if (u->life == l)
			return;
	}
	u = sim_zero(sizeof(*u));
	u->hook.ended = user_ended;
	u->disk = d;
	u->life = l;
	list_add_tail(&d->users, &u->link);
	life_on_end(l, &u->hook);
}

/* ---- The disk as a whole ---- */

struct disk *disk_sim_new(struct world *w, const struct disk_options *o)
{
	struct sim_disk *d = sim_zero(sizeof(*d));

	assert(o->sector && (o->sector & (o->sector - 1)) == 0);
	d->disk.ops = &sim_ops;
	d->disk.backend = "sim";
	d->world = w;
	d->options = *o;
	list_init(&d->handles);
	list_init(&d->queues);
	list_init(&d->users);
	list_init(&d->walks);
	names_init(&d->names);
	return &d->disk;
}

static void drop_walks(struct sim_disk *d)
{
	while (!list_empty(&d->walks))
		walk_free(list_first(&d->walks, struct walk, link));
}

void disk_sim_free(struct disk *disk)
{
	struct sim_disk *d;

	if (!disk)
		return;
	d = sim_disk_of(disk);
	assert(list_empty(&d->handles) && list_empty(&d->queues) && list_empty(&d->users));
	drop_walks(d);
	names_free(&d->names);
	free(d);
}

struct disk_options *disk_sim_options(struct disk *disk)
{
	return &sim_disk_of(disk)->options;
}

void disk_power_loss(struct disk *disk)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *i;

	assert(list_empty(&d->handles) && list_empty(&d->queues));
	world_note(d->world, "power loss", d->names.n_changes, 0, 0);
	drop_walks(d);
	names_power_loss(&d->names, d->world);
	list_each(i, &d->names.inodes, link) {
		struct content *c = &i->content;

		if (i->is_dir)
			continue;
		content_power_loss(c, d->world, d->options.sector);
		c->reserved = min_u64(c->reserved, c->size);
		if (c->size && disk_fault(d, i->class, FAULT_FLIP))
			content_flip(c, world_random(d->world, c->size),
				     (unsigned)world_random(d->world, 8));
	}
}

/* ---- For the oracle ---- */

bool disk_is_damaged(struct disk *disk, const char *path)
{
	struct inode *i = names_find(&sim_disk_of(disk)->names, path);

	return i && i->content.n_damage > 0;
}

const char *disk_leak(struct disk *disk)
{
	return sim_disk_of(disk)->leak;
}

bool disk_was_unreadable(struct disk *disk, const char *path)
{
	struct inode *i = names_find(&sim_disk_of(disk)->names, path);

	return i && (i->unreadable || i->heir);
}

bool disk_exists(struct disk *disk, const char *path)
{
	return names_find(&sim_disk_of(disk)->names, path) != NULL;
}

int64_t disk_peek(struct disk *disk, const char *path, void *buf, uint64_t max)
{
	struct inode *i = names_find(&sim_disk_of(disk)->names, path);

	if (!i || i->is_dir)
		return -1;
	if (max > i->content.size)
		max = i->content.size;
	if (max)
		memcpy(buf, i->content.live, max);
	return (int64_t)max;
}

int disk_flip(struct disk *disk, const char *path, uint64_t offset, uint64_t len)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *i = names_find(&d->names, path);

	if (i && len == UINT64_MAX && offset < i->content.size)
		len = i->content.size - offset;
	if (!i || i->is_dir || len == 0 || len > i->content.size || offset + len > i->content.size)
		return -ENOENT;
	content_flip(&i->content, offset + world_random(d->world, len),
		     (unsigned)world_random(d->world, 8));
	return 0;
}

int disk_remove(struct disk *disk, const char *path)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct inode *i = names_find(&d->names, path);
	const char *name;
	struct inode *folder = names_parent(&d->names, path, &name);

	if (!i || i->is_dir || !folder)
		return -ENOENT;
	names_set(&d->names, folder, name, NULL, NULL);
	names_sync(&d->names, folder);
	return 0;
}

uint32_t disk_fault_count(struct disk *disk, enum disk_fault f)
{
	return sim_disk_of(disk)->injected[f];
}

size_t disk_open_files(struct disk *disk)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct handle *h;
	size_t n = 0;

	list_each(h, &d->handles, link)
		n++;
	return n;
}

/* Calls fn for each path below folder, live names. */
static void each_path(const struct inode *folder, const char *path,
		      void (*fn)(void *arg, const char *path, const struct inode *i), void *arg)
{
	for (size_t k = 0; k < folder->folder.n_live; k++) {
		const struct name *n = &folder->folder.live[k];
		char below[2 * DISK_PATH_MAX];

		snprintf(below, sizeof(below), "%s%s%s", path, *path ? "/" : "", n->name);
		fn(arg, below, n->inode);
		if (n->inode->is_dir)
			each_path(n->inode, below, fn, arg);
	}
}

static void add_digest(void *arg, const char *path, const struct inode *i)
{
	uint64_t *sum = arg;

	if (i->class == CLASS_LOCK)
		return;
	/* A sum: names have no order. */
	*sum += world_digest(path, strlen(path)) ^
		(3 * world_digest(i->content.live, i->content.size));
}

uint64_t disk_digest(struct disk *disk)
{
	uint64_t sum = 0;

	each_path(sim_disk_of(disk)->names.root, "", add_digest, &sum);
	return sum;
}

static void dump_one(void *arg, const char *path, const struct inode *i)
{
	(void)arg;
	fprintf(stderr, "%8" PRIu64 " %s%s%s\n", i->content.size, path, i->is_dir ? "/" : "",
		i->content.n_damage ? " (damaged)" : "");
}

void disk_dump(struct disk *disk)
{
	each_path(sim_disk_of(disk)->names.root, "", dump_one, NULL);
}
