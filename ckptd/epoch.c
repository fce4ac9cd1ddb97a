/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoch.c - who may join a job, and when its next epoch opens.
 *
 * An open either joins the current epoch, or opens the next one, or is refused:
 *
 *   reconnect of a living member                      joins, nothing changes
 *   open again of a member whose answer was lost      joins, nothing changes
 *   new run id, first of its ranks                    opens (members of the old run are out)
 *   same run id, rank not seen in this epoch          joins
 *   same run id, rank whose process ended             opens: "rank r was replaced"; the others
 *                                                     must load before they save again
 *   no run id: no session lives -> a run id is made and the epoch opened; the made run has lost
 *   looks only: takes no rank, whatever its run id is, and changes nothing
 *   no session yet -> joins; else refused until all are gone (the client tries again)
 *
 * Opening:  SETTLE the old epoch (what every rank sealed is committed, the rest aborted, bounded
 *           by settle_timeout) -> QUIET: no record waits for its turn, and no COMMIT is being
 *           published of what memory has lost -> the base is chosen, lost commits are recorded
 *           -> epoch record with its base (I15) -> in the log; of a new run: ranks of the old one
 *           leave, some in a call -> members learn the new number, openings are answered. What a
 *           record that waits will say may make another checkpoint the base; the base itself keeps
 *           its bytes until the epoch's record is there.
 * Opens of one job are handled one after the other. A log that cannot be written fails the open
 * after settle_timeout; nothing is acted on that is not in the log (I4).
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/acting.h"
#include "ckptd/admin.h"
#include "ckptd/admission.h"
#include "ckptd/beats.h"
#include "ckptd/creating.h"
#include "ckptd/goodput.h"
#include "ckptd/job.h"
#include "ckptd/leaving.h"
#include "ckptd/node_priv.h"
#include "ckptd/refused.h"
#include "ckptd/session.h"
#include "ckptd/trust.h"
#include "ckptd/watching.h"
#include "codec/digest.h"
#include "storage/store.h"

struct opening {
	struct list link;
	struct job *job;
	struct open_request r; /* session NULL: the job falls back by itself */
	char reason[REASON_MAX + 1];
	append_done_fn *done;
	void *arg;
	bool late, appending;
	bool new_run; /* not the one of the epoch before */
	bool entered; /* it is in the log: members of the old run leave, some in a call */
	bool opened;  /* its epoch is current: its rank joins in the next call */
	struct checkpoint *base; /* while appending: one of its works; NULL: none */
	bool asked; /* by a session, which may have given up since */
	uint64_t came_ns;
	enum trust_level least;      /* of the base */
	char run_id[RUN_ID_MAX + 1]; /* of the epoch to open */
};

/* ---- Which checkpoints can be had ---- */

bool checkpoint_memory_is_good(const struct checkpoint *c, uint32_t rank)
{
	const struct shard_state *s = &c->shards[rank];

	if (c->releasing && !BUG(RELEASED_IS_READ))
		return false; /* it goes, whoever comes now (I9) */
	return s->table && s->slot && s->slot->state == SLOT_DIGESTED;
}

bool checkpoint_file_is_good(const struct checkpoint *c, uint32_t rank)
{
	return c->durable == DUR_DONE && c->commit && !c->shards[rank].bad_file;
}

bool checkpoint_restorable(const struct checkpoint *c)
{
	if (c->agreed != CP_COMMITTED)
		return false;
	/* Its free record is in the log or on the way: no epoch may begin with it (I15). */
	if (c->durable == DUR_GONE && !BUG(REMOVED_IS_OFFERED))
		return false;
	if (c->trust & TRUST_BAD)
		return false;
	if (c->durable == DUR_DONE && !c->disk_suspect)
		return true;
	/* One load may mix both. */
	for (uint32_t r = 0; r < c->world; r++)
		if (!checkpoint_memory_is_good(c, r) &&
		    (!checkpoint_file_is_good(c, r) || BUG(ONE_BAD_FILE_IS_ALL)))
			return false;
	return true;
}

bool checkpoint_is_base(const struct checkpoint *c)
{
	const struct record_epoch *ep = &c->job->history.epoch;

	return ep->has_base && ep->base_step == c->step &&
	       attempt_equal(&ep->base_attempt, &c->attempt);
}

struct checkpoint *epoch_newest_restorable(struct job *j)
{
	return epoch_newest_trusted(j, TRUST_LATEST);
}

struct checkpoint *epoch_newest_trusted(struct job *j, enum trust_level least)
{
	struct checkpoint *c, *best = NULL;
	bool best_passed = false;

	list_each(c, &j->checkpoints, link) {
		bool passed = c->trust & TRUST_PASSED;

		if (!checkpoint_restorable(c) || !trust_reaches(c->trust, least))
			continue;
		/* What the job went back behind only where nothing else is left (I5). */
		if (!best || passed < best_passed ||
		    (passed == best_passed && c->record_n > best->record_n)) {
			best = c;
			best_passed = passed;
		}
	}
	return best;
}

void checkpoint_suspect(struct checkpoint *c, uint32_t rank, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (vsnprintf(c->reason, sizeof(c->reason), fmt, ap) < 0)
		c->reason[0] = '\0';
	va_end(ap);
	c->disk_suspect = true;
	for (uint32_t r = 0; r < c->world; r++)
		if (rank == ALL_RANKS || rank == r)
			c->shards[r].bad_file = true;
	problems_damaged(c);
}

