/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, declaring, preparing, waiting, listing: what a call says, and how long it takes to say
 * that there is nobody.
 */
#include <config.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/client.h"
#include "client/test_fake.h"
#include "tests/lib/test.h"

static int setup(void **state)
{
	*state = fake_new();
	return 0;
}

static int teardown(void **state)
{
	fake_free(*state);
	return 0;
}

static const char *error_is(int code)
{
	int have;
	const char *text = ckpt_last_error(&have);

	assert_int_equal(have, code);
	return text;
}

static int open_at(const char *socket, int64_t connect_ms, struct ckpt **ret)
{
	struct ckpt_options o = { .size = sizeof(o), .socket = socket,
				  .connect_timeout_ms = connect_ms };

	return ckpt_open("j", 0, 1, &o, ret);
}

static void test_open_and_close(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f), *second;
	struct ckpt_stats stats = { .size = sizeof(stats) };

	assert_int_equal(ckpt_rank(c), 0);
	assert_int_equal(ckpt_world(c), 1);
	assert_int_equal(ckpt_stats(c, &stats), 0);
	assert_int_equal(stats.saves, 0);
	assert_true(ckpt_fd(c) >= 0);
	assert_int_equal(ckpt_pump(c), 0);
	assert_string_equal(f->run_id, "r");
	assert_false(f->reconnect);
	ckpt_close(c);
	assert_int_equal(fake_count(f, CKPT__REQUEST__BODY_BYE), 1);
	second = fake_open(f);
	ckpt_close(second);
	ckpt_close(NULL);
	assert_string_equal(ckpt_version(), PACKAGE_VERSION);
	assert_string_equal(ckpt_strerror(CKPT_ETORN), "tensors changed while they were copied");
}

