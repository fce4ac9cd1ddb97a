/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planner against an oracle that knows nothing of boxes: every element of every tensor has a
 * number; each stored image is filled element by element with bytes that tell tensor, element and
 * rank; the oracle remembers for each element the cheapest rank that stores it. Some ranks lack
 * leaves of their image, which are filled with other bytes. A plan is executed through windows cut
 * at random and every byte of the wanted memory is compared. The oracle shares no code with model/:
 * it has its own sizes of dtypes, places in images, row-major order.
 *
 * A case is a pair of layouts of 1 to 4 tensors of 0 to 5 dimensions and any dtype: tiled by grids
 * cut anywhere (parts may be empty) or in chunks of equal size with a shorter last one; each cell
 * whole or as flat ranges; replicas that are tiled alike or each in its own way, and ranks that
 * hold any box of a tensor beside them.
 *
 * CKPT_PLAN_CASES: random cases (50000); CKPT_SEED replays.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "model/plan.h"
#include "tests/lib/test.h"

#define FILL        0xee
#define RANKS_MAX   40
#define PARTS_MAX   4096
#define TENSORS_MAX 64
#define PEERS_MAX   64

struct tensor {
	char name[32];
	uint32_t ndim;
	uint64_t dim[5], elements;
	uint32_t kind, dtype, bytes;  /* place in dtypes[]; bytes of one element */
	uint32_t *best;               /* oracle: cheapest rank for each element, or NONE */
	uint32_t first_part, n_parts; /* in struct world; of the newest tiling */
};
#define NONE UINT32_MAX

struct part {
	uint32_t tensor;
	uint64_t offset[5], length[5];
	bool flat;
	uint64_t start, stop;
};

struct rank {
	struct part parts[PARTS_MAX];
	uint32_t n, cost;
	void *declaration;
	size_t declaration_len;
	struct declaration view;
	uint8_t *image;
	uint64_t *image_at; /* of each part, by the rule of declaration.h */
	uint64_t image_len;
	uint64_t *present; /* leaves; NULL: all */
};

struct world {
	struct tensor tensors[TENSORS_MAX];
	uint32_t n_tensors;
	struct rank stored[RANKS_MAX], wanted, peers[PEERS_MAX]; /* peers want something too */
	uint32_t n_stored, n_peers;
	uint64_t holes;
};

static const struct {
	uint32_t dtype, bytes;
} dtypes[] = {
#define X(name, value, bits, text) {value, (bits) / 8},
	CKPT_DTYPES(X)
#undef X
};
#define DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* How often a wanted tensor of the kind was checked. */
static struct {
	uint64_t dtype[DTYPES], ndim[6], elements, extra, peers;
} seen;

static struct rng_seeded rng;
static bool lacking; /* some ranks lack leaves */

static uint64_t below(uint64_t n)
{
	return rng_below(&rng.rng, n);
}

/* ---- The oracle: elements by number ---- */

static uint64_t part_elements(const struct world *w, const struct part *p)
{
	uint64_t n = 1;

	if (p->flat)
		return p->stop - p->start;
	for (uint32_t i = 0; i < w->tensors[p->tensor].ndim; i++)
		n *= p->length[i];
	return n;
}

/* The number in its tensor of the k-th element of a part. */
static uint64_t element_number(const struct world *w, const struct part *p, uint64_t k)
{
	const struct tensor *t = &w->tensors[p->tensor];
	uint64_t number = 0, step = 1;

	k += p->flat ? p->start : 0;
	for (uint32_t i = t->ndim; i-- > 0;) {
		number += (p->offset[i] + k % p->length[i]) * step;
		k /= p->length[i];
		step *= t->dim[i];
	}
	return number;
}

/* What rank `from` has stored for an element. */
static void element_value(uint8_t value[16], uint32_t tensor, uint64_t number, uint32_t from)
{
	uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u ^
		     ((uint64_t)from + 1) * 0xff51afd7ed558ccdu ^
		     ((uint64_t)tensor + 1) * 0xc4ceb9fe1a85ec53u;

	for (int i = 0; i < 16; i++) {
		x ^= x >> 29;
		x *= 0xbf58476d1ce4e5b9u;
		value[i] = (uint8_t)(x >> 56);
	}
}

