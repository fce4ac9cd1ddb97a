/* SPDX-License-Identifier: Apache-2.0 */
/*
 * score.c - what an alarm is worth: right, vague, wrong, spurious or an echo of one before.
 */
#include <config.h>

#include "detect/replay/score.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/replay/model.h"

#define GRACE_NS UINT64_C(60000000000) /* behind the end of a fault */

void score_init(struct score *s)
{
	*s = (struct score){.declares = true};
	timely_init(&s->timely);
}

static void free_tallies(struct tallies *t)
{
	for (uint32_t i = 0; i < t->n_groups; i++)
		alloc_free(t->groups[i].delays);
}

void score_fini(struct score *s)
{
	free_tallies(&s->declared);
	free_tallies(&s->undeclared);
	alloc_free(s->labels);
	alloc_free(s->fates);
}

int score_label(struct score *s, const struct label *l)
{
	if (l->kind == LABEL_MODE)
		s->declares = s->declares && l->declares;
	if (l->kind != LABEL_FAULT && l->kind != LABEL_ALSO)
		return 0;
	if (s->n == s->cap) {
		size_t cap = s->cap ? 2 * s->cap : 64;
		void *labels = alloc_resize(s->labels, cap * sizeof(*s->labels)), *fates;

		if (!labels)
			return -ENOMEM;
		s->labels = labels;
		fates = alloc_resize(s->fates, cap * sizeof(*s->fates));
		if (!fates)
			return -ENOMEM;
		s->fates = fates;
		s->cap = cap;
	}
	s->labels[s->n] = *l;
	s->fates[s->n] = (struct fate){0};
	if (l->kind == LABEL_FAULT)
		s->fates[s->n].begin = timely_begin(&s->timely, l);
	/* It lasts as long as its fault. */
	for (size_t i = s->n; l->kind == LABEL_ALSO && i-- > 0;) {
		if (s->labels[i].kind != LABEL_FAULT || s->labels[i].id != l->id)
			continue;
		s->labels[s->n].until_ns = s->labels[i].until_ns;
		break;
	}
	s->n++;
	return 0;
}

void score_sample(struct score *s, const struct sample *sample)
{
	timely_sample(&s->timely, sample);
}

static struct tallies *tallies_of(struct score *s)
{
	return s->declares ? &s->declared : &s->undeclared;
}

/* ---- one alarm ---- */

/* A slow sender or receiver is the node or its port, as far as one can see from outside. */
static bool same_subject(const struct subject *truth, const struct subject *said)
{
	if (truth->kind == SUBJECT_LINK && truth->peer == SAMPLE_NONE)
		return said->node == truth->node &&
		       (said->kind == SUBJECT_NODE ||
			(said->kind == SUBJECT_LINK && said->peer == SAMPLE_NONE));
	if (truth->kind != said->kind)
		return false;
	switch (truth->kind) {
	case SUBJECT_JOB:
		return truth->job == said->job;
	case SUBJECT_RANK:
		return truth->job == said->job && truth->rank == said->rank;
	case SUBJECT_NODE:
		return truth->node == said->node;
	case SUBJECT_GPU:
	case SUBJECT_DISK:
		return truth->node == said->node && truth->device == said->device;
	case SUBJECT_LINK:
		return truth->node == said->node && truth->peer == said->peer;
	}
	return false;
}

static bool holds(const struct subject *truth, const struct subject *said)
{
	if (same_subject(truth, said))
		return true;
	if (truth->kind == SUBJECT_NODE)
		return said->kind != SUBJECT_JOB && said->node == truth->node;
	return truth->kind == SUBJECT_JOB && said->kind == SUBJECT_RANK && said->job == truth->job;
}

static bool same_class(const struct score *s, const struct label *l, const struct verdict *v)
{
	if (s->any_class)
		return true;
	/* 154 says what to do about the Xid before it. */
	return l->classes & 1u << v->class &&
	       (!l->code || !v->code || v->code == l->code || v->code == 154);
}

