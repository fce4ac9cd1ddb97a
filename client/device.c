/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - copies between device memory and slots.
 *
 * The CUDA driver's C interface has kept its binary form for over a decade; its few types and
 * constants are spelled out here, so that building needs no toolkit and running no GPU.
 *
 *   1. A device is used only through its primary context, the one that frameworks use: pointers
 *      are valid there, and no second context takes memory.
 *   2. Copies run on a stream of our own that does not synchronize with others; so device_use()
 *      first waits for all that was submitted to the context before: the caller's kernels may
 *      still be writing what it asks us to save.
 *   3. The driver is never unloaded: nobody can know that it may be.
 */
#include <config.h>

#include "client/device.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"

#define DEVICES_MAX 64
#define LIBCUDA	    "libcuda.so.1"

#define STREAM_NON_BLOCKING   1u
#define HOST_REGISTER_PORTABLE 1u /* pinned for every context */

enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2 };

typedef void *cu_context;
typedef void *cu_stream;
typedef unsigned long long cu_pointer;

struct cu_end {
	size_t x, y;
	int memory;
	void *host;
	cu_pointer device;
	void *array;
	size_t pitch;
};

struct cu_rows {
	struct cu_end from, to;
	size_t width, height;
};
_Static_assert(sizeof(struct cu_rows) == 128, "as the driver lays out CUDA_MEMCPY2D");

/* X(member, symbol, result and parameters) */
#define DRIVER(X)                                                                                  \
	X(init, "cuInit", (unsigned flags))                                                        \
	X(error_string, "cuGetErrorString", (int code, const char **ret))                          \
	X(device_get, "cuDeviceGet", (int *ret, int ordinal))                                      \
	X(context_retain, "cuDevicePrimaryCtxRetain", (cu_context * ret, int device))              \
	X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                           \
	X(context_push, "cuCtxPushCurrent_v2", (cu_context c))                                     \
	X(context_pop, "cuCtxPopCurrent_v2", (cu_context * ret))                                   \
	X(context_current, "cuCtxGetCurrent", (cu_context * ret))                                  \
	X(context_sync, "cuCtxSynchronize", (void))                                                \
	X(stream_create, "cuStreamCreate", (cu_stream * ret, unsigned flags))                      \
	X(stream_destroy, "cuStreamDestroy_v2", (cu_stream s))                                     \
	X(stream_sync, "cuStreamSynchronize", (cu_stream s))                                       \
	X(copy_out, "cuMemcpyDtoHAsync_v2", (void *host, cu_pointer d, size_t n, cu_stream s))     \
	X(copy_in, "cuMemcpyHtoDAsync_v2",                                                         \
	  (cu_pointer d, const void *host, size_t n, cu_stream s))                                 \
	X(copy_rows, "cuMemcpy2DAsync_v2", (const struct cu_rows *rows, cu_stream s))              \
	X(host_register, "cuMemHostRegister_v2", (void *p, size_t n, unsigned flags))              \
	X(host_unregister, "cuMemHostUnregister", (void *p))

struct devices {
	void *library;
#define X(member, symbol, parameters) int(*member) parameters;
	DRIVER(X)
#undef X
	struct device {
		cu_context context; /* NULL: not in use */
		cu_stream stream;
		int handle;
	} of[DEVICES_MAX];
};

static const char *library_name(void)
{
	const char *given = getenv("CKPT_LIBCUDA");

	return given && given[0] ? given : LIBCUDA;
}

static int fail(struct devices *d, int ordinal, const char *what, int code, struct err *e)
{
	const char *text = NULL;

	if (d->error_string(code, &text) != 0 || !text)
		text = "unknown error of the driver";
	return err_set(e, CKPT_ENODEVICE, "device %d: %s: %s (%d)", ordinal, what, text, code);
}

int devices_open(struct devices **ret, struct err *e)
{
	struct devices *d = alloc_zero(sizeof(*d));
	const char *missing = NULL;
	int code;

	if (!d)
		return err_code(e, -ENOMEM, "open the CUDA driver");
	d->library = dlopen(library_name(), RTLD_NOW | RTLD_LOCAL);
	if (!d->library) {
		alloc_free(d);
		return err_set(e, CKPT_ENODEVICE, "a tensor lies in device memory and the CUDA "
			       "driver '%s' cannot be loaded; install it, name it in CKPT_LIBCUDA, "
			       "or bind host memory", library_name());
	}
#define X(member, symbol, parameters)                                                              \
	*(void **)&d->member = dlsym(d->library, symbol);                                          \
	if (!d->member)                                                                            \
		missing = symbol;
	DRIVER(X)
#undef X
	if (missing) {
		alloc_free(d);
		return err_set(e, CKPT_ENODEVICE, "the CUDA driver '%s' has no function %s; a "
			       "newer driver is needed", library_name(), missing);
	}
	code = d->init(0);
	if (code) {
		ignore_result(fail(d, -1, "start the CUDA driver", code, e) /* the sentence */);
		alloc_free(d);
		return err_wrap(e, CKPT_ENODEVICE, "a tensor lies in device memory");
	}
	*ret = d;
	return 0;
}

static void device_release(struct devices *d, struct device *v)
{
	cu_context old;

	if (!v->context)
		return;
	if (v->stream && d->context_push(v->context) == 0) {
		ignore_result(d->stream_destroy(v->stream) /* at exit the driver may be gone */);
		ignore_result(d->context_pop(&old) /* likewise */);
	}
	ignore_result(d->context_release(v->handle) /* likewise */);
	*v = (struct device){ 0 };
}

