/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job's time went to goes on over a restart of ckptd, and whatever the file holds.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckptd/goodput.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/watching.h"
#include "detect/verdicts.h"
#include "proto/session.pb-c.h"

static void settle(struct node_test *t)
{
	for (uint64_t end = 0; t->host.node->works && turn_on(t, &end);)
		;
	assert_int_equal(t->host.node->works, 0);
}

/* Three steps, and ckptd is killed behind the third. */
static void run_and_kill(struct node_test *t, struct goodput *ret)
{
	begin_one(t);
	for (uint64_t step = 1; step <= 3; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	goodput_keep(the_job(t)); /* as each minute */
	goodput_keep(the_job(t)); /* and once more behind that */
	settle(t);
	*ret = the_job(t)->goodput;
	assert_int_equal(count_files(t, "jobs/*/goodput"), 1);
	assert_int_equal(count_files(t, "jobs/*/tmp-*"), 0);
	end_node(t);
}

static void test_goes_on(void **state)
{
	struct node_test *t = *state;
	struct goodput before, *g;

	run_and_kill(t, &before);
	assert_int_equal(before.steps, 3);
	assert_true(before.ns[GOODPUT_TRAINING] > 0);
	begin_node(t);
	g = &the_job(t)->goodput;
	assert_true(g->begun && g->down);
	assert_int_equal(g->state, GOODPUT_RESTART); /* its memory is gone, and so is its rank */
	assert_int_equal(g->steps, 3);
	assert_int_equal(g->n_marks, 3);
	assert_int_equal(g->marks[2].step, 3);
	assert_in_range(g->ns[GOODPUT_TRAINING], 1, before.ns[GOODPUT_TRAINING]);
	assert_true(g->ns[GOODPUT_RESTART] > before.ns[GOODPUT_RESTART]); /* the time between */
	assert_int_equal(g->latency[1].n, 3);
	assert_int_equal(g->latency[1].ns, before.latency[1].ns);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 3);
	assert_int_equal(g->failures[0], 0);
	assert_int_equal(g->failures[1], 1);
	settle(t);
	end_node(t);
	begin_node(t);
	assert_int_equal(the_job(t)->goodput.failures[1], 1);
}

/* ckptd is killed soon behind the first step, long before the minute that would keep it. */
static void test_its_first_step_is_kept(void **state)
{
	struct sample beat = {.kind = SAMPLE_BEAT,
			      .node = WATCHING_NODE,
			      .device = SAMPLE_NONE,
			      .beat = {.step = 1}};
	struct node_test *t = *state;

	begin_one(t);
	settle(t);
	beat.job = the_job(t)->number;
	node_sample(t->host.node, &beat);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_TRAINING);
	settle(t);
	end_node(t);
	begin_node(t); /* its rank is gone with all memory */
	assert_int_equal(the_job(t)->goodput.steps, 1);
	assert_true(the_job(t)->goodput.down); /* it did train */
}

/* The only rank that had come says goodbye before the next one comes: it was not away for good. */
static void test_a_run_goes_on(void **state)
{
	struct sample beat = {.kind = SAMPLE_BEAT,
			      .node = WATCHING_NODE,
			      .rank = 1,
			      .device = SAMPLE_NONE,
			      .beat = {.step = 1}};
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	struct node_test *t = *state;

	begin_node(t);
	join(t, &t->a, 0, 2, "run1");
	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_AWAY);
	join(t, &t->b, 1, 2, "run1");
	assert_int_equal(the_job(t)->history.epoch.number, 1);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_RESTART);
	beat.job = the_job(t)->number;
	node_sample(t->host.node, &beat);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_TRAINING);
}

/* Who says goodbye is away, and not lost, also while what it saved last is committed. */
static void test_away(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	assert_int_equal(save_rank(&t->a, 0, 2), 0);
	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_AWAY);
	for (uint64_t end = 0; the_job(t)->last_durable_step < 2 && turn_on(t, &end);)
		;
	assert_int_equal(the_job(t)->goodput.newest_step, 2);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_AWAY);
	settle(t);
	end_node(t);
	begin_node(t);
	assert_int_equal(the_job(t)->goodput.state, GOODPUT_AWAY);
	assert_int_equal(the_job(t)->goodput.n_marks, 2); /* of the late one too */
	assert_int_equal(the_job(t)->goodput.steps, 2);
	join(t, &t->a, 0, 1, "run2");
	assert_int_equal(the_job(t)->goodput.failures[1], 0);
}

