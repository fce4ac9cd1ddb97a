/* SPDX-License-Identifier: Apache-2.0 */
/*
 * effort.h - the cost of a computation over untrusted input, and its limit.
 *
 * Each loop over such input spends steps: one for each thing that it examines. The count is the
 * same on every machine, so a limit refuses the same input everywhere, and tests can check it. The
 * computation ends with -ECANCELED soon after *cancel was set, and with -EOVERFLOW once its bounded
 * steps exceed `most`; `steps` holds all that was spent.
 *
 * Thread: one; any thread may set *cancel.
 */
#ifndef MODEL_EFFORT_H
#define MODEL_EFFORT_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct effort {
	const atomic_bool *cancel; /* NULL: not cancellable */
	uint64_t steps;
	uint64_t bounded, most; /* steps that count against the limit, and the limit */
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
