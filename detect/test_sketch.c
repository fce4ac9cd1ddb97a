/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sketches: what goes in comes out, folded as it should be; how large they are; and bytes of
 * every kind of damage.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "detect/detector.h"
#include "detect/options.h"
#include "detect/sketch.h"
#include "tests/lib/test.h"

#define SEC UINT64_C(1000000000)
#define MS  UINT64_C(1000000)
#define NOW (500 * SEC)

static struct sample of(enum sample_kind kind, uint64_t t, uint32_t rank, uint32_t device)
{
	return (struct sample){.kind = kind,
			       .time_ns = t,
			       .node = 0,
			       .job = rank == SAMPLE_NONE ? SAMPLE_NONE : 3,
			       .rank = rank,
			       .device = device};
}

static struct sample beat(uint64_t t, uint32_t rank, uint64_t step)
{
	struct sample s = of(SAMPLE_BEAT, t, rank, SAMPLE_NONE);

	s.beat = (struct sample_beat){.step = step,
				      .flags = BEAT_LOSS | BEAT_GRAD_NORM | BEAT_BUSY | BEAT_TOKENS,
				      .busy_ns = 80 * MS,
				      .tokens = 4096,
				      .loss = 2.5,
				      .grad_norm = 0.75};
	return s;
}

static void add(struct sketch *k, struct sample s)
{
	assert_int_equal(sketch_add(k, &s), 0);
}

static const struct sketch_head head = {.node = 7, .epoch = 11, .sequence = 99};

static struct writer written(struct sketch *k)
{
	struct writer w = {0};

	sketch_write(k, &head, NOW, &w);
	assert_false(w.bad);
	return w;
}

static struct sketch_reader opened(const struct writer *w)
{
	struct sketch_reader r;
	struct err e = {0};

	assert_int_equal(sketch_open(w->buf, w->len, 5, 900 * SEC, 100 * SEC, &r, &e), 0);
	assert_int_equal(r.head.node, 7);
	assert_int_equal(r.head.epoch, 11);
	assert_int_equal(r.head.sequence, 99);
	return r;
}

static struct sample next(struct sketch_reader *r)
{
	struct sample s;
	struct verdict v;

	assert_int_equal(sketch_next(r, &s, &v), SKETCH_SAMPLE);
	assert_int_equal(s.node, 7);
	return s;
}

static void at_end(struct sketch_reader *r)
{
	struct sample s;
	struct verdict v;

	assert_int_equal(sketch_next(r, &s, &v), SKETCH_END);
}

static void test_numbers_in_sixteen_bits(void **state)
{
	(void)state;
	assert_true(isnan(sketch_unpack(sketch_pack(NAN))));
	assert_true(sketch_unpack(sketch_pack(0)) == 0);
	assert_true(sketch_unpack(sketch_pack(-3)) == 0);
	assert_true(sketch_unpack(sketch_pack(1e-9f)) == 0);
	assert_true(sketch_unpack(sketch_pack(INFINITY)) > 8e12f);
	assert_true(sketch_unpack(sketch_pack(1)) == 1);
	for (double x = 2e-6; x < 8e12; x *= 1.0007) {
		double back = (double)sketch_unpack(sketch_pack((float)x));

		assert_true(fabs(back / x - 1) < 0.0006);
	}
	for (unsigned v = 1; v <= 0xfbff; v++)
		assert_int_equal(sketch_pack(sketch_unpack((uint16_t)v)), v);
}

