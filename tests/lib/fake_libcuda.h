/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_libcuda.h - what tests may ask of the stand-in for the CUDA driver, beside the driver's own
 * functions: by dlsym(), since it is loaded at run time like the real one.
 *
 * Device memory has addresses that nothing is mapped at: host code that touches it crashes. Copies
 * and kernels are done by one thread, each a while after it was queued.
 */
#ifndef TESTS_LIB_FAKE_LIBCUDA_H
#define TESTS_LIB_FAKE_LIBCUDA_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_DEVICES 2

struct fake_cuda {
	/* Device memory of len bytes, zeros; and where its bytes really are. */
	void *(*alloc)(size_t len);
	uint8_t *(*bytes)(void *device);
	/* A kernel on a stream of the caller's own: fills len bytes of device memory with value. */
	void (*launch)(void *device, size_t len, int value);
	void (*finish)(void); /* returns when everything that was queued is done */
	/* Makes a device's context current for this thread, as a framework would; -1: none. */
	void (*set_current)(int ordinal);
	/* Calls of this name fail with this code from now on; NULL: none does. */
	void (*set_failing)(const char *name, int code);
	/* Each pinning takes so long from now on. */
	void (*set_slow_pinning)(int ms);
	/* How many calls of this name worked; "pinned": ranges pinned now, "ragged": how
	 * many had pages that something else may be in; "copied": bytes. */
	uint64_t (*count)(const char *name);
	void (*reset)(void); /* forgets memory, counts and failures */
};

#define FAKE_CUDA_TABLE "fake_cuda_table" /* the symbol of a struct fake_cuda */

#endif
