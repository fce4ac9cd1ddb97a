/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_disk.c - what stays on disk, and disks that are full or break: rows C9 and C10 of
 * doc/features.md, and the rule that a failed sync is final.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt.h"
#include "tests/fault/image.h"
#include "tests/lib/rig.h"

#define ELEMENTS 150000ul /* 0.9 MB a checkpoint */
#define SMALL 5u
#define STEPS_MAX 200

static void join(struct trainer_process *t, struct rig *r, const char *job, const char *run)
{
	trainers_join(t, 1, r, job, run, ELEMENTS, SMALL);
	trainer_must(t, "prepare 65536");
}

static void save(struct trainer_process *t, int step)
{
	trainer_must(t, "save %d 1 20000", step);
	trainer_must(t, "wait %d %d 20000", step, CKPT_DURABLE);
}

static void expect_loaded(struct trainer_process *t, int step)
{
	char want[32];

	trainer_must(t, "load %d 0", step);
	snprintf(want, sizeof(want), "%d 1 ", step);
	RIG_CHECK(strncmp(t->text, want, strlen(want)) == 0, "load %d: '%s'", step, t->text);
}

/* ---- C9 ---- */

struct kept {
	struct trainer_process *trainer;
	const char *want; /* " 30 40 60" */
	char have[256];
};

static bool is_kept(void *arg)
{
	struct kept *k = arg;
	struct listed l[STEPS_MAX];
	size_t n = trainer_list(k->trainer, l, STEPS_MAX);

	k->have[0] = '\0';
	while (n-- > 0)
		if (l[n].disk)
			snprintf(k->have + strlen(k->have), sizeof(k->have) - strlen(k->have),
				 " %llu", (unsigned long long)l[n].step);
	return strcmp(k->have, k->want) == 0;
}

static void expect_kept(struct trainer_process *t, const char *want)
{
	struct kept k = { .trainer = t, .want = want };
	char what[64];

	snprintf(what, sizeof(what), "only%s are on disk", want);
	rig_wait(is_kept, &k, what);
}

static int ctl(struct rig *r, const char *words)
{
	char text[4096];

	return rig_ctl(r, text, sizeof(text), "%s", words);
}

/* The last two, each multiple of 30, what is pinned; and never the only one. */
static void keeps(struct rig *r)
{
	struct trainer_process t, other;

	rig_arg(r, "--set");
	rig_arg(r, "retention.keep_last=2");
	rig_arg(r, "--set");
	rig_arg(r, "retention.keep_every=30");
	rig_arg(r, "--set");
	rig_arg(r, "retention.keep_verified=no");
	rig_start(r);
	join(&t, r, "job", "run1");
	for (int step = 10; step <= 40; step += 10)
		save(&t, step);
	RIG_CHECK(ctl(r, "pin job 40") == 0, "pin");
	for (int step = 50; step <= 80; step += 10)
		save(&t, step);
	expect_kept(&t, " 30 40 60 70 80");
	RIG_CHECK(ctl(r, "rm job 40 --yes") == 1, "a pinned one is removed");
	RIG_CHECK(ctl(r, "rm job 30 --yes") == 0, "rm");
	RIG_CHECK(ctl(r, "unpin job 40") == 0, "unpin");
	expect_kept(&t, " 60 70 80");
	for (int step = 60; step <= 80; step += 10)
		expect_loaded(&t, step);
	join(&other, r, "lonely", "run1");
	save(&other, 7);
	RIG_CHECK(ctl(r, "rm lonely 7 --yes") == 1, "the only one is removed");
	trainer_exit(&other);
	trainer_exit(&t);
	rig_kill_all(r);
	rig_start(r);
	join(&t, r, "job", "run2");
	expect_kept(&t, " 60 70 80");
	expect_loaded(&t, 80);
	trainer_exit(&t);
	join(&other, r, "lonely", "run2");
	expect_loaded(&other, 7);
	trainer_exit(&other);
}

/* ---- C10 ---- */

static void own_mounts(void)
{
	if (unshare(CLONE_NEWNS) < 0 ||
	    (mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 && errno != EINVAL))
		rig_skip("root is needed to mount");
}

/* The data folder gets a disk of its own; returns its mount point. */
static const char *small_disk(struct rig *r, const char *options)
{
	static char where[200];

	own_mounts();
	snprintf(where, sizeof(where), "%s/disk", r->dir);
	RIG_CHECK(mkdir(where, 0700) == 0 && mount("none", where, "tmpfs", 0, options) == 0,
		  "mount: %s", strerror(errno));
	return where;
}

