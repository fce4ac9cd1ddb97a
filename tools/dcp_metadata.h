/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_metadata.h - what the file .metadata of a torch.distributed.checkpoint folder says.
 *
 * Pure: bytes in, lists out. Names and paths point into the bytes, which must outlive them.
 */
#ifndef TOOLS_DCP_METADATA_H
#define TOOLS_DCP_METADATA_H

#include "model/tensor.h"
#include "tools/pickle.h"

struct dcp_file {
	const char *name; /* within the folder; not NUL-terminated, no '/' */
	uint32_t name_len;
};

/* Bytes [offset, offset + len) of a file. */
struct dcp_place {
	const struct pickle_value *path; /* a string, the file's name */
	uint32_t file;
	uint64_t offset, len;
};

struct dcp_chunk {
	struct box box; /* not empty */
	struct dcp_place place;
};

struct dcp_tensor {
	const char *name; /* 1..CKPT_NAME_MAX bytes, not NUL-terminated */
	uint32_t name_len;
	uint32_t dtype;
	struct shape shape;
	size_t first_chunk, n_chunks;
};

struct dcp_blob {
	const char *name;
	uint32_t name_len;
	struct dcp_place place;
};

struct dcp_metadata {
	struct pickle pickle;
	struct dcp_tensor *tensors; /* in the file's order; no two have one name, nor a blob's */
	struct dcp_chunk *chunks;
	struct dcp_blob *blobs;
	struct dcp_file *files;
	size_t n_tensors, n_chunks, n_blobs, n_files;
	const struct pickle_value *planner_data; /* a dict; NULL: there is none */
};

/* CKPT_EPROTO, CKPT_EVERSION, CKPT_EMISMATCH (a name twice, a chunk outside its tensor or stored
 * nowhere). Free with dcp_metadata_fini() in every case. */
MUST_CHECK int dcp_metadata_read(const void *bytes, size_t len, struct dcp_metadata *ret,
				 struct err *e);
/* The tree alone, which is most of it: planner_data and the paths of places go with it. */
void dcp_metadata_forget_pickle(struct dcp_metadata *m);
void dcp_metadata_fini(struct dcp_metadata *m);

#endif
