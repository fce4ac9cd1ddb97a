/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attack_jobs.c - attacks that need jobs and checkpoints: loads, saves, plans, waits, lists, large
 * declarations, places in the fd store, saves by many ranks, processes that end together.
 *
 * libckpt makes the jobs and checkpoints. A connection of this process that opens a rank again
 * takes it over from libckpt's (ckptd/epoch.c), and goes on by hand.
 */
#include <config.h>

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt.h>

#include "model/declaration.h"
#include "tests/adversary/attack.h"
#include "tests/adversary/speak.h"
#include "tests/lib/test.h"

enum { BLOBS = 4096, CALL_MS = 2000, SETUP_MS = 20000 };

/* ---- Jobs with checkpoints ---- */

/* One tensor of one dimension. */
static struct ckpt *join_job(const struct attack_options *o, const char *job, int rank, int world,
			     uint64_t bytes)
{
	struct ckpt_options how = {.size = sizeof(how), .run_id = "made", .socket = o->socket};
	struct ckpt_tensor t = {.size = sizeof(t),
				.name = "t",
				.dtype = CKPT_U8,
				.ndim = 1,
				.global_shape = &bytes};
	struct ckpt *c;

	if (ckpt_open(job, rank, world, &how, &c) < 0)
		return NULL;
	if (ckpt_declare(c, &t) >= 0 && ckpt_prepare(c, BLOBS) >= 0)
		return c;
	ckpt_close(c);
	return NULL;
}

static int save_job(struct ckpt *c, uint64_t step, void *bytes, uint64_t len, int64_t timeout_ms)
{
	struct ckpt_binding b = {
		.ptr = bytes, .device = CKPT_HOST, .dtype = CKPT_U8, .bytes = len};
	struct ckpt_save_args a = {.size = sizeof(a),
				   .step = step,
				   .tensors = &b,
				   .n_tensors = 1,
				   .timeout_ms = timeout_ms,
				   .flags = CKPT_WAIT_CREDIT};

	return ckpt_save(c, &a);
}

static void must(bool good)
{
	if (!good)
		_exit(1);
}

/* ---- Regions: a place in the fd store for each ---- */

enum { PLACE_RANKS = 1000 };

/* As many ranks as there may be, each with slots of its own. */
void attack_places(const struct attack_options *o)
{
	char job[32];
	int n = 0;

	snprintf(job, sizeof(job), "places-%u", o->number);
	for (;;) {
		struct ckpt *c = NULL;

		if (n < PLACE_RANKS)
			c = join_job(o, job, n, PLACE_RANKS, 64);
		if (c) {
			n++; /* it is kept, until this process ends */
			continue;
		}
		attack_begun(o); /* it has all that it gets */
		speak_rest(10);
	}
}

/* ---- Saves by many ranks ---- */

enum { MANY_RANKS = 96, MANY_BLOBS = 1000, BLOB_NAME = 8 };

static int save_with_blobs(struct ckpt *c, uint64_t step, const struct ckpt_blob *blobs)
{
	uint8_t bytes[64] = {0};
	struct ckpt_binding b = {
		.ptr = bytes, .device = CKPT_HOST, .dtype = CKPT_U8, .bytes = sizeof(bytes)};
	struct ckpt_save_args a = {.size = sizeof(a),
				   .step = step,
				   .tensors = &b,
				   .n_tensors = 1,
				   .blobs = blobs,
				   .n_blobs = MANY_BLOBS,
				   .timeout_ms = CALL_MS,
				   .flags = CKPT_WAIT_CREDIT};

	return ckpt_save(c, &a);
}

/* Each save commits a checkpoint of all ranks with blobs, and lets go of the one before. */
void attack_many_ranks(const struct attack_options *o)
{
	static char names[MANY_BLOBS][BLOB_NAME];
	static struct ckpt_blob blobs[MANY_BLOBS];
	static struct ckpt *ranks[MANY_RANKS];
	char job[32];

	for (int i = 0; i < MANY_BLOBS; i++) {
		snprintf(names[i], BLOB_NAME, "b%d", i);
		blobs[i] = (struct ckpt_blob){.name = names[i], .data = names[i]};
	}
	snprintf(job, sizeof(job), "many-%u", o->number);
	for (int i = 0; i < MANY_RANKS; i++)
		while (!(ranks[i] = join_job(o, job, i, MANY_RANKS, 64)))
			speak_rest(10);
	for (uint64_t step = 1;; step++) {
		for (int i = 0; i < MANY_RANKS; i++) /* what not all have saved is aborted */
			(void)save_with_blobs(ranks[i], step, blobs);
		attack_begun(o);
	}
}

