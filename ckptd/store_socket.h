/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_socket.h - the receiving end of the fd store's protocol, as systemd has it.
 */
#ifndef CKPTD_STORE_SOCKET_H
#define CKPTD_STORE_SOCKET_H

#include <stdbool.h>

#include "base/err.h"
#include "ckptd/fd_table.h"
#include "ckptd/log.h"
#include "ckptd/notify.h"

struct store_socket {
	int fd; /* to poll for reading; -1: closed */
	int child_fd; /* the end that a child inherits; -1: it has been passed */
	struct fd_table *fds;
	struct log *log;
	bool failed; /* since the last barrier something could not be stored */
};

/* A new pair of sockets, for one child. Both ends are close-on-exec. */
MUST_CHECK int store_socket_open(struct store_socket *s, struct fd_table *fds, struct log *log,
				 struct err *e);
/* After the fork, in the parent: closes the child's end. */
void store_socket_passed(struct store_socket *s);
void store_socket_close(struct store_socket *s);
/*
 * Takes in one message. false: none is waiting. What is not the store's business (READY=1, STATUS=,
 * WATCHDOG=1, ...) is left in ret_text.
 */
bool store_socket_receive(struct store_socket *s, char ret_text[NOTIFY_MESSAGE_MAX + 1]);

#endif
