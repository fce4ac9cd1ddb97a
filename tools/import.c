/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import.c - `ckptctl import`: the tensors of files of another format as the only checkpoint of a
 * new job, on one rank or in any layout. One thread, beside those of what writes.
 *
 * 1. Everything that can be checked is checked before the first byte is written: opening the source
 *    checks its files, making declarations checks names, shapes and layout (I12).
 * 2. Each rank's image is written in its order, in slabs that fit in memory, one rank after the
 *    other.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/cover.h"
#include "tools/document.h"
#include "tools/exchange.h"
#include "tools/layout_file.h"
#include "tools/making.h"
#include "tools/plural.h"
#include "tools/print.h"
#include "tools/source_memory.h"

#define MEMORY_DEFAULT ((uint64_t)256 << 20)

struct importing {
	const struct ctl *c;
	const struct exchange_format *format;
	struct source *from;
	size_t *chosen; /* tensors of from */
	size_t n;
	struct layout *layout; /* NULL: one rank holds everything */
	struct making_rank *ranks;
	uint32_t world;
	struct making_blob *blobs; /* of rank 0 */
	uint64_t step;
	struct source_memory memory;
	uint64_t slab_memory;
	uint64_t bytes; /* of tensors, each once */
	struct progress progress;
	uint64_t done;
};

/* ---- What is asked for ---- */

static int find_format(const struct ctl *c, const struct exchange_format **ret, struct err *e)
{
	char known[200] = "";

	if (access(c->args[0], F_OK) != 0)
		return err_set(e, -errno,
			       "open '%.250s': %s: name a safetensors file, a PyTorch DCP folder "
			       "or a file of torch.save() that can be read",
			       c->args[0], err_text(-errno));
	for (const struct exchange_format *f = exchange_formats; f->name; f++) {
		if (!f->open)
			continue;
		if (c->format ? strcmp(f->name, c->format) == 0
			      : exchange_detect(f, c->args[0])) {
			*ret = f;
			return 0;
		}
		snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s",
			 known[0] ? ", " : "", f->name);
	}
	if (c->format)
		return err_set(e, -EINVAL, "'%.60s' is no format that can be imported: there is %s",
			       c->format, known);
	return err_set(e, -EINVAL,
		       "'%.200s' is of no format that is known (%s): with --format NAME the answer "
		       "is what it lacks to be that",
		       c->args[0], known);
}

static int parse_step(const char *text, uint64_t *ret, struct err *e)
{
	const char *rest = "";

	if (!text) {
		*ret = 0;
		return 0;
	}
	if (spec_parse(text, ret, &rest, NULL) < 0 || text[strspn(text, "0123456789")])
		return err_set(e, -EINVAL, "--step needs a number, not '%.60s'", text);
	return 0;
}

/* ---- Declarations ---- */

/* What rank holds of the chosen tensor i. */
static int add_tensor(struct importing *m, struct declaration_builder *b, uint32_t rank, size_t i,
		      struct err *e)
{
	const struct reading_tensor *t = &m->from->tensors[m->chosen[i]];
	struct layout_tensor of = {t->name, t->name_len, t->dtype, t->global};
	struct shard shards[LAYOUT_SHARDS_MAX];
	uint32_t n = 1;
	int r = 0;

	shards[0] = (struct shard){
		.name = t->name, .name_len = t->name_len, .dtype = t->dtype, .global = t->global};
	shards[0].box.ndim = t->global.ndim;
	memcpy(shards[0].box.length, t->global.dim, sizeof(shards[0].box.length));
	if (m->layout)
		r = layout_shards(m->layout, &of, rank, shards, &n, e);
	for (uint32_t k = 0; r >= 0 && k < n; k++) {
		r = shard_check(&shards[k], e);
		if (r == 0)
			r = declaration_add(b, &shards[k], e);
	}
	return r < 0 ? r : 0;
}

static int declare_rank(struct importing *m, uint32_t rank, struct err *e)
{
	struct declaration_builder *b = NULL;
	void *bytes = NULL;
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);

	if (r < 0)
		return err_code(e, r, "declare rank %u", rank);
	for (size_t i = 0; r == 0 && i < m->n; i++)
		r = add_tensor(m, b, rank, i, e);
	if (r == 0)
		r = declaration_finish(b, &bytes, &m->ranks[rank].declaration_len, e);
	m->ranks[rank].declaration = bytes;
	declaration_builder_free(b);
	return r;
}

