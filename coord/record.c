/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record.c - the bytes of one log record. doc/log-format.md says the same in prose.
 *
 *   0 magic  8 u32 length  12 u16 version  14 u16 type  16 u32 incompat, ro, compat  28 u32 zero
 *   32 u64 incarnation  40 u64 n  48 u64 term  56 u64 epoch  64 u64 wall_ns  72 previous  88 body
 *   length - 16: XXH3-128 of all bytes before it
 *
 * 1. Magic, length and the digest at the end stand at the same places in every version: what was
 *    damaged is told from what is too new.
 * 2. One record has one encoding: what decodes without an unknown feature encodes to the same
 *    bytes. So reserved fields are zero, flags 0 or 1, and nothing follows the body; only under
 *    an unknown ro or compat feature may bytes that we do not understand follow it.
 *
 * Failure modes: damage and rule breaking of a single record is CKPT_ECORRUPT. Any thread.
 */
#include <config.h>

#include "coord/record.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "coord/fields.h"
#include "coord/sum.h"

static const uint8_t magic[8] = { 'C', 'K', 'P', 'T', 'L', 'O', 'G', '\n' };

enum {
	RECORD_VERSION = 1,
	AT_LENGTH = 8,
	AT_VERSION = 12,
	HEADER_SIZE = 88,
	DIGEST_SIZE = sizeof(struct digest),
};
/* Feature bits that this program knows. */
#define INCOMPAT_PASSES 1u /* of an epoch record: opened.passes */
#define INCOMPAT_KNOWN  INCOMPAT_PASSES
#define RO_KNOWN       0u
#define COMPAT_KNOWN   0u

static void put_body(struct writer *w, const struct record *r)
{
	switch (r->type) {
	case RECORD_JOB:
		field_put_job(w, &r->job);
		break;
	case RECORD_LEAD:
		field_put_text(w, r->lead.node, NODE_NAME_MAX);
		break;
	case RECORD_EPOCH:
		field_put_epoch(w, &r->opened);
		break;
	case RECORD_COMMIT:
		field_put_commit(w, &r->commit);
		break;
	case RECORD_ABORT:
		field_put_abort(w, &r->aborted);
		break;
	case RECORD_FREE:
	case RECORD_PIN:
	case RECORD_TRUST:
		field_put_mark(w, &r->mark);
		break;
	case RECORD_SUM:
		sum_put(w, r->sum);
		break;
	}
}

static int get_body(struct reader *rd, struct record *r, struct history *sum)
{
	switch (r->type) {
	case RECORD_JOB:
		field_get_job(rd, &r->job);
		break;
	case RECORD_LEAD:
		field_get_text(rd, r->lead.node, NODE_NAME_MAX);
		break;
	case RECORD_EPOCH:
		field_get_epoch(rd, &r->opened);
		break;
	case RECORD_COMMIT:
		field_get_commit(rd, &r->commit);
		break;
	case RECORD_ABORT:
		field_get_abort(rd, &r->aborted);
		break;
	case RECORD_FREE:
	case RECORD_PIN:
	case RECORD_TRUST:
		field_get_mark(rd, &r->mark);
		break;
	case RECORD_SUM:
		return sum_get(rd, r, sum);
	}
	return 0;
}

