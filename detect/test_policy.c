/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/sample.h"
#include "detect/verdicts.h"
#include "tests/lib/test.h"

#define SEC       1000000000ull
#define MIN       (60 * SEC)
#define HOUR      (60 * MIN)
#define BIT(name) ACTION_BIT(ACTION_##name)

#define CAN                                                                                        \
	(BIT(IGNORE) | BIT(RECORD) | BIT(CHECKPOINT) | BIT(SUSPECT) | BIT(VALIDATE) | BIT(DRAIN))

static struct policy *with(const char *table, uint32_t per_hour, bool dry_run)
{
	struct policy_options o = {.actions_per_hour = per_hour, .dry_run = dry_run, .can = CAN};
	struct err e = {0};
	struct policy *p;

	assert_int_equal(policy_new(&o, &p), 0);
	if (policy_parse(p, "t", table, strlen(table), &e) < 0)
		fail_msg("%s", e.text);
	return p;
}

static struct verdict alarm_of(enum verdict_class class, enum verdict_cause cause, uint32_t rank)
{
	return (struct verdict){.class = class,
				.cause = cause,
				.level = LEVEL_ALARM,
				.advice = ACTION_RESTORE,
				.subject = subject_rank(1, rank, 0)};
}

static struct policy_facts facts(uint64_t now_ns)
{
	return (struct policy_facts){.now_ns = now_ns, .copies = 1, .durable_age_ns = 5 * MIN};
}

static void refused(const char *table, const char *words)
{
	struct policy_options o = {.actions_per_hour = 1};
	struct err e = {0};
	struct policy *p;

	assert_int_equal(policy_new(&o, &p), 0);
	assert_int_not_equal(policy_parse(p, "the-file", table, strlen(table), &e), 0);
	if (!strstr(e.text, words) || !strstr(e.text, "the-file"))
		fail_msg("'%s' instead of '%s'", e.text, words);
	assert_int_equal(policy_size(p), 0);
	policy_free(p);
}

static void test_refused(void **state)
{
	(void)state;
	refused("dead * alarm * * * * checkpoint -\n", "line 1: 9 fields instead of 10");
	refused("# one\n\ndead * alarm * * * * checkpoint - - -\n", "line 3: more than 10 fields");
	refused("ill * alarm * * * * record - -", "there is no class 'ill'");
	refused("* cold alarm * * * * record - -", "there is no cause 'cold'");
	refused("* * loud * * * * record - -", "there is no level 'loud'");
	refused("* * alarm dog * * * record - -", "there is no subject 'dog'");
	refused("* * alarm * 1 * * record - -", "copies is '1'");
	refused("* * alarm * * <10 * record - -", "durable is '<10'");
	refused("* * alarm * * >=99999d * record - -", "durable is");
	refused("* * alarm * * * >=x record - -", "spares is");
	refused("* * alarm * * * * explode - -", "there is no action 'explode'");
	refused("* * alarm * * * * * - -", "is no action");
	refused("* * alarm * * * * + - -", "an action is missing");
	refused("* * alarm * * * * , - -", "there is no action");
	refused("* * alarm * * * * record,record,record,record,record 2/1h -", "more than 4 steps");
	refused("* * alarm * * * * record,drain - -", "2 steps of actions");
	refused("* * alarm * * * * record,drain 1/1h -", "times is '1/1h'");
	refused("* * alarm * * * * record,drain 9/1h -", "times is '9/1h'");
	refused("* * alarm * * * * record - 10", "hold is '10'");
	refused("* * * * * * * checkpoint - -", "only alarms may have");
	refused("* * note * * * * advice - -", "only alarms may have");
	refused("* * alarm * * * * rec\xc3\xa4 - -", "no printable");
}

/* A table that is refused leaves the one before in force. */
static void test_stays(void **state)
{
	struct policy *p = with("dead * alarm * * * * drain - -\n", 9, false);
	struct err e = {0};

	(void)state;
	assert_int_not_equal(policy_parse(p, "bad", "x\n", 2, &e), 0);
	assert_int_equal(policy_size(p), 1);
	assert_string_equal(policy_name(p), "t");
	policy_free(p);
}

