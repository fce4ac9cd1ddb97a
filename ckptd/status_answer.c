/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status_answer.c - what `ckptctl status` and `list` ask for, gathered in slices (answer.h).
 *
 *   HEAD -> JOBS -> STOPPED -> REFUSED -> USERS -> ALARMS -> END     of each job: its head, which
 * is of one moment, then RANKS -> SLOTS -> CHECKPOINTS -> LOST
 *
 * Between two slices all of this may come and go. Invariants: (1) where gathering goes on in a list
 * is kept as a link, and what leaves that list says so before (answers_unlink()); (2) a job that
 * leaves while it is gathered is left out, one that was stopped comes as that, and once; (3) which
 * checkpoint is the base and which is the latest is of the moment of the job's head.
 *
 * A worker sorts the ranks, asks for the disk's room, dumps all and frees it.
 */
#include <config.h>

#include "ckptd/status_answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/admin.h"
#include "ckptd/admission.h"
#include "ckptd/beats.h"
#include "ckptd/goodput.h"
#include "ckptd/node_priv.h"
#include "ckptd/probing.h"
#include "ckptd/refused.h"
#include "ckptd/trust.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "model/trust.h"
#include "storage/folder_id.h"
#include "storage/spare.h"

/* What parts cost, in points (answer.h). */
enum {
	COST_HEAD = 128,
	COST_SKIPPED = 1,
	COST_JOB = 50,
	COST_CHECKPOINT = 12,
	COST_MEMBER = 6,
	COST_BEATS = 16,
	COST_SLOT = 4,
	COST_REFUSED = 8,
	COST_USER = 8,
	COST_MARK = 2,
	COST_ALARM = 20,
};

enum stage {
	STAGE_HEAD,
	STAGE_JOBS,
	STAGE_STOPPED,
	STAGE_REFUSED,
	STAGE_USERS,
	STAGE_ALARMS,
	STAGE_END
};
enum part { PART_HEAD, PART_RANKS, PART_SLOTS, PART_CHECKPOINTS, PART_LOST };

/* Of a job: which checkpoints are special (3). */
struct special {
	bool has_base, has_latest, lost; /* newer ones than the latest are lost */
	uint64_t base_step, latest_step, latest_n;
	struct attempt_id base, latest;
};

struct status {
	struct answer answer;
	uint32_t uid;
	bool sees_all;
	char job[CKPT_JOB_MAX +
		 2]; /* a name or an id; empty: all. One that is too long matches none */
	json_t *doc, *jobs, *users, *alarms;
	enum stage stage;
	struct list *at; /* the job or user that is gathered or comes next; the head of its list:
			    none (1) */
	size_t n_live;   /* jobs that are not stopped or refused */
	bool left;       /* some have left while others were gathered (2) */
	/* The job that is gathered. */
	enum part part;
	json_t *of, *ranks, *slots, *checkpoints;
	json_t *cut;     /* what was gathered of jobs that left */
	struct list *in; /* as at, of its members, slots or checkpoints */
	size_t commit;   /* of its history, the next one */
	struct special special;
	struct refused_job **refused; /* with a reference each */
	size_t n_refused, next_refused;
	uint64_t alarm; /* those of lower numbers come next */
};

/* ---- JSON ---- */

static const char *state_name(const struct checkpoint *c)
{
	static const char *const names[] = {"open", "committing", "committed", "aborted"};

	return names[c->agreed];
}

static const char *const durable_names[] = {"no",     "waiting", "writing",   "durable",
					    "failed", "gone",    "unfinished"};

static const char *durable_name(const struct checkpoint *c)
{
	return durable_names[c->no_room ? DUR_WANTED : c->durable];
}

static bool is_base(const struct checkpoint *c, const struct special *s)
{
	return s->has_base && s->base_step == c->step && attempt_equal(&s->base, &c->attempt);
}

/* Whether the next launch would get it. */
static bool is_latest(const struct checkpoint *c, const struct special *s)
{
	return s->has_latest && s->latest_step == c->step && attempt_equal(&s->latest, &c->attempt);
}

