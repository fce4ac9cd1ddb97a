/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who writes which replicated shard: layouts of the field and random ones. What must hold is
 * counted byte by byte: every byte of every shard has a writer that holds it, files hold what
 * their ranks write, loads add up, and no rank writes more than a tenth above the mean unless the
 * holders leave no other way.
 *
 * CKPT_DEDUP_CASES: random cases (2000); CKPT_SEED replays.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "model/dedup.h"
#include "model/leaves.h"
#include "tests/lib/test.h"

#define RANKS_MAX 16

static const struct geometry geometry = {.leaf = 256, .chunk = 1024};

struct rank {
	struct declaration_builder *builder;
	void *bytes;
	struct declaration view;
};

struct world {
	struct rank ranks[RANKS_MAX];
	uint32_t n;
};

static struct rng_seeded rng;

static uint64_t below(uint64_t n)
{
	return rng_below(&rng.rng, n);
}

/* ---- Worlds ---- */

static void world_begin(struct world *w, uint32_t n)
{
	*w = (struct world){.n = n};
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(declaration_builder_new(geometry, &w->ranks[i].builder), 0);
}

/* Elements [start, stop) of a tensor of one dimension; bytes of one element: 4. */
static void hold(struct world *w, uint32_t rank, const char *name, uint64_t elements,
		 uint64_t start, uint64_t stop)
{
	struct err e = {0};
	struct shard s = {
		.name = name,
		.name_len = (uint32_t)strlen(name),
		.dtype = CKPT_F32,
		.global = {1, {elements}},
		.box = {1, {0}, {elements}},
		.flat = start != 0 || stop != elements,
		.start = start,
		.stop = stop,
	};

	if (declaration_add(w->ranks[rank].builder, &s, &e) < 0)
		fail_msg("%s", e.text);
}

static void world_end(struct world *w)
{
	struct err e = {0};

	for (uint32_t i = 0; i < w->n; i++) {
		struct rank *r = &w->ranks[i];
		size_t len;

		assert_int_equal(declaration_finish(r->builder, &r->bytes, &len, &e), 0);
		declaration_builder_free(r->builder);
		assert_int_equal(declaration_open(r->bytes, len, &r->view, &e), 0);
	}
}

static void world_fini(struct world *w)
{
	for (uint32_t i = 0; i < w->n; i++)
		alloc_free(w->ranks[i].bytes);
}

static struct dedup *solve(const struct world *w)
{
	struct dedup_rank in[RANKS_MAX];
	struct dedup *d = NULL;
	struct err e = {0};

	for (uint32_t i = 0; i < w->n; i++)
		in[i] = (struct dedup_rank){i, w->ranks[i].view};
	for (uint32_t i = w->n; i-- > 1;) {
		struct dedup_rank x = in[i];
		uint32_t k = (uint32_t)below(i + 1);

		in[i] = in[k];
		in[k] = x;
	}
	if (dedup_make(in, w->n, NULL, &d, &e) < 0)
		fail_msg("%s", e.text);
	return d;
}

/* ---- What must hold of every answer ---- */

static bool alike(const struct shard *a, const struct shard *b)
{
	return a->name_len == b->name_len && memcmp(a->name, b->name, a->name_len) == 0 &&
	       a->dtype == b->dtype && a->global.ndim == b->global.ndim &&
	       memcmp(a->global.dim, b->global.dim, 8 * (size_t)a->global.ndim) == 0 &&
	       memcmp(a->box.offset, b->box.offset, 8 * (size_t)a->box.ndim) == 0 &&
	       memcmp(a->box.length, b->box.length, 8 * (size_t)a->box.ndim) == 0 &&
	       a->start == b->start && a->stop == b->stop;
}

/* Ranks that declare this shard, by looking at all of them; bit r is rank r. */
static uint32_t holders_of(const struct world *w, const struct shard *s)
{
	uint32_t set = 0;

	for (uint32_t r = 0; r < w->n; r++) {
		for (uint32_t i = 0; i < w->ranks[r].view.n_shards; i++) {
			struct shard other;

			declaration_get(&w->ranks[r].view, i, &other);
			if (alike(s, &other))
				set |= 1u << r;
		}
	}
	return set;
}

