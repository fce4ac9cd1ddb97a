/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The view of a declaration's bytes, and everything that must be true of them. Pure; any thread.
 *
 * 1. After declaration_open() has returned 0 the bytes are the canonical ones of their shards:
 *    no gap, no byte left over, entries sorted, each shard where its declared order puts it in
 *    the image. Equal declarations have equal bytes and one digest.
 * 2. No element of a tensor is declared twice, and shards of one name agree on dtype and shape.
 * 3. The functions that take a struct declaration rely on 1 and check nothing again.
 */
#include <config.h>

#include "model/declaration.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "model/declaration_format.h"
#include "model/disjoint.h"

static const uint8_t *entry_at(const struct declaration *d, uint32_t i)
{
	const uint8_t *fence = d->bytes + get_le64(d->bytes + DECL_FENCE_OFFSET);
	const uint8_t *record = fence_record(fence, i / BLOCK_SHARDS);

	assert(i < d->n_shards);
	return block_entry(d->bytes + get_le64(record + FENCE_OFFSET), i % BLOCK_SHARDS);
}

void declaration_get(const struct declaration *d, uint32_t i, struct shard *ret)
{
	entry_get(entry_at(d, i), ret);
}

uint32_t declaration_order(const struct declaration *d, uint32_t i)
{
	return get_le32(entry_at(d, i) + ENTRY_ORDER);
}

const char *declaration_name(const struct declaration *d, uint32_t i, uint32_t *ret_len)
{
	const uint8_t *entry = entry_at(d, i);

	*ret_len = get_le16(entry + ENTRY_NAME_LEN);
	return (const char *)entry + ENTRY_NAME;
}

bool declaration_same(const struct declaration *a, const struct declaration *b)
{
	return a->len == b->len && memcmp(a->bytes, b->bytes, FORMAT_HEADER_BYTES) == 0;
}

uint64_t declaration_hash(const struct declaration *d, uint64_t key)
{
	return digest_keyed(key, d->bytes, FORMAT_HEADER_BYTES);
}

/* Extents, offsets, lengths, and start and stop of a flat range: by its length one knows how many
 * there are of each. */
static const uint8_t *place_of(const uint8_t *entry, size_t *ret_len)
{
	size_t head = ENTRY_NAME + get_le16(entry + ENTRY_NAME_LEN);

	*ret_len = entry_bytes(entry) - head;
	return entry + head;
}

uint64_t declaration_place_hash(const struct declaration *d, uint32_t i, uint64_t key)
{
	size_t len;
	const uint8_t *place = place_of(entry_at(d, i), &len);

	return digest_keyed(key, place, len);
}

bool declaration_same_place(const struct declaration *a, uint32_t i, const struct declaration *b,
			    uint32_t k)
{
	const uint8_t *one = entry_at(a, i), *other = entry_at(b, k);
	size_t one_len, other_len;
	const uint8_t *one_place = place_of(one, &one_len);
	const uint8_t *other_place = place_of(other, &other_len);

	return one[ENTRY_DTYPE] == other[ENTRY_DTYPE] && one_len == other_len &&
	       memcmp(one_place, other_place, one_len) == 0;
}

static bool name_before(const struct declaration *d, uint32_t i, const char *name,
			uint32_t name_len)
{
	uint32_t len;
	const char *own = declaration_name(d, i, &len);

	return name_compare(own, len, name, name_len) < 0;
}

static bool block_before(const struct declaration *d, uint32_t block, const char *name,
			 uint32_t name_len)
{
	const uint8_t *fence = d->bytes + get_le64(d->bytes + DECL_FENCE_OFFSET);
	uint32_t len;
	const char *first = fence_name(fence, d->n_blocks, block, &len);

	return name_compare(first, len, name, name_len) < 0;
}

