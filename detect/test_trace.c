/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Traces: every kind of record is the same after it was written and read, in any order of fields,
 * plain and compressed; lines that were not written by us are refused with their number.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "detect/trace.h"
#include "tests/lib/test.h"

/* A value that is often one of the edges. */
static uint64_t pick(struct rng *rng, uint64_t max)
{
	switch (rng_below(rng, 5)) {
	case 0:
		return 0;
	case 1:
		return max;
	case 2:
		return max - 1;
	case 3:
		return rng_below(rng, 1000) & max;
	default:
		return rng_u64(rng) & max;
	}
}

static uint32_t pick32(struct rng *rng)
{
	return (uint32_t)pick(rng, UINT32_MAX);
}

static uint64_t pick_ns(struct rng *rng)
{
	uint64_t ns = pick(rng, UINT64_MAX >> 1);

	return rng_below(rng, 2) ? ns / 1000000 * 1000000 : ns;
}

static double pick_double(struct rng *rng)
{
	static const double edges[] = {0,
				       -0.0,
				       1,
				       0.1,
				       -2.5,
				       1e300,
				       5e-324,
				       INFINITY,
				       -INFINITY,
				       123456.789,
				       4503599627370497.5};
	uint64_t bits = rng_u64(rng);
	double d;

	if (rng_below(rng, 2))
		return edges[rng_below(rng, sizeof(edges) / sizeof(edges[0]))];
	if (rng_below(rng, 4) == 0)
		return NAN;
	memcpy(&d, &bits, sizeof(d));
	return isnan(d) ? 2 : d;
}

static void pick_text(struct rng *rng, char *buf, size_t size)
{
	size_t n = rng_below(rng, 3) ? rng_below(rng, size) : size - 1;

	memset(buf, 0, size);
	for (size_t i = 0; i < n; i++)
		buf[i] = (char)(1 + rng_below(rng, 255));
	if (n == 0)
		buf[0] = 'x'; /* what must be there must say something */
}

static void pick_beat(struct rng *rng, struct sample_beat *b)
{
	*b = (struct sample_beat){.step = pick(rng, UINT64_MAX),
				  .flags = (uint32_t)rng_below(rng, 16),
				  .missed = pick32(rng),
				  .loss = NAN,
				  .grad_norm = NAN};
	if (b->flags & BEAT_LOSS)
		b->loss = pick_double(rng);
	if (b->flags & BEAT_GRAD_NORM)
		b->grad_norm = pick_double(rng);
	if (b->flags & BEAT_TOKENS)
		b->tokens = pick(rng, UINT64_MAX);
	if (b->flags & BEAT_BUSY)
		b->busy_ns = pick_ns(rng);
}

static void pick_node_body(struct rng *rng, struct sample *s)
{
	switch ((unsigned)s->kind) {
	case SAMPLE_METRICS:
		for (unsigned i = 0; i < METRIC_COUNT; i++)
			s->metrics[i] = (float)pick_double(rng);
		break;
	case SAMPLE_LINK:
		s->link.up = rng_below(rng, 2);
		s->link.rate_gbps = (float)rng_below(rng, 1000) / 7;
		s->link.sent = pick(rng, UINT64_MAX);
		s->link.received = pick(rng, UINT64_MAX);
		s->link.errors = pick(rng, UINT64_MAX);
		s->link.retries = pick(rng, UINT64_MAX);
		s->link.downs = pick32(rng);
		break;
	case SAMPLE_PAIR:
		s->pair.peer = pick32(rng);
		s->pair.bytes = pick(rng, UINT64_MAX);
		s->pair.ns = pick_ns(rng);
		break;
	case SAMPLE_DISK:
		s->disk.ops = pick(rng, UINT64_MAX);
		s->disk.bytes = pick(rng, UINT64_MAX);
		s->disk.busy_ns = pick_ns(rng);
		s->disk.errors = pick(rng, UINT64_MAX);
		break;
	case SAMPLE_MEMORY:
		s->memory.corrected = pick(rng, UINT64_MAX);
		s->memory.uncorrected = pick(rng, UINT64_MAX);
		break;
	case SAMPLE_KERNEL:
		s->kernel.facility = (uint8_t)pick(rng, UINT8_MAX);
		s->kernel.level = (uint8_t)pick(rng, UINT8_MAX);
		pick_text(rng, s->kernel.text, sizeof(s->kernel.text));
		break;
	case SAMPLE_NVML:
		s->nvml.xid = pick32(rng);
		s->nvml.recovery = (enum gpu_recovery)rng_below(rng, RECOVERY_UNKNOWN + 1);
		s->nvml.unavailable = rng_below(rng, 2);
		s->nvml.corrected = pick(rng, UINT64_MAX);
		s->nvml.uncorrected = pick(rng, UINT64_MAX);
		break;
	case SAMPLE_CHECK:
		pick_text(rng, s->check.what, sizeof(s->check.what));
		s->check.value = pick_double(rng);
		s->check.low = pick_double(rng);
		s->check.high = pick_double(rng);
		s->check.passed = rng_below(rng, 2);
		break;
	default:
		break;
	}
}

