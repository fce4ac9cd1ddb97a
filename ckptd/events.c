/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.c - the ring of events.
 *
 * Invariants: (1) numbers in the ring rise from its first event to its last; where it is full, the
 * one that goes is the oldest of an owner with the most, so that one user who makes many events
 * pushes out its own, and those of others leave gaps before them; (2) an event
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
#include "ckptd/events_priv.h"
#include "ckptd/log.h"
#include "ckptd/node_priv.h"

#define NEARLY (EVENTS_KEPT / 64)
#define WORDS_MAX 1024 /* a sentence that quotes one of a trainer goes in whole */

const char *event_kind_word(enum event_kind k)
{
	static const char *const words[] = {
#define X(name, word, text) word,
		EVENT_KINDS(X)
#undef X
	};
	return (unsigned)k < EVENT_KIND_COUNT ? words[k] : "?";
}

/* ---- Events ---- */

struct event *event_ref(struct event *e)
{
	e->refs++;
	return e;
}

void event_unref(struct event *e)
{
	assert(e->refs > 0);
	if (--e->refs > 0)
		return;
	alloc_free(e->line);
	alloc_free(e->about);
	alloc_free(e);
}

void event_drop(struct event *e)
{
	list_del(&e->link);
	event_unref(e);
}

static struct event_owner *owner_of(struct events *ev, uint32_t uid)
{
	struct event_owner *o;

	list_each(o, &ev->owners, link)
		if (o->uid == uid)
			return o;
	o = alloc_zero(sizeof(*o));
	if (!o)
		return NULL;
	o->uid = uid;
	list_init(&o->events);
	list_add_tail(&ev->owners, &o->link);
	return o;
}

/* Its reference is the caller's. */
static void leave_ring(struct events *ev, struct event *e)
{
	struct event_owner *o = e->owner;

	assert(o && o->n > 0 && ev->n > 0);
	list_del(&e->link);
	list_del(&e->of_owner);
	e->owner = NULL;
	ev->n--;
	if (--o->n > 0)
		return;
	list_del(&o->link);
	alloc_free(o);
}

/* The oldest of the owners with the most, or nearly as many: then numbers mostly have no gap. */
static struct event *one_too_many(struct events *ev)
{
	struct event *found = NULL;
	struct event_owner *o;
	size_t most = 0;

	list_each(o, &ev->owners, link)
		most = o->n > most ? o->n : most;
	list_each(o, &ev->owners, link) {
		struct event *first = list_first(&o->events, struct event, of_owner);

		if (o->n + NEARLY >= most && (!found || first->seq < found->seq))
			found = first;
	}
	return found;
}

/* Takes the reference. False: out of memory. */
static bool keep(struct events *ev, struct event *e)
{
	struct event_owner *o = owner_of(ev, e->uid);
	struct event *old;

	if (!o) {
		event_unref(e);
		ev->dropped++;
		return false;
	}
	e->owner = o;
	o->n++;
	list_add_tail(&o->events, &e->of_owner);
	list_add_tail(&ev->ring, &e->link);
	ev->n++;
	if (ev->n > EVENTS_KEPT) { /* (1) */
		old = one_too_many(ev);
		leave_ring(ev, old);
		event_unref(old);
	}
	return true;
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
	e->len = strlen(line);
	ev->next_seq++;
	return true;
}

static void add(struct events *ev, struct event *e)
{
	if (!number(ev, e)) {
		event_drop(e);
		ev->dropped++;
		return;
	}
	event_ref(e);
	if (keep(ev, e))
		events_poke(ev);
	events_write(ev, e);
	event_unref(e);
}

/* Made once, on the stack: a run's end may clear 17 verdicts in one call of the loop. */
static char *dump(json_t *o)
{
	char buf[EVENTS_LINE_MAX - 32];
	size_t len = json_dumpb(o, buf, sizeof(buf) - 1, JSON_COMPACT);

	if (len == 0 || len >= sizeof(buf))
		return NULL;
	buf[len] = '\0';
	return alloc_str(buf);
}

struct event *event_new(const struct event *head, char *line, const json_t *o)
{
	const char *about = json_string_value(json_object_get(json_object_get(o, "subject"),
							      "words"));
	struct event *e = line ? alloc_zero(sizeof(*e)) : NULL;

	if (e) {
		*e = *head;
		list_init(&e->link);
		list_init(&e->of_owner);
		e->refs = 1;
		e->line = line;
		e->len = strlen(line);
		e->about = about ? alloc_str(about) : NULL;
	}
	if (!e || (about && !e->about)) {
		alloc_free(line);
		alloc_free(e);
		return NULL;
	}
	return e;
}

static void take(struct events *ev, const struct event *head, json_t *o)
{
	struct event *e = event_new(head, o ? dump(o) : NULL, o);

	json_decref(o);
	if (!e) {
		ev->dropped++;
		return;
	}
	if (ev->adopted)
		add(ev, e);
	else
		ignore_result(keep(ev, e) /* (2) */);
}

/* The job and the step that an event's fields name. */
static struct log_about about_of(const json_t *subject, const json_t *more)
{
	const json_t *job = json_object_get(subject, "job"), *step = json_object_get(more, "step");

	if (!job)
		job = json_object_get(more, "job");
	return (struct log_about){.job = json_string_value(job),
				  .has_step = json_is_integer(step),
				  .step = (uint64_t)json_integer_value(step)};
}

void events_post(struct events *ev, enum event_kind kind, int level, uint32_t uid, json_t *subject,
		 json_t *more, const char *fmt, ...)
{
	struct node *n = ev->node;
	struct event head = {.wall_ns = loop_wall(n->env.loop), .uid = uid};
	struct log_about about;
	char words[WORDS_MAX];
	json_t *o;
	va_list ap;

	va_start(ap, fmt);
	if (vsnprintf(words, sizeof(words), fmt, ap) >= (int)sizeof(words))
		text_shorten(words, sizeof(words));
	va_end(ap);
	text_clean(words);
	about = about_of(subject, more);
	if (!(level & EVENT_UNLOGGED))
		n->env.log(n->env.log_arg, level, &about, words);
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
		leave_ring(ev, e);
		list_add_tail(&early, &e->link);
	}
	list_each_safe(e, next, &f->list, link) {
		list_del(&e->link);
		ignore_result(keep(ev, e) /* it is dropped, and counted */);
	}
	ev->next_seq = f->next;
	ev->adopted = true;
	list_each_safe(e, next, &early, link) {
		list_del(&e->link);
		list_init(&e->link);
		add(ev, e);
	}
	events_poke(ev);
}

int events_new(struct node *n, struct events **ret)
{
	struct events *ev = alloc_zero(sizeof(*ev));

	if (!ev)
		return -ENOMEM;
	ev->node = n;
	ev->next_seq = 1;
	list_init(&ev->ring);
	list_init(&ev->owners);
	events_answer_init(ev);
	events_file_init(ev);
	*ret = ev;
	return 0;
}

void events_free(struct events *ev)
{
	struct event *e, *next;

	if (!ev)
		return;
	events_answer_fini(ev);
	list_each_safe(e, next, &ev->ring, link) {
		leave_ring(ev, e);
		event_unref(e);
	}
	events_file_fini(ev);
	alloc_free(ev);
}
