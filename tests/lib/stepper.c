/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepper.c - a rank that trains by itself, for tests of the failure detector: step after step of
 * some milliseconds, a collective with the other ranks, a beat. tests/it/test_detect.c starts it.
 *
 *   stepper JOB RANK WORLD RUN FOLDER STEP_MS
 *
 * Half of a step is computed, the other half it waits for a "device", as trainers do. The
 * collective is a barrier in shared memory: who waits there sleeps until the others come. Where the
 * test wants saves, it saves a tensor whenever ckptd asks for one. Signals are faults that a test
 * cannot bring about from outside; that a rank works more than the others is in shared memory:
 *
 *   SIGUSR1   it waits for ever, for what never comes: a deadlock
 *   SIGUSR2   the loss of the next step is NaN
 *
 * FOLDER/barrier is the shared memory, which the test makes: stepper.h.
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

#define STATE_FLOATS 16384
#define SAVE_MS      20000

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

static void work(const struct stepper_shared *s, int rank, unsigned step_ms)
{
	double all_ms = step_ms * (1 + s->slower_permille[rank] / 1000.0);
	double computed_ms = all_ms * (s->computes_permille ? s->computes_permille : 500) / 1000;
	double until = cpu_ms() + computed_ms;
	uint64_t device_ns = (uint64_t)((all_ms - computed_ms) * 1e6);
	struct timespec device = {(time_t)(device_ns / 1000000000),
				  (long)(device_ns % 1000000000)};

	while (cpu_ms() < until)
		;
	nanosleep(&device, NULL);
}

/* ---- Saves ---- */

static float state[STATE_FLOATS];

static int declare(struct ckpt *c, const struct stepper_shared *s, int rank)
{
	char name[32];
	uint64_t shape = STATE_FLOATS;
	struct ckpt_tensor t = {.size = sizeof(t),
				.name = name,
				.dtype = CKPT_F32,
				.ndim = 1,
				.global_shape = &shape};
	int r;

	if (!s->saves)
		return 0;
	snprintf(name, sizeof(name), "state.%d", rank);
	r = ckpt_declare(c, &t);
	return r < 0 ? r : ckpt_prepare(c, 0);
}

/* All ranks come here with the same step: whether they save it is one answer for all. */
static int save_if_wanted(struct ckpt *c, struct stepper_shared *s, int rank, uint64_t step)
{
	struct ckpt_binding b = {.ptr = state,
				 .device = CKPT_HOST,
				 .dtype = CKPT_F32,
				 .bytes = sizeof(state)};
	struct ckpt_save_args a = {.size = sizeof(a),
				   .step = step,
				   .tensors = &b,
				   .n_tensors = 1,
				   .timeout_ms = SAVE_MS,
				   .flags = CKPT_WAIT_CREDIT};
	int r = ckpt_should_save(c, step);

	if (r <= 0)
		return r;
	state[0] = (float)step;
	r = ckpt_save(c, &a);
	s->saved[rank] = step;
	s->saves_done[rank]++;
	return r < 0 ? r : 0;
}

static int train(struct ckpt *c, struct stepper_shared *s, int rank, unsigned step_ms)
{
	struct ckpt_beat b = {.size = sizeof(b), .flags = CKPT_BEAT_LOSS};
	int r = declare(c, s, rank);

	for (b.step = 1; r == 0; b.step++) {
		r = s->saves ? save_if_wanted(c, s, rank, b.step) : 0;
		work(s, rank, step_ms);
		while (deadlock)
			pause();
		if (r == 0)
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
