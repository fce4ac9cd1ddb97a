/* SPDX-License-Identifier: Apache-2.0 */
/*
 * problems_json.c - problems and skipped saves of a job as JSON (doc/json.md). Thread: the loop.
 * thread.
 */
#include <config.h>

#include "ckptd/job.h"
#include "ckptd/problems.h"
#include "ckptd/watching_json.h"

json_t *last_skip_json(const struct last_skip *s)
{
	json_t *o;

	if (s->wall_ns == 0)
		return json_null();
	o = json_pack("{s:I, s:I, s:s, s:s, s:I}", "rank", (json_int_t)s->rank, "step",
		      (json_int_t)s->step, "skip", skip_word(s->kind), "reason", s->reason,
		      "time_ns", (json_int_t)s->wall_ns);
	return o;
}

static json_t *problem_json(const struct job *j, enum job_problem k, const struct problem *p)
{
	json_t *o = json_pack("{s:s, s:I, s:I, s:s}", "problem", problem_word(k), "times",
			      (json_int_t)p->times, "since_ns",
			      (json_int_t)watching_wall(j->node, p->since_ns), "why", p->text);

	if (o && p->rank != PROBLEM_NO_RANK) {
		json_object_set_new(o, "rank", json_integer(p->rank));
		json_object_set_new(o, "ranks", json_integer(p->ranks));
	}
	if (o && p->step != PROBLEM_NO_STEP)
		json_object_set_new(o, "step", json_integer((json_int_t)p->step));
	if (o && k == PROBLEM_PREPARE)
		json_object_set_new(o, "lacks", json_string(prepare_lacks_word(p->lacks)));
	return o;
}

json_t *problems_json(const struct job *j)
{
	json_t *list = json_array();

	for (unsigned k = 0; k < JOB_PROBLEM_COUNT; k++)
		if (j->saves.problems[k].stands)
			json_array_append_new(
				list, problem_json(j, (enum job_problem)k, &j->saves.problems[k]));
	return list;
}

static json_t *committed_json(const struct job *j)
{
	const struct history_commit *h;

	if (j->history.n_commits == 0)
		return json_null();
	h = &j->history.commits[j->history.n_commits - 1];
	return json_pack("{s:I, s:I, s:I}", "step", (json_int_t)h->commit.step, "epoch",
			 (json_int_t)h->epoch, "time_ns", (json_int_t)h->wall_ns);
}

/* Ranks that call save and are not answered before they have a credit. */
static json_int_t count_waiting(const struct job *j)
{
	const struct member *m;
	json_int_t n = 0;

	list_each(m, &j->members, link)
		n += m->credit_request != 0;
	return n;
}

json_t *saves_json(const struct job *j)
{
	const struct saves *s = &j->saves;
	json_t *o = json_object(), *skips = json_object();

	for (uint32_t i = 0; i < CKPT_SKIP_REASONS_MAX; i++)
		if (s->skips[i])
			json_object_set_new(skips, skip_word(i),
					    json_integer((json_int_t)s->skips[i]));
	json_object_set_new(o, "committed", committed_json(j));
	json_object_set_new(o, "skipped", skips);
	json_object_set_new(o, "last_skip", last_skip_json(&s->last_skip));
	json_object_set_new(o, "blocked",
			    j->window.block == BLOCK_NONE
				    ? json_null()
				    : json_string(skip_word(j->window.block)));
	json_object_set_new(o, "blocked_rank",
			    j->window.block == BLOCK_FILLING || j->window.block >= BLOCK_UNPREPARED
				    ? json_integer(j->window.blocked_rank)
				    : json_null());
	json_object_set_new(o, "waiting", json_integer(count_waiting(j)));
	json_object_set_new(o, "called",
			    s->called ? json_integer((json_int_t)s->newest) : json_null());
	json_object_set_new(o, "done",
			    j->goodput.steps ? json_integer((json_int_t)j->goodput.newest_step)
					     : json_null());
	json_object_set_new(o, "uncommitted", json_integer((json_int_t)s->uncommitted));
	json_object_set_new(o, "running", json_boolean(!list_empty(&j->members)));
	return o;
}
