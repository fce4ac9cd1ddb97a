/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching.c - the node's detector among ckptd's machines: samples in, verdicts out.
 *
 * All samples of a node come through node_sample(), whoever makes them, in the order of their
 * arrival: a collector's clock may be read a little before or after the loop's, so that a sample
 * older than the one before it is given that one's time, never the other way round.
 *
 * What the detector finds is told; nothing here waits, and nothing of it can delay a save or a
 * load. A sample for which there is no memory is dropped and counted: a detector that is blind in
 * one eye is better than a daemon that ends. On the loop's thread.
 */
#include <config.h>

#include "ckptd/watching.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/acting.h"
#include "ckptd/beats.h"
#include "ckptd/events.h"
#include "ckptd/goodput.h"
#include "ckptd/node_priv.h"
#include "ckptd/probing.h"
#include "ckptd/trust.h"
#include "ckptd/watching_json.h"
#include "ckptd/watching_priv.h"
#include "detect/options.h"
#include "detect/verdicts.h"

#define MEMBERS_IN_A_CALL 32u /* the detector looks at each for some 2 us */

/* ---- Verdicts ---- */

/* The detector's own sentence names the subject; why something is over does not. */
static void verdict_sentence(struct node *n, const struct verdict *v, char *buf, size_t size)
{
	char subject[SUBJECT_WORDS_MAX];

	watching_words(n, &v->subject, subject);
	if (v->state == VERDICT_CLEARED)
		snprintf(buf, size, "%s is no longer %s: %s", subject, verdict_class_word(v->class),
			 v->words);
	else
		snprintf(buf, size, "%s, %s%s: %s", v->level == LEVEL_ALARM ? "alarm" : "note",
			 v->state == VERDICT_UPDATED ? "still " : "", verdict_class_word(v->class),
			 v->words);
}

static void on_verdict(void *arg, const struct verdict *v)
{
	struct node *n = ((struct watching *)arg)->node;
	bool alarm = v->level == LEVEL_ALARM, over = v->state == VERDICT_CLEARED;
	char words[SUBJECT_WORDS_MAX + VERDICT_WORDS_MAX + 64];

	trust_verdict(n, watching_job(n, v->subject.job), v);
	goodput_verdict(n, v);
	verdict_sentence(n, v, words, sizeof(words));
	events_post(n->events, EVENT_VERDICT,
		    !alarm ? 6
		    : over ? 5
			   : 4,
		    watching_verdict_uid(n, v), watching_subject_json(n, &v->subject),
		    watching_verdict_json(n, v), "%s", words);
	acting_verdict(n, v);
}

static void on_dropped(void *arg, const struct verdict *v)
{
	watching_dropped(((struct watching *)arg)->node, v);
}

static void on_probe(void *arg, uint32_t job, uint32_t rank, bool wanted)
{
	probing_wanted(((struct watching *)arg)->node, job, rank, wanted);
}

/* ---- Time ---- */

static void set_timer(struct watching *w)
{
	uint64_t next = detector_next(w->detector);

	if (next == UINT64_MAX)
		timer_disarm(w->node->env.loop, &w->timer);
	else
		timer_arm(w->node->env.loop, &w->timer, next);
}

/* Of the clock that nobody sets, and that stands still while the machine is suspended. */
static uint64_t time_of(const struct watching *w)
{
	struct loop *l = w->node->env.loop;

	return BUG(WATCH_BY_WALL) ? loop_wall(l) - w->day_ns + w->born_ns : loop_now(l);
}

static void time_came(struct timer *t)
{
	struct watching *w = container_of(t, struct watching, timer);
	uint64_t now = time_of(w);

	loop_label(w->node->env.loop, "the detector's time");
	if (detector_goes_on(w->detector)) { /* with a time at which all had been heard */
		detector_advance(w->detector, w->last_ns);
		if (detector_goes_on(w->detector))
			timer_arm(w->node->env.loop, t, now + 1);
		else
			set_timer(w);
		return;
	}
	if (!beats_scan(w->node)) { /* nobody is late who has only not been heard yet */
		timer_arm(w->node->env.loop, t, now + 1);
		return;
	}
	if (now > w->last_ns)
		w->last_ns = now;
	detector_advance(w->detector, w->last_ns);
	set_timer(w);
}

