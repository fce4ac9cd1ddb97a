/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.c - reading ranges of images.
 *
 * A file is read past the page cache where nobody else wants it: the descriptor came with O_DIRECT,
 * so offset, length and address are multiples of ALIGN, and what is not wanted at the ends is
 * skipped. The buffer lies in huge pages: from small ones, which are scattered, one request becomes
 * as many parts as it has pages, and a virtual disk gave half (1.3 GiB/s, not 2.5). One that other
 * processes read too comes without O_DIRECT: the kernel is told of a whole
 * range, so that the disk gets large requests, and the range is taken over in steps that stay in
 * the second-level cache. Pages are whole in either case. Memory of another
 * process is mapped where it lies in huge pages. Small ones are read like a file, in pieces that
 * stay in the second-level cache: a copy by the kernel costs less than mapping pages that are used
 * once (1 GiB in 0.20 s against 0.37 s). Memory that this process has mapped anyway (its own slots)
 * is used in place. A file may lack leaves that no piece touches: those that it has lie one behind
 * the other (struct chunk_place).
 *
 * Any thread; each has its own buffers.
 */
#include <config.h>

#include "client/source.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/huge.h"
#include "codec/compress.h"
#include "codec/digest.h"

#define ALIGN      4096u
#define STEP       (256u << 10) /* stays in the second-level cache */
#define SEALS_READ (F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)

_Static_assert(STEP <= SOURCE_RANGE_MIN && SOURCE_RANGE_MIN <= SOURCE_RANGE_MAX, "they nest");

uint64_t source_range_max(const struct source *s, uint64_t range_bytes)
{
	return max_u64(range_bytes / s->in->geometry.leaf, 1);
}

/* Leaves that are copied before anything else is looked at: they are still in the cache then. */
static uint64_t step_leaves(const struct source *s)
{
	return max_u64(STEP / s->in->geometry.leaf, 1);
}

/* ---- Mapping ---- */

void source_map(struct source *s)
{
	size_t len = s->in->image_len;
	struct stat st;
	int seals;
	void *base;

	if (s->in->kind != LOAD_MEMORY || s->mapped)
		return;
	seals = fcntl(s->fd, F_GET_SEALS);
	if (seals < 0 || (seals & SEALS_READ) != SEALS_READ)
		return; /* pages could be pulled away from under us */
	if (fstat(s->fd, &st) < 0 || st.st_size < 0 || (uint64_t)st.st_size < len)
		return; /* there are none behind its end: reading it will say so */
	base = huge_map(s->fd, len, PROT_READ);
	if (base && !huge_is(base, len)) {
		munmap(base, len);
		base = NULL;
	}
	s->mapped = base;
	s->ours = base != NULL;
}

void source_unmap(struct source *s)
{
	if (s->ours)
		munmap((void *)s->mapped, s->in->image_len);
	s->mapped = NULL;
	s->ours = false;
}

/* ---- Buffers ---- */

static bool any_compressed(const struct source *s)
{
	uint64_t n = s->in->kind == LOAD_FILE ? div_up(s->in->image_len, s->in->geometry.chunk) : 0;

	for (uint64_t i = 0; i < n; i++)
		if (chunk_place_get(s->in->places, i).encoding != ENCODING_RAW)
			return true;
	return false;
}

struct source_sizes source_sizes_of(const struct source *sources, uint32_t n_sources,
				    uint64_t range_bytes)
{
	struct source_sizes sizes = {0};

	for (uint32_t i = 0; i < n_sources; i++) {
		const struct geometry *g = &sources[i].in->geometry;
		uint64_t leaves = source_range_max(&sources[i], range_bytes);

		if (sources[i].in->kind == LOAD_MEMORY)
			leaves = min_u64(leaves, step_leaves(&sources[i]));
		sizes.window = max_u64(sizes.window, leaves * g->leaf);
		if (any_compressed(&sources[i]))
			sizes.chunk = max_u64(sizes.chunk, g->chunk);
	}
	sizes.window = max_u64(sizes.window, sizes.chunk) + 2 * ALIGN;
	return sizes;
}

