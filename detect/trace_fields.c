/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_fields.c - the fields of each line of a trace, in the order in which they are written.
 * doc/trace-format.md lists them for people; both change together.
 */
#include <config.h>

#include "detect/trace_fields.h"

#include <stddef.h>

static const char *phase_word(uint32_t v)
{
	return sample_phase_word(v);
}

static const char *how_word(uint32_t v)
{
	static const char *const words[] = {"unknown", "code", "signal", "bye", "away", "left"};
	return words[v];
}

static const char *timed_word(uint32_t v)
{
	static const char *const words[] = {"0", "1", "?"};
	return words[v];
}

static const char *recovery_word(uint32_t v)
{
	static const char *const words[] = {"none",      "reset",       "reboot",
					    "drain-p2p", "drain-reset", "unknown"};
	return words[v];
}

static const char *subject_word(uint32_t v)
{
	static const char *const words[] = {"job", "rank", "node", "gpu", "link", "disk"};
	return words[v];
}

#define AT(member)   (uint16_t) offsetof(struct trace_record, member)
#define SIZE(member) (uint16_t)sizeof(((struct trace_record *)0)->member)
#define F(k, t, m, f)                                                                              \
	{                                                                                          \
		.key = k, .key_len = sizeof(k) - 1, .type = FIELD_##t, .offset = AT(m),            \
		.size = SIZE(m), .flags = f                                                        \
	}
#define G(k, t, m, bit)                                                                            \
	{                                                                                          \
		.key = k, .key_len = sizeof(k) - 1, .type = FIELD_##t, .offset = AT(m),            \
		.size = SIZE(m), .presence = bit                                                   \
	}
#define W(k, m, fn, n, f)                                                                          \
	{                                                                                          \
		.key = k, .key_len = sizeof(k) - 1, .type = FIELD_WORD, .offset = AT(m),           \
		.size = SIZE(m), .word = fn, .n_words = n, .flags = f                              \
	}
#define NONE FIELD_NONE
#define MUST FIELD_REQUIRED
#define NODE F("node", U32, sample.node, NONE)
#define JOB  F("job", U32, sample.job, NONE)
#define RANK F("rank", U32, sample.rank, NONE)
#define DEV  F("device", U32, sample.device, NONE)
/* A rank's line names both, and its node where that is known. */
#define RANKS NODE, F("job", U32, sample.job, NONE | MUST), F("rank", U32, sample.rank, NONE | MUST)
#define NODES F("node", U32, sample.node, NONE | MUST)
#define DEVS  NODES, F("device", U32, sample.device, NONE | MUST)

/* Enums are as wide as an unsigned int here, which FIELD_WORD relies on. */
_Static_assert(sizeof(enum exit_how) == 4 && sizeof(enum timed) == 4 &&
		       sizeof(enum gpu_recovery) == 4 && sizeof(enum subject_kind) == 4,
	       "enum fields are 4 bytes");

static const struct field name_fields[] = {
	NODE,
	JOB,
	DEV,
	F("role", CHAR, sample.name.role, 0),
	F("owned", BOOL, sample.name.owned, 0),
	F("owner", U32, sample.name.owner, 0),
	F("text", TEXT, sample.name.text, MUST),
};
static const struct field job_fields[] = {
	F("job", U32, sample.job, NONE | MUST),
	F("begins", BOOL, sample.run.begins, MUST),
	F("world", U32, sample.run.world, 0),
	F("epoch", U64, sample.run.epoch, 0),
};
static const struct field member_fields[] = {
	RANKS,
	F("leaves", BOOL, sample.member.leaves, 0),
	F("role", TEXT, sample.member.role, 0),
};
static const struct field beat_fields[] = {
	RANKS,
	F("step", U64, sample.beat.step, MUST),
	F("missed", U32, sample.beat.missed, 0),
	G("busy", SECONDS, sample.beat.busy_ns, BEAT_BUSY),
	G("tokens", U64, sample.beat.tokens, BEAT_TOKENS),
	G("loss", F64, sample.beat.loss, BEAT_LOSS),
	G("grad_norm", F64, sample.beat.grad_norm, BEAT_GRAD_NORM),
};
static const struct field phase_fields[] = {
	RANKS,
	W("phase", sample.phase.phase, phase_word, PHASE_COUNT, MUST),
	F("begins", BOOL, sample.phase.begins, MUST),
	F("expected", SECONDS, sample.phase.expected_ns, 0),
	F("what", TEXT, sample.phase.what, 0),
};
static const struct field activity_fields[] = {
	RANKS,
	F("step", U64, sample.activity.step, MUST),
	W("phase", sample.activity.phase, phase_word, PHASE_COUNT, MUST),
	F("since", SECONDS, sample.activity.since_ns, 0),
	F("state", CHAR, sample.activity.state, MUST),
	F("running", U8, sample.activity.threads_running, 0),
	F("cpu", U16, sample.activity.cpu_permille, NONE),
	F("gpu", U16, sample.activity.gpu_permille, NONE),
	W("timed", sample.activity.timed, timed_word, TIMED_NOT_KNOWN + 1, 0),
};
static const struct field exit_fields[] = {
	RANKS,
	W("how", sample.exit.how, how_word, EXIT_HOWS, MUST),
	F("value", I32, sample.exit.value, 0),
};
static const struct field alive_fields[] = {NODES};
#define METRIC_FIELD(name, text, unused) F(text, F32, sample.metrics[name], 0),
static const struct field metrics_fields[] = {NODES, SAMPLE_METRICS_LIST(METRIC_FIELD)};
static const struct field link_fields[] = {
	DEVS,
	F("up", BOOL, sample.link.up, MUST),
	F("rate", F32, sample.link.rate_gbps, 0),
	F("sent", U64, sample.link.sent, 0),
	F("received", U64, sample.link.received, 0),
	F("errors", U64, sample.link.errors, 0),
	F("retries", U64, sample.link.retries, 0),
	F("downs", U32, sample.link.downs, 0),
};
static const struct field pair_fields[] = {
	NODES,
	F("peer", U32, sample.pair.peer, NONE | MUST),
	F("bytes", U64, sample.pair.bytes, MUST),
	F("took", SECONDS, sample.pair.ns, MUST),
};
static const struct field disk_fields[] = {
	DEVS,
	F("ops", U64, sample.disk.ops, 0),
	F("bytes", U64, sample.disk.bytes, 0),
	F("busy", SECONDS, sample.disk.busy_ns, 0),
	F("errors", U64, sample.disk.errors, 0),
};
static const struct field memory_fields[] = {
	NODES,
	F("corrected", U64, sample.memory.corrected, 0),
	F("uncorrected", U64, sample.memory.uncorrected, 0),
};
static const struct field kernel_fields[] = {
	NODES,
	F("facility", U8, sample.kernel.facility, 0),
	F("level", U8, sample.kernel.level, 0),
	F("text", TEXT, sample.kernel.text, MUST),
};
static const struct field nvml_fields[] = {
	DEVS,
	F("xid", U32, sample.nvml.xid, 0),
	W("recovery", sample.nvml.recovery, recovery_word, RECOVERY_UNKNOWN + 1, 0),
	F("unavailable", BOOL, sample.nvml.unavailable, 0),
	F("corrected", U64, sample.nvml.corrected, 0),
	F("uncorrected", U64, sample.nvml.uncorrected, 0),
};
static const struct field digests_fields[] = {
	RANKS,
	F("step", U64, sample.digests.step, MUST),
	F("other", U32, sample.digests.other, NONE | MUST),
	F("tensor", TEXT, sample.digests.tensor, 0),
};
static const struct field stale_fields[] = {
	NODE,
	F("job", U32, sample.job, NONE | MUST),
	RANK,
	F("step", U64, sample.step, MUST),
};
static const struct field check_fields[] = {
	NODES,
	F("what", TEXT, sample.check.what, MUST),
	F("value", F64, sample.check.value, 0),
	F("low", F64, sample.check.low, 0),
	F("high", F64, sample.check.high, 0),
	F("passed", BOOL, sample.check.passed, MUST),
};

