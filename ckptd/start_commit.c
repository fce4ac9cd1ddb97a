/* SPDX-License-Identifier: Apache-2.0 */
/*
 * start_commit.c - what a start makes of one checkpoint's folder. The log decides what should be
 * there, and nothing goes that it has not freed.
 *
 *   the log             COMMIT          shard files      what is made of it
 *   freed it            any             any              an expiry that did not end: ended now
 *   knows it            good            all names there  durable
 *   knows it            good            a name is gone   durable, that rank's file damaged: kept,
 *                                                        offered where memory has the rank
 *   knows it            gone or bad     lead to the root COMMIT is made again (I8): durable
 *   knows it            gone            unfinished       a write that did not end: kept until the
 *                                                        log calls it lost, or memory rewrites it
 *   knows it            gone or bad     damaged          damaged: kept, not offered
 *   does not know it    gone            any              a write that did not end: discarded
 *   cannot know it      gone            any              damaged: kept, not offered
 *   does not know it    there           any              see start.c
 *
 * Unfinished: files are missing or have no header, as a process leaves them that dies. Power loss
 * may leave any bytes in a file that was being written, so that damaged files say nothing. The
 * index decides: it learns of a step only after its COMMIT was durable, so what it knows was
 * DURABLE, whatever its files look like; and what it does not know, where it knows the job's other
 * checkpoints, is a write that did not end. Without a whole index damaged files are damage.
 *
 * A log cannot know attempts of an incarnation before its own: it was begun
 * anew from what COMMIT files said.
 *
 * A COMMIT that is seen may be one whose name an earlier life never made durable: it counts once
 * its folder is synced here, and the folder above it in start.c (I7). Blocking, on a META worker,
 * but start_tell_files(): on the loop.
 */
#include <config.h>

#include "ckptd/start.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/events.h"
#include "ckptd/log.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "detect/verdicts.h"
#include "model/attempt.h"
#include "storage/catalog.h"
#include "storage/commit_rebuild.h"
#include "storage/recover.h"

/* Its id where the log does not say. */
static const char *name_of(const struct found_job *f, char hex[ID_TEXT_MAX])
{
	hex_format(hex, f->id.b, sizeof(f->id.b));
	return f->history.job.name[0] ? f->history.job.name : hex;
}

static void tell(struct node *n, const struct found_job *f, int level, uint64_t step,
		 const char *what, const char *why)
{
	char line[ERR_TEXT_MAX + CKPT_JOB_MAX + 128], hex[ID_TEXT_MAX];
	const struct log_about about = {.job = name_of(f, hex), .has_step = true, .step = step};

	snprintf(line, sizeof(line), "job '%s': step %" PRIu64 " on disk %s: %s", about.job, step,
		 what, why);
	n->env.log(n->env.log_arg, level, &about, line);
}

/* ---- What is kept ---- */

static struct found_commit *keep_commit(struct found_job *f, const struct checkpoint_id *id)
{
	struct found_commit *c;

	if (f->n_commits == f->cap_commits) {
		size_t cap = f->cap_commits ? 2 * f->cap_commits : 16;

		c = alloc_resize(f->commits, cap * sizeof(*c));
		if (!c)
			return NULL;
		f->commits = c;
		f->cap_commits = cap;
	}
	c = &f->commits[f->n_commits++];
	memset(c, 0, sizeof(*c));
	c->id = *id;
	return c;
}

static int keep_unreadable(struct found_job *f, const struct checkpoint_id *id,
			   enum found_how how, const char *why)
{
	struct found_unreadable *more;

