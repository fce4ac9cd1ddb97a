/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_spec.h - the text of a named layout as numbers, between reading it (model/layout_spec.c)
 * and making the layout of it (model/layout_named.c).
 */
#ifndef MODEL_LAYOUT_SPEC_H
#define MODEL_LAYOUT_SPEC_H

#include "model/layout_families.h"
#include "model/layout_rules.h"

#define LAYOUT_STAGES_MAX 1024u
#define LAYOUT_NOT_SAID   UINT32_MAX

struct layout_spec {
	const struct family *family; /* NULL: all but nanogpt */
	uint32_t tp, pp, dp, cp, ep, etp, replicate;
	uint32_t layers, experts, heads, kv; /* 0: not said */
	uint32_t vpp, vocab;
	/* dp by another name; 0: not said, LAYOUT_NOT_SAID: without a number */
	uint32_t ddp, fsdp1, fsdp2, zero1, zero2, zero3;
	uint32_t zero;
	uint32_t tied, swiglu, strict;
	uint32_t unit; /* enum layout_unit */
	uint32_t n_stages, stages[LAYOUT_STAGES_MAX];
	char order[64]; /* "tp-cp-ep-dp-pp": of the mesh, the fastest axis first */
};

/* All sizes are set, and their product is at most LAYOUT_WORLD_MAX. */
MUST_CHECK int layout_named(const struct layout_spec *s, struct layout **ret, struct err *e);

#endif
