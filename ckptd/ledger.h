/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledger.h - what the memory of one job holds, written down in memory that outlives ckptd.
 *
 * One region per job, mapped by ckptd alone: a header and records, each with length, sequence
 * number and digest, so that a record torn by a crash is known and ignored, with all behind it.
 * Before it is full, what is still true is written into a new region, which counts only once its
 * last record says that it is whole; then the old one is destroyed. The state of memory is ledger
 * plus job log, never the index (design section 2). Formats: doc/ledger-format.md.
 *
 * Regions are made and destroyed by the owner, on workers (ledgering.c); writing is copying and
 * digesting in memory, 0.3 s a GiB. An append that does not fit makes its region itself and blocks
 * meanwhile: the owner has to avoid that. The owner puts payloads above LEDGER_INLINE_MAX into
 * regions of their own, annexes, which records name.
 *
 * The move takes slices of some hundred microseconds: the old region counts until the last one is
 * over, and records that come meanwhile go to both. A record that the next region gets before the
 * slice that writes its object changes nothing when it is replayed, or repeats what the slice says.
 */
#ifndef CKPTD_LEDGER_H
#define CKPTD_LEDGER_H

#include "base/bytes.h"
#include "base/conn.h"
#include "base/ids.h"
#include "base/memory.h"
#include "model/table.h"
#include "proto/origin.h"

#define LEDGER_PAYLOAD_MAX (1u << 30) /* bytes of one record */
/* Longer ones are written into a region of their own by a worker (an annex), and a record names it:
 * copying and digesting so many bytes takes a tenth of a millisecond, while a region costs a place
 * in the fd store and a request to it. */
#define LEDGER_INLINE_MAX (256u << 10)

struct ledger {
	struct memory *memory;
	struct job_id job;
	uint64_t folder_id;    /* of the data folder that has the job; 0: not known */
	struct region *region; /* NULL: there is nothing to describe */
	uint64_t generation; /* of the region */
	uint64_t handed;     /* the newest that a name was made for; names are never used twice */
	uint64_t used;       /* bytes of the region */
	uint64_t sequence;   /* of the next record */
	/* Writes what is still true and has no mark of this generation yet (ledger_due()), until
	 * the slice is over: then 1, there is more. 0: that was all. Set by the owner. */
	int (*rewrite)(void *owner, struct ledger *into);
	void *owner;
	bool rewriting, measuring;
	bool loose; /* something went since it was rewritten: it may be too large */
	/* Its header says that records may name annexes; the next region's will. */
	bool annexes, annexes_wanted;
	/* The region that it is being moved to; NULL: it is not. */
	struct region *next;
	uint64_t next_generation, next_used, next_sequence;
	bool next_full; /* it was too small for a record that came */
	uint64_t slice; /* while rewriting: what it may still cost */
	uint32_t slice_cost; /* of each, if not 0: for tests */
};

/* Makes and takes a first region. Waits for memory and for the fd store. */
MUST_CHECK int ledger_create(struct ledger *l, struct memory *m, const struct job_id *job);
void ledger_destroy(struct ledger *l);
/* The region goes back to the owner, to be destroyed. */
struct region *ledger_detach(struct ledger *l);

/* For a region that the owner makes: its name, and the number that goes with it. */
void ledger_next_name(struct ledger *l, char *buf, size_t size, uint64_t *ret_generation);
/*
 * Writes what is true into the region and goes on there; *ret_old is to be destroyed, NULL with the
 * first. CKPT_ESTALE: a newer one is in use; -ENOSPC: it is too small, -ENOMEM. Then the region is
 * still the caller's.
 */
MUST_CHECK int ledger_move(struct ledger *l, struct region *region, uint64_t generation,
			   struct region **ret_old);
/* The same in slices: takes the region, or fails. The ledger has a region already. */
MUST_CHECK int ledger_move_begin(struct ledger *l, struct region *region, uint64_t generation);
/* 1: there is more to do; 0: it has moved, *ret_old as above; on an error the caller gives the move
 * up. */
MUST_CHECK int ledger_move_slice(struct ledger *l, struct region **ret_old);
/* Ends a move; returns the region that it would have moved to, for the caller to destroy. */
struct region *ledger_move_give_up(struct ledger *l);
/* For rewrite(): whether an object must be written (which marks it), and whether the slice is
 * over. */
