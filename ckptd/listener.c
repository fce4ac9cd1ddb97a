/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.c - the socket where trainers and tools come in.
 *
 *   1. A path is taken over only if it is a socket on which nobody listens; another ckptd is never
 *      pushed aside, and what is no socket is never removed. One that was killed and is still
 *      ending is waited for (predecessor.h).
 *   2. The path has its mode from the moment it exists (bind() takes it from the descriptor).
 *   3. Nobody is let in whose process or uid the kernel does not name, nor above the quotas.
 *   4. Out of descriptors: accepting pauses instead of spinning on a readable socket.
 *
 *   5. No connection has descriptors in it before it is let in: accepted sockets inherit from the
 *      listening one that the kernel refuses them (SO_PASSRIGHTS, Linux 6.16). On older kernels it
 *      may, and so may one that was made before ckptd got a socket from socket activation. One that
 *      is refused is then closed as conn_socket.c closes others, and accepting pauses for all while
 *      many of these are not closed yet: the kernel names a connection's user only when it has been
 *      accepted. Connections that were never accepted are looked at in the same way at the end.
 *
 * Refused connections are closed without a word: no protocol is spoken here. The log has the
 * reason, at most one line a second.
 */
#include <config.h>

#include "ckptd/listener.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/conn_socket.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/predecessor.h"
#include "ckptd/processes.h"

enum { ACCEPTS_MAX = 8, BACKLOG = 1024, PAUSE_MS = 100, REFUSED_PAUSE_MS = 5 };

struct listener {
	struct loop *loop;
	struct listener_options options;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "": socket activation */
	dev_t dev; /* of the path, to remove nobody else's */
	ino_t ino;
	struct watch watch; /* the listening socket */
	struct timer pause;
	struct process_table *table;
	struct conn_hub hub;
};

/* ---- Coming in ---- */

/* Also of a process that has ended. */
static uint32_t uid_of_peer(int fd)
{
	struct ucred cred = {.uid = UINT32_MAX};
	socklen_t len = sizeof(cred);

	ignore_result(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len));
	return cred.uid;
}

/* Finds out which process has connected, and whether it is let in; takes fd. */
static int admit(struct listener *l, int fd, struct err *e)
{
	struct process *p;
	struct process_id id;
	int r;

	r = process_of_socket(l->table, fd, !l->options.no_peerpidfd, &p, &id, e);
	if (r) {
		conn_refuse(&l->hub, fd, uid_of_peer(fd)); /* (5) */
		return r;
	}
	if (l->hub.n_conns >= l->options.conns_max)
		r = err_set(e, -EMFILE, "process %d (uid %u): there are %u connections already "
			    "(quota.connections)", (int)id.pid, id.uid, l->hub.n_conns);
	else if (conn_hub_count(&l->hub, id.uid) >= l->options.conns_per_uid)
		r = err_set(e, -EDQUOT, "process %d: uid %u has %u connections already "
			    "(quota.connections_per_uid)", (int)id.pid, id.uid,
			    l->options.conns_per_uid);
	if (r) {
		process_put(p);
		conn_refuse(&l->hub, fd, id.uid);
		return r;
	}
	r = conn_socket_open(&l->hub, fd, p, &id);
	return r ? err_code(e, r, "process %d", (int)id.pid) : 0;
}

static void pause_accepting(struct listener *l, unsigned ms)
{
	watch_remove(l->loop, &l->watch);
	timer_arm(l->loop, &l->pause, loop_now(l->loop) + ms * 1000000ull);
}

static void pause_over(struct timer *t)
{
	struct listener *l = container_of(t, struct listener, pause);

	if (watch_set(l->loop, &l->watch, EPOLLIN) != 0)
		timer_arm(l->loop, t, loop_now(l->loop) + PAUSE_MS * 1000000ull);
}

