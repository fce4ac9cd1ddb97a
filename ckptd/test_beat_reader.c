/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beat pages read: what a trainer wrote, what it wrote too fast, and what it never should have.
 * The page is a heap block of its very size: a byte read beyond it is found by the sanitizer.
 */
#include <config.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptd/beat_reader.h"
#include "tests/lib/test.h"

#define S 1000000000ull

struct fixture {
	struct beat_page *page;
	struct beat_reader reader;
	uint64_t written;
	struct beat_record records[BEAT_LOOK_MAX];
	struct sample samples[BEAT_LOOK_MAX];
	uint32_t n;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	f->page = aligned_alloc(4096, sizeof(*f->page));
	memset(f->page, 0, sizeof(*f->page));
	beat_reader_begin(&f->reader, f->page);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	free(f->page);
	free(f);
	return 0;
}

static void put(struct fixture *f, const struct beat_record *r)
{
	beat_page_put(f->page, ++f->written, r);
}

static void put_step(struct fixture *f, uint64_t step, uint64_t time_ns)
{
	put(f, &(struct beat_record){.kind = BEAT_KIND_STEP, .time_ns = time_ns, .step = step});
}

static void put_phase(struct fixture *f, bool begins, uint32_t phase, uint64_t time_ns)
{
	put(f, &(struct beat_record){.kind = begins ? BEAT_KIND_PHASE_BEGIN : BEAT_KIND_PHASE_END,
				     .flags = phase,
				     .time_ns = time_ns,
				     .phase = {.expected_ns = 5 * S, .what = "eval"}});
	atomic_store(&f->page->long_place, begins ? BEAT_PLACE(phase, time_ns) : 0);
}

/* One look; f->samples are what it tells. */
static void look(struct fixture *f, uint64_t from, uint64_t now)
{
	uint32_t n = beat_reader_look(&f->reader, f->page, from, now, f->records);

	f->n = 0;
	for (uint32_t i = 0; i < n; i++) {
		f->samples[f->n] = (struct sample){0};
		f->n += beat_reader_sample(&f->reader, &f->records[i], &f->samples[f->n]);
	}
}

static void test_steps(void **state)
{
	struct fixture *f = *state;
	struct beat_record r = {.kind = BEAT_KIND_STEP,
				.time_ns = 3 * S,
				.step = 12,
				.flags = BEAT_HAS_LOSS | BEAT_HAS_TOKENS | BEAT_HAS_BUSY |
					 BEAT_HAS_METRIC(7) | 1u << 31,
				.busy_ns = S / 2,
				.tokens = 7,
				.loss = NAN,
				.grad_norm = 4};

	look(f, 0, S);
	assert_int_equal(f->n, 0);
	put_step(f, 10, 2 * S);
	r.metrics[7] = 2.5;
	put(f, &r);
	look(f, S, 4 * S);
	assert_int_equal(f->n, 2);
	assert_int_equal(f->samples[0].kind, SAMPLE_BEAT);
	assert_int_equal(f->samples[0].time_ns, 2 * S);
	assert_int_equal(f->samples[0].beat.flags, 0);
	assert_true(isnan(f->samples[0].beat.loss) && isnan(f->samples[0].beat.grad_norm));
	assert_int_equal(f->samples[1].beat.step, 12);
	assert_int_equal(f->samples[1].beat.missed, 1);
	assert_int_equal(f->samples[1].beat.flags, BEAT_LOSS | BEAT_TOKENS | BEAT_BUSY);
	assert_int_equal(f->samples[1].beat.tokens, 7);
	assert_int_equal(f->samples[1].beat.busy_ns, S / 2);
	assert_true(isnan(f->samples[1].beat.loss));      /* given, and it is no number */
	assert_true(isnan(f->samples[1].beat.grad_norm)); /* not given */
	assert_int_equal(f->reader.interval_ns, S / 2);
	assert_int_equal(f->reader.metrics_given, 1u << 7);
	assert_true(f->reader.metrics[7] == 2.5);
	look(f, 4 * S, 5 * S);
	assert_int_equal(f->n, 0);
}

