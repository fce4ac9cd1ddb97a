/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_node.c - one node from its first open to loads after a restart that lost all memory.
 */
#include <config.h>

#include "ckptd/test_node_rig.h"

static void run_backend(const char *backend)
{
	struct world w = { .dir = test_dir_make(NULL) };
	struct node_options o;
	struct rank a, b;
	uint64_t base;

	node_options_default(&o);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	start(&w, backend, &o);
	connect_rank(&w, &a);
	connect_rank(&w, &b);
	assert_int_equal(open_rank(&a, 0, 2, "run1", &base), 0);
	assert_int_equal(base, UINT64_MAX);
	assert_int_equal(open_rank(&b, 1, 2, "run1", &base), 0);
	declare_rank(&a, 0, 2);
	declare_rank(&b, 1, 2);
	prepare_rank(&a);
	prepare_rank(&b);
	for (uint64_t step = 10; step <= 60; step += 10) {
		assert_int_equal(save_rank(&a, 0, step), 0);
		assert_int_equal(save_rank(&b, 1, step), 0);
		assert_int_equal(wait_rank(&a, step, CKPT_DURABLE), 0);
	}
	assert_int_equal(save_rank(&a, 0, 60), -EINVAL); /* steps rise (I5) */
	close(a.fd);
	close(b.fd);

	/* The same run may not come back as another process's; a new run gets memory. */
	connect_rank(&w, &a);
	connect_rank(&w, &b);
	assert_int_equal(open_rank(&a, 0, 2, "run2", &base), 0);
	assert_int_equal(base, 60);
	assert_int_equal(open_rank(&b, 1, 2, "run2", &base), 0);
	declare_rank(&a, 0, 2);
	load_rank(&a, 0, 60, CKPT_TIER_MEMORY);
	close(a.fd);
	close(b.fd);
	stop(&w);

	start(&w, backend, &o);
	connect_rank(&w, &a);
	assert_int_equal(open_rank(&a, 1, 2, "run1", &base), CKPT_EEPOCH);
	assert_int_equal(open_rank(&a, 1, 2, "run3", &base), 0);
	assert_int_equal(base, 60);
	declare_rank(&a, 1, 2);
	load_rank(&a, 1, 60, CKPT_TIER_DISK);
	close(a.fd);
	stop(&w);
	test_dir_remove(w.dir);
}

static void test_life_uring(void **state)
{
	struct err why = { 0 };

	(void)state;
	if (!disk_uring_usable(&why)) {
		printf("skip %s\n", why.text);
		skip();
	}
	run_backend("uring");
}

static void test_life_threads(void **state)
{
	(void)state;
	run_backend("threads");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_life_threads),
		cmocka_unit_test(test_life_uring),
	};

	return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
