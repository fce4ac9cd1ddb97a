/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stored.c - what a checkpoint holds, and reads of any part of it.
 *
 * Opening asks ckptd once (Stored) and keeps its answer: nothing is held there meanwhile. A read
 * names the checkpoint by its attempt, so that it is that one or none, and is a load (load.c) of
 * what the call wants instead of what the handle declares: the same plan, verification and
 * placement.
 *
 * On the caller's thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/image.h"
#include "client/load.h"
#include "client/memfd.h"
#include "model/stored.h"

#define STORED_BYTES_MAX (4ull << 30)
#define WANTS_INLINE_MAX (32u << 10) /* larger ones travel in a memfd */

struct ckpt_stored {
	struct ckpt *c;
	struct ckpt_info info;
	void *bytes; /* what held points into */
	struct stored held;
	uint64_t *first; /* world + 1: how many shards are before those of a rank */
	char shard_name[CKPT_NAME_MAX + 1], blob_name[CKPT_NAME_MAX + 1];
};

struct looking {
	struct request q;
	struct ckpt_stored *s;
};

/* ---- Opening ---- */

static int take_answer(struct ckpt_stored *s, int fd, struct err *e)
{
	size_t len;
	int r = memfd_read(fd, STORED_BYTES_MAX, &s->bytes, &len);

	if (r < 0)
		return err_code(e, r, "read what the checkpoint holds");
	r = stored_decode(s->bytes, len, &s->held, e);
	if (r < 0)
		return r;
	s->first = alloc_array((size_t)s->held.world + 1, sizeof(*s->first));
	if (!s->first)
		return err_code(e, -ENOMEM, "take what the checkpoint holds");
	for (uint32_t i = 0; i < s->held.world; i++)
		s->first[i + 1] =
			s->first[i] + s->held.declarations[s->held.declaration_of[i]].n_shards;
	return 0;
}

static int stored_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct looking *l = container_of(q, struct looking, q);

	if (q->status < 0)
		return 0;
	if (reply->body_case != CKPT__REPLY__BODY_STORED || n_fds != 1 || !reply->stored->info)
		return err_set(q->err, CKPT_EPROTO,
			       "ckptd answered with something else than what is stored");
	info_from(reply->stored->info, &l->s->info);
	return take_answer(l->s, fds[0], q->err);
}

static int look(struct ckpt *c, struct ckpt_stored *s, uint64_t step, int64_t timeout_ms,
		struct err *e)
{
	Ckpt__Stored body = CKPT__STORED__INIT;
	struct looking l = {.s = s};
	int r = timeout_check(timeout_ms, e);
	uint64_t deadline = r < 0 ? 0 : call_deadline(c, timeout_ms);

	if (r < 0)
		return r;
	r = -EAGAIN;

	/* A copy of it was found bad while it was looked at: the next one may be good. */
	for (int n = 0; n < LOAD_TRIES_MAX && r == -EAGAIN; n++) {
		body.step = step;
		body.min_trust = c->who.min_trust;
		request_init(&l.q, e);
		l.q.message.body_case = CKPT__REQUEST__BODY_STORED;
		l.q.message.stored = &body;
		l.q.reply = stored_reply;
		r = session_call(c, &l.q, deadline);
	}
	if (r < 0)
		return r;
	if (l.q.bits & CKPT_NOTHING)
		return CKPT_NOTHING;
	return s->bytes ? 0 : err_set(e, CKPT_EPROTO, "ckptd did not say what is stored");
}

int ckpt_stored_open(struct ckpt *c, uint64_t step, int64_t timeout_ms, struct ckpt_stored **ret)
{
	struct ckpt_stored *s;
	struct err e = {0};
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_stored_open", r, &e);
	c->patient = true;
	s = ret ? alloc_zero(sizeof(*s)) : NULL;
	if (!s)
		return call_leave_plain(c, "ckpt_stored_open", ret ? -ENOMEM : -EINVAL, NULL);
	s->c = c;
	beating_begin(c->beat, CKPT_PHASE_LOAD, "look");
	r = look(c, s, step, timeout_ms, &e);
	beating_end(c->beat);
	if (r == 0)
		*ret = s;
	else
		ckpt_stored_close(s);
	return call_leave(c, "ckpt_stored_open", r, &e);
}

void ckpt_stored_close(struct ckpt_stored *s)
{
	if (!s)
		return;
	stored_fini(&s->held);
	alloc_free(s->first);
	alloc_free(s->bytes);
	alloc_free(s);
}

/* ---- Looking ---- */

int ckpt_stored_info(const struct ckpt_stored *s, struct ckpt_info *ret)
{
	if (!s || !ret)
		return error_keep("ckpt_stored_info", -EINVAL, NULL);
	*ret = s->info;
	return CKPT_OK;
}

