/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_out.h - a document on stdout that is too long to be held: objects and lists are begun and
 * ended, what is short is a value. It looks as print_json() has it. One thread.
 */
#ifndef TOOLS_JSON_OUT_H
#define TOOLS_JSON_OUT_H

#include <jansson.h>
#include <stdbool.h>

struct json_out { /* zeroed: nothing was said */
	unsigned depth;
	bool some; /* in what was begun last */
};

/* key: plain ASCII, kept by the caller; NULL: in a list, or the document. bracket: '{' or '['. */
void json_out_begin(struct json_out *o, const char *key, char bracket);
void json_out_end(struct json_out *o, char bracket); /* '}' or ']'; the document's ends its line */
void json_out_value(struct json_out *o, const char *key, json_t *value); /* takes the reference */

#endif
