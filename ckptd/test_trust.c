/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_trust.c - how checkpoints of a real node rise: read again, verified by what the job does,
 * doubted by alarms; and that only what is in the log counts.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/hook.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "ckptd/trust.h"
#include "detect/verdict.h"
#include "proto/session.pb-c.h"

#define FAST (1ull << 40)

static struct checkpoint *find(struct node_test *t, uint64_t step)
{
	struct checkpoint *c, *found = NULL;

	list_each(c, &the_job(t)->checkpoints, link)
		if (c->step == step && c->agreed == CP_COMMITTED)
			found = c;
	assert_non_null(found);
	return found;
}

static void turn_until_said(struct node_test *t, uint64_t step, uint32_t bits)
{
	uint64_t end = 0;

	while ((find(t, step)->trust & bits) != bits && turn_on(t, &end))
		;
	assert_int_equal(find(t, step)->trust & bits, bits);
}

static void set_rate(struct node_test *t, uint64_t rate)
{
	t->o.recheck_rate = rate;
	node_reload(t->host.node, &t->o);
	job_poke(the_job(t));
}

/* Changes a byte of the only file of that kind. */
static void damage_file(struct node_test *t, const char *pattern, off_t at)
{
	char path[512];
	glob_t g;
	int fd;
	char c;

	snprintf(path, sizeof(path), "%s/%s", t->dir, pattern);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	assert_int_equal(g.gl_pathc, 1);
	fd = open(g.gl_pathv[0], O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, at), 1);
	c ^= 1;
	assert_int_equal(pwrite(fd, &c, 1, at), 1);
	close(fd);
	globfree(&g);
}

/* As the detector tells it. */
static void tell_alarm(struct node_test *t, uint64_t since_ns, enum verdict_state state)
{
	struct verdict v = {.id = 7,
			    .class = CLASS_DIVERGING,
			    .level = LEVEL_ALARM,
			    .state = state,
			    .since_ns = since_ns};

	trust_verdict(t->host.node, the_job(t), &v);
}

static int set_trust(struct node_test *t, uint32_t level, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = CKPT__ADMIN__VERB__TRUST;
	m.job = (char *)"job";
	m.step = step;
	m.trust = level;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	return hand_ask_code(&t->a, &q);
}

/* ---- Complete ---- */

static void test_files_and_memory_are_read_again(void **state)
{
	struct node_test *t = *state;

	t->o.recheck_rate = FAST;
	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	turn_until_told(t,
			"7 job 'job': step 1 is complete"); /* not in the log of who saves much */
	assert_true(find(t, 1)->reread_disk);
	assert_true(find(t, 1)->reread_memory);
	end_node(t);
	t->o.recheck_rate = 0;
	begin_node(t);
	assert_int_equal(find(t, 1)->trust, TRUST_COMPLETE); /* the log says so */
}

/* Workers are busy elsewhere while a job is to be removed: nothing of it is read meanwhile, or it
 * would be freed under that. */
static void test_a_job_that_is_being_removed(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q = CKPT__REQUEST__INIT, bye = CKPT__REQUEST__INIT;
	Ckpt__Bye say = CKPT__BYE__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	uint64_t id, end = 0, works = 0;
	struct job *other;

	t->o.recheck_rate = 0;
	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "other", 0, 1, "run1"), 0);
	declare_and_prepare(&t->b, 0, 1);
	save_until(&t->b, 0, 1, CKPT_DURABLE);
	bye.body_case = CKPT__REQUEST__BODY_BYE;
	bye.bye = &say;
	assert_int_equal(hand_ask_code(&t->a, &bye), 0);
	leave(&t->a);
	connect_rank(t, &t->a);
	for (int i = 0; i < 500; i++)
		host_turn(&t->host); /* what is written of its end */
	other = list_last(&t->host.node->jobs, struct job, link);
	assert_string_equal(other->history.job.name, "other");
	block(t, WORK_META, (uint32_t)geteuid());
	m.verb = CKPT__ADMIN__VERB__REMOVE_JOB;
	m.job = (char *)"job";
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	assert_int_equal(hand_send(&t->a, &q), 0);
	while (the_job(t)->removal == JOB_KEPT && turn_on(t, &end))
		;
	assert_int_equal(the_job(t)->removal, JOB_LEAVES);
	t->o.recheck_rate = FAST;
	node_reload(t->host.node, &t->o);
	job_poke(other);
	for (int i = 0; i < 100; i++) {
		host_turn(&t->host);
		works += find(t, 1)->works;
	}
	assert_true(still_blocked());
	assert_int_equal(works, 0);
	unblock(t);
	assert_int_equal(hand_receive(&t->a, &id), 0);
	assert_ptr_equal(the_job(t), other);
	turn_until_told(t, "7 job 'other': step 1 is complete");
}

/* A job that saves much does not keep the copies of others from being read. */
static void test_jobs_take_turns(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *other;
	struct job *second;
	uint64_t end = 0;

	begin_one(t);
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "other", 0, 1, "run1"), 0);
	declare_and_prepare(&t->b, 0, 1);
	save_until(&t->b, 0, 1, CKPT_DURABLE);
	for (uint64_t step = 1; step <= 3; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	second = list_last(&t->host.node->jobs, struct job, link);
	assert_string_equal(second->history.job.name, "other");
	other = list_first(&second->checkpoints, struct checkpoint, link);
	set_rate(t, FAST);
	while (other->said != TRUST_COMPLETE && turn_on(t, &end))
		;
	/* What is said, not what is recorded: the two logs take their own time. */
	assert_int_equal(other->said, TRUST_COMPLETE);
	assert_int_equal(find(t, 3)->said, TRUST_COMPLETE);
	assert_int_equal(find(t, 1)->said, TRUST_LATEST);
	turn_until_said(t, 1, TRUST_COMPLETE);
}

