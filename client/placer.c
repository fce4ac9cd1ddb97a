/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placer.c - threads that take ranges of touched leaves, verify them and place their pieces.
 *
 *   1. Every leaf from which a byte is placed is verified first or in the same pass; a leaf that
 *      does not match ends the load (I2). Leaves that no piece touches are not read.
 *   2. A leaf that one contiguous piece covers goes to its place and through the digest in one
 *      pass over it: it is read from memory once. Where a system call reads it from memory, it
 *      does so straight to the place, and the digest is taken there, out of the cache.
 *   3. What is placed are the bytes that were verified, even if somebody writes to the source
 *      meanwhile: a process that had mapped its slot can. So nothing is read from a mapping twice:
 *      what is not placed in the pass that verifies it is copied to the worker's window first.
 *   4. Threads share the cursor, the first error and the count of bytes, under one mutex; no two
 *      write to the same byte of a target: the plan covers each once (model/plan.h).
 *
 * The caller's thread is one of the workers; the others have every signal blocked. When no more
 * threads can be had the ones there are do the work.
 */
#include <config.h>

#include "client/placer.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "base/alloc.h"
#include "client/clock.h"
#include "client/touched.h"
#include "codec/copy.h"
#include "codec/digest.h"

#define NO_PIECE UINT32_MAX
#define THREADS_MAX 64u

struct placer {
	const struct placing *in;
	struct touched *touched;
	pthread_mutex_t mutex; /* of the rest */
	uint32_t source;       /* the cursor */
	uint64_t leaf;
	int result;
	struct err err;
	struct placed placed;
};

struct worker {
	struct placer *p;
	struct source_buffers buffers;
	uint32_t *fused;  /* per leaf of a chunk: the piece that is placed with its digest */
	uint64_t read;    /* bytes */
	pthread_t thread;
};

/* A part of a range that lies in one chunk. */
struct segment {
	const struct source *s;
	const struct touched *t;
	uint32_t source;
	uint64_t chunk;
	uint64_t first, n; /* leaves */
	const uint8_t *bytes; /* of the first leaf */
	uint32_t placed;      /* the piece whose place they were read to, or NO_PIECE */
};

/* ---- Shared state ---- */

static void keep_error(struct placer *p, int code, const struct err *e)
{
	pthread_mutex_lock(&p->mutex);
	if (p->result == 0) {
		p->result = code;
		if (e)
			p->err = *e;
	}
	pthread_mutex_unlock(&p->mutex);
}

static void keep_bad_leaf(struct placer *p, uint32_t source, uint64_t leaf)
{
	pthread_mutex_lock(&p->mutex);
	if (p->result == 0) {
		p->result = CKPT_ECORRUPT;
		p->placed.bad = true;
		p->placed.bad_source = source;
		p->placed.bad_leaf = leaf;
	}
	pthread_mutex_unlock(&p->mutex);
}

/* The next range to work on; false: there is none, or somebody failed. */
static bool next_range(struct placer *p, uint32_t *ret_source, struct source_range *ret)
{
	bool more = false;

	pthread_mutex_lock(&p->mutex);
	if (p->result == 0 && clock_ns() >= p->in->deadline)
		p->result = CKPT_ETIMEDOUT;
	while (p->result == 0 && !more && p->source < p->in->n_sources) {
		const struct source *s = &p->in->sources[p->source];
		const struct touched *t = &p->touched[p->source];
		uint64_t want;

		p->leaf = touched_next(t, p->leaf);
		if (p->leaf == t->n_leaves) {
			p->source++;
			p->leaf = 0;
			continue;
		}
		want = touched_run(t, p->leaf, source_range_max(s));
		*ret = source_range_at(s, p->leaf, want);
		*ret_source = p->source;
		p->leaf += ret->n;
		more = true;
	}
	pthread_mutex_unlock(&p->mutex);
	return more;
}

/* ---- One segment ---- */

static uint64_t leaf_len(const struct source *s, uint64_t leaf)
{
	return min_u64(s->in->geometry.leaf, s->in->image_len - leaf * s->in->geometry.leaf);
}

