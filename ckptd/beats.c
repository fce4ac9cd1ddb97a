/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beats.c - the beat pages of this node's ranks: made, kept, looked at, adopted.
 *
 * A trainer that only beats makes no system call and would never notice that ckptd was restarted:
 * so its page is in the fd store, under a name that says whose it is
 *
 *   beat.<job>.<rank>.<pid>.<start>.<number>
 *
 * and the next ckptd finds it there for the member that its ledger names. It is made in the open
 * and put into the store by a worker afterwards: if ckptd dies in between, that rank is not heard
 * of until its next call that needs ckptd. No page is no reason to refuse anything.
 *
 * The pages are looked at by a timer, more often while something beats, and before anybody gives a
 * sample of now (beats_scan()). All that is new in one look is sorted by time, so that times of
 * samples do not go back: (1) nothing told has a time before the look that came before it.
 *
 * One turn of the loop looks at PER_TURN pages at most, so that many ranks hold nothing else up;
 * the next turn goes on. (2) Who was looked at goes behind all others, so that everybody is heard.
 *
 * Ownership: a page belongs to its member; while a worker has it, it outlives the member.
 */
#include <config.h>

#include "ckptd/beats.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "ckptd/credits.h"
#include "ckptd/node_priv.h"
#include "ckptd/watching.h"
#include "proto/session_page.h"

#define LOOK_OFTEN_NS  100000000u /* where the ring would be run over soon */
#define LOOK_NS        250000000u
#define LOOK_SELDOM_NS 1000000000u /* where nothing has beaten for: */
#define SILENCE_NS     10000000000u
#define MANY           (BEAT_ENTRIES / 4)
#define PER_TURN       32u /* pages: each may be mapped in here, and be full of records */

/* Steps between what a rank has done and what it is asked to save: what it can do in a second. */
#define MARGIN_NS      1000000000u
#define MARGIN_MIN     2u
#define MARGIN_MAX     10000u
#define MARGIN_UNKNOWN 10u

struct beats {
	struct list link; /* in node->beats.all, while it has a member */
	struct node *node;
	struct member *member; /* NULL: it left, and goes when the worker is done */
	struct region *region;
	struct work work;
	uint32_t uid;       /* of its job's user, who is charged for all that is done for it */
	bool keeping, kept; /* the fd store is being asked; has it */
	struct beat_reader reader;
};

/* One entry of a look. */
struct beat_heard {
	struct beats *from;
	size_t order;
	struct beat_record record;
};

/* What may be looked at is counted for each turn: the loop reads its clock once in it. */
static void begin_turn(struct node *n)
{
	struct beats_node *bn = &n->beats;
	uint64_t now = loop_now(n->env.loop);

	if (now != bn->turn_ns || bn->turn_ns == 0)
		bn->left = bn->per_turn;
	bn->turn_ns = now;
}

static struct beat_page *page_of(const struct beats *b)
{
	return b->region->base;
}

/* ---- Pages ---- */

static void keep_run(struct work *w)
{
	struct beats *b = container_of(w, struct beats, work);
	struct memory *mem = b->node->env.memory;

	w->status = mem->ops->keep(mem, b->region);
}

static void keep_done(struct work *w)
{
	struct beats *b = container_of(w, struct beats, work);
	struct node *n = b->node;

	b->keeping = false;
	b->kept = w->status == 0;
	n->works--;
	if (w->status < 0 && b->member)
		job_tell(b->member->job, 5,
			 "rank %u: the fd store did not take its beats (%s): they end with this "
			 "ckptd",
			 b->member->rank, memory_error_text(w->status));
	if (!b->member) {
		region_destroy(n, b->uid, b->region);
		alloc_free(b);
	}
	node_stop_step(n);
}

static void begin(struct node *n, struct member *m, struct region *region)
{
	struct beats *b = m->beats;

	b->node = n;
	b->member = m;
	b->region = region;
	b->uid = m->job->history.job.uid;
	list_add_tail(&n->beats.all, &b->link);
	n->beats.n++;
	if (!n->beats.timer.armed)
		timer_arm(n->env.loop, &n->beats.timer, loop_now(n->env.loop) + LOOK_NS);
}

/* Of all pages of this process as this rank; its number makes it a name. */
static void name_prefix(char *buf, size_t size, const struct member *m)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, m->job->history.job.id.b, 16);
	snprintf(buf, size, "beat.%s.%u.%d.%llx.", hex, m->rank, m->process.pid,
		 (unsigned long long)m->process.start);
}

