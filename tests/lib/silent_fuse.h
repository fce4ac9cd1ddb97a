/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silent_fuse.h - a file system as any user may have one, whose server never answers a close: who
 * closes its file waits in the kernel until the server ends.
 */
#ifndef TESTS_LIB_SILENT_FUSE_H
#define TESTS_LIB_SILENT_FUSE_H

#include <sys/types.h>

/*
 * Mounts it on `folder`, which then holds one file, "f", in a mount namespace of this process: call
 * it in a child. Needs root. *ret_server: its server, a child of this process, which ends after
 * half a minute if it is not killed. -errno: there is no FUSE here. Tools that read
 * /proc/<pid>/stat of everybody, as ps does, wait for it too.
 */
int silent_fuse_mount(const char *folder, pid_t *ret_server);

#endif
