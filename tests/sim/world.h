/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h - virtual time: a queue of events, one seed that decides everything, one hash of it all.
 *
 *   struct world *w = world_new (seed);
 *   ... start lives (life.h), make disks (disk.h), arrange events ...
 *   while (world_step (w)) ...;
 *
 * Invariants:
 *   (1) Events run in the order of (time, order of arranging); nothing else advances time.
 *   (2) Every choice is drawn from the seed, none from addresses, wall clock or the heap: the same
 *       seed and the same code give the same world_hash().
 *   (3) The driver (the test) runs outside every life and never blocks.
 *
 * Everything is on one thread. CKPT_SIM_TRACE=1 prints each note as it is folded into the hash.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "base/rng.h"

#define SIM_US UINT64_C(1000)
#define SIM_MS (1000 * SIM_US)
#define SIM_S (1000 * SIM_MS)

struct life;
struct sim_event;
struct sim_fd;

struct world {
	uint64_t seed, now_ns, hash;
	uint64_t events;      /* run so far */
	uint64_t ops;         /* steps that touched disk or index: where a crash can be put */
	uint64_t crash_at_op; /* the life that makes this step dies before it; 0: none */
	uint64_t next_order;
	uint64_t wall_zero_ns; /* 1970 at now_ns == 0; a clock jump changes it */
	struct rng_seeded rng;
	struct sim_event *queue; /* binary heap */
	size_t n_queue, cap_queue;
	struct list lives;
	struct life *current;   /* whose code runs; NULL: the driver */
	unsigned n_lives;
	struct sim_fd *fds;     /* descriptors in flight or held, any owner */
	size_t n_fds, cap_fds;
	int next_fd;
	bool trace;
};

struct world *world_new(uint64_t seed);
/* Ends what is left; lives must have been freed. */
void world_free(struct world *w);
uint64_t world_hash(const struct world *w);

/* Uniform in [0, bound); a chance of one in n (n == 0: never). */
uint64_t world_random(struct world *w, uint64_t bound);
bool world_one_in(struct world *w, uint64_t n);
/* Folds what happened into the hash. what: a literal. */
void world_note(struct world *w, const char *what, uint64_t a, uint64_t b, uint64_t c);
/* The same for bytes. */
uint64_t world_digest(const void *bytes, size_t len);

/* fn(arg) at that time: on the loop of life, and never if it died before; on the driver if NULL. */
void world_at(struct world *w, uint64_t at_ns, struct life *life, void (*fn)(void *arg), void *arg);
static inline void world_after(struct world *w, uint64_t ns, struct life *life,
			       void (*fn)(void *arg), void *arg)
{
	world_at(w, w->now_ns + ns, life, fn, arg);
}
/* Takes driver events with this arg out of the queue: whoever frees arg calls it. */
void world_forget(struct world *w, const void *arg);

/* One event; false when there is none. */
bool world_step(struct world *w);
/* Steps until cond(arg) is true (true) or nothing is left or until_ns has passed (false: then
 * now_ns is until_ns if time was what ended it). cond may be NULL. */
bool world_run(struct world *w, uint64_t until_ns, bool (*cond)(void *arg), void *arg);

/* ---- Called from inside lives ---- */

/* A step that touches the outside: waits between 0 and max_ns, counts, and may be the last. On the
 * driver it takes no time. */
void world_op(struct world *w, const char *what, uint64_t max_ns);

/* ---- Descriptors: numbers that stand for something in the world ---- */
struct sim_fd_ops {
	const char *kind; /* "region", "bytes", "file" */
	void (*unref)(void *object);
};
/* owner: the life that holds it; NULL: a message on its way, or the driver. */
int sim_fd_new(struct world *w, struct life *owner, const struct sim_fd_ops *ops, void *object);
void *sim_fd_object(struct world *w, int fd, const struct sim_fd_ops *ops); /* NULL: none such */
void sim_fd_move(struct world *w, int fd, struct life *owner);
void sim_fd_close(struct world *w, int fd);
void sim_fd_close_all(struct world *w, struct life *owner);
size_t sim_fd_count(const struct world *w, const struct life *owner);

#endif
