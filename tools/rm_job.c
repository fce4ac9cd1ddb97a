/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rm_job.c - `rm-job JOB`, `rm JOB --all`: a whole job is removed, its log with it. The running
 * ckptd does it (ckptd/job_removal.c); with --data FOLDER this tool, where no ckptd has the folder.
 *
 * A single checkpoint goes by a record in its job's log, and never the last good one (I4, I9). A
 * user that wants nothing of a job any more says so for all of it; what is pinned stays even then.
 *
 *   step, without ckptd                        a kill or power loss after it leaves
 *   1 LOCK is held: no ckptd, no other tool    the job
 *   2 rename of jobs/<id> to incoming/<id>.gone, synced
 *                                              a leftover, which the next start of ckptd removes
 *   3 its files are removed                    the same, or nothing
 *
 * One thread.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "storage/staging.h"
#include "tools/connect.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/files.h"
#include "tools/job_name.h"
#include "tools/plural.h"
#include "tools/print.h"

struct removal {
	const struct ctl *c;
	struct data data;
	struct disk_file *lock;
	const struct data_job *job;
};

static uint64_t job_bytes(const struct data_job *j)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < j->n_checkpoints; i++)
		if (j->checkpoints[i].has_commit)
			sum += j->checkpoints[i].commit.bytes;
	return sum;
}

/* With LOCK, so that what is found stays as it is. */
static int open_locked(struct removal *x, struct err *e)
{
	char who[LOCK_WHO_MAX + 1];
	int r = data_open(x->c->data, &x->data, e);

	if (r < 0)
		return r;
	snprintf(who, sizeof(who), "ckptctl, which removes job '%s'", x->c->args[0]);
	r = store_lock(x->data.disk, who, &x->lock, e);
	return r < 0 ? err_wrap(e, r, "rm --all in '%.150s'", x->data.path) : 0;
}

static int find_job(struct removal *x, struct err *e)
{
	int r = data_read_jobs(&x->data, x->c->args[0], e);
	const struct history *h;

	if (r < 0)
		return r;
	if (x->data.n_jobs > 1)
		return job_name_several(&x->data, x->c->args[0], e);
	x->job = &x->data.jobs[0];
	h = &x->job->history;
	for (size_t i = 0; i < h->n_commits; i++)
		if (h->commits[i].pinned && !h->commits[i].freed)
			return err_set(e, -EBUSY,
				       "step %" PRIu64 " of job '%s' is pinned; the job stays: "
				       "unpin it first, with ckptd running",
				       h->commits[i].commit.step, x->job->name);
	return 0;
}

/* What the question is about, whoever knows it. */
struct loss {
	const char *name;
	uint64_t uid, bytes;
	size_t n_checkpoints;
	size_t n_lost; /* beside these: nothing was left of them */
};

