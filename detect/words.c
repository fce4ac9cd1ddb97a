/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.c - the words for kinds, phases, metrics, classes, causes and actions: the same in traces,
 * in JSON and in what people read.
 */
#include <config.h>

#include "detect/sample.h"
#include "detect/verdict.h"

#define FIRST(word, ...) word,
#define WORD(name, ...)  FIRST(__VA_ARGS__, )
#define WORDS(function, type, LIST, count)                                                         \
	const char *function(type v)                                                               \
	{                                                                                          \
		static const char *const words[] = {LIST(WORD)};                                   \
		return (unsigned)v < (count) ? words[v] : "?";                                     \
	}

WORDS(sample_kind_word, enum sample_kind, SAMPLE_KINDS, SAMPLE_KIND_COUNT)
WORDS(sample_phase_word, uint32_t, SAMPLE_PHASES, PHASE_COUNT)
WORDS(sample_metric_word, enum sample_metric, SAMPLE_METRICS_LIST, METRIC_COUNT)
WORDS(verdict_class_word, enum verdict_class, VERDICT_CLASSES, CLASS_COUNT)
WORDS(verdict_cause_word, enum verdict_cause, VERDICT_CAUSES, CAUSE_COUNT)
WORDS(verdict_action_word, enum verdict_action, VERDICT_ACTIONS, ACTION_COUNT)

bool subject_same(const struct subject *a, const struct subject *b)
{
	return a->kind == b->kind && a->node == b->node && a->job == b->job && a->rank == b->rank &&
	       a->device == b->device && a->peer == b->peer;
}
