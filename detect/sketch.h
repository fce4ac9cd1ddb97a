/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sketch.h - what one node tells a job's leader each second of its ranks and of itself.
 *
 * Not raw samples: of each rank the newest step and what it stands for, of each counter the newest
 * value, measurements to 0.1 %. What is judged where it happens (kernel messages, NVML) travels as
 * verdicts. A sketch is made of samples and becomes samples again, with the receiver's times.
 * Bytes: doc/sketch-format.md.
 *
 * The sender's side is bounded: what does not fit is counted and the next sketch says how much was
 * lost. The receiver trusts nothing: bytes that are not as the format says are refused as a whole
 * before anything is taken from them. Pure, one thread.
 */
#ifndef DETECT_SKETCH_H
#define DETECT_SKETCH_H

#include "base/bytes.h"
#include "detect/sample.h"
#include "detect/verdict.h"

#define SKETCH_HEADER       64
#define SKETCH_VERSION      1
#define SKETCH_BYTES_MAX    (1u << 20)
#define SKETCH_RECORDS_MAX  4096
#define SKETCH_VERDICTS_MAX 64

struct sketch_head {
	uint32_t node;     /* who says it; as are nodes in what follows: numbers of the job */
	uint64_t epoch;    /* run of the job; SAMPLE_JOB's */
	uint64_t sequence; /* one more each time: gaps are lost sketches */
	uint32_t dropped;  /* samples that did not fit */
};

/* ---- the sender ---- */

struct sketch;
MUST_CHECK int sketch_new(struct sketch **ret);
void sketch_free(struct sketch *k); /* NULL is allowed */
/* Notes what s says; samples of other nodes' subjects are the caller's to leave out. -ENOSPC: it
 * does not fit and is counted as dropped. */
MUST_CHECK int sketch_add(struct sketch *k, const struct sample *s);
MUST_CHECK int sketch_add_verdict(struct sketch *k, const struct verdict *v);
/* Writes it, with ages as of now_ns, and begins the next one. head->dropped is filled in here.
 * w->bad: out of memory; the notes are gone all the same. */
void sketch_write(struct sketch *k, const struct sketch_head *head, uint64_t now_ns,
		  struct writer *w);

/* ---- the receiver ---- */

struct sketch_reader {
	struct sketch_head head;
	struct reader r;
	uint32_t left; /* records */
	uint64_t base_step, received_ns, last_ns;
	uint32_t job;
};
/* Looks at all of it. job: the receiver's number of it; received_ns: its time now;
 * not_before_ns: of the last sample that it fed, at most that. CKPT_ECORRUPT: damaged;
 * CKPT_EVERSION; CKPT_EPROTO: not what a sender writes. */
MUST_CHECK int sketch_open(const void *bytes, size_t len, uint32_t job, uint64_t received_ns,
			   uint64_t not_before_ns, struct sketch_reader *ret, struct err *e);
/* The next record; times of samples rise from not_before_ns to received_ns, and they keep the
 * rules of sample.h. Fills the one or the other. */
enum sketch_got { SKETCH_END, SKETCH_SAMPLE, SKETCH_VERDICT };
enum sketch_got sketch_next(struct sketch_reader *k, struct sample *s, struct verdict *v);

/* A positive number in 16 bits, to 0.1 %: from 1e-6 to 8e12; smaller ones are 0, larger ones the
 * largest, NaN is kept. */
uint16_t sketch_pack(float x);
float sketch_unpack(uint16_t v);

#endif
