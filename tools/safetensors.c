/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.c - see safetensors.h. Any thread.
 *
 * 1. Numbers of a header are taken for what they are only after they were seen to be integers that
 *    are not negative; products and sums of them are checked.
 * 2. Entries that pass cover [0, data_len) in their order: each begins where the one before ended,
 *    and has exactly the bytes of its shape and dtype.
 * 3. A name of a file in an index has no '/' and is not "." or "..": it stays in its folder.
 * 4. What is kept of a tensor is its entry and where its name lies: no tree is built of the JSON,
 *    and twice the same is found by sorting.
 */
#include <config.h>

#include "tools/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/json_read.h"
#include "tools/plural.h"

/* In the order of the format's own list, by which its writer sorts. dtype 0: known to the format,
 * not to us. */
static const struct {
	const char *name;
	uint32_t dtype;
} dtypes[] = {
	{"BOOL", CKPT_BOOL},
	{"F4", 0},
	{"F6_E2M3", 0},
	{"F6_E3M2", 0},
	{"U8", CKPT_U8},
	{"I8", CKPT_I8},
	{"F8_E5M2", CKPT_F8_E5M2},
	{"F8_E4M3", CKPT_F8_E4M3},
	{"F8_E8M0", CKPT_F8_E8M0},
	{"F8_E4M3FNUZ", CKPT_F8_E4M3FNUZ},
	{"F8_E5M2FNUZ", CKPT_F8_E5M2FNUZ},
	{"I16", CKPT_I16},
	{"U16", CKPT_U16},
	{"F16", CKPT_F16},
	{"BF16", CKPT_BF16},
	{"I32", CKPT_I32},
	{"U32", CKPT_U32},
	{"F32", CKPT_F32},
	{"C64", CKPT_C64},
	{"F64", CKPT_F64},
	{"I64", CKPT_I64},
	{"U64", CKPT_U64},
};
enum { N_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

int safetensors_rank(uint32_t dtype)
{
	for (int i = 0; i < N_DTYPES; i++)
		if (dtypes[i].dtype == dtype && dtype)
			return i;
	return -1;
}

const char *safetensors_dtype(uint32_t dtype)
{
	int i = safetensors_rank(dtype);

	return i < 0 ? NULL : dtypes[i].name;
}

/* ---- One entry of a header ---- */

static int bad(struct err *e, const struct safetensors_entry *t, const char *what)
{
	char name[NAME_TEXT_MAX];

	return err_set(e, CKPT_EPROTO, "tensor '%s': %s", name_text(name, t->name, t->name_len),
		       what);
}

static int take_dtype(struct safetensors_entry *t, const struct json_event *ev, struct err *e)
{
	char name[NAME_TEXT_MAX], said[NAME_TEXT_MAX];

	if (ev->kind != JSON_EVENT_TEXT)
		return bad(e, t, "its dtype is no text");
	for (int i = 0; i < N_DTYPES; i++) {
		if (strlen(dtypes[i].name) != ev->len ||
		    memcmp(dtypes[i].name, ev->text, ev->len) != 0)
			continue;
		t->dtype = dtypes[i].dtype;
		if (t->dtype)
			return 0;
	}
	return err_set(e, CKPT_EVERSION,
		       "tensor '%s' has the dtype %.40s, which checkpoints here do not have",
		       name_text(name, t->name, t->name_len),
		       name_text(said, ev->text, (uint32_t)min_u64(ev->len, 40)));
}

/* All of it is there: what belongs together is compared. */
static int check_entry(const struct safetensors_entry *t, struct err *e)
{
	char shape[BOX_TEXT_MAX], text[BOX_TEXT_MAX + 100];
	uint64_t elements, bytes;

	if (t->begin > t->end)
		return bad(e, t, "its data_offsets end before they begin");
	if (!shape_elements(&t->shape, &elements) ||
	    !size_mul(elements, dtype_bytes(t->dtype), &bytes))
		return bad(e, t, "its shape has more than 2^64 bytes");
	if (bytes == t->end - t->begin)
		return 0;
	snprintf(text, sizeof(text), "shape %s of %s has %llu byte%s, its data_offsets have %llu",
		 shape_text(shape, &t->shape), dtype_name(t->dtype), (unsigned long long)bytes,
		 plural(bytes), (unsigned long long)(t->end - t->begin));
	return bad(e, t, text);
}

/* ---- A header as it is read ---- */

enum place {
	AT_START,
	AT_NAMES, /* in the object of all */
	AT_TENSOR,
	AT_FIELDS,
	AT_DTYPE,
	AT_SHAPE,
	AT_EXTENTS,
	AT_OFFSETS,
	AT_TWO_OFFSETS,
	AT_METADATA,
	AT_METADATA_KEYS,
	AT_END,
};
enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

struct text {
	const char *at;
	size_t len;
};

struct parsing {
	struct safetensors_header *h;
	const char *json;
	size_t cap;
	enum place place;
	struct safetensors_entry t; /* that is being read */
	unsigned has;               /* of its fields */
	size_t count;               /* of extents or offsets */
	struct text *keys;          /* of the metadata */
	size_t n_keys, cap_keys;
};

/* Grows by half: what is not used yet counts too. */
static int grow(void *array, size_t n, size_t *cap, size_t size, struct err *e)
{
	size_t more = *cap + *cap / 2 + 16;
	void **a = array, *grown;

	if (n < *cap)
		return 0;
	grown = alloc_resize(*a, more * size);
	if (!grown)
		return err_code(e, -ENOMEM, "read %zu entries", more);
	*a = grown;
	*cap = more;
	return 0;
}

static int duplicate(const char *text, size_t len, struct err *e)
{
	char name[NAME_TEXT_MAX];

	return err_set(e, CKPT_EPROTO, "not JSON that can be used: duplicate object key '%s'",
		       name_text(name, text, (uint32_t)len));
}

/* The text of an event as long as the JSON and `names` live. */
static const char *keep(struct texts *names, const struct json_event *ev)
{
	return ev->in_place ? ev->text : texts_keep(names, ev->text, ev->len);
}

static int on_start(struct parsing *p, const struct json_event *ev, struct err *e)
{
	if (ev->kind != JSON_EVENT_OBJECT)
		return err_set(e, CKPT_EPROTO, "not a JSON object");
	p->place = AT_NAMES;
	return 0;
}

static bool is_text(const struct json_event *ev, const char *text)
{
	return ev->len == strlen(text) && memcmp(ev->text, text, ev->len) == 0;
}

static int on_name(struct parsing *p, const struct json_event *ev, struct err *e)
{
	if (ev->kind == JSON_EVENT_OBJECT_END) {
		p->place = AT_END;
		return 0;
	}
	assert(ev->kind == JSON_EVENT_KEY);
	if (is_text(ev, SAFETENSORS_METADATA)) {
		p->place = AT_METADATA;
		return p->h->metadata ? duplicate(ev->text, ev->len, e) : 0;
	}
	p->place = AT_TENSOR;
	p->has = 0;
	p->t = (struct safetensors_entry){.name = keep(&p->h->names, ev),
					  .name_len = (uint32_t)ev->len};
	if (!p->t.name)
		return err_code(e, -ENOMEM, "keep a name");
	if (ev->len == 0 || ev->len > CKPT_NAME_MAX)
		return bad(e, &p->t, "names have 1 to 1023 bytes");
	return 0;
}

static int not_described(const struct parsing *p, struct err *e)
{
	return bad(e, &p->t,
		   "it is not described by dtype, shape and data_offsets, and nothing else");
}

static int end_tensor(struct parsing *p, struct err *e)
{
	int r;

	if (p->has != HAS_ALL)
		return not_described(p, e);
	r = check_entry(&p->t, e);
	if (r == 0)
		r = grow(&p->h->entries, p->h->n, &p->cap, sizeof(*p->h->entries), e);
	if (r < 0)
		return r;
	p->h->entries[p->h->n++] = p->t;
	p->place = AT_NAMES;
	return 0;
}

static int on_field(struct parsing *p, const struct json_event *ev, struct err *e)
{
	static const struct {
		const char *name;
		unsigned has;
		enum place place;
	} fields[] = {{"dtype", HAS_DTYPE, AT_DTYPE},
		      {"shape", HAS_SHAPE, AT_SHAPE},
		      {"data_offsets", HAS_OFFSETS, AT_OFFSETS}};

	if (ev->kind == JSON_EVENT_OBJECT_END)
		return end_tensor(p, e);
	assert(ev->kind == JSON_EVENT_KEY);
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		if (!is_text(ev, fields[i].name))
			continue;
		if (p->has & fields[i].has)
			return duplicate(ev->text, ev->len, e);
		p->has |= fields[i].has;
		p->place = fields[i].place;
		p->count = 0;
		return 0;
	}
	return not_described(p, e);
}

