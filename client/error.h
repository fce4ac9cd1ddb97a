/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.h - what the last failed call of this thread said.
 */
#ifndef CLIENT_ERROR_H
#define CLIENT_ERROR_H

#include "base/err.h"

/* Keeps "call: sentence" and returns code. Without a sentence the code's own text is used. */
int error_keep(const char *call, int code, const struct err *e);
/* The same for a call that succeeded without doing what was asked: code > 0. */
void error_note(const char *call, int code, const struct err *e);

#endif
