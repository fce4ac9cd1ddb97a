/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ledger.c - the ledger against a memory of malloc: what was written is replayed in order; a
 * region cut or changed at any byte replays a prefix and nothing else; rewriting at any size and
 * with any failed allocation loses nothing.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/ledger.h"
#include "codec/digest.h"
#include "tests/lib/test.h"

/* ---- A memory table over malloc ---- */

struct heap_memory {
	struct memory memory;
	int regions;
	int fail_in; /* create fails when this reaches 0; -1: never */
};

static int heap_create(struct memory *m, const char *name, uint64_t size, struct region **ret)
{
	struct heap_memory *h = container_of(m, struct heap_memory, memory);
	struct region *r;

	if (h->fail_in == 0)
		return -ENOMEM;
	if (h->fail_in > 0)
		h->fail_in--;
	r = calloc(1, sizeof(*r));
	r->base = calloc(1, size);
	r->size = size;
	snprintf(r->name, sizeof(r->name), "%s", name);
	h->regions++;
	*ret = r;
	return 0;
}

static void heap_destroy(struct memory *m, struct region *r)
{
	container_of(m, struct heap_memory, memory)->regions--;
	free(r->base);
	free(r);
}

static const struct memory_ops heap_ops = { .create = heap_create, .destroy = heap_destroy };

enum { SLOTS_MAX = 8192 };

/* ---- The truth that is rewritten: slots 0..n with a table each ---- */

struct truth {
	struct ledger ledger;
	uint32_t n;
	size_t table_len;
	uint64_t marks[SLOTS_MAX];
};

static void table_of(uint32_t slot, uint8_t *buf, size_t len)
{
	test_fill(buf, len, slot + 1);
}

static int write_slot(struct ledger *l, uint32_t slot, size_t table_len)
{
	struct process_id p = { .pid = 100 + (int)slot, .uid = 7, .start = 9 };
	struct blob_entry blobs[2] = {{"rng", 3, 4096, 10}, {"cursor", 6, 4160, 8}};
	struct ledger_seal seal = {.slot = slot,
				   .world = 4,
				   .step = 10 + slot,
				   .epoch = 3,
				   .image_len = 5000,
				   .blobs = blobs,
				   .n_blobs = 2,
				   .origin = {(enum origin_kind)(slot % 3), slot}};
	uint8_t table[8192];
	int r = ledger_slot(l, slot, slot % 4, "slot.x", &p);

	memset(seal.attempt.b, (int)slot, 16);
	table_of(slot, table, table_len);
	if (r == 0)
		r = ledger_ready(l, slot);
	if (r == 0)
		r = ledger_assign(l, slot, slot + 5);
	if (r == 0)
		r = ledger_sealed(l, &seal);
	if (r == 0)
		r = ledger_table(l, slot, table, table_len);
	return r;
}

static int rewrite_truth(void *owner, struct ledger *into)
{
	struct truth *t = owner;
	int r = 0;

	for (uint32_t i = 0; i < t->n && r == 0; i++) {
		if (ledger_slice_over(into))
			return 1;
		if (ledger_due(into, &t->marks[i]))
			r = write_slot(into, i, t->table_len);
	}
	return r;
}

/* ---- What a replay found ---- */

struct seen {
	uint32_t slots, ready, assigned, sealed, tables, empty, members, left, declarations;
	uint32_t annexes;
	size_t table_len;
};

static int on_declaration(void *arg, const struct digest *d, const void *bytes, size_t len)
{
	struct digest have = digest_of(bytes, len);

	assert_true(digest_equal(d, &have));
	((struct seen *)arg)->declarations++;
	return 0;
}

static int on_slot(void *arg, uint32_t slot, uint32_t rank, const char *region,
		   const struct process_id *p)
{
	assert_int_equal(rank, slot % 4);
	assert_string_equal(region, "slot.x");
	assert_int_equal(p->pid, 100 + slot);
	((struct seen *)arg)->slots++;
	return 0;
}

static int on_ready(void *arg, uint32_t slot)
{
	(void)slot;
	((struct seen *)arg)->ready++;
	return 0;
}

static int on_assign(void *arg, uint32_t slot, uint64_t credit)
{
	assert_int_equal(credit, slot + 5);
	((struct seen *)arg)->assigned++;
	return 0;
}

