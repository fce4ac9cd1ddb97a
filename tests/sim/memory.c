/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - regions, the keeper, mappings and memfds of bytes. See memory.h.
 *
 * A region's bytes are one block that daemon and trainers share; it is freed when neither the
 * store, a daemon, a mapping nor a descriptor holds it: whoever keeps a stale pointer meets the
 * address sanitizer.
 */
#include <config.h>

#include "tests/sim/memory.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tests/sim/heap.h"

#define PAGE 4096u

struct backing {
	struct list link; /* in the keeper's */
	struct keeper *keeper;
	uint8_t *base;
	uint64_t size;
	char name[REGION_NAME_MAX + 1];
	bool sealed;
	bool stored;   /* the keeper has it */
	unsigned refs; /* the store's, regions', mappings', descriptors' */
	bool hollow;   /* it has no pages yet */
};

struct keeper {
	struct world *world;
	struct keeper_options options;
	struct list backings;
};

/* A region as one daemon has it. */
struct sim_region {
	struct region region;
	struct list link; /* in the memory's */
	struct backing *backing;
};

struct sim_memory {
	struct memory memory;
	struct keeper *keeper;
	struct life *life;
	struct life_hook hook;
	struct list regions;
	bool adopted;
	bool serves; /* its node has started */
	uint64_t serves_ns;
};

struct region_fd {
	struct backing *backing;
	bool writable;
};

struct bytes_fd {
	void *bytes;
	uint64_t len;
	bool sealed;
};

struct sim_mapping {
	struct mapping mapping;
	struct backing *backing;
	struct life_hook hook;
};

static void backing_unref(struct backing *b)
{
	assert(b->refs > 0);
	if (--b->refs)
		return;
	list_del(&b->link);
	free(b->base);
	free(b);
}

static void unstore(struct backing *b)
{
	if (!b->stored)
		return;
	b->stored = false;
	backing_unref(b);
}

static struct sim_memory *memory_of(struct memory *m)
{
	struct sim_memory *s = container_of(m, struct sim_memory, memory);

	assert(s->keeper->world->current == s->life); /* called by its own daemon, alive */
	return s;
}

static struct sim_region *region_of(struct region *r)
{
	return container_of(r, struct sim_region, region);
}

static struct sim_region *region_new(struct sim_memory *s, struct backing *b)
{
	struct sim_region *r = sim_zero(sizeof(*r));

	b->refs++;
	r->backing = b;
	r->region.base = b->base;
	r->region.size = b->size;
	memcpy(r->region.name, b->name, sizeof(b->name));
	list_init(&r->region.link);
	list_add_tail(&s->regions, &r->link);
	return r;
}

static void region_free(struct sim_region *r)
{
	list_del(&r->link);
	backing_unref(r->backing);
	free(r);
}

static bool name_is_legal(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-");

	return n >= 1 && n <= REGION_NAME_MAX && name[n] == '\0';
}

static void room_of(const struct keeper *k, struct memory_room *ret)
{
	uint64_t used = keeper_regions(k), max = k->options.places;

	*ret = (struct memory_room){ used, UINT64_MAX, UINT64_MAX };
	if (max == 0)
		return;
	ret->max = max;
	ret->left = max - min_u64(used, max);
}

static bool store_is_full(const struct keeper *k)
{
	struct memory_room room;

	room_of(k, &room);
	return room.left == 0;
}

static int take(struct sim_memory *s, const char *name, uint64_t size, bool store,
		struct region **ret)
{
	struct keeper *k = s->keeper;
	struct backing *b;

	assert(name_is_legal(name) && size > 0);
	world_op(k->world, "create region", 0);
	if (store && store_is_full(k))
		return CKPT_ENOSPACE;
	if (keeper_used(k) + size > k->options.budget ||
	    world_one_in(k->world, k->options.create_fails))
		return -ENOMEM;
	b = sim_zero(sizeof(*b));
	b->keeper = k;
	b->size = size;
	b->base = sim_check(aligned_alloc(PAGE, round_up(size, PAGE)));
	memset(b->base, 0, round_up(size, PAGE));
	memcpy(b->name, name, strlen(name) + 1);
	b->stored = store;
	b->refs = store;
	list_add_tail(&k->backings, &b->link);
	*ret = &region_new(s, b)->region;
	world_note(k->world, name, size, 0, 0);
	return 0;
}

static int sim_create(struct memory *m, const char *name, uint64_t size, struct region **ret)
{
	struct sim_memory *s = memory_of(m);

	/* The fd store is waited for: not on the loop, but while it starts, and for a ledger as the
	 * last resort. */
	assert(s->life->running != &s->life->control || !s->serves ||
	       s->serves_ns == s->keeper->world->now_ns || strncmp(name, "ledger.", 7) == 0);
	return take(s, name, size, true, ret);
}

