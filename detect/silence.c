/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silence.c - a node is not heard of any more: phi accrual on its `alive` and `metrics` samples.
 *
 * Anything that is heard of the node or of its ranks ends its silence; only the regular samples
 * teach how long it usually is. Silence counts as the node's own only while somebody else is heard
 * of: see detector_blind(). A node without a rank in a run that is on is a note.
 */
#include <config.h>

#include "detect/silence.h"

#include "detect/phi.h"

#define UNLEARNED_MAX 5 /* so many suspicions in a row were a new rhythm */

struct mine_node {
	struct phi alive;
	uint64_t last_ns; /* regular sample */
	uint8_t unlearned;
	bool suspected;
	uint8_t accused, heard; /* regular samples since the accusation */
};

static double pause_of(const struct detector *d, const struct phi *p)
{
	double two = 2 * phi_mean(p);

	return two > d->options.silence_pause_s ? two : d->options.silence_pause_s;
}

static double sigma_min(const struct detector *d, const struct phi *p)
{
	double share = d->options.phi_sigma_share * phi_mean(p);

	return share > d->options.phi_sigma_s ? share : d->options.phi_sigma_s;
}

static void learn(struct detector *d, struct mine_node *m)
{
	bool known = m->last_ns && m->last_ns >= d->lit_ns && d->now_ns > m->last_ns;
	double s = seconds_of(d->now_ns - m->last_ns);

	m->last_ns = d->now_ns;
	if (!known)
		return;
	if (m->suspected && ++m->unlearned < UNLEARNED_MAX) {
		m->suspected = false;
		return;
	}
	if (m->unlearned >= UNLEARNED_MAX || !m->alive.n)
		phi_bootstrap(&m->alive, s);
	else
		phi_learn(&m->alive, s);
	m->unlearned = 0;
	m->suspected = false;
}

static void on_sample(struct detector *d, const struct sample *s, const struct who *w)
{
	struct mine_node *m = NODE_OWN(d, w->node, silence, struct mine_node);
	struct subject subject = subject_node(w->node->number);

	(void)s;
	learn(d, m);
	if (!m->accused || ++m->heard < d->options.silence_back)
		return;
	m->accused = false;
	acquit(d, &subject, CAUSE_NODE_SILENT, "it is heard of again");
}

/* Some rank of it takes part in a run, or did when it was last heard of: who noticed first may have
 * ended the run already. */
static bool in_use(const struct detector *d, const struct node *n)
{
	const struct rank *r;
	const struct job *j;

	list_each(r, &n->ranks, of_node) {
		j = known_job(d, r->job);
		if (j->on ? r->expected : j->ended_ns >= n->heard_ns)
			return true;
	}
	return false;
}

static void tell(struct detector *d, struct node *n, double phi)
{
	struct mine_node *m = NODE_OWN(d, n, silence, struct mine_node);
	bool used = in_use(d, n);
	struct verdict v =
		verdict_of(subject_node(n->number), CLASS_DEAD, CAUSE_NODE_SILENT,
			   used ? LEVEL_ALARM : LEVEL_NOTE, used ? ACTION_RESTORE : ACTION_RECORD);
	double age = seconds_of(detector_age(d, n->heard_ns));

	v.since_ns = n->heard_ns;
	v.confidence = 0.95;
	verdict_evidence(&v, "phi of its silence", phi, d->options.silence_phi, "", n->heard_ns);
	verdict_evidence(&v, "time since it was heard of", age,
			 phi_mean(&m->alive) + pause_of(d, &m->alive), "s", n->heard_ns);
	verdict_evidence(&v, "usual time between its samples", phi_mean(&m->alive), 0, "s",
			 n->heard_ns);
	verdict_say(d, &v, "has not been heard of for %.0f s and usually is every %.1f s, %s", age,
		    phi_mean(&m->alive),
		    used ? "and a job runs on it: restart the job without it, then look whether it "
			   "has power and network."
			 : "but no job runs on it: look whether it has power and network.");
	m->accused = true;
	m->heard = 0;
	accuse(d, &v);
}

static void on_tick(struct detector *d)
{
	for (uint32_t i = 0; i < d->nodes_end; i++) {
		struct node *n = d->nodes[i];
		struct mine_node *m = n ? NODE_OWN(d, n, silence, struct mine_node) : NULL;
		uint64_t age_ns;
		double age, phi;

		if (!m || !m->alive.n)
			continue;
		age_ns = detector_age(d, n->heard_ns);
		age = seconds_of(age_ns);
		/* Somebody else was heard of in the meantime. */
		if (age <= phi_mean(&m->alive) || d->sample_ns < n->heard_ns + age_ns / 2)
			continue;
		phi = phi_now(&m->alive, age, pause_of(d, &m->alive), sigma_min(d, &m->alive));
		if (phi >= d->options.silence_phi / 2)
			m->suspected = true;
		if (phi >= d->options.silence_phi && (!m->accused || in_use(d, n)))
			tell(d, n, phi);
	}
}

static void on_well(struct detector *d, const struct subject *s)
{
	struct node *n = s->kind == SUBJECT_NODE ? known_node(d, s->node) : NULL;

	if (n) /* taught anew by what it does now */
		*NODE_OWN(d, n, silence, struct mine_node) = (struct mine_node){0};
}

static void on_explain(const struct detector *d, const struct subject *s, struct explain *e)
{
	struct node *n = s->kind == SUBJECT_NODE ? known_node(d, s->node) : NULL;
	struct mine_node *m = n ? NODE_OWN(d, n, silence, struct mine_node) : NULL;
	double phi;

	if (!m || !m->alive.n)
		return;
	phi = phi_now(&m->alive, seconds_of(detector_age(d, n->heard_ns)), pause_of(d, &m->alive),
		      sigma_min(d, &m->alive));
	explain_line(e,
		     "how unusual its silence is (phi): %.1f, an alarm from %.0f on; usual time "
		     "between samples %.1f s",
		     phi > 0 ? phi : 0, d->options.silence_phi, phi_mean(&m->alive));
}

bool silence_suspects(const struct detector *d, uint32_t node)
{
	const struct node *n = known_node(d, node);
	const struct mine_node *m = n ? NODE_OWN(d, n, silence, struct mine_node) : NULL;

	return m && m->alive.n &&
	       (m->accused || (m->suspected && detector_age(d, n->heard_ns) > NS_PER_SEC));
}

const struct rule rule_silence = {
	.name = "silence",
	.kinds = 1u << SAMPLE_ALIVE | 1u << SAMPLE_METRICS,
	.node_bytes = sizeof(struct mine_node),
	.tick_ns = NS_PER_SEC,
	.sample = on_sample,
	.tick = on_tick,
	.well = on_well,
	.explain = on_explain,
};
