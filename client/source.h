/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h - a range of one source's image, raw, wherever it is kept.
 */
#ifndef CLIENT_SOURCE_H
#define CLIENT_SOURCE_H

#include "model/load_plan.h"

struct compressor;

struct source {
	const struct load_source *in; /* the plan's */
	int fd;
	bool cached;           /* a file that is read through the page cache */
	const uint8_t *mapped; /* not NULL: the image is mapped by this process */
	bool ours;             /* mapped by source_map(), to be undone */
};

/* A worker's memory. */
struct source_buffers {
	uint8_t *window; /* what is read, in huge pages: a page of its own at least */
	size_t window_bytes;
	uint8_t *raw;     /* what was decompressed; NULL: nothing is compressed */
	struct compressor *compressor;
};

/* Leaves that are read and placed together: [first, first + n) of a source. */
struct source_range {
	uint64_t first, n;
};

/* Maps a source in memory if that is the cheapest way to read it. */
void source_map(struct source *s);
void source_unmap(struct source *s);

/* What a worker needs for any range of these sources that is no longer than range_bytes. */
struct source_sizes {
	uint64_t window;
	uint64_t chunk; /* the longest compressed one; 0: there is none */
};
struct source_sizes source_sizes_of(const struct source *sources, uint32_t n_sources,
				    uint64_t range_bytes);
MUST_CHECK int source_buffers_init(struct source_buffers *b, const struct source_sizes *sizes);
void source_buffers_fini(struct source_buffers *b);

#define SOURCE_RANGE_MAX (2u << 20)   /* bytes that are asked for at once */
#define SOURCE_RANGE_MIN (256u << 10) /* less is not faster anywhere */
/* How long a range may be: leaves, at least one. */
uint64_t source_range_max(const struct source *s, uint64_t range_bytes);
/*
 * The range that begins with this leaf, when want of them in a row are wanted (a compressed chunk
 * ends a range and is given whole from this leaf to its end). The leaf is stored there; a range of
 * a raw chunk ends before one that is not, of a compressed one these have no meaning.
 */
struct source_range source_range_at(const struct source *s, uint64_t leaf, uint64_t want);
/* How many leaves of the range are best read at once; their number when it is all of them. Where it
 * is not all, source_prefetch() has the rest read meanwhile, if something has to read it. */
uint64_t source_step(const struct source *s, struct source_range range);
void source_prefetch(const struct source *s, struct source_range range);

/* Whether a file is read past the page cache. */
bool source_is_direct(const struct source *s);
/* From now on such a file is read through the page cache, or past it again. false: it is not. */
bool source_through_cache(const struct source *s, bool through);
/* The page cache gives back what it has of a range. */
void source_forget(const struct source *s, struct source_range range);

/*
 * *ret points to the range's first byte until the next call with these buffers. CKPT_ECORRUPT: a
 * compressed chunk does not match its digest or does not decompress; -errno of the read. *ret_read
 * grows by the bytes read.
 */
MUST_CHECK int source_read(const struct source *s, struct source_range range,
			   struct source_buffers *b, const uint8_t **ret, uint64_t *ret_read);
/* Whether source_read_to() reads it: memory of another process that is not mapped here. */
bool source_reads_anywhere(const struct source *s);
/* The same straight to dst, without a window. */
MUST_CHECK int source_read_to(const struct source *s, struct source_range range, uint8_t *dst,
			      uint64_t *ret_read);

#endif
