/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait.c - how far a checkpoint has come.
 *
 * ckptd answers when the state is reached or never will be; the deadline is kept here. A wait that
 * only asks (timeout 0) is followed by its own cancellation: whichever ckptd handles first answers
 * it, at once.
 */
#include <config.h>

#include <errno.h>

#include "client/client.h"

struct waiting {
	struct request q;
	uint64_t newer;
};

static int wait_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct waiting *w = container_of(q, struct waiting, q);

	(void)fds;
	(void)n_fds;
	if (reply->body_case == CKPT__REPLY__BODY_WAIT)
		w->newer = reply->wait->newer_step;
	return 0;
}

static const char *state_name(enum ckpt_state what)
{
	return what == CKPT_SEALED ? "sealed" : what == CKPT_COMMITTED ? "committed" : "durable";
}

static void cancel(struct ckpt *c, uint64_t id)
{
	Ckpt__Cancel body = CKPT__CANCEL__INIT;
	struct request q;

	if (!c->rq.channel.up)
		return;
	body.request = id;
	request_init(&q, NULL);
	q.message.body_case = CKPT__REQUEST__BODY_CANCEL;
	q.message.cancel = &body;
	ignore_result(request_start(&c->rq, &q, 0) /* ckptd also forgets it with the session */);
	request_forget(&q);
}

/* Asks, and takes the question back in the same breath. */
static int ask(struct ckpt *c, struct waiting *w, struct err *e)
{
	uint64_t deadline = deadline_in(ASK_MS);
	int r = session_ensure(c, deadline, e);

	if (r == 0)
		r = request_start(&c->rq, &w->q, deadline);
	if (r == 0)
		cancel(c, w->q.message.id);
	while (r == 0 && !w->q.done)
		r = requests_pump(&c->rq, deadline);
	request_forget(&w->q);
	if (r == 0)
		return w->q.status;
	if (r == CKPT_EUNAVAILABLE)
		return r;
	if (r == CKPT_ETIMEDOUT)
		ignore_result(session_is_silent(c, ASK_MS) /* this call has failed */);
	return err_set(e, CKPT_EUNAVAILABLE, "ckptd at '%s' gave no answer: %s", c->socket,
		       err_text(r));
}

static bool log_is_down(const struct ckpt *c)
{
	return c->page && atomic_load_explicit(&c->page->uncommitted, memory_order_relaxed) > 0;
}

static int wait_for(struct ckpt *c, uint64_t step, enum ckpt_state what, int64_t timeout_ms,
		    uint64_t *ret_newer, struct err *e)
{
	Ckpt__Wait body = CKPT__WAIT__INIT;
	struct waiting w = { .newer = 0 };
	int r;

	if (what < CKPT_SEALED || what > CKPT_DURABLE)
		return err_set(e, -EINVAL, "there is no state %d to wait for", (int)what);
	r = timeout_check(timeout_ms, e);
	if (r < 0)
		return r;
	body.step = step;
	body.what = (uint32_t)what;
	body.epoch = c->looks ? 0 : c->epoch; /* 0: the job's, whatever it is */
	request_init(&w.q, e);
	w.q.message.body_case = CKPT__REQUEST__BODY_WAIT;
	w.q.message.wait = &body;
	w.q.reply = wait_reply;
	body.asks = timeout_ms == 0;
	if (body.asks) {
		r = ask(c, &w, e);
	} else {
		c->patient = true;
		r = session_call(c, &w.q, call_deadline(c, timeout_ms));
		if (r == CKPT_ETIMEDOUT && !w.q.done)
			cancel(c, w.q.message.id);
	}
	if (r == CKPT_ETIMEDOUT)
		return err_set(e, r, "step %llu is not %s yet%s%s%s", (unsigned long long)step,
			       state_name(what), log_is_down(c) ? ": ckptd cannot write the job's "
								  "log; see `ckptctl status "
								: "",
			       log_is_down(c) ? c->who.job : "", log_is_down(c) ? "`" : "");
	if (r == CKPT_ESUPERSEDED && ret_newer)
		*ret_newer = w.newer;
	return r;
}

int ckpt_wait(struct ckpt *c, uint64_t step, enum ckpt_state what, int64_t timeout_ms,
	      uint64_t *ret_newer)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_wait", r, &e);
	beating_begin(c->beat, CKPT_PHASE_CHECKPOINT, "wait");
	r = wait_for(c, step, what, timeout_ms, ret_newer, &e);
	beating_end(c->beat);
	return call_leave(c, "ckpt_wait", r, &e);
}
