/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes use of GPUs, of a made-up driver: alone and with others on one, what is too old,
 * what cannot be had, and a library that lies.
 */
#include <config.h>

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckptd/gpu_use.h"
#include "tests/lib/test.h"

#define SECOND     1000000000ull
#define GPUS       3
#define NOT_KNOWN  GPU_USES_NOT_KNOWN
#define NOT_FOUND  6
#define TOO_SMALL  7
#define NO_RIGHT   4
#define MIGHT_HAVE 300 /* of what a driver may list */

enum { ME, OTHER, THIRD, PEOPLE }; /* three processes that live */

static int32_t people[PEOPLE];

/* What the driver says of one GPU. */
struct nvml_gpu {
	unsigned busy, copies;
	struct nvml_process holds[MIGHT_HAVE];
	struct nvml_process_use samples[MIGHT_HAVE];
	unsigned n_holds, n_samples, served, says_n; /* says_n: instead of the truth */
	int use_result, holds_result, samples_result;
	uint64_t asked_since;
	unsigned asked;
};

static int use(nvml_gpu_t g, struct nvml_use *ret)
{
	*ret = (struct nvml_use){g->busy, g->copies};
	return g->use_result;
}

static int processes(nvml_gpu_t g, unsigned *n, struct nvml_process *ret)
{
	unsigned room = *n;

	*n = g->says_n ? g->says_n : g->n_holds;
	if (g->holds_result)
		return g->holds_result;
	if (g->n_holds > room)
		return TOO_SMALL;
	memcpy(ret, g->holds, g->n_holds * sizeof(*ret));
	return NVML_OK;
}

static int mps(nvml_gpu_t g, unsigned *n, struct nvml_process *ret)
{
	(void)ret;
	*n = g->served;
	return g->served ? TOO_SMALL : NVML_OK;
}

static int samples(nvml_gpu_t g, struct nvml_process_use *ret, unsigned *n,
		   unsigned long long since)
{
	unsigned room = *n, there = 0;

	g->asked++;
	g->asked_since = since;
	if (g->samples_result)
		return g->samples_result;
	for (unsigned i = 0; i < g->n_samples && there < room; i++)
		if (g->samples[i].time_us > since)
			ret[there++] = g->samples[i];
	*n = g->says_n ? g->says_n : there;
	if (g->n_samples > room)
		return TOO_SMALL;
	return there ? NVML_OK : NOT_FOUND;
}

struct world {
	struct nvml_library library;
	struct nvml_gpu gpu[GPUS];
	struct gpu_seen seen[GPUS];
	struct gpu_uses uses;
	uint64_t now_ns, time_us;
};

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	w->library = (struct nvml_library){
		.use = use, .processes = processes, .mps = mps, .samples = samples};
	w->now_ns = 50 * SECOND;
	w->time_us = 1700000000000000;
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	free(*state);
	return 0;
}

static void holds(struct world *w, int gpu, int who)
{
	struct nvml_gpu *g = &w->gpu[gpu];

	g->holds[g->n_holds++].pid = (unsigned)people[who];
}

/* A sample that is new at the next look. */
static void sample(struct world *w, int gpu, int who, unsigned sm)
{
	struct nvml_gpu *g = &w->gpu[gpu];

	g->samples[g->n_samples++] = (struct nvml_process_use){
		.pid = (unsigned)people[who], .time_us = ++w->time_us, .sm = sm};
}

static void look(struct world *w)
{
	w->now_ns += SECOND;
	w->uses = (struct gpu_uses){.at_ns = w->now_ns};
	for (int i = 0; i < GPUS; i++)
		gpu_uses_look(&w->uses, &w->library, &w->gpu[i], &w->seen[i]);
}

static unsigned of(const struct world *w, int who)
{
	return gpu_uses_of(&w->uses, people[who], w->now_ns);
}

/* As a rank has it: its process alone on its GPU. No sample is asked for. */
static void test_one_process_a_gpu(void **state)
{
	struct world *w = *state;

	assert_int_equal(of(w, ME), NOT_KNOWN); /* nobody has looked */
	holds(w, 0, ME);
	holds(w, 1, OTHER);
	w->gpu[1].busy = 97;
	look(w);
	assert_int_equal(of(w, ME), 0);
	assert_int_equal(of(w, OTHER), 970);
	assert_int_equal(of(w, THIRD), NOT_KNOWN); /* it holds none */
	assert_int_equal(w->gpu[0].asked + w->gpu[1].asked, 0);
	holds(w, 2, ME); /* of several the one that it uses most */
	w->gpu[0].busy = 5;
	w->gpu[2].busy = 40;
	look(w);
	assert_int_equal(of(w, ME), 400);
}

