/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rivals.c - three simpler detectors that people use, from their descriptions (doc/trace-model.md).
 *
 *   FIXED    nothing heard of a rank for T: hung
 *   LONGEST  T is learned: so many times the longest interval between two signs of life, averaged
 *            over restarts with weight 1/2 (NVRx)
 *   MEDIAN   a step beyond max(median x ratio, median + k x 1.4826 x MAD) of the rank's last 32, so
 *            many times in a row: slow; nothing heard for that many of them and one: hung (SCOUT)
 *
 * All have what every launcher has: they see a process end, and know when the job was told to.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/list.h"
#include "detect/replay/watcher.h"

#define WINDOW        32u
#define WINDOW_MIN    5u
#define BEATS_MIN     5u /* of a run before anything is judged */
#define QUIET_AFTER_S 600

struct rival_rank {
	uint64_t last_ns;
	uint32_t node, n, slow, beats;
	float recent[WINDOW], sorted[WINDOW];
};

struct rival_job {
	bool runs, alarmed;
	uint32_t world, beats, heard; /* heard: beats since the alarm */
	double longest_s, learned_s, threshold_s;
	uint64_t deadline_ns, slow_told_ns;
	struct rival_rank *ranks;
};

#define JOBS 64u

struct rival {
	struct watcher watcher;
	enum watcher_kind kind;
	struct watcher_settings set;
	struct detector_events events;
	uint64_t id;
	struct rival_job jobs[JOBS];
};

struct watcher_settings watcher_published(void)
{
	return (struct watcher_settings){
		.timeout_s = 600, .times = 5, .ratio = 1.25, .deviations = 4, .confirm = 2};
}

/* rank SAMPLE_NONE: of the job; all its ranks fall silent together, whoever is to blame. */
static void alarm_for(struct rival *r, uint32_t job, uint32_t rank, enum verdict_class class,
		      uint64_t now_ns)
{
	bool named = rank != SAMPLE_NONE;
	struct verdict v = {.id = ++r->id,
			    .subject = {named ? SUBJECT_RANK : SUBJECT_JOB,
					named ? r->jobs[job].ranks[rank].node : SAMPLE_NONE, job,
					rank, SAMPLE_NONE, SAMPLE_NONE},
			    .class = class,
			    .cause = class == CLASS_DEAD   ? CAUSE_PROCESS_ENDED
				     : class == CLASS_HUNG ? CAUSE_STALLED
							   : CAUSE_STRAGGLER,
			    .level = LEVEL_ALARM,
			    .state = VERDICT_RAISED,
			    .raised_ns = now_ns,
			    .changed_ns = now_ns};

	r->events.verdict(r->events.arg, &v);
}

/* After how many seconds without a sign of life of a rank. */
static double patience(const struct rival *r, const struct rival_job *j)
{
	switch ((unsigned)r->kind) {
	case WATCH_FIXED:
		return r->set.timeout_s;
	case WATCH_LONGEST:
		return j->learned_s > 0 ? r->set.times * (j->longest_s + j->learned_s) / 2
					: r->set.times * j->longest_s;
	default:
		return j->threshold_s * (r->set.confirm + 1);
	}
}

/* Who was not heard of for longest. */
static uint32_t oldest(const struct rival_job *j)
{
	uint32_t worst = SAMPLE_NONE;

	for (uint32_t i = 0; i < j->world; i++)
		if (j->ranks[i].last_ns &&
		    (worst == SAMPLE_NONE || j->ranks[i].last_ns < j->ranks[worst].last_ns))
			worst = i;
	return worst;
}

static void look(struct rival *r, uint32_t job, uint64_t now_ns)
{
	struct rival_job *j = &r->jobs[job];
	double s = patience(r, j);
	uint32_t who;

	j->deadline_ns = UINT64_MAX;
	if (!j->runs || j->alarmed || !(s > 0) || j->beats < BEATS_MIN * j->world)
		return;
	who = oldest(j);
	if (who == SAMPLE_NONE)
		return;
	j->deadline_ns = j->ranks[who].last_ns + (uint64_t)(s * 1e9);
	if (j->deadline_ns > now_ns)
		return;
	j->deadline_ns = UINT64_MAX;
	j->alarmed = true;
	j->heard = 0;
	alarm_for(r, job, SAMPLE_NONE, CLASS_HUNG, now_ns);
}

/* ---- samples ---- */

static int begin(struct rival_job *j, const struct sample *s)
{
	struct rival_rank *ranks;

	if (j->longest_s > 0)
		j->learned_s = j->learned_s > 0 ? (j->learned_s + j->longest_s) / 2 : j->longest_s;
	j->longest_s = 0;
	j->threshold_s = 0;
	j->beats = 0;
	j->runs = true;
	j->alarmed = false;
	j->deadline_ns = UINT64_MAX;
	ranks = alloc_array(s->run.world, sizeof(*ranks));
	if (!ranks)
		return -ENOMEM;
	alloc_free(j->ranks);
	j->ranks = ranks;
	j->world = s->run.world;
	return 0;
}

static void window_add(struct rival_rank *k, float value)
{
	uint32_t at = k->n % WINDOW, len = k->n < WINDOW ? k->n : WINDOW, i;

	if (len == WINDOW) {
		for (i = 0; i < len && k->sorted[i] < k->recent[at]; i++)
			;
		memmove(&k->sorted[i], &k->sorted[i + 1], (len - i - 1) * sizeof(float));
		len--;
	}
	for (i = len; i > 0 && k->sorted[i - 1] > value; i--)
		k->sorted[i] = k->sorted[i - 1];
	k->sorted[i] = value;
	k->recent[at] = value;
	k->n++;
}

