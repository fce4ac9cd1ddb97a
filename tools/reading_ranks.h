/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reading_ranks.h - an opened checkpoint as its two halves see it: reading.c (ranks, tensors) and
 * reading_fetch.c (plans, places).
 */
#ifndef TOOLS_READING_RANKS_H
#define TOOLS_READING_RANKS_H

#include "storage/shard_reader.h"
#include "tools/reading.h"

struct reading_rank {
	struct shard_reader shard; /* its file is closed: fd stands for it */
	int fd;                    /* with the file's shared lock; -1: not opened yet */
	bool loaded;               /* the tables of `shard` are in memory */
	uint64_t used;             /* reading.now of the last use */
};

/* A rank that stores some part of a tensor; a list. */
struct reading_holder {
	uint32_t rank;
	uint32_t next; /* index, or NO_HOLDER */
};
#define NO_HOLDER UINT32_MAX

struct reading_entry {
	struct reading_tensor tensor; /* its name is owned */
	uint32_t first, last;         /* holders */
};

struct reading {
	struct data data;
	const struct data_job *job;
	const struct data_checkpoint *checkpoint;
	struct reading_rank *ranks;
	uint64_t tables_max, tables; /* bytes: allowed, loaded now */
	uint64_t now;                /* counts fetches */
	uint64_t memory;
	uint32_t threads;
	struct reading_entry *entries;
	size_t n_entries, cap_entries;
	struct reading_holder *holders;
	size_t n_holders, cap_holders;
	uint32_t *slots; /* hash of names: index of an entry + 1, 0: free */
	size_t n_slots;  /* a power of two */
};

/* Has the rank's tables in memory; those that were used before r->now may go for them. */
MUST_CHECK int reading_load(struct reading *r, uint32_t rank, struct err *e);

#endif