static void test_what_is_old_is_not_known(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	look(w);
	assert_int_equal(gpu_uses_of(&w->uses, people[ME], w->now_ns + GPU_USES_FRESH_NS), 0);
	assert_int_equal(gpu_uses_of(&w->uses, people[ME], w->now_ns + GPU_USES_FRESH_NS + 1),
			 NOT_KNOWN);
	/* Who reads it may be of a moment before. */
	assert_int_equal(gpu_uses_of(&w->uses, people[ME], w->now_ns - SECOND), 0);
}

/* Two share a GPU: what the samples of one account for is not the other's. */
static void test_two_on_one_gpu(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	holds(w, 0, OTHER);
	w->gpu[0].busy = 100;
	sample(w, 0, OTHER, 100); /* of any age: before the first look */
	look(w);
	assert_int_equal(w->gpu[0].asked_since, 0);
	assert_int_equal(of(w, ME), 1000);
	assert_int_equal(of(w, OTHER), 1000);
	sample(w, 0, OTHER, 98);
	look(w);
	assert_int_equal(w->gpu[0].asked_since, w->time_us - 1);
	assert_int_equal(of(w, ME), 20);
	assert_int_equal(of(w, OTHER), 1000);
	sample(w, 0, OTHER, 60);
	sample(w, 0, ME, 30);
	look(w);
	assert_int_equal(of(w, ME), 400); /* a tenth is nobody's: it may be anybody's */
	assert_int_equal(of(w, OTHER), 700);
	w->gpu[0].busy = 10; /* of another moment than the samples */
	sample(w, 0, ME, 80);
	look(w);
	assert_int_equal(of(w, ME), 800);
	assert_int_equal(of(w, OTHER), 0);
	w->gpu[0].busy = 0;
	look(w);
	assert_int_equal(of(w, ME), 0);
	assert_int_equal(of(w, OTHER), 0);
	w->gpu[0].copies = 50; /* and runs no kernel: it is not told for whom */
	look(w);
	assert_int_equal(of(w, ME), 500);
	sample(w, 0, OTHER, 0); /* the clock's new begin */
	look(w);
	sample(w, 0, OTHER, 0);
	w->gpu[0].samples[w->gpu[0].n_samples - 1].memory = 50;
	look(w);
	assert_int_equal(of(w, ME), 0);
}

/* Samples that are told again, or were there before a pause, say nothing of now. */
static void test_old_samples(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	holds(w, 0, OTHER);
	w->gpu[0].busy = 90;
	sample(w, 0, OTHER, 90);
	look(w);
	sample(w, 0, OTHER, 90);
	look(w);
	assert_int_equal(of(w, ME), 0);
	w->now_ns += GPU_USES_FRESH_NS; /* nobody asked for a while */
	sample(w, 0, OTHER, 90);
	look(w);
	assert_int_equal(of(w, ME), 900);
	sample(w, 0, OTHER, 90);
	look(w);
	assert_int_equal(of(w, ME), 0);
	look(w); /* nothing new, though the GPU works */
	assert_int_equal(of(w, ME), 900);
}

/* The driver's clock was set back by an hour: it begins anew. */
static void test_clock_set_back(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	holds(w, 0, OTHER);
	w->gpu[0].busy = 90;
	sample(w, 0, OTHER, 90);
	look(w);
	w->gpu[0].n_samples = 0;
	w->time_us -= 3600ull * 1000000;
	for (int i = 0; i < 2; i++) { /* found, and begun with */
		sample(w, 0, OTHER, 90);
		look(w);
		assert_int_equal(of(w, ME), 900);
	}
	sample(w, 0, OTHER, 90);
	look(w);
	assert_int_equal(of(w, ME), 0);
	w->gpu[0].samples[w->gpu[0].n_samples - 1].time_us = UINT64_MAX; /* for ever the newest */
	look(w);
	for (int i = 0; i < 3; i++) {
		w->gpu[0].n_samples = 0;
		sample(w, 0, OTHER, 90);
		look(w);
	}
	assert_int_equal(of(w, ME), 0);
}

static void test_samples_that_are_not_to_be_had(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	holds(w, 0, OTHER);
	w->gpu[0].busy = 70;
	for (int i = 0; i < 6; i++) {
		w->gpu[0].samples_result = i == 1 ? 3 /* not supported */ : NVML_OK;
		w->gpu[0].served = i == 2; /* a server runs the kernels of others */
		w->library.mps = i == 3 ? NULL : mps;
		w->library.samples = i == 4 ? NULL : samples;
		sample(w, 0, OTHER, i == 5 ? 101 : 70);
		look(w);
		assert_int_equal(of(w, ME), 700);
	}
	w->gpu[0].n_samples = 0;
	for (int i = 0; i < 2; i++) {
		sample(w, 0, OTHER, 70);
		sample(w, 0, THIRD, 70); /* of nobody who holds it */
		look(w);
	}
	assert_int_equal(of(w, ME), 0);
	sample(w, 0, OTHER, 101);
	look(w);
	assert_int_equal(of(w, ME), 700);
	w->gpu[0].n_samples = MIGHT_HAVE; /* more than is asked for */
	look(w);
	assert_int_equal(of(w, ME), 700);
	assert_int_equal(of(w, THIRD), NOT_KNOWN);
}

