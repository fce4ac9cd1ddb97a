/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_use.c - for how much of the time the GPUs of a process work.
 *
 * Two things are asked of the driver: for how much of the last moment (1/6 s to 1 s) the GPU ran
 * any kernel, or its memory was read or written (a copy needs no kernel), whichever is more; and
 * what of it each process has a sample of. The first alone answers where a process has its GPU to
 * itself, as a rank of a training has. Where several share one:
 *
 *   use of p = max(samples of p, use of the GPU - samples of the others)
 *
 *   1. What no sample accounts for may be anybody's, so it counts as everybody's. Nobody is taken
 *      for idle because a sample is late, is under another's name, or is not to be had.
 *   2. The driver's clock is not ours: what is newer than the newest sample of the look before is
 *      of the time since then. Of the first look, and after a pause, the samples may be of any age:
 *      they only say where the next look begins. If none comes while the GPU works, that clock was
 *      set back, and it begins anew.
 *   3. A pid means the same to the driver and to us only if it is of our namespace. Newer drivers
 *      translate pids, older ones tell those of the host: so one that does not live here makes the
 *      list worthless. With the Multi-Process Service samples are the server's, and not asked for.
 *   4. All that the library says is checked: counts, percentages, pids.
 *
 * Failure modes: who holds a GPU is not told (an old driver, rights): nothing is known of anybody.
 * Its use is not told (partitioned by MIG, vGPU): nothing of those who hold it. On the thread that
 * may call the library; gpu_uses_of() on any.
 */
#include <config.h>

#include "ckptd/gpu_use.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>

enum { PROCESSES_MAX = 256, SAMPLES_MAX = 256 }; /* of one GPU: the driver keeps 100 samples */

struct holder {
	unsigned pid, works; /* percent of the time, by its samples */
};
struct holders {
	unsigned n;
	struct holder by[PROCESSES_MAX];
};

static struct holder *holder_of(struct holders *h, unsigned pid)
{
	for (unsigned i = 0; i < h->n; i++)
		if (h->by[i].pid == pid)
			return &h->by[i];
	return NULL;
}

/* (3) Also where it is another user's, and /proc hides it. */
static bool lives_here(unsigned pid)
{
	return pid > 0 && pid <= INT32_MAX && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

static bool find_holders(const struct nvml_library *l, nvml_gpu_t gpu, struct holders *ret)
{
	struct nvml_process of[PROCESSES_MAX];
	unsigned n = PROCESSES_MAX;
	int r;

	if (l->processes)
		r = l->processes(gpu, &n, of);
	else if (l->processes_v2)
		r = l->processes_v2(gpu, &n, of);
	else
		return false;
	if (r == NVML_GPU_IS_LOST)
		return true; /* no kernel runs on it, whose it ever was */
	if (r != NVML_OK || n > PROCESSES_MAX)
		return false;
	for (unsigned i = 0; i < n; i++) {
		if (!lives_here(of[i].pid))
			return false;
		if (!holder_of(ret, of[i].pid))
			ret->by[ret->n++] = (struct holder){.pid = of[i].pid};
	}
	return true;
}

static bool has_server(const struct nvml_library *l, nvml_gpu_t gpu)
{
	unsigned n = 0;

	return !l->mps || l->mps(gpu, &n, NULL) != NVML_OK || n > 0;
}

static unsigned more_of(unsigned a, unsigned b)
{
	return a > b ? a : b;
}

/* Enters what the samples since the look before say; nothing where they cannot be believed. */
static void read_samples(const struct nvml_library *l, nvml_gpu_t gpu, uint64_t now_ns,
			 struct gpu_seen *seen, struct holders *h)
{
	bool anew = !seen->sample_us || now_ns - seen->looked_ns > GPU_USES_FRESH_NS; /* (2) */
	struct nvml_process_use of[SAMPLES_MAX];
	uint64_t since = seen->sample_us;
	unsigned n = SAMPLES_MAX, news = 0;

	seen->looked_ns = now_ns;
	if (!l->samples || l->samples(gpu, of, &n, since) != NVML_OK || n > SAMPLES_MAX)
		n = 0;
	for (unsigned i = 0; i < n; i++) {
		struct holder *one = holder_of(h, of[i].pid);
		unsigned works = more_of(of[i].sm, of[i].memory);

		if (works > 100 || of[i].time_us <= since)
			continue;
		news++;
		if (of[i].time_us > seen->sample_us)
			seen->sample_us = of[i].time_us;
		if (!anew && one)
			one->works = more_of(one->works, works);
	}
	if (!news)
		seen->sample_us = 0;
}

static void add(struct gpu_uses *u, unsigned pid, unsigned permille)
{
	uint32_t i = 0;

	assert(pid <= INT32_MAX && permille <= GPU_USES_NOT_KNOWN && u->n <= GPU_USES_MAX);
	while (i < u->n && u->use[i].pid != (int32_t)pid)
		i++;
	if (i == GPU_USES_MAX)
		return;
	if (i == u->n)
		u->use[u->n++] = (struct gpu_use){.pid = (int32_t)pid};
	if (u->use[i].permille < permille) /* what is not known is more than anything */
		u->use[i].permille = (uint16_t)permille;
}

void gpu_uses_look(struct gpu_uses *u, const struct nvml_library *l, nvml_gpu_t gpu,
		   struct gpu_seen *seen)
{
	struct holders h = {.n = 0};
	struct nvml_use use = {0};
	unsigned works, sum = 0;
	bool told;

	assert(u->at_ns > 0);
	if (!find_holders(l, gpu, &h)) {
		u->blind = true;
		return;
	}
	told = l->use && l->use(gpu, &use) == NVML_OK && use.gpu <= 100 && use.memory <= 100;
	works = more_of(use.gpu, use.memory);
	if (told && works > 0 && h.n > 1 && !has_server(l, gpu))
		read_samples(l, gpu, u->at_ns, seen, &h);
	for (unsigned i = 0; i < h.n; i++)
		sum += h.by[i].works;
	for (unsigned i = 0; i < h.n; i++) {
		unsigned own = h.by[i].works, others = sum - own;
		unsigned rest = works > others ? works - others : 0; /* (1) */

		add(u, h.by[i].pid, told ? 10 * more_of(own, rest) : GPU_USES_NOT_KNOWN);
	}
}

uint16_t gpu_uses_of(const struct gpu_uses *u, int32_t pid, uint64_t now_ns)
{
	if (!u->at_ns || u->blind || now_ns > u->at_ns + GPU_USES_FRESH_NS)
		return GPU_USES_NOT_KNOWN;
	for (uint32_t i = 0; i < u->n; i++)
		if (u->use[i].pid == pid)
			return u->use[i].permille;
	return GPU_USES_NOT_KNOWN;
}
