/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silence.h - what other rules ask of silence.c.
 */
#ifndef DETECT_SILENCE_H
#define DETECT_SILENCE_H

#include "detect/rules.h"

/* It is silent, or has been for so long that this may soon be said. */
bool silence_suspects(const struct detector *d, uint32_t node);

#endif