static bool better(const struct world *w, uint32_t a, uint32_t b)
{
	if (b == NONE)
		return true;
	return w->stored[a].cost != w->stored[b].cost ? w->stored[a].cost < w->stored[b].cost
						      : a < b;
}

static const struct geometry geometry = {.leaf = 256, .chunk = 1024};

static void lose_leaves(struct rank *r)
{
	uint64_t n = r->image_len / geometry.leaf + 1, some = 1 + below(6);

	r->present = calloc(n / 64 + 1, 8);
	for (uint64_t i = 0; i < n; i++)
		if (below(some + 1))
			r->present[i / 64] |= 1ull << (i % 64);
}

static bool stores(const struct rank *r, uint64_t at)
{
	uint64_t leaf = at / geometry.leaf;

	return !r->present || (r->present[leaf / 64] >> (leaf % 64) & 1);
}

/* Images of all stored ranks, and who is best for each element. */
static void fill_images(struct world *w)
{
	for (uint32_t i = 0; i < w->n_tensors; i++) {
		struct tensor *t = &w->tensors[i];

		t->best = malloc((t->elements + 1) * sizeof(*t->best));
		for (uint64_t k = 0; k < t->elements; k++)
			t->best[k] = NONE;
	}
	for (uint32_t r = 0; r < w->n_stored; r++) {
		struct rank *rank = &w->stored[r];

		rank->image = calloc(1, rank->image_len + 1);
		if (lacking && below(3) == 0)
			lose_leaves(rank);
		for (uint32_t i = 0; i < rank->n; i++) {
			struct part *p = &rank->parts[i];
			struct tensor *t = &w->tensors[p->tensor];
			uint64_t n = part_elements(w, p);

			for (uint64_t k = 0; k < n; k++) {
				uint64_t number = element_number(w, p, k);
				uint64_t at = rank->image_at[i] + k * t->bytes;
				uint8_t value[16];

				element_value(value, p->tensor, number, r);
				if (!stores(rank, at)) {
					memset(rank->image + at, FILL ^ 0xff, t->bytes);
					continue;
				}
				memcpy(rank->image + at, value, t->bytes);
				if (better(w, r, t->best[number]))
					t->best[number] = r;
			}
		}
	}
}

/* Compares one wanted part; elements that nobody stores must be as they were. */
static void check_part(struct world *w, const struct part *p, const uint8_t *memory)
{
	const struct tensor *t = &w->tensors[p->tensor];
	uint64_t n = part_elements(w, p);

	seen.dtype[t->kind]++;
	seen.ndim[t->ndim]++;
	seen.elements += n;
	for (uint64_t k = 0; k < n; k++) {
		uint64_t number = element_number(w, p, k);
		uint8_t value[16];

		memset(value, FILL, sizeof(value));
		if (t->best[number] == NONE)
			w->holes++;
		else
			element_value(value, p->tensor, number, t->best[number]);
		if (memcmp(memory + k * t->bytes, value, t->bytes) != 0)
			fail_msg("element %llu of tensor %s (part element %llu) is wrong",
				 (unsigned long long)number, t->name, (unsigned long long)k);
	}
}

/* ---- From parts to declarations ---- */

static void declare(struct world *w, struct rank *rank)
{
	struct declaration_builder *b;
	struct err e = { 0 };
	uint64_t end = 0;

	rank->image_at = malloc((rank->n + 1) * sizeof(*rank->image_at));
	assert_int_equal(declaration_builder_new(geometry, &b), 0);
	for (uint32_t i = 0; i < rank->n; i++) {
		struct part *p = &rank->parts[i];
		struct tensor *t = &w->tensors[p->tensor];
		uint64_t bytes = part_elements(w, p) * t->bytes;
		uint64_t align = bytes >= geometry.leaf ? 4096 : 64;
		struct shard s = {
			.name = t->name,
			.name_len = (uint32_t)strlen(t->name),
			.dtype = t->dtype,
			.flat = p->flat,
			.start = p->start,
			.stop = p->stop,
		};

		s.global.ndim = s.box.ndim = t->ndim;
		memcpy(s.global.dim, t->dim, sizeof(t->dim));
		memcpy(s.box.offset, p->offset, sizeof(p->offset));
		memcpy(s.box.length, p->length, sizeof(p->length));
		if (declaration_add(b, &s, &e) != (int)i)
			fail_msg("%s", e.text);
		while (end % align)
			end++;
		rank->image_at[i] = end;
		end += bytes;
	}
	if (declaration_finish(b, &rank->declaration, &rank->declaration_len, &e))
		fail_msg("%s", e.text);
	declaration_builder_free(b);
	assert_int_equal(
		declaration_open(rank->declaration, rank->declaration_len, &rank->view, &e), 0);
	assert_int_equal(rank->view.image_bytes, end);
	rank->image_len = end;
}

