/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill_points.c - SIGKILL of ckptd at every named fault point.
 *
 * For each point of base/faults.def: ckptd kills itself at the point's n-th hit, n = 1, 3, 8, ...
 * until a whole life passes without it, in three situations:
 *
 *   fresh    the first life of a folder; ckptd is supervised
 *   cold     a life that finds a half-done expiry and persist, objects that nothing uses, and all
 *            memory lost; and a damaged log, where the point is about that
 *   adopted  a life that finds its predecessor's snapshots in the fd store
 *
 * with trainers that live on and train on, or that die at that moment. Afterwards another ckptd
 * serves: what all ranks had sealed, so all that was COMMITTED, is restorable and is the newest
 * at most; all that is listed loads, every byte compared; what was DURABLE is on disk, or expired
 * behind CRASH_KEEP newer ones. A point that never fires in any situation is a failure.
 *
 * CKPT_KILL_HITS: how many different n of each point in the first situation.
 */
#include <config.h>

#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "ckpt.h"
#include "tests/lib/rig.h"
#include "tests/lib/test.h"

#define JOBS 6
#define WORLD 2u
#define ELEMENTS 30000ul
#define DECLARE "declare %lu %u %s"
#define SMALL 120u /* tables large enough that the ledger is rewritten */
#define LONG  700u /* with long names: tables and declarations too long for records of the ledger */
#define STEPS 14u
#define KEEP_LAST 2
#define STEPS_MAX 64
#define SLICE_MS 5

enum situation { FRESH, COLD, ADOPTED, SITUATIONS };
static const char *const situation_names[] = { "fresh", "cold", "adopted" };

/* How often each point killed; shared by all tests. */
static _Atomic unsigned *fired_count;

/* One life that is hit. */
struct life {
	struct rig rig;
	enum fault_point point;
	uint64_t hit;
	enum situation situation;
	bool die_too; /* trainers die when ckptd does */
	char once[200], after[200];
	char fault_env[96], once_env[224], after_env[224];
	struct trainer_process ranks[WORLD];
	bool dead;    /* the trainers */
	uint64_t tag;
	uint64_t sealed;              /* newest step that every rank was told is sealed */
	bool durable[STEPS_MAX];      /* was told */
	uint64_t durable_tag[STEPS_MAX];
};

static bool exists(const char *path)
{
	return access(path, F_OK) == 0;
}

