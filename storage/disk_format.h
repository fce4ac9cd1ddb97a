/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_format.h - how each file of the data folder begins and ends: 48 bytes of magic, version,
 * lengths and three feature sets, as model/ begins its tables; the last 16 bytes of what is covered
 * are the digest of all before them.
 *
 * A reader that does not know a bit of: incompat - must not touch the file; ro - may read but not
 * write the data folder; compat - may ignore it. As in ext4. Pure.
 */
#ifndef STORAGE_DISK_FORMAT_H
#define STORAGE_DISK_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DISK_FORMAT_HEAD 48u
#define DISK_FORMAT_DIGEST 16u
#define DISK_FORMAT_VERSION 1u

/* Incompat features that this version knows. */
#define SHARD_LEAVES_MISSING (1ull << 0) /* header of a shard file: other files have the rest */

enum format_kind { FORMAT_FOLDER, FORMAT_SHARD, FORMAT_FOOTER, FORMAT_COMMIT, FORMAT_KINDS };

/* First 48 bytes. fixed: bytes of the fixed part, head included; len: all that the digest ends. */
void format_begin(uint8_t *buf, enum format_kind kind, uint32_t fixed, uint64_t len);
/* Last 16 of len bytes. */
void format_end(uint8_t *buf, size_t len);
/* Magic, digest over len bytes, then version and features, so that damage is not taken for a newer
 * version. what: the object, for messages ("footer of rank 3"). *ret_read_only: unknown ro bits. */
MUST_CHECK int format_check(const uint8_t *buf, size_t len, enum format_kind kind, uint32_t fixed,
			    const char *what, bool *ret_read_only, struct err *e);

/* Between begin and end: what a reader must know; and what of it is set, once it was checked. */
void format_set_incompat(uint8_t *buf, uint64_t features);
uint64_t format_incompat(const uint8_t *buf);

/* Whether all bytes are zero: gaps and padding are, so that every byte of a file is checked. */
bool bytes_are_zero(const uint8_t *p, size_t len);

#endif