bool epoch_is_missed(struct job *j, const struct history_commit *h)
{
	struct checkpoint *c = checkpoint_find_attempt(j, h->commit.step, &h->commit.attempt);

	if (h->gone || (h->freed && !h->lost) || (c && c->durable == DUR_GONE && !h->lost))
		return false;
	return !c || !checkpoint_restorable(c);
}

const struct history_commit *epoch_lost(struct job *j, bool now)
{
	for (size_t i = j->history.n_commits; i-- > 0;) {
		const struct history_commit *h = &j->history.commits[i];

		if ((now || h->epoch < j->history.epoch.number) && epoch_is_missed(j, h))
			return h;
	}
	return NULL;
}

static const char *why_missed(struct job *j, const struct history_commit *h)
{
	struct checkpoint *c = checkpoint_find_attempt(j, h->commit.step, &h->commit.attempt);

	if (h->trust & TRUST_BAD)
		return "it was said to be bad";
	if (c && (c->disk_suspect || c->durable == DUR_UNFINISHED))
		return c->reason;
	return c ? "its copy in memory is damaged" : "neither memory nor files of it are left";
}

void epoch_say_lost(struct job *j, bool now, char *buf, size_t size)
{
	const struct history_commit *newest = epoch_lost(j, now);
	const char *name = j->history.job.name;
	char steps[80] = "";
	size_t len = 0;

	for (size_t i = j->history.n_commits; i-- > 0 && len + 22 < sizeof(steps);) {
		const struct history_commit *h = &j->history.commits[i];

		if ((now || h->epoch < j->history.epoch.number) && epoch_is_missed(j, h))
			len += (size_t)snprintf(steps + len, sizeof(steps) - len, " %llu",
						(unsigned long long)h->commit.step);
	}
	snprintf(buf, size,
		 "load: none of the checkpoints of this job can be restored; the newest, step "
		 "%llu: %.90s; see `ckptctl status` and `ckptctl verify`; to begin afresh take "
		 "another job name, or `ckptctl rm %s%s`",
		 (unsigned long long)newest->commit.step, why_missed(j, newest), name, steps);
}

#define FELL_BACK "fell back: step "

bool epoch_is_opening_from(const struct checkpoint *c)
{
	return c->job->opening && c->job->opening->base == c;
}

bool epoch_fell_back(const struct job *j, uint64_t *ret_step)
{
	const char *at = strstr(j->history.epoch.reason, FELL_BACK);

	*ret_step = at ? strtoull(at + strlen(FELL_BACK), NULL, 10) : 0;
	return at && j->history.epoch.has_base;
}

/* What the new epoch passes over goes into its reason (I11); but not what is not trusted enough. */
static void tell_passed_over(struct job *j, const struct checkpoint *base, const char *why,
			     char *reason)
{
	const struct history_commit *h = NULL;

	snprintf(reason, REASON_MAX + 1, "%s", why);
	if (!base || strstr(why, FELL_BACK))
		return;
	/* Newest first, those that are newer than the base. */
	for (size_t i = j->history.n_commits; i-- > 0 && !h;) {
		if (j->history.commits[i].n < base->record_n)
			return;
		if (!j->history.commits[i].freed && epoch_is_missed(j, &j->history.commits[i]))
			h = &j->history.commits[i];
	}
	if (!h)
		return;
	snprintf(reason, REASON_MAX + 1, "%.64s; " FELL_BACK "%llu: %.140s", why,
		 (unsigned long long)h->commit.step, why_missed(j, h));
	job_tell_step(j, h->commit.step, 3, "fell back to step %llu: step %llu: %s",
		      (unsigned long long)base->step, (unsigned long long)h->commit.step,
		      why_missed(j, h));
}

/* Something newer was committed than what it begins with. */
static bool is_passing(const struct job *j, const struct checkpoint *base)
{
	for (size_t i = 0; i < j->history.n_commits; i++)
		if (j->history.commits[i].n > base->record_n)
			return true;
	return false;
}

/* ---- Openings ---- */

/* Whoever asked has an answer, or went away. */
static void opening_let_go(struct opening *o)
{
	session_use(o->r.session)->opening = NULL;
	session_unref(o->r.session);
	o->r.session = NULL;
}

static void opening_answer(struct opening *o, int code, const char *text)
{
	if (o->r.session) {
		if (code < 0)
			session_reply_error(o->r.session, o->r.request, code, text);
		opening_let_go(o);
	}
	if (o->done)
		o->done(o->arg, code);
	list_del(&o->link);
	alloc_free(o);
}

static void settle_late(struct timer *t)
{
	struct job *j = container_of(t, struct job, settle_timer);

	if (j->opening)
		j->opening->late = true;
	job_poke(j);
}

void epoch_init(struct job *j)
{
	list_init(&j->openings);
	timer_init(&j->settle_timer, settle_late);
}

void epoch_fini(struct job *j)
{
	timer_disarm(j->node->env.loop, &j->settle_timer);
	if (j->opening)
		opening_answer(j->opening, -ECANCELED, "ckptd stops");
	j->opening = NULL;
	while (!list_empty(&j->openings))
		opening_answer(list_first(&j->openings, struct opening, link), -ECANCELED,
			       "ckptd stops");
	alloc_free(j->seen);
	alloc_free(j->away);
}

