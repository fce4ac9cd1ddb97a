/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.c - answers that take too long for one call on the loop, which serves all users' saves.
 *
 *   WAITING    behind others of its user, or of all users, which take turns (base/fair.h)
 *   GATHERING  slices of ANSWER_SLICE points, each a task of its user: the loop takes turns
 *              between users, so that no answer waits for what another user has posted
 *   MAKING     a META worker makes the text of what was gathered, and the memfd of a long one
 *   ENDED      sent, unless the session has ended
 *
 * A session has one answer under way. Sessions of a uid are bounded (listener.c), so waiting
 * answers are bounded, and hold no memory but their question. ANSWERS_MAX bounds those that hold
 * more.
 *
 * Invariants: (1) an answer has one slice posted at most, and none unless it gathers; (2) make()
 * runs once for each answer that has gathered, also for one that is dropped: documents are freed
 * where they are dumped, as that costs as much; (3) only the loop accesses an answer, except in
 * MAKING: then a worker has what make() uses.
 *
 * Failure modes: out of memory, or no memfd: the session gets an error; nothing else changes. While
 * no worker is free these answers wait; saves do not wait for them.
 */
#include <config.h>

#include "ckptd/answer.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/admin.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

#define SLICE_CHARGE_NS 1000000u /* charged to its user: a slice takes that long at most */

static void start_next(struct node *n);

/* ---- The end ---- */

static void send_it(struct answer *a)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__AdminReply body = CKPT__ADMIN_REPLY__INIT;

	if (a->code < 0) {
		session_reply_error(a->session, a->request, a->code, a->why[0] ? a->why : NULL);
		return;
	}
	reply.id = a->request;
	reply.body_case = CKPT__REPLY__BODY_ADMIN;
	reply.admin = &body;
	if (a->kind->reply)
		a->kind->reply(a, &reply, a->fd >= 0);
	else if (a->fd >= 0)
		body.in_fd = true;
	else
		body.json = (ProtobufCBinaryData){a->len, (uint8_t *)a->text};
	session_reply(a->session, &reply, &a->fd, a->fd >= 0);
	a->fd = -1; /* it was taken */
}

/* Ends an answer that is in no list but `all`. */
static void end(struct answer *a)
{
	a->state = ANSWER_ENDED;
	list_del(&a->in_all);
	if (!answer_dropped(a) && session_connected(a->session))
		send_it(a);
	if (a->fd >= 0) /* the only descriptor: its close frees the pages */
		node_close_unsent(a->node, session_process(a->session)->uid, &a->fd, 1);
	assert(session_use(a->session)->answers > 0);
	session_use(a->session)->answers--;
	session_unref(a->session);
	alloc_free(a->text);
	a->kind->free(a);
}

/* ---- On a worker ---- */

static void make_run(struct work *w)
{
	struct answer *a = container_of(w, struct answer, work);
	struct memory *m = a->node->env.memory;

	a->kind->make(a);
	if (a->code < 0 || a->len <= ANSWER_INLINE_MAX)
		return;
	if (answer_dropped(a)) {
		alloc_free(a->text);
		a->text = NULL;
		return;
	}
	a->fd = m->ops->bytes_to_fd(m, a->text, a->len);
	if (a->fd < 0)
		answer_fail(a, a->fd, "%s: the answer of %zu bytes could not be handed over: %s",
			    a->kind->verb, a->len, err_text(a->fd));
	alloc_free(a->text); /* here, as that costs as much as making it */
	a->text = NULL;
}

void answer_fail(struct answer *a, int code, const char *fmt, ...)
{
	va_list ap;

	assert(code < 0);
	a->code = code;
	va_start(ap, fmt);
	vsnprintf(a->why, sizeof(a->why), fmt, ap);
	va_end(ap);
}

bool answer_dropped(struct answer *a)
{
	return work_cancelled(&a->work);
}

void answer_put(struct answer *a, const char *bytes, size_t len)
{
	size_t cap = a->cap;
	uint64_t need;
	char *text;

	if (a->code < 0)
		return;
	if (!size_add(a->len, len, &need) || need > SIZE_MAX / 4) {
		answer_fail(a, -EMSGSIZE, "%s: the answer is too long", a->kind->verb);
		return;
	}
	while (cap < need)
		cap = cap ? 2 * cap : 4096;
	if (cap > a->cap) {
		text = alloc_resize(a->text, cap);
		if (!text) {
			answer_fail(a, -ENOMEM, "%s: out of memory", a->kind->verb);
			return;
		}
		a->text = text;
		a->cap = cap;
	}
	assert(need <= a->cap);
	memcpy(a->text + a->len, bytes, len);
	a->len = (size_t)need;
}

static int put_piece(const char *bytes, size_t len, void *arg)
{
	struct answer *a = arg;

	answer_put(a, bytes, len);
	return a->code < 0 || answer_dropped(a) ? -1 : 0;
}

void answer_put_json(struct answer *a, json_t *doc)
{
	if (!doc || (json_dump_callback(doc, put_piece, a, JSON_COMPACT) < 0 && a->code == 0))
		answer_fail(a, -ENOMEM, "%s: out of memory", a->kind->verb);
	json_decref(doc);
}

