/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes, flat ranges and the checks of one shard. Pure; any thread.
 *
 * 1. Products of extents are formed only through checked arithmetic or after shard_check() has
 *    bounded the whole tensor's bytes: no index or stride inside a checked box overflows.
 * 2. A box with a zero extent has no elements, whatever its other extents are; nothing forms a
 *    stride of such a box.
 */
#include <config.h>

#include "model/tensor.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

uint32_t dtype_bytes(uint32_t dtype)
{
	switch (dtype) {
#define X(name, value, bits, text)                                                                 \
	case value:                                                                                \
		return (bits) / 8;
		CKPT_DTYPES(X)
#undef X
	default:
		return 0;
	}
}

const char *dtype_name(uint32_t dtype)
{
	switch (dtype) {
#define X(name, value, bits, text)                                                                 \
	case value:                                                                                \
		return text;
		CKPT_DTYPES(X)
#undef X
	default:
		return NULL;
	}
}

static bool product(const uint64_t *extents, uint32_t n, uint64_t *ret)
{
	uint64_t all = 1;

	for (uint32_t i = 0; i < n; i++)
		if (extents[i] == 0) {
			*ret = 0;
			return true;
		}
	for (uint32_t i = 0; i < n; i++)
		if (!size_mul(all, extents[i], &all))
			return false;
	*ret = all;
	return true;
}

bool shape_elements(const struct shape *s, uint64_t *ret)
{
	assert(s->ndim <= CKPT_NDIM_MAX);
	return product(s->dim, s->ndim, ret);
}

bool box_elements(const struct box *b, uint64_t *ret)
{
	assert(b->ndim <= CKPT_NDIM_MAX);
	return product(b->length, b->ndim, ret);
}

bool box_inside(const struct box *b, const struct shape *s)
{
	if (b->ndim != s->ndim)
		return false;
	for (uint32_t i = 0; i < b->ndim; i++)
		if (b->offset[i] > s->dim[i] || b->length[i] > s->dim[i] - b->offset[i])
			return false;
	return true;
}

bool box_intersect(const struct box *a, const struct box *b, struct box *ret)
{
	struct box x = { .ndim = a->ndim };

	assert(a->ndim == b->ndim && a->ndim <= CKPT_NDIM_MAX);
	for (uint32_t i = 0; i < a->ndim; i++) {
		uint64_t lo = max_u64(a->offset[i], b->offset[i]);
		uint64_t hi = min_u64(a->offset[i] + a->length[i], b->offset[i] + b->length[i]);

		if (lo >= hi)
			return false;
		x.offset[i] = lo;
		x.length[i] = hi - lo;
	}
	*ret = x;
	return true;
}

uint64_t box_index(const struct box *box, const uint64_t at[CKPT_NDIM_MAX])
{
	uint64_t index = 0;

	for (uint32_t i = 0; i < box->ndim; i++) {
		assert(at[i] - box->offset[i] < box->length[i]);
		index = index * box->length[i] + (at[i] - box->offset[i]);
	}
	return index;
}

/* The longest run of whole sub-boxes from element pos on that ends at or before stop, as one box;
 * returns the elements in it. */
static uint64_t flat_step(const struct box *box, const uint64_t *stride, uint64_t pos,
			  uint64_t stop, struct box *ret)
{
	uint64_t rest = pos, n;
	uint32_t k = 0;

	assert(pos < stop && box->ndim > 0);
	while (pos % stride[k] != 0 || stop - pos < stride[k])
		k++; /* ends: the innermost stride is 1 */
	*ret = *box;
	for (uint32_t i = 0; i <= k; i++) {
		ret->offset[i] = box->offset[i] + rest / stride[i];
		ret->length[i] = 1;
		rest %= stride[i];
	}
	n = min_u64(box->offset[k] + box->length[k] - ret->offset[k], (stop - pos) / stride[k]);
	ret->length[k] = n;
	return n * stride[k];
}

/*
 * Outward and in again: boxes first lie ever further out (the end of a row, the end of a plane,
 * ...), then, once less than a whole outer sub-box is left, ever further in. Each dimension but
 * the outermost is met at most twice: 2 * ndim - 1 boxes.
 */
int flat_to_boxes(const struct box *box, uint64_t start, uint64_t stop,
		  struct box ret[FLAT_BOXES_MAX])
{
	uint64_t stride[CKPT_NDIM_MAX], step = 1;
	int n = 0;

	if (start >= stop)
		return 0;
	if (box->ndim == 0) {
		ret[0] = *box;
		return 1;
	}
	for (uint32_t i = box->ndim; i-- > 0;) {
		stride[i] = step;
		step *= box->length[i];
	}
	assert(stop <= step);
	while (start < stop) {
		assert(n < 2 * (int)box->ndim - 1);
		start += flat_step(box, stride, start, stop, &ret[n++]);
	}
	return n;
}

int shard_boxes(const struct shard *s, struct box ret[FLAT_BOXES_MAX])
{
	if (s->start == s->stop)
		return 0;
	if (s->flat)
		return flat_to_boxes(&s->box, s->start, s->stop, ret);
	ret[0] = s->box;
	return 1;
}

