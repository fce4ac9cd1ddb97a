/* SPDX-License-Identifier: Apache-2.0 */
/*
 * processes.c - processes that ckptd knows, each with a pidfd that tells its end.
 *
 * A process is (pid, identity): a pid that is used again is another process. Where the kernel gives
 * pidfds no inodes (before 6.9) its start time is its identity. To be sure that pidfd, pid and
 * start time speak of the same one, the start time is read after the pidfd was had and the pidfd is
 * asked after that: while it says "alive", the pid cannot have been reused. Ledgers of an older
 * ckptd have start times where this one has inodes: watch_process() knows both.
 *
 *   1. The end of a process is told exactly once, never inside a call, and only while somebody
 *      holds it (a conn) or follows it.
 *   2. An ended process stays in the table while it is held, so that it is never taken for alive.
 *      What the pidfd tells is only noted, and handled in a task of the user's, which takes some
 *      20 us: users end a thousand processes at once, and others' turns come in between. Until then
 *      the process counts as one that lives, and its end as not told.
 *   3. How it ended is told once after its end. Only the parent learns that at once: we see it in
 *      the zombie where we may, else by the pidfd (6.15) when the parent has reaped it, which the
 *      pidfd tells by EPOLLHUP; else it is unknown, PROCESS_EXIT_NS after the end.
 *
 * Without SO_PEERPIDFD (before 6.5) the pidfd is opened by pid: a process that connected, ended
 * and whose pid was reused before accept would be mistaken for the new one; the kernel's answer
 * closes that hole.
 */
#include <config.h>

#include "ckptd/processes.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/loop_epoll.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* What linux/pidfd.h of newer kernels has: struct pidfd_info, PIDFD_GET_INFO, PIDFD_INFO_EXIT. */
struct pidfd_exit_info {
	uint64_t mask, cgroup;
	uint32_t ids[11];
	int32_t exit_code;
};
_Static_assert(sizeof(struct pidfd_exit_info) == 64, "PIDFD_INFO_SIZE_VER0");
#define PIDFD_EXIT_GET _IOWR(0xff, 11, struct pidfd_exit_info)
#define PIDFD_EXIT_BIT 8u

#define PIDFS 0x50494446 /* PID_FS_MAGIC of linux/magic.h */
#define UID_OVERFLOW 65534u /* what the kernel shows for a uid that has no number here */

struct process {
	struct list link;
	struct process_table *table;
	struct process_id id;
	int pidfd;
	struct watch watch; /* for one event at a time: of its end, and of its reaping */
	struct task task;
	bool ending; /* the pidfd has told its end: the task is posted, or has run */
	unsigned held;
	bool followed, ended;
	bool telling;      /* its end has been told, how it ended not yet (3) */
	struct timer wait; /* armed while telling */
};

struct process_table {
	struct processes processes;
	struct loop *loop;
	process_ended_fn *tell;
	process_exit_fn *tell_exit;
	void *tell_arg;
	struct list all;
};

