/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memlog.h - a log in memory, short ways to fill it, and a history as text, for the tests of
 * this folder; they include tests/lib/test.h first.
 */
#ifndef COORD_TEST_MEMLOG_H
#define COORD_TEST_MEMLOG_H

#include <inttypes.h>
#include <stdarg.h>

#include "base/bytes.h"
#include "coord/test_samples.h"

/* ---- A history as text: two are the same if their texts are ---- */

static inline __attribute__((format(printf, 2, 3))) void
say(struct writer *f, const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	assert_true(n >= 0 && (size_t)n < sizeof(line));
	write_bytes(f, line, (size_t)n);
}

static inline void dump_id(struct writer *f, const void *id)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, id, 16);
	say(f, " %s", hex);
}

static inline char *dump(const struct history *h)
{
	struct writer text = { 0 }, *f = &text;

	say(f, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " ro %d '%s' uid %u",
		h->incarnation, h->term, h->next_n, h->first_n, h->read_only, h->job.name,
		h->job.uid);
	dump_id(f, h->job.id.b);
	dump_id(f, h->job.token.b);
	dump_id(f, h->last.b);
	say(f, "\nepoch %" PRIu64 " of %" PRIu64 " %u '%s' '%s' %d %" PRIu64 " %d %" PRIu64,
		h->epoch.number, h->epoch.parent, h->epoch.world, h->epoch.run_id, h->epoch.reason,
		h->epoch.has_base, h->epoch.base_step, h->stepped, h->last_step);
	dump_id(f, h->epoch.base_attempt.b);
	for (uint32_t i = 0; i < h->n_runs; i++)
		dump_id(f, h->runs[i].b);
	for (size_t i = 0; i < h->n_commits; i++) {
		const struct history_commit *c = &h->commits[i];

		say(f, "\ncommit %" PRIu64 " n %" PRIu64 " e %" PRIu64 " %" PRIu64
			" w %u f %u b %" PRIu64 " %d%d%d %u",
			c->commit.step, c->n, c->epoch, c->wall_ns, c->commit.world, c->commit.f,
			c->commit.bytes, c->pinned, c->freed, c->gone, c->trust);
		dump_id(f, c->commit.attempt.b);
		dump_id(f, c->commit.root.b);
		dump_id(f, c->commit.layout.b);
	}
	for (size_t i = 0; i < h->n_aborts; i++) {
		const struct history_abort *a = &h->aborts[i];

		say(f, "\nabort %" PRIu64 " n %" PRIu64 " e %" PRIu64 " try %u '%s'",
			a->aborted.step, a->n, a->epoch, a->aborted.next_try, a->aborted.reason);
		dump_id(f, a->aborted.attempt.b);
	}
	write_u8(f, 0);
	assert_false(f->bad);
	return (char *)f->buf;
}

static inline void assert_same(const struct history *a, const struct history *b)
{
	char *x = dump(a), *y = dump(b);

	assert_string_equal(x, y);
	alloc_free(x);
	alloc_free(y);
}

/* ---- A log in memory ---- */

struct memory_log {
	struct joblog log;
	struct history h; /* what was appended adds up to */
	struct {
		void *bytes;
		size_t len;
	} *records;
	uint64_t first, n, cap;
};

static inline int memory_scan(struct joblog *log, joblog_fn *fn, void *arg, struct err *e)
{
	struct memory_log *m = (struct memory_log *)log;

	(void)e;
	for (uint64_t n = m->first; n < m->n; n++) {
		int r = fn(arg, n, m->records[n].bytes, m->records[n].len);

		if (r != 0)
			return r;
	}
	return 0;
}

static const struct joblog_ops memory_ops = { .scan = memory_scan };

static inline void log_init(struct memory_log *m)
{
	*m = (struct memory_log){ .log.ops = &memory_ops };
	history_init(&m->h);
}

static inline void log_fini(struct memory_log *m)
{
	for (uint64_t n = 0; n < m->n; n++)
		alloc_free(m->records[n].bytes);
	alloc_free(m->records);
	history_fini(&m->h);
}

