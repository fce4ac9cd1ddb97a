/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_names.c - the table behind torch_names.h.
 *
 * Where torch moved a class both places are here: 1.13 has checkpoint under
 * torch.distributed._shard, and TensorProperties moved to it in 2.4. One thread, no state.
 */
#include <config.h>

#include "tools/torch_names.h"

#include <string.h>

#define VALUE PICKLE_AS_VALUE
#define CALL  PICKLE_AS_CALL
#define BOTH  (PICKLE_AS_VALUE | PICKLE_AS_CALL)

#define SHARD_13      "torch.distributed._shard.sharded_tensor.metadata"
#define METADATA_13   "torch.distributed._shard.checkpoint.metadata"
#define FILESYSTEM_13 "torch.distributed._shard.checkpoint.filesystem"
#define METADATA_2    "torch.distributed.checkpoint.metadata"
#define FILESYSTEM_2  "torch.distributed.checkpoint.filesystem"

static const struct pickle_name names[] = {
	{"torch", "bool", TORCH_DTYPE, VALUE, CKPT_BOOL},
	{"torch", "uint8", TORCH_DTYPE, VALUE, CKPT_U8},
	{"torch", "int8", TORCH_DTYPE, VALUE, CKPT_I8},
	{"torch", "uint16", TORCH_DTYPE, VALUE, CKPT_U16},
	{"torch", "int16", TORCH_DTYPE, VALUE, CKPT_I16},
	{"torch", "uint32", TORCH_DTYPE, VALUE, CKPT_U32},
	{"torch", "int32", TORCH_DTYPE, VALUE, CKPT_I32},
	{"torch", "uint64", TORCH_DTYPE, VALUE, CKPT_U64},
	{"torch", "int64", TORCH_DTYPE, VALUE, CKPT_I64},
	{"torch", "float16", TORCH_DTYPE, VALUE, CKPT_F16},
	{"torch", "bfloat16", TORCH_DTYPE, VALUE, CKPT_BF16},
	{"torch", "float32", TORCH_DTYPE, VALUE, CKPT_F32},
	{"torch", "float64", TORCH_DTYPE, VALUE, CKPT_F64},
	{"torch", "float8_e4m3fn", TORCH_DTYPE, VALUE, CKPT_F8_E4M3},
	{"torch", "float8_e5m2", TORCH_DTYPE, VALUE, CKPT_F8_E5M2},
	{"torch", "float8_e4m3fnuz", TORCH_DTYPE, VALUE, CKPT_F8_E4M3FNUZ},
	{"torch", "float8_e5m2fnuz", TORCH_DTYPE, VALUE, CKPT_F8_E5M2FNUZ},
	{"torch", "float8_e8m0fnu", TORCH_DTYPE, VALUE, CKPT_F8_E8M0},
	{"torch", "complex64", TORCH_DTYPE, VALUE, CKPT_C64},
	{"torch", "complex128", TORCH_DTYPE, VALUE, CKPT_C128},

	{"torch", "BoolStorage", TORCH_STORAGE, VALUE, CKPT_BOOL},
	{"torch", "ByteStorage", TORCH_STORAGE, VALUE, CKPT_U8},
	{"torch", "CharStorage", TORCH_STORAGE, VALUE, CKPT_I8},
	{"torch", "ShortStorage", TORCH_STORAGE, VALUE, CKPT_I16},
	{"torch", "IntStorage", TORCH_STORAGE, VALUE, CKPT_I32},
	{"torch", "LongStorage", TORCH_STORAGE, VALUE, CKPT_I64},
	{"torch", "HalfStorage", TORCH_STORAGE, VALUE, CKPT_F16},
	{"torch", "BFloat16Storage", TORCH_STORAGE, VALUE, CKPT_BF16},
	{"torch", "FloatStorage", TORCH_STORAGE, VALUE, CKPT_F32},
	{"torch", "DoubleStorage", TORCH_STORAGE, VALUE, CKPT_F64},
	{"torch", "ComplexFloatStorage", TORCH_STORAGE, VALUE, CKPT_C64},
	{"torch", "ComplexDoubleStorage", TORCH_STORAGE, VALUE, CKPT_C128},
	{"torch", "UntypedStorage", TORCH_STORAGE_BYTES, VALUE, CKPT_U8},
	{"torch.storage", "UntypedStorage", TORCH_STORAGE_BYTES, VALUE, CKPT_U8},
	{"torch.storage", "_UntypedStorage", TORCH_STORAGE_BYTES, VALUE, CKPT_U8},

	{"torch._utils", "_rebuild_tensor", TORCH_REBUILD_V1, BOTH, 0},
	{"torch._utils", "_rebuild_tensor_v2", TORCH_REBUILD_V2, BOTH, 0},
	{"torch._utils", "_rebuild_tensor_v3", TORCH_REBUILD_V3, BOTH, 0},
	{"torch._utils", "_rebuild_parameter", TORCH_REBUILD_PARAMETER, BOTH, 0},
	{"torch._utils", "_rebuild_parameter_with_state", TORCH_REBUILD_PARAMETER, BOTH, 0},
	{"torch._tensor", "_rebuild_from_type_v2", TORCH_REBUILD_TYPE, CALL, 0},
	{"torch._utils", "_rebuild_qtensor", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch._utils", "_rebuild_sparse_tensor", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch._utils", "_rebuild_sparse_csr_tensor", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch._utils", "_rebuild_nested_tensor", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch._utils", "_rebuild_wrapper_subclass", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch._utils", "_rebuild_meta_tensor_no_storage", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch._utils", "_rebuild_device_tensor_from_numpy", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", TORCH_REBUILD_OTHER, BOTH, 0},
	{"torch", "Tensor", TORCH_CLASS, VALUE, 0},
	{"torch.nn.parameter", "Parameter", TORCH_CLASS, VALUE, 0},
	{"torch.nn.parameter", "Buffer", TORCH_CLASS, VALUE, 0},

	{"torch", "Size", TORCH_SIZE, CALL, 0},
	{"torch", "device", TORCH_DEVICE, CALL, 0},
	{"torch.serialization", "_get_layout", TORCH_LAYOUT, CALL, 0},
	{"collections", "OrderedDict", TORCH_ORDERED_DICT, CALL, 0},
	{"collections", "Counter", TORCH_COUNTER, CALL, 0},
	{"builtins", "set", TORCH_SET, CALL, 0},
	{"__builtin__", "set", TORCH_SET, CALL, 0},
	{"builtins", "frozenset", TORCH_FROZENSET, CALL, 0},
	{"__builtin__", "frozenset", TORCH_FROZENSET, CALL, 0},
	{"builtins", "complex", TORCH_COMPLEX, CALL, 0},
	{"__builtin__", "complex", TORCH_COMPLEX, CALL, 0},
	{"_codecs", "encode", TORCH_ENCODE, CALL, 0},
	/* Python 3.11 writes a member of an enum as getattr(class, name). */
	{"builtins", "getattr", TORCH_GETATTR, CALL, 0},
	{"__builtin__", "getattr", TORCH_GETATTR, CALL, 0},
	{"pathlib", "PosixPath", TORCH_PATH, CALL, 0},
	{"pathlib._local", "PosixPath", TORCH_PATH, CALL, 0},
	{"pathlib", "WindowsPath", TORCH_PATH, CALL, 0},
	{"pathlib._local", "WindowsPath", TORCH_PATH, CALL, 0},

	{METADATA_13, "Metadata", TORCH_METADATA, CALL, 0},
	{METADATA_13, "TensorStorageMetadata", TORCH_TENSOR_METADATA, CALL, 0},
	{METADATA_13, "BytesStorageMetadata", TORCH_BYTES_METADATA, CALL, 0},
	{METADATA_13, "ChunkStorageMetadata", TORCH_CHUNK_METADATA, CALL, 0},
	{METADATA_13, "MetadataIndex", TORCH_INDEX, CALL, 0},
	{FILESYSTEM_13, "_StorageInfo", TORCH_STORAGE_INFO, CALL, 0},
	{SHARD_13, "TensorProperties", TORCH_PROPERTIES, CALL, 0},
	{SHARD_13, "MEM_FORMAT_ENCODING", TORCH_MEMORY_FORMAT, BOTH, 0},
	{METADATA_2, "Metadata", TORCH_METADATA, CALL, 0},
	{METADATA_2, "TensorStorageMetadata", TORCH_TENSOR_METADATA, CALL, 0},
	{METADATA_2, "BytesStorageMetadata", TORCH_BYTES_METADATA, CALL, 0},
	{METADATA_2, "ChunkStorageMetadata", TORCH_CHUNK_METADATA, CALL, 0},
	{METADATA_2, "MetadataIndex", TORCH_INDEX, CALL, 0},
	{METADATA_2, "TensorProperties", TORCH_PROPERTIES, CALL, 0},
	{METADATA_2, "_MEM_FORMAT_ENCODING", TORCH_MEMORY_FORMAT, BOTH, 0},
	{METADATA_2, "StorageMeta", TORCH_STORAGE_META, CALL, 0},
	{FILESYSTEM_2, "_StorageInfo", TORCH_STORAGE_INFO, CALL, 0},
};
#define N_NAMES (sizeof(names) / sizeof(*names))

static bool equals(const char *known, const char *text, size_t len)
{
	return strlen(known) == len && memcmp(known, text, len) == 0;
}

const struct pickle_name *torch_find_name(const char *module, size_t module_len, const char *name,
					  size_t name_len)
{
	/* Storages that were on a GPU, as torch before 1.6 named them. */
	bool cuda = equals("torch.cuda", module, module_len);

	for (size_t i = 0; i < N_NAMES; i++) {
		const struct pickle_name *n = &names[i];

		if (equals(n->name, name, name_len) &&
		    (equals(n->module, module, module_len) || (cuda && n->id == TORCH_STORAGE)))
			return n;
	}
	return NULL;
}

static const char *name_of(enum torch_id id, uint32_t dtype)
{
	for (size_t i = 0; i < N_NAMES; i++)
		if (names[i].id == id && names[i].dtype == dtype)
			return names[i].name;
	return NULL;
}

const char *torch_storage_name(uint32_t dtype)
{
	return name_of(TORCH_STORAGE, dtype);
}

const char *torch_dtype_name(uint32_t dtype, bool *ret_since_2)
{
	*ret_since_2 = !torch_storage_name(dtype);
	return name_of(TORCH_DTYPE, dtype);
}
