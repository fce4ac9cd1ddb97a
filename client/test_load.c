/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads: a state that three ranks saved, given to one, from memory and files, with damage, with
 * tensors missing, with a ckptd that goes away.
 *
 * The value of each element is a function of its tensor and its place in it: what is loaded is
 * checked without knowing how it was stored.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/test_fake.h"
#include "codec/compress.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "tests/lib/test.h"

#define RANKS 3
#define ROWS  64
#define COLS  96
#define FLAT  5000
#define LEAF  4096u
#define CHUNK 16384u

struct stored {
	void *bytes; /* of its declaration */
	size_t len;
	struct declaration d;
	uint8_t *image;
	uint64_t image_len;
	uint8_t *leaves, *places;
	int memory, raw, packed; /* descriptors of three ways to keep it */
	uint8_t *raw_places, *packed_places;
};

struct world {
	struct fake *f;
	struct ckpt *c;
	struct stored stored[RANKS];
	struct writer plans[3];  /* memory, raw files, compressed files */
	int fds[3][RANKS];
	uint32_t n_fds;
	float w[ROWS * COLS], v[FLAT];
	struct ckpt_binding b[2];
	struct ckpt_load_args a;
	struct ckpt_loaded got;
};

static float value(int tensor, uint64_t i)
{
	return (float)tensor * 100000.0f + (float)i;
}

/* ---- What is stored ---- */

static const uint64_t row_cuts[RANKS + 1] = { 0, 20, 44, ROWS };
static const uint64_t flat_cuts[RANKS + 1] = { 0, 1, 3333, FLAT };

static void add(struct declaration_builder *b, const char *name, struct shard s)
{
	struct err e = { 0 };

	s.name = name;
	s.name_len = (uint32_t)strlen(name);
	s.dtype = CKPT_F32;
	must(declaration_add(b, &s, &e) >= 0);
}

static void store_rank(struct stored *s, int rank)
{
	struct declaration_builder *b;
	struct err e = { 0 };
	uint64_t lo = row_cuts[rank], rows = row_cuts[rank + 1] - lo;

	must(declaration_builder_new((struct geometry){ LEAF, CHUNK }, &b) == 0);
	add(b, "w", (struct shard){ .global = { 2, { ROWS, COLS } },
				    .box = { 2, { lo, 0 }, { rows, COLS } } });
	add(b, "v", (struct shard){ .global = { 1, { FLAT } }, .box = { 1, { 0 }, { FLAT } },
				    .flat = true, .start = flat_cuts[rank],
				    .stop = flat_cuts[rank + 1] });
	must(declaration_finish(b, &s->bytes, &s->len, &e) == 0);
	must(declaration_open(s->bytes, s->len, &s->d, &e) == 0);
	declaration_builder_free(b);
	s->image_len = (s->d.image_bytes + 4095) / 4096 * 4096 + 300; /* a blob of 300 bytes */
	s->image = calloc(1, s->image_len + 2 * 4096);
	for (uint32_t i = 0; i < s->d.n_shards; i++) {
		struct shard h;
		float *to;

		declaration_get(&s->d, i, &h);
		to = (float *)(s->image + h.image_offset);
		for (uint64_t k = 0; k < h.bytes / 4; k++)
			to[k] = h.name[0] == 'w' ? value(1, lo * COLS + k)
						 : value(2, flat_cuts[rank] + k);
	}
	memset(s->image + s->image_len - 300, 'a' + rank, 300);
	s->leaves = calloc(s->image_len / LEAF + 1, 16);
	for (uint64_t at = 0; at < s->image_len; at += LEAF) {
		struct digest d = digest_of(s->image + at, min_u64(LEAF, s->image_len - at));

		memcpy(s->leaves + at / LEAF * 16, d.b, 16);
	}
}

static int open_direct(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);

	if (fd < 0) /* a file system without it */
		fd = open(path, O_RDONLY | O_CLOEXEC);
	must(fd >= 0);
	return fd;
}

