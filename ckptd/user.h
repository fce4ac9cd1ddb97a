/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.h - what each user of the node has of ckptd, and how much that may be (quota.* of
 * ckptd.conf).
 *
 * A limit binds what comes: what a user has when a limit is lowered stays, and counts until it is
 * given back. A refused request has taken nothing.
 */
#ifndef CKPTD_USER_H
#define CKPTD_USER_H

#include "ckptd/job.h"

enum user_count {
	USER_SESSIONS, /* ranks */
	USER_JOBS,
	USER_WAITS,
	USER_LOADS,             /* until they are over */
	USER_LOAD_FILES,        /* shard files that these keep open */
	USER_DECLARATION_BYTES, /* of declarations that it was the first to send */
	USER_PLAN_BYTES,        /* of loads: plans, and what is kept to check the files again */
	USER_HELD_BYTES,        /* of files that retention has let go, or would: holding.c */
	USER_MEMORY_BYTES,      /* of slots and their tables, those under way too */
	USER_REGIONS,           /* of these, of declarations and of ledgers: user_may_store() */
	USER_COUNTS
};

struct user {
	struct list link;   /* in users.all */
	struct list bucket; /* in one of users.buckets */
	struct node *node;
	uint32_t uid, refs;
	uint64_t has[USER_COUNTS];
};

#define USER_BUCKETS 256u
struct users {
	struct list all;
	uint64_t has[USER_COUNTS]; /* all of them together */
	struct list buckets[USER_BUCKETS]; /* by uid */
};

void users_init(struct users *all);

/* A reference to the user of that uid, which is put into the table with the first one and taken out
 * with the last. NULL: no memory. */
struct user *user_get(struct node *n, uint32_t uid);
struct user *user_ref(struct user *u);
void user_put(struct user *u); /* NULL is allowed */
/* NULL: nothing is counted for it. */
struct user *user_find(const struct node *n, uint32_t uid);

/*
 * So much more, if the limit allows; else a code and a sentence that begins with `what` and names
 * user, limit and option. A single thing that is above a limit in bytes is refused, too.
 */
MUST_CHECK int user_take(struct user *u, enum user_count count, uint64_t more, const char *what,
			 struct err *e);
/* The same, and nothing is taken. */
MUST_CHECK int user_may(const struct user *u, enum user_count count, uint64_t more,
			const char *what, struct err *e);
/* It has more than the limit: a refusal as above. */
MUST_CHECK int user_over(struct user *u, enum user_count count, const char *what, struct err *e);
/* What exists already, whatever the limit is. */
void user_add(struct user *u, enum user_count count, uint64_t more);
void user_give(struct user *u, enum user_count count, uint64_t less);

/* ---- What is asked before something is made ---- */
/* One more rank in job j; new_run: the ranks that it has now will be out. -EAGAIN */
MUST_CHECK int user_may_join(struct job *j, const struct open_request *r, bool new_run,
			     struct err *e);
/* One more job; one more wait, one more load of this session. -EMFILE */
MUST_CHECK int user_may_make_job(struct node *n, const struct open_request *r, struct err *e);
MUST_CHECK int user_may_wait(struct session *s, struct err *e);
MUST_CHECK int user_may_load(struct session *s, struct err *e);
/*
 * So many more places in the fd store: the user gets them while it has at most twice as many as
 * would then be free. So one user has two thirds of the store at most, and there is always a place
 * for the next one (the rule of Choudhury and Hahne, "Dynamic queue length thresholds for
 * shared-memory packet switches", 1998). STORE_RESERVE of them is left to the ledgers of the jobs
 * that there are: those are moved, and have two regions then. CKPT_ENOSPACE
 */
MUST_CHECK int user_may_store(struct user *u, uint64_t more, const char *what, struct err *e);

#endif
