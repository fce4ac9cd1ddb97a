/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensors.c - a checkpoint's tensors by name, collected from every rank's table. One thread; one
 * shard file is open at a time.
 */
#include <config.h>

#include "tools/tensors.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "storage/shard_reader.h"
#include "tools/document.h"

/* One shard of one rank. */
struct piece {
	struct shard shard; /* name is owned */
	uint32_t rank;
};

struct pieces {
	struct piece *at;
	size_t n, cap;
};

static void pieces_free(struct pieces *p)
{
	for (size_t i = 0; i < p->n; i++)
		alloc_free((void *)(uintptr_t)p->at[i].shard.name);
	alloc_free(p->at);
}

static bool is_wanted(const char *glob, const char *name)
{
	return !glob || fnmatch(glob, name, 0) == 0;
}

static int keep_piece(struct pieces *p, const struct shard *s, uint32_t rank, const char *glob)
{
	CLEANUP_FREE char *name = alloc_zero(s->name_len + 1u);
	size_t cap = p->cap ? 2 * p->cap : 64;
	struct piece *more;

	if (!name)
		return -ENOMEM;
	memcpy(name, s->name, s->name_len);
	if (!is_wanted(glob, name))
		return 0;
	if (p->n == p->cap) {
		more = alloc_resize(p->at, cap * sizeof(*more));
		if (!more)
			return -ENOMEM;
		p->at = more;
		p->cap = cap;
	}
	p->at[p->n] = (struct piece){ .shard = *s, .rank = rank };
	p->at[p->n++].shard.name = name;
	name = NULL; /* kept */
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

static int read_rank(struct data *d, const struct checkpoint_id *id, const struct shard_footer *f,
		     const char *glob, struct pieces *pieces, json_t *ranks, struct err *e)
{
	struct shard_reader reader;
	uint32_t first, n;
	struct shard s;
	int r = shard_open(&d->store, id, f, &reader, e);

	if (r < 0)
		return r;
	n = find_shards(&reader.table.declaration, glob, &first);
	for (uint32_t i = first; r == 0 && i < first + n; i++) {
		declaration_get(&reader.table.declaration, i, &s);
		r = keep_piece(pieces, &s, f->rank, glob);
	}
	if (r < 0)
		err_code(e, r, "keep the tensors of rank %u", f->rank);
	else
		json_array_append_new(ranks, rank_json(&reader, id, f, glob));
	shard_close(&reader);
	return r;
}

/* ---- All ranks ---- */

static int by_name(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	int c = name_compare(x->shard.name, x->shard.name_len, y->shard.name, y->shard.name_len);

	if (c == 0)
		c = x->rank < y->rank ? -1 : x->rank > y->rank;
	return c ? c : x->shard.image_offset < y->shard.image_offset
			       ? -1 : x->shard.image_offset > y->shard.image_offset;
}

json_t *tensor_numbers(const uint64_t *v, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list, doc_count(v[i]));
	return list;
}

json_t *tensor_piece(const struct shard *s, uint32_t rank)
{
	json_t *o = json_pack("{s:i, s:o, s:o, s:o}", "rank", (int)rank, "offset",
			      tensor_numbers(s->box.offset, s->box.ndim), "shape",
			      tensor_numbers(s->box.length, s->box.ndim), "bytes",
			      doc_count(s->bytes));

	if (s->flat) {
		json_object_set_new(o, "start", doc_count(s->start));
		json_object_set_new(o, "stop", doc_count(s->stop));
	}
	return o;
}

/* The pieces [from, to) are of one name. */
static json_t *tensor_json(const struct piece *from, const struct piece *to)
{
	const struct shard *s = &from->shard;
	const char *dtype = dtype_name(s->dtype);
	json_t *list = json_array();
	uint64_t elements = 0, stored = 0;

	if (!shape_elements(&s->global, &elements))
		elements = 0; /* declarations are checked: cannot be */
	for (const struct piece *p = from; p < to; p++) {
		stored += p->shard.bytes;
		json_array_append_new(list, tensor_piece(&p->shard, p->rank));
	}
	return json_pack("{s:o, s:s, s:o, s:o, s:o, s:b, s:o}", "name",
			 doc_name(s->name, s->name_len), "dtype", dtype ? dtype : "?", "shape",
			 tensor_numbers(s->global.dim, s->global.ndim), "bytes",
			 doc_count(elements * dtype_bytes(s->dtype)), "held", doc_count(stored),
			 "trained", (int)s->trained, "pieces", list);
}

static json_t *tensors_json(struct pieces *p)
{
	json_t *list = json_array();
	size_t from = 0, to;

	if (p->n)
		qsort(p->at, p->n, sizeof(*p->at), by_name);
	for (; from < p->n; from = to) {
		const struct shard *s = &p->at[from].shard;

		for (to = from + 1; to < p->n; to++)
			if (name_compare(s->name, s->name_len, p->at[to].shard.name,
					 p->at[to].shard.name_len) != 0)
				break;
		json_array_append_new(list, tensor_json(&p->at[from], &p->at[to]));
	}
	return list;
}

static bool is_shortage(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE;
}

int tensors_add(struct data *d, const struct checkpoint_id *id, const char *glob, json_t *o,
		json_t *problems, struct err *e)
{
	struct commit_file c = { 0 };
	struct pieces pieces = { 0 };
	char path[DISK_PATH_MAX + 1];
	json_t *ranks = json_array();
	uint64_t stored = 0;
	int r = commit_read(&d->store, id, &c, e);

	for (uint32_t i = 0; r == 0 && i < c.world; i++) {
		struct err why = { 0 };

		stored += c.shards[i].stored;
		r = read_rank(d, id, &c.shards[i], glob, &pieces, ranks, &why);
		if (is_shortage(r)) {
			err_set(e, r, "%s", why.text);
		} else if (r < 0) {
			json_array_append_new(problems, doc_name(why.text, strlen(why.text)));
			r = 0;
		}
	}
	if (r == 0) {
		path_checkpoint(path, id);
		json_object_set_new(o, "files",
				    json_pack("{s:o, s:s, s:o, s:O}", "data",
					      doc_name(d->path, strlen(d->path)), "path", path,
					      "stored", doc_count(stored), "ranks", ranks));
		json_object_set_new(o, "tensors", tensors_json(&pieces));
	}
	json_decref(ranks);
	pieces_free(&pieces);
	commit_file_fini(&c);
	return r;
}
