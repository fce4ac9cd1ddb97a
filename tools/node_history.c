/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_history.c - see node_history.h.
 *
 * A verdict stands, as far as the files say, from its event `raised` or `updated` until `cleared`,
 * within one life of ckptd: each life begins with `started` and numbers its verdicts itself. What
 * only the memory of ckptd has is empty or null: what the detector knows, alarms that were not
 * kept, the node's admission.
 *
 * Failure modes: a line that is not an event, or is torn, is passed over, as ckptd does.
 */
#include <config.h>

#include "tools/node_history.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "detect/goodput_json.h"
#include "storage/node_files.h"
#include "storage/paths.h"
#include "tools/document.h"
#include "tools/files.h"
#include "tools/job_name.h"

#define EVENTS_SHOWN 20u /* of `why`, twice: of all, and of what stands accused */
#define WORDS_SIZE   256u

/* ---- events ---- */

static void take_line(json_t *list, uint64_t *next, const char *line, size_t len)
{
	json_t *o = len > 0 && len < EVENTS_LINE_MAX
			    ? json_loadb(line, len, JSON_REJECT_DUPLICATES, NULL)
			    : NULL;

	if (json_is_object(o) && json_is_integer(json_object_get(o, "seq")) &&
	    json_is_integer(json_object_get(o, "time_ns")) && doc_number(o, "seq") >= *next) {
		*next = doc_number(o, "seq") + 1;
		json_array_append(list, o);
	}
	json_decref(o);
}

static int read_events_file(struct data *d, const char *name, json_t *list, uint64_t *next,
			    struct err *e)
{
	CLEANUP_FREE void *bytes = NULL;
	size_t len = 0;
	/* A batch may have made it longer than it is allowed to grow. */
	int r = store_read_file(&d->store, name, 2 * EVENTS_FILE_BYTES, &bytes, &len);

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return err_code(e, r, "cannot read '%s' of '%.200s'", name, d->path);
	for (size_t at = 0; at < len;) {
		const char *line = (const char *)bytes + at;
		const char *end = memchr(line, '\n', len - at);
		size_t n = end ? (size_t)(end - line) : len - at;

		take_line(list, next, line, n);
		at += n + 1;
	}
	return 0;
}

/* The newest EVENTS_KEPT, oldest first, as a ckptd that starts takes them over. */
static int read_events(struct data *d, json_t **ret, uint64_t *ret_next, struct err *e)
{
	json_t *list = json_array();
	int r;

	*ret_next = 1;
	r = read_events_file(d, EVENTS_FILE_OLD, list, ret_next, e);
	if (r == 0)
		r = read_events_file(d, EVENTS_FILE, list, ret_next, e);
	if (r < 0) {
		json_decref(list);
		return r;
	}
	while (json_array_size(list) > EVENTS_KEPT)
		json_array_remove(list, 0);
	*ret = list;
	return 0;
}

int node_history_events(const struct ctl *c, uint64_t since, uint64_t since_ns, json_t **ret,
			struct err *e)
{
	json_t *all = NULL, *list, *o;
	uint64_t next = 0;
	struct data d;
	size_t i;
	int r = data_open(c->data, &d, e);

	if (r < 0)
		return r;
	r = read_events(&d, &all, &next, e);
	data_close(&d);
	if (r < 0)
		return r;
	list = json_array();
	json_array_foreach(all, i, o)
	{
		if (doc_number(o, "seq") > since && doc_number(o, "time_ns") >= since_ns)
			json_array_append(list, o);
	}
	json_decref(all);
	*ret = json_pack("{s:i, s:s, s:o, s:i, s:o}", "schema", 2, "source", "files", "next",
			 doc_count(next), "dropped", 0, "events", list);
	return 0;
}

/* ---- why: the subject ---- */

/* Whom a person asks about, in the words of events; "" : all. */
struct asked {
	char words[WORDS_SIZE];
	char job[WORDS_SIZE]; /* of a rank: its job's words; else "" */
	bool of_job;          /* a job or a rank, of: */
	uint64_t uid;
	bool node;
};

struct node_history {
	struct data data;
	json_t *events;
	uint64_t next;
	const char *node; /* the newest that events name; "": none */
};

static const char *node_of(const json_t *events)
{
	for (size_t i = json_array_size(events); i-- > 0;) {
		const char *name = doc_text(json_array_get(events, i), "node");

		if (name[0])
			return name;
	}
	return "";
}

/* A device by its name, as events have it. */
static bool find_device(const struct node_history *k, const char *text, struct asked *a)
{
	json_t *o;
	size_t i;

	json_array_foreach(k->events, i, o)
	{
		const json_t *s = json_object_get(o, "subject");

		if (!doc_is(s, "name", text))
			continue;
		snprintf(a->words, sizeof(a->words), "%s", doc_text(s, "words"));
		return true;
	}
	return false;
}

