/* SPDX-License-Identifier: Apache-2.0 */
/*
 * status.c - `ckptctl status` and `ckptctl list`: how jobs stand, and which checkpoints there are.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/job_name.h"
#include "tools/plural.h"
#include "tools/print.h"
#include "tools/save_report.h"

#define ABORTS_SHOWN 1 /* of a job, the newest; all with -v */

/* ---- Problems ---- */

__attribute__((format(printf, 2, 3))) static void add_problem(json_t *list, const char *fmt, ...)
{
	char text[2 * ERR_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_array_append_new(list, doc_name(text, strlen(text)));
}

static void unread_problem(const json_t *job, json_t *list)
{
	if (doc_text(job, "unread")[0])
		add_problem(list, "job '%s': %s; nothing of it is deleted", doc_text(job, "job"),
			    doc_text(job, "unread"));
}

static void checkpoint_problems(const json_t *job, const json_t *c, json_t *list)
{
	const char *name = doc_text(job, "job"), *why = doc_text(c, "reason");
	const char *disk = doc_text(c, "disk");
	uint64_t step = doc_number(c, "step");
	char label[JOB_LABEL_MAX];

	if (strcmp(disk, "failed") == 0)
		add_problem(list,
			    "job '%s': step %" PRIu64
			    " could not be written to disk: %s; mend that, "
			    "and the next checkpoint is written",
			    name, step, why);
	if (strcmp(disk, "damaged") == 0 || strcmp(disk, "unlogged") == 0)
		add_problem(list, "job '%s': step %" PRIu64 " on disk: %s", name, step, why);
	if (doc_flag(c, "suspect"))
		add_problem(list,
			    "job '%s': step %" PRIu64 " on disk is damaged or cannot be read: "
			    "'ckptctl verify %s %" PRIu64 "' says what and where",
			    name, step, job_typed(label, job), step);
}

static void job_problems(const json_t *job, json_t *list)
{
	const char *name = doc_text(job, "job");
	json_t *o;
	size_t i;

	unread_problem(job, list);
	if (doc_text(job, "stopped")[0])
		add_problem(list, "%s", doc_text(job, "stopped"));
	/* Else its problem says the same, since when, and what to do. */
	if (doc_text(job, "log_error")[0] && !save_report_stands(job, "log-unwritable"))
		add_problem(list, "job '%s': its log: %s", name, doc_text(job, "log_error"));
	if (doc_flag(job, "log_anew"))
		add_problem(list,
			    "job '%s': its log was damaged or lost and begun anew at ckptd's "
			    "start: pins that its damaged records made are gone ('ckptctl list' "
			    "shows those that are left), pin again what must stay, and look at "
			    "log.old-* in the job's folder; the next start of ckptd forgets this",
			    name);
	if (doc_text(job, "log_trim_error")[0])
		add_problem(list, "job '%s': its log of %" PRIu64 " record%s cannot be trimmed: %s",
			    name, doc_number(job, "log_records"),
			    plural(doc_number(job, "log_records")),
			    doc_text(job, "log_trim_error"));
	if (doc_number(job, "replica_alarms"))
		add_problem(list,
			    "job '%s': step %" PRIu64 ": %s: silent corruption, or one name for "
			    "two tensors",
			    name, doc_number(job, "replica_step"), doc_text(job, "replica_text"));
	if (doc_number(job, "stale_alarms"))
		add_problem(list,
			    "job '%s': step %" PRIu64 " holds the same trained tensors as the "
			    "step before it: is the right state saved?",
			    name, doc_number(job, "stale_step"));
	if (doc_number(job, "overlap_step"))
		add_problem(list, "job '%s': step %" PRIu64 ": %s", name,
			    doc_number(job, "overlap_step"), doc_text(job, "overlap_text"));
	if (doc_flag(job, "folder_gone"))
		add_problem(list,
			    "job '%s': its folder jobs/%s is gone from the data folder: what was "
			    "in it cannot be restored; put it back, and do not end the ranks "
			    "before",
			    name, doc_text(job, "id"));
	save_report_problems(job, list);
	json_array_foreach(json_object_get(job, "checkpoints"), i, o)
		checkpoint_problems(job, o, list);
	json_array_foreach(json_object_get(job, "slots"), i,
			   o) if (doc_is(o, "state", "quarantined"))
		add_problem(list,
			    "job '%s': slot %" PRIu64 " of rank %" PRIu64 " in memory "
			    "has a leaf that does not match its digest",
			    name, doc_number(o, "slot"), doc_number(o, "rank"));
}

/* What ckptd's failure detector says, and whom it cannot watch. */
static void watching_problems(const json_t *doc, json_t *list)
{
	const json_t *unwatched = json_object_get(doc, "unwatched");
	const json_t *not_kept = json_object_get(doc, "not_kept");
	char age[TEXT_MAX];
	json_t *o;
	size_t i;

	json_array_foreach(json_object_get(doc, "alarms"), i, o)
		add_problem(list,
			    "%s is %s (%s) for %s: 'ckptctl why %s' says what speaks for it "
			    "and what to do",
			    doc_text(o, "words"), doc_text(o, "class"), doc_text(o, "cause"),
			    text_age(age, doc_number(o, "since_ns")), doc_text(o, "ask"));
	if (json_is_object(unwatched))
		add_problem(list,
			    "the failure detector has no room for %s: what happens to it is not "
			    "found; end what is not needed on this node ('ckptctl events' says "
			    "since when)",
			    doc_text(unwatched, "words"));
	if (json_is_object(not_kept))
		add_problem(list,
			    "the failure detector has no room for more alarms (the newest that was "
			    "not kept: %s): mend what stands, or take it back with 'ckptctl clear'",
			    doc_text(not_kept, "words"));
}

/* What keeps memory over a restart of ckptd is so small that ranks are refused. */
static void store_problem(const json_t *doc, json_t *list)
{
	const json_t *store = json_object_get(doc, "fd_store");

	if (!json_is_object(store) || doc_number(store, "max") >= MEMORY_PLACES_LEAST)
		return;
	add_problem(list,
		    "the fd store has %" PRIu64 " places and one rank needs up to %u, so ranks are "
		    "refused: raise ckptd's limit of open files (ulimit -Hn, LimitNOFILE= of the "
		    "unit) or FileDescriptorStoreMax=, and restart ckptd",
		    doc_number(store, "max"), MEMORY_PLACES_LEAST);
}

static json_t *problems_of(const json_t *doc)
{
	json_t *list = json_array(), *job;
	size_t i;

	if (json_is_false(json_object_get(doc, "ready")))
		add_problem(list, "ckptd is starting: it still reads which jobs there are; ask "
				  "again in some seconds, its log says what it waits for");
	if (json_is_false(json_object_get(doc, "index")))
		add_problem(list, "ckptd works without its index, which did not open when it "
				  "started: its log says why; once that is mended restart ckptd");
	if (doc_number(doc, "index_errors"))
		add_problem(list,
			    "the index could not be written %" PRIu64 " times: 'ckptctl rebuild' "
			    "makes it anew",
			    doc_number(doc, "index_errors"));
	if (doc_text(doc, "config_error")[0])
		add_problem(list,
			    "the configuration as it is now cannot be used, and ckptd would not "
			    "start with it (%s): mend it, then 'systemctl reload ckptd', or SIGHUP",
			    doc_text(doc, "config_error"));
	if (doc_text(doc, "data_error")[0])
		add_problem(list, "nothing on disk counts: %s", doc_text(doc, "data_error"));
	store_problem(doc, list);
	json_array_foreach(json_object_get(doc, "jobs"), i, job)
		job_problems(job, list);
	watching_problems(doc, list);
	return list;
}

/* ---- Status ---- */

static void print_admission(const json_t *doc)
{
	const json_t *o = json_object_get(doc, "admission");
	char age[TEXT_MAX];

	text_age(age, doc_number(o, "since_ns"));
	if (doc_is(o, "state", "checking"))
		say("being checked since %s ago: new runs wait until that has ended", age);
	else if (doc_is(o, "state", "refused"))
		say("not admitted %s ago (%s): new runs are refused; 'ckptctl undrain' overrules",
		    age, doc_text(o, "reason"));
	else if (doc_is(o, "state", "overruled"))
		say("admitted %s ago whatever its check found (%s)", age, doc_text(o, "reason"));
}

static void print_marks(const json_t *doc)
{
	const json_t *drained = json_object_get(doc, "drained");
	char age[TEXT_MAX];
	json_t *o;
	size_t i;

	if (json_is_object(drained))
		say("drained %s ago (%s): new runs are refused",
		    text_age(age, doc_number(drained, "since_ns")), doc_text(drained, "reason"));
	print_admission(doc);
	json_array_foreach(json_object_get(doc, "suspects"), i, o)
		say("suspect %s: %s, %s ago", doc_text(o, "words"), doc_text(o, "reason"),
		    text_age(age, doc_number(o, "since_ns")));
}

static void print_node(const json_t *doc)
{
	char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];

	if (doc_is(doc, "source", "files"))
		say("files in %s", doc_text(doc, "data"));
	else
		say("ckptd %s on node '%s', disk by %s", doc_text(doc, "version"),
		    doc_text(doc, "node"), doc_text(doc, "disk_backend"));
	if (json_object_get(doc, "memory_budget"))
		say("memory  %s free of %s", text_bytes(a, doc_number(doc, "memory_left")),
		    text_bytes(b, doc_number(doc, "memory_budget")));
	text_bytes(a, doc_number(doc, "disk_free"));
	text_bytes(b, doc_number(doc, "disk_total"));
	if (json_object_get(doc, "disk_reserve"))
		say("disk    %s free of %s, %s of it stay free; %s more in spare files", a, b,
		    text_bytes(c, doc_number(doc, "disk_reserve")),
		    text_bytes(d, doc_number(doc, "spare_bytes")));
	else
		say("disk    %s free of %s", a, b);
	print_marks(doc);
}

