/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.h - one life of one simulated process: ckptd from start to crash, or a trainer.
 *
 * A life has a control fiber, which runs main() and then serves its loop (timers, posted tasks,
 * what the world delivers), and, if asked, workers: fibers that run struct work in virtual time.
 * Blocking calls of the world (disk, index, life_sleep) are for workers and for main(); a callback
 * of the loop that blocks is a bug and asserts.
 *
 * A life ends by life_kill() (from the driver), life_die() (by itself: a fault point, the wanted
 * step), or life_end() (orderly). However it ends, whoever keeps something for it is told through
 * life_on_end(), and nothing of it runs again. base/alloc.h blocks of a killed life are freed.
 */
#ifndef TESTS_SIM_LIFE_H
#define TESTS_SIM_LIFE_H

#include "base/disk.h"
#include "base/loop.h"
#include "base/work.h"
#include "tests/sim/blocks.h"
#include "tests/sim/fiber.h"
#include "tests/sim/world.h"

struct life_options {
	const char *name;           /* a literal, for the trace */
	int width[WORK_CLASSES];    /* workers of each class; all 0: none */
	struct disk *disk;          /* for the queues of WORK_DATA */
	unsigned queue_depth;
	uint64_t clock_zero_ns;     /* world time at which its machine booted */
};

struct worker {
	struct life *life;
	enum work_class class;
	struct fiber fiber;
	bool idle;
	struct disk_queue *queue; /* opened when first asked for */
};

struct work_queue {
	struct fair_queue waiting;
	struct worker *workers;
	int width;
};

struct inbox_entry {
	void (*fn)(void *arg);
	void *arg;
};

struct life {
	struct world *world;
	struct life_options options;
	struct list link; /* in world->lives while alive */
	unsigned number;
	bool alive, starting, dying;
	struct blocks blocks;
	struct rng_seeded rng;

	struct loop loop;
	struct fair_queue posted;
	struct timers timers;
	bool timers_queued;
	struct inbox_entry *inbox; /* what the control fiber still has to run */
	size_t inbox_first, n_inbox, cap_inbox;

	void (*main)(void *arg);
	void *main_arg;
	struct fiber control;
	bool control_idle;
	struct fiber *running; /* control or a worker's, while this life runs */
	struct workers workers;
	struct work_queue classes[WORK_CLASSES];
	uint64_t last_done_ns; /* answers of workers come in the order in which they were given */
	struct list ends;
};

struct life_hook {
	struct list link;
	void (*ended)(struct life_hook *);
};

/* main(arg) runs on the control fiber at the next step; it may block. */
struct life *life_start(struct world *w, const struct life_options *o, void (*main)(void *arg),
			void *arg);
/* SIGKILL, by the driver. Idempotent. */
void life_kill(struct life *l);
/* SIGKILL, by its own code. Also what FAULT_KILL does, once life_catch_faults() was called. */
_Noreturn void life_die(struct life *l);
void life_catch_faults(struct world *w);
/* Orderly end, by the driver, when main() has returned and no worker runs: returns how many blocks
 * and descriptors the life still held. */
size_t life_end(struct life *l);
/* After its end (kills it if need be). */
void life_free(struct life *l);
void life_on_end(struct life *l, struct life_hook *h);

/* Runs fn as code of the life (its allocations, its random numbers): for set-up by the driver. */
void life_run(struct life *l, void (*fn)(void *arg), void *arg);
/* On any fiber of a life: let that much time pass. */
void life_sleep(struct world *w, uint64_t ns);
/* main() has returned, nothing is queued and no worker is busy. */
bool life_idle(const struct life *l);

#endif
