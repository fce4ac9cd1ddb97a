/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_libnvidia_ml.c - a stand-in for libnvidia-ml.so.1, with what ckptd asks of it.
 *
 * It keeps the library's rules that matter to us: nothing works before nvmlInit_v2, a lost GPU says
 * so at every call, a wait without an event ends with a time-out, what does not fit is not written
 * and its number told, samples are told that are newer than asked for. It does not really wait.
 */
#include <config.h>

#include "tests/lib/fake_libnvidia_ml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	OK = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	TIMEOUT = 10
};
enum { EVENTS = 256 };

struct event {
	void *gpu;
	unsigned long long type, data;
	unsigned instance, compute;
};

static struct {
	struct fake_nvml_gpu gpu[FAKE_NVML_GPUS];
	unsigned n, opened, sets;
	int init;
	unsigned long long supported, listening[FAKE_NVML_GPUS];
	struct event events[EVENTS];
	unsigned n_events, next_event;
} g;

static void reset(void)
{
	unsigned opened = g.opened;

	memset(&g, 0, sizeof(g));
	g.opened = opened;
	g.n = 2;
	g.supported = ~0ull;
	for (int i = 0; i < FAKE_NVML_GPUS; i++) {
		struct fake_nvml_gpu *one = &g.gpu[i];

		snprintf(one->address, sizeof(one->address), "00000000:%02X:00.0", 0x9b + i);
		one->busy = 90;
		one->power_mw = 400000;
		one->clock = 1980;
		one->temperature = 60;
	}
}

static void event(unsigned i, unsigned long long type, unsigned long long data)
{
	if (g.n_events < EVENTS && g.listening[i] & type)
		g.events[g.n_events++] = (struct event){&g.gpu[i], type, data, ~0u, ~0u};
}

/* FAKE_NVML_FILE */
static void read_file(void)
{
	const char *path = getenv(FAKE_NVML_FILE);
	FILE *f = path ? fopen(path, "re") : NULL;
	unsigned i, pid, sm;

	if (!path)
		return;
	for (i = 0; i < FAKE_NVML_GPUS; i++)
		g.gpu[i].busy = g.gpu[i].n_processes = 0;
	while (f && fscanf(f, "%u %u %u", &i, &pid, &sm) == 3) {
		struct fake_nvml_gpu *one = &g.gpu[i % FAKE_NVML_GPUS];

		if (one->n_processes == FAKE_NVML_PROCESSES)
			continue;
		one->process[one->n_processes++] = (struct fake_nvml_process){.pid = pid};
		one->busy = one->busy + sm > 100 ? 100 : one->busy + sm;
	}
	if (f)
		fclose(f);
}

__attribute__((constructor)) static void start(void)
{
	if (!getenv(FAKE_NVML_FILE))
		return;
	reset();
	g.n = FAKE_NVML_GPUS;
}

static unsigned opened(void)
{
	return g.opened;
}

EXPORT extern const struct fake_nvml fake_nvml;
const struct fake_nvml fake_nvml = {reset, g.gpu, &g.n, &g.init, &g.supported, event, opened};

/* ---- The library ---- */

static int of(const void *handle, const struct fake_nvml_gpu **ret)
{
	const struct fake_nvml_gpu *one = handle;

	if (!g.opened)
		return UNINITIALIZED;
	if (one < g.gpu || one >= g.gpu + FAKE_NVML_GPUS)
		return INVALID_ARGUMENT;
	*ret = one;
	return one->result;
}

EXPORT int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
	if (g.init == OK)
		g.opened++;
	return g.init;
}

EXPORT int nvmlShutdown(void);
int nvmlShutdown(void)
{
	if (!g.opened)
		return UNINITIALIZED;
	g.opened--;
	return OK;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetCount_v2(unsigned *n)
{
	*n = g.n;
	return g.opened ? OK : UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret);
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret)
{
	if (i >= g.n)
		return INVALID_ARGUMENT;
	*ret = &g.gpu[i];
	return g.opened ? g.gpu[i].result : UNINITIALIZED;
}

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *ret);
int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *ret)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	if (r == OK)
		memcpy(ret->address, one->address, sizeof(ret->address));
	return r;
}

EXPORT int nvmlDeviceGetUtilizationRates(void *gpu, unsigned ret[2]);
int nvmlDeviceGetUtilizationRates(void *gpu, unsigned ret[2])
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	if (r == OK && one->rates_result != OK)
		return one->rates_result;
	read_file();
	if (r == OK) {
		ret[0] = one->busy;
		ret[1] = 0;
	}
	return r;
}

