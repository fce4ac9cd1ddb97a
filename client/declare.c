/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declare.c - what the state is, said once, and whether bindings fit what was said.
 *
 * The declaration is built in declared order and ends with ckpt_prepare(). From then on a shard's
 * place in the image and its size are known by declared index, so that a save looks nothing up.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "client/client.h"
#include "client/memfd.h"
#include "model/strided.h"

#define INLINE_MAX (32u << 10) /* larger declarations travel in a memfd */

/* ---- Declaring ---- */

static int dims_copy(uint64_t dst[CKPT_NDIM_MAX], const uint64_t *src, const uint64_t *otherwise,
		     int ndim)
{
	if (ndim && !src && !otherwise)
		return -EINVAL;
	for (int k = 0; k < ndim; k++)
		dst[k] = src ? src[k] : otherwise[k];
	return 0;
}

static int shard_from(const struct ckpt_tensor *given, struct shard *ret, struct err *e)
{
	static const uint64_t zeros[CKPT_NDIM_MAX];
	struct ckpt_tensor t = { .size = sizeof(t) };
	size_t name_len;

	if (!given || given->size < offsetof(struct ckpt_tensor, offset))
		return err_set(e, -EINVAL, "tensor: size must be set to sizeof(struct "
			       "ckpt_tensor)");
	memcpy(&t, given, min_u64(given->size, sizeof(t)));
	name_len = t.name ? strnlen(t.name, CKPT_NAME_MAX + 1) : 0;
	if (name_len == 0 || name_len > CKPT_NAME_MAX)
		return err_set(e, -EINVAL, "tensor: its name must have 1 to %d bytes",
			       CKPT_NAME_MAX);
	if (t.ndim < 0 || t.ndim > CKPT_NDIM_MAX)
		return err_set(e, -EINVAL, "tensor '%s': %d dimensions, at most %d are possible",
			       t.name, t.ndim, CKPT_NDIM_MAX);
	if (t.flags & ~(CKPT_FLAT | CKPT_TRAINED))
		return err_set(e, -EINVAL, "tensor '%s': unknown flags %#x", t.name, t.flags);
	*ret = (struct shard){
		.name = t.name,
		.name_len = (uint32_t)name_len,
		.dtype = (uint32_t)t.dtype,
		.global.ndim = (uint32_t)t.ndim,
		.box.ndim = (uint32_t)t.ndim,
		.flat = t.flags & CKPT_FLAT,
		.trained = t.flags & CKPT_TRAINED,
		.start = t.flags & CKPT_FLAT ? t.start : 0,
		.stop = t.flags & CKPT_FLAT ? t.stop : 0,
	};
	if (dims_copy(ret->global.dim, t.global_shape, NULL, t.ndim) < 0)
		return err_set(e, -EINVAL, "tensor '%s': global_shape is missing", t.name);
	ignore_result(dims_copy(ret->box.offset, t.offset, zeros, t.ndim) /* zeros are there */);
	return dims_copy(ret->box.length, t.shape, t.global_shape, t.ndim);
}

/* To a declaration such a tensor is malformed; here it is an argument. */
static int callers_fault(int r, struct err *e)
{
	if (r != CKPT_EPROTO)
		return r;
	if (e)
		e->code = -EINVAL;
	return -EINVAL;
}

int wanted_add(struct wanted *w, const struct ckpt_tensor *t, struct err *e)
{
	struct shard s;
	int r = shard_from(t, &s, e);

	if (r == 0)
		r = callers_fault(declaration_add(w->builder, &s, e), e);
	if (r < 0)
		return r;
	w->n_shards++;
	assert((uint32_t)r == w->n_shards - 1);
	return r;
}

/* Of what is stored from now on; what is read may have been stored before this was asked for. */
static int name_check(const struct ckpt_tensor *t, struct err *e)
{
	size_t len;

	if (!t || t->size < offsetof(struct ckpt_tensor, dtype) || !t->name)
		return 0; /* wanted_add() says so */
	len = strnlen(t->name, CKPT_NAME_MAX);
	if (text_utf8_len(t->name, len) == len)
		return 0;
	return err_set(e, -EINVAL,
		       "tensor: its name of %zu bytes is not UTF-8 behind the first %zu; encode it",
		       len, text_utf8_len(t->name, len));
}

int ckpt_declare(struct ckpt *c, const struct ckpt_tensor *t)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_declare", r, &e);
	if (!c->own.builder)
		r = err_set(&e, CKPT_ESTATE,
			    "the declaration has ended with prepare or the "
			    "first save or load; open the job again to change it");
	if (r == 0)
		r = name_check(t, &e);
	if (r == 0)
		r = wanted_add(&c->own, t, &e);
	return call_leave_plain(c, "ckpt_declare", r, &e);
}

/* ---- Ending ---- */

static void bound_fill(struct wanted *w)
{
	struct shard s;

	w->bytes = 0;
	for (uint32_t i = 0; i < w->view.n_shards; i++) {
		struct bound *b = &w->shards[declaration_order(&w->view, i)];

		declaration_get(&w->view, i, &s);
		*b = (struct bound){
			.bytes = s.bytes,
			.image_offset = s.image_offset,
			.sorted = i,
			.dtype = (uint16_t)s.dtype,
			.ndim = (uint8_t)s.box.ndim,
			.flat = s.flat,
		};
		w->bytes += s.bytes; /* they lie side by side in one image: no overflow */
	}
}

