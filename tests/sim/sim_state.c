/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_state.c - what training state looks like: four tensors, sharded in one of four ways, and
 * what each byte of them is at each save. The plain loops here are the oracle of planner and
 * formats: they know nothing of boxes, images and leaves.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>

#include "base/alloc.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define LAYOUTS 4

static const struct {
	const char *name;
	uint32_t dtype;
	uint64_t rows, cols, element;
	enum shard_kind kind[LAYOUTS];
} tensors[] = {
	{"w", CKPT_F32, 13, 24, 4, {SHARD_ROWS, SHARD_COLUMNS, SHARD_FLAT, SHARD_WHOLE}},
	{"opt.m", CKPT_BF16, 40, 9, 2, {SHARD_FLAT, SHARD_ROWS, SHARD_COLUMNS, SHARD_FLAT}},
	{"h", CKPT_F32, 14, 20, 4, {SHARD_HALVES, SHARD_WHOLE, SHARD_HALVES, SHARD_COLUMNS}},
	{"b", CKPT_F64, 1, 7, 8, {SHARD_WHOLE, SHARD_WHOLE, SHARD_WHOLE, SHARD_ROWS}},
};
#define TENSORS (sizeof(tensors) / sizeof(tensors[0]))

/* ---- Bytes ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t save_hash(unsigned job, const struct save_key *k)
{
	return mix(mix(mix(mix(17, job), k->epoch), k->step), k->try);
}

static uint8_t byte_at(uint64_t hash, uint64_t i)
{
	return (uint8_t)(mix(hash, i / 8) >> (8 * (i % 8)));
}

/* Byte i of a part in its tensor's row-major order. */
static uint64_t place_of(const struct part *p, uint64_t i)
{
	uint64_t e = i / p->element, width = p->c1 - p->c0;

	if (p->flat)
		e += p->start;
	else
		e = (p->r0 + e / width) * p->cols + p->c0 + e % width;
	return e * p->element + i % p->element;
}

#define WRONG_ONE_IN 16 /* saves of a rank */
#define WRONG_BIT    1

/* Which byte of the part is wrong as this rank saved it; UINT64_MAX: none. */
static uint64_t wrong_byte(const struct part *p, unsigned job, const struct save_key *k,
			   uint32_t rank)
{
	uint64_t hash = mix(mix(save_hash(job, k), 7000 + rank), p->tensor);

	if (!p->shared || p->bytes == 0 || hash % WRONG_ONE_IN != 0)
		return UINT64_MAX;
	return hash / WRONG_ONE_IN % p->bytes;
}

void state_fill(const struct part *p, unsigned job, const struct save_key *k, uint32_t rank,
		uint8_t *to)
{
	uint64_t hash = mix(save_hash(job, k), p->tensor);
	uint64_t wrong = wrong_byte(p, job, k, rank);

	for (uint64_t i = 0; i < p->bytes; i++)
		to[i] = byte_at(hash, place_of(p, i));
	if (wrong != UINT64_MAX)
		to[wrong] ^= WRONG_BIT;
}

static void part_make(struct part *p, unsigned t, uint32_t rank, uint32_t world, unsigned layout);

/* Whether some rank had this byte of the tensor wrong. */
static bool some_rank_wrong(const struct part *p, unsigned job, const struct save_key *k,
			    const struct saved_by *saved, uint64_t place)
{
	for (uint32_t rank = 0; rank < saved->world; rank++) {
		struct part own;
		uint64_t wrong;

		part_make(&own, p->tensor, rank, saved->world, saved->layout);
		wrong = wrong_byte(&own, job, k, rank);
		if (wrong != UINT64_MAX && place_of(&own, wrong) == place)
			return true;
	}
	return false;
}

uint64_t state_compare(const struct part *p, unsigned job, const struct save_key *k,
		       const struct saved_by *saved, const struct rank *reader, const uint8_t *have)
{
	uint64_t hash = mix(save_hash(job, k), p->tensor), wrong = UINT64_MAX;
	bool own = saved->world == reader->world &&
		   saved->layout % LAYOUTS == reader->layout % LAYOUTS;

	if (own)
		wrong = wrong_byte(p, job, k, reader->rank);
	for (uint64_t i = 0; i < p->bytes; i++) {
		uint8_t want = byte_at(hash, place_of(p, i));

		if (i == wrong)
			want ^= WRONG_BIT;
		if (have[i] == want)
			continue;
		if (own || have[i] != (want ^ WRONG_BIT) ||
		    !some_rank_wrong(p, job, k, saved, place_of(p, i)))
			return i;
	}
	return UINT64_MAX;
}