void devices_free(struct devices *d)
{
	if (!d)
		return;
	for (int i = 0; i < DEVICES_MAX; i++)
		device_release(d, &d->of[i]);
	alloc_free(d); /* (3) */
}

static bool has_context(int (*context_current)(cu_context *))
{
	cu_context c = NULL;

	return context_current(&c) == 0 && c;
}

bool devices_in_use_here(void)
{
	void *library = dlopen(library_name(), RTLD_NOW | RTLD_NOLOAD);
	int (*context_current)(cu_context *);
	bool yes;

	if (!library)
		return false;
	*(void **)&context_current = dlsym(library, "cuCtxGetCurrent");
	/* Without cuInit(): a driver that is started here is lost to children of a later fork. */
	yes = context_current && has_context(context_current);
	dlclose(library); /* the reference that dlopen() took */
	return yes;
}

/* ---- One device ---- */

/* Runs call with the device's context current. */
#define WITH_CONTEXT(d, v, code, call)                                                             \
	do {                                                                                       \
		cu_context old_;                                                                   \
		code = (d)->context_push((v)->context);                                            \
		if (code == 0) {                                                                   \
			int pop_;                                                                  \
			code = (call);                                                             \
			pop_ = (d)->context_pop(&old_);                                            \
			code = code ? code : pop_;                                                 \
		}                                                                                  \
	} while (0)

int device_use(struct devices *d, int ordinal, struct err *e)
{
	struct device *v, fresh = { 0 };
	int code;

	if (ordinal < 0 || ordinal >= DEVICES_MAX)
		return err_set(e, CKPT_ENODEVICE, "device %d does not exist", ordinal);
	v = &d->of[ordinal];
	if (!v->context) {
		code = d->device_get(&fresh.handle, ordinal);
		if (code)
			return fail(d, ordinal, "find it", code, e);
		code = d->context_retain(&fresh.context, fresh.handle); /* (1) */
		if (code)
			return fail(d, ordinal, "take its context", code, e);
		WITH_CONTEXT(d, &fresh, code, d->stream_create(&fresh.stream, STREAM_NON_BLOCKING));
		if (code) {
			fresh.stream = NULL;
			device_release(d, &fresh);
			return fail(d, ordinal, "make a stream", code, e);
		}
		*v = fresh;
	}
	WITH_CONTEXT(d, v, code, d->context_sync()); /* (2) */
	return code ? fail(d, ordinal, "wait for the work before", code, e) : 0;
}

static struct device *in_use(struct devices *d, int ordinal)
{
	assert(ordinal >= 0 && ordinal < DEVICES_MAX);
	assert(d->of[ordinal].context); /* device_use() came first */
	return &d->of[ordinal];
}

int device_copy_out(struct devices *d, int ordinal, void *host, const void *device, size_t len,
		    struct err *e)
{
	struct device *v = in_use(d, ordinal);
	int code;

	WITH_CONTEXT(d, v, code, d->copy_out(host, (cu_pointer)(uintptr_t)device, len, v->stream));
	return code ? fail(d, ordinal, "copy from it", code, e) : 0;
}

int device_copy_in(struct devices *d, int ordinal, void *device, const void *host, size_t len,
		   struct err *e)
{
	struct device *v = in_use(d, ordinal);
	int code;

	WITH_CONTEXT(d, v, code, d->copy_in((cu_pointer)(uintptr_t)device, host, len, v->stream));
	return code ? fail(d, ordinal, "copy to it", code, e) : 0;
}

int device_copy_rows(struct devices *d, int ordinal, uint8_t *host, const struct device_rows *rows,
		     bool out, struct err *e)
{
	struct device *v = in_use(d, ordinal);
	struct cu_end packed = {.memory = MEMORY_HOST, .host = host, .pitch = rows->bytes};
	struct cu_end spread = {.memory = MEMORY_DEVICE,
				.device = (cu_pointer)(uintptr_t)rows->first,
				.pitch = rows->stride};
	struct cu_rows all = {.from = out ? spread : packed,
			      .to = out ? packed : spread,
			      .width = rows->bytes,
			      .height = rows->n};
	int code;

	assert(rows->stride >= rows->bytes && rows->stride <= DEVICE_STRIDE_MAX);
	WITH_CONTEXT(d, v, code, d->copy_rows(&all, v->stream));
	return code ? fail(d, ordinal, out ? "copy from it" : "copy to it", code, e) : 0;
}

int device_sync(struct devices *d, int ordinal, struct err *e)
{
	struct device *v = in_use(d, ordinal);
	int code;

	WITH_CONTEXT(d, v, code, d->stream_sync(v->stream));
	return code ? fail(d, ordinal, "finish copies", code, e) : 0;
}

/* ---- Pinning ---- */

void *devices_context(struct devices *d)
{
	cu_context c = NULL;

	if (d->context_current(&c) == 0 && c)
		return c;
	for (int i = 0; i < DEVICES_MAX; i++)
		if (d->of[i].context)
			return d->of[i].context;
	return NULL;
}

bool devices_pin(struct devices *d, void *context, void *base, size_t len)
{
	struct device in = { .context = context };
	int code;

	WITH_CONTEXT(d, &in, code, d->host_register(base, len, HOST_REGISTER_PORTABLE));
	return code == 0;
}

void devices_unpin(struct devices *d, void *context, void *base)
{
	struct device in = { .context = context };
	int code;

	if (!context)
		return;
	WITH_CONTEXT(d, &in, code, d->host_unregister(base));
	ignore_result(code /* of no interest: the memory goes away next */);
}
