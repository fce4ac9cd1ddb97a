/* SPDX-License-Identifier: Apache-2.0 */
/*
 * skip.h - why a save was skipped, in words.
 */
#ifndef CLIENT_SKIP_H
#define CLIENT_SKIP_H

#include "base/err.h"

struct save;

#define SKIP_TEXT_MAX ERR_TEXT_MAX /* a sentence of a struct err goes in whole */

/* The reason for ckptd's log and its status: at most SKIP_TEXT_MAX bytes. */
void skip_reason_text(const struct save *s, char ret[SKIP_TEXT_MAX]);
/* The sentence for the trainer: what was skipped, why, what to do. */
void skip_sentence(const struct save *s, const char *job, struct err *e);

#endif
