/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_users.c - what one user holds of ckptd over all connections, ranks and jobs (ckptd/user.h):
 * at each limit, one above it, after it was given back, and with a limit that is lowered.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckptd/node_priv.h"
#include "proto/session.pb-c.h"
#include "tests/lib/hand.h"
#include "tests/lib/silent_store.h"
#include "tests/lib/small_node.h"
#include "tests/lib/test.h"

#define OK(call)                                                                                   \
	do {                                                                                       \
		if ((call) < 0)                                                                    \
			fail_msg("%s: %s", #call, k->text);                                        \
	} while (0)

static void join(struct small_node *w, struct hand *k, const char *job, uint32_t rank,
		 uint32_t world)
{
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, job, rank, world, "run1"));
	OK(hand_declare(k, SMALL_GEOMETRY, &small_shard, 1));
}

static void fill(void *arg, const struct shard *s, uint8_t *out)
{
	memset(out, *(int *)arg, s->bytes);
}

static int save(struct hand *k, uint64_t step)
{
	int byte = (int)step;

	return hand_save(k, step, fill, &byte, "blob", 4);
}

static void save_durable(struct hand *k, uint64_t step)
{
	OK(save(k, step));
	OK(hand_wait(k, step, CKPT_DURABLE));
}

static uint64_t has(struct small_node *w, enum user_count count)
{
	const struct user *u = user_find(w->host.node, getuid());

	return u ? u->has[count] : 0;
}

static void turn_until(struct small_node *w, enum user_count count, uint64_t want)
{
	for (int i = 0; i < 3000 && has(w, count) != want; i++)
		host_turn(&w->host);
	assert_int_equal(has(w, count), want);
}

static void refused(struct hand *k, int code, int want, const char *key)
{
	char user[32];

	snprintf(user, sizeof(user), "user %u has", (unsigned)getuid());
	if (code != want || !strstr(k->text, key) || !strstr(k->text, user))
		fail_msg("%d: %s", code, k->text);
}

/* Another process has the descriptor too, until it is killed. */
static pid_t held_by_child(int fd)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	while (pid == 0)
		pause();
	assert_true(fcntl(fd, F_GETFD) >= 0);
	return pid;
}

