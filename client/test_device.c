/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device tensors, with the tests' own stand-in for libcuda: its device memory cannot be touched by
 * the host and its copies are done by a thread, late.
 */
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/clock.h"
#include "client/test_fake.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "tests/lib/fake_libcuda.h"
#include "tests/lib/test.h"

#define ROWS 40
#define COLS 30
#define BYTES (ROWS * COLS * 4)

struct world {
	struct fake *f;
	struct ckpt *c;
	struct ckpt_binding b[3]; /* on device 0, on the host, on device 1 */
	uint8_t host[BYTES];
	struct ckpt_save_args a;
};

static char library[1000];

static void find_library(void)
{
	const char *build = getenv("top_builddir");

	snprintf(library, sizeof(library), "%s/.libs/libfakecuda.so", build ? build : ".");
	must(access(library, R_OK) == 0);
}

/* The stand-in's table. Its library stays in the process from the first call on. */
static const struct fake_cuda *cuda(void)
{
	static const struct fake_cuda *table;
	void *so;

	if (table)
		return table;
	so = dlopen(library, RTLD_NOW);
	must(so);
	table = dlsym(so, FAKE_CUDA_TABLE);
	must(table);
	return table;
}

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	find_library();
	cuda()->reset();
	w->f = fake_new();
	setenv("CKPT_LIBCUDA", library, 1);
	w->c = fake_open(w->f);
	for (int i = 0; i < 3; i++) {
		static const char *const names[] = { "d0", "host", "d1" };

		fake_declare(w->c, names[i], 2, (uint64_t[]){ ROWS, COLS });
		w->b[i] = (struct ckpt_binding){ .device = CKPT_HOST, .dtype = CKPT_F32,
						 .bytes = BYTES };
	}
	w->b[0].ptr = cuda()->alloc(BYTES);
	w->b[0].device = 0;
	w->b[1].ptr = w->host;
	w->b[2].ptr = cuda()->alloc(BYTES);
	w->b[2].device = 1;
	test_fill(cuda()->bytes(w->b[0].ptr), BYTES, 1);
	test_fill(w->host, BYTES, 2);
	test_fill(cuda()->bytes(w->b[2].ptr), BYTES, 3);
	w->a = (struct ckpt_save_args){ .size = sizeof(w->a), .step = 1, .tensors = w->b,
					.n_tensors = 3, .timeout_ms = 10000,
					.flags = CKPT_WAIT_CREDIT };
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	assert_int_equal(cuda()->count("pinned"), 0);
	assert_int_equal(cuda()->count("ragged"), 0);
	assert_int_equal(cuda()->count("cuDevicePrimaryCtxRetain"),
			 cuda()->count("cuDevicePrimaryCtxRelease_v2"));
	assert_int_equal(cuda()->count("cuStreamCreate"), cuda()->count("cuStreamDestroy_v2"));
	fake_free(w->f);
	free(w);
	cuda()->reset();
	return 0;
}

/* Where the image has tensor i: each is larger than a leaf. */
static uint64_t place(int i)
{
	return (uint64_t)i * 8192;
}

static const uint8_t *bytes_of(struct world *w, int i)
{
	return i == 1 ? w->host : cuda()->bytes(w->b[i].ptr);
}

static void check_image(struct world *w, uint32_t seal)
{
	for (int i = 0; i < 3; i++)
		assert_memory_equal(w->f->seals[seal].image + place(i), bytes_of(w, i), BYTES);
}

static void await_pinned(uint64_t n)
{
	for (int i = 0; cuda()->count("pinned") != n; i++) {
		must(i < 10000);
		poll(NULL, 0, 1);
	}
}

