/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin.c - looks and small deeds for operators. A user sees and changes their own jobs, root and
 * ckptd's own user all of them. Deeds are records in the job's log before they are true (I4).
 */
#include <config.h>

#include "ckptd/admin.h"
#include "ckptd/admission.h"
#include "ckptd/beats.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/goodput.h"
#include "ckptd/incoming.h"
#include "ckptd/indexing.h"
#include "ckptd/node_priv.h"
#include "ckptd/probing.h"
#include "ckptd/refused.h"
#include "ckptd/trust.h"
#include "ckptd/watching_json.h"
#include "codec/digest.h"
#include "model/trust.h"

#define INLINE_MAX (48u << 10)

/* A deed that waits for its record. */
struct deed {
	struct session *session;
	uint64_t request;
	struct job *job;               /* whose log it is for; NULL: none */
	struct checkpoint *checkpoint; /* to be pinned or not, or trusted */
	bool pin, trust;
};

bool admin_sees_all(struct session *s)
{
	uint32_t uid = session_process(s)->uid;

	return uid == 0 || uid == (uint32_t)geteuid();
}

static bool may_see(struct session *s, const struct job *j)
{
	return admin_sees_all(s) || session_process(s)->uid == j->history.job.uid;
}

/* ---- JSON ---- */

static json_t *hex_json(const uint8_t *p, size_t len)
{
	char text[65];

	assert(len <= 32);
	hex_format(text, p, len);
	return json_string(text);
}

static const char *state_name(const struct checkpoint *c)
{
	static const char *const names[] = { "open", "committing", "committed", "aborted" };

	return names[c->agreed];
}

static const char *durable_name(const struct checkpoint *c)
{
	static const char *const names[] = { "no",     "waiting", "writing",
					     "durable", "failed", "gone",
					     "unfinished" };

	return c->no_room ? names[DUR_WANTED] : names[c->durable];
}

/* latest: what the next launch would get. */
static json_t *checkpoint_json(const struct checkpoint *c, const struct checkpoint *latest)
{
	return json_pack("{s:I, s:o, s:I, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:I, s:I, s:i, s:i, "
			 "s:i, s:o, s:o, s:s, s:b, s:I, s:s}",
			 "step", (json_int_t)c->step, "attempt", hex_json(c->attempt.b, 16),
			 "epoch", (json_int_t)c->epoch, "state", state_name(c), "disk",
			 durable_name(c), "memory", (int)c->memory, "suspect", (int)c->disk_suspect,
			 "pinned", (int)c->pinned, "base", (int)checkpoint_is_base(c), "latest",
			 (int)(c == latest), "bytes", (json_int_t)c->bytes, "time_ns",
			 (json_int_t)c->wall_ns, "world", (int)c->world, "ranks_sealed",
			 (int)c->n_sealed, "readers", (int)c->readers, "root",
			 hex_json(c->root.b, 16), "layout", hex_json(c->layout.b, 16), "trust",
			 trust_word(c->trust), "doubted", (c->trust & TRUST_DOUBTED) != 0,
			 "healthy_steps", (json_int_t)trust_healthy_steps(c), "reason", c->reason);
}

/* Where all is lost: what somebody must take note of, with rm. */
static void add_lost(json_t *list, const struct job *j)
{
	for (size_t i = 0; i < j->history.n_commits && !j->history.epoch.has_base; i++) {
		const struct history_commit *h = &j->history.commits[i];

		if (!h->lost)
			continue;
		json_array_append_new(
			list,
			json_pack("{s:I, s:o, s:I, s:s, s:s, s:b, s:b, s:b, s:b, s:b, s:I, s:I, "
				  "s:i, s:i, s:i, s:o, s:o, s:s}",
				  "step", (json_int_t)h->commit.step, "attempt",
				  hex_json(h->commit.attempt.b, 16), "epoch", (json_int_t)h->epoch,
				  "state", "committed", "disk", "lost", "memory", 0, "suspect", 0,
				  "pinned", (int)h->pinned, "base", 0, "latest", 0, "bytes",
				  (json_int_t)h->commit.bytes, "time_ns", (json_int_t)h->wall_ns,
				  "world", (int)h->commit.world, "ranks_sealed", 0, "readers", 0,
				  "root", hex_json(h->commit.root.b, 16), "layout",
				  hex_json(h->commit.layout.b, 16), "reason",
				  "neither memory nor files of it are left"));
	}
}

