/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What launchers say: which variable wins, and that nonsense is refused by name.
 */
#include <config.h>

#include "client/environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/test.h"


static int clear(void **state)
{
	(void)state;
	return clearenv();
}

static void set(const char *const *pairs)
{
	clearenv();
	for (; *pairs; pairs += 2)
		setenv(pairs[0], pairs[1], 1);
}
#define SET(...) set((const char *const[]){ __VA_ARGS__, NULL })

static int find(struct identity *id, struct err *e)
{
	err_clear(e);
	return identity_find("job", CKPT_FROM_ENV, CKPT_FROM_ENV, NULL, id, e);
}

static void test_rank_and_world(void **state)
{
	struct identity id;
	struct err e;

	(void)state;
	SET("RANK", "3", "WORLD_SIZE", "8");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.rank, 3);
	assert_int_equal(id.world, 8);
	/* A torchrun inside a Slurm job: never the rank of one and the world of the other. */
	SET("RANK", "3", "WORLD_SIZE", "8", "SLURM_PROCID", "1", "SLURM_NTASKS", "2");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.rank, 3);
	assert_int_equal(id.world, 8);
	SET("RANK", "3", "SLURM_PROCID", "1", "SLURM_NTASKS", "2");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.rank, 1);
	assert_int_equal(id.world, 2);
	SET("OMPI_COMM_WORLD_RANK", "4", "OMPI_COMM_WORLD_SIZE", "5", "SLURM_PROCID", "0",
	    "SLURM_NTASKS", "1");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.rank, 4);
	assert_int_equal(id.world, 5);
	SET("CKPT_RANK", "0", "CKPT_WORLD", "1", "RANK", "3", "WORLD_SIZE", "8");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.world, 1);
	/* What the caller gives wins, each for itself. */
	SET("RANK", "3", "WORLD_SIZE", "8");
	assert_int_equal(identity_find("job", 5, CKPT_FROM_ENV, NULL, &id, &e), 0);
	assert_int_equal(id.rank, 5);
	assert_int_equal(id.world, 8);
}

static void refused(int r, const struct err *e, const char *names)
{
	assert_int_equal(r, -EINVAL);
	assert_non_null(strstr(e->text, names));
}

static void test_nonsense_is_refused(void **state)
{
	struct ckpt_options o = { .size = sizeof(o) };
	struct identity id;
	struct err e = { 0 };

	(void)state;
	clearenv();
	SET("RANK", "0");
	refused(find(&id, &e), &e, "rank and world are not given");
	refused(find(&id, &e), &e, "(RANK and WORLD_SIZE, ");
	clearenv();
	refused(identity_find("j", 0, CKPT_FROM_ENV, NULL, &id, &e), &e, "world is not given");
	refused(identity_find("j", 0, CKPT_FROM_ENV, NULL, &id, &e), &e, "(WORLD_SIZE, ");
	refused(identity_find("j", CKPT_FROM_ENV, 4, NULL, &id, &e), &e, "rank is not given");
	SET("RANK", "-1", "WORLD_SIZE", "8");
	refused(find(&id, &e), &e, "RANK is '-1'");
	SET("RANK", "1", "WORLD_SIZE", "8x");
	refused(find(&id, &e), &e, "WORLD_SIZE is '8x'");
	SET("RANK", "8", "WORLD_SIZE", "8");
	refused(find(&id, &e), &e, "rank 8 of world 8");
	SET("RANK", "1", "WORLD_SIZE", "99999999999999999999999");
	refused(find(&id, &e), &e, "WORLD_SIZE");
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_TIMEOUT", "soon");
	refused(find(&id, &e), &e, "CKPT_TIMEOUT is 'soon'");
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_CONNECT_TIMEOUT", "1.x");
	refused(find(&id, &e), &e, "CKPT_CONNECT_TIMEOUT");
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_TOKEN", "xyz");
	refused(find(&id, &e), &e, "CKPT_TOKEN");
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_TOKEN", "00ff10");
	refused(find(&id, &e), &e, "64 hexadecimal digits");
	clearenv();
	refused(identity_find("a/b", 0, 1, NULL, &id, &e), &e, "'a/b'");
	refused(identity_find(NULL, 0, 1, NULL, &id, &e), &e, "CKPT_JOB");
	refused(identity_find("j", 0, 1, &(struct ckpt_options){ .size = 1 }, &id, &e), &e, "size");
	refused(identity_find("j", -5, 1, NULL, &id, &e), &e, "rank -5 of world 1");
	o.connect_timeout_ms = -3;
	refused(identity_find("j", 0, 1, &o, &id, &e), &e, "a timeout of -3 ms");
	o.connect_timeout_ms = 0;
	o.token = "0g";
	refused(identity_find("j", 0, 1, &o, &id, &e), &e, "given by the caller");
}

