/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credits: ranks that drift apart save the same steps, a rank that missed its window does not save
 * alone, the window outlives ckptd, a rank that is far ahead is named, and a page says why there is
 * no credit.
 */
#include <config.h>

#include <stdio.h>

#include "base/fault.h"
#include "base/rng.h"
#include "ckptd/beats.h"
#include "ckptd/credits.h"
#include "ckptd/node_priv.h"
#include "ckptd/problems.h"
#include "ckptd/test_node_rig.h"
#include "proto/beat_page.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"

#define RANKS 3
#define STEPS 400u
#define DRIFT 2u

struct crew {
	struct hand k[RANKS];
	uint64_t next[RANKS]; /* the step that each saves next */
	uint32_t saved, skipped;
};

static void crew_begin(struct node_test *t, struct crew *w)
{
	*w = (struct crew){0};
	begin_node(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		join(t, &w->k[i], i, RANKS, "run1");
		declare_rank(&w->k[i], i, RANKS);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		prepare_rank(&w->k[i]);
}

static void crew_end(struct crew *w)
{
	for (uint32_t i = 0; i < RANKS; i++)
		hand_close(&w->k[i]);
}

static void say_skip_of_try(struct hand *k, uint64_t step, uint32_t try)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip skip = CKPT__SKIP__INIT;

	skip.step = step;
	skip.epoch = k->epoch;
	skip.try_ = try;
	skip.reason = (char *)"no credit";
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &skip;
	assert_int_equal(hand_ask_code(k, &q), 0);
}

static void say_skip(struct hand *k, uint64_t step)
{
	say_skip_of_try(k, step, 0);
}

/* Its seal was refused. */
static void give_back(struct hand *k, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip skip = CKPT__SKIP__INIT;

	skip.step = step;
	skip.epoch = k->epoch;
	skip.credit = k->used_credit;
	skip.kind = CKPT_SKIP_FAILED;
	skip.reason = (char *)"its seal was refused";
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &skip;
	assert_int_equal(hand_ask_code(k, &q), 0);
}

/* As the library does; whether it saved. */
static bool save_or_skip(struct hand *k, uint32_t rank, uint64_t step)
{
	int r;

	beat_page_put_saving(k->beats, k->epoch, step, false);
	if (k->page->credit > k->used_credit && step >= k->page->credit_from) {
		r = save_rank(k, rank, step);
		if (r == CKPT_EABORTED)
			k->used_credit = k->page->credit; /* another has skipped it */
		assert_true(r == 0 || r == CKPT_EABORTED);
		return true;
	}
	say_skip(k, step);
	return false;
}

static uint64_t slowest(const struct crew *w)
{
	uint64_t least = w->next[0];

	for (uint32_t i = 1; i < RANKS; i++)
		least = min_u64(least, w->next[i]);
	return least;
}

/* Each rank in its own time, never more than DRIFT steps before another. */
static void drift(struct node_test *t, struct crew *w, uint64_t seed)
{
	struct rng_seeded random;

	rng_seed(&random, seed);
	while (slowest(w) < STEPS) {
		uint32_t i = (uint32_t)rng_below(&random.rng, RANKS);

		if (w->next[i] >= slowest(w) + DRIFT + 1)
			continue;
		w->next[i]++;
		if (save_or_skip(&w->k[i], i, w->next[i]))
			w->saved++;
		else
			w->skipped++;
		for (uint64_t n = rng_below(&random.rng, 4); n > 0; n--)
			host_turn(&t->host);
	}
}

static void test_ranks_save_the_same_steps(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	drift(t, &w, 1);
	printf("# %u saves, %u skips, %zu aborts\n", w.saved, w.skipped,
	       the_job(t)->history.n_aborts);
	assert_true(w.saved > STEPS / 4);
	assert_int_equal(the_job(t)->history.n_aborts, 0);
	crew_end(&w);
}

/* The same ranks where each takes its credit when it comes: this test sees the difference. */
static void test_ranks_that_do_not_agree(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	bug_set(BUG_CREDIT_AT_ANY_STEP, true);
	drift(t, &w, 1);
	bug_set(BUG_CREDIT_AT_ANY_STEP, false);
	assert_true(the_job(t)->history.n_aborts > 10);
	crew_end(&w);
}

static void turns(struct node_test *t)
{
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
}

