/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_full.c - one node whose disk has no room, whose log cannot be written, or that is told to
 * stop: training goes on, nothing is promised that is not so, and all of it is made good later.
 */
#include <config.h>

#include "base/fault.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "coord/record.h"

#define RESERVE (64ull << 20)

struct job_rig {
	struct world w;
	struct node_options o;
	struct rank a;
};

static void begin(struct job_rig *j)
{
	uint64_t base;

	disk_is_good(); /* also where the test before this one failed */
	j->w = (struct world){.dir = test_dir_make(NULL)};
	snprintf(j->w.socket, sizeof(j->w.socket), "%s/sock", j->w.dir);
	start(&j->w, "threads", &j->o);
	connect_rank(&j->w, &j->a);
	assert_int_equal(open_rank(&j->a, 0, 1, "run1", &base), 0);
	declare_rank(&j->a, 0, 1);
	prepare_rank(&j->a);
}

static void end(struct job_rig *j)
{
	close(j->a.fd);
	stop(&j->w);
	disk_is_good();
}

static void connect_after_start(struct job_rig *j)
{
	start(&j->w, "threads", &j->o);
	connect_rank(&j->w, &j->a);
}

/* Memory is lost; the base must be what was durable last. */
static void begin_again(struct job_rig *j, uint64_t want)
{
	uint64_t base;

	connect_after_start(j);
	assert_int_equal(open_rank(&j->a, 0, 1, "run2", &base), 0);
	assert_int_equal(base, want);
}

static void end_for_good(struct job_rig *j)
{
	end(j);
	test_dir_remove(j->w.dir);
}

/* ---- A full disk ---- */

static void test_reserve_is_kept(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	j.o.disk_reserve = RESERVE;
	begin(&j);
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), 0);
	/* Who waits is told at once, and saves go on, more of them than there are slots. */
	pretended_room = RESERVE;
	for (uint64_t step = 20; step <= 80; step += 10) {
		assert_int_equal(save_rank(&j.a, 0, step), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_COMMITTED), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_DURABLE), CKPT_ENOSPACE);
	}
	/* Nobody need save or ask for the newest to be written once there is room. */
	pretended_room = UINT64_MAX;
	for (int i = 0; i < TURNS_MAX && count_files(&j.w, "jobs/*/80.*/COMMIT") == 0; i++)
		loop_epoll_turn(j.w.loop, 10000000);
	assert_int_equal(wait_rank(&j.a, 80, CKPT_DURABLE), 0);
	end_for_good(&j);
}

/* keep_last checkpoints of all ranks and the next one, beside the reserve. */
static void test_prepare_counts_the_job(void **state)
{
	struct job_rig j = {0};
	struct rank b;
	uint64_t base, one = ELEMENTS * 4ull + 32768;

	(void)state;
	node_options_default(&j.o);
	j.o.disk_reserve = RESERVE;
	j.o.retention.keep_last = 2;
	disk_is_good();
	j.w = (struct world){.dir = test_dir_make(NULL)};
	snprintf(j.w.socket, sizeof(j.w.socket), "%s/sock", j.w.dir);
	connect_after_start(&j);
	connect_rank(&j.w, &b);
	assert_int_equal(open_rank(&j.a, 0, 2, "run1", &base), 0);
	assert_int_equal(open_rank(&b, 1, 2, "run1", &base), 0);
	pretended_room = RESERVE + 4 * one;
	declare_rank(&j.a, 0, 2);
	prepare_rank(&j.a); /* of the other one nothing is known yet */
	declare_rank(&b, 1, 2);
	assert_int_equal(try_prepare(&b), CKPT_ENOSPACE);
	pretended_room = RESERVE + 6 * one;
	prepare_rank(&b);
	pretended_room = UINT64_MAX;
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(save_rank(&b, 1, 10), 0);
	assert_int_equal(wait_rank(&b, 10, CKPT_DURABLE), 0);
	close(b.fd);
	end_for_good(&j);
}

#define PAIR_ELEMENTS 1000000u
#define PAIR_BYTES    (PAIR_ELEMENTS * 4ull)
/* Of one checkpoint of two ranks: leaves with blobs, leaves that both write, what describes them.
 */
#define PAIR_MORE (PAIR_BYTES / 8)

