/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_job_state.c - one job's state is corrupted under a node that behaves as a package does: that
 * job is stopped, with a sentence and an event, its memory and files stay, and the other job goes
 * on. As in a test build, the process ends.
 */
#include <config.h>

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckptd/events.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "proto/session.pb-c.h"

/* ---- What is corrupted ---- */

static struct slot *held_slot(struct job *j)
{
	struct slot *s;

	list_each(s, &j->slots, link)
		if (s->holds)
			return s;
	fail_msg("no slot holds anything");
	return NULL;
}

static struct checkpoint *committed(struct job *j)
{
	struct checkpoint *c;

	list_each(c, &j->checkpoints, link)
		if (c->agreed == CP_COMMITTED)
			return c;
	fail_msg("nothing is committed");
	return NULL;
}

static struct member *first_member(struct job *j)
{
	return list_first(&j->members, struct member, link);
}

static void slot_is_empty(struct job *j) { held_slot(j)->state = SLOT_EMPTY; }
static void slot_without_region_number(struct job *j) { held_slot(j)->number = j->next_slot; }
static void slot_of_no_rank(struct job *j) { held_slot(j)->rank = 7; }
static void shard_without_slot(struct job *j)
{
	struct slot *s = held_slot(j);

	s->holds->shards[s->rank].slot = NULL;
}
static void slot_of_another_rank(struct job *j) { first_member(j)->rank = 5; }
static void dead_member_talks(struct job *j) { first_member(j)->alive = false; }
static void one_shard_more(struct job *j) { committed(j)->n_sealed--; }
static void one_in_memory_more(struct job *j) { committed(j)->n_memory--; }
static void digested_is_forgotten(struct job *j) { committed(j)->digested = false; }
static void record_of_the_future(struct job *j) { committed(j)->record_n = 1000; }
static void durable_but_aborted(struct job *j) { committed(j)->agreed = CP_ABORTED; }
static void suspect_without_bad_file(struct job *j) { committed(j)->disk_suspect = true; }
static void nobody_works(struct job *j) { committed(j)->saying = 9; }
static void persist_of_nobody(struct job *j)
{
	committed(j)->persist = (struct persist *)committed(j);
}
static void log_ends_before_it_begins(struct job *j) { j->history.first_n = 1000; }
static void step_above_the_last(struct job *j) { j->history.last_step = 0; }
static void abort_what_is_committed(struct job *j) { checkpoint_abort(committed(j), "no"); }

static const struct corruption {
	void (*make)(struct job *j);
	enum job_defect defect;
} corruptions[] = {
	{ slot_is_empty, JOB_DEFECT_SLOT },
	{ slot_without_region_number, JOB_DEFECT_SLOT },
	{ slot_of_no_rank, JOB_DEFECT_HOLDER },
	{ shard_without_slot, JOB_DEFECT_HOLDER },
	{ slot_of_another_rank, JOB_DEFECT_OWNER },
	{ dead_member_talks, JOB_DEFECT_MEMBER },
	{ one_shard_more, JOB_DEFECT_SHARDS },
	{ one_in_memory_more, JOB_DEFECT_SHARDS },
	{ digested_is_forgotten, JOB_DEFECT_SHARDS },
	{ record_of_the_future, JOB_DEFECT_CHECKPOINT },
	{ durable_but_aborted, JOB_DEFECT_CHECKPOINT },
	{ suspect_without_bad_file, JOB_DEFECT_CHECKPOINT },
	{ nobody_works, JOB_DEFECT_CHECKPOINT },
	{ persist_of_nobody, JOB_DEFECT_PERSIST },
	{ log_ends_before_it_begins, JOB_DEFECT_LOG },
	{ step_above_the_last, JOB_DEFECT_LOG },
	{ abort_what_is_committed, JOB_DEFECT_ASSERTION },
};

/* ---- Two jobs ---- */

static struct hand other; /* the only rank of the other job */

static void fill(void *arg, const struct shard *s, uint8_t *out)
{
	memset(out, *(int *)arg, s->bytes);
}

static void save_other(struct node_test *t, uint64_t step)
{
	int byte = (int)step;

	(void)t;
	assert_int_equal(hand_save(&other, step, fill, &byte, "blob", 4), 0);
	assert_int_equal(hand_wait(&other, step, CKPT_DURABLE), 0);
}

static void begin_both(struct node_test *t)
{
	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_DURABLE);
	connect_rank(t, &other);
	assert_int_equal(hand_open(&other, "other", 0, 1, "run1"), 0);
	declare_and_prepare(&other, 0, 1);
	save_other(t, 1);
}

static size_t count_slots(const struct job *j)
{
	struct slot *s;
	size_t n = 0;

	list_each(s, &j->slots, link)
		n += s->region != NULL;
	return n;
}