void epoch_stop(struct job *j, int code, const char *text)
{
	struct opening *o = j->opening;

	if (o && (!o->appending || o->entered)) {
		j->opening = NULL;
		opening_answer(o, code, text);
	} else if (o && o->r.session) { /* its append ends it */
		session_reply_error(o->r.session, o->r.request, code, text);
		opening_let_go(o);
	}
	while (!list_empty(&j->openings))
		opening_answer(list_first(&j->openings, struct opening, link), code, text);
}

void epoch_drop_session(struct session *s)
{
	struct opening *o = session_use(s)->opening;

	/* One that has begun goes on without a session to answer. */
	if (o && (!o->job || o->job->opening != o))
		opening_answer(o, -ECANCELED, "its connection ended");
}

static struct opening *opening_new(const struct node *n, const struct open_request *r)
{
	struct opening *o = alloc_zero(sizeof(*o));

	if (!o)
		return NULL;
	list_init(&o->link);
	o->came_ns = loop_now(n->env.loop);
	if (r) {
		o->r = *r;
		o->asked = true;
		session_ref(r->session);
		session_use(r->session)->opening = o;
	}
	return o;
}

static void opening_queue(struct opening *o, struct job *j)
{
	o->job = j;
	list_add_tail(&j->openings, &o->link);
	job_poke(j);
}

/* ---- Joining ---- */

static void reply_open(struct member *m, const struct open_request *r)
{
	struct job *j = m->job;
	struct record_epoch *ep = &j->history.epoch;
	struct memory *mem = j->node->env.memory;
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__OpenReply body = CKPT__OPEN_REPLY__INIT;
	uint32_t slots[64];
	struct slot *s;
	int fds[2] = { mem->ops->export_fd(mem, m->page, false), beats_export(m) };

	if (fds[0] < 0) {
		if (fds[1] >= 0)
			mem->ops->close_fd(mem, fds[1]);
		session_reply_error(r->session, r->request, fds[0],
				    "open: hand over the session page");
		return;
	}
	body.job_id = (ProtobufCBinaryData){ 16, j->history.job.id.b };
	body.token = (ProtobufCBinaryData){ sizeof(j->token), j->token };
	body.epoch = ep->number;
	body.has_base = ep->has_base;
	body.base_step = ep->base_step;
	body.base_attempt = (ProtobufCBinaryData){ 16, ep->base_attempt.b };
	body.run_id = ep->run_id;
	if (m->declared)
		body.declaration = (ProtobufCBinaryData){ 16, m->declared->digest.b };
	body.slots = slots;
	list_each(s, &m->slots, of_member)
		if (body.n_slots < 64)
			slots[body.n_slots++] = s->number;
	reply.id = r->request;
	reply.body_case = CKPT__REPLY__BODY_OPEN;
	reply.open = &body;
	body.beats = fds[1] >= 0;
	body.beat_fd = body.beats;
	session_reply(r->session, &reply, fds, body.beats ? 2 : 1);
}

static void join(struct opening *o)
{
	struct job *j = o->job;
	struct member *m;
	int r;

	/* Before there is a member: the end of a process that has none is told to nobody. */
	if (!o->r.session || !session_follow(o->r.session)) {
		opening_answer(o, 0, NULL);
		return;
	}
	/* A member of a larger world that a log begun anew does not know any more. */
	if (o->r.rank >= j->history.epoch.world) {
		opening_answer(
			o, CKPT_EEPOCH,
			"open: the job's current epoch has fewer ranks; start the job again");
		return;
	}
	if (session_member(o->r.session)) {
		opening_answer(o, CKPT_ESTATE, "open: this connection is open already");
		return;
	}
	if (!j->seen) {
		j->seen = alloc_zero(j->history.epoch.world);
		if (!j->seen) {
			opening_answer(o, -ENOMEM, "open: out of memory");
			return;
		}
	}
	r = member_join(j, &o->r, &m);
	if (r < 0) {
		opening_answer(o, r, "open: the rank could not be added; out of memory");
		return;
	}
	j->seen[m->rank] = 1;
	j->rank_left = j->rank_left && j->left_rank != m->rank;
	admission_rank_came(j->node, &o->r);
	if (!o->r.looks)
		watching_goes_on(j);
	if (o->r.assumed && !o->r.looks && !o->r.reconnect)
		job_tell(j, 5,
			 "process %d is rank 0 of 1, which libckpt assumed: neither it nor a "
			 "launcher "
			 "said otherwise",
			 (int)m->process.pid);
	session_set_member(o->r.session, m);
	reply_open(m, &o->r);
	opening_answer(o, 0, NULL);
	job_poke(j);
}

/* ---- Opening the next epoch ---- */

static bool any_alive(struct job *j)
{
	struct member *m;

	list_each(m, &j->members, link)
		if (m->alive)
			return true;
	return false;
}

static void begin(struct opening *o, const char *run_id, const char *reason)
{
	struct job *j = o->job;

	if (!JOB_ASSERT(j, !j->opening))
		return;
	list_del(&o->link);
	j->opening = o;
	snprintf(o->run_id, sizeof(o->run_id), "%s", run_id);
	snprintf(o->reason, sizeof(o->reason), "%s", reason);
	timer_arm(j->node->env.loop, &j->settle_timer,
		  loop_now(j->node->env.loop) + j->node->options.settle_timeout_ns);
	job_poke(j);
}

static void begin_new_run(struct opening *o, const char *run_id)
{
	o->new_run = true;
	begin(o, run_id, "new run");
}

