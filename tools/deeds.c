/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deeds.c - the verbs that change something: `rm`, `pin`, `unpin`, `gc`, `rebuild`; and `token`,
 * which lets somebody else do so. ckptd does all of them, since each is a record in the job's log
 * first (I4); only the index may be made anew without it, under the data folder's LOCK.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/retention.h"
#include "storage/catalog.h"
#include "model/trust.h"
#include "storage/disk_posix.h"
#include "storage/index_rocksdb.h"
#include "tools/connect.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/files.h"
#include "tools/job_name.h"
#include "tools/plural.h"
#include "tools/print.h"

/* ---- rm, pin, unpin ---- */

struct deed {
	const char *name;     /* of the verb */
	const char *done;     /* in a sentence */
	Ckpt__Admin__Verb verb;
	bool asks;            /* is it really meant? */
	uint32_t trust;       /* what is said of it */
};

static bool is_meant(const struct ctl *c, json_t *job, json_t **found, int n, struct err *e)
{
	char size[TEXT_MAX], answer[16] = "";

	if (c->yes)
		return true;
	if (!isatty(STDIN_FILENO)) {
		err_set(e, -EINVAL, "stdin is not a terminal: pass --yes to confirm");
		return false;
	}
	for (int i = 0; i < n; i++)
		fprintf(stderr, "job '%s' step %" PRIu64 ", %s\n", doc_text(job, "job"),
			doc_number(found[i], "step"),
			text_bytes(size, doc_number(found[i], "bytes")));
	fputs(n == 1 ? "remove it? [y/N] " : "remove them? [y/N] ", stderr);
	if (fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
		return true;
	err_set(e, -ECANCELED, "nothing was removed");
	return false;
}

/* ckptd removes one checkpoint of a job after the other: -EAGAIN, it is busy with another one. */
static int do_one(struct connection *conn, const struct deed *d, json_t *job, json_t *c,
		  struct err *e)
{
	struct attempt_id attempt;
	struct admin_question q = {.verb = d->verb,
				   .job = doc_text(job, "id"), /* a name is every user's */
				   .has_step = true,
				   .step = doc_number(c, "step"),
				   .attempt = &attempt,
				   .trust = d->trust};

	if (!doc_id(c, "attempt", attempt.b))
		return err_set(e, CKPT_EPROTO, "the checkpoint's id is malformed: are ckptd and "
			       "ckptctl of one version?");
	return connection_ask_again(conn, &q, NULL, e);
}

static json_t *done_json(const json_t *job, const json_t *c, int r, const struct err *e)
{
	return json_pack("{s:O, s:O, s:O, s:O, s:b, s:o}", "job", json_object_get(job, "job"), "id",
			 json_object_get(job, "id"), "step", json_object_get(c, "step"), "attempt",
			 json_object_get(c, "attempt"), "done", (int)(r == 0), "reason",
			 doc_name(e->text, r < 0 ? strlen(e->text) : 0));
}

/* One after the other: what failed does not keep the rest from being done. */
static int do_all(const struct ctl *c, const struct deed *d, json_t *job, json_t **found, int n,
		  struct err *e)
{
	struct connection *conn = NULL;
	json_t *list = json_array();
	int worst = EXIT_FINE, r = connection_open(c->socket, &conn, e);

	for (int i = 0; i < n && r == 0; i++) {
		struct err why = { 0 };
		int one = do_one(conn, d, job, found[i], &why);

		json_array_append_new(list, done_json(job, found[i], one, &why));
		if (one < 0) {
			worst = EXIT_PROBLEM;
			complain("%s step %" PRIu64 " of job '%s': %s", d->name,
				 doc_number(found[i], "step"), doc_text(job, "job"), why.text);
		} else if (!c->json && c->talk >= 0) {
			say("job '%s' step %" PRIu64 " %s%s%s", doc_text(job, "job"),
			    doc_number(found[i], "step"),
			    d->verb == CKPT__ADMIN__VERB__REMOVE && doc_is(found[i], "disk", "lost")
				    ? "is given up: its bytes were lost, and no file is removed"
				    : d->done,
			    why.text[0] ? "; " : "", why.text);
		}
	}
	connection_close(conn);
	if (r == 0 && c->json)
		print_json(json_pack("{s:i, s:s, s:s, s:O}", "schema", 2, "source", "daemon",
				     "verb", d->name, "checkpoints", list));
	json_decref(list);
	return r < 0 ? r : worst;
}

static int do_deed(const struct ctl *c, const struct deed *d, struct err *e)
{
	struct ctl ask = *c;
	json_t *doc = NULL, *job = NULL;
	CLEANUP_FREE json_t **found = NULL;
	int n = c->n_args - 1, r;

	ask.data = NULL; /* deeds are ckptd's */
	r = status_document(&ask, c->args[0], &doc, e);
	if (r < 0)
		return r;
	found = alloc_array((size_t)n, sizeof(*found));
	r = found ? doc_only_job(doc, c->args[0], &job, e)
		  : err_code(e, -ENOMEM, "%s %d checkpoint%s", d->name, n, plural(n));
	for (int i = 0; i < n && r == 0; i++)
		r = doc_find_checkpoint(job, c->args[1 + i], true, &found[i], e);
	if (r == 0 && d->asks && !is_meant(c, job, found, n, e))
		r = e->code;
	if (r == 0)
		r = do_all(c, d, job, found, n, e);
	json_decref(doc);
	return r;
}

int verb_rm(const struct ctl *c, struct err *e)
{
	const struct deed d = {"rm", "is removed from disk", CKPT__ADMIN__VERB__REMOVE, true, 0};

	if (c->all)
		return rm_whole_job(c, e);
	if (c->data)
		return err_set(e, -EINVAL,
			       "a checkpoint is removed by a record in its job's log, which the "
			       "running ckptd writes: --data is for rm-job");
	if (c->n_args < 2)
		return err_set(e, -EINVAL,
			       "usage: ckptctl rm JOB STEP[.ATTEMPT]...; a whole job goes with "
			       "'ckptctl rm-job JOB'");
	return do_deed(c, &d, e);
}

int verb_pin(const struct ctl *c, struct err *e)
{
	const struct deed d = {"pin", "is pinned", CKPT__ADMIN__VERB__PIN, false, 0};

	return do_deed(c, &d, e);
}

int verb_unpin(const struct ctl *c, struct err *e)
{
	const struct deed d = {"unpin", "is not pinned", CKPT__ADMIN__VERB__UNPIN, false, 0};

	return do_deed(c, &d, e);
}

int deed_trust(const struct ctl *c, uint32_t what, struct err *e)
{
	const struct deed d = {
		"trust", what == TRUST_BAD ? "is bad: it is kept, and not offered" : "is verified",
		CKPT__ADMIN__VERB__TRUST, false, what};

	return do_deed(c, &d, e);
}

/* ---- token ---- */

int verb_token(const struct ctl *c, struct err *e)
{
	struct ctl ask = *c;
	struct admin_question q = {.verb = CKPT__ADMIN__VERB__TOKEN};
	struct connection *conn = NULL;
	json_t *doc = NULL, *job = NULL, *answer = NULL;
	int r;

	ask.data = NULL; /* the file is ckptd's own user's alone */
	r = status_document(&ask, c->args[0], &doc, e);
	if (r == 0)
		r = doc_only_job(doc, c->args[0], &job, e);
	if (r == 0)
		r = connection_open(c->socket, &conn, e);
	if (r == 0) {
		q.job = doc_text(job, "id");
		r = connection_ask(conn, &q, &answer, e);
	}
	if (r == 0 && !json_is_string(json_object_get(answer, "token")))
		r = err_set(e, CKPT_EPROTO,
			    "ckptd's answer has no token: are ckptd and ckptctl of "
			    "one version?");
	if (r == 0 && c->json) {
		json_object_set_new(answer, "source", json_string("daemon"));
		print_json(json_incref(answer));
	} else if (r == 0) {
		say("%s", doc_text(answer, "token"));
	}
	connection_close(conn);
	json_decref(answer);
	json_decref(doc);
	return r;
}

/* ---- gc ---- */

static int live_plans(const struct ctl *c, json_t *jobs, struct err *e)
{
	struct connection *conn = NULL;
	json_t *doc = NULL, *job;
	size_t i;
	int r = status_document(c, c->n_args ? c->args[0] : NULL, &doc, e);

	if (r == 0)
		r = connection_open(c->socket, &conn, e);
	json_array_foreach(json_object_get(doc, "jobs"), i, job) {
		struct admin_question q = { .verb = CKPT__ADMIN__VERB__GC, .dry_run = c->dry_run,
					    .job = doc_text(job, "id") };
		json_t *answer = NULL;

		if (doc_text(job, "unread")[0])
			continue;
		if (r == 0)
			r = connection_ask(conn, &q, &answer, e);
		if (r == 0)
			json_array_append_new(
				jobs, json_pack("{s:O, s:O, s:O?, s:O?}", "job",
						json_object_get(job, "job"), "id",
						json_object_get(job, "id"), "uid",
						json_object_get(job, "uid"), "plan",
						json_object_get(answer, "plan")));
		json_decref(answer);
	}
	connection_close(conn);
	json_decref(doc);
	return r;
}

static int by_record(const void *a, const void *b)
{
	const struct data_checkpoint *x = *(struct data_checkpoint *const *)a;
	const struct data_checkpoint *y = *(struct data_checkpoint *const *)b;

	return x->logged->n < y->logged->n ? -1 : x->logged->n > y->logged->n;
}

static json_t *plan_json(const struct data_checkpoint *c, const struct retention_item *item)
{
	return json_pack("{s:o, s:o, s:b, s:s, s:o}", "step", doc_count(item->step), "attempt",
			 doc_hex(c->id.attempt.b, 16), "expire", (int)item->expire, "because",
			 item->kept_because ? item->kept_because : "", "bytes",
			 doc_count(commit_disk_bytes(&c->commit)));
}

/* Durable ones in log order, oldest first, as ckptd would judge them. */
static int file_plan(const struct ctl *c, struct data_job *j, json_t *jobs, struct err *e)
{
	const struct retention_policy policy = {.keep_last = c->keep_last ? c->keep_last
									  : RETENTION_KEEP_LAST,
						.keep_every = c->keep_every};
	CLEANUP_FREE struct data_checkpoint **order = alloc_array(j->n_checkpoints, sizeof(*order));
	CLEANUP_FREE struct retention_item *items = alloc_array(j->n_checkpoints, sizeof(*items));
	json_t *plan = json_array();
	size_t n = 0;

	if (!order || !items) {
		json_decref(plan);
		return err_code(e, -ENOMEM, "plan what goes");
	}
	for (size_t i = 0; i < j->n_checkpoints; i++)
		if (j->checkpoints[i].state == FILES_DURABLE && j->checkpoints[i].logged)
			order[n++] = &j->checkpoints[i];
	if (n)
		qsort(order, n, sizeof(*order), by_record);
	for (size_t i = 0; i < n; i++)
		items[i] = (struct retention_item){
			.step = order[i]->id.step,
			.clean = !(order[i]->logged->trust & TRUST_BAD), /* ckptd knows more */
			.pinned = order[i]->logged->pinned,
			.base = data_is_base(j, order[i]->logged),
		};
	for (size_t i = n; i-- > 0;) {
		if (!trust_reaches(order[i]->logged->trust, TRUST_VERIFIED))
			continue;
		items[i].held = "the newest verified one";
		break;
	}
	retention_apply(&policy, items, n);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(plan, plan_json(order[i], &items[i]));
	json_array_append_new(jobs, json_pack("{s:s, s:o, s:I, s:o}", "job", j->name, "id",
					      doc_hex(j->id.b, 16), "uid", (json_int_t)j->uid,
					      "plan", plan));
	return 0;
}

static int file_plans(const struct ctl *c, json_t *jobs, struct err *e)
{
	struct data d;
	int r;

	if (!c->dry_run)
		return err_set(e, -EINVAL, "files are removed by ckptd alone: with --data say "
			       "--dry-run, or leave --data out");
	r = data_open(c->data, &d, e);
	if (r == 0)
		r = data_read_jobs(&d, c->n_args ? c->args[0] : NULL, e);
	for (size_t i = 0; r == 0 && i < d.n_jobs; i++)
		r = file_plan(c, &d.jobs[i], jobs, e);
	data_close(&d);
	return r;
}

static int print_plans(const json_t *jobs, bool dry_run)
{
	struct table *t = table_new("JOB STEP> ATTEMPT SIZE> PLAN");
	char text[TEXT_MAX], label[JOB_LABEL_MAX];
	bool several = job_label_several(jobs);
	uint64_t bytes = 0;
	json_t *job, *o;
	size_t i, k;
	int r;

	json_array_foreach(jobs, i, job) {
		job_label(label, job, several);
		json_array_foreach(json_object_get(job, "plan"), k, o) {
			table_cell(t, "%s", label);
			table_cell(t, "%" PRIu64, doc_number(o, "step"));
			table_cell(t, "%s", text_short(text, doc_text(o, "attempt")));
			table_cell(t, "%s", text_bytes(text, doc_number(o, "bytes")));
			table_cell(t, "%s%s", doc_flag(o, "expire") ? "goes" : "stays: ",
				   doc_text(o, "because"));
			bytes += doc_flag(o, "expire") ? doc_number(o, "bytes") : 0;
		}
	}
	r = table_end(t);
	if (r == 0)
		say("%s %s free for new checkpoints", text_bytes(text, bytes),
		    dry_run ? "would be" : "will be");
	return r;
}

int verb_gc(const struct ctl *c, struct err *e)
{
	json_t *jobs;
	int r;

	if (c->incoming && c->n_args)
		return err_set(e, -EINVAL,
			       "gc --incoming is of the whole folder: leave out '%.64s'",
			       c->args[0]);
	if (c->incoming)
		return gc_incoming(c, e);
	jobs = json_array();
	if (!ctl_offline(c) && (c->keep_last || c->keep_every)) {
		json_decref(jobs);
		return err_set(e, -EINVAL,
			       "ckptd keeps what its configuration says: --keep-last and "
			       "--keep-every are for --data");
	}
	r = ctl_offline(c) ? file_plans(c, jobs, e) : live_plans(c, jobs, e);
	if (r == 0 && c->json)
		print_json(json_pack("{s:i, s:s, s:b, s:O}", "schema", 2, "source",
				     ctl_offline(c) ? "files" : "daemon", "dry_run",
				     (int)c->dry_run, "jobs", jobs));
	else if (r == 0 && c->talk >= 0) {
		r = print_plans(jobs, c->dry_run);
		if (r < 0)
			err_code(e, r, "print the plan");
	}
	json_decref(jobs);
	return r;
}

/* ---- rebuild ---- */

static int ask_rebuild(const struct ctl *c, struct err *e)
{
	const struct admin_question q = { .verb = CKPT__ADMIN__VERB__REBUILD, .timeout_ms = -1 };
	struct connection *conn = NULL;
	int r = connection_open(c->socket, &conn, e);

	if (r == 0)
		r = connection_ask(conn, &q, NULL, e);
	connection_close(conn);
	return r;
}

static int check_same_folder(const struct ctl *c, struct err *e)
{
	json_t *doc = NULL;
	int r = live_document(c, &doc, e);

	if (r == 0 && !data_is_same(c->data, doc_text(doc, "data")))
		r = err_set(e, CKPT_EUNAVAILABLE, "the ckptd that answers uses another folder");
	json_decref(doc);
	return r;
}

/* What no COMMIT says of itself, but the log. */
static int put_marks(struct index *ix, struct data *d, struct err *e)
{
	int r = data_read_jobs(d, NULL, e);

	for (size_t i = 0; r == 0 && i < d->n_jobs; i++) {
		for (size_t k = 0; r == 0 && k < d->jobs[i].n_checkpoints; k++) {
			const struct data_checkpoint *c = &d->jobs[i].checkpoints[k];
			struct catalog_entry entry;

			if (!c->has_commit || !c->logged ||
			    (!c->logged->pinned && c->state != FILES_DAMAGED))
				continue;
			r = catalog_get(ix, &c->id, &entry, e);
			entry.pinned = c->logged->pinned;
			entry.suspect = c->state == FILES_DAMAGED;
			if (r == 0)
				r = catalog_put(ix, &entry, e);
		}
	}
	return r;
}

/* RocksDB opens files by itself: from here on as the folder's owner, whose files they become. */
static int make_index(struct data *d, struct store *s, int *ret_count, struct err *e)
{
	struct beneath *folder = disk_posix_folder(d->disk);
	char path[PATH_MAX + 8];
	struct index *ix = NULL;
	bool fresh;
	int r = beneath_become_owner(folder, e);

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/index", d->path);
	r = index_rocksdb_open(folder, path, &ix, &fresh, e);
	if (r < 0)
		return r;
	if (e->code)
		complain("%s", e->text); /* an old one was set aside */
	err_clear(e);
	r = catalog_rebuild(ix, s, NULL, e);
	*ret_count = r;
	if (r >= 0)
		r = put_marks(ix, d, e);
	ix->ops->close(ix);
	return r;
}

/* Under LOCK. *ret_count: checkpoints in the new index. */
static int rebuild_here(const struct ctl *c, int *ret_count, struct err *e)
{
	struct store_options o = {.who = "ckptctl rebuild"};
	struct store s;
	struct data d;
	int r = data_open(c->data, &d, e); /* also: it is a data folder, none is made here */

	if (r < 0)
		return r;
	r = store_open(d.disk, &o, &s, e);
	if (r == 0) {
		r = make_index(&d, &s, ret_count, e);
		store_close(&s);
	}
	data_close(&d);
	return r;
}

int verb_rebuild(const struct ctl *c, struct err *e)
{
	struct err busy = { 0 };
	bool asked = true;
	int count = 0, r;

	if (ctl_offline(c)) {
		r = rebuild_here(c, &count, e);
		asked = r == -EBUSY;
		if (asked) {
			busy = *e;
			r = check_same_folder(c, e);
			if (r == 0)
				r = ask_rebuild(c, e);
			if (r == CKPT_EUNAVAILABLE)
				r = err_set(e, r,
					    "%s; or name its socket with --socket PATH, so that it "
					    "can be asked",
					    busy.text);
		}
	} else {
		r = ask_rebuild(c, e);
	}
	if (r < 0)
		return r;
	if (c->json)
		print_json(json_pack("{s:i, s:s, s:s, s:b, s:o}", "schema", 2, "source",
				     asked ? "daemon" : "files", "verb", "rebuild", "done", 1,
				     "checkpoints",
				     asked ? json_null() : doc_count((uint64_t)count)));
	else if (c->talk >= 0 && asked)
		say("ckptd has rebuilt its index");
	else if (c->talk >= 0)
		say("the index is rebuilt, checkpoints: %d", count);
	return EXIT_FINE;
}
