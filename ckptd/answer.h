/* SPDX-License-Identifier: Apache-2.0 */
/*
 * answer.h - an answer that takes too long for one call on the loop: see answer.c.
 *
 * Its kind embeds struct answer, zeroed, in what it gathers, and frees that.
 */
#ifndef CKPTD_ANSWER_H
#define CKPTD_ANSWER_H

#include <jansson.h>

#include "base/err.h"
#include "ckptd/node.h"
#include "ckptd/session.h"

/* Points of one slice. A point is about a microsecond of the loop, so that a slice stays well below
 * a millisecond on a slow machine, too. */
#define ANSWER_SLICE 256u
/* Answers that hold memory at a time, and of these one user's; the others wait for their turn. */
#define ANSWERS_MAX     8u
#define ANSWERS_PER_UID 2u
/* A longer text is handed over as a memfd. */
#define ANSWER_INLINE_MAX (48u << 10)

struct answer;

struct answer_kind {
	const char *verb; /* for refusals */
	/* On the loop: gathers until *left is 0, and takes its cost off that by answer_cost().
	 * True: all is there, or answer_fail() was called. */
	bool (*gather)(struct answer *a, unsigned *left);
	/* On the loop: this leaves its list, which may be one of those that it gathers from; NULL:
	 * the kind keeps no links. */
	void (*unlinked)(struct answer *a, const struct list *link);
	/* On a worker, once, also where gathering was cut short: frees the documents that it
	 * gathered, and unless answer_dropped() returns true, writes the text by answer_put() or
	 * calls answer_fail(). */
	void (*make)(struct answer *a);
	/* On the loop: where the answer is no text: sets the reply's body, which is valid until
	 * free(). handed_over: what make() put was too long and is sent as a memfd. */
	void (*reply)(struct answer *a, Ckpt__Reply *reply, bool handed_over);
	/* On the loop: frees all else. */
	void (*free)(struct answer *a);
};

enum answer_state {
	ANSWER_WAITING,   /* in answers.waiting */
	ANSWER_GATHERING, /* in answers.gathering */
	ANSWER_MAKING,    /* a worker has it */
	ANSWER_ENDED,
};

struct answer {
	struct list link;   /* in the list of its state */
	struct list in_all; /* in answers.all */
	const struct answer_kind *kind;
	enum answer_state state;
	struct node *node;
	struct session *session;
	uint64_t request;
	struct task slice; /* the next one; posted while it gathers */
	struct work work;  /* cancel: its session no longer waits */
	uint32_t flow;    /* that it was taken of: answers.waiting */
	uint32_t slices;
	char *text;
	size_t len, cap;
	int fd;   /* with the text; -1: none */
	int code; /* < 0: it is refused, for this reason: */
	char why[ERR_TEXT_MAX];
};

/* Of a node. */
struct answers {
	struct fair_queue waiting;
	struct list gathering;
	struct list all;       /* in every state */
	uint32_t n;      /* gathering or being made */
	uint64_t slices; /* since the start */
};

void answers_init(struct node *n);
void answers_fini(struct node *n);

/* Replies -EAGAIN and returns true if the session waits for an answer already, or ckptd stops:
 * then users who see all jobs get answers until the stop is over. */
MUST_CHECK bool answer_refused(struct session *s, uint64_t request, const struct answer_kind *kind);
/* a becomes the machine's; the session gets the answer later, never inside this call. */
void answer_start(struct answer *a, const struct answer_kind *kind, struct session *s,
		  uint64_t request);
/* The session has ended: its answers are dropped. */
void answers_drop_session(struct node *n, struct session *s);

/* An orderly stop is over: none is sent any more. */
void answers_cancel_all(struct node *n);

/* To be called before a job, member, slot or checkpoint leaves its list. */
void answers_unlink(struct node *n, const struct list *link);

/* ---- For kinds ---- */

static inline void answer_cost(unsigned *left, unsigned points)
{
	*left -= *left < points ? *left : points;
}

void answer_fail(struct answer *a, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
bool answer_dropped(struct answer *a);
void answer_put(struct answer *a, const char *bytes, size_t len);
/* doc is consumed; NULL: out of memory. */
void answer_put_json(struct answer *a, json_t *doc);

#endif
