/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tools/check_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tools/node_check.h"

/* Here, so that what measures a pair needs nothing else of the tool. */
double check_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

enum { HOST_MAX = 256, PORT_MAX = 16, BACKLOG = 128, RETRY_MS = 100 };

static int split(const char *address, char host[HOST_MAX], char port[PORT_MAX], struct err *e)
{
	const char *colon = strrchr(address, ':');
	size_t n = colon ? (size_t)(colon - address) : 0;

	if (!colon || n == 0 || n >= HOST_MAX || !colon[1] || strlen(colon + 1) >= PORT_MAX)
		return err_set(e, -EINVAL, "'%s' is no address: write HOST:PORT", address);
	if (address[0] == '[' && address[n - 1] == ']') {
		address++;
		n -= 2;
	}
	snprintf(host, HOST_MAX, "%.*s", (int)n, address);
	snprintf(port, PORT_MAX, "%s", colon + 1);
	return 0;
}

static int resolve(const char *address, int flags, struct addrinfo **ret, struct err *e)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
	char host[HOST_MAX], port[PORT_MAX];
	int r = split(address, host, port, e);

	if (r < 0)
		return r;
	r = getaddrinfo(host, port, &hints, ret);
	return r ? err_set(e, -EINVAL, "find the address '%s': %s", address, gai_strerror(r)) : 0;
}

int check_listen(const char *address, int *ret_fd, struct err *e)
{
	struct addrinfo *list = NULL;
	int fd, one = 1, r = resolve(address, AI_PASSIVE, &list, e);

	if (r < 0)
		return r;
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
	    bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
		r = err_code(e, -errno, "listen at '%s'", address);
		if (fd >= 0)
			close(fd);
	} else {
		*ret_fd = fd;
	}
	freeaddrinfo(list);
	return r < 0 ? r : 0;
}

/* Milliseconds for poll(). */
static int left_ms(double deadline)
{
	double left = (deadline - check_now()) * 1e3;

	return left <= 0 ? 0 : left > 1e6 ? 1000000 : (int)ceil(left);
}

static int wait_for(int fd, short events, double deadline)
{
	struct pollfd p = {.fd = fd, .events = events};
	int r;

	do
		r = poll(&p, 1, left_ms(deadline));
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r == 0 ? -ETIMEDOUT : 0;
}

static int connect_once(const struct addrinfo *a, double deadline, int *ret_fd)
{
	int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r = 0,
	    one = 1;
	socklen_t len = sizeof(r);

	if (fd < 0)
		return -errno;
	if (connect(fd, a->ai_addr, a->ai_addrlen) < 0)
		r = -errno;
	if (r == -EINPROGRESS) {
		r = wait_for(fd, POLLOUT, deadline);
		if (r == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &len) < 0)
			r = -errno;
		r = r > 0 ? -r : r;
	}
	if (r == 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0)
		r = -errno;
	if (r < 0)
		close(fd);
	else
		*ret_fd = fd;
	return r;
}

int check_connect(const char *address, double deadline, int *ret_fd, struct err *e)
{
	struct addrinfo *list = NULL;
	int r = resolve(address, 0, &list, e);

	if (r < 0)
		return r;
	for (;;) {
		r = connect_once(list, deadline, ret_fd);
		if (r == 0 || check_now() >= deadline)
			break;
		poll(NULL, 0, RETRY_MS);
	}
	freeaddrinfo(list);
	return r < 0 ? err_code(e, r, "reach '%s'", address) : 0;
}

int check_accept(int listener, double deadline, int *ret_fd)
{
	int fd, one = 1;

	for (;;) {
		int r = wait_for(listener, POLLIN, deadline);

		if (r < 0)
			return r == -ETIMEDOUT ? -EAGAIN : r;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0)
			break;
		if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
			return -errno;
	}
	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0) {
		close(fd);
		return -errno;
	}
	*ret_fd = fd;
	return 0;
}

static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
	if (!a || !b || a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return a->sa_family == AF_INET6 &&
	       memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
		      &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

bool check_is_mine(const char *address)
{
	struct addrinfo *list = NULL;
	struct ifaddrs *mine = NULL;
	bool found = false;

	if (resolve(address, 0, &list, NULL) < 0)
		return false;
	if (getifaddrs(&mine) == 0)
		for (struct ifaddrs *i = mine; i && !found; i = i->ifa_next)
			found = same_host(i->ifa_addr, list->ai_addr);
	freeifaddrs(mine);
	freeaddrinfo(list);
	return found;
}

int check_send(int fd, const void *bytes, size_t len, double deadline)
{
	const char *p = bytes;

	while (len > 0) {
		ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
		int r;

		if (n >= 0) {
			p += n;
			len -= (size_t)n;
			if (n > 0 && check_now() < deadline)
				continue;
		} else if (errno != EAGAIN && errno != EINTR) {
			return -errno;
		}
		r = len > 0 ? wait_for(fd, POLLOUT, deadline) : 0;
		if (r < 0)
			return r;
	}
	return 0;
}

int check_receive(int fd, void *bytes, size_t len, double deadline)
{
	char *p = bytes;

	while (len > 0) {
		ssize_t n = recv(fd, p, len, 0);
		int r;

		if (n == 0)
			return -EPIPE;
		if (n > 0) {
			p += n;
			len -= (size_t)n;
			continue;
		}
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		r = wait_for(fd, POLLIN, deadline);
		if (r < 0)
			return r;
	}
	return 0;
}

int check_send_line(int fd, json_t *message, double deadline)
{
	char *text = json_dumps(message, JSON_COMPACT);
	int r;

	json_decref(message);
	if (!text)
		return -ENOMEM;
	r = check_send(fd, text, strlen(text), deadline);
	if (r == 0)
		r = check_send(fd, "\n", 1, deadline);
	alloc_free(text);
	return r;
}

/* Byte by byte, so that nothing behind the line is taken: lines are few and short. */
int check_receive_line(int fd, double deadline, json_t **ret)
{
	CLEANUP_FREE char *line = alloc_zero(CHECK_LINE_MAX);

	if (!line)
		return -ENOMEM;
	for (size_t n = 0; n < CHECK_LINE_MAX - 1; n++) {
		int r = check_receive(fd, line + n, 1, deadline);

		if (r < 0)
			return r;
		if (line[n] != '\n')
			continue;
		*ret = json_loadb(line, n, 0, NULL);
		return *ret ? 0 : -EPROTO;
	}
	return -EPROTO;
}