/* The rank whose shards the i-th is among. */
static uint32_t rank_of_shard(const struct ckpt_stored *s, uint64_t i)
{
	uint32_t lo = 0, hi = s->held.world;

	assert(i < s->first[hi]);
	while (hi - lo > 1) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (s->first[mid] <= i)
			lo = mid;
		else
			hi = mid;
	}
	return lo;
}

static void shard_to(struct ckpt_stored *s, uint32_t rank, const struct shard *h,
		     struct ckpt_stored_shard *ret)
{
	*ret = (struct ckpt_stored_shard){
		.size = sizeof(*ret),
		.rank = (int)rank,
		.name = s->shard_name,
		.dtype = (int)h->dtype,
		.ndim = (int)h->box.ndim,
		.flags = (h->flat ? CKPT_FLAT : 0) | (h->trained ? CKPT_TRAINED : 0),
		.start = h->start,
		.stop = h->stop,
		.bytes = h->bytes,
	};
	for (uint32_t k = 0; k < h->box.ndim; k++) {
		ret->global_shape[k] = h->global.dim[k];
		ret->offset[k] = h->box.offset[k];
		ret->shape[k] = h->box.length[k];
	}
	memcpy(s->shard_name, h->name, h->name_len);
	s->shard_name[h->name_len] = '\0';
}

int ckpt_stored_shard_at(struct ckpt_stored *s, uint64_t i, struct ckpt_stored_shard *ret)
{
	struct ckpt_stored_shard out;
	struct err e = {0};
	struct shard h;
	uint32_t rank;
	size_t size;
	int r = 0;

	if (!s || !ret || ret->size < offsetof(struct ckpt_stored_shard, bytes))
		r = err_set(&e, -EINVAL,
			    "result: size must be set to sizeof(struct "
			    "ckpt_stored_shard)");
	else if (i >= s->first[s->held.world])
		r = err_set(&e, CKPT_ENOTFOUND, "step %llu has no shard %llu",
			    (unsigned long long)s->info.step, (unsigned long long)i);
	if (r < 0)
		return error_keep("ckpt_stored_shard_at", r, &e);
	rank = rank_of_shard(s, i);
	declaration_get(&s->held.declarations[s->held.declaration_of[rank]],
			(uint32_t)(i - s->first[rank]), &h);
	shard_to(s, rank, &h, &out);
	size = ret->size;
	out.size = size;
	memcpy(ret, &out, min_u64(size, sizeof(out)));
	return CKPT_OK;
}

int ckpt_stored_blob_at(struct ckpt_stored *s, uint64_t i, struct ckpt_stored_blob *ret)
{
	const struct stored_blob *b;
	struct err e = {0};
	int r = 0;

	if (!s || !ret)
		r = -EINVAL;
	else if (i >= s->held.n_blobs)
		r = err_set(&e, CKPT_ENOTFOUND, "step %llu has no blob %llu",
			    (unsigned long long)s->info.step, (unsigned long long)i);
	if (r < 0)
		return error_keep("ckpt_stored_blob_at", r, &e);
	b = &s->held.blobs[i];
	memcpy(s->blob_name, b->name, b->name_len);
	s->blob_name[b->name_len] = '\0';
	*ret = (struct ckpt_stored_blob){
		.rank = (int)b->rank, .name = s->blob_name, .bytes = b->bytes};
	return CKPT_OK;
}

/* ---- Reading ---- */

struct reading {
	struct ckpt_read_args a;
	struct wanted wanted;
	struct stored_blob *blobs;
	struct writer wants;
	Ckpt__Read message;
	int fd; /* the wants', where they do not fit the message; -1 */
};

static int read_args_known(const struct ckpt_read_args *a, struct ckpt_read_args *ret,
			   struct err *e)
{
	struct ckpt_read_args known = {.timeout_ms = CKPT_DEFAULT_TIMEOUT};

	if (!a || a->size < offsetof(struct ckpt_read_args, timeout_ms))
		return err_set(e, -EINVAL,
			       "arguments: size must be set to sizeof(struct "
			       "ckpt_read_args)");
	memcpy(&known, a, min_u64(a->size, sizeof(known)));
	if (known.flags & ~(CKPT_LENIENT | CKPT_RESUME))
		return err_set(e, -EINVAL, "unknown flags %#x", known.flags);
	if ((known.n_tensors && (!known.wants || !known.tensors)) ||
	    (known.n_blobs && !known.blobs))
		return err_set(e, -EINVAL, "what is wanted, or where it goes, is missing");
	if (known.n_tensors > INT_MAX || known.n_blobs > READ_BLOBS_MAX)
		return err_set(e, -E2BIG, "%zu tensors and %zu blobs are too many for one read",
			       known.n_tensors, known.n_blobs);
	*ret = known;
	return timeout_check(known.timeout_ms, e);
}