/* JOB, or JOB:RANK. */
static int find_job(struct node_history *k, const char *text, struct asked *a, struct err *e)
{
	const char *colon = strrchr(text, ':');
	struct data_job *j;
	char name[WORDS_SIZE];
	size_t len = colon ? (size_t)(colon - text) : strlen(text);
	int r;

	if (len >= sizeof(name) ||
	    (colon && (!colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1))))
		return err_set(e, CKPT_ENOTFOUND, "no such job");
	snprintf(name, sizeof(name), "%.*s", (int)len, text);
	r = data_read_jobs(&k->data, name, e);
	if (r < 0)
		return r;
	r = job_name_only(&k->data, name, &j, e);
	if (r < 0)
		return r;
	a->of_job = true;
	a->uid = j->uid;
	snprintf(a->job, sizeof(a->job), "job '%.64s'", j->name);
	if (!colon) {
		memcpy(a->words, a->job, sizeof(a->words));
		a->job[0] = '\0';
	} else {
		snprintf(a->words, sizeof(a->words), "rank %.10s of job '%.64s'", colon + 1,
			 j->name);
	}
	return 0;
}

static int find_subject(struct node_history *k, const char *text, struct asked *a, struct err *e)
{
	int r;

	*a = (struct asked){0};
	if (!text[0])
		return 0;
	if (strcmp(text, "node") == 0 || strcmp(text, k->node) == 0) {
		a->node = true;
		snprintf(a->words, sizeof(a->words), "node '%.64s'", k->node);
		return 0;
	}
	if (find_device(k, text, a))
		return 0;
	r = find_job(k, text, a, e);
	if (r != CKPT_ENOTFOUND)
		return r;
	return err_set(e, r,
		       "nothing in '%.150s' is called '%.60s': name its node ('%.40s'), a job, a "
		       "rank as JOB:RANK, or a GPU, network port or disk that its events name",
		       k->data.path, text, k->node);
}

/* As ckptd has it: a node holds its devices and ranks, and no job; a job its ranks. */
static bool holds(const struct asked *a, const json_t *event)
{
	const json_t *uid = json_object_get(event, "uid");
	const char *words = doc_text(json_object_get(event, "subject"), "words");
	size_t len = strlen(a->words), n = strlen(words);

	if (!a->words[0])
		return true;
	if (!words[0])
		return false;
	if (a->node)
		return strncmp(words, "job '", 5) != 0;
	if (a->of_job && uid && doc_number(event, "uid") != a->uid)
		return false;
	return strcmp(words, a->words) == 0 ||
	       (a->of_job && !a->job[0] && n > len && strcmp(words + n - len, a->words) == 0);
}

/* ---- why: the answer ---- */

/* The verdict alone, as an answer of `why` has it. */
static json_t *verdict_of(const json_t *event)
{
	static const char *const of_event[] = {"seq",  "time_ns", "kind", "severity",
					       "node", "words",   "uid"};
	json_t *v = json_copy((json_t *)event);

	for (size_t i = 0; i < sizeof(of_event) / sizeof(of_event[0]); i++)
		json_object_del(v, of_event[i]);
	return v;
}

/* The newest state of each verdict of the last life of ckptd, if it stands; newest first. */
static json_t *standing_of(const struct node_history *k, const struct asked *a)
{
	json_t *list = json_array(), *over = json_object();
	char key[24];

	for (size_t i = json_array_size(k->events); i-- > 0;) {
		json_t *o = json_array_get(k->events, i);

		if (doc_is(o, "kind", "started"))
			break;
		if (!doc_is(o, "kind", "verdict"))
			continue;
		snprintf(key, sizeof(key), "%" PRIu64, doc_number(o, "verdict"));
		if (json_object_get(over, key))
			continue;
		json_object_set_new(over, key, json_true());
		if (!doc_is(o, "state", "cleared") && holds(a, o))
			json_array_append_new(list, verdict_of(o));
	}
	json_decref(over);
	return list;
}

static bool stands_accused(const json_t *verdicts, const json_t *event)
{
	const char *words = doc_text(json_object_get(event, "subject"), "words");
	json_t *v;
	size_t i;

	json_array_foreach(verdicts, i, v)
	{
		if (words[0] && doc_is(json_object_get(v, "subject"), "words", words))
			return true;
	}
	return false;
}

/* The newest EVENTS_SHOWN about those that stand accused, and as many of the others. */
static json_t *events_of(const struct node_history *k, const struct asked *a,
			 const json_t *verdicts, uint64_t *ret_more)
{
	unsigned left[2] = {EVENTS_SHOWN, EVENTS_SHOWN};
	json_t *list = json_array();

	*ret_more = 0;
	for (size_t i = json_array_size(k->events); i-- > 0;) {
		json_t *o = json_array_get(k->events, i);
		const char *words = doc_text(json_object_get(o, "subject"), "words");
		/* What is done for a rank is done to its job, and told of that. */
		bool of_its_job =
			a->job[0] && strcmp(words, a->job) == 0 && doc_number(o, "uid") == a->uid;
		unsigned *room = &left[!of_its_job && stands_accused(verdicts, o)];

		if (!of_its_job && !holds(a, o))
			continue;
		if (*room > 0) {
			(*room)--;
			json_array_insert(list, 0, o);
		} else {
			(*ret_more)++;
		}
	}
	return list;
}

