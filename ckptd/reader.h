/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h - a thread for reads that may never come back.
 *
 * Unlike a worker (ckptd/workers.h) nobody waits for it: not the others, and not the stop of ckptd.
 */
#ifndef CKPTD_READER_H
#define CKPTD_READER_H

#include "base/err.h"
#include "base/loop.h"

struct reader;

struct reader_ops {
	void (*run)(void *arg);  /* on the thread: once for each reader_ask() */
	void (*done)(void *arg); /* on the loop: after each run */
	/* After the last run: on the loop's thread, or on the reader's if it was left behind. */
	void (*free)(void *arg);
};

/* loop: of loop_epoll.h. name: of the thread, at most 15 bytes. Takes arg, also when it fails. */
MUST_CHECK int reader_new(struct loop *loop, const char *name, const struct reader_ops *ops,
			  void *arg, struct reader **ret);
/* Not while it is busy: from ask until done, arg is the thread's. done may ask again. */
void reader_ask(struct reader *r);
bool reader_busy(const struct reader *r);
/* No done follows. Waits wait_ns for a run that was asked for, then leaves it and what it holds
 * behind, and returns false. NULL is allowed. */
bool reader_free(struct reader *r, uint64_t wait_ns);

/* The loop's clock, from any thread: for rates of what is read there. */
uint64_t reader_clock_ns(void);

#endif
