/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c - a job and its way into its log.
 *
 * Appends go one at a time, in order, on a LOG worker. The first of this life of ckptd is a
 * `lead` record with the next term, so that another that wrote meanwhile is noticed (I4).
 *
 *   append fails with -EEXIST or CKPT_ESTALE   another writer: this ckptd no longer leads the
 *                                              job; every append fails until it is restarted
 *   anything else                              tried again each second (I14). Where joblog says
 *                                              that the record is certainly not there it may be
 *                                              withdrawn instead; else only the same append may
 *                                              follow (I10)
 *
 * What waits is bounded: of abort records the newest HISTORY_ABORTS_MAX, which is all that the log
 * remembers; commits by the slots; the rest by what one job can have under way.
 */
#include <config.h>

#include "ckptd/credits.h"
#include "ckptd/job.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/acting.h"
#include "ckptd/beats.h"
#include "ckptd/goodput.h"
#include "ckptd/leaving.h"
#include "ckptd/load.h"
#include "ckptd/log.h"
#include "ckptd/replicas.h"
#include "ckptd/sharing.h"
#include "ckptd/start.h"
#include "ckptd/trust.h"
#include "ckptd/watching.h"
#include "codec/digest.h"
#include "storage/spare.h"

#define APPEND_RETRY_NS 1000000000u

struct append {
	struct work work;
	struct list link;
	struct job *job;
	struct record record;
	struct checkpoint *of; /* one of its works until the record is over; NULL: none */
	append_done_fn *done;
	void *arg;
	uint64_t n;
	void *bytes;
	size_t len;
	bool unclear; /* an append of it failed, and it may be in the log all the same */
	struct err err;
};

static void append_next(struct job *j);

static void append_retry(struct timer *t)
{
	append_next(container_of(t, struct job, append_retry));
}

static void job_step(struct task *t)
{
	struct job *j = container_of(t, struct job, step_task);

	j->poked = false;
	loop_label(j->node->env.loop, "a job's step");
	if (j->failed) { /* nothing but its own append ever knew it */
		assert(!j->creating && !j->appending && list_empty(&j->openings));
		job_free(j);
		return;
	}
	if (j->removal != JOB_KEPT) /* job_removal.c goes on with it */
		return;
	if (!job_state_check(j)) { /* before anything is decided on it, or freed */
		job_stop(j);
		node_stop_step(j->node);
		return;
	}
	checkpoint_step(j);
	epoch_step(j);
	declaring_step(j);
	load_step(j);
	sharing_step(j);
	replicas_step(j);
	persist_step(j);
	rewrite_step(j);
	acting_step(j);
	trust_step(j);
	recheck_step(j);
	retain_step(j);
	checkpoint_give_way(j);
	checkpoint_collect(j);
	checkpoint_answer(j);
	ledgering_step(j);
	member_empty_slots(j);
	slot_fill_step(j);
	credits_give(j);
	problems_step(j);
	if (j->node->options.abort_broken)
		ignore_result(job_state_check(j) /* which ends the process: find it here */);
	node_stop_step(j->node);
}

void job_poke(struct job *j)
{
	assert(loop_is_current(j->node->env.loop));
	if (j->poked)
		return;
	j->poked = true;
	j->step_task.uid = j->history.job.uid; /* of a new job it is not known at once */
	loop_post(j->node->env.loop, &j->step_task);
}

int job_new(struct node *n, struct job **ret)
{
	struct job *j = alloc_zero(sizeof(*j));

	if (!j)
		return -ENOMEM;
	j->node = n;
	history_init(&j->history);
	list_init(&j->link);
	list_init(&j->appends);
	list_init(&j->members);
	list_init(&j->leaving);
	list_init(&j->slots);
	list_init(&j->checkpoints);
	list_init(&j->declared);
	list_init(&j->declaring);
	list_init(&j->room_waits);
	waiters_init(j);
	load_init(j);
	slot_fill_init(j);
	watching_init_job(j);
	epoch_init(j);
	persist_init(j);
	timer_init(&j->append_retry, append_retry);
	task_init(&j->step_task, FAIR_NODE, job_step);
	j->next_slot = 1;
	j->next_declaration = 1;
	j->ledger.memory = n->env.memory;
	j->ledger.rewrite = adopt_rewrite;
	j->ledger.owner = j;
	j->ledger.slice_cost = n->options.ledger_slice;
	*ret = j;
	return 0;
}

