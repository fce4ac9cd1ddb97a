/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_line_machine.c - what the kernel says of the machine but for its GPUs: memory that ran
 * out, machine checks, EDAC, PCIe, disks, file systems, tasks that hang, links.
 *
 * What cannot be corrected, or is fatal, must have been said aloud: see is_loud().
 */
#include <config.h>

#include "detect/kernel_line_priv.h"

#include <string.h>

/* Whether the kernel said it aloud. What cannot be corrected it prints as a warning, an error or
 * worse; that a process crashed, and all that names interfaces, is less. */
static bool is_loud(const struct kernel_line *l)
{
	return l->level <= KERNEL_WARNING;
}

/* "oom-kill:constraint=...,task_memcg=/a/b,task=python,pid=1234,uid=0", or
 * "Out of memory: Killed process 1234 (python) ...". A name may hold commas: from behind. */
bool kernel_is_out_of_memory(struct span s, struct kernel_line *l)
{
	struct span tail;
	uint64_t pid;

	l->kind = KERNEL_OUT_OF_MEMORY;
	if (span_skip(&s, "oom-kill:")) {
		tail = span_after_last(&s, ",uid=");
		tail = span_after_last(&s, ",pid=");
		if (!span_decimal(&tail, UINT32_MAX, &pid))
			return false;
		l->pid = (uint32_t)pid;
		if (!span_skip_past(&s, ",task_memcg="))
			return true;
		span_copy(span_until(&s, ",task="), l->cgroup, sizeof(l->cgroup));
		if (span_skip(&s, ",task="))
			span_copy(s, l->process, sizeof(l->process));
		return true;
	}
	(void)span_skip(&s, "Memory cgroup out of memory: ");
	(void)span_skip(&s, "Out of memory: ");
	if (!span_skip(&s, "Killed process ") || !span_decimal(&s, UINT32_MAX, &pid) ||
	    !span_skip(&s, " ("))
		return false;
	l->pid = (uint32_t)pid;
	span_copy(span_until(&s, ") "), l->process, sizeof(l->process));
	return true;
}

#define STATUS_UNCORRECTED (UINT64_C(1) << 61) /* of a bank */

/* "CPU 3: Machine Check Exception: 5 Bank 7: be00000000800400": an exception cannot be corrected;
 * what is told without one (polled, or of the boot before) says so in the bank's status. */
static bool is_bank(struct span s, struct kernel_line *l)
{
	uint64_t n, status;
	bool exception;

	if (!span_skip(&s, "CPU ") || !span_decimal(&s, UINT32_MAX, &n) ||
	    !span_skip(&s, ": Machine Check"))
		return false;
	exception = span_skip(&s, " Exception");
	if (!span_skip(&s, ":"))
		return false;
	while (span_skip(&s, " ")) /* old kernels fill up with them */
		;
	if (!span_hex(&s, 16, &n) || !span_skip(&s, " Bank ") || !span_decimal(&s, 9999, &n) ||
	    !span_skip(&s, ": ") || !span_hex(&s, 16, &status) || s.len > 0)
		return false;
	l->corrected = !exception && !(status & STATUS_UNCORRECTED);
	return true;
}

/* AMD's decoder says nothing else in its first line. */
static bool is_decoded(struct span s, struct kernel_line *l)
{
	l->corrected = span_is(s, "Corrected error, no action required.");
	return l->corrected || span_is(s, "System Fatal error.") ||
	       span_is(s, "Uncorrected, software restartable error.") ||
	       span_is(s, "Uncorrected, software containable error.");
}

/* From the firmware: "{1}[Hardware Error]: event severity: corrected". Its other lines say the same
 * again. */
static bool is_event(struct span s, struct kernel_line *l)
{
	uint64_t n;

	if (!span_skip(&s, "{") || !span_decimal(&s, UINT32_MAX, &n) ||
	    !span_skip(&s, "}[Hardware Error]: event severity: "))
		return false;
	l->corrected = span_is(s, "corrected") || span_is(s, "info");
	if (span_is(s, "fatal"))
		l->severity = SEVERITY_FATAL;
	return l->corrected || l->severity == SEVERITY_FATAL || span_is(s, "recoverable");
}

bool kernel_is_machine_check(struct span s, struct kernel_line *l)
{
	l->kind = KERNEL_MACHINE_CHECK;
	if (is_event(s, l) ||
	    span_skip(&s, "mce: Uncorrected hardware memory error in user-access at "))
		return l->corrected || is_loud(l);
	(void)span_skip(&s, "mce: ");
	if (!span_skip(&s, "[Hardware Error]: "))
		return false;
	if (span_is(s, "Machine check events logged")) {
		l->corrected = true;
		return true;
	}
	return (is_bank(s, l) || is_decoded(s, l)) && (l->corrected || is_loud(l));
}