/* Nothing says otherwise: rank 0 of 1. Half of what a launcher says is no reason to assume it. */
static void test_alone(void **state)
{
	static const char *const halves[] = {"RANK",     "WORLD_SIZE",   "LOCAL_RANK", "CKPT_RANK",
					     "PMI_RANK", "SLURM_NTASKS", "PMIX_RANK",  "PMI_SIZE"};
	struct ckpt_options o = {.size = sizeof(o), .flags = CKPT_EXISTING | CKPT_TRAINS};
	struct identity id;
	struct err e = {0};

	(void)state;
	clearenv();
	assert_int_equal(find(&id, &e), 0);
	assert_true(id.assumed && id.rank == 0 && id.world == 1);
	for (size_t i = 0; i < sizeof(halves) / sizeof(halves[0]); i++) {
		clearenv();
		setenv(halves[i], "1", 1);
		refused(find(&id, &e), &e, "rank and world are not given");
	}
	SET("PMI_RANK", "3", "PMI_SIZE", "4");
	assert_int_equal(find(&id, &e), 0);
	assert_true(!id.assumed && id.rank == 3 && id.world == 4);
	clearenv();
	assert_int_equal(identity_find("j", 0, 1, &o, &id, &e), 0);
	assert_true(!id.assumed && id.existing && id.trains);
	o.flags = CKPT_EXISTING;
	assert_int_equal(identity_find("j", 0, 1, &o, &id, &e), 0);
	assert_true(id.existing && !id.trains);
}

static void test_run_id(void **state)
{
	struct ckpt_options o = { .size = sizeof(o), .run_id = "mine" };
	struct identity id;
	struct err e;

	(void)state;
	SET("RANK", "0", "WORLD_SIZE", "1");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "");
	SET("RANK", "0", "WORLD_SIZE", "1", "SLURM_JOB_ID", "77", "SLURM_RESTART_COUNT", "2");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "77.2");
	/* Two srun in one allocation are two launches, */
	SET("SLURM_PROCID", "1", "SLURM_NTASKS", "4", "SLURM_JOB_ID", "77", "SLURM_STEP_ID", "3");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "77.step3");
	setenv("SLURM_RESTART_COUNT", "2", 1);
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "77.step3.2");
	/* but not where steps are not launches: mpirun's daemons, or one srun for each rank. */
	SET("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "4", "SLURM_NTASKS", "4",
	    "SLURM_JOB_ID", "77", "SLURM_STEP_ID", "3");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "77");
	SET("RANK", "1", "WORLD_SIZE", "4", "SLURM_NTASKS", "1", "SLURM_JOB_ID", "77",
	    "SLURM_STEP_ID", "3");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "77");
	SET("RANK", "0", "WORLD_SIZE", "1", "SLURM_JOB_ID", "77", "TORCHELASTIC_RUN_ID", "el",
	    "TORCHELASTIC_RESTART_COUNT", "1");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "el.1");
	/* torchrun's way of saying that there is none: the same in every launch. */
	SET("RANK", "0", "WORLD_SIZE", "1", "TORCHELASTIC_RUN_ID", "none",
	    "TORCHELASTIC_RESTART_COUNT", "1");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "");
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_RUN_ID", "given", "SLURM_JOB_ID", "77");
	assert_int_equal(find(&id, &e), 0);
	assert_string_equal(id.run_id, "given");
	assert_int_equal(identity_find("j", 0, 1, &o, &id, &e), 0);
	assert_string_equal(id.run_id, "mine");
}

