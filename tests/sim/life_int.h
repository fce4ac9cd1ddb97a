/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life_int.h - between world.c and life.c.
 */
#ifndef TESTS_SIM_LIFE_INT_H
#define TESTS_SIM_LIFE_INT_H

#include "tests/sim/life.h"

/* On the driver: l's loop runs fn(arg), now or when main() has returned. */
void life_deliver(struct life *l, void (*fn)(void *arg), void *arg);
void life_deliver_timers(struct life *l);
/* Takes the events of a life out of the queue. */
void world_forget_life(struct world *w, const struct life *life);

#endif
