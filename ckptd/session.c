/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - messages of one connection: decoded, checked, handed to the machines, answered.
 *
 *   new -> HELLO -> (ckptctl: Admin) | OPEN -> DECLARE -> PREPARE -> SlotsReady -> saves and loads
 *
 * A message that does not decode ends the connection. So do session_idle_ns without a message, if
 * the process is in no job and waits for no answer. Nothing here waits.
 */
#include <config.h>

#include "ckptd/session.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/fault.h"
#include "base/text.h"
#include "ckptd/admin.h"
#include "ckptd/credits.h"
#include "ckptd/events.h"
#include "ckptd/list_answer.h"
#include "ckptd/load.h"
#include "ckptd/node_priv.h"
#include "proto/session_page.h"

struct session {
	struct list link; /* in node->sessions, while connected */
	struct node *node;
	struct conn *conn; /* NULL: the connection ended */
	struct process_id process;
	struct user *user;
	struct member *member;
	struct job_id was_in; /* it was a member there, until another took its rank */
	struct job_id looks_at; /* a job, without a rank of it; only if looks */
	bool looks;
	struct list loads, waits;
	struct session_use use;
	uint32_t refs;
	bool hello;
	uint64_t features; /* of the other side */
	struct timer idle; /* armed while it is in no job */
};

/* ---- Doing nothing ---- */

static void idle_begins(struct session *s)
{
	struct loop *l = s->node->env.loop;

	if (s->conn && !s->member && !s->looks && s->node->options.session_idle_ns)
		timer_arm(l, &s->idle, loop_now(l) + s->node->options.session_idle_ns);
	else
		timer_disarm(l, &s->idle);
}

static void idle_came(struct timer *t)
{
	struct session *s = container_of(t, struct session, idle);

	/* Each request that is not answered yet has a reference. */
	if (s->refs > 1 || s->use.opening)
		idle_begins(s);
	else if (s->conn)
		s->conn->ops->close(s->conn);
}

/* ---- What the machines need ---- */

struct session *session_ref(struct session *s)
{
	s->refs++;
	return s;
}

void session_unref(struct session *s)
{
	assert(s->refs > 0);
	if (--s->refs > 0)
		return;
	user_put(s->user);
	alloc_free(s);
}

bool session_connected(const struct session *s)
{
	return s->conn != NULL;
}

bool session_room(struct session *s)
{
	return !s->conn || conn_room(s->conn);
}

void session_has_room(struct session *s)
{
	load_room(s);
}

const struct process_id *session_process(const struct session *s)
{
	return &s->process;
}

struct user *session_user(const struct session *s)
{
	return s->user;
}

struct node *session_node(const struct session *s)
{
	return s->node;
}

bool session_beats(const struct session *s)
{
	return s->features & SESSION_FEATURE_BEATS;
}

void session_forget_member(struct session *s)
{
	if (s->member)
		s->was_in = s->member->job->history.job.id;
	s->member = NULL;
	idle_begins(s);
}

void session_set_member(struct session *s, struct member *m)
{
	s->member = m;
	idle_begins(s);
}

bool session_follow(struct session *s)
{
	return s->conn && s->conn->ops->process_alive(s->conn);
}

struct member *session_member(const struct session *s)
{
	return s->member;
}

bool session_looks(const struct session *s)
{
	return s->features & SESSION_FEATURE_LOOKS;
}

void session_look_at(struct session *s, const struct job *j)
{
	assert(!s->member);
	s->looks = true;
	s->looks_at = j->history.job.id;
	idle_begins(s);
}

struct job *session_job(const struct session *s)
{
	if (s->member)
		return s->member->job;
	return s->looks ? job_find_id(s->node, &s->looks_at) : NULL;
}

struct session_use *session_use(struct session *s)
{
	return &s->use;
}

struct list *session_loads(struct session *s)
{
	return &s->loads;
}

struct list *session_waits(struct session *s)
{
	return &s->waits;
}

void session_reply(struct session *s, const Ckpt__Reply *reply, const int *fds, size_t n_fds)
{
	struct memory *m = s->node->env.memory;
	uint8_t buf[CONN_MESSAGE_MAX];
	size_t len = ckpt__reply__get_packed_size(reply);

	if (!s->conn) {
		for (size_t i = 0; i < n_fds; i++)
			m->ops->close_fd(m, fds[i]);
		return;
	}
	if (len > sizeof(buf)) { /* long texts and many names come from logs and layouts */
		for (size_t i = 0; i < n_fds; i++)
			m->ops->close_fd(m, fds[i]);
		session_reply_error(s, reply->id, -EMSGSIZE,
				    "the answer does not fit in a message");
		return;
	}
	ckpt__reply__pack(reply, buf);
	s->conn->ops->send(s->conn, buf, len, fds, n_fds);
}

