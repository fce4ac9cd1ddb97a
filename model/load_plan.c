/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A load plan as bytes, and back. Cold; any thread.
 *
 * The receiver reads, verifies and copies by what it decoded. So decoding proves that each source
 * has a digest for each of its leaves and, in a file, a possible place for each of its chunks; that
 * blobs lie inside their source's image; of pieces what plan_decode() proves; and that neither
 * touches a leaf that its file does not store. Sections are
 * looked at where they lie: nothing but pieces, sources and names of blobs is allocated, and no
 * more of them than the bytes can hold.
 *
 *   "CKPTLOAD", u32 sources, u32 blobs
 *   for each source: u8 kind, u32 rank, u64 image bytes, u32 leaf, u32 chunk, leaf digests, and if
 *     it is a file the places of its chunks
 *   for each blob: u32 source, u64 image offset, u64 bytes, u16 length and name
 *   the plan (plan_wire.c)
 */
#include <config.h>

#include "model/load_plan.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "codec/compress.h"

#define LOAD_MAGIC       "CKPTLOAD"
#define SOURCE_BYTES_MIN 21u
#define BLOB_BYTES_MIN   22u

enum {
	PLACE_OFFSET = 0,
	PLACE_STORED = 8,
	PLACE_ENCODING = 12,
	PLACE_FILE = 14,
	PLACE_DIGEST = 16,
	PLACE_MISSING = 32, /* u32, then 4 bytes of 0 */
};
_Static_assert(PLACE_MISSING + 8 == CHUNK_PLACE_BYTES, "the place is full");

struct chunk_place chunk_place_get(const uint8_t *places, uint64_t i)
{
	const uint8_t *b = places + i * CHUNK_PLACE_BYTES;
	struct chunk_place p = {
		.offset = get_le64(b + PLACE_OFFSET),
		.stored = get_le32(b + PLACE_STORED),
		.encoding = get_le16(b + PLACE_ENCODING),
		.file = get_le16(b + PLACE_FILE),
		.missing = get_le32(b + PLACE_MISSING),
	};

	memcpy(p.digest.b, b + PLACE_DIGEST, sizeof(p.digest.b));
	return p;
}

void chunk_place_put(uint8_t *out, const struct chunk_place *p)
{
	put_le64(out + PLACE_OFFSET, p->offset);
	put_le32(out + PLACE_STORED, p->stored);
	put_le16(out + PLACE_ENCODING, p->encoding);
	put_le16(out + PLACE_FILE, p->file);
	memcpy(out + PLACE_DIGEST, p->digest.b, sizeof(p->digest.b));
	put_le32(out + PLACE_MISSING, p->missing);
	put_le32(out + PLACE_MISSING + 4, 0);
}

/* ---- Leaves that are missing ---- */

uint32_t chunk_leaf_offset(struct geometry g, uint64_t leaf, uint32_t missing)
{
	uint32_t in_chunk = (uint32_t)(leaf % (g.chunk / g.leaf));
	uint32_t before = missing & (in_chunk < 32 ? (1u << in_chunk) - 1 : UINT32_MAX);

	return (in_chunk - (uint32_t)__builtin_popcount(before)) * g.leaf;
}

uint32_t chunk_bytes_stored(uint64_t image_len, struct geometry g, uint64_t i, uint32_t missing)
{
	uint64_t raw = min_u64(image_len - i * g.chunk, g.chunk), n = div_up(raw, g.leaf);
	uint64_t left = raw - (n - 1) * g.leaf; /* of the last leaf */

	assert(i * g.chunk < image_len);
	if (missing == 0)
		return (uint32_t)raw;
	assert(chunk_missing_possible(image_len, g, i, missing));
	raw = (n - (uint64_t)__builtin_popcount(missing)) * g.leaf;
	return (uint32_t)(missing >> (n - 1) & 1 ? raw : raw - g.leaf + left);
}

bool chunk_missing_possible(uint64_t image_len, struct geometry g, uint64_t i, uint32_t missing)
{
	uint64_t n = div_up(min_u64(image_len - i * g.chunk, g.chunk), g.leaf);

	if (missing == 0)
		return true;
	return g.chunk / g.leaf <= CHUNK_LEAVES_MAX && (n >= 32 || missing >> n == 0);
}

int places_present(const uint8_t *places, uint64_t image_len, struct geometry g, uint64_t **ret)
{
	uint64_t n_chunks = div_up(image_len, g.chunk), n_leaves = div_up(image_len, g.leaf);
	uint64_t per_chunk = g.chunk / g.leaf, i = 0, *set;

	while (i < n_chunks && chunk_place_get(places, i).missing == 0)
		i++;
	*ret = NULL;
	if (i == n_chunks)
		return 0;
	set = leaves_new(n_leaves);
	if (!set)
		return -ENOMEM;
	for (i = 0; i < n_chunks; i++) {
		uint32_t missing = chunk_place_get(places, i).missing;

		for (uint64_t k = 0; k < per_chunk && i * per_chunk + k < n_leaves; k++)
			if (missing == 0 || !(missing >> k & 1))
				leaves_add(set, i * per_chunk + k);
	}
	*ret = set;
	return 0;
}

