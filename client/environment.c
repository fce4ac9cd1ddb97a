/* SPDX-License-Identifier: Apache-2.0 */
/*
 * environment.c - what launchers say about a process.
 *
 * What the caller gives wins over CKPT_*, that over what the launcher set. Rank and world come from
 * the same launcher: a torchrun inside a Slurm job has both sets and they differ. A variable that
 * is set and makes no sense is an error, never passed over.
 */
#include <config.h>

#include "client/environment.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "model/trust.h"

#define CONNECT_MS_DEFAULT 0
#define TIMEOUT_MS_DEFAULT 60000
#define THREADS_MAX	   64
#define CPU_THREADS_MAX	   8
#define LOAD_MEMORY_MAX     (1ull << 40)
#define LOAD_MEMORY_DEFAULT (64ull << 20)
#define DISK_THREADS_MIN   16 /* reads in flight that keep a disk busy, whatever the cores */

/* The variable's value; NULL when it is unset or empty. */
static const char *env(const char *name)
{
	const char *v = getenv(name);

	return v && v[0] ? v : NULL;
}

/* A whole number 0..max; false when it is not one. */
static bool parse_number(const char *text, uint64_t max, uint64_t *ret)
{
	uint64_t v = 0;

	for (const char *p = text; *p; p++) {
		if (*p < '0' || *p > '9' || v > (max - (uint64_t)(*p - '0')) / 10)
			return false;
		v = v * 10 + (uint64_t)(*p - '0');
	}
	if (!text[0])
		return false;
	*ret = v;
	return true;
}

static int env_number(const char *name, uint64_t max, uint64_t *ret, struct err *e)
{
	if (!parse_number(env(name), max, ret))
		return err_set(e, -EINVAL, "environment variable %s is '%s', not a number from 0 "
			       "to %llu", name, env(name), (unsigned long long)max);
	return 0;
}

/* Seconds, with a fraction if wanted, as milliseconds. */
static int env_seconds(const char *name, int64_t *ret_ms, struct err *e)
{
	const char *text = env(name), *dot;
	char whole[24], part[4] = "000";
	uint64_t s, ms;

	if (!text)
		return 0;
	dot = strchrnul(text, '.');
	snprintf(whole, sizeof(whole), "%.*s", (int)min_u64((uint64_t)(dot - text), 20), text);
	for (int i = 0; i < 3 && *dot && dot[1 + i]; i++)
		part[i] = dot[1 + i];
	if (!parse_number(whole, INT_MAX, &s) || !parse_number(part, 999, &ms))
		return err_set(e, -EINVAL, "environment variable %s is '%s', not a number of "
			       "seconds", name, text);
	*ret_ms = (int64_t)(s * 1000 + ms);
	return 0;
}

/* ---- Rank and world ---- */

static const struct {
	const char *rank, *world;
} launchers[] = {
	{"CKPT_RANK", "CKPT_WORLD"},
	{"RANK", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"SLURM_PROCID", "SLURM_NTASKS"},
	{"PMI_RANK", "PMI_SIZE"},
};

/* Whether some launcher started this process: then half of what it says is no reason to assume that
 * the process is alone. */
static bool is_launched(void)
{
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
		if (env(launchers[i].rank) || env(launchers[i].world))
			return true;
	/* Of launchers whose places are not read. */
	return env("PMIX_RANK") || env("LOCAL_RANK") || env("MPI_LOCALRANKID") ||
	       env("MV2_COMM_WORLD_RANK") || env("MPIRUN_RANK") || env("JSM_NAMESPACE_RANK") ||
	       env("PALS_RANKID") || env("FLUX_TASK_RANK");
}

