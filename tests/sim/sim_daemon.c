/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_daemon.c - the lives of ckptd: what main.c does, in virtual time.
 *
 *   start: memory, listener, node, index (absent if it cannot be opened) -> ready, or dead and
 *   started again, as its supervisor does -> killed by the driver, at a step or at a fault point
 *   -> started again after a while; or stopped in order, with nothing left behind
 */
#include <config.h>

#include <assert.h>
#include <string.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "ckptd/ledger.h"
#include "ckptd/node_priv.h"
#include "ckptd/refused.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define STOP_NS    (3 * SIM_S)
#define STARTS_MAX 40 /* in a row that fail, in peace */

static void restart(void *arg)
{
	struct daemon *d = arg;

	life_free(d->life);
	d->life = NULL;
	if (!d->sim->powered)
		return; /* whoever took the power starts it */
	daemon_start(d->sim);
}

/* ---- Damage ---- */

struct tearing {
	struct sim *sim;
	bool done;
};

/* What lies behind the last whole record is what a writer leaves that dies in the middle: anything.
 */
static void tear(void *arg, const char *name, uint8_t *base, uint64_t size)
{
	struct tearing *t = arg;
	struct world *w = t->sim->w;
	uint64_t at = 64;
	uint32_t len;

	if (strncmp(name, "ledger.", 7) != 0)
		return;
	while (at + 48 < size && (len = get_le32(base + at)) != 0)
		at += 32 + round_up(len, 8);
	if (at + 128 > size || get_le32(base + at + 4) == 0)
		return; /* nobody was writing here */
	len = 4 + (uint32_t)world_random(w, 60);
	base[at + 32] = (uint8_t)world_random(w, 16);
	for (uint32_t i = 1; i < len; i++)
		base[at + 32 + i] = (uint8_t)(world_one_in(w, 4) ? world_random(w, 16) : 0);
	put_le32(base + at, len);
	put_le32(base + at + 32 + round_up(len, 8), 0);
	t->done = true;
	sim_count(t->sim, torn_ledgers);
	world_note(w, "torn ledger", at, len, 0);
}

/* ---- The end of a life ---- */

static void ended(struct life_hook *hook)
{
	struct daemon *d = container_of(hook, struct daemon, hook);
	struct sim *s = d->sim;
	struct tearing t = {.sim = s};

	if (d->keeper_lost)
		oracle_memory_lost(&s->oracle);
	if (d->point == FAULT_LEDGER_RECORD && world_one_in(s->w, 2))
		keeper_each(s->keeper, tear, &t);
	if (d->point >= 0)
		fault_arm((enum fault_point)d->point, FAULT_NONE, 0, false);
	d->point = -1;
	s->w->crash_at_op = 0;
	d->ready = d->stopping = d->stopped = d->keeper_lost = false;
	d->node = NULL;
	d->index = NULL;
	if (!d->freed)
		world_at(s->w, s->w->now_ns + d->delay_ns, NULL, restart, d);
}

void daemon_kill(struct sim *s)
{
	if (!s->daemon.life || !s->daemon.life->alive)
		return;
	sim_count(s, kills);
	life_kill(s->daemon.life);
}

void daemon_arm(struct sim *s, int point, bool kill, uint64_t after)
{
	if (s->daemon.point >= 0)
		return;
	if (!kill && point == FAULT_LEDGER_RECORD)
		return; /* it only models a death */
	s->daemon.point = point;
	fault_arm((enum fault_point)point, kill ? FAULT_KILL : FAULT_ERROR,
		  fault_hits((enum fault_point)point) + after, false);
}

/* ---- Start ---- */

static void give_up(void *arg)
{
	struct sim *s = arg;

	if (s->daemon.life && s->daemon.life->alive)
		life_kill(s->daemon.life);
}

static void failed(struct daemon *d, const char *text)
{
	struct sim *s = d->sim;

	sim_count(s, failed_starts);
	d->failures++;
	sim_tell(s, "start: %s", text);
	if (s->peace && d->failures > STARTS_MAX)
		sim_accuse(s, "ckptd does not start in peace: %s", text);
	world_at(s->w, s->w->now_ns, NULL, give_up, s);
}

/* This start could not read its log: it is tried again, and looked at by the next check. */
bool daemon_refuses(const struct sim *s, const struct job_id *id)
{
	struct refused_job *r;

	list_each(r, &s->daemon.node->refused, link)
		if (job_id_equal(&r->id, id))
			return !s->profile->good_disk;
	return false;
}

static void on_ready(void *arg, int status, const char *text)
{
	struct daemon *d = arg;

	if (status < 0) {
		failed(d, text);
		return;
	}
	d->ready = true;
	d->failures = 0;
	memory_sim_serves(d->memory);
	world_note(d->sim->w, "ready", 0, 0, 0);
	oracle_started(&d->sim->oracle);
	beats_check_adopted(d->sim);
	made_check(d->sim);
}

