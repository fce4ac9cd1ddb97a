/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random layouts over random tensors: the shards of all ranks together cover every element, each as
 * often as the axes that nothing cuts say, and no rank has one twice. The layouts are made of
 * random cuts here, not by name: products of everything there is.
 *
 * CKPT_LAYOUT_CASES: how many layouts (2000).
 */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "model/layout_rules.h"
#include "tests/lib/test.h"

#define ELEMENTS_MAX 6000

static struct rng_seeded rng;

static uint32_t below(uint32_t n)
{
	return (uint32_t)rng_below(&rng.rng, n);
}

/* A mesh of 1 to 4 axes of 1 to 5, and whether each is taken. */
struct mesh {
	uint32_t n, used;
};

static struct layout *random_mesh(struct mesh *ret)
{
	uint32_t sizes[4], world = 1, stride = 1;
	struct layout *l = NULL;
	struct err e = {0};
	char name[2] = "a";

	*ret = (struct mesh){.n = 1 + below(4)};
	for (uint32_t i = 0; i < ret->n; i++)
		world *= sizes[i] = 1 + below(5);
	if (layout_new(world, &l, &e))
		fail_msg("%s", e.text);
	for (uint32_t i = 0; i < ret->n; i++, name[0]++) {
		if (layout_add_axis(l, name, sizes[i], stride, &e))
			fail_msg("%s", e.text);
		stride *= sizes[i];
	}
	return l;
}

/* One or two axes that are not taken yet; false: there are none. */
static bool random_over(const struct layout *l, struct mesh *m, struct layout_over *ret)
{
	uint32_t wanted = 1 + below(2);

	*ret = (struct layout_over){0};
	for (uint32_t i = 0, at = below(m->n); i < m->n && ret->n < wanted; i++, at++) {
		if (m->used & 1u << at % m->n)
			continue;
		m->used |= 1u << at % m->n;
		ret->axis[ret->n++] = (uint8_t)(at % m->n);
	}
	assert_true(ret->n == 0 || layout_over_size(l, ret) <= l->world);
	return ret->n > 0;
}

/* How to cut; *times grows by how many ranks in a row share a unit. */
static void random_how(struct layout_cut *c, uint32_t n, uint64_t length, uint32_t *times)
{
	switch (below(5)) {
	case 0:
		c->how = LAYOUT_CHUNK;
		c->pad = below(2) ? (uint64_t)n * (1 + below(7)) : 0;
		break;
	case 1:
		c->how = LAYOUT_FLOOR;
		break;
	case 2: /* fewer units than ranks, equally many ranks each */
		for (c->units = n; c->units > 1 && (n % c->units || length % c->units);)
			c->units--;
		*times *= n / (uint32_t)c->units;
		break;
	case 3: /* parts of whole numbers of elements */
		if (length < 3)
			break;
		c->n_parts = 2;
		c->parts[0].weight = 1 + below((uint32_t)length - 1);
		c->parts[1].weight = length - c->parts[0].weight;
		break;
	default:
		break;
	}
}

static void random_rule(struct layout *l, struct mesh *m, const struct shape *s, uint32_t *times)
{
	struct layout_rule *rule = layout_add_rule(l);
	bool cut[CKPT_NDIM_MAX] = {false};
	struct err e = {0};

	assert_non_null(rule);
	assert_int_equal(layout_globs_add(&rule->globs, "*", 0, &e), 0);
	for (uint32_t i = below(4); i > 0 && s->ndim; i--) {
		struct layout_cut *c = &rule->cuts[rule->n_cuts];

		c->dim = below(s->ndim);
		if (!random_over(l, m, &c->over))
			return;
		/* Units and parts are of the whole dimension: of what a cut left, plain ones. */
		if (cut[c->dim])
			c->how = below(2) ? LAYOUT_EVEN : LAYOUT_CHUNK;
		else
			random_how(c, layout_over_size(l, &c->over), s->dim[c->dim], times);
		cut[c->dim] = true;
		rule->n_cuts++;
	}
}

static void random_flat(struct layout *l, struct mesh *m)
{
	struct layout_flat *f = &l->flats[0];

	if (!below(2) || !random_over(l, m, &f->over))
		return;
	f->params = f->moments = true;
	f->how = below(2) ? LAYOUT_CHUNK : LAYOUT_FLOOR;
	f->unit = below(2) ? LAYOUT_UNIT_ALL : LAYOUT_UNIT_TENSOR;
	f->align = f->unit == LAYOUT_UNIT_ALL ? below(9) : 0;
	f->reverse = below(2);
	if (f->how == LAYOUT_CHUNK && below(2))
		f->pad = layout_over_size(l, &f->over) * (1 + below(40));
	l->n_flats = 1;
	l->flat = 0;
}

