/* SPDX-License-Identifier: Apache-2.0 */
/*
 * detector.c - where samples and time meet the rules.
 *
 * A sample is looked at (sample.h's rules), entered into the subjects that it speaks of (known.c),
 * then shown to each rule that wants its kind. Before that, rules' ticks that were due until its
 * time run, each at its own time, so that a trace in virtual time sees what a daemon sees whose
 * timer calls detector_advance().
 *
 * Invariants: (1) d->now_ns never goes back; (2) ticks run at multiples of their period while the
 * detector sees anything at all, and not while it is blind: then they begin anew; (3) a call goes
 * over so many jobs as SLICE allows, whoever calls; the next call goes on with them before anything
 * else, and a tick that is due before all jobs had theirs is left out for jobs.
 */
#include <config.h>

#include "detect/detector.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/rules.h"

const struct rule *const detect_rules[RULE_COUNT] = {
#define X(name) &rule_##name,
	DETECT_RULES(X)
#undef X
};

void detector_options_default(struct detector_options *o)
{
	*o = (struct detector_options){
		.ranks_max = DETECTOR_RANKS_MAX,
		.nodes_max = 4096,
		.jobs_max = 1024,
		.blind_ns = 20 * NS_PER_SEC,
		.blind_x = 4,
		.exit_wait_ns = 600 * NS_PER_MS,
		.exit_wait_done_ns = 10 * NS_PER_SEC,
		.phi = 8,
		.phi_sigma_s = 0.1,
		.phi_sigma_share = 0.1,
		.silence_phi = 10,
		.silence_pause_s = 10,
		.silence_back = 3,
		.step_longest_x = 2,
		.step_median_x = 12,
		.step_floor_s = 20,
		.step_first_s = 900,
		.phase_longest_x = 3,
		.phase_median_x = 10,
		.phase_floor_s = 600,
		.phase_first_s = 3600,
		.phase_expected_x = 5,
		.phase_said_s = 60,
		.phase_idle_s = 86400,
		.start_floor_s = 1800,
		.hang_steps = 3,
		.hang_floor_s = 0.5,
		.busy_s = 2400,
		.busy_share = 0.6,
		.lone_busy_s = 300,
		.later_s = 600,
		.asleep_s = 120,
		.finite_steps = 20,
		.jump_x = 5,
		.odd_loss_x = 1.5,
		.odd_norm_x = 5,
		.cusum_k = 1,
		.cusum_h = 10,
		.drift_loss = 0.1,
		.drift_norm = 1,
		.link_down_s = 240,
		.flap_down_s = 25,
		.flap_window_s = 3600,
		.link_errors = 100,
		.link_errors_x = 10,
		.flaps = 3,
		.flaps_brief = 4,
		.link_bad_minutes = 2,
		.error_window_s = 3600,
		.news_stand_s = 3600,
		.disk_errors = 3,
		.memory_errors = 100,
		.pressure = 0.4,
		.pressure_s = 60,
	};
}

/* ---- birth and death ---- */

static void lay_out(struct detector *d)
{
	for (int i = 0; i < RULE_COUNT; i++) {
		const struct rule *r = detect_rules[i];

#define PLACE(what)                                                                                \
	d->what##_own[i] = d->what##_size;                                                         \
	d->what##_size += (r->what##_bytes + 15) & ~15u
		PLACE(rank);
		PLACE(node);
		PLACE(job);
		PLACE(device);
#undef PLACE
	}
}

static uint32_t detector_bytes(uint32_t *ret_own)
{
	uint32_t size = 0;

	for (int i = 0; i < RULE_COUNT; i++) {
		ret_own[i] = size;
		size += (detect_rules[i]->detector_bytes + 15) & ~15u;
	}
	return size;
}

int detector_new(const struct detector_options *options, const struct xid_policy *xid,
		 const struct detector_events *events, struct detector **ret)
{
	uint32_t own[RULE_COUNT], bytes = detector_bytes(own);
	struct detector *d = alloc_zero(sizeof(*d) + bytes);
	int rc;

	if (!d)
		return -ENOMEM;
	d->options = *options;
	d->xid = xid;
	d->bytes = sizeof(*d) + bytes;
	memcpy(d->detector_own, own, sizeof(own));
	lay_out(d);
	verdicts_init(&d->verdicts, events);
	for (int i = 0; i < RULE_COUNT; i++)
		d->job_next[i] = options->jobs_max;
	rc = known_init(d);
	for (int i = 0; rc == 0 && i < RULE_COUNT; i++)
		if (detect_rules[i]->start)
			rc = detect_rules[i]->start(d);
	if (rc < 0) {
		detector_free(d);
		return rc;
	}
	*ret = d;
	return 0;
}

