/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whom the detector is told of and by what names: numbers of jobs that come again, who does not
 * fit, and devices that only kernel messages speak of.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/loop.h"
#include "ckptd/acting.h"
#include "ckptd/beats.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/watching.h"
#include "ckptd/watching_json.h"
#include "ckptd/watching_priv.h"
#include "detect/verdicts.h"
#include "detect/xid_policy.h"
#include "proto/session.pb-c.h"

/* A rank of a job of one rank, that has said nothing yet. */
static struct job *come(struct node_test *t, struct hand *k, unsigned i)
{
	char name[32];
	struct job *j;

	snprintf(name, sizeof(name), "job%u", i);
	connect_rank(t, k);
	assert_int_equal(hand_open(k, name, 0, 1, "run1"), 0);
	list_each(j, &t->host.node->jobs, link)
		if (strcmp(j->history.job.name, name) == 0)
			return j;
	fail_msg("there is no %s", name);
	return NULL;
}

static void says_nan(struct job *j)
{
	struct sample s = {.kind = SAMPLE_BEAT,
			   .node = WATCHING_NODE,
			   .job = j->number,
			   .rank = 0,
			   .device = SAMPLE_NONE,
			   .beat = {.step = 3, .flags = BEAT_LOSS, .loss = NAN}};

	node_sample(j->node, &s);
}

/* Goodbye, and it is heard. */
static void go(struct node_test *t, struct hand *k, struct job *j)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	uint64_t id;

	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_send(k, &q), 0);
	assert_int_equal(hand_receive(k, &id), 0);
	leave(k);
	for (uint64_t end = 0; !list_empty(&j->members) && turn_on(t, &end);)
		;
	assert_true(list_empty(&j->members));
}

static bool stands(struct job *j)
{
	struct subject s = subject_job(j->number);

	return j->number && watching_standing(j->node, &s, NULL, 0) > 0;
}

/* One job after the other, many more than there are numbers: each is watched. */
static void test_jobs_come_and_go(void **state)
{
	struct node_test *t = *state;
	struct job *j, *first = NULL;

	t->o.watched_jobs = 4;
	begin_node(t);
	for (unsigned i = 0; i < 12; i++) {
		j = come(t, &t->a, i);
		first = first ? first : j;
		assert_true(j->number >= 1 && j->number <= 4);
		assert_false(stands(j));
		for (unsigned k = 0; k < 100 && !stands(j); k++) {
			says_nan(j);
			host_turn(&t->host);
		}
		assert_true(stands(j));
		go(t, &t->a, j);
	}
	assert_int_equal(first->number, 0);
	assert_false(was_told("has no room"));
	assert_int_equal(watching_standing(t->host.node, NULL, NULL, 0), 0);
}

/* More jobs with ranks at a time than the detector has numbers for. */
static void test_too_many_jobs(void **state)
{
	struct node_test *t = *state;
	struct job *one, *two;
	json_t *o;

	t->o.watched_jobs = 1;
	begin_node(t);
	o = watching_refused_json(t->host.node, 0, true);
	assert_true(json_is_null(o));
	json_decref(o);
	one = come(t, &t->a, 1);
	two = come(t, &t->b, 2);
	assert_int_equal(one->number, 1);
	assert_true(two->number > 1);
	assert_true(was_told("has no room for job 'job2', which is not watched"));
	o = watching_refused_json(t->host.node, 0, true);
	assert_true(json_integer_value(json_object_get(o, "samples")) > 1);
	assert_string_equal(json_string_value(json_object_get(o, "words")), "rank 0 of job 'job2'");
	json_decref(o);
	/* Once there is room it is watched from its next epoch on. */
	go(t, &t->a, one);
	go(t, &t->b, two);
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "job2", 0, 1, "run2"), 0);
	assert_int_equal(two->number, 1);
	assert_int_equal(one->number, 0);
}

