/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_reshard.c - a durable checkpoint under another layout, by `ckptctl reshard`.
 *
 *   reshard.rate  GiB/s of state from 4 ranks to 3, in 256 MiB of memory, beside fio reading and
 *                 writing as many bytes at the same time on the same file system, the written file
 *                 new as ours are. The note says the highest peak of resident memory.
 *
 * The source is made once, by the writers that ckptd and the tools use; its bytes cannot be
 * compressed. What was made is read again and verified after the last run.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/rng.h"
#include "bench/fio.h"
#include "coord/record.h"
#include "model/attempt.h"
#include "model/table.h"
#include "storage/commit_file.h"
#include "storage/disk_posix.h"
#include "storage/layout_file.h"
#include "storage/shard_stream.h"

#define PAIRS      5
#define WORLD      4
#define LAYERS     32
#define COLUMNS    4096
#define FILL_BYTES (8u << 20)
#define MEMORY     "256M"
#define OUTPUT_MAX (1u << 20)

struct resharding {
	struct bench *bench;
	uint64_t bytes;
	char data[240];
	long rss_kib; /* highest peak */
	struct series series;
};

/* ---- The source ---- */

struct source {
	struct disk *disk;
	struct store store;
	struct stream_pool *pool;
	struct commit_file commit;
	struct digest declarations[WORLD];
	uint8_t *fill;
};

/* Rows of LAYERS matrices, cut by rows. */
static int declare(uint32_t rank, uint64_t bytes, void **ret, size_t *ret_len, struct err *e)
{
	uint64_t rows = bytes / LAYERS / (COLUMNS * 4), first = rows * rank / WORLD;
	struct declaration_builder *b = NULL;
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);
	char name[64];

	if (r < 0)
		return err_code(e, r, "declare a state");
	for (int i = 0; i < LAYERS && r >= 0; i++) {
		struct shard s = {
			.name = name,
			.dtype = CKPT_F32,
			.global = {2, {rows, COLUMNS}},
			.box = {2, {first, 0}, {rows * (rank + 1) / WORLD - first, COLUMNS}}};

		snprintf(name, sizeof(name), "model.layers.%d.mlp.up_proj.weight", i);
		s.name_len = (uint32_t)strlen(name);
		r = declaration_add(b, &s, e);
	}
	if (r >= 0)
		r = declaration_finish(b, ret, ret_len, e);
	declaration_builder_free(b);
	return r < 0 ? r : 0;
}

static int write_image(struct source *s, struct shard_stream *stream, uint64_t len, struct err *e)
{
	int r = 0;

	for (uint64_t at = 0; at < len && r == 0; at += FILL_BYTES)
		r = shard_stream_put(stream, at, s->fill,
				     len - at < FILL_BYTES ? len - at : FILL_BYTES, e);
	return r;
}

static int finish_rank(struct source *s, struct shard_stream *stream, uint32_t rank,
		       const struct declaration *d, struct err *e)
{
	struct rank_table_parts parts = {.rank = rank,
					 .world = WORLD,
					 .geometry = s->store.geometry,
					 .image_len = d->image_bytes,
					 .declaration = d->bytes,
					 .declaration_len = d->len};
	CLEANUP_FREE void *table = NULL;
	size_t len = 0;
	int r = shard_stream_flush(stream, &parts.leaves, e);

	if (r == 0)
		r = rank_table_build(&parts, &table, &len, e);
	if (r < 0) {
		shard_stream_close(stream, false);
		return r;
	}
	return shard_stream_finish(stream, table, len, &s->commit.shards[rank], e);
}

static int write_rank(struct source *s, uint32_t rank, uint64_t bytes, struct err *e)
{
	struct stream_file f = {.id = s->commit.id, .rank = rank};
	struct shard_stream *stream = NULL;
	CLEANUP_FREE void *declaration = NULL;
	struct declaration d;
	size_t len = 0;
	int r = declare(rank, bytes, &declaration, &len, e);

	if (r == 0)
		r = declaration_open(declaration, len, &d, e);
	if (r < 0)
		return r;
	f.image_len = d.image_bytes;
	f.table_max = rank_table_bytes(len, d.image_bytes, s->store.geometry.leaf, 0, 0);
	s->declarations[rank] = declaration_digest(declaration, len);
	s->commit.bytes += d.image_bytes;
	r = store_put_object(&s->store, "declarations", &s->declarations[rank], declaration, len,
			     e);
	if (r == 0)
		r = shard_stream_begin(s->pool, &f, &stream, e);
	if (r < 0)
		return r;
	r = write_image(s, stream, d.image_bytes, e);
	if (r < 0) {
		shard_stream_close(stream, false);
		return r;
	}
	return finish_rank(s, stream, rank, &d, e);
}

