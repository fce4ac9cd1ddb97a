/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_source.h - files of torch as a source (tools/source.h): DCP folders and torch.save() files.
 *
 * Both are tensors made of parts, each a view of a storage in an archive: a folder has an archive
 * for each part, a file one for all. What is common is here: any region of a tensor, planned by
 * model/plan.h, which proves that it is there once and nothing is missing.
 */
#ifndef TOOLS_TORCH_SOURCE_H
#define TOOLS_TORCH_SOURCE_H

#include "model/plan.h"
#include "tools/source.h"
#include "tools/texts.h"
#include "tools/torch_tensor.h"

/* Of tensors that are not in row-major order in their storage, held in memory at one time. */
#define TORCH_HELD_MAX ((uint64_t)2 << 30)
/* Blobs are in memory while a source is open. */
#define TORCH_BLOBS_MAX ((uint64_t)1 << 30)
/* The blob of rank 0 that keeps what flattening took away: JSON, name -> [key or index, ...]. */
#define TORCH_PATHS_BLOB "torch.paths"

/* An archive that a part is read from. */
struct torch_open {
	struct torch_zip *zip;
	int fd; /* of the archive, ours if zip is */
	struct torch_view view;
};

struct torch_part {
	struct box box;               /* not empty */
	uint32_t file;                /* of files */
	uint64_t offset, len;         /* of its archive */
	struct torch_open *open;      /* NULL: it is not; owned */
	uint64_t image_offset, bytes; /* in the tensor's declaration */
};

struct torch_source {
	struct source s;
	char *path;   /* of the file or the folder */
	char *what;   /* "'PATH'" */
	int folder;   /* -1: it is a file */
	char **files; /* names */
	size_t n_files;
	struct texts names; /* of tensors and blobs */
	struct reading_tensor *tensors;
	struct source_blob *blobs; /* bytes are ours */
	size_t cap_blobs;
	uint64_t blob_bytes;
	struct torch_part *parts; /* of a folder */
	size_t *first_part;       /* n + 1 of them; NULL: of a file */

	/* A torch.save() file: its one archive, and the value that each tensor is. */
	struct torch_zip *zip;
	int fd;
	void *pickle_bytes; /* its data.pkl: the tree points into it */
	struct pickle pickle;
	const struct pickle_value **values;
	struct torch_part whole; /* of the tensor that is being read: its only part */

	/* The tensor that is being read; SIZE_MAX: none. */
	size_t current;
	void *declaration;
	struct plan_source plan_source;
	size_t n_open;
	uint64_t held;
	uint8_t *buffer;
};

/* Zeroed but for the descriptors. */
MUST_CHECK int torch_source_new(const char *path, struct torch_source **ret, struct err *e);
/*
 * Proves of every tensor that its parts are disjoint and cover it: CKPT_EMISMATCH names the tensor
 * and the region. Then the source can be given away.
 */
MUST_CHECK int torch_source_ready(struct torch_source *t, struct err *e);
/* Copies of name and bytes; at most TORCH_BLOBS_MAX of all. */
MUST_CHECK int torch_source_add_blob(struct torch_source *t, const char *name, size_t name_len,
				     const void *bytes, size_t len, struct err *e);
void torch_source_close(struct source *s);

bool dcp_detect(const char *path);
MUST_CHECK int dcp_open(const char *path, struct source **ret, struct err *e);
bool torch_save_detect(const char *path);
MUST_CHECK int torch_save_open(const char *path, struct source **ret, struct err *e);

#endif
