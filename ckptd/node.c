/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.c - ckptd without an operating system: start, adoption, events, orderly stop.
 *
 *   new -> STARTING (a META worker reads the data folder) -> memory adopted -> READY
 *       -> STOPPING (what is SEALED is committed, the newest goes to disk, bounded) -> stopped
 *
 * STOPPING waits for works that write what must last (node->works), so no user can prolong it:
 *   - opens, deeds, and looks of users that see only their own jobs are refused with -EAGAIN;
 *   - declares, prepares, lists and loads of ranks get no answer: their connections end with this
 *     ckptd, and libckpt asks the next one again. Those under way are cancelled;
 *   - waits and credits are answered as ever, and so are seals and what ends a load or a rank;
 *   - answers, closes, frees and looks at held files (node->side_works) are not waited for;
 *   - what overlaps is compared no more; what ranks hold alike is looked for only where a file
 *     waits for it or will, for half of the stop's time at most: then files are written whole;
 *   - the index (node->index_works) is written for HURRY_NS at most; the next start builds it.
 */
#include <config.h>

#include "ckptd/node.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/acting.h"
#include "ckptd/admission.h"
#include "ckptd/agreeing.h"
#include "ckptd/events.h"
#include "ckptd/goodput.h"
#include "ckptd/indexing.h"
#include "ckptd/load.h"
#include "ckptd/node_priv.h"
#include "ckptd/probing.h"
#include "ckptd/process_ends.h"
#include "ckptd/refused.h"
#include "ckptd/replicas.h"
#include "ckptd/session.h"
#include "ckptd/start.h"
#include "ckptd/trust.h"
#include "ckptd/watching.h"

#define HURRY_NS 2000000000u

struct starting {
	struct work work;
	struct node *node;
	struct found found;
	struct events_found events;
	struct marks marks; /* as they were */
	struct err err;
};

void node_options_default(struct node_options *o)
{
	*o = (struct node_options){
		.name = "node",
		.geometry = GEOMETRY_DEFAULT,
		.transfer = 2u << 20,
		.slots = 3,
		.ledger_inline = LEDGER_INLINE_MAX,
		.retention = {.keep_last = RETENTION_KEEP_LAST},
		.persist_every = 1,
		.dedup = true,
		.spare_bytes = UINT64_MAX / 4,
		.disk_reserve = 64u << 20,
		.attempt_timeout_ns = 600ull * 1000000000u,
		.skips_ns = 10ull * 1000000000u,
		.settle_timeout_ns = 30ull * 1000000000u,
		.leaving_ns = 60ull * 1000000000u,
		.log_trim = 1024,
		.session_idle_ns = 60ull * 1000000000u,
		.sessions_per_uid = 1024,
		.jobs_per_uid = 4096,
		.waits_per_session = 64,
		.loads_per_session = 16,
		.waits_per_uid = 2048,
		.loads_per_uid = 1024,
		.load_files_per_uid = 16384,
		.declaration_bytes_per_uid = 4ull << 30,
		.plan_bytes_per_uid = 16ull << 30,
		.held_bytes_per_uid = 2ull << 40,
		.detect = true,
		.watched_jobs = 1023,
		.actions_per_hour = 12,
#ifdef CKPT_FAULTS
		.abort_broken = true,
#endif
	};
}

static void stop_late(struct timer *t);
static void hurry(struct timer *t);
static void end_searches(struct timer *t);

int node_new(const struct env *env, const struct node_options *o, struct node **ret, struct err *e)
{
	struct node *n;

	if (!geometry_valid(o->geometry) || o->transfer % o->geometry.chunk != 0 ||
	    o->transfer == 0 || o->slots < 2 || o->slots > CONN_FDS_MAX ||
	    o->retention.keep_last < 1)
		return err_set(e, -EINVAL,
			       "options: slots must be 2 to %u, keep_last at least 1, transfer a "
			       "multiple of the chunk", CONN_FDS_MAX);
	n = alloc_zero(sizeof(*n));
	if (!n)
		return err_code(e, -ENOMEM, "node");
	n->env = *env;
	n->options = *o;
	if (recheck_new(n, &n->recheck) < 0) {
		alloc_free(n);
		return err_code(e, -ENOMEM, "node");
	}
	users_init(&n->users);
	holding_init(n);
	by_process_init(&n->members);
	by_process_init(&n->leaving);
	list_init(&n->jobs);
	list_init(&n->failed_jobs);
	list_init(&n->stopped_jobs);
	refused_init(n);
	list_init(&n->sessions);
	list_init(&n->early);
	list_init(&n->seeking);
	list_init(&n->agreeing);
	list_init(&n->indexing);
	list_init(&n->memory_waits);
	process_ends_init(n);
	admission_init(n);
	timer_init(&n->stop_timer, stop_late);
	timer_init(&n->hurry_timer, hurry);
	timer_init(&n->whole_timer, end_searches);
	timer_init(&n->goodput_timer, goodput_time_came);
	timer_init(&n->problems_timer, problems_time_came);
	beats_node_init(n);
	marks_init(&n->marks, n);
	answers_init(n);
	tidy_init(&n->tidy, n);
	if (events_new(n, &n->events) < 0 || acting_new(n, &n->acting) < 0 ||
	    watching_new(n, &n->watching) < 0) {
		answers_fini(n);
		acting_free(n->acting);
		events_free(n->events);
		alloc_free(n);
		return err_code(e, -ENOMEM, "node's detector");
	}
	*ret = n;
	return 0;
}