static void rank_fini(struct rank *rank)
{
	alloc_free(rank->declaration);
	free(rank->image);
	free(rank->image_at);
	free(rank->present);
	rank->present = NULL;
	rank->image = NULL;
	rank->image_at = NULL;
	rank->declaration = NULL;
	rank->n = 0;
}

/* ---- Execution ---- */

struct unit_set {
	uint64_t last;
	bool any;
	uint8_t *touched;
	uint64_t n;
};

static void mark_units(void *arg, uint64_t first, uint64_t last)
{
	struct unit_set *u = arg;

	assert_true(first <= last && last < u->n);
	assert_true(!u->any || first > u->last + 1); /* ascending, disjoint, joined */
	u->any = true;
	u->last = last;
	memset(u->touched + first, 1, last - first + 1);
}

/* plan_piece_units() and plan_piece_span() against every byte of every row. */
static void check_units(const struct plan_piece *p, uint64_t unit, uint64_t image_len)
{
	uint64_t n = image_len / unit + 1, rows = 1, lo, hi, end = 0;
	struct unit_set u = { .touched = calloc(1, n), .n = n };
	uint8_t *want = calloc(1, n);

	for (uint32_t k = 0; k < p->ndim; k++)
		rows *= p->count[k];
	for (uint64_t row = 0; row < rows; row++) {
		uint64_t at = p->src, rest = row;

		for (uint32_t k = p->ndim; k-- > 0; rest /= p->count[k])
			at += rest % p->count[k] * p->src_stride[k];
		for (uint64_t b = at; b < at + p->run; b++)
			want[b / unit] = 1;
		end = at + p->run;
	}
	plan_piece_units(p, unit, mark_units, &u);
	assert_memory_equal(u.touched, want, n);
	plan_piece_span(p, &lo, &hi);
	assert_true(lo == p->src && hi == end);
	free(want);
	free(u.touched);
}

/* Every piece of one source through windows that are cut anywhere and are no longer than they
 * say. */
static void run_source(const struct plan *plan, uint32_t source, const struct rank *rank,
		       uint8_t **memory)
{
	uint64_t lo = 0, most = 1 + below(rank->image_len + 1);

	while (lo < rank->image_len) {
		uint64_t left = rank->image_len - lo, len = 1 + below(most);
		uint64_t n = len < left ? len : left;
		uint8_t *window = malloc(n);

		memcpy(window, rank->image + lo, n);
		for (size_t i = 0; i < plan->n_pieces; i++)
			if (plan->pieces[i].source == source)
				plan_piece_copy(&plan->pieces[i], window, lo, lo + n,
						memory[plan->pieces[i].target]);
		free(window);
		lo += n;
	}
}

static void assert_same_piece(const struct plan_piece *a, const struct plan_piece *b)
{
	assert_true(a->source == b->source && a->target == b->target && a->src == b->src);
	assert_true(a->dst == b->dst && a->run == b->run && a->ndim == b->ndim);
	assert_memory_equal(a->count, b->count, 8 * a->ndim);
	assert_memory_equal(a->src_stride, b->src_stride, 8 * a->ndim);
	assert_memory_equal(a->dst_stride, b->dst_stride, 8 * a->ndim);
}

