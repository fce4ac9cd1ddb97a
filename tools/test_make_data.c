/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_make_data.c - makes the data folder that the tests of ckptctl look at, with the functions
 * that ckptd uses: logs, shard files, layouts, COMMIT. Usage: test_make_data FOLDER
 * [twin|wrong|holes|index], or: test_make_data COMMIT-FILE change OFFSET
 *
 *   alpha  uid 4242, 2 ranks. Step 10: freed, its files are still there. 15: aborted. On disk:
 *          20, pinned; 25; 30, base of epoch 2. 40: committed, only in memory. 50: files without
 *          COMMIT.
 *   beta   uid 4242, 1 rank, compressed. Step 5. With "twin": another job beta, of uid 4243.
 *
 * With "wrong" everything is good in itself and does not fit: the layout of alpha 20 has the ranks'
 * declarations the other way round, COMMIT of alpha 25 is of another job, the log has another root
 * for alpha 30, and beta 5 has alpha's layout of 2 ranks.
 *
 * With "holes" the file of rank 0 of alpha 30 lacks two leaves that no other file has.
 *
 * With "change" a byte of a COMMIT file becomes another one, and its digest that of what it says.
 *
 * With "index" nothing is made: it prints what the folder's index has, a line for each checkpoint.
 */
#include <config.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "coord/record.h"
#include "coord/single.h"
#include "model/attempt.h"
#include "model/table.h"
#include "storage/catalog.h"
#include "storage/commit_file.h"
#include "storage/disk_format.h"
#include "storage/disk_posix.h"
#include "storage/test_open_index.h"
#include "storage/layout_file.h"
#include "tests/lib/test.h"

#define HOUR 3600u
#define HOLES (3ull << 2) /* leaves 2 and 3: of "big" */

static const struct geometry geometry = { .leaf = 4096, .chunk = 16384 };

struct maker {
	struct disk *disk;
	struct disk_queue *queue;
	struct store store;
	uint64_t now_ns;
	bool wrong, holes;
	struct digest other_layout; /* of the job before */
};

struct job {
	struct maker *m;
	struct history h;
	struct joblog *log;
	struct digest layout; /* of all its checkpoints */
	uint32_t world;
};

/* Sets up what cannot be without: ends with the sentence. */
static void must(int r, const struct err *e)
{
	if (r < 0) {
		fprintf(stderr, "make data: %s\n", e && e->code ? e->text : err_text(r));
		exit(1);
	}
}

/* ---- The log ---- */

static void append(struct job *j, struct record *r, unsigned hours_ago)
{
	struct err e = { 0 };
	void *bytes = NULL;
	size_t len = 0;

	history_next(&j->h, r);
	r->wall_ns = j->m->now_ns - hours_ago * (uint64_t)HOUR * 1000000000u;
	if (r->type == RECORD_JOB)
		r->incarnation = 0;
	must(record_encode(r, &bytes, &len), NULL);
	must(j->log->ops->append(j->log, r->n, bytes, len, &e), &e);
	must(history_apply(&j->h, r->n, bytes, len, &e), &e);
	alloc_free(bytes);
}

static void begin(struct maker *m, struct job *j, const char *name, uint8_t id, uint32_t uid,
		  uint32_t world)
{
	struct record r = { .type = RECORD_JOB };
	char dir[DISK_PATH_MAX + 1];
	struct err e = { 0 };

	*j = (struct job){ .m = m, .world = world };
	history_init(&j->h);
	memset(r.job.id.b, id, sizeof(r.job.id.b));
	memset(r.job.token.b, ~id, sizeof(r.job.token.b)); /* ckptd's jobs have one */
	r.job.uid = uid;
	strcpy(r.job.name, name);
	path_log(dir, &r.job.id);
	must(joblog_single_open(m->disk, dir, &j->log, &e), &e);
	append(j, &r, 6);
	r = (struct record){ .type = RECORD_LEAD };
	strcpy(r.lead.node, "node");
	append(j, &r, 6);
}

