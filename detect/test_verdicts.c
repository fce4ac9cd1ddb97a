/* SPDX-License-Identifier: Apache-2.0 */
/* The table of standing verdicts: what is told when, and what it does when it is full. */
#include <config.h>

#include <string.h>

#include "base/alloc.h"
#include "detect/test_fixture.h"
#include "detect/verdicts.h"

static void on_dropped(void *arg, const struct verdict *v)
{
	struct told *t = arg;

	assert_int_equal(v->class, CLASS_HUNG);
	t->dropped++;
}

static struct verdict found(uint32_t rank, enum verdict_level level)
{
	return (struct verdict){.subject = subject_rank(0, rank, 1),
				.class = CLASS_HUNG,
				.cause = CAUSE_XID,
				.level = level,
				.advice = ACTION_RESTORE,
				.since_ns = 5};
}

/* A verdict of one owner's jobs is no longer that owner's once another's jobs support it, and stays
 * so. */
static void test_two_owners_say_so(void **state)
{
	struct told t = {0};
	struct detector_events events = {.verdict = told_verdict, .arg = &t};
	struct verdict v = found(0, LEVEL_ALARM);
	struct verdicts vs;

	(void)state;
	v.subject = subject_node(1);
	v.of_jobs = v.of_one_owner = true;
	v.owner = 1000;
	verdicts_init(&vs, &events);
	assert_true(verdicts_raise(&vs, &v, 10));
	assert_true(t.last.of_one_owner);
	assert_false(verdicts_raise(&vs, &v, 11));
	v.owner = 1001;
	assert_true(verdicts_raise(&vs, &v, 12));
	assert_int_equal(t.last.state, VERDICT_UPDATED);
	assert_true(t.last.risen);
	assert_false(t.last.of_one_owner);
	assert_true(t.last.of_jobs);
	assert_false(verdicts_raise(&vs, &v, 13));
	assert_false(verdicts_find(&vs, &v.subject, CAUSE_XID)->of_one_owner);
	v.of_jobs = v.of_one_owner = false; /* a rule about the machine supports it too */
	assert_true(verdicts_raise(&vs, &v, 14));
	assert_true(t.last.risen);
	assert_false(t.last.of_jobs);
	v.of_jobs = v.of_one_owner = true;
	assert_false(verdicts_raise(&vs, &v, 15));
	assert_false(verdicts_find(&vs, &v.subject, CAUSE_XID)->of_jobs);
	verdicts_fini(&vs);
}

static void test_told_once_and_when_louder(void **state)
{
	struct told t = {0};
	struct detector_events events = {
		.verdict = told_verdict, .dropped = on_dropped, .arg = &t};
	struct verdict v = found(3, LEVEL_NOTE);
	struct verdicts vs;

	(void)state;
	verdicts_init(&vs, &events);
	assert_true(verdicts_raise(&vs, &v, 10));
	assert_int_equal(t.last.state, VERDICT_RAISED);
	v.since_ns = 8;
	assert_false(verdicts_raise(&vs, &v, 11));
	assert_int_equal(t.n, 1);
	assert_int_equal(verdicts_find(&vs, &v.subject, CAUSE_XID)->since_ns, 5);
	v.level = LEVEL_ALARM;
	assert_true(verdicts_raise(&vs, &v, 12));
	assert_int_equal(t.last.state, VERDICT_UPDATED);
	assert_true(t.last.risen);
	assert_int_equal(t.last.raised_ns, 10);
	assert_int_equal(t.last.id, 1);
	v.advice = ACTION_RECORD;
	assert_true(verdicts_raise(&vs, &v, 12));
	assert_false(t.last.risen);
	verdicts_clear(&vs, &v.subject, CAUSE_XID, "it goes on", 13);
	assert_int_equal(t.last.state, VERDICT_CLEARED);
	assert_string_equal(t.last.words, "it goes on");
	verdicts_clear(&vs, &v.subject, CAUSE_XID, NULL, 14);
	assert_int_equal(t.n, 4);
	assert_int_equal(vs.n, 0);
	verdicts_fini(&vs);
}

static void test_full(void **state)
{
	struct told t = {0};
	struct detector_events events = {
		.verdict = told_verdict, .dropped = on_dropped, .arg = &t};
	struct verdict v;
	struct verdicts vs;

	(void)state;
	verdicts_init(&vs, &events);
	for (uint32_t i = 0; i < VERDICTS_MAX; i++) {
		v = found(i, i == 7 ? LEVEL_NOTE : LEVEL_ALARM);
		assert_true(verdicts_raise(&vs, &v, i));
	}
	v = found(VERDICTS_MAX, LEVEL_NOTE);
	assert_false(verdicts_raise(&vs, &v, VERDICTS_MAX));
	assert_int_equal(t.dropped, 1);
	v.level = LEVEL_ALARM;
	assert_true(verdicts_raise(&vs, &v, VERDICTS_MAX));
	v = found(7, LEVEL_NOTE);
	assert_null(verdicts_find(&vs, &v.subject, CAUSE_XID));
	v.subject = subject_node(1);
	assert_int_equal(verdicts_clear_all(&vs, &v.subject, NULL, 1), VERDICTS_MAX);
	verdicts_fini(&vs);
}

