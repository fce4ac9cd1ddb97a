/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/silent_fuse.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { ROOT = 1, FILE_NODE = 2, FOR_EVER_S = 100000, SECONDS = 30, REQUEST_MAX = 1 << 17 };

static bool cached;

static void answer(int device, uint64_t id, int error, const void *body, size_t len)
{
	char out[sizeof(struct fuse_out_header) + 256];
	struct fuse_out_header h = {
		.len = (uint32_t)(sizeof(h) + len), .error = error, .unique = id};

	memcpy(out, &h, sizeof(h));
	if (len)
		memcpy(out + sizeof(h), body, len);
	if (write(device, out, sizeof(h) + len) < 0 && errno != ENOENT) /* it was interrupted */
		_exit(1);
}

static struct fuse_attr attr_of(uint64_t node)
{
	return (struct fuse_attr){.ino = node,
				  .size = node == ROOT || !cached ? 0 : SILENT_FUSE_PAGE,
				  .mode = node == ROOT ? S_IFDIR | 0755 : S_IFREG | 0644,
				  .nlink = 1};
}

static void answer_request(int device, const struct fuse_in_header *h)
{
	struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION,
				     .minor = FUSE_KERNEL_MINOR_VERSION,
				     .max_write = 65536,
				     .max_background = 16,
				     .flags = cached ? FUSE_WRITEBACK_CACHE : 0};
	struct fuse_entry_out entry = {.nodeid = FILE_NODE,
				       .entry_valid = FOR_EVER_S,
				       .attr_valid = FOR_EVER_S,
				       .attr = attr_of(FILE_NODE)};
	struct fuse_attr_out attr = {.attr_valid = FOR_EVER_S, .attr = attr_of(h->nodeid)};
	struct fuse_open_out open = {.fh = 1};

	if (h->opcode == FUSE_INIT)
		answer(device, h->unique, 0, &init, sizeof(init));
	else if (h->opcode == FUSE_LOOKUP)
		answer(device, h->unique, 0, &entry, sizeof(entry));
	else if (h->opcode == FUSE_GETATTR)
		answer(device, h->unique, 0, &attr, sizeof(attr));
	else if (h->opcode == FUSE_OPEN)
		answer(device, h->unique, 0, &open, sizeof(open));
	else if (h->opcode == FUSE_RELEASE || (cached && h->opcode == FUSE_FLUSH))
		answer(device, h->unique, 0, NULL, 0);
	else if (h->opcode != FUSE_FLUSH && h->opcode != FUSE_WRITE &&
		 h->opcode != FUSE_INTERRUPT && h->opcode != FUSE_FORGET &&
		 h->opcode != FUSE_BATCH_FORGET)
		answer(device, h->unique, -ENOSYS, NULL, 0);
}

static _Noreturn void serve(int device)
{
	static union {
		char bytes[REQUEST_MAX];
		struct fuse_in_header header;
	} request;

	alarm(SECONDS); /* whoever waits for it is let go, also where a test has failed */
	for (;;) {
		if (read(device, request.bytes, sizeof(request.bytes)) > 0)
			answer_request(device, &request.header);
		else if (errno != EINTR && errno != ENOENT)
			_exit(0);
	}
}

int silent_fuse_mount_cached(const char *folder, pid_t *ret_server)
{
	cached = true;
	return silent_fuse_mount(folder, ret_server);
}

int silent_fuse_mount(const char *folder, pid_t *ret_server)
{
	char options[96], node[512];
	int device;

	snprintf(node, sizeof(node), "%s/../fuse", folder);
	if (mknod(node, S_IFCHR | 0600, makedev(10, 229)) != 0)
		return -errno;
	device = open(node, O_RDWR | O_CLOEXEC);
	if (device < 0)
		return -errno;
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
	    mount("silent", folder, "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
		int r = -errno;

		close(device);
		return r;
	}
	*ret_server = fork();
	if (*ret_server == 0)
		serve(device);
	close(device);
	return *ret_server < 0 ? -errno : 0;
}