static int on_extent(struct parsing *p, const struct json_event *ev, struct err *e)
{
	char text[80];

	if (ev->kind == JSON_EVENT_INTEGER && ev->number >= 0) {
		if (p->count < CKPT_NDIM_MAX)
			p->t.shape.dim[p->count] = (uint64_t)ev->number;
		p->count++;
		return 0;
	}
	if (ev->kind != JSON_EVENT_LIST_END)
		return bad(e, &p->t, "its shape has something that is no count");
	if (p->count > CKPT_NDIM_MAX) {
		snprintf(text, sizeof(text), "it has %zu dimension%s, and at most %d are known",
			 p->count, plural(p->count), CKPT_NDIM_MAX);
		return bad(e, &p->t, text);
	}
	p->t.shape.ndim = (uint32_t)p->count;
	p->place = AT_FIELDS;
	return 0;
}

static int on_offset(struct parsing *p, const struct json_event *ev, struct err *e)
{
	if (ev->kind == JSON_EVENT_INTEGER && ev->number >= 0 && p->count < 2) {
		*(p->count == 0 ? &p->t.begin : &p->t.end) = (uint64_t)ev->number;
		p->count++;
		return 0;
	}
	if (ev->kind != JSON_EVENT_LIST_END || p->count != 2)
		return bad(e, &p->t, "its data_offsets are not two counts");
	p->place = AT_FIELDS;
	return 0;
}