static void kill_child(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- Ranks, jobs, waits ---- */

static void send_wait(struct hand *k, uint64_t step)
{
	OK(hand_send_wait(k, step, CKPT_COMMITTED));
}

static void test_ranks_and_jobs_are_counted(void **state)
{
	struct small_node *w = *state;
	struct hand a, b;

	small_node_start(w);
	assert_int_equal(has(w, USER_JOBS), 0);
	join(w, &a, "one", 0, 2);
	join(w, &b, "one", 1, 2);
	assert_int_equal(has(w, USER_SESSIONS), 2);
	assert_int_equal(has(w, USER_JOBS), 1);
	hand_close(&b);
	join(w, &b, "two", 0, 1);
	assert_int_equal(has(w, USER_SESSIONS), 3); /* a connection's end is not a rank's */
	assert_int_equal(has(w, USER_JOBS), 2);
	hand_close(&a);
	hand_close(&b);
}

enum { OLD_RANKS = 30 };

/* The ranks of the run before leave some in a call of the loop, then the next run begins. */
static void test_an_old_run_leaves_in_slices(void **state)
{
	struct small_node *w = *state;
	struct hand hands[OLD_RANKS], late, *k;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;
	uint64_t before = OLD_RANKS, now, most = 0, id;

	small_node_start(w);
	for (k = hands; k < hands + OLD_RANKS; k++)
		join(w, k, "job", (uint32_t)(k - hands), OLD_RANKS);
	k = &late;
	OK(hand_connect(k, &w->host));
	o.job = (char *)"job";
	o.world = 1;
	o.run_id = (char *)"run2";
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	OK(hand_send(k, &q));
	for (int i = 0; i < 5000 && before > 1; i++, before = now) {
		host_turn(&w->host);
		now = has(w, USER_SESSIONS);
		most = now < before ? max_u64(most, before - now) : most;
	}
	assert_in_range(most, 1, 2 * 8); /* LEAVE_IN_A_CALL; a turn may have some calls */
	OK(hand_receive(k, &id));
	assert_int_equal(has(w, USER_SESSIONS), 1);
	for (k = hands; k < hands + OLD_RANKS; k++)
		hand_close(k);
	hand_close(&late);
}

enum { WAITERS = 8, WAITS_EACH = 60, MANY_CHECKPOINTS = 4000 };

/* How many waits end in one turn of the loop, at most, where all wait for the same; a turn may have
 * some calls. The job also has so many other attempts. */
static uint64_t most_waits_at_once(struct small_node *w, uint64_t others)
{
	struct hand hands[WAITERS], *k;
	uint64_t before, now, most = 0;
	struct attempt_id id = {{0}};
	struct checkpoint *c;
	struct job *j;

	small_node_start(w);
	for (k = hands; k < hands + WAITERS; k++) {
		join(w, k, "job", (uint32_t)(k - hands), WAITERS);
		OK(hand_prepare(k));
	}
	for (k = hands; k < hands + WAITERS - 1; k++)
		OK(save(k, 10));
	for (k = hands; k < hands + WAITERS - 1; k++)
		for (int i = 0; i < WAITS_EACH; i++)
			send_wait(k, 10);
	turn_until(w, USER_WAITS, (WAITERS - 1) * WAITS_EACH);
	j = list_first(&w->host.node->jobs, struct job, link);
	for (uint64_t i = 0; i < others; i++) {
		memcpy(id.b, &i, sizeof(i));
		assert_int_equal(checkpoint_new(j, 1000 + i, j->history.epoch.number, WAITERS, &id,
						&c), 0);
		c->works++; /* so it stays when it is aborted, as no rank has a turn for it */
	}
	k = &hands[WAITERS - 1];
	OK(save(k, 10));
	before = has(w, USER_WAITS);
	assert_int_equal(before, (WAITERS - 1) * WAITS_EACH);
	for (int i = 0; i < 5000 && before > 0; i++, before = now) {
		host_turn(&w->host);
		now = has(w, USER_WAITS);
		most = max_u64(most, before - now);
	}
	assert_int_equal(before, 0);
	list_each(c, &j->checkpoints, link)
		c->works -= c->step >= 1000;
	for (k = hands; k < hands + WAITERS; k++)
		hand_close(k);
	return most;
}

/* Many that wait for the same are not all answered in one call of the loop. */
static void test_many_waits_end_in_slices(void **state)
{
	assert_in_range(most_waits_at_once(*state, 0), 1, 4 * 64); /* ANSWERS_IN_A_CALL */
}

/* Each looks through what the job has, so that there are the fewer. */
static void test_waits_of_a_job_that_has_much(void **state)
{
	assert_in_range(most_waits_at_once(*state, MANY_CHECKPOINTS), 1, 32);
}

static void test_waits_of_a_user(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t id;
	pid_t child;

	w->options.waits_per_uid = 3;
	small_node_start(w);
	join(w, &hands[0], "job", 0, 2);
	join(w, &hands[1], "job", 1, 2);
	k = &hands[1];
	OK(hand_prepare(k));
	k = &hands[0];
	OK(hand_prepare(k));
	OK(save(k, 10));
	send_wait(&hands[0], 10);
	send_wait(&hands[1], 10);
	send_wait(&hands[1], 10);
	turn_until(w, USER_WAITS, 3);
	send_wait(k, 10);
	refused(k, hand_receive(k, &id), -EMFILE, "quota.waits_per_uid");
	assert_int_equal(has(w, USER_WAITS), 3);
	/* Those of a process that is killed are given back. */
	child = held_by_child(hands[1].fd);
	hand_close(&hands[1]);
	host_turn(&w->host);
	assert_int_equal(has(w, USER_WAITS), 3);
	kill_child(child);
	turn_until(w, USER_WAITS, 1);
	send_wait(k, 10);
	turn_until(w, USER_WAITS, 2);
	/* A lower limit takes nothing away, and gives nothing more. */
	w->options.waits_per_uid = 1;
	node_reload(w->host.node, &w->options);
	assert_int_equal(has(w, USER_WAITS), 2);
	send_wait(k, 10);
	refused(k, hand_receive(k, &id), -EMFILE, "quota.waits_per_uid");
	hand_close(&hands[0]);
	turn_until(w, USER_WAITS, 0);
}

/* ---- Declarations ---- */

static void say_bye(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;

	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	OK(hand_ask_code(k, &q));
	hand_close(k);
}

static void test_declarations_of_a_user(void **state)
{
	struct small_node *w = *state;
	struct hand hands[4], *k = hands;
	uint64_t one;

	small_node_start(w);
	join(w, &hands[0], "one", 0, 2);
	one = has(w, USER_DECLARATION_BYTES);
	assert_true(one > small_shard.bytes);
	join(w, &hands[1], "one", 1, 2); /* ranks of a job share what is alike */
	assert_int_equal(has(w, USER_DECLARATION_BYTES), one);
	w->options.declaration_bytes_per_uid = 2 * one;
	node_reload(w->host.node, &w->options);
	join(w, &hands[2], "two", 0, 1);
	assert_int_equal(has(w, USER_DECLARATION_BYTES), 2 * one);
	k = &hands[3];
	OK(hand_connect(k, &w->host));
	OK(hand_open(k, "three", 0, 1, "run1"));
	refused(k, hand_declare(k, SMALL_GEOMETRY, &small_shard, 1), -EDQUOT,
		"quota.declaration_bytes_per_uid");
	assert_int_equal(has(w, USER_DECLARATION_BYTES), 2 * one);
	say_bye(&hands[2]);
	turn_until(w, USER_DECLARATION_BYTES, one);
	OK(hand_declare(k, SMALL_GEOMETRY, &small_shard, 1));
	w->options.declaration_bytes_per_uid = 1;
	node_reload(w->host.node, &w->options);
	OK(hand_prepare(k)); /* what it has it keeps */
	for (int i = 0; i < 4; i++)
		if (i != 2)
			hand_close(&hands[i]);
}

/* ---- Loads ---- */

/* Jobs "one" and "two" that have step 10 on disk and not in memory, a rank of each. */
static void begin_two_on_disk(struct small_node *w, struct hand hands[2])
{
	static const char *const names[] = {"one", "two"};

	small_node_start(w);
	for (int i = 0; i < 2; i++) {
		struct hand *k = &hands[i];

		join(w, k, names[i], 0, 1);
		OK(hand_prepare(k));
		save_durable(k, 10);
		hand_close(k);
	}
	host_stop(&w->host);
	small_node_start(w);
	for (int i = 0; i < 2; i++)
		join(w, &hands[i], names[i], 0, 1);
}

/* Returns the code; *ret_file (may be NULL): the file that came with it. */
static int begin_load_of(struct hand *k, uint64_t step, uint64_t *ret_load, int *ret_file)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load load = CKPT__LOAD__INIT;
	struct hand_answer a;
	int r;

	load.step = step;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &load;
	r = hand_ask(k, &q, &a);
	if (r == 0)
		*ret_load = a.reply->load->load;
	if (r == 0 && ret_file) {
		assert_int_equal(a.n_fds, 2);
		*ret_file = fcntl(a.fds[1], F_DUPFD_CLOEXEC, 3);
		assert_true(*ret_file >= 0);
	}
	hand_answer_free(&a);
	return r;
}

