/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_folder.c - see data_folder.h.
 *
 * Whether a folder that is there is the one that memory belongs to is asked later, by its id
 * (start.c).
 */
#include <config.h>

#include "ckptd/data_folder.h"

#include <assert.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "storage/beneath.h"
#include "storage/disk_posix.h"

static int make_all(const char *path, const char *remedy, struct err *e)
{
	char part[256];
	size_t len = strlen(path);

	assert(len < sizeof(part));
	for (size_t i = 1; i <= len; i++) {
		if (path[i] != '/' && path[i] != '\0')
			continue;
		memcpy(part, path, i);
		part[i] = '\0';
		if (mkdir(part, 0700) != 0 && errno != EEXIST && errno != EISDIR)
			return err_set(e, -errno, "cannot make data folder '%.150s': %s: %s", part,
				       err_text(-errno), remedy);
	}
	return 0;
}

int data_folder_make(const char *path, bool memory_kept, bool own, struct err *e)
{
	struct stat st;

	assert(path[0] == '/');
	if (!memory_kept)
		return make_all(path,
				own ? "name another one with --data"
				    : "start it as root, or for yourself alone with --user, or "
				      "name another one with --data",
				e);
	if (stat(path, &st) == 0)
		return 0;
	return err_set(e, -errno,
		       "data folder '%.150s' cannot be found (%s), and ckptd keeps memory of its "
		       "jobs: mount or put back that folder, and ckptd goes on by itself; to lose "
		       "what only that memory holds, stop ckptd (systemctl stop, or end its "
		       "supervisor), then start it",
		       path, err_text(-errno));
}

/* All I/O goes on through the descriptor of a folder that was removed, or of a file system that was
 * detached (umount -l): nobody would find it again. */
int data_folder_check(struct disk *d, const char *path, struct err *e)
{
	int r = beneath_is_named(disk_posix_folder(d), path);

	if (r == 0 || r == -EACCES) /* what cannot be looked at need not be gone */
		return 0;
	if (r == -EXDEV)
		return err_set(e, r,
			       "the data folder '%s' is another one than when ckptd started: its "
			       "file system was unmounted, or another was put in its place; mount "
			       "it again, and ckptd goes on by itself",
			       path);
	return err_set(e, r,
		       "the data folder '%s' is gone (%s): put it back, or mount its file system "
		       "again, and ckptd goes on by itself",
		       path, strerror(-r));
}

bool data_folder_in_memory(struct disk *d)
{
	struct statfs fs;

	return fstatfs(disk_posix_folder(d)->folder, &fs) == 0 &&
	       ((uint32_t)fs.f_type == TMPFS_MAGIC || (uint32_t)fs.f_type == RAMFS_MAGIC);
}
