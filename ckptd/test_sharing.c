/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one user holds in a node whose memory, disk and workers are real: it is bounded, counted
 * until it is free, and given back.
 */
#include <config.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/memory.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "proto/session.pb-c.h"

/* Seals n blobs of no bytes with names of one character. */
static int seal_blobs(struct hand *k, uint64_t step, size_t n)
{
	Ckpt__BlobPlace *blob = alloc_array(n, sizeof(*blob));
	Ckpt__BlobPlace **blobs = alloc_array(n, sizeof(*blobs));
	uint64_t offset = round_up(k->image_bytes, 4096);
	int r = hand_credit(k);

	assert_non_null(blob);
	assert_non_null(blobs);
	for (size_t i = 0; i < n; i++) {
		blob[i] = (Ckpt__BlobPlace)CKPT__BLOB_PLACE__INIT;
		blob[i].name = (char *)"n";
		blob[i].image_offset = offset;
		blobs[i] = &blob[i];
	}
	if (r == 0)
		r = hand_seal(k, step, blobs, n, offset);
	alloc_free(blob);
	alloc_free(blobs);
	return r;
}

/* A call of the loop reads them, and another frees those of all ranks. */
static void test_blobs_are_bounded(void **state)
{
	struct node_test *t = *state;
	struct node *n;
	struct user *u;
	uint64_t has, end = 0;

	begin_node(t);
	n = t->host.node;
	join(t, &t->a, 0, 1, "run1");
	declare_and_prepare(&t->a, 0, 1);
	u = the_job(t)->user;
	has = u->has[USER_DECLARATION_BYTES];
	assert_int_equal(seal_blobs(&t->a, 10, SEAL_BLOBS_MAX + 1), CKPT_EPROTO);
	n->options.declaration_bytes_per_uid = has + 1000;
	assert_int_equal(seal_blobs(&t->a, 10, SEAL_BLOBS_MAX), -EDQUOT);
	assert_int_equal(u->has[USER_DECLARATION_BYTES], has);
	n->options.declaration_bytes_per_uid = 1ull << 30;
	assert_int_equal(seal_blobs(&t->a, 10, SEAL_BLOBS_MAX), 0);
	assert_true(u->has[USER_DECLARATION_BYTES] > has + SEAL_BLOBS_MAX);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_COMMITTED), CKPT_EABORTED); /* all of one name */
	while (u->has[USER_DECLARATION_BYTES] > has)
		assert_true(turn_on(t, &end));
	/* No client sends so many: the connection ends. */
	assert_true(seal_blobs(&t->a, 10, 7000) < 0);
	assert_true(list_empty(&n->sessions));
}

static const struct memory_ops *memory_ops;
static atomic_bool destroy_waits;
static _Atomic int waiting;

static void late_destroy(struct memory *m, struct region *r)
{
	bool mine = strncmp(r->name, "slot.", 5) == 0;

	waiting += mine;
	while (mine && destroy_waits)
		usleep(1000);
	memory_ops->destroy(m, r);
}

/* A place in the fd store, and memory, are not free before a worker has destroyed the region. */
static void test_regions_count_until_they_are_destroyed(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	struct node_test *t = *state;
	static struct memory_ops late;
	uint64_t end = 0, slots;
	struct user *u;

	q.body_case = CKPT__REQUEST__BODY_BYE;
	q.bye = &bye;
	begin_node(t);
	memory_ops = t->host.memory->ops;
	late = *memory_ops;
	late.destroy = late_destroy;
	t->host.memory->ops = &late; /* before there is work with memory: workers read it */
	slots = t->host.node->options.slots;
	join(t, &t->a, 0, 1, "run1");
	declare_and_prepare(&t->a, 0, 1);
	u = user_ref(the_job(t)->user);
	assert_int_equal(u->has[USER_REGIONS], slots + 1); /* and the ledger's */
	destroy_waits = true;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	while (waiting == 0)
		assert_true(turn_on(t, &end));
	for (int i = 0; i < 100; i++)
		host_turn(&t->host);
	assert_int_equal(u->has[USER_REGIONS], slots + 1);
	assert_true(u->has[USER_MEMORY_BYTES] >= slots * 4096);
	destroy_waits = false;
	while (u->has[USER_REGIONS] > 0)
		assert_true(turn_on(t, &end));
	assert_int_equal(u->has[USER_MEMORY_BYTES], 0);
	user_put(u);
	t->host.memory->ops = memory_ops;
}

static struct checkpoint *step_of(struct node_test *t, uint64_t step)
{
	return checkpoint_find(the_job(t), the_job(t)->history.epoch.number, step);
}

/* Between slices messages come: a checkpoint that goes is not read, nor written to disk, and one of
 * which nothing has gone is as good as before (I6, I9). */
