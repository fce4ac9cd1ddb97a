/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_line.c - recognises kernel messages; see the invariants in kernel_line.h.
 *
 * A shape is a function that gets the text as a span, takes what it knows off its front, and says
 * whether it was that. Nothing goes back by more than one span: see link_details(), where the name
 * of a process comes first.
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

static bool take_device(struct span *s, struct kernel_line *l)
{
	_Static_assert(sizeof(l->device) >= PCI_ADDRESS_MAX, "an address is a device's name");
	return pci_take(s, l->device);
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
	(void)span_until(&s, ")"); /* a part of a GPU: " GPU-I:05" */
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
	if (l->code == 74 && span_skip_past(&s, "on link ") && span_decimal(&s, 999, &code))
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

static bool is_machine_check(struct span s, struct kernel_line *l)
{
	uint64_t n;

	l->kind = KERNEL_MACHINE_CHECK;
	if (span_skip(&s, "mce: ")) {
		l->corrected = span_find(s, "events logged") || span_find(s, "orrected error");
		if (span_find(s, "ncorrected"))
			l->corrected = false;
		return span_find(s, "Hardware Error") || span_find(s, "ncorrected hardware");
	}
	/* From the firmware: "{1}[Hardware Error]: event severity: corrected". Its other lines say
	 * the same again. */
	if (!span_skip(&s, "{") || !span_decimal(&s, UINT32_MAX, &n) ||
	    !span_skip(&s, "}[Hardware Error]: event severity: "))
		return false;
	l->corrected = span_skip(&s, "corrected") || span_skip(&s, "info");
	if (span_skip(&s, "fatal"))
		l->severity = SEVERITY_FATAL;
	return true;
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
	else if (!span_skip(&s, " UE "))
		return false;
	l->kind = KERNEL_MEMORY_ERROR;
	l->count = (uint32_t)n;
	span_number("mc", mc, l->device, sizeof(l->device));
	return true;
}

/* "nvidia 0000:83:00.0: PCIe Bus Error: severity=Correctable, type=...",
 * "pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received: ..." */
static bool is_pcie_error(struct span s, struct kernel_line *l)
{
	if (!span_is_name(span_word(&s)) || !span_skip(&s, " ") || !take_device(&s, l))
		return false;
	l->kind = KERNEL_PCIE_ERROR;
	if (span_skip(&s, ": PCIe Bus Error: severity="))
		l->corrected = span_skip(&s, "Corrected") || span_skip(&s, "Correctable");
	else if (span_skip(&s, ": AER: "))
		l->corrected = span_find(s, "orrected error") && !span_find(s, "Uncorrected");
	else
		return false;
	if (span_find(s, "(Fatal)"))
		l->severity = SEVERITY_FATAL;
	return !span_find(s, "message received from"); /* of a bridge: the device says it itself */
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

	if (!span_skip(&s, "nvme "))
		return false;
	name = span_until(&s, ":");
	if (!span_is_name(name) || !span_skip(&s, ": "))
		return false;
	l->kind = KERNEL_NVME;
	span_copy(name, l->device, sizeof(l->device));
	if (span_skip(&s, "I/O "))
		return span_find(s, " timeout");
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

static bool is_file_system(struct span s, struct kernel_line *l)
{
	static const char *const ends[] = {"shut down",       "hutting down",
					   "force_shutdown",  "emounting filesystem read-only",
					   "forced readonly", "log I/O error"};
	struct span name;

	l->kind = KERNEL_FILE_SYSTEM;
	if (span_skip(&s, "Aborting journal on device ")) {
		name = span_before(span_before(s, "."), "-");
		span_copy(name, l->device, sizeof(l->device));
		l->severity = SEVERITY_FATAL;
		return span_is_name(name);
	}
	if (span_skip(&s, "EXT4-fs error (device ") || span_skip(&s, "BTRFS error (device ") ||
	    span_skip(&s, "BTRFS critical (device "))
		l->severity = SEVERITY_NONFATAL;
	else if (!span_skip(&s, "EXT4-fs (") && !span_skip(&s, "XFS (") &&
		 !span_skip(&s, "BTRFS info (device "))
		return false;
	if (!file_system_device(&s, l))
		return false;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		if (span_find(s, ends[i]))
			l->severity = SEVERITY_FATAL;
	return l->severity != SEVERITY_NOT_SAID;
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
	if (!span_decimal(&rest, UINT32_MAX, &n) || rest.len > 0)
		return false;
	l->kind = KERNEL_PROCESS_CRASH;
	l->pid = (uint32_t)n;
	span_copy(name, l->process, sizeof(l->process));
	return true;
}

static void nothing(struct kernel_line *l)
{
	*l = (struct kernel_line){.kind = KERNEL_OTHER,
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

void kernel_line_parse(uint8_t facility, const char *text, size_t len, struct kernel_line *ret)
{
	static bool (*const shapes[])(struct span, struct kernel_line *) = {
		is_xid,           is_sxid,         is_gpu_lost,   is_out_of_memory,
		is_machine_check, is_memory_error, is_pcie_error, is_disk_error,
		is_nvme,          is_file_system,  is_hung_task,  is_process_crash,
		is_link,
	};
	struct span s = {text, len < SAMPLE_TEXT_MAX ? len : SAMPLE_TEXT_MAX};

	nothing(ret);
	if (facility != 0 || !text)
		return;
	s.len = strnlen(text, s.len);
	skip_time(&s);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		if (shapes[i](s, ret)) {
			assert(ret->kind != KERNEL_OTHER);
			return;
		}
		nothing(ret);
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
