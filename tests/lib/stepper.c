/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepper.c - a rank that trains by itself, for tests of the failure detector: step after step of
 * some milliseconds, a collective with the other ranks, a beat. tests/it/test_detect.c starts it.
 *
 *   stepper JOB RANK WORLD RUN FOLDER STEP_MS
 *
 * Half of a step is computed, the other half it waits for a "device", as trainers do. The
 * collective is a barrier in shared memory: who waits there sleeps until the others come. Signals
 * are the faults that a test cannot bring about from outside:
 *
 *   SIGUSR1   it waits for ever, for what never comes: a deadlock
 *   SIGUSR2   the loss of the next step is NaN
 *
 * FOLDER/barrier is the shared memory, which the test makes; FOLDER/step.RANK counts its steps.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <ckpt.h>

#include "tests/lib/stepper.h"

static volatile sig_atomic_t deadlock, nan_next;

static void on_signal(int number)
{
	if (number == SIGUSR1)
		deadlock = 1;
	else
		nan_next = 1;
}

static struct stepper_shared *map_shared(const char *folder)
{
	char path[300];
	void *p;
	int fd;

	snprintf(path, sizeof(path), "%s/barrier", folder);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	p = mmap(NULL, sizeof(struct stepper_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return p == MAP_FAILED ? NULL : p;
}

static double cpu_ms(void)
{
	return (double)clock() * 1000 / CLOCKS_PER_SEC;
}

static void work(unsigned step_ms)
{
	double until = cpu_ms() + step_ms / 2.0;
	struct timespec device = {0, (long)(step_ms / 2) * 1000000};

	while (cpu_ms() < until)
		;
	nanosleep(&device, NULL);
}

static int train(struct ckpt *c, struct stepper_shared *s, int rank, unsigned step_ms)
{
	struct ckpt_beat b = {.size = sizeof(b), .flags = CKPT_BEAT_LOSS};
	int r = 0;

	for (b.step = 1; r == 0; b.step++) {
		work(step_ms);
		while (deadlock)
			pause();
		r = ckpt_phase_begin(c, CKPT_PHASE_SYNC, NULL, 0);
		pthread_barrier_wait(&s->barrier);
		if (r == 0)
			r = ckpt_phase_end(c);
		b.loss = nan_next ? NAN : 2 + 1 / (double)b.step;
		nan_next = 0;
		if (r == 0)
			r = ckpt_beat(c, &b);
		s->steps[rank] = b.step;
	}
	return r;
}

int main(int argc, char **argv)
{
	struct sigaction sa = {.sa_handler = on_signal};
	struct ckpt_options o = {.size = sizeof(o), .connect_timeout_ms = 30000};
	struct stepper_shared *shared;
	struct ckpt *c = NULL;
	int r;

	if (argc != 7)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGUSR2, &sa, NULL);
	shared = map_shared(argv[5]);
	if (!shared) {
		fprintf(stderr, "no barrier in '%s': %s\n", argv[5], strerror(errno));
		return 2;
	}
	o.run_id = argv[4];
	r = ckpt_open(argv[1], atoi(argv[2]), atoi(argv[3]), &o, &c);
	if (r == 0)
		r = train(c, shared, atoi(argv[2]), (unsigned)atoi(argv[6]));
	fprintf(stderr, "rank %s: %d %s\n", argv[2], r, ckpt_last_error(NULL));
	return 1;
}
