/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The placer against an oracle: random pieces over sources of every kind, with leaves that match
 * and leaves that do not.
 *
 * The oracle walks each piece's rows by its definition (model/plan.h) over the plain images and
 * shares nothing with the placer but the digest function.
 */
#include <config.h>

#include "client/placer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/huge.h"
#include "client/clock.h"
#include "client/ranges.h"
#include "codec/compress.h"
#include "codec/digest.h"
#include "tests/lib/test.h"

#define LEAF	 1024u
#define CHUNK	 4096u
#define SOURCES	 4
#define TARGETS	 5
#define TARGET_BYTES (64u << 10)

enum kind { MEMORY, MAPPED, RAW_FILE, PACKED_FILE };

struct image {
	uint8_t *bytes;
	uint64_t len;
	uint8_t *leaves, *places;
	struct load_source in;
	char *path;
};

struct world {
	char *dir;
	struct image images[SOURCES];
	struct source sources[SOURCES];
	struct plan_piece pieces[200];
	size_t n_pieces;
	uint8_t *have[TARGETS], *want[TARGETS];
	struct place_target targets[TARGETS];
	uint32_t place;
	uint64_t window, trial;
	struct pace_kept pace;
	uint64_t x;
};

static bool lacking; /* files of new worlds lack leaves */

static uint64_t rnd(struct world *w, uint64_t below)
{
	w->x ^= w->x << 13;
	w->x ^= w->x >> 7;
	w->x ^= w->x << 17;
	return w->x % below;
}

/* What of a chunk is stored, into to; returns how many bytes. */
static uint64_t make_chunk(struct world *w, const struct image *m, uint64_t chunk, uint8_t *to,
			   uint32_t *ret_missing)
{
	uint64_t end = m->len - chunk * CHUNK < CHUNK ? m->len - chunk * CHUNK : CHUNK, n = 0;

	*ret_missing = 0;
	for (uint32_t i = 0; i * LEAF < end; i++) {
		uint64_t len = end - i * LEAF < LEAF ? end - i * LEAF : LEAF;

		if (lacking && rnd(w, 8) == 0) {
			*ret_missing |= 1u << i;
			continue;
		}
		memcpy(to + n, m->bytes + chunk * CHUNK + i * LEAF, len);
		n += len;
	}
	return n;
}

static bool is_stored(const struct image *m, uint64_t leaf)
{
	struct chunk_place p;

	if (!m->places)
		return true;
	p = chunk_place_get(m->places, leaf * LEAF / CHUNK);
	return !(p.missing >> leaf % (CHUNK / LEAF) & 1);
}

/* Chunks in the file in a shuffled order, some of them neighbours; compressed if that pays. */
static void make_file(struct world *w, struct image *m, bool packed, const char *path)
{
	uint64_t n = (m->len + CHUNK - 1) / CHUNK, at = 4096;
	struct compressor *c;
	uint8_t *file = calloc(1, 2 * m->len + 4096 * (n + 4)), *out;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_int_equal(compressor_new(CHUNK, 1, &c), 0);
	out = malloc(compressor_bound(CHUNK));
	m->places = calloc(n + 1, CHUNK_PLACE_BYTES);
	for (uint64_t i = 0; i < n; i++) {
		struct chunk_place p = {.offset = at};
		uint8_t raw[CHUNK];
		const uint8_t *bytes = raw;
		uint64_t len = make_chunk(w, m, i, raw, &p.missing);
		size_t stored = 0;

		p.stored = (uint32_t)len;
		if (packed && len)
			p.encoding = (uint16_t)compress_chunk(c, bytes, len, 4, out,
							      compressor_bound(CHUNK), &stored);
		if (p.encoding != ENCODING_RAW) {
			p.stored = (uint32_t)stored;
			bytes = out;
			p.digest = digest_of(out, stored);
		}
		memcpy(file + at, bytes, p.stored);
		chunk_place_put(m->places + i * CHUNK_PLACE_BYTES, &p);
		at += p.stored;
		if (rnd(w, 3) == 0)
			at = (at + 4095 + 4096 * rnd(w, 2)) / 4096 * 4096;
	}
	assert_int_equal(pwrite(fd, file, at, 0), (ssize_t)at);
	close(fd);
	compressor_free(c);
	free(file);
	free(out);
}

