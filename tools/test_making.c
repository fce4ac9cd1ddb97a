/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a checkpoint: read back element by element against the formula of test_checkpoint.h; with
 * too few buffers; killed at any moment and gone on with; refused where it must be.
 */
#include <config.h>

#include "tests/lib/test.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "storage/disk_posix.h"
#include "storage/shard_file.h"
#include "storage/staging.h"
#include "tools/making.h"
#include "tools/reading.h"
#include "tools/test_checkpoint.h"

#define MIB       (1u << 20)
#define RANKS_MAX 40

static const uint64_t wide[] = {900, 1200}, tall[] = {3000, 257}, small[] = {77};

struct rank {
	struct shard shards[8];
	uint32_t n;
	void *declaration;
	size_t declaration_len;
	uint8_t *image; /* up to the blobs */
	uint64_t image_len;
	uint8_t rng[256];
	struct making_blob blob;
};

struct fixture {
	char *parent, folder[4096];
	struct rank ranks[RANKS_MAX];
	struct making_rank making[RANKS_MAX];
	uint32_t world;
	struct rng_seeded seeded;
};

static void must(int r, const struct err *e)
{
	if (r < 0)
		fprintf(stderr, "%s\n", e->code ? e->text : err_text(r));
	assert_true(r >= 0);
}

static void make_rank(struct fixture *f, uint32_t i)
{
	struct rank *k = &f->ranks[i];
	struct declaration_builder *b = NULL;
	struct declaration d;
	struct err e = {0};
	struct shard s;

	k->shards[k->n++] = test_cut(test_tensor("wide", CKPT_F32, 2, wide), 0, i, f->world);
	k->shards[k->n++] = test_cut(test_tensor("tall", CKPT_BF16, 2, tall), 1, i, f->world);
	k->shards[k->n++] = test_tensor("small", CKPT_U8, 1, small);
	must(declaration_builder_new(GEOMETRY_DEFAULT, &b), &e);
	for (uint32_t n = 0; n < k->n; n++)
		must(declaration_add(b, &k->shards[n], &e), &e);
	must(declaration_finish(b, &k->declaration, &k->declaration_len, &e), &e);
	declaration_builder_free(b);
	must(declaration_open(k->declaration, k->declaration_len, &d, &e), &e);
	k->image_len = d.image_bytes;
	k->image = calloc(1, k->image_len);
	for (uint32_t n = 0; n < d.n_shards; n++) {
		declaration_get(&d, n, &s);
		test_shard_bytes(&s, k->image + s.image_offset);
	}
	k->blob = (struct making_blob){
		.name = "rng", .bytes = k->rng, .len = test_blob_bytes(i, k->rng)};
	f->making[i] = (struct making_rank){.declaration = k->declaration,
					    .declaration_len = k->declaration_len,
					    .blobs = &k->blob,
					    .n_blobs = 1};
}

static int set_up(void **state, uint32_t world)
{
	struct fixture *f = alloc_zero(sizeof(*f));

	f->parent = test_dir_make(NULL);
	snprintf(f->folder, sizeof(f->folder), "%s/data", f->parent);
	f->world = world;
	for (uint32_t i = 0; i < world; i++)
		make_rank(f, i);
	rng_seed(&f->seeded, test_seed(20261122));
	*state = f;
	return 0;
}

static int set_up_3(void **state)
{
	return set_up(state, 3);
}

static int set_up_40(void **state)
{
	return set_up(state, 40);
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	for (uint32_t i = 0; i < f->world; i++) {
		alloc_free(f->ranks[i].declaration);
		free(f->ranks[i].image);
	}
	test_dir_remove(f->parent);
	alloc_free(f);
	return 0;
}

static struct making_options options(const struct fixture *f)
{
	return (struct making_options){.data = f->folder,
				       .socket = "/nonexistent",
				       .job = "new",
				       .uid = getuid(),
				       .step = 42,
				       .sync_every = MIB};
}

