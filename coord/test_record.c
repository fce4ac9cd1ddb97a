/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>

#include "base/bytes.h"
#include "tests/lib/test.h"

#include "coord/test_samples.h"

enum { DIGEST = 16, HEADER = 88 };

/* ---- A history with something of everything, for the summing record ---- */

static void fill_history(struct history *h)
{
	struct record r = sample_record(RECORD_JOB, 1);

	history_init(h);
	r.incarnation = 3;
	assert_int_equal(apply_next(h, &r, NULL), 0);
	r = sample_record(RECORD_LEAD, 0);
	assert_int_equal(apply_next(h, &r, NULL), 0);
	for (uint64_t epoch = 1; epoch <= 2; epoch++) {
		r = sample_record(RECORD_EPOCH, epoch);
		r.opened.parent = h->epoch.number;
		sprintf(r.opened.run_id, "run-%d", (int)epoch);
		if (epoch == 2) {
			r.opened.has_base = true;
			r.opened.base_step = 1020;
			r.opened.base_attempt = sample_attempt(1020);
		}
		assert_int_equal(apply_next(h, &r, NULL), 0);
		for (uint64_t step = 10; step <= 30; step += 10) {
			r = sample_record(RECORD_COMMIT, 1000 * epoch + step);
			assert_int_equal(apply_next(h, &r, NULL), 0);
			r = sample_record(RECORD_ABORT, 1000 * epoch + step + 1);
			assert_int_equal(apply_next(h, &r, NULL), 0);
		}
	}
	r = sample_record(RECORD_PIN, 1010);
	assert_int_equal(apply_next(h, &r, NULL), 0);
	r = sample_record(RECORD_TRUST, 2010);
	r.mark.value = 2;
	assert_int_equal(apply_next(h, &r, NULL), 0);
	r = sample_record(RECORD_FREE, 1030);
	assert_int_equal(apply_next(h, &r, NULL), 0);
}

/* One encoded record of each type. */
static uint8_t *encode_sample(enum record_type type, size_t *ret_len)
{
	struct record r = sample_record(type, 1);
	struct history h;
	void *bytes = NULL;

	fill_history(&h);
	if (type == RECORD_JOB)
		r.incarnation = 3;
	else
		history_next(&h, &r);
	assert_int_equal(record_encode(&r, &bytes, ret_len), 0);
	history_fini(&h);
	return bytes;
}

static void expect(int want, const void *bytes, size_t len)
{
	struct record r;
	struct history sum;
	struct err e = { 0 };

	history_init(&sum);
	memset(&r, 0xa5, sizeof(r));
	assert_int_equal(record_decode(bytes, len, &r, &sum, &e), want);
	assert_int_equal(e.code, want);
	if (want < 0) { /* untouched on failure */
		for (size_t i = 0; i < sizeof(r); i++)
			assert_int_equal(((uint8_t *)&r)[i], 0xa5);
		assert_null(sum.commits);
		assert_true(e.text[0] != '\0');
	}
	history_fini(&sum);
}

/* ---- Tests ---- */

static void test_round_trip(void **state)
{
	(void)state;
	for (int type = RECORD_JOB; type <= RECORD_SUM; type++) {
		size_t len = 0, again_len = 0;
		uint8_t *bytes = encode_sample((enum record_type)type, &len);
		struct history sum;
		struct record r;
		void *again = NULL;

		history_init(&sum);
		assert_int_equal(record_decode(bytes, len, &r, &sum, NULL), 0);
		assert_int_equal(r.type, type);
		assert_ptr_equal(r.sum, type == RECORD_SUM ? &sum : NULL);
		assert_int_equal(record_encode(&r, &again, &again_len), 0);
		assert_int_equal(again_len, len);
		assert_memory_equal(again, bytes, len);
		alloc_free(again);
		alloc_free(bytes);
		history_fini(&sum);
	}
}