static void listening_ready(struct watch *w, uint32_t events)
{
	struct listener *l = container_of(w, struct listener, watch);
	struct err e;
	int fd;

	(void)events;
	loop_label(l->loop, "connections that come in");
	for (int n = 0; n < ACCEPTS_MAX; n++) {
		if (l->hub.n_refused >= CONN_REFUSED_MAX) { /* (5) */
			log_limited(l->hub.log, &l->hub.limit, loop_now(l->loop), LOG_WARNING,
				    "%u connections that were refused wait to be closed: others "
				    "wait to come in", l->hub.n_refused);
			pause_accepting(l, REFUSED_PAUSE_MS);
			return;
		}
		fd = accept4(w->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
			       errno == ENOBUFS)) {
			log_limited(l->hub.log, &l->hub.limit, loop_now(l->loop), LOG_ERR,
				    "could not accept a connection: %s", err_text(-errno));
			pause_accepting(l, PAUSE_MS); /* (4) */
			return;
		}
		if (fd < 0)
			return; /* EAGAIN: no more; what else fails, fails for that one peer */
		err_clear(&e);
		if (admit(l, fd, &e) != 0)
			log_limited(l->hub.log, &l->hub.limit, loop_now(l->loop), LOG_WARNING,
				    "connection refused: %s", e.text);
	}
}

static void process_ended(void *arg, const struct process_id *id)
{
	struct listener *l = arg;

	if (l->hub.events)
		l->hub.events->process_ended(l->hub.events_arg, id);
}

static void process_exit(void *arg, const struct process_id *id, const struct process_exit *x)
{
	struct listener *l = arg;

	if (l->hub.events && l->hub.events->process_exit)
		l->hub.events->process_exit(l->hub.events_arg, id, x);
}

/* ---- The socket ---- */

/* 0 when the path may be removed: a socket that nobody listens on (1). */
static int is_stale(const struct sockaddr_un *addr, socklen_t len, struct err *e)
{
	struct stat st;
	int fd, pid, r;

	if (lstat(addr->sun_path, &st) != 0)
		return errno == ENOENT ? 0 : err_code(e, -errno, "look at '%s'", addr->sun_path);
	if (!S_ISSOCK(st.st_mode))
		return err_set(e, -EEXIST, "socket '%s': there is something else of that name: "
			       "remove it or choose another path", addr->sun_path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_code(e, -errno, "make a socket");
	r = connect(fd, (const struct sockaddr *)addr, len) == 0 ? 0 : errno;
	pid = r == 0 ? predecessor_of_socket(fd) : 0;
	close(fd);
	if (r == ECONNREFUSED)
		return 0;
	if (pid > 0)
		return err_set(e, -EADDRINUSE, "socket '%s': process %d listens on it: stop it or "
			       "choose another path (--socket)", addr->sun_path, pid);
	return err_set(e, -EADDRINUSE, "socket '%s': another program listens on it: stop it or "
		       "choose another path (--socket)", addr->sun_path);
}

/* What root starts without a service manager is for the users of the group all the same. */
static void give_to_group(const struct listener *l)
{
	const struct group *g = l->options.group ? getgrnam(l->options.group) : NULL;

	if (g && lchown(l->path, (uid_t)-1, g->gr_gid) != 0)
		log_print(l->hub.log, LOG_WARNING, "cannot give socket '%.150s' to group '%s': %s",
			  l->path, l->options.group, err_text(-errno));
}

static int bind_path(struct listener *l, int fd, struct err *e)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(addr);
	struct stat st;
	int r;

	memcpy(addr.sun_path, l->path, sizeof(addr.sun_path));
	predecessor_wait_socket(&addr, l->hub.log);
	r = is_stale(&addr, len, e);
	if (r)
		return r;
	if (unlink(l->path) != 0 && errno != ENOENT)
		return err_code(e, -errno, "remove the stale socket '%s'", l->path);
	if (fchmod(fd, l->options.mode) != 0 || bind(fd, (struct sockaddr *)&addr, len) != 0)
		return err_set(e, -errno,
			       "cannot make socket '%.150s': %s: make its folder, or be one that "
			       "may write there, or name another one with --socket",
			       l->path, err_text(-errno));
	give_to_group(l);
	/* The umask took bits away from what fchmod() gave (2). */
	if (chmod(l->path, l->options.mode) != 0 || stat(l->path, &st) != 0)
		return err_code(e, -errno, "set the mode of socket '%s'", l->path);
	l->dev = st.st_dev;
	l->ino = st.st_ino;
	if (listen(fd, BACKLOG) != 0)
		return err_code(e, -errno, "listen on socket '%s'", l->path);
	return 0;
}

