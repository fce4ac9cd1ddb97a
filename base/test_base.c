/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "base/huge.h"
#include "base/loop.h"
#include "base/rng.h"
#include "base/text.h"
#include "tests/lib/test.h"

static void test_err_wraps_outward(void **state)
{
	struct err e = { 0 };

	(void)state;
	assert_int_equal(err_code(&e, -EIO, "read record %d", 17), -EIO);
	assert_int_equal(err_wrap(&e, -EIO, "open job '%s'", "x"), -EIO);
	assert_string_equal(e.text, "open job 'x': read record 17: Input/output error");
	assert_string_equal(err_text(CKPT_ECORRUPT), "data does not match its digest");
	assert_int_equal(err_set(NULL, -EINVAL, "nobody listens"), -EINVAL);
}

static void test_err_cuts_long_text(void **state)
{
	struct err e = { 0 };
	char big[2 * ERR_TEXT_MAX];

	(void)state;
	memset(big, 'a', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	err_set(&e, -EIO, "%s", big);
	err_wrap(&e, -EIO, "%s", big);
	assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
}

/* What is quoted from a file moves no cursor. */
static void test_err_replaces_control_characters(void **state)
{
	static const char hostile[] = "a\x1b[2J\r\n\t\x7f\xc2\x9b"
				      "1m\xc3\xa9";
	struct err e = {0};

	(void)state;
	err_set(&e, -EIO, "tensor '%s'", hostile);
	assert_string_equal(e.text, "tensor 'a?[2J?????\?1m\xc3\xa9'");
	err_code(&e, -EIO, "%s", hostile);
	assert_string_equal(e.text, "a?[2J?????\?1m\xc3\xa9: Input/output error");
	err_set(&e, -EIO, "inner");
	err_wrap(&e, -EIO, "%s", hostile);
	assert_string_equal(e.text, "a?[2J?????\?1m\xc3\xa9: inner");
}

static void test_text_is_clean(void **state)
{
	static const struct {
		const char *from, *to;
	} texts[] = {
		{"", ""},
		{"plain", "plain"},
		{"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80",
		 "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80"},
		{"\xff", "?"},
		{"a\xff\xfe"
		 "b",
		 "a??b"},
		{"a\x80"
		 "b",
		 "a?b"},         /* no character begins so */
		{"\xc3(", "?("}, /* not gone on with */
		{"\xe2\x82(", "?\?("},
		{"\xc0\xaf \xe0\x80\xaf", "?? ???"}, /* longer than need be */
		{"\xed\xa0\x80", "???"},             /* a surrogate */
		{"\xf4\x90\x80\x80 \xf5", "???? ?"}, /* above U+10FFFF */
		{"a\x1b[2J\n", "a?[2J?"},
		{"\xc2\x9b"
		 "1m",
		 "??1m"},
		{"cut \xc3", "cut "},
		{"cut \xf0\x9f\x98", "cut "},
		{"cut \xe2\x82", "cut "},
	};
	char buf[64];

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		strcpy(buf, texts[i].from);
		text_clean(buf);
		assert_string_equal(buf, texts[i].to);
	}
	text_put(buf, 20, "free space, or raise x");
	assert_string_equal(buf, "free space, or...");
	text_put(buf, 23, "free space, or raise x");
	assert_string_equal(buf, "free space, or raise x");
	text_put(buf, 12, "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4");
	assert_string_equal(buf, "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4...");
	assert_int_equal(text_utf8_len("a\0\xc3\xa4\xf4\x8f\xbf\xbf", 8), 8);
	assert_int_equal(text_utf8_len("", 0), 0);
	assert_int_equal(text_utf8_len("ab\xc3\xa4", 3), 2); /* cut */
	assert_int_equal(text_utf8_len("ab\xed\xa0\x80", 5), 2);
	assert_int_equal(text_utf8_len("ab\xc0\x80", 4), 2);
}

static void test_reader_is_sticky(void **state)
{
	uint8_t buf[6] = { 1, 0, 2, 0, 0, 0 };
	struct reader r = reader_of(buf, sizeof(buf));

	(void)state;
	assert_int_equal(read_u16(&r), 1);
	assert_int_equal(read_u32(&r), 2);
	assert_false(r.bad);
	assert_int_equal(read_u8(&r), 0);
	assert_true(r.bad);
	assert_int_equal(reader_left(&r), 0);
	r = reader_of(buf, sizeof(buf));
	assert_null(read_bytes(&r, UINT64_MAX));
	assert_true(r.bad);
}

