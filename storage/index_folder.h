/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_folder.h - the folder of the index, for storage/index_rocksdb.c: whether what is in it may
 * be opened, and how it is set aside. Besides RocksDB's files it has, at times:
 *
 *   DAMAGED  a call found damage: to be set aside at the next open
 *   TRIES    a byte for each attempt to open it that did not return, because the process died
 *   ROOM     space that is tried and freed just before it is opened
 *
 * RocksDB opens by path and follows links. So (1) it is given the descriptor of a folder that was
 * resolved by storage/beneath.h, as a path; (2) a folder in which anything but regular files of its
 * owner lies is not opened but set aside; (3) only a process of the owner's opens it: what the
 * owner puts there after (2) gains nothing. A lock on the folder keeps two of one process apart,
 * which RocksDB would tell by the path.
 */
#ifndef STORAGE_INDEX_FOLDER_H
#define STORAGE_INDEX_FOLDER_H

#include "storage/beneath.h"

struct index_folder {
	struct beneath in;    /* the folder that it is in */
	struct beneath at;    /* itself; closed where there is none */
	char *path, *bad;     /* as people are told: itself; where it is set aside */
	const char *name;     /* of path, in in */
	char *bad_name;
	char rocksdb[32];     /* what RocksDB is told: by at's descriptor */
};

/* path: of the folder in in, as it is told to people. fini in any case. */
MUST_CHECK int index_folder_init(struct index_folder *f, const struct beneath *in,
				 const char *path);
void index_folder_fini(struct index_folder *f);

/* 1: there is a database to be opened; 0: there is nothing; CKPT_ECORRUPT: it is to be set aside,
 * and e says why; -EBUSY: it is in use; other errors are those of reading the folder. */
MUST_CHECK int index_folder_look(struct index_folder *f, struct err *e);
/* Renames it to <path>.bad, in place of an older one. */
MUST_CHECK int index_folder_set_aside(struct index_folder *f, struct err *e);
MUST_CHECK int index_folder_make(struct index_folder *f, struct err *e); /* or is there */

/* Around each attempt to open it: tries the room for it, counts the attempt; forgets it. */
MUST_CHECK int index_folder_before_open(const struct index_folder *f, struct err *e);
void index_folder_after_open(const struct index_folder *f);
void index_folder_mark_damaged(const struct index_folder *f);

#endif
