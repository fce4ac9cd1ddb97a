/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>

#include "base/fault.h"
#include "model/trust.h"
#include "tests/lib/test.h"

#include "coord/test_memlog.h"

/* ---- Rules ---- */

static void test_how_a_log_begins(void **state)
{
	struct memory_log m;
	struct record r = sample_record(RECORD_JOB, 1);

	(void)state;
	log_init(&m);
	r.term = 1;
	assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	r.term = 0;
	r.epoch = 1;
	assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	r.epoch = 0;
	r.previous.b[3] = 1;
	assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	r.previous.b[3] = 0;
	r.n = 1; /* says that it is another record */
	assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	r = sample_record(RECORD_LEAD, 0);
	assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	r = sample_record(RECORD_SUM, 0);
	r.sum = &m.h;
	strcpy(m.h.job.name, "x");
	assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, sample_record(RECORD_JOB, 1)), 0);
	r = sample_record(RECORD_JOB, 1); /* and never again */
	r.n = 1;
	r.previous = m.h.last;
	assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	log_fini(&m);
}

static void test_a_log_begins_at_0_or_with_a_sum(void **state)
{
	struct memory_log m;
	struct history h;
	struct err e = { 0 };

	(void)state;
	log_begin(&m);
	for (m.first = 1; m.first < m.n; m.first++) {
		history_init(&h);
		assert_int_equal(history_load(&h, &m.log, &e), CKPT_ECORRUPT);
		assert_non_null(strstr(e.text, "begins"));
		history_fini(&h);
	}
	log_fini(&m);
}

static void test_numbers_follow(void **state)
{
	struct memory_log m;
	struct err e = { 0 };
	char *before, *after;

	(void)state;
	log_begin(&m);
	before = dump(&m.h);
	for (uint64_t n = 0; n < m.n; n++)
		assert_int_equal(history_apply(&m.h, n, m.records[n].bytes, m.records[n].len, &e),
				 CKPT_ESTALE);
	assert_int_equal(history_apply(&m.h, m.n, m.records[2].bytes, m.records[2].len, &e),
			 CKPT_ECORRUPT);
	assert_non_null(strstr(e.text, "log record 6: it says that it is record 2"));
	after = dump(&m.h);
	assert_string_equal(before, after);
	alloc_free(before);
	alloc_free(after);
	log_fini(&m);
}

static void test_a_gap_is_found(void **state)
{
	struct memory_log m;
	struct history h;

	(void)state;
	log_begin(&m);
	history_init(&h);
	for (uint64_t n = 0; n < m.n; n++) {
		if (n == 3)
			continue;
		assert_int_equal(history_apply(&h, n, m.records[n].bytes, m.records[n].len, NULL),
				 n < 3 ? 0 : CKPT_ECORRUPT);
	}
	assert_int_equal(h.next_n, 3);
	history_fini(&h);
	log_fini(&m);
}

static void test_records_chain(void **state)
{
	struct memory_log m;
	struct record r = commit(40, 40);

	(void)state;
	log_begin(&m);
	for (size_t i = 0; i < 16; i++) {
		history_next(&m.h, &r);
		r.previous.b[i] ^= 1;
		assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	}
	assert_int_equal(log_add(&m, r), 0);
	log_fini(&m);
}

/* (incarnation, term, epoch): what is older is stale, what is newer was never begun. */
static void test_writers_are_fenced(void **state)
{
	struct memory_log m;

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, sample_record(RECORD_LEAD, 0)), 0);
	assert_int_equal(log_add(&m, opened(&m, 2)), 0);
	for (int type = RECORD_LEAD; type <= RECORD_TRUST; type++) {
		struct record good = mark((enum record_type)type, 10, 10, 1), r;
		bool lead = type == RECORD_LEAD;

		if (lead)
			good = sample_record(RECORD_LEAD, 0);
		else if (type == RECORD_EPOCH)
			good = opened(&m, 3);
		else if (type == RECORD_COMMIT)
			good = commit(40, 40);
		else if (type == RECORD_ABORT)
			good = aborted(40, 41, 1);
		history_next(&m.h, &good);
		r = good;
		r.incarnation--;
		assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ESTALE);
		r.incarnation += 2;
		assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
		r = good;
		r.term--;
		assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ESTALE);
		r.term += 2;
		if (!lead)
			assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
		r = good;
		r.epoch--;
		assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ESTALE);
		r.epoch += 2;
		assert_int_equal(log_add_raw(&m, &r, NULL), CKPT_ECORRUPT);
	}
	log_fini(&m);
}

