/* SPDX-License-Identifier: Apache-2.0 */
/*
 * system_memory.c - how much memory this process may have.
 *
 * A memfd is charged to the cgroup of whoever touches its pages first, which is ckptd, and a charge
 * over the limit does not fail: it gets somebody killed. So before memory is taken it is compared
 * with what the machine has available and with the room in each cgroup from ours up to the root
 * (page cache counts as room: the kernel drops it first).
 */
#include <config.h>

#include "ckptd/system_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"

#define CGROUP_PATH_MAX 1024

/* One version of the memory controller: where it is and what its files are called. */
struct controller {
	const char *mount, *limit, *usage, *active_file, *inactive_file;
};
static const struct controller v1 = {
	.mount = "/sys/fs/cgroup/memory",
	.limit = "memory.limit_in_bytes",
	.usage = "memory.usage_in_bytes",
	.active_file = "total_active_file ",
	.inactive_file = "total_inactive_file ",
};
static const struct controller v2 = {
	.mount = "/sys/fs/cgroup",
	.limit = "memory.max",
	.usage = "memory.current",
	.active_file = "active_file ",
	.inactive_file = "inactive_file ",
};

static int read_text(char *buf, size_t size, const char *path)
{
	size_t len = 0;
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	while (len < size - 1 && (n = read(fd, buf + len, size - 1 - len)) > 0)
		len += (size_t)n;
	close(fd);
	buf[len] = '\0';
	return 0;
}

/* The number after key at the start of a line, or 0. */
static uint64_t line_number(const char *text, const char *key)
{
	size_t len = strlen(key);

	for (const char *p = text; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (strncmp(p, key, len) == 0)
			return strtoull(p + len, NULL, 10);
	}
	return 0;
}

/* The file's number; UINT64_MAX when it is missing or says "max". */
static uint64_t cgroup_number(const char *root, const struct controller *c, const char *path,
			      const char *file)
{
	char name[CGROUP_PATH_MAX + 256], text[64], *end;
	unsigned long long v;

	snprintf(name, sizeof(name), "%s%s%s/%s", root, c->mount, path, file);
	if (read_text(text, sizeof(text), name) != 0)
		return UINT64_MAX;
	v = strtoull(text, &end, 10);
	return end == text ? UINT64_MAX : v;
}

static uint64_t cgroup_cache(const char *root, const struct controller *c, const char *path)
{
	char name[CGROUP_PATH_MAX + 256], text[8192];

	snprintf(name, sizeof(name), "%s%s%s/memory.stat", root, c->mount, path);
	if (read_text(text, sizeof(text), name) != 0)
		return 0;
	return line_number(text, c->active_file) + line_number(text, c->inactive_file);
}

/* Lowers m to what the cgroup at path and each one above it leaves. */
static void apply_cgroup(const char *root, const struct controller *c, char *path,
			 struct system_memory *m)
{
	uint64_t limit, usage, cache;

	for (;;) {
		limit = cgroup_number(root, c, path, c->limit);
		usage = cgroup_number(root, c, path, c->usage);
		if (limit < m->total)
			m->total = limit;
		if (limit != UINT64_MAX && usage != UINT64_MAX) {
			cache = cgroup_cache(root, c, path);
			usage -= min_u64(usage, cache);
			m->available = min_u64(m->available, limit - min_u64(limit, usage));
		}
		if (path[0] == '\0')
			return;
		*strrchr(path, '/') = '\0';
	}
}

/* Our path in a line "id:controllers:/path" of /proc/self/cgroup; false: another controller. */
static bool cgroup_path(char *line, const struct controller **ret_c, char **ret_path)
{
	char *id = strsep(&line, ":"), *controllers = line ? strsep(&line, ":") : NULL, *one;

	if (!id || !controllers || !line || line[0] != '/')
		return false;
	*ret_path = line[1] ? line : line + 1;
	if (strcmp(id, "0") == 0 && controllers[0] == '\0') {
		*ret_c = &v2;
		return true;
	}
	while ((one = strsep(&controllers, ","))) {
		if (strcmp(one, "memory") == 0) {
			*ret_c = &v1;
			return true;
		}
	}
	return false;
}

int system_memory_read(const char *root, struct system_memory *ret, struct err *e)
{
	char name[512], text[8192], *at = text, *line, *path;
	const struct controller *c;
	struct system_memory m;
	int r;

	snprintf(name, sizeof(name), "%s/proc/meminfo", root);
	r = read_text(text, sizeof(text), name);
	if (r)
		return err_code(e, r, "read '%s'", name);
	m.total = line_number(text, "MemTotal:") << 10;
	m.available = line_number(text, "MemAvailable:") << 10;
	if (m.total == 0)
		return err_set(e, -EPROTO, "read '%s': no MemTotal", name);
	snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
	if (read_text(text, sizeof(text), name) == 0) {
		while ((line = strsep(&at, "\n"))) {
			if (strlen(line) < CGROUP_PATH_MAX && cgroup_path(line, &c, &path))
				apply_cgroup(root, c, path, &m);
		}
	}
	*ret = m;
	return 0;
}

uint64_t huge_pages_mapped(const void *base)
{
	unsigned long long from, to, kib, sum = 0;
	FILE *f = fopen("/proc/self/smaps", "re");
	bool inside = false;
	char line[512];

	if (!f)
		return 0;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%llx-%llx", &from, &to) == 2) {
			if (inside)
				break;
			inside = from == (uintptr_t)base;
		} else if (inside && (sscanf(line, "ShmemPmdMapped: %llu", &kib) == 1 ||
				      sscanf(line, "FilePmdMapped: %llu", &kib) == 1)) {
			sum += kib << 10;
		}
	}
	fclose(f);
	return sum;
}
