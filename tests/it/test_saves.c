/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_saves.c - saves of the real ckptd and plain C trainers: rows A1 to A9 of doc/features.md.
 */
#include <config.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/rng.h"
#include "ckpt.h"
#include "tests/lib/rig.h"

#define ELEMENTS 200000ul
#define SMALL 40u

static void prepare(struct trainer_process *t, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		trainer_tell(&t[i], "prepare 65536");
	for (unsigned i = 0; i < n; i++)
		if (trainer_answer(&t[i], RIG_PATIENCE_MS) < 0)
			rig_fail("prepare: %s", t[i].text);
}

static void save(struct trainer_process *t, unsigned n, uint64_t step)
{
	if (trainers_save(t, n, step, 1) != 0)
		rig_fail("save of step %llu: %s / %s", (unsigned long long)step, t[0].text,
			 t[n - 1].text);
}

static void expect_loaded(struct trainer_process *t, const char *step, const char *want)
{
	trainer_must(t, "load %s 0", step);
	RIG_CHECK(strncmp(t->text, want, strlen(want)) == 0, "load %s: '%s', not '%s'", step,
		  t->text, want);
}

/* A9: save, wait for each state, load, in two ranks; then one process loads what two saved. */
static void save_and_load(struct rig *r)
{
	struct trainer_process t[2], one;
	struct listed l[16];
	size_t n;

	rig_start(r);
	trainers_join(t, 2, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, 2);
	for (int i = 0; i < 2; i++)
		RIG_CHECK(trainer_must(&t[i], "load -1 0") & CKPT_NOTHING, "nothing was saved");
	for (uint64_t step = 10; step <= 30; step += 10) {
		save(t, 2, step);
		for (int what = CKPT_SEALED; what <= CKPT_DURABLE; what++)
			trainer_must(&t[step / 10 % 2], "wait %d %d 20000", (int)step, what);
	}
	n = trainer_list(&t[0], l, 16);
	RIG_CHECK(n >= 2 && l[0].step == 30 && l[0].disk, "%zu are listed, the newest step %llu", n,
		  (unsigned long long)l[0].step);
	for (int i = 0; i < 2; i++)
		trainer_exit(&t[i]);
	trainers_join(&one, 1, r, "job", "run2", ELEMENTS, SMALL);
	expect_loaded(&one, "-1", "30 1 ");
	expect_loaded(&one, "20", "20 1 ");
	trainer_exit(&one);
	RIG_CHECK(rig_stop(r) == 0, "ckptd stops with an error");
}

/* A1: a save of device memory returns before the copy has ended; training goes on meanwhile. */
static void device_memory(struct rig *r)
{
	const char *top = getenv("top_builddir");
	char library[600];
	const char *env[] = { library, NULL };
	struct trainer_process t;

	snprintf(library, sizeof(library), "CKPT_LIBCUDA=%s/.libs/libfakecuda.so", top ? top : ".");
	rig_start(r);
	trainer_start(&t, r, env);
	trainer_must(&t, "open job 0 1 run1 10000");
	trainer_must(&t, "declare %lu %u", ELEMENTS, SMALL);
	trainer_must(&t, "device");
	for (int step = 10; step <= 50; step += 10) {
		trainer_must(&t, step % 20 ? "begin %d 1 20000" : "save %d 1 20000", step);
		if (step % 20)
			trainer_must(&t, "fence 1");
		trainer_must(&t, "wait %d %d 20000", step, CKPT_DURABLE);
	}
	expect_loaded(&t, "50", "50 1 ");
	trainer_exit(&t);
	trainers_join(&t, 1, r, "job", "run2", ELEMENTS, SMALL);
	expect_loaded(&t, "-1", "50 1 ");
	trainer_exit(&t);
}

#define DRIFT_RANKS 3
#define DRIFT_STEPS 300
#define DRIFT_STEP_MS 20
#define DRIFT_MS (2 * DRIFT_STEP_MS)

/* How far each rank is behind its own clock: it drifts, by less than two steps. */
static unsigned drift_on(unsigned behind, struct rng *rng)
{
	unsigned to = behind + (unsigned)rng_below(rng, 2 * DRIFT_STEP_MS);

	return to < DRIFT_STEP_MS ? 0 : min_u64(to - DRIFT_STEP_MS, DRIFT_MS);
}