static float threshold(const struct rival *r, const struct rival_rank *k)
{
	uint32_t len = k->n < WINDOW ? k->n : WINDOW, low, high;
	float median = k->sorted[len / 2], mad = 0, by_ratio, by_mad;

	/* The middle of the distances: step outwards from the median on both sides. */
	low = high = len / 2;
	for (uint32_t i = 0; i < len / 2; i++) {
		float below = low > 0 ? median - k->sorted[low - 1] : INFINITY;
		float above = high + 1 < len ? k->sorted[high + 1] - median : INFINITY;

		mad = below < above ? below : above;
		if (below < above)
			low--;
		else
			high++;
	}
	by_ratio = median * (float)r->set.ratio;
	by_mad = median + (float)r->set.deviations * 1.4826f * mad;
	return by_ratio > by_mad ? by_ratio : by_mad;
}

static void judge(struct rival *r, struct rival_job *j, const struct sample *s, float value)
{
	struct rival_rank *k = &j->ranks[s->rank];
	float limit = k->n >= WINDOW_MIN ? threshold(r, k) : INFINITY;

	if (k->n >= WINDOW_MIN)
		j->threshold_s = fmax(j->threshold_s * 0.999, (double)limit);
	if (value <= limit) {
		window_add(k, value);
		k->slow = 0;
		return;
	}
	if (++k->slow < r->set.confirm)
		return;
	/* From now on that is how it is. */
	window_add(k, value);
	if (k->slow > r->set.confirm ||
	    s->time_ns < j->slow_told_ns + QUIET_AFTER_S * UINT64_C(1000000000))
		return;
	j->slow_told_ns = s->time_ns;
	alarm_for(r, s->job, s->rank, CLASS_SLOW, s->time_ns);
}

static void on_beat(struct rival *r, struct rival_job *j, const struct sample *s)
{
	struct rival_rank *k = &j->ranks[s->rank];
	double took = k->last_ns ? (double)(s->time_ns - k->last_ns) / 1e9 : 0;

	k->node = s->node;
	k->beats++;
	j->beats++;
	if (took > 0 && k->beats > BEATS_MIN) {
		if (!j->alarmed) /* what ended a suspicion is not learned */
			j->longest_s = fmax(j->longest_s, took);
		if (r->kind == WATCH_MEDIAN)
			judge(r, j, s,
			      s->beat.flags & BEAT_BUSY ? (float)s->beat.busy_ns * 1e-9f
							: (float)took);
	}
	k->last_ns = s->time_ns;
	if (j->alarmed && ++j->heard >= j->world)
		j->alarmed = false;
	if (j->deadline_ns == UINT64_MAX)
		j->deadline_ns = s->time_ns + 1; /* look, and set it */
}

static void on_exit_of(struct rival *r, struct rival_job *j, const struct sample *s)
{
	bool well = s->exit.how == EXIT_SAID_BYE || (s->exit.how == EXIT_CODE && !s->exit.value);

	if (well || j->alarmed)
		return;
	j->alarmed = true;
	j->runs = false; /* the others follow */
	j->ranks[s->rank].node = s->node;
	alarm_for(r, s->job, s->rank, CLASS_DEAD, s->time_ns);
}

static int rival_feed(struct watcher *w, const struct sample *s)
{
	struct rival *r = container_of(w, struct rival, watcher);
	struct rival_job *j;

	if (s->job >= JOBS)
		return 0;
	j = &r->jobs[s->job];
	if (s->kind == SAMPLE_JOB) {
		if (s->run.begins)
			return begin(j, s);
		j->runs = false;
		return 0;
	}
	if (!j->runs || s->rank >= j->world)
		return 0;
	if (s->kind == SAMPLE_BEAT)
		on_beat(r, j, s);
	else if (s->kind == SAMPLE_PHASE)
		j->ranks[s->rank].last_ns = s->time_ns;
	else if (s->kind == SAMPLE_EXIT)
		on_exit_of(r, j, s);
	return 0;
}

static void rival_advance(struct watcher *w, uint64_t now_ns)
{
	struct rival *r = container_of(w, struct rival, watcher);

	for (uint32_t i = 0; i < JOBS; i++)
		if (r->jobs[i].runs && r->jobs[i].deadline_ns <= now_ns)
			look(r, i, now_ns);
}

static uint64_t rival_next(struct watcher *w)
{
	struct rival *r = container_of(w, struct rival, watcher);
	uint64_t next = UINT64_MAX;

	for (uint32_t i = 0; i < JOBS; i++)
		if (r->jobs[i].runs && r->jobs[i].deadline_ns < next)
			next = r->jobs[i].deadline_ns;
	return next;
}

static void rival_free(struct watcher *w)
{
	struct rival *r = container_of(w, struct rival, watcher);

	for (uint32_t i = 0; i < JOBS; i++)
		alloc_free(r->jobs[i].ranks);
	alloc_free(r);
}

int rival_new(enum watcher_kind kind, const struct watcher_settings *s,
	      const struct detector_events *events, struct watcher **ret)
{
	struct rival *r = alloc_zero(sizeof(*r));

	assert(kind != WATCH_CKPTD);
	if (!r)
		return -ENOMEM;
	r->watcher = (struct watcher){rival_feed, rival_advance, rival_next, rival_free};
	r->kind = kind;
	r->set = *s;
	r->events = *events;
	*ret = &r->watcher;
	return 0;
}