static void test_lead_raises_the_term(void **state)
{
	struct memory_log m;
	struct record r = sample_record(RECORD_LEAD, 0);

	(void)state;
	log_begin(&m);
	assert_int_equal(m.h.term, 1);
	history_next(&m.h, &r);
	assert_int_equal(r.term, 2);
	r.term = 17;
	assert_int_equal(log_add_raw(&m, &r, NULL), 0);
	assert_int_equal(m.h.term, 17);
	assert_loads(&m);
	log_fini(&m);
}

static void test_epochs_rise(void **state)
{
	struct memory_log m;
	struct record r;

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, opened(&m, 1)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, opened(&m, 0)), CKPT_ECORRUPT);
	r = opened(&m, 2);
	r.opened.parent = 0;
	assert_int_equal(log_add(&m, r), CKPT_ECORRUPT);
	r = opened(&m, 2);
	r.opened.world = 0;
	assert_int_equal(log_add(&m, r), CKPT_ECORRUPT);
	r.opened.world = WORLD_MAX + 1; /* what is kept of each rank would not fit in memory */
	assert_int_equal(log_add(&m, r), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, opened(&m, 2)), 0);
	assert_int_equal(log_add(&m, opened(&m, 9)), 0);
	assert_int_equal(m.h.epoch.number, 9);
	assert_int_equal(m.h.epoch.parent, 2);
	assert_loads(&m);
	log_fini(&m);
}

static void test_runs_become_past(void **state)
{
	struct memory_log m;
	char run[32];

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, opened_by(&m, "a")), 0);
	assert_int_equal(log_add(&m, opened_by(&m, "a")), 0); /* a rank was replaced */
	assert_false(history_run_is_past(&m.h, "a"));
	assert_false(history_run_is_past(&m.h, "b"));
	assert_int_equal(log_add(&m, opened_by(&m, "b")), 0);
	assert_true(history_run_is_past(&m.h, "a"));
	assert_false(history_run_is_past(&m.h, "b"));
	assert_true(history_run_is_past(&m.h, "slurm-4711.0")); /* of epoch 1 */
	assert_int_equal(log_add(&m, sample_record(RECORD_SUM, 0)), 0);
	m.first = m.h.first_n;
	assert_loads(&m);
	assert_true(history_run_is_past(&m.h, "a"));
	assert_int_equal(log_add(&m, opened_by(&m, "a")), 0); /* it came back all the same */
	assert_false(history_run_is_past(&m.h, "a"));
	assert_true(history_run_is_past(&m.h, "b"));
	for (int i = 0; i < HISTORY_RUNS_MAX + 1; i++) {
		snprintf(run, sizeof(run), "run-%d", i);
		assert_int_equal(log_add(&m, opened_by(&m, run)), 0);
	}
	assert_int_equal(m.h.n_runs, HISTORY_RUNS_MAX);
	assert_false(history_run_is_past(&m.h, "a")); /* forgotten: too long ago */
	assert_true(history_run_is_past(&m.h, "run-0"));
	assert_false(history_run_is_past(&m.h, run));
	assert_loads(&m);
	log_fini(&m);
}

static void test_bases_are_committed(void **state)
{
	struct memory_log m;

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, opened_on(&m, 40, 40)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, opened_on(&m, 20, 30)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 30, 30, 2)), 0);
	assert_int_equal(log_add(&m, opened_on(&m, 30, 30)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, opened_on(&m, 20, 20)), 0);
	assert_int_equal(m.h.epoch.base_step, 20);
	assert_loads(&m);
	log_fini(&m);
}

