/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_ethtool.h - pause frames of an interface, which only its driver's own statistics have.
 */
#ifndef CKPTD_COLLECT_ETHTOOL_H
#define CKPTD_COLLECT_ETHTOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ETHTOOL_NAME_BYTES 32 /* of each statistic; need not be terminated */

/* Frames sent and received that ask the other side to wait: of priorities (PFC), else of the whole
 * link. false: this driver does not count them, or there is no such interface. */
MUST_CHECK bool ethtool_pause_frames(const char *interface, uint64_t *ret);

/* The same from what the driver says: n names and their values. */
MUST_CHECK bool ethtool_sum_pause(const char *names, const uint64_t *values, size_t n,
				  uint64_t *ret);

#endif