/* Two ranks of a job, which declare the same or each its own. */
static void open_pair(struct job_rig *j, struct rank *b, const char *run, bool alike)
{
	uint64_t base;

	connect_after_start(j);
	connect_rank(&j->w, b);
	assert_int_equal(open_rank(&j->a, 0, 2, run, &base), 0);
	assert_int_equal(open_rank(b, 1, 2, run, &base), 0);
	declare_elements(&j->a, 0, alike ? 1 : 2, PAIR_ELEMENTS);
	declare_elements(b, alike ? 0 : 1, alike ? 1 : 2, PAIR_ELEMENTS);
}

static void begin_pair(struct job_rig *j, struct rank *b, bool dedup, bool alike)
{
	node_options_default(&j->o);
	j->o.disk_reserve = RESERVE;
	j->o.retention.keep_last = 2;
	j->o.dedup = dedup;
	disk_is_good();
	j->w = (struct world){.dir = test_dir_make(NULL)};
	snprintf(j->w.socket, sizeof(j->w.socket), "%s/sock", j->w.dir);
	open_pair(j, b, "run1", alike);
}

/* What the ranks of a data-parallel job hold alike is written once, and counted once. */
static void test_prepare_counts_replicas_once(void **state)
{
	struct job_rig j = {0};
	struct rank b;

	(void)state;
	begin_pair(&j, &b, true, true);
	pretended_room = RESERVE + 3 * PAIR_BYTES - 1;
	assert_int_equal(try_prepare(&j.a), CKPT_ENOSPACE);
	pretended_room = RESERVE + 3 * (PAIR_BYTES + PAIR_MORE);
	prepare_rank(&j.a);
	prepare_rank(&b);
	/* No more is written than was asked for. */
	pretended_room = UINT64_MAX;
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(save_rank(&b, 0, 10), 0);
	assert_int_equal(wait_rank(&b, 10, CKPT_DURABLE), 0);
	assert_in_range(file_bytes(&j.w, "jobs/*/10.*/rank-*"), PAIR_BYTES, PAIR_BYTES + PAIR_MORE);
	close(b.fd);
	end(&j);
	/* It holds one of the three, though its two images are two. */
	open_pair(&j, &b, "run2", true);
	pretended_room = RESERVE + 3 * PAIR_BYTES / 2;
	assert_int_equal(try_prepare(&j.a), CKPT_ENOSPACE);
	pretended_room = RESERVE + 2 * PAIR_BYTES + 3 * PAIR_MORE;
	prepare_rank(&j.a);
	prepare_rank(&b);
	close(b.fd);
	end_for_good(&j);
}

static void expect_all_copies(bool dedup, bool alike)
{
	struct job_rig j = {0};
	struct rank b;

	begin_pair(&j, &b, dedup, alike);
	pretended_room = RESERVE + 6 * PAIR_BYTES - 1;
	assert_int_equal(try_prepare(&j.a), CKPT_ENOSPACE);
	assert_non_null(strstr(j.a.text, "3 checkpoints of the ranks that have declared need 24 "));
	assert_non_null(strstr(j.a.text, "disk, 86 MiB are free and 64 MiB stay free"));
	pretended_room = RESERVE + 6 * (PAIR_BYTES + PAIR_MORE);
	prepare_rank(&j.a);
	prepare_rank(&b);
	close(b.fd);
	end_for_good(&j);
}

static void test_prepare_counts_all_copies(void **state)
{
	(void)state;
	expect_all_copies(false, true);
	expect_all_copies(true, false);
}

/* A job that cannot be made leaves nothing, nor in memory: who opens it tries again and again. */
static void test_open_on_a_full_disk(void **state)
{
	struct job_rig j = {0};
	uint64_t base;

	(void)state;
	node_options_default(&j.o);
	disk_is_good();
	j.w = (struct world){.dir = test_dir_make(NULL)};
	snprintf(j.w.socket, sizeof(j.w.socket), "%s/sock", j.w.dir);
	connect_after_start(&j);
	token_error = -ENOSPC;
	for (int i = 0; i < 3; i++)
		assert_int_equal(open_rank(&j.a, 0, 1, "run1", &base), -ENOSPC);
	assert_int_equal(count_files(&j.w, "jobs/*"), 0);
	for (int i = 0; i < 10; i++)
		loop_epoll_turn(j.w.loop, 1000000);
	assert_true(list_empty(&j.w.node->failed_jobs));
	token_error = 0;
	assert_int_equal(open_rank(&j.a, 0, 1, "run1", &base), 0);
	end_for_good(&j);
}

