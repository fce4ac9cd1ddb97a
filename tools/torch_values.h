/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch_values.h - what is no tensor on its way between torch's files and blobs.
 *
 * A value that torch saves beside tensors is a blob that holds the archive that torch.save() makes
 * of it: what DCP has as a bytes item goes in and out as it is. A blob that is none (a libckpt
 * user's) becomes one on the way out, an archive of a bytes object with the prefix VALUE_PREFIX,
 * and is that blob again when it comes back.
 */
#ifndef TOOLS_TORCH_VALUES_H
#define TOOLS_TORCH_VALUES_H

#include <jansson.h>

#include "tools/pickle_write.h"

#define VALUE_PREFIX "ckpt_blob"

/* 1: it is an archive of ours, and *ret, which the caller frees, what it holds; 0: it is not. */
MUST_CHECK int value_unwrap(const void *bytes, size_t len, void **ret, size_t *ret_len,
			    struct err *e);
/* 1: an archive of it is in *ret, which the caller frees; 0: it is one already. */
MUST_CHECK int value_wrap(const void *bytes, size_t len, void **ret, size_t *ret_len,
			  struct err *e);
/* The archive that torch.save() makes of a plain value. */
MUST_CHECK int value_save(const struct pickle *p, const struct pickle_value *v, void **ret,
			  size_t *ret_len, struct err *e);

/*
 * Paths: JSON, name -> [key or index, ...] for what lay deeper than its name says. It is written as
 * it comes: a million of them are never a tree. paths_end() says -ENOMEM when any of it failed.
 */
void paths_add(struct writer *w, const char *name, size_t name_len, const json_t *path);
MUST_CHECK int paths_end(struct writer *w, struct err *e);
/* A planner_data of DCP; *ret stays empty when every path is the name alone. */
MUST_CHECK int paths_of_planner(const struct pickle *p, const struct pickle_value *planner,
				struct writer *ret, struct err *e);
/* The same JSON, which may be anything, as the path of a name: writes the tuple. */
void paths_write(struct pickle_writer *w, const json_t *paths, const char *name, size_t name_len);

#endif
