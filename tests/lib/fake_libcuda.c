/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_libcuda.c - a stand-in for libcuda.so.1: contexts, streams, asynchronous copies.
 *
 * It keeps the driver's rules that matter to us: a call needs a current context; a copy is done
 * some time after it was queued, in its stream's order; a page of the host is pinned once, and
 * nothing is copied from or to memory of which only a part is pinned.
 */
#include <config.h>

#include "tests/lib/fake_libcuda.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };
enum { ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };
enum { JOBS = 4096, ALLOCATIONS = 64, STACK = 16, NAMES = 32, PINS = 16, PAGE = 4096 };

enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, PITCH_MAX = 2147483647 };

struct stream {
	int device;
};

/* CUDA_MEMCPY2D */
struct end {
	size_t x, y;
	int memory;
	void *host;
	uint64_t device;
	void *array;
	size_t pitch;
};

struct rows {
	struct end from, to;
	size_t width, height;
};

struct job {
	uint8_t *to;
	const uint8_t *from; /* NULL: fill with value */
	size_t len;
	int value;
	const struct stream *stream; /* NULL: one of the caller's */
	int device;
	bool done;
};

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	pthread_t thread;
	bool started;
	int contexts[FAKE_CUDA_DEVICES]; /* their addresses are the contexts */
	int retained[FAKE_CUDA_DEVICES];
	struct {
		uint8_t *device, *bytes;
		size_t len;
	} allocations[ALLOCATIONS];
	unsigned n_allocations;
	struct job jobs[JOBS];
	uint64_t queued, finished;
	struct {
		char name[40];
		uint64_t n;
	} counts[NAMES];
	char failing[40];
	int fail_code, pinning_ms;
	struct {
		uintptr_t lo, hi; /* whole pages */
	} pinned[PINS];
} g = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static _Thread_local void *stack[STACK];
static _Thread_local int depth;

/* ---- Bookkeeping ---- */

static uint64_t *counter(const char *name)
{
	for (int i = 0; i < NAMES; i++) {
		if (!g.counts[i].name[0])
			strcpy(g.counts[i].name, name);
		if (strcmp(g.counts[i].name, name) == 0)
			return &g.counts[i].n;
	}
	abort();
}

/* 0, or the code that this call is to fail with. */
static int called(const char *name)
{
	int r = OK;

	pthread_mutex_lock(&g.mutex);
	if (strcmp(g.failing, name) == 0)
		r = g.fail_code;
	else
		++*counter(name);
	pthread_mutex_unlock(&g.mutex);
	return r;
}

static void *current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static int device_of(const void *context)
{
	for (int i = 0; i < FAKE_CUDA_DEVICES; i++)
		if (context == &g.contexts[i])
			return i;
	return -1;
}

/* The real place of device memory; with the lock. */
static uint8_t *real(uint64_t device, size_t len)
{
	for (unsigned i = 0; i < g.n_allocations; i++) {
		uint64_t base = (uint64_t)(uintptr_t)g.allocations[i].device;

		if (device >= base && device + len <= base + g.allocations[i].len)
			return g.allocations[i].bytes + (device - base);
	}
	return NULL;
}

/* ---- The device ---- */

/* Streams do not wait for each other: ours overtake the caller's, so that whoever relies on an
 * order that nobody asked for finds out. NULL: nothing is queued. */
static struct job *next_job(void)
{
	struct job *first = NULL;

	while (g.finished < g.queued && g.jobs[g.finished % JOBS].done)
		g.finished++;
	for (uint64_t i = g.finished; i < g.queued; i++) {
		struct job *j = &g.jobs[i % JOBS];

		if (j->done)
			continue;
		if (j->stream)
			return j;
		first = first ? first : j;
	}
	return first;
}

/* After a rest it is late: whoever does not wait for it sees the old bytes. Not before each job: a
 * tensor with strides is a job for each element. */
