/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_state.c - job_state.h: the invariants of job.h as code.
 *
 * The check is on the path of every save: it walks over what lives, allocates nothing and makes no
 * call. Only slots that hold something are looked up in their checkpoints, so that its cost does
 * not rise with ranks times checkpoints.
 */
#include <config.h>

#include "ckptd/job_state.h"

#include <stdio.h>
#include <stdlib.h>

#include "ckptd/beats.h"
#include "ckptd/events.h"
#include "ckptd/leaving.h"
#include "ckptd/load.h"
#include "ckptd/log.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/verdicts.h"

static const char *const texts[] = {
#define X(name, text) text,
	JOB_DEFECTS(X)
#undef X
};

bool job_stopped(const struct job *j)
{
	return j->defect != JOB_SOUND;
}

/* ---- The check ---- */

static bool slot_is_sound(const struct slot *s)
{
	const struct checkpoint *c = s->holds;
	bool full = s->state == SLOT_SEALED || s->state == SLOT_DIGESTED;

	if (!s->region || s->number >= s->job->next_slot)
		return false;
	if (s->state != SLOT_QUARANTINED && full != (c != NULL))
		return false;
	return s->state != SLOT_WRITING || s->credit > 0;
}

/* (1) of job.h. */
static bool holder_is_sound(const struct slot *s)
{
	const struct checkpoint *c = s->holds;
	const struct shard_state *sh;

	if (c->job != s->job || s->rank >= c->world)
		return false;
	sh = &c->shards[s->rank];
	if (sh->table_in_region && (!s->table || sh->table != s->table->base))
		return false;
	return sh->slot == s && sh->sealed && sh->declared && sh->image_len <= s->region->size &&
	       (s->state != SLOT_DIGESTED || sh->table) && (s->state != SLOT_SEALED || !sh->table);
}

static enum job_defect check_slots(struct job *j)
{
	struct slot *s;

	list_each(s, &j->slots, link) {
		if (s->job != j || !slot_is_sound(s))
			return JOB_DEFECT_SLOT;
		if (s->holds && !holder_is_sound(s))
			return JOB_DEFECT_HOLDER;
		if (s->member && (s->member->job != j || s->member->rank != s->rank ||
				  !s->member->alive))
			return JOB_DEFECT_OWNER;
		if (s->holds)
			s->holds->n_held++;
	}
	return JOB_SOUND;
}

static bool member_is_sound(const struct member *m)
{
	return (!m->prepared || m->declared) && (!m->session || m->alive) &&
	       (!m->declared || m->declared->refs > 0);
}

static bool shards_are_sound(const struct checkpoint *c)
{
	bool pending = c->agreed == CP_OPEN || c->agreed == CP_COMMITTING;

	if (c->n_sealed > c->world || c->n_digested > c->n_sealed || c->n_held > c->n_sealed)
		return false;
	if (c->sealed != (c->n_sealed == c->world) || c->digested != (c->n_digested == c->world))
		return false;
	if (c->memory && c->n_held != c->world)
		return false;
	return c->n_held == c->n_memory && (!pending || c->n_held == c->n_sealed);
}

/* disk_suspect says that a file of it is bad. Those of all others are not looked at: a job may keep
 * thousands of checkpoints of thousands of ranks. */
static bool files_are_sound(const struct checkpoint *c)
{
	for (uint32_t r = 0; c->disk_suspect && r < c->world; r++)
		if (c->shards[r].bad_file)
			return true;
	return !c->disk_suspect;
}

static bool checkpoint_is_sound(const struct checkpoint *c)
{
	const struct history *h = &c->job->history;

	if (c->agreed != CP_ABORTED && c->epoch > h->epoch.number)
		return false;
	if (c->agreed == CP_COMMITTING && !c->sealed)
		return false;
	if (c->agreed == CP_COMMITTED && c->record_n >= h->next_n)
		return false; /* I4 */
	if (c->durable == DUR_DONE && c->agreed != CP_COMMITTED)
		return false; /* DURABLE requires COMMITTED */
	if (c->durable == DUR_DONE && !c->commit && !c->disk_suspect)
		return false;
	if (c->commit && c->commit->world != c->world)
		return false;
	if (!files_are_sound(c))
		return false;
	return c->works >= (uint32_t)c->saying + c->expiring + c->rereading &&
	       c->works >= c->recording;
}

static enum job_defect check_checkpoints(struct job *j)
{
	struct checkpoint *c;
	unsigned written = 0;

