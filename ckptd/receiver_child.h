/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receiver_child.h - the process that receives descriptors for ckptd (`ckptd --receiver`): its
 * requests and answers.
 */
#ifndef CKPTD_RECEIVER_CHILD_H
#define CKPTD_RECEIVER_CHILD_H

#include <stdint.h>

#include "model/declaration.h"

#define RECEIVER_FD   3  /* its socket: SOCK_SEQPACKET */
#define RECEIVER_NICE 10 /* from its execve() on */
/* The size limit of a memfd that it passes on: a declaration, or what a read wants. */
#define RECEIVER_BYTES_MAX (2ull * DECLARATION_BYTES_MAX)

enum receiver_op {
	RECEIVER_TAKE = 1, /* receive one message from the socket that comes with this */
	RECEIVER_CLOSE,    /* hold the sockets that come with this until ckptd closes its end, and
			    * end: that closes them, with whatever is queued; no answer */
};
/* Sockets of one RECEIVER_CLOSE: as many as one message takes. */
#define RECEIVER_CLOSE_MAX 253

enum receiver_status {
	RECEIVER_OK,      /* the message follows, with one memfd */
	RECEIVER_NOTHING, /* no message is there, or an empty one */
	RECEIVER_LONG,    /* longer than CONN_MESSAGE_MAX */
	RECEIVER_MANY,    /* more than one descriptor */
	RECEIVER_FOREIGN, /* its descriptor is no memfd sealed against writing and resizing */
	RECEIVER_LARGE,   /* its memfd has more than RECEIVER_BYTES_MAX */
	RECEIVER_NONE,    /* it has no descriptor: the one that had was received before, by a
			   * process that ended with it */
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