static int check_name(const struct shard *s, struct err *e)
{
	if (s->name_len == 0)
		return err_set(e, CKPT_EPROTO, "a tensor has an empty name");
	if (s->name_len > CKPT_NAME_MAX)
		return err_set(e, CKPT_EPROTO,
			       "a tensor's name has %u bytes: at most %d are allowed", s->name_len,
			       CKPT_NAME_MAX);
	if (memchr(s->name, '\0', s->name_len))
		return err_set(e, CKPT_EPROTO, "a tensor's name of %u bytes contains a NUL byte",
			       s->name_len);
	return 0;
}

static const char *own_name(char buf[NAME_TEXT_MAX], const struct shard *s)
{
	return name_text(buf, s->name, s->name_len);
}

int shard_check(struct shard *s, struct err *e)
{
	char buf[NAME_TEXT_MAX], box[BOX_TEXT_MAX], shape[BOX_TEXT_MAX];
	uint64_t elements, all, whole;
	int r = check_name(s, e);
	bool fits;

	if (r)
		return r;
	if (!dtype_bytes(s->dtype))
		return err_set(e, CKPT_EPROTO, "tensor '%s' has an unknown dtype %u",
			       own_name(buf, s), s->dtype);
	if (s->global.ndim > CKPT_NDIM_MAX || s->box.ndim != s->global.ndim)
		return err_set(e, CKPT_EPROTO,
			       "tensor '%s' has %u dimensions, its box %u: they must be equal and "
			       "at most %d",
			       own_name(buf, s), s->global.ndim, s->box.ndim, CKPT_NDIM_MAX);
	if (!box_inside(&s->box, &s->global))
		return err_set(e, CKPT_EPROTO, "box %s of tensor '%s' is not inside its shape %s",
			       box_text(box, &s->box), own_name(buf, s),
			       shape_text(shape, &s->global));
	if (!shape_elements(&s->global, &all) || !size_mul(all, dtype_bytes(s->dtype), &whole))
		return err_set(e, CKPT_EPROTO, "tensor '%s' of shape %s has more than 2^64 bytes",
			       own_name(buf, s), shape_text(shape, &s->global));
	fits = box_elements(&s->box, &elements);
	assert(fits && elements <= all); /* the box is inside: bytes cannot overflow either */
	if (!s->flat) {
		s->start = 0;
		s->stop = elements;
	} else if (s->start > s->stop || s->stop > elements) {
		return err_set(e, CKPT_EPROTO,
			       "flat range [%llu, %llu) of tensor '%s' is not inside the %llu "
			       "elements of its box",
			       (unsigned long long)s->start, (unsigned long long)s->stop,
			       own_name(buf, s), (unsigned long long)elements);
	}
	s->bytes = (s->stop - s->start) * dtype_bytes(s->dtype);
	return 0;
}

int name_compare(const char *a, uint32_t a_len, const char *b, uint32_t b_len)
{
	int c = memcmp(a, b, min_u64(a_len, b_len));

	if (c)
		return c;
	return a_len < b_len ? -1 : a_len > b_len;
}

const char *name_text(char buf[NAME_TEXT_MAX], const char *name, uint32_t len)
{
	enum { HALF = (NAME_TEXT_MAX - 4) / 2 };

	if (len < NAME_TEXT_MAX) {
		memcpy(buf, name, len);
	} else {
		/* Names of a model begin alike: the end says most. */
		memcpy(buf, name, HALF);
		memcpy(buf + HALF, "...", 3);
		memcpy(buf + HALF + 3, name + len - HALF, HALF);
		len = 2 * HALF + 3;
	}
	buf[len] = '\0';
	for (uint32_t i = 0; i < len; i++)
		if ((unsigned char)buf[i] < 0x20 || buf[i] == 0x7f)
			buf[i] = '?';
		else if ((unsigned char)buf[i] == 0xc2 && (unsigned char)buf[i + 1] >= 0x80 &&
			 (unsigned char)buf[i + 1] < 0xa0) /* U+0080 to U+009F */
			buf[i] = buf[i + 1] = '?';
	return buf;
}

/* Appends to what buf holds; cut at its end. */
static void text_add(char buf[BOX_TEXT_MAX], const char *before, uint64_t a, const char *between,
		     const uint64_t *b)
{
	size_t used = strlen(buf);

	if (b)
		snprintf(buf + used, BOX_TEXT_MAX - used, "%s%llu%s%llu", before,
			 (unsigned long long)a, between, (unsigned long long)*b);
	else
		snprintf(buf + used, BOX_TEXT_MAX - used, "%s%llu", before, (unsigned long long)a);
}

static void text_end(char buf[BOX_TEXT_MAX])
{
	size_t used = strlen(buf);

	snprintf(buf + used, BOX_TEXT_MAX - used, "]");
}

const char *box_text(char buf[BOX_TEXT_MAX], const struct box *b)
{
	strcpy(buf, "[");
	for (uint32_t i = 0; i < b->ndim && i < CKPT_NDIM_MAX; i++) {
		uint64_t end = b->offset[i] + b->length[i];

		text_add(buf, i ? ", " : "", b->offset[i], ":", &end);
	}
	text_end(buf);
	return buf;
}

const char *shape_text(char buf[BOX_TEXT_MAX], const struct shape *s)
{
	strcpy(buf, "[");
	for (uint32_t i = 0; i < s->ndim && i < CKPT_NDIM_MAX; i++)
		text_add(buf, i ? ", " : "", s->dim[i], "", NULL);
	text_end(buf);
	return buf;
}
