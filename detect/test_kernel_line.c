/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel messages: every shape that is known, what must not be taken for one, records of
 * /dev/kmsg, and millions of damaged ones.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "detect/kernel_line.h"
#include "tests/lib/test.h"

#define LEVEL_ERROR 3
#define LEVEL_INFO  6

static struct kernel_line parse_at(uint8_t level, const char *text)
{
	struct kernel_line l;

	kernel_line_parse(0, level, text, strlen(text), &l);
	assert_int_equal(l.level, level);
	return l;
}

static struct kernel_line parse(const char *text)
{
	return parse_at(LEVEL_ERROR, text);
}

static void test_xid_shapes(void **state)
{
	static const struct {
		const char *text, *device;
		uint32_t code, pid;
		const char *process;
	} cases[] = {
		{"NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen "
		 "off "
		 "the bus.",
		 "0000:05:00", 79, 0, ""},
		{"NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14, 0, ""},
		{"NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s "
		 "of "
		 "waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL).",
		 "0000:9b:00", 119, 2024380, "nvidia-smi"},
		{"NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "0000:01:00", 79, 0,
		 ""},
		{"NVRM: Xid (PCI:0000:04:00): 63, Row remapping event: Rows 0x1a and 0x2b have "
		 "been",
		 "0000:04:00", 63, 0, ""},
		{"NVRM: Xid (PCI:0000:CB:00): 13, pid=77, name=a, b, Graphics SM Warp Exception",
		 "0000:cb:00", 13, 77, "a"},
		{"NVRM: Xid (PCI:0000:21:00 GPU-I:05): 94, pid=7194, name=python3, Contained: CE "
		 "User",
		 "0000:21:00", 94, 7194, "python3"},
		{"NVRM: Xid (0001:00): 13, 0001 00000000 0000c597", "0000:01:00", 13, 0, ""},
		{"[ 1843.308145] NVRM: Xid (PCI:0009:01:00): 45, pid=12, name=x, Ch 00000008",
		 "0009:01:00", 45, 12, "x"},
		{"NVRM: Xid (PCI:0000:9b:00): 48", "0000:9b:00", 48, 0, ""},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kernel_line l = parse(cases[i].text);

		assert_int_equal(l.kind, KERNEL_XID);
		assert_string_equal(l.device, cases[i].device);
		assert_int_equal(l.code, cases[i].code);
		assert_int_equal(l.pid, cases[i].pid);
		assert_string_equal(l.process, cases[i].process);
		assert_int_equal(l.subcode, KERNEL_SUBCODE_NO);
	}
}

static void test_nvlink(void **state)
{
	static const struct {
		const char *text, *unit;
		uint32_t code, subcode, n_words, status;
		enum kernel_severity severity;
		int32_t link;
		bool contained;
	} cases[] = {
		{"NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE "
		 "Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 "
		 "0x00000004)",
		 "RLW_RXPIPE", 145, 0, 6, 8, SEVERITY_NONFATAL, 13, false},
		{"NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 "
		 "(0x00086226 "
		 "0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
		 "NETIR_BER_EVENT", 149, 0, 6, 1, SEVERITY_NONFATAL, 3, false},
		{"NVRM: Xid (PCI:0019:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 "
		 "(0x040988e2 "
		 "0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
		 "RLW_SRC_TRACK", 145, 0, 6, 8, SEVERITY_NONFATAL, 12, true},
		{"NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 "
		 "0x00000000 "
		 "0x00000000 0x00000000 0x00000000 0x00000000)",
		 "NETIR", 149, 0, 6, 0, SEVERITY_FATAL, -1, false},
		{"NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 "
		 "0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
		 "NETIR_LINK_EVT", 149, 4, 6, 0, SEVERITY_FATAL, 8, false},
		{"NVRM: Xid (PCI:0000:04:00): 145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 "
		 "0x80000000 0x00000000 0x00000000)",
		 "RLW_CTRL", 145, 0, 4, 0x80000000, SEVERITY_NONFATAL, 0, false},
		/* somebody called a process like the beginning of the details */
		{"NVRM: Xid (PCI:0000:04:00): 144, pid=4, name=x, A Fatal XC0 , SAW_MVB Nonfatal "
		 "XC0 "
		 "i0 Link 01 (0x00100021 0x00000004)",
		 "SAW_MVB", 144, 1, 2, 4, SEVERITY_NONFATAL, 1, false},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kernel_line l = parse(cases[i].text);

		assert_int_equal(l.kind, KERNEL_XID);
		assert_int_equal(l.code, cases[i].code);
		assert_string_equal(l.unit, cases[i].unit);
		assert_int_equal(l.subcode, cases[i].subcode);
		assert_int_equal(l.n_words, cases[i].n_words);
		assert_int_equal(l.words[1], cases[i].status);
		assert_int_equal(l.severity, cases[i].severity);
		assert_int_equal(l.link, cases[i].link);
		assert_int_equal(l.contained, cases[i].contained);
	}
	/* cut short: the Xid counts, its details are not known */
	assert_int_equal(
		parse("NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000f")
			.subcode,
		KERNEL_SUBCODE_NO);
	assert_int_equal(parse("NVRM: Xid (PCI:0000:8a:00): 74, pid=9, name=a, NVLink: fatal error "
			       "detected on link 6(0x0, 0x0, 0x10000)")
				 .link,
			 6);
	/* the words of other Xids are not looked at */
	assert_int_equal(
		parse("NVRM: Xid (PCI:0018:01:00): 79, NETIR Fatal XC0 i0 Link -1 (0x000fe406)")
			.severity,
		SEVERITY_NOT_SAID);
}

static void test_recovery(void **state)
{
	static const struct {
		const char *to;
		enum gpu_recovery is;
	} cases[] = {
		{"0x0 (None)", RECOVERY_NONE},
		{"0x1 (GPU Reset)", RECOVERY_RESET},
		{"0x1 (GPU Reset Required)", RECOVERY_RESET},
		{"0x2 (Node Reboot Required)", RECOVERY_REBOOT},
		{"0x3 (Drain P2P)", RECOVERY_DRAIN_P2P},
		{"0x4 (Drain and Reset)", RECOVERY_DRAIN_RESET},
		{"0x2 (Something new)", RECOVERY_REBOOT},
		{"0x9 (Something new)", RECOVERY_UNKNOWN},
		{"0x2", RECOVERY_UNKNOWN},
	};
	char text[160];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(text, sizeof(text),
			 "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 "
			 "(None) to %s",
			 cases[i].to);
		assert_int_equal(parse(text).kind, KERNEL_XID);
		assert_int_equal(parse(text).recovery, cases[i].is);
	}
	assert_int_equal(
		parse("NVRM: Xid (PCI:0009:01:00): 79, GPU recovery action changed from 0x0 "
		      "(None) to 0x1 (GPU Reset)")
			.recovery,
		RECOVERY_UNKNOWN);
}