/* ---- Start ---- */

static void start_run(struct work *w)
{
	struct starting *s = container_of(w, struct starting, work);

	w->status = start_scan(s->node, &s->found, &s->err);
	if (w->status == 0) {
		events_scan(s->node->env.disk, &s->events);
		marks_read(&s->marks, &s->node->store);
	}
}

static int take_commit(struct job *j, struct found_commit *f)
{
	struct history_commit *h = history_find(&j->history, f->id.step, &f->id.attempt);
	struct commit_file *commit;
	struct checkpoint *c;
	int r;

	if (!h)
		return 0;
	r = checkpoint_new(j, f->id.step, h->epoch, f->file.world, &f->id.attempt, &c);
	if (r < 0)
		return r;
	commit = alloc_zero(sizeof(*commit));
	if (!commit)
		return -ENOMEM;
	*commit = f->file;
	checkpoint_has_files(c, commit);
	f->file = (struct commit_file){ 0 };
	c->agreed = CP_COMMITTED;
	c->durable = DUR_DONE;
	c->record_n = h->n;
	c->wall_ns = h->wall_ns;
	c->pinned = h->pinned;
	c->trust = h->trust;
	c->root = h->commit.root;
	c->layout = h->commit.layout;
	c->bytes = h->commit.bytes;
	/* What COMMIT says and what the log says are one thing, or neither is believed (I2). */
	assert(digest_equal(&c->commit->root, &h->commit.root));
	c->rebuilt = f->rebuilt;
	for (uint32_t rank = c->world; f->gone && rank-- > 0;) /* the reason names the first */
		if (f->gone[rank])
			checkpoint_suspect(c, BUG(ONE_BAD_FILE_IS_ALL) ? ALL_RANKS : rank,
					   "rank %" PRIu32 ": its file is gone", rank);
	j->last_durable_step = c->step;
	return 0;
}

/* The log that knew it was lost: only a person can say that it may go. */
static int take_unknown(struct job *j, const struct found_unreadable *f)
{
	struct checkpoint *c;
	int r = checkpoint_new(j, f->id.step, 0, 1, &f->id.attempt, &c);

	if (r < 0)
		return r;
	c->agreed = CP_COMMITTED;
	c->durable = DUR_DONE;
	c->commit_gone = f->how != FOUND_UNREADABLE;
	checkpoint_suspect(c, ALL_RANKS, "%s", f->why);
	return 0;
}

/* It is not offered, and not forgotten either: its COMMIT may be readable at the next start. */
static int take_unreadable(struct job *j, const struct found_unreadable *f)
{
	const struct checkpoint_id *id = &f->id;
	struct history_commit *h = history_find(&j->history, id->step, &id->attempt);
	struct checkpoint *c;
	int r;

	if (!h)
		return take_unknown(j, f);
	if (h->freed)
		return 0;
	r = checkpoint_new(j, id->step, h->epoch, h->commit.world, &id->attempt, &c);
	if (r < 0)
		return r;
	c->agreed = CP_COMMITTED;
	c->durable = f->how == FOUND_UNFINISHED ? DUR_UNFINISHED : DUR_DONE;
	c->commit_gone = f->how != FOUND_UNREADABLE;
	c->files_suffice = f->how == FOUND_WHOLE;
	if (c->durable == DUR_DONE)
		checkpoint_suspect(c, ALL_RANKS, "%s", f->why);
	else
		snprintf(c->reason, sizeof(c->reason), "%s", f->why);
	c->record_n = h->n;
	c->wall_ns = h->wall_ns;
	c->pinned = h->pinned;
	c->trust = h->trust;
	c->root = h->commit.root;
	c->layout = h->commit.layout;
	c->bytes = h->commit.bytes;
	return 0;
}

