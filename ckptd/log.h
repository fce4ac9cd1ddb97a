/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - what ckptd says to people: one line an event on stderr, as text or as JSON, or as an
 * entry of systemd's journal where stderr is the journal's.
 *
 * Any thread. A line is one write(2), so lines of threads and processes do not mix.
 */
#ifndef CKPTD_LOG_H
#define CKPTD_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <syslog.h> /* LOG_ERR .. LOG_DEBUG */

#define LOG_LINE_MAX 2048

struct journal;

/* What a line is about: fields of the journal's entry, CKPT_JOB and CKPT_STEP. */
struct log_about {
	const char *job; /* its name; NULL: no single job */
	bool has_step;
	uint64_t step;
};

struct log {
	int fd;
	int level; /* lines above it are dropped; LOG_INFO by default */
	bool json;
	bool journal; /* "<N>" before each line and no time: the journal has its own */
	struct journal *entries; /* takes lines with their fields; NULL: all go to fd */
};

/* Standard error; journal and entries when $JOURNAL_STREAM says that it is the journal's. */
void log_init(struct log *log);
/* A node_log_fn: arg is the struct log, or NULL to say nothing. What the journal does not take goes
 * to fd. */
void log_entry(void *arg, int level, const struct log_about *about, const char *line);
void log_line(struct log *log, int level, const char *line);
void log_print(struct log *log, int level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* For lines that somebody outside can cause at will: one a second, with the number hidden. */
struct log_limit {
	uint64_t quiet_until_ns;
	unsigned hidden;
};
void log_limited(struct log *log, struct log_limit *limit, uint64_t now_ns, int level,
		 const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
