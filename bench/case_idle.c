/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_idle.c - what ckptd costs while nothing happens: one job open, prepared and saved, idle.
 *
 *   idle.cpu   CPU time of all threads of ckptd and of its supervisor, per cent of a core
 *   idle.rss   their resident memory without slots, bytes (server.c has the definition)
 *
 * Reading the copies of a checkpoint again, once, is work and not idleness: it goes at full rate
 * here and is over when the measurement begins.
 *
 * There is no physical limit of doing nothing: the limit printed is the target.
 */
#include <config.h>

#include <stdio.h>

#include "bench/server.h"
#include "bench/trainer.h"

#define WINDOWS 10
#define WINDOW_MS 1000
#define SETTLE_MS 6000
#define STATE_BYTES GIB
#define CPU_TARGET 0.5
#define RSS_TARGET (96 * MIB)

struct idle {
	struct server server;
	struct trainer trainer;
	struct series cpu, rss;
};

static int start(struct idle *i, struct bench *b, struct err *e)
{
	static const char *const sets[4] = { "memory.slots=2", "trust.recheck_rate=1T" };
	struct order state = { .kind = ORDER_STATE, .bytes = STATE_BYTES };
	struct order open = { .kind = ORDER_OPEN, .job = "idle", .run = "1", .world = 1 };
	struct order save = { .kind = ORDER_DURABLE, .step = 1 };
	struct answer a;
	int r = server_start(&i->server, b, true, sets, e);

	if (r == 0)
		r = trainer_start(&i->trainer, e);
	if (r == 0)
		r = trainer_ask(&i->trainer, &state, &a, e);
	snprintf(open.socket, sizeof(open.socket), "%.119s", i->server.socket);
	if (r == 0)
		r = trainer_ask(&i->trainer, &open, &a, e);
	if (r == 0)
		r = trainer_ask(&i->trainer, &save, &a, e);
	pause_ms(SETTLE_MS);
	return r;
}

static int window(struct idle *i, struct err *e)
{
	uint64_t before, after, rss, begin = now_ns();
	int r = server_cpu(&i->server, &before, e);

	pause_ms(WINDOW_MS);
	if (r == 0)
		r = server_cpu(&i->server, &after, e);
	if (r == 0)
		series_add(&i->cpu, 100 * seconds(after - before) / seconds(now_ns() - begin),
			   CPU_TARGET);
	if (r == 0)
		r = server_rss(&i->server, &rss, e);
	if (r == 0)
		series_add(&i->rss, (double)rss, RSS_TARGET);
	return r;
}

static double mean(const struct series *s)
{
	double sum = 0;

	for (int i = 0; i < s->n; i++)
		sum += s->value[i];
	return sum / s->n;
}

void cases_idle(struct bench *b)
{
	struct figure cpu = { .name = "idle.cpu", .unit = "% of a core", .target = CPU_TARGET,
			      .target_of = TARGET_VALUE, .faults = -1, .limit_name = "target" };
	struct figure rss = { .name = "idle.rss", .unit = "bytes", .target = RSS_TARGET,
			      .target_of = TARGET_VALUE, .faults = -1, .limit_name = "target" };
	static struct idle i;
	struct err e = { 0 };
	int r;

	if (!wanted(b, cpu.name) && !wanted(b, rss.name))
		return;
	r = start(&i, b, &e);
	for (int n = 0; n < WINDOWS && r == 0; n++)
		r = window(&i, &e);
	trainer_stop(&i.trainer);
	server_stop(&i.server);
	if (r < 0) {
		cannot(b, cpu.name, &e);
		return;
	}
	figure_of(&cpu, &i.cpu);
	cpu.value = mean(&i.cpu); /* of all the time: a median would hide what comes now and then */
	cpu.ratio = cpu.value / CPU_TARGET;
	figure_of(&rss, &i.rss);
	if (wanted(b, cpu.name))
		report(b, &cpu);
	if (wanted(b, rss.name))
		report(b, &rss);
}