static int on_sealed(void *arg, const struct ledger_seal *s)
{
	assert_int_equal(s->step, 10 + s->slot);
	assert_int_equal(s->epoch, 3);
	assert_int_equal(s->n_blobs, 2);
	assert_int_equal(s->blobs[1].name_len, 6);
	assert_memory_equal(s->blobs[1].name, "cursor", 6);
	assert_int_equal(s->blobs[1].image_offset, 4160);
	assert_int_equal(s->origin.kind, s->slot % 3);
	assert_int_equal(s->origin.step, s->slot);
	((struct seen *)arg)->sealed++;
	return 0;
}

static int on_table(void *arg, uint32_t slot, const void *table, size_t len)
{
	struct seen *seen = arg;
	uint8_t want[8192];

	assert_int_equal(len, seen->table_len);
	table_of(slot, want, len);
	assert_memory_equal(table, want, len);
	seen->tables++;
	return 0;
}

static int on_empty(void *arg, uint32_t slot)
{
	(void)slot;
	((struct seen *)arg)->empty++;
	return 0;
}

static int on_member(void *arg, uint32_t rank, const struct process_id *p, uint64_t epoch,
		     uint64_t credit, bool unused, uint64_t blob_bytes, const struct digest *d)
{
	assert_int_equal(rank, 2);
	assert_int_equal(p->uid, 7);
	assert_int_equal(epoch, 4);
	assert_int_equal(credit, 11);
	assert_true(unused);
	assert_int_equal(blob_bytes, 77);
	assert_null(d);
	((struct seen *)arg)->members++;
	return 0;
}

static int on_left(void *arg, uint32_t rank)
{
	(void)rank;
	((struct seen *)arg)->left++;
	return 0;
}

static int on_declaration_in(void *arg, const struct digest *d, uint64_t len, const char *region)
{
	struct digest want = digest_of("decl", 4);

	assert_true(digest_equal(d, &want));
	assert_int_equal(len, 1u << 28);
	assert_string_equal(region, "declaration.x.1");
	((struct seen *)arg)->annexes++;
	return 0;
}

static int on_table_in(void *arg, uint32_t slot, const struct digest *d, uint64_t len,
		       const char *region)
{
	struct digest want = digest_of("table", 5);

	assert_int_equal(slot, 3);
	assert_true(digest_equal(d, &want));
	assert_int_equal(len, 1u << 29);
	assert_string_equal(region, "table.x.3");
	((struct seen *)arg)->annexes++;
	return 0;
}

static const struct ledger_reader reader = {
	on_declaration, on_slot,  on_ready, on_assign, on_sealed,	  on_table,
	on_empty,	on_empty, on_member, on_left,  on_declaration_in, on_table_in,
};

static void make(struct truth *t, struct heap_memory *h, size_t table_len)
{
	struct job_id id = { { 1, 2, 3 } };

	*h = (struct heap_memory){ .memory.ops = &heap_ops, .fail_in = -1 };
	*t = (struct truth){ .table_len = table_len };
	t->ledger.rewrite = rewrite_truth;
	t->ledger.owner = t;
	assert_int_equal(ledger_create(&t->ledger, &h->memory, &id), 0);
}

static void test_replay(void **state)
{
	struct heap_memory h;
	struct truth t;
	struct ledger again = { 0 };
	struct seen seen = { .table_len = 300 };
	struct process_id p = { 5, 7, 9 };
	struct digest d = digest_of("decl", 4);
	struct job_id id;
	uint64_t generation;

	(void)state;
	make(&t, &h, 300);
	assert_int_equal(ledger_declaration(&t.ledger, &d, "decl", 4), 0);
	for (t.n = 0; t.n < 5; t.n++)
		assert_int_equal(write_slot(&t.ledger, t.n, 300), 0);
	assert_int_equal(ledger_member(&t.ledger, 2, &p, 4, 11, true, 77, NULL), 0);
	assert_int_equal(ledger_left(&t.ledger, 2), 0);
	assert_int_equal(ledger_empty(&t.ledger, 1), 0);
	assert_int_equal(ledger_probe(t.ledger.region, &id, &generation), LEDGER_WHOLE);
	assert_int_equal(id.b[1], 2);
	assert_int_equal(ledger_adopt(&again, &h.memory, t.ledger.region, &reader, &seen, NULL), 0);
	assert_int_equal(seen.slots, 5);
	assert_int_equal(seen.ready, 5);
	assert_int_equal(seen.assigned, 5);
	assert_int_equal(seen.sealed, 5);
	assert_int_equal(seen.tables, 5);
	assert_int_equal(seen.members, 1);
	assert_int_equal(seen.left, 1);
	assert_int_equal(seen.empty, 1);
	assert_int_equal(seen.declarations, 1);
	assert_int_equal(again.used, t.ledger.used);
	assert_int_equal(again.sequence, t.ledger.sequence);
	ledger_destroy(&t.ledger);
	assert_int_equal(h.regions, 0);
}

