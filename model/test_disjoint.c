/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search for two boxes that share an element, against an oracle that knows nothing of boxes: it
 * counts, element by element, how many boxes hold it. What the search costs is counted in boxes
 * that it looked at, never in time.
 *
 * CKPT_DISJOINT_CASES: random cases (8000); CKPT_SEED replays.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "model/disjoint.h"
#include "tests/lib/test.h"

#define CELLS_MAX 1024u
#define BOXES_MAX 60000u
#define SHARDS    60000u

static struct rng_seeded rng;
static struct box boxes[BOXES_MAX];
static uint32_t n_boxes;

static uint64_t below(uint64_t n)
{
	return rng_below(&rng.rng, n);
}

static void put(const struct box *b)
{
	assert_true(n_boxes < BOXES_MAX);
	boxes[n_boxes++] = *b;
}

/* Boxes come in any order: an order that happens to be good proves nothing. */
static void shuffle(void)
{
	for (uint32_t i = n_boxes; i > 1; i--) {
		uint32_t k = (uint32_t)below(i);
		struct box x = boxes[i - 1];

		boxes[i - 1] = boxes[k];
		boxes[k] = x;
	}
}

/* Divides a box again and again, along any dimension and anywhere, in up to n boxes. */
static void divide(struct box whole, uint32_t n)
{
	while (n > 1) {
		uint32_t k = (uint32_t)below(whole.ndim), part = 1 + (uint32_t)below(n - 1);
		struct box piece = whole;
		uint64_t cut;

		if (whole.length[k] < 2) {
			n--; /* no room here: fewer boxes */
			continue;
		}
		cut = 1 + below(whole.length[k] - 1);
		piece.length[k] = cut;
		whole.offset[k] += cut;
		whole.length[k] -= cut;
		divide(piece, part);
		n -= part;
	}
	put(&whole);
}

static uint64_t most_steps = UINT64_MAX;

static int check(struct disjoint *d, const atomic_bool *cancel, struct box *ret)
{
	struct effort effort = {.cancel = cancel, .most = most_steps};

	disjoint_reset(d, boxes[0].ndim);
	for (uint32_t i = 0; i < n_boxes; i++)
		assert_int_equal(disjoint_add(d, &boxes[i]), 0);
	return disjoint_check(d, &effort, ret);
}

/* ---- The oracle ---- */

struct cells {
	uint32_t ndim, n;
	uint64_t dim[CKPT_NDIM_MAX];
	uint16_t holders[CELLS_MAX];
};

static bool holds(const struct box *b, const uint64_t *at)
{
	for (uint32_t k = 0; k < b->ndim; k++)
		if (at[k] < b->offset[k] || at[k] - b->offset[k] >= b->length[k])
			return false;
	return true;
}

/* Coordinates of a cell. */
static void locate(const struct cells *c, uint32_t cell, uint64_t at[CKPT_NDIM_MAX])
{
	for (uint32_t k = c->ndim; k-- > 0;) {
		at[k] = cell % c->dim[k];
		cell /= (uint32_t)c->dim[k];
	}
}

/* Whether an element has two holders. */
static bool count_holders(struct cells *c)
{
	bool twice = false;

	for (uint32_t cell = 0; cell < c->n; cell++) {
		uint64_t at[CKPT_NDIM_MAX];

		locate(c, cell, at);
		c->holders[cell] = 0;
		for (uint32_t i = 0; i < n_boxes; i++)
			c->holders[cell] += holds(&boxes[i], at);
		twice = twice || c->holders[cell] > 1;
	}
	return twice;
}

/* Every element of the box that was found has two holders, and it has one at least. */
static void assert_shared(const struct cells *c, const struct box *b)
{
	uint32_t n = 0;

	assert_int_equal(b->ndim, c->ndim);
	for (uint32_t cell = 0; cell < c->n; cell++) {
		uint64_t at[CKPT_NDIM_MAX];

		locate(c, cell, at);
		if (!holds(b, at))
			continue;
		assert_true(c->holders[cell] > 1);
		n++;
	}
	assert_true(n > 0);
}

