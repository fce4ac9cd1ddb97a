/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the parameters of the detector's rules. doc/detection.md says where each comes from.
 */
#ifndef DETECT_OPTIONS_H
#define DETECT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

struct detector_options {
	uint32_t ranks_max, nodes_max, jobs_max; /* bounds on memory */

	/* Users that do not trust each other share the node: an Xid that a program can cause by
	 * itself counts against a GPU only as often as programs of other users than the one with
	 * the most met it. */
	bool shared_node;

	/* Blindness: nobody is heard of for `blind_x` times the longest usual gap, at least
	 * `blind_ns`. */
	uint64_t blind_ns;
	double blind_x;

	/* exits: how long one orderly end waits for others, which would make it a restart; and one
	 * with status 0, which may be the end of the work. */
	uint64_t exit_wait_ns, exit_wait_done_ns;

	/* phi accrual: suspicion of a rank; least deviation, and as a share of the mean */
	double phi, phi_sigma_s, phi_sigma_share;
	/* silence of a node: accusation, pause added to the mean, samples that end it */
	double silence_phi, silence_pause_s;
	uint32_t silence_back;

	/* Learned timeouts: times the longest, times the median, at least; while few are known. */
	double step_longest_x, step_median_x, step_floor_s, step_first_s;
	double phase_longest_x, phase_median_x, phase_floor_s, phase_first_s;
	double phase_expected_x, phase_said_s; /* times what the trainer expects, at least */
	double phase_idle_s;                   /* idle on purpose, at least */
	double start_floor_s;                  /* to the first step of a run, at least */

	/* hang: with evidence after so many usual steps, at least; visibly at work not before
	 * busy_s, which is so by its node's metrics from this share of the usual work on. */
	double hang_steps, hang_floor_s, busy_s, busy_share;
	double lone_busy_s; /* ... if all others wait for it; twice that where phases are not said
			     * and GPUs cannot be seen */
	double later_s;     /* asleep for a time, waiting for a disk or input: at least */
	double asleep_s;    /* ... where the kernel does not tell whether for a time */

	/* numeric */
	uint32_t finite_steps;                 /* so many good ones end a not-a-number verdict */
	double jump_x, odd_loss_x, odd_norm_x; /* times the median */
	double cusum_k, cusum_h;
	double drift_loss, drift_norm; /* an alarm from this share above on */

	/* links: down; flaps are down for so long and back, so often (or, for moments, that often)
	 * within the window; errors in a minute, and as a multiple of the usual */
	double link_down_s, flap_down_s, flap_window_s, link_errors, link_errors_x;
	uint32_t flaps, flaps_brief, link_bad_minutes;

	/* health: errors within the window; what no counter ends stands so long */
	double error_window_s, news_stand_s;
	uint32_t disk_errors, memory_errors;
	double pressure, pressure_s; /* share of time waiting for memory, for so long */
};
void detector_options_default(struct detector_options *o);

#endif
