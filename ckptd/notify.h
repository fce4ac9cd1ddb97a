/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h - the sd_notify(3) protocol: one datagram a message, to $NOTIFY_SOCKET or to the socket
 * that ckptd --supervise passes. Any thread, but open and free.
 */
#ifndef CKPTD_NOTIFY_H
#define CKPTD_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define NOTIFY_MESSAGE_MAX 4096
#define NOTIFY_FDS_MAX 16 /* in one message */

/* Of ckptd --supervise: the number of a connected datagram socket, and the process that it is meant
 * for. */
#define NOTIFY_FD_VAR "CKPTD_NOTIFY_FD"
#define NOTIFY_PID_VAR "CKPTD_NOTIFY_PID"

struct notify;

/*
 * The socket of $CKPTD_NOTIFY_FD is made close-on-exec, and its variables are removed: a program
 * that this process starts gets neither. Before there are threads. Without it and without
 * $NOTIFY_SOCKET there is no listener: every send succeeds and does nothing.
 */
MUST_CHECK int notify_open(struct notify **ret, struct err *e);
void notify_free(struct notify *n);
bool notify_listened(const struct notify *n);
/* "READY=1\nSTATUS=..." with descriptors, which stay the caller's. Waits a bounded time. */
MUST_CHECK int notify_send(struct notify *n, const char *text, const int *fds, size_t n_fds);
/*
 * Waits until everything sent before has been taken. -ETIMEDOUT; -EIO: ckptd --supervise says that
 * something of it could not be done (systemd never says).
 */
MUST_CHECK int notify_barrier(struct notify *n, int timeout_ms);
/* How often "WATCHDOG=1" is wanted at the latest, or 0. */
uint64_t notify_watchdog_ns(void);

#endif