/* (I5) */
static void test_steps_rise_within_an_epoch(void **state)
{
	struct memory_log m;

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, commit(30, 31)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, commit(29, 31)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, commit(31, 31)), 0);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 31, 31, 1)), 0);
	assert_int_equal(log_add(&m, commit(31, 32)), CKPT_ECORRUPT); /* freed is not undone */
	assert_int_equal(log_add(&m, opened_on(&m, 10, 10)), 0);
	assert_int_equal(log_add(&m, commit(0, 40)), 0); /* goes back: a new epoch */
	assert_int_equal(log_add(&m, commit(20, 20)), CKPT_ECORRUPT); /* that very attempt */
	assert_int_equal(log_add(&m, commit(20, 41)), 0);
	assert_int_equal(history_newest(&m.h)->commit.step, 20);
	assert_int_equal(history_newest(&m.h)->epoch, 2);
	assert_loads(&m);
	log_fini(&m);
}

static void test_no_epoch_no_commit(void **state)
{
	struct memory_log m;
	struct record r = commit(1, 1);

	(void)state;
	log_init(&m);
	assert_int_equal(log_add(&m, sample_record(RECORD_JOB, 1)), 0);
	assert_int_equal(log_add(&m, commit(1, 1)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, aborted(1, 1, 1)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, opened(&m, 1)), 0);
	r.commit.world = 0;
	assert_int_equal(log_add(&m, r), CKPT_ECORRUPT);
	r.commit.world = WORLD_MAX + 1;
	assert_int_equal(log_add(&m, r), CKPT_ECORRUPT);
	r.commit.world = WORLD_MAX;
	r.commit.attempt.b[0] ^= 1;
	r.commit.step = 0;
	assert_int_equal(log_add(&m, r), 0);
	r = commit(1, 1);
	assert_int_equal(log_add(&m, commit(1, 1)), 0);
	assert_null(history_find(&m.h, 2, &r.commit.attempt));
	assert_null(history_find(&m.h, 1, &(struct attempt_id){ { 0 } }));
	assert_non_null(history_find(&m.h, 1, &r.commit.attempt));
	log_fini(&m);
}

static void test_aborted_or_committed(void **state)
{
	struct memory_log m;

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, aborted(30, 30, 1)), CKPT_ECORRUPT); /* committed */
	assert_int_equal(log_add(&m, aborted(40, 40, 0)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, aborted(40, 40, 1)), 0);
	assert_int_equal(log_add(&m, aborted(40, 40, 2)), CKPT_ECORRUPT); /* twice */
	assert_int_equal(log_add(&m, commit(40, 40)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, aborted(40, 41, 2)), 0);
	assert_int_equal(log_add(&m, commit(40, 42)), 0);
	assert_int_equal(log_add(&m, aborted(35, 43, 1)), 0); /* an attempt that was overtaken */
	assert_int_equal(log_add(&m, opened(&m, 2)), 0);
	assert_int_equal(log_add(&m, aborted(40, 44, 1)), 0); /* tries of another epoch */
	assert_int_equal(m.h.n_aborts, 4);
	assert_loads(&m);
	log_fini(&m);
}

static void test_only_the_newest_aborts_are_kept(void **state)
{
	struct memory_log m;

	(void)state;
	log_begin(&m);
	for (uint64_t i = 0; i < HISTORY_ABORTS_MAX + 10; i++)
		assert_int_equal(log_add(&m, aborted(100 + i, 100 + i, 1)), 0);
	assert_int_equal(m.h.n_aborts, HISTORY_ABORTS_MAX);
	assert_int_equal(m.h.aborts[0].aborted.step, 110);
	assert_int_equal(m.h.aborts[HISTORY_ABORTS_MAX - 1].aborted.step,
			 100 + HISTORY_ABORTS_MAX + 9);
	assert_loads(&m);
	assert_int_equal(log_add(&m, sample_record(RECORD_SUM, 0)), 0);
	assert_loads(&m);
	log_fini(&m);
}

