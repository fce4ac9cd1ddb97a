/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_resume.c - a rank whose process is killed comes back: at whatever point of its last start
 * it was killed, it loads the same bytes, and the memory of the dead is given back.
 */
#include <config.h>

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt.h"
#include "tests/lib/rig.h"

#define ELEMENTS   2000000ul /* 12 MB: a slot is larger than a ledger */
#define SMALL      4u
#define SLOT_BYTES 12000000ull
#define POINTS_MAX 64

static uint64_t memory_left(struct rig *r)
{
	static char text[65536];
	const char *at;

	/* Its exit status speaks of alarms: a rank has died. */
	RIG_CHECK(rig_ctl(r, text, sizeof(text), "--json status") >= 0, "status: %s", text);
	at = strstr(text, "\"memory_left\"");
	RIG_CHECK(at && strchr(at, ':'), "no memory_left: %s", text);
	return strtoull(strchr(at, ':') + 1, NULL, 10);
}

struct expected {
	struct rig *rig;
	uint64_t left;
};

static bool is_given_back(void *arg)
{
	const struct expected *x = arg;

	return memory_left(x->rig) + SLOT_BYTES / 2 >= x->left;
}

static void enter(struct trainer_process *t, struct rig *r, unsigned run)
{
	trainer_start(t, r, NULL);
	trainer_must(t, "open job 0 1 run%u 20000", run);
	trainer_must(t, "declare %lu %u", ELEMENTS, SMALL);
}

/* Loads, saves the next step and waits until that is committed. False: it was killed. What it loads
 * is the newest that may have become a checkpoint: *step, or the one after it. */
static bool resume(struct trainer_process *t, uint64_t *step, bool maybe)
{
	uint64_t got;
	int code = trainer_ask(t, "load -1 0");

	if (code == INT_MIN)
		return false;
	RIG_CHECK(code >= 0, "load: %d %s", code, t->text); /* which compares all bytes */
	got = strtoull(t->text, NULL, 10);
	RIG_CHECK(got == *step || (maybe && got == *step + 1), "step %llu came back, not %llu: %s",
		  (unsigned long long)got, (unsigned long long)*step, t->text);
	*step = got;
	for (int i = 0; i < 200; i++) {
		code = trainer_ask(t, "save %llu 1 20000", (unsigned long long)*step + 1);
		if (code != CKPT_ENOSPACE)
			break;
		/* An older checkpoint is still being written to disk. */
		RIG_CHECK(strstr(t->text, "MiB of the budget of"), "no sizes: %s", t->text);
		rig_pause(50);
	}
	if (code == INT_MIN)
		return false;
	RIG_CHECK(code >= 0 && !(code & CKPT_SKIPPED), "save: %d %s", code, t->text);
	code = trainer_ask(t, "wait %llu %d 20000", (unsigned long long)*step + 1, CKPT_COMMITTED);
	if (code == INT_MIN)
		return false;
	RIG_CHECK(code >= 0, "wait: %d %s", code, t->text);
	return true;
}

static unsigned kill_at_each(struct rig *r, const char *what, unsigned *run, uint64_t *step)
{
	struct expected x = {.rig = r, .left = memory_left(r)};
	struct trainer_process t;
	bool died = true, maybe = false;
	unsigned n = 0;

	while (died) {
		RIG_CHECK(++n < POINTS_MAX, "it dies at each of %u points", n);
		enter(&t, r, ++*run);
		trainer_must(&t, "die %s %u", what, n);
		died = !resume(&t, step, maybe);
		/* What it has sealed before it died counts; what it had not is gone. */
		maybe = true;
		trainer_kill(&t);
		rig_wait(is_given_back, &x, "the memory of the dead is given back");
	}
	++*step; /* the one that lived has saved it */
	return n - 1;
}

static void killed_at_each_point(struct rig *r)
{
	struct trainer_process t;
	unsigned run = 0, messages, pieces;
	uint64_t step = 10;

	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	enter(&t, r, ++run);
	trainer_must(&t, "save 10 1 20000");
	trainer_must(&t, "wait 10 %d 20000", CKPT_COMMITTED);
	trainer_kill(&t);
	rig_pause(300);
	messages = kill_at_each(r, "message", &run, &step);
	/* Declare, Load, LoadEnd, Prepare, SlotsReady, Seal, Wait at least. */
	RIG_CHECK(messages >= 7, "only %u messages", messages);
	pieces = kill_at_each(r, "populate", &run, &step);
	rig_note("%u messages, %u pieces", messages, pieces);
}

/* A budget of four times the state is enough to be killed and to come back, again and again: what
 * the dead have left empty is waited for, and what they left with an older checkpoint in it is the
 * reason that a save is refused with, until it is on disk. */
static void four_times_the_state(struct rig *r)
{
	struct trainer_process t;
	uint64_t step = 10;

	r->args[1] = "memory.budget=60M"; /* 4 slots of 13.5 MB, ledgers, pages; not 5 */
	rig_arg(r, "--set");
	rig_arg(r, "checkpoint.persist_every=1000000");
	rig_start(r);
	for (unsigned run = 1; run <= 10; run++) {
		enter(&t, r, run);
		if (run == 1) {
			trainer_must(&t, "save 10 1 20000");
			trainer_must(&t, "wait 10 %d 20000", CKPT_COMMITTED);
		} else {
			RIG_CHECK(resume(&t, &step, false), "run %u dies", run);
			step++;
		}
		trainer_kill(&t);
	}
}

int main(int argc, char **argv)
{
	static const struct rig_test tests[] = {
		RIG_TEST(killed_at_each_point),
		RIG_TEST(four_times_the_state),
	};

	return rig_run(tests, sizeof(tests) / sizeof(tests[0]), 2, argc, argv);
}