static int read_stat(int32_t pid, char *buf, size_t size)
{
	char path[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ESRCH : -errno;
	n = read(fd, buf, size - 1);
	close(fd);
	if (n <= 0)
		return -ESRCH; /* it ended between the calls */
	buf[n] = '\0';
	return 0;
}

/* UINT64_MAX: this is not a stat. */
static uint64_t start_of(const char *stat)
{
	const char *p = strrchr(stat, ')'); /* the name may hold spaces and brackets */
	unsigned long long start;

	if (!p || sscanf(p + 1,
			 " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
			 "%*d %llu",
			 &start) != 1)
		return UINT64_MAX;
	return start;
}

int process_start_time(int32_t pid, uint64_t *ret)
{
	char buf[1024];
	int r = read_stat(pid, buf, sizeof(buf));
	uint64_t start;

	if (r)
		return r;
	start = start_of(buf);
	if (start == UINT64_MAX)
		return -EPROTO;
	*ret = start;
	return 0;
}

int process_identity(int pidfd, int32_t pid, uint64_t *ret)
{
	struct statfs fs;
	struct stat st;

	if (fstatfs(pidfd, &fs) != 0 || fs.f_type != PIDFS || fstat(pidfd, &st) != 0)
		return process_start_time(pid, ret);
	*ret = PROCESS_BY_INODE | (uint64_t)st.st_ino;
	return 0;
}

bool process_is_ending(int32_t pid)
{
	enum { PF_EXITING = 4 }; /* of the kernel's include/linux/sched.h, since Linux 2.6 */
	char buf[1024], state = 0;
	unsigned flags = 0;
	const char *p;
	int r = read_stat(pid, buf, sizeof(buf));

	if (r)
		return r == -ESRCH;
	p = strrchr(buf, ')');
	if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
		return false;
	return state == 'Z' || state == 'X' || (flags & PF_EXITING);
}

static bool pidfd_alive(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return poll(&p, 1, 0) == 0;
}

bool process_lives(const struct process_id *id)
{
	int pidfd = id->pid > 0 ? pidfd_open(id->pid, 0) : -1;
	uint64_t now = 0;
	bool lives;

	if (pidfd < 0)
		return false;
	lives = process_identity(pidfd, id->pid, &now) == 0 && now == id->start &&
		pidfd_alive(pidfd);
	close(pidfd);
	return lives;
}

static struct process *find(struct process_table *t, int32_t pid, uint64_t start)
{
	struct process *p;

	list_each(p, &t->all, link) {
		if (p->id.pid == pid && p->id.start == start)
			return p;
	}
	return NULL;
}

static void forget_if_unused(struct process *p)
{
	if (p->held || p->telling || (p->followed && !p->ended)) /* (2) */
		return;
	loop_unpost(p->table->loop, &p->task);
	if (p->pidfd >= 0) {
		watch_remove(p->table->loop, &p->watch);
		close(p->pidfd);
	}
	list_del(&p->link);
	alloc_free(p);
}

/* ---- How it ended ---- */

static struct process_exit exit_of_status(int status)
{
	if (WIFSIGNALED(status))
		return (struct process_exit){PROCESS_END_SIGNAL, WTERMSIG(status)};
	return (struct process_exit){PROCESS_END_STATUS, WEXITSTATUS(status)};
}

static bool was_reaped(int pidfd)
{
	return pidfd_send_signal(pidfd, 0, NULL, 0) != 0 && errno == ESRCH;
}

/* Field 52 of the zombie's stat is 0 for who may not read it: 0 counts only for our own uid. */
static int zombie_exit_status(int pidfd, const struct process_id *id, int *ret)
{
	char buf[1024];
	const char *p;
	int status;

	/* Until it was reaped the pid is its own: asked before, so that no other's stat is waited
	 * for, and behind, so that none is believed. */
	if (pidfd_alive(pidfd) || was_reaped(pidfd) ||
	    read_stat(id->pid, buf, sizeof(buf)) != 0 || was_reaped(pidfd))
		return -EAGAIN;
	p = strrchr(buf, ')');
	if (!p || strncmp(p, ") Z", 3) != 0)
		return -EAGAIN;
	p = strrchr(p, ' ');
	status = p ? atoi(p + 1) : 0;
	if (status == 0 && id->uid != geteuid())
		return -EAGAIN;
	*ret = status;
	return 0;
}

int process_exit_read(int pidfd, const struct process_id *id, struct process_exit *ret)
{
	struct pidfd_exit_info info = {.mask = PIDFD_EXIT_BIT};
	int status;

	if (ioctl(pidfd, PIDFD_EXIT_GET, &info) == 0 && (info.mask & PIDFD_EXIT_BIT))
		status = info.exit_code;
	else if (zombie_exit_status(pidfd, id, &status) != 0)
		return -EAGAIN;
	*ret = exit_of_status(status);
	return 0;
}

static void tell_exit(struct process *p, const struct process_exit *x)
{
	struct process_table *t = p->table;

	assert(p->telling && p->ended);
	timer_disarm(t->loop, &p->wait);
	loop_unpost(t->loop, &p->task);
	watch_remove(t->loop, &p->watch);
	close(p->pidfd);
	p->pidfd = -1;
	if (t->tell_exit)
		t->tell_exit(t->tell_arg, &p->id, x);
	p->telling = false;
	forget_if_unused(p);
}

/* It is known now, or nobody will know. */
static void settle_exit(struct process *p)
{
	struct process_exit x = {PROCESS_END_UNKNOWN, 0};

	if (process_exit_read(p->pidfd, &p->id, &x) != 0)
		x = (struct process_exit){PROCESS_END_UNKNOWN, 0};
	tell_exit(p, &x);
}

static void go_on(struct process *p)
{
	loop_unpost(p->table->loop, &p->task); /* reaped, and waited for long enough */
	loop_post(p->table->loop, &p->task);
}

static void waited_enough(struct timer *timer)
{
	go_on(container_of(timer, struct process, wait));
}

/* Tells it now, or when the parent has reaped it, or when it has been waited for long enough. */
static void learn_exit(struct process *p)
{
	struct process_exit x;

	if (process_exit_read(p->pidfd, &p->id, &x) == 0) {
		tell_exit(p, &x);
		return;
	}
	if (watch_set(p->table->loop, &p->watch, EPOLLHUP | EPOLLONESHOT) != 0)
		watch_remove(p->table->loop, &p->watch); /* the timer is enough */
	timer_arm(p->table->loop, &p->wait, loop_now(p->table->loop) + PROCESS_EXIT_NS);
}

static void step(struct task *task)
{
	struct process *p = container_of(task, struct process, task);
	struct process_table *t = p->table;

	loop_label(t->loop, "the end of a process");
	if (p->ended) { /* it has been reaped, or waited for (3) */
		settle_exit(p);
		return;
	}
	p->ended = true;
	p->telling = true; /* which keeps it: the receiver may put its last hold */
	if (t->tell)
		t->tell(t->tell_arg, &p->id);
	learn_exit(p);
}

static void pidfd_ready(struct watch *w, uint32_t events)
{
	struct process *p = container_of(w, struct process, watch);

	(void)events;
	p->ending = true;
	go_on(p);
}

/* Takes the pidfd. The process is neither held nor followed yet. */
static int add(struct process_table *t, const struct process_id *id, int pidfd,
	       struct process **ret)
{
	struct process *p = alloc_zero(sizeof(*p));
	int r = -ENOMEM;

	if (p) {
		*p = (struct process){ .table = t, .id = *id, .pidfd = pidfd };
		watch_init(&p->watch, pidfd, pidfd_ready);
		timer_init(&p->wait, waited_enough);
		task_init(&p->task, id->uid, step);
		r = watch_set(t->loop, &p->watch, EPOLLIN | EPOLLONESHOT);
	}
	if (r) {
		alloc_free(p);
		close(pidfd);
		return r;
	}
	list_add_tail(&t->all, &p->link);
	*ret = p;
	return 0;
}

/* ---- The other end of a socket ---- */

static int peer_pidfd(int fd, int32_t pid, bool use_peerpidfd)
{
	int pidfd = -1;
	socklen_t len = sizeof(pidfd);

	if (use_peerpidfd) {
		if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0)
			return pidfd;
		if (errno != ENOPROTOOPT)
			return errno == EINVAL ? -ESRCH : -errno; /* EINVAL: it has been reaped */
	}
	pidfd = pidfd_open(pid, 0);
	return pidfd < 0 ? -errno : pidfd;
}

