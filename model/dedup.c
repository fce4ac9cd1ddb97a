/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dedup.c - finding replicated shards, cutting them into units, choosing writers.
 *
 * 1. Every byte of every shard has a writer: a shard that one rank holds is that rank's, of the
 *    others every part is in exactly one unit, whose writer holds it.
 * 2. Nothing here depends on the order of the input, on addresses or on floating point: nodes that
 *    disagreed would both leave out the same bytes.
 * 3. Balance: a unit has at most a thirty-second of the mean (more only where the state is so small
 *    that a unit would be less than a leaf). What hashing cannot balance, because few ranks hold
 *    much, chains of moves do: from the most loaded writer through others to one that has room.
 *
 * 4. What comes from outside cannot make it large or endless: dedup_memory() says what it takes,
 *    every loop over shards polls `cancel`, chains of moves have a limit.
 *
 * Thread: any. Cold.
 */
#include <config.h>

#include "model/dedup.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "codec/digest.h"
#include "model/effort.h"
#include "model/leaves.h"
#include "model/sorting.h"

#define SHARE       32u /* a unit is at most this part of the mean */
#define SHARE_SMALL 16u /* but of a small state this part, for units of UNIT_LEAVES */
#define UNIT_LEAVES 8u
#define IMPROVE_MAX (1u << 24) /* steps that chains of moves may cost */

/* Windows that a rank's mean share has at most, with those at its two ends: window > mean / 64. */
#define WINDOWS_MAX (2 * SHARE + 2)
#define SLACK       (64u << 10) /* of the allocator, and small blocks */

/* One shard of one rank. */
struct entry {
	struct digest key; /* equal: declared alike */
	uint64_t at, bytes;
	uint32_t rank, shard;
};

/* A part before its unit is known. */
struct fragment {
	struct dedup_part part;
	struct digest holders; /* digest of their ranks */
	struct digest key;     /* of the shard */
	uint64_t at;           /* in the image of the first holder */
	uint32_t rank;         /* the first holder */
	uint64_t window;
};

struct making {
	struct dedup *d;
	uint32_t leaf;
	struct entry *entries;
	size_t n_entries;
	struct fragment *fragments;
	size_t n_fragments;
	struct effort effort;
	uint64_t window;      /* bytes */
	struct digest *names; /* of units, for hashing */
	uint64_t cap;         /* bytes that no writer should have more of */
};

/* ---- Shards alike ---- */

static struct digest shard_key(const struct shard *s)
{
	uint8_t b[CKPT_NAME_MAX + 64 + 24 * CKPT_NDIM_MAX], *p = b;

	assert(s->name_len <= CKPT_NAME_MAX);
	put_le32(p, s->dtype), p += 4;
	put_le32(p, s->global.ndim), p += 4;
	for (uint32_t k = 0; k < s->global.ndim; k++) {
		put_le64(p, s->global.dim[k]), p += 8;
		put_le64(p, s->box.offset[k]), p += 8;
		put_le64(p, s->box.length[k]), p += 8;
	}
	put_le64(p, s->start), p += 8;
	put_le64(p, s->stop), p += 8;
	memcpy(p, s->name, s->name_len), p += s->name_len;
	return digest_of(b, (size_t)(p - b));
}

static int compare_entries(const void *pa, const void *pb, void *arg)
{
	const struct entry *a = pa, *b = pb;
	int c = memcmp(a->key.b, b->key.b, sizeof(a->key.b));

	(void)arg;
	if (c != 0)
		return c;
	return a->rank != b->rank ? (a->rank < b->rank ? -1 : 1) : (a->shard > b->shard) - 1;
}

/* Now and then, in a loop over i: -ECANCELED. */
static int look_up(struct making *m, uint64_t i)
{
	return i % EFFORT_POLL == 0 ? effort_spend(&m->effort, EFFORT_POLL) : 0;
}