static void make_source(struct world *w, int i, enum kind kind)
{
	struct image *m = &w->images[i];
	struct source *s = &w->sources[i];

	m->len = 1 + rnd(w, 40 * CHUNK);
	m->bytes = calloc(1, m->len + LEAF);
	for (uint64_t at = 0; at < m->len; at++) /* compressible here and there */
		m->bytes[at] = (uint8_t)(at / 9000 % 2 ? at % 7 : rnd(w, 256));
	m->leaves = calloc((m->len + LEAF - 1) / LEAF, 16);
	for (uint64_t leaf = 0; leaf * LEAF < m->len; leaf++) {
		uint64_t len = m->len - leaf * LEAF < LEAF ? m->len - leaf * LEAF : LEAF;
		struct digest d = digest_of(m->bytes + leaf * LEAF, len);

		memcpy(m->leaves + leaf * 16, d.b, 16);
	}
	m->in = (struct load_source){ .kind = kind >= RAW_FILE ? LOAD_FILE : LOAD_MEMORY,
				      .image_len = m->len,
				      .geometry = { .leaf = LEAF, .chunk = CHUNK },
				      .leaves = m->leaves };
	*s = (struct source){ .in = &m->in };
	if (kind == MAPPED) {
		s->fd = -1;
		s->mapped = m->bytes;
	} else if (kind == MEMORY) {
		s->fd = memfd_create("image", MFD_CLOEXEC);
		assert_int_equal(pwrite(s->fd, m->bytes, m->len, 0), (ssize_t)m->len);
	} else {
		assert_true(asprintf(&m->path, "%s/file%d", w->dir, i) > 0);
		make_file(w, m, kind == PACKED_FILE, m->path);
		m->in.places = m->places;
		s->fd = open(m->path, O_RDWR | O_CLOEXEC | O_DIRECT);
		if (s->fd < 0)
			s->fd = open(m->path, O_RDWR | O_CLOEXEC);
		assert_true(s->fd >= 0);
	}
}

/* Row by row, as the definition says. */
static void oracle_piece(struct world *w, const struct plan_piece *p)
{
	uint64_t at[CKPT_NDIM_MAX] = { 0 };

	for (;;) {
		uint64_t src = p->src, dst = p->dst;
		uint32_t k;

		for (k = 0; k < p->ndim; k++) {
			src += at[k] * p->src_stride[k];
			dst += at[k] * p->dst_stride[k];
		}
		memcpy(w->want[p->target] + dst, w->images[p->source].bytes + src, p->run);
		for (k = p->ndim; k-- > 0;) {
			if (++at[k] < p->count[k])
				break;
			at[k] = 0;
		}
		if (k == UINT32_MAX)
			return;
	}
}

static uint64_t rows_of(const struct plan_piece *p)
{
	uint64_t rows = 1;

	for (uint32_t k = 0; k < p->ndim; k++)
		rows *= p->count[k];
	return rows;
}

/* Where in its source a row begins. */
static uint64_t row_src(const struct plan_piece *p, uint64_t row)
{
	uint64_t src = p->src;

	for (uint32_t k = p->ndim; k-- > 0;) {
		src += row % p->count[k] * p->src_stride[k];
		row /= p->count[k];
	}
	return src;
}

/* Whether the source stores all that the piece touches. */
static bool is_there(const struct world *w, const struct plan_piece *p)
{
	for (uint64_t row = 0; row < rows_of(p); row++) {
		uint64_t src = row_src(p, row);

		for (uint64_t leaf = src / LEAF; leaf <= (src + p->run - 1) / LEAF; leaf++)
			if (!is_stored(&w->images[p->source], leaf))
				return false;
	}
	return true;
}

/* Bands of a target that no two pieces share. */
static void make_pieces(struct world *w)
{
	uint64_t next[TARGETS] = { 0 };

	w->n_pieces = 0;
	while (w->n_pieces < 60) {
		struct plan_piece p = { .source = (uint32_t)rnd(w, SOURCES),
					.target = (uint32_t)rnd(w, TARGETS) };
		uint64_t len = w->images[p.source].len, span, band;

		p.run = 1 + rnd(w, rnd(w, 2) ? 40 : 6 * LEAF);
		p.ndim = (uint32_t)rnd(w, 3);
		span = band = p.run;
		for (uint32_t k = p.ndim; k-- > 0;) {
			p.count[k] = 2 + rnd(w, 5);
			p.src_stride[k] = span + rnd(w, rnd(w, 2) ? 30 : 3 * CHUNK);
			p.dst_stride[k] = band + rnd(w, 8);
			span += (p.count[k] - 1) * p.src_stride[k];
			band += (p.count[k] - 1) * p.dst_stride[k];
		}
		if (span > len || next[p.target] + band > TARGET_BYTES) {
			if (rnd(w, 50) == 0)
				break;
			continue;
		}
		p.src = rnd(w, len - span + 1);
		if (rnd(w, 4) == 0 && p.src / LEAF * LEAF + span <= len)
			p.src = p.src / LEAF * LEAF; /* whole leaves */
		if (!is_there(w, &p))
			continue;
		p.dst = next[p.target];
		next[p.target] += band;
		oracle_piece(w, &p);
		w->pieces[w->n_pieces++] = p;
	}
}