static struct cells some_cells(void)
{
	struct cells c = { .ndim = (uint32_t)below(CKPT_NDIM_MAX + 1), .n = 1 };

	for (uint32_t k = 0; k < c.ndim; k++) {
		uint64_t most = CELLS_MAX / c.n;

		c.dim[k] = 1 + below(k + 1 == c.ndim && most > 64 ? 64 : most < 16 ? most : 16);
		c.n *= (uint32_t)c.dim[k];
	}
	return c;
}

static void some_boxes(const struct cells *c)
{
	uint32_t n = (uint32_t)below(40);

	for (uint32_t i = 0; i < n; i++) {
		struct box b = { .ndim = c->ndim };

		for (uint32_t k = 0; k < c->ndim; k++) {
			uint64_t longest = c->dim[k];

			b.offset[k] = below(longest);
			longest -= b.offset[k];
			b.length[k] = 1 + below(below(3) ? longest : min_u64(longest, 2));
		}
		put(&b);
	}
}

/* Disjoint boxes, of which some are left out and one may be longer than it was. */
static void nearly_disjoint_boxes(const struct cells *c)
{
	struct box whole = { .ndim = c->ndim }, *b;
	uint32_t k;

	for (k = 0; k < c->ndim; k++)
		whole.length[k] = c->dim[k];
	if (c->ndim)
		divide(whole, 1 + (uint32_t)below(300));
	for (uint32_t i = 0, out = (uint32_t)below(4); i < out && n_boxes > 1; i++)
		boxes[below(n_boxes)] = boxes[n_boxes - 1], n_boxes--;
	if (n_boxes == 0 || below(2))
		return;
	b = &boxes[below(n_boxes)];
	k = (uint32_t)below(c->ndim);
	if (b->offset[k] > 0 && below(2)) {
		b->offset[k]--;
		b->length[k]++;
	} else if (b->offset[k] + b->length[k] < c->dim[k]) {
		b->length[k]++;
	}
}

/* Cells become long: the search must not care, and not overflow. */
static void stretch(const struct cells *c, const uint64_t factor[CKPT_NDIM_MAX])
{
	for (uint32_t i = 0; i < n_boxes; i++) {
		for (uint32_t k = 0; k < c->ndim; k++) {
			boxes[i].offset[k] *= factor[k];
			boxes[i].length[k] *= factor[k];
		}
	}
}

static void some_factors(const struct cells *c, uint64_t factor[CKPT_NDIM_MAX])
{
	uint64_t room = UINT64_MAX / c->n;

	for (uint32_t k = 0; k < c->ndim; k++) {
		factor[k] = below(2) ? 1 : 1 + below(room);
		room /= factor[k];
	}
}

static void test_against_counting(void **state)
{
	uint64_t cases = test_cap("CKPT_DISJOINT_CASES", 8000), found = 0;
	struct disjoint d = { 0 };

	(void)state;
	rng_seed(&rng, test_seed(11));
	for (uint64_t i = 0; i < cases; i++) {
		struct cells c = some_cells();
		uint64_t factor[CKPT_NDIM_MAX];
		struct box shared;
		bool twice;
		int r;

		n_boxes = 0;
		boxes[0].ndim = c.ndim;
		if (below(2))
			some_boxes(&c);
		else
			nearly_disjoint_boxes(&c);
		shuffle();
		twice = count_holders(&c);
		some_factors(&c, factor);
		stretch(&c, factor);
		r = check(&d, NULL, &shared);
		assert_int_equal(r, twice);
		found += twice;
		if (r == 0)
			continue;
		for (uint32_t k = 0; k < c.ndim; k++) {
			assert_int_equal(shared.offset[k] % factor[k], 0);
			assert_int_equal(shared.length[k] % factor[k], 0);
			shared.offset[k] /= factor[k];
			shared.length[k] /= factor[k];
		}
		assert_shared(&c, &shared);
	}
	assert_in_range(found, cases / 10, cases - cases / 10);
	disjoint_fini(&d);
}

/* ---- What it costs ---- */

/* Boxes looked at, for each box. */
static uint64_t cost(struct disjoint *d)
{
	struct box shared;

	shuffle();
	assert_int_equal(check(d, NULL, &shared), 0);
	return d->steps / n_boxes;
}