int start_take_job(struct job *j, struct found_job *f)
{
	int r = 0;

	history_fini(&j->history);
	j->history = f->history;
	history_init(&f->history);
	j->log = f->log;
	f->log = NULL;
	if (j->history.read_only) /* before anything is appended to it */
		j->log_error = CKPT_EVERSION;
	job_count(j);
	j->relogged = f->relogged;
	j->goodput = f->goodput;
	j->goodput_file.wall_ns = f->goodput_wall_ns;
	memcpy(j->token, f->token, sizeof(j->token));
	for (size_t i = 0; i < f->n_commits && r == 0; i++)
		r = take_commit(j, &f->commits[i]);
	for (size_t i = 0; i < f->n_unreadable && r == 0; i++)
		r = take_unreadable(j, &f->unreadable[i]);
	return r;
}

static int take_job(struct node *n, struct found_job *f)
{
	struct job *j;
	int r = job_new(n, &j);

	if (r < 0)
		return r;
	list_add_tail(&n->jobs, &j->link);
	return start_take_job(j, f);
}

static void start_done(struct work *w)
{
	struct starting *s = container_of(w, struct starting, work);
	struct node *n = s->node;
	int r = w->status;
	struct found_job *f, *next;
	struct job *j;

	n->works--;
	list_each_safe(f, next, &s->found.jobs, link) {
		if (r == 0)
			r = take_job(n, f);
		found_job_free(f);
	}
	if (r == 0) {
		n->index = s->found.index;
		refused_take(n, &s->found);
		r = adopt_memory(n);
	}
	if (r == 0) {
		list_each(j, &n->jobs, link)
			trust_started(j);
		goodput_adopted(n);
		n->ready = true;
		events_adopt(n->events, &s->events);
		marks_take(&n->marks, &s->marks);
		watching_adopted(n);
		adopt_tell_ended(n);
		list_each(j, &n->jobs, link)
			start_tell_files(j);
		if (probing_new(n, &n->probing) < 0)
			n->env.log(n->env.log_arg, 4, NULL,
				   "going on without collectors: no memory");
		admission_begin(n);
		epoch_ready(n);
		if (n->index && !s->found.index_good)
			ignore_result(indexing_rebuild(n, NULL, NULL) /* the files serve alone */);
		tidy_want(n);
	} else if (!s->err.code) {
		err_code(&s->err, r, "start");
	}
	refused_free(&s->found);
	events_found_free(&s->events);
	n->ready_fn(n->ready_arg, r, r < 0 ? s->err.text : "");
	alloc_free(s);
}

int node_check_folder(const struct node *n, struct err *e)
{
	if (FAULT(FOLDER_CHECK))
		return err_set(e, -ENOENT, "the data folder is gone (fault point)");
	return n->env.folder_check ? n->env.folder_check(n->env.folder_arg, e) : 0;
}

void node_start(struct node *n, void (*ready)(void *arg, int status, const char *text), void *arg)
{
	struct starting *s = alloc_zero(sizeof(*s));

	assert(!n->ready);
	n->ready_fn = ready;
	n->ready_arg = arg;
	if (!s) {
		ready(arg, -ENOMEM, "start: out of memory");
		return;
	}
	s->node = n;
	list_init(&s->found.jobs);
	list_init(&s->found.refused);
	list_init(&s->events.list);
	s->work.run = start_run;
	s->work.done = start_done;
	n->works++;
	adopt_begin(n);
	work_submit(n->env.workers, WORK_META, FAIR_NODE, &s->work);
}

/* ---- Events ---- */

static void on_opened(void *arg, struct conn *c)
{
	session_opened(arg, c);
}

static void on_message(void *arg, struct conn *c, const void *msg, size_t len, int *fds,
		       size_t n_fds)
{
	(void)arg;
	if (c->session)
		session_message(c->session, msg, len, fds, n_fds);
}

static void on_closed(void *arg, struct conn *c)
{
	(void)arg;
	if (c->session)
		session_closed(c->session);
	c->session = NULL;
}

static void on_room(void *arg, struct conn *c)
{
	(void)arg;
	if (c->session)
		session_has_room(c->session);
}

static void on_process_ended(void *arg, const struct process_id *p)
{
	process_ends_ended(arg, p);
	holding_look(arg);
}

static void on_process_exit(void *arg, const struct process_id *p, const struct process_exit *x)
{
	process_ends_exit(arg, p, x);
}

const struct conn_events node_conn_events = {
	.opened = on_opened,
	.message = on_message,
	.closed = on_closed,
	.unsent = node_close_unsent,
	.room = on_room,
	.process_ended = on_process_ended,
	.process_exit = on_process_exit,
};

