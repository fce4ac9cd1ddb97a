/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_loads.c - loads that do not match what was saved, other layouts, other hosts: rows D11, E3
 * and C3 of doc/features.md.
 */
#include <config.h>

#include <fcntl.h>
#include <glob.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt.h"
#include "tests/lib/rig.h"

#define ELEMENTS 150000ul
#define SMALL    7u

static void open_as(struct trainer_process *t, struct rig *r, unsigned rank, unsigned world,
		    const char *run, const char *word)
{
	trainer_start(t, r, NULL);
	trainer_must(t, "open job %u %u %s 10000", rank, world, run);
	trainer_must(t, "declare %lu %u %s", ELEMENTS, SMALL, word);
}

static void save_world(struct rig *r, unsigned world, const char *run, const char *word, int step)
{
	struct trainer_process t[4];

	for (unsigned i = 0; i < world; i++)
		open_as(&t[i], r, i, world, run, word);
	for (unsigned i = 0; i < world; i++)
		trainer_must(&t[i], "prepare 65536");
	for (unsigned i = 0; i < world; i++)
		trainer_must(&t[i], "load -1 1");
	RIG_CHECK(trainers_save(t, world, (uint64_t)step, 1) == 0, "save: %s", t[0].text);
	trainer_must(&t[0], "wait %d %d 20000", step, CKPT_DURABLE);
	for (unsigned i = 0; i < world; i++)
		trainer_exit(&t[i]);
}

static void expect(struct trainer_process *t, int code, const char *words, const char *what)
{
	RIG_CHECK(code == CKPT_EMISMATCH, "%s: %d %s", what, code, t->text);
	RIG_CHECK(strstr(t->text, words), "%s: '%s' is not named: %s", what, words, t->text);
	trainer_must(t, "problems");
	RIG_CHECK(strstr(t->text, words), "%s: '%s' is not listed: %s", what, words, t->text);
	rig_note("%s: %s", what, t->text);
}

/* D11: one tensor more, one less, one of another type: by name; lenient loads the rest. */
static void mismatches(struct rig *r)
{
	struct trainer_process t;
	int code;

	rig_start(r);
	save_world(r, 1, "run1", "extra", 10);
	open_as(&t, r, 0, 1, "run2", "");
	code = trainer_ask(&t, "load -1 0");
	expect(&t, code, "extra", "stored, not wanted");
	code = trainer_must(&t, "load -1 1");
	RIG_CHECK(!(code & CKPT_PARTIAL), "all that was wanted is there, and it says it is not");
	trainer_exit(&t);
	open_as(&t, r, 0, 1, "run3", "wide");
	code = trainer_ask(&t, "load -1 0");
	expect(&t, code, "extra", "of another type");
	RIG_CHECK(trainer_must(&t, "load -1 1") & CKPT_PARTIAL, "lenient, another type");
	trainer_exit(&t);
	save_world(r, 1, "run4", "", 20);
	open_as(&t, r, 0, 1, "run5", "extra");
	code = trainer_ask(&t, "load -1 0");
	expect(&t, code, "extra", "wanted, not stored");
	RIG_CHECK(trainer_must(&t, "load -1 1") & CKPT_PARTIAL, "lenient, one is missing");
	trainer_exit(&t);
}

static void load_world(struct rig *r, unsigned world, const char *run, const char *want)
{
	struct trainer_process t[4];

	/* The last rank is started first: which process is which rank is nobody's business. */
	for (unsigned i = world; i-- > 0;)
		open_as(&t[i], r, i, world, run, "");
	for (unsigned i = 0; i < world; i++)
		trainer_tell(&t[i], "load -1 0");
	for (unsigned i = 0; i < world; i++) {
		int code = trainer_answer(&t[i], RIG_PATIENCE_MS);

		/* Ranks that were not there at the save have no blobs to be judged by. */
		if (code == -9998 && i > 0 && strstr(t[i].text, "blobs"))
			continue;
		RIG_CHECK(code >= 0, "rank %u of %u: %d %s", i, world, code, t[i].text);
		RIG_CHECK(strncmp(t[i].text, want, strlen(want)) == 0, "rank %u of %u: '%s'", i,
			  world, t[i].text);
	}
	for (unsigned i = 0; i < world; i++)
		trainer_exit(&t[i]);
}

