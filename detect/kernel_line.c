/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_line.c - recognises kernel messages; see the invariants in kernel_line.h.
 *
 * A shape is a function that gets the text as a span, takes what it knows off its front, and says
 * whether it was that. Nothing goes back by more than one span: see link_details(), where the name
 * of a process comes first.
 *
 * What a user can put into a message of the kernel is the name of a process at its beginning
 * (COMM_MAX bytes), and names of processes, files, cgroups and interfaces further back. So messages
 * about processes are put aside first; no shape that may be an alarm is whole within COMM_MAX
 * bytes, and none looks for a word anywhere behind them: what follows is the driver's, word by
 * word.
 */
#include <config.h>

#include "detect/kernel_line.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "detect/span.h"

const char *kernel_line_word(enum kernel_line_kind k)
{
	static const char *const words[] = {
#define X(name, word) word,
		KERNEL_LINE_KINDS(X)
#undef X
	};
	return (unsigned)k < KERNEL_LINE_KIND_COUNT ? words[k] : "?";
}

/* ---- PCI addresses ---- */

static bool pci_take(struct span *s, char ret[PCI_ADDRESS_MAX])
{
	static const char digits[] = "0123456789abcdef";
	uint64_t part[3] = {0};
	struct span t = *s;
	unsigned n = 0;
	uint32_t a;

	(void)span_skip(&t, "PCI:");
	do {
		if (n == 3 || !span_hex(&t, n == 0 ? 8 : 4, &part[n]))
			return false;
		n++;
	} while (span_skip(&t, ":"));
	if (n < 2)
		return false;
	if (n == 2) { /* old drivers: without the domain */
		part[2] = part[1];
		part[1] = part[0];
		part[0] = 0;
	}
	if (part[0] > UINT16_MAX || part[1] > UINT8_MAX || part[2] > UINT8_MAX)
		return false;
	if (span_skip(&t, ".") && !span_hex(&t, 1, &(uint64_t){0}))
		return false;
	a = (uint32_t)(part[0] << 16 | part[1] << 8 | part[2]);
	for (unsigned i = 0, shift = 32; shift > 0; i++) {
		if (i == 4 || i == 7) {
			ret[i] = ':';
			continue;
		}
		shift -= 4;
		ret[i] = digits[a >> shift & 15];
		ret[i + 1] = '\0';
	}
	*s = t;
	return true;
}

bool pci_address(const char *text, size_t len, char ret[PCI_ADDRESS_MAX], const char **ret_end)
{
	struct span s = {text, len};
	char address[PCI_ADDRESS_MAX];

	if (!pci_take(&s, address) || (!ret_end && s.len > 0))
		return false;
	memcpy(ret, address, sizeof(address));
	if (ret_end)
		*ret_end = s.at;
	return true;
}

/* As drivers write it: "0000:05:00", "0001:00", "PCI:0000:05:00.0". */
static bool take_device(struct span *s, struct kernel_line *l)
{
	struct span t = *s;
	size_t digits;
	uint64_t n;

	_Static_assert(sizeof(l->device) >= PCI_ADDRESS_MAX, "an address is a device's name");
	(void)span_skip(&t, "PCI:");
	digits = t.len;
	return span_hex(&t, 8, &n) && digits - t.len >= 4 && pci_take(s, l->device);
}

/* As the kernel calls it: "0000:05:00.0", nothing shorter. */
static bool take_function(struct span *s, struct kernel_line *l)
{
	struct span t = *s;

	if (!take_device(&t, l) || s->len - t.len != strlen("0000:05:00.0") || t.at[-2] != '.')
		return false;
	*s = t;
	return true;
}

/* Whether the kernel said it aloud. What cannot be corrected it prints as a warning, an error or
 * worse; that a process crashed, and all that names interfaces, is less. */
static bool is_loud(const struct kernel_line *l)
{
	return l->level <= KERNEL_WARNING;
}

/* ---- NVIDIA ---- */

static bool take_words(struct span *s, struct kernel_line *l)
{
	if (!span_skip(s, "("))
		return false;
	while (l->n_words < KERNEL_WORDS_MAX) {
		uint64_t w;

		if (!span_skip(s, "0x") || !span_hex(s, 8, &w))
			return false;
		l->words[l->n_words++] = (uint32_t)w;
		if (!span_skip(s, " "))
			break;
	}
	return span_skip(s, ")");
}