static json_t *checkpoint_json(const struct checkpoint *c, const struct special *s)
{
	return json_pack("{s:I, s:o, s:I, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:I, s:I, s:i, s:i, "
			 "s:i, s:o, s:o, s:s, s:b, s:I, s:s}",
			 "step", (json_int_t)c->step, "attempt", admin_hex_json(c->attempt.b, 16),
			 "epoch", (json_int_t)c->epoch, "state", state_name(c), "disk",
			 durable_name(c), "memory", (int)c->memory, "suspect", (int)c->disk_suspect,
			 "pinned", (int)c->pinned, "base", (int)is_base(c, s), "latest",
			 (int)is_latest(c, s), "bytes", (json_int_t)c->bytes, "time_ns",
			 (json_int_t)c->wall_ns, "world", (int)c->world, "ranks_sealed",
			 (int)c->n_sealed, "readers", (int)c->readers, "root",
			 admin_hex_json(c->root.b, 16), "layout", admin_hex_json(c->layout.b, 16),
			 "trust", trust_word(c->trust), "doubted", (c->trust & TRUST_DOUBTED) != 0,
			 "healthy_steps", (json_int_t)trust_healthy_steps(c), "reason", c->reason);
}

/* A checkpoint whose data is all lost: an operator acknowledges it with rm. */
static json_t *lost_json(const struct history_commit *h)
{
	return json_pack("{s:I, s:o, s:I, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:I, s:I, "
			 "s:i, s:i, s:i, s:o, s:o, s:s}",
			 "step", (json_int_t)h->commit.step, "attempt",
			 admin_hex_json(h->commit.attempt.b, 16), "epoch", (json_int_t)h->epoch,
			 "state", "committed", "disk", "lost", "memory", 0, "suspect", 0, "pinned",
			 (int)h->pinned, "base", 0, "latest", 0, "bytes",
			 (json_int_t)h->commit.bytes, "time_ns", (json_int_t)h->wall_ns, "world",
			 (int)h->commit.world, "ranks_sealed", 0, "readers", 0, "root",
			 admin_hex_json(h->commit.root.b, 16), "layout",
			 admin_hex_json(h->commit.layout.b, 16), "reason",
			 "neither memory nor files of it are left");
}

static json_t *member_json(const struct member *m)
{
	return json_pack("{s:i, s:i, s:b, s:b, s:b, s:I, s:b, s:I, s:o, s:o}", "rank", (int)m->rank,
			 "pid", (int)m->process.pid, "alive", (int)m->alive, "connected",
			 (int)(m->session != NULL), "prepared", (int)m->prepared, "epoch",
			 (json_int_t)m->epoch, "credit", (int)m->credit_unused, "skips",
			 (json_int_t)m->saves.skips, "last_skip",
			 last_skip_json(&m->saves.last_skip), "beats", beats_json(m));
}

static json_t *slot_json(const struct slot *s)
{
	static const char *const names[] = {"mapping", "empty",    "writing",
					    "sealed",  "digested", "quarantined"};

	return json_pack("{s:i, s:i, s:s, s:I, s:i}", "slot", (int)s->number, "rank", (int)s->rank,
			 "state", names[s->state], "bytes", (json_int_t)s->region->size, "pid",
			 (int)s->process.pid);
}

static json_t *aborts_json(const struct job *j)
{
	json_t *a = json_array();

	for (size_t i = 0; i < j->history.n_aborts; i++) {
		const struct history_abort *h = &j->history.aborts[i];

		json_array_append_new(
			a, json_pack("{s:I, s:I, s:s}", "step", (json_int_t)h->aborted.step,
				     "epoch", (json_int_t)h->epoch, "reason", h->aborted.reason));
	}
	return a;
}

static json_t *epoch_json(const struct job *j)
{
	const struct record_epoch *ep = &j->history.epoch;
	json_t *o = json_pack("{s:I, s:s, s:s, s:i}", "number", (json_int_t)ep->number, "run_id",
			      ep->run_id, "reason", ep->reason, "world", (int)ep->world);

	json_object_set_new(o, "base_step",
			    ep->has_base ? json_integer((json_int_t)ep->base_step) : json_null());
	return o;
}