/* A trainer that fails leaves as it closes, but says so; who only looks has nothing to say. */
static void test_abandon(void **state)
{
	struct fake *f = *state;
	struct ckpt_options o = {
		.size = sizeof(o), .socket = f->path, .run_id = "r", .flags = CKPT_EXISTING};
	struct ckpt *c = fake_open(f);
	int status;
	pid_t child = fork();

	if (child == 0) { /* the handle is its parent's */
		ckpt_abandon(c);
		_exit(0);
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	assert_int_equal(ckpt_pump(c), 0);
	assert_int_equal(fake_count(f, CKPT__REQUEST__BODY_BYE), 0);
	ckpt_abandon(c);
	assert_int_equal(fake_count(f, CKPT__REQUEST__BODY_BYE), 1);
	assert_true(f->failed);
	ckpt_close(fake_open(f));
	assert_false(f->failed);
	assert_int_equal(ckpt_open("j", 0, 1, &o, &c), 0);
	ckpt_abandon(c);
	assert_int_equal(fake_count(f, CKPT__REQUEST__BODY_BYE), 3);
	assert_false(f->failed);
	ckpt_abandon(NULL);
}

static void test_nobody_there(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = (void *)1;
	const char *text;
	char path[300];

	fake_stop(f);
	assert_int_equal(open_at(f->path, 0, &c), CKPT_EUNAVAILABLE);
	assert_ptr_equal(c, (void *)1);
	text = error_is(CKPT_EUNAVAILABLE);
	assert_non_null(strstr(text, "ckpt_open: "));
	assert_non_null(strstr(text, f->path));
	assert_non_null(strstr(text, "No such file"));
	assert_non_null(strstr(text, "ckptd --user"));
	/* Both of the usual places are named. */
	setenv("XDG_RUNTIME_DIR", f->dir, 1);
	assert_int_equal(open_at(NULL, 0, &c), CKPT_EUNAVAILABLE);
	text = error_is(CKPT_EUNAVAILABLE);
	snprintf(path, sizeof(path), "%s/ckptd.sock", f->dir);
	assert_non_null(strstr(text, path));
	assert_non_null(strstr(text, "/run/ckptd/ckptd.sock"));
	assert_null(strstr(text, "XDG_RUNTIME_DIR"));
	unsetenv("XDG_RUNTIME_DIR");
	if (access("/run/ckptd/ckptd.sock", F_OK) != 0) {
		assert_int_equal(open_at(NULL, 0, &c), CKPT_EUNAVAILABLE);
		assert_non_null(strstr(error_is(CKPT_EUNAVAILABLE), "XDG_RUNTIME_DIR is not set"));
	}
	memset(path, 'a', 200);
	path[200] = '\0';
	assert_int_equal(open_at(path, 0, &c), CKPT_EUNAVAILABLE);
	assert_non_null(strstr(error_is(CKPT_EUNAVAILABLE), "107 bytes"));
}

static void *start_later(void *arg)
{
	poll(NULL, 0, 60);
	fake_start(arg);
	return NULL;
}

static void test_waits_for_ckptd(void **state)
{
	struct fake *f = *state;
	struct ckpt *c;
	pthread_t t;

	fake_stop(f);
	must(pthread_create(&t, NULL, start_later, f) == 0);
	assert_int_equal(open_at(f->path, 20000, &c), 0);
	pthread_join(t, NULL);
	ckpt_close(c);
}

/* The first two opens are refused: processes of an earlier launch still live. */
static enum fake_action busy_twice(struct fake *f, const Ckpt__Request *q, void *arg)
{
	int *left = arg;

	(void)f;
	if (q->body_case != CKPT__REQUEST__BODY_OPEN || *left == 0)
		return FAKE_DO;
	--*left;
	return FAKE_REFUSE;
}

static void test_refused_opens_are_tried_again(void **state)
{
	struct fake *f = *state;
	struct ckpt *c;
	static int left = 2; /* the other thread looks at it until the teardown */

	FAKE_SET(f, f->hook, busy_twice);
	FAKE_SET(f, f->hook_arg, &left);
	FAKE_SET(f, f->refuse_code, -EAGAIN);
	FAKE_SET(f, f->refuse_text, "open: processes of an earlier launch still live");
	assert_int_equal(open_at(f->path, 0, &c), -EAGAIN);
	assert_string_equal(error_is(-EAGAIN),
			    "ckpt_open: open: processes of an earlier launch still live");
	FAKE_SET(f, left, 2);
	assert_int_equal(open_at(f->path, 20000, &c), 0);
	ckpt_close(c);
	FAKE_SET(f, left, 1);
	FAKE_SET(f, f->refuse_code, CKPT_EEPOCH);
	assert_int_equal(open_at(f->path, 20000, &c), CKPT_EEPOCH); /* it will not change */
	assert_int_equal(left, 0);
}

static void test_log_that_cannot_be_written(void **state)
{
	struct fake *f = *state;
	struct ckpt *c;
	static int left = 1; /* the other thread looks at it until the teardown */

	FAKE_SET(f, f->hook, busy_twice);
	FAKE_SET(f, f->hook_arg, &left);
	FAKE_SET(f, f->refuse_code, CKPT_ETIMEDOUT);
	FAKE_SET(f, f->refuse_text, "open: the job's log cannot be written");
	assert_int_equal(open_at(f->path, 0, &c), CKPT_EUNAVAILABLE);
	assert_string_equal(error_is(CKPT_EUNAVAILABLE),
			    "ckpt_open: open: the job's log cannot be written");
}

static enum fake_action silent(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	return q->body_case == *(Ckpt__Request__BodyCase *)arg ? FAKE_SILENCE : FAKE_DO;
}

static enum fake_action garbage(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	return q->body_case == *(Ckpt__Request__BodyCase *)arg ? FAKE_GARBAGE : FAKE_DO;
}

static void test_bad_answers(void **state)
{
	struct fake *f = *state;
	struct ckpt_options o = { .size = sizeof(o), .socket = f->path, .timeout_ms = 30 };
	static Ckpt__Request__BodyCase what = CKPT__REQUEST__BODY_HELLO;
	struct ckpt *c;
	uint64_t start;

	FAKE_SET(f, f->hook, silent);
	FAKE_SET(f, f->hook_arg, &what);
	assert_int_equal(ckpt_open("j", 0, 1, &o, &c), CKPT_EUNAVAILABLE);
	FAKE_SET(f, what, CKPT__REQUEST__BODY_OPEN);
	assert_int_equal(ckpt_open("j", 0, 1, &o, &c), CKPT_EUNAVAILABLE);
	assert_non_null(strstr(error_is(CKPT_EUNAVAILABLE), "has not opened job 'j' in time"));
	assert_non_null(strstr(error_is(CKPT_EUNAVAILABLE), "ckptctl status"));
	/* The connect timeout bounds it, whatever time other calls have. */
	o.timeout_ms = 30000;
	o.connect_timeout_ms = 300;
	start = clock_ns();
	assert_int_equal(ckpt_open("j", 0, 1, &o, &c), CKPT_EUNAVAILABLE);
	assert_in_range((clock_ns() - start) / NS_PER_MS, 250, 10000);
	o.timeout_ms = 30;
	o.connect_timeout_ms = 0;
	FAKE_SET(f, f->hook, garbage);
	assert_int_equal(ckpt_open("j", 0, 1, &o, &c), CKPT_EUNAVAILABLE);
	FAKE_SET(f, f->hook, NULL);
	FAKE_SET(f, f->geometry.leaf, 100); /* no power of two */
	assert_int_equal(ckpt_open("j", 0, 1, &o, &c), CKPT_EPROTO);
}

static void test_declaring(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	uint64_t shape[2] = { 10, 20 }, offset[2] = { 0, 10 }, part[2] = { 10, 10 };
	struct ckpt_tensor t = { .size = sizeof(t), .name = "w", .dtype = CKPT_F32, .ndim = 2,
				 .global_shape = shape, .offset = offset, .shape = part };

	assert_int_equal(ckpt_declare(c, &t), 0);
	t.name = "flat";
	t.flags = CKPT_FLAT;
	t.start = 3;
	t.stop = 50;
	assert_int_equal(ckpt_declare(c, &t), 1);
	t.stop = 101; /* the box has 100 elements */
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	assert_non_null(strstr(error_is(-EINVAL), "'flat'"));
	t.flags = 0;
	t.dtype = 99;
	t.name = "bad";
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	assert_non_null(strstr(error_is(-EINVAL), "'bad'"));
	t.dtype = CKPT_F32;
	offset[1] = 11;
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	assert_non_null(strstr(error_is(-EINVAL), "'bad'"));
	offset[1] = 10;
	t.ndim = 9;
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	t.ndim = 2;
	t.name = "";
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	t.name = "w\xff";
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	assert_non_null(strstr(error_is(-EINVAL), "not UTF-8"));
	t.name = "x";
	t.flags = 8;
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	t.flags = 0;
	t.global_shape = NULL;
	assert_int_equal(ckpt_declare(c, &t), -EINVAL);
	assert_int_equal(ckpt_declare(c, NULL), -EINVAL);
	assert_int_equal(ckpt_prepare(c, 1000), 0);
	t.global_shape = shape;
	assert_int_equal(ckpt_declare(c, &t), CKPT_ESTATE);
	test_says(error_is(CKPT_ESTATE), "has ended with prepare or the first save or load");
	assert_int_equal(ckpt_prepare(c, 500), 0); /* there is room */
	assert_int_equal(ckpt_prepare(c, 5000), CKPT_ESTATE);
	test_says(error_is(CKPT_ESTATE), "call prepare once, before the first save or load");
	assert_true(f->blob_bytes >= 1000);
	assert_non_null(f->declaration);
	ckpt_close(c);
}

static void test_declared_twice(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	uint64_t shape[1] = {4};

	fake_declare(c, "w", 1, shape);
	fake_declare(c, "w", 1, shape);
	assert_int_equal(ckpt_prepare(c, 0), -EINVAL);
	assert_non_null(strstr(error_is(-EINVAL), "'w'"));
	ckpt_close(c);
}

static void test_large_declarations_travel_in_a_memfd(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	uint64_t shape[1] = { 4 };
	char name[600];

	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof(name), "layer.%0500d.weight", i);
		fake_declare(c, name, 1, shape);
	}
	assert_int_equal(ckpt_prepare(c, 0), 0);
	assert_true(f->declaration_len > 64 << 10);
	ckpt_close(c);
}