static int collect_rank(struct making *m, const struct dedup_rank *rank)
{
	const struct declaration *d = &rank->declaration;
	int r = effort_spend(&m->effort, 1);

	assert(rank->rank < m->d->world);
	m->leaf = d->geometry.leaf;
	for (uint32_t k = 0; k < d->n_shards && r == 0; k++) {
		struct shard s;

		r = look_up(m, k);
		declaration_get(d, k, &s);
		if (s.bytes == 0)
			continue;
		m->entries[m->n_entries++] = (struct entry){.key = shard_key(&s),
							    .at = s.image_offset,
							    .bytes = s.bytes,
							    .rank = rank->rank,
							    .shard = k};
	}
	return r;
}

static int collect(struct making *m, const struct dedup_rank *ranks)
{
	uint64_t n = 0;
	int r = 0;

	for (uint32_t i = 0; i < m->d->world; i++)
		if (!size_add(n, ranks[i].declaration.n_shards, &n) || n > DEDUP_SHARDS_MAX)
			return -E2BIG;
	m->entries = alloc_array(n, sizeof(*m->entries));
	if (!m->entries)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->d->world && r == 0; i++)
		r = collect_rank(m, &ranks[i]);
	if (r == 0)
		r = sorting_sort(m->entries, m->n_entries, sizeof(*m->entries), compare_entries,
				 NULL, &m->effort);
	return r;
}

static size_t group_end(const struct making *m, size_t first)
{
	const struct entry *a = &m->entries[first];
	size_t end = first + 1;

	while (end < m->n_entries && digest_equal(&m->entries[end].key, &a->key) &&
	       m->entries[end].bytes == a->bytes)
		end++;
	return end;
}

/* ---- Units ---- */

static uint64_t power_below(uint64_t n)
{
	uint64_t p = 1;

	while (p <= n / 2)
		p *= 2;
	return p;
}

/* What each rank holds alone, and how much there is in all. */
static void sum_up(struct making *m)
{
	struct dedup *d = m->d;
	uint64_t mean, least;

	for (size_t i = 0, end; i < m->n_entries; i = end) {
		end = group_end(m, i);
		d->total += m->entries[i].bytes;
		if (end - i == 1)
			d->load[m->entries[i].rank] += m->entries[i].bytes;
	}
	mean = d->total / d->world;
	least = min_u64((uint64_t)UNIT_LEAVES * m->leaf, mean / SHARE_SMALL);
	m->window = max_u64(power_below(max_u64(mean / SHARE, least)), m->leaf);
	m->cap = mean + mean / SHARE;
}

static struct digest digest_of_ranks(const struct dedup_holder *h, size_t n)
{
	struct digest_stream s;
	uint8_t b[4];

	digest_begin(&s);
	for (size_t i = 0; i < n; i++) {
		put_le32(b, h[i].rank);
		digest_update(&s, b, sizeof(b));
	}
	return digest_end(&s);
}

/* One group, cut where the windows of its first holder's image end. */
static void cut_group(struct making *m, const struct entry *e, size_t n, size_t *n_holders)
{
	struct fragment f = {.key = e->key, .rank = e->rank};
	struct dedup_holder *h = m->d->holders + *n_holders;

	for (size_t i = 0; i < n; i++)
		h[i] = (struct dedup_holder){.rank = e[i].rank, .at = e[i].at};
	f.holders = digest_of_ranks(h, n);
	f.part.shard = e->shard;
	f.part.first_holder = *n_holders;
	f.part.n_holders = (uint32_t)n;
	*n_holders += n;
	for (uint64_t at = e->at, end = e->at + e->bytes, next; at < end; at = next) {
		f.window = at / m->window;
		next = min_u64(end, (f.window + 1) * m->window);
		f.at = at;
		f.part.from = at - e->at;
		f.part.bytes = next - at;
		m->fragments[m->n_fragments++] = f;
	}
}

/* Room for what cut() makes. */
static int measure(struct making *m)
{
	uint64_t n_fragments = 0, n_holders = 0;

	for (size_t i = 0, end; i < m->n_entries; i = end) {
		const struct entry *e = &m->entries[i];

		end = group_end(m, i);
		if (end - i == 1)
			continue;
		n_holders += end - i;
		n_fragments += (e->at + e->bytes - 1) / m->window - e->at / m->window + 1;
	}
	m->d->n_holders = n_holders;
	m->d->holders = alloc_array(n_holders, sizeof(*m->d->holders));
	m->fragments = alloc_array(n_fragments, sizeof(*m->fragments));
	return m->d->holders && m->fragments && n_fragments <= UINT32_MAX ? 0 : -ENOMEM;
}

