/* SPDX-License-Identifier: Apache-2.0 */
/*
 * by_process.h - objects by their process: links in a hash table by pid.
 *
 * A bucket also has links of other processes: compare by process_same().
 */
#ifndef CKPTD_BY_PROCESS_H
#define CKPTD_BY_PROCESS_H

#include "base/conn.h"
#include "base/list.h"

#define BY_PROCESS_BUCKETS 1024u /* consecutive pids lie in different ones */

struct by_process {
	struct list buckets[BY_PROCESS_BUCKETS];
};

static inline void by_process_init(struct by_process *t)
{
	for (unsigned i = 0; i < BY_PROCESS_BUCKETS; i++)
		list_init(&t->buckets[i]);
}

static inline struct list *by_process(struct by_process *t, const struct process_id *p)
{
	return &t->buckets[(uint32_t)p->pid % BY_PROCESS_BUCKETS];
}

#endif