static int on_metadata(struct parsing *p, const struct json_event *ev, struct err *e)
{
	char name[NAME_TEXT_MAX];
	struct text key = {.len = ev->len};
	int r;

	if (ev->kind == JSON_EVENT_TEXT)
		return 0;
	if (ev->kind == JSON_EVENT_OBJECT_END) {
		p->h->metadata_len = (size_t)(p->json + ev->end - p->h->metadata);
		p->place = AT_NAMES;
		return 0;
	}
	if (ev->kind != JSON_EVENT_KEY) {
		assert(p->n_keys > 0); /* a value is behind its key */
		key = p->keys[p->n_keys - 1];
		return err_set(e, CKPT_EPROTO, SAFETENSORS_METADATA " has '%s', which is no text",
			       name_text(name, key.at, (uint32_t)key.len));
	}
	key.at = keep(&p->h->names, ev);
	if (!key.at)
		return err_code(e, -ENOMEM, "keep a name");
	r = grow(&p->keys, p->n_keys, &p->cap_keys, sizeof(*p->keys), e);
	if (r == 0)
		p->keys[p->n_keys++] = key;
	return r;
}

/* What is to begin with a list or an object. */
static int on_begin(struct parsing *p, const struct json_event *ev, struct err *e)
{
	if (p->place == AT_TENSOR) {
		p->place = AT_FIELDS;
		return ev->kind == JSON_EVENT_OBJECT ? 0 : not_described(p, e);
	}
	if (p->place == AT_SHAPE) {
		p->place = AT_EXTENTS;
		return ev->kind == JSON_EVENT_LIST ? 0 : bad(e, &p->t, "its shape is no list");
	}
	if (p->place == AT_OFFSETS) {
		p->place = AT_TWO_OFFSETS;
		return ev->kind == JSON_EVENT_LIST
			       ? 0
			       : bad(e, &p->t, "its data_offsets are not two counts");
	}
	assert(p->place == AT_METADATA);
	if (ev->kind != JSON_EVENT_OBJECT)
		return err_set(e, CKPT_EPROTO, SAFETENSORS_METADATA " is no object");
	p->place = AT_METADATA_KEYS;
	p->h->metadata = p->json + ev->end - 1;
	return 0;
}

static int on_event(void *arg, const struct json_event *ev, struct err *e)
{
	struct parsing *p = arg;

	switch (p->place) {
	case AT_START:
		return on_start(p, ev, e);
	case AT_NAMES:
		return on_name(p, ev, e);
	case AT_FIELDS:
		return on_field(p, ev, e);
	case AT_DTYPE:
		p->place = AT_FIELDS;
		return take_dtype(&p->t, ev, e);
	case AT_EXTENTS:
		return on_extent(p, ev, e);
	case AT_TWO_OFFSETS:
		return on_offset(p, ev, e);
	case AT_METADATA_KEYS:
		return on_metadata(p, ev, e);
	case AT_TENSOR:
	case AT_SHAPE:
	case AT_OFFSETS:
	case AT_METADATA:
		return on_begin(p, ev, e);
	case AT_END:
		break;
	}
	assert(!"libyajl ends with the outermost object");
	return CKPT_EPROTO;
}

