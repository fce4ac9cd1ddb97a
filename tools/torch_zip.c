/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_zip.c - torch_zip.h over libzip, of which this file is the one home.
 *
 * libzip reads through slice_callback(), so that an archive inside a file takes no descriptor of
 * its own. Its CRC check works on a record that is read from the beginning to the end: (1)
 * `unbroken` says that the open one has been read so; (2) a record is `checked` once its end was
 * seen that way, or when it has no CRC; (3) reading at another place than (1) allows needs (2). One
 * thread.
 */
#include <config.h>

#include "tools/torch_zip.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "tools/pickle.h"
#include "tools/plural.h"
#include "tools/source_memory.h"

#define CHECK_BYTES (256u << 10) /* of the buffer of a check */

/* What libzip takes for a record whose name is short, measured; a name is in it twice. */
#define RECORD_BYTES 400u
/* The end of an archive: the record that closes it, 16 bits of comment, and the 64-bit ones. */
#define END_BYTES     22u
#define END64_LOCATOR 20u
#define TAIL_BYTES    (END64_LOCATOR + END_BYTES + UINT16_MAX)

struct record {
	uint64_t bytes;
	bool stored; /* is a record that we can read at all */
	bool checked;
};

struct torch_zip {
	struct torch_slice slice;
	uint64_t position; /* of slice_callback() */
	zip_error_t error; /* of slice_callback() */
	zip_t *zip;
	uint64_t charged; /* what libzip takes (base/alloc.h) */
	char prefix[256];
	struct record *records; /* by libzip's index */
	uint32_t n_records;
	zip_file_t *file; /* NULL: none is open */
	uint32_t open;    /* which */
	uint64_t at;      /* its next byte */
	bool unbroken;
};

/* ---- The file, for libzip ---- */

static zip_int64_t slice_read(struct torch_zip *z, void *to, uint64_t len)
{
	const struct torch_slice *s = &z->slice;
	uint64_t n = min_u64(len, s->len - z->position);
	ssize_t got = (ssize_t)n;

	assert(z->position <= s->len);
	if (s->memory)
		memcpy(to, s->memory + s->offset + z->position, n);
	else if (n > 0)
		got = pread(s->fd, to, n, (off_t)(s->offset + z->position));
	if (got < 0)
		zip_error_set(&z->error, ZIP_ER_READ, errno);
	else
		z->position += (uint64_t)got;
	return got;
}

static zip_int64_t slice_stat(const struct torch_zip *z, zip_stat_t *st)
{
	zip_stat_init(st);
	st->size = z->slice.len;
	st->valid = ZIP_STAT_SIZE;
	return sizeof(*st);
}

static zip_int64_t slice_callback(void *arg, void *data, zip_uint64_t len, zip_source_cmd_t cmd)
{
	struct torch_zip *z = arg;
	zip_int64_t to;

	switch ((int)cmd) {
	case ZIP_SOURCE_OPEN:
		z->position = 0;
		return 0;
	case ZIP_SOURCE_READ:
		return slice_read(z, data, len);
	case ZIP_SOURCE_STAT:
		return slice_stat(z, data);
	case ZIP_SOURCE_ERROR:
		return zip_error_to_data(&z->error, data, len);
	case ZIP_SOURCE_SEEK:
		to = zip_source_seek_compute_offset(z->position, z->slice.len, data, len,
						    &z->error);
		if (to < 0)
			return -1;
		z->position = (uint64_t)to;
		return 0;
	case ZIP_SOURCE_TELL:
		return (zip_int64_t)z->position;
	case ZIP_SOURCE_CLOSE:
	case ZIP_SOURCE_FREE: /* z is ours */
		return 0;
	case ZIP_SOURCE_SUPPORTS:
		return ZIP_SOURCE_SUPPORTS_SEEKABLE;
	default:
		zip_error_set(&z->error, ZIP_ER_OPNOTSUPP, 0);
		return -1;
	}
}

static int zip_failed(zip_error_t *why, const char *what, struct err *e)
{
	int code = zip_error_system_type(why) == ZIP_ET_SYS && zip_error_code_system(why)
			   ? -zip_error_code_system(why)
			   : CKPT_ECORRUPT;

	return err_set(e, code, "%s: %s", what, zip_error_strerror(why));
}

/* ---- Records ---- */

static int open_record(struct torch_zip *z, uint32_t i, struct err *e)
{
	zip_flags_t flags = z->records[i].checked ? ZIP_FL_COMPRESSED : 0; /* stored: the bytes */

	if (z->file)
		zip_fclose(z->file);
	z->file = zip_fopen_index(z->zip, i, flags);
	if (!z->file)
		return zip_failed(zip_get_error(z->zip), "a record cannot be opened", e);
	z->open = i;
	z->at = 0;
	z->unbroken = !z->records[i].checked;
	return 0;
}

