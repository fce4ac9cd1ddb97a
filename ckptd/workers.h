/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workers.h - threads for blocking work, a pool for each class.
 */
#ifndef CKPTD_WORKERS_H
#define CKPTD_WORKERS_H

#include "base/disk.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/work.h"

struct workers_options {
	unsigned threads[WORK_CLASSES]; /* each 1..WORKERS_MAX */
	struct disk *disk;              /* whose queues the DATA workers open */
	unsigned queue_depth;
};
#define WORKERS_MAX 64

/* loop: of loop_epoll.h. Returns when every thread runs and every queue is open. */
MUST_CHECK int workers_new(struct loop *loop, const struct workers_options *o,
			   struct workers **ret, struct err *e);
/*
 * On the loop's thread, outside its turns: waits for all that was submitted, calls the dones
 * (which may submit more), then ends the threads.
 */
void workers_free(struct workers *w);

#endif
