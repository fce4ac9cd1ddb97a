/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_resume.c - 4 x 256 MiB back into new processes after SIGKILL of all ranks, ckptd lives.
 *
 *   resume.warm  seconds from the first rank's open to the last rank's state being loaded, beside
 *                the load alone by the same processes, later; the target is 1.3 times that and
 *                20 ms
 *
 * Each run is a restart, the first like the last: nothing is warmed up. The first save behind the
 * load is made SAVE_MS later, when a training job would be at its first step; its time is a note.
 */
#include <config.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "bench/server.h"
#include "bench/trainer.h"
#include "ckpt.h"

#define RANKS       4
#define RESTARTS    10
#define STATE_BYTES (256 * MIB)
#define SAVE_MS     1500
#define SLACK_S     0.020

struct resume {
	struct bench *bench;
	struct server server;
	struct trainer ranks[RANKS];
	struct series total;
	double saves[RESTARTS];
	uint64_t step;
};

/* All ranks at a time: from the first's begin to the last's end. */
static int ask_all(struct resume *x, struct order o, double *ret_s, struct err *e)
{
	uint64_t begin = UINT64_MAX, end = 0;
	struct answer a;
	int r = 0;

	snprintf(o.socket, sizeof(o.socket), "%.119s", x->server.socket);
	snprintf(o.job, sizeof(o.job), "resume");
	snprintf(o.run, sizeof(o.run), "%d", (int)x->ranks[0].pid);
	o.world = RANKS;
	o.bytes = STATE_BYTES;
	for (int i = 0; i < RANKS && r == 0; i++) {
		o.rank = i;
		r = trainer_send(&x->ranks[i], &o, e);
	}
	for (int i = 0; i < RANKS && r == 0; i++) {
		r = trainer_receive(&x->ranks[i], &a, e);
		begin = a.begin < begin ? a.begin : begin;
		end = a.end > end ? a.end : end;
	}
	*ret_s = r == 0 && end > begin ? seconds(end - begin) : 0;
	return r;
}

static int start(struct resume *x, struct err *e)
{
	double ignored;
	int r = 0;

	for (int i = 0; i < RANKS && r == 0; i++)
		r = trainer_start(&x->ranks[i], e);
	return r < 0 ? r : ask_all(x, (struct order){.kind = ORDER_STATE}, &ignored, e);
}

static void kill_all(struct resume *x)
{
	for (int i = 0; i < RANKS; i++)
		if (x->ranks[i].pid > 0)
			kill(x->ranks[i].pid, SIGKILL);
	for (int i = 0; i < RANKS; i++)
		trainer_stop(&x->ranks[i]);
}

static int save(struct resume *x, double *ret_s, struct err *e)
{
	double ignored;
	int r = ask_all(x, (struct order){.kind = ORDER_SAVE, .step = ++x->step}, ret_s, e);

	return r < 0 ? r
		     : ask_all(x,
			       (struct order){
				       .kind = ORDER_WAIT, .step = x->step, .what = CKPT_COMMITTED},
			       &ignored, e);
}

static int restart(struct resume *x, int i, struct err *e)
{
	double total, alone;
	int r = start(x, e);

	if (r == 0)
		r = ask_all(x, (struct order){.kind = ORDER_RESUME, .step = CKPT_LATEST}, &total,
			    e);
	pause_ms(SAVE_MS);
	if (r == 0)
		r = save(x, &x->saves[i], e);
	if (r == 0)
		r = ask_all(x, (struct order){.kind = ORDER_LOAD, .step = x->step}, &alone, e);
	if (r == 0) {
		series_add(&x->total, total, alone + SLACK_S / 1.3);
		say(x->bench,
		    "  restart %2d: loaded after %.3f s, the load alone %.3f s, first save %.3f s",
		    i + 1, total, alone, x->saves[i]);
	}
	kill_all(x);
	return r;
}

static int measure(struct resume *x, struct err *e)
{
	static const char *const sets[4] = {"checkpoint.persist_every=1000000"};
	double ignored;
	int r = server_start(&x->server, x->bench, true, sets, e);

	if (r == 0)
		r = start(x, e);
	if (r == 0)
		r = ask_all(x, (struct order){.kind = ORDER_OPEN}, &ignored, e);
	if (r == 0)
		r = save(x, &ignored, e);
	kill_all(x);
	for (int i = 0; i < RESTARTS && r == 0; i++)
		r = restart(x, i, e);
	kill_all(x);
	server_stop(&x->server);
	return r;
}

void cases_resume(struct bench *b)
{
	struct figure f = {.name = "resume.warm",
			   .unit = "s",
			   .target = 1.3,
			   .faults = -1,
			   .limit_name = "the load alone, and 20 ms / 1.3"};
	static struct resume x;
	struct err e = {0};

	if (!wanted(b, f.name))
		return;
	x.bench = b;
	if (measure(&x, &e) < 0) {
		cannot(b, f.name, &e);
		return;
	}
	figure_of(&f, &x.total);
	snprintf(f.note, sizeof(f.note), "first save %d ms later, median %.3f s", SAVE_MS,
		 median(x.saves, RESTARTS));
	report(b, &f);
}
