/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_out.c - what one read of a source has found. Bounded: what is one too many is lost.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/collect_source.h"

int collect_out_init(struct collect_out *out)
{
	*out = (struct collect_out){0};
	/* One more than is ever counted: what is too much is written there. */
	out->samples = alloc_array(COLLECT_SAMPLES_MAX + 1, sizeof(*out->samples));
	if (!out->samples)
		return -ENOMEM;
	collect_out_reset(out);
	return 0;
}

void collect_out_fini(struct collect_out *out)
{
	alloc_free(out->samples);
}

void collect_out_reset(struct collect_out *out)
{
	out->n = 0;
	out->n_lines = 0;
	out->uses.at_ns = 0;
	for (int i = 0; i < METRIC_COUNT; i++)
		out->metrics[i] = NAN;
}

struct sample *collect_add(struct collect_out *out, enum sample_kind k)
{
	struct sample *s = &out->samples[out->n];

	assert(out->n <= COLLECT_SAMPLES_MAX);
	if (out->n < COLLECT_SAMPLES_MAX)
		out->n++;
	memset(s, 0, sizeof(*s));
	s->kind = k;
	s->job = s->rank = s->device = SAMPLE_NONE;
	return s;
}

void collect_name(struct collect_out *out, uint32_t device, char role, const char *name)
{
	struct sample *s = collect_add(out, SAMPLE_NAME);

	assert(device < COLLECT_DEVICES_MAX);
	s->device = device;
	s->name.role = role;
	snprintf(s->name.text, sizeof(s->name.text), "%s", name);
}

void collect_say(struct collect_out *out, int level, const char *format, ...)
{
	struct collect_line *l = &out->lines[out->n_lines];
	va_list args;

	if (out->n_lines == COLLECT_LINES_MAX)
		return;
	out->n_lines++;
	l->level = level;
	va_start(args, format);
	vsnprintf(l->text, sizeof(l->text), format, args);
	va_end(args);
}

void collect_state(struct collect_out *out, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(out->state, sizeof(out->state), format, args);
	va_end(args);
}