#define SUBJECT                                                                                    \
	W("subject", label.subject.kind, subject_word, SUBJECT_DISK + 1, MUST),                    \
		F("node", U32, label.subject.node, NONE), F("job", U32, label.subject.job, NONE),  \
		F("rank", U32, label.subject.rank, NONE),                                          \
		F("device", U32, label.subject.device, NONE),                                      \
		F("peer", U32, label.subject.peer, NONE)

static const struct field fault_fields[] = {
	F("id", U32, label.id, MUST),
	F("what", TEXT, label.what, MUST),
	F("class", CLASSES, label.classes, MUST),
	F("code", U32, label.code, 0),
	SUBJECT,
	F("until", SECONDS, label.until_ns, MUST),
	F("factor", F64, label.factor, 0),
};
static const struct field also_fields[] = {
	F("id", U32, label.id, MUST),
	F("class", CLASSES, label.classes, MUST),
	F("code", U32, label.code, 0),
	SUBJECT,
};
static const struct field mode_fields[] = {
	F("job", U32, label.subject.job, NONE | MUST),
	F("declares", BOOL, label.declares, MUST),
};

#define KIND(text, f)                                                                              \
	{                                                                                          \
		.word = text, .word_len = sizeof(text) - 1, .fields = f,                           \
		.n_fields = sizeof(f) / sizeof((f)[0])                                             \
	}

const struct line_kind trace_sample_kinds[SAMPLE_KIND_COUNT] = {
	[SAMPLE_NAME] = KIND("name", name_fields),
	[SAMPLE_JOB] = KIND("job", job_fields),
	[SAMPLE_MEMBER] = KIND("member", member_fields),
	[SAMPLE_BEAT] = KIND("beat", beat_fields),
	[SAMPLE_PHASE] = KIND("phase", phase_fields),
	[SAMPLE_ACTIVITY] = KIND("activity", activity_fields),
	[SAMPLE_EXIT] = KIND("exit", exit_fields),
	[SAMPLE_ALIVE] = KIND("alive", alive_fields),
	[SAMPLE_METRICS] = KIND("metrics", metrics_fields),
	[SAMPLE_LINK] = KIND("link", link_fields),
	[SAMPLE_PAIR] = KIND("pair", pair_fields),
	[SAMPLE_DISK] = KIND("disk", disk_fields),
	[SAMPLE_MEMORY] = KIND("memory", memory_fields),
	[SAMPLE_KERNEL] = KIND("kernel", kernel_fields),
	[SAMPLE_NVML] = KIND("nvml", nvml_fields),
	[SAMPLE_DIGESTS] = KIND("digests", digests_fields),
	[SAMPLE_STALE] = KIND("stale", stale_fields),
	[SAMPLE_CHECK] = KIND("check", check_fields),
};

const struct line_kind trace_label_kinds[LABEL_KIND_COUNT] = {
	[LABEL_FAULT] = KIND("fault", fault_fields),
	[LABEL_ALSO] = KIND("also", also_fields),
	[LABEL_MODE] = KIND("mode", mode_fields),
	[LABEL_GAP] = {.word = "gap", .word_len = 3},
};