static int find_place(int rank, int world, struct identity *id, struct err *e)
{
	uint64_t r = (uint64_t)rank, w = (uint64_t)world;
	int ret = 0;

	if (rank < CKPT_FROM_ENV || world < CKPT_FROM_ENV)
		return err_set(e, -EINVAL,
			       "rank %d of world %d: ranks count from 0, and CKPT_FROM_ENV takes "
			       "one from the environment",
			       rank, world);
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		bool has_rank = rank >= 0 || env(launchers[i].rank);
		bool has_world = world >= 0 || env(launchers[i].world);

		if (!has_rank || !has_world)
			continue;
		if (rank < 0)
			ret = env_number(launchers[i].rank, RANKS_MAX - 1, &r, e);
		if (ret == 0 && world < 0)
			ret = env_number(launchers[i].world, RANKS_MAX, &w, e);
		if (ret < 0)
			return ret;
		if (w == 0 || w > RANKS_MAX || r >= w)
			return err_set(e, -EINVAL, "rank %llu of world %llu does not exist: ranks "
				       "count from 0 and world is at most %d",
				       (unsigned long long)r, (unsigned long long)w, RANKS_MAX);
		id->rank = (uint32_t)r;
		id->world = (uint32_t)w;
		return 0;
	}
	if (rank < 0 && world < 0 && !is_launched()) {
		id->rank = 0;
		id->world = 1;
		id->assumed = true;
		return 0;
	}
	return err_set(
		e, -EINVAL,
		"%s not given and the environment does not say (%s%s%s, those of Slurm, "
		"Open MPI or PMI, or CKPT_RANK and CKPT_WORLD); pass rank and world, 0 and 1 for a "
		"single process",
		rank >= 0    ? "world is"
		: world >= 0 ? "rank is"
			     : "rank and world are",
		rank < 0 ? "RANK" : "", rank < 0 && world < 0 ? " and " : "",
		world < 0 ? "WORLD_SIZE" : "");
}

/* ---- Run id ---- */

static int set_run_id(struct identity *id, const char *from, const char *base, const char *count,
		      struct err *e)
{
	int n = snprintf(id->run_id, sizeof(id->run_id), "%s%s%s", base, count ? "." : "",
			 count ? count : "");

	if (n < 0 || (size_t)n >= sizeof(id->run_id))
		return err_set(e, -EINVAL, "run id of %s is longer than %d bytes", from,
			       RUN_ID_BYTES_MAX);
	return 0;
}

/*
 * Each srun in an allocation is a launch of its own, if its tasks are the ranks. They are not where
 * a step only starts mpirun's daemons (on all nodes but its own), or each rank has its own step.
 */
static bool launch_is_step(const struct identity *id)
{
	uint64_t tasks;

	return env("SLURM_STEP_ID") && env("SLURM_NTASKS") && !env("OMPI_COMM_WORLD_RANK") &&
	       parse_number(env("SLURM_NTASKS"), RANKS_MAX, &tasks) && tasks == id->world;
}

static int find_run_id(const char *given, struct identity *id, struct err *e)
{
	const char *elastic = env("TORCHELASTIC_RUN_ID"), *slurm = env("SLURM_JOB_ID");
	char step[RUN_ID_BYTES_MAX + 1];
	int n = 0;

	if (given)
		return set_run_id(id, "the caller", given, NULL, e);
	if (env("CKPT_RUN_ID"))
		return set_run_id(id, "CKPT_RUN_ID", env("CKPT_RUN_ID"), NULL, e);
	/* "none" is what torchrun says when its user gave no id: equal in every launch. */
	if (elastic && strcmp(elastic, "none") != 0)
		return set_run_id(id, "TORCHELASTIC_RUN_ID", elastic,
				  env("TORCHELASTIC_RESTART_COUNT"), e);
	if (!slurm || elastic)
		return 0;
	if (launch_is_step(id))
		n = snprintf(step, sizeof(step), "%s.step%s", slurm, env("SLURM_STEP_ID"));
	if (n < 0 || (size_t)n >= sizeof(step))
		return err_set(e, -EINVAL,
			       "SLURM_JOB_ID and SLURM_STEP_ID are too long for a run "
			       "id");
	return set_run_id(id, "SLURM_JOB_ID", n ? step : slurm, env("SLURM_RESTART_COUNT"), e);
}

