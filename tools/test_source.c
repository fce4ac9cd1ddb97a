/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What sources share: wants as runs of a whole tensor, and slabs, against element by element.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/lib/test.h"
#include "tools/source.h"

static uint64_t state;

static uint64_t below(uint64_t bound)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % bound;
}

/* ---- Runs ---- */

struct copying {
	const uint16_t *tensor;
	uint64_t runs;
};

static int copy_run(void *arg, uint64_t at, uint64_t n, void *to, struct err *e)
{
	struct copying *c = arg;

	(void)e;
	assert_true(n > 0);
	memcpy(to, c->tensor + at, n * sizeof(*c->tensor));
	c->runs++;
	return 0;
}

/* Element i of the box, by its coordinates. */
static uint16_t expected(const struct reading_tensor *t, const struct box *b, uint64_t i)
{
	uint64_t index = 0, at[CKPT_NDIM_MAX];

	for (uint32_t k = b->ndim; k-- > 0; i /= b->length[k])
		at[k] = b->offset[k] + i % b->length[k];
	for (uint32_t k = 0; k < b->ndim; k++)
		index = index * t->global.dim[k] + at[k];
	return (uint16_t)index;
}

static void check_want(const struct reading_tensor *t, struct reading_want w,
		       const uint16_t *tensor)
{
	uint16_t got[3000];
	struct copying c = {.tensor = tensor};
	struct err e = {0};

	assert_true(w.stop - w.start < 2999);
	got[w.stop - w.start] = 0xdead;
	w.to = got;
	assert_int_equal(want_each_run(&w, t, copy_run, &c, &e), 0);
	for (uint64_t i = w.start; i < w.stop; i++)
		assert_int_equal(got[i - w.start], expected(t, &w.box, i));
	assert_int_equal(got[w.stop - w.start], 0xdead);
	assert_true(c.runs <= w.stop - w.start);
	if (memcmp(w.box.length, t->global.dim, w.box.ndim * 8) == 0 && w.stop > w.start)
		assert_true(c.runs <= FLAT_BOXES_MAX); /* a whole tensor is never cut into rows */
}

static void test_runs(void **unused)
{
	uint16_t tensor[3000];

	(void)unused;
	state = test_seed(1) * 2 + 1;
	for (size_t i = 0; i < 3000; i++)
		tensor[i] = (uint16_t)i;
	for (int round = 0; round < 20000; round++) {
		struct reading_tensor t = {.dtype = CKPT_U16};
		struct reading_want w = {0};
		uint64_t n;

		t.global.ndim = w.box.ndim = (uint32_t)below(5);
		for (uint32_t k = 0; k < t.global.ndim; k++) {
			t.global.dim[k] = below(10) ? 1 + below(7) : 0;
			w.box.length[k] = t.global.dim[k];
			if (below(2) && t.global.dim[k]) {
				w.box.offset[k] = below(t.global.dim[k]);
				w.box.length[k] = 1 + below(t.global.dim[k] - w.box.offset[k]);
			}
		}
		assert_true(box_elements(&w.box, &n));
		w.start = below(n + 1);
		w.stop = w.start + below(n - w.start + 1);
		check_want(&t, w, tensor);
	}
}

/* ---- Slabs ---- */

/* Everything comes once and in order, in turns that fit unless they are one element. */
static void test_slabs(void **unused)
{
	enum { N = 3000 };
	static struct slab_item items[N];
	static struct slab turn[SLABS_MAX];

	(void)unused;
	state = test_seed(2) * 2 + 1;
	for (int round = 0; round < 200; round++) {
		struct slabs s = {.items = items, .n = below(N), .memory = 1 + below(5000)};
		uint64_t at = 0, done = 0;
		size_t n;

		for (size_t i = 0; i < s.n; i++)
			items[i] = (struct slab_item){
				.elements = below(3) ? below(20) : below(5000),
				.cost = 1 + (uint32_t)below(32),
			};
		while ((n = slabs_next(&s, turn)) > 0) {
			uint64_t cost = 0, elements = 0;

			for (size_t i = 0; i < n; i++) {
				while (done == items[at].elements) { /* the next that has any */
					at++;
					done = 0;
				}
				assert_int_equal(turn[i].which, at);
				assert_int_equal(turn[i].start, done);
				assert_true(turn[i].stop > done &&
					    turn[i].stop <= items[at].elements);
				done = turn[i].stop;
				cost += (turn[i].stop - turn[i].start) * items[at].cost;
				elements += turn[i].stop - turn[i].start;
			}
			assert_true(cost <= s.memory || elements == 1);
		}
		while (at < s.n && done == items[at].elements) {
			at++;
			done = 0;
		}
		assert_int_equal(at, s.n);
	}
}

/* ---- Names ---- */

static void test_names(void **unused)
{
	const struct {
		const char *globs[3];
		const char *name;
		bool chosen;
	} cases[] = {
		{{NULL}, "a", true},
		{{"a*"}, "ab", true},
		{{"a*"}, "ba", false},
		{{"a*", "b*"}, "ba", true},
		{{"!a*"}, "ab", false},
		{{"!a*"}, "b", true},
		{{"*", "!a*"}, "ab", false},
		{{"!a*", "ab"}, "ab", false},
		{{"layers.[0-3].*"}, "layers.2.w", true},
		{{"layers.?.*"}, "layers.12.w", false},
	};

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct words w = {0};

		while (w.n < 3 && cases[i].globs[w.n]) {
			w.at[w.n] = cases[i].globs[w.n];
			w.n++;
		}
		if (name_is_chosen(&w, cases[i].name, (uint32_t)strlen(cases[i].name)) !=
		    cases[i].chosen)
			fail_msg("case %zu: '%s'", i, cases[i].name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_runs),
		cmocka_unit_test(test_slabs),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
