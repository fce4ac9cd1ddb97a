/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sketch.c - notes of one second, folded; and the frame around them.
 *
 * Invariants of the sender: (1) notes are in order of time; (2) of a rank there is at most one
 * beat behind each of its phases and ends, of a device, of measurements and of an activity at most
 * one note: the newest; (3) a value that is no finite number is never replaced by a finite one.
 */
#include <config.h>

#include "detect/sketch.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "detect/sketch_code.h"

#define MAGIC 0x6b73706bu /* "kpsk" */

struct sketch {
	struct sample *notes;
	uint32_t n, cap, dropped;
	struct verdict *verdicts;
	uint32_t n_verdicts, cap_verdicts;
};

int sketch_new(struct sketch **ret)
{
	*ret = alloc_zero(sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

void sketch_free(struct sketch *k)
{
	if (!k)
		return;
	alloc_free(k->notes);
	alloc_free(k->verdicts);
	alloc_free(k);
}

/* ---- folding ---- */

static bool same_subject(const struct sample *a, const struct sample *b)
{
	return a->kind == b->kind && a->rank == b->rank && a->device == b->device;
}

/* Whether what was said before must stay: b does not say the same anew. */
static bool is_barrier(const struct sample *a, const struct sample *s)
{
	return s->kind == SAMPLE_BEAT && a->rank == s->rank &&
	       (a->kind == SAMPLE_PHASE || a->kind == SAMPLE_EXIT || a->kind == SAMPLE_MEMBER);
}

static struct sample *note_before(struct sketch *k, const struct sample *s)
{
	for (uint32_t i = k->n; i-- > 0;) {
		if (same_subject(&k->notes[i], s))
			return &k->notes[i];
		if (is_barrier(&k->notes[i], s))
			return NULL;
	}
	return NULL;
}

/* (3) */
static double worse(double old, double new, uint32_t had)
{
	return had && !isfinite(old) ? old : new;
}

static void fold_beat(struct sample_beat *old, const struct sample_beat *b)
{
	double steps = (double)old->missed + 1, new_steps = (double)b->missed + 1;
	struct sample_beat f = *b;

	f.missed = old->missed + 1;
	if (__builtin_add_overflow(f.missed, b->missed, &f.missed))
		f.missed = UINT32_MAX;
	f.flags |= old->flags;
	if (old->flags & b->flags & BEAT_BUSY)
		f.busy_ns =
			(uint64_t)(((double)old->busy_ns * steps + (double)b->busy_ns * new_steps) /
				   (steps + new_steps));
	else if (old->flags & BEAT_BUSY)
		f.busy_ns = old->busy_ns;
	if (old->flags & BEAT_TOKENS)
		f.tokens = (b->flags & BEAT_TOKENS ? b->tokens : 0) + old->tokens;
	if (old->flags & BEAT_LOSS)
		f.loss = b->flags & BEAT_LOSS ? worse(old->loss, b->loss, BEAT_LOSS) : old->loss;
	if (old->flags & BEAT_GRAD_NORM)
		f.grad_norm = b->flags & BEAT_GRAD_NORM
				      ? worse(old->grad_norm, b->grad_norm, BEAT_GRAD_NORM)
				      : old->grad_norm;
	*old = f;
}

/* What s says together with the note of the same subject; false: it stands beside it. */
static bool fold(struct sample *old, const struct sample *s)
{
	switch ((unsigned)s->kind) {
	case SAMPLE_BEAT:
		if (s->beat.step <= old->beat.step)
			return false;
		fold_beat(&old->beat, &s->beat);
		return true;
	case SAMPLE_DISK:
		old->disk.ops += s->disk.ops;
		old->disk.bytes += s->disk.bytes;
		old->disk.busy_ns += s->disk.busy_ns;
		old->disk.errors = s->disk.errors;
		return true;
	case SAMPLE_ALIVE:
	case SAMPLE_METRICS:
	case SAMPLE_LINK:
	case SAMPLE_MEMORY:
	case SAMPLE_ACTIVITY:
		*old = *s;
		return true;
	default:
		return false;
	}
}

static bool room(struct sketch *k)
{
	uint32_t cap = k->cap ? 2 * k->cap : 16;
	struct sample *notes;

	if (k->n < k->cap)
		return true;
	if (cap > SKETCH_RECORDS_MAX)
		return false;
	notes = alloc_resize(k->notes, cap * sizeof(*notes));
	if (!notes)
		return false;
	k->notes = notes;
	k->cap = cap;
	return true;
}

int sketch_add(struct sketch *k, const struct sample *s)
{
	struct sample *old;

	if (!sketch_takes(s->kind))
		return 0;
	assert(k->n == 0 || s->time_ns >= k->notes[k->n - 1].time_ns);
	old = note_before(k, s);
	if (old && fold(old, s)) {
		struct sample folded = *old;

		folded.time_ns = s->time_ns;
		memmove(old, old + 1, (size_t)(&k->notes[k->n] - (old + 1)) * sizeof(*old));
		k->notes[k->n - 1] = folded; /* (1) */
		return 0;
	}
	if (!room(k)) {
		k->dropped++;
		return -ENOSPC;
	}
	k->notes[k->n++] = *s;
	return 0;
}

int sketch_add_verdict(struct sketch *k, const struct verdict *v)
{
	uint32_t cap = k->cap_verdicts ? 2 * k->cap_verdicts : 4;
	struct verdict *verdicts;

	if (k->n_verdicts == k->cap_verdicts) {
		verdicts = cap <= SKETCH_VERDICTS_MAX
				   ? alloc_resize(k->verdicts, cap * sizeof(*verdicts))
				   : NULL;
		if (!verdicts) {
			k->dropped++;
			return -ENOSPC;
		}
		k->verdicts = verdicts;
		k->cap_verdicts = cap;
	}
	k->verdicts[k->n_verdicts++] = *v;
	return 0;
}

/* ---- the frame ---- */

static struct digest frame_digest(const uint8_t *bytes, size_t len)
{
	struct digest_stream s;

	digest_begin(&s);
	digest_update(&s, bytes, 48);
	digest_update(&s, bytes + SKETCH_HEADER, len - SKETCH_HEADER);
	return digest_end(&s);
}

static uint64_t first_step(const struct sketch *k)
{
	for (uint32_t i = 0; i < k->n; i++)
		if (k->notes[i].kind == SAMPLE_BEAT)
			return k->notes[i].beat.step;
	return 0;
}

void sketch_write(struct sketch *k, const struct sketch_head *head, uint64_t now_ns,
		  struct writer *w)
{
	struct code c = {.w = w, .base_step = first_step(k), .now_ns = now_ns};
	size_t start = w->len;
	struct digest digest;

	write_u32(w, MAGIC);
	write_u8(w, SKETCH_VERSION);
	write_zero(w, 3);
	write_u32(w, 0); /* bytes that follow, below */
	write_u32(w, head->node);
	write_u64(w, head->epoch);
	write_u64(w, head->sequence);
	write_u64(w, c.base_step);
	write_u32(w, k->n + k->n_verdicts);
	write_u32(w, k->dropped);
	write_zero(w, 16); /* digest, below */
	for (uint32_t i = 0; i < k->n && !w->bad; i++)
		ignore_result(code_sample(&c, &k->notes[i])); /* w->bad says it */
	for (uint32_t i = 0; i < k->n_verdicts && !w->bad; i++)
		ignore_result(code_verdict(&c, &k->verdicts[i])); /* w->bad says it */
	k->n = k->n_verdicts = k->dropped = 0;
	if (w->bad)
		return;
	assert(w->len - start <= SKETCH_BYTES_MAX);
	put_le32(w->buf + start + 8, (uint32_t)(w->len - start - SKETCH_HEADER));
	digest = frame_digest(w->buf + start, w->len - start);
	memcpy(w->buf + start + 48, digest.b, 16);
}

/* ---- receiving ---- */

static int open_head(const uint8_t *bytes, size_t len, struct sketch_reader *k, struct err *e)
{
	struct reader r = reader_of(bytes, len);
	struct digest digest;
	uint32_t magic = read_u32(&r), version = read_u32(&r), payload = read_u32(&r);

	if (len < SKETCH_HEADER || len > SKETCH_BYTES_MAX || magic != MAGIC)
		return err_set(e, CKPT_EPROTO, "this is no sketch: %zu bytes", len);
	if (version != SKETCH_VERSION)
		return err_set(e, CKPT_EVERSION,
			       "sketch of version %u with features %u: this ckptd knows version "
			       "%u; update it",
			       version & 0xff, version >> 8, SKETCH_VERSION);
	k->head.node = read_u32(&r);
	k->head.epoch = read_u64(&r);
	k->head.sequence = read_u64(&r);
	k->base_step = read_u64(&r);
	k->left = read_u32(&r);
	k->head.dropped = read_u32(&r);
	digest = frame_digest(bytes, len);
	if (payload != len - SKETCH_HEADER || memcmp(digest.b, bytes + 48, 16) != 0)
		return err_set(e, CKPT_ECORRUPT, "sketch %llu of node %u does not match its digest",
			       (unsigned long long)k->head.sequence, k->head.node);
	if (k->head.node == SAMPLE_NONE)
		return err_set(e, CKPT_EPROTO, "sketch of nobody");
	k->r = reader_of(bytes + SKETCH_HEADER, payload);
	return 0;
}

enum sketch_got sketch_next(struct sketch_reader *k, struct sample *s, struct verdict *v)
{
	struct code c = {.r = &k->r, .base_step = k->base_step, .now_ns = k->received_ns};

	if (!k->left || reader_left(&k->r) == 0)
		return SKETCH_END;
	k->left--;
	if (*k->r.p == CODE_VERDICT) {
		*v = (struct verdict){0};
		if (!code_verdict(&c, v))
			return SKETCH_END;
		v->subject.job = v->subject.kind <= SUBJECT_RANK ? k->job : SAMPLE_NONE;
		return SKETCH_VERDICT;
	}
	*s = (struct sample){.node = k->head.node,
			     .job = SAMPLE_NONE,
			     .rank = SAMPLE_NONE,
			     .device = SAMPLE_NONE};
	if (!code_sample(&c, s))
		return SKETCH_END;
	if (s->rank != SAMPLE_NONE)
		s->job = k->job;
	s->time_ns = max_u64(s->time_ns, k->last_ns);
	k->last_ns = s->time_ns;
	return SKETCH_SAMPLE;
}

int sketch_open(const void *bytes, size_t len, uint32_t job, uint64_t received_ns,
		uint64_t not_before_ns, struct sketch_reader *ret, struct err *e)
{
	struct sketch_reader k = {.job = job, .received_ns = received_ns}, all;
	struct verdict v;
	struct sample s;
	int r = open_head(bytes, len, &k, e);

	assert(not_before_ns <= received_ns && job != SAMPLE_NONE);
	if (r < 0)
		return r;
	k.last_ns = not_before_ns;
	all = k;
	while (sketch_next(&all, &s, &v) != SKETCH_END)
		;
	if (all.r.bad || all.left || reader_left(&all.r))
		return err_set(e, CKPT_EPROTO,
			       "sketch %llu of node %u: record %u of %u is not what a ckptd writes",
			       (unsigned long long)k.head.sequence, k.head.node, k.left - all.left,
			       k.left);
	*ret = k;
	return 0;
}
