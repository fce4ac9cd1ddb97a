/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source_memory.c - see source_memory.h. The budget is the thread's.
 */
#include <config.h>

#include "tools/source_memory.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "base/bytes.h"
#include "tools/plural.h"

static void allow(struct source_memory *m, uint64_t bytes)
{
	if (!size_add(m->budget.limit, bytes, &m->budget.limit))
		m->budget.limit = UINT64_MAX;
}

void source_metadata(uint64_t bytes)
{
	struct source_memory *m = (struct source_memory *)alloc_budget();
	uint64_t each = 0;

	if (!m)
		return;
	if (!size_mul(bytes, SOURCE_MEMORY_EACH, &each) ||
	    !size_add(m->metadata, bytes, &m->metadata))
		each = UINT64_MAX;
	allow(m, each);
}

void source_memory_buffers(struct source_memory *m, uint64_t bytes)
{
	m->buffers += bytes;
	allow(m, bytes);
}

void source_memory_begin(struct source_memory *m)
{
	*m = (struct source_memory){.budget = {.limit = SOURCE_MEMORY_FREE}};
	assert(!alloc_budget());
	alloc_set_budget(&m->budget);
}

int source_memory_end(struct source_memory *m, const char *what, int r, struct err *e)
{
	struct alloc_budget *before = alloc_set_budget(NULL);
	uint64_t wanted = m->budget.wanted, limit = m->budget.limit;

	assert(before == &m->budget);
	if (r >= 0 || wanted == 0)
		return r;
	return err_set(e, -E2BIG,
		       "%.100s needs %" PRIu64 " MiB of memory or more, and its %" PRIu64
		       " byte%s of metadata may take %" PRIu64
		       " MiB (64 MiB and 8 times their size): it is refused",
		       what, ((wanted - m->buffers) >> 20) + 1, m->metadata, plural(m->metadata),
		       (limit - m->buffers) >> 20);
}
