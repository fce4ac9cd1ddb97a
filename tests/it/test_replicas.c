/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_replicas.c - what several ranks hold alike is on disk once, and is all there: rows D9 and
 * D10 of doc/features.md. Four ranks have parameters that each has whole and moments of which each
 * has a part.
 */
#include <config.h>

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "tests/lib/rig.h"

#define ELEMENTS 2000000ul /* 8 MB each in four replicated tensors, and in one that is cut */
#define RANKS    4u
/* Bytes of the state once: the small ones are next to nothing. */
#define STATE (4 * 4 * ELEMENTS + 4 * ELEMENTS + 2 * ELEMENTS)

static void open_as(struct trainer_process *t, struct rig *r, unsigned rank, unsigned world,
		    const char *run)
{
	trainer_start(t, r, NULL);
	trainer_must(t, "open job %u %u %s 10000", rank, world, run);
	trainer_must(t, "declare %lu 3 replicated", ELEMENTS);
}

static void open_world(struct trainer_process *t, struct rig *r, const char *run)
{
	for (unsigned i = 0; i < RANKS; i++)
		open_as(&t[i], r, i, RANKS, run);
	for (unsigned i = 0; i < RANKS; i++)
		trainer_must(&t[i], "prepare 65536");
	for (unsigned i = 0; i < RANKS; i++)
		trainer_must(&t[i], "load -1 1");
}

static void close_world(struct trainer_process *t)
{
	for (unsigned i = 0; i < RANKS; i++)
		trainer_exit(&t[i]);
}

static void save_durable(struct trainer_process *t, int step)
{
	RIG_CHECK(trainers_save(t, RANKS, (uint64_t)step, 1) == 0, "save: %s", t[0].text);
	trainer_must(&t[0], "wait %d %d 60000", step, CKPT_DURABLE);
}

static void save_world(struct rig *r, const char *run, int step)
{
	struct trainer_process t[RANKS];

	open_world(t, r, run);
	save_durable(t, step);
	close_world(t);
}

/* Step 10, and 20, in which one byte of rank 2's copy is another. */
static void save_disagreeing(struct rig *r)
{
	struct trainer_process t[RANKS];

	open_world(t, r, "run1");
	save_durable(t, 10);
	trainer_must(&t[2], "touch 3 5000000"); /* of p1 */
	for (unsigned i = 0; i < RANKS; i++)
		trainer_tell(&t[i], "resave 20 20000");
	for (unsigned i = 0; i < RANKS; i++)
		RIG_CHECK(trainer_answer(&t[i], RIG_PATIENCE_MS) == 0, "save: %s", t[i].text);
	trainer_must(&t[0], "wait 20 %d 60000", CKPT_DURABLE);
	close_world(t);
}

/* The files are read from the disk, not from memory. */
static void forget_pages(struct rig *r)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

	RIG_CHECK(rig_stop(r) == 0, "the stop");
	sync();
	if (fd < 0 || flock(fd, LOCK_EX) != 0 /* of tests that count what is read */ ||
	    write(fd, "3", 1) != 1)
		rig_note("the page cache is as it was: that takes root");
	if (fd >= 0)
		close(fd);
	rig_start(r);
}

/* Sizes of the files of one step's ranks; returns their sum. */
static uint64_t file_sizes(struct rig *r, int step, uint64_t sizes[RANKS])
{
	char pattern[300];
	uint64_t sum = 0;
	struct stat st;
	glob_t g;

	snprintf(pattern, sizeof(pattern), "%s/jobs/*/%d.*/rank-*.shard", r->data, step);
	RIG_CHECK(glob(pattern, 0, NULL, &g) == 0, "no file like %s", pattern);
	RIG_CHECK(g.gl_pathc == RANKS, "%zu files, not %u", g.gl_pathc, RANKS);
	for (size_t i = 0; i < RANKS; i++) {
		RIG_CHECK(stat(g.gl_pathv[i], &st) == 0, "%s", g.gl_pathv[i]);
		sizes[i] = (uint64_t)st.st_size;
		sum += sizes[i];
	}
	globfree(&g);
	rig_note("all files: %.3f of the state once, %.2f MB", (double)sum / STATE,
		 (double)sum / 1e6);
	return sum;
}