static int want_tensors(const struct ckpt_stored *s, struct reading *d, struct err *e)
{
	int r;

	if (d->a.n_tensors == 0)
		return 0;
	r = declaration_builder_new(s->c->geometry, &d->wanted.builder);
	if (r < 0)
		return err_code(e, r, "want %zu tensors", d->a.n_tensors);
	for (size_t i = 0; i < d->a.n_tensors && r >= 0; i++)
		r = wanted_add(&d->wanted, &d->a.wants[i], e);
	if (r >= 0)
		r = wanted_finish(&d->wanted, e);
	if (r == 0)
		r = bindings_check(&d->wanted, d->a.tensors, d->a.n_tensors, e);
	return r == 0 ? image_devices(s->c, &d->wanted, d->a.tensors, e) : r;
}

static int want_blobs(struct reading *d, struct err *e)
{
	d->blobs = alloc_array(d->a.n_blobs, sizeof(*d->blobs));
	if (!d->blobs)
		return err_code(e, -ENOMEM, "want %zu blobs", d->a.n_blobs);
	for (size_t i = 0; i < d->a.n_blobs; i++) {
		const struct ckpt_stored_blob *b = &d->a.blobs[i];
		size_t len = b->name ? strnlen(b->name, CKPT_NAME_MAX + 1) : 0;

		if (b->rank < 0 || len == 0 || len > CKPT_NAME_MAX || (b->bytes && !b->data))
			return err_set(e, -EINVAL,
				       "blob %zu: rank, name, or where it goes is "
				       "missing",
				       i);
		d->blobs[i] = (struct stored_blob){
			.rank = (uint32_t)b->rank, .name = b->name, .name_len = (uint32_t)len};
	}
	return 0;
}

static int make_message(struct ckpt_stored *s, struct reading *d, struct err *e)
{
	int r = read_wants_encode(d->wanted.declaration, d->wanted.declaration_len, d->blobs,
				  (uint32_t)d->a.n_blobs, &d->wants);

	if (r < 0)
		return err_code(e, r, "read step %llu", (unsigned long long)s->info.step);
	d->message = (Ckpt__Read)CKPT__READ__INIT;
	d->message.step = s->info.step;
	d->message.attempt = (ProtobufCBinaryData){sizeof(s->info.attempt), s->info.attempt};
	d->message.lenient = d->a.flags & CKPT_LENIENT;
	if (d->wants.len <= WANTS_INLINE_MAX) {
		d->message.wants = (ProtobufCBinaryData){d->wants.len, d->wants.buf};
		return 0;
	}
	d->fd = memfd_from_bytes(d->wants.buf, d->wants.len);
	d->message.in_fd = true;
	return d->fd < 0 ? err_code(e, d->fd, "hand over a wish of %zu bytes", d->wants.len) : 0;
}

static int read_parts(struct ckpt_stored *s, struct reading *d, struct ckpt_loaded *ret,
		      struct err *e)
{
	struct load_order o;
	int r = want_tensors(s, d, e);

	if (r == 0)
		r = want_blobs(d, e);
	if (r == 0)
		r = make_message(s, d, e);
	if (r < 0)
		return r;
	o = (struct load_order){
		.step = s->info.step,
		.timeout_ms = d->a.timeout_ms,
		.lenient = d->a.flags & CKPT_LENIENT,
		.enter = d->a.flags & CKPT_RESUME,
		.wanted = &d->wanted,
		.tensors = d->a.tensors,
		.read = &d->message,
		.read_fd = d->fd,
		.blobs = d->a.blobs,
		.n_blobs = (uint32_t)d->a.n_blobs,
	};
	return load_tries(s->c, &o, ret, e);
}

static int stored_read(struct ckpt_stored *s, const struct ckpt_read_args *args,
		       struct ckpt_loaded *ret, struct err *e)
{
	struct reading d = {.fd = -1};
	int r = read_args_known(args, &d.a, e);

	if (r == 0 && ret && ret->size < sizeof(ret->size))
		r = err_set(e, -EINVAL, "result: size must be set to sizeof(struct ckpt_loaded)");
	if (r == 0)
		r = overlap_ended(s->c, e);
	if (r == 0 && d.a.flags & CKPT_RESUME)
		r = call_as_rank(s->c, e);
	if (r < 0)
		return r;
	beating_begin(s->c->beat, CKPT_PHASE_LOAD, "read");
	r = read_parts(s, &d, ret, e);
	beating_end(s->c->beat);
	if (d.fd >= 0)
		close(d.fd);
	writer_free(&d.wants);
	alloc_free(d.blobs);
	wanted_fini(&d.wanted);
	return r;
}

int ckpt_stored_read(struct ckpt_stored *s, const struct ckpt_read_args *args,
		     struct ckpt_loaded *ret)
{
	struct err e = {0};
	int r = s ? call_enter(s->c, &e) : -EINVAL;

	if (r < 0)
		return error_keep("ckpt_stored_read", r, &e);
	s->c->patient = true;
	r = stored_read(s, args, ret, &e);
	return call_leave(s->c, "ckpt_stored_read", r, &e);
}