static void test_save(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	check_image(w, 0);
	assert_int_equal(cuda()->count("cuMemcpyDtoHAsync_v2"), 2);
	await_pinned(FAKE_SLOTS); /* from the first device tensor on */
	/* Kernels that were launched before still write to the tensor. */
	w->a.step = 2;
	cuda()->launch(w->b[0].ptr, BYTES, 0x5a);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	for (int i = 0; i < BYTES; i++)
		assert_int_equal(w->f->seals[1].image[i], 0x5a);
	assert_int_equal(cuda()->count("cuDevicePrimaryCtxRetain"), 2);
	assert_int_equal(cuda()->count("pinned"), FAKE_SLOTS);
}

/* A device that comes into use behind ckpt_prepare(): a save does not wait for more than its
 * deadline until slots are pinned, and uses none before. */
static void test_pinning_takes_long(void **state)
{
	struct world *w = *state;
	uint64_t start;

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	assert_int_equal(cuda()->count("pinned"), 0);
	cuda()->set_slow_pinning(1000);
	w->a.timeout_ms = 100;
	start = clock_ns();
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_SKIPPED);
	assert_in_range(clock_ns() - start, 90 * NS_PER_MS, 900 * NS_PER_MS);
	assert_non_null(strstr(ckpt_last_error(NULL), "is still being prepared"));
	w->a.timeout_ms = 20000;
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_in_range(cuda()->count("pinned"), 1, 2); /* not all of them */
	check_image(w, 0);
	cuda()->set_slow_pinning(0);
	await_pinned(FAKE_SLOTS);
}

/* The save that is the first to see a device finds that ckptd, and slots with it, are gone. */
static void test_slots_are_gone_before_they_are_pinned(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	check_image(w, 0);
	await_pinned(FAKE_SLOTS);
}

static void test_pinned_at_prepare(void **state)
{
	struct world *w = *state;
	uint64_t before;

	cuda()->set_current(1); /* a framework uses the device already */
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	assert_int_equal(cuda()->count("pinned"), FAKE_SLOTS);
	before = cuda()->count("cuMemHostRegister_v2");
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	assert_int_equal(cuda()->count("cuMemHostRegister_v2"), before);
	check_image(w, 0);
	/* Slots that ckptd took away are let go of before they are unmapped. */
	fake_stop(w->f);
	fake_forget(w->f);
	fake_start(w->f);
	w->a.step = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_RECONNECTED);
	await_pinned(FAKE_SLOTS);
	check_image(w, 1);
}

static void test_pinning_is_not_needed(void **state)
{
	struct world *w = *state;

	cuda()->set_failing("cuMemHostRegister_v2", 2);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	check_image(w, 0);
}

/* An element of what tensor 2 was saved as. */
static const uint8_t *saved(const struct world *w, int seal, int i, int k)
{
	return w->f->seals[seal].image + place(2) + (i * COLS + k) * 4;
}

static void test_strides(void **state)
{
	struct world *w = *state;
	int64_t turned[2] = { 4, 4 * ROWS };

	w->b[2].strides = turned;
	w->b[2].ndim = 2;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	for (int i = 0; i < ROWS; i++)
		for (int k = 0; k < COLS; k++)
			assert_memory_equal(saved(w, 0, i, k),
					    bytes_of(w, 2) + i * 4 + k * 4 * ROWS, 4);
	assert_int_equal(cuda()->count("cuMemcpy2DAsync_v2"), ROWS);
	assert_int_equal(cuda()->count("cuMemcpyDtoHAsync_v2"), 1);
	w->a.step = 2;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save_fence(w->c, CKPT_FULL_COMPARE), CKPT_OK);
	w->a.step = 3;
	cuda()->set_failing("cuMemcpy2DAsync_v2", 700);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	assert_non_null(strstr(ckpt_last_error(NULL), "copy from it"));
	cuda()->set_failing(NULL, 0);
}

/* Some columns of a wider tensor, whose rows go in one copy; each of whose rows begins before the
 * one in front of it ends, or is the same, or lies before it: these are copied one by one. */
