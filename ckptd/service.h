/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.h - the daemon: a node on the real world, from the configuration until a signal.
 */
#ifndef CKPTD_SERVICE_H
#define CKPTD_SERVICE_H

#include <sys/types.h>

#include "base/err.h"
#include "ckptd/config.h"
#include "ckptd/log.h"

struct service_options {
	struct config config;
	mode_t socket_mode;
	struct log *log;
	/* Reads the configuration anew for SIGHUP. */
	int (*reload)(void *arg, struct config *ret, struct err *e);
	void *reload_arg;
};

/* Runs until SIGTERM or SIGINT (a second one does not wait for what is being persisted). */
MUST_CHECK int service_run(const struct service_options *o, struct err *e);

#endif