void session_reply_ok(struct session *s, uint64_t request)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;

	reply.id = request;
	session_reply(s, &reply, NULL, 0);
}

void session_reply_error(struct session *s, uint64_t request, int code, const char *text)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;

	assert(code < 0);
	reply.id = request;
	reply.code = code;
	reply.text = (char *)(text ? text : err_text(code));
	session_reply(s, &reply, NULL, 0);
}

static void reply_err(struct session *s, uint64_t request, int code, const struct err *e)
{
	if (code < 0)
		session_reply_error(s, request, code, e->code ? e->text : NULL);
	else
		session_reply_ok(s, request);
}

/* ---- Requests ---- */

static void on_hello(struct session *s, uint64_t id, const Ckpt__Hello *m)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__HelloReply body = CKPT__HELLO_REPLY__INIT;
	char text[128];

	if (m->version_min > SESSION_VERSION || m->version_max < SESSION_VERSION) {
		snprintf(text, sizeof(text),
			 "hello: ckptd speaks version %u, the other side %u to %u; install "
			 "matching versions", SESSION_VERSION, m->version_min, m->version_max);
		session_reply_error(s, id, CKPT_EVERSION, text);
		return;
	}
	s->hello = true;
	s->features = m->features;
	body.features = SESSION_FEATURE_BEATS | SESSION_FEATURE_LOOKS;
	body.version = SESSION_VERSION;
	body.program = (char *)PACKAGE_STRING;
	body.leaf = s->node->options.geometry.leaf;
	body.chunk = s->node->options.geometry.chunk;
	reply.id = id;
	reply.body_case = CKPT__REPLY__BODY_HELLO;
	reply.hello = &body;
	session_reply(s, &reply, NULL, 0);
}

static void on_open(struct session *s, uint64_t id, const Ckpt__Open *m)
{
	struct open_request r = {
		.session = s,
		.request = id,
		.rank = m->rank,
		.world = m->world,
		.has_token = m->token.len == sizeof(r.token),
		.reconnect = m->reconnect,
		.existing = m->existing,
		.looks = m->existing && !m->trains,
		.assumed = m->assumed,
		.loaded_epoch = m->loaded_epoch,
		.origin = m->reconnect
				  ? origin_of(m->origin)
				  : (struct origin){m->own_state ? ORIGIN_UNSAID : ORIGIN_FRESH, 0},
	};

	if (s->member || s->looks || s->use.opening) {
		session_reply_error(s, id, CKPT_ESTATE, "open: this connection is open already");
		return;
	}
	if (strlen(m->job) > CKPT_JOB_MAX || strlen(m->run_id) > RUN_ID_MAX) {
		session_reply_error(s, id, -EINVAL,
				    "open: a job's name has at most 64 bytes, a run id 128");
		return;
	}
	for (const char *p = m->run_id; *p; p++) {
		if (*p < 0x20 || *p > 0x7e) {
			session_reply_error(s, id, -EINVAL,
					    "open: a run id is of printable ASCII characters");
			return;
		}
	}
	strcpy(r.job, m->job);
	strcpy(r.run_id, m->run_id);
	if (r.has_token)
		memcpy(r.token, m->token.data, sizeof(r.token));
	epoch_open(s->node, &r);
}

static void on_declare(struct session *s, uint64_t id, const Ckpt__Declare *m, int *fds,
		       size_t n_fds)
{
	struct declare_bytes b = { .fd = -1, .bytes = m->bytes.data, .len = m->bytes.len };
	struct err e = { 0 };
	struct digest d;
	int r;

	if (m->digest.len != 16 || (m->in_fd && n_fds == 0)) {
		session_reply_error(s, id, CKPT_EPROTO,
				    "declare: a digest of 16 bytes, and bytes or a memfd");
		return;
	}
	memcpy(d.b, m->digest.data, 16);
	if (m->in_fd)
		b.fd = fds[0];
	r = declaring_start(s, id, &d, &b, &e);
	if (r < 0)
		reply_err(s, id, r, &e);
	else if (m->in_fd)
		fds[0] = -1;
}