/* More alarms than can stand: the ones too many are told of, and vanish in no silence. */
static void test_too_many_alarms(void **state)
{
	struct node_test *t = *state;
	struct sample s = {.kind = SAMPLE_CHECK,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	json_t *o;

	t->o.dry_run = true;
	begin_node(t);
	for (unsigned i = 0; i < VERDICTS_MAX + 2; i++) {
		o = watching_dropped_json(t->host.node, 0, true);
		assert_int_equal(json_is_null(o), i <= VERDICTS_MAX);
		json_decref(o);
		snprintf(s.check.what, sizeof(s.check.what), "check-%u", i);
		node_sample(t->host.node, &s);
	}
	assert_int_equal(watching_standing(t->host.node, NULL, NULL, 0), VERDICTS_MAX);
	o = watching_dropped_json(t->host.node, 0, true);
	assert_int_equal(json_integer_value(json_object_get(o, "times")), 2);
	assert_string_equal(json_string_value(json_object_get(o, "words")),
			    "node 'node', failing (check-failed)");
	json_decref(o);
	assert_true(was_told("the one about node 'node', failing (check-failed) is not kept"));
}

static unsigned unwatched_events(struct node_test *t)
{
	const struct events_question q = {.sees_all = true};
	json_t *doc = events_answer(t->host.node->events, &q), *e;
	unsigned found = 0;
	size_t i;

	json_array_foreach(json_object_get(doc, "events"), i, e)
	{
		const char *kind = json_string_value(json_object_get(e, "kind"));

		found += kind && strcmp(kind, "unwatched") == 0;
	}
	json_decref(doc);
	return found;
}

/* Who may not see a job is told that there is no room, and not for whom. */
static void test_whose_there_is_no_room_for(void **state)
{
	struct node_test *t = *state;
	struct verdict v = {.class = CLASS_DIVERGING, .cause = CAUSE_NOT_A_NUMBER};
	struct sample s = {.job = 2, .rank = 0, .device = SAMPLE_NONE};
	const struct {
		uint32_t uid;
		bool sees_all, told;
	} asks[] = {{0, true, true}, {1000, false, true}, {1001, false, false}};
	struct job *j;

	t->o.watched_jobs = 1;
	begin_node(t);
	come(t, &t->a, 1);
	j = come(t, &t->b, 2);
	s.job = j->number;
	j->history.job.uid = 1000;
	v.subject = subject_rank(j->number, 0, WATCHING_NODE);
	v.level = LEVEL_ALARM;
	watching_refused(t->host.node, &s);
	watching_dropped(t->host.node, &v);
	assert_int_equal(unwatched_events(t), 2); /* in ten minutes, however many there are */
	watching_refused(t->host.node, &s);
	watching_dropped(t->host.node, &v);
	assert_int_equal(unwatched_events(t), 2);
	t->host.node->watching->refused_again_ns = t->host.node->watching->dropped_again_ns = 1;
	watching_refused(t->host.node, &s);
	watching_dropped(t->host.node, &v);
	assert_int_equal(unwatched_events(t), 4);
	for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
		json_t *r = watching_refused_json(t->host.node, asks[i].uid, asks[i].sees_all);
		json_t *d = watching_dropped_json(t->host.node, asks[i].uid, asks[i].sees_all);

		assert_int_equal(strstr(json_string_value(json_object_get(r, "words")), "job2") !=
					 NULL,
				 asks[i].told);
		assert_int_equal(strstr(json_string_value(json_object_get(d, "words")), "job2") !=
					 NULL,
				 asks[i].told);
		json_decref(r);
		json_decref(d);
	}
}

static void says_check_failed(struct node_test *t, const char *what)
{
	struct sample s = {.kind = SAMPLE_CHECK,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};

	snprintf(s.check.what, sizeof(s.check.what), "%s", what);
	node_sample(t->host.node, &s);
}