struct acked {
	int steps[STEPS_MAX];
	size_t n;
};

/* Saves until something fails; returns what, and the step that failed. */
static int save_until_it_fails(struct trainer_process *t, struct acked *a, int *ret_step)
{
	for (int step = 10;; step += 10) {
		int r = trainer_ask(t, "save %d 1 20000", step);

		RIG_CHECK(a->n < STEPS_MAX, "the disk does not get full");
		if (r == 0)
			r = trainer_ask(t, "wait %d %d 8000", step, CKPT_DURABLE);
		if (r == 0) {
			a->steps[a->n++] = step;
			continue;
		}
		rig_note("step %d: %d %s", step, r, t->text);
		*ret_step = step;
		return r;
	}
}

static void expect_all(struct trainer_process *t, const struct acked *a)
{
	for (size_t i = 0; i < a->n; i++)
		expect_loaded(t, a->steps[i]);
}

/* All but `room` bytes. */
static void fill_up(const char *path, off_t room)
{
	static char block[4096];
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	RIG_CHECK(fd >= 0, "a filler");
	while (write(fd, block, sizeof(block)) > 0)
		;
	RIG_CHECK(ftruncate(fd, lseek(fd, 0, SEEK_END) - room) == 0, "shrink the filler");
	close(fd);
}

/* ENOSPC: told with a reason, nothing that was there is touched, and it goes on with room. */
static void full_disk(struct rig *r)
{
	const char *disk = small_disk(r, "size=14m");
	struct acked acked = { .n = 0 };
	struct trainer_process t;
	char filler[220], words[64];
	int failed, code;

	snprintf(r->data, sizeof(r->data), "%.160s/data", disk);
	snprintf(filler, sizeof(filler), "%s/filler", disk);
	rig_arg(r, "--set");
	rig_arg(r, "retention.keep_every=1");
	rig_arg(r, "--set");
	rig_arg(r, "storage.spare=0");
	rig_start(r);
	join(&t, r, "job", "run1");
	code = save_until_it_fails(&t, &acked, &failed);
	RIG_CHECK(code < 0 && acked.n >= 3, "%zu fit, then %d", acked.n, code);
	RIG_CHECK(code == CKPT_ENOSPACE || code == CKPT_ETIMEDOUT || code == CKPT_EIO,
		  "not for want of room: %d %s", code, t.text);
	expect_all(&t, &acked);
	/* Not a byte is left, not even for the log; then there is room again. */
	fill_up(filler, 0);
	code = trainer_ask(&t, "save %d 1 3000", failed + 10);
	rig_note("nothing left: save %d %s", code, t.text);
	expect_loaded(&t, acked.steps[acked.n - 1]);
	unlink(filler);
	for (int i = 0; i < 3; i++) {
		snprintf(words, sizeof(words), "rm job %d --yes", acked.steps[i]);
		RIG_CHECK(ctl(r, words) == 0, "rm on a full disk");
	}
	save(&t, failed + 20);
	trainer_exit(&t);
	rig_kill_all(r);
	/* Who only loads needs no room but for the records of its epoch. */
	fill_up(filler, 128 << 10);
	rig_start(r);
	trainers_join(&t, 1, r, "job", "run2", ELEMENTS, SMALL);
	for (size_t i = 3; i < acked.n; i++)
		expect_loaded(&t, acked.steps[i]);
	expect_loaded(&t, failed + 20);
	trainer_exit(&t);
	rig_kill_all(r);
	RIG_CHECK(umount(disk) == 0, "umount: %s", strerror(errno));
}

/* ---- The disk that doc/operations.md advises ---- */

#define SIZED_ELEMENTS  4000000ul
#define SIZED_KEEP_LAST 2u
#define SIZED_RESERVE   (16ull << 20)
#define SIZED_SAVES     15

/* What one checkpoint has on disk: C of doc/operations.md. */
static uint64_t measure(struct rig *r)
{
	char command[300], text[64] = "";
	FILE *f;

	snprintf(command, sizeof(command), "du -s -B1 %s/jobs", r->data);
	f = popen(command, "re");
	RIG_CHECK(f && fgets(text, sizeof(text), f) && pclose(f) == 0, "du: '%s'", text);
	return strtoull(text, NULL, 10);
}

