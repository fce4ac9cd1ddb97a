/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retention.h - which durable checkpoints may go (I9). Pure.
 */
#ifndef MODEL_RETENTION_H
#define MODEL_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RETENTION_KEEP_LAST 3 /* where nobody says otherwise */

struct retention_policy {
	uint32_t keep_last;  /* K >= 1 newest durable and clean ones */
	uint64_t keep_every; /* 0: off; else steps that are multiples of it */
};

/* One durable checkpoint; the array is in log order, oldest first: newer means later in it. */
struct retention_item {
	uint64_t step;
	bool clean;   /* no copy of it is damaged or quarantined */
	bool pinned;  /* by record */
	bool base;    /* of the job's newest epoch */
	bool busy;    /* being read or written */
	const char *held; /* why it stays whatever the policy says; NULL: nothing */
	bool expire;  /* out: may be freed now */
	bool highest; /* out: clean, and the job has gone back to lower steps behind it */
	const char *kept_because; /* out: static words when expire is false */
};

/* Sets expire only if keep_last newer ones are clean: never the only restorable one. Returns how
 * many may go. */
size_t retention_apply(const struct retention_policy *p, struct retention_item *items, size_t n);

#endif
