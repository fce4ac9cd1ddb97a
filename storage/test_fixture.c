/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "storage/test_fixture.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/compress.h"
#include "codec/digest.h"
#include "storage/disk_posix.h"
#include "tests/lib/test.h"

const char *fixture_backend = "threads";
struct store_options fixture_options;
const char *fixture_parent;

void folder_open_store(struct folder *f)
{
	struct err e = { 0 };

	if (store_open(f->real, &fixture_options, &f->store, &e) < 0)
		fail_msg("%s", e.text);
}

void folder_close_store(struct folder *f)
{
	store_close(&f->store);
}

static int name_count(void *arg, const char *name, bool is_dir)
{
	(void)name;
	(void)is_dir;
	++*(int *)arg;
	return 0;
}

int count_in(struct folder *f, const char *path)
{
	int n = 0, r = f->real->ops->list(f->real, path, name_count, &n);

	return r < 0 ? r : n;
}

void must(int r, const struct err *e)
{
	if (r < 0)
		fail_msg("%s", e->text);
}

int folder_set_up(void **state)
{
	struct folder *f = calloc(1, sizeof(*f));
	struct err e = { 0 };

	f->dir = test_dir_make(fixture_parent);
	if (disk_posix_open(f->dir, fixture_backend, &f->real, &e) < 0)
		fail_msg("%s", e.text);
	folder_open_store(f);
	assert_int_equal(f->real->ops->queue_open(f->real, QUEUE_DEPTH, &f->queue), 0);
	*state = f;
	return 0;
}

int folder_tear_down(void **state)
{
	struct folder *f = *state;

	f->real->ops->queue_close(f->queue);
	folder_close_store(f);
	disk_posix_close(f->real);
	test_dir_remove(f->dir);
	free(f);
	return 0;
}

/* ---- Images ---- */

static void add_tensor(struct declaration_builder *b, const char *name, uint64_t bytes)
{
	struct shard s = { .name = name, .name_len = (uint32_t)strlen(name), .dtype = CKPT_U8 };
	struct err e = { 0 };

	s.global.ndim = s.box.ndim = 1;
	s.global.dim[0] = s.box.length[0] = bytes;
	if (declaration_add(b, &s, &e) < 0)
		fail_msg("%s", e.text);
}

static void *declare(struct geometry g, uint64_t len, size_t *ret_len)
{
	struct declaration_builder *b = NULL;
	uint64_t first = len / 2 / 4096 * 4096;
	struct err e = { 0 };
	void *bytes = NULL;

	assert_int_equal(declaration_builder_new(g, &b), 0);
	if (first)
		add_tensor(b, "layer.0.weight", first);
	add_tensor(b, "layer.1.weight", len - first);
	if (declaration_finish(b, &bytes, ret_len, &e) < 0)
		fail_msg("%s", e.text);
	declaration_builder_free(b);
	return bytes;
}

static void make_compressible(uint8_t *p, uint64_t len, struct geometry g, int how)
{
	for (uint64_t i = 0; how && i < len; i++)
		if (how == 1 || (i / g.chunk) % 2 == 0)
			p[i] &= 3;
}

struct image image_make(struct geometry g, uint64_t len, uint32_t rank, uint32_t world,
			uint64_t seed, int compressible)
{
	struct image image = { .len = len, .rank = rank, .world = world, .geometry = g };
	uint64_t n_leaves = div_up(len, g.leaf);
	struct digest *leaves = calloc(n_leaves + 1, sizeof(*leaves));
	struct rank_table_parts parts = { .rank = rank, .world = world, .geometry = g,
					  .image_len = len, .leaves = leaves };
	struct err e = { 0 };
	void *p = NULL;

	/* No byte behind the image may be read: the address sanitizer would see it. */
	assert_int_equal(posix_memalign(&p, DISK_ALIGN, len ? len : 1), 0);
	image.bytes = p;
	test_fill(p, len, seed);
	make_compressible(p, len, g, compressible);
	for (uint64_t i = 0; i < n_leaves; i++)
		leaves[i] = digest_of(image.bytes + i * g.leaf,
				      min_u64(g.leaf, len - i * g.leaf));
	parts.declaration = declare(g, len, &parts.declaration_len);
	if (rank_table_build(&parts, &image.table, &image.table_len, &e) < 0)
		fail_msg("%s", e.text);
	alloc_free((void *)(uintptr_t)parts.declaration);
	free(leaves);
	return image;
}

void image_lose_leaves(struct image *i, uint64_t n, uint64_t seed)
{
	uint64_t leaves = div_up(i->len, i->geometry.leaf);
	uint8_t *dice = malloc(leaves + 1);

	test_fill(dice, leaves + 1, seed);
	i->present = leaves_new(leaves);
	for (uint64_t k = 0; k < leaves; k++)
		if (dice[k] % n)
			leaves_add(i->present, k);
	free(dice);
}

uint64_t image_bytes_present(const struct image *i)
{
	uint64_t bytes = 0;

	for (uint64_t at = 0; at < i->len; at++)
		bytes += leaves_has(i->present, at / i->geometry.leaf);
	return bytes;
}

void image_free(struct image *i)
{
	alloc_free(i->present);
	free(i->bytes);
	alloc_free(i->table);
}

struct checkpoint_id test_id(uint64_t step)
{
	struct checkpoint_id id = { .step = step };

	memset(id.job.b, 0x3a, sizeof(id.job.b));
	memset(id.attempt.b, (int)(0x40 + step), sizeof(id.attempt.b));
	return id;
}

