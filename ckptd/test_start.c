/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_start.c - a start that finds files of committed checkpoints missing or damaged: what the
 * log and the shard files suffice for is made again, the rest is named and kept (I8). And loads of
 * what a start cannot find: they fall back (I11).
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
#include "base/bytes.h"
#include "base/fault.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/refused.h"
#include "ckptd/test_node_rig.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "proto/session.pb-c.h"
#include "storage/disk_format.h"
#include "storage/shard_file.h"

/* The one file or folder of that pattern below the data folder. */
static void path_of(const struct node_test *t, const char *pattern, char ret[static 512])
{
	char full[512];
	glob_t g;

	snprintf(full, sizeof(full), "%s/%s", t->dir, pattern);
	assert_int_equal(glob(full, 0, NULL, &g), 0);
	assert_int_equal(g.gl_pathc, 1);
	snprintf(ret, 512, "%s", g.gl_pathv[0]);
	globfree(&g);
}

static void remove_file(const struct node_test *t, const char *pattern)
{
	char path[512];

	path_of(t, pattern, path);
	assert_int_equal(unlink(path), 0);
}

static void write_at(const struct node_test *t, const char *pattern, const void *bytes, size_t len,
		     off_t at)
{
	char path[512];
	int fd;

	path_of(t, pattern, path);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, len, at), len);
	close(fd);
}

static void flip(const struct node_test *t, const char *pattern, off_t at)
{
	char path[512];
	uint8_t b;
	int fd;

	path_of(t, pattern, path);
	fd = open(path, O_RDWR);
	assert_int_equal(pread(fd, &b, 1, at), 1);
	b ^= 1;
	assert_int_equal(pwrite(fd, &b, 1, at), 1);
	close(fd);
}

/* Two steps that are durable, of two ranks; the node has ended. */
static void save_two(struct node_test *t)
{
	begin_two(t);
	for (uint64_t step = 10; step <= 20; step += 10) {
		assert_int_equal(save_rank(&t->a, 0, step), 0);
		save_until(&t->b, 1, step, CKPT_DURABLE);
	}
	end_node(t);
}

static const struct checkpoint *found(struct node_test *t, uint64_t step)
{
	struct checkpoint *c;
	struct job *j;

	list_each(j, &t->host.node->jobs, link)
		list_each(c, &j->checkpoints, link)
			if (c->step == step)
				return c;
	return NULL;
}

/* Its folder is gone and no index names it. A person gives it up before a rank comes, whose epoch
 * would record that it is lost. */
static void test_folder_is_gone_and_given_up(void **state)
{
	struct node_test *t = *state;
	char command[512];

	save_two(t);
	snprintf(command, sizeof(command), "rm -r %s/jobs/*/20.*", t->dir);
	assert_int_equal(system(command), 0);
	begin_node(t);
	connect_rank(t, &t->a);
	assert_null(found(t, 20));
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__REMOVE, 30), CKPT_ENOTFOUND);
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__REMOVE, 20), 0);
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__REMOVE, 20), CKPT_ENOTFOUND);
	assert_int_equal(open_rank(&t->a, 0, 2, "run2"), 0);
	assert_int_equal(t->a.base_step, 10);
	assert_false(was_told("bytes are lost")); /* on purpose */
}

/* What a person takes away of the epoch that is on was committed: its step is not free again, also
 * when the log has been summed up without it (I4). */
static void test_step_that_was_removed_is_not_saved_again(void **state)
{
	struct node_test *t = *state;

	t->o.log_trim = 4;
	begin_two(t);
	for (uint64_t step = 10; step <= 20; step += 10) {
		assert_int_equal(save_rank(&t->a, 0, step), 0);
		save_until(&t->b, 1, step, CKPT_DURABLE);
	}
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__REMOVE, 20), 0);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__PIN, 10), 0);
		assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__UNPIN, 10), 0);
	}
	assert_int_equal(save_rank(&t->a, 0, 20), -EINVAL);
	assert_non_null(strstr(t->a.text, "is not above step 20"));
	assert_int_equal(save_rank(&t->a, 0, 30), 0);
	save_until(&t->b, 1, 30, CKPT_COMMITTED);
}

