/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - incoming/: where a tool makes a new job's checkpoint, beside a running ckptd or
 * without one.
 *
 *   incoming/<job-id>/<step>.<attempt>/...   as it will lie in jobs/
 *   incoming/<job-id>.gone                   what is being removed: a staged job, or one of jobs/
 *   incoming/<job-id>.making                 who makes it: an exclusive lock, and a journal of what
 *                                            is finished, for who goes on after a kill
 *
 * Whoever makes it sees the folder through a disk of its own, on which jobs/ is incoming/: so all
 * of storage/ serves both. Publishing is one rename: before it nobody looks for checkpoints here,
 * after it the job is like one whose log was lost (ckptd/relog.c).
 */
#ifndef STORAGE_STAGING_H
#define STORAGE_STAGING_H

#include "storage/store.h"

struct staging_disk {
	struct disk base;
	struct disk_ops ops;
	struct disk *inner;
};

/* inner is that of the data folder and outlives it. */
void staging_disk_init(struct staging_disk *d, struct disk *inner);

void path_staged(char *buf, const struct job_id *job); /* incoming/<job-id> */
void path_making(char *buf, const struct job_id *job);
/* Makes incoming/ if it is missing. On the data folder's own disk, as all that follow. */
MUST_CHECK int staging_make_folder(struct store *s, struct err *e);

/* Whether a name in incoming/ is of a job that is made there. */
bool staging_name_is(const char *name, bool is_dir);
/* What lies in incoming/, by job: folder, .making, .gone. -ENOENT of the folder is nothing. */
struct staged {
	struct job_id job;
	bool folder, making;
	bool gone; /* files whose removal did not end */
	bool busy; /* somebody holds the lock */
};
typedef int staging_fn(void *arg, const struct staged *s);
MUST_CHECK int staging_each(struct store *s, staging_fn *fn, void *arg, struct err *e);

/*
 * incoming/<job-id> gets its place in jobs/, durably. May be repeated (I10): where it has its place
 * already only the syncs are done. CKPT_ENOTFOUND: it is in neither; -EEXIST: in both.
 */
MUST_CHECK int staging_publish(struct store *s, const struct job_id *job, struct err *e);
/* Back again, from a caller who published it and could not begin with it. */
MUST_CHECK int staging_withdraw(struct store *s, const struct job_id *job);
/*
 * jobs/<job-id> gets the name incoming/<job-id>.gone, durably: from then on no start and no
 * adoption finds the job, and staging_remove_gone() removes its files. After an error it is in
 * jobs/ as before, where the disk can still rename. CKPT_ENOTFOUND: it is not in jobs/.
 */
MUST_CHECK int staging_discard(struct store *s, const struct job_id *job, struct err *e);
/* Only what was discarded: incoming/<job-id> and .making may be of a tool that makes it again. */
MUST_CHECK int staging_remove_gone(struct store *s, const struct job_id *job, struct err *e);
/* Takes away a job's folder and .making, whose lock the caller holds or which nobody does. */
MUST_CHECK int staging_remove(struct store *s, const struct job_id *job, struct err *e);

#endif
