/* SPDX-License-Identifier: Apache-2.0 */
/* What an alarm is worth, and the intervals around counts, against published values. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "detect/replay/score.h"
#include "tests/lib/test.h"

#define S UINT64_C(1000000000)

static struct subject nobody(enum subject_kind kind)
{
	return (struct subject){kind,        SAMPLE_NONE, SAMPLE_NONE,
				SAMPLE_NONE, SAMPLE_NONE, SAMPLE_NONE};
}

static struct subject rank_of(uint32_t rank)
{
	struct subject s = nobody(SUBJECT_RANK);

	s.job = 0;
	s.rank = rank;
	s.node = rank / 8;
	return s;
}

static struct subject node_of(uint32_t node)
{
	struct subject s = nobody(SUBJECT_NODE);

	s.node = node;
	return s;
}

static struct subject job_of(uint32_t job)
{
	struct subject s = nobody(SUBJECT_JOB);

	s.job = job;
	return s;
}

static struct subject device_of(enum subject_kind kind, uint32_t node, uint32_t device)
{
	struct subject s = nobody(kind);

	s.node = node;
	s.device = device;
	return s;
}

static void label(struct score *s, enum label_kind kind, const char *what, struct subject subject,
		  uint32_t class, uint64_t from_s, uint64_t until_s)
{
	static uint32_t id;
	struct label l = {.time_ns = from_s * S,
			  .kind = kind,
			  .subject = subject,
			  .classes = 1u << class,
			  .until_ns = until_s * S,
			  .factor = (double)NAN};

	id += kind == LABEL_FAULT;
	l.id = id;
	strncpy(l.what, what, sizeof(l.what) - 1);
	assert_int_equal(score_label(s, &l), 0);
}

static void alarm_at(struct score *s, struct subject subject, enum verdict_class class,
		     uint64_t at_s)
{
	struct verdict v = {.subject = subject,
			    .class = class,
			    .level = LEVEL_ALARM,
			    .state = VERDICT_RAISED,
			    .changed_ns = at_s * S};

	score_verdict(s, &v);
}

static void counts(struct score *s, uint32_t good, uint32_t vague, uint32_t wrong, uint32_t echoes,
		   uint32_t spurious)
{
	assert_int_equal(s->declared.good, good);
	assert_int_equal(s->declared.vague, vague);
	assert_int_equal(s->declared.wrong, wrong);
	assert_int_equal(s->declared.echoes, echoes);
	assert_int_equal(s->declared.spurious, spurious);
	assert_int_equal(s->declared.alarms, good + vague + wrong + echoes + spurious);
}

static void test_worth(void **state)
{
	struct score s;
	const struct tally *t;

	(void)state;
	score_init(&s);
	alarm_at(&s, rank_of(3), CLASS_HUNG, 5); /* nothing is wrong yet */
	counts(&s, 0, 0, 0, 0, 1);
	label(&s, LABEL_FAULT, "deadlock", rank_of(3), CLASS_HUNG, 10, 100);
	alarm_at(&s, job_of(0), CLASS_HUNG, 20);
	counts(&s, 0, 1, 0, 0, 1);
	alarm_at(&s, rank_of(3), CLASS_DEAD, 21); /* another class */
	counts(&s, 0, 1, 0, 0, 2);
	alarm_at(&s, rank_of(4), CLASS_HUNG, 22);
	alarm_at(&s, node_of(0), CLASS_HUNG, 23); /* all of a node for one rank */
	counts(&s, 0, 1, 2, 0, 2);
	alarm_at(&s, rank_of(3), CLASS_HUNG, 30);
	alarm_at(&s, rank_of(3), CLASS_HUNG, 31);
	alarm_at(&s, rank_of(3), CLASS_DEAD, 32); /* known to be ill */
	counts(&s, 1, 1, 2, 2, 2);
	alarm_at(&s, rank_of(3), CLASS_HUNG, 161); /* long over */
	counts(&s, 1, 1, 2, 2, 3);
	label(&s, LABEL_FAULT, "straggler-node", node_of(2), CLASS_SLOW, 200, 300);
	alarm_at(&s, rank_of(17), CLASS_SLOW, 210); /* one rank of a slow node */
	counts(&s, 1, 1, 3, 2, 3);
	alarm_at(&s, node_of(2), CLASS_SLOW, 250);
	alarm_at(&s, rank_of(18), CLASS_SLOW, 251);
	counts(&s, 2, 1, 3, 3, 3);
	label(&s, LABEL_FAULT, "deadlock", rank_of(5), CLASS_HUNG, 400, 500);
	assert_int_equal(score_end(&s, 4), 0);
	t = score_group(&s.declared, "hung");
	assert_int_equal(t->faults, 2);
	assert_int_equal(t->found, 1);
	assert_int_equal(t->right, 0); /* the first that found it named the job only */
	assert_true(fabs(tally_delay(t, 0.5) - 20) < 1e-9);
	t = score_group(&s.declared, "straggler");
	assert_true(fabs(tally_delay(t, 1) - 50) < 1e-9);
	assert_null(score_group(&s.undeclared, "hung"));
	score_fini(&s);
}