/* Ranks take turns with pieces of random sizes, gaps of zeros are left out now and then. */
static int put_all(struct fixture *f, struct making *m, struct err *e)
{
	struct rng *g = &f->seeded.rng;
	uint64_t at[RANKS_MAX] = {0};
	uint32_t left = f->world;
	int r = 0;

	while (left > 0 && r == 0) {
		uint32_t i = (uint32_t)rng_below(g, f->world);
		struct rank *k = &f->ranks[i];
		uint64_t n = 1 + rng_below(g, rng_below(g, 2) ? 5000 : 300000);

		if (at[i] >= k->image_len)
			continue;
		n = n < k->image_len - at[i] ? n : k->image_len - at[i];
		r = making_put(m, i, at[i], k->image + at[i], n, e);
		at[i] += n;
		if (at[i] == k->image_len) {
			left--;
			if (r == 0 && rng_below(g, 2))
				r = making_finish(m, i, e);
		}
	}
	return r;
}

static void check(struct fixture *f)
{
	const struct reading_options o = {.data = f->folder, .job = "new"};
	struct reading *r = NULL;
	struct err e = {0};

	must(reading_open(&o, &r, &e), &e);
	assert_int_equal(reading_commit(r)->id.step, 42);
	assert_int_equal(reading_commit(r)->world, f->world);
	assert_int_equal(reading_commit(r)->uid, getuid());
	for (uint32_t i = 0; i < f->world; i++) {
		uint64_t len = 0;
		void *blob = NULL;

		must(reading_blob(r, i, "rng", 3, &blob, &len, &e), &e);
		assert_int_equal(len, f->ranks[i].blob.len);
		assert_memory_equal(blob, f->ranks[i].rng, len);
		alloc_free(blob);
	}
	for (size_t i = 0; i < reading_n_tensors(r); i++) {
		const struct reading_tensor *t = reading_tensor(r, i);
		struct shard s = test_tensor("small", CKPT_U8, 1, small);
		uint8_t *got = test_malloc(t->bytes), *expected = test_malloc(t->bytes);
		struct reading_want w = {.tensor = i, .to = got};

		if (t->name[0] != 's')
			s = t->name[0] == 'w' ? test_tensor("wide", CKPT_F32, 2, wide)
					      : test_tensor("tall", CKPT_BF16, 2, tall);
		w.box = s.box;
		w.stop = s.stop;
		must(reading_fetch(r, &w, 1, NULL, &e), &e);
		assert_int_equal(test_shard_bytes(&s, expected), t->bytes);
		assert_memory_equal(got, expected, t->bytes);
		test_free(got);
		test_free(expected);
	}
	reading_close(r);
}

/* What lies in incoming/ but for its own lock. */
static int count_incoming(const struct fixture *f)
{
	char path[4200];
	struct dirent *d;
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/incoming", f->folder);
	dir = opendir(path);
	while (dir && (d = readdir(dir)))
		n += d->d_name[0] != '.' && strcmp(d->d_name, "LOCK") != 0;
	if (dir)
		closedir(dir);
	return n;
}

static void make(struct fixture *f, const struct making_options *o)
{
	struct making *m = NULL;
	struct err e = {0};

	must(making_open(o, f->making, f->world, &m, &e), &e);
	assert_false(making_resumed(m));
	must(put_all(f, m, &e), &e);
	must(making_commit(m, &e), &e);
	making_close(m);
	check(f);
	assert_int_equal(count_incoming(f), 0);
}

static void makes_what_is_read_back(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);

	make(f, &o);
}

static void makes_it_compressed(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);

	o.compression = 3;
	o.memory = making_memory_least(3);
	make(f, &o);
}

/* 40 ranks share 4 buffers. */
static void makes_it_with_few_buffers(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);

	o.memory = making_memory_least(0);
	make(f, &o);
}

static void makes_it_compressed_with_few_buffers(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);

	o.compression = 1;
	o.memory = making_memory_least(1);
	make(f, &o);
}

/* ---- Refused ---- */