uint64_t state_blob_bytes(const struct save_key *k)
{
	return 1 + mix(k->step, k->epoch) % SIM_BLOB_MAX;
}

void state_blob(unsigned job, uint32_t rank, const struct save_key *k, uint8_t *to, uint64_t len)
{
	uint64_t hash = mix(save_hash(job, k), 1000 + rank);

	for (uint64_t i = 0; i < len; i++)
		to[i] = byte_at(hash, i);
}

/* ---- Shards ---- */

static void cut(uint64_t n, uint32_t rank, uint32_t world, uint64_t *ret_lo, uint64_t *ret_hi)
{
	*ret_lo = n * rank / world;
	*ret_hi = n * (rank + 1) / world;
}

static void part_make(struct part *p, unsigned t, uint32_t rank, uint32_t world, unsigned layout)
{
	*p = (struct part){.tensor = t,
			   .rows = tensors[t].rows,
			   .cols = tensors[t].cols,
			   .element = tensors[t].element};
	p->r1 = p->rows;
	p->c1 = p->cols;
	switch (tensors[t].kind[layout % LAYOUTS]) {
	case SHARD_ROWS:
		cut(p->rows, rank, world, &p->r0, &p->r1);
		break;
	case SHARD_COLUMNS:
		cut(p->cols, rank, world, &p->c0, &p->c1);
		break;
	case SHARD_FLAT:
		p->flat = true;
		cut(p->rows * p->cols, rank, world, &p->start, &p->stop);
		break;
	case SHARD_WHOLE:
		p->shared = true;
		break;
	case SHARD_HALVES:
		p->shared = true;
		cut(p->rows, world > 1 ? rank % 2 : 0, world > 1 ? 2 : 1, &p->r0, &p->r1);
		break;
	}
	p->bytes = p->element * (p->flat ? p->stop - p->start : (p->r1 - p->r0) * (p->c1 - p->c0));
}

static void declare(struct declaration_builder *b, const struct part *p)
{
	struct shard s = {
		.name = tensors[p->tensor].name,
		.name_len = (uint32_t)strlen(tensors[p->tensor].name),
		.dtype = tensors[p->tensor].dtype,
		.trained = true,
		.global = {2, {p->rows, p->cols}},
		.box = {2, {p->r0, p->c0}, {p->r1 - p->r0, p->c1 - p->c0}},
		.flat = p->flat,
		.start = p->start,
		.stop = p->stop,
	};

	if (declaration_add(b, &s, NULL) < 0)
		sim_check(NULL);
}

void state_make(struct state *st, unsigned job, uint32_t rank, uint32_t world, unsigned layout,
		struct geometry g)
{
	struct declaration_builder *b;
	struct declaration view;
	struct shard s;

	(void)job;
	memset(st, 0, sizeof(*st));
	if (declaration_builder_new(g, &b) < 0)
		sim_check(NULL);
	for (unsigned t = 0; t < TENSORS; t++) {
		struct part *p = &st->parts[st->n_parts];

		part_make(p, t, rank, world, layout);
		declare(b, p);
		st->n_parts++;
	}
	if (declaration_finish(b, &st->declaration, &st->declaration_len, NULL) < 0 ||
	    declaration_open(st->declaration, st->declaration_len, &view, NULL) < 0)
		sim_check(NULL);
	declaration_builder_free(b);
	st->digest = declaration_digest(st->declaration, st->declaration_len);
	st->image_bytes = view.image_bytes;
	st->blob_offset = (view.image_bytes + 4095) / 4096 * 4096;
	for (uint32_t i = 0; i < view.n_shards; i++) {
		declaration_get(&view, i, &s);
		st->parts[declaration_order(&view, i)].image_offset = s.image_offset;
		assert(st->parts[declaration_order(&view, i)].bytes == s.bytes);
	}
}