static uint8_t *store_file(struct stored *s, const char *path, bool pack)
{
	uint64_t n = div_up(s->image_len, CHUNK), at = 4096;
	uint8_t *places = calloc(n, CHUNK_PLACE_BYTES), *out = malloc(compressor_bound(CHUNK));
	struct compressor *c;
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	must(fd >= 0 && compressor_new(CHUNK, 1, &c) == 0);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t len = min_u64(CHUNK, s->image_len - i * CHUNK);
		struct chunk_place p = { .offset = at, .stored = (uint32_t)len };
		const uint8_t *from = s->image + i * CHUNK;
		size_t packed;

		if (pack)
			p.encoding = (uint16_t)compress_chunk(c, from, len, 4, out,
							      compressor_bound(CHUNK), &packed);
		if (p.encoding != ENCODING_RAW) {
			p.stored = (uint32_t)packed;
			p.digest = digest_of(out, packed);
			from = out;
		}
		must(pwrite(fd, from, p.stored, (off_t)at) == (ssize_t)p.stored);
		chunk_place_put(places + i * CHUNK_PLACE_BYTES, &p);
		at = round_up(at + p.stored, 4096);
	}
	close(fd);
	compressor_free(c);
	free(out);
	return places;
}

static void store(struct world *w)
{
	for (int i = 0; i < RANKS; i++) {
		struct stored *s = &w->stored[i];
		char path[300];

		store_rank(s, i);
		s->memory = memfd_create("stored", MFD_CLOEXEC);
		must(pwrite(s->memory, s->image, s->image_len, 0) == (ssize_t)s->image_len);
		snprintf(path, sizeof(path), "%s/raw%d", w->f->dir, i);
		s->raw_places = store_file(s, path, false);
		s->raw = open_direct(path);
		snprintf(path, sizeof(path), "%s/packed%d", w->f->dir, i);
		s->packed_places = store_file(s, path, true);
		s->packed = open_direct(path);
	}
}

/* The plan that ckptd would make for a rank that wants everything. */
static void plan(struct world *w, int how, const struct declaration *wanted, bool lenient,
		 struct writer *ret)
{
	struct plan_source in[RANKS];
	struct load_source sources[RANKS];
	struct load_blob blob = { .name = (char *)"rng", .source = 0, .bytes = 300 };
	struct load_plan p = { .sources = sources, .n_sources = RANKS, .blobs = &blob,
			       .n_blobs = 1 };
	struct err e = { 0 };
	int r;

	for (int i = 0; i < RANKS; i++) {
		struct stored *s = &w->stored[i];

		in[i] = (struct plan_source){ .declaration = s->d };
		sources[i] = (struct load_source){
			.kind = how == 0 ? LOAD_MEMORY : LOAD_FILE,
			.rank = (uint32_t)i,
			.image_len = s->image_len,
			.geometry = { LEAF, CHUNK },
			.leaves = s->leaves,
			.places = how == 1 ? s->raw_places : s->packed_places,
		};
		w->fds[how][i] = how == 0 ? s->memory : how == 1 ? s->raw : s->packed;
	}
	blob.image_offset = w->stored[0].image_len - 300;
	r = plan_make(in, RANKS, wanted, lenient, PLAN_ALONE, &p.plan, &e);
	must(r == 0);
	*ret = (struct writer){ 0 };
	must(load_plan_encode(&p, ret) == 0);
	plan_fini(&p.plan);
}

static struct fake_offer offer(struct world *w, int how)
{
	return (struct fake_offer){ .plan = w->plans[how].buf, .plan_len = w->plans[how].len,
				    .fds = w->fds[how], .n_fds = RANKS, .step = 12, .attempt = 3,
				    .tier = how ? CKPT_TIER_DISK : CKPT_TIER_MEMORY };
}