static void load_world(struct rig *r, unsigned world, int step, int tier)
{
	struct trainer_process t[8];
	char run[32], want[32];

	snprintf(run, sizeof(run), "load-%d-%u", step, world);
	snprintf(want, sizeof(want), "%d 1 %d", step, tier);
	for (unsigned i = 0; i < world; i++)
		open_as(&t[i], r, i, world, run);
	for (unsigned i = 0; i < world; i++)
		trainer_tell(&t[i], "load -1 0");
	for (unsigned i = 0; i < world; i++) {
		int code = trainer_answer(&t[i], RIG_PATIENCE_MS);

		/* A rank that was not there at the save has no blobs to be judged by. */
		if (code == -9998 && i >= RANKS && strstr(t[i].text, "blobs"))
			continue;
		RIG_CHECK(code >= 0, "rank %u of %u: %d %s", i, world, code, t[i].text);
		RIG_CHECK(strcmp(t[i].text, want) == 0, "rank %u of %u: '%s'", i, world, t[i].text);
	}
	for (unsigned i = 0; i < world; i++)
		trainer_exit(&t[i]);
}

static void verify(struct rig *r)
{
	static char text[65536];
	int code = rig_ctl(r, text, sizeof(text), "verify");

	RIG_CHECK(code == 0, "verify: %d %s", code, text);
}

static void stored_once(struct rig *r)
{
	uint64_t sizes[RANKS], sum, most = 0;

	rig_start(r);
	save_world(r, "run1", 10);
	sum = file_sizes(r, 10, sizes);
	for (unsigned i = 0; i < RANKS; i++) {
		most = sizes[i] > most ? sizes[i] : most;
		rig_note("rank %u writes %.3f of the mean", i,
			 (double)sizes[i] * RANKS / (double)sum);
	}
	RIG_CHECK(sum >= STATE && sum < STATE + STATE / 50, "%llu bytes for a state of %lu",
		  (unsigned long long)sum, STATE);
	RIG_CHECK(most * RANKS * 10 <= sum * 11, "one rank writes %llu of %llu bytes",
		  (unsigned long long)most, (unsigned long long)sum);
	verify(r);
	for (unsigned world = 1; world <= 5; world++) {
		forget_pages(r);
		load_world(r, world, 10, CKPT_TIER_DISK);
	}
	RIG_CHECK(rig_log_count(r, "not the same") == 0, "an alarm about equal bytes");
}

/* Each chunk is compressed without the leaves that others have. */
static void compressed(struct rig *r)
{
	uint64_t sizes[RANKS], sum;

	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.compression=1");
	rig_start(r);
	save_world(r, "run1", 10);
	sum = file_sizes(r, 10, sizes);
	RIG_CHECK(sum < STATE * 8 / 10, "%llu bytes for a state of %lu", (unsigned long long)sum,
		  STATE);
	verify(r);
	forget_pages(r);
	load_world(r, 4, 10, CKPT_TIER_DISK);
	load_world(r, 3, 10, CKPT_TIER_DISK);
}

/* Every rank's file has all that the rank has. */
static void stored_by_all(struct rig *r)
{
	uint64_t sizes[RANKS], sum;

	rig_start(r);
	save_world(r, "run1", 10);
	sum = file_sizes(r, 10, sizes);
	RIG_CHECK(sum > 4 * 4 * 4 * ELEMENTS, "%llu bytes", (unsigned long long)sum);
	verify(r);
}

static void switched_off(struct rig *r)
{
	rig_arg(r, "--set");
	rig_arg(r, "storage.dedup=no");
	stored_by_all(r);
}