void watching_feed(struct node *n, const struct sample *s)
{
	struct watching *w = n->watching;
	struct sample copy = *s;

	assert(loop_is_current(n->env.loop));
	assert(copy.time_ns);
	if (copy.kind == SAMPLE_BEAT)
		trust_beat(watching_job(n, copy.job), copy.rank, copy.beat.step, copy.time_ns);
	if (copy.time_ns < w->last_ns)
		copy.time_ns = w->last_ns;
	w->last_ns = copy.time_ns;
	goodput_sample(watching_job(n, copy.job), &copy);
	if (n->env.record)
		n->env.record(n->env.record_arg, &copy);
	if (detector_feed(w->detector, &copy) == -ENOMEM)
		watching_refused(n, &copy);
	set_timer(w);
}

void node_sample(struct node *n, const struct sample *s)
{
	struct sample copy = *s;

	if (!n->watching)
		return;
	beats_scan(n); /* what ranks did before comes before it */
	if (copy.time_ns == 0)
		copy.time_ns = time_of(n->watching);
	watching_feed(n, &copy);
}

/* ---- What ckptd's own machines tell ---- */

static struct sample of_job(struct job *j, enum sample_kind kind)
{
	j->number_used = ++j->node->number_uses;
	return (struct sample){.kind = kind,
			       .node = WATCHING_NODE,
			       .job = watching_number(j),
			       .rank = SAMPLE_NONE,
			       .device = SAMPLE_NONE};
}

static struct sample of_rank(const struct member *m, enum sample_kind kind)
{
	struct sample s = of_job(m->job, kind);

	s.rank = m->rank;
	return s;
}

void watching_joined(const struct member *m)
{
	struct sample s = of_rank(m, SAMPLE_MEMBER);

	snprintf(s.member.role, sizeof(s.member.role), "%s", beats_role(m));
	node_sample(m->job->node, &s);
}

void watching_left(const struct member *m)
{
	struct sample s = of_rank(m, SAMPLE_MEMBER);

	s.member.leaves = true;
	node_sample(m->job->node, &s);
}

static void tell_exit(struct node *n, uint32_t job, uint32_t rank, enum exit_how how, int32_t value)
{
	struct sample s = {.kind = SAMPLE_EXIT,
			   .node = WATCHING_NODE,
			   .job = job,
			   .rank = rank,
			   .device = SAMPLE_NONE,
			   .exit = {.how = how, .value = value}};

	node_sample(n, &s);
}

void watching_exit(struct job *j, uint32_t rank, enum exit_how how, int32_t value)
{
	tell_exit(j->node, watching_number(j), rank, how, value);
}

void watching_leaves(const struct member *m)
{
	struct sample s = of_rank(m, SAMPLE_PHASE);

	s.phase.begins = true;
	s.phase.phase = PHASE_OTHER;
	snprintf(s.phase.what, sizeof(s.phase.what), "leaving");
	node_sample(m->job->node, &s);
}

void watching_ended(const struct member *m)
{
	struct node *n = m->job->node;
	struct ended *x = n->watching ? alloc_zero(sizeof(*x)) : NULL;

	if (!x) {
		tell_exit(n, watching_number(m->job), m->rank, EXIT_UNKNOWN, 0);
		return;
	}
	x->process = m->process;
	x->job = watching_number(m->job);
	x->rank = m->rank;
	list_add_tail(&n->watching->ended, &x->link);
	list_add_tail(by_process(&n->watching->ended_by, &x->process), &x->of_process);
}

enum exit_how watching_how(const struct process_exit *exit)
{
	return exit->how == PROCESS_END_STATUS   ? EXIT_CODE
	       : exit->how == PROCESS_END_SIGNAL ? EXIT_SIGNAL
						 : EXIT_UNKNOWN;
}