static const struct loop_ops *real_loop;

/* From now on nothing is waited for longer than 2 ms. */
static void hurried_arm(struct loop *l, struct timer *t, uint64_t deadline_ns)
{
	uint64_t soon = loop_now(l) + 2000000;

	real_loop->timer_arm(l, t, deadline_ns < soon ? deadline_ns : soon);
}

static void hurry(struct node_test *t)
{
	static struct loop_ops hurried;

	real_loop = t->host.loop->ops;
	hurried = *real_loop;
	hurried.timer_arm = hurried_arm;
	t->host.loop->ops = &hurried;
}

#ifdef CKPT_FAULTS
/* There is no memory for the trust records; they are written once there is some. */
static void test_a_record_that_memory_refuses(void **state)
{
	struct node_test *t = *state;
	uint64_t before, end = 0;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	before = fault_hits(FAULT_LOG_ENCODE);
	fault_arm(FAULT_LOG_ENCODE, FAULT_ERROR, before + 1, true);
	set_rate(t, FAST);
	while (fault_hits(FAULT_LOG_ENCODE) == before && turn_on(t, &end))
		;
	assert_true(fault_hits(FAULT_LOG_ENCODE) > before);
	assert_int_equal(find(t, 1)->said, TRUST_COMPLETE);
	assert_int_equal(find(t, 1)->trust, TRUST_LATEST);
	fault_arm(FAULT_LOG_ENCODE, FAULT_NONE, 0, false);
	hurry(t);
	turn_until_said(t, 1, TRUST_COMPLETE);
	while (find(t, 1)->trust != TRUST_COMPLETE && turn_on(t, &end))
		;
	assert_int_equal(find(t, 1)->trust, TRUST_COMPLETE);
}
#endif

/* Two that cannot be read for the moment, which says nothing of their bytes: older ones are read
 * meanwhile, and these when they can be. */
static void test_who_cannot_be_read_lets_others_pass(void **state)
{
	struct node_test *t = *state;

	t->o.retention.keep_last = 4;
	begin_one(t);
	for (uint64_t step = 1; step <= 4; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	hurry(t);
	unreadable_from = 3;
	read_error = -EMFILE;
	set_rate(t, FAST);
	turn_until_said(t, 2, TRUST_COMPLETE);
	turn_until_said(t, 1, TRUST_COMPLETE);
	assert_int_equal(find(t, 3)->trust, TRUST_LATEST);
	assert_int_equal(find(t, 4)->trust, TRUST_LATEST);
	assert_false(find(t, 3)->disk_suspect || find(t, 4)->disk_suspect);
	read_error = 0;
	turn_until_said(t, 4, TRUST_COMPLETE);
	turn_until_said(t, 3, TRUST_COMPLETE);
}

static void test_of_what_is_only_in_memory(void **state)
{
	struct node_test *t = *state;

	t->o.recheck_rate = FAST;
	t->o.persist_every = 1000;
	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_COMMITTED);
	turn_until_told(t, "step 1 is complete");
	assert_false(find(t, 1)->reread_disk);
	save_until(&t->a, 0, 2, CKPT_DURABLE); /* who waits has it written */
	turn_until_told(t, "step 2 is complete");
}

/* What matched before it went needs no other copy; and the next one's turn comes, though nothing
 * else happens. */
static void test_memory_goes_between_two_slices(void **state)
{
	struct node_test *t = *state;

	t->o.recheck_rate = 100 << 10; /* seconds between two slices */
	t->o.retention.keep_last = 10;
	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	for (uint64_t end = 0; !find(t, 1)->reread_disk && turn_on(t, &end);)
		;
	for (uint64_t step = 2; find(t, 1)->memory; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	assert_true(find(t, 1)->reread_disk && !find(t, 1)->reread_memory);
	turn_until_said(t, 1, TRUST_COMPLETE);
	turn_until_said(t, 2, TRUST_COMPLETE);
}

static void test_off_means_off(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	assert_int_equal(find(t, 1)->trust, TRUST_LATEST);
	set_rate(t, FAST);
	turn_until_told(t, "step 1 is complete");
}

/* Memory has what it should hold: it is written again, and is as good as before. */
static void test_a_damaged_file_is_written_again(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	save_until(&t->a, 0, 2, CKPT_DURABLE);
	damage_file(t, "jobs/*/2.*/rank-*", 8192);
	set_rate(t, FAST);
	turn_until_told(t, "step 2, rank 0: its file was read again");
	assert_true(find(t, 2)->disk_suspect);
	turn_until_told(t, "step 2 is complete"); /* the new one was read again in its turn */
	assert_false(find(t, 2)->disk_suspect);
	assert_int_equal(find(t, 2)->job->rewritten, 1);
	end_node(t); /* memory is gone */
	t->o.recheck_rate = 0;
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 2);
	declare_and_prepare(&t->a, 0, 1);
	load_rank(&t->a, 0, 2, CKPT_TIER_DISK);
}

static void opened(void *arg, int status)
{
	*(int *)arg = status;
}

/* The disk of the log fails, and the next epoch waits for it. The file is written again all the
 * same: a record touches no file. */
