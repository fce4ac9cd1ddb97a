/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/test_job.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "detect/options.h"
#include "detect/test_advice.h"
#include "tests/lib/test.h"

static void on_verdict(void *arg, const struct verdict *v)
{
	struct job_of *j = arg;

	advises_as_usual(v);
	j->told += v->state == VERDICT_RAISED;
	if (v->state == VERDICT_CLEARED) {
		j->cleared++;
		j->over = *v;
	} else if (v->level == LEVEL_ALARM && !j->alarms++) {
		j->alarm = *v;
		j->alarm_ns = v->raised_ns;
	}
}

static void on_probe(void *arg, uint32_t job, uint32_t rank, bool wanted)
{
	struct job_of *j = arg;

	assert_int_equal(job, 0);
	assert_true(j->asked[rank] != wanted);
	j->asked[rank] = wanted;
	j->asks += wanted;
}

struct sample sample_of(const struct job_of *j, enum sample_kind kind, uint32_t rank)
{
	return (struct sample){.kind = kind,
			       .time_ns = j->now,
			       .node = rank == SAMPLE_NONE ? SAMPLE_NONE : rank / j->per_node,
			       .job = 0,
			       .rank = rank,
			       .device = SAMPLE_NONE};
}

void feed(struct job_of *j, const struct sample *s)
{
	assert_int_equal(detector_feed(j->d, s), 0);
}

void run_begins(struct job_of *j, uint64_t epoch)
{
	struct sample s = sample_of(j, SAMPLE_JOB, SAMPLE_NONE);

	s.run.begins = true;
	s.run.epoch = epoch;
	s.run.world = j->world;
	feed(j, &s);
	for (uint32_t r = 0; r < j->world; r++) {
		s = sample_of(j, SAMPLE_MEMBER, r);
		snprintf(s.member.role, sizeof(s.member.role), "dp");
		feed(j, &s);
		j->does[r] = DOES_STEPS;
		j->gone[r] = false;
	}
	j->step = 0;
	j->step_begins = j->now;
	j->this_ns = 0;
}

void job_begins(struct job_of *j, uint32_t world, uint32_t per_node, uint64_t usual_ns)
{
	struct detector_options o;
	struct detector_events e = {.verdict = on_verdict, .probe = on_probe, .arg = j};

	memset(j, 0, sizeof(*j));
	rng_seed(&j->g, test_seed(1));
	j->world = world;
	j->per_node = per_node;
	j->usual_ns = usual_ns;
	j->now = SEC;
	j->answers = j->says_sync = true;
	detector_options_default(&o);
	assert_int_equal(detector_new(&o, NULL, &e, &j->d), 0);
	run_begins(j, 1);
}

static void nodes_say(struct job_of *j)
{
	for (uint32_t r = 0; r < j->world; r += j->per_node) {
		struct sample s = sample_of(j, SAMPLE_METRICS, r);

		s.job = s.rank = SAMPLE_NONE;
		for (int m = 0; m < METRIC_COUNT; m++)
			s.metrics[m] = NAN;
		if (j->power > 0)
			s.metrics[METRIC_GPU_POWER] = j->power;
		if (j->cpu > 0)
			s.metrics[METRIC_CPU] = j->cpu;
		if (j->unseen_gpus)
			s.metrics[METRIC_GPU_CLOCK] = 1700;
		feed(j, &s);
	}
}

static bool waits(const struct job_of *j, uint32_t rank)
{
	for (uint32_t r = 0; r < j->world; r++)
		if (j->does[r] != DOES_STEPS)
			return j->does[rank] == DOES_STEPS;
	return false;
}

static void answer(struct job_of *j, uint32_t r)
{
	struct sample s = sample_of(j, SAMPLE_ACTIVITY, r);
	enum does does = j->does[r];

	s.activity = (struct sample_activity){
		.step = j->step + 1,
		.since_ns = j->step_begins,
		.phase = does == DOES_WAIT || (waits(j, r) && j->says_sync) ? PHASE_SYNC
			 : does == DOES_INPUT                               ? PHASE_DATA
									    : PHASE_STEP,
		.state = does == DOES_STOPPED ? 'T' : 'S',
		.cpu_permille = does == DOES_WORK || (does == DOES_STEPS && !waits(j, r)) ? 900 : 4,
		.gpu_permille = UINT16_MAX,
		.timed = j->unknown_sleep ? TIMED_NOT_KNOWN : does == DOES_SLEEP,
	};
	if (j->gpus) {
		s.activity.gpu_permille = does == DOES_STEPS || does == DOES_WAIT ? 1000 : 3;
		if (waits(j, r))
			s.activity.cpu_permille = 990;
	}
	feed(j, &s);
}

static bool all_step(const struct job_of *j)
{
	for (uint32_t r = 0; r < j->world; r++)
		if (j->does[r] != DOES_STEPS)
			return false;
	return true;
}

static void step_ends(struct job_of *j)
{
	j->step++;
	for (uint32_t r = 0; r < (j->mute ? 0 : j->mute_from ? j->mute_from : j->world); r++) {
		struct sample s = sample_of(j, SAMPLE_BEAT, r);

		if (j->gone[r])
			continue;
		s.beat.step = j->step;
		feed(j, &s);
	}
	j->step_begins = j->now;
	j->this_ns = 0;
}

/* Goes on for so long, in slices of 50 ms. */
void goes_on(struct job_of *j, double s)
{
	uint64_t end = j->now + (uint64_t)(s * SEC);

	while (j->now < end) {
		j->now += 50 * MS;
		detector_advance(j->d, j->now);
		if (!j->this_ns) /* +-10 % */
			j->this_ns = j->usual_ns * (90 + rng_below(&j->g.rng, 20)) / 100;
		if (all_step(j) && j->now - j->step_begins >= j->this_ns)
			step_ends(j);
		if (j->now / SEC != (j->now - 50 * MS) / SEC)
			for (uint32_t r = 0; j->answers && r < j->world; r++)
				if (j->asked[r] && !j->gone[r])
					answer(j, r);
		if (!j->silent_nodes && j->now / (10 * SEC) != (j->now - 50 * MS) / (10 * SEC))
			nodes_say(j);
	}
}

void phase(struct job_of *j, uint32_t r, uint32_t phase, bool begins, double expected_s)
{
	struct sample s = sample_of(j, SAMPLE_PHASE, r);

	s.phase.phase = phase;
	s.phase.begins = begins;
	s.phase.expected_ns = (uint64_t)(expected_s * SEC);
	feed(j, &s);
}

void ends(struct job_of *j, uint32_t rank, enum exit_how how, int value)
{
	struct sample s = sample_of(j, SAMPLE_EXIT, rank);

	s.exit.how = how;
	s.exit.value = value;
	feed(j, &s);
	j->gone[rank] = true;
	j->does[rank] = DOES_NOTHING;
}

double delay(const struct job_of *j, uint64_t from)
{
	return (double)(j->alarm_ns - from) / SEC;
}

void all_do(struct job_of *j, enum does does)
{
	for (uint32_t r = 0; r < j->world; r++)
		j->does[r] = does;
}
