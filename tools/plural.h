/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plural.h - the end of a word behind a number: "%zu tensor%s", n, plural(n).
 */
#ifndef TOOLS_PLURAL_H
#define TOOLS_PLURAL_H

#include <stdint.h>

static inline const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

#endif
