/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs through NVML, with a stand-in for its library: what is measured, what becomes of events,
 * what happens when GPU, driver or library fail; and that a process's activity tells of its GPU.
 */
#include <config.h>

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "ckptd/collect_source.h"
#include "ckptd/log.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/processes.h"
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

/* The collectors tell once in an interval what was measured, and reads take as long as they wait
 * for events: none of their samples is without. */
static void test_measured_in_each_interval(void **state)
{
	static const uint64_t intervals[] = {SECOND / 10, SECOND, 10 * SECOND};
	struct world *w = *state;

	for (int i = 0; i < 3; i++) {
		uint64_t interval = w->config.interval_ns = intervals[i];
		uint64_t wait = interval / 4 < 150000000 ? interval / 4 : 150000000;
		uint64_t told = w->now_ns += interval;
		bool measured = true;

		assert_int_equal(look(w), 0);
		while (w->now_ns < told + 500 * interval) {
			collect_out_reset(&w->out);
			w->now_ns += wait + 1300000;
			assert_int_equal(collect_nvml.read(w->state, w->now_ns, &w->out, &w->e), 0);
			if (w->now_ns / interval != (w->now_ns - wait - 1300000) / interval) {
				assert_true(measured);
				measured = false;
			}
			measured |= !isnan(w->out.metrics[METRIC_GPU_POWER]);
		}
	}
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

static void put_process(struct world *w, int gpu, unsigned pid)
{
	struct fake_nvml_gpu *g = &w->nvml->gpu[gpu];

	g->process[g->n_processes++] = (struct fake_nvml_process){.pid = pid};
}

static unsigned use_of_me(const struct world *w)
{
	return gpu_uses_of(&w->out.uses, getpid(), w->now_ns);
}

/* Asked for only while somebody asks about processes. */
static void test_what_processes_use(void **state)
{
	struct world *w = *state;

	put_process(w, 1, (unsigned)getpid());
	w->nvml->gpu[1].busy = 37;
	assert_int_equal(look(w), 0);
	assert_int_equal(w->out.uses.at_ns, 0);
	w->config.probes = true;
	assert_int_equal(look(w), 0);
	assert_int_equal(w->out.uses.at_ns, w->now_ns);
	assert_int_equal(use_of_me(w), 370);
	test_says(w->out.state, "2 GPUs");
	w->nvml->event(1, 0x8, 79); /* told all the same */
	assert_int_equal(look(w), 0);
	assert_int_equal(count(w, SAMPLE_NVML, NULL), 1);
	w->now_ns -= 1; /* not so soon again */
	assert_int_equal(look(w), 0);
	assert_int_equal(w->out.uses.at_ns, 0);
	assert_int_equal(look(w), 0);
	assert_int_equal(w->out.uses.at_ns, w->now_ns);
}

static void test_what_processes_use_is_not_told(void **state)
{
	struct world *w = *state;

	w->config.probes = true;
	put_process(w, 0, (unsigned)getpid());
	w->nvml->gpu[1].processes_result = 4; /* no right to see it */
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), GPU_USES_NOT_KNOWN);
	test_says(w->out.state, "does not tell which processes use them");
	w->nvml->gpu[1].processes_result = 0;
	w->nvml->gpu[1].too_many = 1 << 30;
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), GPU_USES_NOT_KNOWN);
	w->nvml->gpu[1].too_many = 0;
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), 900);
	assert_null(strstr(w->out.state, "does not tell which"));
	w->nvml->gpu[0].rates_result = 3; /* partitioned */
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), GPU_USES_NOT_KNOWN);
	w->nvml->gpu[0].rates_result = 0;
	w->nvml->gpu[0].result = 15; /* fell off the bus: nothing runs on it */
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), GPU_USES_NOT_KNOWN); /* it holds none */
	put_process(w, 1, (unsigned)getpid());
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), 900);
}