/* What `ckptctl why` shows to a user. */
static json_t *ask_why(struct node_test *t, uint32_t uid, const char *text)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	struct session *s;
	struct hand_answer a;
	struct hand k;
	json_t *doc;

	connect_rank(t, &k);
	s = (struct session *)t->host.node->sessions.prev; /* its link comes first in it */
	((struct process_id *)session_process(s))->uid = uid;
	m.verb = CKPT__ADMIN__VERB__WHY;
	m.text = (char *)text;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	if (hand_ask(&k, &q, &a))
		fail_msg("%s", k.text);
	if (a.n_fds > 0) {
		lseek(a.fds[0], 0, SEEK_SET);
		doc = json_loadfd(a.fds[0], 0, NULL);
	} else {
		doc = json_loadb((char *)a.reply->admin->json.data, a.reply->admin->json.len, 0,
				 NULL);
	}
	assert_non_null(doc);
	hand_answer_free(&a);
	hand_close(&k);
	return doc;
}

static bool is_of(const json_t *doc, size_t i, const char *kind, const char *level)
{
	const json_t *v = json_array_get(json_object_get(doc, "verdicts"), i);
	const json_t *subject = json_object_get(v, "subject");

	return strcmp(json_string_value(json_object_get(subject, "kind")), kind) == 0 &&
	       strcmp(json_string_value(json_object_get(v, "level")), level) == 0;
}

/* How many are listed, and how many more there are. */
static void counts(struct node_test *t, uint32_t uid, const char *text, size_t n, unsigned more)
{
	json_t *doc = ask_why(t, uid, text);

	assert_int_equal(json_array_size(json_object_get(doc, "verdicts")), n);
	assert_int_equal(json_integer_value(json_object_get(doc, "verdicts_more")), more);
	json_decref(doc);
}

/* What others have, and notes, take no room from an alarm that one may see. */
static void test_who_is_shown_what(void **state)
{
	struct node_test *t = *state;
	uint32_t all = geteuid(), owner = all + 1000, other = all + 1001;
	char what[32];
	struct job *j;
	json_t *doc;

	t->o.dry_run = true;
	begin_node(t);
	counts(t, all, "", 0, 0);
	says_check_failed(t, "one");
	counts(t, other, "", 1, 0);
	connect_rank(t, &t->a);
	assert_int_equal(hand_open(&t->a, "job", 0, 3, "run1"), 0);
	j = list_first(&t->host.node->jobs, struct job, link);
	j->history.job.uid = owner;
	watching_exit(j, 0, EXIT_SIGNAL, 9);
	counts(t, other, "", 1, 0);
	counts(t, owner, "", 2, 0);
	counts(t, all, "", 2, 0);
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "job", 1, 3, "run1"), 0);
	watching_exit(j, 1, EXIT_SIGNAL, 9); /* a note */
	assert_int_equal(watching_standing(t->host.node, NULL, NULL, 0), 3);
	doc = ask_why(t, owner, "");
	assert_true(is_of(doc, 0, "rank", "note")); /* the newest */
	assert_true(is_of(doc, 1, "rank", "alarm"));
	assert_true(is_of(doc, 2, "node", "alarm"));
	json_decref(doc);
	counts(t, other, "", 1, 0);
	counts(t, owner, "job", 2, 0);
	/* As many alarms as are listed: the note has no room. */
	for (unsigned i = 0; i < 62; i++) {
		snprintf(what, sizeof(what), "check-%u", i);
		says_check_failed(t, what);
	}
	doc = ask_why(t, owner, "");
	assert_int_equal(json_array_size(json_object_get(doc, "verdicts")), 64);
	assert_int_equal(json_integer_value(json_object_get(doc, "verdicts_more")), 1);
	assert_true(is_of(doc, 0, "node", "alarm"));
	assert_true(is_of(doc, 62, "rank", "alarm"));
	json_decref(doc);
	counts(t, owner, "job", 2, 0);
	says_check_failed(t, "one more");
	counts(t, owner, "", 64, 2);
	counts(t, other, "", 64, 0);
}

