/* SPDX-License-Identifier: Apache-2.0 */
/*
 * print.c - tables and lines for people. One thread.
 */
#include <config.h>

#include "tools/print.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/text.h"

#define COLUMNS_MAX 16
#define CELL_MAX 1200 /* a name of CKPT_NAME_MAX bytes fits */

struct table {
	char *columns; /* owns the words of heading[] */
	const char *heading[COLUMNS_MAX];
	bool right[COLUMNS_MAX];
	size_t width[COLUMNS_MAX]; /* characters, not bytes */
	unsigned n_columns;
	char **cells;
	size_t n, cap;
	enum {TABLE_HELD, TABLE_MEASURED, TABLE_PRINTED} rows; /* what becomes of them */
	bool bad;
};

/* ---- Words ---- */

const char *text_bytes(char buf[TEXT_MAX], uint64_t bytes)
{
	_Static_assert(TEXT_MAX >= TEXT_SIZE_MAX, "a size fits");
	return text_size(buf, bytes);
}

const char *text_time(char buf[TEXT_MAX], uint64_t wall_ns)
{
	time_t t = (time_t)(wall_ns / 1000000000u);
	struct tm tm;

	if (!localtime_r(&t, &tm) || strftime(buf, TEXT_MAX, "%Y-%m-%d %H:%M:%S", &tm) == 0)
		snprintf(buf, TEXT_MAX, "-");
	return buf;
}

const char *text_age(char buf[TEXT_MAX], uint64_t wall_ns)
{
	struct timespec now;
	int64_t age;

	clock_gettime(CLOCK_REALTIME, &now);
	age = now.tv_sec - (int64_t)(wall_ns / 1000000000u);
	if (wall_ns == 0)
		snprintf(buf, TEXT_MAX, "-");
	else if (age < 0) /* another node's clock */
		snprintf(buf, TEXT_MAX, "0s");
	else if (age < 120)
		snprintf(buf, TEXT_MAX, "%" PRId64 "s", age);
	else if (age < 120 * 60)
		snprintf(buf, TEXT_MAX, "%" PRId64 "m", age / 60);
	else if (age < 48 * 3600)
		snprintf(buf, TEXT_MAX, "%" PRId64 "h", age / 3600);
	else
		snprintf(buf, TEXT_MAX, "%" PRId64 "d", age / 86400);
	return buf;
}

const char *text_short(char buf[TEXT_MAX], const char *hex)
{
	snprintf(buf, TEXT_MAX, "%.12s", hex);
	return buf;
}

/* Bytes of a control character at p: below 0x20, DEL, or U+0080 to U+009F; else 0. */
static int control_bytes(const unsigned char *p)
{
	if (p[0] < 0x20 || p[0] == 0x7f)
		return 1;
	return p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0 ? 2 : 0;
}

void print_clean(FILE *f, const char *text)
{
	for (const unsigned char *p = (const unsigned char *)text; *p;) {
		int skip = control_bytes(p);

		putc(skip ? '?' : *p, f);
		p += skip ? skip : 1;
	}
}

void say(const char *fmt, ...)
{
	char line[CELL_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	print_clean(stdout, line);
	putchar('\n');
}

void complain(const char *fmt, ...)
{
	char line[CELL_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fflush(stdout); /* in the order in which it was said */
	fputs("ckptctl: ", stderr);
	print_clean(stderr, line);
	putc('\n', stderr);
}

/* ---- Tables ---- */

struct table *table_new(const char *columns)
{
	struct table *t = alloc_zero(sizeof(*t));
	char *word, *rest;

	if (!t)
		return NULL;
	t->columns = alloc_str(columns);
	rest = t->columns;
	t->bad = !rest;
	while (rest && (word = strsep(&rest, " "))) {
		size_t len = strlen(word);

		assert(len > 0 && t->n_columns < COLUMNS_MAX);
		t->right[t->n_columns] = word[len - 1] == '>';
		if (t->right[t->n_columns])
			word[--len] = '\0';
		t->heading[t->n_columns] = word;
		t->width[t->n_columns++] = len;
	}
	return t;
}

/* Characters of UTF-8, each taken to be one column wide. */
static size_t width_of(const char *text)
{
	size_t n = 0;

	for (const char *p = text; *p; p++)
		n += ((unsigned char)*p & 0xc0) != 0x80;
	return n;
}

static bool make_room(struct table *t)
{
	size_t cap = t->cap ? 2 * t->cap : 64;
	void *p;

	if (t->n < t->cap)
		return true;
	p = alloc_resize(t->cells, cap * sizeof(*t->cells));
	if (!p)
		return false;
	t->cells = p;
	t->cap = cap;
	return true;
}

void table_measure(struct table *t)
{
	if (t)
		t->rows = TABLE_MEASURED;
}

static void print_row(const struct table *t, const char *const *cells)
{
	unsigned last = t->n_columns;

	while (last > 0 && !cells[last - 1][0])
		last--; /* no blanks at the end of a line */
	for (unsigned i = 0; i < last; i++) {
		int pad = (int)(t->width[i] - width_of(cells[i]));

		if (t->right[i])
			printf("%*s", pad, "");
		print_clean(stdout, cells[i]);
		if (i + 1 < last)
			printf("%*s", t->right[i] ? 2 : pad + 2, "");
	}
	putchar('\n');
}

void table_measured(struct table *t)
{
	if (!t || t->bad)
		return;
	assert(t->rows == TABLE_MEASURED && t->n % t->n_columns == 0);
	if (t->n)
		print_row(t, t->heading);
	t->rows = TABLE_PRINTED;
	t->n = 0;
}

/* With TABLE_PRINTED: the last row's are all there. */
static void print_whole_row(struct table *t)
{
	if (t->rows != TABLE_PRINTED || t->n < t->n_columns)
		return;
	print_row(t, (const char *const *)t->cells);
	while (t->n > 0)
		alloc_free(t->cells[--t->n]);
}

void table_cell(struct table *t, const char *fmt, ...)
{
	char text[CELL_MAX];
	unsigned column;
	va_list ap;

	if (!t || t->bad)
		return;
	column = (unsigned)(t->n % t->n_columns);
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (t->rows != TABLE_PRINTED && width_of(text) > t->width[column])
		t->width[column] = width_of(text);
	if (t->rows == TABLE_MEASURED) {
		t->n++;
		return;
	}
	if (!make_room(t) || !(t->cells[t->n] = alloc_str(text))) {
		t->bad = true;
		return;
	}
	t->n++;
	print_whole_row(t);
}

int table_drop(struct table *t)
{
	if (!t)
		return 0;
	for (size_t i = 0; i < t->n && t->rows != TABLE_MEASURED; i++)
		alloc_free(t->cells[i]);
	alloc_free(t->cells);
	alloc_free(t->columns);
	alloc_free(t);
	return 0;
}

int table_end(struct table *t)
{
	if (!t || t->bad) {
		table_drop(t);
		return -ENOMEM;
	}
	assert(t->n % t->n_columns == 0);
	if (t->n)
		print_row(t, t->heading);
	for (size_t i = 0; i < t->n; i += t->n_columns)
		print_row(t, (const char *const *)t->cells + i);
	return table_drop(t);
}

void print_json(json_t *doc)
{
	assert(doc);
	json_dumpf(doc, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
	putchar('\n');
	json_decref(doc);
}