/* Encodes and decodes the plan: what comes back must be the same. */
static void check_wire(const struct world *w, const struct plan *plan, const uint64_t *targets)
{
	uint64_t sources[RANKS_MAX];
	struct writer out = { 0 };
	struct plan back;
	struct reader in;
	struct err e = { 0 };

	for (uint32_t i = 0; i < w->n_stored; i++)
		sources[i] = w->stored[i].image_len;
	assert_int_equal(plan_encode(plan, &out), 0);
	in = reader_of(out.buf, out.len);
	if (plan_decode(&in, sources, w->n_stored, targets, w->wanted.n, &back, &e))
		fail_msg("%s", e.text);
	assert_int_equal(reader_left(&in), 0);
	assert_int_equal(back.n_pieces, plan->n_pieces);
	assert_int_equal(back.bytes, plan->bytes);
	assert_int_equal(back.n_problems, plan->n_problems);
	for (size_t i = 0; i < back.n_pieces; i++)
		assert_same_piece(&back.pieces[i], &plan->pieces[i]);
	plan_fini(&back);
	writer_free(&out);
}

/* What the pieces say that they copy. */
static uint64_t bytes_of_pieces(const struct plan *plan)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < plan->n_pieces; i++) {
		uint64_t n = plan->pieces[i].run;

		for (uint32_t k = 0; k < plan->pieces[i].ndim; k++)
			n *= plan->pieces[i].count[k];
		bytes += n;
	}
	return bytes;
}

static void execute(struct world *w, const struct plan *plan)
{
	uint64_t sizes[PARTS_MAX], placed = 0, want_bytes = 0;
	uint8_t *memory[PARTS_MAX];

	for (uint32_t i = 0; i < w->wanted.n; i++) {
		const struct part *p = &w->wanted.parts[i];

		sizes[i] = part_elements(w, p) * w->tensors[p->tensor].bytes;
		memory[i] = malloc(sizes[i] + 1);
		memset(memory[i], FILL, sizes[i]);
		want_bytes += sizes[i];
	}
	for (uint32_t i = 0; i < w->n_stored; i++)
		run_source(plan, i, &w->stored[i], memory);
	w->holes = 0;
	for (uint32_t i = 0; i < w->wanted.n; i++) {
		const struct tensor *t = &w->tensors[w->wanted.parts[i].tensor];
		uint64_t before = w->holes;

		check_part(w, &w->wanted.parts[i], memory[i]);
		placed += sizes[i] - (w->holes - before) * t->bytes;
		free(memory[i]);
	}
	/* All right and no more bytes than that: each was written once. */
	assert_int_equal(plan->bytes, placed);
	assert_int_equal(bytes_of_pieces(plan), placed);
	assert_true(placed <= want_bytes);
	check_wire(w, plan, sizes);
}

static bool has_any(const struct rank *ranks, uint32_t n, uint32_t tensor)
{
	for (uint32_t r = 0; r < n; r++)
		for (uint32_t i = 0; i < ranks[r].n; i++)
			if (ranks[r].parts[i].tensor == tensor)
				return true;
	return false;
}

/* Tensors that are stored and wanted by nobody: the plan must name them, and no others. */
static uint32_t check_extra(const struct world *w, uint32_t n_peers, const struct plan *plan)
{
	uint32_t n = 0, said = 0;

	for (size_t i = 0; i < plan->n_problems; i++)
		said += plan->problems[i].kind == PLAN_EXTRA;
	for (uint32_t t = 0; t < w->n_tensors; t++) {
		char text[ERR_TEXT_MAX];
		bool named = false;

		if (!has_any(w->stored, w->n_stored, t) || has_any(&w->wanted, 1, t) ||
		    has_any(w->peers, n_peers, t))
			continue;
		snprintf(text, sizeof(text), "tensor '%s' is stored but not wanted",
			 w->tensors[t].name);
		for (size_t i = 0; i < plan->n_problems; i++)
			named = named || strcmp(plan->problems[i].text, text) == 0;
		assert_true(named);
		n++;
	}
	assert_int_equal(said, n);
	return n;
}

/* Plans, executes, compares; what the planner says of holes and of tensors that are not wanted must
 * be what the oracle found. */
