/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session_page.h - the page through which ckptd tells a rank what it must know without a message:
 * the job's epoch and the credit for the next save (I13: a save waits for nobody).
 *
 * ckptd writes, the process maps it read-only. Writer: slot first, then credit with release.
 * Reader: credit with acquire, then slot. A rank may use a credit once: it remembers the last one
 * it used. Little-endian, one page, never shrinks; fields are only added.
 */
#ifndef PROTO_SESSION_PAGE_H
#define PROTO_SESSION_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

#define SESSION_PAGE_MAGIC 0x6567617074706b63u /* "ckptpage" */
#define SESSION_PAGE_BYTES 4096u
#define SESSION_VERSION 1u

/* Bits of Hello and HelloReply: what each side can do beyond its version. */
#define SESSION_FEATURE_BEATS 1u /* a page for beats is given with an open (proto/beat_page.h) */

struct session_page {
	uint64_t magic;
	uint32_t version;
	uint32_t reserved;
	_Atomic uint64_t epoch;       /* of the job; differs from the rank's own: load first */
	_Atomic uint64_t credit;      /* the newest credit granted, from 1; 0: none yet */
	_Atomic uint32_t credit_slot; /* the slot to copy into with it */
};
_Static_assert(sizeof(struct session_page) <= SESSION_PAGE_BYTES, "one page");

#endif