/* Spare files give way to records as well. */
static void test_log_gets_the_room_of_spare_files(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	j.o.retention.keep_last = 1;
	j.o.persist_every = 100; /* nor is a spare file taken for a checkpoint */
	begin(&j);
	for (uint64_t step = 10; step <= 20; step += 10) {
		assert_int_equal(save_rank(&j.a, 0, step), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_DURABLE), 0);
	}
	for (int i = 0; i < TURNS_MAX && count_files(&j.w, "spare/*") == 0; i++)
		loop_epoll_turn(j.w.loop, 10000000);
	log_wants_spare = true;
	assert_int_equal(save_rank(&j.a, 0, 30), 0);
	assert_int_equal(wait_rank(&j.a, 30, CKPT_COMMITTED), 0);
	end_for_good(&j);
}

/* ---- A log that cannot be written ---- */

static void test_saves_go_on_without_the_log(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), 0);
	log_error = -ENOSPC;
	for (uint64_t step = 20; step <= 90; step += 10)
		assert_int_equal(save_rank(&j.a, 0, step), 0);
	/* What had to give way is said to be aborted; what is on its way is not said to be there.
	 */
	assert_int_equal(wait_rank(&j.a, 20, CKPT_COMMITTED), CKPT_EABORTED);
	assert_int_equal(count_files(&j.w, "jobs/*/90.*/COMMIT"), 0);
	load_rank_at(&j.a, 0, 10, CKPT_TIER_MEMORY, 10);
	/* Nobody need do anything for the newest to be committed once the log can be written. */
	log_error = 0;
	assert_int_equal(wait_rank(&j.a, 90, CKPT_DURABLE), 0);
	assert_int_equal(wait_rank(&j.a, 60, CKPT_COMMITTED), CKPT_EABORTED);
	assert_int_equal(save_rank(&j.a, 0, 100), 0);
	assert_int_equal(wait_rank(&j.a, 100, CKPT_DURABLE), 0);
	end(&j);
	/* The log is whole, and says the same after a start. */
	begin_again(&j, 100);
	end_for_good(&j);
}

/* Its record has its name and may be there after a loss of power, or not: its bytes stay. */
static void test_what_may_be_in_the_log_stays(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), 0);
	log_sync_error = -EIO;
	assert_int_equal(save_rank(&j.a, 0, 20), 0);
	assert_int_equal(save_rank(&j.a, 0, 30), 0);
	for (int i = 0; i < 100; i++)
		loop_epoll_turn(j.w.loop, 10000000);
	assert_int_equal(j.a.page->credit, j.a.used_credit); /* three slots are taken */
	log_sync_error = 0;
	assert_int_equal(wait_rank(&j.a, 20, CKPT_COMMITTED), 0);
	assert_int_equal(wait_rank(&j.a, 30, CKPT_DURABLE), 0);
	end(&j);
	begin_again(&j, 30);
	end_for_good(&j);
}

#ifdef CKPT_FAULTS
/* Not even the record that ckptd leads the log can be made: what waits for it is refused. */
static void test_records_that_cannot_be_made(void **state)
{
	struct job_rig j = {0};
	uint64_t base;

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	end(&j);
	connect_after_start(&j);
	fault_arm(FAULT_LOG_ENCODE, FAULT_ERROR, 1, true);
	assert_int_equal(open_rank(&j.a, 0, 1, "run2", &base), -ENOMEM);
	fault_disarm_all();
	assert_int_equal(open_rank(&j.a, 0, 1, "run2", &base), 0);
	end_for_good(&j);
}

static bool has_credit(struct job_rig *j, int turns)
{
	for (int i = 0; i < turns && j->a.page->credit == j->a.used_credit; i++)
		loop_epoll_turn(j->w.loop, 1000000);
	return j->a.page->credit != j->a.used_credit;
}

