/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fixture.h - what the tests of storage/ share: a data folder in a temporary one, images with
 * their rank tables, and a whole checkpoint written, read back and compared with the image.
 */
#ifndef STORAGE_TEST_FIXTURE_H
#define STORAGE_TEST_FIXTURE_H

#include "storage/commit_file.h"
#include "storage/recover.h"
#include "storage/shard_reader.h"

#define QUEUE_DEPTH 8

struct folder {
	char *dir;
	struct disk *real; /* on the file system */
	struct store store;
	struct disk_queue *queue;
};

/* The group's back-end and options; tests run once for each. */
extern const char *fixture_backend;
extern struct store_options fixture_options;
extern const char *fixture_parent; /* of the temporary folders; NULL: $TMPDIR */

int folder_set_up(void **state);
int folder_tear_down(void **state);
void folder_open_store(struct folder *f);
void folder_close_store(struct folder *f);
/* Of files and folders in path, or -errno. */
int count_in(struct folder *f, const char *path);
/* The test fails with the sentence if r is an error. */
void must(int r, const struct err *e);

/* A rank's image: two tensors, or one where it is small, of u8, and its rank table. */
struct image {
	uint8_t *bytes;
	uint64_t len;
	uint32_t rank, world;
	struct geometry geometry;
	void *table;
	size_t table_len;
	uint64_t *present; /* leaves that its file has; NULL: all */
};
/* compressible: 0 noise, 1 some, 2 mixed by chunk. */
struct image image_make(struct geometry g, uint64_t len, uint32_t rank, uint32_t world,
			uint64_t seed, int compressible);
/* One in n leaves is left out of its file. */
void image_lose_leaves(struct image *i, uint64_t n, uint64_t seed);
uint64_t image_bytes_present(const struct image *i);
void image_free(struct image *i);

struct checkpoint_id test_id(uint64_t step);
/* Writes images (world of them) and COMMIT; 0, or the first error. */
int write_checkpoint(struct folder *f, const struct checkpoint_id *id, const struct image *images,
		     uint32_t world, struct err *e);
/* The same in a store that others use too, through the folder's queue. */
int write_checkpoint_of(struct folder *f, struct store *s, const struct checkpoint_id *id,
			const struct image *images, uint32_t world, struct err *e);
/* Writes one shard without COMMIT. */
int write_shard(struct folder *f, const struct checkpoint_id *id, const struct image *image,
		struct shard_footer *ret, struct err *e);

/*
 * Reads a checkpoint from its files alone, chunk by chunk, and verifies it: 0 when every byte of
 * every rank equals the image; an error that reading gave; asserts that no wrong byte came back.
 */
int read_checkpoint(struct store *s, const struct checkpoint_id *id, const struct image *images,
		    struct err *e);
/* Bad leaves of all ranks together, or an error. */
int64_t verify_checkpoint(struct store *s, const struct checkpoint_id *id, char *said,
			  size_t said_size, struct err *e);

#endif
