/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faulty_disk.h - a disk around a disk whose n-th call fails, once or from then on, and that
 * writes down what was done in which order.
 *
 * A failed write has written half; a failed sync has lost the file's bytes (they are gone from the
 * inner disk too); a failed completion has moved half. A sync of a file whose sync failed is a
 * failure of the test. Nothing is really synced: there is no power loss here.
 */
#ifndef STORAGE_TEST_FAULTY_DISK_H
#define STORAGE_TEST_FAULTY_DISK_H

#include "base/disk.h"

struct disk_event {
	char what; /* w write, s sync, d sync_dir, r rename (path: new name), u unlink, o open */
	char path[DISK_PATH_MAX + 1];
};

struct faulty_disk {
	struct disk base;
	struct disk *inner;
	uint64_t calls, fail_at; /* calls count from 1; 0: never */
	int error;
	bool persistent, fired;
	struct disk_event *events; /* when recording */
	size_t n_events, max_events;
};

/* Sets all fields; events may be set afterwards. */
void faulty_disk_init(struct faulty_disk *f, struct disk *inner);

#endif
