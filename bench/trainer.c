/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer.c - one rank: state, handle and limits, driven by orders.
 *
 * Times are taken here, around the call alone. Page faults are the process's (RUSAGE_SELF), so that
 * those of the library's threads count. The one child of this process is made before it has
 * anything: a fork makes every page fault once more.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "bench/trainer.h"
#include "ckpt.h"
#include "client/environment.h"
#include "codec/digest.h"

#define LEAF (64u << 10)

struct rank {
	struct state state;
	struct ckpt *ckpt;
	uint8_t *memfd;  /* as large as the state */
	uint8_t *leaves; /* digests of the state */
	struct echo *echo;
	int world;
	struct matrix_cut cut; /* rows 0: the state is no matrices */
};

static long faults(void)
{
	struct rusage u;

	return getrusage(RUSAGE_SELF, &u) == 0 ? u.ru_minflt : -1;
}

/* What the scheduler says of this thread; false: this kernel does not. */
static bool core_time(uint64_t *ret_ran_ns, uint64_t *ret_queued_ns)
{
	FILE *f = fopen("/proc/thread-self/schedstat", "re");
	bool said = f && fscanf(f, "%" SCNu64 " %" SCNu64, ret_ran_ns, ret_queued_ns) == 2;

	if (f)
		fclose(f);
	return said;
}

static uint64_t cpu_ns(void)
{
	struct timespec t = { 0 };

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int of_ckpt(int r, struct err *e)
{
	return r < 0 ? err_set(e, r, "%s", ckpt_last_error(NULL)) : r;
}

/* ---- Orders ---- */

static int take_leaves(struct rank *k, struct err *e)
{
	alloc_free(k->leaves);
	k->leaves = alloc_zero(div_up(k->state.bytes, LEAF) * 16);
	return k->leaves ? 0 : err_code(e, -ENOMEM, "make room for digests");
}

static int make_state(struct rank *k, const struct order *o, struct err *e)
{
	int r = state_make(&k->state, o->bytes, o->tensors, (uint64_t)o->rank + 1, e);

	if (r < 0 || o->kind == ORDER_TENSORS)
		return r;
	r = memfd_map(o->bytes, &k->memfd, e);
	return r < 0 ? r : take_leaves(k, e);
}

/* Bytes that this process has had read from devices; 0 where nobody counts. */
static uint64_t device_bytes(void)
{
	FILE *f = fopen("/proc/self/io", "re");
	unsigned long long n = 0;
	char line[80];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "read_bytes: %llu", &n) == 1)
			break;
	if (f)
		fclose(f);
	return n;
}

static int make_matrices(struct rank *k, const struct order *o, struct err *e)
{
	k->cut = (struct matrix_cut){.rows = o->rows, .rank = o->rank, .world = o->world};
	return state_make_matrices(&k->state, &k->cut, e);
}

static int declare_matrices(struct rank *k, struct err *e)
{
	uint64_t width = MATRIX_COLUMNS / (uint64_t)k->cut.world;
	uint64_t global[2] = {k->cut.rows, MATRIX_COLUMNS}, shape[2] = {k->cut.rows, width};
	uint64_t offset[2] = {0, (uint64_t)k->cut.rank * width};
	char name[64];
	int r = 0;

	for (uint32_t i = 0; i < MATRICES && r >= 0; i++) {
		struct ckpt_tensor t = {.size = sizeof(t),
					.name = name,
					.dtype = CKPT_F32,
					.ndim = 2,
					.global_shape = global,
					.offset = offset,
					.shape = shape,
					.flags = CKPT_TRAINED};

		snprintf(name, sizeof(name), "model.block.%u.weight", i);
		r = ckpt_declare(k->ckpt, &t);
	}
	return of_ckpt(r, e);
}

static int declare(struct rank *k, struct err *e)
{
	if (k->cut.rows)
		return declare_matrices(k, e);

	for (uint32_t i = 0; i < k->state.n; i++) {
		uint64_t shape = k->state.tensors[i].bytes / 4;
		struct ckpt_tensor t = { .size = sizeof(t), .dtype = CKPT_F32, .ndim = 1,
					 .global_shape = &shape, .flags = CKPT_TRAINED };
		char name[64];
		int r;

		snprintf(name, sizeof(name), "model.%d.block.%u.weight", ckpt_rank(k->ckpt), i);
		t.name = name;
		r = ckpt_declare(k->ckpt, &t);
		if (r < 0)
			return of_ckpt(r, e);
	}
	return 0;
}

