/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making_parts.h - a checkpoint that is being made, as its parts see it: making.c (ranks, bytes,
 * commit), making_journal.c (what an earlier run did), making_place.c (into jobs/).
 */
#ifndef TOOLS_MAKING_PARTS_H
#define TOOLS_MAKING_PARTS_H

#include "storage/beneath.h"
#include "storage/commit_file.h"
#include "storage/shard_stream.h"
#include "storage/staging.h"
#include "tools/making.h"

/*
 * Bytes of a note behind its head; what says to be longer is none. A rank's note has 24 bytes and a
 * digest for each leaf of each chunk: this is those of more than 40 GiB, so notes must not be
 * further apart than SYNC_EVERY_MAX.
 */
#define MAKING_NOTE_MAX (16u << 20)
#define SYNC_EVERY_MAX  (8ull << 30)

/* What a journal says of a rank that was begun and not finished. */
struct made {
	uint64_t n_chunks, data_end, stored;
	uint8_t *places;       /* owned */
	struct digest *leaves; /* owned */
};

struct making_rank_state {
	const void *bytes; /* of the declaration; the caller's */
	size_t len;
	struct declaration declaration;
	struct blob_entry *blobs; /* names are owned */
	const void **blob_bytes;
	uint32_t n_blobs;
	uint64_t names_len, image_len, table_max;
	struct shard_stream *stream; /* from the first put to finish */
	struct made made;
	uint64_t noted; /* chunks that the journal has */
	bool done;
	struct shard_footer footer; /* if so */
};

struct making {
	struct making_options o;
	char job[CKPT_JOB_MAX + 1];
	char *socket;    /* as given */
	char path[4096]; /* of the data folder */
	struct disk *disk;
	struct staging_disk staging;
	struct store real;  /* the folder as it is */
	struct store store; /* as the maker sees it (storage/staging.h) */
	struct stream_pool *pool;
	struct checkpoint_id id;
	struct digest layout;
	struct making_rank_state *ranks;
	uint32_t world;
	bool resumed, placed;
	bool names_unsynced;      /* of files that were begun since the last note */
	int error;                /* the first of a put or finish; final */
	struct disk_file *making; /* incoming/<job-id>.making, with its lock */
	uint64_t journal_end;     /* bytes of it that are good */
	uint64_t since;           /* bytes put since the last note */
	uint64_t freed;           /* dry_run: disk space that would be given back first */
};

/* ---- making.c ---- */

/* What is to become a data folder: itself, empty, or where it is not there yet the folder above,
 * unless make says that it is to be made in that. */
MUST_CHECK int making_open_place(const char *path, bool make, struct beneath *ret, struct err *e);
MUST_CHECK int making_open_folder(struct making *m, struct err *e);
MUST_CHECK int making_check_space(const struct making *m, struct err *e);

/* ---- making_journal.c ---- */

/* Finds what an earlier run left of the same checkpoint and takes it over, or draws an id and
 * begins anew. Needs everything of m up to the ranks. */
MUST_CHECK int making_begin(struct making *m, struct err *e);
/* dry_run: only finds it. */
MUST_CHECK int making_look(struct making *m, struct err *e);
/* What is durable of every open rank. */
MUST_CHECK int making_note_open(struct making *m, struct err *e);
MUST_CHECK int making_note_done(struct making *m, uint32_t rank, struct err *e);

/* ---- making_dry.c ---- */

/* What making_open() would refuse: everything of m behind the ranks. */
MUST_CHECK int making_open_dry(struct making *m, struct err *e);

/* ---- making_place.c ---- */

/* -EEXIST when the job's owner has one of its name. */
MUST_CHECK int making_check_name(const struct making *m, struct err *e);
/* Before anything is written: a ckptd that has the folder answers at m->socket. CKPT_EUNAVAILABLE:
 * somebody has it who does not. */
MUST_CHECK int making_check_ckptd(struct making *m, struct err *e);
/* From incoming/ to jobs/; a running ckptd is told. */
MUST_CHECK int making_place(struct making *m, struct err *e);

#endif