static void offers(struct world *w, uint32_t n, const struct fake_offer *o)
{
	fake_lock(w->f);
	memcpy(w->f->offers, o, n * sizeof(*o));
	w->f->n_offers = n;
	w->f->next_offer = 0;
	w->f->n_ends = 0;
	fake_unlock(w->f);
}

static void offer_one(struct world *w, struct fake_offer o)
{
	offers(w, 1, &o);
}

/* ---- The rank that loads ---- */

static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct declaration_builder *b;
	struct declaration wanted;
	struct err e = { 0 };
	void *bytes;
	size_t len;

	w->f = fake_new();
	store(w);
	must(declaration_builder_new((struct geometry){ LEAF, CHUNK }, &b) == 0);
	add(b, "v", (struct shard){ .global = { 1, { FLAT } }, .box = { 1, { 0 }, { FLAT } } });
	add(b, "w", (struct shard){ .global = { 2, { ROWS, COLS } },
				    .box = { 2, { 0 }, { ROWS, COLS } } });
	must(declaration_finish(b, &bytes, &len, &e) == 0);
	must(declaration_open(bytes, len, &wanted, &e) == 0);
	for (int how = 0; how < 3; how++)
		plan(w, how, &wanted, false, &w->plans[how]);
	declaration_builder_free(b);
	alloc_free(bytes);
	w->c = fake_open(w->f);
	fake_declare(w->c, "v", 1, (uint64_t[]){ FLAT });
	fake_declare(w->c, "w", 2, (uint64_t[]){ ROWS, COLS });
	w->b[0] = (struct ckpt_binding){ .ptr = w->v, .device = CKPT_HOST, .dtype = CKPT_F32,
					 .bytes = sizeof(w->v) };
	w->b[1] = (struct ckpt_binding){ .ptr = w->w, .device = CKPT_HOST, .dtype = CKPT_F32,
					 .bytes = sizeof(w->w) };
	w->a = (struct ckpt_load_args){ .size = sizeof(w->a), .step = CKPT_LATEST, .tensors = w->b,
					.n_tensors = 2, .timeout_ms = 20000 };
	w->got.size = sizeof(w->got);
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_close(w->c);
	for (int i = 0; i < RANKS; i++) {
		struct stored *s = &w->stored[i];

		alloc_free(s->bytes);
		free(s->image);
		free(s->leaves);
		free(s->raw_places);
		free(s->packed_places);
		close(s->memory);
		close(s->raw);
		close(s->packed);
	}
	for (int how = 0; how < 3; how++)
		writer_free(&w->plans[how]);
	fake_free(w->f);
	free(w);
	return 0;
}

static void check_values(struct world *w)
{
	for (uint64_t i = 0; i < ROWS * COLS; i++)
		if (w->w[i] != value(1, i))
			fail_msg("w[%llu] is %f", (unsigned long long)i, (double)w->w[i]);
	for (uint64_t i = 0; i < FLAT; i++)
		if (w->v[i] != value(2, i))
			fail_msg("v[%llu] is %f", (unsigned long long)i, (double)w->v[i]);
	memset(w->w, 0, sizeof(w->w));
	memset(w->v, 0, sizeof(w->v));
}

static void test_from_memory_and_files(void **state)
{
	struct world *w = *state;
	struct ckpt_blob blob;
	const void *data;
	uint64_t bytes;

	for (int how = 0; how < 3; how++) {
		struct fake_offer o = offer(w, how);

		o.per_message = (uint32_t)how; /* descriptors in one message, in several */
		offer_one(w, o);
		assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_OK);
		check_values(w);
		assert_int_equal(w->got.step, 12);
		assert_int_equal(w->got.attempt[15], 3);
		assert_int_equal(w->got.tier, o.tier);
		assert_int_equal(w->got.bytes, sizeof(w->w) + sizeof(w->v));
		assert_true(w->got.bytes_read > 0);
		assert_int_equal(w->f->n_ends, 1);
		assert_true(w->f->ends[0].complete && !w->f->ends[0].failed);
		assert_int_equal(w->f->ends[0].load, 100);
		assert_int_equal(ckpt_blob_get(w->c, "rng", &data, &bytes), CKPT_OK);
		assert_int_equal(bytes, 300);
		for (int i = 0; i < 300; i++)
			assert_int_equal(((const char *)data)[i], 'a');
		assert_int_equal(ckpt_blob_at(w->c, 0, &blob), CKPT_OK);
		assert_string_equal(blob.name, "rng");
		assert_int_equal(ckpt_blob_at(w->c, 1, &blob), CKPT_ENOTFOUND);
		assert_int_equal(ckpt_blob_get(w->c, "no", &data, &bytes), CKPT_ENOTFOUND);
		assert_null(ckpt_problem(w->c, 0));
	}
}

