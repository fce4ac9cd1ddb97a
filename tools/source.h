/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h - tensors that can be read in parts, whatever they are stored in: a checkpoint, a file
 * of another format. export, import and diff are written against this.
 *
 * An implementation embeds struct source first, fills its fields in its open function and checks
 * there all that can be checked without reading data: what it then tells is within the limits of
 * model/tensor.h (names of 1 to CKPT_NAME_MAX bytes, none twice, bytes = product of shape and
 * dtype).
 */
#ifndef TOOLS_SOURCE_H
#define TOOLS_SOURCE_H

#include "storage/beneath.h"
#include "tools/reading.h"

/* What is no tensor; in memory while the source is open. */
struct source_blob {
	const char *name; /* NUL-terminated */
	const void *bytes;
	uint64_t len;
};

struct source;

struct source_ops {
	/* As reading_fetch(): elements [start, stop) of box of each tensor, packed, to where each
	 * want says. */
	int (*fetch)(struct source *s, const struct reading_want *wants, size_t n, struct err *e);
	void (*close)(struct source *s);
};

struct source {
	const struct source_ops *ops;
	const char *what;                     /* "job 'run7', step 120": for sentences */
	const struct reading_tensor *tensors; /* in an order in which reading is cheap */
	size_t n;
	const struct source_blob *blobs;
	size_t n_blobs;
	struct reading *reading; /* behind it, if it is a checkpoint; else NULL */
	struct beneath_rights rights; /* to read files of another format with */
};

/* A checkpoint. Its blobs are not told: each belongs to a rank. Closed with source_close(). */
MUST_CHECK int source_of_checkpoint(const struct reading_options *o, struct source **ret,
				    struct err *e);
/* The only way to ops->fetch. */
MUST_CHECK int source_pull(struct source *s, const struct reading_want *wants, size_t n,
			  struct err *e);
/* Of files of another format: what is wrong with them, whatever it is, says nothing about the
 * checkpoints here, and so is none of the errors that do. The sentence stays. */
int source_foreign_error(int r);
static inline void source_close(struct source *s) /* NULL is allowed */
{
	if (s)
		s->ops->close(s);
}

/* Patterns of fnmatch(3). A name is chosen by any of them, or by none being there, unless a pattern
 * behind a '!' is like it. */
bool name_is_chosen(const struct words *globs, const char *name, uint32_t name_len);
/* The tensors that are chosen, in the source's order, as indices; the caller frees them.
 * CKPT_ENOTFOUND: a pattern is like none of them. */
MUST_CHECK int source_choose(const struct source *s, const struct words *globs, size_t **ret,
			     size_t *ret_n, struct err *e);

/*
 * For formats that store a tensor whole and row-major: the want as runs of elements that lie one
 * behind the other in the tensor, in order. `at` is the first one's index in it; `to` is where they
 * go. What fn returns other than 0 ends it.
 */
typedef int want_run_fn(void *arg, uint64_t at, uint64_t n, void *to, struct err *e);
MUST_CHECK int want_each_run(const struct reading_want *w, const struct reading_tensor *t,
			     want_run_fn *fn, void *arg, struct err *e);

/* ---- Pieces that fit in memory ---- */

/* Elements [start, stop) of item `which`. */
struct slab {
	size_t which;
	uint64_t start, stop;
};
struct slab_item {
	uint64_t elements;
	uint32_t cost; /* bytes of buffers for one element */
};
#define SLABS_MAX 1024
/* Goes through the items in order: many small ones together, large ones in pieces. */
struct slabs {
	const struct slab_item *items;
	size_t n;
	uint64_t memory; /* bytes of buffers for one turn */
	size_t at;
	uint64_t start;
};
/* The next turn: how many slabs it has, 0 at the end. None is empty; no item comes twice in it. */
size_t slabs_next(struct slabs *s, struct slab ret[SLABS_MAX]);

#endif
