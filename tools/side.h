/* SPDX-License-Identifier: Apache-2.0 */
/*
 * side.h - what a word of the command line names that has tensors: a checkpoint, here or in another
 * data folder, or files of another format.
 *
 *   JOB[@STEP[.ATTEMPT]]          the newest durable one if no step is given
 *   FOLDER:JOB[@STEP[.ATTEMPT]]   in that data folder
 *   PATH                          what has a '/' and is a file or folder of a known format
 */
#ifndef TOOLS_SIDE_H
#define TOOLS_SIDE_H

#include "tools/source.h"

/* By o, but for job and step; data: where the word names no folder. */
MUST_CHECK int side_open(const char *word, const struct reading_options *o, struct source **ret,
			 struct err *e);
/* {path} or {job, id, step, attempt}: word is as it was given. */
json_t *side_json(const struct source *s, const char *word);

#endif