/* Strict loads of all ranks, each with the word that it declares with. */
static void load_words(struct rig *r, unsigned world, const char *run, const char *word)
{
	struct trainer_process t[4];

	for (unsigned i = 0; i < world; i++)
		open_as(&t[i], r, i, world, run, word);
	for (unsigned i = 0; i < world; i++)
		trainer_tell(&t[i], "load -1 0");
	for (unsigned i = 0; i < world; i++) {
		int code = trainer_answer(&t[i], RIG_PATIENCE_MS);

		RIG_CHECK(code >= 0, "%s, rank %u of %u: %d %s", run, i, world, code, t[i].text);
		RIG_CHECK(!(code & CKPT_PARTIAL), "%s, rank %u: something is missing", run, i);
	}
	for (unsigned i = 0; i < world; i++)
		trainer_exit(&t[i]);
}

/* D11: at the same world other ranks have other tensors: none is extra, on no rank. */
static void dealt(struct rig *r)
{
	rig_start(r);
	save_world(r, 3, "run1", "", 10);
	load_words(r, 3, "run2", "dealt");
	load_words(r, 3, "run3", "");
	save_world(r, 2, "run4", "replicated", 20);
	load_words(r, 2, "run5", "stages");
	save_world(r, 2, "run6", "stages", 30);
	load_words(r, 2, "run7", "replicated");
	rig_kill_all(r);
	rig_start(r);
	load_words(r, 2, "run8", "replicated");
}

/* I15: one of two ranks forgets to load: what they save is never committed, and it is named. */
static void one_forgets(struct rig *r)
{
	struct trainer_process t[2];
	int code[2];

	rig_start(r);
	save_world(r, 2, "run1", "", 10);
	for (unsigned i = 0; i < 2; i++)
		open_as(&t[i], r, i, 2, "run2", "");
	for (unsigned i = 0; i < 2; i++)
		trainer_must(&t[i], "prepare 65536");
	trainer_must(&t[0], "load -1 0");
	for (unsigned i = 0; i < 2; i++)
		code[i] = trainer_ask(&t[i], "save 11 1 3000");
	RIG_CHECK(code[0] == CKPT_SKIPPED || code[1] == CKPT_EABORTED, "both saved: %d %d", code[0],
		  code[1]);
	RIG_CHECK(trainer_ask(&t[0], "wait 11 %d 3000", CKPT_COMMITTED) < 0, "committed: %s",
		  t[0].text);
	RIG_CHECK(trainer_ask(&t[0], "save 12 1 1000") == CKPT_SKIPPED, "saved: %s", t[0].text);
	trainer_must(&t[1], "load -1 0");
	for (unsigned i = 0; i < 2; i++)
		trainer_must_again(&t[i], "list"); /* ckptd may have missed a save's second */
	RIG_CHECK(trainers_save(t, 2, 20, 1) == 0, "save: %s", t[0].text);
	trainer_must(&t[0], "wait 20 %d 20000", CKPT_COMMITTED);
	for (unsigned i = 0; i < 2; i++)
		trainer_exit(&t[i]);
}

/* D11: what no rank wants is said when all have declared, and not before; what one wants, never. */
static void unwanted(struct rig *r)
{
	struct trainer_process t[2];

	rig_start(r);
	save_world(r, 2, "run1", "extra", 10);
	open_as(&t[0], r, 0, 2, "run2", "");
	trainer_start(&t[1], r, NULL);
	trainer_must(&t[1], "open job 1 2 run2 10000");
	trainer_must(&t[0], "load -1 0");
	trainer_must(&t[1], "declare %lu %u", ELEMENTS, SMALL);
	for (unsigned i = 2; i-- > 0;)
		expect(&t[i], trainer_ask(&t[i], "load -1 0"),
		       "tensor 'extra' is stored but not wanted", "wanted by no rank");
	RIG_CHECK(!(trainer_must(&t[0], "load -1 1") & CKPT_PARTIAL), "lenient, an extra one");
	for (unsigned i = 0; i < 2; i++)
		trainer_exit(&t[i]);
	open_as(&t[0], r, 0, 2, "run3", "");
	open_as(&t[1], r, 1, 2, "run3", "extra");
	for (unsigned i = 0; i < 2; i++)
		trainer_must(&t[i], "load -1 0");
	for (unsigned i = 0; i < 2; i++)
		trainer_exit(&t[i]);
}

static void set_host_name(const char *name)
{
	if (unshare(CLONE_NEWUTS) < 0 || sethostname(name, strlen(name)) < 0)
		rig_skip("root is needed to have another host name");
}

