/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.c - users of the node: what each holds, and what more it may take.
 *
 * All that a user holds of ckptd is counted here, by uid, over its connections, ranks and jobs; a
 * session has further limits of its own (struct session_use). listener.c and conn_socket.c count
 * connections.
 *
 * Invariants: (1) the holder of a counted object has a reference to the user until it gives the
 * count back, so that a user without references has nothing; (2) a count changes only where the
 * object is made or freed, and the object keeps the amount.
 *
 * On the loop's thread. Every call is O(1), but for user_may_join(), which looks at the ranks of
 * one job where the user is at a limit.
 */
#include <config.h>

#include "ckptd/user.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/text.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

/* Places in the fd store: user_may_store(). */
#define STORE_SHARE   2u
#define STORE_RESERVE 32u /* a part of it */
#define STORE_SPARE   2u  /* in the smallest: one ledger that is moved, one page of beats */
#define PAGE_PLACES   1u
#define LEDGER_PLACES 1u

/* Descriptors of ckptd: user_may_keep_files(). */
#define FILES_SHARE   2u
#define FILES_RESERVE 8u /* a part of them */

struct limit {
	const char *key, *things;
	const char *remedy; /* beside raising it */
	bool bytes;
};

static const struct limit limits[USER_COUNTS] = {
	[USER_SESSIONS] = {"sessions_per_uid", "ranks", "end some", false},
	[USER_JOBS] = {"jobs_per_uid", "jobs", "use one of them", false},
	[USER_WAITS] = {"waits_per_uid", "waits under way", "let some end", false},
	[USER_LOADS] = {"loads_per_uid", "loads under way", "end some", false},
	[USER_LOAD_FILES] = {"load_files_per_uid",
			     "files that loads read or processes hold of expired checkpoints",
			     "end some of these loads or processes", false},
	[USER_DECLARATION_BYTES] = {"declaration_bytes_per_uid", "of declarations",
				    "end ranks or jobs", true},
	[USER_PLAN_BYTES] = {"plan_bytes_per_uid",
			     "of plans of loads and of what ranks hold alike",
			     "end some loads or jobs", true},
	[USER_HELD_BYTES] = {"held_bytes_per_uid", "of expired checkpoints that processes hold",
			     "end these loads or processes", true},
	[USER_MEMORY_BYTES] = {"memory_per_uid", "of memory for snapshots", "end ranks or jobs",
			       true},
	[USER_LOAD_TWINS] = {NULL, NULL, NULL, false}, /* user_may_keep_files() */
	[USER_REGIONS] = {NULL, NULL, NULL, false},    /* user_may_store() */
};

static uint64_t limit_of(const struct node *n, enum user_count count)
{
	const struct node_options *o = &n->options;
	const uint64_t max[USER_COUNTS] = {
		[USER_SESSIONS] = o->sessions_per_uid,
		[USER_JOBS] = o->jobs_per_uid,
		[USER_WAITS] = o->waits_per_uid,
		[USER_LOADS] = o->loads_per_uid,
		[USER_LOAD_FILES] = o->load_files_per_uid,
		[USER_DECLARATION_BYTES] = o->declaration_bytes_per_uid,
		[USER_PLAN_BYTES] = o->plan_bytes_per_uid,
		[USER_HELD_BYTES] = o->held_bytes_per_uid,
		[USER_MEMORY_BYTES] = o->memory_per_uid ? o->memory_per_uid : UINT64_MAX,
		[USER_LOAD_TWINS] = UINT64_MAX,
		[USER_REGIONS] = UINT64_MAX,
	};

	assert(count < USER_COUNTS);
	return max[count];
}

/* ---- The table ---- */

void users_init(struct users *all)
{
	list_init(&all->all);
	for (unsigned i = 0; i < USER_BUCKETS; i++)
		list_init(&all->buckets[i]);
}

static unsigned bucket_of(uint32_t uid)
{
	return (uid * 2654435769u) >> 24; /* Knuth's: neighbours come apart */
}

struct user *user_find(const struct node *n, uint32_t uid)
{
	const struct list *in = &n->users.buckets[bucket_of(uid)];
	struct user *u;

	list_each(u, in, bucket)
		if (u->uid == uid)
			return u;
	return NULL;
}

struct user *user_get(struct node *n, uint32_t uid)
{
	struct user *u = user_find(n, uid);

	if (u)
		return user_ref(u);
	u = alloc_zero(sizeof(*u));
	if (!u)
		return NULL;
	u->node = n;
	u->uid = uid;
	u->refs = 1;
	list_add_tail(&n->users.all, &u->link);
	list_add_tail(&n->users.buckets[bucket_of(uid)], &u->bucket);
	return u;
}

