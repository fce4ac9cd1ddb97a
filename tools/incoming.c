/* SPDX-License-Identifier: Apache-2.0 */
/*
 * incoming.c - `gc --incoming`: what tools began in incoming/ and did not end is taken away, unless
 * one of them is still at it. Beside a running ckptd or without one: it looks at jobs/ alone.
 */
#include <config.h>

#include <errno.h>
#include <jansson.h>

#include "storage/staging.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/files.h"
#include "tools/print.h"

struct sweep {
	const struct ctl *ctl;
	struct store *store;
	json_t *list;
	struct err *err;
};

/* 0: it is ours until it is closed; -EAGAIN: somebody makes it. */
static int lock(struct store *s, const struct job_id *job, struct disk_file **ret)
{
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int r;

	path_making(path, job);
	r = s->disk->ops->open(s->disk, path, 0, &f);
	if (r < 0)
		return r == -ENOENT ? 0 : r; /* without that file nobody can */
	r = f->disk->ops->lock(f, true);
	if (r < 0)
		f->disk->ops->close(f);
	else
		*ret = f;
	return r;
}

static int sweep_one(void *arg, const struct staged *found)
{
	const struct sweep *x = arg;
	char path[DISK_PATH_MAX + 1];
	struct disk_file *held = NULL;
	bool busy = found->busy;
	int r = 0;

	path_staged(path, &found->job);
	if (!x->ctl->dry_run && !busy) {
		r = lock(x->store, &found->job, &held);
		busy = r == -EAGAIN;
		if (r == 0)
			r = staging_remove(x->store, &found->job, x->err);
		else if (!busy)
			err_code(x->err, r, "lock '%s'", path);
		if (held)
			held->disk->ops->close(held);
	}
	if (r < 0 && !busy)
		return r;
	json_array_append_new(x->list,
			      json_pack("{s:s, s:b, s:s}", "path", path, "expire", (int)!busy,
					"because", busy ? "it is being made" : ""));
	return 0;
}

static void print_sweep(const struct ctl *c, const json_t *list)
{
	const json_t *o;
	size_t i;

	json_array_foreach(list, i, o) say("%s %s", doc_text(o, "path"),
					   !doc_flag(o, "expire") ? "stays: it is being made"
					   : c->dry_run           ? "would go"
								  : "is gone");
}

int gc_incoming(const struct ctl *c, struct err *e)
{
	json_t *list = json_array();
	struct sweep x = {.ctl = c, .list = list, .err = e};
	struct data d;
	int r = data_open(c->data, &d, e);

	if (r == 0) {
		x.store = &d.store;
		r = staging_each(&d.store, sweep_one, &x, e);
		data_close(&d);
	}
	if (r == 0 && c->json)
		print_json(json_pack("{s:i, s:s, s:b, s:O}", "schema", 2, "source", "files",
				     "dry_run", (int)c->dry_run, "incoming", list));
	else if (r == 0 && c->talk >= 0)
		print_sweep(c, list);
	json_decref(list);
	return r < 0 ? r : EXIT_FINE;
}
