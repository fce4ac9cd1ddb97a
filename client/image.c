/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - from bindings into a slot's image.
 *
 * Contiguous host tensors go in one call of the fastest copy for their size. Tensors with strides
 * are gathered row by row. Device tensors are queued on the device's stream, so that they travel
 * while host tensors are copied, and waited for at the end.
 *
 *   1. No allocation and no fresh page: slots are populated, scratch memory is the caller's.
 *   2. A sample is taken of the source and of the image: one digest, equal on both sides, says that
 *      neither changed since.
 *
 * Runs on the caller's thread or on the library's copying thread, never on both at once.
 */
#include <config.h>

#include "client/image.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/copy.h"
#include "codec/digest.h"
#include "model/strided.h"

#define ROWS_AT_ONCE (1u << 20)

/* ---- One binding ---- */

static int layout_of(const struct wanted *w, uint32_t i, const struct ckpt_binding *b,
		     struct strided *ret)
{
	struct shard s;

	declared_shard(w, i, &s);
	return strided_init(ret, &s, b->strides);
}

/* Of a device tensor with strides the bytes [at, at + len). Rows of equal distance are one copy, as
 * each takes 2 us of this thread's time. Rows that go backwards, or meet, are one each. */
static int device_strided(struct ckpt *c, const struct ckpt_binding *b, const struct strided *l,
			  uint64_t at, uint8_t *packed, uint64_t len, bool out, struct err *e)
{
	int64_t stride = l->ndim ? l->stride[l->ndim - 1] : 0;
	bool regular = stride >= (int64_t)l->run && stride <= DEVICE_STRIDE_MAX;
	int r = 0;

	while (len && r == 0) {
		uint64_t skip = at % l->run, n = min_u64(len, l->run - skip), more;
		uint8_t *p = (uint8_t *)b->ptr + strided_row(l, at / l->run, &more) + (int64_t)skip;
		struct device_rows rows = {.first = p, .bytes = l->run, .stride = (size_t)stride};

		rows.n = min_u64(len / l->run, min_u64(more + 1, ROWS_AT_ONCE));
		if (regular && skip == 0 && rows.n > 1) {
			n = rows.n * l->run;
			r = device_copy_rows(c->devices, b->device, packed, &rows, out, e);
		} else {
			r = out ? device_copy_out(c->devices, b->device, packed, p, n, e)
				: device_copy_in(c->devices, b->device, p, packed, n, e);
		}
		packed += n;
		at += n;
		len -= n;
	}
	return r;
}

/* Queued for a device, done for host memory. */
static int binding_read(struct ckpt *c, const struct wanted *w, uint32_t i,
			const struct ckpt_binding *b, uint64_t at, uint8_t *out, size_t len,
			struct err *e)
{
	struct strided l;
	int r;

	if (!b->strides && b->device == CKPT_HOST) {
		copy_large(out, (const uint8_t *)b->ptr + at, len);
		return 0;
	}
	if (!b->strides)
		return device_copy_out(c->devices, b->device, out,
				       (const uint8_t *)b->ptr + at, len, e);
	r = layout_of(w, i, b, &l);
	if (r < 0)
		return err_code(e, r, "tensor %u: strides", i);
	if (b->device != CKPT_HOST)
		return device_strided(c, b, &l, at, out, len, true, e);
	strided_gather(&l, b->ptr, at, out, len);
	return 0;
}

int image_read(struct ckpt *c, const struct wanted *w, uint32_t i, const struct ckpt_binding *b,
	       uint64_t at, uint8_t *out, size_t len, struct err *e)
{
	int r = binding_read(c, w, i, b, at, out, len, e);

	if (r == 0 && b->device != CKPT_HOST)
		r = device_sync(c->devices, b->device, e);
	return r;
}

