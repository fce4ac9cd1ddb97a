/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problems_priv.h - how a problem begins and ends, for the files of problems.h alone.
 */
#ifndef CKPTD_PROBLEMS_PRIV_H
#define CKPTD_PROBLEMS_PRIV_H

#include "ckptd/problems.h"

struct problem_found {
	enum job_problem problem;
	int level;
	uint32_t rank; /* PROBLEM_NO_RANK: it is not one rank's */
	uint64_t step;
	uint64_t since_ns, times; /* 0: now, and once */
};

__attribute__((format(printf, 3, 4))) void
problem_found(struct job *j, const struct problem_found *f, const char *fmt, ...);
/* Nothing happens if it does not stand. */
__attribute__((format(printf, 3, 4))) void problem_over(struct job *j, enum job_problem k,
							const char *fmt, ...);

#endif
