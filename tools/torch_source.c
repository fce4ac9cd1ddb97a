/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_source.c - what DCP folders and torch.save() files have in common as sources.
 *
 * A tensor's parts are declared like shards of a rank, one after the other in an image; a wanted
 * range is planned against that, and each piece of the plan read from its part. Parts are opened
 * when they are first wanted and closed with the tensor, or when there are too many. One thread.
 */
#include <config.h>

#include "tools/torch_source.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/text.h"
#include "model/boxtree.h"
#include "tools/torch_names.h"

#define BUFFER_BYTES (1u << 20)
#define OPEN_MAX     64 /* archives of one tensor */
/* Of the pickle of a chunk, which is one tensor: its attributes may be more than it is. */
#define CHUNK_PICKLE_MAX (1u << 20)

int torch_source_new(const char *path, struct torch_source **ret, struct err *e)
{
	struct torch_source *t = alloc_zero(sizeof(*t));
	size_t len = strlen(path);

	if (t) {
		t->folder = t->fd = -1;
		t->current = SIZE_MAX;
		t->path = alloc_str(path);
		t->what = alloc_zero(len + 3);
		t->buffer = alloc_zero(BUFFER_BYTES);
	}
	if (!t || !t->path || !t->what || !t->buffer) {
		if (t)
			torch_source_close(&t->s);
		return err_code(e, -ENOMEM, "open '%.200s'", path);
	}
	snprintf(t->what, len + 3, "'%s'", path);
	t->s.what = t->what;
	*ret = t;
	return 0;
}

int torch_source_add_blob(struct torch_source *t, const char *name, size_t name_len,
			  const void *bytes, size_t len, struct err *e)
{
	size_t cap = t->cap_blobs ? 2 * t->cap_blobs : 16;
	char text[NAME_TEXT_MAX], most[TEXT_SIZE_MAX];
	struct source_blob *grown;
	const char *own_name;
	void *own;

	if (len > TORCH_BLOBS_MAX - t->blob_bytes)
		return err_set(e, -E2BIG, "'%s': its values that are no tensors have more than %s",
			       name_text(text, name, (uint32_t)name_len),
			       text_size(most, TORCH_BLOBS_MAX));
	if (memchr(name, '\0', name_len))
		return err_set(e, CKPT_EVERSION, "the name '%s' holds a NUL",
			       name_text(text, name, (uint32_t)name_len));
	if (t->s.n_blobs == t->cap_blobs) {
		grown = alloc_resize(t->blobs, cap * sizeof(*grown));
		if (!grown)
			return err_code(e, -ENOMEM, "keep a blob");
		t->s.blobs = t->blobs = grown;
		t->cap_blobs = cap;
	}
	own_name = texts_keep(&t->names, name, name_len);
	own = own_name ? alloc_copy(bytes, len) : NULL;
	if (!own)
		return err_code(e, -ENOMEM, "keep a blob");
	t->blobs[t->s.n_blobs++] =
		(struct source_blob){.name = own_name, .bytes = own, .len = len};
	t->blob_bytes += len;
	return 0;
}

/* ---- Parts ---- */

/* Those of a tensor: how many, and the first. */
static size_t parts_of(struct torch_source *t, size_t tensor, struct torch_part **ret)
{
	struct torch_part *p = &t->whole;
	const struct reading_tensor *of = &t->tensors[tensor];

	if (t->first_part) {
		*ret = &t->parts[t->first_part[tensor]];
		return t->first_part[tensor + 1] - t->first_part[tensor];
	}
	assert(!p->open || tensor == t->current);
	p->box.ndim = of->global.ndim;
	memset(p->box.offset, 0, sizeof(p->box.offset));
	memcpy(p->box.length, of->global.dim, sizeof(p->box.length));
	*ret = p;
	return of->bytes > 0;
}

static uint64_t held_bytes(const struct torch_open *o)
{
	return o->view.held ? o->view.tensor.span * dtype_bytes(o->view.tensor.dtype) : 0;
}

static void close_part(struct torch_source *t, struct torch_part *p)
{
	struct torch_open *o = p->open;

	if (!o)
		return;
	t->held -= held_bytes(o);
	torch_view_close(&o->view);
	if (o->zip != t->zip) {
		torch_zip_close(o->zip);
		close(o->fd); /* was only read */
	}
	alloc_free(o);
	p->open = NULL;
	t->n_open--;
}

static void close_parts(struct torch_source *t)
{
	struct torch_part *parts;
	size_t n;

	if (t->current == SIZE_MAX)
		return;
	n = parts_of(t, t->current, &parts);
	for (size_t i = 0; i < n; i++)
		close_part(t, &parts[i]);
	assert(t->n_open == 0 && t->held == 0);
}

