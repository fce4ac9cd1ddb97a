/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_gpu.c - a stand-in for libcuda.so.1 as `ckptctl node-check` uses it: two GPUs whose memory
 * is the process's own, and which know one kernel: the chain of multiply-adds that is asked of
 * them, calculated here from the names in its PTX. FAKE_GPU says what is wrong with GPU 1: copy,
 * memory, arithmetic, hang, crash, refuse; or none: there is no GPU; or
 * init-CODE: the driver does not start; or unpinned: no host memory can be pinned.
 */
#include <config.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { OK = 0, FAILED = 700 };

static int current = -1;
static int context[2];

static bool sick(const char *how)
{
	const char *what = getenv("FAKE_GPU");

	return current == 1 && what && strcmp(what, how) == 0;
}

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGetCount(int *ret);
EXPORT int cuDeviceGet(int *ret, int ordinal);
EXPORT int cuDevicePrimaryCtxRetain(void **ret, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuCtxPushCurrent_v2(void *c);
EXPORT int cuCtxPopCurrent_v2(void **ret);
EXPORT int cuCtxSynchronize(void);
EXPORT int cuGetErrorString(int code, const char **ret);
EXPORT int cuMemAlloc_v2(uint64_t *ret, size_t n);
EXPORT int cuMemFree_v2(uint64_t p);
EXPORT int cuMemsetD32_v2(uint64_t p, unsigned value, size_t n);
EXPORT int cuMemHostRegister_v2(void *p, size_t n, unsigned flags);
EXPORT int cuMemHostUnregister(void *p);
EXPORT int cuMemcpyHtoD_v2(uint64_t d, const void *host, size_t n);
EXPORT int cuMemcpyDtoH_v2(void *host, uint64_t d, size_t n);
EXPORT int cuModuleLoadData(void **ret, const void *image);
EXPORT int cuModuleUnload(void *module);
EXPORT int cuModuleGetFunction(void **ret, void *module, const char *name);
EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
			  unsigned bz, unsigned shared, void *stream, void **parameters,
			  void **extra);

int cuInit(unsigned flags)
{
	const char *what = getenv("FAKE_GPU");

	if (what && strncmp(what, "init-", 5) == 0)
		return atoi(what + 5);
	return (int)flags;
}

int cuDeviceGetCount(int *ret)
{
	const char *what = getenv("FAKE_GPU");

	*ret = what && strcmp(what, "none") == 0 ? 0 : 2;
	return OK;
}

int cuDeviceGet(int *ret, int ordinal)
{
	*ret = ordinal;
	return OK;
}

int cuDevicePrimaryCtxRetain(void **ret, int device)
{
	*ret = &context[device];
	return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
	return device < 0;
}

int cuCtxPushCurrent_v2(void *c)
{
	current = (int)((int *)c - context);
	return OK;
}

int cuCtxPopCurrent_v2(void **ret)
{
	*ret = &context[current];
	current = -1;
	return OK;
}

int cuCtxSynchronize(void)
{
	if (sick("hang"))
		for (;;)
			pause();
	if (sick("crash"))
		abort();
	return sick("refuse") ? FAILED : OK;
}

int cuGetErrorString(int code, const char **ret)
{
	*ret = code == FAILED ? "an illegal memory access was encountered" : "some error";
	return OK;
}

int cuMemAlloc_v2(uint64_t *ret, size_t n)
{
	*ret = (uint64_t)(uintptr_t)calloc(1, n);
	return OK;
}

int cuMemFree_v2(uint64_t p)
{
	free((void *)(uintptr_t)p);
	return OK;
}

int cuMemsetD32_v2(uint64_t p, unsigned value, size_t n)
{
	uint32_t *to = (void *)(uintptr_t)p;

	for (size_t i = 0; i < n; i++)
		to[i] = value;
	if (sick("memory"))
		to[n / 2] &= ~0x100u; /* a bit that is stuck */
	return OK;
}

static void *pinned;

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	const char *what = getenv("FAKE_GPU");

	if (what && strcmp(what, "unpinned") == 0)
		return 1;
	if (pinned || !n || flags)
		abort(); /* each GPU lets go of it for the next */
	pinned = p;
	return OK;
}

int cuMemHostUnregister(void *p)
{
	if (!pinned || p != pinned)
		abort();
	pinned = NULL;
	return OK;
}

int cuMemcpyHtoD_v2(uint64_t d, const void *host, size_t n)
{
	memcpy((void *)(uintptr_t)d, host, n);
	if (sick("copy"))
		((uint8_t *)(uintptr_t)d)[n / 3] ^= 4;
	return OK;
}

int cuMemcpyDtoH_v2(void *host, uint64_t d, size_t n)
{
	memcpy(host, (const void *)(uintptr_t)d, n);
	return OK;
}

int cuModuleLoadData(void **ret, const void *image)
{
	if (!strstr(image, ".entry ckpt_chain(") ||
	    !strstr(image, "fma.rn.f32 %f1, %f1, 0f3F7FBE77, 0f3F000000;"))
		return 218; /* CUDA_ERROR_INVALID_PTX */
	*ret = &current;
	return OK;
}

int cuModuleUnload(void *module)
{
	return module != &current;
}

int cuModuleGetFunction(void **ret, void *module, const char *name)
{
	*ret = module;
	return strcmp(name, "ckpt_chain") != 0;
}

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra)
{
	uint64_t out = *(uint64_t *)parameters[0];
	uint32_t count = *(uint32_t *)parameters[1], rounds = *(uint32_t *)parameters[2];
	float *to = (void *)(uintptr_t)out;

	if (f != &current || gy * gz * by * bz != 1 || shared || stream || extra)
		return 1;
	for (uint32_t i = 0; i < gx * bx && i < count; i++) {
		float x = (float)i;

		/* Chains meet at a fixed point, where the rest changes nothing. */
		for (uint32_t k = 0; k < rounds; k++) {
			float next = fmaf(x, 0.999f, 0.5f);

			if (next == x)
				break;
			x = next;
		}
		to[i] = x;
	}
	if (sick("arithmetic"))
		to[48] = nextafterf(to[48], 0);
	return OK;
}