/* Of the file; ckptd is killed. */
static void end_and_name(struct node_test *t, char *path, size_t size)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, the_job(t)->history.job.id.b, 16);
	end_node(t);
	snprintf(path, size, "%s/jobs/%s/goodput", t->dir, hex);
}

static void overwrite(struct node_test *t, const char *with)
{
	char path[700];
	FILE *f;

	end_and_name(t, path, sizeof(path));
	f = fopen(path, "we");
	assert_non_null(f);
	fputs(with, f);
	fclose(f);
}

static void test_damaged(void **state)
{
	static const char *const damaged[] = {
		"",
		"{\"time_ns\":5",
		"[]",
		"{\"time_ns\":5,\"state\":\"training\"}",
		/* Whole, but for one number that is too large, and then one mark too low. */
		"{\"time_ns\":5,\"state\":\"away\",\"down\":false,\"ns\":{\"training\":"
		"9000000000000000000,\"rework\":0,\"restart\":0,\"stall\":0,\"hung\":0,\"slow\":0,"
		"\"away\":0},\"steps\":1,\"newest_step\":1,\"marks\":[],\"failures\":[0,0],"
		"\"stall\":[0,0],\"latency\":[[0,0],[0,0]]}",
		"{\"time_ns\":5,\"state\":\"away\",\"down\":false,\"ns\":{\"training\":1,"
		"\"rework\":0,\"restart\":0,\"stall\":0,\"hung\":0,\"slow\":0,\"away\":0},"
		"\"steps\":1,\"newest_step\":1,\"marks\":[[5,1],[4,1]],\"failures\":[0,0],"
		"\"stall\":[0,0],\"latency\":[[0,0],[0,0]]}",
	};
	struct node_test *t = *state;
	struct goodput before;

	run_and_kill(t, &before);
	begin_node(t);
	for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
		overwrite(t, damaged[i]);
		begin_node(t);
		assert_false(the_job(t)->goodput.begun);
		assert_int_equal(the_job(t)->goodput.ns[GOODPUT_TRAINING], 0);
	}
	assert_true(was_told("went to is counted anew"));
	/* The same without a fault is taken. */
	overwrite(t, "{\"time_ns\":5,\"state\":\"away\",\"down\":false,\"ns\":{\"training\":7,"
		     "\"rework\":0,\"restart\":0,\"stall\":0,\"hung\":0,\"slow\":0,\"away\":0},"
		     "\"steps\":1,\"newest_step\":1,\"marks\":[[4,1],[5,1]],\"failures\":[0,0],"
		     "\"stall\":[0,0],\"latency\":[[0,0],[0,0]]}");
	begin_node(t);
	assert_true(the_job(t)->goodput.begun);
	assert_int_equal(the_job(t)->goodput.ns[GOODPUT_TRAINING], 7);
}

