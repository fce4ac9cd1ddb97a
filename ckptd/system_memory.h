/* SPDX-License-Identifier: Apache-2.0 */
/*
 * system_memory.h - how much memory this process may have: the machine's and its cgroups' limits.
 */
#ifndef CKPTD_SYSTEM_MEMORY_H
#define CKPTD_SYSTEM_MEMORY_H

#include <stdint.h>

#include "base/err.h"

struct system_memory {
	uint64_t total;     /* RAM, or the least limit of our cgroup and those above it */
	uint64_t available; /* could be taken now without pushing anybody out */
};

/* root: "" or, in tests, a folder that has proc/ and sys/. cgroup v1, v2 and both. */
MUST_CHECK int system_memory_read(const char *root, struct system_memory *ret, struct err *e);

/* How many bytes of the mapping that starts at base are mapped by huge pages. */
uint64_t huge_pages_mapped(const void *base);

#endif
