/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_disk.h - a disk in memory for tests of this folder: it keeps what is synced apart from what
 * is not, fails any operation, loses power, and aborts when a rule of base/disk.h is broken.
 */
#ifndef COORD_TEST_DISK_H
#define COORD_TEST_DISK_H

#include "base/disk.h"

#define TEST_DISK_NAMES 1024

enum test_disk_fault {
	FAIL_BEFORE, /* nothing happens but an error; half of a write */
	FAIL_AFTER,  /* it happens, and the answer is an error */
};

struct test_inode;

struct test_name {
	char path[DISK_PATH_MAX + 1];
	struct test_inode *now, *durable; /* NULL: not there */
};

struct test_disk {
	struct disk disk;
	struct test_name names[TEST_DISK_NAMES];
	struct test_inode *inodes;
	unsigned open_files;
	uint64_t seed;          /* of what a loss of power keeps */
	unsigned op, fail_at;   /* operations so far; which one fails, from 1; 0: none */
	bool persistent, fired; /* from there on all fail; one did */
	enum test_disk_fault fault;
	/* Runs inside the operation number hook_at, before it. */
	unsigned hook_at;
	void (*hook)(void *arg);
	void *hook_arg;
};

void test_disk_init(struct test_disk *d);
void test_disk_fini(struct test_disk *d); /* aborts when files are still open */
void test_disk_fail(struct test_disk *d, unsigned at, bool persistent, enum test_disk_fault fault);
/*
 * Everything that is not synced is lost or kept, name by name, by chance (keep: 0 nothing of it,
 * 1 all, 2 by seed). Open files are gone.
 */
void test_disk_power_loss(struct test_disk *d, int keep);
/* Puts a file there, durable; for damage. NULL removes. */
void test_disk_put(struct test_disk *d, const char *path, const void *bytes, size_t len);
/* Names in a folder that begin with prefix. */
unsigned test_disk_count(struct test_disk *d, const char *dir, const char *prefix);

#endif
