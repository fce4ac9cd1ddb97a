/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is stored and wanted by nobody. Cold; one thread per call.
 *
 * 1. Of declarations with the same names, however they cut them, one is looked at. So where what is
 *    stored was declared by ranks that are cut like those that load, nothing is looked at at all,
 *    however many they are: what follows costs where tensors were dealt to ranks anew.
 * 2. Names are looked up in one table of the digests of all that are wanted: a name that is stored
 *    costs the same whatever the number of those that want, and no other name is read for it.
 *    The table is larger than caches: BATCH names are digested before the first is looked up, and
 *    what they will touch is on its way meanwhile.
 * 3. Sources are merged one by one. Once the list is full, a source is read only as far as the last
 *    name in it: names behind that one would not be listed.
 *
 * Memory: three lists of PLAN_PROBLEMS_MAX names, a pointer or three per declaration, and where
 * there is something to look up up to four digests per wanted shard of declarations with different
 * names.
 */
#include <config.h>

#include "model/plan_extra.h"

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "codec/digest.h"

#define BATCH 32u

struct batch {
	struct extra_name names[BATCH];
	struct digest digests[BATCH];
	uint32_t n;
};

struct search {
	/* One of each set of names: those that are wanted, then those that are only stored. */
	const struct declaration **sets;
	uint32_t n_wanted, n_sets;
	const struct declaration **by_names; /* the same, in a table */
	uint64_t n_by_names;
	uint64_t wanted_shards;
	struct digest *names; /* of all that are wanted, in a table; zero: free */
	uint64_t n_names;
	struct extra *found, *own, *merged;
	size_t memory_max, memory;
	uint64_t key; /* of both tables */
	struct effort *effort;
};

/* Zeroed, and counted. */
static int take(struct search *s, uint64_t n, size_t size, void **ret)
{
	uint64_t bytes;

	if (!size_mul(n, size, &bytes) || bytes > s->memory_max - s->memory)
		return -E2BIG;
	*ret = alloc_array(n, size);
	if (!*ret)
		return -ENOMEM;
	s->memory += bytes;
	return 0;
}

/* For so many in a table that is then at most half full. */
static uint64_t slots_for(uint64_t n)
{
	uint64_t slots = 2;

	while (slots < 2 * n)
		slots *= 2;
	return slots;
}

/* ---- Sets of names (1) ---- */

static uint64_t keyed(const struct search *s, const struct digest *d)
{
	return digest_keyed(s->key, d->b, sizeof(d->b));
}

static void add_set(struct search *s, const struct declaration *d)
{
	uint64_t mask = s->n_by_names - 1, at = keyed(s, &d->names) & mask;

	for (; s->by_names[at]; at = (at + 1) & mask)
		if (digest_equal(&s->by_names[at]->names, &d->names))
			return;
	s->by_names[at] = d;
	s->sets[s->n_sets++] = d;
}

static int find_sets(struct search *s, const struct plan_source *sources, uint32_t n_sources,
		     const struct declaration *wanted, const struct plan_peers *peers)
{
	uint64_t n = (uint64_t)n_sources + peers->n + 1;
	int r;

	s->n_by_names = slots_for(n);
	r = take(s, n, sizeof(*s->sets), (void **)&s->sets);
	if (r == 0)
		r = take(s, s->n_by_names, sizeof(*s->by_names), (void **)&s->by_names);
	if (r)
		return r;
	add_set(s, wanted);
	for (uint32_t i = 0; i < peers->n; i++)
		add_set(s, &peers->wanted[i]);
	s->n_wanted = s->n_sets;
	for (uint32_t i = 0; i < s->n_wanted; i++)
		s->wanted_shards += s->sets[i]->n_shards;
	for (uint32_t i = 0; i < n_sources; i++)
		add_set(s, &sources[i].declaration);
	assert(s->n_sets <= n);
	return 0;
}

/* ---- Names that are wanted (2) ---- */

static struct extra_name name_at(const struct declaration *d, uint32_t i)
{
	struct extra_name n;

	n.text = declaration_name(d, i, &n.len);
	return n;
}

/* First sorted index > i with another name. */
static uint32_t after_name(const struct declaration *d, uint32_t i, const struct extra_name *own)
{
	for (i++; i < d->n_shards; i++) {
		struct extra_name next = name_at(d, i);

		if (next.len != own->len || memcmp(next.text, own->text, own->len) != 0)
			break;
	}
	return i;
}

static bool is_free(const struct digest *slot)
{
	static const struct digest none;

	return digest_equal(slot, &none);
}

static uint64_t first_slot(const struct search *s, const struct digest *own)
{
	return keyed(s, own) & (s->n_names - 1);
}