/* A slot of which the ledger could not say that it is empty is used again once it can. */
static void test_slots_that_could_not_be_emptied(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Credit credit = CKPT__CREDIT__INIT;
	struct job_rig j = {0};
	uint64_t step = 0;

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	fault_arm(FAULT_SLOT_EMPTIED, FAULT_ERROR, 1, true);
	while (has_credit(&j, 200)) {
		assert_in_range(step += 10, 10, 50);
		assert_int_equal(save_rank(&j.a, 0, step), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_DURABLE), 0);
	}
	fault_disarm_all();
	q.body_case = CKPT__REQUEST__BODY_CREDIT;
	q.credit = &credit;
	send_request(&j.a, &q);
	assert_true(has_credit(&j, 1000));
	close(j.a.fd);
	stop(&j.w);
	test_dir_remove(j.w.dir);
}
#endif

/* ---- A log that grows ---- */

/* A word of ckptctl about one step; the answer's JSON is for the caller to free. */
static char *admin(struct rank *k, int verb, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	Ckpt__Reply *r;
	char *json = NULL;
	int fds[64];
	size_t n;

	m.verb = verb;
	m.job = (char *)"job";
	m.step = step;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	r = ask(k, &q, fds, &n);
	if (r->code)
		fail_msg("%s", r->text);
	if (n > 0) { /* it is long */
		off_t len = lseek(fds[0], 0, SEEK_END);

		json = calloc(1, (size_t)len + 1);
		assert_int_equal(pread(fds[0], json, (size_t)len, 0), len);
		close(fds[0]);
	} else if (r->admin) {
		json = strndup((char *)r->admin->json.data, r->admin->json.len);
	}
	ckpt__reply__free_unpacked(r, NULL);
	return json;
}

static void test_log_is_trimmed_without_commits(void **state)
{
	struct job_rig j = {0};
	uint64_t base;
	char run[16];

	(void)state;
	node_options_default(&j.o);
	j.o.log_trim = 8;
	begin(&j);
	for (int i = 2; i < 40; i++) {
		close(j.a.fd);
		connect_rank(&j.w, &j.a);
		snprintf(run, sizeof(run), "run%d", i);
		assert_int_equal(open_rank(&j.a, 0, 1, run, &base), 0);
	}
	for (int i = 0; i < 100; i++) /* the last trim may be under way */
		loop_epoll_turn(j.w.loop, 1000000);
	assert_true(count_files(&j.w, "jobs/*/log/0*") <= 12);
	end(&j);
	connect_after_start(&j);
	assert_int_equal(open_rank(&j.a, 0, 1, "run38", &base), CKPT_EEPOCH);
	assert_int_equal(open_rank(&j.a, 0, 1, "run40", &base), 0);
	end_for_good(&j);
}

/* What does not fit into one sum is said, not found out by who wonders why starts are slow. */
static void test_too_much_for_a_sum(void **state)
{
	struct job_rig j = {0};
	char *text;

	(void)state;
	node_options_default(&j.o);
	j.o.persist_every = 1000;
	j.o.log_trim = 50;
	begin(&j);
	for (uint64_t step = 1; step <= HISTORY_COMMITS_MAX + 60; step++) {
		assert_int_equal(save_rank(&j.a, 0, step), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_COMMITTED), 0);
		free(admin(&j.a, CKPT__ADMIN__VERB__PIN, step));
	}
	text = admin(&j.a, CKPT__ADMIN__VERB__STATUS, 0);
	assert_non_null(strstr(text, "more than 300"));
	free(text);
	assert_true(count_files(&j.w, "jobs/*/log/0*") > 100);
	end(&j);
	/* All of it can still be read; and what memory alone held is gone. */
	connect_after_start(&j);
	text = admin(&j.a, CKPT__ADMIN__VERB__STATUS, 0);
	assert_non_null(strstr(text, "\"log_error\":\"\""));
	free(text);
	end_for_good(&j);
}

/* ---- Memory that goes bad before it is on disk ---- */

/* Loads a step and says that the first leaf of its first source does not match. */
static void report_leaf(struct rank *k, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load l = CKPT__LOAD__INIT;
	Ckpt__LoadEnd end = CKPT__LOAD_END__INIT;
	Ckpt__Reply *r;
	int fds[64];
	size_t n;

	l.step = step;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &l;
	r = ask(k, &q, fds, &n);
	assert_int_equal(r->code, 0);
	while (n > 0)
		close(fds[--n]);
	end.load = r->load->load;
	end.failed = true;
	ckpt__reply__free_unpacked(r, NULL);
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &end;
	ask_ok(k, &q);
}

