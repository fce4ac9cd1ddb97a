/* SPDX-License-Identifier: Apache-2.0 */
/*
 * folder_id.h - which data folder this is: ID, a small file with a random number.
 *
 * What is kept elsewhere about a data folder (ckptd's memory, what a running ckptd says of itself)
 * names it by this number, so that an empty mount point or another disk is not taken for it. A copy
 * of the folder has the same number: it has the same jobs. See doc/disk-format.md.
 *
 * Blocking. Threads: any.
 */
#ifndef STORAGE_FOLDER_ID_H
#define STORAGE_FOLDER_ID_H

#include <stdint.h>

#include "base/disk.h"
#include "base/err.h"
#include "base/rng.h"

struct store;

#define FOLDER_ID_NAME "ID" /* of the file */
#define FOLDER_ID_NONE 0u /* of no folder: older ckptd gave none */
#define FOLDER_ID_TEXT 17

void folder_id_text(char buf[FOLDER_ID_TEXT], uint64_t id);
/* -ENOENT: it has none; CKPT_ECORRUPT: ID has something else in it. */
MUST_CHECK int folder_id_read(struct disk *d, uint64_t *ret);
/* Gives a folder that has none, or one that is damaged, this id, durably; FOLDER_ID_NONE: a random
 * one. Under LOCK. */
MUST_CHECK int folder_id_ensure(struct store *s, uint64_t id, struct rng *rng, uint64_t *ret,
				struct err *e);

#endif