int image_write(struct ckpt *c, const struct wanted *w, uint32_t i, const struct ckpt_binding *b,
		const uint8_t *packed, struct err *e)
{
	uint64_t bytes = w->shards[i].bytes;
	struct strided l;
	int r;

	assert(b->device != CKPT_HOST); /* host memory is written in place */
	if (!b->strides) {
		r = device_copy_in(c->devices, b->device, b->ptr, packed, bytes, e);
	} else {
		r = layout_of(w, i, b, &l);
		if (r == 0)
			r = device_strided(c, b, &l, 0, (uint8_t *)packed, bytes, false, e);
	}
	return r < 0 ? r : device_sync(c->devices, b->device, e);
}

/* ---- All of them ---- */

int image_devices(struct ckpt *c, const struct wanted *w, const struct ckpt_binding *b,
		  struct err *e)
{
	uint64_t seen = 0;
	int r = 0;

	for (uint32_t i = 0; i < w->n_shards && r == 0; i++) {
		if (b[i].device == CKPT_HOST || w->shards[i].bytes == 0)
			continue;
		if (b[i].device < 64 && seen >> b[i].device & 1)
			continue;
		if (!c->devices)
			r = devices_open(&c->devices, e);
		if (r == 0)
			r = device_use(c->devices, b[i].device, e);
		if (r == 0)
			seen |= 1ull << b[i].device;
	}
	return r;
}

static int sync_devices(struct ckpt *c, const struct ckpt_binding *b, struct err *e)
{
	int r = 0, last = CKPT_HOST;

	for (uint32_t i = 0; i < c->own.n_shards; i++) {
		int s = 0;

		if (b[i].device == CKPT_HOST || b[i].device == last || c->own.shards[i].bytes == 0)
			continue;
		/* Also after an error: nothing may write to the slot any more. */
		last = b[i].device;
		s = device_sync(c->devices, last, r == 0 ? e : NULL);
		r = r < 0 ? r : s;
	}
	return r;
}

int image_fill(struct ckpt *c, const struct ckpt_binding *b, uint8_t *image, struct err *e)
{
	int r = 0, s;

	/* Devices first: they copy by themselves while this thread copies the rest. */
	for (int device = 1; device >= 0; device--) {
		for (uint32_t i = 0; i < c->own.n_shards && r == 0; i++) {
			if ((b[i].device != CKPT_HOST) != device || c->own.shards[i].bytes == 0)
				continue;
			r = binding_read(c, &c->own, i, &b[i], 0,
					 image + c->own.shards[i].image_offset,
					 c->own.shards[i].bytes, e);
		}
	}
	s = sync_devices(c, b, r == 0 ? e : NULL);
	return r < 0 ? r : s;
}

static int torn(const struct ckpt *c, uint32_t i, struct err *e)
{
	char name[NAME_TEXT_MAX];
	struct shard s;

	declared_shard(&c->own, i, &s);
	return err_set(e, CKPT_ETORN, "tensor '%s' changed between begin and fence; nothing may "
		       "write to bound memory in between", name_text(name, s.name, s.name_len));
}

int image_compare(struct ckpt *c, const struct ckpt_binding *b, const uint8_t *image,
		  uint8_t *scratch, struct err *e)
{
	for (uint32_t i = 0; i < c->own.n_shards; i++) {
		const uint8_t *copy = image + c->own.shards[i].image_offset;
		uint64_t bytes = c->own.shards[i].bytes;

		if (b[i].device == CKPT_HOST && !b[i].strides) {
			if (bytes && memcmp(copy, b[i].ptr, bytes) != 0)
				return torn(c, i, e);
			continue;
		}
		for (uint64_t at = 0; at < bytes; at += SCRATCH_BYTES) {
			size_t n = min_u64(SCRATCH_BYTES, bytes - at);
			int r = image_read(c, &c->own, i, &b[i], at, scratch, n, e);

			if (r < 0)
				return r;
			if (memcmp(copy + at, scratch, n) != 0)
				return torn(c, i, e);
		}
	}
	return 0;
}

/* ---- Samples ---- */

#define SAMPLES_AT_ONCE (SCRATCH_BYTES / SAMPLE_BYTES_MAX)

struct sample {
	uint32_t shard;
	uint64_t at;
	size_t len;
};