static void make_world(struct world *w, uint64_t seed)
{
	*w = (struct world){ .x = seed * 0x9e3779b97f4a7c15u + 1 };
	w->dir = test_dir_make(NULL);
	for (int i = 0; i < SOURCES; i++)
		make_source(w, i, (enum kind)i);
	for (int i = 0; i < TARGETS; i++) {
		w->have[i] = calloc(1, TARGET_BYTES);
		w->want[i] = calloc(1, TARGET_BYTES);
		w->targets[i] = (struct place_target){ .ptr = w->have[i] };
	}
	make_pieces(w);
}

static void drop_world(struct world *w)
{
	for (int i = 0; i < SOURCES; i++) {
		free(w->images[i].bytes);
		free(w->images[i].leaves);
		free(w->images[i].places);
		free(w->images[i].path);
		if (w->sources[i].fd >= 0)
			close(w->sources[i].fd);
	}
	for (int i = 0; i < TARGETS; i++) {
		free(w->have[i]);
		free(w->want[i]);
	}
	test_dir_remove(w->dir);
}

/* Files through the page cache, as one of several that read them. */
static void share_world(struct world *w)
{
	for (int i = RAW_FILE; i <= PACKED_FILE; i++) {
		close(w->sources[i].fd);
		w->sources[i].fd = open(w->images[i].path, O_RDONLY | O_CLOEXEC);
		assert_true(w->sources[i].fd >= 0);
		w->sources[i].cached = true;
	}
	w->place = (uint32_t)rnd(w, 9);
	w->window = 1 + rnd(w, rnd(w, 2) ? 5 * CHUNK : 100 * CHUNK);
}

static struct placing placing_of(struct world *w, uint32_t threads)
{
	return (struct placing){.sources = w->sources,
				.n_sources = SOURCES,
				.pieces = w->pieces,
				.n_pieces = w->n_pieces,
				.targets = w->targets,
				.threads = threads,
				.memory = 64u << 20,
				.place = w->place,
				.window = w->window,
				.trial = w->trial,
				.pace = w->trial ? &w->pace : NULL,
				.deadline = NEVER};
}

static int run(struct world *w, uint32_t threads, struct placed *ret, struct err *e)
{
	struct placing p = placing_of(w, threads);

	err_clear(e);
	*ret = (struct placed){ 0 };
	return placer_run(&p, ret, e);
}

/* Instead of all that make_world() made. */
static void wants_only(struct world *w, struct plan_piece p)
{
	w->pieces[0] = p;
	w->n_pieces = 1;
}

/* Found, and whose it is is said. */
static void finds_damage(struct world *w, uint32_t threads, uint32_t source)
{
	struct placed placed;
	struct err e;

	assert_int_equal(run(w, threads, &placed, &e), CKPT_ECORRUPT);
	assert_int_equal(placed.bad_source, source);
}

/* Which leaves the pieces touch, byte by byte. */
static void oracle_leaves(const struct world *w, int source, bool *touched)
{
	for (size_t i = 0; i < w->n_pieces; i++) {
		const struct plan_piece *p = &w->pieces[i];

		if ((int)p->source != source)
			continue;
		for (uint64_t row = 0; row < rows_of(p); row++) {
			uint64_t src = row_src(p, row);

			for (uint64_t at = src; at < src + p->run; at++)
				touched[at / LEAF] = true;
		}
	}
}

static void test_any_pieces_from_any_source(void **state)
{
	uint64_t seed = test_seed(1);
	struct placed placed;
	struct err e;
	struct world w;

	(void)state;
	for (uint64_t i = 0; i < 60; i++) {
		uint64_t raw = 0;

		make_world(&w, seed * 1000 + i);
		if (i % 2)
			share_world(&w);
		else
			w.trial = 1 + rnd(&w, 2) * CHUNK; /* all ways to read, one after another */
		assert_int_equal(run(&w, 1 + (uint32_t)(i % 4), &placed, &e), 0);
		for (int t = 0; t < TARGETS; t++)
			assert_memory_equal(w.have[t], w.want[t], TARGET_BYTES);
		/* Of what is not compressed exactly the touched leaves were read. */
		for (int s = 0; s < SOURCES; s++) {
			bool touched[64 * 40] = { 0 };

			oracle_leaves(&w, s, touched);
			for (uint64_t leaf = 0; leaf * LEAF < w.images[s].len; leaf++)
				if (touched[leaf])
					raw += w.images[s].len - leaf * LEAF < LEAF
						       ? w.images[s].len - leaf * LEAF
						       : LEAF;
		}
		assert_true(placed.bytes_read <= raw + 40 * (CHUNK + 8192));
		assert_false(placed.bad);
		drop_world(&w);
	}
}