/* A launch of the job loads `step` from files. */
static void launch_loads(struct node_test *t, const char *run, uint64_t step)
{
	assert_int_equal(join(t, &t->a, 0, 2, run), step);
	join(t, &t->b, 1, 2, run);
	declare_rank(&t->a, 0, 2);
	declare_rank(&t->b, 1, 2);
	load_rank(&t->a, 0, step, CKPT_TIER_DISK);
	load_rank(&t->b, 1, step, CKPT_TIER_DISK);
}

static bool lost_stands(struct node_test *t)
{
	return problems_stand(list_first(&t->host.node->jobs, struct job, link), PROBLEM_LOST);
}

/* ckptd has died with its memory: the start says what that took, and no rank has come. */
static void test_what_died_with_memory_is_said(void **state)
{
	struct node_test *t = *state;

	t->o.persist_every = 1000;
	begin_two(t);
	for (uint64_t step = 10; step <= 40; step += 10) {
		assert_int_equal(save_rank(&t->a, 0, step), 0);
		save_until(&t->b, 1, step, step == 20 ? CKPT_DURABLE : CKPT_COMMITTED);
	}
	end_node(t);
	begin_node(t);
	assert_true(was_told("3 job 'job': steps 30 to 40, 2 in all, were committed and are lost: "
			     "neither memory nor files have them; the newest that is left is step "
			     "20"));
	assert_true(lost_stands(t));
	/* A launch goes on from what is left; until it has committed more the loss stands. */
	launch_loads(t, "run2", 20);
	assert_true(lost_stands(t));
	end_node(t);
	begin_node(t);
	assert_true(lost_stands(t));
	launch_loads(t, "run3", 20);
	prepare_rank(&t->a);
	prepare_rank(&t->b);
	assert_int_equal(save_rank(&t->a, 0, 25), 0);
	save_until(&t->b, 1, 25, CKPT_DURABLE);
	assert_false(lost_stands(t));
	assert_true(was_told("that is over: step 25 is committed"));
	end_node(t);
	begin_node(t);
	assert_false(lost_stands(t));
}

/* All that there was; a person gives it up. */
static void test_all_that_is_lost_is_given_up(void **state)
{
	struct node_test *t = *state;

	t->o.persist_every = 1000;
	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_COMMITTED);
	end_node(t);
	begin_node(t);
	assert_true(was_told("3 job 'job': step 10 was committed and is lost: neither memory nor "
			     "files have it; no checkpoint of the job is left"));
	connect_rank(t, &t->a);
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__REMOVE, 10), 0);
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	assert_false(lost_stands(t));
}

/* The only step is pinned, and neither memory nor files have it after the next start. */
static void lose_what_is_pinned(struct node_test *t)
{
	char command[512];

	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_DURABLE);
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__PIN, 10), 0);
	end_node(t);
	snprintf(command, sizeof(command), "rm -r %s/jobs/*/10.*", t->dir);
	assert_int_equal(system(command), 0);
	begin_node(t);
	connect_rank(t, &t->a);
}

/* In two steps. */
static void give_up_what_is_pinned(struct node_test *t)
{
	assert_true(lost_stands(t));
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__REMOVE, 10), -EBUSY);
	assert_non_null(strstr(t->a.text, "'ckptctl unpin job 10' first"));
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__UNPIN, 10), 0);
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__REMOVE, 10), 0);
	for (int i = 0; i < 50; i++)
		host_turn(&t->host);
	assert_false(lost_stands(t));
}

static void test_what_is_lost_and_pinned_is_given_up(void **state)
{
	lose_what_is_pinned(*state);
	give_up_what_is_pinned(*state);
}

