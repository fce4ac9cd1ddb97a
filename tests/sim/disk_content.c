/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_content.c - the bytes of one simulated file: live, stable, and the changes between them.
 *
 *   (1) stable plus all changes in order is live, except after a failed sync, when live may hold
 *       bytes that will never be stable.
 *   (2) A sector's stable bytes after a power loss are those after some prefix of the changes that
 *       touch it: the cache writes a page as it is at that moment.
 */
#include <config.h>

#include <assert.h>

#include "base/bytes.h"
#include "tests/sim/disk_int.h"
#include "tests/sim/heap.h"

static void make_room(uint8_t **bytes, uint64_t *cap, uint64_t size)
{
	uint64_t grown = *cap ? *cap : 512;

	if (size <= *cap)
		return;
	while (grown < size)
		grown *= 2;
	*bytes = sim_resize(*bytes, grown);
	memset(*bytes + *cap, 0, grown - *cap);
	*cap = grown;
}

static void drop_changes(struct content *c)
{
	for (size_t i = 0; i < c->n_changes; i++)
		free(c->changes[i].bytes);
	c->n_changes = 0;
}

void content_free(struct content *c)
{
	drop_changes(c);
	free(c->changes);
	free(c->damage);
	free(c->live);
	free(c->stable);
}

static void put(uint8_t *to, uint64_t offset, const uint8_t *bytes, uint64_t len)
{
	if (bytes)
		memcpy(to + offset, bytes, len);
	else
		memset(to + offset, 0, len);
}

/* A range that is written anew is whole again; what sticks out stays damaged. */
static void repair(struct content *c, uint64_t lo, uint64_t hi)
{
	size_t n = c->n_damage, kept = 0;

	for (size_t i = 0; i < n; i++) {
		struct extent e = c->damage[i];

		if (e.lo < lo || e.hi > hi)
			c->damage[kept++] = e;
	}
	c->n_damage = kept;
}

void content_damage(struct content *c, uint64_t lo, uint64_t hi)
{
	assert(lo < hi);
	sim_grow(c->damage, c->n_damage, c->cap_damage);
	c->damage[c->n_damage++] = (struct extent){ lo, hi };
}

static void add_change(struct content *c, struct change ch)
{
	sim_grow(c->changes, c->n_changes, c->cap_changes);
	c->changes[c->n_changes++] = ch;
}

void content_write(struct content *c, uint64_t offset, const void *bytes, uint64_t len)
{
	uint64_t end = offset + len;

	if (len == 0)
		return;
	make_room(&c->live, &c->cap, end);
	put(c->live, offset, bytes, len);
	c->size = max_u64(c->size, end);
	repair(c, offset, end);
	add_change(c, (struct change){ .offset = offset, .len = len, .size = c->size,
				       .bytes = bytes ? sim_copy(bytes, len) : NULL });
}

void content_resize(struct content *c, uint64_t size)
{
	uint64_t old = c->size;

	make_room(&c->live, &c->cap, size);
	if (size < old) {
		memset(c->live + size, 0, old - size);
		repair(c, size, UINT64_MAX);
	}
	c->size = size;
	add_change(c, (struct change){ .offset = min_u64(size, old),
				       .len = size < old ? old - size : 0, .size = size });
}

/* Applies the part of a change that lies in [lo, hi) to the stable bytes. */
static void settle(struct content *c, const struct change *ch, uint64_t lo, uint64_t hi)
{
	uint64_t from = max_u64(lo, ch->offset), to = min_u64(hi, ch->offset + ch->len);

	if (from >= to)
		return;
	make_room(&c->stable, &c->stable_cap, to);
	put(c->stable, from, ch->bytes ? ch->bytes + (from - ch->offset) : NULL, to - from);
}

void content_sync(struct content *c)
{
	for (size_t i = 0; i < c->n_changes; i++) {
		settle(c, &c->changes[i], 0, UINT64_MAX);
		c->stable_size = c->changes[i].size;
	}
	drop_changes(c);
}

static size_t touching(const struct content *c, uint64_t lo, uint64_t hi)
{
	size_t n = 0;

	for (size_t i = 0; i < c->n_changes; i++) {
		const struct change *ch = &c->changes[i];

		n += ch->offset < hi && ch->offset + ch->len > lo;
	}
	return n;
}

/* How much got through: mostly any prefix, often all or nothing, which leaves sharper states. */
static size_t draw_prefix(struct world *w, unsigned mood, size_t n)
{
	return mood == 0 ? 0 : mood == 1 ? n : (size_t)world_random(w, n + 1);
}

/* Makes a prefix of each sector's changes stable, and some size of those there were. */
static void settle_some(struct content *c, struct world *w, uint32_t sector)
{
	unsigned mood = (unsigned)world_random(w, 4);
	size_t sizes = draw_prefix(w, mood, c->n_changes);
	uint64_t end = 0;

	for (size_t i = 0; i < c->n_changes; i++)
		end = max_u64(end, c->changes[i].offset + c->changes[i].len);
	for (uint64_t lo = 0; lo < end; lo += sector) {
		size_t n = touching(c, lo, lo + sector), keep;

		if (n == 0)
			continue;
		keep = draw_prefix(w, mood, n);
		for (size_t i = 0; keep; i++) {
			const struct change *ch = &c->changes[i];

			if (ch->offset >= lo + sector || ch->offset + ch->len <= lo)
				continue;
			settle(c, ch, lo, lo + sector);
			keep--;
		}
	}
	if (sizes)
		c->stable_size = c->changes[sizes - 1].size;
	if (c->stable_size < c->stable_cap)
		memset(c->stable + c->stable_size, 0, c->stable_cap - c->stable_size);
}

void content_power_loss(struct content *c, struct world *w, uint32_t sector)
{
	if (c->n_changes)
		settle_some(c, w, sector);
	drop_changes(c);
	make_room(&c->live, &c->cap, c->stable_size);
	make_room(&c->stable, &c->stable_cap, c->stable_size);
	if (c->cap)
		memset(c->live, 0, c->cap);
	if (c->stable_size)
		memcpy(c->live, c->stable, c->stable_size);
	c->size = c->stable_size;
}

void content_sync_failed(struct content *c, struct world *w, uint32_t sector)
{
	uint64_t size = c->size;

	settle_some(c, w, sector);
	drop_changes(c);
	/* The pages are clean now: a read finds them, or finds them evicted and asks the disk. */
	make_room(&c->stable, &c->stable_cap, size);
	for (uint64_t lo = 0; lo < size; lo += sector) {
		uint64_t hi = min_u64(lo + sector, size);

		if (memcmp(c->live + lo, c->stable + lo, hi - lo) != 0 && world_one_in(w, 2))
			memcpy(c->live + lo, c->stable + lo, hi - lo);
	}
	if (c->stable_size < c->stable_cap)
		memset(c->stable + c->stable_size, 0, c->stable_cap - c->stable_size);
}

void content_flip(struct content *c, uint64_t offset, unsigned bit)
{
	assert(offset < c->size);
	c->live[offset] ^= (uint8_t)(1u << bit);
	if (offset < c->stable_size) {
		make_room(&c->stable, &c->stable_cap, c->stable_size);
		c->stable[offset] = c->live[offset];
	}
	content_damage(c, offset, offset + 1);
}
