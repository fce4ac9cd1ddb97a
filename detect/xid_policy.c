/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xid_policy.c - reads tables of Xids. Fields point into the copy of the text that each file is
 * kept as; a refused text is freed and nothing points into it.
 */
#include <config.h>

#include "detect/xid_policy.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/span.h"

enum field {
	FIELD_CODE,
	FIELD_SUBCODE,
	FIELD_ACTION,
	FIELD_SEVERITY,
	FIELD_SCOPE,
	FIELD_CLASS,
	FIELD_COUNT,
	FIELD_WINDOW,
	FIELD_THEN,
	FIELD_HOLD,
	FIELD_WITH,
	FIELD_MEANING,
	FIELD_CONFLICT,
	FIELD_SOURCES,
	FIELDS
};
#define FIELD_BYTES_MAX 1000

struct xid_policy {
	struct xid_row *rows;
	size_t n;
	struct {
		char *name, *text;
	} files[XID_FILES_MAX];
	uint32_t n_files;
};

static const char *const severities[] = {
#define X(name, word) word,
	XID_SEVERITIES(X)
#undef X
};
static const char *const scopes[] = {
#define X(name, word) word,
	XID_SCOPES(X)
#undef X
};
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

const char *xid_severity_word(enum xid_severity s)
{
	return (unsigned)s < COUNT_OF(severities) ? severities[s] : "?";
}

const char *xid_scope_word(enum xid_scope s)
{
	return (unsigned)s < COUNT_OF(scopes) ? scopes[s] : "?";
}

int xid_policy_new(struct xid_policy **ret)
{
	struct xid_policy *p = alloc_zero(sizeof(*p));

	if (!p)
		return -ENOMEM;
	*ret = p;
	return 0;
}

void xid_policy_free(struct xid_policy *p)
{
	if (!p)
		return;
	for (uint32_t i = 0; i < p->n_files; i++) {
		alloc_free(p->files[i].name);
		alloc_free(p->files[i].text);
	}
	alloc_free(p->rows);
	alloc_free(p);
}

/* ---- Fields ---- */

static struct span span_of(const char *text)
{
	return (struct span){text, strlen(text)};
}

static int word_in(const char *word, const char *const *words, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(word, words[i]) == 0)
			return (int)i;
	return -1;
}

static int parse_code(const char *text, uint32_t *ret)
{
	struct span s = span_of(text);
	uint64_t n;

	if (strcmp(text, "other") == 0) {
		*ret = XID_CODE_OTHER;
		return 0;
	}
	if (strcmp(text, "sxid") == 0) {
		*ret = XID_CODE_SXID;
		return 0;
	}
	if (!span_decimal(&s, 99999, &n) || s.len > 0 || n == XID_CODE_OTHER || n == XID_CODE_SXID)
		return -EINVAL;
	*ret = (uint32_t)n;
	return 0;
}

static int parse_subcode(const char *text, uint32_t *ret)
{
	struct span s = span_of(text);
	uint64_t n;

	if (strcmp(text, "*") == 0) {
		*ret = XID_SUB_ANY;
		return 0;
	}
	if (strcmp(text, "fatal") == 0) {
		*ret = XID_SUB_FATAL;
		return 0;
	}
	if (!span_decimal(&s, 63, &n) || s.len > 0)
		return -EINVAL;
	*ret = (uint32_t)n;
	return 0;
}

static int parse_action(const char *text, enum verdict_action *ret)
{
	for (int a = 0; a < ACTION_COUNT; a++)
		if (strcmp(text, verdict_action_word((enum verdict_action)a)) == 0) {
			*ret = (enum verdict_action)a;
			return 0;
		}
	return -EINVAL;
}

static int parse_class(const char *text, enum verdict_class *ret)
{
	for (int c = 0; c < CLASS_COUNT; c++)
		if (strcmp(text, verdict_class_word((enum verdict_class)c)) == 0) {
			*ret = (enum verdict_class)c;
			return 0;
		}
	return -EINVAL;
}

