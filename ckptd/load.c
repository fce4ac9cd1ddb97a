/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - giving a checkpoint to a process: which one, and what is kept for it until its end.
 *
 *   WAITING   an epoch is being opened: "latest" means its base (I15); or a record of trust, or a
 *             COMMIT, is on its way that may make its checkpoint good enough; or ckptd stops: then
 *             it is not answered, and the process asks the next ckptd
 *   PLANNING  on a PLAN worker: load_planning.c
 *   GIVING    plan and sources are sent, message by message (load_giving.c)
 *   GIVEN     plan and sources are with the process (load_giving.c); checkpoint->readers keeps
 *             memory (I9), the locks keep files
 *   CHECKING  the process reported a leaf: it is read again (load_giving.c)
 *   CLOSING   files are being closed on a PLAN worker; then it is gone
 *   over      at LoadEnd, or with the connection; a look with its answer
 *
 * Per rank the source is memory when its slot is whole, else the file: one load may mix them.
 *
 * Thread: the loop, but close_run(): a PLAN worker.
 */
#include <config.h>

#include "ckptd/load.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/load_priv.h"
#include "ckptd/node_priv.h"
#include "ckptd/sharing.h"
#include "ckptd/trust.h"

#define LOOKS_IN_A_CALL 16384u /* at checkpoints, by loads that wait */
#define BEGUN_IN_A_CALL 8u /* each looks at all ranks of a checkpoint */

/* All in one class: a load that is planned after another one has ended sees the result of that. */
void load_submit(struct load *l)
{
	work_submit(l->job->node->env.workers, WORK_PLAN, session_process(l->owner)->uid,
		    &l->work);
}

/* ---- Ending ---- */

static void load_free(struct load *l)
{
	list_del(&l->link);
	list_del(&l->waiting.link);
	if (l->posted)
		loop_unpost(l->job->node->env.loop, &l->giving);
	plan_fini(&l->plan);
	writer_free(&l->encoded);
	assert(l->plan_fd < 0);
	read_wants_fini(&l->wants);
	alloc_free(l->wants_bytes);
	if (l->wants_fd >= 0) /* perhaps the last one: to close it frees its pages */
		node_close_unsent(l->job->node, session_process(l->owner)->uid, &l->wants_fd, 1);
	wanted_by_fini(l->job, &l->others);
	alloc_free(l->order);
	alloc_free(l->sources);
	if (l->wanted)
		declared_unref(l->job, l->wanted);
	user_give(session_user(l->owner), USER_LOAD_FILES, l->files);
	user_give(session_user(l->owner), USER_LOAD_TWINS, l->twins);
	user_give(session_user(l->owner), USER_PLAN_BYTES, l->plan_bytes);
	session_use(l->owner)->loads--;
	user_give(session_user(l->owner), USER_LOADS, 1);
	session_unref(l->owner);
	alloc_free(l);
}

static void close_run(struct work *w)
{
	struct load *l = container_of(w, struct load, work);

	for (uint32_t i = 0; i < l->n_sources; i++)
		if (l->sources[i].open)
			shard_close(&l->sources[i].reader);
	if (l->plan_fd >= 0)
		l->memory->ops->close_fd(l->memory, l->plan_fd);
	l->plan_fd = -1;
	w->status = 0;
}

static void close_done(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	struct job *j = l->job;

	l->checkpoint->readers--;
	holding_end(l->checkpoint, session_user(l->owner));
	if (l->cached)
		sharing_end(l->checkpoint, l->kind == LOAD_OWN ? member_of_rank(j, l->rank) : NULL);
	load_free(l);
	job_poke(j);
}

void load_close(struct load *l)
{
	assert(l->state != LOAD_PLANNING && l->state != LOAD_CHECKING);
	if (l->posted)
		loop_unpost(l->job->node->env.loop, &l->giving);
	l->posted = false;
	l->session = NULL;
	list_del(&l->link);
	list_del(&l->waiting.link);
	if (!l->checkpoint) {
		load_free(l);
		return;
	}
	l->state = LOAD_CLOSING;
	l->work.run = close_run;
	l->work.done = close_done;
	load_submit(l);
}

