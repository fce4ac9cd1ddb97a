/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_socket.h - TCP between nodes that check each other: everything has a deadline, nothing that
 * arrives is believed to be well-formed.
 *
 * A message is one line of JSON, at most CHECK_LINE_MAX bytes. Deadlines are check_now()'s seconds.
 */
#ifndef TOOLS_CHECK_SOCKET_H
#define TOOLS_CHECK_SOCKET_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define CHECK_LINE_MAX (64u << 10)

/* "host:port", "[::1]:port"; port is needed. */
MUST_CHECK int check_listen(const char *address, int *ret_fd, struct err *e);
/* Tries again until the deadline: the other may not have started yet. */
MUST_CHECK int check_connect(const char *address, double deadline, int *ret_fd, struct err *e);
/* -EAGAIN: nobody came until then. */
MUST_CHECK int check_accept(int listener, double deadline, int *ret_fd);
/* Whether address is one of this machine's. */
bool check_is_mine(const char *address);

/* Whole, or an error: -ETIMEDOUT, -EPIPE (the other has ended), -errno. */
MUST_CHECK int check_send(int fd, const void *bytes, size_t len, double deadline);
MUST_CHECK int check_receive(int fd, void *bytes, size_t len, double deadline);
MUST_CHECK int check_send_line(int fd, json_t *message, double deadline); /* takes message */
MUST_CHECK int check_receive_line(int fd, double deadline, json_t **ret); /* -EPROTO: no JSON */

#endif