/* ---- A header ---- */

static int by_place(const void *a, const void *b)
{
	const struct safetensors_entry *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return name_compare(x->name, x->name_len, y->name, y->name_len);
}

/* (2) */
static int check_cover(const struct safetensors_header *h, uint64_t data_len, struct err *e)
{
	char text[100];
	uint64_t at = 0;

	for (size_t i = 0; i < h->n; i++) {
		const struct safetensors_entry *t = &h->entries[i];

		if (t->begin != at) {
			snprintf(text, sizeof(text), "its data begins at %llu, %s at %llu",
				 (unsigned long long)t->begin,
				 t->begin < at ? "inside another's, which ends"
					       : "behind a hole that begins",
				 (unsigned long long)at);
			return bad(e, t, text);
		}
		at = t->end;
	}
	if (at != data_len)
		return err_set(e, CKPT_EPROTO,
			       "its tensors have %llu byte%s, and %llu follow the "
			       "header: it was cut, or something was put behind it",
			       (unsigned long long)at, plural(at), (unsigned long long)data_len);
	return 0;
}

static int by_text(const void *a, const void *b)
{
	const struct text *x = a, *y = b;
	int order = memcmp(x->at, y->at, min_u64(x->len, y->len));

	return order ? order : (x->len > y->len) - (x->len < y->len);
}

static int by_name(const void *a, const void *b)
{
	const struct safetensors_entry *x = *(struct safetensors_entry *const *)a;
	const struct safetensors_entry *y = *(struct safetensors_entry *const *)b;

	return name_compare(x->name, x->name_len, y->name, y->name_len);
}

/* (4) */
static int check_names(const struct safetensors_header *h, struct err *e)
{
	CLEANUP_FREE const struct safetensors_entry **order = alloc_array(h->n, sizeof(*order));

	if (!order)
		return err_code(e, -ENOMEM, "compare %zu name%s", h->n, plural(h->n));
	for (size_t i = 0; i < h->n; i++)
		order[i] = &h->entries[i];
	if (h->n > 0)
		qsort(order, h->n, sizeof(*order), by_name);
	for (size_t i = 1; i < h->n; i++)
		if (by_name(&order[i - 1], &order[i]) == 0)
			return duplicate(order[i]->name, order[i]->name_len, e);
	return 0;
}

static int check_keys(struct parsing *p, struct err *e)
{
	if (p->n_keys > 0)
		qsort(p->keys, p->n_keys, sizeof(*p->keys), by_text);
	for (size_t i = 1; i < p->n_keys; i++)
		if (by_text(&p->keys[i - 1], &p->keys[i]) == 0)
			return duplicate(p->keys[i].at, p->keys[i].len, e);
	return 0;
}

int safetensors_parse(const void *json, size_t len, uint64_t data_len,
		      struct safetensors_header *ret, struct err *e)
{
	struct safetensors_header h = {0};
	struct parsing p = {.h = &h, .json = json};
	size_t blanks = 0;
	int r;

	while (blanks < len && p.json[blanks] == ' ')
		blanks++;
	if (len > SAFETENSORS_HEADER_MAX || blanks == len || p.json[blanks] != '{')
		return err_set(e, CKPT_EPROTO, "the header does not begin with '{'");
	r = json_read(json, len, on_event, &p, e);
	if (r == 0)
		r = check_keys(&p, e);
	alloc_free(p.keys);
	if (r == 0)
		r = check_names(&h, e);
	if (r == 0 && h.n)
		qsort(h.entries, h.n, sizeof(*h.entries), by_place);
	if (r == 0)
		r = check_cover(&h, data_len, e);
	if (r < 0) {
		safetensors_header_fini(&h);
		return r;
	}
	*ret = h;
	return 0;
}

void safetensors_header_fini(struct safetensors_header *h)
{
	alloc_free(h->entries);
	texts_fini(&h->names);
	*h = (struct safetensors_header){0};
}

/* ---- Writing ---- */

static void write_text(struct writer *w, const char *text)
{
	write_bytes(w, text, strlen(text));
}

