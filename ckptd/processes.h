/* SPDX-License-Identifier: Apache-2.0 */
/*
 * processes.h - who is at the other end of a socket, and when that process ends, by pidfd.
 */
#ifndef CKPTD_PROCESSES_H
#define CKPTD_PROCESSES_H

#include "base/conn.h"
#include "base/err.h"
#include "base/loop.h"

struct process_table;
struct process;

typedef void process_ended_fn(void *arg, const struct process_id *id);
/* How it ended; follows, once, when that is known or PROCESS_EXIT_NS later. */
typedef void process_exit_fn(void *arg, const struct process_id *id, const struct process_exit *x);
#define PROCESS_EXIT_NS 500000000ull

MUST_CHECK int process_table_new(struct loop *loop, struct process_table **ret);
/* Nobody may hold a process any more. */
void process_table_free(struct process_table *t);
/* Who is told; once, before the first process. */
void process_table_tell(struct process_table *t, process_ended_fn *ended, process_exit_fn *exited,
			void *arg);
/* The table of conn.h: processes that have no conn. */
struct processes *process_table_processes(struct process_table *t);

/*
 * The process at the other end of a connected AF_UNIX socket, held until process_put(). Its end is
 * told once as long as it is held or followed. use_peerpidfd: ask SO_PEERPIDFD (6.5) first.
 * *ret_id has the uid of this socket. Refused with a sentence: a process or a uid that cannot be
 * seen from here, one that has ended.
 */
MUST_CHECK int process_of_socket(struct process_table *t, int fd, bool use_peerpidfd,
				 struct process **ret, struct process_id *ret_id, struct err *e);
void process_put(struct process *p);
/* true: its end will be told, also after process_put(); false: that has been told already. */
bool process_follow(struct process *p);
bool process_has_ended(const struct process *p);

/* How the process of a pidfd ended, if that is known yet: -EAGAIN: it lives, or nobody may know. */
MUST_CHECK int process_exit_read(int pidfd, const struct process_id *id, struct process_exit *ret);

/*
 * What tells a process from others that had or will have its pid, from its pidfd: PROCESS_BY_INODE
 * and the inode of that (6.9), else field 22 of /proc/<pid>/stat. Reading the inode never blocks,
 * and the kernel never reuses it. Reading stat blocks while the process is in execve(2), which its
 * user can prolong without limit by a FUSE file, and the start time counts in units of 10 ms.
 */
#define PROCESS_BY_INODE (UINT64_C(1) << 63)
MUST_CHECK int process_identity(int pidfd, int32_t pid, uint64_t *ret);
/* It lives, and is still that one. Any thread. */
bool process_lives(const struct process_id *id);
/* Field 22 of /proc/<pid>/stat; -ESRCH: there is none. */
MUST_CHECK int process_start_time(int32_t pid, uint64_t *ret);
/* It has ended, or is on its way out: it runs no code of its own any more. */
bool process_is_ending(int32_t pid);

#endif
