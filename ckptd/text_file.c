/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_file.c - see text_file.h. Stateless.
 *
 * A file on a file system that hangs still hangs whoever reads it: these are read at the start and
 * at SIGHUP, from where ckptd.conf is.
 */
#include <config.h>

#include "ckptd/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

static int open_file(const char *what, const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0)
		return err_code(e, -errno, "open the %s '%.200s'", what, path);
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
		return fd;
	close(fd);
	return err_set(e, -EINVAL, "the %s '%.200s' is not a file", what, path);
}

static int read_all(int fd, char *text, size_t size, size_t *ret_len)
{
	size_t len = 0;
	ssize_t n = 1;

	while (n > 0 && len < size) {
		n = read(fd, text + len, size - len);
		if (n < 0 && errno == EINTR)
			n = 1;
		else if (n < 0)
			return -errno;
		else
			len += (size_t)n;
	}
	*ret_len = len;
	return 0;
}

int text_file_read(const char *what, const char *path, size_t max, char **ret, size_t *ret_len,
		   struct err *e)
{
	int fd = open_file(what, path, e), r;
	char *text;

	if (fd < 0)
		return fd;
	text = alloc_zero(max + 2);
	r = text ? read_all(fd, text, max + 1, ret_len) : -ENOMEM;
	close(fd);
	if (r < 0) {
		alloc_free(text);
		return err_code(e, r, "read the %s '%.200s'", what, path);
	}
	*ret = text;
	return 0;
}
