/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_planning.c - what a load reads from where.
 *
 * Files are opened under a shared lock, their footers checked against COMMIT and the tables against
 * the root (I2); then the read planner is run and the load plan encoded, which the process gets.
 *
 * What other ranks want decides what is extra, where all have declared, and what is shared.
 *
 * A read wants what its message says instead of what the session declared, and blobs of any ranks;
 * a look wants only what the tables say.
 *
 * Files that other ranks of the node want too are read through the page cache (sharing.c), the
 * others by O_DIRECT.
 *
 * What fails here is in the work's status: a file that cannot be opened or does not say what it
 * should is a bad copy, and load_giving.c deals with it; a message that is no wish is CKPT_EPROTO.
 *
 * Thread: a PLAN worker. Until it returns the loop does not access the load, and what the load
 * points to stays: slots and files by the checkpoint's readers, declarations by references.
 */
#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/load_priv.h"
#include "storage/holes.h"

#define WANTS_BYTES_MAX (2ull * DECLARATION_BYTES_MAX) /* as RECEIVER_BYTES_MAX */

static int open_sources(struct load *l)
{
	int r = 0;

	for (uint32_t i = 0; i < l->n_sources && r == 0; i++) {
		struct source *s = &l->sources[i];

		if (work_cancelled(&l->work))
			return err_code(&l->err, -ECANCELED, "plan the load of step %llu",
					(unsigned long long)l->step);
		if (s->kind == LOAD_MEMORY) {
			r = rank_table_open(s->table_bytes, s->table_len, &s->table, &l->err);
			continue;
		}
		r = shard_open(l->store, &l->checkpoint_id, &s->footer, &s->reader, &l->err);
		l->bad_copy = shard_is_bad(r);
		if (r == 0) {
			s->open = true;
			s->table = s->reader.table;
		} else {
			l->bad_rank = s->rank;
		}
	}
	return r;
}

/*
 * What cannot be opened again is read by O_DIRECT: that several ranks read it is no error. A file
 * that lacks leaves goes with files of which all ranks want parts.
 */
static void share_files(struct load *l)
{
	if (l->world == 1 || l->no_cache)
		return; /* with one rank, whoever wants anything is this one */
	for (uint32_t i = 0; i < l->n_order; i++) {
		struct source *s = &l->sources[l->order[i]];

		if (s->kind != LOAD_FILE ||
		    (l->as_stored && s->rank == l->rank && !s->reader.present))
			continue;
		if (shard_open_cached(&s->reader, &l->checkpoint_id, NULL) == 0)
			l->cached = true;
	}
}

/*
 * A rank that loads what the rank of its number saved takes that one's own, from memory or file,
 * whatever the others want: ranks that declare the same shard may have had different bytes. Else
 * the same copy serves all.
 */
static uint32_t cost_of(const struct load *l, const struct source *s)
{
	bool file = s->kind == LOAD_FILE;

	if (l->own_first && s->rank == l->rank)
		return file;
	return file ? 10 : 2;
}

static bool wants_own(const struct load *l)
{
	const struct declaration *have;
	struct digest d;

	if (l->kind != LOAD_OWN || l->world != l->n_sources || l->rank >= l->n_sources)
		return false;
	have = &l->sources[l->rank].table.declaration;
	d = declaration_digest(have->bytes, have->len);
	return digest_equal(&d, &l->wanted->digest);
}

/* It ends with the session (load_drop_all()). */
static struct plan_limits limits_of(const struct load *l)
{
	return (struct plan_limits){PLAN_MEMORY_MAX, &l->work.cancel, l->plan_key};
}

/*
 * A stored tensor is extra when no rank wants it. Who wants what is known when all have declared;
 * until then nothing is said of it, for no load waits for other ranks.
 */
