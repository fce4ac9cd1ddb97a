/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.c - trainers as the one who orders sees them.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/trainer.h"

static void become_trainer(int fd)
{
	char number[16];

	fcntl(fd, F_SETFD, 0); /* all others end here: the end of one is seen by its peer alone */
	snprintf(number, sizeof(number), "%d", fd);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl("/proc/self/exe", "ckpt-bench", "--trainer", number, (char *)NULL);
	_exit(127);
}

int trainer_start(struct trainer *t, struct err *e)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
		return err_code(e, -errno, "start a trainer");
	t->pid = fork();
	if (t->pid == 0) {
		become_trainer(pair[1]);
	}
	close(pair[1]);
	if (t->pid < 0) {
		int r = -errno;

		close(pair[0]);
		return err_code(e, r, "start a trainer");
	}
	t->fd = pair[0];
	return 0;
}

void trainer_stop(struct trainer *t)
{
	if (t->pid <= 0)
		return;
	close(t->fd);
	while (waitpid(t->pid, NULL, 0) < 0 && errno == EINTR)
		;
	t->pid = 0;
}

void trainer_kill(struct trainer *t)
{
	if (t->pid > 0)
		kill(t->pid, SIGKILL);
	trainer_stop(t);
}

int trainer_send(struct trainer *t, const struct order *o, struct err *e)
{
	assert(t->pid > 0);
	if (send(t->fd, o, sizeof(*o), MSG_NOSIGNAL) != (ssize_t)sizeof(*o))
		return err_set(e, -EPIPE, "a trainer has ended");
	return 0;
}

int trainer_receive(struct trainer *t, struct answer *ret, struct err *e)
{
	ssize_t n;

	do
		n = recv(t->fd, ret, sizeof(*ret), 0);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*ret))
		return err_set(e, -EPIPE, "a trainer has ended (out of memory?)");
	return ret->code < 0 ? err_set(e, ret->code, "%s", ret->text) : 0;
}

int trainer_ask(struct trainer *t, const struct order *o, struct answer *ret, struct err *e)
{
	int r = trainer_send(t, o, e);

	return r < 0 ? r : trainer_receive(t, ret, e);
}
