/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of a plan, in steps (model/effort.h), for stored and wanted shards that are made to
 * drive it up, and that a cancelled plan ends soon. No time is measured.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "model/plan.h"
#include "tests/lib/test.h"

static struct rng_seeded rng;

static uint64_t below(uint64_t n)
{
	return rng_below(&rng.rng, n);
}

/* ---- Shards of one tensor ---- */

struct shards {
	struct shard *s;
	uint32_t n, cap;
	struct shape global;
};

static void put(struct shards *x, const struct box *b)
{
	if (x->n == x->cap) {
		x->cap = x->cap ? 2 * x->cap : 1024;
		x->s = realloc(x->s, x->cap * sizeof(*x->s));
	}
	x->s[x->n++] = (struct shard){
		.name = "w", .name_len = 1, .dtype = CKPT_U8, .global = x->global, .box = *b};
}

static struct declaration declare(const struct shard *shards, uint32_t n)
{
	struct geometry g = {.leaf = 64u << 10, .chunk = 1u << 20};
	struct declaration_builder *b = NULL;
	struct declaration d;
	struct err e = {0};
	void *bytes;
	size_t len;

	assert_int_equal(declaration_builder_new(g, &b), 0);
	for (uint32_t i = 0; i < n; i++)
		if (declaration_add(b, &shards[i], &e) != (int)i)
			fail_msg("%s", e.text);
	if (declaration_finish(b, &bytes, &len, &e))
		fail_msg("%s", e.text);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, &d, &e), 0);
	return d;
}

static void forget(struct declaration *d)
{
	alloc_free((void *)(uintptr_t)d->bytes);
}

/* Deals the stored ones to so many sources, in their order. */
struct world {
	struct declaration *have, want;
	struct plan_source *sources;
	uint32_t n_sources;
};

static void deal(struct world *w, const struct shards *stored, const struct shards *wanted,
		 uint32_t n_sources)
{
	*w = (struct world){.n_sources = n_sources};
	w->have = calloc(n_sources, sizeof(*w->have));
	w->sources = calloc(n_sources, sizeof(*w->sources));
	for (uint32_t i = 0; i < n_sources; i++) {
		uint32_t lo = (uint32_t)((uint64_t)i * stored->n / n_sources);
		uint32_t hi = (uint32_t)((uint64_t)(i + 1) * stored->n / n_sources);

		w->have[i] = declare(stored->s + lo, hi - lo);
		w->sources[i].declaration = w->have[i];
	}
	w->want = declare(wanted->s, wanted->n);
}

static void end(struct world *w)
{
	for (uint32_t i = 0; i < w->n_sources; i++)
		forget(&w->have[i]);
	forget(&w->want);
	free(w->have);
	free(w->sources);
}

struct cost {
	int r;
	uint64_t steps, pieces;
	double each; /* per stored and wanted shard and piece */
	char text[ERR_TEXT_MAX];
};

static struct cost cost_of(const char *what, const struct shards *stored,
			   const struct shards *wanted, uint32_t n_sources)
{
	struct err e = {0};
	struct world w;
	struct plan p;
	struct cost c;

	deal(&w, stored, wanted, n_sources);
	c.r = plan_make(w.sources, n_sources, &w.want, true, NULL, &p, &e);
	c.steps = p.steps;
	c.pieces = p.n_pieces;
	c.each = (double)c.steps / (double)(stored->n + wanted->n + p.n_pieces);
	snprintf(c.text, sizeof(c.text), "%s", e.text);
	print_message("%s: %u stored, %u wanted, %zu pieces, %.1f steps each, %d %s\n", what,
		      stored->n, wanted->n, p.n_pieces, c.each, c.r, e.text);
	plan_fini(&p);
	end(&w);
	return c;
}

static void reset(struct shards *x, uint32_t ndim, uint64_t side)
{
	x->n = 0;
	x->global = (struct shape){.ndim = ndim};
	for (uint32_t k = 0; k < ndim; k++)
		x->global.dim[k] = side;
}

/* Slices of one dimension, whole in the others. */
static void slices(struct shards *x, uint32_t dim, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct box b = {.ndim = x->global.ndim};

		memcpy(b.length, x->global.dim, sizeof(b.length));
		b.offset[dim] = i * x->global.dim[dim] / n;
		b.length[dim] = (i + 1) * x->global.dim[dim] / n - b.offset[dim];
		put(x, &b);
	}
}