/* D11: another shape by both shapes, elements that nobody has stored by where they are. */
static void shapes_and_holes(struct rig *r)
{
	struct trainer_process t;

	rig_start(r);
	save_world(r, 2, "run1", "hole", 10);
	open_as(&t, r, 0, 1, "run2", "");
	expect(&t, trainer_ask(&t, "load -1 0"),
	       "elements [74990:75000] of tensor 'w' are stored by no rank", "a hole");
	trainer_exit(&t);
	trainer_start(&t, r, NULL);
	trainer_must(&t, "open job 0 1 run3 10000");
	trainer_must(&t, "declare %lu %u", ELEMENTS + 1, SMALL);
	expect(&t, trainer_ask(&t, "load -1 0"),
	       "tensor 'w' is wanted as f32 [150001] but stored as f32 [150000]", "another shape");
	trainer_exit(&t);
}

struct telling {
	const struct rig *r;
	const char *words;
	unsigned n;
};

static bool told(void *arg)
{
	const struct telling *t = arg;

	return rig_log_count(t->r, t->words) == t->n;
}

/* Ranks whose boxes of a tensor overlap: where they store them differently it is said, and once. */
static void overlaps(struct rig *r)
{
	struct trainer_process t[3];
	struct telling differ = {r, "are not the same", 1};
	char text[2048];

	rig_start(r);
	for (unsigned i = 0; i < 3; i++)
		open_as(&t[i], r, i, 3, "run1", "overlap");
	for (unsigned i = 0; i < 3; i++)
		trainer_must(&t[i], "prepare 65536");
	for (unsigned i = 0; i < 3; i++)
		trainer_must(&t[i], "load -1 1");
	RIG_CHECK(trainers_save(t, 3, 10, 1) == 0, "save: %s", t[0].text);
	trainer_must(&t[0], "wait 10 %d 20000", CKPT_DURABLE);
	for (unsigned i = 0; i < 3; i++)
		trainer_tell(&t[i], "save 20 %u 20000", i == 2 ? 7 : 1);
	for (unsigned i = 0; i < 3; i++)
		RIG_CHECK(trainer_answer(&t[i], RIG_PATIENCE_MS) >= 0, "save: %s", t[i].text);
	trainer_must(&t[0], "wait 20 %d 20000", CKPT_DURABLE);
	rig_wait(told, &differ, "ranks that disagree are told of");
	differ.words =
		"step 20: elements [100000:101000] of tensor 'w' are stored by ranks 1 and 2 "
		"and are not the same, the first at [100000:100001]";
	RIG_CHECK(told(&differ), "tensor, region and ranks are not named");
	rig_ctl(r, text, sizeof(text), "status");
	RIG_CHECK(strstr(text, "elements [100000:101000] of tensor 'w'"), "status: %s", text);
	for (unsigned i = 0; i < 3; i++)
		trainer_exit(&t[i]);
}

/* Ranks that declare one name as two tensors: no load gives both, and it is said, once. */
static void unlike(struct rig *r)
{
	struct trainer_process t[2];
	struct telling told_once = {r, "rank 0 stores tensor 'w' as f32 [", 1};
	char text[2048];

	rig_start(r);
	for (unsigned i = 0; i < 2; i++) {
		trainer_start(&t[i], r, NULL);
		trainer_must(&t[i], "open job %u 2 run1 10000", i);
		trainer_must(&t[i], "declare %lu %u", ELEMENTS + i, SMALL);
		trainer_must(&t[i], "prepare 65536");
	}
	for (unsigned i = 0; i < 2; i++)
		trainer_must(&t[i], "load -1 1");
	for (uint64_t step = 10; step <= 30; step += 10)
		RIG_CHECK(trainers_save(t, 2, step, 1) == 0, "save: %s", t[0].text);
	trainer_must(&t[0], "wait 30 %d 20000", CKPT_DURABLE);
	rig_wait(told, &told_once, "ranks that declare another tensor are told of");
	rig_ctl(r, text, sizeof(text), "status");
	RIG_CHECK(strstr(text, "and rank 1 as f32 [") &&
			  strstr(text, "declare it alike on all ranks"),
		  "status: %s", text);
	for (unsigned i = 0; i < 2; i++)
		trainer_exit(&t[i]);
}

