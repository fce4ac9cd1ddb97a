/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_memfd.c - regions in memfds that outlive ckptd.
 *
 *   1. A region that create() returned has every page (fallocate), cannot change its size (seals
 *      GROW, SHRINK) and is in the fd store: no later touch fails, no trainer can make ckptd die
 *      of SIGBUS by truncating it, and the death of ckptd loses nothing (I6). One of reserve() has
 *      its pages from fill() on: until then ckptd does not touch it. One of create_small()
 *      is in the fd store only from keep() on, and nobody can add seals to it (FUTURE_WRITE would
 *      keep the next ckptd from writing to it).
 *   2. After seal() nobody can map it for writing anew, nor punch holes (FUTURE_WRITE), nor change
 *      the seals; here it is mapped for reading alone. Maps that were writable stay: see I2 for
 *      what catches a trainer that writes late.
 *   3. Taken memory is within the budget and within what the machine and our cgroup have: beyond
 *      that the kernel does not fail, it kills. Regions that are being made, or are reserved, count
 *      twice until their pages are there: rather refused than killed.
 *   4. destroy() takes a region out of the fd store before its bytes count as free.
 *   5. A descriptor from outside is never mapped; it is copied by pread, and only if its seals say
 *      that neither bytes nor size can change.
 *
 * Huge pages come before fallocate, which would fill in small ones (base/huge.h). Without them
 * everything works, more slowly; what was achieved is logged.
 *
 * Locks: `lock` guards what is counted and the list. Failure modes: -ENOSPC the budget, -ENOMEM the
 * machine, CKPT_ENOSPACE the fd store is full, -EIO it did not take it; nothing is left behind.
 */
#include <config.h>

#include "ckptd/memory_memfd.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/huge.h"
#include "ckptd/system_memory.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

enum { PAGE = 4096 };
static const int seals_size = F_SEAL_GROW | F_SEAL_SHRINK;
static const int seals_small = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;
static const int seals_slot = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
static const int seals_frozen = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE;

struct memfd_memory {
	struct memory memory;
	struct keeper *keeper;
	struct memory_options options;
	pthread_mutex_t lock;
	uint64_t taken;  /* bytes of all regions, in pages */
	uint64_t making; /* of those that may have no pages yet: the machine calls them free */
	struct list regions;
};

struct memfd_region {
	struct region region;
	struct list link; /* in memfd_memory.regions */
	int fd;
	bool stored;     /* the fd store has it */
	uint64_t making; /* what m->making counts for it */
};

static struct memfd_memory *of(struct memory *m)
{
	return container_of(m, struct memfd_memory, memory);
}

static struct memfd_region *region_of(struct region *r)
{
	return container_of(r, struct memfd_region, region);
}

/* Bytes of whole pages; 0 when there is no such number. */
static uint64_t in_pages(uint64_t size)
{
	return size > (uint64_t)INT64_MAX - PAGE ? 0 : round_up(size, PAGE);
}

static bool name_is_valid(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-");

	return len > 0 && len <= REGION_NAME_MAX && name[len] == '\0';
}

/* ---- What may be taken (3) ---- */

static void read_system(const struct memfd_memory *m, struct system_memory *ret)
{
	struct err e = { 0 };

	if (system_memory_read(m->options.root, ret, &e) == 0)
		return;
	log_print(m->options.log, LOG_WARNING, "memory: %s", e.text);
	*ret = (struct system_memory){.available = UINT64_MAX};
}

static int charge(struct memfd_memory *m, uint64_t bytes)
{
	struct system_memory sys = {.available = UINT64_MAX};
	uint64_t others;
	int r = 0;

	pthread_mutex_lock(&m->lock);
	/* Under the lock: pages that are no longer counted in `making` show in what is read.
	 * Reading takes 0.2 ms, too long for the small regions that the loop makes; they fit into
	 * what stays free. */
	if (bytes > REGION_SMALL_MAX)
		read_system(m, &sys);
	if (bytes == 0 || bytes > m->options.budget - min_u64(m->taken, m->options.budget))
		r = -ENOSPC;
	else if (!size_add(m->making, sys.total / 64, &others) || sys.available < others ||
		 bytes > sys.available - others)
		r = -ENOMEM; /* a 64th stays free for everybody else */
	else
		m->making += bytes;
	m->taken += r == 0 ? bytes : 0;
	pthread_mutex_unlock(&m->lock);
	return r;
}

