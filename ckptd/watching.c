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
#include <strings.h>

#include "base/alloc.h"
#include "ckptd/acting.h"
#include "ckptd/beats.h"
#include "ckptd/events.h"
#include "ckptd/goodput.h"
#include "ckptd/node_priv.h"
#include "ckptd/probing.h"
#include "ckptd/trust.h"
#include "ckptd/watching_json.h"
#include "detect/options.h"
#include "detect/verdicts.h"

#define DEVICES_MAX 256 /* of one node, that have names */

struct device {
	uint32_t number;
	char role;
	char name[SAMPLE_NAME_MAX];
};

/* A rank whose process has ended: how is told a little later. */
struct ended {
	struct list link;
	struct process_id process;
	uint32_t job, rank;
};

struct watching {
	struct node *node;
	struct detector *detector;
	struct timer timer;
	uint64_t last_ns; /* of the newest sample */
	uint64_t refused; /* samples that the detector did not take */
	struct device devices[DEVICES_MAX];
	size_t n_devices;
	struct list ended;
};

/* ---- Names ---- */

uint32_t watching_number(struct job *j)
{
	struct sample s = {.kind = SAMPLE_NAME,
			   .node = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};

	if (j->number)
		return j->number;
	j->number = ++j->node->next_number;
	s.job = j->number;
	snprintf(s.name.text, sizeof(s.name.text), "%.*s", SAMPLE_NAME_MAX - 1,
		 j->history.job.name);
	node_sample(j->node, &s);
	return j->number;
}

struct job *watching_job(struct node *n, uint32_t number)
{
	struct job *j;

	list_each(j, &n->jobs, link)
		if (j->number == number && number)
			return j;
	return NULL;
}

static const struct device *device_of(const struct watching *w, uint32_t number, char role)
{
	for (size_t i = 0; i < w->n_devices; i++)
		if (w->devices[i].number == number && w->devices[i].role == role)
			return &w->devices[i];
	return NULL;
}

static void keep_name(struct watching *w, const struct sample *s)
{
	struct device *d;

	if (s->device == SAMPLE_NONE || s->node != WATCHING_NODE)
		return;
	d = (struct device *)device_of(w, s->device, s->name.role);
	if (!d && w->n_devices == DEVICES_MAX)
		return;
	if (!d)
		d = &w->devices[w->n_devices++];
	d->number = s->device;
	d->role = s->name.role;
	snprintf(d->name, sizeof(d->name), "%s", s->name.text);
}

/* A device that only kernel messages speak of has no name but the detector's. */
static void device_words(struct node *n, const char *what, char role, const struct subject *s,
			 char buf[SUBJECT_WORDS_MAX])
{
	const struct device *d = n->watching ? device_of(n->watching, s->device, role) : NULL;

	if (d)
		snprintf(buf, SUBJECT_WORDS_MAX, "%s %s", what, d->name);
	else if (n->watching)
		detector_subject_words(n->watching->detector, s, buf, SUBJECT_WORDS_MAX);
	else
		snprintf(buf, SUBJECT_WORDS_MAX, "%s %u", what, s->device);
}

void watching_words(struct node *n, const struct subject *s, char buf[SUBJECT_WORDS_MAX])
{
	struct job *j = watching_job(n, s->job);
	const char *name = j ? j->history.job.name : "that is gone";

	switch (s->kind) {
	case SUBJECT_JOB:
		snprintf(buf, SUBJECT_WORDS_MAX, "job '%s'", name);
		break;
	case SUBJECT_RANK:
		snprintf(buf, SUBJECT_WORDS_MAX, "rank %u of job '%s'", s->rank, name);
		break;
	case SUBJECT_NODE:
		snprintf(buf, SUBJECT_WORDS_MAX, "node '%s'", n->options.name);
		break;
	case SUBJECT_GPU:
		device_words(n, "GPU", 'g', s, buf);
		break;
	case SUBJECT_DISK:
		device_words(n, "disk", 'd', s, buf);
		break;
	case SUBJECT_LINK:
		if (s->device != SAMPLE_NONE)
			device_words(n, "network port", 'n', s, buf);
		else
			snprintf(buf, SUBJECT_WORDS_MAX, "the way from node '%s' to node %u",
				 n->options.name, s->peer);
		break;
	}
}

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
	goodput_verdict(watching_job(n, v->subject.job), v);
	verdict_sentence(n, v, words, sizeof(words));
	events_post(n->events, EVENT_VERDICT,
		    !alarm ? 6
		    : over ? 5
			   : 4,
		    watching_uid(n, &v->subject), watching_subject_json(n, &v->subject),
		    watching_verdict_json(n, v), "%s", words);
	acting_verdict(n, v);
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

