/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_memory.c - whether memory keeps what is written to it, and how fast it is.
 *
 *   memory-pattern   every 8 bytes get a value that depends on their place and on the round, are
 *                    read back, and get its complement: stuck bits, and address lines that are one
 *   memory-copy      GB/s of copies by all processors at once (bytes read, bytes written: both)
 *   memory-copy-one  the same by one
 *
 * The buffer is larger than any cache and small beside the machine's memory: this is a look at the
 * memory controllers and the pages it was given, not a test of every cell.
 */
#include <config.h>

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "codec/copy.h"
#include "tools/node_check.h"

enum { THREADS_MAX = 64, ROUNDS = 2 };
#define COPY_BYTES (64ull << 20) /* of one thread: from and to */

static uint64_t value_at(uint64_t place, uint64_t round)
{
	uint64_t x = (place + 1) * 0x9e3779b97f4a7c15u ^ round * 0xd1b54a32d192ed03u;

	return x ^ x >> 29;
}

static void fill(uint64_t *p, uint64_t n, uint64_t round, uint64_t mask)
{
	for (uint64_t i = 0; i < n; i++)
		p[i] = value_at(i, round) ^ mask;
}

/* The first word that differs, or n. */
static uint64_t differs(const volatile uint64_t *p, uint64_t n, uint64_t round, uint64_t mask)
{
	for (uint64_t i = 0; i < n; i++)
		if (p[i] != (value_at(i, round) ^ mask))
			return i;
	return n;
}

/* False: said why. */
static bool keeps(uint64_t *p, uint64_t n, struct check_report *r)
{
	for (uint64_t round = 0; round < ROUNDS; round++) {
		for (int side = 0; side < 2; side++) {
			uint64_t mask = side ? UINT64_MAX : 0, bad;

			fill(p, n, round, mask);
			bad = differs(p, n, round, mask);
			if (bad == n)
				continue;
			check_say(r, "memory-pattern", CHECK_FAILED,
				  "memory does not keep what is written: word %llu of %llu differs "
				  "in bits 0x%llx; take the node out and test its DIMMs",
				  (unsigned long long)bad, (unsigned long long)n,
				  (unsigned long long)(p[bad] ^ value_at(bad, round) ^ mask));
			return false;
		}
	}
	return true;
}

static void *take(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* ---- Speed ---- */

struct copier {
	pthread_t thread;
	double until;
	double bytes, start, end;
};

static void *copy_until(void *arg)
{
	struct copier *c = arg;
	uint8_t *p = take(COPY_BYTES);
	double now;

	if (!p)
		return NULL;
	memset(p, 1, COPY_BYTES);
	c->start = now = check_now();
	for (unsigned i = 0; now < c->until || i == 0; i++, now = check_now()) {
		uint64_t from = i % 2 ? COPY_BYTES / 2 : 0;

		copy_large(p + (COPY_BYTES / 2 - from), p + from, COPY_BYTES / 2);
		c->bytes += COPY_BYTES;
	}
	c->end = now;
	munmap(p, COPY_BYTES);
	return NULL;
}

/* Of all together, over the time from the first one's beginning to the last one's end: on a busy
 * node they may run one after the other, and the sum of what each had alone is what none could. */
static double copy_rate(unsigned threads, double seconds)
{
	struct copier copiers[THREADS_MAX] = {0};
	double bytes = 0, first = 0, last = 0, until = check_now() + seconds;
	unsigned started = 0;

	for (; started < threads; started++) {
		copiers[started].until = until;
		if (pthread_create(&copiers[started].thread, NULL, copy_until, &copiers[started]))
			break;
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(copiers[i].thread, NULL);
		if (copiers[i].bytes == 0)
			continue; /* it had no memory */
		if (bytes == 0 || copiers[i].start < first)
			first = copiers[i].start;
		last = copiers[i].end > last ? copiers[i].end : last;
		bytes += copiers[i].bytes;
	}
	return last > first ? bytes / (last - first) / 1e9 : 0;
}

static unsigned processors(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

	return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (unsigned)n;
}

void check_memory(const struct check_options *o, struct check_report *r)
{
	double start = check_now();
	uint64_t *p = take(o->memory);
	bool good;

	if (!p) {
		check_say(r, "memory-pattern", CHECK_SKIPPED,
			  "%llu MiB of memory could not be had; give less with --memory",
			  (unsigned long long)(o->memory >> 20));
		return;
	}
	good = keeps(p, o->memory / sizeof(*p), r);
	munmap(p, o->memory);
	if (!good)
		return;
	check_value(r, "memory-pattern", check_now() - start, "s", false);
	check_value(r, "memory-copy-one", copy_rate(1, o->seconds / 8), "GB/s", true);
	check_value(r, "memory-copy", copy_rate(processors(), o->seconds / 8), "GB/s", true);
}
