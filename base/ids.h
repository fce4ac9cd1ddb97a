/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ids.h - the identities that everything is named by: digests, jobs, attempts, geometry.
 */
#ifndef BASE_IDS_H
#define BASE_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* XXH3-128 in its canonical (big-endian) byte order. Finds accidents; it is not a MAC. */
struct digest {
	uint8_t b[16];
};
struct job_id {
	uint8_t b[16]; /* random, drawn with record 0 of the job's log */
};
struct attempt_id {
	uint8_t b[16]; /* digest(job, incarnation, epoch, step, try): see model/attempt.h */
};

#define ID_TEXT_MAX 33 /* hex with NUL */
#define WORLD_MAX   65536u /* ranks of a job */

/* A checkpoint is (job, step, attempt) (I1). */
struct checkpoint_id {
	struct job_id job;
	uint64_t step;
	struct attempt_id attempt;
};

/* The sizes that formats carry; the simulator runs with small ones. */
struct geometry {
	uint32_t leaf;  /* bytes that one digest covers; a power of two, divides chunk */
	uint32_t chunk; /* unit of transfer and compression; a power of two */
};
#define GEOMETRY_DEFAULT ((struct geometry){ .leaf = 64u << 10, .chunk = 1u << 20 })

static inline bool digest_equal(const struct digest *a, const struct digest *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}
static inline bool job_id_equal(const struct job_id *a, const struct job_id *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}
static inline bool attempt_equal(const struct attempt_id *a, const struct attempt_id *b)
{
	return memcmp(a->b, b->b, sizeof(a->b)) == 0;
}
static inline bool geometry_valid(struct geometry g)
{
	return g.leaf >= 64 && (g.leaf & (g.leaf - 1)) == 0 && (g.chunk & (g.chunk - 1)) == 0 &&
	       g.chunk >= g.leaf && g.chunk <= (64u << 20);
}

#endif
