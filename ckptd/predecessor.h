/* SPDX-License-Identifier: Apache-2.0 */
/*
 * predecessor.h - a start waits for a ckptd that was killed to give back its socket and LOCK.
 */
#ifndef CKPTD_PREDECESSOR_H
#define CKPTD_PREDECESSOR_H

#include <sys/socket.h>
#include <sys/un.h>

#include "ckptd/log.h"

/*
 * Each returns when the thing is free, when its holder lives on, or when the time is over: the
 * caller then takes it, or fails and says who holds it. Both block; they return at once where
 * nothing is held, and where SIGTERM or SIGINT is pending.
 */
void predecessor_wait_socket(const struct sockaddr_un *addr, struct log *log);
void predecessor_wait_lock(const char *data, struct log *log);

/* The process that listens at the socket that fd is connected to; 0: the kernel does not say. */
int predecessor_of_socket(int fd);

#endif
