/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watching_json.h - subjects and verdicts as JSON (doc/json.md), with names instead of numbers and
 * times of day instead of the detector's.
 */
#ifndef CKPTD_WATCHING_JSON_H
#define CKPTD_WATCHING_JSON_H

#include <jansson.h>

#include "ckptd/node.h"
#include "detect/verdict.h"

/* NULL: out of memory. */
json_t *watching_subject_json(struct node *n, const struct subject *s);
json_t *watching_verdict_json(struct node *n, const struct verdict *v);
/* {"samples", "words"}: whom the detector had no room for lately; null: nobody. Whose job that is
 * is not told to who may not see it. */
json_t *watching_refused_json(struct node *n, uint32_t uid, bool sees_all);
/* {"times", "words"}: the same of alarms. */
json_t *watching_dropped_json(struct node *n, uint32_t uid, bool sees_all);
/* Whether the user may see it. Verdicts of other users do not count where there is no room for all:
 * no user can crowd out what another may see. */
bool watching_is_seen(struct node *n, const struct verdict *v, uint32_t uid, bool sees_all);
/* Adds it to alarms, if uid may see it and it is of the node or of that job (empty: any). */
void watching_alarm_json(struct node *n, const struct verdict *v, const char *job, uint32_t uid,
			 bool sees_all, json_t *alarms);
/* Who may see it: the owner of its job, or EVENT_FOR_ALL. */
uint32_t watching_uid(struct node *n, const struct subject *s);
/* The same for a verdict: one on the node that rests on one user's jobs alone is that user's. */
uint32_t watching_verdict_uid(struct node *n, const struct verdict *v);
/* A time of the detector's clock as one of the day. */
uint64_t watching_wall(struct node *n, uint64_t time_ns);

#endif
