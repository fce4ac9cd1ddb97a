/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - runs a fuzz target over files, so that its corpus is a test of `make check`.
 *
 *   tests/fuzz/fuzz_NAME [FILE|FOLDER]...
 *
 * Without arguments the corpus is $top_srcdir/tests/fuzz/corpus/NAME. Each file goes in as it is,
 * then damaged CKPT_FUZZ_MUTANTS times (500): cut short, a bit flipped, a byte set to an extreme,
 * a piece doubled. Each input lies in a block of exactly its size: sanitizers see one byte too
 * many. Links against nothing but the target; `--enable-fuzzers` puts libFuzzer in its place.
 *
 * Failure modes: no file at all is a failure, since nothing was then tested.
 */
#include <config.h>

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_BYTES_MAX (16u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

struct input {
	uint8_t *bytes;
	size_t len;
};

static uint64_t random_state, n_files, n_runs;

/* xorshift64: shares nothing with the code under test. */
static uint64_t random_below(uint64_t bound)
{
	assert(bound > 0);
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % bound;
}

static uint64_t number_from_env(const char *name, uint64_t fallback)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 0) : fallback;
}

static void run(const uint8_t *bytes, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);

	if (!copy)
		abort();
	memcpy(copy, bytes, len);
	(void)LLVMFuzzerTestOneInput(copy, len); /* always 0 by libFuzzer's convention */
	free(copy);
	n_runs++;
}

/* One damage in place; scratch has room for twice the input. Returns the new length. */
static size_t damage(uint8_t *scratch, size_t len)
{
	static const uint8_t extremes[] = { 0, 1, 0x7f, 0x80, 0xff };
	size_t at, piece;

	if (len == 0)
		return 0;
	at = random_below(len);
	switch (random_below(4)) {
	case 0:
		return at;
	case 1:
		scratch[at] ^= (uint8_t)(1u << random_below(8));
		return len;
	case 2:
		scratch[at] = extremes[random_below(sizeof(extremes))];
		return len;
	default:
		piece = 1 + random_below(len - at);
		memmove(scratch + at + piece, scratch + at, len - at);
		return len + piece;
	}
}

static void run_damaged(const struct input *in, uint64_t times)
{
	uint8_t *scratch = malloc(2 * in->len + 1);

	if (!scratch)
		abort();
	for (uint64_t i = 0; i < times; i++) {
		size_t len = in->len;

		memcpy(scratch, in->bytes, len);
		len = damage(scratch, len);
		if (len > 0 && len <= in->len && random_below(2)) /* two damages half of the time */
			len = damage(scratch, len);
		run(scratch, len);
	}
	free(scratch);
}

static struct input read_file(const char *path, size_t size)
{
	struct input in = { malloc(size ? size : 1), 0 };
	FILE *f = fopen(path, "rb");

	if (!in.bytes || !f || fread(in.bytes, 1, size, f) != size) {
		fprintf(stderr, "could not read '%s': %s\n", path, strerror(errno));
		exit(99);
	}
	in.len = size;
	fclose(f);
	return in;
}

static void run_path(const char *path, uint64_t mutants);

static void run_folder(const char *path, uint64_t mutants)
{
	struct dirent **names;
	int n = scandir(path, &names, NULL, alphasort);

	if (n < 0) {
		fprintf(stderr, "could not list '%s': %s\n", path, strerror(errno));
		exit(99);
	}
	for (int i = 0; i < n; i++) {
		char *child = NULL;

		if (names[i]->d_name[0] != '.') {
			if (asprintf(&child, "%s/%s", path, names[i]->d_name) < 0)
				abort();
			run_path(child, mutants);
			free(child);
		}
		free(names[i]);
	}
	free(names);
}

static void run_path(const char *path, uint64_t mutants)
{
	struct input in;
	struct stat st;

	if (stat(path, &st) < 0 || (!S_ISDIR(st.st_mode) && st.st_size > INPUT_BYTES_MAX)) {
		fprintf(stderr, "cannot use '%s': missing, or larger than an input may be\n", path);
		exit(99);
	}
	if (S_ISDIR(st.st_mode)) {
		run_folder(path, mutants);
		return;
	}
	in = read_file(path, (size_t)st.st_size);
	n_files++;
	run(in.bytes, in.len);
	run_damaged(&in, mutants);
	free(in.bytes);
}

/* The corpus of the target that this program was linked with: by its own name. */
static char *own_corpus(const char *program)
{
	const char *srcdir = getenv("top_srcdir"), *name = strstr(program, "fuzz_");
	char *path = NULL;

	for (const char *next = name; next; next = strstr(next + 1, "fuzz_"))
		name = next;
	if (!name || asprintf(&path, "%s/tests/fuzz/corpus/%s", srcdir ? srcdir : ".",
			      name + strlen("fuzz_")) < 0)
		abort();
	return path;
}

int main(int argc, char **argv)
{
	uint64_t mutants = number_from_env("CKPT_FUZZ_MUTANTS", 500);
	uint64_t seed = number_from_env("CKPT_SEED", 1);

	random_state = 0x9e3779b97f4a7c15u ^ seed;
	if (random_state == 0)
		random_state = 1;
	if (argc > 1) {
		for (int i = 1; i < argc; i++)
			run_path(argv[i], mutants);
	} else {
		char *corpus = own_corpus(argv[0]);

		run_path(corpus, mutants);
		free(corpus);
	}
	printf("seed %llu: %llu files, %llu inputs\n", (unsigned long long)seed,
	       (unsigned long long)n_files, (unsigned long long)n_runs);
	return n_files ? 0 : 1;
}