/* The next epoch's record says that the step is lost. */
static void test_lost_and_pinned_behind_an_epoch(void **state)
{
	struct node_test *t = *state;

	lose_what_is_pinned(t);
	assert_int_equal(open_rank(&t->a, 0, 2, "run2"), 0);
	give_up_what_is_pinned(t);
}

/* Its COMMIT is there again after a start, the same as it was, and its bytes are. */
static void is_made_again(struct node_test *t, const void *was, size_t len)
{
	char path[512];
	uint8_t *now = malloc(len + 1);
	int fd;

	begin_node(t);
	assert_true(was_told("4 job 'job': step 20 on disk has its COMMIT again"));
	assert_non_null(found(t, 20));
	assert_true(found(t, 20)->rebuilt && !found(t, 20)->disk_suspect);
	path_of(t, "jobs/*/20.*/COMMIT", path);
	fd = open(path, O_RDONLY);
	assert_int_equal(read(fd, now, len + 1), len);
	assert_memory_equal(now, was, len);
	close(fd);
	free(now);
	launch_loads(t, "run2", 20);
	end_node(t);
	/* There is nothing to be done by the next start. */
	begin_node(t);
	assert_false(found(t, 20)->rebuilt);
}

static size_t read_commit(struct node_test *t, uint8_t *buf, size_t size)
{
	char path[512];
	ssize_t n;
	int fd;

	path_of(t, "jobs/*/20.*/COMMIT", path);
	fd = open(path, O_RDONLY);
	n = read(fd, buf, size);
	assert_true(n > 0 && (size_t)n < size);
	close(fd);
	return (size_t)n;
}

static void test_commit_gone(void **state)
{
	struct node_test *t = *state;
	uint8_t was[8192];
	size_t len;

	save_two(t);
	len = read_commit(t, was, sizeof(was));
	remove_file(t, "jobs/*/20.*/COMMIT");
	is_made_again(t, was, len);
}

static void test_commit_and_layout_gone(void **state)
{
	struct node_test *t = *state;
	char command[512];
	uint8_t was[8192];
	size_t len;

	save_two(t);
	len = read_commit(t, was, sizeof(was));
	remove_file(t, "jobs/*/20.*/COMMIT");
	snprintf(command, sizeof(command), "rm %s/layouts/* %s/declarations/*", t->dir, t->dir);
	assert_int_equal(system(command), 0);
	is_made_again(t, was, len);
	assert_int_equal(count_files(t, "layouts/*"), 1);
	assert_int_equal(count_files(t, "declarations/*"), 2);
}

static void test_commit_empty(void **state)
{
	struct node_test *t = *state;
	uint8_t was[8192];
	char path[512];
	size_t len;

	save_two(t);
	len = read_commit(t, was, sizeof(was));
	path_of(t, "jobs/*/20.*/COMMIT", path);
	assert_int_equal(truncate(path, 0), 0);
	is_made_again(t, was, len);
}

static void test_commit_of_another(void **state)
{
	struct node_test *t = *state;
	char from[512], to[512], command[1100];
	uint8_t was[8192];
	size_t len;

	save_two(t);
	len = read_commit(t, was, sizeof(was));
	path_of(t, "jobs/*/10.*/COMMIT", from);
	path_of(t, "jobs/*/20.*/COMMIT", to);
	snprintf(command, sizeof(command), "cp %s %s", from, to);
	assert_int_equal(system(command), 0);
	is_made_again(t, was, len);
}