/* Its slot, or the free one where it belongs. */
static struct digest *find_slot(const struct search *s, const struct digest *own)
{
	uint64_t mask = s->n_names - 1, at = first_slot(s, own);

	for (; !is_free(&s->names[at]) && !digest_equal(&s->names[at], own); at = (at + 1) & mask)
		s->effort->steps++;
	return &s->names[at];
}

/* Different names from sorted index i on; returns the index behind them. */
static uint32_t next_batch(const struct search *s, const struct declaration *d, uint32_t i,
			   struct batch *b)
{
	for (b->n = 0; i < d->n_shards && b->n < BATCH; b->n++) {
		struct extra_name *own = &b->names[b->n];

		*own = name_at(d, i);
		b->digests[b->n] = digest_of(own->text, own->len);
		__builtin_prefetch(&s->names[first_slot(s, &b->digests[b->n])]);
		i = after_name(d, i, own);
	}
	return i;
}

static int find_names(struct search *s)
{
	int r;

	s->n_names = slots_for(s->wanted_shards);
	r = take(s, s->n_names, sizeof(*s->names), (void **)&s->names);
	for (uint32_t k = 0; k < s->n_wanted && r == 0; k++) {
		const struct declaration *d = s->sets[k];
		struct batch b;

		for (uint32_t i = 0; i < d->n_shards && r == 0;) {
			i = next_batch(s, d, i, &b);
			r = effort_spend(s->effort, b.n);
			for (uint32_t at = 0; at < b.n; at++)
				*find_slot(s, &b.digests[at]) = b.digests[at];
		}
	}
	return r;
}

/* ---- What is not (3) ---- */

static int compare_names(const struct extra_name *a, const struct extra_name *b)
{
	return name_compare(a->text, a->len, b->text, b->len);
}

/* Of one source, into s->own. */
static int extra_of_source(struct search *s, const struct declaration *d)
{
	const struct extra *found = s->found;
	const struct extra_name *last =
		found->n == PLAN_PROBLEMS_MAX ? &found->names[found->n - 1] : NULL;
	struct extra *ret = s->own;
	struct batch b;
	int r = 0;

	ret->n = 0;
	for (uint32_t i = 0; i < d->n_shards && r == 0;) {
		i = next_batch(s, d, i, &b);
		r = effort_spend(s->effort, b.n);
		for (uint32_t at = 0; at < b.n; at++) {
			if (ret->n == PLAN_PROBLEMS_MAX ||
			    (last && compare_names(last, &b.names[at]) < 0))
				return r;
			if (is_free(find_slot(s, &b.digests[at])))
				ret->names[ret->n++] = b.names[at];
		}
	}
	return r;
}

/* As many as there is room for; ret is neither of them. */
static void merge(const struct extra *a, const struct extra *b, struct extra *ret)
{
	size_t i = 0, k = 0;

	ret->n = 0;
	while (ret->n < PLAN_PROBLEMS_MAX && (i < a->n || k < b->n)) {
		int c = i == a->n ? 1 : k == b->n ? -1 : compare_names(&a->names[i], &b->names[k]);

		ret->names[ret->n++] = c <= 0 ? a->names[i] : b->names[k];
		i += c <= 0;
		k += c >= 0;
	}
}

static int find_extra(struct search *s)
{
	int r = take(s, 1, sizeof(*s->own), (void **)&s->own);

	if (r == 0)
		r = take(s, 1, sizeof(*s->merged), (void **)&s->merged);
	if (r == 0)
		r = find_names(s);
	for (uint32_t i = s->n_wanted; i < s->n_sets && r == 0; i++) {
		struct extra *before = s->found;

		r = extra_of_source(s, s->sets[i]);
		if (s->own->n == 0)
			continue;
		merge(s->found, s->own, s->merged);
		s->found = s->merged;
		s->merged = before;
	}
	return r;
}

int extra_list(const struct plan_source *sources, uint32_t n_sources,
	       const struct declaration *wanted, const struct plan_peers *peers, uint64_t key,
	       struct effort *effort, size_t *memory, struct extra **ret)
{
	struct search s = {.memory_max = *memory, .key = key, .effort = effort};
	int r = take(&s, 1, sizeof(*s.found), (void **)&s.found);

	if (r == 0)
		r = find_sets(&s, sources, n_sources, wanted, peers);
	if (r == 0 && s.n_sets > s.n_wanted)
		r = find_extra(&s);
	alloc_free(s.names);
	alloc_free(s.by_names);
	alloc_free(s.sets);
	alloc_free(s.own);
	alloc_free(s.merged);
	if (r < 0) {
		alloc_free(s.found);
		return r;
	}
	*memory = s.memory;
	*ret = s.found;
	return 0;
}
