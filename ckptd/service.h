/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.h - the daemon: a node on the real world, from the configuration until a signal.
 */
#ifndef CKPTD_SERVICE_H
#define CKPTD_SERVICE_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "ckptd/config.h"
#include "ckptd/log.h"

struct service_options {
	struct config config;
	mode_t socket_mode;
	const char *socket_group; /* NULL: this process's */
	bool user; /* ckptd --user: for one user alone */
	struct log *log;
	/* Reads the configuration anew for SIGHUP. */
	int (*reload)(void *arg, struct config *ret, struct err *e);
	void *reload_arg;
};

/* Runs until SIGTERM or SIGINT (a second one does not wait for what is being persisted). *ret_lost:
 * how many committed checkpoints it leaves only in memory. */
MUST_CHECK int service_run(const struct service_options *o, unsigned *ret_lost, struct err *e);

#endif
