/* SPDX-License-Identifier: Apache-2.0 */
/*
 * why.c - `ckptctl why`, `clear`, `drain`, `undrain` and `policy`: what stands against whom, for
 * which reason, what was decided, and what a person says to it.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tools/connect.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/node_history.h"
#include "tools/plural.h"
#include "tools/print.h"
#include "tools/save_report.h"

static int ask(const struct ctl *c, Ckpt__Admin__Verb verb, const char *text, json_t **ret,
	       struct err *e)
{
	struct admin_question q = {.verb = verb, .text = text};
	struct connection *conn = NULL;
	int r = connection_open(c->socket, &conn, e);

	if (r == 0)
		r = connection_ask(conn, &q, ret, e);
	connection_close(conn);
	if (r == 0 && !json_is_object(*ret)) {
		json_decref(*ret);
		*ret = NULL;
		r = err_set(e, CKPT_EPROTO,
			    "ckptd's answer is no document: are ckptd and ckptctl "
			    "of one version?");
	}
	return r;
}

static void print_document(json_t *doc)
{
	if (!json_object_get(doc, "source"))
		json_object_set_new(doc, "source", json_string("daemon"));
	print_json(json_incref(doc));
}

/* ---- why ---- */

static const char *number_text(char buf[64], const json_t *o, const char *unit)
{
	if (!json_is_number(o))
		snprintf(buf, 64, "not known");
	else
		snprintf(buf, 64, "%.6g%s%s", json_number_value(o), unit[0] ? " " : "", unit);
	return buf;
}

static void print_evidence(const json_t *v)
{
	char value[64], limit[64], age[TEXT_MAX];
	json_t *o;
	size_t i;

	json_array_foreach(json_object_get(v, "evidence"), i, o)
	{
		const char *unit = doc_text(o, "unit");

		number_text(value, json_object_get(o, "value"), unit);
		text_age(age, doc_number(o, "since_ns"));
		if (json_is_number(json_object_get(o, "threshold")))
			say("  %s: %s, threshold %s, for %s", doc_text(o, "signal"), value,
			    number_text(limit, json_object_get(o, "threshold"), unit), age);
		else
			say("  %s: %s, for %s", doc_text(o, "signal"), value, age);
	}
}

/* What the policy has made of this verdict; the newest. */
static void print_decision(const json_t *doc, const json_t *v)
{
	const json_t *found = NULL;
	json_t *o;
	size_t i;

	json_array_foreach(json_object_get(doc, "events"), i,
			   o) if (doc_is(o, "kind", "decision") &&
				  doc_number(o, "verdict") == doc_number(v, "verdict") &&
				  doc_number(o, "time_ns") + 1000000000u >=
					  doc_number(v, "raised_ns")) found = o;
	if (!found)
		return;
	if (doc_text(found, "now")[0])
		say("  begun by ckptd: %s", doc_text(found, "now"));
	if (doc_text(found, "withheld")[0])
		say("  not done: %s", doc_text(found, "withheld"));
	if (doc_text(found, "advised")[0])
		say("  for you to do: %s", doc_text(found, "advised"));
	say("  because: %s", doc_text(found, "why"));
}

static void print_verdict(const json_t *doc, const json_t *v)
{
	const json_t *s = json_object_get(v, "subject");
	char age[TEXT_MAX], when[TEXT_MAX];

	say("%s: %s (%s), %s for %s, since %s", doc_text(s, "words"), doc_text(v, "class"),
	    doc_text(v, "cause"), doc_text(v, "level"), text_age(age, doc_number(v, "since_ns")),
	    text_time(when, doc_number(v, "since_ns")));
	say("  %s", doc_text(v, "why"));
	print_evidence(v);
	print_decision(doc, v);
}

/* Alarms first: what ended in consequence of something else is a note, and newer. */
static void print_verdicts(const json_t *doc, const char *level)
{
	json_t *v;
	size_t i;

	json_array_foreach(json_object_get(doc, "verdicts"), i, v) if (doc_is(v, "level", level))
		print_verdict(doc, v);
}

