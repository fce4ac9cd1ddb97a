/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_table.h - named descriptors, as the fd store keeps them, and how they are passed to a child.
 */
#ifndef CKPTD_FD_TABLE_H
#define CKPTD_FD_TABLE_H

#include <stddef.h>

#include "base/err.h"
#include "ckptd/keeper.h"

struct fd_table_entry {
	int fd; /* close-on-exec */
	char name[KEEPER_NAME_MAX + 1];
};
struct fd_table {
	struct fd_table_entry *entries;
	size_t n, cap;
	size_t max; /* more are refused: the rest of the process needs some too */
};

/* Room for as many as the limit of open files allows, but for a few. */
void fd_table_init(struct fd_table *t);
void fd_table_fini(struct fd_table *t);
/* Takes fd, whatever happens. A second descriptor of the same file is closed: it is there. */
MUST_CHECK int fd_table_add(struct fd_table *t, const char *name, int fd);
void fd_table_remove(struct fd_table *t, const char *name); /* all of that name */

/*
 * What sd_listen_fds(3) reads: "LISTEN_FDS=n" and "LISTEN_FDNAMES=a:b", the caller frees them. In
 * the parent, so that the child of a fork allocates nothing.
 */
MUST_CHECK int fd_table_environment(const struct fd_table *t, char **ret_fds, char **ret_names);
/* One above the last descriptor that fd_table_install() puts in place. */
int fd_table_end(const struct fd_table *t);
/* In the child: moves them to 3, 4, ... without close-on-exec. Calls nothing but fcntl and dup2. */
MUST_CHECK int fd_table_install(struct fd_table *t);

#endif
