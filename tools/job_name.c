/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_name.c - see job_name.h. Names have no '/', so UID/NAME is one job's alone.
 */
#include <config.h>

#include "tools/job_name.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/document.h"
#include "tools/files.h"

bool job_name_fits(const char *text, const char *name, uint64_t uid, const char *id)
{
	char full[128];

	assert(text && name && id);
	if (strcmp(text, name) == 0 || strcmp(text, id) == 0)
		return true;
	snprintf(full, sizeof(full), "%" PRIu64 "/%s", uid, name);
	return strcmp(text, full) == 0;
}

const char *job_name_by_uid(char buf[JOB_TEXT_MAX], const char *text)
{
	const char *slash = strchr(text, '/');
	const struct passwd *p;

	/* Digits are an id, also where a user is called so. */
	if (!slash || slash - text >= JOB_TEXT_MAX ||
	    strspn(text, "0123456789") >= (size_t)(slash - text))
		return text;
	snprintf(buf, JOB_TEXT_MAX, "%.*s", (int)(slash - text), text);
	p = getpwnam(buf);
	if (!p)
		return text;
	assert(slash[0] == '/');
	if (snprintf(buf, JOB_TEXT_MAX, "%u%s", (unsigned)p->pw_uid, slash) >= JOB_TEXT_MAX)
		return text;
	return buf;
}

void job_name_add(struct job_names *l, const char *name, uint64_t uid)
{
	int n = snprintf(l->text + l->len, sizeof(l->text) - l->len, "%s%" PRIu64 "/%s",
			 l->n ? ", " : "", uid, name);

	l->n++;
	if (n < 0 || l->len + (size_t)n >= sizeof(l->text))
		l->text[l->len] = '\0'; /* what is whole is shown */
	else
		l->len += (size_t)n;
}

int job_name_ambiguous(const struct job_names *l, const char *text, struct err *e)
{
	assert(l->n > 1);
	return err_set(e, -EINVAL,
		       "%zu users have a job '%.64s': name one as UID/NAME (%s), or by its id, "
		       "which 'ckptctl status -v' shows",
		       l->n, text, l->text);
}

int job_name_several(const struct data *d, const char *text, struct err *e)
{
	struct job_names names = {0};

	for (size_t i = 0; i < d->n_jobs; i++)
		job_name_add(&names, d->jobs[i].name, d->jobs[i].uid);
	return job_name_ambiguous(&names, text, e);
}

int job_name_only(const struct data *d, const char *text, struct data_job **ret, struct err *e)
{
	assert(d->n_jobs > 0);
	*ret = d->n_jobs == 1 ? &d->jobs[0] : NULL;
	for (size_t i = 0; i < d->n_jobs && !*ret; i++)
		if (d->jobs[i].uid == getuid())
			*ret = &d->jobs[i];
	return *ret ? 0 : job_name_several(d, text, e);
}

bool job_label_several(const json_t *jobs)
{
	const json_t *first = NULL, *uid;
	json_t *job;
	size_t i;

	json_array_foreach(jobs, i, job)
	{
		uid = json_object_get(job, "uid");
		if (!json_is_integer(uid))
			continue;
		if (first && !json_equal((json_t *)first, (json_t *)uid))
			return true;
		first = uid;
	}
	return false;
}

const char *job_label(char buf[JOB_LABEL_MAX], const json_t *job, bool several)
{
	if (several && json_is_integer(json_object_get(job, "uid")))
		snprintf(buf, JOB_LABEL_MAX, "%" PRIu64 "/%.80s", doc_number(job, "uid"),
			 doc_text(job, "job"));
	else
		snprintf(buf, JOB_LABEL_MAX, "%.80s", doc_text(job, "job"));
	return buf;
}

const char *job_typed(char buf[JOB_LABEL_MAX], const json_t *job)
{
	return job_label(buf, job, doc_number(job, "uid") != getuid());
}
