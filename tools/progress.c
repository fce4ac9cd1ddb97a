/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - one line that is drawn over and over. One thread draws.
 */
#include <config.h>

#include "tools/progress.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "tools/print.h"

enum { WIDTH_MAX = 160, WIDTH_DEFAULT = 80, WORDS_MAX = 100, BAR_MIN = 10 };

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void progress_start(struct progress *p, uint64_t total, bool wanted)
{
	*p = (struct progress){ .shown = wanted && isatty(STDERR_FILENO), .total = total,
				.start_ns = now_ns() };
}

double progress_seconds(const struct progress *p)
{
	return (double)(now_ns() - p->start_ns) / 1e9;
}

static void time_left(char buf[TEXT_MAX], double seconds)
{
	unsigned s = seconds < 359999 ? (unsigned)(seconds + 0.5) : 359999;

	if (s < 3600)
		snprintf(buf, TEXT_MAX, "%u:%02u", s / 60, s % 60);
	else
		snprintf(buf, TEXT_MAX, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
}

void progress_text(char *buf, unsigned width, uint64_t done, uint64_t total, double seconds,
		   uint64_t problems)
{
	char words[WORDS_MAX], a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], left[TEXT_MAX] = "-";
	double part = total ? (double)done / (double)total : 1, rate = 0;
	unsigned bar, full;
	int n;

	assert(width < WIDTH_MAX);
	if (seconds > 0.2 && done > 0) {
		rate = (double)done / seconds;
		time_left(left, (double)(total - (done < total ? done : total)) / rate);
	}
	n = snprintf(words, sizeof(words), " %3.0f%%  %s of %s  %s/s  ETA %s", 100 * part,
		     text_bytes(a, done), text_bytes(b, total), text_bytes(c, (uint64_t)rate),
		     left);
	if (problems)
		snprintf(words + n, sizeof(words) - (size_t)n, "  %" PRIu64 " bad", problems);
	n = (int)strlen(words);
	if (width < (unsigned)n + BAR_MIN + 2) {
		snprintf(buf, width + 1, "%s", words + 1);
		return;
	}
	bar = width - (unsigned)n - 2;
	full = (unsigned)(part * bar);
	full = full > bar ? bar : full;
	buf[0] = '[';
	memset(buf + 1, '#', full);
	memset(buf + 1 + full, ' ', bar - full);
	buf[1 + bar] = ']';
	memcpy(buf + 2 + bar, words, (size_t)n + 1);
}

void progress_draw(const struct progress *p, uint64_t done, uint64_t problems)
{
	char text[WIDTH_MAX];
	struct winsize w;
	unsigned width = WIDTH_DEFAULT;

	if (!p->shown)
		return;
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1)
		width = w.ws_col;
	width = width > WIDTH_MAX ? WIDTH_MAX : width;
	progress_text(text, width - 1, done, p->total, progress_seconds(p), problems);
	fprintf(stderr, "\r%s\x1b[K", text);
	fflush(stderr);
}

void progress_clear(const struct progress *p)
{
	if (p->shown)
		fputs("\r\x1b[K", stderr);
}