bool watching_process_exit(struct node *n, const struct process_id *p,
			   const struct process_exit *exit)
{
	struct ended *x;

	if (!n->watching)
		return false;
	list_each(x, by_process(&n->watching->ended_by, p), of_process) {
		if (!process_same(&x->process, p))
			continue;
		tell_exit(n, x->job, x->rank, watching_how(exit), exit->value);
		watching_ended_free(x);
		return true;
	}
	return false;
}

static void tell_run(struct job *j, bool begins)
{
	struct sample s = of_job(j, SAMPLE_JOB);

	s.run.begins = begins;
	s.run.world = j->history.epoch.world;
	s.run.epoch = j->history.epoch.number;
	node_sample(j->node, &s);
}

static void tell_members(struct job *j)
{
	tell_run(j, true);
	rounds_begin(&j->telling, j->history.job.uid);
}

static uint64_t members_budget(struct rounds *r)
{
	return job_stopped(container_of(r, struct job, telling)) ? 0 : MEMBERS_IN_A_CALL;
}

static uint64_t member_visit(struct rounds *r, struct round_item *item)
{
	(void)r;
	watching_joined(container_of(item, struct member, told));
	return 1;
}

void watching_init_job(struct job *j)
{
	j->telling = (struct rounds){.loop = j->node->env.loop,
				     .label = "ranks of which the detector hears",
				     .budget = members_budget,
				     .visit = member_visit};
	rounds_init(&j->telling);
}

static json_t *run_json(const struct job *j)
{
	const struct record_epoch *ep = &j->history.epoch;

	return json_pack("{s:I, s:s, s:s, s:I}", "epoch", (json_int_t)ep->number, "run_id",
			 ep->run_id, "reason", ep->reason, "world", (json_int_t)ep->world);
}

static void post_of_job(struct job *j, enum event_kind kind, const char *words)
{
	struct subject s = subject_job(watching_number(j));

	events_post(j->node->events, kind, 6 | EVENT_UNLOGGED, j->history.job.uid,
		    watching_subject_json(j->node, &s), run_json(j), "job '%s': %s",
		    j->history.job.name, words);
}

void watching_epoch(struct job *j)
{
	const struct record_epoch *ep = &j->history.epoch;
	char words[300];

	watching_renumber(j);
	j->run_over = false;
	snprintf(words, sizeof(words), "epoch %llu begins with %u rank%s (%s)",
		 (unsigned long long)ep->number, ep->world, ep->world == 1 ? "" : "s", ep->reason);
	post_of_job(j, EVENT_JOB_BEGAN, words);
	tell_members(j);
}

void watching_goes_on(struct job *j)
{
	if (!j->run_over)
		return;
	j->run_over = false;
	goodput_goes_on(j);
	tell_members(j);
}

void watching_over(struct job *j)
{
	j->run_over = true;
	post_of_job(j, EVENT_JOB_ENDED, "its last rank has said goodbye");
	tell_run(j, false);
}

void watching_lost(struct job *j, uint64_t step)
{
	struct subject s = subject_job(watching_number(j));

	events_post(j->node->events, EVENT_CHECKPOINT_LOST, 3 | EVENT_UNLOGGED, j->history.job.uid,
		    watching_subject_json(j->node, &s),
		    json_pack("{s:I}", "step", (json_int_t)step),
		    "job '%s': step %llu was committed and its bytes are lost", j->history.job.name,
		    (unsigned long long)step);
}