void load_drop_all(struct session *s)
{
	struct load *l, *next;

	list_each_safe(l, next, session_loads(s), link) {
		bool busy = l->state == LOAD_PLANNING || l->state == LOAD_CHECKING;

		l->session = NULL;
		list_del(&l->link);
		if (busy) /* planning ends soon */
			atomic_store_explicit(&l->work.cancel, true, memory_order_relaxed);
		else
			load_close(l);
	}
}

void load_cancel_all(struct session *s)
{
	struct load *l;

	list_each(l, session_loads(s), link)
		atomic_store_explicit(&l->work.cancel, true, memory_order_relaxed);
}

void load_room(struct session *s)
{
	struct load *l;

	list_each(l, session_loads(s), link)
		if (l->state == LOAD_GIVING)
			load_give_on(l);
}

void load_forget_all(struct session *s)
{
	struct load *l, *next;

	list_each_safe(l, next, session_loads(s), link) {
		close_run(&l->work);
		if (l->wants_fd >= 0) /* there are no workers any more */
			l->memory->ops->close_fd(l->memory, l->wants_fd);
		l->wants_fd = -1;
		if (l->checkpoint) {
			l->checkpoint->readers--;
			holding_end(l->checkpoint, session_user(l->owner));
		}
		load_free(l);
	}
}

/* ---- Choosing ---- */

int load_count(struct load *l, uint32_t files, uint32_t twins, uint64_t bytes)
{
	struct user *u = session_user(l->owner);
	char what[40];
	int r;

	snprintf(what, sizeof(what), "load step %llu", (unsigned long long)l->step);
	r = user_may_keep_files(u, (uint64_t)files + twins, what, &l->err);
	if (r == 0)
		r = user_take(u, USER_LOAD_FILES, files, what, &l->err);
	if (r < 0)
		return r;
	l->files += files;
	l->twins += twins;
	user_add(u, USER_LOAD_TWINS, twins);
	r = user_take(u, USER_PLAN_BYTES, bytes, what, &l->err);
	l->plan_bytes += r < 0 ? 0 : bytes;
	return r;
}

static int choose_sources(struct load *l, struct checkpoint *c)
{
	int err = load_count(l, 0, 0, (uint64_t)c->world * sizeof(*l->sources));
	bool files = false;

	if (err < 0)
		return err;
	l->sources = alloc_array(c->world, sizeof(*l->sources));
	if (!l->sources)
		return err_code(&l->err, -ENOMEM, "load step %llu", (unsigned long long)c->step);
	for (uint32_t r = 0; r < c->world; r++) {
		struct shard_state *sh = &c->shards[r];
		struct source *s = &l->sources[r];

		s->rank = r;
		if (checkpoint_memory_is_good(c, r)) {
			s->kind = LOAD_MEMORY;
			s->slot = sh->slot;
			s->table_bytes = sh->table;
			s->table_len = sh->table_len;
		} else {
			if (!JOB_ASSERT(l->job, c->durable == DUR_DONE && c->commit))
				return err_set(&l->err, CKPT_ESTOPPED, "%s", l->job->defect_text);
			files = true;
			s->kind = LOAD_FILE;
			s->footer = c->commit->shards[r];
		}
	}
	l->n_sources = c->world;
	if (!files)
		return 0;
	err = holding_refuses(session_user(l->owner), &l->err);
	/* Checks the limits before any file is opened; the load is charged once its plan says how
	 * many it keeps. Until then its files are not counted: workers make only a few plans at a
	 * time. */
	if (err == 0)
		err = user_may(session_user(l->owner), USER_LOAD_FILES, 1, "load", &l->err);
	if (err == 0)
		err = user_may_keep_files(session_user(l->owner), 1, "load", &l->err);
	return err;
}