/* The marks file: what ckptd would take over at its start. */
static void add_marks(struct node_history *k, const struct asked *a, json_t *doc)
{
	CLEANUP_FREE void *bytes = NULL;
	json_t *marks = NULL, *o;
	size_t len = 0, i;

	if (store_read_file(&k->data.store, MARKS_FILE, MARKS_FILE_BYTES, &bytes, &len) == 0)
		marks = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, NULL);
	json_array_foreach(json_object_get(marks, "suspects"), i, o)
	{
		if (!doc_is(o, "words", a->words) || (a->of_job && doc_number(o, "uid") != a->uid))
			continue;
		json_object_set(doc, "suspect", json_object_get(o, "reason"));
	}
	o = json_object_get(marks, "drained");
	if (json_is_object(o))
		json_object_set(doc, "drained", o);
	json_decref(marks);
}

static json_t *subject_json(const struct node_history *k, const struct asked *a)
{
	json_t *o;

	if (!a->words[0])
		return json_null();
	for (size_t i = json_array_size(k->events); i-- > 0;) {
		o = json_object_get(json_array_get(k->events, i), "subject");
		if (doc_is(o, "words", a->words))
			return json_incref(o);
	}
	return json_pack("{s:s, s:s}", "kind",
			 a->node     ? "node"
			 : a->job[0] ? "rank"
				     : "job",
			 "words", a->words);
}

static json_t *why_document(struct node_history *k, const struct asked *a)
{
	json_t *verdicts = standing_of(k, a), *doc, *events;
	uint64_t more = 0;

	events = events_of(k, a, verdicts, &more);
	doc = json_pack("{s:i, s:s, s:s, s:o, s:o, s:i, s:o, s:o, s:[], s:n, s:n, s:n, s:n}",
			"schema", 2, "source", "files", "node", k->node, "subject",
			subject_json(k, a), "verdicts", verdicts, "verdicts_more", 0, "events",
			events, "events_more", doc_count(more), "known", "suspect", "drained",
			"admission", "not_kept");
	add_marks(k, a, doc);
	return doc;
}

int node_history_why(const struct ctl *c, const char *text, json_t **ret, struct err *e)
{
	struct node_history k = {0};
	struct asked a;
	int r = data_open(c->data, &k.data, e);

	if (r < 0)
		return r;
	r = read_events(&k.data, &k.events, &k.next, e);
	if (r == 0) {
		k.node = node_of(k.events);
		r = find_subject(&k, text, &a, e);
	}
	if (r == 0)
		*ret = why_document(&k, &a);
	json_decref(k.events);
	data_close(&k.data);
	return r;
}

/* ---- goodput ---- */

static int read_goodput(struct data *d, const struct data_job *j, json_t **ret, struct err *e)
{
	char dir[DISK_PATH_MAX + 1], path[DISK_PATH_MAX + 16];
	CLEANUP_FREE void *bytes = NULL;
	struct goodput g;
	uint64_t wall_ns;
	json_t *doc = NULL;
	size_t len = 0;
	int r;

	path_job(dir, &j->id);
	snprintf(path, sizeof(path), "%s/" GOODPUT_FILE, dir);
	r = store_read_file(&d->store, path, GOODPUT_FILE_BYTES, &bytes, &len);
	if (r == -ENOENT)
		return err_set(e, CKPT_ENOTFOUND,
			       "no ckptd has kept what the time of job '%s' went to: it has not "
			       "trained in '%.150s'",
			       j->name, d->path);
	if (r < 0)
		return err_code(e, r, "cannot read '%s' of '%.150s'", path, d->path);
	doc = json_loadb(bytes, len, JSON_REJECT_DUPLICATES, NULL);
	if (!doc || !goodput_json_take(doc, &g, &wall_ns))
		r = err_set(e, CKPT_ECORRUPT,
			    "'%s' of '%.150s' is damaged: ckptd counts anew from its next start",
			    path, d->path);
	json_decref(doc);
	if (r == 0)
		*ret = json_pack("{s:i, s:s, s:s, s:o, s:o}", "schema", 2, "source", "files", "job",
				 j->name, "id", doc_hex(j->id.b, 16), "goodput",
				 goodput_json_answer(&g));
	return r;
}

int node_history_goodput(const struct ctl *c, const char *job, json_t **ret, struct err *e)
{
	struct data_job *j;
	struct data d;
	int r = data_open(c->data, &d, e);

	if (r < 0)
		return r;
	r = data_read_jobs(&d, job, e);
	if (r == 0)
		r = job_name_only(&d, job, &j, e);
	if (r == 0)
		r = read_goodput(&d, j, ret, e);
	data_close(&d);
	return r;
}
