/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trust.c - `ckptctl trust`: how far the checkpoints of a job are trusted, and saying so.
 *
 * What is said is a record in the job's log, which the running ckptd writes: there is no way to say
 * it of files alone.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/trust.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/print.h"

static void trust_row(struct table *t, const json_t *c)
{
	const json_t *steps = json_object_get(c, "healthy_steps");
	char text[TEXT_MAX];

	table_cell(t, "%" PRIu64, doc_number(c, "step"));
	table_cell(t, "%s", text_short(text, doc_text(c, "attempt")));
	table_cell(t, "%s", doc_text(c, "trust"));
	if (steps)
		table_cell(t, "%" PRIu64, doc_number(c, "healthy_steps"));
	else
		table_cell(t, "?");
	table_cell(t, "%s", doc_flag(c, "doubted") ? "doubted" : "");
}

static int print_trust(const struct ctl *c, const json_t *job, const json_t *only)
{
	struct table *t = table_new("STEP> ATTEMPT TRUST HEALTHY-STEPS> NOTES");
	const json_t *o;
	size_t i;

	json_array_foreach(json_object_get(job, "checkpoints"), i, o)
	{
		if (!doc_is(o, "state", "committed") || (only && o != only))
			continue;
		if (c->talk < 0)
			say("%" PRIu64 " %s", doc_number(o, "step"), doc_text(o, "trust"));
		else
			trust_row(t, o);
	}
	return c->talk < 0 ? table_drop(t) : table_end(t);
}

static json_t *trust_json(const json_t *doc, const json_t *job, json_t *only)
{
	json_t *list = json_array(), *o;
	size_t i;

	json_array_foreach(json_object_get(job, "checkpoints"), i,
			   o) if (doc_is(o, "state", "committed") && (!only || o == only))
		json_array_append(list, o);
	return json_pack("{s:i, s:O, s:O, s:O, s:o}", "schema", 2, "source",
			 json_object_get(doc, "source"), "job", json_object_get(job, "job"), "id",
			 json_object_get(job, "id"), "checkpoints", list);
}

int verb_trust(const struct ctl *c, struct err *e)
{
	json_t *doc = NULL, *job = NULL, *only = NULL;
	enum trust_level level = TRUST_LATEST;
	bool bad = c->set && strcmp(c->set, "bad") == 0;
	int r;

	if (c->set && !bad && (!trust_parse(c->set, &level) || level != TRUST_VERIFIED))
		return err_set(e, -EINVAL,
			       "--set: a checkpoint can be said to be 'verified' or 'bad', not "
			       "'%.40s'; whether it is complete ckptd finds out",
			       c->set);
	if (c->set && (c->n_args < 2 || c->data))
		return err_set(e, -EINVAL,
			       c->data ? "it is said by a record in the job's log, which the "
					 "running ckptd writes: not with --data"
				       : "--set: say which checkpoint, STEP or STEP.ATTEMPT");
	if (c->set)
		return deed_trust(c, bad ? TRUST_BAD : TRUST_VERIFIED, e);
	r = status_document(c, c->args[0], &doc, e);
	if (r == 0)
		r = doc_only_job(doc, c->args[0], &job, e);
	if (r == 0 && c->n_args > 1)
		r = doc_find_checkpoint(job, c->args[1], false, &only, e);
	if (r == 0 && c->json)
		print_json(trust_json(doc, job, only));
	else if (r == 0)
		r = print_trust(c, job, only);
	json_decref(doc);
	return r < 0 ? r : EXIT_FINE;
}