/* ---- Stop ---- */

/* What is on disk does not suffice, and what is in memory does, or completes it. */
static bool lacks_files(const struct checkpoint *c)
{
	return c->durable == DUR_DONE ? c->disk_suspect && checkpoint_restorable(c) : c->memory;
}

/* Only in memory, and it must not go with it: the newest COMMITTED, and what is pinned. */
static bool needs_files(struct job *j, const struct checkpoint *c)
{
	return c->agreed == CP_COMMITTED && lacks_files(c) &&
	       (c->pinned || c == epoch_newest_restorable(j));
}

static bool can_have_files(const struct checkpoint *c)
{
	return c->durable == DUR_DONE ? rewrite_may_help(c) : c->durable != DUR_FAILED;
}

/* What is SEALED goes on to COMMITTED, and what needs files to DURABLE. */
static bool unfinished(struct job *j)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link)
		if ((checkpoint_waits_for_commit(c) && !j->log_error && !BUG(STOP_LEAVES_SEALED)) ||
		    (needs_files(j, c) && can_have_files(c)))
			return true;
	return false;
}

/* What was given up is tried once more: memory may go with this process. It may be COMMITTED only
 * later, and be the newest then. */
static void try_again(struct job *j)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link) {
		c->rewrite_tries = 0;
		if (c->durable != DUR_FAILED ||
		    !(needs_files(j, c) || checkpoint_waits_for_commit(c)))
			continue;
		c->durable = DUR_NONE;
		c->persist_tries = 0;
	}
}

/* The next start builds the index again. */
static void hurry(struct timer *t)
{
	struct node *n = container_of(t, struct node, hurry_timer);

	timer_disarm(n->env.loop, &n->hurry_timer);
	n->hurry = true;
	indexing_cancel(n);
}

/* Files that wait for a search are written whole. */
static void end_searches(struct timer *t)
{
	struct node *n = container_of(t, struct node, whole_timer);

	timer_disarm(n->env.loop, &n->whole_timer);
	n->whole_files = true;
	replicas_cancel(n, NULL);
}

void node_stop_now(struct node *n)
{
	struct job *j;

	list_each(j, &n->jobs, link) {
		rewrite_cancel(j);
		persist_hurry(j);
	}
	answers_cancel_all(n);
	hurry(&n->hurry_timer);
	end_searches(&n->whole_timer);
}

static void stopped(struct node *n)
{
	void (*fn)(void *arg) = n->stopped_fn;

	timer_disarm(n->env.loop, &n->stop_timer);
	node_stop_now(n);
	n->stopped_fn = NULL;
	fn(n->stopped_arg);
}

bool node_stop_over(const struct node *n)
{
	return n->stopping && !n->stopped_fn;
}

void node_stop_step(struct node *n)
{
	struct job *j;

	if (!n->stopping || !n->stopped_fn || n->index_works || n->works)
		return;
	list_each(j, &n->jobs, link)
		if (unfinished(j) || j->persist || j->appending)
			return;
	stopped(n);
}

static void stop_late(struct timer *t)
{
	struct node *n = container_of(t, struct node, stop_timer);

	if (n->stopped_fn)
		stopped(n);
}

void node_stop(struct node *n, uint64_t timeout_ns, void (*done)(void *arg), void *arg)
{
	struct member *m;
	struct job *j;

	n->stopping = true;
	tidy_stop(n);
	session_cancel_all(n);
	n->stopped_fn = done;
	n->stopped_arg = arg;
	timer_arm(n->env.loop, &n->stop_timer, loop_now(n->env.loop) + timeout_ns);
	timer_arm(n->env.loop, &n->hurry_timer, loop_now(n->env.loop) + HURRY_NS);
	timer_arm(n->env.loop, &n->whole_timer, loop_now(n->env.loop) + timeout_ns / 2);
	recheck_give_way(n);
	agreeing_cancel(n);
	goodput_keep_all(n);
	epoch_ready(n); /* opens that wait for a check are told now */
	list_each(j, &n->jobs, link) {
		list_each(m, &j->members, link)
			preparing_cancel(m);
		try_again(j);
		job_poke(j);
	}
	replicas_cancel(n, unfinished);
	if (list_empty(&n->jobs))
		stopped(n);
}

static const char *why_not_written(const struct checkpoint *c)
{
	if (c->reason[0])
		return c->reason;
	return c->durable == DUR_WRITING ? "it was still being written"
					 : "it still waited for the disk";
}