static void test_writer_round_trip(void **state)
{
	struct writer w = { 0 };
	struct reader r;
	size_t len = 0;

	(void)state;
	write_u64(&w, 0x0102030405060708u);
	write_str(&w, "name", 4);
	for (int i = 0; i < 1000; i++)
		write_u32(&w, (uint32_t)i);
	assert_false(w.bad);
	r = reader_of(w.buf, w.len);
	assert_int_equal(read_u64(&r), 0x0102030405060708u);
	assert_memory_equal(read_str(&r, 8, &len), "name", 4);
	assert_int_equal(len, 4);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(read_u32(&r), i);
	assert_int_equal(reader_left(&r), 0);
	writer_free(&w);
}

static void test_checked_sizes(void **state)
{
	uint64_t v = 7;

	(void)state;
	assert_false(size_add(UINT64_MAX, 1, &v));
	assert_false(size_mul(UINT64_MAX / 2, 3, &v));
	assert_int_equal(v, 7);
	assert_true(size_mul(6, 7, &v));
	assert_int_equal(v, 42);
	assert_int_equal(round_up(4097, 4096), 8192);
	assert_int_equal(div_up(UINT64_MAX, 2), UINT64_MAX / 2 + 1);
}

static void test_names_and_hex(void **state)
{
	uint8_t b[2];
	char text[5];

	(void)state;
	assert_true(name_is_safe("run-7.b_C"));
	assert_false(name_is_safe(".hidden"));
	assert_false(name_is_safe(""));
	assert_false(name_is_safe("a/b"));
	assert_false(name_is_safe("01234567890123456789012345678901"
				  "23456789012345678901234567890123x"));
	assert_int_equal(hex_parse(b, 2, "0aff"), 0);
	hex_format(text, b, 2);
	assert_string_equal(text, "0aff");
	assert_int_equal(hex_parse(b, 2, "0AFF"), -EINVAL);
	assert_int_equal(hex_parse(b, 2, "0af"), -EINVAL);
}

static struct timer *fired[4];
static int n_fired;

static void note_fire(struct timer *t)
{
	fired[n_fired++] = t;
}

static void test_timers_in_order(void **state)
{
	struct timers timers = {0};
	struct timer t[3];

	(void)state;
	for (int i = 0; i < 3; i++)
		timer_init(&t[i], note_fire);
	timers_insert(&timers, &t[0], 30);
	timers_insert(&timers, &t[1], 10);
	timers_insert(&timers, &t[2], 20);
	assert_int_equal(timers_next(&timers), 10);
	timers_insert(&timers, &t[1], 40); /* moves */
	assert_int_equal(timers_next(&timers), 20);
	n_fired = 0;
	assert_int_equal(timers_fire(&timers, 30, 10), 2);
	assert_int_equal(n_fired, 2);
	timers_remove(&timers, &t[1]);
	timers_remove(&timers, &t[1]);
	assert_int_equal(timers_next(&timers), UINT64_MAX);
	for (int i = 0; i < 3; i++)
		timers_insert(&timers, &t[i], 7);
	timers_insert(&timers, &t[0], 7); /* behind its equals now */
	n_fired = 0;
	assert_int_equal(timers_fire(&timers, 7, 3), 3);
	assert_true(fired[0] == &t[1] && fired[1] == &t[2] && fired[2] == &t[0]);
}

/* Against an unsorted array, for any order of arming, moving and disarming. */
static void test_timers_as_a_plain_array(void **state)
{
	enum { N = 300, STEPS = 20000 };
	static struct timer t[N];
	struct timers timers = {0};
	struct rng_seeded rng;

	(void)state;
	rng_seed(&rng, test_seed(18));
	for (int i = 0; i < N; i++)
		timer_init(&t[i], note_fire);
	for (int step = 0; step < STEPS; step++) {
		struct timer *one = &t[rng_below(&rng.rng, N)], *first = NULL;

		if (rng_below(&rng.rng, 3))
			timers_insert(&timers, one, 1 + rng_below(&rng.rng, 100));
		else
			timers_remove(&timers, one);
		for (int i = 0; i < N; i++)
			if (t[i].armed && (!first || t[i].deadline_ns < first->deadline_ns ||
					   (t[i].deadline_ns == first->deadline_ns &&
					    t[i].number < first->number)))
				first = &t[i];
		assert_int_equal(timers_next(&timers), first ? first->deadline_ns : UINT64_MAX);
		if (!first || rng_below(&rng.rng, 4))
			continue;
		n_fired = 0;
		assert_int_equal(timers_fire(&timers, first->deadline_ns, 1), 1);
		assert_ptr_equal(fired[0], first);
	}
}

