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
#include "client/client.h"
#include "client/memfd.h"

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

int ckpt_declare(struct ckpt *c, const struct ckpt_tensor *t)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);
	struct shard s;

	if (r == 0 && !c->builder)
		r = err_set(&e, CKPT_ESTATE, "the declaration has ended with ckpt_prepare() or "
			    "the first save or load; open the job anew to change it");
	if (r == 0)
		r = shard_from(t, &s, &e);
	if (r == 0)
		r = callers_fault(declaration_add(c->builder, &s, &e), &e);
	if (r < 0)
		return error_keep("ckpt_declare", r, &e);
	c->n_shards++;
	assert((uint32_t)r == c->n_shards - 1);
	return r;
}

/* ---- Ending ---- */

static void bound_fill(struct ckpt *c)
{
	struct shard s;

	c->wanted_bytes = 0;
	for (uint32_t i = 0; i < c->view.n_shards; i++) {
		struct bound *b = &c->shards[declaration_order(&c->view, i)];

		declaration_get(&c->view, i, &s);
		*b = (struct bound){
			.bytes = s.bytes,
			.image_offset = s.image_offset,
			.sorted = i,
			.dtype = (uint16_t)s.dtype,
			.ndim = (uint8_t)s.box.ndim,
			.flat = s.flat,
		};
		c->wanted_bytes += s.bytes; /* they lie side by side in one image: no overflow */
	}
}

int declare_finish(struct ckpt *c, struct err *e)
{
	void *bytes = NULL;
	struct bound *shards;
	struct declaration view;
	size_t len = 0;
	int r;

	if (c->declaration)
		return 0;
	assert(c->builder);
	shards = alloc_array(c->n_shards, sizeof(*shards));
	if (!shards)
		return err_code(e, -ENOMEM, "declare %u tensors", c->n_shards);
	r = callers_fault(declaration_finish(c->builder, &bytes, &len, e), e);
	if (r == 0)
		r = declaration_open(bytes, len, &view, e);
	if (r < 0) {
		alloc_free(bytes);
		alloc_free(shards);
		return r;
	}
	assert(view.n_shards == c->n_shards);
	c->declaration = bytes;
	c->declaration_len = len;
	c->view = view;
	c->digest = declaration_digest(bytes, len);
	c->shards = shards;
	bound_fill(c);
	declaration_builder_free(c->builder);
	c->builder = NULL;
	return 0;
}

int declare_send(struct ckpt *c, uint64_t deadline, struct err *e)
{
	Ckpt__Declare declare = CKPT__DECLARE__INIT;
	struct request q;
	int r;

	assert(c->declaration);
	request_init(&q, e);
	declare.digest = (ProtobufCBinaryData){ sizeof(c->digest.b), c->digest.b };
	if (c->declaration_len <= INLINE_MAX) {
		declare.bytes = (ProtobufCBinaryData){ c->declaration_len, c->declaration };
	} else {
		q.fd = memfd_from_bytes(c->declaration, c->declaration_len);
		if (q.fd < 0)
			return err_code(e, q.fd, "hand over a declaration of %zu bytes",
					c->declaration_len);
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

void declared_shard(const struct ckpt *c, uint32_t i, struct shard *ret)
{
	assert(i < c->n_shards);
	declaration_get(&c->view, c->shards[i].sorted, ret);
}

static int binding_refuse(const struct ckpt *c, size_t i, const char *what, uint64_t got,
			  uint64_t want, struct err *e)
{
	char name[NAME_TEXT_MAX];
	struct shard s;

	declared_shard(c, (uint32_t)i, &s);
	return err_set(e, -EINVAL, "tensor '%s' (binding %zu): %s is %llu, declared is %llu",
		       name_text(name, s.name, s.name_len), i, what, (unsigned long long)got,
		       (unsigned long long)want);
}

static int binding_check(const struct ckpt *c, size_t i, const struct ckpt_binding *b,
			 struct err *e)
{
	const struct bound *s = &c->shards[i];

	if (b->dtype != s->dtype)
		return binding_refuse(c, i, "dtype", (uint64_t)b->dtype, s->dtype, e);
	if (b->bytes != s->bytes)
		return binding_refuse(c, i, "bytes", b->bytes, s->bytes, e);
	if (!b->ptr && s->bytes)
		return binding_refuse(c, i, "address", 0, s->bytes, e);
	if (b->strides && s->flat)
		return binding_refuse(c, i, "strides of a flat range, dimensions", s->ndim, 1, e);
	if (b->device < CKPT_HOST)
		return binding_refuse(c, i, "device", (uint64_t)b->device, 0, e);
	return 0;
}

int bindings_check(const struct ckpt *c, const struct ckpt_binding *b, size_t n, struct err *e)
{
	int r = 0;

	if (n != c->n_shards)
		return err_set(e, -EINVAL, "%zu tensors are bound, %u are declared", n,
			       c->n_shards);
	if (n && !b)
		return err_set(e, -EINVAL, "bindings are missing");
	for (size_t i = 0; i < n && r == 0; i++)
		r = binding_check(c, i, &b[i], e);
	return r;
}
