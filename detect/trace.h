/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - samples and labels as text, one line each, plain or as zstd: doc/trace-format.md.
 *
 * What the detector was fed is recorded with this, and fed again with it. A record that is written
 * and read again is the same record. No files here: bytes come from a source and go to a sink.
 */
#ifndef DETECT_TRACE_H
#define DETECT_TRACE_H

#include "base/err.h"
#include "codec/zstd_stream.h"
#include "detect/sample.h"
#include "detect/verdict.h"

#define TRACE_LINE_MAX   2048 /* bytes, with the newline */
#define TRACE_FIRST_LINE "ckpt-trace 1\n"

/* X(name, word, what it says) */
#define TRACE_LABELS(X)                                                                            \
	X(LABEL_FAULT, "fault", "something fails, in this subject, in one of these classes")       \
	X(LABEL_ALSO, "also", "true as well where that fault is: not wanted, not false")           \
	X(LABEL_MODE, "mode", "whether the ranks of a job declare their phases")                   \
	X(LABEL_GAP, "gap", "nobody looked between the line before and this one")

enum label_kind {
#define X(name, word, text) name,
	TRACE_LABELS(X)
#undef X
		LABEL_KIND_COUNT
};

/* What is known of the truth; never shown to a detector. */
struct label {
	uint64_t time_ns; /* FAULT: it begins */
	enum label_kind kind;
	uint32_t id;            /* FAULT: from 1; ALSO: of which fault */
	uint32_t classes;       /* bit 1 << enum verdict_class */
	uint32_t code;          /* the Xid; 0: none */
	struct subject subject; /* MODE: .job */
	uint64_t until_ns;      /* FAULT: it is over, or repaired */
	double factor;          /* FAULT: how much slower; NaN: does not apply */
	bool declares;          /* MODE */
	char what[32];          /* FAULT: "process-killed" */
};

struct trace_record {
	bool is_label;
	union {
		struct sample sample;
		struct label label;
	};
};
static inline uint64_t trace_time(const struct trace_record *r)
{
	return r->is_label ? r->label.time_ns : r->sample.time_ns;
}

/* One line without its newline, into TRACE_LINE_MAX bytes; returns its length. */
size_t trace_format(const struct trace_record *r, char *buf);
/* The line buf[0..len) without its newline. 0, or -EINVAL with *ret_why a static text that says
 * what is wrong with it. *ret is rubbish then. */
MUST_CHECK int trace_parse(const char *buf, size_t len, struct trace_record *ret,
			   const char **ret_why);

/* Borrows arg; level: of zstd, 0: plain text. */
struct trace_writer;
MUST_CHECK int trace_writer_new(int level, zstd_sink_fn *sink, void *arg,
				struct trace_writer **ret);
/* Times must not go back. After an error only trace_writer_free() is allowed. */
MUST_CHECK int trace_put(struct trace_writer *w, const struct trace_record *r);
MUST_CHECK int trace_put_sample(struct trace_writer *w, const struct sample *s);
/* All records so far can be read from what the sink has got. */
MUST_CHECK int trace_flush(struct trace_writer *w);
void trace_writer_free(struct trace_writer *w); /* what was not flushed is lost; NULL is allowed */

struct trace_reader;
/* name: of the file, for sentences; borrowed. */
MUST_CHECK int trace_reader_new(const char *name, zstd_source_fn *source, void *arg,
				struct trace_reader **ret, struct err *e);
/* 1: a record; 0: the end; else an error that names the line. */
MUST_CHECK int trace_next(struct trace_reader *r, struct trace_record *ret, struct err *e);
void trace_reader_free(struct trace_reader *r); /* NULL is allowed */

#endif
