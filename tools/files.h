/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.h - what a data folder holds, read beside a running daemon: nothing is written, no lock is
 * taken but the shared one of a file that is being read. RocksDB is never opened here.
 */
#ifndef TOOLS_FILES_H
#define TOOLS_FILES_H

#include <limits.h>

#include "coord/record.h"
#include "model/trust.h"
#include "storage/commit_file.h"
#include "tools/ctl.h"

enum file_state {
	FILES_DURABLE,  /* COMMIT is good and the log knows it */
	FILES_UNLOGGED, /* COMMIT is good and the log does not know it */
	FILES_EXPIRING, /* the log freed it: an expiry that runs, or did not end */
	FILES_DAMAGED,  /* COMMIT cannot be read, or says other things than the log */
	FILES_LEFTOVER, /* no COMMIT: being written, or left by a crash */
};

struct data_checkpoint {
	struct checkpoint_id id;
	enum file_state state;
	bool rank_gone; /* with FILES_DAMAGED: all that is known of it is that a file is gone */
	bool has_commit;
	struct commit_file commit; /* if so */
	struct err why;            /* code 0 when it is durable */
	const struct history_commit *logged; /* NULL: not in the log; points into the history */
};

struct data_job {
	struct job_id id;
	char name[ID_TEXT_MAX > CKPT_JOB_MAX + 1 ? ID_TEXT_MAX : CKPT_JOB_MAX + 1];
	uint32_t uid;
	struct history history; /* up to what is damaged */
	struct err log_err;     /* code 0: the log is good, or a tool made the job */
	bool made;              /* by a tool: no ckptd has begun its log yet */
	bool unread; /* its folder cannot be read, log_err says why: its id is all that is known */
	struct data_checkpoint *checkpoints;
	size_t n_checkpoints, cap_checkpoints;
};

struct data {
	char path[PATH_MAX];
	struct disk *disk;
	struct store store;
	struct data_job *jobs;
	size_t n_jobs, cap_jobs;
	unsigned looks; /* pauses that were made for what was being published */
};

/*
 * Opens a folder for reading. given NULL: CKPT_DATA, else the folder of the ckptd that CKPT_SOCKET
 * names, which has to answer, else that of the one that answers in the usual places, else the first
 * of $XDG_DATA_HOME/ckptd, ~/.local/share/ckptd and /var/lib/ckptd that is there.
 * CKPT_ENOTFOUND: it is no data folder; CKPT_EUNAVAILABLE: CKPT_SOCKET's ckptd does not answer.
 */
MUST_CHECK int data_open(const char *given, struct data *ret, struct err *e);
/* The data folder of the ckptd at socket (as for connection_open()), by its own answer.
 * CKPT_ENOTFOUND: it is too old to say it; -EXDEV: its name leads to another folder here. */
MUST_CHECK int data_of_ckptd(const char *socket, char ret[PATH_MAX], struct err *e);
/* The path that data_open() opens for given, which need not be there. */
MUST_CHECK int data_find(const char *given, char ret[PATH_MAX], struct err *e);
/* The folder of a disk that is open already; path: how it is called. */
MUST_CHECK int data_open_again(struct disk *disk, const char *path, struct data *ret,
			       struct err *e);
bool data_is_there(const char *folder); /* whether it is a data folder */
bool data_is_same(const char *a, const char *b); /* one folder, by whatever names */
/* -EINVAL: --data names given, and the ckptd of --socket said that it has another folder. */
MUST_CHECK int data_check_same(const char *said, const char *given, struct err *e);
void data_close(struct data *d);
/*
 * Reads the jobs: COMMIT files first, then each log, so that a log that grows meanwhile knows all
 * that was found. job: a name or an id, CKPT_ENOTFOUND when there is none; NULL: all. One whose
 * folder cannot be read is there as `unread`; it is an error where it may be the one that is named.
 */
MUST_CHECK int data_read_jobs(struct data *d, const char *job, struct err *e);

/* What a ckptd that has nothing in memory would have the next launch load; NULL: nothing. And one
 * that asks for this level of trust; what no log knows is trusted no further than latest. */
const struct data_checkpoint *data_latest(const struct data_job *j);
const struct data_checkpoint *data_trusted(const struct data_job *j, enum trust_level least);
/* The base of the job's newest epoch, by the log. */
bool data_is_base(const struct data_job *j, const struct history_commit *h);
/* Commits that are newer than all on disk: in memory, if anywhere. */
bool data_maybe_in_memory(const struct data_job *j, const struct history_commit *h);

#endif
