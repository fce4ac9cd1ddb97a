/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_check.c - is everything there that was promised, and is nothing wrong?
 *
 * 1. The node starts; the log of the job is whole: it is not begun anew.
 * 2. What is listed loads, or is not listed any more, and every byte is right.
 * 3. What was acknowledged as DURABLE is listed; or its removal was asked for; or, not pinned, it
 *    has CRASH_KEEP_LAST newer ones (I9) that load or whose removal was asked for.
 * 4. The base of the next epoch is the newest that is listed (I15).
 * 5. What was pinned is pinned.
 * 6. The folder can be used: a save gets DURABLE (only where asked for).
 */
#include <config.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/fault/crash_run.h"
#include "tests/fault/crash_state.h"
#include "tests/lib/hand.h"

#define LISTED_MAX 64

struct check {
	const struct promises *promises;
	uint64_t position;
	struct host host;
	struct hand hand;
	struct hand_info listed[LISTED_MAX];
	size_t n_listed;
	char *why;
	size_t size;
};

__attribute__((format(printf, 2, 3))) static int wrong(struct check *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->why, c->size, fmt, ap);
	va_end(ap);
	return -1;
}

/* ---- What must be there ---- */

/* Later in the log: epochs rise, steps rise within one. */
static bool newer(uint64_t a_epoch, uint64_t a_step, const struct promise *b)
{
	return a_epoch > b->epoch || (a_epoch == b->epoch && a_step > b->step);
}

static bool in_force(const struct check *c, enum promise_kind kind, const struct promise *of)
{
	for (size_t i = 0; i < c->promises->n; i++) {
		const struct promise *p = &c->promises->at[i];

		if (p->kind == kind && p->epoch == of->epoch && p->step == of->step &&
		    p->position <= c->position)
			return true;
	}
	return false;
}

static const struct hand_info *find_listed(const struct check *c, const struct promise *p)
{
	for (size_t i = 0; i < c->n_listed; i++)
		if (c->listed[i].epoch == p->epoch && c->listed[i].step == p->step)
			return &c->listed[i];
	return NULL;
}

/* How many allow retention to take p: they are here, or somebody wanted them to go. */
static unsigned count_newer(const struct check *c, const struct promise *p)
{
	unsigned n = 0;

	for (size_t i = 0; i < c->n_listed; i++)
		n += newer(c->listed[i].epoch, c->listed[i].step, p);
	for (size_t i = 0; i < c->promises->n; i++) {
		const struct promise *q = &c->promises->at[i];

		n += q->kind == PROMISE_REMOVE && q->position <= c->position &&
		     newer(q->epoch, q->step, p) && !find_listed(c, q);
	}
	return n;
}

static int check_promise(struct check *c, const struct promise *p)
{
	bool pinned = in_force(c, PROMISE_PINNED, p) && !in_force(c, PROMISE_UNPIN, p);
	const struct hand_info *h = find_listed(c, p);
	unsigned n_newer = count_newer(c, p);

	if (h)
		return pinned && !h->pinned ? wrong(c, "LOST: the pin of step %llu",
						    (unsigned long long)p->step)
					    : 0;
	if (in_force(c, PROMISE_REMOVE, p))
		return 0;
	if (pinned)
		return wrong(c, "LOST: step %llu, pinned", (unsigned long long)p->step);
	if (n_newer < CRASH_KEEP_LAST)
		return wrong(c, "LOST: step %llu of epoch %llu was DURABLE; %u newer ones are here",
			     (unsigned long long)p->step, (unsigned long long)p->epoch, n_newer);
	return 0;
}

/* DURABLE was said after COMMIT and its name were synced: that a start can make COMMIT again must
 * not hide that they were not. */
static int check_commit_was_there(struct check *c, const struct promise *p)
{
	for (unsigned i = 0; i < c->host.n_made_again; i++)
		if (c->host.made_again[i] == p->step)
			return wrong(c, "LOST: COMMIT of step %llu, which was DURABLE",
				     (unsigned long long)p->step);
	return 0;
}

static int check_promises(struct check *c)
{
	for (size_t i = 0; i < c->promises->n; i++) {
		const struct promise *p = &c->promises->at[i];

		if (p->kind == PROMISE_DURABLE && p->position <= c->position &&
		    (check_promise(c, p) < 0 || check_commit_was_there(c, p) < 0))
			return -1;
	}
	return 0;
}

/* ---- What is there ---- */

static int compare(struct check *c, const struct hand_info *h, const struct hand_loaded *got)
{
	struct crash_step s = { h->epoch, h->step };
	uint8_t blob[CRASH_BLOB_BYTES];
	int r = 0;

	for (uint32_t i = 0; i < c->hand.n_shards && r == 0; i++) {
		const struct shard *sh = &c->hand.shards[i];
		uint8_t *want = alloc_zero(sh->bytes);

		crash_fill(&s, sh, want);
		if (memcmp(want, got->shards[i], sh->bytes) != 0)
			r = wrong(c, "WRONG BYTES: step %llu of epoch %llu, shard %u",
				  (unsigned long long)h->step, (unsigned long long)h->epoch, i);
		alloc_free(want);
	}
	crash_blob(&s, blob);
	if (r == 0 && (got->blob_bytes != sizeof(blob) ||
		       memcmp(got->blob, blob, sizeof(blob)) != 0))
		r = wrong(c, "WRONG BYTES: blob of step %llu", (unsigned long long)h->step);
	return r;
}

