/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which elements two ranks hold in different shards, and on which they differ: against an oracle
 * that looks at each element of each pair of shards.
 */
#include <config.h>

#include "model/overlaps.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/lib/test.h"

#define RANKS   5
#define ROWS    8
#define COLUMNS 6
#define NAMES   3

static const struct geometry geometry = {.leaf = 64u << 10, .chunk = 1u << 20};
static const char *const names[NAMES] = {"a", "b", "w"};

struct world {
	struct declaration ranks[RANKS];
	struct shard shards[RANKS][NAMES]; /* with places in the image */
	uint8_t *images[RANKS];
	/* By name, pair of ranks and element: found by overlaps_walk(). */
	bool found[NAMES][RANKS][RANKS][ROWS * COLUMNS];
	uint64_t x;
};

static uint64_t rnd(struct world *w, uint64_t below)
{
	w->x ^= w->x << 13;
	w->x ^= w->x >> 7;
	w->x ^= w->x << 17;
	return w->x % below;
}

static struct shard any_shard(struct world *w, const char *name)
{
	struct shard s = {.name = name,
			  .name_len = (uint32_t)strlen(name),
			  .dtype = CKPT_F32,
			  .global = {2, {ROWS, COLUMNS}},
			  .box = {2, {0, 0}, {ROWS, COLUMNS}}};

	if (rnd(w, 4) == 0)
		return s; /* often the same */
	s.box.offset[0] = rnd(w, ROWS);
	s.box.length[0] = 1 + rnd(w, ROWS - s.box.offset[0]);
	s.box.offset[1] = rnd(w, COLUMNS);
	s.box.length[1] = 1 + rnd(w, COLUMNS - s.box.offset[1]);
	if (rnd(w, 2)) {
		s.flat = true;
		s.start = rnd(w, s.box.length[0] * s.box.length[1]);
		s.stop = s.start + rnd(w, s.box.length[0] * s.box.length[1] - s.start + 1);
	}
	return s;
}

/* Where the shard has the element of the whole tensor; UINT64_MAX: it has not. */
static uint64_t place_of(const struct shard *s, uint64_t element)
{
	uint64_t row = element / COLUMNS, column = element % COLUMNS, i;

	if (row < s->box.offset[0] || row >= s->box.offset[0] + s->box.length[0] ||
	    column < s->box.offset[1] || column >= s->box.offset[1] + s->box.length[1])
		return UINT64_MAX;
	i = (row - s->box.offset[0]) * s->box.length[1] + (column - s->box.offset[1]);
	return i < s->start || i >= s->stop ? UINT64_MAX : s->image_offset + 4 * (i - s->start);
}

static void make_rank(struct world *w, int rank)
{
	struct declaration_builder *b = NULL;
	struct err e = {0};
	struct shard s;
	void *bytes;
	size_t len;

	assert_int_equal(declaration_builder_new(geometry, &b), 0);
	for (int i = 0; i < NAMES; i++) {
		s = any_shard(w, names[i]);
		assert_int_equal(declaration_add(b, &s, &e), i);
	}
	assert_int_equal(declaration_finish(b, &bytes, &len, &e), 0);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, &w->ranks[rank], &e), 0);
	w->images[rank] = calloc(1, w->ranks[rank].image_bytes + 1);
	for (uint32_t i = 0; i < NAMES; i++) {
		declaration_get(&w->ranks[rank], i, &w->shards[rank][i]);
		for (uint64_t k = 0; k < ROWS * COLUMNS; k++) {
			uint64_t at = place_of(&w->shards[rank][i], k);
			uint32_t value = (uint32_t)(1000 * i + k);

			if (at != UINT64_MAX)
				memcpy(w->images[rank] + at, &value, 4);
		}
	}
}

static void make_world(struct world *w, uint64_t seed)
{
	memset(w, 0, sizeof(*w));
	w->x = seed * 0x9e3779b97f4a7c15u + 1;
	for (int i = 0; i < RANKS; i++)
		make_rank(w, i);
}