static bool take_link(struct span *s, struct kernel_line *l)
{
	uint64_t n;

	if (!span_skip(s, "Link "))
		return false;
	if (span_skip(s, "-1"))
		return true;
	if (!span_decimal(s, 999, &n))
		return false;
	l->link = (int32_t)n;
	return true;
}

/* "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...)" */
static bool link_details(struct span s, struct kernel_line *ret)
{
	struct kernel_line l = *ret;
	struct span unit = span_word(&s);
	uint64_t n;

	if (unit.len == 0 || unit.len >= sizeof(l.unit) || !span_is_name(unit))
		return false;
	if (span_skip(&s, " Nonfatal"))
		l.severity = SEVERITY_NONFATAL;
	else if (span_skip(&s, " Fatal"))
		l.severity = SEVERITY_FATAL;
	else
		return false;
	if (!span_skip(&s, " XC") || !span_decimal(&s, 1, &n))
		return false;
	l.contained = n == 1;
	if (!span_skip(&s, " i") || !span_decimal(&s, 999, &n) || !span_skip(&s, " ") ||
	    !take_link(&s, &l) || !span_skip(&s, " ") || !take_words(&s, &l))
		return false;
	l.subcode = l.words[0] >> 20 & 0x3f;
	span_copy(unit, l.unit, sizeof(l.unit));
	*ret = l;
	return true;
}

/* The details follow the name of a process, which may look like some: the last that fit count. */
static void find_link_details(struct span s, struct kernel_line *l)
{
	for (unsigned tries = 0; tries < 8; tries++) {
		struct span before = s, tail = span_after_last(&before, ", ");

		if (link_details(tail, l) || before.len == s.len)
			return;
		s = before;
	}
}

/* "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)" */
static void recovery_details(struct span s, struct kernel_line *l)
{
	static const struct {
		const char *word;
		enum gpu_recovery is;
	} words[] = {{"(None)", RECOVERY_NONE},
		     {"(GPU Reset", RECOVERY_RESET}, /* "Required)" in some drivers */
		     {"(Node Reboot", RECOVERY_REBOOT},
		     {"(Drain P2P", RECOVERY_DRAIN_P2P},
		     {"(Drain and Reset", RECOVERY_DRAIN_RESET}};
	uint64_t n;

	if (!span_skip_past(&s, "recovery action changed from 0x") ||
	    !span_skip_past(&s, " to 0x") || !span_hex(&s, 8, &n) || !span_skip(&s, " "))
		return;
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (span_skip(&s, words[i].word)) {
			l->recovery = words[i].is;
			return;
		}
	if (n < RECOVERY_UNKNOWN) /* another word for a number that is known */
		l->recovery = (enum gpu_recovery)n;
}

static void take_process(struct span *s, struct kernel_line *l)
{
	struct span name;
	uint64_t pid;

	if (!span_skip(s, "pid="))
		return;
	if (span_decimal(s, UINT32_MAX, &pid))
		l->pid = (uint32_t)pid;
	else if (!span_skip(s, "'<unknown>'"))
		return;
	if (!span_skip(s, ", name="))
		return;
	name = span_until(s, ", ");
	if (l->pid)
		span_copy(name, l->process, sizeof(l->process));
	(void)span_skip(s, ", ");
}

/* "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has ..." */
static bool is_xid(struct span s, struct kernel_line *l)
{
	uint64_t code;

	if (!span_skip(&s, "NVRM: Xid (") || !take_device(&s, l))
		return false;
	if (span_skip(&s, " GPU-I:") && !span_hex(&s, 4, &code)) /* a part of a GPU */
		return false;
	if (!span_skip(&s, "): ") || !span_decimal(&s, KERNEL_CODE_MAX, &code))
		return false;
	if (s.len > 0 && !span_skip(&s, ","))
		return false;
	(void)span_skip(&s, " ");
	l->kind = KERNEL_XID;
	l->code = (uint32_t)code;
	if (l->code == 154)
		recovery_details(s, l);
	take_process(&s, l);
	if (l->code == 74 && span_skip_past(&s, "detected on link ") &&
	    span_decimal(&s, 999, &code))
		l->link = (int32_t)code; /* "NVLink: fatal error detected on link 6(0x0, ...)" */
	if (l->code >= 144 && l->code <= 150)
		find_link_details(s, l);
	return true;
}

