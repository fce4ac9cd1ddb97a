/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making_dry.c - what making_open() would refuse, found out without writing: the folder cannot be
 * made or written, another process makes the same, the owner has a job of the name, the disk has no
 * room. The sentences are those of the real run.
 *
 * Nothing is held: what is true here may have changed when the real run comes. One thread.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "storage/disk_posix.h"
#include "tools/making_parts.h"

static int may_write(const char *path)
{
	return faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) < 0 ? -errno : 0;
}

/* Up to its last '/': where path itself would be made. */
static void parent_of(const char *path, char *ret, size_t size)
{
	size_t n = strlen(path);

	while (n > 1 && path[n - 1] == '/')
		n--;
	while (n > 0 && path[n - 1] != '/')
		n--;
	snprintf(ret, size, "%.*s.", (int)n, path);
}

/* Where no data folder is yet there is no job either: only place and room count. */
static int look_at_place(struct making *m, struct err *e)
{
	char where[sizeof(m->path) + 2];
	int r;

	snprintf(m->path, sizeof(m->path), "%s", m->o.data);
	snprintf(where, sizeof(where), "%s", m->path);
	if (access(m->path, F_OK) != 0) {
		parent_of(m->path, where, sizeof(where));
		r = may_write(where);
		if (r < 0)
			return err_code(e, r, "make data folder '%.150s'", m->path);
	}
	r = disk_posix_open(where, "threads", &m->disk, e);
	if (r < 0)
		return r;
	r = may_write(where);
	return r < 0 ? err_code(e, r, "make data folder '%.150s'", m->path) : 0;
}

/* As making_begin() would find out. */
static int check_incoming(const struct making *m, struct err *e)
{
	char folder[sizeof(m->path) + 16], lock[sizeof(m->path) + 32];
	int may;

	snprintf(folder, sizeof(folder), "%s/incoming", m->path);
	snprintf(lock, sizeof(lock), "%s/LOCK", folder);
	if (access(folder, F_OK) != 0) {
		may = may_write(m->path);
		return may < 0 ? err_code(e, may,
					  "cannot make folder 'incoming' in the data folder")
			       : 0;
	}
	may = may_write(folder);
	if (faccessat(AT_FDCWD, lock, R_OK | W_OK, AT_EACCESS) < 0 && (errno != ENOENT || may < 0))
		return err_code(e, errno == ENOENT ? may : -errno,
				"cannot open 'incoming/LOCK' of '%.150s'", m->path);
	return may < 0 ? err_code(e, may, "begin job '%s' in incoming/ of '%.150s'", m->job,
				  m->path)
		       : 0;
}

static int look_at_folder(struct making *m, struct err *e)
{
	int r = making_open_folder(m, e);

	if (r == 0)
		r = check_incoming(m, e);
	return r == 0 && m->o.job ? making_look(m, e) : r;
}

int making_open_dry(struct making *m, struct err *e)
{
	int r = m->o.data && !making_is_data_folder(m->o.data) ? look_at_place(m, e)
							       : look_at_folder(m, e);

	return r == 0 ? making_check_space(m, e) : r;
}
