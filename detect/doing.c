/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/doing.h"

#include <math.h>

#define NOT_KNOWN     UINT16_MAX
#define BUSY_PERMILLE 100                /* of a core, of a GPU: watchdog threads take far less */
/* Three looks in a row may be lost, and one come late by half of the time between them. */
#define FRESH_GAPS   3.5
#define GAP_MIN_NS   NS_PER_SEC /* as often as who is asked for is looked at */
#define FRESH_MAX_NS (120 * NS_PER_SEC) /* the least time that a look decides of: asleep_s */

static bool stands(const struct sample_activity *a)
{
	return a->state == 'T' || a->state == 't' || a->state == 'Z' || a->state == 'X';
}

static bool busy(const struct sample_activity *a)
{
	if (a->gpu_permille != NOT_KNOWN && a->gpu_permille >= BUSY_PERMILLE)
		return true;
	if (a->cpu_permille != NOT_KNOWN)
		return a->cpu_permille >= BUSY_PERMILLE;
	return a->state == 'R' || a->threads_running > 0;
}

enum doing doing_now(const struct sample_activity *a)
{
	if (stands(a))
		return DOING_STOPPED;
	if (a->phase == PHASE_SYNC)
		return DOING_WAITING;
	if (busy(a))
		return DOING_BUSY;
	if (a->timed == TIMED_YES || a->state == 'D' || a->phase == PHASE_DATA)
		return DOING_LATER;
	if (a->state != 'S' && a->cpu_permille == NOT_KNOWN)
		return DOING_UNKNOWN;
	return a->timed == TIMED_NO ? DOING_IDLE : DOING_ASLEEP;
}

/* It has begun a phase since the look before: it is on its way, be it from one collective to the
 * next. When a phase began is not told the same to the nanosecond each time. */
static bool moved(const struct looks *l, const struct sample_activity *a)
{
	return l->n && (l->phase != a->phase || l->step != a->step || a->since_ns > l->at_ns);
}

void looks_add(struct looks *l, const struct sample_activity *a, bool has_gpu, uint64_t now_ns)
{
	bool ready = a->state == 'R' || a->threads_running > 0;
	/* One look may meet a watchdog that wakes for a moment. */
	bool starved = ready && l->n && l->ready && !stands(a);
	enum doing doing = doing_now(a);
	bool idle = doing == DOING_IDLE;

	l->unseen = has_gpu && a->gpu_permille == NOT_KNOWN;
	if (l->unseen && doing == DOING_IDLE)
		doing = DOING_ASLEEP;
	if (moved(l, a) && doing != DOING_STOPPED)
		doing = DOING_BUSY;
	else if (starved && doing != DOING_WAITING)
		doing = DOING_BUSY;
	if (!l->n)
		l->gap_ns = 0;
	else if (now_ns - l->at_ns > l->gap_ns)
		l->gap_ns = now_ns - l->at_ns;
	/* What its GPU does is known a moment later than the rest: the look before counts. */
	if (l->doing != doing && !(doing == DOING_IDLE && l->but_for))
		l->n = 0;
	l->n += l->n < 255;
	l->but_for = idle && doing == DOING_ASLEEP;
	l->doing = doing;
	l->ready = ready;
	l->phase = a->phase;
	l->step = a->step;
	l->measured = a->cpu_permille != NOT_KNOWN;
	l->quiet = l->measured && !l->unseen && !busy(a) && !starved && doing != DOING_BUSY;
	l->gpu = a->gpu_permille == NOT_KNOWN      ? -1
		 : a->gpu_permille >= 500          ? 1
		 : a->gpu_permille < BUSY_PERMILLE ? 0
						   : -1;
	l->at_ns = now_ns;
}

bool looks_fresh(const struct looks *l, uint64_t now_ns)
{
	uint64_t gap_ns = l->gap_ns > GAP_MIN_NS ? l->gap_ns : GAP_MIN_NS;
	double old_ns = fmin(FRESH_GAPS * (double)gap_ns, FRESH_MAX_NS);

	return l->n && (double)(now_ns - l->at_ns) <= old_ns;
}

bool looks_due(const struct looks *l, uint64_t now_ns)
{
	return l->n && !looks_fresh(l, now_ns) && now_ns - l->at_ns <= FRESH_MAX_NS;
}

enum doing looks_say(const struct looks *l, uint64_t now_ns)
{
	if (!looks_fresh(l, now_ns))
		return DOING_UNKNOWN;
	/* One look may catch a working process between two pieces of work. */
	if ((l->doing == DOING_IDLE || l->doing == DOING_ASLEEP) && l->n < (l->measured ? 2 : 4))
		return DOING_UNKNOWN;
	return l->doing;
}

const char *doing_words(enum doing doing)
{
	switch (doing) {
	case DOING_STOPPED:
		return "its process is stopped";
	case DOING_WAITING:
		return "it waits in a collective";
	case DOING_BUSY:
		return "its process is busy";
	case DOING_LATER:
		return "it sleeps, or waits for input or a disk";
	case DOING_ASLEEP:
		return "it sleeps, and nobody tells for what";
	case DOING_IDLE:
		return "its process does nothing";
	case DOING_UNKNOWN:
		break;
	}
	return "what it does is not known";
}