static int ask(const struct ctl *c, const struct loss *l, struct err *e)
{
	char size[TEXT_MAX], answer[16] = "";

	if (c->yes)
		return 0;
	if (!isatty(STDIN_FILENO))
		return err_set(e, -EINVAL, "stdin is not a terminal: pass --yes to confirm");
	fprintf(stderr,
		"job '%s' of user %" PRIu64 ", %zu checkpoint%s, %s: nothing of it can be restored "
		"afterwards\nremove it? [y/N] ",
		l->name, l->uid, l->n_checkpoints, plural(l->n_checkpoints),
		text_bytes(size, l->bytes));
	if (fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
		return 0;
	return err_set(e, -ECANCELED, "nothing was removed");
}

/* list: each checkpoint that went. Consumed. */
static void tell(const struct ctl *c, const struct loss *l, const char *source, json_t *list)
{
	char size[TEXT_MAX];

	if (c->json)
		print_json(json_pack("{s:i, s:s, s:s, s:O}", "schema", 2, "source", source, "verb",
				     "rm", "checkpoints", list));
	else if (c->talk >= 0)
		say("job '%s' is removed: %zu checkpoint%s, %s%s", l->name, l->n_checkpoints,
		    plural(l->n_checkpoints), text_bytes(size, l->bytes),
		    l->n_lost ? "; others were lost before" : "");
	json_decref(list);
}

/* ---- Without ckptd ---- */

static int take_away(struct removal *x, struct err *e)
{
	int r = staging_discard(&x->data.store, &x->job->id, e);

	if (r < 0)
		return err_wrap(e, r, "job '%s' stays", x->job->name);
	r = staging_remove_gone(&x->data.store, &x->job->id, e);
	return r < 0 ? err_wrap(e, r,
				"job '%s' is removed, and files of it stay until the next start of "
				"ckptd or 'ckptctl gc --incoming'",
				x->job->name)
		     : 0;
}

static void tell_files(const struct removal *x, const struct loss *l)
{
	const struct data_job *j = x->job;
	json_t *list = json_array();

	for (size_t i = 0; i < j->n_checkpoints; i++) {
		const struct checkpoint_id *id = &j->checkpoints[i].id;

		json_array_append_new(list,
				      json_pack("{s:s, s:o, s:o, s:o, s:b, s:s}", "job", j->name,
						"id", doc_hex(j->id.b, sizeof(j->id.b)), "step",
						doc_count(id->step), "attempt",
						doc_hex(id->attempt.b, sizeof(id->attempt.b)),
						"done", 1, "reason", ""));
	}
	tell(x->c, l, "files", list);
}

/* -EBUSY: a ckptd has the folder, or the job is pinned. *ret_locked says which. */
static int remove_files(const struct ctl *c, bool *ret_locked, struct err *e)
{
	struct removal x = {.c = c};
	struct loss l = {0};
	int r = open_locked(&x, e);

	*ret_locked = r == 0;
	if (r == 0)
		r = find_job(&x, e);
	if (r == 0) {
		l = (struct loss){.name = x.job->name,
				  .uid = x.job->uid,
				  .bytes = job_bytes(x.job),
				  .n_checkpoints = x.job->n_checkpoints};
		r = ask(c, &l, e);
	}
	if (r == 0)
		r = take_away(&x, e);
	if (r == 0)
		tell_files(&x, &l);
	if (x.lock)
		x.lock->disk->ops->close(x.lock);
	if (x.data.disk)
		data_close(&x.data);
	return r;
}

/* ---- By ckptd ---- */

static struct loss loss_of(const json_t *job)
{
	const json_t *list = json_object_get(job, "checkpoints"), *c;
	struct loss l = {.name = doc_text(job, "job"), .uid = doc_number(job, "uid")};
	size_t i;

	json_array_foreach(list, i, c)
	{
		bool lost = doc_is(c, "disk", "lost");

		l.n_lost += lost;
		l.n_checkpoints += !lost;
		if (!lost && doc_is(c, "state", "committed"))
			l.bytes += doc_number(c, "bytes");
	}
	return l;
}

static json_t *removed_json(const json_t *job)
{
	json_t *list = json_array(), *c;
	size_t i;

	json_array_foreach(json_object_get(job, "checkpoints"), i, c) json_array_append_new(
		list,
		json_pack("{s:O, s:O, s:O, s:O, s:b, s:s}", "job", json_object_get(job, "job"),
			  "id", json_object_get(job, "id"), "step", json_object_get(c, "step"),
			  "attempt", json_object_get(c, "attempt"), "done", 1, "reason", ""));
	return list;
}

static int remove_live(const struct ctl *c, struct err *e)
{
	struct admin_question q = {.verb = CKPT__ADMIN__VERB__REMOVE_JOB, .timeout_ms = -1};
	struct connection *conn = NULL;
	json_t *doc = NULL, *job = NULL;
	struct ctl live = *c;
	struct loss l;
	int r;

	live.data = NULL;
	r = status_document(&live, c->args[0], &doc, e);
	if (r == 0)
		r = doc_only_job(doc, c->args[0], &job, e);
	if (r == 0) {
		l = loss_of(job);
		r = ask(c, &l, e);
	}
	if (r == 0)
		r = connection_open(c->socket, &conn, e);
	if (r == 0) {
		q.job = doc_text(job, "id"); /* a name is every user's */
		r = connection_ask_again(conn, &q, NULL, e);
	}
	if (r == 0) {
		if (e->text[0]) /* files of it are left */
			complain("%s", e->text);
		tell(c, &l, "daemon", removed_json(job));
	}
	connection_close(conn);
	json_decref(doc);
	return r;
}

/* A ckptd has the folder: it is asked, if it can be found. */
static int ask_owner(const struct ctl *c, struct err *e)
{
	struct err busy = *e;
	struct err none = {0};
	json_t *doc = NULL;
	bool same;
	int r = live_document(c, &doc, &none);

	same = r == 0 && data_is_same(c->data, doc_text(doc, "data"));
	json_decref(doc);
	if (!same)
		return err_set(e, -EBUSY,
			       "%.400s; name its socket with --socket PATH, so that it "
			       "can be asked",
			       busy.text);
	err_clear(e);
	return remove_live(c, e);
}

int rm_whole_job(const struct ctl *c, struct err *e)
{
	bool locked = false;
	int r;

	if (c->n_args != 1)
		return err_set(e, -EINVAL, "rm --all removes a job whole: name it, and no step");
	if (!c->data)
		return remove_live(c, e);
	r = remove_files(c, &locked, e);
	if (r == -EBUSY && !locked)
		r = ask_owner(c, e);
	return r < 0 ? r : EXIT_FINE;
}