static int begin_load(struct hand *k, uint64_t *ret_load, int *ret_file)
{
	return begin_load_of(k, 10, ret_load, ret_file);
}

static void end_load(struct hand *k, uint64_t load)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__LoadEnd end = CKPT__LOAD_END__INIT;

	end.load = load;
	end.complete = true;
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &end;
	OK(hand_ask_code(k, &q));
}

static void test_loads_of_a_user(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t id[3];

	w->options.loads_per_uid = 2;
	begin_two_on_disk(w, hands);
	OK(begin_load(&hands[0], &id[0], NULL));
	OK(begin_load(&hands[1], &id[1], NULL));
	refused(k, begin_load(k, &id[2], NULL), -EMFILE, "quota.loads_per_uid");
	end_load(&hands[1], id[1]);
	turn_until(w, USER_LOADS, 1);
	OK(begin_load(k, &id[1], NULL));
	hand_close(&hands[0]);
	hand_close(&hands[1]);
	turn_until(w, USER_LOADS, 0);
}

static void test_files_of_loads_of_a_user(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t id[3];
	pid_t child;

	w->options.load_files_per_uid = 2;
	begin_two_on_disk(w, hands);
	OK(begin_load(&hands[0], &id[0], NULL));
	OK(begin_load(&hands[1], &id[1], NULL));
	assert_int_equal(has(w, USER_LOAD_FILES), 2);
	refused(k, begin_load(k, &id[2], NULL), -EMFILE, "quota.load_files_per_uid");
	turn_until(w, USER_LOADS, 2);
	assert_int_equal(has(w, USER_LOAD_FILES), 2);
	child = held_by_child(hands[1].fd);
	hand_close(&hands[1]);
	host_turn(&w->host);
	assert_int_equal(has(w, USER_LOAD_FILES), 2);
	kill_child(child);
	turn_until(w, USER_LOAD_FILES, 1);
	OK(begin_load(k, &id[1], NULL));
	w->options.load_files_per_uid = 1;
	node_reload(w->host.node, &w->options);
	end_load(k, id[0]);
	turn_until(w, USER_LOAD_FILES, 1);
	refused(k, begin_load(k, &id[2], NULL), -EMFILE, "quota.load_files_per_uid");
	end_load(k, id[1]);
	turn_until(w, USER_LOAD_FILES, 0);
	OK(begin_load(k, &id[2], NULL));
	hand_close(&hands[0]);
	turn_until(w, USER_LOAD_FILES, 0);
}

