/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marks.c - see marks.h.
 */
#include <config.h>

#include "ckptd/marks.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"

/* ---- JSON ---- */

static json_t *mark_json(const struct mark *k, bool whole)
{
	json_t *o = json_pack("{s:s, s:s, s:I}", "words", k->words, "reason", k->reason, "since_ns",
			      (json_int_t)k->since_ns);

	if (o && whole && k->uid != EVENT_FOR_ALL)
		json_object_set_new(o, "uid", json_integer(k->uid));
	return o;
}

json_t *marks_suspects_json(const struct marks *m, uint32_t uid, bool sees_all)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < m->n; i++) {
		const struct mark *k = &m->suspects[i];

		if (sees_all || k->uid == EVENT_FOR_ALL || k->uid == uid)
			json_array_append_new(list, mark_json(k, false));
	}
	return list;
}

json_t *marks_drain_json(const struct marks *m)
{
	return m->drained ? mark_json(&m->drain, false) : json_null();
}

/* The files may be anybody's: only text of the right size is taken. */
static bool take_mark(const json_t *o, struct mark *k)
{
	const char *words = json_string_value(json_object_get(o, "words"));
	const char *reason = json_string_value(json_object_get(o, "reason"));
	json_int_t since = json_integer_value(json_object_get(o, "since_ns"));
	const json_t *uid = json_object_get(o, "uid");

	if (!words || !reason || !words[0] || strlen(words) >= sizeof(k->words) ||
	    strlen(reason) >= sizeof(k->reason) || since < 0)
		return false;
	*k = (struct mark){.since_ns = (uint64_t)since, .uid = EVENT_FOR_ALL};
	strcpy(k->words, words);
	strcpy(k->reason, reason);
	if (json_is_integer(uid) && json_integer_value(uid) >= 0 &&
	    json_integer_value(uid) < EVENT_FOR_ALL)
		k->uid = (uint32_t)json_integer_value(uid);
	return true;
}

void marks_read(struct marks *m, struct store *s)
{
	CLEANUP_FREE void *bytes = NULL;
	size_t len = 0, i;
	json_t *doc, *o;

	if (store_read_file(s, MARKS_FILE, MARKS_FILE_BYTES, &bytes, &len) < 0)
		return;
	doc = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, NULL);
	json_array_foreach(json_object_get(doc, "suspects"), i,
			   o) if (m->n < MARKS_MAX && take_mark(o, &m->suspects[m->n])) m->n++;
	m->drained = take_mark(json_object_get(doc, "drained"), &m->drain);
	json_decref(doc);
}

void marks_take(struct marks *m, const struct marks *read)
{
	for (uint32_t i = 0; i < read->n && m->n < MARKS_MAX; i++)
		if (!marks_find(m, read->suspects[i].words, read->suspects[i].uid))
			m->suspects[m->n++] = read->suspects[i];
	if (read->drained && !m->drained) {
		m->drained = true;
		m->drain = read->drain;
	}
}

/* ---- Writing ---- */

/* On a worker. */
static void write_run(struct work *w)
{
	struct marks *m = container_of(w, struct marks, work);

	w->status = store_publish_file(&m->node->store, "", MARKS_FILE, m->bytes, m->len);
}

static void write_start(struct marks *m);

static void write_done(struct work *w)
{
	struct marks *m = container_of(w, struct marks, work);
	struct node *n = m->node;
	char line[200];

	m->busy = false;
	n->works--;
	alloc_free(m->bytes);
	m->bytes = NULL;
	if (w->status < 0) {
		snprintf(line, sizeof(line),
			 "what is suspect or drained could not be written (%s): a restart of ckptd "
			 "forgets it",
			 err_text(w->status));
		n->env.log(n->env.log_arg, 4, NULL, line);
	}
	if (m->again)
		write_start(m);
	node_stop_step(n);
}

static char *dump(const struct marks *m, size_t *ret_len)
{
	json_t *list = json_array(), *doc;
	char *bytes = NULL;

	for (uint32_t i = 0; i < m->n; i++)
		json_array_append_new(list, mark_json(&m->suspects[i], true));
	doc = json_pack("{s:o, s:o}", "suspects", list, "drained", marks_drain_json(m));
	*ret_len = doc ? json_dumpb(doc, NULL, 0, JSON_COMPACT) : 0;
	if (*ret_len)
		bytes = alloc_zero(*ret_len);
	if (bytes)
		json_dumpb(doc, bytes, *ret_len, JSON_COMPACT);
	json_decref(doc);
	return bytes;
}

static void write_start(struct marks *m)
{
	m->again = m->busy;
	if (m->busy || !m->node->store_open)
		return;
	m->bytes = dump(m, &m->len);
	if (!m->bytes)
		return;
	m->busy = true;
	m->node->works++;
	m->work.run = write_run;
	m->work.done = write_done;
	work_submit(m->node->env.workers, WORK_META, FAIR_NODE, &m->work);
}

/* ---- Marks ---- */

const struct mark *marks_find(const struct marks *m, const char *words, uint32_t uid)
{
	for (uint32_t i = 0; i < m->n; i++)
		if (m->suspects[i].uid == uid && strcmp(m->suspects[i].words, words) == 0)
			return &m->suspects[i];
	return NULL;
}

static void fill(struct marks *m, struct mark *k, const char *words, const char *reason)
{
	k->since_ns = loop_wall(m->node->env.loop);
	k->uid = EVENT_FOR_ALL;
	snprintf(k->words, sizeof(k->words), "%s", words);
	snprintf(k->reason, sizeof(k->reason), "%s", reason);
	text_clean(k->words);
	text_clean(k->reason);
}

/* A job of this uid does not fit any more. */
static bool is_full_for(const struct marks *m, uint32_t uid)
{
	uint32_t jobs = 0, own = 0;

	for (uint32_t i = 0; i < m->n; i++) {
		jobs += m->suspects[i].uid != EVENT_FOR_ALL;
		own += m->suspects[i].uid == uid;
	}
	return jobs >= MARKS_JOBS_MAX || own >= MARKS_UID_MAX;
}

uint32_t marks_of(const struct marks *m, uint32_t uid, const struct mark **ret_first)
{
	uint32_t n = 0;

	*ret_first = NULL;
	for (uint32_t i = m->n; i-- > 0;) {
		if (m->suspects[i].uid != uid && m->suspects[i].uid != EVENT_FOR_ALL)
			continue;
		*ret_first = &m->suspects[i];
		n++;
	}
	return n;
}

bool marks_add(struct marks *m, const char *words, const char *reason, uint32_t uid)
{
	if (marks_find(m, words, uid) || m->n == MARKS_MAX ||
	    (uid != EVENT_FOR_ALL && is_full_for(m, uid)))
		return false;
	fill(m, &m->suspects[m->n], words, reason);
	m->suspects[m->n++].uid = uid;
	write_start(m);
	return true;
}

bool marks_remove(struct marks *m, const char *words, uint32_t uid)
{
	struct mark *k = (struct mark *)marks_find(m, words, uid);

	if (!k)
		return false;
	m->n--;
	memmove(k, k + 1, (size_t)(&m->suspects[m->n] - k) * sizeof(*k));
	write_start(m);
	return true;
}

bool marks_drain(struct marks *m, bool on, const char *reason)
{
	if (m->drained == on)
		return false;
	m->drained = on;
	if (on)
		fill(m, &m->drain, "drained", reason);
	write_start(m);
	return true;
}

void marks_init(struct marks *m, struct node *n)
{
	*m = (struct marks){.node = n};
	list_init(&m->work.link);
}

void marks_fini(struct marks *m)
{
	alloc_free(m->bytes);
}