static void test_first_row_that_fits(void **state)
{
	static const char table[] = "* * note * * * * record - -\n"
				    "dead * alarm node * * * restore - -\n"
				    "dead * alarm rank none * * restore - -\n"
				    "dead * alarm rank * none * checkpoint+restore - -\n"
				    "dead * alarm rank * >=1h * drain - -\n"
				    "dead process-ended alarm rank * * >=1 fail-over - -\n"
				    "dead * alarm rank >=2 <10m * checkpoint - -\n";
	struct verdict v = alarm_of(CLASS_DEAD, CAUSE_PROCESS_ENDED, 3);
	struct policy *p = with(table, 9, false);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	policy_ask(p, &v, &f, &d);
	assert_null(d.row);
	assert_int_equal(d.now, BIT(RECORD));
	assert_non_null(strstr(d.why, "no row of t fits"));
	f.copies = 2;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.row->line, 7);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	f.spares = 1;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.row->line, 6);
	assert_int_equal(d.now, 0);
	assert_int_equal(d.advised, BIT(FAIL_OVER));
	assert_non_null(strstr(d.why, "fail-over is yours"));
	f.durable_age_ns = HOUR;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.row->line, 5);
	f.durable_age_ns = UINT64_MAX;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.row->line, 4);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	assert_int_equal(d.advised, BIT(RESTORE));
	f.copies = 0;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.row->line, 3);
	v.subject = subject_node(0);
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.row->line, 2);
	v.level = LEVEL_NOTE;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.row->line, 1);
	policy_free(p);
}

/* The third time within an hour is another matter, for that subject alone. */
static void test_escalation(void **state)
{
	struct policy *p =
		with("slow * alarm * * * * mark-suspect,validate,drain 3/1h -\n", 99, false);
	struct verdict v = alarm_of(CLASS_SLOW, CAUSE_STRAGGLER, 3);
	struct verdict other = alarm_of(CLASS_SLOW, CAUSE_STRAGGLER, 4);
	static const uint32_t wanted[] = {BIT(SUSPECT),  BIT(SUSPECT),  BIT(VALIDATE),
					  BIT(VALIDATE), BIT(VALIDATE), BIT(DRAIN)};
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	for (size_t i = 0; i < 6; i++) {
		f.now_ns += MIN;
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.now, wanted[i]);
		assert_int_equal(d.times, i + 1);
	}
	assert_non_null(strstr(d.why, "(it came 6 times within 1h)"));
	policy_ask(p, &v, &f, &d); /* it has not come */
	assert_non_null(strstr(d.why, "(it would be alarm 7 of this subject within 1h)"));
	policy_decide(p, &other, &f, &d);
	assert_int_equal(d.now, BIT(SUSPECT));
	f.now_ns += 2 * HOUR;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(SUSPECT));
	f.now_ns -= 2 * HOUR;
	policy_forget(p, &v.subject);
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(SUSPECT));
	policy_free(p);
}

/* What is said again of one that stands is not another time; that it is an alarm now is one. */
static void test_updates_do_not_escalate(void **state)
{
	struct policy *p =
		with("slow * alarm * * * * mark-suspect,validate,drain 2/1h -\n", 99, false);
	struct verdict v = alarm_of(CLASS_SLOW, CAUSE_STRAGGLER, 3);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(SUSPECT));
	v.state = VERDICT_UPDATED;
	for (unsigned i = 0; i < 5; i++) {
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.times, 1);
		assert_int_equal(d.now, BIT(SUSPECT));
	}
	v.risen = true;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.times, 2);
	assert_int_equal(d.now, BIT(VALIDATE));
	v.risen = false;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.times, 2);
	assert_int_equal(d.now, BIT(VALIDATE));
	policy_free(p);
}