/* Leaves [*lo, *hi) of the segment that a contiguous piece covers whole. */
static bool covered(const struct segment *g, const struct plan_piece *p, uint64_t *lo, uint64_t *hi)
{
	uint64_t leaf = g->s->in->geometry.leaf, end = p->src + p->run;

	if (p->ndim != 0)
		return false;
	*lo = max_u64(div_up(p->src, leaf), g->first);
	*hi = end == g->s->in->image_len ? g->t->n_leaves : end / leaf;
	*hi = min_u64(*hi, g->first + g->n);
	return *lo < *hi;
}

static bool in_host_order(const struct place_target *to)
{
	return !to->strided && !to->device;
}

/* (2): which leaves are placed in the pass that verifies them. */
static void choose_fused(struct worker *w, const struct segment *g)
{
	const struct placing *in = w->p->in;
	uint64_t lo, hi;

	for (uint64_t i = 0; i < g->n; i++)
		w->fused[i] = g->placed;
	if (g->placed != NO_PIECE)
		return;
	for (uint64_t k = g->t->first[g->chunk]; k < g->t->first[g->chunk + 1]; k++) {
		const struct plan_piece *p = &in->pieces[g->t->piece[k]];
		const struct place_target *to = &in->targets[p->target];

		if (!in_host_order(to) || !covered(g, p, &lo, &hi))
			continue;
		for (uint64_t leaf = lo; leaf < hi; leaf++)
			if (w->fused[leaf - g->first] == NO_PIECE)
				w->fused[leaf - g->first] = g->t->piece[k];
	}
}

/* (1); false: a leaf does not match. */
static bool verify(struct worker *w, const struct segment *g)
{
	const struct placing *in = w->p->in;
	uint64_t leaf = g->s->in->geometry.leaf;

	for (uint64_t i = 0; i < g->n; i++) {
		const uint8_t *from = g->bytes + i * leaf;
		uint64_t len = leaf_len(g->s, g->first + i);
		struct digest want, have;

		if (!touched_leaf(g->t, g->first + i))
			continue;
		if (w->fused[i] == g->placed) { /* or there is nothing to fuse with */
			have = digest_of(from, len);
		} else {
			const struct plan_piece *p = &in->pieces[w->fused[i]];
			uint64_t at = p->dst + ((g->first + i) * leaf - p->src);

			have = copy_digest(in->targets[p->target].ptr + at, from, len);
		}
		memcpy(want.b, g->s->in->leaves + (g->first + i) * sizeof(want.b), sizeof(want.b));
		if (!digest_equal(&want, &have)) {
			keep_bad_leaf(w->p, g->source, g->first + i);
			return false;
		}
	}
	return true;
}

/* What of the piece lies in the window [lo, hi) of the image. */
static int place(struct worker *w, const struct plan_piece *p, const uint8_t *window, uint64_t lo,
		 uint64_t hi, struct err *e)
{
	const struct place_target *to = &w->p->in->targets[p->target];

	if (to->device) {
		uint64_t from = max_u64(lo, p->src), end = min_u64(hi, p->src + p->run);

		assert(p->ndim == 0);
		if (from >= end)
			return 0;
		return device_copy_in(w->p->in->devices, to->ordinal,
				      to->ptr + p->dst + (from - p->src), window + (from - lo),
				      end - from, e);
	}
	if (to->strided)
		plan_piece_copy_strided(p, window, lo, hi, &to->layout, to->ptr);
	else
		plan_piece_copy(p, window, lo, hi, to->ptr);
	return 0;
}

/* The piece's part of every run of touched leaves that it was not fused with. */
static int place_rest(struct worker *w, const struct segment *g, uint32_t index, struct err *e)
{
	const struct plan_piece *p = &w->p->in->pieces[index];
	uint64_t leaf = g->s->in->geometry.leaf, lo, hi, i = 0;
	int r = 0;

	plan_piece_span(p, &lo, &hi);
	if (lo / leaf > g->first)
		i = lo / leaf - g->first;
	while (i < g->n && r == 0 && (g->first + i) * leaf < hi) {
		uint64_t from = i;

		while (i < g->n && touched_leaf(g->t, g->first + i) && w->fused[i] != index)
			i++;
		if (i > from)
			r = place(w, p, g->bytes + from * leaf, (g->first + from) * leaf,
				  min_u64((g->first + i) * leaf, g->s->in->image_len), e);
		else
			i++;
	}
	return r;
}

