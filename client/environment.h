/* SPDX-License-Identifier: Apache-2.0 */
/*
 * environment.h - who this process is and where ckptd listens: from the caller, else from the
 * environment that launchers set.
 */
#ifndef CLIENT_ENVIRONMENT_H
#define CLIENT_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define RUN_ID_BYTES_MAX 128
#define TOKEN_BYTES      32
#define SOCKETS_MAX	 2
#define SOCKET_PATH_MAX	 255
#define RANKS_MAX	 65536

struct identity {
	char job[CKPT_JOB_MAX + 1];
	uint32_t rank, world;
	char run_id[RUN_ID_BYTES_MAX + 1]; /* empty: ckptd makes one */
	uint8_t token[TOKEN_BYTES];
	uint32_t token_len;                /* bytes; 0: the uid is enough */
	char sockets[SOCKETS_MAX][SOCKET_PATH_MAX + 1]; /* tried in this order */
	uint32_t n_sockets;
	int64_t connect_ms;                /* 0: one try */
	uint64_t load_memory;              /* bytes that a load may have read and not yet placed */
	uint32_t min_trust;                /* of loads, by CKPT_MIN_TRUST */
	int64_t timeout_ms;                /* of calls with CKPT_DEFAULT_TIMEOUT */
	bool existing, trains, own_state;  /* CKPT_EXISTING, CKPT_TRAINS, CKPT_OWN_STATE */
	int (*interrupted)(void *arg);     /* NULL: none */
	void *interrupted_arg;
	bool assumed;                      /* nothing said rank and world: 0 of 1 */
};

/* opt may be NULL. -EINVAL with a sentence that names the variable at fault. */
MUST_CHECK int identity_find(const char *job, int rank, int world, const struct ckpt_options *opt,
			     struct identity *ret, struct err *e);
/* How many threads place what is loaded; wait_bound: most of them wait for a disk. */
uint32_t load_threads(uint32_t world, bool wait_bound);

#endif
