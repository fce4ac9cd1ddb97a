/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.h - the memory of slots as this process sees it.
 */
#ifndef CLIENT_SLOTS_H
#define CLIENT_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct slot_map {
	uint32_t number;
	uint8_t *base;
	uint64_t bytes;
	uint64_t inode; /* of its memfd: a load may come from it */
	bool pinned;    /* for device copies */
};

/* Maps bytes of fd for writing, and touches none of them. fd stays the caller's. */
MUST_CHECK int slot_map(int fd, uint32_t number, uint64_t bytes, struct slot_map *ret,
			struct err *e);
void slot_unmap(struct slot_map *s);
/* ckptd has given it all its pages. Before that they would be this process's to pay for. */
bool slot_has_pages(int fd, uint64_t bytes);
/*
 * Faults in the bytes from..from + bytes. by_hand: as before kernel 5.14, without
 * MADV_POPULATE_WRITE.
 */
MUST_CHECK int slot_populate(const struct slot_map *s, uint64_t from, uint64_t bytes, bool by_hand,
			     struct err *e);

/*
 * Fault in what the path of a save runs through: the text and data of the libraries it calls, and
 * this thread's stack. The first save then takes no page fault in them.
 */
void fault_in_code(void);
void fault_in_stack(void);

#endif
