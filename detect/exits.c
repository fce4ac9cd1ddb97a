/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exits.c - a rank's process has ended although its run goes on.
 *
 * A crash (a signal that nobody sends on purpose, a status other than 0) is told at once. An
 * orderly end without a bye (status 0, SIGTERM, SIGINT, SIGHUP) may be the beginning of a restart,
 * of which the job's next run tells only later: it waits for others to end the same way. When half
 * of the ranks have, it is one, or the end of the work, as long as the rest ends too, goes on or
 * can be seen to do something; if it waits in vain, the first that ended is told. When one rank
 * dies, launchers end the rest: whoever ends after the one that was told is a note, and only the
 * first few. Where the others go on all the same, the next death is news.
 *
 * What was told of who died stands until the job runs again, also behind the end of its run: the
 * survivors may well say goodbye, and somebody has to start the job. Of a job that does not come
 * back it ends after a day.
 */
#include <config.h>

#include "detect/exits.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "detect/hang.h"

#define NOTES_MAX 16
#define STANDS_NS (86400 * NS_PER_SEC) /* who comes in the morning finds it */
#define LOOK_NS   (60 * NS_PER_SEC)    /* for what stood for so long */

struct mine_job {
	bool told;         /* an alarm stands for this run */
	bool past;         /* the others have gone on since: it explains nothing any more */
	uint32_t first;    /* that rank */
	uint64_t first_ns; /* ... ended */
	uint64_t told_ns;  /* the last one did */
	uint64_t told_step;
	uint32_t notes;
	uint32_t orderly_rank; /* ended in order, */
	uint64_t orderly_ns;   /* then; 0: none that waits for others */
	uint64_t until_ns;     /* decided then */
	uint64_t last_ns;      /* a rank ended, or came back */
	uint64_t quiet_ns;     /* half of them had ended on purpose; 0: not yet */
	uint64_t vain_ns;      /* the rest was told to wait in vain; 0: it was not */
	uint64_t broken_ns;    /* what breaks_collectives() was told of broken_node then; 0: none */
	uint32_t broken_node;
};

struct mine_rank {
	bool accused;
	uint32_t node; /* the one in the verdict */
	enum exit_how how;
	int32_t value;
};

struct mine {
	uint64_t look_ns; /* for what stands for too long, next */
};

static bool orderly(const struct mine_rank *m)
{
	if (m->how == EXIT_CODE)
		return m->value == 0 || m->value == 128 + SIGTERM || m->value == 128 + SIGINT;
	return m->how == EXIT_SIGNAL &&
	       (m->value == SIGTERM || m->value == SIGINT || m->value == SIGHUP);
}

static void how_words(const struct mine_rank *m, char *buf, size_t size)
{
	const char *name = m->how == EXIT_SIGNAL ? sigabbrev_np(m->value) : NULL;

	if (name)
		snprintf(buf, size, "by signal %d (SIG%s)", m->value, name);
	else if (m->how == EXIT_SIGNAL)
		snprintf(buf, size, "by signal %d", m->value);
	else if (m->how == EXIT_CODE)
		snprintf(buf, size, "with status %d", m->value);
	else if (m->how == EXIT_AWAY)
		snprintf(buf, size, "while ckptd was away, nobody knows when or how,");
	else if (m->how == EXIT_LEFT)
		snprintf(buf, size, "by an error of its trainer, whose process lives on,");
	else
		snprintf(buf, size, "in a way that nobody saw");
}

#define GIVES_UP_NS (5 * NS_PER_SEC)  /* no collective does earlier */
#define NO_STEP_NS  (60 * NS_PER_SEC) /* ... has passed since: a step may have been under way */
#define ENDING_NS   (60 * NS_PER_SEC) /* ranks that end one after the other do so within */

#define GOES_ON 3 /* steps: what was under way when one died may end without it */

/* Who ends or stands still now does so in consequence of what was told. */
static bool explains(const struct mine_job *mj)
{
	return mj->told && !mj->past;
}

/* What lets the other ranks of a job wait in vain. */
static bool breaks_collectives(const struct verdict *v)
{
	return v->level == LEVEL_ALARM && (v->cause == CAUSE_NODE_SILENT || v->cause == CAUSE_XID ||
					   v->cause == CAUSE_KERNEL || v->cause == CAUSE_LINK_DOWN);
}