static void print_rest(const json_t *doc)
{
	const json_t *drained = json_object_get(doc, "drained");
	const json_t *admission = json_object_get(doc, "admission");
	const json_t *not_kept = json_object_get(doc, "not_kept");
	char when[TEXT_MAX];
	json_t *o;
	size_t i;

	if (doc_text(doc, "suspect")[0])
		say("suspect: %s; 'ckptctl clear' takes it back", doc_text(doc, "suspect"));
	if (json_is_object(drained))
		say("node '%s' is drained: %s", doc_text(doc, "node"), doc_text(drained, "reason"));
	if (doc_is(admission, "state", "refused"))
		say("node '%s' is not admitted: %s", doc_text(doc, "node"),
		    doc_text(admission, "reason"));
	if (json_is_object(not_kept))
		say("alarms that were not kept, as too many stand: %s the newest, found %" PRIu64
		    " times in all",
		    doc_text(not_kept, "words"), doc_number(not_kept, "times"));
	if (json_array_size(json_object_get(doc, "known")))
		say("known:");
	json_array_foreach(json_object_get(doc, "known"), i, o) say("  %s", json_string_value(o));
	if (json_array_size(json_object_get(doc, "events")))
		say("lately:");
	if (doc_number(doc, "events_more"))
		say("  and %" PRIu64 " before these, see 'ckptctl events'",
		    doc_number(doc, "events_more"));
	json_array_foreach(json_object_get(doc, "events"), i, o)
		say("  %s  %s", text_time(when, doc_number(o, "time_ns")), doc_text(o, "words"));
}

int verb_why(const struct ctl *c, struct err *e)
{
	const json_t *list, *subject;
	json_t *doc = NULL, *v;
	bool alarm = false;
	size_t i;
	const char *text = c->n_args ? c->args[0] : "";
	int r = ctl_offline(c) ? node_history_why(c, text, &doc, e)
			       : ask(c, CKPT__ADMIN__VERB__WHY, text, &doc, e);

	if (r < 0)
		return r;
	list = json_object_get(doc, "verdicts");
	subject = json_object_get(doc, "subject");
	json_array_foreach(list, i, v) alarm = alarm || doc_is(v, "level", "alarm");
	if (c->json) {
		alarm = alarm || json_array_size(json_object_get(doc, "problems")) > 0;
		print_document(doc);
	} else {
		print_verdicts(doc, "alarm");
		print_verdicts(doc, "note");
		if (doc_number(doc, "verdicts_more"))
			say("and %" PRIu64 " more, which are older or notes: ask for a JOB, a "
			    "JOB:RANK or a DEVICE alone",
			    doc_number(doc, "verdicts_more"));
		if (json_array_size(list) == 0)
			say("%s against %s",
			    json_array_size(json_object_get(doc, "problems"))
				    ? "the failure detector has no verdict"
				    : "nothing stands",
			    json_is_object(subject) ? doc_text(subject, "words") : "anybody here");
		alarm = save_report_print(doc, doc_text(subject, "job")) || alarm;
		if (c->talk >= 0)
			print_rest(doc);
	}
	json_decref(doc);
	return alarm ? EXIT_PROBLEM : EXIT_FINE;
}

/* ---- clear, drain, undrain ---- */

int verb_clear(const struct ctl *c, struct err *e)
{
	json_t *doc = NULL;
	int r = ask(c, CKPT__ADMIN__VERB__CLEAR, c->args[0], &doc, e);

	if (r < 0)
		return r;
	if (c->json)
		print_document(doc);
	else if (c->talk >= 0)
		say("%s: %" PRIu64 " verdict%s and %" PRIu64 " mark%s taken back",
		    doc_text(json_object_get(doc, "subject"), "words"),
		    doc_number(doc, "verdicts_cleared"),
		    plural(doc_number(doc, "verdicts_cleared")), doc_number(doc, "marks_cleared"),
		    plural(doc_number(doc, "marks_cleared")));
	json_decref(doc);
	return EXIT_FINE;
}