/* A job full of alarms keeps neither the node's own nor other jobs' from being told. */
static void test_a_job_does_not_fill_it(void **state)
{
	struct told t = {0};
	struct detector_events events = {.verdict = told_verdict, .dropped = on_dropped, .arg = &t};
	struct verdict v, other;
	struct verdicts vs;

	(void)state;
	verdicts_init(&vs, &events);
	other = found(1, LEVEL_ALARM);
	other.subject.job = 7;
	assert_true(verdicts_raise(&vs, &other, 1));
	for (uint32_t i = 1; i < VERDICTS_MAX; i++) {
		v = found(i, LEVEL_ALARM);
		assert_true(verdicts_raise(&vs, &v, i));
	}
	v = found(0, LEVEL_ALARM);
	assert_false(verdicts_raise(&vs, &v, 5000));
	assert_int_equal(t.dropped, 1);
	v.subject = subject_gpu(1, 3);
	assert_true(verdicts_raise(&vs, &v, 5001));
	assert_int_equal(t.dropped, 2); /* another one, which is told to be over */
	assert_non_null(verdicts_find(&vs, &v.subject, CAUSE_XID));
	other.subject = subject_job(8);
	assert_true(verdicts_raise(&vs, &other, 5002));
	assert_int_equal(t.dropped, 3);
	assert_int_equal(vs.n, VERDICTS_MAX);
	other = found(1, LEVEL_ALARM);
	other.subject.job = 7;
	assert_non_null(verdicts_find(&vs, &other.subject, CAUSE_XID));
	v = found(1, LEVEL_ALARM); /* what told of it first */
	assert_non_null(verdicts_find(&vs, &v.subject, CAUSE_XID));
	verdicts_fini(&vs);
}

/* Where each job has one, only the node's own comes in. */
static void test_many_jobs_do_not_fill_it(void **state)
{
	struct told t = {0};
	struct detector_events events = {.verdict = told_verdict, .dropped = on_dropped, .arg = &t};
	struct verdict v = found(0, LEVEL_ALARM);
	struct verdicts vs;

	(void)state;
	verdicts_init(&vs, &events);
	for (uint32_t i = 0; i < VERDICTS_MAX; i++) {
		v.subject = subject_job(i);
		assert_true(verdicts_raise(&vs, &v, i));
	}
	v.subject = subject_job(VERDICTS_MAX);
	assert_false(verdicts_raise(&vs, &v, 5000));
	v.subject = subject_node(1);
	assert_true(verdicts_raise(&vs, &v, 5001));
	assert_int_equal(t.last.state, VERDICT_RAISED);
	assert_int_equal(t.dropped, 2);
	for (uint32_t i = 0; i < VERDICTS_MAX; i++) {
		v.subject = subject_disk(1, i);
		assert_int_equal(verdicts_raise(&vs, &v, 5002), i < VERDICTS_MAX - 1);
	}
	verdicts_fini(&vs);
}

/* Memory is taken as it is needed; where there is none an alarm takes the place of a note. */
static void test_grows(void **state)
{
	struct told t = {0};
	struct detector_events events = {
		.verdict = told_verdict, .dropped = on_dropped, .arg = &t};
	struct verdict v;
	struct verdicts vs;
	size_t cap;

	(void)state;
	verdicts_init(&vs, &events);
	assert_int_equal(vs.cap, 0);
	alloc_fail_at(1, true);
	v = found(0, LEVEL_ALARM);
	assert_false(verdicts_raise(&vs, &v, 1));
	assert_int_equal(t.dropped, 1);
	alloc_fail_at(0, false);
	v = found(0, LEVEL_NOTE);
	assert_true(verdicts_raise(&vs, &v, 2));
	cap = vs.cap;
	assert_true(cap < VERDICTS_MAX / 64);
	for (uint32_t i = 1; i < cap; i++) {
		v = found(i, LEVEL_ALARM);
		assert_true(verdicts_raise(&vs, &v, 3));
	}
	alloc_fail_at(1, true);
	v = found(100, LEVEL_ALARM);
	assert_true(verdicts_raise(&vs, &v, 4));
	v = found(101, LEVEL_ALARM);
	assert_false(verdicts_raise(&vs, &v, 5));
	alloc_fail_at(0, false);
	assert_true(verdicts_raise(&vs, &v, 6));
	assert_int_equal(vs.n, cap + 1);
	assert_int_equal(t.dropped, 2);
	v = found(1, LEVEL_ALARM);
	assert_int_equal(verdicts_find(&vs, &v.subject, CAUSE_XID)->raised_ns, 3);
	verdicts_fini(&vs);
}

static void test_what_contains_what(void **state)
{
	struct subject node = subject_node(4), gpu = subject_gpu(4, 0), job = subject_job(2),
		       rank = subject_rank(2, 9, 4), path = subject_path(4, 5);

	(void)state;
	assert_true(subject_contains(&node, &gpu));
	assert_true(subject_contains(&node, &rank));
	assert_true(subject_contains(&node, &path));
	assert_true(subject_contains(&job, &rank));
	assert_false(subject_contains(&node, &job));
	assert_false(subject_contains(&rank, &node));
	node = subject_node(5);
	assert_false(subject_contains(&node, &gpu));
}

static void test_words(void **state)
{
	(void)state;
	assert_string_equal(sample_kind_word(SAMPLE_NVML), "nvml");
	assert_string_equal(sample_phase_word(PHASE_OTHER), "other");
	assert_string_equal(sample_metric_word(METRIC_NVLINK), "nvlink");
	assert_string_equal(verdict_class_word(CLASS_FAILING), "failing");
	assert_string_equal(verdict_cause_word(CAUSE_CHECK_FAILED), "check-failed");
	assert_string_equal(verdict_action_word(ACTION_REBOOT), "reboot");
	assert_string_equal(sample_phase_word(PHASE_COUNT), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_told_once_and_when_louder),
		cmocka_unit_test(test_two_owners_say_so),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_a_job_does_not_fill_it),
		cmocka_unit_test(test_many_jobs_do_not_fill_it),
		cmocka_unit_test(test_grows),
		cmocka_unit_test(test_what_contains_what),
		cmocka_unit_test(test_words),
	};

	return cmocka_run_group_tests_name("verdicts", tests, NULL, NULL);
}