static void test_gpu_lost(void **state)
{
	struct kernel_line l;

	(void)state;
	l = parse("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.");
	assert_int_equal(l.kind, KERNEL_GPU_LOST);
	assert_string_equal(l.device, "0000:29:00");
	l = parse("NVRM: GPU has fallen off the bus.");
	assert_int_equal(l.kind, KERNEL_GPU_LOST);
	assert_string_equal(l.device, "");
	l = parse("NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this "
		  "system has\nNVRM: fallen off the bus and is not responding to commands.");
	assert_int_equal(l.kind, KERNEL_GPU_LOST);
	assert_string_equal(l.device, "0000:b3:00");
	l = parse("NVRM: The NVIDIA GPU 0000:b3:00.0");
	assert_int_equal(l.kind, KERNEL_GPU_NAMED);
	assert_string_equal(l.device, "0000:b3:00");
	assert_int_equal(parse("NVRM: (PCI ID: 10de:26b5) installed in this system has").kind,
			 KERNEL_OTHER);
	l = parse("NVRM: fallen off the bus and is not responding to commands.");
	assert_int_equal(l.kind, KERNEL_GPU_LOST);
	assert_string_equal(l.device, "");
	l = parse("NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1e07) installed in this");
	assert_int_equal(l.kind, KERNEL_GPU_NAMED);
	l = parse("NVRM: system has fallen off the bus and is not responding to commands.");
	assert_int_equal(l.kind, KERNEL_GPU_LOST);
	assert_int_equal(parse("NVRM: GPU 0000:02:00.0: GPU serial number is 0.").kind,
			 KERNEL_OTHER);
}