/* ---- The rest ---- */

static int add_socket(struct identity *id, const char *dir, const char *name, struct err *e)
{
	char *path = id->sockets[id->n_sockets];
	int n = snprintf(path, sizeof(id->sockets[0]), "%s%s", dir, name);

	if (n < 0 || (size_t)n >= sizeof(id->sockets[0]))
		return err_set(e, -ENAMETOOLONG, "path of ckptd's socket is longer than %d bytes: "
			       "'%.60s...'", SOCKET_PATH_MAX, path);
	id->n_sockets++;
	return 0;
}

static int find_sockets(const char *given, struct identity *id, struct err *e)
{
	const char *dir = env("XDG_RUNTIME_DIR");
	int r = 0;

	id->n_sockets = 0;
	if (!given)
		given = env("CKPT_SOCKET");
	if (given)
		return add_socket(id, given, "", e);
	if (dir)
		r = add_socket(id, dir, "/ckptd.sock", e);
	return r < 0 ? r : add_socket(id, "/run/ckptd", "/ckptd.sock", e);
}

static int find_token(const char *given, struct identity *id, struct err *e)
{
	const char *text = given ? given : env("CKPT_TOKEN");

	if (!text)
		return 0;
	if (strlen(text) != 2 * TOKEN_BYTES || hex_parse(id->token, TOKEN_BYTES, text) < 0)
		return err_set(e, -EINVAL,
			       "the job's token (%s) is not %d hexadecimal digits, as "
			       "`ckptctl token` prints them",
			       given ? "given by the caller" : "CKPT_TOKEN", 2 * TOKEN_BYTES);
	id->token_len = TOKEN_BYTES;
	return 0;
}

static int find_min_trust(struct identity *id, struct err *e)
{
	const char *text = env("CKPT_MIN_TRUST");
	enum trust_level level = TRUST_LATEST;

	if (text && !trust_parse(text, &level))
		return err_set(e, -EINVAL,
			       "environment variable CKPT_MIN_TRUST is '%.40s', not latest, "
			       "complete or verified",
			       text);
	id->min_trust = level;
	return 0;
}

/* Bytes, or with K, M or G behind the number: powers of 1024. */
static int find_load_memory(struct identity *id, struct err *e)
{
	static const char units[] = "KMG";
	const char *text = env("CKPT_LOAD_MEMORY"), *unit;
	uint64_t v = 0, scale = 1;
	char number[24];
	size_t len;

	id->load_memory = LOAD_MEMORY_DEFAULT;
	if (!text)
		return 0;
	len = strlen(text);
	unit = strchr(units, text[len - 1]);
	if (unit)
		scale = 1024ull << (10 * (unit - units));
	snprintf(number, sizeof(number), "%.*s", (int)min_u64(len - (unit != NULL), 20), text);
	if (!parse_number(number, LOAD_MEMORY_MAX / scale, &v) || v == 0)
		return err_set(e, -EINVAL,
			       "environment variable CKPT_LOAD_MEMORY is '%s', not a "
			       "number of bytes such as 67108864 or 64M",
			       text);
	id->load_memory = v * scale;
	return 0;
}

/* Members beyond what the caller was compiled with are absent. */
static struct ckpt_options known_options(const struct ckpt_options *opt)
{
	struct ckpt_options known = { .size = sizeof(known) };

	if (opt)
		memcpy(&known, opt, min_u64(opt->size, sizeof(known)));
	return known;
}

int identity_find(const char *job, int rank, int world, const struct ckpt_options *opt,
		  struct identity *ret, struct err *e)
{
	struct ckpt_options o = known_options(opt);
	struct identity id = { .connect_ms = CONNECT_MS_DEFAULT, .timeout_ms = TIMEOUT_MS_DEFAULT };
	int r;

