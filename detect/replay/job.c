/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c - the life of a synchronous job: load, compile, steps, pauses, the end and the next start.
 *
 *   DOWN -> LOADING -> STEPPING <-> PAUSED        any -> STUCK (a fault) -> DOWN (restart)
 *
 * All ranks end a step together, when the slowest has done its work and the data was exchanged.
 */
#include <config.h>

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "detect/replay/world.h"

static void tell_phase(struct world *w, uint32_t rank, uint32_t phase, bool begins)
{
	struct sample *s;

	if (!w->style.declares)
		return;
	s = world_rank_sample(w, SAMPLE_PHASE, rank);
	s->phase.phase = phase;
	s->phase.begins = begins;
	snprintf(s->phase.what, sizeof(s->phase.what), "%s", sample_phase_word(phase));
}

static void tell_all(struct world *w, uint32_t phase, bool begins)
{
	for (uint32_t i = 0; i < w->world; i++)
		if (!w->gone[i])
			tell_phase(w, i, phase, begins);
}

static double every(struct world *w, double mean_s)
{
	return mean_s > 0 ? (double)w->now + 1e9 * rand_lognormal(&w->rand, mean_s, 0.1) : 1e19;
}

static void tell_members(struct world *w)
{
	struct sample *s = world_sample(w, SAMPLE_JOB);

	s->job = w->c.job;
	s->run.begins = true;
	s->run.world = w->world;
	s->run.epoch = w->epoch;
	for (uint32_t i = 0; i < w->world; i++) {
		s = world_rank_sample(w, SAMPLE_MEMBER, i);
		if (w->style.declares)
			snprintf(s->member.role, sizeof(s->member.role), "stage%u",
				 (unsigned)((uint64_t)i * w->style.stages / w->world));
	}
}

static void found(struct world *w);

void job_begin(struct world *w)
{
	struct rand *r = &w->rand;

	w->state = JOB_DOWN;
	w->epoch++;
	w->token++;
	if (w->replace != SAMPLE_NONE)
		nodes_replace(w, w->replace);
	w->replace = SAMPLE_NONE;
	memset(w->gone, 0, w->world * sizeof(*w->gone));
	memset(w->missed, 0, w->world);
	tell_members(w);
	w->state = JOB_LOADING;
	w->step = w->checkpoint_step;
	w->steps_here = 0;
	w->stall = STALL_NONE;
	w->spike = 1;
	w->begun_ns = w->now;
	w->ends_ns = w->now + S(rand_lognormal_in(r, 60, 0.4, 15, 300));
	w->restart_ns = w->style.restart_every_s > 0
				? w->now + S(rand_exponential(r, w->style.restart_every_s))
				: UINT64_MAX;
	if (w->epoch == 1 && w->style.resuming) {
		found(w);
		return;
	}
	tell_all(w, PHASE_LOAD, true);
	world_at(w, w->ends_ns, EVENT_READY, 0);
}

void job_ready(struct world *w)
{
	tell_all(w, PHASE_LOAD, false);
	if (w->style.compile_s > 0)
		tell_all(w, PHASE_COMPILE, true);
	w->state = JOB_STEPPING;
	w->checkpoint_ns = (uint64_t)every(w, w->style.checkpoint_every_s);
	w->evaluate_ns = (uint64_t)every(w, w->style.evaluate_every_s);
	job_step(w);
}

/* ---- a step ---- */

/* What happens in one step in a thousand, and in some others, to one rank or to all. */
static double draw_stall(struct world *w, double step_s)
{
	struct rand *r = &w->rand;
	double v = rand_unit(r);

	w->stall = STALL_NONE;
	if (w->steps_here < 8)
		return 0;
	w->stalled = rand_below(r, w->world);
	if (v < w->style.tenfold_share) {
		static const enum stall how[] = {
			STALL_HOST, STALL_HOST, STALL_HOST, STALL_DATA_TIMED, STALL_DATA_TIMED,
			STALL_DATA, STALL_IO,   STALL_IO,   STALL_ALL,        STALL_ALL};

		w->stall = how[rand_below(r, 10)];
		return 9 * step_s;
	}
	if (v < w->style.tenfold_share + w->style.data_stall_share) {
		w->stall = rand_chance(r, 0.7) ? STALL_DATA_TIMED : STALL_DATA;
		return step_s * rand_between(r, 0.5, 3);
	}
	return 0;
}