static void note_special(struct status *x, struct job *j)
{
	const struct record_epoch *ep = &j->history.epoch;
	const struct checkpoint *latest = epoch_newest_restorable(j);

	x->special = (struct special){.has_base = ep->has_base,
				      .base_step = ep->base_step,
				      .base = ep->base_attempt,
				      .has_latest = latest != NULL,
				      .lost = problems_stand(j, PROBLEM_LOST)};
	if (latest) {
		x->special.latest_n = latest->record_n;
		x->special.latest_step = latest->step;
		x->special.latest = latest->attempt;
	}
}

/* Makes its lists, empty. */
static json_t *job_json(struct job *j)
{
	json_t *o = json_pack("{s:s, s:o, s:i, s:o, s:I, s:I, s:i, s:I}", "job",
			      j->history.job.name, "id", admin_hex_json(j->history.job.id.b, 16),
			      "uid", (int)j->history.job.uid, "epoch", epoch_json(j), "log_records",
			      (json_int_t)j->history.next_n, "term", (json_int_t)j->history.term,
			      "lost", (int)j->lost, "stale_alarms", (json_int_t)j->stale_alarms);

	if (!o)
		return NULL;
	json_object_set_new(o, "ranks", json_array());
	json_object_set_new(o, "slots", json_array());
	json_object_set_new(o, "checkpoints", json_array());
	json_object_set_new(o, "aborted", aborts_json(j));
	json_object_set_new(o, "stopped", json_string(j->defect_text));
	json_object_set_new(o, "log_error", json_string(j->log_text));
	json_object_set_new(o, "log_anew", json_boolean(j->relogged));
	json_object_set_new(o, "log_trim_error", json_string(j->trim_text));
	json_object_set_new(o, "disk_error", json_string(j->disk_text));
	json_object_set_new(o, "replica_alarms", json_integer((json_int_t)j->replica_alarms));
	if (j->replica_alarms) {
		json_object_set_new(o, "replica_step", json_integer((json_int_t)j->replica_step));
		json_object_set_new(o, "replica_text", json_string(j->replica_text));
	}
	json_object_set_new(o, "goodput", goodput_json(j));
	json_object_set_new(o, "saves", saves_json(j));
	json_object_set_new(o, "problems", problems_json(j));
	if (j->stale_alarms)
		json_object_set_new(o, "stale_step", json_integer((json_int_t)j->stale_step));
	if (j->overlap_alarms) {
		json_object_set_new(o, "overlap_step", json_integer((json_int_t)j->overlap_step));
		json_object_set_new(o, "overlap_text", json_string(j->overlap_text));
	}
	return o;
}

/* Only from the log: the rest of its state is not trusted. */
static json_t *stopped_json(const struct job *j)
{
	return json_pack("{s:s, s:o, s:i, s:o, s:I, s:I, s:s, s:[], s:[], s:[], s:o, s:s}", "job",
			 j->history.job.name, "id", admin_hex_json(j->history.job.id.b, 16), "uid",
			 (int)j->history.job.uid, "epoch", epoch_json(j), "log_records",
			 (json_int_t)j->history.next_n, "term", (json_int_t)j->history.term,
			 "stopped", j->defect_text, "ranks", "slots", "checkpoints", "aborted",
			 aborts_json(j), "log_error", j->log_text);
}

/* ---- One job ---- */

static bool may_show(const struct status *x, const struct job *j)
{
	return (x->sees_all || j->history.job.uid == x->uid) &&
	       (!x->job[0] || strcmp(x->job, j->history.job.name) == 0);
}

static void begin_part(struct status *x, enum part part, struct list *in)
{
	x->part = part;
	x->in = in ? in->next : NULL;
}

static void begin_job(struct status *x, struct job *j, unsigned *left)
{
	answer_cost(left, COST_JOB + COST_MARK * (unsigned)j->history.n_aborts);
	note_special(x, j);
	x->of = job_json(j);
	if (!x->of) {
		answer_fail(&x->answer, -ENOMEM, "status: out of memory");
		return;
	}
	x->ranks = json_object_get(x->of, "ranks");
	x->slots = json_object_get(x->of, "slots");
	x->checkpoints = json_object_get(x->of, "checkpoints");
	x->commit = 0;
	begin_part(x, PART_RANKS, &j->members);
}