/* The newest checkpoint of a job that is committed, or on disk, and that a launch could get: not
 * what is lost, bad or damaged. They come newest first. */
static const json_t *newest(const json_t *job, const char *key, const char *value)
{
	json_t *c;
	size_t i;

	json_array_foreach(json_object_get(job, "checkpoints"), i, c)
	{
		bool elsewhere = doc_flag(c, "memory") && !doc_is(c, key, "durable");

		if (doc_is(c, key, value) && !doc_is(c, "trust", "bad") &&
		    !doc_is(c, "disk", "lost") && (!doc_flag(c, "suspect") || elsewhere))
			return c;
	}
	return NULL;
}

static void ranks_cell(struct table *t, const json_t *job)
{
	const json_t *ranks = json_object_get(job, "ranks");
	uint64_t world = doc_number(json_object_get(job, "epoch"), "world");
	unsigned connected = 0;
	json_t *m;
	size_t i;

	json_array_foreach(ranks, i, m)
		connected += doc_flag(m, "connected");
	if (ranks)
		table_cell(t, "%u/%" PRIu64, connected, world);
	else
		table_cell(t, "%" PRIu64, world);
}

static void step_cell(struct table *t, const json_t *c)
{
	if (c)
		table_cell(t, "%" PRIu64, doc_number(c, "step"));
	else
		table_cell(t, "-");
}