static void drop_world(struct world *w)
{
	for (int i = 0; i < RANKS; i++) {
		alloc_free((void *)w->ranks[i].bytes);
		free(w->images[i]);
	}
}

static bool same_shard(const struct shard *a, const struct shard *b)
{
	return memcmp(&a->box, &b->box, sizeof(a->box)) == 0 && a->start == b->start &&
	       a->stop == b->stop;
}

/* A rank before it holds the same shard. */
static bool is_replica(const struct world *w, int rank, int name)
{
	for (int i = 0; i < rank; i++)
		if (same_shard(&w->shards[i][name], &w->shards[rank][name]))
			return true;
	return false;
}

static int name_index(const struct overlap *o)
{
	for (int i = 0; i < NAMES; i++)
		if (o->name_len == 1 && o->name[0] == names[i][0])
			return i;
	fail_msg("there is no tensor '%.*s'", (int)o->name_len, o->name);
	return 0;
}

static int take(void *arg, const struct overlap *o)
{
	struct world *w = arg;
	int name = name_index(o);

	assert_true(o->rank[0] < o->rank[1]);
	for (uint64_t i = 0; i < o->region.length[0]; i++) {
		for (uint64_t k = 0; k < o->region.length[1]; k++) {
			uint64_t e = (o->region.offset[0] + i) * COLUMNS + o->region.offset[1] + k;
			bool *found = &w->found[name][o->rank[0]][o->rank[1]][e];

			assert_false(*found); /* no element twice */
			*found = true;
		}
	}
	return 0;
}

static void check_found(const struct world *w, int name, int a, int b)
{
	const struct shard *x = &w->shards[a][name], *y = &w->shards[b][name];
	bool counts = !is_replica(w, a, name) && !is_replica(w, b, name);

	for (uint64_t e = 0; e < ROWS * COLUMNS; e++)
		assert_int_equal(w->found[name][a][b][e], counts && place_of(x, e) != UINT64_MAX &&
								  place_of(y, e) != UINT64_MAX);
}

static void test_any_shards(void **state)
{
	static struct world w;
	uint64_t seed = test_seed(1);

	(void)state;
	for (uint64_t i = 0; i < 300; i++) {
		make_world(&w, seed * 1000 + i);
		assert_int_equal(overlaps_walk(w.ranks, RANKS, NULL, take, &w, NULL), 0);
		for (int name = 0; name < NAMES; name++)
			for (int a = 0; a < RANKS; a++)
				for (int b = a + 1; b < RANKS; b++)
					check_found(&w, name, a, b);
		drop_world(&w);
	}
}

struct differing {
	struct world *w;
	uint64_t changed; /* element of "w" that the last rank has differently */
	int differ;
};

static int compare(void *arg, const struct overlap *o)
{
	struct differing *d = arg;
	const uint8_t *images[2] = {d->w->images[o->rank[0]], d->w->images[o->rank[1]]};
	uint64_t row = d->changed / COLUMNS, column = d->changed % COLUMNS;
	const struct box *r = &o->region;
	struct box at;
	bool has = name_index(o) == 2 && o->rank[1] == RANKS - 1 && row >= r->offset[0] &&
		   row < r->offset[0] + r->length[0] && column >= r->offset[1] &&
		   column < r->offset[1] + r->length[1];

	assert_int_equal(overlap_differs(o, images, NULL, &at), has);
	if (has) {
		assert_int_equal(at.offset[0] * COLUMNS + at.offset[1], d->changed);
		assert_int_equal(at.length[0] * at.length[1], 1);
		d->differ++;
	}
	return 0;
}

