/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fiber.h - code that blocks, as if on a thread, while the world's one thread does something else.
 *
 * A fiber runs until it parks; the driver (the thread's own stack) resumes it. A parked fiber may
 * be dropped: its stack is taken away in the middle of whatever it did, as a SIGKILL would.
 * Stacks have a guard page and are kept for the next fiber.
 */
#ifndef TESTS_SIM_FIBER_H
#define TESTS_SIM_FIBER_H

#include <setjmp.h>
#include <stdbool.h>
#include <ucontext.h>

struct fiber {
	ucontext_t context; /* until it has begun */
	jmp_buf where;      /* while it is switched out */
	char *stack;        /* FIBER_STACK bytes; NULL: the driver */
	void (*run)(void *arg);
	void *arg;
	bool begun, ended; /* ended: run returned */
	void *sanitizer; /* its fake stack while it is switched out */
};

void fiber_init(struct fiber *f, void (*run)(void *arg), void *arg);
/* On the driver: runs f until it parks or ends. */
void fiber_resume(struct fiber *f);
/* On a fiber: back to the driver; returns when resumed. */
void fiber_park(void);
/* On the driver: f is gone, wherever it stood. */
void fiber_drop(struct fiber *f);
/* Unmaps the stacks that are kept. */
void fiber_pool_free(void);

#endif
