/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_giving.c - what a process is given of a load, and what it says of what it was given.
 *
 * The answer to a load or a read is the plan and a descriptor of each source, read-only; to a look,
 * what the tables say. A copy that proves bad, to ckptd while it plans or to the process that reads
 * it, is quarantined (I11), and the process asks again. Of a leaf it is not believed: that is read
 * again here.
 *
 * Thread: the loop, but check_run(): a PLAN worker.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/admin.h"
#include "ckptd/indexing.h"
#include "ckptd/load_priv.h"
#include "ckptd/node_priv.h"
#include "codec/digest.h"

#define PROBLEMS_IN_REPLY 32
#define FDS_PER_MESSAGE 60u

/* The first problems of the plan, and the number of the others: the list is never cut silently. */
struct problem_list {
	char *texts[PROBLEMS_IN_REPLY + 1];
	size_t n;
	char rest[64];
};

static void list_problems(const struct load *l, struct problem_list *list)
{
	const struct plan *plan = &l->plan;
	size_t rest = plan->n_problems - min_u64(plan->n_problems, PROBLEMS_IN_REPLY);

	assert(plan->n_problems <= PLAN_PROBLEMS_MAX);
	list->n = 0;
	while (list->n < plan->n_problems - rest) {
		list->texts[list->n] = plan->problems[list->n].text;
		list->n++;
	}
	if (rest == 0)
		return;
	snprintf(list->rest, sizeof(list->rest), "and %s%zu more problem%s",
		 plan->n_problems == PLAN_PROBLEMS_MAX ? "at least " : "", rest,
		 rest == 1 ? "" : "s");
	list->texts[list->n++] = list->rest;
}

void load_give_error(struct load *l, int code, const char *text)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__LoadReply body = CKPT__LOAD_REPLY__INIT;
	const char *job = l->job->history.job.name;
	char where[2 * ERR_TEXT_MAX];
	struct problem_list list;

	if (!l->session)
		return;
	if (code == CKPT_EMISMATCH) {
		snprintf(
			where, sizeof(where),
			"step %llu of job '%s': %s; declare what was saved: 'ckptctl show %s %llu' "
			"lists it",
			(unsigned long long)l->step, job, text, job, (unsigned long long)l->step);
		text = where;
	}
	reply.id = l->request;
	reply.code = code;
	reply.text = (char *)text;
	reply.body_case = CKPT__REPLY__BODY_LOAD;
	reply.load = &body;
	body.step = l->step;
	/* Nothing is there to load: the session is in the epoch, to save what it begins with. */
	if (l->latest && l->kind == LOAD_OWN && code == CKPT_ELOST)
		body.epoch = l->job->history.epoch.number;
	list_problems(l, &list);
	body.problems = list.texts;
	body.n_problems = list.n;
	session_reply(l->session, &reply, NULL, 0);
}

static int source_fd(struct load *l, uint32_t i)
{
	struct source *s = &l->sources[l->order[i]];
	struct memory *m = l->job->node->env.memory;

	if (s->kind == LOAD_MEMORY)
		return m->ops->export_fd(m, s->slot->region, false);
	l->checkpoint->recyclable = false; /* whatever becomes of the descriptor */
	if (s->reader.cached)
		return s->reader.cached->disk->ops->export_fd(s->reader.cached);
	return s->reader.file->disk->ops->export_fd(s->reader.file);
}

static void fill_reply(struct load *l, Ckpt__LoadReply *body, struct problem_list *list)
{
	body->load = l->id;
	body->step = l->step;
	body->epoch = l->epoch;
	body->attempt = (ProtobufCBinaryData){ 16, l->attempt.b };
	body->tier = CKPT_TIER_MEMORY;
	body->n_sources = l->n_order;
	body->origin = origin_message(l->origin, &l->origin_body);
	for (uint32_t i = 0; i < l->n_order; i++)
		if (l->sources[l->order[i]].kind == LOAD_FILE)
			body->tier = CKPT_TIER_DISK;
	list_problems(l, list);
	body->problems = list->texts;
	body->n_problems = list->n;
}

/* The next message, of up to FDS_PER_MESSAGE descriptors: the plan, then the sources. */
static int give_message(struct load *l)
{
	struct memory *m = l->job->node->env.memory;
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__LoadReply body = CKPT__LOAD_REPLY__INIT;
	struct problem_list list;
	int fds[FDS_PER_MESSAGE + 1];
	size_t n = 0;
	int r = 0;

	if (l->plan_fd >= 0)
		fds[n++] = l->plan_fd;
	l->plan_fd = -1;
	while (r >= 0 && n < FDS_PER_MESSAGE && l->n_given < l->n_order) {
		r = source_fd(l, l->n_given);
		if (r >= 0) {
			fds[n++] = r;
			l->n_given++;
		}
	}
	if (r < 0) {
		for (size_t i = 0; i < n; i++)
			m->ops->close_fd(m, fds[i]);
		return r;
	}
	fill_reply(l, &body, &list);
	body.more = l->n_given < l->n_order;
	reply.id = l->request;
	reply.status = l->plan.n_problems ? CKPT_PARTIAL : 0;
	if (l->latest && epoch_fell_back(l->job, &body.fell_back_from))
		reply.status |= CKPT_FELL_BACK;
	reply.body_case = CKPT__REPLY__BODY_LOAD;
	reply.load = &body;
	session_reply(l->session, &reply, fds, n);
	return 0;
}

static int give_look(struct load *l)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__StoredReply body = CKPT__STORED_REPLY__INIT;
	Ckpt__CheckpointInfo info;
	int fd = l->plan_fd;

	l->plan_fd = -1;
	admin_fill_info(&info, l->checkpoint);
	body.info = &info;
	reply.id = l->request;
	reply.body_case = CKPT__REPLY__BODY_STORED;
	reply.stored = &body;
	session_reply(l->session, &reply, &fd, 1);
	return 0;
}

