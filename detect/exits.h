/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exits.h - what other rules ask of exits.c.
 */
#ifndef DETECT_EXITS_H
#define DETECT_EXITS_H

#include "detect/rules.h"

/* A process of this run ended, which was told or is about to be: what else stands still waits for
 * it. */
bool exits_told(const struct detector *d, const struct job *j);
/* Half of the ranks ended on purpose: what the others do has to be known, for hang_rests(). */
bool exits_asks(const struct detector *d, const struct job *j);

#endif