/* So many descriptors that n of them are free for loads. */
static void leave_free(struct small_node *w, uint64_t n)
{
	struct node *node = w->host.node;
	uint64_t want = node->users.has[USER_REGIONS] + node->users.has[USER_SESSIONS] + n;

	node->options.descriptors = want;
	while (node->options.descriptors - node->options.descriptors / 8 < want)
		node->options.descriptors++;
}

/* Of ckptd's descriptors a user's loads get twice as many as stay free. */
static void test_descriptors_of_loads(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t id[3];

	begin_two_on_disk(w, hands);
	leave_free(w, 3);
	OK(begin_load(&hands[0], &id[0], NULL));
	OK(begin_load(&hands[1], &id[1], NULL));
	refused(k, begin_load(k, &id[2], NULL), -EMFILE, "LimitNOFILE=");
	end_load(k, id[0]);
	turn_until(w, USER_LOAD_FILES, 1);
	OK(begin_load(k, &id[0], NULL));
	leave_free(w, 2);
	end_load(k, id[0]);
	turn_until(w, USER_LOAD_FILES, 1);
	refused(k, begin_load(k, &id[2], NULL), -EMFILE, "LimitNOFILE=");
	hand_close(&hands[0]);
	hand_close(&hands[1]);
	turn_until(w, USER_LOAD_FILES, 0);
}

