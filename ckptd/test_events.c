/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happened is kept: in memory within bounds, in files over restarts, and whatever these hold.
 */
#include <config.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/disk.h"
#include "ckptd/events.h"
#include "ckptd/events_priv.h"
#include "ckptd/marks.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/watching.h"
#include "detect/sample.h"
#include "tests/lib/test.h"

static void settle(struct node_test *t)
{
	struct node *n = t->host.node;

	for (int i = 0; i < 10000 && (!events_written(n->events) || n->marks.busy); i++)
		host_turn(&t->host);
	assert_true(events_written(n->events));
}

static void post(struct node_test *t, unsigned i)
{
	events_post(t->host.node->events, EVENT_MARKED, 6 | EVENT_UNLOGGED,
		    i % 2 ? EVENT_FOR_ALL : 1000000, NULL, NULL, "%u %0500u", i, 0);
}

static json_t *answer(struct node_test *t, uint64_t since, uint32_t uid)
{
	struct events_question q = {.since = since, .uid = uid};
	json_t *doc;

	q.sees_all = uid == 0;
	doc = events_answer(t->host.node->events, &q);
	assert_non_null(doc);
	return doc;
}

static uint64_t next_of(const json_t *doc)
{
	return (uint64_t)json_integer_value(json_object_get(doc, "next"));
}

/* Numbers of those that are there rise by one up to the last. */
static void rises(const json_t *doc)
{
	const json_t *list = json_object_get(doc, "events");
	uint64_t seq = next_of(doc) - json_array_size(list);
	json_t *o;
	size_t i;

	json_array_foreach(list, i, o)
		assert_int_equal(json_integer_value(json_object_get(o, "seq")), seq + i);
}

static void test_bounded_and_kept(void **state)
{
	struct node_test *t = *state;
	json_t *doc;
	uint64_t next;

	begin_node(t);
	for (unsigned i = 0; i < 6000; i++) {
		post(t, i);
		if (i % 100 == 0)
			settle(t);
	}
	settle(t);
	assert_int_equal(count_files(t, "events.old"), 1);
	assert_true(file_bytes(t, "events.old") < 2 * EVENTS_FILE_BYTES);
	assert_true(file_bytes(t, "events") < 2 * EVENTS_FILE_BYTES);
	doc = answer(t, 0, 0);
	assert_int_equal(json_array_size(json_object_get(doc, "events")), EVENTS_KEPT);
	rises(doc);
	next = next_of(doc);
	assert_true(next > 6000);
	json_decref(doc);
	end_node(t);
	begin_node(t);
	doc = answer(t, 0, 0);
	rises(doc);
	assert_int_equal(next_of(doc), next + 1); /* "ckptd is ready" */
	assert_int_equal(json_array_size(json_object_get(doc, "events")), EVENTS_KEPT);
	json_decref(doc);
	/* Half of them are of a job of another user. */
	doc = answer(t, next - 101, 77);
	assert_int_equal(json_array_size(json_object_get(doc, "events")), 51);
	json_decref(doc);
}

/* Who makes many pushes out their own: those of others stay, also for an answer that is being taken
 * when the one that comes next goes. */
static void test_one_user_pushes_out_its_own(void **state)
{
	enum { FEW = 20 };
	struct node_test *t = *state;
	struct events_taken x = {.q = {.uid = 1001}};
	unsigned left = EVENTS_KEPT / 2, all = 4 * EVENTS_KEPT;
	json_t *doc;

	begin_node(t);
	for (unsigned i = 0; i < FEW; i++)
		events_post(t->host.node->events, EVENT_MARKED, 6 | EVENT_UNLOGGED, 1001, NULL,
			    NULL, "%u", i);
	for (unsigned i = 0; i < EVENTS_KEPT; i++)
		post(t, 0);
	assert_int_equal(events_take(t->host.node->events, &x, &left), 0);
	for (unsigned i = 0; i < EVENTS_KEPT; i++)
		post(t, 0);
	assert_int_equal(events_take(t->host.node->events, &x, &all), 1);
	for (size_t i = 0, mine = 0; i < x.n; i++) {
		mine += x.found[i]->uid == 1001;
		if (i + 1 == x.n)
			assert_int_equal(mine, FEW);
	}
	assert_true(x.n >= FEW);
	events_let_go(&x);
	doc = answer(t, 0, 0);
	assert_int_equal(json_array_size(json_object_get(doc, "events")), EVENTS_KEPT);
	json_decref(doc);
}