/* Saves a step of each rank when it is due, and counts those in which only some ranks saved. */
static void drift_steps(struct trainer_process *t, unsigned *ret_whole, unsigned *ret_torn)
{
	uint64_t start = rig_now_ms(), due[DRIFT_RANKS];
	unsigned next[DRIFT_RANKS] = {0}, behind[DRIFT_RANKS] = {0}, saved[DRIFT_STEPS] = {0};
	struct rng_seeded random;

	rng_seed(&random, 1);
	for (unsigned i = 0; i < DRIFT_RANKS; i++)
		due[i] = start;
	for (;;) {
		unsigned i = 0;

		for (unsigned k = 1; k < DRIFT_RANKS; k++)
			if (due[k] < due[i])
				i = k;
		if (next[i] == DRIFT_STEPS)
			break;
		if (due[i] > rig_now_ms())
			rig_pause((unsigned)(due[i] - rig_now_ms()));
		if (!(trainer_must(&t[i], "save %u 1 0", next[i] + 1) & CKPT_SKIPPED))
			saved[next[i]]++;
		behind[i] = drift_on(behind[i], &random.rng);
		next[i]++;
		due[i] = next[i] == DRIFT_STEPS
				 ? UINT64_MAX
				 : start + (uint64_t)next[i] * DRIFT_STEP_MS + behind[i];
	}
	for (unsigned k = 0; k < DRIFT_STEPS; k++) {
		*ret_whole += saved[k] == DRIFT_RANKS;
		*ret_torn += saved[k] && saved[k] < DRIFT_RANKS;
	}
}

/* Ranks that drift apart by up to two steps save the same ones: who copies, commits. */
static void drift(struct rig *r)
{
	struct trainer_process t[DRIFT_RANKS];
	unsigned whole = 0, torn = 0;

	rig_start(r);
	trainers_join(t, DRIFT_RANKS, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, DRIFT_RANKS);
	save(t, DRIFT_RANKS, 0);
	drift_steps(t, &whole, &torn);
	fprintf(stderr, "# of %u steps %u were saved by all ranks, %u by some\n", DRIFT_STEPS,
		whole, torn);
	RIG_CHECK(whole >= DRIFT_STEPS / 5, "%u of %u steps were saved", whole, DRIFT_STEPS);
	RIG_CHECK(torn * 100 <= whole, "%u of %u copies were thrown away", torn, whole + torn);
	for (int i = 0; i < DRIFT_RANKS; i++)
		trainer_exit(&t[i]);
}

struct pair {
	struct trainer_process *t;
	unsigned step;
};

static bool both_save(void *arg)
{
	struct pair *p = arg;
	int r = 0;

	p->step++;
	for (int i = 0; i < 2; i++)
		r |= trainer_must_again(&p->t[i], "save %u 1 0", p->step);
	return r == 0;
}

/* ckptd is killed between the saves of two ranks, again and again, and the second one has gone on
 * when it is back: what only one has saved keeps no slot. */
static void drift_while_killed(struct rig *r)
{
	struct trainer_process t[2];
	struct pair p = {t, 1000};
	pid_t daemon;

	rig_start(r);
	trainers_join(t, 2, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, 2);
	save(t, 2, 1);
	for (unsigned step = 10; step <= 100; step += 10) {
		rig_pause(50);
		trainer_must_again(&t[1], "save %u 1 0", step);
		daemon = rig_daemon(r);
		kill(daemon, SIGKILL);
		rig_wait_restart(r, daemon);
		trainer_must_again(&t[0], "save %u 1 5000", step + 1);
	}
	rig_wait(both_save, &p, "both ranks save a step");
	trainer_must(&t[0], "wait %u %d 20000", p.step, CKPT_COMMITTED);
	for (int i = 0; i < 2; i++)
		trainer_exit(&t[i]);
}

static unsigned files_of(pid_t pid)
{
	char path[64], text[64];
	FILE *f;

	snprintf(path, sizeof(path), "ls /proc/%d/fd | wc -l", (int)pid);
	f = popen(path, "re");
	RIG_CHECK(f && fgets(text, sizeof(text), f), "count descriptors");
	pclose(f);
	return (unsigned)atoi(text);
}

/* The least of some looks: expiry and index hold files for moments, behind the answers. */
static unsigned files_at_rest(pid_t pid)
{
	unsigned least = files_of(pid);

	for (int i = 0; i < 10; i++) {
		unsigned now = files_of(pid);

		least = now < least ? now : least;
		rig_pause(20);
	}
	return least;
}

static void usage(struct trainer_process *t, unsigned *files, unsigned *maps)
{
	trainer_must(t, "usage");
	RIG_CHECK(sscanf(t->text, "%u %u", files, maps) == 2, "usage: %s", t->text);
}

