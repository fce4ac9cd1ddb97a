/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "client/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

static int write_all(int fd, const uint8_t *bytes, size_t len)
{
	while (len) {
		ssize_t n = write(fd, bytes, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		bytes += n;
		len -= (size_t)n;
	}
	return 0;
}

int memfd_from_bytes(const void *bytes, size_t len)
{
	int fd = memfd_create("ckpt-message", MFD_CLOEXEC | MFD_ALLOW_SEALING), r;

	if (fd < 0)
		return -errno;
	r = write_all(fd, bytes, len);
	if (r == 0 && fcntl(fd, F_ADD_SEALS, SEALS) < 0)
		r = -errno;
	if (r == 0)
		return fd;
	close(fd);
	return r;
}

int memfd_read(int fd, uint64_t max, void **ret, size_t *ret_len)
{
	struct stat st;
	uint8_t *copy;
	size_t len, at = 0;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size < 0 || (uint64_t)st.st_size > max)
		return -EMSGSIZE;
	len = (size_t)st.st_size;
	copy = alloc_zero(len);
	if (!copy)
		return -ENOMEM;
	while (at < len) {
		ssize_t n = pread(fd, copy + at, len - at, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			int r = n < 0 ? -errno : -EIO;

			alloc_free(copy);
			return r;
		}
		at += (size_t)n;
	}
	*ret = copy;
	*ret_len = len;
	return 0;
}
