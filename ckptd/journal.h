/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.h - systemd's journal, by its native protocol: a line with fields beside its text.
 *
 * Any thread, but open and free.
 */
#ifndef CKPTD_JOURNAL_H
#define CKPTD_JOURNAL_H

#include <stddef.h>

#include "base/err.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

struct journal;
struct log_about;

/* path, of at most 107 bytes, need not be there yet. */
MUST_CHECK int journal_open(const char *path, struct journal **ret);
void journal_free(struct journal *j);
/*
 * One entry: level as syslog's, text without a newline at its end, about NULL or what the entry is
 * about. Never waits: -EAGAIN when the journal does not read, another error when it is gone; the
 * next call finds a journal that has come back.
 */
MUST_CHECK int journal_send(const struct journal *j, int level, const struct log_about *about,
			    const char *text, size_t len);

#endif
