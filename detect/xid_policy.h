/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xid_policy.h - what each Xid means and what to do about it: a table, read from text.
 *
 * share/xid.tsv is the table that is built in, ckpt-xid(5) its format. A text that is added later
 * overrides what is there by code and subcode. Reading files is the caller's; nothing here does
 * I/O. One thread while texts are added, any thread after that.
 *
 * Invariants: (1) a text is taken whole or not at all; (2) rows are sorted by code and subcode,
 * each pair once; (3) there is a row for what has none (XID_CODE_OTHER) once the first text was
 * added.
 */
#ifndef DETECT_XID_POLICY_H
#define DETECT_XID_POLICY_H

#include "base/err.h"
#include "detect/verdict.h"

#define XID_CODE_OTHER 0      /* those without a row */
#define XID_CODE_SXID  10000u /* NVSwitches' errors without a row; their codes are greater */
#define XID_SUB_FATAL  64u    /* the line says that it is fatal; more than any subcode */
#define XID_SUB_ANY    UINT32_MAX
#define XID_WITH_ANY   UINT32_MAX

#define XID_ROWS_MAX       2048
#define XID_FILES_MAX      4
#define XID_WITH_MAX       6
#define XID_STAYS          UINT64_MAX /* not forgiven by time alone */
#define XID_TEXT_BYTES_MAX (1u << 20)

/* X(name, word): the first two are notes, the others alarms */
#define XID_SEVERITIES(X)                                                                          \
	X(XID_INFO, "info")                                                                        \
	X(XID_WARNING, "warning")                                                                  \
	X(XID_CRITICAL, "critical")                                                                \
	X(XID_FATAL, "fatal") /* what ran there is lost */
enum xid_severity {
#define X(name, word) name,
	XID_SEVERITIES(X)
#undef X
};
#define XID_SCOPES(X)                                                                              \
	X(XID_OF_APP, "app")                                                                       \
	X(XID_OF_GPU, "gpu")                                                                       \
	X(XID_OF_NODE, "node")
enum xid_scope {
#define X(name, word) name,
	XID_SCOPES(X)
#undef X
};

struct xid_row {
	uint32_t code, subcode;
	enum verdict_action action;
	enum xid_severity severity;
	enum xid_scope scope;
	enum verdict_class class;
	uint32_t count; /* from so many in window_ns on it is `then`; 0: never */
	bool jobs;      /* count is of different jobs */
	uint64_t window_ns;
	enum verdict_action then;
	uint64_t hold_ns; /* forgiven so long after the last one; XID_STAYS */
	uint32_t n_with;
	struct xid_with {
		uint32_t code; /* XID_WITH_ANY: any other one */
		enum verdict_action action;
	} with[XID_WITH_MAX];
	const char *meaning;
	const char *conflict; /* "": the sources agree */
	const char *sources;  /* "nvidia=RESET_GPU; gpud=reboot" */
	uint32_t file;        /* that said the last word on it: xid_policy_file() */
	uint32_t line;
};

struct xid_policy;

MUST_CHECK int xid_policy_new(struct xid_policy **ret);
void xid_policy_free(struct xid_policy *p); /* NULL is allowed */

/* One with the table that is built in, share/xid.tsv. */
MUST_CHECK int xid_policy_default(struct xid_policy **ret);
extern const unsigned char xid_builtin[];
extern const size_t xid_builtin_len;

/* file: what the text is called in errors and by xid_policy_file(). -EINVAL: it is no table, file
 * and line are in e; -E2BIG: too many rows, files or bytes. The policy is then as before. */
MUST_CHECK int xid_policy_add(struct xid_policy *p, const char *file, const char *text, size_t len,
			      struct err *e);

/* The row for a code: of this subcode, of fatal ones if it is one, of any; or that of the codes
 * without a row. KERNEL_SUBCODE_NO is XID_SUB_ANY. NULL: the policy is empty. */
const struct xid_row *xid_policy_find(const struct xid_policy *p, uint32_t code, uint32_t subcode,
				      bool fatal);
size_t xid_policy_size(const struct xid_policy *p);
const struct xid_row *xid_policy_at(const struct xid_policy *p, size_t i);
const char *xid_policy_file(const struct xid_policy *p, uint32_t file);

/* "79", "149.4", "145.fatal", "sxid.fatal", "other" */
void xid_row_name(const struct xid_row *r, char *buf, size_t size);
/* A code and, behind a dot, a subcode, as people write them. -EINVAL: neither. */
MUST_CHECK int xid_name_parse(const char *text, uint32_t *ret_code, uint32_t *ret_subcode);
const char *xid_severity_word(enum xid_severity s);
const char *xid_scope_word(enum xid_scope s);
/* The next "source=what it says" of row->sources, as spans of it; at: NULL to begin with, or what
 * was returned. NULL: no more. */
const char *xid_source_next(const struct xid_row *r, const char *at, const char **ret_source,
			    size_t *ret_source_len, const char **ret_says, size_t *ret_says_len);

#endif
