/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_stall.c - how long a save keeps the trainer.
 *
 *   save.stall.1rank   1 GiB in one rank          beside one memcpy of it into a populated memfd
 *   save.stall.4rank   4 ranks of 256 MiB         beside four such processes at the same time
 *   save.first         the first save of 1 GiB    beside the later ones of the same process
 *
 * A stall of several ranks is from the order to the slowest one's return. Nothing is written to
 * disk meanwhile, and each save begins when the one before it is COMMITTED, as saves do that are
 * steps apart. No save may touch a fresh page: ru_minflt is looked at around each, the first
 * included; the cases fail when it rises. Of the longest save is said how much of it was waiting
 * for a core: that part is the machine's load, which no save can help.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "bench/server.h"
#include "bench/trainer.h"

#define RANKS_MAX 4
#define STALL_PAIRS 15
#define FIRST_PAIRS 7
#define LATER 3
#define STATE_BYTES GIB

/* Two slots are enough for saves that wait for one another, and sooner made. */
static const char *const no_disk[4] = { "checkpoint.persist_every=1000000", "memory.slots=2" };

struct crew {
	struct trainer trainers[RANKS_MAX];
	struct server *server;
	int world;
	uint64_t step;
	long faults; /* the most in any save */
	struct answer longest; /* of the saves */
};

/* All ranks the same order; the time from the first one's begin to the last one's end. */
static int all_do(struct crew *c, struct order *o, double *ret_s, struct err *e)
{
	uint64_t begin = UINT64_MAX, end = 0;
	struct answer a;
	int r = 0;

	o->world = c->world;
	for (o->rank = 0; o->rank < c->world && r == 0; o->rank++)
		r = trainer_send(&c->trainers[o->rank], o, e);
	for (int i = 0; i < c->world && r == 0; i++) {
		r = trainer_receive(&c->trainers[i], &a, e);
		begin = min_u64(begin, a.begin);
		end = max_u64(end, a.end);
		if (r < 0 || o->kind != ORDER_SAVE)
			continue;
		if (a.faults > c->faults)
			c->faults = a.faults;
		if (a.end - a.begin > c->longest.end - c->longest.begin)
			c->longest = a;
	}
	if (r == 0 && ret_s)
		*ret_s = seconds(end - begin);
	return r;
}

static int crew_start(struct crew *c, struct server *server, int world, const char *run,
		      struct err *e)
{
	struct order state = { .kind = ORDER_STATE, .bytes = STATE_BYTES / (uint64_t)world };
	struct order open = { .kind = ORDER_OPEN, .job = "stall" };
	int r = 0;

	c->server = server;
	snprintf(open.socket, sizeof(open.socket), "%.119s", server->socket);
	snprintf(open.run, sizeof(open.run), "%s", run);
	for (c->world = 0; c->world < world && r == 0; c->world++)
		r = trainer_start(&c->trainers[c->world], e);
	if (r == 0)
		r = all_do(c, &state, NULL, e);
	if (r == 0)
		r = all_do(c, &open, NULL, e);
	return r;
}

static void crew_stop(struct crew *c)
{
	for (int i = 0; i < c->world; i++)
		trainer_stop(&c->trainers[i]);
}

static int crew_save(struct crew *c, double *ret_s, struct err *e)
{
	struct order save = { .kind = ORDER_SAVE, .step = ++c->step };
	struct order wait = { .kind = ORDER_WAIT, .step = c->step, .what = CKPT_COMMITTED };
	int r = all_do(c, &save, ret_s, e);

	return r < 0 ? r : all_do(c, &wait, NULL, e);
}

static int stall_pairs(struct crew *c, struct series *s, struct err *e)
{
	struct order copy = { .kind = ORDER_COPY };
	double stall = 0, limit = 0;
	int r = all_do(c, &copy, &limit, e); /* both have been there before they count */

	if (r == 0)
		r = crew_save(c, &stall, e);
	while (s->n < STALL_PAIRS && r == 0) {
		r = all_do(c, &copy, &limit, e);
		if (r == 0)
			r = crew_save(c, &stall, e);
		if (r == 0)
			series_add(s, stall, limit);
	}
	return r;
}

/* What the longest save was, by the scheduler's count: a copy takes what it takes on a core. */
static void explain(struct figure *f, const struct answer *a)
{
	double all = seconds(a->end - a->begin), ran = seconds(a->ran_ns),
	       queued = seconds(a->queued_ns);

	if (a->ran_ns == 0)
		return;
	snprintf(f->note, sizeof(f->note),
		 "the longest save: %.3f s on a core, %.3f s waiting for one, %.3f s asleep", ran,
		 queued, all > ran + queued ? all - ran - queued : 0.0);
}

static void stall(struct bench *b, const char *name, int world)
{
	static const char *const limits[] = { "one memcpy of 1 GiB into a populated memfd",
					      "4 processes, each one memcpy of 256 MiB into a "
					      "populated memfd" };
	struct figure f = { .name = name, .unit = "s", .limit_name = limits[world > 1],
			    .target = world > 1 ? 1.15 : 1.10 };
	struct server server = { 0 };
	struct series s = { .n = 0 };
	struct crew c = { 0 };
	struct err e = { 0 };
	int r;

	if (!wanted(b, name))
		return;
	r = server_start(&server, b, true, no_disk, &e);
	if (r == 0)
		r = crew_start(&c, &server, world, "1", &e);
	if (r == 0)
		r = stall_pairs(&c, &s, &e);
	crew_stop(&c);
	server_stop(&server);
	if (r < 0) {
		cannot(b, name, &e);
		return;
	}
	figure_of(&f, &s);
	f.faults = c.faults;
	explain(&f, &c.longest);
	report(b, &f);
}

/* A process of its own: its first save, and what later ones take. */
static int first_pair(struct server *server, int n, struct series *s, long *faults, struct err *e)
{
	double first = 0, later[LATER] = { 0 };
	struct crew c = { 0 };
	char run[32];
	int r;

	snprintf(run, sizeof(run), "%d", n);
	r = crew_start(&c, server, 1, run, e);
	if (r == 0)
		r = crew_save(&c, &first, e);
	for (int i = 0; i < LATER && r == 0; i++)
		r = crew_save(&c, &later[i], e);
	crew_stop(&c);
	if (r == 0)
		series_add(s, first, median(later, LATER));
	if (c.faults > *faults)
		*faults = c.faults;
	return r;
}

static void first(struct bench *b)
{
	struct figure f = { .name = "save.first", .unit = "s", .target = 1.3,
			    .limit_name = "later saves of the same process" };
	struct server server = { 0 };
	struct series s = { .n = 0 };
	struct err e = { 0 };
	int r;

	if (!wanted(b, f.name))
		return;
	r = server_start(&server, b, true, no_disk, &e);
	for (int i = 0; i < FIRST_PAIRS && r == 0; i++)
		r = first_pair(&server, i, &s, &f.faults, &e);
	server_stop(&server);
	if (r < 0) {
		cannot(b, f.name, &e);
		return;
	}
	figure_of(&f, &s);
	report(b, &f);
}

void cases_stall(struct bench *b)
{
	stall(b, "save.stall.1rank", 1);
	stall(b, "save.stall.4rank", 4);
	first(b);
}
