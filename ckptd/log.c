/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - one line an event on stderr, or one entry of the journal.
 *
 * Under systemd a line is an entry (journal.h), all of them, so that they stay in order; where the
 * journal does not take it "<N>text" on stderr (sd-daemon(3)). Else "2025-01-31T12:00:00.000Z level
 * text"; as JSON {"time":...,"level":...,"message":...}. Control characters and what a name from
 * outside may carry never reach the terminal: in text they become '?', in JSON they are escaped.
 * What does not fit in LOG_LINE_MAX is cut. A line that cannot be written is lost: there is nobody
 * to tell.
 */
#include <config.h>

#include "ckptd/log.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "ckptd/journal.h"

static const char *level_name(int level)
{
	switch (level) {
	case LOG_DEBUG:
		return "debug";
	case LOG_INFO:
		return "info";
	case LOG_NOTICE:
		return "notice";
	case LOG_WARNING:
		return "warning";
	default:
		return level < LOG_ERR ? "critical" : "error";
	}
}

void log_init(struct log *log)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	*log = (struct log){ .fd = STDERR_FILENO, .level = LOG_INFO };
	/* The variable is inherited by children whose stderr may be another file. */
	if (stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
	    fstat(STDERR_FILENO, &st) == 0)
		log->journal = st.st_dev == dev && st.st_ino == ino;
	/* Without, the lines go to stderr, as they do where the journal has no such socket. */
	if (log->journal && journal_open(JOURNAL_SOCKET, &log->entries) != 0)
		log->entries = NULL;
}

struct line {
	char buf[LOG_LINE_MAX];
	size_t len;
};

static void put(struct line *l, const char *s)
{
	size_t n = strlen(s), room = sizeof(l->buf) - 4 - l->len; /* for what closes the line */

	if (n > room)
		n = room;
	memcpy(l->buf + l->len, s, n);
	l->len += n;
}

static void put_plain(struct line *l, const char *s)
{
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		put(l, (char[2]){ c < 0x20 || c == 0x7f ? '?' : *s });
	}
}

static void put_json(struct line *l, const char *s)
{
	char esc[8];

	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			snprintf(esc, sizeof(esc), "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			snprintf(esc, sizeof(esc), "\\u%04x", c);
		else
			snprintf(esc, sizeof(esc), "%c", c);
		/* A cut inside an escape would not be JSON. */
		if (l->len + strlen(esc) > sizeof(l->buf) - 4)
			return;
		put(l, esc);
	}
}

static void put_time(struct line *l)
{
	struct timespec t;
	char text[40], millis[8];
	struct tm tm;

	if (clock_gettime(CLOCK_REALTIME, &t) != 0 || !gmtime_r(&t.tv_sec, &tm))
		return;
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(millis, sizeof(millis), ".%03dZ", (int)(t.tv_nsec / 1000000));
	put(l, text);
	put(l, millis);
}

void log_entry(void *arg, int level, const struct log_about *about, const char *text)
{
	struct log *log = arg;
	struct line l = { .len = 0 };
	size_t begin;
	char prefix[8];

	if (!log || level > log->level)
		return;
	assert(level >= LOG_EMERG && level <= LOG_DEBUG);
	if (log->journal) {
		snprintf(prefix, sizeof(prefix), "<%d>", level);
		put(&l, prefix);
	}
	begin = l.len;
	if (log->json) {
		put(&l, "{\"time\":\"");
		put_time(&l);
		put(&l, "\",\"level\":\"");
		put(&l, level_name(level));
		put(&l, "\",\"message\":\"");
		put_json(&l, text);
		memcpy(l.buf + l.len, "\"}\n", 3);
		l.len += 3;
	} else {
		if (!log->journal) {
			put_time(&l);
			put(&l, " ");
			put(&l, level_name(level));
			put(&l, " ");
		}
		put_plain(&l, text);
		l.buf[l.len++] = '\n';
	}
	assert(l.len <= sizeof(l.buf) && l.len > begin);
	if (log->entries && l.len > begin + 1 &&
	    journal_send(log->entries, level, about, l.buf + begin, l.len - begin - 1) == 0)
		return;
	ignore_result((int)write(log->fd, l.buf, l.len)); /* there is nobody to tell */
}

void log_line(struct log *log, int level, const char *text)
{
	log_entry(log, level, NULL, text);
}

void log_print(struct log *log, int level, const char *fmt, ...)
{
	char text[LOG_LINE_MAX];
	va_list ap;

	if (!log || level > log->level)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_line(log, level, text);
}

void log_limited(struct log *log, struct log_limit *limit, uint64_t now_ns, int level,
		 const char *fmt, ...)
{
	char text[LOG_LINE_MAX - 64];
	va_list ap;

	if (now_ns < limit->quiet_until_ns) {
		limit->hidden++;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (limit->hidden)
		log_print(log, level, "%s (and %u more like it)", text, limit->hidden);
	else
		log_line(log, level, text);
	limit->hidden = 0;
	limit->quiet_until_ns = now_ns + 1000000000u;
}
