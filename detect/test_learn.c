/* SPDX-License-Identifier: Apache-2.0 */
/* Phi, learned timeouts, what a look at a process says, and silent nodes. */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "detect/doing.h"
#include "detect/options.h"
#include "detect/phi.h"
#include "detect/rules.h"
#include "detect/test_fixture.h"
#include "detect/timeout.h"

#define SEC NS_PER_SEC
#define MS  NS_PER_MS

/* Against the law itself; the logistic curve falls faster than it by an eighth at 5 sigma. */
static void test_phi_is_the_tail_of_the_normal_law(void **state)
{
	struct phi p = {0};
	double sigma;

	(void)state;
	assert_true(phi_now(&p, 1000, 0, 1) == 0);
	for (int i = 0; i < PHI_WINDOW; i++)
		phi_learn(&p, 10 + (i % 2 ? 1 : -1));
	sigma = phi_sigma(&p);
	assert_true(fabs(phi_mean(&p) - 10) < 1e-6 && fabs(sigma - 1) < 1e-6);
	for (double y = -2; y < 5; y += 0.25) {
		double exact = -log10(erfc(y / M_SQRT2) / 2);

		assert_true(fabs(phi_now(&p, 10 + y, 0, 0.1) - exact) < 0.02 + 0.13 * exact);
	}
	/* Grows on, also where the tail is no number any more. */
	for (double y = 1; y < 1e6; y *= 1.5)
		assert_true(phi_now(&p, 10 + y * 1.5, 0, 0.1) > phi_now(&p, 10 + y, 0, 0.1));
	assert_true(phi_now(&p, 1e300, 0, 0.1) > 1e6);
	assert_true(phi_now(&p, 15, 3, 0.1) < phi_now(&p, 15, 0, 0.1));
	assert_true(phi_now(&p, 15, 0, 2) < phi_now(&p, 15, 0, 0.1));
}

static void test_phi_window(void **state)
{
	struct rng_seeded g;
	struct phi p;
	double last[PHI_WINDOW], sum, squares;

	(void)state;
	rng_seed(&g, test_seed(1));
	phi_bootstrap(&p, 8);
	assert_true(p.n == 2 && fabs(phi_mean(&p) - 8) < 1e-6 && fabs(phi_sigma(&p) - 2) < 1e-6);
	p = (struct phi){0};
	for (int i = 0; i < 5000; i++) {
		last[i % PHI_WINDOW] = (float)((double)rng_below(&g.rng, 1000000) / 1000);
		phi_learn(&p, last[i % PHI_WINDOW]);
		if (i < PHI_WINDOW)
			continue;
		sum = squares = 0;
		for (int k = 0; k < PHI_WINDOW; k++)
			sum += last[k];
		for (int k = 0; k < PHI_WINDOW; k++)
			squares += pow(last[k] - sum / PHI_WINDOW, 2);
		assert_true(fabs(phi_mean(&p) - sum / PHI_WINDOW) < 1e-3);
		assert_true(fabs(phi_sigma(&p) - sqrt(squares / PHI_WINDOW)) < 1e-2);
	}
}

static void test_learned(void **state)
{
	const struct timeout_options o = {
		.longest_x = 2, .median_x = 12, .floor_s = 5, .first_s = 900, .few = 8};
	struct learned l = {0};

	(void)state;
	assert_true(learned_timeout(&l, &o) == 900);
	for (int i = 0; i < 1000; i++)
		learned_add(&l, i % 2 ? 0.9 : 1.1, SEC, 128);
	assert_true(l.median > 0.85 && l.median < 1.2);
	assert_true(learned_timeout(&l, &o) > 10 && learned_timeout(&l, &o) < 15);
	learned_add(&l, 300, SEC, 128);
	assert_true(learned_timeout(&l, &o) == 600);
	/* Over runs: half of the weight on the newest. */
	learned_new_run(&l);
	assert_true(learned_longest(&l) == 300);
	assert_true(l.median > 0.85 && l.median < 1.2);
	learned_add(&l, 100, SEC, 128);
	learned_new_run(&l);
	assert_true(learned_longest(&l) == 200);
	/* Of the last two periods. */
	l = (struct learned){0};
	learned_add(&l, 70, SEC, 128);
	learned_add(&l, 1, SEC + TIMEOUT_PERIOD_NS, 128);
	assert_true(learned_longest(&l) == 70);
	learned_add(&l, 1, SEC + 2 * TIMEOUT_PERIOD_NS, 128);
	assert_true(learned_longest(&l) == 1);
	/* The median follows a new pace within the window. */
	for (int i = 0; i < 256; i++)
		learned_add(&l, 1, SEC + 2 * TIMEOUT_PERIOD_NS, 128);
	for (int i = 0; i < 256; i++)
		learned_add(&l, 4, SEC + 2 * TIMEOUT_PERIOD_NS, 128);
	assert_true(l.median > 3.6 && l.median < 4.4);
	/* Out of the histogram's range on both sides. */
	for (int i = 0; i < 500; i++)
		learned_add(&l, 0, SEC + 2 * TIMEOUT_PERIOD_NS, 128);
	assert_true(l.median < 0.01);
	for (int i = 0; i < 500; i++)
		learned_add(&l, 1e7, SEC + 2 * TIMEOUT_PERIOD_NS, 128);
	assert_true(l.median > 10000);
}