static void refuses_a_name_twice(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct making *m = NULL, *n = NULL;
	struct err e = {0};

	must(making_open(&o, f->making, f->world, &m, &e), &e);
	assert_int_equal(making_open(&o, f->making, f->world, &n, &e), -EBUSY);
	o.job = "other"; /* two different ones at once */
	err_clear(&e);
	must(making_open(&o, f->making, f->world, &n, &e), &e);
	must(put_all(f, m, &e), &e);
	must(put_all(f, n, &e), &e);
	must(making_commit(n, &e), &e);
	making_close(n);
	must(making_commit(m, &e), &e);
	making_close(m);
	n = NULL;
	assert_int_equal(making_open(&o, f->making, f->world, &n, &e), -EEXIST);
	assert_non_null(strstr(e.text, "'other'"));
	assert_null(n);
	o.uid++; /* another user's name is another name */
	err_clear(&e);
	must(making_open(&o, f->making, f->world, &n, &e), &e);
	making_close(n);
	check(f);
	assert_int_equal(count_incoming(f), 0);
}

static void *hold_for_a_while(void *arg)
{
	struct disk_file *lock = arg;

	usleep(200000);
	lock->disk->ops->close(lock);
	return NULL;
}

/* Another tool is placing a job of its own: it is waited for. */
static void waits_for_another_tool(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct disk_file *lock = NULL;
	struct making *m = NULL;
	struct disk *d = NULL;
	struct err e = {0};
	pthread_t thread;

	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(put_all(f, m, &e), &e);
	must(disk_posix_open(f->folder, "threads", &d, &e), &e);
	must(d->ops->open(d, "LOCK", DISK_CREATE, &lock), &e);
	must(d->ops->lock(lock, true), &e);
	assert_int_equal(pthread_create(&thread, NULL, hold_for_a_while, lock), 0);
	must(making_commit(m, &e), &e);
	assert_int_equal(e.code, 0);
	making_close(m);
	assert_int_equal(pthread_join(thread, NULL), 0);
	disk_posix_close(d);
	check(f);
	assert_int_equal(count_incoming(f), 0);
}

/* Somebody has the folder who cannot be asked: refused before a byte, or what was written stays. */
static void needs_who_has_the_folder(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct disk_file *lock = NULL;
	struct making *m = NULL;
	struct disk *d = NULL;
	struct err e = {0};

	must(making_open(&o, f->making, f->world, &m, &e), &e); /* which makes the folder */
	making_close(m);
	o.keep = true;
	must(disk_posix_open(f->folder, "threads", &d, &e), &e);
	must(d->ops->open(d, "LOCK", DISK_CREATE, &lock), &e);
	must(d->ops->truncate(lock, 0), &e);
	must(d->ops->write(lock, "1\n", 2, 0), &e); /* as a ckptd does */
	must(d->ops->lock(lock, true), &e);
	for (int dry = 1; dry >= 0; dry--) {
		o.dry_run = dry;
		assert_int_equal(making_open(&o, f->making, f->world, &m, &e), CKPT_EUNAVAILABLE);
		assert_non_null(strstr(e.text, "nothing was written"));
		assert_int_equal(count_incoming(f), 0);
	}
	/* A tool gives it back by itself: what is to be written takes longer. */
	must(d->ops->write(lock, "1 ckptctl, which tests\n", 23, 0), &e);
	o.dry_run = true;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	making_close(m);
	o.dry_run = false;
	lock->disk->ops->close(lock);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(put_all(f, m, &e), &e);
	must(d->ops->open(d, "LOCK", DISK_CREATE, &lock), &e);
	must(d->ops->lock(lock, true), &e);
	assert_int_equal(making_commit(m, &e), CKPT_EUNAVAILABLE);
	assert_non_null(strstr(e.text, "is written: the same command tries again"));
	making_close(m);
	lock->disk->ops->close(lock);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	assert_true(making_resumed(m));
	must(put_all(f, m, &e), &e);
	must(making_commit(m, &e), &e);
	making_close(m);
	disk_posix_close(d);
	check(f);
	assert_int_equal(count_incoming(f), 0);
}

