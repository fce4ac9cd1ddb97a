/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.h - records of a job's log, and the state that they add up to. Pure.
 *
 * Each record carries incarnation, n, the writer's term and epoch, and the digest of the record
 * before: a log that does not chain is damaged from there on. (incarnation, term, epoch) compare
 * in that order.
 */
#ifndef COORD_RECORD_H
#define COORD_RECORD_H

#include "base/bytes.h"
#include "base/ids.h"
#include "base/joblog.h"

#define RUN_ID_MAX 128
#define NODE_NAME_MAX 64
#define REASON_MAX 255

enum record_type {
	RECORD_JOB = 1, /* always record 0, and repeated inside RECORD_SUM */
	RECORD_LEAD,    /* a new term: this node leads */
	RECORD_EPOCH,
	RECORD_COMMIT,
	RECORD_ABORT,
	RECORD_FREE,
	RECORD_PIN,
	RECORD_TRUST,
	RECORD_SUM, /* all that the records before it add up to; they may be removed */
};

struct record_job {
	struct job_id id;
	char name[CKPT_JOB_MAX + 1];
	uint32_t uid;
	struct digest token; /* digest of the token, not the token */
};
struct record_epoch {
	uint64_t number, parent; /* parent: the epoch that it ends; 0 for the first */
	bool has_base;
	uint64_t base_step;
	struct attempt_id base_attempt;
	bool passes; /* with a base: what was committed after it is passed over (model/trust.h);
			false in a history: its commits say so */
	uint32_t world;
	char run_id[RUN_ID_MAX + 1];
	char reason[REASON_MAX + 1]; /* words: "new run", "rank 3 was replaced", ... */
};
struct record_commit {
	uint64_t step;
	struct attempt_id attempt;
	struct digest root, layout;
	uint32_t world;
	uint32_t f; /* domains whose loss it survives at this moment (I3) */
	uint64_t bytes;
};
struct record_abort {
	uint64_t step;
	struct attempt_id attempt;
	uint32_t next_try; /* the try number of the next attempt at this step */
	char reason[REASON_MAX + 1];
};
struct record_mark { /* free, pin and trust */
	uint64_t step;
	struct attempt_id attempt;
	uint32_t value; /* pin: 0 or 1; trust: model/trust.h; free: 1 durable, 2 lost */
};

struct history;

struct record {
	enum record_type type;
	uint64_t incarnation, n, term, epoch; /* the writer's */
	uint64_t wall_ns;
	struct digest previous; /* of the bytes of record n - 1; zero for n = 0 */
	bool read_only; /* decoded: has a feature that we can read past but not append after */
	union {
		struct record_job job;
		struct {
			char node[NODE_NAME_MAX + 1];
		} lead; /* the new term is record.term */
		struct record_epoch opened;
		struct record_commit commit;
		struct record_abort aborted;
		struct record_mark mark;
	};
	const struct history *sum; /* RECORD_SUM, when encoding */
};

/*
 * Bytes with digest and length, to be freed with alloc_free(). -EINVAL: the job's name is not
 * safe. -E2BIG: longer than JOBLOG_RECORD_MAX, or a RECORD_SUM over more than HISTORY_COMMITS_MAX
 * commits: free some first.
 */
MUST_CHECK int record_encode(const struct record *r, void **ret, size_t *ret_len);

/* One committed checkpoint as the log knows it. */
struct history_commit {
	struct record_commit commit;
	uint64_t n, epoch, wall_ns;
	bool pinned, freed;
	bool lost; /* freed, and not on purpose: its bytes were lost */
	bool gone; /* the caller's: no bytes are left and no record says so. The next RECORD_SUM
		      leaves it out, unless it is pinned, the newest, or the base of the epoch */
	uint32_t trust; /* all that trust records said of it: model/trust.h */
};
struct history_abort {
	struct record_abort aborted;
	uint64_t n, epoch;
};

#define HISTORY_ABORTS_MAX 64
#define HISTORY_RUNS_MAX 64
/* Commits that a summing record carries: those that are not freed, and of freed ones the newest
 * that were lost. */
#define HISTORY_COMMITS_MAX 4096
#define HISTORY_LOST_MAX 16
#define HISTORY_SUM_MAX (HISTORY_COMMITS_MAX + HISTORY_LOST_MAX)

/* What a log adds up to. Arrays are in log order. */
struct history {
	struct record_job job;
	uint64_t incarnation, term;
	uint64_t next_n, first_n;   /* next to append (0: the log is empty); first that counts: 0 or
				       the newest RECORD_SUM, and those below it may be trimmed */
	struct digest last;         /* digest of record next_n - 1 */
	struct record_epoch epoch;  /* the newest; number 0: none yet */
	uint64_t epoch_wall_ns;     /* when its record was written; 0: only a sum knows of it */
	bool stepped;               /* something was committed in this epoch, last_step the last */
	uint64_t last_step;
	bool read_only;             /* a newer program wrote here: read, but append nothing */
	struct history_commit *commits;
	size_t n_commits, cap_commits;
	struct history_abort *aborts; /* the newest HISTORY_ABORTS_MAX */
	size_t n_aborts;
	struct digest runs[HISTORY_RUNS_MAX]; /* of run ids before the epoch's, the newest ones */
	uint32_t n_runs;
};

void history_init(struct history *h);
void history_fini(struct history *h);
/*
 * Checks and applies record n's bytes: chain, order, incarnation, term, epoch, steps that rise
 * (I5). An error leaves h as it was: CKPT_ECORRUPT (damaged, does not chain, breaks a rule),
 * CKPT_ESTALE (of an older incarnation, term or epoch, or already applied), CKPT_EVERSION (made by
 * a newer program), -ENOMEM.
 */
MUST_CHECK int history_apply(struct history *h, uint64_t n, const void *bytes, size_t len,
			     struct err *e);
/* The same answer without applying: what an appender asks before it appends. */
MUST_CHECK int history_check(const struct history *h, uint64_t n, const void *bytes, size_t len,
			     struct err *e);
/*
 * Reads the whole log into h, which is empty. After an error h is what the records before the
 * bad one add up to, and h->next_n is the number of the bad one.
 */
MUST_CHECK int history_load(struct history *h, struct joblog *log, struct err *e);
struct history_commit *history_find(struct history *h, uint64_t step,
				    const struct attempt_id *attempt);
/* The last commit in log order that is not freed: newer means later in the log. NULL: none. */
const struct history_commit *history_newest(const struct history *h);
/* Whether run_id is of a launch that ended when an epoch with another run id was opened. */
bool history_run_is_past(const struct history *h, const char *run_id);
/*
 * Fills incarnation, n, term, epoch, previous of a record to be appended next; r->type is set, and
 * RECORD_LEAD gets the next term. Record 0 keeps the caller's incarnation.
 */
void history_next(const struct history *h, struct record *r);

/* Words for people: "commit step 120 attempt 3f.. f 0". */
void record_describe(const struct record *r, char *buf, size_t size);
/*
 * CKPT_ECORRUPT: not what was written; CKPT_EVERSION: a newer program's. sum (empty, or NULL: not
 * wanted) gets what a RECORD_SUM carries and is then ret->sum; history_fini() frees it.
 */
MUST_CHECK int record_decode(const void *bytes, size_t len, struct record *ret, struct history *sum,
			     struct err *e);

#endif