static int plan_own(struct load *l, const struct plan_source *in)
{
	uint32_t n = l->others.all ? l->others.world : 0;
	CLEANUP_FREE struct declaration *wanted = alloc_array(n, sizeof(*wanted));
	struct plan_peers peers = {wanted, n};
	struct plan_limits limits = limits_of(l);

	if (!wanted)
		return err_code(&l->err, -ENOMEM, "plan the load");
	for (uint32_t r = 0; r < n; r++)
		wanted[r] = l->others.declared[r]->view;
	return plan_make_within(&limits, in, l->n_sources, &l->wanted->view, l->lenient,
				l->others.all ? &peers : NULL, &l->plan, &l->err);
}

static void note_hole(void *arg, const char *sentence)
{
	struct load *l = arg;

	if (!l->bad_copy)
		err_set(&l->err, CKPT_ECORRUPT, "%s", sentence);
	l->bad_copy = true;
}

/* Something is wanted that is not stored: by what the caller wants, or because no file has what the
 * tables say that there is. */
static int blame(struct load *l, const struct plan_source *in, int r)
{
	struct plan_limits limits = limits_of(l);
	struct err e = {0};
	int holes = holes_in(&limits, in, l->n_sources, note_hole, l, &e);

	if (holes < 0)
		l->err = e;
	return holes < 0 ? holes : l->bad_copy ? CKPT_ECORRUPT : r;
}

static int make_plan(struct load *l)
{
	CLEANUP_FREE struct plan_source *in = alloc_array(l->n_sources, sizeof(*in));
	struct plan_limits limits = limits_of(l);
	int r;

	if (!in)
		return err_code(&l->err, -ENOMEM, "plan the load");
	for (uint32_t i = 0; i < l->n_sources; i++)
		in[i].declaration = l->sources[i].table.declaration;
	l->as_stored = l->kind == LOAD_OWN && wanted_as_stored(&l->others, in, l->n_sources);
	l->own_first = wants_own(l) && (l->as_stored || !BUG(OWN_IF_ALL_OWN));
	for (uint32_t i = 0; i < l->n_sources; i++) {
		in[i].cost = cost_of(l, &l->sources[i]);
		if (l->sources[i].open)
			in[i].present = l->sources[i].reader.present;
	}
	if (l->kind == LOAD_READ)
		r = plan_make_within(&limits, in, l->n_sources, &l->wants.declaration, l->lenient,
				     NULL, &l->plan, &l->err);
	else
		r = plan_own(l, in);
	return (r == 0 || r == CKPT_EMISMATCH) && l->plan.n_problems ? blame(l, in, r) : r;
}

static int name_blob(const struct blob_entry *b, uint32_t source, struct load_blob *ret)
{
	ret->name = alloc_zero(b->name_len + 1);
	if (!ret->name)
		return -ENOMEM;
	memcpy(ret->name, b->name, b->name_len);
	ret->source = source;
	ret->image_offset = b->image_offset;
	ret->bytes = b->bytes;
	return 0;
}

/* Blobs are a rank's own; a rank that the checkpoint does not have gets none. */
static int own_blobs(struct load *l, struct load_plan *p)
{
	struct source *own = NULL;
	uint32_t at = 0;

	for (uint32_t i = 0; i < l->n_sources; i++) {
		if (l->sources[i].rank == l->rank) {
			own = &l->sources[i];
			at = i;
		}
	}
	if (!own || own->table.n_blobs == 0)
		return 0;
	p->blobs = alloc_array(own->table.n_blobs, sizeof(*p->blobs));
	if (!p->blobs)
		return -ENOMEM;
	own->used = true;
	for (uint32_t i = 0; i < own->table.n_blobs; i++) {
		struct blob_entry b;
		int r = rank_table_blob(&own->table, i, &b);

		if (r < 0)
			return r;
		r = name_blob(&b, at, &p->blobs[i]);
		if (r < 0)
			return r;
		p->n_blobs = i + 1;
	}
	return 0;
}

/* A rank has up to TABLE_BLOBS_MAX, and one read may want many of them: by name, O(log n) each. */
struct named_blob {
	const char *name;
	uint32_t name_len, index;
};

