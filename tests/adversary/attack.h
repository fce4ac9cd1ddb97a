/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attack.h - attacks on ckptd by a hostile user, each a process that goes on until it is killed.
 *
 * An attack speaks the session's messages by hand (speak.h) where libckpt would not do such things.
 * It goes on after any answer of ckptd: when refused, it tries again.
 *
 *   make      bytes that take long to make; once, in the process of the test
 *   setup     what has to be there; once, in a process of the attacker's uid that returns
 *   prepare   what needs root; in each process that attacks, before it is the attacker's.
 *             0, or -errno: this machine has not got it
 *   run       the attack; does not return
 *   fault     CKPT_FAULT of ckptd
 *
 * All but run may be NULL.
 */
#ifndef TESTS_ADVERSARY_ATTACK_H
#define TESTS_ADVERSARY_ATTACK_H

#include <stdbool.h>
#include <stddef.h>

enum { ATTACKERS = 2 /* processes at a time, numbered from 0 */ };

struct attack_options {
	const char *socket;
	const char *folder; /* of its own, for a mount */
	unsigned number;    /* which of the processes that attack */
	int tell;           /* a byte is written here when it has begun, or 's': it cannot be done
			     * here */
};

struct attack {
	const char *name;
	void (*run)(const struct attack_options *o);
	int (*prepare)(const struct attack_options *o);
	void (*setup)(const struct attack_options *o);
	void (*make)(void);
	const char *fault;
};

/* The first only burns processor time and does not call ckptd: the baseline of the others. */
extern const struct attack attacks[];
extern const size_t n_attacks;

/* Reports that the attack is under way; further calls do nothing. */
void attack_begun(const struct attack_options *o);

/* attack_jobs.c: what needs jobs, and checkpoints in them */
void attack_unread_loads(const struct attack_options *o);
void attack_unread_loads_setup(const struct attack_options *o);
void attack_saves_and_loads(const struct attack_options *o);
void attack_plans(const struct attack_options *o);
void attack_plans_setup(const struct attack_options *o);
void attack_plans_make(void);
void attack_waits(const struct attack_options *o);
void attack_lists(const struct attack_options *o);
void attack_lists_setup(const struct attack_options *o);
void attack_large_declarations(const struct attack_options *o);
void attack_large_declarations_make(void);
void attack_ends(const struct attack_options *o);
void attack_places(const struct attack_options *o);
void attack_many_ranks(const struct attack_options *o);

#endif