/* The i-th sample: spread over the tensors, and over each one from its first to its last byte. */
static bool sample_at(const struct ckpt *c, uint32_t i, struct sample *ret)
{
	uint32_t sampled = (uint32_t)min_u64(c->own.n_shards, SAMPLES_MAX);
	uint32_t which = i / SAMPLE_PIECES, piece = i % SAMPLE_PIECES;
	uint64_t bytes;

	if (which >= sampled)
		return false;
	ret->shard = (uint32_t)((uint64_t)which * c->own.n_shards / sampled);
	bytes = c->own.shards[ret->shard].bytes;
	ret->len = min_u64(bytes, SAMPLE_BYTES_MAX);
	ret->at = (bytes - ret->len) / (SAMPLE_PIECES - 1) * piece;
	if (piece == SAMPLE_PIECES - 1)
		ret->at = bytes - ret->len;
	return true;
}

/* Samples that are read together: a device is waited for once. */
struct batch {
	struct sample of[SAMPLES_AT_ONCE];
	struct digest digest[SAMPLES_AT_ONCE];
	uint32_t n; /* 0: there are no more */
};

static bool read_in_place(const struct ckpt_binding *b)
{
	return b->device == CKPT_HOST && !b->strides;
}

/* The samples from the first-th on. */
static int batch_read(struct ckpt *c, const struct ckpt_binding *b, uint32_t first,
		      uint8_t *scratch, struct batch *ret, struct err *e)
{
	int r = 0, s;

	for (ret->n = 0; r == 0 && ret->n < SAMPLES_AT_ONCE; ret->n++) {
		struct sample *x = &ret->of[ret->n];

		if (!sample_at(c, first + ret->n, x))
			break;
		if (x->len && !read_in_place(&b[x->shard]))
			r = binding_read(c, &c->own, x->shard, &b[x->shard], x->at,
					 scratch + (size_t)ret->n * SAMPLE_BYTES_MAX, x->len, e);
	}
	s = sync_devices(c, b, r == 0 ? e : NULL);
	if (r < 0 || s < 0)
		return r < 0 ? r : s;
	for (uint32_t i = 0; i < ret->n; i++) {
		const struct sample *x = &ret->of[i];
		const uint8_t *p = scratch + (size_t)i * SAMPLE_BYTES_MAX;

		if (x->len && read_in_place(&b[x->shard]))
			p = (const uint8_t *)b[x->shard].ptr + x->at;
		ret->digest[i] = digest_of(p, x->len);
	}
	return 0;
}

int image_sample(struct ckpt *c, const struct ckpt_binding *b, uint8_t *scratch,
		 struct image_samples *ret, struct err *e)
{
	struct batch batch;
	int r;

	ret->n = 0;
	do {
		r = batch_read(c, b, ret->n, scratch, &batch, e);
		if (r < 0)
			return r;
		assert(ret->n + batch.n <= SAMPLES_MAX * SAMPLE_PIECES);
		memcpy(&ret->digest[ret->n], batch.digest, batch.n * sizeof(batch.digest[0]));
		ret->n += batch.n;
	} while (batch.n == SAMPLES_AT_ONCE);
	return 0;
}

int image_samples_check(struct ckpt *c, const struct ckpt_binding *b, const uint8_t *image,
			uint8_t *scratch, const struct image_samples *samples, struct err *e)
{
	struct batch batch;

	for (uint32_t from = 0; from < samples->n; from += batch.n) {
		int r = batch_read(c, b, from, scratch, &batch, e);

		if (r < 0)
			return r;
		assert(batch.n > 0 && from + batch.n <= samples->n);
		for (uint32_t i = 0; i < batch.n; i++) {
			const struct sample *x = &batch.of[i];
			struct digest copy = digest_of(
				image + c->own.shards[x->shard].image_offset + x->at, x->len);

			if (!digest_equal(&batch.digest[i], &samples->digest[from + i]) ||
			    !digest_equal(&copy, &samples->digest[from + i]))
				return torn(c, x->shard, e); /* (2) */
		}
	}
	return 0;
}
