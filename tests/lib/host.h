/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - one real node inside this process: loop, threads, files and memfds as in ckptd, but
 * turned by the caller, so that a test is the trainer and the daemon in one thread.
 *
 * There is no fd store, but where a silent_store was started: host_stop() loses all memory, as loss
 * of power does.
 */
#ifndef TESTS_LIB_HOST_H
#define TESTS_LIB_HOST_H

#include "ckptd/log.h"
#include "ckptd/node.h"

struct host_options {
	const char *folder;  /* data folder; it exists */
	const char *socket;  /* path */
	const char *backend; /* "uring", "threads", "auto" */
	const struct node_options *node;
	uint64_t memory_budget; /* 0: half of the machine's */
	struct checks *checks;  /* of the node's env; may be NULL */
	void (*before)(void *arg); /* called while it starts, once; it may turn the host */
	void *before_arg;
	node_log_fn *log; /* each line, one after another, from any thread; may be NULL */
	void *log_arg;
	bool as_ckptd;       /* more than one thread of most kinds, huge pages */
	bool index;          /* it has one, in the data folder */
	bool skip_file_sync; /* a planted bug: once it is ready no file is synced; folders are */
};

#define HOST_MADE_AGAIN_MAX 32

struct host {
	struct loop *loop;
	struct disk *disk;
	struct disk_ops disk_ops; /* with skip_file_sync */
	struct workers *workers;
	struct notify *notify;
	struct keeper *keeper;
	struct memory *memory;
	struct index *index; /* where one was asked for */
	struct listener *listener;
	struct rng rng;
	struct log log;
	struct node *node;
	char socket[108], folder[108];
	char program[512]; /* ckptd, for its --receiver */
	int ready;            /* 0: not yet; 1: yes; else the error */
	node_log_fn *on_line; /* of the options */
	void *on_line_arg;
	unsigned logs_begun_anew;
	uint64_t made_again[HOST_MADE_AGAIN_MAX]; /* steps whose COMMIT a start made again */
	unsigned n_made_again;
	unsigned errors;      /* lines of level error */
	char error[ERR_TEXT_MAX]; /* the last of them */
};

/* Returns when the node is ready. */
MUST_CHECK int host_start(struct host *h, const struct host_options *o, struct err *e);
/* Waits for works under way, tells nobody. Also after a start that failed. */
void host_stop(struct host *h);
/* One turn of the loop, at most some ms. */
void host_turn(struct host *h);

#endif