/* A plan without room is refused before it is made. */
static void test_crossing_slices(void **state)
{
	struct shards have = {0}, want = {0};
	struct cost c;

	(void)state;
	reset(&have, 2, 60000);
	reset(&want, 2, 60000);
	slices(&have, 0, 60000);
	slices(&want, 1, 60000);
	c = cost_of("crossing", &have, &want, 1);
	assert_int_equal(c.r, -E2BIG);
	assert_non_null(strstr(c.text, "memory"));
	assert_in_range(c.steps, 1, 40 * 120000);
	/* Of a few there is one piece each. */
	have.n = want.n = 0;
	slices(&have, 0, 500);
	slices(&want, 1, 500);
	c = cost_of("crossing, few", &have, &want, 500);
	assert_int_equal(c.r, 0);
	assert_int_equal(c.pieces, 250000);
	assert_true(c.each < 30);
	free(have.s);
	free(want.s);
}

/* Thin in the last dimension, long in the others, and each begins anywhere in them. */
static void slabs(struct shards *x, uint64_t n)
{
	uint32_t ndim = x->global.ndim;

	for (uint64_t i = 0; i < n; i++) {
		struct box b = {.ndim = ndim};

		for (uint32_t k = 0; k + 1 < ndim; k++) {
			uint64_t side = x->global.dim[k];

			b.offset[k] = below(side / 2);
			b.length[k] = side / 2 + below(side / 2 - b.offset[k] + 1);
		}
		b.offset[ndim - 1] = i;
		b.length[ndim - 1] = 1;
		put(x, &b);
	}
}

static void test_slabs_that_begin_anywhere(void **state)
{
	struct shards have = {0}, want = {0};

	(void)state;
	for (uint32_t ndim = 2; ndim <= 4; ndim++) {
		struct cost c;

		reset(&have, ndim, 20000);
		reset(&want, ndim, 20000);
		if (ndim == 4)
			have.global.dim[0] = want.global.dim[0] = 100;
		slabs(&have, 20000);
		slabs(&want, 20000);
		c = cost_of("slabs", &have, &want, 7);
		assert_int_equal(c.r, 0);
		assert_true(c.each < 100);
	}
	free(have.s);
	free(want.s);
}

/* Three families of rods that pass each other, dealt as they come. */
static void rods(struct shards *x, uint64_t side)
{
	for (uint64_t i = 0; i < side; i++)
		for (uint64_t k = 0; k < side; k++)
			for (uint32_t d = 0; d < 3; d++) {
				struct box b = {3, {0}, {1, 1, 1}};

				b.length[d] = 2 * side;
				b.offset[(d + 1) % 3] = 2 * i;
				b.offset[(d + 2) % 3] = 2 * k + 1;
				put(x, &b);
			}
}

static void test_rods(void **state)
{
	struct shards have = {0}, want = {0};
	struct cost c;

	(void)state;
	reset(&have, 3, 160);
	reset(&want, 3, 160);
	rods(&have, 80);
	rods(&want, 80);
	c = cost_of("rods", &have, &want, 1);
	assert_int_equal(c.r, 0);
	assert_true(c.each < 400); /* as sqrt(n): no tree of boxes is good at them */
	reset(&have, 3, 400);
	reset(&want, 3, 400);
	rods(&have, 200);
	rods(&want, 200);
	c = cost_of("many rods", &have, &want, 1);
	assert_int_equal(c.r, -E2BIG);
	assert_non_null(strstr(c.text, "tensor 'w'"));
	assert_in_range(c.steps, 1, (1u << 26) + 100 * 3 * have.n);
	free(have.s);
	free(want.s);
}

/* A grid that is preferred column by column, of which columns are wanted: each row of it has a
 * cell that is preferred to the one that is looked for. */
static struct cost columns(uint64_t side, uint64_t cell)
{
	struct shards have = {0}, want = {0};
	struct cost c;

	reset(&have, 2, side * cell);
	reset(&want, 2, side * cell);
	for (uint64_t col = 0; col < side; col++)
		for (uint64_t row = 0; row < side; row++)
			put(&have,
			    &(struct box){2, {row * cell, col * cell}, {cell, cell}});
	slices(&want, 1, side * cell);
	c = cost_of("columns", &have, &want, (uint32_t)have.n);
	free(have.s);
	free(want.s);
	return c;
}

