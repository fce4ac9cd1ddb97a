/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_zip_write.c - ZIP by hand: local header (padded by an extra field), bytes, central
 * directory, with the 64-bit forms where a number needs them. This file is the home of zlib.h, for
 * its CRC.
 *
 * Each writer one thread.
 */
#include <config.h>

#include "tools/torch_zip_write.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <zlib.h>

#include "base/alloc.h"
#include "tools/pickle_write.h"
#include "tools/torch_names.h"

#define LOCAL_BYTES   30u
#define RECORD_ALIGN  64u
#define PADDING_ID    0x4246u /* "FB": what torch uses, and skips */
#define ZIP64_ID      1u
#define VERSION_PLAIN 20u
#define VERSION_ZIP64 45u
#define NAMES_UTF8    0x0800u
#define MAX_32        0xffffffffu

static uint32_t clip(uint64_t v)
{
	return v >= MAX_32 ? MAX_32 : (uint32_t)v;
}

static bool is_large(uint64_t v)
{
	return v >= MAX_32;
}

static int put_writer(struct torch_zip_writer *w, uint64_t at, struct writer *bytes, struct err *e)
{
	int r = bytes->bad ? err_code(e, -ENOMEM, "write an archive")
			   : w->put(w->arg, at, bytes->buf, bytes->len, e);

	writer_free(bytes);
	return r;
}

/* The 64-bit form comes first, so that padding can end the header. */
static uint32_t zip64_bytes(uint64_t bytes)
{
	return is_large(bytes) ? 4 + 16 : 0;
}

/* Of the padding field, so that the record's bytes are aligned. */
static uint32_t padding_bytes(const struct torch_zip_writer *w)
{
	uint64_t end = w->header + LOCAL_BYTES + strlen(w->name) + zip64_bytes(w->bytes) + 4;

	return 4 + (uint32_t)(round_up(end, RECORD_ALIGN) - end);
}

static uint64_t data_at(const struct torch_zip_writer *w)
{
	return w->header + LOCAL_BYTES + strlen(w->name) + zip64_bytes(w->bytes) + padding_bytes(w);
}

int torch_zip_record(struct torch_zip_writer *w, const char *name, uint64_t bytes, struct err *e)
{
	int n = snprintf(w->name, sizeof(w->name), "%s/%s", w->prefix, name);

	(void)e;
	assert(n > 0 && (size_t)n < sizeof(w->name));
	w->header = w->at;
	w->bytes = bytes;
	w->done = 0;
	w->crc = (uint32_t)crc32_z(0, NULL, 0);
	w->at = data_at(w);
	assert(w->at % RECORD_ALIGN == 0);
	return 0;
}

int torch_zip_bytes(struct torch_zip_writer *w, const void *bytes, uint64_t len, struct err *e)
{
	int r;

	assert(len <= w->bytes - w->done);
	if (len == 0)
		return 0;
	w->crc = (uint32_t)crc32_z(w->crc, bytes, len);
	r = w->put(w->arg, w->at, bytes, len, e);
	w->at += len;
	w->done += len;
	return r;
}

static void write_fields(struct torch_zip_writer *w, struct writer *to)
{
	bool large = is_large(w->bytes);

	write_u16(to, large || is_large(w->header) ? VERSION_ZIP64 : VERSION_PLAIN);
	write_u16(to, NAMES_UTF8);
	write_u16(to, 0);    /* stored */
	write_u16(to, 0);    /* time */
	write_u16(to, 0x21); /* date: 1980-01-01, so that equal tensors have equal archives */
	write_u32(to, w->crc);
	write_u32(to, clip(w->bytes));
	write_u32(to, clip(w->bytes));
	write_u16(to, (uint16_t)strlen(w->name));
}