static uint64_t leaves_of(const struct load_source *s)
{
	return div_up(s->image_len, s->geometry.leaf);
}

static uint64_t chunks_of(const struct load_source *s)
{
	return div_up(s->image_len, s->geometry.chunk);
}

/* ---- Encode ---- */

static void write_source(const struct load_source *s, struct writer *w)
{
	assert(s->kind == LOAD_MEMORY || s->kind == LOAD_FILE);
	assert(geometry_valid(s->geometry) && s->image_len <= IMAGE_BYTES_MAX);
	write_u8(w, (uint8_t)s->kind);
	write_u32(w, s->rank);
	write_u64(w, s->image_len);
	write_u32(w, s->geometry.leaf);
	write_u32(w, s->geometry.chunk);
	write_bytes(w, s->leaves, leaves_of(s) * sizeof(struct digest));
	if (s->kind == LOAD_FILE)
		write_bytes(w, s->places, chunks_of(s) * CHUNK_PLACE_BYTES);
}

int load_plan_encode(const struct load_plan *p, struct writer *w)
{
	write_bytes(w, LOAD_MAGIC, 8);
	write_u32(w, p->n_sources);
	write_u32(w, p->n_blobs);
	for (uint32_t i = 0; i < p->n_sources; i++)
		write_source(&p->sources[i], w);
	for (uint32_t i = 0; i < p->n_blobs; i++) {
		const struct load_blob *b = &p->blobs[i];

		assert(b->source < p->n_sources);
		write_u32(w, b->source);
		write_u64(w, b->image_offset);
		write_u64(w, b->bytes);
		write_str(w, b->name, strlen(b->name));
	}
	return plan_encode(&p->plan, w);
}

/* ---- Decode ---- */

static bool places_possible(const struct load_source *s)
{
	static const struct digest none;

	for (uint64_t i = 0, n = chunks_of(s); i < n; i++) {
		struct chunk_place p = chunk_place_get(s->places, i);
		uint64_t end, raw;

		if (p.file != 0 ||
		    get_le32(s->places + i * CHUNK_PLACE_BYTES + PLACE_MISSING + 4) != 0 ||
		    !chunk_missing_possible(s->image_len, s->geometry, i, p.missing) ||
		    !size_add(p.offset, p.stored, &end) || end > INT64_MAX)
			return false;
		raw = chunk_bytes_stored(s->image_len, s->geometry, i, p.missing);
		if (p.encoding == ENCODING_RAW) {
			if (p.stored != raw || !digest_equal(&p.digest, &none))
				return false;
		} else if (p.encoding > ENCODING_ZSTD_P4 || p.stored == 0 || p.stored >= raw) {
			return false;
		}
	}
	return true;
}

static bool read_source(struct reader *r, struct load_source *s)
{
	uint8_t kind = read_u8(r);

	s->rank = read_u32(r);
	s->image_len = read_u64(r);
	s->geometry.leaf = read_u32(r);
	s->geometry.chunk = read_u32(r);
	if (r->bad || (kind != LOAD_MEMORY && kind != LOAD_FILE) || !geometry_valid(s->geometry) ||
	    s->image_len > IMAGE_BYTES_MAX)
		return false;
	s->kind = (enum load_source_kind)kind;
	s->leaves = read_bytes(r, leaves_of(s) * sizeof(struct digest));
	if (s->kind == LOAD_FILE)
		s->places = read_bytes(r, chunks_of(s) * CHUNK_PLACE_BYTES);
	return !r->bad && (s->kind == LOAD_MEMORY || places_possible(s));
}

static int read_blob(struct reader *r, const struct load_plan *p, struct load_blob *b)
{
	const char *name;
	size_t len = 0;

	b->source = read_u32(r);
	b->image_offset = read_u64(r);
	b->bytes = read_u64(r);
	name = read_str(r, CKPT_NAME_MAX, &len);
	if (!name || len == 0 || memchr(name, '\0', len) || b->source >= p->n_sources ||
	    b->image_offset > p->sources[b->source].image_len ||
	    b->bytes > p->sources[b->source].image_len - b->image_offset)
		return CKPT_EPROTO;
	b->name = alloc_zero(len + 1);
	if (!b->name)
		return -ENOMEM;
	memcpy(b->name, name, len);
	return 0;
}

static int read_sources(struct reader *r, uint32_t n, struct load_plan *p, struct err *e)
{
	p->sources = alloc_array(n, sizeof(*p->sources));
	if (!p->sources)
		return err_code(e, -ENOMEM, "take a load plan of %u sources", n);
	for (; p->n_sources < n; p->n_sources++)
		if (!read_source(r, &p->sources[p->n_sources]))
			return err_set(e, CKPT_EPROTO, "source %u of a load plan is malformed",
				       p->n_sources);
	return 0;
}

static int read_blobs(struct reader *r, uint32_t n, struct load_plan *p, struct err *e)
{
	p->blobs = alloc_array(n, sizeof(*p->blobs));
	if (!p->blobs)
		return err_code(e, -ENOMEM, "take a load plan of %u blobs", n);
	for (; p->n_blobs < n; p->n_blobs++) {
		int code = read_blob(r, p, &p->blobs[p->n_blobs]);

		if (code)
			return err_code(e, code, "take blob %u of a load plan", p->n_blobs);
	}
	return 0;
}

