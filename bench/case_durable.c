/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_durable.c - from the seal of 1 GiB to DURABLE, digests included, and what it costs.
 *
 *   save.durable.uring    GiB/s beside fio's best cell for as many bytes in the same folder
 *   save.durable.threads  the same with the back-end for where io_uring is forbidden
 *   save.durable.new      the first save of a job, into new files, beside fio's best cell that
 *                         writes a new file; ckptd, its data and the trainer are new each time
 *   save.cpu              core-seconds per GiB that ckptd and its supervisor use from the seal
 *                         until everything that follows DURABLE is done, beside one thread's
 *                         digest of the same bytes plus what fio used to write them
 *
 * The time is the trainer's: from the return of ckpt_save() to that of ckpt_wait(DURABLE). The
 * files of the checkpoint before the last are written over, as they are in any run that has been
 * going for a while; the first saves, into new files, are counted in save.durable.new alone.
 */
#include <config.h>

#include <stdio.h>
#include <string.h>

#include "bench/fio.h"
#include "bench/server.h"
#include "bench/trainer.h"

#define PAIRS 9
#define WARM_UP 3
#define SETTLE_MS 150 /* after DURABLE: index, retention */
#define STATE_BYTES GIB

struct durable {
	struct bench *bench;
	struct fio_cell cell;
	bool calibrated;
	struct server server;
	struct trainer trainer;
	struct series speed, cpu;
	uint64_t step;
	long faults;
};

static int start(struct durable *d, const char *backend, struct err *e)
{
	const char *const sets[4] = { backend, "retention.keep_last=1" };
	struct order state = { .kind = ORDER_STATE, .bytes = STATE_BYTES };
	struct order open = { .kind = ORDER_OPEN, .job = "durable", .run = "1", .world = 1 };
	struct answer a;
	int r = server_start(&d->server, d->bench, true, sets, e);

	if (r == 0)
		r = trainer_start(&d->trainer, e);
	if (r == 0)
		r = trainer_ask(&d->trainer, &state, &a, e);
	snprintf(open.socket, sizeof(open.socket), "%.119s", d->server.socket);
	return r < 0 ? r : trainer_ask(&d->trainer, &open, &a, e);
}

static int save(struct durable *d, double *ret_s, double *ret_cpu_s, struct err *e)
{
	struct order o = { .kind = ORDER_DURABLE, .step = ++d->step };
	uint64_t before = 0, after = 0;
	struct answer a;
	int r = server_cpu(&d->server, &before, e);

	if (r == 0)
		r = trainer_ask(&d->trainer, &o, &a, e);
	pause_ms(SETTLE_MS);
	if (r == 0)
		r = server_cpu(&d->server, &after, e);
	if (r < 0)
		return r;
	*ret_s = seconds(a.end - a.sealed);
	*ret_cpu_s = seconds(after - before);
	if (a.faults > d->faults)
		d->faults = a.faults;
	return 0;
}

static int pair(struct durable *d, struct err *e)
{
	struct order digest = { .kind = ORDER_DIGEST };
	double s = 0, cpu_s = 0, gib = (double)STATE_BYTES / GIB;
	struct fio_result fio;
	struct answer a;
	int r = fio_run(d->bench, &d->cell, STATE_BYTES, &fio, e);

	if (r == 0)
		r = save(d, &s, &cpu_s, e);
	if (r == 0)
		r = trainer_ask(&d->trainer, &digest, &a, e);
	if (r < 0)
		return r;
	series_add(&d->speed, gib / s, fio.gib_s);
	series_add(&d->cpu, cpu_s / gib, (seconds(a.cpu_ns) + fio.cpu_s) / gib);
	return 0;
}

static int measure(struct durable *d, const char *backend, struct err *e)
{
	double ignored;
	int r = 0;

	d->speed.n = d->cpu.n = 0;
	d->step = 0;
	d->faults = 0;
	if (!d->calibrated)
		r = fio_best(d->bench, FIO_WRITE, STATE_BYTES, &d->cell, NULL, e);
	d->calibrated = r == 0;
	if (r == 0)
		r = start(d, backend, e);
	for (int i = 0; i < WARM_UP && r == 0; i++)
		r = save(d, &ignored, &ignored, e);
	for (int i = 0; i < PAIRS && r == 0; i++)
		r = pair(d, e);
	trainer_stop(&d->trainer);
	server_stop(&d->server);
	return r;
}

static void report_speed(struct durable *d, const char *name, double target)
{
	struct figure f = { .name = name, .unit = "GiB/s", .at_least = true, .target = target,
			    .faults = d->faults };
	char limit[64];

	fio_name(&d->cell, limit, sizeof(limit));
	f.limit_name = limit;
	figure_of(&f, &d->speed);
	report(d->bench, &f);
}

static void report_cpu(struct durable *d)
{
	struct figure f = { .name = "save.cpu", .unit = "core-s/GiB", .target = 0.25,
			    .target_of = TARGET_VALUE, .faults = -1,
			    .limit_name = "digest by one thread + fio's own CPU time" };

	figure_of(&f, &d->cpu);
	report(d->bench, &f);
}

/* ---- New files ---- */

static int new_pair(struct durable *d, struct err *e)
{
	struct fio_result fio;
	double s = 0, ignored;
	int r = fio_run(d->bench, &d->cell, STATE_BYTES, &fio, e);

	d->step = 0;
	if (r == 0)
		r = start(d, "storage.backend=uring", e);
	if (r == 0)
		r = save(d, &s, &ignored, e);
	trainer_stop(&d->trainer);
	server_stop(&d->server);
	remove_tree(d->server.data);
	if (r == 0)
		series_add(&d->speed, (double)STATE_BYTES / GIB / s, fio.gib_s);
	return r;
}

static void new_files(struct bench *b)
{
	static struct durable d;
	struct err e = {0};
	int r;

	if (!wanted(b, "save.durable.new"))
		return;
	d.bench = b;
	r = fio_best(b, FIO_WRITE_NEW, STATE_BYTES, &d.cell, NULL, &e);
	for (int i = 0; i < PAIRS && r == 0; i++)
		r = new_pair(&d, &e);
	if (r < 0)
		cannot(b, "save.durable.new", &e);
	else
		report_speed(&d, "save.durable.new", 0.90);
}

void cases_durable(struct bench *b)
{
	static struct durable d;
	struct err e = { 0 };
	bool uring = wanted(b, "save.durable.uring"), cpu = wanted(b, "save.cpu");

	d.bench = b;
	if (uring || cpu) {
		if (measure(&d, "storage.backend=uring", &e) < 0) {
			cannot(b, uring ? "save.durable.uring" : "save.cpu", &e);
		} else {
			if (uring)
				report_speed(&d, "save.durable.uring", 0.90);
			if (cpu)
				report_cpu(&d);
		}
	}
	if (wanted(b, "save.durable.threads")) {
		if (measure(&d, "storage.backend=threads", &e) < 0)
			cannot(b, "save.durable.threads", &e);
		else
			report_speed(&d, "save.durable.threads", 0.75);
	}
	new_files(b);
	if (!b->only || uring)
		rivals(b, "save");
}
