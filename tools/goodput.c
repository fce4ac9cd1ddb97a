/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput.c - `ckptctl goodput`: what the time of a job went to, and how often it should save.
 */
#include <config.h>

#include <inttypes.h>
#include <stdio.h>

#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/node_history.h"
#include "tools/plural.h"
#include "tools/print.h"

static double number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

/* "12.3 s", "4.5 min", "6.7 h" */
static const char *duration(char *buf, size_t size, double s)
{
	if (s < 120)
		snprintf(buf, size, "%.1f s", s);
	else if (s < 7200)
		snprintf(buf, size, "%.1f min", s / 60);
	else
		snprintf(buf, size, "%.1f h", s / 3600);
	return buf;
}

static void print_advice(const json_t *a)
{
	char every[TEXT_MAX], often[TEXT_MAX], rarely[TEXT_MAX], mtbf[TEXT_MAX];

	duration(every, sizeof(every), number(a, "interval_s"));
	duration(often, sizeof(often), number(a, "often_s"));
	duration(rarely, sizeof(rarely), number(a, "rarely_s"));
	duration(mtbf, sizeof(mtbf), number(a, "mtbf_s"));
	say("%-9s save every %s%s (%s to %s): %s", doc_text(a, "tier"), every,
	    doc_is(a, "why", "bound") ? ", as often as can be" : "", often, rarely,
	    doc_is(a, "why", "joint") ? "one interval for both tiers" : "its own");
	say("          that loses %.2f %%: a save stalls %.3f s and counts after %.2f s, a restart "
	    "takes %.1f s",
	    100 * number(a, "loss"), number(a, "stall_s"), number(a, "latency_s"),
	    number(a, "restart_s"));
	say("          failures: %" PRIu64 " seen, one in %s taken (%.0f %% of that from here, the "
	    "rest is assumed)",
	    doc_number(a, "failures"), mtbf, 100 * number(a, "seen"));
}

static int print_goodput(const json_t *g)
{
	struct table *t = table_new("CAUSE SECONDS> OF-ALL>");
	const json_t *spent = json_object_get(g, "seconds");
	const char *cause;
	char ran[TEXT_MAX], whole[TEXT_MAX];
	double all = 0, away = number(spent, "away");
	json_t *v;
	size_t i;
	int r;

	json_object_foreach((json_t *)spent, cause, v) all += json_number_value(v);
	say("goodput   %.2f %% of the %s that it was running, %" PRIu64 " step%s",
	    100 * number(g, "share"), duration(ran, sizeof(ran), all - away),
	    doc_number(g, "steps"), plural(doc_number(g, "steps")));
	say("          shares below are of all %s since it began",
	    duration(whole, sizeof(whole), all));
	json_object_foreach((json_t *)spent, cause, v)
	{
		table_cell(t, "%s", cause);
		table_cell(t, "%.1f", json_number_value(v));
		table_cell(t, "%.2f %%", all > 0 ? 100 * json_number_value(v) / all : 0);
	}
	r = table_end(t);
	json_array_foreach(json_object_get(g, "advice"), i, v) print_advice(v);
	return r;
}

static int live_goodput(const struct ctl *c, json_t **ret, struct err *e)
{
	json_t *doc = NULL, *job = NULL, *g = NULL;
	int r = status_document(c, c->args[0], &doc, e);

	if (r == 0)
		r = doc_only_job(doc, c->args[0], &job, e);
	if (r == 0)
		g = json_object_get(job, "goodput");
	if (r == 0 && !g)
		r = err_set(e, CKPT_EVERSION, "this ckptd does not keep it: it is older");
	if (r == 0)
		*ret = json_pack("{s:i, s:s, s:O, s:O, s:O}", "schema", 2, "source", "daemon",
				 "job", json_object_get(job, "job"), "id",
				 json_object_get(job, "id"), "goodput", g);
	json_decref(doc);
	return r;
}

int verb_goodput(const struct ctl *c, struct err *e)
{
	json_t *doc = NULL;
	int r = ctl_offline(c) ? node_history_goodput(c, c->args[0], &doc, e)
			       : live_goodput(c, &doc, e);

	if (r < 0)
		return r;
	if (c->json)
		print_json(json_incref(doc));
	else
		r = print_goodput(json_object_get(doc, "goodput"));
	json_decref(doc);
	return r < 0 ? err_code(e, r, "print the goodput") : EXIT_FINE;
}
