/* SPDX-License-Identifier: Apache-2.0 */
/*
 * supervise.h - a tiny parent that keeps ckptd's descriptors and starts it again when it dies.
 */
#ifndef CKPTD_SUPERVISE_H
#define CKPTD_SUPERVISE_H

#include <stdint.h>

#include "base/err.h"
#include "ckptd/log.h"

struct supervise_options {
	const char *program;    /* path to execute */
	char *const *argv;      /* of the child */
	int end_status;         /* of a child that ended as it was told to, as 0 is */
	uint64_t watchdog_ns;   /* without news for so long the child is killed; 0: never */
	uint64_t backoff_min_ns, backoff_max_ns; /* between deaths, doubling */
	struct log *log;
};
#define SUPERVISE_BACKOFF_MIN_NS 100000000ull
#define SUPERVISE_BACKOFF_MAX_NS 10000000000ull

/*
 * Runs the child until it ends by itself with status 0 or end_status, or ends after SIGTERM or
 * SIGINT, or fails before it was ever ready. *ret_status is what this process should exit with. To
 * be called before there are threads.
 */
MUST_CHECK int supervise_run(const struct supervise_options *o, int *ret_status, struct err *e);

#endif
