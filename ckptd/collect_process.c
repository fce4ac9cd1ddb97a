/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_process.c - what one process is doing: stat, its threads' stats, wchan, syscall of /proc.
 *
 * stat may be read by everybody; wchan asks for the right to look at the process (same uid, or
 * CAP_SYS_PTRACE), syscall for the right to attach to it, which Yama may deny too. So whether a
 * process sleeps until a time is often not known: TIMED_NOT_KNOWN then. stat, wchan and syscall of
 * a process that executes a program wait until it has, as long as that takes: a thread looks that
 * can be left behind.
 *
 * Stateless; on the prober's thread.
 */
#include <config.h>

#include "ckptd/collect_process.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "ckptd/collect_file.h"
#include "ckptd/processes.h"

struct stat_line {
	char state;
	uint64_t ticks, start; /* user and system time; since boot */
};

/* Behind the name, which may hold anything but ends with the last ')'. */
static bool parse_stat(const char *text, struct stat_line *ret)
{
	unsigned long long user, system, start;
	const char *p = strrchr(text, ')');
	char state;

	if (!p || sscanf(p + 1,
			 " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %20llu %20llu %*d %*d %*d "
			 "%*d %*d %*d %20llu",
			 &state, &user, &system, &start) != 4)
		return false;
	*ret = (struct stat_line){state, user + system, start};
	return true;
}

static char known_state(char state)
{
	if (state == 't')
		return 'T'; /* stopped by a debugger */
	if (state == 'X' || state == 'x')
		return 'Z';
	return state && strchr("RSDTZ", state) ? state : '?';
}

/* ---- Sleeping until a time ---- */

/* Calls that end at a time if argument `arg` says so: a pointer to a time that is not NULL, or a
 * number of milliseconds that is not negative. */
struct timed_call {
	long number;
	int arg;
	bool is_number;
	int always; /* whatever its arguments are */
};
static const struct timed_call timed_calls[] = {
#ifdef SYS_nanosleep
	{SYS_nanosleep, 0, false, 1},
#endif
	{SYS_clock_nanosleep, 0, false, 1},
#ifdef SYS_poll
	{SYS_poll, 2, true, 0},
#endif
	{SYS_ppoll, 2, false, 0},
#ifdef SYS_select
	{SYS_select, 4, false, 0},
#endif
	{SYS_pselect6, 4, false, 0},
#ifdef SYS_epoll_wait
	{SYS_epoll_wait, 3, true, 0},
#endif
	{SYS_epoll_pwait, 3, true, 0},
#ifdef SYS_epoll_pwait2
	{SYS_epoll_pwait2, 3, false, 0},
#endif
	{SYS_futex, 3, false, 0},
#ifdef SYS_futex_waitv
	{SYS_futex_waitv, 3, false, 0},
#endif
	{SYS_rt_sigtimedwait, 2, false, 0},
	{SYS_semtimedop, 3, false, 0},
	{SYS_mq_timedreceive, 4, false, 0},
};

/* Of a futex only waiting takes a time: FUTEX_WAIT, FUTEX_LOCK_PI, FUTEX_WAIT_BITSET and the like;
 * for the others the argument is a number. */
static bool futex_waits(unsigned long long op)
{
	switch (op & 127) {
	case 0:
	case 6:
	case 9:
	case 11:
	case 13:
		return true;
	}
	return false;
}

bool process_syscall_is_timed(const char *line)
{
	unsigned long long a[6];
	long number;

	if (sscanf(line, "%ld 0x%llx 0x%llx 0x%llx 0x%llx 0x%llx 0x%llx", &number, &a[0], &a[1],
		   &a[2], &a[3], &a[4], &a[5]) != 7)
		return false; /* "running", "-1 0x.. 0x..": in no call */
	for (size_t i = 0; i < sizeof(timed_calls) / sizeof(timed_calls[0]); i++) {
		const struct timed_call *c = &timed_calls[i];

		if (c->number != number)
			continue;
		if (c->always)
			return true;
		if (number == SYS_futex && !futex_waits(a[1]))
			return false;
		return c->is_number ? (int32_t)a[c->arg] >= 0 : a[c->arg] != 0;
	}
	return false;
}

