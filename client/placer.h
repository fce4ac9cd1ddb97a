/* SPDX-License-Identifier: Apache-2.0 */
/*
 * placer.h - executes a load plan: reads every touched leaf, verifies it, places its pieces.
 */
#ifndef CLIENT_PLACER_H
#define CLIENT_PLACER_H

#include "client/device.h"
#include "client/pace.h"
#include "client/source.h"
#include "model/strided.h"

struct place_target {
	uint8_t *ptr;        /* first element; host memory unless `device` */
	bool strided;
	struct strided layout;
	bool device;         /* device memory that takes contiguous pieces straight */
	int ordinal;
};

struct placing {
	const struct source *sources;
	uint32_t n_sources;
	const struct plan_piece *pieces;
	size_t n_pieces;
	const struct place_target *targets; /* by piece->target */
	struct devices *devices;            /* with the targets' devices in use */
	uint32_t threads;                   /* the caller's included */
	uint64_t memory; /* bytes that are read at once at most, if that can be */
	uint32_t place;  /* of several that read the same: ranges.h */
	uint64_t window; /* bytes; 0: the default */
	uint64_t trial;  /* bytes, of pace.h; 0: the default */
	/* What is known of the device, and will be; NULL: nothing, and no other way is tried. */
	struct pace_kept *pace;
	uint64_t deadline;
	/* Looked at between ranges, by the caller's thread; NULL: none. */
	struct interrupt *interrupt;
};

struct placed {
	uint64_t bytes_read;
	bool bad;            /* with CKPT_ECORRUPT: a leaf is, and where */
	uint32_t bad_source;
	uint64_t bad_leaf;
};

/*
 * 0; CKPT_ECORRUPT: a leaf does not match its digest or cannot be read; CKPT_ETIMEDOUT (of deadline
 * or interrupt), -ENOMEM, CKPT_ENODEVICE. ret is filled in every case. Targets hold no promise
 * after an error.
 */
MUST_CHECK int placer_run(const struct placing *p, struct placed *ret, struct err *e);

#endif
