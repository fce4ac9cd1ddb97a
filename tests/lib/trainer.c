/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trainer.c - a training process for tests: plain C over ckpt.h alone, told line by line on
 * standard input what to do. tests/lib/rig.h drives it.
 *
 * Its state: "w" (f32, each rank a box of it), "m" (bf16, each rank a flat range), and small
 * tensors "b000", ... dealt to the ranks in turn. Every byte follows from (step, tag), so that
 * whoever loads can compare all of them; the blob "who" says which they were.
 *
 *   open JOB RANK WORLD RUN CONNECT_MS     RUN "-": none
 *   look JOB RUN CONNECT_MS               without a rank
 *   declare ELEMENTS SMALL [WORD]          WORD: "frozen": none is trained; "extra": one more,
 *                                          "wide": that one with another type; "overlap", "hole":
 *                                          boxes of "w" overlap, or end early; "replicated":
 *                                          "p0" to "p3" too, which every rank has whole;
 *                                          "stages": these dealt to the ranks in turn; "dealt":
 *                                          the small tensors are dealt to the next rank each;
 *                                          "long": as "replicated", and they have long names
 *   device                                 "w" moves to the memory of a (stand-in) GPU
 *   prepare BLOB_BYTES
 *   save STEP TAG TIMEOUT_MS               0: do not wait for a credit -> pages it faulted in, and
 *                                          how many microseconds the call took
 *   resave STEP TIMEOUT_MS                 with the bytes as they are
 *   begin STEP TAG TIMEOUT_MS / touch TENSOR OFFSET / fence FULL
 *   wait STEP WHAT TIMEOUT_MS
 *   load STEP|-1 LENIENT                   -> step tag tier
 *   stored STEP|-1                         looks, reads the middle of w and the last rank's blobs
 *                                          -> step tag tier shards blobs
 *   list                                   -> n, then step/epoch/memory/disk/pinned/latest each
 *   blob BYTES                             further saves carry a blob of so many bytes
 *   beat STEP LOSS / phase NUMBER (-1: ends)
 *   problems / usage / files N / stats / close / exit
 *   die message|populate N                 it kills itself when it has sent its N-th message from
 *                                          now on, or before it populates that large piece of
 *                                          memory
 *   again                                  the process executes this program anew
 *
 * Each answer is one line: the call's result, then words or the sentence of the error.
 */
#include <config.h>

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdatomic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <ckpt.h>

#include "tests/lib/fake_libcuda.h"

#define SMALL_MAX 1000u
#define LONG_NAME 1000
#define SMALL_BYTES 96u
#define REPLICATED   4u
#define COMPRESSIBLE 1000u /* tensors with this salt and above are */
#define TENSORS_MAX  (SMALL_MAX + 2 + REPLICATED)
#define COLUMNS 64u
#define OVERLAP      1000
#define HOLE         10
#define FILES_MAX 65536

struct tensor {
	char name[LONG_NAME + 1];
	int dtype;
	uint64_t from, bytes; /* which of the whole tensor's bytes are ours */
	uint32_t salt;
	uint8_t *data;
};

struct trainer {
	struct ckpt *c;
	int rank, world;
	struct tensor tensors[TENSORS_MAX];
	size_t n;
	struct ckpt_binding bindings[TENSORS_MAX];
	uint64_t step, tag;  /* whose bytes are in memory */
	const struct fake_cuda *cuda;
	void *device;        /* of "w", or NULL: it is on the host */
	uint8_t *blob;
	uint64_t blob_bytes;
	char who[64];
	struct ckpt_blob blobs[2];
};

/* ---- Its end ---- */

#define LARGE (1u << 20)

static atomic_int messages_left, pieces_left; /* 0: it lives on */

/* Both take the place of the C library's, for libckpt too. */
__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	ssize_t n = syscall(SYS_sendmsg, fd, m, flags);

	if (n >= 0 && atomic_load(&messages_left) > 0 && atomic_fetch_sub(&messages_left, 1) == 1)
		raise(SIGKILL);
	return n;
}

__attribute__((visibility("default"))) int madvise(void *base, size_t len, int advice)
{
	if (advice == MADV_POPULATE_WRITE && len >= LARGE && atomic_load(&pieces_left) > 0 &&
	    atomic_fetch_sub(&pieces_left, 1) == 1)
		raise(SIGKILL);
	return (int)syscall(SYS_madvise, base, len, advice);
}