static void test_touched_index(void **state)
{
	uint64_t seed = test_seed(2);
	struct touched *t;
	struct world w;

	(void)state;
	for (uint64_t i = 0; i < 20; i++) {
		make_world(&w, seed * 1000 + i);
		assert_int_equal(touched_make(w.sources, SOURCES, w.pieces, w.n_pieces, &t), 0);
		for (int s = 0; s < SOURCES; s++) {
			bool touched[64 * 40] = { 0 };
			uint64_t next = 0;

			oracle_leaves(&w, s, touched);
			for (uint64_t leaf = 0; leaf < t[s].n_leaves; leaf++) {
				assert_int_equal(touched_leaf(&t[s], leaf), touched[leaf]);
				if (touched[leaf]) {
					assert_int_equal(touched_next(&t[s], next), leaf);
					next = leaf + 1;
				}
			}
			assert_int_equal(touched_next(&t[s], next), t[s].n_leaves);
		}
		touched_free(t, SOURCES);
		drop_world(&w);
	}
}

/* Short gaps of a file are read over, as long as they are few against what is wanted. */
static void test_gaps(void **state)
{
	uint64_t seed = test_seed(5), with = 0, without = 0;
	struct touched *t;
	struct world w;

	(void)state;
	for (uint64_t i = 0; i < 60; i++) {
		make_world(&w, seed * 1000 + i);
		assert_int_equal(touched_make(w.sources, SOURCES, w.pieces, w.n_pieces, &t), 0);
		for (uint32_t s = 0; s < SOURCES; s++) {
			uint64_t wanted = 0, rows, pieces = 0, read = 0, touched = 0, n;

			for (size_t k = 0; k < w.n_pieces; k++) {
				if (w.pieces[k].source != s)
					continue;
				rows = rows_of(&w.pieces[k]);
				wanted += rows * w.pieces[k].run;
				pieces += rows;
			}
			for (uint64_t leaf = touched_next(&t[s], 0); leaf < t[s].n_leaves;
			     leaf = touched_next(&t[s], leaf + n)) {
				n = touched_run(&t[s], leaf, t[s].n_leaves);
				assert_true(touched_leaf(&t[s], leaf + n - 1));
				assert_true(n == 1 || touched_run(&t[s], leaf, n - 1) < n);
				read += n * LEAF;
			}
			for (uint64_t leaf = 0; leaf < t[s].n_leaves; leaf++)
				touched += touched_leaf(&t[s], leaf) * (uint64_t)LEAF;
			assert_true(read <= touched + wanted / 20);
			assert_true(read <= wanted + wanted / 20 + 2 * LEAF * pieces);
			assert_true(s == RAW_FILE || s == PACKED_FILE || read == touched);
			with += read > touched;
			without += read == touched;
		}
		touched_free(t, SOURCES);
		drop_world(&w);
	}
	printf("%d sources are read over a gap, %d are not\n", (int)with, (int)without);
	assert_true(with > 10 && without > 10);
}

/* Whatever place and window: every touched leaf once, and no compressed chunk in two ranges. */
static void test_ranges(void **state)
{
	uint64_t seed = test_seed(4);
	struct touched *t;
	struct world w;

	(void)state;
	for (uint64_t i = 0; i < 100; i++) {
		uint8_t seen[SOURCES][64 * 40] = {{0}};
		struct ranges_options o = {0};
		struct source_range range;
		struct ranges r;
		uint64_t last = 0;
		uint32_t s;

		make_world(&w, seed * 1000 + i);
		share_world(&w);
		o.place = i % 3 ? w.place : 0;
		o.window_bytes = i % 5 ? w.window : 0;
		o.range_bytes = 1 + rnd(&w, 3 * CHUNK);
		assert_int_equal(touched_make(w.sources, SOURCES, w.pieces, w.n_pieces, &t), 0);
		assert_int_equal(ranges_init(&r, w.sources, SOURCES, t, &o), 0);
		while (ranges_next(&r, &s, &range)) {
			uint64_t at = ((uint64_t)s << 32) + range.first;

			assert_true(o.place || last == 0 || at > last);
			last = at;
			for (uint64_t k = 0; k < range.n; k++)
				seen[s][range.first + k]++;
		}
		assert_false(ranges_next(&r, &s, &range));
		for (s = 0; s < SOURCES; s++) {
			for (uint64_t leaf = 0; leaf < t[s].n_leaves; leaf++) {
				assert_true(seen[s][leaf] <= 1);
				assert_true(seen[s][leaf] || !touched_leaf(&t[s], leaf));
			}
		}
		ranges_fini(&r);
		touched_free(t, SOURCES);
		drop_world(&w);
	}
}

/* The byte of the image, or one of the first leaf that is stored behind it (or at all). */
static uint64_t first_stored(const struct world *w, uint32_t source, uint64_t at)
{
	const struct image *m = &w->images[source];
	uint64_t n = (m->len + LEAF - 1) / LEAF;

	for (uint64_t i = 0; i < n && !is_stored(m, at / LEAF); i++)
		at = (at / LEAF + 1) % n * LEAF;
	return at;
}

