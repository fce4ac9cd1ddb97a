/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events_answer.c - events as answers, and the sessions that wait for the next event.
 *
 * An answer takes references to events from the newest to the oldest, in slices (answer.h). Where
 * the ring drops the event that comes next meanwhile, the answer goes on with the newest of those
 * that are older. A worker joins the lines, which are JSON already.
 *
 * Invariants: (1) a waiter was looked at up to its `seen`: only newer events can end its wait;
 * (2) a turn of the loop looks at WAITERS_SLICE waiters; (3) a session waits once, and a user's
 * sessions EVENTS_WAITERS_PER_UID times.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "ckptd/events_priv.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

#define WAITERS_SLICE 16u

static bool wanted(const struct event *e, const struct events_question *q)
{
	return e->seq > q->since && e->wall_ns >= q->since_ns &&
	       (e->uid == EVENT_FOR_ALL || q->sees_all || e->uid == q->uid);
}

static struct event *newest(struct events *ev)
{
	return ev->adopted ? list_last(&ev->ring, struct event, link) : NULL;
}

/* NULL: there is none in the ring. */
static struct event *older(struct events *ev, struct event *e)
{
	struct list *at = e->owner ? e->link.prev : ev->ring.prev;

	/* Has it left the ring, its neighbours may have, too. */
	while (at != &ev->ring && container_of(at, struct event, link)->seq > e->seq)
		at = at->prev;
	return at == &ev->ring ? NULL : container_of(at, struct event, link);
}

/* ---- Taking ---- */

static bool found_one(struct events_taken *x, struct event *e)
{
	size_t cap = x->cap ? 2 * x->cap : 64;
	struct event **found;

	if (x->n == x->cap) {
		found = alloc_resize(x->found, cap * sizeof(struct event *));
		if (!found)
			return false;
		x->found = found;
		x->cap = cap;
	}
	x->found[x->n++] = event_ref(e);
	return true;
}

static void go_to(struct events_taken *x, struct event *e)
{
	struct event *was = x->at;

	x->at = e ? event_ref(e) : NULL;
	if (was)
		event_unref(was);
}

int events_take(struct events *ev, struct events_taken *x, unsigned *left)
{
	if (!x->begun) {
		x->begun = true;
		x->next = ev->adopted ? ev->next_seq : 1;
		x->dropped = ev->dropped;
		go_to(x, newest(ev));
	}
	for (; x->at && x->at->seq > x->q.since && *left > 0; go_to(x, older(ev, x->at))) {
		answer_cost(left, 1);
		if (x->at->owner && wanted(x->at, &x->q) && !found_one(x, x->at))
			return -ENOMEM;
	}
	return x->at && x->at->seq > x->q.since ? 0 : 1;
}

void events_let_go(struct events_taken *x)
{
	go_to(x, NULL);
	for (size_t i = 0; i < x->n; i++)
		event_unref(x->found[i]);
	alloc_free(x->found);
}

json_t *events_about(const struct events_taken *x, events_share_fn *share, void *arg, size_t most,
		     size_t *ret_more)
{
	size_t left[] = {[EVENTS_FIRST] = most, [EVENTS_OTHER] = most}, n = 0;
	CLEANUP_FREE struct event **chosen = alloc_array(2 * most, sizeof(struct event *));
	json_t *list = json_array();

	*ret_more = 0;
	for (size_t i = 0; i < x->n && chosen; i++) {
		struct event *e = x->found[i];
		enum events_share of = share(arg, e->about, e->uid);

		if (of != EVENTS_NONE && left[of] > 0) {
			left[of]--;
			chosen[n++] = e;
		} else if (of != EVENTS_NONE) {
			(*ret_more)++;
		}
	}
	while (n-- > 0)
		json_array_append_new(list, json_loads(chosen[n]->line, 0, NULL));
	if (!chosen) {
		json_decref(list);
		return NULL;
	}
	return list;
}

/* ---- An answer ---- */

struct events_answer {
	struct answer answer;
	struct events *events;
	struct events_taken taken;
};

static bool gather(struct answer *a, unsigned *left)
{
	struct events_answer *x = container_of(a, struct events_answer, answer);
	int r = events_take(x->events, &x->taken, left);

	if (r < 0)
		answer_fail(a, r, "events: out of memory");
	return r != 0;
}

static void make(struct answer *a)
{
	struct events_answer *x = container_of(a, struct events_answer, answer);
	const struct events_taken *t = &x->taken;
	char head[128];
	int len =
		snprintf(head, sizeof(head),
			 "{\"schema\":2,\"next\":%" PRIu64 ",\"dropped\":%" PRIu64 ",\"events\":[",
			 t->next, t->dropped);

	answer_put(a, head, (size_t)len);
	for (size_t i = t->n; i-- > 0 && !answer_dropped(a);) {
		answer_put(a, t->found[i]->line, t->found[i]->len);
		answer_put(a, ",", i > 0);
	}
	answer_put(a, "]}", 2);
}

static void answer_free(struct answer *a)
{
	struct events_answer *x = container_of(a, struct events_answer, answer);

	events_let_go(&x->taken);
	alloc_free(x);
}

