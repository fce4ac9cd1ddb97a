/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_write.c - opcodes of protocol 2. Any thread, each writer one.
 */
#include <config.h>

#include "tools/pickle_write.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "tools/torch_names.h"

void pickle_begin(struct pickle_writer *w)
{
	assert(w->out.len == 0);
	write_u8(&w->out, 0x80);
	write_u8(&w->out, 2);
}

void pickle_op(struct pickle_writer *w, enum pickle_op op)
{
	write_u8(&w->out, (uint8_t)op);
}

void pickle_int(struct pickle_writer *w, int64_t i)
{
	if (i >= 0 && i < 256) {
		write_u8(&w->out, 'K');
		write_u8(&w->out, (uint8_t)i);
	} else if (i >= INT32_MIN && i <= INT32_MAX) {
		write_u8(&w->out, 'J');
		write_u32(&w->out, (uint32_t)i);
	} else {
		write_u8(&w->out, 0x8a); /* LONG1 */
		write_u8(&w->out, 8);
		write_u64(&w->out, (uint64_t)i);
	}
}

void pickle_text(struct pickle_writer *w, const char *text, size_t len)
{
	assert(len <= UINT32_MAX);
	write_u8(&w->out, 'X');
	write_u32(&w->out, (uint32_t)len);
	write_bytes(&w->out, text, len);
}

/* Protocol 2 has no bytes: a text of the code points 0 to 255, encoded. */
void pickle_bytes(struct pickle_writer *w, const void *bytes, size_t len)
{
	const uint8_t *p = bytes;
	size_t text_len = len;

	for (size_t i = 0; i < len; i++)
		text_len += p[i] >> 7;
	assert(text_len <= UINT32_MAX);
	pickle_global(w, "_codecs", "encode");
	write_u8(&w->out, 'X');
	write_u32(&w->out, (uint32_t)text_len);
	for (size_t i = 0; i < len; i++) {
		if (p[i] & 0x80)
			write_u8(&w->out, (uint8_t)(0xc0 | p[i] >> 6));
		write_u8(&w->out, p[i] & 0x80 ? (uint8_t)(0x80 | (p[i] & 0x3f)) : p[i]);
	}
	pickle_key(w, "latin1");
	pickle_op(w, PICKLE_OP_TUPLE2);
	pickle_op(w, PICKLE_OP_REDUCE);
}

/* Whether it was written before; then it is referred to. */
static bool recall(struct pickle_writer *w, const char *module, const char *name)
{
	for (uint32_t i = 0; i < w->n_memo; i++) {
		const char *known = w->memo[i].module;

		if (strcmp(w->memo[i].name, name) == 0 &&
		    (known == module || (known && module && strcmp(known, module) == 0))) {
			write_u8(&w->out, 'h');
			write_u8(&w->out, (uint8_t)i);
			return true;
		}
	}
	return false;
}

static void remember(struct pickle_writer *w, const char *module, const char *name)
{
	_Static_assert(PICKLE_MEMO_MAX <= 256, "BINPUT has one byte");
	if (w->n_memo == PICKLE_MEMO_MAX)
		return;
	w->memo[w->n_memo].module = module;
	w->memo[w->n_memo].name = name;
	write_u8(&w->out, 'q');
	write_u8(&w->out, (uint8_t)w->n_memo++);
}

void pickle_key(struct pickle_writer *w, const char *text)
{
	if (recall(w, NULL, text))
		return;
	pickle_text(w, text, strlen(text));
	remember(w, NULL, text);
}

void pickle_global(struct pickle_writer *w, const char *module, const char *name)
{
	if (recall(w, module, name))
		return;
	write_u8(&w->out, 'c');
	write_bytes(&w->out, module, strlen(module));
	write_u8(&w->out, '\n');
	write_bytes(&w->out, name, strlen(name));
	write_u8(&w->out, '\n');
	remember(w, module, name);
}

void pickle_tuple(struct pickle_writer *w, uint32_t n, const uint64_t *numbers)
{
	if (n == 0) {
		pickle_op(w, PICKLE_OP_EMPTY_TUPLE);
		return;
	}
	pickle_op(w, PICKLE_OP_MARK);
	for (uint32_t i = 0; i < n; i++)
		pickle_int(w, (int64_t)numbers[i]);
	pickle_op(w, PICKLE_OP_TUPLE);
}

void pickle_size(struct pickle_writer *w, uint32_t n, const uint64_t *dims)
{
	pickle_global(w, "torch", "Size");
	pickle_tuple(w, n, dims);
	pickle_op(w, PICKLE_OP_TUPLE1);
	pickle_op(w, PICKLE_OP_REDUCE);
}

void pickle_object(struct pickle_writer *w, const char *module, const char *name)
{
	pickle_global(w, module, name);
	pickle_op(w, PICKLE_OP_EMPTY_TUPLE);
	pickle_op(w, PICKLE_OP_NEWOBJ);
}

void pickle_writer_free(struct pickle_writer *w)
{
	writer_free(&w->out);
}

/* ---- Copies ---- */

struct copying {
	struct pickle_writer *w;
	const struct pickle *p;
	struct pickle_walk walk;
	struct err *e;
};

static int copy(struct copying *c, const struct pickle_value *v);

