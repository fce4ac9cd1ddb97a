/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "coord/single.h"
#include "coord/test_disk.h"
#include "tests/lib/test.h"

#define DIR  "jobs/7f/log"
#define LAST 6 /* the records of the scenario are 0..LAST */
#define TRIM 4

static struct test_disk disk; /* large */

/* ---- Records whose bytes follow from n ---- */

static size_t record_of(uint64_t n, uint64_t who, uint8_t *buf)
{
	size_t len = 40 + n % 7 * 13;

	test_fill(buf, len, 1000 * who + n);
	return len;
}

static int append(struct joblog *log, uint64_t n, uint64_t who)
{
	uint8_t buf[256];
	struct err e = { 0 };
	size_t len = record_of(n, who, buf);
	int r = log->ops->append(log, n, buf, len, &e);

	assert_int_equal(e.code, r);
	return r;
}

struct seen {
	uint64_t first, count;
	uint64_t who; /* whose bytes record `watch` has */
	uint64_t watch;
};

static int see(void *arg, uint64_t n, const void *bytes, size_t len)
{
	struct seen *s = arg;
	uint8_t buf[256];
	uint64_t who;

	if (s->count == 0)
		s->first = n;
	assert_int_equal(n, s->first + s->count);
	s->count++;
	for (who = 0; who < 3; who++)
		if (record_of(n, who, buf) == len && memcmp(buf, bytes, len) == 0)
			break;
	assert_true(who < 3); /* one of the records that were written, whole */
	if (n == s->watch)
		s->who = who;
	return 0;
}

static struct seen scan(struct joblog *log)
{
	struct seen s = { 0 };
	struct err e = { 0 };

	assert_int_equal(log->ops->scan(log, see, &s, &e), 0);
	return s;
}

static struct joblog *open_log(void)
{
	struct joblog *log = NULL;
	struct err e = { 0 };

	assert_int_equal(joblog_single_open(&disk.disk, DIR, &log, &e), 0);
	return log;
}

static struct joblog *log_with(uint64_t count)
{
	struct joblog *log = open_log();

	for (uint64_t n = 0; n < count; n++)
		assert_int_equal(append(log, n, 0), 0);
	return log;
}

static void path_of(char *path, size_t size, const char *prefix, uint64_t n)
{
	snprintf(path, size, "%s/%s%020llu", DIR, prefix, (unsigned long long)n);
}

static int set_up(void **state)
{
	(void)state;
	test_disk_init(&disk);
	fault_disarm_all();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	test_disk_fini(&disk);
	fault_disarm_all();
	fault_set_kill(NULL, NULL);
	return 0;
}

/* ---- Plain use ---- */

static void test_records_come_back_in_order(void **state)
{
	struct joblog *log = log_with(120);
	struct seen s = scan(log);

	(void)state;
	assert_int_equal(s.first, 0);
	assert_int_equal(s.count, 120);
	log->ops->close(log);
	log = open_log();
	assert_int_equal(scan(log).count, 120);
	assert_int_equal(test_disk_count(&disk, DIR, "tmp-"), 0);
	log->ops->close(log);
}

static void test_append_is_few_operations(void **state)
{
	struct joblog *log = log_with(1);

	(void)state;
	disk.op = 0;
	assert_int_equal(append(log, 1, 0), 0);
	assert_int_equal(disk.op, 6); /* open, write, sync, link, unlink, sync_dir */
	log->ops->close(log);
}

static void test_append_twice_and_another(void **state)
{
	struct joblog *log = log_with(3);

	(void)state;
	assert_int_equal(append(log, 1, 0), 0);
	assert_int_equal(append(log, 2, 0), 0);
	assert_int_equal(append(log, 2, 1), -EEXIST);
	log->ops->close(log);
	log = open_log();
	assert_int_equal(append(log, 2, 1), -EEXIST);
	assert_int_equal(append(log, 2, 0), 0);
	assert_int_equal(append(log, 3, 0), 0);
	assert_int_equal(scan(log).count, 4);
	log->ops->close(log);
}

