/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout_file.h - layouts that no name describes, as JSON (doc/layouts.md).
 */
#ifndef TOOLS_LAYOUT_FILE_H
#define TOOLS_LAYOUT_FILE_H

#include "model/layout.h"

/* What ends in ".json" is read, else it goes to layout_parse(). */
MUST_CHECK int layout_get(const char *spec_or_path, struct layout **ret, struct err *e);
/* -EINVAL names the rule, the cut, the key. */
MUST_CHECK int layout_from_json(const char *text, size_t len, struct layout **ret, struct err *e);

#endif