static int print_jobs(const json_t *doc)
{
	struct table *t = table_new("JOB UID> EPOCH> RANKS> COMMITTED> AGE> ON-DISK> CHECKPOINTS>");
	char age[TEXT_MAX];
	json_t *job;
	size_t i;

	if (json_array_size(json_object_get(doc, "jobs")) == 0 &&
	    !json_is_false(json_object_get(doc, "ready")))
		say("no jobs");
	json_array_foreach(json_object_get(doc, "jobs"), i, job) {
		const json_t *committed = newest(job, "state", "committed");

		table_cell(t, "%s", doc_text(job, "job"));
		if (json_is_integer(json_object_get(job, "uid")))
			table_cell(t, "%" PRIu64, doc_number(job, "uid"));
		else
			table_cell(t, "-");
		table_cell(t, "%" PRIu64, doc_number(json_object_get(job, "epoch"), "number"));
		ranks_cell(t, job);
		step_cell(t, committed);
		table_cell(t, "%s",
			   text_age(age, committed ? doc_number(committed, "time_ns") : 0));
		step_cell(t, newest(job, "disk", "durable"));
		table_cell(t, "%zu", json_array_size(json_object_get(job, "checkpoints")));
	}
	return table_end(t);
}

/* What ckptd's failure detector is blind to. */
static void print_blind(const json_t *doc)
{
	json_t *c;
	size_t i;

	json_array_foreach(json_object_get(doc, "collectors"), i, c)
	{
		if (!doc_flag(c, "works"))
			say("not watched: %s (%s)", doc_text(c, "name"), doc_text(c, "text"));
	}
}

