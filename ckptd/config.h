/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - what an administrator may set, from files, environment and command line.
 *
 * Files are INI: /etc/ckptd/ckptd.conf, then conf.d/ *.conf beside it in the order of their names.
 * The environment (CKPTD_MEMORY_BUDGET=64G) overrides files, the command line overrides both.
 */
#ifndef CKPTD_CONFIG_H
#define CKPTD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

#define CONFIG_FILE "/etc/ckptd/ckptd.conf"
#define POLICY_FILE "/etc/ckptd/policy.tsv"

/* Sizes are in bytes, times in nanoseconds; choices are positions in their list. */
struct config {
	char socket[108], data[256], name[64];
	uint64_t log_level; /* as syslog's, LOG_ERR .. LOG_DEBUG */
	uint64_t log_format; /* 0: text, 1: json */
	uint64_t memory_budget; /* 0: half of what there is */
	uint64_t slots, huge_pages, descriptors;
	uint64_t persist_every, compression;
	uint64_t attempt_timeout_ns, settle_timeout_ns, stop_timeout_ns;
	uint64_t warn_after_ns; /* 0: by what is usual and advised */
	uint64_t log_trim;
	uint64_t keep_last, keep_every, keep_verified;
	uint64_t healthy_steps, recheck_rate, hook_timeout_ns;
	char hook[256];
	uint64_t backend; /* see config_backend() */
	uint64_t queue_depth, transfer, dedup, disk_reserve, spare;
	uint64_t data_threads, meta_threads, plan_threads, log_threads, memory_threads;
	uint64_t cpu_threads; /* 0: by the cores */
	uint64_t conns_max, conns_per_uid, sessions_per_uid, jobs_per_uid;
	uint64_t waits_per_session, loads_per_session;
	uint64_t waits_per_uid, loads_per_uid, load_files_per_uid;
	uint64_t declaration_bytes_per_uid, plan_bytes_per_uid, held_bytes_per_uid;
	uint64_t memory_per_uid;
	char policy[256], record[256], check[256];
	uint64_t detect; /* no or yes, and so are those of the collectors */
	uint64_t dry_run, actions_per_hour, check_time_ns, admission;
	uint64_t detect_interval_ns, detect_kernel, detect_net, detect_disk, detect_memory;
	uint64_t detect_pressure;
	char detect_kmsg[256], detect_root[256];
	uint64_t detect_nvml;
	char xid_table[256];
};

/* Every option at its default; the node's name is the host's. */
void config_default(struct config *c);
/* A file, which may be missing if it is not required, and the conf.d beside it; a sentence names
 * file, line, option and what is allowed. */
MUST_CHECK int config_file(struct config *c, const char *file, bool required, struct err *e);
MUST_CHECK int config_environment(struct config *c, struct err *e);
/* Says one sentence of each variable that is of a section and no option: most are misspelt. */
void config_strays(char *const *environment, void (*say)(void *arg, const char *text), void *arg);
/* "memory.budget=64G" of the command line. */
MUST_CHECK int config_assign(struct config *c, const char *assignment, struct err *e);
/* One option by name; where: for the sentence, "--socket". */
MUST_CHECK int config_set(struct config *c, const char *option, const char *value,
			  const char *where, struct err *e);
/* What one option cannot say alone; after everything has been set. */
MUST_CHECK int config_check(const struct config *c, struct err *e);

const char *config_backend(const struct config *c); /* for disk_posix_open() */

/* "section.key = value" for all, as a file that config_file() reads back; a path may make a line
 * longer than it takes. */
void config_print(const struct config *c, FILE *to);
/* Name, allowed values, default and meaning of all. */
void config_help(FILE *to);
/* The options that differ and need a restart, "a.b, c.d"; "" when there are none. */
void config_needs_restart(const struct config *now, const struct config *wanted, char *buf,
			  size_t size);

#endif