void job_count(struct job *j)
{
	assert(!j->user);
	j->user = user_get(j->node, j->history.job.uid);
	if (j->user)
		user_add(j->user, USER_JOBS, 1);
}

void job_uncount(struct job *j)
{
	if (!j->user)
		return;
	user_give(j->user, USER_JOBS, 1);
	user_put(j->user);
	j->user = NULL;
}

static struct job *find_in(const struct list *jobs, const char *name, uint32_t uid)
{
	struct job *j;

	list_each(j, jobs, link)
		if (j->history.job.uid == uid && strcmp(j->history.job.name, name) == 0)
			return j;
	return NULL;
}

void job_submit(struct job *j, enum work_class class, struct work *work)
{
	work_submit(j->node->env.workers, class, j->history.job.uid, work);
}

struct job *job_find(struct node *n, const char *name, uint32_t uid)
{
	struct job *j = find_in(&n->jobs, name, uid);

	return j ? j : find_in(&n->stopped_jobs, name, uid);
}

struct job *job_find_id(struct node *n, const struct job_id *id)
{
	struct job *j;

	list_each(j, &n->jobs, link)
		if (job_id_equal(&j->history.job.id, id))
			return j;
	return NULL;
}

static void tell(struct job *j, int level, const struct log_about *about, const char *fmt,
		 va_list ap)
{
	char text[ERR_TEXT_MAX], line[ERR_TEXT_MAX + CKPT_JOB_MAX + 16];

	if (vsnprintf(text, sizeof(text), fmt, ap) < 0)
		return;
	snprintf(line, sizeof(line), "job '%s': %s", about->job, text);
	j->node->env.log(j->node->env.log_arg, level, about, line);
}

void job_tell(struct job *j, int level, const char *fmt, ...)
{
	const struct log_about about = {.job = j->history.job.name};
	va_list ap;

	va_start(ap, fmt);
	tell(j, level, &about, fmt, ap);
	va_end(ap);
}

void job_tell_step(struct job *j, uint64_t step, int level, const char *fmt, ...)
{
	const struct log_about about = {.job = j->history.job.name, .has_step = true, .step = step};
	va_list ap;

	va_start(ap, fmt);
	tell(j, level, &about, fmt, ap);
	va_end(ap);
}

void job_id_of(const struct job *j, uint64_t step, const struct attempt_id *attempt,
	       struct checkpoint_id *ret)
{
	ret->job = j->history.job.id;
	ret->step = step;
	ret->attempt = *attempt;
}

/* ---- Appending ---- */

static void append_free(struct append *a)
{
	alloc_free(a->bytes);
	alloc_free(a);
}

static void append_run(struct work *w)
{
	struct append *a = container_of(w, struct append, work);

	struct joblog *log = a->job->log;

	/* A record counts where the next start looks for it, or not at all. */
	w->status = node_check_folder(a->job->node, &a->err);
	if (w->status < 0)
		return;
	w->status = log->ops->append(log, a->n, a->bytes, a->len, &a->err);
	/* Room for records goes before anything else, for they are what frees some. */
	if ((w->status == -ENOSPC || w->status == -EDQUOT) &&
	    spare_clear(&a->job->node->store, NULL) == 0)
		w->status = log->ops->append(log, a->n, a->bytes, a->len, &a->err);
	/* One that is there counts only once it is applied. */
	a->unclear = w->status == 0 || log->ops->unclear(log);
}

static void append_uncount(struct append *a)
{
	if (!a->of)
		return;
	a->of->recording--;
	a->of->works--;
	a->of = NULL;
}

static void append_tell(struct append *a, int status)
{
	append_uncount(a);
	if (a->done)
		a->done(a->arg, status);
}

static void append_end(struct append *a, int status)
{
	struct job *j = a->job;

	list_del(&a->link);
	append_tell(a, status);
	append_free(a);
	if (list_empty(&j->appends))
		job_poke(j); /* an epoch may wait for that */
	append_next(j);
}

static void append_fail_all(struct job *j, int code)
{
	j->refused = j->removal == JOB_REMOVED ? "the job was removed" : NULL;
	while (!list_empty(&j->appends)) {
		struct append *a = list_first(&j->appends, struct append, link);

		list_del(&a->link);
		append_tell(a, code);
		append_free(a);
	}
	j->refused = NULL;
}

