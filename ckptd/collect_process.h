/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_process.h - what a process is doing, from /proc: of suspected ranks, on a thread.
 *
 * What cannot be read (another user's process, hidepid, a kernel without it) is said to be unknown:
 * state '?', no CPU, TIMED_NOT_KNOWN. It is never taken for idle.
 */
#ifndef CKPTD_COLLECT_PROCESS_H
#define CKPTD_COLLECT_PROCESS_H

#include "base/conn.h"
#include "ckptd/collect_source.h"

#define PROCESS_THREADS_MAX 256 /* whose states are looked at */

/* What is kept of one look for the next. */
struct process_look {
	uint64_t ticks, at_ns; /* CPU time used; when; 0: not yet */
};

/* proc: "/proc", or a made-up one. ticks_per_s: of clock ticks. -ESRCH: there is no such process
 * any more, or its pid is another's. */
MUST_CHECK int process_look_at(const char *proc, const struct process_id *id, long ticks_per_s,
			       uint64_t now_ns, struct process_look *look,
			       struct sample_activity *ret);

/* Whether a line of /proc/PID/syscall is a call that ends by itself at some time. */
bool process_syscall_is_timed(const char *line);

/* ---- Several of them, once a second ---- */

struct prober;
typedef void prober_tell_fn(void *arg, const struct process_id *p, const struct sample_activity *a);

#define PROBE_SOON_NS 500000000ull /* from the first look to the second */
#define PROBE_NS      1000000000ull

MUST_CHECK int prober_new(struct loop *loop, const char *proc, prober_tell_fn *tell, void *arg,
			  struct prober **ret);
void prober_free(struct prober *p); /* NULL is allowed */
/* Idempotent. */
void prober_set(struct prober *p, const struct process_id *id, bool on);
bool prober_any(const struct prober *p); /* some process is on */

#endif
