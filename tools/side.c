/* SPDX-License-Identifier: Apache-2.0 */
/*
 * side.c - see side.h. Names of jobs have neither '/' nor ':' nor '@', so that there is one way to
 * read a word, but for files whose names have these: what is there as a file is one.
 */
#include <config.h>

#include "tools/side.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/document.h"
#include "tools/exchange.h"

static int open_files(const char *path, struct source **ret, struct err *e)
{
	for (const struct exchange_format *f = exchange_formats; f->name; f++)
		if (exchange_detect(f, path))
			return exchange_open(f, path, ret, e);
	return err_set(e, -EINVAL,
		       "'%.200s' is of no format that is known; a checkpoint is named JOB@STEP or "
		       "FOLDER:JOB@STEP",
		       path);
}

int side_open(const char *word, const struct reading_options *given, struct source **ret,
	      struct err *e)
{
	struct reading_options o = *given;
	const char *colon = strrchr(word, ':'), *at;
	char folder[PATH_MAX], job[CKPT_JOB_MAX + 1];
	size_t len;
	int r;

	if (strchr(word, '/') && access(word, F_OK) == 0)
		return open_files(word, ret, e);
	if (colon) {
		if (snprintf(folder, sizeof(folder), "%.*s", (int)(colon - word), word) >=
		    (int)sizeof(folder))
			return err_code(e, -ENAMETOOLONG, "open '%.200s'", word);
		o.data = folder;
		word = colon + 1;
	} else if (strchr(word, '/')) {
		return err_code(e, -ENOENT, "open '%.250s'", word);
	}
	at = strchr(word, '@');
	len = at ? (size_t)(at - word) : strlen(word);
	if (len == 0 || len >= sizeof(job) || (at && !at[1]))
		return err_set(e, -EINVAL,
			       "'%.200s' names no checkpoint: give JOB@STEP, JOB, FOLDER:JOB@STEP, "
			       "or the path of a file",
			       word);
	memcpy(job, word, len);
	job[len] = '\0';
	o.job = job;
	o.step = at ? at + 1 : NULL;
	r = source_of_checkpoint(&o, ret, e);
	if (r == CKPT_ENOTFOUND && !at && !colon && access(word, F_OK) == 0)
		return err_set(e, r,
			       "there is no job '%.100s'; the file of that name is './%.100s'",
			       word, word);
	return r;
}

json_t *side_json(const struct source *s, const char *word)
{
	const struct commit_file *c;

	if (!s->reading)
		return json_pack("{s:o}", "path", doc_name(word, strlen(word)));
	c = reading_commit(s->reading);
	return json_pack("{s:s, s:o, s:I, s:o}", "job", c->job_name, "id",
			 doc_hex(c->id.job.b, sizeof(c->id.job.b)), "step", (json_int_t)c->id.step,
			 "attempt", doc_hex(c->id.attempt.b, sizeof(c->id.attempt.b)));
}
