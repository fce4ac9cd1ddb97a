/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_chaos.c - what goes wrong in one run, and when: all of it drawn from the seed.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/fault.h"
#include "ckptd/node_priv.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

/* ---- Sizes, policies, rates ---- */

static void node_policies(struct sim *s)
{
	struct world *w = s->w;
	struct node_options *o = &s->options;

	node_options_default(o);
	o->abort_broken = true;
	snprintf(o->name, sizeof(o->name), "sim");
	o->geometry.leaf = 64u << world_random(w, 3);
	o->geometry.chunk = 1024u << world_random(w, 3);
	o->transfer = 8192;
	o->slots = 2 + (uint32_t)world_random(w, 3);
	o->compression = world_one_in(w, 6) ? 1 : 0;
	o->retention.keep_last =
		s->profile->keep_last ? s->profile->keep_last : 1 + (uint32_t)world_random(w, 3);
	o->persist_every = world_one_in(w, 3) ? 1 + (uint32_t)world_random(w, 4) : 1;
	if (s->profile->persist_every)
		o->persist_every = s->profile->persist_every;
	if (s->profile->ask_trust || world_one_in(w, 2)) {
		o->recheck_rate = 1u << (16 + world_random(w, 12));
		o->healthy_steps = 2 * world_random(w, 10);
		o->keep_verified = world_one_in(w, 2);
	}
	o->spare_bytes = world_one_in(w, 3) ? 0 : 1u << 20;
	o->disk_reserve = 1u << 16;
	/* Often none that would hide an attempt which is never finished. */
	o->attempt_timeout_ns =
		world_one_in(w, 2) ? 3600 * SIM_S : 100 * SIM_MS + world_random(w, SIM_S);
	o->settle_timeout_ns = 50 * SIM_MS + world_random(w, SIM_S);
	o->log_trim = 8 + world_random(w, 60);
}

static void disk_rates(struct sim *s, struct disk_options *o)
{
	struct world *w = s->w;

	disk_options_default(o);
	o->op_ns_max = 60 * SIM_US;
	o->sync_ns_max = s->profile->sync_ns ? s->profile->sync_ns : SIM_MS;
	if (!s->profile->good_disk && world_one_in(w, 2))
		disk_options_atlas(o, w);
}

void chaos_options(struct sim *s)
{
	struct world *w = s->w;
	struct disk_options disk;
	struct index_options index = {.op_ns_max = 30 * SIM_US};
	struct keeper_options keeper = {.budget = 64u << 20};
	struct host_options host = {.delay_ns_max = 300 * SIM_US, .pids = 24};

	node_policies(s);
	disk_rates(s, &disk);
	if (world_one_in(w, 3)) {
		index.write_fails = 10;
		index.read_fails = 50;
		index.lost_at_open = 4;
		index.open_fails = 4;
	}
	/* A declaration that finds no memory ends its rank, and an alarm says so. */
	if (!s->profile->no_alarm && world_one_in(w, 4))
		keeper.create_fails = 10u << world_random(w, 3);
	if (!s->profile->good_net && world_one_in(w, 3))
		host.breaks = 30u << world_random(w, 4);
	if (world_one_in(w, 3))
		host.full = 2;
	s->disk = disk_sim_new(w, &disk);
	s->index = index_store_new(w, &index);
	s->keeper = keeper_new(w, &keeper);
	s->host = host_new(w, &host);
}

/* ---- Troubles ---- */

static struct rank *some_rank(struct sim *s)
{
	struct sim_job *j = &s->jobs[world_random(s->w, s->n_jobs)];
	struct rank *r = j->ranks[world_random(s->w, SIM_WORLD)];

	return rank_alive(r) ? r : NULL;
}

static void power_on(void *arg)
{
	struct sim *s = arg;

	s->powered = true;
	if (s->daemon.life)
		life_free(s->daemon.life);
	s->daemon.life = NULL;
	daemon_start(s);
	for (unsigned i = 0; i < s->n_jobs; i++)
		job_launch(&s->jobs[i]);
}