static void test_append_leaves_no_gap_and_is_bounded(void **state)
{
	struct joblog *log = log_with(2);
	uint8_t *big = alloc_zero(JOBLOG_RECORD_MAX + 1);
	struct err e = { 0 };

	(void)state;
	assert_int_equal(append(log, 3, 0), -EINVAL);
	assert_int_equal(scan(log).count, 2);
	assert_int_equal(log->ops->append(log, 2, big, JOBLOG_RECORD_MAX + 1, &e), -E2BIG);
	assert_int_equal(log->ops->append(log, 2, big, JOBLOG_RECORD_MAX, &e), 0);
	assert_int_equal(log->ops->append(log, 2, big, JOBLOG_RECORD_MAX, &e), 0);
	assert_int_equal(log->ops->append(log, 2, big, JOBLOG_RECORD_MAX - 1, &e), -EEXIST);
	alloc_free(big);
	log->ops->close(log);
}

/* The numbers of a log come from its files, the last one as well. */
static void test_the_last_number(void **state)
{
	uint64_t last = UINT64_MAX - 1;
	struct joblog *log;
	char path[128];
	uint8_t buf[256];
	struct err e = { 0 };

	(void)state;
	path_of(path, sizeof(path), "", last);
	test_disk_put(&disk, path, buf, record_of(last, 0, buf));
	path_of(path, sizeof(path), "trim-", last);
	test_disk_put(&disk, path, buf, 0);
	log = open_log();
	assert_int_equal(scan(log).count, 1);
	assert_int_equal(log->ops->append(log, UINT64_MAX, buf, record_of(1, 0, buf), &e),
			 -EOVERFLOW);
	log->ops->close(log);
}

static void test_a_rival_is_seen(void **state)
{
	struct joblog *a = log_with(2), *b = open_log();

	(void)state;
	assert_int_equal(append(b, 1, 0), 0);
	assert_int_equal(append(a, 2, 1), 0);
	assert_int_equal(append(b, 3, 0), 0); /* b looks again: 2 is there */
	assert_int_equal(append(a, 3, 1), -EEXIST);
	assert_int_equal(append(a, 4, 1), 0);
	assert_int_equal(scan(b).count, 5);
	a->ops->close(a);
	b->ops->close(b);
}

static int refuse_two(void *arg, uint64_t n, const void *bytes, size_t len)
{
	(void)bytes;
	assert_true(len > 0);
	++*(int *)arg;
	return n == 2 ? 77 : 0;
}

static void test_scan_ends_when_told(void **state)
{
	struct joblog *log = log_with(5);
	int calls = 0;

	(void)state;
	assert_int_equal(log->ops->scan(log, refuse_two, &calls, NULL), 77);
	assert_int_equal(calls, 3);
	log->ops->close(log);
}

static void test_trim(void **state)
{
	struct joblog *log = log_with(300);

	(void)state;
	assert_int_equal(log->ops->trim(log, 300), -ENOENT); /* no record sums up */
	assert_int_equal(scan(log).count, 300);
	assert_int_equal(log->ops->trim(log, 299), 0);
	assert_int_equal(scan(log).first, 299);
	assert_int_equal(test_disk_count(&disk, DIR, ""), 2);
	assert_int_equal(log->ops->trim(log, 5), 0); /* behind: nothing to do */
	assert_int_equal(append(log, 300, 0), 0);
	assert_int_equal(append(log, 7, 0), -EEXIST); /* trimmed is not free */
	log->ops->close(log);
	log = open_log();
	assert_int_equal(append(log, 7, 0), -EEXIST);
	assert_int_equal(log->ops->trim(log, 300), 0);
	assert_int_equal(test_disk_count(&disk, DIR, "trim-"), 1);
	assert_int_equal(scan(log).first, 300);
	log->ops->close(log);
}

static int trim_meanwhile(void *arg, uint64_t n, const void *bytes, size_t len)
{
	struct joblog *writer = arg;

	(void)bytes;
	(void)len;
	return n == 1 ? writer->ops->trim(writer, 5) : 0;
}

