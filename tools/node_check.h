/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_check.h - measuring whether a node is fit to train: `ckptctl node-check`.
 *
 * Each check runs in a child process with a deadline, because sick hardware hangs, kills (SIGBUS of
 * bad memory) and lies: a child that does not end is left alone and reported, a killed one too, and
 * what it measured before counts. Checks say what they find through these functions alone, which
 * write one struct check_result at a time into a pipe.
 *
 * A value is judged by check_fleet.c: against other nodes' values, else against this node's own
 * earlier ones. A check itself only fails what is wrong on any machine: bytes that differ, an error
 * of the kernel, a clock that runs backward.
 */
#ifndef TOOLS_NODE_CHECK_H
#define TOOLS_NODE_CHECK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "storage/beneath.h"
#include "tools/ctl.h"

enum check_state { CHECK_PASSED, CHECK_FAILED, CHECK_SKIPPED };

struct check_result {
	char name[40]; /* "memory-copy" */
	char unit[12]; /* "GB/s"; "": no value */
	double value;
	bool more_is_better;
	enum check_state state;
	char words[240];   /* why it failed or was skipped; else "" or what is worth knowing */
	double low, high;  /* what was allowed; infinite: no bound */
	double median;     /* of those it was compared with */
	uint32_t compared; /* how many they are; 0: with nobody */
	bool own;          /* they are this node's own earlier ones */
};

/* Where a check writes its results. */
struct check_report {
	int fd;
};

struct check_options {
	const char *data;         /* folder whose disk is measured; NULL: none */
	const char *no_data;      /* why there is none */
	bool lost_data;           /* there should be one: its ckptd does not say which */
	uint64_t memory;          /* bytes of the memory test */
	double seconds;           /* that this check may take, about */
	const char *peers, *self; /* host:port,...; NULL: no network check */
};

typedef void check_fn(const struct check_options *o, struct check_report *r);
check_fn check_memory, check_disk, check_clock, check_gpu, check_network;

void check_value(struct check_report *r, const char *name, double value, const char *unit,
		 bool more_is_better);
__attribute__((format(printf, 4, 5))) void check_say(struct check_report *r, const char *name,
						     enum check_state state, const char *fmt, ...);
void check_put(struct check_report *r, const struct check_result *result);
double check_now(void); /* seconds, monotonic */
#define CHECK_TEXT_MAX 32
const char *check_text(char buf[CHECK_TEXT_MAX], double value); /* "12345", "1.23", "0.00123" */

/* ---- check_fleet.c: judging and history ---- */

/* Where runs are kept. */
struct check_history {
	struct beneath in; /* the data folder, path is below it; closed: path is the operator's */
	const char *path;
};

/*
 * Judges all values of this run by those of fleet (files of history of other nodes, NULL: none),
 * else by this node's own history, where there are enough.
 */
MUST_CHECK int check_judge(struct check_result *results, size_t n, const char *fleet,
			   const struct check_history *history, struct err *e);
/* Adds the run to history (made, mode 0644, if it is not there), one JSON document a line. */
MUST_CHECK int check_remember(const struct check_history *history, const json_t *run,
			      struct err *e);

#endif