static const struct answer_kind events_kind = {
	.verb = "events",
	.gather = gather,
	.make = make,
	.free = answer_free,
};

static void start(struct events *ev, struct session *s, uint64_t request,
		  const struct events_question *q)
{
	struct events_answer *x = alloc_zero(sizeof(*x));

	if (!x) {
		session_reply_error(s, request, -ENOMEM, "events: out of memory");
		return;
	}
	x->events = ev;
	x->taken.q = *q;
	answer_start(&x->answer, &events_kind, s, request);
}

/* ---- Sessions that wait ---- */

struct event_waiter {
	struct list link;
	struct session *session;
	uint64_t request;
	uint64_t seen; /* (1) */
	struct events_question q;
};

static bool has_come(struct events *ev, struct event_waiter *w)
{
	struct event *e, *first = newest(ev);

	for (e = first; e && e->seq > w->seen; e = older(ev, e))
		if (wanted(e, &w->q))
			return true;
	if (first)
		w->seen = first->seq;
	return false;
}

static void waiter_free(struct events *ev, struct event_waiter *w)
{
	assert(ev->n_waiters > 0);
	ev->n_waiters--;
	list_del(&w->link);
	session_unref(w->session);
	alloc_free(w);
}

static void post_look(struct events *ev)
{
	ev->to_look = ev->to_look < ev->n_waiters ? ev->to_look : ev->n_waiters;
	if (ev->posted || ev->to_look == 0)
		return;
	ev->posted = true;
	loop_post(ev->node->env.loop, &ev->task);
}

static void look(struct task *t)
{
	struct events *ev = container_of(t, struct events, task);

	ev->posted = false;
	loop_label(ev->node->env.loop, "waits for events");
	for (unsigned i = 0; i < WAITERS_SLICE && ev->to_look > 0; i++) { /* (2) */
		struct event_waiter *w = list_first(&ev->waiters, struct event_waiter, link);

		if (!w)
			break;
		ev->to_look--;
		if (has_come(ev, w)) {
			start(ev, w->session, w->request, &w->q);
			waiter_free(ev, w);
		} else {
			list_del(&w->link);
			list_add_tail(&ev->waiters, &w->link);
		}
	}
	post_look(ev);
}

void events_poke(struct events *ev)
{
	ev->to_look = ev->n_waiters;
	post_look(ev);
}

void events_drop_session(struct events *ev, struct session *s)
{
	struct event_waiter *w, *next;

	if (!ev)
		return;
	list_each_safe(w, next, &ev->waiters, link)
		if (w->session == s)
			waiter_free(ev, w);
}

static bool too_many(struct events *ev, struct session *s, uint64_t request)
{
	uint32_t uid = session_process(s)->uid, n = 0;
	char text[ERR_TEXT_MAX];
	struct event_waiter *w;

	list_each(w, &ev->waiters, link)
		n += session_process(w->session)->uid == uid;
	if (n < EVENTS_WAITERS_PER_UID)
		return false;
	snprintf(
		text, sizeof(text),
		"events: %u connections of user %u wait for events, as many as ckptd lets one user "
		"have: end one of them, or ask without waiting",
		n, uid);
	session_reply_error(s, request, -EAGAIN, text);
	return true;
}

void events_ask(struct events *ev, struct session *s, uint64_t request,
		const struct events_question *q)
{
	struct event_waiter *w;

	events_drop_session(ev, s);
	if (answer_refused(s, request, &events_kind))
		return;
	if (!q->wait) {
		start(ev, s, request, q);
		return;
	}
	if (too_many(ev, s, request)) /* (3) */
		return;
	w = alloc_zero(sizeof(*w));
	if (!w) {
		session_reply_error(s, request, -ENOMEM, "events: out of memory");
		return;
	}
	w->session = session_ref(s);
	w->request = request;
	w->q = *q;
	list_add_tail(&ev->waiters, &w->link);
	ev->n_waiters++;
	events_poke(ev); /* what it waits for may have come before */
}

void events_answer_init(struct events *ev)
{
	list_init(&ev->waiters);
	task_init(&ev->task, FAIR_NODE, look);
}

void events_answer_fini(struct events *ev)
{
	loop_unpost(ev->node->env.loop, &ev->task);
	while (!list_empty(&ev->waiters))
		waiter_free(ev, list_first(&ev->waiters, struct event_waiter, link));
}

/* ---- For ckptd itself ---- */

json_t *events_answer(struct events *ev, const struct events_question *q)
{
	json_t *list = json_array(), *o;
	struct event *e;

	if (ev->adopted) {
		list_each(e, &ev->ring, link) {
			if (!wanted(e, q))
				continue;
			o = json_loads(e->line, JSON_REJECT_DUPLICATES, NULL);
			if (!o || json_array_append_new(list, o) < 0) {
				json_decref(list);
				return NULL;
			}
		}
	}
	return json_pack("{s:i, s:I, s:I, s:o}", "schema", 2, "next",
			 (json_int_t)(ev->adopted ? ev->next_seq : 1), "dropped",
			 (json_int_t)ev->dropped, "events", list);
}
