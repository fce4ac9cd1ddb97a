/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tools/test_checkpoint.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "coord/record.h"
#include "model/attempt.h"
#include "model/table.h"
#include "storage/commit_file.h"
#include "storage/disk_posix.h"
#include "storage/layout_file.h"

static void must(int r, const struct err *e)
{
	if (r < 0) {
		fprintf(stderr, "test checkpoint: %s\n", e && e->code ? e->text : err_text(r));
		exit(99);
	}
}

/* ---- Shards ---- */

struct shard test_tensor(const char *name, uint32_t dtype, uint32_t ndim, const uint64_t *dims)
{
	struct shard s = {.name = name, .name_len = (uint32_t)strlen(name), .dtype = dtype};

	s.global.ndim = s.box.ndim = ndim;
	for (uint32_t k = 0; k < ndim; k++)
		s.global.dim[k] = s.box.length[k] = dims[k];
	must(shard_check(&s, NULL), NULL);
	return s;
}

struct shard test_box(struct shard t, const uint64_t *from, const uint64_t *length)
{
	for (uint32_t k = 0; k < t.box.ndim; k++) {
		t.box.offset[k] = from[k];
		t.box.length[k] = length[k];
	}
	must(shard_check(&t, NULL), NULL);
	return t;
}

struct shard test_range(struct shard t, uint64_t start, uint64_t stop)
{
	t.flat = true;
	t.start = start;
	t.stop = stop;
	must(shard_check(&t, NULL), NULL);
	return t;
}

struct shard test_cut(struct shard t, uint32_t k, uint64_t part, uint64_t parts)
{
	uint64_t n = t.box.length[k];

	t.box.offset[k] += part * n / parts;
	t.box.length[k] = (part + 1) * n / parts - part * n / parts;
	must(shard_check(&t, NULL), NULL);
	return t;
}

/* ---- Bytes ---- */

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t name_seed(const char *name, uint32_t len)
{
	uint64_t h = 1469598103934665603u;

	for (uint32_t i = 0; i < len; i++)
		h = (h ^ (uint8_t)name[i]) * 1099511628211u;
	return h;
}

/* Half of them are small numbers, so that compression finds something. */
static void put_element(uint8_t *out, uint32_t size, uint64_t seed, uint64_t index)
{
	uint64_t v = mix(seed + index), w = mix(v);
	uint8_t bytes[16];

	if (index / 4096 % 2)
		v &= 0xff;
	memcpy(bytes, &v, 8);
	memcpy(bytes + 8, &w, 8);
	memcpy(out, bytes, size);
}

uint64_t test_shard_bytes(const struct shard *s, uint8_t *out)
{
	uint64_t seed = name_seed(s->name, s->name_len), at[CKPT_NDIM_MAX];
	uint32_t size = dtype_bytes(s->dtype);

	for (uint64_t i = s->start; i < s->stop; i++) {
		uint64_t rest = i, index = 0;

		for (uint32_t k = s->box.ndim; k-- > 0; rest /= s->box.length[k])
			at[k] = s->box.offset[k] + rest % s->box.length[k];
		for (uint32_t k = 0; k < s->box.ndim; k++)
			index = index * s->global.dim[k] + at[k];
		put_element(out + (i - s->start) * size, size, seed, index);
	}
	return (s->stop - s->start) * size;
}

uint64_t test_blob_bytes(uint32_t rank, uint8_t out[256])
{
	uint64_t n = 100 + rank % 100;

	for (uint64_t i = 0; i < n; i++)
		out[i] = (uint8_t)mix(rank * 1000 + i);
	return n;
}

/* ---- One rank ---- */

struct image {
	void *block, *declaration, *table;
	uint8_t *bytes;
	uint64_t len;
	size_t declaration_len, table_len;
};

static void fill(struct image *image, const struct declaration *d)
{
	struct shard s;

	image->bytes = image->block =
		aligned_alloc(DISK_ALIGN, round_up(image->len + 1, DISK_ALIGN));
	assert(image->bytes);
	memset(image->bytes, 0, image->len);
	for (uint32_t i = 0; i < d->n_shards; i++) {
		declaration_get(d, i, &s);
		test_shard_bytes(&s, image->bytes + s.image_offset);
	}
}

static struct digest *leaves_of(const struct image *image, struct geometry g)
{
	struct digest *leaves = alloc_array(div_up(image->len, g.leaf), sizeof(*leaves));

	assert(leaves);
	for (uint64_t i = 0; i * g.leaf < image->len; i++)
		leaves[i] = digest_of(image->bytes + i * g.leaf,
				      min_u64(g.leaf, image->len - i * g.leaf));
	return leaves;
}