/* Another load may have found one of them bad while this one was planned (I11). */
static bool sources_are_good(const struct load *l)
{
	for (uint32_t i = 0; i < l->n_order; i++) {
		const struct source *s = &l->sources[l->order[i]];

		if (s->kind == LOAD_MEMORY ? s->slot->state != SLOT_DIGESTED
					   : !checkpoint_file_is_good(l->checkpoint, s->rank))
			return false;
	}
	return true;
}

/* LOAD_GIVING: until all is sent, or for now. */
static void give_on(struct load *l)
{
	int r;

	if (!session_room(l->session))
		return; /* load_give_on() */
	r = give_message(l);
	if (r < 0) {
		err_code(&l->err, r, "hand over step %llu", (unsigned long long)l->step);
		load_give_error(l, r, l->err.text);
		load_close(l);
	} else if (l->n_given < l->n_order) {
		load_give_on(l);
	} else {
		l->state = LOAD_GIVEN;
		plan_fini(&l->plan); /* until LoadEnd only sources stay */
	}
}

static void giving_run(struct task *t)
{
	struct load *l = container_of(t, struct load, giving);

	l->posted = false;
	loop_label(l->job->node->env.loop, "a load's sources");
	give_on(l);
}

void load_give_on(struct load *l)
{
	if (l->posted)
		return;
	l->posted = true;
	loop_post(l->job->node->env.loop, &l->giving);
}

void load_plan_done(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	int r = w->status;

	l->state = LOAD_GIVING;
	wanted_by_fini(l->job, &l->others);
	if (l->cached)
		sharing_begin(l->checkpoint);
	/* Cancelled by a stop: not answered, so that the process asks the next ckptd. */
	if (!l->session || (r == -ECANCELED && l->job->node->stopping)) {
		load_close(l);
		return;
	}
	/* A file that cannot be read is a bad copy, like a leaf that does not match. */
	if (r < 0 && l->bad_copy) {
		job_tell_step(l->job, l->step, 3, "step %llu: %s", (unsigned long long)l->step,
			      l->err.text);
		checkpoint_suspect(l->checkpoint, l->bad_rank, "%s", l->err.text);
		indexing_put(l->checkpoint);
		r = checkpoint_restorable(l->checkpoint) ? -EAGAIN : CKPT_ECORRUPT;
	} else if (r == 0 && !sources_are_good(l)) {
		r = checkpoint_restorable(l->checkpoint) ? -EAGAIN : CKPT_ECORRUPT;
		err_code(&l->err, r, "load step %llu: a copy of it was just found bad",
			 (unsigned long long)l->step);
	}
	if (r == 0 && l->kind != LOAD_LOOK)
		r = load_count(l, l->kept_files, l->kept_twins, l->kept_bytes);
	if (r == 0 && l->kind != LOAD_LOOK) {
		task_init(&l->giving, session_process(l->owner)->uid, giving_run);
		give_on(l);
		return;
	}
	if (r == 0)
		r = give_look(l);
	if (r < 0)
		load_give_error(l, r, l->err.text);
	load_close(l);
}

/* ---- A leaf that did not match ---- */

static int check_memory(struct load *l, struct source *s)
{
	uint64_t leaf = s->table.geometry.leaf, offset = l->check_leaf * leaf;
	uint64_t len = min_u64(leaf, s->table.image_len - offset);
	struct digest want = rank_table_leaf(&s->table, l->check_leaf);
	struct digest have = digest_of((const uint8_t *)s->slot->region->base + offset, len);

	return digest_equal(&want, &have) ? 0 : CKPT_ECORRUPT;
}

static void check_run(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	struct source *s = &l->sources[l->order[l->check_source]];

	w->status = s->kind == LOAD_MEMORY ? check_memory(l, s)
					   : shard_check_leaf(&s->reader, l->check_leaf, &l->err);
}

static void check_done(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	struct source *s = &l->sources[l->order[l->check_source]];
	struct checkpoint *c = l->checkpoint;
	char what[256];

	l->state = LOAD_GIVEN;
	list_del(&l->waiting.link);
	if (shard_is_bad(w->status)) {
		shard_describe(&s->table, l->check_leaf * s->table.geometry.leaf, what,
			       sizeof(what));
		job_tell_step(l->job, c->step, 3,
			      "step %llu, rank %u, %s: leaf %llu (%s) does not match its digest; "
			      "the copy is not used any more",
			      (unsigned long long)c->step, s->rank,
			      s->kind == LOAD_MEMORY ? "memory" : "file",
			      (unsigned long long)l->check_leaf, what);
		if (s->kind == LOAD_MEMORY) {
			s->slot->state = SLOT_QUARANTINED;
			c->memory = false;
		} else {
			checkpoint_suspect(c, s->rank,
					   "rank %u: leaf %llu of its file (%.128s) does not "
					   "match its digest",
					   s->rank, (unsigned long long)l->check_leaf, what);
			indexing_put(c);
		}
	}
	/* The file is good: it was the memory that the kernel keeps of it. */
	if (w->status == 0 && s->kind == LOAD_FILE && s->reader.cached)
		c->no_cache = true;
	if (l->session)
		session_reply_ok(l->session, l->request);
	load_close(l);
	job_poke(c->job);
}

void load_check(struct load *l, uint64_t request, uint32_t source, uint64_t leaf)
{
	l->request = request;
	l->check_source = source;
	l->check_leaf = leaf;
	l->state = LOAD_CHECKING;
	list_add_tail(&l->job->checking, &l->waiting.link);
	l->work.run = check_run;
	l->work.done = check_done;
	load_submit(l);
}
