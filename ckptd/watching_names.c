/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching_names.c - the numbers that jobs have in the detector, the words for its subjects, and
 * the subjects that it has no room for.
 *
 * Invariants: (1) a number below options.watched_jobs + 1 is one job's at a time: before ckptd
 * gives it to another job, the detector forgets the first one, ckptd ends that job's verdicts, and
 * nothing that waits here speaks of it; (2) when a job gets a number, at most IDLE_KEPT jobs
 * without ranks keep theirs. ckptd takes a number back from the user with the most such jobs, from
 * the job that was idle longest; what the detector learned of that job, and its verdicts, go with
 * the number; (3) a user gets a number while it then has at most twice as many as stay free
 * (user_may_store() has the rule), else ckptd takes back the number of an idle job of that user.
 *
 * ckptd gives numbers in turn, so that it uses one again as late as possible. A job for which no
 * number is left gets one above them, which the detector refuses; ckptd reports that as an event.
 * On the loop's thread.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/text.h"
#include "ckptd/acting.h"
#include "ckptd/events.h"
#include "ckptd/user.h"
#include "ckptd/watching_json.h"
#include "ckptd/watching_priv.h"
#include "detect/verdicts.h"

#define IDLE_KEPT        32u
#define NUMBERS_SHARE    2u
#define REFUSED_SHOWN_NS (600ull * 1000000000u)

/* ---- Numbers of jobs ---- */

struct job *watching_job(struct node *n, uint32_t number)
{
	struct job **hint = &n->numbered[number % NODE_NUMBERED], *j;

	if (!number || (*hint && (*hint)->number == number))
		return number ? *hint : NULL;
	list_each(j, &n->jobs, link) {
		if (j->number == number) {
			*hint = j;
			return j;
		}
	}
	return NULL;
}

void watching_job_leaves(struct job *j)
{
	struct job **hint = &j->node->numbered[j->number % NODE_NUMBERED];

	if (*hint == j)
		*hint = NULL;
}

static struct sample name_of(uint32_t number, const char *text)
{
	struct sample s = {.kind = SAMPLE_NAME,
			   .node = SAMPLE_NONE,
			   .job = number,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};

	snprintf(s.name.text, sizeof(s.name.text), "%.*s", SAMPLE_NAME_MAX - 1, text);
	return s;
}

/* (1) */
static void give_back(struct job *j)
{
	struct subject subject = subject_job(j->number);
	struct sample gone = name_of(j->number, "");
	struct node *n = j->node;
	struct ended *x, *next;

	list_each_safe(x, next, &n->watching->ended, link)
		if (x->job == j->number)
			watching_ended_free(x);
	/* Who is heard meanwhile may want a number, this one first of all. */
	gone.time_ns = max_u64(n->watching->last_ns, 1);
	watching_feed(n, &gone);
	policy_forget(acting_policy(n), &subject);
	assert(j->number == subject.job);
	watching_job_leaves(j);
	j->number = 0;
}

void watching_stopped(struct job *j)
{
	if (j->number && j->node->watching)
		give_back(j);
}

static bool is_watched(const struct job *j)
{
	return j->number && j->number <= j->node->options.watched_jobs;
}

static bool is_idle(const struct job *j)
{
	return list_empty(&j->members) && list_empty(&j->leaving) && !epoch_opens(j) &&
	       is_watched(j);
}

/* Who has numbers, at one moment. */
struct numbers {
	uint32_t idle, given, of_user;
	struct job *idlest;   /* of the user with the most idle jobs, idle for longest */
	struct job *idle_own; /* of the one user */
};

static struct user *counts_of(const struct job *j)
{
	return user_find(j->node, j->history.job.uid);
}

static bool longer_idle(const struct job *j, const struct job *than)
{
	const struct user *u = counts_of(j), *other = than ? counts_of(than) : NULL;
	uint32_t most = u ? u->idle_jobs : 1, others = other ? other->idle_jobs : 1;

	return !than || most > others || (most == others && j->number_used < than->number_used);
}

