/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_format.c - begin and end of each file of the data folder; see disk_format.h and
 * doc/disk-format.md.
 */
#include <config.h>

#include "storage/disk_format.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/digest.h"

/* Offsets in the head. */
enum { AT_VERSION = 8, AT_FIXED = 12, AT_INCOMPAT = 16, AT_RO = 24, AT_COMPAT = 32, AT_LEN = 40 };

static const char magics[FORMAT_KINDS][9] = {
	[FORMAT_FOLDER] = "CKPTDATA",
	[FORMAT_SHARD] = "CKPTSHRD",
	[FORMAT_FOOTER] = "CKPTFOOT",
	[FORMAT_COMMIT] = "CKPTCMIT",
};

void format_begin(uint8_t *buf, enum format_kind kind, uint32_t fixed, uint64_t len)
{
	assert(kind < FORMAT_KINDS && fixed >= DISK_FORMAT_HEAD);
	assert(len >= fixed + DISK_FORMAT_DIGEST);
	memcpy(buf, magics[kind], 8);
	put_le32(buf + AT_VERSION, DISK_FORMAT_VERSION);
	put_le32(buf + AT_FIXED, fixed);
	put_le64(buf + AT_INCOMPAT, 0);
	put_le64(buf + AT_RO, 0);
	put_le64(buf + AT_COMPAT, 0);
	put_le64(buf + AT_LEN, len);
}

/* What this version knows. */
static const uint64_t known[FORMAT_KINDS] = {
	[FORMAT_SHARD] = SHARD_LEAVES_MISSING,
};

void format_set_incompat(uint8_t *buf, uint64_t features)
{
	put_le64(buf + AT_INCOMPAT, features);
}

uint64_t format_incompat(const uint8_t *buf)
{
	return get_le64(buf + AT_INCOMPAT);
}

void format_end(uint8_t *buf, size_t len)
{
	struct digest d;

	assert(len >= DISK_FORMAT_HEAD + DISK_FORMAT_DIGEST && get_le64(buf + AT_LEN) == len);
	d = digest_of(buf, len - DISK_FORMAT_DIGEST);
	memcpy(buf + len - DISK_FORMAT_DIGEST, d.b, DISK_FORMAT_DIGEST);
}

int format_check(const uint8_t *buf, size_t len, enum format_kind kind, uint32_t fixed,
		 const char *what, bool *ret_read_only, struct err *e)
{
	struct digest d;

	assert(kind < FORMAT_KINDS && fixed >= DISK_FORMAT_HEAD);
	if (len < fixed + DISK_FORMAT_DIGEST || memcmp(buf, magics[kind], 8) != 0)
		return err_set(e, CKPT_ECORRUPT, "%s does not begin as one (%zu bytes)", what, len);
	d = digest_of(buf, len - DISK_FORMAT_DIGEST);
	if (memcmp(d.b, buf + len - DISK_FORMAT_DIGEST, DISK_FORMAT_DIGEST) != 0)
		return err_set(e, CKPT_ECORRUPT, "%s does not match its digest", what);
	if (get_le32(buf + AT_VERSION) != DISK_FORMAT_VERSION ||
	    (get_le64(buf + AT_INCOMPAT) & ~known[kind]) != 0)
		return err_set(e, CKPT_EVERSION,
			       "%s has version %u and incompatible features %#llx: a newer ckptd "
			       "wrote it; use that one",
			       what, get_le32(buf + AT_VERSION),
			       (unsigned long long)get_le64(buf + AT_INCOMPAT));
	if (get_le32(buf + AT_FIXED) != fixed || get_le64(buf + AT_LEN) != len)
		return err_set(e, CKPT_EPROTO, "%s has lengths that cannot be", what);
	*ret_read_only = get_le64(buf + AT_RO) != 0;
	return 0;
}

bool bytes_are_zero(const uint8_t *p, size_t len)
{
	return len == 0 || (p[0] == 0 && memcmp(p, p + 1, len - 1) == 0);
}