enum worth { SPURIOUS, WRONG, VAGUE, ECHO, RIGHT };

/* Of a node's fault nobody knows whose jobs it meets. */
static bool may_be_of(const struct subject *truth, uint32_t job)
{
	return truth->job == SAMPLE_NONE || truth->job == job;
}

static enum worth worth_of(const struct score *s, size_t i, const struct verdict *v)
{
	const struct label *l = &s->labels[i];
	bool class = same_class(s, l, v);

	if (l->kind == LABEL_ALSO)
		return !class || !holds(&l->subject, &v->subject) ? SPURIOUS
		       : s->any_class                             ? VAGUE
								  : ECHO;
	if (class && same_subject(&l->subject, &v->subject))
		return RIGHT;
	if (s->fates[i].right_ns && holds(&l->subject, &v->subject))
		return ECHO;
	if (class && v->subject.kind == SUBJECT_JOB && may_be_of(&l->subject, v->subject.job))
		return VAGUE;
	return class ? WRONG : SPURIOUS;
}

static void note(const struct score *s, const char *what, const char *fault,
		 const struct verdict *v)
{
	static const char *const kinds[] = {"job", "rank", "node", "gpu", "link", "disk"};

	if (!s->log)
		return;
	fprintf(s->log,
		"%s%s at %.1f: %s %s (node %d job %d rank %d device %d peer %d code %u): %s\n",
		what, fault, (double)v->changed_ns / 1e9, verdict_class_word(v->class),
		kinds[v->subject.kind], (int)v->subject.node, (int)v->subject.job,
		(int)v->subject.rank, (int)v->subject.device, (int)v->subject.peer, v->code,
		v->words);
}

void score_verdict(struct score *s, const struct verdict *v)
{
	struct tallies *t = tallies_of(s);
	enum worth best = SPURIOUS;
	size_t of = 0;

	if (v->level != LEVEL_ALARM || v->state == VERDICT_CLEARED)
		return;
	while (s->from < s->n && s->labels[s->from].until_ns + GRACE_NS < v->changed_ns)
		s->from++;
	for (size_t i = s->from; i < s->n; i++) {
		enum worth w = worth_of(s, i, v);

		if (s->labels[i].until_ns + GRACE_NS < v->changed_ns || w <= best)
			continue;
		best = w;
		of = i;
	}
	/* Who knows no classes has found the fault by its consequence. */
	while (best == VAGUE && s->labels[of].kind == LABEL_ALSO && of > 0)
		of--;
	if (best == VAGUE && s->fates[of].found_ns)
		best = ECHO;
	if (best == RIGHT && s->fates[of].right_ns)
		best = ECHO;
	t->alarms++;
	t->good += best == RIGHT;
	t->vague += best == VAGUE;
	t->wrong += best == WRONG;
	t->spurious += best == SPURIOUS;
	t->echoes += best == ECHO;
	if (best == SPURIOUS)
		note(s, "false", "", v);
	else if (best == WRONG || best == VAGUE)
		note(s, best == WRONG ? "wrong subject for " : "job only for ", s->labels[of].what,
		     v);
	if (best == SPURIOUS || best == ECHO)
		return;
	if (!s->fates[of].found_ns) {
		s->fates[of].found_ns = v->changed_ns;
		s->fates[of].first_right = best == RIGHT;
	}
	if (best != RIGHT)
		return;
	s->fates[of].right_ns = v->changed_ns;
	s->fates[of].timely =
		timely_told(&s->timely, &s->labels[of], &s->fates[of].begin, v->changed_ns);
}

/* ---- sums ---- */

static void name_group(struct tallies *t, const char *name)
{
	if (!score_group(t, name) && t->n_groups < SCORE_GROUPS_MAX)
		snprintf(t->groups[t->n_groups++].name, SCORE_NAME_MAX, "%s", name);
}

