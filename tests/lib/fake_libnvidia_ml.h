/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_libnvidia_ml.h - what a test does to the stand-in for libnvidia-ml.so.1.
 *
 * The test opens the shared object as ckptd does and finds the table FAKE_NVML_TABLE in it.
 */
#ifndef TESTS_LIB_FAKE_LIBNVIDIA_ML_H
#define TESTS_LIB_FAKE_LIBNVIDIA_ML_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_NVML_TABLE "fake_nvml"
#define FAKE_NVML_GPUS  4

/* Says that GPUs are held by processes as a file tells, for programs that the test only starts:
 * lines of a GPU's number, a pid and the percentage of the time for which that runs kernels. The
 * GPUs are there from the start, and do nothing else. */
#define FAKE_NVML_FILE "CKPT_FAKE_NVML"

#define FAKE_NVML_PROCESSES 8

struct fake_nvml_process {
	unsigned pid, sm;
	unsigned long long time_us; /* of its sample; 0: it has none */
	bool hidden;                /* its sample is told, and not that it is there */
};

struct fake_nvml_gpu {
	char address[32]; /* as the library writes it: 00000000:9B:00.0 */
	int result;       /* of every call about it */
	unsigned busy, power_mw, clock, temperature;
	unsigned long long corrected, uncorrected, nvlink_kib;
	int recovery; /* -1: this driver has no such field */
	bool no_ecc, no_nvlink;
	struct fake_nvml_process process[FAKE_NVML_PROCESSES];
	unsigned n_processes, served;                       /* by the Multi-Process Service */
	int rates_result, processes_result, samples_result; /* of these calls */
	unsigned too_many;                                  /* they say that so many were written */
};

struct fake_nvml {
	void (*reset)(void); /* two GPUs that are well, no events */
	struct fake_nvml_gpu *gpu;
	unsigned *n;
	int *init; /* result of nvmlInit_v2 */
	unsigned long long *supported;
	/* One that a wait finds; of GPU i. */
	void (*event)(unsigned i, unsigned long long type, unsigned long long data);
	unsigned (*opened)(void); /* nvmlInit_v2 that were not shut down */
};

#endif
