/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gaps.c - what is cheaper: to read over a gap that nobody wants, or to ask twice.
 *
 *   bench/gaps [MIB]      a file of so many MiB in the current folder, 256; O_DIRECT, as a load
 *
 * Pieces of some size lie apart by gaps. They are read one request each, and then with the gaps,
 * in requests of 2 MiB as a load makes them; by 1, 4 and 16 threads. For each the largest gap is
 * printed up to which reading over was not slower: the median of several rounds, which alternate.
 * client/touched.c has the figure that a load uses, and where it was measured.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"

#define ALIGN       4096u
#define REQUEST_MAX (2u << 20)
#define THREADS_MAX 16
#define ROUNDS      5

struct reading {
	int fd;
	uint64_t total, step, length; /* a request for each step, of so many bytes */
	_Atomic uint64_t next;
	_Atomic int error;
};

static void *read_all(void *arg)
{
	struct reading *r = arg;
	void *buf = aligned_alloc(ALIGN, REQUEST_MAX);
	uint64_t at;

	while (buf && (at = atomic_fetch_add(&r->next, r->step)) < r->total) {
		uint64_t len = min_u64(r->length, r->total - at);

		if (pread(r->fd, buf, len, (off_t)at) != (ssize_t)len)
			atomic_store(&r->error, errno ? errno : EIO);
	}
	if (!buf)
		atomic_store(&r->error, ENOMEM);
	free(buf);
	return NULL;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Seconds. */
static double measure(int fd, uint64_t total, uint64_t step, uint64_t length, int threads)
{
	struct reading r = {.fd = fd, .total = total, .step = step, .length = length};
	pthread_t t[THREADS_MAX];
	double begin = now();
	int n = 0;

	while (n < threads && pthread_create(&t[n], NULL, read_all, &r) == 0)
		n++;
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	if (n < threads || atomic_load(&r.error)) {
		fprintf(stderr, "gaps: cannot read: %s\n", strerror(atomic_load(&r.error)));
		exit(1);
	}
	return now() - begin;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* How much longer it takes to ask for each piece than to read over the gaps. */
static double ratio(int fd, uint64_t total, uint64_t piece, uint64_t gap, int threads)
{
	double r[ROUNDS];

	total = total / (piece + gap) * (piece + gap);
	for (int i = 0; i < ROUNDS; i++)
		r[i] = measure(fd, total, piece + gap, piece, threads) /
		       measure(fd, total, REQUEST_MAX, REQUEST_MAX, threads);
	qsort(r, ROUNDS, sizeof(r[0]), compare);
	return r[ROUNDS / 2];
}

static int make_file(uint64_t bytes)
{
	char name[] = "gaps.XXXXXX";
	int fd = mkstemp(name), direct;
	uint8_t *buf = aligned_alloc(ALIGN, REQUEST_MAX);
	uint64_t x = 88172645463325252u;

	if (fd < 0 || !buf)
		return -1;
	direct = open(name, O_RDWR | O_DIRECT | O_CLOEXEC);
	unlink(name);
	close(fd);
	for (uint64_t at = 0; direct >= 0 && at < bytes; at += REQUEST_MAX) {
		for (size_t i = 0; i < REQUEST_MAX; i += 8) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			put_le64(buf + i, x);
		}
		if (pwrite(direct, buf, REQUEST_MAX, (off_t)at) != REQUEST_MAX) {
			close(direct);
			direct = -1;
		}
	}
	free(buf);
	return direct;
}

int main(int argc, char **argv)
{
	static const uint64_t pieces[] = {16u << 10, 64u << 10, 256u << 10};
	static const int threads[] = {1, 4, 16};
	uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 256;
	int fd = mib > 0 && mib <= 65536 ? make_file(mib << 20) : -1;

	if (fd < 0) {
		fprintf(stderr, "gaps: cannot make a file of %s MiB here\n",
			argc > 1 ? argv[1] : "256");
		return 1;
	}
	printf("threads  piece    asked for each / read over, by gap of KiB\n%17s", "");
	for (uint64_t gap = 4u << 10; gap <= 512u << 10; gap *= 2)
		printf("%7u", (unsigned)(gap >> 10));
	printf("   not slower up to\n");
	for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++) {
		for (size_t k = 0; k < sizeof(pieces) / sizeof(pieces[0]); k++) {
			uint64_t best = 0;
			bool over = true;

			printf("%7d %5u KiB", threads[i], (unsigned)(pieces[k] >> 10));
			for (uint64_t gap = 4u << 10; gap <= 512u << 10; gap *= 2) {
				double r = ratio(fd, mib << 20, pieces[k], gap, threads[i]);

				over = over && r >= 1;
				best = over ? gap : best;
				printf("%7.2f", r);
				fflush(stdout);
			}
			printf("   %u KiB\n", (unsigned)(best >> 10));
		}
	}
	close(fd);
	return 0;
}