/* The cost of each is what is asserted: it is the same of fewer. */
static uint32_t shards(void)
{
	uint64_t n = test_cap("CKPT_SHARDS", SHARDS);

	return n < SHARDS ? (uint32_t)n : SHARDS;
}

/* Long in all dimensions but the last, and beginning anywhere in them: their order by offset says
 * nothing. */
static void slabs(uint32_t ndim)
{
	n_boxes = 0;
	for (uint32_t i = 0; i < shards(); i++) {
		struct box b = { .ndim = ndim };

		for (uint32_t k = 0; k + 1 < ndim; k++) {
			b.offset[k] = below(1000);
			b.length[k] = 1000;
		}
		b.offset[ndim - 1] = i;
		b.length[ndim - 1] = 1;
		put(&b);
	}
}

/* Rods along each of three dimensions, which pass each other: no plane divides them well. */
static void rods(uint64_t side)
{
	n_boxes = 0;
	for (uint64_t i = 0; i < side; i++) {
		for (uint64_t k = 0; k < side; k++) {
			struct box x = { 3, { 0, 2 * i, 2 * k }, { 2 * side, 1, 1 } };
			struct box y = { 3, { 2 * i, 0, 2 * k + 1 }, { 1, 2 * side, 1 } };
			struct box z = { 3, { 2 * i + 1, 2 * k + 1, 0 }, { 1, 1, 2 * side } };

			put(&x);
			put(&y);
			put(&z);
		}
	}
}

static void test_cost_of_hostile_shapes(void **state)
{
	struct disjoint d = { 0 };

	(void)state;
	rng_seed(&rng, test_seed(12));
	for (uint32_t ndim = 2; ndim <= CKPT_NDIM_MAX; ndim++) {
		slabs(ndim);
		assert_in_range(cost(&d), 1, 40); /* comparing all: 30000 */
	}
	rods(140);
	assert_in_range(cost(&d), 1, 100);
	for (uint32_t ndim = 2; ndim <= CKPT_NDIM_MAX; ndim++) {
		struct box whole = { .ndim = ndim };
		uint64_t most = (uint64_t)200 * (ndim - 1);

		for (uint32_t k = 0; k < ndim; k++)
			whole.length[k] = (uint64_t)1 << 60 / ndim;
		n_boxes = 0;
		divide(whole, shards());
		assert_true(n_boxes > shards() / 2);
		assert_in_range(cost(&d), 1, 2 * most);
	}
	disjoint_fini(&d);
}

/* In each dimension it is long or short. */
static struct box some_rod(uint32_t ndim, uint64_t side)
{
	struct box b = { .ndim = ndim };

	for (uint32_t k = 0; k < ndim; k++) {
		bool is_long = below(2);

		b.length[k] = is_long ? side - below(3) : 1 + below(2);
		b.offset[k] = below(side + 1 - b.length[k]);
	}
	return b;
}

static bool meets_any(const struct box *b)
{
	struct box x;

	for (uint32_t i = 0; i < n_boxes; i++)
		if (box_intersect(&boxes[i], b, &x))
			return true;
	return false;
}

/* Packs what finds room beside what is there, then one that need not: the only one that others
 * can meet. */
static void test_rods_that_meet(void **state)
{
	uint64_t cases = test_cap("CKPT_DISJOINT_CASES", 8000) / 2, found = 0;
	struct disjoint d = { 0 };

	(void)state;
	rng_seed(&rng, test_seed(14));
	for (uint64_t i = 0; i < cases; i++) {
		uint32_t ndim = 2 + (uint32_t)below(4), tries = 100 + (uint32_t)below(500);
		uint64_t side = 8 + below(40);
		struct box b, shared;
		bool meets;

		n_boxes = 0;
		while (tries-- > 0) {
			b = some_rod(ndim, side);
			if (!meets_any(&b))
				put(&b);
		}
		b = some_rod(ndim, side);
		meets = meets_any(&b);
		put(&b);
		shuffle();
		assert_int_equal(check(&d, NULL, &shared), meets);
		found += meets;
	}
	assert_in_range(found, cases / 10, cases - cases / 10);
	disjoint_fini(&d);
}

