/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_points.c - loss of power at hundreds of points of a real run on a real file system.
 *
 *   crash_points [--xfs]
 *
 * The run of crash_run.c is recorded block by block. For each point the disk is rebuilt as it may
 * be found then: all writes before the last flush, and of those after it all, none, a random half,
 * or torn ones. It is mounted, so that the file system recovers, and crash_check.c looks.
 *
 * First it is shown that this finds what it is there for: with a planted bug something is lost at
 * one of the points. Without bugs nothing may be, at >= 300 points (CKPT_CRASH_POINTS). What
 * journals hide cannot be shown here: where only SKIP_SHARD_SYNC or SKIP_EXPIRE_SYNC is on, the
 * next fsync of any folder makes the file durable too, on ext4 and on xfs. A disk that keeps less
 * is tests/sim's.
 *
 * CKPT_CRASH_KEEP=FILE keeps the first image at which a run without bugs failed.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/rng.h"
#include "storage/disk_posix.h"
#include "tests/fault/crash_run.h"
#include "tests/lib/test.h"

#define JOBS 2u
#define RUNS_MAX 3 /* with one planted bug */
#define SAVE_EVERY 8 /* points at which the recovered folder is used */
#define POINT_SECONDS 60

enum outcome { NOT_TRIED, TRYING, GOOD, BAD };

struct point {
	size_t block;
	enum loss loss;
	uint64_t seed;
	bool save;
	_Atomic int outcome;
	char why[ERR_TEXT_MAX];
};

/* Points of one recording; shared with the children that try them. */
struct points {
	size_t n;
	_Atomic bool stop; /* a loss was found, and that is enough */
	struct point at[];
};

struct trial {
	const struct file_system *fs;
	struct recording recording;
	struct promises *promises;
	char *dir;
	struct points *points;
	size_t points_bytes;
};

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		abort();
	return p;
}

/* ---- Choosing ---- */

