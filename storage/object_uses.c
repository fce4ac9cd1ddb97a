/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_uses.c - see object_uses.h. The lock is held for a few instructions and never across a
 * call of the disk. If a note cannot be allocated, everything counts as in use.
 */
#include <config.h>

#include "storage/object_uses.h"

#include <assert.h>
#include <pthread.h>

#include "base/alloc.h"
#include "base/fault.h"

struct object_uses {
	pthread_mutex_t lock;
	uint32_t writers;
	bool sweeping, all; /* all: everything is in use until the sweep ends */
	struct digest *noted; /* since it began */
	size_t n, cap;
};

struct object_uses *object_uses_new(void)
{
	struct object_uses *u = alloc_zero(sizeof(*u));

	if (u)
		pthread_mutex_init(&u->lock, NULL);
	return u;
}

void object_uses_free(struct object_uses *u)
{
	if (!u)
		return;
	pthread_mutex_destroy(&u->lock);
	alloc_free(u->noted);
	alloc_free(u);
}

static void add_writers(struct object_uses *u, int n)
{
	if (!u)
		return;
	pthread_mutex_lock(&u->lock);
	assert(n > 0 || u->writers > 0);
	u->writers += (uint32_t)n;
	pthread_mutex_unlock(&u->lock);
}

void objects_begin(struct object_uses *u)
{
	add_writers(u, 1);
}

void objects_end(struct object_uses *u)
{
	add_writers(u, -1);
}

static void note(struct object_uses *u, const struct digest *d)
{
	size_t cap = u->cap ? 2 * u->cap : 64;
	void *p;

	if (u->n == u->cap) {
		p = alloc_resize(u->noted, cap * sizeof(*u->noted));
		if (!p) {
			u->all = true;
			return;
		}
		u->noted = p;
		u->cap = cap;
	}
	u->noted[u->n++] = *d;
}

void objects_note(struct object_uses *u, const struct digest *d)
{
	if (!u)
		return;
	pthread_mutex_lock(&u->lock);
	if (u->sweeping && !u->all)
		note(u, d);
	pthread_mutex_unlock(&u->lock);
}

void objects_disturb(struct object_uses *u)
{
	if (!u)
		return;
	pthread_mutex_lock(&u->lock);
	u->all = u->sweeping;
	pthread_mutex_unlock(&u->lock);
}

bool object_uses_sweep(struct object_uses *u)
{
	bool may = false;

	if (!u)
		return false;
	pthread_mutex_lock(&u->lock);
	if (!u->writers && !u->sweeping)
		may = u->sweeping = true;
	pthread_mutex_unlock(&u->lock);
	return may;
}

void object_uses_swept(struct object_uses *u)
{
	pthread_mutex_lock(&u->lock);
	u->sweeping = u->all = false;
	u->n = 0;
	pthread_mutex_unlock(&u->lock);
}

bool object_uses_has(struct object_uses *u, const struct digest *d)
{
	bool found;

	pthread_mutex_lock(&u->lock);
	found = u->all;
	for (size_t i = 0; i < u->n && !found && !BUG(SWEEP_FORGETS_WRITERS); i++)
		found = digest_equal(&u->noted[i], d);
	pthread_mutex_unlock(&u->lock);
	return found;
}