/* Copies to a device read the window: they end before it is used again. */
static int sync_device(struct worker *w, const struct plan_piece *p, int *last, struct err *e)
{
	const struct place_target *to = &w->p->in->targets[p->target];

	if (!to->device || to->ordinal == *last)
		return 0;
	*last = to->ordinal;
	return device_sync(w->p->in->devices, to->ordinal, e);
}

/* Whether place_rest() has anything to do. */
static bool has_rest(const struct worker *w, const struct segment *g)
{
	uint64_t leaf = g->s->in->geometry.leaf, lo, hi;

	for (uint64_t k = g->t->first[g->chunk]; k < g->t->first[g->chunk + 1]; k++) {
		plan_piece_span(&w->p->in->pieces[g->t->piece[k]], &lo, &hi);
		for (uint64_t i = max_u64(lo / leaf, g->first);
		     i < g->first + g->n && i * leaf < hi; i++)
			if (touched_leaf(g->t, i) && w->fused[i - g->first] != g->t->piece[k])
				return true;
	}
	return false;
}

/* (3) */
static void make_private(struct worker *w, struct segment *g)
{
	uint64_t leaf = g->s->in->geometry.leaf;
	uint64_t end = min_u64((g->first + g->n) * leaf, g->s->in->image_len);

	assert(end - g->first * leaf <= w->buffers.window_bytes);
	memcpy(w->buffers.window, g->bytes, end - g->first * leaf);
	g->bytes = w->buffers.window;
}

static int place_segment(struct worker *w, struct segment *g, struct err *e)
{
	uint64_t from = g->t->first[g->chunk], to = g->t->first[g->chunk + 1];
	int r = 0, last = -1;

	choose_fused(w, g);
	if (g->s->mapped && has_rest(w, g))
		make_private(w, g);
	if (!verify(w, g))
		return CKPT_ECORRUPT;
	for (uint64_t k = from; k < to && r == 0; k++)
		r = place_rest(w, g, g->t->piece[k], e);
	for (uint64_t k = from; k < to; k++) {
		int s = sync_device(w, &w->p->in->pieces[g->t->piece[k]], &last,
				    r == 0 ? e : NULL);

		r = r < 0 ? r : s;
	}
	return r;
}

/* ---- Workers ---- */

/* The contiguous piece that all of the segment goes to, so that it can be read straight there. */
static uint32_t one_piece(const struct worker *w, const struct segment *g)
{
	const struct placing *in = w->p->in;
	uint64_t lo, hi;

	for (uint64_t k = g->t->first[g->chunk]; k < g->t->first[g->chunk + 1]; k++) {
		const struct plan_piece *p = &in->pieces[g->t->piece[k]];

		if (in_host_order(&in->targets[p->target]) && covered(g, p, &lo, &hi) &&
		    lo == g->first && hi == g->first + g->n)
			return g->t->piece[k];
	}
	return NO_PIECE;
}

static int read_range(struct worker *w, struct segment *g)
{
	struct source_range range = { .first = g->first, .n = g->n };
	uint64_t per_chunk = g->s->in->geometry.chunk / g->s->in->geometry.leaf;
	const struct plan_piece *p;
	uint8_t *to;

	g->placed = NO_PIECE;
	if (source_reads_anywhere(g->s) && (g->first + g->n - 1) / per_chunk == g->chunk)
		g->placed = one_piece(w, g);
	if (g->placed == NO_PIECE)
		return source_read(g->s, range, &w->buffers, &g->bytes, &w->read);
	p = &w->p->in->pieces[g->placed];
	to = w->p->in->targets[p->target].ptr + p->dst +
	     (g->first * g->s->in->geometry.leaf - p->src);
	g->bytes = to;
	return source_read_to(g->s, range, to, &w->read);
}

