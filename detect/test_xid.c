/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule `xid` end to end: kernel lines and NVML's events go into a detector with the table that
 * is installed, verdicts come out.
 */
#include <config.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "detect/options.h"
#include "detect/rules.h"
#include "detect/test_fixture.h"
#include "detect/xid_policy.h"

#define MS     NS_PER_MS
#define SEC    NS_PER_SEC
#define MINUTE (60 * SEC)
#define HOUR   (60 * MINUTE)
#define DAY    (24 * HOUR)

struct bench {
	struct xid_policy *policy;
	struct detector *d;
	struct told told;
};

static void begin(struct bench *b)
{
	struct detector_options o;

	memset(b, 0, sizeof(*b));
	assert_int_equal(xid_policy_default(&b->policy), 0);
	detector_options_default(&o);
	b->d = told_detector(&b->told, &o, b->policy);
}

static void end(struct bench *b)
{
	detector_free(b->d);
	xid_policy_free(b->policy);
}

static struct sample of_node(enum sample_kind kind, uint64_t t)
{
	return sample_of(kind, t, 1, SAMPLE_NONE, SAMPLE_NONE);
}

static void kernel(struct bench *b, uint64_t t, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static void kernel(struct bench *b, uint64_t t, const char *format, ...)
{
	struct sample s = of_node(SAMPLE_KERNEL, t);
	va_list ap;

	va_start(ap, format);
	vsnprintf(s.kernel.text, sizeof(s.kernel.text), format, ap);
	va_end(ap);
	feed(b->d, &s);
}

static void xid(struct bench *b, uint64_t t, unsigned code)
{
	kernel(b, t, "NVRM: Xid (PCI:0000:9b:00): %u, pid=77, name=python3, something", code);
}

static void nvml(struct bench *b, uint64_t t, uint32_t code, enum gpu_recovery recovery)
{
	struct sample s = of_node(SAMPLE_NVML, t);

	s.device = 3;
	s.nvml.xid = code;
	s.nvml.recovery = recovery;
	feed(b->d, &s);
}

static void name_gpu(struct bench *b, uint64_t t, uint32_t device, const char *name)
{
	struct sample s = of_node(SAMPLE_NAME, t);

	s.device = device;
	s.name.role = 'g';
	snprintf(s.name.text, sizeof(s.name.text), "%s", name);
	feed(b->d, &s);
}

/* The node lives: without samples the detector is blind, and time does not pass for rules. */
static void live_until(struct bench *b, uint64_t *t, uint64_t until)
{
	uint64_t step = until - *t > HOUR ? 10 * SEC : SEC;

	for (; *t < until; *t += step) {
		struct sample s = of_node(SAMPLE_ALIVE, *t);

		feed(b->d, &s);
	}
	*t = until;
}

static size_t standing(struct bench *b, struct verdict *ret, size_t n)
{
	return detector_standing(b->d, NULL, ret, n);
}

static void test_fatal_one(void **state)
{
	struct bench b;

	(void)state;
	begin(&b);
	name_gpu(&b, SEC, 3, "0000:9b:00");
	kernel(&b, 2 * SEC,
	       "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen "
	       "off "
	       "the bus.");
	kernel(&b, 2 * SEC, "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.");
	assert_int_equal(b.told.n, 1);
	assert_int_equal(b.told.alarm.level, LEVEL_ALARM);
	assert_int_equal(b.told.alarm.cause, CAUSE_XID);
	assert_int_equal(b.told.alarm.class, CLASS_DEAD);
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT);
	assert_int_equal(b.told.alarm.code, 79);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_GPU);
	assert_int_equal(b.told.alarm.subject.device, 3);
	assert_int_equal(b.told.alarm.raised_ns, 2 * SEC);
	assert_string_equal(b.told.alarm.words,
			    "GPU 0000:9b:00 of node 1 reports Xid 79 (the GPU has "
			    "fallen off the bus): drain the node and start it again.");
	end(&b);
}

