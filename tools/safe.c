/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safe.c - `ckptctl safe JOB`: what of a job survives the end of its processes, of ckptd, of the
 * node, and the loss of power, if it came now.
 *
 * Said from the document of `status` alone, and cautiously: what is sealed and not committed yet
 * counts as saved and as surviving nothing, though a restart may commit it.
 */
#include <config.h>

#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

#include "base/bytes.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/print.h"

/* Exit statuses of its own, beside those of all verbs. */
enum { EXIT_ONLY_MEMORY = 3, EXIT_NOTHING_DURABLE = 4 };

struct safety {
	const json_t *saved;  /* the newest that all ranks have saved; NULL: none */
	const json_t *memory; /* the newest that can be restored: committed, in memory or on disk */
	const json_t *durable; /* the newest on disk */
	bool has_now, beats;
	bool ended;   /* the rank that said so sends no beats any more */
	uint64_t now; /* the newest step that a rank says it has done; without beats, saves */
	bool lost;    /* newer ones than these were committed and are lost */
	bool kept;    /* memory outlives ckptd */
	bool shared;  /* the data folder is on a network's file system */
	bool in_memory; /* it is on a file system of memory: no disk has anything of it */
	bool away;      /* its name does not lead to what ckptd holds open */
	bool job_away;  /* of that folder the job's own is gone */
	const char *data;
};

static bool is_sealed(const json_t *c)
{
	return doc_is(c, "state", "committed") || doc_is(c, "state", "committing") ||
	       (doc_is(c, "state", "open") && doc_number(c, "world") > 0 &&
		doc_number(c, "ranks_sealed") == doc_number(c, "world"));
}

static bool is_usable(const json_t *c)
{
	return doc_is(c, "state", "committed") && !doc_is(c, "trust", "bad");
}

static bool is_durable(const struct safety *s, const json_t *c)
{
	return !s->away && !s->job_away && is_usable(c) && doc_is(c, "disk", "durable") &&
	       !doc_flag(c, "suspect");
}

/* The next launch could get it. */
static bool is_there(const struct safety *s, const json_t *c)
{
	return is_usable(c) && (doc_flag(c, "memory") || is_durable(s, c));
}

static void look_at_folder(struct safety *s)
{
	static const uint32_t shared[] = {
		0x6969,     /* NFS */
		0xfe534d42, /* SMB2 */
		0xff534d42, /* CIFS */
		0x00c36400, /* Ceph */
		0x0bd00bd0, /* Lustre */
		0x47504653, /* GPFS */
		0x19830326, /* BeeGFS */
	};
	struct statfs fs;
	uint32_t type;

	if (statfs(s->data, &fs) < 0)
		return;
	type = (uint32_t)fs.f_type;
	for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
		s->shared = s->shared || type == shared[i];
	s->in_memory = type == TMPFS_MAGIC || type == RAMFS_MAGIC;
}

/* Checkpoints come newest first. */
static void find(const json_t *doc, const json_t *job, struct safety *s)
{
	const json_t *called = json_object_get(json_object_get(job, "saves"), "called");
	const json_t *done = json_object_get(json_object_get(job, "saves"), "done");
	json_t *c, *m;
	size_t i;

	*s = (struct safety){.kept = json_is_object(json_object_get(doc, "fd_store")),
			     .data = doc_text(doc, "data"),
			     .away = doc_text(doc, "data_error")[0],
			     .job_away = doc_flag(job, "folder_gone")};
	look_at_folder(s);
	json_array_foreach(json_object_get(job, "checkpoints"), i, c)
	{
		if (!s->saved && is_sealed(c) &&
		    (!doc_is(c, "state", "committed") || is_there(s, c)))
			s->saved = c;
		if (!s->memory && is_there(s, c))
			s->memory = c;
		if (!s->durable && is_durable(s, c))
			s->durable = c;
	}
	json_array_foreach(json_object_get(job, "ranks"), i, m)
	{
		const json_t *step = json_object_get(json_object_get(m, "beats"), "step");

		if (!json_is_integer(step))
			continue;
		s->now = max_u64(s->now, (uint64_t)json_integer_value(step));
		s->has_now = s->beats = true;
	}
	json_array_foreach(json_object_get(job, "problems"), i, m)
	{
		s->lost = s->lost || doc_is(m, "problem", "lost");
	}
	if (!s->beats && json_is_integer(called)) {
		s->now = (uint64_t)json_integer_value(called);
		s->has_now = true;
	}
	if (!s->beats && json_is_integer(done) &&
	    (!s->has_now || (uint64_t)json_integer_value(done) > s->now)) {
		s->now = (uint64_t)json_integer_value(done);
		s->has_now = s->ended = true;
	}
}

