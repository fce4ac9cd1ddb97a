/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding wanted names in the sources. Cold; one thread per struct.
 *
 * 1. Of shards with the same elements (a parameter on every data-parallel rank) only the most
 *    preferred is kept: sources are walked in order of preference, so it is the first one. One of
 *    which the source lacks leaves takes no slot: shards in slots are whole. One of which the
 *    source has nothing is kept only for its name.
 * 2. A source's cursor never goes back: names are wanted in order.
 * 3. Sources that have the same names, each once, have them at the same sorted indices: the first
 *    of them is searched, and the others are taken as it was found. They sleep and wake together.
 * 4. The next name of every sleeping source lies behind the last name of the batch.
 */
#include <config.h>

#include "model/plan_gather.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "codec/digest.h"
#include "model/leaves.h"

static int compare_cost(const void *pa, const void *pb, void *arg)
{
	const struct plan_source *sources = arg;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	if (sources[a].cost != sources[b].cost)
		return sources[a].cost < sources[b].cost ? -1 : 1;
	return a < b ? -1 : a > b;
}

/* Drops sources whose declaration a more preferred one has (1). */
static int drop_replicas(struct gather *g)
{
	uint32_t n = 0;

	assert(g->n_sources < 1u << 30);
	g->n_slots = 2;
	while (g->n_slots / 2 < g->n_sources)
		g->n_slots *= 2;
	g->slots = alloc_array(g->n_slots, sizeof(*g->slots)); /* for once of sources */
	if (!g->slots)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_sources; i++) {
		const struct declaration *d = &g->sources[g->by_cost[i]].declaration, *other;
		uint32_t at = (uint32_t)declaration_hash(d, g->key) & (g->n_slots - 1);
		int r = effort_spend(g->effort, 1);

		if (r)
			return r;
		for (; g->slots[at]; at = (at + 1) & (g->n_slots - 1)) {
			other = &g->sources[g->slots[at] - 1].declaration;
			if (declaration_same(other, d))
				break;
		}
		if (g->slots[at])
			continue;
		if (!g->sources[g->by_cost[i]].present)
			g->slots[at] = g->by_cost[i] + 1; /* it is whole (1) */
		g->by_cost[n++] = g->by_cost[i];
	}
	g->n_walked = n;
	return 0;
}

/* Who is searched for whom (3). */
static int find_likes(struct gather *g)
{
	g->likes = alloc_array(g->n_walked, sizeof(*g->likes));
	if (!g->likes)
		return -ENOMEM;
	memset(g->slots, 0, g->n_slots * sizeof(*g->slots));
	for (uint32_t i = 0; i < g->n_walked; i++) {
		const struct declaration *d = &g->sources[g->by_cost[i]].declaration, *other;
		uint64_t hash = digest_keyed(g->key, d->names.b, sizeof(d->names.b));
		uint32_t at = (uint32_t)hash & (g->n_slots - 1);
		struct names_like *first;

		g->likes[i] = (struct names_like){
			.like = i, .area = GATHER_END, .next = GATHER_END};
		if (d->n_names < d->n_shards)
			continue;
		for (; g->slots[at]; at = (at + 1) & (g->n_slots - 1)) {
			other = &g->sources[g->by_cost[g->slots[at] - 1]].declaration;
			if (digest_equal(&other->names, &d->names))
				break;
		}
		if (!g->slots[at]) {
			g->slots[at] = i + 1;
			continue;
		}
		first = &g->likes[g->slots[at] - 1];
		g->likes[i].like = first->like;
		g->likes[i].next = first->next;
		first->next = i;
		if (first->area == GATHER_END)
			first->area = (uint32_t)g->n_areas++;
	}
	g->places = alloc_array(g->n_areas * g->cap_names, sizeof(*g->places));
	return g->places ? 0 : -ENOMEM;
}

static const char *next_own(const void *arg, uint32_t walked, uint32_t *ret_len)
{
	const struct gather *g = arg;
	uint32_t source = g->by_cost[walked];

	return declaration_name(&g->sources[source].declaration, g->cursors[source], ret_len);
}

int gather_init(struct gather *g, const struct plan_source *sources, uint32_t n_sources,
		const struct declaration *wanted, uint64_t key, struct effort *effort)
{
	int r;

	*g = (struct gather){.sources = sources,
			     .n_sources = n_sources,
			     .wanted = wanted,
			     .effort = effort,
			     .key = key};
	g->cap_names = (uint32_t)max_u64(1, GATHER_FINDS / max_u64(1, n_sources));
	g->cap_names = (uint32_t)min_u64(g->cap_names, wanted->n_shards);
	g->by_cost = alloc_array(n_sources, sizeof(*g->by_cost));
	g->cursors = alloc_array(n_sources, sizeof(*g->cursors));
	g->names = alloc_array(g->cap_names, sizeof(*g->names));
	if (!g->by_cost || !g->cursors || !g->names)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_sources; i++)
		g->by_cost[i] = i;
	if (n_sources > 1)
		qsort_r(g->by_cost, n_sources, sizeof(*g->by_cost), compare_cost, (void *)sources);
	r = drop_replicas(g);
	if (r == 0)
		r = find_likes(g);
	if (r)
		return r;
	g->awake = alloc_array(g->n_walked, sizeof(*g->awake));
	g->asleep.who = alloc_array(g->n_walked, sizeof(*g->asleep.who));
	g->asleep.name = next_own;
	g->asleep.arg = g;
	if (!g->awake || !g->asleep.who)
		return -ENOMEM;
	for (g->n_awake = 0; g->n_awake < g->n_walked; g->n_awake++)
		g->awake[g->n_awake] = g->n_awake;
	return 0;
}