static void write_number(struct writer *w, const char *before, uint64_t v)
{
	char text[40];

	snprintf(text, sizeof(text), "%s%llu", before, (unsigned long long)v);
	write_text(w, text);
}

static int write_piece(const char *text, size_t len, void *arg)
{
	write_bytes(arg, text, len);
	return 0;
}

/* Memory that is missing is told by the writer, at the end. */
static void write_json(struct writer *w, const json_t *v)
{
	w->bad |= json_dump_callback(v, write_piece, w, JSON_COMPACT | JSON_ENCODE_ANY) != 0;
}

static int write_name(struct writer *w, const struct safetensors_entry *t, struct err *e)
{
	json_t *name = json_stringn(t->name, t->name_len);
	char text[NAME_TEXT_MAX];

	if (!name || memchr(t->name, '\0', t->name_len)) {
		json_decref(name);
		return err_set(e, -EINVAL,
			       "the name of tensor '%s' is not UTF-8, and safetensors "
			       "has no other names: leave it out with --tensor",
			       name_text(text, t->name, t->name_len));
	}
	if (strcmp(json_string_value(name), SAFETENSORS_METADATA) == 0) {
		json_decref(name);
		return err_set(e, -EINVAL,
			       "a tensor is called " SAFETENSORS_METADATA ", which "
			       "means something else in safetensors: leave it out with --tensor");
	}
	write_json(w, name);
	json_decref(name);
	return 0;
}

static int write_entry(struct writer *w, const struct safetensors_entry *t, struct err *e)
{
	const char *dtype = safetensors_dtype(t->dtype);
	char name[NAME_TEXT_MAX];
	int r;

	if (!dtype)
		return err_set(e, -EINVAL, "tensor '%s' is %s, which safetensors does not have",
			       name_text(name, t->name, t->name_len), dtype_name(t->dtype));
	r = write_name(w, t, e);
	if (r < 0)
		return r;
	write_text(w, ":{\"dtype\":\"");
	write_text(w, dtype);
	write_text(w, "\",\"shape\":[");
	for (uint32_t i = 0; i < t->shape.ndim; i++)
		write_number(w, i ? "," : "", t->shape.dim[i]);
	write_number(w, "],\"data_offsets\":[", t->begin);
	write_number(w, ",", t->end);
	write_text(w, "]}");
	return 0;
}

/* Blanks at the end, which every reader takes, so that the data can be mapped and read directly. */
static int pad(struct writer *w, struct err *e)
{
	if (w->bad)
		return err_code(e, -ENOMEM, "make a header");
	while (!w->bad && w->len % SAFETENSORS_ALIGN)
		write_u8(w, ' ');
	if (w->bad)
		return err_code(e, -ENOMEM, "make a header");
	if (w->len - 8 > SAFETENSORS_HEADER_MAX)
		return err_set(e, -E2BIG,
			       "the header has %zu byte%s, and readers take %u: choose "
			       "smaller files with --shard-size",
			       w->len - 8, plural(w->len - 8), SAFETENSORS_HEADER_MAX);
	put_le64(w->buf, w->len - 8);
	return 0;
}

int safetensors_build(const struct safetensors_entry *entries, size_t n, const json_t *metadata,
		      void **ret, size_t *ret_len, struct err *e)
{
	struct writer w = {0};
	int r = 0;

	write_u64(&w, 0);
	write_text(&w, "{");
	if (metadata) {
		write_text(&w, "\"" SAFETENSORS_METADATA "\":");
		write_json(&w, metadata);
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		if (i || metadata)
			write_text(&w, ",");
		r = write_entry(&w, &entries[i], e);
	}
	write_text(&w, "}");
	if (r == 0)
		r = pad(&w, e);
	if (r < 0) {
		writer_free(&w);
		return r;
	}
	assert(w.len % SAFETENSORS_ALIGN == 0);
	*ret = w.buf;
	*ret_len = w.len;
	return 0;
}

/* ---- Indices ---- */

static bool stays_in_folder(const char *file, size_t len) /* (3) */
{
	return len > 0 && len < PATH_MAX && !memchr(file, '/', len) &&
	       !(len == 1 && file[0] == '.') && !(len == 2 && memcmp(file, "..", 2) == 0);
}

struct index_parsing {
	struct safetensors_index *x;
	int depth;   /* of objects and lists that are begun */
	bool inside; /* of weight_map */
	bool map;    /* it is the next value, or was read */
	bool done;
	struct safetensors_indexed entry;
};

