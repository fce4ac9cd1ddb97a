/* SPDX-License-Identifier: Apache-2.0 */
/* Who meets whom and who is named, over made-up networks: the sick are named, the well are not. */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "tests/lib/test.h"
#include "tools/check_pair.h"

struct net {
	uint32_t n;
	bool present[PAIR_NODES_MAX];
	bool sick[PAIR_NODES_MAX];
	uint32_t path_a, path_b; /* a slow path; equal: none */
	struct pair pairs[PAIR_ROUNDS_MAX * PAIR_NODES_MAX / 2];
	size_t n_pairs;
	enum node_blame blame[PAIR_NODES_MAX];
};

static double jitter(struct rng *r)
{
	return 0.95 + (double)rng_below(r, 1000) / 10000;
}

static void one_round(struct net *t, struct rng *r)
{
	struct pair *p = &t->pairs[t->n_pairs];
	size_t n = pair_round(t->present, t->n, t->pairs, t->n_pairs, p);
	uint8_t seen[PAIR_NODES_MAX] = {0};

	for (size_t i = 0; i < n; i++) {
		bool slow = t->sick[p[i].a] || t->sick[p[i].b] ||
			    (t->path_a != t->path_b && p[i].a == t->path_a && p[i].b == t->path_b);

		assert_true(p[i].a < p[i].b && p[i].b < t->n);
		assert_true(t->present[p[i].a] && t->present[p[i].b]);
		assert_false(seen[p[i].a]++ || seen[p[i].b]++);
		p[i].measured = true;
		p[i].failed = slow && rng_below(r, 4) == 0;
		p[i].rate = (slow ? 0.5 : 1) * 1e9 * jitter(r);
	}
	t->n_pairs += n;
	assert_int_equal(pairs_judge(t->pairs, t->n_pairs), 0);
	pair_blame(t->present, t->n, t->pairs, t->n_pairs, t->blame);
}

static uint32_t setup(struct net *t, struct rng *r, uint32_t n, uint32_t sick)
{
	uint32_t here = 0;

	memset(t, 0, sizeof(*t));
	t->n = n;
	for (uint32_t i = 0; i < n; i++) {
		t->present[i] = rng_below(r, 20) != 0;
		here += t->present[i];
	}
	for (uint32_t left = sick; left > 0 && here > 0;) {
		uint32_t i = (uint32_t)rng_below(r, n);

		if (!t->present[i])
			continue;
		t->sick[i] = true;
		left--;
	}
	return here;
}

static void test_the_sick_are_named(void **state)
{
	struct net *t = alloc_zero(sizeof(*t));
	struct rng_seeded r;

	(void)state;
	rng_seed(&r, test_seed(3));
	for (int round = 0; round < 3000; round++) {
		uint32_t n = 6 + (uint32_t)rng_below(&r.rng, round % 100 ? 40 : 400);
		uint32_t here = setup(t, &r.rng, n, (uint32_t)rng_below(&r.rng, n / 6 + 1));

		if (here < 5)
			continue;
		for (int i = 0; i < PAIR_ROUNDS_MAX; i++)
			one_round(t, &r.rng);
		for (uint32_t i = 0; i < n; i++) {
			if (!t->present[i])
				assert_int_equal(t->blame[i], BLAME_ABSENT);
			else if (!t->sick[i])
				assert_int_not_equal(t->blame[i], BLAME_NODE);
			else
				assert_int_not_equal(t->blame[i], BLAME_NONE);
		}
	}
	alloc_free(t);
}

/* Two rounds are enough for one sick node among four or more. */
static void test_two_rounds_name_one(void **state)
{
	struct net *t = alloc_zero(sizeof(*t));
	struct rng_seeded r;

	(void)state;
	rng_seed(&r, test_seed(4));
	for (uint32_t n = 4; n < 70; n++) {
		uint32_t bad = (uint32_t)rng_below(&r.rng, n);

		memset(t, 0, sizeof(*t));
		t->n = n;
		memset(t->present, true, n);
		t->sick[bad] = true;
		one_round(t, &r.rng);
		one_round(t, &r.rng);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(t->blame[i],
					 i == bad ? t->blame[bad] : (enum node_blame)BLAME_NONE);
		/* An odd one may have been idle once; it is never well. */
		assert_true(n % 2 ? t->blame[bad] != BLAME_NONE : t->blame[bad] == BLAME_NODE);
	}
	alloc_free(t);
}

static void test_a_way_between_two_good_ones(void **state)
{
	struct net *t = alloc_zero(sizeof(*t));
	unsigned found = 0, met = 0;
	struct rng_seeded r;

	(void)state;
	rng_seed(&r, test_seed(5));
	for (int round = 0; round < 200; round++) {
		memset(t, 0, sizeof(*t));
		t->n = 8;
		memset(t->present, true, t->n);
		t->path_a = 2 * (uint32_t)rng_below(&r.rng, 4);
		t->path_b = t->path_a + 1; /* they meet in the first round */
		one_round(t, &r.rng);
		one_round(t, &r.rng);
		for (size_t i = 0; i < t->n_pairs; i++) {
			const struct pair *p = &t->pairs[i];
			bool is_it = p->a == t->path_a && p->b == t->path_b;

			met += is_it;
			found += is_it && pair_blames_path(p, t->blame);
			assert_true(is_it || !pair_blames_path(p, t->blame));
		}
	}
	assert_int_equal(met, 200);
	assert_int_equal(found, 200);
	alloc_free(t);
}

static void test_two_nodes_cannot_tell(void **state)
{
	struct net *t = alloc_zero(sizeof(*t));
	struct pair *p;

	(void)state;
	t->n = 2;
	t->present[0] = t->present[1] = true;
	assert_int_equal(pair_round(t->present, 2, NULL, 0, t->pairs), 1);
	p = &t->pairs[0];
	p->measured = p->failed = true;
	assert_int_equal(pairs_judge(t->pairs, 1), 0);
	pair_blame(t->present, 2, t->pairs, 1, t->blame);
	assert_int_equal(t->blame[0], BLAME_UNKNOWN);
	assert_int_equal(t->blame[1], BLAME_UNKNOWN);
	alloc_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_sick_are_named),
		cmocka_unit_test(test_two_rounds_name_one),
		cmocka_unit_test(test_a_way_between_two_good_ones),
		cmocka_unit_test(test_two_nodes_cannot_tell),
	};

	return cmocka_run_group_tests_name("check_pair", tests, NULL, NULL);
}
