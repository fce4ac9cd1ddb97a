/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beats.h - what the ranks of this node say of their steps and phases, made into samples.
 *
 * A rank that can beat (SESSION_FEATURE_BEATS) gets a page when it joins (proto/beat_page.h). All
 * on the loop's thread.
 */
#ifndef CKPTD_BEATS_H
#define CKPTD_BEATS_H

#include "ckptd/beat_reader.h"
#include "ckptd/job.h"

/* ---- For member.c, epoch.c, adopt.c ---- */

/* It joins, or comes back (again: it keeps the page that it has). Without memory for a page it
 * beats to nobody. */
void beats_join(struct member *m, bool again);
/* A descriptor of its page to send away, or -errno. */
MUST_CHECK int beats_export(const struct member *m);
void beats_leave(struct member *m);
/* This process's memory only. */
void beats_free(struct member *m);
/* After a restart: the pages of the job's members, taken out of the list. */
void beats_adopt(struct job *j, struct list *regions);

/* ---- For whoever watches ---- */

/*
 * Tells node_sample() of all that the ranks have written until now. Who gives a sample of now to
 * the detector calls it first: then times do not go back. false: there are too many for one turn of
 * the loop; the next ones go on by themselves.
 */
bool beats_scan(struct node *n);
/* Where it is; false: it has no page. */
bool beats_now(const struct member *m, struct beat_now *ret);
/* The newest step that was told; false: none was. */
bool beats_told(const struct member *m, uint64_t *ret_step);
/* All that was read of its page; NULL: it has none. */
const struct beat_reader *beats_reader(const struct member *m);
/* A new object, or null: doc/json.md, rank. */
struct json_t *beats_json(const struct member *m);
/* The next ckptd will read it on. */
bool beats_kept(const struct member *m);
/* NULL: it has none. */
const struct beat_page *beats_page(const struct member *m);
/* The page says to the next ckptd which credit the rank has been given: beat_page.h. */
void beats_note_credit(struct member *m);
uint64_t beats_credit(const struct member *m); /* 0: it does not say */
/* Ranks with the same role do the same work; "": it does not say. */
const char *beats_role(const struct member *m);

/* ---- A checkpoint that ckptd wants ---- */

/*
 * Asks all ranks to save at *ret_step, which none of them has come near to: each sees it in its
 * page before it gets there, so all save the same step without a word between them. -EAGAIN: not
 * every rank is here, or one does not beat; the sentence says which.
 */
MUST_CHECK int beats_ask_save(struct job *j, uint64_t *ret_step, struct err *e);
/* The job goes on from another checkpoint: what was asked for is not wanted any more. */
void beats_forget_save(struct job *j);

#endif