static int cut(struct making *m)
{
	size_t n_holders = 0, groups = 0;
	int r = measure(m);

	for (size_t i = 0, end; i < m->n_entries && r == 0; i = end) {
		r = look_up(m, groups++);
		end = group_end(m, i);
		if (end - i > 1)
			cut_group(m, &m->entries[i], end - i, &n_holders);
	}
	alloc_free(m->entries);
	m->entries = NULL;
	return r;
}

static int compare_units(const struct fragment *a, const struct fragment *b)
{
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	if (a->window != b->window)
		return a->window < b->window ? -1 : 1;
	return memcmp(a->holders.b, b->holders.b, sizeof(a->holders.b));
}

static int compare_fragments(const void *pa, const void *pb, void *arg)
{
	const struct fragment *a = pa, *b = pb;
	int c = compare_units(a, b);

	(void)arg;
	return c != 0 ? c : (a->at > b->at) - (a->at < b->at);
}

/* Hashed is what does not change with who else holds it: the first shard in it. */
static struct digest unit_name(const struct fragment *f)
{
	uint8_t b[24];

	memcpy(b, f->key.b, 16);
	put_le64(b + 16, f->part.from);
	return digest_of(b, sizeof(b));
}

static int make_units(struct making *m)
{
	struct dedup *d = m->d;
	int r = sorting_sort(m->fragments, m->n_fragments, sizeof(*m->fragments), compare_fragments,
			     NULL, &m->effort);

	if (r < 0)
		return r;
	d->parts = alloc_array(m->n_fragments, sizeof(*d->parts));
	d->units = alloc_array(m->n_fragments, sizeof(*d->units));
	m->names = alloc_array(m->n_fragments, sizeof(*m->names));
	if (!d->parts || !d->units || !m->names)
		return -ENOMEM;
	for (size_t i = 0; i < m->n_fragments && r == 0; i++) {
		const struct fragment *f = &m->fragments[i];
		struct dedup_unit *u;

		r = look_up(m, i);
		if (i == 0 || compare_units(f - 1, f) != 0) {
			m->names[d->n_units] = unit_name(f);
			d->units[d->n_units++].first_part = i;
		}
		u = &d->units[d->n_units - 1];
		u->n_parts++;
		u->bytes += f->part.bytes;
		d->parts[i] = f->part;
		d->parts[i].unit = (uint32_t)(d->n_units - 1);
	}
	d->n_parts = d->cap_units = m->n_fragments;
	alloc_free(m->fragments);
	m->fragments = NULL;
	return r;
}

/* ---- Writers ---- */

static const struct dedup_holder *holders_of(const struct dedup *d, size_t unit, uint32_t *ret_n)
{
	const struct dedup_part *p = &d->parts[d->units[unit].first_part];

	*ret_n = p->n_holders;
	return d->holders + p->first_holder;
}

static uint64_t weight(const struct digest *name, uint32_t rank)
{
	uint8_t b[20];
	struct digest g;

	memcpy(b, name->b, 16);
	put_le32(b + 16, rank);
	g = digest_of(b, sizeof(b));
	return get_le64(g.b);
}

static void choose_writer(struct making *m, size_t unit)
{
	struct dedup *d = m->d;
	struct dedup_unit *u = &d->units[unit];
	uint64_t best_load = UINT64_MAX, best_weight = 0;
	const struct dedup_holder *h;
	uint32_t n;

	h = holders_of(d, unit, &n);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t w = weight(&m->names[unit], h[i].rank), load = d->load[h[i].rank];

		if (load + u->bytes <= m->cap)
			load = 0; /* all that have room are alike */
		if (load < best_load || (load == best_load && w >= best_weight)) {
			best_load = load;
			best_weight = w;
			u->writer = h[i].rank;
		}
	}
	d->load[u->writer] += u->bytes;
}

