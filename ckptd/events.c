/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.c - the ring of events, and those who wait for the next one.
 *
 * Invariants: (1) numbers in the ring rise by one from its first event to its last; (2) an event
 * that was posted before events_adopt() has no number and is shown to nobody; (3) what waits to be
 * written is bounded: beyond PENDING_MAX the file misses events, the ring does not.
 */
#include <config.h>

#include "ckptd/events.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "ckptd/admin.h"
#include "ckptd/events_priv.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

const char *event_kind_word(enum event_kind k)
{
	static const char *const words[] = {
#define X(name, word, text) word,
		EVENT_KINDS(X)
#undef X
	};
	return (unsigned)k < EVENT_KIND_COUNT ? words[k] : "?";
}

/* ---- Who waits ---- */

struct event_waiter {
	struct list link;
	struct session *session;
	uint64_t request;
	struct events_question q;
};

static bool wanted(const struct event *e, const struct events_question *q)
{
	return e->seq > q->since && e->wall_ns >= q->since_ns &&
	       (e->uid == EVENT_FOR_ALL || q->sees_all || e->uid == q->uid);
}

static bool any_wanted(const struct events *ev, const struct events_question *q)
{
	struct event *e;

	if (!ev->adopted)
		return false;
	list_each(e, &ev->ring, link)
		if (wanted(e, q))
			return true;
	return false;
}

static void waiter_free(struct event_waiter *w)
{
	list_del(&w->link);
	session_unref(w->session);
	alloc_free(w);
}

static void answer_waiters(struct task *t)
{
	struct events *ev = container_of(t, struct events, task);
	struct event_waiter *w, *next;

	ev->posted = false;
	list_each_safe(w, next, &ev->waiters, link) {
		if (!any_wanted(ev, &w->q))
			continue;
		admin_reply_json(w->session, w->request, events_answer(ev, &w->q));
		waiter_free(w);
	}
}

static void poke(struct events *ev)
{
	if (ev->posted || list_empty(&ev->waiters))
		return;
	ev->posted = true;
	loop_post(ev->node->env.loop, &ev->task);
}

void events_drop_session(struct events *ev, struct session *s)
{
	struct event_waiter *w, *next;

	if (!ev)
		return;
	list_each_safe(w, next, &ev->waiters, link)
		if (w->session == s)
			waiter_free(w);
}

void events_ask(struct events *ev, struct session *s, uint64_t request,
		const struct events_question *q)
{
	struct event_waiter *w;

	events_drop_session(ev, s);
	if (!q->wait || any_wanted(ev, q)) {
		admin_reply_json(s, request, events_answer(ev, q));
		return;
	}
	w = alloc_zero(sizeof(*w));
	if (!w) {
		admin_reply_json(s, request, NULL);
		return;
	}
	w->session = session_ref(s);
	w->request = request;
	w->q = *q;
	list_add_tail(&ev->waiters, &w->link);
}

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

json_t *events_about(struct events *ev, events_share_fn *share, void *arg, size_t most,
		     const struct events_question *q, size_t *ret_more)
{
	size_t left[] = {[EVENTS_FIRST] = most, [EVENTS_OTHER] = most};
	json_t *list = json_array();

	*ret_more = 0;
	if (!list || !ev->adopted)
		return list;
	for (struct list *at = ev->ring.prev; at != &ev->ring; at = at->prev) {
		struct event *e = container_of(at, struct event, link);
		json_t *o = wanted(e, q) ? json_loads(e->line, JSON_REJECT_DUPLICATES, NULL) : NULL;
		const json_t *who = json_object_get(o, "subject");
		enum events_share of = EVENTS_NONE;

		if (o)
			of = share(arg, json_string_value(json_object_get(who, "words")), e->uid);
		if (of != EVENTS_NONE && left[of] > 0) {
			left[of]--;
			json_array_insert(list, 0, o);
		} else if (of != EVENTS_NONE) {
			(*ret_more)++;
		}
		json_decref(o);
	}
	return list;
}

/* ---- Events ---- */

void event_free(struct event *e)
{
	list_del(&e->link);
	alloc_free(e->line);
	alloc_free(e);
}