static int sim_reserve(struct memory *m, const char *name, uint64_t size, struct region **ret)
{
	int r = sim_create(m, name, size, ret);

	if (r == 0)
		region_of(*ret)->backing->hollow = true;
	return r;
}

static int sim_fill(struct memory *m, struct region *r)
{
	struct sim_memory *s = memory_of(m);

	assert(s->life->running != &s->life->control);
	world_op(s->keeper->world, "fill region", 0);
	region_of(r)->backing->hollow = false;
	return 0;
}

static int sim_create_small(struct memory *m, const char *name, uint64_t size, struct region **ret)
{
	assert(size <= REGION_SMALL_MAX);
	return take(memory_of(m), name, size, false, ret);
}

static int sim_keep(struct memory *m, struct region *r)
{
	struct sim_memory *s = memory_of(m);
	struct backing *b = region_of(r)->backing;

	assert(s->life->running != &s->life->control && !b->stored);
	world_op(s->keeper->world, "keep region", 0);
	if (store_is_full(s->keeper))
		return CKPT_ENOSPACE;
	if (world_one_in(s->keeper->world, s->keeper->options.create_fails))
		return -EIO;
	b->stored = true;
	b->refs++;
	world_note(s->keeper->world, r->name, r->size, 2, 0);
	return 0;
}

static int sim_seal(struct memory *m, struct region *r)
{
	world_op(memory_of(m)->keeper->world, "seal region", 0);
	region_of(r)->backing->sealed = true;
	return 0;
}

static void sim_destroy(struct memory *m, struct region *r)
{
	struct world *w = memory_of(m)->keeper->world;
	struct sim_region *sr = region_of(r);

	world_op(w, "destroy region", 0);
	unstore(sr->backing);
	world_note(w, r->name, 0, 0, 0);
	/* Between the store and the mapping it may die: then the region is simply gone. */
	region_free(sr);
}

void memory_sim_serves(struct memory *m)
{
	struct sim_memory *s = memory_of(m);

	assert(!s->serves);
	s->serves = true;
	s->serves_ns = s->keeper->world->now_ns;
}

static void sim_adopt(struct memory *m, region_fn *fn, void *arg)
{
	struct sim_memory *s = memory_of(m);
	struct backing *b, *next;

	assert(!s->adopted && list_empty(&s->regions));
	s->adopted = true;
	list_each_safe(b, next, &s->keeper->backings, link) {
		if (!b->stored)
			continue;
		world_note(s->keeper->world, b->name, b->size, 1, 0);
		fn(arg, &region_new(s, b)->region);
	}
}

static void region_fd_unref(void *object)
{
	struct region_fd *f = object;

	backing_unref(f->backing);
	free(f);
}
static const struct sim_fd_ops region_fd_ops = { "region", region_fd_unref };

static int sim_export_fd(struct memory *m, struct region *r, bool writable)
{
	struct sim_memory *s = memory_of(m);
	struct backing *b = region_of(r)->backing;
	struct region_fd *f;

	if (writable && b->sealed)
		return -EPERM;
	f = sim_zero(sizeof(*f));
	f->backing = b;
	f->writable = writable;
	b->refs++;
	return sim_fd_new(s->keeper->world, s->life, &region_fd_ops, f);
}

static void bytes_fd_unref(void *object)
{
	struct bytes_fd *f = object;

	free(f->bytes);
	free(f);
}
static const struct sim_fd_ops bytes_fd_ops = { "bytes", bytes_fd_unref };

int memory_bytes_fd(struct world *w, struct life *l, const void *bytes, uint64_t len, bool sealed)
{
	struct bytes_fd *f = sim_zero(sizeof(*f));

	f->bytes = sim_copy(bytes, len);
	f->len = len;
	f->sealed = sealed;
	return sim_fd_new(w, l, &bytes_fd_ops, f);
}

const void *memory_fd_bytes(struct world *w, int fd, uint64_t *ret_len)
{
	struct bytes_fd *f = sim_fd_object(w, fd, &bytes_fd_ops);

	if (!f)
		return NULL;
	*ret_len = f->len;
	return f->bytes;
}

static int sim_bytes_to_fd(struct memory *m, const void *bytes, uint64_t len)
{
	struct sim_memory *s = memory_of(m);

	if (world_one_in(s->keeper->world, s->keeper->options.create_fails))
		return -ENOMEM;
	return memory_bytes_fd(s->keeper->world, s->life, bytes, len, true);
}

