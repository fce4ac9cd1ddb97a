/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holding.c - disk space that expired checkpoints still take, because processes load them.
 *
 *   read     a load is under way: the checkpoint stays whatever retention says (I9). From when
 *            retention would take it away it counts as held, by each user with such a load
 *   expired  its files have no name any more. What processes were given of them stays what it was
 *            until they close it, and ckptd cannot force them to. Until then the space is not free,
 *            and counts as held by each user whose loads were given the file. ckptd keeps the files
 *            open to find out: it looks at them every LOOK_NS and when a process has ended
 *
 * Above quota.held_bytes_per_uid loads of that user that would read files are refused; those under
 * way go on: no load is ever broken, nor reads anything but what was saved. So a user holds at most
 * the limit and what it had under way when it reached the limit.
 *
 * Not counted: what processes were given by an earlier ckptd; what they hold by O_PATH alone, which
 * no lease shows; and expired files on a file system that cannot say whether a file is open.
 *
 * Thread: the loop, but look_run(): a PLAN worker, for the last close of a file frees its blocks.
 * The loop does not access the files of a look that runs; only look_done() frees them.
 */
#include <config.h>

#include "ckptd/holding.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "ckptd/node_priv.h"

#define LOOK_NS      5000000000u
#define LOOK_SOON_NS  100000000u

/* One user's part of one checkpoint. */
struct holder {
	struct list link; /* in checkpoint->holders, then in held->holders */
	struct user *user;
	uint32_t loads;  /* under way */
	uint64_t bytes;  /* that count for the user now: USER_HELD_BYTES, */
	uint32_t files;  /* and USER_LOAD_FILES */
};

struct expired {
	struct list link; /* in holding.all */
	struct list holders;
	struct held_files files;
};

struct holding_look {
	struct work work;
	struct node *node;
	struct expired **held; /* those that there were when it began */
	uint32_t n;
};

/* ---- Holders ---- */

static void count(struct holder *h, uint64_t bytes, uint32_t files)
{
	user_give(h->user, USER_HELD_BYTES, h->bytes);
	user_give(h->user, USER_LOAD_FILES, h->files);
	h->bytes = bytes;
	h->files = files;
	user_add(h->user, USER_HELD_BYTES, h->bytes);
	user_add(h->user, USER_LOAD_FILES, h->files);
}

static void holders_free(struct list *holders)
{
	while (!list_empty(holders)) {
		struct holder *h = list_first(holders, struct holder, link);

		count(h, 0, 0);
		user_put(h->user);
		list_del(&h->link);
		alloc_free(h);
	}
}

static struct holder *holder_of(struct checkpoint *c, const struct user *u)
{
	struct holder *h;

	list_each(h, &c->holders, link)
		if (h->user == u)
			return h;
	return NULL;
}

int holding_begin(struct checkpoint *c, struct user *u)
{
	struct holder *h = holder_of(c, u);

	if (!h) {
		h = alloc_zero(sizeof(*h));
		if (!h)
			return -ENOMEM;
		h->user = user_ref(u);
		list_add_tail(&c->holders, &h->link);
	}
	h->loads++;
	if (c->overdue)
		count(h, c->bytes, 0);
	return 0;
}

void holding_end(struct checkpoint *c, struct user *u)
{
	struct holder *h = holder_of(c, u);

	assert(h && h->loads > 0);
	if (--h->loads == 0)
		count(h, 0, 0);
}

void holding_overdue(struct checkpoint *c, bool overdue)
{
	struct holder *h;

	if (c->overdue == overdue)
		return;
	c->overdue = overdue;
	list_each(h, &c->holders, link)
		count(h, overdue && h->loads > 0 ? c->bytes : 0, 0);
}

bool holding_may(const struct checkpoint *c)
{
	return !list_empty(&c->holders);
}

void holding_forget(struct checkpoint *c)
{
	holders_free(&c->holders);
}

