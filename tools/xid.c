/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xid.c - `ckptctl xid`: what an error of a GPU means, what is done about it, who says what, and
 * which file had the last word. Reads the table that is built in and the file that overrides it;
 * asks no ckptd. One thread.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "detect/xid_policy.h"
#include "tools/ctl.h"
#include "tools/print.h"

#define OVERRIDES "/etc/ckptd/xid.tsv"

/* ---- Reading ---- */

static int read_whole(int fd, const char *path, char *text, size_t *ret_len, struct err *e)
{
	size_t len = 0;

	for (;;) {
		ssize_t r = read(fd, text + len, XID_TEXT_BYTES_MAX + 1 - len);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return err_code(e, -errno, "read the table of Xids '%.200s'", path);
		len += (size_t)r;
		if (r == 0 || len > XID_TEXT_BYTES_MAX)
			break;
	}
	*ret_len = len; /* one too many is refused by who reads it */
	return 0;
}

/* Nothing is there: 0, unless the file was asked for. */
static int add_file(struct xid_policy *p, const char *path, bool asked, struct err *e)
{
	CLEANUP_FREE char *text = NULL;
	size_t len = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), r;

	if (fd < 0 && errno == ENOENT && !asked)
		return 0;
	if (fd < 0)
		return err_code(e, -errno, "open the table of Xids '%.200s'", path);
	text = alloc_zero(XID_TEXT_BYTES_MAX + 1);
	r = text ? read_whole(fd, path, text, &len, e)
		 : err_code(e, -ENOMEM, "read the table of Xids '%.200s'", path);
	close(fd);
	return r < 0 ? r : xid_policy_add(p, path, text, len, e);
}

static int read_policy(const struct ctl *c, struct xid_policy **ret, struct err *e)
{
	struct xid_policy *p;
	int r = xid_policy_default(&p);

	if (r < 0)
		return err_code(e, r, "read the table of Xids");
	r = add_file(p, c->table ? c->table : OVERRIDES, c->table != NULL, e);
	if (r < 0) {
		xid_policy_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

/* ---- Words ---- */

#define WORDS_SIZE 160

static const char *duration(char buf[TEXT_MAX], uint64_t ns)
{
	static const struct {
		uint64_t seconds;
		char unit;
	} units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
	uint64_t s = ns / 1000000000u;

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (s % units[i].seconds == 0 && (s || units[i].seconds == 1)) {
			snprintf(buf, TEXT_MAX, "%" PRIu64 "%c", s / units[i].seconds,
				 units[i].unit);
			break;
		}
	return buf;
}

static const char *hold_words(char buf[TEXT_MAX], const struct xid_row *r)
{
	if (r->hold_ns == XID_STAYS)
		snprintf(buf, TEXT_MAX, "stays");
	else
		duration(buf, r->hold_ns);
	return buf;
}

static const char *again_words(char buf[WORDS_SIZE], const struct xid_row *r)
{
	char window[TEXT_MAX];

	if (r->count)
		snprintf(buf, WORDS_SIZE, "%" PRIu32 "%s in %s: %s", r->count,
			 r->jobs ? " jobs" : "", duration(window, r->window_ns),
			 verdict_action_word(r->then));
	else
		snprintf(buf, WORDS_SIZE, "-");
	return buf;
}

static const char *with_words(char buf[WORDS_SIZE], const struct xid_row *r)
{
	size_t n = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; i < r->n_with && n < WORDS_SIZE; i++) {
		const struct xid_with *w = &r->with[i];
		char code[TEXT_MAX] = "another";

		if (w->code != XID_WITH_ANY)
			snprintf(code, sizeof(code), "%" PRIu32, w->code);
		n += (size_t)snprintf(buf + n, WORDS_SIZE - n, "%s%s: %s", i ? ", " : "", code,
				      verdict_action_word(w->action));
	}
	return buf;
}

static bool overridden(const struct xid_row *r)
{
	return r->file > 0;
}

/* ---- Rows as JSON ---- */

static json_t *sources_json(const struct xid_row *r)
{
	const char *at = NULL, *name, *says;
	json_t *list = json_array();
	size_t name_len, says_len;

	while ((at = xid_source_next(r, at, &name, &name_len, &says, &says_len)))
		json_array_append_new(list, json_pack("{s:s%, s:s%}", "name", name, name_len,
						      "says", says, says_len));
	return list;
}

static json_t *with_json(const struct xid_row *r)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < r->n_with; i++)
		json_array_append_new(list,
				      json_pack("{s:o, s:s}", "code",
						r->with[i].code == XID_WITH_ANY
							? json_null()
							: json_integer(r->with[i].code),
						"action", verdict_action_word(r->with[i].action)));
	return list;
}