/* Every request of every kind: the same code, and the sentence. */
static void assert_refused(struct node_test *t)
{
	size_t len = ELEMENTS * 4;
	struct hand_loaded got = { .shards = { malloc(len) } };
	struct hand_info info;
	struct hand late;
	size_t n;

	assert_int_equal(save_rank(&t->b, 1, 20), CKPT_ESTOPPED);
	assert_non_null(strstr(t->b.text, "job 'job' is stopped: "));
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), CKPT_ESTOPPED);
	assert_int_equal(hand_load(&t->a, 10, NULL, &got), CKPT_ESTOPPED);
	assert_int_equal(hand_list(&t->a, &info, 1, &n), CKPT_ESTOPPED);
	assert_int_equal(hand_admin(&other, "job", CKPT__ADMIN__VERB__PIN, 10), CKPT_ESTOPPED);
	connect_rank(t, &late);
	assert_int_equal(open_rank(&late, 0, 2, "run2"), CKPT_ESTOPPED);
	leave(&late);
	free(got.shards[0]);
}

static void assert_told(struct node_test *t, enum job_defect defect)
{
	struct events_question q = { .sees_all = true };
	json_t *doc = events_answer(t->host.node->events, &q), *o;
	unsigned stopped = 0;
	size_t i;

	json_array_foreach(json_object_get(doc, "events"), i, o) {
		if (strcmp(json_string_value(json_object_get(o, "kind")), "job-stopped") != 0)
			continue;
		stopped++;
		assert_int_equal(json_integer_value(json_object_get(o, "defect")), defect);
	}
	assert_int_equal(stopped, 1);
	json_decref(doc);
}

static char *status_text(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	struct hand_answer a;
	char *text;

	m.verb = CKPT__ADMIN__VERB__STATUS;
	m.job = (char *)"job";
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	assert_int_equal(hand_ask(k, &q, &a), 0);
	text = strndup((char *)a.reply->admin->json.data, a.reply->admin->json.len);
	hand_answer_free(&a);
	return text;
}

static void corrupt(struct node_test *t, const struct corruption *x)
{
	struct job *j = job_find(t->host.node, "job", getuid());
	size_t slots = count_slots(j);
	char *text;
	uint64_t id;

	assert_int_equal(save_rank(&t->a, 0, 20), 0);
	/* For rank 1, which does not come. */
	assert_int_equal(hand_send_wait(&t->a, 20, CKPT_COMMITTED), 0);
	host_turn(&t->host);
	x->make(j);
	job_poke(j);
	assert_int_equal(hand_receive(&t->a, &id), CKPT_ESTOPPED);
	assert_int_equal(j->defect, x->defect);
	assert_ptr_equal(job_find(t->host.node, "job", getuid()), j);
	assert_told(t, x->defect);
	assert_true(was_told("job 'job' is stopped: "));
	save_other(t, 2);
	assert_refused(t);
	text = status_text(&other);
	assert_non_null(strstr(text, "\"stopped\":\"job 'job' is stopped: "));
	free(text);
	leave(&t->b); /* its end changes nothing of the job's memory */
	for (uint64_t step = 3; step < 8; step++)
		save_other(t, step);
	assert_int_equal(count_slots(j), slots);
	assert_true(count_files(t, "jobs/*/10.*/COMMIT") == 1);
}

static void test_each_corruption_stops_one_job(void **state)
{
	struct node_test *t = *state;

	for (size_t i = 0; i < sizeof(corruptions) / sizeof(*corruptions); i++) {
		t->o.abort_broken = false;
		begin_both(t);
		corrupt(t, &corruptions[i]);
		leave(&other);
		end_node(t);

		/* What was true before is read again. */
		begin_node(t);
		assert_int_equal(join(t, &t->a, 0, 2, "run2"), 10);
		declare_rank(&t->a, 0, 2);
		load_rank(&t->a, 0, 10, CKPT_TIER_DISK);
		node_test_teardown(state);
		node_test_setup(state);
	}
}

static void test_a_sound_job_is_sound(void **state)
{
	struct node_test *t = *state;
	struct job *j;

	begin_both(t);
	list_each(j, &t->host.node->jobs, link)
		assert_true(job_state_check(j));
	leave(&other);
}

/* An orderly stop waits for the jobs that go on, not for the one that is stopped. */
static void stopped_fn(void *arg)
{
	*(bool *)arg = true;
}

static void test_stop_beside_a_stopped_job(void **state)
{
	struct node_test *t = *state;
	bool over = false;

	t->o.abort_broken = false;
	begin_both(t);
	corrupt(t, &corruptions[0]);
	node_stop(t->host.node, 600ull * 1000000000u, stopped_fn, &over);
	for (uint64_t end = 0; !over && turn_on(t, &end);)
		;
	assert_true(over);
	leave(&other);
}

#ifdef CKPT_FAULTS
/* The switch of test builds, in a process of its own. */
static void test_test_builds_abort(void **state)
{
	struct node_test *t = *state;
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		struct rlimit none = { 0 };
		struct job *j;

		setrlimit(RLIMIT_CORE, &none);
		signal(SIGABRT, SIG_DFL);
		begin_both(t);
		j = job_find(t->host.node, "job", getuid());
		slot_is_empty(j);
		job_poke(j);
		for (int i = 0; i < 100; i++)
			host_turn(&t->host);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
#ifdef CKPT_FAULTS
		NODE_TEST(test_test_builds_abort), /* first: no threads yet */
#endif
		NODE_TEST(test_a_sound_job_is_sound),
		NODE_TEST(test_each_corruption_stops_one_job),
		NODE_TEST(test_stop_beside_a_stopped_job),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