/* The one tensor that the archive of a chunk holds. */
static int tensor_in(struct torch_zip *zip, struct torch_tensor *ret, struct pickle *p,
		     void **ret_bytes, struct err *e)
{
	size_t len;
	int r = torch_zip_pickle(zip, ret_bytes, &len, e);

	*p = (struct pickle){0};
	if (r == 0 && len > CHUNK_PICKLE_MAX)
		r = err_set(e, -E2BIG,
			    "its data.pkl has %zu bytes; that of a tensor has at most %u", len,
			    CHUNK_PICKLE_MAX);
	if (r == 0)
		r = pickle_parse(*ret_bytes, len, torch_find_name, p, e);
	if (r == 0)
		r = torch_tensor_of(p, pickle_at(p, p->root), ret, e);
	if (r == 0)
		r = err_set(e, CKPT_EPROTO, "it holds a %s where .metadata says a tensor is",
			    pickle_type_text(p, pickle_at(p, p->root)));
	return r < 0 ? r : 0;
}

static int check_chunk(const struct torch_source *t, const struct torch_part *p,
		       const struct torch_tensor *found, struct err *e)
{
	const struct reading_tensor *of = &t->tensors[t->current];
	struct shape wanted = {.ndim = p->box.ndim};
	char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];

	memcpy(wanted.dim, p->box.length, sizeof(wanted.dim));
	if (found->dtype == of->dtype && found->shape.ndim == wanted.ndim &&
	    memcmp(found->shape.dim, wanted.dim, wanted.ndim * sizeof(wanted.dim[0])) == 0)
		return 0;
	return err_set(e, CKPT_EMISMATCH, "it holds a tensor of %s %s where .metadata says %s %s",
		       dtype_name(found->dtype), shape_text(a, &found->shape),
		       dtype_name(of->dtype), shape_text(b, &wanted));
}

static int open_view(struct torch_source *t, struct torch_part *p, struct err *e)
{
	uint64_t room = TORCH_HELD_MAX - t->held;
	struct torch_open *o = p->open;
	CLEANUP_FREE void *bytes = NULL;
	struct torch_tensor found;
	struct pickle pickle = {0};
	int r;

	if (t->zip) {
		r = torch_tensor_of(&t->pickle, t->values[t->current], &found, e);
		assert(r == 1); /* it was, when it was listed */
		return torch_view_open(o->zip, &found, room, &o->view, e);
	}
	r = tensor_in(o->zip, &found, &pickle, &bytes, e);
	if (r == 0)
		r = check_chunk(t, p, &found, e);
	if (r == 0)
		r = torch_view_open(o->zip, &found, room, &o->view, e);
	pickle_free(&pickle);
	o->view.tensor.key = NULL; /* was of the pickle */
	return r;
}

/* The archive of a part of a folder. */
static int open_archive(struct torch_source *t, const struct torch_part *p, struct torch_open *o,
			struct err *e)
{
	struct torch_slice slice = {.offset = p->offset, .len = p->len};
	int r;

	o->fd = openat(t->folder, t->files[p->file], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (o->fd < 0)
		return err_code(e, -errno, "open '%s'", t->files[p->file]);
	slice.fd = o->fd;
	r = torch_zip_open(&slice, &o->zip, e);
	if (r < 0)
		close(o->fd); /* was only read */
	return r;
}

static int open_part(struct torch_source *t, struct torch_part *p, struct err *e)
{
	struct torch_open *o;
	char text[BOX_TEXT_MAX];
	int r = 0;

	if (t->n_open == OPEN_MAX || t->held > TORCH_HELD_MAX / 2)
		close_parts(t);
	o = alloc_zero(sizeof(*o));
	if (!o)
		return err_code(e, -ENOMEM, "open a part");
	o->zip = t->zip;
	if (!t->zip)
		r = open_archive(t, p, o, e);
	if (r < 0) {
		alloc_free(o);
	} else {
		p->open = o;
		t->n_open++;
		r = open_view(t, p, e);
		if (r < 0)
			close_part(t, p);
		else
			t->held += held_bytes(o);
	}
	if (r < 0 && !t->zip)
		return err_wrap(e, r, "its part %s, at byte %" PRIu64 " of '%.100s'",
				box_text(text, &p->box), p->offset, t->files[p->file]);
	return r;
}

/* ---- The tensor that is being read ---- */

/* After declaration_finish() has found one: only two parts can be wrong together. */
static int find_overlap(struct torch_source *t, size_t tensor, struct err *e)
{
	char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];
	struct torch_part *parts;
	struct boxtree tree = {0};
	size_t n = parts_of(t, tensor, &parts);
	int r = 0;

