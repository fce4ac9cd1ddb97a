/* SPDX-License-Identifier: Apache-2.0 */
/* judge.h - `replay check`: is the detector good enough? The bounds stand in doc/trace-model.md. */
#ifndef DETECT_REPLAY_JUDGE_H
#define DETECT_REPLAY_JUDGE_H

#include "detect/replay/score.h"

/*
 * Says of each figure "ok" or "not ok", a line each; returns how many are not. fixed: the figures
 * themselves are judged; else only whether chance alone can explain a miss.
 */
unsigned judge(const struct tallies *t, uint64_t seed, bool fixed, FILE *out);

#endif
