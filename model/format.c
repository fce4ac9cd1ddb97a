/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "model/format.h"

#include <assert.h>

#include "codec/digest.h"

enum {
	AT_MAGIC = 0,
	AT_VERSION = 8,
	AT_HEADER_BYTES = 12,
	AT_INCOMPAT = 16,
	AT_RO = 24,
	AT_COMPAT = 32,
	AT_TOTAL = 40,
	AT_DIGEST = FORMAT_HEADER_BYTES - 16,
};
_Static_assert(AT_TOTAL + 8 == FORMAT_HEAD_BYTES, "the common part is full");

void format_head_put(uint8_t *header, const char magic[8], uint64_t total)
{
	memcpy(header + AT_MAGIC, magic, 8);
	put_le32(header + AT_VERSION, FORMAT_VERSION);
	put_le32(header + AT_HEADER_BYTES, FORMAT_HEADER_BYTES);
	put_le64(header + AT_INCOMPAT, 0);
	put_le64(header + AT_RO, 0);
	put_le64(header + AT_COMPAT, 0);
	put_le64(header + AT_TOTAL, total);
}

void format_head_seal(uint8_t *header)
{
	struct digest d = digest_of(header, AT_DIGEST);

	memcpy(header + AT_DIGEST, d.b, sizeof(d.b));
}

int format_head_check(const uint8_t *header, size_t len, const char magic[8], const char *what,
		      uint64_t *ret_total, struct err *e)
{
	uint64_t incompat;
	struct digest d;

	if (len < FORMAT_HEADER_BYTES || memcmp(header + AT_MAGIC, magic, 8) != 0)
		return err_set(e, CKPT_EPROTO, "these bytes are not a %s", what);
	d = digest_of(header, AT_DIGEST);
	if (memcmp(d.b, header + AT_DIGEST, sizeof(d.b)) != 0)
		return err_set(e, CKPT_ECORRUPT, "the header of a %s does not match its digest",
			       what);
	incompat = get_le64(header + AT_INCOMPAT);
	if (incompat & ~(uint64_t)FORMAT_INCOMPAT_KNOWN)
		return err_set(e, CKPT_EVERSION,
			       "a %s has incompatible features %#llx that this version does not "
			       "know: use a newer one",
			       what, (unsigned long long)incompat);
	if (get_le32(header + AT_VERSION) != FORMAT_VERSION ||
	    get_le32(header + AT_HEADER_BYTES) != FORMAT_HEADER_BYTES)
		return err_set(e, CKPT_EVERSION,
			       "a %s has format version %u, this version knows %u: use a newer one",
			       what, get_le32(header + AT_VERSION), FORMAT_VERSION);
	*ret_total = get_le64(header + AT_TOTAL);
	return 0;
}