/* More time at work than there was: it is not believed. */
static void test_busy_is_bounded(void **state)
{
	struct fixture *f = *state;
	struct beat_record r = {.kind = BEAT_KIND_STEP,
				.step = 1,
				.flags = BEAT_HAS_BUSY,
				.busy_ns = 60 * S,
				.time_ns = 2 * S};

	put_step(f, 0, S);
	put(f, &r);
	look(f, 0, 3 * S);
	assert_int_equal(f->n, 2);
	assert_int_equal(f->samples[1].beat.flags, 0);
	assert_int_equal(f->samples[1].beat.busy_ns, 0);
}

static void test_phases(void **state)
{
	struct fixture *f = *state;

	put_phase(f, true, PHASE_EVALUATE, 2 * S);
	put_phase(f, false, PHASE_EVALUATE, 3 * S);
	put_phase(f, false, PHASE_EVALUATE, 3 * S); /* it had ended */
	put_phase(f, true, PHASE_SYNC, 3 * S);      /* no long one */
	put_phase(f, true, 77, 3 * S);              /* none at all */
	look(f, S, 4 * S);
	assert_int_equal(f->n, 2);
	assert_int_equal(f->samples[0].kind, SAMPLE_PHASE);
	assert_true(f->samples[0].phase.begins);
	assert_int_equal(f->samples[0].phase.phase, PHASE_EVALUATE);
	assert_int_equal(f->samples[0].phase.expected_ns, 5 * S);
	assert_string_equal(f->samples[0].phase.what, "eval");
	assert_false(f->samples[1].phase.begins);
	assert_int_equal(f->samples[1].time_ns, 3 * S);
	assert_int_equal(f->reader.nonsense, 3);
}

/* The ring was run over: what is left is told, the steps between are counted, and a phase whose end
 * or begin was among the lost is where the page says. */
static void test_overrun(void **state)
{
	struct fixture *f = *state;

	put_step(f, 1, S);
	put_phase(f, true, PHASE_COMPILE, S);
	look(f, S, 2 * S);
	assert_int_equal(f->n, 2);
	put_phase(f, false, PHASE_COMPILE, 3 * S);
	for (uint64_t step = 2; step < 200; step++)
		put_step(f, step, 3 * S);
	atomic_store(&f->page->long_place, BEAT_PLACE(PHASE_IDLE, 4 * S));
	look(f, 2 * S, 4 * S);
	assert_int_equal(f->n, BEAT_ENTRIES + 2);
	assert_int_equal(f->reader.overruns, 199 - BEAT_ENTRIES);
	assert_int_equal(f->samples[0].beat.step, 200 - BEAT_ENTRIES);
	assert_int_equal(f->samples[0].beat.missed, 200 - BEAT_ENTRIES - 2);
	assert_int_equal(f->samples[BEAT_ENTRIES - 1].beat.step, 199);
	assert_int_equal(f->samples[BEAT_ENTRIES].phase.phase, PHASE_COMPILE);
	assert_false(f->samples[BEAT_ENTRIES].phase.begins);
	assert_int_equal(f->samples[BEAT_ENTRIES + 1].phase.phase, PHASE_IDLE);
	assert_true(f->samples[BEAT_ENTRIES + 1].phase.begins);
}

static void test_times(void **state)
{
	struct fixture *f = *state;
	static const uint64_t given[] = {10 * S, 10 * S + 1, 99 * S, 3, 10 * S, 9 * S, UINT64_MAX};
	/* in order; from another clock: now; a little before the last look: then */
	static const uint64_t want[] = {10 * S, 10 * S + 1, 20 * S, 20 * S, 20 * S, 20 * S, 20 * S};

	for (unsigned i = 0; i < sizeof(given) / sizeof(given[0]); i++)
		put_step(f, i, given[i]);
	look(f, 9 * S + S / 2, 20 * S);
	assert_int_equal(f->n, sizeof(want) / sizeof(want[0]));
	for (uint32_t i = 0; i < f->n; i++)
		assert_int_equal(f->samples[i].time_ns, want[i]);
	put_step(f, 100, 20 * S - 5); /* read its clock, and wrote a little later */
	look(f, 20 * S, 21 * S);
	assert_int_equal(f->samples[0].time_ns, 20 * S);
}

