/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waiting.c - sessions that wait until a checkpoint is SEALED, COMMITTED or DURABLE.
 *
 * Every waiter is answered once: reached, never will be (aborted, superseded, lost), or cancelled
 * by the session, which keeps its own deadline. Waiting for DURABLE also marks the checkpoint to
 * be written whatever the policy says.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

#define ANSWERS_IN_A_CALL 64u
/* Looks at checkpoints and records in one call: an answer looks through all that the job has. */
#define LOOKS_IN_A_CALL 16384u

static void waiter_free(struct waiter *w)
{
	list_del(&w->item.link);
	list_del(&w->of_session);
	session_use(w->session)->waits--;
	user_give(session_user(w->session), USER_WAITS, 1);
	session_unref(w->session);
	alloc_free(w);
}

static void answer_error(struct waiter *w, int code, const char *fmt, const char *detail)
{
	char text[ERR_TEXT_MAX], head[64];

	snprintf(head, sizeof(head), "wait for step %llu: ", (unsigned long long)w->wanted.step);
	snprintf(text, sizeof(text), "%s%s%s", head, fmt, detail);
	session_reply_error(w->session, w->request, code, text);
	waiter_free(w);
}

static void answer_superseded(struct waiter *w, uint64_t newer)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__WaitReply body = CKPT__WAIT_REPLY__INIT;
	char text[ERR_TEXT_MAX];

	body.newer_step = newer;
	snprintf(text, sizeof(text),
		 "wait for step %llu: step %llu is newer and goes to disk in its place",
		 (unsigned long long)w->wanted.step, (unsigned long long)newer);
	reply.id = w->request;
	reply.code = CKPT_ESUPERSEDED;
	reply.text = text;
	reply.body_case = CKPT__REPLY__BODY_WAIT;
	reply.wait = &body;
	session_reply(w->session, &reply, NULL, 0);
	waiter_free(w);
}

static struct checkpoint *newest_committed(struct job *j)
{
	struct checkpoint *c, *best = NULL;

	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTED && (!best || c->record_n > best->record_n))
			best = c;
	return best;
}

/* No struct checkpoint is left: the log knows how it ended. */
static void answer_from_log(struct job *j, struct waiter *w)
{
	struct checkpoint *newer = newest_committed(j);

	for (size_t i = j->history.n_commits; i-- > 0;) {
		struct history_commit *h = &j->history.commits[i];

		if (h->epoch != w->wanted.epoch || h->commit.step != w->wanted.step)
			continue;
		if (w->wanted.what <= CKPT_COMMITTED) {
			session_reply_ok(w->session, w->request);
			waiter_free(w);
		} else if (newer && newer->step > w->wanted.step) {
			answer_superseded(w, newer->step);
		} else {
			answer_error(w, CKPT_ELOST, "its bytes are gone", "");
		}
		return;
	}
	for (size_t i = j->history.n_aborts; i-- > 0;) {
		struct history_abort *a = &j->history.aborts[i];

		if (a->epoch == w->wanted.epoch && a->aborted.step == w->wanted.step) {
			answer_error(w, CKPT_EABORTED, "it was aborted: ", a->aborted.reason);
			return;
		}
	}
	if (w->wanted.epoch != j->history.epoch.number)
		answer_error(w, CKPT_EEPOCH, "the job went on to a newer epoch: ",
			     j->history.epoch.reason);
	else
		answer_error(w, CKPT_ENOTFOUND, "no rank has saved it in this epoch", "");
}

static bool reached(const struct checkpoint *c, uint32_t what)
{
	switch (what) {
	case CKPT_SEALED:
		return c->sealed || c->agreed == CP_COMMITTED;
	case CKPT_COMMITTED:
		return c->agreed == CP_COMMITTED;
	default:
		return c->durable == DUR_DONE && !c->disk_suspect;
	}
}