/* "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress ..." */
static bool is_sxid(struct span s, struct kernel_line *l)
{
	uint64_t n;

	if (!span_skip(&s, "nvidia-nvswitch") || !span_decimal(&s, 999, &n) ||
	    !span_skip(&s, ": SXid (") || !take_device(&s, l) || !span_skip(&s, "): ") ||
	    !span_decimal(&s, KERNEL_CODE_MAX, &n) || !span_skip(&s, ","))
		return false;
	l->kind = KERNEL_SXID;
	l->code = (uint32_t)n;
	if (span_skip(&s, " Non-fatal,"))
		l->severity = SEVERITY_NONFATAL;
	else if (span_skip(&s, " Fatal,"))
		l->severity = SEVERITY_FATAL;
	if (span_skip(&s, " "))
		(void)take_link(&s, l);
	return true;
}

/*
 * "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "NVRM: GPU has fallen off the bus.", and
 * what is said in two or three lines, of one message or each its own:
 *	NVRM: The NVIDIA GPU 0000:b3:00.0
 *	NVRM: (PCI ID: 10de:26b5) installed in this system has
 *	NVRM: fallen off the bus and is not responding to commands.
 */
static bool is_gpu_lost(struct span s, struct kernel_line *l)
{
	if (!span_skip(&s, "NVRM: "))
		return false;
	l->kind = KERNEL_GPU_LOST;
	if (span_skip(&s, "The NVIDIA GPU ")) {
		if (!take_device(&s, l))
			return false;
		if (!span_find(s, "fallen off the bus"))
			l->kind = KERNEL_GPU_NAMED;
		return true;
	}
	if (span_skip(&s, "GPU at "))
		return take_device(&s, l) && span_find(s, "has fallen off the bus");
	if (span_skip(&s, "GPU has fallen off the bus") ||
	    span_skip(&s, "fallen off the bus and is not") ||
	    span_skip(&s, "system has fallen off the bus"))
		return true;
	return span_skip(&s, "GPU ") && take_device(&s, l) &&
	       span_skip(&s, ": GPU has fallen off the bus");
}

/* ---- The rest of the machine ---- */

/* "oom-kill:constraint=...,task_memcg=/a/b,task=python,pid=1234,uid=0", or
 * "Out of memory: Killed process 1234 (python) ...". A name may hold commas: from behind. */
static bool is_out_of_memory(struct span s, struct kernel_line *l)
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

static bool is_machine_check(struct span s, struct kernel_line *l)
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
static bool is_memory_error(struct span s, struct kernel_line *l)
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
static bool is_pcie_error(struct span s, struct kernel_line *l)
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
static bool is_disk_error(struct span s, struct kernel_line *l)
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
static bool is_nvme(struct span s, struct kernel_line *l)
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
static bool is_file_system(struct span s, struct kernel_line *l)
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
static bool is_link(struct span s, struct kernel_line *l)
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
static bool is_hung_task(struct span s, struct kernel_line *l)
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

/* ---- What begins with the name of a process ---- */

#define COMM_MAX 15 /* bytes: no process can be called more */

/* "python3[1234]: segfault at 0 ip ...", "traps: python3[1234] trap invalid opcode ip:..." */
static bool is_process_crash(struct span s, struct kernel_line *l)
{
	bool traps = span_skip(&s, "traps: ");
	struct span name, rest;
	uint64_t n;

	if (traps ? !span_find(s, " trap ") && !span_find(s, " general protection")
		  : !span_find(s, "]: segfault at "))
		return false;
	rest = s;
	name = span_until(&rest, traps ? "] " : "]: segfault at ");
	rest = span_after_last(&name, "[");
	if (name.len > COMM_MAX || !span_decimal(&rest, UINT32_MAX, &n) || rest.len > 0)
		return false;
	l->kind = KERNEL_PROCESS_CRASH;
	l->pid = (uint32_t)n;
	span_copy(name, l->process, sizeof(l->process));
	return true;
}

/* How a message goes on whose beginning is the name of a process. */
static bool is_behind_name(struct span s)
{
	static const char *const words[] = {" invoked oom-killer: ",
					    ": page allocation ",
					    ": vmalloc ",
					    ": vmap allocation ",
					    ": attempt to access beyond ",
					    ": sending ioctl ",
					    " cpuset=",
					    " uses "};
	struct span t = s;
	uint64_t n;

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (span_skip(&t, words[i]))
			return true;
	/* "name[12]: segfault", "name[12] bad frame", "name (12): ...", "name (12) used greatest",
	 * "name/12: potentially unexpected fatal signal" */
	if (span_skip(&t, "["))
		return span_decimal(&t, UINT32_MAX, &n) && span_skip(&t, "]");
	if (span_skip(&t, " ("))
		return span_decimal(&t, UINT32_MAX, &n) && span_skip(&t, ")");
	return span_skip(&t, "/") && span_decimal(&t, UINT32_MAX, &n) &&
	       span_skip(&t, ": potentially ");
}