/* Those with the fewest holders first, of these the largest. */
static int compare_order(const void *pa, const void *pb, void *arg)
{
	const struct making *m = arg;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb, n_a, n_b;
	const struct dedup_unit *units = m->d->units;

	(void)holders_of(m->d, a, &n_a);
	(void)holders_of(m->d, b, &n_b);
	if (n_a != n_b)
		return n_a < n_b ? -1 : 1;
	if (units[a].bytes != units[b].bytes)
		return units[a].bytes > units[b].bytes ? -1 : 1;
	return memcmp(m->names[a].b, m->names[b].b, sizeof(m->names[a].b));
}

static int choose_writers(struct making *m)
{
	uint32_t *order CLEANUP_FREE = alloc_array(m->d->n_units, sizeof(*order));

	int r;

	if (!order)
		return -ENOMEM;
	for (uint32_t i = 0; i < m->d->n_units; i++)
		order[i] = i;
	r = sorting_sort(order, m->d->n_units, sizeof(*order), compare_order, m, &m->effort);
	for (size_t i = 0; i < m->d->n_units && r == 0; i++) {
		choose_writer(m, order[i]);
		r = effort_spend(&m->effort, 1);
	}
	return r;
}

/* ---- Chains of moves ---- */

#define NO_UNIT SIZE_MAX

struct chains {
	struct making *m;
	size_t *via;     /* for each rank: the unit that would move to it; NO_UNIT: not reached */
	uint32_t *queue; /* ranks in the order in which they were reached */
	size_t *head, *next; /* units of each writer */
	uint32_t *order;     /* units, smallest first */
	uint64_t steps;
};

static uint32_t most_loaded(const struct dedup *d)
{
	uint32_t most = 0;

	for (uint32_t i = 1; i < d->world; i++)
		if (d->load[i] > d->load[most])
			most = i;
	return most;
}

/* What the rank would have if it took over the unit by which it was reached. */
static uint64_t load_with(const struct chains *c, uint32_t rank)
{
	const struct dedup *d = c->m->d;

	return d->load[rank] + (c->via[rank] == NO_UNIT ? 0 : d->units[c->via[rank]].bytes);
}

/* Ranks that can be given something of the units of `from`, if what it keeps then is not above top.
 */
static void reach(struct chains *c, uint32_t from, uint64_t top, uint32_t *n)
{
	const struct dedup *d = c->m->d;

	for (size_t u = c->head[from]; u != NO_UNIT; u = c->next[u]) {
		const struct dedup_holder *h;
		uint32_t n_h;

		if (load_with(c, from) - d->units[u].bytes > top)
			continue;
		h = holders_of(d, u, &n_h);
		for (uint32_t i = 0; i < n_h; i++) {
			uint32_t to = h[i].rank;

			c->steps++;
			if (c->via[to] != NO_UNIT || to == c->queue[0])
				continue;
			c->via[to] = u;
			c->queue[(*n)++] = to;
		}
	}
}

static void list_units(struct chains *c, bool small)
{
	const struct dedup *d = c->m->d;

	for (uint32_t i = 0; i < d->world; i++) {
		c->via[i] = NO_UNIT;
		c->head[i] = NO_UNIT;
	}
	for (size_t i = 0; i < d->n_units; i++) {
		size_t u = c->order[small ? d->n_units - 1 - i : i];

		c->next[u] = c->head[d->units[u].writer];
		c->head[d->units[u].writer] = u;
	}
	c->steps += d->n_units;
}

/*
 * Moves units along one chain that starts at the most loaded rank, large or small ones where there
 * are several; false: there is none, or it is cancelled.
 */