static void test_trim_beside_a_reader(void **state)
{
	struct joblog *log = log_with(6), *reader = open_log();
	struct err e = { 0 };

	(void)state;
	assert_int_equal(reader->ops->scan(reader, trim_meanwhile, log, &e), -EAGAIN);
	assert_non_null(strstr(e.text, "read it again"));
	assert_int_equal(scan(reader).first, 5);
	reader->ops->close(reader);
	log->ops->close(log);
}

/* Who only reads removes nothing: the temporary may be the daemon's. */
static void test_readers_leave_temporaries(void **state)
{
	struct joblog *log = log_with(2);
	char path[DISK_PATH_MAX + 1];

	(void)state;
	path_of(path, sizeof(path), "tmp-", 0);
	test_disk_put(&disk, path, "x", 1);
	path_of(path, sizeof(path), "tmp-", 1);
	test_disk_put(&disk, path, "x", 1);
	log->ops->close(log);
	log = open_log();
	assert_int_equal(scan(log).count, 2);
	assert_int_equal(test_disk_count(&disk, DIR, "tmp-"), 2);
	assert_int_equal(append(log, 2, 0), 0);
	assert_int_equal(test_disk_count(&disk, DIR, "tmp-"), 0);
	path_of(path, sizeof(path), "tmp-", 1); /* a rival's, with the name that comes next */
	test_disk_put(&disk, path, "x", 1);
	assert_int_equal(append(log, 3, 0), 0);
	assert_int_equal(test_disk_count(&disk, DIR, "tmp-"), 1);
	log->ops->close(log);
}

static void test_temporaries_run_out(void **state)
{
	struct joblog *log = log_with(2);
	char path[DISK_PATH_MAX + 1];

	(void)state;
	for (uint64_t i = 0; i < 200; i++) {
		path_of(path, sizeof(path), "tmp-", i);
		test_disk_put(&disk, path, "x", 1);
	}
	assert_int_equal(append(log, 2, 0), -EBUSY); /* -EEXIST would say that record 2 is there */
	log->ops->close(log);
	log = open_log();
	assert_int_equal(append(log, 2, 0), 0);
	log->ops->close(log);
}

/* ---- Damage ---- */

static void expect_damage(uint64_t delivered, const char *words)
{
	struct joblog *log = open_log();
	struct seen s = { 0 };
	struct err e = { 0 };

	assert_int_equal(log->ops->scan(log, see, &s, &e), CKPT_ECORRUPT);
	assert_int_equal(s.count, delivered);
	assert_non_null(strstr(e.text, words));
	log->ops->close(log);
}

static void test_damage_is_named(void **state)
{
	char path[DISK_PATH_MAX + 1];
	uint8_t *big = alloc_zero(JOBLOG_RECORD_MAX + 1), buf[256];
	struct joblog *log = log_with(5);

	(void)state;
	log->ops->close(log);
	path_of(path, sizeof(path), "", 2);
	test_disk_put(&disk, path, NULL, 0);
	expect_damage(2, "record 2 is missing");
	test_disk_put(&disk, path, "", 0);
	expect_damage(2, "record 2 has an impossible length");
	test_disk_put(&disk, path, big, JOBLOG_RECORD_MAX + 1);
	expect_damage(2, "record 2 has an impossible length");
	test_disk_put(&disk, path, buf, record_of(2, 0, buf));
	path_of(path, sizeof(path), "", 0);
	test_disk_put(&disk, path, NULL, 0);
	expect_damage(0, "record 0 is missing");
	path_of(path, sizeof(path), "trim-", 5);
	test_disk_put(&disk, path, "", 0);
	expect_damage(0, "record 5 is missing");
	alloc_free(big);
}

static void test_other_names_are_ignored(void **state)
{
	static const char *const names[] = {
		DIR "/README", DIR "/3", DIR "/99999999999999999999", DIR "/0000000000000000000x",
		DIR "/trim-", DIR "/tmp-1", DIR "/18446744073709551615",
	};
	struct joblog *log;

	(void)state;
	log = log_with(3);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		test_disk_put(&disk, names[i], "x", 1);
	assert_int_equal(scan(log).count, 3);
	log->ops->close(log);
	log = open_log();
	assert_int_equal(append(log, 3, 0), 0);
	assert_int_equal(scan(log).count, 4);
	assert_int_equal(test_disk_count(&disk, DIR, ""), 4 + sizeof(names) / sizeof(names[0]));
	log->ops->close(log);
}