static int copy_items(struct copying *c, const struct pickle_value *v)
{
	int r = pickle_enter(&c->walk, v, c->e);

	for (uint32_t i = 0; r == 0 && i < v->n; i++)
		r = copy(c, pickle_item(c->p, v, i));
	if (r == 0)
		pickle_leave(&c->walk);
	return r;
}

static int copy_container(struct copying *c, const struct pickle_value *v)
{
	bool list = v->type == PICKLE_LIST || (v->type == PICKLE_CALL && !v->dict);
	int r;

	if (v->type == PICKLE_LIST)
		pickle_op(c->w, PICKLE_OP_EMPTY_LIST);
	else if (v->type == PICKLE_DICT)
		pickle_op(c->w, PICKLE_OP_EMPTY_DICT);
	if (v->n == 0 && v->type != PICKLE_TUPLE)
		return 0;
	pickle_op(c->w, PICKLE_OP_MARK);
	r = copy_items(c, v);
	pickle_op(c->w, v->type == PICKLE_TUPLE ? PICKLE_OP_TUPLE
			: list                  ? PICKLE_OP_APPENDS
						: PICKLE_OP_SETITEMS);
	return r;
}

static int copy_set(struct copying *c, const struct pickle_value *v)
{
	int r;

	pickle_global(c->w, "__builtin__", "set");
	pickle_op(c->w, PICKLE_OP_EMPTY_LIST);
	pickle_op(c->w, PICKLE_OP_MARK);
	r = copy_items(c, v);
	pickle_op(c->w, PICKLE_OP_APPENDS);
	pickle_op(c->w, PICKLE_OP_TUPLE1);
	pickle_op(c->w, PICKLE_OP_REDUCE);
	return r;
}

static bool is_plain_class(uint16_t id)
{
	return id == TORCH_SIZE || id == TORCH_DEVICE || id == TORCH_ORDERED_DICT ||
	       id == TORCH_COUNTER || id == TORCH_SET || id == TORCH_FROZENSET ||
	       id == TORCH_COMPLEX || id == TORCH_ENCODE || id == TORCH_LAYOUT;
}

/* State is the attributes of an OrderedDict (a module's _metadata): they go with it. */
static int copy_call(struct copying *c, const struct pickle_value *v)
{
	const struct pickle_value *args = pickle_args(c->p, v);
	const struct pickle_value *state = pickle_state(c->p, v);
	int r;

	if (!is_plain_class(pickle_name_of(c->p, v)->id))
		return err_set(c->e, CKPT_EVERSION, "it holds a %s, which is no plain value",
			       pickle_name_of(c->p, v)->name);
	r = pickle_enter(&c->walk, v, c->e);
	if (r < 0)
		return r;
	pickle_global(c->w, pickle_name_of(c->p, v)->module, pickle_name_of(c->p, v)->name);
	r = copy(c, args);
	pickle_op(c->w, PICKLE_OP_REDUCE);
	if (r == 0)
		r = copy_container(c, v);
	if (r == 0 && state->type != PICKLE_NONE) {
		r = copy(c, state);
		pickle_op(c->w, PICKLE_OP_BUILD);
	}
	if (r == 0)
		pickle_leave(&c->walk);
	return r;
}

static void copy_number(struct copying *c, const struct pickle_value *v)
{
	struct writer *out = &c->w->out;
	uint64_t u;

	if (v->type == PICKLE_INT) {
		pickle_int(c->w, v->i);
	} else if (v->type == PICKLE_BIG) {
		write_u8(out, 0x8b); /* LONG4 */
		write_u32(out, v->n);
		write_bytes(out, v->text, v->n);
	} else {
		memcpy(&u, &v->f, sizeof(u));
		write_u8(out, 'G');
		write_u64(out, __builtin_bswap64(u));
	}
}

static int copy(struct copying *c, const struct pickle_value *v)
{
	switch ((enum pickle_type)v->type) {
	case PICKLE_NONE:
		pickle_op(c->w, PICKLE_OP_NONE);
		return 0;
	case PICKLE_BOOL:
		pickle_op(c->w, v->flag ? PICKLE_OP_TRUE : PICKLE_OP_FALSE);
		return 0;
	case PICKLE_INT:
	case PICKLE_BIG:
	case PICKLE_FLOAT:
		copy_number(c, v);
		return 0;
	case PICKLE_STR:
		pickle_text(c->w, (const char *)v->text, v->n);
		return 0;
	case PICKLE_BYTES:
		pickle_bytes(c->w, v->text, v->n);
		return 0;
	case PICKLE_TUPLE:
	case PICKLE_LIST:
	case PICKLE_DICT:
		return copy_container(c, v);
	case PICKLE_SET:
		return copy_set(c, v);
	case PICKLE_NAME:
		if (pickle_name_of(c->p, v)->id != TORCH_DTYPE)
			break;
		pickle_global(c->w, pickle_name_of(c->p, v)->module, pickle_name_of(c->p, v)->name);
		return 0;
	case PICKLE_CALL:
		return copy_call(c, v);
	case PICKLE_PERSISTENT:
		break;
	}
	return err_set(c->e, CKPT_EVERSION, "it holds a %s, which is no plain value",
		       pickle_type_text(c->p, v));
}

int pickle_copy(struct pickle_writer *w, const struct pickle *p, const struct pickle_value *v,
		struct err *e)
{
	struct copying c = {.w = w, .p = p, .e = e};
	int r = copy(&c, v);

	return r == 0 && w->out.bad ? err_code(e, -ENOMEM, "write a pickle") : r;
}
