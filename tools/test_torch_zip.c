/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Archives that are written and read again: alignment, records beyond 4 GiB (in a sparse file), a
 * slice of a file, values. test_ctl_torch.sh has torch itself read and write them.
 */
#include <config.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tests/lib/test.h"
#include "tools/torch_names.h"
#include "tools/torch_tensor.h"
#include "tools/torch_values.h"
#include "tools/torch_zip_write.h"

struct sparse {
	int fd;
	uint64_t base;
};

/* Zeros are not written: they are there. */
static int put_sparse(void *arg, uint64_t offset, const void *bytes, uint64_t len, struct err *e)
{
	struct sparse *s = arg;
	const uint8_t *p = bytes;

	(void)e;
	if (len > 4096 && p[0] == 0 && memcmp(p, p + 1, len - 1) == 0)
		return 0;
	assert_int_equal(pwrite(s->fd, bytes, len, (off_t)(s->base + offset)), len);
	return 0;
}

static int temporary(void)
{
	const char *folder = getenv("TMPDIR");
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/ckpt-zip.XXXXXX", folder ? folder : "/tmp");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	unlink(path);
	return fd;
}

/* A tensor of u8 of n bytes, zeros but for the first and the last, at base of the file. */
static uint64_t write_tensor(struct sparse *s, uint64_t n)
{
	struct torch_zip_writer w = {.put = put_sparse, .arg = s, .prefix = "archive"};
	uint8_t *zeros = alloc_zero(1 << 20), one = 1;
	struct err e = {0};

	assert_int_equal(torch_zip_begin_tensor(&w, CKPT_U8, 1, &n, &e), 0);
	assert_int_equal(w.at % 64, 0);
	assert_int_equal(torch_zip_bytes(&w, &one, 1, &e), 0);
	for (uint64_t done = 1; done < n - 1;) {
		uint64_t len = min_u64(1 << 20, n - 1 - done);

		assert_int_equal(torch_zip_bytes(&w, zeros, len, &e), 0);
		done += len;
	}
	assert_int_equal(torch_zip_bytes(&w, &one, 1, &e), 0);
	assert_int_equal(torch_zip_record_end(&w, &e), 0);
	assert_int_equal(torch_zip_finish(&w, &e), 0);
	torch_zip_writer_free(&w);
	alloc_free(zeros);
	return w.at;
}

static void read_tensor(const struct sparse *s, uint64_t len, uint64_t n)
{
	struct torch_slice slice = {.fd = s->fd, .offset = s->base, .len = len};
	struct torch_tensor t;
	struct torch_view view;
	struct torch_zip *zip;
	struct pickle p;
	struct err e = {0};
	void *pickle = NULL;
	size_t pickle_len = 0;
	uint8_t bytes[2] = {9, 9};
	int r = torch_zip_open(&slice, &zip, &e);

	if (r != 0)
		fail_msg("%d '%s'", r, e.text);
	assert_int_equal(torch_zip_pickle(zip, &pickle, &pickle_len, &e), 0);
	assert_int_equal(pickle_parse(pickle, pickle_len, torch_find_name, &p, &e), 0);
	assert_int_equal(torch_tensor_of(&p, pickle_at(&p, p.root), &t, &e), 1);
	assert_int_equal(t.bytes, n);
	assert_int_equal(torch_view_open(zip, &t, 0, &view, &e), 0);
	assert_int_equal(torch_view_read(&view, n - 2, bytes, 2, &e), 0); /* checks all of it */
	assert_int_equal(bytes[0], n == 2);
	assert_int_equal(bytes[1], 1);
	assert_int_equal(torch_view_read(&view, 0, bytes, 2, &e), 0);
	assert_int_equal(bytes[0], 1);
	torch_view_close(&view);
	torch_zip_close(zip);
	pickle_free(&p);
	alloc_free(pickle);
}

static void test_sizes(void **state)
{
	static const uint64_t sizes[] = {2, 63, 64, 65, 4097, ((uint64_t)1 << 32) + 5, 100};
	struct sparse s = {.fd = temporary()};

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		uint64_t len = write_tensor(&s, sizes[i]);

		read_tensor(&s, len, sizes[i]);
		s.base += len; /* the next one is an archive inside of the file */
	}
	close(s.fd);
}

