/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loaded.h - what a load leaves behind: problems and blobs, until the next load or close.
 */
#ifndef CLIENT_LOADED_H
#define CLIENT_LOADED_H

#include <stdint.h>

#include "base/err.h"
#include "proto/session.pb-c.h"

struct loaded_blob {
	char *name;
	void *data;
	uint64_t bytes;
};

struct loaded {
	char **problems;
	uint32_t n_problems;
	struct loaded_blob *blobs;
	uint32_t n_blobs;
};

/* Takes the reply's problems in place of those before. */
MUST_CHECK int loaded_problems(struct loaded *l, const Ckpt__LoadReply *m);
void loaded_blobs_free(struct loaded *l);
void loaded_free(struct loaded *l); /* NULL is allowed */

#endif
