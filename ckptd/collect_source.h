/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_source.h - one thing of the node that is looked at again and again.
 *
 * Each source has a thread of its own, since what it reads may hang as long as the hardware does
 * (a firmware that does not answer, a dying disk), and is then told of and left alone; the others
 * and the loop go on. open, read and close run on that thread; they share nothing with anybody but
 * what they are given. The loop has what a read has put when it returns.
 */
#ifndef CKPTD_COLLECT_SOURCE_H
#define CKPTD_COLLECT_SOURCE_H

#include "ckptd/collect.h"
#include "ckptd/gpu_use.h"

#define COLLECT_SAMPLES_MAX 1024 /* in one read */
#define COLLECT_DEVICES_MAX 256  /* of one source */
#define COLLECT_LINES_MAX   8
#define COLLECT_PATH_MAX    512

struct collect_line {
	int level; /* as syslog's */
	char text[240];
};

/* What one read has found. */
struct collect_out {
	struct sample *samples; /* n of COLLECT_SAMPLES_MAX */
	size_t n, n_lines;
	float metrics[METRIC_COUNT]; /* NaN where it has none */
	struct gpu_uses uses;        /* all zero: nobody has looked */
	struct collect_line lines[COLLECT_LINES_MAX];
	char state[160]; /* one sentence for status; set by open or read */
};
MUST_CHECK int collect_out_init(struct collect_out *out);
void collect_out_reset(struct collect_out *out);
void collect_out_fini(struct collect_out *out);

/* A sample of kind k to be filled in, its device SAMPLE_NONE; what is one too many is lost: then a
 * place is returned that nobody looks at. */
struct sample *collect_add(struct collect_out *out, enum sample_kind k);
/* Names a device; numbers are the source's own, from 0 to COLLECT_DEVICES_MAX - 1. */
void collect_name(struct collect_out *out, uint32_t device, char role, const char *name);
/* A line for the log. */
__attribute__((format(printf, 3, 4))) void collect_say(struct collect_out *out, int level,
						       const char *format, ...);
__attribute__((format(printf, 2, 3))) void collect_state(struct collect_out *out,
							 const char *format, ...);

/* A copy of struct collect_options that a thread may keep, and what the loop wants of it. */
struct collect_config {
	char root[256], kmsg[256], data[256];
	uint64_t interval_ns;
	bool probes; /* set before each read: processes are looked at now, and so are their GPUs */
};

struct collect_source {
	enum collector id;
	/* Its read waits by itself, at most for a second, and is called again at once. */
	bool waits;
	/* 0: *ret is the state of the rest. -ENOENT: there is nothing of the kind here, which is
	 * said in out->state; it is not asked again. Else an error with its sentence. */
	int (*open)(const struct collect_config *c, struct collect_out *out, void **ret,
		    struct err *e);
	/* now_ns: CLOCK_MONOTONIC. */
	int (*read)(void *state, uint64_t now_ns, struct collect_out *out, struct err *e);
	void (*close)(void *state);
};

extern const struct collect_source collect_disk, collect_memory, collect_net, collect_nvml,
	collect_pressure;

/* collectors_new() with other sources, for tests. */
MUST_CHECK int collectors_new_from(struct loop *loop, const struct collect_options *o,
				   const struct collect_source *const *sources, size_t n,
				   struct collectors **ret, struct err *e);

#endif
