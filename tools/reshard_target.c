/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_target.c - what each rank of the new checkpoint holds, and how the memory is divided.
 *
 * Declarations list tensors in the order in which they are read, so that every image is written
 * from its beginning to its end. Blobs of rank r go to rank r; those of ranks that the layout does
 * not have are left out.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "tools/cover.h"
#include "tools/plural.h"
#include "tools/reshard.h"

#define MIB           (1ull << 20)
#define BATCH_LEAST   MIB
#define BATCH_MAX     (256 * MIB)
#define READING_LEAST (6 * MIB)
#define BUFFERS_MAX   (64 * MIB)
#define BUFFERS_LEAST 4 /* of the maker */

/* ---- Declarations ---- */

static struct layout_tensor layout_tensor_of(const struct reading_tensor *t)
{
	return (struct layout_tensor){
		.name = t->name, .name_len = t->name_len, .dtype = t->dtype, .global = t->global};
}

static void get_tensor(const void *reading, size_t i, struct layout_tensor *ret)
{
	*ret = layout_tensor_of(reading_tensor(reading, i));
}

static int begin_layout(struct reshard *x, struct err *e)
{
	const struct layout_tensors all = {get_tensor, x->reading, reading_n_tensors(x->reading)};
	int r = layout_begin(x->layout, &all, e);

	return r < 0 ? err_wrap(e, r, "layout '%.100s'", x->layout_name) : 0;
}

static int add_tensor(struct reshard *x, struct declaration_builder *b, size_t i, uint32_t rank,
		      struct shard *shards, struct err *e)
{
	const struct reading_tensor *t = reading_tensor(x->reading, i);
	const struct layout_tensor what = layout_tensor_of(t);
	uint32_t n = 0;
	int r = layout_shards(x->layout, &what, rank, shards, &n, e);

	for (uint32_t k = 0; k < n && r >= 0; k++) {
		shards[k].trained = t->trained;
		r = declaration_add(b, &shards[k], e);
	}
	return r < 0 ? r : 0;
}

static int declare(struct reshard *x, uint32_t rank, struct shard *shards, struct err *e)
{
	struct reshard_target *t = &x->targets[rank];
	struct declaration_builder *b = NULL;
	int r = declaration_builder_new(GEOMETRY_DEFAULT, &b);

	if (r < 0)
		return err_code(e, r, "declare rank %u", rank);
	for (size_t i = 0; i < reading_n_tensors(x->reading) && r == 0; i++)
		r = add_tensor(x, b, i, rank, shards, e);
	if (r == 0)
		r = declaration_finish(b, &t->bytes, &t->len, e);
	if (r == 0)
		r = declaration_open(t->bytes, t->len, &t->declaration, e);
	declaration_builder_free(b);
	return r;
}

/* ---- Blobs ---- */

static int copy_blob(struct reshard *x, uint32_t rank, const struct blob_entry *from,
		     struct making_blob *to, struct err *e)
{
	char *name = alloc_zero(from->name_len + 1u);
	void *bytes = NULL;

	if (!name)
		return err_code(e, -ENOMEM, "copy a blob of rank %u", rank);
	memcpy(name, from->name, from->name_len);
	to->name = name;
	if (reading_blob(x->reading, rank, from->name, from->name_len, &bytes, &to->len, e) < 0)
		return e->code;
	to->bytes = bytes;
	return 0;
}

static int copy_blobs(struct reshard *x, uint32_t rank, struct err *e)
{
	struct reshard_target *t = &x->targets[rank];
	const struct rank_table *table;
	struct blob_entry blob;
	int r = 0;

	if (rank >= reading_commit(x->reading)->world)
		return 0;
	table = reading_table(x->reading, rank);
	if (!table)
		return err_set(e, CKPT_ECORRUPT, "the table of rank %u cannot be read again", rank);
	t->blobs = alloc_array(table->n_blobs, sizeof(*t->blobs));
	if (!t->blobs)
		return err_code(e, -ENOMEM, "copy %u blob%s of rank %u", table->n_blobs,
				plural(table->n_blobs), rank);
	for (uint32_t i = 0, n = table->n_blobs; i < n && r == 0; i++) {
		table = reading_table(x->reading, rank);
		r = table ? rank_table_blob(table, i, &blob) : CKPT_ECORRUPT;
		if (r < 0)
			return err_code(e, r, "read the names of the blobs of rank %u", rank);
		r = copy_blob(x, rank, &blob, &t->blobs[i], e);
		t->n_blobs = i + 1;
	}
	return r;
}

/* ---- Targets ---- */

static int place_image(struct reshard_target *t, struct err *e)
{
	CLEANUP_FREE struct blob_entry *blobs = alloc_array(t->n_blobs, sizeof(*blobs));
	int r = blobs ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < t->n_blobs && r == 0; i++)
		blobs[i] = (struct blob_entry){.name = t->blobs[i].name,
					       .name_len = (uint32_t)strlen(t->blobs[i].name),
					       .bytes = t->blobs[i].len};
	if (r == 0)
		r = blobs_place(&t->declaration, blobs, t->n_blobs, &t->image_len);
	return r < 0 ? err_code(e, r, "place %u blob%s", t->n_blobs, plural(t->n_blobs)) : 0;
}

