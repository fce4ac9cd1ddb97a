/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "base/alloc.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/huge.h"

#ifdef CKPT_FAULTS
static _Thread_local uint64_t count, fail_at;
static _Thread_local bool fail_on, fired;

static bool fails(void)
{
	count++;
	if (fail_at == 0 || count < fail_at || (count > fail_at && !fail_on))
		return false;
	fired = true;
	return true;
}

void alloc_fail_at(uint64_t n, bool persistent)
{
	count = 0;
	fail_at = n;
	fail_on = persistent;
	fired = false;
}

uint64_t alloc_count(void)
{
	return count;
}

bool alloc_fired(void)
{
	return fired;
}
#else
static bool fails(void)
{
	return false;
}

void alloc_fail_at(uint64_t n, bool persistent)
{
	(void)n;
	(void)persistent;
}

uint64_t alloc_count(void)
{
	return 0;
}

bool alloc_fired(void)
{
	return false;
}
#endif

static _Thread_local struct alloc_watch *watch;

struct alloc_watch *alloc_set_watch(struct alloc_watch *w)
{
	struct alloc_watch *before = watch;

	watch = w;
	return before;
}

static _Thread_local struct alloc_budget *budget;

struct alloc_budget *alloc_set_budget(struct alloc_budget *b)
{
	struct alloc_budget *before = budget;

	budget = b;
	return before;
}

struct alloc_budget *alloc_budget(void)
{
	return budget;
}

/* Whether `size` bytes more fit. */
static bool fits(uint64_t size)
{
	uint64_t all = 0;

	if (!budget)
		return true;
	if (!size_add(budget->used, size, &all))
		all = UINT64_MAX;
	if (all <= budget->limit)
		return true;
	if (!budget->wanted)
		budget->wanted = all;
	return false;
}

bool alloc_charge(uint64_t bytes)
{
	if (!fits(bytes))
		return false;
	if (budget) {
		budget->used += bytes;
		budget->most = max_u64(budget->most, budget->used);
	}
	return true;
}

void alloc_uncharge(uint64_t bytes)
{
	if (budget)
		budget->used -= min_u64(budget->used, bytes);
}

static void *taken(void *p)
{
	if (budget && p) {
		budget->used += malloc_usable_size(p);
		budget->most = max_u64(budget->most, budget->used);
	}
	if (watch && p)
		watch->taken(watch, p);
	return p;
}

static void given(void *p)
{
	if (budget && p)
		budget->used -= min_u64(budget->used, malloc_usable_size(p));
	if (watch && p)
		watch->given(watch, p);
}

void *alloc_zero(size_t size)
{
	if (fails() || !fits(size))
		return NULL;
	return taken(calloc(1, size ? size : 1));
}

void *alloc_array(size_t n, size_t size)
{
	size_t total;

	if (__builtin_mul_overflow(n, size, &total))
		return NULL;
	return alloc_zero(total);
}

void *alloc_resize(void *p, size_t size)
{
	size_t before = budget && p ? malloc_usable_size(p) : 0;
	void *q;

	if (fails() || (size > before && !fits(size - before)))
		return NULL;
	given(p);
	q = realloc(p, size ? size : 1);
	if (!q)
		taken(p);
	return taken(q);
}

void *alloc_copy(const void *p, size_t size)
{
	void *q = alloc_zero(size);

	if (q && size)
		memcpy(q, p, size);
	return q;
}

char *alloc_str(const char *s)
{
	return alloc_copy(s, strlen(s) + 1);
}

void alloc_free(void *p)
{
	given(p);
	free(p);
}

void alloc_join_at_once(void)
{
	ignore_result(mallopt(M_MXFAST, 0) /* another malloc may not know it */);
}

/* ---- Pages ---- */

static size_t whole_pages(size_t size)
{
	return round_up(size, (size_t)sysconf(_SC_PAGESIZE));
}

void *alloc_huge(size_t size)
{
	uint8_t *room, *base;
	size_t all, tail;

	if (size == 0 || size > SIZE_MAX / 2 || fails() || !alloc_charge(whole_pages(size)))
		return NULL;
	all = whole_pages(size) + HUGE_PAGE;
	room = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED) {
		alloc_uncharge(whole_pages(size));
		return NULL;
	}
	base = (uint8_t *)round_up((uintptr_t)room, HUGE_PAGE);
	tail = HUGE_PAGE - (size_t)(base - room);
	if (base > room)
		munmap(room, (size_t)(base - room));
	if (tail > 0)
		munmap(base + whole_pages(size), tail);
	if (size >= HUGE_PAGE) /* it is about time alone */
		ignore_result(madvise(base, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE));
	return base;
}

void alloc_huge_free(void *p, size_t size)
{
	if (!p)
		return;
	munmap(p, whole_pages(size));
	alloc_uncharge(whole_pages(size));
}