void gather_fini(struct gather *g)
{
	alloc_free(g->by_cost);
	alloc_free(g->cursors);
	alloc_free(g->names);
	alloc_free(g->likes);
	alloc_free(g->awake);
	alloc_free(g->asleep.who);
	alloc_free(g->places);
	alloc_free(g->found);
	alloc_free(g->slots);
	*g = (struct gather){0};
}

size_t gather_memory(const struct gather *g)
{
	return g->n_sources * (sizeof(*g->by_cost) + sizeof(*g->cursors)) +
	       g->n_walked * (sizeof(*g->likes) + sizeof(*g->awake) + sizeof(*g->asleep.who)) +
	       g->n_areas * g->cap_names * sizeof(*g->places) +
	       g->cap_names * sizeof(*g->names) + g->cap_found * sizeof(*g->found) +
	       g->n_slots * sizeof(*g->slots);
}

/* ---- Shards with the same elements ---- */

/* The slot of the same elements under the same name, or the free one where they belong. */
static uint32_t *find_slot(const struct gather *g, const struct declaration *d, uint32_t index,
			   uint32_t name)
{
	uint64_t key = g->key + name * 0x9e3779b97f4a7c15u;
	uint32_t i = (uint32_t)declaration_place_hash(d, index, key) & (g->n_slots - 1);

	for (; g->slots[i]; i = (i + 1) & (g->n_slots - 1), g->effort->steps++) {
		const struct found_shard *f = &g->found[g->slots[i] - 1];

		if (f->name == name &&
		    declaration_same_place(&g->sources[f->source].declaration, f->index, d, index))
			break;
	}
	return &g->slots[i];
}

/* What a source has of a shard. */
enum part { PART_NONE, PART_SOME, PART_ALL };

static enum part part_of(const struct plan_source *s, uint32_t index)
{
	uint64_t leaf = s->declaration.geometry.leaf, first, last;
	struct shard shard;

	if (!s->present)
		return PART_ALL;
	declaration_get(&s->declaration, index, &shard);
	first = shard.image_offset / leaf;
	last = div_up(shard.image_offset + shard.bytes, leaf);
	if (shard.bytes == 0 || leaves_next(s->present, first, last, false) == last)
		return PART_ALL;
	return leaves_next(s->present, first, last, true) == last ? PART_NONE : PART_SOME;
}

/* Room for one more. */
static int reserve_found(struct gather *g)
{
	uint32_t cap = g->cap_found ? 2 * g->cap_found : 256;
	struct found_shard *found;
	uint32_t *slots;

	if (g->n_found < g->cap_found)
		return 0;
	if (cap > UINT32_MAX / 4)
		return -E2BIG;
	found = alloc_resize(g->found, cap * sizeof(*found));
	if (!found)
		return -ENOMEM;
	g->found = found;
	slots = alloc_array(2 * (size_t)cap, sizeof(*slots));
	if (!slots)
		return -ENOMEM;
	alloc_free(g->slots);
	g->slots = slots;
	g->n_slots = 2 * cap;
	g->cap_found = cap;
	for (uint32_t i = 0; i < g->n_found; i++) {
		const struct found_shard *f = &found[i];

		if (part_of(&g->sources[f->source], f->index) != PART_ALL)
			continue;
		*find_slot(g, &g->sources[f->source].declaration, f->index, f->name) = i + 1;
	}
	return 0;
}

static int add_found(struct gather *g, uint32_t source, uint32_t index, uint32_t name)
{
	struct found_name *n = &g->names[name];
	enum part part = part_of(&g->sources[source], index);
	uint32_t *slot;
	int r = effort_spend(g->effort, 1);

	if (r == 0)
		r = reserve_found(g);
	if (r || (part == PART_NONE && n->head != GATHER_END))
		return r;
	slot = find_slot(g, &g->sources[source].declaration, index, name);
	if (*slot)
		return 0; /* (1) */
	g->found[g->n_found] = (struct found_shard){source, index, name, GATHER_END};
	if (n->head == GATHER_END)
		n->head = g->n_found;
	else
		g->found[n->tail].next = g->n_found;
	n->tail = g->n_found++;
	if (part == PART_ALL)
		*slot = g->n_found;
	return 0;
}

/* ---- Sleep ---- */

static struct names_like *leader(const struct gather *g, uint32_t walked)
{
	return &g->likes[g->likes[walked].like];
}

