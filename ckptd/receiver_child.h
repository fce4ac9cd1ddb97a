/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receiver_child.h - the process that takes descriptors in for ckptd (`ckptd --receiver`): what it
 * is asked over its socket, and what it answers.
 */
#ifndef CKPTD_RECEIVER_CHILD_H
#define CKPTD_RECEIVER_CHILD_H

#include <stdint.h>

#include "model/declaration.h"

#define RECEIVER_FD 3 /* its socket: SOCK_SEQPACKET */
/* Of a memfd that is passed on: a declaration, or what a read wants. */
#define RECEIVER_BYTES_MAX (2ull * DECLARATION_BYTES_MAX)

enum receiver_op {
	RECEIVER_TAKE = 1, /* receive one message from the socket that comes with this */
	RECEIVER_CLOSE,    /* close that socket, with whatever descriptors are queued in it */
};

enum receiver_status {
	RECEIVER_OK,      /* the message follows, with one memfd */
	RECEIVER_NOTHING, /* no message is there, or an empty one */
	RECEIVER_LONG,    /* longer than CONN_MESSAGE_MAX */
	RECEIVER_MANY,    /* more than one descriptor */
	RECEIVER_FOREIGN, /* its descriptor is none of a memfd that nobody can write to or resize */
	RECEIVER_LARGE,   /* its memfd has more than RECEIVER_BYTES_MAX */
};

struct receiver_request {
	uint32_t op, number;
};

/* Before the bytes of the message. */
struct receiver_answer {
	uint32_t number;
	uint32_t status; /* enum receiver_status */
};

/* Serves until ckptd closes its end, or is gone. The exit status. */
int receiver_child_run(void);

#endif