static struct layout_tensor layout_tensor_of(const struct reading_tensor *t)
{
	return (struct layout_tensor){t->name, t->name_len, t->dtype, t->global};
}

/* A layout of the user's own may leave a tensor, or part of one, to nobody. */
static int check_cover(const struct importing *m, struct err *e)
{
	CLEANUP_FREE struct declaration *ranks = alloc_array(m->world, sizeof(*ranks));
	int r = ranks ? 0 : err_code(e, -ENOMEM, "declare %u rank%s", m->world, plural(m->world));

	if (!m->layout)
		return r;
	for (uint32_t i = 0; i < m->world && r == 0; i++)
		r = declaration_open(m->ranks[i].declaration, m->ranks[i].declaration_len,
				     &ranks[i], e);
	for (size_t i = 0; i < m->n && r == 0; i++) {
		const struct layout_tensor t = layout_tensor_of(&m->from->tensors[m->chosen[i]]);

		r = cover_check(m->c->to, &t, ranks, m->world, e);
	}
	return r;
}

static void get_tensor(const void *importing, size_t i, struct layout_tensor *ret)
{
	const struct importing *m = importing;

	*ret = layout_tensor_of(&m->from->tensors[m->chosen[i]]);
}

static int get_layout(struct importing *m, struct err *e)
{
	const struct layout_tensors all = {get_tensor, m, m->n};
	int r;

	m->world = 1;
	if (!m->c->to)
		return 0;
	r = layout_get(m->c->to, &m->layout, e);
	if (r < 0)
		return r;
	m->world = layout_world(m->layout);
	/* What each rank of it holds is said once for each: the user asked for them. */
	source_memory_buffers(&m->memory, UINT64_MAX / 2);
	r = layout_begin(m->layout, &all, e);
	return r < 0 ? err_wrap(e, r, "layout '%.100s'", m->c->to) : 0;
}

static int take_blobs(struct importing *m, struct err *e)
{
	m->blobs = alloc_array(m->from->n_blobs, sizeof(*m->blobs));
	if (!m->blobs)
		return err_code(e, -ENOMEM, "keep the blobs");
	for (size_t i = 0; i < m->from->n_blobs; i++)
		m->blobs[i] = (struct making_blob){.name = m->from->blobs[i].name,
						   .bytes = m->from->blobs[i].bytes,
						   .len = m->from->blobs[i].len};
	m->ranks[0].blobs = m->blobs;
	m->ranks[0].n_blobs = (uint32_t)m->from->n_blobs;
	return 0;
}

static int declare(struct importing *m, struct err *e)
{
	int r = get_layout(m, e);

	if (r < 0)
		return r;
	m->ranks = alloc_array(m->world, sizeof(*m->ranks));
	if (!m->ranks)
		return err_code(e, -ENOMEM, "declare %u rank%s", m->world, plural(m->world));
	for (uint32_t i = 0; r == 0 && i < m->world; i++)
		r = declare_rank(m, i, e);
	if (r == 0)
		r = check_cover(m, e);
	return r == 0 ? take_blobs(m, e) : r;
}

/* ---- Bytes ---- */

/* Of a million of them little is kept: what else there is to say the declaration says. */
struct piece {
	uint32_t tensor; /* of the source */
	uint32_t shard;  /* of the declaration */
};

/* One rank's image on its way. */
struct passing {
	struct importing *m;
	struct making *making;
	uint32_t rank;
	struct declaration declaration;
	struct piece *pieces; /* in the order of the image, which is that of declaring */
	struct slab_item *items;
	uint8_t *buffer;
	struct reading_want wants[SLABS_MAX];
};

struct by_name {
	const struct reading_tensor *t;
	size_t index;
};

static int compare_names(const void *a, const void *b)
{
	const struct by_name *x = a, *y = b;

	return name_compare(x->t->name, x->t->name_len, y->t->name, y->t->name_len);
}

