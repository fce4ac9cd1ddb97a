/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_resume.c - from the start of a restarted training process until its state is there: 4 ranks
 * of 256 MiB, or of a quarter of --mib each.
 *
 *   resume.warm   all ranks were killed (SIGKILL), ckptd has the checkpoint in memory
 *   resume.cold   ckptd was stopped and started again too: only the files are left, and the page
 *                 cache has nothing of them
 *
 * The clock starts before the first process is made and executed, with a ckptd that answers, and
 * ends when the last rank's load has returned: it runs through starting programs, opening,
 * declaring, and whatever the library does before it loads. The limit, in turn with it, is the load
 * alone: the same processes, which are open by then and have their slots, load the same once more.
 * Both load into memory that nothing has touched. What was loaded is compared with what was saved,
 * by digest, after the first and the last load.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "bench/plain.h"
#include "bench/server.h"
#include "bench/trainer.h"

#define RANKS 4
#define PAIRS 11
#define STEP  7

static const char *const sets[4] = {"memory.slots=2"};

struct resuming {
	struct bench *bench;
	struct server server;
	struct trainer trainers[RANKS];
	struct series series, plain;
	char files[RANKS][300];
	uint8_t digests[RANKS][16]; /* of what was saved */
	int run, tier;
};

/* All ranks get the order at once. The time is from `begin`, or the first one's begin if that is 0,
 * to the last one's end. */
static int all(struct resuming *s, struct order *o, uint64_t begin, double *ret_s,
	       struct answer ret[RANKS], struct err *e)
{
	uint64_t first = UINT64_MAX, end = 0;
	int r = 0, sent = 0;

	o->world = RANKS;
	o->step = STEP;
	o->bytes = s->bench->mib * MIB / RANKS;
	snprintf(o->job, sizeof(o->job), "resume");
	snprintf(o->run, sizeof(o->run), "%d", s->run);
	snprintf(o->socket, sizeof(o->socket), "%.119s", s->server.socket);
	for (; sent < RANKS && r == 0; sent++) {
		o->rank = sent;
		if (o->kind == ORDER_PLAIN)
			snprintf(o->folder, sizeof(o->folder), "%s", s->files[sent]);
		r = trainer_send(&s->trainers[sent], o, e);
	}
	for (int i = 0; i < sent; i++) {
		int one = trainer_receive(&s->trainers[i], &ret[i], r == 0 ? e : NULL);

		r = r < 0 ? r : one;
		first = min_u64(first, ret[i].begin);
		end = max_u64(end, ret[i].end);
	}
	if (r == 0 && ret_s)
		*ret_s = seconds(end - (begin ? begin : first));
	return r;
}

static int all_do(struct resuming *s, enum order_kind kind, struct err *e)
{
	struct answer a[RANKS] = {0};
	struct order o = {.kind = kind};

	return all(s, &o, 0, NULL, a, e);
}

/* A load of all ranks, by whatever order. */
static int all_load(struct resuming *s, enum order_kind kind, uint64_t begin, double *ret_s,
		    struct err *e)
{
	struct answer a[RANKS] = {0};
	struct order o = {.kind = kind};
	int r = all(s, &o, begin, ret_s, a, e);

	for (int i = 0; i < RANKS && r == 0; i++)
		if (a[i].tier != s->tier)
			r = err_set(e, CKPT_ESTATE,
				    "the load of rank %d came from another tier "
				    "(%d)",
				    i, a[i].tier);
	return r;
}

static int start_all(struct resuming *s, struct err *e)
{
	int r = 0;

	s->run++;
	for (int i = 0; i < RANKS && r == 0; i++)
		r = trainer_start(&s->trainers[i], e);
	return r;
}

static void kill_all(struct resuming *s)
{
	for (int i = 0; i < RANKS; i++)
		trainer_kill(&s->trainers[i]);
}

static int save(struct resuming *s, struct err *e)
{
	struct answer a[RANKS] = {0};
	struct order digest = {.kind = ORDER_DIGEST};
	int r = server_start(&s->server, s->bench, true, sets, e);

	if (r == 0)
		r = start_all(s, e);
	if (r == 0)
		r = all_do(s, ORDER_STATE, e);
	if (r == 0)
		r = all_do(s, ORDER_OPEN, e);
	if (r == 0)
		r = all_do(s, ORDER_DURABLE, e);
	if (r == 0)
		r = all(s, &digest, 0, NULL, a, e);
	for (int i = 0; i < RANKS && r == 0; i++) {
		memcpy(s->digests[i], a[i].digest, sizeof(s->digests[i]));
		r = server_shard(&s->server, i, s->files[i], e);
	}
	return r;
}