static void test_spoofed(void **state)
{
	struct sample s = of_node(SAMPLE_KERNEL, SEC);
	struct bench b;

	(void)state;
	begin(&b);
	snprintf(s.kernel.text, sizeof(s.kernel.text),
		 "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.");
	for (unsigned facility = 1; facility <= UINT8_MAX; facility++) {
		s.kernel.facility = (uint8_t)facility;
		feed(b.d, &s);
	}
	detector_advance(b.d, 3 * SEC);
	assert_int_equal(b.told.n, 0);
	end(&b);
}

static void test_of_the_application(void **state)
{
	struct bench b;

	(void)state;
	begin(&b);
	xid(&b, SEC, 31);
	assert_int_equal(b.told.n, 1);
	assert_int_equal(b.told.alarms, 0);
	assert_int_equal(b.told.last.level, LEVEL_NOTE);
	assert_int_equal(b.told.last.advice, ACTION_RESTART);
	test_says(b.told.last.words, "process python3 (pid 77)");
	test_says(b.told.last.words, "start the ranks of the job again");
	end(&b);
}

static void job_on_node(struct bench *b, uint64_t t, uint32_t job, bool begins)
{
	struct sample s = of_node(SAMPLE_JOB, t);

	s.job = job;
	s.run.begins = begins;
	s.run.world = 1;
	s.run.epoch = t;
	feed(b->d, &s);
	if (!begins)
		return;
	s = of_node(SAMPLE_MEMBER, t);
	s.job = job;
	s.rank = 0;
	feed(b->d, &s);
}

/* A page fault of one program three times is the program's; of three programs, the GPU's. */
static void test_different_jobs(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	job_on_node(&b, t, 0, true);
	for (int i = 0; i < 5; i++) {
		live_until(&b, &t, t + 5 * MINUTE);
		xid(&b, t, 31);
	}
	job_on_node(&b, t, 0, false);
	job_on_node(&b, t, 1, true);
	t += SEC;
	xid(&b, t, 31);
	assert_int_equal(b.told.alarms, 0);
	live_until(&b, &t, t + 5 * MINUTE);
	job_on_node(&b, t, 1, false);
	job_on_node(&b, t, 2, true);
	xid(&b, t + SEC, 31);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.advice, ACTION_DRAIN);
	assert_int_equal(b.told.alarm.class, CLASS_FAILING);
	test_says(b.told.alarm.words, "met by 3 different jobs in 7 days");
	end(&b);
}

static void owned_job(struct bench *b, uint64_t t, uint32_t job, uint32_t owner)
{
	struct sample s = sample_of(SAMPLE_NAME, t, SAMPLE_NONE, job, SAMPLE_NONE);

	snprintf(s.name.text, sizeof(s.name.text), "job%u", job);
	s.name.owned = true;
	s.name.owner = owner;
	feed(b->d, &s);
	job_on_node(b, t, job, true);
}

/* On a shared node a page fault in the programs of one user counts against that user, however many
 * there are, and also where one of another user's has met one: the others must have met it as often
 * as the row says. The same holds for rows that count incidents without regard to jobs. */
