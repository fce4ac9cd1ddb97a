/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attack.c - the table of attacks, and those that need no checkpoint: descriptors, questions,
 * messages, connections, declarations, and the supervisor.
 */
#include <config.h>

#include "tests/adversary/attack.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt.h>

#include "base/alloc.h"
#include "model/declaration.h"
#include "tests/adversary/speak.h"
#include "tests/lib/send_fds.h"
#include "tests/lib/silent_fuse.h"
#include "tests/lib/test.h"

void attack_begun(const struct attack_options *o)
{
	static bool told;

	if (!told && write(o->tell, "b", 1) != 1)
		_exit(1);
	told = true;
}

/* ---- The baseline ---- */

static void burn(const struct attack_options *o)
{
	attack_begun(o);
	for (volatile uint64_t n = 0;; n++)
		;
}

/* ---- Descriptors ---- */

static int silent_file = -1;

static int mount_silent(const struct attack_options *o)
{
	char path[300];
	pid_t server;
	int r = mkdir(o->folder, 0755) == 0 || errno == EEXIST ? 0 : -errno;

	snprintf(path, sizeof(path), "%s/../fuse", o->folder);
	unlink(path); /* of an earlier turn */
	if (r == 0)
		r = silent_fuse_mount(o->folder, &server);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/f", o->folder);
	silent_file = open(path, O_RDONLY | O_CLOEXEC);
	return silent_file < 0 ? -errno : 0;
}

/* Files whose close never ends. */
static void silent_files(const struct attack_options *o)
{
	for (;;) {
		int fd = speak_enter_hello(o->socket); /* only then may it send descriptors */

		for (int i = 0; fd >= 0 && i < 4; i++)
			speak_bytes(fd, "x", 1, silent_file, MSG_DONTWAIT);
		attack_begun(o);
		speak_rest(20);
		if (fd >= 0)
			close(fd);
	}
}

/* Gigabytes that are freed where their last descriptor is closed. */
static void large_memfds(const struct attack_options *o)
{
	for (;;) {
		int fd = speak_enter_hello(o->socket), m = memfd_create("large", MFD_CLOEXEC);

		if (fd >= 0 && m >= 0 && fallocate(m, 0, 0, 1ll << 30) == 0)
			speak_bytes(fd, "x", 1, m, 0);
		if (m >= 0)
			close(m);
		attack_begun(o);
		speak_drain(fd, 1000);
		if (fd >= 0)
			close(fd);
	}
}

/* ---- Questions ---- */

/* Jobs that the answers speak of, and events that they have made. */
static void make_jobs(const struct attack_options *o)
{
	uint64_t jobs = test_cap("CKPT_ADVERSARY_JOBS", 300);
	char job[32];

	for (uint64_t i = 0; i < jobs; i++) {
		int fd = speak_enter_hello(o->socket);

		snprintf(job, sizeof(job), "many-%u", (unsigned)i);
		if (fd < 0 || speak_open(fd, job, "run", 0, 1) != 0)
			_exit(1);
		close(fd);
	}
}

/* Many requests at once with long answers. */
static void dear(const struct attack_options *o, int verb)
{
	enum { CONNS = 16 };
	int fds[CONNS];

	for (int i = 0; i < CONNS; i++)
		fds[i] = speak_enter_hello(o->socket);
	for (;; speak_rest(1)) {
		for (int i = 0; i < CONNS; i++) {
			for (int k = 0; fds[i] >= 0 && k < 4; k++)
				speak_admin(fds[i], verb, MSG_DONTWAIT);
			if (fds[i] >= 0 && speak_drain(fds[i], 0))
				continue;
			if (fds[i] >= 0)
				close(fds[i]);
			fds[i] = speak_enter_hello(o->socket);
		}
		attack_begun(o);
	}
}

static void events_asked(const struct attack_options *o)
{
	dear(o, CKPT__ADMIN__VERB__EVENTS);
}

static void status_asked(const struct attack_options *o)
{
	dear(o, CKPT__ADMIN__VERB__STATUS);
}

/* The cheapest message, as often as it can be sent. */
static void messages(const struct attack_options *o)
{
	int fd = -1;

	for (;;) {
		if (fd < 0)
			fd = speak_enter_hello(o->socket);
		attack_begun(o);
		if (fd < 0) {
			speak_rest(1);
			continue;
		}
		for (int i = 0; i < 100; i++)
			speak_hello(fd);
		if (!speak_drain(fd, 0)) {
			close(fd);
			fd = -1;
		}
	}
}