/* A node's word is that of its devices and ranks, and not of a job. */
static void test_forgets_what_is_contained(void **state)
{
	struct policy *p = with("* * alarm * * * * mark-suspect,drain 2/1h -\n", 99, false);
	struct subject who[] = {subject_rank(1, 3, 0), subject_gpu(0, 1), subject_node(0),
				subject_job(1), subject_gpu(7, 1)};
	static const uint32_t after[] = {BIT(SUSPECT), BIT(SUSPECT), BIT(SUSPECT), BIT(DRAIN),
					 BIT(DRAIN)};
	struct verdict v = alarm_of(CLASS_SLOW, CAUSE_STRAGGLER, 3);
	struct policy_facts f = facts(HOUR);
	struct subject node = subject_node(0);
	struct decision d;

	(void)state;
	for (size_t i = 0; i < 5; i++) {
		v.subject = who[i];
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.now, BIT(SUSPECT));
	}
	policy_forget(p, &node);
	for (size_t i = 0; i < 5; i++) {
		v.subject = who[i];
		policy_ask(p, &v, &f, &d);
		assert_int_equal(d.now, after[i]);
	}
	policy_forget(p, NULL);
	for (size_t i = 0; i < 5; i++) {
		v.subject = who[i];
		policy_ask(p, &v, &f, &d);
		assert_int_equal(d.now, BIT(SUSPECT));
	}
	policy_free(p);
}

static void test_hold_down(void **state)
{
	struct policy *p = with("hung * alarm * * * * checkpoint+mark-suspect - 10m\n", 99, false);
	struct verdict v = alarm_of(CLASS_HUNG, CAUSE_STALLED, 3);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(CHECKPOINT) | BIT(SUSPECT));
	f.now_ns += 4 * MIN;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(SUSPECT));
	assert_int_equal(d.withheld, BIT(CHECKPOINT));
	assert_non_null(strstr(d.why, "held down for 6m more"));
	f.now_ns += 6 * MIN;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.withheld, 0);
	policy_free(p);
}

/* A hold is of what was done: what was not gets through, and it alone is held from then on. */
static void test_hold_is_of_each_action(void **state)
{
	struct policy *p = with("hung * alarm * * * * checkpoint - 10m\n"
				"dead * alarm * * * * checkpoint+drain - 20m\n",
				99, false);
	struct verdict hung = alarm_of(CLASS_HUNG, CAUSE_STALLED, 3);
	struct verdict dead = alarm_of(CLASS_DEAD, CAUSE_PROCESS_ENDED, 3);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	policy_decide(p, &hung, &f, &d);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	assert_int_equal(d.again_ns, 0);
	f.now_ns += 5 * MIN;
	policy_decide(p, &dead, &f, &d);
	assert_int_equal(d.now, BIT(DRAIN));
	assert_int_equal(d.withheld, BIT(CHECKPOINT));
	assert_int_equal(d.again_ns, HOUR + 20 * MIN);
	test_says(d.why, "checkpoint was done for it before: held down for 15m more");
	f.now_ns += 7 * MIN; /* the drain was no checkpoint */
	policy_decide(p, &hung, &f, &d);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	policy_decide(p, &dead, &f, &d);
	assert_int_equal(d.now, 0);
	assert_int_equal(d.withheld, BIT(CHECKPOINT) | BIT(DRAIN));
	assert_int_equal(d.again_ns, HOUR + 25 * MIN);
	policy_free(p);
}