static struct image make_image(const struct test_checkpoint *c, struct geometry g, uint32_t rank)
{
	const struct test_rank *k = &c->ranks[rank];
	uint8_t rng[256];
	struct blob_entry blob = {
		.name = "rng", .name_len = 3, .bytes = test_blob_bytes(rank, rng)};
	struct rank_table_parts parts = {
		.rank = rank, .world = c->world, .geometry = g, .blobs = &blob, .n_blobs = k->blob};
	struct declaration_builder *b = NULL;
	CLEANUP_FREE struct digest *leaves = NULL;
	struct image image = {0};
	struct declaration d;
	struct err e = {0};

	must(declaration_builder_new(g, &b), NULL);
	for (uint32_t i = 0; i < k->n_shards; i++)
		must(declaration_add(b, &k->shards[i], &e), &e);
	must(declaration_finish(b, &image.declaration, &image.declaration_len, &e), &e);
	declaration_builder_free(b);
	must(declaration_open(image.declaration, image.declaration_len, &d, &e), &e);
	must(blobs_place(&d, &blob, k->blob, &image.len), NULL);
	fill(&image, &d);
	if (k->blob)
		memcpy(image.bytes + blob.image_offset, rng, blob.bytes);
	leaves = leaves_of(&image, g);
	parts.image_len = image.len;
	parts.declaration = image.declaration;
	parts.declaration_len = image.declaration_len;
	parts.leaves = leaves;
	must(rank_table_build(&parts, &image.table, &image.table_len, &e), &e);
	return image;
}

/* ---- The checkpoint ---- */

static void write_ranks(const struct test_checkpoint *c, struct store *s, struct commit_file *ret)
{
	struct digest *declarations = alloc_array(c->world, sizeof(*declarations));
	struct disk_queue *q = NULL;
	struct err e = {0};

	assert(declarations);
	must(s->disk->ops->queue_open(s->disk, 4, &q), NULL);
	for (uint32_t i = 0; i < c->world; i++) {
		struct image image = make_image(c, s->geometry, i);
		struct shard_writer *w = NULL;

		must(shard_begin(s, &ret->id, i, image.len, image.table_len, &w, &e), &e);
		must(shard_write_image(w, q, image.bytes, 4, NULL, &e), &e);
		must(shard_finish(w, image.table, image.table_len, &ret->shards[i], &e), &e);
		declarations[i] = declaration_digest(image.declaration, image.declaration_len);
		must(store_put_object(s, "declarations", &declarations[i], image.declaration,
				      image.declaration_len, &e),
		     &e);
		ret->bytes += image.len;
		free(image.block);
		alloc_free(image.declaration);
		alloc_free(image.table);
	}
	s->disk->ops->queue_close(q);
	must(layout_file_put(s, declarations, c->world, &ret->layout, &e), &e);
	alloc_free(declarations);
}

static void fill_commit(const struct test_checkpoint *c, struct commit_file *ret)
{
	struct rank_line *lines = alloc_array(c->world, sizeof(*lines));
	struct record r = {.type = RECORD_JOB, .incarnation = 1};
	size_t len = 0;

	assert(lines && strlen(c->job) <= CKPT_JOB_MAX);
	for (uint32_t i = 0; i < c->world; i++)
		lines[i] = (struct rank_line){.rank = i,
					      .table_len = ret->shards[i].table_len,
					      .table = ret->shards[i].table};
	ret->root = root_digest(lines, c->world);
	alloc_free(lines);
	strcpy(ret->job_name, c->job);
	ret->uid = c->uid;
	ret->incarnation = ret->epoch = 1;
	ret->record_n = c->step + 2;
	ret->world = c->world;
	r.job.id = ret->id.job;
	strcpy(r.job.name, c->job);
	r.job.uid = c->uid;
	must(record_encode(&r, &ret->job_record, &len), NULL);
	ret->job_record_len = (uint32_t)len;
}

struct checkpoint_id test_checkpoint_write(const struct test_checkpoint *c)
{
	struct store_options o = {.geometry = c->geometry, .compression = c->compression};
	struct digest d = digest_of(c->job, strlen(c->job));
	struct commit_file commit = {.id = {.step = c->step}};
	struct checkpoint_id id;
	struct disk *disk = NULL;
	struct err e = {0};
	struct store store;

	d.b[0] ^= (uint8_t)c->uid;
	memcpy(commit.id.job.b, d.b, sizeof(d.b));
	commit.id.attempt = attempt_id_make(&commit.id.job, 1, 1, c->step, 0);
	id = commit.id;
	ignore_result(mkdir(c->folder, 0700)); /* opening it says what is wrong */
	must(disk_posix_open(c->folder, "threads", &disk, &e), &e);
	must(store_open(disk, &o, &store, &e), &e);
	commit.shards = alloc_array(c->world, sizeof(*commit.shards));
	assert(commit.shards);
	write_ranks(c, &store, &commit);
	fill_commit(c, &commit);
	must(commit_publish(&store, &commit, &e), &e);
	commit_file_fini(&commit);
	store_close(&store);
	disk_posix_close(disk);
	return id;
}