/* E3: the folder comes to a host of another name, ranks in another order, another number. */
static void other_host(struct rig *r)
{
	char before[64];

	set_host_name("first");
	rig_start(r);
	save_world(r, 2, "run1", "", 10);
	RIG_CHECK(rig_log_count(r, "node 'first'") == 1, "the host's name is not the node's");
	rig_kill_all(r);
	set_host_name("second");
	snprintf(before, sizeof(before), "%s", "10 1 2");
	rig_start(r);
	RIG_CHECK(rig_log_count(r, "node 'second'") == 1, "the host's name is not the node's");
	load_world(r, 2, "run2", before);
	load_world(r, 1, "run3", before);
	load_world(r, 4, "run4", before);
	save_world(r, 2, "run5", "", 20);
	load_world(r, 3, "run6", "20 1 ");
}

static void flip_byte(const char *pattern, off_t at)
{
	glob_t g;
	uint8_t b;
	int fd;

	RIG_CHECK(glob(pattern, 0, NULL, &g) == 0 && g.gl_pathc == 1, "no file '%s'", pattern);
	fd = open(g.gl_pathv[0], O_RDWR | O_CLOEXEC);
	RIG_CHECK(fd >= 0 && pread(fd, &b, 1, at) == 1, "read '%s'", g.gl_pathv[0]);
	b ^= 0x40;
	RIG_CHECK(pwrite(fd, &b, 1, at) == 1 && fsync(fd) == 0, "write '%s'", g.gl_pathv[0]);
	close(fd);
	globfree(&g);
}

/* What is damaged is found by a load, and not by reading copies again in the background. */
static void only_loads_look(struct rig *r)
{
	rig_arg(r, "--set");
	rig_arg(r, "trust.recheck_rate=0");
}

/* C3, C5: one bit of the newest file flips: the load says so and gives the one before. */
static void flipped_bit(struct rig *r)
{
	struct trainer_process t;
	char pattern[256];
	int code;

	only_loads_look(r);
	rig_start(r);
	save_world(r, 1, "run1", "", 10);
	save_world(r, 1, "run2", "", 20);
	rig_kill_all(r);
	snprintf(pattern, sizeof(pattern), "%s/jobs/*/20.*/rank-0.shard", r->data);
	flip_byte(pattern, 4096 + 70000);
	rig_start(r);
	open_as(&t, r, 0, 1, "run3", "");
	code = trainer_must(&t, "load -1 0");
	RIG_CHECK(code & CKPT_FELL_BACK, "it does not say that it fell back: %d", code);
	RIG_CHECK(strncmp(t.text, "10 1 2", 6) == 0, "loaded: %s", t.text);
	RIG_CHECK(rig_log_count(r, "the copy is not used any more") == 1, "the leaf is not named");
	code = trainer_ask(&t, "load 20 0");
	RIG_CHECK(code < 0 && code != -9998, "the damaged step: %d %s", code, t.text);
	trainer_exit(&t);
}

/* ckptd begins again with nothing in memory, and these files of step 10 and 20 are damaged. */
static void damaged(struct rig *r, const char *file_10, const char *file_20)
{
	char pattern[256];

	rig_start(r);
	save_world(r, 1, "run1", "", 10);
	save_world(r, 1, "run2", "", 20);
	rig_kill_all(r);
	snprintf(pattern, sizeof(pattern), "%s/jobs/*/10.*/%s", r->data, file_10);
	if (file_10[0])
		flip_byte(pattern, 200);
	snprintf(pattern, sizeof(pattern), "%s/jobs/*/20.*/%s", r->data, file_20);
	flip_byte(pattern, 200);
	rig_start(r);
}

/* COMMIT is made again; and where the whole folder is gone the index knows that it was durable. */
static void missed(struct rig *r)
{
	struct trainer_process t;
	char field[64], command[300];
	int code;

	damaged(r, "", "COMMIT");
	RIG_CHECK(rig_log_count(r, "step 20 on disk has its COMMIT again") == 1, "not made again");
	open_as(&t, r, 0, 1, "run3", "");
	code = trainer_must(&t, "load -1 0");
	RIG_CHECK(!(code & CKPT_FELL_BACK), "it fell back: %d", code);
	RIG_CHECK(strncmp(t.text, "20 1 2", 6) == 0, "loaded: %s", t.text);
	trainer_exit(&t);
	for (int i = 0; i < 2; i++) {
		rig_kill_all(r);
		snprintf(command, sizeof(command), "rm -rf %s/jobs/*/20.*", r->data);
		RIG_CHECK(system(command) == 0, "%s", command);
		rig_start(r);
		RIG_CHECK(strstr(rig_step_field(r, "job", 20, "reason", field), "it was durable"),
			  "reason: '%s'", field);
		open_as(&t, r, 0, 1, i ? "run5" : "run4", "");
		code = trainer_must(&t, "load -1 0");
		RIG_CHECK(code & CKPT_FELL_BACK, "it does not say that it fell back: %d", code);
		RIG_CHECK(strncmp(t.text, "10 1 2", 6) == 0, "loaded: %s", t.text);
		trainer_exit(&t);
	}
}