bool ledger_due(const struct ledger *into, uint64_t *mark);
bool ledger_slice_over(const struct ledger *into);
/* Bytes that a rewritten ledger would have; UINT64_MAX: there is no memory to find out. */
uint64_t ledger_live(const struct ledger *l);
/* The size of a region for so many, and room for so many `more` twice. */
uint64_t ledger_size(uint64_t live, uint64_t more);
uint64_t ledger_room(const struct ledger *l);

/* What is written down. Each returns 0, or why there is no room (-ENOMEM: the machine, -ENOSPC: the
 * budget, -EIO: the fd store), or -E2BIG: it is more than a record holds; then nothing has changed.
 */
MUST_CHECK int ledger_declaration(struct ledger *l, const struct digest *d, const void *bytes,
				  size_t len);
/* Its bytes are in that region, from byte 0 on. */
MUST_CHECK int ledger_declaration_in(struct ledger *l, const struct digest *d, uint64_t len,
				     const char *region);
MUST_CHECK int ledger_slot(struct ledger *l, uint32_t slot, uint32_t rank, const char *region,
			   const struct process_id *p);
MUST_CHECK int ledger_ready(struct ledger *l, uint32_t slot); /* mapped, sealed, EMPTY */
MUST_CHECK int ledger_assign(struct ledger *l, uint32_t slot, uint64_t credit);
struct ledger_seal {
	uint32_t slot, try_number, world;
	uint64_t step, epoch, image_len;
	struct attempt_id attempt;
	struct digest declaration;
	const struct blob_entry *blobs;
	uint32_t n_blobs;
	struct origin origin; /* of its rank */
};
MUST_CHECK int ledger_sealed(struct ledger *l, const struct ledger_seal *s);
MUST_CHECK int ledger_table(struct ledger *l, uint32_t slot, const void *table, size_t len);
/* d: of its bytes, which are in that region. */
MUST_CHECK int ledger_table_in(struct ledger *l, uint32_t slot, const struct digest *d,
			       uint64_t len, const char *region);
MUST_CHECK int ledger_empty(struct ledger *l, uint32_t slot);
MUST_CHECK int ledger_gone(struct ledger *l, uint32_t slot);
MUST_CHECK int ledger_member(struct ledger *l, uint32_t rank, const struct process_id *p,
			     uint64_t epoch, uint64_t credit, bool credit_unused,
			     uint64_t blob_bytes, const struct digest *declaration);
MUST_CHECK int ledger_left(struct ledger *l, uint32_t rank);

/* What a replay finds; pointers are valid during the call. */
struct ledger_reader {
	int (*declaration)(void *arg, const struct digest *d, const void *bytes, size_t len);
	int (*slot)(void *arg, uint32_t slot, uint32_t rank, const char *region,
		    const struct process_id *p);
	int (*ready)(void *arg, uint32_t slot);
	int (*assign)(void *arg, uint32_t slot, uint64_t credit);
	int (*sealed)(void *arg, const struct ledger_seal *s);
	int (*table)(void *arg, uint32_t slot, const void *table, size_t len);
	int (*empty)(void *arg, uint32_t slot);
	int (*gone)(void *arg, uint32_t slot);
	int (*member)(void *arg, uint32_t rank, const struct process_id *p, uint64_t epoch,
		      uint64_t credit, bool credit_unused, uint64_t blob_bytes,
		      const struct digest *declaration);
	int (*left)(void *arg, uint32_t rank);
	int (*declaration_in)(void *arg, const struct digest *d, uint64_t len, const char *region);
	int (*table_in)(void *arg, uint32_t slot, const struct digest *d, uint64_t len,
			const char *region);
};

enum ledger_kind {
	LEDGER_NONE,    /* damaged, or not whole */
	LEDGER_WHOLE,
	LEDGER_FOREIGN, /* whole, as far as can be told, of a version or with features not known */
};

/* The kind of the region, and its job. */
enum ledger_kind ledger_probe(const struct region *r, struct job_id *ret_job,
			      uint64_t *ret_generation);
/* The id of the data folder that has its job; 0: an older ckptd wrote it. false: no ledger that is
 * whole. */
bool ledger_folder_id(const struct region *r, uint64_t *ret, struct job_id *ret_job);
/* Describes a foreign one in e. */
void ledger_describe_foreign(const struct region *r, struct err *e);
/* Takes the region over and replays it; ends quietly at the first record that is not whole. */
MUST_CHECK int ledger_adopt(struct ledger *l, struct memory *m, struct region *r,
			    const struct ledger_reader *reader, void *arg, struct err *e);

#endif