int record_encode(const struct record *r, void **ret, size_t *ret_len)
{
	struct writer w = { 0 };
	struct digest d;

	assert(r->type >= RECORD_JOB && r->type <= RECORD_SUM);
	assert(r->type != RECORD_SUM || (r->sum && r->epoch == r->sum->epoch.number));
	assert(r->type != RECORD_EPOCH || !r->opened.passes || r->opened.has_base);
	assert(!r->read_only); /* what is not understood cannot be written again */
	if ((r->type == RECORD_JOB && !name_is_safe(r->job.name)) ||
	    (r->type == RECORD_SUM && !name_is_safe(r->sum->job.name)))
		return -EINVAL;
	if (r->type == RECORD_SUM && sum_count(r->sum) > HISTORY_COMMITS_MAX)
		return -E2BIG;
	write_bytes(&w, magic, sizeof(magic));
	write_u32(&w, 0); /* the length comes last */
	write_u16(&w, RECORD_VERSION);
	write_u16(&w, (uint16_t)r->type);
	write_u32(&w, r->type == RECORD_EPOCH && r->opened.passes ? INCOMPAT_PASSES : 0);
	write_zero(&w, 12); /* no other features */
	write_u64(&w, r->incarnation);
	write_u64(&w, r->n);
	write_u64(&w, r->term);
	write_u64(&w, r->epoch);
	write_u64(&w, r->wall_ns);
	write_bytes(&w, r->previous.b, sizeof(r->previous.b));
	assert(w.bad || w.len == HEADER_SIZE);
	put_body(&w, r);
	if (w.bad || w.len + DIGEST_SIZE > JOBLOG_RECORD_MAX) {
		int rc = w.bad ? -ENOMEM : -E2BIG;

		writer_free(&w);
		return rc;
	}
	put_le32(w.buf + AT_LENGTH, (uint32_t)(w.len + DIGEST_SIZE));
	d = digest_of(w.buf, w.len);
	write_bytes(&w, d.b, sizeof(d.b));
	if (w.bad) {
		writer_free(&w);
		return -ENOMEM;
	}
	*ret = w.buf;
	*ret_len = w.len;
	return 0;
}

/* (1): what holds for every version. */
static int check_frame(const uint8_t *p, size_t len, struct err *e)
{
	struct digest d;

	if (len < HEADER_SIZE + DIGEST_SIZE || len > JOBLOG_RECORD_MAX)
		return err_set(e, CKPT_ECORRUPT, "%zu bytes cannot be a log record", len);
	if (memcmp(p, magic, sizeof(magic)) != 0)
		return err_set(e, CKPT_ECORRUPT, "it does not begin like a log record");
	if (get_le32(p + AT_LENGTH) != len)
		return err_set(e, CKPT_ECORRUPT, "it has %zu bytes and says %u", len,
			       get_le32(p + AT_LENGTH));
	d = digest_of(p, len - DIGEST_SIZE);
	if (memcmp(d.b, p + len - DIGEST_SIZE, DIGEST_SIZE) != 0)
		return err_set(e, CKPT_ECORRUPT, "its bytes do not match their digest");
	if (get_le16(p + AT_VERSION) != RECORD_VERSION)
		return err_set(e, CKPT_EVERSION,
			       "it has format version %u, this program knows %u: use a newer ckptd",
			       get_le16(p + AT_VERSION), RECORD_VERSION);
	return 0;
}

static int get_header(struct reader *rd, struct record *r, bool *ret_more, bool *ret_passes,
		      struct err *e)
{
	uint16_t type;
	uint32_t incompat, ro, compat;

	(void)read_bytes(rd, AT_VERSION + 2); /* check_frame() has seen them */
	type = read_u16(rd);
	incompat = read_u32(rd);
	ro = read_u32(rd);
	compat = read_u32(rd);
	if (read_u32(rd) != 0)
		rd->bad = true;
	if (incompat & ~INCOMPAT_KNOWN)
		return err_set(e, CKPT_EVERSION,
			       "it needs features 0x%x that this program lacks: use a newer ckptd",
			       incompat & ~INCOMPAT_KNOWN);
	if (type < RECORD_JOB || type > RECORD_SUM)
		return err_set(e, CKPT_EVERSION,
			       "it has type %u that this program does not know: use a newer ckptd",
			       type);
	r->type = (enum record_type)type;
	*ret_passes = incompat & INCOMPAT_PASSES;
	r->read_only = (ro & ~RO_KNOWN) != 0;
	*ret_more = r->read_only || (compat & ~COMPAT_KNOWN) != 0;
	r->incarnation = read_u64(rd);
	r->n = read_u64(rd);
	r->term = read_u64(rd);
	r->epoch = read_u64(rd);
	r->wall_ns = read_u64(rd);
	field_get_id(rd, r->previous.b);
	return 0;
}