static const char *const events[] = {"process", "ckptd", "node", "power"};

static const json_t *survives(const struct safety *s, size_t event)
{
	switch (event) {
	case 0:
		return s->memory;
	case 1:
		return s->kept ? s->memory : s->durable;
	case 2:
		return s->shared ? s->durable : NULL;
	default:
		return s->in_memory ? NULL : s->durable;
	}
}

static int code_of(const struct safety *s)
{
	if (!s->durable || s->in_memory)
		return EXIT_NOTHING_DURABLE;
	if (s->saved != s->durable)
		return EXIT_ONLY_MEMORY;
	return s->lost ? EXIT_PROBLEM : EXIT_FINE;
}

static json_t *step_json(const json_t *c, const char *key)
{
	return c ? json_copy(json_object_get(c, key)) : json_null();
}

static json_t *safe_json(const json_t *job, const struct safety *s)
{
	json_t *list = json_array();

	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		const json_t *c = survives(s, i);
		uint64_t step = c ? doc_number(c, "step") : 0;

		json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o}", "if", events[i],
						      "step", step_json(c, "step"), "time_ns",
						      step_json(c, "time_ns"), "steps_lost",
						      c && s->has_now && s->now >= step
							      ? doc_count(s->now - step)
							      : json_null()));
	}
	return json_pack("{s:i, s:s, s:O, s:O, s:o, s:o, s:b, s:b, s:b, s:s, s:o, s:i}", "schema",
			 2, "source", "daemon", "job", json_object_get(job, "job"), "id",
			 json_object_get(job, "id"), "now",
			 s->has_now ? doc_count(s->now) : json_null(), "saved",
			 step_json(s->saved, "step"), "memory_kept", (int)s->kept, "shared",
			 (int)s->shared, "data_in_memory", (int)s->in_memory, "data_away",
			 s->away       ? "folder"
			 : s->job_away ? "job"
				       : "",
			 "survives", list, "result", code_of(s));
}

static const char *where(const struct safety *s, size_t event, const json_t *c)
{
	const char *none = s->away        ? "no disk: the data folder is away"
			   : s->job_away  ? "no disk: the job's folder is away"
			   : s->in_memory ? "no disk: the data folder is in memory"
					  : NULL;

	if ((event == 0 || (event == 1 && s->kept)) && c && !doc_flag(c, "memory"))
		return "disk";
	if (event == 0)
		return "memory of this node";
	if (event == 1 && s->kept)
		return "memory that outlives ckptd (fd store)";
	if (event == 2 && !s->shared)
		return "no copies on other nodes";
	if (none && (event == 3 || s->away || s->job_away))
		return none;
	if (event == 1)
		return "disk: no fd store keeps the memory";
	return event == 2 ? "disk, which the network has" : "disk";
}

static void print_row(struct table *t, const struct safety *s, size_t event)
{
	static const char *const what[] = {"a process of the job ends", "ckptd ends",
					   "the node is lost", "the power goes"};
	const json_t *c = survives(s, event);
	char age[TEXT_MAX];

	table_cell(t, "%s", what[event]);
	if (c) {
		table_cell(t, "%" PRIu64, doc_number(c, "step"));
		table_cell(t, "%s", text_age(age, doc_number(c, "time_ns")));
	} else {
		table_cell(t, "none");
		table_cell(t, "-");
	}
	if (c && s->has_now && s->now >= doc_number(c, "step"))
		table_cell(t, "%" PRIu64, s->now - doc_number(c, "step"));
	else
		table_cell(t, c ? "?" : "all");
	table_cell(t, "%s", where(s, event, c));
}

