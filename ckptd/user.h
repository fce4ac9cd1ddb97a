/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.h - what each user of the node holds of ckptd, and its limits (quota.* of ckptd.conf).
 *
 * A limit applies to new requests: what a user holds when a limit is lowered stays, and counts
 * until it is given back. A refused request has taken nothing.
 */
#ifndef CKPTD_USER_H
#define CKPTD_USER_H

#include "ckptd/job.h"

enum user_count {
	USER_SESSIONS, /* ranks */
	USER_JOBS,
	USER_WAITS,
	USER_LOADS,             /* until they are over */
	USER_LOAD_FILES,        /* shard files that these keep open, and those of USER_HELD_BYTES */
	USER_LOAD_TWINS,        /* second descriptors of these, for reads through the page cache */
	USER_DECLARATION_BYTES, /* of declarations that it was the first to send */
	USER_PLAN_BYTES,        /* of loads: plans, and what is kept to check the files again; of
				 * looking for what ranks hold alike, and of what was found */
	USER_HELD_BYTES,        /* of files that retention has removed, or would: holding.c */
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
	uint32_t idle_jobs; /* in the one call of watching_names.c that counts them */
};

#define USER_BUCKETS 256u
struct users {
	struct list all;
	uint64_t has[USER_COUNTS]; /* all of them together */
	struct list buckets[USER_BUCKETS]; /* by uid */
};

void users_init(struct users *all);

/* A reference to the user of that uid; the table has the user as long as there is one. NULL: out of
 * memory. */
struct user *user_get(struct node *n, uint32_t uid);
struct user *user_ref(struct user *u);
void user_put(struct user *u); /* NULL is allowed */
/* NULL: nothing is counted for it. */
struct user *user_find(const struct node *n, uint32_t uid);

/*
 * Takes so much more, if the limit allows; else a code and a message that begins with `what` and
 * names user, limit and option. A single request above a limit in bytes is refused, too.
 */
MUST_CHECK int user_take(struct user *u, enum user_count count, uint64_t more, const char *what,
			 struct err *e);
/* The same, and nothing is taken. */
MUST_CHECK int user_may(const struct user *u, enum user_count count, uint64_t more,
			const char *what, struct err *e);
/* An error as above if it has more than the limit. */
MUST_CHECK int user_over(struct user *u, enum user_count count, const char *what, struct err *e);
/* Counts what exists already, without a limit. */
void user_add(struct user *u, enum user_count count, uint64_t more);
void user_give(struct user *u, enum user_count count, uint64_t less);

/* ---- Checks before something is made ---- */
/* One more rank in job j; new_run: its present ranks will leave. -EAGAIN */
MUST_CHECK int user_may_join(struct job *j, const struct open_request *r, bool new_run,
			     struct err *e);
/* One more job with one rank. -EMFILE, or what user_may_join() and user_may_store() say. Of several
 * that are opened at once each may pass, and some be refused later. */
MUST_CHECK int user_may_make_job(struct node *n, const struct open_request *r, struct err *e);
/* One more wait, one more load of this session. -EMFILE */
MUST_CHECK int user_may_wait(struct session *s, struct err *e);
MUST_CHECK int user_may_load(struct session *s, struct err *e);
/*
 * So many more places in the fd store: the user gets them while it then has at most twice as many
 * as stay free. So one user has two thirds of the store at most, and there is always a place for
 * the next one (the rule of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
 * packet switches", 1998). STORE_RESERVE of them is left for ledgers of existing jobs, which have
 * two regions while they are moved. CKPT_ENOSPACE
 */
MUST_CHECK int user_may_store(struct user *u, uint64_t more, const char *what, struct err *e);
/*
 * So many more descriptors for a load's files, by the same rule. An eighth of the limit, and what
 * regions take, is not for loads: connections need it. -EMFILE
 */
MUST_CHECK int user_may_keep_files(const struct user *u, uint64_t more, const char *what,
				   struct err *e);

#endif