unsigned node_stop_lost(struct node *n, const char *when)
{
	struct checkpoint *c;
	unsigned lost = 0;
	struct job *j;

	list_each(j, &n->jobs, link) {
		list_each(c, &j->checkpoints, link) {
			lost += checkpoint_waits_for_commit(c);
			if (checkpoint_waits_for_commit(c))
				job_tell_step(j, c->step, 3,
					      "step %llu was saved by every rank and could not be "
					      "committed %s%s%s",
					      (unsigned long long)c->step, when,
					      j->log_text[0] ? ": " : "", j->log_text);
			if (!needs_files(j, c))
				continue;
			lost++;
			job_tell_step(
				j, c->step, 3,
				"step %llu is committed and is lost with this stop, unless memory "
				"is kept (a restart by systemd): it could not be written%s%s: %s",
				(unsigned long long)c->step, c->durable == DUR_FAILED ? "" : " ",
				c->durable == DUR_FAILED ? "" : when, why_not_written(c));
		}
	}
	return lost;
}

void node_reload(struct node *n, const struct node_options *o)
{
	struct job *j;

	assert(o->retention.keep_last >= 1 && o->persist_every >= 1);
	n->config_error[0] = '\0';
	n->options.retention = o->retention;
	n->options.persist_every = o->persist_every;
	n->options.warn_after_ns = o->warn_after_ns;
	n->options.dedup = o->dedup;
	n->options.keep_verified = o->keep_verified;
	n->options.healthy_steps = o->healthy_steps;
	n->options.recheck_rate = o->recheck_rate;
	memcpy(n->options.hook, o->hook, sizeof(n->options.hook));
	n->options.hook_timeout_ns = o->hook_timeout_ns;
	n->options.sessions_per_uid = o->sessions_per_uid;
	n->options.jobs_per_uid = o->jobs_per_uid;
	n->options.waits_per_session = o->waits_per_session;
	n->options.loads_per_session = o->loads_per_session;
	n->options.waits_per_uid = o->waits_per_uid;
	n->options.loads_per_uid = o->loads_per_uid;
	n->options.load_files_per_uid = o->load_files_per_uid;
	n->options.declaration_bytes_per_uid = o->declaration_bytes_per_uid;
	n->options.plan_bytes_per_uid = o->plan_bytes_per_uid;
	n->options.held_bytes_per_uid = o->held_bytes_per_uid;
	n->options.memory_per_uid = o->memory_per_uid;
	n->options.actions_per_hour = o->actions_per_hour;
	n->options.dry_run = o->dry_run;
	acting_reload(n);
	list_each(j, &n->jobs, link)
		job_poke(j); /* the new retention or limit may allow more now */
}

void node_reload_failed(struct node *n, const char *why)
{
	assert(why[0]);
	snprintf(n->config_error, sizeof(n->config_error), "%s", why);
}

void node_free(struct node *n)
{
	struct job *j, *next;

	if (!n)
		return;
	timer_disarm(n->env.loop, &n->stop_timer);
	timer_disarm(n->env.loop, &n->whole_timer);
	timer_disarm(n->env.loop, &n->hurry_timer);
	timer_disarm(n->env.loop, &n->goodput_timer);
	timer_disarm(n->env.loop, &n->problems_timer);
	refused_fini(n);
	beats_node_fini(n);
	recheck_free(n->recheck);
	epoch_never_ready(n);
	answers_fini(n);
	admission_fini(n);
	process_ends_fini(n);
	session_free_all(n);
	list_each_safe(j, next, &n->jobs, link)
		job_free(j);
	list_each_safe(j, next, &n->failed_jobs, link)
		job_free(j);
	list_each_safe(j, next, &n->stopped_jobs, link)
		job_free(j);
	holding_fini(n);
	assert(n->side_works == 0);
	probing_free(n->probing);
	watching_free(n->watching);
	acting_free(n->acting);
	events_free(n->events);
	marks_fini(&n->marks);
	tidy_fini(&n->tidy);
	goodput_forget_held(n->held);
	if (n->store_open)
		store_close(&n->store);
	alloc_free(n);
}

void node_summary(const struct node *n, char *buf, size_t size)
{
	unsigned jobs = 0, ranks = 0, memory = 0, disk = 0;
	struct checkpoint *c;
	struct member *m;
	struct job *j;

	list_each(j, &n->jobs, link) {
		jobs++;
		list_each(m, &j->members, link)
			ranks += m->alive;
		list_each(c, &j->checkpoints, link) {
			memory += c->agreed == CP_COMMITTED && c->memory;
			disk += c->durable == DUR_DONE;
		}
	}
	snprintf(buf, size, "%s%u jobs, %u ranks, %u checkpoints in memory, %u on disk",
		 n->marks.drained ? "DRAINED; " : "", jobs, ranks, memory, disk);
}