static int read_failed(struct torch_zip *z, struct err *e)
{
	const char *name = zip_get_name(z->zip, z->open, 0);
	char what[300];

	/* It is compared at the end: which byte it was is not known. */
	if (zip_error_code_zip(zip_file_get_error(z->file)) == ZIP_ER_CRC)
		return err_set(e, CKPT_ECORRUPT,
			       "its record '%.200s' is damaged: its bytes do not have the CRC-32 "
			       "that was stored with them",
			       name ? name : "?");
	snprintf(what, sizeof(what), "its record '%.200s' is damaged at byte %" PRIu64,
		 name ? name : "?", z->at);
	return zip_failed(zip_file_get_error(z->file), what, e);
}

/* Bytes of the open record from where it is; at its end its CRC is compared. */
static int read_on(struct torch_zip *z, uint8_t *to, uint64_t len, struct err *e)
{
	struct record *r = &z->records[z->open];
	uint8_t more;

	assert(z->file && z->at + len <= r->bytes);
	while (len > 0) {
		zip_int64_t n = zip_fread(z->file, to, len);

		if (n < 0)
			return read_failed(z, e);
		if (n == 0)
			return err_set(e, CKPT_ECORRUPT,
				       "its record '%.200s' ends after %" PRIu64 " of its %" PRIu64
				       " byte%s",
				       zip_get_name(z->zip, z->open, 0), z->at, r->bytes,
				       plural(r->bytes));
		z->at += (uint64_t)n;
		to += n;
		len -= (uint64_t)n;
	}
	if (z->at < r->bytes || !z->unbroken)
		return 0;
	if (zip_fread(z->file, &more, 1) != 0) /* libzip compares when it sees the end */
		return read_failed(z, e);
	r->checked = true;
	return 0;
}

int torch_zip_check(struct torch_zip *z, uint32_t i, struct err *e)
{
	struct record *record = &z->records[i];
	CLEANUP_FREE uint8_t *buffer = NULL;
	int r = 0;

	assert(i < z->n_records);
	if (record->checked)
		return 0;
	buffer = alloc_zero(CHECK_BYTES);
	if (!buffer)
		return err_code(e, -ENOMEM, "check a record");
	if (!z->file || z->open != i || !z->unbroken)
		r = open_record(z, i, e);
	while (r == 0 && !record->checked)
		r = read_on(z, buffer, min_u64(CHECK_BYTES, record->bytes - z->at), e);
	return r;
}

int torch_zip_read(struct torch_zip *z, uint32_t record, uint64_t offset, void *to, uint64_t len,
		   struct err *e)
{
	struct record *r = &z->records[record];
	int rc = 0;

	assert(record < z->n_records && offset <= r->bytes && len <= r->bytes - offset);
	if (len == 0 && r->bytes > 0)
		return 0;
	if (!z->file || z->open != record || z->at != offset) {
		if (offset > 0 && !r->checked)
			rc = torch_zip_check(z, record, e); /* (3) */
		if (rc == 0)
			rc = open_record(z, record, e);
		if (rc == 0 && offset > 0 && zip_fseek(z->file, (zip_int64_t)offset, SEEK_SET) < 0)
			rc = read_failed(z, e);
		z->at = offset;
	}
	return rc < 0 ? rc : read_on(z, to, len, e);
}

static int find_record(struct torch_zip *z, const char *name, uint32_t len, uint32_t *ret)
{
	char path[sizeof(z->prefix) + CKPT_NAME_MAX];
	zip_int64_t i;

	if (len > CKPT_NAME_MAX - 8 || memchr(name, '\0', len))
		return -1;
	snprintf(path, sizeof(path), "%s/%.*s", z->prefix, (int)len, name);
	i = zip_name_locate(z->zip, path, 0);
	if (i < 0 || i >= z->n_records || !z->records[i].stored)
		return -1;
	*ret = (uint32_t)i;
	return 0;
}

int torch_zip_find(struct torch_zip *z, const char *key, uint32_t key_len, uint32_t *ret_record,
		   uint64_t *ret_bytes, struct err *e)
{
	char name[CKPT_NAME_MAX + 1];
	int n = snprintf(name, sizeof(name), "data/%.*s", (int)min_u64(key_len, 200), key);

	if (key_len > 200 || memchr(key, '\0', key_len) ||
	    find_record(z, name, (uint32_t)n, ret_record) < 0)
		return err_set(e, CKPT_ECORRUPT,
			       "it refers to the storage '%.*s', which is not in it, or is "
			       "compressed",
			       (int)min_u64(key_len, 200), key);
	*ret_bytes = z->records[*ret_record].bytes;
	return 0;
}