/* The bytes of each rank's image by writer: 0 none (gaps), else rank + 1. */
static void paint(const struct world *w, const struct dedup *d, uint8_t **image)
{
	for (uint32_t r = 0; r < w->n; r++) {
		image[r] = calloc(1, w->ranks[r].view.image_bytes + 1);
		for (uint32_t i = 0; i < w->ranks[r].view.n_shards; i++) {
			struct shard s;

			declaration_get(&w->ranks[r].view, i, &s);
			if (holders_of(w, &s) == 1u << r)
				memset(image[r] + s.image_offset, (int)r + 1, s.bytes);
		}
	}
	for (size_t i = 0; i < d->n_parts; i++) {
		const struct dedup_part *p = &d->parts[i];
		uint32_t writer = d->units[p->unit].writer;
		bool holds = false;

		for (uint32_t k = 0; k < p->n_holders; k++) {
			const struct dedup_holder *h = &d->holders[p->first_holder + k];
			uint8_t *at = image[h->rank] + h->at + p->from;

			assert_true(k == 0 || h[-1].rank < h->rank);
			for (uint64_t b = 0; b < p->bytes; b++)
				assert_int_equal(at[b], 0); /* in one part only */
			memset(at, (int)writer + 1, p->bytes);
			holds = holds || h->rank == writer;
		}
		assert_true(holds);
	}
}

/* (1) of dedup.c, and that the parts' holders are those that declare the shard. */
static void check_shards(const struct world *w, const struct dedup *d, uint8_t **image)
{
	uint64_t load[RANKS_MAX] = {0}, total = 0;

	for (uint32_t r = 0; r < w->n; r++) {
		for (uint32_t i = 0; i < w->ranks[r].view.n_shards; i++) {
			struct shard s;
			uint32_t set;

			declaration_get(&w->ranks[r].view, i, &s);
			set = holders_of(w, &s);
			for (uint64_t b = 0; b < s.bytes; b++) {
				uint8_t writer = image[r][s.image_offset + b];

				assert_true(writer != 0 && (set >> (writer - 1) & 1));
				load[r] += writer == r + 1;
			}
			total += __builtin_ctz(set) == (int)r ? s.bytes : 0;
		}
	}
	assert_int_equal(total, d->total);
	for (uint32_t r = 0; r < w->n; r++)
		assert_int_equal(load[r], d->load[r]);
}

/* A file holds a leaf if and only if a byte in it has this rank as writer, or it is of a blob. */
static void check_present(const struct world *w, const struct dedup *d, uint8_t **image)
{
	struct dedup_image images[RANKS_MAX];
	uint64_t *present[RANKS_MAX], blobs = below(2) * 5000;

	for (uint32_t r = 0; r < w->n; r++) {
		const struct declaration *v = &w->ranks[r].view;

		images[r].declaration = v;
		images[r].image_len =
			blobs ? round_up(v->image_bytes, 4096) + blobs : v->image_bytes;
	}
	assert_int_equal(dedup_present(d, images, NULL, present), 0);
	for (uint32_t r = 0; r < w->n; r++) {
		uint64_t n = div_up(images[r].image_len, geometry.leaf), have = 0;
		uint64_t shards = w->ranks[r].view.image_bytes;

		for (uint64_t leaf = 0; leaf < n; leaf++) {
			uint64_t lo = leaf * geometry.leaf, hi = lo + geometry.leaf;
			bool want = blobs && hi > round_up(shards, 4096);

			for (uint64_t b = lo; b < hi && b < shards; b++)
				want = want || image[r][b] == r + 1;
			assert_int_equal(leaves_has(present[r], leaf), want);
			have += want;
		}
		assert_int_equal(present[r] == NULL, have == n);
		alloc_free(present[r]);
	}
}

/* What the most loaded of these ranks must have at least, whoever is chosen. */
static uint64_t least_load(const struct world *w, uint32_t set)
{
	uint64_t bytes = 0;

	for (uint32_t r = 0; r < w->n; r++) {
		for (uint32_t i = 0; i < w->ranks[r].view.n_shards; i++) {
			struct shard s;
			uint32_t held;

			declaration_get(&w->ranks[r].view, i, &s);
			held = holders_of(w, &s);
			if (__builtin_ctz(held) == (int)r && (held & ~set) == 0)
				bytes += s.bytes;
		}
	}
	return div_up(bytes, (uint64_t)__builtin_popcount(set));
}

