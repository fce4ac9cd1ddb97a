/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/replay/watcher.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/list.h"
#include "detect/options.h"

struct ours {
	struct watcher watcher;
	struct detector *detector;
};

static int ours_feed(struct watcher *w, const struct sample *s)
{
	return detector_feed(container_of(w, struct ours, watcher)->detector, s);
}

static void ours_advance(struct watcher *w, uint64_t now_ns)
{
	detector_advance(container_of(w, struct ours, watcher)->detector, now_ns);
}

static uint64_t ours_next(struct watcher *w)
{
	return detector_next(container_of(w, struct ours, watcher)->detector);
}

static void ours_free(struct watcher *w)
{
	struct ours *o = container_of(w, struct ours, watcher);

	detector_free(o->detector);
	alloc_free(o);
}

static int ours_new(const struct watcher_settings *s, const struct detector_events *events,
		    struct watcher **ret)
{
	struct ours *o = alloc_zero(sizeof(*o));
	struct detector_options options;
	int r;

	if (!o)
		return -ENOMEM;
	detector_options_default(&options);
	r = detector_new(&options, s->xid, events, &o->detector);
	if (r < 0) {
		alloc_free(o);
		return r;
	}
	o->watcher = (struct watcher){ours_feed, ours_advance, ours_next, ours_free};
	*ret = &o->watcher;
	return 0;
}

int watcher_new(enum watcher_kind kind, const struct watcher_settings *s,
		const struct detector_events *events, struct watcher **ret)
{
	return kind == WATCH_CKPTD ? ours_new(s, events, ret) : rival_new(kind, s, events, ret);
}