static void test_programs_of_users(void **state)
{
	enum { A = 1000, B, C, D };
	static const struct {
		uint32_t code;
		uint32_t owners[8];
		bool alarm, of_jobs;
	} cases[] = {
		{31, {A, A, A, A}, false, true},
		{31, {A, A, B, B}, false, true},
		{31, {A, A, A, A, A, B, A, A}, false, true},
		{31, {A, B, A, B, A, B}, true, true},
		{31, {A, B, C, D}, true, true},
		{39, {A, A, A, A}, false, true},
		{39, {A, B, B, A}, false, true},
		{39, {A, A, A, B, A, A, A, A}, false, true},
		{39, {A, A, A, B, B, B}, true, true},
		{39, {A, B, C, B}, false, true},
		{39, {A, B, C, D}, true, true},
		{119, {A, A, A, A}, true, false}, /* no program makes that one */
	};
	struct detector_options o;
	struct verdict v;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bench b = {0};
		uint64_t t = SEC;

		assert_int_equal(xid_policy_default(&b.policy), 0);
		detector_options_default(&o);
		o.shared_node = true;
		b.d = told_detector(&b.told, &o, b.policy);
		for (uint32_t job = 0; job < 8 && cases[i].owners[job]; job++) {
			owned_job(&b, t, job, cases[i].owners[job]);
			t += SEC;
			xid(&b, t, cases[i].code);
			live_until(&b, &t, t + 5 * MINUTE);
			job_on_node(&b, t, job, false);
		}
		if ((b.told.alarms > 0) != cases[i].alarm)
			fail_msg("case %zu: %u alarms", i, b.told.alarms);
		assert_int_equal(standing(&b, &v, 1), 1);
		assert_int_equal(v.level, cases[i].alarm ? LEVEL_ALARM : LEVEL_NOTE);
		assert_int_equal(v.of_jobs, cases[i].of_jobs);
		if (cases[i].of_jobs)
			assert_int_equal(v.of_one_owner, cases[i].owners[1] == A &&
								 cases[i].owners[2] == A &&
								 cases[i].owners[3] == A &&
								 !cases[i].owners[4]);
		if (!cases[i].alarm)
			test_says(v.words, "not so often without one user's programs");
		end(&b);
	}
}

/* Where jobs are counted, one that meets it again and again is one. */
static void test_jobs_of_another_user(void **state)
{
	struct detector_options o;
	struct bench b = {0};
	uint64_t t = SEC;

	(void)state;
	assert_int_equal(xid_policy_default(&b.policy), 0);
	detector_options_default(&o);
	o.shared_node = true;
	b.d = told_detector(&b.told, &o, b.policy);
	for (uint32_t i = 0; i < 8; i++) {
		uint32_t job = i < 4 ? i : 4;

		owned_job(&b, t, job, i < 4 ? 1000 : 1001);
		t += SEC;
		xid(&b, t, 31);
		live_until(&b, &t, t + 5 * MINUTE);
		job_on_node(&b, t, job, false);
	}
	assert_int_equal(b.told.alarms, 0);
	end(&b);
}

static void test_three_lines(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	kernel(&b, t, "NVRM: The NVIDIA GPU 0000:b3:00.0");
	kernel(&b, t, "NVRM: (PCI ID: 10de:26b5) installed in this system has");
	assert_int_equal(b.told.n, 0);
	kernel(&b, t, "NVRM: fallen off the bus and is not responding to commands.");
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.code, 79);
	test_says(b.told.alarm.words, "GPU 0000:b3:00 of node 1");
	/* much later, and none was named: some GPU of this node */
	live_until(&b, &t, MINUTE);
	kernel(&b, t, "NVRM: GPU has fallen off the bus.");
	assert_int_equal(b.told.alarms, 2);
	test_says(b.told.alarm.words, "GPU unknown of node 1");
	assert_int_equal(b.told.alarm.subject.node, 1);
	end(&b);
}

/* ---- What came together ---- */

static void test_double_bit_alone(void **state)
{
	struct bench b;

	(void)state;
	begin(&b);
	xid(&b, SEC, 48);
	detector_advance(b.d, SEC + 400 * MS);
	assert_int_equal(b.told.n, 0); /* another one may follow */
	detector_advance(b.d, 2 * SEC);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.advice, ACTION_DRAIN);
	assert_int_equal(b.told.alarm.class, CLASS_CORRUPTING);
	assert_true(b.told.alarm.raised_ns <= 2 * SEC);
	end(&b);
}

static void with_other(unsigned other, bool first, enum verdict_action action,
		       enum verdict_level level)
{
	struct verdict v[4];
	struct bench b;
	size_t n;

	begin(&b);
	xid(&b, SEC, first ? other : 48);
	xid(&b, SEC + 100 * MS, first ? 48 : other);
	detector_advance(b.d, 3 * SEC);
	n = standing(&b, v, 4);
	assert_int_equal(n, 2);
	for (size_t i = 0; i < n; i++) {
		if (v[i].code != 48)
			continue;
		assert_int_equal(v[i].advice, action);
		assert_int_equal(v[i].level, level);
		test_says(v[i].words, "together with Xid");
	}
	assert_int_equal(v[0].code + v[1].code, 48 + other);
	end(&b);
}

