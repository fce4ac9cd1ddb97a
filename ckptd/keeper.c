/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.c - client of the fd store (sd_pid_notify_with_fds(3), sd_listen_fds(3), by hand).
 *
 *   1. store() and remove() return 0 only after a barrier: what the store has then does not depend
 *      on whether this process lives on.
 *   2. One of them runs at a time (`lock`): the supervisor's answer to a barrier speaks of what
 *      came before it, and must not speak of another call's.
 *   3. `used` and `names` are never less than what the store has: counted before it is asked,
 *      uncounted only when it has certainly not taken the descriptor, or has removed it.
 *      Descriptors that were passed to this process count too, with the socket of a socket unit,
 *      which systemd does not count. So the keeper sends nothing that systemd would drop silently.
 *
 * Locks: `lock` is held while the store answers, `count_lock` guards what is counted and is held
 * for moments.
 */
#include <config.h>

#include "ckptd/keeper.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"

enum { FIRST_FD = 3, BARRIER_TIMEOUT_MS = 10000, PASSED_MAX = 1 << 16 };

struct passed {
	int fd; /* -1: taken */
	const char *name; /* in keeper.passed_names, or "" */
};

struct keeper {
	struct notify *notify;
	pthread_mutex_t lock;
	char *passed_names;
	struct passed *passed;
	size_t n_passed;
	pthread_mutex_t count_lock;
	uint64_t used, names; /* (3): descriptors, bytes of their names */
	uint64_t max;         /* UINT64_MAX: not known */
};

static bool name_is_valid(const char *name)
{
	size_t len = strlen(name);

	for (const char *p = name; *p; p++) {
		if (*p == ':' || (unsigned char)*p < 0x20 || *p == 0x7f)
			return false;
	}
	return len > 0 && len <= KEEPER_NAME_MAX;
}

/* How many descriptors were passed to this process; 0 when they were meant for another. */
static int passed_count(size_t *ret, struct err *e)
{
	const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
	unsigned long n;
	char *end;

	*ret = 0;
	if (!pid || !fds || strtoll(pid, NULL, 10) != getpid())
		return 0;
	errno = 0;
	n = strtoul(fds, &end, 10);
	if (errno || end == fds || *end || n > PASSED_MAX)
		return err_set(e, -EPROTO, "LISTEN_FDS='%s' is not a number of descriptors", fds);
	*ret = n;
	return 0;
}

static int read_passed(struct keeper *k, struct err *e)
{
	const char *names = getenv("LISTEN_FDNAMES");
	char *at, *name;
	int r = passed_count(&k->n_passed, e), flags;

	if (r || k->n_passed == 0)
		return r;
	k->passed = alloc_array(k->n_passed, sizeof(*k->passed));
	k->passed_names = alloc_copy(names ? names : "", names ? strlen(names) + 1 : 1);
	if (!k->passed || !k->passed_names) {
		k->n_passed = 0;
		return err_code(e, -ENOMEM, "take over the passed descriptors");
	}
	k->used = k->n_passed;
	k->names = strlen(k->passed_names) + 1;
	at = k->passed_names;
	for (size_t i = 0; i < k->n_passed; i++) {
		name = strsep(&at, ":");
		k->passed[i] = (struct passed){ FIRST_FD + (int)i, name ? name : "" };
		flags = fcntl(k->passed[i].fd, F_GETFD);
		if (flags < 0 || fcntl(k->passed[i].fd, F_SETFD, flags | FD_CLOEXEC) != 0)
			return err_code(e, -errno, "take over passed descriptor %d ('%s')",
					k->passed[i].fd, k->passed[i].name);
	}
	return 0;
}

static int read_max(struct keeper *k, struct err *e)
{
	const char *text = getenv(KEEPER_MAX_VAR);
	unsigned long long max;
	char *end;

	k->max = UINT64_MAX;
	if (!text)
		return 0;
	errno = 0;
	max = strtoull(text, &end, 10);
	if (errno || text[0] < '0' || text[0] > '9' || *end)
		return err_set(e, -EPROTO, KEEPER_MAX_VAR "='%s' is not a number of descriptors",
			       text);
	k->max = max;
	return 0;
}

int keeper_open(struct notify *n, struct keeper **ret, struct err *e)
{
	struct keeper *k = alloc_zero(sizeof(*k));
	int r;

	if (!k)
		return err_code(e, -ENOMEM, "open the fd store");
	k->notify = n;
	r = pthread_mutex_init(&k->lock, NULL);
	assert(r == 0);
	r = pthread_mutex_init(&k->count_lock, NULL);
	assert(r == 0);
	r = read_max(k, e);
	if (r == 0)
		r = read_passed(k, e);
	unsetenv(KEEPER_MAX_VAR);
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	if (r) {
		keeper_free(k);
		return r;
	}
	*ret = k;
	return 0;
}