static int parse_count(const char *text, struct xid_row *r)
{
	struct span s = span_of(text);
	uint64_t n = 0;

	r->jobs = false;
	r->count = 0;
	if (strcmp(text, "none") == 0)
		return 0;
	if (!span_decimal(&s, 1000000, &n) || n == 0)
		return -EINVAL;
	r->jobs = span_skip(&s, "jobs");
	r->count = (uint32_t)n;
	return s.len == 0 ? 0 : -EINVAL;
}

/* "30s", "10m", "1h", "3d"; at most a year. */
static int parse_duration(const char *text, uint64_t *ret)
{
	static const struct {
		const char *unit;
		uint64_t seconds;
	} units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
	struct span s = span_of(text);
	uint64_t n;

	if (!span_decimal(&s, 365 * 86400, &n))
		return -EINVAL;
	for (size_t i = 0; i < COUNT_OF(units); i++)
		if (span_is(s, units[i].unit) && n <= 365 * 86400 / units[i].seconds) {
			*ret = n * units[i].seconds * 1000000000u;
			return 0;
		}
	return -EINVAL;
}

static int parse_window(const char *text, uint64_t *ret)
{
	if (strcmp(text, "none") != 0)
		return parse_duration(text, ret);
	*ret = 0;
	return 0;
}

static int parse_hold(const char *text, uint64_t *ret)
{
	if (strcmp(text, "stays") != 0)
		return parse_duration(text, ret);
	*ret = XID_STAYS;
	return 0;
}

/* "63:reset-gpu,94:restart-process", "*:ignore" */
static int parse_with(char *text, struct xid_row *r)
{
	r->n_with = 0;
	if (strcmp(text, "none") == 0)
		return 0;
	for (char *rest = text, *one = strsep(&rest, ","); one; one = strsep(&rest, ",")) {
		char *action = strchr(one, ':');
		struct xid_with *w = &r->with[r->n_with];

		if (!action || r->n_with == XID_WITH_MAX)
			return -EINVAL;
		*action++ = '\0';
		if (strcmp(one, "*") == 0)
			w->code = XID_WITH_ANY;
		else if (parse_code(one, &w->code) < 0)
			return -EINVAL;
		if (parse_action(action, &w->action) < 0)
			return -EINVAL;
		r->n_with++;
	}
	return 0;
}

static int parse_word(const char *text, const char *const *words, size_t n, int *ret)
{
	int i = word_in(text, words, n);

	if (i < 0)
		return -EINVAL;
	*ret = i;
	return 0;
}

static int parse_field(enum field f, char *text, struct xid_row *r)
{
	int word = 0, result = 0;

	switch (f) {
	case FIELD_ACTION:
		return parse_action(text, &r->action);
	case FIELD_SEVERITY:
		result = parse_word(text, severities, COUNT_OF(severities), &word);
		r->severity = (enum xid_severity)word;
		return result;
	case FIELD_SCOPE:
		result = parse_word(text, scopes, COUNT_OF(scopes), &word);
		r->scope = (enum xid_scope)word;
		return result;
	case FIELD_CLASS:
		return parse_class(text, &r->class);
	case FIELD_COUNT:
		return parse_count(text, r);
	case FIELD_WINDOW:
		return parse_window(text, &r->window_ns);
	case FIELD_THEN:
		if (strcmp(text, "none") == 0)
			return 0;
		return parse_action(text, &r->then);
	case FIELD_HOLD:
		return parse_hold(text, &r->hold_ns);
	case FIELD_WITH:
		return parse_with(text, r);
	case FIELD_MEANING:
		r->meaning = text;
		return 0;
	case FIELD_CONFLICT:
		r->conflict = strcmp(text, "none") == 0 ? "" : text;
		return 0;
	case FIELD_SOURCES:
		r->sources = text;
		return 0;
	case FIELD_CODE:
	case FIELD_SUBCODE:
	case FIELDS:
	default:
		return -EINVAL;
	}
}

/* ---- Rows ---- */

/* By code, then subcode: the numbers, "fatal", "*". */
static int compare(const struct xid_row *r, uint32_t code, uint32_t subcode)
{
	if (r->code != code)
		return r->code < code ? -1 : 1;
	return r->subcode < subcode ? -1 : r->subcode > subcode;
}

