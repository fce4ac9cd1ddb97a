/* SPDX-License-Identifier: Apache-2.0 */
/*
 * speak.h - the session's messages by hand, for what libckpt would not do: requests without reading
 * the answers, jobs on one connection after the other, descriptors of any kind.
 *
 * No function here waits longer than its timeout, and none retries: an attack goes on whatever
 * ckptd answers. One thread.
 */
#ifndef TESTS_ADVERSARY_SPEAK_H
#define TESTS_ADVERSARY_SPEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ids.h"
#include "proto/session.pb-c.h"

enum { SPEAK_WAIT_MS = 5000 };

/* Bytes that are sent as they are, with a descriptor (-1: none). */
bool speak_bytes(int to, const void *bytes, size_t len, int fd, int flags);
bool speak(int to, const Ckpt__Request *q, int fd, int flags);
/* Whatever has come is read, its descriptors too (they are closed); false: the connection is
 * over. */
bool speak_drain(int fd, int wait_ms);
/* The code of the next answer to this request; INT32_MIN: none came in time. */
int32_t speak_answer(int fd, uint64_t request, int wait_ms);

/* A connection; -1: not let in. */
int speak_enter(const char *socket);
bool speak_hello(int fd);
/* One that has said hello; -1: not let in. */
int speak_enter_hello(const char *socket);
/* The answer's code. _again: it is a rank of this process already, which goes on with it. */
int32_t speak_open(int fd, const char *job, const char *run, uint32_t rank, uint32_t world);
int32_t speak_open_again(int fd, const char *job, const char *run, uint32_t rank, uint32_t world);
/* mfd -1: bytes are small enough for the message. The answer's code. */
int32_t speak_declare(int fd, const struct digest *digest, const void *bytes, size_t len, int mfd,
		      int wait_ms);
bool speak_load(int fd, uint64_t request, uint64_t step, int flags);
bool speak_load_end(int fd, uint64_t load, int flags);
bool speak_wait(int fd, uint64_t request, uint64_t step, int what, int flags);
bool speak_cancel(int fd, uint64_t request, int flags);
bool speak_list(int fd, int flags);
bool speak_admin(int fd, int verb, int flags);

/* A memfd that ckptd takes: sealed against writing. Ends the process on failure. */
int speak_memfd(const void *bytes, size_t len);
void speak_rest(unsigned ms);

#endif
