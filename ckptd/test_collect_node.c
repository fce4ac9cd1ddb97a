/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is read of the machine as a whole: pressure, CPU, memory, memory errors; on made-up trees.
 */
#include <config.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "ckptd/collect_file.h"
#include "ckptd/test_collect_tree.h"

static int teardown(void **state)
{
	tree_free(*state);
	return 0;
}

static int setup_pressure(void **state)
{
	*state = tree_new(&collect_pressure);
	return 0;
}

static int setup_memory(void **state)
{
	*state = tree_new(&collect_memory);
	return 0;
}

static void near(float a, double b)
{
	if (!(fabs((double)a - b) < 1e-4))
		fail_msg("%f is not near %f", (double)a, b);
}

static void put_pressure(struct tree *t, unsigned cpu_us, unsigned io_us)
{
	char text[200];

	snprintf(text, sizeof(text), "some avg10=1.00 avg60=2.00 avg300=3.00 total=%u\n", cpu_us);
	tree_put(t, "proc/pressure/cpu", text);
	tree_put(t, "proc/pressure/memory",
		 "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
		 "full avg10=0.00 avg60=0.00 avg300=0.00 total=4\n");
	snprintf(text, sizeof(text),
		 "some avg10=0.00 avg60=0.00 avg300=0.00 total=%u\nfull avg10=0 total=1\n", io_us);
	tree_put(t, "proc/pressure/io", text);
}

static void put_machine(struct tree *t)
{
	put_pressure(t, 1000, 7000000);
	tree_put(t, "proc/stat",
		 "cpu  100 0 50 800 50 0 0 0 90 0\ncpu0 100 0 50 800 50 0 0 0 90 0\nintr 1 2\n");
	tree_put(t, "proc/meminfo",
		 "MemTotal:       1000000 kB\nMemFree:  10 kB\n"
		 "MemAvailable:    250000 kB\n");
	tree_put(t, "proc/self/cgroup", "0::/system.slice/ckptd.service\n");
}

static void test_shares_of_the_time_between_two_reads(void **state)
{
	struct tree *t = *state;

	put_machine(t);
	assert_int_equal(tree_read(t, 10), 0);
	assert_true(isnan(t->out.metrics[METRIC_CPU])); /* the time before is not known */
	assert_true(isnan(t->out.metrics[METRIC_PSI_IO]));
	near(t->out.metrics[METRIC_MEMORY], 0.75);
	put_pressure(t, 501000, 17000000); /* half a second, ten */
	tree_put(t, "proc/stat", "cpu  130 10 60 850 100 5 5 0 110 0\n");
	assert_int_equal(tree_read(t, 10), 0);
	near(t->out.metrics[METRIC_PSI_CPU], 0.05);
	near(t->out.metrics[METRIC_PSI_IO], 1);
	near(t->out.metrics[METRIC_PSI_MEMORY], 0);
	near(t->out.metrics[METRIC_CPU], 60.0 / 160);
	assert_int_equal(t->out.n, 0);
	test_says(t->out.state, "pressure");
}

static void test_machine_without_psi_shows_its_cgroups(void **state)
{
	struct tree *t = *state;

	put_machine(t);
	tree_remove(t, "proc/pressure");
	tree_put(t, "sys/fs/cgroup/system.slice/ckptd.service/io.pressure",
		 "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n");
	assert_int_equal(tree_read(t, 10), 0);
	tree_put(t, "sys/fs/cgroup/system.slice/ckptd.service/io.pressure",
		 "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\n");
	assert_int_equal(tree_read(t, 4), 0);
	near(t->out.metrics[METRIC_PSI_IO], 0.25);
	assert_true(isnan(t->out.metrics[METRIC_PSI_CPU]));
	tree_remove(t, "sys/fs/cgroup/system.slice");
	assert_int_equal(tree_read(t, 4), 0);
	assert_true(isnan(t->out.metrics[METRIC_PSI_IO])); /* unknown, not 0 */
	test_says(t->out.state, "psi=1");
}

static void test_machine_ill_treated(void **state)
{
	struct tree *t = *state;

	put_machine(t);
	tree_ill_treat(t);
	tree_remove(t, "proc");
	assert_int_equal(tree_read(t, 1), -EPROTO);
	test_says(t->e.text, "meminfo");
}

/* ---- Memory errors ---- */

#define MC "sys/devices/system/edac/mc/"

static void put_edac(struct tree *t)
{
	tree_put(t, MC "mc0/ce_count", "3\n");
	tree_put(t, MC "mc0/ue_count", "0\n");
	tree_put(t, MC "mc0/dimm0/dimm_ce_count", "3\n");
	tree_put(t, MC "mc0/dimm0/dimm_ue_count", "0\n");
	tree_put(t, MC "mc0/dimm0/dimm_label", "CPU_SrcID#0_MC#0_Chan#1_DIMM#0\n");
	tree_put(t, MC "mc1/ce_count", "1\n");
	tree_put(t, MC "mc1/ue_count", "2\n");
	tree_put(t, MC "power/x", "1\n");
}

