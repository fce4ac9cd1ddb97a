/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan as the bytes of a message, and back. Cold; any thread.
 *
 * The receiver copies by what it decoded, so decoding proves that every byte a piece names lies
 * inside its source's image and its target's memory, and that both sides are row-major (plan.h).
 * It does not prove coverage again: that is the planner's.
 *
 *   u64 pieces, u32 problems, then the pieces sorted by (source, src):
 *     u32 source, u32 target, u64 src, u64 dst, u64 run, u8 ndim,
 *     ndim times (u64 count, u64 src_stride, u64 dst_stride)
 *   then the problems: u8 kind, u16 length and text
 */
#include <config.h>

#include "model/plan.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"

#define PIECE_BYTES_MIN   33u
#define PROBLEM_BYTES_MIN 3u

static void write_piece(const struct plan_piece *p, struct writer *w)
{
	assert(p->ndim <= CKPT_NDIM_MAX);
	write_u32(w, p->source);
	write_u32(w, p->target);
	write_u64(w, p->src);
	write_u64(w, p->dst);
	write_u64(w, p->run);
	write_u8(w, (uint8_t)p->ndim);
	for (uint32_t k = 0; k < p->ndim; k++) {
		write_u64(w, p->count[k]);
		write_u64(w, p->src_stride[k]);
		write_u64(w, p->dst_stride[k]);
	}
}

int plan_encode(const struct plan *p, struct writer *w)
{
	assert(p->n_problems <= PLAN_PROBLEMS_MAX);
	write_u64(w, p->n_pieces);
	write_u32(w, (uint32_t)p->n_problems);
	for (size_t i = 0; i < p->n_pieces; i++)
		write_piece(&p->pieces[i], w);
	for (size_t i = 0; i < p->n_problems; i++) {
		write_u8(w, (uint8_t)p->problems[i].kind);
		write_str(w, p->problems[i].text, strlen(p->problems[i].text));
	}
	return w->bad ? -ENOMEM : 0;
}

/* [start, start + what the dimensions span) must lie below limit, and strides must not make rows
 * overlap. */
static bool side_fits(uint64_t start, uint64_t run, uint32_t ndim, const uint64_t *count,
		      const uint64_t *stride, uint64_t limit)
{
	uint64_t bytes = run, more;

	for (uint32_t k = ndim; k-- > 0;)
		if (stride[k] < bytes || !size_mul(count[k] - 1, stride[k], &more) ||
		    !size_add(bytes, more, &bytes))
			return false;
	return start <= limit && bytes <= limit - start;
}

static bool piece_bytes(const struct plan_piece *p, uint64_t *ret)
{
	uint64_t bytes = p->run;

	for (uint32_t k = 0; k < p->ndim; k++)
		if (!size_mul(bytes, p->count[k], &bytes))
			return false;
	*ret = bytes;
	return bytes > 0; /* no run and no count is 0 */
}

static bool read_piece(struct reader *r, struct plan_piece *p)
{
	p->source = read_u32(r);
	p->target = read_u32(r);
	p->src = read_u64(r);
	p->dst = read_u64(r);
	p->run = read_u64(r);
	p->ndim = read_u8(r);
	if (p->ndim > CKPT_NDIM_MAX)
		return false;
	for (uint32_t k = 0; k < p->ndim; k++) {
		p->count[k] = read_u64(r);
		p->src_stride[k] = read_u64(r);
		p->dst_stride[k] = read_u64(r);
	}
	return !r->bad;
}

/* What the pieces must fit into. */
struct limits {
	const uint64_t *source, *target;
	uint32_t n_sources, n_targets;
};

static bool decode_piece(struct reader *r, const struct limits *l, struct plan *out)
{
	struct plan_piece *p = &out->pieces[out->n_pieces];
	uint64_t bytes;

	if (!read_piece(r, p) || p->source >= l->n_sources || p->target >= l->n_targets ||
	    !piece_bytes(p, &bytes) || !size_add(out->bytes, bytes, &out->bytes) ||
	    !side_fits(p->src, p->run, p->ndim, p->count, p->src_stride, l->source[p->source]) ||
	    !side_fits(p->dst, p->run, p->ndim, p->count, p->dst_stride, l->target[p->target]))
		return false;
	if (out->n_pieces > 0 &&
	    (p[-1].source > p->source || (p[-1].source == p->source && p[-1].src > p->src)))
		return false;
	out->n_pieces++;
	return true;
}

static bool decode_problem(struct reader *r, struct plan *out)
{
	struct plan_problem *p = &out->problems[out->n_problems];
	uint8_t kind = read_u8(r);
	size_t len = 0;
	const char *text = read_str(r, sizeof(p->text) - 1, &len);

	if (!text || kind > PLAN_EXTRA)
		return false;
	p->kind = (enum plan_problem_kind)kind;
	memcpy(p->text, text, len);
	p->text[len] = '\0';
	out->n_problems++;
	return true;
}

static int decode(struct reader *r, const struct limits *l, struct plan *out, struct err *e)
{
	uint64_t n_pieces = read_u64(r);
	uint32_t n_problems = read_u32(r);

	/* What is allocated is bounded by what was sent. */
	if (r->bad || n_pieces > PLAN_PIECES_MAX || n_problems > PLAN_PROBLEMS_MAX ||
	    n_pieces > reader_left(r) / PIECE_BYTES_MIN ||
	    n_problems > reader_left(r) / PROBLEM_BYTES_MIN)
		return err_set(e, CKPT_EPROTO, "a read plan is cut short or too large");
	out->pieces = alloc_array(n_pieces, sizeof(*out->pieces));
	out->problems = alloc_array(n_problems, sizeof(*out->problems));
	if (!out->pieces || !out->problems)
		return err_code(e, -ENOMEM, "take a read plan of %llu pieces",
				(unsigned long long)n_pieces);
	while (out->n_pieces < n_pieces)
		if (!decode_piece(r, l, out))
			return err_set(e, CKPT_EPROTO, "piece %zu of a read plan is malformed",
				       out->n_pieces);
	while (out->n_problems < n_problems)
		if (!decode_problem(r, out))
			return err_set(e, CKPT_EPROTO, "problem %zu of a read plan is malformed",
				       out->n_problems);
	return 0;
}

int plan_decode(struct reader *r, const uint64_t *source_image_len, uint32_t n_sources,
		const uint64_t *target_bytes, uint32_t n_targets, struct plan *ret, struct err *e)
{
	struct limits l = { source_image_len, target_bytes, n_sources, n_targets };
	struct plan out = { 0 };
	int code = decode(r, &l, &out, e);

	if (code) {
		plan_fini(&out);
		return code;
	}
	*ret = out;
	return 0;
}
