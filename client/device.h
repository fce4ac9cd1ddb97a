/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - device memory through the CUDA driver, opened at run time. Host tensors need none of
 * it; where there is no driver everything here refuses with CKPT_ENODEVICE and a sentence.
 *
 * Every call makes the device's primary context current and puts the caller's back: any thread.
 */
#ifndef CLIENT_DEVICE_H
#define CLIENT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct devices;

/* Opens the driver: libcuda.so.1, or what CKPT_LIBCUDA names. */
MUST_CHECK int devices_open(struct devices **ret, struct err *e);
void devices_free(struct devices *d); /* NULL is allowed */
/* Whether the calling thread uses a device already, so that memory can be pinned for it; asking
 * neither loads nor starts the driver. */
bool devices_in_use_here(void);

/* Takes a device into use and waits until what was submitted to it before is done: from then on its
 * memory is what the caller believes it to be. Not from several threads at once. */
MUST_CHECK int device_use(struct devices *d, int ordinal, struct err *e);
/* Queued on a stream of our own, in order; both ends must stay until device_sync(). */
MUST_CHECK int device_copy_out(struct devices *d, int ordinal, void *host, const void *device,
			       size_t len, struct err *e);
MUST_CHECK int device_copy_in(struct devices *d, int ordinal, void *device, const void *host,
			      size_t len, struct err *e);
/* Rows of so many bytes, each a stride behind the one before; on the host they are packed. */
#define DEVICE_STRIDE_MAX (1u << 30) /* drivers take 2 GiB - 1 */
struct device_rows {
	const void *first;
	size_t bytes, stride, n; /* bytes <= stride <= DEVICE_STRIDE_MAX */
};
MUST_CHECK int device_copy_rows(struct devices *d, int ordinal, uint8_t *host,
				const struct device_rows *rows, bool out, struct err *e);
MUST_CHECK int device_sync(struct devices *d, int ordinal, struct err *e);
/* Pins host memory for fast copies; false when the driver will not, and copies are slower then. Any
 * thread; the context is what devices_context() gave: any will do, the memory is pinned for all. */
bool devices_pin(struct devices *d, void *context, void *base, size_t len);
void devices_unpin(struct devices *d, void *context, void *base);
/* The calling thread's, or that of a device in use; NULL: there is none. */
void *devices_context(struct devices *d);

#endif