/* What was written before anybody looked: the last step, and what followed. */
static void test_begin(void **state)
{
	struct fixture *f = *state;

	for (uint64_t step = 0; step < 100; step++)
		put_step(f, step, S);
	put_phase(f, true, PHASE_EVALUATE, S);
	beat_reader_begin(&f->reader, f->page);
	look(f, 5 * S, 6 * S);
	assert_int_equal(f->n, 2);
	assert_int_equal(f->samples[0].beat.step, 99);
	assert_int_equal(f->samples[0].beat.missed, 0);
	assert_int_equal(f->samples[0].time_ns, 6 * S);
	assert_int_equal(f->samples[1].phase.phase, PHASE_EVALUATE);
}

static void test_texts(void **state)
{
	struct fixture *f = *state;
	char text[BEAT_TEXT_BYTES] = "pipeline \x01\xff"
				     "0";

	assert_false(beat_reader_texts(&f->reader, f->page));
	beat_page_put_text(f->page, &f->page->role, text);
	assert_true(beat_reader_texts(&f->reader, f->page));
	assert_string_equal(f->reader.role, "pipeline ??0");
	assert_false(beat_reader_texts(&f->reader, f->page));
	memset(text, 'x', sizeof(text)); /* without an end */
	beat_page_put_text(f->page, &f->page->metrics[3], text);
	atomic_fetch_add(&f->page->texts, 1); /* as if it were being written */
	assert_false(beat_reader_texts(&f->reader, f->page));
	atomic_fetch_add(&f->page->texts, 1);
	assert_true(beat_reader_texts(&f->reader, f->page));
	assert_int_equal(strlen(f->reader.names[3]), BEAT_TEXT_BYTES - 1);
}

static void test_now(void **state)
{
	struct fixture *f = *state;
	struct beat_now now;

	beat_page_now(f->page, 9 * S, &now);
	assert_false(now.stepped);
	atomic_store(&f->page->next_step, 8);
	atomic_store(&f->page->place, BEAT_PLACE(PHASE_SYNC, 5 * S));
	beat_page_now(f->page, 9 * S, &now);
	assert_true(now.stepped);
	assert_int_equal(now.step, 8);
	assert_int_equal(now.phase, PHASE_SYNC);
	assert_int_equal(now.since_ns, 5 * S);
	atomic_store(&f->page->place, BEAT_PLACE(15, 50 * S)); /* no such phase, nor such a time */
	beat_page_now(f->page, 9 * S, &now);
	assert_int_equal(now.phase, PHASE_STEP);
	assert_int_equal(now.since_ns, 0);
}

/* ---- A writer that keeps no rule ---- */

static atomic_bool stop_writing;

