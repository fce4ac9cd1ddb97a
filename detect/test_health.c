/* SPDX-License-Identifier: Apache-2.0 */
/* Ports, disks, memory, pressure, the kernel, checks; replicas and stale checkpoints. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "detect/options.h"
#include "detect/rules.h"
#include "detect/test_fixture.h"

#define SEC NS_PER_SEC

struct bench {
	struct detector *d;
	struct told told;
	uint64_t now;
	/* What its counters say. */
	uint64_t errors, corrected, uncorrected;
	uint32_t downs;
	bool up;
};

static void bench_begin(struct bench *b)
{
	memset(b, 0, sizeof(*b));
	b->now = SEC;
	b->up = true;
	b->d = told_detector(&b->told, NULL, NULL);
}

static struct sample of_node(const struct bench *b, enum sample_kind kind, uint32_t device)
{
	struct sample s = sample_of(kind, b->now, 4, SAMPLE_NONE, SAMPLE_NONE);

	s.device = device;
	return s;
}

static void name(struct bench *b, uint32_t device, char role, const char *text)
{
	struct sample s = of_node(b, SAMPLE_NAME, device);

	s.name.role = role;
	snprintf(s.name.text, sizeof(s.name.text), "%s", text);
	feed(b->d, &s);
}

/* Port 1, disk 2 and the memory of node 4 say what they count, every 5 s. */
static void goes_on(struct bench *b, uint64_t s, uint64_t errors_each)
{
	struct sample sample;

	for (uint64_t end = b->now + s * SEC; b->now < end;) {
		b->now += 5 * SEC;
		b->errors += errors_each;
		sample = of_node(b, SAMPLE_LINK, 1);
		sample.link.up = b->up;
		sample.link.downs = b->downs;
		sample.link.errors = b->errors;
		feed(b->d, &sample);
		sample = of_node(b, SAMPLE_MEMORY, SAMPLE_NONE);
		sample.memory.corrected = b->corrected;
		sample.memory.uncorrected = b->uncorrected;
		feed(b->d, &sample);
	}
}

static void test_down(void **state)
{
	struct bench b;
	uint64_t from;

	(void)state;
	bench_begin(&b);
	name(&b, 1, 'n', "mlx5_0");
	b.up = false;
	goes_on(&b, 1000, 0); /* never was up */
	assert_int_equal(b.told.alarms + b.told.notes, 0);
	b.up = true;
	goes_on(&b, 100, 0);
	b.up = false;
	from = b.now;
	goes_on(&b, 100, 0);
	assert_int_equal(b.told.notes, 1);
	assert_int_equal(b.told.alarms, 0);
	goes_on(&b, 200, 0);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.cause, CAUSE_LINK_DOWN);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_LINK);
	assert_int_equal(b.told.alarm.subject.device, 1);
	assert_true(b.told.alarm.changed_ns - from >= 240 * SEC &&
		    b.told.alarm.changed_ns - from <= 255 * SEC);
	test_says(b.told.alarm.words, "port mlx5_0 of node 4 has been down for");
	b.up = true;
	goes_on(&b, 10, 0);
	assert_int_equal(b.told.cleared, 1);
	detector_free(b.d);
}

static void test_flaps(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	goes_on(&b, 100, 0);
	for (int i = 0; i < 3; i++) { /* for moments: nothing */
		b.up = false;
		goes_on(&b, 10, 0);
		b.up = true;
		goes_on(&b, 100, 0);
	}
	goes_on(&b, 2 * 3600, 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(b.told.alarms, 0);
		b.up = false;
		goes_on(&b, 40, 0);
		b.up = true;
		goes_on(&b, 300, 0);
	}
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.cause, CAUSE_LINK_FLAPS);
	assert_int_equal(b.told.alarm.class, CLASS_UNSTABLE);
	goes_on(&b, 2 * 3600, 0);
	assert_int_equal(b.told.last.state, VERDICT_CLEARED);
	b.downs += 20; /* between two looks at it */
	goes_on(&b, 10, 0);
	assert_int_equal(b.told.alarms, 2);
	detector_free(b.d);
}