static bool trusted(const struct load *l, const struct checkpoint *c)
{
	return trust_reaches(c->trust, l->least) || BUG(MIN_TRUST_IGNORED);
}

static struct checkpoint *choose(struct load *l)
{
	struct job *j = l->job;
	struct record_epoch *ep = &j->history.epoch;
	struct checkpoint *c, *best = NULL;

	if (l->latest && BUG(LATEST_IS_NEWEST))
		return epoch_newest_restorable(j);
	/* What the next launch would begin with. */
	if (l->latest && l->looks)
		return epoch_newest_trusted(j, l->least);
	if (l->latest)
		return checkpoint_find_attempt(j, ep->base_step, &ep->base_attempt);
	list_each(c, &j->checkpoints, link) {
		if (c->step != l->step || c->agreed != CP_COMMITTED || c->durable == DUR_GONE ||
		    (!l->any_attempt && !attempt_equal(&c->attempt, &l->attempt)))
			continue;
		/* Rather one that is trusted enough than a newer attempt that is not. */
		if (!best || trusted(l, c) > trusted(l, best) ||
		    (trusted(l, c) == trusted(l, best) && c->record_n > best->record_n))
			best = c;
	}
	return best;
}

static void fell_back(void *arg, int status)
{
	struct job *j = arg;
	struct load *l, *next;

	if (status == 0)
		return; /* job_step() goes on with the loads that wait */
	list_each_safe(l, next, &j->loads.items, waiting.link) {
		load_give_error(l, status,
				status == CKPT_ENOTFOUND
					? "load: the base is damaged, and no other checkpoint is "
					  "trusted as much as the ranks of this epoch have asked "
					  "for; start them again and ask for less"
					: "load: the base is damaged or not trusted enough, and "
					  "the next epoch with another one could not be opened");
		load_close(l);
	}
}

/*
 * What there is is not trusted as much as is asked for. Of latest: the next epoch is opened with
 * the newest that is, for all ranks of the job (I15), as if the base were damaged: those that have
 * loaded it are refused at their next save until they have loaded again. The highest level that a
 * load of an epoch has gone back for holds for all that falls back in it.
 */
static void too_little_trust(struct load *l, const struct checkpoint *c)
{
	struct job *j = l->job;
	char text[ERR_TEXT_MAX];

	if (l->latest && epoch_newest_trusted(j, l->least)) {
		snprintf(text, sizeof(text), "went back: %s is asked for, and step %llu is %s",
			 trust_word(l->least), (unsigned long long)c->step, trust_word(c->trust));
		rounds_add(&j->loads, &l->waiting);
		job_tell_step(j, c->step, 5, "%s", text);
		epoch_fall_back(j, text, l->least, fell_back, j);
		return;
	}
	snprintf(text, sizeof(text),
		 "load of job '%s': %s is asked for, step %llu is %s%s; 'ckptctl trust %s' shows "
		 "what there is, and CKPT_MIN_TRUST or min_trust asks for less",
		 j->history.job.name, trust_word(l->least), (unsigned long long)c->step,
		 trust_word(c->trust), l->latest ? ", and no older one is" : "",
		 j->history.job.name);
	load_give_error(l, CKPT_ENOTFOUND, text);
	load_close(l);
}

/* There were checkpoints, and all are lost: who has to begin anew must be told (I11). */
static void all_lost(struct load *l)
{
	struct member *m = session_member(l->session);
	struct job *j = l->job;
	char text[ERR_TEXT_MAX];

	epoch_say_lost(j, l->looks, text, sizeof(text));
	if (m && l->kind == LOAD_OWN)
		member_enter_epoch(m);
	load_give_error(l, CKPT_ELOST, text);
	load_close(l); /* which frees it */
	job_poke(j);
}

static void nothing(struct load *l)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	struct member *m = session_member(l->session);
	struct job *j = l->job;

	reply.id = l->request;
	reply.status = CKPT_NOTHING;
	if (m && l->kind == LOAD_OWN)
		member_enter_epoch(m);
	session_reply(l->session, &reply, NULL, 0);
	load_close(l); /* which frees it */
	job_poke(j);
}

