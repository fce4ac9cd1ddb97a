/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_simlog.c - the real log of a job (coord/single.c) on the simulated disk.
 *
 * Several lives of one writer append and trim until they are killed, some of the kills being power
 * losses, with I/O errors in between. The oracle knows what was acknowledged:
 *   - a record whose append returned 0, or that a scan handed out, is there ever after, with the
 *     same bytes, unless it was trimmed;
 *   - a record that was never acknowledged is not there or has the bytes of the newest try;
 *   - records stand without a gap; whatever else a scan says is an error of the disk.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "coord/single.h"
#include "tests/lib/test.h"
#include "tests/sim/disk.h"
#include "tests/sim/life.h"

#define RECORDS_MAX 200
#define BYTES_MAX 300

struct writer {
	struct world *w;
	struct disk *disk;
	bool acked[RECORDS_MAX];
	uint64_t content[RECORDS_MAX]; /* seed of the newest bytes tried; 0: none */
	uint64_t first, trim_tried;    /* trimmed for sure; trimmed at most */
	uint64_t next;                 /* as the last scan said */
	uint64_t scans, appends;
	const char *wrong;
};

static size_t record_bytes(uint64_t content, uint8_t *ret)
{
	size_t len = 1 + (size_t)(content % BYTES_MAX);

	test_fill(ret, len, content);
	return len;
}

static int see_record(void *arg, uint64_t n, const void *bytes, size_t len)
{
	struct writer *x = arg;
	uint8_t want[BYTES_MAX];
	bool begins = x->next == UINT64_MAX;

	if (begins && (n < x->first || n > x->trim_tried))
		x->wrong = "the log begins where it must not";
	if (!begins && n != x->next)
		x->wrong = "the log has a gap";
	if (n >= RECORDS_MAX || x->content[n] == 0 || record_bytes(x->content[n], want) != len ||
	    memcmp(want, bytes, len) != 0)
		x->wrong = "a record has bytes that nobody gave it";
	x->next = n + 1;
	return x->wrong ? 1 : 0;
}

/* Whether the log could be read. */
static bool scan(struct writer *x, struct joblog *log)
{
	struct err e = { 0 };
	int r;

	x->next = UINT64_MAX;
	r = log->ops->scan(log, see_record, x, &e);
	if (r == CKPT_ECORRUPT)
		x->wrong = "an undamaged log is called damaged";
	if (r != 0)
		return false;
	if (x->next == UINT64_MAX)
		x->next = 0;
	for (uint64_t n = x->next; n < RECORDS_MAX; n++) {
		if (x->acked[n])
			x->wrong = "a record that was acknowledged is gone";
		x->content[n] = 0; /* that try is over: the next one may be another */
	}
	for (uint64_t n = 0; n < x->next; n++)
		x->acked[n] = true; /* whoever reads a record acts on it */
	x->scans++;
	return true;
}

static void append(struct writer *x, struct joblog *log)
{
	uint8_t bytes[BYTES_MAX];
	uint64_t n = x->next;
	size_t len;

	if (x->content[n] == 0)
		x->content[n] = 1 + world_random(x->w, 1u << 30);
	len = record_bytes(x->content[n], bytes);
	if (log->ops->append(log, n, bytes, len, NULL) != 0)
		return; /* unknown: the same again */
	x->acked[n] = true;
	x->next++;
	x->appends++;
}

static void trim(struct writer *x, struct joblog *log)
{
	uint64_t n = x->next - 1; /* it sums up what is before it */

	if (n > x->trim_tried)
		x->trim_tried = n;
	if (log->ops->trim(log, n) == 0 && n > x->first)
		x->first = n;
}

static void writer_main(void *arg)
{
	struct writer *x = arg;
	struct joblog *log;

	if (joblog_single_open(x->disk, "jobs/1/log", &log, NULL) != 0)
		return;
	if (scan(x, log)) {
		for (int i = 0; i < 30 && x->next < RECORDS_MAX && !x->wrong; i++) {
			if (x->next && world_one_in(x->w, 8))
				trim(x, log);
			else
				append(x, log);
		}
		if (world_one_in(x->w, 2))
			scan(x, log);
	}
	log->ops->close(log);
}

static void live_once(struct writer *x, bool to_the_end)
{
	struct life_options o = { .name = "writer" };
	struct life *l;

	x->w->crash_at_op = to_the_end ? 0 : x->w->ops + 1 + world_random(x->w, 150);
	l = life_start(x->w, &o, writer_main, x);
	world_run(x->w, UINT64_MAX, NULL, NULL);
	assert_int_equal(disk_open_files(x->disk), 0);
	if (l->alive)
		assert_int_equal(life_end(l), 0);
	life_free(l);
	if (world_one_in(x->w, 2))
		disk_power_loss(x->disk);
}

/* One seed; NULL or what was wrong. */
static const char *log_breaks(uint64_t seed, uint64_t *ret_appends, uint64_t *ret_hash)
{
	struct writer x = { .w = world_new(seed) };
	struct disk_options o;
	const char *wrong;

	disk_options_default(&o);
	if (world_one_in(x.w, 2))
		disk_options_atlas(&o, x.w);
	x.disk = disk_sim_new(x.w, &o);
	for (int life = 0; life < 5 && !x.wrong; life++)
		live_once(&x, false);
	memset(disk_sim_options(x.disk)->one_in, 0, sizeof(o.one_in));
	x.scans = 0;
	if (!x.wrong)
		live_once(&x, true);
	if (!x.wrong && x.scans == 0)
		x.wrong = "a log on a good disk cannot be read";
	*ret_appends += x.appends;
	world_note(x.w, "disk", disk_digest(x.disk), x.appends, 0);
	*ret_hash = world_hash(x.w);
	wrong = x.wrong;
	disk_sim_free(x.disk);
	world_free(x.w);
	return wrong;
}

static void test_log_keeps_what_it_acknowledged(void **state)
{
	uint64_t first = test_seed(1), n = test_cap("CKPT_SIM_SEEDS", 1500);
	uint64_t appends = 0, hash, again;

	(void)state;
	for (uint64_t seed = first; seed < first + n; seed++) {
		const char *wrong = log_breaks(seed, &appends, &hash);

		if (wrong)
			fail_msg("seed %llu: %s", (unsigned long long)seed, wrong);
		if (seed % 16)
			continue;
		log_breaks(seed, &appends, &again);
		assert_int_equal(hash, again);
	}
	printf("%llu seeds, %llu records\n", (unsigned long long)n, (unsigned long long)appends);
	assert_true(appends > n * 10);
}

static void test_planted_bug_is_found(void **state)
{
#ifdef CKPT_FAULTS
	uint64_t seed = 1, appends = 0, hash;

	bug_set(BUG_SKIP_LOG_DIR_SYNC, true);
	while (seed <= 500 && !log_breaks(seed, &appends, &hash))
		seed++;
	bug_set(BUG_SKIP_LOG_DIR_SYNC, false);
	printf("SKIP_LOG_DIR_SYNC: found by seed %llu\n", (unsigned long long)seed);
	assert_true(seed <= 500);
#else
	skip();
#endif
	(void)state;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_log_keeps_what_it_acknowledged),
		cmocka_unit_test(test_planted_bug_is_found),
	};
	int r = cmocka_run_group_tests_name("sim log", tests, NULL, NULL);

	fiber_pool_free();
	return r;
}