/* "memory read error on CPU_SrcID#1_MC#1 (channel:0 slot:0 page:0x1 offset:0x2 grain:32 ..." */
static bool is_where(struct span s)
{
	struct span what = span_until(&s, "on ");

	for (size_t i = 0; i < what.len; i++)
		if (memchr(":;[](){}=", what.at[i], 9))
			return false;
	return span_skip(&s, "on ") && span_skip_past(&s, " (") && span_find(s, "page:0x");
}

/* "EDAC MC0: 1 CE memory read error on ...", "EDAC sbridge MC0: ...": the first has the count. */
bool kernel_is_memory_error(struct span s, struct kernel_line *l)
{
	uint64_t mc, n;

	if (!span_skip(&s, "EDAC MC") || !span_decimal(&s, 999, &mc) || !span_skip(&s, ": ") ||
	    !span_decimal(&s, UINT32_MAX, &n))
		return false;
	if (span_skip(&s, " CE "))
		l->corrected = true;
	else if (!span_skip(&s, " UE ") || !is_loud(l) || !is_where(s))
		return false;
	l->kind = KERNEL_MEMORY_ERROR;
	l->count = (uint32_t)n;
	span_number("mc", mc, l->device, sizeof(l->device));
	return true;
}

/* As the kernel calls it: "0000:05:00.0", nothing shorter. */
static bool take_function(struct span *s, struct kernel_line *l)
{
	struct span t = *s;

	if (!kernel_take_device(&t, l) || s->len - t.len != strlen("0000:05:00.0") ||
	    t.at[-2] != '.')
		return false;
	*s = t;
	return true;
}

static bool take_severity(struct span *s, struct kernel_line *l)
{
	if (span_skip(s, "Corrected") || span_skip(s, "Correctable")) {
		l->corrected = true;
		return true;
	}
	if (!span_skip(s, "Uncorrected (") && !span_skip(s, "Uncorrectable ("))
		return false;
	if (span_skip(s, "Fatal)"))
		l->severity = SEVERITY_FATAL;
	else if (!span_skip(s, "Non-Fatal)"))
		return false;
	return true;
}

/* "nvidia 0000:83:00.0: PCIe Bus Error: severity=Correctable, type=..." of who met it, and of the
 * bridge above, as no more than information:
 * "pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0". Where that is
 * called a message, the device says it itself. */
bool kernel_is_pcie_error(struct span s, struct kernel_line *l)
{
	struct span driver = span_word(&s);
	struct kernel_line other = {0};

	l->kind = KERNEL_PCIE_ERROR;
	if (!span_is_name(driver) || !span_skip(&s, " ") || !take_function(&s, l) ||
	    !span_skip(&s, ": "))
		return false;
	if (span_skip(&s, "AER: ") && span_is(driver, "pcieport")) {
		struct span t = s;

		(void)span_skip(&t, "Multiple ");
		if (take_severity(&t, l))
			return span_skip(&t, " error received: ") && take_function(&t, &other) &&
			       t.len == 0;
	}
	return span_skip(&s, "PCIe Bus Error: severity=") && take_severity(&s, l) &&
	       span_skip(&s, ", type=") && (l->corrected || is_loud(l));
}

static bool only_words(struct span s)
{
	for (size_t i = 0; i < s.len; i++)
		if (!((s.at[i] >= 'a' && s.at[i] <= 'z') || (s.at[i] >= 'A' && s.at[i] <= 'Z') ||
		      s.at[i] == ' ' || s.at[i] == '/'))
			return false;
	return s.len > 0;
}

/* "blk_update_request: I/O error, dev sda, sector 2048 op ...", "Buffer I/O error on dev sda1, ..."
 */
bool kernel_is_disk_error(struct span s, struct kernel_line *l)
{
	struct span what;

	if (!is_loud(l))
		return false;
	l->kind = KERNEL_DISK_ERROR;
	if (span_skip(&s, "Buffer I/O error on dev ")) {
		(void)span_skip(&s, "ice ");
		what = span_until(&s, ",");
		span_copy(what, l->device, sizeof(l->device));
		return span_is_name(what) && span_skip(&s, ", ");
	}
	(void)span_skip(&s, "blk_update_request: ");
	(void)span_skip(&s, "print_req_error: ");
	what = span_until(&s, ", dev ");
	/* The kernel's own words for a status alone: "critical medium error". What others can have
	 * written into a message (a path, a name) comes behind a colon or in quotes. */
	if (what.len > 40 || !only_words(what) || !span_skip(&s, ", dev ") ||
	    !(span_find(what, "error") || span_find(what, "timeout")))
		return false;
	what = span_until(&s, ",");
	if (!span_is_name(what) || !span_skip(&s, ", sector "))
		return false;
	span_copy(what, l->device, sizeof(l->device));
	return true;
}

/* "nvme nvme0: I/O 15 QID 3 timeout, aborting", "nvme nvme0: controller is down; will reset: ..."
 */