/* Each timer that is armed is the earliest: a linear search would take a minute. */
static void test_many_timers(void **state)
{
	enum { N = 300000 };
	struct timer *t = alloc_array(N, sizeof(*t));
	struct timers timers = {0};

	(void)state;
	assert_non_null(t);
	for (uint64_t i = 0; i < N; i++) {
		timer_init(&t[i], note_fire);
		timers_insert(&timers, &t[i], N - i);
		assert_int_equal(timers_next(&timers), N - i);
	}
	for (uint64_t i = 0; i < N; i++) {
		assert_int_equal(timers_next(&timers), i + 1);
		timers_remove(&timers, timers.first);
	}
	assert_int_equal(timers_next(&timers), UINT64_MAX);
	alloc_free(t);
}

static void test_alloc_failure_is_swept(void **state)
{
	struct writer w = { 0 };

	(void)state;
	alloc_fail_at(2, false);
	for (int i = 0; i < 300; i++)
		write_u8(&w, 1);
#ifdef CKPT_FAULTS
	assert_true(alloc_fired());
	assert_true(w.bad);
#endif
	alloc_fail_at(0, false);
	writer_free(&w);
	assert_null(alloc_array(SIZE_MAX, 2));
}

struct counter {
	struct alloc_watch watch;
	int live, calls;
};

static void count_taken(struct alloc_watch *w, void *p)
{
	struct counter *c = (struct counter *)w;

	assert_non_null(p);
	c->live++;
	c->calls++;
}

static void count_given(struct alloc_watch *w, void *p)
{
	assert_non_null(p);
	((struct counter *)w)->live--;
}

static void test_watch_sees_every_block(void **state)
{
	struct counter c = { .watch = { count_taken, count_given } };
	void *p, *q;

	(void)state;
	assert_null(alloc_set_watch(&c.watch));
	p = alloc_str("one");
	q = alloc_resize(NULL, 10);
	q = alloc_resize(q, 100000);
	assert_int_equal(c.live, 2);
	assert_int_equal(c.calls, 3);
#ifdef CKPT_FAULTS
	alloc_fail_at(1, true);
	assert_null(alloc_resize(q, 7));
	assert_null(alloc_zero(7));
	alloc_fail_at(0, false);
	assert_int_equal(c.live, 2); /* the old block stays */
#endif
	alloc_free(NULL);
	alloc_free(p);
	assert_ptr_equal(alloc_set_watch(NULL), &c.watch);
	assert_int_equal(c.live, 1);
	alloc_free(q);
	assert_int_equal(c.live, 1); /* nobody was watching */
}

static void test_rng_is_seeded(void **state)
{
	struct rng_seeded a, b;

	(void)state;
	rng_seed(&a, 7);
	rng_seed(&b, 7);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(rng_u64(&a.rng), rng_u64(&b.rng));
		assert_true(rng_below(&a.rng, 10) < 10);
		rng_below(&b.rng, 10);
	}
}

static bool is_mapped(const uint8_t *p)
{
	unsigned char in_core;

	return mincore((void *)(uintptr_t)p, 1, &in_core) == 0;
}

/* Aligned, as long as asked for and not a page more, whatever fills it. */
static void test_huge_mappings(void **state)
{
	static const size_t sizes[] = { 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 5 * HUGE_PAGE + 12345 };
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t size = sizes[i], whole = round_up(size, page);
		int fd = memfd_create("huge", MFD_CLOEXEC);
		uint8_t *p, last;

		assert_int_equal(ftruncate(fd, (off_t)size), 0);
		p = huge_map(fd, size, PROT_READ | PROT_WRITE);
		assert_non_null(p);
		if (size >= HUGE_PAGE) {
			assert_int_equal((uintptr_t)p % HUGE_PAGE, 0);
			assert_true(is_mapped(p + whole - page));
			assert_false(is_mapped(p + whole));
		}
		huge_fill(p, size);
		for (size_t at = 0; at < size; at++)
			assert_int_equal(p[at], 0);
		p[size - 1] = 7;
		if (size < HUGE_PAGE)
			assert_false(huge_is(p, size));
		assert_int_equal(munmap(p, size), 0);
		assert_int_equal(pread(fd, &last, 1, (off_t)size - 1), 1);
		assert_int_equal(last, 7);
		close(fd);
	}
	assert_null(huge_map(-1, HUGE_PAGE, PROT_READ));
}

