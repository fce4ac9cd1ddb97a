/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_line_priv.h - the shapes of kernel messages, as the files that know them share them:
 * kernel_line.c, kernel_line_nvidia.c, kernel_line_machine.c.
 *
 * A shape is a function that gets the text as a span, takes what it knows off its front, and says
 * whether it was that. Nothing goes back by more than one span: see find_link_details(), where the
 * name of a process comes first.
 *
 * Invariants, beside those of kernel_line.h: (1) no shape that may be an alarm is whole within the
 * length of a process' name, and none looks for a word anywhere behind that: what follows is the
 * driver's, word by word; (2) one that says yes has set the kind; one that says no may have left
 * anything in the result.
 */
#ifndef DETECT_KERNEL_LINE_PRIV_H
#define DETECT_KERNEL_LINE_PRIV_H

#include "detect/kernel_line.h"
#include "detect/span.h"

/* Whether s is that; then it stands in l, which says nothing before. */
typedef bool kernel_shape(struct span s, struct kernel_line *l);

/* kernel_line_nvidia.c */
kernel_shape kernel_is_xid, kernel_is_sxid, kernel_is_gpu_lost;
/* kernel_line_machine.c */
kernel_shape kernel_is_out_of_memory, kernel_is_machine_check, kernel_is_memory_error,
	kernel_is_pcie_error, kernel_is_disk_error, kernel_is_nvme, kernel_is_file_system,
	kernel_is_hung_task, kernel_is_link;

/* As drivers write it: "0000:05:00", "0001:00", "PCI:0000:05:00.0". */
bool kernel_take_device(struct span *s, struct kernel_line *l);

#endif
