/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.h - which thread of a load reads which range, and when.
 */
#ifndef CLIENT_TURNS_H
#define CLIENT_TURNS_H

#include <pthread.h>

#include "client/pace.h"
#include "client/placer.h"
#include "client/ranges.h"

struct turns {
	const struct placing *in;
	pthread_mutex_t mutex; /* of the rest */
	pthread_cond_t turn;   /* another one may read */
	struct ranges ranges;
	struct pace pace;
	uint32_t reading;     /* threads that have a range */
	uint64_t range_bytes; /* of a range at most: there is room for no more */
	bool paced, through_cache;
	int result; /* the first error */
};

/* What a thread has taken on. */
struct taken {
	uint32_t source;
	struct source_range range;
	bool through_cache; /* where the source may be read so */
};

/* -ENOMEM. `touched` must outlive it. */
MUST_CHECK int turns_init(struct turns *t, const struct placing *in, const struct touched *touched,
			  uint64_t range_bytes, uint32_t threads);
/* What was found out about the device is in->pace's then. */
void turns_fini(struct turns *t);
/* The next range, when it is this thread's turn; false: there is none, or a thread failed.
 * `placed`: bytes of the one before; 0: there was none. */
bool turns_next(struct turns *t, uint64_t placed, struct taken *ret);
/* Ends all turns; true: this is the first error, and the result. */
bool turns_fail(struct turns *t, int code);

#endif
