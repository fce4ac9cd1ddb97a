/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Region: header (64 bytes: magic, version, incompat features, job, generation, id of the data
 * folder, digest), then
 * records at multiples of 8: length (u32, of the payload), type (u32), sequence (u64), digest of
 * those 16 bytes and the payload (16), payload. Length 0 ends it. A record is written payload
 * first, its length last, so that a crash in between leaves a zero length or a wrong digest.
 */
#include <config.h>

#include "ckptd/ledger.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "codec/digest.h"

#define LEDGER_MAGIC 0x7265676465636b63u
#define LEDGER_VERSION 1u
#define HEADER_BYTES 64u
#define RECORD_HEAD 32u
#define LEDGER_BYTES_MIN (64u << 10)
/* A slice, in bytes copied and digested: 0.3 ms (see ckptd/test_ledger). RECORD_COST: the fixed
 * cost of a record, in the same unit; BLOB_COST: of a blob. */
#define SLICE_COST  (512u << 10)
#define RECORD_COST 512u
#define BLOB_COST   192u

enum ledger_type {
	L_DECLARATION = 1,
	L_SLOT,
	L_READY,
	L_ASSIGN,
	L_SEALED,
	L_TABLE,
	L_EMPTY,
	L_GONE,
	L_MEMBER,
	L_LEFT,
	L_WHOLE, /* the rewrite that made this region is complete */
	L_DECLARATION_IN, /* these two only with FEATURE_ANNEXES */
	L_TABLE_IN,
};

#define FEATURE_ANNEXES 1u
#define FEATURES_KNOWN  FEATURE_ANNEXES

void ledger_next_name(struct ledger *l, char *buf, size_t size, uint64_t *ret_generation)
{
	char hex[ID_TEXT_MAX];

	l->handed = max_u64(l->handed, l->generation) + 1;
	*ret_generation = l->handed;
	hex_format(hex, l->job.b, sizeof(l->job.b));
	snprintf(buf, size, "ledger.%s.%llu", hex, (unsigned long long)l->handed);
}

/* An empty ledger in a region that was made for it. */
static void begin(struct ledger *l, struct region *region, uint64_t generation)
{
	uint8_t *p = region->base;
	struct digest d;

	assert(region->size >= LEDGER_BYTES_MIN);
	l->generation = generation;
	put_le32(p + 8, LEDGER_VERSION);
	put_le32(p + 12, l->annexes_wanted ? FEATURE_ANNEXES : 0);
	memcpy(p + 16, l->job.b, 16);
	put_le64(p + 32, l->generation);
	put_le64(p + 40, l->folder_id);
	put_le64(p, LEDGER_MAGIC);
	d = digest_of(p, 48);
	memcpy(p + 48, d.b, 16);
	l->region = region;
	l->annexes = l->annexes_wanted;
	l->used = HEADER_BYTES;
	l->sequence = 1;
}

/* A payload: what was put together, and what is only pointed to because it is long. */
struct payload {
	struct writer w;
	const void *tail;
	size_t tail_len;
};

static size_t payload_len(const struct payload *p)
{
	return p->w.len + p->tail_len;
}

static struct digest record_digest(const uint8_t *head, const struct payload *payload)
{
	struct digest_stream s;

	digest_begin(&s);
	digest_update(&s, head, 16);
	if (payload->w.len)
		digest_update(&s, payload->w.buf, payload->w.len);
	if (payload->tail_len)
		digest_update(&s, payload->tail, payload->tail_len);
	return digest_end(&s);
}

static uint64_t record_bytes(size_t len)
{
	return RECORD_HEAD + round_up(len, 8);
}

uint64_t ledger_room(const struct ledger *l)
{
	/* The 8 bytes after the last record must be there to hold the zero that ends the ledger. */
	return l->region->size - l->used - 8;
}