static void append_done(struct work *w)
{
	struct append *a = container_of(w, struct append, work);
	struct job *j = a->job;
	struct err e = { 0 };
	char text[ERR_TEXT_MAX + 64];

	j->appending = false;
	if (job_stopped(j)) { /* it may be in the log: the next start reads it there */
		append_end(a, -ECANCELED);
		return;
	}
	if (w->status == 0 && FAULT(LOG_APPENDED))
		w->status = -EIO;
	if (w->status == 0) {
		w->status = history_apply(&j->history, a->n, a->bytes, a->len, &e);
		/* We made it from this history: it cannot be refused, but memory can run out. */
		if (!JOB_ASSERT(j, w->status == 0 || w->status == -ENOMEM)) {
			append_end(a, -ECANCELED);
			return;
		}
	}
	if (w->status == 0) {
		j->log_text[0] = '\0';
		problems_log_works(j);
		if (j->folder_away) /* it is back, as the record is there */
			persist_room(j->node);
		if (a->record.type == RECORD_LEAD)
			j->lead = true;
		append_end(a, 0);
		return;
	}
	if (w->status == -EEXIST || w->status == CKPT_ESTALE) {
		j->log_error = CKPT_ESTALE;
		snprintf(j->log_text, sizeof(j->log_text),
			 "another ckptd wrote record %llu of the log; restart this one",
			 (unsigned long long)a->n);
		problems_log_failed(j, 2, j->log_text);
		append_fail_all(j, CKPT_ESTALE);
		job_poke(j);
		return;
	}
	memcpy(j->log_text, a->err.text, sizeof(j->log_text));
	snprintf(text, sizeof(text), "append record %llu of the log: %s; trying again each second",
		 (unsigned long long)a->n, a->err.text);
	problems_log_failed(j, 3, text);
	timer_arm(j->node->env.loop, &j->append_retry,
		  loop_now(j->node->env.loop) + APPEND_RETRY_NS);
	preparing_has_room(j); /* there will be none soon: those that wait say what is missing */
	job_poke(j);
}

static int append_insert(struct job *j, const struct record *r, append_done_fn *done, void *arg,
			 bool front)
{
	struct append *a = alloc_zero(sizeof(*a));

	if (!a)
		return -ENOMEM;
	a->job = j;
	a->record = *r;
	a->done = done;
	a->arg = arg;
	a->work.run = append_run;
	a->work.done = append_done;
	if (front)
		list_add_head(&j->appends, &a->link);
	else
		list_add_tail(&j->appends, &a->link);
	return 0;
}

static int append_lead(struct job *j)
{
	struct record r = { .type = RECORD_LEAD };

	snprintf(r.lead.node, sizeof(r.lead.node), "%s", j->node->options.name);
	return append_insert(j, &r, NULL, NULL, true);
}

static int append_encode(struct job *j, struct append *a)
{
	int r;

	history_next(&j->history, &a->record);
	if (a->record.type == RECORD_SUM)
		a->record.sum = &j->history;
	a->record.wall_ns = loop_wall(j->node->env.loop);
	a->n = a->record.n;
	r = FAULT(LOG_ENCODE) ? -ENOMEM : record_encode(&a->record, &a->bytes, &a->len);
	/* What the log would refuse is refused before it is there: a pin behind a free, say. */
	return r < 0 ? r : history_check(&j->history, a->n, a->bytes, a->len, &a->err);
}

/* It never was in the log. A lead record was for the one behind it, which is not written either. */
static void append_refuse(struct job *j, struct append *a, int code)
{
	bool lead = a->record.type == RECORD_LEAD;

	list_del(&a->link);
	j->refused = a->err.code ? a->err.text : NULL;
	append_tell(a, code);
	j->refused = NULL;
	append_free(a);
	if (list_empty(&j->appends))
		job_poke(j);
	a = lead ? list_first(&j->appends, struct append, link) : NULL;
	if (a)
		append_refuse(j, a, code);
}

/* What is to be written next, or in *ret_status why it cannot be; NULL: nothing. */
static struct append *append_ready(struct job *j, int *ret_status)
{
	struct append *a = list_first(&j->appends, struct append, link);
	int r = 0;

