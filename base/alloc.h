/* SPDX-License-Identifier: Apache-2.0 */
/*
 * alloc.h - the only place that calls malloc: so that every allocation can be made to fail.
 *
 * With fault injection, alloc_fail_at(n) makes the n-th allocation from now fail (and, when
 * persistent, each one after it); alloc_count() says how many there were. Per thread.
 */
#ifndef BASE_ALLOC_H
#define BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL. alloc_array() is NULL on overflow too; n == 0 gives a valid pointer. */
void *alloc_zero(size_t size) __attribute__((malloc));
void *alloc_array(size_t n, size_t size) __attribute__((malloc));
/* Like realloc; the old block stays on failure. */
void *alloc_resize(void *p, size_t size);
void *alloc_copy(const void *p, size_t size) __attribute__((malloc));
char *alloc_str(const char *s) __attribute__((malloc));
void alloc_free(void *p);
/* Zeroed memory for large transfers, aligned to HUGE_PAGE (base/huge.h) and in huge pages where the
 * system has them for who asks; or NULL. Of its last part, which is no whole huge page, pages are
 * small. What is never touched takes no memory. */
void *alloc_huge(size_t size) __attribute__((malloc));
void alloc_huge_free(void *p, size_t size); /* NULL is allowed */
/* For the whole process: free() merges a block with its free neighbours at once. By default malloc
 * defers that, and a later call of any thread pays for all deferred merges together. */
void alloc_join_at_once(void);

void alloc_fail_at(uint64_t n, bool persistent); /* n counts from 1; 0 switches it off */
uint64_t alloc_count(void);
bool alloc_fired(void); /* whether the wanted failure happened */

/*
 * A watch is told of every block that is taken and given back on this thread (a resize is both):
 * tests count them, and the simulator drops all blocks of a daemon that it killed. NULL: off.
 */
struct alloc_watch {
	void (*taken)(struct alloc_watch *, void *p); /* never NULL */
	void (*given)(struct alloc_watch *, void *p); /* before it is freed */
};
/* Returns the one before. */
struct alloc_watch *alloc_set_watch(struct alloc_watch *w);

/*
 * A budget bounds what blocks taken on this thread may hold together, so that input from outside
 * cannot make a process large: what does not fit is refused like missing memory, and `wanted` says
 * so. Blocks of before it are not counted: none of them is given back while it is in force, else
 * `used` falls by what was never in it. NULL: no bound.
 */
struct alloc_budget {
	uint64_t limit;
	uint64_t used, most; /* bytes of blocks, as malloc rounds them; now and at most */
	uint64_t wanted;     /* what the first refused block would have made of `used`; 0: none */
};
/* Returns the one before. */
struct alloc_budget *alloc_set_budget(struct alloc_budget *b);
/* The thread's own; NULL: it has none. */
struct alloc_budget *alloc_budget(void);
/* Counts what a library takes for itself; false: it does not fit, and nothing was counted. */
bool alloc_charge(uint64_t bytes) __attribute__((warn_unused_result));
void alloc_uncharge(uint64_t bytes);

static inline void alloc_cleanup(void *pp)
{
	alloc_free(*(void **)pp);
}
/* Frees a local pointer when it goes out of scope. */
#define CLEANUP_FREE __attribute__((cleanup(alloc_cleanup)))

#endif
