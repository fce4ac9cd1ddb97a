/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_again.c - a file that was written again takes the place of the damaged one.
 *
 * 1. It gets the name only after all of it was read back from the disk and matched its digests.
 * 2. Its name is durable when shard_replace() returns 0; COMMIT is published after that.
 *
 * Thread: one per checkpoint.
 */
#include <config.h>

#include <inttypes.h>

#include "base/fault.h"
#include "storage/paths.h"
#include "storage/shard_reader.h"

static int verify(struct store *s, const struct checkpoint_id *id, const struct shard_footer *f,
		  struct err *e)
{
	struct shard_reader reader;
	uint64_t bad = 0;
	int r = shard_open_again(s, id, f, &reader, e);

	if (r < 0)
		return r;
	r = shard_verify(&reader, NULL, &bad, e);
	shard_close(&reader);
	if (r == 0 && bad > 0)
		r = err_set(e, CKPT_ECORRUPT,
			    "%" PRIu64 " leaves of the file that was written again do not match",
			    bad);
	return r;
}

int shard_replace(struct store *s, const struct checkpoint_id *id, const struct shard_footer *f,
		  struct err *e)
{
	char from[DISK_PATH_MAX + 1], to[DISK_PATH_MAX + 1], folder[DISK_PATH_MAX + 1];
	struct disk *d = s->disk;
	int r = BUG(REWRITE_UNCHECKED) ? 0 : verify(s, id, f, e);

	path_shard_again(from, id, f->rank);
	path_shard(to, id, f->rank);
	path_checkpoint(folder, id);
	if (r < 0)
		return r;
	r = d->ops->rename(d, from, to);
	if (r == 0)
		r = d->ops->sync_dir(d, folder);
	return r < 0 ? err_code(e, r, "cannot put a file in the place of '%s'", to) : 0;
}

void shard_forget_again(struct store *s, const struct checkpoint_id *id, uint32_t rank)
{
	char path[DISK_PATH_MAX + 1];

	path_shard_again(path, id, rank);
	ignore_result(s->disk->ops->unlink(s->disk, path) /* the next one, or its expiry, does */);
}
