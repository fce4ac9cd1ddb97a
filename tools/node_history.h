/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_history.h - what ckptd has kept of what happened, read from the files of its data folder:
 * the documents of `events`, `why` and `goodput`, as a running ckptd answers them (doc/json.md), as
 * far as the files have it. The folder is that of --data.
 */
#ifndef TOOLS_NODE_HISTORY_H
#define TOOLS_NODE_HISTORY_H

#include <jansson.h>

#include "tools/ctl.h"

/* Those with a higher number than since, and not before that time of day. */
MUST_CHECK int node_history_events(const struct ctl *c, uint64_t since, uint64_t since_ns,
				   json_t **ret, struct err *e);
/* text: a subject, as a person names it; "": of all. CKPT_ENOTFOUND: the files name none such. */
MUST_CHECK int node_history_why(const struct ctl *c, const char *text, json_t **ret, struct err *e);
/* CKPT_ENOTFOUND: no such job, or no ckptd has kept it. */
MUST_CHECK int node_history_goodput(const struct ctl *c, const char *job, json_t **ret,
				    struct err *e);

#endif
