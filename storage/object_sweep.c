/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_sweep.c - see object_sweep.h.
 *
 *   JOBS     each COMMIT of jobs/ is read: its layout is in use
 *   LAYOUTS  each layout in use is read: its declarations are in use
 *   NAMES    what layouts/ and declarations/ hold and nothing uses is noted
 *   REMOVE   a batch: each is renamed to gone-<digest>; then, if no writer has noted it since,
 *            unlinked, else renamed back
 *
 * Invariants: (1) an object that a COMMIT refers to has its bytes at its name or at gone-<digest>,
 * where store_get_object() finds them too, whatever fails and wherever a crash comes (I8): the
 * next sweep puts it back; (2) a writer notes an object before it checks whether the object exists
 * (objects_note()), and the sweep reads the notes after the rename: either the writer saw that the
 * name was free and wrote it, or the sweep sees the writer's note and puts the object back. A tool
 * beside ckptd cannot note anything: it has a name in incoming/ before it writes, which the sweep
 * looks for at the same point; (3) what cannot be read is in use: then nothing is removed.
 *
 * Layouts go before declarations: a layout is never there without its declarations.
 */
#include <config.h>

#include "storage/object_sweep.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "storage/layout_file.h"
#include "storage/object_uses.h"
#include "storage/recover.h"
#include "storage/staging.h"

#define BATCH       64u
#define OBJECTS_MAX 65536u /* of one sweep, to bound its memory: the next one takes the others */

enum phase { PHASE_JOBS, PHASE_LAYOUTS, PHASE_NAMES, PHASE_REMOVE };

struct kept {
	struct digest digest;
	bool committed; /* a COMMIT refers to it */
};
struct set {
	struct kept *at;
	size_t n, cap;
};
struct object {
	struct digest digest;
	bool layout, aside; /* aside: it is called gone-<digest> */
};

struct object_sweep {
	struct store *store;
	enum phase phase;
	struct set layouts, declarations;
	struct job_id *jobs;
	size_t n_jobs, cap_jobs;
	struct object *objects;
	size_t n_objects, cap_objects;
	size_t at; /* in what the phase walks through */
	bool layouts_only; /* which declarations are in use cannot be known */
	bool listing_layouts;
	uint64_t removed;
	struct err why; /* of a callback */
};

static int grow(void **at, size_t n, size_t *cap, size_t size)
{
	size_t more = *cap ? 2 * *cap : 64;
	void *p;

	if (n < *cap)
		return 0;
	p = alloc_resize(*at, more * size);
	if (!p)
		return -ENOMEM;
	*at = p;
	*cap = more;
	return 0;
}

static int keep(struct set *s, const struct digest *d, bool committed)
{
	int r = grow((void **)&s->at, s->n, &s->cap, sizeof(*s->at));

	if (r == 0)
		s->at[s->n++] = (struct kept){.digest = *d, .committed = committed};
	return r;
}

static int by_digest(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct digest));
}

static void sort(struct set *s)
{
	if (s->n)
		qsort(s->at, s->n, sizeof(*s->at), by_digest);
}

static bool has(const struct set *s, const struct digest *d)
{
	return s->n && bsearch(d, s->at, s->n, sizeof(*s->at), by_digest);
}

/* ---- Life ---- */

int object_sweep_begin(struct store *s, struct object_sweep **ret)
{
	struct object_sweep *w = alloc_zero(sizeof(*w));

	_Static_assert(offsetof(struct kept, digest) == 0, "by_digest() compares the first member");
	if (!w)
		return -ENOMEM;
	if (!object_uses_sweep(s->uses)) {
		alloc_free(w);
		return -EBUSY;
	}
	w->store = s;
	*ret = w;
	return 0;
}

void object_sweep_end(struct object_sweep *w)
{
	if (!w)
		return;
	object_uses_swept(w->store->uses);
	alloc_free(w->layouts.at);
	alloc_free(w->declarations.at);
	alloc_free(w->jobs);
	alloc_free(w->objects);
	alloc_free(w);
}

int object_sweep_keep_layout(struct object_sweep *w, const struct digest *layout)
{
	return keep(&w->layouts, layout, false);
}

int object_sweep_keep_declaration(struct object_sweep *w, const struct digest *d)
{
	return keep(&w->declarations, d, false);
}