/* Rank 2 begins its save before the credit comes: the window lies beyond it, for all. */
static void test_the_window_is_beyond_every_save(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		assert_int_equal(w.k[i].page->credit_from, 0); /* the first: any step */
		beat_page_put_saving(w.k[i].beats, w.k[i].epoch, 10, false);
		assert_int_equal(save_rank(&w.k[i], i, 10), 0);
		if (i == 1) /* rank 0 is ahead: it has begun the next one before rank 2 saved */
			beat_page_put_saving(w.k[0].beats, w.k[0].epoch, 12, false);
	}
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		assert_true(w.k[i].page->credit > w.k[i].used_credit);
		assert_int_equal(w.k[i].page->credit_from, 13);
	}
	crew_end(&w);
}

/* A rank that waits has not begun its save: the window begins with that step. */
static void test_a_step_that_is_waited_for(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		if (i + 1 == RANKS)
			beat_page_put_saving(w.k[0].beats, w.k[0].epoch, 20, true);
		assert_int_equal(save_rank(&w.k[i], i, 10), 0);
	}
	turns(t);
	assert_int_equal(w.k[0].page->credit_from, 20);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(save_rank(&w.k[i], i, 20), 0);
	turns(t);
	assert_int_equal(w.k[1].page->credit_from, 21);
	crew_end(&w);
}

/* Nor has one that skipped that step before, and tries it again. */
static void test_a_step_that_was_skipped_is_waited_for(void **state)
{
	struct node_test *t = *state;
	struct crew w = {0};

	begin_node(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		join(t, &w.k[i], i, RANKS, "run1");
		declare_rank(&w.k[i], i, RANKS);
		beat_page_put_saving(w.k[i].beats, w.k[i].epoch, 10, false);
		say_skip(&w.k[i], 10);
	}
	for (uint32_t i = 0; i < RANKS; i++) {
		beat_page_put_saving(w.k[i].beats, w.k[i].epoch, 10, true);
		prepare_rank(&w.k[i]);
	}
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(w.k[i].page->credit_from, 10);
	crew_end(&w);
}

/* Its credit stays its own, for the next window. */
static void test_a_rank_misses_its_window(void **state)
{
	struct node_test *t = *state;
	struct crew w;
	uint64_t credit;

	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 0; i < RANKS - 1; i++)
		assert_int_equal(save_rank(&w.k[i], i, 10), 0);
	credit = w.k[2].page->credit;
	say_skip(&w.k[2], 10);
	turns(t);
	assert_int_equal(w.k[2].page->credit, credit);
	for (uint32_t i = 0; i < RANKS; i++) {
		assert_true(w.k[i].page->credit > w.k[i].used_credit);
		assert_int_equal(w.k[i].page->credit_from, 10); /* it may be tried again */
		assert_int_equal(save_rank(&w.k[i], i, 11), 0);
	}
	assert_int_equal(hand_wait(&w.k[0], 11, CKPT_COMMITTED), 0);
	turns(t);
	assert_int_equal(w.k[0].page->credit_from, 12);
	crew_end(&w);
}

/* One rank cannot save a step: all try it again, if none has gone on. */
static void test_a_step_is_tried_again(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		beat_page_put_saving(w.k[i].beats, w.k[i].epoch, 10, false);
		if (i == 1)
			say_skip(&w.k[i], 10);
		else
			ignore_result(save_rank(&w.k[i], i, 10) /* the last one is refused */);
	}
	w.k[2].used_credit = w.k[2].page->credit;
	give_back(&w.k[2], 10);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		assert_true(w.k[i].page->credit > w.k[i].used_credit);
		assert_int_equal(w.k[i].page->credit_from, 10);
	}
	crew_end(&w);
}

/* The answer to a rank's Seal is lost, and its next save gives the credit back: it is too late for
 * that, as the rank's part is sealed, and the step commits when the others have sealed it. */
static void test_a_sealed_credit_is_given_back(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		assert_int_equal(save_rank(&w.k[i], i, 10), 0);
		if (i == 0)
			give_back(&w.k[i], 10);
	}
	assert_int_equal(hand_wait(&w.k[1], 10, CKPT_COMMITTED), 0);
	assert_int_equal(the_job(t)->history.n_aborts, 0);
	crew_end(&w);
}

/* One rank's save is refused before it looks for a credit, and all call save for that step once
 * more: the others have sealed it and skip their second try for want of a credit. */