	boxtree_reset(&tree, t->tensors[tensor].global.ndim);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = boxtree_add(&tree, &parts[i].box, 0);
	if (r == 0)
		r = boxtree_build(&tree, NULL);
	for (size_t i = 0; r == 0 && i < tree.n; i++) {
		const struct boxtree_box *own = &tree.boxes[i];
		const struct boxtree_box *first = boxtree_first(&tree, &own->box);

		/* Of two that overlap, the later one finds the earlier one before itself. */
		if (first != own)
			r = err_set(e, CKPT_EMISMATCH, "two of its parts overlap: %s and %s",
				    box_text(a, &first->box), box_text(b, &own->box));
	}
	boxtree_fini(&tree);
	return r < 0 ? r : e ? e->code : CKPT_EMISMATCH;
}

static int declare_parts(struct torch_source *t, size_t tensor, void **ret, struct err *e)
{
	const struct reading_tensor *of = &t->tensors[tensor];
	struct shard s = {.name = of->name,
			  .name_len = of->name_len,
			  .dtype = of->dtype,
			  .global = of->global};
	struct declaration_builder *b;
	struct torch_part *parts;
	size_t len, n = parts_of(t, tensor, &parts);
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);

	if (r < 0)
		return err_code(e, r, "plan a tensor");
	for (size_t i = 0; r >= 0 && i < n; i++) {
		s.box = parts[i].box;
		r = declaration_add(b, &s, e);
	}
	if (r >= 0) {
		r = declaration_finish(b, ret, &len, e);
		if (r < 0 && r != -ENOMEM)
			r = find_overlap(t, tensor, e);
	}
	declaration_builder_free(b);
	return r < 0 ? r : (int)len;
}

static void forget_current(struct torch_source *t)
{
	close_parts(t);
	alloc_free(t->declaration);
	t->declaration = NULL;
	t->current = SIZE_MAX;
}

static int make_current(struct torch_source *t, size_t tensor, struct err *e)
{
	struct declaration *d = &t->plan_source.declaration;
	struct torch_part *parts;
	int r;

	if (t->current == tensor)
		return 0;
	forget_current(t);
	r = declare_parts(t, tensor, &t->declaration, e);
	if (r < 0)
		return r;
	r = declaration_open(t->declaration, (size_t)r, d, e);
	if (r < 0)
		return r;
	t->current = tensor;
	parts_of(t, tensor, &parts);
	for (uint32_t i = 0; i < d->n_shards; i++) {
		struct torch_part *p = &parts[declaration_order(d, i)];
		struct shard s;

		declaration_get(d, i, &s);
		p->image_offset = s.image_offset;
		p->bytes = s.bytes;
	}
	return 0;
}

/* The part that a byte of the image is of: images begin one after the other. */
static struct torch_part *part_at(struct torch_source *t, uint64_t at)
{
	struct torch_part *parts;
	size_t low = 0, high = parts_of(t, t->current, &parts);

	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (parts[middle].image_offset <= at)
			low = middle;
		else
			high = middle;
	}
	assert(parts[low].image_offset <= at);
	return &parts[low];
}

/* At most *len bytes of the image from `at`, to `to`; *len is set to how many they were. Between
 * two parts there is nothing that a piece wants. */
static int read_image(struct torch_source *t, uint64_t at, uint8_t *to, uint64_t *len,
		      struct err *e)
{
	struct torch_part *p = part_at(t, at);
	uint64_t skip = at - p->image_offset;
	int r = 0;

	if (skip >= p->bytes) {
		*len = min_u64(*len, p[1].image_offset - at);
		return 0;
	}
	*len = min_u64(*len, p->bytes - skip);
	if (!p->open)
		r = open_part(t, p, e);
	return r < 0 ? r : torch_view_read(&p->open->view, skip, to, *len, e);
}

/* A piece may go on from one part to the next, where they lie side by side on both sides. */
static int do_piece(struct torch_source *t, const struct plan_piece *piece, uint8_t *to,
		    struct err *e)
{
	uint64_t low, high, n;
	int r = 0;

	plan_piece_span(piece, &low, &high);
	for (; r == 0 && low < high; low += n) {
		if (piece->ndim == 0) {
			n = high - low;
			r = read_image(t, low, to + piece->dst + (low - piece->src), &n, e);
			continue;
		}
		n = min_u64(high - low, BUFFER_BYTES);
		r = read_image(t, low, t->buffer, &n, e);
		if (r == 0)
			plan_piece_copy(piece, t->buffer, low, low + n, to);
	}
	return r;
}

