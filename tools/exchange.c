/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange.c - the table of formats, and the bytes of tensors on their way into a file. One thread.
 */
#include <config.h>

#include "tools/exchange.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/floats.h"
#include "tools/document.h"
#include "tools/source_memory.h"
#include "tools/torch_source.h"

const struct exchange_format exchange_formats[] = {
	{"safetensors", safetensors_detect, safetensors_open, safetensors_write},
	{"dcp", dcp_detect, dcp_open, dcp_write},
	{"torch", torch_save_detect, torch_save_open, NULL},
	{0},
};

bool exchange_detect(const struct exchange_format *f, const char *path)
{
	struct beneath_rights rights;
	bool yes;

	if (!f->detect || beneath_whose(path, &rights) < 0)
		return false;
	beneath_lend(&rights);
	yes = f->detect(path);
	beneath_own_rights(&rights);
	return yes;
}

static int open_as(const struct exchange_format *f, const char *path, struct source **ret,
		   struct err *e)
{
	struct beneath_rights rights;
	int r = beneath_whose(path, &rights);

	if (r < 0)
		return err_code(e, r, "open '%.250s'", path);
	beneath_lend(&rights);
	r = f->open(path, ret, e);
	beneath_own_rights(&rights);
	if (r == 0)
		(*ret)->rights = rights;
	else if (rights.lent && (r == -EACCES || r == -EPERM))
		err_wrap(e, r, "it is read with the rights of user %u, who can exchange it",
			 (unsigned)rights.uid);
	return source_foreign_error(r);
}

int exchange_open(const struct exchange_format *f, const char *path, struct source **ret,
		  struct err *e)
{
	struct source_memory own;
	char what[120];
	int r;

	if (alloc_budget())
		return open_as(f, path, ret, e);
	source_memory_begin(&own);
	snprintf(what, sizeof(what), "'%.100s'", path);
	r = open_as(f, path, ret, e);
	return source_memory_end(&own, what, r, e);
}

uint32_t export_dtype(const struct exporting *x, size_t i)
{
	uint32_t dtype = x->from->tensors[i].dtype;

	return x->cast && float_can_cast(dtype, x->cast) ? x->cast : dtype;
}

uint64_t export_bytes(const struct exporting *x, size_t i)
{
	const struct reading_tensor *t = &x->from->tensors[i];

	/* 2 bytes may become 8: but then all of it is at most 2^62 bytes that somebody stored. */
	return t->bytes / dtype_bytes(t->dtype) * dtype_bytes(export_dtype(x, i));
}

void export_tell(struct exporting *x, const char *path, uint64_t bytes, size_t n_tensors)
{
	json_array_append_new(
		x->files, json_pack("{s:o, s:I, s:I}", "path", doc_name(path, strlen(path)),
				    "bytes", (json_int_t)bytes, "tensors", (json_int_t)n_tensors));
}

/* ---- Streaming ---- */

struct stream {
	struct exporting *x;
	const size_t *tensors;
	struct slab_item *items;
	uint8_t *in, *out; /* out: where a cast puts its results */
	struct reading_want wants[SLABS_MAX];
	uint64_t done; /* bytes read */
};

static int fetch(struct stream *s, const struct slab *slabs, size_t n, struct err *e)
{
	uint8_t *to = s->in;

	for (size_t i = 0; i < n; i++) {
		size_t tensor = s->tensors[slabs[i].which];
		const struct reading_tensor *t = &s->x->from->tensors[tensor];
		struct reading_want *w = &s->wants[i];

		*w = (struct reading_want){
			.tensor = tensor, .start = slabs[i].start, .stop = slabs[i].stop, .to = to};
		w->box.ndim = t->global.ndim;
		memcpy(w->box.length, t->global.dim, sizeof(w->box.length));
		to += (slabs[i].stop - slabs[i].start) * dtype_bytes(t->dtype);
	}
	s->done += (uint64_t)(to - s->in);
	return source_pull(s->x->from, s->wants, n, e);
}

static int give(struct stream *s, const struct slab *slab, const struct reading_want *w,
		export_put_fn *put, void *arg, struct err *e)
{
	struct cast c = {.from = s->x->from->tensors[w->tensor].dtype,
			 .to = export_dtype(s->x, w->tensor)};
	uint64_t n = slab->stop - slab->start;
	struct export_piece p = {.at = slab->which,
				 .offset = slab->start * dtype_bytes(c.to),
				 .bytes = w->to,
				 .len = n * dtype_bytes(c.to)};

	if (c.from != c.to) {
		s->x->overflows += floats_cast(c, w->to, n, s->out);
		p.bytes = s->out;
	}
	s->x->bytes += p.len;
	return put(arg, &p, e);
}

/* A cast takes one slab at a time, and its result is at most four times as large. */
static void fill_items(struct stream *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct reading_tensor *t = &s->x->from->tensors[s->tensors[i]];
		uint32_t from = dtype_bytes(t->dtype), to = from;

		if (export_dtype(s->x, s->tensors[i]) != t->dtype)
			to = from + dtype_bytes(s->x->cast);
		s->items[i] = (struct slab_item){.elements = t->bytes / from, .cost = to};
	}
}

static int stream(struct stream *s, size_t n, export_put_fn *put, void *arg, struct err *e)
{
	struct slabs slabs = {.items = s->items, .n = n, .memory = s->x->memory};
	struct slab turn[SLABS_MAX];
	size_t n_turn;
	int r = 0;

	fill_items(s, n);
	while (r == 0 && (n_turn = slabs_next(&slabs, turn)) > 0) {
		r = fetch(s, turn, n_turn, e);
		for (size_t i = 0; r == 0 && i < n_turn; i++) {
			assert(s->wants[i].stop > s->wants[i].start);
			r = give(s, &turn[i], &s->wants[i], put, arg, e);
		}
		progress_draw(&s->x->progress, s->done, 0);
	}
	return r;
}

int export_stream(struct exporting *x, const size_t *tensors, size_t n, export_put_fn *put,
		  void *arg, struct err *e)
{
	struct stream *s = alloc_zero(sizeof(*s));
	uint64_t element = 16; /* the largest, if memory is less than one */
	int r = -ENOMEM;

	if (s) {
		s->x = x;
		s->tensors = tensors;
		s->items = alloc_array(n, sizeof(*s->items));
		s->in = alloc_zero(max_u64(x->memory, element));
		s->out = x->cast ? alloc_zero(max_u64(x->memory, element)) : NULL;
	}
	if (s && s->items && s->in && (s->out || !x->cast))
		r = stream(s, n, put, arg, e);
	else
		err_set(e, r, "there is no memory for buffers: give less with --memory");
	if (s) {
		alloc_free(s->items);
		alloc_free(s->in);
		alloc_free(s->out);
	}
	alloc_free(s);
	return r;
}
