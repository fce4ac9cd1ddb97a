/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn_socket.h - one connection of the listener: messages with descriptors over SOCK_SEQPACKET.
 */
#ifndef CKPTD_CONN_SOCKET_H
#define CKPTD_CONN_SOCKET_H

#include "base/conn.h"
#include "base/err.h"
#include "base/loop.h"
#include "ckptd/log.h"
#include "ckptd/processes.h"

/* What all connections of one listener share; the listener's. */
struct conn_hub {
	struct loop *loop;
	const struct conn_events *events;
	void *events_arg;
	uint64_t handshake_ns; /* the first message must come within it */
	struct list conns;
	unsigned n_conns;
	struct log *log;
	struct log_limit limit;
	uint8_t buf[CONN_MESSAGE_MAX]; /* the message that is being delivered */
};

/* Takes fd and the hold on p, also on failure. Tells events->opened before it returns. */
MUST_CHECK int conn_socket_open(struct conn_hub *hub, int fd, struct process *p,
				const struct process_id *id);
/* How many connections of this uid there are. */
unsigned conn_hub_count(const struct conn_hub *hub, uint32_t uid);
/* Drops every connection without a word to the receiver. */
void conn_hub_drop_all(struct conn_hub *hub);

#endif