static int peer_credentials(int fd, struct process_id *ret, struct err *e)
{
	struct ucred cred = { 0 };
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
		return err_code(e, -errno, "ask who is at the other end");
	if (cred.pid <= 0)
		return err_set(e, CKPT_EDENIED,
			       "the process at the other end cannot be seen from ckptd's pid "
			       "namespace: run both in one");
	if (cred.uid == UID_OVERFLOW || cred.uid == (uid_t)-1)
		return err_set(e, CKPT_EDENIED,
			       "the uid of process %d has no number in ckptd's user namespace",
			       (int)cred.pid);
	ret->pid = cred.pid;
	ret->uid = cred.uid;
	return 0;
}

int process_of_socket(struct process_table *t, int fd, bool use_peerpidfd, struct process **ret,
		      struct process_id *ret_id, struct err *e)
{
	struct process_id id = { 0 };
	struct process *p;
	int r = peer_credentials(fd, &id, e), pidfd;

	if (r)
		return r;
	pidfd = peer_pidfd(fd, id.pid, use_peerpidfd);
	if (pidfd < 0)
		return err_code(e, pidfd, "open a pidfd of process %d", (int)id.pid);
	r = process_identity(pidfd, id.pid, &id.start);
	if (r == 0 && !pidfd_alive(pidfd))
		r = -ESRCH;
	p = r == 0 ? find(t, id.pid, id.start) : NULL;
	if (p && p->ending) /* by start times: the pid was another's within the same tick */
		r = -ESRCH;
	if (r) {
		close(pidfd);
		return err_code(e, r, "tell which process %d is (is /proc hidden?)", (int)id.pid);
	}
	if (p) {
		close(pidfd);
	} else {
		r = add(t, &id, pidfd, &p);
		if (r)
			return err_code(e, r, "watch process %d", (int)id.pid);
	}
	p->held++;
	*ret = p;
	*ret_id = id;
	return 0;
}

