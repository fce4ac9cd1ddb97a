/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_run.c - the script. Each life of ckptd is a child process: the first ends by SIGKILL in the
 * middle of a persist.
 */
#include <config.h>

#include "tests/fault/crash_run.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "proto/session.pb-c.h"
#include "tests/fault/crash_state.h"
#include "tests/lib/hand.h"

#define WORLD 2u
#define BUSY_NS    20000000000ull

struct life {
	const struct recording *recording;
	const struct crash_options *options;
	struct promises *promises;
	struct host host;
	struct hand ranks[WORLD];
	uint64_t epoch;
};

/* The child ends; its parent reads why. */
__attribute__((format(printf, 2, 3))) static void give_up(struct life *l, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(l->promises->error, sizeof(l->promises->error), fmt, ap);
	va_end(ap);
	_exit(1);
}

static void promise(struct life *l, enum promise_kind kind, uint64_t epoch, uint64_t step)
{
	struct promises *p = l->promises;

	if (p->n == PROMISES_MAX)
		give_up(l, "too many promises");
	p->at[p->n++] = (struct promise){ .kind = kind, .epoch = epoch, .step = step,
					  .position = recording_position(l->recording) };
}

static void begin(struct life *l, const char *socket)
{
	struct node_options options;
	struct host_options o = { .folder = l->recording->mount_data, .socket = socket,
				  .backend = l->options->backend, .node = &options };
	struct err e = { 0 };

	crash_node_options(&options);
	if (l->options->bug < PLANTED_BUGS)
		bug_set((enum planted_bug)l->options->bug, true);
	o.skip_file_sync = l->options->bug == CRASH_BUG_FILE_SYNC;
	if (host_start(&l->host, &o, &e) < 0)
		give_up(l, "start: %s", e.text);
}

static void join(struct life *l, const char *run)
{
	struct shard shards[CRASH_SHARDS];

	for (uint32_t i = 0; i < WORLD; i++) {
		struct hand *k = &l->ranks[i];

		if (hand_connect(k, &l->host) < 0 || hand_open(k, CRASH_JOB, i, WORLD, run) < 0)
			give_up(l, "open: %s", k->text);
	}
	l->epoch = l->ranks[0].epoch;
	for (uint32_t i = 0; i < WORLD; i++) {
		struct hand *k = &l->ranks[i];

		crash_shards(l->epoch, i, WORLD, shards);
		if (hand_declare(k, (struct geometry){ 4096, 16384 }, shards, CRASH_SHARDS) < 0)
			give_up(l, "declare: %s", k->text);
	}
}

static void prepare(struct life *l)
{
	for (uint32_t i = 0; i < WORLD; i++)
		if (hand_prepare(&l->ranks[i]) < 0)
			give_up(l, "prepare: %s", l->ranks[i].text);
}

static void seal(struct life *l, uint64_t step)
{
	struct crash_step s = { l->epoch, step };
	uint8_t blob[CRASH_BLOB_BYTES];

	crash_blob(&s, blob);
	for (uint32_t i = 0; i < WORLD; i++)
		if (hand_save(&l->ranks[i], step, crash_fill, &s, blob, sizeof(blob)) < 0)
			give_up(l, "save step %llu: %s", (unsigned long long)step,
				l->ranks[i].text);
}

static void save(struct life *l, uint64_t step)
{
	seal(l, step);
	if (hand_wait(&l->ranks[step / 10 % WORLD], step, CKPT_DURABLE) < 0)
		give_up(l, "step %llu does not get durable", (unsigned long long)step);
	promise(l, PROMISE_DURABLE, l->epoch, step);
}

static void admin(struct life *l, int verb, uint64_t step)
{
	int r = hand_admin(&l->ranks[0], CRASH_JOB, verb, step);
	uint64_t until = loop_now(l->host.loop) + BUSY_NS;

	/* Retention may just be taking another one away. */
	while ((r == -EBUSY || r == -EAGAIN) && loop_now(l->host.loop) < until) {
		host_turn(&l->host);
		r = hand_admin(&l->ranks[0], CRASH_JOB, verb, step);
	}
	if (r < 0)
		give_up(l, "step %llu: %s", (unsigned long long)step, l->ranks[0].text);
}

