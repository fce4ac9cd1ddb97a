/* SPDX-License-Identifier: Apache-2.0 */
/*
 * machine.c - see machine.h.
 *
 * A thread walks over a list of fixed length, about 0.13 ms, sleeps, and so on. It measures each
 * piece as ckptd measures the calls on its loop, by its thread's processor time. The work is always
 * the same and calls nothing, so the machine made long what is long: interrupts, the kernel, a
 * hypervisor that takes the processor or the memory away, or a neighbour in the caches. It runs
 * beside the attack, as ckptd does.
 */
#include <config.h>

#include "tests/adversary/machine.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "tests/lib/rig.h"

enum { NODES = 500, WALKS = 40, SCATTER = 4096, BETWEEN_NS = 1000000, ABOVE_NS = 1000000 };

struct node {
	struct node *next;
	uint64_t data[40];
};

static struct {
	pthread_mutex_t lock;
	struct node *first;
	uint64_t pieces, above, sum_ns, longest_ns;
	uint64_t seen; /* so that the compiler keeps the walk */
} machine = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t piece(const struct node *at)
{
	uint64_t sum = 0;

	for (int i = 0; i < NODES * WALKS; i++, at = at->next)
		sum += at->data[i % 40];
	return sum;
}

static _Noreturn void *machine_main(void *arg)
{
	const struct timespec between = {.tv_nsec = BETWEEN_NS};

	(void)arg;
	for (;;) {
		uint64_t from = thread_ns(), seen = piece(machine.first), ns = thread_ns() - from;

		pthread_mutex_lock(&machine.lock);
		machine.seen += seen;
		machine.pieces++;
		machine.sum_ns += ns;
		machine.above += ns > ABOVE_NS;
		if (ns > machine.longest_ns)
			machine.longest_ns = ns;
		pthread_mutex_unlock(&machine.lock);
		nanosleep(&between, NULL);
	}
}

void machine_begin(void)
{
	struct node *last = NULL;
	pthread_t thread;

	for (int i = 0; i < NODES; i++) {
		struct node *n = calloc(1, sizeof(*n) + (size_t)(rand() % SCATTER));

		RIG_CHECK(n, "no memory");
		n->next = machine.first;
		machine.first = n;
		last = last ? last : n;
	}
	last->next = machine.first;
	RIG_CHECK(pthread_create(&thread, NULL, machine_main, NULL) == 0, "no thread");
}

struct machine_counts machine_look(void)
{
	struct machine_counts ret;

	pthread_mutex_lock(&machine.lock);
	RIG_CHECK(machine.pieces > 0, "the thread has measured nothing");
	ret = (struct machine_counts){.pieces = machine.pieces,
				      .above = machine.above,
				      .cpu_us = (double)machine.sum_ns / 1e3,
				      .longest_us = (double)machine.longest_ns / 1e3};
	pthread_mutex_unlock(&machine.lock);
	return ret;
}
