/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sketch_code.h - one description of every record, for writing and for reading. For sketch*.c only.
 */
#ifndef DETECT_SKETCH_CODE_H
#define DETECT_SKETCH_CODE_H

#include "detect/sketch.h"

/* Exactly one of w and r is set. */
struct code {
	struct writer *w;
	struct reader *r;
	uint64_t base_step, now_ns; /* now: ages are before it */
};

/* Kinds that a sketch has. */
bool sketch_takes(enum sample_kind kind);
/* Kind, age, subject and what it says. Reading: false where a record is not what a sender writes;
 * r->bad is set then. s->job and s->node are the caller's. */
bool code_sample(struct code *c, struct sample *s);
bool code_verdict(struct code *c, struct verdict *v);
#define CODE_VERDICT 0xffu /* in the place of a kind */

#endif
