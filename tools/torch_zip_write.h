/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_zip_write.h - writes an archive as torch.save() does, with the bytes of a record as they
 * come: room is left for its header, which is written when its CRC is known.
 *
 * Bytes of a record begin at a multiple of 64 of the archive, so that torch can map them.
 */
#ifndef TOOLS_TORCH_ZIP_WRITE_H
#define TOOLS_TORCH_ZIP_WRITE_H

#include "base/bytes.h"
#include "model/tensor.h"

/* Where it goes: bytes at an offset of the archive. Offsets may go back. */
typedef int torch_zip_put(void *arg, uint64_t offset, const void *bytes, uint64_t len,
			  struct err *e);

struct torch_zip_writer {
	torch_zip_put *put;
	void *arg;
	const char *prefix;      /* of all records */
	uint64_t at;             /* of the next byte */
	struct writer directory; /* of the records so far */
	uint32_t n_records;
	/* The record that is open */
	char name[80];
	uint64_t header, bytes, done;
	uint32_t crc;
};

/* Of a struct with put, arg and prefix set, the rest zero. Any call may fail; then only free. */
MUST_CHECK int torch_zip_record(struct torch_zip_writer *w, const char *name, uint64_t bytes,
				struct err *e);
MUST_CHECK int torch_zip_bytes(struct torch_zip_writer *w, const void *bytes, uint64_t len,
			       struct err *e);
/* Ends a record: exactly its bytes were given. */
MUST_CHECK int torch_zip_record_end(struct torch_zip_writer *w, struct err *e);
MUST_CHECK int torch_zip_whole(struct torch_zip_writer *w, const char *name, const void *bytes,
			       uint64_t len, struct err *e);
/* What every archive has beside its pickle and its storages, and the end. */
MUST_CHECK int torch_zip_finish(struct torch_zip_writer *w, struct err *e);
void torch_zip_writer_free(struct torch_zip_writer *w);

/* An archive in memory, of a pickle alone (torch.save() of a plain value). */
MUST_CHECK int torch_zip_of_pickle(const char *prefix, const void *pickle, size_t len, void **ret,
				   size_t *ret_len, struct err *e);
/* A tensor's archive up to its bytes: data.pkl is written, data/0 is open for them. */
MUST_CHECK int torch_zip_begin_tensor(struct torch_zip_writer *w, uint32_t dtype, uint32_t ndim,
				      const uint64_t *dims, struct err *e);

#endif