	more = alloc_resize(f->unreadable, (f->n_unreadable + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	f->unreadable = more;
	more = &f->unreadable[f->n_unreadable++];
	more->id = *id;
	more->how = how;
	snprintf(more->why, sizeof(more->why), "%.*s", REASON_MAX, why);
	return 0;
}

static int keep_damaged(struct node *n, struct found *found, struct found_job *f,
			const struct checkpoint_id *id, enum found_how how, const char *why)
{
	found->damaged++;
	tell(n, f, 3, id->step, "cannot be used", why);
	return keep_unreadable(f, id, how, why);
}

/* ---- What the log says of it ---- */

static int commit_of_log(const struct history *h, const struct history_commit *hc,
			 const struct checkpoint_id *id, struct commit_file *ret)
{
	struct record job_record = {.type = RECORD_JOB, .job = h->job};
	size_t len = 0;
	int r;

	*ret = (struct commit_file){
		.id = *id,
		.uid = h->job.uid,
		.incarnation = h->incarnation,
		.record_n = hc->n,
		.epoch = hc->epoch,
		.wall_ns = hc->wall_ns,
		.root = hc->commit.root,
		.layout = hc->commit.layout,
		.world = hc->commit.world,
		.bytes = hc->commit.bytes,
	};
	memcpy(ret->job_name, h->job.name, sizeof(ret->job_name));
	r = record_encode(&job_record, &ret->job_record, &len);
	ret->job_record_len = (uint32_t)len;
	return r;
}

/* Whether the log would know this attempt if it had been committed. */
static bool log_would_know(const struct found_job *f, const struct checkpoint_id *id)
{
	const struct history *h = &f->history;

	if (!f->log_whole)
		return false;
	if (h->incarnation == 0) /* the first */
		return true;
	return attempt_is_of(&id->attempt, &f->id, h->incarnation, h->epoch.number, id->step);
}

/* ---- A good COMMIT ---- */

static void tell_gone(struct node *n, const struct found_job *f, const struct found_commit *c)
{
	uint32_t first = 0, gone = 0;
	char line[96];

	for (uint32_t i = c->file.world; i-- > 0;) {
		first = c->gone[i] ? i : first;
		gone += c->gone[i];
	}
	snprintf(line, sizeof(line), "rank %" PRIu32 ": its file is gone%s", first,
		 gone > 1 ? ", and those of other ranks" : "");
	tell(n, f, 3, c->id.step, "cannot be used", line);
}

static int take_good(struct node *n, struct found *found, struct found_job *f,
		     const struct checkpoint_id *id)
{
	struct found_commit *c = keep_commit(f, id);
	struct err e = {0};
	int r = c ? commit_read(&n->store, id, &c->file, &e) : -ENOMEM;

	if (r < 0) {
		f->n_commits -= c != NULL;
		return err_is_shortage(r)
			       ? r
			       : keep_damaged(n, found, f, id, FOUND_UNREADABLE, e.text);
	}
	r = commit_missing_files(&n->store, &c->file, &c->gone);
	if (r < 0) { /* not known to be there: it counts for nothing (I9) */
		commit_file_fini(&c->file);
		f->n_commits--;
		err_code(&e, r, "cannot look for its files");
		return err_is_shortage(r)
			       ? r
			       : keep_damaged(n, found, f, id, FOUND_UNREADABLE, e.text);
	}
	if (c->gone) {
		found->damaged++;
		tell_gone(n, f, c);
	}
	return 0;
}

/* ---- None, or a bad one ---- */

/* What may be read another time, or by a newer program, is not replaced. */
static bool may_replace(int code)
{
	return code == CKPT_ENOTFOUND || code == CKPT_ECORRUPT || code == CKPT_EPROTO ||
	       code == -EFBIG || code == -EIO;
}

static int not_rebuilt(struct node *n, struct found *found, struct found_job *f,
		       const struct checkpoint_id *id, const struct err *commit,
		       const struct err *shards, enum shards_state state)
{
	bool gone = commit->code == CKPT_ENOTFOUND;
	char why[ERR_TEXT_MAX];

	if (gone && (state == SHARDS_NONE || state == SHARDS_UNFINISHED)) {
		snprintf(why, sizeof(why), "its files were not finished: %.200s", shards->text);
		return keep_unreadable(f, id, FOUND_UNFINISHED, why);
	}
	snprintf(why, sizeof(why), "%.120s%s%.120s", gone ? "its COMMIT is gone" : commit->text,
		 shards->code ? "; it cannot be made again: " : "", shards->text);
	if (!gone || state == SHARDS_WHOLE) /* the next start tries again */
		return keep_damaged(n, found, f, id, gone ? FOUND_WHOLE : FOUND_UNREADABLE, why);
	return keep_unreadable(f, id, FOUND_NO_COMMIT, why); /* told once the index was asked */
}

static int rebuild(struct node *n, struct found *found, struct found_job *f,
		   const struct checkpoint_id *id, const struct history_commit *h,
		   const struct err *commit)
{
	enum shards_state state = SHARDS_WHOLE; /* where writing failed */
	struct found_commit *c;
	struct commit_file made;
	struct err why = {0};
	int r = commit_of_log(&f->history, h, id, &made);

	if (r == 0 && may_replace(commit->code))
		r = commit_rebuild(&n->store, &made, &state, &why);
	else if (r == 0)
		r = commit->code;
	if (r < 0 || state != SHARDS_WHOLE) {
		commit_file_fini(&made);
		if (err_is_shortage(r))
			return r;
		return not_rebuilt(n, found, f, id, commit, &why, state);
	}
	c = keep_commit(f, id);
	if (!c) {
		commit_file_fini(&made);
		return -ENOMEM;
	}
	c->file = made;
	c->rebuilt = true;
	tell(n, f, 4, id->step, "has its COMMIT again, made from its files and the log",
	     commit->code == CKPT_ENOTFOUND ? "it was gone" : commit->text);
	return 0;
}

static int without_record(struct node *n, struct found *found, struct found_job *f,
			  const struct checkpoint_id *id, const struct err *why)
{
	if (why->code != CKPT_ENOTFOUND)
		return keep_damaged(n, found, f, id, FOUND_UNREADABLE, why->text);
	if (!log_would_know(f, id))
		return keep_damaged(n, found, f, id, FOUND_NO_COMMIT,
				    "it has no COMMIT, and the log that knew it was lost");
	found->discarded++;
	/* If it cannot go now it goes at the next start; it is never taken for a checkpoint. */
	ignore_result(checkpoint_discard(&n->store, id, NULL));
	return 0;
}

int start_checkpoint(struct node *n, struct found *found, struct found_job *f,
		     const struct checkpoint_id *id, const struct commit_file *commit,
		     const struct err *why)
{
	struct history_commit *h = history_find(&f->history, id->step, &id->attempt);
	char path[DISK_PATH_MAX + 1];
	struct commit_file want;
	struct err bad = {0};
	const char *differs;
	int r = 0;

	if (h && h->freed && !commit) {
		found->expired++;
		/* The next start tries again. */
		ignore_result(checkpoint_expire(&n->store, id, 0, NULL));
		return 0;
	}
	if (commit) {
		path_checkpoint(path, id);
		r = n->store.disk->ops->sync_dir(n->store.disk, path);
		if (r < 0)
			err_code(&bad, r, "sync its folder");
	}
	if (commit && r == 0 && h && !h->freed) {
		r = commit_of_log(&f->history, h, id, &want);
		if (r < 0)
			return r;
		differs = commit_differs(commit, &want);
		if (differs)
			err_set(&bad, CKPT_ECORRUPT, "%s", differs);
		commit_file_fini(&want);
	}
	if (commit && !bad.code)
		return take_good(n, found, f, id);
	if (commit && bad.code != CKPT_ECORRUPT)
		return keep_damaged(n, found, f, id, FOUND_UNREADABLE, bad.text);
	if (!commit)
		bad = *why;
	if (BUG(RECYCLE_WITHOUT_COMMIT) && bad.code == CKPT_ENOTFOUND) {
		ignore_result(checkpoint_discard(&n->store, id, NULL));
		return 0;
	}
	return h ? rebuild(n, found, f, id, h, &bad) : without_record(n, found, f, id, &bad);
}

/* ---- What the index knows ---- */

static bool index_knows(struct found *found, const struct checkpoint_id *id)
{
	struct catalog_entry entry;

	return catalog_get(found->index, id, &entry, NULL) == 0;
}

/* It was not lost since the job's checkpoints became durable. */
static bool index_is_whole(struct found *found, const struct found_job *f)
{
	if (!found->index || found->index_fresh || !catalog_is_whole(found->index))
		return false;
	for (size_t i = 0; i < f->n_commits; i++)
		if (!index_knows(found, &f->commits[i].id))
			return false;
	return true;
}

static bool is_known(struct found_job *f, const struct found_unreadable *u)
{
	return history_find(&f->history, u->id.step, &u->id.attempt) != NULL;
}

static void ask_index(struct found *found, struct found_job *f)
{
	bool whole = index_is_whole(found, f);

	for (size_t i = 0; i < f->n_unreadable; i++) {
		struct found_unreadable *u = &f->unreadable[i];

		if (u->how == FOUND_UNREADABLE || u->how == FOUND_WHOLE || !is_known(f, u))
			continue;
		if (found->index && index_knows(found, &u->id))
			u->how = FOUND_NO_COMMIT;
		else if (whole)
			u->how = FOUND_UNFINISHED;
	}
}

struct indexed {
	struct node *node;
	struct found *found;
	struct found_job *job;
};

static bool is_it(const struct checkpoint_id *a, const struct checkpoint_id *b)
{
	return a->step == b->step && attempt_equal(&a->attempt, &b->attempt);
}

/* A step that was DURABLE, is not freed, and of which not even a folder is there. */
static int on_indexed(void *arg, const struct catalog_entry *entry)
{
	struct indexed *x = arg;
	struct found_job *f = x->job;
	const struct history_commit *h =
		history_find(&f->history, entry->id.step, &entry->id.attempt);

	if (!h || h->freed)
		return 0;
	for (size_t i = 0; i < f->n_commits; i++)
		if (is_it(&f->commits[i].id, &entry->id))
			return 0;
	for (size_t i = 0; i < f->n_unreadable; i++)
		if (is_it(&f->unreadable[i].id, &entry->id))
			return 0;
	return keep_unreadable(f, &entry->id, FOUND_NO_COMMIT,
			       "it was durable, and its folder is gone");
}

int start_indexed(struct node *n, struct found *found, struct found_job *f)
{
	struct indexed x = {n, found, f};
	int r = 0;

	ask_index(found, f);
	if (found->index)
		r = catalog_each(found->index, &f->id, on_indexed, &x, NULL);
	for (size_t i = 0; i < f->n_unreadable; i++) {
		const struct found_unreadable *u = &f->unreadable[i];

		if (u->how == FOUND_NO_COMMIT && is_known(f, u)) {
			found->damaged++;
			tell(n, f, 3, u->id.step, "cannot be used", u->why);
		}
	}
	return r == -ENOMEM ? r : 0; /* where it cannot be read, the files serve alone */
}

/* ---- On the loop ---- */

void start_tell_files(struct job *j)
{
	struct checkpoint *c;
	struct subject s;

	list_each(c, &j->checkpoints, link) {
		bool damaged = c->durable == DUR_DONE && c->disk_suspect;

		if (!damaged && !c->rebuilt)
			continue;
		s = subject_job(watching_number(j));
		events_post(j->node->events,
			    damaged ? EVENT_CHECKPOINT_DAMAGED : EVENT_CHECKPOINT_REPAIRED,
			    (damaged ? 3 : 4) | EVENT_UNLOGGED, j->history.job.uid,
			    watching_subject_json(j->node, &s),
			    json_pack("{s:I}", "step", (json_int_t)c->step),
			    "job '%s': step %llu on disk %s%s", j->history.job.name,
			    (unsigned long long)c->step,
			    damaged ? "cannot be used: "
				    : "had no good COMMIT; it was made again from its files and "
				      "the log",
			    damaged ? c->reason : "");
	}
	problems_started(j);
}