/* A2: no save faults in a page, none but the first two take a descriptor or a mapping. */
static void saves_take_nothing(struct rig *r)
{
	unsigned files[2], maps[2], daemon[2];
	struct trainer_process t;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	rig_skip("every access faults in memory of the sanitizer's own");
#endif
	rig_start(r);
	trainers_join(&t, 1, r, "job", "run1", ELEMENTS, SMALL);
	prepare(&t, 1);
	for (uint64_t step = 1; step <= 12; step++) {
		if (step == 6 || step == 12) {
			usage(&t, &files[step / 12], &maps[step / 12]);
			daemon[step / 12] = files_at_rest(rig_daemon(r));
		}
		save(&t, 1, step);
		RIG_CHECK(atoi(t.text) == 0, "save %d: %s fresh pages", (int)step, t.text);
		trainer_must(&t, "wait %d %d 20000", (int)step, CKPT_DURABLE);
	}
	RIG_CHECK(files[0] == files[1], "descriptors: %u, then %u", files[0], files[1]);
	RIG_CHECK(maps[0] == maps[1], "mappings: %u, then %u", maps[0], maps[1]);
	RIG_CHECK(daemon[0] == daemon[1], "descriptors of ckptd: %u, then %u", daemon[0],
		  daemon[1]);
	trainer_exit(&t);
}

/* A3: what is sealed outlives the trainers, in memory alone. */
static void survives_trainers(struct rig *r)
{
	struct trainer_process t[2], one;

	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	trainers_join(t, 2, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, 2);
	save(t, 2, 10);
	save(t, 2, 20);
	trainer_kill(&t[0]);
	trainer_kill(&t[1]);
	trainers_join(&one, 1, r, "job", "run2", ELEMENTS, SMALL);
	expect_loaded(&one, "-1", "20 1 1");
	trainer_exit(&one);
}

static bool step_30_is_durable(void *arg)
{
	char disk[64];

	return strcmp(rig_step_field(arg, "job", 30, "disk", disk), "durable") == 0;
}

/* A4: the trainers die after their seals; nobody comes back; it gets DURABLE all the same. */
static void goes_on_alone(struct rig *r)
{
	struct trainer_process t[2], one;

	rig_start(r);
	trainers_join(t, 2, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, 2);
	save(t, 2, 10);
	save(t, 2, 20);
	save(t, 2, 30);
	trainer_kill(&t[0]);
	trainer_kill(&t[1]);
	rig_wait(step_30_is_durable, r, "step 30 gets durable by itself");
	rig_kill_all(r);
	rig_start(r);
	trainers_join(&one, 1, r, "job", "run2", ELEMENTS, SMALL);
	expect_loaded(&one, "-1", "30 1 2");
	trainer_exit(&one);
}

/* A4: the same when ckptd dies with them, and the next one finds the snapshots. */
static void goes_on_after_crash(struct rig *r)
{
	struct trainer_process t[2];
	pid_t daemon;

	rig_start(r);
	daemon = rig_daemon(r);
	trainers_join(t, 2, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, 2);
	save(t, 2, 10);
	save(t, 2, 20);
	save(t, 2, 30);
	kill(daemon, SIGKILL);
	trainer_kill(&t[0]);
	trainer_kill(&t[1]);
	rig_wait_restart(r, daemon);
	rig_wait(step_30_is_durable, r, "step 30 gets durable by itself");
}

static bool status_has(struct rig *r, const char *words)
{
	char text[16384];

	return rig_ctl(r, text, sizeof(text), "--json status job") == 0 && strstr(text, words);
}

static bool ready_again(void *arg)
{
	return status_has(arg, "\"step\": 6");
}

static bool beats_are_kept(void *arg)
{
	return status_has(arg, "\"kept\": true");
}

/* A trainer that only beats, and makes no call that needs ckptd, is heard by the next ckptd: what
 * it wrote while there was none, and what it writes from then on. */
