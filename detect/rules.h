/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rules.h - what a rule sees, and how one is added. For files in detect/ only.
 *
 * To add a rule: write detect/NAME.c with `const struct rule rule_NAME`, add X(NAME) to
 * DETECT_RULES below (rules run in that order), the file to Makefile.inc, its parameters to
 * options.h, its formula to doc/detection.md. A rule keeps what it learns in bytes of its own that
 * every subject carries: it says how many (rank_bytes, ...), gets them zeroed at the subject's
 * birth, and reaches them with RANK_OWN(d, r, NAME, struct mine). It takes no memory anywhere else,
 * but what start() and scratch() take and memory() says.
 *
 * What a rule may rely on when its sample() runs: the core has already entered the sample (struct
 * rank and friends below are up to date), d->now_ns is the sample's time, w names every subject
 * that the sample speaks of (NULL where it does not). Samples that break sample.h never arrive.
 * It says what it finds with accuse() as often as it finds it, and acquit() when it is over.
 *
 * Cost: sample() runs for each beat of 10,000 ranks, so nothing in it may walk over ranks; what
 * must walk does so in tick() and tick_job(), which run each tick_ns. tick_job() is for what is
 * done for each job: where jobs are many, or many are told of, the detector's next calls go on.
 */
#ifndef DETECT_RULES_H
#define DETECT_RULES_H

#include "base/list.h"
#include "detect/detector.h"
#include "detect/options.h"
#include "detect/verdicts.h"

/* clang-format off: a line each */
#define DETECT_RULES(X)                                                                            \
	X(exits)                                                                                   \
	X(silence)                                                                                 \
	X(pace)                                                                                    \
	X(hang)                                                                                    \
	X(numeric)                                                                                 \
	X(integrity)                                                                               \
	X(links)                                                                                   \
	X(health)                                                                                  \
	X(xid)                                                                                     \
	X(gpu_memory)                                                                              \
	X(straggler)                                                                               \
	X(odd_one)                                                                                 \
	X(paths)                                                                                   \
	X(degrade)
/* clang-format on */

enum rule_id {
#define X(name) RULE_##name,
	DETECT_RULES(X)
#undef X
		RULE_COUNT
};

#define NS_PER_MS  UINT64_C(1000000)
#define NS_PER_SEC UINT64_C(1000000000)

#define PHASE_DEPTH 4  /* phases within phases: ckpt_save() in an evaluation */
#define ROLES_MAX   16 /* of one job; more share the last */

struct device {
	struct device *next;
	uint32_t node, number;
	char role; /* 'g' GPU, 'n' network port, 'd' disk; 0: not said */
	char name[SAMPLE_NAME_MAX];
	_Alignas(16) unsigned char own[]; /* the rules' bytes */
};

struct node {
	uint32_t number;
	char name[SAMPLE_NAME_MAX];
	uint64_t heard_ns; /* any sample of it or of its ranks */
	uint64_t said_ns;  /* a sample of the node itself, of a device or of an activity */
	struct device *devices;
	uint32_t n_devices;
	struct list ranks;                /* struct rank.of_node */
	_Alignas(16) unsigned char own[]; /* the rules' bytes */
};

/* A declared long phase that lasts. */
struct in_phase {
	uint32_t phase;
	uint64_t since_ns, expected_ns; /* since_ns 0: an end without a begin stands here */
	char what[32];
};

struct rank {
	uint32_t job, number, node; /* node: SAMPLE_NONE until somebody said */
	uint32_t role;              /* index into job->roles */
	bool expected;              /* takes part in the run: beats are waited for */
	bool ended;                 /* its process has, in this run */
	bool said_bye;              /* ... and it said goodbye before: its place may be another's */
	bool probing;               /* its activity was asked for */
	struct list of_node;
	uint64_t accused_at; /* the last of d->room_looks in which a verdict stood against it */

	uint64_t began_ns;       /* it, or its run */
	uint64_t heard_ns;       /* last beat or phase */
	uint64_t beat_ns;        /* last beat; 0: none in this run */
	uint64_t step;           /* last finished one */
	uint64_t n_beats;        /* in this run */
	struct sample_beat beat; /* the last one */
	/* From the beat before to the last one without declared long phases, per step; 0: cannot be
	 * said (first beat, a phase throughout, the detector was blind). */
	uint64_t interval_ns;

