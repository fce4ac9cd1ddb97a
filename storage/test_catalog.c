/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_catalog.c - checkpoints, layouts and tensors in the index, against plain arrays.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "base/rng.h"
#include "storage/catalog_format.h"
#include "storage/test_open_index.h"
#include "tests/lib/test.h"

static char *dir;
static struct index *ix;
static struct rng_seeded rng;

static int setup(void **state)
{
	char path[300];
	struct err e;
	bool fresh;

	(void)state;
	dir = test_dir_make(NULL);
	snprintf(path, sizeof(path), "%s/index", dir);
	if (test_index_open(path, &ix, &fresh, &e) != 0)
		fail_msg("%s", e.text);
	rng_seed(&rng, test_seed(6));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fault_disarm_all();
	ix->ops->close(ix);
	test_dir_remove(dir);
	return 0;
}

static uint32_t below(uint32_t n)
{
	return (uint32_t)rng_below(&rng.rng, n);
}

/* ---- Checkpoints ---- */

static struct catalog_entry make_entry(uint8_t job, uint64_t step, uint8_t attempt)
{
	struct catalog_entry c = { .id.step = step, .uid = 1000, .world = 1 + below(5000) };

	memset(c.id.job.b, job, sizeof(c.id.job.b));
	memset(c.id.attempt.b, attempt, sizeof(c.id.attempt.b));
	memset(c.job_name, 'j', below(CKPT_JOB_MAX + 1));
	rng.rng.fill(&rng.rng, c.root.b, sizeof(c.root.b));
	rng.rng.fill(&rng.rng, c.layout.b, sizeof(c.layout.b));
	c.incarnation = rng_u64(&rng.rng);
	c.record_n = rng_u64(&rng.rng);
	c.epoch = rng_u64(&rng.rng);
	c.wall_ns = rng_u64(&rng.rng);
	c.bytes = rng_u64(&rng.rng);
	c.pinned = below(2);
	c.suspect = below(2);
	return c;
}

static void expect_equal(const struct catalog_entry *a, const struct catalog_entry *b)
{
	assert_memory_equal(&a->id, &b->id, sizeof(a->id));
	assert_string_equal(a->job_name, b->job_name);
	assert_memory_equal(a->root.b, b->root.b, sizeof(a->root.b));
	assert_memory_equal(a->layout.b, b->layout.b, sizeof(a->layout.b));
	assert_int_equal(a->uid, b->uid);
	assert_true(a->incarnation == b->incarnation && a->record_n == b->record_n);
	assert_true(a->epoch == b->epoch && a->wall_ns == b->wall_ns && a->bytes == b->bytes);
	assert_int_equal(a->world, b->world);
	assert_true(a->pinned == b->pinned && a->suspect == b->suspect);
}

#define CHECKPOINTS 300

struct expected {
	struct catalog_entry c[CHECKPOINTS];
	bool there[CHECKPOINTS];
	int order[CHECKPOINTS]; /* of job, step, attempt */
	int job;                /* -1: all */
	int at, left;           /* left: until the callback stops the walk */
};

static const struct expected *sorting;

static int by_id(const void *a, const void *b)
{
	const struct checkpoint_id *x = &sorting->c[*(const int *)a].id;
	const struct checkpoint_id *y = &sorting->c[*(const int *)b].id;

	if (x->job.b[0] != y->job.b[0])
		return x->job.b[0] < y->job.b[0] ? -1 : 1;
	if (x->step != y->step)
		return x->step < y->step ? -1 : 1;
	return x->attempt.b[0] < y->attempt.b[0] ? -1 : x->attempt.b[0] > y->attempt.b[0];
}

static bool belongs(const struct expected *x, int i)
{
	return x->there[i] && (x->job < 0 || x->c[i].id.job.b[0] == x->job);
}

static int expect_next(void *arg, const struct catalog_entry *c)
{
	struct expected *x = arg;

	while (x->at < CHECKPOINTS && !belongs(x, x->order[x->at]))
		x->at++;
	assert_true(x->at < CHECKPOINTS);
	expect_equal(c, &x->c[x->order[x->at++]]);
	return --x->left == 0 ? -EINTR : 0;
}