static void test_port_errors(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	goes_on(&b, 3600, 1);
	goes_on(&b, 60, 50);
	goes_on(&b, 600, 1);
	assert_int_equal(b.told.alarms, 0);
	assert_int_equal(b.told.notes, 1);
	goes_on(&b, 180, 50);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.cause, CAUSE_LINK_ERRORS);
	b.errors = 0; /* the driver was loaded again */
	goes_on(&b, 1200, 1);
	assert_int_equal(b.told.last.state, VERDICT_CLEARED);
	assert_int_equal(b.told.alarms, 1);
	detector_free(b.d);
}

/* A port that always has as many is left alone. */
static void test_port_that_always_had_errors(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	for (uint64_t each = 0; each < 40; each++)
		goes_on(&b, 600, each);
	assert_int_equal(b.told.alarms, 0);
	detector_free(b.d);
}

/* Only the memory of the node says anything any more. */
static void without_its_port(struct bench *b, uint64_t s)
{
	for (uint64_t end = b->now + s * SEC; b->now < end;) {
		struct sample sample;

		b->now += 5 * SEC;
		sample = of_node(b, SAMPLE_MEMORY, SAMPLE_NONE);
		feed(b->d, &sample);
	}
}

/* What stood against a port that was taken out is over some time. */
static void test_port_that_is_gone(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	goes_on(&b, 3600, 1);
	b.downs += 20;
	goes_on(&b, 300, 50);
	assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 2);
	assert_int_equal(b.told.alarms, 2);
	without_its_port(&b, 3000);
	assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 2);
	without_its_port(&b, 1200);
	assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 0);
	/* It is there again, and no better. */
	b.downs += 20;
	goes_on(&b, 300, 50);
	assert_int_equal(b.told.alarms, 4);
	goes_on(&b, 2 * 3600, 0);
	assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 0);
	detector_free(b.d);
}

static void disk_says(struct bench *b, uint64_t errors)
{
	struct sample s = of_node(b, SAMPLE_DISK, 2);

	s.disk.errors = errors;
	feed(b->d, &s);
}

static void kernel_says(struct bench *b, const char *text)
{
	struct sample s = of_node(b, SAMPLE_KERNEL, SAMPLE_NONE);

	snprintf(s.kernel.text, sizeof(s.kernel.text), "%s", text);
	feed(b->d, &s);
}

static void test_disk(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	name(&b, 2, 'd', "sdb");
	disk_says(&b, 700); /* of its life before us */
	assert_int_equal(b.told.notes, 0);
	disk_says(&b, 701);
	assert_int_equal(b.told.notes, 1);
	b.now += 600 * SEC;
	disk_says(&b, 702);
	kernel_says(&b, "I/O error, dev sdb, sector 123456 op 0x0:(READ) flags 0x0 phys_seg 1");
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_DISK);
	assert_int_equal(b.told.alarm.cause, CAUSE_DISK_ERRORS);
	test_says(b.told.alarm.words, "disk sdb of node 4 has had 3 errors lately");
	for (int i = 0; i < 500; i++) {
		b.now += 10 * SEC;
		disk_says(&b, 702);
	}
	assert_int_equal(b.told.cleared, 1);
	detector_free(b.d);
}

static void test_memory(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	b.corrected = 5000;
	goes_on(&b, 100, 0);
	b.corrected += 9;
	goes_on(&b, 100, 0);
	assert_int_equal(b.told.notes, 0);
	b.corrected += 10;
	goes_on(&b, 100, 0);
	assert_int_equal(b.told.notes, 1);
	b.corrected += 100;
	goes_on(&b, 100, 0);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.class, CLASS_FAILING);
	goes_on(&b, 4 * 3600, 0);
	assert_int_equal(b.told.cleared, 1);
	b.uncorrected++;
	goes_on(&b, 10, 0);
	assert_int_equal(b.told.alarms, 2);
	assert_int_equal(b.told.alarm.class, CLASS_CORRUPTING);
	b.corrected++;
	goes_on(&b, 10, 0);
	assert_int_equal(b.told.alarms, 2);
	detector_free(b.d);
}

static void test_pressure(void **state)
{
	struct bench b;
	struct sample s;

	(void)state;
	bench_begin(&b);
	for (int i = 0; i < 60; i++) {
		s = of_node(&b, SAMPLE_METRICS, SAMPLE_NONE);
		for (int m = 0; m < METRIC_COUNT; m++)
			s.metrics[m] = NAN;
		s.metrics[METRIC_PSI_MEMORY] = i < 10 ? 0.9f : i < 30 ? 0.1f : i < 50 ? 0.7f : 0;
		b.now += 5 * SEC;
		feed(b.d, &s);
		assert_int_equal(b.told.alarms, i >= 42);
	}
	assert_int_equal(b.told.alarm.cause, CAUSE_PRESSURE);
	assert_int_equal(b.told.cleared, 1);
	detector_free(b.d);
}