static void test_a_step_is_tried_again_by_ranks_that_sealed(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 1; i < RANKS; i++)
		assert_int_equal(save_rank(&w.k[i], i, 10), 0);
	for (uint32_t i = 1; i < RANKS; i++)
		say_skip_of_try(&w.k[i], 10, 1);
	assert_int_equal(save_rank(&w.k[0], 0, 10), 0);
	assert_int_equal(hand_wait(&w.k[1], 10, CKPT_COMMITTED), 0);
	assert_int_equal(the_job(t)->history.n_aborts, 0);
	crew_end(&w);
}

/* Ranks that wait for one which is not ready get no credit for their step; that one comes to it
 * last, and the others come back to it. */
static void test_a_step_before_the_first_window(void **state)
{
	struct node_test *t = *state;
	struct crew w = {0};

	begin_node(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		join(t, &w.k[i], i, RANKS, "run1");
		declare_rank(&w.k[i], i, RANKS);
		beat_page_put_saving(w.k[i].beats, w.k[i].epoch, 10, i + 1 == RANKS);
		if (i + 1 < RANKS)
			say_skip(&w.k[i], 10);
		prepare_rank(&w.k[i]);
	}
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(w.k[i].page->credit_from, 10);
	crew_end(&w);
}

/* A rank alone gives back a credit that it took in the epoch before: it gets another one. */
static void test_a_credit_of_an_older_epoch_comes_back(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	turns(t);
	assert_int_equal(t->a.page->credit, 1);
	t->a.used_credit = 1;
	t->a.epoch--;
	give_back(&t->a, 10);
	t->a.epoch++;
	turns(t);
	assert_int_equal(t->a.page->credit, 2);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
}

/* ---- A restart ---- */

/* What a restart does after it has found memory: it knows no window, turn or message any more. */
static void adopt_again(struct job *j)
{
	struct member *m;

	j->window = (struct credit_window){0};
	list_each(m, &j->members, link) {
		m->turn = TURN_DONE;
		m->next_save = 0;
	}
	credits_adopt(j);
}

/* All have saved step 10, rank 0 has begun step 12: the window begins with 13. */
static void open_at_13(struct node_test *t, struct crew *w)
{
	crew_begin(t, w);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		beat_page_put_saving(w->k[i].beats, w->k[i].epoch, 10, false);
		if (i + 1 == RANKS)
			beat_page_put_saving(w->k[0].beats, w->k[0].epoch, 12, false);
		assert_int_equal(save_rank(&w->k[i], i, 10), 0);
	}
	turns(t);
	assert_int_equal(w->k[1].page->credit_from, 13);
}

static void test_the_window_outlives_ckptd(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	open_at_13(t, &w);
	adopt_again(the_job(t));
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(credits_first(member_of_rank(the_job(t), i)), 13);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_true(save_or_skip(&w.k[i], i, 13));
	/* One has missed the window, with its credit: it has it for the next one. */
	turns(t);
	beat_page_put_saving(w.k[2].beats, w.k[2].epoch, 20, false);
	say_skip(&w.k[2], 20);
	adopt_again(the_job(t));
	assert_int_equal(credits_first(member_of_rank(the_job(t), 2)), CREDIT_NOT_YET);
	assert_int_equal(credits_first(member_of_rank(the_job(t), 1)), 14);
	crew_end(&w);
}

/* ckptd ends while it gives the credits of a window: those who got none are given theirs. */
static void test_a_window_that_was_given_to_some(void **state)
{
	struct node_test *t = *state;
	struct crew w;
	struct member *m;
	struct slot *s;

	open_at_13(t, &w);
	m = member_of_rank(the_job(t), 2);
	list_each(s, &m->slots, of_member) {
		if (s->state != SLOT_WRITING)
			continue;
		s->state = SLOT_EMPTY;
		m->credit--;
		m->credit_unused = false;
	}
	m->turn = TURN_DONE;
	beats_note_credit(m);
	adopt_again(the_job(t));
	assert_int_equal(m->turn, TURN_DUE);
	assert_int_equal(credits_first(member_of_rank(the_job(t), 1)), 13);
	job_poke(the_job(t));
	turns(t);
	assert_int_equal(credits_first(m), 13);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(save_rank(&w.k[i], i, 13), 0);
	crew_end(&w);
}

/* ckptd is killed again and again while rank 0 skips what the others save, and forgets each time
 * that it has said so: their slots are free as soon as it is known that rank 0 has gone on. */