/* Events and verdicts about a job carry its owner, also under a number that was reused. */
static void test_whose_word_it_is(void **state)
{
	struct node_test *t = *state;
	struct verdict v;
	struct job *j;

	t->o.dry_run = true;
	begin_node(t);
	connect_rank(t, &t->a);
	assert_int_equal(hand_open(&t->a, "job", 0, 2, "run1"), 0);
	j = list_first(&t->host.node->jobs, struct job, link);
	watching_stopped(j);
	assert_int_equal(j->number, 0);
	j->history.job.uid = 1000;
	watching_joined(member_of_rank(j, 0));
	watching_exit(j, 0, EXIT_SIGNAL, 9);
	assert_int_equal(watching_standing(t->host.node, NULL, &v, 1), 1);
	assert_true(v.of_one_owner);
	assert_int_equal(v.owner, 1000);
	says_check_failed(t, "one");
	assert_int_equal(watching_standing(t->host.node, NULL, &v, 1), 2);
	assert_int_equal(v.subject.kind, SUBJECT_NODE);
	assert_false(v.of_one_owner);
}

/* The only rank that had come says goodbye before the next one comes: the run was not over. */
static void test_a_run_goes_on(void **state)
{
	struct node_test *t = *state;
	struct open_request third = {.run_id = "run1", .rank = 2, .world = 3};
	struct job *j;

	begin_node(t);
	connect_rank(t, &t->a);
	assert_int_equal(hand_open(&t->a, "job", 0, 3, "run1"), 0);
	j = list_first(&t->host.node->jobs, struct job, link);
	assert_true(epoch_stands(j, &third));
	go(t, &t->a, j);
	assert_false(epoch_stands(j, &third));
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "job", 1, 3, "run1"), 0);
	assert_true(epoch_stands(j, &third)); /* a drained node lets it in */
	go(t, &t->b, j);
	assert_false(epoch_stands(j, &third));
}

/* What the detector is told of the only number. */
static unsigned forgotten;
static char called[SAMPLE_NAME_MAX];

static void count_names(void *arg, const struct sample *s)
{
	(void)arg;
	if (s->kind != SAMPLE_NAME || s->job != 1)
		return;
	forgotten += !s->name.text[0];
	snprintf(called, sizeof(called), "%s", s->name.text);
}

/* A job gets the number of another one while its own rank beats. */
static void test_a_number_is_given_back_once(void **state)
{
	struct node_test *t = *state;
	struct job *one, *two;

	t->o.watched_jobs = 1;
	begin_node(t);
	one = come(t, &t->a, 1);
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "job2", 0, 1, "run1"), 0);
	two = list_last(&t->host.node->jobs, struct job, link);
	assert_true(two->number > 1);
	go(t, &t->a, one);
	assert_int_equal(one->number, 1);
	forgotten = 0;
	t->host.node->env.record = count_names;
	host_turn(&t->host);
	beat_page_put(t->b.beats, 1,
		      &(struct beat_record){.kind = BEAT_KIND_STEP,
					    .time_ns = loop_now(t->host.loop),
					    .step = 1});
	watching_epoch(two); /* as if it had opened one, in the turn in which it beat */
	assert_int_equal(two->number, 1);
	assert_int_equal(one->number, 0);
	assert_int_equal(forgotten, 1);
	assert_string_equal(called, "job2");
	t->host.node->env.record = NULL;
}

static struct sample sample_at(uint64_t time_ns, enum sample_kind kind, const struct job *j)
{
	return (struct sample){.kind = kind,
			       .time_ns = time_ns,
			       .node = WATCHING_NODE,
			       .job = j ? j->number : SAMPLE_NONE,
			       .rank = j ? 0 : SAMPLE_NONE,
			       .device = SAMPLE_NONE};
}

/* A trainer that only saves, every hour, as most adapters have it: nothing is wrong with it, until
 * it dies. */