void power_loss(struct sim *s)
{
	struct rank *r;

	if (!s->powered)
		return;
	s->powered = false;
	sim_count(s, power_losses);
	for (unsigned i = 0; i < s->n_jobs; i++) {
		job_kill_all(&s->jobs[i]);
		s->jobs[i].agent_busy = false;
	}
	while ((r = list_first(&s->zombies, struct rank, link)))
		rank_kill(r);
	while ((r = list_first(&s->graves, struct rank, link)))
		rank_kill(r);
	if (s->daemon.life && s->daemon.life->alive)
		life_kill(s->daemon.life);
	made_kill(s);
	world_forget(s->w, &s->daemon);
	disk_power_loss(s->disk);
	index_store_power_loss(s->index);
	keeper_power_loss(s->keeper);
	oracle_memory_lost(&s->oracle);
	world_after(s->w, 1 + world_random(s->w, 50 * SIM_MS), NULL, power_on, s);
}

#define OUTAGE_NS (300 * SIM_MS)
#define LOG_BYTES (16u << 10)
#define SILENT_NS (1500 * SIM_MS) /* without a save, while logs cannot be written */

static const enum disk_fault outage_faults[] = {FAULT_WRITE_EIO, FAULT_NO_SPACE, FAULT_SYNC_EIO};

static void outage_ends(void *arg)
{
	struct sim *s = arg;
	struct disk_options *o = disk_sim_options(s->disk);

	for (int i = 0; i < 3; i++) {
		o->one_in[CLASS_LOG][outage_faults[i]] = 0;
		o->one_in[CLASS_OTHER][outage_faults[i]] = 0;
		o->budget[outage_faults[i]] = 3;
	}
	s->outage_ns = 0;
	s->outage_end_ns = s->w->now_ns;
}

/* The newest COMMITTED, the newest SEALED and the next one have a slot each, and so has one whose
 * commit may be in the log. */
static bool has_slots(const struct sim *s, const char *name)
{
	const struct job *j;

	if (s->options.slots > 3 || !s->daemon.node)
		return true;
	list_each(j, &s->daemon.node->jobs, link)
		if (strcmp(j->history.job.name, name) == 0 && job_is_unclear(j))
			return false;
	return true;
}

static void saves_go_on(struct sim *s, uint64_t since_ns)
{
	uint64_t now = s->w->now_ns;

	for (unsigned i = 0; i < s->n_jobs && s->options.slots > 2 && !s->daemon.stopping; i++) {
		struct sim_job *j = &s->jobs[i];

		if (j->sealed_ns && now - max_u64(j->sealed_ns, since_ns) > SILENT_NS &&
		    has_slots(s, j->name))
			sim_accuse(
				s,
				"I14: nothing was saved in %s for %llu ms while its log could not "
				"be written, or the disk was full",
				j->name, (unsigned long long)(SILENT_NS / SIM_MS));
	}
}

/* Unless the older slots are taken by what may be in the log (I14). */
static void outage_watch(void *arg)
{
	struct sim *s = arg;

	if (!s->outage_ns)
		return;
	saves_go_on(s, s->outage_ns);
	world_after(s->w, 100 * SIM_MS, NULL, outage_watch, s);
}

/* The log cannot be written for a while (I14). */
static void outage(struct sim *s)
{
	struct disk_options *o = disk_sim_options(s->disk);
	uint64_t most = s->profile->outage_ns ? s->profile->outage_ns : OUTAGE_NS;
	enum disk_fault f = outage_faults[world_random(s->w, 3)];
	bool folder = world_one_in(s->w, 3); /* then a record may be there or not */

	if (s->outage_ns)
		return;
	if (folder)
		f = FAULT_SYNC_EIO;
	o->one_in[folder ? CLASS_OTHER : CLASS_LOG][f] = 1;
	o->budget[f] = UINT32_MAX;
	s->outage_ns = s->w->now_ns;
	world_after(s->w, world_random(s->w, most), NULL, outage_ends, s);
	if (s->profile->outage_ns && !folder)
		world_after(s->w, 100 * SIM_MS, NULL, outage_watch, s);
	sim_count(s, outages);
}

static void full_ends(void *arg)
{
	struct sim *s = arg;

	if (s->disk_bytes)
		disk_sim_options(s->disk)->bytes = s->disk_bytes;
	s->disk_bytes = 0;
}

/* What is less than the reserve is for logs alone; and saves go on. Two writers may have looked at
 * the same time: they look again, and one gives back what it took. */