static void test_double_bit_with_others(void **state)
{
	(void)state;
	for (int first = 0; first < 2; first++) {
		with_other(63, first, ACTION_RESET, LEVEL_ALARM);
		with_other(64, first, ACTION_RESET, LEVEL_ALARM);
		with_other(94, first, ACTION_RESTART, LEVEL_NOTE);
		with_other(95, first, ACTION_RESET, LEVEL_ALARM);
	}
}

static void test_cleanup_follows(void **state)
{
	struct verdict v[4];
	struct bench b;

	(void)state;
	begin(&b);
	xid(&b, SEC, 45); /* first the cleanup, then what it was for */
	xid(&b, SEC + 100 * MS, 62);
	detector_advance(b.d, 5 * SEC);
	assert_int_equal(standing(&b, v, 4), 1);
	assert_int_equal(v[0].code, 62);
	end(&b);
	begin(&b); /* alone: a process was ended */
	xid(&b, SEC, 45);
	detector_advance(b.d, 5 * SEC);
	assert_int_equal(standing(&b, v, 4), 1);
	assert_int_equal(v[0].level, LEVEL_NOTE);
	assert_int_equal(v[0].advice, ACTION_RECORD);
	end(&b);
}

/* ---- The driver's own word ---- */

static void recovery_line(struct bench *b, uint64_t t, int to, const char *word)
{
	kernel(b, t,
	       "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to "
	       "0x%x (%s)",
	       to, word);
}

static void test_recovery_overrides(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	xid(&b, t, 79);
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT);
	recovery_line(&b, t + 10 * MS, 1, "GPU Reset");
	assert_int_equal(b.told.alarms, 2); /* the same verdict, with other advice */
	assert_int_equal(b.told.alarm.code, 79);
	assert_int_equal(b.told.alarm.state, VERDICT_UPDATED);
	assert_int_equal(b.told.alarm.advice, ACTION_RESET);
	test_says(b.told.alarm.words, "the driver asks for a reset");
	recovery_line(&b, t + 20 * MS, 4, "Drain and Reset");
	assert_int_equal(b.told.alarm.advice, ACTION_DRAIN);
	/* it was reset: all is over, but it is not forgotten */
	t += SEC;
	recovery_line(&b, t, 0, "None");
	assert_int_equal(standing(&b, NULL, 0), 0);
	live_until(&b, &t, HOUR);
	xid(&b, t, 79);
	assert_int_equal(b.told.alarm.advice, ACTION_DRAIN);
	test_says(b.told.alarm.words, "2 times in 3 days");
	end(&b);
}

/* The driver names what one error asks for; it does not know that it is the second. */
static void test_repetition_beats_recovery(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	xid(&b, t, 62);
	live_until(&b, &t, HOUR);
	xid(&b, t, 62);
	assert_int_equal(b.told.alarm.advice, ACTION_DRAIN);
	recovery_line(&b, t + MS, 1, "GPU Reset");
	t += MS;
	assert_int_equal(b.told.alarm.advice, ACTION_DRAIN);
	recovery_line(&b, t + MS, 2, "Node Reboot Required");
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT);
	assert_int_equal(b.told.alarm.code, 62);
	end(&b);
}

static void test_recovery_alone(void **state)
{
	struct bench b;

	(void)state;
	begin(&b);
	recovery_line(&b, SEC, 2, "Node Reboot Required");
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.code, 154);
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT);
	test_says(b.told.alarm.words, "Xid 154 (the GPU asks for a restart of the node)");
	recovery_line(&b, 2 * SEC, 0, "None");
	assert_int_equal(b.told.last.state, VERDICT_CLEARED);
	assert_int_equal(standing(&b, NULL, 0), 0);
	end(&b);
}

