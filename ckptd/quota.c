/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quota.c - how much of ckptd one user, and one session, may take (quota.* of ckptd.conf).
 *
 * Connections are counted where they come in (listener.c). A session has one open under way; what
 * it waits for and loads is counted in struct session_use. Ranks and jobs are counted when one is
 * to be added: these are rare, and a number that is kept can be wrong.
 */
#include <config.h>

#include "ckptd/quota.h"

#include <assert.h>
#include <errno.h>

#include "ckptd/node_priv.h"
#include "ckptd/session.h"

/* Ranks of the uid that stay when this open succeeds. */
static uint32_t ranks_beside(struct job *j, const struct open_request *r, bool new_run,
			     uint32_t uid)
{
	struct member *m;
	struct job *other;
	uint32_t n = 0;

	list_each(other, &j->node->jobs, link)
		list_each(m, &other->members, link)
			n += m->alive && m->process.uid == uid &&
			     !(other == j && (new_run || m->rank == r->rank));
	return n;
}

int quota_rank(struct job *j, const struct open_request *r, bool new_run, struct err *e)
{
	uint32_t max = j->node->options.sessions_per_uid;
	uint32_t uid = session_process(r->session)->uid;

	if (ranks_beside(j, r, new_run, uid) < max)
		return 0;
	return err_set(e, -EAGAIN,
		       "open job '%s' as rank %u: user %u has %u ranks, as many as "
		       "quota.sessions_per_uid allows; end some, or raise it in ckptd.conf",
		       r->job, r->rank, uid, max);
}

int quota_job(struct node *n, const struct open_request *r, struct err *e)
{
	uint32_t uid = session_process(r->session)->uid, jobs = 0;
	struct job *j;

	list_each(j, &n->jobs, link)
		jobs += j->history.job.uid == uid;
	if (jobs < n->options.jobs_per_uid)
		return 0;
	return err_set(e, -EMFILE,
		       "open job '%s': user %u has %u jobs, as many as quota.jobs_per_uid allows; "
		       "use one of them, or raise it in ckptd.conf",
		       r->job, uid, jobs);
}

static int in_flight(struct session *s, uint32_t have, uint32_t max, const char *what,
		     const char *key, struct err *e)
{
	if (have < max)
		return 0;
	return err_set(e, -EMFILE,
		       "%s: a session of user %u has %u of them under way, as many as quota.%s "
		       "allows; end some, or raise it in ckptd.conf",
		       what, session_process(s)->uid, have, key);
}

int quota_wait(struct session *s, struct err *e)
{
	return in_flight(s, session_use(s)->waits, session_node(s)->options.waits_per_session,
			 "wait", "waits_per_session", e);
}

int quota_load(struct session *s, struct err *e)
{
	return in_flight(s, session_use(s)->loads, session_node(s)->options.loads_per_session,
			 "load", "loads_per_session", e);
}
