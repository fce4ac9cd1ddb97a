/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detector.h - samples and time in, verdicts out. No I/O, no clock, no threads.
 *
 * The same code watches the ranks of one node in ckptd, a whole job in its leader (whose samples
 * come out of the nodes' sketches), and a trace in virtual time. Memory is fixed per subject: see
 * detector_memory(). What every rule computes, from which source and with which parameters, stands
 * in doc/detection.md; the fields of struct detector_options are those parameters.
 *
 * All calls from one thread; verdict and probe callbacks run inside detector_feed(),
 * detector_advance() and detector_clear(), and must not call back.
 */
#ifndef DETECT_DETECTOR_H
#define DETECT_DETECTOR_H

#include "base/err.h"
#include "detect/sample.h"
#include "detect/verdict.h"

struct detector;
struct xid_policy; /* detect/xid_policy.h */

#define DETECTOR_DEVICES_MAX 256u   /* of one node */
#define DETECTOR_RANKS_MAX   16384u /* unless the options say otherwise */
#define DEVICE_UNNUMBERED    0x80000000u /* from here on: of no collector, see below */

typedef void verdict_fn(void *arg, const struct verdict *v);
/* The detector wants to know what this rank's process is doing, every second until told otherwise:
 * SAMPLE_ACTIVITY answers. Nobody need answer; what is not known is not taken for idle. */
typedef void probe_fn(void *arg, uint32_t job, uint32_t rank, bool wanted);

struct detector_options; /* detect/options.h */

struct detector_events {
	verdict_fn *verdict;
	probe_fn *probe;     /* may be NULL */
	verdict_fn *dropped; /* may be NULL: there was no room for it, and it is not told */
	void *arg;
};

/* options: copied; xid: borrowed, NULL: Xids are not judged. */
MUST_CHECK int detector_new(const struct detector_options *options, const struct xid_policy *xid,
			    const struct detector_events *events, struct detector **ret);
void detector_free(struct detector *d); /* NULL is allowed */

/* s->time_ns must not be less than of any call before; a sample that breaks a rule of sample.h is
 * refused with -EINVAL and changes nothing. -ENOMEM: a new subject does not fit. */
MUST_CHECK int detector_feed(struct detector *d, const struct sample *s);
/* Time has come to now_ns without a sample: what is overdue by then is found. */
void detector_advance(struct detector *d, uint64_t now_ns);
/* The next time at which detector_advance() has something to do; UINT64_MAX: never. */
uint64_t detector_next(const struct detector *d);
/* What was due at the time of the last call is not all found yet: the next call goes on with it. */
bool detector_goes_on(const struct detector *d);

/* What stands against somebody now, newest first; returns how many there are, fills up to n. A
 * subject matches what contains it: a node its ranks, GPUs, links and disks. NULL: everybody. */
size_t detector_standing(const struct detector *d, const struct subject *s, struct verdict *ret,
			 size_t n);
/* The newest standing verdict with a lower number; false: there is none. */
MUST_CHECK bool detector_older(const struct detector *d, uint64_t id, struct verdict *ret);
/* What it knows of somebody for whom nothing stands: one line per signal, value and threshold. */
void detector_explain(const struct detector *d, const struct subject *s,
		      void (*line)(void *arg, const char *text), void *arg);
/* A person says that it is well again (repaired, replaced): verdicts against it and what it holds
 * are cleared and its escalation begins anew. NULL: everybody. Returns how many verdicts. */
size_t detector_clear(struct detector *d, const struct subject *s, uint64_t now_ns);

/* Bytes in use, and the bounds: of one rank, one node, one pair. */
struct detector_size {
	uint64_t total, rank, node, pair;
};
void detector_memory(const struct detector *d, struct detector_size *ret);

/* What the device that s names is called, or NULL; *ret_role: 'g' GPU, 's' NVSwitch, 'n' network
 * port, 'd' disk. Also those that only kernel messages speak of have names and no numbers of any
 * collector: their PCI addresses. */
const char *detector_device_name(const struct detector *d, const struct subject *s, char *ret_role);
/* The device of the node with that name, in capitals or not. */
bool detector_device_called(const struct detector *d, uint32_t node, const char *name,
			    struct subject *ret);

/* "rank 3 of job lm on node n17", "GPU 0000:9b:00 of node n17" */
void detector_subject_words(const struct detector *d, const struct subject *s, char *buf,
			    size_t size);

#endif