static void test_fields_come_back(void **state)
{
	struct record want = sample_record(RECORD_EPOCH, 8), got;
	void *bytes = NULL;
	size_t len = 0;

	(void)state;
	want.incarnation = 2;
	want.n = 77;
	want.term = 5;
	want.epoch = 8;
	test_fill(want.previous.b, sizeof(want.previous.b), 9);
	want.opened.parent = 8;
	want.opened.has_base = true;
	want.opened.passes = true;
	want.opened.base_step = 1234567890123456789u;
	want.opened.base_attempt = sample_attempt(3);
	sample_text(want.opened.run_id, RUN_ID_MAX);
	sample_text(want.opened.reason, REASON_MAX);
	assert_int_equal(record_encode(&want, &bytes, &len), 0);
	assert_int_equal(record_decode(bytes, len, &got, NULL, NULL), 0);
	alloc_free(bytes);
	assert_int_equal(got.incarnation, 2);
	assert_int_equal(got.n, 77);
	assert_int_equal(got.term, 5);
	assert_int_equal(got.epoch, 8);
	assert_int_equal(got.wall_ns, want.wall_ns);
	assert_memory_equal(got.previous.b, want.previous.b, DIGEST);
	assert_int_equal(got.opened.number, 9);
	assert_int_equal(got.opened.parent, 8);
	assert_true(got.opened.has_base);
	assert_true(got.opened.passes);
	assert_int_equal(got.opened.base_step, 1234567890123456789u);
	assert_memory_equal(got.opened.base_attempt.b, want.opened.base_attempt.b, DIGEST);
	assert_int_equal(got.opened.world, 4);
	assert_string_equal(got.opened.run_id, want.opened.run_id);
	assert_string_equal(got.opened.reason, want.opened.reason);
}

/* Made by a program of its own, in another language, from doc/log-format.md. */
static const char golden_commit[] =
	"434b50544c4f470ab000000001000400000000000000000000000000000000000100000000000000"
	"05000000000000000200000000000000030000000000000008070605040302011111111111111111"
	"11111111111111117800000000000000222222222222222222222222222222223333333333333333"
	"33333333333333334444444444444444444444444444444404000000010000000010000000000000"
	"9e64d2b717819f057160045f648a4706";
static const char golden_job[] =
	"434b50544c4f470a9200000001000100000000000000000000000000000000000100000000000000"
	"00000000000000000000000000000000000000000000000009000000000000000000000000000000"
	"000000000000000055555555555555555555555555555555e8030000666666666666666666666666"
	"66666666040072756e37a5d4404531b188e265aadee6b7eb8c2e";

static void test_bytes_are_the_documented_ones(void **state)
{
	struct record r = { .type = RECORD_COMMIT, .incarnation = 1, .n = 5, .term = 2, .epoch = 3,
			    .wall_ns = 0x0102030405060708u };
	char hex[2 * 256 + 1];
	void *bytes = NULL;
	size_t len = 0;

	(void)state;
	memset(r.previous.b, 0x11, DIGEST);
	r.commit = (struct record_commit){ .step = 120, .world = 4, .f = 1, .bytes = 4096 };
	memset(r.commit.attempt.b, 0x22, DIGEST);
	memset(r.commit.root.b, 0x33, DIGEST);
	memset(r.commit.layout.b, 0x44, DIGEST);
	assert_int_equal(record_encode(&r, &bytes, &len), 0);
	assert_true(len <= 256);
	hex_format(hex, bytes, len);
	assert_string_equal(hex, golden_commit);
	alloc_free(bytes);

	r = (struct record){ .type = RECORD_JOB, .incarnation = 1, .wall_ns = 9 };
	memset(r.job.id.b, 0x55, DIGEST);
	memset(r.job.token.b, 0x66, DIGEST);
	r.job.uid = 1000;
	strcpy(r.job.name, "run7");
	assert_int_equal(record_encode(&r, &bytes, &len), 0);
	hex_format(hex, bytes, len);
	assert_string_equal(hex, golden_job);
	alloc_free(bytes);
}