/* The newest is passed over when the epoch is opened: the trainer is told, the file stays. */
static void passed_over(struct rig *r)
{
	struct trainer_process t;
	char field[64], command[300];
	int code;

	rig_start(r);
	save_world(r, 1, "run1", "", 10);
	save_world(r, 1, "run2", "", 20);
	rig_kill_all(r);
	snprintf(command, sizeof(command), "rm %s/jobs/*/20.*/rank-0.shard", r->data);
	RIG_CHECK(system(command) == 0, "%s", command);
	rig_start(r);
	for (int i = 0; i < 2; i++) {
		open_as(&t, r, 0, 1, i ? "run4" : "run3", "");
		code = trainer_must(&t, "load -1 0");
		RIG_CHECK(code & CKPT_FELL_BACK, "it does not say that it fell back: %d", code);
		RIG_CHECK(strncmp(t.text, "10 1 2", 6) == 0, "loaded: %s", t.text);
		RIG_CHECK(strcmp(rig_step_field(r, "job", 20, "suspect", field), "true") == 0,
			  "suspect: '%s'", field);
		RIG_CHECK(strstr(rig_step_field(r, "job", 20, "reason", field), "file is gone"),
			  "reason: '%s'", field);
		trainer_exit(&t);
		rig_kill_all(r);
		only_loads_look(r);
		rig_start(r);
	}
	RIG_CHECK(rig_log_count(r, "20 was committed and its bytes are lost") == 0, "it is lost");
	RIG_CHECK(rig_log_count(r, "fell back to step 10: step 20: ") == 2, "not in the log");
	save_world(r, 1, "run5", "", 30);
	open_as(&t, r, 0, 1, "run6", "");
	code = trainer_must(&t, "load -1 0");
	RIG_CHECK(!(code & CKPT_FELL_BACK), "nothing newer is damaged: %d", code);
	trainer_exit(&t);
}

static void must_be_lost(struct trainer_process *t, const char *words)
{
	int code = trainer_ask(t, "load -1 0");

	RIG_CHECK(code == CKPT_ELOST, "all is lost: %d %s", code, t->text);
	RIG_CHECK(strstr(t->text, words) && strstr(t->text, "ckptctl rm job"), "'%s'", t->text);
}

/* All are damaged: no launch is told that there never was anything, and it can go on. */
static void all_damaged(struct rig *r)
{
	struct trainer_process t;
	char text[512];
	int code;

	damaged(r, "rank-0.shard", "rank-0.shard");
	open_as(&t, r, 0, 1, "run3", "");
	must_be_lost(&t, "step 20: ");
	must_be_lost(&t, "step 20: ");
	trainer_exit(&t);
	rig_kill_all(r);
	only_loads_look(r);
	rig_start(r);
	open_as(&t, r, 0, 1, "run4", "");
	trainer_must(&t, "prepare 65536");
	must_be_lost(&t, "ckptctl rm job 20 10");
	/* On purpose, in the same process. */
	RIG_CHECK(trainers_save(&t, 1, 5, 1) == 0, "save: %s", t.text);
	trainer_must(&t, "wait 5 %d 20000", CKPT_DURABLE);
	trainer_exit(&t);
	open_as(&t, r, 0, 1, "run5", "");
	code = trainer_must(&t, "load -1 0");
	RIG_CHECK(strncmp(t.text, "5 1 ", 4) == 0 && !(code & CKPT_FELL_BACK), "%d %s", code,
		  t.text);
	trainer_exit(&t);
	RIG_CHECK(rig_ctl(r, text, sizeof(text), "rm --yes job 10") == 0, "rm: %s", text);
}

/* The folders are gone: so it says until somebody takes note of it with rm. */
static void all_gone(struct rig *r)
{
	struct trainer_process t;
	char text[512];

	rig_start(r);
	save_world(r, 1, "run1", "", 10);
	save_world(r, 1, "run2", "", 20);
	rig_stop(r); /* the index has them */
	snprintf(text, sizeof(text), "rm -r %s/jobs/*/10.* %s/jobs/*/20.*", r->data, r->data);
	RIG_CHECK(system(text) == 0, "%s", text);
	rig_start(r);
	open_as(&t, r, 0, 1, "run3", "");
	must_be_lost(&t, "step 20: it was durable, and its folder is gone");
	trainer_exit(&t);
	rig_kill_all(r);
	rig_start(r);
	RIG_CHECK(rig_ctl(r, text, sizeof(text), "rm --yes job 20") == 0, "rm: %s", text);
	open_as(&t, r, 0, 1, "run4", "");
	must_be_lost(&t, "step 10: ");
	RIG_CHECK(rig_ctl(r, text, sizeof(text), "rm --yes job 10") == 0, "rm: %s", text);
	RIG_CHECK(trainer_must(&t, "load -1 0") & CKPT_NOTHING, "it is given up: %s", t.text);
	trainer_exit(&t);
}