/* Each field that the log has too; the digest is right, as a program's that knows the format. */
static void test_commit_says_other_things(void **state)
{
	static const struct {
		size_t at;
		uint8_t change;
	} fields[] = {{104, 1}, {128, 1}, {136, 1}, {144, 1}, {152, 1}, {164, 1}, {184, 2}};
	struct node_test *t = *state;
	uint8_t was[8192], bytes[8192];
	size_t len;

	save_two(t);
	len = read_commit(t, was, sizeof(was));
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		memcpy(bytes, was, len);
		bytes[fields[i].at] ^= fields[i].change;
		format_end(bytes, len);
		write_at(t, "jobs/*/20.*/COMMIT", bytes, len, 0);
		begin_node(t);
		assert_true(found(t, 20)->rebuilt);
		end_node(t);
		assert_int_equal(read_commit(t, bytes, sizeof(bytes)), len);
		assert_memory_equal(bytes, was, len);
	}
}

/* It stays what it is, through starts, until a person says that it may go. */
static void is_named_and_kept(struct node_test *t, const char *why)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin admin = CKPT__ADMIN__INIT;
	size_t files = count_files(t, "jobs/*/20.*/*");
	char run[16];

	for (int i = 0; i < 2; i++) {
		begin_node(t);
		assert_true(was_told("step 20 on disk cannot be used"));
		assert_non_null(found(t, 20));
		assert_true(found(t, 20)->disk_suspect);
		if (!strstr(found(t, 20)->reason, why))
			fail_msg("'%s' lacks '%s'", found(t, 20)->reason, why);
		snprintf(run, sizeof(run), "again%d", i);
		launch_loads(t, run, 10);
		assert_int_equal(count_files(t, "jobs/*/20.*/*"), files);
		end_node(t);
	}
	begin_node(t);
	connect_rank(t, &t->a);
	admin.verb = CKPT__ADMIN__VERB__REMOVE;
	admin.job = (char *)"job";
	admin.step = 20;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &admin;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	assert_int_equal(count_files(t, "jobs/*/20.*/rank*"), 0);
}

static void test_commit_and_a_leaf_gone(void **state)
{
	struct node_test *t = *state;

	save_two(t);
	remove_file(t, "jobs/*/20.*/COMMIT");
	flip(t, "jobs/*/20.*/rank-1.shard", 4096 + 70000);
	is_named_and_kept(t, "its COMMIT is gone; it cannot be made again: ");
}

static void test_commit_and_a_header_gone(void **state)
{
	struct node_test *t = *state;

	save_two(t);
	remove_file(t, "jobs/*/20.*/COMMIT");
	flip(t, "jobs/*/20.*/rank-0.shard", 60);
	is_named_and_kept(t, "its COMMIT is gone; it cannot be made again: ");
}

static void test_commit_damaged_and_a_file_gone(void **state)
{
	struct node_test *t = *state;

	save_two(t);
	flip(t, "jobs/*/20.*/COMMIT", 100);
	remove_file(t, "jobs/*/20.*/rank-1.shard");
	is_named_and_kept(t, "rank 1: the file is missing");
}

static void test_a_file_gone(void **state)
{
	struct node_test *t = *state;

	save_two(t);
	remove_file(t, "jobs/*/20.*/rank-1.shard");
	begin_node(t);
	/* Memory that has rank 1 completes it (I6). */
	assert_true(checkpoint_file_is_good(found(t, 20), 0));
	assert_false(checkpoint_file_is_good(found(t, 20), 1));
	end_node(t);
	is_named_and_kept(t, "rank 1: its file is gone");
}

/* Then they are looked for one by one; one that may be there or not is neither offered nor counted
 * until a start knows. */
static void test_a_folder_that_cannot_be_listed(void **state)
{
	struct node_test *t = *state;

	save_two(t);
	list_error = read_error = -EIO;
	unreadable_from = 20;
	begin_node(t);
	assert_true(was_told("step 20 on disk cannot be used: cannot look for its files"));
	assert_true(found(t, 20)->disk_suspect);
	assert_false(found(t, 10)->disk_suspect);
	end_node(t);
	list_error = -EIO;
	begin_node(t);
	assert_false(found(t, 20)->disk_suspect);
	launch_loads(t, "run2", 20);
	end_node(t);
	remove_file(t, "jobs/*/20.*/rank-1.shard");
	list_error = -EIO;
	begin_node(t);
	assert_true(checkpoint_file_is_good(found(t, 20), 0));
	assert_false(checkpoint_file_is_good(found(t, 20), 1));
}

