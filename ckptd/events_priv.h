/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events_priv.h - what events.c, events_file.c and events_answer.c share.
 */
#ifndef CKPTD_EVENTS_PRIV_H
#define CKPTD_EVENTS_PRIV_H

#include "ckptd/events.h"

/* Whose events the ring has: of one uid, or EVENT_FOR_ALL. */
struct event_owner {
	struct list link; /* in events->owners */
	uint32_t uid;
	size_t n;
	struct list events; /* event->of_owner, oldest first */
};

struct event {
	struct list link;
	struct list of_owner;
	struct event_owner *owner; /* NULL: it is not in the ring */
	uint64_t seq, wall_ns;
	uint32_t uid;
	uint32_t refs; /* the loop's; the ring, or what is to become it, has one */
	char *line;    /* JSON; without its number until it has one */
	size_t len;
	char *about; /* how its subject is called; NULL: it has none */
};

/* Events that an answer has taken: q is set, all else zero before. */
struct events_taken {
	struct events_question q;
	bool begun;
	struct event *at;     /* comes next, with a reference; NULL: that was all */
	struct event **found; /* newest first, with a reference each */
	size_t n, cap;
	uint64_t next, dropped; /* of the moment when it began */
};

struct event_bytes {
	char *bytes; /* lines that end with a newline */
	size_t len;
};

struct events {
	struct node *node;
	struct list ring; /* oldest first */
	struct list owners;
	size_t n;
	uint64_t next_seq;
	uint64_t dropped; /* since the start, for want of memory */
	bool adopted;
	/* events_answer.c */
	struct list waiters;
	unsigned n_waiters;
	unsigned to_look; /* of them the first ones: something has come that they may wait for */
	struct task task;
	bool posted;
	/* events_file.c */
	struct work work;
	struct event_bytes pending, writing;
	bool busy, failed; /* failed: said once */
};

/* Takes line; o: the same, parsed. NULL: out of memory. */
struct event *event_new(const struct event *head, char *line, const json_t *o);
struct event *event_ref(struct event *e);
void event_unref(struct event *e);
/* Removes it from its list and drops the list's reference. */
void event_drop(struct event *e);
/* A slice (answer.h): 1: all are taken; 0: it goes on; -ENOMEM. */
MUST_CHECK int events_take(struct events *ev, struct events_taken *x, unsigned *left);
void events_let_go(struct events_taken *x);
/* Any thread. The newest `most` events of each share but NONE, in one list, oldest first;
 * *ret_more: how many older ones are left out. words: the name of the subject, NULL for none; uid:
 * its owner. NULL: out of memory. */
enum events_share { EVENTS_NONE, EVENTS_FIRST, EVENTS_OTHER };
typedef enum events_share events_share_fn(void *arg, const char *words, uint32_t uid);
json_t *events_about(const struct events_taken *x, events_share_fn *share, void *arg, size_t most,
		     size_t *ret_more);
/* There is a new event. */
void events_poke(struct events *ev);
void events_answer_init(struct events *ev);
void events_answer_fini(struct events *ev);
void events_file_init(struct events *ev);
void events_file_fini(struct events *ev);
void events_write(struct events *ev, const struct event *e);

#endif