static void answer_one(struct job *j, struct waiter *w)
{
	struct checkpoint *c = checkpoint_find(j, w->wanted.epoch, w->wanted.step);
	struct checkpoint *newer;

	if (!c) {
		answer_from_log(j, w);
		return;
	}
	if (reached(c, w->wanted.what)) {
		session_reply_ok(w->session, w->request);
		waiter_free(w);
	} else if (c->agreed == CP_ABORTED) {
		answer_error(w, CKPT_EABORTED, "it was aborted: ", c->reason);
	} else if (j->log_error) {
		answer_error(w, CKPT_ESTALE, "", j->log_text);
	} else if (w->wanted.what == CKPT_DURABLE && c->durable == DUR_DONE &&
		   !rewrite_may_help(c)) {
		answer_error(w, CKPT_ELOST, "its files are damaged", "");
	} else if (w->wanted.what == CKPT_DURABLE && c->durable == DUR_FAILED) {
		answer_error(w, CKPT_EIO, "writing it failed: ", c->reason);
	} else if (w->wanted.what == CKPT_DURABLE && c->no_room && j->disk_text[0]) {
		answer_error(w, j->folder_away ? CKPT_EIO : CKPT_ENOSPACE,
			     j->folder_away
				     ? "it is in memory, and is written when the folder is back: "
				     : "it is in memory, and is written when there is room: ",
			     c->durable == DUR_DONE ? j->disk_text : c->reason);
	} else if (w->wanted.what == CKPT_DURABLE && c->durable == DUR_DONE) {
		return; /* until its files were written again */
	} else if (w->wanted.what == CKPT_DURABLE && !c->wait_durable && !w->wanted.asks) {
		c->wait_durable = true;
		job_poke(j);
	} else if (w->wanted.what == CKPT_DURABLE && c->agreed == CP_COMMITTED && !c->persist) {
		newer = newest_committed(j);
		if (newer && newer->record_n > c->record_n && !c->pinned)
			answer_superseded(w, newer->step);
		else if (!persist_can(c))
			answer_error(w, CKPT_ELOST,
				     "its copy in memory is damaged, and it was not on disk yet",
				     "");
	}
}

/* How many may be answered in a call; one at least. */
static uint64_t answers_in_a_call(const struct job *j)
{
	uint64_t looks = 1 + j->history.n_commits + j->history.n_aborts;
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link)
		looks++;
	return max_u64(1, min_u64(LOOKS_IN_A_CALL / looks, ANSWERS_IN_A_CALL));
}

static uint64_t answers_budget(struct rounds *r)
{
	const struct job *j = container_of(r, struct job, waits);

	return job_stopped(j) ? 0 : answers_in_a_call(j); /* its next step ends the waits */
}

static uint64_t answer_visit(struct rounds *r, struct round_item *item)
{
	answer_one(container_of(r, struct job, waits), container_of(item, struct waiter, item));
	return 1;
}

void checkpoint_answer(struct job *j)
{
	rounds_begin(&j->waits, j->history.job.uid);
}

void waiters_init(struct job *j)
{
	j->waits = (struct rounds){.loop = j->node->env.loop,
				   .label = "waits for a checkpoint",
				   .budget = answers_budget,
				   .visit = answer_visit};
	rounds_init(&j->waits);
}

int checkpoint_wait(struct job *j, struct session *s, uint64_t request,
		    const struct wait_request *wanted, struct err *e)
{
	struct waiter *w;
	int r = user_may_wait(s, e);

	if (r < 0)
		return r;
	if (wanted->what < CKPT_SEALED || wanted->what > CKPT_DURABLE)
		return err_set(e, -EINVAL, "wait for step %llu: there is no state %u",
			       (unsigned long long)wanted->step, wanted->what);
	w = alloc_zero(sizeof(*w));
	if (!w)
		return err_code(e, -ENOMEM, "wait for step %llu", (unsigned long long)wanted->step);
	w->job = j;
	w->session = session_ref(s);
	session_use(s)->waits++;
	user_add(session_user(s), USER_WAITS, 1);
	list_add_tail(session_waits(s), &w->of_session);
	w->request = request;
	w->wanted = *wanted;
	rounds_add(&j->waits, &w->item);
	answer_one(j, w);
	return 0;
}

void waiters_stop(struct job *j, int code, const char *text)
{
	struct waiter *w, *next;

	list_each_safe(w, next, &j->waits.items, item.link) {
		session_reply_error(w->session, w->request, code, text);
		waiter_free(w);
	}
}

void waiters_forget(struct job *j)
{
	rounds_stop(&j->waits);
	while (!list_empty(&j->waits.items))
		waiter_free(list_first(&j->waits.items, struct waiter, item.link));
}

void waiters_drop_session(struct session *s)
{
	while (!list_empty(session_waits(s)))
		waiter_free(list_first(session_waits(s), struct waiter, of_session));
}

void waiter_cancel(struct session *s, uint64_t request)
{
	struct waiter *w, *next;
	const char *text;

	list_each_safe(w, next, session_waits(s), of_session) {
		if (w->request != request)
			continue;
		text = w->job->log_text[0] ? w->job->log_text : "the wait was cancelled";
		session_reply_error(s, request, CKPT_ETIMEDOUT, text);
		waiter_free(w);
	}
}
