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
#include <stdio.h>
#include <unistd.h>

#include "storage/disk_posix.h"
#include "tools/files.h"
#include "tools/making_parts.h"

static int may_write(const struct making *m, const char *path)
{
	return beneath_access(disk_posix_folder(m->disk), path, W_OK | X_OK);
}

/* Where no data folder is yet there is no job either: only place and room count. */
static int look_at_place(struct making *m, struct err *e)
{
	struct beneath b;
	int r;

	snprintf(m->path, sizeof(m->path), "%s", m->o.data);
	r = making_open_place(m->path, false, &b, e);
	if (r == 0)
		r = disk_posix_take(&b, "threads", &m->disk, e);
	if (r < 0)
		return r;
	r = may_write(m, "");
	return r < 0 ? err_code(e, r, "make data folder '%.150s'", m->path) : 0;
}

/* As making_begin() would find out. */
static int check_incoming(const struct making *m, struct err *e)
{
	const struct beneath *in = disk_posix_folder(m->disk);
	int lock, may = beneath_access(in, "incoming", F_OK);

	if (may == -ENOENT) {
		may = may_write(m, "");
		return may < 0 ? err_code(e, may,
					  "cannot make folder 'incoming' in the data folder")
			       : 0;
	}
	may = may_write(m, "incoming");
	lock = beneath_access(in, "incoming/LOCK", R_OK | W_OK);
	if (lock < 0 && (lock != -ENOENT || may < 0))
		return err_code(e, lock == -ENOENT ? may : lock,
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
	int r = m->o.data && !data_is_there(m->o.data) ? look_at_place(m, e)
							       : look_at_folder(m, e);

	return r == 0 ? making_check_space(m, e) : r;
}
