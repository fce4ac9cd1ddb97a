/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_read.c - safetensors files as a source: one file, or the files that an index names.
 *
 * 1. Headers are checked when the source is opened (safetensors.h): with them each tensor's bytes
 *    lie inside its file.
 * 2. One file is open at a time. When one is opened again it must be the one whose header was read:
 *    the same inode, of the same length and age.
 * 3. A name is in one file; with an index it is in the file that the index says, and nothing is
 *    in these files that the index does not name.
 *
 * One thread.
 */
#include <config.h>

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/exchange.h"
#include "tools/plural.h"
#include "tools/safetensors.h"
#include "tools/source_memory.h"

#define SUFFIX       ".safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"

struct in_file {
	char path[PATH_MAX];
	struct stat st;
	char *json; /* which names lie in */
	struct safetensors_header header;
	uint64_t data_at;
};

struct place {
	uint32_t file;
	uint64_t begin; /* in its data */
};

struct safetensors_source {
	struct source s;
	char what[PATH_MAX + 32];
	struct in_file *files;
	uint32_t n_files;
	struct reading_tensor *tensors;
	struct place *places;
	struct source_blob metadata;
	int fd; /* of files[open]; -1: none */
	uint32_t open;
};

/* ---- Reading a file ---- */

static int open_file(const char *path, struct stat *st, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r;

	if (fd < 0)
		return err_code(e, -errno, "open '%.250s'", path);
	if (fstat(fd, st) != 0)
		r = err_code(e, -errno, "look at '%.250s'", path);
	else if (!S_ISREG(st->st_mode))
		r = err_set(e, -EINVAL, "'%.250s' is no file", path);
	else
		return fd;
	close(fd);
	return r;
}

