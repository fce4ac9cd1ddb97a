/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_uses.h - who writes declarations and layouts while a sweep (object_sweep.h) looks which of
 * them nothing uses. Any thread. A store that is open for reading, or a tool's, has none: NULL is
 * allowed everywhere.
 */
#ifndef STORAGE_OBJECT_USES_H
#define STORAGE_OBJECT_USES_H

#include "base/ids.h"

/* And the digest: what a sweep has set aside, or a crash of one left. */
#define OBJECT_ASIDE "gone-"

struct object_uses;

struct object_uses *object_uses_new(void); /* NULL: no memory */
void object_uses_free(struct object_uses *u);

/* Around writing objects and publishing what refers to them: no sweep begins meanwhile. */
void objects_begin(struct object_uses *u);
void objects_end(struct object_uses *u);
/* It is about to be written, or found to be there. */
void objects_note(struct object_uses *u, const struct digest *d);
/* What a tool has made comes to jobs/: a sweep that goes on removes nothing more. */
void objects_disturb(struct object_uses *u);

/* The sweep's own: false: not now. */
bool object_uses_sweep(struct object_uses *u);
void object_uses_swept(struct object_uses *u);
bool object_uses_has(struct object_uses *u, const struct digest *d);

#endif