struct user *user_ref(struct user *u)
{
	assert(u->refs > 0);
	u->refs++;
	return u;
}

void user_put(struct user *u)
{
	if (!u)
		return;
	assert(u->refs > 0);
	if (--u->refs > 0)
		return;
	for (unsigned i = 0; i < USER_COUNTS; i++)
		assert(u->has[i] == 0); /* (1) */
	answers_unlink(u->node, &u->link);
	list_del(&u->link);
	list_del(&u->bucket);
	alloc_free(u);
}

/* ---- Counting ---- */

void user_add(struct user *u, enum user_count count, uint64_t more)
{
	assert(count < USER_COUNTS && u->refs > 0);
	assert(u->has[count] + more >= more);
	u->has[count] += more;
	u->node->users.has[count] += more;
}

void user_give(struct user *u, enum user_count count, uint64_t less)
{
	assert(count < USER_COUNTS && u->has[count] >= less);
	u->has[count] -= less;
	u->node->users.has[count] -= less;
}

static int refuse(const struct user *u, enum user_count count, uint64_t more, const char *what,
		  struct err *e)
{
	const struct limit *l = &limits[count];
	uint64_t max = limit_of(u->node, count);
	int code = count == USER_SESSIONS ? -EAGAIN : l->bytes ? -EDQUOT : -EMFILE;
	char has[TEXT_SIZE_MAX], takes[TEXT_SIZE_MAX], allows[TEXT_SIZE_MAX];

	text_size(has, u->has[count]);
	text_size(takes, more);
	text_size(allows, max);
	if (more == 0)
		return err_set(e, code,
			       "%s: user %" PRIu32 " has %s %s, quota.%s allows %s; %s, or raise "
			       "it in ckptd.conf",
			       what, u->uid, has, l->things, l->key, allows, l->remedy);
	if (l->bytes)
		return err_set(e, code,
			       "%s: user %" PRIu32 " has %s %s and this takes %s more, quota.%s "
			       "allows %s; %s, or raise it in ckptd.conf",
			       what, u->uid, has, l->things, takes, l->key, allows, l->remedy);
	return err_set(e, code,
		       "%s: user %" PRIu32 " has %" PRIu64 " %s and this takes %" PRIu64 " more, "
		       "quota.%s allows %" PRIu64 "; %s, or raise it in ckptd.conf",
		       what, u->uid, u->has[count], l->things, more, l->key, max, l->remedy);
}

static bool fits(const struct user *u, enum user_count count, uint64_t more)
{
	uint64_t max = limit_of(u->node, count);

	return more <= max && u->has[count] <= max - more;
}

int user_may(const struct user *u, enum user_count count, uint64_t more, const char *what,
	     struct err *e)
{
	return more == 0 || fits(u, count, more) ? 0 : refuse(u, count, more, what, e);
}

int user_take(struct user *u, enum user_count count, uint64_t more, const char *what,
	      struct err *e)
{
	int r = user_may(u, count, more, what, e);

	if (r == 0)
		user_add(u, count, more);
	return r;
}

int user_over(struct user *u, enum user_count count, const char *what, struct err *e)
{
	assert(limits[count].bytes);
	return u->has[count] <= limit_of(u->node, count) ? 0 : refuse(u, count, 0, what, e);
}

/* ---- Before something is made ---- */

/* The user's ranks in j that leave when this open succeeds. */
static uint64_t ranks_that_go(struct job *j, const struct open_request *r, bool new_run,
			      const struct user *u)
{
	struct member *m;
	uint64_t n = 0;

	list_each(m, &j->members, link)
		n += m->alive && m->user == u && (new_run || m->rank == r->rank);
	return n;
}

int user_may_join(struct job *j, const struct open_request *r, bool new_run, struct err *e)
{
	struct user *u = session_user(r->session);
	char what[CKPT_JOB_MAX + 48];
	uint64_t places;

	snprintf(what, sizeof(what), "open job '%s' as rank %" PRIu32, r->job, r->rank);
	if (!fits(u, USER_SESSIONS, 1) &&
	    u->has[USER_SESSIONS] - ranks_that_go(j, r, new_run, u) >=
		    limit_of(u->node, USER_SESSIONS))
		return refuse(u, USER_SESSIONS, 1, what, e);
	places = PAGE_PLACES + (j->ledger.region || j->ledger_making ? 0 : LEDGER_PLACES);
	if (user_may_store(u, places, what, NULL) == 0 || ranks_that_go(j, r, new_run, u) > 0)
		return 0;
	return user_may_store(u, places, what, e);
}