/* It has its pages, or never will. */
static void made(struct memfd_memory *m, uint64_t bytes)
{
	pthread_mutex_lock(&m->lock);
	assert(m->making >= bytes);
	m->making -= bytes;
	pthread_mutex_unlock(&m->lock);
}

static void uncharge(struct memfd_memory *m, uint64_t bytes)
{
	pthread_mutex_lock(&m->lock);
	assert(m->taken >= bytes);
	m->taken -= bytes;
	pthread_mutex_unlock(&m->lock);
}

/* ---- Making one ---- */

static int make_memfd(struct memfd_memory *m, const char *name, uint64_t size)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd = -1, r;

	if (!m->options.no_noexec)
		fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	if (fd < 0 && (m->options.no_noexec || errno == EINVAL))
		fd = memfd_create(name, flags);
	if (fd < 0)
		return -errno;
	/* Whoever gets a read-only descriptor could open it anew for writing, but for the mode. */
	if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)size) != 0) {
		r = -errno;
		close(fd);
		return r;
	}
	return fd;
}

static int fill(int fd, uint64_t size)
{
	int r;

	do
		r = fallocate(fd, 0, 0, (off_t)size) == 0 ? 0 : -errno;
	while (r == -EINTR);
	return r;
}

static int map_region(struct memfd_region *mr, int prot)
{
	struct region *r = &mr->region;
	void *base = huge_map(mr->fd, r->size, prot);

	if (!base)
		return -errno;
	r->base = base;
	/* Advice: a core dump of ckptd is not the place for the users' state. */
	ignore_result(madvise(base, r->size, MADV_DONTDUMP));
	return 0;
}

/* Every page, huge ones if they can be had (1). Their absence is no error. */
static int populate(struct memfd_memory *m, struct memfd_region *mr)
{
	struct region *r = &mr->region;
	bool huge = m->options.huge_pages && r->size >= HUGE_PAGE;
	int error;

	if (huge)
		huge_fill(r->base, r->size);
	error = fill(mr->fd, r->size);
	if (error)
		return error;
	/* Faults of ckptd's own mapping here, and not while it digests: 0.3 s a GiB (_READ, which
	 * would do, took longer). */
	ignore_result(madvise(r->base, r->size, MADV_POPULATE_WRITE));
	if (huge)
		log_print(m->options.log, LOG_INFO, "memory '%s': %llu of %llu MiB in huge pages",
			  r->name, (unsigned long long)(huge_pages_mapped(r->base) >> 20),
			  (unsigned long long)(r->size >> 20));
	return 0;
}

/* Unmaps and closes; the fd store is not asked. */
static void drop(struct memfd_memory *m, struct memfd_region *mr)
{
	pthread_mutex_lock(&m->lock);
	list_del(&mr->link);
	pthread_mutex_unlock(&m->lock);
	if (mr->region.base)
		munmap(mr->region.base, mr->region.size);
	close(mr->fd);
	alloc_free(mr);
}

/* Takes fd, whatever happens. */
static int new_region(struct memfd_memory *m, const char *name, uint64_t size, int fd,
		      struct memfd_region **ret)
{
	struct memfd_region *mr = alloc_zero(sizeof(*mr));

	if (!mr) {
		close(fd);
		return -ENOMEM;
	}
	mr->fd = fd;
	mr->region.size = size;
	snprintf(mr->region.name, sizeof(mr->region.name), "%s", name);
	list_init(&mr->region.link);
	list_init(&mr->link);
	pthread_mutex_lock(&m->lock);
	list_add_tail(&m->regions, &mr->link);
	pthread_mutex_unlock(&m->lock);
	*ret = mr;
	return 0;
}

/* How a region is made. */
enum make {
	MAKE_STORED,   /* with pages, in the fd store */
	MAKE_RESERVED, /* in the fd store; its pages come with fill() */
	MAKE_SMALL,    /* with pages, not in the fd store */
};

