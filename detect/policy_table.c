/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_table.c - the text of a policy into rows: share/policy.tsv says what stands in it.
 *
 * The text may be anybody's: every number is bounded, every word is one of a list, and what is
 * wrong is said with file and line.
 */
#include <config.h>

#include "detect/policy_table.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

enum {
	CLASS,
	CAUSE,
	LEVEL,
	SUBJECT,
	COPIES,
	DURABLE,
	SPARES,
	ACTIONS,
	TIMES,
	HOLD,
	FIELDS,
};

#define FIELD_MAX 160
#define ANY_LEVEL 2u

struct line {
	const char *name;
	uint32_t number;
	char fields[FIELDS][FIELD_MAX];
	struct err *e;
};

__attribute__((format(printf, 2, 3))) static int wrong(const struct line *l, const char *fmt, ...)
{
	char text[ERR_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(l->e, -EINVAL, "policy '%.80s' line %u: %s", l->name, l->number, text);
}

static bool is_any(const char *field)
{
	return strcmp(field, "*") == 0;
}

/* The number of a word of n, or n for "*"; a word that nobody knows is an error. */
static int take_word(const struct line *l, const char *what, const char *field,
		     const char *(*word)(unsigned), uint32_t n, uint32_t *ret)
{
	*ret = n;
	if (is_any(field))
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		if (strcmp(field, word(i)) == 0) {
			*ret = i;
			return 0;
		}
	}
	return wrong(l, "there is no %s '%.40s'", what, field);
}

static const char *class_word(unsigned i)
{
	return verdict_class_word((enum verdict_class)i);
}

static const char *cause_word(unsigned i)
{
	return verdict_cause_word((enum verdict_cause)i);
}

static const char *level_word(unsigned i)
{
	return i == LEVEL_NOTE ? "note" : "alarm";
}

static const char *subject_word(unsigned i)
{
	static const char *const words[] = {"job", "rank", "node", "gpu", "link", "disk"};

	return words[i];
}

static const char *action_word(unsigned i)
{
	return i == ACTION_COUNT ? "advice" : verdict_action_word((enum verdict_action)i);
}

/* Up to nine digits from *p. */
static bool take_digits(const char **p, uint64_t *ret)
{
	uint64_t v = 0;
	int n = 0;

	for (; **p >= '0' && **p <= '9' && n < 10; n++)
		v = v * 10 + (uint64_t)(*(*p)++ - '0');
	*ret = v;
	return n > 0 && n < 10;
}

static bool take_time(const char **p, uint64_t *ret_ns)
{
	static const char units[] = "smhd";
	static const uint64_t seconds[] = {1, 60, 3600, 86400};
	const char *unit;
	uint64_t v;

	if (!take_digits(p, &v) || !**p)
		return false;
	unit = strchr(units, **p);
	if (!unit || v > 3650u * 86400u / seconds[unit - units])
		return false;
	(*p)++;
	*ret_ns = v * seconds[unit - units] * 1000000000u;
	return true;
}

static int take_limit(const struct line *l, const char *what, const char *field, bool is_time,
		      struct policy_limit *ret)
{
	const char *p = field;

	*ret = (struct policy_limit){.test = TEST_ANY};
	if (is_any(field))
		return 0;
	if (strcmp(field, "none") == 0) {
		ret->test = TEST_NONE;
		return 0;
	}
	if (p[0] == '<') {
		ret->test = TEST_BELOW;
		p++;
	} else if (p[0] == '>' && p[1] == '=') {
		ret->test = TEST_FROM;
		p += 2;
	}
	if (ret->test != TEST_ANY &&
	    (is_time ? take_time(&p, &ret->value) : take_digits(&p, &ret->value)) && !*p)
		return 0;
	return wrong(l, "%s is '%.40s': *, none, <%s or >=%s is allowed", what, field,
		     is_time ? "10m" : "1", is_time ? "10m" : "1");
}

static int take_step(const struct line *l, char *text, uint32_t *ret)
{
	char *save = NULL;

	*ret = 0;
	for (char *w = strtok_r(text, "+", &save); w; w = strtok_r(NULL, "+", &save)) {
		uint32_t action;
		int r = take_word(l, "action", w, action_word, ACTION_COUNT + 1, &action);

		if (r < 0)
			return r;
		if (is_any(w))
			return wrong(l, "'*' is no action");
		*ret |= ACTION_BIT(action);
	}
	return *ret ? 0 : wrong(l, "an action is missing");
}