static json_t *row_json(const struct xid_policy *p, const struct xid_row *r)
{
	char name[TEXT_MAX];
	json_t *o;

	xid_row_name(r, name, sizeof(name));
	o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b}", "xid", name, "meaning",
		      r->meaning, "action", verdict_action_word(r->action), "severity",
		      xid_severity_word(r->severity), "scope", xid_scope_word(r->scope), "class",
		      verdict_class_word(r->class), "file", xid_policy_file(p, r->file),
		      "overridden", overridden(r));
	json_object_set_new(o, "count", r->count ? json_integer(r->count) : json_null());
	json_object_set_new(o, "different_jobs", json_boolean(r->jobs));
	json_object_set_new(o, "window_ns",
			    r->count ? json_integer((json_int_t)r->window_ns) : json_null());
	json_object_set_new(o, "then",
			    r->count ? json_string(verdict_action_word(r->then)) : json_null());
	json_object_set_new(o, "hold_ns",
			    r->hold_ns == XID_STAYS ? json_null()
						    : json_integer((json_int_t)r->hold_ns));
	json_object_set_new(o, "with", with_json(r));
	json_object_set_new(o, "conflict", r->conflict[0] ? json_string(r->conflict) : json_null());
	json_object_set_new(o, "sources", sources_json(r));
	return o;
}

/* ---- Rows for people ---- */

static const char *scope_words(enum xid_scope s)
{
	switch (s) {
	case XID_OF_APP:
		return "the process alone";
	case XID_OF_GPU:
		return "the GPU";
	case XID_OF_NODE:
		break;
	}
	return "the node";
}

static const char *severity_words(enum xid_severity s)
{
	return s >= XID_CRITICAL ? "an alarm" : "a note";
}

static void print_sources(const struct xid_row *r)
{
	const char *at = NULL, *name, *says;
	const char *head = "sources";
	size_t name_len, says_len;

	while ((at = xid_source_next(r, at, &name, &name_len, &says, &says_len))) {
		say("%-10s %-17.*s  %.*s", head, (int)name_len, name, (int)says_len, says);
		head = "";
	}
}

static void print_row(const struct xid_policy *p, const struct xid_row *r)
{
	char name[TEXT_MAX], text[TEXT_MAX], words[WORDS_SIZE];

	xid_row_name(r, name, sizeof(name));
	say("%s %s: %s", r->code >= XID_CODE_SXID ? "SXid" : "Xid", name, r->meaning);
	say("%-10s %s", "advice", verdict_action_word(r->action));
	say("%-10s %s, %s", "severity", xid_severity_word(r->severity),
	    severity_words(r->severity));
	say("%-10s %s, %s", "concerns", scope_words(r->scope), verdict_class_word(r->class));
	if (r->n_with)
		say("%-10s %s", "with", with_words(words, r));
	if (r->count)
		say("%-10s %s", "again", again_words(words, r));
	if (r->hold_ns == XID_STAYS)
		say("%-10s not by time: after a reset, or 'ckptctl clear'", "forgiven");
	else
		say("%-10s %s after the last one", "forgiven", duration(text, r->hold_ns));
	if (r->conflict[0])
		say("%-10s %s", "disagree", r->conflict);
	print_sources(r);
	if (overridden(r))
		say("%-10s %s, line %" PRIu32, "overridden", xid_policy_file(p, r->file), r->line);
}