int source_buffers_init(struct source_buffers *b, const struct source_sizes *sizes)
{
	int r;

	*b = (struct source_buffers){.window_bytes = sizes->window};
	b->window = alloc_huge(b->window_bytes);
	if (!b->window)
		return -ENOMEM;
	if (sizes->chunk == 0)
		return 0;
	b->raw = alloc_zero(sizes->chunk);
	r = b->raw ? compressor_new(sizes->chunk, 1, &b->compressor) : -ENOMEM;
	if (r < 0)
		source_buffers_fini(b);
	return r;
}

void source_buffers_fini(struct source_buffers *b)
{
	alloc_huge_free(b->window, b->window_bytes);
	alloc_free(b->raw);
	compressor_free(b->compressor);
	*b = (struct source_buffers){ 0 };
}

/* ---- Ranges ---- */

static struct chunk_place place_of(const struct source *s, uint64_t chunk)
{
	return chunk_place_get(s->in->places, chunk);
}

struct source_range source_range_at(const struct source *s, uint64_t leaf, uint64_t want)
{
	uint64_t per_chunk = s->in->geometry.chunk / s->in->geometry.leaf;
	uint64_t n_leaves = div_up(s->in->image_len, s->in->geometry.leaf);
	uint64_t chunk = leaf / per_chunk, end;
	struct source_range range = {.first = leaf, .n = want};
	struct chunk_place p, next;

	assert(leaf < n_leaves && want > 0);
	if (s->in->kind == LOAD_MEMORY)
		return range;
	p = place_of(s, chunk);
	end = min_u64((chunk + 1) * per_chunk, n_leaves);
	if (p.encoding != ENCODING_RAW) {
		range.n = end - leaf;
		return range;
	}
	assert(!p.missing || !(p.missing >> leaf % per_chunk & 1));
	if (p.missing && p.missing >> leaf % per_chunk)
		end = leaf + (uint64_t)__builtin_ctz(p.missing >> leaf % per_chunk);
	/* On to the next chunk while it follows in the file as in the image. */
	while (end < leaf + range.n && p.missing == 0) {
		next = place_of(s, ++chunk);
		if (next.encoding != ENCODING_RAW || next.missing ||
		    next.offset != p.offset + p.stored)
			break;
		p = next;
		end = min_u64(end + per_chunk, n_leaves);
	}
	range.n = min_u64(range.n, end - leaf);
	return range;
}

/* Where a leaf of an image's raw chunk is in the file. */
static uint64_t offset_of(const struct source *s, uint64_t leaf)
{
	struct geometry g = s->in->geometry;
	struct chunk_place p = place_of(s, leaf / (g.chunk / g.leaf));

	return p.offset + chunk_leaf_offset(g, leaf, p.missing);
}

uint64_t source_step(const struct source *s, struct source_range range)
{
	uint64_t chunk = range.first * s->in->geometry.leaf / s->in->geometry.chunk;

	if (s->in->kind == LOAD_MEMORY)
		return min_u64(range.n, step_leaves(s));
	if (!s->cached || place_of(s, chunk).encoding != ENCODING_RAW)
		return range.n;
	return min_u64(range.n, step_leaves(s));
}

static void advise(const struct source *s, struct source_range range, int advice)
{
	struct geometry g = s->in->geometry;
	uint64_t lo = range.first * g.leaf, hi = min_u64(lo + range.n * g.leaf, s->in->image_len);

	assert(lo < hi);
	ignore_result(posix_fadvise(s->fd, (off_t)offset_of(s, range.first), (off_t)(hi - lo),
				    advice) /* it is advice */);
}

void source_prefetch(const struct source *s, struct source_range range)
{
	if (s->cached)
		advise(s, range, POSIX_FADV_WILLNEED);
}

bool source_is_direct(const struct source *s)
{
	return s->in->kind == LOAD_FILE && !s->cached;
}

/* The open file description is this process's own (struct disk_ops, export_fd). */
bool source_through_cache(const struct source *s, bool through)
{
	int flags = fcntl(s->fd, F_GETFL);

	assert(source_is_direct(s));
	if (flags < 0)
		return false;
	flags = through ? flags & ~O_DIRECT : flags | O_DIRECT;
	return fcntl(s->fd, F_SETFL, flags) == 0;
}

void source_forget(const struct source *s, struct source_range range)
{
	uint64_t chunk = range.first * s->in->geometry.leaf / s->in->geometry.chunk;

	if (place_of(s, chunk).encoding == ENCODING_RAW)
		advise(s, range, POSIX_FADV_DONTNEED);
}