/* What cannot be replaced by a file. */
static void test_commit_is_a_folder(void **state)
{
	struct node_test *t = *state;
	char path[512];

	save_two(t);
	path_of(t, "jobs/*/20.*/COMMIT", path);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0700), 0);
	begin_node(t);
	assert_true(was_told("3 job 'job': step 20 on disk cannot be used"));
	launch_loads(t, "run2", 10);
	assert_int_equal(count_files(t, "jobs/*/20.*/rank*"), 2);
}

/* As a write leaves them that power loss ended: named, and away once the log calls it lost. */
static void test_unfinished(void **state)
{
	static const uint8_t none[SHARD_HEADER_BYTES];
	struct node_test *t = *state;

	save_two(t);
	remove_file(t, "jobs/*/20.*/COMMIT");
	write_at(t, "jobs/*/20.*/rank-1.shard", none, sizeof(none), 0);
	begin_node(t);
	assert_int_equal(found(t, 20)->durable, DUR_UNFINISHED);
	assert_non_null(strstr(found(t, 20)->reason, "its files were not finished"));
	assert_int_equal(count_files(t, "jobs/*/20.*/rank*"), 2);
	launch_loads(t, "run2", 10);
	assert_true(was_told("step 20 was committed and its bytes are lost"));
	for (int i = 0; i < TURNS_MAX && count_files(t, "jobs/*/20.*") > 0; i++)
		usleep(1000);
	assert_int_equal(count_files(t, "jobs/*/20.*"), 0);
}

/* A log that was begun anew cannot know what had no COMMIT then. */
static void test_unknown_to_the_log(void **state)
{
	struct node_test *t = *state;
	char command[512];

	save_two(t);
	remove_file(t, "jobs/*/20.*/COMMIT");
	snprintf(command, sizeof(command), "rm -r %s/jobs/*/log", t->dir);
	assert_int_equal(system(command), 0);
	is_named_and_kept(t, "the log that knew it was lost");
}

/* ---- Digests that are right over what is wrong ---- */

/* Of rank 1's file of step 20: its footer, and where it lies. */
struct forged {
	char path[512];
	uint8_t header[SHARD_HEADER_BYTES], commit[8192], *footer;
	size_t commit_len, footer_len;
	uint64_t footer_at;
};

static void forge_begin(struct node_test *t, struct forged *f)
{
	int fd;

	path_of(t, "jobs/*/20.*/rank-1.shard", f->path);
	fd = open(f->path, O_RDONLY);
	assert_int_equal(pread(fd, f->header, sizeof(f->header), 0), sizeof(f->header));
	f->footer_at = get_le64(f->header + 112);
	f->footer_len = get_le64(f->header + 120);
	f->footer = malloc(f->footer_len);
	assert_int_equal(pread(fd, f->footer, f->footer_len, (off_t)f->footer_at), f->footer_len);
	close(fd);
	f->commit_len = read_commit(t, f->commit, sizeof(f->commit));
}