int wanted_finish(struct wanted *w, struct err *e)
{
	void *bytes = NULL;
	struct bound *shards;
	struct declaration view;
	size_t len = 0;
	int r;

	if (w->declaration)
		return 0;
	assert(w->builder);
	shards = alloc_array(w->n_shards, sizeof(*shards));
	if (!shards)
		return err_code(e, -ENOMEM, "declare %u tensors", w->n_shards);
	r = callers_fault(declaration_finish(w->builder, &bytes, &len, e), e);
	if (r == 0)
		r = declaration_open(bytes, len, &view, e);
	if (r < 0) {
		alloc_free(bytes);
		alloc_free(shards);
		return r;
	}
	assert(view.n_shards == w->n_shards);
	w->declaration = bytes;
	w->declaration_len = len;
	w->view = view;
	w->shards = shards;
	bound_fill(w);
	declaration_builder_free(w->builder);
	w->builder = NULL;
	return 0;
}

void wanted_fini(struct wanted *w)
{
	declaration_builder_free(w->builder);
	alloc_free(w->shards);
	alloc_free(w->declaration);
	*w = (struct wanted){0};
}

int declare_finish(struct ckpt *c, struct err *e)
{
	int r = wanted_finish(&c->own, e);

	if (r == 0)
		c->digest = declaration_digest(c->own.declaration, c->own.declaration_len);
	return r;
}

int declare_send(struct ckpt *c, uint64_t deadline, struct err *e)
{
	Ckpt__Declare declare = CKPT__DECLARE__INIT;
	struct request q;
	int r;

	assert(c->own.declaration);
	request_init(&q, e);
	declare.digest = (ProtobufCBinaryData){ sizeof(c->digest.b), c->digest.b };
	if (c->own.declaration_len <= INLINE_MAX) {
		declare.bytes = (ProtobufCBinaryData){c->own.declaration_len, c->own.declaration};
	} else {
		q.fd = memfd_from_bytes(c->own.declaration, c->own.declaration_len);
		if (q.fd < 0)
			return err_code(e, q.fd, "hand over a declaration of %zu bytes",
					c->own.declaration_len);
		declare.in_fd = true;
	}
	q.message.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.message.declare = &declare;
	r = session_call(c, &q, deadline);
	if (q.fd >= 0)
		close(q.fd);
	return r;
}

/* ---- Binding ---- */

void declared_shard(const struct wanted *w, uint32_t i, struct shard *ret)
{
	assert(i < w->n_shards);
	declaration_get(&w->view, w->shards[i].sorted, ret);
}

static int binding_refuse(const struct wanted *w, size_t i, const char *what, uint64_t got,
			  uint64_t want, struct err *e)
{
	char name[NAME_TEXT_MAX];
	struct shard s;

	declared_shard(w, (uint32_t)i, &s);
	return err_set(e, -EINVAL, "tensor '%s' (binding %zu): %s is %llu, declared is %llu",
		       name_text(name, s.name, s.name_len), i, what, (unsigned long long)got,
		       (unsigned long long)want);
}

/* Where the elements are, without a wrap: what is read with other strides than were meant is other
 * memory. */
static int reach_check(const struct wanted *w, size_t i, const struct ckpt_binding *b,
		       struct err *e)
{
	int64_t lo = 0, hi = (int64_t)b->bytes;
	char name[NAME_TEXT_MAX];
	struct shard s;
	bool fits = b->bytes <= (uint64_t)STRIDED_REACH_MAX;

	if (b->bytes == 0)
		return 0;
	if (b->strides) { /* else it need not be looked up: there may be many */
		declared_shard(w, (uint32_t)i, &s);
		fits = strided_reach(&s, b->strides, &lo, &hi);
	}
	if (fits && (uintptr_t)b->ptr >= (uint64_t)-lo &&
	    (uintptr_t)b->ptr <= UINT64_MAX - (uint64_t)hi)
		return 0;
	declared_shard(w, (uint32_t)i, &s);
	return err_set(e, -EINVAL,
		       "tensor '%s' (binding %zu): its %llu bytes from %p on with these strides "
		       "are not in memory",
		       name_text(name, s.name, s.name_len), i, (unsigned long long)b->bytes,
		       b->ptr);
}

static int binding_check(const struct wanted *w, size_t i, const struct ckpt_binding *b,
			 struct err *e)
{
	const struct bound *s = &w->shards[i];

	if (b->dtype != s->dtype)
		return binding_refuse(w, i, "dtype", (uint64_t)b->dtype, s->dtype, e);
	if (b->bytes != s->bytes)
		return binding_refuse(w, i, "bytes", b->bytes, s->bytes, e);
	if (!b->ptr && s->bytes)
		return binding_refuse(w, i, "address", 0, s->bytes, e);
	if (b->strides && s->flat)
		return binding_refuse(w, i, "strides of a flat range, dimensions", s->ndim, 1, e);
	if (b->strides && b->ndim != s->ndim)
		return binding_refuse(w, i, "ndim of strides", b->ndim, s->ndim, e);
	if (b->device < CKPT_HOST)
		return err_set(e, -EINVAL, "binding %zu: there is no device %d", i, b->device);
	return reach_check(w, i, b, e);
}

int bindings_check(const struct wanted *w, const struct ckpt_binding *b, size_t n, struct err *e)
{
	int r = 0;

	if (n != w->n_shards)
		return err_set(e, -EINVAL, "%zu tensors are bound, %u are declared", n,
			       w->n_shards);
	if (n && !b)
		return err_set(e, -EINVAL, "bindings are missing");
	for (size_t i = 0; i < n && r == 0; i++)
		r = binding_check(w, i, &b[i], e);
	return r;
}
