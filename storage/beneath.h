/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beneath.h - names below a data folder: the only place that opens, makes, renames or removes them.
 *
 *   (1) The folder itself is resolved once. All below it is resolved from its descriptor, and no
 *       symbolic link below it is ever followed: -ELOOP. A link may be renamed and removed.
 *   (2) A process of root's works on another user's folder as that user: each name is resolved
 *       with the owner's rights, and what is made belongs to the owner. So a folder never lends
 *       its user a right of root's, whatever the user puts there meanwhile.
 *
 * Paths are relative and '/'-separated, without an empty, "." or ".." part: -EINVAL. "" is the
 * folder where that is said.
 *
 * (1) is openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS). Where a container forbids that call, each
 * part is opened on its own with O_NOFOLLOW; CKPT_DISK_OPENAT2=off forces this. (2) is setfsuid(2),
 * of the calling thread alone: the user cannot signal or trace the process.
 *
 *   (3) What root names besides, such as the file of an import, is read with the rights of whoever
 *       has the name in hand: the owner of the first part of its path that is not root's, a link
 *       or a folder. They can exchange all behind it, and what they put there leads only to what
 *       they may read themselves.
 *
 * Errors are -errno; nothing is retried but EINTR. Threads: any.
 */
#ifndef STORAGE_BENEATH_H
#define STORAGE_BENEATH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/disk.h"

struct beneath {
	int folder;    /* descriptor; -1: closed */
	bool openat2;  /* the kernel resolves beneath a folder in one call */
	bool as_owner; /* (2): this process is root's, the folder is not */
	uid_t uid;     /* the folder's owner */
	gid_t gid;
};

/* folder: as the operator named it; its own links are followed. */
MUST_CHECK int beneath_open(const char *folder, struct beneath *ret, struct err *e);
/* The same folder once more; or one below it, which can be listed and locked. */
MUST_CHECK int beneath_again(const struct beneath *b, struct beneath *ret);
MUST_CHECK int beneath_enter(const struct beneath *b, const char *path, struct beneath *ret);
void beneath_close(struct beneath *b);
/* 0: the name leads to this folder still; -EXDEV: to another one; else why it leads nowhere. */
MUST_CHECK int beneath_is_named(const struct beneath *b, const char *name);
/* For a library that opens by path (RocksDB): the whole process becomes the folder's owner, for
 * good. */
MUST_CHECK int beneath_become_owner(struct beneath *b, struct err *e);

/* A descriptor. flags: of open(2); O_CLOEXEC is added. */
MUST_CHECK int beneath_file(const struct beneath *b, const char *path, int flags);
MUST_CHECK int beneath_folder(const struct beneath *b, const char *path); /* "" */
MUST_CHECK int beneath_stat(const struct beneath *b, const char *path, struct stat *ret); /* "" */
MUST_CHECK int beneath_access(const struct beneath *b, const char *path, int mode);       /* "" */
MUST_CHECK int beneath_mkdir(const struct beneath *b, const char *path); /* -EEXIST if there */
MUST_CHECK int beneath_remove(const struct beneath *b, const char *path, bool is_dir);
MUST_CHECK int beneath_rename(const struct beneath *b, const char *from, const char *to);
MUST_CHECK int beneath_link(const struct beneath *b, const char *from, const char *to);
MUST_CHECK int beneath_list(const struct beneath *b, const char *path, disk_name_fn *fn, void *arg);

/* (3). Only root lends; others, and root for a path that is root's alone, work as they are. */
struct beneath_rights {
	bool lent;
	uid_t uid;
	gid_t gid;
};
/* -ENOENT where the path leads nowhere; -EPERM where root may not act as that user. */
MUST_CHECK int beneath_whose(const char *path, struct beneath_rights *ret);
/* The calling thread opens names with these rights, until beneath_own_rights(). */
void beneath_lend(const struct beneath_rights *r);
void beneath_own_rights(const struct beneath_rights *r);

/*
 * Whether a daemon of this process's user may trust the folder: the user owns it, group and others
 * may not write to it, and they cannot exchange it in a folder above. e says what to do.
 */
MUST_CHECK int beneath_check_private(const struct beneath *b, const char *name, struct err *e);

#endif