static void test_marks_name_what_is_committed(void **state)
{
	struct memory_log m;
	struct attempt_id ten = sample_attempt(10);

	(void)state;
	log_begin(&m);
	for (int type = RECORD_FREE; type <= RECORD_TRUST; type++) {
		assert_int_equal(log_add(&m, mark((enum record_type)type, 40, 40, 1)),
				 CKPT_ECORRUPT);
		assert_int_equal(log_add(&m, mark((enum record_type)type, 10, 20, 1)),
				 CKPT_ECORRUPT);
	}
	assert_int_equal(log_add(&m, mark(RECORD_PIN, 10, 10, 2)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, mark(RECORD_PIN, 10, 10, 1)), 0);
	assert_true(history_find(&m.h, 10, &ten)->pinned);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 10, 10, 1)), CKPT_ECORRUPT); /* pinned */
	assert_int_equal(log_add(&m, mark(RECORD_PIN, 10, 10, 0)), 0);
	assert_int_equal(log_add(&m, mark(RECORD_TRUST, 10, 10, 2)), 0);
	assert_int_equal(history_find(&m.h, 10, &ten)->trust, 2);
	assert_int_equal(log_add(&m, mark(RECORD_TRUST, 10, 10, 1)), 0); /* never lower */
	assert_int_equal(history_find(&m.h, 10, &ten)->trust, 2);
	assert_int_equal(log_add(&m, mark(RECORD_TRUST, 10, 10, TRUST_BAD)), 0);
	assert_int_equal(history_find(&m.h, 10, &ten)->trust, TRUST_BAD | 2);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 10, 10, 0)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 10, 10, 3)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 10, 10, 1)), 0);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 10, 10, 2)), 0); /* again: no harm */
	assert_int_equal(log_add(&m, mark(RECORD_PIN, 10, 10, 1)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, mark(RECORD_TRUST, 10, 10, 1)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, mark(RECORD_PIN, 20, 20, 1)), 0);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 20, 20, 2)), 0); /* lost is lost */
	assert_loads(&m);
	log_fini(&m);
}

static void test_newest_is_later_in_the_log(void **state)
{
	struct memory_log m;

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, opened_on(&m, 10, 10)), 0);
	assert_int_equal(history_newest(&m.h)->commit.step, 30);
	assert_int_equal(log_add(&m, commit(11, 50)), 0);
	assert_int_equal(history_newest(&m.h)->commit.step, 11); /* not the highest step */
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 11, 50, 2)), 0);
	assert_int_equal(history_newest(&m.h)->commit.step, 30);
	for (uint64_t step = 10; step <= 30; step += 10)
		assert_int_equal(log_add(&m, mark(RECORD_FREE, step, step, 2)), 0);
	assert_null(history_newest(&m.h));
	log_fini(&m);
}

static void test_features_of_newer_programs(void **state)
{
	struct memory_log m;
	struct record r = commit(40, 40);
	void *bytes = NULL;
	size_t len = 0;

	(void)state;
	log_begin(&m);
	history_next(&m.h, &r);
	assert_int_equal(record_encode(&r, &bytes, &len), 0);
	((uint8_t *)bytes)[16] = 2; /* incompat */
	reseal(bytes, len);
	assert_int_equal(history_apply(&m.h, r.n, bytes, len, NULL), CKPT_EVERSION);
	assert_int_equal(m.h.next_n, r.n);
	((uint8_t *)bytes)[16] = 0;
	((uint8_t *)bytes)[20] = 1; /* ro */
	reseal(bytes, len);
	assert_int_equal(history_apply(&m.h, r.n, bytes, len, NULL), 0);
	assert_true(m.h.read_only);
	assert_int_equal(history_newest(&m.h)->commit.step, 40);
	alloc_free(bytes);
	log_fini(&m);
}

/* ---- Damage ---- */

static void test_damage_stops_the_load_at_the_last_good_record(void **state)
{
	struct memory_log m;
	unsigned loads = 0;

	(void)state;
	log_begin(&m);
	assert_int_equal(log_add(&m, aborted(40, 40, 1)), 0);
	assert_int_equal(log_add(&m, mark(RECORD_PIN, 10, 10, 1)), 0);
	assert_int_equal(log_add(&m, opened_on(&m, 10, 10)), 0);
	assert_int_equal(log_add(&m, sample_record(RECORD_SUM, 0)), 0);
	assert_int_equal(log_add(&m, commit(20, 50)), 0);
	for (uint64_t n = 0; n < m.n; n++) {
		struct history good;
		char want[64];

		history_init(&good);
		for (uint64_t i = 0; i < n; i++)
			assert_int_equal(history_apply(&good, i, m.records[i].bytes,
						       m.records[i].len, NULL), 0);
		snprintf(want, sizeof(want), "log record %" PRIu64 ":", n);
		for (size_t at = 0; at < m.records[n].len; at++) {
			uint8_t *p = m.records[n].bytes;
			struct history h;
			struct err e = { 0 };

			p[at] ^= 0x10;
			history_init(&h);
			assert_int_equal(history_load(&h, &m.log, &e), CKPT_ECORRUPT);
			assert_non_null(strstr(e.text, want));
			assert_int_equal(h.next_n, n);
			assert_same(&h, &good);
			history_fini(&h);
			p[at] ^= 0x10;
			loads++;
		}
		history_fini(&good);
	}
	printf("loads of a damaged log: %u\n", loads);
	assert_loads(&m);
	log_fini(&m);
}