static int sim_fd_to_bytes(struct memory *m, int fd, uint64_t max, void **ret, uint64_t *ret_len)
{
	struct sim_memory *s = memory_of(m);
	struct bytes_fd *f = sim_fd_object(s->keeper->world, fd, &bytes_fd_ops);
	void *copy;

	if (!f || !f->sealed)
		return -EINVAL;
	if (f->len > max)
		return -E2BIG;
	copy = alloc_copy(f->bytes, f->len);
	if (!copy)
		return -ENOMEM;
	*ret = copy;
	*ret_len = f->len;
	return 0;
}

static void sim_close_fd(struct memory *m, int fd)
{
	sim_fd_close(memory_of(m)->keeper->world, fd);
}

static uint64_t sim_available(struct memory *m, uint64_t *ret_budget)
{
	struct keeper *k = memory_of(m)->keeper;
	uint64_t used = keeper_used(k);

	*ret_budget = k->options.budget;
	return used < k->options.budget ? k->options.budget - used : 0;
}

static void sim_room(struct memory *m, struct memory_room *ret)
{
	room_of(memory_of(m)->keeper, ret);
}

static const struct memory_ops sim_ops = {
	.create = sim_create,
	.reserve = sim_reserve,
	.fill = sim_fill,
	.create_small = sim_create_small,
	.keep = sim_keep,
	.seal = sim_seal,
	.destroy = sim_destroy,
	.adopt = sim_adopt,
	.export_fd = sim_export_fd,
	.bytes_to_fd = sim_bytes_to_fd,
	.fd_to_bytes = sim_fd_to_bytes,
	.close_fd = sim_close_fd,
	.available = sim_available,
	.room = sim_room,
};

static void owner_ended(struct life_hook *h)
{
	struct sim_memory *s = container_of(h, struct sim_memory, hook);

	while (!list_empty(&s->regions))
		region_free(list_first(&s->regions, struct sim_region, link));
	free(s);
}

struct memory *memory_sim_open(struct keeper *k, struct life *l)
{
	struct sim_memory *s = sim_zero(sizeof(*s));

	assert(l->alive);
	s->memory.ops = &sim_ops;
	s->keeper = k;
	s->life = l;
	s->hook.ended = owner_ended;
	list_init(&s->regions);
	life_on_end(l, &s->hook);
	return &s->memory;
}

/* ---- The keeper ---- */

struct keeper *keeper_new(struct world *w, const struct keeper_options *o)
{
	struct keeper *k = sim_zero(sizeof(*k));

	k->world = w;
	k->options = *o;
	list_init(&k->backings);
	return k;
}

struct keeper_options *keeper_options(struct keeper *k)
{
	return &k->options;
}

void keeper_die(struct keeper *k)
{
	struct backing *b, *next;

	world_note(k->world, "keeper dies", keeper_regions(k), 0, 0);
	list_each_safe(b, next, &k->backings, link)
		unstore(b);
}

void keeper_power_loss(struct keeper *k)
{
	keeper_die(k);
	assert(list_empty(&k->backings)); /* somebody still lives on this node */
}

void keeper_free(struct keeper *k)
{
	if (!k)
		return;
	keeper_power_loss(k);
	free(k);
}

size_t keeper_regions(const struct keeper *k)
{
	struct backing *b;
	size_t n = 0;

	list_each(b, &k->backings, link)
		n += b->stored;
	return n;
}

void keeper_each(struct keeper *k, keeper_fn *fn, void *arg)
{
	struct backing *b;

	list_each(b, &k->backings, link) {
		if (b->stored)
			fn(arg, b->name, b->base, b->size);
	}
}

uint64_t keeper_used(const struct keeper *k)
{
	struct backing *b;
	uint64_t used = 0;

	list_each(b, &k->backings, link)
		used += b->size;
	return used;
}

/* ---- Mappings of trainers ---- */

static void mapping_ended(struct life_hook *h)
{
	struct sim_mapping *m = container_of(h, struct sim_mapping, hook);

	list_del(&m->hook.link);
	backing_unref(m->backing);
	free(m);
}

struct mapping *mapping_new(struct world *w, struct life *l, int fd)
{
	struct region_fd *f = sim_fd_object(w, fd, &region_fd_ops);
	struct sim_mapping *m;

	if (!f)
		return NULL;
	m = sim_zero(sizeof(*m));
	m->backing = f->backing;
	m->backing->refs++;
	m->mapping.base = f->backing->base;
	m->mapping.size = f->backing->size;
	m->mapping.writable = f->writable;
	m->hook.ended = mapping_ended;
	list_init(&m->hook.link);
	if (l)
		life_on_end(l, &m->hook);
	return &m->mapping;
}

void mapping_free(struct mapping *mapping)
{
	if (mapping)
		mapping_ended(&container_of(mapping, struct sim_mapping, mapping)->hook);
}

bool mapping_has_pages(const struct mapping *m)
{
	return !container_of(m, const struct sim_mapping, mapping)->backing->hollow;
}