/* The first steps: compiled, tuned, caches are cold. */
static double warm_up(struct world *w)
{
	struct rand *r = &w->rand;
	double compile_s;

	switch (w->steps_here) {
	case 0:
		compile_s = rand_lognormal(r, w->style.compile_s, 0.2);
		return w->style.compile_most_s > 0 ? fmin(compile_s, w->style.compile_most_s)
						   : compile_s;
	case 1:
		return w->style.step_s * rand_between(r, 0.5, 2.5);
	case 2:
	case 3:
	case 4:
		return w->style.step_s * rand_between(r, 0, 0.6);
	default:
		return 0;
	}
}

static float slowest(struct world *w)
{
	struct rand *r = &w->rand;
	const float sigma = (float)w->style.jitter, half = sigma * sigma / 2;
	const float base =
		(float)(w->style.step_s * w->length * w->trend * (1 - w->style.comm_share));
	float max = 0;

	for (uint32_t i = 0; i < w->world; i++) {
		uint32_t node = world_node(w, i);
		float x = sigma * rand_normal(r);
		float work = base * w->factor[i] * w->nodes[node].speed * w->nodes[node].drift *
			     (1 + x + x * x / 2 + half);

		if (w->fault.active)
			work *= faults_slowness(w, node, i);
		w->work[i] = work;
		max = work > max ? work : max;
	}
	return max;
}

static double exchange(struct world *w)
{
	double s = w->style.step_s * w->length * w->style.comm_share;

	s *= 1 + 0.05 * fabs((double)rand_normal(&w->rand));
	for (uint32_t i = 0; w->fault.active && i < w->c.nodes; i++)
		if (faults_slow_path(w, w->slot[i], w->slot[(i + 1) % w->c.nodes]))
			return s * (double)w->fault.factor;
	return s;
}

void job_step(struct world *w)
{
	double extra, took;

	assert(w->state == JOB_STEPPING || w->state == JOB_PAUSED);
	w->state = JOB_STEPPING;
	w->step++;
	w->begun_ns = w->now;
	w->trend += 0.002 * (double)rand_normal(&w->rand) - 0.01 * (w->trend - 1);
	w->trend = w->steps_here ? w->trend : 1;
	took = (double)slowest(w);
	extra = draw_stall(w, w->style.step_s * w->length);
	if (w->stall != STALL_NONE && w->stall != STALL_ALL) {
		w->work[w->stalled] += (float)extra;
		took = fmax(took, (double)w->work[w->stalled]);
		extra = 0;
	}
	extra += warm_up(w);
	took += extra + exchange(w);
	w->took_s = took;
	w->ends_ns = w->now + S(took);
	w->looks = 0;
	w->lap++;
	if (took > 2.5 * w->style.step_s * w->length && w->steps_here > 8)
		world_at(w, w->now + S(2.5 * w->style.step_s * w->length), EVENT_LATE, w->lap);
	world_at(w, w->ends_ns, EVENT_STEP_END, 0);
}

static void draw_numbers(struct world *w)
{
	struct rand *r = &w->rand;
	double calm = 1.9 + 9 * pow((double)w->step + 30, -0.35);

	if (rand_chance(r, 1.0 / 3000)) {
		w->spike = rand_between(r, 1.1, 1.6);
		w->grad = (float)rand_between(r, 2, 8);
	} else {
		w->spike = 1 + (w->spike - 1) * 0.9;
		w->grad = 1;
	}
	if (w->fault.active && w->fault.kind == FAULT_JUMP)
		w->spike = (double)w->fault.factor;
	w->loss = calm * w->spike * (1 + 0.008 * (double)rand_normal(r));
	w->grad *= (float)rand_lognormal(r, 0.4 + 3 * exp(-(double)w->step / 200), 0.15);
	if (w->fault.active && w->fault.kind == FAULT_JUMP)
		w->grad *= w->fault.factor;
}

static void tell_beats(struct world *w)
{
	float *work = w->work;

	w->work = w->told_work;
	w->told_work = work;
	w->beat_step = w->step;
	w->beat_nan = w->fault.active && w->fault.kind == FAULT_NAN;
	w->beat_all_nan = w->beat_nan && (!w->style.local_loss || w->fault.stage++ > 0);
	w->beat_at = 0;
	w->beat_first = rand_below(&w->rand, w->world);
	w->beat_gap_ns = (uint64_t)(1e9 * rand_between(&w->rand, 0.001, 0.02)) / w->world;
	w->beat_ns = w->now;
	w->beat.is_label = false;
	w->beat.sample.kind = SAMPLE_BEAT;
	w->beat.sample.job = w->c.job;
	w->beat.sample.device = SAMPLE_NONE;
	draw_numbers(w);
}

