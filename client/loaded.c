/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loaded.c - problems and blobs of the last load.
 */
#include <config.h>

#include "client/loaded.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "client/client.h"

#define PROBLEMS_MAX 1000

void loaded_blobs_free(struct loaded *l)
{
	for (uint32_t i = 0; i < l->n_blobs; i++) {
		alloc_free(l->blobs[i].name);
		alloc_free(l->blobs[i].data);
	}
	alloc_free(l->blobs);
	l->blobs = NULL;
	l->n_blobs = 0;
}

static void problems_free(struct loaded *l)
{
	for (uint32_t i = 0; i < l->n_problems; i++)
		alloc_free(l->problems[i]);
	alloc_free(l->problems);
	l->problems = NULL;
	l->n_problems = 0;
}

void loaded_free(struct loaded *l)
{
	if (!l)
		return;
	problems_free(l);
	loaded_blobs_free(l);
	alloc_free(l);
}

int loaded_problems(struct loaded *l, const Ckpt__LoadReply *m)
{
	uint32_t n = (uint32_t)min_u64(m->n_problems, PROBLEMS_MAX);

	problems_free(l);
	if (n == 0)
		return 0;
	l->problems = alloc_array(n, sizeof(*l->problems));
	if (!l->problems)
		return -ENOMEM;
	for (; l->n_problems < n; l->n_problems++) {
		l->problems[l->n_problems] = alloc_str(m->problems[l->n_problems]);
		if (!l->problems[l->n_problems])
			return -ENOMEM;
	}
	return 0;
}

/* ---- The calls ---- */

const char *ckpt_problem(struct ckpt *c, size_t i)
{
	const char *problem = NULL;

	if (call_enter(c, NULL) < 0)
		return NULL;
	if (c->loaded && i < c->loaded->n_problems)
		problem = c->loaded->problems[i];
	call_release(c);
	return problem;
}

int ckpt_blob_at(struct ckpt *c, size_t i, struct ckpt_blob *ret)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_blob_at", r, &e);
	if (!ret) {
		r = -EINVAL;
	} else if (!c->loaded || i >= c->loaded->n_blobs) {
		r = err_set(&e, CKPT_ENOTFOUND, "the last load has no blob %zu", i);
	} else {
		ret->name = c->loaded->blobs[i].name;
		ret->data = c->loaded->blobs[i].data;
		ret->bytes = c->loaded->blobs[i].bytes;
	}
	return call_leave_plain(c, "ckpt_blob_at", r, &e);
}

static int blob_get(const struct ckpt *c, const char *name, const void **ret, uint64_t *ret_bytes,
		    struct err *e)
{
	if (!name || !ret || !ret_bytes)
		return -EINVAL;
	for (uint32_t i = 0; c->loaded && i < c->loaded->n_blobs; i++) {
		if (strcmp(c->loaded->blobs[i].name, name) != 0)
			continue;
		*ret = c->loaded->blobs[i].data;
		*ret_bytes = c->loaded->blobs[i].bytes;
		return CKPT_OK;
	}
	return err_set(e, CKPT_ENOTFOUND, "the last load has no blob '%.100s'", name);
}

int ckpt_blob_get(struct ckpt *c, const char *name, const void **ret, uint64_t *ret_bytes)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_blob_get", r, &e);
	r = blob_get(c, name, ret, ret_bytes, &e);
	return call_leave_plain(c, "ckpt_blob_get", r, &e);
}