static void expect_list(struct expected *x, int job, int left)
{
	struct job_id id;
	struct err e = { 0 };
	int r;

	x->job = job;
	x->at = 0;
	x->left = left;
	memset(id.b, job, sizeof(id.b));
	r = catalog_each(ix, job < 0 ? NULL : &id, expect_next, x, &e);
	if (left > 0 && x->left == 0) {
		assert_int_equal(r, -EINTR);
		assert_int_equal(e.code, 0); /* not an error of the index */
		return;
	}
	assert_int_equal(r, 0);
	for (; x->at < CHECKPOINTS; x->at++)
		assert_false(belongs(x, x->order[x->at]));
}

static void test_checkpoints(void **state)
{
	static struct expected x;
	static const uint8_t jobs[4] = { 0, 1, 0xfe, 0xff };
	struct catalog_entry got;
	struct err e;

	(void)state;
	for (int i = 0; i < CHECKPOINTS; i++) { /* attempt differs: no id twice */
		x.c[i] = make_entry(jobs[below(4)], below(3) ? below(20) : rng_u64(&rng.rng),
				    (uint8_t)i);
		x.c[i].id.attempt.b[1] = (uint8_t)(i >> 8);
		x.order[i] = i;
		assert_int_equal(catalog_put(ix, &x.c[i], &e), 0);
		x.there[i] = true;
	}
	sorting = &x;
	qsort(x.order, CHECKPOINTS, sizeof(x.order[0]), by_id);
	for (int round = 0; round < 100; round++) {
		int i = (int)below(CHECKPOINTS);

		expect_list(&x, below(2) ? -1 : jobs[below(4)], (int)below(5));
		if (below(2)) {
			assert_int_equal(catalog_remove(ix, &x.c[i].id, &e), 0);
			x.there[i] = false;
		} else {
			x.c[i].pinned ^= 1;
			assert_int_equal(catalog_put(ix, &x.c[i], &e), 0);
			x.there[i] = true;
		}
		i = (int)below(CHECKPOINTS);
		assert_int_equal(catalog_get(ix, &x.c[i].id, &got, &e),
				 x.there[i] ? 0 : CKPT_ENOTFOUND);
		if (x.there[i])
			expect_equal(&got, &x.c[i]);
		else
			assert_non_null(strstr(e.text, "find step "));
	}
}

/* ---- Layouts ---- */

#define RANKS_MAX 600
#define SHARDS_MAX 40

/* What was declared, in plain arrays. */
struct rank {
	struct shard shard[SHARDS_MAX];
	uint32_t n;
	void *bytes;
	struct declaration d;
};

struct layout {
	struct rank *ranks;
	struct declaration d[RANKS_MAX];
	uint32_t world;
	struct digest digest;
};

static const char *const names[] = { "a", "a.b", "a.bc", "ab", "b", "\xc3\xa9", "layers.0.w",
				     "layers.0.w2", "layers.1.w", "a.b.c.d.e.f.g.h" };
#define NAMES (sizeof(names) / sizeof(names[0]))

/* Rows of tensors that are all [1000, 4], the rows of a rank's shards apart from each other. */
static struct shard make_shard(uint32_t i)
{
	const char *name = names[below(NAMES)];
	struct shard s = { .name = name, .name_len = (uint32_t)strlen(name), .dtype = CKPT_BF16 };

	s.global = (struct shape){ 2, { 1000, 4 } };
	s.box = (struct box){ 2, { i * 10, 0 }, { 1 + below(10), 4 } };
	s.trained = below(2);
	if (below(3) == 0) {
		s.flat = true;
		s.stop = s.box.length[0] * 4;
		s.start = below((uint32_t)s.stop + 1);
	}
	return s;
}