	if (opt && opt->size < sizeof(opt->size))
		return err_set(e, -EINVAL, "options: size is %zu; set it to sizeof(struct "
			       "ckpt_options)", opt->size);
	if (!job)
		job = env("CKPT_JOB");
	if (!job)
		return err_set(e, -EINVAL, "no job is named: pass one or set CKPT_JOB");
	if (!name_is_safe(job))
		return err_set(e, -EINVAL, "job name '%.80s' is not allowed: 1 to %d of "
			       "A-Z a-z 0-9 . _ - and no leading dot", job, CKPT_JOB_MAX);
	snprintf(id.job, sizeof(id.job), "%s", job);
	r = find_place(rank, world, &id, e);
	if (r == 0)
		r = find_run_id(o.run_id, &id, e);
	if (r == 0)
		r = find_sockets(o.socket, &id, e);
	if (r == 0)
		r = find_token(o.token, &id, e);
	if (r == 0)
		r = env_seconds("CKPT_CONNECT_TIMEOUT", &id.connect_ms, e);
	if (r == 0)
		r = env_seconds("CKPT_TIMEOUT", &id.timeout_ms, e);
	if (r == 0)
		r = find_load_memory(&id, e);
	if (r == 0)
		r = find_min_trust(&id, e);
	if (r < 0)
		return r;
	if (o.flags & ~(CKPT_EXISTING | CKPT_TRAINS | CKPT_OWN_STATE))
		return err_set(e, -EINVAL,
			       "options: flags are %#x, and only CKPT_EXISTING, CKPT_TRAINS and "
			       "CKPT_OWN_STATE are known",
			       o.flags);
	id.existing = o.flags & CKPT_EXISTING;
	id.trains = !id.existing || (o.flags & CKPT_TRAINS);
	id.own_state = o.flags & CKPT_OWN_STATE;
	id.interrupted = o.interrupted;
	id.interrupted_arg = o.interrupted_arg;
	if (o.connect_timeout_ms < CKPT_DEFAULT_TIMEOUT || o.timeout_ms < CKPT_DEFAULT_TIMEOUT)
		return err_set(e, -EINVAL,
			       "options: a timeout of %lld ms; give milliseconds, or CKPT_FOREVER",
			       (long long)(o.timeout_ms < CKPT_DEFAULT_TIMEOUT
						   ? o.timeout_ms
						   : o.connect_timeout_ms));
	if (o.connect_timeout_ms && o.connect_timeout_ms != CKPT_DEFAULT_TIMEOUT)
		id.connect_ms = o.connect_timeout_ms;
	if (o.timeout_ms && o.timeout_ms != CKPT_DEFAULT_TIMEOUT)
		id.timeout_ms = o.timeout_ms;
	*ret = id;
	return 0;
}

/* ---- Threads ---- */

static uint32_t processes_here(uint32_t world)
{
	static const char *const names[] = { "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
					     "SLURM_NTASKS_PER_NODE" };
	uint64_t v;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (env(names[i]) && parse_number(env(names[i]), RANKS_MAX, &v) && v > 0)
			return (uint32_t)v;
	return world;
}

uint32_t load_threads(uint32_t world, bool wait_bound)
{
	const char *text = env("CKPT_LOAD_THREADS");
	uint32_t here = processes_here(world), cores = 1, n;
	uint64_t v;
	cpu_set_t set;

	assert(here > 0);
	if (text && parse_number(text, THREADS_MAX, &v) && v > 0)
		return (uint32_t)v;
	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		cores = (uint32_t)CPU_COUNT(&set);
	n = (uint32_t)min_u64(max_u64(cores / here, 1), CPU_THREADS_MAX);
	if (wait_bound)
		n = (uint32_t)max_u64(n, max_u64(DISK_THREADS_MIN / here, 2));
	return n;
}
