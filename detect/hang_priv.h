/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang_priv.h - a stall, as the files that judge it share it: hang_looks.c knows of each rank what
 * it does, hang_stall.c who of the job is behind and whether that is proven, hang.c tells it. For
 * these alone, but for hang.h.
 *
 * Invariants: (1) what a look showed outlasts no progress of its rank, and no run; (2) a struct
 * stall is of one moment: it is tallied anew each time, before anything is asked of it.
 */
#ifndef DETECT_HANG_PRIV_H
#define DETECT_HANG_PRIV_H

#include "detect/doing.h"
#include "detect/hang.h"
#include "detect/pace.h"

#define TOLD_MAX        4                 /* subjects of one stall */
#define MUTE_STOPPED_NS (60 * NS_PER_SEC) /* it stays stopped for so long */

struct mine_rank {
	struct looks looks;
	uint64_t busy_ns;    /* last seen at work since its last progress; 0: never */
	uint64_t later_ns;   /* ... asleep for a time, or waiting for a disk or input */
	uint64_t asked_ns;   /* what it does; 0: it is not */
	uint64_t look_ns;    /* mute: it is asked then */
	uint64_t stopped_ns; /* mute: all looks since then met it stopped; 0: not the last one */
	bool late, behind;   /* of the last tally */
	bool apart;          /* mute, and not stopped: nobody can say whether it goes on */
};

struct mine_node {
	float usual, now; /* what its metrics say of its work: see work_of() */
	uint64_t now_ns;
	uint32_t measure; /* by which of them; 0: none yet */
	bool gpus; /* it measures some */
};

struct mine_job {
	uint64_t check_ns;   /* nobody can be late before */
	uint64_t resting_ns; /* since then all nodes do less than usual; 0: not all of them */
	bool stopping;       /* of those who tell of no steps some are stopped: all are looked at */
	uint32_t n_told;
	struct subject told[TOLD_MAX];
	enum verdict_cause cause;
};

/* What tells those who are behind from the others. */
enum mark {
	MARK_STOPPED,
	MARK_STEP,
	MARK_NOT_WAITING,
	MARK_GPU_IDLE,
	MARK_BUSY,
	MARK_LATE,
	MARK_ALL,
	MARK_NOBODY
};

/* The job at one moment. */
struct stall {
	uint32_t lives, awaited, late, known, due, waiting, idle, asleep, busy, quiet, stopped,
		excused;
	uint32_t resting, working; /* of the late: on nodes that do less than usual, or as much */
	double resting_s;          /* so long all of them rest */
	uint32_t gpu_busy, gpu_idle;
	uint32_t stopping, stands; /* of those who tell of no steps: stopped; ... for long */
	bool declares;             /* the job does */
	bool asks;                 /* exits_asks() */
	uint32_t lowest;           /* number of a rank */
	double quiet_s;            /* so long none of the late was seen at work */
	uint64_t step_min, step_max;
	/* Of those who are behind: */
	uint32_t behind, behind_idle, over, unanswered;
	struct rank *first;      /* with the lowest number */
	struct lateness worst;   /* the one that waits longest for its own progress */
	uint32_t node;           /* of all of them; SAMPLE_NONE: of several */
	double least_s, usual_s; /* the shortest age without being seen at work */
};

static inline bool lives(const struct rank *r)
{
	return r->expected && !r->ended;
}

/* Something is to be said of it by what it does. */
static inline bool awaited(const struct detector *d, const struct rank *r)
{
	return lives(r) && !RANK_OWN(d, r, hang, struct mine_rank)->apart;
}

/* ---- what each of them does: hang_looks.c ---- */

/* 1: the node of r does as much as usual since l began, -1: it does less, 0: it is not known. */
int hang_node_works(const struct detector *d, const struct rank *r, const struct lateness *l);
/* Its own process, else what the node's metrics show. */
enum doing hang_doing_of(const struct detector *d, const struct rank *r, const struct lateness *l);
/* So long it has been where it is without being seen at work. */
double hang_quiet_of(const struct detector *d, const struct rank *r, const struct lateness *l);
/* Asks what it does, or no longer. */
void hang_ask(struct detector *d, struct rank *r, bool wanted);
/* What it does is known, or will not be told. */
bool hang_answered(const struct detector *d, const struct rank *r);
/* Who tells of no steps is looked at once a minute, as nothing else shows that it is stopped. */
void hang_look_at_mute(struct detector *d, const struct job *j, struct rank *r);
/* As pace_late(), which knows of nobody's looks. */
bool hang_late_of(const struct detector *d, const struct job *j, const struct rank *r,
		  struct lateness *ret);
/* What it does outlasts the look that met it. */
void hang_note_rest(struct detector *d, struct rank *r, const struct lateness *l);
/* Its node has some. */
bool hang_has_gpu(const struct detector *d, const struct rank *r);
/* Learns what work is usual for the node. */
void hang_on_metrics(struct detector *d, const struct sample *s, struct node *n);

/* ---- who is behind: hang_stall.c ---- */

/* Enters what is to be said of r now; who is late is asked. */
void hang_tally(struct detector *d, const struct job *j, struct rank *r, struct stall *s);
enum mark hang_choose_mark(const struct detector *d, const struct job *j, const struct stall *s);
/* Who has the mark is behind: s->behind and what follows it. */
void hang_find_behind(struct detector *d, const struct job *j, struct stall *s, enum mark mark);
/* True if all of the job's ranks on the node hang, and it has ranks on another node: without those
 * to compare with, a faulty node looks like idle ranks. */
bool hang_whole_node(const struct detector *d, const struct job *j, const struct stall *s);
/* Time alone is not enough: who is to blame does nothing, or the learned timeout is over. */
bool hang_proven(const struct detector *d, const struct stall *s, enum mark mark,
		 enum verdict_cause *ret);

#endif