static void put_record(struct ledger *l, uint32_t type, const struct payload *payload)
{
	uint8_t *p = (uint8_t *)l->region->base + l->used;
	size_t len = payload_len(payload);
	uint8_t head[16];
	struct digest d;

	assert(record_bytes(len) <= ledger_room(l));
	assert(len > 0 && len <= LEDGER_PAYLOAD_MAX);
	put_le32(head, (uint32_t)len);
	put_le32(head + 4, type);
	put_le64(head + 8, l->sequence);
	d = record_digest(head, payload);
	memcpy(p + 4, head + 4, 12);
	memcpy(p + 16, d.b, 16);
	if (payload->w.len)
		memcpy(p + RECORD_HEAD, payload->w.buf, payload->w.len);
	if (payload->tail_len)
		memcpy(p + RECORD_HEAD + payload->w.len, payload->tail, payload->tail_len);
	put_le32(p + record_bytes(len), 0);
	atomic_thread_fence(memory_order_release);
	if (FAULT(LEDGER_RECORD))
		return; /* as if killed before the length: the record is not there */
	put_le32(p, (uint32_t)len);
	l->used += record_bytes(len);
	l->sequence++;
	l->slice -= min_u64(l->slice, RECORD_COST + len);
}

static void put_whole(struct ledger *l)
{
	uint8_t whole = 1;
	struct payload p = { .tail = &whole, .tail_len = 1 };

	put_record(l, L_WHOLE, &p);
}

uint64_t ledger_size(uint64_t live, uint64_t more)
{
	uint64_t size;

	if (!size_add(live, more, &size) || size > UINT64_MAX / 4)
		return UINT64_MAX / 2;
	return LEDGER_BYTES_MIN + round_up(2 * size, 4096);
}

uint64_t ledger_live(const struct ledger *l)
{
	struct ledger m = *l;

	m.measuring = true;
	m.used = HEADER_BYTES + record_bytes(1);
	return l->rewrite(l->owner, &m) < 0 ? UINT64_MAX : m.used;
}

static bool names_annex(uint32_t type)
{
	return type == L_DECLARATION_IN || type == L_TABLE_IN;
}

bool ledger_due(const struct ledger *into, uint64_t *mark)
{
	if (into->measuring)
		return true;
	if (*mark == into->generation)
		return false;
	*mark = into->generation;
	return true;
}

bool ledger_slice_over(const struct ledger *into)
{
	return !into->measuring && into->slice == 0;
}

/* The next region as a ledger of its own, and back. */
static struct ledger next_of(const struct ledger *l)
{
	struct ledger n = *l;

	n.region = l->next;
	n.generation = l->next_generation;
	n.used = l->next_used;
	n.sequence = l->next_sequence;
	n.annexes = get_le32((uint8_t *)l->next->base + 12) & FEATURE_ANNEXES;
	n.next = NULL;
	return n;
}

static void note_next(struct ledger *l, const struct ledger *n)
{
	l->next_used = n->used;
	l->next_sequence = n->sequence;
}

int ledger_move_begin(struct ledger *l, struct region *region, uint64_t generation)
{
	struct ledger fresh = *l;

	assert(!l->rewriting && !l->next);
	if (generation <= l->generation)
		return CKPT_ESTALE;
	begin(&fresh, region, generation);
	l->next = region;
	l->next_generation = generation;
	l->next_full = false;
	note_next(l, &fresh);
	return 0;
}

struct region *ledger_move_give_up(struct ledger *l)
{
	struct region *r = l->next;

	l->next = NULL;
	return r;
}

/* Writes the last record of the next region, which counts from then on. */
static int moved(struct ledger *l, struct ledger *fresh, struct region **ret_old)
{
	if (record_bytes(1) > ledger_room(fresh))
		return -ENOSPC;
	if (l->region && FAULT(LEDGER_REWRITE))
		return -ENOMEM;
	put_whole(fresh);
	*ret_old = l->region;
	fresh->handed = l->handed;
	fresh->annexes_wanted = l->annexes_wanted;
	fresh->loose = fresh->rewriting = fresh->next_full = false;
	fresh->next = NULL;
	*l = *fresh;
	return 0;
}