/* Another process on the same GPU does all that it does. */
static void test_what_another_process_uses(void **state)
{
	struct world *w = *state;
	struct fake_nvml_process *parent;

	w->config.probes = true;
	put_process(w, 0, (unsigned)getpid());
	put_process(w, 0, (unsigned)getppid());
	parent = &w->nvml->gpu[0].process[1];
	parent->sm = 90;
	for (int i = 0; i < 2; i++) {
		parent->time_us = 1000 + (unsigned)i;
		assert_int_equal(look(w), 0);
	}
	assert_int_equal(use_of_me(w), 0);
	assert_int_equal(gpu_uses_of(&w->out.uses, getppid(), w->now_ns), 900);
	w->nvml->gpu[0].served = 1;
	parent->time_us++;
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), 900);
	w->nvml->gpu[0].served = 0;
	parent->hidden = true; /* alone, as far as is told */
	parent->time_us++;
	assert_int_equal(look(w), 0);
	assert_int_equal(use_of_me(w), 900);
}

/* ---- Up to the activity of a process ---- */

struct watched {
	struct process_id id;
	unsigned looks, gpu_permille;
};

static void no_sample(void *arg, const struct sample *s)
{
	(void)arg;
	(void)s;
}

static void on_activity(void *arg, const struct process_id *p, const struct sample_activity *a)
{
	struct watched *w = arg;

	assert_true(process_same(p, &w->id));
	w->gpu_permille = a->gpu_permille;
	w->looks++;
}

static void test_activity_tells_of_the_gpu(void **state)
{
	static const struct collect_source *const one[] = {&collect_nvml};
	struct log log = {.fd = STDERR_FILENO, .level = LOG_ERR, .journal = true};
	struct collect_options o = {
		.root = "", .kmsg = "", .data = "/", .interval_ns = SECOND, .log = &log};
	struct watched me = {.id = {.pid = getpid()}, .gpu_permille = GPU_USES_NOT_KNOWN};
	struct collect_sink sink = {.arg = &me, .sample = no_sample, .activity = on_activity};
	struct collectors *c = NULL;
	struct world *w = *state;
	struct loop *l = NULL;

	assert_int_equal(process_start_time(me.id.pid, &me.id.start), 0);
	put_process(w, 0, (unsigned)getpid());
	w->nvml->gpu[0].busy = 42;
	assert_int_equal(loop_epoll_new(&l, &w->e), 0);
	o.on[COLLECT_NVML] = true;
	assert_int_equal(collectors_new_from(l, &o, one, 1, &c, &w->e), 0);
	c->ops->start(c, &sink);
	c->ops->probe(c, &me.id, true);
	while (me.gpu_permille == GPU_USES_NOT_KNOWN)
		loop_epoll_turn(l, UINT64_MAX);
	assert_int_equal(me.gpu_permille, 420);
	/* When somebody asks again that is long ago, however short the time. */
	c->ops->probe(c, &me.id, false);
	w->nvml->gpu[0].processes_result = 4; /* no other answer comes */
	for (uint64_t end = loop_now(l) + SECOND / 2; loop_now(l) < end;)
		loop_epoll_turn(l, SECOND / 10);
	me.looks = 0;
	c->ops->probe(c, &me.id, true);
	while (me.looks < 1)
		loop_epoll_turn(l, UINT64_MAX);
	assert_int_equal(me.gpu_permille, GPU_USES_NOT_KNOWN);
	c->ops->stop(c);
	collectors_free(c);

	/* With the collector off it is not known. */
	o.on[COLLECT_NVML] = false;
	me.looks = 0;
	assert_int_equal(collectors_new_from(l, &o, one, 1, &c, &w->e), 0);
	c->ops->start(c, &sink);
	c->ops->probe(c, &me.id, true);
	while (me.looks < 2)
		loop_epoll_turn(l, UINT64_MAX);
	assert_int_equal(me.gpu_permille, GPU_USES_NOT_KNOWN);
	collectors_free(c);
	loop_epoll_free(l);
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
		T(test_measured),
		T(test_measured_in_each_interval),
		T(test_events),
		T(test_unavailable),
		T(test_lost),
		T(test_little_is_known),
		T(test_driver_goes_and_comes),
		T(test_nothing_here),
		T(test_what_processes_use),
		T(test_what_processes_use_is_not_told),
		T(test_what_another_process_uses),
		T(test_activity_tells_of_the_gpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
