/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle.h - reads a pickle as data: what it would build becomes a passive tree, nothing is called.
 *
 * Protocols 2 to 5 as Python and torch write them. A pickle names classes and functions; only names
 * of the table that the caller gives are taken, and a call of one becomes a value "call of NAME
 * with these arguments". Anything else is refused with a sentence that says what and at which byte:
 * another name, an opcode that calls, imports or persists in another way, a call whose callee is no
 * name of the table.
 *
 * (1) Every value costs at least one byte of input; values, memo, nesting of marks and the input
 *     itself are bounded, and all lengths are checked against what is left of the input.
 * (2) The tree may share values and, from hostile input, contain itself: who walks it counts its
 *     depth and its steps (struct pickle_walk).
 * (3) Text points into the input, which must outlive the tree.
 * (4) A value takes 16 bytes, and 4 for each place that refers to it: the tree of a file of torch
 *     has two to four times the bytes of its pickle. What hostile input makes of it is bounded by
 *     the thread's budget (base/alloc.h).
 */
#ifndef TOOLS_PICKLE_H
#define TOOLS_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define PICKLE_BYTES_MAX  (1u << 29) /* of the input */
#define PICKLE_VALUES_MAX (1u << 26)
#define PICKLE_MARKS_MAX  1000       /* containers begun one inside the other */
#define PICKLE_FIELDS_MAX 256        /* of an object's state: pickle_get() goes through them */
#define PICKLE_DEPTH_MAX  100        /* of a tree that is walked */
#define PICKLE_STEPS_MAX  (1u << 27) /* of one walk: sharing can make a short pickle a large tree  \
				      */

enum pickle_type {
	PICKLE_NONE,
	PICKLE_BOOL,
	PICKLE_INT, /* 64 bits */
	PICKLE_BIG, /* a larger one: text is little-endian two's complement */
	PICKLE_FLOAT,
	PICKLE_STR,
	PICKLE_BYTES,
	PICKLE_TUPLE,
	PICKLE_LIST,
	PICKLE_DICT, /* items: key, value, key, value, ...; a key that came twice is there twice */
	PICKLE_SET,
	PICKLE_NAME,       /* a class, function or constant of the table */
	PICKLE_CALL,       /* name(*args), then state, then items */
	PICKLE_PERSISTENT, /* args: its id */
};

enum pickle_use {
	PICKLE_AS_VALUE = 1, /* stands for itself: a dtype, a class as an argument */
	PICKLE_AS_CALL = 2,  /* is called with positional arguments */
};

struct pickle_name {
	const char *module, *name;
	uint16_t id;
	uint8_t uses;  /* of enum pickle_use */
	uint8_t dtype; /* the caller's */
};

/* NULL: not in the table. Neither text is NUL-terminated. */
typedef const struct pickle_name *pickle_find_name(const char *module, size_t module_len,
						   const char *name, size_t name_len);

struct pickle_value {
	uint8_t type;  /* enum pickle_type */
	bool dict;     /* PICKLE_CALL: its items are key, value, ... */
	uint16_t name; /* PICKLE_NAME, PICKLE_CALL: of pickle.names */
	uint32_t n;    /* items, or bytes of text */
	union {
		bool flag;
		int64_t i;
		double f;
		const uint8_t *text;
		struct {
			uint32_t items; /* the first one's place in pickle.items */
			uint32_t call;  /* PICKLE_CALL: of calls; PICKLE_PERSISTENT: its id */
		};
	};
};

struct pickle_call {
	uint32_t args;  /* a tuple */
	uint32_t state; /* what BUILD gave it; 0 (None): nothing */
};

struct pickle {
	struct pickle_value *values; /* 0 is None */
	uint32_t n, cap;
	uint32_t *items; /* of all containers: indices of values */
	uint32_t n_items, cap_items;
	struct pickle_call *calls;
	uint32_t n_calls, cap_calls;
	const struct pickle_name **names; /* each once */
	uint16_t n_names, cap_names;
	uint32_t root;
};

/*
 * CKPT_EPROTO: no pickle, a damaged one, or one that holds what is not in the table; CKPT_EVERSION:
 * a protocol that is not 2 to 5; -E2BIG. Free with pickle_free() in every case.
 */
MUST_CHECK int pickle_parse(const void *bytes, size_t len, pickle_find_name *find,
			    struct pickle *ret, struct err *e);
void pickle_free(struct pickle *p);

const struct pickle_value *pickle_at(const struct pickle *p, uint32_t i);
/* Of PICKLE_NAME and PICKLE_CALL. */
const struct pickle_name *pickle_name_of(const struct pickle *p, const struct pickle_value *v);
/* Of PICKLE_CALL: its arguments, a tuple; its state, None where it has none. */
const struct pickle_value *pickle_args(const struct pickle *p, const struct pickle_value *call);
const struct pickle_value *pickle_state(const struct pickle *p, const struct pickle_value *call);
/* Of PICKLE_PERSISTENT. */
const struct pickle_value *pickle_id(const struct pickle *p, const struct pickle_value *v);
/* Item i of a tuple, list, set or dict (keys at even, values at odd places). */
const struct pickle_value *pickle_item(const struct pickle *p, const struct pickle_value *v,
				       uint32_t i);
/* What a dict with string keys holds there: the last that was put, NULL when nothing was, or when
 * there are more than PICKLE_FIELDS_MAX: for states, in which pickle_parse() refuses that. */
const struct pickle_value *pickle_get(const struct pickle *p, const struct pickle_value *dict,
				      const char *key);
/* Whether v is a call of the name with this id. */
bool pickle_is_call(const struct pickle *p, const struct pickle_value *v, uint16_t id);
bool pickle_is_text(const struct pickle_value *v, const char *text); /* a string that equals it */
/* Of a class for a sentence: "dict", "torch.Size", ... Static or in the table. */
const char *pickle_type_text(const struct pickle *p, const struct pickle_value *v);

/* For walks, which (2) can make endless: enter() before the items of a value, leave() behind. */
struct pickle_walk {
	uint32_t depth, steps;
};
MUST_CHECK int pickle_enter(struct pickle_walk *w, const struct pickle_value *v, struct err *e);
void pickle_leave(struct pickle_walk *w);

#endif
