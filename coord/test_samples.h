/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_samples.h - records to test with, for the tests of this folder; they include
 * tests/lib/test.h first.
 */
#ifndef COORD_TEST_SAMPLES_H
#define COORD_TEST_SAMPLES_H

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "coord/record.h"

static inline struct attempt_id sample_attempt(uint64_t seed)
{
	struct attempt_id a;

	test_fill(a.b, sizeof(a.b), 4000 + seed);
	return a;
}

static inline void sample_text(char *buf, size_t len)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (char)('a' + i % 26);
	buf[len] = '\0';
}

/* A record of each type, all fields set; a RECORD_SUM needs a history in r->sum. */
static inline struct record sample_record(enum record_type type, uint64_t seed)
{
	struct record r = { .type = type, .wall_ns = 1700000000000000000u + seed };

	switch (type) {
	case RECORD_JOB:
		test_fill(r.job.id.b, sizeof(r.job.id.b), seed);
		test_fill(r.job.token.b, sizeof(r.job.token.b), seed + 1);
		r.job.uid = 1000;
		strcpy(r.job.name, "run-7.b");
		break;
	case RECORD_LEAD:
		strcpy(r.lead.node, "node17");
		break;
	case RECORD_EPOCH:
		r.opened = (struct record_epoch){ .number = 1 + seed, .world = 4 };
		strcpy(r.opened.run_id, "slurm-4711.0");
		strcpy(r.opened.reason, "new run");
		break;
	case RECORD_COMMIT:
		r.commit = (struct record_commit){
			.step = seed, .attempt = sample_attempt(seed), .world = 4, .f = 1,
			.bytes = 1u << 30,
		};
		test_fill(r.commit.root.b, sizeof(r.commit.root.b), seed + 2);
		test_fill(r.commit.layout.b, sizeof(r.commit.layout.b), seed + 3);
		break;
	case RECORD_ABORT:
		r.aborted = (struct record_abort){
			.step = seed, .attempt = sample_attempt(seed), .next_try = 1,
		};
		strcpy(r.aborted.reason, "rank 3 did not seal in time");
		break;
	case RECORD_FREE:
	case RECORD_PIN:
	case RECORD_TRUST:
		r.mark = (struct record_mark){
			.step = seed, .attempt = sample_attempt(seed), .value = 1,
		};
		break;
	case RECORD_SUM:
		break;
	}
	return r;
}

/* Gives bytes that were changed on purpose the right digest again. */
static inline void reseal(uint8_t *p, size_t len)
{
	struct digest d = digest_of(p, len - sizeof(d.b));

	memcpy(p + len - sizeof(d.b), d.b, sizeof(d.b));
}

/* Encodes r as the next record of h (see history_next()) and applies it. */
static inline int apply_next(struct history *h, struct record *r, struct err *e)
{
	void *bytes = NULL;
	size_t len = 0;
	int rc;

	history_next(h, r);
	assert_int_equal(record_encode(r, &bytes, &len), 0);
	rc = history_check(h, r->n, bytes, len, NULL);
	assert_int_equal(history_apply(h, r->n, bytes, len, e), rc);
	alloc_free(bytes);
	return rc;
}

#endif