static off_t stored_at(struct chunk_place p, uint64_t at)
{
	uint32_t before = 0;

	for (uint64_t i = 0; i < at % CHUNK / LEAF; i++)
		before += !(p.missing >> i & 1);
	return (off_t)(p.offset + before * LEAF + at % LEAF);
}

/* One byte of a source is wrong: in a touched leaf it is found and named, elsewhere it is nobody's
 * business. */
static void test_bad_leaves(void **state)
{
	uint64_t seed = test_seed(3);
	struct placed placed;
	struct err e;
	struct world w;
	int found = 0, passed = 0;

	(void)state;
	for (uint64_t i = 0; i < 120; i++) {
		bool touched[64 * 40] = { 0 };
		uint32_t s;
		uint64_t at;
		uint8_t byte;
		int r;

		make_world(&w, seed * 1000 + i);
		s = (uint32_t)(i % 3); /* compressed ones have their own test */
		oracle_leaves(&w, (int)s, touched);
		at = rnd(&w, w.images[s].len);
		byte = (uint8_t)(w.images[s].bytes[at] ^ 0x40);
		if (s == MEMORY) {
			assert_int_equal(pwrite(w.sources[s].fd, &byte, 1, (off_t)at), 1);
		} else if (s == MAPPED) {
			w.images[s].bytes[at] = byte;
		} else {
			struct chunk_place p = chunk_place_get(w.images[s].places, at / CHUNK);
			int fd = open(w.images[s].path, O_RDWR | O_CLOEXEC);

			at = first_stored(&w, s, at);
			byte = (uint8_t)(w.images[s].bytes[at] ^ 0x40);
			p = chunk_place_get(w.images[s].places, at / CHUNK);
			assert_int_equal(pwrite(fd, &byte, 1, stored_at(p, at)), 1);
			close(fd);
		}
		r = run(&w, 1 + (uint32_t)(i % 3), &placed, &e);
		if (touched[at / LEAF]) {
			assert_int_equal(r, CKPT_ECORRUPT);
			assert_true(placed.bad);
			assert_int_equal(placed.bad_source, s);
			assert_int_equal(placed.bad_leaf, at / LEAF);
			found++;
		} else {
			assert_int_equal(r, 0);
			passed++;
		}
		drop_world(&w);
	}
	assert_true(found > 10 && passed > 10);
}

/* Files that lack leaves that no piece touches: the others lie one behind the other. */
static void test_files_that_lack_leaves(void **state)
{
	lacking = true;
	test_any_pieces_from_any_source(state);
	test_bad_leaves(state);
	lacking = false;
}

static void test_bad_compressed_chunks_and_short_files(void **state)
{
	struct world w;
	int found = 0;

	(void)state;
	for (uint64_t i = 0; i < 40; i++) {
		struct plan_piece all = { .source = PACKED_FILE };
		struct chunk_place p;
		uint64_t chunk;
		uint8_t byte;
		int fd;

		make_world(&w, 500 + i);
		all.run = w.images[PACKED_FILE].len < TARGET_BYTES ? w.images[PACKED_FILE].len
								   : TARGET_BYTES;
		wants_only(&w, all);
		chunk = rnd(&w, (all.run + CHUNK - 1) / CHUNK);
		p = chunk_place_get(w.images[PACKED_FILE].places, chunk);
		fd = open(w.images[PACKED_FILE].path, O_RDWR | O_CLOEXEC);
		if (i % 2) {
			assert_int_equal(ftruncate(fd, (off_t)p.offset), 0);
		} else {
			off_t at = (off_t)(p.offset + rnd(&w, p.stored));

			if ((uint64_t)at - p.offset + chunk * CHUNK >= all.run)
				at = (off_t)p.offset; /* a raw chunk may end beyond the piece */
			assert_int_equal(pread(fd, &byte, 1, at), 1);
			byte ^= 1;
			assert_int_equal(pwrite(fd, &byte, 1, at), 1);
		}
		close(fd);
		finds_damage(&w, 2, PACKED_FILE);
		found += p.encoding != ENCODING_RAW;
		drop_world(&w);
	}
	assert_true(found > 5);
}

/* What is stored is checked before it is given to the decompressor, not only what comes out. */
static void test_digest_of_what_is_stored(void **state)
{
	struct placed placed;
	struct err e;
	struct world w;
	int found = 0;

	(void)state;
	for (uint64_t i = 0; i < 10; i++) {
		struct chunk_place p;

		make_world(&w, 900 + i);
		if (w.images[PACKED_FILE].len < 4 * CHUNK) {
			drop_world(&w);
			continue;
		}
		p = chunk_place_get(w.images[PACKED_FILE].places + 3 * CHUNK_PLACE_BYTES, 0);
		wants_only(&w,
			   (struct plan_piece){.source = PACKED_FILE, .src = 3 * CHUNK, .run = 1});
		assert_int_equal(run(&w, 1, &placed, &e), 0);
		if (p.encoding != ENCODING_RAW) {
			p.digest.b[3] ^= 1;
			chunk_place_put(w.images[PACKED_FILE].places + 3 * CHUNK_PLACE_BYTES, &p);
			finds_damage(&w, 1, PACKED_FILE);
			found++;
		}
		drop_world(&w);
	}
	assert_true(found > 0);
}

