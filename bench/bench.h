/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - what the parts of ckpt-bench share: figures, the cases, and the place they run in.
 *
 * A figure is measured in pairs: the limit and ckptd, one after the other, again and again, so that
 * what else the machine does meets both. Its ratio is the median of the pairs' ratios, or, where a
 * figure says so, that of the medians.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define PAIRS_MAX 512
#define NOTE_MAX 200
#define GIB (1ull << 30)
#define MIB (1ull << 20)

/* ---- Numbers ---- */

struct series {
	double value[PAIRS_MAX], limit[PAIRS_MAX];
	int n;
};

void series_add(struct series *s, double value, double limit);
double median(const double *v, int n);

enum target_of {
	TARGET_RATIO,
	TARGET_VALUE,
	TARGET_SUM, /* the value is at most target times the limit, and `plus` */
};

struct figure {
	const char *name, *unit, *limit_name;
	double value, limit, ratio, min, max; /* medians; min and max of the values */
	double limit_min, limit_max;
	int runs;
	bool of_medians;          /* how the ratio is taken */
	enum target_of target_of; /* what the target is about */
	bool at_least;            /* else at most */
	double target;
	double plus;              /* of TARGET_SUM, in the figure's unit */
	long faults;              /* the most ru_minflt rose across a save; -1: does not apply */
	char note[NOTE_MAX];
};

/* Fills value, limit, ratio, their ranges and runs; the rest is the caller's. */
void figure_of(struct figure *f, const struct series *s);
bool figure_met(const struct figure *f);
void figure_print(const struct figure *f, bool json);

/* ---- The place ---- */

struct bench {
	char folder[200]; /* of this run, absolute; removed at the end */
	char ckptd[300];  /* the program */
	char build[260];  /* the build tree that this program is in */
	const char *only; /* --case; NULL: all of the verb */
	uint64_t mib;     /* --mib: of load.strided, resume.*, reshard, python.* */
	bool json;
	uint32_t shards; /* --shards: of meta */
	int figures, failures;
};

bool wanted(const struct bench *b, const char *name);
void report(struct bench *b, struct figure *f);
/* Says why a case could not be measured; the run goes on with the next one. */
void cannot(struct bench *b, const char *name, const struct err *e);
/* What people would use instead of ckptd, for reading beside the figures of a verb: rivals.py. */
void rivals(const struct bench *b, const char *verb);
void remove_tree(const char *path);
void say(const struct bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

uint64_t now_ns(void);
void pause_ms(unsigned ms);
static inline double seconds(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* ---- The cases ---- */

void cases_stall(struct bench *b);   /* save.stall.*, save.first */
void cases_detect_beat(struct bench *b); /* detect.beat.p99 */
void cases_durable(struct bench *b); /* save.durable.*, save.cpu */
void cases_small(struct bench *b);   /* small.* */
void cases_idle(struct bench *b);    /* idle.* */
void cases_python(struct bench *b);  /* python.save.200k, .torch */
void cases_load(struct bench *b);    /* load.memory, load.disk */
void cases_resume(struct bench *b);  /* resume.* */
void cases_strided(struct bench *b); /* load.strided* */
void cases_meta(struct bench *b);    /* meta.* */
void cases_reshard(struct bench *b); /* reshard.rate */
void cases_detect(struct bench *b);  /* detect.* but detect.beat.* */

#endif
