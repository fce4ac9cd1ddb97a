/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_run.c - one seed: trouble, then peace, then the end.
 *
 *   trouble   jobs run, things go wrong
 *   peace     nothing goes wrong any more: within PEACE_NS of virtual time every job can be opened,
 *             loaded, saved, and be DURABLE again
 *   power     is lost once more: what was acknowledged as DURABLE is the base
 *   quiet     perhaps: no rank lives, what was begun ends, and ckptd reads all copies again
 *   end       an orderly stop leaves nothing behind
 */
#include <config.h>

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/fault.h"
#include "ckptd/node_priv.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define PEACE_NS (60 * SIM_S)
#define STOP_NS  (10 * SIM_S)
#define QUIET_NS (60 * SIM_S)
#define GOAL     2

void sim_accuse(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	if (s->wrong[0])
		return;
	va_start(ap, fmt);
	vsnprintf(s->wrong, sizeof(s->wrong), fmt, ap);
	va_end(ap);
	world_note(s->w, "accused", world_digest(s->wrong, strlen(s->wrong)), 0, 0);
	sim_tell(s, "ACCUSED: %s", s->wrong);
}

void sim_tell(struct sim *s, const char *fmt, ...)
{
	va_list ap;

	if (!s->w->trace)
		return;
	fprintf(stderr, "%12llu us   ", (unsigned long long)(s->w->now_ns / SIM_US));
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

/* ---- The phases ---- */

static bool wrong(void *arg)
{
	struct sim *s = arg;

	if (disk_leak(s->disk))
		sim_accuse(s, "I9: %s", disk_leak(s->disk));
	return s->wrong[0];
}

static bool goal_reached(void *arg)
{
	struct sim *s = arg;

	for (unsigned i = 0; i < s->n_jobs; i++) {
		if (s->jobs[i].goal)
			return s->wrong[0];
	}
	return true;
}

static bool has_stopped(void *arg)
{
	return wrong(arg) || daemon_stopped(arg);
}

static void jobs_begin(struct sim *s)
{
	s->n_jobs = 1 + (unsigned)world_random(s->w, s->profile->jobs);
	for (unsigned i = 0; i < s->n_jobs; i++) {
		struct sim_job *j = &s->jobs[i];

		j->sim = s;
		j->index = i;
		j->uid = 1000 + i;
		j->made = world_one_in(s->w, 4);
		snprintf(j->name, sizeof(j->name), "job-%u", i);
		job_launch(j);
	}
}

static void kill_ranks(struct sim *s)
{
	struct rank *r;

	for (unsigned i = 0; i < s->n_jobs; i++)
		job_kill_all(&s->jobs[i]);
	while ((r = list_first(&s->zombies, struct rank, link)))
		rank_kill(r);
	while ((r = list_first(&s->graves, struct rank, link)))
		rank_kill(r);
}

static void run_trouble(struct sim *s)
{
	daemon_start(s);
	jobs_begin(s);
	chaos_begin(s);
	world_run(s->w, s->w->now_ns + s->profile->trouble_ns, wrong, s);
	chaos_end(s);
}

static void say_unreached(struct sim *s)
{
	for (unsigned i = 0; i < s->n_jobs; i++) {
		if (s->jobs[i].goal)
			sim_accuse(
				s,
				"liveness: %s did not get %u more DURABLE checkpoints in %llu s of "
				"peace",
				s->jobs[i].name, s->jobs[i].goal,
				(unsigned long long)(PEACE_NS / SIM_S));
	}
}

static bool is_ready(void *arg)
{
	struct sim *s = arg;

	return s->wrong[0] || (s->daemon.ready && !s->daemon.stopping);
}

/* One that loads late comes back to steps that it has tried and the others have not. */
static bool goes_along(const struct rank *r)
{
	return rank_alive(r) && !r->forgets && !r->loaded_late;
}

/* Whether all ranks of its newest epoch are left. */
static bool can_go_on(const struct sim *s, const struct sim_job *sj)
{
	struct member *m;
	uint32_t n = 0;
	struct job *j;

	list_each(j, &s->daemon.node->jobs, link) {
		if (strcmp(j->history.job.name, sj->name) != 0)
			continue;
		list_each(m, &j->members, link)
			n += m->epoch == j->history.epoch.number && m->rank < sj->world &&
			     goes_along(sj->ranks[m->rank]);
		return n > 0 && n == sj->world && n == j->history.epoch.world;
	}
	return false;
}

static void run_peace(struct sim *s)
{
	/* Ranks that are all left go on in every second run: drifted, and with few free slots. */
	bool keep = world_one_in(s->w, 2);

	if (!keep)
		kill_ranks(s);
	s->peace = true;
	if (!world_run(s->w, s->w->now_ns + PEACE_NS, is_ready, s))
		sim_accuse(s, "liveness: ckptd did not start in peace");
	for (unsigned i = 0; i < s->n_jobs && !s->wrong[0]; i++) {
		s->jobs[i].goal = GOAL;
		if (!keep || !can_go_on(s, &s->jobs[i]))
			job_launch(&s->jobs[i]);
	}
	if (!world_run(s->w, s->w->now_ns + PEACE_NS, goal_reached, s))
		say_unreached(s);
	world_run(s->w, s->w->now_ns + 4 * SIM_S, wrong, s);
	beats_check_told(s);
	beats_check_time(s);
}

static bool can_be_read(const struct checkpoint *c)
{
	bool files = c->durable == DUR_DONE && c->commit;

	return c->agreed == CP_COMMITTED && c->durable != DUR_GONE && !c->disk_suspect &&
	       !(c->trust & TRUST_BAD) && (files || c->memory);
}

/* What is left to be done for it, though nobody is at work. */
static const char *left_undone(const struct sim *s, const struct checkpoint *c)
{
	bool reads = s->options.recheck_rate > 0 && can_be_read(c);

	return c->agreed == CP_OPEN || c->agreed == CP_COMMITTING       ? "is not decided"
	       : c->agreed == CP_ABORTED && !c->abort_logged            ? "has no abort record"
	       : c->durable == DUR_WANTED || c->durable == DUR_WRITING  ? "is not written"
	       : c->files_left || c->expiring                           ? "is not taken away"
	       : c->works || c->readers                                 ? "is still in use"
	       : reads && trust_level(c->trust) < TRUST_COMPLETE        ? "was not read again"
									: NULL;
}

/* With nobody at work all that was begun ends, and ckptd reads all copies again. */
static void run_quiet(struct sim *s)
{
	struct checkpoint *c;
	struct job *j;

	kill_ranks(s);
	world_run(s->w, s->w->now_ns + QUIET_NS, wrong, s);
	if (!s->daemon.ready)
		sim_accuse(s, "liveness: ckptd ended though nobody works");
	if (s->wrong[0])
		return;
	list_each(j, &s->daemon.node->jobs, link) {
		if (j->persist || epoch_opens(j) || j->retaining || job_has_appends(j))
			sim_accuse(s, "liveness: %s is busy though nobody works",
				   j->history.job.name);
		list_each(c, &j->checkpoints, link) {
			s->counts[COUNT_read_again] += can_be_read(c);
			if (left_undone(s, c))
				sim_accuse(s,
					   "liveness: step %llu of %s %s after a minute without "
					   "work",
					   (unsigned long long)c->step, j->history.job.name,
					   left_undone(s, c));
		}
	}
}

/* The orderly end, perhaps after one more loss of power that the jobs come back from. */
static void run_end(struct sim *s)
{
	size_t held;

	if (!s->wrong[0] && world_one_in(s->w, 2)) {
		for (unsigned i = 0; i < s->n_jobs; i++)
			s->jobs[i].goal = 1;
		power_loss(s);
		if (!world_run(s->w, s->w->now_ns + PEACE_NS, goal_reached, s))
			say_unreached(s);
	}
	if (s->wrong[0])
		return;
	oracle_check_files(&s->oracle);
	if (world_one_in(s->w, 2))
		run_quiet(s); /* else it stops under living ones */
	daemon_stop(s);
	if (!world_run(s->w, s->w->now_ns + STOP_NS, has_stopped, s))
		sim_accuse(s, "liveness: ckptd did not stop in %llu s",
			   (unsigned long long)(STOP_NS / SIM_S));
	if (s->wrong[0])
		return;
	kill_ranks(s);
	world_run(s->w, s->w->now_ns + 100 * SIM_MS, wrong, s);
	held = daemon_end(s);
	if (held)
		sim_accuse(s, "after an orderly stop %zu blocks or descriptors were left", held);
	oracle_check_files(&s->oracle);
}

static void tear_down(struct sim *s)
{
	if (s->daemon.life) {
		s->daemon.freed = true;
		life_free(s->daemon.life);
		s->daemon.life = NULL;
	}
	kill_ranks(s);
	made_kill(s);
	host_free(s->host);
	keeper_free(s->keeper);
	index_store_free(s->index);
	disk_sim_free(s->disk);
	oracle_fini(&s->oracle);
}

bool sim_run(uint64_t seed, const struct profile *p, uint64_t counts[COUNTS], uint64_t *ret_hash,
	     char *why)
{
	struct sim *s = sim_zero(sizeof(*s));
	bool good;

	s->w = world_new(seed);
	s->profile = p;
	s->powered = true;
	s->daemon.point = -1;
	list_init(&s->zombies);
	list_init(&s->graves);
	life_catch_faults(s->w);
	oracle_init(&s->oracle, s);
	chaos_options(s);
	run_trouble(s);
	if (!s->wrong[0])
		run_peace(s);
	if (!s->wrong[0])
		run_end(s);
	for (int f = 0; f < DISK_FAULTS; f++)
		s->counts[COUNT_disk_faults] += disk_fault_count(s->disk, (enum disk_fault)f);
	s->counts[COUNT_runs] = 1;
	s->counts[COUNT_events] = s->w->events;
	s->counts[COUNT_ops] = s->w->ops;
	for (int c = 0; c < COUNTS; c++)
		counts[c] += s->counts[c];
	good = !s->wrong[0];
	memcpy(why, s->wrong, sizeof(s->wrong));
	tear_down(s);
	*ret_hash = world_hash(s->w);
	world_free(s->w);
	life_catch_faults(NULL);
	free(s);
	return good;
}