static int take_actions(const struct line *l, const char *field, struct policy_row *row)
{
	char text[FIELD_MAX], *save = NULL;

	memcpy(text, field, sizeof(text));
	for (char *s = strtok_r(text, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		int r;

		if (row->n_steps == POLICY_STEPS_MAX)
			return wrong(l, "more than %u steps of actions", POLICY_STEPS_MAX);
		r = take_step(l, s, &row->steps[row->n_steps]);
		if (r < 0)
			return r;
		if (row->level != LEVEL_ALARM && (row->steps[row->n_steps] & ~POLICY_FREE))
			return wrong(l, "only alarms may have other actions than ignore, record "
					"and mark-suspect");
		row->n_steps++;
	}
	return row->n_steps ? 0 : wrong(l, "there is no action");
}

/* "3/1h", "-" */
static int take_times(const struct line *l, const char *field, struct policy_row *row)
{
	const char *p = field;
	uint64_t times = 0;

	if (strcmp(field, "-") == 0)
		return row->n_steps == 1 ? 0
					 : wrong(l,
						 "there are %u steps of actions: times says when "
						 "the next one comes, 3/1h",
						 row->n_steps);
	if (!take_digits(&p, &times) || *p++ != '/' || !take_time(&p, &row->window_ns) || *p ||
	    times < 2 || times > POLICY_TIMES_MAX || row->window_ns == 0)
		return wrong(l, "times is '%.40s': '-', or 2 to %u within a time, 3/1h, is allowed",
			     field, POLICY_TIMES_MAX);
	row->times = (uint32_t)times;
	return 0;
}

static int take_hold(const struct line *l, const char *field, struct policy_row *row)
{
	const char *p = field;

	if (strcmp(field, "-") == 0 || (take_time(&p, &row->hold_ns) && !*p))
		return 0;
	return wrong(l, "hold is '%.40s': '-' or a time such as 10m is allowed", field);
}

static int take_row(const struct line *l, struct policy_row *row)
{
	uint32_t subject = 0;
	int r;

	*row = (struct policy_row){.line = l->number};
	r = take_word(l, "class", l->fields[CLASS], class_word, CLASS_COUNT, &row->class);
	if (r == 0)
		r = take_word(l, "cause", l->fields[CAUSE], cause_word, CAUSE_COUNT, &row->cause);
	if (r == 0)
		r = take_word(l, "level", l->fields[LEVEL], level_word, ANY_LEVEL, &row->level);
	if (r == 0)
		r = take_word(l, "subject", l->fields[SUBJECT], subject_word, SUBJECT_DISK + 1,
			      &subject);
	row->subject = subject > SUBJECT_DISK ? UINT32_MAX : 1u << subject;
	if (r == 0)
		r = take_limit(l, "copies", l->fields[COPIES], false, &row->copies);
	if (r == 0)
		r = take_limit(l, "durable", l->fields[DURABLE], true, &row->durable);
	if (r == 0)
		r = take_limit(l, "spares", l->fields[SPARES], false, &row->spares);
	if (r == 0)
		r = take_actions(l, l->fields[ACTIONS], row);
	if (r == 0)
		r = take_times(l, l->fields[TIMES], row);
	return r ? r : take_hold(l, l->fields[HOLD], row);
}

/* 1: a row; 0: nothing is on this line. */
static int split(struct line *l, const char *text, size_t len)
{
	size_t at = 0, n = 0;

	while (at < len) {
		size_t from = at;

		if (text[at] == ' ' || text[at] == '\t' || text[at] == '\r') {
			at++;
			continue;
		}
		if (text[at] == '#')
			break;
		while (at < len && text[at] > ' ' && text[at] < 0x7f)
			at++;
		if (at == from)
			return wrong(l, "a byte that is no printable ASCII character");
		if (n == FIELDS || at - from >= FIELD_MAX)
			return wrong(l,
				     n == FIELDS ? "more than %d fields" : "field %d is too long",
				     n == FIELDS ? FIELDS : (int)n + 1);
		memcpy(l->fields[n], text + from, at - from);
		memset(l->fields[n] + (at - from), 0, FIELD_MAX - (at - from));
		n++;
	}
	if (n > 0 && n < FIELDS)
		return wrong(l,
			     "%zu fields instead of %d: class cause level subject copies durable "
			     "spares actions times hold",
			     n, FIELDS);
	return n > 0;
}

static int add_row(const struct line *l, struct policy_row **rows, size_t *n)
{
	struct policy_row *more;
	struct policy_row row;
	int r = take_row(l, &row);

	if (r < 0)
		return r;
	if (*n == POLICY_ROWS_MAX)
		return wrong(l, "more than %u rows", POLICY_ROWS_MAX);
	more = alloc_resize(*rows, (*n + 1) * sizeof(row));
	if (!more)
		return err_code(l->e, -ENOMEM, "policy '%.80s'", l->name);
	*rows = more;
	more[(*n)++] = row;
	return 0;
}

int policy_table_parse(const char *name, const char *text, size_t len, struct policy_row **ret,
		       size_t *ret_n, struct err *e)
{
	struct line l = {.name = name, .e = e};
	struct policy_row *rows = NULL;
	size_t n = 0;
	int r = 0;

	if (len > POLICY_BYTES_MAX)
		return err_set(e, -E2BIG, "policy '%.80s' has more than %u bytes", name,
			       POLICY_BYTES_MAX);
	for (size_t at = 0; at < len && r >= 0;) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t line = end ? (size_t)(end - (text + at)) : len - at;

		l.number++;
		r = split(&l, text + at, line);
		if (r > 0)
			r = add_row(&l, &rows, &n);
		at += line + 1;
	}
	if (r < 0) {
		alloc_free(rows);
		return r;
	}
	*ret = rows;
	*ret_n = n;
	return 0;
}