static json_t *member_json(const struct member *m)
{
	return json_pack("{s:i, s:i, s:b, s:b, s:b, s:I, s:b, s:o}", "rank", (int)m->rank, "pid",
			 (int)m->process.pid, "alive", (int)m->alive, "connected",
			 (int)(m->session != NULL), "prepared", (int)m->prepared, "epoch",
			 (json_int_t)m->epoch, "credit", (int)m->credit_unused, "beats",
			 beats_json(m));
}

static json_t *slots_json(const struct job *j)
{
	static const char *const names[] = { "mapping", "empty", "writing",
					     "sealed", "digested", "quarantined" };
	json_t *a = json_array();
	struct slot *s;

	list_each(s, &j->slots, link)
		json_array_append_new(
			a, json_pack("{s:i, s:i, s:s, s:I, s:i}", "slot", (int)s->number, "rank",
				     (int)s->rank, "state", names[s->state], "bytes",
				     (json_int_t)s->region->size, "pid", (int)s->process.pid));
	return a;
}

static json_t *aborts_json(const struct job *j)
{
	json_t *a = json_array();

	for (size_t i = 0; i < j->history.n_aborts; i++) {
		const struct history_abort *h = &j->history.aborts[i];

		json_array_append_new(a, json_pack("{s:I, s:I, s:s}", "step",
						   (json_int_t)h->aborted.step, "epoch",
						   (json_int_t)h->epoch, "reason",
						   h->aborted.reason));
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

/* By their numbers: they are listed as they came. */
static json_t *members_json(const struct job *j)
{
	json_t *ranks = json_array();
	struct member *m;

	list_each(m, &j->members, link) {
		size_t at = json_array_size(ranks);

		while (at > 0 && json_integer_value(json_object_get(json_array_get(ranks, at - 1),
								    "rank")) > m->rank)
			at--;
		json_array_insert_new(ranks, at, member_json(m));
	}
	return ranks;
}

static json_t *job_json(struct job *j)
{
	json_t *o = json_pack("{s:s, s:o, s:i, s:o, s:I, s:I, s:i, s:I}", "job",
			      j->history.job.name, "id", hex_json(j->history.job.id.b, 16), "uid",
			      (int)j->history.job.uid, "epoch", epoch_json(j), "log_records",
			      (json_int_t)j->history.next_n, "term", (json_int_t)j->history.term,
			      "lost", (int)j->lost, "stale_alarms", (json_int_t)j->stale_alarms);
	json_t *list = json_array();
	struct checkpoint *c, *latest = epoch_newest_restorable(j);

	list_each(c, &j->checkpoints, link)
		json_array_append_new(list, checkpoint_json(c, latest));
	add_lost(list, j);
	json_object_set_new(o, "ranks", members_json(j));
	json_object_set_new(o, "slots", slots_json(j));
	json_object_set_new(o, "checkpoints", list);
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
	if (j->stale_alarms)
		json_object_set_new(o, "stale_step", json_integer((json_int_t)j->stale_step));
	if (j->overlap_alarms) {
		json_object_set_new(o, "overlap_step", json_integer((json_int_t)j->overlap_step));
		json_object_set_new(o, "overlap_text", json_string(j->overlap_text));
	}
	return o;
}

/* Only what the log says: nothing else of it is believed. */
static json_t *stopped_json(struct job *j)
{
	return json_pack("{s:s, s:o, s:i, s:o, s:I, s:I, s:s, s:[], s:[], s:[], s:o, s:s}", "job",
			 j->history.job.name, "id", hex_json(j->history.job.id.b, 16), "uid",
			 (int)j->history.job.uid, "epoch", epoch_json(j), "log_records",
			 (json_int_t)j->history.next_n, "term", (json_int_t)j->history.term,
			 "stopped", j->defect_text, "ranks", "slots", "checkpoints", "aborted",
			 aborts_json(j), "log_error", j->log_text);
}

void admin_reply_json(struct session *s, uint64_t request, json_t *doc)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__AdminReply body = CKPT__ADMIN_REPLY__INIT;
	struct memory *m = session_node(s)->env.memory;
	size_t len = doc ? json_dumpb(doc, NULL, 0, JSON_COMPACT) : 0;
	CLEANUP_FREE char *text = alloc_zero(len + 1);
	int fd = -1;

	if (!doc || !text || len == 0) {
		session_reply_error(s, request, -ENOMEM, "out of memory");
		json_decref(doc);
		return;
	}
	json_dumpb(doc, text, len, JSON_COMPACT);
	json_decref(doc);
	reply.id = request;
	reply.body_case = CKPT__REPLY__BODY_ADMIN;
	reply.admin = &body;
	if (len <= INLINE_MAX) {
		body.json = (ProtobufCBinaryData){ len, (uint8_t *)text };
	} else {
		fd = m->ops->bytes_to_fd(m, text, len);
		if (fd < 0) {
			session_reply_error(s, request, fd, "hand over the answer");
			return;
		}
		body.in_fd = true;
	}
	session_reply(s, &reply, &fd, fd >= 0);
}

static void status(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	uint64_t budget = 0, left = n->env.memory->ops->available(n->env.memory, &budget);
	uint64_t disk_free = 0, disk_total = 0;
	json_t *doc, *jobs = json_array();
	struct job *j;

	ignore_result(n->env.disk->ops->space(n->env.disk, &disk_free, &disk_total) /* shows 0 */);
	for (size_t i = 0; i < 2; i++)
		list_each(j, i == 0 ? &n->jobs : &n->stopped_jobs, link)
			if (may_see(s, j) &&
			    (!m->job[0] || strcmp(m->job, j->history.job.name) == 0))
				json_array_append_new(
					jobs, job_stopped(j) ? stopped_json(j) : job_json(j));
	refused_json(n, session_process(s)->uid, admin_sees_all(s), m->job, jobs);
	doc = json_pack("{s:i, s:s, s:s, s:s, s:b, s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:o}",
			"schema", 2, "version", PACKAGE_VERSION, "node", n->options.name, "data",
			n->options.data, "ready", (int)n->ready, "index",
			(int)(!n->ready || n->index), "disk_backend", n->env.disk->backend,
			"memory_budget", (json_int_t)budget, "memory_left", (json_int_t)left,
			"disk_free", (json_int_t)disk_free, "disk_total", (json_int_t)disk_total,
			"index_errors", (json_int_t)n->index_errors, "jobs", jobs);
	if (doc) {
		json_object_set_new(doc, "collectors", probing_json(n));
		json_object_set_new(
			doc, "suspects",
			marks_suspects_json(&n->marks, session_process(s)->uid, admin_sees_all(s)));
		json_object_set_new(doc, "drained", marks_drain_json(&n->marks));
		json_object_set_new(doc, "admission", admission_json(n));
		json_object_set_new(
			doc, "unwatched",
			watching_refused_json(n, session_process(s)->uid, admin_sees_all(s)));
		json_object_set_new(
			doc, "not_kept",
			watching_dropped_json(n, session_process(s)->uid, admin_sees_all(s)));
		json_object_set_new(doc, "alarms",
				    watching_alarms_json(n, m->job, session_process(s)->uid,
							 admin_sees_all(s)));
	}
	admin_reply_json(s, request, doc);
}

/* ---- Deeds ---- */

struct job *admin_job(struct session *s, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	struct job *j, *found = NULL;

	for (size_t i = 0; i < 2; i++) {
		list_each(j, i == 0 ? &n->jobs : &n->stopped_jobs, link) {
			char id[ID_TEXT_MAX];

			hex_format(id, j->history.job.id.b, sizeof(j->history.job.id.b));
			if (may_see(s, j) && strcmp(id, m->job) == 0)
				return j;
			if (!may_see(s, j) || strcmp(j->history.job.name, m->job) != 0)
				continue;
			if (!found || j->history.job.uid == session_process(s)->uid)
				found = j;
		}
	}
	return found;
}

static struct checkpoint *checkpoint_named(struct job *j, const Ckpt__Admin *m)
{
	struct checkpoint *c, *found = NULL;

	list_each(c, &j->checkpoints, link) {
		if (c->step != m->step || c->agreed != CP_COMMITTED || c->durable == DUR_GONE)
			continue;
		if (m->attempt.len == 16 && memcmp(m->attempt.data, c->attempt.b, 16) != 0)
			continue;
		if (!found || c->record_n > found->record_n)
			found = c;
	}
	return found;
}

/* What is only in memory is written, and stays there until it is. */
static void set_pinned(struct checkpoint *c, bool on)
{
	c->pinned = on;
	if (on && c->durable == DUR_FAILED) {
		c->durable = DUR_NONE;
		c->persist_tries = 0;
	}
	if (c->durable == DUR_DONE)
		indexing_put(c);
}

static void reply_done(const struct deed *d)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	const struct checkpoint *c = d->checkpoint;

	reply.id = d->request;
	if (c && d->pin && c->no_room)
		reply.text = (char *)"it is only in memory, and is written when the disk has room";
	else if (c && d->pin && c->durable != DUR_DONE)
		reply.text = (char *)"it is only in memory, and is being written to disk";
	session_reply(d->session, &reply, NULL, 0);
}

