/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h - what happened on this node, for people: a ring in memory, a file, and who waits for
 * the next one.
 *
 * An event has a number that rises by one, also over restarts; its time of day is a label. It is
 * kept as one line of JSON (doc/json.md). EVENTS_KEPT are in memory, where one user's many push
 * out none of others; the newest one to two EVENTS_FILE_BYTES in the data folder; a crash of the
 * machine loses the last seconds of the file, and a full disk what came meanwhile: events are
 * told, never waited for.
 *
 * On the loop's thread, but events_scan().
 */
#ifndef CKPTD_EVENTS_H
#define CKPTD_EVENTS_H

#include <jansson.h>

#include "base/err.h"
#include "ckptd/node.h"
#include "storage/node_files.h"

#define EVENTS_WAITERS_PER_UID 32u
#define EVENT_UNLOGGED    0x100      /* or'ed into the level: it is in the journal already */
#define EVENT_FOR_ALL     UINT32_MAX /* uid: of the node, not of a job */

struct events;
struct session;

/* X(name, word, what it says) */
#define EVENT_KINDS(X)                                                                             \
	X(EVENT_STARTED, "started", "ckptd is ready")                                              \
	X(EVENT_JOB_BEGAN, "job-began", "a run of a job, or an epoch of it, began")                \
	X(EVENT_JOB_ENDED, "job-ended", "all its ranks have left")                                 \
	X(EVENT_JOB_STOPPED, "job-stopped", "its state contradicts itself: it is refused")         \
	X(EVENT_JOB_REMOVED, "job-removed", "a person removed it, with all that it had")           \
	X(EVENT_JOB_REFUSED, "job-refused", "its folder cannot be read; the other jobs start")     \
	X(EVENT_CHECKPOINT_LOST, "checkpoint-lost", "a committed checkpoint's bytes are gone")     \
	X(EVENT_CHECKPOINT_DAMAGED, "checkpoint-damaged",                                          \
	  "a start found files of a checkpoint missing or damaged")                                \
	X(EVENT_CHECKPOINT_REPAIRED, "checkpoint-repaired", "a start made its COMMIT again")       \
	X(EVENT_VERDICT, "verdict", "the detector raised, updated or cleared a verdict")           \
	X(EVENT_DECISION, "decision", "what the policy makes of it, and why")                      \
	X(EVENT_ACTION_STARTED, "action-started", "ckptd does what was decided")                   \
	X(EVENT_ACTION_ENDED, "action-ended", "how that ended")                                    \
	X(EVENT_CHECK_ENDED, "check-ended", "a node check has ended")                              \
	X(EVENT_MARKED, "marked", "something is suspect from now on")                              \
	X(EVENT_DRAINED, "drained", "the node takes no new runs")                                  \
	X(EVENT_UNDRAINED, "undrained", "it does again")                                           \
	X(EVENT_CLEARED, "cleared", "a person said that something is well")                        \
	X(EVENT_UNWATCHED, "unwatched", "the detector has no room for something")                  \
	X(EVENT_PROBLEM, "problem", "something keeps a job from being saved: problems.h")          \
	X(EVENT_PROBLEM_ENDED, "problem-ended", "it does not any more")                            \
	X(EVENT_LAST_SAVE_LOST, "last-save-lost", "a run ended, its last save does not count")     \
	X(EVENT_FORGOTTEN, "forgotten", "an alarm stood when the ckptd before this one ended")

enum event_kind {
#define X(name, word, text) name,
	EVENT_KINDS(X)
#undef X
		EVENT_KIND_COUNT
};
const char *event_kind_word(enum event_kind k);

MUST_CHECK int events_new(struct node *n, struct events **ret);
void events_free(struct events *ev); /* NULL is allowed */

/*
 * subject and more become its: objects, NULL for none. more's members come beside kind and words.
 * level: as syslog's; the line goes to the journal too. An event for which there is no memory is
 * only in the journal.
 */
void events_post(struct events *ev, enum event_kind kind, int level, uint32_t uid, json_t *subject,
		 json_t *more, const char *fmt, ...) __attribute__((format(printf, 7, 8)));

/* Blocking, on a worker: what the files have; the newest EVENTS_KEPT. */
struct events_found {
	struct list list;
	uint64_t next;
};
void events_scan(struct disk *disk, struct events_found *ret);
void events_found_free(struct events_found *f);
/* They become the ring's, what was posted before is numbered behind them, and from here on events
 * are written. */
void events_adopt(struct events *ev, struct events_found *f);
/* All that was posted is on its way to the file or has come there: nothing waits any more. */
bool events_written(const struct events *ev);

/* ---- events_answer.c ---- */

struct events_question {
	uint64_t since;    /* those with a higher number */
	uint64_t since_ns; /* and not before this time of day */
	bool wait;         /* answer when there is one */
	uint32_t uid;      /* who asks */
	bool sees_all;
};
/* {"schema", "next", "dropped", "events": [...]}; NULL: out of memory. In one call: not for
 * repeated queries. */
json_t *events_answer(struct events *ev, const struct events_question *q);
/* Answers later, with q->wait when there is something to say. One wait per session. */
void events_ask(struct events *ev, struct session *s, uint64_t request,
		const struct events_question *q);
void events_drop_session(struct events *ev, struct session *s);

#endif
