/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beats, phases, roles, and whether to save: what stands in the page, in every state of the handle,
 * and that the system is not asked.
 */
#include <config.h>

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/client.h"
#include "client/test_fake.h"
#include "tests/lib/clocks.h"
#include "tests/lib/test.h"

struct world {
	struct fake *f;
	struct ckpt *c;
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	w->f = fake_new();
	w->c = fake_open(w->f);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	fake_free(w->f);
	free(w);
	return 0;
}

static int beat_step(struct ckpt *c, uint64_t step)
{
	struct ckpt_beat b = {.size = sizeof(b), .step = step};

	return ckpt_beat(c, &b);
}

/* The other thread makes it; what is in it is of atomics. */
static struct beat_page *page(const struct world *w)
{
	struct beat_page *p;

	fake_lock(w->f);
	p = w->f->beats;
	fake_unlock(w->f);
	return p;
}

static uint64_t written(const struct world *w)
{
	return atomic_load(&page(w)->written);
}

/* The n-th entry from the end: 0 is the newest. */
static struct beat_record entry(const struct world *w, uint64_t n)
{
	struct beat_record r;

	assert_true(beat_page_get(page(w), written(w) - n, &r));
	return r;
}

static uint32_t phase_now(const struct world *w)
{
	return BEAT_PLACE_PHASE(atomic_load(&page(w)->place));
}

static void error_is(int code)
{
	int have;

	ckpt_last_error(&have);
	assert_int_equal(have, code);
}

static void pass_ns(uint64_t ns)
{
	uint64_t until = clock_ns() + ns;

	while (clock_ns() < until)
		;
}

/* ---- Beats ---- */

/* ckptd's own, which stands still while the machine is suspended, and which nobody sets. */
static void test_clock(void **state)
{
	struct world *w = *state;
	uint64_t before = clocks_monotonic_ns(), place;

	assert_int_equal(beat_step(w->c, 1), 0);
	assert_in_range(entry(w, 0).time_ns, before, clocks_monotonic_ns());
	before = clocks_monotonic_ns();
	assert_int_equal(ckpt_phase_begin(w->c, CKPT_PHASE_EVALUATE, NULL, 0), 0);
	place = BEAT_PLACE_SINCE(atomic_load(&page(w)->long_place));
	assert_in_range(place, before, clocks_monotonic_ns());
}

static void test_values(void **state)
{
	struct world *w = *state;
	struct ckpt_beat b = {.size = sizeof(b),
			      .step = 41,
			      .loss = NAN,
			      .grad_norm = 2.5,
			      .tokens = 4096,
			      .flags = CKPT_BEAT_LOSS | CKPT_BEAT_TOKENS};
	uint64_t before = clock_ns();
	struct beat_record r;

	assert_int_equal(written(w), 0);
	assert_int_equal(atomic_load(&page(w)->next_step), 0);
	assert_int_equal(ckpt_metric(w->c, "lr"), 0);
	assert_int_equal(ckpt_metric(w->c, "scale"), 1);
	assert_int_equal(ckpt_metric(w->c, "lr"), 0);
	b.flags |= CKPT_BEAT_METRIC(1) | 1u << 30;
	b.metrics[1] = 7;
	assert_int_equal(ckpt_beat(w->c, &b), 0);
	assert_int_equal(written(w), 1);
	r = entry(w, 0);
	assert_int_equal(r.kind, BEAT_KIND_STEP);
	assert_true(r.time_ns >= before && r.time_ns <= clock_ns());
	assert_int_equal(r.flags, BEAT_HAS_LOSS | BEAT_HAS_TOKENS | BEAT_HAS_METRIC(1));
	assert_int_equal(r.step, 41);
	assert_true(isnan(r.loss));
	assert_int_equal(r.tokens, 4096);
	assert_true(r.metrics[1] == 7);
	assert_int_equal(atomic_load(&page(w)->next_step), 42);
	assert_int_equal(phase_now(w), CKPT_PHASE_STEP);
	assert_int_equal(BEAT_PLACE_SINCE(atomic_load(&page(w)->place)), r.time_ns);
	for (uint64_t step = 42; step < 42 + 3 * BEAT_ENTRIES; step++)
		assert_int_equal(beat_step(w->c, step), 0);
	assert_int_equal(written(w), 1 + 3 * BEAT_ENTRIES);
	for (uint64_t i = 0; i < BEAT_ENTRIES; i++)
		assert_int_equal(entry(w, i).step, 41 + 3 * BEAT_ENTRIES - i);
}