static bool move_one(struct chains *c, bool small)
{
	struct dedup *d = c->m->d;
	uint32_t top = most_loaded(d), n = 1, best = top;
	uint64_t high = d->load[top];

	if (high <= c->m->cap)
		return false;
	list_units(c, small);
	c->queue[0] = top;
	for (uint32_t i = 0; i < n; i++) {
		if (effort_spend(&c->m->effort, 1) < 0)
			return false;
		reach(c, c->queue[i], high, &n);
	}
	for (uint32_t i = 1; i < n; i++)
		if (best == top || load_with(c, c->queue[i]) < load_with(c, best))
			best = c->queue[i];
	if (best == top || load_with(c, best) >= high)
		return false;
	while (best != top) {
		struct dedup_unit *u = &d->units[c->via[best]];
		uint32_t before = u->writer;

		u->writer = best;
		d->load[best] += u->bytes;
		d->load[before] -= u->bytes;
		best = before;
	}
	return true;
}

static int compare_bytes(const void *pa, const void *pb, void *arg)
{
	const struct dedup_unit *units = arg;
	uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	if (units[a].bytes != units[b].bytes)
		return units[a].bytes < units[b].bytes ? -1 : 1;
	return (a > b) - (a < b);
}

/* (3) Each chain leaves one rank less with the highest load: it ends. */
static int improve(struct making *m)
{
	struct chains c = {.m = m};
	int r = -ENOMEM;

	c.via = alloc_array(m->d->world, sizeof(*c.via));
	c.queue = alloc_array(m->d->world, sizeof(*c.queue));
	c.head = alloc_array(m->d->world, sizeof(*c.head));
	c.next = alloc_array(m->d->n_units, sizeof(*c.next));
	c.order = alloc_array(m->d->n_units, sizeof(*c.order));
	if (c.via && c.queue && c.head && c.next && c.order) {
		for (uint32_t u = 0; u < m->d->n_units; u++)
			c.order[u] = u;
		r = sorting_sort(c.order, m->d->n_units, sizeof(*c.order), compare_bytes,
				 m->d->units, &m->effort);
		while (r == 0 && c.steps < IMPROVE_MAX &&
		       (move_one(&c, false) || move_one(&c, true)))
			;
		if (r == 0)
			r = effort_spend(&m->effort, 0);
	}
	alloc_free(c.via);
	alloc_free(c.queue);
	alloc_free(c.head);
	alloc_free(c.next);
	alloc_free(c.order);
	return r;
}

/* ---- All of it ---- */

static int make(struct making *m, const struct dedup_rank *ranks)
{
	int r;

	m->d->load = alloc_array(m->d->world, sizeof(*m->d->load));
	if (!m->d->load)
		return -ENOMEM;
	r = collect(m, ranks);
	if (r < 0)
		return r;
	sum_up(m);
	r = cut(m);
	if (r == 0)
		r = make_units(m);
	if (r == 0)
		r = choose_writers(m);
	return r < 0 ? r : improve(m);
}

bool dedup_memory(uint64_t n_shards, uint32_t world, uint64_t *ret)
{
	/* A group of two or more shards has two fragments, and one more for each whole window. */
	uint64_t parts = n_shards + (uint64_t)WINDOWS_MAX * world;
	uint64_t made = sizeof(struct dedup_part) + sizeof(struct dedup_unit) +
			sizeof(struct digest);
	uint64_t cutting = n_shards * (sizeof(struct entry) + sizeof(struct dedup_holder)) +
			   parts * sizeof(struct fragment);
	uint64_t making = n_shards * sizeof(struct dedup_holder) +
			  parts * (sizeof(struct fragment) + made);

	_Static_assert(2 * sizeof(uint32_t) <= sizeof(struct dedup_holder), "sorting entries fits");
	*ret = max_u64(cutting, making) + (uint64_t)world * 64 + SLACK;
	return n_shards <= DEDUP_SHARDS_MAX;
}

uint64_t dedup_bytes(const struct dedup *d)
{
	return sizeof(*d) + d->n_holders * sizeof(*d->holders) + d->n_parts * sizeof(*d->parts) +
	       d->cap_units * sizeof(*d->units) + d->world * sizeof(*d->load);
}

int dedup_make(const struct dedup_rank *ranks, uint32_t world, const atomic_bool *cancel,
	       struct dedup **ret, struct err *e)
{
	struct making m = {.d = alloc_zero(sizeof(*m.d)), .effort = {.cancel = cancel}};
	int r = -ENOMEM;