static void test_preferred_across(void **state)
{
	struct cost c = columns(32, 4);

	(void)state;
	assert_int_equal(c.r, 0); /* 1024 ranks on a mesh that was turned */
	assert_true(c.each < 400);
}

/* Every source has nearly everything, each cut differently. */
static void test_many_that_have_all(void **state)
{
	struct shards have = {0}, want = {0};
	struct cost c;

	(void)state;
	reset(&have, 2, 20000);
	reset(&want, 2, 20000);
	for (uint64_t i = 0; i < 3000; i++)
		put(&have, &(struct box){2, {0, 0}, {20000, 20000 - i}});
	slices(&want, 0, 20000);
	c = cost_of("nearly all", &have, &want, 3000);
	assert_int_equal(c.r, 0);
	assert_int_equal(c.pieces, 20000);
	assert_true(c.each < 60);
	free(have.s);
	free(want.s);
}

/* ---- Sources and names ---- */

static struct shard named(const char *name)
{
	return (struct shard){.name = name,
			      .name_len = (uint32_t)strlen(name),
			      .dtype = CKPT_U8,
			      .global = {.ndim = 1, .dim = {1}},
			      .box = {1, {0}, {1}}};
}

#define NAMES   20000u
#define SOURCES 2000u

/* Each source has two names: one of its own, which is wanted, and one that is not wanted. */
static void test_many_sources_with_little(void **state)
{
	struct plan_source *sources = calloc(SOURCES, sizeof(*sources));
	char(*names)[16] = calloc(NAMES, sizeof(*names));
	struct shard *s = calloc(NAMES, sizeof(*s));
	struct declaration want;
	struct plan p;

	(void)state;
	for (uint32_t i = 0; i < NAMES; i++) {
		snprintf(names[i], sizeof(names[i]), "n%08u", i);
		s[i] = named(names[i]);
	}
	want = declare(s, NAMES);
	for (uint32_t i = 0; i < SOURCES; i++) {
		struct shard two[2] = {s[(i * 7919u) % NAMES], named("zzz")};

		sources[i].declaration = declare(two, 2);
	}
	assert_int_equal(plan_make(sources, SOURCES, &want, true, NULL, &p, NULL), 0);
	assert_int_equal(p.n_pieces, SOURCES);
	assert_in_range(p.steps, 1, 10 * (NAMES + 2 * SOURCES)); /* all by all: 4e7 */
	plan_fini(&p);
	for (uint32_t i = 0; i < SOURCES; i++)
		forget(&sources[i].declaration);
	forget(&want);
	free(sources);
	free(names);
	free(s);
}

static struct cost keyed_cost(const struct plan_source *source, const struct declaration *want,
			      const struct plan_peers *peers, uint64_t key)
{
	struct plan_limits limits = {PLAN_MEMORY_MAX, NULL, key};
	struct cost c = {0};
	struct plan p;

	c.r = plan_make_within(&limits, source, 1, want, true, peers, &p, NULL);
	c.steps = p.steps;
	plan_fini(&p);
	return c;
}

#define MEETING 600u /* of MEETING * 256 candidates some 600 meet in 8 bits */

/* Shards that were chosen to meet in a table: for one key, and for no other. */
static void test_shards_that_meet_in_a_table(void **state)
{
	struct shards x = {.global = {.ndim = 1, .dim = {MEETING * 256}}};
	struct plan_source source = {0};
	struct declaration d;
	uint32_t n = 0;
	uint64_t worst;

	(void)state;
	slices(&x, 0, MEETING * 256);
	d = declare(x.s, x.n);
	for (uint32_t i = 0; i < d.n_shards; i++)
		if ((declaration_place_hash(&d, i, 0) & 255) == 0)
			x.s[n++] = x.s[declaration_order(&d, i)];
	assert_in_range(n, MEETING / 2, 2 * MEETING);
	forget(&d);
	source.declaration = declare(x.s, n);
	worst = keyed_cost(&source, &source.declaration, NULL, 0).steps;
	for (uint64_t key = 1; key < 20; key++)
		assert_true(keyed_cost(&source, &source.declaration, NULL, key).steps + 25 * n <
			    worst);
	forget(&source.declaration);
	free(x.s);
}

