/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a record of /dev/kmsg, and the same bytes as the text of a message. What
 * is recognised keeps the promises of kernel_line.h, and another facility is never believed.
 */
#include <config.h>

#include <assert.h>
#include <string.h>

#include "detect/kernel_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void text_holds(const char *text, size_t size)
{
	size_t len = strnlen(text, size);

	assert(len < size);
	for (size_t i = 0; i < len; i++)
		assert((unsigned char)text[i] >= ' ' || text[i] == '\n');
}

static void line_holds(const struct kernel_line *l)
{
	assert(l->kind < KERNEL_LINE_KIND_COUNT);
	text_holds(l->device, sizeof(l->device));
	text_holds(l->unit, sizeof(l->unit));
	text_holds(l->process, sizeof(l->process));
	text_holds(l->cgroup, sizeof(l->cgroup));
	assert(l->code <= KERNEL_CODE_MAX && l->n_words <= KERNEL_WORDS_MAX);
	assert(l->subcode < 64 || l->subcode == KERNEL_SUBCODE_NO);
	assert(l->recovery <= RECOVERY_UNKNOWN && l->link >= -1);
}

static void as_text(uint8_t level, const char *text, size_t len)
{
	struct kernel_line l;

	kernel_line_parse(0, level, text, len, &l);
	line_holds(&l);
	assert(l.level == level);
	kernel_line_parse(1, level, text, len, &l);
	assert(l.kind == KERNEL_OTHER && !l.code && !l.device[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct kmsg_record r;

	as_text(size ? data[0] & 7 : 0, (const char *)data, size);
	if (kmsg_record_parse((const char *)data, size, &r) < 0)
		return 0;
	text_holds(r.text, sizeof(r.text));
	text_holds(r.subsystem, sizeof(r.subsystem));
	text_holds(r.device, sizeof(r.device));
	assert(r.level < 8);
	as_text(r.level, r.text, strlen(r.text));
	return 0;
}