static void test_rows(void **state)
{
	static const struct {
		int64_t stride, first;
		uint64_t rows, copies;
	} t[] = {
		{ .stride = 4 * (COLS + 7), .first = 12, .rows = 1, .copies = 0 },
		{ .stride = 4 * (COLS - 7), .rows = 0, .copies = ROWS },
		{ .stride = 0, .rows = 0, .copies = ROWS },
		{ .stride = -4 * (COLS + 7), .first = 4 * (COLS + 7) * (ROWS - 1), .copies = ROWS },
	};
	struct world *w = *state;
	size_t len = 4 * (COLS + 7) * ROWS;
	uint8_t *wide = cuda()->alloc(len);

	test_fill(cuda()->bytes(wide), len, 5);
	w->b[2].ndim = 2;
	for (int n = 0; n < 4; n++) {
		int64_t strides[2] = { t[n].stride, 4 };
		uint64_t rows = cuda()->count("cuMemcpy2DAsync_v2");
		uint64_t copies = cuda()->count("cuMemcpyDtoHAsync_v2");

		w->b[2].ptr = wide + t[n].first;
		w->b[2].strides = strides;
		w->a.step = (uint64_t)n + 1;
		assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
		for (int i = 0; i < ROWS; i++)
			assert_memory_equal(saved(w, n, i, 0),
					    cuda()->bytes(wide) + t[n].first + i * t[n].stride,
					    COLS * 4);
		assert_int_equal(cuda()->count("cuMemcpy2DAsync_v2") - rows, t[n].rows);
		assert_int_equal(cuda()->count("cuMemcpyDtoHAsync_v2") - copies, t[n].copies + 1);
	}
}

static void test_overlapped_and_torn(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_OK);
	check_image(w, 0);
	/* Each device is waited for once in begin, in the copy, and at the fence. */
	assert_int_equal(cuda()->count("cuStreamSynchronize"), 3 * 2);
	await_pinned(FAKE_SLOTS + 1);
	w->a.step = 2;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	assert_int_equal(ckpt_save_fence(w->c, CKPT_FULL_COMPARE), CKPT_OK);
	check_image(w, 1);
	w->a.step = 3;
	assert_int_equal(ckpt_save_begin(w->c, &w->a), CKPT_OK);
	cuda()->launch(w->b[2].ptr, BYTES, 1); /* the optimizer came too early */
	cuda()->finish();
	assert_int_equal(ckpt_save_fence(w->c, 0), CKPT_ETORN);
	assert_non_null(strstr(ckpt_last_error(NULL), "'d1'"));
	assert_int_equal(w->f->n_seals, 2);
}

static void test_errors(void **state)
{
	struct world *w = *state;

	w->b[0].device = 7;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	assert_non_null(strstr(ckpt_last_error(NULL), "device 7: find it: invalid device ordinal"));
	w->b[0].device = 70;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	w->b[0].device = 0;
	cuda()->set_failing("cuStreamCreate", 700);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	cuda()->set_failing("cuMemcpyDtoHAsync_v2", 700);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	/* Three failed before they looked for a credit, the last one gives its credit back. */
	assert_int_equal(w->f->n_skips, 4);
	assert_int_equal(w->f->skips[2].kind, CKPT_SKIP_REFUSED);
	assert_true(w->f->skips[3].credit > 0);
	w->a.step = 2;
	cuda()->set_failing("cuStreamSynchronize", 719);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	w->a.step = 3;
	cuda()->set_failing(NULL, 0);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
	check_image(w, 0);
}

static void test_no_driver(void **state)
{
	struct world *w = *state;

	setenv("CKPT_LIBCUDA", "/nowhere/libcuda.so.1", 1);
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	assert_non_null(strstr(ckpt_last_error(NULL), "/nowhere/libcuda.so.1"));
	assert_non_null(strstr(ckpt_last_error(NULL), "CKPT_LIBCUDA"));
	assert_int_equal(w->f->n_seals, 0);
	setenv("CKPT_LIBCUDA", "libm.so.6", 1); /* something else by that name */
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_ENODEVICE);
	assert_non_null(strstr(ckpt_last_error(NULL), "has no function"));
	/* Host tensors need none. */
	w->b[0].device = w->b[2].device = CKPT_HOST;
	w->b[0].ptr = w->b[2].ptr = w->host;
	assert_int_equal(ckpt_save(w->c, &w->a), CKPT_OK);
}

