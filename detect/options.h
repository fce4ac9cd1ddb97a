/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the parameters of the detector's rules. doc/detection.md says where each comes from.
 */
#ifndef DETECT_OPTIONS_H
#define DETECT_OPTIONS_H

#include <stdint.h>

struct detector_options {
	uint32_t ranks_max, nodes_max, jobs_max; /* bounds on memory */

	/* Blindness: nobody is heard of for `blind_x` times the longest usual gap, at least
	 * `blind_ns`. */
	uint64_t blind_ns;
	double blind_x;

	/* exits: how long one orderly end waits for others, which would make it a restart; and one
	 * with status 0, which may be the end of the work. */
	uint64_t exit_wait_ns, exit_wait_done_ns;

	/* numeric */
	uint32_t finite_steps; /* so many good ones end a not-a-number verdict */
};
void detector_options_default(struct detector_options *o);

#endif
