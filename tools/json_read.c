/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_read.c - json_read.h over libyajl, of which this file is the one home.
 *
 * 1. libyajl takes no missing memory: it writes to what it was given. So an allocation that fails
 *    leaves it by a jump back to parse(), and what it held is given back from a list of its blocks.
 * 2. It makes '?' of half a surrogate pair: two names could become one. And it takes overlong
 *    forms, surrogates and numbers above U+10FFFF for UTF-8, vertical tabs and form feeds for
 *    blanks, which the next reader refuses. All are looked for before. It takes the begin of a text
 *    behind the value, which is looked for after. It is given all of the input at once, which is
 *    less than 2^31 bytes: only so do texts lie in the input.
 */
#include <config.h>

#include "tools/json_read.h"

#include <assert.h>
#include <errno.h>
#include <setjmp.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#include "base/alloc.h"
#include "base/text.h"

struct block { /* before each of libyajl's */
	struct block *next, *before;
};

struct json_reading {
	const char *json;
	size_t len;
	json_event_fn *fn;
	void *arg;
	struct err *e;
	int r; /* of fn */
	int depth;
	size_t end; /* of the value; 0: it has not ended */
	yajl_handle yajl;
	struct block blocks; /* a ring */
	jmp_buf no_memory;
};

/* ---- Memory (1) ---- */

static void link_block(struct json_reading *j, struct block *b)
{
	b->next = j->blocks.next;
	b->before = &j->blocks;
	b->next->before = b;
	j->blocks.next = b;
}

static void unlink_block(struct block *b)
{
	b->next->before = b->before;
	b->before->next = b->next;
}

static void *resize(void *arg, void *p, size_t size)
{
	struct json_reading *j = arg;
	struct block *b = p ? (struct block *)p - 1 : NULL, *grown = NULL;

	if (b)
		unlink_block(b);
	if (size <= SIZE_MAX - sizeof(*b))
		grown = alloc_resize(b, sizeof(*b) + size);
	if (grown || b)
		link_block(j, grown ? grown : b);
	if (!grown)
		longjmp(j->no_memory, 1);
	return grown + 1;
}

static void *take(void *arg, size_t size)
{
	return resize(arg, NULL, size);
}

static void give(void *arg, void *p)
{
	struct block *b = p ? (struct block *)p - 1 : NULL;

	(void)arg;
	if (b)
		unlink_block(b);
	alloc_free(b);
}

/* ---- Events ---- */

static int tell(struct json_reading *j, struct json_event *ev)
{
	ev->end = yajl_get_bytes_consumed(j->yajl);
	j->r = j->fn(j->arg, ev, j->e);
	return j->r == 0;
}

static int on_other(void *arg)
{
	return tell(arg, &(struct json_event){.kind = JSON_EVENT_OTHER});
}

static int on_bool(void *arg, int value)
{
	(void)value;
	return on_other(arg);
}

static int on_double(void *arg, double value)
{
	(void)value;
	return on_other(arg);
}

static int on_integer(void *arg, long long value)
{
	return tell(arg, &(struct json_event){.kind = JSON_EVENT_INTEGER, .number = value});
}

static int on_text(struct json_reading *j, enum json_event_kind kind, const char *text, size_t len)
{
	struct json_event ev = {.kind = kind, .text = text, .len = len};

	ev.in_place = (uintptr_t)text >= (uintptr_t)j->json &&
		      (uintptr_t)text < (uintptr_t)j->json + j->len;
	if (len > 0 && memchr(text, '\0', len)) {
		j->r = err_set(j->e, CKPT_EPROTO,
			       "not JSON that can be used: a text has a NUL (byte %zu)",
			       (size_t)yajl_get_bytes_consumed(j->yajl));
		return 0;
	}
	return tell(j, &ev);
}

static int on_string(void *arg, const unsigned char *text, size_t len)
{
	return on_text(arg, JSON_EVENT_TEXT, (const char *)text, len);
}

static int on_key(void *arg, const unsigned char *text, size_t len)
{
	return on_text(arg, JSON_EVENT_KEY, (const char *)text, len);
}

static int on_begin(struct json_reading *j, enum json_event_kind kind)
{
	if (++j->depth > JSON_READ_DEPTH) {
		j->r = err_set(j->e, CKPT_EPROTO,
			       "not JSON that can be used: it is nested deeper than %d levels",
			       JSON_READ_DEPTH);
		return 0;
	}
	return tell(j, &(struct json_event){.kind = kind});
}

static int on_end(struct json_reading *j, enum json_event_kind kind)
{
	assert(j->depth > 0);
	if (--j->depth == 0)
		j->end = yajl_get_bytes_consumed(j->yajl);
	return tell(j, &(struct json_event){.kind = kind});
}

static int on_object(void *arg)
{
	return on_begin(arg, JSON_EVENT_OBJECT);
}

