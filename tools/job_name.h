/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job_name.h - how a person names a job: NAME, UID/NAME, or its id. A name may be several users'.
 */
#ifndef TOOLS_JOB_NAME_H
#define TOOLS_JOB_NAME_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Whether text means the job. id: 32 hexadecimal digits. */
bool job_name_fits(const char *text, const char *name, uint64_t uid, const char *id);

/* USER/NAME as UID/NAME, in buf; any other text, and that of a user who is not known, as it is. */
#define JOB_TEXT_MAX 256
const char *job_name_by_uid(char buf[JOB_TEXT_MAX], const char *text);

/* Several users have jobs that text means: job_name_add() each, then the sentence. */
struct job_names {
	char text[256];
	size_t len, n;
};
void job_name_add(struct job_names *l, const char *name, uint64_t uid);
int job_name_ambiguous(const struct job_names *l, const char *text, struct err *e); /* -EINVAL */

/* The one job of those that data_read_jobs() has read; of several the caller's own, else -EINVAL.
 */
struct data;
struct data_job;
MUST_CHECK int job_name_only(const struct data *d, const char *text, struct data_job **ret,
			     struct err *e);
/* Of several none is the caller's to choose: -EINVAL. */
int job_name_several(const struct data *d, const char *text, struct err *e);

/* Jobs of one user are shown by name, of several as UID/NAME: so other verbs take them. job, and
 * each of jobs, has `job` and, but of an older ckptd, `uid`. */
#define JOB_LABEL_MAX 128
bool job_label_several(const json_t *jobs);
const char *job_label(char buf[JOB_LABEL_MAX], const json_t *job, bool several);
/* As this user types it in a command, where nothing but the job is meant: another user's as
 * UID/NAME. */
const char *job_typed(char buf[JOB_LABEL_MAX], const json_t *job);

#endif