static void make_rank(struct rank *rank)
{
	struct declaration_builder *b;
	size_t len = 0;
	struct err e;

	rank->n = 1 + below(SHARDS_MAX);
	assert_int_equal(declaration_builder_new((struct geometry){ 64, 256 }, &b), 0);
	for (uint32_t i = 0; i < rank->n; i++) {
		rank->shard[i] = make_shard(i);
		assert_int_equal(declaration_add(b, &rank->shard[i], &e), i);
	}
	if (declaration_finish(b, &rank->bytes, &len, &e) != 0)
		fail_msg("%s", e.text);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(rank->bytes, len, &rank->d, &e), 0);
}

static struct layout *make_layout(uint32_t world)
{
	static struct digest digests[RANKS_MAX];
	struct layout *l = calloc(1, sizeof(*l));

	l->ranks = calloc(world, sizeof(*l->ranks));
	l->world = world;
	for (uint32_t i = 0; i < world; i++) {
		uint32_t same = i ? below(i) : 0;

		if (i > 0 && below(2)) { /* a replica of another rank */
			l->ranks[i] = l->ranks[same];
			l->ranks[i].bytes = NULL;
		} else {
			make_rank(&l->ranks[i]);
		}
		l->d[i] = l->ranks[i].d;
		digests[i] = declaration_digest(l->d[i].bytes, l->d[i].len);
	}
	l->digest = layout_digest(digests, world);
	return l;
}

static void free_layout(struct layout *l)
{
	for (uint32_t i = 0; i < l->world; i++)
		alloc_free(l->ranks[i].bytes);
	free(l->ranks);
	free(l);
}

struct tensor_walk {
	const struct layout *l;
	const char *name;
	uint32_t rank, i; /* next shard to be expected is there or after it */
	int left;
};

/* To the next shard of that name; false at the end. */
static bool next_shard(struct tensor_walk *w)
{
	for (; w->rank < w->l->world; w->rank++, w->i = 0)
		for (; w->i < w->l->ranks[w->rank].n; w->i++) {
			const struct shard *s = &w->l->ranks[w->rank].shard[w->i];

			if (s->name_len == strlen(w->name) &&
			    memcmp(s->name, w->name, s->name_len) == 0)
				return true;
		}
	return false;
}

static int expect_shard(void *arg, uint32_t rank, const struct shard *s)
{
	struct tensor_walk *w = arg;
	const struct shard *want;

	assert_true(next_shard(w));
	want = &w->l->ranks[w->rank].shard[w->i++];
	assert_int_equal(rank, w->rank);
	assert_int_equal(s->name_len, want->name_len);
	assert_memory_equal(s->name, want->name, want->name_len);
	assert_int_equal(s->dtype, want->dtype);
	assert_int_equal(s->global.ndim, 2);
	assert_int_equal(s->box.ndim, 2);
	assert_memory_equal(s->global.dim, want->global.dim, 2 * sizeof(s->global.dim[0]));
	assert_memory_equal(s->box.offset, want->box.offset, 2 * sizeof(s->box.offset[0]));
	assert_memory_equal(s->box.length, want->box.length, 2 * sizeof(s->box.length[0]));
	assert_true(s->flat == want->flat && s->trained == want->trained);
	if (want->flat) {
		assert_true(s->start == want->start && s->stop == want->stop);
		assert_int_equal(s->bytes, (want->stop - want->start) * 2);
	} else {
		assert_int_equal(s->bytes, want->box.length[0] * 4 * 2);
	}
	assert_int_equal(s->image_offset % 64, 0);
	return --w->left == 0 ? 11 : 0;
}

static void expect_tensors(const struct layout *l)
{
	for (size_t i = 0; i < NAMES; i++) {
		struct tensor_walk w = { .l = l, .name = names[i] };
		bool any = next_shard(&w);
		struct err e = { 0 };
		int r;

		w = (struct tensor_walk){ .l = l, .name = names[i] };
		r = catalog_tensor(ix, &l->digest, names[i], strlen(names[i]), expect_shard, &w,
				   &e);
		assert_int_equal(r, any ? 0 : CKPT_ENOTFOUND);
		assert_false(next_shard(&w)); /* none was left out */
		if (!any)
			continue;
		w = (struct tensor_walk){ .l = l, .name = names[i], .left = 1 };
		r = catalog_tensor(ix, &l->digest, names[i], strlen(names[i]), expect_shard, &w,
				   &e);
		assert_int_equal(r, 11);
	}
}