static int by_name(const void *a, const void *b)
{
	const struct named_blob *x = a, *y = b;
	int r = memcmp(x->name, y->name, min_u64(x->name_len, y->name_len));

	return r ? r : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

static int sort_blobs(const struct rank_table *t, struct named_blob **ret)
{
	struct named_blob *all = alloc_array(t->n_blobs, sizeof(*all));

	if (!all)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->n_blobs; i++) {
		struct blob_entry b;
		int r = rank_table_blob(t, i, &b);

		if (r < 0) {
			alloc_free(all);
			return r;
		}
		all[i] = (struct named_blob){b.name, b.name_len, i};
	}
	qsort(all, t->n_blobs, sizeof(*all), by_name);
	*ret = all;
	return 0;
}

static int find_blob(struct load *l, const struct stored_blob *want, struct named_blob **sorted,
		     struct load_blob *ret)
{
	struct named_blob key = {want->name, want->name_len, 0}, *found = NULL;
	struct source *s = want->rank < l->n_sources ? &l->sources[want->rank] : NULL;
	struct blob_entry b;
	int r = 0;

	if (s && !sorted[want->rank])
		r = sort_blobs(&s->table, &sorted[want->rank]);
	if (r < 0)
		return r;
	if (s)
		found = bsearch(&key, sorted[want->rank], s->table.n_blobs, sizeof(key), by_name);
	if (!found)
		return err_set(&l->err, CKPT_EMISMATCH, "step %llu: rank %u has no blob '%.*s'",
			       (unsigned long long)l->step, want->rank,
			       (int)min_u64(want->name_len, 100), want->name);
	s->used = true;
	r = rank_table_blob(&s->table, found->index, &b);
	return r < 0 ? r : name_blob(&b, want->rank, ret);
}

static int wanted_blobs(struct load *l, struct load_plan *p)
{
	CLEANUP_FREE struct named_blob **sorted = alloc_array(l->n_sources, sizeof(*sorted));
	int r = 0;

	p->blobs = alloc_array(l->wants.n_blobs, sizeof(*p->blobs));
	if (!p->blobs || !sorted)
		return -ENOMEM;
	for (uint32_t i = 0; i < l->wants.n_blobs && r == 0; i++) {
		r = find_blob(l, &l->wants.blobs[i], sorted, &p->blobs[i]);
		p->n_blobs += r == 0;
	}
	for (uint32_t i = 0; i < l->n_sources; i++)
		alloc_free(sorted[i]);
	return r;
}

/* Only sources that are read travel; they are numbered anew. */
static int number_sources(struct load *l, struct load_plan *p)
{
	CLEANUP_FREE uint32_t *map = alloc_array(l->n_sources, sizeof(*map));

	l->order = alloc_array(l->n_sources, sizeof(*l->order));
	p->sources = alloc_array(l->n_sources, sizeof(*p->sources));
	if (!map || !l->order || !p->sources)
		return -ENOMEM;
	for (size_t i = 0; i < l->plan.n_pieces; i++)
		l->sources[l->plan.pieces[i].source].used = true;
	for (uint32_t i = 0; i < l->n_sources; i++) {
		struct source *s = &l->sources[i];

		if (!s->used)
			continue;
		map[i] = l->n_order;
		l->order[l->n_order] = i;
		p->sources[l->n_order++] = (struct load_source){
			.kind = s->kind,
			.rank = s->rank,
			.image_len = s->table.image_len,
			.geometry = s->table.geometry,
			.leaves = s->table.leaves,
			.places = s->kind == LOAD_FILE ? s->reader.places : NULL,
		};
	}
	p->n_sources = l->n_order;
	for (size_t i = 0; i < l->plan.n_pieces; i++)
		l->plan.pieces[i].source = map[l->plan.pieces[i].source];
	for (uint32_t i = 0; i < p->n_blobs; i++)
		p->blobs[i].source = map[p->blobs[i].source];
	return 0;
}

