/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.c - the command line of the simulator of a whole node.
 *
 *   sim --seeds N [--first S]   N runs from seed S (random, and printed, if it is not given)
 *   sim --seed S                one run, with its hash; CKPT_SEED does the same; CKPT_SIM_TRACE=1
 *                               shows it step by step
 *   sim --check-replay          each seed twice: the hashes must be equal
 *   sim --summary               what happened in all runs; fails if too little did
 *   sim --has-bugs              whether bugs are compiled in (--enable-fault-injection)
 *   sim --bugs                  each planted bug must be found within a minute (--seconds), and the
 *                               same runs must be silent without it; --bug NAME: that one
 *   sim --bug NAME              runs with it on; --profile NAME: other troubles than all of them
 *   sim --list-profiles         their names
 */
#include <config.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "tests/sim/sim.h"

#define BUG_SECONDS 60

static const struct profile everything = {
	.name = "everything",
	.jobs = 2,
	.world = 3,
	.trouble_ns = 800 * SIM_MS,
	.events = 8,
	.weight = {[TROUBLE_kill] = 4,
		   [TROUBLE_kill_at_op] = 6,
		   [TROUBLE_kill_at_point] = 8,
		   [TROUBLE_power] = 4,
		   [TROUBLE_keeper] = 2,
		   [TROUBLE_index] = 1,
		   [TROUBLE_sever] = 4,
		   [TROUBLE_kill_rank] = 6,
		   [TROUBLE_relaunch] = 3,
		   [TROUBLE_stop] = 1,
		   [TROUBLE_outage] = 2,
		   [TROUBLE_full] = 2,
		   [TROUBLE_flip] = 2,
		   [TROUBLE_lose_commit] = 1,
		   [TROUBLE_lose_file] = 1,
		   [TROUBLE_error_at_point] = 6,
		   [TROUBLE_flip_memory] = 4},
	.wait_durable = 4,
	.slow_load = 6,
	.admin = 30,
};