static void test_strides(void **state)
{
	struct world *w = *state;
	int64_t strides[2] = { 4, 4 * ROWS };
	float *t = calloc(ROWS * COLS, sizeof(*t));

	offer_one(w, offer(w, 1));
	w->b[1].ptr = t;
	w->b[1].strides = strides;
	w->b[1].ndim = 2;
	assert_int_equal(ckpt_load(w->c, &w->a, NULL), CKPT_OK);
	for (uint64_t i = 0; i < ROWS; i++)
		for (uint64_t k = 0; k < COLS; k++)
			if (t[k * ROWS + i] != value(1, i * COLS + k))
				fail_msg("row %d column %d", (int)i, (int)k);
	free(t);
}

static void refused(struct world *w, const char *why)
{
	assert_int_equal(ckpt_load(w->c, &w->a, NULL), -EINVAL);
	if (!strstr(ckpt_last_error(NULL), why))
		fail_msg("'%s' does not say '%s'", ckpt_last_error(NULL), why);
	assert_int_equal(w->f->next_offer, 0); /* nothing was asked for */
}

/* Of two elements in one place one would be lost. */
static void test_targets_that_overlap(void **state)
{
	struct world *w = *state;
	struct ckpt_binding good[2] = {w->b[0], w->b[1]};
	int64_t strides[2] = {4 * COLS, 0}, v_strides[1] = {12};
	float *both = calloc(3 * FLAT + 3 * ROWS * COLS, sizeof(*both));

	offer_one(w, offer(w, 0));
	w->b[1].strides = strides;
	w->b[1].ndim = 2;
	refused(w, "tensor 'w' (binding 1): by its strides several of its elements are in one");
	strides[0] = 4 * COLS - 4;
	strides[1] = 4;
	refused(w, "several of its elements");
	w->b[1] = good[1];
	w->b[0].ptr = (char *)good[1].ptr + good[1].bytes - 4;
	refused(w, "are to be loaded into memory that overlaps");
	w->b[0].ptr = good[0].ptr;
	w->b[1].ptr = (char *)good[0].ptr + good[0].bytes - 1;
	refused(w, "are to be loaded into memory that overlaps");
	/* One in the gaps of the other is well. */
	w->b[1] = good[1];
	w->b[1].ptr = both + 1;
	w->b[1].strides = (int64_t[]){12 * COLS, 12};
	w->b[1].ndim = 2;
	w->b[0].ptr = both;
	w->b[0].strides = v_strides;
	w->b[0].ndim = 1;
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_OK);
	for (uint64_t i = 0; i < FLAT; i++)
		assert_true(both[3 * i] == value(2, i));
	for (uint64_t i = 0; i < ROWS * COLS; i++)
		assert_true(both[3 * i + 1] == value(1, i));
	offer_one(w, offer(w, 0));
	w->b[0].ptr = both + 4;
	refused(w, "are to be loaded into memory that overlaps");
	free(both);
}

static void damage(struct world *w, int rank, uint64_t at)
{
	struct stored *s = &w->stored[rank];
	uint8_t byte = s->image[at] ^ 1;

	must(pwrite(s->memory, &byte, 1, (off_t)at) == 1);
}