static struct tally *group(struct tallies *t, const char *name)
{
	/* Those of the model come first, in its order, whichever fault was first. */
	if (!t->n_groups) {
#define X(fault, name, what, weight) name_group(t, name);
		FAULTS(X)
#undef X
	}
	name_group(t, name);
	for (uint32_t i = 0; i < t->n_groups; i++)
		if (strcmp(t->groups[i].name, name) == 0)
			return &t->groups[i];
	return &t->groups[SCORE_GROUPS_MAX - 1];
}

const struct tally *score_group(const struct tallies *t, const char *name)
{
	for (uint32_t i = 0; i < t->n_groups; i++)
		if (strcmp(t->groups[i].name, name) == 0)
			return &t->groups[i];
	return NULL;
}

const char *score_target(unsigned i, double *ret_share)
{
	static const struct {
		const char *group;
		double share;
	} targets[] = {{"dead", 0.95}, {"hung", 0.95},     {"xid", 0.95},
		       {"nan", 0.95},  {"straggler", 0.9}, {"link", 0.9}};

	if (i >= sizeof(targets) / sizeof(targets[0]))
		return NULL;
	*ret_share = targets[i].share;
	return targets[i].group;
}

static int add_delay(struct tally *g, double s)
{
	if (g->timed == g->cap) {
		uint32_t cap = g->cap ? 2 * g->cap : 64;
		void *p = alloc_resize(g->delays, cap * sizeof(*g->delays));

		if (!p)
			return -ENOMEM;
		g->delays = p;
		g->cap = cap;
	}
	g->delays[g->timed++] = s;
	return 0;
}

static void take_usual(struct tally *g, double s)
{
	if (s > 0 && (!(g->usual_s > 0) || s < g->usual_s))
		g->usual_s = s;
}

static int end_fault(struct score *s, size_t i)
{
	const struct label *l = &s->labels[i];
	const struct fate *f = &s->fates[i];
	struct tally *g = group(tallies_of(s), fault_group(l->what));

	g->faults++;
	g->found += f->found_ns != 0;
	g->right += f->first_right;
	g->asked += timely_asks(l);
	g->judged += f->timely != TIMELY_NOT_JUDGED;
	g->in_time += f->timely == TIMELY_IN_TIME;
	take_usual(g, (double)f->begin.usual_ns / 1e9);
	if (f->timely == TIMELY_LATE && s->log)
		fprintf(s->log,
			"late: %s of %.1f after %.1f s, usual step %.2f s, node %d job %d rank "
			"%d\n",
			l->what, (double)l->time_ns / 1e9, (double)(f->right_ns - l->time_ns) / 1e9,
			(double)f->begin.usual_ns / 1e9, (int)l->subject.node, (int)l->subject.job,
			(int)l->subject.rank);
	if (!f->found_ns && s->log)
		fprintf(s->log,
			"not found: %s from %.1f to %.1f, node %d job %d rank %d factor %.2f\n",
			l->what, (double)l->time_ns / 1e9, (double)l->until_ns / 1e9,
			(int)l->subject.node, (int)l->subject.job, (int)l->subject.rank, l->factor);
	if (!f->found_ns)
		return 0;
	return add_delay(g, (double)((f->right_ns ? f->right_ns : f->found_ns) - l->time_ns) / 1e9);
}

int score_end(struct score *s, double node_days)
{
	struct tallies *t = tallies_of(s);

	for (size_t i = 0; i < s->n; i++)
		if (s->labels[i].kind == LABEL_FAULT && end_fault(s, i) < 0)
			return -ENOMEM;
	t->node_days += node_days;
	t->jobs++;
	s->n = s->from = 0;
	s->declares = true;
	timely_init(&s->timely);
	return 0;
}

