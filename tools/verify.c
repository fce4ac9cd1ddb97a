/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - `ckptctl verify`: everything on disk read again and compared with what it should be.
 *
 *   log          its records chain and keep the rules (history_load)
 *   COMMIT       that it is there where the log knows of it; its digest, the root over its lines;
 *                every field as in the log; its copy of record 0 is the log's
 *   layout       its object and each declaration in it: present, and what their names say
 *   shard file   header and footer as COMMIT says, rank table as the root's line says, declaration
 *                as the layout says, every leaf as the rank table says (I2)
 *   all files    every element of every tensor is stored in one of them (storage/holes.c)
 *
 * What goes away while it is looked at has expired and is no problem. One thread but for
 * verify_shards.c.
 */
#include <config.h>

#include "tools/verify.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/declaration.h"
#include "storage/holes.h"
#include "storage/layout_file.h"
#include "tools/document.h"
#include "tools/plural.h"
#include "tools/print.h"

/* A layout and what is wrong with it; found once, said of each checkpoint that has it. */
struct layout {
	struct digest digest;
	struct digest *ranks; /* NULL: it cannot be read */
	uint32_t world;
	struct err why;       /* code 0: it is good */
};

/* A checkpoint that was asked for. */
struct target {
	const struct data_job *job;
	const struct data_checkpoint *checkpoint;
	size_t layout;     /* in layouts; valid if reads */
	bool reads;        /* its shards are tasks [first_task, first_task + world) */
	size_t first_task;
};

struct verify {
	const struct ctl *ctl;
	struct data data;
	struct target *targets;
	size_t n_targets;
	struct layout *layouts;
	size_t n_layouts;
	struct shard_tasks tasks;
	double seconds;
	uint64_t problems, unread; /* unread: could not be looked at */
};

static void verify_fini(struct verify *v)
{
	for (size_t i = 0; i < v->n_layouts; i++)
		alloc_free(v->layouts[i].ranks);
	alloc_free(v->layouts);
	shard_tasks_free(&v->tasks);
	alloc_free(v->targets);
	data_close(&v->data);
}

/* ---- What is to be read ---- */

static bool is_meant(const struct data_checkpoint *c, const struct ctl *ctl, uint64_t step,
		     const char *hex)
{
	char id[ID_TEXT_MAX];

	if (ctl->min_trust && !trust_reaches(c->logged ? c->logged->trust : TRUST_LATEST,
					     (enum trust_level)ctl->min_trust))
		return false;
	hex_format(id, c->id.attempt.b, sizeof(c->id.attempt.b));
	return ctl->n_args < 2 || (c->id.step == step && strncmp(id, hex, strlen(hex)) == 0);
}

static int none_is_trusted(const struct verify *v, const char *spec, struct err *e)
{
	const char *job = v->ctl->n_args ? v->ctl->args[0] : "JOB";
	const char *word = trust_word((uint32_t)v->ctl->min_trust);
	char who[300] = "no job";

	if (v->ctl->n_args)
		snprintf(who, sizeof(who), "job '%.200s'", job);
	return err_set(e, CKPT_ENOTFOUND,
		       "%s has %s%s checkpoint%s%.80s on disk, in '%.150s': 'ckptctl trust %s' "
		       "shows what they are",
		       who, v->ctl->n_args ? "no " : "a ", word, spec ? " of step " : "",
		       spec ? spec : "", v->data.path, job);
}

static int choose(struct verify *v, struct err *e)
{
	const char *spec = v->ctl->n_args > 1 ? v->ctl->args[1] : NULL, *hex = "";
	uint64_t step = 0;
	size_t n = 0;
	int r = spec ? spec_parse(spec, &step, &hex, e) : 0;

	if (r < 0)
		return r;
	for (size_t i = 0; i < v->data.n_jobs; i++)
		n += v->data.jobs[i].n_checkpoints;
	v->targets = alloc_array(n, sizeof(*v->targets));
	v->layouts = alloc_array(n, sizeof(*v->layouts));
	if (!v->targets || !v->layouts)
		return err_code(e, -ENOMEM, "verify %zu checkpoint%s", n, plural(n));
	for (size_t i = 0; i < v->data.n_jobs; i++) {
		const struct data_job *j = &v->data.jobs[i];

		for (size_t k = 0; k < j->n_checkpoints; k++)
			if (j->checkpoints[k].state != FILES_LEFTOVER &&
			    j->checkpoints[k].state != FILES_EXPIRING &&
			    is_meant(&j->checkpoints[k], v->ctl, step, hex))
				v->targets[v->n_targets++] = (struct target){
					.job = j, .checkpoint = &j->checkpoints[k] };
	}
	if (v->ctl->min_trust && v->n_targets == 0)
		return none_is_trusted(v, spec, e);
	if (spec && v->n_targets == 0)
		return err_set(e, CKPT_ENOTFOUND,
			       "job '%s' has no checkpoint %s in '%.150s': 'ckptctl list %s "
			       "--data %.150s' shows what it has there",
			       v->ctl->args[0], spec, v->data.path, v->ctl->args[0], v->data.path);
	return 0;
}