	list_each(c, &j->checkpoints, link) {
		if (c->job != j || !checkpoint_is_sound(c))
			return JOB_DEFECT_CHECKPOINT;
		if (!shards_are_sound(c))
			return JOB_DEFECT_SHARDS;
		if (c->persist && c->persist != j->persist)
			return JOB_DEFECT_PERSIST;
		written += c->persist != NULL;
	}
	return written == (j->persist != NULL) ? JOB_SOUND : JOB_DEFECT_PERSIST;
}

static bool history_is_sound(const struct history *h)
{
	const struct history_commit *last = h->n_commits ? &h->commits[h->n_commits - 1] : NULL;

	if (h->n_commits > h->cap_commits || h->n_aborts > HISTORY_ABORTS_MAX ||
	    h->n_runs > HISTORY_RUNS_MAX || (h->next_n > 0 && h->first_n >= h->next_n))
		return false;
	if (!last)
		return true;
	return last->n < h->next_n && last->epoch <= h->epoch.number &&
	       (last->epoch < h->epoch.number || (h->stepped && last->commit.step <= h->last_step));
}

static enum job_defect find_defect(struct job *j)
{
	struct checkpoint *c;
	enum job_defect d;
	struct member *m;

	if (!history_is_sound(&j->history))
		return JOB_DEFECT_LOG;
	list_each(m, &j->members, link)
		if (m->job != j || !member_is_sound(m))
			return JOB_DEFECT_MEMBER;
	list_each(c, &j->checkpoints, link)
		c->n_held = 0;
	d = check_slots(j);
	return d != JOB_SOUND ? d : check_checkpoints(j);
}

/* ---- Broken, and stopped ---- */

static void note(struct job *j, enum job_defect d, const char *detail)
{
	j->defect = d;
	snprintf(j->defect_text, sizeof(j->defect_text),
		 "job '%.64s' is stopped: %s%.60s; its memory and files stay as they are. Restart "
		 "ckptd to read its state again; if that stops it too, report this",
		 j->history.job.name, texts[d], detail);
	if (!j->node->options.abort_broken)
		return;
	j->node->env.log(j->node->env.log_arg, 2, &(struct log_about){.job = j->history.job.name},
			 j->defect_text);
	abort();
}

bool job_broken(struct job *j, const char *what, const char *file, int line)
{
	const char *base = strrchr(file, '/');
	char detail[64];

	if (job_stopped(j))
		return false;
	snprintf(detail, sizeof(detail), " (%s:%d: %s)", base ? base + 1 : file, line, what);
	note(j, JOB_DEFECT_ASSERTION, detail);
	job_poke(j);
	return false;
}

bool job_state_check(struct job *j)
{
	enum job_defect d = job_stopped(j) ? j->defect : find_defect(j);

	if (d != JOB_SOUND && !job_stopped(j))
		note(j, d, "");
	return d == JOB_SOUND;
}

static void answer_credits(struct job *j)
{
	struct member *m;

	list_each(m, &j->members, link) {
		if (m->session && m->credit_request)
			session_reply_error(m->session, m->credit_request, CKPT_ESTOPPED,
					    j->defect_text);
		m->credit_request = 0;
		preparing_cancel(m);
	}
}

static void disarm(struct job *j)
{
	struct loop *loop = j->node->env.loop;
	struct checkpoint *c;

	timer_disarm(loop, &j->append_retry);
	timer_disarm(loop, &j->settle_timer);
	timer_disarm(loop, &j->room_timer);
	slot_fill_stop(j);
	list_each(c, &j->checkpoints, link)
		timer_disarm(loop, &c->timeout);
}

void job_stop(struct job *j)
{
	struct member *m;
	struct subject s;

	if (!j->stopped) {
		j->stopped = true;
		s = subject_job(watching_number(j));
		events_post(j->node->events, EVENT_JOB_STOPPED, 2, j->history.job.uid,
			    watching_subject_json(j->node, &s),
			    json_pack("{s:i}", "defect", (int)j->defect), "%s", j->defect_text);
		leaving_forget(j);
		list_each(m, &j->members, link) {
			beats_leave(m);
			member_unindex(m); /* the end of its process does not concern it */
			list_del(&m->ending);
		}
		job_uncount(j);
		watching_stopped(j);
		watching_job_leaves(j);
		answers_unlink(j->node, &j->link);
		list_del(&j->link); /* nothing that walks over jobs meets it from here on */
		list_add_tail(&j->node->stopped_jobs, &j->link);
		disarm(j);
	}
	job_drop_appends(j);
	epoch_stop(j, CKPT_ESTOPPED, j->defect_text);
	load_stop(j, CKPT_ESTOPPED, j->defect_text);
	waiters_stop(j, CKPT_ESTOPPED, j->defect_text);
	declaring_fini(j);
	answer_credits(j);
}