static void test_tensors(void **state)
{
	static const uint32_t worlds[] = { 1, 2, 7, 255, 256, 257, RANKS_MAX };
	struct layout *l[7];
	struct err e;

	(void)state;
	for (int i = 0; i < 7; i++) {
		l[i] = make_layout(worlds[i]);
		assert_int_equal(catalog_put_layout(ix, &l[i]->digest, l[i]->d, l[i]->world, NULL,
						    &e),
				 0);
		assert_int_equal(catalog_put_layout(ix, &l[i]->digest, l[i]->d, l[i]->world, NULL,
						    &e),
				 0);
	}
	for (int i = 0; i < 7; i++)
		expect_tensors(l[i]);
	assert_int_equal(catalog_tensor(ix, &l[0]->digest, "nobody", 6, expect_shard, NULL, &e),
			 CKPT_ENOTFOUND);
	assert_non_null(strstr(e.text, "no rank has a tensor 'nobody'"));
	l[0]->digest.b[3] ^= 1;
	assert_int_equal(catalog_tensor(ix, &l[0]->digest, "a", 1, expect_shard, NULL, &e),
			 CKPT_ENOTFOUND);
	assert_non_null(strstr(e.text, "find layout "));
	for (int i = 0; i < 7; i++)
		free_layout(l[i]);
}

#ifdef CKPT_FAULTS
/* Fails each write of a layout in turn: it is never seen in part, and it can be put again. */
static void test_layout_write_failures(void **state)
{
	static const enum fault_point points[2] = { FAULT_INDEX_WRITE, FAULT_INDEX_WRITTEN };
	struct err e;

	(void)state;
	for (int p = 0; p < 2; p++) {
		int r = -EIO;

		for (uint64_t n = 1; r != 0; n++) {
			struct layout *l = make_layout(5);
			struct tensor_walk w = { .l = l, .name = "a" };

			fault_arm(points[p], FAULT_ERROR, fault_hits(points[p]) + n, false);
			r = catalog_put_layout(ix, &l->digest, l->d, l->world, NULL, &e);
			assert_true(r == 0 || r == -EIO);
			/* The write may have come through in spite of the error (I10). */
			if (r != 0 && catalog_tensor(ix, &l->digest, "a", 1, expect_shard, &w,
						     &e) != CKPT_ENOTFOUND)
				expect_tensors(l);
			assert_int_equal(catalog_put_layout(ix, &l->digest, l->d, l->world, NULL,
							    &e),
					 0);
			expect_tensors(l);
			free_layout(l);
			assert_true(n < 100);
		}
		fault_disarm_all();
	}
}

static void test_allocation_failures(void **state)
{
	struct layout *l = make_layout(3);
	struct err e;

	(void)state;
	for (int what = 0; what < 2; what++) {
		int r = -ENOMEM;

		for (uint64_t n = 1; r == -ENOMEM; n++) {
			struct tensor_walk w = { .l = l, .name = "a" };

			alloc_fail_at(n, false);
			r = what ? catalog_tensor(ix, &l->digest, "a", 1, expect_shard, &w, &e)
				 : catalog_put_layout(ix, &l->digest, l->d, l->world, NULL, &e);
			assert_int_equal(r == -ENOMEM, alloc_fired());
			alloc_fail_at(0, false);
		}
		assert_true(r == 0 || r == CKPT_ENOTFOUND);
	}
	expect_tensors(l);
	free_layout(l);
}
#endif

/* ---- What another version or a bug may have written ---- */