static void put_file(struct node_test *t, const char *name, const char *text)
{
	char path[600];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", t->dir, name);
	f = fopen(path, "we");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static enum events_share share(void *arg, const char *words, uint32_t uid)
{
	(*(unsigned *)arg)++;
	assert_int_equal(uid, EVENT_FOR_ALL);
	if (!words)
		return EVENTS_NONE;
	return strcmp(words, "accused") == 0 ? EVENTS_FIRST : EVENTS_OTHER;
}

static void post_about(struct node_test *t, const char *words, uint32_t uid)
{
	events_post(t->host.node->events, EVENT_MARKED, 6 | EVENT_UNLOGGED, uid,
		    words ? json_pack("{s:s}", "words", words) : NULL, NULL, "something");
}

/* What came lately does not push out what led to an accusation; both are bounded. */
static void test_about(void **state)
{
	struct node_test *t = *state;
	struct events_taken taken = {.q = {.uid = 1000}};
	unsigned asked = 0, accused = 0, points = UINT_MAX;
	json_int_t last = 0;
	json_t *list, *o;
	size_t i, more;

	begin_node(t);
	for (unsigned k = 0; k < 7; k++)
		post_about(t, "accused", EVENT_FOR_ALL);
	for (unsigned k = 0; k < 30; k++) {
		post_about(t, NULL, EVENT_FOR_ALL);
		post_about(t, "accused", 1001); /* another user's */
		post_about(t, "other", EVENT_FOR_ALL);
	}
	assert_int_equal(events_take(t->host.node->events, &taken, &points), 1);
	list = events_about(&taken, share, &asked, 5, &more);
	events_let_go(&taken);
	assert_int_equal(json_array_size(list), 10);
	assert_int_equal(asked, 60 + 7 + 1); /* the start; what is not his is not read */
	assert_int_equal(more, 25 + 2);
	json_array_foreach(list, i, o)
	{
		json_int_t seq = json_integer_value(json_object_get(o, "seq"));

		assert_true(seq > last);
		last = seq;
		accused += strcmp(json_string_value(
					  json_object_get(json_object_get(o, "subject"), "words")),
				  "accused") == 0;
	}
	assert_int_equal(accused, 5);
	json_decref(list);
}

/* Lines of nobody, torn ones, numbers that go back: what is an event of ours is taken. */
static void test_damaged_files(void **state)
{
	struct node_test *t = *state;
	json_t *doc;

	put_file(t, "events.old", "{\"seq\":7,\"time_ns\":1,\"words\":\"a\"}\n[]\n{\"seq\":\n\n");
	put_file(t, "events",
		 "{\"seq\":3,\"time_ns\":1}\n{\"seq\":-9,\"time_ns\":1}\n"
		 "{\"seq\":9,\"time_ns\":1,\"uid\":5}\n{\"seq\":9,\"time_ns\":2}\n"
		 "{\"seq\":9223372036854775807,\"time_ns\":2}\n\xff\xfe{\"seq\":10,\"ti");
	put_file(t, "marks",
		 "{\"suspects\":[7,{\"words\":\"disk x\",\"reason\":\"old\"},"
		 "{\"words\":\"\"}],\"drained\":{\"words\":5}}");
	begin_node(t);
	doc = answer(t, 0, 0);
	assert_int_equal(next_of(doc), 11);
	assert_int_equal(json_array_size(json_object_get(doc, "events")), 3);
	json_decref(doc);
	doc = answer(t, 0, 6);
	assert_int_equal(json_array_size(json_object_get(doc, "events")), 2);
	json_decref(doc);
	assert_int_equal(t->host.node->marks.n, 1);
	assert_non_null(marks_find(&t->host.node->marks, "disk x", EVENT_FOR_ALL));
	assert_false(t->host.node->marks.drained);
}

static void test_marks(void **state)
{
	struct node_test *t = *state;
	struct marks *m;
	char words[32];

	begin_node(t);
	m = &t->host.node->marks;
	for (unsigned i = 0; i < 2 * MARKS_MAX; i++) {
		snprintf(words, sizeof(words), "disk %u", i);
		assert_int_equal(marks_add(m, words, "slow", EVENT_FOR_ALL), i < MARKS_MAX);
	}
	assert_false(marks_add(m, "disk 3", "again", EVENT_FOR_ALL));
	assert_true(marks_remove(m, "disk 3", EVENT_FOR_ALL));
	assert_false(marks_remove(m, "disk 3", EVENT_FOR_ALL));
	assert_true(marks_drain(m, true, "a test"));
	assert_false(marks_drain(m, true, "again"));
	settle(t);
	end_node(t);
	begin_node(t);
	m = &t->host.node->marks;
	assert_int_equal(m->n, MARKS_MAX - 1);
	assert_null(marks_find(m, "disk 3", EVENT_FOR_ALL));
	assert_string_equal(marks_find(m, "disk 4", EVENT_FOR_ALL)->reason, "slow");
	assert_true(m->drained);
	assert_string_equal(m->drain.reason, "a test");
}

/* ---- A full disk ---- */

static const struct disk_ops *real_ops;

/* It takes half of it. */
static int write_half(struct disk_file *f, const void *buf, size_t len, uint64_t offset)
{
	int r = real_ops->write(f, buf, len / 2, offset);

	return r < 0 ? r : -ENOSPC;
}

static unsigned times(const json_t *doc, const char *words)
{
	json_t *list = json_object_get(doc, "events"), *o;
	unsigned found = 0;
	size_t i;

	json_array_foreach(list, i, o) found +=
		strcmp(json_string_value(json_object_get(o, "words")), words) == 0;
	return found;
}

static void say(struct node_test *t, const char *words)
{
	events_post(t->host.node->events, EVENT_MARKED, 6 | EVENT_UNLOGGED, EVENT_FOR_ALL, NULL,
		    NULL, "%s", words);
	settle(t);
}

/* What comes while there is no room is told from memory; what comes later is kept, and nothing that
 * was kept is lost. */
static void test_full_disk(void **state)
{
	struct node_test *t = *state;
	struct disk *d;
	struct disk_ops full;
	json_t *doc;

	begin_node(t);
	say(t, "before");
	while (t->host.node->tidy.sweep) /* a worker that uses the disk */
		host_turn(&t->host);
	d = t->host.node->env.disk;
	real_ops = d->ops;
	full = *d->ops;
	full.write = write_half;
	d->ops = &full;
	say(t, "meanwhile");
	say(t, "again");
	assert_true(marks_add(&t->host.node->marks, "disk 1", "slow", EVENT_FOR_ALL));
	settle(t);
	assert_true(was_told("what happens cannot be kept in the data folder (No space left"));
	assert_true(was_told("what is suspect or drained could not be written (No space left"));
	d->ops = real_ops;
	say(t, "after");
	assert_true(marks_drain(&t->host.node->marks, true, "a test"));
	settle(t);
	doc = answer(t, 0, 0);
	assert_int_equal(times(doc, "before"), 1);
	assert_int_equal(times(doc, "meanwhile"), 1);
	assert_int_equal(times(doc, "again"), 1);
	assert_int_equal(times(doc, "after"), 1);
	json_decref(doc);
	end_node(t);
	begin_node(t);
	doc = answer(t, 0, 0);
	assert_int_equal(times(doc, "before"), 1);
	assert_int_equal(times(doc, "meanwhile"), 0);
	assert_int_equal(times(doc, "after"), 1);
	json_decref(doc);
	assert_non_null(marks_find(&t->host.node->marks, "disk 1", EVENT_FOR_ALL));
	assert_true(t->host.node->marks.drained);
}

static json_t *newest_of(const json_t *doc, const char *kind)
{
	json_t *list = json_object_get(doc, "events"), *o, *found = NULL;
	size_t i;

	json_array_foreach(list, i, o) if (strcmp(json_string_value(json_object_get(o, "kind")),
						  kind) == 0) found = o;
	return found;
}

/* Names and texts from outside that are no UTF-8, or were cut: told all the same. */
static void test_what_is_no_text(void **state)
{
	struct node_test *t = *state;
	struct sample s = {.kind = SAMPLE_CHECK,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE,
			   .check = {.what = "disk-\xff\xe2\x82", .value = 1, .low = 2, .high = 3}};
	json_t *doc, *o;

	begin_node(t);
	events_post(t->host.node->events, EVENT_CLEARED, 6, EVENT_FOR_ALL, NULL, NULL, "%s",
		    "a \xff\x1b b\xe2\x82");
	node_sample(t->host.node, &s);
	assert_true(marks_add(&t->host.node->marks, "disk \xfe", "slow\xc3", EVENT_FOR_ALL));
	settle(t);
	doc = answer(t, 0, 0);
	assert_int_equal(json_integer_value(json_object_get(doc, "dropped")), 0);
	o = newest_of(doc, "cleared");
	assert_non_null(o);
	assert_string_equal(json_string_value(json_object_get(o, "words")), "a ?? b");
	o = newest_of(doc, "verdict");
	assert_non_null(o);
	assert_string_equal(json_string_value(json_object_get(o, "cause")), "check-failed");
	assert_non_null(strstr(json_string_value(json_object_get(o, "why")), "disk-?"));
	json_decref(doc);
	end_node(t);
	begin_node(t);
	assert_non_null(marks_find(&t->host.node->marks, "disk ?", EVENT_FOR_ALL));
	assert_string_equal(marks_find(&t->host.node->marks, "disk ?", EVENT_FOR_ALL)->reason,
			    "slow");
}

/* Jobs of one name are not taken for each other; one user's leave room for those of others, and
 * all of them for the node's own. */
static void test_marks_of_jobs(void **state)
{
	struct node_test *t = *state;
	struct marks *m;
	char words[32];

	begin_node(t);
	m = &t->host.node->marks;
	assert_true(marks_add(m, "job 'lm'", "slow", 1000));
	assert_null(marks_find(m, "job 'lm'", 1001));
	assert_true(marks_add(m, "job 'lm'", "dead", 1001));
	assert_string_equal(marks_find(m, "job 'lm'", 1001)->reason, "dead");
	assert_true(marks_remove(m, "job 'lm'", 1001));
	assert_string_equal(marks_find(m, "job 'lm'", 1000)->reason, "slow");
	for (unsigned i = 1; i < MARKS_MAX; i++) {
		snprintf(words, sizeof(words), "rank %u of job 'lm'", i);
		assert_int_equal(marks_add(m, words, "slow", 1000), i < MARKS_UID_MAX);
	}
	for (unsigned i = MARKS_UID_MAX; i < MARKS_MAX; i++) {
		snprintf(words, sizeof(words), "rank %u of job 'lm'", i);
		assert_int_equal(marks_add(m, words, "slow", 1001 + i % 2), i < MARKS_JOBS_MAX);
	}
	for (unsigned i = MARKS_JOBS_MAX; i <= MARKS_MAX; i++) {
		snprintf(words, sizeof(words), "disk %u", i);
		assert_int_equal(marks_add(m, words, "slow", EVENT_FOR_ALL), i < MARKS_MAX);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_bounded_and_kept),
		NODE_TEST(test_one_user_pushes_out_its_own),
		NODE_TEST(test_about),
		NODE_TEST(test_damaged_files),
		NODE_TEST(test_marks),
		NODE_TEST(test_marks_of_jobs),
		NODE_TEST(test_what_is_no_text),
		NODE_TEST(test_full_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