static void test_kernel(void **state)
{
	struct bench b;
	struct sample s;

	(void)state;
	bench_begin(&b);
	kernel_says(&b, "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB");
	assert_int_equal(b.told.notes, 1);
	test_says(b.told.last.words, "ran out of memory, and its kernel killed python3");
	kernel_says(&b, "mce: [Hardware Error]: Machine check events logged");
	s = of_node(&b, SAMPLE_KERNEL, SAMPLE_NONE);
	s.kernel.facility = 1; /* anybody may say so */
	snprintf(s.kernel.text, sizeof(s.kernel.text), "EXT4-fs error (device sdb): bad inode");
	b.told.notes = 0;
	feed(b.d, &s);
	assert_int_equal(b.told.notes + b.told.alarms, 0);
	b.told.cleared = 0;
	b.now += 7200 * SEC;
	detector_advance(b.d, b.now);
	for (int i = 0; i < 20; i++) {
		b.now += 5 * SEC;
		kernel_says(&b, "usb 1-1: new device");
	}
	assert_true(b.told.cleared >= 1);
	detector_free(b.d);
}

/* Of several subjects, of which each is told and ends. */
static void test_news_all_end(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	name(&b, 2, 'd', "sda");
	name(&b, 3, 'd', "sdb");
	kernel_says(&b, "EXT4-fs (sda): Remounting filesystem read-only");
	assert_int_equal(b.told.alarms, 1);
	kernel_says(&b, "EXT4-fs error (device sdb): ext4_lookup:1785: inode #2: bad inode");
	assert_int_equal(b.told.notes, 1); /* that of the other disk is no alarm for it */
	for (int i = 0; i < 20; i++) {
		char disk[16], text[96];

		snprintf(disk, sizeof(disk), "sd%c", 'c' + i);
		name(&b, 4 + (uint32_t)i, 'd', disk);
		snprintf(text, sizeof(text), "EXT4-fs error (device %s): ext4_lookup:1785: bad",
			 disk);
		kernel_says(&b, text);
	}
	assert_true(detector_standing(b.d, NULL, NULL, 0) >= 10);
	kernel_says(&b, "I/O error, dev sdb, sector 123456 op 0x0:(READ) flags 0x0 phys_seg 1");
	goes_on(&b, 2 * 3600 + 600, 0);
	assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 0);
	assert_int_equal(b.told.cleared, 1 + b.told.alarms + b.told.notes - 1);
	detector_free(b.d);
}

/* What a person said of a node holds for all of it: nothing is told of what was counted before. */
static void test_cleared_by_a_person(void **state)
{
	struct subject node = subject_node(4);
	struct bench b;

	(void)state;
	bench_begin(&b);
	goes_on(&b, 100, 0);
	b.downs += 20;
	b.corrected += 200;
	goes_on(&b, 10, 0);
	assert_int_equal(b.told.alarms, 2);
	assert_int_equal(detector_clear(b.d, &node, b.now), 2);
	goes_on(&b, 1000, 0);
	assert_int_equal(b.told.alarms, 2);
	b.corrected += 20; /* few */
	goes_on(&b, 10, 0);
	assert_int_equal(b.told.alarms, 2);
	b.up = false;
	goes_on(&b, 300, 0);
	assert_int_equal(b.told.alarms, 3);
	assert_true(detector_clear(b.d, &node, b.now) > 0);
	goes_on(&b, 1000, 0); /* nobody wants it up */
	assert_int_equal(b.told.alarms, 3);
	b.up = true;
	goes_on(&b, 100, 0);
	b.up = false;
	goes_on(&b, 300, 0);
	assert_int_equal(b.told.alarms, 4);
	detector_free(b.d);
}

