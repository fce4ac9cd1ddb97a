/* SPDX-License-Identifier: Apache-2.0 */
/*
 * say.c - the detector in words: whom a verdict names, its sentence, and what is known of somebody.
 */
#include <config.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "detect/rules.h"

/* "node n17"; where no name was said, "node 17". */
static void node_words(const struct detector *d, uint32_t node, char *buf, size_t size)
{
	const struct node *n = known_node(d, node);

	if (n && n->name[0])
		snprintf(buf, size, "node %s", n->name);
	else
		snprintf(buf, size, "node %u", node);
}

static void job_words(const struct detector *d, uint32_t job, char *buf, size_t size)
{
	const struct job *j = known_job(d, job);

	if (j && j->name[0])
		snprintf(buf, size, "job %s", j->name);
	else
		snprintf(buf, size, "job %u", job);
}

static void device_words(const struct detector *d, const struct subject *s, const char *what,
			 char *buf, size_t size)
{
	const struct device *x = known_device(d, s->node, s->device);
	char node[SAMPLE_NAME_MAX + 16];

	node_words(d, s->node, node, sizeof(node));
	if (x && x->name[0])
		snprintf(buf, size, "%s %s of %s", what, x->name, node);
	else
		snprintf(buf, size, "%s %u of %s", what, s->device, node);
}

void detector_subject_words(const struct detector *d, const struct subject *s, char *buf,
			    size_t size)
{
	char one[SAMPLE_NAME_MAX + 16], two[SAMPLE_NAME_MAX + 16];

	node_words(d, s->node, one, sizeof(one));
	switch (s->kind) {
	case SUBJECT_JOB:
		job_words(d, s->job, buf, size);
		break;
	case SUBJECT_RANK:
		job_words(d, s->job, two, sizeof(two));
		if (s->node == SAMPLE_NONE)
			snprintf(buf, size, "rank %u of %s", s->rank, two);
		else
			snprintf(buf, size, "rank %u of %s on %s", s->rank, two, one);
		break;
	case SUBJECT_NODE:
		snprintf(buf, size, "%s", one);
		break;
	case SUBJECT_GPU:
		device_words(d, s, "GPU", buf, size);
		break;
	case SUBJECT_DISK:
		device_words(d, s, "disk", buf, size);
		break;
	case SUBJECT_LINK:
		if (s->peer == SAMPLE_NONE) {
			device_words(d, s, "port", buf, size);
			break;
		}
		node_words(d, s->peer, two, sizeof(two));
		snprintf(buf, size, "the path from %s to %s", one, two);
		break;
	}
	text_clean(buf);
}

struct verdict verdict_of(struct subject s, enum verdict_class class, enum verdict_cause cause,
			  enum verdict_level level, enum verdict_action advice)
{
	return (struct verdict){
		.subject = s, .class = class, .cause = cause, .level = level, .advice = advice};
}

void verdict_say(const struct detector *d, struct verdict *v, const char *format, ...)
{
	size_t n;
	va_list ap;

	detector_subject_words(d, &v->subject, v->words, sizeof(v->words));
	n = strlen(v->words);
	if (n + 1 >= sizeof(v->words))
		return;
	v->words[n++] = ' ';
	va_start(ap, format);
	vsnprintf(v->words + n, sizeof(v->words) - n, format, ap);
	va_end(ap);
	text_clean(v->words);
}

void explain_line(struct explain *e, const char *format, ...)
{
	char text[VERDICT_WORDS_MAX];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof(text), format, ap);
	va_end(ap);
	text_clean(text);
	e->line(e->arg, text);
}

static double ago(const struct detector *d, uint64_t t_ns)
{
	return (double)(d->now_ns - t_ns) / NS_PER_SEC;
}

static void explain_rank(const struct detector *d, const struct rank *r, struct explain *e)
{
	const struct in_phase *p;

	if (r->ended)
		explain_line(e, "its process has ended");
	else if (!r->expected)
		explain_line(e, "it takes no part in a run now");
	if (r->beat_ns)
		explain_line(e, "last finished step: %llu, %.1f s ago", (unsigned long long)r->step,
			     ago(d, r->beat_ns));
	else
		explain_line(e, "no step finished in this run, which began %.1f s ago",
			     ago(d, r->began_ns));
	if (r->depth) {
		p = &r->phases[(r->depth < PHASE_DEPTH ? r->depth : PHASE_DEPTH) - 1];
		explain_line(e, "in declared phase %s%s%s since %.1f s",
			     sample_phase_word(p->phase), p->what[0] ? " " : "", p->what,
			     ago(d, p->since_ns));
	}
}

#define MISSING_NAMED 8u

static void explain_missing(const struct detector *d, const struct job *j, uint32_t missing,
			    struct explain *e)
{
	char text[MISSING_NAMED * 40] = "";
	uint32_t n = 0;

	for (uint32_t rank = 0; rank < j->world && n < MISSING_NAMED; rank++) {
		const struct rank *r = known_rank(d, j->number, rank);
		size_t len = strlen(text);

		if (r && r->expected && !r->ended)
			continue;
		snprintf(text + len, sizeof(text) - len, "%srank %u %s", n++ ? ", " : "", rank,
			 r ? "has ended" : "has not come");
	}
	if (n < missing)
		explain_line(e, "missing: %s, and %u more", text, missing - n);
	else if (n)
		explain_line(e, "missing: %s", text);
}

static void explain_job(const struct detector *d, const struct job *j, struct explain *e)
{
	uint32_t there = 0;
	const struct rank *r;

	if (j->epoch == 0 && j->world == 0)
		return; /* no rank has come since ckptd started */
	each_rank(r, j) there += r->expected && !r->ended;
	explain_line(e, "epoch %llu is %s, %u of %u ranks take part", (unsigned long long)j->epoch,
		     j->on ? "on" : "over", there, j->world);
	if (j->on && there < j->world)
		explain_missing(d, j, j->world - there, e);
	if (j->step_ns)
		explain_line(e, "furthest step: %llu, first finished %.1f s ago",
			     (unsigned long long)j->step, ago(d, j->step_ns));
}

void detector_explain(const struct detector *d, const struct subject *s,
		      void (*line)(void *arg, const char *text), void *arg)
{
	struct explain e = {.line = line, .arg = arg};
	const struct rank *r = known_rank(d, s->job, s->rank);
	const struct node *n = known_node(d, s->node);
	const struct job *j = known_job(d, s->job);

	if (s->kind == SUBJECT_RANK && r)
		explain_rank(d, r, &e);
	else if (s->kind == SUBJECT_JOB && j)
		explain_job(d, j, &e);
	else if (s->kind == SUBJECT_NODE && n && n->heard_ns)
		explain_line(&e, "last heard of %.1f s ago", ago(d, n->heard_ns));
	if (detector_blind(d))
		explain_line(&e, "nobody at all was heard of for %.1f s: the detector sees nothing",
			     ago(d, d->sample_ns));
	for (int i = 0; i < RULE_COUNT; i++)
		if (detect_rules[i]->explain)
			detect_rules[i]->explain(d, s, &e);
}
