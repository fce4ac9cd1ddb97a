/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_history_model.c - random valid logs add up to what a naive model says, which keeps the list
 * of all records and looks everything up in it anew.
 */
#include <config.h>

#include "base/rng.h"
#include "model/trust.h"
#include "tests/lib/test.h"

#include "coord/test_memlog.h"

enum { SAID_MAX = 400, RUNS = 6 };

struct said {
	struct record r;
	bool left_out; /* a commit that a later sum does not have */
};

struct model {
	struct said said[SAID_MAX];
	size_t n, last_sum; /* last_sum: index, 0 for none */
};

static const struct record *model_mark(const struct model *m, enum record_type type,
				       const struct record *c)
{
	const struct record *found = NULL;

	for (size_t i = 0; i < m->n; i++) {
		const struct record *r = &m->said[i].r;

		if (r->type == type && r->mark.step == c->commit.step &&
		    memcmp(&r->mark.attempt, &c->commit.attempt, 16) == 0)
			found = r;
	}
	return found;
}

static bool model_pinned(const struct model *m, const struct record *c)
{
	const struct record *pin = model_mark(m, RECORD_PIN, c);

	return pin && pin->mark.value == 1;
}

static bool model_lost(const struct model *m, const struct record *c)
{
	const struct record *freed = model_mark(m, RECORD_FREE, c);

	return freed && freed->mark.value == 2;
}

static const struct record *model_epoch(const struct model *m)
{
	const struct record *found = NULL;

	for (size_t i = 0; i < m->n; i++)
		if (m->said[i].r.type == RECORD_EPOCH)
			found = &m->said[i].r;
	return found;
}

static uint64_t model_term(const struct model *m)
{
	uint64_t term = 0;

	for (size_t i = 0; i < m->n; i++)
		term += m->said[i].r.type == RECORD_LEAD; /* each is one above */
	return term;
}

/* The k-th commit that counts; with freed ones or without. NULL past the end. */
static struct said *model_commit(struct model *m, size_t k, bool with_freed)
{
	for (size_t i = 0; i < m->n; i++) {
		struct said *s = &m->said[i];

		if (s->r.type != RECORD_COMMIT || s->left_out ||
		    (!with_freed && model_mark(m, RECORD_FREE, &s->r)))
			continue;
		if (k-- == 0)
			return s;
	}
	return NULL;
}

static const struct record *model_newest(struct model *m)
{
	const struct record *found = NULL;
	struct said *s;

	for (size_t k = 0; (s = model_commit(m, k, false)); k++)
		found = &s->r;
	return found;
}

static const struct record *model_last_commit_of_epoch(const struct model *m)
{
	const struct record *found = NULL;

	for (size_t i = 0; i < m->n; i++) {
		if (m->said[i].r.type == RECORD_EPOCH)
			found = NULL;
		if (m->said[i].r.type == RECORD_COMMIT)
			found = &m->said[i].r;
	}
	return found;
}

static bool model_passes(const struct model *m, const struct record *epoch,
			 const struct record *commit)
{
	for (size_t i = 0; i < m->n && epoch->opened.passes; i++) {
		const struct record *r = &m->said[i].r;

		if (r->type == RECORD_COMMIT && r->commit.step == epoch->opened.base_step &&
		    attempt_equal(&r->commit.attempt, &epoch->opened.base_attempt))
			return r->n < commit->n && commit->n < epoch->n;
	}
	return false;
}

/* Bit by bit: a level is the highest said, what speaks against it stays. */
static uint32_t model_trust(const struct model *m, const struct record *commit)
{
	uint32_t level = 0, against = 0;

	for (size_t i = 0; i < m->n; i++) {
		const struct record *r = &m->said[i].r;

		if (r->type == RECORD_EPOCH && model_passes(m, r, commit))
			against |= TRUST_PASSED / 256;
		if (r->type != RECORD_TRUST || r->mark.step != commit->commit.step ||
		    !attempt_equal(&r->mark.attempt, &commit->commit.attempt))
			continue;
		if (r->mark.value % 256 > level)
			level = r->mark.value % 256;
		against |= r->mark.value / 256;
	}
	return against * 256 + level;
}