	assert(world > 0);
	if (m.d) {
		m.d->world = world;
		r = make(&m, ranks);
	}
	alloc_free(m.entries);
	alloc_free(m.fragments);
	alloc_free(m.names);
	if (r < 0) {
		dedup_free(m.d);
		return err_code(e, r, "look for replicated tensors of %u ranks", world);
	}
	*ret = m.d;
	return 0;
}

void dedup_free(struct dedup *d)
{
	if (!d)
		return;
	alloc_free(d->holders);
	alloc_free(d->parts);
	alloc_free(d->units);
	alloc_free(d->load);
	alloc_free(d);
}

/* ---- What files must hold ---- */

/* Bytes of shards and blobs in each leaf that the file must hold. */
struct counting {
	uint32_t *count;
	uint64_t n;
	uint32_t leaf;
};

static void count_bytes(struct counting *c, uint64_t at, uint64_t bytes, bool take)
{
	for (uint64_t end = at + bytes, next; at < end; at = next) {
		uint64_t i = at / c->leaf;
		uint32_t n;

		next = min_u64(end, (i + 1) * c->leaf);
		n = (uint32_t)(next - at);
		assert(i < c->n && (!take || c->count[i] >= n));
		c->count[i] += take ? 0 - n : n;
	}
}

static int count_image(const struct dedup_image *image, struct counting *c)
{
	const struct declaration *d = image->declaration;
	uint64_t blobs = round_up(d->image_bytes, IMAGE_ALIGN_LARGE);

	c->leaf = d->geometry.leaf;
	c->n = div_up(image->image_len, c->leaf);
	c->count = alloc_array(c->n, sizeof(*c->count));
	if (!c->count)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->n_shards; i++) {
		struct shard s;

		declaration_get(d, i, &s);
		count_bytes(c, s.image_offset, s.bytes, false);
	}
	if (image->image_len > blobs)
		count_bytes(c, blobs, image->image_len - blobs, false);
	return 0;
}

/* What others write does not count. */
static void leave_out(const struct dedup *d, const bool *apart, struct counting *c)
{
	for (size_t i = 0; i < d->n_parts; i++) {
		const struct dedup_part *p = &d->parts[i];
		uint32_t writer = d->units[p->unit].writer;

		if (apart && apart[i])
			continue;
		for (uint32_t k = 0; k < p->n_holders; k++) {
			const struct dedup_holder *h = &d->holders[p->first_holder + k];

			if (h->rank != writer || BUG(REPLICAS_NOT_WRITTEN))
				count_bytes(&c[h->rank], h->at + p->from, p->bytes, true);
		}
	}
}

static int make_bits(const struct counting *c, uint64_t **ret)
{
	uint64_t n = 0, *bits = leaves_new(c->n);

	if (!bits)
		return -ENOMEM;
	for (uint64_t i = 0; i < c->n; i++) {
		if (c->count[i] == 0)
			continue;
		leaves_add(bits, i);
		n++;
	}
	if (n == c->n) {
		alloc_free(bits);
		bits = NULL;
	}
	*ret = bits;
	return 0;
}

int dedup_present(const struct dedup *d, const struct dedup_image *images, const bool *apart,
		  uint64_t **ret)
{
	struct counting *c CLEANUP_FREE = alloc_array(d->world, sizeof(*c));
	int r = c ? 0 : -ENOMEM;

	memset(ret, 0, d->world * sizeof(*ret));
	for (uint32_t i = 0; r == 0 && i < d->world; i++)
		r = count_image(&images[i], &c[i]);
	if (r == 0)
		leave_out(d, apart, c);
	for (uint32_t i = 0; r == 0 && i < d->world; i++)
		r = make_bits(&c[i], &ret[i]);
	for (uint32_t i = 0; i < d->world; i++) {
		if (c)
			alloc_free(c[i].count);
		if (r < 0) {
			alloc_free(ret[i]);
			ret[i] = NULL;
		}
	}
	return r;
}