static void on_prepare(struct session *s, uint64_t id, const Ckpt__Prepare *m)
{
	struct err e = { 0 };
	const struct slots_wanted wanted = {
		.request = id, .blob_bytes = m->blob_bytes, .early = m->early};
	enum prepare_lacks lacks;
	int r;

	problems_asked(s->member);
	r = member_prepare(s->member, s, &wanted, &lacks, &e);
	if (r < 0) {
		problems_prepare_refused(s->member, lacks, e.code ? e.text : err_text(r));
		reply_err(s, id, r, &e);
	}
}

void session_slots_ready(struct session *s, uint64_t request, uint32_t later, int code,
			 const char *text)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__SlotsReadyReply body = CKPT__SLOTS_READY_REPLY__INIT;

	assert(code <= 0 && (code == 0 || text));
	body.later = later;
	reply.id = request;
	reply.code = code;
	reply.text = (char *)(code < 0 ? text : "");
	reply.body_case = CKPT__REPLY__BODY_SLOTS_READY;
	reply.slots_ready = &body;
	session_reply(s, &reply, NULL, 0);
}

void session_prepared(struct session *s, uint64_t id, struct member *m)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__PrepareReply body = CKPT__PREPARE_REPLY__INIT;
	struct memory *mem = s->node->env.memory;
	uint32_t numbers[CONN_FDS_MAX];
	int fds[CONN_FDS_MAX];
	struct slot *slot;
	size_t n = 0;

	list_each(slot, &m->slots, of_member) {
		int fd;

		if (n == CONN_FDS_MAX)
			continue;
		/* A sealed slot cannot be mapped for writing anew; its process has it mapped. */
		fd = mem->ops->export_fd(mem, slot->region,
					 slot->state == SLOT_MAPPING && !slot->busy);
		if (fd < 0) {
			for (size_t i = 0; i < n; i++)
				mem->ops->close_fd(mem, fds[i]);
			session_reply_error(s, id, fd,
					    "prepare: the slots could not be handed over");
			return;
		}
		numbers[n] = slot->number;
		fds[n++] = fd;
	}
	body.slot_bytes = member_slot_bytes(m);
	body.slots = numbers;
	body.n_slots = n;
	reply.id = id;
	reply.body_case = CKPT__REPLY__BODY_PREPARE;
	reply.prepare = &body;
	session_reply(s, &reply, fds, n);
}

static int take_blobs(const Ckpt__Seal *m, struct blobs **ret, struct err *e)
{
	uint64_t names = 0;

	if (m->n_blobs > SEAL_BLOBS_MAX)
		return err_set(e, CKPT_EPROTO, "seal: %zu blobs, at most %u can be saved",
			       m->n_blobs, SEAL_BLOBS_MAX);
	for (size_t i = 0; i < m->n_blobs; i++) {
		size_t len = strlen(m->blobs[i]->name);

		if (len == 0 || len > CKPT_NAME_MAX)
			return err_set(e, -EINVAL, "seal: the name of blob %zu has %zu bytes, "
				       "it must have 1 to %d", i, len, CKPT_NAME_MAX);
		if (text_utf8_len(m->blobs[i]->name, len) != len)
			return err_set(e, -EINVAL,
				       "seal: the name of blob %zu is not UTF-8 behind its first "
				       "%zu bytes; it must be encoded",
				       i, text_utf8_len(m->blobs[i]->name, len));
		names += len;
	}
	*ret = blobs_new((uint32_t)m->n_blobs, names);
	for (size_t i = 0; *ret && i < m->n_blobs; i++) {
		const Ckpt__BlobPlace *from = m->blobs[i];

		blobs_add(*ret, &(struct blob_entry){.name = from->name,
						     .name_len = (uint32_t)strlen(from->name),
						     .image_offset = from->image_offset,
						     .bytes = from->bytes});
	}
	return *ret ? 0 : err_code(e, -ENOMEM, "seal");
}

static void seal_reply(struct session *s, uint64_t id, uint64_t step, struct attempt_id *attempt)
{
	char note[ERR_TEXT_MAX];
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__SealReply body = CKPT__SEAL_REPLY__INIT;

	if (BUG(SEAL_WAITS_FOR_PEERS) &&
	    !checkpoint_find_attempt(s->member->job, step, attempt)->sealed)
		return;
	body.attempt = (ProtobufCBinaryData){ 16, attempt->b };
	reply.id = id;
	reply.body_case = CKPT__REPLY__BODY_SEAL;
	reply.seal = &body;
	if (problems_goes_back(s->member, step, note))
		reply.text = note;
	session_reply(s, &reply, NULL, 0);
}