static void test_malformed_values(void **state)
{
	struct catalog_entry c = make_entry(1, 2, 3), got;
	uint8_t value[CATALOG_VALUE_MAX], bad[CATALOG_VALUE_MAX];
	struct catalog_key k;
	struct shard s = make_shard(0), back;
	size_t len = checkpoint_encode(value, &c);

	(void)state;
	key_checkpoint(&k, &c.id);
	assert_int_equal(checkpoint_decode(k.bytes, k.len, value, len, &got), 0);
	expect_equal(&got, &c);
	for (size_t n = 0; n < len; n++)
		assert_int_equal(checkpoint_decode(k.bytes, k.len, value, n, &got), CKPT_ECORRUPT);
	for (size_t n = 0; n < k.len; n++)
		assert_int_equal(checkpoint_decode(k.bytes, n, value, len, &got), CKPT_ECORRUPT);
	assert_int_equal(checkpoint_decode(k.bytes, k.len, value, len + 1, &got), CKPT_ECORRUPT);

	s.flat = true;
	s.stop = 4;
	s.start = 1;
	len = shard_encode(value, &s);
	assert_int_equal(shard_decode(s.name, s.name_len, value, len, &back), 0);
	assert_int_equal(back.bytes, 6);
	for (size_t n = 0; n < len; n++)
		assert_int_equal(shard_decode(s.name, s.name_len, value, n, &back), CKPT_ECORRUPT);
	for (int i = 0; i < 20000; i++) { /* whatever is accepted is a valid shard */
		memcpy(bad, value, len);
		for (uint32_t n = 1 + below(3); n > 0; n--)
			bad[below((uint32_t)len)] = (uint8_t)below(256);
		if (shard_decode(s.name, s.name_len, bad, below((uint32_t)len + 1), &back) == 0)
			assert_true(box_inside(&back.box, &back.global) && back.start <= back.stop);
	}
}

static void test_malformed_entries(void **state)
{
	struct layout *l = make_layout(2);
	struct catalog_entry c = make_entry(1, 2, 3), got;
	struct index_entry t = { .value = "?", .value_len = 1 };
	static const struct {
		uint32_t block;
		const char *value;
		size_t len;
	} groups[] = {
		{0, "\0\0\0", 3},                  /* cut */
		{0, "\0\0\0\0\2\0\0\0", 8},        /* a later rank's */
		{0, "\0\0\0\0\0\0\0\0\0\0\0", 12}, /* of more ranks than there are */
		{1, "\0\0\0", 4},                  /* of others */
	};
	struct tensor_walk w = { .l = l };
	struct catalog_key k;
	struct err e = { 0 };
	const char *name;

	(void)state;
	key_checkpoint(&k, &c.id);
	t.key = k.bytes;
	t.key_len = k.len;
	assert_int_equal(ix->ops->write(ix, &t, 1, false), 0);
	assert_int_equal(catalog_get(ix, &c.id, &got, &e), CKPT_ECORRUPT);
	assert_int_equal(catalog_each(ix, NULL, expect_next, NULL, &e), CKPT_ECORRUPT);

	while (l->ranks[1].bytes) { /* until both ranks have the same */
		free_layout(l);
		l = make_layout(2);
	}
	w.l = l;
	assert_int_equal(catalog_put_layout(ix, &l->digest, l->d, 2, NULL, &e), 0);
	name = l->ranks[0].shard[0].name;
	w.name = name;
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		key_groups(&k, &l->digest, groups[i].block);
		t = (struct index_entry){.key = k.bytes,
					 .key_len = k.len,
					 .value = groups[i].value,
					 .value_len = groups[i].len};
		assert_int_equal(ix->ops->write(ix, &t, 1, false), 0);
		w.rank = w.i = 0;
		assert_int_equal(
			catalog_tensor(ix, &l->digest, name, strlen(name), expect_shard, &w, &e),
			CKPT_ECORRUPT);
		t.value = NULL;
		assert_int_equal(ix->ops->write(ix, &t, 1, false), 0);
	}
	free_layout(l);
}