static void beats_outlive_ckptd(struct rig *r)
{
	struct trainer_process t;
	pid_t daemon;

	rig_start(r);
	trainers_join(&t, 1, r, "job", "run1", ELEMENTS, SMALL);
	trainer_must(&t, "beat 5 1.5");
	RIG_CHECK(status_has(r, "\"step\": 5") && status_has(r, "\"lr\": 0.5"),
		  "the step is in the status");
	rig_wait(beats_are_kept, r, "the fd store has its page");
	daemon = rig_daemon(r);
	kill(daemon, SIGKILL);
	trainer_must(&t, "beat 6 nan");
	trainer_must(&t, "phase 6");
	rig_wait_restart(r, daemon);
	rig_wait(ready_again, r, "the step done meanwhile is heard of");
	RIG_CHECK(status_has(r, "\"phase\": \"evaluate\"") && status_has(r, "\"connected\": false"),
		  "without a word of the trainer");
	trainer_must(&t, "phase -1");
	trainer_must(&t, "beat 7 1.0");
	RIG_CHECK(status_has(r, "\"step\": 7") && status_has(r, "\"phase\": \"step\""),
		  "and what comes then");
	trainer_must(&t, "stats");
	RIG_CHECK(strcmp(t.text, "0 0 0 0 0 0") == 0, "it has not connected again: %s", t.text);
	trainer_must(&t, "close");
}

/* A5: bytes that change between begin and fence; the save before stays the newest. */
static void torn(struct rig *r)
{
	struct trainer_process t;
	struct listed l[16];
	int code;

	rig_start(r);
	trainers_join(&t, 1, r, "job", "run1", ELEMENTS, SMALL);
	prepare(&t, 1);
	save(&t, 1, 10);
	trainer_must(&t, "begin 20 1 20000");
	/* One byte, again and again, so that the copy's is not the last of them. */
	for (int i = 0; i < 41; i++) {
		trainer_must(&t, "touch 1 %d", 1234);
		rig_pause(5);
	}
	code = trainer_ask(&t, "fence 1");
	RIG_CHECK(code == CKPT_ETORN, "fence: %d %s", code, t.text);
	trainer_must(&t, "begin 30 1 20000");
	trainer_must(&t, "fence 1");
	trainer_must(&t, "wait 30 %d 20000", CKPT_COMMITTED);
	RIG_CHECK(!listed_find(l, trainer_list(&t, l, 16), 20), "the torn step is listed");
	expect_loaded(&t, "30", "30 1 ");
	trainer_exit(&t);
}

/* A6: what does not fit is refused before training starts, with sizes, and touches nothing. */
static void over_budget(struct rig *r)
{
	struct trainer_process a, b;
	int code;

	r->args[1] = "memory.budget=64M";
	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	trainers_join(&a, 1, r, "small", "run1", ELEMENTS, SMALL);
	prepare(&a, 1);
	save(&a, 1, 10);
	trainer_must(&a, "wait 10 %d 20000", CKPT_COMMITTED);
	trainers_join(&b, 1, r, "large", "run1", 6000000ul, 0);
	code = trainer_ask(&b, "prepare 65536");
	RIG_CHECK(code == CKPT_ENOSPACE, "prepare: %d %s", code, b.text);
	RIG_CHECK(strstr(b.text, "MiB") && strstr(b.text, "64"), "no sizes: %s", b.text);
	rig_note("%s", b.text);
	code = trainer_ask(&b, "save 10 1 1000");
	RIG_CHECK(code == CKPT_ENOSPACE, "save: %d %s", code, b.text);
	trainer_exit(&b);
	expect_loaded(&a, "10", "10 1 1");
	save(&a, 1, 20);
	trainer_must(&a, "wait 20 %d 20000", CKPT_COMMITTED);
	trainer_exit(&a);
}

/* A7: state that is no tensor goes the same way; too much of it fails that save alone. */
static void blobs(struct rig *r)
{
	struct trainer_process t;
	int code;

	rig_start(r);
	trainers_join(&t, 1, r, "job", "run1", ELEMENTS, SMALL);
	trainer_must(&t, "prepare 4000000");
	trainer_must(&t, "blob 3500001");
	save(&t, 1, 10);
	trainer_must(&t, "blob 4100000");
	code = trainer_ask(&t, "save 20 1 20000");
	RIG_CHECK(code == CKPT_ENOSPACE && strstr(t.text, "ckpt_prepare"), "save: %d %s", code,
		  t.text);
	trainer_must(&t, "blob 0");
	save(&t, 1, 30);
	trainer_must(&t, "wait 30 %d 20000", CKPT_DURABLE);
	expect_loaded(&t, "30", "30 1 ");
	trainer_exit(&t);
	trainers_join(&t, 1, r, "job", "run2", ELEMENTS, SMALL);
	expect_loaded(&t, "10", "10 1 ");
	trainer_exit(&t);
}

