/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_run.h - a scripted life of a real node on a recorded disk, what it promised and when, and
 * the check that a disk found later keeps these promises.
 *
 * The run: two ranks save, wait for DURABLE, pin, unpin and remove; retention keeps the last two,
 * files are recycled through spare/, the log is trimmed; ckptd is killed in the middle of a
 * persist; the next one discards the leftover, gives the base back, and goes on in a new epoch
 * with another split of the tensors over the ranks.
 *
 * Promises are noted outside of the disk with the position of the record: what is noted as
 * DURABLE must be there after every loss of power from that position on.
 */
#ifndef TESTS_FAULT_CRASH_RUN_H
#define TESTS_FAULT_CRASH_RUN_H

#include "base/fault.h"
#include "tests/fault/image.h"

#define CRASH_KEEP_LAST 2
#define CRASH_BUG_NONE PLANTED_BUGS
#define CRASH_BUG_FILE_SYNC (PLANTED_BUGS + 1) /* no file is ever synced */

enum promise_kind {
	PROMISE_DURABLE, /* from here on it is on disk */
	PROMISE_PINNED,  /* and stays */
	PROMISE_UNPIN,   /* asked for: from here on it need not be pinned */
	PROMISE_REMOVE,  /* asked for: from here on it may be gone */
};

struct promise {
	enum promise_kind kind;
	uint64_t position;
	uint64_t epoch, step;
};

#define PROMISES_MAX 128
struct promises {
	size_t n;
	struct promise at[PROMISES_MAX];
	char error[ERR_TEXT_MAX]; /* the run did not go as it must */
};

struct crash_options {
	const char *backend;
	int bug; /* enum planted_bug, or one of those above */
};

/* Lives in children: ret lies in shared memory. */
void crash_run(const struct recording *r, const struct crash_options *o, const char *socket,
	       struct promises *ret);
/*
 * A node is started on the folder, as after power came back, and everything that must be there is
 * loaded and compared. Returns 0, or -1 and one sentence. save: also saves a checkpoint.
 */
int crash_check(const char *folder, const char *socket, const struct promises *p,
		uint64_t position, bool save, char *ret_why, size_t size);

#endif