/* Nobody sees a layout that was cancelled, and it can be put again. */
static void test_layout_cancelled(void **state)
{
	struct layout *l = make_layout(2);
	const char *name = l->ranks[0].shard[0].name;
	struct tensor_walk w = {.l = l, .name = name};
	atomic_bool cancel = true;
	struct err e;

	(void)state;
	assert_int_equal(catalog_put_layout(ix, &l->digest, l->d, 2, &cancel, &e), -ECANCELED);
	assert_int_equal(
		catalog_tensor(ix, &l->digest, name, strlen(name), expect_shard, &w, &e),
		CKPT_ENOTFOUND);
	cancel = false;
	assert_int_equal(catalog_put_layout(ix, &l->digest, l->d, 2, &cancel, &e), 0);
	assert_int_equal(
		catalog_tensor(ix, &l->digest, name, strlen(name), expect_shard, &w, &e), 0);
	free_layout(l);
}

static int count_key(void *arg, const void *key, size_t key_len, const void *value, size_t len)
{
	const uint8_t *k = key;

	assert_true(key_len > 0 && value && len > 0);
	((uint64_t *)arg)[k[0]]++;
	return 0;
}

/* Ranks with equal declarations share what is kept; a layout that is put over parts of another
 * attempt has nothing of it. */
static void test_shards_are_kept_once(void **state)
{
	struct layout *l = make_layout(200);
	uint64_t kinds[256] = {0}, distinct = 0, shards = 0;
	struct index_entry t = {.value = "?", .value_len = 1};
	struct catalog_key k;
	struct err e;

	(void)state;
	for (uint32_t i = 0; i < l->world; i++) {
		distinct += l->ranks[i].bytes != NULL;
		shards += l->ranks[i].bytes ? l->ranks[i].n : 0;
	}
	key_tensor(&k, &l->digest, "a", 1);
	key_add_order(&k, 3, 1000000);
	t.key = k.bytes;
	t.key_len = k.len;
	assert_int_equal(ix->ops->write(ix, &t, 1, false), 0);
	assert_int_equal(catalog_put_layout(ix, &l->digest, l->d, l->world, NULL, &e), 0);
	expect_tensors(l);
	assert_int_equal(ix->ops->scan(ix, "", 0, NULL, 0, count_key, kinds), 0);
	assert_true(distinct < l->world);
	assert_int_equal(kinds[CATALOG_DECLARATION], distinct);
	assert_int_equal(kinds[CATALOG_TENSOR], shards);
	assert_int_equal(kinds[CATALOG_LAYOUT], 1);
	assert_true(kinds[CATALOG_GROUPS] <= 4);
	free_layout(l);
}

/* No tensor has a NUL in its name, but one may be asked for. */
static void test_names_are_bytes(void **state)
{
	static const char keys[10] = "a";
	struct layout *l = make_layout(4);
	struct tensor_walk w = { .l = l };
	struct err e;

	(void)state;
	assert_int_equal(catalog_put_layout(ix, &l->digest, l->d, l->world, NULL, &e), 0);
	for (size_t n = 2; n <= sizeof(keys); n++) /* the bytes that follow a name in a key */
		assert_int_equal(catalog_tensor(ix, &l->digest, keys, n, expect_shard, &w, &e),
				 CKPT_ENOTFOUND);
	assert_int_equal(catalog_tensor(ix, &l->digest, "", 0, expect_shard, &w, &e),
			 CKPT_ENOTFOUND);
	free_layout(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_checkpoints, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tensors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_layout_cancelled, setup, teardown),
#ifdef CKPT_FAULTS
		cmocka_unit_test_setup_teardown(test_layout_write_failures, setup, teardown),
		cmocka_unit_test_setup_teardown(test_allocation_failures, setup, teardown),
#endif
		cmocka_unit_test_setup_teardown(test_malformed_values, setup, teardown),
		cmocka_unit_test_setup_teardown(test_malformed_entries, setup, teardown),
		cmocka_unit_test_setup_teardown(test_shards_are_kept_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_names_are_bytes, setup, teardown),
	};

	return cmocka_run_group_tests_name("catalog", tests, NULL, NULL);
}