static void on_log(void *arg, int level, const struct log_about *about, const char *line)
{
	struct sim *s = arg;

	(void)about;
	sim_tell(s, "ckptd <%d> %s", level, line);
	/* Ranks of the simulator do write a wrong byte now and then. */
	if (s->profile->no_alarm && s->trouble && strstr(line, "alarm, ") &&
	    !strstr(line, "alarm, corrupting"))
		sim_accuse(s, "nothing is wrong but the clock of the day: %s", line);
}

static void on_opened(void *arg, struct conn *c)
{
	node_conn_events.opened(((struct daemon *)arg)->node, c);
}

static void on_message(void *arg, struct conn *c, const void *msg, size_t len, int *fds, size_t n)
{
	node_conn_events.message(((struct daemon *)arg)->node, c, msg, len, fds, n);
}

static void on_closed(void *arg, struct conn *c)
{
	node_conn_events.closed(((struct daemon *)arg)->node, c);
}

static void on_room(void *arg, struct conn *c)
{
	node_conn_events.room(((struct daemon *)arg)->node, c);
}

static void on_process_ended(void *arg, const struct process_id *p)
{
	node_conn_events.process_ended(((struct daemon *)arg)->node, p);
}

static void on_process_exit(void *arg, const struct process_id *p, const struct process_exit *x)
{
	if (node_conn_events.process_exit)
		node_conn_events.process_exit(((struct daemon *)arg)->node, p, x);
}

static const struct conn_events events = {
	.opened = on_opened,
	.message = on_message,
	.closed = on_closed,
	.room = on_room,
	.process_ended = on_process_ended,
	.process_exit = on_process_exit,
};

static struct index *open_index(void *arg, bool *ret_fresh)
{
	struct daemon *d = arg;
	struct err e = {0};

	if (index_sim_open(d->sim->index, &d->index, ret_fresh, &e) < 0)
		d->index = NULL; /* everything works without it */
	return d->index;
}

static void daemon_main(void *arg)
{
	struct daemon *d = arg;
	struct sim *s = d->sim;
	struct life *l = d->life;
	struct env env = {
		.loop = &l->loop,
		.workers = &l->workers,
		.disk = s->disk,
		.rng = &l->rng.rng,
		.joblog_open = oracle_open_log,
		.joblog_arg = s,
		.log = on_log,
		.log_arg = s,
	};
	struct err e = {0};

	env.index_open = open_index;
	env.index_arg = d;
	env.memory = d->memory = memory_sim_open(s->keeper, l);
	env.processes = host_listen(s->host, l, &events, d);
	if (node_new(&env, &s->options, &d->node, &e) < 0) {
		failed(d, e.text);
		return;
	}
	node_start(d->node, on_ready, d);
}

void daemon_start(struct sim *s)
{
	struct daemon *d = &s->daemon;
	struct life_options o = {
		.name = "ckptd",
		.width = {2, 2, 2, 2, 1, 2, 2, 2},
		.disk = s->disk,
		.queue_depth = 4,
		.clock_zero_ns = s->w->now_ns / 2,
	};

	assert(!d->life);
	beats_note_kept(s);
	d->sim = s;
	d->point = -1;
	d->freed = false;
	/* The limit of a record differs between lives. */
	s->options.ledger_inline =
		world_one_in(s->w, 3) ? LEDGER_INLINE_MAX : 100u << world_random(s->w, 5);
	s->options.ledger_slice = 1u << world_random(s->w, 16);
	s->options.release_slice = 1 + (uint32_t)world_random(s->w, 3);
	d->delay_ns = 1 + world_random(s->w, world_one_in(s->w, 4) ? 200 * SIM_MS : 20 * SIM_MS);
	d->life = life_start(s->w, &o, daemon_main, d);
	d->hook.ended = ended;
	list_init(&d->hook.link);
	life_on_end(d->life, &d->hook);
	sim_count(s, starts);
}

/* ---- Orderly stop ---- */

static void on_stopped(void *arg)
{
	struct daemon *d = arg;

	struct sim *s = d->sim;

	d->stopped = true;
	if (s->profile->good_disk && s->w->now_ns - d->stop_ns < STOP_NS)
		oracle_stopped(&s->oracle, !s->outage_ns && s->outage_end_ns < d->stop_ns);
}

static void stop(void *arg)
{
	struct daemon *d = arg;

	d->stop_ns = d->sim->w->now_ns;
	node_stop(d->node, STOP_NS, on_stopped, d);
}

void daemon_stop(struct sim *s)
{
	struct daemon *d = &s->daemon;

	assert(d->life && d->ready && !d->stopping);
	d->stopping = true;
	life_run(d->life, stop, d);
}

bool daemon_stopped(struct sim *s)
{
	return s->daemon.stopped && life_idle(s->daemon.life);
}

static void free_node(void *arg)
{
	struct daemon *d = arg;

	node_free(d->node);
	if (d->index)
		d->index->ops->close(d->index);
}

size_t daemon_end(struct sim *s)
{
	struct daemon *d = &s->daemon;
	size_t held;

	d->freed = true;
	life_run(d->life, free_node, d);
	held = life_end(d->life);
	life_free(d->life);
	d->life = NULL;
	return held;
}
