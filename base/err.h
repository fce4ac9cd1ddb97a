/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err.h - errors as values: a negative int, and on cold paths a sentence with it.
 *
 * Codes are -errno or CKPT_E* (ckpt.h). Data paths carry the int alone. Cold paths take a
 * struct err last, owned by the caller; it says which object, what failed, why, and what to do,
 * and is wrapped outward: "open job 'x': read record 17: short read".
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>

#include "ckpt.h"

#define ERR_TEXT_MAX 400

struct err {
	int code;                /* 0: none */
	char text[ERR_TEXT_MAX]; /* NUL-terminated, cut if too long */
};

#define MUST_CHECK __attribute__((warn_unused_result))

/* Sets code and text and returns code. e may be NULL: only the code is wanted. This and the next
 * two replace control characters in the text: what is quoted cannot move a cursor. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "context: " before the text that is there and returns e->code (code when e is NULL). */
int err_wrap(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Like err_set(), with ": <text of code>" appended. */
int err_code(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void err_clear(struct err *e);

/* The process lacks memory or descriptors: it says nothing of what was asked for. */
bool err_is_shortage(int code);
/* A static text for any code of ours or -errno; never NULL. */
const char *err_text(int code);

/* A result that is neglected on purpose; the reason stands in a comment beside it. */
#define ignore_result(call)                                                                        \
	do {                                                                                       \
		int ignored_ = (call);                                                             \
		(void)ignored_;                                                                    \
	} while (0)

#endif
