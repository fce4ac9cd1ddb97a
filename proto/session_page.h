/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session_page.h - the page through which ckptd tells a rank what it must know without a message:
 * the job's epoch and the credit for the next save (I13: a save waits for nobody).
 *
 * ckptd writes, the process maps it read-only. Writer: slot and first step, then credit with
 * release. Reader: credit with acquire, then the others. A rank may use a credit once: it remembers
 * the last one it used. It uses it for its first save of credit_from or a later step: ckptd chooses
 * that step beyond every save that a rank has begun, so all ranks save the same one.
 * Little-endian, one page, never shrinks; fields are only added.
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
#define SESSION_FEATURE_LOOKS 2u /* an open that only looks takes no rank and gets no page */

#define CREDIT_NOT_YET UINT64_MAX /* of credit_from: the step is not chosen yet */

/* Why ckptd gives no credit. Values are those of enum ckpt_skip_reason. */
enum credit_block {
	BLOCK_NONE = 0,
	BLOCK_FILLING = 2,  /* blocked_rank has no free slot, and some that are not filled yet */
	BLOCK_OPENING = 4,  /* ckptd opens the epoch, or stops */
	BLOCK_MEMORY = 5,   /* the ledger, which describes the memory, needs more room */
	BLOCK_ABSENT = 6,   /* not all ranks have joined */
	BLOCK_UNPREPARED = 7, /* blocked_rank has no slots yet */
	BLOCK_NOT_LOADED = 8, /* blocked_rank has not entered the epoch by a load */
	BLOCK_SLOTS = 9,    /* every slot of blocked_rank holds a checkpoint that is still needed */
	BLOCK_BEHIND = 10,  /* blocked_rank has not saved the step of the last credit yet */
	BLOCK_LEFT = 14,    /* blocked_rank was in the epoch and has ended: no later one is given */
};

struct session_page {
	uint64_t magic;
	uint32_t version;
	uint32_t reserved;
	_Atomic uint64_t epoch;       /* of the job; differs from the rank's own: load first */
	_Atomic uint64_t credit;      /* the newest credit granted, from 1; 0: none yet */
	_Atomic uint32_t credit_slot; /* the slot to copy into with it */
	_Atomic uint32_t blocked;     /* enum credit_block: why there is no newer credit */
	_Atomic uint64_t credit_from; /* the first step to use it for; NOT_YET: wait */
	_Atomic uint32_t blocked_rank; /* of BLOCK_FILLING, BLOCK_UNPREPARED and the following */
	uint32_t zero;
	/* Steps that all ranks sealed and the job's log, which cannot be written, does not have. */
	_Atomic uint64_t uncommitted;
	_Atomic uint64_t uncommitted_from; /* the first of them */
};
_Static_assert(sizeof(struct session_page) <= SESSION_PAGE_BYTES, "one page");

#endif