static void test_one_element_differs(void **state)
{
	static struct world w;
	uint64_t seed = test_seed(2);
	int differ = 0, none = 0;

	(void)state;
	for (uint64_t i = 0; i < 300; i++) {
		struct differing d = {.w = &w};
		uint64_t at;

		make_world(&w, seed * 1000 + i);
		d.changed = rnd(&w, ROWS * COLUMNS);
		at = place_of(&w.shards[RANKS - 1][2], d.changed);
		if (at != UINT64_MAX)
			w.images[RANKS - 1][at + rnd(&w, 4)] ^= 1;
		else
			d.changed = UINT64_MAX; /* it has not got it */
		assert_int_equal(overlaps_walk(w.ranks, RANKS, NULL, compare, &d, NULL), 0);
		differ += d.differ > 0;
		none += d.differ == 0;
		drop_world(&w);
	}
	assert_true(differ > 20 && none > 20);
}

static int stop(void *arg, const struct overlap *o)
{
	(void)o;
	++*(int *)arg;
	return 7;
}

static void test_it_ends_when_told_and_without_memory(void **state)
{
	static struct world w;
	int calls = 0;
	bool fired = true;

	(void)state;
	make_world(&w, 5);
	assert_int_equal(overlaps_walk(w.ranks, RANKS, NULL, stop, &calls, NULL), 7);
	assert_int_equal(calls, 1);
	for (uint64_t n = 1; fired; n++) {
		int r;

		memset(w.found, 0, sizeof(w.found));
		alloc_fail_at(n, false);
		r = overlaps_walk(w.ranks, RANKS, NULL, take, &w, NULL);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		assert_int_equal(r, fired ? -ENOMEM : 0);
	}
	assert_int_equal(overlaps_walk(w.ranks, 1, NULL, stop, &calls, NULL), 0);
	assert_int_equal(overlaps_walk(w.ranks, 0, NULL, stop, &calls, NULL), 0);
	drop_world(&w);
}

/* Neither a walk nor a comparison goes on. */
static void test_cancel(void **state)
{
	static struct world w;
	atomic_bool cancel = true;
	int calls = 0;

	(void)state;
	make_world(&w, 5);
	assert_int_equal(overlaps_walk(w.ranks, RANKS, &cancel, stop, &calls, NULL), -ECANCELED);
	assert_int_equal(calls, 0);
	drop_world(&w);
}

static struct declaration own_names(uint32_t rank, uint32_t ranks, uint32_t n)
{
	struct geometry g = {.leaf = 64u << 10, .chunk = 1u << 20};
	struct declaration_builder *b = NULL;
	struct declaration d;
	void *bytes;
	size_t len;

	assert_int_equal(declaration_builder_new(g, &b), 0);
	for (uint32_t i = 0; i < n; i++) {
		char name[16];
		struct shard s = {.name = name,
				  .name_len = 9,
				  .dtype = CKPT_U8,
				  .global = {1, {1}},
				  .box = {1, {0}, {1}}};

		snprintf(name, sizeof(name), "n%08u", i * ranks + rank);
		assert_int_equal(declaration_add(b, &s, NULL), (int)i);
	}
	assert_int_equal(declaration_finish(b, &bytes, &len, NULL), 0);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	return d;
}

static struct declaration one_tensor(uint32_t dtype, uint64_t length)
{
	struct geometry g = {.leaf = 64u << 10, .chunk = 1u << 20};
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = dtype,
			  .global = {1, {length}},
			  .box = {1, {0}, {length}}};
	struct declaration_builder *b = NULL;
	struct declaration d;
	void *bytes;
	size_t len;

	assert_int_equal(declaration_builder_new(g, &b), 0);
	assert_int_equal(declaration_add(b, &s, NULL), 0);
	assert_int_equal(declaration_finish(b, &bytes, &len, NULL), 0);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, &d, NULL), 0);
	return d;
}

static int take_unlike(void *arg, const struct overlap *o)
{
	assert_true(o->unlike);
	assert_int_equal(o->rank[0], 0);
	assert_int_equal(o->rank[1], 2);
	++*(int *)arg;
	return 0;
}