void detector_free(struct detector *d)
{
	if (!d)
		return;
	for (int i = 0; i < RULE_COUNT; i++)
		if (detect_rules[i]->stop)
			detect_rules[i]->stop(d);
	known_fini(d);
	verdicts_fini(&d->verdicts);
	alloc_free(d);
}

/* ---- time ---- */

static uint64_t blind_after(const struct detector *d)
{
	double usual = d->options.blind_x * (double)d->gap_ns;

	return usual > (double)d->options.blind_ns ? (uint64_t)usual : d->options.blind_ns;
}

bool detector_blind(const struct detector *d)
{
	return d->sample_ns && d->now_ns - d->sample_ns > blind_after(d);
}

uint64_t detector_age(const struct detector *d, uint64_t t_ns)
{
	uint64_t from = t_ns > d->lit_ns ? t_ns : d->lit_ns;

	return d->now_ns > from ? d->now_ns - from : 0;
}

/* The rule whose tick is due first, at *ret_ns; -1: none has any. */
static int first_tick(const struct detector *d, uint64_t *ret_ns)
{
	int first = -1;

	*ret_ns = UINT64_MAX;
	for (int i = 0; i < RULE_COUNT; i++) {
		if (!detect_rules[i]->tick_ns || d->next_tick_ns[i] >= *ret_ns)
			continue;
		*ret_ns = d->next_tick_ns[i];
		first = i;
	}
	return first;
}

static void ticks_begin(struct detector *d, uint64_t now_ns)
{
	for (int i = 0; i < RULE_COUNT; i++)
		if (detect_rules[i]->tick_ns)
			d->next_tick_ns[i] =
				(now_ns / detect_rules[i]->tick_ns + 1) * detect_rules[i]->tick_ns;
}

#define SLICE     1024u /* ranks, of which a look at one takes some 0.1 us */
#define JOB_COST  2u
#define TOLD_COST 256u /* what hears of a verdict takes some 30 us */
#define ASK_COST  8u   /* to ask for a rank's activity, or no longer */

/* Goes on with the jobs that the rule's tick has not come to. */
static uint32_t go_on_with(struct detector *d, int i, uint32_t budget)
{
	uint32_t *at = &d->job_next[i], cost = 0;

	while (*at < d->jobs_end && cost < budget) {
		struct job *j = d->jobs[(*at)++];
		uint64_t told = d->verdicts.told, asked = d->asked;

		if (!j)
			continue;
		cost += JOB_COST + detect_rules[i]->tick_job(d, j);
		cost += (uint32_t)(d->verdicts.told - told) * TOLD_COST;
		cost += (uint32_t)(d->asked - asked) * ASK_COST;
	}
	if (*at >= d->jobs_end)
		*at = d->options.jobs_max;
	return cost;
}

/* (3) */
static void jobs_go_on(struct detector *d)
{
	bool blind = detector_blind(d);
	uint32_t cost = 0;

	d->goes_on = false;
	for (int i = 0; i < RULE_COUNT; i++) {
		if (blind)
			d->job_next[i] = d->options.jobs_max;
		if (cost < SLICE && d->job_next[i] < d->options.jobs_max)
			cost += go_on_with(d, i, SLICE - cost);
		d->goes_on |= d->job_next[i] < d->options.jobs_max;
	}
}

static void tick(struct detector *d, int i)
{
	if (detect_rules[i]->tick)
		detect_rules[i]->tick(d);
	if (!detect_rules[i]->tick_job || d->job_next[i] < d->options.jobs_max)
		return;
	d->job_next[i] = 0;
	if (!d->goes_on)
		go_on_with(d, i, SLICE);
	d->goes_on |= d->job_next[i] < d->options.jobs_max;
}

static void time_comes_to(struct detector *d, uint64_t now_ns)
{
	uint64_t at;
	int i;

	assert(now_ns >= d->now_ns);
	if (!d->sample_ns) {
		d->now_ns = now_ns;
		return; /* nobody is known yet */
	}
	if (d->goes_on)
		jobs_go_on(d);
	if (now_ns - d->now_ns > blind_after(d)) {
		d->lit_ns = now_ns;
		ticks_begin(d, now_ns);
	}
	while ((i = first_tick(d, &at)) >= 0 && at <= now_ns) {
		if (d->goes_on && at > d->now_ns)
			jobs_go_on(d);
		d->now_ns = at > d->now_ns ? at : d->now_ns;
		d->next_tick_ns[i] = at + detect_rules[i]->tick_ns;
		if (!detector_blind(d))
			tick(d, i);
	}
	d->now_ns = now_ns;
}