/* COMMIT leads to the footer as it is now; the rank table and the root stay what they are. */
static void forge_end(struct node_test *t, struct forged *f)
{
	static const uint8_t zeroes[DISK_ALIGN];
	uint8_t *line = f->commit + 256 + 72;
	size_t gap = round_up(f->footer_len, DISK_ALIGN) - f->footer_len;
	struct digest d;
	int fd;

	format_end(f->footer, f->footer_len);
	d = digest_of(f->footer, f->footer_len);
	memcpy(f->header + 128, d.b, 16);
	format_end(f->header, sizeof(f->header));
	memcpy(line + 24, d.b, 16);
	memcpy(line + 64, f->footer + 64, 8);
	format_end(f->commit, f->commit_len);
	fd = open(f->path, O_WRONLY);
	assert_int_equal(pwrite(fd, f->header, sizeof(f->header), 0), sizeof(f->header));
	assert_int_equal(pwrite(fd, f->footer, f->footer_len, (off_t)f->footer_at), f->footer_len);
	assert_int_equal(pwrite(fd, zeroes, gap, (off_t)(f->footer_at + f->footer_len)), gap);
	close(fd);
	write_at(t, "jobs/*/20.*/COMMIT", f->commit, f->commit_len, 0);
	free(f->footer);
}

/* Where the place of a chunk is in the footer. */
static uint8_t *place_of(struct forged *f, uint64_t chunk)
{
	return f->footer + FOOTER_FIXED_BYTES + round_up(get_le64(f->footer + 72), 8) +
	       chunk * CHUNK_PLACE_BYTES;
}

/* A load of latest that finds it is answered with an error once; the next has the one before. */
static void falls_back(struct node_test *t, const char *why)
{
	struct hand_loaded got = {.shards = {calloc(1, ELEMENTS * 4)}};

	begin_node(t);
	assert_false(found(t, 20)->rebuilt);
	assert_int_equal(join(t, &t->a, 0, 2, "run2"), 20);
	join(t, &t->b, 1, 2, "run2");
	declare_rank(&t->a, 0, 2);
	declare_rank(&t->b, 1, 2);
	assert_true(hand_load(&t->b, CKPT_LATEST, NULL, &got) < 0);
	free(got.shards[0]);
	assert_true(found(t, 20)->disk_suspect);
	if (!strstr(found(t, 20)->reason, why))
		fail_msg("'%s' lacks '%s'", found(t, 20)->reason, why);
	load_rank(&t->a, 0, 10, CKPT_TIER_DISK);
	load_rank(&t->b, 1, 10, CKPT_TIER_DISK);
	assert_true(was_told("fell back: step 20"));
}

static void test_forged_place(void **state)
{
	struct node_test *t = *state;
	struct forged f;

	save_two(t);
	forge_begin(t, &f);
	put_le64(place_of(&f, 0), 1u << 30);
	forge_end(t, &f);
	falls_back(t, "impossible place");
}

static void test_forged_version(void **state)
{
	struct node_test *t = *state;
	struct forged f;

	save_two(t);
	forge_begin(t, &f);
	put_le64(f.footer + 16, 1u << 20);
	forge_end(t, &f);
	falls_back(t, "a newer ckptd wrote it");
}

/* The first leaf, which no other rank stores, is said to be elsewhere. */
static void test_forged_hole(void **state)
{
	struct node_test *t = *state;
	uint64_t leaf, stored;
	struct forged f;
	uint8_t *place;

	save_two(t);
	forge_begin(t, &f);
	leaf = get_le32(f.header + 92);
	put_le64(f.header + 16, 1); /* leaves are missing */
	place = place_of(&f, 0);
	put_le32(place + 32, 1);
	stored = get_le32(place + 8) - leaf;
	put_le32(place + 8, (uint32_t)stored);
	put_le64(f.footer + 64, get_le64(f.footer + 64) - leaf);
	/* The footer follows what is stored. */
	f.footer_at = round_up(SHARD_HEADER_BYTES + stored, DISK_ALIGN);
	put_le64(f.header + 112, f.footer_at);
	put_le64(f.commit + 256 + 72 + 8, f.footer_at);
	forge_end(t, &f);
	falls_back(t, "stored by no rank");
}

/* ---- A job that cannot be read ---- */

