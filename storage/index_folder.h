/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_folder.h - the folder of the index, for storage/index_rocksdb.c: whether what is in it may
 * be opened, and how it is set aside. Besides RocksDB's files it has, at times:
 *
 *   DAMAGED  a call found damage: to be set aside at the next open
 *   TRIES    a byte for each attempt to open it that did not return, because the process died
 *   ROOM     space that is tried and freed just before it is opened
 */
#ifndef STORAGE_INDEX_FOLDER_H
#define STORAGE_INDEX_FOLDER_H

#include "base/err.h"

struct index_folder {
	char *path, *bad; /* the folder; where it is set aside */
	char *damaged, *tries, *room;
};

MUST_CHECK int index_folder_init(struct index_folder *f, const char *path); /* fini in any case */
void index_folder_fini(struct index_folder *f);

/* 1: there is a database to be opened; 0: there is nothing; CKPT_ECORRUPT: it is to be set aside,
 * and e says why; other errors are those of reading the folder. */
MUST_CHECK int index_folder_look(const struct index_folder *f, struct err *e);
/* Renames it to <path>.bad, in place of an older one. */
MUST_CHECK int index_folder_set_aside(const struct index_folder *f, struct err *e);
MUST_CHECK int index_folder_make(const struct index_folder *f, struct err *e); /* or is there */

/* Around each attempt to open it: tries the room for it, counts the attempt; forgets it. */
MUST_CHECK int index_folder_before_open(const struct index_folder *f, struct err *e);
void index_folder_after_open(const struct index_folder *f);
void index_folder_mark_damaged(const struct index_folder *f);

#endif
