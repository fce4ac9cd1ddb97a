/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_uses.h - notes of the declarations and layouts that are written while a sweep
 * (object_sweep.h) looks for unused ones. Any thread. A read-only store, or a tool's, has none:
 * NULL is allowed everywhere.
 */
#ifndef STORAGE_OBJECT_USES_H
#define STORAGE_OBJECT_USES_H

#include "base/ids.h"

/* Then the digest: the name of an object that a sweep, or a sweep that crashed, has set aside. */
#define OBJECT_ASIDE "gone-"

struct object_uses;

struct object_uses *object_uses_new(void); /* NULL: no memory */
void object_uses_free(struct object_uses *u);

/* Enclose writing objects and publishing what refers to them: no sweep begins in between. */
void objects_begin(struct object_uses *u);
void objects_end(struct object_uses *u);
/* The caller is about to write it, or to check whether it exists. */
void objects_note(struct object_uses *u, const struct digest *d);
/* An import moves into jobs/: a running sweep removes nothing more. */
void objects_disturb(struct object_uses *u);

/* For the sweep alone. false: it cannot begin now. */
bool object_uses_sweep(struct object_uses *u);
void object_uses_swept(struct object_uses *u);
bool object_uses_has(struct object_uses *u, const struct digest *d);

#endif
