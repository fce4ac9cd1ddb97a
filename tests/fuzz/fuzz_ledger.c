/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ledger as a crash of any kind may leave it: the bytes as they are behind a good header, and a
 * script of records, each damaged and given a digest that matches. What is replayed is a prefix,
 * nothing outside the region is read, and a ledger that was taken over can be written on.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/ledger.h"
#include "codec/digest.h"
#include "tests/fuzz/script.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { REGION = 64 << 10, HEADER = 64, HEAD = 32 };

static int heap_create(struct memory *m, const char *name, uint64_t size, struct region **ret)
{
	struct region *r = alloc_zero(sizeof(*r));

	(void)m;
	assert(r);
	r->base = alloc_zero(size);
	assert(r->base);
	r->size = size;
	memcpy(r->name, name, strlen(name) + 1);
	*ret = r;
	return 0;
}

static void heap_destroy(struct memory *m, struct region *r)
{
	(void)m;
	alloc_free(r->base);
	alloc_free(r);
}

static const struct memory_ops heap_ops = {.create = heap_create, .destroy = heap_destroy};

/* ---- What a replay says: everything is looked at ---- */

struct seen {
	unsigned n;
	uint8_t sum; /* so that every byte is read */
};

static void look(struct seen *s, const void *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		s->sum ^= ((const uint8_t *)p)[i];
}

static int on_declaration(void *arg, const struct digest *d, const void *bytes, size_t len)
{
	struct seen *s = arg;

	look(s, d, sizeof(*d));
	look(s, bytes, len);
	s->n++;
	return 0;
}

static int on_slot(void *arg, uint32_t slot, uint32_t rank, const char *region,
		   const struct process_id *p)
{
	struct seen *s = arg;

	(void)slot;
	(void)rank;
	assert(strlen(region) <= REGION_NAME_MAX);
	look(s, p, sizeof(*p));
	s->n++;
	return 0;
}

static int on_number(void *arg, uint32_t slot)
{
	(void)slot;
	((struct seen *)arg)->n++;
	return 0;
}

static int on_assign(void *arg, uint32_t slot, uint64_t credit)
{
	(void)credit;
	return on_number(arg, slot);
}

static int on_sealed(void *arg, const struct ledger_seal *l)
{
	struct seen *s = arg;

	for (uint32_t i = 0; i < l->n_blobs; i++)
		look(s, l->blobs[i].name, l->blobs[i].name_len);
	s->n++;
	return 0;
}

static int on_table(void *arg, uint32_t slot, const void *table, size_t len)
{
	look(arg, table, len);
	return on_number(arg, slot);
}

static int on_member(void *arg, uint32_t rank, const struct process_id *p, uint64_t epoch,
		     uint64_t credit, bool unused, uint64_t blob_bytes, const struct digest *d)
{
	(void)epoch;
	(void)credit;
	(void)unused;
	(void)blob_bytes;
	look(arg, p, sizeof(*p));
	if (d)
		look(arg, d, sizeof(*d));
	return on_number(arg, rank);
}

static int on_declaration_in(void *arg, const struct digest *d, uint64_t len, const char *region)
{
	(void)len;
	look(arg, d, sizeof(*d));
	look(arg, region, strlen(region));
	return 0;
}

static int on_table_in(void *arg, uint32_t slot, const struct digest *d, uint64_t len,
		       const char *region)
{
	(void)slot;
	return on_declaration_in(arg, d, len, region);
}

static const struct ledger_reader reader = {
	on_declaration, on_slot,   on_number, on_assign, on_sealed,	    on_table,
	on_number,      on_number, on_member, on_number, on_declaration_in, on_table_in,
};

/* ---- The two ways ---- */

static int rewrite_nothing(void *owner, struct ledger *into)
{
	(void)owner;
	(void)into;
	return 0;
}

static void adopt(struct ledger *l)
{
	struct seen before = {0}, after = {0};
	struct region *region = l->region;
	struct memory *memory = l->memory;
	struct job_id job;
	struct err e = {0};
	uint64_t generation;
	int r;

	ignore_result(ledger_probe(region, &job, &generation) /* either will do */);
	r = ledger_adopt(l, memory, region, &reader, &before, &e);
	assert(r == 0 || (r < 0 && e.text[0]));
	l->rewrite = rewrite_nothing;
	generation = l->generation;
	if (r == 0 && ledger_ready(l, 7) == 0 && l->generation == generation) {
		r = ledger_adopt(l, memory, l->region, &reader, &after, &e);
		assert(r == 0 && after.n == before.n + 1);
	}
	ledger_destroy(l);
}

