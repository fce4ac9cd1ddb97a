/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs through NVML, with a stand-in for its library: what is measured, what becomes of events, and
 * what happens when GPU, driver or library fail.
 */
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckptd/collect_source.h"
#include "tests/lib/fake_libnvidia_ml.h"
#include "tests/lib/test.h"

#define SECOND 1000000000ull

struct world {
	const struct fake_nvml *nvml;
	struct collect_config config;
	struct collect_out out;
	struct err e;
	void *state, *dl;
	uint64_t now_ns;
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	const char *build = getenv("top_builddir");
	char path[512];

	snprintf(path, sizeof(path), "%s/.libs/libfakenvml.so", build ? build : ".");
	w->dl = dlopen(path, RTLD_NOW);
	assert_non_null(w->dl);
	w->nvml = dlsym(w->dl, FAKE_NVML_TABLE);
	assert_non_null(w->nvml);
	w->nvml->reset();
	setenv("CKPT_LIBNVIDIA_ML", path, 1);
	w->config.interval_ns = SECOND;
	w->now_ns = 100 * SECOND;
	assert_int_equal(collect_out_init(&w->out), 0);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	if (w->state)
		collect_nvml.close(w->state);
	assert_int_equal(w->nvml->opened(), 0);
	collect_out_fini(&w->out);
	dlclose(w->dl);
	free(w);
	return 0;
}

static int look(struct world *w)
{
	int r = 0;

	collect_out_reset(&w->out);
	w->now_ns += SECOND;
	if (!w->state)
		r = collect_nvml.open(&w->config, &w->out, &w->state, &w->e);
	return r < 0 ? r : collect_nvml.read(w->state, w->now_ns, &w->out, &w->e);
}

static unsigned count(const struct world *w, enum sample_kind k, const struct sample **ret_last)
{
	unsigned n = 0;

	for (size_t i = 0; i < w->out.n; i++) {
		if (w->out.samples[i].kind != k)
			continue;
		n++;
		if (ret_last)
			*ret_last = &w->out.samples[i];
	}
	return n;
}

static void near(float a, double b)
{
	if (!(fabs((double)a - b) < 1e-3 * fabs(b) + 1e-6))
		fail_msg("%f is not near %f", (double)a, b);
}

static void test_measured(void **state)
{
	const struct sample *s = NULL;
	struct world *w = *state;

	w->nvml->gpu[0].busy = 30;
	w->nvml->gpu[1].temperature = 80;
	w->nvml->gpu[1].power_mw = 200000;
	assert_int_equal(look(w), 0);
	test_says(w->out.state, "2 GPUs");
	assert_int_equal(count(w, SAMPLE_NAME, &s), 2);
	assert_string_equal(s->name.text, "0000:9c:00");
	assert_int_equal(s->name.role, 'g');
	assert_int_equal(s->device, 1);
	near(w->out.metrics[METRIC_GPU_BUSY], 0.6);
	near(w->out.metrics[METRIC_GPU_POWER], 300);
	near(w->out.metrics[METRIC_GPU_CLOCK], 1980);
	near(w->out.metrics[METRIC_GPU_TEMPERATURE], 80);
	assert_true(isnan(w->out.metrics[METRIC_NVLINK])); /* only the next one has a rate */
	assert_int_equal(count(w, SAMPLE_NVML, &s), 2);
	assert_int_equal(s->nvml.recovery, RECOVERY_NONE);
	assert_int_equal(s->nvml.xid, 0);
	w->nvml->gpu[0].nvlink_kib += 1 << 20; /* a GiB each way in a second */
	assert_int_equal(look(w), 0);
	near(w->out.metrics[METRIC_NVLINK], 2.0 * (1 << 30));
	assert_int_equal(w->out.n, 0); /* nothing has changed */
	w->nvml->gpu[1].corrected = 7;
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_int_equal(s->nvml.corrected, 7);
	assert_int_equal(s->device, 1);
}

static void test_events(void **state)
{
	const struct sample *s = NULL;
	struct world *w = *state;

	assert_int_equal(look(w), 0);
	w->nvml->event(1, 0x8, 79);
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_int_equal(s->nvml.xid, 79);
	assert_int_equal(s->device, 1);
	for (int i = 0; i < 70; i++)
		w->nvml->event(0, 0x8, 13);
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, NULL), 64); /* the rest next time */
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, NULL), 6);
	w->nvml->gpu[0].recovery = RECOVERY_DRAIN_RESET;
	w->nvml->event(0, 0x8000, 0);
	w->config.interval_ns = 60 * SECOND; /* told by the event, not found */
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_int_equal(s->nvml.recovery, RECOVERY_DRAIN_RESET);
}