/* What was withheld is done when it can be, once, and what was done beside it is not done again. */
static void test_decided_again(void **state)
{
	struct policy *p = with("hung * alarm * * * * checkpoint - 10m\n"
				"dead * alarm * * * * mark-suspect,checkpoint+drain 2/1m 10m\n"
				"slow * alarm * * * * validate - -\n",
				2, false);
	struct verdict dead = alarm_of(CLASS_DEAD, CAUSE_PROCESS_ENDED, 3), other = dead;
	struct verdict hung = alarm_of(CLASS_HUNG, CAUSE_STALLED, 3);
	struct policy_facts f = facts(HOUR);
	struct decision d;
	uint32_t left;

	(void)state;
	dead.subject = other.subject = hung.subject = subject_node(0);
	policy_decide(p, &hung, &f, &d);
	policy_decide(p, &dead, &f, &d); /* the second time for this subject */
	assert_int_equal(d.now, BIT(DRAIN));
	left = d.withheld;
	assert_int_equal(left, BIT(CHECKPOINT));
	/* Too early, held down still. */
	f.now_ns += 5 * MIN;
	policy_decide_again(p, &dead, &f, left, &d);
	assert_int_equal(d.withheld, left);
	assert_int_equal(d.wanted, left);
	/* Its hold is over, and the step's window long ago; but not the hour. */
	f.now_ns = d.again_ns;
	assert_int_equal(f.now_ns, HOUR + 10 * MIN);
	policy_decide_again(p, &dead, &f, left, &d);
	assert_int_equal(d.withheld, left);
	assert_int_equal(d.again_ns, 2 * HOUR);
	test_says(d.why, "which was withheld before");
	test_says(d.why, "are used up");
	f.now_ns = d.again_ns;
	policy_decide_again(p, &dead, &f, left, &d);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	assert_int_equal(d.withheld, 0);
	assert_int_equal(d.times, 1);
	/* It was done: by the hold, and in the budget. */
	policy_decide(p, &hung, &f, &d);
	assert_int_equal(d.withheld, BIT(CHECKPOINT));
	/* The table wants nothing of it any more. */
	other.class = CLASS_SLOW;
	policy_decide_again(p, &other, &f, BIT(DRAIN), &d);
	assert_int_equal(d.wanted | d.now | d.withheld | d.again_ns, 0);
	policy_free(p);
}

/* Nobody may ever do anything: time does not help. */
static void test_no_budget_at_all(void **state)
{
	struct policy *p = with("dead * alarm * * * * drain - -\n", 0, false);
	struct verdict v = alarm_of(CLASS_DEAD, CAUSE_PROCESS_ENDED, 3);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.withheld, BIT(DRAIN));
	assert_int_equal(d.again_ns, 0);
	policy_free(p);
}

/* With the table that is installed: a node that was checked for what it met, and fails, is drained
 * there and then. */
static void test_a_check_that_fails_drains(void **state)
{
	static const struct {
		enum verdict_class class;
		enum verdict_cause cause;
		unsigned times;
	} first[] = {
		{CLASS_FAILING, CAUSE_KERNEL, 1},
		{CLASS_SLOW, CAUSE_STRAGGLER, 3},
		{CLASS_UNSTABLE, CAUSE_LINK_FLAPS, 3},
		{CLASS_CORRUPTING, CAUSE_REPLICAS_DIFFER, 1},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
		struct policy *p = with("", 9, false);
		struct verdict v = {.class = first[i].class,
				    .cause = first[i].cause,
				    .level = LEVEL_ALARM,
				    .advice = ACTION_VALIDATE,
				    .subject = subject_node(0)};
		struct policy_facts f = facts(HOUR);
		struct decision d;

		f.durable_age_ns = HOUR;
		assert_int_equal(policy_take_builtin(p), 0);
		for (unsigned k = 0; k < first[i].times; k++) {
			f.now_ns += HOUR;
			policy_decide(p, &v, &f, &d);
		}
		assert_true(d.now & BIT(VALIDATE));
		f.now_ns += 90 * SEC;
		v.class = CLASS_FAILING;
		v.cause = CAUSE_CHECK_FAILED;
		v.advice = ACTION_DRAIN;
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.now, BIT(SUSPECT) | BIT(DRAIN));
		assert_int_equal(d.withheld, 0);
		policy_free(p);
	}
}