static void make(struct member *m)
{
	struct node *n = m->job->node;
	struct memory *mem = n->env.memory;
	char prefix[REGION_NAME_MAX + 1], name[REGION_NAME_MAX + 1];
	struct region *region;
	struct beat_page *page;

	m->beats = alloc_zero(sizeof(*m->beats));
	if (!m->beats)
		return;
	name_prefix(prefix, sizeof(prefix), m);
	snprintf(name, sizeof(name), "%.160s%llu", prefix,
		 (unsigned long long)++m->job->next_beats);
	if (mem->ops->create_small(mem, name, BEAT_PAGE_BYTES, &region) < 0) {
		alloc_free(m->beats);
		m->beats = NULL;
		return;
	}
	page = region->base;
	page->magic = BEAT_PAGE_MAGIC;
	page->version = BEAT_PAGE_VERSION;
	atomic_store_explicit(&page->wanted_step, m->job->wanted_step, memory_order_relaxed);
	begin(n, m, region);
	beats_note_credit(m);
	m->beats->keeping = true;
	m->beats->work.run = keep_run;
	m->beats->work.done = keep_done;
	n->works++;
	job_submit(m->job, WORK_MEMORY, &m->beats->work);
}

void beats_note_credit(struct member *m)
{
	uint64_t from = credits_first(m);

	if (m->beats)
		atomic_store(&page_of(m->beats)->credit_from,
			     from == CREDIT_NOT_YET ? 0 : from + 1);
}

uint64_t beats_credit(const struct member *m)
{
	return m->beats ? atomic_load(&page_of(m->beats)->credit_from) : 0;
}

void beats_join(struct member *m, bool again)
{
	if (m->beats && again)
		return;
	beats_leave(m);
	make(m);
}

int beats_export(const struct member *m)
{
	struct memory *mem = m->job->node->env.memory;

	return m->beats ? mem->ops->export_fd(mem, m->beats->region, true) : -ENOENT;
}

static void take_out(struct beats *b)
{
	struct beats_node *bn = &b->node->beats;

	list_del(&b->link);
	assert(bn->n > 0);
	bn->n--;
	if (bn->to_look > bn->n)
		bn->to_look = bn->n;
}

void beats_free(struct member *m)
{
	if (m->beats)
		take_out(m->beats);
	alloc_free(m->beats);
	m->beats = NULL;
}

/* ---- Looking ---- */

/* Grows as needed; false: there is no memory for it. */
static bool hear(struct beats_node *bn, struct beats *b, const struct beat_record *record, size_t n)
{
	if (n == bn->heard_cap) {
		size_t cap = bn->heard_cap ? 2 * bn->heard_cap : BEAT_LOOK_MAX;
		void *grown = alloc_resize(bn->heard, cap * sizeof(*bn->heard));

		if (!grown)
			return false;
		bn->heard = grown;
		bn->heard_cap = cap;
	}
	bn->heard[n] = (struct beat_heard){.from = b, .order = n, .record = *record};
	return true;
}

static int by_time(const void *a, const void *b)
{
	const struct beat_heard *x = a, *y = b;

	if (x->record.time_ns != y->record.time_ns)
		return x->record.time_ns < y->record.time_ns ? -1 : 1;
	return x->order < y->order ? -1 : x->order > y->order;
}

static void tell(struct node *n, const struct beats *b, struct sample *s)
{
	s->node = WATCHING_NODE;
	s->job = watching_number(b->member->job);
	s->rank = b->member->rank;
	s->device = SAMPLE_NONE;
	n->beats.told++;
	node_sample(n, s);
}

static void tell_role(struct node *n, struct beats *b, uint64_t now)
{
	struct sample s = {.kind = SAMPLE_MEMBER, .time_ns = now};
	char before[BEAT_TEXT_BYTES];

	memcpy(before, b->reader.role, sizeof(before));
	if (!beat_reader_texts(&b->reader, page_of(b)) ||
	    memcmp(before, b->reader.role, sizeof(before)) == 0)
		return;
	memcpy(s.member.role, b->reader.role, sizeof(b->reader.role));
	tell(n, b, &s);
}

/* At one page, which is then the last of all (2). */
static size_t look_at(struct beats_node *bn, struct beats *b, uint64_t from, uint64_t now,
		      size_t heard)
{
	struct beat_record new[BEAT_LOOK_MAX];
	uint32_t more = beat_reader_look(&b->reader, page_of(b), from, now, new);

	list_del(&b->link);
	list_add_tail(&bn->all, &b->link);
	bn->many = bn->many || more > MANY;
	for (uint32_t i = 0; i < more; i++)
		heard += hear(bn, b, &new[i], heard);
	return heard;
}