void process_put(struct process *p)
{
	assert(p->held > 0);
	p->held--;
	forget_if_unused(p);
}

bool process_has_ended(const struct process *p)
{
	assert(p->held > 0);
	return p->ended;
}

bool process_follow(struct process *p)
{
	assert(p->held > 0);
	p->followed = true;
	return !p->ended;
}

/* ---- Processes without a conn ---- */

static struct process_table *of(struct processes *p)
{
	return container_of(p, struct process_table, processes);
}

/* The process of the pidfd is *id, which is by its start time if an older ckptd wrote it; 0: *id is
 * its identity now. */
static int recognize(int pidfd, struct process_id *id)
{
	uint64_t now = 0, start = id->start;
	int r = process_identity(pidfd, id->pid, &now);

	if (r == 0 && (now & ~id->start & PROCESS_BY_INODE))
		r = process_start_time(id->pid, &start);
	else
		start = now;
	if (r == 0 && (start != id->start || !pidfd_alive(pidfd)))
		r = -ESRCH;
	if (r == 0)
		id->start = now;
	return r;
}

static int watch_process(struct processes *ps, struct process_id *id)
{
	struct process_table *t = of(ps);
	struct process *p = find(t, id->pid, id->start);
	int pidfd, r;

	assert(loop_is_current(t->loop));
	if (!p) {
		pidfd = id->pid > 0 ? pidfd_open(id->pid, 0) : -1;
		if (pidfd < 0)
			return id->pid <= 0 || errno == EINVAL ? -ESRCH : -errno;
		r = recognize(pidfd, id);
		p = r == 0 ? find(t, id->pid, id->start) : NULL;
		if (r || p)
			close(pidfd);
		else
			r = add(t, id, pidfd, &p);
		if (r)
			return r;
	}
	if (p->ended)
		return -ESRCH;
	p->followed = true;
	return 0;
}

static void unwatch_process(struct processes *ps, const struct process_id *id)
{
	struct process *p = find(of(ps), id->pid, id->start);

	assert(loop_is_current(of(ps)->loop));
	if (!p)
		return;
	p->followed = false;
	forget_if_unused(p);
}

static const struct processes_ops pidfd_ops = {
	.watch = watch_process,
	.unwatch = unwatch_process,
};

/* ---- The table ---- */

int process_table_new(struct loop *loop, struct process_table **ret)
{
	struct process_table *t = alloc_zero(sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->processes.ops = &pidfd_ops;
	t->loop = loop;
	list_init(&t->all);
	*ret = t;
	return 0;
}

void process_table_tell(struct process_table *t, process_ended_fn *ended, process_exit_fn *exited,
			void *arg)
{
	assert(list_empty(&t->all) && !t->tell);
	t->tell = ended;
	t->tell_exit = exited;
	t->tell_arg = arg;
}

struct processes *process_table_processes(struct process_table *t)
{
	return &t->processes;
}

void process_table_free(struct process_table *t)
{
	struct process *p, *tmp;

	if (!t)
		return;
	list_each_safe(p, tmp, &t->all, link) {
		assert(p->held == 0);
		p->followed = false;
		p->telling = false;
		timer_disarm(t->loop, &p->wait);
		forget_if_unused(p);
	}
	alloc_free(t);
}
