/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_load.c - 1 GiB back into a new process, every leaf verified.
 *
 *   load.memory  the trainer has died, ckptd lives: GiB/s beside a loop that copies and digests
 *                leaves from a memfd, by as many threads as the load has
 *   load.disk    ckptd was started again without its memory: GiB/s beside fio's best O_DIRECT read
 *                of as many bytes; nothing of it is in the page cache, for the files were never
 *                read or written but by O_DIRECT (what little is left is dropped where root may)
 *
 * What is loaded is compared with what was saved, by digest, after the first and the last load.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bench/fio.h"
#include "bench/server.h"
#include "bench/trainer.h"

#define PAIRS 11
#define STATE_BYTES GIB
#define STEP 7

static const char *const sets[4] = { "memory.slots=2" };

struct loading {
	struct bench *bench;
	struct server server;
	struct trainer trainer;
	struct series fused, copied;
	struct fio_cell cell;
	uint8_t digest[16]; /* of what was saved */
	int tier;
};

static int ask(struct loading *l, enum order_kind kind, struct answer *a, struct err *e)
{
	struct order o = { .kind = kind, .step = STEP, .bytes = STATE_BYTES, .job = "load",
			   .world = 1 };

	snprintf(o.run, sizeof(o.run), "%d", (int)l->trainer.pid);
	snprintf(o.socket, sizeof(o.socket), "%.119s", l->server.socket);
	return trainer_ask(&l->trainer, &o, a, e);
}

/* A process of its own, with a state. */
static int enter(struct loading *l, struct err *e)
{
	struct answer a;
	int r = trainer_start(&l->trainer, e);

	if (r == 0)
		r = ask(l, ORDER_STATE, &a, e);
	return r < 0 ? r : ask(l, ORDER_OPEN, &a, e);
}

static int save(struct loading *l, struct err *e)
{
	struct answer a;
	int r = server_start(&l->server, l->bench, true, sets, e);

	if (r == 0)
		r = enter(l, e);
	if (r == 0)
		r = ask(l, ORDER_DURABLE, &a, e);
	if (r == 0)
		r = ask(l, ORDER_DIGEST, &a, e);
	memcpy(l->digest, a.digest, sizeof(l->digest));
	trainer_stop(&l->trainer);
	return r;
}

static int check(struct loading *l, struct err *e)
{
	struct answer a;
	int r = ask(l, ORDER_DIGEST, &a, e);

	if (r == 0 && memcmp(a.digest, l->digest, sizeof(l->digest)) != 0)
		r = err_set(e, CKPT_ECORRUPT, "what was loaded is not what was saved");
	return r;
}

/* GiB/s of one load into memory that holds something else. */
static int load(struct loading *l, double *ret, struct err *e)
{
	struct answer a;
	int r = ask(l, ORDER_SCRUB, &a, e);

	if (r == 0)
		r = ask(l, ORDER_LOAD, &a, e);
	if (r == 0 && a.tier != l->tier)
		r = err_set(e, CKPT_ESTATE, "the load came from another tier (%d)", a.tier);
	if (r == 0)
		*ret = (double)STATE_BYTES / GIB / seconds(a.end - a.begin);
	return r;
}

static int limit(struct loading *l, enum order_kind kind, double *ret, struct err *e)
{
	struct answer a;
	int r = ask(l, kind, &a, e);

	if (r == 0)
		*ret = (double)STATE_BYTES / GIB / seconds(a.end - a.begin);
	return r;
}

static int memory_pairs(struct loading *l, struct err *e)
{
	double here = 0, fused = 0, copied = 0;
	int r = load(l, &here, e);

	if (r == 0)
		r = check(l, e);
	for (int i = 0; i < PAIRS && r == 0; i++) {
		r = limit(l, ORDER_FUSED, &fused, e);
		if (r == 0)
			r = load(l, &here, e);
		if (r == 0)
			r = limit(l, ORDER_MEMCPY, &copied, e);
		if (r < 0)
			break;
		series_add(&l->fused, here, fused);
		series_add(&l->copied, here, copied);
	}
	if (r == 0)
		r = load(l, &here, e);
	return r < 0 ? r : check(l, e);
}

static void from_memory(struct bench *b)
{
	struct figure f = { .name = "load.memory", .unit = "GiB/s", .at_least = true,
			    .target = 0.9, .faults = -1,
			    .limit_name = "copy-and-digest loop, same threads" };
	struct figure copy = { .name = "" };
	struct loading l = { .bench = b, .tier = CKPT_TIER_MEMORY };
	struct err e = { 0 };
	int r;

	if (!wanted(b, f.name))
		return;
	r = save(&l, &e);
	if (r == 0)
		r = enter(&l, &e);
	if (r == 0)
		r = memory_pairs(&l, &e);
	trainer_stop(&l.trainer);
	server_stop(&l.server);
	if (r < 0) {
		cannot(b, f.name, &e);
		return;
	}
	figure_of(&f, &l.fused);
	figure_of(&copy, &l.copied);
	snprintf(f.note, sizeof(f.note), "%.3f of memcpy by the same threads (%.2f GiB/s)",
		 copy.ratio, copy.limit);
	report(b, &f);
}

/* For whom it is allowed: the page cache, inodes and directories. */
static bool drop_caches(void)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
	bool done;

	sync();
	done = fd >= 0 && write(fd, "3", 1) == 1;
	if (fd >= 0)
		close(fd);
	return done;
}

static int disk_pairs(struct loading *l, struct err *e)
{
	struct fio_result fio;
	double here = 0;
	int r = load(l, &here, e);

	if (r == 0)
		r = check(l, e);
	for (int i = 0; i < PAIRS && r == 0; i++) {
		r = fio_run(l->bench, &l->cell, STATE_BYTES, &fio, e);
		if (r == 0)
			r = load(l, &here, e);
		if (r == 0)
			series_add(&l->fused, here, fio.gib_s);
	}
	return r < 0 ? r : check(l, e);
}

static void from_disk(struct bench *b)
{
	struct figure f = { .name = "load.disk", .unit = "GiB/s", .at_least = true,
			    .target = 0.85, .faults = -1 };
	struct loading l = { .bench = b, .tier = CKPT_TIER_DISK };
	struct err e = { 0 };
	char name[64];
	bool dropped;
	int r;

	if (!wanted(b, f.name))
		return;
	r = fio_best(b, true, STATE_BYTES, &l.cell, &e);
	if (r == 0)
		r = save(&l, &e);
	server_stop(&l.server);
	dropped = drop_caches();
	if (r == 0)
		r = server_start(&l.server, b, false, sets, &e);
	if (r == 0)
		r = enter(&l, &e);
	if (r == 0)
		r = disk_pairs(&l, &e);
	trainer_stop(&l.trainer);
	server_stop(&l.server);
	if (r < 0) {
		cannot(b, f.name, &e);
		return;
	}
	fio_name(&l.cell, name, sizeof(name));
	f.limit_name = name;
	snprintf(f.note, sizeof(f.note), "files are O_DIRECT; the page cache was %sdropped before",
		 dropped ? "" : "not ");
	figure_of(&f, &l.fused);
	report(b, &f);
}

void cases_load(struct bench *b)
{
	from_memory(b);
	from_disk(b);
}