/*
 * Something is on its way that may make it good enough: a record of how far it is trusted, or the
 * COMMIT of what memory has lost. Both end soon, one way or the other, and poke the job. A log that
 * cannot be written is not waited for.
 */
static bool may_get_better(const struct load *l, const struct checkpoint *c)
{
	struct job *j = l->job;

	if (!checkpoint_restorable(c))
		return persist_is_publishing(c) && !BUG(LOST_WHILE_WRITING);
	if (trusted(l, c) || BUG(TRUST_QUEUED))
		return false;
	trust_queue(j);
	return c->saying > 0 && !job_log_down(j);
}

static bool must_all_wait(const struct job *j)
{
	return j->node->stopping || j->opening || !list_empty(&j->openings);
}

/* There is nothing that "latest" could mean. */
static bool has_no_base(const struct load *l)
{
	if (!l->latest)
		return false;
	return l->looks ? !epoch_newest_restorable(l->job) : !l->job->history.epoch.has_base;
}

/* Its epoch is being opened, or what it would be given may get better: it is tried again when
 * something has changed. One that comes while ckptd stops waits until its connection ends. */
static bool must_wait(struct load *l)
{
	struct job *j = l->job;
	const struct checkpoint *c;

	if (must_all_wait(j))
		return true;
	c = has_no_base(l) ? NULL : choose(l);
	return c && may_get_better(l, c);
}

/* What this epoch has saved is the state of ranks that run; anything else is where one resumes. */
static struct origin origin_after(const struct load *l, const struct checkpoint *c)
{
	struct member *m = session_member(l->session);

	if (c->epoch != c->job->history.epoch.number || checkpoint_is_base(c))
		return (struct origin){ORIGIN_RESUMED, c->step};
	if (m && m->origin.kind == ORIGIN_RESUMED && m->epoch != c->epoch)
		return (struct origin){ORIGIN_FRESH, 0};
	return m ? m->origin : (struct origin){0};
}

static void load_go(struct load *l)
{
	struct job *j = l->job;
	struct checkpoint *c;
	char text[ERR_TEXT_MAX];

	list_del(&l->waiting.link);
	if (must_wait(l)) {
		rounds_add(&j->loads, &l->waiting);
		return;
	}
	if (has_no_base(l)) {
		if (epoch_lost(j, l->looks) && !BUG(LOST_IS_NOTHING))
			all_lost(l);
		else
			nothing(l);
		return;
	}
	c = choose(l);
	if (!c && l->latest && l->looks) {
		too_little_trust(l, epoch_newest_restorable(j));
		return;
	}
	if (!c || !checkpoint_restorable(c)) {
		if (l->latest) {
			snprintf(text, sizeof(text), "fell back: step %llu is damaged%s%.180s",
				 (unsigned long long)j->history.epoch.base_step,
				 c && c->disk_suspect ? ": " : "",
				 c && c->disk_suspect ? c->reason : "");
			rounds_add(&j->loads, &l->waiting);
			job_tell_step(j, j->history.epoch.base_step, 3, "%s", text);
			epoch_fall_back(j, text, l->least, fell_back, j);
			return;
		}
		snprintf(text, sizeof(text),
			 "load step %llu of job '%s': %s: 'ckptctl list %s' shows what it has",
			 (unsigned long long)l->step, j->history.job.name,
			 !c                     ? "there is no such checkpoint"
			 : c->trust & TRUST_BAD ? "it was said to be bad"
						: "no good copy of it is left",
			 j->history.job.name);
		load_give_error(l, c ? CKPT_ELOST : CKPT_ENOTFOUND, text);
		load_close(l);
		return;
	}
	if (!trusted(l, c)) {
		too_little_trust(l, c);
		return;
	}
	l->step = c->step;
	l->attempt = c->attempt;
	l->epoch = j->history.epoch.number;
	l->origin = origin_after(l, c);
	if (choose_sources(l, c) < 0 || wanted_by_make(j, l->rank, &l->others) < 0 ||
	    holding_begin(c, session_user(l->owner)) < 0) {
		load_give_error(l, l->err.code ? l->err.code : -ENOMEM, l->err.text);
		load_close(l);
		return;
	}
	recheck_give_way(j->node);
	l->checkpoint = c;
	l->no_cache = c->no_cache;
	c->readers++;
	j->at_work = true;
	job_id_of(j, c->step, &c->attempt, &l->checkpoint_id);
	l->state = LOAD_PLANNING;
	l->work.run = load_plan_run;
	l->work.done = load_plan_done;
	load_submit(l);
}

