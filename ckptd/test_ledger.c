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

/* ---- The truth that is rewritten: slots 0..n with a table each ---- */

struct truth {
	struct ledger ledger;
	uint32_t n;
	size_t table_len;
};

static void table_of(uint32_t slot, uint8_t *buf, size_t len)
{
	test_fill(buf, len, slot + 1);
}

static int write_slot(struct ledger *l, uint32_t slot, size_t table_len)
{
	struct process_id p = { .pid = 100 + (int)slot, .uid = 7, .start = 9 };
	struct ledger_blob blobs[2] = {{(char *)"rng", 4096, 10}, {(char *)"cursor", 4160, 8}};
	struct ledger_seal seal = { .slot = slot, .world = 4, .step = 10 + slot, .epoch = 3,
				    .image_len = 5000, .blobs = blobs, .n_blobs = 2 };
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

	for (uint32_t i = 0; i < t->n && r == 0; i++)
		r = write_slot(into, i, t->table_len);
	return r;
}

/* ---- What a replay found ---- */

struct seen {
	uint32_t slots, ready, assigned, sealed, tables, empty, members, left, declarations;
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
	assert_string_equal(s->blobs[1].name, "cursor");
	assert_int_equal(s->blobs[1].image_offset, 4160);
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

static const struct ledger_reader reader = {
	on_declaration, on_slot,  on_ready, on_assign, on_sealed,
	on_table,	on_empty, on_empty, on_member, on_left,
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
	assert_true(ledger_probe(t.ledger.region, &id, &generation));
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
		cmocka_unit_test(test_rewrite_when_full),
		cmocka_unit_test(test_rewrite_shrinks),
		cmocka_unit_test(test_rewrite_fails_cleanly),
		cmocka_unit_test(test_too_large_for_a_record),
		cmocka_unit_test(test_torn_anywhere),
#ifdef CKPT_FAULTS
		cmocka_unit_test(test_planted_bug_is_found),
#endif
	};

	return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