	uint32_t depth; /* phases that last; deeper ones than PHASE_DEPTH are only counted */
	struct in_phase phases[PHASE_DEPTH];
	uint64_t phased_ns; /* spent in phases since the last beat */
	uint64_t left_ns;   /* the last phase ended */

	struct sample_activity activity;
	uint64_t activity_ns;             /* of the last one; 0: none since the last beat */
	_Alignas(16) unsigned char own[]; /* the rules' bytes */
};

struct job {
	uint32_t number;
	char name[SAMPLE_NAME_MAX];
	bool on;      /* a run lasts */
	bool dropped; /* ranks that have left this run were forgotten, for want of room */
	uint64_t epoch;
	uint64_t began_ns;   /* the run */
	uint64_t ended_ns;   /* the run before, or this one */
	uint32_t world;      /* as said; 0: not yet */
	bool owned;          /* owner, the uid of the job's user, is known */
	uint32_t owner;
	uint32_t n_expected; /* ranks that take part */
	uint32_t n_staying;  /* ... and have not said goodbye */
	uint64_t step;       /* the highest that a rank has finished in this run */
	uint64_t step_ns;    /* ... first, at that time */
	struct rank **ranks; /* those that are born, by rising number */
	uint32_t n_ranks, ranks_cap;
	uint64_t refused_at; /* state of the room when a new rank was refused a place; 0: never */
	uint32_t n_roles;
	char roles[ROLES_MAX][32];
	_Alignas(16) unsigned char own[]; /* the rules' bytes */
};

