/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching_priv.h - what watching.c, watching_names.c and watching_restart.c share.
 */
#ifndef CKPTD_WATCHING_PRIV_H
#define CKPTD_WATCHING_PRIV_H

#include "ckptd/node_priv.h"
#include "ckptd/watching.h"

/* A rank whose process has ended: how is told a little later. */
struct ended {
	struct list link;       /* in watching.ended */
	struct list of_process; /* in watching.ended_by */
	struct process_id process;
	uint32_t job, rank;
};
void watching_ended_free(struct ended *x);

struct watching {
	struct node *node;
	struct detector *detector;
	struct timer timer;
	uint64_t last_ns;         /* of the newest sample */
	uint64_t born_ns, day_ns; /* what the clocks showed when it was made */
	struct list ended;
	struct by_process ended_by; /* the same */
	/* watching_names.c: what the detector had no room for */
	uint64_t refused, refused_ns, refused_again_ns; /* again: an event is posted from then on */
	uint32_t refused_uid; /* whose it is */
	char refused_words[SUBJECT_WORDS_MAX + 16];
	/* ... and alarms for which it had none, each as often as it was found */
	uint64_t dropped, dropped_ns, dropped_again_ns;
	uint32_t dropped_uid;
	char dropped_words[SUBJECT_WORDS_MAX + 64];
};

/* node_sample() without hearing first what ranks say; of a time. */
void watching_feed(struct node *n, const struct sample *s);
/* Tells what stood when the ckptd before this one ended. */
void watching_restarted(struct node *n);
/* The detector had no room for whom s speaks of. */
void watching_refused(struct node *n, const struct sample *s);
/* ... or no room for that verdict. */
void watching_dropped(struct node *n, const struct verdict *v);
/* A job without a number that the detector takes gets one, if there is one now. */
void watching_renumber(struct job *j);

#endif
