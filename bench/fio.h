/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio.h - what the disk can do, by fio(1).
 */
#ifndef BENCH_FIO_H
#define BENCH_FIO_H

#include "bench/bench.h"

struct fio_cell {
	bool read, fresh; /* fresh: into a new file, else over one that is there */
	int mib, depth;   /* of one transfer, in flight */
};

struct fio_result {
	double gib_s;     /* end_fsync included */
	double cpu_s;     /* user and system time of the transfers, seconds */
};

/* One run over `bytes`; the file lies in the folder of the run. */
MUST_CHECK int fio_run(const struct bench *b, const struct fio_cell *c, uint64_t bytes,
		       struct fio_result *ret, struct err *e);
enum fio_kind {
	FIO_READ,
	FIO_WRITE, /* into a new file or over one that is there */
	FIO_WRITE_NEW,
};
/* The cell with the highest median of 3, and that (ret_gib_s may be NULL). */
MUST_CHECK int fio_best(const struct bench *b, enum fio_kind kind, uint64_t bytes,
			struct fio_cell *ret, double *ret_gib_s, struct err *e);
void fio_name(const struct fio_cell *c, char *buf, size_t size);

#endif