static int slice(struct ledger *l, uint64_t cost, struct region **ret_old)
{
	struct ledger fresh = next_of(l);
	int r;

	if (l->next_full)
		return -ENOSPC;
	fresh.rewriting = true;
	fresh.slice = cost;
	r = l->region ? l->rewrite(l->owner, &fresh) : 0;
	note_next(l, &fresh);
	return r == 0 ? moved(l, &fresh, ret_old) : r;
}

int ledger_move_slice(struct ledger *l, struct region **ret_old)
{
	return slice(l, l->slice_cost ? l->slice_cost : SLICE_COST, ret_old);
}

int ledger_move(struct ledger *l, struct region *region, uint64_t generation,
		struct region **ret_old)
{
	int r = ledger_move_begin(l, region, generation);

	if (r == 0)
		r = slice(l, UINT64_MAX, ret_old);
	if (r < 0)
		l->next = NULL;
	return r;
}

/* No room in the old region before the slices are over: the rest of them now. */
static void move_rest(struct ledger *l)
{
	struct region *old = NULL;

	if (l->next && slice(l, UINT64_MAX, &old) < 0)
		old = ledger_move_give_up(l);
	if (old)
		l->memory->ops->destroy(l->memory, old);
}

static void put_in_both(struct ledger *l, uint32_t type, const struct payload *p)
{
	struct ledger next;

	put_record(l, type, p);
	if (!l->next || BUG(LEDGER_MOVE_MISSES))
		return;
	next = next_of(l);
	if (record_bytes(payload_len(p)) > ledger_room(&next) ||
	    (names_annex(type) && !next.annexes)) {
		l->next_full = true;
		return;
	}
	put_record(&next, type, p);
	note_next(l, &next);
}

/* Here and now, where the owner did not see it come: waits for memory and for the fd store. */
static int rewrite(struct ledger *l, size_t need)
{
	char name[REGION_NAME_MAX + 1];
	struct region *fresh, *old = NULL;
	uint64_t generation, live = ledger_live(l);
	int r;

	if (live == UINT64_MAX)
		return -ENOMEM;
	ledger_next_name(l, name, sizeof(name), &generation);
	r = l->memory->ops->create(l->memory, name, ledger_size(live, need), &fresh);
	if (r < 0)
		return r;
	r = ledger_move(l, fresh, generation, &old);
	l->memory->ops->destroy(l->memory, r < 0 ? fresh : old);
	return r;
}

static bool lacks(const struct ledger *l, uint32_t type, uint64_t bytes)
{
	return bytes > ledger_room(l) || (names_annex(type) && !l->annexes);
}

static int make_room(struct ledger *l, uint32_t type, uint64_t bytes)
{
	move_rest(l);
	return lacks(l, type, bytes) ? rewrite(l, bytes) : 0;
}

/* Frees what the payload put together. */
static int append(struct ledger *l, uint32_t type, struct payload *p)
{
	uint64_t bytes = record_bytes(payload_len(p));
	int r = 0;

	assert(l->region);
	l->annexes_wanted = l->annexes_wanted || names_annex(type);
	if (p->w.bad)
		r = -ENOMEM;
	else if (payload_len(p) > LEDGER_PAYLOAD_MAX)
		r = -E2BIG;
	else if (l->measuring)
		l->used += bytes;
	else if (lacks(l, type, bytes))
		r = l->rewriting ? -ENOSPC : make_room(l, type, bytes);
	if (r == 0 && !l->measuring)
		put_in_both(l, type, p);
	writer_free(&p->w);
	return r;
}

int ledger_create(struct ledger *l, struct memory *m, const struct job_id *job)
{
	char name[REGION_NAME_MAX + 1];
	struct region *region, *none;
	uint64_t generation;
	int r;

	l->memory = m;
	l->job = *job;
	ledger_next_name(l, name, sizeof(name), &generation);
	r = m->ops->create(m, name, ledger_size(0, 0), &region);
	return r < 0 ? r : ledger_move(l, region, generation, &none);
}

