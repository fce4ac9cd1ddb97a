/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_file.c - a trace from its first line to its last, plain or compressed.
 *
 * The first line is "ckpt-trace 1". Invariants of what is written, checked in what is read: times
 * never go back, lines are at most TRACE_LINE_MAX bytes.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/trace.h"

#define PIECE_BYTES (64u << 10)

struct trace_writer {
	zstd_sink_fn *sink;
	void *arg;
	struct zstd_out *out; /* NULL: plain */
	uint64_t last_ns;
	size_t len;
	char buf[PIECE_BYTES];
};

int trace_writer_new(int level, zstd_sink_fn *sink, void *arg, struct trace_writer **ret)
{
	struct trace_writer *w = alloc_zero(sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	w->sink = sink;
	w->arg = arg;
	r = level ? zstd_out_new(level, sink, arg, &w->out) : 0;
	if (r < 0) {
		alloc_free(w);
		return r;
	}
	w->len = strlen(TRACE_FIRST_LINE);
	memcpy(w->buf, TRACE_FIRST_LINE, w->len);
	*ret = w;
	return 0;
}

static int drain(struct trace_writer *w)
{
	int r;

	if (!w->len)
		return 0;
	r = w->out ? zstd_out_write(w->out, w->buf, w->len) : w->sink(w->arg, w->buf, w->len);
	w->len = 0;
	return r;
}

int trace_put(struct trace_writer *w, const struct trace_record *rec)
{
	assert(trace_time(rec) >= w->last_ns);
	w->last_ns = trace_time(rec);
	if (sizeof(w->buf) - w->len < TRACE_LINE_MAX) {
		int r = drain(w);

		if (r < 0)
			return r;
	}
	w->len += trace_format(rec, w->buf + w->len);
	w->buf[w->len++] = '\n';
	return 0;
}

int trace_put_sample(struct trace_writer *w, const struct sample *s)
{
	struct trace_record rec = {.sample = *s};

	return trace_put(w, &rec);
}

int trace_flush(struct trace_writer *w)
{
	int r = drain(w);

	return r < 0 || !w->out ? r : zstd_out_flush(w->out, true);
}

void trace_writer_free(struct trace_writer *w)
{
	if (!w)
		return;
	zstd_out_free(w->out);
	alloc_free(w);
}

struct trace_reader {
	const char *name;
	zstd_source_fn *source;
	void *arg;
	struct zstd_in *in; /* NULL: plain */
	uint64_t line, last_ns;
	size_t at, len;
	bool ended;
	char buf[PIECE_BYTES + 1];
};

static long more(struct trace_reader *r)
{
	size_t room;
	long n;

	memmove(r->buf, r->buf + r->at, r->len - r->at);
	r->len -= r->at;
	r->at = 0;
	room = PIECE_BYTES - r->len;
	assert(room > 0);
	n = r->in ? zstd_in_read(r->in, r->buf + r->len, room)
		  : r->source(r->arg, r->buf + r->len, room);
	if (n > 0)
		r->len += (size_t)n;
	r->ended = n == 0;
	return n;
}

static int failed(const struct trace_reader *r, long code, struct err *e)
{
	if (code == CKPT_ECORRUPT)
		return err_set(
			e, CKPT_ECORRUPT,
			"trace '%s' is damaged or cut off behind line %llu: its recorder may "
			"have been killed; what came before is whole",
			r->name, (unsigned long long)r->line);
	return err_code(e, (int)code, "cannot read trace '%s' behind line %llu", r->name,
			(unsigned long long)r->line);
}

/* The next line without its newline: 1, 0 at the end. */
static int next_line(struct trace_reader *r, const char **ret, size_t *ret_len, struct err *e)
{
	for (;;) {
		size_t have = r->len - r->at;
		char *newline = memchr(r->buf + r->at, '\n', have);
		long n;

		if (newline || (r->ended && have)) {
			*ret = r->buf + r->at;
			*ret_len = newline ? (size_t)(newline - *ret) : have;
			r->at += *ret_len + (newline != NULL);
			r->line++;
			if (*ret_len < TRACE_LINE_MAX)
				return 1;
		} else if (r->ended) {
			return 0;
		}
		if (newline || have >= TRACE_LINE_MAX)
			return err_set(e, -EINVAL, "trace '%s' line %llu is longer than %u bytes",
				       r->name, (unsigned long long)r->line + !newline,
				       TRACE_LINE_MAX - 1);
		n = more(r);
		if (n < 0)
			return failed(r, n, e);
	}
}

static int first_line(struct trace_reader *r, struct err *e)
{
	const char *line;
	size_t len;
	int n = next_line(r, &line, &len, e);

	if (n < 0)
		return n;
	if (n == 0 || len != strlen(TRACE_FIRST_LINE) - 1 ||
	    memcmp(line, TRACE_FIRST_LINE, len) != 0)
		return err_set(e, -EINVAL,
			       "file '%s' is not a trace, or of a version that is not known: its "
			       "first line should be \"%.*s\"",
			       r->name, (int)strlen(TRACE_FIRST_LINE) - 1, TRACE_FIRST_LINE);
	return 0;
}

int trace_reader_new(const char *name, zstd_source_fn *source, void *arg, struct trace_reader **ret,
		     struct err *e)
{
	struct trace_reader *r = alloc_zero(sizeof(*r));
	long n = 1;
	int code;

	if (!r)
		return err_code(e, -ENOMEM, "cannot read trace '%s'", name);
	r->name = name;
	r->source = source;
	r->arg = arg;
	while (n > 0 && r->len < 4) {
		n = source(arg, r->buf + r->len, ZSTD_HEAD_MAX - r->len);
		r->len += n > 0 ? (size_t)n : 0;
	}
	if (n >= 0 && zstd_is_frame(r->buf, r->len)) {
		n = zstd_in_new(r->buf, r->len, source, arg, &r->in);
		r->len = 0;
	}
	code = n < 0 ? failed(r, n, e) : first_line(r, e);
	if (code < 0) {
		trace_reader_free(r);
		return code;
	}
	*ret = r;
	return 0;
}

int trace_next(struct trace_reader *r, struct trace_record *ret, struct err *e)
{
	const char *line, *why;
	size_t len;
	int n;

	do
		n = next_line(r, &line, &len, e);
	while (n > 0 && (len == 0 || line[0] == '#'));
	if (n <= 0)
		return n;
	if (trace_parse(line, len, ret, &why) == 0) {
		if (trace_time(ret) >= r->last_ns) {
			r->last_ns = trace_time(ret);
			return 1;
		}
		why = "its time is before that of the line before";
	}
	return err_set(e, -EINVAL, "trace '%s' line %llu is refused: %s", r->name,
		       (unsigned long long)r->line, why);
}

void trace_reader_free(struct trace_reader *r)
{
	if (!r)
		return;
	zstd_in_free(r->in);
	alloc_free(r);
}