static void test_bad_leaf_then_another_copy(void **state)
{
	struct world *w = *state;
	struct fake_offer o[2] = { offer(w, 0), offer(w, 1) };

	damage(w, 1, 5000);
	offers(w, 2, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_OK);
	check_values(w);
	assert_int_equal(w->got.tier, CKPT_TIER_DISK);
	assert_int_equal(w->f->n_ends, 2);
	assert_true(w->f->ends[0].failed && !w->f->ends[0].complete);
	assert_int_equal(w->f->ends[0].source, 1);
	assert_int_equal(w->f->ends[0].leaf, 5000 / LEAF);
	assert_true(w->f->ends[1].complete);
}

static void test_bad_blob_is_found(void **state)
{
	struct world *w = *state;
	struct fake_offer o[2] = { offer(w, 0), offer(w, 2) };
	uint64_t at = w->stored[0].image_len - 1;

	damage(w, 0, at);
	offers(w, 2, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_OK);
	assert_int_equal(w->f->ends[0].source, 0);
	assert_int_equal(w->f->ends[0].leaf, at / LEAF);
}

static void test_falls_back_to_an_older_base(void **state)
{
	struct world *w = *state;
	struct fake_offer o[2] = { offer(w, 0), offer(w, 1) };
	struct ckpt_save_args s = { .size = sizeof(s), .step = 8, .tensors = w->b, .n_tensors = 2,
				    .timeout_ms = 5000, .flags = CKPT_WAIT_CREDIT };

	damage(w, 2, 0);
	o[1].step = 7;
	o[1].attempt = 1;
	o[1].epoch = 2; /* ckptd opened the next one for it */
	offers(w, 2, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_FELL_BACK);
	assert_int_equal(w->got.step, 7);
	check_values(w);
	fake_lock(w->f);
	fake_next_epoch(w->f);
	fake_unlock(w->f);
	assert_int_equal(ckpt_save(w->c, &s), CKPT_OK); /* in the epoch that was loaded */
	assert_int_equal(w->f->seals[0].epoch, 2);
	/* ckptd may also have fallen back before this rank asked. */
	o[1].status = CKPT_FELL_BACK;
	o[1].fell_back_from = 9;
	offer_one(w, o[1]);
	assert_int_equal(w->got.fell_back_from, 12); /* found by this load itself */
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_FELL_BACK);
	assert_int_equal(w->got.fell_back_from, 9);
}

/* What was bound is overwritten: that there is nothing else must not look like a first start. */
static void test_all_lost(void **state)
{
	struct world *w = *state;
	struct fake_offer nothing = {.status = CKPT_NOTHING};
	struct fake_offer lost = {.code = CKPT_ELOST, .text = "none is left", .epoch = 2};
	struct fake_offer o[2] = {offer(w, 0), nothing};
	struct ckpt_save_args s = {.size = sizeof(s),
				   .step = 8,
				   .tensors = w->b,
				   .n_tensors = 2,
				   .timeout_ms = 5000,
				   .flags = CKPT_WAIT_CREDIT};

	damage(w, 0, 0);
	offers(w, 2, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_ELOST);
	assert_non_null(strstr(ckpt_last_error(NULL), "step 12 of job"));
	o[1] = lost;
	offers(w, 2, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_ELOST);
	assert_non_null(strstr(ckpt_last_error(NULL), "none is left"));
	fake_lock(w->f);
	fake_next_epoch(w->f);
	fake_unlock(w->f);
	assert_int_equal(ckpt_save(w->c, &s), CKPT_OK); /* it begins anew */
	assert_int_equal(w->f->seals[0].epoch, 2);
}