void watching_adopted(struct node *n)
{
	struct sample s = {.kind = SAMPLE_NAME,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	struct job *j;

	if (n->watching)
		watching_restarted(n);
	events_post(n->events, EVENT_STARTED, 6 | EVENT_UNLOGGED, EVENT_FOR_ALL, NULL,
		    json_pack("{s:s}", "version", PACKAGE_VERSION),
		    "ckptd " PACKAGE_VERSION " is ready");
	snprintf(s.name.text, sizeof(s.name.text), "%.*s", SAMPLE_NAME_MAX - 1, n->options.name);
	node_sample(n, &s);

	list_each(j, &n->jobs, link)
		if (!list_empty(&j->members))
			tell_members(j);
}

void watching_stale(const struct checkpoint *c)
{
	struct sample s = of_job(c->job, SAMPLE_STALE);

	s.step = c->step;
	node_sample(c->job->node, &s);
}

void watching_differ(const struct checkpoint *c, uint32_t rank, uint32_t other, const char *tensor)
{
	struct sample s = of_job(c->job, SAMPLE_DIGESTS);

	s.rank = rank;
	s.digests.step = c->step;
	s.digests.other = other;
	snprintf(s.digests.tensor, sizeof(s.digests.tensor), "%.*s", SAMPLE_NAME_MAX - 1, tensor);
	node_sample(c->job->node, &s);
}

/* ---- What is known ---- */

static void come_to_now(struct watching *w)
{
	uint64_t now = time_of(w);

	beats_scan(w->node);
	if (now <= w->last_ns)
		return;
	w->last_ns = now;
	detector_advance(w->detector, now);
	set_timer(w);
}

size_t watching_standing(struct node *n, const struct subject *s, struct verdict *ret, size_t most)
{
	if (!n->watching)
		return 0;
	come_to_now(n->watching);
	return detector_standing(n->watching->detector, s, ret, most);
}

bool watching_older(struct node *n, uint64_t id, struct verdict *ret)
{
	if (!n->watching)
		return false;
	come_to_now(n->watching);
	return detector_older(n->watching->detector, id, ret);
}

/* Whose stacks are to be taken. Of a job `ckptctl status` lists them. */
static void explain_process(struct node *n, const struct subject *s,
			    void (*line)(void *arg, const char *text), void *arg)
{
	struct job *j = s->kind == SUBJECT_RANK ? watching_job(n, s->job) : NULL;
	const struct member *m = j ? member_of_rank(j, s->rank) : NULL;
	char text[64];

	if (!m || !m->alive)
		return;
	snprintf(text, sizeof(text), "its process is %ld", (long)m->process.pid);
	line(arg, text);
}

void watching_explain(struct node *n, const struct subject *s,
		      void (*line)(void *arg, const char *text), void *arg)
{
	if (!n->watching) {
		line(arg, "detect.enabled is off: nothing is watched");
		return;
	}
	come_to_now(n->watching);
	detector_explain(n->watching->detector, s, line, arg);
	explain_process(n, s, line, arg);
}

size_t watching_clear(struct node *n, const struct subject *s)
{
	size_t cleared;

	if (!n->watching)
		return 0;
	come_to_now(n->watching);
	cleared = detector_clear(n->watching->detector, s, n->watching->last_ns);
	set_timer(n->watching);
	return cleared;
}

bool watching_device(struct node *n, const char *name, struct subject *ret)
{
	return n->watching &&
	       detector_device_called(n->watching->detector, WATCHING_NODE, name, ret);
}

/* ---- Life ---- */

int watching_new(struct node *n, struct watching **ret)
{
	struct detector_options options;
	struct detector_events events = {
		.verdict = on_verdict, .probe = on_probe, .dropped = on_dropped};
	struct watching *w;
	int r;

	*ret = NULL;
	if (!n->options.detect)
		return 0;
	w = alloc_zero(sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->node = n;
	w->born_ns = loop_now(n->env.loop);
	w->day_ns = loop_wall(n->env.loop);
	timer_init(&w->timer, time_came);
	list_init(&w->ended);
	by_process_init(&w->ended_by);
	detector_options_default(&options);
	options.shared_node = true;
	options.jobs_max = n->options.watched_jobs + 1; /* 0 is nobody's */
	events.arg = w;
	r = detector_new(&options, n->options.xid, &events, &w->detector);
	if (r < 0) {
		alloc_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

void watching_free(struct watching *w)
{
	struct ended *x, *next;

	if (!w)
		return;
	list_each_safe(x, next, &w->ended, link)
		watching_ended_free(x);
	timer_disarm(w->node->env.loop, &w->timer);
	detector_free(w->detector);
	alloc_free(w);
}