/* ckptd dies while it writes to a ledger, again and again; nothing is on disk soon. */
static const struct profile torn_ledgers = {
	.name = "torn ledgers",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 600 * SIM_MS,
	.events = 20,
	.weight = {[TROUBLE_kill_at_point] = 8, [TROUBLE_relaunch] = 1, [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 100,
	.slow_load = 100,
	.persist_every = 100,
	.one_point = true,
	.point = FAULT_LEDGER_RECORD,
};

/* What is digested is then refused memory; nothing is on disk soon. */
static const struct profile failed_digests = {
	.name = "failed digests",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 600 * SIM_MS,
	.events = 16,
	.weight = {[TROUBLE_error_at_point] = 8, [TROUBLE_relaunch] = 3, [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 100,
	.slow_load = 100,
	.persist_every = 100,
	.one_point = true,
	.point = FAULT_DIGESTED,
};

/* Slow readers that lose their connection while retention is at work. */
static const struct profile slow_readers = {
	.name = "slow readers",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 800 * SIM_MS,
	.events = 24,
	.weight = {[TROUBLE_sever] = 8,
		   [TROUBLE_kill] = 1,
		   [TROUBLE_keeper] = 2,
		   [TROUBLE_relaunch] = 4,
		   [TROUBLE_power] = 1,
		   [TROUBLE_kill_rank] = 2,
		   [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 2,
	.slow_load = 1,
	.keep_last = 1,
};

/* Damage to files, and loads from them. */
static const struct profile damage = {
	.name = "damage",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 600 * SIM_MS,
	.events = 16,
	.weight = {[TROUBLE_flip] = 8,
		   [TROUBLE_flip_memory] = 2,
		   [TROUBLE_power] = 3,
		   [TROUBLE_kill_rank] = 2},
	.wait_durable = 2,
	.slow_load = 10,
};

/* Damage to memory, where loads find it while its checkpoint is being written to a slow disk. */
static const struct profile damaged_memory = {
	.name = "damaged memory",
	.jobs = 1,
	.world = 2,
	.trouble_ns = 800 * SIM_MS,
	.events = 40,
	.weight = {[TROUBLE_flip_memory] = 8,
		   [TROUBLE_relaunch] = 3,
		   [TROUBLE_kill_rank] = 3,
		   [TROUBLE_kill] = 1,
		   [TROUBLE_power] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 2,
	.slow_load = 10,
	.sync_ns = 20 * SIM_MS,
	.load_step = 2,
};

/* Damage to files while memory still has what they should hold, and to that too. */
static const struct profile damaged_files = {
	.name = "damaged files",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 800 * SIM_MS,
	.events = 40,
	.weight = {[TROUBLE_flip] = 12,
		   [TROUBLE_flip_memory] = 4,
		   [TROUBLE_lose_file] = 4,
		   [TROUBLE_relaunch] = 2,
		   [TROUBLE_kill_rank] = 2,
		   [TROUBLE_kill_at_op] = 1,
		   [TROUBLE_power] = 1},
	.good_net = true,
	.wait_durable = 1,
	.slow_load = 10,
	.ask_trust = 6,
	.load_step = 4,
};

/* Memory is lost again and again, and nothing is on disk soon. */
static const struct profile losses = {
	.name = "losses",
	.jobs = 1,
	.world = 2,
	.trouble_ns = 800 * SIM_MS,
	.events = 12,
	.weight = {[TROUBLE_power] = 3,
		   [TROUBLE_keeper] = 3,
		   [TROUBLE_relaunch] = 2,
		   [TROUBLE_kill_rank] = 2,
		   [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 100,
	.slow_load = 20,
	.persist_every = 100,
};

/* Logs that cannot be written for seconds, and nothing else. */
static const struct profile outages = {
	.name = "outages",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 6 * SIM_S,
	.events = 4,
	.weight = {[TROUBLE_outage] = 1, [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 10,
	.slow_load = 10,
	.outage_ns = 4 * SIM_S,
};

/* A disk that others fill for seconds, and logs that cannot be written. */
static const struct profile full_disks = {
	.name = "full disks",
	.jobs = 2,
	.world = 3,
	.trouble_ns = 6 * SIM_S,
	.events = 4,
	.weight = {[TROUBLE_full] = 3, [TROUBLE_outage] = 1, [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 4,
	.slow_load = 10,
	.outage_ns = 4 * SIM_S,
};

/* ckptd is told to stop while ranks save; nothing is on disk before. */
static const struct profile stops = {
	.name = "stops",
	.jobs = 2,
	.world = 3,
	.trouble_ns = 600 * SIM_MS,
	.events = 6,
	.weight = {[TROUBLE_stop] = 4,
		   [TROUBLE_kill_rank] = 1,
		   [TROUBLE_outage] = 4,
		   [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 100,
	.slow_load = 20,
	.persist_every = 100,
	.outage_ns = 2 * SIM_S,
};

/* Somebody removes and pins what was just saved, while ranks come and go. */
static const struct profile people = {
	.name = "people",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 800 * SIM_MS,
	.events = 12,
	.weight = {[TROUBLE_kill] = 1,
		   [TROUBLE_kill_at_op] = 2,
		   [TROUBLE_relaunch] = 3,
		   [TROUBLE_stop] = 1,
		   [TROUBLE_kill_rank] = 3,
		   [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.wait_durable = 2,
	.slow_load = 6,
	.admin = 4,
};

/* Somebody removes the whole job, while ckptd dies and power is lost. */
static const struct profile removals = {
	.name = "removals",
	.jobs = 2,
	.world = 2,
	.trouble_ns = 800 * SIM_MS,
	.events = 24,
	.weight = {[TROUBLE_remove_job] = 8,
		   [TROUBLE_kill] = 1,
		   [TROUBLE_kill_at_op] = 3,
		   [TROUBLE_kill_at_point] = 2,
		   [TROUBLE_power] = 8,
		   [TROUBLE_stop] = 1,
		   [TROUBLE_sever] = 1,
		   [TROUBLE_keeper] = 1},
	.good_disk = true,
	.wait_durable = 4,
	.slow_load = 4,
};

/* Jobs that tools make are adopted, and power is lost. */
static const struct profile tools = {
	.name = "tools",
	.jobs = 1,
	.world = 2,
	.trouble_ns = 600 * SIM_MS,
	.events = 10,
	.weight = {[TROUBLE_power] = 4,
		   [TROUBLE_kill] = 1,
		   [TROUBLE_kill_at_op] = 3,
		   [TROUBLE_relaunch] = 1,
		   [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.wait_durable = 10,
	.slow_load = 10,
	.persist_every = 10,
	.admin = 2,
};

/* The job is started again and again, with another world and layout. */
static const struct profile restarts = {
	.name = "restarts",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 600 * SIM_MS,
	.events = 40,
	.weight = {[TROUBLE_relaunch] = 4, [TROUBLE_kill_rank] = 1, [TROUBLE_flip_memory] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 4,
	.slow_load = 4,
};

/* ckptd is killed again and again, and the ranks drift apart meanwhile. */
static const struct profile drift = {
	.name = "drift",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 1600 * SIM_MS,
	.events = 60,
	.weight = {[TROUBLE_kill] = 4, [TROUBLE_kill_at_point] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 4,
};

/* Ranks ask for checkpoints that are trusted, and not all for the same. */
static const struct profile trusting = {
	.name = "trusting",
	.jobs = 1,
	.world = 3,
	.trouble_ns = 800 * SIM_MS,
	.events = 16,
	.weight = {[TROUBLE_kill] = 2,
		   [TROUBLE_kill_at_point] = 3,
		   [TROUBLE_relaunch] = 4,
		   [TROUBLE_kill_rank] = 3,
		   [TROUBLE_outage] = 1,
		   [TROUBLE_power] = 1,
		   [TROUBLE_flip_memory] = 1},
	.good_net = true,
	.wait_durable = 4,
	.slow_load = 10,
	.admin = 60,
	.ask_trust = 2,
};

/* The clock of the day is set, again and again, and all else is well. */
static const struct profile clocks = {
	.name = "clocks",
	.jobs = 2,
	.world = 3,
	.trouble_ns = 3 * SIM_S,
	.events = 6,
	.weight = {[TROUBLE_clock] = 1},
	.good_disk = true,
	.good_net = true,
	.wait_durable = 4,
	.slow_load = 10,
	.no_alarm = true,
};

/* COMMIT files go, and power, while checkpoints are written. */
static const struct profile lost_commits = {
	.name = "lost commits",
	.jobs = 2,
	.world = 3,
	.trouble_ns = 800 * SIM_MS,
	.events = 12,
	.weight = {[TROUBLE_lose_commit] = 6,
		   [TROUBLE_power] = 8,
		   [TROUBLE_kill] = 2,
		   [TROUBLE_kill_at_op] = 4,
		   [TROUBLE_index] = 1,
		   [TROUBLE_flip] = 1},
	.good_net = true,
	.wait_durable = 2,
	.slow_load = 6,
	.admin = 30,
};

static const struct profile *const profiles[] = {
	&everything, &torn_ledgers, &failed_digests, &slow_readers, &damage, &damaged_memory,
	&damaged_files, &losses, &outages, &full_disks, &stops, &people,
	&tools, &restarts, &drift, &removals, &trusting, &clocks, &lost_commits,
};
#define PROFILES (sizeof(profiles) / sizeof(profiles[0]))

/* Which runs find a planted bug. NULL: none can, and why. */
static const struct {
	enum planted_bug bug;
	const struct profile *profile;
	const char *why;
} hunts[] = {
	{BUG_ACCEPT_OLD_TERM, NULL,
	 "a record of an older term is never read: append-if-absent lets "
	 "only the newest history write (coord/test_history)"},
	{BUG_ADOPT_TOLD_EARLY, &tools, NULL},
	{BUG_CHECK_IN_CACHE, &damage, NULL},
	{BUG_COMMIT_BEFORE_DIGESTS, &everything, NULL},
	{BUG_CREDIT_AT_ANY_STEP, &clocks, NULL},
	{BUG_DECLARATION_NOT_TAKEN, &torn_ledgers, NULL},
	{BUG_EPOCH_WITHOUT_SETTLING, &everything, NULL},
	{BUG_EXPIRE_BEFORE_RECORD, &everything, NULL},
	{BUG_FREE_BEFORE_COMMIT, &failed_digests, NULL},
	{BUG_LATEST_IS_NEWEST, &everything, NULL},
	{BUG_LEDGER_TRUSTS_TORN_RECORD, &torn_ledgers, NULL},
	{BUG_LEDGER_MOVE_MISSES, NULL,
	 "in virtual time the slices of a move follow each other at once (ckptd/test_ledger)"},
	{BUG_LOST_IS_GONE, &torn_ledgers, NULL},
	{BUG_LOST_IS_NOTHING, &everything, NULL},
	{BUG_LOST_WHILE_WRITING, &damaged_memory, NULL},
	{BUG_MIN_TRUST_IGNORED, &trusting, NULL},
	{BUG_MIX_TRIES, &everything, NULL},
	{BUG_MIXED_ORIGINS, &everything, NULL},
	{BUG_ONE_BAD_FILE_IS_ALL, &damaged_files, NULL},
	{BUG_OUTAGE_KEEPS_SLOTS, &outages, NULL},
	{BUG_OWN_IF_ALL_OWN, &restarts, NULL},
	{BUG_PASSED_BEFORE_EPOCH, &trusting, NULL},
	{BUG_PASSED_KEEPS_SLOTS, &drift, NULL},
	{BUG_PASSES_WHAT_IS_LOST, &damage, NULL},
	{BUG_PUBLISH_BEFORE_COMMIT, &everything, NULL},
	{BUG_REBUILD_WITHOUT_READING, &lost_commits, NULL},
	{BUG_RECYCLE_GIVEN, &everything, NULL},
	{BUG_RECYCLE_WITHOUT_COMMIT, &lost_commits, NULL},
	{BUG_REREAD_FORGOTTEN, &trusting, NULL},
	{BUG_REPEAT_REFUSED, &slow_readers, NULL},
	{BUG_RELEASED_IS_READ, NULL,
	 "in virtual time the slices of a release follow each other at once "
	 "(ckptd/test_sharing)"},
	{BUG_REMOVED_IS_OFFERED, &people, NULL},
	{BUG_REPLICAS_NOT_COMPARED, &everything, NULL},
	{BUG_REPLICAS_NOT_WRITTEN, &everything, NULL},
	{BUG_REWRITE_UNCHECKED, &damaged_files, NULL},
	{BUG_RETAIN_IGNORES_READERS, &slow_readers, NULL},
	{BUG_SAID_FORGOTTEN, NULL,
	 "of thousands of seeds one has memory refuse that record (ckptd/test_trust)"},
	{BUG_SEAL_AFTER_FALL_BACK, &damage, NULL},
	{BUG_SEAL_WAITS_FOR_PEERS, &everything, NULL},
	{BUG_SKIP_COMMIT_DIR_SYNC, &everything, NULL},
	{BUG_SKIP_EXPIRE_SYNC, NULL,
	 "the free record keeps a COMMIT that came back from being "
	 "offered (tests/sim/test_simstore)"},
	{BUG_SKIP_LEAF_CHECK, &damage, NULL},
	{BUG_SKIP_LOG_DIR_SYNC, &everything, NULL},
	{BUG_SKIP_REMOVE_SYNC, &removals, NULL},
	{BUG_SKIP_SHARD_SYNC, &everything, NULL},
	{BUG_SKIP_SPARE_LOCK, NULL,
	 "files that a process was given are never recycled: the lock is for tools "
	 "(tests/sim/test_simstore)"},
	{BUG_SLOT_KEEPS_HOLDER, &everything, NULL},
	{BUG_SPARE_OF_ANY_JOB, &everything, NULL},
	{BUG_SLOT_WITHOUT_PAGES, &everything, NULL},
	{BUG_SLOTS_LEFT_OUT, &torn_ledgers, NULL},
	{BUG_STOP_LEAVES_SEALED, &stops, NULL},
	{BUG_SUM_FORGETS_LOST, &losses, NULL},
	{BUG_SWEEP_FORGETS_WRITERS, NULL,
	 "what a job writes again it has kept in use all the time "
	 "(storage/test_object_sweep)"},
	{BUG_SWEEP_WHAT_IS_USED, &everything, NULL},
	{BUG_TAKE_RESERVE, &full_disks, NULL},
	{BUG_TRUST_BEFORE_RECORD, &trusting, NULL},
	{BUG_TRUST_QUEUED, &trusting, NULL},
	{BUG_WATCH_BY_WALL, &clocks, NULL},
	{BUG_WITHDRAW_UNCLEAR, &outages, NULL},
};
#define HUNTS (sizeof(hunts) / sizeof(hunts[0]))

/* What a killed ckptd had taken from libraries behind base/alloc.h nobody can give back. */
const char *__lsan_default_suppressions(void) __attribute__((visibility("default")));
const char *__lsan_default_suppressions(void)
{
	return "leak:ZSTD_\nleak:protobuf_c_message_unpack\n";
}

struct arguments {
	uint64_t first, seeds;
	bool one, replay, summary, bugs;
	int bug; /* on in every run, or -1 */
	const struct profile *profile;
	double seconds; /* for each bug */
};

static uint64_t random_seed(void)
{
	struct rng r;

	rng_system(&r);
	return rng_u64(&r) >> 24;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- Runs ---- */

static char current[64];

/* An assertion of the subject is as good as an accusation: which seed? */
static void died(int sig)
{
	ssize_t n = write(STDOUT_FILENO, current, strlen(current));

	(void)n;
	signal(sig, SIG_DFL);
	raise(sig);
}

static bool run_one(uint64_t seed, const struct profile *p, int bug, uint64_t counts[COUNTS],
		    uint64_t *ret_hash, char *why)
{
	bool good;

	fault_disarm_all();
	if (bug >= 0)
		bug_set((enum planted_bug)bug, true);
	good = sim_run(seed, p, counts, ret_hash, why);
	fault_disarm_all();
	return good;
}

static bool run_seed(const struct arguments *a, uint64_t seed, int bug, uint64_t counts[COUNTS])
{
	uint64_t hash, again, other[COUNTS] = {0};
	char why[512];
	bool good;

	snprintf(current, sizeof(current), "seed %" PRIu64 ": died\n", seed);
	fflush(stdout);
	good = run_one(seed, a->profile, bug, counts, &hash, why);
	if (a->one)
		printf("seed %" PRIu64 " hash %016" PRIx64 "\n", seed, hash);
	if (!good)
		printf("seed %" PRIu64 ": %s\n", seed, why);
	if (a->replay) {
		run_one(seed, a->profile, bug, other, &again, why);
		if (again != hash) {
			printf("seed %" PRIu64 ": a replay took another way\n", seed);
			good = false;
		}
	}
	return good;
}

static const char *const count_names[] = {
#define X(name) #name,
	SIM_COUNTS(X)
#undef X
};

static void print_counts(const uint64_t counts[COUNTS])
{
	for (int c = 0; c < COUNTS; c++)
		printf("%10" PRIu64 " %s\n", counts[c], count_names[c]);
}

/* ---- All seeds ---- */

/* A simulator in which nothing happens finds nothing: least counts for a thousand runs. */
static bool enough(const uint64_t counts[COUNTS])
{
	static const struct {
		enum count what;
		uint64_t least;
	} per_thousand[] = {
		{COUNT_committed, 10000},  {COUNT_wait_durable, 5000}, {COUNT_load_memory, 800},
		{COUNT_load_disk, 800},    {COUNT_load_reshard, 500},  {COUNT_load_step, 200},
		{COUNT_freed, 5000},       {COUNT_lost, 20},           {COUNT_aborted, 500},
		{COUNT_kills, 100},        {COUNT_kills_at_op, 100},   {COUNT_kills_at_point, 100},
		{COUNT_power_losses, 200}, {COUNT_keeper_deaths, 30},  {COUNT_rank_kills, 50},
		{COUNT_replaced, 20},      {COUNT_disk_faults, 500},   {COUNT_stops, 10},
		{COUNT_repeated, 500},     {COUNT_fell_back, 5},       {COUNT_zombies, 10},
		{COUNT_full, 50},          {COUNT_removed, 100},       {COUNT_pinned, 100},
		{COUNT_load_lost, 4},      {COUNT_stale_leaf, 5},     {COUNT_memory_hits, 120},
		{COUNT_bad_memory, 10},    {COUNT_vouched, 20},
		{COUNT_adopted, 30},       {COUNT_rewritten, 3},
	};
	bool good = true;

	if (counts[COUNT_runs] < 300)
		return true; /* too few to tell */
	for (size_t i = 0; i < sizeof(per_thousand) / sizeof(per_thousand[0]); i++) {
		uint64_t least = per_thousand[i].least * counts[COUNT_runs] / 1000;

		if (counts[per_thousand[i].what] >= least)
			continue;
		printf("sim: only %" PRIu64 " %s in %" PRIu64 " runs, at least %" PRIu64
		       " were expected\n",
		       counts[per_thousand[i].what], count_names[per_thousand[i].what],
		       counts[COUNT_runs], least);
		good = false;
	}
	return good;
}

static int run_seeds(const struct arguments *a)
{
	uint64_t counts[COUNTS] = {0}, bad = 0;
	double start = seconds();

	printf("sim: %" PRIu64 " seeds from %" PRIu64 "\n", a->seeds, a->first);
	for (uint64_t i = 0; i < a->seeds; i++)
		bad += !run_seed(a, a->first + i, a->bug, counts);
	if (a->summary)
		print_counts(counts);
	if (a->bug < 0 && a->profile == &everything && !enough(counts))
		bad++;
	printf("sim: %" PRIu64 " of %" PRIu64 " seeds bad, %.1f s\n", bad, a->seeds,
	       seconds() - start);
	return bad ? 1 : 0;
}

/* ---- Planted bugs ---- */

/* In a child: an assertion that fires has found the bug too. Returns the seeds that it took, 0 if
 * it was not found. With bug -1: whether all of them are silent. */
static uint64_t hunt(const struct arguments *a, const struct profile *p, int bug, uint64_t most)
{
	uint64_t counts[COUNTS] = {0}, hash, n = 0;
	double start = seconds();
	char why[512];
	int status, fds[2];
	pid_t pid;

	if (pipe(fds) != 0 || (fflush(stdout), pid = fork()) < 0)
		exit(2);
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		signal(SIGSEGV, SIG_DFL);
		if (!freopen("/dev/null", "w", stderr))
			_exit(2);
		while (n < most && seconds() - start < a->seconds) {
			n++;
			if (write(fds[1], &n, sizeof(n)) != sizeof(n))
				_exit(2);
			if (!run_one(a->first + n - 1, p, bug, counts, &hash, why)) {
				printf("    seed %" PRIu64 ": %s\n", a->first + n - 1, why);
				fflush(stdout);
				_exit(1);
			}
		}
		_exit(0);
	}
	close(fds[1]);
	while (read(fds[0], &n, sizeof(n)) == sizeof(n))
		;
	close(fds[0]);
	if (waitpid(pid, &status, 0) != pid)
		exit(2);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT && WTERMSIG(status) != SIGSEGV)
		exit(2); /* somebody else ended it: nothing is known */
	if (WIFSIGNALED(status))
		printf("    seed %" PRIu64 ": an assertion\n", a->first + n - 1);
	return n;
}

static int run_bugs(const struct arguments *a)
{
	int bad = 0;

	for (size_t i = 0; i < HUNTS; i++) {
		const char *name = bug_name(hunts[i].bug);
		double start = seconds();
		uint64_t n;

		if (a->bug >= 0 && a->bug != (int)hunts[i].bug)
			continue;
		if (!hunts[i].profile) {
			printf("%-26s masked: %s\n", name, hunts[i].why);
			continue;
		}
		n = hunt(a, hunts[i].profile, (int)hunts[i].bug, UINT64_MAX);
		printf("%-26s %s after %" PRIu64 " seeds, %.1f s (%s)\n", name,
		       n ? "found" : "NOT FOUND", n, seconds() - start, hunts[i].profile->name);
		bad += n == 0;
		/* The same runs without it are silent. */
		if (n && hunt(a, hunts[i].profile, -1, n)) {
			printf("%-26s is blamed for what happens without it\n", name);
			bad++;
		}
	}
	return bad ? 1 : 0;
}

/* ---- Arguments ---- */

static bool has_bugs(void)
{
#ifdef CKPT_FAULTS
	return true;
#else
	return false;
#endif
}

static int usage(void)
{
	fprintf(stderr,
		"usage: sim [--seeds N] [--first S] [--seed S] [--check-replay] [--summary]\n"
		"           [--bugs] [--bug NAME] [--profile NAME] [--seconds N]\n"
		"           [--has-bugs] [--list-profiles]\n");
	return 2;
}

static int find_bug(const char *name)
{
	for (int b = 0; b < PLANTED_BUGS; b++) {
		if (strcmp(bug_name((enum planted_bug)b), name) == 0)
			return b;
	}
	return -1;
}

static const struct profile *find_profile(const char *name)
{
	for (size_t i = 0; i < PROFILES; i++)
		if (strcmp(profiles[i]->name, name) == 0)
			return profiles[i];
	return NULL;
}

static int list_profiles(void)
{
	for (size_t i = 0; i < PROFILES; i++)
		printf("%s\n", profiles[i]->name);
	return 0;
}

int main(int argc, char **argv)
{
	struct arguments a = {.seeds = 100,
			      .first = random_seed(),
			      .bug = -1,
			      .profile = &everything,
			      .seconds = BUG_SECONDS};
	const char *seed = getenv("CKPT_SEED");

	signal(SIGABRT, died);
	signal(SIGSEGV, died);
	for (int i = 1; i < argc; i++) {
		const char *next = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(argv[i], "--check-replay") == 0) {
			a.replay = true;
			continue;
		} else if (strcmp(argv[i], "--summary") == 0) {
			a.summary = true;
			continue;
		} else if (strcmp(argv[i], "--bugs") == 0) {
			a.bugs = true;
			continue;
		} else if (strcmp(argv[i], "--has-bugs") == 0) {
			return has_bugs() ? 0 : 1;
		} else if (strcmp(argv[i], "--list-profiles") == 0) {
			return list_profiles();
		}
		if (!next)
			return usage();
		if (strcmp(argv[i], "--seeds") == 0)
			a.seeds = strtoull(next, NULL, 0);
		else if (strcmp(argv[i], "--first") == 0)
			a.first = strtoull(next, NULL, 0);
		else if (strcmp(argv[i], "--seed") == 0)
			seed = next;
		else if (strcmp(argv[i], "--seconds") == 0)
			a.seconds = strtod(next, NULL);
		else if (strcmp(argv[i], "--bug") == 0 && find_bug(next) >= 0)
			a.bug = find_bug(next);
		else if (strcmp(argv[i], "--profile") == 0 && find_profile(next))
			a.profile = find_profile(next);
		else
			return usage();
		i++;
	}
	if (a.bugs)
		return run_bugs(&a);
	if (seed) {
		a.first = strtoull(seed, NULL, 0);
		a.seeds = 1;
		a.one = true;
	}
	return run_seeds(&a);
}