static void test_socket_token_timeouts(void **state)
{
	struct ckpt_options o = { .size = sizeof(o), .socket = "/mine", .connect_timeout_ms = 5,
				  .timeout_ms = 7 };
	struct identity id;
	struct err e;

	(void)state;
	SET("RANK", "0", "WORLD_SIZE", "1", "XDG_RUNTIME_DIR", "/run/user/7");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.n_sockets, 2);
	assert_string_equal(id.sockets[0], "/run/user/7/ckptd.sock");
	assert_string_equal(id.sockets[1], "/run/ckptd/ckptd.sock");
	assert_int_equal(id.connect_ms, 0);
	assert_int_equal(id.timeout_ms, 60000);
	assert_int_equal(id.token_len, 0);
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_SOCKET", "/there", "CKPT_TOKEN",
	    "00ff10aa00ff10aa00ff10aa00ff10aa00ff10aa00ff10aa00ff10aa00ff10aa", "CKPT_TIMEOUT",
	    "2.5", "CKPT_CONNECT_TIMEOUT", "30");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.n_sockets, 1);
	assert_string_equal(id.sockets[0], "/there");
	assert_int_equal(id.token_len, 32);
	assert_memory_equal(id.token + 28, "\x00\xff\x10\xaa", 4);
	assert_int_equal(id.connect_ms, 30000);
	assert_int_equal(id.timeout_ms, 2500);
	assert_int_equal(identity_find("j", 0, 1, &o, &id, &e), 0);
	assert_string_equal(id.sockets[0], "/mine");
	assert_int_equal(id.connect_ms, 5);
	assert_int_equal(id.timeout_ms, 7);
	assert_false(id.existing || id.own_state);
	o.flags = CKPT_EXISTING | CKPT_OWN_STATE;
	assert_int_equal(identity_find("j", 0, 1, &o, &id, &e), 0);
	assert_true(id.existing && id.own_state);
	o.flags = 8;
	refused(identity_find("j", 0, 1, &o, &id, &e), &e, "flags");
	/* A caller of an older libckpt: what it does not know is absent. */
	o.size = offsetof(struct ckpt_options, token);
	assert_int_equal(identity_find("j", 0, 1, &o, &id, &e), 0);
	assert_string_equal(id.sockets[0], "/mine");
	assert_int_equal(id.timeout_ms, 2500);
}

static void test_threads(void **state)
{
	(void)state;
	clearenv();
	setenv("CKPT_LOAD_THREADS", "5", 1);
	assert_int_equal(load_threads(4, false), 5);
	setenv("CKPT_LOAD_THREADS", "lots", 1);
	assert_in_range(load_threads(1, false), 1, 8);
	unsetenv("CKPT_LOAD_THREADS");
	assert_in_range(load_threads(1, true), 16, 16); /* waiting for a disk needs no cores */
	assert_int_equal(load_threads(100000, false), 1);
	setenv("LOCAL_WORLD_SIZE", "60000", 1);
	assert_int_equal(load_threads(1, false), 1);
	assert_int_equal(load_threads(1, true), 2);
}

static void test_load_memory(void **state)
{
	static const char *const wrong[] = {"0", "lots", "M", "-1", "12T", "1M ", "2000G"};
	struct identity id;
	struct err e = {0};

	(void)state;
	SET("RANK", "0", "WORLD_SIZE", "1");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.load_memory, 64u << 20);
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_LOAD_MEMORY", "1000000");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.load_memory, 1000000);
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_LOAD_MEMORY", "512K");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.load_memory, 512u << 10);
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_LOAD_MEMORY", "3G");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.load_memory, 3ull << 30);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_LOAD_MEMORY", wrong[i]);
		err_clear(&e);
		assert_int_equal(find(&id, &e), -EINVAL);
		assert_non_null(strstr(e.text, "CKPT_LOAD_MEMORY"));
	}
}

static void test_min_trust(void **state)
{
	struct identity id;
	struct err e = {0};

	(void)state;
	SET("RANK", "0", "WORLD_SIZE", "1");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.min_trust, CKPT_TRUST_LATEST);
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_MIN_TRUST", "verified");
	assert_int_equal(find(&id, &e), 0);
	assert_int_equal(id.min_trust, CKPT_TRUST_VERIFIED);
	SET("RANK", "0", "WORLD_SIZE", "1", "CKPT_MIN_TRUST", "much");
	assert_int_equal(find(&id, &e), -EINVAL);
	assert_non_null(strstr(e.text, "CKPT_MIN_TRUST"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_rank_and_world, clear),
		cmocka_unit_test_setup(test_nonsense_is_refused, clear),
		cmocka_unit_test_setup(test_alone, clear),
		cmocka_unit_test_setup(test_run_id, clear),
		cmocka_unit_test_setup(test_socket_token_timeouts, clear),
		cmocka_unit_test_setup(test_threads, clear),
		cmocka_unit_test_setup(test_load_memory, clear),
		cmocka_unit_test_setup(test_min_trust, clear),
	};

	return cmocka_run_group_tests_name("environment", tests, NULL, NULL);
}
