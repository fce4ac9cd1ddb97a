/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a log record: as they are, with frame and digest made to match, and as a
 * whole log, each record's header made to follow the one before. What is accepted encodes to the
 * same bytes; what a history accepts can be summed up, and the sum alone gives the same history.
 *
 * Input: the record from its length on, digest left out (first two ways); or any number of
 * (1 byte type, 2 bytes little-endian length, body).
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/digest.h"
#include "coord/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADER = 88, DIGEST = 16 };

static void seal(uint8_t *p, size_t len)
{
	struct digest d;

	memcpy(p, "CKPTLOG\n", 8);
	put_le32(p + 8, (uint32_t)len);
	put_le16(p + 12, 1);
	d = digest_of(p, len - DIGEST);
	memcpy(p + len - DIGEST, d.b, DIGEST);
}

static void try_record(const uint8_t *p, size_t len)
{
	struct history sum;
	struct record r;
	void *again = NULL;
	size_t again_len = 0;
	char text[64];
	int rc;

	history_init(&sum);
	rc = record_decode(p, len, &r, &sum, NULL);
	assert(rc == 0 || rc == CKPT_ECORRUPT || rc == CKPT_EVERSION);
	if (rc == 0) {
		record_describe(&r, text, sizeof(text));
		if (!r.read_only && get_le32(p + 24) == 0) { /* no unknown feature */
			rc = record_encode(&r, &again, &again_len);
			assert(rc == 0 && again_len == len && memcmp(again, p, len) == 0);
			alloc_free(again);
		}
	}
	history_fini(&sum);
}

static void try_sealed(const uint8_t *data, size_t size)
{
	size_t len = size + 12 + DIGEST;
	uint8_t *p;

	if (len < HEADER + DIGEST || len > JOBLOG_RECORD_MAX)
		return;
	p = alloc_zero(len);
	if (!p)
		return;
	memcpy(p + 12, data, size);
	seal(p, len);
	try_record(p, len);
	alloc_free(p);
}

/* One record that follows h; false when h does not take it. */
static bool add(struct history *h, unsigned type, const uint8_t *body, size_t len)
{
	struct record r = { .type = RECORD_COMMIT };
	size_t total = HEADER + len + DIGEST;
	uint8_t *p;
	int rc;

	if (type < RECORD_JOB || type > RECORD_SUM || total > JOBLOG_RECORD_MAX)
		return true;
	p = alloc_zero(total);
	if (!p)
		return false;
	r.type = (enum record_type)type;
	history_next(h, &r);
	put_le16(p + 14, (uint16_t)type);
	put_le64(p + 32, r.incarnation);
	put_le64(p + 40, r.n);
	put_le64(p + 48, r.term);
	put_le64(p + 56, r.epoch);
	memcpy(p + 72, r.previous.b, DIGEST);
	if (len)
		memcpy(p + HEADER, body, len);
	seal(p, total);
	rc = history_check(h, r.n, p, total, NULL);
	assert(history_apply(h, r.n, p, total, NULL) == rc);
	alloc_free(p);
	return rc == 0;
}

/* What was accepted can be summed up, by this history and from nothing. */
static void sum_up(struct history *h)
{
	struct record r = { .type = RECORD_SUM };
	struct history other;
	void *bytes = NULL;
	size_t len = 0;
	int rc;

	if (h->next_n == 0)
		return;
	history_next(h, &r);
	rc = record_encode(&r, &bytes, &len);
	assert(rc == 0 || rc == -E2BIG);
	if (rc < 0)
		return;
	history_init(&other);
	rc = history_apply(&other, r.n, bytes, len, NULL);
	assert(rc == 0);
	rc = history_apply(h, r.n, bytes, len, NULL);
	assert(rc == 0 && other.n_commits == h->n_commits && other.next_n == h->next_n);
	assert(other.epoch.number == h->epoch.number && other.last_step == h->last_step);
	alloc_free(bytes);
	history_fini(&other);
}

static void try_log(const uint8_t *data, size_t size)
{
	struct reader rd = reader_of(data, size);
	struct history h;

	history_init(&h);
	while (reader_left(&rd) > 0) {
		unsigned type = read_u8(&rd);
		uint16_t len = read_u16(&rd);
		const uint8_t *body = read_bytes(&rd, len);

		if (body)
			ignore_result(add(&h, type, body, len)); /* refused ones change nothing */
	}
	sum_up(&h);
	history_fini(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_record(data, size);
	try_sealed(data, size);
	try_log(data, size);
	return 0;
}