static void test_prepare_without_slots(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	uint64_t shape[1] = { 4 };
	float values[4] = { 1, 2, 3, 4 };
	struct ckpt_binding b = { .ptr = values, .device = CKPT_HOST, .dtype = CKPT_F32,
				  .bytes = sizeof(values) };
	struct ckpt_save_args a = { .size = sizeof(a), .step = 1, .tensors = &b, .n_tensors = 1,
				    .timeout_ms = 5000 };

	fake_declare(c, "w", 1, shape);
	FAKE_SET(f, f->n_slots, 0);
	assert_int_equal(ckpt_prepare(c, 0), CKPT_EPROTO);
	FAKE_SET(f, f->n_slots, FAKE_SLOTS);
	assert_int_equal(ckpt_save(c, &a), 0); /* prepares, since nobody did */
	ckpt_close(c);
}

static enum fake_action no_space(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	(void)arg;
	return q->body_case == CKPT__REQUEST__BODY_PREPARE ? FAKE_REFUSE : FAKE_DO;
}

static void test_no_space_is_said_before_training(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	uint64_t shape[1] = { 4 };

	fake_declare(c, "w", 1, shape);
	FAKE_SET(f, f->refuse_code, CKPT_ENOSPACE);
	FAKE_SET(f, f->refuse_text, "rank 0: 1 MiB are left");
	FAKE_SET(f, f->hook, no_space);
	assert_int_equal(ckpt_prepare(c, 100), CKPT_ENOSPACE);
	assert_string_equal(error_is(CKPT_ENOSPACE), "ckpt_prepare: rank 0: 1 MiB are left");
	FAKE_SET(f, f->hook, NULL);
	assert_int_equal(ckpt_prepare(c, 100), 0);
	ckpt_close(c);
}

