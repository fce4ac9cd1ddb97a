/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.c - the words for kinds, phases, metrics, classes, causes and actions: the same in traces,
 * in JSON and in what people read.
 */
#include <config.h>

#include "detect/sample.h"
#include "detect/verdict.h"

const char *sample_kind_word(enum sample_kind k)
{
	static const char *const words[] = {
#define X(name, word, text) word,
		SAMPLE_KINDS(X)
#undef X
	};
	return (unsigned)k < SAMPLE_KIND_COUNT ? words[k] : "?";
}

const char *sample_phase_word(uint32_t phase)
{
	static const char *const words[] = {
#define X(name, word) word,
		SAMPLE_PHASES(X)
#undef X
	};
	return phase < PHASE_COUNT ? words[phase] : "?";
}

const char *sample_metric_word(enum sample_metric m)
{
	static const char *const words[] = {
#define X(name, word, text) word,
		SAMPLE_METRICS_LIST(X)
#undef X
	};
	return (unsigned)m < METRIC_COUNT ? words[m] : "?";
}

const char *verdict_class_word(enum verdict_class c)
{
	static const char *const words[] = {
#define X(name, word, text) word,
		VERDICT_CLASSES(X)
#undef X
	};
	return (unsigned)c < CLASS_COUNT ? words[c] : "?";
}

const char *verdict_cause_word(enum verdict_cause c)
{
	static const char *const words[] = {
#define X(name, word) word,
		VERDICT_CAUSES(X)
#undef X
	};
	return (unsigned)c < CAUSE_COUNT ? words[c] : "?";
}

const char *verdict_action_word(enum verdict_action a)
{
	static const char *const words[] = {
#define X(name, word, text) word,
		VERDICT_ACTIONS(X)
#undef X
	};
	return (unsigned)a < ACTION_COUNT ? words[a] : "?";
}

bool subject_same(const struct subject *a, const struct subject *b)
{
	return a->kind == b->kind && a->node == b->node && a->job == b->job && a->rank == b->rank &&
	       a->device == b->device && a->peer == b->peer;
}
