/* SPDX-License-Identifier: Apache-2.0 */
/*
 * document.h - reading the JSON documents of doc/json.md, and finding what a user named in them.
 */
#ifndef TOOLS_DOCUMENT_H
#define TOOLS_DOCUMENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/ids.h"
#include "model/trust.h"

/* What is not there, or of another type, reads as "", 0, false. */
const char *doc_text(const json_t *o, const char *key);
/* How a checkpoint stands on disk, for people. */
const char *doc_disk_word(const json_t *checkpoint);
uint64_t doc_number(const json_t *o, const char *key);
bool doc_flag(const json_t *o, const char *key);
bool doc_is(const json_t *o, const char *key, const char *text);
json_t *doc_hex(const uint8_t *p, size_t len); /* at most 32 bytes */
json_t *doc_count(uint64_t n);
/* A name that need not be UTF-8: bytes that are not become "\xNN". */
json_t *doc_name(const char *name, size_t len);
/* 16 bytes of hex; false when it is not. */
MUST_CHECK bool doc_id(const json_t *o, const char *key, uint8_t ret[16]);

/* Sorts jobs by name and uid, each one's checkpoints newest first: by epoch, then step. */
MUST_CHECK int doc_sort(json_t *doc);
/* Leaves the jobs with this name or id only. CKPT_ENOTFOUND when there are none. */
MUST_CHECK int doc_keep_job(json_t *doc, const char *name, struct err *e);
/* The one job of a document; of several with one name the caller's own. */
MUST_CHECK int doc_only_job(json_t *doc, const char *name, json_t **ret, struct err *e);
/*
 * The checkpoint named "STEP" or "STEP.ATTEMPT" (its first digits). for_deed: committed ones, and
 * exactly one must be meant; else the newest of them. spec NULL: what the next launch would get.
 * Borrowed.
 */
MUST_CHECK int doc_find_checkpoint(json_t *job, const char *spec, bool for_deed, json_t **ret,
				   struct err *e);
/* The same, to look at, of those that are trusted as much at least: without spec the newest that
 * can be had; one that is named and is not trusted as much is CKPT_ENOTFOUND. */
MUST_CHECK int doc_find_trusted(json_t *job, const char *spec, enum trust_level least, json_t **ret,
				struct err *e);
/* "STEP" or "STEP.ATTEMPT"; *ret_hex points behind the dot, "" without one. */
MUST_CHECK int spec_parse(const char *spec, uint64_t *ret_step, const char **ret_hex,
			  struct err *e);

#endif