/* What is milder neither renames what stands nor makes it stand for longer; it comes after it. */
static void test_milder_ones_follow(void **state)
{
	struct verdict v[4];
	struct bench b;

	(void)state;
	bench_begin(&b);
	goes_on(&b, 100, 0);
	kernel_says(&b, "{1}[Hardware Error]: event severity: recoverable");
	b.uncorrected++;
	goes_on(&b, 10, 0);
	assert_int_equal(b.told.alarms, 2);
	for (int i = 0; i < 2; i++) {
		goes_on(&b, 1500, 0);
		kernel_says(&b, "mce: [Hardware Error]: Machine check events logged");
		b.corrected += 20;
		goes_on(&b, 10, 0);
		assert_int_equal(detector_standing(b.d, NULL, v, 4), 2);
		for (int k = 0; k < 2; k++) {
			assert_int_equal(v[k].level, LEVEL_ALARM);
			test_says(v[k].words, "could not be corrected");
			assert_int_equal(v[k].class, v[k].cause == CAUSE_MEMORY_ERRORS
							     ? CLASS_CORRUPTING
							     : CLASS_FAILING);
		}
	}
	goes_on(&b, 900, 0);
	assert_int_equal(b.told.cleared, 2);
	kernel_says(&b, "mce: [Hardware Error]: Machine check events logged");
	b.corrected += 20;
	goes_on(&b, 10, 0);
	assert_int_equal(detector_standing(b.d, NULL, v, 4), 2);
	for (int k = 0; k < 2; k++) {
		assert_int_equal(v[k].level, LEVEL_NOTE);
		test_says(v[k].words, "has corrected");
	}
	assert_int_equal(b.told.alarms, 2);
	detector_free(b.d);
}

/* What is milder does not quieten what stands; what lies in a file is not the node's. */
static void test_kernel_file_systems(void **state)
{
	struct bench b;

	(void)state;
	bench_begin(&b);
	kernel_says(&b, "EXT4-fs (loop3): Remounting filesystem read-only");
	assert_int_equal(b.told.alarms, 0);
	assert_int_equal(b.told.notes, 1);
	detector_free(b.d);
	bench_begin(&b);
	kernel_says(&b, "EXT4-fs error (device sdb1): ext4_lookup:1785: inode #2: bad inode");
	assert_int_equal(b.told.notes, 1);
	kernel_says(&b, "EXT4-fs (sdb1): Remounting filesystem read-only");
	assert_int_equal(b.told.alarms, 1);
	kernel_says(&b, "EXT4-fs error (device sdb1): ext4_lookup:1785: inode #2: bad inode");
	assert_int_equal(b.told.notes, 1);
	assert_int_equal(b.told.alarms, 1);
	detector_free(b.d);
}

static void test_checks(void **state)
{
	struct bench b;
	struct sample s;

	(void)state;
	bench_begin(&b);
	s = of_node(&b, SAMPLE_CHECK, SAMPLE_NONE);
	snprintf(s.check.what, sizeof(s.check.what), "memory-bandwidth");
	s.check.value = 20;
	s.check.low = 90;
	s.check.high = 110;
	feed(b.d, &s);
	snprintf(s.check.what, sizeof(s.check.what), "disk-write");
	feed(b.d, &s);
	assert_int_equal(b.told.alarms, 2);
	test_says(b.told.alarm.words,
		  "node 4 fails the check disk-write: 20, others have 90 to 110; ");
	assert_int_equal(b.told.alarm.n_evidence, 1);
	snprintf(s.check.what, sizeof(s.check.what), "disk-sync");
	s.check.low = NAN;
	s.check.high = 10;
	feed(b.d, &s);
	test_says(b.told.alarm.words,
		  "node 4 fails the check disk-sync: 20, others have at most 10; ");
	assert_true(b.told.alarm.evidence[0].threshold == 10);
	snprintf(s.check.what, sizeof(s.check.what), "memory-pattern");
	s.check.value = s.check.high = NAN;
	feed(b.d, &s);
	test_says(b.told.alarm.words,
		  "node 4 fails the check memory-pattern; let nothing new onto it");
	assert_int_equal(b.told.alarm.n_evidence, 0);
	snprintf(s.check.what, sizeof(s.check.what), "disk-write");
	s.check.passed = true;
	feed(b.d, &s);
	assert_int_equal(b.told.cleared, 1);
	test_says(b.told.last.words, "passes now");
	assert_int_equal(detector_clear(b.d, &b.told.alarm.subject, b.now), 3);
	detector_free(b.d);
}