static void pick_body(struct rng *rng, struct sample *s)
{
	switch ((unsigned)s->kind) {
	case SAMPLE_NAME:
		pick_text(rng, s->name.text, sizeof(s->name.text));
		s->name.role = rng_below(rng, 2) ? 'g' : '\0';
		s->name.owned = rng_below(rng, 2);
		s->name.owner = pick32(rng);
		break;
	case SAMPLE_JOB:
		s->run.begins = rng_below(rng, 2);
		s->run.world = pick32(rng);
		s->run.epoch = pick(rng, UINT64_MAX);
		break;
	case SAMPLE_MEMBER:
		s->member.leaves = rng_below(rng, 2);
		pick_text(rng, s->member.role, sizeof(s->member.role));
		break;
	case SAMPLE_BEAT:
		pick_beat(rng, &s->beat);
		break;
	case SAMPLE_PHASE:
		s->phase.phase = (uint32_t)rng_below(rng, PHASE_COUNT);
		s->phase.begins = rng_below(rng, 2);
		s->phase.expected_ns = pick_ns(rng);
		pick_text(rng, s->phase.what, sizeof(s->phase.what));
		break;
	case SAMPLE_ACTIVITY:
		s->activity = (struct sample_activity){
			.step = pick(rng, UINT64_MAX),
			.since_ns = pick_ns(rng),
			.phase = (uint32_t)rng_below(rng, PHASE_COUNT),
			.state = "RSDTZ?"[rng_below(rng, 6)],
			.threads_running = (uint8_t)pick(rng, UINT8_MAX),
			.cpu_permille = (uint16_t)pick(rng, UINT16_MAX),
			.gpu_permille = (uint16_t)pick(rng, UINT16_MAX),
			.timed = (enum timed)rng_below(rng, TIMED_NOT_KNOWN + 1)};
		break;
	case SAMPLE_EXIT:
		s->exit.how = (enum exit_how)rng_below(rng, EXIT_HOWS);
		s->exit.value = (int32_t)pick32(rng);
		break;
	case SAMPLE_DIGESTS:
		s->digests.step = pick(rng, UINT64_MAX);
		s->digests.other = pick32(rng);
		pick_text(rng, s->digests.tensor, sizeof(s->digests.tensor));
		break;
	case SAMPLE_STALE:
		s->step = pick(rng, UINT64_MAX);
		break;
	default:
		pick_node_body(rng, s);
		break;
	}
}

static bool has_rank(enum sample_kind k)
{
	return k == SAMPLE_MEMBER || k == SAMPLE_BEAT || k == SAMPLE_PHASE ||
	       k == SAMPLE_ACTIVITY || k == SAMPLE_EXIT || k == SAMPLE_DIGESTS || k == SAMPLE_STALE;
}

static bool has_device(enum sample_kind k)
{
	return k == SAMPLE_LINK || k == SAMPLE_DISK || k == SAMPLE_NVML || k == SAMPLE_NAME;
}

static struct trace_record pick_sample(struct rng *rng, enum sample_kind kind)
{
	struct trace_record r;
	struct sample *s = &r.sample;

	memset(&r, 0, sizeof(r));
	s->kind = kind;
	s->time_ns = pick_ns(rng);
	s->node = kind == SAMPLE_JOB ? SAMPLE_NONE : pick32(rng);
	s->job = has_rank(kind) || kind == SAMPLE_NAME || kind == SAMPLE_JOB ? pick32(rng)
									     : SAMPLE_NONE;
	s->rank = has_rank(kind) ? pick32(rng) : SAMPLE_NONE;
	s->device = has_device(kind) ? pick32(rng) : SAMPLE_NONE;
	pick_body(rng, s);
	return r;
}

