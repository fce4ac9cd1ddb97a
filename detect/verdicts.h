/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verdicts.h - the verdicts that stand, and the only way in which a rule raises or clears one.
 *
 * A rule says what it finds as often as it finds it; what is new (or louder) is told, the rest only
 * kept. Invariants: (1) at most one verdict stands for a subject, cause, code and subcode; (2) told
 * RAISED once, then UPDATED when its level or advice changes, then CLEARED once; (3) at most
 * VERDICTS_MAX stand: beyond that, and where there is no memory, notes give way to alarms first,
 * then the newest alarm of the job that has the most of them to one of the node's own, or of a job
 * that has fewer; else the new one is dropped, which is told as often as it is found. Jobs are
 * anybody's: none keeps what befalls the others from being told.
 */
#ifndef DETECT_VERDICTS_H
#define DETECT_VERDICTS_H

#include "base/err.h"
#include "detect/detector.h"

#define VERDICTS_MAX 1024

struct verdicts {
	struct verdict *standing; /* n of them, oldest first */
	size_t n, cap;            /* cap: there is room for; grows up to VERDICTS_MAX */
	uint64_t next_id;
	uint64_t told; /* how often one was, so far */
	struct detector_events events;
};

void verdicts_init(struct verdicts *v, const struct detector_events *events);
void verdicts_fini(struct verdicts *v);

/* What v->subject, cause, code and subcode name is found now; id, state, raised_ns and changed_ns
 * are filled in here. Returns whether it was told. */
bool verdicts_raise(struct verdicts *vs, const struct verdict *v, uint64_t now_ns);
/* It is over; why: the last sentence about it, NULL: its own. Nothing happens where none stands. */
void verdicts_clear(struct verdicts *vs, const struct subject *s, enum verdict_cause cause,
		    const char *why, uint64_t now_ns);
/* That of one code alone. */
void verdicts_clear_code(struct verdicts *vs, const struct subject *s, enum verdict_cause cause,
			 uint32_t code, uint32_t subcode, const char *why, uint64_t now_ns);
/* All that stand against s or what it contains (NULL: all). Returns how many there were. */
size_t verdicts_clear_all(struct verdicts *vs, const struct subject *s, const char *why,
			  uint64_t now_ns);
const struct verdict *verdicts_find(const struct verdicts *vs, const struct subject *s,
				    enum verdict_cause cause);

/* Whether outer is inner or holds it: a node its ranks, GPUs, links, disks; a job its ranks. */
bool subject_contains(const struct subject *outer, const struct subject *inner);

struct subject subject_job(uint32_t job);
struct subject subject_rank(uint32_t job, uint32_t rank, uint32_t node);
struct subject subject_node(uint32_t node);
struct subject subject_gpu(uint32_t node, uint32_t device);
struct subject subject_port(uint32_t node, uint32_t device);
struct subject subject_path(uint32_t node, uint32_t peer);
struct subject subject_disk(uint32_t node, uint32_t device);

/* Adds a signal; one too many is left out. */
void verdict_evidence(struct verdict *v, const char *signal, double value, double threshold,
		      const char *unit, uint64_t since_ns);

#endif
