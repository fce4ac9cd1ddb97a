/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_load.c - 1 GiB back into a new process, every leaf verified.
 *
 *   load.memory  the trainer has died, ckptd lives: GiB/s beside a loop that copies and digests
 *                leaves from a memfd, by as many threads as the load has
 *   load.disk    ckptd was started again without its memory: GiB/s beside the best of fio's
 *                O_DIRECT reads of as many bytes and of plain readers (plain.h), which read the
 *                very file of the checkpoint to the very place of the load. Which of them is best
 *                is found once, and that one takes turns with the load; the ratio is that of the
 *                medians. Nothing is in the page cache: the load reads by O_DIRECT, plain readers
 *                drop what they read, and everything is dropped before, where root may
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
	char file[300];     /* of the rank, in the data folder */
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

/* ---- From disk ---- */

#define CELL_RUNS 3

/* The best way to read the file that the load reads: fio's, or a plain reader's. */
struct disk_limit {
	bool plain;
	struct plain_cell cell; /* of a plain reader */
	struct fio_cell fio;
	double gib_s;
};

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

static int read_plain(struct loading *l, const struct plain_cell *c, double *ret, struct err *e)
{
	struct order o = {.kind = ORDER_PLAIN, .plain = *c};
	struct answer a;
	int r;

	snprintf(o.folder, sizeof(o.folder), "%s", l->file);
	r = trainer_ask(&l->trainer, &o, &a, e);
	if (r == 0)
		*ret = (double)STATE_BYTES / GIB / seconds(a.end - a.begin);
	return r;
}

static int try_plain(struct loading *l, const struct plain_cell *c, struct disk_limit *best,
		     struct err *e)
{
	double gib_s[CELL_RUNS], here;
	int r = 0;

	for (int i = 0; i < CELL_RUNS && r == 0; i++)
		r = read_plain(l, c, &gib_s[i], e);
	if (r < 0)
		return r;
	here = median(gib_s, CELL_RUNS);
	if (here > best->gib_s)
		*best = (struct disk_limit){
			.plain = true, .cell = *c, .fio = best->fio, .gib_s = here};
	return 0;
}

static void limit_name(const struct disk_limit *d, char *buf, size_t size)
{
	if (d->plain)
		plain_name(&d->cell, buf, size);
	else
		fio_name(&d->fio, buf, size);
}

static int calibrate(struct loading *l, struct disk_limit *ret, struct err *e)
{
	char name[80];
	int r = fio_best(l->bench, FIO_READ, STATE_BYTES, &ret->fio, &ret->gib_s, e);

	for (int way = 0; way < PLAIN_WAYS && r == 0; way++)
		for (int mib = 1; mib <= 4 && r == 0; mib *= 2)
			for (int threads = 2; threads <= 8 && r == 0; threads *= 2) {
				struct plain_cell c = {(enum plain_way)way, threads, mib};

				r = try_plain(l, &c, ret, e);
			}
	if (r < 0)
		return r;
	limit_name(ret, name, sizeof(name));
	say(l->bench, "%20s calibration: the best of all is %s, %.2f GiB/s", "", name, ret->gib_s);
	return 0;
}

static int read_limit(struct loading *l, const struct disk_limit *d, double *ret, struct err *e)
{
	struct fio_result fio;
	int r;

	if (d->plain)
		return read_plain(l, &d->cell, ret, e);
	r = fio_run(l->bench, &d->fio, STATE_BYTES, &fio, e);
	if (r == 0)
		*ret = fio.gib_s;
	return r;
}

static int disk_pairs(struct loading *l, const struct disk_limit *d, struct err *e)
{
	double here = 0, there = 0;
	int r = load(l, &here, e);

	if (r == 0)
		r = check(l, e);
	for (int i = 0; i < PAIRS && r == 0; i++) {
		r = read_limit(l, d, &there, e);
		if (r == 0)
			r = load(l, &here, e);
		if (r == 0)
			series_add(&l->fused, here, there);
	}
	return r < 0 ? r : check(l, e);
}

/* The page cache must have nothing of the file, and other programs' pages cost no time. */
static int start_cold(struct loading *l, bool *ret_dropped, struct err *e)
{
	int r = save(l, e);

	server_stop(&l->server);
	*ret_dropped = drop_caches();
	if (r == 0)
		r = server_start(&l->server, l->bench, false, sets, e);
	if (r == 0)
		r = server_shard(&l->server, 0, l->file, e);
	return r < 0 ? r : enter(l, e);
}

static void from_disk(struct bench *b)
{
	struct figure f = {.name = "load.disk",
			   .unit = "GiB/s",
			   .at_least = true,
			   .target = 0.90,
			   .faults = -1,
			   .of_medians = true};
	struct loading l = { .bench = b, .tier = CKPT_TIER_DISK };
	struct disk_limit limit = {0};
	struct err e = { 0 };
	char name[80];
	bool dropped;
	int r;

	if (!wanted(b, f.name))
		return;
	r = start_cold(&l, &dropped, &e);
	if (r == 0)
		r = calibrate(&l, &limit, &e);
	if (r == 0)
		r = disk_pairs(&l, &limit, &e);
	trainer_stop(&l.trainer);
	server_stop(&l.server);
	if (r < 0) {
		cannot(b, f.name, &e);
		return;
	}
	limit_name(&limit, name, sizeof(name));
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