static struct trace_record pick_label(struct rng *rng, enum label_kind kind)
{
	struct trace_record r;
	struct label *l = &r.label;

	memset(&r, 0, sizeof(r));
	r.is_label = true;
	l->kind = kind;
	l->time_ns = pick_ns(rng);
	l->factor = NAN;
	l->subject = (struct subject){0,           SAMPLE_NONE, SAMPLE_NONE,
				      SAMPLE_NONE, SAMPLE_NONE, SAMPLE_NONE};
	if (kind == LABEL_MODE) {
		l->subject.job = pick32(rng);
		l->declares = rng_below(rng, 2);
	}
	if (kind != LABEL_FAULT && kind != LABEL_ALSO)
		return r;
	l->id = pick32(rng);
	l->classes = 1 + (uint32_t)rng_below(rng, (1u << CLASS_COUNT) - 1);
	l->code = pick32(rng);
	l->subject = (struct subject){(enum subject_kind)rng_below(rng, SUBJECT_DISK + 1),
				      pick32(rng),
				      pick32(rng),
				      pick32(rng),
				      pick32(rng),
				      pick32(rng)};
	if (kind == LABEL_ALSO)
		return r;
	l->factor = pick_double(rng);
	l->until_ns = pick_ns(rng);
	pick_text(rng, l->what, sizeof(l->what));
	return r;
}

static bool same_bits(double a, double b)
{
	return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof(a)) == 0;
}

/* Byte for byte, but that one NaN is as good as another. */
static void unify_nan(struct trace_record *r)
{
	struct sample *s = &r->sample;

	if (r->is_label) {
		r->label.factor = isnan(r->label.factor) ? NAN : r->label.factor;
		return;
	}
	for (unsigned i = 0; s->kind == SAMPLE_METRICS && i < METRIC_COUNT; i++)
		s->metrics[i] = isnan(s->metrics[i]) ? NAN : s->metrics[i];
	if (s->kind == SAMPLE_BEAT) {
		s->beat.loss = isnan(s->beat.loss) ? NAN : s->beat.loss;
		s->beat.grad_norm = isnan(s->beat.grad_norm) ? NAN : s->beat.grad_norm;
	}
}

static void check_round_trip(struct trace_record want)
{
	char line[TRACE_LINE_MAX], again[TRACE_LINE_MAX];
	size_t len = trace_format(&want, line);
	struct trace_record got;
	const char *why = NULL;

	line[len] = '\0';
	if (trace_parse(line, len, &got, &why) != 0)
		fail_msg("%s: %s", line, why);
	unify_nan(&want);
	unify_nan(&got);
	if (memcmp(&want, &got, sizeof(got)) != 0) {
		again[trace_format(&got, again)] = '\0';
		fail_msg("wrote %s\nread %s", line, again);
	}
}

static void test_each_kind(void **state)
{
	struct rng_seeded seeded;

	(void)state;
	rng_seed(&seeded, test_seed(1));
	for (unsigned i = 0; i < 300; i++) {
		for (unsigned k = 0; k < SAMPLE_KIND_COUNT; k++)
			check_round_trip(pick_sample(&seeded.rng, (enum sample_kind)k));
		for (unsigned k = 0; k < LABEL_KIND_COUNT; k++)
			check_round_trip(pick_label(&seeded.rng, (enum label_kind)k));
	}
}

static struct trace_record parsed(const char *line)
{
	struct trace_record r;
	const char *why = NULL;

	if (trace_parse(line, strlen(line), &r, &why) != 0)
		fail_msg("%s: %s", line, why);
	return r;
}

