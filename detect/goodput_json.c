/* SPDX-License-Identifier: Apache-2.0 */
/*
 * goodput_json.c - see goodput_json.h.
 *
 * Which failures a tier answers is told by what an epoch began with: from memory, if the base was
 * in memory when the epoch was opened, else from disk. Priors are assumed: a process of a job dies
 * about once a day, a node under a job about once a week; each counts like one failure.
 *
 * A kept file may be anybody's by now: numbers are taken only where sums cannot overflow and marks
 * rise.
 */
#include <config.h>

#include "detect/goodput_json.h"

#include <math.h>
#include <string.h>

#include "detect/interval.h"

#define DAY    86400.0
#define NS_MAX GOODPUT_NS_MAX

static double seconds_of(uint64_t ns)
{
	return (double)ns / 1e9;
}

/* ---- What is kept ---- */

static json_t *number(uint64_t v)
{
	return json_integer((json_int_t)(v < INT64_MAX ? v : INT64_MAX));
}

static json_t *mean_json(const struct goodput_mean *m)
{
	return json_pack("[o, o]", number(m->n), number(m->ns));
}

json_t *goodput_json_kept(const struct goodput *g, uint64_t wall_ns)
{
	json_t *spent = json_object(), *marks = json_array();

	for (int i = 0; i < GOODPUT_COUNT; i++)
		json_object_set_new(spent, goodput_word((enum goodput_cause)i), number(g->ns[i]));
	for (uint32_t i = 0; i < g->n_marks; i++)
		json_array_append_new(marks, json_pack("[o, o]", number(g->marks[i].step),
						       number(g->marks[i].trained_ns)));
	return json_pack("{s:o, s:s, s:b, s:b, s:o, s:o, s:o, s:o, s:[o, o], s:o, s:[o, o]}",
			 "time_ns", number(wall_ns), "state", goodput_word(g->state), "down",
			 (int)g->down, "zeroth", (int)g->zeroth, "ns", spent, "steps",
			 number(g->steps), "newest_step", number(g->newest_step), "marks", marks,
			 "failures", number(g->failures[0]), number(g->failures[1]), "stall",
			 mean_json(&g->stall), "latency", mean_json(&g->latency[0]),
			 mean_json(&g->latency[1]));
}

static bool take(const json_t *o, uint64_t max, uint64_t *ret)
{
	json_int_t v = json_integer_value(o);

	*ret = (uint64_t)v;
	return json_is_integer(o) && v >= 0 && (uint64_t)v <= max;
}

static bool take_mean(const json_t *o, struct goodput_mean *m)
{
	return take(json_array_get(o, 0), NS_MAX, &m->n) &&
	       take(json_array_get(o, 1), NS_MAX, &m->ns);
}

static bool take_marks(const json_t *list, struct goodput *g)
{
	if (!json_is_array(list) || json_array_size(list) > GOODPUT_MARKS)
		return false;
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct goodput_mark *m = &g->marks[i];
		const json_t *o = json_array_get(list, i);

		if (!take(json_array_get(o, 0), INT64_MAX, &m->step) ||
		    !take(json_array_get(o, 1), NS_MAX, &m->trained_ns) ||
		    (i && m->step < m[-1].step))
			return false;
	}
	g->n_marks = (uint32_t)json_array_size(list);
	return true;
}

static bool take_state(const json_t *doc, struct goodput *g)
{
	const char *word = json_string_value(json_object_get(doc, "state"));

	g->down = json_is_true(json_object_get(doc, "down"));
	g->zeroth = json_is_true(json_object_get(doc, "zeroth"));
	for (int i = 0; word && i < GOODPUT_COUNT; i++) {
		if (strcmp(word, goodput_word((enum goodput_cause)i)) != 0)
			continue;
		g->state = (enum goodput_cause)i;
		return i == GOODPUT_TRAINING || i == GOODPUT_RESTART || i == GOODPUT_AWAY;
	}
	return false;
}

