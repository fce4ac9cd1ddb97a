/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - what is done about a verdict: a table, and what it remembers to decide by.
 *
 * A row says for which verdicts it is, at which state of copies, files and spare nodes, and what is
 * to be done: one or several actions at once, and others when the same subject comes again. The
 * first row that fits decides. The table is text: share/policy.tsv describes it, and is the one
 * that is built in and used where nobody has given another.
 *
 * Pure: no I/O, no clock. A decision always says why, also why not. Nothing but what is written
 * down is ever done for a note: the parser refuses such rows.
 */
#ifndef DETECT_POLICY_H
#define DETECT_POLICY_H

#include "base/err.h"
#include "detect/verdict.h"

#define POLICY_STEPS_MAX    4u /* of one row */
#define POLICY_ROWS_MAX     512u
#define POLICY_BYTES_MAX    (256u << 10)
#define POLICY_SUBJECTS_MAX 256u
#define POLICY_TIMES_MAX    8u
#define POLICY_WHY_MAX      320

#define ACTION_BIT(a) (1u << (a))
/* Nothing happens to anybody by these: they are free of the budget and of the hold-down. */
#define POLICY_FREE                                                                                \
	(ACTION_BIT(ACTION_IGNORE) | ACTION_BIT(ACTION_RECORD) | ACTION_BIT(ACTION_SUSPECT))
#define POLICY_ADVICE ACTION_BIT(ACTION_COUNT) /* in a row: what the verdict itself advises */

/* A number that must be at least, or below, what is said. */
enum policy_test { TEST_ANY, TEST_BELOW, TEST_FROM, TEST_NONE };
struct policy_limit {
	enum policy_test test;
	uint64_t value;
};

struct policy_row {
	uint32_t line;
	uint32_t class, cause; /* CLASS_COUNT, CAUSE_COUNT: any */
	uint32_t level;        /* enum verdict_level; 2: any */
	uint32_t subject;      /* bit 1 << enum subject_kind */
	struct policy_limit copies, durable, spares;
	uint32_t steps[POLICY_STEPS_MAX]; /* bits of actions */
	uint32_t n_steps;
	uint32_t times;     /* of the same subject until the next step; 0: never */
	uint64_t window_ns; /* within which */
	uint64_t hold_ns;   /* what was done for a subject is not done again for so long */
};

struct policy;
struct policy_options {
	uint32_t actions_per_hour;
	bool dry_run;
	uint32_t can; /* actions that somebody here executes; the others are advice for people */
};

/* Without a row: everything is recorded. */
MUST_CHECK int policy_new(const struct policy_options *o, struct policy **ret);
/* Its table becomes the one that is built in, share/policy.tsv. */
MUST_CHECK int policy_take_builtin(struct policy *p);
extern const unsigned char policy_builtin[];
extern const size_t policy_builtin_len;
void policy_free(struct policy *p); /* NULL is allowed */
void policy_set_options(struct policy *p, const struct policy_options *o);
/* Replaces the table; where it is refused, with name and line, the one before stays. */
MUST_CHECK int policy_parse(struct policy *p, const char *name, const char *text, size_t len,
			    struct err *e);
size_t policy_size(const struct policy *p);
const struct policy_row *policy_at(const struct policy *p, size_t i);
const char *policy_name(const struct policy *p); /* of the table in force */

/* What alarms of this cause advise. ACTION_COUNT: it differs from one to the next; as the advice of
 * a verdict it says that nobody knows yet what that will advise. */
enum verdict_action policy_usual_advice(enum verdict_cause cause, enum subject_kind kind);

/* How things stand while the verdict is raised. */
struct policy_facts {
	uint64_t now_ns;
	uint32_t copies;         /* of the newest committed checkpoint, in memory */
	uint64_t durable_age_ns; /* of the newest on disk; UINT64_MAX: there is none */
	uint32_t spares;         /* nodes that could take over */
};

struct decision {
	const struct policy_row *row; /* NULL: none fits; then it is recorded */
	uint32_t step, times;         /* of the row, from 0; how often the subject came, with now */
	uint32_t wanted;              /* bits of actions: what the table says */
	uint32_t now;                 /* of these: to be done */
	uint32_t advised;             /* of these: by people, or their scheduler */
	uint32_t withheld;            /* of these: not done, see why */
	uint64_t again_ns;            /* ... decide again then; 0: time will not help */
	bool again;                   /* it was withheld before */
	bool seconded;                /* supported by the machine: may act on the node */
	bool asked;                   /* it did not come: what would be */
	char why[POLICY_WHY_MAX];     /* one sentence */
};
/*
 * Decides and remembers that it has. ask: as if it came now, nothing is remembered. A verdict
 * counts once towards the row's next step, when it is raised; and when it becomes an alarm, as
 * another. What else is updated of it is decided at the step that it is at.
 */
void policy_decide(struct policy *p, const struct verdict *v, const struct policy_facts *f,
		   struct decision *ret);
void policy_ask(const struct policy *p, const struct verdict *v, const struct policy_facts *f,
		struct decision *ret);
/* Of a verdict that still stands: whether what was withheld of it can be done now, if the table
 * still says so at some step. It does not count towards a step, but in the budget as any other. */
void policy_decide_again(struct policy *p, const struct verdict *v, const struct policy_facts *f,
			 uint32_t withheld, struct decision *ret);
/* A person has said that s and all that it contains is well (NULL: everybody): it begins anew. */
void policy_forget(struct policy *p, const struct subject *s);

/* "checkpoint+mark-suspect"; returns buf. */
#define POLICY_ACTIONS_TEXT_MAX 200
const char *policy_actions_text(uint32_t actions, char buf[POLICY_ACTIONS_TEXT_MAX]);
/* One of a row's limits as in the table: "<10m", ">=1", "-". */
const char *policy_limit_text(const struct policy_limit *l, bool is_time, char buf[32]);

#endif
