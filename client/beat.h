/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beat.h - what a handle remembers of its steps and phases, and the page that it writes them to.
 */
#ifndef CLIENT_BEAT_H
#define CLIENT_BEAT_H

#include <sys/types.h>

#include "base/err.h"
#include "ckpt.h"
#include "proto/beat_page.h"

struct beating;

/* In pages of its own, which a forked child finds wiped. */
MUST_CHECK int beating_new(struct beating **ret);
void beating_free(struct beating *b); /* NULL is allowed */
/*
 * Maps the page that came with an open, and goes on there; fd is closed. The page that it has
 * already is kept. One that cannot be used is none: beats go nowhere.
 */
void beating_take(struct beating *b, int fd);

/* Phases of the library's own calls: always begun and ended together. */
void beating_begin(struct beating *b, enum ckpt_phase phase, const char *what);
void beating_end(struct beating *b);
/* Whether it has begun to save this step, or a later one, in this epoch. */
bool beating_passed(const struct beating *b, uint64_t step, uint64_t epoch);
/* This step is saved, or skipped: a checkpoint that was wanted by then is not any more. */
void beating_saved(struct beating *b, uint64_t step, uint64_t epoch, bool waits);
/* That save does not wait any more. */
void beating_waited(struct beating *b);

#endif