static int change_drain(const struct ctl *c, bool on, struct err *e)
{
	json_t *doc = NULL;
	int r = ask(c, on ? CKPT__ADMIN__VERB__DRAIN : CKPT__ADMIN__VERB__UNDRAIN,
		    c->n_args ? c->args[0] : "", &doc, e);

	if (r < 0)
		return r;
	if (c->json)
		print_document(doc);
	else if (c->talk >= 0)
		say("node '%s' %s%s", doc_text(doc, "node"),
		    doc_flag(doc, "changed") ? "" : "already ",
		    on ? "takes no new runs: what runs goes on" : "takes new runs");
	json_decref(doc);
	return EXIT_FINE;
}

int verb_drain(const struct ctl *c, struct err *e)
{
	return change_drain(c, true, e);
}

int verb_undrain(const struct ctl *c, struct err *e)
{
	return change_drain(c, false, e);
}

/* ---- policy ---- */

static const char *span_text(char buf[TEXT_MAX], uint64_t ns)
{
	static const struct {
		uint64_t s;
		char unit;
	} units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
	uint64_t s = ns / 1000000000u;

	snprintf(buf, TEXT_MAX, "-");
	for (size_t i = 0; s && i < 4; i++) {
		if (s % units[i].s)
			continue;
		snprintf(buf, TEXT_MAX, "%" PRIu64 "%c", s / units[i].s, units[i].unit);
		break;
	}
	return buf;
}

static void print_actions(struct table *t, const json_t *row)
{
	char text[256] = "", window[TEXT_MAX], times[2 * TEXT_MAX] = "-";
	size_t i, used = 0;
	json_t *o;

	json_array_foreach(json_object_get(row, "actions"), i, o) if (used < sizeof(text)) used +=
		(size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? "," : "",
				 json_string_value(o));
	if (doc_number(row, "times"))
		snprintf(times, sizeof(times), "%" PRIu64 "/%s", doc_number(row, "times"),
			 span_text(window, doc_number(row, "window_ns")));
	table_cell(t, "%s", text);
	table_cell(t, "%s", times);
	table_cell(t, "%s", span_text(window, doc_number(row, "hold_ns")));
}

static int print_rows(const json_t *doc)
{
	static const char *const words[] = {"class",  "cause",   "level", "kind",
					    "copies", "durable", "spares"};
	struct table *t = table_new(
		"ROW> CLASS CAUSE LEVEL SUBJECT COPIES DURABLE SPARES ACTIONS TIMES HOLD");
	json_t *row;
	size_t i;

	json_array_foreach(json_object_get(doc, "rows"), i, row)
	{
		table_cell(t, "%" PRIu64, doc_number(row, "row"));
		for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++)
			table_cell(t, "%s", doc_text(row, words[k]));
		print_actions(t, row);
	}
	return table_end(t);
}

static void print_would(const json_t *d)
{
	if (doc_text(d, "now")[0])
		say("would do: %s", doc_text(d, "now"));
	if (doc_text(d, "withheld")[0])
		say("would not do: %s", doc_text(d, "withheld"));
	if (doc_text(d, "advised")[0])
		say("would be for you to do: %s", doc_text(d, "advised"));
	say("because: %s", doc_text(d, "why"));
}

int verb_policy(const struct ctl *c, struct err *e)
{
	const json_t *decision;
	char text[400] = "";
	json_t *doc = NULL;
	size_t used = 0;
	int r;

	if (c->n_args == 1)
		return err_set(e, -EINVAL,
			       "policy: a verdict is a class and a cause, such as "
			       "'dead process-ended'");
	for (int i = 0; i < c->n_args && used < sizeof(text); i++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? " " : "",
					 c->args[i]);
	r = ask(c, CKPT__ADMIN__VERB__POLICY, text, &doc, e);
	if (r < 0)
		return r;
	decision = json_object_get(doc, "decision");
	if (c->json) {
		print_document(doc);
	} else if (json_is_object(decision)) {
		print_would(decision);
	} else {
		r = print_rows(doc);
		say("from %s; %" PRIu64 " actions an hour%s", doc_text(doc, "path"),
		    doc_number(doc, "actions_per_hour"),
		    doc_flag(doc, "dry_run") ? "; dry run: nothing is done" : "");
		say("ckptd knows this node alone: spares are 0, copies 0 or 1");
	}
	json_decref(doc);
	return r < 0 ? err_code(e, r, "print the policy") : EXIT_FINE;
}
