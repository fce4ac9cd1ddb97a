/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfd.h - what is too large for a message travels in a sealed memfd beside it.
 */
#ifndef CLIENT_MEMFD_H
#define CLIENT_MEMFD_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* A sealed memfd with these bytes, or -errno. */
MUST_CHECK int memfd_from_bytes(const void *bytes, size_t len);
/* A private copy of what fd holds, at most max bytes; the caller frees it. What the other side does
 * to its memfd afterwards changes nothing. */
MUST_CHECK int memfd_read(int fd, uint64_t max, void **ret, size_t *ret_len);

#endif
