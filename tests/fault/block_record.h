/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block_record.h - what blockrec writes down: one of these per request, the bytes of a write
 * behind it. Native byte order: it is read where it was written.
 */
#ifndef TESTS_FAULT_BLOCK_RECORD_H
#define TESTS_FAULT_BLOCK_RECORD_H

#include <stdint.h>

enum { BLOCK_WRITE = 1, BLOCK_FLUSH = 2 };

struct block_record {
	uint32_t type;
	uint32_t length; /* bytes of the write; they follow */
	uint64_t offset; /* in the image */
};

#endif