/* The newest goes on purpose, memory and all: it is not offered, launches go on, so does a stop. */
static void removed_newest(struct rig *r)
{
	struct trainer_process t;
	char text[512];
	uint64_t since;
	int code;

	rig_start(r);
	save_world(r, 1, "run1", "", 10);
	save_world(r, 1, "run2", "", 20);
	RIG_CHECK(rig_ctl(r, text, sizeof(text), "rm --yes job 20") == 0, "rm: %s", text);
	open_as(&t, r, 0, 1, "run3", "");
	code = trainer_must(&t, "load -1 0");
	RIG_CHECK(strncmp(t.text, "10 1 2", 6) == 0 && !(code & CKPT_FELL_BACK), "%d %s", code,
		  t.text);
	code = trainer_ask(&t, "load 20 0");
	RIG_CHECK(code == CKPT_ENOTFOUND, "what was removed: %d %s", code, t.text);
	trainer_exit(&t);
	since = rig_now_ms();
	rig_stop(r);
	RIG_CHECK(rig_now_ms() - since < 8000, "the stop waited for what was removed");
}

/* Looked at and read in part by ranks that declare nothing, or something else, from memory and
 * disk; a damaged copy is given up, and no byte of it is given. */
static void stored(struct rig *r)
{
	struct trainer_process t;
	char pattern[256];
	int code;

	only_loads_look(r);
	rig_start(r);
	save_world(r, 2, "run1", "", 10);
	trainer_start(&t, r, NULL);
	trainer_must(&t, "open job 0 1 run2 10000");
	trainer_must(&t, "stored -1");
	RIG_CHECK(strcmp(t.text, "10 1 1 11 4") == 0, "from memory: '%s'", t.text);
	code = trainer_ask(&t, "stored 11");
	RIG_CHECK(code == CKPT_ENOTFOUND, "a step that is not there: %d %s", code, t.text);
	trainer_must(&t, "declare 100 1");
	trainer_must(&t, "stored 10");
	trainer_exit(&t);
	rig_kill_all(r);
	rig_start(r);
	open_as(&t, r, 0, 1, "run3", "");
	trainer_must(&t, "stored 10");
	RIG_CHECK(strcmp(t.text, "10 1 2 11 4") == 0, "from disk: '%s'", t.text);
	trainer_must(&t, "load -1 1");
	trainer_must(&t, "prepare 65536");
	RIG_CHECK(trainers_save(&t, 1, 20, 1) == 0, "save: %s", t.text);
	trainer_must(&t, "wait 20 %d 20000", CKPT_DURABLE);
	trainer_must(&t, "stored 10");
	trainer_exit(&t);
	snprintf(pattern, sizeof(pattern), "%s/jobs/*/10.*/rank-1.shard", r->data);
	flip_byte(pattern, 4096 + 70000);
	rig_kill_all(r);
	rig_start(r);
	open_as(&t, r, 0, 1, "run4", "");
	code = trainer_ask(&t, "stored 10");
	RIG_CHECK(code < 0 && code != -9998, "damaged: %d %s", code, t.text);
	trainer_must(&t, "stored 20");
	trainer_exit(&t);
}

int main(int argc, char **argv)
{
	static const struct rig_test tests[] = {
		RIG_TEST(mismatches), RIG_TEST(shapes_and_holes), RIG_TEST(overlaps),
		RIG_TEST(unlike),     RIG_TEST(other_host),       RIG_TEST(flipped_bit),
		RIG_TEST(missed),     RIG_TEST(passed_over),      RIG_TEST(all_damaged),
		RIG_TEST(all_gone),   RIG_TEST(removed_newest),   RIG_TEST(stored),
		RIG_TEST(dealt),      RIG_TEST(one_forgets),      RIG_TEST(unwanted),
	};

	return rig_run(tests, sizeof(tests) / sizeof(tests[0]), 3, argc, argv);
}