static void deed_failed(struct deed *d, int status_code)
{
	const char *why = d->job && d->job->refused ? d->job->refused : err_text(status_code);
	char text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text), "its record could not be written to the job's log: %s", why);
	session_reply_error(d->session, d->request, status_code, text);
}

static void deed_done(void *arg, int status_code)
{
	struct deed *d = arg;

	if (d->checkpoint && status_code == 0 && d->trust)
		trust_recorded(d->checkpoint);
	else if (d->checkpoint && status_code == 0)
		set_pinned(d->checkpoint, d->pin);
	if (d->checkpoint) {
		d->checkpoint->works--;
		d->checkpoint->saying -= d->trust;
		job_poke(d->checkpoint->job);
	}
	if (status_code < 0)
		deed_failed(d, status_code);
	else
		reply_done(d);
	session_unref(d->session);
	alloc_free(d);
}

static struct deed *deed_new(struct session *s, uint64_t request)
{
	struct deed *d = alloc_zero(sizeof(*d));

	if (d) {
		d->session = session_ref(s);
		d->request = request;
	}
	return d;
}

/* A record that says `value` of it. */
static int mark(struct session *s, uint64_t request, struct checkpoint *c, enum record_type type,
		uint32_t value)
{
	struct record r = {.type = type};
	struct deed *d = deed_new(s, request);
	int err;

	if (!d)
		return -ENOMEM;
	d->job = c->job;
	d->checkpoint = c;
	d->pin = type == RECORD_PIN && value;
	d->trust = type == RECORD_TRUST;
	c->works++;
	c->saying += d->trust;
	r.mark.step = c->step;
	r.mark.attempt = c->attempt;
	r.mark.value = value;
	err = job_append(c->job, &r, deed_done, d);
	if (err < 0) {
		c->works--;
		c->saying -= d->trust;
		session_unref(s);
		alloc_free(d);
	}
	return err;
}