static void test_each_changed_bit_is_refused(void **state)
{
	unsigned bits = 0;

	(void)state;
	for (int type = RECORD_JOB; type <= RECORD_SUM; type++) {
		size_t len = 0;
		uint8_t *bytes = encode_sample((enum record_type)type, &len);

		for (size_t i = 0; i < 8 * len; i++) {
			bytes[i / 8] ^= (uint8_t)(1u << i % 8);
			expect(CKPT_ECORRUPT, bytes, len);
			bytes[i / 8] ^= (uint8_t)(1u << i % 8);
			bits++;
		}
		expect(0, bytes, len);
		alloc_free(bytes);
	}
	printf("bits flipped: %u\n", bits);
}

static void test_each_cut_is_refused(void **state)
{
	(void)state;
	for (int type = RECORD_JOB; type <= RECORD_SUM; type++) {
		size_t len = 0;
		uint8_t *bytes = encode_sample((enum record_type)type, &len);
		uint8_t *longer = alloc_zero(len + 1);

		memcpy(longer, bytes, len);
		for (size_t cut = 0; cut < len; cut++) {
			uint8_t *shorter = alloc_copy(bytes, cut); /* so that overruns show */

			expect(CKPT_ECORRUPT, shorter, cut);
			alloc_free(shorter);
		}
		expect(CKPT_ECORRUPT, longer, len + 1);
		alloc_free(longer);
		alloc_free(bytes);
	}
}

/* A body cut short or lengthened whose length and digest are right. */
static void test_each_sealed_cut_is_refused(void **state)
{
	(void)state;
	for (int type = RECORD_JOB; type <= RECORD_SUM; type++) {
		size_t len = 0;
		uint8_t *bytes = encode_sample((enum record_type)type, &len);

		for (size_t cut = HEADER + DIGEST; cut <= len + 1; cut++) {
			uint8_t *copy = alloc_zero(cut);

			memcpy(copy, bytes, cut - DIGEST < len ? cut - DIGEST : len);
			put_le32(copy + 8, (uint32_t)cut);
			reseal(copy, cut);
			expect(cut == len ? 0 : CKPT_ECORRUPT, copy, cut);
			alloc_free(copy);
		}
		alloc_free(bytes);
	}
}

/* Each byte of the record changed, with the right digest: refused, or the one encoding of it. */
static void test_one_record_has_one_encoding(void **state)
{
	(void)state;
	for (int type = RECORD_JOB; type <= RECORD_SUM; type++) {
		size_t len = 0;
		uint8_t *bytes = encode_sample((enum record_type)type, &len);

		for (size_t i = 28; i < len - DIGEST; i++) {
			uint8_t was = bytes[i];
			struct history sum;
			struct record r;
			void *again = NULL;
			size_t again_len = 0;

			bytes[i] = (uint8_t)(was + 1);
			reseal(bytes, len);
			history_init(&sum);
			if (record_decode(bytes, len, &r, &sum, NULL) == 0) {
				assert_int_equal(record_encode(&r, &again, &again_len), 0);
				assert_int_equal(again_len, len);
				assert_memory_equal(again, bytes, len);
				alloc_free(again);
			} else {
				expect(CKPT_ECORRUPT, bytes, len);
			}
			history_fini(&sum);
			bytes[i] = was;
		}
		alloc_free(bytes);
	}
}

/* A byte of a sample set to a value and sealed. */
static void expect_byte(enum record_type type, size_t at, uint8_t value, int want)
{
	size_t len = 0;
	uint8_t *bytes = encode_sample(type, &len);

	assert_int_not_equal(bytes[at], value);
	bytes[at] = value;
	reseal(bytes, len);
	expect(want, bytes, len);
	alloc_free(bytes);
}

static void test_newer_programs_are_told_from_damage(void **state)
{
	(void)state;
	expect_byte(RECORD_COMMIT, 12, 2, CKPT_EVERSION);  /* version */
	expect_byte(RECORD_COMMIT, 14, 10, CKPT_EVERSION); /* type */
	expect_byte(RECORD_COMMIT, 14, 0, CKPT_EVERSION);
	expect_byte(RECORD_COMMIT, 16, 2, CKPT_EVERSION);  /* incompat */
	expect_byte(RECORD_COMMIT, 16, 1, CKPT_ECORRUPT);  /* what only an epoch has */
	expect_byte(RECORD_EPOCH, 16, 1, CKPT_ECORRUPT);   /* ... that has a base */
	expect_byte(RECORD_COMMIT, 20, 1, 0);              /* ro */
	expect_byte(RECORD_COMMIT, 24, 1, 0);              /* compat */
	expect_byte(RECORD_COMMIT, 28, 1, CKPT_ECORRUPT);  /* reserved */
}

