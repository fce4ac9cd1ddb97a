/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rm_job.c - `rm JOB --all --data FOLDER`: a whole job is taken away, its log with it, where no
 * ckptd has the folder.
 *
 * A single checkpoint goes by a record in its job's log, and never the last good one (I4, I9).
 * Whoever wants none of a job any more says so for all of it; what is pinned stays even then.
 *
 *   step                                       a kill or power loss after it leaves
 *   1 LOCK is held: no ckptd, no other tool    the job
 *   2 rename of jobs/<id> to incoming/, synced a leftover, which `gc --incoming` takes away
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
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/files.h"
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
		return err_set(e, -EINVAL,
			       "%zu jobs of several users are called '%.80s': name one by its id, "
			       "which 'ckptctl status --data FOLDER' shows",
			       x->data.n_jobs, x->c->args[0]);
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

static int ask(const struct removal *x, struct err *e)
{
	char size[TEXT_MAX], answer[16] = "";
	const struct data_job *j = x->job;

	if (x->c->yes)
		return 0;
	if (!isatty(STDIN_FILENO))
		return err_set(e, -EINVAL,
			       "nobody is here to be asked: say --yes if it is really meant");
	fprintf(stderr,
		"job '%s' of user %" PRIu32 ", %zu checkpoint%s, %s: nothing of it can be restored "
		"afterwards\nremove it? [y/N] ",
		j->name, j->uid, j->n_checkpoints, plural(j->n_checkpoints),
		text_bytes(size, job_bytes(j)));
	if (fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
		return 0;
	return err_set(e, -ECANCELED, "nothing was removed");
}

static int take_away(struct removal *x, struct err *e)
{
	int r = staging_make_folder(&x->data.store, e);

	if (r < 0)
		return r;
	r = staging_withdraw(&x->data.store, &x->job->id);
	if (r < 0)
		return err_code(e, r, "take job '%s' out of jobs/", x->job->name);
	r = staging_remove(&x->data.store, &x->job->id, e);
	return r < 0 ? err_wrap(
			       e, r,
			       "job '%s' is out of jobs/, and 'ckptctl gc --incoming' removes what "
			       "is left of it",
			       x->job->name)
		     : 0;
}

static void answer(const struct removal *x)
{
	const struct data_job *j = x->job;
	json_t *list = json_array();
	char size[TEXT_MAX];

	for (size_t i = 0; i < j->n_checkpoints; i++) {
		const struct checkpoint_id *id = &j->checkpoints[i].id;

		json_array_append_new(list,
				      json_pack("{s:s, s:o, s:o, s:o, s:b, s:s}", "job", j->name,
						"id", doc_hex(j->id.b, sizeof(j->id.b)), "step",
						doc_count(id->step), "attempt",
						doc_hex(id->attempt.b, sizeof(id->attempt.b)),
						"done", 1, "reason", ""));
	}
	if (x->c->json)
		print_json(json_pack("{s:i, s:s, s:s, s:O}", "schema", 2, "source", "files", "verb",
				     "rm", "checkpoints", list));
	else if (x->c->talk >= 0)
		say("job '%s' is removed: %zu checkpoint%s, %s", j->name, j->n_checkpoints,
		    plural(j->n_checkpoints), text_bytes(size, job_bytes(j)));
	json_decref(list);
}

int rm_whole_job(const struct ctl *c, struct err *e)
{
	struct removal x = {.c = c};
	int r;

	if (c->n_args != 1)
		return err_set(e, -EINVAL, "rm --all removes a job whole: name it, and no step");
	if (!c->data)
		return err_set(e, -EINVAL,
			       "rm --all removes the files of a job that no ckptd has: stop ckptd, "
			       "and name its data folder with --data FOLDER");
	r = open_locked(&x, e);
	if (r == 0)
		r = find_job(&x, e);
	if (r == 0)
		r = ask(&x, e);
	if (r == 0)
		r = take_away(&x, e);
	if (r == 0)
		answer(&x);
	if (x.lock)
		x.lock->disk->ops->close(x.lock);
	if (x.data.disk)
		data_close(&x.data);
	return r < 0 ? r : EXIT_FINE;
}