/* Of one rank the file is good, of the other one memory: together they are the checkpoint (I6). */
static void test_file_and_memory_together(void **state)
{
	struct node_test *t = *state;
	struct checkpoint *c;

	begin_two(t);
	assert_int_equal(save_rank(&t->a, 0, 10), 0);
	save_until(&t->b, 1, 10, CKPT_DURABLE);
	c = (struct checkpoint *)(uintptr_t)found(t, 10);
	c->shards[0].slot->state = SLOT_QUARANTINED;
	c->memory = false;
	assert_true(checkpoint_restorable(c));
	c->shards[1].bad_file = c->disk_suspect = true;
	assert_true(checkpoint_restorable(c));
	c->shards[0].bad_file = true;
	assert_false(checkpoint_restorable(c));
	c->shards[0].slot->state = SLOT_DIGESTED;
	c->memory = true;
	c->shards[0].bad_file = c->shards[1].bad_file = c->disk_suspect = false;
}

/* What the document of status has of it: for its user and for operators, and for nobody else. */
static void says_unread(const struct node *n, size_t want)
{
	json_t *own = json_array(), *all = json_array(), *none = json_array(), *job;
	struct refused_job *r;

	list_each(r, &n->refused, link) {
		refused_json(r, getuid(), false, "", own);
		refused_json(r, getuid() + 1, true, "job", all);
		refused_json(r, getuid() + 1, false, "", none);
		refused_json(r, getuid(), true, "other", none);
	}
	assert_int_equal(json_array_size(own), want);
	assert_int_equal(json_array_size(all), want);
	assert_int_equal(json_array_size(none), 0);
	job = json_array_get(own, 0);
	assert_true(!want || strstr(json_string_value(json_object_get(job, "unread")),
				    "cannot be read, and is tried again"));
	assert_int_equal(json_integer_value(json_object_get(job, "uid")), want ? getuid() : 0);
	json_decref(own);
	json_decref(all);
	json_decref(none);
}

/* Another one that is there is served; that one is refused, untouched, and comes when it can be. */
static void test_one_job_cannot_be_read(void **state)
{
	struct node_test *t = *state;
	char path[512], aside[512 + 8];
	int code = -EAGAIN;

	save_two(t);
	path_of(t, "jobs/*/log", path);
	snprintf(aside, sizeof(aside), "%s.kept", path);
	begin_node(t);
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "other", 0, 1, "run1"), 0);
	end_node(t);
	/* A file where the folder should be: it cannot be listed. */
	assert_int_equal(rename(path, aside), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	begin_node(t);
	assert_true(was_told("3 job 'job' is refused: its folder jobs/"));
	connect_rank(t, &t->b);
	assert_int_equal(hand_open(&t->b, "other", 0, 1, "run2"), 0);
	connect_rank(t, &t->a);
	assert_int_equal(open_rank(&t->a, 0, 2, "run2"), -EAGAIN);
	assert_int_equal(count_files(t, "jobs/*/*/COMMIT"), 2);
	says_unread(t->host.node, 1);
	leave(&t->a);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rename(aside, path), 0);
	for (int i = 0; i < 600 && code == -EAGAIN; i++) {
		usleep(100000);
		connect_rank(t, &t->a);
		code = hand_open(&t->a, "job", 0, 2, "run2");
		if (code < 0)
			leave(&t->a);
	}
	assert_int_equal(code, 0);
	assert_int_equal(t->a.base_step, 20);
	assert_true(was_told("5 job 'job': its folder can be read again"));
	says_unread(t->host.node, 0);
}

/* Where only the index tells a step that was DURABLE from a write that did not end, it is asked of
 * a job that comes late, too. */
