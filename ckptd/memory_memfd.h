/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_memfd.h - regions in memfds that the fd store keeps.
 *
 * Every call of the table but adopt may come from any thread (create and destroy of big regions
 * take long: a worker is the place), one region by one thread at a time.
 */
#ifndef CKPTD_MEMORY_MEMFD_H
#define CKPTD_MEMORY_MEMFD_H

#include "base/err.h"
#include "base/memory.h"
#include "ckptd/keeper.h"
#include "ckptd/log.h"

struct memory_options {
	uint64_t budget;  /* bytes of all regions; 0: memory_budget_default() */
	bool huge_pages;  /* where there are any */
	bool no_noexec;   /* as before kernel 6.3; for tests */
	const char *root; /* see system_memory.h; "" */
	struct log *log;
};

/* keeper outlives it; it holds what adopt() will hand over. */
MUST_CHECK int memory_memfd_new(struct keeper *keeper, const struct memory_options *o,
				struct memory **ret, struct err *e);
/* Unmaps what is left; the fd store keeps it. */
void memory_memfd_free(struct memory *m);
/* Half of what the machine and our cgroup have. */
MUST_CHECK int memory_budget_default(const char *root, uint64_t *ret, struct err *e);

#endif