/* Leaves that much of a file system free for others than root. */
static void leave_free(const char *where, uint64_t bytes)
{
	struct statvfs v;
	char filler[240];
	uint64_t have;
	int fd;

	snprintf(filler, sizeof(filler), "%.200s/filler", where);
	fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	RIG_CHECK(fd >= 0 && statvfs(where, &v) == 0, "a filler");
	have = (uint64_t)v.f_bavail * v.f_frsize;
	RIG_CHECK(have > bytes, "the image has %llu bytes, %llu are wanted",
		  (unsigned long long)have, (unsigned long long)bytes);
	RIG_CHECK(posix_fallocate(fd, 0, (off_t)(have - bytes)) == 0, "fill");
	close(fd);
}

static void launch(struct rig *r, struct trainer_process t[2], const char *run, int from)
{
	trainers_join(t, 2, r, "job", run, SIZED_ELEMENTS, SMALL);
	trainer_tell(&t[0], "prepare 65536");
	trainer_tell(&t[1], "prepare 65536");
	for (int i = 0; i < 2; i++)
		RIG_CHECK(trainer_answer(&t[i], RIG_PATIENCE_MS) >= 0, "%s: prepare: %s", run,
			  t[i].text);
	for (int i = 0; from > 0 && i < 2; i++)
		trainer_must(&t[i], "load %d 0", from);
	for (int step = from + 10; step <= from + 10 * SIZED_SAVES; step += 10) {
		RIG_CHECK(trainers_save(t, 2, (uint64_t)step, 1) >= 0, "%s: save %d: %s", run, step,
			  t[0].text);
		RIG_CHECK(trainer_ask(&t[0], "wait %d %d 20000", step, CKPT_DURABLE) >= 0,
			  "%s: step %d: %s", run, step, t[0].text);
	}
	trainer_exit(&t[0]);
	trainer_exit(&t[1]);
}

static void set(struct rig *r, const char *fmt, ...)
{
	static char words[16][64];
	static unsigned n;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(words[n], sizeof(words[n]), fmt, ap);
	va_end(ap);
	rig_arg(r, "--set");
	rig_arg(r, words[n++]);
}

/* Three launches of one job on a disk with room for so many of its checkpoints. The newest verified
 * one trails by 45 steps, behind it is the next to be verified, and the base of each launch stays.
 */
static void sized_disk(struct rig *r, double places)
{
	struct trainer_process t[2];
	char why[128], where[220];
	struct err e = {0};
	uint64_t one;
	int fd;

	if (!image_usable(&file_system_ext4, why, sizeof(why)))
		rig_skip("%s", why);
	own_mounts(); /* that of a run which fails goes with its process */
	set(r, "retention.keep_last=%u", SIZED_KEEP_LAST);
	set(r, "storage.spare=0");
	set(r, "storage.disk_reserve=%llu", SIZED_RESERVE);
	set(r, "trust.healthy_steps=45");
	rig_start(r);
	trainers_join(t, 2, r, "job", "measure", SIZED_ELEMENTS, SMALL);
	for (int i = 0; i < 2; i++)
		trainer_tell(&t[i], "prepare 65536");
	for (int i = 0; i < 2; i++)
		RIG_CHECK(trainer_answer(&t[i], RIG_PATIENCE_MS) >= 0, "prepare: %s", t[i].text);
	RIG_CHECK(trainers_save(t, 2, 10, 1) >= 0, "save");
	trainer_must(&t[0], "wait 10 %d 20000", CKPT_DURABLE);
	one = measure(r);
	trainer_exit(&t[0]);
	trainer_exit(&t[1]);
	rig_kill_all(r);
	fd = image_new(&file_system_ext4, 256u << 20);
	snprintf(where, sizeof(where), "%.180s/fs", r->dir);
	RIG_CHECK(mkdir(where, 0700) == 0 &&
			  image_mount(&file_system_ext4, image_path(fd, why), where, &e) == 0,
		  "mount: %s", e.text);
	snprintf(r->data, sizeof(r->data), "%.160s/fs/data", r->dir);
	leave_free(where, (uint64_t)((double)one * places) + SIZED_RESERVE);
	rig_start(r);
	for (int i = 0; i < 3; i++) {
		snprintf(why, sizeof(why), "run%d", i);
		launch(r, t, why, i * 10 * SIZED_SAVES);
	}
	RIG_CHECK(rig_log_count(r, "until there is room") == 0, "a checkpoint had no room");
	rig_kill_all(r);
	RIG_CHECK(image_umount(where, &e) == 0, "%s", e.text);
	close(fd);
}

/* Of a job that does not go back: one that does keeps its highest step, too (operations.md). */
static void sized_as_advised(struct rig *r)
{
	sized_disk(r, SIZED_KEEP_LAST + 4);
}