struct process {
	unsigned pid;
	unsigned long long memory;
	unsigned instance, compute;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *n, struct process *ret);
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *n, struct process *ret)
{
	const struct fake_nvml_gpu *one;
	unsigned room = *n, there = 0;
	int r = of(gpu, &one);

	if (r == OK)
		r = one->processes_result;
	if (r != OK)
		return r;
	read_file();
	for (unsigned i = 0; i < one->n_processes; i++) {
		if (one->process[i].hidden)
			continue;
		if (there < room)
			ret[there] = (struct process){one->process[i].pid, 1 << 30, ~0u, ~0u};
		there++;
	}
	*n = one->too_many ? one->too_many : there;
	return there > room ? INSUFFICIENT_SIZE : OK;
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *gpu, unsigned *n, struct process *ret);
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *gpu, unsigned *n, struct process *ret)
{
	const struct fake_nvml_gpu *one;
	unsigned room = *n;
	int r = of(gpu, &one);

	if (r != OK)
		return r;
	for (unsigned i = 0; i < one->served && i < room; i++)
		ret[i] = (struct process){2000 + i, 1 << 30, ~0u, ~0u};
	*n = one->served;
	return one->served > room ? INSUFFICIENT_SIZE : OK;
}

struct process_use {
	unsigned pid;
	unsigned long long time_us;
	unsigned sm, memory, encoder, decoder;
};

EXPORT int nvmlDeviceGetProcessUtilization(void *gpu, struct process_use *ret, unsigned *n,
					   unsigned long long since_us);
int nvmlDeviceGetProcessUtilization(void *gpu, struct process_use *ret, unsigned *n,
				    unsigned long long since_us)
{
	const struct fake_nvml_gpu *one;
	unsigned room = *n, there = 0;
	int r = of(gpu, &one);

	if (r == OK)
		r = one->samples_result;
	if (r != OK)
		return r;
	for (unsigned i = 0; i < one->n_processes; i++) {
		const struct fake_nvml_process *p = &one->process[i];

		if (p->time_us <= since_us)
			continue;
		if (there < room)
			ret[there] = (struct process_use){p->pid, p->time_us, p->sm, 0, 0, 0};
		there++;
	}
	if (there || one->too_many) /* else it is left as it was: a driver 580 does that */
		*n = one->too_many ? one->too_many : there;
	return !there ? NOT_FOUND : there > room ? INSUFFICIENT_SIZE : OK;
}

EXPORT int nvmlDeviceGetPowerUsage(void *gpu, unsigned *ret);
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *ret)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	if (r == OK)
		*ret = one->power_mw;
	return r;
}

EXPORT int nvmlDeviceGetClockInfo(void *gpu, int type, unsigned *ret);
int nvmlDeviceGetClockInfo(void *gpu, int type, unsigned *ret)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	if (r == OK)
		*ret = type == 1 ? one->clock : 1;
	return r;
}

EXPORT int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *ret);
int nvmlDeviceGetTemperature(void *gpu, int sensor, unsigned *ret)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	if (r == OK)
		*ret = sensor == 0 ? one->temperature : 1;
	return r;
}

EXPORT int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int since, unsigned long long *ret);
int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int since, unsigned long long *ret)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	(void)since;
	if (r == OK && one->no_ecc)
		return NOT_SUPPORTED;
	if (r == OK)
		*ret = type == 0 ? one->corrected : one->uncorrected;
	return r;
}

struct field {
	unsigned id, scope;
	long long timestamp, latency;
	int type, result;
	unsigned long long value;
};

EXPORT int nvmlDeviceGetFieldValues(void *gpu, int n, struct field *f);
int nvmlDeviceGetFieldValues(void *gpu, int n, struct field *f)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	for (int i = 0; r == OK && i < n; i++) {
		f[i].result = OK;
		if (f[i].id == 230 && one->recovery >= 0) {
			f[i].type = 1;
			f[i].value = (unsigned)one->recovery;
		} else if ((f[i].id == 138 || f[i].id == 139) && f[i].scope == ~0u &&
			   !one->no_nvlink) {
			f[i].type = 3;
			f[i].value = one->nvlink_kib;
		} else {
			f[i].result = NOT_SUPPORTED;
		}
	}
	return r;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(void *gpu, unsigned long long *ret);
int nvmlDeviceGetSupportedEventTypes(void *gpu, unsigned long long *ret)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	*ret = g.supported;
	return r;
}

EXPORT int nvmlEventSetCreate(void **ret);
int nvmlEventSetCreate(void **ret)
{
	g.sets++;
	*ret = &g.sets;
	return OK;
}

EXPORT int nvmlEventSetFree(void *set);
int nvmlEventSetFree(void *set)
{
	if (set != &g.sets || !g.sets)
		return INVALID_ARGUMENT;
	g.sets--;
	return OK;
}

EXPORT int nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set);
int nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set)
{
	const struct fake_nvml_gpu *one;
	int r = of(gpu, &one);

	if (r == OK && (set != &g.sets || types & ~g.supported))
		return NOT_SUPPORTED;
	if (r == OK)
		g.listening[one - g.gpu] |= types;
	return r;
}

EXPORT int nvmlEventSetWait_v2(void *set, struct event *ret, unsigned ms);
int nvmlEventSetWait_v2(void *set, struct event *ret, unsigned ms)
{
	(void)ms;
	if (!g.opened)
		return UNINITIALIZED;
	if (set != &g.sets)
		return INVALID_ARGUMENT;
	if (g.next_event == g.n_events)
		return TIMEOUT;
	*ret = g.events[g.next_event++];
	return OK;
}
