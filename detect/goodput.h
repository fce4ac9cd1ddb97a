/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.h - what the time of a job went to. Pure: it is told what happens, and when.
 *
 * All time since the first goodput_epoch() goes to one cause. Training that was lost with a failure
 * is moved to REWORK when the job goes back to the checkpoint that it has; training of before an
 * alarm was raised to what the alarm says. Evaluation, and all else that the trainer does on
 * purpose, is training. Behind a failure, or an end on purpose, only a new epoch makes a job train
 * again: what it saved last may be committed after that.
 */
#ifndef DETECT_GOODPUT_H
#define DETECT_GOODPUT_H

#include <stdbool.h>
#include <stdint.h>

/* X(name, word, what it is) */
#define GOODPUT_CAUSES(X)                                                                          \
	X(GOODPUT_TRAINING, "training", "training that counts")                                    \
	X(GOODPUT_REWORK, "rework", "training that was lost, and done again")                      \
	X(GOODPUT_RESTART, "restart", "from a failure, or a launch, until the first step")         \
	X(GOODPUT_STALL, "stall", "it stood still for a checkpoint")                               \
	X(GOODPUT_HUNG, "hung", "it made no progress")                                             \
	X(GOODPUT_SLOW, "slow", "somebody held it up")                                             \
	X(GOODPUT_AWAY, "away", "it was not running, on purpose")

enum goodput_cause {
#define X(name, word, text) name,
	GOODPUT_CAUSES(X)
#undef X
		GOODPUT_COUNT
};

#define GOODPUT_MARKS 64

struct goodput_mark {
	uint64_t step, trained_ns; /* ns[GOODPUT_TRAINING] when it was committed */
};
struct goodput_mean {
	uint64_t n, ns;
};

struct goodput {
	bool begun;
	uint64_t last_ns; /* accounted until then */
	uint64_t ns[GOODPUT_COUNT];
	enum goodput_cause state; /* TRAINING, RESTART or AWAY; what follows goes over TRAINING */
	uint64_t training_since_ns; /* TRAINING */
	bool saving, hung, slow;
	bool down;   /* a process died since the newest epoch was opened */
	bool zeroth; /* step 0 is among steps, or in the base: numbers may begin at 1 */
	uint64_t saving_since_ns;
	uint64_t steps, newest_step;              /* finished ones that count; of this epoch */
	struct goodput_mark marks[GOODPUT_MARKS]; /* by step, which rises; newest last */
	uint32_t n_marks;
	uint64_t failures[2];           /* restored from memory; from disk */
	struct goodput_mean stall;      /* of one checkpoint */
	struct goodput_mean latency[2]; /* until committed; until durable */
};

const char *goodput_word(enum goodput_cause c);

/* All times are of one clock that does not go back. */
void goodput_advance(struct goodput *g, uint64_t now_ns);
/* An epoch begins from step base (has_base), which memory had, or not; failed: not a new launch
 * behind one that ended on purpose. */
void goodput_epoch(struct goodput *g, uint64_t now_ns, bool has_base, uint64_t base, bool memory);
void goodput_failed(struct goodput *g, uint64_t now_ns); /* a process of it died */
void goodput_over(struct goodput *g, uint64_t now_ns);   /* all its ranks said goodbye */
/* ... and then it was not: its run goes on. */
void goodput_back(struct goodput *g, uint64_t now_ns);
void goodput_step(struct goodput *g, uint64_t now_ns, uint64_t step);
void goodput_committed(struct goodput *g, uint64_t now_ns, uint64_t step, uint64_t latency_ns);
void goodput_durable(struct goodput *g, uint64_t latency_ns);
void goodput_save(struct goodput *g, uint64_t now_ns, bool begins);
/*
 * *g was filled with what an earlier life had kept, and gap_ns have gone by since: its ranks have
 * trained on (alive), or it failed at once; trains: it was seen that they have come to train. What
 * comes later is told as before.
 */
void goodput_resume(struct goodput *g, uint64_t now_ns, uint64_t gap_ns, bool alive, bool trains);
/* An alarm stands, or does no more: HUNG or SLOW, since then; of what was before the job came to
 * train, as it does now, it says nothing. */
void goodput_alarm(struct goodput *g, uint64_t now_ns, enum goodput_cause cause, bool stands,
		   uint64_t since_ns);
/* Share of the time, but when it was away, that was training; 1 when there was none. */
double goodput_share(const struct goodput *g);

#endif
