/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events_priv.h - what events.c, events_file.c and events_answer.c share.
 */
#ifndef CKPTD_EVENTS_PRIV_H
#define CKPTD_EVENTS_PRIV_H

#include "ckptd/events.h"

struct event {
	struct list link;
	uint64_t seq, wall_ns;
	uint32_t uid;
	uint32_t refs; /* the loop's; the ring, or what is to become it, has one */
	char *line;    /* JSON; without its number until it has one */
	size_t len;
	char *about; /* how its subject is called; NULL: it has none */
};

struct event_bytes {
	char *bytes; /* lines that end with a newline */
	size_t len;
};

struct events {
	struct node *node;
	struct list ring; /* oldest first */
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

/* line becomes its; o: the same, parsed. NULL: out of memory. */
struct event *event_new(const struct event *head, char *line, const json_t *o);
struct event *event_ref(struct event *e);
void event_unref(struct event *e);
/* Out of its list, and what the list had of it goes. */
void event_drop(struct event *e);
/* Something has come. */
void events_poke(struct events *ev);
void events_answer_init(struct events *ev);
void events_answer_fini(struct events *ev);
void events_file_init(struct events *ev);
void events_file_fini(struct events *ev);
void events_write(struct events *ev, const struct event *e);

#endif
