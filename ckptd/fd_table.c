/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_table.c - named descriptors of the supervisor. One thread.
 *
 * The number is bounded below the limit of open files: were the supervisor at its limit, the
 * kernel would drop descriptors of a message silently, the pipe of a barrier among them.
 */
#include <config.h>

#include "ckptd/fd_table.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

enum { FIRST_FD = 3, SPARE_FDS = 64 };

void fd_table_init(struct fd_table *t)
{
	struct rlimit files;

	*t = (struct fd_table){ .max = 1024 - SPARE_FDS };
	if (getrlimit(RLIMIT_NOFILE, &files) == 0)
		t->max = files.rlim_cur > 2 * SPARE_FDS ? files.rlim_cur / 2 - SPARE_FDS / 2 : 0;
	/* Half of it: fd_table_install() needs each of them twice for a moment. */
}

void fd_table_fini(struct fd_table *t)
{
	for (size_t i = 0; i < t->n; i++)
		close(t->entries[i].fd);
	alloc_free(t->entries);
	*t = (struct fd_table){ 0 };
}

static bool has_file(const struct fd_table *t, const struct stat *st)
{
	struct stat other;

	for (size_t i = 0; i < t->n; i++) {
		if (fstat(t->entries[i].fd, &other) == 0 && other.st_dev == st->st_dev &&
		    other.st_ino == st->st_ino)
			return true;
	}
	return false;
}

static size_t names_len(const struct fd_table *t)
{
	size_t len = 0;

	for (size_t i = 0; i < t->n; i++)
		len += strlen(t->entries[i].name) + 1;
	return len;
}

static int grow(struct fd_table *t)
{
	size_t cap = t->cap ? 2 * t->cap : 16;
	void *p;

	if (t->n < t->cap)
		return 0;
	p = alloc_resize(t->entries, cap * sizeof(*t->entries));
	if (!p)
		return -ENOMEM;
	t->entries = p;
	t->cap = cap;
	return 0;
}

int fd_table_add(struct fd_table *t, const char *name, int fd)
{
	size_t len = strlen(name);
	struct stat st;
	int r = 0;

	assert(fd >= 0);
	if (fstat(fd, &st) != 0)
		r = -errno;
	else if (has_file(t, &st)) {
		close(fd);
		return 0;
	} else if (len == 0 || len > KEEPER_NAME_MAX || strchr(name, ':'))
		r = -EINVAL; /* ':' stands between names in LISTEN_FDNAMES */
	else if (t->n >= t->max || names_len(t) + len + 1 > KEEPER_NAMES_MAX)
		r = -EMFILE;
	else
		r = grow(t);
	if (r) {
		close(fd);
		return r;
	}
	t->entries[t->n].fd = fd;
	memcpy(t->entries[t->n].name, name, len + 1);
	t->n++;
	return 0;
}

void fd_table_remove(struct fd_table *t, const char *name)
{
	size_t kept = 0;

	for (size_t i = 0; i < t->n; i++) {
		if (strcmp(t->entries[i].name, name) == 0)
			close(t->entries[i].fd);
		else
			t->entries[kept++] = t->entries[i];
	}
	t->n = kept;
}

int fd_table_environment(const struct fd_table *t, char **ret_fds, char **ret_names)
{
	size_t size = names_len(t) + sizeof("LISTEN_FDNAMES="), len;
	char *names = alloc_zero(size), *fds = alloc_zero(32);

	if (!names || !fds) {
		alloc_free(names);
		alloc_free(fds);
		return -ENOMEM;
	}
	snprintf(fds, 32, "LISTEN_FDS=%zu", t->n);
	len = (size_t)snprintf(names, size, "LISTEN_FDNAMES=");
	for (size_t i = 0; i < t->n; i++)
		len += (size_t)snprintf(names + len, size - len, "%s%s", i ? ":" : "",
					t->entries[i].name);
	assert(len < size);
	*ret_fds = fds;
	*ret_names = names;
	return 0;
}

int fd_table_end(const struct fd_table *t)
{
	return FIRST_FD + (int)t->n;
}

int fd_table_install(struct fd_table *t)
{
	int above = fd_table_end(t);

	/* First out of the way of where they go, then there; dup2() clears close-on-exec. */
	for (size_t i = 0; i < t->n; i++) {
		t->entries[i].fd = fcntl(t->entries[i].fd, F_DUPFD_CLOEXEC, above);
		if (t->entries[i].fd < 0)
			return -errno;
	}
	for (size_t i = 0; i < t->n; i++) {
		if (dup2(t->entries[i].fd, FIRST_FD + (int)i) < 0)
			return -errno;
	}
	return 0;
}