static void test_no_good_copy(void **state)
{
	struct world *w = *state;
	struct fake_offer refused = { .code = CKPT_ECORRUPT, .text = "the file is damaged" };
	struct fake_offer o[3] = { refused, refused, offer(w, 0) };

	damage(w, 0, 0);
	offer_one(w, offer(w, 0));
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_ECORRUPT);
	assert_non_null(strstr(ckpt_last_error(NULL), "step 12: leaf 0 of rank 0"));
	assert_int_equal(w->f->n_ends, 8); /* and then it ends */
	/* What ckptd itself found to be bad is asked for again as well. */
	must(pwrite(w->stored[0].memory, w->stored[0].image, 1, 0) == 1);
	o[1].code = -EAGAIN;
	offers(w, 3, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_OK);
	check_values(w);
	o[0].code = CKPT_ELOST;
	offers(w, 1, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_ELOST);
}

static void test_strict_and_lenient(void **state)
{
	struct world *w = *state;
	struct fake_offer o = { .code = CKPT_EMISMATCH, .text = "2 tensors do not match",
				.problems = { "tensor 'x' is missing", "tensor 'y' is f32" } };
	struct declaration_builder *b;
	struct declaration wanted;
	struct writer lenient;
	struct err e = { 0 };
	float extra[4] = { 9, 9, 9, 9 };
	struct ckpt_binding three[3];
	void *bytes;
	size_t len;

	offer_one(w, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_EMISMATCH);
	assert_string_equal(ckpt_last_error(NULL), "ckpt_load: 2 tensors do not match");
	assert_string_equal(ckpt_problem(w->c, 0), "tensor 'x' is missing");
	assert_string_equal(ckpt_problem(w->c, 1), "tensor 'y' is f32");
	assert_null(ckpt_problem(w->c, 2));
	assert_float_equal(w->w[5], 0.0f, 0.0f);
	/* A third tensor that nobody stored. */
	ckpt_close(w->c);
	w->c = fake_open(w->f);
	fake_declare(w->c, "v", 1, (uint64_t[]){ FLAT });
	fake_declare(w->c, "w", 2, (uint64_t[]){ ROWS, COLS });
	fake_declare(w->c, "x", 1, (uint64_t[]){ 4 });
	must(declaration_builder_new((struct geometry){ LEAF, CHUNK }, &b) == 0);
	add(b, "v", (struct shard){ .global = { 1, { FLAT } }, .box = { 1, { 0 }, { FLAT } } });
	add(b, "w", (struct shard){ .global = { 2, { ROWS, COLS } },
				    .box = { 2, { 0 }, { ROWS, COLS } } });
	add(b, "x", (struct shard){ .global = { 1, { 4 } }, .box = { 1, { 0 }, { 4 } } });
	must(declaration_finish(b, &bytes, &len, &e) == 0);
	must(declaration_open(bytes, len, &wanted, &e) == 0);
	plan(w, 0, &wanted, true, &lenient);
	declaration_builder_free(b);
	alloc_free(bytes);
	memcpy(three, w->b, sizeof(w->b));
	three[2] = (struct ckpt_binding){ .ptr = extra, .device = CKPT_HOST, .dtype = CKPT_F32,
					  .bytes = sizeof(extra) };
	o = offer(w, 0);
	o.plan = lenient.buf;
	o.plan_len = lenient.len;
	o.problems[0] = "tensor 'x' is missing";
	offer_one(w, o);
	w->a.tensors = three;
	w->a.n_tensors = 3;
	w->a.flags = CKPT_LENIENT;
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_PARTIAL);
	check_values(w);
	assert_float_equal(extra[0], 9.0f, 0.0f);
	assert_string_equal(ckpt_problem(w->c, 0), "tensor 'x' is missing");
	writer_free(&lenient);
}

static void test_nothing_to_load(void **state)
{
	struct world *w = *state;
	struct fake_offer o = { .status = CKPT_NOTHING };
	struct ckpt_save_args s = { .size = sizeof(s), .step = 1, .tensors = w->b, .n_tensors = 2,
				    .timeout_ms = 5000, .flags = CKPT_WAIT_CREDIT };

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	fake_lock(w->f);
	fake_next_epoch(w->f); /* a rank was replaced before the first checkpoint */
	fake_unlock(w->f);
	assert_int_equal(ckpt_save(w->c, &s), CKPT_EEPOCH);
	offer_one(w, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_NOTHING);
	assert_int_equal(ckpt_save(w->c, &s), CKPT_OK);
}

