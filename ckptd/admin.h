/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin.h - what ckptctl asks of a running ckptd; answers are JSON (doc/json.md).
 */
#ifndef CKPTD_ADMIN_H
#define CKPTD_ADMIN_H

#include <jansson.h>

#include "base/near.h"
#include "ckptd/job.h"
#include "ckptd/session.h"

void admin_request(struct session *s, uint64_t request, const Ckpt__Admin *m);
/* Root and ckptd's own user see and change what is everybody's. */
bool admin_sees_all(struct session *s);
/* At most 32 bytes. */
json_t *admin_hex_json(const uint8_t *p, size_t len);
/* The job is its user's, or the user sees all. */
bool admin_may_see(struct session *s, const struct job *j);
/* doc is consumed; NULL: out of memory. */
void admin_reply_json(struct session *s, uint64_t request, json_t *doc);
/* The job that m->job names, of those that may be seen; NULL: there is none. */
struct job *admin_job(struct session *s, const Ckpt__Admin *m);
/* The job as the session's user names it, for a command in a sentence: another user's as UID/NAME,
 * since of one name that user may have a job, too. */
#define ADMIN_LABEL_MAX (CKPT_JOB_MAX + 16)
const char *admin_label(struct session *s, const struct job *j, char buf[ADMIN_LABEL_MAX]);
/* Whether other users, too, have a job that text means, and none is the session's own: names gets
 * them as UID/NAME. job: what admin_job() found. */
bool admin_is_ambiguous(struct session *s, const struct job *job, const char *text, char *names,
			size_t size);
/* " (did you mean 'JOB'?)", of the jobs that may be seen, or "". */
const char *admin_near_job(struct session *s, const char *text, char hint[NEAR_TEXT_MAX]);
/* admin_watching.c: verbs about events, verdicts and what follows from them. */
void admin_watching(struct session *s, uint64_t request, const Ckpt__Admin *m);
/* A checkpoint in the words of the protocol; points into it. */
void admin_fill_info(Ckpt__CheckpointInfo *i, struct checkpoint *c);

#endif