/* ---- Two appenders ---- */

struct rival {
	struct joblog *log;
	uint64_t who;
	int result;
	bool ran;
};

static void rival_appends(void *arg)
{
	struct rival *r = arg;

	r->ran = true;
	r->result = append(r->log, 1, r->who);
}

/* B appends record 1 inside the at-th operation of A's append of record 1. */
static bool race(unsigned at, bool warm, uint64_t a_who, uint64_t b_who)
{
	struct joblog *a = log_with(1);
	struct rival b = { .log = open_log(), .who = b_who };
	int wins, r, again_a, again_b;
	struct seen s;

	if (warm) {
		assert_int_equal(append(b.log, 0, 0), 0);
	} else {
		a->ops->close(a);
		a = open_log();
	}
	disk.op = 0;
	disk.hook = rival_appends;
	disk.hook_arg = &b;
	disk.hook_at = at;
	r = append(a, 1, a_who);
	disk.hook = NULL;
	if (b.ran && warm && a_who != b_who) {
		wins = (r == 0) + (b.result == 0);
		assert_int_equal(wins, 1);
		assert_int_equal(r + b.result, -EEXIST);
	} else if (b.ran && warm) {
		assert_int_equal(r, 0);
		assert_int_equal(b.result, 0);
	} else if (b.ran && a_who != b_who) {
		assert_true((r == 0) + (b.result == 0) <= 1); /* its temporary may be removed */
	}
	if (b.ran) {
		again_a = append(a, 1, a_who);
		again_b = append(b.log, 1, b_who);
		s = (struct seen){ .watch = 1 };
		assert_int_equal(a->ops->scan(a, see, &s, NULL), 0);
		assert_int_equal(s.count, 2);
		assert_int_equal(again_a, s.who == a_who ? 0 : -EEXIST);
		assert_int_equal(again_b, s.who == b_who ? 0 : -EEXIST);
		assert_true(r != 0 || s.who == a_who); /* who was told success has it */
		assert_true(b.result != 0 || s.who == b_who);
	}
	a->ops->close(a);
	b.log->ops->close(b.log);
	return b.ran;
}

static void test_race_has_one_winner(void **state)
{
	unsigned points = 0;

	(void)state;
	for (int warm = 0; warm < 2; warm++) {
		for (uint64_t b_who = 1; b_who < 3; b_who++) {
			bool ran = true;

			for (unsigned at = 1; ran; at++) {
				ran = race(at, warm, 1, b_who);
				points += ran;
				test_disk_fini(&disk);
				test_disk_init(&disk);
			}
		}
	}
	printf("races: %u\n", points);
	assert_true(points >= 24);
}

/* ---- Sweep: each operation fails in turn ---- */

enum aftermath { GO_ON, REOPEN, LOSE_ALL, LOSE_NOTHING, LOSE_SOME, AFTERMATHS };

struct run {
	struct joblog *log;
	uint64_t acked;   /* records [0, acked) were acknowledged */
	uint64_t tried;   /* records [0, tried) were tried */
	bool trim_tried, trimmed;
	enum aftermath aftermath;
};

enum { STEPS = LAST + 4 }; /* open; 0..TRIM; trim; the rest; scan */

static int do_step(struct run *w, unsigned step)
{
	int r;

	if (step == 0)
		return w->log ? 0 : joblog_single_open(&disk.disk, DIR, &w->log, NULL);
	if (step == TRIM + 2) {
		w->trim_tried = true;
		r = w->log->ops->trim(w->log, TRIM);
		w->trimmed = w->trimmed || r == 0;
		return r;
	}
	if (step == STEPS - 1) {
		struct seen s = { 0 };

		return w->log->ops->scan(w->log, see, &s, NULL);
	}
	step -= step < TRIM + 2 ? 1 : 2;
	w->tried = step + 1;
	r = append(w->log, step, 0);
	if (r == 0)
		w->acked = step + 1;
	return r;
}

