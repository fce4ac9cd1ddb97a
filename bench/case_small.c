/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_small.c - what a save costs where bytes cost nothing: 1 MiB in 50 tensors.
 *
 *   small.sealed.p50   the call of ckpt_save(), us; beside a memcpy of as many bytes and one
 *                      message there and back to a process that sleeps
 *   small.durable.p50  from the call of ckpt_save() to the return of ckpt_wait(DURABLE), us; beside
 *                      the same system calls on files, bare (bare.c)
 *
 * Steps are a few milliseconds apart, so that what follows DURABLE (index, retention) is over when
 * the next begins, as it is in training.
 */
#include <config.h>

#include <stdio.h>

#include "bench/server.h"
#include "bench/trainer.h"

#define PAIRS 200
#define WARM_UP 20
#define APART_MS 15
#define STATE_BYTES MIB
#define TENSORS 50

struct small {
	struct server server;
	struct trainer trainer;
	struct series sealed, durable;
	char folder[240];
	uint64_t step;
	long faults;
};

static int start(struct small *s, struct bench *b, struct err *e)
{
	static const char *const sets[4] = { "retention.keep_last=1" };
	struct order state = { .kind = ORDER_STATE, .bytes = STATE_BYTES, .tensors = TENSORS };
	struct order open = { .kind = ORDER_OPEN, .job = "small", .run = "1", .world = 1 };
	struct answer a;
	int r = server_start(&s->server, b, true, sets, e);

	snprintf(s->folder, sizeof(s->folder), "%s/bare", b->folder);
	if (r == 0)
		r = trainer_start(&s->trainer, e);
	if (r == 0)
		r = trainer_ask(&s->trainer, &state, &a, e);
	snprintf(open.socket, sizeof(open.socket), "%.119s", s->server.socket);
	return r < 0 ? r : trainer_ask(&s->trainer, &open, &a, e);
}

static int timed(struct small *s, enum order_kind kind, struct answer *a, struct err *e)
{
	struct order o = { .kind = kind, .step = s->step };

	snprintf(o.folder, sizeof(o.folder), "%s", s->folder);
	pause_ms(APART_MS);
	return trainer_ask(&s->trainer, &o, a, e);
}

static int pair(struct small *s, bool counts, struct err *e)
{
	struct answer ping, bare, save;
	int r = timed(s, ORDER_PING, &ping, e);

	s->step++;
	if (r == 0)
		r = timed(s, ORDER_BARE, &bare, e);
	if (r == 0)
		r = timed(s, ORDER_DURABLE, &save, e);
	if (r < 0)
		return r;
	if (save.faults > s->faults)
		s->faults = save.faults;
	if (!counts)
		return 0;
	series_add(&s->sealed, (double)(save.sealed - save.begin) / 1e3,
		   (double)(ping.end - ping.begin) / 1e3);
	series_add(&s->durable, (double)(save.end - save.begin) / 1e3,
		   (double)(bare.end - bare.begin) / 1e3);
	return 0;
}

void cases_small(struct bench *b)
{
	struct figure sealed = { .name = "small.sealed.p50", .unit = "us", .target = 300,
				 .target_of = TARGET_VALUE,
				 .limit_name = "memcpy, and a message there and back" };
	struct figure durable = {.name = "small.durable.p50",
				 .unit = "us",
				 .target = 1.25,
				 .target_of = TARGET_RATIO,
				 .faults = -1,
				 .limit_name = "the same system calls on files, bare"};
	static struct small s;
	struct err e = { 0 };
	int r;

	if (!wanted(b, sealed.name) && !wanted(b, durable.name))
		return;
	r = start(&s, b, &e);
	for (int i = 0; i < WARM_UP + PAIRS && r == 0; i++)
		r = pair(&s, i >= WARM_UP, &e);
	trainer_stop(&s.trainer);
	server_stop(&s.server);
	if (r < 0) {
		cannot(b, sealed.name, &e);
		return;
	}
	sealed.faults = s.faults;
	figure_of(&sealed, &s.sealed);
	figure_of(&durable, &s.durable);
	if (wanted(b, sealed.name))
		report(b, &sealed);
	if (wanted(b, durable.name))
		report(b, &durable);
}