/* First block >= from whose first name is not before this one. The fence's names lie together. */
static uint32_t seek_block(const struct declaration *d, uint32_t from, const char *name,
			   uint32_t name_len)
{
	uint32_t lo = from, hi = from;
	uint64_t step = 1;

	/* All before lo are before the name; hi is not, or is the end. */
	while (hi < d->n_blocks && block_before(d, hi, name, name_len)) {
		lo = hi + 1;
		hi = (uint32_t)min_u64(hi + step, d->n_blocks);
		step *= 2;
	}
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (block_before(d, mid, name, name_len))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* First in [lo, hi) that is not before the name, else hi. */
static uint32_t search(const struct declaration *d, uint32_t lo, uint32_t hi, const char *name,
		       uint32_t name_len)
{
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (name_before(d, mid, name, name_len))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Over the fence when the block ends before the name; else doubling steps within it. */
uint32_t declaration_seek(const struct declaration *d, uint32_t from, const char *name,
			  uint32_t name_len)
{
	uint32_t next = from / BLOCK_SHARDS + 1, lo = from, hi = from, step = 1, block, end;

	if (next < d->n_blocks && block_before(d, next, name, name_len)) {
		block = seek_block(d, next + 1, name, name_len);
		end = (uint32_t)min_u64((uint64_t)block * BLOCK_SHARDS, d->n_shards);
		return search(d, (block - 1) * BLOCK_SHARDS + 1, end, name, name_len);
	}
	end = (uint32_t)min_u64((uint64_t)next * BLOCK_SHARDS, d->n_shards);
	for (; hi < end; hi = (uint32_t)min_u64(hi + step, end), step *= 2) {
		if (!name_before(d, hi, name, name_len))
			return search(d, lo, hi, name, name_len);
		lo = hi + 1; /* all before lo are before the name */
	}
	return search(d, lo, end, name, name_len);
}

uint32_t declaration_find(const struct declaration *d, const char *name, uint32_t name_len,
			  uint32_t *ret_first)
{
	uint32_t block = seek_block(d, 0, name, name_len), first, end;

	/* It begins in the block before, or there. */
	end = (uint32_t)min_u64((uint64_t)block * BLOCK_SHARDS, d->n_shards);
	first = search(d, block ? (block - 1) * BLOCK_SHARDS : 0, end, name, name_len);
	end = first;
	while (end < d->n_shards) {
		uint32_t len;
		const char *own = declaration_name(d, end, &len);

		if (name_compare(own, len, name, name_len) != 0)
			break;
		end++;
	}
	if (end > first)
		*ret_first = first;
	return end - first;
}

#define ELEMENT_MAX 16u /* bytes of the longest dtype */

uint32_t declaration_element(const struct declaration *d)
{
	uint64_t bytes[ELEMENT_MAX + 1] = {0};
	uint32_t best = 0;
	struct shard s;

	for (uint32_t i = 0; i < d->n_shards; i++) {
		declaration_get(d, i, &s);
		bytes[dtype_bytes(s.dtype)] += s.bytes;
	}
	for (uint32_t i = 1; i <= ELEMENT_MAX; i++)
		if (bytes[i] > bytes[best])
			best = i;
	return best;
}

struct digest declaration_digest(const void *bytes, size_t len)
{
	return digest_of(bytes, len);
}

struct digest layout_digest(const struct digest *declarations, uint32_t world)
{
	struct digest_stream s;
	uint8_t line[8 + 4];

	memcpy(line, "CKPTLAYO", 8);
	put_le32(line + 8, world);
	digest_begin(&s);
	digest_update(&s, line, sizeof(line));
	for (uint32_t rank = 0; rank < world; rank++) {
		put_le32(line, rank);
		digest_update(&s, line, 4);
		digest_update(&s, declarations[rank].b, sizeof(declarations[rank].b));
	}
	return digest_end(&s);
}

/* ---- What must be true of the bytes ---- */

/* Looks at boxes while overlaps are searched (model/disjoint.h): a grid takes some 20 for each
 * shard; hostile shapes could take thousands. */
#define STEPS_FREE (1u << 24)
#define STEPS_EACH 512u /* for each shard of a tensor */

/* Where each shard lies in the image, by declared order. */
struct place {
	uint64_t offset, bytes;
	bool there;
};

struct checker {
	struct declaration d;
	struct place *places;
	struct disjoint boxes; /* of one tensor */
	struct effort effort;  /* its limit grows with the boxes */
	struct shard previous; /* valid when i > 0 */
	uint32_t group;        /* first shard with the name of the previous one */
};

/* (2): the shards [first, end) have one name. */
static int check_overlap(struct checker *c, uint32_t first, uint32_t end, struct err *e)
{
	struct box boxes[FLAT_BOXES_MAX], twice;
	char name[NAME_TEXT_MAX], one[BOX_TEXT_MAX];
	struct shard s;
	int r = 0;

	if (end - first < 2)
		return 0;
	disjoint_reset(&c->boxes, c->previous.global.ndim);
	for (uint32_t i = first; i < end && r == 0; i++) {
		int n;

		declaration_get(&c->d, i, &s);
		n = shard_boxes(&s, boxes);
		for (int k = 0; k < n && r == 0; k++)
			r = disjoint_add(&c->boxes, &boxes[k]);
	}
	if (r == 0) {
		if (c->effort.most != UINT64_MAX)
			c->effort.most += (uint64_t)STEPS_EACH * (end - first);
		r = disjoint_check(&c->boxes, &c->effort, &twice);
	}
	if (r == -EOVERFLOW)
		return err_set(e, CKPT_EPROTO,
			       "tensor '%s' comes in %u shards whose boxes lie so that it takes "
			       "too long to find whether two overlap: declare fewer or more "
			       "regular ones",
			       name_text(name, s.name, s.name_len), end - first);
	if (r < 0)
		return err_code(e, r, "check the boxes of %u shards of one tensor", end - first);
	if (r == 0)
		return 0;
	return err_set(e, CKPT_EPROTO,
		       "tensor '%s' is declared twice in %s by one rank: declare each element once",
		       name_text(name, s.name, s.name_len), box_text(one, &twice));
}

static bool same_tensor(const struct shard *a, const struct shard *b)
{
	return a->dtype == b->dtype && a->global.ndim == b->global.ndim &&
	       memcmp(a->global.dim, b->global.dim, 8 * (size_t)a->global.ndim) == 0;
}

/* Another name: its digest in words, so that no name and no order of them can be exchanged. */
static void count_name(struct checker *c, const struct shard *s)
{
	struct digest own = digest_of(s->name, s->name_len);
	uint8_t *names = c->d.names.b;

	c->d.n_names++;
	for (int k = 0; k < 16; k += 8) {
		uint64_t h = get_le64(names + k) ^ get_le64(own.b + k);

		h *= 0x9e3779b97f4a7c15u;
		put_le64(names + k, h ^ h >> 29);
	}
}

/* Shard i against the one before it: sorted, and what shards of one name must agree on. */
static int check_sequence(struct checker *c, uint32_t i, const struct shard *s, struct err *e)
{
	char name[NAME_TEXT_MAX];
	int order;

	if (i == 0) {
		count_name(c, s);
		return 0;
	}
	order = name_compare(c->previous.name, c->previous.name_len, s->name, s->name_len);
	if (order < 0) {
		uint32_t group = c->group;

		c->group = i;
		count_name(c, s);
		return check_overlap(c, group, i, e);
	}
	/* First this: the order of entries takes it that one name has one number of dimensions. */
	if (order == 0 && !same_tensor(&c->previous, s))
		return err_set(e, CKPT_EPROTO,
			       "tensor '%s' is declared with two dtypes or global shapes by one "
			       "rank",
			       name_text(name, s->name, s->name_len));
	if (entry_compare(entry_at(&c->d, i - 1), entry_at(&c->d, i)) >= 0)
		return err_set(e, CKPT_EPROTO, "the entries of a declaration are not sorted");
	return 0;
}

static int check_block(struct checker *c, const uint8_t *fence, uint32_t block, struct err *e)
{
	const uint8_t *record = fence_record(fence, block);
	const uint8_t *bytes = c->d.bytes + get_le64(record + FENCE_OFFSET);
	int r = declaration_block_check(fence, block, bytes, e);

	for (uint32_t k = 0; !r && k < get_le16(record + FENCE_SHARDS); k++) {
		uint32_t i = block * BLOCK_SHARDS + k, order, len;
		const uint8_t *entry = block_entry(bytes, k);
		const char *name = fence_name(fence, c->d.n_blocks, block, &len);
		struct shard s;

		r = entry_check(entry, entry_bytes(entry), &s, e);
		if (r)
			return r;
		order = get_le32(entry + ENTRY_ORDER);
		if (order >= c->d.n_shards || c->places[order].there ||
		    (k == 0 && name_compare(name, len, s.name, s.name_len) != 0))
			return err_set(e, CKPT_EPROTO,
				       "entry %u of block %u of a declaration is malformed", k,
				       block);
		c->places[order] = (struct place){ s.image_offset, s.bytes, true };
		r = check_sequence(c, i, &s, e);
		c->previous = s;
	}
	return r;
}

static int check_image(const struct checker *c, struct err *e)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < c->d.n_shards; i++) {
		const struct place *p = &c->places[i];

		assert(p->there); /* n distinct numbers below n */
		if (p->offset != image_place(end, p->bytes, c->d.geometry) ||
		    p->bytes > IMAGE_BYTES_MAX - p->offset)
			return err_set(e, CKPT_EPROTO,
				       "shard %u of a declaration is not where its order puts it",
				       i);
		end = p->offset + p->bytes;
	}
	if (end != c->d.image_bytes)
		return err_set(e, CKPT_EPROTO,
			       "a declaration says %llu bytes of state but has %llu",
			       (unsigned long long)c->d.image_bytes, (unsigned long long)end);
	return 0;
}

