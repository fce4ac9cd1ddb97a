/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves in two halves: the copy in between, and that a tensor which changed is found.
 */
#include <config.h>

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/test_fake.h"
#include "tests/lib/test.h"

#define BYTES (1u << 20)

struct world {
	struct fake *f;
	struct ckpt *c;
	uint8_t *data;
	struct ckpt_binding b[2];
	int64_t strides[2];
	uint8_t small[64];
	struct ckpt_save_args a;
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	uint64_t shape[1] = { BYTES / 4 }, small[2] = { 2, 4 };

	w->f = fake_new();
	w->c = fake_open(w->f);
	fake_declare(w->c, "w", 1, shape);
	fake_declare(w->c, "t", 2, small);
	w->data = malloc(BYTES);
	test_fill(w->data, BYTES, 1);
	test_fill(w->small, sizeof(w->small), 2);
	w->strides[0] = 4; /* a 4 x 2 matrix, transposed */
	w->strides[1] = 8;
	w->b[0] = (struct ckpt_binding){ .ptr = w->data, .device = CKPT_HOST, .dtype = CKPT_F32,
					 .bytes = BYTES };
	w->b[1] = (struct ckpt_binding){ .ptr = w->small, .device = CKPT_HOST, .dtype = CKPT_F32,
					 .bytes = 32, .strides = w->strides, .ndim = 2 };
	w->a = (struct ckpt_save_args){ .size = sizeof(w->a), .step = 1, .tensors = w->b,
					.n_tensors = 2, .timeout_ms = 10000 };
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	fake_free(w->f);
	free(w->data);
	free(w);
	return 0;
}

static void test_begin_and_fence(void **state)
{
	struct world *w = *state;
	struct ckpt_blob blob = { "rng", "abcd", 4 };
	struct ckpt_stats stats = { .size = sizeof(stats) };
	int64_t gone[2];
	struct ckpt_binding copies[2];
	char name[8] = "rng";

	for (unsigned step = 1; step <= 4; step++) {
		const struct fake_seal *s;

		memcpy(copies, w->b, sizeof(copies));
		memcpy(gone, w->strides, sizeof(gone));
		copies[1].strides = gone;
		w->a.tensors = copies;
		w->a.step = step;
		blob.name = name;
		w->a.blobs = &blob;
		w->a.n_blobs = 1;
		w->data[0] = (uint8_t)step;
		assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
		/* All that was passed, but the tensors' memory, may go. */
		memset(copies, 0xff, sizeof(copies));
		memset(gone, 0xff, sizeof(gone));
		memset(name, 'x', 3);
		memset(&blob, 0xff, sizeof(blob));
		assert_int_equal(ckpt_save_fence(w->c, step % 2 ? CKPT_FULL_COMPARE : 0), CKPT_OK);
		assert_int_equal(w->f->n_seals, step);
		s = &w->f->seals[step - 1];
		assert_memory_equal(s->image, w->data, BYTES);
		for (int i = 0; i < 2; i++)
			for (int k = 0; k < 4; k++)
				assert_memory_equal(s->image + BYTES + (i * 4 + k) * 4,
						    w->small + k * 8 + i * 4, 4);
		assert_string_equal(s->blobs[0].name, "rng");
		assert_memory_equal(s->image + s->blobs[0].offset, "abcd", 4);
		strcpy(name, "rng");
		blob = (struct ckpt_blob){ name, "abcd", 4 };
	}
	assert_int_equal(ckpt_stats(w->c, &stats), 0);
	assert_int_equal(stats.saves, 4);
}

/* These tests do what they must not: write to tensors while the library copies them. */
#ifdef __SANITIZE_THREAD__
#define RACES_ON_PURPOSE() skip()
#else
#define RACES_ON_PURPOSE()                                                                         \
	do {                                                                                       \
	} while (0)
#endif

static void torn_at(struct world *w, uint64_t at, unsigned flags, int want)
{
	uint32_t skips = w->f->n_skips, seals = w->f->n_seals;

	w->a.step++;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	w->data[at] ^= 1;
	assert_int_equal(ckpt_save_fence(w->c, flags), want);
	if (want == CKPT_ETORN) {
		assert_non_null(strstr(ckpt_last_error(NULL), "tensor 'w' changed"));
		assert_int_equal(w->f->n_skips, skips + 1);
		assert_true(w->f->skips[skips].credit > 0);
		assert_int_equal(w->f->skips[skips].step, w->a.step);
		assert_int_equal(w->f->n_seals, seals);
	}
}

