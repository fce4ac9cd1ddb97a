/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two goes at each input. As the bytes of a plan: what plan_decode() accepts is executed on memory
 * of the promised sizes. As a recipe of layouts of one small tensor: two to four stored ranks and a
 * wanted one are declared and planned; the plan is executed through windows, and each element that
 * is wanted must come from the most preferred rank that stores it, or be left as it was. The oracle
 * goes element by element.
 */
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "model/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ELEMENTS_MAX 4096u
static const struct geometry geometry = { .leaf = 64, .chunk = 256 };

static void ignore_units(void *arg, uint64_t first, uint64_t last)
{
	(void)arg;
	assert(first <= last);
}

static void try_bytes(const uint8_t *data, size_t size)
{
	uint64_t source[2] = { 4096, 300 }, target[2] = { 64, 1024 };
	uint8_t *image[2] = { alloc_zero(source[0]), alloc_zero(source[1]) };
	uint8_t *memory[2] = { alloc_zero(target[0]), alloc_zero(target[1]) };
	struct reader r = reader_of(data, size);
	struct plan plan;

	if (image[0] && image[1] && memory[0] && memory[1] &&
	    plan_decode(&r, source, 2, target, 2, &plan, NULL) == 0) {
		for (size_t i = 0; i < plan.n_pieces && i < 1000; i++) {
			struct plan_piece *p = &plan.pieces[i];
			uint64_t len = source[p->source], half = len / 2;

			plan_piece_copy(p, image[p->source], 0, half, memory[p->target]);
			plan_piece_copy(p, image[p->source] + half, half, len, memory[p->target]);
			plan_piece_units(p, 64, ignore_units, NULL);
		}
		plan_fini(&plan);
	}
	for (int i = 0; i < 2; i++) {
		alloc_free(image[i]);
		alloc_free(memory[i]);
	}
}

#define STORED_MAX 4
#define UNTOUCHED  0xee
static const struct {
	uint32_t dtype, bytes;
} dtypes[] = {
	{CKPT_U8, 1}, {CKPT_BF16, 2}, {CKPT_F32, 4}, {CKPT_F64, 8}, {CKPT_C128, 16},
};

/* The first byte says how many dimensions, which dtype, how many ranks; the second the windows. */
struct recipe {
	struct reader r;
	struct shape global;
	uint32_t kind, n_stored;
	uint64_t window, elements;
};

static bool begin(struct recipe *c, const uint8_t *data, size_t size)
{
	uint8_t head;

	*c = (struct recipe){.r = reader_of(data, size)};
	head = read_u8(&c->r);
	c->global.ndim = head % 5;
	c->kind = head / 5 % 5;
	c->n_stored = 2 + head / 25 % 3;
	c->window = 512 + read_u8(&c->r);
	for (uint32_t k = 0; k < c->global.ndim; k++)
		c->global.dim[k] = read_u8(&c->r) % (c->global.ndim < 3 ? 33 : 9);
	return shape_elements(&c->global, &c->elements) && c->elements <= ELEMENTS_MAX;
}

/* One rank's shards of the tensor by the next bytes; NULL when the bytes make none. */
static void *declare(struct recipe *c, size_t *len)
{
	struct declaration_builder *b;
	void *bytes = NULL;
	uint8_t n = read_u8(&c->r) % 6;
	bool ok;

	if (declaration_builder_new(geometry, &b) != 0)
		return NULL;
	for (ok = true; ok && n > 0; n--) {
		struct shard s = {.name = "t",
				  .name_len = 1,
				  .dtype = dtypes[c->kind].dtype,
				  .global = c->global};
		uint64_t elements = 1;

		s.box.ndim = c->global.ndim;
		for (uint32_t k = 0; k < c->global.ndim; k++) {
			s.box.offset[k] = read_u8(&c->r) % (c->global.dim[k] + 1);
			s.box.length[k] = read_u8(&c->r) % (c->global.dim[k] - s.box.offset[k] + 1);
			elements *= s.box.length[k];
		}
		s.flat = read_u8(&c->r) & 1;
		s.start = read_u16(&c->r) % (elements + 1);
		s.stop = s.start + read_u16(&c->r) % (elements - s.start + 1);
		ok = declaration_add(b, &s, NULL) >= 0;
	}
	if (!ok || declaration_finish(b, &bytes, len, NULL) != 0)
		bytes = NULL; /* overlapping shards, mostly */
	declaration_builder_free(b);
	return bytes;
}

/* ---- The oracle ---- */

/* The number in its tensor of element k of the shard's box. */
static uint64_t number_of(const struct shard *s, uint64_t k)
{
	uint64_t number = 0, step = 1;

	for (uint32_t n = s->box.ndim; n-- > 0; k /= s->box.length[n]) {
		number += (s->box.offset[n] + k % s->box.length[n]) * step;
		step *= s->global.dim[n];
	}
	return number;
}