static int publish(struct source *s, struct err *e)
{
	struct record job = {.type = RECORD_JOB, .incarnation = 1};
	struct commit_file *c = &s->commit;
	struct rank_line lines[WORLD];
	size_t len = 0;
	int r = layout_file_put(&s->store, s->declarations, WORLD, &c->layout, e);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < WORLD; i++)
		lines[i] = (struct rank_line){.rank = i,
					      .table_len = c->shards[i].table_len,
					      .table = c->shards[i].table};
	c->root = root_digest(lines, WORLD);
	snprintf(c->job_name, sizeof(c->job_name), "source");
	c->uid = getuid();
	c->incarnation = c->epoch = 1;
	c->record_n = 3;
	job.job.id = c->id.job;
	job.job.uid = c->uid;
	memcpy(job.job.name, c->job_name, sizeof(c->job_name));
	r = record_encode(&job, &c->job_record, &len);
	c->job_record_len = (uint32_t)len;
	return r < 0 ? err_code(e, r, "encode a record") : commit_publish(&s->store, c, e);
}

static int write_source(struct source *s, const struct resharding *x, struct err *e)
{
	const struct store_options o = {0};
	struct rng_seeded seeded;
	int r = disk_posix_open(x->data, "auto", &s->disk, e);

	if (r == 0)
		r = store_open(s->disk, &o, &s->store, e);
	if (r == 0)
		r = stream_pool_new(&s->store, 32 * MIB, &s->pool, e);
	if (r < 0)
		return r;
	rng_seed(&seeded, 1);
	seeded.rng.fill(&seeded.rng, s->fill, FILL_BYTES);
	memset(s->commit.id.job.b, 0x5a, sizeof(s->commit.id.job.b));
	s->commit.id.step = 1;
	s->commit.id.attempt = attempt_id_make(&s->commit.id.job, 1, 1, 1, 0);
	s->commit.world = WORLD;
	for (uint32_t i = 0; i < WORLD && r == 0; i++)
		r = write_rank(s, i, x->bytes, e);
	return r < 0 ? r : publish(s, e);
}

static int make_source(const struct resharding *x, struct err *e)
{
	struct source s = {.fill = alloc_zero(FILL_BYTES)};
	int r;

	s.commit.shards = alloc_array(WORLD, sizeof(*s.commit.shards));
	if (!s.fill || !s.commit.shards)
		r = err_code(e, -ENOMEM, "make the source");
	else if (mkdir(x->data, 0700) < 0 && errno != EEXIST)
		r = err_code(e, -errno, "make '%s'", x->data);
	else
		r = write_source(&s, x, e);
	stream_pool_free(s.pool);
	commit_file_fini(&s.commit);
	if (s.disk)
		store_close(&s.store);
	disk_posix_close(s.disk);
	alloc_free(s.fill);
	return r;
}

/* ---- Programs ---- */

/* Runs it; its output goes to text. */
static int run(const char *const *argv, char *text, size_t size, long *ret_rss_kib, struct err *e)
{
	struct rusage usage = {0};
	int out[2], status = 0;
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	if (pipe(out) != 0)
		return err_code(e, -errno, "run %s", argv[0]);
	pid = fork();
	if (pid == 0) {
		if (dup2(out[1], STDOUT_FILENO) < 0)
			_exit(126);
		close(out[0]);
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(out[1]);
	while (pid > 0 && len + 1 < size && (n = read(out[0], text + len, size - 1 - len)) != 0)
		len += n > 0 ? (size_t)n : 0;
	text[len] = '\0';
	close(out[0]);
	if (pid < 0)
		return err_code(e, -EAGAIN, "run %s", argv[0]);
	while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR)
		;
	if (ret_rss_kib)
		*ret_rss_kib = usage.ru_maxrss;
	if (status != 0)
		return err_set(e, -EIO, "%s ended with status %#x: %.200s", argv[0],
			       (unsigned)status, text);
	return 0;
}

static const char *ckptctl(const struct bench *b)
{
	static char path[320];

	snprintf(path, sizeof(path), "%.290s", b->ckptd);
	for (int i = 0; i < 2 && strrchr(path, '/'); i++)
		*strrchr(path, '/') = '\0';
	strcat(path, "/ckptctl");
	return path;
}

static double runtime(const json_t *jobs, size_t i, const char *what)
{
	const json_t *io = json_object_get(json_array_get(jobs, i), what);

	return json_number_value(json_object_get(io, "runtime")) / 1e3;
}