/* A file that is read through the page cache has two. */
static void test_second_descriptors_of_loads(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t id;

	small_node_start(w);
	for (uint32_t i = 0; i < 2; i++)
		join(w, &hands[i], "one", i, 2);
	for (uint32_t i = 0; i < 2; i++)
		OK(hand_prepare(&hands[i]));
	OK(save(&hands[0], 10));
	OK(save(&hands[1], 10));
	OK(hand_wait(k, 10, CKPT_DURABLE));
	hand_close(&hands[0]);
	hand_close(&hands[1]);
	host_stop(&w->host);
	small_node_start(w);
	join(w, &hands[0], "one", 0, 2);
	OK(hand_connect(&hands[1], &w->host));
	OK(hand_open(&hands[1], "one", 1, 2, "run1"));
	leave_free(w, 5); /* two would fit */
	refused(k, begin_load(k, &id, NULL), -EMFILE, "takes 4 more");
	leave_free(w, 6);
	OK(begin_load(k, &id, NULL));
	assert_int_equal(has(w, USER_LOAD_FILES), 2);
	assert_int_equal(has(w, USER_LOAD_TWINS), 2);
	end_load(k, id);
	turn_until(w, USER_LOAD_TWINS, 0);
	hand_close(&hands[0]);
	hand_close(&hands[1]);
}

static void test_plans_of_a_user(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t id[3], one;

	begin_two_on_disk(w, hands);
	OK(begin_load(&hands[0], &id[0], NULL));
	one = has(w, USER_PLAN_BYTES);
	assert_true(one > 0);
	w->options.plan_bytes_per_uid = 2 * one - 1;
	node_reload(w->host.node, &w->options);
	refused(k, begin_load(k, &id[1], NULL), -EDQUOT, "quota.plan_bytes_per_uid");
	turn_until(w, USER_PLAN_BYTES, one);
	w->options.plan_bytes_per_uid = 2 * one;
	node_reload(w->host.node, &w->options);
	OK(begin_load(k, &id[1], NULL));
	assert_int_equal(has(w, USER_PLAN_BYTES), 2 * one);
	end_load(k, id[0]);
	end_load(k, id[1]);
	turn_until(w, USER_PLAN_BYTES, 0);
	hand_close(&hands[0]);
	hand_close(&hands[1]);
}

/* ---- Expired files ---- */

static void expect_bytes(int fd, const uint8_t *want, size_t len)
{
	void *p = NULL;

	assert_int_equal(posix_memalign(&p, 4096, 65536), 0);
	assert_int_equal(pread(fd, p, 65536, 0), len);
	assert_memory_equal(p, want, len);
	free(p);
}

/* Jobs "one" and "two", a rank of each, that have step 10 on disk alone and newer ones. */
static void begin_two_gone_on(struct small_node *w, struct hand hands[2])
{
	static const char *const names[] = {"one", "two"};

	w->options.retention.keep_last = 8;
	small_node_start(w);
	for (int i = 0; i < 2; i++) {
		struct hand *k = &hands[i];

		join(w, k, names[i], 0, 1);
		OK(hand_prepare(k));
		for (uint64_t step = 10; step <= 50; step += 10)
			save_durable(k, step);
	}
}

static void keep_only(struct small_node *w, uint64_t n)
{
	w->options.retention.keep_last = n;
	node_reload(w->host.node, &w->options);
}

static void limit_held(struct small_node *w, uint64_t bytes)
{
	w->options.held_bytes_per_uid = bytes;
	node_reload(w->host.node, &w->options);
}

/* A file that a process was given stays what it was, and its bytes count until all have closed
 * it; above the limit loads that would read files are refused. */