static void test_read_late_asks_the_index(void **state)
{
	struct node_test *t = *state;
	char path[512], aside[512 + 8];

	t->index = true;
	save_two(t);
	remove_file(t, "jobs/*/20.*/COMMIT");
	remove_file(t, "jobs/*/20.*/rank-1.shard");
	path_of(t, "jobs/*/log", path);
	snprintf(aside, sizeof(aside), "%s.kept", path);
	assert_int_equal(rename(path, aside), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	begin_node(t);
	assert_true(was_told("3 job 'job' is refused: its folder jobs/"));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rename(aside, path), 0);
	for (uint64_t end = 0; !was_told("its folder can be read again") && turn_on(t, &end);)
		;
	assert_true(was_told("its folder can be read again"));
	assert_int_equal(found(t, 20)->durable, DUR_DONE);
	assert_true(found(t, 20)->disk_suspect);
	launch_loads(t, "run2", 10);
	assert_int_equal(count_files(t, "jobs/*/20.*/rank*"), 1);
}

/* ---- Declarations and layouts that nothing uses ---- */

static void leave_unused(const struct node_test *t)
{
	static const char *const folders[] = {"layouts", "declarations"};
	char path[512];
	FILE *f;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s/0123456789abcdef0123456789abcde%d", t->dir,
			 folders[i], i);
		f = fopen(path, "w");
		assert_non_null(f);
		fclose(f);
	}
}

/* A start removes them; what its checkpoints use stays, and is there for the next start. */
static void test_unused_objects_go(void **state)
{
	struct node_test *t = *state;

	save_two(t);
	leave_unused(t);
	assert_int_equal(count_files(t, "layouts/*"), 2);
	begin_node(t);
	turn_until_told(t, "2 declarations and layouts that nothing uses were removed");
	assert_int_equal(count_files(t, "layouts/*"), 1);
	assert_int_equal(count_files(t, "declarations/*"), 2);
	launch_loads(t, "run2", 20);
}

/* While a job cannot be read, what it uses is not known. */
static void test_unused_objects_of_a_refused_job(void **state)
{
	struct node_test *t = *state;
	char path[512], aside[512 + 8];

	save_two(t);
	leave_unused(t);
	path_of(t, "jobs/*/log", path);
	snprintf(aside, sizeof(aside), "%s.kept", path);
	assert_int_equal(rename(path, aside), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	begin_node(t);
	assert_true(was_told("3 job 'job' is refused: its folder jobs/"));
	for (int i = 0; i < 100; i++)
		host_turn(&t->host);
	assert_null(t->host.node->tidy.sweep);
	assert_true(t->host.node->tidy.wanted);
	assert_int_equal(count_files(t, "layouts/*"), 2);
	assert_int_equal(count_files(t, "declarations/*"), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_commit_gone),
		NODE_TEST(test_commit_and_layout_gone),
		NODE_TEST(test_commit_empty),
		NODE_TEST(test_commit_of_another),
		NODE_TEST(test_commit_says_other_things),
		NODE_TEST(test_commit_and_a_leaf_gone),
		NODE_TEST(test_commit_and_a_header_gone),
		NODE_TEST(test_commit_damaged_and_a_file_gone),
		NODE_TEST(test_a_file_gone),
		NODE_TEST(test_a_folder_that_cannot_be_listed),
		NODE_TEST(test_commit_is_a_folder),
		NODE_TEST(test_folder_is_gone_and_given_up),
		NODE_TEST(test_step_that_was_removed_is_not_saved_again),
		NODE_TEST(test_unfinished),
		NODE_TEST(test_what_died_with_memory_is_said),
		NODE_TEST(test_all_that_is_lost_is_given_up),
		NODE_TEST(test_what_is_lost_and_pinned_is_given_up),
		NODE_TEST(test_lost_and_pinned_behind_an_epoch),
		NODE_TEST(test_unknown_to_the_log),
		NODE_TEST(test_forged_place),
		NODE_TEST(test_forged_version),
		NODE_TEST(test_forged_hole),
		NODE_TEST(test_file_and_memory_together),
		NODE_TEST(test_one_job_cannot_be_read),
		NODE_TEST(test_read_late_asks_the_index),
		NODE_TEST(test_unused_objects_go),
		NODE_TEST(test_unused_objects_of_a_refused_job),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
