/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_kmsg.h - kernel messages as they come: of /dev/kmsg, or of a FIFO or a file of the same
 * records (containers, tests).
 */
#ifndef CKPTD_COLLECT_KMSG_H
#define CKPTD_COLLECT_KMSG_H

#include "ckptd/collect_source.h"

struct kmsg;
typedef void kmsg_tell_fn(void *arg, const struct sample *s);

#define KMSG_YOUNG_NS 600000000000ull /* (1) of collect_kmsg.c */
#define KMSG_SEEN     "kernel-messages.seen"

/* Begins to tell, from the loop's next turn on. What cannot be opened is said in the log, and tried
 * again. config must outlive it. */
MUST_CHECK int kmsg_new(struct loop *loop, struct log *log, const struct collect_config *config,
			kmsg_tell_fn *tell, void *arg, struct kmsg **ret);
/* Opens what could not be opened before; every interval. */
void kmsg_try_again(struct kmsg *k);
/* Nothing is told after it. */
void kmsg_free(struct kmsg *k);
/* Whether it works, and one sentence. */
bool kmsg_state(const struct kmsg *k, char text[ERR_TEXT_MAX]);

#endif