static void test_sxid(void **state)
{
	struct kernel_line l;

	(void)state;
	l = parse("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress "
		  "non-posted PRIV error (First)");
	assert_int_equal(l.kind, KERNEL_SXID);
	assert_string_equal(l.device, "0000:05:00");
	assert_int_equal(l.code, 12028);
	assert_int_equal(l.severity, SEVERITY_NONFATAL);
	assert_int_equal(l.link, 32);
	l = parse(
		"nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up");
	assert_int_equal(l.severity, SEVERITY_FATAL);
	assert_int_equal(l.link, 30);
	l = parse(
		"nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60");
	assert_int_equal(l.kind, KERNEL_SXID);
	assert_int_equal(l.severity, SEVERITY_NOT_SAID);
}

static const struct {
	const char *text;
	enum kernel_line_kind kind;
	const char *device;
	uint32_t pid;
	const char *process;
	bool corrected, up;
	enum kernel_severity severity;
} rest[] = {
	{"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/"
	 ",mems_allowed=0-1,oom_"
	 "memcg=/a,task_memcg=/a/b,task=py,pid=1,pid=4711,uid=1000",
	 KERNEL_OUT_OF_MEMORY, "", 4711, "py,pid=1", false, false, 0},
	{"Out of memory: Killed process 1234 (python3) total-vm:1kB, anon-rss:2kB",
	 KERNEL_OUT_OF_MEMORY, "", 1234, "python3", false, false, 0},
	{"Memory cgroup out of memory: Killed process 9 (a (b) c) total-vm:1kB",
	 KERNEL_OUT_OF_MEMORY, "", 9, "a (b", false, false, 0},
	{"mce: [Hardware Error]: Machine check events logged", KERNEL_MACHINE_CHECK, "", 0, "",
	 true, false, 0},
	{"mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00",
	 KERNEL_MACHINE_CHECK, "", 0, "", false, false, 0},
	{"{1}[Hardware Error]: event severity: corrected", KERNEL_MACHINE_CHECK, "", 0, "", true,
	 false, 0},
	{"{2}[Hardware Error]: event severity: fatal", KERNEL_MACHINE_CHECK, "", 0, "", false,
	 false, SEVERITY_FATAL},
	{"EDAC MC1: 3 CE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#0 (channel:0 "
	 "slot:0",
	 KERNEL_MEMORY_ERROR, "mc1", 0, "", true, false, 0},
	{"EDAC MC0: 1 UE memory scrubbing error on any memory (page:0x12 offset:0x0 grain:32)",
	 KERNEL_MEMORY_ERROR, "mc0", 0, "", false, false, 0},
	{"nvidia 0000:83:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer",
	 KERNEL_PCIE_ERROR, "0000:83:00", 0, "", true, false, 0},
	{"nvidia 0000:83:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), "
	 "type=Transaction",
	 KERNEL_PCIE_ERROR, "0000:83:00", 0, "", false, false, SEVERITY_FATAL},
	{"pcieport 0000:00:1c.0: AER: Multiple Uncorrectable (Fatal) error received: 0000:01:00.0",
	 KERNEL_PCIE_ERROR, "0000:00:1c", 0, "", false, false, SEVERITY_FATAL},
	{"pcieport 0000:00:1c.0: AER: Corrected error received: 0000:01:00.0", KERNEL_PCIE_ERROR,
	 "0000:00:1c", 0, "", true, false, 0},
	{"nvidia 0000:83:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), "
	 "type=Inaccess",
	 KERNEL_PCIE_ERROR, "0000:83:00", 0, "", false, false, 0},
	{"pcieport 0000:00:1c.0: AER: PCIe Bus Error: severity=Correctable, type=Physical Layer",
	 KERNEL_PCIE_ERROR, "0000:00:1c", 0, "", true, false, 0},
	{"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: bea0000000000108",
	 KERNEL_MACHINE_CHECK, "", 0, "", false, false, 0},
	{"mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: 9c00000000000108",
	 KERNEL_MACHINE_CHECK, "", 0, "", true, false, 0},
	{"mce: [Hardware Error]: CPU 3: Machine Check Exception:                5 Bank 7: be00",
	 KERNEL_MACHINE_CHECK, "", 0, "", false, false, 0},
	{"mce: Uncorrected hardware memory error in user-access at 7f12345000",
	 KERNEL_MACHINE_CHECK, "", 0, "", false, false, 0},
	{"[Hardware Error]: Uncorrected, software restartable error.", KERNEL_MACHINE_CHECK, "", 0,
	 "", false, false, 0},
	{"[Hardware Error]: Corrected error, no action required.", KERNEL_MACHINE_CHECK, "", 0, "",
	 true, false, 0},
	{"blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0",
	 KERNEL_DISK_ERROR, "sda", 0, "", false, false, 0},
	{"I/O error, dev nvme0n1, sector 7 op 0x1:(WRITE) flags 0x8800 phys_seg 1",
	 KERNEL_DISK_ERROR, "nvme0n1", 0, "", false, false, 0},
	{"critical medium error, dev nvme1n1, sector 7 op 0x0:(READ)", KERNEL_DISK_ERROR, "nvme1n1",
	 0, "", false, false, 0},
	{"Buffer I/O error on dev dm-3, logical block 0, async page read", KERNEL_DISK_ERROR,
	 "dm-3", 0, "", false, false, 0},
	{"nvme nvme0: I/O 123 QID 4 timeout, aborting", KERNEL_NVME, "nvme0", 0, "", false, false,
	 0},
	{"nvme nvme1: I/O tag 1 (1001) opcode 0x2 (I/O Cmd) QID 1 timeout, aborting "
	 "req_op:READ",
	 KERNEL_NVME, "nvme1", 0, "", false, false, 0},
	{"nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
	 KERNEL_NVME, "nvme0", 0, "", false, false, SEVERITY_FATAL},
	{"EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading",
	 KERNEL_FILE_SYSTEM, "sda1", 0, "", false, false, SEVERITY_NONFATAL},
	{"EXT4-fs (nvme0n1p2): Remounting filesystem read-only", KERNEL_FILE_SYSTEM, "nvme0n1p2", 0,
	 "", false, false, SEVERITY_FATAL},
	{"EXT4-fs (sdb): shut down requested (1)", KERNEL_FILE_SYSTEM, "sdb", 0, "", false, false,
	 SEVERITY_FATAL},
	{"Aborting journal on device sda1-8.", KERNEL_FILE_SYSTEM, "sda1", 0, "", false, false,
	 SEVERITY_FATAL},
	{"XFS (dm-0): Corruption of in-memory data (0x8) detected at xfs_x.  Shutting down "
	 "filesystem.",
	 KERNEL_FILE_SYSTEM, "dm-0", 0, "", false, false, SEVERITY_FATAL},
	{"XFS (sda): log I/O error -5", KERNEL_FILE_SYSTEM, "sda", 0, "", false, false,
	 SEVERITY_FATAL},
	{"BTRFS info (device sda1 state E): forced readonly", KERNEL_FILE_SYSTEM, "sda1", 0, "",
	 false, false, SEVERITY_FATAL},
	/* who met it, not what it is */
	{"EXT4-fs error (device sda1): ext4_lookup:1785: inode #2: comm shut down: bad inode",
	 KERNEL_FILE_SYSTEM, "sda1", 0, "", false, false, SEVERITY_NONFATAL},
	{"XFS (sda): Filesystem has been shut down due to log error (0x2).", KERNEL_FILE_SYSTEM,
	 "sda", 0, "", false, false, SEVERITY_FATAL},
	{"mlx5_core 0000:3b:00.0 eth0: Link down", KERNEL_LINK, "eth0", 0, "", false, false, 0},
	{"mlx5_core 0000:3b:00.0 ens1f0np0: Link up", KERNEL_LINK, "ens1f0np0", 0, "", false, true,
	 0},
	{"e1000e 0000:00:1f.6 eno1: NIC Link is Down", KERNEL_LINK, "eno1", 0, "", false, false, 0},
	{"ixgbe 0000:01:00.0 eth2: NIC Link is Up 10 Gbps, Flow Control: RX/TX", KERNEL_LINK,
	 "eth2", 0, "", false, true, 0},
	{"INFO: task kworker/u8:1:1234 blocked for more than 120 seconds.", KERNEL_HUNG_TASK, "",
	 1234, "kworker/u8:1", false, false, 0},
	{"python3[4711]: segfault at 8 ip 00007f sp 00007f error 4 in libc.so.6[7f+1]",
	 KERNEL_PROCESS_CRASH, "", 4711, "python3", false, false, 0},
	{"traps: python3[4711] trap invalid opcode ip:7f sp:7f error:0 in a.so[7f+1]",
	 KERNEL_PROCESS_CRASH, "", 4711, "python3", false, false, 0},
};