static void test_expired_files_that_are_held(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	static uint8_t before[65536] __attribute__((aligned(4096)));
	uint64_t id, bytes;
	ssize_t len;
	pid_t child;
	int fd;

	begin_two_gone_on(w, hands);
	OK(begin_load(k, &id, &fd));
	len = pread(fd, before, sizeof(before), 0);
	assert_true(len > 0);
	end_load(k, id);
	turn_until(w, USER_LOADS, 0); /* else it counts as one that is read first */
	keep_only(w, 4);
	for (int i = 0; i < 3000 && has(w, USER_HELD_BYTES) == 0; i++)
		host_turn(&w->host);
	bytes = has(w, USER_HELD_BYTES);
	assert_true(bytes >= (uint64_t)len);
	assert_int_equal(has(w, USER_LOAD_FILES), 1); /* ckptd has it open to find out */
	expect_bytes(fd, before, (size_t)len);
	k = &hands[1];
	/* There is no load to end: the sentence names the processes. */
	w->options.load_files_per_uid = 1;
	node_reload(w->host.node, &w->options);
	refused(k, begin_load_of(k, 20, &id, NULL), -EMFILE, "quota.load_files_per_uid");
	if (!strstr(k->text, "has 1 files that loads read or processes hold") ||
	    !strstr(k->text, "end some of these loads or processes"))
		fail_msg("%s", k->text);
	w->options.load_files_per_uid = 16;
	node_reload(w->host.node, &w->options);
	limit_held(w, bytes);
	OK(begin_load_of(k, 20, &id, NULL));
	end_load(k, id);
	limit_held(w, bytes - 1);
	refused(k, begin_load_of(k, 20, &id, NULL), -EDQUOT, "quota.held_bytes_per_uid");
	/* A process that got it from that process holds it as well. */
	child = held_by_child(fd);
	close(fd);
	for (int i = 0; i < 100; i++) {
		holding_look(w->host.node);
		host_turn(&w->host);
	}
	assert_int_equal(has(w, USER_HELD_BYTES), bytes);
	kill_child(child);
	refused(k, begin_load_of(k, 20, &id, NULL), -EDQUOT, "quota.held_bytes_per_uid");
	/* Also where it is asked again and again: processes end all the time. */
	for (int i = 0; i < 3000 && has(w, USER_HELD_BYTES) > 0; i++) {
		holding_look(w->host.node);
		host_turn(&w->host);
	}
	turn_until(w, USER_HELD_BYTES, 0);
	turn_until(w, USER_LOAD_FILES, 0);
	OK(begin_load_of(k, 20, &id, NULL));
	hand_close(&hands[0]);
	hand_close(&hands[1]);
}

/* While a load reads it a checkpoint stays, and counts from when it would have expired. */
static void test_expired_checkpoints_that_are_read(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t id, other, bytes;
	size_t n = 0;
	struct hand_info infos[8];

	begin_two_gone_on(w, hands);
	OK(begin_load(k, &id, NULL));
	assert_int_equal(has(w, USER_HELD_BYTES), 0);
	keep_only(w, 4);
	for (int i = 0; i < 3000 && has(w, USER_HELD_BYTES) == 0; i++)
		host_turn(&w->host);
	bytes = has(w, USER_HELD_BYTES);
	assert_true(bytes > 0);
	OK(hand_list(k, infos, 8, &n));
	assert_int_equal(infos[n - 1].step, 10);
	limit_held(w, bytes - 1);
	k = &hands[1];
	refused(k, begin_load_of(k, 20, &other, NULL), -EDQUOT, "quota.held_bytes_per_uid");
	end_load(&hands[0], id); /* it was never broken */
	turn_until(w, USER_HELD_BYTES, 0);
	OK(begin_load_of(k, 20, &other, NULL));
	hand_close(&hands[0]);
	hand_close(&hands[1]);
}

/* ---- Memory, and places in the fd store ---- */

static void test_memory_of_a_user(void **state)
{
	struct small_node *w = *state;
	struct hand hands[2], *k = hands;
	uint64_t one;

	small_node_start(w);
	join(w, k, "one", 0, 1);
	OK(hand_prepare(k));
	one = has(w, USER_MEMORY_BYTES);
	assert_true(one > 0);
	w->options.memory_per_uid = 2 * one - 1;
	node_reload(w->host.node, &w->options);
	k = &hands[1];
	join(w, k, "two", 0, 1);
	refused(k, hand_prepare(k), -EDQUOT, "quota.memory_per_uid");
	assert_int_equal(has(w, USER_MEMORY_BYTES), one);
	w->options.memory_per_uid = 2 * one;
	node_reload(w->host.node, &w->options);
	OK(hand_prepare(k));
	assert_int_equal(has(w, USER_MEMORY_BYTES), 2 * one);
	OK(save(k, 1));
	hand_close(&hands[0]);
	hand_close(&hands[1]);
}

