/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reading_fetch.c - parts of a checkpoint's tensors: planned, read, verified, placed.
 *
 *   sort    wants by tensor and region; those that are equal are planned once
 *   plan    each plan_make() takes wants that share no element; what overlaps goes to the next
 *   narrow  each source is cut to the chunks between its first and its last wanted byte, so that
 *           the work depends on what is wanted and not on how large the checkpoint is
 *   place   client/placer.c reads each touched leaf once, whoever wants it, verifies it (I2), and
 *           copies the pieces to their places
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "client/clock.h"
#include "client/placer.h"
#include "client/touched.h"
#include "codec/compress.h"
#include "model/boxtree.h"
#include "tools/plural.h"
#include "tools/reading_ranks.h"

#define THREADS_DEFAULT 16u
#define NO_SET          UINT32_MAX

/* Chunks [first, ...) of a rank, as a source of its own. */
struct window {
	uint32_t rank;
	uint64_t lo, hi; /* bytes of the image, hi exclusive */
	struct load_source source;
};

struct fetch {
	struct reading *r;
	const struct reading_want *wants;
	size_t n;
	uint32_t *order; /* wants sorted; equal ones stand side by side */
	uint32_t *set;   /* by place in order: which plan_make() it goes to; NO_SET: equal to the
			    one before */
	uint32_t n_sets;
	struct window *windows; /* one for each rank that holds something */
	uint32_t n_windows;
	struct plan_source *plan_sources;
	struct plan_piece *pieces; /* source: a window; target: a want */
	size_t n_pieces, cap_pieces;
};

static void fetch_fini(struct fetch *f)
{
	alloc_free(f->order);
	alloc_free(f->set);
	alloc_free(f->windows);
	alloc_free(f->plan_sources);
	alloc_free(f->pieces);
}

/* ---- Sorting ---- */

static int compare_numbers(const uint64_t *a, const uint64_t *b, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	return 0;
}

/* 0: the same elements of the same tensor. */
static int compare_wants(const struct reading_want *a, const struct reading_want *b)
{
	uint64_t x[] = {a->tensor, a->box.ndim, a->start, a->stop};
	uint64_t y[] = {b->tensor, b->box.ndim, b->start, b->stop};
	int c = compare_numbers(x, y, 2);

	if (c == 0)
		c = compare_numbers(a->box.offset, b->box.offset, a->box.ndim);
	if (c == 0)
		c = compare_numbers(a->box.length, b->box.length, a->box.ndim);
	return c ? c : compare_numbers(x + 2, y + 2, 2);
}

static int by_region(const void *pa, const void *pb, void *arg)
{
	const struct reading_want *wants = arg;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
	int c = compare_wants(&wants[a], &wants[b]);

	return c ? c : a < b ? -1 : a > b;
}

static struct shard shard_of(const struct reading *r, const struct reading_want *w)
{
	const struct reading_tensor *t = &r->entries[w->tensor].tensor;

	return (struct shard){.name = t->name,
			      .name_len = t->name_len,
			      .dtype = t->dtype,
			      .global = t->global,
			      .box = w->box,
			      .flat = true,
			      .start = w->start,
			      .stop = w->stop};
}