static void pause_for(struct world *w, uint32_t phase, double took_s)
{
	w->state = JOB_PAUSED;
	w->pause = phase;
	w->begun_ns = w->now;
	w->ends_ns = w->now + S(took_s);
	w->looks = 0;
	w->lap++;
	tell_all(w, phase, true);
	/* Nobody looks unasked before he knows how long its steps take. */
	if (took_s > 3 * w->style.step_s && w->steps_here > 1)
		world_at(w, w->now + S(2.5 * w->style.step_s), EVENT_LATE, w->lap);
	world_at(w, w->ends_ns, EVENT_PAUSE_END, 0);
}

/* A ckptd that starts anew is told of the last step of each rank again, and of what lasts. */
static void found(struct world *w)
{
	w->state = JOB_STEPPING;
	w->step = 1000;
	w->steps_here = 1;
	w->begun_ns = w->evaluate_ns = w->now;
	w->checkpoint_ns = (uint64_t)every(w, w->style.checkpoint_every_s);
	slowest(w);
	tell_beats(w);
	w->ends_ns = 0;
	world_at(w, w->now + 20000000, EVENT_PAUSE_END, 0);
}

void job_step_end(struct world *w)
{
	/* The beats of the step before have long been told: steps are longer than 20 ms. */
	assert(w->beat_at == w->world);
	if (w->steps_here == 0 && w->style.compile_s > 0)
		tell_all(w, PHASE_COMPILE, false);
	w->steps_here++;
	w->lap++;
	tell_beats(w);
	/* The pause begins behind the last of the beats. */
	world_at(w, w->now + 20000000, EVENT_STEP, 0)->kind =
		w->now >= w->checkpoint_ns || w->now >= w->evaluate_ns || w->now >= w->restart_ns
			? EVENT_PAUSE_END
			: EVENT_STEP;
	w->ends_ns = 0; /* no pause has begun yet */
}

static bool begin_pause(struct world *w)
{
	struct rand *r = &w->rand;
	double took;

	if (w->now >= w->checkpoint_ns) {
		took = rand_lognormal(r, w->style.checkpoint_s, 0.3);
		if (rand_chance(r, w->style.checkpoint_slow))
			took = fmin(took * rand_between(r, 5, 20), 600);
		w->checkpoint_ns = (uint64_t)every(w, w->style.checkpoint_every_s);
		w->checkpoint_step = w->step;
		pause_for(w, PHASE_CHECKPOINT, took);
		return true;
	}
	if (w->now >= w->evaluate_ns) {
		took = rand_lognormal_in(r, w->style.evaluate_s, 0.3, 30, 1800);
		w->evaluate_ns = (uint64_t)every(w, w->style.evaluate_every_s);
		pause_for(w, PHASE_EVALUATE, took);
		return true;
	}
	if (w->now >= w->restart_ns && !w->fault.active) {
		w->restart_ns = UINT64_MAX;
		job_stop(w);
		return true;
	}
	return false;
}

void job_pause_end(struct world *w)
{
	if (w->state == JOB_PAUSED)
		tell_all(w, w->pause, false);
	if (!begin_pause(w))
		job_step(w);
}

/* Who does not hang gets to the end of its phase, and waits. */
void job_phase_ends(struct world *w, uint32_t phase)
{
	if (w->state != JOB_STUCK)
		return;
	for (uint32_t i = 0; i < w->world; i++)
		if (!w->gone[i] && !(w->fault.active && w->fault.rank == i))
			tell_phase(w, i, phase, false);
	w->pause = PHASE_SYNC;
}

void job_longer(struct world *w, double length)
{
	w->length = length;
	if (w->style.longer_every_s > 0)
		world_at(w, w->now + S(rand_exponential(&w->rand, w->style.longer_every_s)),
			 EVENT_LONGER, 0);
}

/* ---- beats ---- */