#define LEAVE_IN_A_CALL 8u /* each takes some 50 us: slots, pages, the ledger, the detector */

/* Members of an older run leave: their ranks belong to the new one. True: there is none left. */
static bool drop_old_run(struct job *j)
{
	struct member *m;

	for (unsigned n = 0; !list_empty(&j->members); n++) {
		if (n == LEAVE_IN_A_CALL)
			return false;
		m = list_first(&j->members, struct member, link);
		/* Its process may have ended without having been handled yet: process_ends.c. */
		member_left(m, list_empty(&m->ending) ? MEMBER_REPLACED : MEMBER_ENDED);
	}
	leaving_forget(j);
	j->run_closed = false;
	return true;
}

static void not_opened(struct opening *o, int status)
{
	struct job *j = o->job;
	char text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text),
		 "open: the next epoch of job '%s' could not be written to its log: %s; see "
		 "`ckptctl status %s`, and restart ckptd if it stays so",
		 j->history.job.name, j->refused ? j->refused : err_text(status),
		 j->history.job.name);
	opening_answer(o, status, text);
}

/* The epoch is current from here on, for ranks that have joined and for those that join later. */
static void epoch_opened(struct opening *o)
{
	struct job *j = o->job;
	bool new_run = o->asked;

	j->opening = NULL;
	job_poke(j);
	/* After the old run's ranks have left: their ends are no failure of this run, nor its
	 * end. */
	goodput_epoch_opened(j);
	problems_epoch(j);
	if (new_run) {
		alloc_free(j->seen);
		j->seen = NULL;
		j->rank_left = false;
	}
	member_publish_epoch(j);
	watching_epoch(j);
	if (j->history.epoch.has_base)
		job_tell_step(j, j->history.epoch.base_step, 6, "epoch %llu (%s), base step %llu",
			      (unsigned long long)j->history.epoch.number, j->history.epoch.reason,
			      (unsigned long long)j->history.epoch.base_step);
	else
		job_tell(j, 6, "epoch %llu (%s), no base",
			 (unsigned long long)j->history.epoch.number, j->history.epoch.reason);
	if (new_run) {
		struct member *m;

		/* Adopted ones of a larger world may be there if the log was begun anew. */
		list_each(m, &j->members, link)
			if (m->rank < j->history.epoch.world &&
			    (j->seen || (j->seen = alloc_zero(j->history.epoch.world))))
				j->seen[m->rank] = 1;
	}
	if (new_run && o->r.session) {
		o->opened = true; /* epoch_step() goes on, in another call */
		list_add_head(&j->openings, &o->link);
	} else {
		opening_answer(o, 0, NULL);
	}
}

static void epoch_appended(void *arg, int status)
{
	struct opening *o = arg;
	struct job *j = o->job;

	timer_disarm(j->node->env.loop, &j->settle_timer);
	if (o->base)
		o->base->works--;
	o->base = NULL;
	job_poke(j);
	if (status < 0) {
		j->opening = NULL;
		not_opened(o, status);
		return;
	}
	j->epoch_over = false;
	j->asked_trust = o->least;
	trust_epoch(j);
	if (o->new_run)
		o->entered = true; /* epoch_step() goes on */
	else
		epoch_opened(o);
}

bool epoch_bytes_are_lost(struct job *j, const struct history_commit *h)
{
	const struct checkpoint *c;

	if (h->freed || h->gone)
		return h->lost;
	c = checkpoint_find_attempt(j, h->commit.step, &h->commit.attempt);
	/* Files that are damaged are kept for who may repair them. */
	return !c || (!checkpoint_restorable(c) && c->durable != DUR_DONE &&
		      c->durable != DUR_GONE && !(c->trust & TRUST_BAD));
}

static int record_lost(struct job *j, const struct checkpoint *base)
{
	struct record r = { .type = RECORD_FREE };
	int ret = 0;

	for (size_t i = 0; i < j->history.n_commits && ret == 0; i++) {
		struct history_commit *h = &j->history.commits[i];
		struct checkpoint *c;
		bool unfinished;

		if (h->freed || h->gone || (base && h->n <= base->record_n) ||
		    !epoch_bytes_are_lost(j, h))
			continue;
		c = checkpoint_find_attempt(j, h->commit.step, &h->commit.attempt);
		/* It may be DURABLE in a moment; the next epoch knows. */
		if (c && persist_is_publishing(c) && !BUG(LOST_WHILE_WRITING))
			continue;
		r.mark.step = h->commit.step;
		r.mark.attempt = h->commit.attempt;
		r.mark.value = 2;
		/* What was left of writing it goes once the log has that. */
		unfinished = c && c->durable == DUR_UNFINISHED;
		ret = unfinished ? job_append_for(c, &r, retain_lost, c)
				 : job_append(j, &r, NULL, NULL);
		j->lost++;
		job_tell_step(j, h->commit.step, 3,
			      "step %llu was committed and its bytes are lost",
			      (unsigned long long)h->commit.step);
		watching_lost(j, h->commit.step);
	}
	return ret;
}