static int read_at(int fd, const char *path, uint64_t offset, void *to, uint64_t len, struct err *e)
{
	uint8_t *p = to;

	while (len > 0) {
		ssize_t n = pread(fd, p, min_u64(len, 1u << 30), (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_code(e, -errno, "read '%.250s'", path);
		if (n == 0)
			return err_set(e, CKPT_EPROTO, "'%.250s' ended while it was read", path);
		p += n;
		offset += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

static int read_header(struct in_file *f, int fd, struct err *e)
{
	uint64_t size = (uint64_t)f->st.st_size, len;
	uint8_t head[8];
	int r;

	if (size < sizeof(head))
		return err_set(e, CKPT_EPROTO,
			       "it has %llu byte%s, less than the length of a "
			       "header",
			       (unsigned long long)size, plural(size));
	r = read_at(fd, f->path, 0, head, sizeof(head), e);
	if (r < 0)
		return r;
	len = get_le64(head);
	if (len > SAFETENSORS_HEADER_MAX)
		return err_set(e, CKPT_EPROTO,
			       "its header would have %llu byte%s, more than %u: it "
			       "is no safetensors file",
			       (unsigned long long)len, plural(len), SAFETENSORS_HEADER_MAX);
	if (len > size - sizeof(head))
		return err_set(e, CKPT_EPROTO,
			       "its header has %llu byte%s, and only %llu follow: it "
			       "was cut",
			       (unsigned long long)len, plural(len),
			       (unsigned long long)(size - sizeof(head)));
	source_metadata(len);
	f->json = alloc_zero(len + 1);
	if (!f->json)
		return err_code(e, -ENOMEM, "read a header of %llu byte%s", (unsigned long long)len,
				plural(len));
	r = read_at(fd, f->path, sizeof(head), f->json, len, e);
	if (r < 0)
		return r;
	f->data_at = sizeof(head) + len;
	return safetensors_parse(f->json, len, size - f->data_at, &f->header, e);
}

static int add_file(struct safetensors_source *s, const char *path, struct err *e)
{
	struct in_file *f = &s->files[s->n_files];
	int fd, r;

	snprintf(f->path, sizeof(f->path), "%s", path);
	fd = open_file(path, &f->st, e);
	if (fd < 0)
		return fd;
	s->n_files++;
	r = read_header(f, fd, e);
	close(fd);
	return r < 0 ? err_wrap(e, r, "'%.200s'", path) : 0;
}

/* ---- An index ---- */

/* The JSON stays until its entries are not needed any more. */
static int read_index(const char *path, char **ret_json, struct safetensors_index *ret,
		      struct err *e)
{
	struct stat st;
	int fd = open_file(path, &st, e), r;

	if (fd < 0)
		return fd;
	if ((uint64_t)st.st_size > SAFETENSORS_HEADER_MAX) {
		close(fd);
		return err_set(e, CKPT_EPROTO, "'%.200s' has more than %u bytes", path,
			       SAFETENSORS_HEADER_MAX);
	}
	source_metadata((uint64_t)st.st_size);
	*ret_json = alloc_zero((size_t)st.st_size + 1);
	r = *ret_json ? read_at(fd, path, 0, *ret_json, (uint64_t)st.st_size, e)
		      : err_code(e, -ENOMEM, "read '%.200s'", path);
	close(fd);
	if (r < 0)
		return r;
	r = safetensors_index_parse(*ret_json, (size_t)st.st_size, ret, e);
	return r < 0 ? err_wrap(e, r, "'%.200s'", path) : 0;
}

/* (3) */
static int check_against(const struct in_file *f, const struct safetensors_index *x, struct err *e)
{
	const char *name = strrchr(f->path, '/') + 1;
	char text[NAME_TEXT_MAX];

	for (size_t i = 0; i < f->header.n; i++) {
		const struct safetensors_entry *t = &f->header.entries[i];
		struct safetensors_indexed *said =
			safetensors_index_find(x, t->name, t->name_len);

		if (!said)
			return err_set(e, CKPT_EPROTO,
				       "'%.200s' has tensor '%s', which the index does not name",
				       f->path, name_text(text, t->name, t->name_len));
		if (said->file_len != strlen(name) ||
		    memcmp(said->file, name, said->file_len) != 0)
			return err_set(e, CKPT_EPROTO,
				       "'%.150s' has tensor '%s', which the index has in "
				       "'%.*s'",
				       f->path, name_text(text, t->name, t->name_len),
				       (int)min_u64(said->file_len, 100), said->file);
		said->found = true;
	}
	return 0;
}

static int check_all_there(const struct safetensors_index *x, struct err *e)
{
	char a[NAME_TEXT_MAX], b[NAME_TEXT_MAX];

	for (size_t i = 0; i < x->n; i++) {
		const struct safetensors_indexed *t = &x->entries[i];

		if (!t->found)
			return err_set(e, CKPT_EPROTO,
				       "the index has tensor '%s' in '%.100s', "
				       "which does not have it",
				       name_text(a, t->name, t->name_len),
				       name_text(b, t->file, t->file_len));
	}
	return 0;
}

static int by_file(const void *a, const void *b)
{
	const struct safetensors_indexed *x = *(struct safetensors_indexed *const *)a;
	const struct safetensors_indexed *y = *(struct safetensors_indexed *const *)b;

	return name_compare(x->file, x->file_len, y->file, y->file_len);
}

/* One entry for each file that the index names; the caller frees them. */
static int list_files(const struct safetensors_index *x, const struct safetensors_indexed ***ret,
		      size_t *ret_n, struct err *e)
{
	const struct safetensors_indexed **files = alloc_array(x->n, sizeof(*files));
	size_t k = 0;

	if (!files)
		return err_code(e, -ENOMEM, "list %zu tensor%s", x->n, plural(x->n));
	for (size_t i = 0; i < x->n; i++)
		files[i] = &x->entries[i];
	if (x->n)
		qsort(files, x->n, sizeof(*files), by_file);
	for (size_t i = 0; i < x->n; i++)
		if (i == 0 || by_file(&files[i], &files[k - 1]) != 0)
			files[k++] = files[i];
	*ret = files;
	*ret_n = k;
	return 0;
}

static int add_indexed(struct safetensors_source *s, const char *path,
		       const struct safetensors_index *x, struct err *e)
{
	CLEANUP_FREE const struct safetensors_indexed **files = NULL;
	const char *slash = strrchr(path, '/');
	char file[PATH_MAX];
	size_t k = 0;
	int r = list_files(x, &files, &k, e);

	if (r < 0)
		return r;
	s->files = alloc_array(k ? k : 1, sizeof(*s->files));
	if (!s->files)
		return err_code(e, -ENOMEM, "open the files of '%.200s'", path);
	for (size_t i = 0; r == 0 && i < k; i++) {
		if (snprintf(file, sizeof(file), "%.*s/%.*s", slash ? (int)(slash - path) : 1,
			     slash ? path : ".", (int)files[i]->file_len,
			     files[i]->file) >= (int)sizeof(file))
			return err_code(e, -ENAMETOOLONG, "open '%.*s'",
					(int)min_u64(files[i]->file_len, 200), files[i]->file);
		r = add_file(s, file, e);
		if (r == 0)
			r = check_against(&s->files[i], x, e);
	}
	return r == 0 ? check_all_there(x, e) : r;
}

/* ---- The source ---- */

static int use_file(struct safetensors_source *s, uint32_t i, struct err *e) /* (2) */
{
	const struct in_file *f = &s->files[i];
	struct stat st;

	if (s->fd >= 0 && s->open == i)
		return 0;
	if (s->fd >= 0)
		close(s->fd);
	s->fd = open_file(f->path, &st, e);
	if (s->fd < 0)
		return s->fd;
	s->open = i;
	if (st.st_dev == f->st.st_dev && st.st_ino == f->st.st_ino && st.st_size == f->st.st_size &&
	    st.st_mtim.tv_sec == f->st.st_mtim.tv_sec &&
	    st.st_mtim.tv_nsec == f->st.st_mtim.tv_nsec)
		return 0;
	return err_set(e, -ESTALE, "'%.250s' was changed while it was read", f->path);
}

struct fetching {
	struct safetensors_source *s;
	size_t tensor;
};

static int fetch_run(void *arg, uint64_t at, uint64_t n, void *to, struct err *e)
{
	struct fetching *f = arg;
	const struct place *p = &f->s->places[f->tensor];
	const struct in_file *file = &f->s->files[p->file];
	uint32_t size = dtype_bytes(f->s->tensors[f->tensor].dtype);

	assert((at + n) * size <= f->s->tensors[f->tensor].bytes);
	return read_at(f->s->fd, file->path, file->data_at + p->begin + at * size, to, n * size, e);
}

static int fetch(struct source *source, const struct reading_want *wants, size_t n, struct err *e)
{
	struct safetensors_source *s = (struct safetensors_source *)source;
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		struct fetching f = {.s = s, .tensor = wants[i].tensor};

		assert(wants[i].tensor < s->s.n);
		if (wants[i].start == wants[i].stop)
			continue;
		r = use_file(s, s->places[wants[i].tensor].file, e);
		if (r == 0)
			r = want_each_run(&wants[i], &s->tensors[wants[i].tensor], fetch_run, &f,
					  e);
	}
	return r;
}

static void close_source(struct source *source)
{
	struct safetensors_source *s = (struct safetensors_source *)source;

	if (s->fd >= 0)
		close(s->fd);
	for (uint32_t i = 0; i < s->n_files; i++) {
		safetensors_header_fini(&s->files[i].header);
		alloc_free(s->files[i].json);
	}
	alloc_free(s->files);
	alloc_free(s->tensors);
	alloc_free(s->places);
	alloc_free(s);
}

/* Of the first file that has some, as JSON: nothing of it means anything here. */
static void take_metadata(struct safetensors_source *s)
{
	for (uint32_t i = 0; i < s->n_files && s->s.n_blobs == 0; i++) {
		const struct safetensors_header *h = &s->files[i].header;

		if (!h->metadata)
			continue;
		s->metadata = (struct source_blob){
			.name = SAFETENSORS_BLOB, .bytes = h->metadata, .len = h->metadata_len};
		s->s.blobs = &s->metadata;
		s->s.n_blobs = 1;
	}
}

/* In the order of the bytes: file by file. Of a header only the names are needed behind it. */
static int collect(struct safetensors_source *s, struct err *e)
{
	size_t n = 0, k = 0;

	for (uint32_t i = 0; i < s->n_files; i++)
		n += s->files[i].header.n;
	s->tensors = alloc_array(n, sizeof(*s->tensors));
	s->places = alloc_array(n, sizeof(*s->places));
	if (!s->tensors || !s->places)
		return err_code(e, -ENOMEM, "list %zu tensor%s", n, plural(n));
	for (uint32_t i = 0; i < s->n_files; i++) {
		struct safetensors_header *h = &s->files[i].header;

		for (size_t m = 0; m < h->n; m++, k++) {
			const struct safetensors_entry *t = &h->entries[m];

			s->tensors[k] = (struct reading_tensor){.name = t->name,
								.name_len = t->name_len,
								.dtype = t->dtype,
								.global = t->shape,
								.bytes = t->end - t->begin};
			s->places[k] = (struct place){.file = i, .begin = t->begin};
		}
		alloc_free(h->entries);
		h->entries = NULL;
		h->n = 0;
	}
	assert(k == n);
	s->s.tensors = s->tensors;
	s->s.n = n;
	take_metadata(s);
	return 0;
}

/* ---- Which files ---- */

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && strcmp(text + n - m, end) == 0;
}

/* In a folder: its index, else its only safetensors file. Returns how many were found. */
static int look_into(const char *folder, char ret[PATH_MAX])
{
	char path[PATH_MAX] = "";
	bool has_index = false;
	int n = 0;
	struct dirent *entry;
	DIR *d = opendir(folder);

	while (d && (entry = readdir(d))) {
		bool is_index = ends_with(entry->d_name, INDEX_SUFFIX);

		if (!is_index && (has_index || !ends_with(entry->d_name, SUFFIX)))
			continue;
		n = is_index && !has_index ? 1 : n + 1;
		has_index |= is_index;
		snprintf(path, sizeof(path), "%.3800s/%.250s", folder, entry->d_name);
	}
	if (d)
		closedir(d);
	memcpy(ret, path, sizeof(path));
	return n;
}

static int find_file(const char *given, char ret[PATH_MAX], struct err *e)
{
	struct stat st;
	int n;

	if (stat(given, &st) != 0)
		return err_code(e, -errno, "open '%.250s'", given);
	if (!S_ISDIR(st.st_mode)) {
		snprintf(ret, PATH_MAX, "%s", given);
		return 0;
	}
	n = look_into(given, ret);
	if (n == 1)
		return 0;
	if (n == 0)
		return err_set(e, -EINVAL, "folder '%.200s' has no safetensors file", given);
	return err_set(e, -EINVAL, "folder '%.200s' has %d files that could be meant: name one",
		       given, n);
}

bool safetensors_detect(const char *path)
{
	char file[PATH_MAX], head[9] = "";
	struct stat st;
	uint64_t len;
	bool yes;
	int fd;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return look_into(path, file) > 0;
	if (ends_with(path, SUFFIX) || ends_with(path, INDEX_SUFFIX))
		return true;
	fd = open_file(path, &st, NULL);
	if (fd < 0)
		return false;
	yes = read_at(fd, path, 0, head, sizeof(head), NULL) == 0;
	len = get_le64(head);
	close(fd);
	return yes && len <= SAFETENSORS_HEADER_MAX && len <= (uint64_t)st.st_size - 8 &&
	       (head[8] == '{' || head[8] == ' ');
}

static int open_path(struct safetensors_source *s, const char *given, struct err *e)
{
	struct safetensors_index index = {0};
	CLEANUP_FREE char *json = NULL;
	char path[PATH_MAX];
	int r = find_file(given, path, e);

	if (r < 0)
		return r;
	snprintf(s->what, sizeof(s->what), "'%s'", path);
	s->s.what = s->what;
	if (!ends_with(path, ".json")) {
		s->files = alloc_array(1, sizeof(*s->files));
		return s->files ? add_file(s, path, e)
				: err_code(e, -ENOMEM, "open '%.200s'", path);
	}
	r = read_index(path, &json, &index, e);
	if (r == 0)
		r = add_indexed(s, path, &index, e);
	safetensors_index_fini(&index);
	return r;
}

int safetensors_open(const char *path, struct source **ret, struct err *e)
{
	static const struct source_ops ops = {.fetch = fetch, .close = close_source};
	struct safetensors_source *s = alloc_zero(sizeof(*s));
	int r;

	if (!s)
		return err_code(e, -ENOMEM, "open '%.200s'", path);
	s->s.ops = &ops;
	s->fd = -1;
	r = open_path(s, path, e);
	if (r == 0)
		r = collect(s, e);
	if (r < 0) {
		close_source(&s->s);
		return r;
	}
	*ret = &s->s;
	return 0;
}
