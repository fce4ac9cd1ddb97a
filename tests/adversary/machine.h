/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.h - how often this machine makes a short piece of work long.
 */
#ifndef TESTS_ADVERSARY_MACHINE_H
#define TESTS_ADVERSARY_MACHINE_H

struct machine_counts {
	unsigned long long pieces, above; /* of these: above 1 ms */
	double cpu_us, longest_us;        /* processor time of its thread: of all, of one */
};

/* Begins a thread that does the work again and again. Once in a process. */
void machine_begin(void);
/* What it has measured so far. */
struct machine_counts machine_look(void);

#endif
