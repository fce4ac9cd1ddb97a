/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_gpu.c - each GPU's memory, its way to the host, and its arithmetic, through the CUDA
 * driver.
 *
 *   gpuN-copy-in, gpuN-copy-out   GB/s between host and device; what comes back is compared. Host
 *                                 memory is pinned: the driver copies any other itself, with one
 *                                 core, so that 9 GB/s on a link of 55 is what that does
 *   gpuN-memory                   GB/s of filling device memory; two complementary values, read
 *                                 back
 *   gpuN-arithmetic               million results/s of chains of fused multiply-adds, each
 *                                 compared, bit for bit, with what the processor gets: IEEE 754
 *                                 leaves no choice
 *
 * The driver is opened at run time (CKPT_LIBCUDA names another): a node without one skips this. The
 * kernel is PTX, which every driver since 2017 turns into code for its GPU.
 */
#include <config.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "tools/node_check.h"

#define BYTES   (64u << 20) /* copied, filled */
#define RESULTS (1u << 16)
#define CHAIN	512u
#define BLOCK   256u
#define COPIES  8
#define FACTOR  0.999f /* 0f3F7FBE77 below */
#define SUMMAND 0.5f   /* 0f3F000000 */

/* Results of the driver that are no fault of a GPU; CUDA's numbers. */
enum { DRIVER_IS_STUB = 34, NO_DEVICE = 100, SYSTEM_CALL_REFUSED = 304 };

static const char kernel[] =
	".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry ckpt_chain(.param .u64 out, .param .u32 count, .param .u32 rounds)\n{\n"
	".reg .pred %p<3>;\n.reg .b32 %r<8>;\n.reg .f32 %f<2>;\n.reg .b64 %rd<4>;\n"
	"ld.param.u64 %rd1, [out];\nld.param.u32 %r1, [count];\nld.param.u32 %r2, [rounds];\n"
	"mov.u32 %r3, %ctaid.x;\nmov.u32 %r4, %ntid.x;\nmov.u32 %r5, %tid.x;\n"
	"mad.lo.s32 %r6, %r3, %r4, %r5;\n"
	"setp.ge.u32 %p1, %r6, %r1;\n@%p1 bra DONE;\n"
	"cvt.rn.f32.u32 %f1, %r6;\nmov.u32 %r7, 0;\n"
	"LOOP:\nsetp.ge.u32 %p2, %r7, %r2;\n@%p2 bra STORE;\n"
	"fma.rn.f32 %f1, %f1, 0f3F7FBE77, 0f3F000000;\nadd.u32 %r7, %r7, 1;\nbra LOOP;\n"
	"STORE:\ncvta.to.global.u64 %rd2, %rd1;\nmul.wide.u32 %rd3, %r6, 4;\n"
	"add.s64 %rd2, %rd2, %rd3;\nst.global.f32 [%rd2], %f1;\n"
	"DONE:\nret;\n}\n";

typedef unsigned long long cu_pointer;

/* X(member, symbol, parameters) */
#define DRIVER(X)                                                                                  \
	X(init, "cuInit", (unsigned flags))                                                        \
	X(device_count, "cuDeviceGetCount", (int *ret))                                            \
	X(device_get, "cuDeviceGet", (int *ret, int ordinal))                                      \
	X(context_retain, "cuDevicePrimaryCtxRetain", (void **ret, int device))                    \
	X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                           \
	X(context_push, "cuCtxPushCurrent_v2", (void *c))                                          \
	X(context_pop, "cuCtxPopCurrent_v2", (void **ret))                                         \
	X(context_sync, "cuCtxSynchronize", (void))                                                \
	X(error_string, "cuGetErrorString", (int code, const char **ret))                          \
	X(mem_alloc, "cuMemAlloc_v2", (cu_pointer * ret, size_t n))                                \
	X(mem_free, "cuMemFree_v2", (cu_pointer p))                                                \
	X(mem_set, "cuMemsetD32_v2", (cu_pointer p, unsigned value, size_t n))                     \
	X(host_register, "cuMemHostRegister_v2", (void *p, size_t n, unsigned flags))              \
	X(host_unregister, "cuMemHostUnregister", (void *p))                                       \
	X(copy_in, "cuMemcpyHtoD_v2", (cu_pointer d, const void *host, size_t n))                  \
	X(copy_out, "cuMemcpyDtoH_v2", (void *host, cu_pointer d, size_t n))                       \
	X(module_load, "cuModuleLoadData", (void **ret, const void *image))                        \
	X(module_unload, "cuModuleUnload", (void *module))                                         \
	X(module_function, "cuModuleGetFunction", (void **ret, void *module, const char *name))    \
	X(launch, "cuLaunchKernel",                                                                \
	  (void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,  \
	   unsigned shared, void *stream, void **parameters, void **extra))