static void *device_thread(void *arg)
{
	bool rested = true;

	(void)arg;
	pthread_mutex_lock(&g.mutex);
	for (;;) {
		struct job *at = next_job(), j;

		if (!at) {
			pthread_cond_wait(&g.changed, &g.mutex);
			rested = true;
			continue;
		}
		if (rested) {
			pthread_mutex_unlock(&g.mutex);
			poll(NULL, 0, 1);
			pthread_mutex_lock(&g.mutex);
			rested = false;
			continue; /* what came meanwhile may overtake it */
		}
		j = *at;
		pthread_mutex_unlock(&g.mutex);
		if (j.from)
			memcpy(j.to, j.from, j.len);
		else
			memset(j.to, j.value, j.len);
		pthread_mutex_lock(&g.mutex);
		at->done = true;
		*counter("copied") += j.from ? j.len : 0;
		pthread_cond_broadcast(&g.changed);
	}
	return NULL;
}

/* With the lock. */
static void queue(struct job j)
{
	if (!g.started) {
		int r = pthread_create(&g.thread, NULL, device_thread, NULL);

		assert(r == 0);
		g.started = true;
	}
	while (g.queued - g.finished == JOBS)
		pthread_cond_wait(&g.changed, &g.mutex);
	g.jobs[g.queued++ % JOBS] = j;
	pthread_cond_broadcast(&g.changed);
}

/* Until nothing of this stream (NULL: of this device) is left. */
static void drain(const struct stream *s, int device)
{
	pthread_mutex_lock(&g.mutex);
	for (bool left = true; left;) {
		left = false;
		for (uint64_t i = g.finished; i < g.queued; i++) {
			const struct job *j = &g.jobs[i % JOBS];

			left = left || (!j->done && (s ? j->stream == s : j->device == device));
		}
		if (left)
			pthread_cond_wait(&g.changed, &g.mutex);
	}
	pthread_mutex_unlock(&g.mutex);
}

/* ---- The driver's functions ---- */

EXPORT int cuInit(unsigned flags);
EXPORT int cuGetErrorString(int code, const char **ret);
EXPORT int cuDeviceGet(int *ret, int ordinal);
EXPORT int cuDevicePrimaryCtxRetain(void **ret, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **ret);
EXPORT int cuCtxGetCurrent(void **ret);
EXPORT int cuCtxSynchronize(void);
EXPORT int cuStreamCreate(void **ret, unsigned flags);
EXPORT int cuStreamDestroy_v2(void *stream);
EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t len, void *stream);
EXPORT int cuMemcpyHtoDAsync_v2(uint64_t device, const void *host, size_t len, void *stream);
EXPORT int cuMemcpy2DAsync_v2(const struct rows *rows, void *stream);
EXPORT int cuMemHostRegister_v2(void *p, size_t len, unsigned flags);
EXPORT int cuMemHostUnregister(void *p);

int cuInit(unsigned flags)
{
	return flags ? INVALID_VALUE : called("cuInit");
}

int cuGetErrorString(int code, const char **ret)
{
	*ret = code == INVALID_DEVICE ? "invalid device ordinal"
	       : code == INVALID_CONTEXT ? "invalid device context" : "some error";
	return OK;
}

int cuDeviceGet(int *ret, int ordinal)
{
	if (ordinal < 0 || ordinal >= FAKE_CUDA_DEVICES)
		return INVALID_DEVICE;
	*ret = 10 + ordinal; /* a handle is not an ordinal */
	return called("cuDeviceGet");
}

int cuDevicePrimaryCtxRetain(void **ret, int device)
{
	int r = called("cuDevicePrimaryCtxRetain");

	if (r)
		return r;
	g.retained[device - 10]++;
	*ret = &g.contexts[device - 10];
	return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	if (g.retained[device - 10]-- <= 0)
		abort();
	return called("cuDevicePrimaryCtxRelease_v2");
}

int cuCtxPushCurrent_v2(void *context)
{
	if (device_of(context) < 0)
		return INVALID_CONTEXT;
	if (depth == STACK)
		abort(); /* pushed and never popped */
	stack[depth++] = context;
	return OK;
}

int cuCtxPopCurrent_v2(void **ret)
{
	if (depth == 0)
		return INVALID_CONTEXT;
	*ret = stack[--depth];
	return OK;
}

int cuCtxGetCurrent(void **ret)
{
	*ret = current();
	return OK;
}

int cuCtxSynchronize(void)
{
	int device = device_of(current());

	if (device < 0)
		return INVALID_CONTEXT;
	drain(NULL, device);
	return called("cuCtxSynchronize");
}