static void write_directory(struct torch_zip_writer *w)
{
	struct writer *d = &w->directory;
	bool far = is_large(w->header);
	uint32_t large = is_large(w->bytes) ? 16 : 0;

	write_u32(d, 0x02014b50);
	write_u16(d, VERSION_ZIP64);
	write_fields(w, d);
	write_u16(d, (uint16_t)(large || far ? 4 + large + (far ? 8 : 0) : 0));
	write_u16(d, 0); /* comment */
	write_u16(d, 0); /* disk */
	write_u16(d, 0);
	write_u32(d, 0);
	write_u32(d, clip(w->header));
	write_bytes(d, w->name, strlen(w->name));
	if (large || far) {
		write_u16(d, ZIP64_ID);
		write_u16(d, (uint16_t)(large + (far ? 8 : 0)));
	}
	if (large) {
		write_u64(d, w->bytes);
		write_u64(d, w->bytes);
	}
	if (far)
		write_u64(d, w->header);
	w->n_records++;
}

int torch_zip_record_end(struct torch_zip_writer *w, struct err *e)
{
	struct writer head = {0};
	uint32_t padding = padding_bytes(w);

	assert(w->done == w->bytes);
	write_u32(&head, 0x04034b50);
	write_fields(w, &head);
	write_u16(&head, (uint16_t)(zip64_bytes(w->bytes) + padding));
	write_bytes(&head, w->name, strlen(w->name));
	if (is_large(w->bytes)) {
		write_u16(&head, ZIP64_ID);
		write_u16(&head, 16);
		write_u64(&head, w->bytes);
		write_u64(&head, w->bytes);
	}
	write_u16(&head, PADDING_ID);
	write_u16(&head, (uint16_t)(padding - 4));
	for (uint32_t i = 4; i < padding; i++)
		write_u8(&head, 'Z');
	assert(head.bad || w->header + head.len == data_at(w));
	write_directory(w);
	return put_writer(w, w->header, &head, e);
}

int torch_zip_whole(struct torch_zip_writer *w, const char *name, const void *bytes, uint64_t len,
		    struct err *e)
{
	int r = torch_zip_record(w, name, len, e);

	if (r == 0)
		r = torch_zip_bytes(w, bytes, len, e);
	return r < 0 ? r : torch_zip_record_end(w, e);
}

static void write_end(struct torch_zip_writer *w, struct writer *d, uint64_t directory_bytes)
{
	bool large = is_large(w->at) || is_large(directory_bytes);

	if (large) {
		write_u32(d, 0x06064b50);
		write_u64(d, 44); /* bytes that follow */
		write_u16(d, VERSION_ZIP64);
		write_u16(d, VERSION_ZIP64);
		write_u32(d, 0);
		write_u32(d, 0);
		write_u64(d, w->n_records);
		write_u64(d, w->n_records);
		write_u64(d, directory_bytes);
		write_u64(d, w->at);
		write_u32(d, 0x07064b50);
		write_u32(d, 0);
		write_u64(d, w->at + directory_bytes);
		write_u32(d, 1);
	}
	write_u32(d, 0x06054b50);
	write_u16(d, 0);
	write_u16(d, 0);
	write_u16(d, (uint16_t)w->n_records);
	write_u16(d, (uint16_t)w->n_records);
	write_u32(d, clip(directory_bytes));
	write_u32(d, clip(w->at));
	write_u16(d, 0);
}

int torch_zip_finish(struct torch_zip_writer *w, struct err *e)
{
	uint64_t bytes;
	int r;

	assert(w->n_records < UINT16_MAX);
	write_end(w, &w->directory, w->directory.len);
	bytes = w->directory.len;
	r = put_writer(w, w->at, &w->directory, e);
	w->at += bytes;
	return r;
}

void torch_zip_writer_free(struct torch_zip_writer *w)
{
	writer_free(&w->directory);
}

/* ---- Archives ---- */

/* A pickle, and what torch looks for in every archive. */
static int begin_archive(struct torch_zip_writer *w, const struct pickle_writer *pickle,
			 struct err *e)
{
	int r;