static void test_unknown_features_may_add_bytes(void **state)
{
	(void)state;
	for (size_t feature = 16; feature <= 28; feature += 4) {
		size_t len = 0;
		uint8_t *bytes = encode_sample(RECORD_COMMIT, &len);
		uint8_t *longer = alloc_zero(len + 5);
		struct record r;
		int rc;

		memcpy(longer, bytes, len - DIGEST);
		put_le32(longer + 8, (uint32_t)len + 5);
		if (feature < 28)
			longer[feature] = 0x80;
		reseal(longer, len + 5);
		rc = record_decode(longer, len + 5, &r, NULL, NULL);
		assert_int_equal(rc, feature == 16 ? CKPT_EVERSION :
				     feature == 28 ? CKPT_ECORRUPT : 0);
		if (rc == 0) {
			assert_int_equal(r.read_only, feature == 20);
			assert_int_equal(r.commit.bytes, 1u << 30);
		}
		alloc_free(longer);
		alloc_free(bytes);
	}
}

static void test_texts_are_checked(void **state)
{
	(void)state;
	expect_byte(RECORD_JOB, HEADER + 38, '/', CKPT_ECORRUPT);  /* the name is part of paths */
	expect_byte(RECORD_JOB, HEADER + 38, '.', CKPT_ECORRUPT);
	expect_byte(RECORD_LEAD, HEADER + 3, '\0', CKPT_ECORRUPT); /* NUL within */
	expect_byte(RECORD_LEAD, HEADER + 1, 1, CKPT_ECORRUPT);    /* longer than a node's name */
	expect_byte(RECORD_EPOCH, HEADER + 16, 2, CKPT_ECORRUPT);  /* a flag */
	expect_byte(RECORD_EPOCH, HEADER + 17, 1, CKPT_ECORRUPT);  /* a step, but no base */
}

/* ---- The summing record ---- */

static void encode_sum(const struct history *h, uint8_t **ret, size_t *ret_len)
{
	struct record r = { .type = RECORD_SUM };
	void *bytes = NULL;

	history_next(h, &r);
	assert_int_equal(record_encode(&r, &bytes, ret_len), 0);
	*ret = bytes;
}

static void test_names_that_are_no_names_are_not_written(void **state)
{
	struct record r = sample_record(RECORD_JOB, 1);
	struct history h;
	void *bytes = NULL;
	size_t len = 0;

	(void)state;
	strcpy(r.job.name, "../x");
	assert_int_equal(record_encode(&r, &bytes, &len), -EINVAL);
	history_init(&h);
	r = (struct record){ .type = RECORD_SUM, .sum = &h };
	assert_int_equal(record_encode(&r, &bytes, &len), -EINVAL);
	assert_null(bytes);
}

static void test_sum_fields_come_back(void **state)
{
	struct history h, sum;
	struct record r;
	uint8_t *bytes = NULL;
	size_t len = 0;

	(void)state;
	fill_history(&h);
	encode_sum(&h, &bytes, &len);
	history_init(&sum);
	assert_int_equal(record_decode(bytes, len, &r, &sum, NULL), 0);
	assert_int_equal(sum.incarnation, 3);
	assert_int_equal(sum.term, 1);
	assert_int_equal(sum.first_n, h.next_n);
	assert_int_equal(sum.next_n, h.next_n + 1);
	assert_string_equal(sum.job.name, "run-7.b");
	assert_int_equal(sum.epoch.number, 3);
	assert_int_equal(sum.epoch.base_step, 1020);
	assert_true(sum.stepped);
	assert_int_equal(sum.last_step, 2030);
	assert_int_equal(sum.n_commits, 5); /* 1030 is freed */
	assert_int_equal(sum.n_aborts, 6);
	assert_int_equal(sum.n_runs, 1);
	assert_true(history_run_is_past(&sum, "run-1"));
	assert_false(history_run_is_past(&sum, "run-2"));
	assert_true(sum.commits[0].pinned);
	assert_int_equal(sum.commits[2].commit.step, 2010);
	assert_int_equal(sum.commits[2].trust, 2);
	assert_int_equal(sum.commits[2].epoch, 3);
	assert_int_equal(sum.aborts[5].aborted.step, 2031);
	history_fini(&sum);
	history_fini(&h);
	alloc_free(bytes);
}