static int index_value(struct index_parsing *p, const struct json_event *ev, struct err *e)
{
	char a[NAME_TEXT_MAX], b[NAME_TEXT_MAX];
	bool text = ev->kind == JSON_EVENT_TEXT;
	int r;

	if (!text || !stays_in_folder(ev->text, ev->len))
		return err_set(e, CKPT_EPROTO,
			       "tensor '%s' is in '%s', which is not the name of a file "
			       "beside the index",
			       name_text(a, p->entry.name, p->entry.name_len),
			       text ? name_text(b, ev->text, (uint32_t)ev->len) : "?");
	p->entry.file = keep(&p->x->texts, ev);
	p->entry.file_len = (uint32_t)ev->len;
	r = p->entry.file ? grow(&p->x->entries, p->x->n, &p->x->cap, sizeof(p->entry), e)
			  : err_code(e, -ENOMEM, "keep a name");
	if (r == 0)
		p->x->entries[p->x->n++] = p->entry;
	return r;
}

static int in_map(struct index_parsing *p, const struct json_event *ev, struct err *e)
{
	if (ev->kind == JSON_EVENT_OBJECT_END) {
		p->inside = false;
		p->depth--;
		return 0;
	}
	if (ev->kind != JSON_EVENT_KEY)
		return index_value(p, ev, e);
	p->entry.name = keep(&p->x->texts, ev);
	p->entry.name_len = (uint32_t)ev->len;
	return p->entry.name ? 0 : err_code(e, -ENOMEM, "keep a name");
}

static int no_map(struct err *e)
{
	return err_set(e, CKPT_EPROTO, "there is no object 'weight_map'");
}

static int on_index_event(void *arg, const struct json_event *ev, struct err *e)
{
	struct index_parsing *p = arg;
	bool begins = ev->kind == JSON_EVENT_OBJECT || ev->kind == JSON_EVENT_LIST;

	if (p->inside)
		return in_map(p, ev, e);
	if (p->depth == 0 && ev->kind != JSON_EVENT_OBJECT)
		return err_set(e, CKPT_EPROTO, "not a JSON object");
	if (p->map && !p->done) {
		if (ev->kind != JSON_EVENT_OBJECT)
			return no_map(e);
		p->inside = p->done = true;
	}
	if (p->depth == 1 && ev->kind == JSON_EVENT_KEY && is_text(ev, "weight_map")) {
		if (p->map)
			return duplicate(ev->text, ev->len, e);
		p->map = true;
	}
	p->depth += begins;
	p->depth -= ev->kind == JSON_EVENT_OBJECT_END || ev->kind == JSON_EVENT_LIST_END;
	return 0;
}

static int by_indexed(const void *a, const void *b)
{
	const struct safetensors_indexed *x = a, *y = b;

	return name_compare(x->name, x->name_len, y->name, y->name_len);
}

static int check_index(const struct safetensors_index *x, struct err *e)
{
	if (x->n > 0)
		qsort(x->entries, x->n, sizeof(*x->entries), by_indexed);
	for (size_t i = 1; i < x->n; i++)
		if (by_indexed(&x->entries[i - 1], &x->entries[i]) == 0)
			return duplicate(x->entries[i].name, x->entries[i].name_len, e);
	return 0;
}

int safetensors_index_parse(const void *json, size_t len, struct safetensors_index *ret,
			    struct err *e)
{
	struct index_parsing p = {.x = ret};
	int r;

	*ret = (struct safetensors_index){0};
	if (len > SAFETENSORS_HEADER_MAX)
		return err_set(e, CKPT_EPROTO, "more than %u bytes", SAFETENSORS_HEADER_MAX);
	r = json_read(json, len, on_index_event, &p, e);
	if (r == 0 && !p.done)
		r = no_map(e);
	if (r == 0)
		r = check_index(ret, e);
	if (r < 0)
		safetensors_index_fini(ret);
	return r;
}

struct safetensors_indexed *safetensors_index_find(const struct safetensors_index *x,
						   const char *name, uint32_t name_len)
{
	struct safetensors_indexed key = {.name = name, .name_len = name_len};

	return x->n ? bsearch(&key, x->entries, x->n, sizeof(key), by_indexed) : NULL;
}

void safetensors_index_fini(struct safetensors_index *x)
{
	alloc_free(x->entries);
	texts_fini(&x->texts);
	*x = (struct safetensors_index){0};
}
