/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - the socket where trainers and tools come in: who may, how many, and who they are.
 */
#ifndef CKPTD_LISTENER_H
#define CKPTD_LISTENER_H

#include <sys/types.h>

#include "base/conn.h"
#include "base/err.h"
#include "base/loop.h"
#include "ckptd/log.h"

struct listener_options {
	const char *path; /* of the socket; NULL when fd is given */
	int fd;           /* a listening socket from socket activation (taken), or -1 */
	mode_t mode;      /* of the path: 0660 or 0600 */
	const char *group; /* of the path, where there is such a group; NULL: this process's */
	unsigned conns_max, conns_per_uid;
	uint64_t handshake_ns;
	bool no_peerpidfd;  /* as before kernel 6.5; for tests */
	bool no_passrights; /* as before kernel 6.16; for tests */
	const char *program; /* ckptd, for its --receiver; NULL: descriptors are refused */
	struct log *log;
};
#define LISTENER_HANDSHAKE_NS 5000000000u

struct listener;

/* Binds; nobody is let in before listener_start(). A stale socket is removed if nobody answers. */
MUST_CHECK int listener_new(struct loop *loop, const struct listener_options *o,
			    struct listener **ret, struct err *e);
MUST_CHECK int listener_start(struct listener *l, const struct conn_events *events, void *arg,
			      struct err *e);
/* Connections that are open go on; new ones wait in the kernel until they give up. */
void listener_stop(struct listener *l);
/* Drops every connection without a word to the receiver; removes the path it made. */
void listener_free(struct listener *l);

/* For struct env; ends of processes are told to the events of listener_start(). */
struct processes *listener_processes(struct listener *l);

#endif