static void epoch(struct job *j, const char *run, const struct checkpoint_id *base)
{
	struct record r = { .type = RECORD_EPOCH };

	r.opened.number = j->h.epoch.number + 1;
	r.opened.parent = j->h.epoch.number;
	r.opened.world = j->world;
	strcpy(r.opened.run_id, run);
	strcpy(r.opened.reason, "new run");
	if (base) {
		r.opened.has_base = true;
		r.opened.base_step = base->step;
		r.opened.base_attempt = base->attempt;
	}
	append(j, &r, 3);
}

static void mark(struct job *j, enum record_type type, const struct checkpoint_id *id)
{
	struct record r = { .type = type };

	r.mark.step = id->step;
	r.mark.attempt = id->attempt;
	r.mark.value = 1;
	append(j, &r, 3);
}

static void abort_step(struct job *j, uint64_t step, const char *why)
{
	struct record r = { .type = RECORD_ABORT };

	r.aborted.step = step;
	r.aborted.attempt = attempt_id_make(&j->h.job.id, 1, j->h.epoch.number, step, 0);
	r.aborted.next_try = 1;
	strcpy(r.aborted.reason, why);
	append(j, &r, 4);
}

/* ---- One rank's image ---- */

struct image {
	uint8_t *bytes;
	uint64_t len;
	void *declaration, *table;
	size_t declaration_len, table_len;
};

static void add(struct declaration_builder *b, const char *name, int dtype, uint32_t ndim,
		const uint64_t *global, const uint64_t *box, const uint64_t *range)
{
	struct shard s = { .name = name, .name_len = (uint32_t)strlen(name),
			   .dtype = (uint32_t)dtype };
	struct err e = { 0 };

	s.global.ndim = s.box.ndim = ndim;
	for (uint32_t i = 0; i < ndim; i++) {
		s.global.dim[i] = global[i];
		s.box.offset[i] = box ? box[2 * i] : 0;
		s.box.length[i] = box ? box[2 * i + 1] : global[i];
	}
	s.flat = range != NULL;
	s.start = range ? range[0] : 0;
	s.stop = range ? range[1] : 0;
	s.trained = dtype == CKPT_F32;
	must(declaration_add(b, &s, &e), &e);
}

static void declare(struct image *image, uint32_t rank, uint32_t world)
{
	const uint64_t embed[] = { 64, 32 }, part[] = { 64 / world * rank, 64 / world, 0, 32 };
	const uint64_t adam[] = { 100, 7 }, range[] = { 700 / world * rank,
							700 / world * (rank + 1) };
	const uint64_t norm[] = { 32 }, big[] = { 100000 };
	struct declaration_builder *b = NULL;
	struct err e = { 0 };

	must(declaration_builder_new(geometry, &b), NULL);
	add(b, "embed.weight", CKPT_F32, 2, embed, part, NULL);
	if (rank == 0)
		add(b, "big", CKPT_U8, 1, big, NULL, NULL);
	add(b, "adam.m", CKPT_F32, 2, adam, NULL, range);
	add(b, "norm\x1b[31m.bias", CKPT_BF16, 1, norm, NULL, NULL); /* must not colour terminals */
	add(b, "step\xff", CKPT_I64, 0, NULL, NULL, NULL);           /* is not UTF-8 */
	must(declaration_finish(b, &image->declaration, &image->declaration_len, &e), &e);
	declaration_builder_free(b);
}

static struct image make_image(uint32_t rank, uint32_t world, uint64_t seed, bool compressible)
{
	struct image image = { 0 };
	struct blob_entry blobs[] = { { .name = "rng", .name_len = 3, .bytes = 100 },
				      { .name = "cursor", .name_len = 6, .bytes = 8 } };
	struct rank_table_parts parts = { .rank = rank, .world = world, .geometry = geometry,
					  .blobs = blobs, .n_blobs = 2 };
	struct digest leaves[64];
	struct declaration d;
	struct err e = { 0 };
	void *p = NULL;