static uint64_t max_load(const struct dedup *d)
{
	uint64_t max = 0;

	for (uint32_t r = 0; r < d->world; r++)
		max = max_u64(max, d->load[r]);
	return max;
}

/* Ranks are few: all sets of them are looked at. */
static void check_balance(const struct world *w, const struct dedup *d)
{
	uint64_t least = 0, unit = 0;

	for (uint32_t set = 1; set < 1u << w->n; set++)
		least = max_u64(least, least_load(w, set));
	for (size_t u = 0; u < d->n_units; u++)
		unit = max_u64(unit, d->units[u].bytes);
	/* A unit is less than a leaf only where the state is next to nothing. */
	if (max_load(d) > least + least / 10 && max_load(d) > least + unit)
		fail_msg("a rank writes %llu bytes where %llu are possible, units of %llu",
			 (unsigned long long)max_load(d), (unsigned long long)least,
			 (unsigned long long)unit);
}

static void check(const struct world *w, bool balance)
{
	struct dedup *d = solve(w), *again = solve(w);
	uint8_t *image[RANKS_MAX];

	paint(w, d, image);
	check_shards(w, d, image);
	check_present(w, d, image);
	if (balance)
		check_balance(w, d);
	/* The order of the input makes no difference. */
	assert_int_equal(d->n_units, again->n_units);
	assert_int_equal(d->n_parts, again->n_parts);
	for (size_t u = 0; u < d->n_units; u++)
		assert_int_equal(d->units[u].writer, again->units[u].writer);
	assert_memory_equal(d->parts, again->parts, d->n_parts * sizeof(*d->parts));
	for (uint32_t r = 0; r < w->n; r++)
		free(image[r]);
	dedup_free(d);
	dedup_free(again);
}

/* ---- Layouts of the field ---- */

static void name_of(char buf[32], const char *kind, unsigned i)
{
	snprintf(buf, 32, "layer%u.%s", i, kind);
}

/* Parameters replicated over dp ranks, moments cut over them. */
static void make_zero1(struct world *w, uint32_t dp, unsigned layers, uint64_t elements)
{
	char name[32];

	world_begin(w, dp);
	for (unsigned i = 0; i < layers; i++) {
		for (uint32_t r = 0; r < dp; r++) {
			name_of(name, "weight", i);
			hold(w, r, name, elements, 0, elements);
			name_of(name, "bias", i);
			hold(w, r, name, 40, 0, 40);
			name_of(name, "exp_avg", i);
			hold(w, r, name, elements, elements * r / dp, elements * (r + 1) / dp);
		}
	}
	world_end(w);
}

static void print_loads(const char *what, const struct dedup *d)
{
	printf("%s: %zu units; bytes written by each rank against the mean:", what, d->n_units);
	for (uint32_t r = 0; r < d->world; r++)
		printf(" %.3f", (double)d->load[r] * d->world / (double)d->total);
	printf("\n");
}

static void test_data_parallel(void **state)
{
	(void)state;
	for (uint32_t dp = 2; dp <= 8; dp += 3) {
		struct world w;
		struct dedup *d;

		make_zero1(&w, dp, 12, 5000);
		d = solve(&w);
		print_loads("parameters replicated, moments cut", d);
		assert_true(max_load(d) * 10 * d->world <= d->total * 11);
		dedup_free(d);
		check(&w, true);
		world_fini(&w);
	}
}