/* Where it is, or would be. */
static size_t place(const struct xid_row *rows, size_t n, uint32_t code, uint32_t subcode)
{
	size_t from = 0;

	while (n > from) {
		size_t middle = from + (n - from) / 2;

		if (compare(&rows[middle], code, subcode) < 0)
			from = middle + 1;
		else
			n = middle;
	}
	return from;
}

static const struct xid_row *lookup(const struct xid_policy *p, uint32_t code, uint32_t subcode)
{
	size_t at = place(p->rows, p->n, code, subcode);

	return at < p->n && compare(&p->rows[at], code, subcode) == 0 ? &p->rows[at] : NULL;
}

static const char *const field_names[FIELDS] = {
	"code",   "subcode", "action", "severity", "scope",   "class",    "count",
	"window", "then",    "hold",   "with",     "meaning", "conflict", "sources",
};

static int refuse_field(enum field f, const char *text, struct err *e)
{
	static const char *const want[FIELDS] = {
		[FIELD_CODE] = "a number up to 99999, \"sxid\" or \"other\"",
		[FIELD_SUBCODE] = "\"*\", \"fatal\" or a number up to 63",
		[FIELD_ACTION] = "an action, such as reset-gpu",
		[FIELD_SEVERITY] = "info, warning, critical or fatal",
		[FIELD_SCOPE] = "app, gpu or node",
		[FIELD_CLASS] = "a class, such as failing",
		[FIELD_COUNT] = "\"none\", a number, or a number of jobs such as 3jobs",
		[FIELD_WINDOW] = "\"none\", or a time such as 3d",
		[FIELD_THEN] = "\"none\", or an action such as drain",
		[FIELD_HOLD] = "\"stays\", or a time such as 1h",
		[FIELD_WITH] = "\"none\", or CODE:ACTION,... of at most 6",
	};

	return err_set(e, -EINVAL, "%s is '%.40s', not %s", field_names[f], text,
		       want[f] ? want[f] : "text");
}

/* A row that was just read, over what stood there before. */
static int check_row(const struct xid_row *r, bool is_new, uint32_t given, struct err *e)
{
	const uint32_t needed = 1u << FIELD_ACTION | 1u << FIELD_SEVERITY | 1u << FIELD_SCOPE |
				1u << FIELD_CLASS | 1u << FIELD_HOLD | 1u << FIELD_MEANING;

	for (int f = 0; f < FIELDS; f++)
		if (is_new && needed & ~given & 1u << f)
			return err_set(e, -EINVAL,
				       "%s is not given, and no other table has a row "
				       "for this code and subcode to take it from",
				       field_names[f]);
	if (r->count && !r->window_ns)
		return err_set(e, -EINVAL, "it counts %" PRIu32 " and has no window", r->count);
	if (r->subcode == XID_SUB_FATAL && r->code == XID_CODE_OTHER)
		return err_set(e, -EINVAL, "\"other\" has no subcodes");
	return 0;
}

static int put_row(struct xid_row *rows, size_t *n, const struct xid_row *r, struct err *e)
{
	size_t at = place(rows, *n, r->code, r->subcode);

	if (at < *n && compare(&rows[at], r->code, r->subcode) == 0) {
		if (rows[at].file == r->file)
			return err_set(e, -EINVAL, "it has a row already, in line %" PRIu32,
				       rows[at].line);
		rows[at] = *r;
		return 0;
	}
	if (*n == XID_ROWS_MAX)
		return err_set(e, -E2BIG, "there are more than %d rows", XID_ROWS_MAX);
	memmove(&rows[at + 1], &rows[at], (*n - at) * sizeof(rows[0]));
	rows[at] = *r;
	++*n;
	return 0;
}

