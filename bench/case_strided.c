/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_strided.c - matrices cut by columns (row-parallel weights), saved by 2 ranks, loaded by 4:
 * every row of a stored shard goes to two ranks, half each.
 *
 *   load.strided         from disk: GiB/s of all ranks together beside a plain load of the same
 *                        matrices, saved and loaded by 4 ranks; nothing is in the page cache
 *   load.strided.memory  the same from the memory of ckptd
 *
 * The clock runs from the first rank's begin to the last one's end. What was loaded is compared
 * with what was saved, element by element, after the first and the last load.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "bench/server.h"
#include "bench/trainer.h"

#define PAIRS 9
#define STEP  7
#define RANKS 4

struct job {
	const char *name;
	int saved_by;
	struct trainer trainers[RANKS];
};

struct strided {
	struct bench *bench;
	struct server server;
	struct job plain, wide;
	struct series series;
	uint64_t rows;
	uint64_t device, read; /* bytes that the last order, the last load read from devices */
	int tier;
};

/* All ranks get the order at once; the time from the first begin to the last end. */
static int all(struct strided *s, struct job *j, int world, enum order_kind kind, double *ret,
	       struct err *e)
{
	uint64_t begin = UINT64_MAX, end = 0;
	int r = 0, sent = 0;

	s->device = 0;
	for (int i = 0; i < world && r == 0; i++, sent++) {
		struct order o = {
			.kind = kind, .step = STEP, .rank = i, .world = world, .rows = s->rows};

		snprintf(o.job, sizeof(o.job), "%s", j->name);
		snprintf(o.run, sizeof(o.run), "%d", (int)j->trainers[0].pid);
		snprintf(o.socket, sizeof(o.socket), "%.119s", s->server.socket);
		r = trainer_send(&j->trainers[i], &o, e);
	}
	for (int i = 0; i < sent; i++) {
		struct answer a = {0};
		int one = trainer_receive(&j->trainers[i], &a, r == 0 ? e : NULL);

		if (r == 0 && one == 0 && kind == ORDER_LOAD && a.tier != s->tier)
			one = err_set(e, CKPT_ESTATE, "the load came from another tier (%d)",
				      a.tier);
		r = r < 0 ? r : one;
		begin = a.begin < begin ? a.begin : begin;
		end = a.end > end ? a.end : end;
		s->device += a.device;
	}
	if (r == 0 && ret)
		*ret = seconds(end - begin);
	return r;
}

static void stop(struct job *j)
{
	for (int i = 0; i < RANKS; i++)
		trainer_stop(&j->trainers[i]);
}

static int enter(struct strided *s, struct job *j, int world, struct err *e)
{
	int r = 0;

	for (int i = 0; i < world && r == 0; i++)
		r = trainer_start(&j->trainers[i], e);
	if (r == 0)
		r = all(s, j, world, ORDER_MATRIX, NULL, e);
	return r < 0 ? r : all(s, j, world, ORDER_OPEN, NULL, e);
}

static int save(struct strided *s, struct job *j, struct err *e)
{
	int r = enter(s, j, j->saved_by, e);

	if (r == 0)
		r = all(s, j, j->saved_by, ORDER_DURABLE, NULL, e);
	stop(j);
	return r;
}

/* GiB/s into memory that holds something else. */
static int load(struct strided *s, struct job *j, double *ret, struct err *e)
{
	uint64_t bytes = s->bench->mib * MIB;
	double time = 0;
	int r = all(s, j, RANKS, ORDER_SCRUB, NULL, e);

	if (r == 0)
		r = all(s, j, RANKS, ORDER_LOAD, &time, e);
	/* Counted by the kernel, where it counts: once, and all of it. */
	if (r == 0 && s->tier == CKPT_TIER_DISK && s->device > 0 &&
	    (s->device < bytes || s->device > bytes + bytes / 20))
		r = err_set(e, CKPT_ESTATE, "%llu MiB were read from the disk for %llu",
			    (unsigned long long)(s->device >> 20),
			    (unsigned long long)s->bench->mib);
	s->read = s->device;
	if (r == 0)
		*ret = (double)bytes / GIB / time;
	return r;
}

static int check(struct strided *s, struct err *e)
{
	int r = all(s, &s->plain, RANKS, ORDER_CHECK, NULL, e);

	return r < 0 ? r : all(s, &s->wide, RANKS, ORDER_CHECK, NULL, e);
}

static int pairs(struct strided *s, struct err *e)
{
	int r = 0;

	for (int i = 0; i < PAIRS && r == 0; i++) {
		double plain = 0, wide = 0;

		r = load(s, &s->plain, &plain, e);
		if (r == 0)
			r = load(s, &s->wide, &wide, e);
		if (r == 0 && (i == 0 || i + 1 == PAIRS))
			r = check(s, e);
		if (r == 0)
			series_add(&s->series, wide, plain);
	}
	return r;
}

static int measure(struct strided *s, struct err *e)
{
	static const char *const sets[4] = {"memory.slots=2"};
	/* For the load alone: there is no room for a save, and nothing is made for one. */
	static const char *const small[4] = {"memory.slots=2", "memory.budget=64M"};
	int r = server_start(&s->server, s->bench, true, sets, e);

	if (r == 0)
		r = save(s, &s->plain, e);
	if (r == 0)
		r = save(s, &s->wide, e);
	if (r == 0 && s->tier == CKPT_TIER_DISK) {
		server_stop(&s->server);
		r = server_start(&s->server, s->bench, false, small, e);
	}
	if (r == 0)
		r = enter(s, &s->plain, RANKS, e);
	if (r == 0)
		r = enter(s, &s->wide, RANKS, e);
	if (r == 0)
		r = pairs(s, e);
	stop(&s->plain);
	stop(&s->wide);
	server_stop(&s->server);
	return r;
}

static void strided(struct bench *b, const char *name, int tier)
{
	struct figure f = {.name = name,
			   .unit = "GiB/s",
			   .at_least = true,
			   /* In memory nothing waits: each rank verifies twice what it takes. */
			   .target = tier == CKPT_TIER_DISK ? 0.7 : 0.35,
			   .faults = -1,
			   .limit_name = "plain load, the same bytes and ranks"};
	struct strided s = {.bench = b,
			    .plain = {.name = "plain", .saved_by = RANKS},
			    .wide = {.name = "wide", .saved_by = 2},
			    .rows = b->mib * MIB / MATRICES / (MATRIX_COLUMNS * 4),
			    .tier = tier};
	struct err e = {0};

	if (!wanted(b, name))
		return;
	if (measure(&s, &e) < 0) {
		cannot(b, name, &e);
		return;
	}
	figure_of(&f, &s.series);
	if (tier == CKPT_TIER_DISK)
		snprintf(f.note, sizeof(f.note), "%.3f bytes read from the disk for each loaded",
			 (double)s.read / ((double)b->mib * MIB));
	report(b, &f);
}

void cases_strided(struct bench *b)
{
	strided(b, "load.strided", CKPT_TIER_DISK);
	strided(b, "load.strided.memory", CKPT_TIER_MEMORY);
}
