/* SPDX-License-Identifier: Apache-2.0 */
/*
 * effort.h - what a computation over input from outside has cost, and when it has to end.
 *
 * Whoever loops over such input spends steps: one for each thing that is looked at. They are
 * counted the same on every machine, so a limit on them refuses the same input everywhere, and
 * tests can ask for them. The computation ends with -ECANCELED soon after *cancel was set, with
 * -EOVERFLOW once it may not go on by its own count; all that was spent stays in `steps`.
 *
 * Thread: one, but *cancel, which anybody may set.
 */
#ifndef MODEL_EFFORT_H
#define MODEL_EFFORT_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct effort {
	const atomic_bool *cancel; /* NULL: it cannot be */
	uint64_t steps;
	uint64_t bounded, most; /* of the steps those that have a limit, and it */
};

#define EFFORT_POLL 1024u /* steps that loops without other polls make between two */

__attribute__((warn_unused_result)) static inline int effort_spend(struct effort *f, uint64_t n)
{
	f->steps += n;
	return f->cancel && atomic_load_explicit(f->cancel, memory_order_relaxed) ? -ECANCELED : 0;
}

/* The same, where hostile input may choose n: it counts against the limit. */
__attribute__((warn_unused_result)) static inline int effort_spend_bounded(struct effort *f,
									   uint64_t n)
{
	f->bounded += n;
	return f->bounded > f->most ? -EOVERFLOW : effort_spend(f, n);
}

#endif