static void test_a_file_is_written_again_without_the_log(void **state)
{
	struct node_test *t = *state;
	int status = 1;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	save_until(&t->a, 0, 2, CKPT_DURABLE);
	log_error = -EIO;
	epoch_fall_back(the_job(t), "for a test", TRUST_LATEST, opened, &status);
	turn_until_told(t, "trying again each second");
	damage_file(t, "jobs/*/2.*/rank-*", 8192);
	set_rate(t, FAST);
	turn_until_told(t, "are written again from memory");
	assert_int_equal(status, 1);
	assert_true(epoch_is_opening_from(find(t, 2)));
	assert_false(find(t, 2)->disk_suspect);
	log_error = 0;
	for (uint64_t end = 0; status == 1 && turn_on(t, &end);)
		;
	assert_int_equal(status, 0);
}

/* Saves step 1 of two ranks, and has ckptd write rank 0's file again, which waits. Memory of rank 1
 * is gone: its loads read the file. */
static struct checkpoint *begin_rewrite(struct node_test *t)
{
	struct checkpoint *c;

	begin_two(t);
	assert_int_equal(save_rank(&t->b, 1, 1), 0);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	c = find(t, 1);
	c->shards[1].slot->state = SLOT_QUARANTINED;
	c->memory = false;
	shard_waits = true;
	checkpoint_suspect(c, 0, "rank 0: for a test");
	job_poke(c->job);
	for (uint64_t end = 0; !c->job->rewrite && turn_on(t, &end);)
		;
	assert_non_null(c->job->rewrite);
	return c;
}

static void turn_until_rewritten(struct node_test *t)
{
	shard_waits = false;
	turn_until_told(t, "step 1: 1 of its files were damaged and are written again");
}

/* It reads the files that are not written, and their COMMIT goes when the new one is there. */
static void test_a_load_beside_a_rewrite(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c = begin_rewrite(t);

	load_rank_at(&t->b, 1, 1, CKPT_TIER_DISK, 1);
	load_rank_at(&t->a, 0, 1, CKPT_TIER_MEMORY, 1);
	assert_non_null(c->job->rewrite);
	turn_until_rewritten(t);
	assert_false(c->disk_suspect);
	load_rank_at(&t->b, 1, 1, CKPT_TIER_DISK, 1);
}

/* What a load says of another file meanwhile still holds when the first one is good again. */
static void test_a_file_goes_bad_beside_a_rewrite(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c = begin_rewrite(t);

	checkpoint_suspect(c, 1, "rank 1: for a test");
	turn_until_rewritten(t);
	assert_true(checkpoint_file_is_good(c, 0));
	assert_false(checkpoint_file_is_good(c, 1));
	assert_true(c->disk_suspect);
	assert_string_equal(c->reason, "rank 1: for a test");
	assert_false(checkpoint_restorable(c));
}

/* As a start leaves it that found no COMMIT, could not make it, and has adopted the memory. */
static struct checkpoint *lose_commit(struct node_test *t)
{
	struct checkpoint *c;
	char path[512];
	glob_t g;

	begin_two(t);
	assert_int_equal(save_rank(&t->b, 1, 1), 0);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	c = find(t, 1);
	snprintf(path, sizeof(path), "%s/jobs/*/1.*/COMMIT", t->dir);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	assert_int_equal(unlink(g.gl_pathv[0]), 0);
	globfree(&g);
	commit_file_fini(c->commit);
	alloc_free(c->commit);
	c->commit = NULL;
	c->commit_gone = c->files_suffice = true;
	checkpoint_suspect(c, ALL_RANKS, "its COMMIT is gone");
	return c;
}

static ino_t file_number(const struct node_test *t, const char *pattern)
{
	char path[512];
	struct stat st;
	glob_t g;

	snprintf(path, sizeof(path), "%s/%s", t->dir, pattern);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	assert_int_equal(stat(g.gl_pathv[0], &st), 0);
	globfree(&g);
	return st.st_ino;
}

/* After a restart without memory both ranks load step 1 from its files. */
static void loads_from_disk(struct node_test *t)
{
	end_node(t);
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 2, "run2"), 1);
	join(t, &t->b, 1, 2, "run2");
	declare_rank(&t->a, 0, 2);
	declare_rank(&t->b, 1, 2);
	load_rank(&t->a, 0, 1, CKPT_TIER_DISK);
	load_rank(&t->b, 1, 1, CKPT_TIER_DISK);
}

/* Files that suffice are all that power loss would leave: they stay whatever the disk refuses, and
 * get their COMMIT as soon as it can be written (I7, I8). */
static void test_commit_alone_is_made_again(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c = lose_commit(t);
	ino_t was = file_number(t, "jobs/*/1.*/rank-0.shard");

	token_error = -ENOSPC;
	pretended_room = 0;
	job_poke(c->job);
	turn_until_told(t, "step 1 stays in memory until there is room");
	assert_true(c->disk_suspect && c->durable == DUR_DONE);
	assert_int_equal(file_number(t, "jobs/*/1.*/rank-0.shard"), was);
	assert_int_equal(count_files(t, "jobs/*/1.*/rank-*"), 2);
	assert_int_equal(hand_wait(&t->a, 1, CKPT_DURABLE), CKPT_ENOSPACE); /* not lost */
	disk_is_good();
	persist_room(t->host.node);
	assert_int_equal(hand_wait(&t->a, 1, CKPT_DURABLE), 0);
	turn_until_told(t, "step 1 has its COMMIT again");
	assert_false(c->disk_suspect);
	assert_int_equal(c->job->rewritten, 0);
	assert_int_equal(file_number(t, "jobs/*/1.*/rank-0.shard"), was);
	loads_from_disk(t);
}

