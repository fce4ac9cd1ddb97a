/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_names.h - the classes, functions and constants that torch.save() and torch.distributed
 * .checkpoint write into their pickles (torch 1.13 and 2.x), and what they mean to us.
 */
#ifndef TOOLS_TORCH_NAMES_H
#define TOOLS_TORCH_NAMES_H

#include "tools/pickle.h"

enum torch_id {
	TORCH_DTYPE,             /* dtype is its own */
	TORCH_STORAGE,           /* a storage class; dtype is that of its elements */
	TORCH_STORAGE_BYTES,     /* an untyped one */
	TORCH_REBUILD_V1,        /* _rebuild_tensor(storage, offset, size, stride) */
	TORCH_REBUILD_V2,        /* and requires_grad, hooks[, metadata] */
	TORCH_REBUILD_V3,        /* and requires_grad, hooks, dtype[, metadata] */
	TORCH_REBUILD_PARAMETER, /* (tensor, requires_grad, hooks[, state]) */
	TORCH_REBUILD_TYPE,      /* _rebuild_from_type_v2(function, type, arguments, state) */
	TORCH_REBUILD_OTHER, /* sparse, quantized, nested, meta, on another device, ...: refused */
	TORCH_CLASS,         /* torch.Tensor, Parameter: only as an argument */
	TORCH_SIZE,
	TORCH_DEVICE,
	TORCH_LAYOUT,
	TORCH_ORDERED_DICT,
	TORCH_COUNTER,
	TORCH_SET,
	TORCH_FROZENSET,
	TORCH_COMPLEX,
	TORCH_ENCODE,  /* bytes, as protocol 2 writes them: (text, "latin1") */
	TORCH_GETATTR, /* a member of an enum: (class, name) */
	TORCH_PATH,
	/* of torch.distributed.checkpoint */
	TORCH_METADATA,
	TORCH_TENSOR_METADATA,
	TORCH_BYTES_METADATA,
	TORCH_CHUNK_METADATA,
	TORCH_INDEX,
	TORCH_PROPERTIES,
	TORCH_MEMORY_FORMAT,
	TORCH_STORAGE_META,
	TORCH_STORAGE_INFO,
};

const struct pickle_name *torch_find_name(const char *module, size_t module_len, const char *name,
					  size_t name_len);

/* "float32" of a dtype of ours; NULL: torch has none. since_2: 1.13 has none. */
const char *torch_dtype_name(uint32_t dtype, bool *ret_since_2);
/* "FloatStorage"; NULL: it has no storage class of its own, torch 2 writes UntypedStorage. */
const char *torch_storage_name(uint32_t dtype);

#endif