static int make_region(struct memfd_memory *m, const char *name, uint64_t size, enum make how,
		       struct memfd_region **ret)
{
	bool store = how != MAKE_SMALL;
	struct memfd_region *mr;
	int fd = make_memfd(m, name, size), r;

	if (fd < 0)
		return fd;
	r = new_region(m, name, size, fd, &mr);
	if (r)
		return r;
	r = map_region(mr, PROT_READ | PROT_WRITE);
	if (r == 0 && how != MAKE_RESERVED)
		r = populate(m, mr);
	if (r == 0 && fcntl(mr->fd, F_ADD_SEALS, store ? seals_size : seals_small) != 0)
		r = -errno;
	if (r == 0 && store)
		r = keeper_store(m->keeper, name, mr->fd);
	mr->stored = store;
	if (r) {
		drop(m, mr);
		return r;
	}
	*ret = mr;
	return 0;
}

/* Asked before pages are made, which takes a second per GiB; keeper_store() has the last word. */
static bool store_is_full(struct memfd_memory *m)
{
	struct memory_room room;

	keeper_room(m->keeper, &room);
	return room.left == 0;
}

static int take(struct memory *memory, const char *name, uint64_t size, enum make how,
		struct region **ret)
{
	struct memfd_memory *m = of(memory);
	bool store = how != MAKE_SMALL;
	struct memfd_region *mr;
	int r;

	assert(name_is_valid(name));
	assert(size > 0);
	r = store && store_is_full(m) ? CKPT_ENOSPACE : charge(m, in_pages(size));
	if (r == 0) {
		r = make_region(m, name, size, how, &mr);
		if (r == 0 && how == MAKE_RESERVED)
			mr->making = in_pages(size);
		else
			made(m, in_pages(size));
		if (r)
			uncharge(m, in_pages(size));
	}
	if (r) {
		log_print(m->options.log, LOG_WARNING, "memory '%s': could not take %llu MiB: %s",
			  name, (unsigned long long)(size >> 20), memory_error_text(r));
		return r;
	}
	*ret = &mr->region;
	return 0;
}

static int create(struct memory *memory, const char *name, uint64_t size, struct region **ret)
{
	return take(memory, name, size, MAKE_STORED, ret);
}

static int reserve(struct memory *memory, const char *name, uint64_t size, struct region **ret)
{
	return take(memory, name, size, MAKE_RESERVED, ret);
}

static bool has_pages(const struct memfd_region *mr)
{
	struct stat st;

	return fstat(mr->fd, &st) == 0 && (uint64_t)st.st_blocks * 512 >= in_pages(mr->region.size);
}

static void forget_making(struct memfd_memory *m, struct memfd_region *mr)
{
	made(m, mr->making);
	mr->making = 0;
}

static int fill_reserved(struct memory *memory, struct region *r)
{
	struct memfd_memory *m = of(memory);
	struct memfd_region *mr = region_of(r);
	int error = has_pages(mr) ? 0 : populate(m, mr);

	if (error == 0)
		forget_making(m, mr);
	return error; /* no line of the log: slot_fill.c says it once, however often it tries */
}

static int create_small(struct memory *memory, const char *name, uint64_t size, struct region **ret)
{
	assert(size <= REGION_SMALL_MAX);
	return take(memory, name, size, MAKE_SMALL, ret);
}

static int keep(struct memory *memory, struct region *r)
{
	struct memfd_region *mr = region_of(r);
	int error = keeper_store(of(memory)->keeper, r->name, mr->fd);

	assert(!mr->stored);
	mr->stored = error == 0;
	return error;
}

/* ---- The life of one ---- */

static int seal(struct memory *memory, struct region *r)
{
	struct memfd_region *mr = region_of(r);
	int seals;

	(void)memory;
	seals = fcntl(mr->fd, F_GET_SEALS);
	if (seals < 0)
		return -errno;
	if ((seals & seals_slot) != seals_slot && fcntl(mr->fd, F_ADD_SEALS, seals_slot) != 0)
		return -errno;
	if (mprotect(r->base, r->size, PROT_READ) != 0)
		return -errno;
	/* Holes that its writer punched before: from here on there can be no new ones (1, 2). */
	return has_pages(mr) ? 0 : fill(mr->fd, r->size);
}

