/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - the simulated index: entries as of the last settled batch, and a list of batches that
 * may yet be lost (unsynced) or may yet appear (their write had failed).
 */
#include <config.h>

#include "tests/sim/index.h"

#include <assert.h>
#include <errno.h>

#include "base/list.h"
#include "tests/sim/heap.h"
#include "tests/sim/life.h"

struct entry {
	void *key, *value;
	size_t key_len, value_len;
	bool deleted;
};

struct batch {
	struct list link;
	struct entry *entries;
	size_t n;
};

struct map {
	struct entry *entries; /* sorted by key */
	size_t n, cap;
};

struct index_store {
	struct index index; /* given to the one who has it open */
	struct world *world;
	struct index_options options;
	struct map now, stable;  /* what reads see, what a power loss leaves */
	struct list unsynced;    /* in `now`, not in `stable` */
	struct list ghosts;      /* failed, and will appear */
	bool open, fresh;
	struct life_hook hook;
};

static int compare(const void *a, size_t a_len, const void *b, size_t b_len)
{
	size_t n = a_len < b_len ? a_len : b_len;
	int c = n ? memcmp(a, b, n) : 0;

	return c ? c : (a_len > b_len) - (a_len < b_len);
}

/* First entry whose key is not below this one. */
static size_t lower_bound(const struct map *m, const void *key, size_t len)
{
	size_t lo = 0, hi = m->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (compare(m->entries[mid].key, m->entries[mid].key_len, key, len) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static bool is_key(const struct map *m, size_t i, const void *key, size_t len)
{
	return i < m->n && compare(m->entries[i].key, m->entries[i].key_len, key, len) == 0;
}

static void entry_fini(struct entry *e)
{
	free(e->key);
	free(e->value);
}

static struct entry entry_copy(const struct entry *e)
{
	return (struct entry){ sim_copy(e->key, e->key_len), sim_copy(e->value, e->value_len),
			       e->key_len, e->value_len, e->deleted };
}

static void map_apply(struct map *m, const struct entry *e)
{
	size_t i = lower_bound(m, e->key, e->key_len);
	bool there = is_key(m, i, e->key, e->key_len);

	if (there)
		entry_fini(&m->entries[i]);
	if (there && e->deleted) {
		memmove(&m->entries[i], &m->entries[i + 1],
			(m->n - i - 1) * sizeof(*m->entries));
		m->n--;
	}
	if (e->deleted)
		return;
	if (!there) {
		sim_grow(m->entries, m->n, m->cap);
		memmove(&m->entries[i + 1], &m->entries[i], (m->n - i) * sizeof(*m->entries));
		m->n++;
	}
	m->entries[i] = entry_copy(e);
}

static void map_clear(struct map *m)
{
	for (size_t i = 0; i < m->n; i++)
		entry_fini(&m->entries[i]);
	free(m->entries);
	*m = (struct map){ 0 };
}

static void batch_apply(struct map *m, const struct batch *b)
{
	for (size_t i = 0; i < b->n; i++)
		map_apply(m, &b->entries[i]);
}

static void batch_free(struct batch *b)
{
	for (size_t i = 0; i < b->n; i++)
		entry_fini(&b->entries[i]);
	free(b->entries);
	list_del(&b->link);
	free(b);
}

static void drop_batches(struct list *batches)
{
	while (!list_empty(batches))
		batch_free(list_first(batches, struct batch, link));
}

static struct index_store *store_of(struct index *ix)
{
	struct index_store *s = container_of(ix, struct index_store, index);

	assert(s->open);
	return s;
}

static struct batch *batch_new(const struct index_entry *entries, size_t n)
{
	struct batch *b = sim_zero(sizeof(*b));

	list_init(&b->link);
	b->entries = sim_zero(n * sizeof(*b->entries));
	b->n = n;
	for (size_t i = 0; i < n; i++) {
		struct entry e = { (void *)entries[i].key, (void *)entries[i].value,
				   entries[i].key_len,
				   entries[i].value ? entries[i].value_len : 0,
				   !entries[i].value };

		b->entries[i] = entry_copy(&e);
	}
	return b;
}

/* Everything so far is on disk. */
static void settle(struct index_store *s)
{
	while (!list_empty(&s->unsynced)) {
		struct batch *b = list_first(&s->unsynced, struct batch, link);

		batch_apply(&s->stable, b);
		batch_free(b);
	}
}

/* Batches that failed earlier come through after all. */
static void appear(struct index_store *s)
{
	while (!list_empty(&s->ghosts)) {
		struct batch *b = list_first(&s->ghosts, struct batch, link);

		batch_apply(&s->now, b);
		list_del(&b->link);
		list_add_tail(&s->unsynced, &b->link);
	}
}

static int sim_write(struct index *ix, const struct index_entry *entries, size_t n, bool sync)
{
	struct index_store *s = store_of(ix);
	struct batch *b;

	world_op(s->world, "index write", s->options.op_ns_max);
	b = batch_new(entries, n);
	if (world_one_in(s->world, s->options.write_fails)) {
		if (world_one_in(s->world, 2))
			list_add_tail(&s->ghosts, &b->link);
		else
			batch_free(b);
		world_note(s->world, "index write failed", n, 0, 0);
		return -EIO;
	}
	if (world_one_in(s->world, 2))
		appear(s);
	batch_apply(&s->now, b);
	list_add_tail(&s->unsynced, &b->link);
	if (sync)
		settle(s);
	world_note(s->world, "index written", n, s->now.n, sync);
	return 0;
}

static int sim_get(struct index *ix, const void *key, size_t key_len, index_fn *fn, void *arg)
{
	struct index_store *s = store_of(ix);
	struct entry copy;
	size_t i;
	int r;

	world_op(s->world, "index get", s->options.op_ns_max);
	if (world_one_in(s->world, s->options.read_fails))
		return -EIO;
	i = lower_bound(&s->now, key, key_len);
	if (!is_key(&s->now, i, key, key_len))
		return CKPT_ENOTFOUND;
	copy = entry_copy(&s->now.entries[i]);
	r = fn(arg, copy.key, copy.key_len, copy.value, copy.value_len);
	entry_fini(&copy);
	return r;
}

static int sim_scan(struct index *ix, const void *prefix, size_t prefix_len, const void *from,
		    size_t from_len, index_fn *fn, void *arg)
{
	struct index_store *s = store_of(ix);
	struct map view = { 0 };
	int r = 0;

	world_op(s->world, "index scan", s->options.op_ns_max);
	if (world_one_in(s->world, s->options.read_fails))
		return -EIO;
	if (compare(from, from_len, prefix, prefix_len) < 0) {
		from = prefix;
		from_len = prefix_len;
	}
	/* A view as of now: fn may write. */
	for (size_t i = lower_bound(&s->now, from, from_len); i < s->now.n; i++) {
		const struct entry *e = &s->now.entries[i];

		if (e->key_len < prefix_len || memcmp(e->key, prefix, prefix_len) != 0)
			break;
		sim_grow(view.entries, view.n, view.cap);
		view.entries[view.n++] = entry_copy(e);
	}
	for (size_t i = 0; i < view.n && r == 0; i++)
		r = fn(arg, view.entries[i].key, view.entries[i].key_len, view.entries[i].value,
		       view.entries[i].value_len);
	map_clear(&view);
	return r;
}

static void sim_close(struct index *ix)
{
	struct index_store *s = store_of(ix);

	s->open = false;
	list_del(&s->hook.link);
}

static const struct index_ops sim_ops = {
	.write = sim_write,
	.get = sim_get,
	.scan = sim_scan,
	.close = sim_close,
};

static void owner_ended(struct life_hook *h)
{
	container_of(h, struct index_store, hook)->open = false;
}

struct index_store *index_store_new(struct world *w, const struct index_options *o)
{
	struct index_store *s = sim_zero(sizeof(*s));

	s->index.ops = &sim_ops;
	s->world = w;
	s->options = *o;
	s->fresh = true;
	list_init(&s->unsynced);
	list_init(&s->ghosts);
	list_init(&s->hook.link);
	s->hook.ended = owner_ended;
	return s;
}

void index_store_free(struct index_store *s)
{
	if (!s)
		return;
	assert(!s->open);
	drop_batches(&s->unsynced);
	drop_batches(&s->ghosts);
	map_clear(&s->now);
	map_clear(&s->stable);
	free(s);
}

struct index_options *index_store_options(struct index_store *s)
{
	return &s->options;
}

size_t index_store_entries(const struct index_store *s)
{
	return s->now.n;
}

void index_store_lose(struct index_store *s)
{
	assert(!s->open);
	drop_batches(&s->unsynced);
	drop_batches(&s->ghosts);
	map_clear(&s->now);
	map_clear(&s->stable);
	s->fresh = true;
}

void index_store_power_loss(struct index_store *s)
{
	assert(!s->open);
	while (!list_empty(&s->unsynced) && !world_one_in(s->world, 3)) {
		struct batch *b = list_first(&s->unsynced, struct batch, link);

		batch_apply(&s->stable, b);
		batch_free(b);
	}
	drop_batches(&s->unsynced);
	drop_batches(&s->ghosts);
	map_clear(&s->now);
	for (size_t i = 0; i < s->stable.n; i++)
		map_apply(&s->now, &s->stable.entries[i]);
}

int index_sim_open(struct index_store *s, struct index **ret, bool *ret_fresh, struct err *e)
{
	assert(!s->open);
	world_op(s->world, "index open", s->options.op_ns_max);
	if (world_one_in(s->world, s->options.open_fails))
		return err_code(e, -EIO, "open the simulated index");
	if (world_one_in(s->world, s->options.lost_at_open))
		index_store_lose(s);
	appear(s);
	s->open = true;
	*ret = &s->index;
	*ret_fresh = s->fresh;
	s->fresh = false;
	world_note(s->world, "index opened", s->now.n, *ret_fresh, 0);
	if (s->world->current)
		life_on_end(s->world->current, &s->hook);
	return 0;
}