/* ---- Layouts ---- */

static int check_declaration(struct store *s, const struct digest *d, struct err *e)
{
	CLEANUP_FREE void *bytes = NULL;
	struct declaration view;
	size_t len = 0;
	int r = store_get_object(s, "declarations", d, DECLARATION_BYTES_MAX, &bytes, &len, e);

	return r < 0 ? r : declaration_open(bytes, len, &view, e);
}

static bool is_first(const struct digest *d, uint32_t i)
{
	for (uint32_t k = 0; k < i; k++)
		if (digest_equal(&d[k], &d[i]))
			return false;
	return true;
}

static void check_layout(struct verify *v, struct layout *l)
{
	struct store *s = &v->data.store;
	struct err e = { 0 };
	char hex[ID_TEXT_MAX];
	int r = layout_file_get(s, &l->digest, &l->ranks, &l->world, &e);

	hex_format(hex, l->digest.b, sizeof(l->digest.b));
	for (uint32_t i = 0; r == 0 && i < l->world; i++) {
		if (!is_first(l->ranks, i))
			continue;
		r = check_declaration(s, &l->ranks[i], &e);
		if (r < 0)
			err_wrap(&e, r, "the declaration of rank %u", i);
	}
	if (r < 0)
		err_set(&l->why, r, "its layout %s: %.300s", hex, e.text);
}

static size_t layout_of(struct verify *v, const struct digest *d)
{
	size_t i = 0;

	while (i < v->n_layouts && !digest_equal(&v->layouts[i].digest, d))
		i++;
	if (i == v->n_layouts) {
		v->layouts[i] = (struct layout){ .digest = *d };
		check_layout(v, &v->layouts[i]);
		v->n_layouts++;
	}
	return i;
}

/* ---- Tasks ---- */

static void add_tasks(struct verify *v, struct target *t)
{
	const struct commit_file *c = &t->checkpoint->commit;
	const struct layout *l = &v->layouts[t->layout];

	t->first_task = v->tasks.n;
	t->reads = true;
	for (uint32_t i = 0; i < c->world; i++) {
		struct shard_task *task = &v->tasks.at[v->tasks.n++];

		task->id = &t->checkpoint->id;
		task->footer = &c->shards[i];
		task->declaration = l->ranks && l->world == c->world ? &l->ranks[i] : NULL;
		task->bytes = c->shards[i].footer_offset - DISK_ALIGN;
		v->tasks.bytes += task->bytes;
	}
}

static int plan(struct verify *v, struct err *e)
{
	size_t n = 0;

	for (size_t i = 0; i < v->n_targets; i++)
		if (v->targets[i].checkpoint->has_commit)
			n += v->targets[i].checkpoint->commit.world;
	v->tasks.store = &v->data.store;
	v->tasks.at = alloc_array(n, sizeof(*v->tasks.at));
	if (!v->tasks.at)
		return err_code(e, -ENOMEM, "verify %zu file%s", n, plural(n));
	for (size_t i = 0; i < v->n_targets; i++) {
		struct target *t = &v->targets[i];

		if (!t->checkpoint->has_commit)
			continue;
		t->layout = layout_of(v, &t->checkpoint->commit.layout);
		add_tasks(v, t);
	}
	assert(v->tasks.n == n);
	return 0;
}

/* ---- The document ---- */

static void add_sentence(json_t *list, const char *text)
{
	json_array_append_new(list, doc_name(text, strlen(text)));
}

/* A problem, or something that could not be looked at. */
static void count(struct verify *v, int code)
{
	if (is_damage(code))
		v->problems++;
	else
		v->unread++;
}

static bool same_job(const struct record_job *a, const struct record_job *b)
{
	return strcmp(a->name, b->name) == 0 && a->uid == b->uid &&
	       digest_equal(&a->token, &b->token);
}

static void check_job_record(struct verify *v, const struct target *t, json_t *problems)
{
	const struct commit_file *c = &t->checkpoint->commit;
	const struct history *h = &t->job->history;
	struct record r;
	struct err e = { 0 };
	int rc = record_decode(c->job_record, c->job_record_len, &r, NULL, &e);

	if (rc == 0 && (r.type != RECORD_JOB || !job_id_equal(&r.job.id, &t->job->id)))
		rc = err_set(&e, CKPT_ECORRUPT, "it is of another job");
	else if (rc == 0 && t->checkpoint->logged && c->incarnation == h->incarnation &&
		 !same_job(&r.job, &h->job))
		rc = err_set(&e, CKPT_ECORRUPT,
			     "it has another name, owner or token than the job's log");
	if (rc == 0)
		return;
	err_wrap(&e, rc, "COMMIT's copy of the job's record");
	add_sentence(problems, e.text);
	count(v, rc);
}