static void compare_commits(struct model *m, const struct history *h)
{
	struct said *s;
	size_t k;

	for (k = 0; (s = model_commit(m, k, true)); k++) {
		const struct record *r = &s->r;
		const struct history_commit *c = &h->commits[k];

		assert_true(k < h->n_commits);
		assert_int_equal(c->n, r->n);
		assert_int_equal(c->epoch, r->epoch);
		assert_int_equal(c->wall_ns, r->wall_ns);
		assert_int_equal(c->commit.step, r->commit.step);
		assert_memory_equal(&c->commit, &r->commit, sizeof(r->commit));
		assert_int_equal(c->pinned, model_pinned(m, r));
		assert_int_equal(c->freed, model_mark(m, RECORD_FREE, r) != NULL);
		assert_int_equal(c->lost, model_lost(m, r));
		assert_int_equal(c->trust, model_trust(m, r));
	}
	assert_int_equal(h->n_commits, k);
}

static void compare_runs(const struct model *m, const struct history *h)
{
	const struct record *epoch = model_epoch(m);

	for (int run = 0; run < RUNS; run++) {
		char name[16];
		bool known = false;

		snprintf(name, sizeof(name), "run-%d", run);
		for (size_t i = 0; i < m->n; i++)
			known = known || (m->said[i].r.type == RECORD_EPOCH &&
					  strcmp(m->said[i].r.opened.run_id, name) == 0);
		assert_int_equal(history_run_is_past(h, name),
				 known && strcmp(epoch->opened.run_id, name) != 0);
	}
}

static void compare(struct model *m, const struct history *h)
{
	const struct record *epoch = model_epoch(m), *newest = model_newest(m);
	const struct record *last = model_last_commit_of_epoch(m);
	size_t aborts = 0, k;

	assert_int_equal(h->next_n, m->n);
	assert_int_equal(h->first_n, m->last_sum);
	assert_int_equal(h->term, model_term(m));
	assert_int_equal(h->epoch.number, epoch ? epoch->opened.number : 0);
	assert_int_equal(h->stepped, last != NULL);
	assert_int_equal(h->last_step, last ? last->commit.step : 0);
	if (newest)
		assert_int_equal(history_newest(h)->n, newest->n);
	else
		assert_null(history_newest(h));
	compare_runs(m, h);
	compare_commits(m, h);
	for (size_t i = 0; i < m->n; i++)
		aborts += m->said[i].r.type == RECORD_ABORT;
	k = aborts > HISTORY_ABORTS_MAX ? HISTORY_ABORTS_MAX : aborts;
	assert_int_equal(h->n_aborts, k);
	for (size_t i = m->n; i-- > 0 && k > 0;)
		if (m->said[i].r.type == RECORD_ABORT)
			assert_int_equal(h->aborts[--k].n, i);
}

/* A random record that is valid next, by the model alone. */
static struct record model_draw(struct model *m, struct rng *rng, uint64_t *attempts)
{
	const struct record *epoch = model_epoch(m), *last = model_last_commit_of_epoch(m);
	uint64_t number = epoch ? epoch->opened.number : 0, dice = rng_below(rng, 100);
	struct said *some = model_commit(m, rng_below(rng, 8), false);
	struct record r;