/* A job of the name that comes while it is being made. */
static void refuses_a_name_at_the_end(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct making *m = NULL;
	struct err e = {0};
	const struct shard s = test_tensor("t", CKPT_U8, 1, small);
	const struct test_rank rank = {&s, 1, false};

	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(put_all(f, m, &e), &e);
	test_checkpoint_write(&(struct test_checkpoint){.folder = f->folder,
							.job = "new",
							.uid = getuid(),
							.step = 1,
							.ranks = &rank,
							.world = 1});
	assert_int_equal(making_commit(m, &e), -EEXIST);
	making_close(m);
	assert_int_equal(count_incoming(f), 0);
}

static void refuses_what_cannot_be(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	const uint64_t huge[] = {1ull << 50};
	struct shard s = test_tensor("t", CKPT_U8, 1, huge);
	struct declaration_builder *b = NULL;
	struct making_rank rank = {0};
	struct making *m = NULL;
	struct err e = {0};
	void *bytes = NULL;

	o.job = "a/b";
	assert_int_equal(making_open(&o, f->making, f->world, &m, &e), -EINVAL);
	o = options(f);
	o.memory = 4 * MIB - 1;
	assert_int_equal(making_open(&o, f->making, f->world, &m, &e), -EINVAL);
	assert_non_null(strstr(e.text, "4.0 MiB of buffers at least"));
	o = options(f);
	o.data = "/proc/none";
	assert_true(making_open(&o, f->making, f->world, &m, &e) < 0);
	o = options(f);
	must(declaration_builder_new(GEOMETRY_DEFAULT, &b), &e);
	must(declaration_add(b, &s, &e), &e);
	must(declaration_finish(b, &bytes, &rank.declaration_len, &e), &e);
	declaration_builder_free(b);
	rank.declaration = bytes;
	assert_true(making_open(&o, &rank, 1, &m, &e) < 0);
	alloc_free(bytes);
	assert_null(m);
	assert_int_equal(count_incoming(f), 0);
}

/* ---- Dry runs ---- */

/* What lies in the folder, and when it was written. */
static void fingerprint(const struct fixture *f, char *ret, size_t size)
{
	char command[4300];
	size_t n = 0;
	FILE *p;

	snprintf(command, sizeof(command), "cd '%s' && find . -printf '%%p %%s %%T@ %%i\\n' | sort",
		 f->parent);
	p = popen(command, "r");
	assert_non_null(p);
	n = fread(ret, 1, size - 1, p);
	assert_int_equal(pclose(p), 0);
	assert_true(n > 0 && n < size - 1);
	ret[n] = '\0';
}

/* The same as in earnest, and nothing is written. */
static void refuses_dry(struct fixture *f, struct making_options *o, int code,
			const struct making_rank *ranks, uint32_t world)
{
	static char before[1 << 16], after[1 << 16];
	struct err dry = {0}, e = {0};
	struct making *m = NULL;

	fingerprint(f, before, sizeof(before));
	o->dry_run = true;
	assert_int_equal(making_open(o, ranks, world, &m, &dry), code);
	making_close(m);
	fingerprint(f, after, sizeof(after));
	assert_string_equal(before, after);
	o->dry_run = false;
	m = NULL;
	assert_int_equal(making_open(o, ranks, world, &m, &e), code);
	making_close(m);
	if (code != CKPT_ENOSPACE) /* how much there is may change in between */
		assert_string_equal(dry.text, e.text);
	else
		assert_non_null(strstr(dry.text, ": nothing was written; free some"));
}