/* The next one to be verified has no room: it gives way to a Prepare and to writes. */
static void sized_tightly(struct rig *r)
{
	sized_disk(r, SIZED_KEEP_LAST + 3.5);
}

/* ---- A disk that loses writes ---- */

static void repair(const char *image)
{
	char command[300];

	snprintf(command, sizeof(command),
		 "PATH=/usr/sbin:/sbin:$PATH e2fsck -fy %s >/dev/null 2>&1", image);
	RIG_CHECK(system(command) >= 0, "e2fsck");
}

static void copy_image(int from, const char *path)
{
	int to = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	RIG_CHECK(to >= 0 && ftruncate(to, 64 << 20) == 0, "make the image");
	image_copy(from, to, 64 << 20);
	close(to);
}

/*
 * An ext4 whose blocks have no room below them: writes that the file system took come back as EIO
 * at the sync, or later. What was acknowledged as DURABLE must be there all the same.
 */
static void failing_disk(struct rig *r)
{
	const char *below;
	char image[220], where[220], why[128];
	struct acked acked = { .n = 0 };
	struct trainer_process t;
	struct err e = { 0 };
	int fd, failed, code;

	if (!image_usable(&file_system_ext4, why, sizeof(why)))
		rig_skip("%s", why);
	below = small_disk(r, "size=16m");
	fd = image_new(&file_system_ext4, 64 << 20);
	snprintf(image, sizeof(image), "%s/image", below);
	snprintf(where, sizeof(where), "%.180s/fs", r->dir);
	snprintf(r->data, sizeof(r->data), "%.160s/fs/data", r->dir);
	copy_image(fd, image);
	RIG_CHECK(mkdir(where, 0700) == 0, "mkdir");
	RIG_CHECK(image_mount(&file_system_ext4, image, where, &e) == 0, "%s", e.text);
	rig_arg(r, "--set");
	rig_arg(r, "retention.keep_every=1");
	rig_start(r);
	join(&t, r, "job", "run1");
	code = save_until_it_fails(&t, &acked, &failed);
	RIG_CHECK(code < 0 && acked.n >= 2, "%zu were written, then %d", acked.n, code);
	for (int step = failed + 10; step < failed + 40; step += 10) {
		code = trainer_ask(&t, "save %d 1 2000", step);
		if (code == 0 && trainer_ask(&t, "wait %d %d 2000", step, CKPT_DURABLE) == 0)
			acked.steps[acked.n++] = step;
	}
	trainer_kill(&t);
	rig_kill_all(r);
	RIG_CHECK(image_umount(where, &e) == 0, "%s", e.text);
	RIG_CHECK(mount("none", below, "tmpfs", MS_REMOUNT, "size=100m") == 0, "remount");
	repair(image);
	RIG_CHECK(image_mount(&file_system_ext4, image, where, &e) == 0, "%s", e.text);
	rig_start(r);
	join(&t, r, "job", "run2");
	expect_all(&t, &acked);
	save(&t, 1000);
	trainer_exit(&t);
	rig_kill_all(r);
	RIG_CHECK(image_umount(where, &e) == 0, "%s", e.text);
	RIG_CHECK(umount2(below, MNT_DETACH) == 0, "umount: %s", strerror(errno));
}

/* ---- A data folder that goes ---- */

static void expect_uncommitted(struct trainer_process *t, unsigned n, unsigned from)
{
	unsigned have, first;

	trainer_must(t, "stats");
	RIG_CHECK(sscanf(t->text, "%*u %*u %*u %*u %u %u", &have, &first) == 2, "'%s'", t->text);
	RIG_CHECK(have == n && (n == 0 || first == from), "'%s' instead of %u from %u", t->text, n,
		  from);
}

static void expect_problem(struct rig *r, const char *words)
{
	static char text[16384];

	RIG_CHECK(rig_ctl(r, text, sizeof(text), "status --socket %s", r->socket) == 1,
		  "status has no problem: %s", text);
	RIG_CHECK(strstr(text, words) != NULL, "no '%s' in: %s", words, text);
}

/* Saves go on in memory, and the trainer, status, the log and the stop all say so. */
static void save_without_folder(struct rig *r, struct trainer_process *t, int from)
{
	char first[64];

	trainer_must(t, "save %d 1 20000", from);
	RIG_CHECK(trainer_ask(t, "wait %d %d 1500", from, CKPT_COMMITTED) == CKPT_ETIMEDOUT &&
			  strstr(t->text, "ckptd cannot write the job's log; see `ckptctl "),
		  "wait: '%s'", t->text);
	for (int step = from + 10; step <= from + 40; step += 10)
		trainer_must(t, "save %d 1 20000", step);
	expect_uncommitted(t, 5, (unsigned)from);
	snprintf(first, sizeof(first), "of the log: the data folder '%.20s", r->data);
	expect_problem(r, first);
	RIG_CHECK(rig_log_count(r, "trying again each second") == 1, "the log repeats it");
}

