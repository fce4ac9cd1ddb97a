/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - struct memory in the simulator: regions that the keeper holds while ckptd is dead.
 *
 *   - a region survives the death of the daemon while the keeper lives, and of everything but the
 *     power while somebody has it mapped; power loss ends them all;
 *   - create() can fail, by the budget, the places in the store, or by chance;
 *   - descriptors are numbers of the world (sim_fd_*): who receives one in a message maps it.
 */
#ifndef TESTS_SIM_MEMORY_H
#define TESTS_SIM_MEMORY_H

#include "base/memory.h"
#include "tests/sim/life.h"

struct keeper_options {
	uint64_t budget;       /* bytes */
	uint32_t create_fails; /* one in n; 0: never */
	uint32_t places;       /* regions that it takes; 0: any number */
};

struct keeper; /* of one node: outlives its daemons */

struct keeper *keeper_new(struct world *w, const struct keeper_options *o);
void keeper_free(struct keeper *k);
struct keeper_options *keeper_options(struct keeper *k);
/* All lives of the node have ended. */
void keeper_power_loss(struct keeper *k);
/* The keeper itself dies: regions live on only where somebody holds them. */
void keeper_die(struct keeper *k);
size_t keeper_regions(const struct keeper *k); /* in the store */
uint64_t keeper_used(const struct keeper *k);
/* Regions in the store, for planted damage. */
typedef void keeper_fn(void *arg, const char *name, uint8_t *base, uint64_t size);
void keeper_each(struct keeper *k, keeper_fn *fn, void *arg);

/* The table for one life of the daemon; gone with it. */
struct memory *memory_sim_open(struct keeper *k, struct life *l);
/* Its node has started: from the next instant on its loop must not wait for the fd store. */
void memory_sim_serves(struct memory *m);

/* ---- For simulated trainers; l may be NULL: the driver ---- */
struct mapping {
	uint8_t *base;
	uint64_t size;
	bool writable;
};
/* Maps a region's descriptor (the number may be closed afterwards); NULL: it is none. Gone with
 * the life or by mapping_free(). */
struct mapping *mapping_new(struct world *w, struct life *l, int fd);
void mapping_free(struct mapping *m);
/* False: of a region that was reserved and not filled. */
bool mapping_has_pages(const struct mapping *m);
/* A memfd with these bytes: sealed, as it must be, or not. */
int memory_bytes_fd(struct world *w, struct life *l, const void *bytes, uint64_t len, bool sealed);
/* What such a descriptor holds, or NULL. */
const void *memory_fd_bytes(struct world *w, int fd, uint64_t *ret_len);

#endif