static int compare_u32(const void *pa, const void *pb)
{
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	return a < b ? -1 : a > b;
}

/* (4) Wakes the sources that may have names of the batch. */
static int wake(struct gather *g)
{
	const struct found_name *last = &g->names[g->n_names - 1];
	uint32_t before = g->n_awake, len;
	int r = 0;

	while (g->asleep.n && r == 0) {
		const char *own = next_own(g, g->asleep.who[0], &len);
		uint32_t i;

		if (name_compare(own, len, last->text, last->len) > 0)
			break;
		i = sleepers_take(&g->asleep);
		g->likes[i].asleep = false;
		for (; i != GATHER_END && r == 0; i = g->likes[i].next) {
			g->awake[g->n_awake++] = i;
			r = effort_spend(g->effort, 1);
		}
	}
	if (g->n_awake > before)
		qsort(g->awake, g->n_awake, sizeof(*g->awake), compare_u32);
	return r;
}

/* Puts to sleep the sources without a name in the batch; those without further names never wake. */
static void put_to_sleep(struct gather *g)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < g->n_awake; k++) {
		uint32_t i = g->awake[k], source = g->by_cost[i];
		bool over = g->cursors[source] == g->sources[source].declaration.n_shards;

		if (g->likes[i].like == i && (over || g->likes[i].n == 0)) {
			g->likes[i].asleep = true;
			if (!over)
				sleepers_put(&g->asleep, i);
		}
		if (!leader(g, i)->asleep)
			g->awake[n++] = i;
	}
	g->n_awake = n;
}

/* ---- The walk ---- */

/* First name of the batch behind k that is not before this one. */
static uint32_t seek_wanted(const struct gather *g, uint32_t k, const char *own, uint32_t len)
{
	uint32_t lo = k + 1, hi = k + 1, step = 1;

	/* All before lo are before the name; hi is not, or is the end. */
	while (hi < g->n_names && name_compare(g->names[hi].text, g->names[hi].len, own, len) < 0) {
		lo = hi + 1;
		hi = (uint32_t)min_u64((uint64_t)hi + step, g->n_names);
		step *= 2;
	}
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (name_compare(g->names[mid].text, g->names[mid].len, own, len) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* (3) */
static int walk_like(struct gather *g, uint32_t source, const struct names_like *like)
{
	const struct names_place *places = g->places + (size_t)like->area * g->cap_names;
	int r = 0;

	for (uint32_t i = 0; i < like->n && !r; i++)
		r = add_found(g, source, places[i].index, places[i].name);
	return r;
}

static int walk_source(struct gather *g, uint32_t walked)
{
	uint32_t source = g->by_cost[walked];
	const struct declaration *d = &g->sources[source].declaration;
	struct names_like *like = &g->likes[walked];
	struct names_place *places = NULL;
	uint32_t at = g->cursors[source], k = 0, len = 0;
	const char *own = at < d->n_shards ? declaration_name(d, at, &len) : NULL;
	int r = 0;

	if (like->like != walked)
		return walk_like(g, source, &g->likes[like->like]);
	if (like->area != GATHER_END)
		places = g->places + (size_t)like->area * g->cap_names;
	like->n = 0;
	while (k < g->n_names && !r && at < d->n_shards) {
		const struct found_name *n = &g->names[k];
		int order = name_compare(own, len, n->text, n->len);

		r = effort_spend(g->effort, 1);
		if (order > 0) {
			k = seek_wanted(g, k, own, len);
			continue;
		}
		if (order == 0 && places)
			places[like->n] = (struct names_place){at, k};
		like->n += order == 0;
		if (order == 0)
			r = add_found(g, source, at++, k);
		else
			at = declaration_seek(d, at + 1, n->text, n->len);
		if (at < d->n_shards)
			own = declaration_name(d, at, &len);
	}
	g->cursors[source] = at; /* (2) */
	return r;
}

/* The wanted shards from g->next on that have one name. */
static struct found_name next_name(struct gather *g)
{
	struct found_name n = {.first = g->next, .head = GATHER_END, .tail = GATHER_END};
	uint32_t len;

	n.text = declaration_name(g->wanted, n.first, &n.len);
	for (n.end = n.first + 1; n.end < g->wanted->n_shards; n.end++) {
		const char *other = declaration_name(g->wanted, n.end, &len);

		if (name_compare(n.text, n.len, other, len) != 0)
			break;
	}
	g->next = n.end;
	return n;
}

int gather_batch(struct gather *g)
{
	int r = 0;

	g->n_found = 0;
	if (g->slots)
		memset(g->slots, 0, g->n_slots * sizeof(*g->slots));
	for (g->n_names = 0; g->n_names < g->cap_names && g->next < g->wanted->n_shards;)
		g->names[g->n_names++] = next_name(g);
	if (g->n_names)
		r = wake(g);
	for (uint32_t i = 0; i < g->n_awake && !r; i++)
		r = walk_source(g, g->awake[i]);
	if (r == 0)
		put_to_sleep(g);
	assert(g->n_names <= INT32_MAX);
	return r ? r : (int)g->n_names;
}