int torch_zip_pickle(struct torch_zip *z, void **ret, size_t *ret_len, struct err *e)
{
	uint32_t i;
	void *bytes;
	int r;

	if (find_record(z, "data.pkl", strlen("data.pkl"), &i) < 0)
		return err_set(
			e, CKPT_EPROTO,
			"it has no data.pkl, or a compressed one: torch.save() did not write "
			"it");
	if (z->records[i].bytes > PICKLE_BYTES_MAX)
		return err_set(e, -E2BIG,
			       "its data.pkl has %" PRIu64 " byte%s; at most %u can be read",
			       z->records[i].bytes, plural(z->records[i].bytes), PICKLE_BYTES_MAX);
	if (z->slice.own_metadata)
		source_metadata(z->records[i].bytes);
	bytes = alloc_zero(z->records[i].bytes + 1);
	if (!bytes)
		return err_code(e, -ENOMEM, "read data.pkl");
	r = torch_zip_read(z, i, 0, bytes, z->records[i].bytes, e);
	if (r < 0) {
		alloc_free(bytes);
		return r;
	}
	*ret = bytes;
	*ret_len = z->records[i].bytes;
	return 0;
}

const char *torch_zip_prefix(const struct torch_zip *z)
{
	return z->prefix;
}

/* ---- Open and close ---- */

static int read_records(struct torch_zip *z, struct err *e)
{
	zip_int64_t n = zip_get_num_entries(z->zip, 0);
	const char *first = n > 0 ? zip_get_name(z->zip, 0, 0) : NULL;
	const char *slash = first ? strchr(first, '/') : NULL;

	if (!slash || slash == first || (size_t)(slash - first) >= sizeof(z->prefix))
		return err_set(e, CKPT_EPROTO,
			       "it is a ZIP archive, but torch.save() did not write it");
	memcpy(z->prefix, first, (size_t)(slash - first));
	z->records = alloc_array((size_t)n, sizeof(*z->records));
	if (!z->records)
		return err_code(e, -ENOMEM, "%" PRId64 " record%s", n, plural(n));
	z->n_records = (uint32_t)n;
	for (uint32_t i = 0; i < z->n_records; i++) {
		struct record *r = &z->records[i];
		zip_stat_t st;

		if (zip_stat_index(z->zip, i, 0, &st) < 0)
			return zip_failed(zip_get_error(z->zip), "its list of records", e);
		r->bytes = st.size;
		r->stored = st.comp_method == ZIP_CM_STORE && st.comp_size == st.size &&
			    st.encryption_method == ZIP_EM_NONE && st.size <= z->slice.len;
		r->checked = st.crc == 0;
	}
	return 0;
}

static int check_kind(struct torch_zip *z, struct err *e)
{
	static const char byteorder[] = "byteorder", constants[] = "constants.pkl";
	char order[8] = {0};
	uint32_t i;
	int r;

	if (find_record(z, constants, strlen(constants), &i) == 0)
		return err_set(e, CKPT_EPROTO,
			       "it holds a TorchScript module, not a state dictionary: save its "
			       "state_dict() with torch.save()");
	if (find_record(z, byteorder, strlen(byteorder), &i) < 0) /* torch 1.13 has none */
		return 0;
	r = torch_zip_read(z, i, 0, order, min_u64(z->records[i].bytes, sizeof(order) - 1), e);
	if (r == 0 && strcmp(order, "little") != 0)
		r = err_set(e, CKPT_EVERSION,
			    "its numbers are in '%s' byte order; only little-endian ones can be "
			    "read: load and save it with torch",
			    order);
	return r;
}

static int check_magic(struct torch_zip *z, struct err *e)
{
	uint8_t magic[4] = {0};
	zip_int64_t n = slice_read(z, magic, sizeof(magic));

	if (n < 0)
		return zip_failed(&z->error, "read it", e);
	if (memcmp(magic, "PK\3\4", 4) == 0)
		return 0;
	if (magic[0] == 0x80 && magic[1] >= 2 && magic[1] <= 5)
		return err_set(e, CKPT_EPROTO,
			       "it is in the format that torch.save() had before torch 1.6, or a "
			       "bare pickle, which cannot be read: load it with torch and save it "
			       "again");
	return err_set(e, CKPT_EPROTO, "it is no file of torch.save(): it does not begin as one");
}