struct region *ledger_detach(struct ledger *l)
{
	struct region *r = l->region;

	l->region = NULL;
	l->annexes = l->annexes_wanted = false;
	return r;
}

void ledger_destroy(struct ledger *l)
{
	if (l->region)
		l->memory->ops->destroy(l->memory, l->region);
	l->region = NULL;
}

/* ---- Writing ---- */

static void write_process(struct writer *w, const struct process_id *p)
{
	write_u32(w, (uint32_t)p->pid);
	write_u32(w, p->uid);
	write_u64(w, p->start);
}

int ledger_declaration(struct ledger *l, const struct digest *d, const void *bytes, size_t len)
{
	struct payload out = { .tail = bytes, .tail_len = len };

	write_bytes(&out.w, d->b, 16);
	write_u64(&out.w, len);
	return append(l, L_DECLARATION, &out);
}

/* A fault in the window between the annex and its record. */
static bool annex_lost(const struct ledger *l)
{
	return !l->rewriting && !l->measuring && FAULT(LEDGER_ANNEX);
}

int ledger_declaration_in(struct ledger *l, const struct digest *d, uint64_t len,
			  const char *region)
{
	struct payload out = { 0 };

	if (annex_lost(l))
		return -ENOMEM;
	write_bytes(&out.w, d->b, 16);
	write_u64(&out.w, len);
	write_str(&out.w, region, strlen(region));
	return append(l, L_DECLARATION_IN, &out);
}

int ledger_table_in(struct ledger *l, uint32_t slot, const struct digest *d, uint64_t len,
		    const char *region)
{
	struct payload out = { 0 };

	if (annex_lost(l))
		return -ENOMEM;
	write_u32(&out.w, slot);
	write_bytes(&out.w, d->b, 16);
	write_u64(&out.w, len);
	write_str(&out.w, region, strlen(region));
	return append(l, L_TABLE_IN, &out);
}

int ledger_slot(struct ledger *l, uint32_t slot, uint32_t rank, const char *region,
		const struct process_id *p)
{
	struct payload out = { 0 };

	write_u32(&out.w, slot);
	write_u32(&out.w, rank);
	write_process(&out.w, p);
	write_str(&out.w, region, strlen(region));
	return append(l, L_SLOT, &out);
}

static int append_slot(struct ledger *l, uint32_t type, uint32_t slot)
{
	struct payload out = { 0 };

	write_u32(&out.w, slot);
	return append(l, type, &out);
}

int ledger_ready(struct ledger *l, uint32_t slot)
{
	return append_slot(l, L_READY, slot);
}

int ledger_empty(struct ledger *l, uint32_t slot)
{
	return append_slot(l, L_EMPTY, slot);
}

int ledger_gone(struct ledger *l, uint32_t slot)
{
	l->loose = true;
	return append_slot(l, L_GONE, slot);
}

int ledger_left(struct ledger *l, uint32_t rank)
{
	l->loose = true;
	return append_slot(l, L_LEFT, rank);
}

int ledger_assign(struct ledger *l, uint32_t slot, uint64_t credit)
{
	struct payload out = { 0 };

	write_u32(&out.w, slot);
	write_u64(&out.w, credit);
	return append(l, L_ASSIGN, &out);
}

int ledger_sealed(struct ledger *l, const struct ledger_seal *s)
{
	struct payload out = { 0 };

	write_u32(&out.w, s->slot);
	write_u32(&out.w, s->try_number);
	write_u32(&out.w, s->world);
	write_u32(&out.w, s->n_blobs);
	write_u64(&out.w, s->step);
	write_u64(&out.w, s->epoch);
	write_u64(&out.w, s->image_len);
	write_bytes(&out.w, s->attempt.b, 16);
	write_bytes(&out.w, s->declaration.b, 16);
	for (uint32_t i = 0; i < s->n_blobs; i++) {
		write_str(&out.w, s->blobs[i].name, s->blobs[i].name_len);
		write_u64(&out.w, s->blobs[i].image_offset);
		write_u64(&out.w, s->blobs[i].bytes);
	}
	write_u8(&out.w, (uint8_t)s->origin.kind);
	write_u64(&out.w, s->origin.step);
	l->slice -= min_u64(l->slice, BLOB_COST * (uint64_t)s->n_blobs);
	return append(l, L_SEALED, &out);
}

