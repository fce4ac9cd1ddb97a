/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors.c - a checkpoint's tensors by name, collected from every rank's table: eight bytes a
 * piece beside the ranks' declarations. One thread; one shard file is open at a time.
 */
#include <config.h>

#include "tools/tensors.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "storage/shard_reader.h"
#include "tools/document.h"

struct rank_part {
	struct declaration declaration; /* its bytes are owned */
	uint32_t rank;
};

struct piece {
	uint32_t part, shard; /* which of parts, and of its shards in sorted order */
};

struct tensors {
	struct rank_part *parts; /* by rank */
	size_t n_parts;
	struct piece *pieces; /* by name, rank, place */
	size_t n, cap;
};

static bool is_wanted(const char *glob, const char *name)
{
	return !glob || fnmatch(glob, name, 0) == 0;
}

static int keep_piece(struct tensors *t, uint32_t shard)
{
	size_t cap = t->cap ? 2 * t->cap : 64;
	struct piece *more;

	if (t->n == t->cap) {
		more = alloc_resize(t->pieces, cap * sizeof(*more));
		if (!more)
			return -ENOMEM;
		t->pieces = more;
		t->cap = cap;
	}
	t->pieces[t->n++] = (struct piece){(uint32_t)t->n_parts, shard};
	return 0;
}

/* ---- One rank ---- */

static json_t *blobs_json(const struct rank_table *t, const char *glob)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < t->n_blobs; i++) {
		char name[CKPT_NAME_MAX + 1];
		struct blob_entry b;

		if (rank_table_blob(t, i, &b) < 0 || b.name_len >= sizeof(name))
			continue; /* the table was checked when it was opened */
		memcpy(name, b.name, b.name_len);
		name[b.name_len] = '\0';
		if (is_wanted(glob, name))
			json_array_append_new(list, json_pack("{s:o, s:o}", "name",
							      doc_name(b.name, b.name_len), "bytes",
							      doc_count(b.bytes)));
	}
	return list;
}

static json_t *rank_json(const struct shard_reader *r, const struct checkpoint_id *id,
			 const struct shard_footer *f, const char *glob)
{
	const struct declaration *d = &r->table.declaration;
	struct digest digest = declaration_digest(d->bytes, d->len);
	char path[DISK_PATH_MAX + 1];

	path_shard(path, id, f->rank);
	return json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "rank", (int)f->rank, "path",
			 path, "image_bytes", doc_count(r->table.image_len), "stored",
			 doc_count(f->stored), "chunks", doc_count(r->n_chunks), "leaves",
			 doc_count(r->table.n_leaves), "declaration", doc_hex(digest.b, 16),
			 "blobs", blobs_json(&r->table, glob));
}

/* The shards that can match, sorted indices: all, or those of one name where glob is just that. */
static uint32_t find_shards(const struct declaration *d, const char *glob, uint32_t *ret_first)
{
	*ret_first = 0;
	if (!glob || strpbrk(glob, "*?[\\"))
		return d->n_shards;
	return declaration_find(d, glob, (uint32_t)strlen(glob), ret_first);
}

/* Those of the shards that are asked for. The names lie in the declaration: it stays. */
static int keep_rank(struct tensors *t, const struct rank_table *table, uint32_t rank,
		     const char *glob)
{
	const struct declaration *d = &table->declaration;
	struct rank_part *part = &t->parts[t->n_parts];
	size_t before = t->n;
	uint32_t first, n = find_shards(d, glob, &first);
	uint8_t *bytes;
	int r = 0;

	for (uint32_t i = first; r == 0 && i < first + n; i++) {
		char name[CKPT_NAME_MAX + 1];
		uint32_t len;
		const char *own = declaration_name(d, i, &len);

		memcpy(name, own, len);
		name[len] = '\0';
		if (is_wanted(glob, name))
			r = keep_piece(t, i);
	}
	if (r < 0 || t->n == before)
		return r;
	bytes = alloc_copy(d->bytes, d->len);
	if (!bytes)
		return -ENOMEM;
	*part = (struct rank_part){*d, rank};
	part->declaration.bytes = bytes;
	t->n_parts++;
	return 0;
}