static void print_notes(const json_t *job, bool all)
{
	const json_t *aborted = json_object_get(job, "aborted");
	size_t i, n = json_array_size(aborted);
	const char *name = doc_text(job, "job");
	json_t *o;

	json_array_foreach(aborted, i, o)
		if (all || i + ABORTS_SHOWN >= n)
			say("%s: step %" PRIu64 " of epoch %" PRIu64 " was aborted: %s", name,
			    doc_number(o, "step"), doc_number(o, "epoch"), doc_text(o, "reason"));
	if (!all && n > ABORTS_SHOWN)
		say("%s: %zu aborted before these (-v shows them)", name, n - ABORTS_SHOWN);
	if (doc_number(job, "lost"))
		say("%s: %" PRIu64 " committed %s that were not, or not whole, on disk, or are "
		    "damaged there",
		    name, doc_number(job, "lost"),
		    doc_number(job, "lost") == 1 ? "checkpoint was lost" : "checkpoints were lost");
	json_array_foreach(json_object_get(job, "leftovers"), i, o)
		if (all)
			say("%s: %s: %s", name, doc_text(o, "path"), doc_text(o, "reason"));
}

static void print_epoch(const json_t *job)
{
	const json_t *p = json_object_get(job, "epoch");
	const json_t *base = json_object_get(p, "base_step");
	char text[TEXT_MAX] = "none";

	if (json_is_integer(base))
		snprintf(text, sizeof(text), "step %" JSON_INTEGER_FORMAT,
			 json_integer_value(base));
	say("%s", "");
	say("job '%s', id %s, uid %" PRIu64 ", log of %" PRIu64 " record%s, term %" PRIu64,
	    doc_text(job, "job"), doc_text(job, "id"), doc_number(job, "uid"),
	    doc_number(job, "log_records"), plural(doc_number(job, "log_records")),
	    doc_number(job, "term"));
	say("epoch %" PRIu64 " of run '%s', %s; base: %s", doc_number(p, "number"),
	    doc_text(p, "run_id"), doc_text(p, "reason"), text);
}

/* What the rank says of itself: the last step done, where it is and how long. */
static void beats_cells(struct table *t, const json_t *beats)
{
	const char *phase = json_string_value(json_object_get(beats, "phase"));

	if (json_is_integer(json_object_get(beats, "step")))
		table_cell(t, "%" PRIu64, doc_number(beats, "step"));
	else
		table_cell(t, "-");
	if (phase)
		table_cell(t, "%s, %" PRIu64 " s", phase,
			   doc_number(beats, "phase_ns") / 1000000000);
	else
		table_cell(t, "-");
}