/* Kept for its jobs, as it may be over - a GPU that was reset - while they still wait. */
static void keep_broken(struct detector *d, const struct verdict *v)
{
	const struct node *n = known_node(d, v->subject.node);
	const struct rank *r;

	if (!n || !breaks_collectives(v))
		return;
	list_each(r, &n->ranks, of_node) {
		struct job *j = known_job(d, r->job);
		struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);

		if (!j->on || !r->expected || v->raised_ns < j->began_ns ||
		    (mj->broken_ns && j->step_ns <= mj->broken_ns + NO_STEP_NS))
			continue; /* what was first broke it */
		mj->broken_ns = v->raised_ns;
		mj->broken_node = n->number;
	}
}

static void keep_all_broken(struct detector *d)
{
	for (size_t i = 0; i < d->verdicts.n; i++)
		keep_broken(d, &d->verdicts.standing[i]);
}

/* Something of a node of the job was told a while ago, and there was no step since: who ends now
 * gave up waiting for it. On the same node it may be what took him with it, for a while. */
static bool gave_up(const struct job *j, const struct mine_job *mj, const struct rank *r,
		    uint64_t now_ns)
{
	uint64_t after = mj->broken_node == r->node ? NO_STEP_NS : GIVES_UP_NS;

	return mj->broken_ns && now_ns >= mj->broken_ns + after &&
	       j->step_ns <= mj->broken_ns + NO_STEP_NS;
}

/* rest: those that are still there do nothing; NULL: it was not asked. A note where they may well.
 */
static void tell(struct detector *d, struct job *j, struct rank *r, uint64_t at_ns,
		 const struct hang_rest *rest)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);
	struct mine_rank *m = RANK_OWN(d, r, exits, struct mine_rank);
	bool hung, mute = rest && rest->mute, follows = explains(mj);
	enum verdict_level level;
	struct verdict v;
	char how[64], last[48] = "";

	mj->told_ns = d->now_ns;
	mj->told_step = j->step;
	if (follows && mj->notes++ >= NOTES_MAX)
		return;
	keep_all_broken(d);
	hung = !follows && (hang_told(d, j) || gave_up(j, mj, r, d->now_ns));
	level = follows || hung || mute ? LEVEL_NOTE : LEVEL_ALARM;
	v = verdict_of(subject_of_rank(r), CLASS_DEAD, CAUSE_PROCESS_ENDED, level, ACTION_RESTORE);
	how_words(m, how, sizeof(how));
	if (r->beat_ns) /* many jobs tell no steps */
		snprintf(last, sizeof(last), " (last step %llu)", (unsigned long long)r->step);
	v.since_ns = at_ns;
	if (m->how == EXIT_AWAY)
		verdict_evidence(&v, "processes found gone", 1, 0, "", at_ns);
	else if (m->how == EXIT_LEFT)
		verdict_evidence(&v, "processes that live on", 1, 0, "", at_ns);
	else
		verdict_evidence(&v, m->how == EXIT_SIGNAL ? "signal" : "exit status", m->value, 0,
				 "", at_ns);
	if (follows) {
		v.advice = ACTION_RECORD;
		verdict_evidence(&v, "time since the first rank ended",
				 (double)(at_ns - mj->first_ns) / NS_PER_SEC, 0, "s", at_ns);
		verdict_say(d, &v, "ended %s after rank %u had: most likely in consequence.", how,
			    mj->first);
	} else if (!mute) {
		mj->told = true;
		mj->past = false;
		mj->first = r->number;
		mj->first_ns = at_ns;
	}
	if (hung)
		verdict_say(d, &v,
			    "ended %s after its job had stood still for what was told before: "
			    "most likely in consequence.",
			    how);
	else if (rest)
		verdict_say(d, &v,
			    "ended %s%s, as half of its run's ranks did, but the others do not "
			    "end and have made no step since (%s). End the run, or restart it from "
			    "its newest checkpoint.",
			    how, last, rest->words);
	else if (level == LEVEL_ALARM && m->how == EXIT_AWAY)
		verdict_say(d, &v,
			    "ended %s and its run goes on: restart the job from its newest "
			    "checkpoint, and look at this rank's log first.",
			    how);
	else if (level == LEVEL_ALARM)
		verdict_say(d, &v,
			    "ended %s while its run was on%s: restart the job from its newest "
			    "checkpoint, and look at this rank's log first.",
			    how, last);
	m->accused = true;
	m->node = r->node;
	accuse(d, &v);
}

static void stop_waiting(struct mine_job *mj)
{
	mj->orderly_ns = mj->quiet_ns = 0;
}

