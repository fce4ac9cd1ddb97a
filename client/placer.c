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
 *      what is not placed as a whole goes through a buffer, by steps that stay in the first-level
 *      cache, from which it is digested and placed; or, where many pieces meet, by segments.
 *   4. A leaf is placed while it is still in the cache where it was verified: in blocks.
 *   5. Threads share the cursor and the first error (turns.c); no two write to the same byte of a
 *      target: the plan covers each once (model/plan.h).
 *   6. Places that were never touched get their pages a huge page at a time, by the thread that is
 *      about to write them.
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
#include <stdatomic.h>

#include "base/alloc.h"
#include "client/clock.h"
#include "client/pages.h"
#include "client/turns.h"
#include "codec/copy.h"
#include "codec/digest.h"

#define NO_PIECE UINT32_MAX
#define THREADS_MAX 64u
/* Two leaves of 64 KiB and where they go fit any second-level cache. */
#define BLOCK (128u << 10)
/* What is copied from a mapping at a time, and for how many pieces: each looks at each step. */
#define STEP            (8u << 10)
#define STEP_PIECES_MAX 8u
/* From so much on, what goes to devices is worth pinning windows for, half a millisecond each. */
#define PIN_FROM (32ull << 20)

struct placer {
	const struct placing *in;
	struct touched *touched;
	struct source_sizes sizes;
	uint64_t pieces_max;   /* of a chunk */
	bool devices;          /* some target is on one */
	uint64_t device_bytes; /* that go there */
	struct turns turns;
	/* The first error's, by the thread that turns_fail() told so. */
	struct err err;
	struct placed placed;
	_Atomic uint64_t read; /* bytes, of threads that have ended */
	pthread_mutex_t taking; /* of the taker alone */
	struct huge_taker taker;
};

struct worker {
	struct placer *p;
	struct source_buffers buffers;
	uint32_t *fused;  /* per leaf of a chunk: the piece that is placed with its digest */
	uint32_t *pieces; /* that the segment at hand has bytes of */
	uint32_t n_pieces;
	uint64_t read;    /* bytes */
	struct interrupt *interrupt; /* NULL: it is not the caller's thread */
	pthread_t thread;
};

/* A part of a range that lies in one chunk and is verified and placed at once. */
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
	if (turns_fail(&p->turns, code))
		p->err = *e;
}

static void keep_bad_leaf(struct placer *p, uint32_t source, uint64_t leaf)
{
	if (!turns_fail(&p->turns, CKPT_ECORRUPT))
		return;
	p->placed.bad = true;
	p->placed.bad_source = source;
	p->placed.bad_leaf = leaf;
}

/* ---- One segment ---- */

static uint64_t leaf_len(const struct source *s, uint64_t leaf)
{
	return min_u64(s->in->geometry.leaf, s->in->image_len - leaf * s->in->geometry.leaf);
}

/* Of the chunk's pieces those with bytes in the segment. */
static void choose_pieces(struct worker *w, const struct segment *g)
{
	uint64_t leaf = g->s->in->geometry.leaf, lo, hi;

	w->n_pieces = 0;
	for (uint64_t k = g->t->first[g->chunk]; k < g->t->first[g->chunk + 1]; k++) {
		plan_piece_span(&w->p->in->pieces[g->t->piece[k]], &lo, &hi);
		if (lo < (g->first + g->n) * leaf && hi > g->first * leaf)
			w->pieces[w->n_pieces++] = g->t->piece[k];
	}
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
	for (uint32_t k = 0; k < w->n_pieces; k++) {
		const struct plan_piece *p = &in->pieces[w->pieces[k]];
		const struct place_target *to = &in->targets[p->target];

		if (!in_host_order(to) || !covered(g, p, &lo, &hi))
			continue;
		for (uint64_t leaf = lo; leaf < hi; leaf++)
			if (w->fused[leaf - g->first] == NO_PIECE)
				w->fused[leaf - g->first] = w->pieces[k];
	}
}