/* Compiled against a ckpt.h that knew less, or more. */
static void test_sizes(void **state)
{
	struct world *w = *state;
	struct {
		struct ckpt_beat b;
		double later;
	} long_beat = {.b = {.size = sizeof(long_beat),
			     .step = 5,
			     .tokens = 9,
			     .flags = CKPT_BEAT_TOKENS}};
	struct ckpt_beat b = {.size = offsetof(struct ckpt_beat, loss),
			      .step = 6,
			      .tokens = 8,
			      .flags = CKPT_BEAT_TOKENS};

	assert_int_equal(ckpt_beat(w->c, &long_beat.b), 0);
	assert_int_equal(entry(w, 0).tokens, 9);
	assert_int_equal(ckpt_beat(w->c, &b), 0);
	assert_int_equal(entry(w, 0).tokens, 8);
	assert_int_equal(entry(w, 0).step, 6);
	b.size = 4;
	assert_int_equal(ckpt_beat(w->c, &b), -EINVAL);
	error_is(-EINVAL);
	assert_int_equal(ckpt_beat(w->c, NULL), -EINVAL);
	assert_int_equal(ckpt_beat(NULL, &b), -EINVAL);
	assert_int_equal(written(w), 2);
}

static void test_words(void **state)
{
	struct world *w = *state;
	char name[BEAT_TEXT_BYTES + 1] = "0123456789012345678901234567890", text[BEAT_TEXT_BYTES];

	assert_int_equal(strlen(name), CKPT_WORD_MAX);
	assert_int_equal(ckpt_metric(w->c, name), 0);
	assert_int_equal(ckpt_role(w->c, "stage 3"), 0);
	assert_int_equal(ckpt_role(w->c, name), 0);
	beat_page_get_text(&page(w)->role, text);
	assert_string_equal(text, name);
	beat_page_get_text(&page(w)->metrics[0], text);
	assert_string_equal(text, name);
	name[CKPT_WORD_MAX] = 'x';
	assert_int_equal(ckpt_metric(w->c, name), -EINVAL);
	assert_int_equal(ckpt_role(w->c, name), -EINVAL);
	assert_int_equal(ckpt_metric(w->c, ""), -EINVAL);
	assert_int_equal(ckpt_metric(w->c, NULL), -EINVAL);
	assert_int_equal(ckpt_role(w->c, NULL), -EINVAL);
	assert_int_equal(ckpt_role(w->c, ""), -EINVAL);
	for (int i = 1; i < CKPT_METRICS_MAX; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		assert_int_equal(ckpt_metric(w->c, name), i);
	}
	assert_int_equal(ckpt_metric(w->c, "one more"), -ENOSPC);
	error_is(-ENOSPC);
	assert_int_equal(atomic_load(&page(w)->texts) % 2, 0);
}

/* ---- Phases ---- */

static void begin(struct world *w, enum ckpt_phase phase)
{
	assert_int_equal(ckpt_phase_begin(w->c, phase, NULL, 0), 0);
	assert_int_equal(phase_now(w), phase);
}

static void end(struct world *w, enum ckpt_phase then)
{
	assert_int_equal(ckpt_phase_end(w->c), 0);
	assert_int_equal(phase_now(w), then);
}

/* Parts of a step are no entries; they only add up. */
static void test_busy(void **state)
{
	struct world *w = *state;
	uint64_t start, all;
	struct beat_record r;

	assert_int_equal(beat_step(w->c, 1), 0);
	assert_int_equal(beat_step(w->c, 2), 0);
	assert_false(entry(w, 0).flags & BEAT_HAS_BUSY); /* it never said when it waits */
	begin(w, CKPT_PHASE_DATA);
	pass_ns(2000000);
	end(w, CKPT_PHASE_STEP);
	start = entry(w, 0).time_ns;
	begin(w, CKPT_PHASE_OPTIMIZE);
	begin(w, CKPT_PHASE_SYNC);
	pass_ns(3000000);
	end(w, CKPT_PHASE_OPTIMIZE);
	end(w, CKPT_PHASE_STEP);
	assert_int_equal(beat_step(w->c, 3), 0);
	assert_int_equal(written(w), 3);
	r = entry(w, 0);
	all = r.time_ns - start;
	assert_true(r.flags & BEAT_HAS_BUSY);
	assert_true(r.busy_ns >= 2000000);
	assert_true(r.busy_ns <= all - 3000000);
	/* Open across the beat: the rest of it is the next step's. */
	begin(w, CKPT_PHASE_SYNC);
	assert_int_equal(beat_step(w->c, 4), 0);
	assert_int_equal(phase_now(w), CKPT_PHASE_SYNC);
	pass_ns(3000000);
	end(w, CKPT_PHASE_STEP);
	assert_int_equal(beat_step(w->c, 5), 0);
	assert_true(entry(w, 0).busy_ns <= entry(w, 0).time_ns - entry(w, 1).time_ns - 3000000);
}