static int on_object_end(void *arg)
{
	return on_end(arg, JSON_EVENT_OBJECT_END);
}

static int on_list(void *arg)
{
	return on_begin(arg, JSON_EVENT_LIST);
}

static int on_list_end(void *arg)
{
	return on_end(arg, JSON_EVENT_LIST_END);
}

/* ---- Texts (2) ---- */

/* The number of \uXXXX at p; -1: it is none. */
static int escaped_unit(const char *p, const char *end)
{
	int v = 0;

	if (end - p < 6 || p[0] != '\\' || p[1] != 'u')
		return -1;
	for (int i = 2; i < 6; i++) {
		char c = p[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;

		if (digit < 0)
			return -1;
		v = v << 4 | digit;
	}
	return v;
}

/* The first half of a pair without the other; NULL: there is none. */
static const char *half_pair(const char *p, const char *end)
{
	while (p < end && (p = memchr(p, '\\', (size_t)(end - p)))) {
		int unit = escaped_unit(p, end), next;

		if (unit < 0xd800 || unit > 0xdfff) {
			p += 2; /* of \\ both */
			continue;
		}
		next = unit < 0xdc00 ? escaped_unit(p + 6, end) : -1;
		if (next < 0xdc00 || next > 0xdfff)
			return p;
		p += 12;
	}
	return NULL;
}

/* The first of what libyajl takes for a blank and is none. In a text it is no JSON either. */
static const char *false_blank(const char *p, size_t len)
{
	const char *tab = memchr(p, '\v', len);
	const char *feed = memchr(p, '\f', tab ? (size_t)(tab - p) : len);

	return feed ? feed : tab;
}

/* ---- Reading ---- */

static int not_json(struct json_reading *j, struct err *e)
{
	unsigned char *text = yajl_get_error(j->yajl, 0, NULL, 0);
	size_t len = strcspn((char *)text, "\n");

	return err_set(e, CKPT_EPROTO, "not JSON that can be used: %.*s (byte %zu)",
		       (int)(len < 150 ? len : 150), (char *)text,
		       (size_t)yajl_get_bytes_consumed(j->yajl));
}

static int check_end(const struct json_reading *j)
{
	size_t end = j->end;

	if (end == 0)
		return err_set(j->e, CKPT_EPROTO,
			       "not JSON that can be used: neither an object nor a list");
	while (end < j->len && memchr(" \t\r\n", j->json[end], 4))
		end++;
	if (end < j->len)
		return err_set(j->e, CKPT_EPROTO,
			       "not JSON that can be used: something behind its end (byte %zu)",
			       end);
	return 0;
}

/* What it allocates json_read() gives back. */
static int parse(struct json_reading *j)
{
	static const yajl_callbacks callbacks = {
		.yajl_null = on_other,
		.yajl_boolean = on_bool,
		.yajl_integer = on_integer,
		.yajl_double = on_double,
		.yajl_string = on_string,
		.yajl_start_map = on_object,
		.yajl_map_key = on_key,
		.yajl_end_map = on_object_end,
		.yajl_start_array = on_list,
		.yajl_end_array = on_list_end,
	};
	yajl_alloc_funcs memory = {.malloc = take, .realloc = resize, .free = give, .ctx = j};
	yajl_status s;

	if (setjmp(j->no_memory) != 0)
		return err_code(j->e, -ENOMEM, "read JSON");
	j->yajl = yajl_alloc(&callbacks, &memory, j);
	s = yajl_parse(j->yajl, (const unsigned char *)j->json, j->len);
	if (s == yajl_status_ok)
		s = yajl_complete_parse(j->yajl);
	if (j->r != 0)
		return j->r;
	return s == yajl_status_ok ? check_end(j) : not_json(j, j->e);
}

int json_read(const char *json, size_t len, json_event_fn *fn, void *arg, struct err *e)
{
	struct json_reading j = {.json = json, .len = len, .fn = fn, .arg = arg, .e = e};
	const char *half = half_pair(json, json + len), *blank = false_blank(json, len);
	size_t utf8 = text_utf8_len(json, len);
	int r;

	assert(len < INT32_MAX);
	if (utf8 < len)
		return err_set(e, CKPT_EPROTO,
			       "not JSON that can be used: it is not UTF-8 (byte %zu)", utf8);
	if (half)
		return err_set(e, CKPT_EPROTO,
			       "not JSON that can be used: half of a surrogate pair (byte %zu)",
			       (size_t)(half - json));
	if (blank)
		return err_set(e, CKPT_EPROTO,
			       "not JSON that can be used: a control character (byte %zu)",
			       (size_t)(blank - json));
	j.blocks.next = j.blocks.before = &j.blocks;
	r = parse(&j);
	while (j.blocks.next != &j.blocks)
		give(&j, j.blocks.next + 1);
	return r;
}