static void test_waiting(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	uint64_t newer = 7;

	FAKE_SET(f, f->wait_answer, CKPT_COMMITTED);
	assert_int_equal(ckpt_wait(c, 3, CKPT_COMMITTED, 1000, NULL), 0);
	assert_int_equal(ckpt_wait(c, 3, CKPT_SEALED, 0, NULL), 0);
	assert_int_equal(ckpt_wait(c, 3, CKPT_DURABLE, 0, NULL), CKPT_ETIMEDOUT);
	assert_non_null(strstr(error_is(CKPT_ETIMEDOUT), "step 3 is not durable yet"));
	assert_int_equal(ckpt_wait(c, 3, CKPT_DURABLE, 10, NULL), CKPT_ETIMEDOUT);
	/* A wait whose deadline passed is taken back. */
	while (fake_count(f, CKPT__REQUEST__BODY_CANCEL) < 3)
		poll(NULL, 0, 1);
	fake_lock(f);
	assert_int_equal(f->wait_request, 0);
	f->refuse_code = CKPT_ESUPERSEDED;
	fake_unlock(f);
	assert_int_equal(ckpt_wait(c, 3, CKPT_DURABLE, 1000, &newer), CKPT_ESUPERSEDED);
	assert_int_equal(newer, 4);
	assert_int_equal(ckpt_wait(c, 3, 4, 1000, &newer), -EINVAL);
	assert_int_equal(ckpt_wait(c, 3, CKPT_SEALED, -3, &newer), -EINVAL);
	/* Late answers to what nobody waits for any more do no harm. */
	assert_int_equal(ckpt_wait(c, 3, CKPT_SEALED, CKPT_DEFAULT_TIMEOUT, NULL), 0);
	ckpt_close(c);
}

static void test_listing(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	struct ckpt_info infos[3];

	assert_int_equal(ckpt_list(c, NULL, 0), 0);
	FAKE_SET(f, f->n_list, 5);
	for (int in_fd = 0; in_fd < 2; in_fd++) {
		FAKE_SET(f, f->list_in_fd, in_fd);
		memset(infos, 0, sizeof(infos));
		assert_int_equal(ckpt_list(c, infos, 3), 5);
		assert_int_equal(infos[0].step, 1000);
		assert_int_equal(infos[2].step, 998);
		assert_int_equal(infos[1].attempt[0], 5);
		assert_int_equal(infos[1].bytes, 77);
		assert_true(infos[1].disk && !infos[0].disk && infos[0].latest);
		assert_int_equal(infos[0].world, 4);
	}
	assert_int_equal(ckpt_list(c, NULL, 3), -EINVAL);
	ckpt_close(c);
}