static void test_malformed_offers(void **state)
{
	struct world *w = *state;
	struct fake_offer o = offer(w, 0);

	o.plan_len--;
	offer_one(w, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_EPROTO);
	assert_int_equal(w->f->n_ends, 1); /* its sources are let go of */
	assert_false(w->f->ends[0].complete || w->f->ends[0].failed);
	o = offer(w, 0);
	o.n_fds--;
	offer_one(w, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_EPROTO);
	assert_non_null(strstr(ckpt_last_error(NULL), "2 descriptors for 3 sources"));
	o.plan = NULL;
	o.n_fds = 0;
	offer_one(w, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_EPROTO);
	w->a.flags = 4;
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), -EINVAL);
	w->a.flags = 0;
	w->got.size = 2;
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), -EINVAL);
	w->a.n_tensors = 1;
	assert_int_equal(ckpt_load(w->c, &w->a, NULL), -EINVAL);
}

static enum fake_action silent_loads(struct fake *f, const Ckpt__Request *q, void *arg)
{
	(void)f;
	(void)arg;
	return q->body_case == CKPT__REQUEST__BODY_LOAD ? FAKE_SILENCE : FAKE_DO;
}

/* A load that is answered when nobody waits any more would keep its slots for ever: the connection
 * ends with the wait. */
static void test_load_without_an_answer(void **state)
{
	struct world *w = *state;

	offer_one(w, offer(w, 0));
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	FAKE_SET(w->f, w->f->hook, silent_loads);
	w->a.timeout_ms = 30;
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_ETIMEDOUT);
	FAKE_SET(w->f, w->f->hook, NULL);
	w->a.timeout_ms = 10000;
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_RECONNECTED);
	check_values(w);
}

static void come_back(struct world *w, enum origin_kind want)
{
	struct ckpt_info info = {0};

	fake_stop(w->f);
	fake_start(w->f);
	assert_true(ckpt_list(w->c, &info, 1) >= 0);
	assert_true(w->f->reconnect);
	assert_int_equal(w->f->opened_origin, want);
}

/* A ckptd that was restarted is told whether this rank has loaded. */
static void test_where_its_state_comes_from_is_kept(void **state)
{
	struct world *w = *state;

	come_back(w, ORIGIN_FRESH);
	FAKE_SET(w->f, w->f->origin, ORIGIN_RESUMED);
	offer_one(w, offer(w, 0));
	w->a.tensors = NULL;
	assert_true(ckpt_load(w->c, &w->a, &w->got) < 0); /* nothing was loaded */
	come_back(w, ORIGIN_FRESH);
	w->a.tensors = w->b;
	offer_one(w, offer(w, 0));
	assert_true(ckpt_load(w->c, &w->a, &w->got) >= 0);
	come_back(w, ORIGIN_RESUMED);
	FAKE_SET(w->f, w->f->origin, ORIGIN_UNSAID); /* an older ckptd does not know it */
	offer_one(w, offer(w, 0));
	assert_true(ckpt_load(w->c, &w->a, &w->got) >= 0);
	come_back(w, ORIGIN_UNSAID);
}

static enum fake_action next_epoch_once(struct fake *f, const Ckpt__Request *q, void *arg)
{
	bool *armed = arg;

	if (q->body_case == CKPT__REQUEST__BODY_LOAD && *armed) {
		*armed = false;
		fake_next_epoch(f);
	}
	return FAKE_DO;
}