static struct history_commit *big_history(struct history *h, size_t n)
{
	fill_history(h);
	alloc_free(h->commits);
	h->commits = alloc_array(n, sizeof(*h->commits));
	h->n_commits = h->cap_commits = n;
	h->next_n = 2 * n + 10;
	h->stepped = true;
	h->last_step = n;
	for (size_t i = 0; i < n; i++) {
		h->commits[i].commit.step = i;
		h->commits[i].commit.world = 1;
		h->commits[i].epoch = 3;
		h->commits[i].n = i;
		h->commits[i].trust = UINT32_MAX;
		h->commits[i].pinned = i % 2;
	}
	return h->commits;
}

/* A history with as many commits as this, of which the newest `lost` were lost. */
static int encode_kept(size_t kept, size_t lost, struct history *ret, void **ret_bytes,
		       size_t *ret_len)
{
	struct record r = { .type = RECORD_SUM };
	struct history_commit *c = big_history(ret, kept + lost);

	for (size_t i = kept; i < kept + lost; i++)
		c[i].freed = c[i].lost = true;
	ret->n_aborts = 0;
	history_next(ret, &r);
	return record_encode(&r, ret_bytes, ret_len);
}

/*
 * Each number of kept commits around each bound, with and without lost ones: the log takes the
 * record that is written, and reads it again. 288 kept and 16 lost ones once failed an assertion.
 */
static void test_sums_at_their_bounds(void **state)
{
	static const size_t kept[] = { 1,
				       284,
				       285,
				       288,
				       300,
				       301,
				       HISTORY_COMMITS_MAX - HISTORY_LOST_MAX,
				       HISTORY_COMMITS_MAX - HISTORY_LOST_MAX + 1,
				       HISTORY_COMMITS_MAX - 1,
				       HISTORY_COMMITS_MAX };
	static const size_t lost[] = { 0, 1, HISTORY_LOST_MAX, HISTORY_LOST_MAX + 1 };

	(void)state;
	for (size_t i = 0; i < sizeof(kept) / sizeof(*kept) * 4; i++) {
		size_t n = kept[i / 4], gone = lost[i % 4];
		size_t told = gone < HISTORY_LOST_MAX ? gone : HISTORY_LOST_MAX;
		uint64_t at;
		struct history h;
		void *bytes = NULL;
		size_t len = 0;

		assert_int_equal(encode_kept(n, gone, &h, &bytes, &len), 0);
		assert_int_equal(history_check(&h, h.next_n, bytes, len, NULL), 0);
		assert_int_equal(history_apply(&h, h.next_n, bytes, len, NULL), 0);
		assert_int_equal(h.n_commits, n + told);
		history_fini(&h);
		at = get_le64((uint8_t *)bytes + 40);
		/* As the first of a log that was trimmed. */
		assert_int_equal(history_apply(&h, at, bytes, len, NULL), 0);
		history_fini(&h);
		alloc_free(bytes);
	}
}

static void test_one_over_is_refused(void **state)
{
	struct history h;
	void *bytes = NULL;
	size_t len = 0;

	(void)state;
	assert_int_equal(encode_kept(HISTORY_COMMITS_MAX + 1, 0, &h, &bytes, &len), -E2BIG);
	assert_null(bytes);
	history_fini(&h);
}