/* Whether memory of a process that asks for huge pages gets them. */
static bool system_gives_huge_pages(void)
{
	char text[80] = "";
	FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
	bool gives = f && fgets(text, sizeof(text), f) && !strstr(text, "[never]");

	if (f)
		fclose(f);
	return gives;
}

static void test_huge_allocations(void **state)
{
	static const size_t sizes[] = {1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE + 8192};
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct alloc_budget b = {.limit = 4 * HUGE_PAGE};

	(void)state;
	assert_null(alloc_set_budget(&b));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t size = sizes[i], whole = round_up(size, page);
		uint8_t *p = alloc_huge(size);

		assert_non_null(p);
		assert_int_equal((uintptr_t)p % HUGE_PAGE, 0);
		assert_int_equal(b.used, whole);
		assert_false(is_mapped(p + whole));
		if (size >= HUGE_PAGE && system_gives_huge_pages())
			assert_true(huge_is(p, size));
		for (size_t at = 0; at < size; at++)
			assert_int_equal(p[at], 0);
		p[size - 1] = 7;
		alloc_huge_free(p, size);
		assert_false(is_mapped(p));
		assert_int_equal(b.used, 0);
	}
	assert_null(alloc_huge(0));
	assert_null(alloc_huge(SIZE_MAX - 1));
	assert_null(alloc_huge(5 * HUGE_PAGE)); /* beyond the budget */
	assert_ptr_equal(alloc_set_budget(NULL), &b);
	alloc_huge_free(NULL, 1);
}

/* A page that cannot be had is an error to the kernel's calls, and a SIGBUS to who touches it. */
static void test_huge_fill_without_room(void **state)
{
	static const off_t sizes[] = {0, 4096, HUGE_PAGE};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int fd = memfd_create("short", MFD_CLOEXEC);
		uint8_t *p;

		assert_int_equal(ftruncate(fd, sizes[i]), 0);
		p = huge_map(fd, 3 * HUGE_PAGE, PROT_READ | PROT_WRITE);
		assert_non_null(p);
		huge_fill(p, 3 * HUGE_PAGE);
		munmap(p, 3 * HUGE_PAGE);
		close(fd);
	}
}

static void test_small_pages_are_told_from_huge_ones(void **state)
{
	int fd = memfd_create("small", MFD_CLOEXEC);
	uint8_t *p;

	(void)state;
	assert_int_equal(ftruncate(fd, 2 * HUGE_PAGE), 0);
	assert_int_equal(fallocate(fd, 0, 0, 2 * HUGE_PAGE), 0);
	p = huge_map(fd, 2 * HUGE_PAGE, PROT_READ);
	assert_non_null(p);
	assert_false(huge_is(p, 2 * HUGE_PAGE));
	munmap(p, 2 * HUGE_PAGE);
	close(fd);
}

/* What is not understood is said, not taken for something else. */
static void test_faults_from_the_environment(void **state)
{
	(void)state;
#ifdef CKPT_FAULTS
	static const char *const bad[] = {"DIGESTED",
					  "DIGESTED=",
					  "DIGESTED=eror",
					  "DIGESTED=kil@2",
					  "DIGESTED=error@",
					  "DIGESTED=error@0",
					  "DIGESTED=error@x",
					  "DIGESTED=error@2x",
					  "DIGESTED=error@2++",
					  "NOWHERE=error",
					  "DIGESTED=error@2,LOG_DIR=x"};
	struct err e;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("CKPT_FAULT", bad[i], 1);
		assert_int_equal(fault_from_env(&e), -EINVAL);
		assert_non_null(strstr(e.text, "CKPT_FAULT"));
	}
	setenv("CKPT_FAULT", "DIGESTED=error@2+,LOG_DIR=error", 1);
	fault_disarm_all();
	assert_int_equal(fault_from_env(&e), 0);
	assert_false(FAULT(DIGESTED));
	assert_true(FAULT(DIGESTED));
	assert_true(FAULT(DIGESTED));
	assert_true(FAULT(LOG_DIR));
	assert_false(FAULT(LOG_DIR));
	fault_disarm_all();
	unsetenv("CKPT_FAULT");