int cuStreamCreate(void **ret, unsigned flags)
{
	struct stream *s;
	int r = called("cuStreamCreate");

	if (r || device_of(current()) < 0)
		return r ? r : INVALID_CONTEXT;
	if (flags != 1) /* ours must not wait for the caller's */
		return INVALID_VALUE;
	s = malloc(sizeof(*s));
	s->device = device_of(current());
	*ret = s;
	return OK;
}

int cuStreamDestroy_v2(void *stream)
{
	drain(stream, -1);
	free(stream);
	return called("cuStreamDestroy_v2");
}

int cuStreamSynchronize(void *stream)
{
	int r = called("cuStreamSynchronize");

	if (device_of(current()) < 0)
		return INVALID_CONTEXT;
	drain(stream, -1);
	return r;
}

/* Of the pages of [p, p + len) none, all or some are pinned; with the lock. */
static bool partly_pinned(const void *p, size_t len)
{
	uintptr_t at = (uintptr_t)p / PAGE * PAGE, end = (uintptr_t)p + len;
	size_t n = 0, all = 0;

	for (; at < end; at += PAGE, all++)
		for (int i = 0; i < PINS; i++)
			n += at >= g.pinned[i].lo && at < g.pinned[i].hi;
	return n > 0 && n < all;
}

static int copy(uint64_t device, void *host, size_t len, struct stream *s, bool out)
{
	uint8_t *bytes;
	int r = OK;

	if (device_of(current()) < 0 || s->device != device_of(current()))
		return INVALID_CONTEXT;
	pthread_mutex_lock(&g.mutex);
	bytes = real(device, len);
	if (!bytes || partly_pinned(host, len))
		r = INVALID_VALUE;
	else if (out)
		queue((struct job){ .to = host, .from = bytes, .len = len, .stream = s,
				    .device = s->device });
	else
		queue((struct job){ .to = bytes, .from = host, .len = len, .stream = s,
				    .device = s->device });
	pthread_mutex_unlock(&g.mutex);
	return r;
}

int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t len, void *stream)
{
	int r = called("cuMemcpyDtoHAsync_v2");

	return r ? r : copy(device, host, len, stream, true);
}

int cuMemcpyHtoDAsync_v2(uint64_t device, const void *host, size_t len, void *stream)
{
	int r = called("cuMemcpyHtoDAsync_v2");

	return r ? r : copy(device, (void *)host, len, stream, false);
}

static bool packed_on_host(const struct end *x, size_t width)
{
	return x->memory == MEMORY_HOST && x->pitch >= width && x->pitch <= PITCH_MAX;
}

static bool on_device(const struct end *x, size_t width)
{
	return x->memory == MEMORY_DEVICE && x->pitch >= width && x->pitch <= PITCH_MAX;
}

int cuMemcpy2DAsync_v2(const struct rows *a, void *stream)
{
	bool out = a->from.memory == MEMORY_DEVICE;
	const struct end *host = out ? &a->to : &a->from, *device = out ? &a->from : &a->to;
	int r = called("cuMemcpy2DAsync_v2");

	if (r == OK && (!packed_on_host(host, a->width) || !on_device(device, a->width) ||
			a->from.x || a->from.y || a->to.x || a->to.y))
		r = INVALID_VALUE;
	for (size_t i = 0; r == OK && i < a->height; i++)
		r = copy(device->device + i * device->pitch,
			 (uint8_t *)host->host + i * host->pitch, a->width, stream, out);
	return r;
}

static int pinning_ms(void)
{
	int ms;

	pthread_mutex_lock(&g.mutex);
	ms = g.pinning_ms;
	pthread_mutex_unlock(&g.mutex);
	return ms;
}

int cuMemHostRegister_v2(void *p, size_t len, unsigned flags)
{
	uintptr_t lo = (uintptr_t)p / PAGE * PAGE;
	uintptr_t hi = ((uintptr_t)p + len + PAGE - 1) / PAGE * PAGE;
	int r = called("cuMemHostRegister_v2"), free_one = -1;

	if (r || device_of(current()) < 0)
		return r ? r : INVALID_CONTEXT;
	if (flags != 1 || len == 0)
		return INVALID_VALUE;
	poll(NULL, 0, pinning_ms());
	pthread_mutex_lock(&g.mutex);
	for (int i = 0; i < PINS; i++) {
		if (!g.pinned[i].hi)
			free_one = i;
		else if (lo < g.pinned[i].hi && g.pinned[i].lo < hi)
			r = ALREADY_REGISTERED;
	}
	assert(free_one >= 0);
	if (r == OK) {
		g.pinned[free_one].lo = lo;
		g.pinned[free_one].hi = hi;
		++*counter("pinned");
		*counter("ragged") += lo != (uintptr_t)p || hi != (uintptr_t)p + len;
	}
	pthread_mutex_unlock(&g.mutex);
	return r;
}