/* At the first `pages` of them, and tells what they say. */
static void listen(struct node *n, uint32_t pages, uint64_t from)
{
	struct beats_node *bn = &n->beats;
	uint64_t now = loop_now(n->env.loop);
	struct list *last = &bn->all;
	struct beats *b;
	size_t heard = 0;

	bn->looking = true;
	for (uint32_t i = 0; i < pages; i++)
		heard = look_at(bn, list_first(&bn->all, struct beats, link), from, now, heard);
	if (heard) {
		bn->heard_ns = now;
		qsort(bn->heard, heard, sizeof(*bn->heard), by_time);
	}
	for (size_t i = 0; i < heard; i++) {
		struct sample s = {0};

		b = bn->heard[i].from;
		if (beat_reader_sample(&b->reader, &bn->heard[i].record, &s))
			tell(n, b, &s);
	}
	for (; pages > 0; pages--) {
		last = last->prev;
		tell_role(n, container_of(last, struct beats, link), now);
	}
	bn->looking = false;
}

bool beats_scan(struct node *n)
{
	struct beats_node *bn = &n->beats;
	uint64_t now = loop_now(n->env.loop), from = min_u64(bn->looked_ns, now);
	uint32_t pages;

	if (bn->looking) /* what is being told comes through here again */
		return true;
	begin_turn(n);
	if (bn->to_look == 0 && (bn->left == 0 || (bn->whole_ns == now && bn->left < bn->n)))
		return true; /* all were looked at just now, and there is no time for all again */
	if (bn->to_look == 0) {
		bn->to_look = bn->n;
		bn->many = false;
	}
	pages = bn->to_look < bn->left ? bn->to_look : bn->left;
	bn->to_look -= pages;
	bn->left -= pages;
	bn->looked_ns = now;
	listen(n, pages, from);
	if (bn->to_look == 0)
		bn->whole_ns = now;
	else
		timer_arm(n->env.loop, &bn->timer, now + 1); /* in the next turn */
	return bn->to_look == 0;
}

/* Now, whatever was looked at in this turn: there is no later look at its page. */
static void hear_last_words(struct beats *b)
{
	struct beats_node *bn = &b->node->beats;

	if (bn->looking)
		return;
	list_del(&b->link);
	list_add_head(&bn->all, &b->link);
	listen(b->node, 1, min_u64(bn->looked_ns, loop_now(b->node->env.loop)));
}

void beats_leave(struct member *m)
{
	struct beats *b = m->beats;

	m->beats = NULL;
	if (!b)
		return;
	hear_last_words(b);
	take_out(b);
	b->member = NULL;
	if (b->keeping)
		return;
	region_destroy(b->node, b->uid, b->region);
	alloc_free(b);
}

static void look(struct timer *t)
{
	struct node *n = container_of(t, struct node, beats.timer);
	struct beats_node *bn = &n->beats;
	uint64_t now = loop_now(n->env.loop), period = LOOK_NS;

	loop_label(n->env.loop, "a look at the beats");
	if (!beats_scan(n) || list_empty(&bn->all))
		return; /* it is armed; or the next page arms it again */
	if (bn->many)
		period = LOOK_OFTEN_NS;
	else if (now - min_u64(now, bn->heard_ns) > SILENCE_NS)
		period = LOOK_SELDOM_NS;
	timer_arm(n->env.loop, t, now + period);
}

void beats_node_init(struct node *n)
{
	list_init(&n->beats.all);
	timer_init(&n->beats.timer, look);
	n->beats.per_turn = PER_TURN;
}

void beats_node_fini(struct node *n)
{
	timer_disarm(n->env.loop, &n->beats.timer);
	alloc_free(n->beats.heard);
}

bool beats_now(const struct member *m, struct beat_now *ret)
{
	if (!m->beats)
		return false;
	beat_page_now(page_of(m->beats), loop_now(m->job->node->env.loop), ret);
	return true;
}

bool beats_told(const struct member *m, uint64_t *ret_step)
{
	if (!m->beats || !m->beats->reader.stepped)
		return false;
	*ret_step = m->beats->reader.step;
	return true;
}

const struct beat_reader *beats_reader(const struct member *m)
{
	return m->beats ? &m->beats->reader : NULL;
}

