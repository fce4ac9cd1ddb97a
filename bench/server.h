/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - a ckptd of our own, and what it costs.
 */
#ifndef BENCH_SERVER_H
#define BENCH_SERVER_H

#include <sys/types.h>

#include "bench/bench.h"

struct server {
	pid_t supervisor, ckptd;
	char data[240], socket[240], log[240];
};

/* sets: up to four "section.key=value", the rest NULL. The data folder is made anew if fresh. */
MUST_CHECK int server_start(struct server *s, const struct bench *b, bool fresh,
			    const char *const sets[4], struct err *e);
void server_stop(struct server *s);

/* The file of a rank in the one checkpoint that the data folder has. */
MUST_CHECK int server_shard(const struct server *s, int rank, char ret[300], struct err *e);
/* CPU time that ckptd and its supervisor have used. */
MUST_CHECK int server_cpu(const struct server *s, uint64_t *ret_ns, struct err *e);
/* Resident memory of both, without what is mapped of slots. */
MUST_CHECK int server_rss(const struct server *s, uint64_t *ret, struct err *e);

#endif