static void append_epoch(struct opening *o)
{
	struct job *j = o->job;
	struct checkpoint *newest = epoch_newest_restorable(j);
	struct checkpoint *base = epoch_newest_trusted(j, o->least);
	struct record r = { .type = RECORD_EPOCH };
	int ret;

	o->appending = true;
	if (!base && o->least > TRUST_LATEST) {
		epoch_appended(o, CKPT_ENOTFOUND);
		return;
	}
	r.opened.number = j->history.epoch.number + 1;
	r.opened.parent = j->history.epoch.number;
	r.opened.world = o->asked ? o->r.world : j->history.epoch.world;
	memcpy(r.opened.run_id, o->run_id, sizeof(r.opened.run_id));
	tell_passed_over(j, newest, o->reason, r.opened.reason);
	if (base) {
		r.opened.has_base = true;
		r.opened.base_step = base->step;
		r.opened.base_attempt = base->attempt;
		r.opened.passes = (o->least > TRUST_LATEST || BUG(PASSES_WHAT_IS_LOST)) &&
				  is_passing(j, base);
		o->base = base;
		base->works++;
	}
	/* What is not trusted enough is not lost. */
	ret = record_lost(j, newest);
	if (r.opened.passes && BUG(PASSED_BEFORE_EPOCH))
		trust_pass_over_early(base);
	if (ret == 0 && FAULT(EPOCH_RECORD))
		ret = -EIO;
	if (ret == 0)
		ret = job_append(j, &r, epoch_appended, o);
	if (ret < 0)
		epoch_appended(o, ret);
}

/* True when nothing of the old epoch can still be committed. */
static bool settled(struct opening *o)
{
	struct checkpoint *c;
	bool open = false;

	list_each(c, &o->job->checkpoints, link) {
		if (c->agreed == CP_OPEN && (!c->sealed || o->late))
			checkpoint_abort(c, "the job's next epoch was opened (%s)", o->reason);
		if (c->agreed == CP_OPEN || c->agreed == CP_COMMITTING)
			open = true;
	}
	return !open;
}

/* True when nothing is on its way that would have the base be another one: no record, and no COMMIT
 * of what is in memory no more. A disk that hangs is not waited for. */
static bool is_quiet(struct opening *o)
{
	struct job *j = o->job;
	struct checkpoint *c;

	trust_queue(j);
	if (job_has_appends(j) && !BUG(TRUST_QUEUED))
		return false;
	list_each(c, &j->checkpoints, link)
		if (persist_is_publishing(c) && !checkpoint_restorable(c) && !o->late &&
		    !BUG(LOST_WHILE_WRITING))
			return false;
	return true;
}

/* What waits for the log may still come to be written; whoever asked need not wait for it. */
static void answer_late(struct opening *o)
{
	if (!o->late || !o->r.session)
		return;
	session_reply_error(o->r.session, o->r.request, CKPT_ETIMEDOUT,
			    "open: the job's log cannot be written (is the disk full?); see "
			    "`ckptctl status`");
	opening_let_go(o);
}

static void open_next(struct opening *o)
{
	struct job *j = o->job;
	bool all_settled = o->appending || settled(o) || BUG(EPOCH_WITHOUT_SETTLING);

	if (!o->appending && all_settled && (is_quiet(o) || BUG(EPOCH_WITHOUT_SETTLING))) {
		append_epoch(o);
	} else if (all_settled) {
		answer_late(o);
	} else if (o->late) {
		j->opening = NULL;
		opening_answer(o, CKPT_ETIMEDOUT,
			       "open: the job's log cannot be written, so its old epoch cannot be "
			       "settled; see `ckptctl status`");
	}
}

void epoch_fall_back(struct job *j, const char *reason, enum trust_level least,
		     append_done_fn *done, void *arg)
{
	struct opening *o = opening_new(j->node, NULL);

	if (!o) {
		done(arg, -ENOMEM);
		return;
	}
	snprintf(o->reason, sizeof(o->reason), "%s", reason);
	o->least = least > j->asked_trust ? least : j->asked_trust;
	o->done = done;
	o->arg = arg;
	opening_queue(o, j);
}

/* ---- Deciding ---- */

static void refuse(struct opening *o, int code, const char *fmt, unsigned long long a,
		   unsigned long long b)
{
	char text[ERR_TEXT_MAX], head[CKPT_JOB_MAX + 32];

	snprintf(head, sizeof(head), "open job '%s' as rank %u: ", o->r.job, o->r.rank);
	snprintf(text, sizeof(text), "%s", head);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(text + strlen(text), sizeof(text) - strlen(text), fmt, a, b);
#pragma GCC diagnostic pop
	opening_answer(o, code, text);
}

/* If the asking process is this member: it is to close that handle, not to end. True: answered. */
static bool refuse_own(struct opening *o, const struct member *m)
{
	const struct process_id *own = session_process(o->r.session);

	assert(o->asked && m->alive);
	if (!process_same(&m->process, own))
		return false;
	refuse(o, -EAGAIN,
	       "this process, %llu, has the job open already, as rank %llu: a process has one "
	       "handle on a job; use that one, or close it first",
	       (unsigned long long)own->pid, m->rank);
	return true;
}

