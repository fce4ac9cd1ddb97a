/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_line.c - recognises kernel messages; see the invariants in kernel_line.h. Their shapes
 * stand in kernel_line_nvidia.c and kernel_line_machine.c.
 *
 * What a user can put into a message of the kernel is the name of a process at its beginning
 * (COMM_MAX bytes), and names of processes, files, cgroups and interfaces further back. So messages
 * about processes are put aside first, and the rest is left to shapes that neither can pretend to
 * be: see kernel_line_priv.h.
 */
#include <config.h>

#include "detect/kernel_line_priv.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

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

bool kernel_take_device(struct span *s, struct kernel_line *l)
{
	struct span t = *s;
	size_t digits;
	uint64_t n;

	_Static_assert(sizeof(l->device) >= PCI_ADDRESS_MAX, "an address is a device's name");
	(void)span_skip(&t, "PCI:");
	digits = t.len;
	return span_hex(&t, 8, &n) && digits - t.len >= 4 && pci_take(s, l->device);
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
	static kernel_shape *const shapes[] = {
		kernel_is_xid,           kernel_is_sxid,          kernel_is_gpu_lost,
		kernel_is_out_of_memory, kernel_is_machine_check, kernel_is_memory_error,
		kernel_is_pcie_error,    kernel_is_disk_error,    kernel_is_nvme,
		kernel_is_file_system,   kernel_is_hung_task,     kernel_is_link,
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
