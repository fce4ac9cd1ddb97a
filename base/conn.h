/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - one connected process: messages with descriptors, in order, or the end.
 *
 * The socket's end and the process's end are two things (children may hold the socket open, and a
 * process may reconnect): conn_closed is the first, process_ended the second, which a pidfd tells.
 * Implementations: ckptd/listener.c (SOCK_SEQPACKET), tests/sim/conn.c.
 * All on the loop's thread.
 */
#ifndef BASE_CONN_H
#define BASE_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONN_MESSAGE_MAX (64u << 10)
#define CONN_FDS_MAX 64

/* Who is at the other end, as the kernel says; start makes a reused pid another process. */
struct process_id {
	int32_t pid;
	uint32_t uid;
	uint64_t start; /* which process of those that have had the pid: ckptd/processes.h */
};

/* The uid is left out: a process may change it. */
static inline bool process_same(const struct process_id *a, const struct process_id *b)
{
	return a->pid == b->pid && a->start == b->start;
}

/* How a process ended, as far as can be told by who is not its parent. */
enum process_end { PROCESS_END_UNKNOWN, PROCESS_END_STATUS, PROCESS_END_SIGNAL };
struct process_exit {
	enum process_end how;
	int32_t value; /* status or signal */
};

struct conn;
struct conn_ops {
	/* Queues a message; takes fds (closes them whatever happens). An error closes later. */
	void (*send)(struct conn *, const void *msg, size_t len, const int *fds, size_t n_fds);
	/* Whether a message with CONN_FDS_MAX descriptors would be sent at once or soon: the other
	 * end has read enough of the earlier ones. false: conn_events.room follows when that has
	 * changed. NULL: always true. */
	bool (*room)(struct conn *);
	/* Ends it; conn_events.closed follows, never inside this call. */
	void (*close)(struct conn *);
	/* From now process_ended is reported for this process, also after the conn closed. */
	bool (*process_alive)(struct conn *);
};

struct conn {
	const struct conn_ops *ops;
	struct process_id process;
	void *session; /* the receiver's */
};

static inline bool conn_room(struct conn *c)
{
	return !c->ops->room || c->ops->room(c);
}

/* What a listener tells its receiver; arg is the receiver. */
struct conn_events {
	void (*opened)(void *arg, struct conn *);
	/* msg and fds are valid during the call; fds taken are set to -1, the rest are closed. */
	void (*message)(void *arg, struct conn *, const void *msg, size_t len, int *fds,
			size_t n_fds);
	void (*closed)(void *arg, struct conn *); /* conn is gone after this */
	/* Descriptors that were not sent to this uid. The callee closes them, which may free large
	 * files. NULL: the listener closes them. */
	void (*unsent)(void *arg, uint32_t uid, const int *fds, size_t n_fds);
	/* May be NULL. There is room again after conn_ops.room() returned false. */
	void (*room)(void *arg, struct conn *);
	void (*process_ended)(void *arg, const struct process_id *);
	/* May be NULL. Once after each process_ended, within half a second: only the parent is told
	 * at once how its child ended. */
	void (*process_exit)(void *arg, const struct process_id *, const struct process_exit *);
};

/* Watches processes that have no conn (found in the ledger after a restart). */
struct processes;
struct processes_ops {
	/* 0: alive and watched, process_ended will come; -ESRCH: it is gone. Idempotent. *id may
	 * come from an older ckptd: it becomes what this one calls that process. */
	int (*watch)(struct processes *, struct process_id *id);
	void (*unwatch)(struct processes *, const struct process_id *);
};
struct processes {
	const struct processes_ops *ops;
};

#endif
