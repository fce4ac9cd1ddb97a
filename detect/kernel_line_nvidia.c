/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel_line_nvidia.c - what NVIDIA's drivers say: Xids with what NVLink and the recovery action
 * add to them, SXids of NVSwitches, GPUs that have fallen off the bus.
 *
 * The driver prints without a level, so none is asked for. An Xid has the name of a process in it,
 * which may hold anything: see find_link_details().
 */
#include <config.h>

#include "detect/kernel_line_priv.h"

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
bool kernel_is_xid(struct span s, struct kernel_line *l)
{
	uint64_t code;

	if (!span_skip(&s, "NVRM: Xid (") || !kernel_take_device(&s, l))
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
bool kernel_is_sxid(struct span s, struct kernel_line *l)
{
	uint64_t n;

	if (!span_skip(&s, "nvidia-nvswitch") || !span_decimal(&s, 999, &n) ||
	    !span_skip(&s, ": SXid (") || !kernel_take_device(&s, l) || !span_skip(&s, "): ") ||
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
bool kernel_is_gpu_lost(struct span s, struct kernel_line *l)
{
	if (!span_skip(&s, "NVRM: "))
		return false;
	l->kind = KERNEL_GPU_LOST;
	if (span_skip(&s, "The NVIDIA GPU ")) {
		if (!kernel_take_device(&s, l))
			return false;
		if (!span_find(s, "fallen off the bus"))
			l->kind = KERNEL_GPU_NAMED;
		return true;
	}
	if (span_skip(&s, "GPU at "))
		return kernel_take_device(&s, l) && span_find(s, "has fallen off the bus");
	if (span_skip(&s, "GPU has fallen off the bus") ||
	    span_skip(&s, "fallen off the bus and is not") ||
	    span_skip(&s, "system has fallen off the bus"))
		return true;
	return span_skip(&s, "GPU ") && kernel_take_device(&s, l) &&
	       span_skip(&s, ": GPU has fallen off the bus");
}
