/* SPDX-License-Identifier: Apache-2.0 */
/*
 * huge.h - shared mappings in huge pages, and memory that is filled for the first time.
 *
 * A copy through small pages spends a part of its time on address translation, and mapping them
 * anew costs about half of the copy. The kernel maps a huge page as one only where the address is
 * as aligned as the offset in the file is; mmap() alone does not see to that.
 *
 * All of this is about time alone: where the kernel or its settings refuse, small pages do. Any
 * thread.
 */
#ifndef BASE_HUGE_H
#define BASE_HUGE_H

#include <stdbool.h>
#include <stddef.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* mmap() of size bytes of fd from its start, MAP_SHARED; NULL and errno. Undone by munmap(). */
void *huge_map(int fd, size_t size, int prot);
/*
 * Fills an empty shared mapping with huge pages, as far as there are any, or with small ones. It
 * promises nothing: the caller sees to it that no hole stays (fallocate). It touches nothing
 * itself: where there is no memory, or no more file, it ends early.
 */
void huge_fill(void *base, size_t size);
/*
 * Memory that nothing has touched is about to be written, all of it: [base, base + HUGE_PAGE), base
 * aligned. It gets its pages at once, one huge one or small ones; where its first page is there
 * already nothing is done. Its owner's settings for it stay what they were, and what is there keeps
 * its bytes. By one thread at a time of those that fill neighbouring places: while another one
 * faults pages in there the kernel refuses a huge one. A taker, zeroed, remembers what is refused.
 */
struct huge_taker {
	bool small; /* the system gave no huge page */
	bool off;   /* it gave nothing */
};
void huge_take(struct huge_taker *t, void *base);
/* Whether the mapping begins with a huge page. Touches it; what follows may still be small. */
bool huge_is(const void *base, size_t size);

#endif
