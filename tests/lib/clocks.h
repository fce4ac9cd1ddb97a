/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clocks.h - a program linked with this file and -Wl,--wrap=clock_gettime runs on a machine whose
 * clocks of real time and of time since boot are an hour off the monotonic one, as where it was
 * suspended, or somebody set them. Who asks for the wrong one is an hour off too.
 */
#ifndef TESTS_LIB_CLOCKS_H
#define TESTS_LIB_CLOCKS_H

#include <stdint.h>

uint64_t clocks_monotonic_ns(void);

#endif