static void says_dry_what_is_refused(void **state)
{
	struct fixture *f = *state;
	const uint64_t huge[] = {1ull << 50};
	struct shard s = test_tensor("t", CKPT_U8, 1, huge);
	struct making_options o = options(f);
	struct declaration_builder *b = NULL;
	struct making_rank rank = {0};
	struct making *m = NULL;
	struct err e = {0};
	void *bytes = NULL;
	char path[4300];

	must(declaration_builder_new(GEOMETRY_DEFAULT, &b), &e);
	must(declaration_add(b, &s, &e), &e);
	must(declaration_finish(b, &bytes, &rank.declaration_len, &e), &e);
	declaration_builder_free(b);
	rank.declaration = bytes;
	o.dry_run = true; /* no folder is there, and none is made */
	assert_int_equal(making_open(&o, &rank, 1, &m, &e), CKPT_ENOSPACE);
	assert_int_equal(access(f->folder, F_OK), -1);
	refuses_dry(f, &o, 0, f->making, f->world);
	refuses_dry(f, &o, CKPT_ENOSPACE, &rank, 1);
	o.job = "a/b";
	refuses_dry(f, &o, -EINVAL, f->making, f->world);
	o = options(f);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	refuses_dry(f, &o, -EBUSY, f->making, f->world);
	must(put_all(f, m, &e), &e);
	must(making_commit(m, &e), &e);
	making_close(m);
	refuses_dry(f, &o, -EEXIST, f->making, f->world);
	snprintf(path, sizeof(path), "%s/a/b", f->parent);
	o.data = path;
	refuses_dry(f, &o, -ENOENT, f->making, f->world);
	o.data = "/dev/null";
	refuses_dry(f, &o, -ENOTDIR, f->making, f->world);
	o = options(f);
	o.job = NULL; /* not named yet: the room counts all the same */
	o.dry_run = true;
	m = NULL;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	making_close(m);
	m = NULL;
	assert_int_equal(making_open(&o, &rank, 1, &m, &e), CKPT_ENOSPACE);
	alloc_free(bytes);
	assert_int_equal(count_incoming(f), 0);
}

/* What a run with keep left is found, with how far it came, and stays as it is. */
static void says_dry_what_is_gone_on_with(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct making *m = NULL;
	struct err e = {0};
	int left;

	o.keep = true;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(making_put(m, 0, 0, f->ranks[0].image, f->ranks[0].image_len, &e), &e);
	must(making_finish(m, 0, &e), &e);
	making_close(m);
	left = count_incoming(f);
	assert_int_equal(left, 2);
	for (int keep = 1; keep >= 0; keep--) {
		o.dry_run = true;
		o.keep = keep;
		m = NULL;
		must(making_open(&o, f->making, f->world, &m, &e), &e);
		assert_int_equal(making_resumed(m), keep);
		assert_int_equal(making_has(m, 0), keep);
		assert_false(making_has(m, 1));
		making_close(m);
		assert_int_equal(count_incoming(f), left);
	}
}

/* ---- Killed ---- */

static void run_until_done(struct fixture *f, struct making_options *o)
{
	struct making *m = NULL;
	struct err e = {0};
	int r = making_open(o, f->making, f->world, &m, &e);

	if (r == 0)
		r = put_all(f, m, &e);
	if (r == 0)
		r = making_commit(m, &e);
	making_close(m);
	if (r < 0)
		fprintf(stderr, "%s\n", e.text);
	_exit(r == 0 ? 0 : 1);
}