static int check_cover(struct reshard *x, const char *layout_name, struct err *e)
{
	CLEANUP_FREE struct declaration *ranks = alloc_array(x->world, sizeof(*ranks));
	int r = ranks ? 0 : err_code(e, -ENOMEM, "plan %u rank%s", x->world, plural(x->world));

	for (uint32_t i = 0; i < x->world && r == 0; i++)
		ranks[i] = x->targets[i].declaration;
	for (size_t i = 0; i < reading_n_tensors(x->reading) && r == 0; i++) {
		const struct layout_tensor t = layout_tensor_of(reading_tensor(x->reading, i));

		r = cover_check(layout_name, &t, ranks, x->world, e);
	}
	return r;
}

int targets_make(struct reshard *x, const char *layout_name, struct err *e)
{
	CLEANUP_FREE struct shard *shards = alloc_array(LAYOUT_SHARDS_MAX, sizeof(*shards));
	int r = begin_layout(x, e);

	if (r < 0)
		return r;
	x->world = layout_world(x->layout);
	x->targets = alloc_array(x->world, sizeof(*x->targets));
	if (!x->targets || !shards)
		return err_code(e, -ENOMEM, "plan %u rank%s", x->world, plural(x->world));
	for (uint32_t i = 0; i < x->world && r == 0; i++) {
		r = declare(x, i, shards, e);
		if (r == 0)
			r = copy_blobs(x, i, e);
		if (r == 0)
			r = place_image(&x->targets[i], e);
		if (r < 0)
			err_wrap(e, r, "layout '%.100s', rank %u", x->layout_name, i);
	}
	return r == 0 ? check_cover(x, layout_name, e) : r;
}

void targets_free(struct reshard *x)
{
	for (uint32_t i = 0; x->targets && i < x->world; i++) {
		struct reshard_target *t = &x->targets[i];

		for (uint32_t k = 0; k < t->n_blobs; k++) {
			alloc_free((void *)(uintptr_t)t->blobs[k].name);
			alloc_free((void *)(uintptr_t)t->blobs[k].bytes);
		}
		alloc_free(t->blobs);
		alloc_free(t->bytes);
	}
	alloc_free(x->targets);
	x->targets = NULL;
}

uint64_t target_bytes(const struct reshard *x)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < x->world; i++)
		sum += x->targets[i].image_len;
	return sum;
}

/* ---- Memory ---- */

/* Names of tensors and who holds them; declarations, which the maker borrows; blobs. */
static uint64_t fixed_bytes(const struct reshard *x)
{
	uint64_t sum = reading_n_tensors(x->reading) * 256;

	for (uint32_t i = 0; i < x->world; i++) {
		const struct reshard_target *t = &x->targets[i];

		sum += t->len + sizeof(*t) + 512;
		for (uint32_t k = 0; k < t->n_blobs; k++)
			sum += t->blobs[k].len + 256;
	}
	return sum;
}

static uint64_t source_tables(const struct reshard *x, uint64_t *ret_largest)
{
	const struct commit_file *c = reading_commit(x->reading);
	uint64_t sum = 0;

	*ret_largest = 0;
	for (uint32_t i = 0; i < c->world; i++) {
		sum += c->shards[i].footer_len;
		*ret_largest = max_u64(*ret_largest, c->shards[i].footer_len);
	}
	return sum;
}

static uint64_t largest_target(const struct reshard *x)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < x->world; i++)
		most = max_u64(most, making_rank_bytes(x->targets[i].image_len));
	return most;
}

static uint64_t within(uint64_t n, uint64_t least, uint64_t most)
{
	return max_u64(least, min_u64(n, most));
}

int memory_divide(struct reshard *x, uint64_t given, struct err *e)
{
	struct reshard_memory *m = &x->memory;
	uint64_t largest, all, making = making_memory_least(x->compression), rest;
	uint64_t target = largest_target(x);

	*m = (struct reshard_memory){.given = given, .fixed = fixed_bytes(x)};
	all = source_tables(x, &largest);
	m->least = m->fixed + largest + target + making + READING_LEAST + 2 * BATCH_LEAST;
	if (given < m->least)
		return err_set(e, -EINVAL,
			       "--memory: this checkpoint and layout need %" PRIu64
			       " byte%s at least, not %" PRIu64,
			       m->least, plural(m->least), given);
	rest = given - m->least;
	m->sources = largest + min_u64(all - largest, rest / 4);
	rest -= m->sources - largest;
	m->targets = target + rest / 4;
	rest -= rest / 4;
	m->making = within(making + rest / 4, making, BUFFERS_MAX + making);
	rest -= m->making - making;
	m->reading = within(READING_LEAST + rest / 4, READING_LEAST, BUFFERS_MAX);
	rest -= m->reading - READING_LEAST;
	m->batch = within(BATCH_LEAST + rest / 2, BATCH_LEAST, BATCH_MAX) & ~(MIB - 1);
	/* A buffer for each rank that is being written, and as many on their way to the disk. */
	x->group = (uint32_t)max_u64(m->making / (making / BUFFERS_LEAST) / 2, 1);
	reading_limit(x->reading, m->reading, m->sources);
	return 0;
}

uint32_t group_end(const struct reshard *x, uint32_t first)
{
	uint64_t bytes = making_rank_bytes(x->targets[first].image_len);
	uint32_t end = first + 1;

	assert(first < x->world);
	for (; end < x->world && end - first < x->group; end++) {
		bytes += making_rank_bytes(x->targets[end].image_len);
		if (bytes > x->memory.targets)
			break;
	}
	return end;
}
