/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.h - the one table of verbs and options; help and completion are made from it.
 */
#ifndef TOOLS_VERBS_H
#define TOOLS_VERBS_H

#include <stdio.h>

#include "tools/ctl.h"

enum option_id {
	OPTION_SOCKET,
	OPTION_DATA,
	OPTION_JSON,
	OPTION_YES,
	OPTION_DRY_RUN,
	OPTION_JOBS,
	OPTION_TENSOR,
	OPTION_KEEP_LAST,
	OPTION_KEEP_EVERY,
	OPTION_FORMAT,
	OPTION_OUTPUT,
	OPTION_AS,
	OPTION_STEP,
	OPTION_TO,
	OPTION_CAST,
	OPTION_MIN_TRUST,
	OPTION_SET,
	OPTION_SHARD_SIZE,
	OPTION_METADATA,
	OPTION_MEMORY,
	OPTION_TORCH,
	OPTION_TO_DATA,
	OPTION_TABLE,
	OPTION_COMPRESS,
	OPTION_INCOMING,
	OPTION_ALL,
	OPTION_FOLLOW,
	OPTION_SINCE,
	OPTION_PEERS,
	OPTION_SELF,
	OPTION_FLEET,
	OPTION_HISTORY,
	OPTION_TIME,
	OPTION_QUIET,
	OPTION_VERBOSE,
	OPTION_HELP,
	OPTION_VERSION,
	OPTIONS,
};

struct option_entry {
	const char *name;     /* without "--" */
	char letter;          /* or '\0' */
	const char *argument; /* what it is called; NULL: it has none */
	const char *words;    /* for bash: how the argument is completed; NULL: not */
	const char *help;
};
extern const struct option_entry option_table[OPTIONS];

/* Among the options of a verb: with --socket, it uses the files of that ckptd's data folder. */
#define VERB_USES_FILES (1ull << 63)
#define VERB_TAKES_JOB  (1ull << 62) /* its first argument names a job: no file with slashes */
_Static_assert(OPTIONS <= 62, "a set of options is a 64-bit word with two bits of its own");

struct verb {
	const char *name;
	const char *arguments; /* "[JOB [STEP]]" */
	int args_min, args_max; /* -1: any number */
	uint64_t options;      /* bits of enum option_id that it takes */
	verb_fn *run;
	const char *help;
	const char *needs; /* options that it cannot do without; NULL: none */
};
extern const struct verb verb_table[]; /* ends with an empty name */

const struct verb *verb_find(const char *name); /* NULL: none */
void print_help(FILE *f);
void print_verb_help(FILE *f, const struct verb *v);
void print_completion(FILE *f);

#endif