/* ---- Loads without reading the answers ---- */

enum { LOAD_JOBS = 24, LOAD_BYTES = 65536, LOADS = 16 /* of a session: its quota */ };

static void load_job_name(char job[32], unsigned number, int i)
{
	snprintf(job, 32, "load-%u-%d", number, i);
}

void attack_unread_loads_setup(const struct attack_options *o)
{
	static uint8_t bytes[LOAD_BYTES];
	char job[32];

	for (int i = 0; i < LOAD_JOBS * ATTACKERS; i++) {
		struct ckpt *c;

		load_job_name(job, (unsigned)i % ATTACKERS, i / ATTACKERS);
		c = join_job(o, job, 0, 1, sizeof(bytes));
		must(c && save_job(c, 1, bytes, sizeof(bytes), SETUP_MS) == 0);
		must(ckpt_wait(c, 1, CKPT_COMMITTED, SETUP_MS, NULL) == 0);
		ckpt_close(c);
	}
}

/* As join_job() declares it. */
static void *declared_t(size_t *ret_len, struct digest *ret)
{
	struct shard s = {.name = "t", .name_len = 1, .dtype = CKPT_U8};
	struct declaration_builder *b;
	struct err e = {0};
	void *bytes;

	s.global.ndim = s.box.ndim = 1;
	s.global.dim[0] = s.box.length[0] = LOAD_BYTES;
	must(declaration_builder_new((struct geometry)GEOMETRY_DEFAULT, &b) == 0);
	must(declaration_add(b, &s, &e) >= 0);
	must(declaration_finish(b, &bytes, ret_len, &e) == 0);
	declaration_builder_free(b);
	*ret = declaration_digest(bytes, *ret_len);
	return bytes;
}