static void test_text(void **state)
{
	char line[TRACE_LINE_MAX];
	struct trace_record r = parsed("12.5 beat loss=0.1 step=7 busy=1.000000001 rank=3 job=0");

	(void)state;
	assert_int_equal(r.sample.kind, SAMPLE_BEAT);
	assert_true(r.sample.time_ns == UINT64_C(12500000000));
	assert_int_equal(r.sample.beat.flags, BEAT_LOSS | BEAT_BUSY);
	assert_int_equal(r.sample.beat.busy_ns, 1000000001);
	assert_true(same_bits(r.sample.beat.loss, 0.1));
	assert_true(isnan(r.sample.beat.grad_norm));
	assert_int_equal(r.sample.node, SAMPLE_NONE);
	line[trace_format(&r, line)] = '\0';
	assert_string_equal(line, "12.5 beat job=0 rank=3 step=7 busy=1.000000001 loss=0.1");
	r = parsed("0 kernel node=1 text=\"say \\22\\0a\\5c\"");
	assert_string_equal(r.sample.kernel.text, "say \"\n\\");
	r = parsed(
		"3 fault id=2 what=\"link\" class=slow,failing subject=link node=1 peer=2 until=4");
	assert_int_equal(r.label.classes, 1u << CLASS_SLOW | 1u << CLASS_FAILING);
	assert_int_equal(r.label.subject.peer, 2);
	r = parsed("3 gap");
	assert_true(r.is_label && r.label.kind == LABEL_GAP);
	r = parsed("0 activity job=1 rank=2 step=3 phase=sync state=R");
	assert_int_equal(r.sample.activity.cpu_permille, UINT16_MAX);
}

static void test_hostile_lines(void **state)
{
	static const char *const lines[] = {
		"",
		" ",
		"1",
		"1 ",
		"beat job=0 rank=0 step=1",
		"-1 alive node=1",
		"+1 alive node=1",
		"1. alive node=1",
		"1.0000000001 alive node=1",
		"18446744074 alive node=1",
		"99999999999999999999 alive node=1",
		"1 alive",
		"1 alive node=",
		"1 alive node=1 ",
		"1 alive  node=1",
		"1 alive node=1 node=1",
		"1 alive node=4294967296",
		"1 alive node=0x1",
		"1 alive node=-1",
		"1 alive rank=1",
		"1 Alive node=1",
		"1 alive\tnode=1",
		"1 alivenode=1",
		"1 beat job=0 rank=0",
		"1 beat job=0 step=1",
		"1 beat job=0 rank=0 step=1 loss=",
		"1 beat job=0 rank=0 step=1 loss=1e",
		"1 beat job=0 rank=0 step=1 loss=0x1p3",
		"1 beat job=0 rank=0 step=1 loss=+1",
		"1 beat job=0 rank=0 step=1 loss=nan(12)",
		"1 beat job=0 rank=0 step=1 loss=1.",
		"1 beat job=0 rank=0 step=1 loss=1,5",
		"1 kernel node=1 text=abc",
		"1 kernel node=1 text=\"abc",
		"1 kernel node=1 text=\"a\\0\"",
		"1 kernel node=1 text=\"a\\00\"",
		"1 kernel node=1 text=\"a\\4G\"",
		"1 kernel node=1 text=\"a\"b",
		"1 kernel node=1 text=\"a\x01\"",
		"1 kernel node=1 facility=256 text=\"a\"",
		"1 phase job=0 rank=0 phase=lunch begins=1",
		"1 phase job=0 rank=0 phase= begins=1",
		"1 phase job=0 rank=0 phase=step begins=2",
		"1 phase job=0 rank=0 phase=step begins=1 "
		"what=\"0123456789012345678901234567890123\"",
		"1 exit job=0 rank=0 how=code value=2147483648",
		"1 exit job=0 rank=0 how=code value=-2147483649",
		"1 fault id=1 what=\"x\" class= subject=job until=1",
		"1 fault id=1 what=\"x\" class=slow,slow subject=job until=1",
		"1 fault id=1 what=\"x\" class=slow, subject=job until=1",
		"1 gap node=1",
		"1 activity job=1 rank=2 step=3 phase=sync state= ",
	};
	struct trace_record r;

	(void)state;
	for (unsigned i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		const char *why = NULL;

		if (trace_parse(lines[i], strlen(lines[i]), &r, &why) != -EINVAL || !why)
			fail_msg("accepted: %s", lines[i]);
	}
}

struct heap {
	char *buf;
	size_t len, cap, read;
};

static int heap_sink(void *arg, const void *buf, size_t len)
{
	struct heap *h = arg;

	if (h->len + len > h->cap)
		return -ENOSPC;
	memcpy(h->buf + h->len, buf, len);
	h->len += len;
	return 0;
}