static int join_job(struct rank *k, const struct order *o, struct err *e)
{
	struct ckpt_options opt = { .size = sizeof(opt), .run_id = o->run, .socket = o->socket,
				    .connect_timeout_ms = 20000 };
	int r = of_ckpt(ckpt_open(o->job, o->rank, o->world, &opt, &k->ckpt), e);

	k->world = o->world;
	return r < 0 ? r : declare(k, e);
}

static int prepare(struct rank *k, struct err *e)
{
	return of_ckpt(ckpt_prepare(k->ckpt, 0), e);
}

static int open_job(struct rank *k, const struct order *o, struct err *e)
{
	int r = join_job(k, o, e);

	if (r >= 0)
		r = prepare(k, e);
	if (r == CKPT_ENOSPACE && k->cut.rows) {
		err_clear(e); /* room for a save is not what a load needs */
		r = 0;
	}
	return r < 0 ? r : 0;
}

static int save(struct rank *k, const struct order *o, struct answer *a, struct err *e)
{
	struct ckpt_save_args args = { .size = sizeof(args), .step = o->step,
				       .tensors = k->state.tensors, .n_tensors = k->state.n,
				       .timeout_ms = CKPT_DEFAULT_TIMEOUT,
				       .flags = CKPT_WAIT_CREDIT };
	uint64_t ran = 0, queued = 0;
	long before;
	int r;

	if (!k->cut.rows)
		state_touch(&k->state, o->step);
	ignore_result(core_time(&ran, &queued) /* asked again below */);
	before = faults();
	a->begin = now_ns();
	r = ckpt_save(k->ckpt, &args);
	a->end = a->sealed = now_ns();
	a->faults = faults() - before;
	if (core_time(&a->ran_ns, &a->queued_ns)) {
		a->ran_ns -= ran;
		a->queued_ns -= queued;
	}
	if (r < 0)
		return of_ckpt(r, e);
	if (r & CKPT_SKIPPED)
		return err_set(e, CKPT_ESTATE, "the save of step %llu was skipped",
			       (unsigned long long)o->step);
	return 0;
}

static int wait_for(struct rank *k, uint64_t step, int what, struct answer *a, struct err *e)
{
	int r = ckpt_wait(k->ckpt, step, what, CKPT_DEFAULT_TIMEOUT, NULL);

	a->end = now_ns();
	return r < 0 ? of_ckpt(r, e) : 0;
}

static int save_durable(struct rank *k, const struct order *o, struct answer *a, struct err *e)
{
	int r = save(k, o, a, e);

	return r < 0 ? r : wait_for(k, o->step, CKPT_DURABLE, a, e);
}

static int load(struct rank *k, const struct order *o, struct answer *a, struct err *e)
{
	struct ckpt_load_args args = { .size = sizeof(args), .step = o->step,
				       .tensors = k->state.tensors, .n_tensors = k->state.n,
				       .timeout_ms = CKPT_DEFAULT_TIMEOUT };
	struct ckpt_loaded loaded = { .size = sizeof(loaded) };
	uint64_t before = device_bytes();
	int r;

	a->begin = now_ns();
	r = ckpt_load(k->ckpt, &args, &loaded);
	a->end = now_ns();
	a->device = device_bytes() - before;
	a->tier = loaded.tier;
	if (r < 0)
		return of_ckpt(r, e);
	if (r & (CKPT_NOTHING | CKPT_PARTIAL | CKPT_FELL_BACK))
		return err_set(e, CKPT_ELOST, "the load did not bring step %llu back (status %d)",
			       (unsigned long long)o->step, r);
	return 0;
}

static int make_room(struct rank *k, const struct order *o, struct err *e)
{
	int r = state_room(&k->state, o->bytes, o->tensors, e);

	return r < 0 ? r : take_leaves(k, e);
}

static int resume(struct rank *k, const struct order *o, struct answer *a, struct err *e)
{
	int r = make_room(k, o, e);

	if (r == 0)
		r = join_job(k, o, e);
	return r < 0 ? r : load(k, o, a, e);
}

static int copy(struct rank *k, struct answer *a)
{
	a->begin = now_ns();
	memcpy(k->memfd, k->state.base, k->state.bytes);
	a->end = now_ns();
	return 0;
}