static void test_damaged_before_durable(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	j.o.persist_every = 100;
	begin(&j);
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_COMMITTED), 0);
	for (size_t i = 0; i < j.a.n_slots; i++)
		j.a.slots[i][0] ^= 1;
	report_leaf(&j.a, 10);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), CKPT_ELOST);
	/* The next one has nothing to do with it. */
	assert_int_equal(save_rank(&j.a, 0, 20), 0);
	assert_int_equal(wait_rank(&j.a, 20, CKPT_DURABLE), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), CKPT_ESUPERSEDED);
	end_for_good(&j);
}

/* ---- Pins ---- */

static char *pin_text(struct rank *k, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	Ckpt__Reply *r;
	char *text;
	int fds[64];
	size_t n;

	m.verb = CKPT__ADMIN__VERB__PIN;
	m.job = (char *)"job";
	m.step = step;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	r = ask(k, &q, fds, &n);
	assert_int_equal(r->code, 0);
	text = strdup(r->text);
	ckpt__reply__free_unpacked(r, NULL);
	return text;
}

/* Whatever else policy would write, and however many newer ones there are. */
static void test_pin_is_written(void **state)
{
	struct job_rig j = {0};
	char *text;

	(void)state;
	node_options_default(&j.o);
	j.o.persist_every = 1000;
	begin(&j);
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_COMMITTED), 0);
	text = pin_text(&j.a, 10);
	assert_non_null(strstr(text, "is being written"));
	free(text);
	for (uint64_t step = 20; step <= 90; step += 10) {
		assert_int_equal(save_rank(&j.a, 0, step), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_COMMITTED), 0);
	}
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), 0);
	load_rank_at(&j.a, 0, 10, CKPT_TIER_DISK, 10);
	text = pin_text(&j.a, 10);
	assert_string_equal(text, "");
	free(text);
	end_for_good(&j);
}

/* It waits its turn behind the one being written, and newer ones that are wanted wait for it. */
static void test_pin_keeps_its_place(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	pretended_room = 0;
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), CKPT_ENOSPACE);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_COMMITTED), 0);
	free(pin_text(&j.a, 10));
	/* There is a slot for it as long as it is not the last one. */
	assert_int_equal(save_rank(&j.a, 0, 20), 0);
	assert_int_equal(wait_rank(&j.a, 20, CKPT_DURABLE), CKPT_ENOSPACE);
	load_rank_at(&j.a, 0, 10, CKPT_TIER_MEMORY, 10);
	pretended_room = UINT64_MAX;
	for (int i = 0; i < TURNS_MAX && count_files(&j.w, "jobs/*/20.*/COMMIT") == 0; i++)
		loop_epoll_turn(j.w.loop, 10000000);
	assert_int_equal(count_files(&j.w, "jobs/*/10.*/COMMIT"), 1);
	end_for_good(&j);
}

/* Training goes on where it cannot be written: it gives way, and that is said. */
static void test_pin_gives_way(void **state)
{
	struct job_rig j = {0};

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	shard_error = -EIO;
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), CKPT_EIO);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_COMMITTED), 0);
	free(pin_text(&j.a, 10));
	for (uint64_t step = 20; step <= 90; step += 10) {
		assert_int_equal(save_rank(&j.a, 0, step), 0);
		assert_int_equal(wait_rank(&j.a, step, CKPT_COMMITTED), 0);
	}
	assert_true(wait_rank(&j.a, 10, CKPT_DURABLE) < 0);
	assert_true(was_told("step 10 was pinned and is lost"));
	end_for_good(&j);
}

/* ---- An orderly stop ---- */

static void on_stopped(void *arg)
{
	*(bool *)arg = true;
}

static bool turn_until(struct job_rig *j, const bool *what, int turns)
{
	for (int i = 0; i < turns && !*what; i++)
		loop_epoll_turn(j->w.loop, 10000000);
	return *what;
}

static void test_stop_writes_what_was_sealed(void **state)
{
	struct job_rig j = {0};
	bool stopped = false;

	(void)state;
	node_options_default(&j.o);
	j.o.persist_every = 100;
	begin(&j);
	log_error = -EIO;
	assert_int_equal(save_rank(&j.a, 0, 10), 0); /* cannot be COMMITTED yet */
	turn_until(&j, &stopped, 50);
	node_stop(j.w.node, 60000000000u, on_stopped, &stopped);
	assert_false(turn_until(&j, &stopped, 50));
	log_error = 0;
	assert_true(turn_until(&j, &stopped, TURNS_MAX));
	end(&j);
	begin_again(&j, 10);
	end_for_good(&j);
}

