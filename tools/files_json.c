/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files_json.c - the document of `status` from the files of a data folder: what a running ckptd
 * would say of what is on disk (doc/json.md). What only its memory knows is left out.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>

#include "base/bytes.h"
#include "model/trust.h"
#include "storage/paths.h"
#include "tools/document.h"
#include "tools/files.h"

static const char *disk_name(enum file_state s)
{
	static const char *const names[] = {"durable", "unlogged", "expiring", "damaged",
					    "leftover"};

	return names[s];
}

static uint64_t stored_bytes(const struct commit_file *c)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < c->world; i++)
		n += c->shards[i].stored;
	return n;
}

static json_t *log_commit_json(const struct data_job *j, const struct history_commit *h)
{
	return json_pack("{s:o, s:o, s:o, s:s, s:b, s:b, s:b, s:o, s:o, s:i, s:o, s:o, s:s, s:b}",
			 "step", doc_count(h->commit.step), "attempt",
			 doc_hex(h->commit.attempt.b, 16), "epoch", doc_count(h->epoch), "state",
			 "committed", "pinned", (int)h->pinned, "base", (int)data_is_base(j, h),
			 "latest", 0, "bytes", doc_count(h->commit.bytes), "time_ns",
			 doc_count(h->wall_ns), "world", (int)h->commit.world, "root",
			 doc_hex(h->commit.root.b, 16), "layout", doc_hex(h->commit.layout.b, 16),
			 "trust", trust_word(h->trust), "doubted",
			 (int)((h->trust & TRUST_DOUBTED) != 0));
}

static json_t *file_commit_json(const struct commit_file *c)
{
	return json_pack("{s:o, s:o, s:o, s:s, s:b, s:b, s:b, s:o, s:o, s:i, s:o, s:o}", "step",
			 doc_count(c->id.step), "attempt", doc_hex(c->id.attempt.b, 16), "epoch",
			 doc_count(c->epoch), "state", "committed", "pinned", 0, "base", 0,
			 "latest", 0, "bytes", doc_count(c->bytes), "time_ns",
			 doc_count(c->wall_ns), "world", (int)c->world, "root",
			 doc_hex(c->root.b, 16), "layout", doc_hex(c->layout.b, 16));
}

static json_t *checkpoint_json(const struct data_job *j, const struct data_checkpoint *c)
{
	json_t *o;

	if (c->logged)
		o = log_commit_json(j, c->logged);
	else if (c->has_commit)
		o = file_commit_json(&c->commit);
	else
		o = json_pack("{s:o, s:o, s:s}", "step", doc_count(c->id.step), "attempt",
			      doc_hex(c->id.attempt.b, 16), "state", "unknown");
	if (c == data_latest(j))
		json_object_set_new(o, "latest", json_true());
	json_object_set_new(o, "disk", json_string(disk_name(c->state)));
	if (c->has_commit)
		json_object_set_new(o, "stored", doc_count(stored_bytes(&c->commit)));
	json_object_set_new(o, "reason", doc_name(c->why.text, strlen(c->why.text)));
	return o;
}

static json_t *checkpoints_json(const struct data_job *j)
{
	json_t *list = json_array();

	for (size_t i = 0; i < j->n_checkpoints; i++)
		if (j->checkpoints[i].state != FILES_LEFTOVER)
			json_array_append_new(list, checkpoint_json(j, &j->checkpoints[i]));
	for (size_t i = 0; i < j->history.n_commits; i++) {
		const struct history_commit *h = &j->history.commits[i];
		json_t *o;

		if (!data_maybe_in_memory(j, h))
			continue;
		o = log_commit_json(j, h);
		json_object_set_new(o, "disk", json_string("no"));
		json_object_set_new(o, "reason",
				    json_string("it is only in the memory of ckptd, or "
						"lost with it"));
		json_array_append_new(list, o);
	}
	return list;
}