static void test_a_member_that_never_beats(void **state)
{
	struct node_test *t = *state;
	struct sample s;
	struct job *j;
	uint64_t now;

	begin_node(t);
	j = come(t, &t->a, 1);
	now = loop_now(t->host.loop);
	for (unsigned i = 1; i <= 3 * 3600; i++) {
		now += UINT64_C(1000000000);
		s = sample_at(now, SAMPLE_ALIVE, NULL);
		node_sample(t->host.node, &s);
		assert_int_equal(watching_standing(t->host.node, NULL, NULL, 0), 0);
		if (i % 3600 > 1)
			continue;
		s = sample_at(now, SAMPLE_PHASE, j);
		s.phase.phase = PHASE_CHECKPOINT;
		s.phase.begins = i % 3600 == 0;
		node_sample(t->host.node, &s);
	}
	s = sample_at(now, SAMPLE_EXIT, j);
	s.exit.how = EXIT_SIGNAL;
	s.exit.value = 9;
	node_sample(t->host.node, &s);
	assert_true(was_told("ended by signal 9 (SIGKILL) while its run was on"));
}

static void say_kernel(struct node *n, const char *text)
{
	struct sample s = {.kind = SAMPLE_KERNEL,
			   .node = WATCHING_NODE,
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};

	snprintf(s.kernel.text, sizeof(s.kernel.text), "%s", text);
	s.kernel.level = 3;
	node_sample(n, &s);
}

/* Without NVML a GPU is called by its PCI address all the same. */
static void test_gpus_without_nvml(void **state)
{
	struct node_test *t = *state;
	char words[SUBJECT_WORDS_MAX];
	struct xid_policy *xids;
	struct subject s;
	json_t *o;

	assert_int_equal(xid_policy_default(&xids), 0);
	t->o.xid = xids;
	begin_node(t);
	assert_false(watching_device(t->host.node, "0000:9b:00", &s));
	say_kernel(t->host.node,
		   "NVRM: Xid (PCI:0000:9b:00): 79, pid=7, GPU has fallen off the bus.");
	assert_true(watching_device(t->host.node, "0000:9B:00", &s));
	assert_int_equal(s.kind, SUBJECT_GPU);
	assert_int_equal(watching_standing(t->host.node, &s, NULL, 0), 1);
	watching_words(t->host.node, &s, words);
	assert_string_equal(words, "GPU 0000:9b:00");
	o = watching_subject_json(t->host.node, &s);
	assert_string_equal(json_string_value(json_object_get(o, "name")), "0000:9b:00");
	assert_null(json_object_get(o, "device"));
	json_decref(o);
	/* NVML comes later: it is the same one. */
	node_sample(t->host.node, &(struct sample){.kind = SAMPLE_NAME,
						   .node = WATCHING_NODE,
						   .job = SAMPLE_NONE,
						   .rank = SAMPLE_NONE,
						   .device = 7,
						   .name = {"0000:9b:00", 'g'}});
	assert_true(watching_device(t->host.node, "0000:9b:00", &s));
	assert_int_equal(s.device, 7);
	for (int i = 0; i < 1000 && !watching_standing(t->host.node, &s, NULL, 0); i++)
		host_turn(&t->host);
	assert_int_equal(watching_clear(t->host.node, &s), 1);
	assert_int_equal(watching_standing(t->host.node, NULL, NULL, 0), 0);
	end_node(t);
	xid_policy_free(xids);
}

/* Of another user: its job of one rank. */
static struct job *come_as(struct node_test *t, struct hand *k, unsigned i, uint32_t uid)
{
	struct job *j = NULL, *x;
	char name[32];