struct driver {
#define X(member, symbol, parameters) int(*member) parameters;
	DRIVER(X)
#undef X
};

struct gpu {
	const struct driver *cu;
	struct check_report *report;
	int ordinal;
	cu_pointer memory;
	uint8_t *host;
	int pin_code; /* 0: host is pinned */
};

static void name_of(const struct gpu *g, const char *what, char buf[40])
{
	snprintf(buf, 40, "gpu%d-%s", g->ordinal, what);
}

/* False, and said, where the driver refused. */
static bool fine(const struct gpu *g, const char *what, int code)
{
	const char *text = NULL;
	char name[40];

	if (code == 0)
		return true;
	name_of(g, what, name);
	if (g->cu->error_string(code, &text) != 0 || !text)
		text = "unknown error of the driver";
	check_say(g->report, name, CHECK_FAILED,
		  "GPU %d fails: %s (%d); look for Xids in the "
		  "kernel's log",
		  g->ordinal, text, code);
	return false;
}

static void rate(const struct gpu *g, const char *what, double value, const char *unit)
{
	char name[40];

	name_of(g, what, name);
	check_value(g->report, name, value, unit, true);
}

static void wrong(const struct gpu *g, const char *what, const char *words)
{
	char name[40];

	name_of(g, what, name);
	check_say(g->report, name, CHECK_FAILED, "GPU %d: %s; take it out of use", g->ordinal,
		  words);
}

static void copy_rates(const struct gpu *g, double in, double out)
{
	char name[40];

	if (g->pin_code == 0) {
		rate(g, "copy-in", in / 1e9, "GB/s");
		rate(g, "copy-out", out / 1e9, "GB/s");
		return;
	}
	name_of(g, "copy-in", name);
	check_say(g->report, name, CHECK_SKIPPED,
		  "what is copied comes back; host memory cannot be pinned (%d), so how fast is "
		  "not known",
		  g->pin_code);
}

static bool copies(const struct gpu *g)
{
	double in = 0, out = 0;

	for (int i = 0; i < COPIES; i++) {
		struct digest before, after;
		double t0, t1, t2;

		for (size_t k = 0; k < BYTES / 8; k++)
			((uint64_t *)(void *)g->host)[k] = (k + (uint64_t)i) * 0x9e3779b97f4a7c15u;
		before = digest_of(g->host, BYTES);
		t0 = check_now();
		if (!fine(g, "copy-in", g->cu->copy_in(g->memory, g->host, BYTES)))
			return false;
		t1 = check_now();
		memset(g->host, 0, BYTES);
		t2 = check_now();
		if (!fine(g, "copy-out", g->cu->copy_out(g->host, g->memory, BYTES)))
			return false;
		out = fmax(out, BYTES / (check_now() - t2));
		in = fmax(in, BYTES / (t1 - t0));
		after = digest_of(g->host, BYTES);
		if (!digest_equal(&before, &after)) {
			wrong(g, "copy-out", "what was copied to it does not come back");
			return false;
		}
	}
	copy_rates(g, in, out);
	return true;
}

static bool filled(const struct gpu *g, uint32_t value, double *ret_rate)
{
	const uint32_t *p = (const void *)g->host;
	double start = check_now();

	if (!fine(g, "memory", g->cu->mem_set(g->memory, value, BYTES / 4)) ||
	    !fine(g, "memory", g->cu->context_sync()))
		return false;
	*ret_rate = fmax(*ret_rate, BYTES / (check_now() - start));
	if (!fine(g, "memory", g->cu->copy_out(g->host, g->memory, BYTES)))
		return false;
	for (size_t i = 0; i < BYTES / 4; i++)
		if (p[i] != value) {
			wrong(g, "memory", "its memory does not keep what is written");
			return false;
		}
	return true;
}

static bool keeps(const struct gpu *g)
{
	static const uint32_t values[] = {0x55555555, 0xaaaaaaaa, 0x0f0f3333, 0xf0f0cccc};
	double best = 0;

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		if (!filled(g, values[i], &best))
			return false;
	rate(g, "memory", best / 1e9, "GB/s");
	return true;
}

static float chain(uint32_t i)
{
	float x = (float)i;

	for (uint32_t k = 0; k < CHAIN; k++)
		x = fmaf(x, FACTOR, SUMMAND);
	return x;
}