/* What copies are worth ckptd finds out itself; what the bytes are worth somebody may know. */
static int set_trust(struct session *s, uint64_t request, struct checkpoint *c, uint32_t value,
		     struct err *e)
{
	if (value != TRUST_VERIFIED && value != TRUST_BAD)
		return err_set(e, -EINVAL, "a checkpoint can be said to be verified or bad");
	return mark(s, request, c, RECORD_TRUST, value);
}

/* What was lost is given up: from here on the job has nothing to restore, and says so. */
static int forget_lost(struct session *s, uint64_t request, struct job *j,
		       const struct history_commit *h)
{
	struct record r = {.type = RECORD_FREE};
	struct deed *d = deed_new(s, request);
	int err;

	if (!d)
		return -ENOMEM;
	d->job = j;
	r.mark.step = h->commit.step;
	r.mark.attempt = h->commit.attempt;
	r.mark.value = 1;
	err = job_append(j, &r, deed_done, d);
	if (err < 0) {
		session_unref(s);
		alloc_free(d);
	}
	return err;
}

static const struct history_commit *lost_named(struct job *j, const Ckpt__Admin *m)
{
	for (size_t i = j->history.n_commits; i-- > 0;) {
		const struct history_commit *h = &j->history.commits[i];

		if (h->lost && h->commit.step == m->step &&
		    (m->attempt.len != 16 || memcmp(m->attempt.data, h->commit.attempt.b, 16) == 0))
			return h;
	}
	return NULL;
}

