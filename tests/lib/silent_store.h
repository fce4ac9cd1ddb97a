/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silent_store.h - an fd store like systemd's: it silently drops what it has no room for.
 *
 * It counts and keeps no descriptor. The notify_open() that follows speaks to it.
 */
#ifndef TESTS_LIB_SILENT_STORE_H
#define TESTS_LIB_SILENT_STORE_H

#include <pthread.h>
#include <stdbool.h>

struct silent_store {
	int fd;
	pthread_t thread;
	unsigned max;
	_Atomic unsigned kept, dropped;
};

/* tells: it sets $FDSTORE, as systemd 254 does. */
void silent_store_start(struct silent_store *s, unsigned max, bool tells);
/* What was sent before has been counted. */
void silent_store_stop(struct silent_store *s);

#endif
