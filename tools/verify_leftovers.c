/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify_leftovers.c - names in a data folder that no checkpoint needs. None of them is a problem:
 * they take space, and say what a crash or an operator left. One thread.
 */
#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "storage/folder_id.h"
#include "storage/object_uses.h"
#include "storage/paths.h"
#include "storage/staging.h"
#include "tools/document.h"
#include "tools/verify.h"

struct walk {
	json_t *list;
	const char *dir; /* being listed; "" is the data folder */
	const struct data_checkpoint *checkpoint;
};

static void add(const struct walk *w, const char *name, const char *reason)
{
	char path[DISK_PATH_MAX + NAME_MAX + 2];

	snprintf(path, sizeof(path), "%s%s%s", w->dir, w->dir[0] ? "/" : "", name);
	json_array_append_new(w->list, json_pack("{s:o, s:s}", "path", doc_name(path, strlen(path)),
						 "reason", reason));
}

static bool is_temporary(const char *name)
{
	return strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0;
}

static void add_stranger(const struct walk *w, const char *name)
{
	add(w, name, is_temporary(name) ? "a file being written, or left by a crash"
					: "not of ckptd: it leaves it alone");
}

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

static int root_name(void *arg, const char *name, bool is_dir)
{
	static const char *const known[] = {
		"jobs",   "declarations", "layouts", "spare", "index",  "incoming",
		"LOCK",   "FORMAT",       "events",  "marks", "checks", "events.old",
		"kernel-messages.seen", FOLDER_ID_NAME,
	};

	(void)is_dir;
	if (strcmp(name, "index.bad") == 0)
		add(arg, name, "an index that was damaged and set aside");
	else if (!is_one_of(name, known, sizeof(known) / sizeof(known[0])))
		add_stranger(arg, name);
	return 0;
}

static int spare_name(void *arg, const char *name, bool is_dir)
{
	uint64_t serial, bytes;

	if (is_dir || spare_name_parse(name, &serial, &bytes) < 0)
		add_stranger(arg, name);
	return 0;
}

static int object_name(void *arg, const char *name, bool is_dir)
{
	size_t prefix = strlen(OBJECT_ASIDE);
	struct digest d;

	if (!is_dir && strncmp(name, OBJECT_ASIDE, prefix) == 0 &&
	    hex_parse(d.b, sizeof(d.b), name + prefix) == 0)
		add(arg, name, "set aside, to go if nothing uses it: the next start decides");
	else if (is_dir || hex_parse(d.b, sizeof(d.b), name) < 0)
		add_stranger(arg, name);
	return 0;
}

static int job_folder_name(void *arg, const char *name, bool is_dir)
{
	struct job_id id;

	if (!is_dir || hex_parse(id.b, sizeof(id.b), name) < 0)
		add_stranger(arg, name);
	return 0;
}

static int job_name(void *arg, const char *name, bool is_dir)
{
	static const char *const known[] = {"goodput", "log", "token"};
	struct attempt_id attempt;
	uint64_t step;

	if (strncmp(name, "log.old-", 8) == 0)
		add(arg, name, "a damaged log that was set aside");
	else if (strcmp(name, "log.new") == 0)
		add(arg, name, "a log that was being begun anew when ckptd died");
	else if (!is_one_of(name, known, sizeof(known) / sizeof(known[0])) &&
		 !(is_dir && checkpoint_name_parse(name, &step, &attempt) == 0))
		add_stranger(arg, name);
	return 0;
}

static int checkpoint_name(void *arg, const char *name, bool is_dir)
{
	const struct walk *w = arg;
	uint32_t rank;

	if (is_dir || (strcmp(name, "COMMIT") != 0 && !shard_name_is(name)))
		add_stranger(w, name);
	else if (sscanf(name, "rank-%" SCNu32, &rank) == 1 && rank >= w->checkpoint->commit.world)
		add(w, name, "COMMIT knows no such rank");
	return 0;
}

static int incoming_name(void *arg, const char *name, bool is_dir)
{
	if (strcmp(name, "LOCK") != 0 && !staging_name_is(name, is_dir))
		add_stranger(arg, name);
	return 0;
}

static int staged(void *arg, const struct staged *s)
{
	const struct walk *w = arg;
	char path[DISK_PATH_MAX + 1];

	if (!s->folder && !s->making) {
		path_staged(path, &s->job);
		json_array_append_new(w->list,
				      json_pack("{s:s+, s:s}", "path", path, ".gone", "reason",
						"files of a removed job: the next start of ckptd "
						"removes them, and so does 'ckptctl gc "
						"--incoming'"));
		return 0;
	}
	if (s->folder)
		path_staged(path, &s->job);
	else
		path_making(path, &s->job);
	json_array_append_new(
		w->list,
		json_pack("{s:s, s:s}", "path", path, "reason",
			  s->busy ? "a checkpoint that a tool is making"
				  : "a checkpoint that a tool began and did not end: the "
				    "same command may go on with it, 'ckptctl gc --incoming' "
				    "takes it away"));
	return 0;
}

/* What has gone meanwhile, or is not there yet, holds no leftovers. */
static int list(struct data *d, struct walk *w, const char *dir, disk_name_fn *fn, struct err *e)
{
	int r;

	w->dir = dir;
	r = d->disk->ops->list(d->disk, dir, fn, w);
	return r < 0 && r != -ENOENT ? err_code(e, r, "cannot list '%s'", dir) : 0;
}

static int walk_job(struct data *d, const struct data_job *j, struct walk *w, struct err *e)
{
	char path[DISK_PATH_MAX + 1];
	int r;

	path_job(path, &j->id);
	r = list(d, w, path, job_name, e);
	for (size_t i = 0; r == 0 && i < j->n_checkpoints; i++) {
		const struct data_checkpoint *c = &j->checkpoints[i];

		path_checkpoint(path, &c->id);
		w->checkpoint = c;
		w->dir = path;
		if (c->state == FILES_LEFTOVER || c->state == FILES_EXPIRING)
			json_array_append_new(w->list, json_pack("{s:s, s:s}", "path", path,
								 "reason", c->why.text));
		else if (c->has_commit)
			r = list(d, w, path, checkpoint_name, e);
	}
	return r;
}

int leftovers_add(struct data *d, bool whole, json_t *into, struct err *e)
{
	static const struct {
		const char *dir;
		disk_name_fn *fn;
	} folders[] = {
		{"", root_name},          {"jobs", job_folder_name}, {"declarations", object_name},
		{"layouts", object_name}, {"spare", spare_name},     {"incoming", incoming_name},
	};
	struct walk w = { .list = into };
	int r = 0;

	for (size_t i = 0; whole && r == 0 && i < sizeof(folders) / sizeof(folders[0]); i++)
		r = list(d, &w, folders[i].dir, folders[i].fn, e);
	if (whole && r == 0)
		r = staging_each(&d->store, staged, &w, e);
	for (size_t i = 0; r == 0 && i < d->n_jobs; i++)
		r = walk_job(d, &d->jobs[i], &w, e);
	return r;
}
