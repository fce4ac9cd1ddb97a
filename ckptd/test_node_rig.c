/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "ckptd/test_node_rig.h"

#include <errno.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/disk.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/node_priv.h"
#include "storage/paths.h"

#define BLOB_BYTES 100

/* ---- A disk whose answers can be changed ---- */

_Atomic uint64_t pretended_room = UINT64_MAX;
_Atomic int log_error;
_Atomic int log_sync_error;
atomic_bool log_sync_waits;
_Atomic int shard_error;
atomic_bool shard_waits;
_Atomic int token_error;
_Atomic int list_error;
_Atomic int read_error;
_Atomic uint64_t unreadable_from;
atomic_bool log_wants_spare;
const char *_Atomic folder_gone_with;

static struct disk_ops real_ops, changed_ops;

void disk_is_good(void)
{
	pretended_room = UINT64_MAX;
	log_error = 0;
	log_sync_error = 0;
	log_sync_waits = false;
	shard_error = 0;
	shard_waits = false;
	token_error = 0;
	list_error = 0;
	read_error = 0;
	unreadable_from = 0;
	log_wants_spare = false;
	folder_gone_with = NULL;
}

static int changed_space(struct disk *d, uint64_t *ret_free, uint64_t *ret_total)
{
	int r = real_ops.space(d, ret_free, ret_total);

	if (r == 0 && pretended_room != UINT64_MAX)
		*ret_free = pretended_room;
	return r;
}

static int count_name(void *arg, const char *name, bool is_dir)
{
	(void)name;
	(void)is_dir;
	(*(unsigned *)arg)++;
	return 0;
}

/* "jobs/<id>/<step>.<attempt>/rank-..." */
static bool is_unreadable(const char *path)
{
	unsigned long long step;

	return strstr(path, "/rank-") && sscanf(path, "jobs/%*[0-9a-f]/%llu.", &step) == 1 &&
	       step >= unreadable_from;
}

/* Also one that is written again, which has a temporary name. */
static bool is_new_shard(const char *path, unsigned flags)
{
	return (flags & DISK_CREATE) && strstr(path, "rank-");
}

static int changed_open(struct disk *d, const char *path, unsigned flags, struct disk_file **ret)
{
	unsigned spare = 0;

	if (log_wants_spare && (flags & DISK_CREATE) && strstr(path, "/log/") &&
	    real_ops.list(d, "spare", count_name, &spare) == 0 && spare > 0)
		return -ENOSPC;
	if (log_error && (flags & DISK_CREATE) &&
	    (strstr(path, "/log/") || strstr(path, "/log.new/")))
		return log_error;
	if (token_error && (flags & DISK_CREATE) && strncmp(path, "jobs/", 5) == 0 &&
	    strstr(path, "/" TEMPORARY_PREFIX))
		return token_error;
	while (shard_waits && is_new_shard(path, flags))
		usleep(1000);
	if (shard_error && is_new_shard(path, flags))
		return shard_error;
	if (read_error && !(flags & DISK_CREATE) && is_unreadable(path))
		return read_error;
	return real_ops.open(d, path, flags, ret);
}

static int changed_list(struct disk *d, const char *path, disk_name_fn *fn, void *arg)
{
	unsigned long long step;

	if (list_error && sscanf(path, "jobs/%*[0-9a-f]/%llu.", &step) == 1)
		return list_error;
	return real_ops.list(d, path, fn, arg);
}

static int changed_sync_dir(struct disk *d, const char *path)
{
	size_t len = strlen(path);
	bool log = len > 4 && strcmp(path + len - 4, "/log") == 0;

	while (log && log_sync_waits)
		usleep(1000);
	if (log && log_sync_error)
		return log_sync_error;
	return real_ops.sync_dir(d, path);
}

static int changed_folder(void *arg, struct err *e)
{
	const char *pattern = folder_gone_with;

	if (!pattern || count_files(arg, pattern) == 0)
		return 0;
	return err_set(e, -ENOENT, "the data folder is gone");
}

/* Before the node starts: no work is under way that would see half of it. */
static void change_disk(void *arg)
{
	struct node_test *t = arg;
	struct host *h = &t->host;

	real_ops = *h->disk->ops;
	changed_ops = real_ops;
	changed_ops.space = changed_space;
	changed_ops.open = changed_open;
	changed_ops.list = changed_list;
	changed_ops.sync_dir = changed_sync_dir;
	h->disk->ops = &changed_ops;
	h->node->env.folder_check = changed_folder;
	h->node->env.folder_arg = t;
	if (t->before)
		t->before(t);
}

