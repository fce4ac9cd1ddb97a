/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput_json.h - what the time of a job went to, as JSON: the file that ckptd keeps of it
 * (doc/goodput.md), and the answer to people (doc/json.md), from a running ckptd or from that file.
 */
#ifndef DETECT_GOODPUT_JSON_H
#define DETECT_GOODPUT_JSON_H

#include <jansson.h>

#include "detect/goodput.h"

#define GOODPUT_NS_MAX     (1ull << 59) /* 18 years, so that sums of all causes fit */
#define GOODPUT_FILE_BYTES (64u << 10)  /* at most */

/* NULL: out of memory. */
json_t *goodput_json_kept(const struct goodput *g, uint64_t wall_ns);
/* False: it is damaged; then *g and *ret_wall_ns are of no use. */
bool goodput_json_take(const json_t *doc, struct goodput *g, uint64_t *ret_wall_ns);
json_t *goodput_json_answer(const struct goodput *g);
/* How often it is advised to save to memory, in seconds; 0 or not finite: not known. */
double goodput_json_interval(const struct goodput *g);

#endif