static void test_phases_are_kept_apart(void **state)
{
	struct timeouts t = {0};
	char what[16];

	(void)state;
	learned_add(&timeouts_phase(&t, PHASE_EVALUATE, "long", 1)->times, 1000, 1, 128);
	learned_add(&timeouts_phase(&t, PHASE_EVALUATE, "short", 2)->times, 1, 2, 128);
	assert_true(learned_longest(&timeouts_find(&t, PHASE_EVALUATE, "long")->times) == 1000);
	assert_true(learned_longest(&timeouts_find(&t, PHASE_EVALUATE, "short")->times) == 1);
	assert_null(timeouts_find(&t, PHASE_COMPILE, "short"));
	/* One too many takes the place of the one not used for longest. */
	for (uint64_t i = 0; i < TIMEOUT_PHASES - 1; i++) {
		snprintf(what, sizeof(what), "w%u", (unsigned)i);
		timeouts_phase(&t, PHASE_OTHER, what, 3 + i);
	}
	assert_null(timeouts_find(&t, PHASE_EVALUATE, "long"));
	assert_non_null(timeouts_find(&t, PHASE_EVALUATE, "short"));
}

static void test_looks(void **state)
{
	struct sample_activity a = {
		.phase = PHASE_STEP, .state = 'S', .cpu_permille = 3, .gpu_permille = UINT16_MAX};
	struct looks l = {0};

	(void)state;
	assert_int_equal(doing_now(&a), DOING_IDLE);
	looks_add(&l, &a, false, SEC);
	assert_int_equal(looks_say(&l, SEC), DOING_UNKNOWN);
	looks_add(&l, &a, false, 2 * SEC);
	assert_int_equal(looks_say(&l, 2 * SEC), DOING_IDLE);
	assert_int_equal(looks_say(&l, 9 * SEC), DOING_UNKNOWN);
	assert_false(looks_fresh(&l, 9 * SEC));
	a.timed = TIMED_YES;
	assert_int_equal(doing_now(&a), DOING_LATER);
	a.timed = TIMED_NOT_KNOWN;
	assert_int_equal(doing_now(&a), DOING_ASLEEP);
	looks_add(&l, &a, false, 10 * SEC);
	assert_int_equal(looks_say(&l, 10 * SEC), DOING_UNKNOWN);
	looks_add(&l, &a, false, 11 * SEC);
	assert_int_equal(looks_say(&l, 11 * SEC), DOING_ASLEEP);
	for (uint64_t t = 20; t < 50; t += 10) { /* looks are rare now */
		looks_add(&l, &a, false, t * SEC);
		looks_add(&l, &a, false, t * SEC + MS); /* and one was told twice */
	}
	assert_int_equal(looks_say(&l, 74 * SEC), DOING_ASLEEP); /* three were lost */
	assert_int_equal(looks_say(&l, 76 * SEC), DOING_UNKNOWN);
	looks_add(&l, &a, false, 130 * SEC); /* once in 90 s: none may be lost */
	looks_add(&l, &a, false, 131 * SEC);
	assert_true(looks_fresh(&l, 250 * SEC));
	assert_false(looks_fresh(&l, 252 * SEC));
	l.n = 0; /* it goes on */
	looks_add(&l, &a, false, 300 * SEC);
	assert_true(looks_fresh(&l, 301 * SEC));
	assert_false(looks_fresh(&l, 305 * SEC));
	a.state = '?'; /* nothing of it can be read */
	a.cpu_permille = UINT16_MAX;
	assert_int_equal(doing_now(&a), DOING_UNKNOWN);
	a.state = 'S';
	a.cpu_permille = 3;
	a.timed = TIMED_NO;
	a.gpu_permille = 990;
	assert_int_equal(doing_now(&a), DOING_BUSY);
	a.phase = PHASE_SYNC;
	assert_int_equal(doing_now(&a), DOING_WAITING);
	a.state = 'T';
	assert_int_equal(doing_now(&a), DOING_STOPPED);
	a = (struct sample_activity){.phase = PHASE_STEP,
				     .state = 'S',
				     .cpu_permille = UINT16_MAX,
				     .gpu_permille = UINT16_MAX};
	l = (struct looks){0};
	for (uint64_t i = 1; i < 4; i++) {
		looks_add(&l, &a, false, i * SEC);
		assert_int_equal(looks_say(&l, i * SEC), DOING_UNKNOWN);
	}
	looks_add(&l, &a, false, 4 * SEC);
	assert_int_equal(looks_say(&l, 4 * SEC), DOING_IDLE);
}