static void test_links_and_gpus(void **state)
{
	struct score s;
	struct subject path = nobody(SUBJECT_LINK), back = path;

	(void)state;
	score_init(&s);
	path.node = back.peer = 1;
	path.peer = back.node = 2;
	label(&s, LABEL_FAULT, "link-path", path, CLASS_SLOW, 1, 100);
	alarm_at(&s, back, CLASS_SLOW, 2);
	alarm_at(&s, node_of(1), CLASS_SLOW, 3);
	counts(&s, 0, 0, 2, 0, 0);
	alarm_at(&s, path, CLASS_SLOW, 4);
	counts(&s, 1, 0, 2, 0, 0);
	label(&s, LABEL_FAULT, "link-sender", device_of(SUBJECT_LINK, 3, 8), CLASS_SLOW, 200, 300);
	alarm_at(&s, node_of(3), CLASS_SLOW, 201); /* seen from outside the port is the node */
	counts(&s, 2, 0, 2, 0, 0);
	label(&s, LABEL_FAULT, "gpu-off-bus", device_of(SUBJECT_GPU, 4, 1), CLASS_DEAD, 400, 500);
	label(&s, LABEL_ALSO, "", rank_of(33), CLASS_DEAD, 400, 0);
	alarm_at(&s, rank_of(33), CLASS_DEAD, 401); /* true, and not what was wanted */
	counts(&s, 2, 0, 2, 1, 0);
	alarm_at(&s, device_of(SUBJECT_GPU, 4, 2), CLASS_DEAD, 402);
	counts(&s, 2, 0, 3, 1, 0);
	assert_int_equal(score_end(&s, 1), 0);
	score_fini(&s);
}

/* A rival knows that something is wrong, and not what. */
static void test_any_class(void **state)
{
	struct score s;

	(void)state;
	score_init(&s);
	s.any_class = true;
	label(&s, LABEL_FAULT, "xid-fatal", device_of(SUBJECT_GPU, 4, 1), CLASS_FAILING, 400, 500);
	label(&s, LABEL_ALSO, "", rank_of(33), CLASS_DEAD, 400, 0);
	alarm_at(&s, rank_of(33), CLASS_HUNG, 401);
	counts(&s, 0, 1, 0, 0, 0);
	alarm_at(&s, rank_of(33), CLASS_HUNG, 402);
	counts(&s, 0, 1, 0, 1, 0);
	assert_int_equal(score_end(&s, 1), 0);
	assert_int_equal(score_group(&s.declared, "xid")->found, 1);
	score_fini(&s);
}

static void near(double have, double want)
{
	if (!(fabs(have - want) < 0.001 * fmax(1, want)))
		fail_msg("%g instead of %g", have, want);
}

static void test_intervals(void **state)
{
	double low, high;

	(void)state;
	/* Wilson's of 8 in 10 and of 0 in 20; Garwood's of 0 and of 10 events. */
	interval_share(8, 10, &low, &high);
	near(low, 0.4902);
	near(high, 0.9433);
	interval_share(0, 20, &low, &high);
	near(low, 0);
	near(high, 0.1611);
	interval_rate(0, 1, &low, &high);
	near(low, 0);
	near(high, 3.6889);
	interval_rate(10, 2, &low, &high);
	near(low, 4.7954 / 2);
	near(high, 18.3904 / 2);
	interval_rate(1200, 1, &low, &high);
	near(low, 1133.06);
	near(high, 1269.86);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_worth),
		cmocka_unit_test(test_links_and_gpus),
		cmocka_unit_test(test_any_class),
		cmocka_unit_test(test_intervals),
	};

	return cmocka_run_group_tests_name("score", tests, NULL, NULL);
}