static int read_rank(struct data *d, const struct checkpoint_id *id, const struct shard_footer *f,
		     const char *glob, struct tensors *t, json_t *ranks, struct err *e)
{
	struct shard_reader reader;
	int r = shard_open(&d->store, id, f, &reader, e);

	if (r < 0)
		return r;
	r = keep_rank(t, &reader.table, f->rank, glob);
	if (r < 0)
		err_code(e, r, "keep the tensors of rank %u", f->rank);
	else
		json_array_append_new(ranks, rank_json(&reader, id, f, glob));
	shard_close(&reader);
	return r;
}

/* ---- All ranks ---- */

static int compare_names(const struct tensors *t, struct piece a, struct piece b)
{
	uint32_t a_len, b_len;
	const char *x = declaration_name(&t->parts[a.part].declaration, a.shard, &a_len);
	const char *y = declaration_name(&t->parts[b.part].declaration, b.shard, &b_len);

	return name_compare(x, a_len, y, b_len);
}

/* [from, middle) and [middle, to) are sorted, and lower ranks come first in either. */
static void merge(const struct tensors *t, struct piece *to, size_t from, size_t middle, size_t end)
{
	size_t i = from, k = middle;

	for (size_t at = from; at < end; at++)
		if (k == end || (i < middle &&
				 compare_names(t, t->pieces[i], t->pieces[k]) <= 0))
			to[at] = t->pieces[i++];
		else
			to[at] = t->pieces[k++];
}

/* Each rank's pieces are sorted as its declaration is: runs, which are merged two by two. */
static int sort_pieces(struct tensors *t)
{
	CLEANUP_FREE struct piece *spare = NULL;
	CLEANUP_FREE size_t *runs = alloc_array(t->n_parts + 1, sizeof(*runs));
	size_t n = 0;

	if (!runs)
		return -ENOMEM;
	for (size_t i = 0; i < t->n; i++)
		if (i == 0 || t->pieces[i].part != t->pieces[i - 1].part)
			runs[n++] = i;
	runs[n] = t->n;
	if (n > 1)
		spare = alloc_array(t->n, sizeof(*spare));
	if (n > 1 && !spare)
		return -ENOMEM;
	while (n > 1) {
		struct piece *merged = spare;
		size_t kept = 0;

		for (size_t i = 0; i < n; i += 2) {
			size_t middle = runs[i + 1], end = i + 1 < n ? runs[i + 2] : middle;

			merge(t, merged, runs[i], middle, end);
			runs[kept++] = runs[i];
		}
		runs[kept] = t->n;
		n = kept;
		spare = t->pieces;
		t->pieces = merged;
	}
	return 0;
}

bool tensors_next(const struct tensors *t, size_t *at, struct tensor *ret)
{
	uint64_t elements = 0;
	size_t end = *at;

	if (end >= t->n)
		return false;
	*ret = (struct tensor){.first = end};
	for (; end < t->n && (end == *at || compare_names(t, t->pieces[*at], t->pieces[end]) == 0);
	     end++) {
		struct shard s;
		uint32_t rank;

		tensors_piece(t, ret, ret->n++, &s, &rank);
		ret->held += s.bytes;
		if (end == *at)
			ret->piece = s;
	}
	if (!shape_elements(&ret->piece.global, &elements))
		elements = 0; /* declarations are checked: cannot be */
	ret->bytes = elements * dtype_bytes(ret->piece.dtype);
	*at = end;
	return true;
}

void tensors_piece(const struct tensors *t, const struct tensor *of, size_t k, struct shard *ret,
		   uint32_t *ret_rank)
{
	const struct piece *p = &t->pieces[of->first + k];

	declaration_get(&t->parts[p->part].declaration, p->shard, ret);
	*ret_rank = t->parts[p->part].rank;
}

/* ---- Declared order ---- */

static int compare_declared(const void *a, const void *b, void *arg)
{
	const struct tensors *t = arg;
	const struct piece *x = &t->pieces[*(const uint32_t *)a];
	const struct piece *y = &t->pieces[*(const uint32_t *)b];
	uint32_t i, k;

	if (x->part != y->part)
		return x->part < y->part ? -1 : 1;
	i = declaration_order(&t->parts[x->part].declaration, x->shard);
	k = declaration_order(&t->parts[y->part].declaration, y->shard);
	return (i > k) - (i < k);
}