/* ---- What it says ---- */

static char told[1u << 20]; /* all lines of this test; worker threads say some */
static pthread_mutex_t told_mutex = PTHREAD_MUTEX_INITIALIZER;

static void remember_line(void *arg, int level, const struct log_about *about, const char *line)
{
	size_t len;

	(void)arg;
	(void)about;
	pthread_mutex_lock(&told_mutex);
	len = strlen(told);
	snprintf(told + len, sizeof(told) - len, "%d %s\n", level, line);
	pthread_mutex_unlock(&told_mutex);
	if (level <= LOG_WARNING && !getenv("CKPT_TEST_VERBOSE"))
		fprintf(stderr, "%d %s\n", level, line);
}

struct job *the_job(struct node_test *t)
{
	return list_first(&t->host.node->jobs, struct job, link);
}

unsigned times_told(const char *words)
{
	unsigned n = 0;

	pthread_mutex_lock(&told_mutex);
	for (const char *at = told; (at = strstr(at, words)) != NULL; at += strlen(words))
		n++;
	pthread_mutex_unlock(&told_mutex);
	return n;
}

bool was_told(const char *words)
{
	return times_told(words) > 0;
}

bool turn_on(struct node_test *t, uint64_t *end_ns)
{
	struct timespec now;
	uint64_t now_ns;

	clock_gettime(CLOCK_MONOTONIC, &now);
	now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (*end_ns == 0)
		*end_ns = now_ns + 120ull * 1000000000u;
	if (now_ns >= *end_ns)
		return false;
	host_turn(&t->host);
	return true;
}

void turn_until_told(struct node_test *t, const char *words)
{
	uint64_t end = 0;

	while (!was_told(words) && turn_on(t, &end))
		;
	assert_true(was_told(words));
}

/* ---- The node ---- */

static atomic_bool busy; /* workers that block() has made */

int node_test_setup(void **state)
{
	static struct node_test test;

	disk_is_good(); /* also where the test before this one failed */
	told[0] = '\0';
	test = (struct node_test){.dir = test_dir_make(NULL), .backend = "threads"};
	snprintf(test.socket, sizeof(test.socket), "%s/sock", test.dir);
	test.a.fd = test.b.fd = -1;
	node_options_default(&test.o);
	*state = &test;
	return 0;
}

int node_test_teardown(void **state)
{
	struct node_test *t = *state;

	busy = false;
	if (t->running)
		end_node(t);
	test_dir_remove(t->dir);
	return 0;
}

int try_begin_node(struct node_test *t)
{
	struct host_options o = {.folder = t->dir,
				 .socket = t->socket,
				 .backend = t->backend,
				 .node = &t->o,
				 .checks = t->checks,
				 .index = t->index,
				 .before = change_disk,
				 .before_arg = t,
				 .log = remember_line,
				 .as_ckptd = true};
	struct err e = {0};
	int r;

	t->running = true;
	r = host_start(&t->host, &o, &e);
	if (r < 0)
		fprintf(stderr, "start: %s\n", e.text);
	return r;
}

void begin_node(struct node_test *t)
{
	assert_int_equal(try_begin_node(t), 0);
}

void begin_one(struct node_test *t)
{
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run1"), HAND_BASE_NONE);
	declare_and_prepare(&t->a, 0, 1);
}

void begin_two(struct node_test *t)
{
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 2, "run1"), HAND_BASE_NONE);
	join(t, &t->b, 1, 2, "run1");
	declare_rank(&t->a, 0, 2);
	declare_rank(&t->b, 1, 2);
	prepare_rank(&t->a);
	prepare_rank(&t->b);
}

void end_node(struct node_test *t)
{
	leave(&t->a);
	leave(&t->b);
	host_stop(&t->host);
	t->running = false;
	disk_is_good();
}

size_t count_files(const struct node_test *t, const char *pattern)
{
	char path[512];
	glob_t g;
	size_t n;

	snprintf(path, sizeof(path), "%s/%s", t->dir, pattern);
	n = glob(path, 0, NULL, &g) == 0 ? g.gl_pathc : 0;
	globfree(&g);
	return n;
}

uint64_t file_bytes(const struct node_test *t, const char *pattern)
{
	char path[512];
	struct stat st;
	uint64_t bytes = 0;
	glob_t g;

	snprintf(path, sizeof(path), "%s/%s", t->dir, pattern);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	for (size_t i = 0; i < g.gl_pathc; i++) {
		assert_int_equal(stat(g.gl_pathv[i], &st), 0);
		bytes += (uint64_t)st.st_size;
	}
	globfree(&g);
	return bytes;
}