/* What its GPU does comes a moment after the rest: the look before it counts, but only if it said
 * that all the rest does nothing. */
static void test_looks_at_a_gpu_that_is_seen_later(void **state)
{
	struct sample_activity a = {
		.phase = PHASE_STEP, .state = 'S', .cpu_permille = 3, .gpu_permille = UINT16_MAX};
	struct looks l = {0};

	(void)state;
	looks_add(&l, &a, true, SEC);
	assert_int_equal(looks_say(&l, SEC), DOING_UNKNOWN);
	a.gpu_permille = 0;
	looks_add(&l, &a, true, 2 * SEC);
	assert_int_equal(looks_say(&l, 2 * SEC), DOING_IDLE);
	assert_true(l.quiet);
	a.gpu_permille = UINT16_MAX; /* not now */
	looks_add(&l, &a, true, 3 * SEC);
	assert_int_equal(looks_say(&l, 3 * SEC), DOING_UNKNOWN);
	looks_add(&l, &a, true, 4 * SEC);
	assert_int_equal(looks_say(&l, 4 * SEC), DOING_ASLEEP);
	assert_false(l.quiet);
	a.gpu_permille = 700;
	looks_add(&l, &a, true, 5 * SEC);
	assert_int_equal(looks_say(&l, 5 * SEC), DOING_BUSY);
	/* Asleep for another reason too: it is not half idle. */
	a.gpu_permille = UINT16_MAX;
	a.timed = TIMED_NOT_KNOWN;
	looks_add(&l, &a, true, 6 * SEC);
	a.gpu_permille = 0;
	a.timed = TIMED_NO;
	looks_add(&l, &a, true, 7 * SEC);
	assert_int_equal(looks_say(&l, 7 * SEC), DOING_UNKNOWN);
}

/* Ready to run without getting a core, or on its way from phase to phase: that is no idleness. */
static void test_looks_at_who_is_starved(void **state)
{
	struct sample_activity a = {.phase = PHASE_STEP,
				    .state = 'R',
				    .threads_running = 1,
				    .cpu_permille = 3,
				    .gpu_permille = UINT16_MAX};
	struct looks l = {0};

	(void)state;
	looks_add(&l, &a, false, SEC);
	looks_add(&l, &a, false, 2 * SEC);
	assert_int_equal(looks_say(&l, 2 * SEC), DOING_BUSY);
	assert_false(l.quiet);
	/* A watchdog that wakes for a moment is none. */
	for (uint64_t i = 3; i < 9; i++) {
		a.state = 'S';
		a.threads_running = i == 6;
		looks_add(&l, &a, false, i * SEC);
		if (i > 3)
			assert_int_equal(looks_say(&l, i * SEC), DOING_IDLE);
		assert_true(l.quiet);
	}
	a.phase = PHASE_SYNC;
	for (uint64_t i = 9; i < 12; i++) {
		a.since_ns = i * SEC - MS;
		looks_add(&l, &a, false, i * SEC);
		assert_int_equal(looks_say(&l, i * SEC), DOING_BUSY);
		assert_false(l.quiet);
	}
	looks_add(&l, &a, false, 12 * SEC);
	assert_int_equal(looks_say(&l, 12 * SEC), DOING_WAITING);
	assert_true(l.quiet);
	a.since_ns = 0;
	a.state = 'T';
	looks_add(&l, &a, false, 13 * SEC);
	assert_int_equal(looks_say(&l, 13 * SEC), DOING_STOPPED);
}