static int check_agreed(const struct tensors *t, const struct tensor *of, struct err *e)
{
	char name[NAME_TEXT_MAX], a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];
	struct shard first, s;
	uint32_t rank, other;

	tensors_piece(t, of, 0, &first, &rank);
	for (size_t k = 1; k < of->n; k++) {
		tensors_piece(t, of, k, &s, &other);
		if (s.dtype == first.dtype && s.global.ndim == first.global.ndim &&
		    !memcmp(s.global.dim, first.global.dim,
			    s.global.ndim * sizeof(s.global.dim[0])))
			continue;
		return err_set(e, CKPT_EMISMATCH,
			       "rank %u stores tensor '%s' as %s %s and rank %u as %s %s", rank,
			       name_text(name, s.name, s.name_len), dtype_name(first.dtype),
			       shape_text(a, &first.global), other, dtype_name(s.dtype),
			       shape_text(b, &s.global));
	}
	return 0;
}

int tensors_declared(const struct tensors *t, uint32_t **ret, size_t *ret_n, struct err *e)
{
	struct tensor of;
	uint32_t *order;
	size_t n = 0;
	int r = 0;

	for (size_t at = 0; tensors_next(t, &at, &of);)
		n++;
	order = alloc_array(n, sizeof(*order));
	if (!order || t->n > UINT32_MAX) {
		alloc_free(order);
		return err_code(e, -ENOMEM, "order %zu tensors", n);
	}
	n = 0;
	for (size_t at = 0; r == 0 && tensors_next(t, &at, &of);) {
		order[n++] = (uint32_t)of.first;
		r = check_agreed(t, &of, e);
	}
	if (r < 0) {
		alloc_free(order);
		return r;
	}
	qsort_r(order, n, sizeof(*order), compare_declared, (void *)(uintptr_t)t);
	*ret = order;
	*ret_n = n;
	return 0;
}

size_t tensors_pieces(const struct tensors *t)
{
	return t->n;
}

void tensors_free(struct tensors *t)
{
	for (size_t i = 0; t && i < t->n_parts; i++)
		alloc_free((void *)(uintptr_t)t->parts[i].declaration.bytes);
	if (t) {
		alloc_free(t->parts);
		alloc_free(t->pieces);
	}
	alloc_free(t);
}

static int read_ranks(struct data *d, const struct commit_file *c, const char *glob,
		      struct tensors *t, json_t *ranks, json_t *problems, struct err *e)
{
	int r = 0;

	t->parts = alloc_array(c->world, sizeof(*t->parts));
	if (!t->parts)
		return err_code(e, -ENOMEM, "keep the tensors of %u ranks", c->world);
	for (uint32_t i = 0; r == 0 && i < c->world; i++) {
		struct err why = {0};

		r = read_rank(d, &c->id, &c->shards[i], glob, t, ranks, &why);
		if (err_is_shortage(r)) {
			err_set(e, r, "%s", why.text);
		} else if (r < 0) {
			json_array_append_new(problems, doc_name(why.text, strlen(why.text)));
			r = 0;
		}
	}
	if (r == 0 && sort_pieces(t) < 0)
		r = err_code(e, -ENOMEM, "sort %zu pieces of tensors", t->n);
	return r;
}

int tensors_read(struct data *d, const struct checkpoint_id *id, const char *glob,
		 struct tensors **ret, json_t **ret_files, json_t *problems, struct err *e)
{
	struct tensors *t = alloc_zero(sizeof(*t));
	struct commit_file c = {0};
	char path[DISK_PATH_MAX + 1];
	json_t *ranks = json_array();
	uint64_t stored = 0;
	int r = t ? commit_read(&d->store, id, &c, e) : err_code(e, -ENOMEM, "read the tensors");

	if (r == 0)
		r = read_ranks(d, &c, glob, t, ranks, problems, e);
	for (uint32_t i = 0; r == 0 && i < c.world; i++)
		stored += c.shards[i].stored;
	path_checkpoint(path, id);
	if (r == 0)
		*ret_files = json_pack("{s:o, s:s, s:o, s:O}", "data",
				       doc_name(d->path, strlen(d->path)), "path", path, "stored",
				       doc_count(stored), "ranks", ranks);
	json_decref(ranks);
	commit_file_fini(&c);
	if (r < 0)
		tensors_free(t);
	else
		*ret = t;
	return r;
}
