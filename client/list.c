/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list.c - which checkpoints there are.
 */
#include <config.h>

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/alloc.h"
#include "client/client.h"
#include "client/memfd.h"

#define LIST_BYTES_MAX (256u << 20)

struct listing {
	struct request q;
	struct ckpt_info *infos;
	size_t room;
	size_t n; /* in all */
};

void info_from(const Ckpt__CheckpointInfo *m, struct ckpt_info *ret)
{
	*ret = (struct ckpt_info){
		.step = m->step,
		.bytes = m->bytes,
		.epoch = m->epoch,
		.time_ns = m->time_ns,
		.memory = m->memory,
		.disk = m->disk,
		.pinned = m->pinned,
		.latest = m->latest,
		.world = (int)m->world,
	};
	if (m->attempt.len == sizeof(ret->attempt))
		memcpy(ret->attempt, m->attempt.data, sizeof(ret->attempt));
}

static int take(struct listing *l, const Ckpt__ListReply *m)
{
	if (m->n_checkpoints > INT_MAX)
		return CKPT_EPROTO;
	l->n = m->n_checkpoints;
	for (size_t i = 0; i < l->n && i < l->room; i++)
		info_from(m->checkpoints[i], &l->infos[i]);
	return 0;
}

static void *unpack_alloc(void *arg, size_t size)
{
	(void)arg;
	return alloc_zero(size);
}

static void unpack_free(void *arg, void *p)
{
	(void)arg;
	alloc_free(p);
}

static int take_fd(struct listing *l, int fd)
{
	ProtobufCAllocator heap = { unpack_alloc, unpack_free, NULL };
	Ckpt__ListReply *m;
	void *bytes;
	size_t len;
	int r = memfd_read(fd, LIST_BYTES_MAX, &bytes, &len);

	if (r < 0)
		return r;
	m = ckpt__list_reply__unpack(&heap, len, bytes);
	alloc_free(bytes);
	if (!m)
		return CKPT_EPROTO;
	r = take(l, m);
	ckpt__list_reply__free_unpacked(m, &heap);
	return r;
}

static int list_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct listing *l = container_of(q, struct listing, q);
	int r;

	if (q->status < 0)
		return 0;
	if (reply->body_case != CKPT__REPLY__BODY_LIST || (reply->list->in_fd && n_fds == 0))
		return err_set(q->err, CKPT_EPROTO, "ckptd answered with something else than a "
			       "list");
	r = reply->list->in_fd ? take_fd(l, fds[0]) : take(l, reply->list);
	return r < 0 ? err_code(q->err, r, "take the list of checkpoints") : 0;
}

static int list(struct ckpt *c, struct ckpt_info *infos, size_t n, struct err *e)
{
	Ckpt__List body = CKPT__LIST__INIT;
	struct listing l = { .infos = infos, .room = n };
	int r;

	if (n && !infos)
		return err_set(e, -EINVAL, "no room is given for %zu entries", n);
	request_init(&l.q, e);
	l.q.message.body_case = CKPT__REQUEST__BODY_LIST;
	l.q.message.list = &body;
	l.q.reply = list_reply;
	r = session_call(c, &l.q, call_deadline(c, CKPT_DEFAULT_TIMEOUT));
	return r < 0 ? r : (int)l.n;
}

int ckpt_list(struct ckpt *c, struct ckpt_info *infos, size_t n)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_list", r, &e);
	r = list(c, infos, n, &e);
	return call_leave_plain(c, "ckpt_list", r, &e); /* a count carries no status bits */
}