/* Each rank gets its part of the base back; from memory or disk. */
static void load_base(struct life *l, uint64_t epoch, uint32_t tier)
{
	for (uint32_t i = 0; i < WORLD; i++) {
		struct hand *k = &l->ranks[i];
		struct crash_step s = { epoch, k->base_step };
		struct hand_loaded got = { 0 };

		for (uint32_t j = 0; j < k->n_shards; j++)
			got.shards[j] = alloc_zero(k->shards[j].bytes);
		if (hand_load(k, CKPT_LATEST, NULL, &got) < 0)
			give_up(l, "load: %s", k->text);
		if (got.tier != tier || got.step != k->base_step)
			give_up(l, "load: step %llu of tier %u", (unsigned long long)got.step,
				got.tier);
		for (uint32_t j = 0; j < k->n_shards; j++) {
			uint8_t *want = alloc_zero(k->shards[j].bytes);

			crash_fill(&s, &k->shards[j], want);
			if (memcmp(want, got.shards[j], k->shards[j].bytes) != 0)
				give_up(l, "load: rank %u, shard %u: wrong bytes", i, j);
			alloc_free(want);
			alloc_free(got.shards[j]);
		}
	}
}

static void first_life(struct life *l, const char *socket)
{
	begin(l, socket);
	join(l, "run1");
	prepare(l);
	for (uint64_t step = 10; step <= 50; step += 10)
		save(l, step);
	admin(l, CKPT__ADMIN__VERB__PIN, 50);
	promise(l, PROMISE_PINNED, l->epoch, 50);
	for (uint64_t step = 60; step <= 90; step += 10)
		save(l, step);
	promise(l, PROMISE_REMOVE, l->epoch, 80);
	admin(l, CKPT__ADMIN__VERB__REMOVE, 80);
	save(l, 100);
	promise(l, PROMISE_UNPIN, l->epoch, 50);
	admin(l, CKPT__ADMIN__VERB__UNPIN, 50);
	save(l, 110);
	/* One of its files has no header: with all of them it would be made whole. */
	fault_arm(FAULT_SHARD_FOOTER, FAULT_KILL, fault_hits(FAULT_SHARD_FOOTER) + 2, false);
	seal(l, 120);
	ignore_result(hand_wait(&l->ranks[0], 120, CKPT_DURABLE) /* killed in it */);
	give_up(l, "the fault point did not kill");
}

static void second_life(struct life *l, const char *socket)
{
	begin(l, socket);
	join(l, "run2");
	if (l->ranks[0].base_step != 110)
		give_up(l, "the base is step %llu", (unsigned long long)l->ranks[0].base_step);
	load_base(l, 1, CKPT_TIER_DISK);
	prepare(l);
	for (uint64_t step = 120; step <= 150; step += 10)
		save(l, step);
	for (uint32_t i = 0; i < WORLD; i++)
		hand_close(&l->ranks[i]);
	join(l, "run3");
	load_base(l, 2, CKPT_TIER_MEMORY);
	prepare(l);
	for (uint64_t step = 160; step <= 180; step += 10)
		save(l, step);
	host_stop(&l->host);
	_exit(0);
}

static void live(const struct recording *r, const struct crash_options *o, const char *socket,
		 struct promises *p, void (*fn)(struct life *, const char *), bool killed)
{
	struct life *l = alloc_zero(sizeof(*l));
	int status = 0;
	pid_t pid = fork();

	if (!l || pid < 0)
		abort();
	if (pid == 0) {
		alarm(120);
		l->recording = r;
		l->options = o;
		l->promises = p;
		fn(l, socket);
	}
	alloc_free(l);
	if (waitpid(pid, &status, 0) != pid)
		abort();
	if (p->error[0])
		return;
	if (killed ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status != 0)
		snprintf(p->error, sizeof(p->error), "a life of the run ended with status %d",
			 status);
}

void crash_run(const struct recording *r, const struct crash_options *o, const char *socket,
	       struct promises *ret)
{
	memset(ret, 0, sizeof(*ret));
	live(r, o, socket, ret, first_life, true);
	if (!ret->error[0])
		live(r, o, socket, ret, second_life, false);
}