	if (!a)
		return NULL;
	/* Record 0 is the job itself; nobody can lead before it. */
	if (!j->lead && j->history.next_n > 0 && a->record.type != RECORD_LEAD) {
		r = append_lead(j);
		a = list_first(&j->appends, struct append, link);
	}
	/* A retry appends the very same bytes: the first try may have come through (I10). */
	if (r == 0 && !a->bytes)
		r = append_encode(j, a);
	*ret_status = r;
	return a;
}

static void append_next(struct job *j)
{
	struct append *a;
	int r;

	assert(loop_is_current(j->node->env.loop));
	/* Each turn takes one away, or submits it; who is told may append, and come here again. */
	while (!j->appending && !job_stopped(j) && (a = append_ready(j, &r))) {
		timer_disarm(j->node->env.loop, &j->append_retry);
		if (r < 0) {
			append_refuse(j, a, r);
			continue;
		}
		j->appending = true;
		j->append_since_ns = loop_now(j->node->env.loop);
		job_submit(j, WORK_LOG, &a->work);
	}
}

bool job_has_appends(const struct job *j)
{
	return !list_empty(&j->appends);
}

bool job_log_down(const struct job *j)
{
	return j->log_text[0] && !j->log_error;
}

void job_drop_appends(struct job *j)
{
	struct append *a, *next;
	bool first = true;

	j->refused = j->defect_text;
	list_each_safe(a, next, &j->appends, link) {
		bool being_written = first && j->appending;

		first = false;
		if (being_written)
			continue;
		list_del(&a->link);
		append_tell(a, -ECANCELED);
		append_free(a);
	}
	j->refused = NULL;
}

static bool may_withdraw(const struct append *a)
{
	const struct job *j = a->job;

	if (j->appending && j->appends.next == &a->link)
		return false;
	return !a->unclear || BUG(WITHDRAW_UNCLEAR);
}

bool job_is_unclear(const struct job *j)
{
	const struct append *a;

	list_each(a, &j->appends, link)
		if (a->unclear)
			return true;
	return false;
}

bool job_withdraw(struct job *j, append_done_fn *done, void *arg)
{
	struct append *a;

	list_each(a, &j->appends, link) {
		if (a->done != done || a->arg != arg)
			continue;
		if (!may_withdraw(a))
			return false;
		list_del(&a->link);
		append_uncount(a);
		append_free(a);
		return true;
	}
	return false;
}

/* The oldest of too many aborts that wait: the log would have forgotten it behind the others. */
static void forget_abort(struct job *j)
{
	struct append *a, *oldest = NULL;
	unsigned n = 0;

	list_each(a, &j->appends, link) {
		if (a->record.type != RECORD_ABORT || !may_withdraw(a))
			continue;
		if (!oldest)
			oldest = a;
		n++;
	}
	if (n <= HISTORY_ABORTS_MAX)
		return;
	list_del(&oldest->link);
	append_tell(oldest, -ECANCELED);
	append_free(oldest);
}

static void trim_done(void *arg, int status);

/* A sum takes its turn like any record; the records below it go once it is there. */
static void sum_up(struct job *j)
{
	struct record sum = {.type = RECORD_SUM};

	if (j->summing || job_log_down(j) || j->history.next_n < j->sum_at ||
	    j->history.next_n - j->history.first_n <= j->node->options.log_trim)
		return;
	/* Without memory for it the next record tries. */
	j->summing = append_insert(j, &sum, trim_done, j, false) == 0;
}

static int append_add(struct job *j, struct checkpoint *of, const struct record *r,
		      append_done_fn *done, void *arg)
{
	int ret;

	assert(loop_is_current(j->node->env.loop));
	if (job_stopped(j) || j->removal != JOB_KEPT)
		return -ECANCELED;
	if (j->log_error)
		return j->log_error;
	ret = append_insert(j, r, done, arg, false);
	if (ret < 0)
		return ret;
	if (of) {
		list_last(&j->appends, struct append, link)->of = of;
		of->works++;
		of->recording++;
	}
	append_next(j);
	if (r->type == RECORD_ABORT)
		forget_abort(j);
	sum_up(j);
	return 0;
}

int job_append(struct job *j, const struct record *r, append_done_fn *done, void *arg)
{
	return append_add(j, NULL, r, done, arg);
}