/* As many as the quota allows, which say what they must and then nothing. */
static void fill_quota(const struct attack_options *o)
{
	enum { CONNS = 4000 / ATTACKERS /* more than the quota */ };

	for (int i = 0; i < CONNS; i++) {
		int fd = speak_enter(o->socket);

		if (fd < 0 || !speak_hello(fd))
			break;
	}
}

static void idle_connections(const struct attack_options *o)
{
	fill_quota(o);
	for (;; speak_rest(1)) { /* beyond the quota, again and again */
		int fd = speak_enter(o->socket);

		if (fd >= 0)
			close(fd);
		attack_begun(o);
	}
}

/* ---- Connections that are refused ---- */

enum { PEERS = 2000, LINGERING = 16 /* of one process */ };

static int listen_here(struct sockaddr_in *ret)
{
	const int small = 4096;
	socklen_t len = sizeof(*ret);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	*ret = (struct sockaddr_in){.sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) != 0 ||
	    bind(fd, (struct sockaddr *)ret, sizeof(*ret)) != 0 || listen(fd, 4096) != 0 ||
	    getsockname(fd, (struct sockaddr *)ret, &len) != 0)
		_exit(1);
	return fd;
}

/* A socket whose close takes an hour: its peer does not read what was sent. */
static int make_lingering(const struct sockaddr_in *a)
{
	static const uint8_t bytes[1 << 16];
	const struct linger linger = {1, 3600};
	const int small = 4096;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)) != 0 ||
	    connect(fd, (const struct sockaddr *)a, sizeof(*a)) != 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) != 0)
		_exit(0);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	return fd;
}

/* Ends with its descriptors: the end of a process does not linger. What ckptd has not accepted yet
 * is a connection of a process that has ended. */
static _Noreturn void send_lingering(const struct attack_options *o, const struct sockaddr_in *a)
{
	for (int i = 0; i < LINGERING; i++) {
		int slow = make_lingering(a), fd = speak_enter(o->socket);

		if (fd >= 0)
			speak_bytes(fd, "x", 1, slow, MSG_DONTWAIT);
	}
	_exit(0);
}

/* Beyond the quota, each with a descriptor that lingers when it is closed; from Linux 6.16 on
 * without: the kernel refuses it. */
static void refused(const struct attack_options *o)
{
	static int peers[PEERS]; /* open, or nothing would linger */
	struct sockaddr_in a;
	int listening = listen_here(&a), peer;

	fill_quota(o);
	for (unsigned n = 0;; attack_begun(o)) {
		pid_t pid = fork();

		if (pid == 0)
			send_lingering(o, &a);
		while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		while ((peer = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
			if (peers[n % PEERS] > 0)
				close(peers[n % PEERS]);
			peers[n++ % PEERS] = peer;
		}
	}
}

/* ---- Declarations ---- */

static void *hostile_bytes;
static size_t hostile_len;
static struct digest hostile_digest;

/* Boxes that are disjoint in the last dimension alone, long and shifted in the others: in the order
 * in which they are sorted each lies beside all. */
static void make_hostile(void)
{
	enum { SHARDS = 60000 };
	struct declaration_builder *b;
	struct err e = {0};

	if (declaration_builder_new((struct geometry)GEOMETRY_DEFAULT, &b) < 0)
		_exit(1);
	for (uint32_t i = 0; i < SHARDS; i++) {
		struct shard s = {.name = "t", .name_len = 1, .dtype = CKPT_U8};

		s.global.ndim = s.box.ndim = 3;
		s.global.dim[0] = s.global.dim[1] = 4 * SHARDS;
		s.global.dim[2] = SHARDS;
		s.box.offset[0] = i;
		s.box.length[0] = 2 * SHARDS;
		s.box.offset[1] = ((uint64_t)i * 7919u) % SHARDS;
		s.box.length[1] = 2 * SHARDS;
		s.box.offset[2] = ((uint64_t)i * 104729u) % SHARDS;
		s.box.length[2] = 1;
		if (declaration_add(b, &s, &e) < 0)
			_exit(1);
	}
	if (declaration_finish(b, &hostile_bytes, &hostile_len, &e) < 0)
		_exit(1);
	declaration_builder_free(b);
	hostile_digest = declaration_digest(hostile_bytes, hostile_len);
}

/* Each is checked, for a user that has ended before. */
static void declarations(const struct attack_options *o)
{
	int mfd = speak_memfd(hostile_bytes, hostile_len);
	char job[32];

	for (unsigned n = 0;; n++) {
		int fd = speak_enter_hello(o->socket);

		snprintf(job, sizeof(job), "hostile-%u-%u", o->number, n % 8);
		if (fd >= 0 && speak_open(fd, job, "run", 0, 1) == 0)
			speak_declare(fd, &hostile_digest, NULL, 0, mfd, 200);
		attack_begun(o);
		if (fd >= 0)
			close(fd);
	}
}

/* ---- Answers ---- */

/* As many answers as fit, which the attacker does not read. */
static void unread_answers(const struct attack_options *o)
{
	enum { CONNS = 64, EACH = 2000 };
	char job[32];

	for (;;) {
		int fds[CONNS];

		for (int i = 0; i < CONNS; i++) {
			fds[i] = speak_enter_hello(o->socket);
			snprintf(job, sizeof(job), "unread-%u-%d", o->number, i);
			if (fds[i] < 0 || speak_open(fds[i], job, "run", 0, 1) != 0)
				continue;
			for (int k = 0; k < EACH; k++)
				if (!speak_list(fds[i], MSG_DONTWAIT) ||
				    !speak_admin(fds[i], CKPT__ADMIN__VERB__EVENTS, MSG_DONTWAIT))
					break;
		}
		attack_begun(o);
		speak_rest(100);
		for (int i = 0; i < CONNS; i++)
			if (fds[i] >= 0)
				close(fds[i]);
	}
}

/* ---- The supervisor ---- */

enum { NAMES = 64, NAME = 128 };

/* Datagram sockets with an abstract name. */
static unsigned abstract_names(char names[NAMES][NAME])
{
	char line[512];
	FILE *f = fopen("/proc/net/unix", "re");
	unsigned n = 0;

	while (f && n < NAMES && fgets(line, sizeof(line), f)) {
		char *at = strchr(line, '@');

		if (at && sscanf(at + 1, "%127[^\n]", names[n]) == 1)
			n++;
	}
	if (f)
		fclose(f);
	return n;
}

/* Goes without them on a machine that has no such files. */
static int mount_if_can(const struct attack_options *o)
{
	if (mount_silent(o) < 0)
		silent_file = -1;
	return 0;
}

/* One byte, and the silent file: a process that receives and closes it hangs. */
static void send_to_name(int fd, const char *name)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	size_t len = strlen(name);
	struct fds_message m = {.bytes = "x",
				.len = 1,
				.fds = &silent_file,
				.n_fds = silent_file >= 0,
				.name = &a,
				.flags = MSG_DONTWAIT};

	if (len >= sizeof(a.sun_path) - 1)
		return;
	memcpy(a.sun_path + 1, name, len);
	m.name_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
	ignore_result((int)send_fds_message(fd, &m));
}

