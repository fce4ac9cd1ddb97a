/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case_meta.c - the read planner and look-ups where a million shards are stored (meta_model.h).
 *
 *   meta.plan.1m    ms to plan a load of 1,000 wanted boxes, with what is stored open: the tables
 *                   read, every digest and field of them checked, as ckptd has them when it plans.
 *                   Of the kinds of loads (meta_model.h) the slowest; each is in the note
 *   meta.plan.memory  bytes that the planner has allocated at most, its result included; beside
 *                   the bound that model/plan.h gives
 *   meta.lookup.1m  us to find one tensor's shards on all ranks in the index, p50, warm
 *   meta.lookup.file  us to find it in the declaration of one rank, read from its file
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "bench/meta_model.h"
#include "model/plan.h"
#include "storage/catalog.h"
#include "storage/index_rocksdb.h"

#define RUNS             15
#define TARGET_PLAN_MS   50
#define TARGET_LOOKUP_US 50

/* Who else loads: nobody, and what is stored and not wanted is looked for; as many ranks, that
 * want what is stored as it is, or each other layers of it; it is not known, and nothing is. */
enum others { OTHERS_NONE, OTHERS_ALIKE, OTHERS_DEALT, OTHERS_UNKNOWN };

/* A load: what of, what is wanted, and by whom. */
struct load_kind {
	const char *name;
	bool replicated;
	enum meta_wanted wanted;
	enum others others;
};
static const struct load_kind kinds[] = {
	{"tensors", false, META_TENSORS, OTHERS_ALIKE},
	{"one", false, META_ONE, OTHERS_ALIKE},
	{"across", false, META_ACROSS, OTHERS_ALIKE},
	{"flat", false, META_FLAT, OTHERS_ALIKE},
	{"whole", false, META_WHOLE, OTHERS_UNKNOWN},
	{"alone", false, META_TENSORS, OTHERS_NONE},
	{"dealt", false, META_TENSORS, OTHERS_DEALT},
	{"replicas", true, META_REPLICA, OTHERS_ALIKE},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct meta {
	struct bench *bench;
	void *bytes[META_RANKS], *dealt_bytes[META_RANKS];
	struct plan_source sources[META_RANKS];
	struct declaration alike[META_RANKS], dealt[META_RANKS];
	uint64_t stored_bytes;
	struct series open;
};

static void forget(struct meta *m)
{
	for (uint32_t i = 0; i < META_RANKS; i++) {
		alloc_free(m->bytes[i]);
		alloc_free(m->dealt_bytes[i]);
		m->bytes[i] = m->dealt_bytes[i] = NULL;
	}
	m->stored_bytes = 0;
}

static int build(struct meta *m, bool replicated, struct err *e)
{
	uint64_t start;
	size_t len[META_RANKS];
	int r = 0;

	for (uint32_t i = 0; i < META_RANKS && r == 0; i++) {
		r = meta_stored(m->bench->shards, replicated, i, &m->bytes[i], &len[i], e);
		m->stored_bytes += r == 0 ? len[i] : 0;
	}
	start = now_ns();
	for (uint32_t i = 0; i < META_RANKS && r == 0; i++)
		r = declaration_open(m->bytes[i], len[i], &m->sources[i].declaration, e);
	series_add(&m->open, (double)(now_ns() - start) / 1e6, 1);
	for (uint32_t i = 0; i < META_RANKS && r == 0; i++) {
		m->alike[i] = m->sources[i].declaration;
		r = meta_dealt(m->bench->shards, i, &m->dealt_bytes[i], &len[i], e);
		if (r == 0)
			r = declaration_open(m->dealt_bytes[i], len[i], &m->dealt[i], e);
	}
	return r;
}

/* ---- Planning ---- */

/* What this thread holds of alloc.h's memory, and the most it did. */
struct counter {
	struct alloc_watch watch;
	size_t now, most;
};

static void taken(struct alloc_watch *w, void *p)
{
	struct counter *c = (struct counter *)w;

	c->now += malloc_usable_size(p);
	if (c->now > c->most)
		c->most = c->now;
}

static void given(struct alloc_watch *w, void *p)
{
	((struct counter *)w)->now -= malloc_usable_size(p);
}

struct planned {
	struct series ms;
	size_t pieces, memory;
	uint64_t bound;
	uint32_t boxes;
};

static int plan_once(struct meta *m, const struct load_kind *kind, const struct declaration *want,
		     struct plan *plan, struct err *e)
{
	const struct plan_peers peers[] = {
		[OTHERS_NONE] = *PLAN_ALONE,
		[OTHERS_ALIKE] = {m->alike, META_RANKS},
		[OTHERS_DEALT] = {m->dealt, META_RANKS},
	};

	return plan_make(m->sources, META_RANKS, want, true,
			 kind->others == OTHERS_UNKNOWN ? NULL : &peers[kind->others], plan, e);
}

static int measure_plan(struct meta *m, const struct load_kind *kind, struct planned *p,
			struct err *e)
{
	struct counter counter = {.watch = {taken, given}};
	struct declaration want;
	struct plan plan;
	void *bytes CLEANUP_FREE = NULL;
	size_t len;
	int r = meta_wanted(m->bench->shards, kind->wanted, &bytes, &len, e);

	if (r == 0)
		r = declaration_open(bytes, len, &want, e);
	for (uint32_t i = 0; i < META_RANKS; i++) /* as ckptd has it: cost_of() */
		m->sources[i].cost = i ? 10 : 9;
	for (int i = 0; i < RUNS && r == 0; i++) {
		uint64_t start = now_ns();

		r = plan_once(m, kind, &want, &plan, e);
		series_add(&p->ms, (double)(now_ns() - start) / 1e6, TARGET_PLAN_MS);
		plan_fini(&plan);
	}
	if (r < 0)
		return r;
	p->boxes = want.n_shards;
	alloc_set_watch(&counter.watch);
	r = plan_once(m, kind, &want, &plan, e);
	alloc_set_watch(NULL);
	p->pieces = plan.n_pieces;
	p->memory = counter.most;
	p->bound = plan.memory;
	plan_fini(&plan);
	return r;
}

/* The slowest kind. */
static void report_plans(struct meta *m, struct planned *planned)
{
	struct figure f = {.name = "meta.plan.1m",
			   .unit = "ms",
			   .faults = -1,
			   .limit_name = "the target",
			   .target_of = TARGET_VALUE,
			   .target = TARGET_PLAN_MS};
	double opened = median(m->open.value, m->open.n), most = 0;
	size_t slowest = 0, used = 0;

	for (size_t k = 0; k < KINDS; k++) {
		double ms = median(planned[k].ms.value, RUNS);

		if (ms > most) {
			most = ms;
			slowest = k;
		}
		used += (size_t)snprintf(f.note + used, sizeof(f.note) - used, "%s %.1f, ",
					 kinds[k].name, ms);
	}
	snprintf(f.note + used, sizeof(f.note) - used,
		 "ms; before that %u tables opened and "
		 "checked in %.0f ms",
		 META_RANKS, opened);
	figure_of(&f, &planned[slowest].ms);
	report(m->bench, &f);
}

static void report_memory(struct meta *m, const struct planned *planned)
{
	struct figure f = {.name = "meta.plan.memory",
			   .unit = "MiB",
			   .faults = -1,
			   .limit_name = "what the plan says that it took at most",
			   .target_of = TARGET_RATIO,
			   .target = 1};
	struct series s = {0};
	size_t most = 0;

	for (size_t k = 0; k < KINDS; k++) {
		series_add(&s, (double)planned[k].memory / MIB, (double)planned[k].bound / MIB);
		if (planned[k].memory > planned[most].memory)
			most = k;
	}
	figure_of(&f, &s);
	snprintf(f.note, sizeof(f.note), "the most: %.1f MiB for %zu pieces (%s)",
		 (double)planned[most].memory / MIB, planned[most].pieces, kinds[most].name);
	report(m->bench, &f);
}

static int measure_plans(struct meta *m, struct planned *planned, struct err *e)
{
	int r = 0;

	for (size_t k = 0; k < KINDS && r == 0; k++) {
		if (k == 0 || kinds[k].replicated != kinds[k - 1].replicated) {
			forget(m);
			r = build(m, kinds[k].replicated, e);
		}
		if (r == 0)
			r = measure_plan(m, &kinds[k], &planned[k], e);
	}
	return r;
}

static void plans(struct meta *m)
{
	static struct planned planned[KINDS];
	struct err e = {0};

	if (measure_plans(m, planned, &e) < 0) {
		cannot(m->bench, "meta.plan.1m", &e);
		return;
	}
	for (size_t k = 0; k < KINDS; k++)
		say(m->bench, "  %-10s %8.2f ms  %u boxes, %zu pieces, %.2f MiB", kinds[k].name,
		    median(planned[k].ms.value, RUNS), planned[k].boxes, planned[k].pieces,
		    (double)planned[k].memory / MIB);
	if (wanted(m->bench, "meta.plan.1m"))
		report_plans(m, planned);
	if (wanted(m->bench, "meta.plan.memory"))
		report_memory(m, planned);
}

/* ---- Looking up ---- */

struct looking {
	struct index *index;
	struct digest layout;
	struct declaration_lookup *lookup;
	int fd;
	uint64_t shards;
};

static int take_shard(void *arg, uint32_t rank, const struct shard *s)
{
	((struct looking *)arg)->shards += s->bytes > 0 && rank < META_RANKS;
	return 0;
}

static int take_one(void *arg, const struct shard *s)
{
	return take_shard(arg, 0, s);
}

static int read_file(void *arg, uint64_t offset, void *buf, size_t len)
{
	struct looking *l = arg;

	return pread(l->fd, buf, len, (off_t)offset) == (ssize_t)len ? 0 : -EIO;
}

/* Until what the index does behind a write (compaction) is over: it is measured at rest. */
static void settle(void)
{
	struct rusage before, after;
	long busy_ms = 100;

	for (int i = 0; i < 100 && busy_ms > 10; i++) {
		getrusage(RUSAGE_SELF, &before);
		pause_ms(200);
		getrusage(RUSAGE_SELF, &after);
		busy_ms = (after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1000 +
			  (after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1000;
	}
}

/* The index of the layout, and the declaration of rank 0 as a file. */
static int prepare(struct meta *m, struct looking *l, struct err *e)
{
	CLEANUP_FREE struct declaration *d = alloc_array(META_RANKS, sizeof(*d));
	CLEANUP_FREE struct digest *digests = alloc_array(META_RANKS, sizeof(*digests));
	const struct declaration *first = &m->sources[0].declaration;
	struct beneath in;
	char path[260];
	bool fresh;
	int r;

	if (!d || !digests)
		return err_code(e, -ENOMEM, "keep %u declarations", META_RANKS);
	for (uint32_t i = 0; i < META_RANKS; i++) {
		d[i] = m->sources[i].declaration;
		digests[i] = declaration_digest(d[i].bytes, d[i].len);
	}
	l->layout = layout_digest(digests, META_RANKS);
	snprintf(path, sizeof(path), "%s/index", m->bench->folder);
	r = beneath_open(m->bench->folder, &in, e);
	if (r < 0)
		return r;
	r = index_rocksdb_open(&in, path, &l->index, &fresh, e);
	beneath_close(&in);
	if (r == 0)
		r = catalog_put_layout(l->index, &l->layout, d, META_RANKS, NULL, e);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/declaration", m->bench->folder);
	l->fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (l->fd < 0 || write(l->fd, first->bytes, first->len) != (ssize_t)first->len)
		return err_code(e, -errno, "write '%s'", path);
	return declaration_lookup_open(read_file, l, first->len, &l->lookup, e);
}

/* One name, by the index or from the file: us. */
static int look_up(struct looking *l, bool in_index, const char *name, uint32_t len, double *ret,
		   struct err *e)
{
	uint64_t start = now_ns();
	int r;

	if (in_index)
		r = catalog_tensor(l->index, &l->layout, name, len, take_shard, l, e);
	else
		r = declaration_lookup(l->lookup, name, len, take_one, l);
	*ret = (double)(now_ns() - start) / 1e3;
	return r < 0 ? r : 0;
}

/* A tensor that is stored: of any rank, or of rank 0. */
static const char *any_name(struct meta *m, struct rng *rng, bool in_index, uint32_t *ret_len)
{
	const struct declaration *d = &m->sources[0].declaration;

	if (in_index)
		d = &m->sources[rng_below(rng, META_RANKS)].declaration;
	return declaration_name(d, (uint32_t)rng_below(rng, d->n_shards), ret_len);
}

/* The median of each round's look-ups; the first round warms up. */
static int measure_lookup(struct meta *m, struct looking *l, bool in_index, struct series *s,
			  struct err *e)
{
	struct rng_seeded rng;
	int r = 0;

	rng_seed(&rng, 1);
	for (int round = -1; round < RUNS && r == 0; round++) {
		double us[PAIRS_MAX];

		for (int i = 0; i < PAIRS_MAX && r == 0; i++) {
			uint32_t len;
			const char *name = any_name(m, &rng.rng, in_index, &len);

			r = look_up(l, in_index, name, len, &us[i], e);
		}
		if (round >= 0 && r == 0)
			series_add(s, median(us, PAIRS_MAX), TARGET_LOOKUP_US);
	}
	return r;
}

static void report_lookup(struct meta *m, struct looking *l, const char *name, bool in_index)
{
	struct figure f = {.name = name,
			   .unit = "us",
			   .faults = -1,
			   .limit_name = "the target",
			   .target_of = TARGET_VALUE,
			   .target = TARGET_LOOKUP_US};
	struct series s = {0};
	struct err e = {0};

	if (!wanted(m->bench, name))
		return;
	l->shards = 0;
	if (measure_lookup(m, l, in_index, &s, &e) < 0) {
		cannot(m->bench, name, &e);
		return;
	}
	figure_of(&f, &s);
	snprintf(f.note, sizeof(f.note),
		 "p50 of %d look-ups in each of %d rounds; %.1f shards each", PAIRS_MAX, RUNS,
		 (double)l->shards / PAIRS_MAX / (RUNS + 1));
	report(m->bench, &f);
}

static void lookups(struct meta *m)
{
	struct looking l = {.fd = -1};
	struct err e = {0};
	int r;

	forget(m);
	r = build(m, false, &e);
	if (r == 0)
		r = prepare(m, &l, &e);
	if (r < 0) {
		cannot(m->bench, "meta.lookup.1m", &e);
	} else {
		settle();
		report_lookup(m, &l, "meta.lookup.1m", true);
		report_lookup(m, &l, "meta.lookup.file", false);
	}
	declaration_lookup_free(l.lookup);
	if (l.index)
		l.index->ops->close(l.index);
	if (l.fd >= 0)
		close(l.fd);
}

void cases_meta(struct bench *b)
{
	static struct meta m;

	m.bench = b;
	if (wanted(b, "meta.plan.1m") || wanted(b, "meta.plan.memory"))
		plans(&m);
	if (wanted(b, "meta.lookup.1m") || wanted(b, "meta.lookup.file"))
		lookups(&m);
	forget(&m);
}