static void as_it_is(struct memory *m, const uint8_t *data, size_t size)
{
	static const struct job_id job = {{1}};
	struct ledger l = {0};

	if (ledger_create(&l, m, &job) < 0)
		return;
	if (size > REGION - HEADER)
		size = REGION - HEADER;
	memcpy((uint8_t *)l.region->base + HEADER, data, size);
	adopt(&l);
}

static int write_line(struct ledger *l, const struct script_line *s)
{
	struct process_id p = {.pid = 100, .uid = 7, .start = 9};
	struct blob_entry blobs[2] = {{"rng", 3, 4096, 10}, {"c", 1, 4160, 8}};
	struct digest d = digest_of("d", 1);
	uint32_t slot = (uint32_t)script_number(s, 0, 0);
	uint64_t n = script_number(s, 1, 1);

	if (strcmp(s->word, "declaration") == 0)
		return ledger_declaration(l, &d, "bytes of it", 11);
	if (strcmp(s->word, "declared_in") == 0)
		return ledger_declaration_in(l, &d, n, "declaration.x.1");
	if (strcmp(s->word, "table_in") == 0)
		return ledger_table_in(l, slot, &d, n, "table.x.1");
	if (strcmp(s->word, "slot") == 0)
		return ledger_slot(l, slot, (uint32_t)n, "slot.x.0", &p);
	if (strcmp(s->word, "ready") == 0)
		return ledger_ready(l, slot);
	if (strcmp(s->word, "assign") == 0)
		return ledger_assign(l, slot, n);
	if (strcmp(s->word, "table") == 0)
		return ledger_table(l, slot, "a table", 7);
	if (strcmp(s->word, "empty") == 0)
		return ledger_empty(l, slot);
	if (strcmp(s->word, "gone") == 0)
		return ledger_gone(l, slot);
	if (strcmp(s->word, "left") == 0)
		return ledger_left(l, slot);
	if (strcmp(s->word, "member") == 0)
		return ledger_member(l, slot, &p, 1, n, n % 2, 4096, n % 3 ? &d : NULL);
	if (strcmp(s->word, "sealed") == 0) {
		struct ledger_seal seal = {.slot = slot,
					   .world = 4,
					   .step = n,
					   .epoch = 3,
					   .image_len = 5000,
					   .declaration = d,
					   .blobs = blobs,
					   .n_blobs = (uint32_t)(n % 3)};
		return ledger_sealed(l, &seal);
	}
	return -EINVAL;
}

/* Damages the record at `at`, whose head stays what a reader accepts. */
static void damage(struct ledger *l, uint64_t at, const struct script_line *s)
{
	uint8_t *p = (uint8_t *)l->region->base + at;
	uint32_t len = get_le32(p);
	struct digest_stream stream;
	struct digest d;

	script_patch(s, p + HEAD, len);
	if (s->patch_len % 3) /* what is left of the patch: the type */
		put_le32(p + 4, s->patch[s->patch_len - 1] % 16);
	digest_begin(&stream);
	digest_update(&stream, p, 16);
	digest_update(&stream, p + HEAD, len);
	d = digest_end(&stream);
	memcpy(p + 16, d.b, sizeof(d.b));
}

static void as_script(struct memory *m, const uint8_t *data, size_t size)
{
	static const struct job_id job = {{2}};
	struct script script = {data, data + size};
	struct ledger l = {0};
	struct script_line line;

	if (ledger_create(&l, m, &job) < 0)
		return;
	l.rewrite = rewrite_nothing;
	while (l.used < REGION / 2 && script_next(&script, &line)) {
		uint64_t at = l.used;

		if (write_line(&l, &line) == 0 && line.patch_len)
			damage(&l, at, &line);
	}
	adopt(&l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct memory m = {&heap_ops};

	as_it_is(&m, data, size);
	as_script(&m, data, size);
	return 0;
}