static void test_slots_of_passed_steps_are_free(void **state)
{
	struct node_test *t = *state;
	const uint64_t passed[] = {10, 13};
	struct checkpoint *c;
	struct crew w;

	t->o.slots = 2;
	crew_begin(t, &w);
	turns(t);
	for (int n = 0; n < 2; n++) {
		assert_in_range(w.k[1].page->credit_from, 0, passed[n]);
		for (uint32_t i = 1; i < RANKS; i++) {
			beat_page_put_saving(w.k[i].beats, w.k[i].epoch, passed[n], false);
			assert_int_equal(save_rank(&w.k[i], i, passed[n]), 0);
		}
		beat_page_put_saving(w.k[0].beats, w.k[0].epoch, passed[n] + 1, false);
		c = checkpoint_find(the_job(t), w.k[0].epoch, passed[n]);
		assert_non_null(c);
		assert_int_equal(c->agreed, CP_OPEN);
		/* It is behind, with its credit: it may have sealed this step meanwhile. */
		adopt_again(the_job(t));
		job_poke(the_job(t));
		turns(t);
		assert_int_equal(c->agreed, CP_OPEN);
		say_skip(&w.k[0], passed[n] + 1);
		turns(t);
		assert_int_equal(w.k[1].page->credit_from, passed[n] + 1);
		assert_null(checkpoint_find(the_job(t), w.k[0].epoch, passed[n]));
	}
	crew_end(&w);
}

/* Of two that save different steps in one window none has both, and the next one lies beyond both:
 * the later one, too, gives its slots back, for which the rank behind would have to come to it. */
static void test_a_step_that_a_rank_has_no_turn_for(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	t->o.slots = 2;
	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		beat_page_put_saving(w.k[i].beats, w.k[i].epoch, i == 0 ? 22 : 28, false);
		assert_int_equal(save_rank(&w.k[i], i, i == 0 ? 22 : 28), 0);
	}
	turns(t);
	assert_null(checkpoint_find(the_job(t), w.k[0].epoch, 22));
	assert_null(checkpoint_find(the_job(t), w.k[0].epoch, 28));
	assert_int_equal(w.k[0].page->credit_from, 29);
	crew_end(&w);
}

/* ---- A rank that is far ahead ---- */

#define FAR 1000000000u

/* Rank 0 calls save for a step far ahead, once: the others pass their steps until it is back. */
static void test_a_rank_is_far_ahead(void **state)
{
	struct node_test *t = *state;
	const struct problem *p;
	struct crew w;

	t->o.skips_ns = 0;
	crew_begin(t, &w);
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++) {
		beat_page_put_saving(w.k[i].beats, w.k[i].epoch, 10, false);
		if (i + 1 == RANKS)
			assert_false(save_or_skip(&w.k[0], 0, FAR));
		assert_int_equal(save_rank(&w.k[i], i, 10), 0);
	}
	turns(t);
	assert_int_equal(w.k[1].page->credit_from, FAR + 1);
	p = &the_job(t)->saves.problems[PROBLEM_AHEAD];
	for (uint64_t step = 11; step <= 13; step++) {
		assert_false(p->stands); /* one or two are drift */
		for (uint32_t i = 1; i < RANKS; i++)
			assert_false(save_or_skip(&w.k[i], i, step));
	}
	assert_true(p->stands);
	assert_int_equal(p->rank, 0);
	assert_int_equal(p->step, FAR);
	assert_true(
		was_told("rank 0 has called save for step 1000000000 and rank 1 is at step 13"));
	assert_false(save_or_skip(&w.k[0], 0, 14));
	turns(t);
	assert_false(p->stands);
	assert_true(was_told("that is over: all ranks save the same steps"));
	for (uint32_t i = 0; i < RANKS; i++) {
		assert_int_equal(w.k[i].page->credit_from, 15);
		assert_true(save_or_skip(&w.k[i], i, 15));
	}
	assert_int_equal(hand_wait(&w.k[0], 15, CKPT_COMMITTED), 0);
	crew_end(&w);
}

/* It has even saved that step, alone: the attempt ends, the others need not come to it. */
static void test_a_rank_has_saved_far_ahead(void **state)
{
	struct node_test *t = *state;
	struct crew w;

	crew_begin(t, &w);
	turns(t);
	assert_true(save_or_skip(&w.k[0], 0, FAR));
	for (uint32_t i = 1; i < RANKS; i++)
		assert_true(save_or_skip(&w.k[i], i, 10));
	turns(t);
	assert_int_equal(w.k[1].page->credit_from, FAR + 1);
	assert_false(save_or_skip(&w.k[0], 0, 12));
	turns(t);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_true(save_or_skip(&w.k[i], i, 13));
	assert_int_equal(hand_wait(&w.k[1], 13, CKPT_COMMITTED), 0);
	crew_end(&w);
}