	if (dice < 5)
		return sample_record(RECORD_LEAD, 0);
	if (dice < 12 || number == 0) {
		r = sample_record(RECORD_EPOCH, 0);
		r.opened.parent = number;
		r.opened.number = number + 1 + rng_below(rng, 3);
		sprintf(r.opened.run_id, "run-%d", (int)rng_below(rng, RUNS));
		r.opened.has_base = some != NULL;
		r.opened.passes = some && rng_below(rng, 2) == 0;
		if (some) {
			r.opened.base_step = some->r.commit.step;
			r.opened.base_attempt = some->r.commit.attempt;
		}
		return r;
	}
	if (dice < 20)
		return aborted(rng_below(rng, 1u << 20), (*attempts)++, 1 + (uint32_t)m->n);
	if (dice < 45 && some) {
		enum record_type types[] = { RECORD_FREE, RECORD_PIN, RECORD_TRUST };

		r = mark(types[rng_below(rng, 3)], some->r.commit.step, 0, 1);
		r.mark.attempt = some->r.commit.attempt;
		if (r.type == RECORD_FREE && (model_pinned(m, &some->r) || dice < 40))
			r.mark.value = 2;
		if (r.type == RECORD_TRUST)
			r.mark.value = (uint32_t)(rng_below(rng, 3) | rng_below(rng, 4) << 8);
		if (r.type == RECORD_PIN)
			r.mark.value = (uint32_t)rng_below(rng, 2);
		return r;
	}
	if (dice < 48)
		return sample_record(RECORD_SUM, 0);
	r = commit((last ? last->commit.step + 1 : 0) + rng_below(rng, 5), (*attempts)++);
	return r;
}

/* The writer knows at random which commits are gone; the model applies the rule to them. */
static void model_sum(struct model *m, struct history *h, struct rng *rng)
{
	const struct record *newest = model_newest(m), *epoch = model_epoch(m);
	bool out[SAID_MAX] = { false };
	size_t lost = 0;
	struct said *s;

	for (size_t k = 0; (s = model_commit(m, k, true)); k++)
		lost += model_lost(m, &s->r);
	for (size_t k = 0; (s = model_commit(m, k, true)); k++) {
		const struct record *r = &s->r;
		bool freed = model_mark(m, RECORD_FREE, r) != NULL, gone = rng_below(rng, 3) == 0;
		bool base = epoch && epoch->opened.has_base &&
			    epoch->opened.base_step == r->commit.step &&
			    memcmp(&epoch->opened.base_attempt, &r->commit.attempt, 16) == 0;

		h->commits[k].gone = gone;
		out[r->n] = freed || (gone && !model_pinned(m, r) && r != newest && !base);
		if (model_lost(m, r))
			out[r->n] = lost-- > HISTORY_LOST_MAX;
	}
	for (size_t i = 0; i < m->n; i++)
		m->said[i].left_out = m->said[i].left_out || out[i];
	m->last_sum = m->n;
}

static void one_random_log(uint64_t seed)
{
	static struct model m; /* large */
	struct memory_log log;
	struct rng_seeded rng;
	uint64_t attempts = 0, length;

	memset(&m, 0, sizeof(m));
	rng_seed(&rng, seed);
	log_init(&log);
	length = 10 + rng_below(&rng.rng, SAID_MAX - 10);
	while (m.n < length) {
		struct record r = m.n == 0 ? sample_record(RECORD_JOB, 1) :
					     model_draw(&m, &rng.rng, &attempts);

		history_next(&log.h, &r);
		if (r.type == RECORD_SUM)
			model_sum(&m, &log.h, &rng.rng);
		assert_int_equal(log_add_raw(&log, &r, NULL), 0);
		m.said[m.n++].r = r;
		if (rng_below(&rng.rng, 20) == 0)
			compare(&m, &log.h);
	}
	compare(&m, &log.h);
	for (size_t i = 0; i < log.h.n_commits; i++)
		log.h.commits[i].gone = false;
	assert_loads(&log);
	log.first = log.h.first_n; /* trimmed */
	assert_loads(&log);
	log_fini(&log);
}

static void test_random_logs_fold_like_the_model(void **state)
{
	uint64_t seed = test_seed(1), runs = test_cap("CKPT_RUNS", 150);

	(void)state;
	for (uint64_t i = 0; i < runs; i++)
		one_random_log(seed + i);
	printf("random logs: %" PRIu64 "\n", runs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_logs_fold_like_the_model),
	};

	return cmocka_run_group_tests_name("coord/history model", tests, NULL, NULL);
}