static int add_tallies(struct tallies *sum, const struct tallies *t)
{
	sum->jobs += t->jobs;
	sum->node_days += t->node_days;
	sum->alarms += t->alarms;
	sum->good += t->good;
	sum->vague += t->vague;
	sum->wrong += t->wrong;
	sum->spurious += t->spurious;
	sum->echoes += t->echoes;
	for (uint32_t i = 0; i < t->n_groups; i++) {
		struct tally *g = group(sum, t->groups[i].name);

		g->faults += t->groups[i].faults;
		g->found += t->groups[i].found;
		g->right += t->groups[i].right;
		g->asked += t->groups[i].asked;
		g->judged += t->groups[i].judged;
		g->in_time += t->groups[i].in_time;
		take_usual(g, t->groups[i].usual_s);
		for (uint32_t k = 0; k < t->groups[i].timed; k++)
			if (add_delay(g, t->groups[i].delays[k]) < 0)
				return -ENOMEM;
	}
	return 0;
}

int score_add(struct score *sum, const struct score *s)
{
	int r = add_tallies(&sum->declared, &s->declared);

	return r < 0 ? r : add_tallies(&sum->undeclared, &s->undeclared);
}

/* ---- intervals ---- */

void interval_share(uint32_t k, uint32_t n, double *ret_low, double *ret_high)
{
	const double z = 1.959964, p = n ? (double)k / n : 0;
	double mid, half;

	*ret_low = 0;
	*ret_high = 1;
	if (!n)
		return;
	mid = (p + z * z / (2 * n)) / (1 + z * z / n);
	half = z * sqrt(p * (1 - p) / n + z * z / (4.0 * n * n)) / (1 + z * z / n);
	*ret_low = k ? mid - half : 0;
	*ret_high = k < n ? mid + half : 1;
}

/* P(X <= k) for a mean of m. */
static double poisson_cdf(uint32_t k, double m)
{
	double log_term = -m, sum = 0;

	for (uint32_t i = 0; i <= k; i++) {
		sum += exp(log_term);
		log_term += log(m) - log((double)i + 1);
	}
	return sum < 1 ? sum : 1;
}

static double poisson_mean(uint32_t k, double cdf)
{
	double low = 1e-9, high = (double)k + 20 + 10 * sqrt((double)k + 1);

	for (int i = 0; i < 100; i++) {
		double mid = (low + high) / 2;

		if (poisson_cdf(k, mid) > cdf)
			low = mid;
		else
			high = mid;
	}
	return low;
}

void interval_rate(uint32_t k, double exposure, double *ret_low, double *ret_high)
{
	*ret_low = k && exposure > 0 ? poisson_mean(k - 1, 0.975) / exposure : 0;
	*ret_high = exposure > 0 ? poisson_mean(k, 0.025) / exposure : INFINITY;
}

/* ---- what is printed ---- */

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double tally_delay(const struct tally *t, double quantile)
{
	if (!t->timed)
		return NAN;
	qsort(t->delays, t->timed, sizeof(*t->delays), by_size);
	return t->delays[(uint32_t)(quantile * (t->timed - 1) + 0.5)];
}

static void too_few(const struct tallies *t, FILE *out)
{
	const char *name, *separator = "  too few to judge: ";
	double share;

	for (unsigned i = 0; (name = score_target(i, &share)); i++) {
		const struct tally *g = score_group(t, name);

		if (g && g->faults >= SCORE_FAULTS_MIN)
			continue;
		fprintf(out, "%s%s %u of %u", separator, name, g ? g->faults : 0, SCORE_FAULTS_MIN);
		separator = ", ";
	}
	if (*separator == ',')
		fprintf(out, "\n");
}