static void test_long_phases(void **state)
{
	struct world *w = *state;
	struct beat_record r;

	assert_int_equal(ckpt_phase_begin(w->c, CKPT_PHASE_EVALUATE, "test set", 1800000), 0);
	assert_int_equal(written(w), 1);
	r = entry(w, 0);
	assert_int_equal(r.kind, BEAT_KIND_PHASE_BEGIN);
	assert_int_equal(r.flags, CKPT_PHASE_EVALUATE);
	assert_int_equal(r.phase.expected_ns, 1800000ull * 1000000);
	assert_string_equal(r.phase.what, "test set");
	assert_int_equal(BEAT_PLACE_PHASE(atomic_load(&page(w)->long_place)), CKPT_PHASE_EVALUATE);
	/* A long one in it is part of it. */
	begin(w, CKPT_PHASE_SYNC);
	begin(w, CKPT_PHASE_OTHER);
	assert_int_equal(written(w), 1);
	end(w, CKPT_PHASE_SYNC);
	end(w, CKPT_PHASE_EVALUATE);
	assert_int_equal(written(w), 1);
	end(w, CKPT_PHASE_STEP);
	assert_int_equal(written(w), 2);
	assert_int_equal(entry(w, 0).kind, BEAT_KIND_PHASE_END);
	assert_int_equal(entry(w, 0).flags, CKPT_PHASE_EVALUATE);
	assert_int_equal(atomic_load(&page(w)->long_place), 0);
}

static void test_phase_errors(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_phase_end(w->c), CKPT_ESTATE);
	error_is(CKPT_ESTATE);
	assert_int_equal(ckpt_phase_begin(w->c, (enum ckpt_phase)10, NULL, 0), -EINVAL);
	assert_int_equal(ckpt_phase_begin(w->c, CKPT_PHASE_IDLE, NULL, -1), -EINVAL);
	assert_int_equal(
		ckpt_phase_begin(w->c, CKPT_PHASE_IDLE, "a word of more than thirty-one bytes", 0),
		-EINVAL);
	assert_int_equal(phase_now(w), CKPT_PHASE_STEP);
	for (int i = 0; i < CKPT_PHASE_DEPTH; i++)
		begin(w, CKPT_PHASE_DATA);
	assert_int_equal(ckpt_phase_begin(w->c, CKPT_PHASE_DATA, NULL, 0), CKPT_ESTATE);
	/* The library's own have room above them, and beyond that do no harm. */
	assert_int_equal(ckpt_wait(w->c, 1, CKPT_DURABLE, 1000, NULL), 0);
	assert_int_equal(written(w), 2);
	assert_int_equal(phase_now(w), CKPT_PHASE_DATA);
	for (int i = 0; i < CKPT_PHASE_DEPTH; i++)
		assert_int_equal(ckpt_phase_end(w->c), 0);
	assert_int_equal(ckpt_phase_end(w->c), CKPT_ESTATE);
	assert_int_equal(ckpt_phase_begin(w->c, CKPT_PHASE_IDLE, NULL, INT64_MAX), 0);
	assert_int_equal(ckpt_phase_end(w->c), 0);
}

/* ---- Saves ---- */

static uint8_t data[400];

static int save(struct ckpt *c, uint64_t step)
{
	struct ckpt_binding b = {
		.ptr = data, .device = CKPT_HOST, .dtype = CKPT_F32, .bytes = sizeof(data)};
	struct ckpt_save_args a = {.size = sizeof(a),
				   .step = step,
				   .tensors = &b,
				   .n_tensors = 1,
				   .timeout_ms = 10000,
				   .flags = CKPT_WAIT_CREDIT};

	return ckpt_save(c, &a);
}

static int save_nothing(struct ckpt *c)
{
	struct ckpt_save_args a = {.size = sizeof(a), .step = 2, .timeout_ms = 10000};

	return ckpt_save(c, &a);
}

/* A call that needs ckptd. */
static int come_back(struct ckpt *c)
{
	return ckpt_wait(c, 1, CKPT_DURABLE, 1000, NULL);
}

static void declare(struct world *w)
{
	fake_declare(w->c, "w", 1, (uint64_t[]){sizeof(data) / 4});
}