static void check_its_layout(struct verify *v, const struct target *t, json_t *problems)
{
	const struct layout *l = &v->layouts[t->layout];
	struct err e = l->why;

	if (e.code == 0 && l->world != t->checkpoint->commit.world)
		err_set(&e, CKPT_ECORRUPT,
			"its layout is of %" PRIu32 " rank%s, its COMMIT of %" PRIu32, l->world,
			plural(l->world), t->checkpoint->commit.world);
	if (e.code == 0)
		return;
	add_sentence(problems, e.text);
	count(v, e.code);
}

static const char *shards_json(struct verify *v, const struct target *t, json_t *problems,
			       uint64_t *ret_bad)
{
	const char *result = "good";

	for (uint32_t i = 0; i < t->checkpoint->commit.world; i++) {
		const struct shard_task *s = &v->tasks.at[t->first_task + i];
		uint64_t kept = s->n_sentences < SENTENCES_MAX ? s->n_sentences : SENTENCES_MAX;
		char more[100];

		if (s->expired)
			return "expired";
		if (s->code < 0)
			count(v, s->code);
		v->problems += s->bad_leaves;
		*ret_bad += s->bad_leaves;
		for (uint64_t k = 0; k < kept; k++)
			add_sentence(problems, s->sentences[k] ? s->sentences[k] : "out of memory");
		if (s->n_sentences > kept) {
			snprintf(more, sizeof(more), "and %" PRIu64 " more of rank %" PRIu32,
				 s->n_sentences - kept, i);
			add_sentence(problems, more);
		}
	}
	return result;
}

struct found_holes {
	struct verify *v;
	json_t *problems;
	uint64_t n;
};

static void add_hole(void *arg, const char *sentence)
{
	struct found_holes *f = arg;

	f->v->problems++;
	if (f->n++ < SENTENCES_MAX)
		add_sentence(f->problems, sentence);
}

/* Of files that are as they should be, each for itself. */
static void check_holes(struct verify *v, const struct target *t, json_t *problems)
{
	const struct commit_file *c = &t->checkpoint->commit;
	struct found_holes f = {.v = v, .problems = problems};
	bool partial = false, whole = true;
	struct err e = {0};
	int r;

	for (uint32_t i = 0; i < c->world; i++) {
		partial = partial || v->tasks.at[t->first_task + i].partial;
		whole = whole && v->tasks.at[t->first_task + i].code == 0;
	}
	if (!partial || !whole)
		return;
	r = holes_find(&v->data.store, &t->checkpoint->id, c, add_hole, &f, &e);
	if (r == 0)
		return;
	add_sentence(problems, e.text);
	count(v, r);
}

static json_t *target_json(struct verify *v, const struct target *t)
{
	const struct data_checkpoint *c = t->checkpoint;
	uint64_t before = v->problems, unread = v->unread, bad = 0;
	const char *result = "good";
	json_t *problems = json_array();

	if (t->reads)
		result = shards_json(v, t, problems, &bad);
	if (strcmp(result, "good") == 0) {
		if (c->why.code && !c->rank_gone) { /* of that its shard has said it */
			add_sentence(problems, c->why.text);
			count(v, c->why.code);
		}
		if (t->reads) {
			check_its_layout(v, t, problems);
			check_job_record(v, t, problems);
			check_holes(v, t, problems);
		}
		result = v->problems > before ? "damaged" : v->unread > unread ? "unread" : "good";
	} else {
		json_array_clear(problems);
		v->problems = before;
		v->unread = unread;
	}
	return json_pack("{s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o}", "job", t->job->name, "id",
			 doc_hex(t->job->id.b, 16), "step", doc_count(c->id.step), "attempt",
			 doc_hex(c->id.attempt.b, 16), "result", result, "world",
			 doc_count(c->has_commit ? c->commit.world : 0), "bytes",
			 doc_count(c->has_commit ? c->commit.bytes : 0), "bad_leaves",
			 doc_count(bad), "problems", problems);
}

static json_t *log_json(struct verify *v, const struct data_job *j)
{
	json_t *o =
		json_pack("{s:s, s:o, s:o, s:s, s:o}", "job", j->name, "id", doc_hex(j->id.b, 16),
			  "records", doc_count(j->history.next_n), "result", "good", "problem",
			  doc_name(j->log_err.text, j->log_err.code ? strlen(j->log_err.text) : 0));

	if (j->log_err.code) {
		json_object_set_new(o, "result",
				    json_string(is_damage(j->log_err.code) ? "damaged" : "unread"));
		count(v, j->log_err.code);
	}
	return o;
}