static int print_ranks(const json_t *job)
{
	struct table *t;
	json_t *o;
	size_t i;

	if (json_array_size(json_object_get(job, "ranks")) == 0)
		return 0;
	t = table_new("RANK> PID> PROCESS SESSION SLOTS CREDIT EPOCH> STEP> PHASE");
	json_array_foreach(json_object_get(job, "ranks"), i, o) {
		table_cell(t, "%" PRIu64, doc_number(o, "rank"));
		table_cell(t, "%" PRIu64, doc_number(o, "pid"));
		table_cell(t, "%s", doc_flag(o, "alive") ? "alive" : "ended");
		table_cell(t, "%s", doc_flag(o, "connected") ? "connected" : "away");
		table_cell(t, "%s", doc_flag(o, "prepared") ? "ready" : "none");
		table_cell(t, "%s", doc_flag(o, "credit") ? "yes" : "no");
		table_cell(t, "%" PRIu64, doc_number(o, "epoch"));
		beats_cells(t, json_object_get(o, "beats"));
	}
	return table_end(t);
}

static int print_slots(const json_t *job)
{
	struct table *t;
	char size[TEXT_MAX];
	json_t *o;
	size_t i;

	if (json_array_size(json_object_get(job, "slots")) == 0)
		return 0;
	t = table_new("SLOT> RANK> PID> SIZE> STATE");
	json_array_foreach(json_object_get(job, "slots"), i, o) {
		table_cell(t, "%" PRIu64, doc_number(o, "slot"));
		table_cell(t, "%" PRIu64, doc_number(o, "rank"));
		table_cell(t, "%" PRIu64, doc_number(o, "pid"));
		table_cell(t, "%s", text_bytes(size, doc_number(o, "bytes")));
		table_cell(t, "%s", doc_text(o, "state"));
	}
	return table_end(t);
}

static int print_status(const struct ctl *c, const json_t *doc, const json_t *problems)
{
	json_t *jobs = json_object_get(doc, "jobs"), *job, *p;
	bool all = c->talk > 0 || c->n_args > 0;
	size_t i;
	int r;

	json_array_foreach(problems, i, p) say("PROBLEM: %s", json_string_value(p));
	if (json_array_size(problems))
		putchar('\n');
	print_node(doc);
	putchar('\n');
	r = print_jobs(doc);
	json_array_foreach(jobs, i, job) {
		if (all && r == 0) {
			print_epoch(job);
			r = print_ranks(job);
			if (r == 0)
				r = print_slots(job);
		}
	}
	json_array_foreach(jobs, i, job)
		print_notes(job, all);
	if (c->talk > 0)
		print_blind(doc);
	return r;
}

int verb_status(const struct ctl *c, struct err *e)
{
	json_t *doc = NULL, *problems, *job;
	int found, r = c->n_args ? status_document(c, c->args[0], &doc, e) : status_now(c, &doc, e);
	size_t i;

	if (r < 0)
		return r;
	problems = problems_of(doc);
	found = json_array_size(problems) ? EXIT_PROBLEM : EXIT_FINE;
	if (c->json) {
		json_object_set_new(doc, "problems", problems);
		print_json(doc);
		return found;
	}
	if (c->talk < 0)
		json_array_foreach(json_object_get(doc, "jobs"), i, job)
			say("%s", doc_text(job, "job"));
	else
		r = print_status(c, doc, problems);
	json_decref(problems);
	json_decref(doc);
	return r < 0 ? err_code(e, r, "print the status") : found;
}

/* ---- List ---- */

static void flags_cell(struct table *t, const json_t *c)
{
	char text[64];

	snprintf(text, sizeof(text), "%s%s%s%s%s", doc_flag(c, "latest") ? "latest " : "",
		 doc_flag(c, "base") ? "base " : "", doc_flag(c, "pinned") ? "pinned " : "",
		 doc_flag(c, "suspect") ? "damaged " : "",
		 doc_flag(c, "doubted") ? "doubted " : "");
	if (text[0])
		text[strlen(text) - 1] = '\0';
	table_cell(t, "%s", text);
}