static void test_budget(void **state)
{
	struct policy *p =
		with("* * alarm * * * * checkpoint+mark-suspect+restore - -\n", 2, false);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	for (uint32_t rank = 0; rank < 4; rank++) {
		struct verdict v = alarm_of(CLASS_HUNG, CAUSE_STALLED, rank);

		v.subject.job = rank;
		f.now_ns += MIN;
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.withheld, rank < 2 ? 0 : BIT(CHECKPOINT));
		assert_int_equal(d.advised, BIT(RESTORE));
		assert_true(d.now & BIT(SUSPECT));
	}
	assert_non_null(strstr(d.why, "detect.actions_per_hour (2) are used up"));
	assert_non_null(strstr(d.why, "restore is yours"));
	f.now_ns += HOUR - 3 * MIN;
	policy_decide(p, &(struct verdict){.level = LEVEL_ALARM}, &f, &d);
	assert_int_equal(d.withheld, 0);
	policy_free(p);
}

/* Whatever one job does, something is left for the others. */
static void test_budget_of_a_job(void **state)
{
	struct policy *p = with("* * alarm * * * * checkpoint - -\n", 5, false);
	struct policy_facts f = facts(HOUR);
	struct subject job = subject_job(1);
	struct verdict v;
	struct decision d;

	(void)state;
	for (uint32_t rank = 0; rank < 20; rank++) {
		v = alarm_of(CLASS_DEAD, CAUSE_PROCESS_ENDED, rank);
		f.now_ns += SEC;
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.now, rank < 3 ? BIT(CHECKPOINT) : 0);
	}
	test_says(d.why, "this job has had its half of detect.actions_per_hour (5)");
	v.subject = subject_gpu(0, 1);
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	/* A person has looked at the job: it begins anew, the node's hour does not. */
	policy_forget(p, &job);
	v.subject = subject_rank(1, 7, 0);
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	v.subject = subject_rank(1, 8, 0);
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, 0);
	test_says(d.why, "detect.actions_per_hour (5) are used up");
	policy_free(p);
}

/* Jobs are anybody's: whatever they do together, and however often their owners clear them,
 * something is left for the node. */
static void test_budget_of_all_jobs(void **state)
{
	struct policy *p = with("* * alarm * * * * checkpoint - -\n", 12, false);
	struct policy_facts f = facts(HOUR);
	unsigned done = 0;
	struct decision d;
	struct verdict v;

	(void)state;
	for (uint32_t i = 0; i < 20; i++) {
		struct subject job = subject_job(i % 2);

		v = alarm_of(CLASS_DEAD, CAUSE_PROCESS_ENDED, i);
		v.subject.job = job.job;
		f.now_ns += SEC;
		policy_decide(p, &v, &f, &d);
		done += d.now != 0;
		policy_forget(p, &job);
	}
	assert_int_equal(done, 9);
	test_says(d.why, "jobs have had their share (9) of detect.actions_per_hour (12)");
	assert_int_equal(d.again_ns, HOUR + SEC + HOUR);
	for (uint32_t i = 0; i < 4; i++) {
		v.subject = subject_gpu(0, i);
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.now, i < 3 ? BIT(CHECKPOINT) : 0);
	}
	test_says(d.why, "detect.actions_per_hour (12) are used up");
	policy_free(p);
}

/* Verdicts that rest on jobs alone do nothing to the node: neither one user's, however often, nor
 * several users' together. */