static void time_came(struct timer *t)
{
	struct watching *w = container_of(t, struct watching, timer);
	uint64_t now = loop_now(w->node->env.loop);

	beats_scan(w->node); /* nobody is late who has only not been heard yet */
	if (now > w->last_ns)
		w->last_ns = now;
	detector_advance(w->detector, w->last_ns);
	set_timer(w);
}

void node_sample(struct node *n, const struct sample *s)
{
	struct watching *w = n->watching;
	struct sample copy = *s;

	assert(loop_is_current(n->env.loop));
	if (!w)
		return;
	beats_scan(n); /* what ranks did before comes before it */
	if (copy.time_ns == 0)
		copy.time_ns = loop_now(n->env.loop);
	if (copy.kind == SAMPLE_BEAT)
		trust_beat(watching_job(n, copy.job), copy.rank, copy.beat.step, copy.time_ns);
	if (copy.time_ns < w->last_ns)
		copy.time_ns = w->last_ns;
	w->last_ns = copy.time_ns;
	goodput_sample(watching_job(n, copy.job), &copy);
	if (copy.kind == SAMPLE_NAME)
		keep_name(w, &copy);
	if (n->env.record)
		n->env.record(n->env.record_arg, &copy);
	if (detector_feed(w->detector, &copy) < 0)
		w->refused++;
	set_timer(w);
}

/* ---- What ckptd's own machines tell ---- */

static struct sample of_job(struct job *j, enum sample_kind kind)
{
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

void watching_bye(const struct member *m)
{
	tell_exit(m->job->node, watching_number(m->job), m->rank, EXIT_SAID_BYE, 0);
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
}

static void ended_free(struct ended *x)
{
	list_del(&x->link);
	alloc_free(x);
}

void watching_process_exit(struct node *n, const struct process_id *p,
			   const struct process_exit *exit)
{
	enum exit_how how = exit->how == PROCESS_END_STATUS   ? EXIT_CODE
			    : exit->how == PROCESS_END_SIGNAL ? EXIT_SIGNAL
							      : EXIT_UNKNOWN;
	struct ended *x, *next;

	if (!n->watching)
		return;
	list_each_safe(x, next, &n->watching->ended, link) {
		if (!process_same(&x->process, p))
			continue;
		tell_exit(n, x->job, x->rank, how, exit->value);
		ended_free(x);
	}
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
	struct member *m;

	tell_run(j, true);
	list_each(m, &j->members, link)
		watching_joined(m);
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

	snprintf(words, sizeof(words), "epoch %llu begins with %u rank%s (%s)",
		 (unsigned long long)ep->number, ep->world, ep->world == 1 ? "" : "s", ep->reason);
	post_of_job(j, EVENT_JOB_BEGAN, words);
	tell_members(j);
}

void watching_over(struct job *j)
{
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
	uint64_t now = loop_now(w->node->env.loop);

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

void watching_explain(struct node *n, const struct subject *s,
		      void (*line)(void *arg, const char *text), void *arg)
{
	if (!n->watching) {
		line(arg, "detect.enabled is off: nothing is watched");
		return;
	}
	come_to_now(n->watching);
	detector_explain(n->watching->detector, s, line, arg);
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
	struct watching *w = n->watching;

	for (size_t i = 0; w && i < w->n_devices; i++) {
		const struct device *d = &w->devices[i];

		if (strcasecmp(d->name, name) != 0)
			continue;
		if (d->role == 'g')
			*ret = subject_gpu(WATCHING_NODE, d->number);
		else if (d->role == 'd')
			*ret = subject_disk(WATCHING_NODE, d->number);
		else
			*ret = subject_port(WATCHING_NODE, d->number);
		return true;
	}
	return false;
}

/* ---- Life ---- */

int watching_new(struct node *n, struct watching **ret)
{
	struct detector_options options;
	struct detector_events events = {.verdict = on_verdict, .probe = on_probe};
	struct watching *w;
	int r;

	*ret = NULL;
	if (!n->options.detect)
		return 0;
	w = alloc_zero(sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->node = n;
	timer_init(&w->timer, time_came);
	list_init(&w->ended);
	detector_options_default(&options);
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
		ended_free(x);
	timer_disarm(w->node->env.loop, &w->timer);
	detector_free(w->detector);
	alloc_free(w);
}