static int parallel(struct rank *k, bool digests, struct answer *a, struct err *e)
{
	int r;

	a->begin = now_ns();
	r = parallel_copy(k->state.base, k->memfd, k->state.bytes, load_threads(1, false),
			  digests ? k->leaves : NULL);
	a->end = now_ns();
	return r < 0 ? err_code(e, r, "copy by several threads") : 0;
}

/* What the page cache holds of the file neither helps this nor stays for what comes next. */
static int plain(struct rank *k, const struct order *o, struct answer *a, struct err *e)
{
	int r = plain_forget(o->folder, e);

	a->begin = now_ns();
	if (r == 0)
		r = plain_read(&o->plain, o->folder, k->state.bytes, k->state.base, e);
	a->end = now_ns();
	return r < 0 ? r : plain_forget(o->folder, e);
}

static int digest(struct rank *k, struct answer *a)
{
	uint64_t before = cpu_ns();
	struct digest d;

	digest_leaves(k->state.base, k->state.bytes, LEAF, 0, div_up(k->state.bytes, LEAF) - 1,
		      (struct digest *)(void *)k->leaves);
	a->cpu_ns = cpu_ns() - before;
	d = digest_of(k->leaves, div_up(k->state.bytes, LEAF) * 16);
	memcpy(a->digest, d.b, sizeof(d.b));
	return 0;
}

static int ping(struct rank *k, struct answer *a, struct err *e)
{
	int r;

	a->begin = now_ns();
	memcpy(k->memfd, k->state.base, k->state.bytes);
	r = echo_ping(k->echo);
	a->end = now_ns();
	return r < 0 ? err_code(e, r, "send a message there and back") : 0;
}

static int bare(struct rank *k, const struct order *o, struct answer *a, struct err *e)
{
	int r = o->step == 1 ? bare_prepare(o->folder, e) : 0;

	a->begin = now_ns();
	if (r == 0)
		r = bare_durable(o->folder, k->memfd, k->state.bytes, o->step, e);
	a->end = now_ns();
	return r == 0 && o->step > 1 ? bare_retain(o->folder, o->step - 1, e) : r;
}

static int obey(struct rank *k, const struct order *o, struct answer *a, struct err *e)
{
	switch (o->kind) {
	case ORDER_STATE:
	case ORDER_TENSORS:
		return make_state(k, o, e);
	case ORDER_MATRIX:
		return make_matrices(k, o, e);
	case ORDER_CHECK:
		if (!state_has_matrices(&k->state, &k->cut))
			return err_set(e, CKPT_ECORRUPT, "what was loaded is not what was saved");
		return 0;
	case ORDER_ROOM:
		return make_room(k, o, e);
	case ORDER_OPEN:
		return open_job(k, o, e);
	case ORDER_RESUME:
		return resume(k, o, a, e);
	case ORDER_PREPARE:
		return prepare(k, e);
	case ORDER_COPY:
		return copy(k, a);
	case ORDER_SAVE:
		return save(k, o, a, e);
	case ORDER_DURABLE:
		return save_durable(k, o, a, e);
	case ORDER_WAIT:
		return wait_for(k, o->step, o->what, a, e);
	case ORDER_SCRUB:
		memset(k->state.base, 0xa5, k->state.bytes);
		return 0;
	case ORDER_LOAD:
		return load(k, o, a, e);
	case ORDER_FUSED:
		return parallel(k, true, a, e);
	case ORDER_MEMCPY:
		return parallel(k, false, a, e);
	case ORDER_PLAIN:
		return plain(k, o, a, e);
	case ORDER_DIGEST:
		return digest(k, a);
	case ORDER_PING:
		return ping(k, a, e);
	case ORDER_BARE:
		return bare(k, o, a, e);
	}
	return err_set(e, -EINVAL, "an unknown order");
}

int trainer_main(int fd)
{
	struct rank k = { 0 };
	struct err first = { 0 };
	struct order o;
	ssize_t n;

	if (echo_start(&k.echo, &first) < 0) {
		fprintf(stderr, "ckpt-bench: %s\n", first.text);
		return 1;
	}
	while ((n = recv(fd, &o, sizeof(o), 0)) == (ssize_t)sizeof(o)) {
		struct answer a = { .faults = -1 };
		struct err e = { 0 };

		a.code = obey(&k, &o, &a, &e);
		memcpy(a.text, e.text, sizeof(a.text));
		if (send(fd, &a, sizeof(a), MSG_NOSIGNAL) != (ssize_t)sizeof(a))
			return 1;
	}
	ckpt_close(k.ckpt);
	return n == 0 ? 0 : 1;
}
