/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paths.c - the delay matrix: usual times, heat of rows, columns and cells, and who explains it.
 *
 * Invariants:
 * (1) heat.found only while a finding was told and its end was not;
 * (2) a side or cell is told only when it was hot in every judgement for PATH_HOLD_NS;
 * (3) the usual time of a size moves by at most 5 % for PATH_CLASS_RING transfers: a fault of few
 *     does not become usual soon, a change of the whole fabric does.
 */
#include <config.h>

#include "detect/paths.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "detect/robust.h"

#define LOG_HOT  0.405465f /* log(PATH_HOT) */
#define MOVE_MAX 0.05f     /* (3) */
#define CELL_MIN 5         /* samples before a cell says anything alone */
#define SIDE_MIN 4         /* ... a side */
#define CROWD    8         /* one side in so many being hot is the fabric */
#define HOT_MIN  2         /* ... but so many are never too many: both sides of one node */

void paths_init(struct paths *p, uint32_t nodes_max)
{
	*p = (struct paths){.nodes_max = nodes_max};
}

void paths_fini(struct paths *p)
{
	keys_fini(&p->index);
	alloc_free(p->cells);
	alloc_free(p->hot);
	*p = (struct paths){0};
}

size_t paths_bytes(const struct paths *p)
{
	return p->cap_cells * sizeof(*p->cells) + p->index.cap * sizeof(struct key_place) +
	       2 * (size_t)p->cap_nodes * sizeof(*p->hot);
}

/* ---- What is usual ---- */

/* Log of time over usual time; false: nothing is usual yet. */
static bool normalise(struct paths *p, uint64_t bytes, uint64_t ns, float *ret)
{
	unsigned class = 63u - (unsigned)__builtin_clzll(bytes | 1);
	struct path_class *c;
	float v, median, values[PATH_CLASS_RING];

	c = &p->classes[class < PATH_CLASSES ? class : PATH_CLASSES - 1];
	v = (float)(log((double)ns) - log((double)bytes / (double)(UINT64_C(1) << class)));
	c->ring[c->n++ % PATH_CLASS_RING] = v;
	if (c->n % PATH_CLASS_RING == 0 || (!c->known && c->n >= PATH_CLASS_RING / 2)) {
		size_t n = c->n < PATH_CLASS_RING ? c->n : PATH_CLASS_RING;

		memcpy(values, c->ring, n * sizeof(*values));
		median = median_of(values, n);
		if (c->known)
			median = c->usual + fmaxf(-MOVE_MAX, fminf(median - c->usual, MOVE_MAX));
		c->usual = median;
		c->known = c->n >= PATH_CLASS_RING / 2;
	}
	*ret = v - c->usual;
	return c->known;
}

/* ---- Adding ---- */

static void heat_add(struct path_heat *h, float v, uint64_t now_ns)
{
	if (h->n && now_ns - h->last_ns > PATH_STALE_NS)
		*h = (struct path_heat){.found = h->found, .hot_ns = h->hot_ns};
	h->recent[h->n++ % PATH_RECENT] = v;
	h->last_ns = now_ns;
}

static void side_add(struct path_side *s, uint32_t peer, float v, uint64_t now_ns)
{
	heat_add(&s->heat, v, now_ns);
	s->peers[(s->heat.n - 1) % PATH_RECENT] = peer;
}

static bool is_stale(const struct path_heat *h, uint64_t now_ns)
{
	return now_ns - h->last_ns > PATH_STALE_NS;
}

/* Cells that nobody measures any more give their places to the last ones. */
static void forget_stale(struct paths *p, uint64_t now_ns)
{
	for (uint32_t i = 0; i < p->n_cells;) {
		struct path_cell *c = &p->cells[i], *last = &p->cells[p->n_cells - 1];

		if (!is_stale(&c->heat, now_ns) || c->heat.found) {
			i++;
			continue;
		}
		keys_remove(&p->index, key_pair(c->from, c->to));
		if (c != last) {
			*c = *last;
			keys_set(&p->index, key_pair(c->from, c->to), i);
		}
		p->n_cells--;
	}
}

static int grow(struct paths *p, uint64_t now_ns)
{
	uint32_t cap = p->cap_cells ? 2 * p->cap_cells : 64;
	struct path_cell *cells;

	if (p->n_cells < p->cap_cells)
		return 0;
	forget_stale(p, now_ns);
	if (4 * p->n_cells < 3 * p->cap_cells)
		return 0;
	if (cap > PATH_CELLS_MAX)
		return p->n_cells < p->cap_cells ? 0 : -ENOMEM;
	cells = alloc_resize(p->cells, cap * sizeof(*cells));
	if (!cells)
		return p->n_cells < p->cap_cells ? 0 : -ENOMEM;
	p->cells = cells;
	p->cap_cells = cap;
	return 0;
}

