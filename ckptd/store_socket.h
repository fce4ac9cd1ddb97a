/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_socket.h - the receiving end of the fd store's protocol, as systemd has it.
 */
#ifndef CKPTD_STORE_SOCKET_H
#define CKPTD_STORE_SOCKET_H

#include <sys/types.h>

#include "base/err.h"
#include "ckptd/fd_table.h"
#include "ckptd/log.h"
#include "ckptd/notify.h"

struct store_socket {
	int fd; /* to poll for reading */
	char address[64]; /* for $NOTIFY_SOCKET */
	struct fd_table *fds;
	struct log *log;
	bool failed; /* since the last barrier something could not be stored */
};

MUST_CHECK int store_socket_open(struct store_socket *s, struct fd_table *fds, struct log *log,
				 struct err *e);
void store_socket_close(struct store_socket *s);
/*
 * Takes in one message. false: none is waiting. Messages of others than `from` are dropped. What
 * is not the store's business (READY=1, STATUS=, WATCHDOG=1, ...) is left in ret_text.
 */
bool store_socket_receive(struct store_socket *s, pid_t from,
			  char ret_text[NOTIFY_MESSAGE_MAX + 1]);

#endif
