/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach.h - sentences for people whose program cannot reach ckptd, also for tools/connect.c.
 */
#ifndef CLIENT_REACH_H
#define CLIENT_REACH_H

#define REACH_TEXT_MAX 256

/* Which users may connect to a socket that refused this one, and how root lets another one in.
 * Commands stand in quote. */
const char *reach_refused(const char *path, char quote, char buf[REACH_TEXT_MAX]);

/* Begins what to do when ckptd is not at socket, tried last: says if this process cannot know where
 * a user's own ckptd is; else "". */
const char *reach_hint(const char *socket);

#endif