	declare(&image, rank, world);
	must(declaration_open(image.declaration, image.declaration_len, &d, &e), &e);
	must(blobs_place(&d, blobs, 2, &image.len), NULL);
	assert(image.len <= sizeof(leaves) / sizeof(leaves[0]) * geometry.leaf);
	must(-posix_memalign(&p, DISK_ALIGN, round_up(image.len, DISK_ALIGN)), NULL);
	image.bytes = p;
	test_fill(image.bytes, image.len, seed);
	for (uint64_t i = 0; compressible && i < image.len; i++)
		image.bytes[i] &= 3;
	for (uint64_t i = 0; i * geometry.leaf < image.len; i++)
		leaves[i] = digest_of(image.bytes + i * geometry.leaf,
				      min_u64(geometry.leaf, image.len - i * geometry.leaf));
	parts.image_len = image.len;
	parts.declaration = image.declaration;
	parts.declaration_len = image.declaration_len;
	parts.leaves = leaves;
	must(rank_table_build(&parts, &image.table, &image.table_len, &e), &e);
	return image;
}

/* ---- A checkpoint ---- */

static struct checkpoint_id id_of(struct job *j, uint64_t step)
{
	struct checkpoint_id id = { .job = j->h.job.id, .step = step };

	id.attempt = attempt_id_make(&id.job, 1, j->h.epoch.number, step, 0);
	return id;
}

/* The shard files; fills what COMMIT says of them. */
static void write_shards(struct job *j, const struct checkpoint_id *id, struct commit_file *c)
{
	struct store *s = &j->m->store;
	struct digest declarations[2];
	struct err e = { 0 };

	for (uint32_t i = 0; i < j->world; i++) {
		struct image image = make_image(i, j->world, id->step * 10 + i, j->world == 1);
		struct shard_writer *w = NULL;

		uint64_t present = j->m->holes && id->step == 30 && i == 0 ? ~HOLES : ~0ull;

		must(shard_begin_partial(s, id, i, image.len, image.table_len, &present, &w, &e),
		     &e);
		must(shard_write_image(w, j->m->queue, image.bytes, 4, NULL, &e), &e);
		must(shard_finish(w, image.table, image.table_len, &c->shards[i], &e), &e);
		declarations[i] = declaration_digest(image.declaration, image.declaration_len);
		must(store_put_object(s, "declarations", &declarations[i], image.declaration,
				      image.declaration_len, &e), &e);
		c->bytes += image.len;
		free(image.bytes);
		alloc_free(image.declaration);
		alloc_free(image.table);
	}
	if (j->m->wrong && id->step == 20) {
		struct digest first = declarations[0];

		declarations[0] = declarations[1];
		declarations[1] = first;
	}
	must(layout_file_put(s, declarations, j->world, &c->layout, &e), &e);
	if (j->m->wrong && id->step == 5)
		c->layout = j->m->other_layout;
}

static void fill_commit(struct job *j, struct commit_file *c)
{
	struct record job_record = { .type = RECORD_JOB, .job = j->h.job, .incarnation = 1 };
	struct rank_line lines[2];
	size_t len = 0;

	for (uint32_t i = 0; i < j->world; i++)
		lines[i] = (struct rank_line){ .rank = i, .table_len = c->shards[i].table_len,
					       .table = c->shards[i].table };
	if (j->m->wrong && c->id.step == 25)
		job_record.job.id.b[0]++;
	c->root = root_digest(lines, j->world);
	strcpy(c->job_name, j->h.job.name);
	c->uid = j->h.job.uid;
	c->incarnation = j->h.incarnation;
	c->epoch = j->h.epoch.number;
	c->world = j->world;
	must(record_encode(&job_record, &c->job_record, &len), NULL);
	c->job_record_len = (uint32_t)len;
}

enum how { ON_DISK, IN_MEMORY, UNCOMMITTED };

static struct checkpoint_id checkpoint(struct job *j, uint64_t step, unsigned hours_ago,
				       enum how how)
{
	struct commit_file c = { .id = id_of(j, step) };
	struct checkpoint_id id = c.id;
	struct record r = { .type = RECORD_COMMIT };
	struct err e = { 0 };

	c.shards = alloc_array(j->world, sizeof(*c.shards));
	assert(c.shards);
	if (how == IN_MEMORY) {
		test_fill(c.root.b, sizeof(c.root.b), step);
		c.layout = j->layout;
		c.bytes = 1000;
	} else {
		write_shards(j, &id, &c);
		fill_commit(j, &c);
		j->layout = c.layout;
	}
	if (how != UNCOMMITTED) {
		r.commit = (struct record_commit){ .step = step, .attempt = id.attempt,
						   .root = c.root, .layout = c.layout,
						   .world = j->world, .bytes = c.bytes };
		r.commit.root.b[0] ^= j->m->wrong && step == 30;
		append(j, &r, hours_ago);
	}
	c.record_n = r.n;
	c.wall_ns = r.wall_ns;
	if (how == ON_DISK)
		must(commit_publish(&j->m->store, &c, &e), &e);
	commit_file_fini(&c);
	return id;
}

