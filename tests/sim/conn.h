/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.h - simulated processes and their connections to a daemon.
 *
 *   - messages arrive in order, each after a random delay; a connection may break at any time;
 *   - what was sent before an orderly close arrives; of a process that died, a prefix of it does;
 *   - a process's end and its socket's end are reported in any order;
 *   - a pid is given again to another process, with another start.
 *
 * The daemon sees struct conn and struct processes of base/conn.h. The other end is a
 * sim_channel: its callbacks run on the loop of the process's life, or on the driver.
 */
#ifndef TESTS_SIM_CONN_H
#define TESTS_SIM_CONN_H

#include "base/conn.h"
#include "tests/sim/life.h"

struct host_options {
	uint64_t delay_ns_max;
	uint32_t breaks; /* one in n messages finds its connection broken; 0: never */
	uint32_t full;   /* one in n times there is no room for descriptors; 0: never */
	uint32_t pids;   /* how many different pids there are: small ones come again */
};

struct host; /* one operating system: its processes and the daemon's listening socket */

struct host *host_new(struct world *w, const struct host_options *o);
/* All of its lives have ended. */
void host_free(struct host *h);
struct host_options *host_options(struct host *h);

/* The daemon listens (its own code calls this); ends with the life. */
struct processes *host_listen(struct host *h, struct life *daemon, const struct conn_events *events,
			      void *arg);
bool host_listening(const struct host *h);

struct sim_process {
	struct process_id id;
	bool alive;
	struct life *life; /* may be NULL: the driver plays it */
	struct host *host;
	struct life_hook hook;
	struct list link;
};
/* With a life: ends with it. Freed with the host. */
struct sim_process *process_new(struct host *h, uint32_t uid, struct life *l);
/* SIGKILL; kills its life too. */
void process_end(struct sim_process *p);

struct sim_channel;
struct channel_events {
	void (*message)(void *arg, struct sim_channel *, const void *msg, size_t len,
			const int *fds, size_t n_fds); /* fds are the receiver's */
	void (*closed)(void *arg, struct sim_channel *); /* by the other end */
};
/* NULL: refused, nobody listens. */
struct sim_channel *channel_open(struct sim_process *p, const struct channel_events *events,
				 void *arg);
/* Takes fds. Nothing happens when the other end is gone. */
void channel_send(struct sim_channel *c, const void *msg, size_t len, const int *fds, size_t n_fds);
/* closed() is not called. */
void channel_close(struct sim_channel *c);
/* The connection breaks under both ends: both hear of it. */
void channel_break(struct sim_channel *c);
/* Neither end is gone and nothing has ended or broken it. */
bool channel_intact(const struct sim_channel *c);

#endif
