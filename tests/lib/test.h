/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h - what unit tests share: cmocka's includes in the order it wants, a temporary folder
 * that goes away, seeds that are printed, and an oracle-free filler of memory.
 */
#ifndef TESTS_LIB_TEST_H
#define TESTS_LIB_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A new folder under $TMPDIR (or dir if not NULL); free with test_dir_remove(), which removes it
 * and everything in it. Aborts when it cannot be made. */
char *test_dir_make(const char *dir);
void test_dir_remove(char *path);
/* DIR/NAME, valid until it was called 63 times more; for one thread. */
char *test_path(const char *dir, const char *name);

/* CKPT_SEED of the environment, or `fallback`; prints it, so that a failure can be replayed. */
uint64_t test_seed(uint64_t fallback);
/* An unsigned number of the environment, or `fallback`: the caps that --full lifts. */
uint64_t test_cap(const char *env, uint64_t fallback);

/* Fails, with both, where the words are not in the text. */
void test_says(const char *text, const char *words);

/* Bytes that depend on seed and on every position, by xorshift: shares nothing with base/rng. */
void test_fill(void *buf, size_t len, uint64_t seed);

#endif
