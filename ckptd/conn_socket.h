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
#include "ckptd/receiver.h"

/* What the connections of one uid hold together. */
struct conn_user {
	struct list link; /* in conn_hub.users */
	uint32_t uid;
	unsigned n_conns, n_refused; /* of the latter: see conn_hub */
	unsigned fds_sent;    /* its processes may not have taken these yet */
	unsigned fds_lost;    /* those apart that ended before they had: at most as many */
	unsigned fds_waiting; /* to be sent */
	size_t bytes_waiting;
	struct receiver *receiver; /* NULL: it has sent no descriptor yet */
	struct receiver *closer;   /* closes connections, also while the other one hangs */
};
/* Descriptors in flight to one connection, and to all of one uid; and descriptors to a uid that
 * wait here. The kernel counts those in flight against the limit of open files of ckptd's own user:
 * beyond it sendmsg() to any process fails (ETOOMANYREFS). So a uid gets an eighth of that at most,
 * and as many lost ones. */
#define CONN_FDS_SENT     256u
#define UID_FDS_SENT      1024u
#define UID_FDS_PART      8u
#define UID_FDS_WAITING   1024u
/* Bytes that wait to be sent to all connections of a uid. */
#define UID_BYTES_WAITING (64u << 20)
#define CONN_ROOM_LOOK_NS 20000000u
/* Refused connections that are not closed yet; the listener lets no more come above it. Only those
 * in which descriptors could be queued: before Linux 6.16. */
#define CONN_REFUSED_MAX  512u

/* Linux 6.16. Headers may be older. */
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

/* What all connections of one listener share; the listener's. */
struct conn_hub {
	struct loop *loop;
	const struct conn_events *events;
	void *events_arg;
	uint64_t handshake_ns; /* the first message must come within it */
	struct list conns, users;
	unsigned n_conns;   /* with those that are being closed */
	unsigned n_refused; /* not let in, and not closed yet; not in n_conns */
	unsigned uid_fds_sent; /* UID_FDS_SENT, or less */
	bool dropping;     /* no more events are delivered */
	struct timer look; /* some wait until descriptors were taken */
	const char *program; /* ckptd, for its --receiver; NULL: none */
	struct log *log;
	struct log_limit limit;
	uint8_t buf[CONN_MESSAGE_MAX]; /* the message that is being delivered */
};

void conn_hub_init(struct conn_hub *hub, struct loop *loop, struct log *log);

/* Takes fd and the hold on p, also on failure. Its peer may send descriptors from now on. Tells
 * events->opened before it returns. */
MUST_CHECK int conn_socket_open(struct conn_hub *hub, int fd, struct process *p,
				const struct process_id *id);
/* Closes a connection that is not let in; takes fd. One in which descriptors may be queued is
 * closed in a call of its uid's. */
void conn_refuse(struct conn_hub *hub, int fd, uint32_t uid);
/* Shuts the socket down, and closes it if no descriptor is queued in it; false: it is open. */
MUST_CHECK bool conn_close_if_empty(int fd);
/* How many connections of this uid there are. */
unsigned conn_hub_count(const struct conn_hub *hub, uint32_t uid);
/* Drops every connection without a word to the receiver. Sockets in which descriptors are queued
 * stay open: the end of this process closes them. */
void conn_hub_drop_all(struct conn_hub *hub);

#endif
