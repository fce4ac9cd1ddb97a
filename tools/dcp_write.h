/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dcp_write.h - a checkpoint on its way into a folder of torch.distributed.checkpoint: what becomes
 * a chunk of what file, and where it was put.
 */
#ifndef TOOLS_DCP_WRITE_H
#define TOOLS_DCP_WRITE_H

#include "tools/exchange.h"

struct dcp_out_chunk {
	size_t tensor; /* index into the source's tensors */
	struct box box;
	uint32_t file;        /* __N_0.distcp: the first rank that has it */
	uint64_t order;       /* within the file */
	uint64_t offset, len; /* of its archive, when it was written */
};

struct dcp_out_blob {
	char *name; /* NUL-terminated */
	uint32_t file;
	void *bytes; /* as they go out */
	size_t bytes_len;
	uint64_t offset, len;
};

struct dcp_out {
	struct exporting *x;
	struct dcp_out_chunk *chunks; /* by tensor (in x->chosen's order), offset */
	size_t n_chunks, cap_chunks;
	struct dcp_out_blob *blobs;
	size_t n_blobs, cap_blobs;
	json_t *paths;   /* as TORCH_PATHS_BLOB has them; NULL: there are none */
	json_t *adapter; /* what ckpt.torch said of items, of each rank; NULL: it did not save it */
};

/*
 * Chunks are the boxes that ranks store, each once; a tensor whose boxes do not divide it (ranks
 * that overlap) is one chunk.
 */
MUST_CHECK int dcp_out_chunks(struct dcp_out *d, struct err *e);
/*
 * Every rank's blobs, as archives. One that several ranks have by the same name is one when all are
 * equal, else NAME.rankN of each.
 */
MUST_CHECK int dcp_out_blobs(struct dcp_out *d, struct err *e);
/* One more of at most cap_blobs; its bytes, which stay the caller's, become an archive. */
MUST_CHECK int dcp_out_add_blob(struct dcp_out *d, uint32_t rank, const char *name, size_t name_len,
				const void *bytes, size_t len, struct err *e);
/*
 * What the PyTorch adapter keeps in blobs of its own (dcp_adapter.c): first read, which finds
 * d->adapter and d->paths; has() says which blobs are no items then; packed() counts the items that
 * unpack() adds.
 */
MUST_CHECK int dcp_adapter_read(struct dcp_out *d, struct err *e);
bool dcp_adapter_has(const struct dcp_out *d, const char *name);
size_t dcp_adapter_packed(const struct dcp_out *d);
MUST_CHECK int dcp_adapter_unpack(struct dcp_out *d, struct err *e);
/* .metadata; the caller frees it. */
MUST_CHECK int dcp_out_metadata(const struct dcp_out *d, void **ret, size_t *ret_len,
				struct err *e);
bool dcp_name_fits(const char *name, size_t len); /* is UTF-8 */
void dcp_out_fini(struct dcp_out *d);

#endif
