/* SPDX-License-Identifier: Apache-2.0 */
/*
 * links.c - network ports: down, flapping, or with errors.
 *
 * A port that was never up says nothing (it has no cable). Down for a while is a note, for longer
 * an alarm. Flaps: down for 25 s and back, three times within the window, or far more often for
 * moments, which only the port's own counter shows. Errors count in windows of a minute: two bad
 * ones in a row, each far beyond what is usual for the port, are an alarm.
 */
#include <config.h>

#include <math.h>

#include "detect/rules.h"
#include "detect/tally.h"

struct mine_port {
	bool was_up, up, said_down;
	uint64_t heard_ns;
	uint64_t down_ns; /* went down */
	struct counter downs, errors;
	struct tally flaps, moments;
	uint64_t flapped_ns; /* the last one; 0: none stands */
	/* Errors of this minute, and of usual ones. */
	uint64_t minute_ns, minute;
	double usual;
	uint8_t bad, good; /* minutes in a row */
	bool said_errors;
};

struct mine {
	uint32_t down; /* ports that are */
};

static void tell_down(struct detector *d, const struct device *x, struct mine_port *m)
{
	double age = seconds_of(detector_age(d, m->down_ns));
	struct subject s = subject_port(x->node, x->number);
	bool alarm = age >= d->options.link_down_s;
	struct verdict v =
		verdict_of(s, CLASS_DEAD, CAUSE_LINK_DOWN, alarm ? LEVEL_ALARM : LEVEL_NOTE,
			   alarm ? ACTION_DRAIN : ACTION_RECORD);

	v.since_ns = m->down_ns;
	verdict_evidence(&v, "time down", age, d->options.link_down_s, "s", m->down_ns);
	verdict_say(d, &v, "has been down for %.0f s%s", age,
		    alarm ? ": let nothing new onto the node, and look at cable, module and switch."
			  : "; it may come back.");
	m->said_down = true;
	accuse(d, &v);
}

static void tell_flaps(struct detector *d, const struct device *x, struct mine_port *m,
		       uint64_t flaps, uint64_t moments)
{
	struct verdict v = verdict_of(subject_port(x->node, x->number), CLASS_UNSTABLE,
				      CAUSE_LINK_FLAPS, LEVEL_ALARM, ACTION_DRAIN);
	double hours = d->options.flap_window_s / 3600;

	v.confidence = 0.95;
	verdict_evidence(&v, "times down for longer and back", (double)flaps, d->options.flaps, "",
			 d->now_ns);
	verdict_evidence(&v, "times down at all", (double)moments, d->options.flaps_brief, "",
			 d->now_ns);
	verdict_say(
		d, &v,
		"went down and came back %llu times within %.1f hours: let nothing new onto the "
		"node, and change cable or module.",
		(unsigned long long)(flaps > moments ? flaps : moments), hours);
	m->flapped_ns = d->now_ns;
	accuse(d, &v);
}

static void on_state(struct detector *d, const struct sample *s, struct device *x,
		     struct mine_port *m)
{
	uint64_t window = (uint64_t)(d->options.flap_window_s * NS_PER_SEC);
	uint64_t moments = counter_rise(&m->downs, s->link.downs), flaps;
	struct subject port = subject_port(x->node, x->number);
	bool back = s->link.up && m->was_up && !m->up;
	bool lasted = back && detector_age(d, m->down_ns) >=
				      (uint64_t)(d->options.flap_down_s * NS_PER_SEC);

	if (m->up && !s->link.up) {
		m->down_ns = d->now_ns;
		moments += !moments; /* one without such a counter */
		DETECTOR_OWN(d, links, struct mine)->down++;
	} else if (back) {
		DETECTOR_OWN(d, links, struct mine)->down--;
		if (m->said_down)
			acquit(d, &port, CAUSE_LINK_DOWN, "it is up again");
		m->said_down = false;
	}
	m->was_up |= s->link.up;
	m->up = s->link.up;
	flaps = tally_add(&m->flaps, lasted, d->now_ns, window);
	moments = tally_add(&m->moments, moments, d->now_ns, window);
	if (flaps >= d->options.flaps || moments >= d->options.flaps_brief) {
		tell_flaps(d, x, m, flaps, moments);
	} else if (m->flapped_ns && d->now_ns - m->flapped_ns >= window) {
		acquit(d, &port, CAUSE_LINK_FLAPS, "it has been up without a break");
		m->flapped_ns = 0;
	}
}

