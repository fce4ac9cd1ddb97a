/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_out.c - see json_out.h.
 */
#include <config.h>

#include "tools/json_out.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define INDENT 2

static void new_line(const struct json_out *o)
{
	printf("\n%*s", (int)(INDENT * o->depth), "");
}

static void begin_member(struct json_out *o, const char *key)
{
	if (o->some)
		putchar(',');
	if (o->depth)
		new_line(o);
	if (key)
		printf("\"%s\": ", key);
	o->some = true;
}

void json_out_begin(struct json_out *o, const char *key, char bracket)
{
	begin_member(o, key);
	putchar(bracket);
	o->depth++;
	o->some = false;
}

void json_out_end(struct json_out *o, char bracket)
{
	assert(o->depth > 0);
	o->depth--;
	if (o->some)
		new_line(o);
	putchar(bracket);
	o->some = true;
	if (o->depth == 0)
		putchar('\n');
}

/* Newlines in what jansson writes are all between values: those in texts are escaped. */
static int put(const char *text, size_t len, void *arg)
{
	const struct json_out *o = arg;

	for (const char *end = text + len, *line; text < end; text = line) {
		line = memchr(text, '\n', (size_t)(end - text));
		fwrite(text, 1, (size_t)((line ? line : end) - text), stdout);
		if (line)
			new_line(o);
		line = line ? line + 1 : end;
	}
	return 0;
}

void json_out_value(struct json_out *o, const char *key, json_t *value)
{
	assert(value);
	begin_member(o, key);
	json_dump_callback(value, put, o,
			   JSON_INDENT(INDENT) | JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
	json_decref(value);
}
