/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_tensor.h - a tensor as torch.save() writes it: a view of a storage, that is of a record.
 */
#ifndef TOOLS_TORCH_TENSOR_H
#define TOOLS_TORCH_TENSOR_H

#include "model/strided.h"
#include "tools/pickle.h"
#include "tools/torch_zip.h"

struct torch_tensor {
	const char *key; /* of its storage; not NUL-terminated, of the pickle */
	uint32_t key_len;
	uint32_t dtype;
	struct shape shape;
	int64_t stride[CKPT_NDIM_MAX]; /* elements, not negative */
	uint64_t first;                /* element of the storage */
	uint64_t span;                 /* elements of the storage from first to the last one, + 1 */
	uint64_t storage_bytes;        /* as the pickle says */
	uint64_t bytes;                /* of all elements, packed */
	bool packed;                   /* its elements lie in the storage in row-major order */
};

/*
 * 1: v is a tensor or a parameter; 0: it is something else; CKPT_EPROTO, CKPT_EVERSION: a tensor
 * that cannot be taken, with a sentence (sparse, quantized, outside its storage, ...).
 */
MUST_CHECK int torch_tensor_of(const struct pickle *p, const struct pickle_value *v,
			       struct torch_tensor *ret, struct err *e);
/* A torch.Size or a tuple or list of sizes. */
MUST_CHECK int torch_sizes_of(const struct pickle *p, const struct pickle_value *v,
			      struct shape *ret, struct err *e);

/* The bytes of a tensor, packed. One that is not packed in its storage is held in memory. */
struct torch_view {
	struct torch_zip *zip;
	struct torch_tensor tensor;
	uint32_t record;
	uint8_t *held; /* NULL: it is packed */
	struct strided strided;
};

/* zip must outlive it. memory: bytes that may be held; -E2BIG says that it needs more. */
MUST_CHECK int torch_view_open(struct torch_zip *zip, const struct torch_tensor *t, uint64_t memory,
			       struct torch_view *ret, struct err *e);
MUST_CHECK int torch_view_read(struct torch_view *v, uint64_t offset, void *to, uint64_t len,
			       struct err *e);
void torch_view_close(struct torch_view *v);

#endif