	if (pickle->out.bad)
		return err_code(e, -ENOMEM, "write a pickle");
	r = torch_zip_whole(w, "data.pkl", pickle->out.buf, pickle->out.len, e);
	if (r == 0)
		r = torch_zip_whole(w, "byteorder", "little", 6, e);
	return r < 0 ? r : torch_zip_whole(w, "version", "3\n", 2, e);
}

static int put_memory(void *arg, uint64_t offset, const void *bytes, uint64_t len, struct err *e)
{
	struct writer *to = arg;

	if (offset + len > to->len)
		write_zero(to, offset + len - to->len);
	if (to->bad)
		return err_code(e, -ENOMEM, "write an archive");
	memcpy(to->buf + offset, bytes, len);
	return 0;
}

int torch_zip_of_pickle(const char *prefix, const void *pickle, size_t len, void **ret,
			size_t *ret_len, struct err *e)
{
	struct writer to = {0};
	struct torch_zip_writer w = {.put = put_memory, .arg = &to, .prefix = prefix};
	struct pickle_writer p = {.out = {.buf = (uint8_t *)pickle, .len = len}};
	int r = begin_archive(&w, &p, e);

	if (r == 0)
		r = torch_zip_finish(&w, e);
	torch_zip_writer_free(&w);
	if (r < 0) {
		writer_free(&to);
		return r;
	}
	*ret = to.buf;
	*ret_len = to.len;
	return 0;
}

/* _rebuild_tensor_v2(storage, 0, size, strides, False, OrderedDict()), or v3 with the dtype. */
static void write_tensor(struct pickle_writer *p, uint32_t dtype, uint32_t ndim,
			 const uint64_t *dims, uint64_t elements)
{
	const char *storage = torch_storage_name(dtype);
	uint64_t strides[CKPT_NDIM_MAX];
	bool since_2;

	for (uint32_t k = ndim; k-- > 0;)
		strides[k] = k + 1 == ndim ? 1 : strides[k + 1] * (dims[k + 1] ? dims[k + 1] : 1);
	pickle_begin(p);
	pickle_global(p, "torch._utils", storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
	pickle_op(p, PICKLE_OP_MARK);
	pickle_op(p, PICKLE_OP_MARK);
	pickle_key(p, "storage");
	pickle_global(p, storage ? "torch" : "torch.storage", storage ? storage : "UntypedStorage");
	pickle_key(p, "0");
	pickle_key(p, "cpu");
	pickle_int(p, (int64_t)(storage ? elements : elements * dtype_bytes(dtype)));
	pickle_op(p, PICKLE_OP_TUPLE);
	pickle_op(p, PICKLE_OP_PERSID);
	pickle_int(p, 0);
	pickle_tuple(p, ndim, dims);
	pickle_tuple(p, ndim, strides);
	pickle_op(p, PICKLE_OP_FALSE);
	pickle_global(p, "collections", "OrderedDict");
	pickle_op(p, PICKLE_OP_EMPTY_TUPLE);
	pickle_op(p, PICKLE_OP_REDUCE);
	if (!storage)
		pickle_global(p, "torch", torch_dtype_name(dtype, &since_2));
	pickle_op(p, PICKLE_OP_TUPLE);
	pickle_op(p, PICKLE_OP_REDUCE);
	pickle_op(p, PICKLE_OP_STOP);
}

int torch_zip_begin_tensor(struct torch_zip_writer *w, uint32_t dtype, uint32_t ndim,
			   const uint64_t *dims, struct err *e)
{
	struct shape s = {.ndim = ndim};
	struct pickle_writer p = {0};
	uint64_t elements;
	int r;

	memcpy(s.dim, dims, ndim * sizeof(*dims));
	if (!shape_elements(&s, &elements))
		return err_set(e, -E2BIG, "it has too many elements");
	write_tensor(&p, dtype, ndim, dims, elements);
	r = begin_archive(w, &p, e);
	pickle_writer_free(&p);
	return r < 0 ? r : torch_zip_record(w, "data/0", elements * dtype_bytes(dtype), e);
}