static void on_seal(struct session *s, uint64_t id, const Ckpt__Seal *m)
{
	struct err e = { 0 };
	struct attempt_id attempt;
	struct seal_request r = {
		.step = m->step,
		.epoch = m->epoch,
		.credit = m->credit,
		.slot = m->slot,
		.image_len = m->image_len,
		.try_number = m->try_,
	};
	int err;

	if (m->declaration.len != 16) {
		session_reply_error(s, id, CKPT_EPROTO,
				    "seal: the declaration's digest has 16 bytes");
		return;
	}
	memcpy(r.declaration.b, m->declaration.data, 16);
	err = take_blobs(m, &r.blobs, &e);
	if (err == 0)
		err = checkpoint_seal(s->member, &r, &attempt, &e);
	if (err < 0) {
		/* Another rank has skipped it: that says why. */
		if (err != CKPT_EABORTED)
			problems_save_failed(s->member, m->step, e.code ? e.text : err_text(err));
		reply_err(s, id, err, &e);
		return;
	}
	seal_reply(s, id, m->step, &attempt);
	if (err == 0)
		checkpoint_sealed(s->member, &r);
}

static void on_skip(struct session *s, uint64_t id, const Ckpt__Skip *m)
{
	char reason[ERR_TEXT_MAX];
	struct skip_request r = {
		.step = m->step,
		.epoch = m->epoch,
		.credit = m->credit,
		.try_number = m->try_,
		.kind = m->kind,
		.reason = reason,
	};

	if (m->only_credit) {
		checkpoint_return_credit(s->member, m->credit);
		session_reply_ok(s, id);
		return;
	}
	text_put(reason, sizeof(reason), m->reason[0] ? m->reason : "no credit");
	for (char *p = reason; *p; p++)
		if (*p < 0x20 || *p > 0x7e)
			*p = '?'; /* it goes into the log and into JSON */
	checkpoint_skip(s->member, &r);
	session_reply_ok(s, id);
}

static void on_credit(struct session *s, uint64_t id)
{
	struct member *m = s->member;

	if (m->epoch != m->job->history.epoch.number) {
		member_refuse_credit(m, id);
		return;
	}
	if (m->credit_request)
		session_reply_error(s, m->credit_request, CKPT_ETIMEDOUT, "asked again");
	m->credit_request = id;
	problems_asked(m);
	job_poke(m->job);
	if (credits_has(m)) {
		session_reply_ok(s, id);
		m->credit_request = 0;
	}
}

static void on_wait(struct session *s, uint64_t id, const Ckpt__Wait *m)
{
	struct job *j = session_job(s);
	uint64_t epoch = s->member ? s->member->epoch : j->history.epoch.number;
	const struct wait_request wanted = {.step = m->step,
					    .epoch = m->epoch ? m->epoch : epoch,
					    .what = m->what,
					    .asks = m->asks};
	struct err e = { 0 };
	int r = checkpoint_wait(j, s, id, &wanted, &e);

	if (r < 0)
		reply_err(s, id, r, &e);
}

static void on_cancel(struct session *s, uint64_t id, const Ckpt__Cancel *m)
{
	struct member *member = s->member;

	if (member && member->credit_request == m->request && m->request) {
		member->credit_request = 0;
		session_reply_error(s, m->request, CKPT_ETIMEDOUT, "no credit came in time");
	} else if (m->request) {
		waiter_cancel(s, m->request);
	}
	session_reply_ok(s, id);
}

/* bye: NULL: the connection ended without. */
static void end_member(struct session *s, const Ckpt__Bye *bye)
{
	struct member *m = s->member;
	struct job *j;

	load_drop_all(s);
	declaring_drop(s);
	waiters_drop_session(s); /* also of a member that it was */
	epoch_drop_session(s);
	s->looks = false;
	if (!m)
		return;
	j = m->job;
	m->credit_request = 0;
	m->session = NULL;
	s->member = NULL;
	if (bye && !job_stopped(j))
		member_left(m, bye->failed ? MEMBER_FAILED : MEMBER_BYE);
}

static void reply_no_member(struct session *s, uint64_t request)
{
	const struct job *j = job_find_id(s->node, &s->was_in);
	char text[ERR_TEXT_MAX];

	if (!j)
		snprintf(text, sizeof(text), "this connection has not opened a job: open first");
	else
		snprintf(text, sizeof(text),
			 "another launch or process took job '%s' over (it is in epoch %llu, run "
			 "'%.64s'): this process is not one of its ranks any more and should end",
			 j->history.job.name, (unsigned long long)j->history.epoch.number,
			 j->history.epoch.run_id);
	session_reply_error(s, request, CKPT_EEPOCH, text);
}

