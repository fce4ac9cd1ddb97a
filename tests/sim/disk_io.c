/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_io.c - transfers of the simulated disk: their effect and faults, and the queue.
 *
 * A queued transfer takes effect when it is reaped, in any order: so a buffer that changes before
 * that is seen changed. What a killed process had in flight was done, partly done, or not.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/bytes.h"
#include "tests/sim/disk_int.h"
#include "tests/sim/heap.h"

/* O_DIRECT is refused by real disks otherwise, by some of them. */
static void check_aligned(const struct handle *h, const void *buf, size_t len, uint64_t offset)
{
	if (!(h->flags & DISK_DIRECT))
		return;
	assert((uintptr_t)buf % DISK_ALIGN == 0);
	assert(len % DISK_ALIGN == 0);
	assert(offset % DISK_ALIGN == 0);
}

int handle_read(struct handle *h, void *buf, size_t len, uint64_t offset)
{
	struct sim_disk *d = sim_disk_of(h->file.disk);
	struct content *c = &h->inode->content;
	size_t n = offset < c->size ? (size_t)min_u64(len, c->size - offset) : 0;

	check_aligned(h, buf, len, offset);
	if (disk_fault(d, h->inode->class, FAULT_READ_EIO)) {
		h->inode->unreadable = true;
		return -EIO;
	}
	if (n && disk_fault(d, h->inode->class, FAULT_FLIP))
		content_flip(c, offset + world_random(d->world, n),
			     (unsigned)world_random(d->world, 8));
	if (n)
		memcpy(buf, c->live + offset, n);
	return (int)n;
}

/* Some sectors of a write, as an error or a death in the middle leaves them. */
static void write_some(struct handle *h, const uint8_t *buf, size_t len, uint64_t offset)
{
	struct sim_disk *d = sim_disk_of(h->file.disk);
	uint32_t sector = d->options.sector;
	uint64_t hi;

	for (uint64_t lo = offset; lo < offset + len; lo = hi) {
		hi = min_u64((lo / sector + 1) * sector, offset + len);
		if (world_one_in(d->world, 2))
			content_write(&h->inode->content, lo, buf + (lo - offset), hi - lo);
	}
}

/* Another place for a write that loses its way: a file that may be damaged, or the same one. */
static struct inode *draw_victim(struct sim_disk *d, struct inode *self, size_t len)
{
	struct inode *i, *victim = self;
	uint64_t seen = 1;

	list_each(i, &d->names.inodes, link) {
		if (i->is_dir || i == self || i->content.size < len ||
		    !disk_may_be_damaged(i->class))
			continue;
		if (world_random(d->world, ++seen) == 0)
			victim = i;
	}
	return victim;
}

static void misdirect(struct handle *h, const void *buf, size_t len, uint64_t offset)
{
	struct sim_disk *d = sim_disk_of(h->file.disk);
	struct inode *victim = draw_victim(d, h->inode, len);
	uint64_t size = victim->content.size, at = 0;

	if (size > len)
		at = world_random(d->world, (size - len) / 64 + 1) * 64;
	/* What should have been written: old bytes, or a hole where there were none. */
	if (offset + len > h->inode->content.size)
		content_resize(&h->inode->content, offset + len);
	content_damage(&h->inode->content, offset, offset + len);
	if (victim == h->inode && (at == offset || at + len > size))
		return; /* lost altogether */
	content_write(&victim->content, at, buf, len);
	content_damage(&victim->content, at, at + len);
	world_note(d->world, "misdirected", victim->number, at, len);
}