/*
 * Never the last one that can be restored, nor one that is pinned, read, or the epoch's base; nor
 * while an epoch is being opened, which may have chosen it. A copy in memory goes with the files.
 */
static int remove_one(struct session *s, uint64_t request, struct checkpoint *c, struct err *e)
{
	struct job *j = c->job;
	struct checkpoint *o;
	struct deed *d;
	bool other = !checkpoint_restorable(c);
	int r;

	list_each(o, &j->checkpoints, link)
		other = other || (o != c && o->durable == DUR_DONE && !o->disk_suspect);
	if (!retain_has_files(c))
		return err_set(e, CKPT_ESTATE, "step %llu is not on disk",
			       (unsigned long long)c->step);
	if (!other && !c->pinned && !checkpoint_is_base(c))
		return err_set(e, -EBUSY,
			       "step %llu is the only good one on disk; it stays: save a newer one "
			       "first, or stop ckptd and remove the whole job with 'ckptctl rm %s "
			       "--all --data FOLDER'",
			       (unsigned long long)c->step, j->history.job.name);
	if (recheck_is_busy(c) || c->saying) {
		recheck_give_way(j->node);
		return err_set(e, -EAGAIN, "step %llu is just being read again",
			       (unsigned long long)c->step);
	}
	if (c->pinned || checkpoint_is_base(c) || c->readers || c->works)
		return err_set(e, -EBUSY, "step %llu is %s; it stays", (unsigned long long)c->step,
			       c->pinned               ? "pinned"
			       : checkpoint_is_base(c) ? "the base of the current epoch"
						       : "being read or written");
	if (j->opening)
		return err_set(e, -EAGAIN, "an epoch of job '%s' is just being opened",
			       j->history.job.name);
	d = deed_new(s, request);
	if (!d)
		return -ENOMEM;
	d->job = j;
	r = retain_remove(c, deed_done, d, e);
	if (r < 0) {
		session_unref(s);
		alloc_free(d);
	}
	return r;
}

static void gc_plan(struct session *s, uint64_t request, struct job *j)
{
	CLEANUP_FREE struct retention_item *items = NULL;
	CLEANUP_FREE struct checkpoint **order = NULL;
	json_t *a = json_array();
	struct checkpoint *c;
	size_t n = 0;

	list_each(c, &j->checkpoints, link)
		n += retain_has_files(c);
	items = alloc_array(n, sizeof(*items));
	order = alloc_array(n, sizeof(*order));
	if (items && order)
		retain_plan(j, items, order, n);
	for (size_t i = 0; items && order && i < n; i++) {
		const struct commit_file *commit = order[i]->commit; /* NULL: it is unreadable */

		json_array_append_new(
			a, json_pack("{s:I, s:o, s:b, s:s, s:I}", "step", (json_int_t)items[i].step,
				     "attempt", hex_json(order[i]->attempt.b, 16), "expire",
				     (int)items[i].expire, "because",
				     items[i].kept_because ? items[i].kept_because : "", "bytes",
				     (json_int_t)(commit ? commit_disk_bytes(commit) : 0)));
	}
	admin_reply_json(
		s, request,
		json_pack("{s:i, s:s, s:o}", "schema", 2, "job", j->history.job.name, "plan", a));
}