/* ---- Sums ---- */

static void log_varied(struct memory_log *m)
{
	log_begin(m);
	assert_int_equal(log_add(m, aborted(40, 40, 1)), 0);
	assert_int_equal(log_add(m, mark(RECORD_PIN, 10, 10, 1)), 0);
	assert_int_equal(log_add(m, mark(RECORD_TRUST, 20, 20, 1)), 0);
	assert_int_equal(log_add(m, opened_by(m, "second")), 0);
	assert_int_equal(log_add(m, opened_on(m, 20, 20)), 0);
	assert_int_equal(log_add(m, commit(25, 60)), 0);
	assert_int_equal(log_add(m, commit(26, 61)), 0);
	assert_int_equal(log_add(m, commit(27, 62)), 0);
}

static void test_sum_then_trim_then_load(void **state)
{
	struct memory_log m;
	struct history before;

	(void)state;
	log_varied(&m);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 26, 61, 1)), 0);
	history_init(&before);
	assert_int_equal(history_load(&before, &m.log, NULL), 0);
	assert_int_equal(log_add(&m, sample_record(RECORD_SUM, 0)), 0);
	assert_int_equal(m.h.first_n, m.n - 1);
	assert_loads(&m);
	m.first = m.h.first_n;
	assert_loads(&m); /* the whole log and what is left of it add up to the same */

	/* The same as before, but for what is freed and for the sum itself. */
	memmove(&before.commits[4], &before.commits[5], sizeof(before.commits[5]));
	before.n_commits--;
	before.first_n = m.h.first_n;
	before.next_n = m.h.next_n;
	before.last = m.h.last;
	assert_same(&before, &m.h);
	history_fini(&before);

	assert_int_equal(log_add(&m, commit(27, 63)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 26, 61, 1)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, commit(28, 64)), 0);
	assert_loads(&m);
	log_fini(&m);
}

/* (I5) across a sum that leaves the last commit of the epoch out. */
static void test_steps_rise_across_a_sum(void **state)
{
	struct memory_log m;

	(void)state;
	log_varied(&m);
	assert_int_equal(log_add(&m, mark(RECORD_FREE, 27, 62, 2)), 0);
	assert_int_equal(log_add(&m, sample_record(RECORD_SUM, 0)), 0);
	m.first = m.h.first_n;
	assert_loads(&m);
	assert_int_equal(history_newest(&m.h)->commit.step, 26);
	assert_int_equal(log_add(&m, commit(27, 63)), CKPT_ECORRUPT);
	assert_int_equal(log_add(&m, commit(28, 63)), 0);
	assert_loads(&m);
	log_fini(&m);
}

static void set_gone(struct memory_log *m, uint64_t step, uint64_t attempt)
{
	struct attempt_id a = sample_attempt(attempt);

	history_find(&m->h, step, &a)->gone = true;
}

/* What is gone is left out by its writer and not missed by others, but for what must stay. */
static void test_sum_leaves_out_what_is_gone(void **state)
{
	struct memory_log m;
	struct history h;

	(void)state;
	log_varied(&m);
	set_gone(&m, 10, 10); /* pinned */
	set_gone(&m, 20, 20); /* the base */
	set_gone(&m, 30, 30);
	set_gone(&m, 26, 61);
	set_gone(&m, 27, 62); /* the newest */
	assert_int_equal(log_add(&m, sample_record(RECORD_SUM, 0)), 0);
	assert_int_equal(m.h.n_commits, 4); /* 10, 20, 25, 27 */
	assert_true(m.h.commits[0].gone && m.h.commits[1].gone && m.h.commits[3].gone);
	assert_false(m.h.commits[2].gone);
	history_init(&h); /* who folded it all without knowing what is gone agrees */
	assert_int_equal(history_load(&h, &m.log, NULL), 0);
	for (size_t i = 0; i < m.h.n_commits; i++)
		m.h.commits[i].gone = false;
	assert_same(&h, &m.h);
	history_fini(&h);
	log_fini(&m);
}