static void test_memory_that_goes_in_slices(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *ten, *twenty;
	uint64_t end = 0;

	t->o.release_slice = 1;
	t->o.retention.keep_last = 10;
	begin_two(t);
	for (uint64_t step = 10; step <= 20; step += 10) {
		assert_int_equal(save_rank(&t->a, 0, step), 0);
		assert_int_equal(save_rank(&t->b, 1, step), 0);
		assert_int_equal(hand_wait(&t->a, step, CKPT_DURABLE), 0);
		step_of(t, step)->readers++;
	}
	ten = step_of(t, 10);
	twenty = step_of(t, 20);
	assert_int_equal(save_rank(&t->a, 0, 30), 0);
	assert_int_equal(save_rank(&t->b, 1, 30), 0);
	assert_int_equal(hand_wait(&t->a, 30, CKPT_DURABLE), 0);
	assert_true(ten->memory && twenty->memory); /* they are read */
	assert_int_equal(ten->n_memory, 2);
	assert_int_equal(ten->disk_bytes, commit_disk_bytes(ten->commit));
	assert_true(ten->disk_bytes > 2 * 4 * ELEMENTS);
	ten->readers--;
	twenty->readers--;
	checkpoint_collect(the_job(t));
	assert_true(ten->releasing && !ten->memory);
	assert_int_equal(ten->n_memory, 1);
	assert_null(ten->shards[0].slot);
	assert_non_null(ten->shards[1].slot);
	assert_false(checkpoint_memory_is_good(ten, 1));
	assert_false(persist_can(ten));
	assert_true(twenty->memory && !twenty->releasing);
	assert_true(checkpoint_memory_is_good(twenty, 0));
	load_rank_at(&t->a, 0, 10, CKPT_TIER_DISK, 10);
	while (twenty->shards[0].slot || twenty->shards[1].slot)
		assert_true(turn_on(t, &end));
	assert_true(save_rank(&t->a, 0, 40) == 0 && save_rank(&t->b, 1, 40) == 0);
	assert_int_equal(hand_wait(&t->a, 40, CKPT_COMMITTED), 0);
}

/* ---- What ranks hold alike ---- */

static void join_alike(struct node_test *t, const char *run)
{
	join(t, &t->a, 0, 2, run);
	join(t, &t->b, 1, 2, run);
	declare_elements(&t->a, 0, 1, ELEMENTS);
	declare_elements(&t->b, 0, 1, ELEMENTS);
	prepare_rank(&t->a);
	prepare_rank(&t->b);
}

/* All files of that step. */
static uint64_t save_alike(struct node_test *t, uint64_t step)
{
	char pattern[64];

	assert_int_equal(save_rank(&t->a, 0, step), 0);
	assert_int_equal(save_rank(&t->b, 0, step), 0);
	assert_int_equal(hand_wait(&t->a, step, CKPT_DURABLE), 0);
	snprintf(pattern, sizeof(pattern), "jobs/*/%llu.*/rank-*", (unsigned long long)step);
	return file_bytes(t, pattern);
}

/* What it takes is counted for its user, and what is found for as long as it is kept. */
static void test_what_is_alike_is_charged(void **state)
{
	struct node_test *t = *state;
	struct user *u;

	begin_node(t);
	join_alike(t, "run1");
	u = the_job(t)->user;
	assert_in_range(u->has[USER_PLAN_BYTES], 100, 20000);
	assert_true(save_alike(t, 10) < 4 * ELEMENTS * 3 / 2);
	leave(&t->a);
	leave(&t->b);
	while (!list_empty(&the_job(t)->members))
		member_left(list_first(&the_job(t)->members, struct member, link), MEMBER_BYE);
	for (uint64_t end = 0; u->has[USER_PLAN_BYTES] > 0;) /* nobody needs it now */
		assert_true(turn_on(t, &end));
	join_alike(t, "run2");
	assert_in_range(u->has[USER_PLAN_BYTES], 100, 20000);
	leave(&t->a);
	leave(&t->b);
	join(t, &t->a, 0, 2, "run3");
	join(t, &t->b, 1, 2, "run3");
	declare_rank(&t->a, 0, 2);
	declare_rank(&t->b, 1, 2);
	prepare_rank(&t->a);
	prepare_rank(&t->b);
	assert_int_equal(u->has[USER_PLAN_BYTES], 0);
}

/* Above the quota it is not looked for: nobody is refused, files are whole. */
static void test_what_is_alike_is_bounded(void **state)
{
	struct node_test *t = *state;
	struct node *n;

	begin_node(t);
	n = t->host.node;
	n->options.plan_bytes_per_uid = 1000;
	join_alike(t, "run1");
	assert_true(was_told("quota.plan_bytes_per_uid allows 1000 B"));
	assert_int_equal(the_job(t)->user->has[USER_PLAN_BYTES], 0);
	assert_true(save_alike(t, 10) > 2 * 4 * ELEMENTS);
	n->options.plan_bytes_per_uid = 1u << 30;
	assert_true(save_alike(t, 20) < 4 * ELEMENTS * 3 / 2); /* looked for again */
}

/* Works of seconds, and digests: neither is in the way of the other. Files wait for the former. */
static void test_search_beside_digests(void **state)
{
	struct node_test *t = *state;
	uint32_t uid = (uint32_t)geteuid();

	begin_node(t);
	block(t, WORK_CPU, uid);
	join_alike(t, "run1"); /* a Prepare waits for the search */
	unblock(t);
	block(t, WORK_CHECK, uid);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	assert_int_equal(save_rank(&t->b, 0, 10), 0);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_COMMITTED), 0);
	assert_false(step_of(t, 10)->durable == DUR_DONE);
	unblock(t);
	assert_int_equal(hand_wait(&t->a, 10, CKPT_DURABLE), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_blobs_are_bounded),
		NODE_TEST(test_regions_count_until_they_are_destroyed),
		NODE_TEST(test_memory_that_goes_in_slices),
		NODE_TEST(test_what_is_alike_is_charged),
		NODE_TEST(test_what_is_alike_is_bounded),
		NODE_TEST(test_search_beside_digests),
	};

	return cmocka_run_group_tests_name("sharing", tests, NULL, NULL);
}