/* Whoever has it opens the job as one of its ranks: its owner, who gets it with each open, root and
 * ckptd's own user. */
static void token(struct session *s, uint64_t request, struct job *j)
{
	struct digest d = digest_of(j->token, sizeof(j->token));

	if (!digest_equal(&d, &j->history.job.token)) {
		session_reply_error(s, request, CKPT_ENOTFOUND,
				    "the file with the job's token is lost; its owner needs none");
		return;
	}
	admin_reply_json(s, request,
			 json_pack("{s:i, s:s, s:o, s:o}", "schema", 2, "job", j->history.job.name,
				   "id", hex_json(j->history.job.id.b, 16), "token",
				   hex_json(j->token, sizeof(j->token))));
}

static void on_job_verb(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct job *j = admin_job(s, m);
	struct checkpoint *c = j ? checkpoint_named(j, m) : NULL;
	const struct history_commit *lost;
	struct err e = { 0 };
	char text[ERR_TEXT_MAX];
	int r = 0;

	if (!j) {
		snprintf(text, sizeof(text), "there is no job '%s' of yours here", m->job);
		session_reply_error(s, request, CKPT_ENOTFOUND, text);
		return;
	}
	if (job_stopped(j)) {
		session_reply_error(s, request, CKPT_ESTOPPED, j->defect_text);
		return;
	}
	if (m->verb == CKPT__ADMIN__VERB__GC) {
		if (!m->dry_run)
			retain_step(j);
		gc_plan(s, request, j);
		return;
	}
	if (m->verb == CKPT__ADMIN__VERB__TOKEN) {
		token(s, request, j);
		return;
	}
	lost = !c && m->verb == CKPT__ADMIN__VERB__REMOVE ? lost_named(j, m) : NULL;
	if (!c && !lost) {
		snprintf(text, sizeof(text), "job '%s' has no committed checkpoint of step %llu",
			 m->job, (unsigned long long)m->step);
		session_reply_error(s, request, CKPT_ENOTFOUND, text);
		return;
	}
	if (lost)
		r = forget_lost(s, request, j, lost);
	else if (m->verb == CKPT__ADMIN__VERB__REMOVE)
		r = remove_one(s, request, c, &e);
	else if (m->verb == CKPT__ADMIN__VERB__TRUST)
		r = set_trust(s, request, c, m->trust, &e);
	else
		r = mark(s, request, c, RECORD_PIN, m->verb == CKPT__ADMIN__VERB__PIN);
	if (r < 0)
		session_reply_error(s, request, r, e.code ? e.text : NULL);
}

void admin_request(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct deed *d;
	int r;

	switch ((int)m->verb) {
	case CKPT__ADMIN__VERB__STATUS:
	case CKPT__ADMIN__VERB__LIST:
		status(s, request, m);
		return;
	case CKPT__ADMIN__VERB__REMOVE:
	case CKPT__ADMIN__VERB__PIN:
	case CKPT__ADMIN__VERB__UNPIN:
	case CKPT__ADMIN__VERB__GC:
	case CKPT__ADMIN__VERB__TOKEN:
	case CKPT__ADMIN__VERB__TRUST:
		on_job_verb(s, request, m);
		return;
	case CKPT__ADMIN__VERB__REBUILD:
		if (session_process(s)->uid != 0 &&
		    session_process(s)->uid != (uint32_t)geteuid()) {
			session_reply_error(s, request, CKPT_EDENIED,
					    "rebuild: only root and ckptd's own user may");
			return;
		}
		d = deed_new(s, request);
		r = d ? indexing_rebuild(session_node(s), deed_done, d) : -ENOMEM;
		if (r < 0) {
			session_reply_error(s, request, r, "rebuild: there is no index here");
			if (d)
				session_unref(s);
			alloc_free(d);
		}
		return;
	case CKPT__ADMIN__VERB__ADOPT:
		incoming_adopt(s, request, m->job);
		return;
	case CKPT__ADMIN__VERB__EVENTS:
	case CKPT__ADMIN__VERB__WHY:
	case CKPT__ADMIN__VERB__CLEAR:
	case CKPT__ADMIN__VERB__DRAIN:
	case CKPT__ADMIN__VERB__UNDRAIN:
	case CKPT__ADMIN__VERB__POLICY:
		admin_watching(s, request, m);
		return;
	default:
		session_reply_error(s, request, CKPT_EVERSION,
				    "ckptd does not know this verb: it is older than ckptctl");
	}
}

