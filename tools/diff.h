/* SPDX-License-Identifier: Apache-2.0 */
/*
 * diff.h - two sources compared: which tensors only one has, and how those of both differ.
 */
#ifndef TOOLS_DIFF_H
#define TOOLS_DIFF_H

#include "tools/diff_values.h"
#include "tools/progress.h"
#include "tools/source.h"

struct diff_tensor {
	size_t a, b;   /* indices into the sources; SIZE_MAX: it does not have it */
	bool compared; /* values is valid: there is something to compute */
	struct diff_values values;
};

struct diff {
	struct source *a, *b;
	struct diff_tensor *tensors; /* by name */
	size_t n;
	uint64_t bytes_read;   /* of both */
	uint64_t bytes_digest; /* of both: not read, since their digests are equal */
};

/* memory: bytes of buffers beside those of the sources. progress may be NULL. */
MUST_CHECK int diff_run(struct diff *d, const struct words *globs, uint64_t memory,
			struct progress *progress, struct err *e);
void diff_fini(struct diff *d);

bool diff_is_equal(const struct diff *d, const struct diff_tensor *t);

#endif