/* Shards come by name, and so do the tensors: walked side by side. */
static int fill_pieces(struct passing *p)
{
	const struct declaration *d = &p->declaration;
	struct importing *m = p->m;
	CLEANUP_FREE struct by_name *names = alloc_array(m->n, sizeof(*names));
	size_t k = 0;

	if (!names)
		return -ENOMEM;
	for (size_t i = 0; i < m->n; i++)
		names[i] = (struct by_name){&m->from->tensors[m->chosen[i]], m->chosen[i]};
	if (m->n)
		qsort(names, m->n, sizeof(*names), compare_names);
	for (uint32_t i = 0; i < d->n_shards; i++) {
		uint32_t at = declaration_order(d, i);
		struct shard s;

		declaration_get(d, i, &s);
		while (name_compare(names[k].t->name, names[k].t->name_len, s.name, s.name_len) !=
		       0) {
			k++;
			assert(k < m->n); /* it was declared for one of them */
		}
		p->pieces[at] = (struct piece){(uint32_t)names[k].index, i};
		p->items[at] = (struct slab_item){.elements = s.stop - s.start,
						  .cost = dtype_bytes(s.dtype)};
	}
	return 0;
}

/* Of a slab: its piece's shard, whose bytes lie at *ret_offset of the image. */
static void slab_shard(const struct passing *p, const struct slab *slab, struct shard *ret,
		       uint64_t *ret_offset)
{
	declaration_get(&p->declaration, p->pieces[slab->which].shard, ret);
	*ret_offset = ret->image_offset + slab->start * dtype_bytes(ret->dtype);
}

static int pass_turn(struct passing *p, const struct slab *slabs, size_t n, struct err *e)
{
	struct source *from = p->m->from;
	uint8_t *to = p->buffer;
	struct shard s;
	uint64_t at;
	int r;

	for (size_t i = 0; i < n; i++) {
		slab_shard(p, &slabs[i], &s, &at);
		p->wants[i] = (struct reading_want){.tensor = p->pieces[slabs[i].which].tensor,
						    .box = s.box,
						    .start = s.start + slabs[i].start,
						    .stop = s.start + slabs[i].stop,
						    .to = to};
		to += (slabs[i].stop - slabs[i].start) * dtype_bytes(s.dtype);
	}
	r = source_pull(from, p->wants, n, e);
	for (size_t i = 0; r == 0 && i < n; i++) {
		slab_shard(p, &slabs[i], &s, &at);
		r = making_put(p->making, p->rank, at, p->wants[i].to,
			       (slabs[i].stop - slabs[i].start) * dtype_bytes(s.dtype), e);
	}
	p->m->done += (uint64_t)(to - p->buffer);
	progress_draw(&p->m->progress, p->m->done, 0);
	return r;
}

static int pass_rank(struct passing *p, struct err *e)
{
	const struct making_rank *rank = &p->m->ranks[p->rank];
	struct slab turn[SLABS_MAX];
	struct slabs slabs;
	uint32_t shards;
	size_t n;
	int r = declaration_open(rank->declaration, rank->declaration_len, &p->declaration, e);

	if (r < 0)
		return r;
	shards = p->declaration.n_shards;
	p->pieces = alloc_array(shards, sizeof(*p->pieces));
	p->items = alloc_array(shards, sizeof(*p->items));
	if (!p->pieces || !p->items || fill_pieces(p) < 0)
		r = err_code(e, -ENOMEM, "list the shards of rank %u", p->rank);
	slabs = (struct slabs){.items = p->items, .n = shards, .memory = p->m->slab_memory};
	while (r == 0 && (n = slabs_next(&slabs, turn)) > 0)
		r = pass_turn(p, turn, n, e);
	if (r == 0)
		r = making_finish(p->making, p->rank, e);
	alloc_free(p->pieces);
	alloc_free(p->items);
	return r;
}

static int pass_all(struct importing *m, struct making *making, struct err *e)
{
	struct passing *p = alloc_zero(sizeof(*p));
	int r = 0;

	if (p)
		p->buffer = alloc_zero(max_u64(m->slab_memory, 16)); /* an element at least */
	if (!p || !p->buffer)
		r = err_set(e, -ENOMEM, "there is no memory for buffers: give less with --memory");
	for (uint32_t i = 0; r == 0 && i < m->world; i++) {
		p->m = m;
		p->making = making;
		p->rank = i;
		r = pass_rank(p, e);
	}
	if (p)
		alloc_free(p->buffer);
	alloc_free(p);
	return r;
}

