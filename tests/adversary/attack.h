/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attack.h - what a hostile user does to ckptd, as a process that goes on until it is killed.
 *
 * An attack speaks the session's messages by hand: libckpt would not do such things. It goes on
 * whatever ckptd answers: refused, it tries again.
 */
#ifndef TESTS_ADVERSARY_ATTACK_H
#define TESTS_ADVERSARY_ATTACK_H

#include <sys/types.h>

struct attack_options {
	const char *socket;
	const char *folder; /* of its own, for a mount */
	unsigned number;    /* which of the processes that attack */
	int tell;           /* a byte is written here when it has begun, or 's': it cannot be done
			     * here */
};

struct attack {
	const char *name;
	void (*run)(const struct attack_options *o); /* does not return; as the attacker's uid */
	/* What needs root, before run; may be NULL. 0, or -errno: this machine has not got it. */
	int (*prepare)(const struct attack_options *o);
};

/* The first burns processor time and leaves ckptd alone: what the others are compared with. */
extern const struct attack attacks[];
extern const unsigned n_attacks;

#endif