static void keep(struct events *ev, struct event *e)
{
	list_add_tail(&ev->ring, &e->link);
	ev->n++;
	if (ev->n > EVENTS_KEPT) {
		event_free(container_of(ev->ring.next, struct event, link));
		ev->n--;
	}
}

/* The line gets its number in front; what there is of it begins with '{'. */
static bool number(struct events *ev, struct event *e)
{
	size_t len = strlen(e->line) + 32;
	char *line = alloc_zero(len);

	if (!line)
		return false;
	e->seq = ev->next_seq;
	snprintf(line, len, "{\"seq\":%llu,%s", (unsigned long long)e->seq, e->line + 1);
	alloc_free(e->line);
	e->line = line;
	ev->next_seq++;
	return true;
}

static void add(struct events *ev, struct event *e)
{
	if (!number(ev, e)) {
		event_free(e);
		ev->dropped++;
		return;
	}
	keep(ev, e);
	events_write(ev, e);
	poke(ev);
}

static char *dump(json_t *o)
{
	size_t len = json_dumpb(o, NULL, 0, JSON_COMPACT);
	char *line = len > 0 && len < EVENTS_LINE_MAX - 32 ? alloc_zero(len + 1) : NULL;

	if (line)
		json_dumpb(o, line, len, JSON_COMPACT);
	return line;
}

static void take(struct events *ev, const struct event *head, json_t *o)
{
	struct event *e = alloc_zero(sizeof(*e));

	if (e) {
		*e = *head;
		list_init(&e->link);
		e->line = o ? dump(o) : NULL;
	}
	json_decref(o);
	if (!e || !e->line) {
		alloc_free(e);
		ev->dropped++;
		return;
	}
	if (ev->adopted)
		add(ev, e);
	else
		keep(ev, e); /* (2) */
}

void events_post(struct events *ev, enum event_kind kind, int level, uint32_t uid, json_t *subject,
		 json_t *more, const char *fmt, ...)
{
	struct node *n = ev->node;
	struct event head = {.wall_ns = loop_wall(n->env.loop), .uid = uid};
	char words[640];
	json_t *o;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(words, sizeof(words), fmt, ap);
	va_end(ap);
	text_clean(words);
	if (!(level & EVENT_UNLOGGED))
		n->env.log(n->env.log_arg, level, words);
	o = json_pack("{s:I, s:s, s:i, s:s, s:s}", "time_ns", (json_int_t)head.wall_ns, "kind",
		      event_kind_word(kind), "severity", level & ~EVENT_UNLOGGED, "node",
		      n->options.name, "words", words);
	if (o && uid != EVENT_FOR_ALL)
		json_object_set_new(o, "uid", json_integer(uid));
	if (o && subject)
		json_object_set_new(o, "subject", subject);
	else
		json_decref(subject);
	if (o && more)
		json_object_update_missing(o, more);
	json_decref(more);
	take(ev, &head, o);
}

void events_adopt(struct events *ev, struct events_found *f)
{
	struct list early;
	struct event *e, *next;

	assert(!ev->adopted);
	list_init(&early);
	list_each_safe(e, next, &ev->ring, link) {
		list_del(&e->link);
		list_add_tail(&early, &e->link);
	}
	ev->n = 0;
	list_each_safe(e, next, &f->list, link) {
		list_del(&e->link);
		keep(ev, e);
	}
	ev->next_seq = f->next;
	ev->adopted = true;
	list_each_safe(e, next, &early, link) {
		list_del(&e->link);
		list_init(&e->link);
		add(ev, e);
	}
	poke(ev);
}

int events_new(struct node *n, struct events **ret)
{
	struct events *ev = alloc_zero(sizeof(*ev));

	if (!ev)
		return -ENOMEM;
	ev->node = n;
	ev->next_seq = 1;
	list_init(&ev->ring);
	list_init(&ev->waiters);
	list_init(&ev->task.link);
	ev->task.run = answer_waiters;
	events_file_init(ev);
	*ret = ev;
	return 0;
}

void events_free(struct events *ev)
{
	struct event_waiter *w, *w_next;
	struct event *e, *next;

	if (!ev)
		return;
	list_each_safe(w, w_next, &ev->waiters, link)
		waiter_free(w);
	list_each_safe(e, next, &ev->ring, link)
		event_free(e);
	events_file_fini(ev);
	alloc_free(ev);
}