int job_append_for(struct checkpoint *c, const struct record *r, append_done_fn *done, void *arg)
{
	return append_add(c->job, c, r, done, arg);
}

struct trim {
	struct work work;
	struct job *job;
	uint64_t n;
};

static void trim_run(struct work *w)
{
	struct trim *t = container_of(w, struct trim, work);

	w->status = t->job->log->ops->trim(t->job->log, t->n);
}

/* Harmless but for the disk and the next start: the log grows until a later sum is there. */
static void trim_failed(struct job *j, const char *what, int status)
{
	bool said = j->trim_text[0];

	j->summing = false;
	if (status == -ECANCELED || status == CKPT_ESTALE)
		return; /* this ckptd ends, or does not lead */
	j->sum_at = j->history.next_n + j->node->options.log_trim;
	if (status == -E2BIG)
		snprintf(j->trim_text, sizeof(j->trim_text),
			 "a summing record holds %d checkpoints, and the job keeps more: keep "
			 "fewer (retention.keep_last, retention.keep_every, pins)",
			 HISTORY_COMMITS_MAX);
	else
		snprintf(j->trim_text, sizeof(j->trim_text), "%s: %s", what, err_text(status));
	if (!said)
		job_tell(j, 4, "the log has %llu records and cannot be trimmed: %s",
			 (unsigned long long)(j->history.next_n - j->history.first_n),
			 j->trim_text);
}

static void trim_end(struct work *w)
{
	struct trim *t = container_of(w, struct trim, work);
	struct job *j = t->job;

	if (w->status < 0) {
		trim_failed(j, "remove what is summed up", w->status);
	} else {
		j->summing = false;
		j->trim_text[0] = '\0';
	}
	alloc_free(t);
	j->appending = false;
	append_next(j);
	job_poke(j);
}

static void trim_done(void *arg, int status)
{
	struct job *j = arg;
	struct trim *t;

	if (status < 0) {
		trim_failed(j, "sum it up", status);
		return;
	}
	t = alloc_zero(sizeof(*t));
	if (!t) {
		trim_failed(j, "remove what is summed up", -ENOMEM);
		return;
	}
	t->job = j;
	t->n = j->history.first_n; /* the sum */
	t->work.run = trim_run;
	t->work.done = trim_end;
	/* One call at a time per log: a trim sweeps what an append just made. */
	j->appending = true;
	j->append_since_ns = loop_now(j->node->env.loop);
	job_submit(j, WORK_LOG, &t->work);
}

void job_free(struct job *j)
{
	struct checkpoint *c, *next;
	struct slot *s, *s_next;
	struct member *m, *m_next;

	if (!j)
		return;
	j->freeing = j->removal != JOB_REMOVED;
	append_fail_all(j, -ECANCELED);
	persist_fini(j);
	replicas_fini(j);
	timer_disarm(j->node->env.loop, &j->append_retry);
	timer_disarm(j->node->env.loop, &j->room_timer);
	rounds_stop(&j->telling);
	slot_fill_stop(j);
	waiters_forget(j);
	load_fini(j);
	declaring_fini(j);
	epoch_fini(j);
	leaving_forget(j);
	alloc_free(j->goodput_file.bytes);
	goodput_forget_held(j->held);
	watching_job_leaves(j);
	answers_unlink(j->node, &j->link);
	list_each_safe(c, next, &j->checkpoints, link)
		checkpoint_free(c);
	list_each_safe(s, s_next, &j->slots, link) {
		if (j->freeing)
			slot_free(s);
		else
			slot_let_go(s); /* its region goes too */
	}
	if (!j->freeing && j->ledger.region)
		region_destroy(j->node, j->history.job.uid, ledger_detach(&j->ledger));
	list_each_safe(m, m_next, &j->members, link) {
		member_unindex(m);
		if (m->declared)
			declared_unref(j, m->declared);
		beats_free(m);
		alloc_free(m);
	}
	/* Sessions and works have ended, loads with them: nobody has a reference any more. */
	assert(job_stopped(j) || list_empty(&j->declared));
	if (j->log)
		j->log->ops->close(j->log);
	ledgering_uncount(j);
	job_uncount(j);
	history_fini(&j->history);
	alloc_free(j->samples);
	list_del(&j->link);
	loop_unpost(j->node->env.loop, &j->step_task); /* what ended above may have poked it */
	alloc_free(j);
}
