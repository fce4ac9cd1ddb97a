/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_tree.c - the passive tree that pickle_parse() made: looking at it, and walking it safely.
 *
 * One thread; nothing here fails but a walk that is too deep or too long.
 */
#include <config.h>

#include "tools/pickle.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"

void pickle_free(struct pickle *p)
{
	alloc_free(p->values);
	alloc_free(p->items);
	alloc_free(p->calls);
	alloc_free(p->names);
	*p = (struct pickle){0};
}

const struct pickle_value *pickle_at(const struct pickle *p, uint32_t i)
{
	assert(i < p->n);
	return &p->values[i];
}

const struct pickle_name *pickle_name_of(const struct pickle *p, const struct pickle_value *v)
{
	assert((v->type == PICKLE_NAME || v->type == PICKLE_CALL) && v->name < p->n_names);
	return p->names[v->name];
}

const struct pickle_value *pickle_args(const struct pickle *p, const struct pickle_value *call)
{
	assert(call->type == PICKLE_CALL && call->call < p->n_calls);
	return pickle_at(p, p->calls[call->call].args);
}

const struct pickle_value *pickle_state(const struct pickle *p, const struct pickle_value *call)
{
	assert(call->type == PICKLE_CALL && call->call < p->n_calls);
	return pickle_at(p, p->calls[call->call].state);
}

const struct pickle_value *pickle_id(const struct pickle *p, const struct pickle_value *v)
{
	assert(v->type == PICKLE_PERSISTENT);
	return pickle_at(p, v->call);
}

static bool has_items(const struct pickle_value *v)
{
	switch ((enum pickle_type)v->type) {
	case PICKLE_TUPLE:
	case PICKLE_LIST:
	case PICKLE_DICT:
	case PICKLE_SET:
	case PICKLE_CALL:
		return true;
	case PICKLE_NONE:
	case PICKLE_BOOL:
	case PICKLE_INT:
	case PICKLE_BIG:
	case PICKLE_FLOAT:
	case PICKLE_STR:
	case PICKLE_BYTES:
	case PICKLE_NAME:
	case PICKLE_PERSISTENT:
		break;
	}
	return false;
}

const struct pickle_value *pickle_item(const struct pickle *p, const struct pickle_value *v,
				       uint32_t i)
{
	assert(has_items(v) && i < v->n);
	return pickle_at(p, p->items[v->items + i]);
}

bool pickle_is_text(const struct pickle_value *v, const char *text)
{
	return v->type == PICKLE_STR && v->n == strlen(text) && memcmp(v->text, text, v->n) == 0;
}

const struct pickle_value *pickle_get(const struct pickle *p, const struct pickle_value *dict,
				      const char *key)
{
	if (dict->type != PICKLE_DICT || dict->n / 2 > PICKLE_FIELDS_MAX)
		return NULL;
	assert(dict->n % 2 == 0);
	for (uint32_t i = dict->n; i > 0; i -= 2)
		if (pickle_is_text(pickle_item(p, dict, i - 2), key))
			return pickle_item(p, dict, i - 1);
	return NULL;
}

bool pickle_is_call(const struct pickle *p, const struct pickle_value *v, uint16_t id)
{
	return v->type == PICKLE_CALL && pickle_name_of(p, v)->id == id;
}

const char *pickle_type_text(const struct pickle *p, const struct pickle_value *v)
{
	static const char *const names[] = {
		[PICKLE_NONE] = "None",   [PICKLE_BOOL] = "bool",   [PICKLE_INT] = "int",
		[PICKLE_BIG] = "int",     [PICKLE_FLOAT] = "float", [PICKLE_STR] = "str",
		[PICKLE_BYTES] = "bytes", [PICKLE_TUPLE] = "tuple", [PICKLE_LIST] = "list",
		[PICKLE_DICT] = "dict",   [PICKLE_SET] = "set",     [PICKLE_PERSISTENT] = "storage",
	};

	if (v->type == PICKLE_NAME || v->type == PICKLE_CALL)
		return pickle_name_of(p, v)->name;
	assert(v->type < sizeof(names) / sizeof(*names));
	return names[v->type];
}

int pickle_enter(struct pickle_walk *w, const struct pickle_value *v, struct err *e)
{
	uint32_t n = has_items(v) ? v->n : 0;

	if (w->depth >= PICKLE_DEPTH_MAX)
		return err_set(e, -E2BIG, "it is nested deeper than %d levels, or contains itself",
			       PICKLE_DEPTH_MAX);
	if (n >= PICKLE_STEPS_MAX - w->steps)
		return err_set(e, -E2BIG, "it refers to its own parts more than %u times",
			       PICKLE_STEPS_MAX);
	w->depth++;
	w->steps += n + 1;
	return 0;
}

void pickle_leave(struct pickle_walk *w)
{
	assert(w->depth > 0);
	w->depth--;
}