/* Names the processes to end, as many as fit. */
static void refuse_for_living(struct opening *o)
{
	enum { NAMED_MAX = 6 };
	struct job *j = o->job;
	char pids[160] = "", text[ERR_TEXT_MAX];
	struct member *m;
	size_t used = 0;
	unsigned n = 0;

	list_each(m, &j->members, link) {
		if (!m->alive)
			continue;
		if (refuse_own(o, m))
			return;
		if (n++ < NAMED_MAX)
			used += (size_t)snprintf(pids + used, sizeof(pids) - used, "%s%lld",
						 used ? ", " : "", (long long)m->process.pid);
	}
	assert(used < sizeof(pids));
	snprintf(
		text, sizeof(text),
		"open job '%s' as rank %u: process%s %s%s of an earlier launch still live%s (epoch "
		"%llu); end %s first: a launch with a CKPT_RUN_ID of its own puts them out, and "
		"their saves fail; a rank that is started again within its launch needs that "
		"launch's CKPT_RUN_ID; to look only, open with CKPT_EXISTING, in Python "
		"existing=True",
		o->r.job, o->r.rank, n == 1 ? "" : "es", pids, n > NAMED_MAX ? " and others" : "",
		n == 1 ? "s" : "", (unsigned long long)j->history.epoch.number,
		n == 1 ? "it" : "them");
	opening_answer(o, -EAGAIN, text);
}

static void decide_made(struct opening *o)
{
	struct job *j = o->job;
	struct record_epoch *ep = &j->history.epoch;
	char run_id[RUN_ID_MAX + 1];
	bool made = ep->number > 0 && strncmp(ep->run_id, RUN_ID_MADE, 5) == 0;

	if (!any_alive(j) || j->epoch_over) {
		snprintf(run_id, sizeof(run_id), RUN_ID_MADE "%016llx",
			 (unsigned long long)rng_u64(j->node->env.rng));
		begin_new_run(o, run_id);
	} else if (made && !j->run_closed && ep->world == o->r.world &&
		   !member_of_rank(j, o->r.rank)) {
		join(o);
	} else {
		refuse_for_living(o);
	}
}

static void decide_given(struct opening *o)
{
	struct job *j = o->job;
	struct record_epoch *ep = &j->history.epoch;
	struct member *m = member_of_rank(j, o->r.rank);
	char reason[64];

	if (ep->number == 0 || strcmp(ep->run_id, o->r.run_id) != 0) {
		if (history_run_is_past(&j->history, o->r.run_id))
			refuse(o, CKPT_EEPOCH,
			       "its run id belongs to an older launch; the job is in epoch %llu of "
			       "a newer one", ep->number, 0);
		else
			begin_new_run(o, o->r.run_id);
	} else if (ep->world != o->r.world) {
		refuse(o, -EINVAL,
		       "this launch said a world of %llu before and says %llu now: give all its "
		       "ranks the same, or another launch its own run id in CKPT_RUN_ID",
		       ep->world, o->r.world);
	} else if (j->epoch_over) {
		begin(o, o->r.run_id, "memory was lost");
	} else if (m && m->alive) {
		if (!refuse_own(o, m))
			refuse(o, -EAGAIN, "the rank is held by process %llu, which lives",
			       (unsigned long long)m->process.pid, 0);
	} else if (j->seen && j->seen[o->r.rank]) {
		snprintf(reason, sizeof(reason), "rank %u was replaced", o->r.rank);
		begin(o, o->r.run_id, reason);
	} else {
		join(o);
	}
}

/* Whether this open is of the run that the current epoch is of. */
static bool same_run(const struct opening *o)
{
	const struct record_epoch *ep = &o->job->history.epoch;
	bool made = strncmp(ep->run_id, RUN_ID_MADE, 5) == 0;

	return ep->number > 0 && ep->world == o->r.world && !o->job->epoch_over &&
	       (strcmp(ep->run_id, o->r.run_id) == 0 || (made && !o->r.run_id[0]));
}

/*
 * The process that holds the rank opens it again, and its connection is gone: the answer to its
 * open was lost, so it gets it again (I10); or it dropped its handle while ckptd was away, which
 * is a goodbye that was not heard. True: answered.
 */
static bool open_again(struct opening *o, struct member *m)
{
	if (o->r.reconnect || !m || !m->alive || m->session ||
	    !process_same(&m->process, session_process(o->r.session)))
		return false;
	if (!m->declared && same_run(o)) {
		join(o);
		return true;
	}
	member_left(m, MEMBER_BYE);
	return false;
}

static void decide(struct opening *o)
{
	struct job *j = o->job;
	struct err e = { 0 };
	struct member *m;
	int code;

	if (!o->asked) {
		char run_id[RUN_ID_MAX + 1], reason[REASON_MAX + 1];

		memcpy(run_id, j->history.epoch.run_id, sizeof(run_id));
		memcpy(reason, o->reason, sizeof(reason));
		begin(o, run_id, reason);
		return;
	}
	if (!session_connected(o->r.session)) {
		opening_answer(o, -ECANCELED, NULL);
		return;
	}
	m = member_of_rank(j, o->r.rank);
	if (m && !list_empty(&m->ending)) { /* not handled yet: process_ends.c */
		member_left(m, MEMBER_ENDED);
		m = NULL;
	}
	if (m && o->r.reconnect && m->alive &&
	    process_same(&m->process, session_process(o->r.session))) {
		join(o);
		return;
	}
	if (open_again(o, m))
		return;
	code = user_may_join(j, &o->r, !same_run(o), &e);
	if (code < 0) {
		opening_answer(o, code, e.text);
		return;
	}
	if (o->r.reconnect && o->r.run_id[0] &&
	    strcmp(o->r.run_id, j->history.epoch.run_id) == 0 && !m &&
	    o->r.loaded_epoch == j->history.epoch.number &&
	    o->r.world == j->history.epoch.world) {
		/* ckptd lost its memory, the process did not: it goes on in the same epoch. */
		join(o);
		return;
	}
	if (o->r.reconnect && j->history.epoch.number > 0 &&
	    strcmp(o->r.run_id, j->history.epoch.run_id) != 0) {
		refuse(o, CKPT_EEPOCH,
		       "the job went on without this process and is in epoch %llu of a newer "
		       "launch; "
		       "end this process",
		       j->history.epoch.number, 0);
		return;
	}
	if (o->r.run_id[0] && strncmp(o->r.run_id, RUN_ID_MADE, 5) != 0)
		decide_given(o);
	else
		decide_made(o);
}