int record_decode(const void *bytes, size_t len, struct record *ret, struct history *sum,
		  struct err *e)
{
	struct record r = { 0 };
	struct history h;
	struct reader rd;
	bool more = false, passes = false;
	int rc;

	assert(!sum || (sum->next_n == 0 && !sum->commits && !sum->aborts));
	rc = check_frame(bytes, len, e);
	if (rc < 0)
		return rc;
	rd = reader_of(bytes, len - DIGEST_SIZE);
	rc = get_header(&rd, &r, &more, &passes, e);
	if (rc < 0)
		return rc;
	history_init(&h);
	rc = get_body(&rd, &r, &h);
	if (passes && (r.type != RECORD_EPOCH || !r.opened.has_base))
		rd.bad = true;
	else if (passes)
		r.opened.passes = true;
	if (rc < 0)
		err_code(e, rc, "read a summing record");
	else if (rd.bad || (reader_left(&rd) > 0 && !more)) /* (2) */
		rc = err_set(e, CKPT_ECORRUPT, "its fields are not those of type %d", r.type);
	if (rc < 0 || !sum || r.type != RECORD_SUM) {
		history_fini(&h);
	} else {
		*sum = h;
		r.sum = sum;
	}
	if (rc == 0)
		*ret = r;
	return rc;
}

/* ---- Words ---- */

static void describe_mark(const struct record *r, const char *what, char *buf, size_t size)
{
	char id[ID_TEXT_MAX];

	hex_format(id, r->mark.attempt.b, sizeof(r->mark.attempt.b));
	snprintf(buf, size, "%s step %llu attempt %s value %u", what,
		 (unsigned long long)r->mark.step, id, r->mark.value);
}

static void describe_epoch(const struct record_epoch *p, char *buf, size_t size)
{
	char base[64] = "none";

	if (p->has_base)
		snprintf(base, sizeof(base), "step %llu%s", (unsigned long long)p->base_step,
			 p->passes ? ", newer ones passed over," : "");
	snprintf(buf, size, "epoch %llu base %s world %u run '%s': %s",
		 (unsigned long long)p->number, base, p->world, p->run_id, p->reason);
}

void record_describe(const struct record *r, char *buf, size_t size)
{
	char id[ID_TEXT_MAX];

	switch (r->type) {
	case RECORD_JOB:
		hex_format(id, r->job.id.b, sizeof(r->job.id.b));
		snprintf(buf, size, "job '%s' id %s uid %u", r->job.name, id, r->job.uid);
		break;
	case RECORD_LEAD:
		snprintf(buf, size, "lead term %llu node '%s'", (unsigned long long)r->term,
			 r->lead.node);
		break;
	case RECORD_EPOCH:
		describe_epoch(&r->opened, buf, size);
		break;
	case RECORD_COMMIT:
		hex_format(id, r->commit.attempt.b, sizeof(r->commit.attempt.b));
		snprintf(buf, size, "commit step %llu attempt %s f %u",
			 (unsigned long long)r->commit.step, id, r->commit.f);
		break;
	case RECORD_ABORT:
		hex_format(id, r->aborted.attempt.b, sizeof(r->aborted.attempt.b));
		snprintf(buf, size, "abort step %llu attempt %s: %s",
			 (unsigned long long)r->aborted.step, id, r->aborted.reason);
		break;
	case RECORD_FREE:
		describe_mark(r, "free", buf, size);
		break;
	case RECORD_PIN:
		describe_mark(r, "pin", buf, size);
		break;
	case RECORD_TRUST:
		describe_mark(r, "trust", buf, size);
		break;
	case RECORD_SUM:
		snprintf(buf, size, "sum of the records before it");
		break;
	}
}
