/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beat_reader.h - reads one rank's beat page (proto/beat_page.h) and makes samples of it.
 *
 * The page is a stranger's: it may hold anything, and change at any time. What comes out is within
 * bounds (phases and kinds that exist, text that can be printed, times between two looks), whatever
 * went in; a look costs at most BEAT_ENTRIES entries. Values that training computes (loss, ...) are
 * passed on as they are, NaN and infinities too.
 *
 * Times are the trainer's own, of the same clock as ours. One of another time namespace, or that
 * makes no sense, is taken for now.
 */
#ifndef CKPTD_BEAT_READER_H
#define CKPTD_BEAT_READER_H

#include "detect/sample.h"
#include "proto/beat_page.h"

struct beat_reader {
	uint64_t seen;    /* entries */
	uint64_t told_ns; /* time of the last entry told */
	bool stepped;
	uint64_t step;        /* with stepped: the last one told, */
	uint64_t step_ns;     /* and when */
	uint64_t interval_ns; /* that it took; 0: not known */
	bool in_long;         /* told that it is in: */
	uint32_t long_phase;
	uint64_t overruns, nonsense; /* entries that were lost, or made no sense */
	uint32_t metrics_given;
	double metrics[BEAT_METRICS]; /* the newest of each, with its bit */
	uint64_t texts;               /* the page's, when they were read */
	char role[BEAT_TEXT_BYTES];
	char names[BEAT_METRICS][BEAT_TEXT_BYTES];
};

/* Entries of one look: those of the ring, and the end and begin of a phase that was lost. */
#define BEAT_LOOK_MAX (BEAT_ENTRIES + 2)

/* The page was written to before anybody looked: what is old is left out, but for the last step and
 * what followed it. */
void beat_reader_begin(struct beat_reader *r, const struct beat_page *p);
/*
 * What is new since the last look, in order, with times in [from_ns, now_ns] that do not go back.
 * Returns how many.
 */
uint32_t beat_reader_look(struct beat_reader *r, const struct beat_page *p, uint64_t from_ns,
			  uint64_t now_ns, struct beat_record ret[BEAT_LOOK_MAX]);
/* A record of the last look as a sample, in their order; who it is of stays the caller's. False:
 * there is nothing to tell. */
bool beat_reader_sample(struct beat_reader *r, const struct beat_record *b, struct sample *ret);
/* True: role or names of metrics are others now. */
bool beat_reader_texts(struct beat_reader *r, const struct beat_page *p);

/* Where the rank is now. */
struct beat_now {
	uint64_t step;     /* that it is in: the last finished one + 1; 0 where it has not said */
	bool stepped;      /* it has said */
	uint32_t phase;    /* enum sample_phase */
	uint64_t since_ns; /* it is there; 0: not known */
};
void beat_page_now(const struct beat_page *p, uint64_t now_ns, struct beat_now *ret);

#endif