static void verify(struct run *w)
{
	struct seen s = scan(w->log);

	if (w->trimmed)
		assert_int_equal(s.first, TRIM);
	else
		assert_true(s.first == 0 || (s.first == TRIM && w->trim_tried));
	assert_true(s.first + s.count >= w->acked); /* nothing acknowledged is lost */
	assert_true(s.first + s.count <= w->tried);
}

static void survive(struct run *w)
{
	test_disk_fail(&disk, 0, false, FAIL_BEFORE);
	if (w->aftermath != GO_ON) {
		if (w->log)
			w->log->ops->close(w->log);
		w->log = NULL;
		if (w->aftermath != REOPEN)
			test_disk_power_loss(&disk, w->aftermath == LOSE_ALL	 ? 0 :
						    w->aftermath == LOSE_NOTHING ? 1 :
										   2);
	}
	if (!w->log)
		w->log = open_log();
	verify(w);
}

/* Returns whether the fault fired. */
static bool sweep_one(unsigned at, bool persistent, enum test_disk_fault fault,
		      enum aftermath aftermath)
{
	struct run w = { .aftermath = aftermath };
	bool fired = false;

	test_disk_init(&disk);
	disk.seed = 31 * at + aftermath;
	test_disk_fail(&disk, at, persistent, fault);
	for (unsigned step = 0; step < STEPS; step++) {
		if (do_step(&w, step) == 0)
			continue;
		assert_true(disk.fired);
		fired = true;
		survive(&w);
		assert_int_equal(do_step(&w, step), 0); /* the repeat succeeds */
	}
	fired = fired || disk.fired; /* a fault that nobody was told of must be harmless */
	survive(&w);
	assert_int_equal(w.acked, LAST + 1);
	assert_int_equal(scan(w.log).count, LAST + 1 - TRIM);
	w.log->ops->close(w.log);
	test_disk_fini(&disk);
	return fired;
}

static void test_each_operation_fails(void **state)
{
	unsigned points = 0;

	(void)state;
	test_disk_fini(&disk);
	for (int fault = FAIL_BEFORE; fault <= FAIL_AFTER; fault++) {
		for (int persistent = 0; persistent < 2; persistent++) {
			for (int a = GO_ON; a < AFTERMATHS; a++) {
				unsigned at = 1;

				while (sweep_one(at, persistent, (enum test_disk_fault)fault,
						 (enum aftermath)a))
					at++;
				points += at - 1;
			}
		}
	}
	printf("operations made to fail: %u\n", points);
	assert_true(points >= 1200);
	test_disk_init(&disk);
}

/* ---- Named fault points, planted bug ---- */

#ifdef CKPT_FAULTS
static void die(void *arg)
{
	(void)arg;
	test_disk_fail(&disk, 1, true, FAIL_BEFORE); /* nothing is done any more */
}

static void fault_point(enum fault_point p, enum fault_action action, uint64_t at, bool persistent,
			enum aftermath aftermath)
{
	struct run w = { .aftermath = aftermath };

	test_disk_init(&disk);
	disk.seed = 7 * at + p;
	fault_set_kill(die, NULL);
	fault_arm(p, action, at, persistent);
	for (unsigned step = 0; step < STEPS; step++) {
		if (do_step(&w, step) == 0)
			continue;
		fault_arm(p, FAULT_NONE, 0, false);
		survive(&w);
		assert_int_equal(do_step(&w, step), 0);
	}
	fault_arm(p, FAULT_NONE, 0, false);
	survive(&w);
	assert_int_equal(scan(w.log).count, LAST + 1 - TRIM);
	w.log->ops->close(w.log);
	test_disk_fini(&disk);
}

