/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - images in memfds, loop devices, mounts.
 *
 * A disk writes sectors whole. ext4 is tried with 512 bytes, but for its first block: the
 * superblock must be readable before the journal is, so ext4 counts on it. xfs is made with
 * sectors of 4096 bytes and its log and headers count on those; "unsupported" because it is
 * smaller than anybody should use.
 */
#include <config.h>

#include "tests/fault/image.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOP_TRIES 50
#define UMOUNT_TRIES 200

static const char *const mkfs_ext4[] = {
	"mkfs.ext4", "-q", "-F", "-b", "4096", "-N", "1024", "-J", "size=4", "-O", "^resize_inode",
	"-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", NULL,
};
static const char *const mkfs_xfs[] = {
	"mkfs.xfs", "--unsupported", "-q", "-f", "-K", "-s", "size=4096", "-d", "agcount=1", NULL,
};

const struct file_system file_system_ext4 = {
	.name = "ext4", .mkfs = mkfs_ext4, .options = "noinit_itable", .bytes = 32u << 20,
	.atom = 512, .whole = 4096,
};
const struct file_system file_system_xfs = {
	.name = "xfs", .mkfs = mkfs_xfs, .options = "nouuid", .bytes = 32u << 20, .atom = 4096,
};

static void die(const char *what)
{
	perror(what);
	abort();
}

/* ---- What is needed ---- */

static bool command_exists(const char *name)
{
	const char *folders[] = { "/usr/sbin", "/sbin", "/usr/bin", "/bin" };
	char path[64];

	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", folders[i], name);
		if (access(path, X_OK) == 0)
			return true;
	}
	return false;
}

/* EINVAL: in a chroot / is no mount point. Our mounts may then be seen outside while they last. */
static bool own_mounts(void)
{
	return unshare(CLONE_NEWNS) == 0 &&
	       (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 || errno == EINVAL);
}

bool image_usable(const struct file_system *fs, char *ret_why, size_t size)
{
	const char *missing = NULL;

	if (geteuid() != 0)
		missing = "root is needed to mount";
	else if (access("/dev/fuse", R_OK | W_OK) != 0)
		missing = "there is no /dev/fuse";
	else if (access("/dev/loop-control", R_OK | W_OK) != 0)
		missing = "there is no /dev/loop-control";
	else if (!command_exists(fs->mkfs[0]))
		missing = fs->mkfs[0];
	else if (!own_mounts())
		missing = "no mount namespace can be made here";
	if (!missing)
		return true;
	snprintf(ret_why, size, "%s%s", missing, missing == fs->mkfs[0] ? " is not installed" : "");
	return false;
}

/* ---- Images ---- */

const char *image_path(int fd, char buf[64])
{
	snprintf(buf, 64, "/proc/%d/fd/%d", (int)getpid(), fd);
	return buf;
}

static void make_file_system(const struct file_system *fs, int fd)
{
	char path[64], *words[32];
	char text[1024] = "";
	size_t n = 0;
	int status, said;
	pid_t pid;

	image_path(fd, path);
	for (; fs->mkfs[n]; n++)
		words[n] = (char *)fs->mkfs[n];
	words[n++] = path;
	words[n] = NULL;
	said = memfd_create("mkfs", MFD_CLOEXEC);
	pid = fork();
	if (pid == 0) {
		dup2(said, STDOUT_FILENO);
		dup2(said, STDERR_FILENO);
		setenv("PATH", "/usr/sbin:/sbin:/usr/bin:/bin", 1);
		execvp(words[0], words);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
		ignore_result((int)pread(said, text, sizeof(text) - 1, 0) /* for the message */);
		fprintf(stderr, "%s\n", text);
		die(fs->mkfs[0]);
	}
	close(said);
}

int image_new(const struct file_system *fs, uint64_t bytes)
{
	int fd = memfd_create("image", MFD_CLOEXEC);

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		die("image");
	if (fs)
		make_file_system(fs, fd);
	return fd;
}

void image_copy(int from, int to, uint64_t bytes)
{
	uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, from, 0);
	off_t at = 0;

	if (map == MAP_FAILED ||
	    fallocate(to, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) < 0)
		die("copy an image");
	while (at < (off_t)bytes) {
		off_t data = lseek(from, at, SEEK_DATA), hole;

		if (data < 0 && errno == ENXIO)
			break;
		hole = data < 0 ? -1 : lseek(from, data, SEEK_HOLE);
		if (hole < 0)
			die("walk an image");
		for (at = data; at < hole;) {
			ssize_t n = pwrite(to, map + at, (size_t)(hole - at), at);

			if (n <= 0)
				die("copy an image");
			at += n;
		}
	}
	munmap(map, bytes);
}

/* ---- Mounts ---- */

/* A free loop device on path; the descriptor keeps it until it is mounted. */
static int attach_loop(const char *path, char ret_device[32], struct err *e)
{
	struct loop_config config = { .block_size = 512, .info.lo_flags = LO_FLAGS_AUTOCLEAR };
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), fd = -1;

	config.fd = (uint32_t)open(path, O_RDWR | O_CLOEXEC);
	for (int i = 0; i < LOOP_TRIES && control >= 0 && (int)config.fd >= 0; i++) {
		int n = ioctl(control, LOOP_CTL_GET_FREE);

		snprintf(ret_device, 32, "/dev/loop%d", n);
		fd = n < 0 ? -1 : open(ret_device, O_RDWR | O_CLOEXEC);
		if (fd >= 0 && ioctl(fd, LOOP_CONFIGURE, &config) == 0)
			break;
		if (fd >= 0)
			close(fd); /* somebody else was faster */
		fd = -1;
		usleep(2000);
	}
	if (fd < 0)
		err_code(e, -errno, "cannot attach a loop device to '%s'", path);
	if (control >= 0)
		close(control);
	if ((int)config.fd >= 0)
		close((int)config.fd);
	return fd;
}

int image_mount(const struct file_system *fs, const char *path, const char *where, struct err *e)
{
	char device[32];
	int fd = attach_loop(path, device, e), r = 0;

	if (fd < 0)
		return e && e->code ? e->code : -ENXIO;
	if (mount(device, where, fs->name, MS_NOATIME, fs->options) < 0)
		r = err_code(e, -errno, "cannot mount %s on %s", fs->name, device);
	close(fd);
	return r;
}

int image_umount(const char *where, struct err *e)
{
	for (int i = 0; i < UMOUNT_TRIES; i++) {
		if (umount2(where, 0) == 0)
			return 0;
		if (errno != EBUSY)
			break;
		usleep(10000); /* the last works of a process that was killed */
	}
	return err_code(e, -errno, "cannot unmount '%s'", where);
}