/* Three nodes tell of themselves every 10 s, more or less; node 1 hosts a rank. */
static void life(struct detector *d, struct rng_seeded *g, uint64_t from_s, uint64_t to_s,
		 uint32_t without)
{
	uint64_t next[3] = {0};

	for (uint64_t t = from_s; t < to_s; t++) {
		detector_advance(d, t * SEC);
		for (uint32_t n = 0; n < 3; n++) {
			struct sample s = {.kind = SAMPLE_ALIVE,
					   .time_ns = t * SEC,
					   .node = n,
					   .job = SAMPLE_NONE,
					   .rank = SAMPLE_NONE,
					   .device = SAMPLE_NONE};

			if (n == without || t < next[n])
				continue;
			next[n] = t + 9 + rng_below(&g->rng, 3);
			feed(d, &s);
		}
	}
}

static void test_silent_nodes(void **state)
{
	struct told told = {0};
	struct detector *d;
	struct rng_seeded g;
	struct sample s = {.kind = SAMPLE_MEMBER, .time_ns = SEC, .node = 1, .device = SAMPLE_NONE};

	(void)state;
	rng_seed(&g, test_seed(1));
	d = told_detector(&told, NULL, NULL);
	feed(d, &s);
	life(d, &g, 1, 600, SAMPLE_NONE);
	life(d, &g, 600, 622, 1); /* two are lost */
	life(d, &g, 622, 1000, SAMPLE_NONE);
	assert_int_equal(told.alarms + told.notes, 0);
	life(d, &g, 1000, 1060, 1);
	assert_int_equal(told.alarms, 1);
	assert_int_equal(told.last.subject.node, 1);
	assert_int_equal(told.last.class, CLASS_DEAD);
	assert_true(told.last.raised_ns > 1020 * SEC && told.last.raised_ns < 1050 * SEC);
	test_says(told.last.words, "node 1 has not been heard of for");
	/* A rank elsewhere gives up waiting for it. */
	life(d, &g, 1060, 1150, 1);
	s.kind = SAMPLE_EXIT;
	s.time_ns = 1150 * SEC;
	s.node = 2;
	s.rank = 1;
	s.exit.how = EXIT_SIGNAL;
	s.exit.value = 6;
	feed(d, &s);
	assert_int_equal(told.alarms, 1);
	assert_int_equal(told.notes, 1);
	test_says(told.last.words, "most likely in consequence");
	told.notes = 0;
	life(d, &g, 1150, 1190, SAMPLE_NONE);
	assert_int_equal(told.cleared, 1);
	life(d, &g, 1190, 1290, 0); /* runs nothing */
	assert_int_equal(told.alarms, 1);
	assert_int_equal(told.notes, 1);
	/* Nobody at all is heard of, for an hour: that is the detector. */
	life(d, &g, 1290, 1390, SAMPLE_NONE);
	for (uint64_t t = 1390; t < 4900; t++)
		detector_advance(d, t * SEC);
	life(d, &g, 4900, 5300, SAMPLE_NONE);
	assert_int_equal(told.alarms, 1);
	assert_int_equal(told.notes, 1);
	detector_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_phi_is_the_tail_of_the_normal_law),
		cmocka_unit_test(test_phi_window),
		cmocka_unit_test(test_learned),
		cmocka_unit_test(test_phases_are_kept_apart),
		cmocka_unit_test(test_looks),
		cmocka_unit_test(test_looks_at_a_gpu_that_is_seen_later),
		cmocka_unit_test(test_looks_at_who_is_starved),
		cmocka_unit_test(test_silent_nodes),
	};

	return cmocka_run_group_tests_name("learn", tests, NULL, NULL);
}