enum { PLACES = 400, OTHERS = 3 };

/* As many places as the user gets, one by one. */
static uint64_t take_places(struct user *u)
{
	uint64_t n = 0;

	for (; user_may_store(u, 1, "it", NULL) == 0; n++)
		user_add(u, USER_REGIONS, 1);
	return n;
}

/* An open that is refused for its rank's places leaves no job, which would count. */
static void test_refused_open_leaves_no_job(void **state)
{
	struct small_node *w = *state;
	struct hand hand, late, *k = &hand;
	struct silent_store store;
	struct user *own;
	uint64_t got;

	silent_store_start(&store, PLACES, true);
	small_node_start(w);
	join(w, k, "job", 0, 1);
	own = user_get(w->host.node, getuid());
	assert_non_null(own);
	got = take_places(own);
	k = &late;
	OK(hand_connect(k, &w->host));
	refused(k, hand_open(k, "late", 0, 1, "run1"), CKPT_ENOSPACE, "places in the fd store");
	assert_int_equal(has(w, USER_JOBS), 1);
	user_give(own, USER_REGIONS, got);
	user_put(own);
	OK(hand_open(k, "late", 0, 1, "run1"));
	assert_int_equal(has(w, USER_JOBS), 2);
	hand_close(&hand);
	hand_close(&late);
	host_stop(&w->host);
	silent_store_stop(&store);
}

/* Users that take what they can: the next one gets some, and a user that trains goes on. */
static void test_places_are_shared(void **state)
{
	struct small_node *w = *state;
	struct user *others[OTHERS];
	struct hand hand, late, *k = &hand;
	struct silent_store store;
	uint64_t got[OTHERS];

	silent_store_start(&store, PLACES, true);
	small_node_start(w);
	join(w, k, "job", 0, 1);
	OK(hand_prepare(k));
	for (uint32_t i = 0; i < OTHERS; i++) {
		others[i] = user_get(w->host.node, getuid() + 1 + i);
		assert_non_null(others[i]);
		got[i] = take_places(others[i]);
	}
	assert_in_range(got[0], PLACES / 2, 2 * PLACES / 3);
	assert_true(got[1] >= PLACES / 6 && got[2] >= PLACES / 20);
	k = &late;
	join(w, k, "late", 0, 1);
	OK(hand_prepare(k));
	OK(save(k, 1));
	k = &hand;
	for (uint64_t step = 1; step <= 200; step++) /* its ledger is moved meanwhile */
		OK(save(k, step));
	OK(hand_wait(k, 200, CKPT_DURABLE));
	assert_int_equal(store.dropped, 0);
	for (uint32_t i = 0; i < OTHERS; i++) {
		user_give(others[i], USER_REGIONS, got[i]);
		user_put(others[i]);
	}
	hand_close(&hand);
	hand_close(&late);
	host_stop(&w->host);
	silent_store_stop(&store);
}

#define T(f) cmocka_unit_test_setup_teardown(f, small_node_setup, small_node_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_ranks_and_jobs_are_counted),
		T(test_an_old_run_leaves_in_slices),
		T(test_many_waits_end_in_slices),
		T(test_waits_of_a_job_that_has_much),
		T(test_waits_of_a_user),
		T(test_declarations_of_a_user),
		T(test_loads_of_a_user),
		T(test_files_of_loads_of_a_user),
		T(test_descriptors_of_loads),
		T(test_second_descriptors_of_loads),
		T(test_plans_of_a_user),
		T(test_expired_files_that_are_held),
		T(test_memory_of_a_user),
		T(test_refused_open_leaves_no_job),
		T(test_places_are_shared),
		T(test_expired_checkpoints_that_are_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
