/* SPDX-License-Identifier: Apache-2.0 */
/*
 * credits.h - which step the ranks of a job save next, and who may.
 */
#ifndef CKPTD_CREDITS_H
#define CKPTD_CREDITS_H

#include "ckptd/job.h"

/* Opens the next window when all ranks are done with the last one, and gives its credits. */
void credits_give(struct job *j);
/* A rank has sealed a step. */
void credits_sealed(struct member *m, uint64_t step);
/* A rank said that it does not save a step; gave_back: its credit is unused and gone. */
void credits_skipped(struct member *m, uint64_t step, bool gave_back);
/* A rank waits for a credit: whether its page has one, for its step or a later one. */
bool credits_has(const struct member *m);
/* Its credit came back unused. */
void credits_returned(struct member *m);
/* It is in the job's newest epoch now. */
void credits_entered(struct member *m);
/* One of the epoch has ended, or said goodbye. */
void credits_rank_left(struct job *j, uint32_t rank);
/* It is about to be freed. */
void credits_forget(struct member *m);
/* Fills a page that is made for it. */
void credits_fill_page(const struct member *m, struct session_page *page);
/* The first step of the credit that its page shows; CREDIT_NOT_YET: none. */
uint64_t credits_first(const struct member *m);
/* After a restart: the window that was open goes on. */
void credits_adopt(struct job *j);

#endif