/* What was given up is tried once more: it would be lost. */
static void test_stop_tries_again(void **state)
{
	struct job_rig j = {0};
	bool stopped = false;

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	shard_error = -EIO;
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	assert_int_equal(wait_rank(&j.a, 10, CKPT_DURABLE), CKPT_EIO);
	shard_error = 0;
	node_stop(j.w.node, 60000000000u, on_stopped, &stopped);
	assert_true(turn_until(&j, &stopped, TURNS_MAX));
	end(&j);
	begin_again(&j, 10);
	/* It waits for nothing that cannot be had: not for what has failed again, nor for longer
	 * than it was told. */
	declare_rank(&j.a, 0, 1);
	prepare_rank(&j.a);
	load_rank(&j.a, 0, 10, CKPT_TIER_DISK);
	shard_error = -EIO;
	assert_int_equal(save_rank(&j.a, 0, 20), 0);
	assert_int_equal(wait_rank(&j.a, 20, CKPT_COMMITTED), 0);
	stopped = false;
	node_stop(j.w.node, 3600000000000u, on_stopped, &stopped);
	assert_true(turn_until(&j, &stopped, TURNS_MAX));
	end_for_good(&j);
}

/* What it could not write is said, of each job once, with why. */
static void test_stop_says_what_is_lost(void **state)
{
	struct job_rig j = {0};
	bool stopped = false;

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	assert_int_equal(node_stop_lost(j.w.node, "at all"), 0);
	shard_error = -EIO;
	assert_int_equal(save_rank(&j.a, 0, 7), 0);
	assert_int_equal(wait_rank(&j.a, 7, CKPT_COMMITTED), 0);
	node_stop(j.w.node, 3600000000000u, on_stopped, &stopped);
	assert_true(turn_until(&j, &stopped, TURNS_MAX));
	assert_int_equal(node_stop_lost(j.w.node, "at all"), 1);
	assert_true(was_told("3 job 'job': step 7 is committed and is lost with this stop"));
	assert_true(was_told("could not be written: cannot begin "));
	end_for_good(&j);
}

static void test_stop_is_bounded(void **state)
{
	struct job_rig j = {0};
	bool stopped = false;

	(void)state;
	node_options_default(&j.o);
	begin(&j);
	log_error = -EIO;
	assert_int_equal(save_rank(&j.a, 0, 10), 0);
	node_stop(j.w.node, 100000000u, on_stopped, &stopped);
	assert_true(turn_until(&j, &stopped, TURNS_MAX));
	assert_int_equal(node_stop_lost(j.w.node, "within a moment"), 0);
	assert_true(was_told("3 job 'job': step 10 was saved by every rank and could not be "
			     "committed within a moment: "));
	end_for_good(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reserve_is_kept),
		cmocka_unit_test(test_prepare_counts_the_job),
		cmocka_unit_test(test_prepare_counts_replicas_once),
		cmocka_unit_test(test_prepare_counts_all_copies),
		cmocka_unit_test(test_open_on_a_full_disk),
		cmocka_unit_test(test_log_gets_the_room_of_spare_files),
		cmocka_unit_test(test_saves_go_on_without_the_log),
		cmocka_unit_test(test_what_may_be_in_the_log_stays),
#ifdef CKPT_FAULTS
		cmocka_unit_test(test_records_that_cannot_be_made),
		cmocka_unit_test(test_slots_that_could_not_be_emptied),
#endif
		cmocka_unit_test(test_log_is_trimmed_without_commits),
		cmocka_unit_test(test_too_much_for_a_sum),
		cmocka_unit_test(test_damaged_before_durable),
		cmocka_unit_test(test_pin_is_written),
		cmocka_unit_test(test_pin_keeps_its_place),
		cmocka_unit_test(test_pin_gives_way),
		cmocka_unit_test(test_stop_writes_what_was_sealed),
		cmocka_unit_test(test_stop_tries_again),
		cmocka_unit_test(test_stop_says_what_is_lost),
		cmocka_unit_test(test_stop_is_bounded),
	};

	return cmocka_run_group_tests_name("full", tests, NULL, NULL);
}
