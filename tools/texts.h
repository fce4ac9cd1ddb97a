/* SPDX-License-Identifier: Apache-2.0 */
/*
 * texts.h - many short texts that are kept together and given back together: names of tensors, of
 * which a million as blocks of their own would take twice their bytes. One thread.
 */
#ifndef TOOLS_TEXTS_H
#define TOOLS_TEXTS_H

#include <stddef.h>

struct texts_block;

struct texts { /* zeroed: empty */
	struct texts_block *last;
};

/* A copy of len bytes with a NUL behind it, which stays where it is; NULL: no memory. */
char *texts_keep(struct texts *t, const char *text, size_t len);
void texts_fini(struct texts *t);

#endif