static void check_world(struct world *w)
{
	struct plan_source sources[RANKS_MAX];
	struct declaration peers[PEERS_MAX];
	struct plan_peers all = {peers, w->n_peers};
	bool list_extra = below(2);
	struct err e = { 0 };
	struct plan plan;
	uint32_t extra;
	int r;

	for (uint32_t i = 0; i < w->n_stored; i++)
		sources[i] = (struct plan_source){.declaration = w->stored[i].view,
						  .cost = w->stored[i].cost,
						  .present = w->stored[i].present};
	for (uint32_t i = 0; i < w->n_peers; i++)
		peers[i] = w->peers[i].view;
	assert_int_equal(plan_make(sources, w->n_stored, &w->wanted.view, true, &all, &plan, &e),
			 0);
	execute(w, &plan);
	extra = check_extra(w, w->n_peers, &plan);
	assert_int_equal(plan.n_problems > extra, w->holes > 0);
	seen.extra += extra > 0;
	if (below(8) == 0)
		for (size_t i = 0; i < plan.n_pieces; i++)
			check_units(&plan.pieces[i], 1 + below(600),
				    w->stored[plan.pieces[i].source].image_len);
	plan_fini(&plan);
	r = plan_make(sources, w->n_stored, &w->wanted.view, false, list_extra ? &all : NULL, &plan,
		      &e);
	assert_int_equal(r, w->holes || (list_extra && extra) ? CKPT_EMISMATCH : 0);
	plan_fini(&plan);
	if (below(4))
		return;
	assert_int_equal(
		plan_make(sources, w->n_stored, &w->wanted.view, true, PLAN_ALONE, &plan, &e), 0);
	seen.peers += check_extra(w, 0, &plan) > extra;
	plan_fini(&plan);
}

/* ---- Random tilings ---- */

/* Cuts [0, n) into at most so many parts, some of which may be empty: anywhere, or chunks of equal
 * size and what is left. */
static uint32_t cut(uint64_t n, uint32_t most, uint64_t *at)
{
	uint32_t parts = 1 + (uint32_t)below(most);
	bool chunks = below(2);

	at[0] = 0;
	for (uint32_t i = 1; chunks && i <= parts; i++) {
		uint64_t size = (n + parts - 1) / parts;

		at[i] = i * size < n ? i * size : n;
	}
	if (chunks)
		return parts;
	for (uint32_t i = 1; i < parts; i++)
		at[i] = below(n + 1);
	at[parts] = n;
	for (uint32_t i = 1; i < parts; i++)
		for (uint32_t k = i; k > 1 && at[k] < at[k - 1]; k--) {
			uint64_t x = at[k];

			at[k] = at[k - 1];
			at[k - 1] = x;
		}
	return parts;
}

/* Hands one box over, whole or as flat ranges, to ranks [first, first + n). */
static void give(struct world *w, struct rank *ranks, uint32_t first, uint32_t n,
		 const struct part *box, unsigned drop)
{
	uint64_t at[8], elements = part_elements(w, box);
	uint32_t parts = below(2) ? 1 : cut(elements, 4, at);
	bool flat = parts > 1 || below(4) == 0;

	if (parts == 1) {
		at[0] = 0;
		at[1] = elements;
	}
	for (uint32_t i = 0; i < parts; i++) {
		struct rank *rank = &ranks[first + below(n)];
		struct part *p = &rank->parts[rank->n];

		if (rank->n == PARTS_MAX || below(100) < drop)
			continue;
		*p = *box;
		p->flat = flat;
		p->start = flat ? at[i] : 0;
		p->stop = flat ? at[i + 1] : 0;
		rank->n++;
	}
}

/* Tiles a tensor with a random grid. */
static void tile(struct world *w, uint32_t tensor, struct rank *ranks, uint32_t first, uint32_t n,
		 unsigned drop)
{
	struct tensor *t = &w->tensors[tensor];
	uint64_t at[5][8];
	uint32_t parts[5], cells = 1;

	for (uint32_t k = 0; k < t->ndim; k++) {
		parts[k] = below(2) ? 1 : cut(t->dim[k], 3, at[k]);
		if (parts[k] == 1) {
			at[k][0] = 0;
			at[k][1] = t->dim[k];
		}
		cells *= parts[k];
	}
	for (uint32_t cell = 0; cell < cells; cell++) {
		struct part box = { .tensor = tensor };
		uint32_t rest = cell;

		for (uint32_t k = 0; k < t->ndim; k++, rest /= parts[k - 1]) {
			box.offset[k] = at[k][rest % parts[k]];
			box.length[k] = at[k][rest % parts[k] + 1] - box.offset[k];
		}
		give(w, ranks, first, n, &box, drop);
	}
}

