/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.h - the parts of `ckptctl verify`: what is read (verify_shards.c), what lies about
 * (verify_leftovers.c), what is said of it (verify.c).
 */
#ifndef TOOLS_VERIFY_H
#define TOOLS_VERIFY_H

#include <stdatomic.h>

#include "tools/files.h"

#define SENTENCES_MAX 32 /* kept of one shard; the others are counted */

/* One shard file to be read again. */
struct shard_task {
	const struct checkpoint_id *id;
	const struct shard_footer *footer;
	const struct digest *declaration; /* that the layout says; NULL: it is not known */
	uint64_t bytes;                   /* to be read */
	int code;           /* of the shard as a whole; 0: its leaves were all compared */
	bool partial;       /* it lacks leaves that others should have */
	bool expired;       /* it went away meanwhile, as expired ones do */
	uint64_t bad_leaves, n_sentences;
	char *sentences[SENTENCES_MAX];
};

struct shard_tasks {
	struct store *store;
	struct shard_task *at;
	size_t n;
	uint64_t bytes;            /* of all */
	_Atomic size_t next;
	_Atomic uint64_t done;     /* bytes */
	_Atomic uint64_t problems; /* sentences so far */
};

/* Reads them all with n threads; shows a bar if wanted. *ret_seconds: how long it took. */
MUST_CHECK int shard_tasks_run(struct shard_tasks *t, uint32_t n, bool bar, double *ret_seconds,
			       struct err *e);
void shard_tasks_free(struct shard_tasks *t);
/* Whether an error is the file's fault, not the machine's: damage, not a lack of something. */
bool is_damage(int code);

/* Names that belong to no checkpoint: {path, reason} each. whole: of the whole folder, else of the
 * jobs that were read. */
MUST_CHECK int leftovers_add(struct data *d, bool whole, json_t *list, struct err *e);

#endif