static int check_wants(const struct fetch *f, struct err *e)
{
	if (f->n >= UINT32_MAX)
		return err_set(e, -E2BIG, "%zu parts of tensors at once are too many", f->n);
	for (size_t i = 0; i < f->n; i++) {
		struct shard s;
		int r;

		assert(f->wants[i].tensor < f->r->n_entries);
		s = shard_of(f->r, &f->wants[i]);
		r = shard_check(&s, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- Sets of wants that share no element ---- */

static int add_boxes(struct boxtree *t, const struct shard *s, uint32_t tag)
{
	struct box boxes[FLAT_BOXES_MAX];
	int n = shard_boxes(s, boxes), r = 0;

	for (int i = 0; i < n && r == 0; i++)
		r = boxtree_add(t, &boxes[i], tag);
	return r;
}

/* Whether it meets none that was added before it. */
static bool is_first(const struct boxtree *t, const struct shard *s, uint32_t tag)
{
	struct box boxes[FLAT_BOXES_MAX];
	int n = shard_boxes(s, boxes);

	for (int i = 0; i < n; i++)
		if (boxtree_first(t, &boxes[i])->tag != tag)
			return false;
	return true;
}

static int checked_shard(const struct fetch *f, size_t at, struct shard *ret)
{
	*ret = shard_of(f->r, &f->wants[f->order[at]]);
	return shard_check(ret, NULL); /* again: it sets what is derived */
}

/* Places [from, to) of order, which have one tensor: those left take the next set's number if they
 * meet none before them. *ret_left: how many did not get one. */
static int give_set(struct fetch *f, struct boxtree *t, size_t from, size_t to, uint32_t set,
		    size_t *ret_left)
{
	struct shard s;
	int r;

	*ret_left = 0;
	r = checked_shard(f, from, &s);
	if (r < 0)
		return r;
	boxtree_reset(t, s.global.ndim);
	for (size_t i = from; i < to && r == 0; i++) {
		if (f->set[i] != 0)
			continue;
		r = checked_shard(f, i, &s);
		if (r == 0)
			r = add_boxes(t, &s, (uint32_t)i);
	}
	if (r == 0)
		r = boxtree_build(t, NULL);
	for (size_t i = from; i < to && r == 0; i++) {
		if (f->set[i] != 0)
			continue;
		r = checked_shard(f, i, &s);
		if (r == 0 && is_first(t, &s, (uint32_t)i))
			f->set[i] = set;
		else
			*ret_left += 1;
	}
	return r;
}

/* The wants of one tensor; sets are numbered from 1 here. */
static int divide_tensor(struct fetch *f, struct boxtree *t, size_t from, size_t to)
{
	size_t left = 1;
	uint32_t set = 1;
	int r = 0;

	for (size_t i = from + 1; i < to; i++)
		if (compare_wants(&f->wants[f->order[i - 1]], &f->wants[f->order[i]]) == 0)
			f->set[i] = NO_SET;
		else
			left++;
	if (left == 1) {
		f->set[from] = 1;
		left = 0;
		set = 2;
	}
	for (; left > 0 && r == 0; set++) {
		size_t before = left;

		r = give_set(f, t, from, to, set, &left);
		assert(r < 0 || left < before); /* the first of them meets none before it */
	}
	f->n_sets = (uint32_t)max_u64(f->n_sets, set - 1);
	return r;
}

static int divide(struct fetch *f, struct err *e)
{
	struct boxtree tree = {0};
	int r = 0;

	f->order = alloc_array(f->n, sizeof(*f->order));
	f->set = alloc_array(f->n, sizeof(*f->set));
	if (!f->order || !f->set)
		return err_code(e, -ENOMEM, "sort %zu part%s of tensors", f->n, plural(f->n));
	for (size_t i = 0; i < f->n; i++)
		f->order[i] = (uint32_t)i;
	if (f->n > 1)
		qsort_r(f->order, f->n, sizeof(*f->order), by_region, (void *)f->wants);
	for (size_t from = 0, to; from < f->n && r == 0; from = to) {
		for (to = from + 1; to < f->n; to++)
			if (f->wants[f->order[to]].tensor != f->wants[f->order[from]].tensor)
				break;
		r = divide_tensor(f, &tree, from, to);
	}
	boxtree_fini(&tree);
	return r < 0 ? err_code(e, r, "sort %zu part%s of tensors", f->n, plural(f->n)) : 0;
}

/* ---- Who stores them ---- */

/* All ranks that hold something of a tensor that is wanted, with their tables in memory. */
static int find_ranks(struct fetch *f, struct err *e)
{
	struct reading *r = f->r;
	uint32_t world = r->checkpoint->commit.world;
	CLEANUP_FREE bool *needed = alloc_array(world, sizeof(*needed));
	int rc = needed ? 0 : -ENOMEM;

	for (size_t i = 0; i < f->n && rc == 0; i++) {
		size_t tensor = f->wants[f->order[i]].tensor;
		uint32_t h = r->entries[tensor].first;

		if (i > 0 && f->wants[f->order[i - 1]].tensor == tensor)
			continue;
		for (; h != NO_HOLDER; h = r->holders[h].next) {
			f->n_windows += !needed[r->holders[h].rank];
			needed[r->holders[h].rank] = true;
		}
	}
	f->windows = alloc_array(f->n_windows, sizeof(*f->windows));
	f->plan_sources = alloc_array(f->n_windows, sizeof(*f->plan_sources));
	if (rc < 0 || !f->windows || !f->plan_sources)
		return err_code(e, -ENOMEM, "read from %u rank%s", f->n_windows,
				plural(f->n_windows));
	for (uint32_t rank = 0, k = 0; rank < world && rc == 0; rank++) {
		if (!needed[rank])
			continue;
		rc = reading_load(r, rank, e);
		f->windows[k] = (struct window){.rank = rank, .lo = UINT64_MAX};
		f->plan_sources[k].declaration = r->ranks[rank].shard.table.declaration;
		f->plan_sources[k++].present = r->ranks[rank].shard.present;
	}
	return rc;
}

/* ---- Plans ---- */

static int push_piece(struct fetch *f, const struct plan_piece *p, uint32_t want)
{
	struct window *w = &f->windows[p->source];
	size_t cap = f->cap_pieces ? 2 * f->cap_pieces : 64;
	uint64_t bytes, lo, hi;
	void *more;

	if (f->n_pieces == f->cap_pieces) {
		if (cap > UINT32_MAX)
			return -E2BIG;
		more = size_mul(cap, sizeof(*p), &bytes) ? alloc_resize(f->pieces, bytes) : NULL;
		if (!more)
			return -ENOMEM;
		f->pieces = more;
		f->cap_pieces = cap;
	}
	f->pieces[f->n_pieces] = *p;
	f->pieces[f->n_pieces++].target = want;
	plan_piece_span(p, &lo, &hi);
	w->lo = min_u64(w->lo, lo);
	w->hi = max_u64(w->hi, hi);
	return 0;
}

/* For each want that it is for: those that are equal stand behind the planned one. */
static int push_pieces(struct fetch *f, const struct plan *plan, const uint32_t *at)
{
	int r = 0;

	for (size_t i = 0; i < plan->n_pieces && r == 0; i++) {
		size_t k = at[plan->pieces[i].target];

		do
			r = push_piece(f, &plan->pieces[i], f->order[k++]);
		while (r == 0 && k < f->n && f->set[k] == NO_SET);
	}
	return r;
}

/* What is wanted in one set, as a declaration. at: by declared index the place in order. */
static int declare(const struct fetch *f, uint32_t set, uint32_t *at, void **ret, size_t *ret_len,
		   struct err *e)
{
	struct geometry g = f->r->ranks[f->windows[0].rank].shard.table.geometry;
	struct declaration_builder *b = NULL;
	int r = declaration_builder_new(g, &b);

	if (r < 0)
		return err_code(e, r, "plan %zu part%s of tensors", f->n, plural(f->n));
	for (size_t i = 0; i < f->n && r >= 0; i++) {
		struct shard s = shard_of(f->r, &f->wants[f->order[i]]);

		if (f->set[i] != set)
			continue;
		r = declaration_add(b, &s, e);
		if (r >= 0)
			at[r] = (uint32_t)i;
	}
	if (r >= 0)
		r = declaration_finish(b, ret, ret_len, e);
	declaration_builder_free(b);
	return r < 0 ? r : 0;
}

static int plan_set(struct fetch *f, uint32_t set, struct err *e)
{
	CLEANUP_FREE uint32_t *at = alloc_array(f->n, sizeof(*at));
	CLEANUP_FREE void *bytes = NULL;
	struct declaration wanted;
	struct plan plan = {0};
	size_t len = 0;
	int r = at ? 0 : err_code(e, -ENOMEM, "plan %zu part%s of tensors", f->n, plural(f->n));

	if (r == 0)
		r = declare(f, set, at, &bytes, &len, e);
	if (r == 0)
		r = declaration_open(bytes, len, &wanted, e);
	if (r < 0)
		return r;
	r = plan_make(f->plan_sources, f->n_windows, &wanted, false, NULL, &plan, e);
	if (r == 0) {
		r = push_pieces(f, &plan, at);
		if (r < 0)
			err_code(e, r, "plan %zu part%s of tensors", f->n, plural(f->n));
	}
	plan_fini(&plan);
	return r;
}

static void narrow(struct fetch *f)
{
	for (uint32_t i = 0; i < f->n_windows; i++) {
		struct window *w = &f->windows[i];
		const struct shard_reader *s = &f->r->ranks[w->rank].shard;
		struct geometry g = s->table.geometry;

		w->lo = w->hi ? w->lo / g.chunk * g.chunk : 0;
		w->hi = min_u64(round_up(w->hi, g.chunk), s->table.image_len);
		w->source = (struct load_source){
			.kind = LOAD_FILE,
			.rank = w->rank,
			.image_len = w->hi - w->lo,
			.geometry = g,
			.leaves = s->table.leaves + w->lo / g.leaf * sizeof(struct digest),
			.places = s->places + w->lo / g.chunk * CHUNK_PLACE_BYTES,
		};
	}
	for (size_t i = 0; i < f->n_pieces; i++)
		f->pieces[i].src -= f->windows[f->pieces[i].source].lo;
}

/* Sources and pieces, the sources cut to what is wanted of them. */
static int make(struct fetch *f, struct err *e)
{
	int r = check_wants(f, e);

	f->r->now++;
	if (r == 0)
		r = divide(f, e);
	if (r == 0)
		r = find_ranks(f, e);
	for (uint32_t set = 1; set <= f->n_sets && r == 0; set++)
		r = plan_set(f, set, e);
	if (r == 0)
		narrow(f);
	return r;
}

/* ---- Execution ---- */

static int make_sources(const struct fetch *f, struct source **ret, struct err *e)
{
	struct source *s = alloc_array(f->n_windows, sizeof(*s));

	if (!s)
		return err_code(e, -ENOMEM, "read from %u rank%s", f->n_windows,
				plural(f->n_windows));
	for (uint32_t i = 0; i < f->n_windows; i++)
		s[i] = (struct source){.in = &f->windows[i].source,
				       .fd = f->r->ranks[f->windows[i].rank].fd};
	*ret = s;
	return 0;
}

/* Bytes that a worker of the placer has, at most (client/source.c). */
static uint64_t worker_bytes(const struct fetch *f, const struct source *sources)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < f->n_windows; i++) {
		const struct load_source *in = sources[i].in;
		uint64_t leaves = source_range_max(&sources[i], SOURCE_RANGE_MAX);
		uint64_t bytes = max_u64(leaves * in->geometry.leaf, in->geometry.chunk);

		for (uint64_t k = 0; k < div_up(in->image_len, in->geometry.chunk); k++)
			if (chunk_place_get(in->places, k).encoding != ENCODING_RAW) {
				bytes += 3 * (uint64_t)in->geometry.chunk; /* raw, and zstd's own */
				break;
			}
		most = max_u64(most, bytes);
	}
	return most + 3 * DISK_ALIGN;
}

static uint32_t count_threads(const struct fetch *f, const struct source *sources)
{
	uint64_t most = f->r->threads ? f->r->threads : THREADS_DEFAULT;
	uint64_t useful = 1, bytes = 0;

	for (uint32_t i = 0; i < f->n_windows; i++)
		bytes += sources[i].in->image_len;
	useful += bytes / (256u << 10); /* for a few leaves none is started */
	most = min_u64(most, f->r->memory / worker_bytes(f, sources));
	return (uint32_t)max_u64(min_u64(most, useful), 1);
}

static int say_bad(const struct fetch *f, const struct placed *p, struct err *e)
{
	const struct window *w = &f->windows[p->bad_source];
	const struct rank_table *t = &f->r->ranks[w->rank].shard.table;
	uint64_t at = w->lo + p->bad_leaf * t->geometry.leaf;
	char what[ERR_TEXT_MAX / 2];

	shard_describe(t, at, what, sizeof(what));
	return err_set(e, CKPT_ECORRUPT,
		       "leaf %" PRIu64 " of rank %u (%s) of step %" PRIu64 " of job '%s' cannot "
		       "be read or does not match its digest: 'ckptctl verify' lists all of them",
		       at / t->geometry.leaf, w->rank, what, f->r->checkpoint->id.step,
		       f->r->job->name);
}

static int execute(const struct fetch *f, const struct place_target *targets, uint64_t *ret_read,
		   struct err *e)
{
	CLEANUP_FREE struct source *sources = NULL;
	struct placing p = {
		.n_sources = f->n_windows,
		.pieces = f->pieces,
		.n_pieces = f->n_pieces,
		.targets = targets,
		.memory = f->r->memory,
		.deadline = NEVER,
	};
	struct placed placed = {0};
	int r;

	if (f->n_pieces == 0)
		return 0;
	r = make_sources(f, &sources, e);
	if (r < 0)
		return r;
	p.sources = sources;
	p.threads = count_threads(f, sources);
	r = placer_run(&p, &placed, e);
	if (ret_read)
		*ret_read += placed.bytes_read;
	return r == CKPT_ECORRUPT && placed.bad ? say_bad(f, &placed, e) : r;
}

int reading_fetch(struct reading *r, const struct reading_want *wants, size_t n, uint64_t *ret_read,
		  struct err *e)
{
	struct fetch f = {.r = r, .wants = wants, .n = n};
	CLEANUP_FREE struct place_target *targets = alloc_array(n, sizeof(*targets));
	int rc = targets ? 0 : err_code(e, -ENOMEM, "read %zu part%s of tensors", n, plural(n));

	for (size_t i = 0; i < n && rc == 0; i++)
		targets[i] = (struct place_target){.ptr = wants[i].to};
	if (rc == 0 && n > 0)
		rc = make(&f, e);
	if (rc == 0)
		rc = execute(&f, targets, ret_read, e);
	fetch_fini(&f);
	return rc;
}

/* ---- Cost ---- */

/* As source_read() reads this range. */
static uint64_t range_cost(const struct load_source *in, struct source_range range)
{
	struct geometry g = in->geometry;
	uint64_t lo = range.first * g.leaf, hi = min_u64(lo + range.n * g.leaf, in->image_len);
	struct chunk_place p = chunk_place_get(in->places, lo / g.chunk);

	if (p.encoding != ENCODING_RAW)
		return p.offset % DISK_ALIGN + p.stored;
	return (p.offset + lo % g.chunk) % DISK_ALIGN + (hi - lo);
}

static uint64_t source_cost(const struct source *s, const struct touched *t)
{
	uint64_t sum = 0, leaf = touched_next(t, 0);

	while (leaf < t->n_leaves) {
		uint64_t want = touched_run(t, leaf, source_range_max(s, SOURCE_RANGE_MAX));
		struct source_range range = source_range_at(s, leaf, want);

		sum += range_cost(s->in, range);
		leaf = touched_next(t, leaf + range.n);
	}
	return sum;
}

int reading_cost(struct reading *r, const struct reading_want *wants, size_t n, uint64_t *ret_read,
		 struct err *e)
{
	struct fetch f = {.r = r, .wants = wants, .n = n};
	CLEANUP_FREE struct source *sources = NULL;
	struct touched *touched = NULL;
	int rc = n > 0 ? make(&f, e) : 0;

	if (rc == 0 && f.n_pieces > 0) {
		rc = make_sources(&f, &sources, e);
		if (rc == 0) {
			rc = touched_make(sources, f.n_windows, f.pieces, f.n_pieces, &touched);
			if (rc < 0)
				err_code(e, rc, "count what %zu part%s of tensors cost", n,
					 plural(n));
		}
		for (uint32_t i = 0; i < f.n_windows && rc == 0; i++)
			*ret_read += source_cost(&sources[i], &touched[i]);
		if (touched)
			touched_free(touched, f.n_windows);
	}
	fetch_fini(&f);
	return rc;
}

/* ---- Blobs ---- */

static int find_blob(const struct rank_table *t, const char *name, uint32_t name_len,
		     struct blob_entry *ret, struct err *e)
{
	char text[NAME_TEXT_MAX];

	for (uint32_t i = 0; i < t->n_blobs; i++) {
		int r = rank_table_blob(t, i, ret);

		if (r < 0)
			return err_code(e, r, "read the names of the blobs of rank %u", t->rank);
		if (name_compare(ret->name, ret->name_len, name, name_len) == 0)
			return 0;
	}
	return err_set(e, CKPT_ENOTFOUND, "rank %u has no blob '%s'", t->rank,
		       name_text(text, name, name_len));
}

int reading_blob(struct reading *r, uint32_t rank, const char *name, uint32_t name_len, void **ret,
		 uint64_t *ret_bytes, struct err *e)
{
	struct fetch f = {.r = r, .n_windows = 1};
	struct place_target target = {0};
	struct plan_piece piece = {0};
	struct blob_entry blob;
	int rc;

	r->now++;
	rc = reading_load(r, rank, e);
	if (rc == 0)
		rc = find_blob(&r->ranks[rank].shard.table, name, name_len, &blob, e);
	if (rc < 0)
		return rc;
	target.ptr = alloc_zero(blob.bytes);
	f.windows = alloc_array(1, sizeof(*f.windows));
	if (!target.ptr || !f.windows)
		rc = -ENOMEM;
	if (rc == 0 && blob.bytes > 0) {
		piece.src = blob.image_offset;
		piece.run = blob.bytes;
		f.windows[0] = (struct window){.rank = rank, .lo = UINT64_MAX};
		rc = push_piece(&f, &piece, 0);
	}
	if (rc < 0) {
		err_code(e, rc, "read a blob of %" PRIu64 " byte%s", blob.bytes,
			 plural(blob.bytes));
	} else if (blob.bytes > 0) {
		narrow(&f);
		rc = execute(&f, &target, NULL, e);
	}
	fetch_fini(&f);
	if (rc < 0) {
		alloc_free(target.ptr);
		return rc;
	}
	*ret = target.ptr;
	*ret_bytes = blob.bytes;
	return 0;
}