/* Each of these returns whether the part is over. */
static bool gather_ranks(struct status *x, struct job *j, unsigned *left)
{
	for (; x->in != &j->members && *left > 0; x->in = x->in->next) {
		const struct member *m = container_of(x->in, struct member, link);

		answer_cost(left, m->beats ? COST_BEATS : COST_MEMBER);
		json_array_append_new(x->ranks, member_json(m));
	}
	return x->in == &j->members;
}

static bool gather_slots(struct status *x, struct job *j, unsigned *left)
{
	for (; x->in != &j->slots && *left > 0; x->in = x->in->next) {
		answer_cost(left, COST_SLOT);
		json_array_append_new(x->slots, slot_json(container_of(x->in, struct slot, link)));
	}
	return x->in == &j->slots;
}

static bool gather_checkpoints(struct status *x, struct job *j, unsigned *left)
{
	for (; x->in != &j->checkpoints && *left > 0; x->in = x->in->next) {
		const struct checkpoint *c = container_of(x->in, struct checkpoint, link);

		answer_cost(left, COST_CHECKPOINT);
		json_array_append_new(x->checkpoints, checkpoint_json(c, &x->special));
	}
	return x->in == &j->checkpoints;
}

/* Of a job that goes on from a base only those that nothing newer makes up for. */
static bool is_shown_lost(const struct status *x, struct job *j, const struct history_commit *h)
{
	if (x->special.lost && h->n > x->special.latest_n && epoch_bytes_are_lost(j, h))
		return !checkpoint_find_attempt(j, h->commit.step, &h->commit.attempt);
	return h->lost && !x->special.has_base;
}

static bool gather_lost(struct status *x, struct job *j, unsigned *left)
{
	bool any = x->special.lost || !x->special.has_base;

	for (; x->commit < j->history.n_commits && any && *left > 0; x->commit++) {
		const struct history_commit *h = &j->history.commits[x->commit];
		bool shown = is_shown_lost(x, j, h);

		answer_cost(left, shown ? COST_CHECKPOINT : COST_SKIPPED);
		if (shown)
			json_array_append_new(x->checkpoints, lost_json(h));
	}
	return x->commit >= j->history.n_commits || !any;
}

/* Returns whether it is over. */
static bool gather_job(struct status *x, struct job *j, unsigned *left)
{
	if (x->part == PART_HEAD)
		begin_job(x, j, left);
	if (x->part == PART_RANKS && gather_ranks(x, j, left))
		begin_part(x, PART_SLOTS, &j->slots);
	if (x->part == PART_SLOTS && gather_slots(x, j, left))
		begin_part(x, PART_CHECKPOINTS, &j->checkpoints);
	if (x->part == PART_CHECKPOINTS && gather_checkpoints(x, j, left))
		begin_part(x, PART_LOST, NULL);
	if (x->part != PART_LOST || !gather_lost(x, j, left))
		return false;
	json_array_append_new(x->jobs, x->of);
	x->of = NULL;
	x->part = PART_HEAD;
	return true;
}

/* ---- All of them ---- */

static void begin_stage(struct status *x, enum stage stage, struct list *in)
{
	x->stage = stage;
	x->at = in ? in->next : NULL;
}

static bool gather_jobs(struct status *x, struct list *jobs, unsigned *left)
{
	while (x->at != jobs && *left > 0) {
		struct job *j = container_of(x->at, struct job, link);

		if (!may_show(x, j)) {
			answer_cost(left, COST_SKIPPED);
		} else if (job_stopped(j)) {
			answer_cost(left, COST_JOB + COST_MARK * (unsigned)j->history.n_aborts);
			json_array_append_new(x->jobs, stopped_json(j));
		} else if (!gather_job(x, j, left)) {
			return false;
		}
		x->at = x->at->next;
	}
	return x->at == jobs;
}

static bool gather_refused(struct status *x, unsigned *left)
{
	for (; x->next_refused<x->n_refused && * left> 0; x->next_refused++) {
		answer_cost(left, COST_REFUSED);
		refused_json(x->refused[x->next_refused], x->uid, x->sees_all, x->job, x->jobs);
	}
	return x->next_refused == x->n_refused;
}