bool beats_kept(const struct member *m)
{
	return m->beats && m->beats->kept;
}

const struct beat_page *beats_page(const struct member *m)
{
	return m->beats ? page_of(m->beats) : NULL;
}

const char *beats_role(const struct member *m)
{
	return m->beats ? m->beats->reader.role : "";
}

/* ---- A checkpoint that is wanted ---- */

static void publish_wanted(struct job *j, uint64_t step)
{
	struct member *m;

	j->wanted_step = step;
	list_each(m, &j->members, link)
		if (m->beats)
			atomic_store_explicit(&page_of(m->beats)->wanted_step, step,
					      memory_order_release);
}

/* The newest step that any of them is in, and what one takes at least. */
static int newest_step(struct job *j, uint64_t *ret_step, uint64_t *ret_interval_ns, struct err *e)
{
	uint64_t newest = 0, interval = UINT64_MAX;
	struct beat_now now;
	struct member *m;
	uint32_t n = 0;

	list_each(m, &j->members, link) {
		if (!m->alive)
			continue;
		if (!beats_now(m, &now) || !now.stepped)
			return err_set(e, -EAGAIN,
				       "job '%s': rank %u has not said which step it "
				       "is in (ckpt_beat())",
				       j->history.job.name, m->rank);
		newest = max_u64(newest, now.step);
		if (m->beats->reader.interval_ns)
			interval = min_u64(interval, m->beats->reader.interval_ns);
		n++;
	}
	if (n == 0 || n < j->history.epoch.world)
		return err_set(e, -EAGAIN, "job '%s': %u of %u ranks are here", j->history.job.name,
			       n, j->history.epoch.world);
	*ret_step = newest;
	*ret_interval_ns = interval;
	return 0;
}

int beats_ask_save(struct job *j, uint64_t *ret_step, struct err *e)
{
	uint64_t newest, interval, margin = MARGIN_UNKNOWN, step;
	int r;

	beats_scan(j->node);
	r = newest_step(j, &newest, &interval, e);
	if (r < 0)
		return r;
	if (interval != UINT64_MAX)
		margin = min_u64(MARGIN_MIN + MARGIN_NS / interval, MARGIN_MAX);
	if (!size_add(newest, margin, &step))
		return err_set(e, -EAGAIN, "job '%s': its steps have come to an end",
			       j->history.job.name);
	publish_wanted(j, step);
	/* This process was held up in between, and somebody may have passed that step unawares. */
	r = newest_step(j, &newest, &interval, e);
	if (r == 0 && newest >= step) {
		publish_wanted(j, 0);
		r = err_set(e, -EAGAIN, "job '%s': its steps went by too fast",
			    j->history.job.name);
	}
	if (r == 0)
		*ret_step = step;
	return r;
}

void beats_forget_save(struct job *j)
{
	publish_wanted(j, 0);
}

/* ---- After a restart ---- */

static struct region *newest_page(struct list *regions, const char *prefix, uint64_t *ret_number)
{
	size_t len = strlen(prefix);
	struct region *r, *best = NULL;
	uint64_t number;

	*ret_number = 0;
	list_each(r, regions, link) {
		if (strncmp(r->name, prefix, len) != 0 || r->size != BEAT_PAGE_BYTES)
			continue;
		number = strtoull(r->name + len, NULL, 10);
		if (best && number <= *ret_number)
			continue;
		best = r;
		*ret_number = number;
	}
	return best;
}

void beats_adopt(struct job *j, struct list *regions)
{
	uint64_t number, wanted = 0;
	bool first = true, agree = true;
	struct member *m;

	list_each(m, &j->members, link) {
		char prefix[REGION_NAME_MAX + 1];
		struct region *r;

		name_prefix(prefix, sizeof(prefix), m);
		r = newest_page(regions, prefix, &number);
		j->next_beats = max_u64(j->next_beats, number);
		if (!r)
			continue;
		m->beats = alloc_zero(sizeof(*m->beats));
		if (!m->beats)
			continue;
		list_del(&r->link);
		begin(j->node, m, r);
		m->beats->kept = true;
		beat_reader_begin(&m->beats->reader, page_of(m->beats));
		number =
			atomic_load_explicit(&page_of(m->beats)->wanted_step, memory_order_relaxed);
		agree = first || (agree && wanted == number);
		wanted = number;
		first = false;
	}
	/* Killed while it asked: some would save, and some not. */
	publish_wanted(j, agree ? wanted : 0);
}
