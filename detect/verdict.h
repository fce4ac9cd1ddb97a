/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdict.h - what the detector says: who, what, how sure, why, since when, and what to do.
 *
 * A verdict is raised once, may be updated (more evidence, another level), and is cleared by
 * the detector (the signal is gone for its hold-down), or by a person. Its id stays the same. Pure
 * data. Only a verdict of LEVEL_ALARM may wake somebody or start an action; LEVEL_NOTE is kept for
 * `ckptctl why` and for what comes after it.
 */
#ifndef DETECT_VERDICT_H
#define DETECT_VERDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of whom it is said. Unused numbers are SAMPLE_NONE. */
enum subject_kind {
	SUBJECT_JOB,  /* job: nobody in particular could be named */
	SUBJECT_RANK, /* job, rank, node */
	SUBJECT_NODE, /* node */
	SUBJECT_GPU,  /* node, device */
	SUBJECT_LINK, /* node, device (a port), or node and peer (the path between two) */
	SUBJECT_DISK, /* node, device */
};
struct subject {
	enum subject_kind kind;
	uint32_t node, job, rank, device, peer;
};

#define VERDICT_CLASSES(X)                                                                         \
	X(CLASS_DEAD, "dead", "it has ended or is not heard of")                                   \
	X(CLASS_HUNG, "hung", "it lives and makes no progress, others wait for it")                \
	X(CLASS_SLOW, "slow", "it does its work and holds others up")                              \
	X(CLASS_CORRUPTING, "corrupting", "its bytes or its memory are wrong")                     \
	X(CLASS_DIVERGING, "diverging", "training goes wrong: NaN, infinity, jump, drift")         \
	X(CLASS_UNSTABLE, "unstable", "it fails and comes back")                                   \
	X(CLASS_FAILING, "failing", "it works and is about to fail")

enum verdict_class {
#define X(name, word, text) name,
	VERDICT_CLASSES(X)
#undef X
		CLASS_COUNT
};

/* Which rule found it; doc/detection.md has its formula. */
#define VERDICT_CAUSES(X)                                                                          \
	X(CAUSE_PROCESS_ENDED, "process-ended")                                                    \
	X(CAUSE_NODE_SILENT, "node-silent")                                                        \
	X(CAUSE_STALLED, "stalled") /* no progress within what was learned */                      \
	X(CAUSE_STOPPED, "stopped") /* its process is stopped, or idle while others wait */        \
	X(CAUSE_STRAGGLER, "straggler")                                                            \
	X(CAUSE_ODD_ONE_OUT, "odd-one-out")                                                        \
	X(CAUSE_PATH_SLOW, "path-slow") /* the delay matrix: path, sender or receiver */           \
	X(CAUSE_LINK_DOWN, "link-down")                                                            \
	X(CAUSE_LINK_FLAPS, "link-flaps")                                                          \
	X(CAUSE_LINK_ERRORS, "link-errors")                                                        \
	X(CAUSE_XID, "xid")                                                                        \
	X(CAUSE_KERNEL, "kernel") /* out of memory, machine check, file system, ... */             \
	X(CAUSE_NOT_A_NUMBER, "not-a-number")                                                      \
	X(CAUSE_JUMP, "jump")                                                                      \
	X(CAUSE_DRIFT, "drift")                                                                    \
	X(CAUSE_REPLICAS_DIFFER, "replicas-differ")                                                \
	X(CAUSE_STALE, "stale")                                                                    \
	X(CAUSE_DISK_ERRORS, "disk-errors")                                                        \
	X(CAUSE_DEGRADED, "degraded") /* latency for its load has risen: disks and links */        \
	X(CAUSE_MEMORY_ERRORS, "memory-errors")                                                    \
	X(CAUSE_PRESSURE, "pressure")                                                              \
	X(CAUSE_CHECK_FAILED, "check-failed")

enum verdict_cause {
#define X(name, word) name,
	VERDICT_CAUSES(X)
#undef X
		CAUSE_COUNT
};

/* What could be done; the policy decides what is. From mild to severe. */
#define VERDICT_ACTIONS(X)                                                                         \
	X(ACTION_IGNORE, "ignore", "nothing")                                                      \
	X(ACTION_RECORD, "record", "keep it for `why`")                                            \
	X(ACTION_CHECKPOINT, "checkpoint", "take a checkpoint now")                                \
	X(ACTION_SUSPECT, "mark-suspect", "give it nothing new to hold")                           \
	X(ACTION_VALIDATE, "validate", "run the node check")                                       \
	X(ACTION_RESTART, "restart-process", "start the ranks of the job again")                   \
	X(ACTION_ROLL_BACK, "roll-back", "reload in place from memory")                            \
	X(ACTION_RESTORE, "restore", "restart from the newest durable checkpoint nobody doubts")   \
	X(ACTION_FAIL_OVER, "fail-over", "replace the lost module by its copy")                    \
	X(ACTION_MIGRATE, "migrate", "move what it holds elsewhere while it works")                \
	X(ACTION_RESET, "reset-gpu", "reset the GPU, then verify")                                 \
	X(ACTION_DRAIN, "drain", "let nothing new onto the node")                                  \
	X(ACTION_REBOOT, "reboot", "drain the node and start it again")

enum verdict_action {
#define X(name, word, text) name,
	VERDICT_ACTIONS(X)
#undef X
		ACTION_COUNT
};

enum verdict_level { LEVEL_NOTE, LEVEL_ALARM };
enum verdict_state { VERDICT_RAISED, VERDICT_UPDATED, VERDICT_CLEARED };

/* One signal that speaks for the verdict. */
struct evidence {
	char signal[40]; /* "time since the last step" */
	char unit[12];   /* "s", "x", "" */
	double value, threshold; /* 0: there is none */
	uint64_t since_ns; /* beyond the threshold since then */
};

#define EVIDENCE_MAX      6
#define VERDICT_WORDS_MAX 320

struct verdict {
	uint64_t id; /* from 1; unique within a detector */
	struct subject subject;
	enum verdict_class class;
	enum verdict_cause cause;
	enum verdict_level level;
	enum verdict_state state;
	bool risen; /* UPDATED: it was a note until now */
	enum verdict_action advice;
	double confidence; /* 0 .. 1 */
	/* All its evidence comes from jobs of users, which can fake it, alone or together. False:
	 * it comes from the machine, or the owners of the jobs are not known (but for Xids that
	 * programs can cause). */
	bool of_jobs;
	bool of_one_owner; /* ... of one uid; else owner is the last of several */
	uint32_t owner;
	uint64_t since_ns; /* the trouble began, as far as can be told */
	uint64_t raised_ns, changed_ns;
	uint32_t code, subcode; /* CAUSE_XID: which row of the table; detect/xid_policy.h */
	uint32_t n_evidence;
	struct evidence evidence[EVIDENCE_MAX];
	char words[VERDICT_WORDS_MAX]; /* one sentence: who, what, why, what to do */
};

bool subject_same(const struct subject *a, const struct subject *b);
const char *verdict_class_word(enum verdict_class c);
const char *verdict_cause_word(enum verdict_cause c);
const char *verdict_action_word(enum verdict_action a);

#endif
