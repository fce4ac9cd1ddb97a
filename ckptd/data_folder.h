/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_folder.h - the data folder's name: made before it is opened, and looked at while it is used.
 * Blocking.
 */
#ifndef CKPTD_DATA_FOLDER_H
#define CKPTD_DATA_FOLDER_H

#include <stdbool.h>

#include "base/disk.h"
#include "base/err.h"

/*
 * Makes the folder and those above it where they are missing; with memory kept from an earlier
 * ckptd it makes none: then there was a folder, and its disk is not mounted. own: this process may
 * make folders wherever it was told to.
 */
MUST_CHECK int data_folder_make(const char *path, bool memory_kept, bool own, struct err *e);
/* Whether the name leads to the folder that is open: -errno, and a sentence. */
MUST_CHECK int data_folder_check(struct disk *d, const char *path, struct err *e);
/* Whether its file system is memory, so that what is called durable ends with the node. */
bool data_folder_in_memory(struct disk *d);

#endif