/* Each array's count says one more than there may be, or more than there are bytes. */
static void test_counts_of_a_sum_are_bounded(void **state)
{
	enum { RUNS_AT = 88 + 102 + 432 + 9 }; /* with the longest texts */
	struct history h;
	struct record r = { .type = RECORD_SUM };
	uint8_t *bytes = NULL, *p;
	size_t len = 0;

	(void)state;
	big_history(&h, 1);
	h.n_aborts = 0;
	h.n_runs = 0;
	sample_text(h.epoch.run_id, RUN_ID_MAX);
	sample_text(h.epoch.reason, REASON_MAX);
	sample_text(h.job.name, CKPT_JOB_MAX);
	history_next(&h, &r);
	assert_int_equal(record_encode(&r, (void **)&bytes, &len), 0);
	expect(0, bytes, len);
	for (int i = 0; i < 2; i++) { /* runs, commits */
		static const uint32_t counts[2][3] = {
			{ 1, HISTORY_RUNS_MAX + 1, UINT32_MAX },
			{ 2, HISTORY_SUM_MAX + 1, UINT32_MAX },
		};

		p = bytes + RUNS_AT + 4 * i;
		assert_int_equal(get_le32(p), i);
		for (int k = 0; k < 3; k++) {
			put_le32(p, counts[i][k]);
			reseal(bytes, len);
			expect(CKPT_ECORRUPT, bytes, len);
		}
		put_le32(p, (uint32_t)i);
	}
	p = bytes + len - 16 - 4; /* aborts */
	assert_int_equal(get_le32(p), 0);
	for (uint32_t n = 1; n <= HISTORY_ABORTS_MAX + 1; n += HISTORY_ABORTS_MAX) {
		put_le32(p, n);
		reseal(bytes, len);
		expect(CKPT_ECORRUPT, bytes, len);
	}
	alloc_free(bytes);
	history_fini(&h);
}

static void test_the_largest_sum_fits(void **state)
{
	struct record r = { .type = RECORD_SUM };
	struct history h;
	struct history_commit *c = big_history(&h, HISTORY_COMMITS_MAX + 2 + HISTORY_LOST_MAX + 1);
	struct history_abort *aborts;
	void *bytes = NULL;
	size_t len = 0;

	(void)state;
	h.n_aborts = HISTORY_ABORTS_MAX;
	aborts = h.aborts;
	for (size_t i = 0; i < h.n_aborts; i++) {
		sample_text(aborts[i].aborted.reason, REASON_MAX);
		aborts[i].n = 400 + i;
		aborts[i].epoch = 3;
	}
	h.n_runs = HISTORY_RUNS_MAX;
	sample_text(h.epoch.run_id, RUN_ID_MAX);
	sample_text(h.epoch.reason, REASON_MAX);
	sample_text(h.job.name, CKPT_JOB_MAX);
	history_next(&h, &r);
	c[0].gone = c[1].gone = true; /* 1 is pinned */
	for (size_t i = HISTORY_COMMITS_MAX + 2; i < h.n_commits; i++)
		c[i].freed = c[i].lost = true;
	assert_int_equal(record_encode(&r, &bytes, &len), -E2BIG);
	assert_null(bytes);
	c[3].freed = true;
	assert_int_equal(record_encode(&r, &bytes, &len), 0);
	printf("the largest summing record: %zu bytes\n", len);
	expect(0, bytes, len);
	alloc_free(bytes);
	history_fini(&h);
}