/* The first rank asks for a ledger before there is one; false: the opening was answered. */
static bool may_have_ledger(struct opening *o)
{
	struct job *j = o->job;
	struct err e = {0};
	int code = 0;

	if (!j->ledger.region && !j->ledger_making && session_connected(o->r.session))
		code = user_may_join(j, &o->r, !same_run(o), &e);
	if (code < 0)
		opening_answer(o, code, e.text);
	return code == 0;
}

bool epoch_opens(const struct job *j)
{
	return j->opening || !list_empty(&j->openings);
}

bool epoch_opens_for_none(const struct job *j)
{
	const struct opening *o = j->opening;

	return o && list_empty(&j->openings) && !o->entered &&
	       (!o->r.session || !session_connected(o->r.session));
}

void epoch_step(struct job *j)
{
	if (j->creating)
		return;
	if (j->opening && j->opening->entered) {
		if (drop_old_run(j))
			epoch_opened(j->opening);
		else
			job_poke(j);
		return;
	}
	if (j->opening)
		open_next(j->opening);
	if (!j->opening && !list_empty(&j->openings)) {
		struct opening *o = list_first(&j->openings, struct opening, link);

		/* Members are written down before they are told that they are some. */
		if (o->asked && !o->opened && !may_have_ledger(o)) {
			if (!list_empty(&j->openings))
				job_poke(j);
			return;
		}
		if (o->asked && !ledgering_ready(j))
			return;
		if (o->opened)
			join(o);
		else
			decide(o);
		/* A launch opens a thousand ranks at once, and each makes pages: one in a call. */
		if (!j->opening && !list_empty(&j->openings))
			job_poke(j);
	}
}

#define REFUSED_IN_A_CALL 64u

void epoch_no_ledger(struct job *j, int code)
{
	struct opening *o, *next;
	unsigned n = 0;
	char text[ERR_TEXT_MAX];

	snprintf(text, sizeof(text), "open: there is no memory for the job's ledger: %s",
		 memory_error_text(code));
	list_each_safe(o, next, &j->openings, link) {
		if (!o->asked)
			continue;
		if (n++ == REFUSED_IN_A_CALL) {
			job_poke(j); /* the next ones ask for memory again */
			return;
		}
		opening_answer(o, code == -ENOSPC ? CKPT_ENOSPACE : code, text);
	}
}

/* ---- New jobs ---- */

void epoch_creation_failed(struct job *j, int code, const char *text)
{
	/* opening_place() lets no look begin. */
	assert(list_empty(&j->loads.items) && list_empty(&j->waits.items));
	while (!list_empty(&j->openings))
		opening_answer(list_first(&j->openings, struct opening, link), code, text);
	j->creating = false;
	j->log_error = code;
	j->failed = true;
	watching_job_leaves(j);
	answers_unlink(j->node, &j->link);
	list_del(&j->link); /* a later open makes it anew */
	list_add_tail(&j->node->failed_jobs, &j->link);
	job_poke(j); /* which frees it: whoever called still has it */
}

void epoch_created(struct job *j)
{
	j->creating = false;
	job_poke(j);
}

/*
 * The job of that name that this user, or this token, may open. NULL: it is to be made, unless
 * *ret_denied: a token was given that is no job's of this name. A process that was in has the token
 * of a job that was lost with its folder: it may make it anew.
 */
static struct job *job_for(struct node *n, const struct open_request *r, bool *ret_denied)
{
	struct job *j = job_find(n, r->job, session_process(r->session)->uid);
	struct digest d = digest_of(r->token, sizeof(r->token));

	if (j || !r->has_token)
		return j;
	for (size_t i = 0; i < 2; i++) {
		list_each(j, i == 0 ? &n->jobs : &n->stopped_jobs, link) {
			if (strcmp(j->history.job.name, r->job) != 0)
				continue;
			if (digest_equal(&j->history.job.token, &d))
				return j;
			*ret_denied = !r->reconnect;
		}
	}
	return NULL;
}

bool epoch_stands(const struct job *j, const struct open_request *r)
{
	const struct record_epoch *ep = j ? &j->history.epoch : NULL;

	if (r->reconnect)
		return true;
	if (!ep || ep->number == 0 || j->run_over)
		return false;
	return r->run_id[0] ? strcmp(ep->run_id, r->run_id) == 0 : !list_empty(&j->members);
}

/* A process that only looks takes no rank and is of no run: it changes nothing. */
static void look_at(struct opening *o, const struct job *j)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__OpenReply body = CKPT__OPEN_REPLY__INIT;
	const struct record_epoch *ep = &j->history.epoch;

	session_look_at(o->r.session, j);
	body.job_id = (ProtobufCBinaryData){16, (uint8_t *)j->history.job.id.b};
	body.token = (ProtobufCBinaryData){sizeof(j->token), (uint8_t *)j->token};
	body.epoch = ep->number;
	body.has_base = ep->has_base;
	body.base_step = ep->base_step;
	body.base_attempt = (ProtobufCBinaryData){16, (uint8_t *)ep->base_attempt.b};
	body.run_id = o->r.run_id;
	body.looks = true;
	reply.id = o->r.request;
	reply.body_case = CKPT__REPLY__BODY_OPEN;
	reply.open = &body;
	session_reply(o->r.session, &reply, NULL, 0);
	opening_answer(o, 0, NULL);
}