/* ---- On the loop ---- */

static void make_done(struct work *w)
{
	struct answer *a = container_of(w, struct answer, work);
	struct node *n = a->node;

	assert(a->state == ANSWER_MAKING && n->answers.n > 0);
	fair_charge(&n->answers.waiting, a->flow, (uint64_t)a->slices * SLICE_CHARGE_NS);
	n->answers.n--;
	end(a);
	n->side_works--;
	start_next(n);
}

static void make(struct answer *a)
{
	struct node *n = a->node;

	list_del(&a->link);
	a->state = ANSWER_MAKING;
	a->work.run = make_run;
	a->work.done = make_done;
	n->side_works++;
	work_submit(n->env.workers, WORK_META, session_process(a->session)->uid, &a->work);
}

static void slice(struct task *t)
{
	struct answer *a = container_of(t, struct answer, slice);
	struct node *n = a->node;
	unsigned left = ANSWER_SLICE;

	loop_label(n->env.loop, "a slice of an answer");
	assert(a->state == ANSWER_GATHERING);
	a->slices++;
	n->answers.slices++;
	if (answer_dropped(a) || a->kind->gather(a, &left))
		make(a);
	else
		loop_post(n->env.loop, &a->slice);
}

static void start_next(struct node *n)
{
	struct answers *all = &n->answers;
	struct answer *a;
	struct list *l;
	uint32_t uid;

	while (all->n < ANSWERS_MAX) {
		l = fair_take(&all->waiting, ANSWERS_PER_UID, &uid);
		if (!l)
			break;
		a = container_of(l, struct answer, link);
		assert(a->state == ANSWER_WAITING);
		a->flow = uid;
		all->n++;
		a->state = ANSWER_GATHERING;
		list_add_tail(&all->gathering, &a->link);
		task_init(&a->slice, session_process(a->session)->uid, slice);
		loop_post(n->env.loop, &a->slice);
	}
}

bool answer_refused(struct session *s, uint64_t request, const struct answer_kind *kind)
{
	const struct node *n = session_node(s);
	char text[ERR_TEXT_MAX];

	if (n->stopping && (node_stop_over(n) || !admin_sees_all(s))) {
		snprintf(text, sizeof(text), "%s: ckptd is stopping; ask again when it has started",
			 kind->verb);
		session_reply_error(s, request, -EAGAIN, text);
		return true;
	}
	if (session_use(s)->answers == 0)
		return false;
	snprintf(text, sizeof(text),
		 "%s: this connection of user %u waits for an answer already, and gets one at a "
		 "time: ask again when it has come",
		 kind->verb, session_process(s)->uid);
	session_reply_error(s, request, -EAGAIN, text);
	return true;
}

void answer_start(struct answer *a, const struct answer_kind *kind, struct session *s,
		  uint64_t request)
{
	struct node *n = session_node(s);

	assert(!a->kind && a->state == ANSWER_WAITING);
	list_init(&a->link);
	a->kind = kind;
	a->node = n;
	a->session = session_ref(s);
	a->request = request;
	a->fd = -1;
	session_use(s)->answers++;
	list_add_tail(&n->answers.all, &a->in_all);
	fair_push(&n->answers.waiting, session_process(s)->uid, &a->link);
	start_next(n);
}

static void cancel(struct answer *a)
{
	atomic_store_explicit(&a->work.cancel, true, memory_order_relaxed);
}

void answers_drop_session(struct node *n, struct session *s)
{
	struct answer *a, *next;

	if (session_use(s)->answers == 0)
		return;
	list_each_safe(a, next, &n->answers.all, in_all) {
		if (a->session != s)
			continue;
		cancel(a);
		if (a->state == ANSWER_WAITING) { /* it has gathered nothing */
			list_del(&a->link);
			end(a);
		}
	}
}

void answers_cancel_all(struct node *n)
{
	struct answer *a;

	list_each(a, &n->answers.all, in_all)
		cancel(a);
}

void answers_unlink(struct node *n, const struct list *link)
{
	struct answer *a;

	list_each(a, &n->answers.gathering, link)
		if (a->kind->unlinked)
			a->kind->unlinked(a, link);
}

void answers_init(struct node *n)
{
	fair_init(&n->answers.waiting);
	list_init(&n->answers.gathering);
	list_init(&n->answers.all);
}

/* Workers have ended. */
void answers_fini(struct node *n)
{
	struct answers *all = &n->answers;
	struct answer *a, *next;

	list_each_safe(a, next, &all->all, in_all) {
		assert(a->state == ANSWER_WAITING || a->state == ANSWER_GATHERING);
		list_del(&a->link);
		cancel(a);
		if (a->state == ANSWER_GATHERING) {
			loop_unpost(n->env.loop, &a->slice);
			a->kind->make(a); /* (2) */
			fair_charge(&all->waiting, a->flow, 0);
		}
		end(a);
	}
	fair_fini(&all->waiting);
}