/* With one of its files, and the layout: memory has what is needed for all of it. */
static void test_commit_and_files_are_made_again(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c = lose_commit(t);
	char command[512];

	snprintf(command, sizeof(command),
		 "rm %s/layouts/* %s/declarations/* %s/jobs/*/1.*/rank-0.shard", t->dir, t->dir,
		 t->dir);
	assert_int_equal(system(command), 0);
	job_poke(c->job);
	turn_until_told(t, "step 1: 2 of its files were damaged and are written again");
	assert_false(c->disk_suspect);
	assert_int_equal(count_files(t, "declarations/*"), 2);
	loads_from_disk(t);
}

/* Files that are written again count where the next start looks for them. */
static void test_folder_goes_while_files_are_made_again(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c = lose_commit(t);

	folder_gone_with = "jobs/*/1.*/COMMIT";
	job_poke(c->job);
	turn_until_told(t, "its damaged files cannot be written again: the data folder is gone");
	assert_true(c->disk_suspect);
	folder_gone_with = NULL;
	job_poke(c->job);
	turn_until_told(t, "step 1 has its COMMIT again");
	assert_false(c->disk_suspect);
	loads_from_disk(t);
}

/* Its ranks leave, and the folder is back: the problem ends all the same. */
static void test_folder_is_back_without_ranks(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c;
	uint64_t end = 0;

	t->o.warn_after_ns = 400000000; /* a look each 0.1 s */
	c = lose_commit(t);
	folder_gone_with = "jobs/*/1.*/COMMIT";
	job_poke(c->job);
	turn_until_told(t, "its damaged files cannot be written again: the data folder is gone");
	assert_true(problems_stand(the_job(t), PROBLEM_FOLDER));
	while (!list_empty(&the_job(t)->members))
		member_left(list_first(&the_job(t)->members, struct member, link), MEMBER_ENDED);
	folder_gone_with = NULL;
	turn_until_told(t, "step 1 has its COMMIT again");
	for (int i = 0; problems_stand(the_job(t), PROBLEM_FOLDER) && i < 3000; i++)
		turn_on(t, &end);
	assert_false(problems_stand(the_job(t), PROBLEM_FOLDER));
	assert_string_equal(the_job(t)->disk_text, "");
}

/* "latest" is answered with it: a newer commit does not take the only good copy away, though its
 * files cannot be written (I15). */
static void test_the_base_stays_in_memory(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	leave(&t->a);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 1);
	declare_and_prepare(&t->a, 0, 1);
	load_rank(&t->a, 0, 1, CKPT_TIER_MEMORY);
	c = find(t, 1);
	shard_error = -EIO;
	checkpoint_suspect(c, 0, "rank 0: for a test");
	job_poke(c->job);
	for (uint64_t end = 0; !rewrite_gave_up(c) && turn_on(t, &end);)
		;
	assert_true(rewrite_gave_up(c));
	for (uint64_t step = 2; step <= 5; step++)
		save_until(&t->a, 0, step, CKPT_COMMITTED);
	assert_true(find(t, 1)->memory);
	load_rank(&t->a, 0, 1, CKPT_TIER_MEMORY);
}

/* Nothing is written from memory that is damaged too. */
static void test_damaged_memory_is_not_written(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	save_until(&t->a, 0, 2, CKPT_DURABLE);
	for (size_t i = 0; i < t->a.n_slots; i++)
		if (t->a.numbers[i] == find(t, 2)->shards[0].slot->number)
			t->a.slots[i][70000] ^= 4;
	damage_file(t, "jobs/*/2.*/rank-*", 8192);
	set_rate(t, FAST);
	turn_until_told(t, "step 2: its damaged files cannot be written again");
	assert_true(find(t, 2)->disk_suspect);
	assert_int_equal(find(t, 2)->shards[0].slot->state, SLOT_QUARANTINED);
	assert_int_equal(find(t, 2)->job->rewritten, 0);
}

static void test_a_damaged_file_is_found(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	save_until(&t->a, 0, 2, CKPT_DURABLE);
	damage_file(t, "jobs/*/2.*/rank-*", 8192);
	end_node(t); /* memory is gone */
	t->o.recheck_rate = 0;
	begin_node(t);
	/* A new life of ckptd reads COMMIT alone: it is found bad by whoever reads it. */
	set_rate(t, FAST);
	for (uint64_t end = 0; !find(t, 2)->disk_suspect && turn_on(t, &end);)
		;
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 1);
	declare_and_prepare(&t->a, 0, 1);
	load_rank(&t->a, 0, 1, CKPT_TIER_DISK);
}

static void test_damaged_memory_is_found(void **state)
{
	struct node_test *t = *state;

	t->o.persist_every = 1000;
	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_COMMITTED);
	for (size_t i = 0; i < t->a.n_slots; i++)
		if (t->a.numbers[i] == find(t, 1)->shards[0].slot->number)
			t->a.slots[i][70000] ^= 4;
	set_rate(t, FAST);
	turn_until_told(t, "step 1, rank 0: its memory was read again");
	assert_int_equal(find(t, 1)->shards[0].slot->state, SLOT_QUARANTINED);
	assert_false(checkpoint_restorable(find(t, 1)));
}

/* ---- Verified ---- */

