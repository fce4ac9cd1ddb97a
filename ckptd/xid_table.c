/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "ckptd/xid_table.h"

#include <errno.h>

#include "base/alloc.h"
#include "ckptd/text_file.h"
#include "detect/xid_policy.h"

static int add_file(struct xid_policy *p, const char *path, struct err *e)
{
	CLEANUP_FREE char *text = NULL;
	size_t len = 0;
	int r = text_file_read("table of Xids", path, XID_TEXT_BYTES_MAX, &text, &len, e);

	if (r == -ENOENT) {
		err_clear(e);
		return 0;
	}
	return r < 0 ? r : xid_policy_add(p, path, text, len, e);
}

int xid_table_read(const char *path, struct xid_policy **ret, struct err *e)
{
	int r;

	*ret = NULL;
	r = xid_policy_default(ret);
	if (r < 0)
		return err_code(e, r, "read the table of Xids");
	return add_file(*ret, path, e);
}
