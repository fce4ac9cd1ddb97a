/* SPDX-License-Identifier: Apache-2.0 */
/* What an alarm is worth, and the intervals around counts, against published values. */
#include <config.h>

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "detect/replay/judge.h"
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

static void test_another_job(void **state)
{
	struct score s;
	const struct tally *t;

	(void)state;
	score_init(&s);
	label(&s, LABEL_FAULT, "deadlock", rank_of(3), CLASS_HUNG, 10, 100);
	alarm_at(&s, job_of(1), CLASS_HUNG, 20);
	counts(&s, 0, 0, 1, 0, 0);
	alarm_at(&s, job_of(0), CLASS_HUNG, 30);
	counts(&s, 0, 0, 1, 1, 0);
	alarm_at(&s, rank_of(3), CLASS_HUNG, 31);
	counts(&s, 1, 0, 1, 1, 0);
	assert_int_equal(score_end(&s, 1), 0);
	t = score_group(&s.declared, "hung");
	assert_int_equal(t->found, 1);
	assert_int_equal(t->right, 0); /* the first was another's */
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

/* ---- in time ---- */

static void beat(struct score *s, uint64_t step, uint64_t at_s, bool nan)
{
	struct sample b = {.kind = SAMPLE_BEAT, .time_ns = at_s * S, .node = 0, .job = 0};

	b.beat.step = step;
	b.beat.flags = BEAT_LOSS;
	b.beat.loss = nan ? (double)NAN : 2.5;
	score_sample(s, &b);
}

/* Steps of 10 s from now on; at_s is when the last of them ended. */
static void train(struct score *s, uint64_t *step, uint64_t *at_s, unsigned n)
{
	while (n-- > 0)
		beat(s, ++*step, *at_s += 10, false);
}

static void look(struct score *s, uint32_t rank, uint64_t at_s, uint32_t phase, char state,
		 uint16_t gpu)
{
	struct sample a = {.kind = SAMPLE_ACTIVITY, .time_ns = at_s * S, .job = 0, .rank = rank};

	a.activity.phase = phase;
	a.activity.state = state;
	a.activity.gpu_permille = gpu;
	score_sample(s, &a);
}

static void pause_begins(struct score *s, uint64_t at_s)
{
	struct sample p = {.kind = SAMPLE_PHASE, .time_ns = at_s * S, .job = 0, .rank = 0};

	p.phase.phase = PHASE_EVALUATE;
	p.phase.begins = true;
	score_sample(s, &p);
}

struct in_time {
	struct score score;
	uint64_t step, at_s;
};

static void setup(struct in_time *x)
{
	*x = (struct in_time){.step = 100, .at_s = 1000};
	score_init(&x->score);
	train(&x->score, &x->step, &x->at_s, 40);
}

static void verify(struct in_time *x, const char *group, uint32_t judged, uint32_t in_time)
{
	const struct tally *t;

	assert_int_equal(score_end(&x->score, 1), 0);
	t = score_group(&x->score.declared, group);
	assert_int_equal(t->found, 1);
	assert_int_equal(t->judged, judged);
	assert_int_equal(t->in_time, in_time);
	assert_true(fabs(t->usual_s - 10) < 1e-9); /* train() */
	score_fini(&x->score);
}

static void one_fault(const char *what, const char *group, struct subject subject, uint32_t class,
		      uint64_t delay_s, uint32_t in_time)
{
	struct in_time x;

	setup(&x);
	label(&x.score, LABEL_FAULT, what, subject, class, x.at_s, x.at_s + 1000);
	alarm_at(&x.score, subject, class, x.at_s + delay_s);
	verify(&x, group, 1, in_time);
}

static void test_at_once(void **state)
{
	(void)state;
	one_fault("process-killed", "dead", rank_of(3), CLASS_DEAD, 1, 1);
	one_fault("process-killed", "dead", rank_of(3), CLASS_DEAD, 2, 0);
	one_fault("node-dead", "dead", node_of(3), CLASS_DEAD, 40, 1);
	one_fault("node-dead", "dead", node_of(3), CLASS_DEAD, 41, 0);
	one_fault("xid-fatal", "xid", device_of(SUBJECT_GPU, 4, 1), CLASS_FAILING, 1, 1);
	one_fault("xid-fatal", "xid", device_of(SUBJECT_GPU, 4, 1), CLASS_FAILING, 2, 0);
}

/* Three usual steps of 10 s, 2 s, and the 10 s between looks. */
static void test_in_steps(void **state)
{
	struct in_time x;

	(void)state;
	one_fault("process-stopped", "hung", rank_of(3), CLASS_HUNG, 42, 1);
	one_fault("process-stopped", "hung", rank_of(3), CLASS_HUNG, 43, 0);
	one_fault("deadlock", "hung", rank_of(3), CLASS_HUNG, 43, 0);

	setup(&x); /* in a pause, nobody knows how long it would have been */
	pause_begins(&x.score, x.at_s);
	label(&x.score, LABEL_FAULT, "deadlock", rank_of(3), CLASS_HUNG, x.at_s + 1, x.at_s + 999);
	alarm_at(&x.score, rank_of(3), CLASS_HUNG, x.at_s + 300);
	verify(&x, "hung", 0, 0);

	setup(&x); /* who waits for input may well go on */
	label(&x.score, LABEL_FAULT, "deadlock", rank_of(3), CLASS_HUNG, x.at_s + 1, x.at_s + 999);
	look(&x.score, 4, x.at_s + 20, PHASE_STEP, 'S', 0);
	look(&x.score, 3, x.at_s + 20, PHASE_DATA, 'S', 0);
	alarm_at(&x.score, rank_of(3), CLASS_HUNG, x.at_s + 300);
	verify(&x, "hung", 0, 0);

	setup(&x); /* and so may who sleeps, if nobody tells of its GPU */
	label(&x.score, LABEL_FAULT, "deadlock", rank_of(3), CLASS_HUNG, x.at_s + 1, x.at_s + 999);
	look(&x.score, 3, x.at_s + 20, PHASE_STEP, 'S', UINT16_MAX);
	alarm_at(&x.score, rank_of(3), CLASS_HUNG, x.at_s + 300);
	verify(&x, "hung", 0, 0);

	setup(&x); /* who is stopped may not */
	label(&x.score, LABEL_FAULT, "process-stopped", rank_of(3), CLASS_HUNG, x.at_s + 1,
	      x.at_s + 999);
	look(&x.score, 3, x.at_s + 20, PHASE_STEP, 'T', UINT16_MAX);
	alarm_at(&x.score, rank_of(3), CLASS_HUNG, x.at_s + 300);
	verify(&x, "hung", 1, 0);

	setup(&x); /* another one's waiting is no excuse */
	label(&x.score, LABEL_FAULT, "deadlock", rank_of(3), CLASS_HUNG, x.at_s + 1, x.at_s + 999);
	look(&x.score, 4, x.at_s + 20, PHASE_DATA, 'S', 0);
	alarm_at(&x.score, rank_of(3), CLASS_HUNG, x.at_s + 300);
	verify(&x, "hung", 1, 0);
}

static void nan_told_after(uint64_t beats, uint32_t in_time)
{
	struct in_time x;

	setup(&x);
	label(&x.score, LABEL_FAULT, "nan", job_of(0), CLASS_DIVERGING, x.at_s, x.at_s + 999);
	train(&x.score, &x.step, &x.at_s, 3); /* however late the NaN comes */
	while (beats-- > 0)
		beat(&x.score, ++x.step, x.at_s += 10, true);
	alarm_at(&x.score, job_of(0), CLASS_DIVERGING, x.at_s);
	verify(&x, "nan", 1, in_time);
}

static void slow_told_after(unsigned steps, uint32_t in_time)
{
	struct in_time x;

	setup(&x);
	label(&x.score, LABEL_FAULT, "straggler-node", node_of(1), CLASS_SLOW, x.at_s,
	      x.at_s + 999);
	train(&x.score, &x.step, &x.at_s, steps);
	alarm_at(&x.score, node_of(1), CLASS_SLOW, x.at_s);
	verify(&x, "straggler", 1, in_time);
}

static void test_in_beats(void **state)
{
	struct in_time x;

	(void)state;
	nan_told_after(1, 1);
	nan_told_after(2, 0);
	slow_told_after(20, 1);
	slow_told_after(21, 0);

	setup(&x); /* whose steps? */
	beat(&x.score, 7, x.at_s, false);
	score_sample(&x.score, &(struct sample){.kind = SAMPLE_JOB, .job = 0});
	score_sample(&x.score, &(struct sample){.kind = SAMPLE_JOB, .job = 1});
	label(&x.score, LABEL_FAULT, "straggler-node", node_of(1), CLASS_SLOW, x.at_s,
	      x.at_s + 999);
	alarm_at(&x.score, node_of(1), CLASS_SLOW, x.at_s + 900);
	verify(&x, "straggler", 0, 0);
}

/* ---- good enough? ---- */

static void fault_told(struct in_time *x, const char *what, struct subject subject,
		       enum verdict_class class, uint64_t delay_s)
{
	label(&x->score, LABEL_FAULT, what, subject, class, x->at_s, x->at_s + 10);
	alarm_at(&x->score, subject, class, x->at_s + delay_s);
	x->at_s += 200;
}

/* One fault of each class with a target; the deadlock comes last. */
static void begin_all(struct in_time *x)
{
	setup(x);
	fault_told(x, "process-killed", rank_of(3), CLASS_DEAD, 1);
	fault_told(x, "xid-fatal", device_of(SUBJECT_GPU, 4, 1), CLASS_FAILING, 1);
	fault_told(x, "straggler-rank", rank_of(5), CLASS_SLOW, 1);
	fault_told(x, "link-sender", device_of(SUBJECT_LINK, 3, 8), CLASS_SLOW, 9); /* no bound */
	label(&x->score, LABEL_FAULT, "nan", job_of(0), CLASS_DIVERGING, x->at_s, x->at_s + 10);
	beat(&x->score, ++x->step, x->at_s + 1, true);
	alarm_at(&x->score, job_of(0), CLASS_DIVERGING, x->at_s + 1);
	x->at_s += 200;
}

static void verify_judge(struct in_time *x, bool fixed, unsigned bad, const char *words)
{
	char text[4000] = "";
	FILE *f = fmemopen(text, sizeof(text), "w");
	struct score sum; /* of one seed's jobs */
	unsigned have;

	assert_non_null(f);
	score_init(&sum);
	assert_int_equal(score_end(&x->score, 1), 0);
	assert_int_equal(score_add(&sum, &x->score), 0);
	have = judge(&sum.declared, 7, fixed, f);
	fclose(f);
	score_fini(&sum);
	if (have != bad || !strstr(text, words))
		fail_msg("not %u bad and '%s': %s", bad, words, text);
	score_fini(&x->score);
}

static void test_unknown_is_not_good(void **state)
{
	struct in_time x;

	(void)state;
	setup(&x); /* six classes, and whose the faults are */
	verify_judge(&x, true, 7, "not ok seed-7-recall-dead (no such fault in the trace)");

	for (int fixed = 0; fixed <= 1; fixed++) {
		begin_all(&x);
		fault_told(&x, "deadlock", rank_of(3), CLASS_HUNG, 42);
		verify_judge(&x, fixed, 0, "\nok seed-7-in-time-hung ");

		begin_all(&x); /* in a pause, nobody knows how long it would have been */
		pause_begins(&x.score, x.at_s);
		fault_told(&x, "deadlock", rank_of(3), CLASS_HUNG, 42);
		verify_judge(&x, fixed, 1, "not ok seed-7-in-time-hung (of none of 1 ");
	}
	begin_all(&x);
	fault_told(&x, "deadlock", rank_of(3), CLASS_HUNG, 43);
	verify_judge(&x, true, 1, "not ok seed-7-in-time-hung 0.0000, wanted at least 0.9000");
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
		cmocka_unit_test(test_another_job),
		cmocka_unit_test(test_links_and_gpus),
		cmocka_unit_test(test_any_class),
		cmocka_unit_test(test_at_once),
		cmocka_unit_test(test_in_steps),
		cmocka_unit_test(test_in_beats),
		cmocka_unit_test(test_unknown_is_not_good),
		cmocka_unit_test(test_intervals),
	};

	return cmocka_run_group_tests_name("score", tests, NULL, NULL);
}