#endif
}

/* What fits is taken, what does not is refused and named; what is given back can be taken again. */
static void test_budget(void **state)
{
	struct alloc_budget b = {.limit = 4096};
	void *before = alloc_zero(100), *p, *q;

	(void)state;
	assert_null(alloc_set_budget(&b));
	assert_ptr_equal(alloc_budget(), &b);
	p = alloc_zero(3000);
	assert_non_null(p);
	assert_true(b.used >= 3000 && b.used < 3100 && b.wanted == 0);
	assert_null(alloc_zero(2000));
	assert_true(b.wanted >= 5000 && b.wanted < 5100);
	assert_null(alloc_resize(p, 5000));
	assert_null(alloc_array(SIZE_MAX / 2, 2));
	q = alloc_resize(p, 4000);
	assert_non_null(q);
	assert_false(alloc_charge(1000));
	alloc_free(q);
	assert_int_equal(b.used, 0);
	assert_true(alloc_charge(4096));
	assert_null(alloc_zero(1));
	alloc_uncharge(4096);
	alloc_free(before); /* was not counted */
	assert_int_equal(b.used, 0);
	assert_true(b.most >= 4096);
	assert_ptr_equal(alloc_set_budget(NULL), &b);
	p = alloc_zero(1 << 20);
	assert_non_null(p);
	alloc_free(p);
}

static void test_arena(void **state)
{
	uint8_t first[64] __attribute__((aligned(ARENA_ALIGN)));
	uint8_t *blocks[1000], *p;
	struct arena a;
	uint64_t before;

	(void)state;
	arena_init(&a, first, sizeof(first), 2 * ARENA_CHUNK);
	before = alloc_count();
	assert_ptr_equal(arena_take(&a, 1), first);
	assert_ptr_equal(arena_take(&a, 48), first + ARENA_ALIGN);
	assert_int_equal(alloc_count(), before); /* what needs little takes no chunk */
	for (size_t i = 0; i < 1000; i++) {
		blocks[i] = arena_take(&a, 1 + i % 60);
		assert_non_null(blocks[i]);
		assert_int_equal((uintptr_t)blocks[i] % ARENA_ALIGN, 0);
		memset(blocks[i], (int)(i % 251), 1 + i % 60);
	}
	for (size_t i = 0; i < 1000; i++) /* none lies in another one */
		for (size_t k = 0; k < 1 + i % 60; k++)
			assert_int_equal(blocks[i][k], i % 251);
	assert_int_equal(alloc_count(), before + 1);
	p = arena_take(&a, ARENA_CHUNK); /* in one of its own */
	assert_non_null(p);
	memset(p, 1, ARENA_CHUNK);
	assert_null(arena_take(&a, ARENA_CHUNK)); /* above the limit */
	assert_null(arena_take(&a, SIZE_MAX));
	arena_fini(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_err_wraps_outward),
		cmocka_unit_test(test_err_cuts_long_text),
		cmocka_unit_test(test_err_replaces_control_characters),
		cmocka_unit_test(test_text_is_clean),
		cmocka_unit_test(test_reader_is_sticky),
		cmocka_unit_test(test_writer_round_trip),
		cmocka_unit_test(test_checked_sizes),
		cmocka_unit_test(test_names_and_hex),
		cmocka_unit_test(test_timers_in_order),
		cmocka_unit_test(test_timers_as_a_plain_array),
		cmocka_unit_test(test_many_timers),
		cmocka_unit_test(test_alloc_failure_is_swept),
		cmocka_unit_test(test_watch_sees_every_block),
		cmocka_unit_test(test_faults_from_the_environment),
		cmocka_unit_test(test_rng_is_seeded),
		cmocka_unit_test(test_huge_mappings),
		cmocka_unit_test(test_huge_allocations),
		cmocka_unit_test(test_huge_fill_without_room),
		cmocka_unit_test(test_small_pages_are_told_from_huge_ones),
		cmocka_unit_test(test_budget),
		cmocka_unit_test(test_arena),
	};

	return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