static json_t *user_json(const struct user *u)
{
	static const char *const keys[USER_COUNTS] = {
		[USER_SESSIONS] = "sessions",
		[USER_JOBS] = "jobs",
		[USER_WAITS] = "waits",
		[USER_LOADS] = "loads",
		[USER_LOAD_FILES] = "load_files",
		[USER_LOAD_TWINS] = "load_twins",
		[USER_DECLARATION_BYTES] = "declaration_bytes",
		[USER_PLAN_BYTES] = "plan_bytes",
		[USER_HELD_BYTES] = "held_bytes",
		[USER_MEMORY_BYTES] = "memory_bytes",
		[USER_REGIONS] = "regions",
	};
	json_t *o = json_pack("{s:I}", "uid", (json_int_t)u->uid);

	for (unsigned i = 0; i < USER_COUNTS; i++)
		json_object_set_new(o, keys[i], json_integer((json_int_t)u->has[i]));
	return o;
}

static bool gather_users(struct status *x, unsigned *left)
{
	struct list *all = &x->answer.node->users.all;

	for (; x->at != all && *left > 0; x->at = x->at->next) {
		const struct user *u = container_of(x->at, struct user, link);

		answer_cost(left, COST_USER);
		if (x->sees_all || u->uid == x->uid)
			json_array_append_new(x->users, user_json(u));
	}
	return x->at == all;
}

static bool gather_alarms(struct status *x, unsigned *left)
{
	struct verdict v;

	while (*left > 0) {
		if (!watching_older(x->answer.node, x->alarm, &v))
			return true;
		answer_cost(left, COST_ALARM);
		x->alarm = v.id;
		watching_alarm_json(x->answer.node, &v, x->job, x->uid, x->sees_all, x->alarms);
	}
	return false;
}

/* null: nothing is kept, or no limit is known. */
static json_t *fd_store_json(const struct node *n)
{
	struct memory_room room;

	n->env.memory->ops->room(n->env.memory, &room);
	if (room.max == UINT64_MAX)
		return json_null();
	return json_pack("{s:I, s:I}", "used", (json_int_t)room.used, "max", (json_int_t)room.max);
}

/* null: the folder is not open yet. */
static json_t *data_id_json(const struct node *n)
{
	char text[FOLDER_ID_TEXT];

	if (n->store.folder_id == FOLDER_ID_NONE)
		return json_null();
	folder_id_text(text, n->store.folder_id);
	return json_string(text);
}

static json_t *loop_json(const struct node *n)
{
	const struct loop_calls *c = loop_calls(n->env.loop);

	if (!c)
		return json_null();
	return json_pack("{s:I, s:I, s:I, s:I, s:s}", "calls", (json_int_t)c->n, "cpu_us",
			 (json_int_t)(c->total_ns / 1000), "long_calls", (json_int_t)c->over,
			 "longest_us", (json_int_t)(c->longest_ns / 1000), "longest",
			 c->longest ? c->longest : "");
}