static bool is_of_process(struct span s)
{
	for (size_t i = 0; i <= COMM_MAX && i < s.len; i++)
		if (is_behind_name((struct span){s.at + i, s.len - i}))
			return true;
	return false;
}

/* ---- All of it ---- */

static void nothing(struct kernel_line *l, uint8_t level)
{
	*l = (struct kernel_line){.kind = KERNEL_OTHER,
				  .level = level,
				  .subcode = KERNEL_SUBCODE_NO,
				  .link = -1,
				  .recovery = RECOVERY_UNKNOWN};
}

/* "[ 1234.567890] ": what dmesg puts before it, and traces may hold. */
static void skip_time(struct span *s)
{
	struct span t = *s;
	uint64_t n;

	if (!span_skip(&t, "["))
		return;
	while (span_skip(&t, " "))
		;
	if (span_decimal(&t, UINT32_MAX, &n) && span_skip(&t, ".") &&
	    span_decimal(&t, UINT32_MAX, &n) && span_skip(&t, "] "))
		*s = t;
}

void kernel_line_parse(uint8_t facility, uint8_t level, const char *text, size_t len,
		       struct kernel_line *ret)
{
	static bool (*const shapes[])(struct span, struct kernel_line *) = {
		is_xid,           is_sxid,         is_gpu_lost,   is_out_of_memory,
		is_machine_check, is_memory_error, is_pcie_error, is_disk_error,
		is_nvme,          is_file_system,  is_hung_task,  is_link,
	};
	struct span s = {text, len < SAMPLE_TEXT_MAX ? len : SAMPLE_TEXT_MAX};

	nothing(ret, level);
	if (facility != 0 || !text)
		return;
	s.len = strnlen(text, s.len);
	skip_time(&s);
	if (is_process_crash(s, ret))
		return;
	nothing(ret, level);
	if (is_of_process(s))
		return;
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		if (shapes[i](s, ret)) {
			assert(ret->kind != KERNEL_OTHER);
			return;
		}
		nothing(ret, level);
	}
}

/* ---- Records of /dev/kmsg ---- */

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The text of a line with its \xNN undone. */
static void unescape(struct span s, char *ret, size_t size)
{
	size_t n = 0;

	while (s.len > 0 && n + 1 < size) {
		char c = s.at[0];
		size_t used = 1;

		if (c == '\\' && s.len >= 4 && s.at[1] == 'x' && hex_value(s.at[2]) >= 0 &&
		    hex_value(s.at[3]) >= 0) {
			c = (char)(hex_value(s.at[2]) << 4 | hex_value(s.at[3]));
			used = 4;
		}
		ret[n++] = ((unsigned char)c < ' ' && c != '\n') || c == 127 ? '?' : c;
		s.at += used;
		s.len -= used;
	}
	ret[n] = '\0';
}

static void take_keys(struct span s, struct kmsg_record *r)
{
	while (s.len > 0) {
		struct span line = span_until(&s, "\n");

		(void)span_skip(&s, "\n");
		if (span_skip(&line, " SUBSYSTEM="))
			unescape(line, r->subsystem, sizeof(r->subsystem));
		else if (span_skip(&line, " DEVICE="))
			unescape(line, r->device, sizeof(r->device));
	}
}

int kmsg_record_parse(const char *buf, size_t len, struct kmsg_record *ret)
{
	struct kmsg_record r = {0};
	struct span s = {buf, len}, text;
	uint64_t priority;

	if (!span_decimal(&s, UINT32_MAX, &priority) || !span_skip(&s, ",") ||
	    !span_decimal(&s, UINT64_MAX, &r.seq) || !span_skip(&s, ",") ||
	    !span_decimal(&s, UINT64_MAX, &r.usec) || !span_skip(&s, ","))
		return -EINVAL;
	r.continues = s.len > 0 && (s.at[0] == 'c' || s.at[0] == '+');
	r.level = priority & 7;
	r.facility = priority >> 3 < UINT8_MAX ? (uint8_t)(priority >> 3) : UINT8_MAX;
	(void)span_until(&s, ";");
	if (!span_skip(&s, ";"))
		return -EINVAL;
	text = span_until(&s, "\n");
	unescape(text, r.text, sizeof(r.text));
	(void)span_skip(&s, "\n");
	take_keys(s, &r);
	*ret = r;
	return 0;
}