/* ---- Reading ---- */

/* len bytes from offset; *ret points at the first. */
static int read_window(const struct source *s, uint64_t offset, uint64_t len,
		       struct source_buffers *b, const uint8_t **ret, uint64_t *ret_read)
{
	uint64_t align = s->in->kind == LOAD_FILE ? ALIGN : 1;
	uint64_t lo = offset / align * align, need = offset + len - lo;
	uint64_t size = align > 1 ? round_up(need, ALIGN) : need, have = 0;

	assert(size <= b->window_bytes);
	while (have < need) {
		uint64_t at = have / align * align; /* again from a multiple after a short read */
		ssize_t n = pread(s->fd, b->window + at, size - at, (off_t)(lo + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (at + (uint64_t)n <= have)
			return -EIO; /* the file is shorter than its table says */
		have = at + (uint64_t)n;
	}
	*ret_read += need;
	*ret = b->window + (offset - lo);
	return 0;
}

bool source_reads_anywhere(const struct source *s)
{
	return s->in->kind == LOAD_MEMORY && !s->mapped;
}

int source_read_to(const struct source *s, struct source_range range, uint8_t *dst,
		   uint64_t *ret_read)
{
	uint64_t at = range.first * s->in->geometry.leaf;
	uint64_t end = min_u64(at + range.n * s->in->geometry.leaf, s->in->image_len);

	assert(source_reads_anywhere(s));
	while (at < end) {
		ssize_t n = pread(s->fd, dst, end - at, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (uint64_t)n;
		dst += n;
		*ret_read += (uint64_t)n;
	}
	return 0;
}

/* Leaves of a chunk to their places in it: from the last one, so that none is overwritten. */
static void spread(uint8_t *raw, uint64_t len, uint32_t leaf, uint32_t missing)
{
	uint32_t n = (uint32_t)div_up(len, leaf), at = n - (uint32_t)__builtin_popcount(missing);

	for (uint32_t i = n; missing && i-- > 0;) {
		if (missing >> i & 1)
			continue;
		at--;
		if (at == i)
			return; /* none before it is missing */
		memmove(raw + (uint64_t)i * leaf, raw + (uint64_t)at * leaf,
			min_u64(leaf, len - (uint64_t)i * leaf));
	}
}

static int read_compressed(const struct source *s, struct source_range range, uint64_t chunk,
			   struct source_buffers *b, const uint8_t **ret, uint64_t *ret_read)
{
	struct geometry g = s->in->geometry;
	struct chunk_place p = place_of(s, chunk);
	uint64_t raw = chunk_bytes_stored(s->in->image_len, g, chunk, p.missing);
	const uint8_t *stored;
	struct digest d;
	int r;

	assert(b->compressor && p.stored <= g.chunk);
	r = read_window(s, p.offset, p.stored, b, &stored, ret_read);
	if (r < 0)
		return r;
	d = digest_of(stored, p.stored);
	if (!digest_equal(&d, &p.digest))
		return CKPT_ECORRUPT;
	r = decompress_chunk(b->compressor, p.encoding, stored, p.stored, b->raw, raw);
	if (r < 0)
		return r;
	spread(b->raw, min_u64(g.chunk, s->in->image_len - chunk * g.chunk), g.leaf, p.missing);
	*ret = b->raw + (range.first * g.leaf - chunk * g.chunk);
	return 0;
}

int source_read(const struct source *s, struct source_range range, struct source_buffers *b,
		const uint8_t **ret, uint64_t *ret_read)
{
	struct geometry g = s->in->geometry;
	uint64_t lo = range.first * g.leaf;
	uint64_t hi = min_u64(lo + range.n * g.leaf, s->in->image_len);

	assert(range.n > 0 && lo < hi);
	if (s->mapped) {
		*ret = s->mapped + lo;
		*ret_read += hi - lo;
		return 0;
	}
	if (s->in->kind == LOAD_MEMORY)
		return read_window(s, lo, hi - lo, b, ret, ret_read);
	if (place_of(s, lo / g.chunk).encoding != ENCODING_RAW)
		return read_compressed(s, range, lo / g.chunk, b, ret, ret_read);
	return read_window(s, offset_of(s, range.first), hi - lo, b, ret, ret_read);
}