static int by_number(const void *a, const void *b)
{
	const size_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* The first block that is at or behind position. */
static size_t block_at(const struct recording *r, uint64_t position)
{
	size_t i = 0;

	while (i < r->n_blocks && r->blocks[i].position < position)
		i++;
	return i;
}

/* Different blocks, rising: first where promises were made, then spread over the record. */
static size_t choose_blocks(const struct trial *t, size_t *at, size_t n, struct rng *rng)
{
	const struct recording *r = &t->recording;
	uint8_t *taken = alloc_zero(r->n_blocks + 1);
	size_t k = 0;

	assert(taken);
	n = min_u64(n, r->n_blocks + 1);
	for (size_t i = 0; i < t->promises->n && k < n; i++) {
		size_t b = block_at(r, t->promises->at[i].position);

		if (!taken[b])
			at[k++] = b;
		taken[b] = 1;
	}
	while (k < n) {
		size_t b = rng_below(rng, r->n_blocks + 1);

		while (taken[b])
			b = (b + 1) % (r->n_blocks + 1);
		taken[b] = 1;
		at[k++] = b;
	}
	alloc_free(taken);
	qsort(at, n, sizeof(*at), by_number);
	return n;
}

static void choose_points(struct trial *t, size_t n, uint64_t seed)
{
	size_t *at = alloc_array(n + 1, sizeof(*at));
	struct rng_seeded rng;

	assert(at);
	rng_seed(&rng, seed);
	n = choose_blocks(t, at, n, &rng.rng);
	t->points_bytes = sizeof(*t->points) + n * sizeof(t->points->at[0]);
	t->points = shared(t->points_bytes);
	t->points->n = n;
	for (size_t i = 0; i < n; i++) {
		uint64_t dice = rng_below(&rng.rng, 100);
		struct point *p = &t->points->at[i];

		p->block = at[i];
		p->loss = dice < 25   ? LOSS_ALL
			  : dice < 30 ? LOSS_NONE
			  : dice < 65 ? LOSS_SOME
				      : LOSS_TORN;
		p->seed = rng_u64(&rng.rng);
		p->save = i % SAVE_EVERY == 0;
	}
	alloc_free(at);
}

/* ---- Trying ---- */

static void keep_image(struct trial *t, struct replay *p, const struct point *at)
{
	const char *file = getenv("CKPT_CRASH_KEEP");
	int fd = file ? open(file, O_RDWR | O_CREAT | O_EXCL, 0600) : -1;

	if (fd < 0)
		return;
	replay_to(p, at->block, at->loss, at->seed);
	if (ftruncate(fd, (off_t)t->fs->bytes) == 0)
		image_copy(p->scratch, fd, t->fs->bytes);
	close(fd);
}

static int try_point(struct trial *t, struct replay *p, struct point *at, const char *where,
		     const char *socket)
{
	const struct recording *r = &t->recording;
	uint64_t position = at->block < r->n_blocks ? r->blocks[at->block].position : r->len;
	char path[64];
	struct err e = { 0 };
	int bad;

	replay_to(p, at->block, at->loss, at->seed);
	if (image_mount(t->fs, image_path(p->scratch, path), where, &e) < 0) {
		snprintf(at->why, sizeof(at->why), "%s", e.text);
		return -1;
	}
	bad = crash_check(where, socket, t->promises, position, at->save, at->why, sizeof(at->why));
	if (image_umount(where, &e) < 0) {
		snprintf(at->why, sizeof(at->why), "%s", e.text);
		return -1;
	}
	return bad;
}

/* Other than a disk that cannot be mounted, or a node that does not start. */
static bool is_loss(const struct point *p)
{
	return p->outcome == BAD && (strncmp(p->why, "LOST", 4) == 0 ||
				     strncmp(p->why, "WRONG BYTES", 11) == 0);
}

/* A child: every JOBS-th point. stop_at_loss: one is enough. */
static void try_points(struct trial *t, unsigned job, bool stop_at_loss)
{
	char where[128], socket[128];
	struct replay p;

	snprintf(where, sizeof(where), "%s/at%u", t->dir, job);
	snprintf(socket, sizeof(socket), "%s/sock%u", t->dir, job);
	ignore_result(mkdir(where, 0700) /* there from the trial before, or the mount fails */);
	replay_init(&p, &t->recording);
	for (size_t i = job; i < t->points->n && !t->points->stop; i += JOBS) {
		struct point *at = &t->points->at[i];

		alarm(POINT_SECONDS);
		at->outcome = TRYING;
		at->outcome = try_point(t, &p, at, where, socket) == 0 ? GOOD : BAD;
		if (at->outcome == BAD && !stop_at_loss)
			keep_image(t, &p, at);
		if (is_loss(at) && stop_at_loss)
			t->points->stop = true;
	}
	replay_fini(&p);
}

static void try_all(struct trial *t, bool stop_at_loss)
{
	pid_t pids[JOBS];
	int status;

	fflush(stdout);
	for (unsigned j = 0; j < JOBS; j++) {
		pids[j] = fork();
		if (pids[j] < 0)
			abort();
		if (pids[j] > 0)
			continue;
		try_points(t, j, stop_at_loss);
		_exit(0);
	}
	for (unsigned j = 0; j < JOBS; j++)
		if (waitpid(pids[j], &status, 0) != pids[j])
			abort();
	for (size_t i = 0; i < t->points->n; i++) {
		struct point *p = &t->points->at[i];

		if (p->outcome != TRYING)
			continue;
		p->outcome = BAD;
		snprintf(p->why, sizeof(p->why), "the check ended by a signal or hung");
	}
}

/* ---- One recording and its points ---- */

static void trial_begin(struct trial *t, const struct file_system *fs, char *dir,
			const struct crash_options *o)
{
	char socket[128];
	struct err e = { 0 };

	*t = (struct trial){ .fs = fs, .dir = dir, .promises = shared(sizeof(struct promises)) };
	snprintf(socket, sizeof(socket), "%s/sock", dir);
	if (recording_start(&t->recording, fs, dir, &e) < 0) {
		printf("not ok recording: %s\n", e.text);
		exit(1);
	}
	crash_run(&t->recording, o, socket, t->promises);
	if (recording_stop(&t->recording, &e) < 0) {
		printf("not ok recording: %s\n", e.text);
		exit(1);
	}
}

static void trial_end(struct trial *t)
{
	munmap(t->promises, sizeof(*t->promises));
	if (t->points)
		munmap(t->points, t->points_bytes);
	recording_free(&t->recording);
}

struct found {
	size_t tried, bad, lost;
};

static struct found look(struct trial *t, size_t n, uint64_t seed, bool stop_at_loss)
{
	struct found f = { 0 };

	choose_points(t, n, seed);
	try_all(t, stop_at_loss);
	for (size_t i = 0; i < t->points->n; i++) {
		const struct point *p = &t->points->at[i];

		f.tried += p->outcome != NOT_TRIED;
		f.bad += p->outcome == BAD;
		f.lost += is_loss(p);
		if (p->outcome == BAD)
			printf("#   block %zu of %zu, loss %s: %s\n", p->block,
			       t->recording.n_blocks, loss_names[p->loss], p->why);
	}
	return f;
}

static int planted(const struct file_system *fs, char *dir, int bug, const char *name,
		   size_t points, uint64_t seed)
{
	struct crash_options o = { .backend = "threads", .bug = bug };
	struct found f = { 0 };
	size_t tried = 0;
	struct trial t;

	/* Where the machine is slow, the file system writes by itself what was not synced. */
	for (unsigned run = 0; run < RUNS_MAX && !f.lost; run++) {
		trial_begin(&t, fs, dir, &o);
		if (t.promises->error[0])
			printf("#   the run itself: %s\n", t.promises->error);
		else
			f = look(&t, points, seed + run, true);
		tried += f.tried;
		trial_end(&t);
	}
	printf("%s planted %s on %s is found (%zu points looked at)\n", f.lost ? "ok" : "not ok",
	       name, fs->name, tried);
	return f.lost ? 0 : 1;
}

static int clean(const struct file_system *fs, char *dir, const char *backend, size_t points,
		 size_t *total, uint64_t seed)
{
	struct crash_options o = { .backend = backend, .bug = CRASH_BUG_NONE };
	size_t durable = 0;
	struct found f;
	struct trial t;

	trial_begin(&t, fs, dir, &o);
	if (t.promises->error[0]) {
		printf("not ok run on %s, %s: %s\n", fs->name, backend, t.promises->error);
		return 1;
	}
	for (size_t i = 0; i < t.promises->n; i++)
		durable += t.promises->at[i].kind == PROMISE_DURABLE;
	f = look(&t, points, seed, false);
	*total += f.tried;
	printf("%s %s, %s: %zu points of %zu writes and %zu flushes, %zu checkpoints "
	       "acknowledged, %zu points bad\n",
	       f.bad ? "not ok" : "ok", fs->name, backend, f.tried,
	       t.recording.n_blocks - t.recording.n_flushes, t.recording.n_flushes, durable, f.bad);
	trial_end(&t);
	return f.bad ? 1 : 0;
}

static int all(const struct file_system *fs, char *dir, uint64_t seed)
{
	size_t want = test_cap("CKPT_CRASH_POINTS", fs == &file_system_xfs ? 60 : 320);
	size_t least = min_u64(want, 300), total = 0;
	struct err why = { 0 };
	int bad = 0;

	bad += planted(fs, dir, BUG_SKIP_COMMIT_DIR_SYNC, "missing fsync of COMMIT's folder", 100,
		       seed);
	bad += planted(fs, dir, CRASH_BUG_FILE_SYNC, "missing fdatasync", 100, seed);
	bad += planted(fs, dir, BUG_SKIP_LOG_DIR_SYNC, "missing fsync of the log's folder", 100,
		       seed);
	if (disk_uring_usable(&why)) {
		bad += clean(fs, dir, "threads", want / 2, &total, seed);
		bad += clean(fs, dir, "uring", want - want / 2, &total, seed + 1);
	} else {
		bad += clean(fs, dir, "threads", want, &total, seed);
		printf("skip uring %s\n", why.text);
	}
	printf("%s %zu points on %s\n", total >= least ? "ok" : "not ok", total, fs->name);
	return bad || total < least;
}

int main(int argc, char **argv)
{
	bool xfs = argc == 2 && strcmp(argv[1], "--xfs") == 0;
	const struct file_system *fs = xfs ? &file_system_xfs : &file_system_ext4;
	char why[128], *dir;
	int r;

	if (argc > 2 || (argc == 2 && !xfs)) {
		fprintf(stderr, "usage: crash_points [--xfs]\n");
		return 2;
	}
#ifndef CKPT_FAULTS
	printf("skip crash_points built without --enable-fault-injection\n");
	return 77;
#endif
	if (!image_usable(fs, why, sizeof(why))) {
		printf("skip crash_points %s\n", why);
		return 77;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	dir = test_dir_make(NULL);
	r = all(fs, dir, test_seed(1));
	test_dir_remove(dir);
	return r;
}
