/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin.c - looks and small deeds for operators. A user sees and changes their own jobs, root and
 * ckptd's own user all of them. Deeds are records in the job's log before they are true (I4).
 */
#include <config.h>

#include "ckptd/admin.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/incoming.h"
#include "ckptd/indexing.h"
#include "ckptd/job_removal.h"
#include "ckptd/node_priv.h"
#include "ckptd/plan_answer.h"
#include "ckptd/status_answer.h"
#include "ckptd/trust.h"
#include "codec/digest.h"
#include "model/trust.h"

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

bool admin_may_see(struct session *s, const struct job *j)
{
	return admin_sees_all(s) || session_process(s)->uid == j->history.job.uid;
}

/* ---- JSON ---- */

json_t *admin_hex_json(const uint8_t *p, size_t len)
{
	char text[65];

	assert(len <= 32);
	hex_format(text, p, len);
	return json_string(text);
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
	if (len <= ANSWER_INLINE_MAX) {
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

/* ---- Deeds ---- */

const char *admin_label(struct session *s, const struct job *j, char buf[ADMIN_LABEL_MAX])
{
	if (j->history.job.uid == session_process(s)->uid)
		snprintf(buf, ADMIN_LABEL_MAX, "%s", j->history.job.name);
	else
		snprintf(buf, ADMIN_LABEL_MAX, "%u/%s", j->history.job.uid, j->history.job.name);
	return buf;
}

/* text: NAME, UID/NAME (names have no '/'), or the id. */
static bool is_called(const struct job *j, const char *text)
{
	char other[CKPT_JOB_MAX + 16];

	if (strcmp(j->history.job.name, text) == 0)
		return true;
	if (strlen(text) == ID_TEXT_MAX - 1) {
		hex_format(other, j->history.job.id.b, sizeof(j->history.job.id.b));
		if (strcmp(other, text) == 0)
			return true;
	}
	snprintf(other, sizeof(other), "%u/%s", j->history.job.uid, j->history.job.name);
	return strcmp(other, text) == 0;
}

struct job *admin_job(struct session *s, const Ckpt__Admin *m)
{
	struct node *n = session_node(s);
	struct job *j, *found = NULL;

	for (size_t i = 0; i < 2; i++) {
		list_each(j, i == 0 ? &n->jobs : &n->stopped_jobs, link) {
			if (!admin_may_see(s, j) || !is_called(j, m->job))
				continue;
			if (strcmp(j->history.job.name, m->job) != 0)
				return j;
			if (!found || j->history.job.uid == session_process(s)->uid)
				found = j;
		}
	}
	return found;
}

bool admin_is_ambiguous(struct session *s, const struct job *job, const char *text, char *names,
			size_t size)
{
	struct node *n = session_node(s);
	const char *name = job->history.job.name;
	size_t len = 0, others = 0;
	struct job *j;

	if (strcmp(text, name) != 0 || job->history.job.uid == session_process(s)->uid)
		return false;
	for (size_t i = 0; i < 2; i++) {
		list_each(j, i == 0 ? &n->jobs : &n->stopped_jobs, link) {
			if (!admin_may_see(s, j) || strcmp(j->history.job.name, name) != 0)
				continue;
			others += j != job;
			if (len < size)
				len += (size_t)snprintf(names + len, size - len, "%s%u/%s",
							len ? ", " : "", j->history.job.uid, name);
		}
	}
	return others > 0;
}

const char *admin_near_job(struct session *s, const char *text, char hint[NEAR_TEXT_MAX])
{
	struct near near;
	struct job *j;

	near_begin(&near, text);
	list_each(j, &session_node(s)->jobs, link)
		if (admin_may_see(s, j))
			near_try(&near, j->history.job.name);
	return near_text(&near, hint);
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
		reply.text = (char *)(c->job->folder_away ? "it is only in memory, and is written "
							    "when the data folder is back"
							  : "it is only in memory, and is written "
							    "when the disk has room");
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
		d->checkpoint->saying--;
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
	c->saying++;
	r.mark.step = c->step;
	r.mark.attempt = c->attempt;
	r.mark.value = value;
	err = job_append_for(c, &r, deed_done, d);
	if (err < 0) {
		c->saying--;
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

/* What was lost is given up, after which the job may have nothing to restore, and says so; or its
 * pin is taken back, without which it is not given up. */
static int mark_lost(struct session *s, uint64_t request, struct job *j,
		     const struct history_commit *h, enum record_type type, struct err *e)
{
	struct record r = {.type = type};
	char label[ADMIN_LABEL_MAX];
	struct deed *d;
	int err;

	if (type == RECORD_FREE && h->pinned)
		return err_set(e, -EBUSY,
			       "step %llu is lost, and it is pinned: 'ckptctl unpin %s %llu' first",
			       (unsigned long long)h->commit.step, admin_label(s, j, label),
			       (unsigned long long)h->commit.step);
	d = deed_new(s, request);
	if (!d)
		return -ENOMEM;
	d->job = j;
	r.mark.step = h->commit.step;
	r.mark.attempt = h->commit.attempt;
	r.mark.value = type == RECORD_FREE;
	err = job_append(j, &r, deed_done, d);
	if (err < 0) {
		session_unref(s);
		alloc_free(d);
	}
	return err;
}

/* The next epoch's records say that it is lost; until a rank comes nothing but this is known of it,
 * where not even the index has it. */
static bool is_lost(struct job *j, const struct history_commit *h)
{
	return h->lost || (epoch_is_missed(j, h) &&
			   !checkpoint_find_attempt(j, h->commit.step, &h->commit.attempt));
}

static const struct history_commit *lost_named(struct job *j, const Ckpt__Admin *m)
{
	for (size_t i = j->history.n_commits; i-- > 0;) {
		const struct history_commit *h = &j->history.commits[i];

		if (h->commit.step == m->step && is_lost(j, h) &&
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
	char label[ADMIN_LABEL_MAX];
	int r;

	list_each(o, &j->checkpoints, link)
		other = other || (o != c && o->durable == DUR_DONE && !o->disk_suspect);
	if (!retain_has_files(c))
		return err_set(e, CKPT_ESTATE,
			       "step %llu is not on disk: its copy in memory goes when a newer one "
			       "is committed",
			       (unsigned long long)c->step);
	if (!other && !c->pinned && !checkpoint_is_base(c))
		return err_set(e, -EBUSY,
			       "step %llu is the only good one on disk; it stays: save a newer one "
			       "first, or remove the whole job with 'ckptctl rm-job %s'",
			       (unsigned long long)c->step, admin_label(s, j, label));
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
				   "id", admin_hex_json(j->history.job.id.b, 16), "token",
				   admin_hex_json(j->token, sizeof(j->token))));
}

/* It is stopped, or leaves: nothing of it may change, and no work may begin for it. */
static bool refuse_gone(struct session *s, uint64_t request, const struct job *j)
{
	char text[ERR_TEXT_MAX];

	if (job_stopped(j)) {
		session_reply_error(s, request, CKPT_ESTOPPED, j->defect_text);
		return true;
	}
	if (j->removal == JOB_KEPT)
		return false;
	snprintf(text, sizeof(text),
		 "job '%s' is being removed with all its checkpoints: wait until 'ckptctl list' "
		 "does not show it any more",
		 j->history.job.name);
	session_reply_error(s, request, -EAGAIN, text);
	return true;
}

static void on_job_verb(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct job *j = admin_job(s, m);
	struct checkpoint *c = j ? checkpoint_named(j, m) : NULL;
	const struct history_commit *lost;
	struct err e = { 0 };
	char text[ERR_TEXT_MAX], hint[NEAR_TEXT_MAX], label[ADMIN_LABEL_MAX];
	int r = 0;

	if (!j && !session_node(s)->ready) {
		session_reply_error(s, request, -EAGAIN,
				    "ckptd is starting and still reads which jobs there are: ask "
				    "again when `ckptctl status` has them");
		return;
	}
	if (!j) {
		snprintf(text, sizeof(text),
			 "there is no job '%.140s' of yours here%s: 'ckptctl list' shows them",
			 m->job, admin_near_job(s, m->job, hint));
		session_reply_error(s, request, CKPT_ENOTFOUND, text);
		return;
	}
	if (refuse_gone(s, request, j))
		return;
	if (m->verb == CKPT__ADMIN__VERB__GC) {
		if (!m->dry_run)
			retain_step(j);
		plan_start(s, request, j);
		return;
	}
	if (m->verb == CKPT__ADMIN__VERB__TOKEN) {
		token(s, request, j);
		return;
	}
	if (m->verb == CKPT__ADMIN__VERB__REMOVE_JOB) {
		job_removal_start(s, request, j);
		return;
	}
	lost = !c && (m->verb == CKPT__ADMIN__VERB__REMOVE || m->verb == CKPT__ADMIN__VERB__UNPIN)
		       ? lost_named(j, m)
		       : NULL;
	if (!c && !lost) {
		snprintf(text, sizeof(text),
			 "job '%s' has no committed checkpoint of step %llu: 'ckptctl list %s' "
			 "shows what it has",
			 j->history.job.name, (unsigned long long)m->step,
			 admin_label(s, j, label));
		session_reply_error(s, request, CKPT_ENOTFOUND, text);
		return;
	}
	if (lost)
		r = mark_lost(s, request, j, lost,
			      m->verb == CKPT__ADMIN__VERB__REMOVE ? RECORD_FREE : RECORD_PIN, &e);
	else if (m->verb == CKPT__ADMIN__VERB__REMOVE)
		r = remove_one(s, request, c, &e);
	else if (m->verb == CKPT__ADMIN__VERB__TRUST)
		r = set_trust(s, request, c, m->trust, &e);
	else
		r = mark(s, request, c, RECORD_PIN, m->verb == CKPT__ADMIN__VERB__PIN);
	if (r < 0)
		session_reply_error(s, request, r, e.code ? e.text : NULL);
}

/* Deeds write to logs and to the node's files. */
static bool is_deed(const Ckpt__Admin *m)
{
	return m->verb == CKPT__ADMIN__VERB__REMOVE || m->verb == CKPT__ADMIN__VERB__REMOVE_JOB ||
	       m->verb == CKPT__ADMIN__VERB__PIN || m->verb == CKPT__ADMIN__VERB__UNPIN ||
	       m->verb == CKPT__ADMIN__VERB__TRUST || m->verb == CKPT__ADMIN__VERB__REBUILD ||
	       m->verb == CKPT__ADMIN__VERB__CLEAR || m->verb == CKPT__ADMIN__VERB__DRAIN ||
	       m->verb == CKPT__ADMIN__VERB__UNDRAIN;
}

void admin_request(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct deed *d;
	int r;

	if (session_node(s)->stopping && is_deed(m)) {
		session_reply_error(s, request, -EAGAIN,
				    "ckptd is stopping; ask again when it has started");
		return;
	}
	switch ((int)m->verb) {
	case CKPT__ADMIN__VERB__STATUS:
	case CKPT__ADMIN__VERB__LIST:
		status_start(s, request, m);
		return;
	case CKPT__ADMIN__VERB__REMOVE:
	case CKPT__ADMIN__VERB__REMOVE_JOB:
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
					    "rebuild: only root and ckptd's own user may: ask the "
					    "operator");
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