int ledger_table(struct ledger *l, uint32_t slot, const void *table, size_t len)
{
	struct payload out = { .tail = table, .tail_len = len };

	write_u32(&out.w, slot);
	write_u64(&out.w, len);
	return append(l, L_TABLE, &out);
}

int ledger_member(struct ledger *l, uint32_t rank, const struct process_id *p, uint64_t epoch,
		  uint64_t credit, bool credit_unused, uint64_t blob_bytes,
		  const struct digest *declaration)
{
	static const struct digest none;
	struct payload out = { 0 };

	write_u32(&out.w, rank);
	write_process(&out.w, p);
	write_u64(&out.w, epoch);
	write_u64(&out.w, credit);
	write_u64(&out.w, blob_bytes);
	write_u8(&out.w, credit_unused);
	write_u8(&out.w, declaration != NULL);
	write_bytes(&out.w, (declaration ? declaration : &none)->b, 16);
	return append(l, L_MEMBER, &out);
}

/* ---- Reading ---- */

/* For any version: all have this header. */
static bool header_good(const struct region *r)
{
	const uint8_t *p = r->base;
	struct digest d;

	if (r->size < HEADER_BYTES + 8 || get_le64(p) != LEDGER_MAGIC)
		return false;
	if (get_le64(p + 32) > UINT64_MAX / 2) /* there must be a next generation */
		return false;
	d = digest_of(p, 48);
	return memcmp(d.b, p + 48, 16) == 0;
}

static bool header_known(const struct region *r)
{
	const uint8_t *p = r->base;

	return get_le32(p + 8) == LEDGER_VERSION && !(get_le32(p + 12) & ~FEATURES_KNOWN);
}

/* The record at `at`: its payload and length, or NULL where the ledger ends. */
static const uint8_t *record_at(const struct region *r, uint64_t at, uint64_t sequence,
				uint32_t *ret_type, uint32_t *ret_len)
{
	const uint8_t *p = (const uint8_t *)r->base + at;
	struct payload payload;
	uint32_t len;
	struct digest d;

	if (at + RECORD_HEAD + 8 > r->size)
		return NULL;
	len = get_le32(p);
	if (len == 0 || len > LEDGER_PAYLOAD_MAX ||
	    at + record_bytes(len) + 8 > r->size || get_le64(p + 8) != sequence)
		return NULL;
	payload = (struct payload){ .tail = p + RECORD_HEAD, .tail_len = len };
	d = record_digest(p, &payload);
	if (memcmp(d.b, p + 16, 16) != 0 && !BUG(LEDGER_TRUSTS_TORN_RECORD))
		return NULL;
	*ret_type = get_le32(p + 4);
	*ret_len = len;
	return p + RECORD_HEAD;
}

enum ledger_kind ledger_probe(const struct region *r, struct job_id *ret_job,
			      uint64_t *ret_generation)
{
	const uint8_t *p = r->base;
	uint64_t at = HEADER_BYTES, sequence = 1;
	uint32_t type, len;

	if (!header_good(r))
		return LEDGER_NONE;
	memcpy(ret_job->b, p + 16, 16);
	*ret_generation = get_le64(p + 32);
	if (get_le32(p + 8) != LEDGER_VERSION)
		return LEDGER_FOREIGN;
	while (record_at(r, at, sequence, &type, &len)) {
		if (type == L_WHOLE)
			return header_known(r) ? LEDGER_WHOLE : LEDGER_FOREIGN;
		at += record_bytes(len);
		sequence++;
	}
	return LEDGER_NONE;
}