static void list_row(struct table *t, const struct ctl *ctl, const char *label, const json_t *c)
{
	const json_t *memory = json_object_get(c, "memory");
	char text[TEXT_MAX];

	table_cell(t, "%s", label);
	table_cell(t, "%" PRIu64, doc_number(c, "step"));
	table_cell(t, "%s", ctl->talk > 0 ? doc_text(c, "attempt")
					  : text_short(text, doc_text(c, "attempt")));
	table_cell(t, "%" PRIu64, doc_number(c, "epoch"));
	table_cell(t, "%s", doc_text(c, "state"));
	table_cell(t, "%s", !memory ? "?" : json_is_true(memory) ? "yes" : "no");
	table_cell(t, "%s", doc_disk_word(c));
	table_cell(t, "%s", doc_is(c, "state", "committed") ? doc_text(c, "trust") : "");
	table_cell(t, "%" PRIu64, doc_number(c, "world"));
	table_cell(t, "%s", text_bytes(text, doc_number(c, "bytes")));
	table_cell(t, "%s", text_age(text, doc_number(c, "time_ns")));
	flags_cell(t, c);
}

/* What names it to other verbs; the job too where more than one is listed. */
static void list_name(bool one, const char *label, const json_t *c)
{
	if (one)
		say("%" PRIu64 ".%s", doc_number(c, "step"), doc_text(c, "attempt"));
	else
		say("%s %" PRIu64 ".%s", label, doc_number(c, "step"), doc_text(c, "attempt"));
}

static int print_list(const struct ctl *c, const json_t *doc)
{
	struct table *t = table_new("JOB STEP> ATTEMPT EPOCH> STATE MEMORY DISK TRUST RANKS> SIZE> "
				    "AGE> NOTES");
	bool several = job_label_several(json_object_get(doc, "jobs"));
	char label[JOB_LABEL_MAX];
	json_t *job, *o;
	size_t i, k, n = 0;

	json_array_foreach(json_object_get(doc, "jobs"), i, job) {
		job_label(label, job, several);
		json_array_foreach(json_object_get(job, "checkpoints"), k, o) {
			if (c->talk < 0)
				list_name(c->n_args && !several, label, o);
			else
				list_row(t, c, label, o);
			n++;
		}
	}
	if (n == 0 && c->talk >= 0)
		say("no checkpoints");
	return c->talk < 0 ? table_drop(t) : table_end(t);
}

/* Only what a list is about. */
static json_t *list_document(const json_t *doc)
{
	static const char *const keys[] = {"job",	  "id",	       "uid",
					   "checkpoints", "log_error", "unread"};
	json_t *jobs = json_array(), *job;
	size_t i;

	json_array_foreach(json_object_get(doc, "jobs"), i, job) {
		json_t *o = json_object();

		for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
			if (json_object_get(job, keys[k]))
				json_object_set(o, keys[k], json_object_get(job, keys[k]));
		json_array_append_new(jobs, o);
	}
	return json_pack("{s:i, s:O, s:o}", "schema", 2, "source", json_object_get(doc, "source"),
			 "jobs", jobs);
}

/* Listing is no check, but what cannot be used is not passed over in silence. */
static int list_problems(const json_t *doc, bool tell)
{
	json_t *list = json_array(), *job, *c, *p;
	size_t i, k, n;

	json_array_foreach(json_object_get(doc, "jobs"), i, job) {
		unread_problem(job, list);
		json_array_foreach(json_object_get(job, "problems"), k, c)
		{
			if (doc_is(c, "problem", "lost"))
				add_problem(list, "job '%s': %s", doc_text(job, "job"),
					    doc_text(c, "why"));
		}
		json_array_foreach(json_object_get(job, "checkpoints"), k, c)
			checkpoint_problems(job, c, list);
	}
	json_array_foreach(list, i, p)
		if (tell)
			complain("%s", json_string_value(p));
	n = json_array_size(list);
	json_decref(list);
	return n ? EXIT_PROBLEM : EXIT_FINE;
}

int verb_list(const struct ctl *c, struct err *e)
{
	json_t *doc = NULL;
	int found, r = status_document(c, c->n_args ? c->args[0] : NULL, &doc, e);

	if (r < 0)
		return r;
	if (c->json)
		print_json(list_document(doc));
	else
		r = print_list(c, doc);
	found = list_problems(doc, !c->json && c->talk >= 0);
	json_decref(doc);
	return r < 0 ? err_code(e, r, "print the list") : found;
}
