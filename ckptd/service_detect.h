/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service_detect.h - what the daemon gives the node's detector of the operating system: the
 * policy's file, node checks, a record of samples, and in builds with fault injection a FIFO of
 * them.
 */
#ifndef CKPTD_SERVICE_DETECT_H
#define CKPTD_SERVICE_DETECT_H

#include "ckptd/config.h"
#include "ckptd/log.h"
#include "ckptd/node.h"

struct recorder;
struct injector;

struct service_detect {
	struct checks *checks;
	struct hooks *hooks;
	struct recorder *recorder;
	struct injector *injector;
};

/* Before the node: fills in env. Its strings are borrowed from c. */
MUST_CHECK int service_detect_open(struct service_detect *d, const struct config *c,
				   struct log *log, struct env *env, struct err *e);
/* When it is there. */
MUST_CHECK int service_detect_start(struct service_detect *d, const struct config *c,
				    struct log *log, struct loop *loop, struct node *n,
				    struct err *e);
/* Reads the table again; what is wrong with it is said, and the one before stays in force. */
void service_detect_policy(const struct config *c, struct log *log, struct node *n);
/* Workers have ended; the node may still be there. */
void service_detect_close(struct service_detect *d);

#endif
