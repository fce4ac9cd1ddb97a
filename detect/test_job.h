/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_job.h - for tests: a small job in virtual time, whose ranks step together and answer when
 * they are asked what they do.
 */
#ifndef DETECT_TEST_JOB_H
#define DETECT_TEST_JOB_H

#include "base/rng.h"
#include "detect/detector.h"
#include "detect/rules.h"

#define SEC   NS_PER_SEC
#define MS    NS_PER_MS
#define RANKS 32

enum does { DOES_STEPS, DOES_NOTHING, DOES_STOPPED, DOES_WORK, DOES_SLEEP, DOES_INPUT, DOES_WAIT };

struct job_of {
	struct detector *d;
	struct rng_seeded g;
	uint32_t world, per_node;
	uint32_t mute_from; /* this rank and those above tell of no steps; 0: all tell */
	bool mute;          /* nobody does */
	uint64_t now, step, step_begins;
	uint64_t usual_ns, this_ns; /* this step takes so long */
	enum does does[RANKS];      /* instead of stepping */
	bool asked[RANKS], gone[RANKS];
	bool silent_nodes, answers, says_sync;
	bool unknown_sleep; /* whether until a time is not told of anybody */
	bool gpus;          /* and collectives that spin on them */
	bool unseen_gpus;   /* of which nobody tells what they do */
	float power, cpu;   /* that nodes tell of; 0: they do not */
	unsigned told, alarms, cleared, asks; /* told: of any level */
	struct verdict alarm, over;           /* the first alarm, and what ended last */
	uint64_t alarm_ns;
};

/* Number 0 of a new detector, in epoch 1. */
void job_begins(struct job_of *j, uint32_t world, uint32_t per_node, uint64_t usual_ns);
/* All of its ranks are there, and step from now on. */
void run_begins(struct job_of *j, uint64_t epoch);
void goes_on(struct job_of *j, double s);
/* A rank begins or ends a declared phase. */
void phase(struct job_of *j, uint32_t r, uint32_t phase, bool begins, double expected_s);
void all_do(struct job_of *j, enum does does);
/* From then to the first alarm in s. */
/* Its process ends: the others wait for it, unless it is said to go on with its steps. */
void ends(struct job_of *j, uint32_t rank, enum exit_how how, int value);
double delay(const struct job_of *j, uint64_t from);
struct sample sample_of(const struct job_of *j, enum sample_kind kind, uint32_t rank);
void feed(struct job_of *j, const struct sample *s);

#endif
