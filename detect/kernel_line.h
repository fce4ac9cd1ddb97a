/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_line.h - what one message of the kernel says, as far as the detector cares.
 *
 * Invariants: (1) only what the kernel itself said counts: a message of another facility is
 * KERNEL_OTHER, whatever it claims, since whoever may write /dev/kmsg writes with facility 1;
 * (2) of what the kernel said, nothing that users can put into it - names of processes (which some
 * messages begin with), files, cgroups, interfaces - makes it another message: a shape is looked
 * for at its beginning, word by word, and one that may be an alarm is not whole within the length
 * of a process' name; (3) what cannot be corrected, or is fatal, counts at the level at which the
 * kernel prints it, or a louder one; (4) whatever the bytes are, time is linear in their number,
 * nothing is allocated, every text in the result is terminated and has no control characters.
 *
 * Pure functions, any thread.
 */
#ifndef DETECT_KERNEL_LINE_H
#define DETECT_KERNEL_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "detect/sample.h"

/* X(name, word) */
#define KERNEL_LINE_KINDS(X)                                                                       \
	X(KERNEL_OTHER, "other")                                                                   \
	X(KERNEL_XID, "xid")             /* a GPU's error: device, code and what follows */        \
	X(KERNEL_SXID, "sxid")           /* an NVSwitch's: device, code, severity, link */         \
	X(KERNEL_GPU_LOST, "gpu-lost")   /* "fallen off the bus" without an Xid; device or "" */   \
	X(KERNEL_GPU_NAMED, "gpu-named") /* the first of the lines that say so: device */          \
	X(KERNEL_OUT_OF_MEMORY, "out-of-memory") /* pid, process, cgroup where it is said */       \
	X(KERNEL_MACHINE_CHECK, "machine-check") /* corrected or not */                            \
	X(KERNEL_MEMORY_ERROR, "memory-error")   /* EDAC: device mcN, corrected, count */          \
	X(KERNEL_PCIE_ERROR, "pcie-error")       /* device, corrected */                           \
	X(KERNEL_DISK_ERROR, "disk-error")       /* device */                                      \
	X(KERNEL_NVME, "nvme")                   /* device; fatal: the controller is gone */       \
	X(KERNEL_FILE_SYSTEM, "file-system")     /* device; fatal: shut down or read-only */       \
	X(KERNEL_LINK, "link")                   /* device: the interface; up */                   \
	X(KERNEL_HUNG_TASK, "hung-task")         /* pid, process */                                \
	X(KERNEL_PROCESS_CRASH, "process-crash") /* a segmentation fault and such: pid, process */

enum kernel_line_kind {
#define X(name, word) name,
	KERNEL_LINE_KINDS(X)
#undef X
		KERNEL_LINE_KIND_COUNT
};

enum kernel_severity { SEVERITY_NOT_SAID, SEVERITY_NONFATAL, SEVERITY_FATAL };

#define KERNEL_WARNING    4 /* a level */
#define KERNEL_WORDS_MAX  6
#define KERNEL_SUBCODE_NO UINT32_MAX
#define KERNEL_CODE_MAX   99999 /* SXids have five digits */

struct kernel_line {
	enum kernel_line_kind kind;
	uint8_t level;    /* with which it was said: 0 is the loudest */
	char device[32];  /* PCI address as 0000:9b:00, or a name; "": not said */
	uint32_t code;    /* XID, SXID */
	uint32_t subcode; /* Xids 144 to 150; KERNEL_SUBCODE_NO: none */
	char unit[24];    /* of NVLink 5: "RLW_RXPIPE" */
	enum kernel_severity severity;
	bool contained; /* NVLink 5: XC1, the error ended a channel */
	int32_t link;   /* NVLink's number; -1: not said, or all */
	uint32_t n_words;
	uint32_t words[KERNEL_WORDS_MAX]; /* NVLink 5: 0 says which, 1 is the status */
	enum gpu_recovery recovery;       /* Xid 154; RECOVERY_UNKNOWN: not said */
	uint32_t pid;                     /* 0: not said */
	char process[32];
	char cgroup[128];
	bool corrected, up;
	uint32_t count; /* MEMORY_ERROR: how many errors */
};

void kernel_line_parse(uint8_t facility, uint8_t level, const char *text, size_t len,
		       struct kernel_line *ret);
const char *kernel_line_word(enum kernel_line_kind k);

/* "PCI:0000:9B:00", "00000000:9B:00.0", "9b:00": all become "0000:9b:00"; false: none of these, and
 * ret is untouched. The end of what was read goes to ret_end, which may be NULL: else all must be
 * used. */
#define PCI_ADDRESS_MAX 16
bool pci_address(const char *text, size_t len, char ret[PCI_ADDRESS_MAX], const char **ret_end);

/* One record of /dev/kmsg: "prio,seq,usec,flags[,...];text\n KEY=value\n". */
struct kmsg_record {
	uint8_t facility, level;
	uint64_t seq, usec;
	bool continues;             /* belongs to the record before */
	char text[SAMPLE_TEXT_MAX]; /* escapes undone, cut; newlines stay, control characters not */
	char subsystem[32], device[64]; /* "" where it does not say */
};
/* -EINVAL: this is no record. */
MUST_CHECK int kmsg_record_parse(const char *buf, size_t len, struct kmsg_record *ret);

#endif