static void test_strided_targets(void **state)
{
	struct shard s = { .name = "t", .name_len = 1, .dtype = CKPT_F32,
			   .global = { 2, { 64, 100 } }, .box = { 2, { 0, 0 }, { 64, 100 } } };
	int64_t strides[2] = { 4, 300 }; /* transposed, with gaps */
	struct placed placed;
	struct err e;
	struct world w;

	(void)state;
	make_world(&w, 77);
	assert_int_equal(shard_check(&s, &e), 0);
	while (w.images[PACKED_FILE].len < s.bytes) {
		drop_world(&w);
		make_world(&w, w.x);
	}
	w.targets[0].strided = true;
	assert_int_equal(strided_init(&w.targets[0].layout, &s, strides), 0);
	wants_only(&w, (struct plan_piece){.source = PACKED_FILE, .run = s.bytes});
	assert_int_equal(run(&w, 3, &placed, &e), 0);
	for (int i = 0; i < 64; i++)
		for (int k = 0; k < 100; k++)
			assert_memory_equal(w.have[0] + i * 4 + k * 300,
					    w.images[PACKED_FILE].bytes + (i * 100 + k) * 4, 4);
	drop_world(&w);
}

static int count_looks(void *arg)
{
	return ++*(int *)arg;
}

/* The caller's thread looks when it is due, and the placing ends. */
static void test_interrupt(void **state)
{
	int looks = 0;
	struct interrupt i = {.hook = count_looks, .arg = &looks, .next_ns = NEVER - 1};
	struct placed placed;
	struct err e;
	struct world w;
	struct placing p;

	(void)state;
	make_world(&w, 5);
	p = placing_of(&w, 3);
	p.interrupt = &i;
	assert_int_equal(placer_run(&p, &placed, &e), 0);
	assert_int_equal(looks, 0); /* it is not due */
	p = placing_of(&w, 1);
	p.interrupt = &i;
	i.next_ns = 1;
	assert_int_equal(placer_run(&p, &placed, &e), CKPT_ETIMEDOUT);
	assert_int_equal(looks, 1);
	drop_world(&w);
}

static void test_deadline_and_memory(void **state)
{
	struct placed placed;
	struct err e;
	struct world w;
	struct placing p;
	bool fired = true;

	(void)state;
	make_world(&w, 5);
	p = placing_of(&w, 3);
	p.deadline = 1;
	assert_int_equal(placer_run(&p, &placed, &e), CKPT_ETIMEDOUT);
	p.deadline = NEVER;
	for (uint64_t n = 1; fired; n++) {
		int r;

		err_clear(&e);
		alloc_fail_at(n, false);
		r = placer_run(&p, &placed, &e);
		fired = alloc_fired();
		alloc_fail_at(0, false);
		assert_true(r == 0 || (fired && r == -ENOMEM));
	}
	for (int t = 0; t < TARGETS; t++)
		assert_memory_equal(w.have[t], w.want[t], TARGET_BYTES);
	drop_world(&w);
}

/* ---- Memory of another process, whole ---- */