static void test_damage(void **state)
{
	struct sparse s = {.fd = temporary()};
	uint64_t len = write_tensor(&s, 100000);
	struct torch_slice slice = {.fd = s.fd, .len = len};
	struct torch_zip *zip;
	struct err e = {0};
	uint8_t byte = 7, to[2];
	uint64_t bytes;
	uint32_t record;

	(void)state;
	assert_int_equal(pwrite(s.fd, &byte, 1, (off_t)(len / 2)), 1);
	assert_int_equal(torch_zip_open(&slice, &zip, &e), 0);
	assert_int_equal(torch_zip_find(zip, "0", 1, &record, &bytes, &e), 0);
	assert_int_equal(bytes, 100000);
	assert_int_equal(torch_zip_read(zip, record, 5, to, 2, &e), CKPT_ECORRUPT);
	assert_non_null(strstr(e.text, "its record 'archive/data/0' is damaged"));
	torch_zip_close(zip);
	for (uint64_t cut = 1; cut < len; cut += 977) {
		slice.len = len - cut;
		assert_int_not_equal(torch_zip_open(&slice, &zip, &e), 0);
	}
	close(s.fd);
}

/* Of a storage that is larger than the tensor: x[:10] is saved with all of x. */
static void test_damage_of_a_part(void **state)
{
	enum { ALL = 100000, PART = 10 };
	struct sparse s = {.fd = temporary()};
	struct torch_slice slice = {.fd = s.fd, .len = write_tensor(&s, ALL)};
	struct torch_tensor t = {.key = "0",
				 .key_len = 1,
				 .dtype = CKPT_U8,
				 .storage_bytes = ALL,
				 .shape = {1, {PART}},
				 .stride = {1},
				 .span = PART,
				 .bytes = PART,
				 .packed = true};
	uint8_t to[PART], byte;
	struct torch_view view;
	struct torch_zip *zip;
	struct err e = {0};

	(void)state;
	for (int damaged = 0; damaged < 2; damaged++) {
		for (int held = 0; held < 2; held++) {
			int want = damaged ? CKPT_ECORRUPT : 0, r;

			t.packed = !held;
			assert_int_equal(torch_zip_open(&slice, &zip, &e), 0);
			r = torch_view_open(zip, &t, 1 << 20, &view, &e);
			assert_int_equal(r, held ? want : 0);
			if (r == 0) {
				assert_int_equal(torch_view_read(&view, 0, to, 4, &e), 0);
				assert_int_equal(torch_view_read(&view, 4, to + 4, PART - 4, &e),
						 want);
				assert_int_equal(to[0] | to[1] << 8, 1);
			}
			torch_view_close(&view);
			torch_zip_close(zip);
		}
		assert_int_equal(pread(s.fd, &byte, 1, (off_t)(slice.len / 2)), 1);
		byte ^= 1;
		assert_int_equal(pwrite(s.fd, &byte, 1, (off_t)(slice.len / 2)), 1);
	}
	close(s.fd);
}

static void test_values(void **state)
{
	uint8_t blob[256];
	void *archive = NULL, *again = NULL;
	size_t len = 0, again_len = 0;
	struct err e = {0};

	(void)state;
	for (size_t i = 0; i < sizeof(blob); i++)
		blob[i] = (uint8_t)i;
	for (size_t n = 0; n <= sizeof(blob); n += 128) {
		assert_int_equal(value_unwrap(blob, n, &again, &again_len, &e), 0);
		assert_int_equal(value_wrap(blob, n, &archive, &len, &e), 1);
		assert_int_equal(value_wrap(archive, len, &again, &again_len, &e), 0);
		assert_int_equal(value_unwrap(archive, len, &again, &again_len, &e), 1);
		assert_int_equal(again_len, n);
		assert_memory_equal(again, blob, n);
		alloc_free(again);
		alloc_free(archive);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_damage_of_a_part),
		cmocka_unit_test(test_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
