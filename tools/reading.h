/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reading.h - a durable checkpoint opened by a tool: its tensors, and any part of them, verified.
 *
 * It reads files beside a running ckptd or without one. While it is open it holds the shared lock
 * of every shard file that it has opened, so that none is recycled under it (I12).
 *
 * Memory: the names of its tensors, the rank tables (1/3500 of its bytes, and the declarations) or
 * as much of them as options.tables allows, the plan of one reading_fetch(), and buffers of at most
 * options.memory.
 *
 * One thread; reading_fetch() has more of its own while it runs.
 */
#ifndef TOOLS_READING_H
#define TOOLS_READING_H

#include "model/trust.h"
#include "model/table.h"
#include "storage/commit_file.h"
#include "tools/files.h"

struct reading;

struct reading_options {
	const char *data;  /* as for data_open(); NULL: found */
	const char *job;   /* name or id */
	const char *step;  /* "120", "120.3fa9" or NULL: the newest durable one */
	enum trust_level least; /* that it is to be trusted with */
	uint64_t memory;   /* bytes of buffers; 0: 64 MiB */
	uint64_t tables;   /* bytes of rank tables that stay in memory beside those of the fetch
			      that runs; 0: all of them */
	uint32_t threads;  /* that read and place; 0: as many as the disk wants */
};

/* A tensor of the checkpoint, whoever stores which part of it. */
struct reading_tensor {
	const char *name; /* not NUL-terminated; valid while the reading is open */
	uint32_t name_len;
	uint32_t dtype;
	struct shape global;
	uint64_t bytes; /* of the whole */
	bool trained;   /* as the first rank that stores it says */
};

/* CKPT_ENOTFOUND: no such job or step, or it is in memory only; CKPT_ECORRUPT: its files are
 * damaged; CKPT_EMISMATCH: ranks disagree on a tensor's dtype or shape; -EINVAL: several jobs or
 * attempts are called so. */
MUST_CHECK int reading_open(const struct reading_options *o, struct reading **ret, struct err *e);
void reading_close(struct reading *r); /* NULL is allowed */
/* Which checkpoint that would be, without a look at its tensors: its folder, to be closed with
 * data_close(), and its id. Fails as reading_open() does. */
MUST_CHECK int reading_choose(const struct reading_options *o, struct data *ret_data,
			      struct checkpoint_id *ret, struct err *e);
/* Other limits from now on: as options.memory and options.tables. */
void reading_limit(struct reading *r, uint64_t memory, uint64_t tables);
const char *reading_job(const struct reading *r); /* its name */

const struct commit_file *reading_commit(const struct reading *r);
const char *reading_path(const struct reading *r); /* of the data folder */
uint32_t reading_uid(const struct reading *r);     /* of the job's owner */
/* Valid until the next call that gets r; NULL: it was dropped (options.tables), and cannot be read
 * again. */
const struct rank_table *reading_table(struct reading *r, uint32_t rank);

/* In the order of the images (rank 0's, then what the next rank adds): reading tensors in this
 * order reads the files from their beginning to their end. */
size_t reading_n_tensors(const struct reading *r);
const struct reading_tensor *reading_tensor(const struct reading *r, size_t i);
/* SIZE_MAX: there is none. */
size_t reading_find(const struct reading *r, const char *name, uint32_t name_len);

/* Part of a tensor that is wanted: elements [start, stop), row-major, of box, which lies inside the
 * tensor. They are packed into `to`, which has room for them. */
struct reading_want {
	size_t tensor;
	struct box box;
	uint64_t start, stop;
	void *to;
};

/*
 * Fills all of them. Each leaf that they touch is read and verified once, however many of them
 * want it; strided copies go straight to their places. Wants may overlap. *ret_read (may be NULL)
 * grows by the bytes read. CKPT_ECORRUPT names rank, leaf and tensor; CKPT_EMISMATCH names the
 * tensor and the region that nobody stores.
 */
MUST_CHECK int reading_fetch(struct reading *r, const struct reading_want *wants, size_t n,
			     uint64_t *ret_read, struct err *e);
/* The same as a plan without reading: the bytes that it would read, whole leaves. */
MUST_CHECK int reading_cost(struct reading *r, const struct reading_want *wants, size_t n,
			    uint64_t *ret_read, struct err *e);

/* The bytes of a blob of a rank, verified; the caller frees them. CKPT_ENOTFOUND. */
MUST_CHECK int reading_blob(struct reading *r, uint32_t rank, const char *name, uint32_t name_len,
			    void **ret, uint64_t *ret_bytes, struct err *e);

#endif
