/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_file.c - small files of /proc and /sys. Stateless; on the thread of a source.
 */
#include <config.h>

#include "ckptd/collect_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/collect_source.h"

static int make_path(char path[COLLECT_PATH_MAX], const char *format, va_list args)
{
	int n = vsnprintf(path, COLLECT_PATH_MAX, format, args);

	return n < 0 || n >= COLLECT_PATH_MAX ? -ENAMETOOLONG : 0;
}

static int read_all(char *buf, size_t size, const char *path)
{
	size_t len = 0;
	ssize_t n = 0;
	/* O_NONBLOCK: whatever lies there, opening it does not wait for a writer. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int r;

	if (fd < 0)
		return -errno;
	while (len < size - 1 && (n = read(fd, buf + len, size - 1 - len)) > 0)
		len += (size_t)n;
	r = n < 0 ? -errno : (int)len;
	close(fd);
	if (r > 0 && buf[r - 1] == '\n')
		r--;
	if (r >= 0)
		buf[r] = '\0';
	return r;
}

int collect_text(char *buf, size_t size, const char *format, ...)
{
	char path[COLLECT_PATH_MAX];
	va_list args;
	int r;

	assert(size > 1);
	va_start(args, format);
	r = make_path(path, format, args);
	va_end(args);
	return r ? r : read_all(buf, size, path);
}

bool collect_number(uint64_t *ret, const char *format, ...)
{
	char path[COLLECT_PATH_MAX], text[64], *end;
	unsigned long long v;
	va_list args;
	int r;

	va_start(args, format);
	r = make_path(path, format, args);
	va_end(args);
	if (r == 0)
		r = read_all(text, sizeof(text), path);
	if (r <= 0 || text[0] < '0' || text[0] > '9' || strlen(text) != (size_t)r)
		return false;
	errno = 0;
	v = strtoull(text, &end, text[0] == '0' && text[1] == 'x' ? 16 : 10);
	if (errno || *end)
		return false;
	*ret = v;
	return true;
}

bool collect_exists(const char *format, ...)
{
	char path[COLLECT_PATH_MAX];
	struct stat st;
	va_list args;
	int r;

	va_start(args, format);
	r = make_path(path, format, args);
	va_end(args);
	return r == 0 && lstat(path, &st) == 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int collect_each(collect_entry_fn *each, void *arg, const char *format, ...)
{
	char path[COLLECT_PATH_MAX], *names[COLLECT_DEVICES_MAX];
	struct dirent *d;
	va_list args;
	int r, n = 0;
	DIR *dir;

	va_start(args, format);
	r = make_path(path, format, args);
	va_end(args);
	dir = r ? NULL : opendir(path);
	if (!dir)
		return r ? r : -errno;
	while (n < COLLECT_DEVICES_MAX && (d = readdir(dir))) {
		if (d->d_name[0] == '.')
			continue;
		names[n] = alloc_str(d->d_name);
		if (names[n])
			n++;
	}
	closedir(dir);
	qsort(names, (size_t)n, sizeof(names[0]), by_name);
	for (int i = 0; i < n; i++) {
		each(arg, names[i]);
		alloc_free(names[i]);
	}
	return n;
}

uint64_t collect_count(struct collect_counter *c, uint64_t raw)
{
	uint64_t more = 0;

	if (c->known)
		more = raw >= c->raw ? raw - c->raw : raw; /* it began anew */
	else
		c->sum = raw;
	c->sum += more;
	c->raw = raw;
	c->known = true;
	return more;
}

void collect_sum_begin(struct collect_sum *s)
{
	s->known = s->begun;
	s->begun = true;
	s->more = 0;
}

/* FNV-1a. */
static uint64_t hash_of(const char *name)
{
	uint64_t h = 14695981039346656037u;

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 1099511628211u;
	return h;
}

void collect_sum_file(struct collect_sum *s, const char *name, uint64_t raw)
{
	uint64_t hash = hash_of(name), more;
	unsigned i = 0;

	assert(s->begun && s->n <= COLLECT_SUM_FILES);
	while (i < s->n && s->files[i].name != hash)
		i++;
	if (i == COLLECT_SUM_FILES)
		return;
	if (i == s->n) {
		s->files[s->n++].name = hash;
		s->sum += s->known ? 0 : raw;
	} else {
		more = raw >= s->files[i].raw ? raw - s->files[i].raw : raw; /* it began anew */
		s->sum += more;
		s->more += more;
	}
	s->files[i].raw = raw;
}

bool collect_sum_read(struct collect_sum *s, const char *folder, const char *name, uint64_t scale)
{
	char path[COLLECT_PATH_MAX];
	uint64_t v;

	if (!collect_number(&v, "%s/%s", folder, name) ||
	    snprintf(path, sizeof(path), "%s/%s", folder, name) >= (int)sizeof(path))
		return false;
	collect_sum_file(s, path, v * scale);
	return true;
}
