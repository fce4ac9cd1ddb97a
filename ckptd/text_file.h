/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_file.h - a small file of an administrator, read whole on the loop's thread.
 */
#ifndef CKPTD_TEXT_FILE_H
#define CKPTD_TEXT_FILE_H

#include <stddef.h>

#include "base/err.h"

/*
 * Only of a regular file: neither a FIFO nor a device is waited for. what: as in "read the policy";
 * the text is followed by a NUL, and freed with alloc_free(). Longer than max: the first max + 1
 * bytes of it, for the parser to refuse. -ENOENT: there is no file; -EINVAL: it is none.
 */
MUST_CHECK int text_file_read(const char *what, const char *path, size_t max, char **ret,
			      size_t *ret_len, struct err *e);

#endif