/* Of another type, or of another global shape: said once, and nothing is compared. */
static void test_tensors_that_are_unlike(void **state)
{
	const struct declaration d[][3] = {
		{one_tensor(CKPT_F32, 10), one_tensor(CKPT_F32, 10), one_tensor(CKPT_F64, 10)},
		{one_tensor(CKPT_F32, 10), one_tensor(CKPT_F32, 10), one_tensor(CKPT_F32, 9)},
	};
	int calls;

	(void)state;
	for (int i = 0; i < 2; i++) {
		calls = 0;
		assert_int_equal(overlaps_walk(d[i], 3, NULL, take_unlike, &calls, NULL), 0);
		assert_int_equal(calls, 1);
		assert_int_equal(overlaps_walk(d[i], 2, NULL, stop, &calls, NULL), 0);
		for (int k = 0; k < 3; k++)
			alloc_free((void *)(uintptr_t)d[i][k].bytes);
	}
}

/* Ranks without a common name: the walk does not read all of them for each name. */
static void test_names_of_their_own(void **state)
{
	enum { MANY = 400, EACH = 50 };
	struct declaration d[MANY];
	uint64_t looks;
	int calls = 0;

	(void)state;
	for (uint32_t i = 0; i < MANY; i++)
		d[i] = own_names(i, MANY, EACH);
	assert_int_equal(overlaps_walk(d, MANY, NULL, stop, &calls, &looks), 0);
	assert_int_equal(calls, 0);
	assert_in_range(looks, MANY * EACH, 5 * MANY * EACH); /* all for each: 1.6e7 */
	for (uint32_t i = 0; i < MANY; i++)
		alloc_free((void *)(uintptr_t)d[i].bytes);
}

/* Images are memory of trainers, who may write while they are compared. */
struct flipper {
	volatile uint8_t *at;
	atomic_bool stop;
};

static void *flip(void *arg)
{
	struct flipper *w = arg;

	while (!atomic_load(&w->stop))
		*w->at ^= 1;
	return NULL;
}

/* Ends with the last byte before memory that nobody may touch. */
static uint8_t *image_before_wall(size_t page, uint64_t bytes)
{
	uint8_t *p =
		mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_int_equal(mprotect(p + page, page, PROT_NONE), 0);
	return p + page - bytes;
}

static void test_bytes_that_change_meanwhile(void **state)
{
	enum { BYTES = 4096, LOOKS = 150000 };
	struct shard s = {.name = "a",
			  .name_len = 1,
			  .dtype = CKPT_U8,
			  .global = {1, {BYTES}},
			  .box = {1, {0}, {BYTES}},
			  .stop = BYTES,
			  .bytes = BYTES};
	struct overlap o = {.rank = {0, 1}, .shard = {s, s}, .region = s.box};
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint8_t *images[2] = {image_before_wall(page, BYTES), image_before_wall(page, BYTES)};
	const uint8_t *const looked[2] = {images[0], images[1]};
	struct flipper w = {.at = images[0] + BYTES - 1};
	pthread_t t;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it races on purpose */
#endif
	assert_int_equal(pthread_create(&t, NULL, flip, &w), 0);
	for (int i = 0; i < LOOKS; i++) {
		struct box at = s.box;

		if (overlap_differs(&o, looked, NULL, &at))
			assert_true(at.offset[0] < BYTES);
	}
	atomic_store(&w.stop, true);
	pthread_join(t, NULL);
	for (int i = 0; i < 2; i++)
		munmap(images[i] + BYTES - page, 2 * page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_shards),
		cmocka_unit_test(test_one_element_differs),
		cmocka_unit_test(test_it_ends_when_told_and_without_memory),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_tensors_that_are_unlike),
		cmocka_unit_test(test_names_of_their_own),
		cmocka_unit_test(test_bytes_that_change_meanwhile),
	};

	return cmocka_run_group_tests_name("overlaps", tests, NULL, NULL);
}