static void test_beats_are_folded(void **state)
{
	struct sketch_reader r;
	struct sketch *k;
	struct writer w;
	struct sample s;

	(void)state;
	assert_int_equal(sketch_new(&k), 0);
	for (unsigned i = 0; i < 10; i++) { /* of two ranks, ten a second */
		s = beat(NOW - SEC + i * 100 * MS, 8, 1000 + i);
		s.beat.busy_ns = (80 + i) * MS;
		s.beat.loss = i == 4 ? NAN : 2.5;
		add(k, s);
		add(k, beat(NOW - SEC + i * 100 * MS + MS, 9, 999 + i));
	}
	w = written(k);
	r = opened(&w);
	s = next(&r);
	assert_int_equal(s.kind, SAMPLE_BEAT);
	assert_int_equal(s.job, 5);
	assert_int_equal(s.rank, 8);
	assert_int_equal(s.time_ns, 900 * SEC - 100 * MS);
	assert_int_equal(s.beat.step, 1009);
	assert_int_equal(s.beat.missed, 9);
	assert_int_equal(s.beat.tokens, 40960);
	assert_true(llabs((long long)s.beat.busy_ns - (long long)(84500 * MS / 1000)) <
		    (long long)MS / 100);
	assert_true(isnan(s.beat.loss)); /* it was, once */
	assert_true(s.beat.grad_norm == 0.75);
	s = next(&r);
	assert_int_equal(s.rank, 9);
	assert_int_equal(s.beat.step, 1008);
	at_end(&r);
	writer_free(&w);
	w = written(k); /* nothing is left for the next one */
	assert_int_equal(w.len, SKETCH_HEADER);
	r = opened(&w);
	at_end(&r);
	writer_free(&w);
	sketch_free(k);
}

/* A beat before a phase stays there: it is not part of the time behind it. */
static void test_phases_stand_between(void **state)
{
	struct sketch_reader r;
	struct sketch *k;
	struct writer w;
	struct sample s;

	(void)state;
	assert_int_equal(sketch_new(&k), 0);
	add(k, beat(NOW - 900 * MS, 0, 5));
	s = of(SAMPLE_PHASE, NOW - 800 * MS, 0, SAMPLE_NONE);
	s.phase.phase = PHASE_CHECKPOINT;
	s.phase.begins = true;
	s.phase.expected_ns = 30 * SEC;
	snprintf(s.phase.what, sizeof(s.phase.what), "save");
	add(k, s);
	s.time_ns += 500 * MS;
	s.phase.begins = false;
	add(k, s);
	add(k, beat(NOW - 200 * MS, 0, 6));
	add(k, beat(NOW - 100 * MS, 0, 2)); /* a new process began before */
	w = written(k);
	r = opened(&w);
	s = next(&r);
	assert_int_equal(s.beat.step, 5);
	assert_int_equal(s.beat.missed, 0);
	s = next(&r);
	assert_int_equal(s.kind, SAMPLE_PHASE);
	assert_true(s.phase.begins && s.phase.expected_ns == 30 * SEC);
	assert_string_equal(s.phase.what, "save");
	assert_int_equal(s.time_ns, 900 * SEC - 800 * MS);
	assert_false(next(&r).phase.begins);
	assert_int_equal(next(&r).beat.step, 6);
	assert_int_equal(next(&r).beat.step, 2);
	at_end(&r);
	writer_free(&w);
	sketch_free(k);
}

static void test_what_nodes_measure(void **state)
{
	struct sketch_reader r;
	struct sketch *k;
	struct writer w;
	struct sample s;

	(void)state;
	assert_int_equal(sketch_new(&k), 0);
	for (unsigned i = 0; i < 3; i++) {
		s = of(SAMPLE_METRICS, NOW - 500 * MS + i, SAMPLE_NONE, SAMPLE_NONE);
		for (int m = 0; m < METRIC_COUNT; m++)
			s.metrics[m] = m % 3 ? (float)(m * 1000 + (int)i) : NAN;
		add(k, s);
		s = of(SAMPLE_LINK, NOW - 500 * MS + i, SAMPLE_NONE, i % 2);
		s.link.up = true;
		s.link.rate_gbps = 400;
		s.link.sent = UINT64_MAX - i;
		s.link.downs = 3;
		add(k, s);
		s = of(SAMPLE_PAIR, NOW - 500 * MS + i, SAMPLE_NONE, SAMPLE_NONE);
		s.pair.peer = 20 + i;
		s.pair.bytes = 1 << 20;
		s.pair.ns = 31 * MS;
		add(k, s);
		s = of(SAMPLE_DISK, NOW - 500 * MS + i, SAMPLE_NONE, 4);
		s.disk.ops = 10;
		s.disk.bytes = 40960;
		s.disk.busy_ns = MS;
		s.disk.errors = i;
		add(k, s);
		s = of(SAMPLE_KERNEL, NOW - 500 * MS + i, SAMPLE_NONE, SAMPLE_NONE);
		add(k, s); /* judged where it happens: not in a sketch */
	}
	w = written(k);
	r = opened(&w);
	assert_int_equal(next(&r).pair.peer, 20);
	s = next(&r); /* the older of two ports */
	assert_int_equal(s.device, 1);
	assert_int_equal(s.link.sent, UINT64_MAX - 1);
	assert_int_equal(next(&r).pair.peer, 21);
	s = next(&r);
	assert_int_equal(s.kind, SAMPLE_METRICS);
	for (int m = 0; m < METRIC_COUNT; m++)
		assert_true(m % 3 ? fabsf(s.metrics[m] / (float)(m * 1000 + 2) - 1) < 0.0006f
				  : isnan(s.metrics[m]));
	s = next(&r);
	assert_int_equal(s.device, 0);
	assert_true(s.link.up && s.link.downs == 3 && s.link.rate_gbps == 400);
	s = next(&r);
	assert_int_equal(s.pair.ns, 31 * MS);
	s = next(&r);
	assert_int_equal(s.disk.ops, 30);
	assert_int_equal(s.disk.busy_ns, 3 * MS);
	assert_int_equal(s.disk.errors, 2);
	at_end(&r);
	writer_free(&w);
	sketch_free(k);
}