static int write_annexes(struct ledger *l)
{
	struct digest d = digest_of("decl", 4), t = digest_of("table", 5);
	int r = ledger_declaration_in(l, &d, 1u << 28, "declaration.x.1");

	return r < 0 ? r : ledger_table_in(l, 3, &t, 1u << 29, "table.x.3");
}

/* A ledger says in its header that its records name annexes, and is moved before the first one. */
static void test_annexes(void **state)
{
	struct heap_memory h;
	struct truth t;
	struct ledger again = { 0 };
	struct seen seen = { .table_len = 300 };
	const uint8_t *header;
	struct digest d;

	(void)state;
	make(&t, &h, 300);
	for (; t.n < 4; t.n++)
		assert_int_equal(write_slot(&t.ledger, t.n, 300), 0);
	assert_int_equal(get_le32((uint8_t *)t.ledger.region->base + 12), 0);
	assert_int_equal(t.ledger.generation, 1);
	assert_int_equal(write_annexes(&t.ledger), 0);
	assert_int_equal(t.ledger.generation, 2); /* once */
	header = t.ledger.region->base;
	assert_int_equal(get_le32(header + 12), 1);
	assert_int_equal(h.regions, 1);
	assert_int_equal(ledger_adopt(&again, &h.memory, t.ledger.region, &reader, &seen, NULL), 0);
	assert_int_equal(seen.annexes, 2);
	assert_int_equal(seen.tables, 4);
	assert_true(again.annexes);
	/* It does not read a ledger with features that it does not know. */
	put_le32((uint8_t *)t.ledger.region->base + 12, 3);
	d = digest_of(header, 48);
	memcpy((uint8_t *)t.ledger.region->base + 48, d.b, 16);
	assert_int_equal(ledger_adopt(&again, &h.memory, t.ledger.region, &reader, &seen, NULL),
			 CKPT_ECORRUPT);
	ledger_destroy(&t.ledger);
	assert_int_equal(h.regions, 0);
}

static void test_rewrite_when_full(void **state)
{
	struct heap_memory h;
	struct truth t;
	struct ledger again = { 0 };
	struct seen seen = { .table_len = 6000 };

	(void)state;
	make(&t, &h, 6000);
	t.n = 8;
	for (int round = 0; round < 20; round++)
		for (uint32_t i = 0; i < 8; i++)
			assert_int_equal(write_slot(&t.ledger, i, 6000), 0);
	assert_true(t.ledger.generation > 1);
	assert_int_equal(h.regions, 1);
	assert_int_equal(ledger_adopt(&again, &h.memory, t.ledger.region, &reader, &seen, NULL), 0);
	assert_true(seen.slots >= 8);
	ledger_destroy(&t.ledger);
}

static int begin_move(struct truth *t, struct heap_memory *h, uint64_t size, struct region **ret)
{
	char name[REGION_NAME_MAX + 1];
	uint64_t generation;

	ledger_next_name(&t->ledger, name, sizeof(name), &generation);
	assert_int_equal(heap_create(&h->memory, name, size, ret), 0);
	return ledger_move_begin(&t->ledger, *ret, generation);
}

static uint64_t thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The largest that there may be is moved in slices, and what comes in between is in both: whichever
 * counts says it. */
static void test_move_in_slices(void **state)
{
	struct heap_memory h;
	static struct truth t;
	struct ledger again = {0};
	struct seen before = {.table_len = 300}, after = {.table_len = 300};
	struct region *region, *old = NULL;
	uint64_t longest = 0, all = 0, slices = 0, took, size;
	int r;

	(void)state;
	make(&t, &h, 300);
	for (; t.n < SLOTS_MAX; t.n++)
		assert_int_equal(write_slot(&t.ledger, t.n, 300), 0);
	size = ledger_size(ledger_live(&t.ledger), 4096);
	assert_int_equal(begin_move(&t, &h, size, &region), 0);
	/* A worker fills its pages. */
	memset((uint8_t *)region->base + 72, 0, region->size - 72);
	do {
		assert_ptr_not_equal(t.ledger.region, region);
		assert_int_equal(ledger_left(&t.ledger, 2), 0);
		took = thread_ns();
		r = ledger_move_slice(&t.ledger, &old);
		took = thread_ns() - took;
		longest = took > longest ? took : longest;
		all += took;
		slices++;
	} while (r == 1);
	print_message("%d slots: %llu slices, %llu us, the longest %llu us\n", SLOTS_MAX,
		      (unsigned long long)slices, (unsigned long long)(all / 1000),
		      (unsigned long long)(longest / 1000));
	assert_int_equal(r, 0);
	assert_true(slices > 10);
	assert_ptr_equal(t.ledger.region, region);
	assert_null(t.ledger.next);
	assert_int_equal(ledger_adopt(&again, &h.memory, old, &reader, &before, NULL), 0);
	assert_int_equal(ledger_adopt(&again, &h.memory, region, &reader, &after, NULL), 0);
	assert_int_equal(after.slots, SLOTS_MAX);
	assert_int_equal(after.tables, SLOTS_MAX);
	assert_int_equal(after.left, slices);
	assert_int_equal(before.left, slices);
	heap_destroy(&h.memory, old);
	ledger_destroy(&t.ledger);
	assert_int_equal(h.regions, 0);
}

