/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that claim to be a trace: as a file, plain or compressed, and as one line. What is accepted
 * is written as a line that says the same, and what is refused is refused in words.
 */
#include <config.h>

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "detect/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
	const uint8_t *p;
	size_t left;
};

static long source(void *arg, void *buf, size_t size)
{
	struct bytes *b = arg;
	size_t n = b->left < size ? b->left : size;

	memcpy(buf, b->p, n);
	b->p += n;
	b->left -= n;
	return (long)n;
}

/* The line that stands for a record is the same when the record was read from it. */
static void write_again(const struct trace_record *r)
{
	char line[TRACE_LINE_MAX], again[TRACE_LINE_MAX];
	size_t len = trace_format(r, line);
	struct trace_record same;
	const char *why;

	if (trace_parse(line, len, &same, &why) != 0 || trace_format(&same, again) != len ||
	    memcmp(line, again, len) != 0)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = {data, size};
	struct trace_reader *reader = NULL;
	struct trace_record r;
	struct err e = {0};
	const char *why = NULL;
	int n;

	if (trace_parse((const char *)data, size, &r, &why) == 0)
		write_again(&r);
	else if (!why || !*why)
		abort();
	if (trace_reader_new("fuzz", source, &b, &reader, &e) < 0) {
		assert(e.code && e.text[0]);
		return 0;
	}
	while ((n = trace_next(reader, &r, &e)) > 0)
		write_again(&r);
	assert(n == 0 || (e.code == n && e.text[0]));
	trace_reader_free(reader);
	return 0;
}
