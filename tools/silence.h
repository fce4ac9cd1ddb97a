/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silence.h - says that a ckptd has not answered for some seconds, and what its process does.
 */
#ifndef TOOLS_SILENCE_H
#define TOOLS_SILENCE_H

/* One line to stderr. fd: the connection, whose other end is looked at; -1: there is none. */
void silence_tell(const char *path, int fd, int seconds);

#endif