static struct numbers count_numbers(struct node *n, uint32_t uid)
{
	struct numbers c = {0};
	struct user *u;
	struct job *j;

	list_each(u, &n->users.all, link)
		u->idle_jobs = 0;
	list_each(j, &n->jobs, link) {
		c.given += is_watched(j);
		c.of_user += is_watched(j) && j->history.job.uid == uid;
		u = is_idle(j) ? counts_of(j) : NULL;
		if (u)
			u->idle_jobs++;
	}
	list_each(j, &n->jobs, link) {
		if (!is_idle(j))
			continue;
		c.idle++;
		if (longer_idle(j, c.idlest))
			c.idlest = j;
		if (j->history.job.uid == uid &&
		    (!c.idle_own || j->number_used < c.idle_own->number_used))
			c.idle_own = j;
	}
	return c;
}

/* (3) */
static bool has_number_for(const struct node *n, const struct numbers *c)
{
	uint32_t most = n->options.watched_jobs, left = most - (uint32_t)min_u64(most, c->given);

	return left > 0 && (c->of_user + 1) / NUMBERS_SHARE <= left - 1;
}

/* (2) (3); true: a job has lost its number, and all may have changed. */
static bool make_room(struct node *n, const struct numbers *c)
{
	bool full = c->given >= n->options.watched_jobs;

	if (c->idle_own && !has_number_for(n, c))
		give_back(c->idle_own);
	else if (c->idlest && (c->idle >= IDLE_KEPT || (full && c->of_user == 0)))
		give_back(c->idlest);
	else
		return false;
	return true;
}

static uint32_t next_number(struct node *n, uint32_t uid)
{
	uint32_t most = n->options.watched_jobs;
	struct numbers c;

	if (!n->watching)
		return ++n->last_number;
	c = count_numbers(n, uid);
	if (make_room(n, &c))
		c = count_numbers(n, uid);
	if (!has_number_for(n, &c)) {
		n->unwatched_number = (uint32_t)max_u64(n->unwatched_number, most) + 1;
		return n->unwatched_number;
	}
	do
		n->last_number = n->last_number % most + 1;
	while (watching_job(n, n->last_number));
	return n->last_number;
}

uint32_t watching_number(struct job *j)
{
	struct node *n = j->node;
	uint32_t number;
	struct sample s;

	if (j->number)
		return j->number;
	number = next_number(n, j->history.job.uid);
	assert(!j->number);
	j->number = number;
	j->number_used = ++n->number_uses;
	s = name_of(j->number, j->history.job.name);
	s.name.owned = true;
	s.name.owner = j->history.job.uid;
	node_sample(n, &s);
	return j->number;
}

void watching_renumber(struct job *j)
{
	if (!j->node->watching || j->number <= j->node->options.watched_jobs)
		return;
	watching_job_leaves(j); /* what knows it by this number */
	j->number = 0;
}

void watching_ended_free(struct ended *x)
{
	list_del(&x->link);
	list_del(&x->of_process);
	alloc_free(x);
}

/* ---- Words ---- */

static void device_words(struct node *n, const char *what, const struct subject *s,
			 char buf[SUBJECT_WORDS_MAX])
{
	const char *name = NULL;
	char role = 0;

	if (n->watching)
		name = detector_device_name(n->watching->detector, s, &role);
	if (role == 's')
		what = "NVSwitch";
	if (name)
		snprintf(buf, SUBJECT_WORDS_MAX, "%s %s", what, name);
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
		device_words(n, "GPU", s, buf);
		break;
	case SUBJECT_DISK:
		device_words(n, "disk", s, buf);
		break;
	case SUBJECT_LINK:
		if (s->device != SAMPLE_NONE)
			device_words(n, "network port", s, buf);
		else
			snprintf(buf, SUBJECT_WORDS_MAX, "the way from node '%s' to node %u",
				 n->options.name, s->peer);
		break;
	}
	text_clean(buf);
}

