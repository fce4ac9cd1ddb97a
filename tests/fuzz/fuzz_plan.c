/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two goes at each input. As the bytes of a plan: what plan_decode() accepts is executed on memory
 * of the promised sizes. As a recipe of layouts of one small tensor: two stored ranks and a wanted
 * one are declared and planned; the plan must place just as many bytes as are wanted and stored,
 * and is executed through windows.
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

/* One rank's shards of the tensor by the next bytes; NULL when the bytes make none. */
static void *declare(struct reader *r, const struct shape *global, size_t *len)
{
	struct declaration_builder *b;
	void *bytes = NULL;
	uint8_t n = read_u8(r) % 6;
	bool ok;

	if (declaration_builder_new(geometry, &b) != 0)
		return NULL;
	for (ok = true; ok && n > 0; n--) {
		struct shard s = {
			.name = "t", .name_len = 1, .dtype = CKPT_U8, .global = *global
		};
		uint64_t elements = 1;

		s.box.ndim = global->ndim;
		for (uint32_t k = 0; k < global->ndim; k++) {
			s.box.offset[k] = read_u8(r) % (global->dim[k] + 1);
			s.box.length[k] = read_u8(r) % (global->dim[k] - s.box.offset[k] + 1);
			elements *= s.box.length[k];
		}
		s.flat = read_u8(r) & 1;
		s.start = read_u16(r) % (elements + 1);
		s.stop = s.start + read_u16(r) % (elements - s.start + 1);
		ok = declaration_add(b, &s, NULL) >= 0;
	}
	if (!ok || declaration_finish(b, &bytes, len, NULL) != 0)
		bytes = NULL; /* overlapping shards, mostly */
	declaration_builder_free(b);
	return bytes;
}

/* Which elements a rank holds: holds[i] counts how often element i is declared. */
static void mark(const struct declaration *d, uint8_t *holds)
{
	for (uint32_t i = 0; i < d->n_shards; i++) {
		struct shard s;

		declaration_get(d, i, &s);
		for (uint64_t k = s.start; k < s.stop; k++) {
			uint64_t number = 0, step = 1, rest = k;

			for (uint32_t n = s.box.ndim; n-- > 0; rest /= s.box.length[n]) {
				number += (s.box.offset[n] + rest % s.box.length[n]) * step;
				step *= s.global.dim[n];
			}
			holds[number]++;
		}
	}
}

static void check_plan(const struct declaration *have, const struct declaration *want,
		       uint64_t window)
{
	struct plan_source sources[2] = { { have[0], 1, false }, { have[1], 0, false } };
	static uint8_t stored[ELEMENTS_MAX], wanted[ELEMENTS_MAX];
	uint64_t covered = 0;
	struct plan plan;

	memset(stored, 0, sizeof(stored));
	memset(wanted, 0, sizeof(wanted));
	mark(&have[0], stored);
	mark(&have[1], stored);
	mark(want, wanted);
	for (uint32_t i = 0; i < ELEMENTS_MAX; i++)
		covered += wanted[i] && stored[i];
	if (plan_make(sources, 2, want, true, true, &plan, NULL) == 0) {
		uint8_t *memory = alloc_zero(ELEMENTS_MAX), *image = alloc_zero(1u << 16);

		assert(plan.bytes == covered);
		for (size_t i = 0; memory && image && i < plan.n_pieces; i++)
			for (uint64_t lo = 0; lo < 1u << 16; lo += window)
				plan_piece_copy(&plan.pieces[i], image + lo, lo,
						min_u64(lo + window, 1u << 16), memory);
		alloc_free(memory);
		alloc_free(image);
	}
	plan_fini(&plan);
}

static void try_recipe(const uint8_t *data, size_t size)
{
	struct reader r = reader_of(data, size);
	struct shape global = { .ndim = read_u8(&r) % 5 };
	uint64_t window = 512 + read_u8(&r);
	struct declaration d[3];
	void *bytes[3] = { NULL };
	uint64_t elements;
	bool good = true;

	for (uint32_t k = 0; k < global.ndim; k++)
		global.dim[k] = read_u8(&r) % (global.ndim < 3 ? 33 : 9);
	if (!shape_elements(&global, &elements) || elements > ELEMENTS_MAX)
		return;
	for (int i = 0; i < 3; i++) {
		size_t len = 0;

		bytes[i] = declare(&r, &global, &len);
		good = good && bytes[i] && declaration_open(bytes[i], len, &d[i], NULL) == 0;
	}
	if (good)
		check_plan(d, &d[2], window);
	for (int i = 0; i < 3; i++)
		alloc_free(bytes[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_bytes(data, size);
	try_recipe(data, size);
	return 0;
}
