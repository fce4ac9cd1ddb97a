/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h - headers and indices of safetensors files as bytes: read strictly, written
 * canonically (doc/formats.md). Pure but for memory: no file is touched.
 *
 *   u64 length of the header | header: JSON, padded with blanks | data, no holes, no overlap
 */
#ifndef TOOLS_SAFETENSORS_H
#define TOOLS_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>

#include "model/tensor.h"
#include "tools/texts.h"

#define SAFETENSORS_HEADER_MAX 100000000u /* bytes of JSON; of an index too */
#define SAFETENSORS_METADATA   "__metadata__"
#define SAFETENSORS_ALIGN      4096u /* where our files' data starts */

struct safetensors_entry {
	const char *name; /* not NUL-terminated */
	uint32_t name_len;
	uint32_t dtype; /* enum ckpt_dtype */
	struct shape shape;
	uint64_t begin, end; /* bytes of the data */
};

struct safetensors_header {
	struct safetensors_entry *entries; /* in the order of their bytes */
	size_t n;
	struct texts names;   /* those that had to be decoded: the others lie in the JSON */
	const char *metadata; /* JSON, an object of texts, in that of the header; NULL: none */
	size_t metadata_len;
};

/* "BF16"; NULL: the format has no such type. */
const char *safetensors_dtype(uint32_t dtype);
/* The order in which the format's own writer puts dtypes: higher ones come first. */
int safetensors_rank(uint32_t dtype);

/*
 * Reads the JSON of a header whose file has data_len bytes of data behind it; it must outlive *ret.
 * Checks everything: types, sizes against shape and dtype, that no name is there twice and the
 * entries cover the data without hole or overlap.
 * CKPT_EPROTO: names what is wrong, and the tensor; CKPT_EVERSION: a dtype that we do not have.
 */
MUST_CHECK int safetensors_parse(const void *json, size_t len, uint64_t data_len,
				 struct safetensors_header *ret, struct err *e);
void safetensors_header_fini(struct safetensors_header *h);

/*
 * The beginning of a file, length included, padded so that the data starts at a multiple of
 * SAFETENSORS_ALIGN. Entries are written in their order; metadata: an object of texts, or NULL. The
 * caller frees *ret with alloc_free(). -EINVAL: a name that is not UTF-8, or has a NUL; a dtype
 * that the format does not have; -E2BIG: longer than readers take.
 */
MUST_CHECK int safetensors_build(const struct safetensors_entry *entries, size_t n,
				 const json_t *metadata, void **ret, size_t *ret_len,
				 struct err *e);

/* model.safetensors.index.json: its weight_map, which file beside it has which tensor. */
struct safetensors_indexed {
	const char *name, *file; /* not NUL-terminated */
	uint32_t name_len, file_len;
	bool found; /* the reader's: in the file */
};
struct safetensors_index {
	struct safetensors_indexed *entries; /* by name; none twice */
	size_t n, cap;
	struct texts texts;
};

/* Checked: texts, names of files that stay in the folder. CKPT_EPROTO. The JSON must outlive *ret.
 */
MUST_CHECK int safetensors_index_parse(const void *json, size_t len, struct safetensors_index *ret,
				       struct err *e);
/* NULL: the index does not have it. */
struct safetensors_indexed *safetensors_index_find(const struct safetensors_index *x,
						   const char *name, uint32_t name_len);
void safetensors_index_fini(struct safetensors_index *x);

#endif
