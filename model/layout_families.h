/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_families.h - how families of models name their tensors and what they cut each one along.
 *
 * Tables only; model/layout_spec.c makes rules of them. doc/layouts.md says where each comes from.
 */
#ifndef MODEL_LAYOUT_FAMILIES_H
#define MODEL_LAYOUT_FAMILIES_H

#include <stdbool.h>
#include <stdint.h>

enum family_how {
	FAMILY_WHOLE,  /* replicated */
	FAMILY_EVEN,   /* column (dimension 0 of a Linear) or row (dimension 1) */
	FAMILY_HEADS,  /* even, between heads where their number is told */
	FAMILY_KV,     /* even, between key-value heads (query groups) */
	FAMILY_QKV,    /* parts q, k, v */
	FAMILY_GATED,  /* parts gate, up */
	FAMILY_SWIGLU, /* gated if told so, else even */
	FAMILY_VOCAB,  /* padded */
};

struct family_row {
	const char *glob;
	uint8_t dim;
	uint8_t how;     /* enum family_how */
	uint8_t experts; /* 0: no expert's; 1: one expert's; 2: stacked along dimension 0 */
};

struct family {
	const char *name;
	const struct family_row *rows;
	uint32_t n_rows;
	/* Patterns, each list ends with NULL. */
	const char *const *layers, *const *experts, *const *first, *const *last;
	const char *tied;        /* first, and last too where it is tied to the head */
	uint32_t vocab_multiple; /* times tp; 0: vocabularies are not padded */
};

extern const struct family layout_families[];
extern const uint32_t layout_n_families;

#endif