/* Committed, and no launch would get it, though nothing newer is there. */
static void print_unusable(const json_t *job, const struct safety *s)
{
	json_t *c, *p;
	size_t i;

	json_array_foreach(json_object_get(job, "checkpoints"), i, c)
	{
		if ((s->memory && c == s->memory) || s->away || s->job_away)
			break;
		if (!doc_is(c, "state", "committed") || doc_is(c, "disk", "lost"))
			continue;
		say("step %" PRIu64 " is not counted, as no launch would get it: it is %s",
		    doc_number(c, "step"),
		    doc_is(c, "trust", "bad") ? "said to be bad ('ckptctl trust')"
					      : "damaged or not whole ('ckptctl verify')");
	}
	json_array_foreach(json_object_get(job, "problems"), i, p)
	{
		if (doc_is(p, "problem", "lost"))
			say("%s", doc_text(p, "why"));
	}
}

static void print_disk(const json_t *doc, const json_t *job, const struct safety *s)
{
	int code = code_of(s);

	if (s->away)
		say("nothing on disk counts: %s; do not end the job's ranks before",
		    doc_text(doc, "data_error"));
	else if (s->job_away)
		say("nothing on disk counts: the job's folder '%s/jobs/%s' is gone: put it back; "
		    "do not end the job's ranks before",
		    s->data, doc_text(job, "id"));
	else if (s->in_memory)
		say("the data folder '%s' is on a file system of memory (tmpfs), which ends with "
		    "the node: start ckptd with a folder on a disk",
		    s->data);
	else if (code == EXIT_NOTHING_DURABLE)
		say("nothing of it is on disk");
	else if (code == EXIT_ONLY_MEMORY)
		say("step %" PRIu64 " is the newest that is saved, step %" PRIu64 " the newest on "
		    "disk",
		    doc_number(s->saved, "step"), doc_number(s->durable, "step"));
	else
		say("%s is on disk: %s",
		    code == EXIT_PROBLEM ? "the newest that is left" : "the newest that is saved",
		    s->data);
}

static int print_safe(const json_t *doc, const json_t *job, const struct safety *s)
{
	const char *name = doc_text(job, "job");
	struct table *t = table_new("IF NEWEST-STEP> AGE> STEPS-LOST> WHERE");
	int r;

	if (s->has_now && s->ended)
		say("job '%s' has done step %" PRIu64 "; no rank of it sends beats now", name,
		    s->now);
	else if (s->has_now && !s->beats)
		say("job '%s' has called save for step %" PRIu64 ", and sends no beats", name,
		    s->now);
	else if (s->has_now)
		say("job '%s' has done step %" PRIu64 "%s", name, s->now,
		    s->saved ? "" : " and has saved nothing");
	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
		print_row(t, s, i);
	r = table_end(t);
	if (r < 0)
		return r;
	if (s->saved && s->saved != s->memory)
		say("step %" PRIu64
		    " is saved and not committed yet: it may be lost with any of these",
		    doc_number(s->saved, "step"));
	print_unusable(job, s);
	print_disk(doc, job, s);
	return code_of(s);
}

int verb_safe(const struct ctl *c, struct err *e)
{
	struct ctl ask = *c;
	json_t *doc = NULL, *job = NULL;
	struct safety s;
	int r;

	ask.data = NULL; /* ckptd alone knows what is in memory */
	r = status_document(&ask, c->args[0], &doc, e);
	if (r == 0)
		r = doc_only_job(doc, c->args[0], &job, e);
	if (r == 0 && (doc_text(job, "stopped")[0] || doc_text(job, "unread")[0]))
		r = err_set(e, CKPT_ESTATE, "%s: what of it survives is not known",
			    doc_text(job, "stopped")[0] ? doc_text(job, "stopped")
							: doc_text(job, "unread"));
	if (r < 0) {
		json_decref(doc);
		return r;
	}
	find(doc, job, &s);
	r = code_of(&s);
	if (c->json)
		print_json(safe_json(job, &s));
	else if (c->talk >= 0)
		r = print_safe(doc, job, &s);
	json_decref(doc);
	return r < 0 ? err_code(e, r, "print what is safe") : r;
}