bool kernel_is_nvme(struct span s, struct kernel_line *l)
{
	struct span name;
	uint64_t n;

	if (!span_skip(&s, "nvme "))
		return false;
	name = span_until(&s, ":");
	if (!span_is_name(name) || !span_skip(&s, ": "))
		return false;
	l->kind = KERNEL_NVME;
	span_copy(name, l->device, sizeof(l->device));
	if (span_skip(&s, "I/O "))
		return span_skip_past(&s, "QID ") && span_decimal(&s, UINT16_MAX, &n) &&
		       span_skip(&s, " timeout");
	if (!is_loud(l))
		return false;
	l->severity = SEVERITY_FATAL;
	return span_skip(&s, "controller is down") || span_skip(&s, "Device not ready") ||
	       span_skip(&s, "Removing after probe failure") ||
	       span_skip(&s, "Disabling device after reset failure");
}

static bool file_system_device(struct span *s, struct kernel_line *l)
{
	struct span name = span_until(s, ")");

	if (!span_skip(s, "): "))
		return false;
	name = span_before(name, " state "); /* btrfs: "sda1 state EA" */
	name = span_before(name, ":");       /* "sda1: inode #12" of some errors */
	span_copy(name, l->device, sizeof(l->device));
	return span_is_name(name);
}

/* "Corruption of in-memory data (0x8) detected at ...  Shutting down filesystem." */
static bool is_shut(struct span s)
{
	static const char *const why[] = {"Corruption of ",         "Log I/O Error",
					  "Metadata I/O Error",     "I/O Error Detected",
					  "Block device removal",   "All device paths lost",
					  "User initiated shutdown"};

	if (span_skip(&s, "Filesystem has been shut down due to ") ||
	    span_skip(&s, "log I/O error"))
		return true;
	for (size_t i = 0; i < sizeof(why) / sizeof(why[0]); i++)
		if (span_skip(&s, why[i]))
			return span_find(s, "hutting down filesystem");
	return false;
}

/* The words behind the device tell, none further back: there are names of processes and files. */
bool kernel_is_file_system(struct span s, struct kernel_line *l)
{
	bool fatal = false;
	struct span name;

	l->kind = KERNEL_FILE_SYSTEM;
	if (span_skip(&s, "Aborting journal on device ")) {
		name = span_before(span_before(s, "."), "-");
		span_copy(name, l->device, sizeof(l->device));
		l->severity = SEVERITY_FATAL;
		return span_is_name(name) && is_loud(l);
	}
	if (span_skip(&s, "EXT4-fs error (device ") || span_skip(&s, "BTRFS error (device ") ||
	    span_skip(&s, "BTRFS critical (device ")) {
		l->severity = SEVERITY_NONFATAL;
		return is_loud(l) && file_system_device(&s, l);
	}
	if (span_skip(&s, "EXT4-fs ("))
		fatal = file_system_device(&s, l) && is_loud(l) &&
			(span_skip(&s, "Remounting filesystem read-only") ||
			 span_skip(&s, "shut down requested"));
	else if (span_skip(&s, "XFS ("))
		fatal = file_system_device(&s, l) && is_loud(l) && is_shut(s);
	else if (span_skip(&s, "BTRFS info (device ")) /* after an error; it is no louder */
		fatal = file_system_device(&s, l) && span_is(s, "forced readonly");
	l->severity = SEVERITY_FATAL;
	return fatal;
}

/* "mlx5_core 0000:3b:00.0 eth0: Link down", "ixgbe 0000:01:00.0: eth0: NIC Link is Up 10 Gbps" */
bool kernel_is_link(struct span s, struct kernel_line *l)
{
	static const struct {
		const char *words;
		bool up;
	} says[] = {{" Link down", false},
		    {" Link up", true},
		    {" Link is Down", false},
		    {" Link is Up", true}};
	struct span name;

	for (size_t i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
		struct span head = s, tail;

		if (!span_find(s, says[i].words))
			continue;
		tail = span_after_last(&head, says[i].words);
		if (tail.len > 0 && tail.at[0] != ' ' && tail.at[0] != ',' && tail.at[0] != '.')
			return false;
		if (span_ends(head, " NIC"))
			head.len -= strlen(" NIC");
		name = span_after_last(&head, " ");
		if (name.len > 0 && name.at[name.len - 1] == ':')
			name.len--;
		if (!span_is_name(name) || !span_is_name(span_before(span_before(head, " "), ":")))
			return false;
		l->kind = KERNEL_LINK;
		l->up = says[i].up;
		span_copy(name, l->device, sizeof(l->device));
		return true;
	}
	return false;
}

/* "INFO: task python:1234 blocked for more than 120 seconds." */
bool kernel_is_hung_task(struct span s, struct kernel_line *l)
{
	struct span pid;
	uint64_t n;

	if (!span_skip(&s, "INFO: task ") || !span_find(s, " blocked for more than "))
		return false;
	(void)span_after_last(&s, " blocked for more than ");
	pid = span_after_last(&s, ":");
	if (!span_decimal(&pid, UINT32_MAX, &n) || pid.len > 0)
		return false;
	l->kind = KERNEL_HUNG_TASK;
	l->pid = (uint32_t)n;
	span_copy(s, l->process, sizeof(l->process));
	return true;
}