/* Without a failed assertion, behind which workers would wait for ever. */
static void save_rank_now(struct hand *k, uint32_t rank, uint64_t step)
{
	int r = save_rank(k, rank, step);

	shard_waits = shard_waits && r == 0;
	assert_int_equal(r, 0);
}

static void test_why_there_is_no_credit(void **state)
{
	struct node_test *t = *state;
	struct crew w = {0};

	t->o.slots = 2;
	begin_node(t);
	join(t, &w.k[0], 0, RANKS, "run1");
	declare_rank(&w.k[0], 0, RANKS);
	prepare_rank(&w.k[0]);
	turns(t);
	assert_int_equal(w.k[0].page->blocked, BLOCK_ABSENT);
	for (uint32_t i = 1; i < RANKS; i++) {
		join(t, &w.k[i], i, RANKS, "run1");
		declare_rank(&w.k[i], i, RANKS);
		turns(t);
		assert_int_equal(w.k[0].page->blocked,
				 i + 1 < RANKS ? BLOCK_ABSENT : BLOCK_UNPREPARED);
		if (i + 1 == RANKS)
			assert_int_equal(w.k[0].page->blocked_rank, i);
		prepare_rank(&w.k[i]);
	}
	turns(t);
	assert_int_equal(w.k[0].page->credit, 1);
	assert_int_equal(save_rank(&w.k[0], 0, 10), 0);
	turns(t);
	assert_int_equal(w.k[0].page->blocked, BLOCK_BEHIND);
	assert_in_range(w.k[0].page->blocked_rank, 1, 2);
	/* One slot is being written, for as long as the disk takes, the other has the newest. */
	shard_waits = true;
	for (uint64_t step = 10; step < 12; step++)
		for (uint32_t i = step == 10; i < RANKS; i++)
			save_rank_now(&w.k[i], i, step);
	turns(t);
	shard_waits = false;
	assert_int_equal(w.k[0].page->blocked, BLOCK_SLOTS);
	crew_end(&w);
}

/* What an epoch has lost does not come back in it, so that no save need wait; the next launch's
 * ranks are still to come. */
static void test_a_rank_has_left(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	struct node_test *t = *state;
	struct crew w;

	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	crew_begin(t, &w);
	turns(t);
	assert_int_equal(w.k[0].page->blocked, BLOCK_BEHIND);
	assert_int_equal(hand_ask_code(&w.k[1], &q), 0);
	turns(t);
	assert_int_equal(save_rank(&w.k[0], 0, 10), 0); /* it has its credit, for nothing */
	turns(t);
	assert_null(checkpoint_find(the_job(t), w.k[0].epoch, 10));
	assert_int_equal(w.k[0].page->blocked, BLOCK_LEFT);
	assert_int_equal(w.k[0].page->blocked_rank, 1);
	crew_end(&w);
	turns(t);
	join(t, &w.k[0], 0, RANKS, "run2");
	declare_rank(&w.k[0], 0, RANKS);
	prepare_rank(&w.k[0]);
	turns(t);
	assert_int_equal(w.k[0].page->blocked, BLOCK_ABSENT);
	hand_close(&w.k[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_ranks_save_the_same_steps),
		NODE_TEST(test_ranks_that_do_not_agree),
		NODE_TEST(test_the_window_is_beyond_every_save),
		NODE_TEST(test_a_step_that_is_waited_for),
		NODE_TEST(test_a_step_that_was_skipped_is_waited_for),
		NODE_TEST(test_a_rank_misses_its_window),
		NODE_TEST(test_a_step_is_tried_again),
		NODE_TEST(test_a_sealed_credit_is_given_back),
		NODE_TEST(test_a_step_is_tried_again_by_ranks_that_sealed),
		NODE_TEST(test_a_step_before_the_first_window),
		NODE_TEST(test_a_credit_of_an_older_epoch_comes_back),
		NODE_TEST(test_the_window_outlives_ckptd),
		NODE_TEST(test_a_window_that_was_given_to_some),
		NODE_TEST(test_slots_of_passed_steps_are_free),
		NODE_TEST(test_a_step_that_a_rank_has_no_turn_for),
		NODE_TEST(test_a_rank_is_far_ahead),
		NODE_TEST(test_a_rank_has_saved_far_ahead),
		NODE_TEST(test_why_there_is_no_credit),
		NODE_TEST(test_a_rank_has_left),
	};

	return cmocka_run_group_tests_name("ckptd/test_credits", tests, NULL, NULL);
}