static json_t *epoch_json(const struct record_epoch *p)
{
	json_t *o = json_pack("{s:o, s:o, s:o, s:i}", "number", doc_count(p->number), "run_id",
			      doc_name(p->run_id, strlen(p->run_id)), "reason",
			      doc_name(p->reason, strlen(p->reason)), "world", (int)p->world);

	json_object_set_new(o, "base_step", p->has_base ? doc_count(p->base_step) : json_null());
	return o;
}

static json_t *aborts_json(const struct history *h)
{
	json_t *list = json_array();

	for (size_t i = 0; i < h->n_aborts; i++) {
		const struct history_abort *a = &h->aborts[i];
		const char *why = a->aborted.reason;

		json_array_append_new(list, json_pack("{s:o, s:o, s:o}", "step",
						      doc_count(a->aborted.step), "epoch",
						      doc_count(a->epoch), "reason",
						      doc_name(why, strlen(why))));
	}
	return list;
}

static json_t *leftovers_json(const struct data_job *j)
{
	json_t *list = json_array();

	for (size_t i = 0; i < j->n_checkpoints; i++) {
		const struct data_checkpoint *c = &j->checkpoints[i];
		char path[DISK_PATH_MAX + 1];

		if (c->state != FILES_LEFTOVER)
			continue;
		path_checkpoint(path, &c->id);
		json_array_append_new(list, json_pack("{s:s, s:s}", "path", path, "reason",
						      c->why.text));
	}
	return list;
}

static json_t *job_json(const struct data_job *j)
{
	if (j->unread)
		return json_pack("{s:s, s:o, s:n, s:o, s:[], s:[], s:[]}", "job", j->name, "id",
				 doc_hex(j->id.b, 16), "uid", "unread",
				 doc_name(j->log_err.text, strlen(j->log_err.text)), "checkpoints",
				 "aborted", "leftovers");
	return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "job", j->name, "id",
			 doc_hex(j->id.b, 16), "uid", doc_count(j->uid), "epoch",
			 epoch_json(&j->history.epoch), "log_records",
			 doc_count(j->history.next_n), "term", doc_count(j->history.term),
			 "checkpoints", checkpoints_json(j), "aborted", aborts_json(&j->history),
			 "leftovers", leftovers_json(j), "log_error",
			 doc_name(j->log_err.text, j->log_err.code ? strlen(j->log_err.text) : 0));
}

struct spare {
	uint64_t files, bytes;
};

static int count_spare(void *arg, const char *name, bool is_dir)
{
	struct spare *s = arg;
	uint64_t serial, bytes;

	if (!is_dir && spare_name_parse(name, &serial, &bytes) == 0) {
		s->files++;
		s->bytes += bytes;
	}
	return 0;
}

int files_document(const struct ctl *c, json_t **ret, struct err *e)
{
	uint64_t disk_free = 0, disk_total = 0;
	struct spare spare = { 0 };
	json_t *jobs = json_array();
	struct data d;
	int r = data_open(c->data, &d, e);

	if (r == 0)
		r = data_read_jobs(&d, NULL, e);
	if (r < 0) {
		data_close(&d);
		json_decref(jobs);
		return r;
	}
	ignore_result(d.disk->ops->space(d.disk, &disk_free, &disk_total) /* shows 0 */);
	ignore_result(d.disk->ops->list(d.disk, "spare", count_spare, &spare) /* shows 0 */);
	for (size_t i = 0; i < d.n_jobs; i++)
		json_array_append_new(jobs, job_json(&d.jobs[i]));
	*ret = json_pack("{s:i, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "schema", 2, "source", "files",
			 "data", doc_name(d.path, strlen(d.path)), "disk_free",
			 doc_count(disk_free), "disk_total", doc_count(disk_total), "spare_files",
			 doc_count(spare.files), "spare_bytes", doc_count(spare.bytes), "jobs",
			 jobs);
	data_close(&d);
	return 0;
}