static void test_calls_declare_their_phases(void **state)
{
	struct world *w = *state;

	declare(w);
	assert_int_equal(ckpt_prepare(w->c, 0), 0);
	assert_int_equal(written(w), 2);
	assert_string_equal(entry(w, 1).phase.what, "prepare");
	assert_int_equal(save(w->c, 1), 0);
	assert_int_equal(written(w), 4);
	assert_int_equal(entry(w, 1).kind, BEAT_KIND_PHASE_BEGIN);
	assert_int_equal(entry(w, 1).flags, CKPT_PHASE_CHECKPOINT);
	assert_string_equal(entry(w, 1).phase.what, "save");
	assert_int_equal(entry(w, 0).kind, BEAT_KIND_PHASE_END);
	assert_int_equal(phase_now(w), CKPT_PHASE_STEP);
	assert_int_equal(save_nothing(w->c), -EINVAL); /* one that fails has ended, too */
	assert_int_equal(written(w), 6);
	assert_int_equal(entry(w, 0).kind, BEAT_KIND_PHASE_END);
}

static void test_should_save(void **state)
{
	struct world *w = *state;

	declare(w);
	assert_int_equal(ckpt_should_save(w->c, 1000), 0);
	atomic_store(&page(w)->wanted_step, 50);
	assert_int_equal(ckpt_should_save(w->c, 49), 0);
	assert_int_equal(ckpt_should_save(w->c, 50), 1);
	assert_int_equal(ckpt_should_save(w->c, 51), 1); /* it asks every tenth step, say */
	assert_int_equal(save(w->c, 49), 0);
	assert_int_equal(ckpt_should_save(w->c, 51), 1);
	assert_int_equal(save(w->c, 52), 0);
	assert_int_equal(ckpt_should_save(w->c, 60), 0);
	atomic_store(&page(w)->wanted_step, 70);
	assert_int_equal(ckpt_should_save(w->c, 70), 1);
	assert_int_equal(ckpt_skip(w->c, 70, "not now"), 0);
	assert_int_equal(ckpt_should_save(w->c, 71), 0);
	atomic_store(&page(w)->wanted_step, 0);
	assert_int_equal(ckpt_should_save(w->c, 80), 0);
	assert_int_equal(ckpt_should_save(NULL, 80), -EINVAL);
}

/* ---- ckptd comes and goes ---- */

static void test_without_ckptd(void **state)
{
	struct world *w = *state;

	fake_stop(w->f);
	assert_int_equal(beat_step(w->c, 7), 0);
	begin(w, CKPT_PHASE_EVALUATE);
	assert_int_equal(written(w), 2);
	/* It comes back with its memory: the same page. */
	fake_start(w->f);
	assert_int_equal(come_back(w->c), CKPT_RECONNECTED);
	assert_int_equal(written(w), 2);
	assert_int_equal(entry(w, 1).step, 7);
	end(w, CKPT_PHASE_STEP);
	assert_int_equal(written(w), 3);
}

/* Another page, to which all is told again that is still true. */
static void test_page_is_lost(void **state)
{
	struct world *w = *state;
	char text[BEAT_TEXT_BYTES];

	assert_int_equal(ckpt_role(w->c, "stage 3"), 0);
	assert_int_equal(ckpt_metric(w->c, "lr"), 0);
	assert_int_equal(beat_step(w->c, 7), 0);
	assert_int_equal(ckpt_phase_begin(w->c, CKPT_PHASE_EVALUATE, NULL, 0), 0);
	begin(w, CKPT_PHASE_SYNC);
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	assert_int_equal(beat_step(w->c, 8), 0); /* to nobody */
	assert_int_equal(come_back(w->c), CKPT_RECONNECTED);
	assert_int_equal(written(w), 1);
	assert_int_equal(entry(w, 0).kind, BEAT_KIND_PHASE_BEGIN);
	assert_int_equal(entry(w, 0).flags, CKPT_PHASE_EVALUATE);
	assert_int_equal(phase_now(w), CKPT_PHASE_SYNC);
	assert_int_equal(atomic_load(&page(w)->next_step), 9);
	beat_page_get_text(&page(w)->role, text);
	assert_string_equal(text, "stage 3");
	beat_page_get_text(&page(w)->metrics[0], text);
	assert_string_equal(text, "lr");
	assert_int_equal(ckpt_metric(w->c, "lr"), 0);
	end(w, CKPT_PHASE_EVALUATE);
	end(w, CKPT_PHASE_STEP);
	assert_int_equal(beat_step(w->c, 9), 0);
	assert_int_equal(entry(w, 0).step, 9);
}

