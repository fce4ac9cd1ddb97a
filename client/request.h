/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - requests in flight over one channel: the machine that every call is a shell over.
 *
 * start() sends, pump() waits for one message and hands it to the request it answers; nobody
 * blocks elsewhere. A reply's contents are valid only while its request's reply function runs.
 * Replies to requests that nobody waits for any more are dropped, with their descriptors.
 */
#ifndef CLIENT_REQUEST_H
#define CLIENT_REQUEST_H

#include "base/arena.h"
#include "base/list.h"
#include "client/channel.h"
#include "proto/session.pb-c.h"

#define REPLY_MORE 1 /* another message with this id comes */

struct request;
/*
 * Takes what it wants of a reply; fds it keeps are set to -1. Called for every reply that has a
 * body, whatever its code: q->status is set before. 0, REPLY_MORE, or an error.
 */
typedef int request_reply_fn(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds);

struct request {
	struct list link; /* in requests->pending while it waits for its reply */
	Ckpt__Request message;
	int fd; /* goes with the message; -1: none. Stays the caller's */
	request_reply_fn *reply; /* NULL: the code is all there is to know */
	uint32_t sent; /* how often; replies to an earlier sending never come */
	bool done;
	int status;      /* once done: 0, or the reply's code */
	uint32_t bits;   /* CKPT_* status bits of the reply */
	struct err *err; /* gets the sentence; may be NULL */
};

struct requests {
	struct channel channel;
	struct list pending;
	uint64_t next_id;
	uint64_t asked_ns; /* the first request that nothing has come behind; 0: none */
	uint8_t *tx, *rx; /* CONN_MESSAGE_MAX each */
	struct arena arena; /* of the last message */
	void *small;        /* the arena's first bytes */
};

MUST_CHECK int requests_init(struct requests *rq);
void requests_fini(struct requests *rq);

/* q->message's body is set. It is packed again when it is sent again. */
void request_init(struct request *q, struct err *e);
/* Sends and, unless reply is not wanted, waits for it from now on. An id is given only once: a
 * request that is started again after a reconnect is the same request (I10). */
MUST_CHECK int request_start(struct requests *rq, struct request *q, uint64_t deadline);
/* Nobody waits for it any more. */
void request_forget(struct request *q);
/* Handles what came: 0 when something did, CKPT_ETIMEDOUT, or -errno when the channel is lost
 * (it has been dropped then). deadline 0: without waiting. */
MUST_CHECK int requests_pump(struct requests *rq, uint64_t deadline);
/* Unpacks a reply as if it had come, for nobody: what a real one needs is faulted in. */
void requests_rehearse(struct requests *rq, const Ckpt__Reply *reply);

#endif