static void test_fault_points(void **state)
{
	static const enum fault_point points[] = {
		FAULT_LOG_TEMP, FAULT_LOG_SYNC, FAULT_LOG_LINK, FAULT_LOG_DIR, FAULT_LOG_TRIM,
	};
	unsigned runs = 0;

	(void)state;
	test_disk_fini(&disk);
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		uint64_t hits = 1;

		for (uint64_t at = 1; at <= hits; at++) {
			for (int a = GO_ON; a < AFTERMATHS; a++) {
				fault_disarm_all();
				fault_point(points[i], FAULT_ERROR, at, false, (enum aftermath)a);
				fault_point(points[i], FAULT_ERROR, at, true, (enum aftermath)a);
				fault_disarm_all();
				if (a != GO_ON) /* nobody goes on after SIGKILL */
					fault_point(points[i], FAULT_KILL, at, false,
						    (enum aftermath)a);
				runs += 3;
			}
			fault_disarm_all();
			fault_point(points[i], FAULT_NONE, 0, false, GO_ON);
			hits = fault_hits(points[i]);
			assert_true(hits > 0);
		}
	}
	printf("runs with a fault point armed: %u\n", runs);
	test_disk_init(&disk);
}

static void test_planted_bug_is_found(void **state)
{
	(void)state;
	for (int on = 0; on < 2; on++) {
		struct joblog *log = log_with(1);

		bug_set(BUG_SKIP_LOG_DIR_SYNC, on);
		assert_int_equal(append(log, 1, 0), 0);
		bug_set(BUG_SKIP_LOG_DIR_SYNC, false);
		log->ops->close(log);
		test_disk_power_loss(&disk, 0);
		log = open_log();
		assert_int_equal(scan(log).count, on ? 1 : 2);
		log->ops->close(log);
		test_disk_fini(&disk);
		test_disk_init(&disk);
	}
}
#endif

/* A record that was found, not written, is made durable before it is handed out. */
static void test_what_is_scanned_is_durable(void **state)
{
	struct joblog *log = log_with(1);

	(void)state;
	test_disk_fail(&disk, 6, true, FAIL_BEFORE); /* the folder's sync */
	assert_int_equal(append(log, 1, 0), -EIO);
	log->ops->close(log);
	test_disk_fail(&disk, 0, false, FAIL_BEFORE);
	log = open_log();
	assert_int_equal(scan(log).count, 2);
	log->ops->close(log);
	test_disk_power_loss(&disk, 0);
	log = open_log();
	assert_int_equal(scan(log).count, 2);
	log->ops->close(log);
}

/* Fails the at-th operation of an append. Its record is then not there and never will be, or the
 * log says that this is not certain. False: the append has fewer operations. */
static bool fails_clearly_or_not(unsigned at, enum test_disk_fault fault, unsigned *ret_clear)
{
	struct seen s = {.watch = 1, .who = 9};
	struct joblog *log;
	bool unclear, fired;
	int r;

	test_disk_fini(&disk);
	test_disk_init(&disk);
	log = log_with(1);
	test_disk_fail(&disk, at, false, fault);
	r = append(log, 1, 0);
	unclear = log->ops->unclear(log);
	fired = disk.fired;
	assert_true(r < 0 || !unclear);
	if (r < 0 && unclear) { /* a failure of the next try does not make it clear */
		test_disk_fail(&disk, 1, true, FAIL_BEFORE);
		assert_true(append(log, 1, 0) < 0);
		assert_true(log->ops->unclear(log));
		test_disk_fail(&disk, 0, false, FAIL_BEFORE);
		assert_int_equal(append(log, 1, 0), 0);
		assert_false(log->ops->unclear(log));
	} else if (r < 0) {
		(*ret_clear)++;
		test_disk_fail(&disk, 0, false, FAIL_BEFORE);
		assert_int_equal(append(log, 1, 1), 0); /* another record takes its place */
		log->ops->close(log);
		test_disk_power_loss(&disk, 0);
		log = open_log();
		assert_int_equal(log->ops->scan(log, see, &s, NULL), 0);
		assert_int_equal(s.count, 2);
		assert_int_equal(s.who, 1);
	}
	log->ops->close(log);
	return fired;
}

static void test_what_failed_is_absent_or_unclear(void **state)
{
	unsigned clear = 0, at;

	(void)state;
	for (int fault = FAIL_BEFORE; fault <= FAIL_AFTER; fault++) {
		for (at = 1; fails_clearly_or_not(at, fault, &clear); at++)
			;
		assert_true(at > 5);
	}
	assert_true(clear >= 6); /* making, writing and syncing the temporary */
}