/* A sample has come: what was the gap, and was it an ordinary one? */
static void seen(struct detector *d, uint64_t now_ns)
{
	uint64_t after = blind_after(d), gap = d->sample_ns ? now_ns - d->sample_ns : 0;

	if (!d->sample_ns)
		ticks_begin(d, now_ns);
	if (gap > after)
		d->lit_ns = now_ns;
	d->gap_ns -= d->gap_ns / 128;
	/* One night's sleep must not make the next one usual. */
	if (gap > d->gap_ns + d->gap_ns / 2 + NS_PER_SEC)
		gap = d->gap_ns + d->gap_ns / 2 + NS_PER_SEC;
	if (gap > d->gap_ns)
		d->gap_ns = gap;
	d->sample_ns = now_ns;
}

void detector_advance(struct detector *d, uint64_t now_ns)
{
	time_comes_to(d, now_ns ? now_ns : 1);
}

uint64_t detector_next(const struct detector *d)
{
	uint64_t at;

	if (d->goes_on)
		return d->now_ns + 1; /* not in the same call of a loop */
	return d->sample_ns && first_tick(d, &at) >= 0 ? at : UINT64_MAX;
}

bool detector_goes_on(const struct detector *d)
{
	return d->goes_on;
}

/* ---- samples ---- */

static bool ends(const char *text, size_t size)
{
	return memchr(text, 0, size);
}

static bool keeps_rules_of_rank(const struct sample *s)
{
	if (s->job == SAMPLE_NONE || s->rank == SAMPLE_NONE)
		return false;
	switch ((unsigned)s->kind) {
	case SAMPLE_MEMBER:
		return ends(s->member.role, sizeof(s->member.role)) &&
		       (s->member.leaves || s->node != SAMPLE_NONE);
	case SAMPLE_PHASE:
		return s->phase.phase >= PHASE_FIRST_LONG && s->phase.phase < PHASE_COUNT &&
		       ends(s->phase.what, sizeof(s->phase.what));
	case SAMPLE_ACTIVITY:
		return s->activity.phase < PHASE_COUNT &&
		       (unsigned)s->activity.timed <= TIMED_NOT_KNOWN;
	case SAMPLE_EXIT:
		return (unsigned)s->exit.how < EXIT_HOWS;
	case SAMPLE_DIGESTS:
		return ends(s->digests.tensor, sizeof(s->digests.tensor));
	default:
		return true;
	}
}

static bool keeps_rules(const struct sample *s)
{
	bool node = s->node != SAMPLE_NONE, device = node && s->device != SAMPLE_NONE;

	switch ((unsigned)s->kind) {
	case SAMPLE_NAME:
		return ends(s->name.text, sizeof(s->name.text)) &&
		       (s->device == SAMPLE_NONE ? node || s->job != SAMPLE_NONE : device);
	case SAMPLE_JOB:
	case SAMPLE_STALE:
		return s->job != SAMPLE_NONE;
	case SAMPLE_MEMBER:
	case SAMPLE_BEAT:
	case SAMPLE_PHASE:
	case SAMPLE_ACTIVITY:
	case SAMPLE_EXIT:
	case SAMPLE_DIGESTS:
		return keeps_rules_of_rank(s);
	case SAMPLE_PAIR:
		return node && s->pair.peer != SAMPLE_NONE && s->pair.peer != s->node;
	case SAMPLE_LINK:
	case SAMPLE_DISK:
		return device;
	case SAMPLE_NVML:
		return device && (unsigned)s->nvml.recovery <= RECOVERY_UNKNOWN;
	case SAMPLE_KERNEL:
		return node && ends(s->kernel.text, sizeof(s->kernel.text));
	case SAMPLE_CHECK:
		return node && ends(s->check.what, sizeof(s->check.what));
	default:
		return node;
	}
}

static void show(struct detector *d, const struct sample *s, const struct who *w)
{
	known_enter(d, s, w);
	for (int i = 0; i < RULE_COUNT; i++)
		if (detect_rules[i]->kinds & 1u << s->kind)
			detect_rules[i]->sample(d, s, w);
}

static bool says_gone(const struct sample *s)
{
	return s->kind == SAMPLE_NAME && s->job != SAMPLE_NONE && s->device == SAMPLE_NONE &&
	       !s->name.text[0];
}