static void test_torn_snapshots_are_dropped(void **state)
{
	struct world *w = *state;

	RACES_ON_PURPOSE();
	assert_int_equal(ckpt_prepare(w->c, 0), 0);
	/* The first and the last byte are sampled, and much in between is not. */
	torn_at(w, 0, 0, CKPT_ETORN);
	torn_at(w, BYTES - 1, 0, CKPT_ETORN);
	assert_int_equal(w->f->n_seals, 0);
	/* The next one is whole again. */
	w->a.step++;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save_fence(w->c, CKPT_FULL_COMPARE), CKPT_OK);
	assert_memory_equal(w->f->seals[0].image, w->data, BYTES);
}

/* Full comparison finds a change wherever it is: what was copied before it differs, and what was
 * copied after it was copied as it is at the fence, which is a snapshot too. So the change is made
 * when the copy is certainly over. */
static void test_full_comparison_finds_any_byte(void **state)
{
	struct world *w = *state;
	uint64_t seed = test_seed(7), x = seed;

	RACES_ON_PURPOSE();
	assert_int_equal(ckpt_prepare(w->c, 0), 0);
	for (int i = 0; i < 40; i++) {
		volatile uint8_t *image;
		uint8_t *last;
		uint64_t at;
		bool strided = i % 8 == 7;

		test_fill(&x, sizeof(x), x + 1);
		at = x % BYTES;
		w->a.step++;
		last = w->small + 28;
		*last = (uint8_t)(i + 1); /* no older image has it there */
		assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
		/* It is copied last. Looked at alone: memcmp() of all may find a byte that is not
		 * there yet, look again, find it and say "equal" of what comes behind it too. */
		fake_lock(w->f);
		image = w->f->slots[(w->f->next_slot - 1) % w->f->n_taken].base;
		fake_unlock(w->f);
		while (image[BYTES + 28] != *last)
			sched_yield();
		if (strided)
			w->small[at % 32] ^= 0x10;
		else
			w->data[at] ^= 0x10;
		assert_int_equal(ckpt_save_fence(w->c, CKPT_FULL_COMPARE), CKPT_ETORN);
		assert_non_null(strstr(ckpt_last_error(NULL), strided ? "'t'" : "'w'"));
	}
	assert_int_equal(w->f->n_seals, 0);
}

static void test_order_of_calls(void **state)
{
	struct world *w = *state;
	struct ckpt_load_args l = { .size = sizeof(l), .tensors = w->b, .n_tensors = 2 };

	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_ESTATE);
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_ESTATE);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ESTATE);
	assert_int_equal(ckpt_skip(w->c, 2, NULL), CKPT_ESTATE);
	assert_int_equal(ckpt_load(w->c, &l, NULL), CKPT_ESTATE);
	test_says(ckpt_last_error(NULL), "in Python leave the block of saving(), first");
	assert_int_equal(ckpt_save_fence(w->c, CKPT_WAIT_CREDIT), -EINVAL);
	assert_int_equal(ckpt_wait(w->c, 1, CKPT_SEALED, 1000, NULL), CKPT_OK); /* others go on */
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_OK);
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_ESTATE);
	/* Without a credit both halves say so. */
	fake_lock(w->f);
	w->f->grant = false;
	fake_unlock(w->f);
	w->a.step = 2;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK); /* the last one */
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_OK);
	w->a.step = 3;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_SKIPPED);
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_SKIPPED);
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_ESTATE);
}

static void test_close_between_begin_and_fence(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	ckpt_close(w->c);
	w->c = NULL;
	assert_int_equal(w->f->n_seals, 0);
}

static volatile sig_atomic_t signalled_elsewhere;
static pthread_t main_thread;

static void on_signal(int sig)
{
	(void)sig;
	if (!pthread_equal(pthread_self(), main_thread))
		signalled_elsewhere = 1;
}

/* The trainer's handlers run on the trainer's threads. */
static void test_library_threads_take_no_signals(void **state)
{
	struct world *w = *state;
	struct sigaction sa = { .sa_handler = on_signal };
	sigset_t usr1;

	main_thread = pthread_self();
	sigaction(SIGUSR1, &sa, NULL);
	assert_int_equal(ckpt_prepare(w->c, 0), 0);
	fake_stop(w->f); /* its thread takes signals */
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, NULL); /* whom does the kernel pick now? */
	for (int i = 0; i < 20; i++)
		kill(getpid(), SIGUSR1);
	poll(NULL, 0, 2);
	assert_false(signalled_elsewhere);
	pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
	signal(SIGUSR1, SIG_DFL);
	fake_start(w->f);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_begin_and_fence),
		T(test_torn_snapshots_are_dropped),
		T(test_full_comparison_finds_any_byte),
		T(test_order_of_calls),
		T(test_close_between_begin_and_fence),
		T(test_library_threads_take_no_signals),
	};

	return cmocka_run_group_tests_name("overlap", tests, NULL, NULL);
}