/* Nothing is replicated: no parts, and each rank writes what it has. */
static void test_no_replicas(void **state)
{
	struct world w;
	struct dedup *d;
	uint64_t *present[3];
	struct dedup_image images[3];

	(void)state;
	world_begin(&w, 3);
	for (uint32_t r = 0; r < 3; r++) {
		hold(&w, r, "w", 3000, 1000 * r, 1000 * (r + 1));
		hold(&w, r, "empty", 10, 5, 5); /* alike and of no bytes */
	}
	world_end(&w);
	d = solve(&w);
	assert_int_equal(d->n_parts, 0);
	assert_int_equal(d->n_units, 0);
	for (uint32_t r = 0; r < 3; r++) {
		assert_int_equal(d->load[r], 4000);
		images[r] = (struct dedup_image){&w.ranks[r].view, w.ranks[r].view.image_bytes};
	}
	assert_int_equal(dedup_present(d, images, NULL, present), 0);
	for (uint32_t r = 0; r < 3; r++)
		assert_null(present[r]);
	dedup_free(d);
	check(&w, true);
	world_fini(&w);
}

/* One tensor that is most of the state is cut, so that all of its holders write some of it. */
static void test_one_large(void **state)
{
	struct world w;
	struct dedup *d;

	(void)state;
	world_begin(&w, 4);
	for (uint32_t r = 0; r < 4; r++) {
		hold(&w, r, "embedding", 100000, 0, 100000);
		hold(&w, r, "step", 1, 0, 1);
	}
	world_end(&w);
	d = solve(&w);
	print_loads("one large tensor", d);
	assert_true(max_load(d) * 40 <= d->total * 11);
	dedup_free(d);
	check(&w, true);
	world_fini(&w);
}

/* Who has much alone writes less of what others hold too. */
static void test_uneven(void **state)
{
	struct world w;
	struct dedup *d;

	(void)state;
	world_begin(&w, 4);
	hold(&w, 0, "own", 20000, 0, 20000);
	for (uint32_t r = 0; r < 4; r++)
		hold(&w, r, "shared", 60000, 0, 60000);
	world_end(&w);
	d = solve(&w);
	print_loads("one rank has a fourth alone", d);
	assert_true(max_load(d) * 40 <= d->total * 11);
	dedup_free(d);
	check(&w, true);
	world_fini(&w);
}

/* Holders overlap in a ring: hashing alone leaves some with too much, chains of moves do not. */
static void test_ring(void **state)
{
	struct world w;
	struct dedup *d;
	char name[32];

	(void)state;
	world_begin(&w, 6);
	for (uint32_t r = 0; r < 6; r++) {
		uint64_t elements = r == 0 ? 48000 : 3000;

		name_of(name, "pair", r);
		hold(&w, r, name, elements, 0, elements);
		hold(&w, (r + 1) % 6, name, elements, 0, elements);
	}
	world_end(&w);
	d = solve(&w);
	print_loads("pairs in a ring", d);
	dedup_free(d);
	check(&w, true);
	world_fini(&w);
}

/* ---- One rank more ---- */

static uint32_t writer_of(const struct dedup *d, const struct world *w, const char *name,
			  uint64_t byte)
{
	for (size_t i = 0; i < d->n_parts; i++) {
		const struct dedup_part *p = &d->parts[i];
		uint32_t first = d->holders[p->first_holder].rank;
		struct shard s;

		declaration_get(&w->ranks[first].view, p->shard, &s);
		if (s.name_len == strlen(name) && memcmp(s.name, name, s.name_len) == 0 &&
		    byte >= p->from && byte < p->from + p->bytes)
			return d->units[p->unit].writer;
	}
	return UINT32_MAX;
}

/* A rank joins: most bytes stay with their writer. */
static void test_one_rank_more(void **state)
{
	uint64_t moved = 0, all = 0;
	struct world a, b;
	struct dedup *da, *db;
	char name[32];

	(void)state;
	make_zero1(&a, 8, 40, 1000);
	make_zero1(&b, 9, 40, 1000);
	da = solve(&a);
	db = solve(&b);
	for (unsigned i = 0; i < 40; i++) {
		name_of(name, "weight", i);
		for (uint64_t byte = 0; byte < 4000; byte += 64) {
			uint32_t was = writer_of(da, &a, name, byte);
			uint32_t is = writer_of(db, &b, name, byte);

			assert_true(was != UINT32_MAX && is != UINT32_MAX);
			moved += was != is;
			all++;
		}
	}
	printf("a ninth rank takes or moves %.0f %% of the bytes\n",
	       100.0 * (double)moved / (double)all);
	assert_true(moved * 2 < all);
	assert_true(moved * 18 >= all); /* it does take its share */
	dedup_free(da);
	dedup_free(db);
	world_fini(&a);
	world_fini(&b);
}