static void test_healthy_steps_verify(void **state)
{
	struct node_test *t = *state;

	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 10;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn_until_told(t, "step 10 is complete");
	save_until(&t->a, 0, 19, CKPT_DURABLE);
	turn_until_told(t, "step 19 is complete");
	assert_int_equal(find(t, 10)->trust, TRUST_COMPLETE);
	assert_int_equal(trust_healthy_steps(find(t, 10)), 9);
	trust_progress(the_job(t), 20); /* a beat says so */
	turn_until_told(t, "step 10 is verified");
	assert_int_equal(find(t, 19)->trust, TRUST_COMPLETE);
	trust_progress(the_job(t), 5); /* an old one changes nothing */
	assert_int_equal(trust_healthy_steps(find(t, 19)), 1);
}

/* Of a rank, by what it says while it is in the epoch. */
static void test_beats_count(void **state)
{
	struct node_test *t = *state;
	uint64_t now;

	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 10;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn_until_told(t, "step 10 is complete");
	now = loop_now(t->host.loop);
	trust_beat(the_job(t), 0, 20, 1);   /* of before it was in the epoch */
	trust_beat(the_job(t), 5, 20, now); /* there is no such rank */
	trust_beat(NULL, 0, 20, now);
	assert_int_equal(trust_healthy_steps(find(t, 10)), 0);
	/* Any number is one step more: it may be of tokens, or nonsense. */
	trust_beat(the_job(t), 0, UINT64_MAX, now);
	assert_int_equal(trust_healthy_steps(find(t, 10)), 1);
	for (uint64_t step = 12; step < 20; step++)
		trust_beat(the_job(t), 0, step, now);
	assert_int_equal(trust_healthy_steps(find(t, 10)), 9);
	trust_beat(the_job(t), 0, 19, now); /* once */
	assert_int_equal(trust_healthy_steps(find(t, 10)), 9);
	trust_beat(the_job(t), 0, 20, now);
	turn_until_told(t, "step 10 is verified");
}

/* Not before it is complete. */
static void test_steps_alone_do_not_verify(void **state)
{
	struct node_test *t = *state;

	t->o.healthy_steps = 10;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	trust_progress(the_job(t), 100);
	for (int i = 0; i < 20; i++)
		host_turn(&t->host);
	assert_int_equal(find(t, 10)->trust, TRUST_LATEST);
	set_rate(t, FAST);
	turn_until_told(t, "step 10 is verified");
}

static void test_an_alarm_doubts_its_window(void **state)
{
	struct node_test *t = *state;
	uint64_t began;

	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 10;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn_until_told(t, "step 10 is complete");
	began = find(t, 10)->committed_ns + 1;
	save_until(&t->a, 0, 15, CKPT_DURABLE);
	tell_alarm(t, began, VERDICT_RAISED);
	tell_alarm(t, 1, VERDICT_UPDATED); /* the same one, louder */
	turn_until_said(t, 15, TRUST_DOUBTED);
	assert_false(find(t, 10)->trust & TRUST_DOUBTED);
	save_until(&t->a, 0, 18, CKPT_DURABLE); /* it still stands */
	turn_until_said(t, 18, TRUST_DOUBTED);
	trust_progress(the_job(t), 30);
	turn_until_told(t, "step 18 is complete"); /* its bytes are as they were saved */
	assert_int_equal(find(t, 10)->trust, TRUST_COMPLETE);
	tell_alarm(t, began, VERDICT_CLEARED);
	trust_progress(the_job(t), 39);
	assert_int_equal(trust_healthy_steps(find(t, 10)), 9); /* anew, from 30 on */
	assert_int_equal(trust_healthy_steps(find(t, 15)), 0);
	trust_progress(the_job(t), 40);
	turn_until_told(t, "step 10 is verified");
	end_node(t);
	begin_node(t);
	assert_int_equal(find(t, 15)->trust & TRUST_DOUBTED, TRUST_DOUBTED);
	trust_progress(the_job(t), 1000);
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	assert_int_equal(trust_level(find(t, 15)->trust), TRUST_COMPLETE);
	assert_false(was_told("step 15 is verified"));
}

/* One that doubts nothing, since nothing was committed meanwhile: no record has it, and steps of an
 * older life do not count. */
static void test_an_alarm_before_a_restart(void **state)
{
	struct node_test *t = *state;
	uint64_t began;

	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 50;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	began = find(t, 10)->committed_ns + 1;
	trust_progress(the_job(t), 30);
	tell_alarm(t, began, VERDICT_RAISED);
	tell_alarm(t, began, VERDICT_CLEARED);
	save_until(&t->a, 0, 40, CKPT_DURABLE);
	turn_until_told(t, "step 40 is complete");
	assert_int_equal(trust_healthy_steps(find(t, 10)), 10); /* anew, from 30 on */
	end_node(t);
	begin_node(t);
	assert_int_equal(trust_healthy_steps(find(t, 10)), 0);
	trust_progress(the_job(t), 89);
	assert_int_equal(trust_healthy_steps(find(t, 10)), 49);
	assert_int_equal(trust_level(find(t, 10)->trust), TRUST_COMPLETE);
	trust_progress(the_job(t), 90);
	turn_until_told(t, "step 10 is verified");
}

/* What the job does not go on from is not verified by what it does. */
static void test_of_another_line(void **state)
{
	struct node_test *t = *state;

	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 10;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn_until_told(t, "step 10 is complete");
	save_until(&t->a, 0, 12, CKPT_DURABLE);
	turn_until_told(t, "step 12 is complete");
	assert_int_equal(set_trust(t, TRUST_BAD, 12), 0);
	leave(&t->a);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 10);
	declare_and_prepare(&t->a, 0, 1);
	load_rank(&t->a, 0, 10, CKPT_TIER_DISK);
	save_until(&t->a, 0, 11, CKPT_DURABLE);
	turn_until_told(t, "step 11 is complete");
	trust_progress(the_job(t), 30);
	turn_until_told(t, "step 11 is verified");
	turn_until_told(t, "step 10 is verified");
	assert_int_equal(find(t, 12)->trust, TRUST_BAD | TRUST_COMPLETE);
	assert_int_equal(trust_healthy_steps(find(t, 12)), 0);
}

