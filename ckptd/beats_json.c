/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beats_json.c - where a rank is, by its own words, for `ckptctl status`. doc/json.md has the
 * fields.
 */
#include <config.h>

#include <jansson.h>
#include <math.h>

#include "ckptd/beats.h"
#include "ckptd/node_priv.h"

/* NaN and infinities are no numbers in JSON. */
static json_t *real_json(double v)
{
	return isfinite(v) ? json_real(v) : json_null();
}

json_t *beats_json(const struct member *m)
{
	const struct beat_reader *r = beats_reader(m);
	uint64_t now = loop_now(m->job->node->env.loop);
	json_t *o, *metrics;
	struct beat_now at;

	beats_scan(m->job->node);
	if (!r || !beats_now(m, &at))
		return json_null();
	o = json_pack("{s:s, s:s, s:I}", "role", r->role, "phase", sample_phase_word(at.phase),
		      "phase_ns", (json_int_t)(at.since_ns ? now - at.since_ns : 0));
	json_object_set_new(o, "step",
			    r->stepped ? json_integer((json_int_t)r->step) : json_null());
	json_object_set_new(o, "kept", json_boolean(beats_kept(m)));
	json_object_set_new(o, "lost", json_integer((json_int_t)r->overruns));
	metrics = json_object();
	for (unsigned i = 0; i < BEAT_METRICS; i++)
		if (r->metrics_given & 1u << i && r->names[i][0])
			json_object_set_new(metrics, r->names[i], real_json(r->metrics[i]));
	json_object_set_new(o, "metrics", metrics);
	return o;
}