/* len bytes at `at` of the slice. */
static int read_slice(struct torch_zip *z, uint64_t at, void *to, uint64_t len, struct err *e)
{
	uint8_t *p = to;

	z->position = at;
	for (uint64_t done = 0; done < len;) {
		zip_int64_t n = slice_read(z, p + done, len - done);

		if (n < 0)
			return zip_failed(&z->error, "read it", e);
		if (n == 0)
			return err_set(e, CKPT_ECORRUPT, "it became shorter while it was read");
		done += (uint64_t)n;
	}
	return 0;
}

struct directory {
	uint64_t records, bytes;
};

/* What an end at byte `at` of the tail says; a larger one that was seen before stays. */
static void note_end(const uint8_t *tail, uint64_t at, const uint8_t *end64, struct directory *d)
{
	uint64_t records = get_le16(tail + at + 10), bytes = get_le32(tail + at + 12);

	if (end64 && (records == UINT16_MAX || bytes == UINT32_MAX)) {
		records = get_le64(end64 + 32);
		bytes = get_le64(end64 + 40);
	}
	d->records = max_u64(d->records, records);
	d->bytes = max_u64(d->bytes, bytes);
}

/* How many records its directory says to have: all ends that libzip could take are looked at. */
static int find_directory(struct torch_zip *z, struct directory *d, struct err *e)
{
	uint64_t len = min_u64(z->slice.len, TAIL_BYTES), base = z->slice.len - len, at64;
	CLEANUP_FREE uint8_t *tail = alloc_zero(len);
	uint8_t end64[56];
	int r = tail ? read_slice(z, base, tail, len, e) : err_code(e, -ENOMEM, "open an archive");

	for (uint64_t at = 0; r == 0 && at + END_BYTES <= len; at++) {
		const uint8_t *locator = at >= END64_LOCATOR ? tail + at - END64_LOCATOR : NULL;

		if (memcmp(tail + at, "PK\5\6", 4) != 0)
			continue;
		if (!locator || memcmp(locator, "PK\6\7", 4) != 0) {
			note_end(tail, at, NULL, d);
			continue;
		}
		at64 = get_le64(locator + 8);
		if (at64 > z->slice.len || z->slice.len - at64 < sizeof(end64))
			continue; /* libzip refuses it */
		r = read_slice(z, at64, end64, sizeof(end64), e);
		if (r == 0)
			note_end(tail, at, end64, d);
	}
	return r;
}

/* libzip reads the directory into memory of its own: what it will take is counted before. */
static int charge(struct torch_zip *z, struct err *e)
{
	struct directory d = {0};
	uint64_t bytes = 0, names = 0;
	int r = find_directory(z, &d, e);

	if (r < 0)
		return r;
	d.bytes = min_u64(d.bytes, z->slice.len); /* else libzip refuses it */
	if (z->slice.own_metadata)
		source_metadata(d.bytes);
	if (!size_mul(d.records, RECORD_BYTES, &bytes) || !size_mul(d.bytes, 2, &names) ||
	    !size_add(bytes, names, &bytes) || !alloc_charge(bytes))
		return err_set(e, -ENOMEM, "no memory for its list of %" PRIu64 " record%s",
			       d.records, plural(d.records));
	z->charged = bytes;
	return 0;
}

static int open_zip(struct torch_zip *z, struct err *e)
{
	zip_source_t *source;
	zip_error_t why;
	int r = 0;

	zip_error_init(&why);
	source = zip_source_function_create(slice_callback, z, &why);
	if (source)
		z->zip = zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &why);
	if (!z->zip) {
		r = zip_failed(&why, "it is damaged or cut short", e);
		if (source)
			zip_source_free(source);
	}
	zip_error_fini(&why);
	return r;
}

int torch_zip_open(const struct torch_slice *s, struct torch_zip **ret, struct err *e)
{
	struct torch_zip *z = alloc_zero(sizeof(*z));
	int r;

	if (!z)
		return err_code(e, -ENOMEM, "open an archive");
	z->slice = *s;
	zip_error_init(&z->error);
	r = check_magic(z, e);
	if (r == 0)
		r = charge(z, e);
	if (r == 0)
		r = open_zip(z, e);
	if (r == 0)
		r = read_records(z, e);
	if (r == 0)
		r = check_kind(z, e);
	if (r < 0) {
		torch_zip_close(z);
		return r;
	}
	*ret = z;
	return 0;
}

void torch_zip_close(struct torch_zip *z)
{
	if (!z)
		return;
	if (z->file)
		zip_fclose(z->file);
	if (z->zip)
		zip_discard(z->zip);
	alloc_uncharge(z->charged);
	zip_error_fini(&z->error);
	alloc_free(z->records);
	alloc_free(z);
}
