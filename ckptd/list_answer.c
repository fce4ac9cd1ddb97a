/* SPDX-License-Identifier: Apache-2.0 */
/*
 * list_answer.c - which checkpoints of its job a process can load (answer.h).
 *
 * The list is of one moment, so one slice copies what it needs, at most HISTORY_COMMITS_MAX rows; a
 * worker sorts them, newest first, and packs a long list, which goes as a memfd.
 */
#include <config.h>

#include "ckptd/list_answer.h"

#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "ckptd/admin.h"
#include "ckptd/answer.h"
#include "ckptd/node_priv.h"

struct listed_checkpoint {
	Ckpt__CheckpointInfo info;
	struct attempt_id attempt; /* that info points to once the rows are sorted */
	uint64_t record_n;
};

struct listing {
	struct answer answer;
	struct job_id id;
	struct listed_checkpoint *rows;
	Ckpt__CheckpointInfo **infos;
	size_t n;
	Ckpt__ListReply body;
};

static int rows_of(struct listing *x, struct job *j)
{
	struct checkpoint *c;
	size_t n = 0;

	list_each(c, &j->checkpoints, link)
		n += checkpoint_restorable(c);
	if (n == 0)
		return 0;
	x->rows = alloc_array(n, sizeof(*x->rows));
	if (!x->rows)
		return -ENOMEM;
	list_each(c, &j->checkpoints, link) {
		struct listed_checkpoint *row = &x->rows[x->n];

		if (!checkpoint_restorable(c))
			continue;
		admin_fill_info(&row->info, c);
		row->attempt = c->attempt;
		row->record_n = c->record_n;
		x->n++;
	}
	return 0;
}

static bool gather(struct answer *a, unsigned *left)
{
	struct listing *x = container_of(a, struct listing, answer);
	struct job *j = job_find_id(a->node, &x->id);
	int r = j ? rows_of(x, j) : CKPT_ENOTFOUND;

	*left = 0;
	if (r == -ENOMEM)
		answer_fail(a, r, "list: out of memory");
	else if (r < 0)
		answer_fail(a, r, "list: the job is not here any more");
	return true;
}

static int newest_first(const void *a, const void *b)
{
	const struct listed_checkpoint *x = a, *y = b;

	return x->record_n > y->record_n ? -1 : x->record_n < y->record_n;
}

static void make(struct answer *a)
{
	struct listing *x = container_of(a, struct listing, answer);
	CLEANUP_FREE uint8_t *packed = NULL;
	size_t len;

	if (a->code < 0 || answer_dropped(a) || x->n == 0)
		return;
	x->infos = alloc_array(x->n, sizeof(Ckpt__CheckpointInfo *));
	if (!x->infos) {
		answer_fail(a, -ENOMEM, "list: out of memory");
		return;
	}
	qsort(x->rows, x->n, sizeof(*x->rows), newest_first);
	for (size_t i = 0; i < x->n; i++) {
		x->rows[i].info.attempt.data = x->rows[i].attempt.b;
		x->infos[i] = &x->rows[i].info;
	}
	x->body.checkpoints = x->infos;
	x->body.n_checkpoints = x->n;
	len = ckpt__list_reply__get_packed_size(&x->body);
	if (len <= ANSWER_INLINE_MAX)
		return;
	packed = alloc_array(len, 1);
	if (!packed) {
		answer_fail(a, -ENOMEM, "list: out of memory");
		return;
	}
	ckpt__list_reply__pack(&x->body, packed);
	answer_put(a, (const char *)packed, len);
}

static void reply_with(struct answer *a, Ckpt__Reply *reply, bool handed_over)
{
	struct listing *x = container_of(a, struct listing, answer);

	if (handed_over) {
		ckpt__list_reply__init(&x->body);
		x->body.in_fd = true;
	}
	reply->body_case = CKPT__REPLY__BODY_LIST;
	reply->list = &x->body;
}

static void listing_free(struct answer *a)
{
	struct listing *x = container_of(a, struct listing, answer);

	alloc_free(x->infos);
	alloc_free(x->rows);
	alloc_free(x);
}

static const struct answer_kind list_kind = {
	.verb = "list",
	.gather = gather,
	.make = make,
	.reply = reply_with,
	.free = listing_free,
};

void list_start(struct session *s, uint64_t request)
{
	struct listing *x;

	if (session_node(s)->stopping) /* a rank's: not answered, it asks the next ckptd */
		return;
	if (answer_refused(s, request, &list_kind))
		return;
	x = alloc_zero(sizeof(*x));
	if (!x) {
		session_reply_error(s, request, -ENOMEM, "list: out of memory");
		return;
	}
	x->id = session_job(s)->history.job.id;
	ckpt__list_reply__init(&x->body);
	answer_start(&x->answer, &list_kind, s, request);
}