struct explain {
	void (*line)(void *arg, const char *text);
	void *arg;
};
void explain_line(struct explain *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Of whom a sample speaks. */
struct who {
	struct job *job;
	struct rank *rank;
	struct node *node;
	struct device *device;
};

struct rule {
	const char *name;
	uint32_t kinds; /* bits 1u << SAMPLE_...: which samples it is told of */
	uint32_t rank_bytes, node_bytes, job_bytes, device_bytes; /* own, zeroed at birth */
	uint32_t detector_bytes;                                  /* own, zeroed at start */
	uint64_t tick_ns;                                         /* 0: never */

	/* Any of them may be NULL. */
	int (*start)(struct detector *d); /* -ENOMEM */
	void (*stop)(struct detector *d);
	void (*sample)(struct detector *d, const struct sample *s, const struct who *w);
	void (*tick)(struct detector *d);
	/* For each job after tick(), not all in one call; returns how many ranks it looked at. */
	uint32_t (*tick_job)(struct detector *d, struct job *j);
	/* The detector forgets the rank, whose place another one needs or whose job is gone. */
	void (*gone)(struct detector *d, struct rank *r);
	/* A person says that s is well. Of everybody: each node and each job is s, in turn. */
	void (*well)(struct detector *d, const struct subject *s);
	/* What is known of s: lines with explain_line(). */
	void (*explain)(const struct detector *d, const struct subject *s, struct explain *e);
	/* Adds what start() and scratch() took, and of it what one pair of nodes takes. */
	void (*memory)(const struct detector *d, struct detector_size *size);
};

#define X(name) extern const struct rule rule_##name;
DETECT_RULES(X)
#undef X

struct detector {
	struct detector_options options;
	const struct xid_policy *xid;
	struct verdicts verdicts;
	uint64_t asked; /* probe(): how often, so far */
	uint64_t now_ns;

	struct job **jobs;   /* options.jobs_max, by number */
	struct node **nodes; /* options.nodes_max, by number */
	/* Beyond the highest number of a node, and of a job, that is known: on most machines few
	 * are, and some rules look at all four times a second. */
	uint32_t nodes_end, jobs_end;
	uint32_t n_ranks;    /* born */
	uint64_t room_changes; /* what may make room for ranks, but verdicts that end */
	uint64_t room_looks;   /* for ranks whose place can be given away */
	uint64_t bytes;      /* all of it */

	uint64_t sample_ns; /* the last sample; 0: none */
	uint64_t gap_ns;    /* the longest usual time between two samples of anybody */
	uint64_t lit_ns;    /* the detector was blind until then: see detector_blind() */

	uint64_t next_tick_ns[RULE_COUNT];
	uint32_t job_next[RULE_COUNT]; /* where the tick goes on; options.jobs_max: it is over */
	bool goes_on;                  /* one of them is not over */
	uint32_t rank_own[RULE_COUNT], node_own[RULE_COUNT], job_own[RULE_COUNT];
	uint32_t device_own[RULE_COUNT], detector_own[RULE_COUNT];
	uint32_t rank_size, node_size, job_size, device_size;
	_Alignas(16) unsigned char own[]; /* the rules' bytes */
};

/* The bytes of rule `name` at a subject, as a pointer to `type`. */
#define RANK_OWN(d, r, name, type)   ((type *)((r)->own + (d)->rank_own[RULE_##name]))
#define NODE_OWN(d, n, name, type)   ((type *)((n)->own + (d)->node_own[RULE_##name]))
#define JOB_OWN(d, j, name, type)    ((type *)((j)->own + (d)->job_own[RULE_##name]))
#define DEVICE_OWN(d, x, name, type) ((type *)((x)->own + (d)->device_own[RULE_##name]))
#define DETECTOR_OWN(d, name, type)  ((type *)((d)->own + (d)->detector_own[RULE_##name]))

/* ---- who is known (known.c); NULL: nobody of that number ---- */
struct job *known_job(const struct detector *d, uint32_t job);
struct node *known_node(const struct detector *d, uint32_t node);
struct rank *known_rank(const struct detector *d, uint32_t job, uint32_t rank);
struct device *known_device(const struct detector *d, uint32_t node, uint32_t device);
struct subject subject_of_rank(const struct rank *r);
/* The node's device of that role and name, born where there is none; it then has a number of its
 * own, from DEVICE_UNNUMBERED on. NULL: it does not fit. */
struct device *device_called(struct detector *d, struct node *n, char role, const char *name);

/* Room for n things of `size` bytes, for a while, where p has room for *cap: p, or more in its
 * place (its bytes are lost). NULL: no memory, and p is given back. So that what a rule needs for
 * as many as there may be is taken when there are as many. */
void *scratch(void *p, uint32_t *cap, size_t n, size_t size);

/* each_rank(r, j): the ranks that are there, by rising number; a statement or a block follows. */
#define each_rank(r, j)                                                                            \
	for (uint32_t r##_i = 0; r##_i < (j)->n_ranks && ((r) = (j)->ranks[r##_i], true); r##_i++)

/*
 * Nothing was heard of anybody for far longer than is usual, or the detector was not called for so
 * long: the machine slept, its clock jumped, its network is cut. Then silence says nothing of the
 * silent, and all waiting begins anew at d->lit_ns when somebody is heard of again.
 */
bool detector_blind(const struct detector *d);
/* How long ago t_ns was, without what lies before the detector could see (again). */
uint64_t detector_age(const struct detector *d, uint64_t t_ns);

/* ---- verdicts ---- */
struct verdict verdict_of(struct subject s, enum verdict_class class, enum verdict_cause cause,
			  enum verdict_level level, enum verdict_action advice);
/* words: "SUBJECT ...": the subject's name and what is given here. */
void verdict_say(const struct detector *d, struct verdict *v, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The verdict rests only on what this job's ranks do and report. accuse() sets that itself if the
 * subject is a job or a rank. */
void verdict_rests_on(struct verdict *v, const struct job *j);
/* Raises it now. since_ns == 0 becomes now, confidence == 0 becomes 1. */
bool accuse(struct detector *d, struct verdict *v);
void acquit(struct detector *d, const struct subject *s, enum verdict_cause cause, const char *why);
/* Asks for the rank's activity once a second, or no longer. */
void probe(struct detector *d, struct rank *r, bool wanted);

/* ---- for known.c and detector.c only ---- */
MUST_CHECK int known_init(struct detector *d);
void known_fini(struct detector *d);
/* Whom s speaks of, born where new; -ENOMEM where one does not fit: then nothing has changed that
 * anybody could see. */
MUST_CHECK int known_who(struct detector *d, const struct sample *s, struct who *ret);
/* Enters what s says into the subjects. */
void known_enter(struct detector *d, const struct sample *s, const struct who *w);
/* Its run is over, and no verdict is about it or its ranks. */
void known_forget(struct detector *d, struct job *j);
extern const struct rule *const detect_rules[RULE_COUNT];

#endif