static void on_exit(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_job *mj = JOB_OWN(d, w->job, exits, struct mine_job);
	struct mine_rank *m = RANK_OWN(d, w->rank, exits, struct mine_rank);

	if (!w->job->on || !w->rank->expected || m->accused) /* the same end, told again */
		return;
	m->how = s->exit.how;
	m->value = s->exit.value;
	mj->last_ns = d->now_ns;
	if (s->exit.how == EXIT_SAID_BYE || mj->quiet_ns)
		return; /* launchers kill who does not end with the others */
	if (explains(mj) || !orderly(m)) {
		stop_waiting(mj);
		tell(d, w->job, w->rank, d->now_ns, NULL);
		return;
	}
	if (mj->orderly_ns)
		return;
	mj->orderly_ns = d->now_ns;
	mj->orderly_rank = w->rank->number;
	mj->until_ns =
		d->now_ns + (m->how == EXIT_CODE && m->value == 0 ? d->options.exit_wait_done_ns
								  : d->options.exit_wait_ns);
}

/* How many of the run have ended in order, the one of the lowest number; how many are there. */
static uint32_t count_orderly(const struct detector *d, const struct job *j, struct rank **ret_one,
			      uint32_t *ret_there)
{
	uint32_t n = 0;
	struct rank *r;

	*ret_one = NULL;
	*ret_there = 0;
	each_rank(r, j)
	{
		*ret_there += r->expected && !r->ended;
		if (!r->expected || !r->ended || !orderly(RANK_OWN(d, r, exits, struct mine_rank)))
			continue;
		if (!n++)
			*ret_one = r;
	}
	return n;
}

/* Half of the ranks have ended in order. The rest may take its time for that, or go on without
 * them: what is told is that it does neither. */
static void decide_vain(struct detector *d, struct job *j, struct rank *one, uint32_t there)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);
	uint64_t since_ns = mj->last_ns > j->step_ns ? mj->last_ns : j->step_ns;
	uint64_t at_ns = mj->orderly_ns;
	struct hang_rest rest;

	mj->until_ns = d->now_ns + NS_PER_SEC;
	if (j->step_ns > mj->quiet_ns + NO_STEP_NS) {
		stop_waiting(mj);
		return;
	}
	if (!there || detector_age(d, since_ns) < NO_STEP_NS ||
	    !hang_rests(d, j, since_ns, NO_STEP_NS, &rest))
		return;
	stop_waiting(mj);
	mj->vain_ns = d->now_ns;
	tell(d, j, one, at_ns, &rest);
}

/* One or several have ended in order: is it the whole job? */
static void decide(struct detector *d, struct job *j)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);
	struct rank *first = known_rank(d, j->number, mj->orderly_rank), *one;
	uint32_t there, n = count_orderly(d, j, &one, &there);
	uint64_t at_ns = mj->orderly_ns;

	if (first && first->ended)
		one = first;
	if (!n) {
		stop_waiting(mj);
	} else if (mj->quiet_ns) {
		decide_vain(d, j, one, there);
	} else if (n * 2 >= j->n_expected || !there) { /* the others may have said goodbye */
		mj->quiet_ns = d->now_ns;
	} else if (n == 1 || d->now_ns >= mj->last_ns + d->options.exit_wait_done_ns ||
		   d->now_ns >= mj->orderly_ns + ENDING_NS) { /* else more may follow */
		stop_waiting(mj);
		tell(d, j, one, at_ns, NULL);
	}
}

static void acquit_rank(struct detector *d, struct rank *r, const char *why)
{
	struct mine_rank *m = RANK_OWN(d, r, exits, struct mine_rank);
	struct subject s = subject_rank(r->job, r->number, m->node);

	if (m->accused)
		acquit(d, &s, CAUSE_PROCESS_ENDED, why);
	m->accused = false;
}

static void forget_run(struct detector *d, struct job *j, const char *why)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);
	struct rank *r;

	each_rank(r, j) acquit_rank(d, r, why);
	stop_waiting(mj);
	*mj = (struct mine_job){0};
}

static bool somebody_lives(const struct job *j)
{
	const struct rank *r;

	each_rank(r, j) if (r->expected && !r->ended) return true;
	return false;
}

static void let_go(struct detector *d)
{
	for (uint32_t i = 0; i < d->jobs_end; i++) {
		struct job *j = d->jobs[i];
		struct mine_job *mj = j ? JOB_OWN(d, j, exits, struct mine_job) : NULL;

		if (mj && mj->told && d->now_ns >= mj->told_ns + STANDS_NS && !somebody_lives(j))
			forget_run(d, j, "its job did not run again for a day");
	}
}

static void on_tick(struct detector *d)
{
	struct mine *m = DETECTOR_OWN(d, exits, struct mine);

	keep_all_broken(d);
	if (d->now_ns >= m->look_ns) {
		m->look_ns = d->now_ns + LOOK_NS;
		let_go(d);
	}
}

