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
/* Of what stands against s and what it holds (NULL: all) the newest `most` that uid may see, newest
 * first; no note where there is no room for an alarm. Others' are not counted: nobody hides from
 * him what is his. Returns how many; *ret_more: how many more there are. */
size_t watching_shown(struct node *n, const struct subject *s, uint32_t uid, bool sees_all,
		      struct verdict *ret, size_t most, size_t *ret_more);
/* The alarms that stand and that uid may see, newest first; of all jobs, or of the one called so
 * and of the node. */
json_t *watching_alarms_json(struct node *n, const char *job, uint32_t uid, bool sees_all);
/* Who may see it: the owner of its job, or EVENT_FOR_ALL. */
uint32_t watching_uid(struct node *n, const struct subject *s);
/* A time of the detector's clock as one of the day. */
uint64_t watching_wall(struct node *n, uint64_t time_ns);

#endif