static void status_says(struct rig *r, const char *words)
{
	static char text[65536];
	int code = rig_ctl(r, text, sizeof(text), "status job");

	RIG_CHECK(code == 1 && strstr(text, words), "status: %d %s", code, text);
}

static bool accuses_rank_2(void *arg)
{
	return rig_log_count(arg, "alarm, corrupting: rank 2 of job job") == 1;
}

/* One byte of rank 2's copy is another: each rank has its own bytes back, and ckptd says so; of
 * four replicas the one that differs from three is the odd one. */
static void ranks_disagree(struct rig *r)
{
	struct trainer_process t[RANKS];
	uint64_t sizes[RANKS], sum;

	rig_start(r);
	save_disagreeing(r);
	sum = file_sizes(r, 20, sizes);
	RIG_CHECK(sum > STATE + STATE / 200 && sum < STATE * 3 / 2, "%llu bytes",
		  (unsigned long long)sum);
	RIG_CHECK(rig_log_count(r, "step 20: elements [1250000:1250001] of tensor 'p1' are not the "
				   "same on rank 2 as on ranks 0, 1, 3") == 1,
		  "the log does not say so");
	status_says(r, "tensor 'p1' are not the same on rank 2");
	rig_wait(accuses_rank_2, r, "the detector names the rank");
	verify(r);
	forget_pages(r);
	for (unsigned i = 0; i < RANKS; i++)
		open_as(&t[i], r, i, RANKS, "run2");
	for (unsigned i = 0; i < RANKS; i++)
		trainer_tell(&t[i], "load -1 0");
	for (unsigned i = 0; i < RANKS; i++) {
		int code = trainer_answer(&t[i], RIG_PATIENCE_MS);

		if (i == 2)
			RIG_CHECK(code == -9998 && strstr(t[i].text, "step 20, p1"),
				  "rank 2 has not its own bytes: %d %s", code, t[i].text);
		else
			RIG_CHECK(code >= 0, "rank %u: %d %s", i, code, t[i].text);
	}
	close_world(t);
}

/* A write that fails is tried again, and what was compared is compared again: one alarm. */
static void told_once(struct rig *r)
{
#ifndef CKPT_FAULTS
	rig_skip("no fault points in this build");
#endif
	rig_env(r, "CKPT_FAULT=SHARD_DATA=error@5");
	rig_start(r);
	save_disagreeing(r);
	RIG_CHECK(rig_log_count(r, "write step 20 to disk, try 1 of") == 1, "nothing failed");
	RIG_CHECK(rig_log_count(r, "not the same on rank 2") == 1, "told %u times",
		  rig_log_count(r, "not the same on rank 2"));
	verify(r);
}

static void damage(const char *pattern, bool take_away)
{
	struct stat st;
	uint8_t b;
	glob_t g;
	int fd;

	RIG_CHECK(glob(pattern, 0, NULL, &g) == 0 && g.gl_pathc == 1, "no file '%s'", pattern);
	if (take_away) {
		RIG_CHECK(unlink(g.gl_pathv[0]) == 0, "unlink '%s'", g.gl_pathv[0]);
		globfree(&g);
		return;
	}
	fd = open(g.gl_pathv[0], O_RDWR | O_CLOEXEC);
	RIG_CHECK(fd >= 0 && fstat(fd, &st) == 0, "open '%s'", g.gl_pathv[0]);
	RIG_CHECK(pread(fd, &b, 1, st.st_size / 2) == 1, "read '%s'", g.gl_pathv[0]);
	b ^= 0x40;
	RIG_CHECK(pwrite(fd, &b, 1, st.st_size / 2) == 1 && fsync(fd) == 0, "write '%s'",
		  g.gl_pathv[0]);
	close(fd);
	globfree(&g);
}

/* What one file alone has of a replicated tensor is bad or gone: no rank is given the step, all are
 * told that they get the one before, and can go on from it. */
