/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.h - what is suspect on this node, and whether it takes no new runs: kept over restarts.
 *
 * A mark names its subject in words ("GPU 0000:9b:00"), which stay what they are when numbers do
 * not. They lie in MARKS_FILE of the data folder as JSON, published on a worker each time that they
 * change; one that cannot be written is in force until ckptd ends, and that is said. On the loop's
 * thread, but marks_read().
 */
#ifndef CKPTD_MARKS_H
#define CKPTD_MARKS_H

#include <jansson.h>

#include "ckptd/node.h"
#include "storage/node_files.h"
#include "storage/store.h"

#define MARKS_MAX       128u
#define MARKS_JOBS_MAX  96u /* of them, of jobs and their ranks */
#define MARKS_UID_MAX   48u /* ... of one user */
#define MARK_WORDS_MAX  160
#define MARK_REASON_MAX 200

struct mark {
	char words[MARK_WORDS_MAX];
	char reason[MARK_REASON_MAX];
	uint64_t since_ns; /* time of day */
	uint32_t uid;      /* who may see it; EVENT_FOR_ALL */
};

struct marks {
	struct node *node;
	struct mark suspects[MARKS_MAX];
	uint32_t n;
	uint64_t told_ns; /* to an open: not more than once a second */
	bool drained;
	struct mark drain;
	struct work work;
	char *bytes; /* being written */
	size_t len;
	bool busy, again;
};

void marks_init(struct marks *m, struct node *n);
void marks_fini(struct marks *m);
/* Blocking, on a worker, before anybody else knows m: what is not there is not marked. */
void marks_read(struct marks *m, struct store *s);

/* What was read, before anything is marked; what was marked earlier stays. */
void marks_take(struct marks *m, const struct marks *read);

/* False: it was marked already, or there are too many. Users may have jobs of one name, so words
 * are a name only together with the uid; those of one user leave room for the others, and
 * jobs for what is the node's. */
bool marks_add(struct marks *m, const char *words, const char *reason, uint32_t uid);
bool marks_remove(struct marks *m, const char *words, uint32_t uid);
const struct mark *marks_find(const struct marks *m, const char *words, uint32_t uid);
/* How many marks the node has, and this uid; ret_first: one of them. */
uint32_t marks_of(const struct marks *m, uint32_t uid, const struct mark **ret_first);
/* False: it is so already. */
bool marks_drain(struct marks *m, bool on, const char *reason);

/* [{"words", "reason", "since_ns"}]; {"reason", "since_ns"} or null. */
json_t *marks_suspects_json(const struct marks *m, uint32_t uid, bool sees_all);
json_t *marks_drain_json(const struct marks *m);

#endif