static void fill_numbers(struct world *w, struct sample_beat *b, uint32_t rank)
{
	const struct fault *f = &w->fault;

	b->loss = b->grad_norm = NAN;
	b->flags = BEAT_TOKENS;
	b->tokens = 65536;
	if (w->style.gives_loss) {
		b->flags |= BEAT_LOSS;
		b->loss = w->loss;
		if (w->style.local_loss)
			b->loss *= 1 + 0.02 * (double)rand_normal(&w->rand);
		b->loss = round(b->loss * 1e5) / 1e5;
		if (w->beat_all_nan || (w->beat_nan && f->rank == rank))
			b->loss = NAN;
	}
	if (w->style.gives_grad_norm) {
		b->flags |= BEAT_GRAD_NORM;
		b->grad_norm = w->beat_nan ? (double)NAN : round((double)w->grad * 1e4) / 1e4;
	}
}

/* One rank's turn; false: it has nothing to tell. */
bool job_next_beat(struct world *w)
{
	uint32_t rank = w->beat_first + w->beat_at++;
	struct sample *s = &w->beat.sample;

	rank -= rank >= w->world ? w->world : 0;
	w->now = w->beat_ns > w->now ? w->beat_ns : w->now;
	w->beat_ns += w->beat_gap_ns;
	if (w->gone[rank] || w->style.mute)
		return false;
	if (rand_below(&w->rand, 10000) == 0 && w->missed[rank] < 255) {
		w->missed[rank]++;
		return false;
	}
	s->time_ns = w->now;
	s->node = w->c.node_base + world_node(w, rank);
	s->rank = rank;
	s->beat.step = w->beat_step;
	s->beat.missed = w->missed[rank];
	w->missed[rank] = 0;
	fill_numbers(w, &s->beat, rank);
	s->beat.busy_ns = 0;
	if (w->style.declares) {
		s->beat.flags |= BEAT_BUSY;
		s->beat.busy_ns = (uint64_t)(1e6f * w->told_work[rank]) * 1000;
	}
	return true;
}

/* ---- the end ---- */

void job_exit(struct world *w, uint32_t rank, enum exit_how how, int value)
{
	struct sample *s;

	if (w->gone[rank] || w->state == JOB_DOWN)
		return;
	w->gone[rank] = true;
	/* A dead node's daemon tells of nobody's end. */
	if (w->nodes[world_node(w, rank)].state == NODE_DEAD)
		return;
	s = world_rank_sample(w, SAMPLE_EXIT, rank);
	s->exit.how = how;
	s->exit.value = value;
}

/* Within so many seconds, each at its own time. */
void job_all_exit(struct world *w, enum exit_how how, int value, double spread_s)
{
	for (uint32_t i = 0; i < w->world; i++) {
		struct event *e;

		if (w->gone[i])
			continue;
		e = world_at(w, w->now + S(rand_between(&w->rand, 0.01, spread_s)), EVENT_EXIT, i);
		e->how = (uint8_t)how;
		e->value = value;
	}
}

void job_stuck(struct world *w)
{
	bool paused = w->state == JOB_PAUSED && w->ends_ns > w->now;

	w->fault.phase = paused                             ? w->pause
			 : rand_chance(&w->fault_rand, 0.8) ? PHASE_STEP
							    : PHASE_DATA;
	w->token++;
	w->state = JOB_STUCK;
	w->looks = 0;
	w->lap++;
	if (paused)
		world_at(w, w->ends_ns, EVENT_PHASE_ENDS, w->pause);
	else
		w->pause = PHASE_SYNC;
	world_at(w, w->now + S(2.5 * w->style.step_s * w->length), EVENT_LATE, w->lap);
}

/* Told to end by its launcher, which then stops what is left of it. */
void job_end(struct world *w)
{
	struct sample *s;

	s = world_sample(w, SAMPLE_JOB);
	s->job = w->c.job;
	s->run.begins = false;
	s->run.world = w->world;
	s->run.epoch = w->epoch;
}

void job_stop(struct world *w)
{
	double down = rand_lognormal_in(&w->rand, 150, 0.6, 45, 900);
	bool signal = rand_chance(&w->rand, 0.5);

	w->token++;
	job_end(w);
	w->state = JOB_STUCK; /* its ranks end, one after the other */
	w->pause = PHASE_OTHER;
	job_all_exit(w, signal ? EXIT_SIGNAL : EXIT_CODE, signal ? 15 : 0, 8);
	world_at(w, w->now + S(10 + down), EVENT_BEGIN, 0);
}
