/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange.h - the formats that `ckptctl export` and `import` know, and what both have in common.
 *
 * A format is an entry of exchange_formats[]: a function that opens its files as a source (import),
 * one that writes a checkpoint's tensors (export), or both. Everything else is the same for all of
 * them: the command line, choosing tensors, reading in slabs that fit in memory, casts, progress,
 * the new job's checkpoint, the answer.
 */
#ifndef TOOLS_EXCHANGE_H
#define TOOLS_EXCHANGE_H

#include "tools/newfile.h"
#include "tools/progress.h"
#include "tools/source.h"

/* One export. Its format's function reads the first part and fills the second. */
struct exporting {
	struct source *from;  /* a checkpoint */
	const size_t *chosen; /* tensors of from, in its order */
	size_t n;
	const char *output;       /* path that was asked for */
	bool replace;             /* what is there already */
	uint32_t cast;            /* dtype of the floats; 0: as they are */
	uint64_t shard_size;      /* bytes; 0: not asked for */
	bool torch_1;             /* for torch 1.13 instead of 2 */
	uint64_t memory;          /* bytes of buffers that are left for it */
	json_t *metadata;         /* text -> text: what was asked for, and where it comes from */
	struct progress progress; /* export_stream() draws it */

	json_t *files;      /* export_tell() */
	uint64_t bytes;     /* of tensors, as they were written */
	uint64_t overflows; /* finite values that a cast made infinite */
	uint64_t blobs;     /* that were written; formats of tensors alone have none */
};

struct exchange_format {
	const char *name;
	/* Whether the file or folder looks like this format; what is wrong with it, open says.
	 * NULL: it cannot be imported. */
	bool (*detect)(const char *path);
	int (*open)(const char *path, struct source **ret, struct err *e);
	/* Makes the files, synced and published. NULL: it cannot be exported. */
	int (*write)(struct exporting *x, struct err *e);
};
extern const struct exchange_format exchange_formats[]; /* ends with an empty name */
/* f->detect() and f->open() with the rights of whoever has the path in hand (storage/beneath.h). */
bool exchange_detect(const struct exchange_format *f, const char *path);
/* Errors as source_foreign_error() has them, within tools/source_memory.h: that of the caller, or
 * one that ends when it is open. */
MUST_CHECK int exchange_open(const struct exchange_format *f, const char *path, struct source **ret,
			     struct err *e);

/* ---- For write functions ---- */

/* The dtype and bytes that tensor i of x->from has in the new file. */
uint32_t export_dtype(const struct exporting *x, size_t i);
uint64_t export_bytes(const struct exporting *x, size_t i);

/*
 * Calls put with the bytes of tensors (indices into x->from) as they are in the new file, packed
 * and row-major: each tensor's in order, the tensors one after the other. Those without a byte do
 * not appear. What put returns other than 0 ends it.
 */
struct export_piece {
	size_t at;       /* index into tensors */
	uint64_t offset; /* in the tensor, bytes */
	const void *bytes;
	uint64_t len;
};
typedef int export_put_fn(void *arg, const struct export_piece *p, struct err *e);
MUST_CHECK int export_stream(struct exporting *x, const size_t *tensors, size_t n,
			     export_put_fn *put, void *arg, struct err *e);
/* For the answer: a file of so many bytes, with so many tensors. */
void export_tell(struct exporting *x, const char *path, uint64_t bytes, size_t n_tensors);

/* ---- Formats ---- */

bool safetensors_detect(const char *path);
int safetensors_open(const char *path, struct source **ret, struct err *e);
int safetensors_write(struct exporting *x, struct err *e);
int dcp_write(struct exporting *x, struct err *e);
/* A blob of rank 0 with the __metadata__ of what was imported; an export says it again. */
#define SAFETENSORS_BLOB "safetensors.metadata"

#endif
