/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refused.h - jobs whose folder or memory could not be read at the start: refused.c.
 */
#ifndef CKPTD_REFUSED_H
#define CKPTD_REFUSED_H

#include <jansson.h>

#include "ckptd/start.h"

struct refused_job {
	struct list link;
	struct job_id id;
	char name[CKPT_JOB_MAX + 1]; /* empty: nothing that could be read says it */
	uint32_t uid;                /* with a name */
	bool memory; /* it is of another version; else the folder */
	char why[ERR_TEXT_MAX];
	uint32_t holders; /* beside the list that it is in */
};

/* On the start's worker: f, of which not all could be read, becomes one of found->refused. */
MUST_CHECK int refused_note(struct node *n, struct found *found, struct found_job *f,
			    const struct err *why);
void refused_free(struct found *found); /* of a start that failed */
void refused_init(struct node *n);
void refused_fini(struct node *n);
/* On the loop: they become the node's, and are tried again each few seconds. */
void refused_take(struct node *n, struct found *found);
/* Whether a job of this name may not be made, since a refused one has it, or may have it: e says
 * which. */
bool refused_open(struct node *n, const char *name, uint32_t uid, bool has_token, struct err *e);
/* A job that was read, and whose memory is of another version: its regions are to be kept. */
MUST_CHECK int refused_for_memory(struct node *n, const struct record_job *job, const char *why);
/* If the user may see it: as a job of the document of `status`, at the end of jobs. */
void refused_json(const struct refused_job *r, uint32_t uid, bool all, const char *job,
		  json_t *jobs);
/* References to all refused jobs, which stay in memory until refused_let_go(). */
MUST_CHECK int refused_take_all(struct node *n, struct refused_job ***ret, size_t *ret_n);
void refused_let_go(struct refused_job **all, size_t n);
/* Whether a region's name is one of a refused job: its memory waits with it. */
bool refused_has_region(const struct node *n, const char *region);

#endif