bool ledger_folder_id(const struct region *r, uint64_t *ret, struct job_id *ret_job)
{
	const uint8_t *p = r->base;
	uint64_t generation;

	if (strncmp(r->name, "ledger.", 7) != 0 ||
	    ledger_probe(r, ret_job, &generation) == LEDGER_NONE)
		return false;
	*ret = get_le32(p + 8) == LEDGER_VERSION ? get_le64(p + 40) : 0;
	return true;
}

void ledger_describe_foreign(const struct region *r, struct err *e)
{
	const uint8_t *p = r->base;

	err_set(e, CKPT_EVERSION,
		"its ledger is of version %" PRIu32 " with features %" PRIu32 ", this ckptd knows "
		"version %u with features up to %u",
		get_le32(p + 8), get_le32(p + 12), LEDGER_VERSION, FEATURES_KNOWN);
}

static struct process_id read_process(struct reader *r)
{
	struct process_id p;

	p.pid = (int32_t)read_u32(r);
	p.uid = read_u32(r);
	p.start = read_u64(r);
	return p;
}

static struct digest read_digest(struct reader *r)
{
	struct digest d = { 0 };
	const void *p = read_bytes(r, 16);

	if (p)
		memcpy(d.b, p, 16);
	return d;
}

static int replay_sealed(struct reader *r, const struct ledger_reader *reader, void *arg)
{
	struct ledger_seal s = { .slot = read_u32(r), .try_number = read_u32(r) };
	struct blob_entry *blobs CLEANUP_FREE = NULL;
	struct digest attempt;
	uint8_t kind;

	s.world = read_u32(r);
	s.n_blobs = read_u32(r);
	s.step = read_u64(r);
	s.epoch = read_u64(r);
	s.image_len = read_u64(r);
	attempt = read_digest(r);
	memcpy(s.attempt.b, attempt.b, 16);
	s.declaration = read_digest(r);
	if (r->bad || s.n_blobs > reader_left(r) / 18)
		return CKPT_ECORRUPT;
	blobs = alloc_array(s.n_blobs, sizeof(*blobs));
	for (uint32_t i = 0; blobs && i < s.n_blobs; i++) {
		size_t len = 0;

		blobs[i].name = read_str(r, CKPT_NAME_MAX, &len);
		blobs[i].name_len = (uint32_t)len;
		blobs[i].image_offset = read_u64(r);
		blobs[i].bytes = read_u64(r);
	}
	if (!blobs)
		return -ENOMEM;
	s.blobs = blobs;
	if (reader_left(r) > 0) { /* an older ckptd did not write it */
		kind = read_u8(r);
		s.origin.step = read_u64(r);
		s.origin.kind = kind <= ORIGIN_RESUMED ? (enum origin_kind)kind : ORIGIN_UNSAID;
	}
	return r->bad ? CKPT_ECORRUPT : reader->sealed(arg, &s);
}

static int replay_member(struct reader *r, const struct ledger_reader *reader, void *arg)
{
	uint32_t rank = read_u32(r);
	struct process_id p = read_process(r);
	uint64_t epoch = read_u64(r), credit = read_u64(r), blob_bytes = read_u64(r);
	bool unused = read_u8(r), has = read_u8(r);
	struct digest d = read_digest(r);

	return r->bad ? CKPT_ECORRUPT
		      : reader->member(arg, rank, &p, epoch, credit, unused, blob_bytes,
				       has ? &d : NULL);
}

static int replay_slot(struct reader *r, const struct ledger_reader *reader, void *arg)
{
	uint32_t slot = read_u32(r), rank = read_u32(r);
	struct process_id p = read_process(r);
	char name[REGION_NAME_MAX + 1] = "";
	size_t len = 0;
	const char *s = read_str(r, REGION_NAME_MAX, &len);

	if (r->bad)
		return CKPT_ECORRUPT;
	memcpy(name, s, len);
	return reader->slot(arg, slot, rank, name, &p);
}