static void test_nvml(void **state)
{
	struct sample s;
	struct bench b;

	(void)state;
	begin(&b);
	name_gpu(&b, SEC, 3, "0000:9b:00");
	nvml(&b, 2 * SEC, 79, RECOVERY_UNKNOWN); /* prompt */
	assert_int_equal(b.told.alarms, 1);
	kernel(&b, 2 * SEC + 300 * MS,
	       "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.");
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT); /* the same one: not the 2nd time */
	nvml(&b, 3 * SEC, 999, RECOVERY_UNKNOWN);
	assert_int_equal(standing(&b, NULL, 0), 1);
	nvml(&b, 3 * SEC, 0, RECOVERY_RESET);
	assert_int_equal(b.told.alarm.advice, ACTION_RESET);
	nvml(&b, 10 * SEC, 0, RECOVERY_NONE);
	assert_int_equal(standing(&b, NULL, 0), 0);
	s = of_node(SAMPLE_NVML, 200 * SEC);
	s.device = 3;
	s.nvml.unavailable = true;
	s.nvml.recovery = RECOVERY_UNKNOWN;
	feed(b.d, &s);
	assert_int_equal(standing(&b, NULL, 0), 1);
	s.time_ns += SEC;
	s.nvml.unavailable = false;
	feed(b.d, &s);
	assert_int_equal(standing(&b, NULL, 0), 0);
	nvml(&b, 300 * SEC, 999,
	     RECOVERY_UNKNOWN); /* alone: something is wrong, nobody knows what */
	assert_int_equal(b.told.last.code, 999);
	assert_int_equal(b.told.last.level, LEVEL_NOTE);
	end(&b);
}

/* NVML was asked just before the kernel spoke: its "none" is older. */
static void test_nvml_lags(void **state)
{
	struct bench b;

	(void)state;
	begin(&b);
	name_gpu(&b, SEC, 3, "0000:9b:00");
	recovery_line(&b, 2 * SEC, 1, "GPU Reset");
	nvml(&b, 2 * SEC + 100 * MS, 0, RECOVERY_NONE);
	assert_int_equal(standing(&b, NULL, 0), 1);
	nvml(&b, 5 * SEC, 0, RECOVERY_NONE);
	assert_int_equal(standing(&b, NULL, 0), 0);
	end(&b);
}

/* ---- Counters ---- */

static void counters(struct bench *b, uint64_t t, uint64_t corrected, uint64_t uncorrected)
{
	struct sample s = of_node(SAMPLE_NVML, t);

	s.device = 3;
	s.nvml.recovery = RECOVERY_NONE;
	s.nvml.corrected = corrected;
	s.nvml.uncorrected = uncorrected;
	feed(b->d, &s);
}

static void test_memory_counters(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	name_gpu(&b, t, 3, "0000:9b:00");
	counters(&b, t, 5000, 7); /* since ever: not news */
	counters(&b, t + 10 * SEC, 5099, 7);
	assert_int_equal(b.told.n, 0);
	counters(&b, t + 20 * SEC, 5199, 7);
	assert_int_equal(b.told.n, 1);
	assert_int_equal(b.told.last.level, LEVEL_NOTE);
	assert_int_equal(b.told.last.advice, ACTION_RECORD);
	assert_int_equal(b.told.last.cause, CAUSE_MEMORY_ERRORS);
	test_says(b.told.last.words, "has corrected 100 memory errors in 10 s");
	counters(&b, t + 30 * SEC, 5199, 9);
	assert_int_equal(b.told.last.advice, ACTION_VALIDATE);
	assert_int_equal(b.told.last.class, CLASS_CORRUPTING);
	test_says(b.told.last.words, "GPU 0000:9b:00 of node 1 has counted 2 more memory errors");
	t += 30 * SEC;
	live_until(&b, &t, 2 * DAY);
	assert_int_equal(standing(&b, NULL, 0), 0);
	assert_int_equal(b.told.alarms, 0);
	counters(&b, t, 0, 0); /* another driver, that begins anew */
	counters(&b, t + SEC, 3, 0);
	assert_int_equal(standing(&b, NULL, 0), 0);
	end(&b);
}