static struct verdict some_verdict(void)
{
	struct verdict v = {.id = 77,
			    .subject = {SUBJECT_GPU, 7, SAMPLE_NONE, SAMPLE_NONE, 2, SAMPLE_NONE},
			    .class = CLASS_FAILING,
			    .cause = CAUSE_XID,
			    .level = LEVEL_ALARM,
			    .advice = ACTION_RESET,
			    .confidence = 0.5,
			    .since_ns = NOW - 3 * SEC,
			    .raised_ns = NOW - 2 * SEC,
			    .changed_ns = NOW - SEC,
			    .code = 94,
			    .n_evidence = 1};

	snprintf(v.evidence[0].signal, sizeof(v.evidence[0].signal), "errors");
	v.evidence[0].value = 1.25;
	v.evidence[0].since_ns = NOW - 4 * SEC;
	snprintf(v.words, sizeof(v.words), "GPU 2 has an error.");
	return v;
}

static void test_ends_and_verdicts(void **state)
{
	struct verdict v = some_verdict();
	struct sketch_reader r;
	struct sketch *k;
	struct writer w;
	struct sample s;

	(void)state;
	assert_int_equal(sketch_new(&k), 0);
	s = of(SAMPLE_EXIT, NOW - 20 * MS, 12, SAMPLE_NONE);
	s.exit.how = EXIT_SIGNAL;
	s.exit.value = -9;
	add(k, s);
	s = of(SAMPLE_ACTIVITY, NOW - 10 * MS, 12, SAMPLE_NONE);
	s.activity = (struct sample_activity){.step = 4,
					      .since_ns = NOW - 60 * SEC,
					      .phase = PHASE_SYNC,
					      .state = 'T',
					      .cpu_permille = UINT16_MAX,
					      .gpu_permille = 3,
					      .timed = TIMED_NOT_KNOWN};
	add(k, s);
	assert_int_equal(sketch_add_verdict(k, &v), 0);
	w = written(k);
	r = opened(&w);
	s = next(&r);
	assert_int_equal(s.exit.how, EXIT_SIGNAL);
	assert_int_equal(s.exit.value, -9);
	s = next(&r);
	assert_int_equal(s.activity.since_ns, 840 * SEC);
	assert_int_equal(s.activity.state, 'T');
	assert_int_equal(s.activity.phase, PHASE_SYNC);
	assert_int_equal(s.activity.cpu_permille, UINT16_MAX);
	assert_true(s.activity.timed == TIMED_NOT_KNOWN && s.activity.gpu_permille == 3);
	assert_int_equal(sketch_next(&r, &s, &v), SKETCH_VERDICT);
	assert_int_equal(v.id, 77);
	assert_int_equal(v.subject.device, 2);
	assert_int_equal(v.subject.job, SAMPLE_NONE);
	assert_int_equal(v.since_ns, 897 * SEC);
	assert_int_equal(v.evidence[0].since_ns, 896 * SEC);
	assert_true(v.evidence[0].value == 1.25);
	assert_string_equal(v.words, "GPU 2 has an error.");
	at_end(&r);
	writer_free(&w);
	sketch_free(k);
}