/* Holders that do not agree: each file holds its own, the rest is as it was. */
static void test_apart(void **state)
{
	struct world w;
	struct dedup *d;
	struct dedup_image images[4];
	uint64_t *agreed[4], *present[4];
	bool *apart;

	(void)state;
	make_zero1(&w, 4, 4, 4000);
	d = solve(&w);
	apart = calloc(d->n_parts, sizeof(*apart));
	for (uint32_t r = 0; r < 4; r++)
		images[r] = (struct dedup_image){&w.ranks[r].view, w.ranks[r].view.image_bytes};
	assert_int_equal(dedup_present(d, images, NULL, agreed), 0);
	for (size_t i = 0; i < d->n_parts; i++) {
		const struct dedup_part *p = &d->parts[i];

		apart[i] = true;
		assert_int_equal(dedup_present(d, images, apart, present), 0);
		for (uint32_t r = 0; r < 4; r++) {
			const struct dedup_holder *h = &d->holders[p->first_holder + r];
			uint64_t lo = (h->at + p->from) / geometry.leaf;
			uint64_t hi = div_up(h->at + p->from + p->bytes, geometry.leaf);
			uint64_t n = div_up(images[r].image_len, geometry.leaf);

			assert_int_equal(h->rank, r);
			for (uint64_t leaf = 0; leaf < n; leaf++)
				assert_int_equal(leaves_has(present[r], leaf),
						 leaves_has(agreed[r], leaf) ||
							 (leaf >= lo && leaf < hi));
			alloc_free(present[r]);
		}
		apart[i] = false;
	}
	for (uint32_t r = 0; r < 4; r++)
		alloc_free(agreed[r]);
	free(apart);
	dedup_free(d);
	world_fini(&w);
}

/* ---- Random layouts ---- */

static void make_random(struct world *w)
{
	uint32_t n = 1 + (uint32_t)below(6);
	unsigned tensors = 1 + (unsigned)below(10);
	char name[32];

	world_begin(w, n);
	for (unsigned i = 0; i < tensors; i++) {
		uint64_t elements = below(3) ? below(200) : below(6000), part = below(4);
		uint64_t half = elements / 2;

		name_of(name, "t", i);
		for (uint32_t r = 0; r < n; r++) {
			bool low = (r & 1) == 0;

			if (part == 0 && below(3)) /* by some, whole */
				hold(w, r, name, elements, 0, elements);
			else if (part == 1) /* cut in two, each half by every other rank */
				hold(w, r, name, elements, low ? 0 : half, low ? half : elements);
			else if (part == 2) /* cut over all */
				hold(w, r, name, elements, elements * r / n,
				     elements * (r + 1) / n);
			else if (part == 3 && r % 3 == i % 3) /* each third rank */
				hold(w, r, name, elements, 0, elements);
		}
	}
	world_end(w);
}

static void test_random(void **state)
{
	uint64_t cases = test_cap("CKPT_DEDUP_CASES", 2000);

	(void)state;
	for (uint64_t i = 0; i < cases; i++) {
		struct world w;

		make_random(&w);
		if (w.ranks[0].view.n_shards + w.ranks[w.n - 1].view.n_shards > 0)
			check(&w, true);
		world_fini(&w);
	}
}

/* Every allocation fails in turn. */
static void test_out_of_memory(void **state)
{
	struct dedup_rank in[3];
	struct dedup_image images[3];
	uint64_t *present[3];
	struct dedup *d = NULL;
	struct world w;
	bool done = false;

	(void)state;
	make_zero1(&w, 3, 3, 2000);
	for (uint32_t r = 0; r < 3; r++) {
		in[r] = (struct dedup_rank){r, w.ranks[r].view};
		images[r] = (struct dedup_image){&w.ranks[r].view, w.ranks[r].view.image_bytes};
	}
	for (uint64_t at = 1; !done; at++) {
		struct err e = {0};
		int r;

		alloc_fail_at(at, false);
		r = dedup_make(in, 3, NULL, &d, &e);
		if (r == 0) {
			r = dedup_present(d, images, NULL, present);
			for (uint32_t k = 0; r == 0 && k < 3; k++)
				alloc_free(present[k]);
			dedup_free(d);
		}
		done = !alloc_fired();
		alloc_fail_at(0, false);
		assert_int_equal(r, done ? 0 : -ENOMEM);
	}
	world_fini(&w);
}