/* What needs no rank. False: it is something else. */
static bool dispatch_look(struct session *s, const Ckpt__Request *q, int *fds, size_t n_fds)
{
	switch ((int)q->body_case) {
	case CKPT__REQUEST__BODY_WAIT:
		on_wait(s, q->id, q->wait);
		return true;
	case CKPT__REQUEST__BODY_CANCEL:
		on_cancel(s, q->id, q->cancel);
		return true;
	case CKPT__REQUEST__BODY_LIST:
		list_start(s, q->id);
		return true;
	case CKPT__REQUEST__BODY_LOAD_END:
		load_end(s, q->id, q->load_end);
		return true;
	case CKPT__REQUEST__BODY_STORED:
		load_look(s, q->id, q->stored);
		return true;
	case CKPT__REQUEST__BODY_READ:
		load_read(s, q->id, q->read, fds, n_fds);
		return true;
	case CKPT__REQUEST__BODY_BYE:
		end_member(s, q->bye);
		session_reply_ok(s, q->id);
		return true;
	default:
		return false;
	}
}

/* It only ends what was begun before. */
static bool ends_a_look(const Ckpt__Request *q)
{
	return q->body_case == CKPT__REQUEST__BODY_BYE ||
	       q->body_case == CKPT__REQUEST__BODY_CANCEL ||
	       q->body_case == CKPT__REQUEST__BODY_LOAD_END;
}

static void reply_looks(struct session *s, const Ckpt__Request *q, int *fds, size_t n_fds)
{
	const struct job *j = session_job(s);

	if (q->body_case != CKPT__REQUEST__BODY_BYE && !j)
		session_reply_error(s, q->id, CKPT_ENOTFOUND,
				    "the job that this connection looks at is not here any more, "
				    "or is stopped: see `ckptctl status`");
	else if (j && j->removal != JOB_KEPT && !ends_a_look(q))
		/* Nothing new may point to what job_free() frees. */
		session_reply_error(s, q->id, -EAGAIN,
				    "the job that this connection looks at is being removed with "
				    "all its checkpoints: 'ckptctl list' shows it until it is "
				    "gone");
	else if (!dispatch_look(s, q, fds, n_fds))
		session_reply_error(s, q->id, CKPT_ESTATE,
				    "this connection only looks at the job and has no rank: it "
				    "can neither save nor load as one");
}

static void dispatch_member(struct session *s, const Ckpt__Request *q, int *fds, size_t n_fds)
{
	struct err e = { 0 };
	int r;

	if (s->looks) {
		reply_looks(s, q, fds, n_fds);
		return;
	}
	if (!s->member) {
		reply_no_member(s, q->id);
		return;
	}
	if (job_stopped(s->member->job) && q->body_case != CKPT__REQUEST__BODY_BYE) {
		session_reply_error(s, q->id, CKPT_ESTOPPED, s->member->job->defect_text);
		return;
	}
	if (dispatch_look(s, q, fds, n_fds))
		return;
	switch ((int)q->body_case) {
	case CKPT__REQUEST__BODY_DECLARE:
		on_declare(s, q->id, q->declare, fds, n_fds);
		break;
	case CKPT__REQUEST__BODY_PREPARE:
		on_prepare(s, q->id, q->prepare);
		break;
	case CKPT__REQUEST__BODY_SLOTS_READY:
		r = member_slots_ready(s->member, s, q->id, &e);
		if (r < 0)
			reply_err(s, q->id, r, &e);
		break;
	case CKPT__REQUEST__BODY_CREDIT:
		on_credit(s, q->id);
		break;
	case CKPT__REQUEST__BODY_SEAL:
		on_seal(s, q->id, q->seal);
		break;
	case CKPT__REQUEST__BODY_SKIP:
		on_skip(s, q->id, q->skip);
		break;
	case CKPT__REQUEST__BODY_LOAD:
		load_start(s, q->id, q->load);
		break;
	default:
		session_reply_error(
			s, q->id, CKPT_EVERSION,
			"ckptd does not know this request: it is older than the library");
		break;
	}
}

