/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard.h - the parts of `ckptctl reshard`: what the target ranks hold (reshard_target.c), which
 * parts of which tensors are moved together (reshard_batch.c), moving them (reshard_run.c), what is
 * said of it (reshard.c).
 */
#ifndef TOOLS_RESHARD_H
#define TOOLS_RESHARD_H

#include "model/layout.h"
#include "tools/making.h"
#include "tools/reading.h"

/* One rank of the new checkpoint. */
struct reshard_target {
	void *bytes; /* of its declaration: tensors in the order of reading_tensor() */
	size_t len;
	struct declaration declaration;
	struct making_blob *blobs; /* names and bytes are owned */
	uint32_t n_blobs;
	uint64_t image_len;
	uint64_t position; /* image bytes that an earlier run wrote */
};

/* How --memory is divided; bytes. */
struct reshard_memory {
	uint64_t given, least;
	uint64_t fixed;           /* names, declarations, blobs */
	uint64_t sources;         /* rank tables of the source */
	uint64_t reading, making; /* buffers */
	uint64_t targets;         /* tables of the targets that are written at the same time */
	uint64_t batch;           /* each of two */
};

struct reshard {
	struct reading *reading;
	struct layout *layout;
	const char *layout_name; /* as given */
	struct reshard_target *targets;
	uint32_t world;
	struct reshard_memory memory;
	uint32_t group; /* targets that are written at the same time, at most */
	int compression;
};

/* ---- reshard_target.c ---- */

/* -EINVAL: the layout cannot cut a tensor, or leaves a part of one to nobody. */
MUST_CHECK int targets_make(struct reshard *x, const char *layout_name, struct err *e);
void targets_free(struct reshard *x);
/* Divides the memory; -EINVAL says how much is needed. */
MUST_CHECK int memory_divide(struct reshard *x, uint64_t given, struct err *e);
/* The targets from `first` on that are written together: [first, result). */
uint32_t group_end(const struct reshard *x, uint32_t first);
uint64_t target_bytes(const struct reshard *x); /* of all images */

/* ---- reshard_batch.c ---- */

/* Bytes for a target's image, `from` in the batch's buffer. */
struct reshard_put {
	uint32_t rank;
	uint64_t image_offset, len;
	const uint8_t *from;
};

struct reshard_batch {
	uint8_t *buffer;
	uint64_t cap, used;
	struct reading_want *wants;
	size_t n_wants, cap_wants;
	struct reshard_put *puts; /* of each rank ascending */
	size_t n_puts, cap_puts;
};

/* A target's shard of the tensor at hand. */
struct reshard_part {
	struct shard shard;
	uint32_t rank, pass;
};

struct reshard_cursor {
	const struct reshard *x;
	uint32_t first, end; /* targets */
	size_t tensor;
	bool entered;               /* what follows is of it */
	struct reshard_part *parts; /* by region: equal ones side by side */
	size_t n_parts, cap_parts;
	uint32_t pass, n_passes;
	bool whole;        /* it has to be in one batch */
	uint64_t at, stop; /* elements of the tensor that this pass still has to do */
};

void cursor_init(struct reshard_cursor *c, const struct reshard *x, uint32_t first, uint32_t end);
void cursor_fini(struct reshard_cursor *c);
MUST_CHECK int batch_init(struct reshard_batch *b, uint64_t bytes);
void batch_fini(struct reshard_batch *b);
/* Empties and fills it; 1, or 0 when there was nothing left. */
MUST_CHECK int batch_fill(struct reshard_batch *b, struct reshard_cursor *c, struct err *e);

/* ---- reshard_run.c ---- */

struct reshard_done {
	uint64_t read; /* bytes, of files */
	uint64_t put;  /* bytes, of images */
};

/* Only counts what reading would cost. */
MUST_CHECK int reshard_count(struct reshard *x, struct reshard_done *ret, struct err *e);
/* All of it up to the commit; shows a bar if wanted. */
MUST_CHECK int reshard_run(struct reshard *x, struct making *m, bool bar, struct reshard_done *ret,
			   struct err *e);

#endif