/* "Nothing" was said in one epoch and the next was opened: in which one is this rank now? */
static void test_nothing_while_the_epoch_changes(void **state)
{
	struct world *w = *state;
	struct fake_offer o = { .status = CKPT_NOTHING };
	struct ckpt_save_args s = { .size = sizeof(s), .step = 1, .tensors = w->b, .n_tensors = 2,
				    .timeout_ms = 5000, .flags = CKPT_WAIT_CREDIT };
	static bool armed; /* the other thread looks at it until the teardown */

	armed = true;
	offer_one(w, o);
	FAKE_SET(w->f, w->f->hook_arg, &armed);
	FAKE_SET(w->f, w->f->hook, next_epoch_once);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_NOTHING);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_LOAD), 2);
	assert_int_equal(ckpt_save(w->c, &s), CKPT_OK);
	assert_int_equal(w->f->seals[0].epoch, 2);
}

static enum fake_action drop_loads(struct fake *f, const Ckpt__Request *q, void *arg)
{
	int *left = arg;

	(void)f;
	if (*left == 0 || (int)q->body_case != *left)
		return FAKE_DO;
	*left = 0;
	return q->body_case == CKPT__REQUEST__BODY_LOAD ? FAKE_PART_AND_DROP : FAKE_DO_AND_DROP;
}

static void test_lost_during_a_load(void **state)
{
	struct world *w = *state;
	struct fake_offer o = offer(w, 0);
	static int at; /* the other thread looks at it until the teardown */

	at = CKPT__REQUEST__BODY_LOAD;
	o.per_message = 2; /* the plan and one source come, then nothing */
	offer_one(w, o);
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	FAKE_SET(w->f, w->f->hook_arg, &at);
	FAKE_SET(w->f, w->f->hook, drop_loads);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_RECONNECTED);
	check_values(w);
	FAKE_SET(w->f, at, CKPT__REQUEST__BODY_LOAD_END);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_RECONNECTED);
	check_values(w);
}

/* What lies in this process's own slots is used where it lies. */
static void test_from_an_own_slot(void **state)
{
	struct world *w = *state;
	struct stored *s = &w->stored[0];
	struct fake_offer o = offer(w, 0);
	int fds[RANKS];

	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	memcpy(fds, w->fds[0], sizeof(fds));
	fake_lock(w->f);
	fds[0] = w->f->slots[1].fd;
	memcpy(w->f->slots[1].base, s->image, s->image_len);
	fake_unlock(w->f);
	o.fds = fds;
	offer_one(w, o);
	assert_int_equal(ckpt_load(w->c, &w->a, &w->got), CKPT_OK);
	check_values(w);
}

static void test_out_of_memory(void **state)
{
	struct world *w = *state;
	bool fired = true;

	offer_one(w, offer(w, 2));
	assert_int_equal(ckpt_prepare(w->c, 0), CKPT_OK);
	for (uint64_t n = 1; fired; n++) {
		int r;

		must(n < 1000);
		alloc_fail_at(n, false);
		r = ckpt_load(w->c, &w->a, &w->got);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		if (r < 0)
			assert_true(fired && r == -ENOMEM);
		else
			check_values(w);
	}
	/* What was given was given back, however it ended. */
	assert_true(fake_count(w->f, CKPT__REQUEST__BODY_LOAD) > 10);
	assert_int_equal(fake_count(w->f, CKPT__REQUEST__BODY_LOAD),
			 fake_count(w->f, CKPT__REQUEST__BODY_LOAD_END));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_from_memory_and_files),
		T(test_strides),
		T(test_targets_that_overlap),
		T(test_bad_leaf_then_another_copy),
		T(test_bad_blob_is_found),
		T(test_falls_back_to_an_older_base),
		T(test_all_lost),
		T(test_no_good_copy),
		T(test_strict_and_lenient),
		T(test_nothing_to_load),
		T(test_malformed_offers),
		T(test_load_without_an_answer),
		T(test_where_its_state_comes_from_is_kept),
		T(test_nothing_while_the_epoch_changes),
		T(test_lost_during_a_load),
		T(test_from_an_own_slot),
		T(test_out_of_memory),
	};

	return cmocka_run_group_tests_name("load", tests, NULL, NULL);
}
