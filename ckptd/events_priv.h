/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events_priv.h - what events.c and events_file.c share.
 */
#ifndef CKPTD_EVENTS_PRIV_H
#define CKPTD_EVENTS_PRIV_H

#include "ckptd/events.h"

struct event {
	struct list link;
	uint64_t seq, wall_ns;
	uint32_t uid;
	char *line; /* JSON; without its number until it has one */
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
	struct list waiters;
	struct task task;
	bool posted;
	/* events_file.c */
	struct work work;
	struct event_bytes pending, writing;
	bool busy, failed; /* failed: said once */
};

void event_free(struct event *e);
void events_file_init(struct events *ev);
void events_file_fini(struct events *ev);
void events_write(struct events *ev, const struct event *e);

#endif
