/* SPDX-License-Identifier: Apache-2.0 */
/*
 * indexing.h - keeps the index behind the files. Errors are counted, never anybody's failure: the
 * index is rebuilt when it is found wrong.
 */
#ifndef CKPTD_INDEXING_H
#define CKPTD_INDEXING_H

#include "ckptd/job.h"

void indexing_put(struct checkpoint *c);
/* One that no trainer of this ckptd has saved: its layout too, by its files. */
void indexing_add(struct checkpoint *c);
void indexing_remove(struct node *n, const struct checkpoint_id *id);
/* Makes it anew from the files; done gets the number of checkpoints or an error. */
MUST_CHECK int indexing_rebuild(struct node *n, append_done_fn *done, void *arg);
/* All that is on its way and long ends soon; short writes are done. */
void indexing_cancel(struct node *n);

#endif