static bool leaf_matches(const struct segment *g, uint64_t leaf, const struct digest *have)
{
	struct digest want;

	memcpy(want.b, g->s->in->leaves + leaf * sizeof(want.b), sizeof(want.b));
	return digest_equal(&want, have);
}

/* (1); false: a leaf does not match. */
static bool verify(struct worker *w, const struct segment *g)
{
	const struct placing *in = w->p->in;
	uint64_t leaf = g->s->in->geometry.leaf;

	for (uint64_t i = 0; i < g->n; i++) {
		const uint8_t *from = g->bytes + i * leaf;
		uint64_t len = leaf_len(g->s, g->first + i);
		struct digest have;

		if (!touched_leaf(g->t, g->first + i))
			continue;
		if (w->fused[i] == g->placed) { /* or there is nothing to fuse with */
			have = digest_of(from, len);
		} else {
			const struct plan_piece *p = &in->pieces[w->fused[i]];
			uint64_t at = p->dst + ((g->first + i) * leaf - p->src);

			have = copy_digest(in->targets[p->target].ptr + at, from, len);
		}
		if (!leaf_matches(g, g->first + i, &have)) {
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

	for (uint32_t k = 0; k < w->n_pieces; k++) {
		plan_piece_span(&w->p->in->pieces[w->pieces[k]], &lo, &hi);
		for (uint64_t i = max_u64(lo / leaf, g->first);
		     i < g->first + g->n && i * leaf < hi; i++)
			if (touched_leaf(g->t, i) && w->fused[i - g->first] != w->pieces[k])
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

/* (3): one leaf, placed and digested from the same buffer; what it has been placed as is void if it
 * then does not match. */
static int scatter_leaf(struct worker *w, const struct segment *g, uint64_t leaf, struct err *e)
{
	_Alignas(64) uint8_t buf[STEP];
	uint64_t lo = leaf * g->s->in->geometry.leaf, end = lo + leaf_len(g->s, leaf), n;
	const uint8_t *from = g->bytes + (leaf - g->first) * g->s->in->geometry.leaf;
	struct digest_stream stream;
	struct digest have;
	int r = 0;

	digest_begin(&stream);
	for (; lo < end && r == 0; lo += n, from += n) {
		n = min_u64(end - lo, STEP);
		for (uint64_t i = 0; i < n; i += 64) /* what comes next: it cannot fault */
			__builtin_prefetch(from + n + i);
		memcpy(buf, from, n);
		digest_update(&stream, buf, n);
		for (uint32_t k = 0; k < w->n_pieces && r == 0; k++)
			r = place(w, &w->p->in->pieces[w->pieces[k]], buf, lo, lo + n, e);
	}
	have = digest_end(&stream);
	if (r == 0 && !leaf_matches(g, leaf, &have)) {
		keep_bad_leaf(w->p, g->source, leaf);
		return CKPT_ECORRUPT;
	}
	return r;
}

static int scatter(struct worker *w, const struct segment *g, struct err *e)
{
	int r = 0;

	for (uint64_t i = g->first; i < g->first + g->n && r == 0; i++)
		if (touched_leaf(g->t, i))
			r = scatter_leaf(w, g, i, e);
	return r;
}

static int place_segment(struct worker *w, struct segment *g, struct err *e)
{
	int r = 0, last = -1;

	choose_pieces(w, g);
	choose_fused(w, g);
	if (g->s->mapped && has_rest(w, g)) {
		if (w->n_pieces <= STEP_PIECES_MAX && !w->p->devices)
			return scatter(w, g, e);
		make_private(w, g);
	}
	if (!verify(w, g))
		return CKPT_ECORRUPT;
	for (uint32_t k = 0; k < w->n_pieces && r == 0; k++)
		r = place_rest(w, g, w->pieces[k], e);
	for (uint32_t k = 0; k < w->n_pieces; k++) {
		int s = sync_device(w, &w->p->in->pieces[w->pieces[k]], &last, r == 0 ? e : NULL);

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

/* What was read at once, in segments. */
static int place_read(struct worker *w, const struct segment *all, struct err *e)
{
	struct geometry geometry = all->s->in->geometry;
	uint64_t per_chunk = geometry.chunk / geometry.leaf, end = all->first + all->n;
	uint64_t block = w->p->devices ? per_chunk : max_u64(BLOCK / geometry.leaf, 1);
	int r = 0;

	for (uint64_t at = all->first; at < end && r == 0;) {
		struct segment g = *all;

		g.chunk = at / per_chunk;
		g.first = at;
		g.n = min_u64(min_u64((g.chunk + 1) * per_chunk, end) - at, block);
		g.bytes = all->bytes + (at - all->first) * geometry.leaf;
		r = place_segment(w, &g, e);
		at += g.n;
	}
	return r;
}

/* (6): one thread after the other, for the kernel does it so anyway, and whoever comes to a page
 * that another one is taking has to wait until it is there. */
static void take_pages(struct worker *w, const struct source *s, const struct touched *t,
		       struct source_range range)
{
	pthread_mutex_lock(&w->p->taking);
	pages_take(&w->p->taker, w->p->in, s, t, range);
	pthread_mutex_unlock(&w->p->taking);
}

static int place_steps(struct worker *w, const struct source *s, const struct taken *taken,
		       struct err *e)
{
	struct source_range range = taken->range;
	uint64_t step = source_step(s, range), end = range.first + range.n;
	uint32_t source = taken->source;
	const struct touched *t = &w->p->touched[source];
	bool waits = s->in->kind == LOAD_FILE && step >= range.n; /* for the disk */
	int r = 0;

	if (step < range.n)
		source_prefetch(s, range);
	if (!waits)
		take_pages(w, s, t, range);
	for (uint64_t at = range.first; at < end && r == 0; at += step) {
		struct segment all = {
			.s = s,
			.t = t,
			.source = source,
			.chunk = at / (s->in->geometry.chunk / s->in->geometry.leaf),
			.first = at,
			.n = min_u64(step, end - at),
		};

		if (read_range(w, &all) < 0) {
			/* A copy that cannot be read is as bad as one that does not match. */
			keep_bad_leaf(w->p, source, at);
			return CKPT_ECORRUPT;
		}
		if (waits) /* other threads' reads go on meanwhile */
			take_pages(w, s, t, range);
		r = place_read(w, &all, e);
	}
	return r;
}

static int place_range(struct worker *w, const struct taken *taken, struct err *e)
{
	struct source s = w->p->in->sources[taken->source];
	int r;

	if (!taken->through_cache || !source_is_direct(&s))
		return place_steps(w, &s, taken, e);
	s.cached = true;
	r = place_steps(w, &s, taken, e);
	source_forget(&s, taken->range);
	return r;
}

static uint64_t bytes_of(const struct placer *p, const struct taken *t)
{
	return t->range.n * p->in->sources[t->source].in->geometry.leaf;
}

/* Out of a window that is not pinned the driver copies everything itself first, for one thread
 * after the other. The context to let go of it in, or NULL: it is not pinned. */
static void *pin_window(const struct worker *w)
{
	struct devices *d = w->p->in->devices;
	void *context = w->p->device_bytes >= PIN_FROM ? devices_context(d) : NULL;

	if (!context || !devices_pin(d, context, w->buffers.window, w->buffers.window_bytes))
		return NULL;
	return context;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct taken taken;
	struct err e = { 0 };
	void *pinned_for = pin_window(w);
	uint64_t placed = 0;
	int r = 0;

	while (r == 0 && turns_next(&w->p->turns, placed, &taken)) {
		r = place_range(w, &taken, &e);
		placed = bytes_of(w->p, &taken);
		if (r == 0 && interrupt_look(w->interrupt, false))
			r = CKPT_ETIMEDOUT;
	}
	devices_unpin(w->p->in->devices, pinned_for, w->buffers.window);
	if (r < 0)
		keep_error(w->p, r, &e);
	atomic_fetch_add(&w->p->read, w->read);
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
	w->pieces = alloc_array(p->pieces_max, sizeof(*w->pieces));
	r = w->fused && w->pieces ? source_buffers_init(&w->buffers, &p->sizes) : -ENOMEM;
	if (r < 0) {
		alloc_free(w->fused);
		alloc_free(w->pieces);
	}
	return r;
}

static void worker_fini(struct worker *w)
{
	source_buffers_fini(&w->buffers);
	alloc_free(w->fused);
	alloc_free(w->pieces);
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

/*
 * What one thread reads at once, so that all together stay within in->memory: shorter ranges first,
 * then fewer threads. One thread and the longest compressed chunk there must be.
 */
static uint64_t choose_sizes(struct placer *p, uint32_t *threads)
{
	const struct placing *in = p->in;
	uint64_t range = SOURCE_RANGE_MAX, each;

	for (;;) {
		p->sizes = source_sizes_of(in->sources, in->n_sources, range);
		each = p->sizes.window + p->sizes.chunk;
		if (*threads * each <= in->memory || range <= SOURCE_RANGE_MIN)
			break;
		range /= 2;
	}
	*threads = (uint32_t)min_u64(*threads, max_u64(in->memory / each, 1));
	return range;
}

static int placer_init(struct placer *p, uint32_t *threads)
{
	const struct placing *in = p->in;
	uint64_t range_bytes = choose_sizes(p, threads);
	int r = touched_make(in->sources, in->n_sources, in->pieces, in->n_pieces, &p->touched);

	if (r == 0)
		r = turns_init(&p->turns, in, p->touched, range_bytes, *threads);
	if (r < 0) {
		touched_free(p->touched, in->n_sources);
		return r;
	}
	pthread_mutex_init(&p->taking, NULL);
	for (uint32_t s = 0; s < in->n_sources; s++)
		for (uint64_t c = 0; c < p->touched[s].n_chunks; c++)
			p->pieces_max = max_u64(p->pieces_max, p->touched[s].first[c + 1] -
								       p->touched[s].first[c]);
	for (size_t i = 0; i < in->n_pieces; i++) {
		if (!in->targets[in->pieces[i].target].device)
			continue;
		p->devices = true;
		p->device_bytes += in->pieces[i].run;
	}
	return 0;
}

static void placer_fini(struct placer *p)
{
	turns_fini(&p->turns);
	pthread_mutex_destroy(&p->taking);
	touched_free(p->touched, p->in->n_sources);
}

int placer_run(const struct placing *in, struct placed *ret, struct err *e)
{
	struct placer p = { .in = in };
	struct worker workers[THREADS_MAX] = { 0 };
	uint32_t n = (uint32_t)min_u64(max_u64(in->threads, 1), THREADS_MAX);
	int r = placer_init(&p, &n);

	if (r < 0)
		return err_code(e, r, "read what is stored");
	r = worker_init(&workers[0], &p);
	if (r < 0) {
		placer_fini(&p);
		return err_code(e, r, "read what is stored");
	}
	workers[0].interrupt = in->interrupt;
	n = start_workers(&p, workers, n);
	work(&workers[0]);
	for (uint32_t i = 0; i < n; i++) {
		if (i > 0)
			pthread_join(workers[i].thread, NULL);
		worker_fini(&workers[i]);
	}
	p.placed.bytes_read = p.read;
	r = p.turns.result;
	placer_fini(&p);
	*ret = p.placed;
	if (r < 0 && e && p.err.code)
		*e = p.err;
	return r;
}
