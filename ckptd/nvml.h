/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvml.h - what we use of NVIDIA's management library, declared by us: it is looked for at run
 * time, and its header is not needed to build.
 */
#ifndef CKPTD_NVML_H
#define CKPTD_NVML_H

typedef struct nvml_gpu *nvml_gpu_t;
typedef struct nvml_set *nvml_set_t;

enum nvml_result {
	NVML_OK = 0,
	NVML_UNINITIALIZED = 1,
	NVML_DRIVER_NOT_LOADED = 9,
	NVML_TIMEOUT = 10,
	NVML_GPU_IS_LOST = 15,
	NVML_RESET_REQUIRED = 16,
	NVML_VERSION_MISMATCH = 18,
};
enum { NVML_CLOCK_SM = 1, NVML_TEMPERATURE_GPU = 0, NVML_CORRECTED = 0, NVML_UNCORRECTED = 1 };
enum { NVML_SINCE_DRIVER = 0, NVML_SINCE_EVER = 1 };
enum { NVML_FIELD_NVLINK_TX = 138, NVML_FIELD_NVLINK_RX = 139, NVML_FIELD_RECOVERY = 230 };
#define NVML_EVENT_XID         0x8ull
#define NVML_EVENT_UNAVAILABLE 0x4000ull
#define NVML_EVENT_RECOVERY    0x8000ull

struct nvml_pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char address[32];
};
struct nvml_use {
	unsigned gpu, memory; /* percent */
};
struct nvml_process {
	unsigned pid;
	unsigned long long memory;
	unsigned instance, compute;
};
struct nvml_process_use {
	unsigned pid;
	unsigned long long time_us;
	unsigned sm, memory, encoder, decoder; /* percent */
};
struct nvml_field {
	unsigned id, scope;
	long long timestamp, latency;
	int type, result;
	union {
		double d;
		unsigned u;
		unsigned long ul;
		unsigned long long ull;
		long long ll;
		int i;
		unsigned short us;
	} value;
};
struct nvml_event {
	nvml_gpu_t gpu;
	unsigned long long type, data;
	unsigned instance, compute;
};
_Static_assert(sizeof(struct nvml_process) == 24 && sizeof(struct nvml_process_use) == 32 &&
		       sizeof(struct nvml_pci) == 68 && sizeof(struct nvml_field) == 40 &&
		       sizeof(struct nvml_event) == 32,
	       "as the library lays them out");

/* X(member, symbol, parameters); the first NVML_NEEDED must be there. */
#define NVML_FUNCTIONS(X)                                                                          \
	X(init, "nvmlInit_v2", (void))                                                             \
	X(count, "nvmlDeviceGetCount_v2", (unsigned *))                                            \
	X(handle, "nvmlDeviceGetHandleByIndex_v2", (unsigned, nvml_gpu_t *))                       \
	X(pci, "nvmlDeviceGetPciInfo_v3", (nvml_gpu_t, struct nvml_pci *))                         \
	X(shutdown, "nvmlShutdown", (void))                                                        \
	X(use, "nvmlDeviceGetUtilizationRates", (nvml_gpu_t, struct nvml_use *))                   \
	X(power, "nvmlDeviceGetPowerUsage", (nvml_gpu_t, unsigned *))                              \
	X(clock, "nvmlDeviceGetClockInfo", (nvml_gpu_t, int, unsigned *))                          \
	X(temperature, "nvmlDeviceGetTemperature", (nvml_gpu_t, int, unsigned *))                  \
	X(ecc, "nvmlDeviceGetTotalEccErrors", (nvml_gpu_t, int, int, unsigned long long *))        \
	X(fields, "nvmlDeviceGetFieldValues", (nvml_gpu_t, int, struct nvml_field *))              \
	X(supported, "nvmlDeviceGetSupportedEventTypes", (nvml_gpu_t, unsigned long long *))       \
	X(listen, "nvmlDeviceRegisterEvents", (nvml_gpu_t, unsigned long long, nvml_set_t))        \
	X(set_new, "nvmlEventSetCreate", (nvml_set_t *))                                           \
	X(set_free, "nvmlEventSetFree", (nvml_set_t))                                              \
	X(wait, "nvmlEventSetWait_v2", (nvml_set_t, struct nvml_event *, unsigned))                \
	X(processes, "nvmlDeviceGetComputeRunningProcesses_v3",                                    \
	  (nvml_gpu_t, unsigned *, struct nvml_process *))                                         \
	X(processes_v2, "nvmlDeviceGetComputeRunningProcesses_v2",                                 \
	  (nvml_gpu_t, unsigned *, struct nvml_process *))                                         \
	X(mps, "nvmlDeviceGetMPSComputeRunningProcesses_v3",                                       \
	  (nvml_gpu_t, unsigned *, struct nvml_process *))                                         \
	X(samples, "nvmlDeviceGetProcessUtilization",                                              \
	  (nvml_gpu_t, struct nvml_process_use *, unsigned *, unsigned long long))
#define NVML_NEEDED 4

struct nvml_library {
#define X(member, symbol, parameters) int(*member) parameters;
	NVML_FUNCTIONS(X)
#undef X
};

#endif