/* Until it is over the old one counts. Where that has no room any more the rest is done at once,
 * and a next one that is too small is given up. */
static void test_move_cut_short(void **state)
{
	struct heap_memory h;
	static struct truth t;
	struct region *region, *old = NULL;
	struct job_id id;
	uint64_t generation;

	(void)state;
	make(&t, &h, 300);
	t.ledger.slice_cost = 1;
	for (t.n = 0; t.n < 20; t.n++)
		assert_int_equal(write_slot(&t.ledger, t.n, 300), 0);
	assert_int_equal(begin_move(&t, &h, 1u << 20, &region), 0);
	assert_int_equal(ledger_move_slice(&t.ledger, &old), 1);
	assert_int_equal(ledger_probe(region, &id, &generation), LEDGER_NONE);
	assert_int_equal(ledger_probe(t.ledger.region, &id, &generation), LEDGER_WHOLE);
	while (t.ledger.region != region)
		assert_int_equal(ledger_assign(&t.ledger, 1, 6), 0);
	assert_int_equal(h.regions, 1);
	assert_int_equal(ledger_probe(region, &id, &generation), LEDGER_WHOLE);

	assert_int_equal(begin_move(&t, &h, 64u << 10, &region), 0);
	assert_int_equal(ledger_move_slice(&t.ledger, &old), 1);
	for (int i = 0; i < 2000; i++)
		assert_int_equal(ledger_assign(&t.ledger, 1, 6), 0);
	assert_int_equal(ledger_move_slice(&t.ledger, &old), -ENOSPC);
	heap_destroy(&h.memory, ledger_move_give_up(&t.ledger));
	assert_int_equal(ledger_assign(&t.ledger, 1, 6), 0);
	ledger_destroy(&t.ledger);
	assert_int_equal(h.regions, 0);
}

/* What is not true any more takes no memory from the next rewrite on. */
static void test_rewrite_shrinks(void **state)
{
	struct heap_memory h;
	struct truth t;
	uint64_t large;

	(void)state;
	make(&t, &h, 8000);
	t.n = 100;
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < t.n; i++)
			assert_int_equal(write_slot(&t.ledger, i, 8000), 0);
	large = t.ledger.region->size;
	assert_true(large > 800000);
	t.n = 1;
	for (int round = 0; round < 400; round++)
		assert_int_equal(write_slot(&t.ledger, 0, 8000), 0);
	assert_true(t.ledger.region->size < large / 5);
	assert_int_equal(h.regions, 1);
	ledger_destroy(&t.ledger);
}

static void test_rewrite_fails_cleanly(void **state)
{
	struct heap_memory h;
	struct truth t;
	uint64_t used, generation;
	int r = 0;

	(void)state;
	make(&t, &h, 6000);
	t.n = 4;
	h.fail_in = 0;
	while (r == 0) {
		used = t.ledger.used;
		generation = t.ledger.generation;
		r = ledger_assign(&t.ledger, 1, 6);
	}
	assert_int_equal(r, -ENOMEM);
	assert_int_equal(t.ledger.used, used);
	assert_int_equal(t.ledger.generation, generation);
	h.fail_in = -1;
	assert_int_equal(ledger_assign(&t.ledger, 1, 6), 0);
	assert_true(t.ledger.generation > generation);
	ledger_destroy(&t.ledger);
}

