/* SPDX-License-Identifier: Apache-2.0 */
/*
 * document.c - getters over JSON that was made here or by ckptd: never trusted to be complete, so
 * that a newer ckptctl reads an older ckptd's answers. One thread.
 */
#include <config.h>

#include "tools/document.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/near.h"
#include "tools/job_name.h"

/* ---- Fields ---- */

const char *doc_text(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

/* ckptd says "gone" from the moment on when no load begins to read the files, which are still there
 * then; a folder that is looked at says "expiring" of the same. */
const char *doc_disk_word(const json_t *checkpoint)
{
	const char *disk = doc_text(checkpoint, "disk");

	return strcmp(disk, "gone") == 0 ? "expiring" : disk;
}

uint64_t doc_number(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

bool doc_flag(const json_t *o, const char *key)
{
	return json_is_true(json_object_get(o, key));
}

bool doc_is(const json_t *o, const char *key, const char *text)
{
	return strcmp(doc_text(o, key), text) == 0;
}

json_t *doc_hex(const uint8_t *p, size_t len)
{
	char text[65];

	assert(len <= 32);
	hex_format(text, p, len);
	return json_string(text);
}

json_t *doc_count(uint64_t n)
{
	return json_integer((json_int_t)n);
}

json_t *doc_name(const char *name, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	json_t *o = json_stringn(name, len);
	struct writer w = { 0 };

	for (size_t i = 0; !o && i < len; i++) {
		unsigned char c = (unsigned char)name[i];
		char hex[4] = { '\\', 'x', digits[c >> 4], digits[c & 15] };

		write_bytes(&w, c < 0x80 ? &name[i] : hex, c < 0x80 ? 1 : sizeof(hex));
	}
	if (!o && !w.bad)
		o = json_stringn((const char *)w.buf, w.len);
	writer_free(&w);
	return o;
}

bool doc_id(const json_t *o, const char *key, uint8_t ret[16])
{
	return hex_parse(ret, 16, doc_text(o, key)) == 0;
}

/* ---- Order ---- */

static int compare(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int newest_first(const void *a, const void *b)
{
	const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
	int c = compare(doc_number(y, "epoch"), doc_number(x, "epoch"));

	if (c == 0)
		c = compare(doc_number(y, "step"), doc_number(x, "step"));
	return c ? c : strcmp(doc_text(x, "attempt"), doc_text(y, "attempt"));
}

static int by_name(const void *a, const void *b)
{
	const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
	int c = strcmp(doc_text(x, "job"), doc_text(y, "job"));

	if (c == 0)
		c = compare(doc_number(x, "uid"), doc_number(y, "uid"));
	return c ? c : strcmp(doc_text(x, "id"), doc_text(y, "id"));
}

static int sort_array(json_t *array, int (*order)(const void *, const void *))
{
	size_t n = json_array_size(array);
	CLEANUP_FREE json_t **items = alloc_array(n, sizeof(*items));

	if (!items)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		items[i] = json_incref(json_array_get(array, i));
	qsort(items, n, sizeof(*items), order);
	for (size_t i = 0; i < n; i++)
		json_array_set_new(array, i, items[i]);
	return 0;
}

int doc_sort(json_t *doc)
{
	json_t *jobs = json_object_get(doc, "jobs"), *job;
	size_t i;
	int r = sort_array(jobs, by_name);

	json_array_foreach(jobs, i, job)
		if (r == 0)
			r = sort_array(json_object_get(job, "checkpoints"), newest_first);
	return r;
}

/* ---- Names of jobs ---- */

int doc_keep_job(json_t *doc, const char *name, struct err *e)
{
	json_t *jobs = json_object_get(doc, "jobs");
	char hint[NEAR_TEXT_MAX];
	struct near near;

	near_begin(&near, name);
	for (size_t i = json_array_size(jobs); i-- > 0;) {
		json_t *job = json_array_get(jobs, i);

		near_try(&near, doc_text(job, "job"));
		if (!job_name_fits(name, doc_text(job, "job"), doc_number(job, "uid"),
				   doc_text(job, "id")))
			json_array_remove(jobs, i);
	}
	if (json_array_size(jobs) == 0)
		return err_set(e, CKPT_ENOTFOUND,
			       "there is no job '%s' %s%s: 'ckptctl status' lists them", name,
			       doc_is(doc, "source", "files") ? "in this folder" : "of yours here",
			       near_text(&near, hint));
	return 0;
}

int doc_only_job(json_t *doc, const char *name, json_t **ret, struct err *e)
{
	json_t *jobs = json_object_get(doc, "jobs"), *job, *own = NULL;
	struct job_names names = {0};
	size_t i;

	if (json_array_size(jobs) == 1) {
		*ret = json_array_get(jobs, 0);
		return 0;
	}
	json_array_foreach(jobs, i, job)
	{
		if (doc_number(job, "uid") == geteuid())
			own = job;
		job_name_add(&names, doc_text(job, "job"), doc_number(job, "uid"));
	}
	if (!own)
		return job_name_ambiguous(&names, name, e);
	*ret = own;
	return 0;
}

/* ---- Names of checkpoints ---- */

int spec_parse(const char *spec, uint64_t *ret_step, const char **ret_hex, struct err *e)
{
	char *end = NULL;
	uint64_t step;

	errno = 0;
	step = strtoull(spec, &end, 10);
	if (spec[0] < '0' || spec[0] > '9' || errno || (*end && *end != '.') ||
	    (*end == '.' && (!end[1] || end[1 + strspn(end + 1, "0123456789abcdef")] ||
			     strlen(end + 1) > 32)))
		return err_set(e, -EINVAL, "'%s' is no checkpoint: give STEP or STEP.ATTEMPT, the "
			       "attempt in lower-case hex or its first digits", spec);
	*ret_step = step;
	*ret_hex = *end ? end + 1 : end;
	return 0;
}

static bool is_meant(const json_t *c, uint64_t step, const char *hex, bool for_deed)
{
	return doc_number(c, "step") == step &&
	       strncmp(doc_text(c, "attempt"), hex, strlen(hex)) == 0 &&
	       (!for_deed || doc_is(c, "state", "committed"));
}

static int find_latest(json_t *job, json_t **ret, struct err *e)
{
	char label[JOB_LABEL_MAX];
	json_t *c;
	size_t i;

	json_array_foreach(json_object_get(job, "checkpoints"), i, c)
	{
		if (!doc_flag(c, "latest"))
			continue;
		*ret = c;
		return 0;
	}
	return err_set(e, CKPT_ENOTFOUND,
		       "job '%s' has no checkpoint that could be loaded: 'ckptctl list %s' shows "
		       "what it has",
		       doc_text(job, "job"), job_typed(label, job));
}

int doc_find_checkpoint(json_t *job, const char *spec, bool for_deed, json_t **ret, struct err *e)
{
	char label[JOB_LABEL_MAX];
	json_t *c, *found = NULL;
	const char *hex;
	uint64_t step;
	size_t i, n = 0;
	int r;

	if (!spec)
		return find_latest(job, ret, e);
	r = spec_parse(spec, &step, &hex, e);
	if (r < 0)
		return r;
	json_array_foreach(json_object_get(job, "checkpoints"), i, c) {
		if (!is_meant(c, step, hex, for_deed))
			continue;
		found = found ? found : c; /* newest first */
		n++;
	}
	if (n == 0)
		return err_set(e, CKPT_ENOTFOUND,
			       "job '%s' has no %scheckpoint %s: 'ckptctl list "
			       "%s' shows what it has",
			       doc_text(job, "job"), for_deed ? "committed " : "", spec,
			       job_typed(label, job));
	if (n > 1 && (for_deed || *hex))
		return err_set(e, -EINVAL,
			       "%zu checkpoints of job '%s' are called %s: give more of "
			       "the attempt, STEP.ATTEMPT, as 'ckptctl list %s -v' shows it",
			       n, doc_text(job, "job"), spec, job_typed(label, job));
	*ret = found;
	return 0;
}

static bool is_trusted(const json_t *c, enum trust_level least)
{
	enum trust_level level;

	return trust_parse(doc_text(c, "trust"), &level) && level >= least;
}

int doc_find_trusted(json_t *job, const char *spec, enum trust_level least, json_t **ret,
		     struct err *e)
{
	char label[JOB_LABEL_MAX];
	json_t *c = NULL, *o;
	size_t i;
	int r = spec || least == TRUST_LATEST ? doc_find_checkpoint(job, spec, false, &c, e) : 0;

	if (r < 0)
		return r;
	json_array_foreach(json_object_get(job, "checkpoints"), i, o)
	{
		if (c)
			break;
		if (is_trusted(o, least) && doc_is(o, "state", "committed") &&
		    (doc_flag(o, "memory") ||
		     (doc_is(o, "disk", "durable") && !doc_flag(o, "suspect"))))
			c = o;
	}
	if (!c || (least > TRUST_LATEST && !is_trusted(c, least)))
		return err_set(e, CKPT_ENOTFOUND,
			       "%s%s of job '%s' is %s: 'ckptctl trust %s' shows what it has",
			       spec ? "checkpoint " : "no checkpoint", spec ? spec : "",
			       doc_text(job, "job"),
			       spec ? doc_text(c, "trust") : trust_word(least),
			       job_typed(label, job));
	*ret = c;
	return 0;
}