static int make(struct importing *m, struct err *e)
{
	const struct ctl *c = m->c;
	uint64_t memory = c->memory ? c->memory : MEMORY_DEFAULT, least = making_memory_least(0);
	struct making_options o = {.data = c->data,
				   .socket = c->socket,
				   .job = c->as,
				   .uid = geteuid(),
				   .step = m->step,
				   .memory = max_u64(memory / 2, least),
				   .dry_run = c->dry_run};
	struct making *making = NULL;
	int r;

	/* Tables of chunks go with the bytes of tensors. */
	source_memory_buffers(&m->memory, memory + making_rank_bytes(m->bytes));
	r = making_open(&o, m->ranks, m->world, &making, e);
	if (r < 0)
		return r;
	if (c->dry_run) {
		making_close(making);
		return 0;
	}
	m->slab_memory = memory > o.memory ? memory - o.memory : 1;
	progress_start(&m->progress, m->bytes, c->talk >= 0 && !c->json);
	r = pass_all(m, making, e);
	if (r == 0)
		r = making_commit(making, e);
	progress_clear(&m->progress);
	making_close(making);
	return r;
}

/* ---- The verb ---- */

static void answer(const struct importing *m)
{
	const struct ctl *c = m->c;
	char size[TEXT_MAX], ranks[48] = "";

	if (c->json) {
		print_json(json_pack("{s:i, s:s, s:s, s:s, s:o, s:s, s:I, s:b, s:I, s:I, s:I, s:I}",
				     "schema", 2, "source", "files", "verb", "import", "format",
				     m->format->name, "path",
				     doc_name(c->args[0], strlen(c->args[0])), "job", c->as, "step",
				     (json_int_t)m->step, "dry_run", (int)c->dry_run, "tensors",
				     (json_int_t)m->n, "bytes", (json_int_t)m->bytes, "blobs",
				     (json_int_t)m->from->n_blobs, "world", (json_int_t)m->world));
		return;
	}
	if (m->world > 1)
		snprintf(ranks, sizeof(ranks), ", on %u rank%s", m->world, plural(m->world));
	if (c->talk >= 0)
		say("%s %zu tensor%s of %s, %s, as job '%s', step %" PRIu64 "%s",
		    c->dry_run ? "would import" : "imported", m->n, plural(m->n), m->from->what,
		    text_bytes(size, m->bytes), c->as, m->step, ranks);
}

static int run(struct importing *m, struct err *e)
{
	int r = source_choose(m->from, &m->c->tensors, &m->chosen, &m->n, e);

	for (size_t i = 0; r == 0 && i < m->n; i++)
		m->bytes += m->from->tensors[m->chosen[i]].bytes;
	if (r == 0)
		r = declare(m, e);
	if (r == 0)
		r = make(m, e);
	if (r == 0)
		answer(m);
	return r;
}

static void importing_fini(struct importing *m)
{
	for (uint32_t i = 0; m->ranks && i < m->world; i++)
		alloc_free((void *)(uintptr_t)m->ranks[i].declaration);
	alloc_free(m->ranks);
	layout_free(m->layout);
	alloc_free(m->blobs);
	alloc_free(m->chosen);
	source_close(m->from);
}

static int import_within(struct importing *m, struct err *e)
{
	char what[120];
	int r;

	source_memory_begin(&m->memory);
	r = exchange_open(m->format, m->c->args[0], &m->from, e);
	if (r == 0)
		r = run(m, e);
	snprintf(what, sizeof(what), "'%.100s'", m->c->args[0]);
	r = source_memory_end(&m->memory, what, r, e);
	importing_fini(m);
	return r;
}

int verb_import(const struct ctl *c, struct err *e)
{
	struct importing m = {.c = c};
	int r;

	if (!c->as || !name_is_safe(c->as))
		return err_set(e, -EINVAL,
			       "--as JOB names the new job: 1 to 64 of A-Z a-z 0-9 . _ -, "
			       "no dot first");
	r = parse_step(c->step, &m.step, e);
	if (r == 0)
		r = find_format(c, &m.format, e);
	return r == 0 ? import_within(&m, e) : r;
}