static struct path_cell *cell_of(struct paths *p, uint32_t from, uint32_t to, uint64_t now_ns)
{
	uint32_t i = keys_find(&p->index, key_pair(from, to));

	if (i != KEY_NONE)
		return &p->cells[i];
	if (grow(p, now_ns) < 0 || keys_add(&p->index, key_pair(from, to), p->n_cells) < 0)
		return NULL;
	p->cells[p->n_cells] = (struct path_cell){.from = from, .to = to};
	return &p->cells[p->n_cells++];
}

/* Both sides of all nodes below n may be hot. */
static int room_for(struct paths *p, uint32_t n)
{
	uint32_t cap = p->cap_nodes ? p->cap_nodes : 16;
	void *hot;

	while (cap < n)
		cap *= 2;
	if (cap > p->cap_nodes) {
		hot = alloc_resize(p->hot, 2 * (size_t)cap * sizeof(*p->hot));
		if (!hot)
			return -ENOMEM;
		p->hot = hot;
		p->cap_nodes = cap;
	}
	if (n > p->n_nodes)
		p->n_nodes = n;
	return 0;
}

int paths_add(struct paths *p, struct path_node *from_node, struct path_node *to_node,
	      uint32_t from, uint32_t to, uint64_t bytes, uint64_t ns, uint64_t now_ns)
{
	struct path_cell *c;
	float v;

	if (!bytes || !ns || from == to || from >= p->nodes_max || to >= p->nodes_max ||
	    !normalise(p, bytes, ns, &v))
		return 0;
	if (room_for(p, (from > to ? from : to) + 1) < 0) {
		p->dropped++;
		return -ENOMEM;
	}
	side_add(&from_node->side[PATH_SENDS], to, v, now_ns);
	side_add(&to_node->side[PATH_RECEIVES], from, v, now_ns);
	c = cell_of(p, from, to, now_ns);
	if (!c) {
		p->dropped++;
		return -ENOMEM;
	}
	heat_add(&c->heat, v, now_ns);
	return 0;
}

/* ---- Judging ---- */

struct judging {
	struct paths *p;
	struct path_node *const *nodes;
	uint64_t now_ns;
	path_fn *on;
	void *arg;
	uint32_t n_hot, n_sides; /* hot ones in p->hot */
};

static unsigned recent_of(const struct path_heat *h)
{
	return (unsigned)min_u64(h->n, PATH_RECENT);
}

static struct path_side *side_of(const struct judging *j, uint32_t which)
{
	return &j->nodes[which >> 1]->side[which & 1];
}

/* How many different peers see this side hot, where no peer's own fault explains it; 0: not so
 * many samples of it are hot. */
static unsigned hot_peers(const struct judging *j, const struct path_side *s, unsigned opposite)
{
	unsigned n = recent_of(&s->heat), samples = 0, hot = 0, peers = 0;

	for (unsigned i = 0; i < n; i++) {
		const struct path_node *peer = j->nodes[s->peers[i]];
		bool new = true;

		if (peer && peer->side[opposite].explained)
			continue;
		samples++;
		if (s->heat.recent[i] < LOG_HOT)
			continue;
		hot++;
		for (unsigned k = 0; k < i; k++)
			new &= s->peers[k] != s->peers[i] || s->heat.recent[k] < LOG_HOT;
		peers += new;
	}
	return samples >= SIDE_MIN && hot >= PATH_SHARE * samples ? peers : 0;
}

static void find_hot_sides(struct judging *j)
{
	for (uint32_t i = 0; i < 2 * j->p->n_nodes; i++) {
		struct path_side *s;

		if (!j->nodes[i >> 1])
			continue;
		s = side_of(j, i);
		s->explained = false;
		if (s->heat.n && is_stale(&s->heat, j->now_ns))
			s->heat.n = 0;
		if (!s->heat.n && !s->heat.found)
			continue;
		j->n_sides++;
		if (s->heat.since_ns || s->heat.found ||
		    s->heat.recent[(s->heat.n - 1) % PATH_RECENT] >= LOG_HOT)
			j->p->hot[j->n_hot++] = i;
	}
}

