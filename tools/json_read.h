/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_read.h - JSON that others wrote, piece by piece: nothing is built of it but by the caller.
 *
 * Strict: UTF-8, one object or list and nothing behind it, integers of 64 bits, no text with a NUL,
 * no half of a surrogate pair, at most JSON_READ_DEPTH levels. What a text or a key holds is a part
 * of the input where it has no escape, so that a caller can keep it without a copy. One thread.
 */
#ifndef TOOLS_JSON_READ_H
#define TOOLS_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define JSON_READ_DEPTH 64

enum json_event_kind {
	JSON_EVENT_OTHER, /* null, true, false, a number that is no integer */
	JSON_EVENT_INTEGER,
	JSON_EVENT_TEXT,
	JSON_EVENT_OBJECT,
	JSON_EVENT_KEY,
	JSON_EVENT_OBJECT_END,
	JSON_EVENT_LIST,
	JSON_EVENT_LIST_END,
};

struct json_event {
	enum json_event_kind kind;
	const char *text; /* TEXT, KEY: valid during the call; as long as the input if in_place */
	size_t len;
	bool in_place;
	int64_t number; /* INTEGER */
	size_t end;     /* of what was read, in the input */
};

/* What is not 0 ends the reading, and is returned. */
typedef int json_event_fn(void *arg, const struct json_event *ev, struct err *e);
/* CKPT_EPROTO: not JSON, with where; -ENOMEM. */
MUST_CHECK int json_read(const char *json, size_t len, json_event_fn *fn, void *arg, struct err *e);

#endif
