/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_collect_tree.h - a made-up /proc and /sys, and a source that reads it when it is told to.
 */
#ifndef CKPTD_TEST_COLLECT_TREE_H
#define CKPTD_TEST_COLLECT_TREE_H

#include "ckptd/collect_source.h"
#include "tests/lib/test.h"

struct tree {
	char *dir;
	const struct collect_source *source;
	struct collect_config config;
	struct collect_out out;
	struct err e;
	void *state;
	uint64_t now_ns;
};

struct tree *tree_new(const struct collect_source *source);
void tree_free(struct tree *t);

/* A file with its folders, "sys/block/sda/stat"; text gets no newline. */
void tree_put(struct tree *t, const char *path, const char *text);
void tree_put_bytes(struct tree *t, const char *path, const void *bytes, size_t n);
void tree_folder(struct tree *t, const char *path);
void tree_link(struct tree *t, const char *path, const char *to);
void tree_remove(struct tree *t, const char *path); /* and what is in it */

/* Opens the source where it is not, then reads, `seconds` after the time before. */
int tree_read(struct tree *t, unsigned seconds);
/* The only sample of a kind; NULL: there is none, fails where there are more. */
const struct sample *tree_sample(const struct tree *t, enum sample_kind k);
/* The sample of a kind of the device of that name; NULL: none. The name must have been told. */
const struct sample *tree_of(struct tree *t, enum sample_kind k, const char *name);
/* Every file of the tree in turn becomes empty, garbage, huge, a folder, a FIFO, and is missing:
 * reading must neither crash nor block. */
void tree_ill_treat(struct tree *t);

#endif