static long heap_source(void *arg, void *buf, size_t size)
{
	struct heap *h = arg;
	size_t n = h->len - h->read;

	n = n < size ? n : size;
	n = n < 777 ? n : 777;
	memcpy(buf, h->buf + h->read, n);
	h->read += n;
	return (long)n;
}

#define LINES 5000u

static void check_file(int level)
{
	CLEANUP_FREE char *buf = alloc_zero(1u << 20);
	struct heap h = {.buf = buf, .cap = 1u << 20};
	struct trace_writer *w = NULL;
	struct trace_reader *rd = NULL;
	struct sample s = {.kind = SAMPLE_ALIVE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	struct trace_record got;
	struct err e = {0};

	assert_non_null(buf);
	assert_int_equal(trace_writer_new(level, heap_sink, &h, &w), 0);
	for (unsigned i = 0; i < LINES; i++) {
		s.time_ns = i * UINT64_C(1000000);
		s.node = i;
		assert_int_equal(trace_put_sample(w, &s), 0);
		if (i == LINES / 2)
			assert_int_equal(trace_flush(w), 0);
	}
	assert_int_equal(trace_flush(w), 0);
	trace_writer_free(w);
	assert_int_equal(trace_reader_new("t", heap_source, &h, &rd, &e), 0);
	for (unsigned i = 0; i < LINES; i++) {
		assert_int_equal(trace_next(rd, &got, &e), 1);
		assert_int_equal(got.sample.node, i);
	}
	assert_int_equal(trace_next(rd, &got, &e), 0);
	assert_int_equal(trace_next(rd, &got, &e), 0);
	trace_reader_free(rd);
	if (!level)
		return;
	h.len -= 3;
	h.read = 0;
	assert_int_equal(trace_reader_new("t", heap_source, &h, &rd, &e), 0);
	for (unsigned i = 0; i < LINES; i++)
		if (trace_next(rd, &got, &e) != 1)
			break;
	assert_int_equal(e.code ? e.code : trace_next(rd, &got, &e), CKPT_ECORRUPT);
	test_says(e.text, "cut off");
	trace_reader_free(rd);
}

static void test_files(void **state)
{
	(void)state;
	check_file(0);
	check_file(3);
}

/* What a reader says of these bytes: NULL if it takes them all. */
static const char *verdict_on(const char *text, size_t len)
{
	static struct err e;
	struct heap h = {.buf = (char *)(uintptr_t)text, .len = len};
	struct trace_reader *rd = NULL;
	struct trace_record got;
	int n;

	e = (struct err){0};
	if (trace_reader_new("t", heap_source, &h, &rd, &e) < 0)
		return e.text;
	do
		n = trace_next(rd, &got, &e);
	while (n > 0);
	trace_reader_free(rd);
	return n < 0 ? e.text : NULL;
}

static void test_hostile_files(void **state)
{
	static const char back[] = "ckpt-trace 1\n\n# a remark\n2 alive node=1\n1 alive node=1\n";
	static const char bad[] = "ckpt-trace 1\n2 alive node=1\n3 alive node=x";
	static const char good[] = "ckpt-trace 1\n2 alive node=1\n3 alive node=2";
	CLEANUP_FREE char *wide = alloc_zero(200000);

	(void)state;
	assert_non_null(wide);
	assert_null(verdict_on(good, strlen(good)));
	test_says(verdict_on(back, strlen(back)), "line 5 is refused: its time is before");
	test_says(verdict_on(bad, strlen(bad)), "line 3 is refused: the value");
	test_says(verdict_on("ckpt-trace 2\n", 13), "not a trace");
	test_says(verdict_on("", 0), "not a trace");
	snprintf(wide, 200000, "ckpt-trace 1\n");
	memset(wide + 13, 'x', 199000);
	test_says(verdict_on(wide, 100000), "line 2 is longer");
	wide[13 + TRACE_LINE_MAX] = '\n';
	test_says(verdict_on(wide, 100000), "line 2 is longer");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_kind),     cmocka_unit_test(test_text),
		cmocka_unit_test(test_hostile_lines), cmocka_unit_test(test_files),
		cmocka_unit_test(test_hostile_files),
	};

	return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
