/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - the only clock of the client: monotonic time, deadlines, and waiting by poll(2).
 *
 * A deadline is a time of clock_ns(), or NEVER.
 */
#ifndef CLIENT_CLOCK_H
#define CLIENT_CLOCK_H

#include <poll.h>
#include <stdint.h>

#define NEVER	  UINT64_MAX
#define NS_PER_MS 1000000ull
/* A call that only asks (timeout 0) still waits this long for the answer to its question. */
#define ASK_MS 1000

uint64_t clock_ns(void);
/* From a timeout of the interface that is not CKPT_DEFAULT_TIMEOUT. */
uint64_t deadline_in(int64_t timeout_ms);
/* poll(2) until the deadline: > 0 something is ready, 0 the deadline passed, or -errno. Goes on
 * after a signal. p may be NULL with n 0: then it only waits. */
int clock_poll(struct pollfd *p, nfds_t n, uint64_t deadline);

#endif
