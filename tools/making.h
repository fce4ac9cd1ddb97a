/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making.h - a new checkpoint, written by a tool: the only one of a new job (I12).
 *
 *   open     its files are begun in <data>/incoming/, beside the jobs, where nobody looks for
 *            checkpoints; another process that makes the same one is refused
 *   put      bytes of each rank's image, written as they come, digested on the way
 *   commit   tables, footers, COMMIT, syncs: DURABLE. Then the folder gets its place in
 *            <data>/jobs/ by one rename, and a running ckptd is told; without one the next start
 *            finds it, like a job whose log was lost (I8)
 *   close    without commit: what was written is taken away, or stays for making_resume()
 *
 * No step touches anything that was there before.
 */
#ifndef TOOLS_MAKING_H
#define TOOLS_MAKING_H

#include "model/declaration.h"
#include "tools/ctl.h"

struct making;

struct making_blob {
	const char *name; /* NUL-terminated */
	const void *bytes;
	uint64_t len;
};

/* One rank of the new checkpoint. The declaration's and the blobs' bytes must stay until close: a
 * million tensors' need not be there twice. All else is copied. */
struct making_rank {
	const void *declaration; /* canonical bytes (declaration_finish()) */
	size_t declaration_len;
	const struct making_blob *blobs;
	uint32_t n_blobs;
};

struct making_options {
	const char *data;   /* data folder, as for data_open(); made if it is named and not there */
	const char *socket; /* of ckptd, to tell it; NULL: the usual places */
	const char *job;    /* the new job's name: refused where its owner has one of that name */
	uint32_t uid;       /* its owner */
	uint64_t step;
	struct digest from; /* of what it is made from: what an earlier run left of something else
			       is not gone on with; zero: not said */
	uint64_t memory;    /* bytes of buffers for all ranks; 0: 64 MiB */
	int compression;    /* zstd level; 0: off */
	uint64_t sync_every; /* with keep: bytes that are put between two notes of what is durable;
				0: 256 MiB; at most 8 GiB */
	bool dry_run; /* open only says what it would refuse, and writes nothing: what is asked
			 of the making may follow, then close; job may be NULL: not named yet */
	bool keep;          /* after a failure or a kill it stays for the next making_open() of the
			       same job, step and declarations, which goes on where it ended */
};

/*
 * -EEXIST: the owner has a job of this name; -EBUSY: another process makes one; CKPT_ENOSPACE;
 * -EINVAL: memory is too little, e says how much is needed; CKPT_ENOTFOUND: no data folder.
 */
MUST_CHECK int making_open(const struct making_options *o, const struct making_rank *ranks,
			   uint32_t world, struct making **ret, struct err *e);
/* Whether it goes on with what an earlier run left (keep). */
bool making_resumed(const struct making *m);
/* Whether rank's file was finished by an earlier run (keep): then nothing is put for it. */
bool making_has(const struct making *m, uint32_t rank);
/* Up to where rank's image is there already: what is put before is ignored. 0 in a new one, the
 * whole length where making_has(). */
uint64_t making_position(const struct making *m, uint32_t rank);
const char *making_path(const struct making *m); /* of the data folder */
/* Bytes of buffers that making_open() needs at least. */
uint64_t making_memory_least(int compression);
/* Bytes of tables that a rank takes beside them while it is open: from its first put to finish. */
uint64_t making_rank_bytes(uint64_t image_len);
/*
 * len bytes of rank's image from image_offset. Within a rank offsets rise and ranges do not
 * overlap; ranks may take turns. What nobody puts is zero. The bytes may be used again on return.
 * An error is final for the whole making; with keep, what was done before stays.
 */
MUST_CHECK int making_put(struct making *m, uint32_t rank, uint64_t image_offset, const void *bytes,
			  uint64_t len, struct err *e);
/* Rank's image is whole: its file is finished and synced. */
MUST_CHECK int making_finish(struct making *m, uint32_t rank, struct err *e);
/* All ranks are finished (those that are not are finished here). -EEXIST: somebody else has made a
 * job of this name meanwhile. CKPT_EUNAVAILABLE: a ckptd has the folder and does not answer: all is
 * written, and with keep the next run only publishes it. */
MUST_CHECK int making_commit(struct making *m, struct err *e);
void making_close(struct making *m); /* NULL is allowed */

#endif