static void destroy(struct memory *memory, struct region *r)
{
	struct memfd_memory *m = of(memory);
	uint64_t bytes = in_pages(r->size);
	int error = region_of(r)->stored ? keeper_remove(m->keeper, r->name) : 0; /* (4) */

	if (error)
		log_print(m->options.log, LOG_WARNING,
			  "memory '%s': could not be taken out of the fd store: %s", r->name,
			  err_text(error));
	forget_making(m, region_of(r));
	drop(m, region_of(r));
	uncharge(m, bytes);
}

static int reopen_read_only(int fd)
{
	char path[40];
	int copy;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	copy = open(path, O_RDONLY | O_CLOEXEC);
	return copy < 0 ? -errno : copy;
}

static int export_fd(struct memory *memory, struct region *r, bool writable)
{
	int fd = region_of(r)->fd, copy;

	(void)memory;
	if (!writable)
		return reopen_read_only(fd);
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return copy < 0 ? -errno : copy;
}

static uint64_t available(struct memory *memory, uint64_t *ret_budget)
{
	struct memfd_memory *m = of(memory);
	uint64_t left;

	pthread_mutex_lock(&m->lock);
	left = m->options.budget - min_u64(m->taken, m->options.budget);
	pthread_mutex_unlock(&m->lock);
	if (ret_budget)
		*ret_budget = m->options.budget;
	return left;
}

static void room(struct memory *memory, struct memory_room *ret)
{
	keeper_room(of(memory)->keeper, ret);
}

/* ---- After a restart ---- */

static int adopt_one(struct memfd_memory *m, const char *name, int fd, struct memfd_region **ret)
{
	int seals = fcntl(fd, F_GET_SEALS), r;
	struct memfd_region *mr;
	struct stat st;

	if (seals < 0 || fstat(fd, &st) != 0 || st.st_size <= 0 || !name_is_valid(name) ||
	    (seals & seals_size) != seals_size) {
		close(fd);
		return -EINVAL; /* not one of ours: create() stores nothing before (1) holds */
	}
	r = new_region(m, name, (uint64_t)st.st_size, fd, &mr);
	if (r)
		return r;
	mr->stored = true;
	r = map_region(mr, seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE) ? PROT_READ
									 : PROT_READ | PROT_WRITE);
	if (r) {
		drop(m, mr);
		return r;
	}
	if (!has_pages(mr))
		mr->making = in_pages(mr->region.size); /* reserved, and not filled yet (3) */
	pthread_mutex_lock(&m->lock);
	m->taken += in_pages(mr->region.size); /* also above the budget: it is there */
	m->making += mr->making;
	pthread_mutex_unlock(&m->lock);
	*ret = mr;
	return 0;
}

static void adopt(struct memory *memory, region_fn *fn, void *arg)
{
	struct memfd_memory *m = of(memory);
	char name[KEEPER_NAME_MAX + 1];
	struct memfd_region *mr;
	int fd, r;

	while ((fd = keeper_take(m->keeper, NULL, name)) >= 0) {
		r = adopt_one(m, name, fd, &mr);
		if (r == 0)
			fn(arg, &mr->region);
		else
			log_print(m->options.log, LOG_ERR,
				  "descriptor '%s' of the fd store cannot be taken over: %s", name,
				  err_text(r));
	}
}

/* ---- Messages above the socket's limit ---- */

static int bytes_to_fd(struct memory *memory, const void *bytes, uint64_t len)
{
	int fd = make_memfd(of(memory), "ckpt-message", 0), ro;
	uint64_t off = 0;
	ssize_t n = 0;

	if (fd < 0)
		return fd;
	while (off < len && n >= 0) {
		n = pwrite(fd, (const char *)bytes + off, min_u64(len - off, 1u << 30), (off_t)off);
		if (n > 0)
			off += (uint64_t)n;
		else if (n < 0 && errno == EINTR)
			n = 0;
	}
	if (n < 0 || fcntl(fd, F_ADD_SEALS, seals_frozen | F_SEAL_SEAL) != 0)
		ro = -errno;
	else
		ro = reopen_read_only(fd);
	close(fd);
	return ro;
}

