/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h - the fd store: descriptors that outlive this process, by name.
 *
 * systemd's where there is systemd, else `ckptd --supervise`; one protocol for both. Any thread,
 * but open, take and free.
 */
#ifndef CKPTD_KEEPER_H
#define CKPTD_KEEPER_H

#include <stdbool.h>

#include "base/err.h"
#include "base/memory.h"
#include "ckptd/notify.h"

#define KEEPER_NAME_MAX 255 /* without ':' and control characters */
/*
 * The names of all, with a byte between them: they come back in one string of the environment, and
 * a program with one of 128 KiB is not executed (E2BIG).
 */
#define KEEPER_NAMES_MAX (120u << 10)
#define KEEPER_NAME_USUAL 64u /* bytes that room() reckons for one more */
#define KEEPER_MAX_VAR "FDSTORE" /* how many descriptors the store takes; systemd 254 or newer */

struct keeper;

/*
 * Reads $LISTEN_PID, $LISTEN_FDS, $LISTEN_FDNAMES and $FDSTORE, makes those descriptors
 * close-on-exec and removes the variables. Before there are threads. n outlives the keeper.
 */
MUST_CHECK int keeper_open(struct notify *n, struct keeper **ret, struct err *e);
/* Closes what nobody took; it stays in the store. */
void keeper_free(struct keeper *k);
/* Whether anybody keeps anything: without, memory is lost with this process. */
bool keeper_keeps(const struct keeper *k);
/* Sets the size of the store if $FDSTORE did not give it. Before there are threads. */
void keeper_set_max(struct keeper *k, uint64_t max);
void keeper_room(struct keeper *k, struct memory_room *ret);
/* Returns 0 only when the store has it; fd stays the caller's. CKPT_ENOSPACE: the store is full,
 * and was not asked: systemd drops what it does not take and does not say so. */
MUST_CHECK int keeper_store(struct keeper *k, const char *name, int fd);
/* Returns 0 when the store has no descriptor of that name any more. */
MUST_CHECK int keeper_remove(struct keeper *k, const char *name);
/* Whether one was passed at start, and not taken, whose name begins so. */
bool keeper_has(const struct keeper *k, const char *prefix);
/* A descriptor that was passed at start, now the caller's: that of this name, or any (name NULL),
 * whose name goes to ret_name. -ENOENT: none is left. */
int keeper_take(struct keeper *k, const char *name, char ret_name[KEEPER_NAME_MAX + 1]);

#endif