static int check_field(const char *text, struct err *e)
{
	if (strlen(text) > FIELD_BYTES_MAX)
		return err_set(e, -EINVAL, "a field has more than %d bytes", FIELD_BYTES_MAX);
	for (const char *c = text; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			return err_set(e, -EINVAL, "a field has a control character");
	return 0;
}

static int parse_row(char *line, struct xid_row *rows, size_t *n, uint32_t file, uint32_t number,
		     struct err *e)
{
	char *fields[FIELDS] = {NULL}, *rest = line;
	const struct xid_row *old;
	struct xid_row r;
	uint32_t given = 0;
	size_t at;

	for (int f = 0; rest; f++) {
		if (f == FIELDS)
			return err_set(e, -EINVAL, "there are more than %d fields", FIELDS);
		fields[f] = strsep(&rest, "\t");
		if (check_field(fields[f], e) < 0)
			return -EINVAL;
	}
	if (!fields[FIELD_SUBCODE])
		return err_set(e, -EINVAL, "'%.40s': a row is fields with one tab between them",
			       fields[FIELD_CODE]);
	r = (struct xid_row){.meaning = "", .conflict = "", .sources = ""};
	if (parse_code(fields[FIELD_CODE], &r.code) < 0)
		return refuse_field(FIELD_CODE, fields[FIELD_CODE], e);
	if (parse_subcode(fields[FIELD_SUBCODE], &r.subcode) < 0)
		return refuse_field(FIELD_SUBCODE, fields[FIELD_SUBCODE], e);
	at = place(rows, *n, r.code, r.subcode);
	old = at < *n && compare(&rows[at], r.code, r.subcode) == 0 ? &rows[at] : NULL;
	if (old && old->file != file)
		r = *old;
	for (int f = FIELD_ACTION; f < FIELDS; f++) {
		if (!fields[f] || strcmp(fields[f], "-") == 0)
			continue;
		if (parse_field((enum field)f, fields[f], &r) < 0)
			return refuse_field((enum field)f, fields[f], e);
		given |= 1u << f;
	}
	if (check_row(&r, !old, given, e) < 0)
		return -EINVAL;
	r.file = file;
	r.line = number;
	return put_row(rows, n, &r, e);
}

/* The lines of a text that ends with NUL, which they are cut out of. */
static int parse_rows(char *text, const char *file, struct xid_row *rows, size_t *n,
		      uint32_t file_number, struct err *e)
{
	uint32_t number = 0;

	for (char *rest = text, *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
		size_t len = strlen(line);
		int r;

		number++;
		if (len > 0 && line[len - 1] == '\r')
			line[--len] = '\0';
		if (len == 0 || line[0] == '#')
			continue;
		r = parse_row(line, rows, n, file_number, number, e);
		if (r < 0)
			return err_wrap(e, r, "table of Xids '%.160s', line %" PRIu32, file,
					number);
	}
	return 0;
}

static char *copy_text(const char *text, size_t len)
{
	char *copy = alloc_zero(len + 1);

	if (copy)
		memcpy(copy, text, len);
	return copy;
}

static int read_rows(struct xid_policy *p, char *text, const char *file, struct err *e)
{
	size_t n = p->n, room = n + 1;
	struct xid_row *rows;
	int r;

	for (const char *c = text; *c && room < XID_ROWS_MAX; c++)
		room += *c == '\n'; /* no line has more than one row */
	rows = alloc_array(room, sizeof(*rows));
	if (!rows)
		return err_code(e, -ENOMEM, "read the table of Xids '%.160s'", file);
	if (n > 0)
		memcpy(rows, p->rows, n * sizeof(*rows));
	r = parse_rows(text, file, rows, &n, p->n_files, e);
	if (r == 0 && place(rows, n, XID_CODE_OTHER, XID_SUB_ANY) == n)
		r = err_set(e, -EINVAL, "table of Xids '%.160s': it has no rows", file);
	else if (r == 0 && compare(&rows[0], XID_CODE_OTHER, XID_SUB_ANY) != 0)
		r = err_set(e, -EINVAL, "table of Xids '%.160s': it has no row \"other\"", file);
	if (r < 0) {
		alloc_free(rows);
		return r;
	}
	alloc_free(p->rows);
	p->rows = rows;
	p->n = n;
	return 0;
}

int xid_policy_add(struct xid_policy *p, const char *file, const char *text, size_t len,
		   struct err *e)
{
	char *name, *copy;
	int r;

	if (p->n_files == XID_FILES_MAX || len > XID_TEXT_BYTES_MAX)
		return err_set(e, -E2BIG,
			       "table of Xids '%.160s': there are at most %d tables of %u "
			       "bytes each",
			       file, XID_FILES_MAX, XID_TEXT_BYTES_MAX);
	if (memchr(text, '\0', len))
		return err_set(e, -EINVAL, "table of Xids '%.160s': it is not text", file);
	name = copy_text(file, strlen(file));
	copy = copy_text(text, len);
	r = name && copy ? read_rows(p, copy, file, e)
			 : err_code(e, -ENOMEM, "read the table of Xids '%.160s'", file);
	if (r < 0) {
		alloc_free(name);
		alloc_free(copy);
		return r;
	}
	p->files[p->n_files].name = name;
	p->files[p->n_files].text = copy;
	p->n_files++;
	return 0;
}

int xid_policy_default(struct xid_policy **ret)
{
	struct xid_policy *p;
	int r = xid_policy_new(&p);

	if (r < 0)
		return r;
	r = xid_policy_add(p, "the table of ckptd", (const char *)xid_builtin, xid_builtin_len,
			   NULL);
	assert(r == 0 || r == -ENOMEM); /* a test reads it too */
	if (r < 0) {
		xid_policy_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

/* ---- Asking ---- */

const struct xid_row *xid_policy_find(const struct xid_policy *p, uint32_t code, uint32_t subcode,
				      bool fatal)
{
	const struct xid_row *r = NULL;

	for (unsigned turn = 0; turn < 2 && !r; turn++) {
		if (turn == 1)
			code = code > XID_CODE_SXID ? XID_CODE_SXID : XID_CODE_OTHER;
		if (subcode < XID_SUB_FATAL)
			r = lookup(p, code, subcode);
		if (!r && (fatal || subcode == XID_SUB_FATAL))
			r = lookup(p, code, XID_SUB_FATAL);
		if (!r)
			r = lookup(p, code, XID_SUB_ANY);
	}
	return r ? r : lookup(p, XID_CODE_OTHER, XID_SUB_ANY);
}

size_t xid_policy_size(const struct xid_policy *p)
{
	return p->n;
}

const struct xid_row *xid_policy_at(const struct xid_policy *p, size_t i)
{
	assert(i < p->n);
	return &p->rows[i];
}

const char *xid_policy_file(const struct xid_policy *p, uint32_t file)
{
	assert(file < p->n_files);
	return p->files[file].name;
}

void xid_row_name(const struct xid_row *r, char *buf, size_t size)
{
	char code[16], sub[16] = "";

	if (r->code == XID_CODE_OTHER || r->code == XID_CODE_SXID)
		snprintf(code, sizeof(code), "%s", r->code ? "sxid" : "other");
	else
		snprintf(code, sizeof(code), "%" PRIu32, r->code);
	if (r->subcode == XID_SUB_FATAL)
		snprintf(sub, sizeof(sub), ".fatal");
	else if (r->subcode != XID_SUB_ANY)
		snprintf(sub, sizeof(sub), ".%" PRIu32, r->subcode);
	snprintf(buf, size, "%s%s", code, sub);
}

int xid_name_parse(const char *text, uint32_t *ret_code, uint32_t *ret_subcode)
{
	const char *dot = strchr(text, '.');
	uint32_t code, subcode = XID_SUB_ANY;
	char head[16];

	if ((dot ? (size_t)(dot - text) : strlen(text)) >= sizeof(head))
		return -EINVAL;
	snprintf(head, sizeof(head), "%.*s", dot ? (int)(dot - text) : 15, text);
	if (parse_code(head, &code) < 0 || (dot && parse_subcode(dot + 1, &subcode) < 0))
		return -EINVAL;
	*ret_code = code;
	*ret_subcode = subcode;
	return 0;
}

const char *xid_source_next(const struct xid_row *r, const char *at, const char **ret_source,
			    size_t *ret_source_len, const char **ret_says, size_t *ret_says_len)
{
	struct span s = span_of(at ? at : r->sources), one;

	(void)span_skip(&s, "; ");
	if (s.len == 0)
		return NULL;
	one = span_until(&s, "; ");
	*ret_source = one.at;
	*ret_source_len = span_until(&one, "=").len;
	(void)span_skip(&one, "=");
	*ret_says = one.at;
	*ret_says_len = one.len;
	return s.at;
}