/* What an Xid tells is not told twice. */
static void test_counters_of_an_xid(void **state)
{
	struct verdict v[2];
	struct bench b;

	(void)state;
	begin(&b);
	name_gpu(&b, SEC, 3, "0000:9b:00");
	counters(&b, SEC, 0, 0);
	xid(&b, 2 * SEC, 95);
	counters(&b, 3 * SEC, 0, 1);
	assert_int_equal(standing(&b, v, 2), 1);
	assert_int_equal(v[0].code, 95);
	end(&b);
}

/* ---- Again and again ---- */

static void test_escalates(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	for (int i = 0; i < 20; i++) /* a driver that repeats itself */
		xid(&b, t + (uint64_t)i * SEC, 119);
	t += 20 * SEC;
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.advice, ACTION_RESET);
	live_until(&b, &t, 2 * HOUR); /* forgiven */
	assert_int_equal(standing(&b, NULL, 0), 0);
	assert_int_equal(b.told.cleared, 1);
	live_until(&b, &t, DAY);
	xid(&b, t, 119);
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT);
	test_says(b.told.alarm.words, "2 times in 3 days");
	live_until(&b, &t, 5 * DAY);
	xid(&b, t, 119);
	assert_int_equal(b.told.alarm.advice, ACTION_RESET);
	assert_int_equal(b.told.alarms, 3);
	end(&b);
}

/* Rows that count more than times are kept for. */
static void test_counts_many(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	for (int i = 1; i <= 10; i++) {
		xid(&b, t, 121);
		assert_int_equal(b.told.alarms, i >= 10);
		live_until(&b, &t, t + 10 * MINUTE);
	}
	assert_int_equal(b.told.alarm.advice, ACTION_DRAIN);
	live_until(&b, &t, t + 3 * DAY);
	xid(&b, t, 121);
	assert_int_equal(b.told.alarms, 1);
	end(&b);
}

static void test_storm(void **state)
{
	struct verdict v;
	struct bench b;
	uint64_t t = SEC, n = test_cap("CKPT_SAMPLES", 100000);
	char words[64];

	(void)state;
	begin(&b);
	for (uint64_t i = 0; i < n; i++, t += 100 * NS_PER_MS / 1000)
		kernel(&b, t,
		       "NVRM: Xid (PCI:0000:9b:00): 145, RLW_SRC_TRACK Fatal XC0 i0 Link 12 "
		       "(0x040988e2 0x00000008 0x00000000 0x00000000)");
	detector_advance(b.d, t + 2 * SEC);
	assert_int_equal(b.told.n, 1);
	assert_int_equal(standing(&b, &v, 1), 1);
	assert_int_equal(v.advice, ACTION_RESET);
	snprintf(words, sizeof(words), "%llu messages", (unsigned long long)n);
	test_says(v.words, words);
	test_says(v.words, "unit RLW_SRC_TRACK, link 12");
	assert_true(v.evidence[0].value == n);
	end(&b);
}

/* More kinds of errors than are kept: the newest stay, nothing is lost silently. */
static void test_many_kinds(void **state)
{
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	for (unsigned code = 96; code <= 105; code++, t += SEC)
		xid(&b, t, code);
	assert_int_equal(b.told.n, 10 + 2);
	assert_int_equal(b.told.cleared, 2);
	assert_int_equal(standing(&b, NULL, 0), 8);
	end(&b);
}

/* ---- The way back ---- */

static void test_stays(void **state)
{
	struct subject gpu;
	struct bench b;
	uint64_t t = SEC;

	(void)state;
	begin(&b);
	name_gpu(&b, t, 3, "0000:9b:00");
	xid(&b, t, 79);
	live_until(&b, &t, 4 * DAY);
	assert_int_equal(standing(&b, NULL, 0), 1);
	gpu = subject_gpu(1, 3);
	assert_int_equal(detector_clear(b.d, &gpu, t), 1);
	assert_int_equal(standing(&b, NULL, 0), 0);
	xid(&b, t + HOUR, 79); /* its history is gone as well */
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT);
	end(&b);
}