/* A connection that is rank 0 of a job, in an epoch that begins with its checkpoint; -1. */
static int enter_job(const struct attack_options *o, const char *job, const struct digest *digest,
		     const void *bytes, size_t len, int mfd)
{
	static unsigned runs;
	int fd = speak_enter_hello(o->socket);
	char run[48];

	snprintf(run, sizeof(run), "%d-%u", (int)getpid(), runs++);
	if (fd >= 0 && speak_open(fd, job, run, 0, 1) == 0 &&
	    speak_declare(fd, digest, bytes, len, mfd, SPEAK_WAIT_MS) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Answers with two descriptors each. */
void attack_unread_loads(const struct attack_options *o)
{
	struct digest digest;
	size_t len;
	void *bytes = declared_t(&len, &digest);
	int fds[LOAD_JOBS];
	char job[32];

	memset(fds, -1, sizeof(fds));
	for (uint64_t n = 100;; speak_rest(1)) {
		for (int i = 0; i < LOAD_JOBS; i++) {
			bool open = fds[i] >= 0;

			for (int k = 0; open && k < LOADS; k++)
				open = speak_load(fds[i], n++, CKPT_LATEST, MSG_DONTWAIT);
			if (open)
				continue;
			if (fds[i] >= 0)
				close(fds[i]);
			load_job_name(job, o->number, i);
			fds[i] = enter_job(o, job, &digest, bytes, len, -1);
		}
		attack_begun(o);
	}
}

/* ---- As much work as ckptd can be given: digests, files, plans ---- */

enum { BUSY_JOBS = 6, BUSY_BYTES = 4 << 20 };

static void load_own(struct ckpt *c, uint64_t step, void *bytes)
{
	struct ckpt_binding b = {
		.ptr = bytes, .device = CKPT_HOST, .dtype = CKPT_U8, .bytes = BUSY_BYTES};
	struct ckpt_load_args a = {.size = sizeof(a),
				   .step = step,
				   .tensors = &b,
				   .n_tensors = 1,
				   .timeout_ms = CALL_MS};
	struct ckpt_loaded got = {.size = sizeof(got)};

	ignore_result(ckpt_load(c, &a, &got));
}

void attack_saves_and_loads(const struct attack_options *o)
{
	static uint8_t bytes[BUSY_BYTES];
	struct ckpt *c[BUSY_JOBS];
	char job[32];

	for (int i = 0; i < BUSY_JOBS; i++) {
		snprintf(job, sizeof(job), "busy-%u-%d", o->number, i);
		c[i] = join_job(o, job, 0, 1, BUSY_BYTES);
		must(c[i]);
	}
	for (uint64_t step = 1;; step++) {
		memset(bytes, (int)step, sizeof(bytes));
		for (int i = 0; i < BUSY_JOBS; i++)
			ignore_result(save_job(c[i], step, bytes, BUSY_BYTES, CALL_MS));
		for (int i = 0; i < BUSY_JOBS; i++)
			load_own(c[i], step - 1, bytes);
		attack_begun(o);
	}
}

/* ---- Plans: what is stored as rows is wanted as columns ---- */

enum { LINES = 500, PLAN_JOBS = 4 };

static void *columns_bytes;
static size_t columns_len;
static struct digest columns_digest;

void attack_plans_make(void)
{
	struct declaration_builder *b;
	struct err e = {0};

	must(declaration_builder_new((struct geometry)GEOMETRY_DEFAULT, &b) == 0);
	for (uint64_t i = 0; i < LINES; i++) {
		struct shard s = {.name = "t", .name_len = 1, .dtype = CKPT_U8};

		s.global = (struct shape){2, {LINES, LINES}};
		s.box = (struct box){2, {0, i}, {LINES, 1}};
		must(declaration_add(b, &s, &e) >= 0);
	}
	must(declaration_finish(b, &columns_bytes, &columns_len, &e) == 0);
	declaration_builder_free(b);
	columns_digest = declaration_digest(columns_bytes, columns_len);
}

static int save_rows(struct ckpt *c, struct ckpt_binding *b)
{
	static uint8_t row[LINES];
	struct ckpt_save_args a = {.size = sizeof(a),
				   .step = 1,
				   .tensors = b,
				   .n_tensors = LINES,
				   .timeout_ms = SETUP_MS,
				   .flags = CKPT_WAIT_CREDIT};

	for (uint64_t i = 0; i < LINES; i++) {
		uint64_t global[2] = {LINES, LINES}, offset[2] = {i, 0}, shape[2] = {1, LINES};
		struct ckpt_tensor t = {.size = sizeof(t),
					.name = "t",
					.dtype = CKPT_U8,
					.ndim = 2,
					.global_shape = global,
					.offset = offset,
					.shape = shape};

		must(ckpt_declare(c, &t) >= 0);
		b[i] = (struct ckpt_binding){
			.ptr = row, .device = CKPT_HOST, .dtype = CKPT_U8, .bytes = LINES};
	}
	return ckpt_prepare(c, BLOBS) < 0 ? -1 : ckpt_save(c, &a);
}

static void plan_job_name(char job[32], unsigned number, int i)
{
	snprintf(job, 32, "plan-%u-%d", number, i);
}

void attack_plans_setup(const struct attack_options *o)
{
	static struct ckpt_binding bindings[LINES];
	struct ckpt_options how = {.size = sizeof(how), .run_id = "made", .socket = o->socket};
	char job[32];

	for (int i = 0; i < PLAN_JOBS * ATTACKERS; i++) {
		struct ckpt *c;

		plan_job_name(job, (unsigned)i % ATTACKERS, i / ATTACKERS);
		must(ckpt_open(job, 0, 1, &how, &c) == 0 && save_rows(c, bindings) == 0);
		must(ckpt_wait(c, 1, CKPT_COMMITTED, SETUP_MS, NULL) == 0);
		ckpt_close(c);
	}
}

/* Each has a piece for every element; the process that asks ends before the plan is made. */
void attack_plans(const struct attack_options *o)
{
	int mfd = speak_memfd(columns_bytes, columns_len);
	char job[32];

	for (uint64_t n = 100;; attack_begun(o)) {
		int fds[PLAN_JOBS];

		for (int i = 0; i < PLAN_JOBS; i++) {
			plan_job_name(job, o->number, i);
			fds[i] = enter_job(o, job, &columns_digest, NULL, 0, mfd);
			for (int k = 0; fds[i] >= 0 && k < LOADS; k++)
				speak_load(fds[i], n++, CKPT_LATEST, MSG_DONTWAIT);
		}
		speak_rest(100);
		for (int i = 0; i < PLAN_JOBS; i++)
			if (fds[i] >= 0)
				close(fds[i]);
	}
}

/* ---- Waits ---- */

enum { WAIT_RANKS = 48, WAITS = 64 /* of a session: its quota */ };

/* All ranks of a job, whose checkpoint of step 1 waits for all but the first. */
static void begin_checkpoint(const struct attack_options *o, const char *job)
{
	static struct ckpt *c[WAIT_RANKS];
	uint8_t byte[64] = {0};

	for (int i = 0; i < WAIT_RANKS; i++) {
		c[i] = join_job(o, job, i, WAIT_RANKS, sizeof(byte));
		must(c[i]);
	}
	must(save_job(c[0], 1, byte, sizeof(byte), SETUP_MS) == 0);
}

static int enter_rank(const struct attack_options *o, const char *job, int rank)
{
	int fd = speak_enter_hello(o->socket);

	if (fd >= 0 && speak_open_again(fd, job, "made", (uint32_t)rank, WAIT_RANKS) == 0) {
		for (uint64_t k = 0; k < WAITS; k++)
			speak_wait(fd, 100 + k, 1, CKPT_SEALED, 0);
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

/* As many as there may be, ended and begun again one by one, and all of a connection. */
void attack_waits(const struct attack_options *o)
{
	int fds[WAIT_RANKS];
	char job[32];

	snprintf(job, sizeof(job), "wait-%u", o->number);
	begin_checkpoint(o, job);
	memset(fds, -1, sizeof(fds));
	for (uint64_t n = 0;; n++) {
		for (int i = 0; i < WAIT_RANKS; i++) {
			uint64_t id = 100 + n % WAITS;
			bool open = fds[i] >= 0 && (n % 64 || i != (int)(n / 64) % WAIT_RANKS);

			if (open && speak_cancel(fds[i], id, MSG_DONTWAIT))
				speak_wait(fds[i], id, 1, CKPT_SEALED, MSG_DONTWAIT);
			if (open && speak_drain(fds[i], 0))
				continue;
			if (fds[i] >= 0)
				close(fds[i]);
			fds[i] = enter_rank(o, job, i);
		}
		attack_begun(o);
	}
}

/* ---- Lists ---- */

static void list_job_name(char job[32], unsigned number)
{
	snprintf(job, 32, "list-%u", number);
}

static bool pin(int admin, const char *job, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	q.id = 1000 + step;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	m.verb = CKPT__ADMIN__VERB__PIN;
	m.job = (char *)job;
	m.step = step;
	return speak(admin, &q, -1, 0) && speak_answer(admin, q.id, SETUP_MS) == 0;
}

/* Checkpoints that are never released. */
void attack_lists_setup(const struct attack_options *o)
{
	uint64_t steps = test_cap("CKPT_ADVERSARY_STEPS", 60);
	int admin = speak_enter_hello(o->socket);
	uint8_t byte[64] = {0};
	char job[32];

	for (unsigned i = 0; i < ATTACKERS; i++) {
		struct ckpt *c;

		list_job_name(job, i);
		c = join_job(o, job, 0, 1, sizeof(byte));
		must(c);
		for (uint64_t step = 1; step <= steps; step++) {
			must(save_job(c, step, byte, sizeof(byte), SETUP_MS) == 0);
			must(ckpt_wait(c, step, CKPT_COMMITTED, SETUP_MS, NULL) == 0);
			must(pin(admin, job, step));
		}
		ckpt_close(c);
	}
}

void attack_lists(const struct attack_options *o)
{
	static unsigned runs;
	char job[32], run[48];
	int fd = -1;

	list_job_name(job, o->number);
	for (;; attack_begun(o)) {
		bool open = fd >= 0;

		for (int k = 0; open && k < 16; k++)
			open = speak_list(fd, MSG_DONTWAIT) || errno == EAGAIN;
		if (open && speak_drain(fd, 1))
			continue;
		if (fd >= 0)
			close(fd);
		fd = speak_enter_hello(o->socket);
		snprintf(run, sizeof(run), "%d-%u", (int)getpid(), runs++);
		if (fd >= 0 && speak_open(fd, job, run, 0, 1) != 0) {
			close(fd);
			fd = -1;
		}
	}
}

/* ---- Declarations of tens of MiB ---- */

enum { LARGE_SHARDS = 24000, LARGE_NAME = 1000, LARGE_JOBS = 3, LARGE_KINDS = 2 };

static void *large_bytes[LARGE_KINDS];
static size_t large_len[LARGE_KINDS];
static struct digest large_digest[LARGE_KINDS];

void attack_large_declarations_make(void)
{
	char name[LARGE_NAME + 1];

	memset(name, 'x', sizeof(name));
	for (int k = 0; k < LARGE_KINDS; k++) {
		struct declaration_builder *b;
		struct err e = {0};

		must(declaration_builder_new((struct geometry)GEOMETRY_DEFAULT, &b) == 0);
		for (int i = 0; i < LARGE_SHARDS; i++) {
			struct shard s = {.name = name, .name_len = LARGE_NAME, .dtype = CKPT_U8};

			snprintf(name, sizeof(name), "%d.%08d", k, i);
			name[strlen(name)] = 'x';
			s.global = (struct shape){1, {1}};
			s.box = (struct box){1, {0}, {1}};
			must(declaration_add(b, &s, &e) >= 0);
		}
		must(declaration_finish(b, &large_bytes[k], &large_len[k], &e) == 0);
		declaration_builder_free(b);
		large_digest[k] = declaration_digest(large_bytes[k], large_len[k]);
	}
}

/* The one and the other, in turn: each is checked, and written down. */
void attack_large_declarations(const struct attack_options *o)
{
	int mfds[LARGE_KINDS];
	char job[32];

	for (int k = 0; k < LARGE_KINDS; k++)
		mfds[k] = speak_memfd(large_bytes[k], large_len[k]);
	for (unsigned n = 0;; attack_begun(o)) {
		int fd = speak_enter_hello(o->socket);

		snprintf(job, sizeof(job), "large-%u-%u", o->number, n++ % LARGE_JOBS);
		if (fd >= 0 && speak_open(fd, job, "run", 0, 1) == 0)
			for (int i = 0; i < 6; i++)
				speak_declare(fd, &large_digest[i % LARGE_KINDS], NULL, 0,
					      mfds[i % LARGE_KINDS], SPEAK_WAIT_MS);
		if (fd >= 0)
			close(fd);
	}
}

/* ---- Processes that end together ---- */

/* As many ranks as a user may have, all attackers together: three in four are of three processes,
 * the others have one each. */
enum { END_PROCESSES = 3, END_RANKS = 128, END_LONE = 128, END_ALL = END_PROCESSES + END_LONE };

/* Ranks of a job, until the other end of `until` is closed. */
static _Noreturn void be_job(const struct attack_options *o, unsigned run, int number, int told,
			     int until)
{
	bool lone = number >= END_PROCESSES;
	uint32_t ranks = lone ? 1 : END_RANKS, world = lone ? END_LONE : END_RANKS;
	uint32_t first = lone ? (uint32_t)(number - END_PROCESSES) : 0;
	char job[32], name[48], byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(name, sizeof(name), "%u", run);
	snprintf(job, sizeof(job), "end-%u-%d", o->number, lone ? END_PROCESSES : number);
	for (uint32_t i = 0; i < ranks; i++) {
		int fd = speak_enter_hello(o->socket);

		if (fd >= 0)
			speak_open(fd, job, name, first + i, world);
	}
	ignore_result((int)write(told, "b", 1));
	ignore_result((int)read(until, &byte, 1));
	_exit(1);
}

void attack_ends(const struct attack_options *o)
{
	for (unsigned run = 0;; attack_begun(o)) {
		int told[2], until[2];
		char byte;

		must(pipe(told) == 0 && pipe(until) == 0);
		run++;
		for (int i = 0; i < END_ALL; i++) {
			if (fork() == 0) {
				close(until[1]);
				be_job(o, run, i, told[1], until[0]);
			}
		}
		for (int i = 0; i < END_ALL; i++)
			ignore_result((int)read(told[0], &byte, 1));
		for (int i = 0; i < 2; i++) {
			close(told[i]);
			close(until[i]);
		}
		while (waitpid(-1, NULL, 0) > 0)
			;
	}
}
