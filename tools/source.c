/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.c - see source.h: checkpoints as sources, choosing tensors, cutting them into slabs.
 */
#include <config.h>

#include "tools/source.h"

#include <assert.h>
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"

int source_foreign_error(int r)
{
	switch (r) {
	case CKPT_ECORRUPT:
	case CKPT_EIO:
	case CKPT_ELOST:
	case CKPT_ESTATE:
	case -EIO:
	case -EAGAIN:
	case -EBUSY:
		return CKPT_EPROTO;
	default:
		return r;
	}
}

int source_pull(struct source *s, const struct reading_want *wants, size_t n, struct err *e)
{
	int r;

	beneath_lend(&s->rights);
	r = s->ops->fetch(s, wants, n, e);
	beneath_own_rights(&s->rights);
	return s->reading ? r : source_foreign_error(r);
}

/* ---- A checkpoint ---- */

struct checkpoint_source {
	struct source s;
	struct reading_tensor *tensors;
	char what[CKPT_JOB_MAX + 64];
};

static int checkpoint_fetch(struct source *s, const struct reading_want *wants, size_t n,
			    struct err *e)
{
	return reading_fetch(s->reading, wants, n, NULL, e);
}

static void checkpoint_close(struct source *s)
{
	struct checkpoint_source *c = (struct checkpoint_source *)s;

	reading_close(s->reading);
	alloc_free(c->tensors);
	alloc_free(c);
}

int source_of_checkpoint(const struct reading_options *o, struct source **ret, struct err *e)
{
	static const struct source_ops ops = {.fetch = checkpoint_fetch, .close = checkpoint_close};
	struct checkpoint_source *c = alloc_zero(sizeof(*c));
	const struct commit_file *commit;
	int r;

	if (!c)
		return err_code(e, -ENOMEM, "open job '%s'", o->job);
	c->s.ops = &ops;
	r = reading_open(o, &c->s.reading, e);
	if (r < 0) {
		alloc_free(c);
		return r;
	}
	commit = reading_commit(c->s.reading);
	snprintf(c->what, sizeof(c->what), "job '%s', step %" PRIu64, commit->job_name,
		 commit->id.step);
	c->s.what = c->what;
	c->s.n = reading_n_tensors(c->s.reading);
	c->tensors = alloc_array(c->s.n, sizeof(*c->tensors));
	if (!c->tensors) {
		checkpoint_close(&c->s);
		return err_code(e, -ENOMEM, "open job '%s'", o->job);
	}
	for (size_t i = 0; i < c->s.n; i++)
		c->tensors[i] = *reading_tensor(c->s.reading, i);
	c->s.tensors = c->tensors;
	*ret = &c->s;
	return 0;
}

/* ---- Names ---- */

static bool glob_matches(const char *glob, const char *name, uint32_t name_len)
{
	char text[CKPT_NAME_MAX + 1];

	assert(name_len <= CKPT_NAME_MAX);
	memcpy(text, name, name_len);
	text[name_len] = '\0';
	return fnmatch(glob, text, 0) == 0;
}

bool name_is_chosen(const struct words *globs, const char *name, uint32_t name_len)
{
	bool chosen = false, any = false;

	for (uint32_t i = 0; i < globs->n; i++) {
		const char *glob = globs->at[i];

		if (glob[0] == '!' && glob_matches(glob + 1, name, name_len))
			return false;
		any |= glob[0] != '!';
		chosen |= glob[0] != '!' && glob_matches(glob, name, name_len);
	}
	return chosen || !any;
}

/* A pattern that is like nothing was meant to be like something. */
static int check_globs(const struct source *s, const struct words *globs, struct err *e)
{
	for (uint32_t k = 0; k < globs->n; k++) {
		const char *glob = globs->at[k] + (globs->at[k][0] == '!');
		size_t i = 0;

		while (i < s->n && !glob_matches(glob, s->tensors[i].name, s->tensors[i].name_len))
			i++;
		if (i == s->n)
			return err_set(e, CKPT_ENOTFOUND,
				       "%.150s: no tensor is called like "
				       "'%.150s'",
				       s->what, glob);
	}
	return 0;
}

int source_choose(const struct source *s, const struct words *globs, size_t **ret, size_t *ret_n,
		  struct err *e)
{
	size_t *chosen, n = 0;
	int r = check_globs(s, globs, e);

	if (r < 0)
		return r;
	chosen = alloc_array(s->n, sizeof(*chosen));
	if (!chosen)
		return err_code(e, -ENOMEM, "choose tensors");
	for (size_t i = 0; i < s->n; i++)
		if (name_is_chosen(globs, s->tensors[i].name, s->tensors[i].name_len))
			chosen[n++] = i;
	*ret = chosen;
	*ret_n = n;
	return 0;
}

/* ---- Runs ---- */

/* Elements of a box that lie one behind the other in the tensor: *ret_from is the first dimension
 * that they span. */
static uint64_t run_length(const struct box *b, const struct shape *global, uint32_t *ret_from)
{
	uint64_t n = 1;
	uint32_t k = b->ndim;

	while (k > 0) {
		k--;
		n *= b->length[k];
		if (b->length[k] != global->dim[k])
			break;
	}
	*ret_from = k;
	return n;
}

static int box_each_run(const struct box *b, const struct reading_tensor *t, uint8_t **to,
			want_run_fn *fn, void *arg, struct err *e)
{
	struct box whole = {.ndim = b->ndim};
	uint64_t at[CKPT_NDIM_MAX], n;
	uint32_t from, k;

	memcpy(whole.length, t->global.dim, sizeof(whole.length));
	memcpy(at, b->offset, sizeof(at));
	n = run_length(b, &t->global, &from);
	do {
		int r = fn(arg, box_index(&whole, at), n, *to, e);

		if (r != 0)
			return r;
		*to += n * dtype_bytes(t->dtype);
		for (k = from; k-- > 0;) { /* the next one, as on a counter */
			if (++at[k] < b->offset[k] + b->length[k])
				break;
			at[k] = b->offset[k];
		}
	} while (k != UINT32_MAX);
	return 0;
}

int want_each_run(const struct reading_want *w, const struct reading_tensor *t, want_run_fn *fn,
		  void *arg, struct err *e)
{
	struct box boxes[FLAT_BOXES_MAX];
	int n = flat_to_boxes(&w->box, w->start, w->stop, boxes), r = 0;
	uint8_t *to = w->to;

	assert(box_inside(&w->box, &t->global));
	for (int i = 0; r == 0 && i < n; i++)
		r = box_each_run(&boxes[i], t, &to, fn, arg, e);
	return r;
}

/* ---- Slabs ---- */

size_t slabs_next(struct slabs *s, struct slab ret[SLABS_MAX])
{
	uint64_t left = s->memory;
	size_t n = 0;

	while (s->at < s->n && n < SLABS_MAX) {
		const struct slab_item *item = &s->items[s->at];
		uint64_t rest = item->elements - s->start, take;

		assert(s->start <= item->elements && item->cost > 0);
		take = min_u64(rest, left / item->cost);
		/* Large ones are not begun in what others left over; one element always fits. */
		if (rest && (take == 0 || (take < rest && n > 0))) {
			if (n > 0)
				break;
			take = 1;
		}
		if (take) {
			ret[n++] = (struct slab){s->at, s->start, s->start + take};
			left -= min_u64(left, take * item->cost);
		}
		s->start += take;
		if (s->start == item->elements) {
			s->at++;
			s->start = 0;
		}
	}
	return n;
}