/* ---- What it may cost ---- */

#define MANY 1024u

/* Some shards, that one declaration has and all ranks declare. */
static void one_declaration(struct world *w, uint32_t n_shards, struct dedup_rank in[MANY])
{
	char name[16];

	world_begin(w, 1);
	for (uint32_t i = 0; i < n_shards; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		hold(w, 0, name, 100, 0, 100);
	}
	world_end(w);
	for (uint32_t r = 0; r < MANY; r++)
		in[r] = (struct dedup_rank){r, w->ranks[0].view};
}

/* A declaration counts once, its shards once for each rank. */
static void test_too_many(void **state)
{
	struct dedup_rank in[MANY];
	struct dedup *d = NULL;
	struct world w;
	uint64_t memory;

	(void)state;
	one_declaration(&w, DEDUP_SHARDS_MAX / MANY + 1, in);
	assert_int_equal(dedup_make(in, MANY, NULL, &d, NULL), -E2BIG);
	assert_null(d);
	assert_false(dedup_memory(DEDUP_SHARDS_MAX + 1, MANY, &memory));
	assert_true(dedup_memory(DEDUP_SHARDS_MAX, MANY, &memory));
	assert_true(memory <= 4ull << 30);
	world_fini(&w);
}

static void test_cancel(void **state)
{
	struct dedup_rank in[MANY];
	struct dedup *d = NULL;
	atomic_bool cancel = true;
	struct world w;

	(void)state;
	one_declaration(&w, 50, in);
	assert_int_equal(dedup_make(in, MANY, &cancel, &d, NULL), -ECANCELED);
	assert_null(d);
	cancel = false;
	assert_int_equal(dedup_make(in, MANY, &cancel, &d, NULL), 0);
	dedup_free(d);
	world_fini(&w);
}

static void assert_within(const struct dedup_rank *in, uint32_t n)
{
	struct alloc_budget budget = {.limit = UINT64_MAX};
	uint64_t n_shards = 0, most = 0;
	struct dedup *d = NULL;

	for (uint32_t r = 0; r < n; r++)
		n_shards += in[r].declaration.n_shards;
	assert_true(dedup_memory(n_shards, n, &most));
	alloc_set_budget(&budget);
	assert_int_equal(dedup_make(in, n, NULL, &d, NULL), 0);
	alloc_set_budget(NULL);
	assert_true(budget.most <= most);
	assert_in_range(budget.used, dedup_bytes(d), dedup_bytes(d) + 4096 * 8);
	dedup_free(d);
}

/* Of one declaration; and of such with as many parts as there can be: two ranks hold each shard,
 * and all of them lie across the end of a window. */
static void test_memory(void **state)
{
	struct dedup_rank in[MANY];
	struct world w;
	char name[16];

	(void)state;
	one_declaration(&w, 200, in);
	assert_within(in, MANY);
	assert_within(in, 2);
	world_fini(&w);
	world_begin(&w, 2);
	for (uint32_t i = 0; i < 30000; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		hold(&w, 0, name, 64 + i % 3, 0, 64 + i % 3);
		hold(&w, 1, name, 64 + i % 3, 0, 64 + i % 3);
	}
	world_end(&w);
	for (uint32_t r = 0; r < 2; r++)
		in[r] = (struct dedup_rank){r, w.ranks[r].view};
	assert_within(in, 2);
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_data_parallel), cmocka_unit_test(test_no_replicas),
		cmocka_unit_test(test_one_large),     cmocka_unit_test(test_uneven),
		cmocka_unit_test(test_ring),          cmocka_unit_test(test_one_rank_more),
		cmocka_unit_test(test_apart),         cmocka_unit_test(test_random),
		cmocka_unit_test(test_out_of_memory), cmocka_unit_test(test_too_many),
		cmocka_unit_test(test_cancel),        cmocka_unit_test(test_memory),
	};

	rng_seed(&rng, test_seed(1));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