static void test_word_of_jobs(void **state)
{
	static const char table[] = "hung * alarm * * * * mark-suspect+validate+drain - -\n"
				    "* * alarm * * * * mark-suspect - -\n";
	struct verdict machine = {.level = LEVEL_ALARM,
				  .class = CLASS_FAILING,
				  .cause = CAUSE_KERNEL,
				  .subject = subject_node(0)};
	struct verdict pressure = machine, programs = machine;
	struct verdict v = alarm_of(CLASS_HUNG, CAUSE_STOPPED, 0), other = v, dead = v;
	struct subject node = subject_node(0);
	struct policy_facts f = facts(HOUR);
	struct policy *p = with(table, 100, false);
	struct decision d;

	(void)state;
	v.of_jobs = other.of_jobs = dead.of_jobs = true;
	v.of_one_owner = other.of_one_owner = dead.of_one_owner = true;
	v.owner = 1000;
	other.owner = dead.owner = 1001;
	dead.class = CLASS_DEAD;
	pressure.cause = CAUSE_PRESSURE;
	for (uint32_t i = 0; i < 20; i++) {
		v.subject = i % 2 ? subject_node(0) : subject_rank(i, 0, 0);
		policy_decide(p, &v, &f, &d);
		assert_false(d.seconded);
		assert_int_equal(d.now & BIT(DRAIN), 0);
		assert_int_equal(d.now & BIT(SUSPECT), i % 2 ? 0 : BIT(SUSPECT));
		assert_int_equal(d.again_ns, 0);
		test_says(d.why, "only jobs say so");
	}
	/* Another user's crash is no hang, any user can cause pressure, and several some Xids. */
	programs.cause = CAUSE_XID;
	programs.of_jobs = true;
	policy_decide(p, &programs, &f, &d);
	policy_decide(p, &dead, &f, &d);
	policy_decide(p, &pressure, &f, &d);
	policy_decide(p, &v, &f, &d);
	assert_false(d.seconded);
	/* Another user's hang may be made up too, or have nothing to do with the node. */
	policy_decide(p, &other, &f, &d);
	assert_false(d.seconded);
	assert_int_equal(d.now & BIT(DRAIN), 0);
	policy_decide(p, &v, &f, &d);
	assert_false(d.seconded);
	v.of_one_owner = false; /* both say it of the node */
	v.subject = node;
	policy_decide(p, &v, &f, &d);
	assert_false(d.seconded);
	assert_int_equal(d.now & (BIT(DRAIN) | BIT(SUSPECT)), 0);
	/* An alarm of the machine seconds it, for an hour. */
	policy_decide(p, &machine, &f, &d);
	assert_true(d.seconded);
	policy_decide(p, &v, &f, &d);
	assert_true(d.seconded);
	assert_true(d.now & BIT(DRAIN));
	f.now_ns += HOUR;
	policy_decide(p, &v, &f, &d);
	assert_false(d.seconded);
	/* It is over too when an operator clears the node. */
	policy_decide(p, &machine, &f, &d);
	policy_decide(p, &v, &f, &d);
	assert_true(d.seconded);
	policy_forget(p, &node);
	policy_decide(p, &v, &f, &d);
	assert_false(d.seconded);
	policy_free(p);
}

/* One user's jobs share one half of the budget, however many they are and are cleared. */
static void test_budget_of_one_user(void **state)
{
	struct policy *p = with("* * alarm * * * * checkpoint - -\n", 12, false);
	struct policy_facts f = facts(HOUR);
	unsigned done = 0;
	struct decision d;
	struct verdict v;

	(void)state;
	for (uint32_t i = 0; i < 20; i++) {
		struct subject job = subject_job(i % 5);

		v = alarm_of(CLASS_DEAD, CAUSE_PROCESS_ENDED, i);
		v.subject = i % 3 ? subject_rank(job.job, i, 0) : subject_node(0);
		v.of_jobs = v.of_one_owner = true;
		v.owner = 1000;
		f.now_ns += SEC;
		policy_decide(p, &v, &f, &d);
		done += d.now != 0;
		policy_forget(p, &job);
	}
	assert_int_equal(done, 6);
	test_says(d.why, "this user's jobs have had their half of detect.actions_per_hour (12)");
	v.owner = 1001;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(CHECKPOINT));
	policy_free(p);
}

/* Jobs' many subjects do not push out what is remembered of the node. */
static void test_many_subjects_of_jobs(void **state)
{
	struct policy *p = with("* * alarm * * * * checkpoint,validate 2/1d -\n", 200, false);
	struct policy_facts f = facts(HOUR);
	struct verdict v = {
		.level = LEVEL_ALARM, .cause = CAUSE_KERNEL, .subject = subject_gpu(0, 3)};
	struct decision d;

	(void)state;
	policy_decide(p, &v, &f, &d);
	for (uint32_t rank = 0; rank < 2 * POLICY_SUBJECTS_MAX; rank++) {
		struct verdict of_rank = alarm_of(CLASS_HUNG, CAUSE_STALLED, rank);

		f.now_ns += SEC;
		policy_decide(p, &of_rank, &f, &d);
	}
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.times, 2);
	assert_int_equal(d.step, 1);
	policy_free(p);
}

