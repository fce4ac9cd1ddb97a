/* SPDX-License-Identifier: Apache-2.0 */
/*
 * skip.c - why a save was skipped, in words: one row for each enum ckpt_skip_reason, two for
 * PASSED, as only a rank whose own steps do not rise has done something wrong.
 */
#include <config.h>

#include "client/skip.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/bytes.h"
#include "client/client.h"
#include "proto/session_page.h"

/* ckptd writes a block into the page, the library reads it as a reason. */
_Static_assert((int)BLOCK_FILLING == CKPT_SKIP_SLOTS && (int)BLOCK_OPENING == CKPT_SKIP_OPENING &&
		       (int)BLOCK_MEMORY == CKPT_SKIP_MEMORY &&
		       (int)BLOCK_ABSENT == CKPT_SKIP_ABSENT &&
		       (int)BLOCK_UNPREPARED == CKPT_SKIP_UNPREPARED &&
		       (int)BLOCK_NOT_LOADED == CKPT_SKIP_NOT_LOADED &&
		       (int)BLOCK_SLOTS == CKPT_SKIP_FULL &&
		       (int)BLOCK_BEHIND == CKPT_SKIP_BEHIND && (int)BLOCK_LEFT == CKPT_SKIP_LEFT,
	       "the same numbers in the page and in the library");

struct row {
	const char *why; /* of_rank: behind "rank N " */
	bool of_rank;
	const char *remedy;
	const char *verb; /* behind the remedy: of ckptctl; NULL: none */
};

static const struct row rows[] = {
	[CKPT_SKIP_NONE] = {"ckptd gave no credit", false, "see", "why"},
	[CKPT_SKIP_CALLER] = {"the trainer skipped it", false, "the trainer chose this", NULL},
	[CKPT_SKIP_SLOTS] = {"has memory for its saves that is still being prepared", true,
			     "call prepare before training, or give the save more time", NULL},
	[CKPT_SKIP_PASSED] = {"this rank has passed this step already", false,
			      "the steps of a run must rise: all ranks save a later step", NULL},
	[CKPT_SKIP_OPENING] = {"ckptd opens the job's epoch, or stops", false,
			       "a later save works; if none does, see", "why"},
	[CKPT_SKIP_MEMORY] =
		{"ckptd has no memory to describe another save", false,
		 "raise memory.budget (ckptd.conf, or ckptd --set memory.budget=SIZE); see",
		 "status"},
	[CKPT_SKIP_ABSENT] = {"not all ranks of the job are connected", false,
			      "for those that are see", "status"},
	[CKPT_SKIP_UNPREPARED] = {"has no memory for its saves yet", true, "see", "why"},
	[CKPT_SKIP_NOT_LOADED] = {"has not loaded in the job's epoch", true,
				  "every rank must load before it saves; see", "why"},
	[CKPT_SKIP_FULL] = {"has no free slot: its checkpoints are still being written", true,
			    "save less often, or look for what is slow with", "why"},
	[CKPT_SKIP_PENDING] = {"ckptd has not given the next credit yet", false,
			       "a later save works, or one that waits (CKPT_WAIT_CREDIT, in Python "
			       "wait_credit=True); if not, see",
			       "why"},
	[CKPT_SKIP_BEHIND] = {"has not saved the step before yet", true,
			      "save less often, or look for why it is slow with", "why"},
	[CKPT_SKIP_LEFT] = {"has ended, and no step can be saved without it", true,
			    "start the job again: its load goes on from the newest checkpoint; see",
			    "why"},
};

static const struct row passed_by_another = {
	"another rank is ahead and has skipped this step", false,
	"all ranks skip it then, and the next step that all save counts", NULL};

static const struct row *row_of(const struct save *s)
{
	int reason = s->skip_reason;

	if (reason == CKPT_SKIP_PASSED && !s->falls)
		return &passed_by_another;
	if (reason < 0 || (size_t)reason >= sizeof(rows) / sizeof(rows[0]) || !rows[reason].why)
		return &rows[CKPT_SKIP_NONE];
	return &rows[reason];
}

void skip_reason_text(const struct save *s, char ret[SKIP_TEXT_MAX])
{
	const struct row *r = row_of(s);

	if (r->of_rank)
		snprintf(ret, SKIP_TEXT_MAX, "rank %u %s", s->skip_rank, r->why);
	else
		snprintf(ret, SKIP_TEXT_MAX, "%s", r->why);
}

void skip_sentence(const struct save *s, const char *job, struct err *e)
{
	const struct row *r = row_of(s);
	char why[SKIP_TEXT_MAX], look[SKIP_TEXT_MAX] = "";

	skip_reason_text(s, why);
	if (r->verb)
		snprintf(look, sizeof(look), " `ckptctl %s %s`", r->verb, job);
	ignore_result(err_set(e, CKPT_SKIPPED, "step %llu of job '%s' was not saved: %s; %s%s",
			      (unsigned long long)s->step, job, why, r->remedy, look));
}