static int place_range(struct worker *w, uint32_t source, struct source_range range, struct err *e)
{
	const struct source *s = &w->p->in->sources[source];
	uint64_t per_chunk = s->in->geometry.chunk / s->in->geometry.leaf;
	struct segment all = {
		.s = s,
		.t = &w->p->touched[source],
		.source = source,
		.chunk = range.first / per_chunk,
		.first = range.first,
		.n = range.n,
	};
	int r = read_range(w, &all);

	if (r < 0) {
		/* A copy that cannot be read is as bad as one that does not match. */
		keep_bad_leaf(w->p, source, range.first);
		return CKPT_ECORRUPT;
	}
	for (uint64_t at = range.first; at < range.first + range.n && r == 0;) {
		uint64_t end = min_u64((at / per_chunk + 1) * per_chunk, range.first + range.n);
		struct segment g = all;

		g.chunk = at / per_chunk;
		g.first = at;
		g.n = end - at;
		g.bytes = all.bytes + (at - range.first) * s->in->geometry.leaf;
		r = place_segment(w, &g, e);
		at = end;
	}
	return r;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct source_range range;
	struct err e = { 0 };
	uint32_t source;
	int r = 0;

	while (r == 0 && next_range(w->p, &source, &range))
		r = place_range(w, source, range, &e);
	if (r < 0)
		keep_error(w->p, r, &e);
	pthread_mutex_lock(&w->p->mutex);
	w->p->placed.bytes_read += w->read;
	pthread_mutex_unlock(&w->p->mutex);
	return NULL;
}

static int worker_init(struct worker *w, struct placer *p)
{
	uint64_t leaves = 1;
	int r;

	w->p = p;
	for (uint32_t i = 0; i < p->in->n_sources; i++) {
		struct geometry g = p->in->sources[i].in->geometry;

		leaves = max_u64(leaves, g.chunk / g.leaf);
	}
	w->fused = alloc_array(leaves, sizeof(*w->fused));
	if (!w->fused)
		return -ENOMEM;
	r = source_buffers_init(&w->buffers, p->in->sources, p->in->n_sources);
	if (r < 0)
		alloc_free(w->fused);
	return r;
}

static void worker_fini(struct worker *w)
{
	source_buffers_fini(&w->buffers);
	alloc_free(w->fused);
}

/* Workers beyond the first: what cannot be had is done without. Returns how many there are. */
static uint32_t start_workers(struct placer *p, struct worker *workers, uint32_t n)
{
	sigset_t all, old;
	uint32_t i;

	sigfillset(&all);
	if (pthread_sigmask(SIG_SETMASK, &all, &old) != 0)
		return 1;
	for (i = 1; i < n; i++) {
		if (worker_init(&workers[i], p) < 0)
			break;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
			worker_fini(&workers[i]);
			break;
		}
	}
	/* It cannot fail: the set is valid. */
	ignore_result(pthread_sigmask(SIG_SETMASK, &old, NULL));
	return i;
}

int placer_run(const struct placing *in, struct placed *ret, struct err *e)
{
	struct placer p = { .in = in };
	struct worker workers[THREADS_MAX] = { 0 };
	uint32_t n = (uint32_t)min_u64(max_u64(in->threads, 1), THREADS_MAX);
	int r = touched_make(in->sources, in->n_sources, in->pieces, in->n_pieces, &p.touched);

	if (r == 0)
		r = worker_init(&workers[0], &p);
	if (r < 0) {
		touched_free(p.touched, in->n_sources);
		return err_code(e, r, "read what is stored");
	}
	pthread_mutex_init(&p.mutex, NULL);
	n = start_workers(&p, workers, n);
	work(&workers[0]);
	for (uint32_t i = 0; i < n; i++) {
		if (i > 0)
			pthread_join(workers[i].thread, NULL);
		worker_fini(&workers[i]);
	}
	pthread_mutex_destroy(&p.mutex);
	touched_free(p.touched, in->n_sources);
	*ret = p.placed;
	if (p.result < 0 && e && p.err.code)
		*e = p.err;
	return p.result;
}