static void tensor_init(struct tensor *t, const char *name, uint32_t kind, uint32_t ndim,
			const uint64_t *dim)
{
	snprintf(t->name, sizeof(t->name), "%s", name);
	t->kind = kind;
	t->dtype = dtypes[kind].dtype;
	t->bytes = dtypes[kind].bytes;
	t->ndim = ndim;
	t->elements = 1;
	for (uint32_t k = 0; k < ndim; k++)
		t->elements *= t->dim[k] = dim[k];
}

static void random_tensor(struct tensor *t, uint32_t number)
{
	static const uint64_t most[6] = { 1, 200, 24, 9, 6, 4 };
	uint32_t ndim = (uint32_t)below(6), kind = (uint32_t)below(DTYPES);
	char name[32];
	uint64_t dim[5];

	for (uint32_t k = 0; k < ndim; k++)
		dim[k] = below(12) == 0 ? below(2) : 1 + below(most[ndim]);
	snprintf(name, sizeof(name), "t%u", number);
	tensor_init(t, name, kind, ndim, dim);
}

static void world_fini(struct world *w)
{
	for (uint32_t i = 0; i < w->n_stored; i++)
		rank_fini(&w->stored[i]);
	rank_fini(&w->wanted);
	for (uint32_t i = 0; i < w->n_peers; i++)
		rank_fini(&w->peers[i]);
	for (uint32_t i = 0; i < w->n_tensors; i++) {
		free(w->tensors[i].best);
		w->tensors[i].best = NULL;
	}
	w->n_stored = w->n_tensors = w->n_peers = 0;
}

/* The parts of ranks [0, n) on ranks [to, to + n) as well. */
static void copy_ranks(struct world *w, uint32_t n, uint32_t to, uint32_t tensor)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < w->stored[i].n; k++) {
			struct rank *rank = &w->stored[to + i];

			if (w->stored[i].parts[k].tensor == tensor)
				rank->parts[rank->n++] = w->stored[i].parts[k];
		}
}

/* A rank that holds one box or flat range of each tensor, wherever the others' lie. */
static void any_boxes(struct world *w, struct rank *rank)
{
	for (uint32_t i = 0; i < w->n_tensors; i++) {
		const struct tensor *t = &w->tensors[i];
		struct part p = {.tensor = i};
		uint64_t n;

		for (uint32_t k = 0; k < t->ndim; k++) {
			p.offset[k] = below(t->dim[k] + 1);
			p.length[k] = below(t->dim[k] - p.offset[k] + 1);
		}
		n = part_elements(w, &p);
		p.flat = below(2);
		if (p.flat) {
			p.start = below(n + 1);
			p.stop = p.start + below(n - p.start + 1);
		}
		rank->parts[rank->n++] = p;
	}
}

/* A name that no rank has at all is another problem than a hole: somebody has none of it. */
static void name_all(struct world *w)
{
	for (uint32_t i = 0; i < w->n_tensors; i++) {
		struct rank *rank = &w->stored[0];
		struct part *p = &rank->parts[rank->n];

		assert_true(rank->n < PARTS_MAX);
		*p = (struct part){ .tensor = i, .flat = true };
		memcpy(p->length, w->tensors[i].dim, sizeof(p->length));
		rank->n++;
	}
}

/* Each wants what a rank has stored, or any boxes of some tensors, or nothing. */
static void random_peers(struct world *w)
{
	w->n_peers = below(3) ? (uint32_t)below(5) : 0;
	for (uint32_t i = 0; i < w->n_peers; i++) {
		const struct rank *like = &w->stored[below(w->n_stored)];
		struct rank *peer = &w->peers[i];
		uint32_t n = 0;

		if (below(3) == 0) {
			memcpy(peer->parts, like->parts, like->n * sizeof(*like->parts));
			peer->n = like->n;
		} else {
			any_boxes(w, peer);
			for (uint32_t k = 0; k < peer->n; k++)
				if (below(2))
					peer->parts[n++] = peer->parts[k];
			peer->n = n;
		}
		declare(w, peer);
	}
}

