/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silence.c - see silence.h.
 *
 * The process is the one that made the socket listen: ckptd, or what started it. What its state is
 * stands in /proc, where that may be read; without it the line says where else to look.
 */
#include <config.h>

#include "tools/silence.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct state {
	char letter;
	const char *word, *remedy;
};

static const struct state states[] = {
	{'T', "stopped", "'kill -CONT' of it lets it go on"},
	{'t', "stopped by a debugger", "end the debugger, or let it go on"},
	{'D', "waits for a disk or a driver",
	 "look at the kernel's log and at the data folder's disk"},
	{'R', "runs", "it is busy: look at its log, and at what else takes the processors"},
	{'S', "sleeps", "look at its log; restart it if it goes on"},
	{'Z', "ended", "restart it"},
};

/* NULL: it cannot be found out. */
static const struct state *state_of(int pid)
{
	char path[64], line[512] = "", letter = 0;
	const char *end;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	/* The name before it may have any character. */
	end = read(fd, line, sizeof(line) - 1) > 0 ? strrchr(line, ')') : NULL;
	close(fd);
	if (end && end[1] == ' ')
		letter = end[2];
	for (size_t i = 0; letter && i < sizeof(states) / sizeof(states[0]); i++)
		if (states[i].letter == letter)
			return &states[i];
	return NULL;
}

void silence_tell(const char *path, int fd, int seconds)
{
	struct ucred peer = {0};
	socklen_t len = sizeof(peer);
	const struct state *s = NULL;

	if (fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid > 0)
		s = state_of((int)peer.pid);
	if (s)
		fprintf(stderr,
			"ckptctl: ckptd at '%s' has not answered for %d s and is waited for: its "
			"process %d is in state %c (%s): %s\n",
			path, seconds, (int)peer.pid, s->letter, s->word, s->remedy);
	else if (peer.pid > 0)
		fprintf(stderr,
			"ckptctl: ckptd at '%s' has not answered for %d s and is waited for: look "
			"at its log, and at its process %d\n",
			path, seconds, (int)peer.pid);
	else
		fprintf(stderr,
			"ckptctl: ckptd at '%s' has not answered for %d s and is waited for: look "
			"at its log, and whether its process is stopped or hangs\n",
			path, seconds);
}