void keeper_free(struct keeper *k)
{
	if (!k)
		return;
	for (size_t i = 0; i < k->n_passed; i++) {
		if (k->passed[i].fd >= 0)
			close(k->passed[i].fd);
	}
	pthread_mutex_destroy(&k->count_lock);
	pthread_mutex_destroy(&k->lock);
	alloc_free(k->passed);
	alloc_free(k->passed_names);
	alloc_free(k);
}

bool keeper_keeps(const struct keeper *k)
{
	return notify_listened(k->notify);
}

/* ---- What the store has (3) ---- */

void keeper_set_max(struct keeper *k, uint64_t max)
{
	if (k->max == UINT64_MAX)
		k->max = max;
}

void keeper_room(struct keeper *k, struct memory_room *ret)
{
	*ret = (struct memory_room){ 0, UINT64_MAX, UINT64_MAX };
	if (!keeper_keeps(k))
		return;
	pthread_mutex_lock(&k->count_lock);
	ret->used = k->used;
	ret->max = k->max;
	ret->left = min_u64(k->max - min_u64(k->used, k->max),
			    (KEEPER_NAMES_MAX - min_u64(k->names, KEEPER_NAMES_MAX)) /
				    KEEPER_NAME_USUAL);
	pthread_mutex_unlock(&k->count_lock);
}

static int count(struct keeper *k, const char *name)
{
	uint64_t len = strlen(name) + 1;
	int r = 0;

	pthread_mutex_lock(&k->count_lock);
	if (k->used >= k->max || k->names + len > KEEPER_NAMES_MAX) {
		r = CKPT_ENOSPACE;
	} else {
		k->used++;
		k->names += len;
	}
	pthread_mutex_unlock(&k->count_lock);
	return r;
}

/* A name that was never counted leaves the numbers as they are. */
static void uncount(struct keeper *k, const char *name)
{
	uint64_t len = strlen(name) + 1;

	pthread_mutex_lock(&k->count_lock);
	if (k->used > 0 && k->names >= len) {
		k->used--;
		k->names -= len;
	}
	pthread_mutex_unlock(&k->count_lock);
}

/* ---- Requests to the store ---- */

/* ret_sent: whether the message was sent, so that the store may have acted on it also on an
 * error. */
static int send_and_wait(struct keeper *k, const char *text, const int *fd, bool *ret_sent)
{
	int r;

	pthread_mutex_lock(&k->lock); /* (2) */
	r = notify_send(k->notify, text, fd, fd ? 1 : 0);
	*ret_sent = r == 0;
	if (r == 0)
		r = notify_barrier(k->notify, BARRIER_TIMEOUT_MS); /* (1) */
	pthread_mutex_unlock(&k->lock);
	return r;
}

int keeper_store(struct keeper *k, const char *name, int fd)
{
	char text[KEEPER_NAME_MAX + 64];
	bool sent;
	int r;

	assert(name_is_valid(name) && fd >= 0);
	if (!keeper_keeps(k))
		return 0;
	r = count(k, name);
	if (r)
		return r;
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
	r = send_and_wait(k, text, &fd, &sent);
	if (r == -EIO || (r && !sent)) /* -EIO: the supervisor has refused it */
		uncount(k, name);
	return r;
}

int keeper_remove(struct keeper *k, const char *name)
{
	char text[KEEPER_NAME_MAX + 64];
	bool sent;
	int r;

	assert(name_is_valid(name));
	if (!keeper_keeps(k))
		return 0;
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	r = send_and_wait(k, text, NULL, &sent);
	if (r == 0)
		uncount(k, name);
	return r;
}

bool keeper_has(const struct keeper *k, const char *prefix)
{
	for (size_t i = 0; i < k->n_passed; i++) {
		if (k->passed[i].fd >= 0 && strncmp(k->passed[i].name, prefix, strlen(prefix)) == 0)
			return true;
	}
	return false;
}

int keeper_take(struct keeper *k, const char *name, char ret_name[KEEPER_NAME_MAX + 1])
{
	for (size_t i = 0; i < k->n_passed; i++) {
		struct passed *p = &k->passed[i];
		int fd = p->fd;

		if (fd < 0 || (name && strcmp(name, p->name) != 0))
			continue;
		if (ret_name)
			snprintf(ret_name, KEEPER_NAME_MAX + 1, "%s", p->name);
		p->fd = -1;
		return fd;
	}
	return -ENOENT;
}