static uint32_t on_tick_job(struct detector *d, struct job *j)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);

	if (!mj->orderly_ns || d->now_ns < mj->until_ns)
		return 0;
	decide(d, j);
	return j->n_ranks;
}

static void nothing_stands(struct mine_job *mj)
{
	mj->told = mj->past = false;
	mj->notes = 0;
}

/* Steps, though somebody died, or the rest of the run was said to wait in vain. */
static void on_step(struct detector *d, struct job *j)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);
	struct rank *r;

	if (explains(mj) && j->step_ns > mj->told_ns + NO_STEP_NS &&
	    j->step >= mj->told_step + GOES_ON) {
		mj->past = true;
		mj->notes = 0;
	}
	if (!mj->vain_ns || j->step_ns <= mj->vain_ns)
		return;
	each_rank(r, j) acquit_rank(d, r, "the others go on without it");
	mj->vain_ns = 0;
	nothing_stands(mj);
}

/* Who died is there again. */
static void on_return(struct detector *d, struct job *j, struct rank *r)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);

	if (!RANK_OWN(d, r, exits, struct mine_rank)->accused)
		return;
	acquit_rank(d, r, "it runs again");
	each_rank(r, j) if (RANK_OWN(d, r, exits, struct mine_rank)->accused) return;
	nothing_stands(mj);
}

static void on_run(struct detector *d, const struct sample *s, struct job *j)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);

	if (s->run.begins && j->began_ns != d->now_ns)
		return; /* the same run, told again */
	if (s->run.begins)
		forget_run(d, j, "a new run of its job has begun");
	else if (!mj->told || mj->vain_ns) /* nobody died: the rest has ended as the first had */
		forget_run(d, j, "the run of its job is over");
	else
		stop_waiting(mj);
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	if (s->kind == SAMPLE_JOB)
		on_run(d, s, w->job);
	else if (s->kind == SAMPLE_EXIT)
		on_exit(d, s, w);
	else if (!w->rank->ended)
		on_return(d, w->job, w->rank);
	if (s->kind == SAMPLE_BEAT)
		on_step(d, w->job);
	else if (s->kind == SAMPLE_MEMBER && w->rank->began_ns == d->now_ns)
		JOB_OWN(d, w->job, exits, struct mine_job)->last_ns = d->now_ns;
}

static void on_gone(struct detector *d, struct rank *r)
{
	acquit_rank(d, r, "the detector needed its place for another rank");
}

/* Whom s holds stands accused no more; and if that is who ended first, then he explains nothing any
 * more: the next one is news. */
static void job_is_well(struct detector *d, const struct subject *s, struct job *j)
{
	struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);
	bool first = s->kind == SUBJECT_JOB || (s->kind == SUBJECT_RANK && s->rank == mj->first);
	struct rank *r;

	each_rank(r, j)
	{
		struct mine_rank *m = RANK_OWN(d, r, exits, struct mine_rank);
		struct subject was = subject_rank(j->number, r->number, m->node);

		if (!subject_contains(s, &was))
			continue;
		m->accused = false;
		first |= r->number == mj->first;
	}
	if (!first)
		return;
	nothing_stands(mj);
	mj->vain_ns = 0;
}

static void on_well(struct detector *d, const struct subject *s)
{
	for (uint32_t i = 0; i < d->jobs_end; i++) {
		struct job *j = d->jobs[i];

		if (j && (s->kind == SUBJECT_NODE || s->job == j->number))
			job_is_well(d, s, j);
	}
}

bool exits_told(const struct detector *d, const struct job *j)
{
	const struct mine_job *mj = JOB_OWN(d, j, exits, struct mine_job);

	return explains(mj) || mj->orderly_ns;
}

bool exits_asks(const struct detector *d, const struct job *j)
{
	return JOB_OWN(d, j, exits, struct mine_job)->quiet_ns != 0;
}

const struct rule rule_exits = {
	.name = "exits",
	.kinds = 1u << SAMPLE_JOB | 1u << SAMPLE_EXIT | 1u << SAMPLE_BEAT | 1u << SAMPLE_MEMBER,
	.rank_bytes = sizeof(struct mine_rank),
	.job_bytes = sizeof(struct mine_job),
	.detector_bytes = sizeof(struct mine),
	.tick_ns = 200 * NS_PER_MS,
	.sample = on_sample,
	.tick = on_tick,
	.tick_job = on_tick_job,
	.gone = on_gone,
	.well = on_well,
};