static void put4(uint64_t x, uint64_t x_len, uint64_t y, uint64_t y_len, uint64_t z, uint64_t z_len,
		 uint64_t side)
{
	struct box b = { 4, { x, y, z, side }, { x_len, y_len, z_len, 1 } };

	put(&b);
}

/*
 * Boxes that span the same part of two dimensions and differ in the third one, many of them, so
 * that they are not just compared. Others, which are short there, make the search begin with the
 * first dimension, then take the second one.
 */
static void test_boxes_that_span_alike(void **state)
{
	struct disjoint d = { 0 };

	(void)state;
	for (uint32_t twin = 0; twin <= 20; twin++) {
		struct box shared;

		n_boxes = 0;
		for (uint32_t i = 0; i < 20; i++) {
			put4(0, 2000, 0, 200, 2 * i, 1, 0);
			put4(0, 1000, 0, 200, i == twin ? 2 * i : 2 * i + 1, 1, 0);
		}
		for (uint32_t i = 0; i < 200; i++)
			put4(0, i % 2 ? 2000 : 1000, 200 + i, 1, 0, 40, 0);
		for (uint32_t i = 0; i < 2000; i++)
			put4(i, 1, 0, 400, 0, 40, 1);
		shuffle();
		assert_int_equal(check(&d, NULL, &shared), twin < 20);
		if (twin == 20)
			continue;
		assert_int_equal(shared.offset[2], 2 * twin);
		assert_int_equal(shared.length[0], 1000);
		assert_int_equal(shared.length[1], 200);
	}
	disjoint_fini(&d);
}

static void test_cost_of_usual_cuts(void **state)
{
	struct disjoint d = { 0 };
	struct box shared;

	(void)state;
	n_boxes = 0;
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct box b = { 2, { 7ull * i, 0 }, { 7, 4096 } };

		put(&b);
	}
	assert_int_equal(check(&d, NULL, &shared), 0);
	assert_int_equal(d.steps, SHARDS); /* once each */
	n_boxes = 0;
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct box b = { 2, { 7ull * (i / 250), 5ull * (i % 250) }, { 7, 5 } };

		put(&b);
	}
	assert_in_range(cost(&d), 1, 40);
	disjoint_fini(&d);
}

static void test_cancelled(void **state)
{
	struct disjoint d = { 0 };
	atomic_bool cancel = true;
	struct box shared;

	(void)state;
	rng_seed(&rng, test_seed(13));
	slabs(3);
	shuffle();
	assert_int_equal(check(&d, &cancel, &shared), -ECANCELED);
	assert_in_range(d.steps, 0, n_boxes);
	atomic_store(&cancel, false);
	assert_int_equal(check(&d, &cancel, &shared), 0);
	disjoint_fini(&d);
}

/* One step fewer than it takes ends it, as any fewer does. */
static void test_limit(void **state)
{
	struct disjoint d = { 0 };
	struct box shared;
	uint64_t all;

	(void)state;
	rng_seed(&rng, test_seed(15));
	slabs(8);
	shuffle();
	assert_int_equal(check(&d, NULL, &shared), 0);
	all = d.steps;
	most_steps = all;
	assert_int_equal(check(&d, NULL, &shared), 0);
	most_steps = all - 1;
	assert_int_equal(check(&d, NULL, &shared), -EOVERFLOW);
	most_steps = n_boxes;
	assert_int_equal(check(&d, NULL, &shared), -EOVERFLOW);
	assert_in_range(d.steps, n_boxes, 3 * (uint64_t)n_boxes);
	most_steps = UINT64_MAX;
	disjoint_fini(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_counting),
		cmocka_unit_test(test_rods_that_meet),
		cmocka_unit_test(test_boxes_that_span_alike),
		cmocka_unit_test(test_cost_of_hostile_shapes),
		cmocka_unit_test(test_cost_of_usual_cuts),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_limit),
	};

	return cmocka_run_group_tests_name("disjoint", tests, NULL, NULL);
}