/* Encodes r as it stands and, if the history takes it, keeps it. */
static inline int log_add_raw(struct memory_log *m, const struct record *r, struct err *e)
{
	void *bytes = NULL;
	size_t len = 0;
	char *before = dump(&m->h), *after;
	uint64_t n = m->h.next_n;
	int rc, check;

	assert_int_equal(record_encode(r, &bytes, &len), 0);
	check = history_check(&m->h, n, bytes, len, NULL);
	after = dump(&m->h);
	assert_string_equal(before, after);
	alloc_free(after);
	rc = history_apply(&m->h, n, bytes, len, e);
	assert_int_equal(rc, check);
	if (rc < 0) { /* nothing changed */
		after = dump(&m->h);
		assert_string_equal(before, after);
		alloc_free(after);
		alloc_free(before);
		alloc_free(bytes);
		return rc;
	}
	alloc_free(before);
	if (n == m->cap) {
		m->cap = m->cap ? 2 * m->cap : 64;
		m->records = alloc_resize(m->records, m->cap * sizeof(*m->records));
		assert_non_null(m->records);
	}
	m->records[n].bytes = bytes;
	m->records[n].len = len;
	m->n = n + 1;
	return 0;
}

static inline int log_add(struct memory_log *m, struct record r)
{
	struct err e = { 0 };
	int rc;

	history_next(&m->h, &r);
	rc = log_add_raw(m, &r, &e);
	assert_int_equal(e.code, rc);
	return rc;
}

static inline void assert_loads(struct memory_log *m)
{
	struct history h;
	struct err e = { 0 };

	history_init(&h);
	assert_int_equal(history_load(&h, &m->log, &e), 0);
	assert_same(&h, &m->h);
	history_fini(&h);
}

/* ---- Short ways to make records ---- */

static inline struct record opened(const struct memory_log *m, uint64_t number)
{
	struct record r = sample_record(RECORD_EPOCH, 0);

	r.opened.number = number;
	r.opened.parent = m->h.epoch.number;
	return r;
}

static inline struct record opened_on(const struct memory_log *m, uint64_t step, uint64_t attempt)
{
	struct record r = opened(m, m->h.epoch.number + 1);

	r.opened.has_base = true;
	r.opened.base_step = step;
	r.opened.base_attempt = sample_attempt(attempt);
	return r;
}

static inline struct record opened_by(const struct memory_log *m, const char *run_id)
{
	struct record r = opened(m, m->h.epoch.number + 1);

	strcpy(r.opened.run_id, run_id);
	return r;
}

static inline struct record commit(uint64_t step, uint64_t attempt)
{
	struct record r = sample_record(RECORD_COMMIT, step);

	r.commit.attempt = sample_attempt(attempt);
	return r;
}

static inline struct record aborted(uint64_t step, uint64_t attempt, uint32_t next_try)
{
	struct record r = sample_record(RECORD_ABORT, step);

	r.aborted.attempt = sample_attempt(attempt);
	r.aborted.next_try = next_try;
	return r;
}

static inline struct record mark(enum record_type type, uint64_t step, uint64_t attempt,
				 uint32_t value)
{
	struct record r = sample_record(type, step);

	r.mark.attempt = sample_attempt(attempt);
	r.mark.value = value;
	return r;
}

/* Job, leader, epoch 1, steps 10, 20 and 30 (attempts of the same numbers). */
static inline void log_begin(struct memory_log *m)
{
	struct record job = sample_record(RECORD_JOB, 1);

	log_init(m);
	job.incarnation = 3;
	assert_int_equal(log_add(m, job), 0);
	assert_int_equal(log_add(m, sample_record(RECORD_LEAD, 0)), 0);
	assert_int_equal(log_add(m, opened(m, 1)), 0);
	for (uint64_t step = 10; step <= 30; step += 10)
		assert_int_equal(log_add(m, commit(step, step)), 0);
}

#endif