int handle_write(struct handle *h, const void *buf, size_t len, uint64_t offset)
{
	struct sim_disk *d = sim_disk_of(h->file.disk);
	struct content *c = &h->inode->content;
	uint64_t end = offset + len, have = max_u64(c->size, c->reserved);

	assert(!(h->flags & DISK_READ) && len <= INT32_MAX);
	check_aligned(h, buf, len, offset);
	if (h->inode->exported)
		d->leak = "a file is written of which a process was given a descriptor";
	if (end > have && (disk_used(d) + (end - have) > d->options.bytes ||
			   disk_fault(d, h->inode->class, FAULT_NO_SPACE)))
		return -ENOSPC;
	if (disk_fault(d, h->inode->class, FAULT_WRITE_EIO)) {
		write_some(h, buf, len, offset);
		return -EIO;
	}
	if (len && disk_fault(d, h->inode->class, FAULT_MISDIRECT)) {
		misdirect(h, buf, len, offset);
		return (int)len;
	}
	content_write(c, offset, buf, len);
	if (h->inode->class != CLASS_LOCK)
		world_note(d->world, "bytes", h->inode->number, offset, world_digest(buf, len));
	return (int)len;
}

/* ---- The queue ---- */

int sim_queue_open(struct disk *disk, unsigned depth, struct disk_queue **ret)
{
	struct sim_disk *d = sim_disk_of(disk);
	struct disk_queue *q;

	assert(depth > 0);
	q = sim_zero(sizeof(*q));
	q->disk = d;
	q->depth = depth;
	q->owner = d->world->current;
	q->ios = sim_zero(depth * sizeof(struct disk_io *));
	list_add_tail(&d->queues, &q->link);
	disk_track(d);
	*ret = q;
	return 0;
}

static void queue_free(struct disk_queue *q)
{
	list_del(&q->link);
	free(q->ios);
	free(q);
}

void sim_queue_close(struct disk_queue *q)
{
	struct disk_io *io;

	while (q->in_flight)
		ignore_result(sim_queue_reap(q, &io)); /* their owner is not interested */
	queue_free(q);
}

int sim_queue_submit(struct disk_queue *q, struct disk_io *io)
{
	assert(q->owner == q->disk->world->current); /* the thread that opened it */
	assert(io->length <= DISK_TRANSFER_MAX && io->file->disk == &q->disk->disk);
	if (q->in_flight == q->depth)
		return -EAGAIN;
	handle_of(io->file)->in_flight++;
	q->ios[q->in_flight++] = io;
	return 0;
}

int sim_queue_reap(struct disk_queue *q, struct disk_io **ret)
{
	struct sim_disk *d = q->disk;
	struct disk_io *io;
	struct handle *h;
	unsigned i;

	assert(q->owner == d->world->current);
	if (q->in_flight == 0) {
		*ret = NULL;
		return 0;
	}
	world_op(d->world, "reap", d->options.op_ns_max);
	i = (unsigned)world_random(d->world, q->in_flight);
	io = q->ios[i];
	q->ios[i] = q->ios[--q->in_flight];
	h = handle_of(io->file);
	h->in_flight--;
	io->result = io->write ? handle_write(h, io->buf, io->length, io->offset)
			       : handle_read(h, io->buf, io->length, io->offset);
	world_note(d->world, io->write ? "queued write" : "queued read", h->inode->number,
		   io->offset, (uint64_t)(int64_t)io->result);
	*ret = io;
	return 0;
}

int sim_queue_register(struct disk_queue *q, void *base, uint64_t length)
{
	(void)q;
	(void)base;
	return length ? 0 : -EINVAL;
}

void sim_queue_unregister(struct disk_queue *q, void *base)
{
	(void)q;
	(void)base;
}

void sim_queue_abandon(struct disk_queue *q)
{
	struct world *w = q->disk->world;

	while (q->in_flight) {
		struct disk_io *io = q->ios[--q->in_flight];
		struct handle *h = handle_of(io->file);

		h->in_flight--;
		if (io->write && world_one_in(w, 2))
			write_some(h, io->buf, io->length, io->offset);
		else if (io->write && world_one_in(w, 2))
			ignore_result(handle_write(h, io->buf, io->length, io->offset));
	}
	queue_free(q);
}
