/* SPDX-License-Identifier: Apache-2.0 */
/*
 * newfile.h - files that a tool makes: under a temporary name until they are whole and on disk.
 *
 * - begin: PATH.<pid>.tmp beside PATH, which is refused when it is there, unless it may be replaced
 * - write: anywhere in it
 * - sync: fdatasync, close; after an error the file is given up, never synced again
 * - publish: rename; the folder is then synced with folder_sync(), once for all its files
 * - drop: at any time; what was not published goes
 *
 * Several files that belong together are all synced before the first is published, and what names
 * the others (an index) is published last.
 */
#ifndef TOOLS_NEWFILE_H
#define TOOLS_NEWFILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct newfile {
	char path[PATH_MAX];
	char temporary[PATH_MAX]; /* "": there is none, or it was published */
	int fd;                   /* -1: closed */
	bool replace;
};

#define NEWFILE_NONE                                                                               \
	{                                                                                          \
		.fd = -1                                                                           \
	}

/* -EEXIST: PATH is there. size: its bytes, which get their place on the disk; 0: not known. */
MUST_CHECK int newfile_begin(struct newfile *f, const char *path, bool replace, uint64_t size,
			     struct err *e);
/* The sentence of a file or folder that could not be made; returns code. */
int newfile_cannot_make(const char *path, int code, struct err *e);
MUST_CHECK int newfile_write(struct newfile *f, uint64_t offset, const void *bytes, uint64_t len,
			     struct err *e);
MUST_CHECK int newfile_sync(struct newfile *f, struct err *e);
MUST_CHECK int newfile_publish(struct newfile *f, struct err *e);
void newfile_drop(struct newfile *f);

/* The folder that path is in. */
MUST_CHECK int folder_sync(const char *path, struct err *e);

#endif