/* ---- What people say ---- */

static void test_said_by_somebody(void **state)
{
	struct node_test *t = *state;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	save_until(&t->a, 0, 2, CKPT_DURABLE);
	assert_int_equal(set_trust(t, TRUST_VERIFIED, 1), 0);
	assert_int_equal(find(t, 1)->trust, TRUST_VERIFIED);
	assert_int_equal(set_trust(t, TRUST_BAD, 2), 0);
	assert_int_equal(set_trust(t, TRUST_COMPLETE, 2), -EINVAL); /* not for people to say */
	assert_int_equal(set_trust(t, TRUST_VERIFIED, 3), CKPT_ENOTFOUND);
	end_node(t);
	begin_node(t);
	assert_int_equal(find(t, 1)->trust, TRUST_VERIFIED);
	assert_int_equal(find(t, 2)->trust, TRUST_BAD);
	/* As good as damaged: passed over, and said. */
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 1);
	assert_true(was_told("fell back to step 1: step 2: it was said to be bad"));
}

/* ---- Retention ---- */

static void test_the_newest_verified_stays(void **state)
{
	struct node_test *t = *state;

	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 10;
	t->o.keep_verified = true;
	t->o.retention.keep_last = 1;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn_until_told(t, "step 10 is complete"); /* else it may go before it was read again */
	for (uint64_t step = 15; step <= 50; step += 5)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	turn_until_told(t, "is verified");
	tell_alarm(t, 1, VERDICT_RAISED); /* nothing newer rises any more */
	for (uint64_t step = 55; step <= 90; step += 5)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	for (uint64_t end = 0; count_files(t, "jobs/*/*/COMMIT") > 2 && turn_on(t, &end);)
		;
	assert_int_equal(count_files(t, "jobs/*/*/COMMIT"), 2);
	t->o.keep_verified = false;
	node_reload(t->host.node, &t->o);
	save_until(&t->a, 0, 95, CKPT_DURABLE);
	for (uint64_t end = 0; count_files(t, "jobs/*/*/COMMIT") > 1 && turn_on(t, &end);)
		;
	assert_int_equal(count_files(t, "jobs/*/*/COMMIT"), 1);
}

/* A launch whose Prepare finds no room, but that of step 10, which gives way to it. */
static void relaunch_without_room(struct node_test *t)
{
	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 1000;
	t->o.keep_verified = true;
	t->o.retention.keep_last = 1;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn_until_told(t, "step 10 is complete"); /* it stays, as the next to be verified */
	for (uint64_t step = 20; step <= 40; step += 10)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	leave(&t->a);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 40);
	declare_rank(&t->a, 0, 1);
	/* The launch's own records are written: the next ones are the Prepare's. */
	for (int i = 0; i < 50 || job_has_appends(the_job(t)) || the_job(t)->retaining; i++)
		host_turn(&t->host);
	pretended_room = 0;
}

/* A Prepare waits for the room of a checkpoint that gives way to it, but not for a log that cannot
 * be written, without which that does not go. */
static void test_no_room_without_the_log(void **state)
{
	struct node_test *t = *state;

	relaunch_without_room(t);
	log_error = -EIO;
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE);
	assert_true(the_job(t)->retaining); /* its record waits for the log */
	assert_int_equal(count_files(t, "jobs/*/10.*/COMMIT"), 1);
	assert_int_equal(hand_prepare(&t->a), CKPT_ENOSPACE); /* nor does the next one wait */
	log_error = 0;
	pretended_room = UINT64_MAX;
	prepare_rank(&t->a);
	save_until(&t->a, 0, 50, CKPT_DURABLE);
}

/* The rank ends while its Prepare waits for room. */
static void test_leaves_while_room_is_made(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	uint64_t end = 0;

	relaunch_without_room(t);
	atomic_store(&log_sync_waits, true);
	assert_int_equal(hand_send_prepare_early(&t->a), 0);
	while (list_empty(&the_job(t)->room_waits) && turn_on(t, &end))
		;
	assert_false(list_empty(&the_job(t)->room_waits));
	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	assert_int_equal(hand_send(&t->a, &q), 0);
	end = 0;
	while (!list_empty(&the_job(t)->members) && turn_on(t, &end))
		;
	atomic_store(&log_sync_waits, false);
	end = 0;
	while (!list_empty(&the_job(t)->room_waits) && turn_on(t, &end))
		;
	for (int i = 0; i < 200; i++)
		host_turn(&t->host);
	pretended_room = UINT64_MAX;
	leave(&t->a);
	assert_int_equal(join(t, &t->a, 0, 1, "run3"), 40);
	declare_and_prepare(&t->a, 0, 1);
	save_until(&t->a, 0, 50, CKPT_DURABLE);
}

