/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang.h - what other rules ask of hang.c.
 */
#ifndef DETECT_HANG_H
#define DETECT_HANG_H

#include "detect/rules.h"

/* A stall of the job was told and lasts: processes that end now do so because of it. */
bool hang_told(const struct detector *d, const struct job *j);

#endif