static int print_all(const struct ctl *c, const struct xid_policy *p)
{
	struct table *t = table_new("XID ACTION SEVERITY SCOPE AGAIN HOLD NOTES MEANING");
	char name[TEXT_MAX], hold[TEXT_MAX], again[WORDS_SIZE];

	for (size_t i = 0; i < xid_policy_size(p); i++) {
		const struct xid_row *r = xid_policy_at(p, i);

		xid_row_name(r, name, sizeof(name));
		if (c->talk < 0) {
			say("%s", name);
			continue;
		}
		table_cell(t, "%s", name);
		table_cell(t, "%s", verdict_action_word(r->action));
		table_cell(t, "%s", xid_severity_word(r->severity));
		table_cell(t, "%s", xid_scope_word(r->scope));
		table_cell(t, "%s", again_words(again, r));
		table_cell(t, "%s", hold_words(hold, r));
		table_cell(t, "%s",
			   overridden(r)    ? "overridden"
			   : r->conflict[0] ? "disputed"
					    : "-");
		table_cell(t, "%.*s", c->talk > 0 ? 1000 : 60, r->meaning);
	}
	return c->talk < 0 ? table_drop(t) : table_end(t);
}

/* ---- The verb ---- */

/* The rows of one code, or the one that stands for it. */
struct wanted {
	const struct xid_row *first;
	size_t n;
};

static int find_rows(const struct xid_policy *p, const char *name, struct wanted *ret,
		     struct err *e)
{
	uint32_t code, subcode;

	if (xid_name_parse(name, &code, &subcode) < 0)
		return err_set(e, -EINVAL,
			       "'%.40s' is no Xid: such as 79, 149.4, 145.fatal, sxid or "
			       "other",
			       name);
	ret->first = xid_policy_find(p, code, subcode, subcode == XID_SUB_FATAL);
	ret->n = 1;
	if (subcode != XID_SUB_ANY || ret->first->code != code)
		return 0;
	for (size_t i = 0, n = 0; i < xid_policy_size(p); i++) {
		if (xid_policy_at(p, i)->code != code)
			continue;
		if (n++ == 0)
			ret->first = xid_policy_at(p, i);
		ret->n = n;
	}
	return 0;
}

static int print_wanted(const struct ctl *c, const struct xid_policy *p, const struct wanted *w)
{
	uint32_t code, subcode;

	if (xid_name_parse(c->args[0], &code, &subcode) == 0 && w->first->code != code &&
	    c->talk >= 0)
		say("%s %s is not in the table; for such it advises:",
		    code > XID_CODE_SXID ? "SXid" : "Xid", c->args[0]);
	for (size_t i = 0; i < w->n; i++) {
		if (i > 0)
			say("%s", "");
		print_row(p, w->first + i);
	}
	return 0;
}

static void print_document(const struct xid_policy *p, const struct wanted *w)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < w->n; i++)
		json_array_append_new(rows, row_json(p, w->first + i));
	print_json(json_pack("{s:i, s:s, s:o}", "schema", 2, "source", "files", "rows", rows));
}

int verb_xid(const struct ctl *c, struct err *e)
{
	struct xid_policy *p = NULL;
	struct wanted w;
	int r = read_policy(c, &p, e);

	if (r < 0)
		return r;
	w = (struct wanted){xid_policy_at(p, 0), xid_policy_size(p)};
	if (c->n_args > 0)
		r = find_rows(p, c->args[0], &w, e);
	if (r == 0 && c->json)
		print_document(p, &w);
	else if (r == 0)
		r = c->n_args > 0 ? print_wanted(c, p, &w) : print_all(c, p);
	xid_policy_free(p);
	return r;
}