/* All but the long lists. */
static bool gather_head(struct status *x)
{
	struct node *n = x->answer.node;
	uint64_t budget = 0, left = n->env.memory->ops->available(n->env.memory, &budget);

	x->doc = json_pack("{s:i, s:s, s:s, s:s, s:b, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:[]}",
			   "schema", 2, "version", PACKAGE_VERSION, "node", n->options.name, "data",
			   n->options.data, "ready", (int)n->ready, "index",
			   (int)(!n->ready || n->index), "disk_backend", n->env.disk->backend,
			   "memory_budget", (json_int_t)budget, "memory_left", (json_int_t)left,
			   "disk_free", (json_int_t)0, "disk_total", (json_int_t)0, "index_errors",
			   (json_int_t)n->index_errors, "jobs");
	x->cut = json_array();
	if (!x->doc || !x->cut || refused_take_all(n, &x->refused, &x->n_refused) < 0) {
		answer_fail(&x->answer, -ENOMEM, "status: out of memory");
		return false;
	}
	json_object_set_new(x->doc, "disk_reserve",
			    json_integer((json_int_t)n->options.disk_reserve));
	json_object_set_new(x->doc, "spare_bytes",
			    json_integer(n->store_open ? (json_int_t)spare_bytes(&n->store) : 0));
	json_object_set_new(x->doc, "data_id", data_id_json(n));
	json_object_set_new(x->doc, "config_error", json_string(n->config_error));
	json_object_set_new(x->doc, "fd_store", fd_store_json(n));
	json_object_set_new(x->doc, "loop", loop_json(n));
	json_object_set_new(x->doc, "collectors", probing_json(n));
	json_object_set_new(x->doc, "suspects",
			    marks_suspects_json(&n->marks, x->uid, x->sees_all));
	json_object_set_new(x->doc, "drained", marks_drain_json(&n->marks));
	json_object_set_new(x->doc, "admission", admission_json(n));
	json_object_set_new(x->doc, "unwatched", watching_refused_json(n, x->uid, x->sees_all));
	json_object_set_new(x->doc, "not_kept", watching_dropped_json(n, x->uid, x->sees_all));
	json_object_set_new(x->doc, "users", json_array());
	json_object_set_new(x->doc, "alarms", json_array());
	x->jobs = json_object_get(x->doc, "jobs");
	x->users = json_object_get(x->doc, "users");
	x->alarms = json_object_get(x->doc, "alarms");
	return true;
}

static bool gather(struct answer *a, unsigned *left)
{
	struct status *x = container_of(a, struct status, answer);
	struct node *n = a->node;

	if (x->stage == STAGE_HEAD) {
		answer_cost(left, COST_HEAD + COST_MARK * n->marks.n);
		if (!gather_head(x))
			return true;
		begin_stage(x, STAGE_JOBS, &n->jobs);
	}
	if (x->stage == STAGE_JOBS && gather_jobs(x, &n->jobs, left)) {
		x->n_live = json_array_size(x->jobs);
		begin_stage(x, STAGE_STOPPED, &n->stopped_jobs);
	}
	if (x->stage == STAGE_STOPPED && gather_jobs(x, &n->stopped_jobs, left))
		begin_stage(x, STAGE_REFUSED, NULL);
	if (x->stage == STAGE_REFUSED && gather_refused(x, left))
		begin_stage(x, STAGE_USERS, &n->users.all);
	if (x->stage == STAGE_USERS && gather_users(x, left))
		begin_stage(x, STAGE_ALARMS, NULL);
	if (x->stage == STAGE_ALARMS && gather_alarms(x, left))
		begin_stage(x, STAGE_END, NULL);
	return x->stage == STAGE_END || a->code < 0;
}

static void unlinked(struct answer *a, const struct list *link)
{
	struct status *x = container_of(a, struct status, answer);

	x->left = true;
	if (x->in == link)
		x->in = x->in->next;
	if (x->at != link)
		return;
	x->at = x->at->next;
	if (x->of)
		json_array_append_new(x->cut, x->of); /* a worker frees it */
	x->of = NULL;
	x->part = PART_HEAD;
	x->in = NULL;
}

/* ---- On a worker ---- */

static json_int_t rank_of(const json_t *o)
{
	return json_integer_value(json_object_get(o, "rank"));
}

static int by_rank(const void *a, const void *b)
{
	json_int_t x = rank_of(*(json_t *const *)a), y = rank_of(*(json_t *const *)b);

	return x < y ? -1 : x > y;
}

/* Sorted by rank: the list has them in the order in which they joined. */
static bool sort_ranks(json_t *ranks)
{
	size_t n = json_array_size(ranks);
	CLEANUP_FREE json_t **order = n < 2 ? NULL : alloc_array(n, sizeof(json_t *));

	if (n < 2)
		return true;
	if (!order)
		return false;
	for (size_t i = 0; i < n; i++)
		order[i] = json_incref(json_array_get(ranks, i));
	qsort(order, n, sizeof(*order), by_rank);
	for (size_t i = 0; i < n; i++)
		json_array_set_new(ranks, i, order[i]);
	return true;
}

