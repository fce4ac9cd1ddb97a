/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.h - the connection to ckptd: whole messages with descriptors, never blocking by itself.
 */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/conn.h"
#include "base/err.h"
#include "client/clock.h"

struct channel {
	int fd; /* one number for life, for foreign event loops; -1 before the first connect */
	bool up;
	struct interrupt *interrupt; /* of what waits for it; NULL: none */
};

void channel_init(struct channel *ch);
void channel_fini(struct channel *ch);
/* -errno of the attempt; -EAGAIN: ckptd's queue of new connections is full, try again. */
MUST_CHECK int channel_connect(struct channel *ch, const char *path);
/* The number stays, but nothing will ever be readable on it until the next connect. */
void channel_drop(struct channel *ch);

/* 0, CKPT_ETIMEDOUT, or -errno: then the channel is of no more use, drop it. */
MUST_CHECK int channel_send(struct channel *ch, const void *msg, size_t len, int fd,
			    uint64_t deadline);
/*
 * One message if there is one: 0, -EAGAIN when there is none, -EPIPE at the end, -EMSGSIZE or
 * -EMFILE when it did not arrive whole. fds belong to the caller.
 */
MUST_CHECK int channel_receive(struct channel *ch, void *buf, size_t *ret_len,
			       int fds[CONN_FDS_MAX], size_t *ret_n_fds);
/* 0: readable; CKPT_ETIMEDOUT; or -errno. */
MUST_CHECK int channel_wait(struct channel *ch, uint64_t deadline);

#endif