/* ---- Workers that are busy ---- */

#define WIDTH_MAX 4

static int blocking;
static struct work blockers[WIDTH_MAX];

static void block_run(struct work *w)
{
	while (busy)
		usleep(1000);
	w->status = 0;
}

static void block_done(struct work *w)
{
	(void)w;
	blocking--;
}

void block(struct node_test *t, enum work_class class, uint32_t uid)
{
	busy = true;
	blocking = work_width(t->host.workers, class);
	assert_in_range(blocking, 1, WIDTH_MAX);
	for (int i = 0; i < blocking; i++) {
		blockers[i] = (struct work){.run = block_run, .done = block_done};
		work_submit(t->host.workers, class, uid, &blockers[i]);
	}
}

void unblock(struct node_test *t)
{
	busy = false;
	for (int i = 0; i < 1000 && blocking > 0; i++)
		loop_epoll_turn(t->host.loop, 10000000);
	assert_int_equal(blocking, 0);
}

bool still_blocked(void)
{
	return blocking > 0;
}

/* ---- Ranks ---- */

static int code_of(const struct hand *k, int code, const char *what)
{
	if (code < 0)
		fprintf(stderr, "%s: %s\n", what, k->text);
	return code;
}

void connect_rank(struct node_test *t, struct hand *k)
{
	assert_int_equal(hand_connect(k, &t->host), 0);
}

int open_rank(struct hand *k, uint32_t rank, uint32_t world, const char *run)
{
	return code_of(k, hand_open(k, "job", rank, world, run), "open");
}

uint64_t join(struct node_test *t, struct hand *k, uint32_t rank, uint32_t world, const char *run)
{
	connect_rank(t, k);
	assert_int_equal(open_rank(k, rank, world, run), 0);
	return k->base_step;
}

void leave(struct hand *k)
{
	if (k->fd >= 0)
		hand_close(k);
}

void declare_elements(struct hand *k, uint32_t rank, uint32_t world, uint64_t elements)
{
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .trained = true,
			  .global = {1, {elements * world}},
			  .box = {1, {elements * rank}, {elements}}};
	int code = hand_declare(k, GEOMETRY_DEFAULT, &s, 1);

	assert_int_equal(code_of(k, code, "declare"), 0);
}

void declare_rank(struct hand *k, uint32_t rank, uint32_t world)
{
	declare_elements(k, rank, world, ELEMENTS);
}

void prepare_rank(struct hand *k)
{
	assert_int_equal(code_of(k, hand_prepare(k), "prepare"), 0);
}

void declare_and_prepare(struct hand *k, uint32_t rank, uint32_t world)
{
	declare_rank(k, rank, world);
	prepare_rank(k);
}

static void fill_image(void *seed, const struct shard *s, uint8_t *out)
{
	test_fill(out, s->bytes, *(uint64_t *)seed);
}

int save_rank(struct hand *k, uint32_t rank, uint64_t step)
{
	uint64_t seed = step * 100 + rank;
	uint8_t blob[BLOB_BYTES];

	test_fill(blob, sizeof(blob), step);
	return code_of(k, hand_save(k, step, fill_image, &seed, blob, sizeof(blob)), "save");
}

void save_until(struct hand *k, uint32_t rank, uint64_t step, uint32_t what)
{
	assert_int_equal(save_rank(k, rank, step), 0);
	assert_int_equal(code_of(k, hand_wait(k, step, what), "wait"), 0);
}

void load_rank_at(struct hand *k, uint32_t rank, uint64_t step, uint32_t tier, uint64_t which)
{
	size_t len = ELEMENTS * 4;
	uint8_t *want = malloc(len), blob[BLOB_BYTES];
	struct hand_loaded got = {.shards = {calloc(1, len)}};

	assert_int_equal(code_of(k, hand_load(k, which, NULL, &got), "load"), 0);
	assert_int_equal(got.step, step);
	assert_int_equal(got.tier, tier);
	test_fill(want, len, step * 100 + rank);
	assert_memory_equal(got.shards[0], want, len);
	test_fill(blob, sizeof(blob), step);
	assert_int_equal(got.blob_bytes, sizeof(blob));
	assert_memory_equal(got.blob, blob, sizeof(blob));
	free(got.shards[0]);
	free(want);
}

void load_rank(struct hand *k, uint32_t rank, uint64_t step, uint32_t tier)
{
	load_rank_at(k, rank, step, tier, CKPT_LATEST);
}