/* Nothing is read of it, nor written: whoever asked is told. */
static void test_too_large_for_a_record(void **state)
{
	struct digest d = { { 9 } };
	struct heap_memory h;
	struct truth t;
	uint64_t used;

	(void)state;
	make(&t, &h, 100);
	used = t.ledger.used;
	assert_int_equal(ledger_declaration(&t.ledger, &d, &d, LEDGER_PAYLOAD_MAX - 8), -E2BIG);
	assert_int_equal(ledger_table(&t.ledger, 1, &d, LEDGER_PAYLOAD_MAX - 8), -E2BIG);
	assert_int_equal(ledger_table(&t.ledger, 1, &d, SIZE_MAX / 2), -E2BIG);
	assert_int_equal(t.ledger.used, used);
	assert_int_equal(ledger_table(&t.ledger, 1, &d, sizeof(d)), 0);
	ledger_destroy(&t.ledger);
	assert_int_equal(h.regions, 0);
}

/* Every byte changed, and every cut: a prefix is replayed, nothing that was not written. */
static void test_torn_anywhere(void **state)
{
	struct heap_memory h;
	struct truth t;
	uint8_t *base;
	uint32_t changed = 0;

	(void)state;
	make(&t, &h, 100);
	for (t.n = 0; t.n < 3; t.n++)
		assert_int_equal(write_slot(&t.ledger, t.n, 100), 0);
	base = t.ledger.region->base;
	for (uint64_t i = 0; i < t.ledger.used; i++) {
		struct ledger again = { 0 };
		struct seen seen = { .table_len = 100 };
		uint8_t was = base[i];
		int r;

		base[i] ^= 0x41;
		r = ledger_adopt(&again, &h.memory, t.ledger.region, &reader, &seen, NULL);
		if (r == 0 && again.used < t.ledger.used)
			changed++;
		else if (r == 0) /* padding between records is not covered, and holds nothing */
			assert_int_equal(seen.tables, 3);
		base[i] = was;
	}
	assert_true(changed > t.ledger.used / 2);
	ledger_destroy(&t.ledger);
}

#ifdef CKPT_FAULTS
static uint32_t left_while_moved(void)
{
	struct heap_memory h;
	static struct truth t;
	struct ledger again = {0};
	struct seen seen = {.table_len = 300};
	struct region *region, *old = NULL;

	make(&t, &h, 300);
	t.ledger.slice_cost = 1;
	for (; t.n < 2; t.n++)
		assert_int_equal(write_slot(&t.ledger, t.n, 300), 0);
	assert_int_equal(begin_move(&t, &h, 1u << 20, &region), 0);
	assert_int_equal(ledger_move_slice(&t.ledger, &old), 1);
	assert_int_equal(ledger_left(&t.ledger, 2), 0);
	while (ledger_move_slice(&t.ledger, &old) == 1)
		;
	assert_int_equal(ledger_adopt(&again, &h.memory, region, &reader, &seen, NULL), 0);
	heap_destroy(&h.memory, old);
	ledger_destroy(&t.ledger);
	return seen.left;
}

static void test_planted_bug_of_the_move(void **state)
{
	(void)state;
	assert_int_equal(left_while_moved(), 1);
	bug_set(BUG_LEDGER_MOVE_MISSES, true);
	assert_int_equal(left_while_moved(), 0);
	bug_set(BUG_LEDGER_MOVE_MISSES, false);
}

static void test_planted_bug_is_found(void **state)
{
	struct heap_memory h;
	struct truth t;
	struct ledger again = { 0 };
	struct seen seen = { .table_len = 100 };

	(void)state;
	make(&t, &h, 100);
	assert_int_equal(ledger_left(&t.ledger, 7), 0);
	((uint8_t *)t.ledger.region->base)[t.ledger.used - 8] ^=
		1; /* the rank of the last record */
	bug_set(BUG_LEDGER_TRUSTS_TORN_RECORD, true);
	assert_int_equal(ledger_adopt(&again, &h.memory, t.ledger.region, &reader, &seen, NULL), 0);
	assert_int_equal(seen.left, 1); /* believed: the bug does what it says */
	bug_set(BUG_LEDGER_TRUSTS_TORN_RECORD, false);
	seen.left = 0;
	assert_int_equal(ledger_adopt(&again, &h.memory, t.ledger.region, &reader, &seen, NULL), 0);
	assert_int_equal(seen.left, 0);
	ledger_destroy(&t.ledger);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_annexes),
		cmocka_unit_test(test_rewrite_when_full),
		cmocka_unit_test(test_move_in_slices),
		cmocka_unit_test(test_move_cut_short),
		cmocka_unit_test(test_rewrite_shrinks),
		cmocka_unit_test(test_rewrite_fails_cleanly),
		cmocka_unit_test(test_too_large_for_a_record),
		cmocka_unit_test(test_torn_anywhere),
#ifdef CKPT_FAULTS
		cmocka_unit_test(test_planted_bug_of_the_move),
		cmocka_unit_test(test_planted_bug_is_found),
#endif
	};

	return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