/* ---- As a source ---- */

static int plan_range(struct torch_source *t, const struct box *box, uint64_t start, uint64_t stop,
		      struct plan *ret, struct err *e)
{
	const struct reading_tensor *of = &t->tensors[t->current];
	struct shard s = {.name = of->name,
			  .name_len = of->name_len,
			  .dtype = of->dtype,
			  .global = of->global,
			  .box = *box,
			  .flat = true,
			  .start = start,
			  .stop = stop};
	CLEANUP_FREE void *bytes = NULL;
	struct declaration_builder *b;
	struct declaration wanted;
	size_t len = 0;
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);

	*ret = (struct plan){0};
	if (r < 0)
		return err_code(e, r, "plan a tensor");
	r = declaration_add(b, &s, e);
	if (r >= 0)
		r = declaration_finish(b, &bytes, &len, e);
	declaration_builder_free(b);
	if (r >= 0)
		r = declaration_open(bytes, len, &wanted, e);
	return r < 0 ? r : plan_make(&t->plan_source, 1, &wanted, false, false, ret, e);
}

static int fetch_one(struct torch_source *t, const struct reading_want *w, struct err *e)
{
	struct plan plan = {0};
	char text[NAME_TEXT_MAX];
	int r;

	if (w->start == w->stop)
		return 0;
	r = make_current(t, w->tensor, e);
	if (r == 0)
		r = plan_range(t, &w->box, w->start, w->stop, &plan, e);
	for (size_t i = 0; r == 0 && i < plan.n_pieces; i++)
		r = do_piece(t, &plan.pieces[i], w->to, e);
	plan_fini(&plan);
	if (r < 0)
		err_wrap(e, r, "%.150s: tensor '%s'", t->what,
			 name_text(text, t->tensors[w->tensor].name,
				   t->tensors[w->tensor].name_len));
	return r;
}

static int source_fetch(struct source *s, const struct reading_want *wants, size_t n, struct err *e)
{
	struct torch_source *t = (struct torch_source *)s;
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++)
		r = fetch_one(t, &wants[i], e);
	return r;
}

/* The planner's sentence names tensor and region. */
static int no_cover(struct plan *plan, struct err *e)
{
	int r = err_set(e, CKPT_EMISMATCH, "it is not whole: %s", plan->problems[0].text);

	plan_fini(plan);
	return r;
}

static int prove_tensor(struct torch_source *t, size_t i, struct err *e)
{
	const struct reading_tensor *of = &t->tensors[i];
	struct box box = {.ndim = of->global.ndim};
	uint64_t elements = of->bytes / dtype_bytes(of->dtype);
	struct plan plan = {0};
	char text[NAME_TEXT_MAX];
	int r;

	if (elements == 0)
		return 0;
	memcpy(box.length, of->global.dim, sizeof(box.length));
	r = make_current(t, i, e);
	if (r == 0)
		r = plan_range(t, &box, 0, elements, &plan, e);
	if (r == CKPT_EMISMATCH && plan.n_problems > 0)
		return no_cover(&plan, e);
	plan_fini(&plan);
	if (r < 0)
		err_wrap(e, r, "tensor '%s'", name_text(text, of->name, of->name_len));
	return r;
}

int torch_source_ready(struct torch_source *t, struct err *e)
{
	static const struct source_ops ops = {.fetch = source_fetch, .close = torch_source_close};
	int r = 0;

	for (size_t i = 0; r == 0 && i < t->s.n; i++)
		r = prove_tensor(t, i, e);
	forget_current(t);
	t->s.ops = &ops;
	t->s.tensors = t->tensors;
	return r;
}

void torch_source_close(struct source *s)
{
	struct torch_source *t = (struct torch_source *)s;

	forget_current(t);
	torch_zip_close(t->zip);
	for (size_t i = 0; i < s->n_blobs; i++)
		alloc_free((void *)t->blobs[i].bytes);
	for (size_t i = 0; i < t->n_files; i++)
		alloc_free(t->files[i]);
	if (t->folder >= 0)
		close(t->folder); /* was only read */
	if (t->fd >= 0)
		close(t->fd); /* was only read */
	alloc_free(t->files);
	alloc_free(t->tensors);
	alloc_free(t->blobs);
	alloc_free(t->parts);
	alloc_free(t->first_part);
	alloc_free(t->values);
	alloc_free(t->pickle_bytes);
	pickle_free(&t->pickle);
	texts_fini(&t->names);
	alloc_free(t->buffer);
	alloc_free(t->path);
	alloc_free(t->what);
	alloc_free(t);
}