/* What a fold would have refused does not come in through a sum. */
static void test_sums_out_of_order_are_refused(void **state)
{
	(void)state;
	for (int wrong = 0; wrong <= 13; wrong++) {
		struct history h;
		struct history_commit *c = big_history(&h, 6);
		struct history_abort *a = h.aborts;
		uint8_t *bytes = NULL;
		size_t len = 0;

		for (size_t i = 0; i < h.n_aborts; i++)
			a[i].epoch = 3;
		h.last_step = 5;
		c[3].n = wrong == 1 ? 2 : 3;
		c[5].n = wrong == 2 ? h.next_n : 5;
		c[4].epoch = wrong == 3 ? 2 : 3;
		c[5].epoch = wrong == 4 ? 4 : 3;
		c[4].commit.step = wrong == 5 ? 3 : 4;
		c[5].commit.step = wrong == 6 ? 6 : 5;
		h.stepped = wrong != 7;
		a[2].n = wrong == 8 ? a[1].n : a[2].n;
		a[5].n = wrong == 9 ? h.next_n : a[5].n;
		a[2].epoch = wrong == 10 ? 2 : 3;
		a[5].epoch = wrong == 11 ? 4 : 3;
		c[0].epoch = wrong == 12 ? 0 : 3;
		a[0].epoch = wrong == 13 ? 0 : 3;
		encode_sum(&h, &bytes, &len);
		expect(wrong ? CKPT_ECORRUPT : 0, bytes, len);
		alloc_free(bytes);
		history_fini(&h);
	}
}

#ifdef CKPT_FAULTS
static void test_allocations_fail(void **state)
{
	unsigned failures = 0;

	(void)state;
	for (int type = RECORD_JOB; type <= RECORD_SUM; type++) {
		size_t len = 0, again_len = 0;
		uint8_t *bytes = encode_sample((enum record_type)type, &len);
		bool fired = true;

		for (uint64_t at = 1; fired; at++) {
			struct history sum;
			struct record r;
			void *again = NULL;
			int rc;

			history_init(&sum);
			alloc_fail_at(at, false);
			rc = record_decode(bytes, len, &r, &sum, NULL);
			if (rc == 0)
				rc = record_encode(&r, &again, &again_len);
			fired = alloc_fired();
			alloc_fail_at(0, false);
			assert_int_equal(rc, fired ? -ENOMEM : 0);
			failures += fired;
			alloc_free(again);
			history_fini(&sum);
		}
		alloc_free(bytes);
	}
	printf("allocations made to fail: %u\n", failures);
	assert_true(failures >= 12);
}
#endif

static void test_descriptions(void **state)
{
	struct record r = sample_record(RECORD_COMMIT, 120);
	char buf[400], tiny[8];

	(void)state;
	memset(r.commit.attempt.b, 0x3f, DIGEST);
	record_describe(&r, buf, sizeof(buf));
	assert_string_equal(buf, "commit step 120 attempt 3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f3f f 1");
	record_describe(&r, tiny, sizeof(tiny));
	assert_string_equal(tiny, "commit ");
	r = sample_record(RECORD_EPOCH, 1);
	record_describe(&r, buf, sizeof(buf));
	assert_string_equal(buf, "epoch 2 base none world 4 run 'slurm-4711.0': new run");
	for (int type = RECORD_JOB; type <= RECORD_SUM; type++) {
		r = sample_record((enum record_type)type, 1);
		buf[0] = '\0';
		record_describe(&r, buf, sizeof(buf));
		assert_true(strlen(buf) > 8);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_fields_come_back),
		cmocka_unit_test(test_bytes_are_the_documented_ones),
		cmocka_unit_test(test_each_changed_bit_is_refused),
		cmocka_unit_test(test_each_cut_is_refused),
		cmocka_unit_test(test_each_sealed_cut_is_refused),
		cmocka_unit_test(test_one_record_has_one_encoding),
		cmocka_unit_test(test_newer_programs_are_told_from_damage),
		cmocka_unit_test(test_unknown_features_may_add_bytes),
		cmocka_unit_test(test_texts_are_checked),
		cmocka_unit_test(test_names_that_are_no_names_are_not_written),
		cmocka_unit_test(test_sum_fields_come_back),
		cmocka_unit_test(test_sums_at_their_bounds),
		cmocka_unit_test(test_one_over_is_refused),
		cmocka_unit_test(test_counts_of_a_sum_are_bounded),
		cmocka_unit_test(test_the_largest_sum_fits),
		cmocka_unit_test(test_sums_out_of_order_are_refused),
#ifdef CKPT_FAULTS
		cmocka_unit_test(test_allocations_fail),
#endif
		cmocka_unit_test(test_descriptions),
	};

	return cmocka_run_group_tests_name("coord/record", tests, NULL, NULL);
}
