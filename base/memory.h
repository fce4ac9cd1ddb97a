/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - memory that outlives ckptd: named regions, kept by the keeper of descriptors.
 *
 * A region is a memfd (mode 0600) that is mapped here and handed to the fd store under its name
 * before create() or keep() returns; after a crash the next ckptd finds it by walking. Names are
 * [a-z0-9.-]{1,200}. create(), fill() and destroy() take a second per GiB, seal() takes as long
 * where pages are missing, and create(), reserve() and destroy() wait for the store's answer: they
 * are for workers. adopt() only on the loop, the rest from any thread, one region by one thread at
 * a time.
 * Implementations: ckptd/memory_memfd.c, tests/sim/memory.c.
 */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"

#define REGION_NAME_MAX 200
#define REGION_SMALL_MAX 65536u

struct memory;

struct region {
	void *base;    /* mapped for reading and writing (reading only once sealed, for a slot) */
	uint64_t size;
	char name[REGION_NAME_MAX + 1];
	struct list link; /* free for the owner */
};

/* With fewer places in the fd store a user's first rank may not fit: its slots, its page of beats
 * and the job's ledger, twice while that moves, beside what stays free for others. */
#define MEMORY_PLACES_LEAST 16u

/* Places in the fd store: each region that outlives ckptd needs one. */
struct memory_room {
	uint64_t used;
	uint64_t max;  /* UINT64_MAX: no limit is known, or nothing is kept */
	uint64_t left; /* less than max - used where the names together would be too long */
};

typedef void region_fn(void *arg, struct region *); /* the callee owns the region */

struct memory_ops {
	/*
	 * Reserves size bytes for good (a later touch never fails) and zeroes them; huge pages
	 * where there are any. populate: also fault them in here. -ENOMEM or -ENOSPC when memory
	 * or the budget does not allow it, CKPT_ENOSPACE when the fd store has no place for it (no
	 * system call returns that; -EMFILE is this process's own limit of open files).
	 */
	int (*create)(struct memory *, const char *name, uint64_t size, struct region **ret);
	/*
	 * The same without the pages, in a millisecond: its bytes are taken as by create(), and
	 * nobody touches it before fill(). It may be exported, and outlives ckptd, before that.
	 */
	int (*reserve)(struct memory *, const char *name, uint64_t size, struct region **ret);
	/* Gives a reserved region, which is not sealed yet, its pages. May be repeated. -ENOMEM. */
	int (*fill)(struct memory *, struct region *);
	/*
	 * A few pages, at most REGION_SMALL_MAX bytes, that end with ckptd: the fd store is not
	 * asked, neither here nor at its destroy(); both take some system calls, less than a
	 * millisecond. Holders of the descriptor cannot change its seals.
	 */
	int (*create_small)(struct memory *, const char *name, uint64_t size, struct region **ret);
	/* From here on it outlives ckptd like one of create(). Waits for the store: for workers;
	 * meanwhile it may be read, written and exported, and nothing else. CKPT_ENOSPACE: as with
	 * create(). */
	int (*keep)(struct memory *, struct region *);
	/* After this no process can create a writable mapping; existing ones stay writable. */
	int (*seal)(struct memory *, struct region *);
	/* Takes it out of the fd store first, then unmaps and closes it. */
	void (*destroy)(struct memory *, struct region *);
	/* Hands over every region that the fd store held when ckptd started. Once. */
	void (*adopt)(struct memory *, region_fn *fn, void *arg);
	/* A new descriptor of the region to send away; read-only or read-write. */
	int (*export_fd)(struct memory *, struct region *, bool writable);
	/* A sealed memfd with these bytes, for messages above the socket's limit. */
	int (*bytes_to_fd)(struct memory *, const void *bytes, uint64_t len);
	/* A private copy of what a sealed memfd holds, at most max bytes; the caller frees it. */
	int (*fd_to_bytes)(struct memory *, int fd, uint64_t max, void **ret, uint64_t *ret_len);
	void (*close_fd)(struct memory *, int fd);
	/* Bytes that may still be taken, and the budget. */
	uint64_t (*available)(struct memory *, uint64_t *ret_budget);
	/* Does not wait for the store. */
	void (*room)(struct memory *, struct memory_room *ret);
};

struct memory {
	const struct memory_ops *ops;
};

/* Why create() or keep() failed, as a clause for a message. */
static inline const char *memory_error_text(int code)
{
	if (code == -ENOSPC)
		return "the budget is used up (memory.budget): end ranks or jobs, or raise it and "
		       "restart ckptd";
	return code == CKPT_ENOSPACE ? "the fd store is full: end ranks or jobs, or raise "
				       "FileDescriptorStoreMax= of the unit (memory.descriptors)"
				     : err_text(code);
}

#endif
