/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/test.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *test_dir_make(const char *dir)
{
	const char *tmp = dir ? dir : getenv("TMPDIR");
	char *path = NULL;

	if (asprintf(&path, "%s/ckpt-test.XXXXXX", tmp ? tmp : "/tmp") < 0 || !mkdtemp(path)) {
		perror("mkdtemp");
		abort();
	}
	return path;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void test_dir_remove(char *path)
{
	if (path && nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
		fprintf(stderr, "could not remove '%s'\n", path);
	free(path);
}

char *test_path(const char *dir, const char *name)
{
	static char buf[64][600];
	static unsigned next;
	char *p = buf[next++ % 64];

	assert_in_range(snprintf(p, sizeof(buf[0]), "%s/%s", dir, name), 1, sizeof(buf[0]) - 1);
	return p;
}

uint64_t test_cap(const char *env, uint64_t fallback)
{
	const char *text = getenv(env);

	return text ? strtoull(text, NULL, 0) : fallback;
}

uint64_t test_seed(uint64_t fallback)
{
	uint64_t seed = test_cap("CKPT_SEED", fallback);

	printf("seed %llu (replay with CKPT_SEED=%llu)\n", (unsigned long long)seed,
	       (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

void test_says(const char *text, const char *words)
{
	if (!strstr(text, words))
		fail_msg("'%s' does not say '%s'", text, words);
}

void test_fill(void *buf, size_t len, uint64_t seed)
{
	uint64_t x = 88172645463325252u ^ (seed * 0x9e3779b97f4a7c15u);
	unsigned char *p = buf;

	if (x == 0)
		x = 1;
	while (len) {
		size_t n = len < 8 ? len : 8;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(p, &x, n);
		p += n;
		len -= n;
	}
}