typedef void forge_fn(struct history *h);

static void forge_job(struct history *h) { h->job.uid++; }
static void forge_job_id(struct history *h) { h->job.id.b[5] ^= 1; }
static void forge_token(struct history *h) { h->job.token.b[5] ^= 1; }
static void forge_name(struct history *h) { strcpy(h->job.name, "other"); }
static void forge_parent(struct history *h) { h->epoch.parent++; }
static void forge_world(struct history *h) { h->epoch.world++; }
static void forge_run(struct history *h) { strcpy(h->epoch.run_id, "other"); }
static void forge_past_run(struct history *h) { h->runs[0].b[7] ^= 1; }
static void forge_no_runs(struct history *h) { h->n_runs = 0; }
static void forge_why(struct history *h) { strcpy(h->epoch.reason, "other"); }
static void forge_base(struct history *h) { h->epoch.base_step = 10; }
static void forge_base_id(struct history *h) { h->epoch.base_attempt.b[1] ^= 1; }
static void forge_no_base(struct history *h) { h->epoch.has_base = false; }
static void forge_last_step(struct history *h) { h->last_step++; }
static void forge_step(struct history *h) { h->commits[0].commit.step--; }
static void forge_attempt(struct history *h) { h->commits[0].commit.attempt.b[0] ^= 1; }
static void forge_root(struct history *h) { h->commits[0].commit.root.b[0] ^= 1; }
static void forge_layout(struct history *h) { h->commits[0].commit.layout.b[0] ^= 1; }
static void forge_ranks(struct history *h) { h->commits[0].commit.world++; }
static void forge_f(struct history *h) { h->commits[0].commit.f++; }
static void forge_bytes(struct history *h) { h->commits[0].commit.bytes++; }
static void forge_n(struct history *h) { h->commits[3].n--; }
static void forge_epoch(struct history *h) { h->commits[3].epoch = 1; }
static void forge_wall(struct history *h) { h->commits[0].wall_ns++; }
static void forge_unpin(struct history *h) { h->commits[0].pinned = false; }
static void forge_pin(struct history *h) { h->commits[1].pinned = true; }
static void forge_trust(struct history *h) { h->commits[1].trust = 0; }
static void forge_drop_pinned(struct history *h) { h->commits[0].freed = true; }
static void forge_drop_base(struct history *h) { h->commits[1].freed = true; }
static void forge_drop_newest(struct history *h) { h->commits[h->n_commits - 1].freed = true; }
static void forge_lost(struct history *h) { h->commits[1].freed = h->commits[1].lost = true; }
static void forge_freed_is_lost(struct history *h) { h->commits[2].lost = true; }
static void forge_undo_free(struct history *h) { h->commits[2].freed = false; }
static void forge_no_abort(struct history *h) { h->n_aborts = 0; }
static void forge_abort_step(struct history *h) { h->aborts[0].aborted.step++; }
static void forge_abort_id(struct history *h) { h->aborts[0].aborted.attempt.b[3] ^= 1; }
static void forge_abort_try(struct history *h) { h->aborts[0].aborted.next_try++; }
static void forge_abort_why(struct history *h) { strcpy(h->aborts[0].aborted.reason, "no"); }
static void forge_abort_n(struct history *h) { h->aborts[0].n++; }
static void forge_abort_epoch(struct history *h) { h->aborts[0].epoch++; }
static void forge_nothing(struct history *h) { (void)h; }