static void test_names_that_meet_in_a_table(void **state)
{
	char(*names)[16] = calloc(2 * MEETING, sizeof(*names));
	struct shard s[2 * MEETING], one = named("one");
	struct plan_source source = {.declaration = declare(&one, 1)};
	struct declaration want;
	uint32_t n = 0;
	uint64_t worst;

	(void)state;
	for (uint32_t i = 0; i < MEETING * 256 && n < 2 * MEETING; i++) {
		struct digest d;

		snprintf(names[n], sizeof(names[n]), "n%u", i);
		d = digest_of(names[n], strlen(names[n]));
		if ((digest_keyed(0, d.b, sizeof(d.b)) & 255) != 0)
			continue;
		s[n] = named(names[n]);
		n++;
	}
	assert_in_range(n, MEETING / 2, 2 * MEETING);
	want = declare(s, n);
	worst = keyed_cost(&source, &want, PLAN_ALONE, 0).steps;
	for (uint64_t key = 1; key < 20; key++) {
		uint64_t steps = keyed_cost(&source, &want, PLAN_ALONE, key).steps;

		assert_true(steps + 25 * n < worst && steps < 8 * n);
	}
	forget(&want);
	forget(&source.declaration);
	free(names);
}

/* ---- Ending ---- */

struct ending {
	struct alloc_watch watch;
	atomic_bool cancel;
	uint64_t at, n;    /* allocations */
	struct plan *plan; /* as far as it is: steps until then */
	uint64_t steps;
};

static void taken(struct alloc_watch *w, void *p)
{
	struct ending *e = (struct ending *)w;

	(void)p;
	if (++e->n == e->at) {
		atomic_store(&e->cancel, true);
		e->steps = e->plan->steps;
	}
}

static void given(struct alloc_watch *w, void *p)
{
	(void)w;
	(void)p;
}

static int plan_until(const struct world *w, uint64_t at, struct ending *ret)
{
	struct plan_limits limits = {PLAN_MEMORY_MAX, &ret->cancel, 0};
	struct err e = {0};
	struct plan p;
	int r;

	*ret = (struct ending){.watch = {taken, given}, .at = at, .plan = &p};
	if (at == 0)
		atomic_store(&ret->cancel, true);
	alloc_set_watch(&ret->watch);
	r = plan_make_within(&limits, w->sources, w->n_sources, &w->want, true, PLAN_ALONE, &p, &e);
	alloc_set_watch(NULL);
	assert_int_equal(r, r ? -ECANCELED : 0);
	assert_true(r == 0 || e.code == -ECANCELED);
	ret->steps = p.steps - ret->steps;
	plan_fini(&p);
	return r;
}

/* It ends at the next poll, wherever it is. */
static void test_ends_when_told(void **state)
{
	struct shards have = {0}, want = {0};
	struct ending e;
	uint64_t n, all;
	struct world w;

	(void)state;
	reset(&have, 2, 1000);
	reset(&want, 2, 1000);
	slices(&have, 0, 200);
	slices(&want, 1, 300);
	deal(&w, &have, &want, 40);
	assert_int_equal(plan_until(&w, UINT64_MAX, &e), 0);
	n = e.n;
	all = e.steps;
	assert_true(n > 20 && all > 500000);
	assert_int_equal(plan_until(&w, 0, &e), -ECANCELED);
	assert_in_range(e.steps, 1, 4);
	for (uint64_t at = 1; at <= n; at++) {
		int r = plan_until(&w, at, &e);

		assert_int_equal(r, -ECANCELED);
		assert_true(e.n - at <= 8); /* allocations after it */
		assert_in_range(e.steps, 0, 2 * 16384);
	}
	end(&w);
	free(have.s);
	free(want.s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crossing_slices),
		cmocka_unit_test(test_slabs_that_begin_anywhere),
		cmocka_unit_test(test_rods),
		cmocka_unit_test(test_preferred_across),
		cmocka_unit_test(test_many_that_have_all),
		cmocka_unit_test(test_many_sources_with_little),
		cmocka_unit_test(test_shards_that_meet_in_a_table),
		cmocka_unit_test(test_names_that_meet_in_a_table),
		cmocka_unit_test(test_ends_when_told),
	};

	rng_seed(&rng, test_seed(1));
	return cmocka_run_group_tests_name("plan_hostile", tests, NULL, NULL);
}