static uint64_t next_random(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

/* All of the page, of every width of number, all the time. */
static void *scribble(void *arg)
{
	struct beat_page *p = arg;
	_Atomic uint64_t *words = (_Atomic uint64_t *)p;
	uint64_t x = test_seed(77) | 1;

	while (!atomic_load_explicit(&stop_writing, memory_order_relaxed)) {
		uint64_t at = next_random(&x) % (sizeof(*p) / 8), v = next_random(&x);
		uint64_t now = atomic_load(&p->written);

		v >>= next_random(&x) % 64;
		atomic_store_explicit(&words[at], v, memory_order_relaxed);
		/* Often a whole entry with nonsense in it, or one that is counted and is not. */
		if (v % 4 == 0)
			beat_page_put(p, now + 1,
				      &(struct beat_record){.time_ns = next_random(&x) >> v % 64,
							    .kind = (uint32_t)v % 5,
							    .flags = (uint32_t)next_random(&x),
							    .step = next_random(&x)});
		else if (v % 4 == 1)
			atomic_store(&p->written, now + v % 200);
		else if (v % 64 == 2)
			beat_page_put_text(p, &p->role, (char[BEAT_TEXT_BYTES]){(char)v, 'a'});
	}
	return NULL;
}

static void check_sample(const struct sample *s, uint64_t from, uint64_t now, bool *in_long)
{
	assert_true(s->time_ns >= from && s->time_ns <= now);
	if (s->kind == SAMPLE_BEAT) {
		assert_int_equal(s->beat.flags & ~15u, 0);
		assert_true(s->beat.busy_ns <= now + S);
		return;
	}
	assert_int_equal(s->kind, SAMPLE_PHASE);
	assert_true(s->phase.phase >= PHASE_FIRST_LONG && s->phase.phase < PHASE_COUNT);
	assert_true(s->phase.begins != *in_long);
	*in_long = s->phase.begins;
	assert_non_null(memchr(s->phase.what, 0, sizeof(s->phase.what)));
}

static void test_hostile_writer(void **state)
{
	struct fixture *f = *state;
	uint64_t last = 0, told = 0;
	bool in_long = false;
	struct beat_now now;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, scribble, f->page), 0);
	/* Until enough of each was met with: whoever comes first, and however they are scheduled.
	 */
	for (uint64_t t = 1;
	     t < 20000 || told < 1000 || f->reader.overruns < 1000 || f->reader.nonsense < 1000;
	     t++) {
		uint64_t from = last;

		if (t % 64 == 0)
			sched_yield();

		look(f, from, t * S / 4);
		for (uint32_t i = 0; i < f->n; i++) {
			check_sample(&f->samples[i], last, t * S / 4, &in_long);
			last = f->samples[i].time_ns;
		}
		last = t * S / 4;
		told += f->n;
		beat_page_now(f->page, t * S, &now);
		assert_true(now.phase < PHASE_COUNT);
		if (beat_reader_texts(&f->reader, f->page))
			for (const char *c = f->reader.role; *c; c++)
				assert_true(*c >= 0x20 && *c <= 0x7e);
		assert_true(strlen(f->reader.role) < BEAT_TEXT_BYTES);
	}
	atomic_store(&stop_writing, true);
	pthread_join(thread, NULL);
}

/* ---- A writer that keeps them ---- */

#define FAST_STEPS 300000u

static void *write_fast(void *arg)
{
	struct beat_page *p = arg;

	for (uint64_t n = 1; n <= FAST_STEPS; n++)
		beat_page_put(p, n,
			      &(struct beat_record){.kind = BEAT_KIND_STEP,
						    .time_ns = n,
						    .step = n,
						    .flags = BEAT_HAS_TOKENS | BEAT_HAS_LOSS,
						    .tokens = ~n,
						    .loss = (double)n,
						    .metrics = {[7] = (double)n}});
	return NULL;
}

/* Whatever is told was written so, as a whole; the rest is counted as missed. */
static void test_race(void **state)
{
	struct fixture *f = *state;
	uint64_t accounted = 0;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, write_fast, f->page), 0);
	while (f->reader.seen < FAST_STEPS) {
		look(f, 0, FAST_STEPS);
		for (uint32_t i = 0; i < f->n; i++) {
			const struct sample_beat *b = &f->samples[i].beat;

			assert_int_equal(b->tokens, ~b->step);
			assert_true(b->loss == (double)b->step);
			assert_int_equal(f->samples[i].time_ns, b->step);
			accounted += accounted ? b->missed + 1 : b->step;
			assert_int_equal(accounted, b->step);
		}
	}
	pthread_join(thread, NULL);
	assert_int_equal(accounted, FAST_STEPS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_steps, setup, teardown),
		cmocka_unit_test_setup_teardown(test_busy_is_bounded, setup, teardown),
		cmocka_unit_test_setup_teardown(test_phases, setup, teardown),
		cmocka_unit_test_setup_teardown(test_overrun, setup, teardown),
		cmocka_unit_test_setup_teardown(test_times, setup, teardown),
		cmocka_unit_test_setup_teardown(test_begin, setup, teardown),
		cmocka_unit_test_setup_teardown(test_texts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_now, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hostile_writer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_race, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