/* Names for the report of long calls. */
static const char *label_of(const Ckpt__Request *q)
{
	static const char *const labels[] = {
		[CKPT__REQUEST__BODY_HELLO] = "a Hello",
		[CKPT__REQUEST__BODY_OPEN] = "an Open",
		[CKPT__REQUEST__BODY_DECLARE] = "a Declare",
		[CKPT__REQUEST__BODY_PREPARE] = "a Prepare",
		[CKPT__REQUEST__BODY_SLOTS_READY] = "a SlotsReady",
		[CKPT__REQUEST__BODY_CREDIT] = "a Credit",
		[CKPT__REQUEST__BODY_SEAL] = "a Seal",
		[CKPT__REQUEST__BODY_SKIP] = "a Skip",
		[CKPT__REQUEST__BODY_WAIT] = "a Wait",
		[CKPT__REQUEST__BODY_CANCEL] = "a Cancel",
		[CKPT__REQUEST__BODY_LIST] = "a List",
		[CKPT__REQUEST__BODY_LOAD] = "a Load",
		[CKPT__REQUEST__BODY_LOAD_END] = "a LoadEnd",
		[CKPT__REQUEST__BODY_ADMIN] = "an Admin",
		[CKPT__REQUEST__BODY_BYE] = "a Bye",
		[CKPT__REQUEST__BODY_STORED] = "a Stored",
		[CKPT__REQUEST__BODY_READ] = "a Read",
	};
	size_t i = (size_t)q->body_case;

	return i < sizeof(labels) / sizeof(labels[0]) && labels[i] ? labels[i] : "a message";
}

static void dispatch(struct session *s, const Ckpt__Request *q, int *fds, size_t n_fds)
{
	if (q->body_case == CKPT__REQUEST__BODY_HELLO)
		on_hello(s, q->id, q->hello);
	else if (!s->hello)
		session_reply_error(s, q->id, CKPT_EPROTO, "hello comes first");
	else if (q->body_case == CKPT__REQUEST__BODY_OPEN)
		on_open(s, q->id, q->open);
	else if (q->body_case == CKPT__REQUEST__BODY_ADMIN)
		admin_request(s, q->id, q->admin);
	else
		dispatch_member(s, q, fds, n_fds);
}

/* ---- From the listener ---- */

void session_opened(struct node *n, struct conn *c)
{
	struct session *s = alloc_zero(sizeof(*s));

	if (!s) {
		c->ops->close(c);
		return;
	}
	s->node = n;
	s->conn = c;
	s->process = c->process;
	s->user = user_get(n, c->process.uid);
	if (!s->user) {
		alloc_free(s);
		c->ops->close(c);
		return;
	}
	s->refs = 1;
	timer_init(&s->idle, idle_came);
	list_init(&s->loads);
	list_init(&s->waits);
	list_add_tail(&n->sessions, &s->link);
	c->session = s;
}

/* What reading a message may take: the most blobs take 0.2 MiB. */
#define MESSAGE_BYTES_MAX (512u << 10)

void session_message(struct session *s, const void *msg, size_t len, int *fds, size_t n_fds)
{
	uint8_t first[4096] __attribute__((aligned(ARENA_ALIGN)));
	struct arena arena;
	ProtobufCAllocator blocks = {arena_lib_take, arena_lib_give, &arena};
	Ckpt__Request *q;

	arena_init(&arena, first, sizeof(first), MESSAGE_BYTES_MAX);
	q = ckpt__request__unpack(&blocks, len, msg);
	session_ref(s);
	if (q) {
		loop_label(s->node->env.loop, label_of(q));
		dispatch(s, q, fds, n_fds);
		idle_begins(s);
	} else if (s->conn) {
		s->conn->ops->close(s->conn);
	}
	session_unref(s);
	arena_fini(&arena);
}

void session_closed(struct session *s)
{
	list_del(&s->link);
	s->conn = NULL;
	timer_disarm(s->node->env.loop, &s->idle);
	end_member(s, NULL);
	events_drop_session(s->node->events, s);
	answers_drop_session(s->node, s);
	session_unref(s);
}

void session_cancel_all(struct node *n)
{
	struct session *s;

	list_each(s, &n->sessions, link) {
		load_cancel_all(s);
		declaring_drop(s);
	}
}

void session_free_all(struct node *n)
{
	struct session *s, *next;

	list_each_safe(s, next, &n->sessions, link) {
		load_forget_all(s);
		list_del(&s->link);
		s->conn = NULL;
		s->member = NULL;
		timer_disarm(n->env.loop, &s->idle);
		session_unref(s);
	}
}
