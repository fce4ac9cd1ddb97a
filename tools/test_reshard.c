/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ckptctl reshard` as a program: every target file's every shard against the formula of
 * test_checkpoint.h, read with pread(2) and no code of ours but the rank table's; dry run, kills,
 * memory, two at once, damage. CKPT_SEED replays; CKPT_RESHARD_KILLS says how many.
 */
#include <config.h>

#include "tests/lib/test.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "storage/shard_file.h"
#include "storage/shard_reader.h"
#include "tools/reading.h"
#include "tools/test_checkpoint.h"

#define WORLD    4
#define ARGS_MAX 32

static const char *const layers[] = {
	"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
	"self_attn.o_proj.weight", "mlp.gate_proj.weight",    "mlp.up_proj.weight",
	"mlp.down_proj.weight",    "input_layernorm.weight",
};

struct fixture {
	char *parent, folder[4200];
	struct checkpoint_id id;
	char names[200][96];
	struct shard tensors[200];
	uint32_t n;
	struct rng_seeded seeded;
	uint64_t bytes;
};

static void add(struct fixture *f, const char *name, uint32_t dtype, uint64_t rows, uint64_t cols)
{
	const uint64_t dims[] = {rows, cols};

	snprintf(f->names[f->n], sizeof(f->names[0]), "%s", name);
	f->tensors[f->n] = test_tensor(f->names[f->n], dtype, cols ? 2 : rows ? 1 : 0, dims);
	f->bytes += f->tensors[f->n].bytes;
	f->n++;
}

/* A small language model: hidden sizes that nothing divides evenly, and moments. */
static void make_model(struct fixture *f, uint64_t hidden, int n_layers)
{
	static const char *const forms[] = {"", "optimizer.exp_avg."};
	char plain[60], name[96];

	for (int m = 0; m < 2; m++) {
		uint32_t dtype = m ? CKPT_F32 : CKPT_BF16;

		for (int l = 0; l < n_layers; l++) {
			for (int i = 0; i < 8; i++) {
				snprintf(plain, sizeof(plain), "model.layers.%d.%s", l, layers[i]);
				snprintf(name, sizeof(name), "%s%s", forms[m], plain);
				if (i == 7)
					add(f, name, dtype, hidden, 0);
				else if (i == 6)
					add(f, name, dtype, hidden, 3 * hidden);
				else
					add(f, name, dtype, i >= 4 ? 3 * hidden : hidden, hidden);
			}
		}
		snprintf(name, sizeof(name), "%smodel.embed_tokens.weight", forms[m]);
		add(f, name, dtype, 1001, hidden);
	}
	add(f, "step", CKPT_I64, 0, 0);
	add(f, "empty", CKPT_F16, 0, 0);
}

/* FSDP2-like by rows for the parameters, ZeRO-like flat ranges for the moments. */
static uint32_t source_shards(const struct fixture *f, uint32_t rank, struct shard *out)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < f->n; i++) {
		const struct shard *t = &f->tensors[i];
		uint64_t elements = t->stop - t->start;

		if (strncmp(t->name, "optimizer", 9) == 0)
			out[n++] = test_range(*t, elements * rank / WORLD,
					      elements * (rank + 1) / WORLD);
		else if (t->box.ndim > 0)
			out[n++] = test_cut(*t, 0, rank, WORLD);
		else
			out[n++] = *t;
	}
	return n;
}

static int set_up_with(void **state, uint64_t hidden, int n_layers, int compression)
{
	struct fixture *f = alloc_zero(sizeof(*f));
	struct shard(*shards)[200] = alloc_array(WORLD, sizeof(*shards));
	struct test_rank ranks[WORLD];

	f->parent = test_dir_make(NULL);
	snprintf(f->folder, sizeof(f->folder), "%s/data", f->parent);
	make_model(f, hidden, n_layers);
	for (uint32_t i = 0; i < WORLD; i++)
		ranks[i] = (struct test_rank){shards[i], source_shards(f, i, shards[i]), true};
	f->id = test_checkpoint_write(&(struct test_checkpoint){.folder = f->folder,
								.job = "source",
								.uid = getuid(),
								.step = 7,
								.ranks = ranks,
								.world = WORLD,
								.compression = compression});
	rng_seed(&f->seeded, test_seed(20261122));
	alloc_free(shards);
	*state = f;
	return 0;
}

static int set_up(void **state)
{
	return set_up_with(state, 90, 2, 0);
}

static int set_up_packed(void **state)
{
	return set_up_with(state, 90, 2, 3);
}

/* About 60 MiB. */
static int set_up_large(void **state)
{
	return set_up_with(state, 640, 2, 0);
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	test_dir_remove(f->parent);
	alloc_free(f);
	return 0;
}

/* ---- The program ---- */

struct result {
	int status; /* of waitpid() */
	long max_rss_kib;
	json_t *doc;
	char err[2000];
};

static const char *program(void)
{
	static char path[4096];
	const char *top = getenv("top_builddir");

	snprintf(path, sizeof(path), "%s/ckptctl", top ? top : ".");
	return path;
}

static void slurp(const char *path, char *buf, size_t size)
{
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(buf, 1, size - 1, f) : 0;

	buf[n] = '\0';
	if (f)
		fclose(f);
}

static pid_t start(struct fixture *f, const char *const *args, const char *tag)
{
	const char *argv[ARGS_MAX] = {"ckptctl", "reshard", "source",   "--json",
				      "--data",  f->folder, "--socket", "/nonexistent"};
	char out[4300], err[4300];
	size_t n = 8;
	pid_t pid;

	for (; *args; args++) {
		assert_true(n + 1 < ARGS_MAX);
		argv[n++] = *args;
	}
	snprintf(out, sizeof(out), "%s/out.%s", f->parent, tag);
	snprintf(err, sizeof(err), "%s/err.%s", f->parent, tag);
	pid = fork();
	assert_true(pid >= 0);
	if (pid > 0)
		return pid;
	if (!freopen(out, "w", stdout) || !freopen(err, "w", stderr))
		_exit(99);
	execv(program(), (char **)(uintptr_t)argv);
	_exit(99);
}

static struct result collect(struct fixture *f, pid_t pid, const char *tag)
{
	struct result r = {0};
	struct rusage usage;
	char path[4300];

	assert_int_equal(wait4(pid, &r.status, 0, &usage), pid);
	r.max_rss_kib = usage.ru_maxrss;
	snprintf(path, sizeof(path), "%s/out.%s", f->parent, tag);
	r.doc = json_load_file(path, 0, NULL);
	snprintf(path, sizeof(path), "%s/err.%s", f->parent, tag);
	slurp(path, r.err, sizeof(r.err));
	return r;
}

static bool fine(const struct result *r)
{
	if (WIFEXITED(r->status) && WEXITSTATUS(r->status) == 0)
		return true;
	fprintf(stderr, "status %#x: %s\n", (unsigned)r->status, r->err);
	return false;
}

#define RUN(f, ...) collect(f, start(f, (const char *const[]){__VA_ARGS__, NULL}, "a"), "a")

/* ---- Checking ---- */

static void check_rank(struct fixture *f, struct data *d, const struct checkpoint_id *id,
		       const struct shard_footer *footer, uint64_t *ret_elements)
{
	char name[DISK_PATH_MAX + 1], path[4600];
	struct shard_reader reader;
	struct err e = {0};
	struct shard s;
	int fd;

	assert_int_equal(shard_open(&d->store, id, footer, &reader, &e), 0);
	path_shard(name, id, footer->rank);
	snprintf(path, sizeof(path), "%s/%s", f->folder, name);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	for (uint32_t i = 0; i < reader.table.declaration.n_shards; i++) {
		uint8_t *got, *expected;

		declaration_get(&reader.table.declaration, i, &s);
		got = test_malloc(s.bytes + 1);
		expected = test_malloc(s.bytes + 1);
		assert_int_equal(
			pread(fd, got, s.bytes, (off_t)(SHARD_HEADER_BYTES + s.image_offset)),
			s.bytes);
		assert_int_equal(test_shard_bytes(&s, expected), s.bytes);
		assert_memory_equal(got, expected, s.bytes);
		*ret_elements += s.stop - s.start;
		test_free(got);
		test_free(expected);
	}
	close(fd);
	shard_close(&reader);
}

/* Every shard of every rank; and that all tensors can be read whole. Returns the elements held. */
static uint64_t check(struct fixture *f, const char *job, bool raw)
{
	const struct reading_options o = {.data = f->folder, .job = job};
	struct reading *r = NULL;
	uint64_t elements = 0, len;
	struct err e = {0};
	struct data d;
	void *blob;

	assert_int_equal(data_open(f->folder, &d, &e), 0);
	assert_int_equal(reading_open(&o, &r, &e), 0);
	assert_int_equal(reading_n_tensors(r), f->n);
	for (uint32_t i = 0; raw && i < reading_commit(r)->world; i++)
		check_rank(f, &d, &reading_commit(r)->id, &reading_commit(r)->shards[i], &elements);
	for (uint32_t i = 0; i < f->n; i++) {
		const struct shard *t = &f->tensors[i];
		struct reading_want w = {.tensor = reading_find(r, t->name, t->name_len),
					 .box = t->box,
					 .stop = t->stop};
		uint8_t *expected = test_malloc(t->bytes + 1);

		assert_true(w.tensor != SIZE_MAX);
		w.to = test_malloc(t->bytes + 1);
		assert_int_equal(reading_fetch(r, &w, 1, NULL, &e), 0);
		test_shard_bytes(t, expected);
		assert_memory_equal(w.to, expected, t->bytes);
		test_free(expected);
		test_free(w.to);
	}
	for (uint32_t i = 0; i < WORLD && i < reading_commit(r)->world; i++) {
		uint8_t expected[256];

		assert_int_equal(reading_blob(r, i, "rng", 3, &blob, &len, &e), 0);
		assert_int_equal(len, test_blob_bytes(i, expected));
		assert_memory_equal(blob, expected, len);
		alloc_free(blob);
	}
	reading_close(r);
	data_close(&d);
	return elements;
}

static json_int_t number(const json_t *doc, const char *key)
{
	return json_integer_value(json_object_get(doc, key));
}

/* ---- Layouts ---- */

static void reshard_and_back(struct fixture *f, bool raw, const char *level)
{
	static const char *const to[] = {"fsdp2=3",   "fsdp1=5", "zero1=3", "tp=2",
					 "tp=2,dp=2", "ddp=2",   "hf:tp=3", "tp=2,pp=2"};
	char job[32];

	for (size_t i = 0; i < sizeof(to) / sizeof(to[0]); i++) {
		struct result dry, r;

		snprintf(job, sizeof(job), "new-%zu", i);
		dry = RUN(f, "--to", to[i], "--dry-run", "--memory", "32M",
			  level ? "--compress" : NULL, level);
		assert_true(fine(&dry));
		r = RUN(f, "--to", to[i], "--as", job, "--memory", "32M",
			level ? "--compress" : NULL, level);
		assert_true(fine(&r));
		assert_non_null(r.doc);
		assert_int_equal(number(r.doc, "bytes_read"), number(dry.doc, "bytes_read"));
		assert_int_equal(number(r.doc, "bytes_written"), number(dry.doc, "bytes_written"));
		assert_true(json_equal(json_object_get(r.doc, "ranks"),
				       json_object_get(dry.doc, "ranks")));
		check(f, job, raw);
		json_decref(dry.doc);
		json_decref(r.doc);
	}
}

static void reshards_to_many_layouts(void **state)
{
	reshard_and_back(*state, true, NULL);
}

static void reshards_compressed_ones(void **state)
{
	reshard_and_back(*state, false, "1");
}

/* In as little memory as it says, with many slabs, and once for each group of ranks. */
static void reshards_in_little_memory(void **state)
{
	struct fixture *f = *state;
	struct result r = RUN(f, "--to", "tp=16", "--as", "new", "--memory", "1M");
	char *end, least[32];
	const char *at;

	assert_true(WIFEXITED(r.status) && WEXITSTATUS(r.status) != 0);
	at = strstr(r.err, "need ");
	assert_non_null(at);
	snprintf(least, sizeof(least), "%lu", strtoul(at + 5, &end, 10));
	r = RUN(f, "--to", "tp=16", "--as", "new", "--memory", least);
	assert_true(fine(&r));
	json_decref(r.doc);
	check(f, "new", true);
	r = RUN(f, "--to", "fsdp1=2", "--as", "new-2", "--memory", least);
	assert_true(fine(&r));
	json_decref(r.doc);
	check(f, "new-2", true);
}

/* ---- Killed ---- */

/* One job, killed at random moments of its longest_us until it ends or there were enough; whether
 * it went on. */
static bool make_with_kills(struct fixture *f, const char *job, uint64_t longest_us,
			    uint64_t wanted, uint64_t *kills)
{
	const char *const args[] = {"--to", "tp=3", "--as", job, "--memory", "24M", NULL};
	bool resumed = false;
	struct result r;
	pid_t pid;

	for (;;) {
		pid = start(f, args, "a");
		if (*kills < wanted) {
			usleep((useconds_t)rng_below(&f->seeded.rng, longest_us));
			kill(pid, SIGKILL);
		}
		r = collect(f, pid, "a");
		if (!WIFSIGNALED(r.status))
			break;
		++*kills;
		json_decref(r.doc);
	}
	/* The last kill may have come between its last step and its end. */
	if (WEXITSTATUS(r.status) == 0)
		resumed = json_is_true(json_object_get(r.doc, "resumed"));
	else
		assert_non_null(strstr(r.err, "already"));
	json_decref(r.doc);
	check(f, job, true);
	return resumed;
}

/* What was done is gone on with, and said. */
static void goes_on_after_kills(void **state)
{
	struct fixture *f = *state;
	uint64_t kills = 0, wanted = test_cap("CKPT_RESHARD_KILLS", 20), longest_us;
	unsigned jobs = 0, resumed = 0;
	struct timespec from, to;
	struct result r;
	char job[32];

	/* Sanitizers and neighbours make it many times slower: how long one takes is seen first. */
	clock_gettime(CLOCK_MONOTONIC, &from);
	r = RUN(f, "--to", "tp=3", "--as", "unkilled", "--memory", "24M");
	clock_gettime(CLOCK_MONOTONIC, &to);
	assert_true(fine(&r));
	json_decref(r.doc);
	longest_us = 1 + (uint64_t)(to.tv_sec - from.tv_sec) * 1000000 +
		     (uint64_t)(to.tv_nsec / 1000) - (uint64_t)(from.tv_nsec / 1000);
	/* All of a few kills may come before there is anything to go on with: then more follow. */
	while ((kills < wanted || resumed == 0) && jobs < 400) {
		snprintf(job, sizeof(job), "new-%u", jobs++);
		resumed += make_with_kills(f, job, longest_us, max_u64(wanted, kills + 1), &kills);
	}
	printf("%u kills while %u jobs were made, %u of them went on\n", (unsigned)kills, jobs,
	       resumed);
	assert_true(kills >= wanted);
	assert_true(resumed > 0);
	check(f, "source", true);
}

/* ---- Bounds ---- */

#define PROGRAM_KIB (32 << 10) /* of the program and its libraries, beside --memory */

static void stays_within_its_memory(void **state)
{
	struct fixture *f = *state;
	struct result r;

#ifdef __SANITIZE_ADDRESS__
	skip(); /* its memory would be the sanitizer's */
#endif
	r = RUN(f, "--to", "tp=2", "--as", "new", "--memory", "16M");

	assert_true(fine(&r));
	printf("%llu MiB resharded in 16 MiB: peak %ld KiB\n", (unsigned long long)(f->bytes >> 20),
	       r.max_rss_kib);
	assert_true(f->bytes > 100u << 20);
	assert_true(r.max_rss_kib < (16 << 10) + PROGRAM_KIB);
	json_decref(r.doc);
}

static int set_up_huge(void **state)
{
	return set_up_with(state, 900, 2, 0);
}

/* ---- What goes wrong ---- */

static void two_at_once(void **state)
{
	struct fixture *f = *state;
	const char *const same[] = {"--to", "tp=2", "--as", "one", NULL};
	const char *const other[] = {"--to", "fsdp2=2", "--as", "two", NULL};
	pid_t a = start(f, same, "a"), b = start(f, same, "b"), c = start(f, other, "c");
	struct result x = collect(f, a, "a"), y = collect(f, b, "b"), z = collect(f, c, "c");
	const struct result *won = WEXITSTATUS(x.status) == 0 ? &x : &y;
	const struct result *lost = won == &x ? &y : &x;

	assert_true(fine(won));
	assert_true(fine(&z));
	assert_true(WIFEXITED(lost->status) && WEXITSTATUS(lost->status) != 0);
	assert_true(strstr(lost->err, "is being made by another process") ||
		    strstr(lost->err, "has a job 'one' already"));
	json_decref(x.doc);
	json_decref(y.doc);
	json_decref(z.doc);
	check(f, "one", true);
	check(f, "two", true);
}

/* Nothing is published, and the sentence says where the damage is. */
static void names_a_damaged_leaf(void **state)
{
	struct fixture *f = *state;
	char name[DISK_PATH_MAX + 1], path[4600];
	struct result r;
	struct err e = {0};
	struct data d;
	int fd;

	path_shard(name, &f->id, 2);
	snprintf(path, sizeof(path), "%s/%s", f->folder, name);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "damage", 6, SHARD_HEADER_BYTES + 100), 6);
	close(fd);
	r = RUN(f, "--to", "tp=2", "--as", "new");
	assert_true(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 1);
	assert_non_null(strstr(r.err, "leaf 0 of rank 2"));
	assert_non_null(strstr(r.err, "model.layers.0.self_attn.q_proj.weight"));
	assert_int_equal(data_open(f->folder, &d, &e), 0);
	assert_int_equal(data_read_jobs(&d, "new", &e), CKPT_ENOTFOUND);
	data_close(&d);
}

static void refuses_what_cannot_be(void **state)
{
	struct fixture *f = *state;
	static const struct {
		const char *args[8]; /* and NULL */
		const char *says;
	} cases[] = {
		{{"--as", "new"}, "--to"},
		{{"--to", "tp=2"}, "--as"},
		{{"--to", "nonsense=2", "--as", "new"}, "--to"},
		{{"--to", "tp=2", "--as", "source"}, "has a job 'source' already"},
		{{"--to", "tp=2", "--as", "a/b"}, "A-Z"},
		{{"8", "--to", "tp=2", "--as", "new"}, "no durable checkpoint 8"},
		{{"--to", "tp=2", "--as", "new", "--to-data", "/proc/x"}, "/proc/x"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct result r = collect(f, start(f, cases[i].args, "a"), "a");

		assert_true(WIFEXITED(r.status) && WEXITSTATUS(r.status) != 0);
		if (!strstr(r.err, cases[i].says))
			fprintf(stderr, "%s\n", r.err);
		assert_non_null(strstr(r.err, cases[i].says));
		json_decref(r.doc);
	}
}

static void rmdir_incoming(const char *incoming)
{
	char lock[4400];

	snprintf(lock, sizeof(lock), "%s/LOCK", incoming);
	unlink(lock);
	rmdir(incoming);
}

/* By a dry run in the same words, with nothing written. */
static void refuses_dry_what_cannot_be(void **state)
{
	struct fixture *f = *state;
	static const char *const cases[][7] = {
		{"--to", "nonsense=2", "--as", "new"},
		{"--to", "tp=2", "--as", "source"},
		{"--to", "tp=2", "--as", "a/b"},
		{"8", "--to", "tp=2", "--as", "new"},
		{"--to", "tp=2", "--as", "new", "--to-data", "/dev/null"},
		{"--to", "tp=2", "--as", "new", "--to-data", "/nowhere/at/all"},
	};
	char incoming[4300];

	snprintf(incoming, sizeof(incoming), "%s/incoming", f->folder);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *args[9] = {"--dry-run"};
		struct result dry, r;

		memcpy(args + 1, cases[i], sizeof(cases[i]));
		dry = collect(f, start(f, args, "a"), "a");
		assert_int_equal(access(incoming, F_OK), -1);
		r = collect(f, start(f, args + 1, "a"), "a");
		rmdir_incoming(incoming);
		assert_true(WIFEXITED(dry.status) && WEXITSTATUS(dry.status) != 0);
		assert_int_equal(dry.status, r.status);
		assert_string_equal(dry.err, r.err);
		json_decref(dry.doc);
		json_decref(r.doc);
	}
}

/* Into another folder, which is made; a file size limit stands for a disk that is full. */
static void goes_elsewhere(void **state)
{
	struct fixture *f = *state;
	struct rlimit all, less = {.rlim_cur = 300000, .rlim_max = RLIM_INFINITY};
	char there[4200];
	struct result r;

	snprintf(there, sizeof(there), "%s/there", f->parent);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
	less.rlim_max = all.rlim_max;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
	r = RUN(f, "--to", "tp=2", "--as", "new", "--to-data", there);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
	assert_true(WIFEXITED(r.status) && WEXITSTATUS(r.status) != 0);
	r = RUN(f, "--to", "tp=2", "--as", "new", "--to-data", there);
	assert_true(fine(&r));
	json_decref(r.doc);
	snprintf(f->folder, sizeof(f->folder), "%s", there);
	check(f, "new", true);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(reshards_to_many_layouts),
		cmocka_unit_test_setup_teardown(reshards_compressed_ones, set_up_packed, tear_down),
		cmocka_unit_test_setup_teardown(reshards_in_little_memory, set_up_large, tear_down),
		cmocka_unit_test_setup_teardown(goes_on_after_kills, set_up_large, tear_down),
		cmocka_unit_test_setup_teardown(stays_within_its_memory, set_up_huge, tear_down),
		T(two_at_once),
		T(names_a_damaged_leaf),
		T(refuses_what_cannot_be),
		T(refuses_dry_what_cannot_be),
		T(goes_elsewhere),
	};

	unsetenv("CKPT_DATA");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