/* ---- What there is no room for ---- */

static struct subject subject_of(const struct sample *s)
{
	if (s->job != SAMPLE_NONE && s->rank != SAMPLE_NONE)
		return subject_rank(s->job, s->rank, WATCHING_NODE);
	if (s->job != SAMPLE_NONE)
		return subject_job(s->job);
	return subject_node(WATCHING_NODE);
}

void watching_refused(struct node *n, const struct sample *s)
{
	struct subject subject = subject_of(s);
	struct watching *w = n->watching;
	char words[SUBJECT_WORDS_MAX];

	watching_words(n, &subject, words);
	snprintf(w->refused_words, sizeof(w->refused_words), "%s%s",
		 s->device != SAMPLE_NONE ? "a device of " : "", words);
	w->refused_uid = watching_uid(n, &subject);
	w->refused_ns = loop_now(n->env.loop);
	w->refused++;
	if (w->refused_ns < w->refused_again_ns)
		return;
	w->refused_again_ns = w->refused_ns + REFUSED_SHOWN_NS;
	events_post(n->events, EVENT_UNWATCHED, 4, w->refused_uid,
		    watching_subject_json(n, &subject), NULL,
		    "the failure detector has no room for %s, which is not watched: it has room "
		    "for %u jobs with ranks and %u ranks, of which each user may have twice as "
		    "many as stay free, and for %u devices",
		    w->refused_words, n->options.watched_jobs, DETECTOR_RANKS_MAX,
		    DETECTOR_DEVICES_MAX);
}

static const char *words_for(const char *words, uint32_t owner, uint32_t uid, bool sees_all)
{
	return sees_all || owner == EVENT_FOR_ALL || owner == uid ? words : "another user's job";
}

json_t *watching_refused_json(struct node *n, uint32_t uid, bool sees_all)
{
	const struct watching *w = n->watching;

	if (!w || !w->refused || loop_now(n->env.loop) - w->refused_ns > REFUSED_SHOWN_NS)
		return json_null();
	return json_pack("{s:I, s:s}", "samples", (json_int_t)w->refused, "words",
			 words_for(w->refused_words, w->refused_uid, uid, sees_all));
}

void watching_dropped(struct node *n, const struct verdict *v)
{
	struct watching *w = n->watching;
	char words[SUBJECT_WORDS_MAX];

	if (v->level != LEVEL_ALARM)
		return; /* nothing follows from it */
	watching_words(n, &v->subject, words);
	snprintf(w->dropped_words, sizeof(w->dropped_words), "%s, %s (%s)", words,
		 verdict_class_word(v->class), verdict_cause_word(v->cause));
	w->dropped_uid = watching_verdict_uid(n, v);
	w->dropped_ns = loop_now(n->env.loop);
	w->dropped++;
	if (w->dropped_ns < w->dropped_again_ns)
		return;
	w->dropped_again_ns = w->dropped_ns + REFUSED_SHOWN_NS;
	events_post(
		n->events, EVENT_UNWATCHED, 4, w->dropped_uid,
		watching_subject_json(n, &v->subject), NULL,
		"as many alarms stand as the failure detector has room for (%u): the one about %s "
		"is not kept, nor are those that come after it",
		VERDICTS_MAX, w->dropped_words);
}

json_t *watching_dropped_json(struct node *n, uint32_t uid, bool sees_all)
{
	const struct watching *w = n->watching;

	if (!w || !w->dropped || loop_now(n->env.loop) - w->dropped_ns > REFUSED_SHOWN_NS)
		return json_null();
	return json_pack("{s:I, s:s}", "times", (json_int_t)w->dropped, "words",
			 words_for(w->dropped_words, w->dropped_uid, uid, sees_all));
}