static void differ(struct bench *b, uint64_t step, uint32_t one, uint32_t other)
{
	struct sample s = {.kind = SAMPLE_DIGESTS,
			   .time_ns = b->now,
			   .node = SAMPLE_NONE,
			   .rank = one,
			   .device = SAMPLE_NONE};
	struct sample beat = {.kind = SAMPLE_BEAT, .time_ns = b->now, .device = SAMPLE_NONE};

	for (uint32_t r = 0; r < 4; r++) {
		beat.node = beat.rank = r;
		feed(b->d, &beat);
	}
	s.digests.step = step;
	s.digests.other = other;
	snprintf(s.digests.tensor, sizeof(s.digests.tensor), "layers.3.weight");
	feed(b->d, &s);
}

static void test_replicas(void **state)
{
	struct bench b;
	struct sample s;

	(void)state;
	bench_begin(&b);
	differ(&b, 100, 0, 2);
	differ(&b, 100, 1, 2);
	differ(&b, 100, 2, 3);
	assert_int_equal(b.told.alarms, 0);
	b.now += SEC;
	detector_advance(b.d, b.now);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.class, CLASS_CORRUPTING);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_RANK);
	assert_int_equal(b.told.alarm.subject.rank, 2);
	test_says(b.told.alarm.words, "holds other bytes of layers.3.weight");
	s = (struct sample){.kind = SAMPLE_JOB,
			    .time_ns = b.now,
			    .node = SAMPLE_NONE,
			    .rank = SAMPLE_NONE,
			    .device = SAMPLE_NONE};
	s.run.begins = true;
	s.run.epoch = 7;
	feed(b.d, &s);
	assert_int_equal(b.told.cleared, 1);
	b.now += SEC;
	differ(&b, 200, 0, 1);
	b.now += SEC;
	detector_advance(b.d, b.now);
	assert_int_equal(b.told.alarms, 2);
	assert_int_equal(b.told.alarm.subject.kind, SUBJECT_JOB);
	test_says(b.told.alarm.words, "ranks 0 and 1");
	s.kind = SAMPLE_STALE;
	s.time_ns = b.now;
	s.step = 300;
	feed(b.d, &s);
	assert_int_equal(b.told.alarms, 3);
	assert_int_equal(b.told.alarm.cause, CAUSE_STALE);
	/* Another one differs: each of them ends with the run. */
	b.now += SEC;
	differ(&b, 400, 0, 3);
	differ(&b, 400, 1, 3);
	b.now += SEC;
	detector_advance(b.d, b.now);
	assert_int_equal(b.told.alarms, 4);
	s.kind = SAMPLE_JOB;
	s.time_ns = b.now;
	s.run.begins = true;
	s.run.epoch = 8;
	feed(b.d, &s);
	assert_int_equal(detector_standing(b.d, NULL, NULL, 0), 0);
	detector_free(b.d);
}

/* What is no number does not change: that is one trouble, and one alarm. */
static void test_stale_for_want_of_numbers(void **state)
{
	struct bench b;
	struct sample s = {.kind = SAMPLE_BEAT, .device = SAMPLE_NONE};

	(void)state;
	bench_begin(&b);
	s.time_ns = b.now;
	s.beat = (struct sample_beat){.step = 5, .flags = BEAT_LOSS, .loss = NAN};
	feed(b.d, &s);
	b.now += SEC;
	detector_advance(b.d, b.now);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.alarm.cause, CAUSE_NOT_A_NUMBER);
	s.kind = SAMPLE_STALE;
	s.time_ns = b.now;
	s.step = 6;
	feed(b.d, &s);
	assert_int_equal(b.told.alarms, 1);
	assert_int_equal(b.told.notes, 1);
	test_says(b.told.last.words, "what is no finite number stays what it is");
	detector_free(b.d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_down),
		cmocka_unit_test(test_flaps),
		cmocka_unit_test(test_port_errors),
		cmocka_unit_test(test_port_that_always_had_errors),
		cmocka_unit_test(test_port_that_is_gone),
		cmocka_unit_test(test_disk),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_pressure),
		cmocka_unit_test(test_kernel),
		cmocka_unit_test(test_kernel_file_systems),
		cmocka_unit_test(test_milder_ones_follow),
		cmocka_unit_test(test_news_all_end),
		cmocka_unit_test(test_cleared_by_a_person),
		cmocka_unit_test(test_checks),
		cmocka_unit_test(test_replicas),
		cmocka_unit_test(test_stale_for_want_of_numbers),
	};

	return cmocka_run_group_tests_name("health", tests, NULL, NULL);
}
