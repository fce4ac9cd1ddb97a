/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a table of Xids: as the first one, and over another. What is accepted has
 * rows in order, each is found by its own name; what is refused is refused in words and leaves the
 * policy as it was.
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "detect/xid_policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void row_holds(const struct xid_policy *p, const struct xid_row *r)
{
	const char *at = NULL, *name, *says;
	size_t name_len, says_len, total = 0;
	uint32_t code, subcode;
	char text[32];

	xid_row_name(r, text, sizeof(text));
	assert(xid_name_parse(text, &code, &subcode) == 0);
	assert(code == r->code && subcode == r->subcode);
	assert(xid_policy_find(p, code, subcode, false) == r);
	assert(r->action < ACTION_COUNT && r->then < ACTION_COUNT && r->class < CLASS_COUNT);
	assert(!r->count || r->window_ns > 0);
	assert(xid_policy_file(p, r->file));
	while ((at = xid_source_next(r, at, &name, &name_len, &says, &says_len)))
		total += name_len + says_len;
	assert(total <= strlen(r->sources));
}

static void policy_holds(const struct xid_policy *p)
{
	for (size_t i = 0; i < xid_policy_size(p); i++)
		row_holds(p, xid_policy_at(p, i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char first[] =
		"other\t*\trecord\tinfo\tgpu\tfailing\t-\t-\t-\t1h\t-\tx\n"
		"94\t*\tdrain\tfatal\tgpu\tfailing\t2\t3d\treboot\t1h\t*:drain\tx";
	struct xid_policy *p;
	struct err e = {0};
	size_t n;

	if (xid_policy_new(&p) < 0)
		return 0;
	if (xid_policy_add(p, "alone", (const char *)data, size, &e) < 0)
		assert(e.text[0] && xid_policy_size(p) == 0);
	policy_holds(p);
	xid_policy_free(p);
	if (xid_policy_new(&p) < 0)
		return 0;
	if (xid_policy_add(p, "first", first, strlen(first), &e) == 0) {
		n = xid_policy_size(p);
		assert(n == 2);
		if (xid_policy_add(p, "over", (const char *)data, size, &e) < 0)
			assert(e.text[0] && xid_policy_size(p) == n);
	}
	policy_holds(p);
	xid_policy_free(p);
	return 0;
}