/* 1: it cannot be loaded; -1: it loads and is wrong. */
static int load_one(struct check *c, const struct hand_info *h)
{
	struct hand_loaded got = { 0 };
	int r;

	for (uint32_t i = 0; i < c->hand.n_shards; i++)
		got.shards[i] = alloc_zero(c->hand.shards[i].bytes);
	r = hand_load(&c->hand, h->step, &h->attempt, &got);
	if (r < 0)
		r = -wrong(c, "step %llu is listed but cannot be loaded: %s",
			  (unsigned long long)h->step, c->hand.text);
	else
		r = compare(c, h, &got);
	for (uint32_t i = 0; i < c->hand.n_shards; i++)
		alloc_free(got.shards[i]);
	return r;
}

static int list_all(struct check *c)
{
	return hand_list(&c->hand, c->listed, LISTED_MAX, &c->n_listed) < 0
		       ? wrong(c, "list: %s", c->hand.text)
		       : 0;
}

static bool is_listed(const struct check *c, const struct hand_info *h)
{
	for (size_t i = 0; i < c->n_listed; i++)
		if (c->listed[i].step == h->step &&
		    attempt_equal(&c->listed[i].attempt, &h->attempt))
			return true;
	return false;
}

/* What is listed can be loaded, unless retention, which goes on where it was when the power went,
 * took it away meanwhile; whether it could is for check_promises(), as of the last list. */
static int check_listed(struct check *c)
{
	uint64_t base = HAND_BASE_NONE;

	if (list_all(c) < 0)
		return -1;
	for (size_t i = 0; i < c->n_listed; i++) {
		struct hand_info h = c->listed[i];
		char why[ERR_TEXT_MAX];
		int r = load_one(c, &h);

		if (r == 0)
			continue;
		if (r < 0)
			return r;
		snprintf(why, sizeof(why), "%.*s", (int)sizeof(why) - 1, c->why);
		if (list_all(c) < 0)
			return -1;
		if (is_listed(c, &h))
			return wrong(c, "%s", why);
		i = (size_t)-1; /* from the first again */
	}
	if (c->n_listed > 0)
		base = c->listed[0].step; /* newest first */
	if (base != c->hand.base_step || (c->n_listed > 0 && !c->listed[0].latest))
		return wrong(c, "the base is step %lld, the newest listed %lld",
			     (long long)c->hand.base_step, (long long)base);
	return 0;
}

/* ---- The folder goes on being used ---- */

static int save_one(struct check *c)
{
	struct crash_step s = { c->hand.epoch, c->n_listed ? c->listed[0].step + 5 : 5 };
	uint8_t blob[CRASH_BLOB_BYTES];
	struct hand_info h[LISTED_MAX];
	struct hand *k = &c->hand;
	size_t n = 0;

	crash_blob(&s, blob);
	if ((c->n_listed && load_one(c, &c->listed[0]) != 0) || hand_prepare(k) < 0 ||
	    hand_save(k, s.step, crash_fill, &s, blob, sizeof(blob)) < 0 ||
	    hand_wait(k, s.step, CKPT_DURABLE) < 0 || hand_list(k, h, LISTED_MAX, &n) < 0)
		return wrong(c, "a save after recovery: %s", k->text);
	if (n == 0 || h[0].step != s.step || !h[0].disk)
		return wrong(c, "the step saved after recovery is not on disk");
	return 0;
}

static int check_node(struct check *c, bool save)
{
	struct shard shards[CRASH_SHARDS];
	struct hand *k = &c->hand;

	if (c->host.logs_begun_anew)
		return wrong(c, "the log was damaged: %s", c->host.error);
	crash_shards(0, 0, 1, shards);
	if (hand_connect(k, &c->host) < 0 || hand_open(k, CRASH_JOB, 0, 1, "after") < 0 ||
	    hand_declare(k, (struct geometry){ 4096, 16384 }, shards, CRASH_SHARDS) < 0)
		return wrong(c, "open: %s", k->text);
	if (check_listed(c) < 0 || check_promises(c) < 0)
		return -1;
	return save ? save_one(c) : 0;
}

int crash_check(const char *folder, const char *socket, const struct promises *p,
		uint64_t position, bool save, char *ret_why, size_t size)
{
	struct check *c = alloc_zero(sizeof(*c));
	struct node_options options;
	struct host_options o = { .folder = folder, .socket = socket, .backend = "threads",
				  .node = &options };
	struct err e = { 0 };
	int r;

	if (!c)
		return -1;
	crash_node_options(&options);
	c->promises = p;
	c->position = position;
	c->why = ret_why;
	c->size = size;
	c->hand.fd = -1;
	if (host_start(&c->host, &o, &e) < 0)
		r = wrong(c, "the node does not start: %s", e.text);
	else
		r = check_node(c, save);
	if (c->hand.fd >= 0)
		hand_close(&c->hand);
	host_stop(&c->host);
	alloc_free(c);
	return r;
}
