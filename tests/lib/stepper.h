/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepper.h - the memory that ranks of stepper.c share with each other and with their test.
 */
#ifndef TESTS_LIB_STEPPER_H
#define TESTS_LIB_STEPPER_H

#include <pthread.h>
#include <stdint.h>

#define STEPPER_RANKS_MAX 16

struct stepper_shared {
	pthread_barrier_t barrier;                  /* of all ranks, shared between processes */
	volatile uint64_t steps[STEPPER_RANKS_MAX]; /* that each has done */
};

#endif