/* What is saved while an alarm stands does not push away what was saved before it. */
static void test_the_newest_undoubted_stays(void **state)
{
	struct node_test *t = *state;

	t->o.recheck_rate = FAST;
	t->o.healthy_steps = 1000;
	t->o.keep_verified = true;
	t->o.retention.keep_last = 2;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	turn_until_told(t, "step 10 is complete"); /* else it may go before it was read again */
	for (uint64_t step = 20; step <= 40; step += 10)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	tell_alarm(t, find(t, 40)->committed_ns + 1, VERDICT_RAISED);
	for (uint64_t step = 50; step <= 100; step += 10)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	for (uint64_t end = 0; count_files(t, "jobs/*/*/COMMIT") > 4 && turn_on(t, &end);)
		;
	assert_int_equal(count_files(t, "jobs/*/10.*/COMMIT"), 1); /* the next to be verified */
	assert_int_equal(count_files(t, "jobs/*/40.*/COMMIT"), 1);
	assert_int_equal(count_files(t, "jobs/*/90.*/COMMIT"), 1);
	assert_int_equal(count_files(t, "jobs/*/100.*/COMMIT"), 1);
	assert_int_equal(count_files(t, "jobs/*/*/COMMIT"), 4);
}

/* ---- trust.hook ---- */

static struct hook_question asked;
static void (*answer)(void *arg, int status);
static void *answer_arg;

static int fake_start(struct hooks *h, const struct hook_question *q,
		      void (*done)(void *arg, int status), void *arg)
{
	(void)h;
	asked = *q;
	answer = done;
	answer_arg = arg;
	return 0;
}

static void turn_until_asked(struct node_test *t, uint64_t step)
{
	for (uint64_t end = 0; !(answer && asked.id.step == step) && turn_on(t, &end);)
		;
	assert_non_null(answer);
	assert_int_equal(asked.id.step, step);
}

static void give_answer(int status)
{
	void (*done)(void *arg, int status) = answer;

	answer = NULL;
	done(answer_arg, status);
}

static void test_a_program_says(void **state)
{
	static const struct hooks_ops ops = {.start = fake_start};
	struct hooks hooks = {.ops = &ops};
	struct node_test *t = *state;

	answer = NULL;
	t->o.recheck_rate = FAST;
	t->o.retention.keep_last = 1;
	snprintf(t->o.hook, sizeof(t->o.hook), "/bin/check");
	begin_one(t);
	t->host.node->env.hooks = &hooks;
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	turn_until_asked(t, 1);
	assert_string_equal(asked.program, "/bin/check");
	assert_string_equal(asked.job, "job");
	save_until(&t->a, 0, 2, CKPT_DURABLE); /* the first one stays while it is looked at */
	turn_until_told(t, "step 2 is complete");
	assert_int_equal(count_files(t, "jobs/*/*/COMMIT"), 2);
	give_answer(0);
	turn_until_told(t, "step 1 is verified");
	turn_until_asked(t, 2);
	give_answer(1);
	turn_until_said(t, 2, TRUST_BAD);
	assert_true(was_told("step 2: trust.hook says that it is bad"));
	save_until(&t->a, 0, 3, CKPT_DURABLE);
	turn_until_asked(t, 3);
	give_answer(-ETIMEDOUT);
	assert_true(was_told("step 3: trust.hook does not know: it took too long"));
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	assert_null(answer); /* once */
	assert_int_equal(find(t, 3)->trust, TRUST_COMPLETE);
}

/* ---- Loads that ask ---- */

static int load_code(struct node_test *t, uint64_t step, uint64_t *ret_step)
{
	struct hand_loaded got = {.shards = {calloc(ELEMENTS, 4)}};
	int r = hand_load(&t->a, step, NULL, &got);

	*ret_step = got.step;
	free(got.shards[0]);
	return r;
}

/* Steps 1 verified, 2 complete, 3 latest; then another launch. */
static void begin_with_levels(struct node_test *t)
{
	begin_one(t);
	for (uint64_t step = 1; step <= 3; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	trust_say(find(t, 2), TRUST_COMPLETE);
	turn_until_told(t, "step 2 is complete");
	assert_int_equal(set_trust(t, TRUST_VERIFIED, 1), 0);
	leave(&t->a);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 3);
	declare_and_prepare(&t->a, 0, 1);
}

static void test_a_load_goes_back(void **state)
{
	struct node_test *t = *state;

	begin_with_levels(t);
	t->a.min_trust = TRUST_COMPLETE;
	load_rank(&t->a, 0, 2, CKPT_TIER_DISK);
	assert_int_equal(the_job(t)->history.epoch.number, 3);
	assert_string_equal(the_job(t)->history.epoch.reason,
			    "went back: complete is asked for, and step 3 is latest");
	load_rank(&t->a, 0, 2, CKPT_TIER_DISK); /* the same base, the same epoch */
	t->a.min_trust = TRUST_LATEST;
	load_rank(&t->a, 0, 2, CKPT_TIER_DISK);
	assert_int_equal(the_job(t)->history.epoch.number, 3);
	t->a.min_trust = TRUST_VERIFIED;
	load_rank(&t->a, 0, 1, CKPT_TIER_DISK);
	assert_int_equal(the_job(t)->history.epoch.number, 4);
	/* What it went back behind is there, and never the latest (I5). */
	t->a.min_trust = TRUST_LATEST;
	load_rank_at(&t->a, 0, 3, CKPT_TIER_MEMORY, 3);
	end_node(t);
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run3"), 1);
}

