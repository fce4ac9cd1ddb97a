/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl.h - what the command line asked for, and the verbs that do it.
 *
 * Facts travel as one JSON document whether they come from a running ckptd (live.c) or from the
 * files of a data folder (files_json.c): doc/json.md. Verbs print it, as it is or as tables.
 */
#ifndef TOOLS_CTL_H
#define TOOLS_CTL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* The exit statuses; those of node-problem-detector. */
enum { EXIT_FINE = 0, EXIT_PROBLEM = 1, EXIT_UNKNOWN = 2 };

/* Of an option that may be given several times. */
#define WORDS_MAX 64
struct words {
	const char *at[WORDS_MAX];
	uint32_t n;
};

struct ctl {
	const char *socket, *data; /* as given; NULL: not given */
	bool json, yes, dry_run, incoming, all, follow;
	int talk;                  /* -1: -q; 0; 1: -v */
	uint32_t jobs;             /* --jobs; 0: as many as there are processors */
	uint32_t keep_last;        /* --keep-last; 0: not given */
	uint64_t keep_every;
	const char *tensor;                      /* --tensor, the last; NULL: all */
	struct words tensors;                    /* --tensor, all of them */
	struct words metadata;                   /* --metadata */
	const char *format, *output, *as, *cast, *to; /* NULL: not given */
	const char *torch;                            /* --torch; NULL: not given */
	const char *step;                        /* --step: digits; NULL: not given */
	uint32_t min_trust;                      /* --min-trust: enum trust_level */
	const char *set;                         /* --set; NULL: not given */
	uint64_t memory, shard_size;             /* bytes; 0: not given */
	const char *to_data;                     /* NULL: not given */
	const char *since;                       /* --since; NULL: not given */
	const char *peers, *self, *fleet, *history; /* of node-check; NULL: not given */
	uint32_t time;                           /* --time: seconds; 0: not given */
	const char *table;                       /* --table; NULL: not given */
	uint32_t compress;                       /* --compress; 0: not given */
	char **args;               /* of the verb */
	int n_args;
};

/* Files are asked, not a daemon: --data and no --socket. */
bool ctl_offline(const struct ctl *c);

/*
 * A verb: EXIT_FINE or EXIT_PROBLEM after it has said which, or a negative error with its
 * sentence, which main() prints.
 */
typedef int verb_fn(const struct ctl *c, struct err *e);
verb_fn verb_status, verb_events, verb_why, verb_clear, verb_drain, verb_undrain, verb_policy,
	verb_list, verb_show, verb_verify, verb_rm, verb_pin, verb_unpin, verb_gc, verb_rebuild,
	verb_token, verb_export, verb_diff, verb_layout, verb_import, verb_reshard, verb_node_check,
	verb_goodput, verb_trust, verb_safe;
verb_fn verb_xid;

MUST_CHECK int gc_incoming(const struct ctl *c, struct err *e); /* incoming.c */
MUST_CHECK int rm_whole_job(const struct ctl *c, struct err *e); /* rm_job.c: --all */

/* deeds.c: what ckptd is told of a checkpoint of args[0]: model/trust.h. */
MUST_CHECK int deed_trust(const struct ctl *c, uint32_t what, struct err *e);

/* ---- live.c and files_json.c: the document of `status` ---- */

/* By what ctl_offline() says. job: a name or an id; NULL: all. Jobs come sorted by name, their
 * checkpoints newest first. A ckptd that starts is waited for: -EAGAIN where it takes too long.
 * CKPT_ENOTFOUND: there is no such job. */
MUST_CHECK int status_document(const struct ctl *c, const char *job, json_t **ret, struct err *e);
/* The same of all jobs, at once: "ready" says whether a ckptd that answers knows them all. */
MUST_CHECK int status_now(const struct ctl *c, json_t **ret, struct err *e);
MUST_CHECK int live_document(const struct ctl *c, json_t **ret, struct err *e);
MUST_CHECK int files_document(const struct ctl *c, json_t **ret, struct err *e);

#endif