static int check_shards(struct checker *c, const uint8_t *fence, struct err *e)
{
	int r = 0;

	for (uint32_t block = 0; !r && block < c->d.n_blocks; block++) {
		if (effort_spend(&c->effort, 1) < 0)
			return err_code(e, -ECANCELED, "check a declaration of %u tensors",
					c->d.n_shards);
		r = check_block(c, fence, block, e);
	}
	if (!r && c->d.n_shards)
		r = check_overlap(c, c->group, c->d.n_shards, e);
	return r ? r : check_image(c, e);
}

static int check_all(const void *bytes, size_t len, struct effort effort, struct declaration *ret,
		     struct err *e)
{
	struct declaration_header h;
	struct checker c = {.effort = effort};
	const uint8_t *fence;
	int r = declaration_header_check(bytes, len, &h, e);

	if (r)
		return r;
	fence = (const uint8_t *)bytes + h.fence_offset;
	r = declaration_fence_check(bytes, &h, fence, e);
	if (r)
		return r;
	c.d = (struct declaration){
		.bytes = bytes,
		.len = len,
		.n_shards = h.n_shards,
		.n_blocks = h.n_blocks,
		.image_bytes = h.image_bytes,
		.geometry = h.geometry,
	};
	c.places = alloc_array(h.n_shards, sizeof(*c.places));
	if (!c.places)
		return err_code(e, -ENOMEM, "check a declaration of %u tensors", h.n_shards);
	r = check_shards(&c, fence, e);
	disjoint_fini(&c.boxes);
	alloc_free(c.places);
	if (!r)
		*ret = c.d;
	return r;
}

int declaration_open(const void *bytes, size_t len, struct declaration *ret, struct err *e)
{
	/* Stored is what was accepted once: it is never refused for what it costs. */
	return check_all(bytes, len, (struct effort){.most = UINT64_MAX}, ret, e);
}

int declaration_open_until(const void *bytes, size_t len, const atomic_bool *cancel,
			   struct declaration *ret, struct err *e)
{
	return check_all(bytes, len, (struct effort){.cancel = cancel, .most = STEPS_FREE}, ret, e);
}