static void test_rest_of_the_machine(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(rest) / sizeof(rest[0]); i++) {
		struct kernel_line l = parse(rest[i].text);

		assert_string_equal(kernel_line_word(l.kind), kernel_line_word(rest[i].kind));
		assert_string_equal(l.device, rest[i].device);
		assert_int_equal(l.pid, rest[i].pid);
		assert_string_equal(l.process, rest[i].process);
		assert_int_equal(l.corrected, rest[i].corrected);
		assert_int_equal(l.up, rest[i].up);
		assert_int_equal(l.severity, rest[i].severity);
	}
	assert_string_equal(parse(rest[0].text).cgroup, "/a/b");
	assert_int_equal(parse("EDAC MC1: 3 CE x on y").count, 3);
}

/* What users can bring into the kernel's log without writing to it, and what is none of ours. */
static void test_refused(void **state)
{
	static const char *const lines[] = {
		"NVRM: Xid (000[1234]: general",
		"x NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.",
		"usb 1-1: Product: NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off",
		"NVRM: Xid (PCI:0000:05:00): , GPU has fallen off the bus.",
		"NVRM: Xid (PCI:0000:05:00): 7979797979, GPU",
		"NVRM: Xid (PCI:10000:05:00): 79, GPU",
		"NVRM: Xid (PCI:0000:05:00: 79, GPU",
		"NVRM: Xid (PCI:0000:05:00): 79GPU",
		"NVRM: Xid",
		"",
		"a: Link up[12]: terminated",
		"python3: segfault at 8",
		"[x]: segfault at 1",
		"EDAC MC0: Giving out device to module skx_edac controller",
		"EXT4-fs (sda1): mounted filesystem with ordered data mode",
		"nvme nvme0: 8/0/0 default/read/poll queues",
		"EXT4-fs (sda 1;rm -rf): shut down requested",
		"I/O error, dev sd a, sector 1",
		"overlayfs: failed to resolve 'error, dev sda, sector 1': -2",
		"pcieport 0000:00:1c.0: AER: Corrected error message received from 0000:01:00.0",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		assert_int_equal(parse(lines[i]).kind, KERNEL_OTHER);
}

/* All of it is of facility 0, and said at a level at which faults are, too: the beginning is a
 * process' name, which its owner chose, and names further back are of files and of cgroups. */
static const char *const by_users[] = {
	"mce: [4242]: segfault at 0 ip 000055d0 sp 00007ffc error 4 in Hardware Error[55d0+1000]",
	"a 1:2.0: AER: [16353]: segfault at 0 ip 00005564 sp 00007ffe error 6 in seg[115b,5+1000] "
	"likely on CPU 0 (core 0, socket 0)",
	"a 0000:01:00.0:[7]: segfault at 0 ip 5 sp 7 error 4 in AER: Uncorrected (Fatal)[5+1]",
	"XFS (sda1): [4242]: segfault at 0 ip 000055d0 sp 00007ffc error 4 in shut down[55d0+1000]",
	"XFS (sda1): log[4242] bad frame in rt_sigreturn frame:7 ip:5 sp:7 orax:0 in shut "
	"down[5+1]",
	"NVRM: Xid (1:2[4242]: segfault at 0 ip 5 sp 7 error 4 in ): 79, GPU has fallen off[5+1]",
	"NVRM: Xid (1:2): page allocation failure: order:4, mode:0xdc0, nodemask=(null),cpuset=a",
	"EDAC MC0: 1 UE [4242]: segfault at 0 ip 5 sp 7 error 4 in x on y (page:0x1[5+1]",
	"EDAC MC0: 1 UE  invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
	"EDAC MC0: 1 UE : page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP), "
	"nodemask=(null),cpuset=x on y (page:0x1 offset:0x0 grain:1),mems_allowed=0",
	"EDAC MC0: 1 UE  says something new: x on y (page:0x1 offset:0x0 grain:1)",
	"EXT4-fs (sda1):: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP), "
	"nodemask=(null),cpuset=Remounting filesystem read-only,mems_allowed=0",
	"XFS (sda1): page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP), "
	"nodemask=(null),cpuset=shut down,mems_allowed=0",
	"XFS (4711): /proc/4711/oom_adj is deprecated, please use /proc/4711/oom_score_adj "
	"instead.",
	"I/O error, dev [4242]: segfault at 0 ip 5 sp 7 error 4 in sda, sector 5[5+1]",
	"I/O error, dev : page allocation failure: order:4, mode:0x4,cpuset=, dev sda, sector 1",
	"nvme nvme0: I/O[42]: segfault at 0 ip 5 sp 7 error 4 in QID 1 timeout[5+1]",
	"nvme nvme0: [42] misaligned vsyscall (exploit attempt or buggy program) -- look up the",
	"INFO: task a:1 [42]: segfault at 0 ip 5 sp 7 error 4 in  blocked for more than 1[5+1]",
	"Killed process [42]: segfault at 0 ip 5 sp 7 error 4 in 1 (x) [5+1]",
	"[1.0] mce: [42]: segfault at 0 ip 5 sp 7 error 4 in Hardware Error[5+1]",
	"[1.0] [42]: segfault at 0 ip 5 sp 7 error 4 in mce: [Hardware Error]: System Fatal[5+1]",
	"traps: mce: [42] trap invalid opcode ip:5 sp:7 error:0 in Hardware Error[5+1]",
	"traps: XFS (sda): [42] general protection fault ip:5 sp:7 error:0 in shut down[5+1]",
	"XFS (sda1): : attempt to access beyond end of device\nshut down: rw=1, want=5, limit=4",
	"mce: uses obsolete (PF_INET,SOCK_PACKET): Hardware Error",
	"mce: (42) used greatest stack depth: 1234 bytes left",
	/* ... and where it stands further back */
	"traps: XFS (sda): shut down",
	"process 'mce: [Hardware Error]: System Fatal error.' started with executable stack",
	"warning: `mce: Uncorrecte' uses 32-bit capabilities (legacy support in use)",
	"audit: type=1326 audit(1.2:3): auid=1 comm=\"XFS (sda): shut\" exe=\"/tmp/shut down\"",
	"usb 1-1: Product: mce: [Hardware Error]: System Fatal error.",
	"input: EDAC MC0: 1 UE x on y (page:0x1) as /devices/virtual/input/input9",
	"hid-generic 0003:0001:0001.0001: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
	"hid-generic 0003:01:01.1: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
	"br0: port 1(Hardware) entered disabled state",
	"cgroup: fork rejected by pids controller in /mce: [Hardware Error]: System Fatal error.",
	"NVRM: API mismatch: the client 'Xid (PCI:0000:0' (pid 1)",
	/* the driver's own, and no error */
	"pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
	"pcieport 0000:00:1c.0: AER: Root Port link has been reset (0)",
	"pcieport 0000:00:1c.0: AER: device recovery successful",
	"mce: [Hardware Error]: TSC 0 ADDR 1000 MISC 86",
	"mce: [Hardware Error]: Deferred error, no action required.",
};

static void test_what_users_can_say(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(by_users) / sizeof(by_users[0]); i++)
		for (uint8_t level = 0; level < 8; level++) {
			struct kernel_line l = parse_at(level, by_users[i]);

			if (l.kind != KERNEL_OTHER && l.kind != KERNEL_PROCESS_CRASH)
				fail_msg("'%s' is taken for %s", by_users[i],
					 kernel_line_word(l.kind));
		}
	/* A crash is one, whatever the name. */
	assert_int_equal(parse_at(LEVEL_INFO, by_users[0]).kind, KERNEL_PROCESS_CRASH);
	assert_string_equal(parse_at(LEVEL_INFO, by_users[1]).process, "a 1:2.0: AER: ");
	assert_int_equal(parse_at(LEVEL_INFO, by_users[1]).pid, 16353);
}