/* The use of a GPU is not told (MIG): nothing is known of who holds it, all of the others. */
static void test_use_that_is_not_told(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	holds(w, 1, ME);
	holds(w, 1, OTHER);
	holds(w, 2, THIRD);
	w->gpu[0].busy = 50;
	for (int i = 0; i < 4; i++) {
		w->gpu[1].use_result = i == 0 ? 3 : NVML_OK;
		w->gpu[1].busy = i == 1 ? 4000000000u : 3;
		w->gpu[1].copies = i == 2 ? 101 : 0;
		w->library.use = i == 3 ? NULL : use;
		look(w);
		assert_int_equal(of(w, ME), NOT_KNOWN);
		assert_int_equal(of(w, OTHER), NOT_KNOWN);
		assert_int_equal(of(w, THIRD), i == 3 ? NOT_KNOWN : 0);
	}
	assert_false(w->uses.blind);
}

/* Who holds one of the GPUs is not told: it may be anybody. */
static void test_holders_that_are_not_told(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	for (int i = 0; i < 7; i++) {
		w->gpu[1] = (struct nvml_gpu){.holds_result = i == 0 ? NO_RIGHT : NVML_OK,
					      .says_n = i == 1 ? 4000000000u : 0,
					      .n_holds = i == 2   ? MIGHT_HAVE
							 : i == 3 ? 0
								  : 1};
		w->gpu[1].holds[0].pid = i == 4   ? 0
					 : i == 5 ? UINT32_MAX  /* -1: everybody, for kill(2) */
						  : 0x7ffffffe; /* nobody's */
		look(w);
		assert_int_equal(w->uses.blind, i != 3);
		assert_int_equal(of(w, ME), i == 3 ? 0 : NOT_KNOWN);
	}
	w->gpu[1].holds_result = NVML_GPU_IS_LOST; /* nothing runs there */
	look(w);
	assert_int_equal(of(w, ME), 0);
	w->library.processes = NULL;
	look(w);
	assert_int_equal(of(w, ME), NOT_KNOWN);
	w->gpu[1] = (struct nvml_gpu){.busy = 0};
	w->library.processes_v2 = processes; /* of an older driver */
	look(w);
	assert_int_equal(of(w, ME), 0);
}

/* One that is listed twice counts once. */
static void test_listed_twice(void **state)
{
	struct world *w = *state;

	holds(w, 0, OTHER);
	holds(w, 0, OTHER);
	holds(w, 0, ME);
	w->gpu[0].busy = 80;
	for (int i = 0; i < 2; i++) {
		sample(w, 0, OTHER, 20);
		sample(w, 0, OTHER, 30);
		look(w);
	}
	assert_int_equal(of(w, ME), 500);
	assert_int_equal(of(w, OTHER), 800);
	assert_int_equal(w->uses.n, 2);
}

/* More processes than are kept: who is one too many is not known, the others are. */
static void test_too_many_processes(void **state)
{
	struct world *w = *state;

	holds(w, 0, ME);
	w->uses.at_ns = w->now_ns;
	for (int i = 0; i < GPU_USES_MAX; i++)
		w->uses.use[i].pid = 100000000 + i;
	w->uses.n = GPU_USES_MAX;
	gpu_uses_look(&w->uses, &w->library, &w->gpu[0], &w->seen[0]);
	assert_int_equal(w->uses.n, GPU_USES_MAX);
	assert_int_equal(of(w, ME), NOT_KNOWN);
	w->uses.n--;
	gpu_uses_look(&w->uses, &w->library, &w->gpu[0], &w->seen[0]);
	assert_int_equal(of(w, ME), 0);
	assert_int_equal(gpu_uses_of(&w->uses, 100000000, w->now_ns), 0);
}

static int start_people(void **state)
{
	(void)state;
	people[ME] = getpid();
	for (int i = ME + 1; i < PEOPLE; i++) {
		people[i] = fork();
		if (people[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
		if (people[i] < 0)
			return -1;
	}
	return 0;
}

static int end_people(void **state)
{
	(void)state;
	for (int i = ME + 1; i < PEOPLE; i++) {
		kill(people[i], SIGKILL);
		waitpid(people[i], NULL, 0);
	}
	return 0;
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_one_process_a_gpu),    T(test_what_is_old_is_not_known),
		T(test_two_on_one_gpu),       T(test_old_samples),
		T(test_clock_set_back),       T(test_samples_that_are_not_to_be_had),
		T(test_use_that_is_not_told), T(test_holders_that_are_not_told),
		T(test_listed_twice),         T(test_too_many_processes),
	};

	return cmocka_run_group_tests(tests, start_people, end_people);
}