/* Replicas of each tensor live on ranks of their own. */
static void random_world(struct world *w)
{
	uint32_t replicas = 1 + (uint32_t)below(3);
	uint32_t ranks = 1 + (uint32_t)below(below(16) ? 3 : 12);
	uint32_t tiled = replicas * ranks, more = below(4) ? 0 : (uint32_t)below(4);
	unsigned drop = below(4) == 0 ? 20 : 0;
	bool alike = below(3) == 0;

	memset(w->tensors, 0, sizeof(w->tensors));
	w->n_tensors = 1 + (uint32_t)below(below(4) ? 2 : 4);
	w->n_stored = tiled + more;
	for (uint32_t i = 0; i < w->n_stored; i++)
		w->stored[i].cost = (uint32_t)below(3);
	for (uint32_t i = 0; i < w->n_tensors; i++) {
		random_tensor(&w->tensors[i], i);
		tile(w, i, w->stored, 0, ranks, drop);
		for (uint32_t k = 1; k < replicas; k++) {
			if (alike)
				copy_ranks(w, ranks, k * ranks, i);
			else
				tile(w, i, w->stored, k * ranks, ranks, drop);
		}
		if (below(8))
			tile(w, i, &w->wanted, 0, 1, below(2) ? 50 : 0);
	}
	for (uint32_t i = tiled; i < w->n_stored; i++)
		any_boxes(w, &w->stored[i]);
	name_all(w);
	for (uint32_t i = 0; i < w->n_stored; i++)
		declare(w, &w->stored[i]);
	declare(w, &w->wanted);
	random_peers(w);
	fill_images(w);
}

static void test_random_layouts(void **state)
{
	uint64_t cases = test_cap("CKPT_PLAN_CASES", 50000), holes = 0;
	struct world *w = calloc(1, sizeof(*w));

	(void)state;
	rng_seed(&rng, test_seed(1));
	for (uint64_t i = 0; i < cases; i++) {
		lacking = i % 2;
		random_world(w);
		check_world(w);
		holes += w->holes > 0;
		world_fini(w);
	}
	lacking = false;
	printf("%llu pairs of layouts, %llu of them with holes, %llu with tensors that nobody "
	       "wants, %llu with some that only others want; %llu elements\n",
	       (unsigned long long)cases, (unsigned long long)holes, (unsigned long long)seen.extra,
	       (unsigned long long)seen.peers, (unsigned long long)seen.elements);
	assert_true(cases < 100 || (holes > cases / 50 && holes < cases && seen.extra > 0));
	assert_true(cases < 1000 || seen.peers > 0);
	for (size_t i = 0; i < DTYPES; i++)
		assert_true(cases < 1000 || seen.dtype[i] > cases / 100);
	for (size_t i = 0; i < 6; i++)
		assert_true(cases < 1000 || seen.ndim[i] > cases / 100);
	free(w);
}

/* ---- Layouts of real trainers ---- */

struct grid {
	uint32_t tp, pp, dp;
};

/* The i-th of n nearly equal parts of [0, all). */
static uint64_t share(uint64_t all, uint32_t n, uint32_t i)
{
	return all * i / n;
}

/*
 * Layers of a column-cut weight, a row-cut weight, a replicated norm and an optimizer moment that
 * is cut over dp as flat ranges of the tp box (ZeRO-1 over tensor parallelism).
 */
static void model_rank(struct world *w, struct grid g, uint32_t layers, uint32_t index,
		       struct rank *rank)
{
	uint32_t t = index % g.tp, p = index / g.tp % g.pp, d = index / g.tp / g.pp;