static int fd_to_bytes(struct memory *memory, int fd, uint64_t max, void **ret, uint64_t *ret_len)
{
	int seals = fcntl(fd, F_GET_SEALS);
	uint64_t len, off = 0;
	struct stat st;
	char *bytes;
	ssize_t n;

	(void)memory;
	if (seals < 0 || (seals & seals_frozen) != seals_frozen || fstat(fd, &st) != 0)
		return CKPT_EPROTO; /* (5): not a memfd, or not frozen */
	if (st.st_size < 0 || (uint64_t)st.st_size > max)
		return -E2BIG;
	len = (uint64_t)st.st_size;
	bytes = alloc_zero(len);
	if (!bytes)
		return -ENOMEM;
	while (off < len) {
		n = pread(fd, bytes + off, min_u64(len - off, 1u << 30), (off_t)off);
		if (n > 0) {
			off += (uint64_t)n;
		} else if (n == 0 || errno != EINTR) {
			int r = n == 0 ? CKPT_EPROTO : -errno;

			alloc_free(bytes);
			return r;
		}
	}
	*ret = bytes;
	*ret_len = len;
	return 0;
}

static void close_fd(struct memory *memory, int fd)
{
	(void)memory;
	assert(fd >= 0);
	close(fd);
}

static const struct memory_ops memfd_ops = {
	.create = create,
	.reserve = reserve,
	.fill = fill_reserved,
	.create_small = create_small,
	.keep = keep,
	.seal = seal,
	.destroy = destroy,
	.adopt = adopt,
	.export_fd = export_fd,
	.bytes_to_fd = bytes_to_fd,
	.fd_to_bytes = fd_to_bytes,
	.close_fd = close_fd,
	.available = available,
	.room = room,
};

/* ---- All of it ---- */

int memory_budget_default(const char *root, uint64_t *ret, struct err *e)
{
	struct system_memory sys;
	int r = system_memory_read(root, &sys, e);

	if (r)
		return r;
	*ret = sys.total / 2;
	return 0;
}

static void warn_of_few_places(const struct memfd_memory *m)
{
	struct memory_room room;

	keeper_room(m->keeper, &room);
	if (room.max >= MEMORY_PLACES_LEAST)
		return;
	log_print(
		m->options.log, LOG_WARNING,
		"the fd store has %llu places and one rank needs up to %u, so ranks are refused: "
		"raise ckptd's limit of open files (ulimit -Hn, LimitNOFILE= of the unit; 4096 is "
		"enough for most nodes) or FileDescriptorStoreMax=, and restart ckptd",
		(unsigned long long)room.max, MEMORY_PLACES_LEAST);
}

int memory_memfd_new(struct keeper *keeper, const struct memory_options *o, struct memory **ret,
		     struct err *e)
{
	struct memfd_memory *m = alloc_zero(sizeof(*m));
	int r;

	if (!m)
		return err_code(e, -ENOMEM, "set up the memory of snapshots");
	m->memory.ops = &memfd_ops;
	m->keeper = keeper;
	m->options = *o;
	list_init(&m->regions);
	if (o->budget == 0) {
		r = memory_budget_default(o->root, &m->options.budget, e);
		if (r) {
			alloc_free(m);
			return r;
		}
	}
	r = pthread_mutex_init(&m->lock, NULL);
	assert(r == 0);
	if (!keeper_keeps(keeper))
		log_print(o->log, LOG_WARNING, "no fd store: snapshots in memory are lost when "
			  "ckptd ends (run it under systemd or with --supervise)");
	else
		warn_of_few_places(m);
	*ret = &m->memory;
	return 0;
}

void memory_memfd_free(struct memory *memory)
{
	struct memfd_memory *m;

	if (!memory)
		return;
	m = of(memory);
	while (!list_empty(&m->regions))
		drop(m, list_first(&m->regions, struct memfd_region, link));
	pthread_mutex_destroy(&m->lock);
	alloc_free(m);
}
