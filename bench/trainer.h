/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer.h - the processes that are measured: one for each rank, told what to do by messages.
 *
 * A trainer is this program, executed anew, so that nothing of it is shared with the one that
 * orders and reports. It holds a state (tensors in one mapping, as a training job has them), does
 * one thing at a time and answers with the times of its own clock.
 */
#ifndef BENCH_TRAINER_H
#define BENCH_TRAINER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "bench/bench.h"
#include "bench/plain.h"

enum order_kind {
	ORDER_STATE,   /* make `bytes` of state, in `tensors` equal ones or as a transformer */
	ORDER_TENSORS, /* the same for saves and loads alone: it has no memory for limits */
	ORDER_MATRIX,  /* the same as matrices of `rows` rows, cut by columns over the world */
	ORDER_CHECK,   /* whether the matrices hold what they were made with */
	ORDER_ROOM,    /* memory for `bytes` of state that was never touched, for any other */
	ORDER_OPEN,    /* open the job, declare the state, prepare */
	ORDER_RESUME,  /* all that a restarted rank does: room, open, declare, load of `step` */
	ORDER_PREPARE, /* ckpt_prepare() */
	ORDER_COPY,    /* limit: one memcpy of the state into a populated memfd */
	ORDER_SAVE,    /* ckpt_save() of `step` */
	ORDER_DURABLE, /* the same, then wait for DURABLE */
	ORDER_WAIT,    /* for `what` of `step` */
	ORDER_SCRUB,   /* overwrite the state: a load has to bring it back */
	ORDER_LOAD,    /* ckpt_load() of `step` */
	ORDER_FUSED,   /* limit: copy and digest leaves, memfd to state, a load's threads */
	ORDER_MEMCPY,  /* the same without digests */
	ORDER_PLAIN,   /* limit: the file `folder` read into the state as `plain` says */
	ORDER_DIGEST,  /* digest of the state, for comparison; its CPU time */
	ORDER_PING,    /* limit: memcpy and one message there and back to a process that sleeps */
	ORDER_BARE,    /* limit: the system calls of making a small state durable, bare */
};

struct order {
	enum order_kind kind;
	uint32_t tensors; /* 0: as a transformer */
	uint64_t bytes, step, rows;
	int rank, world, what;
	struct plain_cell plain;
	char job[32], run[32], socket[120], folder[300];
};

struct answer {
	int code; /* < 0: an error, text says which */
	char text[ERR_TEXT_MAX];
	uint64_t begin, sealed, end; /* now_ns(); sealed: of ORDER_DURABLE */
	uint64_t cpu_ns;             /* of ORDER_DIGEST */
	long faults;                 /* ru_minflt across the save */
	uint64_t ran_ns, queued_ns;  /* of its thread: on a core, waiting for one; 0: not known */
	int tier;                    /* of ORDER_LOAD */
	uint64_t device;             /* bytes that it had read from devices */
	uint8_t digest[16];
};

struct trainer {
	pid_t pid;
	int fd;
};

MUST_CHECK int trainer_start(struct trainer *t, struct err *e);
void trainer_stop(struct trainer *t);
void trainer_kill(struct trainer *t); /* by SIGKILL */
MUST_CHECK int trainer_send(struct trainer *t, const struct order *o, struct err *e);
MUST_CHECK int trainer_receive(struct trainer *t, struct answer *ret, struct err *e);
/* Both. */
MUST_CHECK int trainer_ask(struct trainer *t, const struct order *o, struct answer *ret,
			   struct err *e);

/* The other side: serves orders from fd until it is closed. */
int trainer_main(int fd);

/* ---- state.c: memory of a trainer ---- */

struct ckpt_binding;
struct state {
	uint8_t *base; /* one mapping; tensors lie in it one behind the other */
	uint64_t bytes;
	struct ckpt_binding *tensors;
	uint32_t n;
};

MUST_CHECK int state_make(struct state *s, uint64_t bytes, uint32_t tensors, uint64_t seed,
			  struct err *e);
/* The same tensors in memory that nothing has touched; what was there before goes. */
MUST_CHECK int state_room(struct state *s, uint64_t bytes, uint32_t tensors, struct err *e);
/* This rank's columns of MATRICES matrices of so many rows and MATRIX_COLUMNS columns, f32. */
#define MATRICES       8
#define MATRIX_COLUMNS 8192
struct matrix_cut {
	uint64_t rows;
	int rank, world;
};
MUST_CHECK int state_make_matrices(struct state *s, const struct matrix_cut *m, struct err *e);
bool state_has_matrices(const struct state *s, const struct matrix_cut *m);
/* So that no two steps are equal. */
void state_touch(struct state *s, uint64_t step);
/* A populated shared mapping of a memfd. */
MUST_CHECK int memfd_map(uint64_t bytes, uint8_t **ret, struct err *e);
/* to[] = from[], leaf by leaf, by threads that take the next piece; digests unless leaves is
 * NULL. */
MUST_CHECK int parallel_copy(uint8_t *to, const uint8_t *from, uint64_t bytes, uint32_t threads,
			     uint8_t *leaves);

/* ---- bare.c ---- */

MUST_CHECK int bare_prepare(const char *folder, struct err *e);
MUST_CHECK int bare_durable(const char *folder, const uint8_t *state, uint64_t bytes, uint64_t step,
			    struct err *e);
MUST_CHECK int bare_retain(const char *folder, uint64_t step, struct err *e);
struct echo;
MUST_CHECK int echo_start(struct echo **ret, struct err *e);
MUST_CHECK int echo_ping(struct echo *x);

#endif
