/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doing.h - what a rank's process is doing, by the looks that were taken at it.
 */
#ifndef DETECT_DOING_H
#define DETECT_DOING_H

#include "detect/rules.h"

enum doing {
	DOING_UNKNOWN, /* nobody looked, or long ago */
	DOING_STOPPED, /* by a signal or a debugger */
	DOING_WAITING, /* in a collective: for others */
	DOING_BUSY,    /* its cores or its GPU work, it waits for a core, or goes through phases */
	DOING_LATER,   /* sleeps until a time, or waits for input or a disk: may well go on */
	DOING_ASLEEP,  /* it may be the former or the next: until what it sleeps is not known, or it
			  may  wait for its GPU */
	DOING_IDLE,    /* none of these: nothing will wake it but somebody else */
};

/* Looks at one process since it last made progress. */
struct looks {
	enum doing doing;
	uint8_t n;     /* in a row that said so; stops at 255 */
	bool measured; /* its use of the processor is known */
	bool quiet;    /* ... and low, as that of its GPU, and not for want of a core */
	bool unseen;   /* it has a GPU of which nobody tells, so it may wait for that */
	bool but_for;  /* ... and for nothing else: it is idle but for that */
	bool ready;    /* the last one met a thread that could run */
	uint32_t phase; /* where the last one met it */
	uint64_t step;
	int gpu; /* 1: its GPU runs kernels most of the time, 0: hardly; -1: neither, or not known
		  */
	uint64_t at_ns;  /* the last one */
	uint64_t gap_ns; /* the longest between two of them */
};

enum doing doing_now(const struct sample_activity *a);
/* has_gpu: its node has some. */
void looks_add(struct looks *l, const struct sample_activity *a, bool has_gpu, uint64_t now_ns);
/* The last one is not too old for how often there are some: who is late for long may be told of
 * once a minute. */
bool looks_fresh(const struct looks *l, uint64_t now_ns);
/* It is too old, but there was one lately: the next one may be on its way. */
bool looks_due(const struct looks *l, uint64_t now_ns);
/* Enough of them, and new enough, to believe; else DOING_UNKNOWN. */
enum doing looks_say(const struct looks *l, uint64_t now_ns);
const char *doing_words(enum doing doing);

#endif