static void test_forked_child_is_refused(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	uint64_t shape[1] = { 4 };
	int status;
	pid_t pid;

	fake_declare(c, "w", 1, shape);
	assert_int_equal(ckpt_prepare(c, 0), 0);
	pid = fork();
	if (pid == 0) {
		struct ckpt_save_args a = { .size = sizeof(a) };
		unsigned char resident;
		int bad = ckpt_save(c, &a) != -EPERM;

		bad |= !strstr(ckpt_last_error(NULL), "forked");
		bad |= ckpt_wait(c, 1, CKPT_SEALED, 0, NULL) != -EPERM;
		bad |= ckpt_pump(c) != -EPERM || ckpt_fd(c) != -EPERM;
		bad |= ckpt_prepare(c, 0) != -EPERM || ckpt_list(c, NULL, 0) != -EPERM;
		bad |= ckpt_problem(c, 0) != NULL;
		/* Slots are not inherited: a fork neither pays for them nor can spoil them. */
		bad |= mincore(c->slots[0].base, 4096, &resident) != -1 || errno != ENOMEM;
		ckpt_close(c); /* must touch neither the parent's session nor its slots */
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(fake_count(f, CKPT__REQUEST__BODY_BYE), 0);
	assert_int_equal(ckpt_wait(c, 3, CKPT_SEALED, 1000, NULL), 0);
	ckpt_close(c);
	assert_int_equal(ckpt_save(NULL, NULL), -EINVAL);
}

static void test_foreign_loop(void **state)
{
	struct fake *f = *state;
	struct ckpt *c = fake_open(f);
	struct pollfd p = { .fd = ckpt_fd(c), .events = POLLIN };

	FAKE_SET(f, f->wait_answer, 0);
	assert_int_equal(ckpt_wait(c, 3, CKPT_SEALED, 10, NULL), CKPT_ETIMEDOUT);
	assert_int_equal(poll(&p, 1, 5000), 1); /* the late answer */
	assert_int_equal(ckpt_pump(c), 0);
	fake_stop(f);
	assert_int_equal(poll(&p, 1, 5000), 1);
	assert_int_equal(ckpt_pump(c), CKPT_EUNAVAILABLE);
	assert_int_equal(poll(&p, 1, 0), 0); /* a lost connection does not keep a loop awake */
	fake_start(f);
	FAKE_SET(f, f->wait_answer, CKPT_DURABLE);
	assert_int_equal(ckpt_wait(c, 3, CKPT_SEALED, 5000, NULL), CKPT_RECONNECTED);
	assert_int_equal(ckpt_fd(c), p.fd);
	ckpt_close(c);
}

/* Every allocation of open, declare, prepare and a save fails in turn: an error, no leak, and the
 * next try works. */
static void test_out_of_memory(void **state)
{
#ifdef CKPT_FAULTS
	struct fake *f = *state;
	uint64_t shape[1] = { 4 };
	struct ckpt_tensor t = { .size = sizeof(t), .name = "w", .dtype = CKPT_F32, .ndim = 1,
				 .global_shape = shape };
	float values[4] = { 1, 2, 3, 4 };
	struct ckpt_binding b = { .ptr = values, .device = CKPT_HOST, .dtype = CKPT_F32,
				  .bytes = sizeof(values) };
	struct ckpt_save_args a = { .size = sizeof(a), .tensors = &b, .n_tensors = 1,
				    .timeout_ms = 5000, .flags = CKPT_WAIT_CREDIT };
	struct ckpt_options o = { .size = sizeof(o), .run_id = "r", .socket = f->path };
	bool fired = true;

	for (uint64_t n = 1; fired; n++) {
		struct ckpt *c = NULL;
		int r;

		must(n < 1000);
		a.step = n;
		alloc_fail_at(n, false);
		r = ckpt_open("j", 0, 1, &o, &c);
		if (r == 0)
			r = ckpt_declare(c, &t);
		if (r == 0)
			r = ckpt_prepare(c, 0);
		if (r == 0)
			r = ckpt_save(c, &a);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		if (fired && r < 0)
			assert_true(r == -ENOMEM || r == CKPT_EUNAVAILABLE);
		else
			assert_true(r >= 0); /* not every one is needed */
		ckpt_close(c);
	}
#else
	(void)state;
	skip();
#endif
}

struct second {
	struct ckpt *c;
	int result;
};

/* A call that lasts until the fake may answer. */
static void *list_in_a_thread(void *arg)
{
	struct second *t = arg;

	do
		t->result = ckpt_list(t->c, NULL, 0);
	while (t->result == CKPT_ESTATE); /* the main thread looks whether it has begun */
	return NULL;
}

static void wait_until_used(struct ckpt *c)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	while (ckpt_stats(c, &stats) != CKPT_ESTATE)
		sched_yield();
}

