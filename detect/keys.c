/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c - open addressing with linear probing, at most 3/4 full; whoever leaves is closed up
 * behind, so there are no tombstones.
 */
#include <config.h>

#include "detect/keys.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"

static uint32_t home(const struct keys *k, uint64_t stored)
{
	stored ^= stored >> 32;
	return (uint32_t)((stored * 0x9e3779b97f4a7c15u) >> 32) & (k->cap - 1);
}

/* Where it is, or the free place where it would be. */
static struct key_place *place_of(const struct keys *k, uint64_t stored)
{
	uint32_t i = home(k, stored);

	assert(k->n < k->cap);
	while (k->places[i].key && k->places[i].key != stored)
		i = (i + 1) & (k->cap - 1);
	return &k->places[i];
}

uint32_t keys_find(const struct keys *k, uint64_t key)
{
	const struct key_place *p;

	if (!k->cap)
		return KEY_NONE;
	p = place_of(k, key + 1);
	return p->key ? p->value : KEY_NONE;
}

static int grow(struct keys *k)
{
	struct keys new = {.n = k->n, .cap = k->cap ? 2 * k->cap : 16};

	new.places = alloc_array(new.cap, sizeof(*new.places));
	if (!new.places)
		return -ENOMEM;
	for (uint32_t i = 0; i < k->cap; i++)
		if (k->places[i].key)
			*place_of(&new, k->places[i].key) = k->places[i];
	alloc_free(k->places);
	*k = new;
	return 0;
}

int keys_add(struct keys *k, uint64_t key, uint32_t value)
{
	struct key_place *p;

	assert(key != UINT64_MAX);
	if (4 * (k->n + 1) > 3 * k->cap && grow(k) < 0)
		return -ENOMEM;
	p = place_of(k, key + 1);
	assert(!p->key);
	*p = (struct key_place){key + 1, value};
	k->n++;
	return 0;
}

void keys_set(struct keys *k, uint64_t key, uint32_t value)
{
	struct key_place *p = place_of(k, key + 1);

	assert(p->key);
	p->value = value;
}

void keys_remove(struct keys *k, uint64_t key)
{
	struct key_place *p = k->cap ? place_of(k, key + 1) : NULL;
	uint32_t hole, i;

	if (!p || !p->key)
		return;
	hole = i = (uint32_t)(p - k->places);
	for (;;) {
		uint32_t wants;

		i = (i + 1) & (k->cap - 1);
		if (!k->places[i].key)
			break;
		wants = home(k, k->places[i].key);
		if (((i - wants) & (k->cap - 1)) < ((i - hole) & (k->cap - 1)))
			continue; /* it would get before its home */
		k->places[hole] = k->places[i];
		hole = i;
	}
	k->places[hole] = (struct key_place){0, 0};
	k->n--;
}

void keys_fini(struct keys *k)
{
	alloc_free(k->places);
	*k = (struct keys){0};
}