static bool same_id(const json_t *x, const json_t *y)
{
	const char *a = json_string_value(json_object_get(x, "id"));
	const char *b = json_string_value(json_object_get(y, "id"));

	return a && b && strcmp(a, b) == 0;
}

/* If a job was gathered, and then stopped or read again, only its last entry stays (2). */
static void leave_out_twice(struct status *x)
{
	for (size_t i = x->n_live; i < json_array_size(x->jobs); i++) {
		for (size_t k = 0; k < x->n_live; k++) {
			if (!same_id(json_array_get(x->jobs, i), json_array_get(x->jobs, k)))
				continue;
			json_array_remove(x->jobs, k);
			x->n_live--;
			i--;
			break;
		}
	}
}

static int first_name(void *arg, const char *name, bool is_dir)
{
	(void)arg;
	(void)name;
	(void)is_dir;
	return 1; /* one is enough */
}

/* Of a job with something on disk: whether its folder was taken away. */
static bool folder_is_gone(struct disk *d, const json_t *job)
{
	char path[DISK_PATH_MAX + 1];
	struct job_id id;
	const char *hex = json_string_value(json_object_get(job, "id"));
	json_t *c;
	size_t i;

	if (!hex || hex_parse(id.b, sizeof(id.b), hex) < 0)
		return false;
	json_array_foreach(json_object_get(job, "checkpoints"), i, c)
	{
		const char *disk = json_string_value(json_object_get(c, "disk"));

		if (!disk || strcmp(disk, durable_names[DUR_DONE]) != 0)
			continue;
		path_job(path, &id);
		return d->ops->list(d, path, first_name, NULL) == -ENOENT;
	}
	return false;
}

/* What is found of the data folder where the document says that something is on disk. */
static void look_at_folders(struct status *x)
{
	struct node *n = x->answer.node;
	struct err e = {0};
	json_t *job;
	size_t i;
	bool open = json_is_string(json_object_get(x->doc, "data_id"));
	int r = open ? node_check_folder(n, &e) : 0;

	json_object_set_new(x->doc, "data_error", json_string(r < 0 ? e.text : ""));
	json_array_foreach(x->jobs, i, job)
	{
		if (open && r == 0 && folder_is_gone(n->env.disk, job))
			json_object_set_new(job, "folder_gone", json_true());
	}
}

static void make(struct answer *a)
{
	struct status *x = container_of(a, struct status, answer);
	struct disk *d = a->node->env.disk;
	uint64_t free_bytes = 0, total = 0;
	bool good = true;
	json_t *job;
	size_t i;

	json_decref(x->of);
	json_decref(x->cut);
	if (a->code < 0 || answer_dropped(a)) {
		json_decref(x->doc);
		return;
	}
	ignore_result(d->ops->space(d, &free_bytes, &total) /* shows 0 */);
	json_object_set_new(x->doc, "disk_free", json_integer((json_int_t)free_bytes));
	json_object_set_new(x->doc, "disk_total", json_integer((json_int_t)total));
	if (x->left)
		leave_out_twice(x);
	look_at_folders(x);
	json_array_foreach(x->jobs, i, job) good =
		good && sort_ranks(json_object_get(job, "ranks"));
	if (!good) {
		json_decref(x->doc);
		x->doc = NULL;
	}
	answer_put_json(a, x->doc);
}

/* ---- Life ---- */

static void status_free(struct answer *a)
{
	struct status *x = container_of(a, struct status, answer);

	refused_let_go(x->refused, x->n_refused);
	alloc_free(x);
}

static const struct answer_kind status_kind = {
	.verb = "status",
	.gather = gather,
	.unlinked = unlinked,
	.make = make,
	.free = status_free,
};

void status_start(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct status *x;

	if (answer_refused(s, request, &status_kind))
		return;
	x = alloc_zero(sizeof(*x));
	if (!x) {
		session_reply_error(s, request, -ENOMEM, "status: out of memory");
		return;
	}
	x->uid = session_process(s)->uid;
	x->sees_all = admin_sees_all(s);
	snprintf(x->job, sizeof(x->job), "%s", m->job);
	x->alarm = UINT64_MAX;
	answer_start(&x->answer, &status_kind, s, request);
}