#ifdef CKPT_FAULTS
/* An epoch that does not come to be passes nothing over, now or for the next ckptd. */
static void test_a_load_that_cannot_go_back(void **state)
{
	struct node_test *t = *state;
	uint64_t step = 0;

	begin_with_levels(t);
	fault_disarm_all();
	t->a.min_trust = TRUST_COMPLETE;
	fault_arm(FAULT_EPOCH_RECORD, FAULT_ERROR, 1, false);
	assert_int_equal(load_code(t, CKPT_LATEST, &step), -EIO);
	fault_disarm_all();
	for (int i = 0; i < 20; i++)
		host_turn(&t->host);
	assert_int_equal(find(t, 3)->trust & TRUST_PASSED, 0);
	assert_int_equal(epoch_newest_restorable(the_job(t))->step, 3);
	end_node(t);
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run3"), 3);
	declare_and_prepare(&t->a, 0, 1);
	t->a.min_trust = TRUST_COMPLETE;
	load_rank(&t->a, 0, 2, CKPT_TIER_DISK);
	assert_int_equal(find(t, 3)->trust & TRUST_PASSED, TRUST_PASSED);
}
#endif

static void test_of_a_step(void **state)
{
	struct node_test *t = *state;
	uint64_t step = 0;

	begin_with_levels(t);
	t->a.min_trust = TRUST_COMPLETE;
	assert_int_equal(load_code(t, 3, &step), CKPT_ENOTFOUND);
	load_rank_at(&t->a, 0, 1, CKPT_TIER_DISK, 1);
	t->a.min_trust = 9;
	assert_int_equal(load_code(t, 1, &step), CKPT_EVERSION);
}

static void test_nothing_is_trusted_as_much(void **state)
{
	struct node_test *t = *state;
	uint64_t step = 0, epoch;

	begin_one(t);
	save_until(&t->a, 0, 1, CKPT_DURABLE);
	leave(&t->a);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 1);
	declare_and_prepare(&t->a, 0, 1);
	t->a.min_trust = TRUST_VERIFIED;
	epoch = the_job(t)->history.epoch.number;
	assert_int_equal(load_code(t, CKPT_LATEST, &step), CKPT_ENOTFOUND);
	assert_non_null(strstr(t->a.text, "verified is asked for, step 1 is latest"));
	assert_int_equal(the_job(t)->history.epoch.number, epoch);
	t->a.min_trust = TRUST_LATEST;
	load_rank(&t->a, 0, 1, CKPT_TIER_MEMORY);
}

/* One has loaded, the other one asks for more: the first cannot save before it has loaded again. */
static void test_ranks_that_ask_differently(void **state)
{
	struct node_test *t = *state;

	begin_two(t);
	for (uint64_t step = 1; step <= 2; step++) {
		assert_int_equal(save_rank(&t->a, 0, step), 0);
		save_until(&t->b, 1, step, CKPT_DURABLE);
	}
	assert_int_equal(set_trust(t, TRUST_VERIFIED, 1), 0);
	leave(&t->a);
	leave(&t->b);
	assert_int_equal(join(t, &t->a, 0, 2, "run2"), 2);
	join(t, &t->b, 1, 2, "run2");
	declare_and_prepare(&t->a, 0, 2);
	declare_and_prepare(&t->b, 1, 2);
	load_rank(&t->a, 0, 2, CKPT_TIER_MEMORY);
	t->b.min_trust = TRUST_VERIFIED;
	load_rank(&t->b, 1, 1, CKPT_TIER_DISK);
	assert_int_equal(save_rank(&t->a, 0, 3), CKPT_EEPOCH);
	load_rank(&t->a, 0, 1, CKPT_TIER_DISK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_files_and_memory_are_read_again),
		NODE_TEST(test_a_job_that_is_being_removed),
		NODE_TEST(test_jobs_take_turns),
#ifdef CKPT_FAULTS
		NODE_TEST(test_a_record_that_memory_refuses),
#endif
		NODE_TEST(test_who_cannot_be_read_lets_others_pass),
		NODE_TEST(test_of_what_is_only_in_memory),
		NODE_TEST(test_memory_goes_between_two_slices),
		NODE_TEST(test_off_means_off),
		NODE_TEST(test_a_damaged_file_is_found),
		NODE_TEST(test_a_damaged_file_is_written_again),
		NODE_TEST(test_a_file_is_written_again_without_the_log),
		NODE_TEST(test_a_load_beside_a_rewrite),
		NODE_TEST(test_a_file_goes_bad_beside_a_rewrite),
		NODE_TEST(test_commit_alone_is_made_again),
		NODE_TEST(test_commit_and_files_are_made_again),
		NODE_TEST(test_folder_goes_while_files_are_made_again),
		NODE_TEST(test_folder_is_back_without_ranks),
		NODE_TEST(test_the_base_stays_in_memory),
		NODE_TEST(test_damaged_memory_is_not_written),
		NODE_TEST(test_damaged_memory_is_found),
		NODE_TEST(test_healthy_steps_verify),
		NODE_TEST(test_beats_count),
		NODE_TEST(test_steps_alone_do_not_verify),
		NODE_TEST(test_an_alarm_doubts_its_window),
		NODE_TEST(test_an_alarm_before_a_restart),
		NODE_TEST(test_of_another_line),
		NODE_TEST(test_said_by_somebody),
		NODE_TEST(test_the_newest_verified_stays),
		NODE_TEST(test_no_room_without_the_log),
		NODE_TEST(test_leaves_while_room_is_made),
		NODE_TEST(test_the_newest_undoubted_stays),
		NODE_TEST(test_a_program_says),
		NODE_TEST(test_a_load_goes_back),
#ifdef CKPT_FAULTS
		NODE_TEST(test_a_load_that_cannot_go_back),
#endif
		NODE_TEST(test_of_a_step),
		NODE_TEST(test_nothing_is_trusted_as_much),
		NODE_TEST(test_ranks_that_ask_differently),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