/* Times of an odd clock: never before what was fed, never after the arrival. */
static void test_times_rise(void **state)
{
	uint64_t last = 898 * SEC;
	struct sketch_reader r;
	struct sketch *k;
	struct writer w;
	struct err e;

	(void)state;
	assert_int_equal(sketch_new(&k), 0);
	for (unsigned i = 0; i < 20; i++)
		add(k, beat(i * 50 * SEC, i, i)); /* before and after now */
	w = written(k);
	assert_int_equal(sketch_open(w.buf, w.len, 5, 900 * SEC, last, &r, &e), 0);
	for (unsigned i = 0; i < 20; i++) {
		struct sample s = next(&r);

		assert_true(s.time_ns >= last && s.time_ns <= 900 * SEC);
		last = s.time_ns;
	}
	writer_free(&w);
	sketch_free(k);
}

static void test_size_per_rank(void **state)
{
	struct sketch *k;
	struct writer w;
	struct sample s;

	(void)state;
	assert_int_equal(sketch_new(&k), 0);
	for (unsigned n = 0; n < 10; n++)
		for (uint32_t i = 0; i < 8; i++)
			add(k, beat(NOW - SEC + n * 100 * MS, 9992 + i, 123456 + n));
	s = of(SAMPLE_METRICS, NOW, SAMPLE_NONE, SAMPLE_NONE);
	for (int m = 0; m < METRIC_COUNT; m++)
		s.metrics[m] = 1e5f;
	add(k, s);
	s = of(SAMPLE_LINK, NOW, SAMPLE_NONE, 8);
	s.link.up = true;
	s.link.sent = s.link.received = UINT64_C(1) << 50;
	add(k, s);
	s = of(SAMPLE_PAIR, NOW, SAMPLE_NONE, SAMPLE_NONE);
	s.pair.peer = 1000;
	s.pair.bytes = 1 << 28;
	s.pair.ns = 30 * MS;
	add(k, s);
	w = written(k);
	print_message("%zu bytes for 8 ranks and their node: %.1f a rank\n", w.len,
		      (double)w.len / 8);
	assert_true(w.len <= 8 * 64);
	writer_free(&w);
	sketch_free(k);
}

static void test_bounded(void **state)
{
	struct verdict v = some_verdict();
	struct sketch_reader r;
	struct sketch *k;
	struct writer w;
	unsigned lost = 0;

	(void)state;
	assert_int_equal(sketch_new(&k), 0);
	for (uint32_t i = 0; i < SKETCH_RECORDS_MAX + 10; i++) {
		struct sample s = beat(NOW, i, 1);

		lost += sketch_add(k, &s) == -ENOSPC;
	}
	for (uint32_t i = 0; i < SKETCH_VERDICTS_MAX + 2; i++)
		lost += sketch_add_verdict(k, &v) == -ENOSPC;
	assert_int_equal(lost, 12);
	w = written(k);
	r = opened(&w);
	assert_int_equal(r.head.dropped, 12);
	assert_true(w.len <= SKETCH_BYTES_MAX);
	writer_free(&w);
	add(k, beat(NOW, 1, 1));
	alloc_fail_at(1, true);
	sketch_write(k, &head, NOW, &w);
	alloc_fail_at(0, false);
	assert_true(w.bad);
	writer_free(&w);
	sketch_free(k);
}

static int open_bytes(const uint8_t *bytes, size_t len)
{
	struct sketch_reader r;
	struct err e = {0};
	int rc = sketch_open(bytes, len, 5, 900 * SEC, 0, &r, &e);

	assert_true(rc == 0 || (rc == e.code && e.text[0]));
	return rc;
}