static int check_passed(int fd, struct err *e)
{
	int type = 0, listening = 0, flags = fcntl(fd, F_GETFL);
	socklen_t len = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_SEQPACKET ||
	    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len) != 0 || !listening)
		return err_set(e, -EINVAL, "the socket passed by the service manager is not a "
			       "listening sequential-packet socket: use ListenSequentialPacket=");
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
		return err_code(e, -errno, "make the passed socket non-blocking");
	return 0;
}

/* (5) */
static void refuse_descriptors(const struct listener *l, int fd)
{
	int off = 0;

	if (!l->options.no_passrights && !FAULT(LISTEN_PASSRIGHTS)) /* an older kernel fails */
		ignore_result(setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof(off)));
}

static int open_socket(struct listener *l, struct err *e)
{
	const struct listener_options *o = &l->options;
	int fd, r;

	if (o->fd >= 0) {
		r = check_passed(o->fd, e);
		if (r == 0)
			refuse_descriptors(l, o->fd);
		return r;
	}
	if (strlen(o->path) >= sizeof(l->path))
		return err_set(e, -ENAMETOOLONG, "socket '%s': a path of at most %zu bytes is "
			       "possible", o->path, sizeof(l->path) - 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_code(e, -errno, "make a socket");
	l->watch.fd = fd;
	refuse_descriptors(l, fd);
	memcpy(l->path, o->path, strlen(o->path) + 1);
	return bind_path(l, fd, e);
}

/* ---- Life ---- */

int listener_new(struct loop *loop, const struct listener_options *o, struct listener **ret,
		 struct err *e)
{
	struct listener *l = alloc_zero(sizeof(*l));
	int r;

	assert(loop_is_current(loop));
	assert((o->fd >= 0) == (o->path == NULL));
	if (!l) {
		if (o->fd >= 0)
			close(o->fd);
		return err_code(e, -ENOMEM, "make the listener");
	}
	l->loop = loop;
	l->options = *o;
	watch_init(&l->watch, o->fd, listening_ready);
	timer_init(&l->pause, pause_over);
	conn_hub_init(&l->hub, loop, o->log);
	l->hub.handshake_ns = o->handshake_ns;
	l->hub.program = o->program;
	r = process_table_new(loop, &l->table);
	if (r)
		err_code(e, r, "make the listener");
	else
		r = open_socket(l, e);
	if (r) {
		listener_free(l);
		return r;
	}
	process_table_tell(l->table, process_ended, process_exit, l);
	*ret = l;
	return 0;
}

int listener_start(struct listener *l, const struct conn_events *events, void *arg, struct err *e)
{
	int r;

	assert(!l->hub.events && events);
	l->hub.events = events;
	l->hub.events_arg = arg;
	r = watch_set(l->loop, &l->watch, EPOLLIN);
	return r ? err_code(e, r, "watch the socket") : 0;
}

void listener_stop(struct listener *l)
{
	int on = 1;

	watch_remove(l->loop, &l->watch);
	timer_disarm(l->loop, &l->pause);
	if (l->options.fd >= 0) /* passed on to the next ckptd, which may be an older one */
		ignore_result(
			setsockopt(l->options.fd, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof(on)));
}

struct processes *listener_processes(struct listener *l)
{
	return process_table_processes(l->table);
}

/* Nothing is closed that may block: the end of this process closes it (5). */
static void close_listening(struct listener *l)
{
	int fd = l->watch.fd, conn;

	if (fd < 0 || l->options.fd >= 0) /* passed: connections wait there for the next ckptd */
		return;
	shutdown(fd, SHUT_RDWR); /* nothing more comes */
	while ((conn = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		ignore_result(conn_close_if_empty(conn));
	if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
		close(fd); /* it is empty */
}

void listener_free(struct listener *l)
{
	struct stat st;

	if (!l)
		return;
	listener_stop(l);
	conn_hub_drop_all(&l->hub);
	process_table_free(l->table);
	if (l->ino && stat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
		unlink(l->path);
	close_listening(l);
	alloc_free(l);
}