static void test_clear_of_the_node(void **state)
{
	struct subject node = subject_node(1);
	struct bench b;

	(void)state;
	begin(&b);
	xid(&b, SEC, 79);
	assert_int_equal(detector_clear(b.d, &node, 2 * SEC), 1);
	xid(&b, HOUR, 79);
	assert_int_equal(b.told.alarm.advice, ACTION_REBOOT);
	end(&b);
}

/* ---- Names ---- */

static void test_named_later(void **state)
{
	struct verdict v[2];
	struct bench b;

	(void)state;
	begin(&b);
	xid(&b, SEC, 79);
	assert_true(b.told.alarm.subject.device >= DEVICE_UNNUMBERED);
	name_gpu(&b, 2 * SEC, 3, "0000:9b:00");
	detector_advance(b.d, 3 * SEC);
	assert_int_equal(standing(&b, v, 2), 1);
	assert_int_equal(v[0].subject.device, 3);
	xid(&b, 2 * MINUTE, 79);
	assert_int_equal(standing(&b, v, 2), 1);
	assert_int_equal(v[0].advice, ACTION_DRAIN); /* the 2nd: what was seen came along */
	end(&b);
}

static void test_switch(void **state)
{
	struct bench b;

	(void)state;
	begin(&b);
	kernel(&b, SEC,
	       "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress PRIV");
	assert_int_equal(b.told.last.level, LEVEL_NOTE);
	kernel(&b, 2 * SEC,
	       "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up");
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_NODE);
	assert_int_equal(b.told.alarm.code, 20034);
	test_says(b.told.alarm.words, "node 1 reports SXid 20034 of NVSwitch 0000:05:00");
	test_says(b.told.alarm.words, "link 30");
	end(&b);
}

static void test_no_policy(void **state)
{
	struct bench b = {0};

	(void)state;
	b.d = told_detector(&b.told, NULL, NULL);
	xid(&b, SEC, 79);
	assert_int_equal(b.told.n, 0);
	detector_free(b.d);
}

static void count_line(void *arg, const char *text)
{
	if (strstr(text, "Xid 119 ("))
		++*(unsigned *)arg;
}

static void test_explained(void **state)
{
	struct subject gpu = subject_gpu(1, 3);
	struct bench b;
	unsigned n = 0;

	(void)state;
	begin(&b);
	name_gpu(&b, SEC, 3, "0000:9b:00");
	xid(&b, 2 * SEC, 119);
	detector_explain(b.d, &gpu, count_line, &n);
	assert_int_equal(n, 1);
	end(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fatal_one),
		cmocka_unit_test(test_spoofed),
		cmocka_unit_test(test_of_the_application),
		cmocka_unit_test(test_different_jobs),
		cmocka_unit_test(test_programs_of_users),
		cmocka_unit_test(test_jobs_of_another_user),
		cmocka_unit_test(test_three_lines),
		cmocka_unit_test(test_double_bit_alone),
		cmocka_unit_test(test_double_bit_with_others),
		cmocka_unit_test(test_cleanup_follows),
		cmocka_unit_test(test_recovery_overrides),
		cmocka_unit_test(test_repetition_beats_recovery),
		cmocka_unit_test(test_recovery_alone),
		cmocka_unit_test(test_nvml),
		cmocka_unit_test(test_nvml_lags),
		cmocka_unit_test(test_memory_counters),
		cmocka_unit_test(test_counters_of_an_xid),
		cmocka_unit_test(test_escalates),
		cmocka_unit_test(test_counts_many),
		cmocka_unit_test(test_storm),
		cmocka_unit_test(test_many_kinds),
		cmocka_unit_test(test_stays),
		cmocka_unit_test(test_clear_of_the_node),
		cmocka_unit_test(test_named_later),
		cmocka_unit_test(test_switch),
		cmocka_unit_test(test_no_policy),
		cmocka_unit_test(test_explained),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