/* ---- List ---- */

static int by_record(const void *a, const void *b)
{
	const struct checkpoint *x = *(struct checkpoint *const *)a;
	const struct checkpoint *y = *(struct checkpoint *const *)b;

	return x->record_n > y->record_n ? -1 : x->record_n < y->record_n;
}

void admin_fill_info(Ckpt__CheckpointInfo *i, struct checkpoint *c)
{
	ckpt__checkpoint_info__init(i);
	i->step = c->step;
	i->attempt = (ProtobufCBinaryData){ 16, c->attempt.b };
	i->epoch = c->epoch;
	i->bytes = c->bytes;
	i->time_ns = c->wall_ns;
	i->world = c->world;
	i->memory = c->memory;
	i->disk = c->durable == DUR_DONE && !c->disk_suspect;
	i->pinned = c->pinned;
	i->latest = checkpoint_is_base(c);
}

static int send_list(struct session *s, uint64_t request, Ckpt__ListReply *list)
{
	struct memory *m = session_node(s)->env.memory;
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__ListReply in_fd = CKPT__LIST_REPLY__INIT;
	size_t len = ckpt__list_reply__get_packed_size(list);
	int fd = -1;

	reply.id = request;
	reply.body_case = CKPT__REPLY__BODY_LIST;
	reply.list = list;
	if (len > INLINE_MAX) {
		CLEANUP_FREE uint8_t *buf = alloc_zero(len);

		if (!buf)
			return -ENOMEM;
		ckpt__list_reply__pack(list, buf);
		fd = m->ops->bytes_to_fd(m, buf, len);
		if (fd < 0)
			return fd;
		in_fd.in_fd = true;
		reply.list = &in_fd;
	}
	session_reply(s, &reply, &fd, fd >= 0);
	return 0;
}

void admin_list(struct session *s, uint64_t request)
{
	struct job *j = session_member(s)->job;
	Ckpt__ListReply list = CKPT__LIST_REPLY__INIT;
	CLEANUP_FREE struct checkpoint **order = NULL;
	CLEANUP_FREE Ckpt__CheckpointInfo *infos = NULL;
	CLEANUP_FREE Ckpt__CheckpointInfo **ptrs = NULL;
	struct checkpoint *c;
	size_t n = 0, k = 0;
	int r = -ENOMEM;

	list_each(c, &j->checkpoints, link)
		n += checkpoint_restorable(c);
	order = alloc_array(n, sizeof(*order));
	infos = alloc_array(n, sizeof(*infos));
	ptrs = alloc_array(n, sizeof(*ptrs));
	if (order && infos && ptrs) {
		list_each(c, &j->checkpoints, link)
			if (checkpoint_restorable(c))
				order[k++] = c;
		qsort(order, n, sizeof(*order), by_record);
		for (k = 0; k < n; k++) {
			admin_fill_info(&infos[k], order[k]);
			ptrs[k] = &infos[k];
		}
		list.checkpoints = ptrs;
		list.n_checkpoints = n;
		r = send_list(s, request, &list);
	}
	if (r < 0)
		session_reply_error(s, request, r, "list: out of memory");
}
