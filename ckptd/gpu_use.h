/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_use.h - for how much of the time the GPUs of a process work: run kernels, or copy.
 *
 * A process is known by its pid. What is said of it is of all GPUs that it holds a context of, and
 * an upper bound where several share one: who is said to use nothing does use nothing.
 */
#ifndef CKPTD_GPU_USE_H
#define CKPTD_GPU_USE_H

#include <stdbool.h>
#include <stdint.h>

#include "ckptd/nvml.h"

#define GPU_USES_MAX       256 /* processes of a node that hold one */
#define GPU_USES_EVERY_NS  1000000000ull
#define GPU_USES_FRESH_NS  3000000000ull /* two looks may be lost */
#define GPU_USES_NOT_KNOWN UINT16_MAX

struct gpu_use {
	int32_t pid;
	uint16_t permille; /* of the GPU that it uses most */
};

/* What one look has found; all zero: nobody has looked. Pure data. */
struct gpu_uses {
	uint64_t at_ns; /* it began */
	bool blind;     /* of some GPU it is not told who holds it: anybody may */
	uint32_t n;
	struct gpu_use use[GPU_USES_MAX]; /* who is one too many is not known */
};

/* Of a process that lives; GPU_USES_NOT_KNOWN also of who holds none: its work may be a child's, or
 * go through a server. */
uint16_t gpu_uses_of(const struct gpu_uses *u, int32_t pid, uint64_t now_ns);

/* What is kept of a GPU from look to look. */
struct gpu_seen {
	uint64_t sample_us; /* its newest sample, by the driver's clock; 0: none */
	uint64_t looked_ns;
};

/* Adds a GPU of an open driver to a look that began at u->at_ns. Blocks as long as the driver. */
void gpu_uses_look(struct gpu_uses *u, const struct nvml_library *l, nvml_gpu_t gpu,
		   struct gpu_seen *seen);

#endif
