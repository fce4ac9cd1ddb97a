/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.c - `ckptctl events`: what happened on this node, as ckptd has kept it; and what happens.
 */
#include <config.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "tools/connect.h"
#include "tools/ctl.h"
#include "tools/document.h"
#include "tools/node_history.h"
#include "tools/print.h"

#define FOLLOW_SHOWS 10 /* of what was before */

/* ---- --since ---- */

static uint64_t now_s(void)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec;
}

/* "90s", "10m", "2h", "7d": so long ago. */
static bool parse_ago(const char *text, uint64_t *ret_ns)
{
	static const char units[] = "smhd";
	static const uint64_t seconds[] = {1, 60, 3600, 86400};
	uint64_t now = now_s(), v;
	const char *unit;
	char *end;

	errno = 0;
	v = strtoull(text, &end, 10);
	unit = *end ? strchr(units, *end) : NULL;
	if (!isdigit((unsigned char)text[0]) || !unit || end[1] || errno)
		return false;
	v = v > now / seconds[unit - units] ? now : v * seconds[unit - units];
	*ret_ns = (now - v) * 1000000000u;
	return true;
}

/* "2026-11-22", "2026-11-22 10:00", "2026-11-22T10:00:05": local time. */
static bool parse_day(const char *text, uint64_t *ret_ns)
{
	static const char *const forms[] = {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S",
					    "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d"};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		struct tm tm = {.tm_isdst = -1};
		const char *end = strptime(text, forms[i], &tm);
		time_t t;

		if (!end || *end)
			continue;
		t = mktime(&tm);
		if (t < 0)
			return false;
		*ret_ns = (uint64_t)t * 1000000000u;
		return true;
	}
	return false;
}

/* "10:00", "10:00:05": the latest such time that is over, local. */
static bool parse_clock(const char *text, uint64_t *ret_ns)
{
	static const char *const forms[] = {"%H:%M:%S", "%H:%M"};
	time_t now = (time_t)now_s();

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		struct tm tm, of = {0};
		const char *end = strptime(text, forms[i], &of);
		time_t t;

		if (!end || *end || !localtime_r(&now, &tm))
			continue;
		tm.tm_hour = of.tm_hour;
		tm.tm_min = of.tm_min;
		tm.tm_sec = of.tm_sec;
		tm.tm_isdst = -1;
		t = mktime(&tm);
		if (t > now) {
			tm.tm_mday--;
			tm.tm_isdst = -1;
			t = mktime(&tm);
		}
		if (t < 0)
			return false;
		*ret_ns = (uint64_t)t * 1000000000u;
		return true;
	}
	return false;
}

static int parse_since(const char *text, struct admin_question *q, struct err *e)
{
	char *end;

	errno = 0;
	q->since = strtoull(text, &end, 10);
	if (isdigit((unsigned char)text[0]) && !*end && !errno && q->since > 0) {
		q->since--; /* that one too */
		return 0;
	}
	q->since = 0;
	if (parse_ago(text, &q->since_ns) || parse_day(text, &q->since_ns) ||
	    parse_clock(text, &q->since_ns))
		return 0;
	return err_set(e, -EINVAL,
		       "--since '%.40s': give an event's number, how long ago (90s, 10m, 2h, 7d), "
		       "or a time such as '10:00' or '2026-11-22 10:00'",
		       text);
}

/* ---- For people ---- */

static void print_event(const struct ctl *c, const json_t *o)
{
	char when[TEXT_MAX];
	char *text;

	if (c->json) {
		text = json_dumps(o, JSON_COMPACT);
		puts(text);
		alloc_free(text);
	} else if (c->talk >= 0) {
		say("%s  %-5" PRIu64 " %s", text_time(when, doc_number(o, "time_ns")),
		    doc_number(o, "seq"), doc_text(o, "words"));
	}
	if (!c->json && c->talk > 0 && doc_text(o, "reason")[0])
		say("%28s%s", "", doc_text(o, "reason"));
}

static int ask(struct connection *conn, const struct admin_question *q, json_t **ret, struct err *e)
{
	int r = connection_ask(conn, q, ret, e);

	if (r == 0 && !json_is_array(json_object_get(*ret, "events"))) {
		json_decref(*ret);
		*ret = NULL;
		return err_set(e, CKPT_EPROTO,
			       "ckptd's answer has no list of events: are ckptd "
			       "and ckptctl of one version?");
	}
	return r;
}

/* The last of them. */
static void print_events(const struct ctl *c, const json_t *doc, size_t most,
			 struct admin_question *q)
{
	const json_t *list = json_object_get(doc, "events");
	uint64_t next = doc_number(doc, "next");
	size_t n = json_array_size(list);

	for (size_t i = n > most ? n - most : 0; i < n; i++)
		print_event(c, json_array_get(list, i));
	fflush(stdout);
	if (next > 0 && next - 1 > q->since)
		q->since = next - 1;
}

/* Until ckptd ends, or somebody ends this; a question that waits costs nobody anything. */
static int follow(const struct ctl *c, struct connection *conn, struct admin_question *q,
		  struct err *e)
{
	json_t *doc = NULL;
	int r;

	q->timeout_ms = -1;
	for (;;) {
		r = ask(conn, q, &doc, e);
		if (r < 0)
			return r;
		print_events(c, doc, c->since || q->wait ? SIZE_MAX : FOLLOW_SHOWS, q);
		json_decref(doc);
		if (ferror(stdout))
			return EXIT_FINE; /* nobody reads any more */
		q->wait = true;
	}
}

static int events_offline(const struct ctl *c, struct admin_question *q, struct err *e)
{
	json_t *doc = NULL;
	int r;

	if (c->follow)
		return err_set(e, -EINVAL,
			       "--follow waits for what a running ckptd says: leave out --data, or "
			       "look at what its files have without --follow");
	r = node_history_events(c, q->since, q->since_ns, &doc, e);
	if (r < 0)
		return r;
	if (c->json) {
		print_json(doc);
	} else {
		print_events(c, doc, SIZE_MAX, q);
		json_decref(doc);
	}
	return EXIT_FINE;
}

int verb_events(const struct ctl *c, struct err *e)
{
	struct admin_question q = {.verb = CKPT__ADMIN__VERB__EVENTS};
	struct connection *conn = NULL;
	json_t *doc = NULL;
	int r = c->since ? parse_since(c->since, &q, e) : 0;

	if (r == 0 && ctl_offline(c))
		return events_offline(c, &q, e);
	if (r == 0)
		r = connection_open(c->socket, &conn, e);
	if (r == 0 && c->follow) {
		r = follow(c, conn, &q, e);
	} else if (r == 0) {
		r = ask(conn, &q, &doc, e);
		if (r == 0 && c->json) {
			json_object_set_new(doc, "source", json_string("daemon"));
			print_json(json_incref(doc));
		} else if (r == 0) {
			print_events(c, doc, SIZE_MAX, &q);
		}
	}
	json_decref(doc);
	connection_close(conn);
	return r;
}
