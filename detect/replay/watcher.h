/* SPDX-License-Identifier: Apache-2.0 */
/* watcher.h - what is measured: ckptd's detector, or one of the simpler ones that people use. */
#ifndef DETECT_REPLAY_WATCHER_H
#define DETECT_REPLAY_WATCHER_H

#include "detect/detector.h"

struct watcher {
	int (*feed)(struct watcher *, const struct sample *);
	void (*advance)(struct watcher *, uint64_t now_ns);
	uint64_t (*next)(struct watcher *);
	void (*free)(struct watcher *);
};

#define WATCHERS(X)                                                                                \
	X(WATCH_CKPTD, "ckptd", "ckptd's detector")                                                \
	X(WATCH_FIXED, "fixed", "fixed timeout")                                                   \
	X(WATCH_LONGEST, "longest", "times the longest interval, as NVRx")                         \
	X(WATCH_MEDIAN, "median", "median and deviations, as SCOUT")

enum watcher_kind {
#define X(name, word, text) name,
	WATCHERS(X)
#undef X
		WATCHER_COUNT
};

/* What a rival can be set to; see doc/trace-model.md. */
struct watcher_settings {
	double timeout_s;             /* FIXED */
	double times;                 /* LONGEST: 5 in NVRx */
	double ratio, deviations;     /* MEDIAN: 1.25 and 4 in SCOUT */
	uint32_t confirm;             /* MEDIAN: steps in a row; 2 in SCOUT */
	const struct xid_policy *xid; /* CKPTD */
};
struct watcher_settings watcher_published(void);

MUST_CHECK int watcher_new(enum watcher_kind kind, const struct watcher_settings *s,
			   const struct detector_events *events, struct watcher **ret);
MUST_CHECK int rival_new(enum watcher_kind kind, const struct watcher_settings *s,
			 const struct detector_events *events, struct watcher **ret);

#endif