/* As sketch.c does it: what is damaged behind the digest is reached too. */
static void sign(uint8_t *bytes, size_t len)
{
	struct digest_stream s;
	struct digest d;

	put_le32(bytes + 8, (uint32_t)(len - SKETCH_HEADER));
	digest_begin(&s);
	digest_update(&s, bytes, 48);
	digest_update(&s, bytes + SKETCH_HEADER, len - SKETCH_HEADER);
	d = digest_end(&s);
	memcpy(bytes + 48, d.b, 16);
}

static void feed_all(struct detector *d, const uint8_t *bytes, size_t len)
{
	struct sketch_reader r;
	struct verdict v;
	struct sample s;
	enum sketch_got got;
	struct err e;

	if (sketch_open(bytes, len, 5, 900 * SEC, 900 * SEC, &r, &e) < 0)
		return;
	while ((got = sketch_next(&r, &s, &v)) != SKETCH_END)
		if (got == SKETCH_SAMPLE)
			assert_int_not_equal(detector_feed(d, &s), -EINVAL);
}

static void test_hostile_bytes(void **state)
{
	struct detector_options o;
	struct verdict v = some_verdict();
	struct rng_seeded rng;
	struct sketch *k;
	struct detector *d;
	struct writer w;
	struct sample s;
	uint8_t copy[2048];
	unsigned taken = 0;

	(void)state;
	rng_seed(&rng, test_seed(61));
	detector_options_default(&o);
	o.ranks_max = o.nodes_max = 64;
	assert_int_equal(detector_new(&o, NULL, &(struct detector_events){0}, &d), 0);
	assert_int_equal(sketch_new(&k), 0);
	add(k, beat(NOW - SEC, 3, 100));
	s = of(SAMPLE_MEMBER, NOW, 3, SAMPLE_NONE);
	snprintf(s.member.role, sizeof(s.member.role), "stage1");
	add(k, s);
	s = of(SAMPLE_PHASE, NOW, 3, SAMPLE_NONE);
	s.phase.phase = PHASE_LOAD;
	add(k, s);
	s = of(SAMPLE_METRICS, NOW, SAMPLE_NONE, SAMPLE_NONE);
	add(k, s);
	s = of(SAMPLE_CHECK, NOW, SAMPLE_NONE, SAMPLE_NONE);
	add(k, s);
	assert_int_equal(sketch_add_verdict(k, &v), 0);
	w = written(k);
	assert_true(w.len < sizeof(copy));
	for (size_t len = 0; len < w.len; len++) { /* cut off, with and without a digest */
		memcpy(copy, w.buf, len);
		assert_true(open_bytes(copy, len) < 0);
		if (len >= SKETCH_HEADER) {
			sign(copy, len);
			assert_int_equal(open_bytes(copy, len), CKPT_EPROTO);
		}
	}
	for (size_t i = 0; i < w.len; i++) { /* one bit anywhere */
		memcpy(copy, w.buf, w.len);
		copy[i] ^= (uint8_t)(1u << (i % 8));
		assert_true(open_bytes(copy, w.len) < 0);
	}
	memcpy(copy, w.buf, w.len);
	copy[4] = 2;
	assert_int_equal(open_bytes(copy, w.len), CKPT_EVERSION);
	for (unsigned round = 0; round < 20000; round++) { /* and what has a good digest */
		memcpy(copy, w.buf, w.len);
		for (unsigned n = 1 + round % 4; n > 0; n--)
			copy[SKETCH_HEADER + rng_below(&rng.rng, w.len - SKETCH_HEADER)] =
				(uint8_t)rng_u64(&rng.rng);
		sign(copy, w.len);
		taken += open_bytes(copy, w.len) == 0;
		feed_all(d, copy, w.len);
	}
	assert_true(taken > 1000 && taken < 20000);
	writer_free(&w);
	sketch_free(k);
	detector_free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_in_sixteen_bits),
		cmocka_unit_test(test_beats_are_folded),
		cmocka_unit_test(test_phases_stand_between),
		cmocka_unit_test(test_what_nodes_measure),
		cmocka_unit_test(test_ends_and_verdicts),
		cmocka_unit_test(test_times_rise),
		cmocka_unit_test(test_size_per_rank),
		cmocka_unit_test(test_bounded),
		cmocka_unit_test(test_hostile_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
