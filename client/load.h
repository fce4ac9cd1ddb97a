/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - one load: what is wanted of which checkpoint, and where it goes.
 */
#ifndef CLIENT_LOAD_H
#define CLIENT_LOAD_H

#include "client/client.h"

#define LOAD_TRIES_MAX 8

struct load_order {
	uint64_t step;
	int64_t timeout_ms;
	bool lenient;
	uint32_t min_trust;
	bool enter; /* the session is in the epoch when it is done */
	const struct wanted *wanted;
	const struct ckpt_binding *tensors; /* of wanted, checked, their devices usable */
	/* A read of a checkpoint that is named by its attempt, instead of a load of what is
	 * declared: NULL, or the message, what goes with it (-1: nothing), and blobs of any ranks.
	 */
	Ckpt__Read *read;
	int read_fd;
	const struct ckpt_stored_blob *blobs;
	uint32_t n_blobs;
};

/* CKPT_* bits, or an error. What it leaves behind is in c->loaded. */
MUST_CHECK int load_tries(struct ckpt *c, const struct load_order *o, struct ckpt_loaded *ret,
			  struct err *e);

#endif