	rank->n = 0;
	for (uint32_t layer = 0; layer < layers; layer++) {
		if (layer < share(layers, g.pp, p) || layer >= share(layers, g.pp, p + 1))
			continue;
		for (uint32_t kind = 0; kind < 4; kind++) {
			uint32_t cut_dim = kind == 1;
			struct part *part = &rank->parts[rank->n++];
			const struct tensor *tensor = &w->tensors[4 * layer + kind];

			*part = (struct part){ .tensor = 4 * layer + kind };
			memcpy(part->length, tensor->dim, sizeof(part->length));
			if (kind == 2)
				continue;
			part->offset[cut_dim] = share(tensor->dim[cut_dim], g.tp, t);
			part->length[cut_dim] =
				share(tensor->dim[cut_dim], g.tp, t + 1) - part->offset[cut_dim];
			if (kind == 3) {
				uint64_t n = part->length[0] * part->length[1];

				part->flat = true;
				part->start = share(n, g.dp, d);
				part->stop = share(n, g.dp, d + 1);
			}
		}
	}
}

static uint32_t kind_of(uint32_t dtype)
{
	uint32_t kind = 0;

	while (dtypes[kind].dtype != dtype)
		kind++;
	return kind;
}

static void model_tensors(struct world *w, uint32_t layers)
{
	static const char *kinds[4] = { "up", "down", "norm", "adam.m" };
	static const uint64_t dims[4][2] = { { 22, 10 }, { 10, 22 }, { 10, 1 }, { 22, 10 } };
	char name[32];

	memset(w->tensors, 0, sizeof(w->tensors));
	w->n_tensors = 4 * layers;
	for (uint32_t i = 0; i < w->n_tensors; i++) {
		snprintf(name, sizeof(name), "layer%02u.%s", i / 4, kinds[i % 4]);
		tensor_init(&w->tensors[i], name, kind_of(i % 4 == 3 ? CKPT_F32 : CKPT_BF16),
			    i % 4 == 2 ? 1 : 2, dims[i % 4]);
	}
}

static void check_grids(struct grid from, struct grid to, uint32_t layers)
{
	struct world *w = calloc(1, sizeof(*w));

	model_tensors(w, layers);
	w->n_stored = from.tp * from.pp * from.dp;
	assert_true(w->n_stored <= RANKS_MAX);
	for (uint32_t i = 0; i < w->n_stored; i++) {
		model_rank(w, from, layers, i, &w->stored[i]);
		declare(w, &w->stored[i]);
	}
	fill_images(w);
	w->n_peers = to.tp * to.pp * to.dp;
	assert_true(w->n_peers <= PEERS_MAX);
	for (uint32_t i = 0; i < w->n_peers; i++) {
		model_rank(w, to, layers, i, &w->peers[i]);
		declare(w, &w->peers[i]);
	}
	seen.extra = 0;
	for (uint32_t i = 0; i < w->n_peers; i++) {
		model_rank(w, to, layers, i, &w->wanted);
		declare(w, &w->wanted);
		for (uint32_t k = 0; k < w->n_stored; k++)
			w->stored[k].cost = k == i % w->n_stored ? 0 : 1;
		for (uint32_t k = 0; k < w->n_tensors; k++)
			free(w->tensors[k].best);
		for (uint32_t k = 0; k < w->n_stored; k++)
			free(w->stored[k].image);
		fill_images(w);
		check_world(w);
		assert_int_equal(w->holes, 0);
		assert_int_equal(seen.extra, 0); /* whoever has it now, somebody wants it */
		rank_fini(&w->wanted);
	}
	world_fini(w);
	free(w);
}

static void test_trainer_grids(void **state)
{
	(void)state;
	rng_seed(&rng, test_seed(2));
	check_grids((struct grid){ 4, 2, 2 }, (struct grid){ 2, 4, 4 }, 8);
	check_grids((struct grid){ 2, 4, 4 }, (struct grid){ 4, 2, 2 }, 8);
	check_grids((struct grid){ 1, 1, 4 }, (struct grid){ 1, 1, 3 }, 5);
	check_grids((struct grid){ 3, 1, 3 }, (struct grid){ 5, 2, 1 }, 5);
	check_grids((struct grid){ 1, 1, 1 }, (struct grid){ 7, 3, 2 }, 5);
	check_grids((struct grid){ 2, 2, 2 }, (struct grid){ 2, 2, 2 }, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_layouts),
		cmocka_unit_test(test_trainer_grids),
	};

	return cmocka_run_group_tests_name("plan against an oracle", tests, NULL, NULL);
}
