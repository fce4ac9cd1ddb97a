/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.h - how the headers of declarations and rank tables begin and end: magic, version,
 * feature sets, length, digest.
 *
 * Of the FORMAT_HEADER_BYTES bytes the first FORMAT_HEAD_BYTES and the last 16, a digest of those
 * before it, are the same in every format and every version. Feature sets as in ext4: incompat
 * (unknown: refuse), ro (unknown: read only; these bytes are never changed, so it says nothing to
 * us), compat (unknown: ignore).
 */
#ifndef MODEL_FORMAT_H
#define MODEL_FORMAT_H

#include "base/bytes.h"
#include "base/ids.h"

#define FORMAT_HEADER_BYTES 128u
#define FORMAT_HEAD_BYTES   48u
#define FORMAT_VERSION      1u

#define FORMAT_INCOMPAT_KNOWN 0u /* features of this code */

/* Writes the first FORMAT_HEAD_BYTES: magic, version, header bytes, feature sets, total length. */
void format_head_put(uint8_t *header, const char magic[8], uint64_t total);
/* Writes the digest once the rest of the header is in place. */
void format_head_seal(uint8_t *header);
/*
 * Checks magic, digest, version and features of a header; what names the object in the sentence.
 * CKPT_EPROTO: not such an object; CKPT_ECORRUPT: damaged; CKPT_EVERSION: from the future.
 */
MUST_CHECK int format_head_check(const uint8_t *header, size_t len, const char magic[8],
				 const char *what, uint64_t *ret_total, struct err *e);

#endif
