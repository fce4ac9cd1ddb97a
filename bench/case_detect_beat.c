/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_detect_beat.c - how long ckpt_beat() keeps a trainer.
 *
 *   detect.beat.p99   the 99th of 100 calls, one reading of the clock included; ckptd looks at the
 *                     page meanwhile, as often as it does
 *
 * Limit: a reading of the clock and a memcpy of as many bytes as a beat writes, into a ring as
 * large, measured in the same way. Told beside it: the same without ckptd, and with caches that
 * other work has filled between two calls, as training does.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench/server.h"
#include "ckpt.h"
#include "proto/beat_page.h"

#define ROUNDS     30
#define CALLS      20000
#define COLD_CALLS 300
#define COLD_BYTES (16 * MIB)
#define P99_TARGET 200
#define CONNECT_MS 5000

struct beats {
	struct server server;
	struct ckpt *c;
	uint64_t step;
	struct beat_entry *ring; /* of the limit: in shared memory, too */
	uint8_t *other;          /* what training does to the caches */
	uint32_t *took;          /* ns of each call of a round */
	struct series p99;
	double p50, worst, cold_p50, cold_p99;
};

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static double of_sorted(const uint32_t *took, unsigned n, double share)
{
	return took[(unsigned)(share * (n - 1))];
}

static void beat(struct beats *w)
{
	struct ckpt_beat b = {.size = sizeof(b),
			      .step = ++w->step,
			      .flags = CKPT_BEAT_LOSS | CKPT_BEAT_GRAD_NORM | CKPT_BEAT_TOKENS |
				       CKPT_BEAT_METRIC(0),
			      .loss = 2.5,
			      .grad_norm = 1,
			      .tokens = 4096};

	ckpt_beat(w->c, &b);
}

/* What cannot be done without. */
static void bare(struct beats *w)
{
	uint64_t words[sizeof(struct beat_entry) / 8] = {++w->step};

	words[1] = now_ns();
	memcpy(&w->ring[w->step % BEAT_ENTRIES], words, sizeof(words));
	__asm__ volatile("" ::: "memory");
}

static void measure(struct beats *w, void (*call)(struct beats *), unsigned calls, bool cold)
{
	for (unsigned i = 0; i < calls; i++) {
		uint64_t begin;

		if (cold)
			memset(w->other, (int)i, COLD_BYTES);
		begin = now_ns();
		call(w);
		w->took[i] = (uint32_t)(now_ns() - begin);
	}
	qsort(w->took, calls, sizeof(*w->took), by_size);
}

static double round_of(struct beats *w, void (*call)(struct beats *))
{
	measure(w, call, CALLS, false);
	return of_sorted(w->took, CALLS, 0.99);
}

static void rounds(struct beats *w)
{
	double p50[ROUNDS], value;

	round_of(w, beat); /* pages, caches */
	round_of(w, bare);
	for (int i = 0; i < ROUNDS; i++) {
		value = round_of(w, beat);
		p50[i] = of_sorted(w->took, CALLS, 0.5);
		if (w->took[CALLS - 1] > w->worst)
			w->worst = w->took[CALLS - 1];
		series_add(&w->p99, value, round_of(w, bare));
	}
	w->p50 = median(p50, ROUNDS);
	measure(w, beat, COLD_CALLS, true);
	w->cold_p50 = of_sorted(w->took, COLD_CALLS, 0.5);
	w->cold_p99 = of_sorted(w->took, COLD_CALLS, 0.99);
}

static double without_ckptd(struct beats *w)
{
	struct series s = {.n = 0};

	for (int i = 0; i < ROUNDS; i++)
		series_add(&s, round_of(w, beat), 1);
	return median(s.value, s.n);
}

static int start(struct beats *w, struct bench *b, struct err *e)
{
	static const char *const sets[4];
	struct ckpt_options o = {.size = sizeof(o), .connect_timeout_ms = CONNECT_MS};
	int r;

	w->ring = mmap(NULL, sizeof(struct beat_entry) * BEAT_ENTRIES, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	w->other = malloc(COLD_BYTES);
	w->took = calloc(CALLS, sizeof(*w->took));
	if (w->ring == MAP_FAILED || !w->other || !w->took)
		return err_code(e, -ENOMEM, "measure beats");
	r = server_start(&w->server, b, true, sets, e);
	if (r < 0)
		return r;
	o.socket = w->server.socket;
	r = ckpt_open("beats", 0, 1, &o, &w->c);
	if (r >= 0)
		r = ckpt_metric(w->c, "lr");
	return r < 0 ? err_set(e, r, "%s", ckpt_last_error(NULL)) : 0;
}

void cases_detect_beat(struct bench *b)
{
	struct figure f = {.name = "detect.beat.p99",
			   .unit = "ns",
			   .target = P99_TARGET,
			   .target_of = TARGET_VALUE,
			   .faults = -1,
			   .limit_name = "clock_gettime() and memcpy of the same bytes"};
	static struct beats w;
	struct err e = {0};
	int r;

	if (!wanted(b, f.name))
		return;
	r = start(&w, b, &e);
	if (r == 0)
		rounds(&w);
	server_stop(&w.server);
	if (r == 0) {
		figure_of(&f, &w.p99);
		snprintf(f.note, sizeof(f.note),
			 "p50 %.0f, longest %.0f; without ckptd p99 %.0f; caches full of other "
			 "work: p50 %.0f, p99 %.0f",
			 w.p50, w.worst, without_ckptd(&w), w.cold_p50, w.cold_p99);
		report(b, &f);
	} else {
		cannot(b, f.name, &e);
	}
	ckpt_close(w.c);
	free(w.other);
	free(w.took);
}
