/* SPDX-License-Identifier: Apache-2.0 */
/*
 * held_files.c - shard files that outlive their names.
 *
 * Whether another process has a file open is answered by the disk (in_use()), not by locks: a
 * process can drop the lock of a descriptor that it was given. Where the file system has no answer,
 * a file counts as closed.
 *
 * Thread: any, one for each struct held_files.
 */
#include <config.h>

#include "storage/held_files.h"

#include <errno.h>

#include "base/alloc.h"
#include "storage/paths.h"

int held_files_open(struct store *s, const struct checkpoint_id *id, uint32_t world,
		    struct held_files *ret)
{
	char path[DISK_PATH_MAX + 1];

	*ret = (struct held_files){0};
	ret->files = alloc_array(world, sizeof(*ret->files));
	if (!ret->files)
		return -ENOMEM;
	for (uint32_t rank = 0; rank < world; rank++) {
		path_shard(path, id, rank);
		if (s->disk->ops->open(s->disk, path, DISK_READ, &ret->files[ret->n]) == 0)
			ret->n++;
	}
	return 0;
}

static bool is_held(struct disk_file *f, uint64_t *ret_bytes)
{
	const struct disk_ops *ops = f->disk->ops;
	uint64_t links = 0;
	bool in_use = false;

	return ops->links(f, &links) == 0 && links == 0 && ops->in_use(f, &in_use) == 0 &&
	       in_use && ops->size(f, ret_bytes) == 0;
}

void held_files_sift(struct held_files *h)
{
	uint32_t kept = 0;
	uint64_t bytes;

	h->bytes = 0;
	for (uint32_t i = 0; i < h->n; i++) {
		struct disk_file *f = h->files[i];

		bytes = 0;
		if (is_held(f, &bytes)) {
			h->bytes += bytes;
			h->files[kept++] = f;
		} else {
			f->disk->ops->close(f);
		}
	}
	h->n = kept;
	if (kept == 0)
		held_files_close(h);
}

void held_files_close(struct held_files *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		h->files[i]->disk->ops->close(h->files[i]);
	alloc_free(h->files);
	*h = (struct held_files){0};
}