static void test_dry_run(void **state)
{
	struct policy *p = with("* * alarm * * * * checkpoint+mark-suspect+record - -\n", 2, true);
	struct verdict v = alarm_of(CLASS_HUNG, CAUSE_STALLED, 1);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	policy_decide(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(RECORD));
	assert_int_equal(d.withheld, BIT(CHECKPOINT) | BIT(SUSPECT));
	assert_non_null(strstr(d.why, "dry_run"));
	policy_free(p);
}

/* Whatever the table and the verdict's own advice say. */
static void test_notes_do_nothing(void **state)
{
	struct policy *p = with(
		"* * alarm * * * * advice+drain - -\n* * note * * * * mark-suspect - -", 9, false);
	struct verdict v = alarm_of(CLASS_FAILING, CAUSE_XID, 1);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	v.advice = ACTION_REBOOT;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(DRAIN));
	assert_int_equal(d.advised, BIT(REBOOT));
	v.level = LEVEL_NOTE;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.wanted, BIT(SUSPECT));
	policy_free(p);
}

/* More subjects than are remembered: the quiet ones are forgotten, nothing else happens. */
static void test_many_subjects(void **state)
{
	struct policy *p = with("* * alarm * * * * mark-suspect,drain 2/1d -\n", 9, false);
	struct policy_facts f = facts(HOUR);
	struct decision d;

	(void)state;
	for (uint32_t rank = 0; rank < 3 * POLICY_SUBJECTS_MAX; rank++) {
		struct verdict v = alarm_of(CLASS_SLOW, CAUSE_STRAGGLER, rank);

		f.now_ns += SEC;
		policy_decide(p, &v, &f, &d);
		assert_int_equal(d.times, 1);
	}
	for (uint32_t i = 0; i < 2; i++) {
		struct verdict v =
			alarm_of(CLASS_SLOW, CAUSE_STRAGGLER, i ? 0 : 3 * POLICY_SUBJECTS_MAX - 1);

		policy_ask(p, &v, &f, &d);
		assert_int_equal(d.times, i ? 1 : 2);
	}
	policy_free(p);
}

static uint32_t wanted_by(struct policy *p, enum verdict_class class, enum verdict_cause cause,
			  enum subject_kind kind)
{
	struct verdict v = {
		.class = class, .cause = cause, .level = LEVEL_ALARM, .subject = {.kind = kind}};
	struct policy_facts f = facts(HOUR);
	struct decision d;

	policy_ask(p, &v, &f, &d);
	return d.wanted;
}

/* Before there is an alarm nobody knows what it will advise, but for what they always do. */
static void test_advice(void **state)
{
	struct policy *p = with("* xid alarm * * * * mark-suspect+advice - -\n"
				"* * alarm * * * * advice - -\n",
				9, false);
	struct verdict v = alarm_of(CLASS_DEAD, CAUSE_XID, 3);
	struct policy_facts f = facts(HOUR);
	char text[POLICY_ACTIONS_TEXT_MAX];
	struct decision d;

	(void)state;
	assert_int_equal(policy_usual_advice(CAUSE_STALLED, SUBJECT_RANK), ACTION_RESTORE);
	assert_int_equal(policy_usual_advice(CAUSE_REPLICAS_DIFFER, SUBJECT_RANK), ACTION_VALIDATE);
	assert_int_equal(policy_usual_advice(CAUSE_REPLICAS_DIFFER, SUBJECT_JOB), ACTION_RESTORE);
	v.advice = policy_usual_advice(CAUSE_XID, SUBJECT_GPU);
	assert_int_equal(v.advice, ACTION_COUNT);
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(SUSPECT));
	assert_int_equal(d.advised | d.withheld, 0);
	assert_string_equal(policy_actions_text(d.wanted, text), "mark-suspect+advice");
	assert_non_null(strstr(d.why, "what such an alarm advises differs"));
	v.cause = CAUSE_KERNEL;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.now | d.advised | d.withheld, 0);
	v.advice = ACTION_DRAIN;
	policy_ask(p, &v, &f, &d);
	assert_int_equal(d.now, BIT(DRAIN));
	assert_null(strstr(d.why, "differs"));
	policy_free(p);
}

