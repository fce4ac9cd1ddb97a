/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig.h - the real thing, small: `ckptd --user` in a folder of its own and trainers (trainer.c)
 * that are told line by line what to do. And a runner: each test is a child process, some at a
 * time, prints "ok NAME", "not ok NAME: why" or "skip NAME why", and leaves no process behind.
 *
 * In a test everything that goes wrong ends it: rig_fail(). Nothing here waits longer than
 * RIG_PATIENCE_MS.
 */
#ifndef TESTS_LIB_RIG_H
#define TESTS_LIB_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RIG_PATIENCE_MS 60000
#define RIG_LINE 8192

struct rig {
	char dir[160];    /* of this test; removed by the runner */
	char data[176], socket[176], log[176];
	const char *args[32]; /* further ones of ckptd, NULL-terminated */
	const char *env[16];  /* "NAME=value" for ckptd */
	bool plain;       /* no supervisor: who dies stays dead */
	pid_t pid;        /* of the process that was started: the supervisor, unless plain */
	const void *arg;  /* of the test */
	int starts;       /* how often it was */
};

struct trainer_process {
	struct rig *rig;
	pid_t pid;
	int in, out;      /* its standard input and output */
	char text[RIG_LINE]; /* words of the last answer */
	size_t held;
	char buf[RIG_LINE];
};

/* ---- Tests ---- */

struct rig_test {
	const char *name;
	void (*fn)(struct rig *r);
	const void *arg;
};
#define RIG_TEST(function) { #function, function, NULL }
/* jobs at a time. Names given in argv choose. Returns main's result. */
int rig_run(const struct rig_test *tests, size_t n, unsigned jobs, int argc, char **argv);
_Noreturn void rig_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void rig_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Something worth a line of the test's output. */
void rig_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Stops: it is timed by nothing else. */
void rig_pause(unsigned ms);
#define RIG_CHECK(condition, ...)                                                                  \
	do {                                                                                       \
		if (!(condition))                                                                  \
			rig_fail(__VA_ARGS__);                                                     \
	} while (0)

/* ---- ckptd ---- */

/* A folder of its own below dir (NULL: $TMPDIR); nothing is started. */
void rig_init(struct rig *r, const char *dir);
void rig_fini(struct rig *r); /* removes the folder */
void rig_arg(struct rig *r, const char *arg); /* "--set", "retention.keep_last=2" */
void rig_env(struct rig *r, const char *assignment);
/* Returns when it is ready. */
void rig_start(struct rig *r);
/* SIGKILL to supervisor and daemon: all memory is lost. */
void rig_kill_all(struct rig *r);
/* SIGTERM and wait; the status of the process. */
int rig_stop(struct rig *r);
/* Of the daemon itself, from LOCK; 0: none is running. */
pid_t rig_daemon(const struct rig *r);
/* Waits until the daemon is another one than `before` and lets trainers in. */
void rig_wait_restart(struct rig *r, pid_t before);
/* ckptctl with these words (`verify` reads the folder); its exit status, and what it printed. */
int rig_ctl(const struct rig *r, char *ret_text, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* What `ckptctl --json list` says of a step of a job: "disk" -> "durable"; "": nothing. */
const char *rig_step_field(const struct rig *r, const char *job, uint64_t step, const char *field,
			   char ret[64]);
/* How often the log has these words. */
unsigned rig_log_count(const struct rig *r, const char *words);
/* Fails if ckptd ever ended by a signal other than SIGKILL: it crashed. */
void rig_check_log(const struct rig *r);
bool rig_connects(const struct rig *r);
/* Looks every few ms until it is true; fails with what. */
void rig_wait(bool (*is_true)(void *arg), void *arg, const char *what);
uint64_t rig_now_ms(void);

/* ---- Trainers ---- */

void trainer_start(struct trainer_process *t, struct rig *r, const char *const *env);
/* Tells; the answer is read later. */
void trainer_tell(struct trainer_process *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The result of the answer; INT_MIN when the process ended, or without one within timeout_ms. */
int trainer_answer(struct trainer_process *t, int timeout_ms);
int trainer_ask(struct trainer_process *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The same, and whatever is negative ends the test. */
int trainer_must(struct trainer_process *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The same, and a call that says CKPT_EUNAVAILABLE is made again for RIG_PATIENCE_MS: as a program
 * does that knows that ckptd starts again. libckpt itself waits a second for it, once. */
int trainer_must_again(struct trainer_process *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void trainer_kill(struct trainer_process *t);
void trainer_exit(struct trainer_process *t);

/* n ranks of a world: opened, declared (elements, small) and prepared. */
void trainers_join(struct trainer_process *t, unsigned n, struct rig *r, const char *job,
		   const char *run, unsigned long elements, unsigned small);
/* All ranks save (step, tag), one after the other in flight; the sum of what went wrong. */
int trainers_save(struct trainer_process *t, unsigned n, uint64_t step, uint64_t tag);

/* What `list` said, by trainer_must_again(): whether (step) is there, in which tier. */
struct listed {
	uint64_t step, epoch;
	int memory, disk, pinned, latest;
};
size_t trainer_list(struct trainer_process *t, struct listed *ret, size_t n);
const struct listed *listed_find(const struct listed *l, size_t n, uint64_t step);

#endif
