/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_need.h - whether the disk has room for the checkpoints of a job, asked before its slots are
 * made (C10): those that retention keeps stay until the next is whole, and storage.disk_reserve
 * stays free.
 */
#ifndef CKPTD_DISK_NEED_H
#define CKPTD_DISK_NEED_H

#include <stdatomic.h>

#include "ckptd/job.h"
#include "ckptd/replicas.h"

struct disk_need;

/* Checkpoints of a job that stay until the next one is whole. */
uint32_t disk_need_kept(const struct node *n, bool went_back);
/* n_kept of so many bytes, less what is there of them, and the next one; UINT64_MAX: more than
 * there can be. */
uint64_t disk_need_more(uint64_t one, uint32_t n_kept, uint64_t have);
/* m and all others of its job that have declared; ranks that have not are not counted: the last one
 * to prepare knows all. On the loop, as is disk_need_free(). NULL: out of memory. */
struct disk_need *disk_need_new(struct member *m);
void disk_need_free(struct disk_need *n); /* NULL is allowed */
/* It has to wait for what its ranks hold alike: w->known() is called then. false: it need not. */
bool disk_need_wait(struct disk_need *n, struct replicas_wait *w);
/* On a worker, some time: 0, or CKPT_ENOSPACE with numbers; -ECANCELED soon after *cancel. */
MUST_CHECK int disk_need_admit(struct disk_need *n, const atomic_bool *cancel, struct err *e);
/* Bytes of a checkpoint of the job, behind disk_need_admit(); 0: not known, as not all ranks had
 * declared. */
uint64_t disk_need_one(const struct disk_need *n);

#endif