static void explain(struct judging *j)
{
	for (;;) {
		unsigned most = 1; /* one peer alone: a cell */
		struct path_side *best = NULL;

		for (uint32_t i = 0; i < j->n_hot; i++) {
			struct path_side *s = side_of(j, j->p->hot[i]);
			unsigned peers = s->explained ? 0 : hot_peers(j, s, !(j->p->hot[i] & 1));

			if (peers > most) {
				most = peers;
				best = s;
			}
		}
		if (!best)
			return;
		best->explained = true;
	}
}

/* The median of what is recent, as a factor. */
static double times_of(const struct path_heat *h)
{
	float values[PATH_RECENT];
	unsigned n = recent_of(h);

	memcpy(values, h->recent, sizeof(values));
	return n ? exp(median_of(values, n)) : 1;
}

static void tell(const struct judging *j, struct path_heat *h, struct path_finding f)
{
	h->found = !f.over;
	f.times = times_of(h);
	f.since_ns = h->since_ns;
	j->on(j->arg, &f);
}

static void settle(const struct judging *j, struct path_heat *h, bool hot, bool crowd,
		   struct path_finding f)
{
	if (hot) {
		h->hot_ns = j->now_ns;
		if (!h->since_ns) {
			h->since_ns = j->now_ns;
			h->n_since = h->n;
		}
		if (!crowd && j->now_ns - h->since_ns >= PATH_HOLD_NS &&
		    h->n - h->n_since >= PATH_SAMPLES)
			tell(j, h, f);
		return;
	}
	h->since_ns = 0;
	if (h->found && j->now_ns - h->hot_ns >= PATH_WELL_NS) {
		f.over = true;
		tell(j, h, f);
	}
}

static bool cell_is_hot(const struct judging *j, const struct path_cell *c)
{
	unsigned n = recent_of(&c->heat), hot = 0;

	if (n < CELL_MIN || is_stale(&c->heat, j->now_ns) || !j->nodes[c->from] ||
	    !j->nodes[c->to] || j->nodes[c->from]->side[PATH_SENDS].explained ||
	    j->nodes[c->to]->side[PATH_RECEIVES].explained)
		return false;
	for (unsigned i = 0; i < n; i++)
		hot += c->heat.recent[i] >= LOG_HOT;
	return hot >= PATH_SHARE * n;
}

/* Whether so much is hot that it is the fabric; or was, a moment ago. */
static bool is_crowd(const struct judging *j)
{
	uint32_t sides = 0, cells = 0, known = 0;
	struct paths *p = j->p;

	for (uint32_t i = 0; i < j->n_hot; i++)
		sides += side_of(j, p->hot[i])->explained;
	for (uint32_t i = 0; i < p->n_cells; i++) {
		cells += cell_is_hot(j, &p->cells[i]);
		known += recent_of(&p->cells[i].heat) >= CELL_MIN;
	}
	if ((sides > HOT_MIN && sides * CROWD > j->n_sides) ||
	    (cells > HOT_MIN && cells * CROWD > known))
		p->crowd_ns = j->now_ns;
	return p->crowd_ns && j->now_ns - p->crowd_ns < PATH_WELL_NS;
}

static void settle_sides(const struct judging *j, bool crowd)
{
	for (uint32_t i = 0; i < j->n_hot; i++) {
		uint32_t node = j->p->hot[i] >> 1, side = j->p->hot[i] & 1;
		struct path_side *s = side_of(j, j->p->hot[i]);
		struct path_finding f = {.fault = PATH_SENDER, .from = node, .to = UINT32_MAX};

		if (side == PATH_RECEIVES)
			f = (struct path_finding){
				.fault = PATH_RECEIVER, .from = UINT32_MAX, .to = node};
		f.n_peers = hot_peers(j, s, !side);
		s->explained = f.n_peers > 1;
		settle(j, &s->heat, s->explained, crowd, f);
	}
}

void paths_judge(struct paths *p, struct path_node *const *nodes, uint64_t now_ns, path_fn *on,
		 void *arg)
{
	struct judging j = {p, nodes, now_ns, on, arg, 0, 0};
	bool crowd;

	find_hot_sides(&j);
	explain(&j);
	crowd = is_crowd(&j);
	settle_sides(&j, crowd);
	for (uint32_t i = 0; i < p->n_cells; i++) {
		struct path_cell *c = &p->cells[i];
		struct path_finding f = {PATH_PAIR, c->from, c->to, false, 0, 1, 0};

		settle(&j, &c->heat, cell_is_hot(&j, c), crowd, f);
	}
}