	snprintf(name, sizeof(name), "job%u", i);
	assert_int_equal(chmod(t->dir, 0711), 0);
	assert_int_equal(chmod(t->socket, 0666), 0);
	assert_int_equal(seteuid(uid), 0);
	assert_int_equal(hand_connect(k, &t->host), 0);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(hand_open(k, name, 0, 1, "run1"), 0);
	list_each(x, &t->host.node->jobs, link)
		if (x->history.job.uid == uid && strcmp(x->history.job.name, name) == 0)
			j = x;
	assert_non_null(j);
	return j;
}

/* One with as many jobs as there are numbers leaves some to others. */
static void test_users_share_numbers(void **state)
{
	enum { NUMBERS = 9, USER = 65533 };
	struct node_test *t = *state;
	struct hand hands[NUMBERS], other[2];
	unsigned watched = 0;

	if (geteuid() != 0)
		skip();
	t->o.watched_jobs = NUMBERS;
	begin_node(t);
	for (unsigned i = 0; i < NUMBERS; i++)
		watched += come(t, &hands[i], i)->number <= NUMBERS;
	assert_int_equal(watched, 6);
	assert_true(was_told("has no room for job 'job6', which is not watched"));
	for (unsigned i = 0; i < 2; i++)
		assert_true(come_as(t, &other[i], 100 + i, USER)->number <= NUMBERS);
	for (unsigned i = 0; i < NUMBERS; i++)
		leave(&hands[i]);
	for (unsigned i = 0; i < 2; i++)
		leave(&other[i]);
}

/* One whose jobs come and go takes the places of its own, not what is known of another's. */
static void test_idle_jobs_of_others_stay(void **state)
{
	enum { USER = 65533, MANY = 40 };
	struct node_test *t = *state;
	struct job *kept;
	uint32_t number;

	if (geteuid() != 0)
		skip();
	begin_node(t);
	kept = come_as(t, &t->b, 100, USER);
	number = kept->number;
	go(t, &t->b, kept);
	for (unsigned i = 0; i < MANY; i++)
		go(t, &t->a, come(t, &t->a, i));
	assert_int_equal(kept->number, number);
}

static int clear(struct hand *k, const char *whom)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = CKPT__ADMIN__VERB__CLEAR;
	m.text = (char *)whom;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	return hand_ask_code(k, &q);
}

static size_t events_of(struct node_test *t, const char *kind)
{
	struct events_question q = {.sees_all = true};
	json_t *doc = events_answer(t->host.node->events, &q), *o;
	size_t i, n = 0;

	json_array_foreach(json_object_get(doc, "events"), i, o)
		n += strcmp(json_string_value(json_object_get(o, "kind")), kind) == 0;
	json_decref(doc);
	return n;
}

/* Who clears what is well leaves no event: else it could push out those of others. */
static void test_clear_of_nothing(void **state)
{
	struct node_test *t = *state;
	struct job *j;

	begin_node(t);
	j = come(t, &t->a, 1);
	for (int i = 0; i < 3; i++)
		assert_int_equal(clear(&t->a, "job1"), 0);
	assert_int_equal(events_of(t, "cleared"), 0);
	for (unsigned k = 0; k < 100 && !stands(j); k++) {
		says_nan(j);
		host_turn(&t->host);
	}
	assert_true(stands(j));
	for (int i = 0; i < 3; i++)
		assert_int_equal(clear(&t->a, "job1"), 0);
	assert_int_equal(events_of(t, "cleared"), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_jobs_come_and_go),
		NODE_TEST(test_too_many_jobs),
		NODE_TEST(test_users_share_numbers),
		NODE_TEST(test_idle_jobs_of_others_stay),
		NODE_TEST(test_clear_of_nothing),
		NODE_TEST(test_too_many_alarms),
		NODE_TEST(test_whose_there_is_no_room_for),
		NODE_TEST(test_who_is_shown_what),
		NODE_TEST(test_whose_word_it_is),
		NODE_TEST(test_a_run_goes_on),
		NODE_TEST(test_a_number_is_given_back_once),
		NODE_TEST(test_gpus_without_nvml),
		NODE_TEST(test_a_member_that_never_beats),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