static void touch(const char *path)
{
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

#define WHERE(l)                                                                                   \
	fault_name((l)->point), (unsigned long long)(l)->hit, situation_names[(l)->situation],     \
		(l)->die_too ? "dead" : "alive"
#define WHERE_FMT "%s@%llu, %s, trainers %s: "

/* ---- Trainers that may be killed with ckptd ---- */

static void kill_trainers(struct life *l)
{
	for (unsigned i = 0; i < WORLD && !l->dead; i++)
		trainer_kill(&l->ranks[i]);
	l->dead = true;
}

/* The answer of a rank, or INT_MIN: ckptd was killed and so were the trainers. */
static int answer(struct life *l, unsigned rank)
{
	uint64_t until = rig_now_ms() + RIG_PATIENCE_MS;

	while (!l->dead) {
		int r = trainer_answer(&l->ranks[rank], l->die_too ? SLICE_MS : RIG_PATIENCE_MS);

		if (r != INT_MIN)
			return r;
		if (l->die_too && exists(l->once))
			kill_trainers(l);
		else if (rig_now_ms() > until)
			rig_fail(WHERE_FMT "rank %u: %s", WHERE(l), rank, l->ranks[rank].text);
	}
	return INT_MIN;
}

/* All ranks; the worst of their answers. */
static int ask_all(struct life *l, const char *line)
{
	int worst = 0;

	for (unsigned i = 0; i < WORLD && !l->dead; i++)
		trainer_tell(&l->ranks[i], "%s", line);
	for (unsigned i = 0; i < WORLD && !l->dead; i++) {
		int r = answer(l, i);

		worst = r < worst ? r : worst;
	}
	return l->dead ? INT_MIN : worst;
}

/* A call may say that ckptd is away: libckpt waits a second for it, the second start takes more. */
static void must_all(struct life *l, const char *line)
{
	uint64_t until = rig_now_ms() + RIG_PATIENCE_MS;
	int r;

	do {
		r = ask_all(l, line);
	} while (r == CKPT_EUNAVAILABLE && rig_now_ms() < until);
	if (r < 0 && !l->dead)
		rig_fail(WHERE_FMT "%s: %s / %s", WHERE(l), line, l->ranks[0].text,
			 l->ranks[1].text);
}

static void save(struct life *l, uint64_t step)
{
	char line[64];

	snprintf(line, sizeof(line), "save %llu %llu 20000", (unsigned long long)step,
		 (unsigned long long)l->tag);
	if (ask_all(l, line) == 0)
		l->sealed = step;
	else
		return; /* a save may fail when ckptd dies; it is never said to be there then */
	if (step % 3 == 0)
		return;
	trainer_tell(&l->ranks[step % WORLD], "wait %llu %d 20000", (unsigned long long)step,
		     step % 2 ? CKPT_DURABLE : CKPT_COMMITTED);
	if (answer(l, step % WORLD) == 0 && step % 2) {
		l->durable[step] = true;
		l->durable_tag[step] = l->tag;
	}
}

static void tell_declare(const struct life *l, struct trainer_process *t)
{
	bool is_long = l->point == FAULT_LEDGER_ANNEX;

	trainer_tell(t, DECLARE, ELEMENTS, is_long ? LONG : SMALL, is_long ? "long" : "replicated");
}

static void join(struct life *l, const char *run)
{
	l->dead = false;
	for (unsigned i = 0; i < WORLD; i++) {
		trainer_start(&l->ranks[i], &l->rig, NULL);
		trainer_tell(&l->ranks[i], "open job %u %u %s 20000", i, WORLD, run);
		tell_declare(l, &l->ranks[i]);
	}
	for (unsigned i = 0; i < WORLD; i++) {
		if (answer(l, i) < 0 && !l->dead)
			rig_fail(WHERE_FMT "open: %s", WHERE(l), l->ranks[i].text);
		if (answer(l, i) < 0 && !l->dead)
			rig_fail(WHERE_FMT "declare: %s", WHERE(l), l->ranks[i].text);
	}
}

/* Trains from step `first`; the last save is followed by nothing: ckptd persists it by itself. */
static void train(struct life *l, uint64_t first, uint64_t steps)
{
	must_all(l, "load -1 0");
	must_all(l, "prepare 4096");
	for (uint64_t step = first; step < first + steps && !l->dead; step++)
		save(l, step);
	for (unsigned i = 0; i < WORLD && !l->dead; i++)
		trainer_exit(&l->ranks[i]);
	l->dead = true;
}

/* ---- Afterwards ---- */

static void check_durable(struct life *l, const struct listed *listed, size_t n)
{
	for (uint64_t step = 0; step < STEPS_MAX; step++) {
		const struct listed *x = listed_find(listed, n, step);
		unsigned newer = 0;

		if (!l->durable[step] || (x && x->disk))
			continue;
		for (size_t i = 0; i < n; i++)
			newer += listed[i].disk && listed[i].step > step;
		if (newer < KEEP_LAST)
			rig_fail(WHERE_FMT "step %llu was DURABLE and is %s; %u newer ones are on "
				 "disk", WHERE(l), (unsigned long long)step,
				 x ? "not on disk" : "lost", newer);
	}
}

/* Retention goes on meanwhile: what cannot be loaded must be listed no longer. */
static void load_listed(struct life *l, struct trainer_process *t, uint64_t step)
{
	int r = trainer_ask(t, "load %llu 0", (unsigned long long)step);
	struct listed listed[STEPS_MAX];
	char why[200];

	if (r >= 0)
		return;
	snprintf(why, sizeof(why), "%.199s", t->text);
	if ((r != CKPT_ELOST && r != CKPT_ENOTFOUND) ||
	    listed_find(listed, trainer_list(t, listed, STEPS_MAX), step))
		rig_fail(WHERE_FMT "load of step %llu: %d %s", WHERE(l),
			 (unsigned long long)step, r, why);
}

/* Returns the newest step. memory: it may be there too. */
static uint64_t check_served(struct life *l, const char *run, bool memory)
{
	struct listed listed[STEPS_MAX];
	struct trainer_process t;
	unsigned long long newest = 0;
	size_t n;
	int r;

	trainer_start(&t, &l->rig, NULL);
	trainer_tell(&t, "open job 0 1 %s 10000", run);
	tell_declare(l, &t);
	for (int k = 0; k < 2; k++)
		if (trainer_answer(&t, RIG_PATIENCE_MS) < 0)
			rig_fail(WHERE_FMT "join: %s", WHERE(l), t.text);
	r = trainer_ask(&t, "load -1 0");
	/* All that was committed was in memory, and that is gone: it says so. */
	if (r < 0 && (r != CKPT_ELOST || memory))
		rig_fail(WHERE_FMT "load: %d %s", WHERE(l), r, t.text);
	if (r >= 0 && !(r & CKPT_NOTHING))
		sscanf(t.text, "%llu", &newest);
	if (memory && newest < l->sealed)
		rig_fail(WHERE_FMT "LOST: every rank had sealed step %llu, step %llu came back",
			 WHERE(l), (unsigned long long)l->sealed, newest);
	n = trainer_list(&t, listed, STEPS_MAX);
	for (size_t i = 0; i < n; i++)
		load_listed(l, &t, listed[i].step);
	n = trainer_list(&t, listed, STEPS_MAX);
	check_durable(l, listed, n);
	trainer_exit(&t);
	return newest;
}

/* ---- Situations ---- */

static void life_init(struct life *l, const struct rig *like)
{
	rig_init(&l->rig, access("/dev/shm", W_OK) == 0 ? "/dev/shm" : like->dir);
	snprintf(l->once, sizeof(l->once), "%s/fired", l->rig.dir);
	snprintf(l->after, sizeof(l->after), "%s/armed", l->rig.dir);
	snprintf(l->once_env, sizeof(l->once_env), "CKPT_FAULT_ONCE=%s", l->once);
	snprintf(l->after_env, sizeof(l->after_env), "CKPT_FAULT_AFTER=%s", l->after);
	rig_arg(&l->rig, "--set");
	rig_arg(&l->rig, "retention.keep_last=2");
	rig_arg(&l->rig, "--set");
	rig_arg(&l->rig, "checkpoint.log_trim=16");
	rig_env(&l->rig, l->once_env);
}

static void arm(struct life *l, const char *point, uint64_t hit)
{
	snprintf(l->fault_env, sizeof(l->fault_env), "CKPT_FAULT=%s=kill@%llu", point,
		 (unsigned long long)hit);
	memset(l->rig.env, 0, sizeof(l->rig.env));
	rig_env(&l->rig, l->once_env);
	rig_env(&l->rig, l->fault_env);
}

/* A folder as loss of power leaves it: in the middle of an expiry, and of a persist. */
static void leave_half_done(struct life *l)
{
	bool die_too = l->die_too;

	l->rig.plain = l->die_too = true;
	arm(l, "EXPIRE_DECIDED", 2);
	rig_start(&l->rig);
	l->tag = 1;
	join(l, "before");
	for (unsigned i = 0; i < WORLD; i++)
		trainer_must(&l->ranks[i], "prepare 4096");
	for (uint64_t step = 1; step <= 10 && !l->dead; step++) {
		char line[64];

		snprintf(line, sizeof(line), "save %llu 1 3000", (unsigned long long)step);
		ask_all(l, line);
		snprintf(line, sizeof(line), "wait %llu %d 3000", (unsigned long long)step,
			 CKPT_DURABLE);
		ask_all(l, line);
	}
	/* Files are taken away behind the answers. */
	for (int i = 0; i < 100 && !l->dead; i++) {
		char line[64];

		rig_pause(50);
		snprintf(line, sizeof(line), "wait 10 %d 100", CKPT_DURABLE);
		ask_all(l, line);
	}
	RIG_CHECK(l->dead, "no expiry is hit");
	waitpid(l->rig.pid, NULL, 0);
	unlink(l->once);
	l->die_too = die_too;
	l->rig.plain = false;
	l->sealed = 0;
}

/* The second record that there is: the log cannot be read behind the first. */
static void damage_log(struct life *l)
{
	char pattern[300];
	glob_t g;

	snprintf(pattern, sizeof(pattern), "%s/jobs/*/log/0*", l->rig.data);
	RIG_CHECK(glob(pattern, 0, NULL, &g) == 0 && g.gl_pathc > 2, "no log in '%s'", pattern);
	RIG_CHECK(truncate(g.gl_pathv[1], 20) == 0, "damage '%s'", g.gl_pathv[1]);
	globfree(&g);
}

/* Declarations and layouts that nothing refers to; the search for these checks the name alone. */
static void leave_unused(struct life *l)
{
	static const char *const folders[] = {"declarations", "layouts"};
	char path[300];

	for (unsigned i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/%s/%032x", l->rig.data, folders[i % 2], i + 1);
		touch(path);
		RIG_CHECK(exists(path), "cannot leave '%s'", path);
	}
}

static void begin(struct life *l)
{
	if (l->situation == COLD) {
		leave_half_done(l);
		leave_unused(l);
	}
	if (l->situation == COLD && l->point == FAULT_RELOG_ASIDE)
		damage_log(l);
	arm(l, fault_name(l->point), l->hit);
	if (l->situation == ADOPTED)
		rig_env(&l->rig, l->after_env);
	rig_start(&l->rig);
	l->tag = 2;
	join(l, "run");
}

/* The predecessor dies while the newest snapshot is only in memory. */
static void be_adopted(struct life *l)
{
	pid_t daemon = rig_daemon(&l->rig);

	must_all(l, "prepare 4096");
	for (uint64_t step = 1; step <= 3; step++)
		save(l, step);
	touch(l->after);
	kill(daemon, SIGKILL);
}

/* True if the point was hit. */
static bool live(struct life *l)
{
	bool hit;

	begin(l);
	if (l->situation == ADOPTED)
		be_adopted(l);
	train(l, l->situation == FRESH ? 1 : 11, l->situation == FRESH ? STEPS : 4);
	hit = exists(l->once);
	check_served(l, "after", true);
	if (hit && l->die_too) {
		rig_kill_all(&l->rig);
		memset(l->rig.env, 0, sizeof(l->rig.env));
		rig_start(&l->rig);
		check_served(l, "power", false);
	}
	rig_check_log(&l->rig);
	rig_kill_all(&l->rig);
	return hit;
}

/* ---- The sweep ---- */

static bool try_one(struct rig *r, enum fault_point p, uint64_t hit, enum situation s, bool die_too)
{
	static struct life l; /* of this child; large */
	bool fired;

	memset(&l, 0, sizeof(l));
	l.point = p;
	l.hit = hit;
	l.situation = s;
	l.die_too = die_too;
	life_init(&l, r);
	snprintf(r->log, sizeof(r->log), "%s", l.rig.log); /* for a failure */
	fired = live(&l);
	if (fired) {
		rig_note("%s@%llu killed ckptd: %s, trainers %s", fault_name(p),
			 (unsigned long long)hit, situation_names[s], die_too ? "dead" : "alive");
		fired_count[p]++;
	}
	rig_fini(&l.rig);
	return fired;
}

/* No trainer removes its job: tools/test_ctl_rm_job.sh sweeps these. */
static bool is_of_removal(enum fault_point p)
{
	return p == FAULT_REMOVE_RENAMED || p == FAULT_REMOVE_DECIDED ||
	       p == FAULT_REMOVE_FILES_GONE;
}

static void sweep(struct rig *r)
{
	enum fault_point p = (enum fault_point)(uintptr_t)r->arg;
	uint64_t most = test_cap("CKPT_KILL_HITS", 3), hit = 1;
	bool more = true;

	for (uint64_t i = 0; i < most && more; i++) {
		more = try_one(r, p, hit, FRESH, i % 2);
		hit = hit * 5 / 2 + 1; /* 1, 3, 8, 21 */
	}
	if (most > 4 && more)
		try_one(r, p, 1, FRESH, true);
	try_one(r, p, 1, COLD, true);
	try_one(r, p, 1, ADOPTED, false);
	if (most > 4) {
		try_one(r, p, 1, COLD, false);
		try_one(r, p, 2, COLD, true);
		try_one(r, p, 1, ADOPTED, true);
		try_one(r, p, 2, ADOPTED, false);
	}
	RIG_CHECK(fired_count[p] > 0 || is_of_removal(p), "this point was never hit");
}

int main(int argc, char **argv)
{
	struct rig_test tests[FAULT_POINTS];
	size_t bytes = FAULT_POINTS * sizeof(*fired_count);
	unsigned kills = 0, points = 0;
	int r;

#ifndef CKPT_FAULTS
	printf("skip kill_points built without --enable-fault-injection\n");
	return 77;
#endif
	fired_count = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (fired_count == MAP_FAILED)
		return 1;
	for (int p = 0; p < FAULT_POINTS; p++)
		tests[p] = (struct rig_test){ fault_name((enum fault_point)p), sweep,
					      (const void *)(uintptr_t)p };
	r = rig_run(tests, FAULT_POINTS, JOBS, argc, argv);
	for (int p = 0; p < FAULT_POINTS; p++) {
		kills += fired_count[p];
		points += fired_count[p] > 0;
	}
	printf("%u kills at %u of %u points\n", kills, points, (unsigned)FAULT_POINTS);
	return r;
}