static void tell_errors(struct detector *d, const struct device *x, struct mine_port *m,
			double minute)
{
	bool alarm = m->bad >= d->options.link_bad_minutes;
	struct verdict v =
		verdict_of(subject_port(x->node, x->number), CLASS_FAILING, CAUSE_LINK_ERRORS,
			   alarm ? LEVEL_ALARM : LEVEL_NOTE, alarm ? ACTION_DRAIN : ACTION_RECORD);

	v.since_ns = d->now_ns - m->bad * 60 * NS_PER_SEC;
	v.confidence = 0.9;
	verdict_evidence(&v, "errors in a minute", minute,
			 fmax(d->options.link_errors, d->options.link_errors_x * m->usual), "",
			 v.since_ns);
	verdict_evidence(&v, "usual errors in a minute", m->usual, 0, "", v.since_ns);
	verdict_say(d, &v, "had %.0f errors in a minute (usual: %.1f)%s", minute, m->usual,
		    alarm ? ", for several minutes: look at cable and module." : ".");
	m->said_errors = true;
	accuse(d, &v);
}

static void minute_ends(struct detector *d, const struct device *x, struct mine_port *m)
{
	double minute = (double)m->minute * 60 / seconds_of(d->now_ns - m->minute_ns);
	struct subject port = subject_port(x->node, x->number);

	m->minute = 0;
	m->minute_ns = d->now_ns;
	if (minute >= d->options.link_errors && minute >= d->options.link_errors_x * m->usual) {
		m->bad += m->bad < 255;
		m->good = 0;
		tell_errors(d, x, m, minute);
		return;
	}
	m->usual += 0.05 * (minute - m->usual);
	m->bad = 0;
	m->good += m->good < 255;
	if (m->said_errors && m->good >= 10) {
		acquit(d, &port, CAUSE_LINK_ERRORS, "its errors are as few as usual again");
		m->said_errors = false;
	}
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_port *m = DEVICE_OWN(d, w->device, links, struct mine_port);

	m->heard_ns = d->now_ns;
	on_state(d, s, w->device, m);
	m->minute += counter_rise(&m->errors, s->link.errors);
	if (!m->minute_ns)
		m->minute_ns = d->now_ns;
	if (d->now_ns - m->minute_ns >= 60 * NS_PER_SEC)
		minute_ends(d, w->device, m);
}

/* What its samples would end, of a port that tells nothing any more: it was taken out. */
static void forget_gone(struct detector *d)
{
	uint64_t long_ago = (uint64_t)(d->options.news_stand_s * NS_PER_SEC);

	for (size_t i = d->verdicts.n; i-- > 0;) {
		struct subject s = d->verdicts.standing[i].subject;
		enum verdict_cause cause = d->verdicts.standing[i].cause;
		struct device *x = known_device(d, s.node, s.device);
		struct mine_port *m = x ? DEVICE_OWN(d, x, links, struct mine_port) : NULL;

		if (!m || (cause != CAUSE_LINK_FLAPS && cause != CAUSE_LINK_ERRORS) ||
		    detector_age(d, m->heard_ns) < long_ago)
			continue;
		acquit(d, &s, cause, "nobody has told of it for a long time");
		if (cause == CAUSE_LINK_FLAPS)
			m->flapped_ns = 0;
		else
			m->said_errors = false;
	}
}

static void on_tick(struct detector *d)
{
	uint64_t note = (uint64_t)(d->options.flap_down_s * NS_PER_SEC);

	for (uint32_t i = 0; DETECTOR_OWN(d, links, struct mine)->down && i < d->nodes_end; i++)
		for (struct device *x = d->nodes[i] ? d->nodes[i]->devices : NULL; x; x = x->next) {
			struct mine_port *m = DEVICE_OWN(d, x, links, struct mine_port);

			if (m->was_up && !m->up && detector_age(d, m->down_ns) >= note)
				tell_down(d, x, m);
		}
	forget_gone(d);
}

/* A port that is down is one without a cable then: it speaks again when it has been up. */
static void port_is_well(struct detector *d, struct mine_port *m)
{
	if (m->was_up && !m->up)
		DETECTOR_OWN(d, links, struct mine)->down--;
	*m = (struct mine_port){
		.was_up = m->up,
		.up = m->up,
		.heard_ns = m->heard_ns,
		.downs = m->downs,
		.errors = m->errors,
		.minute_ns = m->minute_ns,
		.usual = m->usual,
	};
}

static void on_well(struct detector *d, const struct subject *s)
{
	struct node *n = known_node(d, s->node);

	if (!n || (s->kind != SUBJECT_NODE && s->kind != SUBJECT_LINK))
		return;
	for (struct device *x = n->devices; x; x = x->next)
		if (s->kind == SUBJECT_NODE || s->device == x->number)
			port_is_well(d, DEVICE_OWN(d, x, links, struct mine_port));
}

const struct rule rule_links = {
	.name = "links",
	.kinds = 1u << SAMPLE_LINK,
	.device_bytes = sizeof(struct mine_port),
	.detector_bytes = sizeof(struct mine),
	.tick_ns = 5 * NS_PER_SEC,
	.sample = on_sample,
	.tick = on_tick,
	.well = on_well,
};
