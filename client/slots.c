/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.c - mapping and populating: faulting a page in costs eight times what the copy into it
 * does, so every page that a save touches is touched before the first one.
 *
 * Slots are not inherited by children (a fork would cost time for each of their pages, and a child
 * has no business in them) and not written into core files.
 */
#include <config.h>

#include "client/slots.h"

#include <assert.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/huge.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE 4096u /* the smallest there is: touching more often than needed does no harm */
#define STACK_BYTES (64u << 10)

static void touch(uint8_t *base, uint64_t bytes)
{
	for (uint64_t at = 0; at < bytes; at += PAGE) {
		volatile uint8_t *p = base + at;

		*p = *p;
	}
}

int slot_map(int fd, uint32_t number, uint64_t bytes, struct slot_map *ret, struct err *e)
{
	struct stat st;
	void *base;
	int r = 0;

	assert(bytes > 0);
	if (fstat(fd, &st) < 0)
		return err_code(e, -errno, "look at slot %u", number);
	if (st.st_size < 0 || (uint64_t)st.st_size < bytes)
		return err_set(e, CKPT_EPROTO, "slot %u has %lld bytes and was announced with %llu",
			       number, (long long)st.st_size, (unsigned long long)bytes);
	base = huge_map(fd, bytes, PROT_READ | PROT_WRITE);
	if (!base)
		return err_code(e, -errno, "map slot %u of %llu MiB", number,
				(unsigned long long)(bytes >> 20));
	/* Advice: where there are no huge pages for memfds this changes nothing. */
	ignore_result(madvise(base, bytes, MADV_HUGEPAGE));
	ignore_result(madvise(base, bytes, MADV_DONTDUMP));
	if (madvise(base, bytes, MADV_DONTFORK) < 0) {
		r = err_code(e, -errno, "keep slot %u from child processes", number);
		munmap(base, bytes);
		return r;
	}
	*ret = (struct slot_map){ .number = number, .base = base, .bytes = bytes,
				  .inode = st.st_ino };
	return 0;
}

bool slot_has_pages(int fd, uint64_t bytes)
{
	struct stat st;

	return fstat(fd, &st) == 0 && (uint64_t)st.st_blocks * 512 >= bytes;
}

int slot_populate(const struct slot_map *s, uint64_t from, uint64_t bytes, bool by_hand,
		  struct err *e)
{
	int r = 0;

	assert(bytes > 0 && from < s->bytes && bytes <= s->bytes - from);
	if (!by_hand && madvise(s->base + from, bytes, MADV_POPULATE_WRITE) < 0)
		r = -errno;
	if (by_hand || r == -EINVAL) {
		touch(s->base + from, bytes);
		r = 0;
	}
	return r < 0 ? err_code(e, r == -EFAULT ? CKPT_ENOSPACE : r, "populate slot %u of %llu MiB",
				s->number, (unsigned long long)(s->bytes >> 20))
		     : 0;
}

void slot_unmap(struct slot_map *s)
{
	if (s->base)
		munmap(s->base, s->bytes);
	*s = (struct slot_map){ 0 };
}

/* ---- Code ---- */

/* What a save runs through. The program itself may be a static build of us, or one in Python. */
static bool on_the_path(const char *name)
{
	static const char *const names[] = { "libckpt.", "libc.", "libpthread.", "libprotobuf-c.",
					     "libxxhash.", "ld-linux", "linux-vdso" };
	const char *base = strrchr(name, '/');

	base = base ? base + 1 : name;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strncmp(base, names[i], strlen(names[i])) == 0)
			return true;
	return false;
}

static bool contains(const struct dl_phdr_info *info, uintptr_t address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		uintptr_t lo = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;

		if (info->dlpi_phdr[i].p_type == PT_LOAD && address >= lo &&
		    address - lo < info->dlpi_phdr[i].p_memsz)
			return true;
	}
	return false;
}

static int populate_object(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	if (!on_the_path(info->dlpi_name) && !contains(info, (uintptr_t)fault_in_code))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t lo = (info->dlpi_addr + p->p_vaddr) & ~(uintptr_t)(PAGE - 1);
		uintptr_t hi = round_up(info->dlpi_addr + p->p_vaddr + p->p_memsz, PAGE);

		if (p->p_type != PT_LOAD)
			continue;
		/* Page by page where it may be written: the part that is read-only after
		 * relocation refuses. Nothing depends on the results but time. */
		for (; p->p_flags & PF_W && lo < hi; lo += PAGE)
			if (madvise((void *)lo, PAGE, MADV_POPULATE_WRITE) < 0)
				ignore_result(madvise((void *)lo, PAGE, MADV_POPULATE_READ));
		if (lo < hi)
			ignore_result(madvise((void *)lo, hi - lo, MADV_POPULATE_READ));
	}
	return 0;
}

__attribute__((noinline)) void fault_in_stack(void)
{
	volatile uint8_t stack[STACK_BYTES];

	for (size_t at = 0; at < sizeof(stack); at += PAGE)
		stack[at] = 1;
}

void fault_in_code(void)
{
	ignore_result(dl_iterate_phdr(populate_object, NULL) /* 0: the walk was not ended */);
}