static void one_file_is_bad(struct rig *r, bool take_away)
{
	static char text[65536];
	struct trainer_process t[RANKS];
	char pattern[300];

	rig_start(r);
	open_world(t, r, "run1");
	for (int step = 10; step <= 20; step += 10)
		save_durable(t, step);
	close_world(t);
	rig_kill_all(r);
	snprintf(pattern, sizeof(pattern), "%s/jobs/*/20.*/rank-2.shard", r->data);
	damage(pattern, take_away);
	rig_start(r);
	for (unsigned i = 0; i < RANKS; i++)
		open_as(&t[i], r, i, RANKS, "run2");
	for (unsigned i = 0; i < RANKS; i++)
		trainer_must(&t[i], "prepare 65536");
	for (unsigned i = 0; i < RANKS; i++)
		trainer_tell(&t[i], "load -1 0");
	for (unsigned i = 0; i < RANKS; i++) {
		int code = trainer_answer(&t[i], RIG_PATIENCE_MS);

		RIG_CHECK(code >= 0 && code & CKPT_FELL_BACK, "rank %u: %d %s", i, code, t[i].text);
		RIG_CHECK(strcmp(t[i].text, "10 1 2") == 0, "rank %u: '%s'", i, t[i].text);
	}
	save_durable(t, 30);
	RIG_CHECK(trainer_ask(&t[0], "load 20 0") < 0, "the damaged step: %s", t[0].text);
	close_world(t);
	RIG_CHECK(rig_ctl(r, text, sizeof(text), "verify") != 0 &&
			  strstr(text, take_away ? "rank-2.shard" : "of rank 2"),
		  "verify: %s", text);
}

static void damaged_file(struct rig *r)
{
	one_file_is_bad(r, false);
}

static void lost_file(struct rig *r)
{
	one_file_is_bad(r, true);
}

static void expect_whole(struct rig *r, const char *fault, const char *words)
{
#ifndef CKPT_FAULTS
	rig_skip("no fault points in this build");
#endif
	rig_env(r, fault);
	stored_by_all(r);
	RIG_CHECK(rig_log_count(r, words) > 0, "the log does not say '%s'", words);
}

/* What was compared is forgotten: every file is whole then. */
static void comparing_fails(struct rig *r)
{
	expect_whole(r, "CKPT_FAULT=REPLICAS_COMPARED=error",
		     "step 10: what its ranks hold alike could not be compared (Input/output "
		     "error): every file is written whole");
}

static void looking_fails(struct rig *r)
{
	expect_whole(r, "CKPT_FAULT=REPLICAS_SOUGHT=error@1+",
		     "what its ranks hold alike could not be looked for (Cannot allocate memory)");
}

/* Looked for when all had declared, in vain; again for the first save. */
static void looking_again(struct rig *r)
{
	uint64_t sizes[RANKS], sum = 0;

#ifndef CKPT_FAULTS
	rig_skip("no fault points in this build");
#endif
	rig_env(r, "CKPT_FAULT=REPLICAS_SOUGHT=error@1");
	rig_start(r);
	save_world(r, "run1", 10);
	RIG_CHECK(rig_log_count(r, "could not be looked for") == 1, "not told once");
	sum = file_sizes(r, 10, sizes);
	RIG_CHECK(sum >= STATE && sum < STATE + STATE / 50, "%llu bytes for a state of %lu",
		  (unsigned long long)sum, STATE);
}

int main(int argc, char **argv)
{
	static const struct rig_test tests[] = {
		RIG_TEST(stored_once),    RIG_TEST(compressed),      RIG_TEST(switched_off),
		RIG_TEST(ranks_disagree), RIG_TEST(comparing_fails), RIG_TEST(damaged_file),
		RIG_TEST(lost_file),      RIG_TEST(told_once),       RIG_TEST(looking_fails),
		RIG_TEST(looking_again),
	};

	return rig_run(tests, sizeof(tests) / sizeof(tests[0]), 2, argc, argv);
}