/* ---- What is expired ---- */

static void held_free(struct node *n, struct expired *x)
{
	assert(n->holding.n > 0);
	n->holding.n--;
	list_del(&x->link);
	holders_free(&x->holders);
	held_files_close(&x->files);
	alloc_free(x);
}

static void held_count(struct expired *x)
{
	struct holder *h;

	list_each(h, &x->holders, link)
		count(h, x->files.bytes, x->files.n);
}

/* Arms the timer to fire within ns at the latest; repeated calls never postpone it. */
static void look_within(struct node *n, uint64_t ns)
{
	uint64_t at = loop_now(n->env.loop) + ns;

	if (n->holding.looking)
		return; /* look_done() asks */
	if (n->holding.timer.armed && n->holding.timer.deadline_ns <= at)
		return;
	timer_arm(n->env.loop, &n->holding.timer, at);
}

void holding_keep(struct checkpoint *c, struct held_files *files)
{
	struct node *n = c->job->node;
	struct expired *x = files->n ? alloc_zero(sizeof(*x)) : NULL;

	if (!x) { /* out of memory: no user is charged */
		held_files_close(files);
		return;
	}
	list_init(&x->holders);
	while (!list_empty(&c->holders)) {
		struct holder *h = list_first(&c->holders, struct holder, link);

		list_del(&h->link);
		list_add_tail(&x->holders, &h->link);
	}
	x->files = *files;
	*files = (struct held_files){0};
	held_count(x);
	list_add_tail(&n->holding.all, &x->link);
	n->holding.n++;
	look_within(n, LOOK_NS);
}

static void look_run(struct work *w)
{
	struct holding_look *k = container_of(w, struct holding_look, work);

	for (uint32_t i = 0; i < k->n; i++)
		held_files_sift(&k->held[i]->files);
	w->status = 0;
}

static void look_done(struct work *w)
{
	struct holding_look *k = container_of(w, struct holding_look, work);
	struct node *n = k->node;

	n->holding.looking = false;
	n->side_works--;
	for (uint32_t i = 0; i < k->n; i++) {
		held_count(k->held[i]);
		if (k->held[i]->files.n == 0)
			held_free(n, k->held[i]);
	}
	alloc_free(k->held);
	alloc_free(k);
	if (n->holding.n && !n->stopping)
		look_within(n, LOOK_NS);
}

static void look(struct timer *t)
{
	struct node *n = container_of(t, struct node, holding.timer);
	struct holding_look *k;
	struct expired *x;

	if (n->holding.looking || n->holding.n == 0 || n->stopping)
		return;
	k = alloc_zero(sizeof(*k));
	if (k)
		k->held = alloc_array(n->holding.n, sizeof(struct expired *));
	if (!k || !k->held) {
		alloc_free(k);
		look_within(n, LOOK_NS);
		return;
	}
	k->node = n;
	list_each(x, &n->holding.all, link)
		k->held[k->n++] = x;
	k->work = (struct work){.run = look_run, .done = look_done};
	n->holding.looking = true;
	n->side_works++;
	work_submit(n->env.workers, WORK_PLAN, FAIR_NODE, &k->work);
}

void holding_look(struct node *n)
{
	if (n->holding.n > 0 && !n->stopping)
		look_within(n, LOOK_SOON_NS);
}

int holding_refuses(struct user *u, struct err *e)
{
	int r = user_over(u, USER_HELD_BYTES, "load", e);

	if (r < 0)
		holding_look(u->node); /* it may just have been let go */
	return r;
}

/* ---- Life ---- */

void holding_init(struct node *n)
{
	list_init(&n->holding.all);
	timer_init(&n->holding.timer, look);
}

void holding_fini(struct node *n)
{
	timer_disarm(n->env.loop, &n->holding.timer);
	while (!list_empty(&n->holding.all))
		held_free(n, list_first(&n->holding.all, struct expired, link));
}