int cuMemHostUnregister(void *p)
{
	uintptr_t lo = (uintptr_t)p / PAGE * PAGE;
	int r = NOT_REGISTERED;

	if (device_of(current()) < 0)
		return INVALID_CONTEXT;
	pthread_mutex_lock(&g.mutex);
	for (int i = 0; i < PINS; i++) {
		if (!g.pinned[i].hi || g.pinned[i].lo != lo)
			continue;
		g.pinned[i].lo = g.pinned[i].hi = 0;
		--*counter("pinned");
		r = OK;
	}
	pthread_mutex_unlock(&g.mutex);
	return r;
}

/* ---- For tests ---- */

static void *fake_alloc(size_t len)
{
	static uintptr_t next = 0x100000000000; /* nothing is mapped there */
	void *device = (void *)next;

	pthread_mutex_lock(&g.mutex);
	assert(g.n_allocations < ALLOCATIONS);
	g.allocations[g.n_allocations].device = device;
	g.allocations[g.n_allocations].bytes = calloc(1, len);
	g.allocations[g.n_allocations++].len = len;
	next += (len + 0xffff) / 0x10000 * 0x10000;
	pthread_mutex_unlock(&g.mutex);
	return device;
}

static uint8_t *fake_bytes(void *device)
{
	uint8_t *bytes;

	pthread_mutex_lock(&g.mutex);
	bytes = real((uintptr_t)device, 1); /* not the end of the one before */
	pthread_mutex_unlock(&g.mutex);
	return bytes;
}

static void fake_launch(void *device, size_t len, int value)
{
	pthread_mutex_lock(&g.mutex);
	queue((struct job){ .to = real((uintptr_t)device, len), .len = len, .value = value });
	pthread_mutex_unlock(&g.mutex);
}

static void fake_set_current(int ordinal)
{
	depth = 0;
	if (ordinal >= 0)
		stack[depth++] = &g.contexts[ordinal];
}

static void fake_fail(const char *name, int code)
{
	pthread_mutex_lock(&g.mutex);
	strcpy(g.failing, name ? name : "");
	g.fail_code = code;
	pthread_mutex_unlock(&g.mutex);
}

static uint64_t fake_count(const char *name)
{
	uint64_t n;

	pthread_mutex_lock(&g.mutex);
	n = *counter(name);
	pthread_mutex_unlock(&g.mutex);
	return n;
}

static void fake_finish(void)
{
	pthread_mutex_lock(&g.mutex);
	while (next_job())
		pthread_cond_wait(&g.changed, &g.mutex);
	pthread_mutex_unlock(&g.mutex);
}

static void fake_reset(void)
{
	fake_set_current(-1);
	fake_fail(NULL, 0);
	fake_finish();
	pthread_mutex_lock(&g.mutex);
	for (unsigned i = 0; i < g.n_allocations; i++)
		free(g.allocations[i].bytes);
	g.n_allocations = 0;
	memset(g.counts, 0, sizeof(g.counts));
	g.pinning_ms = 0;
	pthread_mutex_unlock(&g.mutex);
}

static void fake_slow_pinning(int ms)
{
	pthread_mutex_lock(&g.mutex);
	g.pinning_ms = ms;
	pthread_mutex_unlock(&g.mutex);
}

EXPORT extern const struct fake_cuda fake_cuda_table;
const struct fake_cuda fake_cuda_table = {
	.alloc = fake_alloc,
	.bytes = fake_bytes,
	.launch = fake_launch,
	.finish = fake_finish,
	.set_current = fake_set_current,
	.set_failing = fake_fail,
	.set_slow_pinning = fake_slow_pinning,
	.count = fake_count,
	.reset = fake_reset,
};