static void value_of(uint8_t value[16], uint64_t number, uint32_t source)
{
	uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u + source * 0xff51afd7ed558ccdu;

	for (int i = 0; i < 16; i++) {
		x ^= x >> 29;
		x *= 0xbf58476d1ce4e5b9u;
		value[i] = (uint8_t)(x >> 56);
	}
}

/* best[i]: the source that element i must come from, of those so far; preferred ones come later. */
static void fill(const struct declaration *d, uint32_t source, uint32_t size, uint8_t *image,
		 uint8_t *best)
{
	for (uint32_t i = 0; i < d->n_shards; i++) {
		struct shard s;

		declaration_get(d, i, &s);
		for (uint64_t k = s.start; k < s.stop; k++) {
			uint8_t value[16];

			value_of(value, number_of(&s, k), source);
			memcpy(image + s.image_offset + (k - s.start) * size, value, size);
			best[number_of(&s, k)] = (uint8_t)(1 + source);
		}
	}
}

static uint64_t check_shard(const struct shard *s, uint32_t size, const uint8_t *memory,
			    const uint8_t *best)
{
	uint64_t covered = 0;

	for (uint64_t k = s->start; k < s->stop; k++) {
		uint64_t number = number_of(s, k);
		uint8_t value[16];

		memset(value, UNTOUCHED, sizeof(value));
		if (best[number])
			value_of(value, number, best[number] - 1u);
		assert(memcmp(memory + (k - s->start) * size, value, size) == 0);
		covered += best[number] > 0;
	}
	return covered;
}

static void execute(const struct recipe *c, const struct plan *plan, uint8_t *const *image,
		    const struct declaration *have, uint8_t *const *memory)
{
	for (size_t i = 0; i < plan->n_pieces; i++) {
		const struct plan_piece *p = &plan->pieces[i];
		uint64_t end = have[p->source].image_bytes;

		for (uint64_t lo = 0; lo < end; lo += c->window)
			plan_piece_copy(p, image[p->source] + lo, lo, min_u64(lo + c->window, end),
					memory[p->target]);
	}
}

/* The one tensor is extra where the first rank alone stores it and it is not wanted. */
static void check_extra(const struct recipe *c, const struct plan *plan,
			const struct declaration *have, const struct declaration *want)
{
	bool wanted = want->n_shards > 0;
	size_t n = 0;

	for (uint32_t i = 1; i < c->n_stored; i++)
		wanted = wanted || have[i].n_shards > 0;
	for (size_t i = 0; i < plan->n_problems; i++)
		n += plan->problems[i].kind == PLAN_EXTRA;
	assert(n == (have[0].n_shards > 0 && !wanted));
}

/* Source 0 is the least preferred. */
static void check_plan(const struct recipe *c, const struct declaration *have,
		       const struct declaration *want)
{
	struct plan_source sources[STORED_MAX] = {0};
	uint8_t *image[STORED_MAX], *memory[8] = {NULL}, best[ELEMENTS_MAX] = {0};
	uint32_t size = dtypes[c->kind].bytes;
	uint64_t covered = 0;
	struct shard s;
	struct plan plan;
	/* What all but the first have stored is wanted by others. */
	struct plan_peers peers = {have + 1, c->n_stored - 1};

	for (uint32_t i = 0; i < c->n_stored; i++) {
		sources[i].declaration = have[i];
		sources[i].cost = c->n_stored - i;
		image[i] = calloc(1, have[i].image_bytes + 1);
		fill(&have[i], i, size, image[i], best);
	}
	for (uint32_t i = 0; i < want->n_shards; i++) {
		declaration_get(want, i, &s);
		memory[declaration_order(want, i)] = malloc(s.bytes + 1);
		memset(memory[declaration_order(want, i)], UNTOUCHED, s.bytes);
	}
	if (plan_make(sources, c->n_stored, want, true, &peers, &plan, NULL) == 0) {
		execute(c, &plan, image, have, memory);
		for (uint32_t i = 0; i < want->n_shards; i++) {
			declaration_get(want, i, &s);
			covered += check_shard(&s, size, memory[declaration_order(want, i)], best);
		}
		assert(plan.bytes == covered * size);
		check_extra(c, &plan, have, want);
	}
	plan_fini(&plan);
	for (uint32_t i = 0; i < c->n_stored; i++)
		free(image[i]);
	for (uint32_t i = 0; i < want->n_shards; i++)
		free(memory[i]);
}

static void try_recipe(const uint8_t *data, size_t size)
{
	struct declaration d[STORED_MAX + 1];
	void *bytes[STORED_MAX + 1] = {NULL};
	struct recipe c;
	bool good = true;

	if (!begin(&c, data, size))
		return;
	for (uint32_t i = 0; i <= c.n_stored; i++) {
		size_t len = 0;

		bytes[i] = declare(&c, &len);
		good = good && bytes[i] && declaration_open(bytes[i], len, &d[i], NULL) == 0;
	}
	if (good)
		check_plan(&c, d, &d[c.n_stored]);
	for (uint32_t i = 0; i <= c.n_stored; i++)
		alloc_free(bytes[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_bytes(data, size);
	try_recipe(data, size);
	return 0;
}