/* First its run is over, so that no rule waits for anything of it any more. */
static void forget_job(struct detector *d, uint32_t job)
{
	const struct sample over = {.kind = SAMPLE_JOB,
				    .time_ns = d->now_ns,
				    .node = SAMPLE_NONE,
				    .job = job,
				    .rank = SAMPLE_NONE,
				    .device = SAMPLE_NONE};
	const struct who w = {.job = known_job(d, job)};
	struct subject s = subject_job(job);

	if (!w.job)
		return;
	show(d, &over, &w);
	verdicts_clear_all(&d->verdicts, &s, "it has ended, and is forgotten", d->now_ns);
	known_forget(d, w.job);
}

int detector_feed(struct detector *d, const struct sample *s)
{
	uint64_t now_ns = s->time_ns ? s->time_ns : 1; /* 0 means "never" in many places */
	struct who w;
	int rc;

	if (now_ns < d->now_ns || (unsigned)s->kind >= SAMPLE_KIND_COUNT || !keeps_rules(s))
		return -EINVAL;
	time_comes_to(d, now_ns);
	if (says_gone(s)) {
		seen(d, d->now_ns);
		forget_job(d, s->job);
		return 0;
	}
	rc = known_who(d, s, &w);
	if (rc < 0)
		return rc;
	seen(d, d->now_ns);
	show(d, s, &w);
	return 0;
}

/* ---- what rules say ---- */

void verdict_rests_on(struct verdict *v, const struct job *j)
{
	v->of_jobs = v->of_one_owner = j->owned;
	v->owner = j->owned ? j->owner : 0;
}

bool accuse(struct detector *d, struct verdict *v)
{
	const struct job *j = known_job(d, v->subject.job);

	if (j && (v->subject.kind == SUBJECT_JOB || v->subject.kind == SUBJECT_RANK))
		verdict_rests_on(v, j);
	if (!v->since_ns)
		v->since_ns = d->now_ns;
	if (v->confidence == 0)
		v->confidence = 1;
	return verdicts_raise(&d->verdicts, v, d->now_ns);
}

void acquit(struct detector *d, const struct subject *s, enum verdict_cause cause, const char *why)
{
	if (d->verdicts.n)
		verdicts_clear(&d->verdicts, s, cause, why, d->now_ns);
}

void probe(struct detector *d, struct rank *r, bool wanted)
{
	if (r->probing == wanted)
		return;
	r->probing = wanted;
	d->asked++;
	if (d->verdicts.events.probe)
		d->verdicts.events.probe(d->verdicts.events.arg, r->job, r->number, wanted);
}

bool detector_older(const struct detector *d, uint64_t id, struct verdict *ret)
{
	size_t low = 0, high = d->verdicts.n;

	while (low < high) { /* they stand in the order of their numbers */
		size_t mid = low + (high - low) / 2;

		if (d->verdicts.standing[mid].id < id)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == 0)
		return false;
	*ret = d->verdicts.standing[low - 1];
	return true;
}

size_t detector_standing(const struct detector *d, const struct subject *s, struct verdict *ret,
			 size_t n)
{
	size_t found = 0;

	for (size_t i = d->verdicts.n; i-- > 0;) {
		if (s && !subject_contains(s, &d->verdicts.standing[i].subject))
			continue;
		if (found < n)
			ret[found] = d->verdicts.standing[i];
		found++;
	}
	return found;
}

static void tell_well(struct detector *d, const struct subject *s)
{
	for (int i = 0; i < RULE_COUNT; i++)
		if (detect_rules[i]->well)
			detect_rules[i]->well(d, s);
}

static void tell_all_well(struct detector *d)
{
	struct subject s;

	for (uint32_t i = 0; i < d->nodes_end; i++)
		if (d->nodes[i]) {
			s = subject_node(i);
			tell_well(d, &s);
		}
	for (uint32_t i = 0; i < d->jobs_end; i++)
		if (d->jobs[i]) {
			s = subject_job(i);
			tell_well(d, &s);
		}
}

size_t detector_clear(struct detector *d, const struct subject *s, uint64_t now_ns)
{
	time_comes_to(d, now_ns);
	if (s)
		tell_well(d, s);
	else
		tell_all_well(d);
	return verdicts_clear_all(&d->verdicts, s, "somebody said that it is well again", now_ns);
}

void detector_memory(const struct detector *d, struct detector_size *ret)
{
	*ret = (struct detector_size){.total = d->bytes + d->verdicts.cap * sizeof(struct verdict),
				      .rank = sizeof(struct rank) + d->rank_size,
				      .node = sizeof(struct node) + d->node_size};
	for (int i = 0; i < RULE_COUNT; i++)
		if (detect_rules[i]->memory)
			detect_rules[i]->memory(d, ret);
}
