/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "ckptd/test_collect_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECOND 1000000000ull
enum { FILES_MAX = 512, NAMES_MAX = 64 };

static char names[NAMES_MAX][SAMPLE_NAME_MAX]; /* of the source's devices, by their numbers */

struct tree *tree_new(const struct collect_source *source)
{
	struct tree *t = calloc(1, sizeof(*t));

	t->dir = test_dir_make(NULL);
	t->source = source;
	t->now_ns = 100 * SECOND;
	snprintf(t->config.root, sizeof(t->config.root), "%s", t->dir);
	snprintf(t->config.data, sizeof(t->config.data), "/nonexistent");
	assert_int_equal(collect_out_init(&t->out), 0);
	memset(names, 0, sizeof(names));
	return t;
}

void tree_free(struct tree *t)
{
	if (t->state)
		t->source->close(t->state);
	collect_out_fini(&t->out);
	test_dir_remove(t->dir);
	free(t);
}

static void path_of(struct tree *t, const char *path, char full[512])
{
	int n = snprintf(full, 512, "%s/%s", t->dir, path);

	assert_true(n < 512);
	for (char *p = full + strlen(t->dir) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		if (mkdir(full, 0700) != 0)
			assert_int_equal(errno, EEXIST);
		*p = '/';
	}
}

void tree_put_bytes(struct tree *t, const char *path, const void *bytes, size_t n)
{
	char full[512];
	int fd;

	path_of(t, path, full);
	fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, n), (ssize_t)n);
	close(fd);
}

void tree_put(struct tree *t, const char *path, const char *text)
{
	tree_put_bytes(t, path, text, strlen(text));
}

void tree_folder(struct tree *t, const char *path)
{
	char full[512];

	path_of(t, path, full);
	assert_int_equal(mkdir(full, 0700), 0);
}

void tree_link(struct tree *t, const char *path, const char *to)
{
	char full[512];

	path_of(t, path, full);
	assert_int_equal(symlink(to, full), 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void tree_remove(struct tree *t, const char *path)
{
	char full[512];

	path_of(t, path, full);
	assert_int_equal(nftw(full, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

int tree_read(struct tree *t, unsigned seconds)
{
	int r = 0;

	collect_out_reset(&t->out);
	err_clear(&t->e);
	t->now_ns += seconds * SECOND;
	if (!t->state)
		r = t->source->open(&t->config, &t->out, &t->state, &t->e);
	if (r == 0)
		r = t->source->read(t->state, t->now_ns, &t->out, &t->e);
	for (size_t i = 0; i < t->out.n; i++) {
		const struct sample *s = &t->out.samples[i];

		if (s->kind != SAMPLE_NAME)
			continue;
		assert_true(s->device < COLLECT_DEVICES_MAX);
		if (s->device < NAMES_MAX)
			memcpy(names[s->device], s->name.text, sizeof(names[0]));
	}
	return r;
}

const struct sample *tree_sample(const struct tree *t, enum sample_kind k)
{
	const struct sample *found = NULL;

	for (size_t i = 0; i < t->out.n; i++) {
		if (t->out.samples[i].kind != k)
			continue;
		assert_null(found);
		found = &t->out.samples[i];
	}
	return found;
}

const struct sample *tree_of(struct tree *t, enum sample_kind k, const char *name)
{
	for (size_t i = 0; i < t->out.n; i++) {
		const struct sample *s = &t->out.samples[i];

		if (s->kind == k && s->device < NAMES_MAX && strcmp(names[s->device], name) == 0)
			return s;
	}
	return NULL;
}

/* ---- Ill treatment ---- */

static char files[FILES_MAX][300];
static size_t n_files;
static size_t prefix;

static int note_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)ftw;
	if (type == FTW_F && n_files < FILES_MAX)
		snprintf(files[n_files++], sizeof(files[0]), "%s", path + prefix);
	return 0;
}

static void read_ill(struct tree *t, const char *file, const char *how)
{
	int r = tree_read(t, 10);

	if (r && !t->e.text[0])
		print_message("%s as %s\n", file, how);
	assert_true(r == 0 || t->e.text[0]); /* an error has a sentence */
}

static void ill_treat_one(struct tree *t, const char *file)
{
	static const char *const contents[] = {"",
					       "\n",
					       "-1",
					       "99999999999999999999999999",
					       "0x",
					       "18446744073709551615",
					       "% d %s %n \x1b[2J",
					       "4: ACTIVE\0x",
					       "some total=\n",
					       "cpu 1 2 3\n",
					       "1 2 3 4 5 6 7 8",
					       "Tcp: a RetransSegs",
					       "Tcp: RetransSegs\nTcp: ",
					       "/../../../etc",
					       "."};
	char full[512], *huge = malloc(300000);

	path_of(t, file, full);
	for (size_t i = 0; i < sizeof(contents) / sizeof(contents[0]); i++) {
		tree_put(t, file, contents[i]);
		read_ill(t, file, contents[i]);
	}
	memset(huge, '7', 300000);
	tree_put_bytes(t, file, huge, 300000);
	read_ill(t, file, "huge");
	memset(huge, 0, 300000);
	tree_put_bytes(t, file, huge, 4096);
	read_ill(t, file, "zeros");
	free(huge);
	assert_int_equal(unlink(full), 0);
	read_ill(t, file, "missing");
	assert_int_equal(mkdir(full, 0700), 0);
	read_ill(t, file, "a folder");
	assert_int_equal(rmdir(full), 0);
	assert_int_equal(mkfifo(full, 0600), 0);
	read_ill(t, file, "a FIFO");
	assert_int_equal(unlink(full), 0);
}

void tree_ill_treat(struct tree *t)
{
	char kept[4096];
	ssize_t n;
	int fd;

	n_files = 0;
	prefix = strlen(t->dir) + 1;
	assert_int_equal(nftw(t->dir, note_file, 16, FTW_PHYS), 0);
	assert_true(n_files > 0);
	for (size_t i = 0; i < n_files; i++) {
		char full[512];

		path_of(t, files[i], full);
		fd = open(full, O_RDONLY | O_CLOEXEC);
		assert_true(fd >= 0);
		n = read(fd, kept, sizeof(kept));
		assert_true(n >= 0);
		close(fd);
		ill_treat_one(t, files[i]);
		tree_put_bytes(t, files[i], kept, (size_t)n);
	}
	assert_int_equal(tree_read(t, 10), 0); /* and all is well again */
}
