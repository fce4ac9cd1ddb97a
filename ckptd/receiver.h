/* SPDX-License-Identifier: Apache-2.0 */
/*
 * receiver.h - receives one uid's messages with descriptors in a process beside ckptd.
 *
 * The only descriptors of users that ckptd gets are frozen memfds of a bounded size: see
 * ckptd/receiver_child.h. ckptd starts the process when it is first needed; it ends after a rest.
 * ckptd kills one that does not answer, and asks another one. To close connections a process ends.
 */
#ifndef CKPTD_RECEIVER_H
#define CKPTD_RECEIVER_H

#include <stddef.h>

#include "base/list.h"
#include "base/loop.h"
#include "ckptd/log.h"
#include "ckptd/receiver_child.h"

#define RECEIVER_LIMIT_NS 10000000000ull /* for one answer, also on a busy machine */
#define RECEIVER_REST_NS  10000000000ull /* after which the process ends */
#define RECEIVER_LEFT_MAX 4 /* processes of a receiver, with those that have not ended yet */

struct receiver;
struct receiving;

/*
 * status: an enum receiver_status, or -errno: the process could not be begun, or did not answer.
 * msg and fd are valid during the call; fd (-1: none) stays the receiver's unless it was taken:
 * then *fd is -1.
 */
typedef void receiving_fn(struct receiving *, int status, const void *msg, size_t len, int *fd);

/* One message of a connection, or its end; the connection's, up to done. */
struct receiving {
	struct list link;
	int fd;    /* of the connection */
	bool end;  /* close it, with all that is queued; fd is the receiver's then. done comes when
		    * a process has it, whose end closes it */
	bool again; /* it was asked of a process that did not answer */
	receiving_fn *done;
};

struct receiver_options {
	const char *program; /* path of ckptd, started with --receiver */
	uint32_t uid;        /* the user that sends the descriptors */
	uint64_t limit_ns, rest_ns;
	struct log *log;
};

/* NULL: out of memory. */
struct receiver *receiver_new(struct loop *loop, const struct receiver_options *o);
/* done is called once, not inside this call, unless receiver_forget() comes before. */
void receiver_ask(struct receiver *r, struct receiving *x);
/* Idempotent. Not for x->end. */
void receiver_forget(struct receiver *r, struct receiving *x);
/* No request is open, and it has no process. */
bool receiver_is_idle(const struct receiver *r);
/* NULL is allowed. Kills its processes without waiting for them; calls no done() any more. */
void receiver_free(struct receiver *r);

#endif