/* The table that is installed: read whole, nothing falls through it, and texts of its limits are
 * what was read. */
static void test_ours(void **state)
{
	const char *src = getenv("top_srcdir");
	static char text[POLICY_BYTES_MAX];
	struct policy *p = with("", 9, false);
	struct policy_facts f = facts(HOUR);
	char path[512], limit[32];
	size_t len;
	FILE *file;

	(void)state;
	snprintf(path, sizeof(path), "%s/share/policy.tsv", src ? src : ".");
	file = fopen(path, "re");
	assert_non_null(file);
	len = fread(text, 1, sizeof(text), file);
	fclose(file);
	assert_int_equal(policy_builtin_len, len);
	assert_memory_equal(policy_builtin, text, len);
	assert_int_equal(policy_take_builtin(p), 0);
	assert_string_equal(policy_name(p), "the table of ckptd");
	for (unsigned i = 0; i < CLASS_COUNT * CAUSE_COUNT * 6 * 2; i++) {
		struct verdict v = {.class = i % CLASS_COUNT,
				    .cause = i / CLASS_COUNT % CAUSE_COUNT,
				    .level = i % 2,
				    .subject = {.kind = i / CLASS_COUNT / CAUSE_COUNT % 6}};
		struct decision d;

		policy_ask(p, &v, &f, &d);
		assert_non_null(d.row);
		/* Wrong bytes are never made the newest checkpoint. */
		if (v.class == CLASS_CORRUPTING || v.class == CLASS_DIVERGING)
			assert_false(d.wanted & BIT(CHECKPOINT));
	}
	assert_true(wanted_by(p, CLASS_DEAD, CAUSE_XID, SUBJECT_GPU) & BIT(SUSPECT));
	assert_true(wanted_by(p, CLASS_FAILING, CAUSE_MEMORY_ERRORS, SUBJECT_NODE) & BIT(SUSPECT));
	assert_false(wanted_by(p, CLASS_FAILING, CAUSE_PRESSURE, SUBJECT_NODE) & BIT(SUSPECT));
	assert_string_equal(
		policy_limit_text(&(struct policy_limit){TEST_BELOW, 10 * MIN}, true, limit),
		"<10m");
	assert_string_equal(policy_limit_text(&(struct policy_limit){TEST_FROM, 2}, false, limit),
			    ">=2");
	policy_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_stays),
		cmocka_unit_test(test_first_row_that_fits),
		cmocka_unit_test(test_escalation),
		cmocka_unit_test(test_updates_do_not_escalate),
		cmocka_unit_test(test_forgets_what_is_contained),
		cmocka_unit_test(test_hold_down),
		cmocka_unit_test(test_hold_is_of_each_action),
		cmocka_unit_test(test_decided_again),
		cmocka_unit_test(test_no_budget_at_all),
		cmocka_unit_test(test_a_check_that_fails_drains),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_budget_of_a_job),
		cmocka_unit_test(test_budget_of_all_jobs),
		cmocka_unit_test(test_word_of_jobs),
		cmocka_unit_test(test_budget_of_one_user),
		cmocka_unit_test(test_many_subjects_of_jobs),
		cmocka_unit_test(test_dry_run),
		cmocka_unit_test(test_notes_do_nothing),
		cmocka_unit_test(test_many_subjects),
		cmocka_unit_test(test_advice),
		cmocka_unit_test(test_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