/* Each gets as much as its queue holds. */
static void supervisor_flood(const struct attack_options *o)
{
	static char names[NAMES][NAME];
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	for (;; attack_begun(o)) {
		unsigned n = abstract_names(names);

		for (unsigned k = 0; k < 10000 * n; k++) {
			send_to_name(fd, names[k % n]);
			if (k % 1024 == 0)
				attack_begun(o);
		}
	}
}

const struct attack attacks[] = {
	{"burn", burn, NULL, NULL, NULL, NULL},
	{"silent_files", silent_files, mount_silent, NULL, NULL, NULL},
	{"large_memfds", large_memfds, NULL, NULL, NULL, NULL},
	{"events", events_asked, NULL, make_jobs, NULL, NULL},
	{"status", status_asked, NULL, make_jobs, NULL, NULL},
	{"messages", messages, NULL, NULL, NULL, NULL},
	{"idle_connections", idle_connections, NULL, NULL, NULL, NULL},
	{"refused", refused, NULL, NULL, NULL, NULL},
	{"refused_before_6_16", refused, NULL, NULL, NULL, "LISTEN_PASSRIGHTS=error@1+"},
	{"declarations", declarations, NULL, NULL, make_hostile, NULL},
	{"large_declarations", attack_large_declarations, NULL, NULL,
	 attack_large_declarations_make, NULL},
	{"unread_answers", unread_answers, NULL, NULL, NULL, NULL},
	{"unread_loads", attack_unread_loads, NULL, attack_unread_loads_setup, NULL, NULL},
	{"saves_and_loads", attack_saves_and_loads, NULL, NULL, NULL, NULL},
	{"plans", attack_plans, NULL, attack_plans_setup, attack_plans_make, NULL},
	{"waits", attack_waits, NULL, NULL, NULL, NULL},
	{"lists", attack_lists, NULL, attack_lists_setup, NULL, NULL},
	{"ends", attack_ends, NULL, NULL, NULL, NULL},
	{"places", attack_places, NULL, NULL, NULL, NULL},
	{"many_ranks", attack_many_ranks, NULL, NULL, NULL, NULL},
	{"supervisor_flood", supervisor_flood, mount_if_can, NULL, NULL, NULL},
};
const size_t n_attacks = sizeof(attacks) / sizeof(attacks[0]);
