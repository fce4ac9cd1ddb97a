/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/replay/timely.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SECOND           UINT64_C(1000000000)
#define BETWEEN_LOOKS_NS (10 * SECOND) /* at ranks that nobody asked for yet */

void timely_init(struct timely *t)
{
	*t = (struct timely){.job = SAMPLE_NONE, .rank = SAMPLE_NONE};
}

static bool no_number(const struct sample_beat *b)
{
	return (b->flags & BEAT_LOSS && !isfinite(b->loss)) ||
	       (b->flags & BEAT_GRAD_NORM && !isfinite(b->grad_norm));
}

static void take_beat(struct timely *t, const struct sample *s)
{
	if (!t->nan && no_number(&s->beat)) {
		t->nan = true;
		t->nan_ns = s->time_ns;
	}
	if (t->step_ns && s->beat.step <= t->step) {
		if (s->beat.step + 1 < t->step) { /* a restart goes back; beats do not, by two */
			t->step = s->beat.step;
			t->step_ns = s->time_ns;
		}
		return;
	}
	if (t->step_ns && s->beat.step == t->step + 1 && !t->paused)
		t->took_ns[t->n_took++ % TIMELY_STEPS] = s->time_ns - t->step_ns;
	t->step = s->beat.step;
	t->step_ns = s->time_ns;
	t->paused = false;
}

void timely_sample(struct timely *t, const struct sample *s)
{
	switch ((unsigned)s->kind) {
	case SAMPLE_BEAT:
		take_beat(t, s);
		break;
	case SAMPLE_PHASE:
		t->paused = t->paused || s->phase.phase >= PHASE_FIRST_LONG;
		break;
	case SAMPLE_ACTIVITY:
		if (s->rank == t->rank && (s->activity.phase == PHASE_DATA ||
					   (s->activity.gpu_permille == UINT16_MAX &&
					    s->activity.state == 'S')))
			t->may_go_on = true;
		break;
	case SAMPLE_JOB:
		t->several = t->several || (t->job != SAMPLE_NONE && t->job != s->job);
		t->job = s->job;
		t->paused = true;
		break;
	default:
		break;
	}
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

struct timely_fault timely_begin(struct timely *t, const struct label *l)
{
	struct timely_fault f = {.step = t->step, .in_step = !t->paused};
	uint64_t took[TIMELY_STEPS], n = t->n_took < TIMELY_STEPS ? t->n_took : TIMELY_STEPS;

	memcpy(took, t->took_ns, n * sizeof(took[0]));
	qsort(took, n, sizeof(took[0]), by_size);
	f.usual_ns = n >= 5 ? took[n / 2] : 0;
	t->nan = t->may_go_on = false;
	t->rank = l->subject.kind == SUBJECT_RANK ? l->subject.rank : SAMPLE_NONE;
	return f;
}

static enum timely_verdict within(bool in_time)
{
	return in_time ? TIMELY_IN_TIME : TIMELY_LATE;
}

struct rule {
	const char *what;
	enum { AT_ONCE, NODE_SAMPLES, USUAL_STEPS, NEXT_BEAT, STEPS_DONE } in;
};

static const struct rule *rule_of(const struct label *l)
{
	static const struct rule rules[] = {
		{"process-killed", AT_ONCE},
		{"gpu-off-bus", AT_ONCE},
		{"xid-fatal", AT_ONCE},
		{"node-dead", NODE_SAMPLES},
		{"process-stopped", USUAL_STEPS},
		{"deadlock", USUAL_STEPS},
		{"nan", NEXT_BEAT},
		{"straggler-rank", STEPS_DONE},
		{"straggler-node", STEPS_DONE},
	};

	for (unsigned i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (strcmp(rules[i].what, l->what) == 0)
			return &rules[i];
	return NULL;
}

bool timely_asks(const struct label *l)
{
	return rule_of(l) != NULL;
}

enum timely_verdict timely_told(const struct timely *t, const struct label *l,
				const struct timely_fault *f, uint64_t told_ns)
{
	const struct rule *rule = rule_of(l);
	uint64_t after_ns = told_ns - l->time_ns;

	if (!rule || t->several)
		return TIMELY_NOT_JUDGED;
	switch (rule->in) {
	case AT_ONCE:
		return within(after_ns <= SECOND);
	case NODE_SAMPLES: /* four of them, every 10 s, and none has come */
		return within(after_ns <= 40 * SECOND);
	case USUAL_STEPS:
		if (!f->in_step || !f->usual_ns || t->may_go_on)
			return TIMELY_NOT_JUDGED;
		return within(after_ns <= 3 * f->usual_ns + 2 * SECOND + BETWEEN_LOOKS_NS);
	case NEXT_BEAT: /* the rank's own beat comes within a second of the others' */
		return within(t->nan && told_ns <= t->nan_ns + SECOND);
	case STEPS_DONE:
		return within(after_ns <= 60 * SECOND || t->step <= f->step + 20);
	}
	return TIMELY_NOT_JUDGED;
}