/*
 * A process dies between making the trim mark and syncing it; the next one, while it removes what
 * the mark took out, loses power. The mark must not be lost alone.
 */
static void test_trim_mark_of_a_dead_process(void **state)
{
	unsigned points = 0;

	(void)state;
	for (unsigned at = 1, fired = 1; fired; at++) {
		for (uint64_t seed = 0; seed < 16; seed++) {
			struct joblog *log = log_with(6);

			test_disk_fail(&disk, 3, true, FAIL_BEFORE); /* after open, open */
			assert_int_equal(log->ops->trim(log, 5), -EIO);
			log->ops->close(log);
			test_disk_fail(&disk, 0, false, FAIL_BEFORE);
			assert_int_equal(test_disk_count(&disk, DIR, "trim-"), 1);
			log = open_log();
			test_disk_fail(&disk, at, true, FAIL_BEFORE);
			ignore_result(append(log, 6, 0)); /* fails somewhere, or not */
			fired = disk.fired;
			points += fired;
			log->ops->close(log);
			test_disk_fail(&disk, 0, false, FAIL_BEFORE);
			disk.seed = 977 * at + seed;
			test_disk_power_loss(&disk, 2);
			log = open_log();
			scan(log);
			log->ops->close(log);
			test_disk_fini(&disk);
			test_disk_init(&disk);
		}
	}
	assert_true(points >= 16 * 10);
}

static void test_open_makes_names_durable(void **state)
{
	struct joblog *log = log_with(1);

	(void)state;
	log->ops->close(log);
	test_disk_power_loss(&disk, 0);
	log = open_log();
	assert_int_equal(scan(log).count, 1);
	log->ops->close(log);
}

static void test_open_refuses_long_paths(void **state)
{
	char dir[DISK_PATH_MAX + 1];
	struct joblog *log = NULL;
	struct err e = { 0 };

	(void)state;
	memset(dir, 'd', sizeof(dir));
	dir[DISK_PATH_MAX - 5] = '\0';
	assert_int_equal(joblog_single_open(&disk.disk, dir, &log, &e), -ENAMETOOLONG);
	assert_null(log);
}

#ifdef CKPT_FAULTS
static void test_allocations_fail(void **state)
{
	int failures = 0;

	(void)state;
	for (uint64_t at = 1;; at++) {
		struct joblog *log = NULL;
		struct err e = { 0 };
		int r;

		alloc_fail_at(at, false);
		r = joblog_single_open(&disk.disk, DIR, &log, &e);
		if (r == 0) {
			struct seen s = { 0 };

			assert_int_equal(append(log, 0, 0), 0);
			r = log->ops->scan(log, see, &s, &e); /* its buffer is as long as needed */
			log->ops->close(log);
		}
		if (!alloc_fired())
			break;
		assert_int_equal(r, -ENOMEM);
		failures++;
	}
	alloc_fail_at(0, false);
	assert_int_equal(failures, 2);
}
#endif

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_records_come_back_in_order),
		T(test_append_is_few_operations),
		T(test_append_twice_and_another),
		T(test_append_leaves_no_gap_and_is_bounded),
		T(test_the_last_number), T(test_a_rival_is_seen),
		T(test_scan_ends_when_told),
		T(test_trim),
		T(test_trim_beside_a_reader),
		T(test_readers_leave_temporaries),
		T(test_temporaries_run_out),
		T(test_damage_is_named),
		T(test_other_names_are_ignored),
		T(test_race_has_one_winner),
		T(test_each_operation_fails),
#ifdef CKPT_FAULTS
		T(test_fault_points),
		T(test_planted_bug_is_found),
		T(test_allocations_fail),
#endif
		T(test_what_is_scanned_is_durable),
		T(test_what_failed_is_absent_or_unclear),
		T(test_trim_mark_of_a_dead_process),
		T(test_open_makes_names_durable),
		T(test_open_refuses_long_paths),
	};

	return cmocka_run_group_tests_name("coord/single", tests, NULL, NULL);
}
