/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silent_fuse.h - file systems as any user may have one, whose server does not answer: who closes
 * their file waits in the kernel until the server ends.
 */
#ifndef TESTS_LIB_SILENT_FUSE_H
#define TESTS_LIB_SILENT_FUSE_H

#include <sys/types.h>

enum { SILENT_FUSE_PAGE = 4096 /* size of the file of a cached one */ };

/*
 * Mounts it on `folder`, which then holds one file, "f", in a mount namespace of this process: call
 * it in a child. Needs root. *ret_server: its server, a child of this process, which ends after
 * half a minute if it is not killed. -errno: there is no FUSE here. Tools that read
 * /proc/<pid>/stat of everybody, as ps does, wait for it too.
 */
int silent_fuse_mount(const char *folder, pid_t *ret_server);
/*
 * The same, but the server answers all except writes, which are cached: close() ends while nothing
 * was written, and after that whoever has the last reference waits, also if it is the end of a
 * socket in which the descriptor is queued.
 */
int silent_fuse_mount_cached(const char *folder, pid_t *ret_server);

#endif