static void end(struct job *j)
{
	j->log->ops->close(j->log);
	history_fini(&j->h);
}

/* ---- The folder ---- */

static void make_alpha(struct maker *m)
{
	struct checkpoint_id s10, s20, s30;
	struct job j;

	begin(m, &j, "alpha", 0xa1, 4242, 2);
	epoch(&j, "run-1", NULL);
	s10 = checkpoint(&j, 10, 5, ON_DISK);
	abort_step(&j, 15, "rank 1 ended before it had sealed step 15");
	s20 = checkpoint(&j, 20, 4, ON_DISK);
	mark(&j, RECORD_PIN, &s20);
	checkpoint(&j, 25, 4, ON_DISK);
	s30 = checkpoint(&j, 30, 3, ON_DISK);
	mark(&j, RECORD_FREE, &s10);
	epoch(&j, "run-2", &s30);
	checkpoint(&j, 40, 2, IN_MEMORY);
	checkpoint(&j, 50, 2, UNCOMMITTED);
	m->other_layout = j.layout;
	end(&j);
}

static void make_beta(struct maker *m, uint8_t id, uint32_t uid)
{
	struct job j;

	begin(m, &j, "beta", id, uid, 1);
	epoch(&j, "run-1", NULL);
	checkpoint(&j, 5, 3, ON_DISK);
	end(&j);
}

static int print_entry(void *arg, const struct catalog_entry *c)
{
	(void)arg;
	printf("%s %llu%s%s\n", c->job_name, (unsigned long long)c->id.step,
	       c->pinned ? " pinned" : "", c->suspect ? " suspect" : "");
	return 0;
}

static int print_index(const char *folder)
{
	char path[4096];
	struct index *ix;
	struct err e = {0};
	bool fresh;

	snprintf(path, sizeof(path), "%s/index", folder);
	must(test_index_open(path, &ix, &fresh, &e), &e);
	must(catalog_each(ix, NULL, print_entry, NULL, &e), &e);
	ix->ops->close(ix);
	return 0;
}

/* One byte of a COMMIT file, which gets the digest of what it says then. */
static int change_byte(const char *path, size_t at)
{
	uint8_t bytes[8192];
	FILE *f = fopen(path, "r+b");
	size_t len = f ? fread(bytes, 1, sizeof(bytes), f) : 0;

	if (len == 0 || len == sizeof(bytes) || at >= len)
		return 2;
	bytes[at] ^= 2;
	format_end(bytes, len);
	rewind(f);
	return fwrite(bytes, 1, len, f) == len && fclose(f) == 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
	struct store_options o = { .geometry = geometry, .compression = 3 };
	struct maker m = { .now_ns = (uint64_t)time(NULL) * 1000000000u };
	struct err e = { 0 };

	if (argc < 2)
		return 2;
	if (argc > 2 && strcmp(argv[2], "index") == 0)
		return print_index(argv[1]);
	if (argc > 3 && strcmp(argv[2], "change") == 0)
		return change_byte(argv[1], strtoul(argv[3], NULL, 10));
	if (mkdir(argv[1], 0700) != 0)
		perror(argv[1]);
	must(disk_posix_open(argv[1], "threads", &m.disk, &e), &e);
	must(store_open(m.disk, &o, &m.store, &e), &e);
	must(m.disk->ops->queue_open(m.disk, 4, &m.queue), NULL);
	m.holes = argc > 2 && strcmp(argv[2], "holes") == 0;
	m.wrong = argc > 2 && strcmp(argv[2], "wrong") == 0;
	make_alpha(&m);
	make_beta(&m, 0xb1, 4242);
	if (argc > 2 && strcmp(argv[2], "twin") == 0)
		make_beta(&m, 0xb2, 4243);
	m.disk->ops->queue_close(m.queue);
	store_close(&m.store);
	disk_posix_close(m.disk);
	return 0;
}