/* ---- Writing ---- */

static int write_shard_of(struct store *s, struct disk_queue *q, const struct checkpoint_id *id,
			  const struct image *image, struct shard_footer *ret, struct err *e)
{
	struct shard_writer *w = NULL;
	int r = shard_begin_partial(s, id, image->rank, image->len, image->table_len,
				    image->present, &w, e);

	if (r < 0)
		return r;
	r = shard_write_image(w, q, image->bytes, 1, NULL, e);
	if (r < 0) {
		shard_abandon(w);
		return r;
	}
	return shard_finish(w, image->table, image->table_len, ret, e);
}

int write_shard(struct folder *f, const struct checkpoint_id *id, const struct image *image,
		struct shard_footer *ret, struct err *e)
{
	return write_shard_of(&f->store, f->queue, id, image, ret, e);
}

static int publish(struct store *s, const struct checkpoint_id *id, struct shard_footer *shards,
		   uint32_t world, struct err *e)
{
	static const char record[] = "record 0, verbatim";
	struct rank_line *lines = calloc(world, sizeof(*lines));
	struct commit_file c = { .id = *id, .job_name = "job-1", .uid = 7, .incarnation = 1,
				 .record_n = 42, .epoch = 2, .wall_ns = 12345, .world = world,
				 .shards = shards, .job_record = (void *)(uintptr_t)record,
				 .job_record_len = sizeof(record) };
	for (uint32_t i = 0; i < world; i++) {
		lines[i] = (struct rank_line){ .rank = i, .table_len = shards[i].table_len,
					       .table = shards[i].table };
		c.bytes += shards[i].stored;
	}
	c.root = root_digest(lines, world);
	free(lines);
	return commit_publish(s, &c, e);
}

int write_checkpoint_of(struct folder *f, struct store *s, const struct checkpoint_id *id,
			const struct image *images, uint32_t world, struct err *e)
{
	struct shard_footer *shards = calloc(world, sizeof(*shards));
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < world; i++)
		r = write_shard_of(s, f->queue, id, &images[i], &shards[i], e);
	if (r == 0)
		r = publish(s, id, shards, world, e);
	free(shards);
	return r;
}

int write_checkpoint(struct folder *f, const struct checkpoint_id *id, const struct image *images,
		     uint32_t world, struct err *e)
{
	return write_checkpoint_of(f, &f->store, id, images, world, e);
}

/* ---- Reading ---- */

/* The leaves that are there, one behind the other. */
static void compare_chunk(const struct image *image, uint64_t chunk, const uint8_t *bytes,
			  size_t len)
{
	struct geometry g = image->geometry;
	uint64_t at = chunk * g.chunk, end = min_u64(at + g.chunk, image->len), n = 0;

	for (; at < end; at += g.leaf) {
		uint64_t here = min_u64(g.leaf, end - at);

		if (!leaves_has(image->present, at / g.leaf))
			continue;
		assert_memory_equal(bytes + n, image->bytes + at, here);
		n += here;
	}
	assert_int_equal(len, n);
}

static int read_rank(struct shard_reader *r, const struct image *image, struct err *e)
{
	const uint32_t chunk = image->geometry.chunk;
	struct compressor *c = NULL;
	void *scratch = NULL;
	int rc = 0;

	assert_int_equal(r->table.image_len, image->len);
	assert_int_equal(r->n_chunks, div_up(image->len, chunk));
	assert_int_equal(compressor_new(chunk, 1, &c), 0);
	assert_int_equal(posix_memalign(&scratch, DISK_ALIGN, 2 * (size_t)chunk), 0);
	for (uint64_t i = 0; i < r->n_chunks; i++) {
		const void *bytes = NULL;
		size_t len = 0;
		int one = shard_read_chunk(r, i, c, scratch, &bytes, &len, e);

		if (one < 0) {
			rc = one;
			continue;
		}
		compare_chunk(image, i, bytes, len);
	}
	compressor_free(c);
	free(scratch);
	return rc;
}

int read_checkpoint(struct store *s, const struct checkpoint_id *id, const struct image *images,
		    struct err *e)
{
	struct commit_file c = { 0 };
	int r = commit_read(s, id, &c, e);

	for (uint32_t i = 0; r == 0 && i < c.world; i++) {
		struct shard_reader reader;

		r = shard_open(s, id, &c.shards[i], &reader, e);
		if (r < 0)
			break;
		r = read_rank(&reader, &images[i], e);
		shard_close(&reader);
	}
	commit_file_fini(&c);
	return r;
}

struct said {
	char *text;
	size_t size;
};

static void keep_sentence(void *arg, const char *sentence)
{
	struct said *s = arg;

	if (s->size)
		snprintf(s->text, s->size, "%s", sentence);
}

int64_t verify_checkpoint(struct store *s, const struct checkpoint_id *id, char *text, size_t size,
			  struct err *e)
{
	struct said said = { .text = text, .size = size };
	struct verify_hooks hooks = { .report = keep_sentence, .arg = &said };
	struct commit_file c = { 0 };
	uint64_t bad = 0;
	int r = commit_read(s, id, &c, e);

	for (uint32_t i = 0; r == 0 && i < c.world; i++) {
		struct shard_reader reader;
		uint64_t here = 0;

		r = shard_open(s, id, &c.shards[i], &reader, e);
		if (r < 0)
			break;
		r = shard_verify(&reader, &hooks, &here, e);
		bad += here;
		shard_close(&reader);
	}
	commit_file_fini(&c);
	return r < 0 ? r : (int64_t)bad;
}
