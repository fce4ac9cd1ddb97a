/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_zip.h - the archives that torch.save() writes: PREFIX/data.pkl and the bytes of storages in
 * PREFIX/data/KEY, stored as they are. An archive may be a part of a file, as in a .distcp file.
 *
 * Every byte that is given out was checked against the record's CRC-32, unless the archive has none
 * (0: torch.serialization.set_crc32_options(False)): a record that is read from its beginning to
 * its end is checked on the way, one that is read from another place is read once before. Who reads
 * one from its beginning, but not to its end, asks for the check.
 */
#ifndef TOOLS_TORCH_ZIP_H
#define TOOLS_TORCH_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct torch_zip;

/* Bytes [offset, offset + len) of a file, or of memory. */
struct torch_slice {
	int fd;
	const uint8_t *memory; /* NULL: of fd */
	uint64_t offset, len;
	bool own_metadata; /* its directory and pickle are metadata that is not counted yet
			      (tools/source_memory.h) */
};

/*
 * The slice's file must outlive it. Sentences do not name the file. CKPT_EPROTO: no archive of
 * torch.save() (with a sentence of its own for the format before torch 1.6 and for TorchScript);
 * CKPT_ECORRUPT: damaged; CKPT_EVERSION: big-endian bytes.
 */
MUST_CHECK int torch_zip_open(const struct torch_slice *s, struct torch_zip **ret, struct err *e);
void torch_zip_close(struct torch_zip *z); /* NULL is allowed */

const char *torch_zip_prefix(const struct torch_zip *z); /* "archive" */
/* data.pkl; the caller frees it. */
MUST_CHECK int torch_zip_pickle(struct torch_zip *z, void **ret, size_t *ret_len, struct err *e);
/* The storage with this key. CKPT_ECORRUPT: there is none. */
MUST_CHECK int torch_zip_find(struct torch_zip *z, const char *key, uint32_t key_len,
			      uint32_t *ret_record, uint64_t *ret_bytes, struct err *e);
/* len bytes of a record from offset, both inside it. Fast when offsets rise. */
MUST_CHECK int torch_zip_read(struct torch_zip *z, uint32_t record, uint64_t offset, void *to,
			      uint64_t len, struct err *e);
/* Reads what of the record was not read yet. CKPT_ECORRUPT: what was read of it is of no use. */
MUST_CHECK int torch_zip_check(struct torch_zip *z, uint32_t record, struct err *e);

#endif