/* Before the sources: it is not they that are bad if this fails. */
static int open_wants(struct load *l)
{
	struct memory *m = l->memory;
	int r = 0;

	if (l->kind != LOAD_READ)
		return 0;
	if (l->wants_fd >= 0) {
		r = m->ops->fd_to_bytes(m, l->wants_fd, WANTS_BYTES_MAX, &l->wants_bytes,
					&l->wants_len);
		/* On the worker, not the loop: closing the last descriptor frees the pages. */
		m->ops->close_fd(m, l->wants_fd);
		l->wants_fd = -1;
	}
	if (r < 0)
		return err_set(&l->err, CKPT_EPROTO, "read: its memfd cannot be read");
	r = read_wants_decode(l->wants_bytes, l->wants_len, &l->wants, &l->err);
	if (r == CKPT_ECORRUPT) /* the message is, nothing that is stored */
		l->err.code = r = CKPT_EPROTO;
	return r;
}

static int into_memfd(struct load *l)
{
	int fd = l->memory->ops->bytes_to_fd(l->memory, l->encoded.buf, l->encoded.len);

	l->kept_bytes = l->encoded.len;
	if (fd < 0)
		return err_code(&l->err, fd, "hand over step %llu", (unsigned long long)l->step);
	l->plan_fd = fd;
	return 0;
}

/* What the tables say, and nothing more. */
static int encode_held(struct load *l)
{
	CLEANUP_FREE const struct rank_table **tables = alloc_array(l->n_sources, sizeof(*tables));

	if (!tables)
		return -ENOMEM;
	for (uint32_t i = 0; i < l->n_sources; i++)
		tables[i] = &l->sources[i].table;
	return stored_encode(tables, l->n_sources, &l->encoded);
}

/* Files that nothing is read from are not kept open, nor what they say in memory. */
static void close_unread(struct load *l)
{
	for (uint32_t i = 0; i < l->n_sources; i++) {
		struct source *s = &l->sources[i];

		if (s->open && s->used) {
			l->kept_files++;
			l->kept_twins += s->reader.cached != NULL;
			l->kept_bytes += s->footer.footer_len;
		} else if (s->open) {
			s->open = false;
			shard_close(&s->reader);
		}
	}
}

/* Frees all but the problems, also after an error: the plan and the wanted declaration may have
 * gigabytes, so the worker frees them. */
static void let_go_of_plan(struct load *l)
{
	alloc_free(l->plan.pieces);
	l->plan.pieces = NULL;
	l->plan.n_pieces = 0;
	writer_free(&l->encoded);
	read_wants_fini(&l->wants);
	alloc_free(l->wants_bytes);
	l->wants_bytes = NULL;
}

static int look(struct load *l)
{
	int r = encode_held(l);

	if (r < 0)
		return err_code(&l->err, r, "look at step %llu", (unsigned long long)l->step);
	return into_memfd(l);
}

static int plan_and_encode(struct load *l)
{
	struct load_plan p = { 0 };
	int r = 0;

	if (l->kind == LOAD_OWN || l->wants.tensors)
		r = make_plan(l);
	if (r < 0)
		return r;
	r = l->kind == LOAD_READ ? wanted_blobs(l, &p) : own_blobs(l, &p);
	if (r == 0)
		r = number_sources(l, &p);
	if (r == 0) {
		p.plan = l->plan;
		share_files(l);
		r = load_plan_encode(&p, &l->encoded);
	}
	for (uint32_t i = 0; i < p.n_blobs; i++)
		alloc_free(p.blobs[i].name);
	alloc_free(p.blobs);
	alloc_free(p.sources);
	if (r < 0 && r != CKPT_EMISMATCH)
		err_code(&l->err, r, "plan the load of step %llu", (unsigned long long)l->step);
	r = r < 0 ? r : into_memfd(l);
	if (r == 0)
		close_unread(l);
	return r;
}

void load_plan_run(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	int r = open_wants(l);

	if (r == 0)
		r = open_sources(l);
	if (r == 0)
		r = l->kind == LOAD_LOOK ? look(l) : plan_and_encode(l);
	w->status = r;
	let_go_of_plan(l);
}