bool goodput_json_take(const json_t *doc, struct goodput *g, uint64_t *ret_wall_ns)
{
	const json_t *spent = json_object_get(doc, "ns"), *o;

	*g = (struct goodput){.begun = true};
	for (int i = 0; i < GOODPUT_COUNT; i++)
		if (!take(json_object_get(spent, goodput_word((enum goodput_cause)i)), NS_MAX,
			  &g->ns[i]))
			return false;
	for (int i = 0; i < 2; i++) {
		o = json_object_get(doc, "failures");
		if (!take(json_array_get(o, (size_t)i), NS_MAX, &g->failures[i]))
			return false;
		o = json_object_get(doc, "latency");
		if (!take_mean(json_array_get(o, (size_t)i), &g->latency[i]))
			return false;
	}
	return take_state(doc, g) && take_marks(json_object_get(doc, "marks"), g) &&
	       take_mean(json_object_get(doc, "stall"), &g->stall) &&
	       take(json_object_get(doc, "steps"), INT64_MAX, &g->steps) &&
	       take(json_object_get(doc, "newest_step"), INT64_MAX, &g->newest_step) &&
	       take(json_object_get(doc, "time_ns"), INT64_MAX, ret_wall_ns) && *ret_wall_ns > 0;
}

/* ---- What is answered ---- */

static double mean(const struct goodput_mean *m)
{
	return m->n ? seconds_of(m->ns) / (double)m->n : 0;
}

static json_t *real(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

static json_t *tier_json(const char *tier, const struct interval_cost *c,
			 const struct interval_rate *r, const struct interval_advice *a)
{
	static const char *const why[] = {"balance", "bound", "joint"};

	return json_pack("{s:s, s:o, s:I, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o}",
			 "tier", tier, "interval_s", real(a->seconds), "interval_steps",
			 (json_int_t)a->steps, "why", why[a->why], "often_s", real(a->often),
			 "rarely_s", real(a->rarely), "loss", real(a->loss), "stall_s",
			 real(c->stall), "latency_s", real(c->latency), "restart_s",
			 real(c->restart), "failures", (json_int_t)r->failures, "watched_s",
			 real(r->watched), "mtbf_s", real(1 / r->per_s), "seen", real(r->trusted));
}

static void advise(const struct goodput *g, struct interval_cost c[2], struct interval_rate r[2],
		   struct interval_advice a[2])
{
	static const struct interval_prior priors[2] = {{.mtbf = DAY, .weight = 1},
							{.mtbf = 7 * DAY, .weight = 1}};
	uint64_t failures = g->failures[0] + g->failures[1], run = 0;
	double restart = seconds_of(g->ns[GOODPUT_RESTART]) / (double)(failures + 1);

	for (int i = 0; i < GOODPUT_COUNT; i++)
		run += i == GOODPUT_AWAY ? 0 : g->ns[i];
	for (int i = 0; i < 2; i++) {
		c[i] = (struct interval_cost){
			.stall = i == 0 ? mean(&g->stall) : 0,
			.latency = mean(&g->latency[i]),
			.restart = restart,
			.step = g->steps ? seconds_of(g->ns[GOODPUT_TRAINING]) / (double)g->steps
					 : 0,
		};
		interval_rate_of(&priors[i], g->failures[i], seconds_of(run), &r[i]);
	}
	interval_advise_tiers(c, r, a);
}

double goodput_json_interval(const struct goodput *g)
{
	struct interval_cost c[2];
	struct interval_rate r[2];
	struct interval_advice a[2];

	advise(g, c, r, a);
	return a[0].seconds;
}

static json_t *advice_json(const struct goodput *g)
{
	struct interval_cost c[2];
	struct interval_rate r[2];
	struct interval_advice a[2];
	json_t *list = json_array();

	advise(g, c, r, a);
	json_array_append_new(list, tier_json("memory", &c[0], &r[0], &a[0]));
	json_array_append_new(list, tier_json("disk", &c[1], &r[1], &a[1]));
	return list;
}

json_t *goodput_json_answer(const struct goodput *g)
{
	json_t *spent = json_object();

	for (int i = 0; i < GOODPUT_COUNT; i++)
		json_object_set_new(spent, goodput_word((enum goodput_cause)i),
				    real(seconds_of(g->ns[i])));
	return json_pack("{s:o, s:I, s:o, s:o}", "share", real(goodput_share(g)), "steps",
			 (json_int_t)g->steps, "seconds", spent, "advice", advice_json(g));
}