static void test_errors_of_all_controllers(void **state)
{
	struct tree *t = *state;
	const struct sample *s;

	put_edac(t);
	assert_int_equal(tree_read(t, 10), 0);
	s = tree_sample(t, SAMPLE_MEMORY);
	assert_non_null(s);
	assert_int_equal(s->memory.corrected, 4);
	assert_int_equal(s->memory.uncorrected, 2);
	assert_int_equal(s->device, SAMPLE_NONE);
	assert_int_equal(t->out.n_lines, 0); /* what was counted before is no news */
	tree_put(t, MC "mc0/ce_count", "10\n");
	tree_put(t, MC "mc0/dimm0/dimm_ce_count", "9\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_sample(t, SAMPLE_MEMORY)->memory.corrected, 11);
	assert_int_equal(t->out.n_lines, 1);
	test_says(t->out.lines[0].text, "mc0/dimm0 (CPU_SrcID#0_MC#0_Chan#1_DIMM#0): 6 more");
	tree_put(t, MC "mc0/ce_count", "2\n"); /* somebody wrote to reset_counters */
	tree_put(t, MC "mc0/dimm0/dimm_ce_count", "0\n");
	tree_put(t, MC "mc0/dimm0/dimm_ue_count", "1\n");
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_sample(t, SAMPLE_MEMORY)->memory.corrected, 13);
	assert_int_equal(t->out.n_lines, 1);
	assert_int_equal(t->out.lines[0].level, LOG_ERR); /* uncorrected */
	tree_remove(t, MC "mc1");                         /* what it counted stays counted */
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_sample(t, SAMPLE_MEMORY)->memory.uncorrected, 2);
	tree_put(t, MC "mc2/ue_count", "7\n"); /* before anybody looked at it */
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(tree_sample(t, SAMPLE_MEMORY)->memory.uncorrected, 2);
}

static void test_no_edac(void **state)
{
	struct tree *t = *state;

	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(t->out.n, 0);
	test_says(t->out.state, "EDAC");
	tree_folder(t, MC "mc0"); /* a driver that has only just been loaded */
	assert_int_equal(tree_read(t, 10), 0);
	assert_int_equal(t->out.n, 0);
	put_edac(t);
	assert_int_equal(tree_read(t, 10), 0);
	assert_non_null(tree_sample(t, SAMPLE_MEMORY));
}

static void test_edac_ill_treated(void **state)
{
	struct tree *t = *state;
	char path[100];

	put_edac(t);
	tree_ill_treat(t);
	for (int i = 0; i < 100; i++) { /* more controllers and modules than anybody has */
		snprintf(path, sizeof(path), MC "mc%d/dimm%d/dimm_ce_count", i, i);
		tree_put(t, path, "1");
	}
	for (int i = 0; i < 600; i++) {
		snprintf(path, sizeof(path), MC "mc1/dimm%d/dimm_ce_count", i);
		tree_put(t, path, "1");
	}
	assert_int_equal(tree_read(t, 10), 0);
	assert_non_null(tree_sample(t, SAMPLE_MEMORY));
}

/* ---- Files ---- */

static void test_numbers(void **state)
{
	static const struct {
		const char *text;
		bool good;
		uint64_t value;
	} cases[] = {
		{"0", true, 0},
		{"12\n", true, 12},
		{"0x10", true, 16},
		{"010", true, 10},
		{"-1", false, 0},
		{" 1", false, 0},
		{"1 2", false, 0},
		{"", false, 0},
		{"0x", false, 0},
		{"1\n\n", false, 0},
		{"12kB", false, 0},
		{"18446744073709551616", false, 0},
		{"18446744073709551615", true, UINT64_MAX},
	};
	struct tree *t = *state;
	uint64_t v;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tree_put(t, "number", cases[i].text);
		v = 77;
		assert_int_equal(collect_number(&v, "%s/number", t->dir), cases[i].good);
		assert_true(v == (cases[i].good ? cases[i].value : 77));
	}
	tree_put_bytes(t, "number", "1\0002", 3);
	assert_false(collect_number(&v, "%s/number", t->dir));
	assert_false(collect_number(&v, "%s/%0600d", t->dir, 1)); /* a path that is too long */
	assert_int_equal(collect_each(NULL, NULL, "%s/number", t->dir), -ENOTDIR);
}

static void test_counters_that_begin_anew(void **state)
{
	struct collect_counter c = {0};

	(void)state;
	assert_int_equal(collect_count(&c, 100), 0);
	assert_int_equal(c.sum, 100);
	assert_int_equal(collect_count(&c, 130), 30);
	assert_int_equal(collect_count(&c, 5), 5);
	assert_int_equal(collect_count(&c, 5), 0);
	assert_int_equal(c.sum, 135);
}

int main(void)
{
#define P(name) cmocka_unit_test_setup_teardown(name, setup_pressure, teardown)
#define M(name) cmocka_unit_test_setup_teardown(name, setup_memory, teardown)
	const struct CMUnitTest tests[] = {
		P(test_shares_of_the_time_between_two_reads),
		P(test_machine_without_psi_shows_its_cgroups),
		P(test_machine_ill_treated),
		M(test_errors_of_all_controllers),
		M(test_no_edac),
		M(test_edac_ill_treated),
		M(test_numbers),
		M(test_counters_that_begin_anew),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
