/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newfile.c - see newfile.h. One thread.
 *
 * Failure modes: whatever fails, PATH is as it was before newfile_publish(); a kill leaves the
 * temporary file, whose name says what it is and which no reader takes for a whole one.
 */
#include <config.h>

#include "tools/newfile.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/plural.h"

static int there_already(const char *path, struct err *e)
{
	return err_set(e, -EEXIST,
		       "'%.250s' is there already: name another with --output, or "
		       "replace it with --yes",
		       path);
}

int newfile_cannot_make(const char *path, int code, struct err *e)
{
	const char *first = code == -ENOENT    ? "make its folder first, or "
			    : code == -ENOTDIR ? "what should be its folder is a file: "
			    : code == -ENOSPC  ? "make room, or "
					       : "";

	return err_set(e, code, "cannot make '%.250s': %s: %sname another place with --output",
		       path, err_text(code), first);
}

int newfile_begin(struct newfile *f, const char *path, bool replace, uint64_t size, struct err *e)
{
	struct stat st;
	int r;

	*f = (struct newfile)NEWFILE_NONE;
	f->replace = replace;
	if (snprintf(f->path, sizeof(f->path), "%s", path) >= (int)sizeof(f->path) - 32)
		return err_code(e, -ENAMETOOLONG, "make '%.200s'", path);
	snprintf(f->temporary, sizeof(f->temporary), "%.4000s.%d.tmp", path, (int)getpid());
	if (stat(path, &st) == 0 && (!replace || S_ISDIR(st.st_mode))) {
		f->temporary[0] = '\0';
		return S_ISDIR(st.st_mode) ? newfile_cannot_make(path, -EISDIR, e)
					   : there_already(path, e);
	}
	f->fd = open(f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (f->fd < 0) {
		r = -errno;
		f->temporary[0] = '\0';
		return newfile_cannot_make(path, r, e);
	}
	r = size && fallocate(f->fd, 0, 0, (off_t)size) != 0 ? -errno : 0;
	if (r == -ENOSPC || r == -EDQUOT || r == -EFBIG) {
		newfile_drop(f);
		return err_set(e, r,
			       "cannot take %llu byte%s for '%.200s': %s: make room, or name "
			       "another place with --output",
			       (unsigned long long)size, plural(size), path, err_text(r));
	}
	return 0; /* where the file system cannot, writing will say whether there is room */
}

/* Where the file system did not promise room beforehand. */
static int cannot_write(const char *path, int code, struct err *e)
{
	bool room = code == -ENOSPC || code == -EDQUOT || code == -EFBIG;

	return err_set(e, code, "cannot write '%.250s': %s%s", path, err_text(code),
		       room ? ": make room, or name another place with --output" : "");
}

int newfile_write(struct newfile *f, uint64_t offset, const void *bytes, uint64_t len,
		  struct err *e)
{
	const uint8_t *p = bytes;

	assert(f->fd >= 0);
	while (len > 0) {
		ssize_t n = pwrite(f->fd, p, len < (1u << 30) ? len : 1u << 30, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return cannot_write(f->path, n < 0 ? -errno : -EIO, e);
		p += n;
		offset += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

int newfile_sync(struct newfile *f, struct err *e)
{
	int r = 0;

	assert(f->fd >= 0);
	if (fdatasync(f->fd) != 0)
		r = -errno;
	if (close(f->fd) != 0 && r == 0)
		r = -errno;
	f->fd = -1;
	return r < 0 ? err_code(e, r, "bring '%.250s' to the disk", f->path) : 0;
}

/* renameat2() is not everywhere, nor in every file system: link(2) does not replace either. */
static int rename_to_new(const char *from, const char *to)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	if (link(from, to) != 0)
		return -errno;
	return unlink(from) == 0 ? 0 : -errno;
}

int newfile_publish(struct newfile *f, struct err *e)
{
	int r;

	assert(f->fd < 0 && f->temporary[0]); /* synced */
	if (f->replace)
		r = rename(f->temporary, f->path) == 0 ? 0 : -errno;
	else
		r = rename_to_new(f->temporary, f->path);
	if (r == -EEXIST)
		return there_already(f->path, e);
	if (r < 0)
		return err_code(e, r, "rename to '%.250s'", f->path);
	f->temporary[0] = '\0';
	return 0;
}

void newfile_drop(struct newfile *f)
{
	if (f->fd >= 0)
		close(f->fd);
	if (f->temporary[0])
		unlink(f->temporary);
	*f = (struct newfile)NEWFILE_NONE;
}

int folder_sync(const char *path, struct err *e)
{
	char folder[PATH_MAX] = ".";
	const char *slash = strrchr(path, '/');
	int fd, r = 0;

	if (slash)
		snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path),
			 path);
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) != 0)
		r = -errno;
	if (fd >= 0)
		close(fd);
	return r < 0 ? err_code(e, r, "bring the names in '%.250s' to the disk", folder) : 0;
}