static uint64_t begin_budget(struct rounds *r)
{
	const struct job *j = container_of(r, struct job, loads);

	/* One load may find that the next epoch must be opened: the others wait for it too. */
	return job_stopped(j) || must_all_wait(j) ? 0 : LOOKS_IN_A_CALL;
}

static uint64_t begin_visit(struct rounds *r, struct round_item *item)
{
	struct job *j = container_of(r, struct job, loads);
	struct load *l = container_of(item, struct load, waiting);
	const struct checkpoint *c;
	uint64_t looks = 1;

	list_each(c, &j->checkpoints, link) /* must_wait() walks over them too */
		looks++;
	if (must_wait(l))
		return looks;
	load_go(l);
	return must_all_wait(j) ? LOOKS_IN_A_CALL : looks + LOOKS_IN_A_CALL / BEGUN_IN_A_CALL;
}

void load_step(struct job *j)
{
	rounds_begin(&j->loads, j->history.job.uid);
}

void load_init(struct job *j)
{
	j->loads = (struct rounds){.loop = j->node->env.loop,
				   .label = "loads that wait",
				   .budget = begin_budget,
				   .visit = begin_visit};
	rounds_init(&j->loads);
	list_init(&j->checking);
}

void load_fini(struct job *j)
{
	rounds_stop(&j->loads);
}

void load_stop(struct job *j, int code, const char *text)
{
	struct load *l, *next;

	list_each_safe(l, next, &j->loads.items, waiting.link) {
		load_give_error(l, code, text);
		load_close(l);
	}
}

/* Of the session's job; NULL: the request was answered with why not. */
static struct load *load_new(struct session *s, uint64_t request, enum load_kind kind,
			     uint64_t step, const ProtobufCBinaryData *attempt, uint32_t min_trust)
{
	struct member *member = session_member(s);
	struct job *j = session_job(s);
	struct err e = { 0 };
	struct load *l;

	if (min_trust > TRUST_VERIFIED) {
		session_reply_error(s, request, CKPT_EVERSION,
				    "load: ckptd does not know this level of trust");
		return NULL;
	}
	if (user_may_load(s, &e) < 0) {
		session_reply_error(s, request, e.code, e.text);
		return NULL;
	}
	l = alloc_zero(sizeof(*l));
	if (!l) {
		session_reply_error(s, request, -ENOMEM, "load: out of memory");
		return NULL;
	}
	list_init(&l->waiting.link);
	l->id = ++j->node->next_load;
	l->request = request;
	l->session = s;
	l->owner = session_ref(s);
	session_use(s)->loads++;
	user_add(session_user(s), USER_LOADS, 1);
	l->job = j;
	l->store = &j->node->store;
	l->looks = !member;
	l->rank = member ? member->rank : ALL_RANKS;
	l->world = j->history.epoch.world;
	l->memory = j->node->env.memory;
	l->kind = kind;
	l->wants_fd = -1;
	l->plan_fd = -1;
	l->bad_rank = ALL_RANKS;
	l->plan_key = rng_u64(j->node->env.rng);
	l->latest = step == CKPT_LATEST;
	l->least = (enum trust_level)min_trust;
	l->step = step;
	l->any_attempt = attempt->len != 16;
	if (!l->any_attempt)
		memcpy(l->attempt.b, attempt->data, 16);
	list_add_tail(session_loads(s), &l->link);
	return l;
}