/* Seconds until both are done. */
static int run_fio(const struct resharding *x, double *ret, struct err *e)
{
	char *text CLEANUP_FREE = alloc_zero(OUTPUT_MAX);
	char from[300], to[300], size[40], engine[32];
	const char *const argv[] = {
		"fio",          "--output-format=json", size,        engine,
		"--direct=1",   "--end_fsync=1",        "--thread",  "--bs=1M",
		"--iodepth=8",  "--name=read",          "--rw=read", from,
		"--name=write", "--rw=write",           to,          NULL,
	};
	json_t *root;
	double a, b;
	int r;

	if (!text)
		return err_code(e, -ENOMEM, "run fio");
	snprintf(size, sizeof(size), "--size=%llu", (unsigned long long)x->bytes);
	snprintf(engine, sizeof(engine), "--ioengine=%s",
		 disk_uring_usable(NULL) ? "io_uring" : "libaio");
	snprintf(from, sizeof(from), "--filename=%s/fio.from", x->bench->folder);
	snprintf(to, sizeof(to), "--filename=%s/fio.to", x->bench->folder);
	r = run(argv, text, OUTPUT_MAX, NULL, e);
	unlink(to + strlen("--filename="));
	if (r < 0)
		return r;
	root = json_loads(strchr(text, '{') ? strchr(text, '{') : "", JSON_DISABLE_EOF_CHECK, NULL);
	a = runtime(json_object_get(root, "jobs"), 0, "read");
	b = runtime(json_object_get(root, "jobs"), 1, "write");
	json_decref(root);
	*ret = a > b ? a : b;
	return a > 0 && b > 0 ? 0 : err_set(e, -EPROTO, "fio gave no result: %.200s", text);
}

/* The file that fio reads. */
static int make_fio_file(const struct resharding *x, struct err *e)
{
	char *text CLEANUP_FREE = alloc_zero(OUTPUT_MAX);
	char from[300], size[40];
	const char *const argv[] = {"fio",        "--name=make", "--rw=write", "--bs=4M",
				    "--direct=1", size,          from,         NULL};

	if (!text)
		return err_code(e, -ENOMEM, "run fio");
	snprintf(size, sizeof(size), "--size=%llu", (unsigned long long)x->bytes);
	snprintf(from, sizeof(from), "--filename=%s/fio.from", x->bench->folder);
	return run(argv, text, OUTPUT_MAX, NULL, e);
}

static int reshard(struct resharding *x, double *ret, struct err *e)
{
	char *text CLEANUP_FREE = alloc_zero(OUTPUT_MAX);
	char to[300];
	const char *const argv[] = {ckptctl(x->bench),
				    "reshard",
				    "source",
				    "--data",
				    x->data,
				    "--to-data",
				    to,
				    "--to",
				    "fsdp2=3",
				    "--as",
				    "target",
				    "--memory",
				    MEMORY,
				    "--socket",
				    "/nonexistent",
				    NULL};
	const char *const clean[] = {"rm", "-rf", to, NULL};
	long rss = 0;
	uint64_t begin;
	int r;

	if (!text)
		return err_code(e, -ENOMEM, "run ckptctl");
	snprintf(to, sizeof(to), "%s/to", x->bench->folder);
	r = run(clean, text, OUTPUT_MAX, NULL, e);
	if (r < 0)
		return r;
	begin = now_ns();
	r = run(argv, text, OUTPUT_MAX, &rss, e);
	*ret = seconds(now_ns() - begin);
	x->rss_kib = rss > x->rss_kib ? rss : x->rss_kib;
	return r;
}

static int verify(struct resharding *x, struct err *e)
{
	char *text CLEANUP_FREE = alloc_zero(OUTPUT_MAX);
	char to[300];
	const char *const argv[] = {ckptctl(x->bench), "verify", "--data", to, "-q", NULL};

	snprintf(to, sizeof(to), "%s/to", x->bench->folder);
	return text ? run(argv, text, OUTPUT_MAX, NULL, e) : err_code(e, -ENOMEM, "verify");
}

/* ---- The case ---- */

static int pairs(struct resharding *x, struct err *e)
{
	double limit = 0, here = 0, gib = (double)x->bytes / GIB;
	int r = make_source(x, e);

	if (r == 0)
		r = make_fio_file(x, e);
	if (r == 0)
		r = reshard(x, &here, e);
	for (int i = 0; i < PAIRS && r == 0; i++) {
		r = run_fio(x, &limit, e);
		if (r == 0)
			r = reshard(x, &here, e);
		if (r == 0)
			series_add(&x->series, gib / here, gib / limit);
	}
	return r < 0 ? r : verify(x, e);
}

void cases_reshard(struct bench *b)
{
	struct figure f = {.name = "reshard.rate",
			   .unit = "GiB/s",
			   .at_least = true,
			   .target = 0.7,
			   .faults = -1,
			   .limit_name = "fio reading and writing at the same time"};
	struct resharding x = {.bench = b, .bytes = b->mib * MIB};
	struct err e = {0};

	if (!wanted(b, f.name))
		return;
	snprintf(x.data, sizeof(x.data), "%s/data", b->folder);
	if (pairs(&x, &e) < 0) {
		cannot(b, f.name, &e);
		return;
	}
	figure_of(&f, &x.series);
	snprintf(f.note, sizeof(f.note),
		 "%llu MiB with --memory " MEMORY ": peak %.0f MiB resident",
		 (unsigned long long)b->mib, (double)x.rss_kib / 1024);
	report(b, &f);
}
