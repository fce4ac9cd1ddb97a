/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blockrec.c - a FUSE file that remembers in which order it was written and flushed.
 *
 *   blockrec MOUNTPOINT IMAGE RECORD
 *
 * MOUNTPOINT/disk has the bytes of IMAGE. Each write is appended to RECORD (struct block_record,
 * then its bytes) and done to IMAGE; each fsync appends a record without bytes. A loop device on
 * MOUNTPOINT/disk turns a file system's writes into writes, its flushes and FUA writes into
 * fsyncs, so RECORD is what the disk below the file system saw.
 *
 * One thread, one request after the other: a record that stands before a flush was answered
 * before the flush was looked at. A failure to record ends the program: what follows would be
 * taken for the whole.
 */
#include <config.h>

#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/fault/block_record.h"

#define DISK "/disk"

/* FUSE's callbacks have no other way to it than their context. */
struct recorder {
	int image, record;
	off_t size;
};

static struct recorder *recorder(void)
{
	return fuse_get_context()->private_data;
}

static int disk_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	memset(st, 0, sizeof(*st));
	if (strcmp(path, "/") == 0) {
		st->st_mode = S_IFDIR | 0700;
		st->st_nlink = 2;
		return 0;
	}
	if (strcmp(path, DISK) != 0)
		return -ENOENT;
	st->st_mode = S_IFREG | 0600;
	st->st_nlink = 1;
	st->st_size = recorder()->size;
	st->st_blksize = 4096;
	return 0;
}

static int disk_open(const char *path, struct fuse_file_info *fi)
{
	if (strcmp(path, DISK) != 0)
		return -ENOENT;
	fi->direct_io = 1; /* no page cache between the loop device and us */
	return 0;
}

static int disk_read(const char *path, char *buf, size_t len, off_t offset,
		     struct fuse_file_info *fi)
{
	ssize_t n = pread(recorder()->image, buf, len, offset);

	(void)path;
	(void)fi;
	return n < 0 ? -errno : (int)n;
}

static void append(const struct block_record *r, const char *bytes)
{
	struct iovec v[2] = { { (void *)r, sizeof(*r) }, { (void *)bytes, r->length } };

	if (writev(recorder()->record, v, bytes ? 2 : 1) != (ssize_t)(sizeof(*r) + r->length)) {
		perror("blockrec: cannot append to the record");
		abort();
	}
}

static int disk_write(const char *path, const char *buf, size_t len, off_t offset,
		      struct fuse_file_info *fi)
{
	struct block_record r = { .type = BLOCK_WRITE, .length = (uint32_t)len,
				  .offset = (uint64_t)offset };
	ssize_t n;

	(void)path;
	(void)fi;
	if (offset + (off_t)len > recorder()->size)
		return -EFBIG;
	append(&r, buf);
	n = pwrite(recorder()->image, buf, len, offset);
	return n < 0 ? -errno : (int)n;
}

static int disk_fsync(const char *path, int data_only, struct fuse_file_info *fi)
{
	struct block_record r = { .type = BLOCK_FLUSH };

	(void)path;
	(void)data_only;
	(void)fi;
	append(&r, NULL);
	return 0;
}

/* No holes are punched and no ranges zeroed behind the record's back: the caller then writes. */
static int disk_fallocate(const char *path, int mode, off_t offset, off_t len,
			  struct fuse_file_info *fi)
{
	(void)path;
	(void)mode;
	(void)offset;
	(void)len;
	(void)fi;
	return -EOPNOTSUPP;
}

static const struct fuse_operations operations = {
	.getattr = disk_getattr,
	.open = disk_open,
	.read = disk_read,
	.write = disk_write,
	.fsync = disk_fsync,
	.fallocate = disk_fallocate,
};

int main(int argc, char **argv)
{
	char *args[] = { argv[0], (char *)"-f", (char *)"-s", argc > 1 ? argv[1] : NULL, NULL };
	struct recorder r;
	struct stat st;

	if (argc != 4) {
		fprintf(stderr, "usage: blockrec MOUNTPOINT IMAGE RECORD\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody reads the record any more */
	r.image = open(argv[2], O_RDWR | O_CLOEXEC);
	r.record = open(argv[3], O_RDWR | O_APPEND | O_CLOEXEC);
	if (r.image < 0 || r.record < 0 || fstat(r.image, &st) < 0) {
		perror("blockrec: cannot open image or record");
		return 1;
	}
	r.size = st.st_size;
	return fuse_main(4, args, &operations, &r);
}