uint64_t object_sweep_removed(const struct object_sweep *w)
{
	return w->removed;
}

/* ---- What is in use ---- */

static int on_staged(void *arg, const struct staged *s)
{
	(void)arg;
	(void)s;
	return CKPT_ESTATE;
}

/* (2) */
static int check_incoming(struct object_sweep *w, struct err *e)
{
	int r = staging_each(w->store, on_staged, NULL, e);

	return r == CKPT_ESTATE ? err_set(e, r, "a tool has something in incoming/") : r;
}

static int on_job(void *arg, const struct job_id *id)
{
	struct object_sweep *w = arg;
	int r = grow((void **)&w->jobs, w->n_jobs, &w->cap_jobs, sizeof(*w->jobs));

	if (r == 0)
		w->jobs[w->n_jobs++] = *id;
	return r;
}

static int on_checkpoint(void *arg, const struct checkpoint_id *id,
			 const struct commit_file *commit, const struct err *why)
{
	struct object_sweep *w = arg;

	if (commit)
		return keep(&w->layouts, &commit->layout, true);
	if (why->code == CKPT_ENOTFOUND)
		return 0; /* its objects are written again with its COMMIT */
	return err_set(&w->why, CKPT_ESTATE, "the COMMIT of step %llu cannot be read: %.200s",
		       (unsigned long long)id->step, why->text); /* (3) */
}

static int read_jobs(struct object_sweep *w, struct err *e)
{
	int r = 0;

	if (!w->jobs && w->at == 0) {
		r = check_incoming(w, e);
		if (r == 0)
			r = store_each_job(w->store, on_job, w, e);
	}
	if (r < 0)
		return r;
	if (w->at == w->n_jobs) {
		sort(&w->layouts);
		w->phase = PHASE_LAYOUTS;
		w->at = 0;
		return 1;
	}
	r = store_each_checkpoint(w->store, &w->jobs[w->at++], on_checkpoint, w, e);
	if (r < 0 && w->why.code)
		*e = w->why;
	return r == -ENOENT ? 1 : r < 0 ? r : 1; /* ENOENT: its folder was removed meanwhile */
}

static int read_layout(struct object_sweep *w, const struct kept *k)
{
	CLEANUP_FREE struct digest *ranks = NULL;
	uint32_t world = 0;
	int r = layout_file_get(w->store, &k->digest, &ranks, &world, NULL);

	if (r == -ENOMEM)
		return r;
	if (r < 0 && (r != CKPT_ENOTFOUND || k->committed))
		w->layouts_only = true; /* (3) */
	for (uint32_t i = 0; r == 0 && i < world; i++)
		if (keep(&w->declarations, &ranks[i], k->committed) < 0)
			return -ENOMEM;
	return 0;
}

static int read_layouts(struct object_sweep *w)
{
	for (uint32_t i = 0; i < BATCH && w->at < w->layouts.n; w->at++) {
		const struct kept *k = &w->layouts.at[w->at];

		if (w->at && digest_equal(&k->digest, &k[-1].digest) &&
		    k[-1].committed == k->committed)
			continue;
		if (read_layout(w, k) < 0)
			return -ENOMEM;
		i++;
	}
	if (w->at < w->layouts.n)
		return 1;
	sort(&w->declarations);
	w->phase = PHASE_NAMES;
	return 1;
}

/* ---- What is there ---- */

static bool in_use(const struct object_sweep *w, const struct object *o)
{
	if (BUG(SWEEP_WHAT_IS_USED))
		return false;
	return has(o->layout ? &w->layouts : &w->declarations, &o->digest);
}

static int on_name(void *arg, const char *name, bool is_dir)
{
	struct object_sweep *w = arg;
	struct object o = {.layout = w->listing_layouts};
	size_t prefix = strlen(OBJECT_ASIDE);

	o.aside = strncmp(name, OBJECT_ASIDE, prefix) == 0;
	if (is_dir || hex_parse(o.digest.b, sizeof(o.digest.b), name + (o.aside ? prefix : 0)) < 0)
		return 0;
	if (w->n_objects == OBJECTS_MAX || (in_use(w, &o) && !o.aside))
		return 0;
	if (grow((void **)&w->objects, w->n_objects, &w->cap_objects, sizeof(o)) < 0)
		return -ENOMEM;
	w->objects[w->n_objects++] = o;
	return 0;
}