static void full_watch(void *arg)
{
	struct sim *s = arg;
	uint64_t left = 0, total = 0;
	uint64_t bulk = disk_used_by(s->disk, CLASS_SHARD) + disk_used_by(s->disk, CLASS_SPARE);

	if (!s->disk_bytes)
		return;
	ignore_result(s->disk->ops->space(s->disk, &left, &total));
	if (left + LOG_BYTES >= s->options.disk_reserve)
		s->bulk = bulk; /* it left the reserve, of which the log took some since */
	if (bulk <= s->bulk)
		s->bulk_seen = 0;
	else if (++s->bulk_seen > 3)
		sim_accuse(
			s,
			"I14: checkpoints took %llu bytes when %llu were free and %llu are kept in "
			"reserve",
			(unsigned long long)(bulk - s->bulk), (unsigned long long)left,
			(unsigned long long)s->options.disk_reserve);
	s->bulk = min_u64(s->bulk, bulk);
	if (s->profile->outage_ns && !s->outage_ns)
		saves_go_on(s, max_u64(s->full_ns, s->outage_end_ns));
	world_after(s->w, 5 * SIM_MS, NULL, full_watch, s);
}

/* Others fill the disk, for a while: sometimes to the last byte. */
static void full(struct sim *s)
{
	struct disk_options *o = disk_sim_options(s->disk);
	uint64_t most = s->profile->outage_ns ? s->profile->outage_ns : OUTAGE_NS;
	uint64_t left = 0, total = 0;

	if (s->disk_bytes)
		return;
	ignore_result(s->disk->ops->space(s->disk, &left, &total));
	s->disk_bytes = o->bytes;
	o->bytes = total - left + world_random(s->w, s->options.disk_reserve);
	s->bulk = UINT64_MAX;
	s->bulk_seen = 0;
	s->full_ns = s->w->now_ns;
	world_after(s->w, 10 * SIM_MS, NULL, full_watch, s);
	world_after(s->w, world_random(s->w, most), NULL, full_ends, s);
	sim_count(s, full);
}

static void keeper_dies(struct sim *s)
{
	keeper_die(s->keeper);
	beats_note_kept(s);
	sim_count(s, keeper_deaths);
	if (s->daemon.life && s->daemon.life->alive && s->daemon.ready)
		s->daemon.keeper_lost = true; /* what it has mapped is there as long as it lives */
	else
		oracle_memory_lost(&s->oracle);
	if (world_one_in(s->w, 2))
		daemon_kill(s);
}

static void end_run(struct sim *s, bool remove)
{
	struct sim_job *j;

	if (!s->powered)
		return;
	j = &s->jobs[world_random(s->w, s->n_jobs)];
	if (remove)
		job_remove(j);
	else
		job_launch(j);
}

static void index_lost(struct sim *s)
{
	daemon_kill(s);
	index_store_lose(s->index);
	sim_count(s, index_losses);
}

#define STOP_WAIT_NS (4 * SIM_S)

static void start_again(void *arg)
{
	struct sim *s = arg;

	if (s->powered && !s->daemon.life)
		daemon_start(s);
}

static void stop_waited(void *arg)
{
	struct sim *s = arg;

	/* As its service manager does: what has not stopped by itself by then is killed. Not one
	 * that was told after the one that was waited for had died. */
	if (!s->daemon.life || !s->daemon.stopping ||
	    s->w->now_ns - s->daemon.stop_ns < STOP_WAIT_NS - SIM_S)
		return;
	if (!daemon_stopped(s)) {
		daemon_kill(s);
		return;
	}
	sim_count(s, stops);
	if (daemon_end(s) != 0)
		sim_accuse(s, "after an orderly stop there was something left");
	world_after(s->w, SIM_MS, NULL, start_again, s);
}

static void stop_orderly(struct sim *s)
{
	if (!s->daemon.life || !s->daemon.ready || s->daemon.stopping)
		return;
	daemon_stop(s);
	world_after(s->w, STOP_WAIT_NS, NULL, stop_waited, s);
}

/* Somebody, or the file system's repair, removes COMMIT or a shard's file while no ckptd runs. */
static void lose_name(struct sim *s, bool shard)
{
	if (s->oracle.n_jobs == 0 || s->profile->good_disk)
		return;
	daemon_kill(s);
	oracle_lose_name(&s->oracle, &s->oracle.jobs[world_random(s->w, s->oracle.n_jobs)], shard);
}

static int some_point(struct sim *s)
{
	int point = (int)world_random(s->w, FAULT_POINTS);

	return s->profile->one_point ? s->profile->point : point;
}

static void kill_at_point(struct sim *s)
{
	struct world *w = s->w;

	daemon_arm(s, some_point(s), true, 1 + world_random(w, world_one_in(w, 2) ? 2 : 10));
	sim_count(s, kills_at_point);
}