static int do_die(const char *args)
{
	char what[16];
	int n;

	if (sscanf(args, "%15s %d", what, &n) != 2)
		return -1;
	atomic_store(strcmp(what, "message") == 0 ? &messages_left : &pieces_left, n);
	printf("0\n");
	fflush(stdout);
	return 0;
}

/* ---- The state's bytes ---- */

static uint64_t word(uint64_t seed, uint64_t i)
{
	uint64_t x = seed + (i + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t seed_of(uint64_t step, uint64_t tag, uint32_t salt)
{
	return (word(word(step, tag), salt) & ~1ull) | (salt >= COMPRESSIBLE);
}

/* Bytes [from, from + len) of a tensor. */
static void fill(uint8_t *out, uint64_t from, uint64_t len, uint64_t seed)
{
	uint64_t done = 0;

	while (done < len) {
		uint64_t at = from + done, w = word(seed, at / 8), n = 8 - at % 8;

		w &= seed & 1 ? 0x0303030303030303u : UINT64_MAX;
		if (n > len - done)
			n = len - done;
		memcpy(out + done, (uint8_t *)&w + at % 8, n);
		done += n;
	}
}

static bool same(const uint8_t *have, uint64_t from, uint64_t len, uint64_t seed)
{
	uint8_t want[4096];

	for (uint64_t done = 0; done < len;) {
		uint64_t n = len - done < sizeof(want) ? len - done : sizeof(want);

		fill(want, from + done, n, seed);
		if (memcmp(want, have + done, n) != 0)
			return false;
		done += n;
	}
	return true;
}

static void fill_all(struct trainer *t, uint64_t step, uint64_t tag)
{
	for (size_t i = 0; i < t->n; i++)
		fill(t->tensors[i].data, t->tensors[i].from, t->tensors[i].bytes,
		     seed_of(step, tag, t->tensors[i].salt));
	fill(t->blob, 0, t->blob_bytes, seed_of(step, tag, 9));
	if (t->device)
		memcpy(t->cuda->bytes(t->device), t->tensors[0].data, t->tensors[0].bytes);
	t->step = step;
	t->tag = tag;
}

/* The first tensor that is not as it was at (step, tag); NULL: all are. */
static const char *first_wrong(struct trainer *t, uint64_t step, uint64_t tag)
{
	if (t->device)
		memcpy(t->tensors[0].data, t->cuda->bytes(t->device), t->tensors[0].bytes);
	for (size_t i = 0; i < t->n; i++)
		if (!same(t->tensors[i].data, t->tensors[i].from, t->tensors[i].bytes,
			  seed_of(step, tag, t->tensors[i].salt)))
			return t->tensors[i].name;
	return NULL;
}

/* ---- Answers ---- */

static void answer(int r, const char *text)
{
	printf("%d %s\n", r, r < 0 ? ckpt_last_error(NULL) : text);
	fflush(stdout);
}

/* ---- Commands ---- */

static int do_open(struct trainer *t, const char *args)
{
	struct ckpt_options o = { .size = sizeof(o) };
	char job[65], run[129];
	long long connect;
	int r;

	if (sscanf(args, "%64s %d %d %128s %lld", job, &t->rank, &t->world, run, &connect) != 5)
		return -1;
	o.run_id = strcmp(run, "-") ? run : NULL;
	o.connect_timeout_ms = connect;
	r = ckpt_open(job, t->rank, t->world, &o, &t->c);
	answer(r, "");
	return 0;
}

static int do_look(struct trainer *t, const char *args)
{
	struct ckpt_options o = {.size = sizeof(o), .flags = CKPT_EXISTING};
	char job[65], run[129];
	long long connect;

	if (sscanf(args, "%64s %128s %lld", job, run, &connect) != 3)
		return -1;
	o.run_id = strcmp(run, "-") ? run : NULL;
	o.connect_timeout_ms = connect;
	t->world = 1;
	answer(ckpt_open(job, 0, 1, &o, &t->c), "");
	return 0;
}

static int add(struct trainer *t, const char *name, struct ckpt_tensor *ct, uint64_t from,
	       uint64_t bytes, uint32_t salt)
{
	struct tensor *x = &t->tensors[t->n];

	snprintf(x->name, sizeof(x->name), "%s", name);
	x->dtype = ct->dtype;
	x->from = from;
	x->bytes = bytes;
	x->salt = salt;
	x->data = calloc(1, bytes + 1);
	if (!x->data)
		exit(1);
	ct->size = sizeof(*ct);
	ct->name = x->name;
	t->bindings[t->n] = (struct ckpt_binding){ .ptr = x->data, .device = CKPT_HOST,
						   .dtype = x->dtype, .bytes = bytes };
	t->n++;
	return ckpt_declare(t->c, ct);
}

static int declare_w(struct trainer *t, uint64_t elements, int64_t more, unsigned flags)
{
	uint64_t from = elements * (uint64_t)t->rank / (uint64_t)t->world;
	uint64_t to = elements * ((uint64_t)t->rank + 1) / (uint64_t)t->world + (uint64_t)more;
	uint64_t length = (to < elements ? to : elements) - from;
	struct ckpt_tensor ct = { .dtype = CKPT_F32, .ndim = 1, .global_shape = &elements,
				  .offset = &from, .shape = &length, .flags = flags };

	return add(t, "w", &ct, 4 * from, 4 * length, 1);
}

static int declare_m(struct trainer *t, uint64_t elements, unsigned flags)
{
	uint64_t shape[2] = { elements / COLUMNS + 1, COLUMNS }, all = shape[0] * COLUMNS;
	uint64_t start = all * (uint64_t)t->rank / (uint64_t)t->world;
	uint64_t stop = all * ((uint64_t)t->rank + 1) / (uint64_t)t->world;
	struct ckpt_tensor ct = { .dtype = CKPT_BF16, .ndim = 2, .global_shape = shape,
				  .start = start, .stop = stop, .flags = flags | CKPT_FLAT };

	return add(t, "m", &ct, 2 * start, 2 * (stop - start), 2);
}

static int declare_named(struct trainer *t, const char *name, int dtype, unsigned flags,
			 uint32_t salt)
{
	uint64_t elements = SMALL_BYTES / (dtype == CKPT_F64 ? 8 : 4);
	struct ckpt_tensor ct = { .dtype = dtype, .ndim = 1, .global_shape = &elements,
				  .flags = flags };

	return add(t, name, &ct, 0, SMALL_BYTES, salt);
}

/* Every rank has it whole; every other one is compressible. */
static int declare_p(struct trainer *t, uint64_t elements, unsigned flags, unsigned i)
{
	struct ckpt_tensor ct = {
		.dtype = CKPT_F32, .ndim = 1, .global_shape = &elements, .flags = flags};
	char name[24];

	snprintf(name, sizeof(name), "p%u", i);
	return add(t, name, &ct, 0, 4 * elements, i % 2 ? COMPRESSIBLE + i : 10 + i);
}

static int do_declare(struct trainer *t, const char *args)
{
	unsigned long long elements;
	char word_[32] = "", name[LONG_NAME + 1], padding[LONG_NAME];
	unsigned small, flags = CKPT_TRAINED, shift;
	bool stages, replicated;
	int64_t more = 0;
	int r;

	if (sscanf(args, "%llu %u %31s", &elements, &small, word_) < 2 || small > SMALL_MAX)
		return -1;
	memset(padding, 'x', sizeof(padding));
	if (strcmp(word_, "frozen") == 0)
		flags = 0;
	t->n = 0;
	if (strcmp(word_, "overlap") == 0)
		more = OVERLAP;
	else if (strcmp(word_, "hole") == 0)
		more = -HOLE;
	r = declare_w(t, elements, more, flags);
	if (r >= 0)
		r = declare_m(t, elements, flags);
	stages = strcmp(word_, "stages") == 0;
	replicated = strcmp(word_, "replicated") == 0 || strcmp(word_, "long") == 0;
	for (unsigned i = 0; (stages || replicated) && i < REPLICATED; i++)
		if (r >= 0 && (!stages || (int)i % t->world == t->rank))
			r = declare_p(t, elements, flags, i);
	shift = strcmp(word_, "dealt") == 0;
	for (unsigned i = 0; i < small && r >= 0; i++) {
		snprintf(name, sizeof(name), "b%03u%.*s", i,
			 strcmp(word_, "long") == 0 ? LONG_NAME - 10 : 0, padding);
		if ((int)(i + shift) % t->world == t->rank)
			r = declare_named(t, name, CKPT_F32, flags, 100 + i);
	}
	if (r >= 0 && strcmp(word_, "extra") == 0)
		r = declare_named(t, "extra", CKPT_F32, flags, 3);
	if (r >= 0 && strcmp(word_, "wide") == 0) /* "extra" again, as another type */
		r = declare_named(t, "extra", CKPT_F64, flags, 3);
	answer(r < 0 ? r : 0, "");
	return 0;
}

static void save_args(struct trainer *t, uint64_t step, long long timeout,
		      struct ckpt_save_args *ret)
{
	snprintf(t->who, sizeof(t->who), "%" PRIu64 " %" PRIu64 " %" PRIu64, step, t->step, t->tag);
	t->blobs[0] = (struct ckpt_blob){ "who", t->who, sizeof(t->who) };
	t->blobs[1] = (struct ckpt_blob){ "rng", t->blob, t->blob_bytes };
	*ret = (struct ckpt_save_args){ .size = sizeof(*ret), .step = step,
					.tensors = t->bindings, .n_tensors = t->n,
					.blobs = t->blobs, .n_blobs = 2, .timeout_ms = timeout,
					.flags = timeout ? CKPT_WAIT_CREDIT : 0 };
}

static long minor_faults(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_minflt;
}

static long long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (long long)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int do_save(struct trainer *t, const char *args, bool begin)
{
	long long from;
	long faults;
	char text[64];
	int r;

	unsigned long long step, tag;
	long long timeout;
	struct ckpt_save_args a;

	if (sscanf(args, "%llu %llu %lld", &step, &tag, &timeout) != 3)
		return -1;
	fill_all(t, step, tag);
	save_args(t, step, timeout, &a);
	faults = minor_faults();
	from = now_us();
	r = begin ? ckpt_save_begin(t->c, &a) : ckpt_save(t->c, &a);
	from = now_us() - from;
	snprintf(text, sizeof(text), "%ld %lld", minor_faults() - faults, from);
	answer(r, text);
	return 0;
}

static int do_resave(struct trainer *t, const char *args)
{
	unsigned long long step;
	long long timeout;
	struct ckpt_save_args a;

	if (sscanf(args, "%llu %lld", &step, &timeout) != 2)
		return -1;
	save_args(t, step, timeout, &a);
	answer(ckpt_save(t->c, &a), "");
	return 0;
}

/* CKPT_LIBCUDA names the stand-in. */
static int do_device(struct trainer *t)
{
	const char *path = getenv("CKPT_LIBCUDA");
	void *so = path ? dlopen(path, RTLD_NOW) : NULL;

	t->cuda = so ? dlsym(so, FAKE_CUDA_TABLE) : NULL;
	if (!t->cuda)
		return -1;
	t->device = t->cuda->alloc(t->tensors[0].bytes);
	t->bindings[0].ptr = t->device;
	t->bindings[0].device = 0;
	answer(0, "");
	return 0;
}

static int do_touch(struct trainer *t, const char *args)
{
	unsigned long long tensor, offset;

	if (sscanf(args, "%llu %llu", &tensor, &offset) != 2 || tensor >= t->n ||
	    offset >= t->tensors[tensor].bytes)
		return -1;
	t->tensors[tensor].data[offset] ^= 1;
	answer(0, "");
	return 0;
}

static int do_wait(struct trainer *t, const char *args)
{
	unsigned long long step;
	long long timeout;
	uint64_t newer = 0;
	char text[32];
	int what, r;

	if (sscanf(args, "%llu %d %lld", &step, &what, &timeout) != 3)
		return -1;
	r = ckpt_wait(t->c, step, (enum ckpt_state)what, timeout, &newer);
	snprintf(text, sizeof(text), "%" PRIu64, newer);
	answer(r, text);
	return 0;
}

/* What was loaded against the (step, tag) of its own blob. */
static void judge(struct trainer *t, int r, const struct ckpt_loaded *got, bool lenient)
{
	unsigned long long step, content, tag;
	const void *who, *rng;
	uint64_t who_bytes, rng_bytes;
	const char *wrong = NULL;
	char text[256];

	/* A rank that was not there when it was saved has no blobs of its own. */
	if (ckpt_blob_get(t->c, "who", &who, &who_bytes) < 0 ||
	    ckpt_blob_get(t->c, "rng", &rng, &rng_bytes) < 0 ||
	    sscanf(who, "%llu %llu %llu", &step, &content, &tag) != 3 || step != got->step) {
		printf("-9998 the blobs are not those of step %" PRIu64 "\n", got->step);
		fflush(stdout);
		return;
	}
	if (!lenient)
		wrong = first_wrong(t, content, tag);
	if (!wrong && !same(rng, 0, rng_bytes, seed_of(content, tag, 9)))
		wrong = "blob rng";
	if (wrong) {
		printf("-9998 WRONG BYTES: step %llu, %s\n", step, wrong);
		fflush(stdout);
		return;
	}
	t->step = content;
	t->tag = tag;
	snprintf(text, sizeof(text), "%llu %llu %d", step, tag, got->tier);
	answer(r, text);
}

static int do_load(struct trainer *t, const char *args)
{
	struct ckpt_loaded got = { .size = sizeof(got) };
	struct ckpt_load_args a = { .size = sizeof(a), .tensors = t->bindings, .n_tensors = t->n,
				    .timeout_ms = CKPT_DEFAULT_TIMEOUT };
	long long step;
	int lenient, r;

	if (sscanf(args, "%lld %d", &step, &lenient) != 2)
		return -1;
	a.step = step < 0 ? CKPT_LATEST : (uint64_t)step;
	a.flags = lenient ? CKPT_LENIENT : 0;
	for (size_t i = 0; i < t->n; i++)
		memset(t->tensors[i].data, 0xee, t->tensors[i].bytes);
	if (t->device)
		memset(t->cuda->bytes(t->device), 0xee, t->tensors[0].bytes);
	r = ckpt_load(t->c, &a, &got);
	if (r < 0 || r & CKPT_NOTHING)
		answer(r, "nothing");
	else
		judge(t, r, &got, lenient);
	return 0;
}

/* ---- Any part of what is stored, whatever this rank declares ---- */

struct parts {
	struct ckpt_stored_shard w; /* whose global_shape is wanted of it */
	uint64_t n_shards, n_blobs;
	struct ckpt_stored_blob blobs[2]; /* who, rng: of the highest rank */
	char names[2][8];
};

static int look_at(struct ckpt_stored *s, struct parts *p)
{
	struct ckpt_stored_shard h = {.size = sizeof(h)};
	struct ckpt_stored_blob b;

	for (; ckpt_stored_shard_at(s, p->n_shards, &h) == 0; p->n_shards++)
		if (strcmp(h.name, "w") == 0)
			p->w = h;
	for (; ckpt_stored_blob_at(s, p->n_blobs, &b) == 0; p->n_blobs++) {
		int i = strcmp(b.name, "who") == 0 ? 0 : 1;

		p->blobs[i] = b;
		snprintf(p->names[i], sizeof(p->names[i]), "%s", b.name);
		p->blobs[i].name = p->names[i];
	}
	return p->w.ndim == 1 && p->blobs[0].bytes && p->names[1][0] ? 0 : -1;
}

static void judge_parts(struct parts *p, uint64_t from, uint64_t bytes, const void *part,
			const struct ckpt_loaded *got)
{
	unsigned long long step, content, tag;
	const char *wrong = NULL;

	if (sscanf(p->blobs[0].data, "%llu %llu %llu", &step, &content, &tag) != 3 ||
	    step != got->step)
		wrong = "blob who";
	else if (!same(part, from, bytes, seed_of(content, tag, 1)))
		wrong = "w";
	else if (!same(p->blobs[1].data, 0, p->blobs[1].bytes, seed_of(content, tag, 9)))
		wrong = "blob rng";
	if (wrong)
		printf("-9998 WRONG BYTES: step %" PRIu64 ", %s\n", got->step, wrong);
	else
		printf("0 %llu %llu %d %" PRIu64 " %" PRIu64 "\n", step, tag, got->tier,
		       p->n_shards, p->n_blobs);
	fflush(stdout);
}

static int do_stored(struct trainer *t, const char *args)
{
	long long step = strtoll(args, NULL, 10);
	struct ckpt_loaded got = {.size = sizeof(got)};
	struct ckpt_read_args a = {.size = sizeof(a),
				   .n_tensors = 1,
				   .n_blobs = 2,
				   .timeout_ms = CKPT_DEFAULT_TIMEOUT};
	struct parts p = {0};
	struct ckpt_tensor want = {.size = sizeof(want),
				   .name = "w",
				   .dtype = CKPT_F32,
				   .ndim = 1,
				   .global_shape = p.w.global_shape};
	struct ckpt_binding to = {.device = CKPT_HOST, .dtype = CKPT_F32};
	struct ckpt_stored *s = NULL;
	uint64_t from, length;
	int r = ckpt_stored_open(t->c, step < 0 ? CKPT_LATEST : (uint64_t)step,
				 CKPT_DEFAULT_TIMEOUT, &s);

	if (r < 0 || r & CKPT_NOTHING || look_at(s, &p) < 0) {
		answer(r, s ? "not what was saved" : "nothing");
		ckpt_stored_close(s);
		return 0;
	}
	from = p.w.global_shape[0] / 4;
	length = p.w.global_shape[0] / 2;
	want.offset = &from;
	want.shape = &length;
	to.bytes = 4 * length;
	to.ptr = malloc(to.bytes);
	for (int i = 0; i < 2; i++)
		p.blobs[i].data = calloc(1, p.blobs[i].bytes + 1);
	a.wants = &want;
	a.tensors = &to;
	a.blobs = p.blobs;
	r = ckpt_stored_read(s, &a, &got);
	if (r < 0)
		answer(r, "");
	else
		judge_parts(&p, 4 * from, to.bytes, to.ptr, &got);
	free(to.ptr);
	free(p.blobs[0].data);
	free(p.blobs[1].data);
	ckpt_stored_close(s);
	return 0;
}

static int do_list(struct trainer *t)
{
	struct ckpt_info infos[64];
	int n = ckpt_list(t->c, infos, 64);

	if (n < 0) {
		answer(n, "");
		return 0;
	}
	printf("%d", n);
	for (int i = 0; i < n && i < 64; i++)
		printf(" %" PRIu64 "/%" PRIu64 "/%d/%d/%d/%d", infos[i].step, infos[i].epoch,
		       infos[i].memory, infos[i].disk, infos[i].pinned, infos[i].latest);
	printf("\n");
	fflush(stdout);
	return 0;
}

static int do_blob(struct trainer *t, const char *args)
{
	t->blob_bytes = strtoull(args, NULL, 10);
	free(t->blob);
	t->blob = calloc(1, t->blob_bytes + 1);
	if (!t->blob)
		exit(1);
	answer(0, "");
	return 0;
}

static int do_problems(struct trainer *t)
{
	printf("0");
	for (size_t i = 0; ckpt_problem(t->c, i); i++)
		printf(" | %s", ckpt_problem(t->c, i));
	printf("\n");
	fflush(stdout);
	return 0;
}

static unsigned count_lines(const char *path)
{
	FILE *f = fopen(path, "r");
	unsigned n = 0;
	int ch;

	while (f && (ch = getc(f)) != EOF)
		n += ch == '\n';
	if (f)
		fclose(f);
	return n;
}

static unsigned count_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* Descriptors and mappings: what a save must not raise. */
static int do_usage(void)
{
	printf("0 %u %u\n", count_files(), count_lines("/proc/self/maps"));
	fflush(stdout);
	return 0;
}

/* So many descriptors may be opened from now on; -1: as many as before. */
static int do_files(const char *args)
{
	static int held[FILES_MAX], n;
	struct rlimit limit = { 0, 0 };
	int spare = atoi(args);

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = 256;
	setrlimit(RLIMIT_NOFILE, &limit);
	while (n < FILES_MAX && (held[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		n++;
	for (; n > 0 && spare > 0; spare--)
		close(held[--n]);
	if (atoi(args) < 0)
		while (n > 0)
			close(held[--n]);
	answer(0, "");
	return 0;
}

static int do_beat(struct trainer *t, const char *args)
{
	struct ckpt_beat b = {.size = sizeof(b), .flags = CKPT_BEAT_LOSS | CKPT_BEAT_METRIC(0)};

	if (sscanf(args, "%" SCNu64 " %lf", &b.step, &b.loss) != 2)
		return -1;
	b.metrics[ckpt_metric(t->c, "lr")] = 0.5;
	answer(ckpt_beat(t->c, &b), "");
	return 0;
}

static int do_phase(struct trainer *t, const char *args)
{
	int phase = atoi(args);

	answer(phase < 0 ? ckpt_phase_end(t->c)
			 : ckpt_phase_begin(t->c, (enum ckpt_phase)phase, NULL, 0),
	       "");
	return 0;
}

static int do_stats(struct trainer *t)
{
	struct ckpt_stats s = { .size = sizeof(s) };
	char text[128];
	int r = ckpt_stats(t->c, &s);

	snprintf(text, sizeof(text),
		 "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, s.saves,
		 s.skipped, s.failed, s.reconnects, s.uncommitted, s.uncommitted_from);
	answer(r, text);
	return 0;
}

static int run(struct trainer *t, const char *verb, const char *args)
{
	if (strcmp(verb, "open") == 0)
		return do_open(t, args);
	if (strcmp(verb, "look") == 0)
		return do_look(t, args);
	if (strcmp(verb, "declare") == 0)
		return do_declare(t, args);
	if (strcmp(verb, "save") == 0 || strcmp(verb, "begin") == 0)
		return do_save(t, args, verb[0] == 'b');
	if (strcmp(verb, "resave") == 0)
		return do_resave(t, args);
	if (strcmp(verb, "device") == 0)
		return do_device(t);
	if (strcmp(verb, "touch") == 0)
		return do_touch(t, args);
	if (strcmp(verb, "wait") == 0)
		return do_wait(t, args);
	if (strcmp(verb, "stored") == 0)
		return do_stored(t, args);
	if (strcmp(verb, "load") == 0)
		return do_load(t, args);
	if (strcmp(verb, "list") == 0)
		return do_list(t);
	if (strcmp(verb, "blob") == 0)
		return do_blob(t, args);
	if (strcmp(verb, "problems") == 0)
		return do_problems(t);
	if (strcmp(verb, "usage") == 0)
		return do_usage();
	if (strcmp(verb, "files") == 0)
		return do_files(args);
	if (strcmp(verb, "stats") == 0)
		return do_stats(t);
	if (strcmp(verb, "die") == 0)
		return do_die(args);
	if (strcmp(verb, "beat") == 0)
		return do_beat(t, args);
	if (strcmp(verb, "phase") == 0)
		return do_phase(t, args);
	if (strcmp(verb, "prepare") == 0)
		answer(ckpt_prepare(t->c, strtoull(args, NULL, 10)), "");
	else if (strcmp(verb, "fence") == 0)
		answer(ckpt_save_fence(t->c, atoi(args) ? CKPT_FULL_COMPARE : 0), "");
	else if (strcmp(verb, "close") == 0) {
		ckpt_close(t->c);
		t->c = NULL;
		answer(0, "");
	} else
		return -1;
	return 0;
}

int main(int argc, char **argv)
{
	static struct trainer *t; /* static: what it holds at the end is no leak */
	char line[512], verb[32];

	t = calloc(1, sizeof(*t));
	if (!t)
		return 1;
	t->blob_bytes = 128;
	t->blob = calloc(1, t->blob_bytes);
	while (fgets(line, sizeof(line), stdin)) {
		int n = 0;

		if (sscanf(line, "%31s%n", verb, &n) != 1)
			continue;
		if (strcmp(verb, "again") == 0 && argc > 0) {
			answer(0, "");
			execv("/proc/self/exe", argv);
			return 1;
		}
		if (strcmp(verb, "exit") == 0)
			break;
		if (run(t, verb, line + n) < 0) {
			printf("-9999 the trainer does not understand: %s", line);
			fflush(stdout);
		}
	}
	ckpt_close(t->c);
	return 0;
}