/* True: it was refused. */
static bool goes(struct opening *o, const struct job *j)
{
	if (job_stopped(j))
		opening_answer(o, CKPT_ESTOPPED, j->defect_text);
	else if (j->removal != JOB_KEPT)
		opening_answer(o, -EAGAIN,
			       "open: the job of this name is being removed: open it again when "
			       "'ckptctl list' does not show it any more");
	else
		return false;
	return true;
}

/* True: it only looks, and was answered. */
static bool looks(struct opening *o, const struct job *j)
{
	if (!o->r.looks || !session_looks(o->r.session))
		return false;
	/* What a look begins would point to a job that a full disk may undo. */
	if (j->creating)
		opening_answer(o, -EAGAIN,
			       "open: the job of this name is just being made: open it again when "
			       "'ckptctl list' shows it");
	else
		look_at(o, j);
	return true;
}

/* To its job, which is made if there is none. */
static void opening_place(struct node *n, struct opening *o)
{
	char hint[NEAR_TEXT_MAX];
	struct err e = { 0 };
	bool denied = false;
	struct job *j;

	if (!session_connected(o->r.session)) {
		opening_answer(o, -ECANCELED, NULL);
		return;
	}
	j = job_for(n, &o->r, &denied);
	if (denied && !j) {
		opening_answer(o, CKPT_EDENIED,
			       "open: the token is not that of the job of this name, which is "
			       "another user's; ask them for what `ckptctl token` prints, or leave "
			       "CKPT_TOKEN out to have a job of your own");
		return;
	}
	if (j && (goes(o, j) || looks(o, j)))
		return;
	if (!epoch_stands(j, &o->r)) {
		if (acting_refuses(n, &o->r, &e) || admission_refuses(n, &o->r, &e)) {
			opening_answer(o, e.code, e.text);
			return;
		}
		if (admission_holds(n, &o->r, o->came_ns)) {
			list_add_tail(&n->early, &o->link);
			return;
		}
	}
	if (!j && o->r.existing && (!o->r.reconnect || o->r.looks)) {
		err_set(&e, CKPT_ENOTFOUND,
			"open: there is no job '%s' of this user%s; 'ckptctl list' shows what "
			"there is",
			o->r.job, admin_near_job(o->r.session, o->r.job, hint));
		opening_answer(o, e.code, e.text);
		return;
	}
	if (!j && refused_open(n, o->r.job, session_process(o->r.session)->uid, o->r.has_token,
			       &e)) {
		opening_answer(o, e.code, e.text);
		return;
	}
	if (!j && user_may_make_job(n, &o->r, &e) < 0) {
		opening_answer(o, e.code, e.text);
		return;
	}
	if (!j)
		j = creating_begin(n, &o->r);
	if (!j) {
		opening_answer(o, -ENOMEM, "open: out of memory");
		return;
	}
	opening_queue(o, j);
}

void epoch_open(struct node *n, const struct open_request *r)
{
	struct opening *o;
	const char *text = NULL;
	int code = 0;

	if (!name_is_safe(r->job)) {
		code = -EINVAL;
		text = "open: a job's name is 1 to 64 of A-Z a-z 0-9 . _ - and no leading dot";
	} else if (r->world == 0 || r->world > WORLD_MAX || r->rank >= r->world) {
		code = -EINVAL;
		text = "open: rank must be below world, and world at most 65536";
	} else if (n->stopping) {
		code = -EAGAIN;
		text = "open: ckptd is stopping";
	}
	o = code < 0 ? NULL : opening_new(n, r);
	if (!o) {
		session_reply_error(r->session, r->request, code < 0 ? code : -ENOMEM,
				    code < 0 ? text : "open: out of memory");
		return;
	}
	if (n->ready)
		opening_place(n, o);
	else
		list_add_tail(&n->early, &o->link); /* jobs and memory are being read */
}

void epoch_ready(struct node *n)
{
	struct list all;

	/* Some may be put back. */
	list_init(&all);
	while (!list_empty(&n->early)) {
		struct opening *o = list_first(&n->early, struct opening, link);

		list_del(&o->link);
		list_add_tail(&all, &o->link);
	}
	while (!list_empty(&all)) {
		struct opening *o = list_first(&all, struct opening, link);

		list_del(&o->link);
		if (n->stopping)
			opening_answer(o, -EAGAIN, "open: ckptd is stopping");
		else
			opening_place(n, o);
	}
}

uint64_t epoch_tire(struct node *n, uint64_t before_ns, int code, const char *text)
{
	struct opening *o, *next;
	uint64_t oldest_ns = 0;

	list_each_safe(o, next, &n->early, link)
		if (o->came_ns <= before_ns)
			opening_answer(o, code, text);
		else if (oldest_ns == 0 || o->came_ns < oldest_ns)
			oldest_ns = o->came_ns;
	return oldest_ns;
}

void epoch_never_ready(struct node *n)
{
	while (!list_empty(&n->early))
		opening_answer(list_first(&n->early, struct opening, link), -ECANCELED,
			       "ckptd stops");
}