/* A folder stands in its place: it can be neither read nor written, and the job is not held up. */
static void test_not_read(void **state)
{
	struct node_test *t = *state;
	char path[700];

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	settle(t);
	end_and_name(t, path, sizeof(path));
	assert_int_equal(remove(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	begin_node(t);
	assert_true(was_told("what the time of job 'job' went to is counted anew"));
	assert_false(the_job(t)->goodput.begun);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 1);
	declare_and_prepare(&t->a, 0, 1);
	save_until(&t->a, 0, 2, CKPT_DURABLE);
	goodput_keep(the_job(t));
	settle(t);
	assert_true(the_job(t)->goodput_file.told);
	assert_int_equal(the_job(t)->goodput.steps, 1);
	assert_int_equal(count_files(t, "jobs/*/tmp-*"), 0);
	/* Once it is out of the way all is as ever. */
	assert_int_equal(rmdir(path), 0);
	goodput_keep(the_job(t));
	settle(t);
	assert_false(the_job(t)->goodput_file.told);
	end_node(t);
	begin_node(t);
	assert_int_equal(the_job(t)->goodput.steps, 1);
}

/* What cannot be written is said once, and counts on. */
static void test_not_written(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	settle(t);
	token_error = -ENOSPC;
	goodput_keep(the_job(t));
	settle(t);
	assert_true(was_told("what its time went to could not be written"));
	token_error = 0;
	goodput_keep(the_job(t));
	settle(t);
	assert_false(the_job(t)->goodput_file.told);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	assert_int_equal(the_job(t)->goodput.steps, 1);
}

static void alarm_of(struct node_test *t, uint64_t id, struct subject s, enum verdict_class class,
		     bool stands)
{
	struct verdict v = {.id = id,
			    .subject = s,
			    .class = class,
			    .level = LEVEL_ALARM,
			    .state = stands ? VERDICT_RAISED : VERDICT_CLEARED,
			    .since_ns = loop_now(t->host.node->env.loop)};

	goodput_verdict(t->host.node, &v);
}

/* How much of cause came in the next milliseconds. */
static uint64_t comes(struct node_test *t, enum goodput_cause cause)
{
	struct goodput *g = &the_job(t)->goodput;
	uint64_t from = loop_now(t->host.node->env.loop), before;

	goodput_advance(g, from);
	before = g->ns[cause];
	while (loop_now(t->host.node->env.loop) < from + 2000000)
		host_turn(&t->host);
	goodput_advance(g, loop_now(t->host.node->env.loop));
	return g->ns[cause] - before;
}

/* Also what is wrong with the node, a GPU or a link holds its jobs up; until all of it is over. */
static void test_held_up(void **state)
{
	struct node_test *t = *state;
	struct subject gpu = subject_gpu(0, 3), link = subject_port(0, 1), rank, disk;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	rank = subject_rank(the_job(t)->number, 0, 0);
	disk = subject_disk(0, 2);
	alarm_of(t, 1, disk, CLASS_SLOW, true);
	alarm_of(t, 2, gpu, CLASS_FAILING, true);
	assert_true(comes(t, GOODPUT_TRAINING) > 0);
	assert_int_equal(the_job(t)->goodput.ns[GOODPUT_SLOW], 0);
	alarm_of(t, 3, gpu, CLASS_SLOW, true);
	alarm_of(t, 4, link, CLASS_SLOW, true);
	alarm_of(t, 5, rank, CLASS_SLOW, true);
	assert_int_equal(comes(t, GOODPUT_TRAINING), 0);
	assert_true(comes(t, GOODPUT_SLOW) > 0);
	alarm_of(t, 5, rank, CLASS_SLOW, false);
	alarm_of(t, 3, gpu, CLASS_SLOW, false);
	assert_true(comes(t, GOODPUT_SLOW) > 0); /* the link still is */
	/* A new run of it meets the same link. */
	leave(&t->a);
	member_left(member_of_rank(the_job(t), 0), MEMBER_ENDED);
	join(t, &t->a, 0, 1, "run2");
	declare_and_prepare(&t->a, 0, 1);
	save_until(&t->a, 0, 2, CKPT_DURABLE);
	assert_true(comes(t, GOODPUT_SLOW) > 0);
	alarm_of(t, 4, link, CLASS_SLOW, false);
	assert_int_equal(comes(t, GOODPUT_SLOW), 0);
	assert_true(comes(t, GOODPUT_TRAINING) > 0);
	alarm_of(t, 6, subject_node(0), CLASS_HUNG, true);
	assert_true(comes(t, GOODPUT_HUNG) > 0);
}

/* However many alarms stand: it is held up until the last of them is over. */
static void test_held_up_by_many(void **state)
{
	struct node_test *t = *state;
	struct subject rank;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	rank = subject_rank(the_job(t)->number, 0, 0);
	for (unsigned i = 0; i < 40; i++) {
		alarm_of(t, 1 + i, subject_gpu(0, i), CLASS_SLOW, true);
		alarm_of(t, 101 + i, rank, CLASS_HUNG, true);
	}
	for (unsigned i = 0; i < 39; i++) {
		alarm_of(t, 1 + i, subject_gpu(0, i), CLASS_SLOW, false);
		alarm_of(t, 101 + i, rank, CLASS_HUNG, false);
	}
	assert_true(comes(t, GOODPUT_HUNG) > 0);
	alarm_of(t, 140, rank, CLASS_HUNG, false);
	assert_true(comes(t, GOODPUT_SLOW) > 0);
	alarm_of(t, 40, subject_gpu(0, 39), CLASS_SLOW, false);
	assert_int_equal(comes(t, GOODPUT_SLOW), 0);
	assert_true(comes(t, GOODPUT_TRAINING) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_held_up),
		NODE_TEST(test_goes_on),
		NODE_TEST(test_its_first_step_is_kept),
		NODE_TEST(test_away),
		NODE_TEST(test_a_run_goes_on),
		NODE_TEST(test_damaged),
		NODE_TEST(test_not_written),
		NODE_TEST(test_held_up_by_many),
		NODE_TEST(test_not_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