static void table_of(const struct tallies *t, const char *title, FILE *out)
{
	uint32_t bad = t->wrong + t->spurious;
	double low, high;

	if (!t->jobs)
		return;
	fprintf(out, "%s: %u jobs, %.0f node-days\n", title, t->jobs, t->node_days);
	fprintf(out, "  %-10s %6s %6s %7s %-15s %8s %9s %9s %9s  %s\n", "class", "faults", "found",
		"recall", "[95 %]", "subject", "median s", "p95 s", "max s", "in time");
	for (uint32_t i = 0; i < t->n_groups; i++) {
		const struct tally *g = &t->groups[i];

		if (!g->faults)
			continue;
		interval_share(g->found, g->faults, &low, &high);
		fprintf(out, "  %-10s %6u %6u %7.3f [%.3f, %.3f] %8.3f %9.1f %9.1f %9.1f", g->name,
			g->faults, g->found, (double)g->found / g->faults, low, high,
			g->found ? (double)g->right / g->found : (double)NAN, tally_delay(g, 0.5),
			tally_delay(g, 0.95), tally_delay(g, 1));
		if (g->judged)
			fprintf(out, "  %u of %u", g->in_time, g->judged);
		else if (g->asked)
			fprintf(out, "  none of %u judged", g->asked);
		fprintf(out, "\n");
	}
	too_few(t, out);
	interval_rate(bad, t->node_days, &low, &high);
	fprintf(out,
		"  alarms %u: right %u, of the job only %u, echoes %u, wrong subject %u, false "
		"%u\n",
		t->alarms, t->good, t->vague, t->echoes, t->wrong, t->spurious);
	fprintf(out, "  false alarms per node-day %.5f [%.5f, %.5f], precision %.3f\n",
		t->node_days > 0 ? bad / t->node_days : 0, low, high,
		t->alarms > t->echoes ? (double)(t->good + t->vague) / (t->alarms - t->echoes)
				      : (double)NAN);
}

void score_table(const struct score *s, const char *title, FILE *out)
{
	fprintf(out, "%s\n", title);
	table_of(&s->declared, "phases declared", out);
	table_of(&s->undeclared, "phases not declared", out);
}

static void json_number(FILE *out, const char *key, double v)
{
	if (isfinite(v))
		fprintf(out, ",\"%s\":%.6g", key, v);
	else
		fprintf(out, ",\"%s\":null", key);
}

static void json_of(const struct tallies *t, const char *head, bool declares, FILE *out)
{
	double low, high;

	for (uint32_t i = 0; i < t->n_groups; i++) {
		const struct tally *g = &t->groups[i];

		if (!g->faults)
			continue;
		interval_share(g->found, g->faults, &low, &high);
		fprintf(out, "{%s,\"declared\":%s,\"class\":\"%s\",\"faults\":%u,\"found\":%u",
			head, declares ? "true" : "false", g->name, g->faults, g->found);
		fprintf(out, ",\"right_subject\":%u", g->right);
		json_number(out, "recall_low", low);
		json_number(out, "recall_high", high);
		json_number(out, "delay_median_s", tally_delay(g, 0.5));
		json_number(out, "delay_p95_s", tally_delay(g, 0.95));
		json_number(out, "delay_max_s", tally_delay(g, 1));
		json_number(out, "usual_step_s", g->usual_s > 0 ? g->usual_s : (double)NAN);
		fprintf(out, ",\"delays_asked\":%u,\"delays_judged\":%u,\"in_time\":%u}\n",
			g->asked, g->judged, g->in_time);
	}
	if (!t->jobs)
		return;
	interval_rate(t->wrong + t->spurious, t->node_days, &low, &high);
	fprintf(out, "{%s,\"declared\":%s,\"class\":null,\"jobs\":%u", head,
		declares ? "true" : "false", t->jobs);
	json_number(out, "node_days", t->node_days);
	fprintf(out, ",\"alarms\":%u,\"right\":%u,\"vague\":%u,\"echoes\":%u", t->alarms, t->good,
		t->vague, t->echoes);
	fprintf(out, ",\"wrong_subject\":%u,\"false\":%u", t->wrong, t->spurious);
	json_number(out, "false_per_node_day", (t->wrong + t->spurious) / t->node_days);
	json_number(out, "false_low", low);
	json_number(out, "false_high", high);
	fprintf(out, "}\n");
}

void score_json(const struct score *s, const char *detector, const char *title, FILE *out)
{
	char head[200];

	snprintf(head, sizeof(head), "\"detector\":\"%s\",\"trace\":\"%s\"", detector, title);
	json_of(&s->declared, head, true, out);
	json_of(&s->undeclared, head, false, out);
}
