/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_priv.h - a load, as the files that carry it out share it: load.c, load_planning.c,
 * load_giving.c.
 */
#ifndef CKPTD_LOAD_PRIV_H
#define CKPTD_LOAD_PRIV_H

#include "ckptd/job.h"
#include "ckptd/load.h"
#include "ckptd/sharing.h"
#include "model/load_plan.h"
#include "model/stored.h"
#include "storage/shard_reader.h"

enum load_kind { LOAD_OWN, LOAD_READ, LOAD_LOOK };
enum load_state {
	LOAD_WAITING,
	LOAD_PLANNING,
	LOAD_GIVING,
	LOAD_GIVEN,
	LOAD_CHECKING,
	LOAD_CLOSING
};

/* One rank's snapshot as a source. */
struct source {
	uint32_t rank;
	enum load_source_kind kind;
	struct slot *slot;           /* LOAD_MEMORY */
	const void *table_bytes;
	size_t table_len;
	struct rank_table table;
	struct shard_footer footer; /* LOAD_FILE: a copy, as a rewrite may replace COMMIT */
	struct shard_reader reader;
	bool open, used;
};

struct load {
	struct list link;      /* in the session's loads */
	struct round_item waiting; /* in job->loads, LOAD_WAITING; job->checking, LOAD_CHECKING */
	struct work work;
	uint64_t id, request;
	struct session *session; /* NULL once its connection ended */
	struct session *owner;   /* whose quota it counts for until it is freed */
	struct job *job;
	struct store *store;
	enum load_state state;
	enum load_kind kind;
	bool latest, lenient;
	bool looks; /* its process has no rank: no epoch is opened for it, and none is its own */
	enum trust_level least; /* what it asks for */
	uint64_t step, epoch;
	struct attempt_id attempt;
	struct origin origin; /* of its rank, once it is complete */
	Ckpt__Origin origin_body;
	bool any_attempt;
	uint32_t rank, world;
	struct declared *wanted; /* LOAD_OWN */
	void *wants_bytes;       /* LOAD_READ: what came, then decoded on the worker */
	uint64_t wants_len;
	int wants_fd; /* -1: none */
	struct read_wants wants;
	struct memory *memory;
	struct wanted_by others;
	bool as_stored; /* every rank wants what the rank of its number saved */
	bool own_first; /* this one does */
	uint32_t bad_rank; /* whose file could not be opened; ALL_RANKS: none */
	bool bad_copy;  /* what failed is the fault of a file of the checkpoint */
	bool no_cache;  /* of the checkpoint */
	bool cached;    /* some file is read through the page cache */
	struct checkpoint *checkpoint;
	struct checkpoint_id checkpoint_id;
	struct source *sources;
	uint32_t n_sources;
	uint64_t plan_key;     /* random, for this load: see struct plan_limits */
	struct plan plan;      /* its problems: pieces end with what is encoded */
	struct writer encoded;
	int plan_fd;           /* what was encoded; -1: it was given, or is not there yet */
	uint32_t *order;       /* sources in the order of the plan */
	uint32_t n_order;
	uint32_t n_given;      /* sources, in that order */
	uint32_t files, twins; /* its owner's USER_LOAD_FILES, USER_LOAD_TWINS, */
	uint64_t plan_bytes;   /* and USER_PLAN_BYTES */
	uint64_t kept_bytes;   /* until its end, as its plan has come out: of memory, */
	uint32_t kept_files;   /* and files, */
	uint32_t kept_twins;   /* so many of them opened twice */
	struct task giving;    /* LOAD_GIVING: the next message */
	bool posted;           /* it will run */
	uint32_t check_source;
	uint64_t check_leaf;
	struct err err;
};

/* load.c. Not while a worker has it. */
void load_close(struct load *l);
/* Charges so much more to its owner until its end; else err says why that is refused. twins: of the
 * files, those that it has opened twice. */
MUST_CHECK int load_count(struct load *l, uint32_t files, uint32_t twins, uint64_t bytes);
/* Hands its work to a PLAN worker, charged to its user. */
void load_submit(struct load *l);

/* load_planning.c: on a PLAN worker. status and err describe what is wrong with the stored
 * files. */
void load_plan_run(struct work *w);

/* load_giving.c. */
void load_plan_done(struct work *w);
void load_give_error(struct load *l, int code, const char *text);
/* There is room for its next message. */
void load_give_on(struct load *l);
/* The process found a leaf that does not match: reads it again, answers and ends the load. */
void load_check(struct load *l, uint64_t request, uint32_t source, uint64_t leaf);

#endif
