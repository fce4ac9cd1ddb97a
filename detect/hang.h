/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang.h - what other rules ask of hang.c and hang_looks.c.
 */
#ifndef DETECT_HANG_H
#define DETECT_HANG_H

#include "detect/rules.h"

/* A stall of the job was told and lasts: processes that end now do so because of it. */
bool hang_told(const struct detector *d, const struct job *j);
/* Nobody of the job who is still there has done anything since then: for quiet_ns, longer where
 * what it does leaves hope (as for a stall), and not at all in a declared phase that is not too
 * long. exits_asks() must hold. */
struct hang_rest {
	bool mute;      /* some tell of no steps: they may do something that cannot be seen */
	char words[96]; /* what one of them does */
};
bool hang_rests(const struct detector *d, const struct job *j, uint64_t since_ns, uint64_t quiet_ns,
		struct hang_rest *ret);

#endif