/* Killed after more and more of its calls: the child counts them, time does not. */
static void goes_on_after_kills(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct making *m = NULL;
	struct err e = {0};
	uint64_t before = 0;

	o.keep = true;
	for (int round = 0; round < 12; round++) {
		pid_t child = fork();
		int status = 0;

		assert_true(child >= 0);
		if (child == 0) {
			alarm(60);
			signal(SIGALRM, SIG_DFL);
			rng_seed(&f->seeded, 77 + (uint64_t)round);
			must(making_open(&o, f->making, f->world, &m, &e), &e);
			for (uint32_t i = 0; i < f->world; i++) {
				struct rank *k = &f->ranks[i];
				uint64_t n = k->image_len * (uint64_t)(round + 1) / 13;

				must(making_put(m, i, 0, k->image, n, &e), &e);
				if (round >= 6 + (int)i)
					must(making_put(m, i, n, k->image + n, k->image_len - n,
							&e),
					     &e);
				if (round >= 7 + (int)i)
					must(making_finish(m, i, &e), &e);
			}
			kill(getpid(), SIGKILL);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		must(making_open(&o, f->making, f->world, &m, &e), &e);
		assert_true(making_resumed(m));
		assert_true(making_position(m, 0) >= before);
		before = making_position(m, 0);
		assert_int_equal(making_has(m, 0), round >= 7);
		making_close(m);
	}
	assert_true(before > 0);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	for (uint32_t i = 0; i < f->world; i++)
		must(making_put(m, i, 0, f->ranks[i].image, f->ranks[i].image_len, &e), &e);
	must(making_commit(m, &e), &e);
	making_close(m);
	check(f);
	assert_int_equal(count_incoming(f), 0);
}

/* At any moment, by the clock: however far it came, the next goes on. */
static void goes_on_after_random_kills(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct rng *g = &f->seeded.rng;
	int status = 1, kills = 0;

	o.keep = true;
	o.compression = 1;
	for (int round = 0; round < 200; round++) {
		pid_t child = fork();

		assert_true(child >= 0);
		if (child == 0)
			run_until_done(f, &o);
		if (kills < 20) {
			usleep((useconds_t)rng_below(g, 60000));
			kill(child, SIGKILL);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		if (!WIFSIGNALED(status))
			break;
		kills++;
	}
	assert_true(WIFEXITED(status));
	/* It may have been killed between its last step and its end. */
	assert_true(WEXITSTATUS(status) == 0 || kills > 0);
	check(f);
	assert_int_equal(count_incoming(f), 0);
}

static void find_journal(const struct fixture *f, char *path, size_t size)
{
	char name[ID_TEXT_MAX] = "";
	struct dirent *d;
	DIR *dir;

	snprintf(path, size, "%s/incoming", f->folder);
	dir = opendir(path);
	assert_non_null(dir);
	while ((d = readdir(dir)))
		if (strstr(d->d_name, ".making"))
			snprintf(name, sizeof(name), "%.32s", d->d_name);
	closedir(dir);
	snprintf(path, size, "%s/incoming/%s.making", f->folder, name);
}

/* A note with a right digest that says of rank 0: its first chunk ends at data_end. */
static void forge_part(const struct fixture *f, uint64_t data_end)
{
	struct writer w = {0};
	struct digest d;
	char path[4400];
	FILE *file;

	find_journal(f, path, sizeof(path));
	write_bytes(&w, "PART", 4);
	write_u32(&w, 4 + 4 * 8);
	write_u32(&w, 0); /* rank */
	write_u64(&w, 1); /* from this chunk */
	write_u64(&w, 1); /* to this one: no places, no leaves */
	write_u64(&w, data_end);
	write_u64(&w, MIB);
	d = digest_of(w.buf, w.len);
	write_bytes(&w, d.b, sizeof(d.b));
	assert_false(w.bad);
	file = fopen(path, "ae");
	assert_non_null(file);
	assert_int_equal(fwrite(w.buf, 1, w.len, file), w.len);
	assert_int_equal(fclose(file), 0);
	writer_free(&w);
}

/* The digest of a note finds accidents: who may write there can compute it. */
static void refuses_a_forged_end(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct rank *k = &f->ranks[0];
	struct making *m = NULL;
	struct err e = {0};
	int r;

	o.keep = true;
	o.compression = 1; /* the next chunk goes where the one before ended */
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(making_put(m, 0, 0, k->image, MIB + 1, &e), &e);
	making_close(m);
	m = NULL;
	forge_part(f, SHARD_HEADER_BYTES + k->image_len);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	assert_true(making_resumed(m));
	assert_int_equal(making_position(m, 0), MIB);
	r = making_put(m, 0, 0, k->image, k->image_len, &e);
	if (r == 0)
		r = making_finish(m, 0, &e);
	assert_int_equal(r, CKPT_ECORRUPT);
	test_says(e.text, "what was written down of");
	test_says(e.text, "'ckptctl gc --incoming'");
	making_close(m);
}

/* What lies in incoming/ may have any size: no more of it is read than is good. */
static void reads_no_huge_journal(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	char path[4400], other[4400], *name;
	const uint8_t long_note[] = {'B', 'E', 'G', 'N', 0xff, 0xff, 0xff, 0xff};
	struct making *m = NULL;
	struct err e = {0};
	int fd;

	o.keep = true;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(making_put(m, 0, 0, f->ranks[0].image, f->ranks[0].image_len, &e), &e);
	must(making_finish(m, 0, &e), &e);
	making_close(m);
	find_journal(f, path, sizeof(path));
	snprintf(other, sizeof(other), "%s", path);
	name = strrchr(other, '/') + 1;
	name[0] = name[0] == '0' ? '1' : '0';
	assert_int_equal(truncate(path, 1ll << 40), 0); /* 1 TiB, all of it a hole */
	for (int i = 0; i < 2; i++) {
		fd = open(other, O_RDWR | O_CREAT, 0600);
		assert_true(fd >= 0);
		assert_int_equal(ftruncate(fd, 1ll << 40), 0);
		if (i)
			assert_int_equal(pwrite(fd, long_note, sizeof(long_note), 0),
					 sizeof(long_note));
		close(fd);
		m = NULL;
		must(making_open(&o, f->making, f->world, &m, &e), &e);
		assert_true(making_resumed(m));
		assert_true(making_has(m, 0));
		if (i) {
			must(put_all(f, m, &e), &e);
			must(making_commit(m, &e), &e);
		}
		making_close(m);
	}
	check(f);
	/* Whether it was taken away depends on which of the two the folder lists first. */
	if (unlink(other) != 0)
		assert_int_equal(errno, ENOENT);
	assert_int_equal(count_incoming(f), 0);
}

#ifdef CKPT_FAULTS
/* An earlier run named COMMIT and did not come to its syncs: the next does them (I7). */
static void makes_a_seen_commit_durable(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct making *m = NULL;
	struct err e = {0};

	o.keep = true;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(put_all(f, m, &e), &e);
	fault_disarm_all(); /* what other tests passed is not counted */
	fault_arm(FAULT_COMMIT_NAMED, FAULT_ERROR, 1, false);
	assert_int_equal(making_commit(m, &e), -EIO);
	making_close(m);
	fault_disarm_all();
	err_clear(&e);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	fault_arm(FAULT_COMMIT_DIR, FAULT_ERROR, 1, false);
	assert_int_equal(making_commit(m, &e), -EIO);
	making_close(m);
	fault_disarm_all();
	err_clear(&e);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(making_commit(m, &e), &e);
	making_close(m);
	check(f);
	assert_int_equal(count_incoming(f), 0);
}

#else
static void makes_a_seen_commit_durable(void **state)
{
	(void)state;
	skip();
}
#endif

/* The same name for something else: neither takes the other's place. */
static void leaves_what_differs(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct making *m = NULL;
	struct err e = {0};

	o.keep = true;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	making_close(m);
	assert_int_equal(count_incoming(f), 1);
	o.step = 43;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	assert_false(making_resumed(m));
	making_close(m);
	assert_int_equal(count_incoming(f), 2);
	o = options(f); /* without keep it begins anew */
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	assert_false(making_resumed(m));
	making_close(m);
	assert_int_equal(count_incoming(f), 1);
}

/* Killed before it had written what it is to be. With a folder beside it, it may have been more. */
static void takes_away_what_nobody_began(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	struct making *m = NULL;
	struct err e = {0};
	char path[4400];
	FILE *file;

	make(f, &o);
	o.job = "other";
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/incoming/%032d.making", f->folder, i);
		file = fopen(path, "we");
		assert_non_null(file);
		if (i > 0)
			fputs("BEGI", file);
		assert_int_equal(fclose(file), 0);
	}
	snprintf(path, sizeof(path), "%s/incoming/%032d", f->folder, 2);
	assert_int_equal(mkdir(path, 0700), 0);
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	assert_int_equal(count_incoming(f), 1 + 2);
	making_close(m);
	assert_int_equal(count_incoming(f), 2);
}

static unsigned unlinks_left;
static struct disk_ops plain_ops;

static int few_unlinks(struct disk *d, const char *path)
{
	return unlinks_left-- > 0 ? plain_ops.unlink(d, path) : -EIO;
}

static int take_away(void *arg, const struct staged *s)
{
	struct store *store = arg;
	struct err e = {0};
	int r = staging_remove(store, &s->job, &e);

	if (r < 0) /* what a ckptd that was asked to adopt it may be at */
		assert_int_equal(staging_publish(store, &s->job, NULL), CKPT_ENOTFOUND);
	return r;
}

/* Taking away ends in the middle: what is left cannot get into jobs/, and goes the next time. */
static void takes_away_all_or_nothing(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	const struct store_options so = {.geometry = GEOMETRY_DEFAULT, .read_only = true};
	struct making *m = NULL;
	struct disk *d = NULL;
	struct disk_ops ops;
	struct store store;
	struct err e = {0};

	o.keep = true;
	must(making_open(&o, f->making, f->world, &m, &e), &e);
	must(put_all(f, m, &e), &e);
	making_close(m);
	must(disk_posix_open(f->folder, "threads", &d, &e), &e);
	plain_ops = ops = *d->ops;
	ops.unlink = few_unlinks;
	d->ops = &ops;
	must(store_open(d, &so, &store, &e), &e);
	for (unsigned n = 0; n < 3; n++) {
		unlinks_left = n == 0;
		assert_int_equal(staging_each(&store, take_away, &store, &e), -EIO);
	}
	unlinks_left = 10;
	must(staging_each(&store, take_away, &store, &e), &e);
	assert_int_equal(count_incoming(f), 0);
	store_close(&store);
	d->ops = &plain_ops;
	disk_posix_close(d);
}

/* Every allocation fails in turn: nothing is left, nothing is visible. */
static void survives_lack_of_memory(void **state)
{
	struct fixture *f = *state;
	struct making_options o = options(f);
	bool fired = true;
	uint64_t n;

	for (n = 1; fired; n++) {
		struct making *m = NULL;
		struct err e = {0};
		int r;

		alloc_fail_at(n, false);
		r = making_open(&o, f->making, 1, &m, &e);
		if (r == 0)
			r = making_put(m, 0, 0, f->ranks[0].image, f->ranks[0].image_len, &e);
		if (r == 0)
			r = making_commit(m, &e);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		assert_true(r == 0 || (e.code == r && e.text[0]));
		making_close(m);
		if (r == 0)
			break;
		assert_true(count_incoming(f) <= 1); /* taking it away may fail too */
	}
	assert_true(n > 30);
}

int main(void)
{
#define T3(f) cmocka_unit_test_setup_teardown(f, set_up_3, tear_down)
	const struct CMUnitTest tests[] = {
		T3(makes_what_is_read_back),
		T3(makes_it_compressed),
		cmocka_unit_test_setup_teardown(makes_it_with_few_buffers, set_up_40, tear_down),
		cmocka_unit_test_setup_teardown(makes_it_compressed_with_few_buffers, set_up_40,
						tear_down),
		T3(refuses_a_name_twice),
		T3(refuses_a_name_at_the_end),
		T3(refuses_what_cannot_be),
		T3(refuses_a_forged_end),
		T3(reads_no_huge_journal),
		T3(says_dry_what_is_refused),
		T3(says_dry_what_is_gone_on_with),
		T3(goes_on_after_kills),
		T3(goes_on_after_random_kills),
		T3(makes_a_seen_commit_durable),
		T3(waits_for_another_tool),
		T3(needs_who_has_the_folder),
		T3(leaves_what_differs),
		T3(takes_away_what_nobody_began),
		T3(takes_away_all_or_nothing),
		T3(survives_lack_of_memory),
	};

	unsetenv("CKPT_DATA");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