static void test_unavailable(void **state)
{
	const struct sample *s = NULL;
	struct world *w = *state;

	assert_int_equal(look(w), 0);
	w->nvml->event(0, 0x4000, 0);
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_true(s->nvml.unavailable);
	w->nvml->gpu[0].recovery = RECOVERY_RESET;
	for (int i = 0; i < 5; i++)
		assert_int_equal(look(w), 0);
	w->nvml->gpu[0].recovery = RECOVERY_NONE;
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_false(s->nvml.unavailable);
}

/* One GPU falls off the bus: the other is read on. */
static void test_lost(void **state)
{
	const struct sample *s = NULL;
	struct world *w = *state;

	assert_int_equal(look(w), 0);
	w->nvml->gpu[0].result = 15;
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_true(s->nvml.unavailable);
	assert_int_equal(s->nvml.recovery, RECOVERY_UNKNOWN);
	near(w->out.metrics[METRIC_GPU_BUSY], 0.9);
	w->nvml->gpu[0].result = 0;
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_false(s->nvml.unavailable);
	w->nvml->gpu[0].result = 16; /* reset required */
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_int_equal(s->nvml.recovery, RECOVERY_RESET);
}

/* An old driver: no field of recovery, no ECC, no NVLink, no events. */
static void test_little_is_known(void **state)
{
	const struct sample *s = NULL;
	struct world *w = *state;

	*w->nvml->supported = 0;
	for (int i = 0; i < 2; i++) {
		w->nvml->gpu[i].recovery = -1;
		w->nvml->gpu[i].no_ecc = w->nvml->gpu[i].no_nvlink = true;
	}
	for (int i = 0; i < 3; i++)
		assert_int_equal(look(w), 0);
	test_says(w->out.state, "tells no events");
	assert_true(isnan(w->out.metrics[METRIC_NVLINK]));
	near(w->out.metrics[METRIC_GPU_BUSY], 0.9);
	w->nvml->event(0, 0x8, 79); /* nobody listens */
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 0);
}

/* The driver is replaced under way; GPUs keep their numbers. */
static void test_driver_goes_and_comes(void **state)
{
	const struct sample *s = NULL;
	struct world *w = *state;

	assert_int_equal(look(w), 0);
	for (int i = 0; i < 2; i++)
		w->nvml->gpu[i].result = 18;
	for (int i = 0; i < 10; i++) { /* the same sentence: told once */
		assert_int_equal(look(w), -EIO);
		test_says(w->e.text, "unloaded or replaced");
	}
	*w->nvml->init = 18;
	for (int i = 0; i < 40; i++)
		assert_int_equal(look(w), -EIO);
	test_says(w->e.text, "nvmlInit: 18");
	assert_int_equal(w->nvml->opened(), 0);
	*w->nvml->init = 0;
	*w->nvml->n = 3; /* one more, and the first is the last now */
	for (int i = 0; i < 3; i++)
		snprintf(w->nvml->gpu[i].address, 32, "00000000:%02X:00.0", 0x9d - i);
	for (int i = 0; i < 3; i++)
		w->nvml->gpu[i].result = 0;
	for (int i = 0; i < 40 && !count(w, SAMPLE_NAME, NULL); i++)
		look(w);
	assert_int_equal(count(w, SAMPLE_NAME, &s), 1);
	assert_string_equal(s->name.text, "0000:9d:00");
	assert_int_equal(s->device, 2);
	w->nvml->event(2, 0x8, 31);
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, &s), 1);
	assert_int_equal(s->device, 0); /* 0000:9b:00, as before */
}

static void test_nothing_here(void **state)
{
	struct world *w = *state;

	*w->nvml->init = 9;
	assert_int_equal(look(w), -ENOENT);
	test_says(w->out.state, "driver is not loaded");
	*w->nvml->init = 0;
	*w->nvml->n = 0;
	assert_int_equal(look(w), -ENOENT);
	test_says(w->out.state, "knows no GPU");
	setenv("CKPT_LIBNVIDIA_ML", "/nonexistent.so", 1);
	assert_int_equal(look(w), -ENOENT);
	test_says(w->out.state, "there is no '/nonexistent.so'");
	setenv("CKPT_LIBNVIDIA_ML", "libm.so.6", 1);
	assert_int_equal(look(w), -ENOENT);
	test_says(w->out.state, "has no function nvmlInit_v2");
	assert_null(w->state);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_measured),     T(test_events),          T(test_unavailable),
		T(test_lost),         T(test_little_is_known), T(test_driver_goes_and_comes),
		T(test_nothing_here),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