/* The processor does every 16th: each result is as good a witness as any other. */
static bool results_match(const struct gpu *g)
{
	for (uint32_t i = 0; i < RESULTS; i += 16) {
		float expected = chain(i), got;

		memcpy(&got, g->host + (size_t)i * 4, 4);
		if (memcmp(&got, &expected, 4) == 0)
			continue;
		wrong(g, "arithmetic", "its arithmetic is wrong");
		return false;
	}
	return true;
}

static void calculates(const struct gpu *g)
{
	uint32_t count = RESULTS, rounds = CHAIN;
	cu_pointer out = g->memory;
	void *parameters[] = {&out, &count, &rounds}, *module = NULL, *function = NULL;
	double start, took = INFINITY;

	if (!fine(g, "arithmetic", g->cu->module_load(&module, kernel)))
		return;
	if (!fine(g, "arithmetic", g->cu->module_function(&function, module, "ckpt_chain")))
		goto unload;
	for (int i = 0; i < 2; i++) { /* the first has to be made ready */
		start = check_now();
		if (!fine(g, "arithmetic",
			  g->cu->launch(function, RESULTS / BLOCK, 1, 1, BLOCK, 1, 1, 0, NULL,
					parameters, NULL)) ||
		    !fine(g, "arithmetic", g->cu->context_sync()))
			goto unload;
		took = fmin(took, check_now() - start);
	}
	if (fine(g, "arithmetic", g->cu->copy_out(g->host, g->memory, RESULTS * 4)) &&
	    results_match(g))
		rate(g, "arithmetic", RESULTS / took / 1e6, "M/s");
unload:
	ignore_result(g->cu->module_unload(module) /* it ends with this process */);
}

static void one_gpu(struct gpu *g)
{
	void *context, *old;
	int device;

	if (!fine(g, "memory", g->cu->device_get(&device, g->ordinal)) ||
	    !fine(g, "memory", g->cu->context_retain(&context, device)))
		return;
	if (fine(g, "memory", g->cu->context_push(context))) {
		if (fine(g, "memory", g->cu->mem_alloc(&g->memory, BYTES))) {
			g->pin_code = g->cu->host_register(g->host, BYTES, 0);
			if (copies(g) && keeps(g))
				calculates(g);
			if (g->pin_code == 0)
				ignore_result(g->cu->host_unregister(g->host) /* likewise */);
			ignore_result(g->cu->mem_free(g->memory) /* it ends with this process */);
		}
		ignore_result(g->cu->context_pop(&old) /* likewise */);
	}
	ignore_result(g->cu->context_release(device) /* likewise */);
}

static bool open_driver(struct driver *cu, struct check_report *r)
{
	const char *given = getenv("CKPT_LIBCUDA");
	void *library = dlopen(given && given[0] ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		check_say(r, "gpu", CHECK_SKIPPED, "there is no CUDA driver on this node");
		return false;
	}
#define X(member, symbol, parameters)                                                              \
	*(void **)&cu->member = dlsym(library, symbol);                                            \
	if (!cu->member) {                                                                         \
		check_say(r, "gpu", CHECK_SKIPPED, "the CUDA driver has no function %s", symbol);  \
		return false;                                                                      \
	}
	DRIVER(X)
#undef X
	return true;
}

void check_gpu(const struct check_options *o, struct check_report *r)
{
	struct driver cu;
	int count = 0, code;
	uint8_t *host;

	(void)o;
	if (!open_driver(&cu, r))
		return;
	code = cu.init(0);
	if (code == 0)
		code = cu.device_count(&count);
	if (code == DRIVER_IS_STUB || code == SYSTEM_CALL_REFUSED) {
		/* Not here (a build machine, a sandbox): that says nothing of the node. */
		check_say(r, "gpu", CHECK_SKIPPED, "the CUDA driver cannot be used here (%d)",
			  code);
		return;
	}
	if (code != 0 && code != NO_DEVICE) {
		check_say(r, "gpu", CHECK_FAILED, "the CUDA driver does not start (%d)", code);
		return;
	}
	if (count == 0) {
		check_say(r, "gpu", CHECK_SKIPPED, "the CUDA driver knows of no GPU");
		return;
	}
	host = alloc_zero(BYTES);
	if (!host) {
		check_say(r, "gpu", CHECK_SKIPPED, "out of memory");
		return;
	}
	for (int i = 0; i < count; i++) {
		struct gpu g = {.cu = &cu, .report = r, .ordinal = i, .host = host};

		one_gpu(&g);
	}
	alloc_free(host);
}