static void expect_stop(struct rig *r, int step)
{
	int status = rig_stop(r);
	char words[100];

	RIG_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3, "it stops with %x", status);
	snprintf(words, sizeof(words), "step %d was saved by every rank and could not be committed",
		 step);
	RIG_CHECK(rig_log_count(r, words) == 1, "the stop does not say what is lost");
}

static void mount_twice(struct rig *r, char where[220], char again[220])
{
	char why[128], below[220];
	struct err e = {0};
	const char *disk;
	int fd;

	if (!image_usable(&file_system_ext4, why, sizeof(why)))
		rig_skip("%s", why);
	disk = small_disk(r, "size=80m");
	fd = image_new(&file_system_ext4, 64 << 20);
	snprintf(below, sizeof(below), "%s/image", disk);
	snprintf(where, 220, "%.180s/fs", r->dir);
	snprintf(again, 220, "%.180s/fs-again", r->dir);
	copy_image(fd, below);
	close(fd);
	RIG_CHECK(mkdir(where, 0700) == 0 && mkdir(again, 0700) == 0, "mkdir");
	RIG_CHECK(image_mount(&file_system_ext4, below, again, &e) == 0, "%s", e.text);
	RIG_CHECK(mount(again, where, NULL, MS_BIND, NULL) == 0, "mount: %s", strerror(errno));
}

static bool is_committed(void *arg)
{
	return trainer_ask(arg, "wait 60 %d 1000", CKPT_COMMITTED) == 0;
}

/* A file system that is unmounted lazily takes all that ckptd writes, where nobody finds it. */
static void unmounted_folder(struct rig *r)
{
	struct trainer_process t;
	char where[220], again[220];

	mount_twice(r, where, again);
	r->plain = true;
	snprintf(r->data, sizeof(r->data), "%.160s/fs/data", r->dir);
	rig_arg(r, "--set");
	rig_arg(r, "service.stop_timeout=2s");
	rig_arg(r, "--set");
	rig_arg(r, "storage.disk_reserve=1M");
	rig_start(r);
	join(&t, r, "job", "run1");
	save(&t, 10);
	expect_uncommitted(&t, 0, 0);
	RIG_CHECK(umount2(where, MNT_DETACH) == 0, "umount: %s", strerror(errno));
	save_without_folder(r, &t, 20);
	/* Mounted again it goes on where it was. */
	RIG_CHECK(mount(again, where, NULL, MS_BIND, NULL) == 0, "mount: %s", strerror(errno));
	rig_wait(is_committed, &t, "step 60 is committed");
	expect_uncommitted(&t, 0, 0);
	RIG_CHECK(umount2(where, MNT_DETACH) == 0, "umount: %s", strerror(errno));
	trainer_must(&t, "save 70 1 20000");
	trainer_exit(&t);
	expect_stop(r, 70);
	snprintf(where, sizeof(where), "%.180s/disk", r->dir);
	RIG_CHECK(umount2(again, MNT_DETACH) == 0 && umount2(where, MNT_DETACH) == 0, "umount: %s",
		  strerror(errno));
}

static void removed_folder(struct rig *r)
{
	struct trainer_process t;
	char aside[200];

	r->plain = true;
	rig_arg(r, "--set");
	rig_arg(r, "service.stop_timeout=2s");
	rig_start(r);
	join(&t, r, "job", "run1");
	save(&t, 10);
	snprintf(aside, sizeof(aside), "%.180s-aside", r->data);
	RIG_CHECK(rename(r->data, aside) == 0, "rename: %s", strerror(errno));
	save_without_folder(r, &t, 20);
	trainer_exit(&t);
	expect_stop(r, 60);
}

int main(int argc, char **argv)
{
	static const struct rig_test tests[] = {
		RIG_TEST(keeps),
		RIG_TEST(full_disk),
		RIG_TEST(sized_as_advised),
		RIG_TEST(sized_tightly),
		RIG_TEST(failing_disk),
		RIG_TEST(unmounted_folder),
		RIG_TEST(removed_folder),
	};

	return rig_run(tests, sizeof(tests) / sizeof(tests[0]), 3, argc, argv);
}