static int list_names(struct object_sweep *w, struct err *e)
{
	struct disk *d = w->store->disk;
	int r;

	w->listing_layouts = true;
	r = d->ops->list(d, "layouts", on_name, w);
	w->listing_layouts = false;
	if (r == 0 && !w->layouts_only)
		r = d->ops->list(d, "declarations", on_name, w);
	w->phase = PHASE_REMOVE;
	w->at = 0;
	return r < 0 ? err_code(e, r, "list declarations and layouts") : 1;
}

/* ---- Removal ---- */

static void paths(const struct object *o, char *name, char *aside)
{
	const char *folder = o->layout ? "layouts" : "declarations";
	char hex[ID_TEXT_MAX];

	hex_format(hex, o->digest.b, sizeof(o->digest.b));
	snprintf(name, DISK_PATH_MAX + 1, "%s/%s", folder, hex);
	snprintf(aside, DISK_PATH_MAX + 1, "%s/" OBJECT_ASIDE "%s", folder, hex);
}

static int set_aside(struct object_sweep *w, struct object *o)
{
	char name[DISK_PATH_MAX + 1], aside[DISK_PATH_MAX + 1];
	struct disk *d = w->store->disk;
	int r;

	if (o->aside)
		return 0;
	paths(o, name, aside);
	r = d->ops->rename(d, name, aside);
	if (r == 0 && FAULT(SWEEP_ASIDE))
		r = -EIO;
	o->aside = r == 0;
	return r == -ENOENT ? 0 : r;
}

/* An object at the original name was written since and stays: it may be better. */
static int put_back(struct disk *d, const char *aside, const char *name)
{
	int r = d->ops->link(d, aside, name);

	if (r == 0 || r == -EEXIST)
		return d->ops->unlink(d, aside);
	return d->ops->rename(d, aside, name); /* a file system without links */
}

static int settle(struct object_sweep *w, const struct object *o, bool spare)
{
	char name[DISK_PATH_MAX + 1], aside[DISK_PATH_MAX + 1];
	struct disk *d = w->store->disk;
	int r;

	if (!o->aside)
		return 0;
	paths(o, name, aside);
	if (spare || in_use(w, o))
		return put_back(d, aside, name);
	r = d->ops->unlink(d, aside);
	if (r == 0 && FAULT(SWEEP_REMOVED))
		r = -EIO;
	w->removed += r == 0;
	return r;
}

/* Settles every object that was set aside, also after an error. If that fails, readers and the next
 * sweep find the object at gone-<digest> (1). */
static int remove_batch(struct object_sweep *w, struct err *e)
{
	static const char *const folders[] = {"layouts", "declarations"};
	struct disk *d = w->store->disk;
	size_t end = min_u64(w->at + BATCH, w->n_objects);
	bool changed[2] = {0};
	int r = 0, wanted, one;

	for (size_t i = w->at; i < end && r == 0; i++)
		r = set_aside(w, &w->objects[i]);
	wanted = check_incoming(w, e); /* (2): after the renames */
	for (size_t i = w->at; i < end; i++) {
		struct object *o = &w->objects[i];
		bool stays = r < 0 || wanted < 0 || object_uses_has(w->store->uses, &o->digest);

		changed[!o->layout] |= o->aside;
		one = settle(w, o, stays);
		r = r < 0 ? r : one;
	}
	for (int i = 0; i < 2; i++) {
		one = changed[i] ? d->ops->sync_dir(d, folders[i]) : 0;
		r = r < 0 ? r : one;
	}
	w->at = end;
	if (r < 0)
		return err_code(e, r, "remove declarations and layouts");
	return wanted < 0 ? wanted : w->at < w->n_objects;
}

int object_sweep_slice(struct object_sweep *w, atomic_bool *cancel, struct err *e)
{
	if (atomic_load(cancel))
		return 0;
	switch (w->phase) {
	case PHASE_JOBS:
		return read_jobs(w, e);
	case PHASE_LAYOUTS:
		return read_layouts(w);
	case PHASE_NAMES:
		return list_names(w, e);
	case PHASE_REMOVE:
		break;
	}
	return w->n_objects ? remove_batch(w, e) : 0;
}
