/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disks on made-up trees: load, latency, errors, and which disk is ckptd's own.
 */
#include <config.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "ckptd/test_collect_tree.h"

static int setup(void **state)
{
	*state = tree_new(&collect_disk);
	return 0;
}

static int teardown(void **state)
{
	tree_free(*state);
	return 0;
}

#define SDA "sys/block/sda"

/* reads, merged, sectors, ms, writes, merged, sectors, ms, in flight, busy, queue, 4 of discards,
 * flushes, ms */
static const char *const before = "     100  0  800   50   10 0  80  30 0 20 80 0 0 0 0 5 10\n";
static const char *const after = "     140  0 1600  250   70 9 480 930 2 90 80 1 1 8 1 9 50\n";

static void put_disk(struct tree *t, const char *folder, const char *stat)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/stat", folder);
	tree_put(t, path, stat);
	snprintf(path, sizeof(path), "%s/device/model", folder);
	tree_put(t, path, "QEMU HARDDISK\n");
}

static void test_load_and_latency(void **state)
{
	struct tree *t = *state;
	const struct sample *s;

	put_disk(t, SDA, before);
	assert_int_equal(tree_read(t, 10), 0);
	assert_null(tree_sample(t, SAMPLE_DISK)); /* nothing is known of the time before */
	assert_int_equal(tree_sample(t, SAMPLE_NAME)->name.role, 'd');
	put_disk(t, SDA, after);
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_of(t, SAMPLE_DISK, "sda");
	assert_non_null(s);
	assert_int_equal(s->disk.ops, 40 + 60 + 4);
	assert_int_equal(s->disk.bytes, 1200 * 512);
	assert_true(s->disk.busy_ns == (200 + 900 + 40) * 1000000ull);
	assert_int_equal(s->disk.errors, 0);
	assert_true(t->out.metrics[METRIC_DISK_WRITE] == 400 * 512 / 10.0f);
	assert_true(fabs((double)t->out.metrics[METRIC_DISK_LATENCY] - 1.14 / 104) < 1e-5);
	assert_int_equal(tree_read(t, 10), 0); /* idle: no latency, and none is made up */
	assert_true(t->out.metrics[METRIC_DISK_WRITE] == 0);
	assert_true(isnan(t->out.metrics[METRIC_DISK_LATENCY]));
	assert_int_equal(tree_of(t, SAMPLE_DISK, "sda")->disk.ops, 0);
}

static void test_older_kernels_and_what_is_no_disk(void **state)
{
	struct tree *t = *state;

	put_disk(t, SDA, "1 0 8 5 1 0 8 3 0 2 8\n"); /* neither discards nor flushes */
	tree_put(t, "sys/block/loop0/stat", before);
	tree_put(t, "sys/block/dm-0/stat", before);
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(t->out.n, 1);
	put_disk(t, SDA, "2 0 16 10 2 0 16 6 0 2 8\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_sample(t, SAMPLE_DISK)->disk.ops, 2);
	test_says(t->out.state, "1 disk");
}

static void test_errors(void **state)
{
	struct tree *t = *state;

	put_disk(t, SDA, before);
	tree_put(t, SDA "/device/ioerr_cnt", "0x10\n");
	put_disk(t, "sys/block/nvme0n1", before);
	tree_put(t, "sys/block/nvme0n1/device/state", "live\n");
	assert_int_equal(tree_read(t, 10), 0);
	tree_put(t, SDA "/device/ioerr_cnt", "0x13\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "sda")->disk.errors, 0x13);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "nvme0n1")->disk.errors, 0);
	tree_put(t, "sys/block/nvme0n1/device/state", "resetting\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "nvme0n1")->disk.errors, 1);
	assert_int_equal(t->out.n_lines, 1);
	test_says(t->out.lines[0].text, "disk 'nvme0n1': its controller is resetting");
	assert_int_equal(tree_read(t, 10), 0); /* the same one */
	assert_int_equal(tree_of(t, SAMPLE_DISK, "nvme0n1")->disk.errors, 1);
	tree_put(t, "sys/block/nvme0n1/device/state", "live\n");
	assert_int_equal(tree_read(t, 10), 0);
	tree_put(t, "sys/block/nvme0n1/device/state", "dead\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "nvme0n1")->disk.errors, 2);
}

/* Whatever holds the data folder is told of first, hardware or not. */
static void test_the_disk_of_the_data_folder(void **state)
{
	struct tree *t = *state;
	char path[100];
	struct stat st;

	assert_int_equal(stat(t->dir, &st), 0);
	snprintf(t->config.data, sizeof(t->config.data), "%s", t->dir);
	snprintf(path, sizeof(path), "sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
	tree_link(t, path, "../../devices/virtual/block/md0/md0p1");
	tree_put(t, "sys/block/md0/stat", before);
	tree_put(t, "sys/block/md0/md/dev-sda1/errors", "2\n");
	tree_put(t, "sys/block/md0/md/dev-sdb1/errors", "1\n");
	put_disk(t, SDA, before);
	assert_int_equal(tree_read(t, 10), 0);
	assert_string_equal(t->out.samples[0].name.text, "md0");
	test_says(t->out.state, "the data folder is on md0");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "md0")->disk.errors, 3);
	/* A member is taken out, another one counts on, a third one comes, the first comes back. */
	tree_remove(t, "sys/block/md0/md/dev-sda1");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "md0")->disk.errors, 3);
	tree_put(t, "sys/block/md0/md/dev-sdb1/errors", "2\n");
	tree_put(t, "sys/block/md0/md/dev-sdc1/errors", "9\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "md0")->disk.errors, 4);
	tree_put(t, "sys/block/md0/md/dev-sda1/errors", "2\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_of(t, SAMPLE_DISK, "md0")->disk.errors, 4);
	assert_non_null(tree_of(t, SAMPLE_DISK, "sda"));
}

static void test_ill_treated(void **state)
{
	struct tree *t = *state;
	char path[100];
	struct stat st;

	assert_int_equal(stat(t->dir, &st), 0);
	snprintf(t->config.data, sizeof(t->config.data), "%s", t->dir);
	snprintf(path, sizeof(path), "sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
	tree_link(t, path, "../block/../../block//");
	put_disk(t, SDA, before);
	tree_put(t, SDA "/device/ioerr_cnt", "0x10\n");
	tree_put(t, SDA "/md/dev-x/errors", "1");
	put_disk(t, "sys/block/nvme0n1", after);
	tree_put(t, "sys/block/nvme0n1/device/state", "live\n");
	tree_ill_treat(t);
	tree_remove(t, SDA);
	assert_int_equal(tree_read(t, 10), 0);
	assert_null(tree_of(t, SAMPLE_DISK, "sda"));
	put_disk(t, SDA, before); /* back, with the same number */
	assert_int_equal(tree_read(t, 10), 0);
	assert_non_null(tree_of(t, SAMPLE_DISK, "sda"));
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_load_and_latency), T(test_older_kernels_and_what_is_no_disk),
		T(test_errors),           T(test_the_disk_of_the_data_folder),
		T(test_ill_treated),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
