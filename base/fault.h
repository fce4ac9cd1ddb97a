/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.h - named fault points and planted bugs, compiled in with --enable-fault-injection.
 *
 *   if (FAULT (PUBLISH_RENAME)) return -EIO;     a point in faults.def: fails, delays or kills
 *   if (!BUG (SKIP_SHARD_SYNC)) r = sync (...);  a bug in bugs.def: code that is wrong when on
 *
 * A point is armed with what to do (error, SIGKILL of this process), at which hit, and whether
 * once or from then on; by code, or by the environment: CKPT_FAULT="PUBLISH_RENAME=kill@2,...",
 * CKPT_BUG="SKIP_SHARD_SYNC". Without the option both are constant 0. ckpt-faults(7) lists them.
 *
 * A supervised program inherits its environment again in every life: with CKPT_FAULT_ONCE=FILE a
 * kill makes the file, and lives that find it are not armed; with CKPT_FAULT_AFTER=FILE only lives
 * that find that file are.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum fault_point {
#define F(name, text) FAULT_##name,
#include "base/faults.def"
#undef F
	FAULT_POINTS
};

enum planted_bug {
#define B(name, invariant, text) BUG_##name,
#include "base/bugs.def"
#undef B
	PLANTED_BUGS
};

enum fault_action { FAULT_NONE, FAULT_ERROR, FAULT_KILL };

const char *fault_name(enum fault_point);
const char *fault_text(enum fault_point);
const char *bug_name(enum planted_bug);
const char *bug_text(enum planted_bug);

#ifdef CKPT_FAULTS
bool fault_hit(enum fault_point); /* counts the hit; kills, or true: fail now */
bool bug_on(enum planted_bug);
#define FAULT(name) fault_hit(FAULT_##name)
#define BUG(name) bug_on(BUG_##name)
#else
#define FAULT(name) 0
#define BUG(name) 0
#endif

/* Process-wide; for tests and start-up. at counts from 1. */
void fault_arm(enum fault_point, enum fault_action, uint64_t at, bool persistent);
void fault_disarm_all(void);           /* points and bugs, and sets the counts to 0 */
uint64_t fault_hits(enum fault_point); /* how often it was passed since then */
void bug_set(enum planted_bug, bool on);
/* What FAULT_KILL does; the default is SIGKILL of the process. For the simulator. */
void fault_set_kill(void (*kill_fn)(void *arg), void *arg);
MUST_CHECK int fault_from_env(struct err *e);

#endif