static int make_document(struct verify *v, json_t **ret, struct err *e)
{
	json_t *list = json_array(), *logs = json_array(), *leftovers = json_array();
	int r = leftovers_add(&v->data, v->ctl->n_args == 0, leftovers, e);

	if (r < 0) {
		json_decref(list);
		json_decref(logs);
		json_decref(leftovers);
		return r;
	}
	for (size_t i = 0; i < v->n_targets; i++)
		json_array_append_new(list, target_json(v, &v->targets[i]));
	for (size_t i = 0; i < v->data.n_jobs; i++)
		json_array_append_new(logs, log_json(v, &v->data.jobs[i]));
	*ret = json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "schema", 2,
			 "source", "files", "data", doc_name(v->data.path, strlen(v->data.path)),
			 "checkpoints", list, "logs", logs, "leftovers", leftovers, "problems",
			 doc_count(v->problems), "unread", doc_count(v->unread), "bytes_read",
			 doc_count(v->tasks.bytes), "seconds", v->seconds);
	return 0;
}

/* ---- For people ---- */

static void print_verified(const struct ctl *c, const json_t *o)
{
	char attempt[TEXT_MAX], size[TEXT_MAX];
	json_t *p;
	size_t i;

	if (c->talk >= 0 || !doc_is(o, "result", "good"))
		say("%-8s %s %" PRIu64 ".%s, %" PRIu64 " %s, %s", doc_text(o, "result"),
		    doc_text(o, "job"), doc_number(o, "step"),
		    text_short(attempt, doc_text(o, "attempt")), doc_number(o, "world"),
		    doc_number(o, "world") == 1 ? "rank" : "ranks",
		    text_bytes(size, doc_number(o, "bytes")));
	json_array_foreach(json_object_get(o, "problems"), i, p)
		say("         %s", json_string_value(p));
}

static void print_verify(const struct ctl *c, const json_t *doc)
{
	double seconds = json_real_value(json_object_get(doc, "seconds"));
	uint64_t bytes = doc_number(doc, "bytes_read");
	char a[TEXT_MAX], b[TEXT_MAX];
	json_t *o;
	size_t i;

	json_array_foreach(json_object_get(doc, "checkpoints"), i, o)
		print_verified(c, o);
	json_array_foreach(json_object_get(doc, "logs"), i, o) {
		if (c->talk >= 0 || !doc_is(o, "result", "good"))
			say("%-8s log of %s, %" PRIu64 " record%s", doc_text(o, "result"),
			    doc_text(o, "job"), doc_number(o, "records"),
			    plural(doc_number(o, "records")));
		if (!doc_is(o, "result", "good"))
			say("         %s", doc_text(o, "problem"));
	}
	json_array_foreach(json_object_get(doc, "leftovers"), i, o)
		if (c->talk >= 0)
			say("leftover %s: %s", doc_text(o, "path"), doc_text(o, "reason"));
	if (c->talk < 0)
		return;
	say("%s read from %s in %.1f s (%s/s), problems: %" PRIu64 "%s", text_bytes(a, bytes),
	    doc_text(doc, "data"), seconds,
	    text_bytes(b, seconds > 0 ? (uint64_t)((double)bytes / seconds) : 0),
	    doc_number(doc, "problems"),
	    doc_number(doc, "unread") ? "; some could not be looked at" : "");
}

static uint32_t readers(const struct ctl *c)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return c->jobs ? c->jobs : n > 0 ? (uint32_t)n : 1;
}

int verb_verify(const struct ctl *c, struct err *e)
{
	struct verify v = { .ctl = c };
	json_t *doc = NULL;
	int r = data_open(c->data, &v.data, e), found;

	if (r == 0)
		r = data_read_jobs(&v.data, c->n_args ? c->args[0] : NULL, e);
	if (r == 0)
		r = choose(&v, e);
	if (r == 0)
		r = plan(&v, e);
	if (r == 0)
		r = shard_tasks_run(&v.tasks, readers(c), c->talk >= 0, &v.seconds, e);
	if (r == 0)
		r = make_document(&v, &doc, e);
	found = v.problems ? EXIT_PROBLEM : v.unread ? EXIT_UNKNOWN : EXIT_FINE;
	verify_fini(&v);
	if (r == -EIO || r == CKPT_EIO) { /* says nothing about the checkpoints */
		complain("%s", e->text);
		return EXIT_UNKNOWN;
	}
	if (r < 0)
		return r;
	if (c->json) {
		print_json(doc);
		return found;
	}
	print_verify(c, doc);
	json_decref(doc);
	return found;
}
