/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the parameters of the detector's rules. doc/detection.md says where each comes from.
 */
#ifndef DETECT_OPTIONS_H
#define DETECT_OPTIONS_H

#include <stdint.h>

struct detector_options {
	uint32_t ranks_max, nodes_max; /* bounds on memory */
};
void detector_options_default(struct detector_options *o);

#endif
