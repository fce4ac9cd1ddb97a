/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepper.h - the memory that ranks of stepper.c share with each other and with their test.
 */
#ifndef TESTS_LIB_STEPPER_H
#define TESTS_LIB_STEPPER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define STEPPER_RANKS_MAX 16

struct stepper_shared {
	pthread_barrier_t barrier; /* of all ranks, shared between processes */
	/* The test's to set: before they start, */
	bool saves;                  /* they have a tensor each, and save when ckptd asks for it */
	uint32_t computes_permille;  /* of a step; the rest is the device's. 0: half */
	/* ... and at any time */
	volatile uint32_t slower_permille[STEPPER_RANKS_MAX]; /* works that much more in a step */
	/* The ranks' to set */
	volatile uint64_t steps[STEPPER_RANKS_MAX]; /* that each has done */
	volatile uint64_t saved[STEPPER_RANKS_MAX]; /* the last step that it saved */
	volatile uint32_t saves_done[STEPPER_RANKS_MAX];
};

#endif
