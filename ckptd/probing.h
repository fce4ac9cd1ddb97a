/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probing.h - the node's collectors, and the ranks whose processes the detector asks about.
 */
#ifndef CKPTD_PROBING_H
#define CKPTD_PROBING_H

#include <jansson.h>

#include "ckptd/node.h"

struct probing;

/* The detector of the node is there. Starts env.collectors where there are some; NULL then, or
 * where there is no detector. */
MUST_CHECK int probing_new(struct node *n, struct probing **ret);
/* Stops the collectors. NULL is allowed. */
void probing_free(struct probing *p);
/* What the detector's probe_fn says (detect/detector.h). */
void probing_wanted(struct node *n, uint32_t job, uint32_t rank, bool wanted);

/* What is collected, and what cannot be, for `status`; an array, NULL without memory. */
json_t *probing_json(const struct node *n);

#endif