/* ---- Loads ---- */

static void offer_image(struct world *w, const uint8_t *image, uint64_t len,
			struct plan_piece *pieces, size_t n, int *fd, struct writer *ret,
			uint8_t **ret_leaves)
{
	uint64_t leaf = len > 1 << 20 ? 65536 : 4096; /* their digests fit a message */
	uint8_t *leaves = calloc(len / leaf, 16);
	struct load_source source = { .kind = LOAD_MEMORY, .image_len = len,
				      .geometry = { leaf, 4 * leaf }, .leaves = leaves };
	struct load_plan p = { .sources = &source, .n_sources = 1,
			       .plan = { .pieces = pieces, .n_pieces = n } };

	for (uint64_t i = 0; i < len / leaf; i++) {
		struct digest d = digest_of(image + i * leaf, leaf);

		memcpy(leaves + i * 16, d.b, 16);
	}
	for (size_t i = 0; i < n; i++)
		p.plan.bytes += pieces[i].run * (pieces[i].ndim ? pieces[i].count[0] : 1);
	*fd = memfd_create("stored", MFD_CLOEXEC);
	must(write(*fd, image, len) == (ssize_t)len);
	*ret = (struct writer){ 0 };
	must(load_plan_encode(&p, ret) == 0);
	fake_lock(w->f);
	w->f->offers[0] = (struct fake_offer){ .plan = ret->buf, .plan_len = ret->len, .fds = fd,
					       .n_fds = 1, .step = 5, .tier = CKPT_TIER_MEMORY };
	w->f->n_offers = 1;
	fake_unlock(w->f);
	*ret_leaves = leaves;
}

/* One source that holds all three tensors; d1 is stored as two halves of its columns. */
static void offer(struct world *w, int *fd, struct writer *ret, uint8_t **ret_leaves)
{
	uint8_t image[3 * 8192];
	struct plan_piece pieces[4] = {
		{ .target = 0, .src = place(0), .run = BYTES },
		{ .target = 1, .src = place(1), .run = BYTES },
		{ .target = 2, .src = place(2), .run = COLS * 2, .ndim = 1, .count = { ROWS },
		  .src_stride = { COLS * 2 }, .dst_stride = { COLS * 4 } },
		{ .target = 2, .src = place(2) + BYTES / 2, .dst = COLS * 2, .run = COLS * 2,
		  .ndim = 1, .count = { ROWS }, .src_stride = { COLS * 2 },
		  .dst_stride = { COLS * 4 } },
	};

	test_fill(image, sizeof(image), 77);
	offer_image(w, image, sizeof(image), pieces, 4, fd, ret, ret_leaves);
}

static void check_loaded(struct world *w, const int64_t *strides)
{
	uint8_t image[3 * 8192];

	test_fill(image, sizeof(image), 77);
	assert_memory_equal(bytes_of(w, 0), image, BYTES);
	assert_memory_equal(bytes_of(w, 1), image + place(1), BYTES);
	for (int i = 0; i < ROWS; i++) {
		for (int k = 0; k < COLS; k++) {
			const uint8_t *from = image + place(2);
			const uint8_t *to = bytes_of(w, 2) + i * strides[0] + k * strides[1];

			from += k < COLS / 2 ? (i * COLS / 2 + k) * 4
					     : BYTES / 2 + (i * COLS / 2 + k - COLS / 2) * 4;
			assert_memory_equal(to, from, 4);
		}
	}
}

