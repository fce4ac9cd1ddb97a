/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "ckptd/xid_table.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "detect/xid_policy.h"

/* A FIFO must not hang a start, nor a device fill memory. */
static int open_file(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0)
		return errno == ENOENT
			       ? -ENOENT
			       : err_code(e, -errno, "open the table of Xids '%.200s'", path);
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return err_set(e, -EINVAL, "the table of Xids '%.200s' is not a file", path);
}

static int read_file(int fd, const char *path, char *text, size_t *ret_len, struct err *e)
{
	size_t len = 0;
	ssize_t r = 1;

	while (r > 0 && len <= XID_TEXT_BYTES_MAX) {
		r = read(fd, text + len, XID_TEXT_BYTES_MAX + 1 - len);
		if (r < 0 && errno == EINTR)
			r = 1;
		else if (r < 0)
			return err_code(e, -errno, "read the table of Xids '%.200s'", path);
		else
			len += (size_t)r;
	}
	*ret_len = len; /* one byte too many is refused by the policy */
	return 0;
}

static int add_file(struct xid_policy *p, const char *path, struct err *e)
{
	CLEANUP_FREE char *text = NULL;
	int fd = open_file(path, e), r;
	size_t len = 0;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	text = alloc_zero(XID_TEXT_BYTES_MAX + 1);
	r = text ? read_file(fd, path, text, &len, e)
		 : err_code(e, -ENOMEM, "read the table of Xids '%.200s'", path);
	close(fd);
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