/* What is fatal or cannot be corrected counts as loud as the kernel says it. */
static void test_levels(void **state)
{
	static const struct {
		const char *text;
		uint8_t quietest;
	} cases[] = {
		{"mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00", 4},
		{"mce: [Hardware Error]: Machine check events logged", 7},
		{"mce: Uncorrected hardware memory error in user-access at 7f12345000", 4},
		{"{1}[Hardware Error]: event severity: recoverable", 4},
		{"{1}[Hardware Error]: event severity: corrected", 7},
		{"EDAC MC0: 1 UE on mc#0csrow#1 (page:0x12 offset:0x0 grain:32)", 4},
		{"EDAC MC0: 1 CE on mc#0csrow#1 (page:0x12 offset:0x0 grain:32)", 7},
		{"nvidia 0000:83:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=T", 4},
		{"nvidia 0000:83:00.0: PCIe Bus Error: severity=Corrected, type=T", 7},
		/* pci_info() it is */
		{"pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", 7},
		{"I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0", 4},
		{"nvme nvme0: controller is down; will reset: CSTS=0xffffffff", 4},
		{"EXT4-fs (sda): Remounting filesystem read-only", 4},
		{"EXT4-fs error (device sda): ext4_lookup:1785: inode #2: bad inode", 4},
		{"Aborting journal on device sda1-8.", 4},
		{"XFS (sda): Filesystem has been shut down due to log error (0x2).", 4},
		{"BTRFS info (device sda1): forced readonly", 7},
		/* printk() without a level: whatever is usual for the kernel */
		{"NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", 7},
		{"NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", 7},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (uint8_t level = 0; level < 8; level++)
			if ((parse_at(level, cases[i].text).kind != KERNEL_OTHER) !=
			    (level <= cases[i].quietest))
				fail_msg("'%s' at level %u", cases[i].text, level);
}

static void test_only_the_kernel_counts(void **state)
{
	static const char text[] = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.";
	struct kernel_line l;

	(void)state;
	for (unsigned facility = 0; facility <= UINT8_MAX; facility++) {
		kernel_line_parse((uint8_t)facility, LEVEL_ERROR, text, strlen(text), &l);
		assert_int_equal(l.kind, facility == 0 ? KERNEL_XID : KERNEL_OTHER);
		assert_int_equal(l.code, facility == 0 ? 79 : 0);
		for (size_t i = 0; facility && i < sizeof(rest) / sizeof(rest[0]); i++) {
			kernel_line_parse((uint8_t)facility, 0, rest[i].text, strlen(rest[i].text),
					  &l);
			assert_int_equal(l.kind, KERNEL_OTHER);
		}
	}
}

static void test_addresses(void **state)
{
	static const char *const same[] = {"0000:9b:00",      "PCI:0000:9B:00", "00000000:9B:00.0",
					   "0000:9b:00.0",    "9b:00",          "0:9b:0",
					   "PCI:0000:9b:00.0"};
	static const char *const none[] = {"",
					   "PCI:",
					   "9b",
					   "10000:9b:00",
					   "0000:19b:00",
					   "0000:9b:00.00",
					   "0000:9b:00:01:02",
					   "0000:9b:00 x"};
	char address[PCI_ADDRESS_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
		assert_true(pci_address(same[i], strlen(same[i]), address, NULL));
		assert_string_equal(address, "0000:9b:00");
	}
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_false(pci_address(none[i], strlen(none[i]), address, NULL));
	assert_string_equal(address, "0000:9b:00");
}

static int record(const char *text, struct kmsg_record *ret)
{
	return kmsg_record_parse(text, strlen(text), ret);
}

static void test_records(void **state)
{
	struct kmsg_record r = {.seq = 5};

	(void)state;
	assert_int_equal(record("3,1234,5678901,-;NVRM: Xid (PCI:0000:05:00): 79, GPU\n"
				" SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n",
				&r),
			 0);
	assert_int_equal(r.facility, 0);
	assert_int_equal(r.level, 3);
	assert_int_equal(r.seq, 1234);
	assert_int_equal(r.usec, 5678901);
	assert_false(r.continues);
	assert_string_equal(r.text, "NVRM: Xid (PCI:0000:05:00): 79, GPU");
	assert_string_equal(r.subsystem, "pci");
	assert_string_equal(r.device, "+pci:0000:05:00.0");
	/* what a program wrote: facility 1 */
	assert_int_equal(record("12,7,8,-;NVRM: Xid (PCI:0000:05:00): 79, GPU\n", &r), 0);
	assert_int_equal(r.facility, 1);
	assert_int_equal(record("6,7,8,c,caller=T1;one\\x0atwo\\x1b[31m\\\\ \\x5cx \\xg1", &r), 0);
	assert_true(r.continues);
	assert_string_equal(r.text, "one\ntwo?[31m\\\\ \\x \\xg1");
	assert_int_equal(record("4294967295,18446744073709551615,1,-;x\n", &r), 0);
	assert_int_equal(r.facility, UINT8_MAX);
	r.seq = 5;
	assert_int_equal(record("", &r), -EINVAL);
	assert_int_equal(record("6,7,8,-", &r), -EINVAL);
	assert_int_equal(record("6,7;x", &r), -EINVAL);
	assert_int_equal(record("-6,7,8,-;x", &r), -EINVAL);
	assert_int_equal(record("6,18446744073709551616,8,-;x", &r), -EINVAL);
	assert_int_equal(r.seq, 5);
}

/* ---- Damaged ones ---- */

static uint64_t random_next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static const char *const good[] = {
	"NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the "
	"bus.",
	"NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal "
	"XC0 i0 "
	"Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
	"NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 "
	"(Drain and "
	"Reset)",
	"NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: fallen off the bus and is not responding",
	"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress",
	"oom-kill:constraint=C,task_memcg=/a/b,task=python,pid=4711,uid=1000",
	"Memory cgroup out of memory: Killed process 9 (python) total-vm:1kB",
	"EDAC MC1: 3 CE memory read error on CPU_SrcID#1",
	"mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: be00",
	"nvidia 0000:83:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer",
	"blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0",
	"nvme nvme0: controller is down; will reset: CSTS=0xffffffff",
	"EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading",
	"mlx5_core 0000:3b:00.0 eth0: Link down",
	"INFO: task python:1234 blocked for more than 120 seconds.",
	"traps: python3[4711] trap invalid opcode ip:7f sp:7f error:0 in a.so[7f+1]",
	"3,1234,5678901,-;NVRM: Xid (PCI:0000:05:00): 79, GPU\n SUBSYSTEM=pci\n",
};
#define N_GOOD (sizeof(good) / sizeof(good[0]))

/* One to four damages; returns the new length. */
static size_t damage(uint64_t *x, char *text, size_t len)
{
	for (unsigned n = 1 + random_next(x) % 4; n > 0 && len > 0; n--) {
		size_t at = random_next(x) % len;
		uint64_t how = random_next(x) % 5;
		const char *other = good[random_next(x) % N_GOOD];
		size_t piece = strlen(other) / 2, room = SAMPLE_TEXT_MAX - at;

		if (how == 0)
			len = at;
		else if (how == 1)
			text[at] ^= (char)(1u << random_next(x) % 8);
		else if (how == 2)
			text[at] = "\0\n,:()0x9 "[random_next(x) % 10];
		else if (how == 3)
			memmove(text + at, text + at + 1, --len - at);
		else {
			piece = piece < room ? piece : room;
			memcpy(text + at, other + random_next(x) % (strlen(other) / 2), piece);
			len = at + piece > len ? at + piece : len;
		}
	}
	return len;
}

static void holds(const struct kernel_line *l)
{
	assert_true(l->kind < KERNEL_LINE_KIND_COUNT);
	assert_true(strnlen(l->device, sizeof(l->device)) < sizeof(l->device));
	assert_true(strnlen(l->process, sizeof(l->process)) < sizeof(l->process));
	assert_true(strnlen(l->cgroup, sizeof(l->cgroup)) < sizeof(l->cgroup));
	assert_true(strnlen(l->unit, sizeof(l->unit)) < sizeof(l->unit));
	assert_true(l->code <= KERNEL_CODE_MAX && l->n_words <= KERNEL_WORDS_MAX);
	assert_true(l->subcode < 64 || l->subcode == KERNEL_SUBCODE_NO);
	assert_true(l->recovery <= RECOVERY_UNKNOWN && l->link >= -1 && l->link <= 999);
}

static void test_damaged(void **state)
{
	uint64_t x = test_seed(1) * 0x9e3779b97f4a7c15u | 1,
		 n = test_cap("CKPT_KERNEL_LINES", 1000000);
	uint64_t counts[KERNEL_LINE_KIND_COUNT] = {0};
	char text[SAMPLE_TEXT_MAX + 1];
	struct kmsg_record r;
	struct kernel_line l;

	(void)state;
	for (uint64_t i = 0; i < n; i++) {
		const char *from = good[i % N_GOOD];
		size_t len = strlen(from);

		memcpy(text, from, len);
		len = damage(&x, text, len);
		assert_true(len <= SAMPLE_TEXT_MAX);
		kernel_line_parse(0, (uint8_t)(random_next(&x) % 8), text, len, &l);
		holds(&l);
		counts[l.kind]++;
		if (kmsg_record_parse(text, len, &r) == 0)
			assert_true(strnlen(r.text, sizeof(r.text)) < sizeof(r.text));
	}
	printf("%llu damaged lines\n", (unsigned long long)n);
	for (unsigned k = 0; n >= 100000 && k < KERNEL_LINE_KIND_COUNT; k++)
		assert_true(counts[k] > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_xid_shapes),
		cmocka_unit_test(test_nvlink),
		cmocka_unit_test(test_recovery),
		cmocka_unit_test(test_gpu_lost),
		cmocka_unit_test(test_sxid),
		cmocka_unit_test(test_rest_of_the_machine),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_only_the_kernel_counts),
		cmocka_unit_test(test_what_users_can_say),
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_addresses),
		cmocka_unit_test(test_records),
		cmocka_unit_test(test_damaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