static int read_plan(struct reader *r, const uint64_t *target_bytes, uint32_t n_targets,
		     struct load_plan *p, struct err *e)
{
	uint64_t *lens CLEANUP_FREE = alloc_array(p->n_sources, sizeof(*lens));

	if (!lens)
		return err_code(e, -ENOMEM, "take a load plan of %u sources", p->n_sources);
	for (uint32_t i = 0; i < p->n_sources; i++)
		lens[i] = p->sources[i].image_len;
	return plan_decode(r, lens, p->n_sources, target_bytes, n_targets, &p->plan, e);
}

struct touching {
	const uint64_t *present; /* leaves */
	bool missing;
};

static void look_for_missing(void *arg, uint64_t first, uint64_t last)
{
	struct touching *t = arg;

	t->missing = t->missing || leaves_next(t->present, first, last + 1, false) <= last;
}

static int find_present(const struct load_plan *p, uint64_t **present, struct err *e)
{
	for (uint32_t i = 0; i < p->n_sources; i++) {
		const struct load_source *s = &p->sources[i];

		if (s->kind == LOAD_FILE &&
		    places_present(s->places, s->image_len, s->geometry, &present[i]) < 0)
			return err_code(e, -ENOMEM, "take source %u of a load plan", i);
	}
	return 0;
}

static int refuse_missing(uint32_t source, struct err *e)
{
	return err_set(e, CKPT_EPROTO, "a load plan reads from source %u what that does not store",
		       source);
}

/* Pieces and blobs are looked at once each, however many sources there are. */
static int check_pieces(const struct load_plan *p, uint64_t *const *present, struct err *e)
{
	for (size_t i = 0; i < p->plan.n_pieces; i++) {
		const struct plan_piece *piece = &p->plan.pieces[i];
		struct touching t = {.present = present[piece->source]};

		if (!t.present || piece->run == 0)
			continue;
		plan_piece_units(piece, p->sources[piece->source].geometry.leaf, look_for_missing,
				 &t);
		if (t.missing)
			return refuse_missing(piece->source, e);
	}
	for (uint32_t i = 0; i < p->n_blobs; i++) {
		const struct load_blob *b = &p->blobs[i];
		struct touching t = {.present = present[b->source]};
		uint32_t leaf = p->sources[b->source].geometry.leaf;

		if (!t.present || b->bytes == 0)
			continue;
		look_for_missing(&t, b->image_offset / leaf,
				 (b->image_offset + b->bytes - 1) / leaf);
		if (t.missing)
			return refuse_missing(b->source, e);
	}
	return 0;
}

/* What is read of each source is stored there. */
static int check_present(const struct load_plan *p, struct err *e)
{
	uint64_t **present CLEANUP_FREE = alloc_array(p->n_sources, sizeof(*present));
	int r;

	if (!present)
		return err_code(e, -ENOMEM, "take a load plan of %u sources", p->n_sources);
	r = find_present(p, present, e);
	if (r == 0)
		r = check_pieces(p, present, e);
	for (uint32_t i = 0; i < p->n_sources; i++)
		alloc_free(present[i]);
	return r;
}

static int decode(struct reader *r, const uint64_t *target_bytes, uint32_t n_targets,
		  struct load_plan *p, struct err *e)
{
	const uint8_t *magic = read_bytes(r, 8);
	uint32_t n_sources = read_u32(r), n_blobs = read_u32(r);
	int code;

	if (r->bad || memcmp(magic, LOAD_MAGIC, 8) != 0 ||
	    n_sources > reader_left(r) / SOURCE_BYTES_MIN ||
	    n_blobs > reader_left(r) / BLOB_BYTES_MIN)
		return err_set(e, CKPT_EPROTO, "a load plan is cut short or is none");
	code = read_sources(r, n_sources, p, e);
	if (!code)
		code = read_blobs(r, n_blobs, p, e);
	if (!code)
		code = read_plan(r, target_bytes, n_targets, p, e);
	if (!code && reader_left(r) != 0)
		code = err_set(e, CKPT_EPROTO, "a load plan has bytes left over");
	return code ? code : check_present(p, e);
}

int load_plan_decode(const void *bytes, size_t len, const uint64_t *target_bytes,
		     uint32_t n_targets, struct load_plan *ret, struct err *e)
{
	struct reader r = reader_of(bytes, len);
	struct load_plan p = { 0 };
	int code = decode(&r, target_bytes, n_targets, &p, e);

	if (code) {
		load_plan_fini(&p);
		return code;
	}
	*ret = p;
	return 0;
}

void load_plan_fini(struct load_plan *p)
{
	for (uint32_t i = 0; i < p->n_blobs; i++)
		alloc_free(p->blobs[i].name);
	alloc_free(p->blobs);
	alloc_free(p->sources);
	plan_fini(&p->plan);
	*p = (struct load_plan){ 0 };
}