/* Whether the kernel gives a huge page for memory that was not marked for it. */
static bool gives_huge_pages(void)
{
	uint8_t *room = mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *at = (uint8_t *)(((uintptr_t)room + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
	struct huge_taker taker = {0};
	bool gives;

	assert_true(room != MAP_FAILED);
	huge_take(&taker, at);
	gives = huge_is(at, HUGE_PAGE);
	munmap(room, 2 * HUGE_PAGE);
	return gives;
}

#define WHOLE ((6u << 20) + 1500)
#define WHOLE_LEAVES ((WHOLE + LEAF - 1) / LEAF)

struct whole {
	struct load_source in;
	struct source source;
	struct plan_piece pieces[2];
	uint8_t *bytes, *leaves, *have, *again;
};

static void make_whole(struct whole *w, bool huge, int seals)
{
	uint8_t *at;

	*w = (struct whole){ .bytes = malloc(WHOLE), .leaves = malloc(WHOLE_LEAVES * 16),
			     .have = calloc(1, WHOLE), .again = calloc(1, WHOLE) };
	w->source.fd = memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(w->source.fd, WHOLE), 0);
	at = huge_map(w->source.fd, WHOLE, PROT_READ | PROT_WRITE);
	assert_non_null(at);
	if (huge)
		huge_fill(at, WHOLE);
	for (uint64_t i = 0; i < WHOLE; i++)
		w->bytes[i] = (uint8_t)(i * 2654435761u >> 13);
	memcpy(at, w->bytes, WHOLE);
	munmap(at, WHOLE);
	assert_int_equal(fcntl(w->source.fd, F_ADD_SEALS, seals), 0);
	digest_leaves(w->bytes, WHOLE, LEAF, 0, WHOLE_LEAVES - 1, (void *)w->leaves);
	w->in = (struct load_source){ .kind = LOAD_MEMORY, .image_len = WHOLE,
				      .geometry = { .leaf = LEAF, .chunk = 256 * LEAF },
				      .leaves = w->leaves };
	w->source.in = &w->in;
	/* All of it to one place, and what begins inside a leaf to another one. */
	w->pieces[0] = (struct plan_piece){ .run = WHOLE };
	w->pieces[1] = (struct plan_piece){ .target = 1, .src = 700, .dst = 5, .run = 500000 };
}

static long faults(void)
{
	struct rusage u;

	assert_int_equal(getrusage(RUSAGE_SELF, &u), 0);
	return u.ru_minflt;
}

static void drop_whole(struct whole *w)
{
	source_unmap(&w->source);
	assert_null(w->source.mapped);
	close(w->source.fd);
	free(w->bytes);
	free(w->leaves);
	free(w->have);
	free(w->again);
}

static int run_whole(struct whole *w, struct placed *ret)
{
	struct place_target targets[] = { { .ptr = w->have }, { .ptr = w->again } };
	struct placing p = {.sources = &w->source,
			    .n_sources = 1,
			    .pieces = w->pieces,
			    .n_pieces = 2,
			    .targets = targets,
			    .threads = 3,
			    .memory = 64u << 20,
			    .deadline = NEVER};
	struct err e = { 0 };

	*ret = (struct placed){ 0 };
	return placer_run(&p, ret, &e);
}

static const int seals_of_slots = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE;

static void check_whole(struct whole *w)
{
	struct placed placed;

	assert_int_equal(run_whole(w, &placed), 0);
	assert_memory_equal(w->have, w->bytes, WHOLE);
	assert_memory_equal(w->again + 5, w->bytes + 700, 500000);
	assert_int_equal(w->again[4] | w->again[500005], 0);
	assert_int_equal(placed.bytes_read, WHOLE);
}

/* Small pages are read straight to their place, huge ones are mapped: where there are any. */
static void test_whole_memory(void **state)
{
	struct whole w;

	(void)state;
	for (int huge = 0; huge < 2; huge++) {
		make_whole(&w, huge, seals_of_slots);
		source_map(&w.source);
		if (!huge)
			assert_null(w.source.mapped);
		check_whole(&w);
		drop_whole(&w);
	}
}

/* What could shrink would end us by SIGBUS: it is never mapped. */
static void test_unsealed_memory_is_not_mapped(void **state)
{
	struct whole w;

	(void)state;
	make_whole(&w, true, F_SEAL_GROW);
	source_map(&w.source);
	assert_null(w.source.mapped);
	check_whole(&w);
	drop_whole(&w);
}

/* What is shorter than its plan says ends in no page: reading it fails, mapping it would kill. */
static void test_short_memory_is_not_mapped(void **state)
{
	struct placed placed;
	struct whole w;

	(void)state;
	for (uint64_t has = 0; has <= HUGE_PAGE; has += HUGE_PAGE) {
		make_whole(&w, true, 0);
		assert_int_equal(ftruncate(w.source.fd, (off_t)has), 0);
		assert_int_equal(fcntl(w.source.fd, F_ADD_SEALS, seals_of_slots), 0);
		source_map(&w.source);
		assert_null(w.source.mapped);
		assert_int_equal(run_whole(&w, &placed), CKPT_ECORRUPT);
		assert_true(placed.bad);
		drop_whole(&w);
	}
}

static bool is_resident(const uint8_t *at)
{
	unsigned char there = 0;

	assert_int_equal(mincore((void *)((uintptr_t)at / 4096 * 4096), 1, &there), 0);
	return there & 1;
}

/* Where nothing was ever written pages come in large parts, and none beside what is placed. */
static void test_memory_that_was_never_touched(void **state)
{
	static const size_t offsets[] = {0, 3 * 4096 + 64};
	const size_t size = 6 * HUGE_PAGE;

	(void)state;
	for (int i = 0; i < 2; i++) {
		uint8_t *own, *room = mmap(NULL, size, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		uint8_t *at =
			(uint8_t *)(((uintptr_t)room + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
		struct whole w;
		long before;

		assert_true(room != MAP_FAILED);
		make_whole(&w, false, seals_of_slots);
		own = w.have;
		w.have = at + offsets[i];
		before = faults();
		check_whole(&w);
		if (gives_huge_pages())
			assert_in_range(faults() - before, 1, i ? 1000 : 600); /* of 1537 pages */
		if (i)
			assert_false(is_resident(at));
		assert_false(is_resident(w.have + WHOLE + 8192));
		w.have = own;
		drop_whole(&w);
		munmap(room, size);
	}
}

static void test_bad_leaf_read_to_its_place(void **state)
{
	struct placed placed;
	struct whole w;

	(void)state;
	make_whole(&w, false, F_SEAL_GROW);
	assert_int_equal(pwrite(w.source.fd, "\xa5\x5a", 2, WHOLE - 2), 2);
	assert_int_equal(run_whole(&w, &placed), CKPT_ECORRUPT);
	assert_true(placed.bad);
	assert_int_equal(placed.bad_leaf, WHOLE_LEAVES - 1);
	assert_int_equal(ftruncate(w.source.fd, WHOLE - 1), 0); /* shorter than it was said to be */
	assert_int_equal(run_whole(&w, &placed), CKPT_ECORRUPT);
	drop_whole(&w);
}

/* ---- Somebody writes to the source meanwhile ---- */

struct scribbler {
	volatile uint8_t *byte;
	atomic_bool stop;
};

static void *write_on(void *arg)
{
	struct scribbler *w = arg;

	while (!atomic_load(&w->stop))
		*w->byte ^= 0x10;
	return NULL;
}

/* Whatever is not refused is right: each byte is read from a mapping once. */
static void load_what_changes(bool many)
{
	enum { LEN = 8 * LEAF, LOADS = 20000 };
	uint8_t *bytes = malloc(LEN), *image = malloc(LEN), *have = malloc(LEN), leaves[8 * 16];
	struct load_source in = { .kind = LOAD_MEMORY, .image_len = LEN, .leaves = leaves,
				  .geometry = { .leaf = LEAF, .chunk = LEN } };
	struct source source = { .in = &in, .fd = -1, .mapped = image };
	struct plan_piece rows[100] = {{.src = 3,
					.run = 40,
					.ndim = 1,
					.count = {100},
					.src_stride = {80},
					.dst_stride = {40}}};
	struct place_target target = { .ptr = have };
	struct placing p = {.sources = &source,
			    .n_sources = 1,
			    .pieces = rows,
			    .n_pieces = many ? 100 : 1,
			    .targets = &target,
			    .threads = 1,
			    .memory = 1,
			    .deadline = NEVER};
	struct scribbler writer = { .byte = image + 3 + 50 * 80 };
	int good = 0, refused = 0;
	pthread_t t;

	/* As many pieces as rows: they do not go through the same code. */
	for (uint64_t k = 0; k < 100 && many; k++)
		rows[k] = (struct plan_piece){.src = 3 + 80 * k, .dst = 40 * k, .run = 40};
#ifdef __SANITIZE_THREAD__
	skip(); /* it races on purpose */
#endif
	test_fill(bytes, LEN, 5);
	memcpy(image, bytes, LEN);
	digest_leaves(bytes, LEN, LEAF, 0, 7, (void *)leaves);
	assert_int_equal(pthread_create(&t, NULL, write_on, &writer), 0);
	for (int i = 0; i < LOADS; i++) {
		struct placed placed = { 0 };
		struct err e = { 0 };
		int r = placer_run(&p, &placed, &e);

		assert_true(r == 0 || r == CKPT_ECORRUPT);
		for (int k = 0; k < 100 && r == 0; k++)
			assert_memory_equal(have + 40 * k, bytes + 3 + 80 * k, 40);
		good += r == 0;
		refused += r != 0;
	}
	atomic_store(&writer.stop, true);
	pthread_join(t, NULL);
	printf("%d loads good, %d refused\n", good, refused);
	assert_true(good > 0 && refused > 0);
	free(bytes);
	free(image);
	free(have);
}

static void test_source_that_changes(void **state)
{
	(void)state;
	load_what_changes(false);
	load_what_changes(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_source_that_changes),
		cmocka_unit_test(test_whole_memory),
		cmocka_unit_test(test_unsealed_memory_is_not_mapped),
		cmocka_unit_test(test_short_memory_is_not_mapped),
		cmocka_unit_test(test_memory_that_was_never_touched),
		cmocka_unit_test(test_bad_leaf_read_to_its_place),
		cmocka_unit_test(test_any_pieces_from_any_source),
		cmocka_unit_test(test_files_that_lack_leaves),
		cmocka_unit_test(test_touched_index),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_gaps),
		cmocka_unit_test(test_bad_leaves),
		cmocka_unit_test(test_bad_compressed_chunks_and_short_files),
		cmocka_unit_test(test_digest_of_what_is_stored),
		cmocka_unit_test(test_strided_targets),
		cmocka_unit_test(test_interrupt),
		cmocka_unit_test(test_deadline_and_memory),
	};

	return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