/* A sum that does not say what was folded is refused, whatever field it is. */
static void test_sum_must_agree(void **state)
{
	static forge_fn *const forges[] = {
		forge_job, forge_job_id, forge_token, forge_name, forge_parent, forge_world,
		forge_run, forge_past_run, forge_no_runs, forge_why, forge_base, forge_base_id,
		forge_no_base,
		forge_last_step, forge_step, forge_attempt, forge_root, forge_layout, forge_ranks,
		forge_f, forge_bytes, forge_n, forge_epoch, forge_wall, forge_unpin, forge_pin,
		forge_trust, forge_drop_pinned, forge_drop_base, forge_drop_newest,
		forge_undo_free, forge_lost, forge_freed_is_lost, forge_no_abort,
		forge_abort_step, forge_abort_id, forge_abort_try, forge_abort_why, forge_abort_n,
		forge_abort_epoch, forge_nothing,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(forges) / sizeof(forges[0]); i++) {
		struct memory_log m;
		struct history forged;
		struct record r = { .type = RECORD_SUM };

		log_varied(&m);
		assert_int_equal(log_add(&m, mark(RECORD_FREE, 30, 30, 1)), 0);
		history_init(&forged);
		assert_int_equal(history_load(&forged, &m.log, NULL), 0);
		forges[i](&forged);
		history_next(&m.h, &r);
		r.sum = &forged;
		assert_int_equal(log_add_raw(&m, &r, NULL),
				 forges[i] == forge_nothing ? 0 : CKPT_ECORRUPT);
		history_fini(&forged);
		log_fini(&m);
	}
}

/* ---- Failures of memory, the planted bug ---- */

#ifdef CKPT_FAULTS
static void test_allocations_fail(void **state)
{
	struct memory_log m;
	unsigned failures = 0;
	bool fired = true;

	(void)state;
	log_varied(&m);
	for (uint64_t i = 0; i < 40; i++)
		assert_int_equal(log_add(&m, commit(100 + i, 100 + i)), 0);
	assert_int_equal(log_add(&m, sample_record(RECORD_SUM, 0)), 0);
	assert_int_equal(log_add(&m, aborted(300, 300, 1)), 0);
	for (int persistent = 0; persistent < 2; persistent++) {
		fired = true;
		for (uint64_t at = 1; fired; at++) {
			struct history h;
			uint64_t n;
			int rc;

			history_init(&h);
			alloc_fail_at(at, persistent);
			rc = history_load(&h, &m.log, NULL);
			fired = alloc_fired();
			alloc_fail_at(0, false);
			assert_int_equal(rc, fired ? -ENOMEM : 0);
			for (n = h.next_n; n < m.n; n++) /* goes on where it failed */
				assert_int_equal(history_apply(&h, n, m.records[n].bytes,
							       m.records[n].len, NULL), 0);
			assert_same(&h, &m.h);
			history_fini(&h);
			failures += fired;
		}
	}
	printf("allocations made to fail: %u\n", failures);
	assert_true(failures >= 12);
	log_fini(&m);
}

static void test_planted_bug_lets_old_terms_in(void **state)
{
	(void)state;
	for (int on = 0; on < 2; on++) {
		struct memory_log m;
		struct record r = commit(40, 40);

		log_begin(&m);
		assert_int_equal(log_add(&m, sample_record(RECORD_LEAD, 0)), 0);
		history_next(&m.h, &r);
		r.term--;
		bug_set(BUG_ACCEPT_OLD_TERM, on);
		assert_int_equal(log_add_raw(&m, &r, NULL), on ? 0 : CKPT_ESTALE);
		bug_set(BUG_ACCEPT_OLD_TERM, false);
		log_fini(&m);
	}
}
#endif

#define T(f) cmocka_unit_test(f)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_how_a_log_begins),
		T(test_a_log_begins_at_0_or_with_a_sum),
		T(test_numbers_follow),
		T(test_a_gap_is_found),
		T(test_records_chain),
		T(test_writers_are_fenced),
		T(test_lead_raises_the_term),
		T(test_epochs_rise),
		T(test_runs_become_past),
		T(test_bases_are_committed),
		T(test_steps_rise_within_an_epoch),
		T(test_no_epoch_no_commit),
		T(test_aborted_or_committed),
		T(test_only_the_newest_aborts_are_kept),
		T(test_marks_name_what_is_committed),
		T(test_newest_is_later_in_the_log),
		T(test_features_of_newer_programs),
		T(test_damage_stops_the_load_at_the_last_good_record),
		T(test_sum_then_trim_then_load),
		T(test_steps_rise_across_a_sum),
		T(test_sum_leaves_out_what_is_gone),
		T(test_sum_must_agree),
#ifdef CKPT_FAULTS
		T(test_allocations_fail),
		T(test_planted_bug_lets_old_terms_in),
#endif
	};

	return cmocka_run_group_tests_name("coord/history", tests, NULL, NULL);
}
