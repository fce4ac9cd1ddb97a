/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - packs, sends, receives, unpacks, and finds who waits.
 *
 *   new --start--> pending --its reply--> done
 *                  pending --the channel is lost--> pending; start() again sends it anew
 *
 *   1. Buffers and the arena are taken and touched when the handle is opened: sending a request
 *      and taking a small reply touches no fresh page.
 *   2. What does not parse ends the connection: nothing behind it can be trusted.
 */
#include <config.h>

#include "client/request.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/clock.h"

/* A message of 64 KiB cannot take more than this: a list or a load needs some of it. */
#define REPLY_BYTES_MAX (16u << 20)

int requests_init(struct requests *rq)
{
	*rq = (struct requests){ .next_id = 1 };
	channel_init(&rq->channel);
	list_init(&rq->pending);
	rq->tx = alloc_zero(CONN_MESSAGE_MAX);
	rq->rx = alloc_zero(CONN_MESSAGE_MAX);
	rq->small = alloc_zero(ARENA_CHUNK);
	if (!rq->tx || !rq->rx || !rq->small) {
		requests_fini(rq);
		return -ENOMEM;
	}
	memset(rq->small, 0xa5, ARENA_CHUNK);
	memset(rq->tx, 0xa5, CONN_MESSAGE_MAX); /* (1) */
	memset(rq->rx, 0xa5, CONN_MESSAGE_MAX);
	return 0;
}

void requests_fini(struct requests *rq)
{
	assert(list_empty(&rq->pending));
	channel_fini(&rq->channel);
	alloc_free(rq->tx);
	alloc_free(rq->rx);
	arena_fini(&rq->arena);
	alloc_free(rq->small);
}

void request_init(struct request *q, struct err *e)
{
	*q = (struct request){ .message = CKPT__REQUEST__INIT, .fd = -1, .err = e };
	list_init(&q->link);
}

int request_start(struct requests *rq, struct request *q, uint64_t deadline)
{
	size_t len;
	int r;

	assert(!q->done && q->message.body_case != CKPT__REQUEST__BODY__NOT_SET);
	if (!rq->channel.up)
		return -EPIPE;
	if (q->message.id == 0)
		q->message.id = rq->next_id++;
	len = ckpt__request__get_packed_size(&q->message);
	if (len > CONN_MESSAGE_MAX)
		return err_set(q->err, -E2BIG, "a message of %zu bytes does not fit the session's "
			       "%u; use fewer or shorter names", len, CONN_MESSAGE_MAX);
	ckpt__request__pack(&q->message, rq->tx);
	r = channel_send(&rq->channel, rq->tx, len, q->fd, deadline);
	if (r == CKPT_ETIMEDOUT)
		return r;
	if (r < 0) {
		channel_drop(&rq->channel);
		return -EPIPE;
	}
	list_del(&q->link);
	list_add_tail(&rq->pending, &q->link);
	if (rq->asked_ns == 0)
		rq->asked_ns = clock_ns();
	q->sent++;
	return 0;
}

void request_forget(struct request *q)
{
	list_del(&q->link);
}

/* The reply's own words, or the code's. */
static void keep_error(struct request *q, const Ckpt__Reply *reply)
{
	q->status = reply->code;
	if (reply->text && reply->text[0])
		err_set(q->err, reply->code, "%s", reply->text);
	else
		err_set(q->err, reply->code, "ckptd refused: %s", err_text(reply->code));
}

static void answer(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	int r = 0;

	q->status = 0;
	q->bits |= reply->status;
	if (reply->code < 0)
		keep_error(q, reply);
	if (q->reply && reply->body_case != CKPT__REPLY__BODY__NOT_SET)
		r = q->reply(q, reply, fds, n_fds);
	if (r == REPLY_MORE && q->status == 0)
		return;
	if (r < 0 && q->status == 0)
		q->status = r;
	q->done = true;
	request_forget(q);
}

static void dispatch(struct requests *rq, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct request *q;

	list_each(q, &rq->pending, link) {
		if (q->message.id != reply->id)
			continue;
		answer(q, reply, fds, n_fds);
		return;
	}
}

/* What stands in rx; false: it is no reply. */
static bool take_message(struct requests *rq, size_t len, int *fds, size_t n_fds)
{
	ProtobufCAllocator in_arena = {arena_lib_take, arena_lib_give, &rq->arena};
	Ckpt__Reply *reply;

	arena_fini(&rq->arena);
	arena_init(&rq->arena, rq->small, ARENA_CHUNK, REPLY_BYTES_MAX);
	reply = ckpt__reply__unpack(&in_arena, len, rq->rx);
	if (reply)
		dispatch(rq, reply, fds, n_fds);
	return reply != NULL;
}

void requests_rehearse(struct requests *rq, const Ckpt__Reply *reply)
{
	size_t len = ckpt__reply__get_packed_size(reply);

	assert(len <= CONN_MESSAGE_MAX);
	ckpt__reply__pack(reply, rq->rx);
	/* False only for want of memory, and then there was nothing to rehearse. */
	(void)take_message(rq, len, NULL, 0);
}

int requests_pump(struct requests *rq, uint64_t deadline)
{
	int fds[CONN_FDS_MAX], r;
	size_t len, n_fds;
	bool good;

	if (!rq->channel.up)
		return -EPIPE;
	r = channel_receive(&rq->channel, rq->rx, &len, fds, &n_fds);
	if (r == -EAGAIN) {
		r = channel_wait(&rq->channel, deadline);
		if (r == CKPT_ETIMEDOUT)
			return r;
		if (r == 0)
			r = channel_receive(&rq->channel, rq->rx, &len, fds, &n_fds);
		if (r == -EAGAIN)
			return 0;
	}
	if (r < 0) {
		channel_drop(&rq->channel);
		return r;
	}
	rq->asked_ns = 0;
	good = take_message(rq, len, fds, n_fds);
	if (!good)
		channel_drop(&rq->channel); /* (2) */
	for (size_t i = 0; i < n_fds; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	return good ? 0 : -EBADMSG;
}