/* The tensors of one layout have numbers in their names, for a place over one axis. */
static void random_place(struct layout *l, struct mesh *m)
{
	struct layout_place *p = &l->places[0];
	struct layout_over over;
	struct err e = {0};

	if (!below(3) || !random_over(l, m, &over))
		return;
	p->axis = over.axis[0];
	for (uint32_t i = 1; i < over.n; i++)
		m->used &= ~(1u << over.axis[i]);
	p->rounds = 1 + below(2);
	assert_int_equal(layout_globs_add(&p->numbers, "t.#", 1, &e), 0);
	l->n_places = 1;
}

static struct shape random_shape(void)
{
	struct shape s = {.ndim = below(5)};
	uint64_t n = 1;

	for (uint32_t i = 0; i < s.ndim; i++) {
		uint32_t most = (uint32_t)(ELEMENTS_MAX / n);

		s.dim[i] = below(20) ? 1 + below(most < 24 ? most : 24) : 0;
		n *= s.dim[i] ? s.dim[i] : 1;
	}
	return s;
}

/* Adds 1 for each element of the shard; false: one has it already on this rank. */
static bool count(const struct shard *s, uint32_t rank, uint16_t *times, uint32_t *last)
{
	struct box whole = {.ndim = s->global.ndim}, part[FLAT_BOXES_MAX];
	int n = shard_boxes(s, part);
	bool good = true;

	memcpy(whole.length, s->global.dim, sizeof(whole.length));
	for (int i = 0; i < n; i++) {
		uint64_t elements, at[CKPT_NDIM_MAX];

		assert_true(box_elements(&part[i], &elements));
		for (uint64_t k = 0; k < elements; k++) {
			uint64_t rest = k, index;

			for (uint32_t d = part[i].ndim; d-- > 0;) {
				at[d] = part[i].offset[d] + rest % part[i].length[d];
				rest /= part[i].length[d];
			}
			index = box_index(&whole, at);
			good = good && last[index] != rank + 1;
			last[index] = rank + 1;
			times[index]++;
		}
	}
	return good;
}

/* Every element as often as the axes that are not taken say, times the ranks that share a unit. */
static void check(struct layout *l, const struct layout_tensor *t, uint32_t copies)
{
	static uint16_t times[ELEMENTS_MAX + 1];
	static uint32_t last[ELEMENTS_MAX + 1];
	struct shard shards[LAYOUT_SHARDS_MAX];
	uint64_t elements;
	uint32_t n, empty = 0;

	assert_true(shape_elements(&t->global, &elements) && elements <= ELEMENTS_MAX);
	memset(times, 0, sizeof(times));
	memset(last, 0, sizeof(last));
	for (uint32_t rank = 0; rank < l->world; rank++) {
		struct err e = {0};

		if (layout_shards(l, t, rank, shards, &n, &e))
			fail_msg("%s", e.text);
		empty += n == 1 && !elements;
		for (uint32_t i = 0; i < n; i++) {
			assert_true(elements == 0 || shards[i].start < shards[i].stop);
			if (!count(&shards[i], rank, times, last))
				fail_msg("rank %u has an element twice", rank);
		}
	}
	for (uint64_t i = 0; i < elements; i++)
		if (times[i] != copies)
			fail_msg("element %llu is %u times there, not %u", (unsigned long long)i,
				 times[i], copies);
	assert_true(elements > 0 || empty > 0);
}

static void random_case(void)
{
	struct layout_tensor t[4];
	struct layout_tensors all;
	struct shape s = random_shape();
	uint32_t times = 1, copies;
	char names[4][8];
	struct err e = {0};
	struct layout *l;
	struct mesh m;

	l = random_mesh(&m);
	random_rule(l, &m, &s, &times);
	random_place(l, &m);
	random_flat(l, &m);
	assert_int_equal(layout_check(l, &e), 0);
	for (uint32_t i = 0; i < 4; i++) {
		snprintf(names[i], sizeof(names[i]), "t.%u", i);
		t[i] = (struct layout_tensor){names[i], 3, CKPT_BF16 + below(2), s};
	}
	all = layout_array(t, 4);
	if (layout_begin(l, &all, &e))
		fail_msg("%s", e.text);
	copies = times;
	for (uint32_t i = 0; i < m.n; i++)
		if (!(m.used & 1u << i))
			copies *= l->axes[i].size;
	/* Without dimensions nothing is cut: of the axes only the place's counts. */
	if (s.ndim == 0)
		copies = l->world / (l->n_places ? l->axes[l->places[0].axis].size : 1);
	for (uint32_t i = 0; i < 4; i++)
		check(l, &t[i], copies);
	layout_free(l);
}

static void test_shards_cover(void **state)
{
	uint64_t cases = test_cap("CKPT_LAYOUT_CASES", 2000);

	(void)state;
	for (uint64_t i = 0; i < cases; i++) {
		rng_seed(&rng, i + 1);
		random_case();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shards_cover),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