int user_may_store(struct user *u, uint64_t more, const char *what, struct err *e)
{
	const struct users *all = &u->node->users;
	struct memory *memory = u->node->env.memory;
	uint64_t has = u->has[USER_REGIONS] + u->has[USER_SESSIONS], total, taken, kept, left;
	struct memory_room room;

	memory->ops->room(memory, &room);
	if (room.max == UINT64_MAX)
		return 0;
	total = room.used + room.left;
	/* What is under way is not in the store yet. */
	taken = max_u64(room.used, all->has[USER_REGIONS] + all->has[USER_SESSIONS]);
	kept = STORE_SPARE + total / STORE_RESERVE;
	left = total - min_u64(total, taken);
	left -= min_u64(left, kept);
	if (more <= left && (has + more) / STORE_SHARE <= left - more)
		return 0;
	if (has == 0 && total < MEMORY_PLACES_LEAST && room.max < MEMORY_PLACES_LEAST)
		return err_set(e, CKPT_ENOSPACE,
			       "%s: the fd store has %" PRIu64 " places and one rank needs up to "
			       "%u: raise ckptd's limit of open files (ulimit -Hn; LimitNOFILE= of "
			       "the unit) or FileDescriptorStoreMax=, and restart ckptd",
			       what, room.max, MEMORY_PLACES_LEAST);
	return err_set(e, CKPT_ENOSPACE,
		       "%s takes %" PRIu64 " places in the fd store; user %" PRIu32 " has %" PRIu64
		       ", and %" PRIu64 " of %" PRIu64 " are free for users, of which each may "
		       "have %u times as many as stay free; %s, or end ranks or jobs",
		       what, more, u->uid, has, left, total, STORE_SHARE,
		       room.left < room.max - min_u64(room.used, room.max)
			       ? "the names of more cannot be passed to a ckptd that is started "
				 "again: lower memory.slots in ckptd.conf"
			       : "raise FileDescriptorStoreMax= of the unit, or without systemd "
				 "ckptd's limit of open files, and memory.descriptors in "
				 "ckptd.conf");
}

int user_may_keep_files(const struct user *u, uint64_t more, const char *what, struct err *e)
{
	const uint64_t *all = u->node->users.has;
	uint64_t total = u->node->options.descriptors, taken, left;
	uint64_t has = u->has[USER_LOAD_FILES] + u->has[USER_LOAD_TWINS];

	if (total == 0 || more == 0)
		return 0;
	taken = all[USER_LOAD_FILES] + all[USER_LOAD_TWINS] + all[USER_REGIONS] +
		all[USER_SESSIONS];
	left = total - total / FILES_RESERVE;
	left -= min_u64(left, taken);
	if (more <= left && (has + more) / FILES_SHARE <= left - more)
		return 0;
	return err_set(e, -EMFILE,
		       "%s: user %" PRIu32 " has %" PRIu64 " descriptors of files that loads read "
		       "or processes hold of expired checkpoints and this takes %" PRIu64
		       " more, %" PRIu64 " of %" PRIu64 " are free for loads, of which each user "
		       "may have %u times as many as stay free; end some of these loads or "
		       "processes, or raise LimitNOFILE= of the unit",
		       what, u->uid, has, more, left, total, FILES_SHARE);
}

int user_may_make_job(struct node *n, const struct open_request *r, struct err *e)
{
	struct user *u = session_user(r->session);
	char what[CKPT_JOB_MAX + 16];

	assert(u->node == n);
	snprintf(what, sizeof(what), "open job '%s'", r->job);
	if (!fits(u, USER_JOBS, 1))
		return refuse(u, USER_JOBS, 1, what, e);
	/* What its first rank is refused for: else the job would be there, and count. */
	if (!fits(u, USER_SESSIONS, 1))
		return refuse(u, USER_SESSIONS, 1, what, e);
	return user_may_store(u, PAGE_PLACES + LEDGER_PLACES, what, e);
}

static int may_have(struct session *s, uint32_t have, uint32_t max, const char *what,
		    const char *key, enum user_count count, struct err *e)
{
	const struct user *u = session_user(s);

	if (have >= max)
		return err_set(e, -EMFILE,
			       "%s: a session of user %" PRIu32 " has %" PRIu32 " of them under "
			       "way, as many as quota.%s allows; end some, or raise it in "
			       "ckptd.conf",
			       what, u->uid, have, key);
	return fits(u, count, 1) ? 0 : refuse(u, count, 1, what, e);
}

int user_may_wait(struct session *s, struct err *e)
{
	return may_have(s, session_use(s)->waits, session_node(s)->options.waits_per_session,
			"wait", "waits_per_session", USER_WAITS, e);
}

int user_may_load(struct session *s, struct err *e)
{
	return may_have(s, session_use(s)->loads, session_node(s)->options.loads_per_session,
			"load", "loads_per_session", USER_LOADS, e);
}