static void check_refused(struct ckpt *c)
{
	struct ckpt_beat beat = {.size = sizeof(beat)};
	struct ckpt_load_args load = {.size = sizeof(load)};
	struct ckpt_blob blob;
	const void *data;
	uint64_t bytes;

	assert_int_equal(ckpt_prepare(c, 0), CKPT_ESTATE);
	assert_non_null(strstr(ckpt_last_error(NULL), "another thread is in a call"));
	assert_int_equal(ckpt_declare(c, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_save(c, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_save_begin(c, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_save_fence(c, 0), CKPT_ESTATE);
	assert_int_equal(ckpt_skip(c, 1, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_wait(c, 1, CKPT_SEALED, 0, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_load(c, &load, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_list(c, NULL, 0), CKPT_ESTATE);
	assert_int_equal(ckpt_blob_at(c, 0, &blob), CKPT_ESTATE);
	assert_int_equal(ckpt_blob_get(c, "b", &data, &bytes), CKPT_ESTATE);
	assert_int_equal(ckpt_stored_open(c, 1, 0, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_fd(c), CKPT_ESTATE);
	assert_int_equal(ckpt_pump(c), CKPT_ESTATE);
	assert_null(ckpt_problem(c, 0));
	assert_int_equal(ckpt_beat(c, &beat), CKPT_ESTATE);
	assert_int_equal(ckpt_metric(c, "m"), CKPT_ESTATE);
	assert_int_equal(ckpt_role(c, "r"), CKPT_ESTATE);
	assert_int_equal(ckpt_phase_begin(c, CKPT_PHASE_DATA, NULL, 0), CKPT_ESTATE);
	assert_int_equal(ckpt_phase_end(c), CKPT_ESTATE);
	assert_int_equal(ckpt_should_save(c, 1), CKPT_ESTATE);
	assert_int_equal(ckpt_rank(c), 0); /* these two never change */
	assert_int_equal(ckpt_world(c), 1);
}

static void test_two_threads(void **state)
{
	struct fake *f = *state;
	struct second t = {.c = fake_open(f)};
	struct ckpt_beat beat = {.size = sizeof(beat)};
	pthread_t thread;

	fake_lock(f);
	must(pthread_create(&thread, NULL, list_in_a_thread, &t) == 0);
	wait_until_used(t.c);
	check_refused(t.c);
	fake_unlock(f);
	pthread_join(thread, NULL);
	assert_int_equal(t.result, 0); /* as if it were alone */
	assert_int_equal(ckpt_beat(t.c, &beat), CKPT_OK);
	assert_int_equal(ckpt_list(t.c, NULL, 0), 0);
	ckpt_close(t.c);
}

/* The call that goes on ends well, and ends the session then. */
static void test_closed_in_a_call(void **state)
{
	struct fake *f = *state;

	for (int how = 0; how < 2; how++) {
		struct second t = {.c = fake_open(f)};
		pthread_t thread;

		fake_lock(f);
		must(pthread_create(&thread, NULL, list_in_a_thread, &t) == 0);
		wait_until_used(t.c);
		if (how)
			ckpt_abandon(t.c);
		else
			ckpt_close(t.c);
		fake_unlock(f);
		pthread_join(thread, NULL);
		assert_int_equal(t.result, 0);
	}
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_open_and_close),
		T(test_abandon),
		T(test_nobody_there),
		T(test_waits_for_ckptd),
		T(test_refused_opens_are_tried_again),
		T(test_log_that_cannot_be_written),
		T(test_bad_answers),
		T(test_declaring),
		T(test_declared_twice),
		T(test_large_declarations_travel_in_a_memfd),
		T(test_prepare_without_slots),
		T(test_no_space_is_said_before_training),
		T(test_waiting),
		T(test_listing),
		T(test_forked_child_is_refused),
		T(test_foreign_loop),
		T(test_out_of_memory),
		T(test_two_threads),
		T(test_closed_in_a_call),
	};

	return cmocka_run_group_tests_name("open", tests, NULL, NULL);
}