static int check(struct resuming *s, struct err *e)
{
	struct order digest = {.kind = ORDER_DIGEST};
	struct answer a[RANKS] = {0};
	int r = all(s, &digest, 0, NULL, a, e);

	for (int i = 0; i < RANKS && r == 0; i++)
		if (memcmp(a[i].digest, s->digests[i], sizeof(s->digests[i])) != 0)
			r = err_set(e, CKPT_ECORRUPT, "what rank %d loaded is not what it saved",
				    i);
	return r;
}

/* What 4 plain readers need for the same files, cold. */
static int read_plain(struct resuming *s, double *ret_s, struct err *e)
{
	struct order o = {.kind = ORDER_PLAIN, .plain = {PLAIN_HUGE, 2, 2}};
	struct answer a[RANKS] = {0};
	int r = all_do(s, ORDER_ROOM, e);

	return r < 0 ? r : all(s, &o, 0, ret_s, a, e);
}

/* A load may read through the page cache: what the pair before has left there is not cold. */
static int forget_files(struct resuming *s, struct err *e)
{
	int r = 0;

	for (int i = 0; i < RANKS && r == 0; i++)
		r = plain_forget(s->files[i], e);
	return r;
}

static int pair(struct resuming *s, bool compare, struct err *e)
{
	double whole = 0, alone = 0, plain = 0;
	uint64_t begin;
	int r = 0;

	kill_all(s);
	if (s->tier == CKPT_TIER_DISK) {
		server_stop(&s->server);
		r = server_start(&s->server, s->bench, false, sets, e);
		if (r == 0)
			r = forget_files(s, e);
	}
	begin = now_ns();
	if (r == 0)
		r = start_all(s, e);
	if (r == 0)
		r = all_load(s, ORDER_RESUME, begin, &whole, e);
	if (r == 0 && compare)
		r = check(s, e);
	if (r == 0)
		r = all_do(s, ORDER_PREPARE, e);
	if (r == 0 && s->tier == CKPT_TIER_DISK)
		r = read_plain(s, &plain, e);
	if (r == 0)
		r = all_do(s, ORDER_ROOM, e);
	if (r == 0)
		r = all_load(s, ORDER_LOAD, 0, &alone, e);
	if (r == 0 && compare)
		r = check(s, e);
	if (r == 0) {
		series_add(&s->series, whole, alone);
		series_add(&s->plain, plain, alone);
	}
	return r;
}

static void resume(struct bench *b, struct figure *f, int tier)
{
	struct resuming *s = &(struct resuming){.bench = b, .tier = tier};
	struct err e = {0};
	int r;

	if (!wanted(b, f->name))
		return;
	r = save(s, &e);
	for (int i = 0; i < PAIRS && r == 0; i++)
		r = pair(s, i == 0 || i + 1 == PAIRS, &e);
	kill_all(s);
	server_stop(&s->server);
	if (r < 0) {
		cannot(b, f->name, &e);
		return;
	}
	figure_of(f, &s->series);
	if (tier == CKPT_TIER_DISK)
		snprintf(f->note, sizeof(f->note),
			 "plain readers of the same files (O_DIRECT, huge pages): %.3f s",
			 median(s->plain.value, s->plain.n));
	report(b, f);
}

void cases_resume(struct bench *b)
{
	struct figure warm = {.name = "resume.warm",
			      .unit = "s",
			      .target_of = TARGET_SUM,
			      .target = 1.3,
			      .plus = 0.020,
			      .faults = -1,
			      .limit_name = "the load alone"};
	struct figure cold = {.name = "resume.cold",
			      .unit = "s",
			      .target_of = TARGET_SUM,
			      .target = 1.2,
			      .plus = 0.040,
			      .faults = -1,
			      .limit_name = "the load alone"};

	resume(b, &warm, CKPT_TIER_MEMORY);
	resume(b, &cold, CKPT_TIER_DISK);
	if (wanted(b, warm.name) || wanted(b, cold.name))
		rivals(b, "load");
}