/* A place in the kernel says less than a call with its arguments: some wait until an event or a
 * time, and "0" is what who may not look is told. */
static enum timed timed_by_wchan(const char *wchan)
{
	static const char *const either[] = {"futex", "poll", "select", "sigtimedwait", "semtimed"};

	if (strcmp(wchan, "hrtimer_nanosleep") == 0)
		return TIMED_YES;
	if (!wchan[0] || strcmp(wchan, "0") == 0)
		return TIMED_NOT_KNOWN;
	for (size_t i = 0; i < sizeof(either) / sizeof(either[0]); i++)
		if (strstr(wchan, either[i]))
			return TIMED_NOT_KNOWN;
	return TIMED_NO;
}

static enum timed sleeps_until_a_time(const char *proc, int32_t pid)
{
	char text[256];

	if (collect_text(text, sizeof(text), "%s/%d/syscall", proc, (int)pid) > 0)
		return process_syscall_is_timed(text) ? TIMED_YES : TIMED_NO;
	if (collect_text(text, sizeof(text), "%s/%d/wchan", proc, (int)pid) > 0)
		return timed_by_wchan(text);
	return TIMED_NOT_KNOWN;
}

/* ---- Threads ---- */

struct threads {
	const char *proc;
	int32_t pid;
	unsigned seen, running;
};

static void each_thread(void *arg, const char *name)
{
	struct threads *t = arg;
	struct stat_line st;
	char text[1024];

	if (t->seen++ >= PROCESS_THREADS_MAX)
		return;
	if (collect_text(text, sizeof(text), "%s/%d/task/%s/stat", t->proc, (int)t->pid, name) >
		    0 &&
	    parse_stat(text, &st))
		t->running += st.state == 'R';
}

static uint16_t permille(uint64_t ticks, uint64_t ns, long ticks_per_s)
{
	double share = (double)ticks / (double)ticks_per_s / ((double)ns / 1e9);

	return share >= 65 ? 65000 : (uint16_t)(share * 1000);
}

int process_look_at(const char *proc, const struct process_id *id, long ticks_per_s,
		    uint64_t now_ns, struct process_look *look, struct sample_activity *ret)
{
	struct threads t = {.proc = proc, .pid = id->pid};
	struct stat_line st;
	char text[1024];
	int r;

	assert(ticks_per_s > 0);
	*ret = (struct sample_activity){.state = '?',
					.cpu_permille = UINT16_MAX,
					.gpu_permille = UINT16_MAX,
					.timed = TIMED_NOT_KNOWN};
	r = collect_text(text, sizeof(text), "%s/%d/stat", proc, (int)id->pid);
	if (r == -ENOENT || r == -ESRCH)
		return -ESRCH;
	if (r <= 0 || !parse_stat(text, &st))
		return 0; /* not known */
	if (!(id->start & PROCESS_BY_INODE) && st.start != id->start)
		return -ESRCH; /* else the caller knows */
	ret->state = known_state(st.state);
	if (look->at_ns && now_ns > look->at_ns && st.ticks >= look->ticks)
		ret->cpu_permille =
			permille(st.ticks - look->ticks, now_ns - look->at_ns, ticks_per_s);
	look->ticks = st.ticks;
	look->at_ns = now_ns;
	if (collect_each(each_thread, &t, "%s/%d/task", proc, (int)id->pid) < 0)
		t.running = st.state == 'R';
	ret->threads_running = (uint8_t)(t.running > 255 ? 255 : t.running);
	if (ret->state != '?')
		ret->timed = ret->state == 'S' ? sleeps_until_a_time(proc, id->pid) : TIMED_NO;
	return 0;
}
