/* SPDX-License-Identifier: Apache-2.0 */
/* trace_fields.h - which fields a line of each kind has; only for trace.c. */
#ifndef DETECT_TRACE_FIELDS_H
#define DETECT_TRACE_FIELDS_H

#include "detect/trace.h"

enum field_type {
	FIELD_U8,
	FIELD_U16,
	FIELD_U32,
	FIELD_U64,
	FIELD_I32,
	FIELD_BOOL,    /* 0 or 1 */
	FIELD_SECONDS, /* uint64_t ns; in the text seconds with up to 9 decimals */
	FIELD_F32,
	FIELD_F64,
	FIELD_CHAR,    /* one printable character */
	FIELD_TEXT,    /* char[size], in the text quoted */
	FIELD_WORD,    /* an enum, by its word */
	FIELD_CLASSES, /* bits, words with commas */
};

typedef const char *field_word_fn(uint32_t value);

/* A field that has its default (0; NaN for floats; all ones where NONE is set) is left out. */
#define FIELD_NONE     1u /* its default is all ones */
#define FIELD_REQUIRED 2u

struct field {
	const char *key;
	field_word_fn *word; /* FIELD_WORD */
	uint32_t n_words;    /* FIELD_WORD */
	uint32_t presence;   /* bit of beat.flags that says whether it was given; 0: none */
	uint16_t offset;     /* in struct trace_record */
	uint16_t size;
	uint8_t type, flags, key_len;
};

struct line_kind {
	const char *word;
	const struct field *fields;
	uint32_t n_fields;
	uint32_t word_len;
};

#define TRACE_FIELDS_MAX 20
extern const struct line_kind trace_sample_kinds[SAMPLE_KIND_COUNT];
extern const struct line_kind trace_label_kinds[LABEL_KIND_COUNT];

#endif