static void error_at_point(struct sim *s)
{
	daemon_arm(s, some_point(s), false, 1 + world_random(s->w, 4));
	sim_count(s, errors_at_point);
}

static void look_at_clock(void *arg)
{
	beats_check_time(arg);
}

/*
 * Somebody sets the clock of the day, an hour forward or back. The same is seen when the machine
 * comes out of a suspension: all clocks but that one stood still.
 */
static void set_clock(struct sim *s)
{
	uint64_t hour = 3600 * SIM_S;

	s->w->wall_zero_ns += world_one_in(s->w, 2) ? hour : -hour;
	world_after(s->w, 100 * SIM_MS, NULL, look_at_clock, s);
	sim_count(s, clock_set);
}

static void sever(struct sim *s, struct rank *r)
{
	if (!r)
		return;
	rank_sever(r);
	sim_count(s, breaks);
}

static void trouble(struct sim *s, enum trouble t)
{
	struct world *w = s->w;
	struct rank *r = some_rank(s);

	world_note(w, "trouble", t, 0, 0);
	switch (t) {
	case TROUBLE_kill:
		daemon_kill(s);
		break;
	case TROUBLE_kill_at_op:
		w->crash_at_op = w->ops + 1 + world_random(w, 200);
		sim_count(s, kills_at_op);
		break;
	case TROUBLE_kill_at_point:
		if (s->daemon.life && s->daemon.life->alive)
			kill_at_point(s);
		break;
	case TROUBLE_error_at_point:
		if (s->daemon.life && s->daemon.life->alive)
			error_at_point(s);
		break;
	case TROUBLE_power:
		power_loss(s);
		break;
	case TROUBLE_keeper:
		keeper_dies(s);
		break;
	case TROUBLE_index:
		index_lost(s);
		break;
	case TROUBLE_sever:
		sever(s, r);
		break;
	case TROUBLE_kill_rank:
		if (r) {
			sim_count(s, rank_kills);
			job_rank_gone(r->job, r);
		}
		break;
	case TROUBLE_relaunch:
	case TROUBLE_remove_job:
		end_run(s, t == TROUBLE_remove_job);
		break;
	case TROUBLE_stop:
		stop_orderly(s);
		break;
	case TROUBLE_outage:
		outage(s);
		break;
	case TROUBLE_full:
		full(s);
		break;
	case TROUBLE_flip:
		damage_file(s);
		break;
	case TROUBLE_flip_memory:
		damage_memory(s);
		break;
	case TROUBLE_lose_commit:
	case TROUBLE_lose_file:
		lose_name(s, t == TROUBLE_lose_file);
		break;
	case TROUBLE_clock:
		set_clock(s);
		break;
	case TROUBLES:
		break;
	}
}

static void draw(void *arg)
{
	struct sim *s = arg;
	unsigned sum = 0, at;
	int t;

	if (!s->trouble)
		return;
	for (t = 0; t < TROUBLES; t++)
		sum += s->profile->weight[t];
	at = (unsigned)world_random(s->w, sum);
	for (t = 0; at >= s->profile->weight[t]; t++)
		at -= s->profile->weight[t];
	trouble(s, (enum trouble)t);
}

void chaos_begin(struct sim *s)
{
	unsigned n = (unsigned)world_random(s->w, s->profile->events + 1);

	s->trouble = true;
	damage_watch(s);
	made_begin(s);
	for (unsigned i = 0; i < n; i++)
		world_at(s->w, s->w->now_ns + world_random(s->w, s->profile->trouble_ns), NULL,
			 draw, s);
}

void chaos_end(struct sim *s)
{
	struct disk_options *o = disk_sim_options(s->disk);

	s->trouble = false;
	s->outage_ns = 0;
	full_ends(s);
	for (int c = 0; c < DISK_CLASSES; c++)
		for (int f = 0; f < DISK_FAULTS; f++)
			o->one_in[c][f] = 0;
	keeper_options(s->keeper)->create_fails = 0;
	host_options(s->host)->breaks = 0;
	*index_store_options(s->index) = (struct index_options){.op_ns_max = 30 * SIM_US};
	s->w->crash_at_op = 0;
	if (s->daemon.point >= 0)
		fault_arm((enum fault_point)s->daemon.point, FAULT_NONE, 0, false);
	s->daemon.point = -1;
}