static void test_older_ckptd(void **state)
{
	struct world *w = *state;
	struct ckpt *c;

	ckpt_close(w->c);
	fake_lock(w->f);
	fake_forget(w->f);
	fake_unlock(w->f);
	FAKE_SET(w->f, w->f->no_beats, true);
	w->c = c = fake_open(w->f);
	assert_null(page(w));
	assert_int_equal(beat_step(c, 1), 0);
	assert_int_equal(ckpt_metric(c, "lr"), 0);
	assert_int_equal(ckpt_role(c, "r"), 0);
	assert_int_equal(ckpt_phase_begin(c, CKPT_PHASE_EVALUATE, NULL, 0), 0);
	assert_int_equal(ckpt_phase_end(c), 0);
	assert_int_equal(ckpt_phase_end(c), CKPT_ESTATE);
	assert_int_equal(ckpt_should_save(c, 1), 0);
	/* One that can: */
	fake_stop(w->f);
	w->f->no_beats = false;
	fake_start(w->f);
	assert_int_equal(come_back(c), CKPT_RECONNECTED);
	assert_int_equal(atomic_load(&page(w)->next_step), 2);
}

/* ---- Processes and the system ---- */

static int run_in_child(int (*body)(struct world *w), struct world *w)
{
	pid_t pid = fork();
	int status;

	/* Not _exit(): the sanitizers' own looks for leaks, by calls that may be forbidden here. */
	if (pid == 0)
		syscall(SYS_exit_group, body(w));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int use_parents_handle(struct world *w)
{
	bool refused = beat_step(w->c, 5) == -EPERM && ckpt_should_save(w->c, 5) == -EPERM &&
		       ckpt_phase_begin(w->c, CKPT_PHASE_IDLE, NULL, 0) == -EPERM &&
		       ckpt_phase_end(w->c) == -EPERM && ckpt_role(w->c, "x") == -EPERM &&
		       ckpt_metric(w->c, "x") == -EPERM;

	ckpt_close(w->c);
	return refused ? 0 : 1;
}

static void test_forked_child(void **state)
{
	struct world *w = *state;

	assert_int_equal(beat_step(w->c, 4), 0);
	assert_int_equal(run_in_child(use_parents_handle, w), 0);
	assert_int_equal(written(w), 1);
	assert_int_equal(beat_step(w->c, 5), 0);
	assert_int_equal(written(w), 2);
}

/* From here on any system call but these ends the process. */
static int forbid_system_calls(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {.len = sizeof(f) / sizeof(f[0]), .filter = f};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) != 0)
		return -errno;
	return 0;
}

static int clock_alone(struct world *w)
{
	(void)w;
	if (forbid_system_calls() < 0)
		return 77;
	return clock_ns() == 0;
}

static int all_calls(struct world *w)
{
	struct ckpt *c = fake_open(w->f);
	struct ckpt_beat b = {.size = sizeof(b), .flags = CKPT_BEAT_LOSS};
	int r = forbid_system_calls();

	for (b.step = 1; b.step < 300 && r == 0; b.step++) {
		r = ckpt_phase_begin(c, CKPT_PHASE_SYNC, NULL, 0);
		if (r == 0)
			r = ckpt_phase_begin(c, CKPT_PHASE_EVALUATE, "e", 5);
		if (r == 0)
			r = ckpt_phase_end(c);
		if (r == 0)
			r = ckpt_phase_end(c);
		if (r == 0)
			r = ckpt_beat(c, &b);
		if (r == 0)
			r = ckpt_should_save(c, b.step);
		if (r == 0)
			r = ckpt_metric(c, "lr");
		if (r == 0)
			r = ckpt_role(c, "role");
	}
	return r == 0 ? 0 : 1;
}

static void test_no_system_call(void **state)
{
	struct world *w = *state;
	int clock = run_in_child(clock_alone, w);

	if (clock != 0) {
		print_message("the clock is a system call here (%d), or they cannot be forbidden\n",
			      clock);
		skip();
	}
	ckpt_close(w->c);
	w->c = NULL;
	fake_lock(w->f);
	fake_forget(w->f);
	fake_unlock(w->f);
	assert_int_equal(run_in_child(all_calls, w), 0);
	assert_int_equal(written(w), 299 * 3);
	assert_int_equal(entry(w, 0).step, 299);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_clock),
		TEST(test_values),
		TEST(test_sizes),
		TEST(test_words),
		TEST(test_busy),
		TEST(test_long_phases),
		TEST(test_phase_errors),
		TEST(test_calls_declare_their_phases),
		TEST(test_should_save),
		TEST(test_without_ckptd),
		TEST(test_page_is_lost),
		TEST(test_older_ckptd),
		TEST(test_forked_child),
		TEST(test_no_system_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
