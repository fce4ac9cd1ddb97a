/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_answer.c - which checkpoints of a job retention keeps, and why (answer.h).
 *
 * The plan is of one moment, so one slice makes it, as rows; a worker makes the document of them.
 */
#include <config.h>

#include "ckptd/plan_answer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/admin.h"
#include "ckptd/node_priv.h"

struct row {
	uint64_t step, bytes;
	struct attempt_id attempt;
	bool expire;
	const char *because; /* static */
};

struct plan {
	struct answer answer;
	struct job_id id;
	char job[CKPT_JOB_MAX + 1];
	struct row *rows;
	size_t n;
};

static int plan_of(struct plan *x, struct job *j)
{
	CLEANUP_FREE struct retention_item *items = NULL;
	CLEANUP_FREE struct checkpoint **order = NULL;
	struct checkpoint *c;
	size_t n = 0;

	list_each(c, &j->checkpoints, link)
		n += retain_has_files(c);
	if (n == 0)
		return 0;
	items = alloc_array(n, sizeof(*items));
	order = alloc_array(n, sizeof(*order));
	x->rows = alloc_array(n, sizeof(*x->rows));
	if (!items || !order || !x->rows)
		return -ENOMEM;
	retain_plan(j, !j->tight, items, order, n);
	for (x->n = 0; x->n < n; x->n++) {
		const struct retention_item *item = &items[x->n];

		x->rows[x->n] = (struct row){
			.step = item->step,
			.bytes = order[x->n]->disk_bytes, /* 0: COMMIT is unreadable */
			.attempt = order[x->n]->attempt,
			.expire = item->expire,
			.because = item->kept_because ? item->kept_because : "",
		};
	}
	return 0;
}

static bool gather(struct answer *a, unsigned *left)
{
	struct plan *x = container_of(a, struct plan, answer);
	struct job *j = job_find_id(a->node, &x->id);
	int r = j ? plan_of(x, j) : CKPT_ENOTFOUND;

	*left = 0;
	if (r == -ENOMEM)
		answer_fail(a, r, "gc: out of memory");
	else if (r < 0)
		answer_fail(a, r, "gc: job '%s' is not here any more", x->job);
	return true;
}

static void make(struct answer *a)
{
	struct plan *x = container_of(a, struct plan, answer);
	json_t *list;

	if (a->code < 0 || answer_dropped(a))
		return;
	list = json_array();
	for (size_t i = 0; i < x->n; i++) {
		const struct row *r = &x->rows[i];

		json_array_append_new(list, json_pack("{s:I, s:o, s:b, s:s, s:I}", "step",
						      (json_int_t)r->step, "attempt",
						      admin_hex_json(r->attempt.b, 16), "expire",
						      (int)r->expire, "because", r->because,
						      "bytes", (json_int_t)r->bytes));
	}
	answer_put_json(a, json_pack("{s:i, s:s, s:o}", "schema", 2, "job", x->job, "plan", list));
}

static void plan_free(struct answer *a)
{
	struct plan *x = container_of(a, struct plan, answer);

	alloc_free(x->rows);
	alloc_free(x);
}

static const struct answer_kind plan_kind = {
	.verb = "gc",
	.gather = gather,
	.make = make,
	.free = plan_free,
};

void plan_start(struct session *s, uint64_t request, struct job *j)
{
	struct plan *x;

	if (answer_refused(s, request, &plan_kind))
		return;
	x = alloc_zero(sizeof(*x));
	if (!x) {
		session_reply_error(s, request, -ENOMEM, "gc: out of memory");
		return;
	}
	x->id = j->history.job.id;
	memcpy(x->job, j->history.job.name, sizeof(x->job));
	answer_start(&x->answer, &plan_kind, s, request);
}