static int replay_bytes(struct reader *r, const struct ledger_reader *reader, void *arg,
			bool declaration)
{
	struct digest d = { 0 };
	uint32_t slot = 0;
	uint64_t len;
	const void *p;

	if (declaration)
		d = read_digest(r);
	else
		slot = read_u32(r);
	len = read_u64(r);
	p = read_bytes(r, len);
	if (r->bad)
		return CKPT_ECORRUPT;
	return declaration ? reader->declaration(arg, &d, p, len)
			   : reader->table(arg, slot, p, len);
}

static int replay_annex(struct reader *r, const struct ledger_reader *reader, void *arg,
			bool declaration)
{
	uint32_t slot = declaration ? 0 : read_u32(r);
	struct digest d = read_digest(r);
	uint64_t bytes = read_u64(r);
	char name[REGION_NAME_MAX + 1] = "";
	size_t len = 0;
	const char *s = read_str(r, REGION_NAME_MAX, &len);

	if (r->bad)
		return CKPT_ECORRUPT;
	memcpy(name, s, len);
	return declaration ? reader->declaration_in(arg, &d, bytes, name)
			   : reader->table_in(arg, slot, &d, bytes, name);
}

static int replay_one(uint32_t type, struct reader *r, const struct ledger_reader *reader,
		      void *arg)
{
	uint32_t slot;

	switch (type) {
	case L_DECLARATION:
		return replay_bytes(r, reader, arg, true);
	case L_TABLE:
		return replay_bytes(r, reader, arg, false);
	case L_SLOT:
		return replay_slot(r, reader, arg);
	case L_SEALED:
		return replay_sealed(r, reader, arg);
	case L_MEMBER:
		return replay_member(r, reader, arg);
	case L_WHOLE:
		return 0;
	case L_DECLARATION_IN:
		return replay_annex(r, reader, arg, true);
	case L_TABLE_IN:
		return replay_annex(r, reader, arg, false);
	default:
		break;
	}
	slot = read_u32(r);
	if (r->bad)
		return CKPT_ECORRUPT;
	switch (type) {
	case L_READY:
		return reader->ready(arg, slot);
	case L_ASSIGN: {
		uint64_t credit = read_u64(r);

		return r->bad ? CKPT_ECORRUPT : reader->assign(arg, slot, credit);
	}
	case L_EMPTY:
		return reader->empty(arg, slot);
	case L_GONE:
		return reader->gone(arg, slot);
	case L_LEFT:
		return reader->left(arg, slot);
	default:
		return CKPT_EVERSION;
	}
}

int ledger_adopt(struct ledger *l, struct memory *m, struct region *region,
		 const struct ledger_reader *reader, void *arg, struct err *e)
{
	const uint8_t *payload;
	uint32_t type, len;
	int r;

	if (!header_good(region) || !header_known(region))
		return err_set(e, CKPT_ECORRUPT, "ledger '%s': header is damaged", region->name);
	l->memory = m;
	l->region = region;
	memcpy(l->job.b, (uint8_t *)region->base + 16, 16);
	l->generation = l->handed = get_le64((uint8_t *)region->base + 32);
	l->annexes = get_le32((uint8_t *)region->base + 12) & FEATURE_ANNEXES;
	l->annexes_wanted = l->annexes;
	l->used = HEADER_BYTES;
	l->sequence = 1;
	l->rewriting = false;
	while ((payload = record_at(region, l->used, l->sequence, &type, &len))) {
		struct reader rd = reader_of(payload, len);

		r = replay_one(type, &rd, reader, arg);
		if (r < 0)
			return err_code(e, r, "ledger '%s': record %llu of type %u", region->name,
					(unsigned long long)l->sequence, type);
		l->used += record_bytes(len);
		l->sequence++;
	}
	/* What is behind the end is a torn record; the next append overwrites it. */
	return 0;
}
