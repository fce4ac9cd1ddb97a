/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_file.h - small files of /proc and /sys, whatever they hold.
 *
 * Paths are made from a format. What cannot be read, is no number or is too long is an error of
 * that one file; nothing is taken for 0.
 */
#ifndef CKPTD_COLLECT_FILE_H
#define CKPTD_COLLECT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The text without the last newline, at most size - 1 bytes of it; its length, or -errno. */
__attribute__((format(printf, 3, 4))) MUST_CHECK int collect_text(char *buf, size_t size,
								  const char *path, ...);
/* A number, decimal or 0x..., and nothing behind it but a newline. */
__attribute__((format(printf, 2, 3))) MUST_CHECK bool collect_number(uint64_t *ret,
								     const char *path, ...);
__attribute__((format(printf, 1, 2))) MUST_CHECK bool collect_exists(const char *path, ...);

typedef void collect_entry_fn(void *arg, const char *name);
/* Each name of a folder in the order of names, at most COLLECT_DEVICES_MAX, none with a leading
 * dot; how many, or -errno. */
__attribute__((format(printf, 3, 4))) MUST_CHECK int collect_each(collect_entry_fn *each, void *arg,
								  const char *path, ...);

/* Something that only counts up, and begins anew when a driver is loaded again. */
struct collect_counter {
	uint64_t raw, sum; /* what it said last; without its beginnings anew */
	bool known;
};
/* How much more it is than the last time; 0 the first time. */
uint64_t collect_count(struct collect_counter *c, uint64_t raw);

/*
 * The sum of what several files count. Each has its own beginnings anew; one that vanishes takes
 * nothing away, and what one says first, when others were read before, is not new.
 */
#define COLLECT_SUM_FILES 64 /* those beyond do not count */
struct collect_sum {
	uint64_t sum, more; /* more: of it since collect_sum_begin() */
	bool begun, known;  /* known: it was begun twice */
	unsigned n;
	struct {
		uint64_t name, raw; /* name: a hash of it */
	} files[COLLECT_SUM_FILES];
};
/* Before the files are read once more. */
void collect_sum_begin(struct collect_sum *s);
void collect_sum_file(struct collect_sum *s, const char *name, uint64_t raw);
/* Of the file folder/name, by this name: its number times scale. false: it has none. */
bool collect_sum_read(struct collect_sum *s, const char *folder, const char *name, uint64_t scale);

#endif