void load_start(struct session *s, uint64_t request, const Ckpt__Load *m)
{
	struct member *member = session_member(s);
	struct load *l;

	if (!member || !member->declared) {
		session_reply_error(s, request, CKPT_ESTATE, "load: open and declare first");
		return;
	}
	l = load_new(s, request, LOAD_OWN, m->step, &m->attempt, m->min_trust);
	if (!l)
		return;
	l->lenient = m->lenient;
	l->wanted = member->declared;
	l->wanted->refs++;
	load_go(l);
}

void load_look(struct session *s, uint64_t request, const Ckpt__Stored *m)
{
	struct load *l = load_new(s, request, LOAD_LOOK, m->step, &m->attempt, m->min_trust);

	if (l)
		load_go(l);
}

void load_read(struct session *s, uint64_t request, const Ckpt__Read *m, int *fds, size_t n_fds)
{
	struct member *member = session_member(s);
	struct load *l;

	if (m->in_fd && n_fds == 0) {
		session_reply_error(s, request, CKPT_EPROTO, "read: its memfd is missing");
		return;
	}
	l = load_new(s, request, LOAD_READ, m->step, &m->attempt, TRUST_LATEST);
	if (!l)
		return;
	l->lenient = m->lenient;
	if (member && member->origin.kind == ORIGIN_FRESH) /* what it needs it takes by itself */
		member_set_origin(member, (struct origin){0});
	if (m->in_fd) {
		l->wants_fd = fds[0];
		fds[0] = -1;
	} else {
		l->wants_len = m->wants.len;
		l->wants_bytes = alloc_copy(m->wants.data, m->wants.len);
	}
	if (!m->in_fd && !l->wants_bytes) {
		load_give_error(l, -ENOMEM, "read: out of memory");
		load_close(l);
		return;
	}
	load_go(l);
}

/* A load of which the process reported a leaf on a connection that has ended since. */
static struct load *checked_for(struct job *j, struct session *s, uint64_t id)
{
	struct load *l;

	list_each(l, &j->checking, waiting.link) {
		if (l->id != id || l->session ||
		    !process_same(session_process(l->owner), session_process(s)))
			continue;
		l->session = s;
		list_add_tail(session_loads(s), &l->link);
		return l;
	}
	return NULL;
}

void load_end(struct session *s, uint64_t request, const Ckpt__LoadEnd *m)
{
	struct member *member = session_member(s);
	struct job *j = session_job(s);
	struct load *l, *found = NULL;
	struct origin origin;
	uint64_t epoch;

	list_each(l, session_loads(s), link)
		if (l->id == m->load && (l->state == LOAD_GIVING || l->state == LOAD_GIVEN ||
					 l->state == LOAD_CHECKING))
			found = l;
	if (!found && j)
		found = checked_for(j, s, m->load);
	/* The epoch of the reply that was loaded: from the message, where ckptd has forgotten it.
	 */
	epoch = found ? found->epoch : m->epoch;
	origin = found ? found->origin : origin_of(m->origin);
	if (m->complete && member && epoch == member->job->history.epoch.number) {
		member_enter_epoch(member);
		if (member->epoch == epoch)
			member_set_origin(member, origin);
	}
	if (!found) {
		session_reply_ok(s, request); /* ended before: the answer was lost (I10) */
		return;
	}
	l = found;
	if (l->state == LOAD_CHECKING) { /* asked again: once it is known */
		l->request = request;
		return;
	}
	if (m->failed && l->state == LOAD_GIVEN && m->source < l->n_order &&
	    m->leaf < l->sources[l->order[m->source]].table.n_leaves) {
		load_check(l, request, m->source, m->leaf);
		return;
	}
	session_reply_ok(s, request);
	load_close(l);
}