/* A8: the next save does not wait for the one before, and a save waits for nobody (I13). */
static void two_in_flight(struct rig *r)
{
	struct trainer_process t[2];
	uint64_t before;
	int code;

	rig_start(r);
	trainers_join(t, 2, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, 2);
	for (uint64_t step = 1; step <= 20; step++)
		save(t, 2, step); /* no wait between them */
	for (int step = 18; step <= 20; step++)
		trainer_must(&t[0], "wait %d %d 20000", step, CKPT_COMMITTED);
	trainer_must(&t[1], "wait 20 %d 20000", CKPT_DURABLE);
	/* Only one rank saves: its second save has a slot, later ones are skipped at once. */
	trainer_must(&t[0], "save 21 1 5000");
	before = rig_now_ms();
	code = 0;
	for (int step = 22; step <= 30 && code == 0; step++)
		code = trainer_must(&t[0], "save %d 1 0", step);
	RIG_CHECK(code & CKPT_SKIPPED, "a rank went on alone");
	RIG_CHECK(rig_now_ms() - before < 20000, "the saves waited");
	trainer_exit(&t[0]);
	trainer_exit(&t[1]);
}

/* A9: a process that only looks is missed by nobody and changes nothing: the training goes on in
 * the same epoch, whatever the run id of the other one is. */
static void looks_change_nothing(struct rig *r)
{
	static const char *const runs[] = {"other", "-", "run1"};
	struct trainer_process t[2], look;
	struct listed l[16];
	uint64_t epoch;
	size_t n;
	int code;

	rig_start(r);
	trainers_join(t, 2, r, "job", "run1", ELEMENTS, SMALL);
	prepare(t, 2);
	save(t, 2, 10);
	trainer_must(&t[0], "wait 10 %d 20000", CKPT_COMMITTED);
	trainer_list(&t[0], l, 16);
	epoch = l[0].epoch;
	for (uint64_t i = 0; i < 3; i++) {
		trainer_start(&look, r, NULL);
		trainer_must(&look, "look job %s 2000", runs[i]);
		n = trainer_list(&look, l, 16);
		RIG_CHECK(n == i + 1 && l[0].step == 10 + i && l[0].epoch == epoch,
			  "%zu in the list, step %d of epoch %d", n, (int)l[0].step,
			  (int)l[0].epoch);
		/* The newest, not the base of the epoch, which has none. */
		code = trainer_must(&look, "stored -1");
		RIG_CHECK(!(code & CKPT_NOTHING) && atoi(look.text) == 10 + (int)i, "stored: %s",
			  look.text);
		trainer_must(&look, "stored 10");
		trainer_must(&look, "wait 10 %d 20000", CKPT_DURABLE);
		trainer_must(&look, "declare %lu %u", ELEMENTS, SMALL);
		code = trainer_ask(&look, "save 50 1 0");
		RIG_CHECK(code == CKPT_ESTATE && strstr(look.text, "CKPT_TRAINS"), "save: %d %s",
			  code, look.text);
		RIG_CHECK(trainer_ask(&look, "load 10 0") == CKPT_ESTATE, "load: %s", look.text);
		if (i == 0)
			trainer_kill(&look);
		else
			trainer_exit(&look);
		save(t, 2, 11 + i);
		trainer_must(&t[0], "wait %d %d 20000", 11 + (int)i, CKPT_COMMITTED);
	}
	trainer_list(&t[0], l, 16);
	RIG_CHECK(l[0].step == 13 && l[0].epoch == epoch, "step %d of epoch %d", (int)l[0].step,
		  (int)l[0].epoch);
	trainer_start(&look, r, NULL);
	code = trainer_ask(&look, "look none - 0");
	RIG_CHECK(code == CKPT_ENOTFOUND, "look: %d %s", code, look.text);
	trainer_exit(&look);
	trainer_exit(&t[0]);
	trainer_exit(&t[1]);
}

int main(int argc, char **argv)
{
	static const struct rig_test tests[] = {
		RIG_TEST(save_and_load),       RIG_TEST(device_memory),
		RIG_TEST(saves_take_nothing),  RIG_TEST(survives_trainers),
		RIG_TEST(goes_on_alone),       RIG_TEST(torn),
		RIG_TEST(goes_on_after_crash), RIG_TEST(beats_outlive_ckptd),
		RIG_TEST(over_budget),         RIG_TEST(blobs),
		RIG_TEST(two_in_flight),       RIG_TEST(drift),
		RIG_TEST(looks_change_nothing), RIG_TEST(drift_while_killed),
	};

	return rig_run(tests, sizeof(tests) / sizeof(tests[0]), 3, argc, argv);
}
