/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapping.h - slots as this process holds them, from their descriptors to their end.
 */
#ifndef CLIENT_MAPPING_H
#define CLIENT_MAPPING_H

#include "client/client.h"

struct mapping;

/* Without slots; NULL: no memory. */
struct mapping *mapping_new(void);
/* Maps one more slot, and takes its descriptor (*fd is -1 then). */
MUST_CHECK int mapping_add(struct mapping *m, int *fd, uint32_t number, uint64_t bytes,
			   struct err *e);
/* Its slots become the handle's, and the thread populates them. */
void mapping_adopt(struct mapping *m, struct ckpt *c);
/* 1: a save may use the first n slots of the handle, 0: not by `until`, or an error. */
MUST_CHECK int mapping_wait(struct ckpt *c, uint32_t n, uint64_t until, struct err *e);
/* Whether a save may use the slot of this index. */
bool mapping_has(const struct ckpt *c, uint32_t slot);
/* Where a device came into use after they were mapped: no save may use a slot before the thread has
 * pinned it. While no save is under way. */
void mapping_pin(struct ckpt *c);
/* No page of it is populated any more, but for a step that is under way. */
void mapping_stop(struct mapping *m);
/* It is no longer used: unmapped by mapping_let_go(), with an idle thread. */
void mapping_retire(struct mapping *m, struct ckpt *c);
void mapping_let_go(struct ckpt *c);
/* One that was not adopted; NULL is allowed. */
void mapping_free(struct mapping *m);

#endif