static void test_load(void **state)
{
	struct world *w = *state;
	struct ckpt_load_args a = { .size = sizeof(a), .step = CKPT_LATEST, .tensors = w->b,
				    .n_tensors = 3, .timeout_ms = 10000 };
	int64_t plain[2] = { COLS * 4, 4 }, turned[2] = { 4, ROWS * 4 };
	struct ckpt_loaded got = { .size = sizeof(got) };
	struct writer plan;
	uint8_t *leaves;
	int fd;

	setenv("CKPT_LOAD_THREADS", "3", 1);
	offer(w, &fd, &plan, &leaves);
	assert_int_equal(ckpt_load(w->c, &a, &got), CKPT_OK);
	check_loaded(w, plain);
	assert_int_equal(got.bytes, 3 * BYTES);
	memset(cuda()->bytes(w->b[0].ptr), 0, BYTES);
	w->b[2].strides = turned;
	w->b[2].ndim = 2;
	assert_int_equal(ckpt_load(w->c, &a, &got), CKPT_OK);
	check_loaded(w, turned);
	cuda()->set_failing("cuMemcpyHtoDAsync_v2", 700);
	assert_int_equal(ckpt_load(w->c, &a, &got), CKPT_ENODEVICE);
	assert_non_null(strstr(ckpt_last_error(NULL), "copy to it"));
	cuda()->set_failing("cuStreamSynchronize", 700);
	assert_int_equal(ckpt_load(w->c, &a, &got), CKPT_ENODEVICE);
	cuda()->set_failing(NULL, 0);
	close(fd);
	free(leaves);
	writer_free(&plan);
}

/* Larger than what is read at once: the window of one range is used again for the next. A window
 * for much is pinned. */
static void load_large(struct world *w, uint64_t len, const char *threads, uint64_t pins)
{
	struct ckpt_binding b = { .device = 0, .dtype = CKPT_F32, .bytes = len };
	struct ckpt_load_args a = { .size = sizeof(a), .step = CKPT_LATEST, .tensors = &b,
				    .n_tensors = 1, .timeout_ms = 10000 };
	uint64_t before = cuda()->count("cuMemHostRegister_v2"), pinned = cuda()->count("pinned");
	struct writer plan;
	uint8_t *leaves, *image = malloc(len);
	int fd;

	ckpt_close(w->c);
	w->f->slot_bytes = len + (4 << 20);
	w->f->n_slots = 1;
	FAKE_SET(w->f, w->f->late_slots, true); /* or the thread pins it behind the load */
	w->c = fake_open(w->f);
	fake_declare(w->c, "big", 1, (uint64_t[]){ len / 4 });
	b.ptr = cuda()->alloc(len);
	setenv("CKPT_LOAD_THREADS", threads, 1);
	test_fill(image, len, 78);
	offer_image(w, image, len, &(struct plan_piece){ .run = len }, 1, &fd, &plan, &leaves);
	assert_int_equal(ckpt_load(w->c, &a, NULL), CKPT_OK);
	assert_memory_equal(cuda()->bytes(b.ptr), image, len);
	assert_int_equal(cuda()->count("cuMemHostRegister_v2") - before, pins);
	assert_int_equal(cuda()->count("pinned"), pinned);
	close(fd);
	free(leaves);
	free(image);
	writer_free(&plan);
}

static void test_load_large(void **state)
{
	load_large(*state, 1 << 20, "1", 0);
	load_large(*state, 33 << 20, "1", 1);
	load_large(*state, 33 << 20, "3", 3);
	cuda()->set_failing("cuMemHostRegister_v2", 2);
	load_large(*state, 33 << 20, "3", 0);
	cuda()->set_failing(NULL, 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_save),
		T(test_pinned_at_prepare),
		T(test_pinning_takes_long),
		T(test_slots_are_gone_before_they_are_pinned),
		T(test_pinning_is_not_needed),
		T(test_strides),
		T(test_rows),
		T(test_overlapped_and_torn),
		T(test_errors),
		T(test_no_driver),
		T(test_load),
		T(test_load_large),
	};

	return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
