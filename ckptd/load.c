/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - giving a checkpoint to a process.
 *
 *   WAITING   an epoch is being opened: "latest" means its base (I15)
 *   PLANNING  on a META worker: files opened under a shared lock, footers checked against COMMIT
 *             and tables against the root (I2), the read planner run
 *   GIVEN     plan and sources are with the process; checkpoint->readers keeps memory (I9), the
 *             locks keep files
 *   CHECKING  the process reported a leaf: it is read again here; a copy that fails is
 *             quarantined (I11)
 *   over      at LoadEnd, or with the connection
 *
 * A read wants what its message says instead of what the session declared, and blobs of any ranks;
 * a look wants only what the tables say, and ends with its answer.
 *
 * Per rank the source is memory when its slot is whole, else the file: one load may mix them. Files
 * that other ranks of the node want too are read through the page cache (sharing.c), the others by
 * O_DIRECT.
 */
#include <config.h>

#include "ckptd/load.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/admin.h"
#include "ckptd/indexing.h"
#include "ckptd/node_priv.h"
#include "ckptd/quota.h"
#include "ckptd/sharing.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "model/stored.h"
#include "storage/shard_reader.h"

#define PROBLEMS_IN_REPLY 32
#define FDS_PER_MESSAGE 60u
#define WANTS_BYTES_MAX   (2ull * DECLARATION_BYTES_MAX)

enum load_kind { LOAD_OWN, LOAD_READ, LOAD_LOOK };
enum load_state { LOAD_WAITING, LOAD_PLANNING, LOAD_GIVEN, LOAD_CHECKING, LOAD_CLOSING };

/* One rank's snapshot as a source. */
struct source {
	uint32_t rank;
	enum load_source_kind kind;
	struct slot *slot;           /* LOAD_MEMORY */
	const void *table_bytes;
	size_t table_len;
	struct rank_table table;
	const struct shard_footer *footer; /* LOAD_FILE */
	struct shard_reader reader;
	bool open, used;
};

struct load {
	struct list link;      /* in the session's loads */
	struct list waiting;   /* in job->loads, LOAD_WAITING */
	struct work work;
	uint64_t id, request;
	struct session *session; /* NULL once its connection ended */
	struct session *owner;   /* whose quota it counts for until it is freed */
	struct job *job;
	struct store *store;
	enum load_state state;
	enum load_kind kind;
	bool latest, lenient;
	uint64_t step, epoch;
	struct attempt_id attempt;
	bool any_attempt;
	uint32_t rank, world;
	struct declared *wanted; /* LOAD_OWN */
	void *wants_bytes;       /* LOAD_READ: what came, then decoded on the worker */
	uint64_t wants_len;
	int wants_fd; /* -1: none */
	struct read_wants wants;
	struct memory *memory;
	struct wanted_by others;
	bool as_stored; /* every rank wants what the rank of its number saved */
	bool own_first; /* this one does */
	bool no_cache;  /* of the checkpoint */
	bool cached;    /* some file is read through the page cache */
	struct checkpoint *checkpoint;
	struct checkpoint_id checkpoint_id;
	struct source *sources;
	uint32_t n_sources;
	struct plan plan;
	struct writer encoded;
	uint32_t *order;       /* sources in the order of the plan */
	uint32_t n_order;
	uint32_t check_source;
	uint64_t check_leaf;
	struct err err;
};

/* ---- On the worker: planning ---- */

static int open_sources(struct load *l)
{
	int r = 0;

	for (uint32_t i = 0; i < l->n_sources && r == 0; i++) {
		struct source *s = &l->sources[i];

		if (s->kind == LOAD_MEMORY) {
			r = rank_table_open(s->table_bytes, s->table_len, &s->table, &l->err);
			continue;
		}
		r = shard_open(l->store, &l->checkpoint_id, s->footer, &s->reader, &l->err);
		if (r == 0) {
			s->open = true;
			s->table = s->reader.table;
		}
	}
	return r;
}

/*
 * Tensors that only other ranks want are not extra, and who will want what is not known yet when
 * the first of several ranks loads. So each answers for what it saved itself, where the job has as
 * many ranks as then; one that is alone answers for everything.
 */
static bool is_for_others(const struct load *l, uint32_t rank)
{
	if (l->world == 1)
		return false;
	return l->world != l->n_sources || rank != l->rank;
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

static int make_plan(struct load *l)
{
	CLEANUP_FREE struct plan_source *in = alloc_array(l->n_sources, sizeof(*in));

	if (!in)
		return err_code(&l->err, -ENOMEM, "plan the load");
	for (uint32_t i = 0; i < l->n_sources; i++)
		in[i].declaration = l->sources[i].table.declaration;
	l->as_stored = l->kind == LOAD_OWN && wanted_as_stored(&l->others, in, l->n_sources);
	l->own_first = wants_own(l);
	for (uint32_t i = 0; i < l->n_sources; i++) {
		in[i].cost = cost_of(l, &l->sources[i]);
		in[i].others = is_for_others(l, l->sources[i].rank);
		if (l->sources[i].open)
			in[i].present = l->sources[i].reader.present;
	}
	if (l->kind == LOAD_READ)
		return plan_make(in, l->n_sources, &l->wants.declaration, l->lenient, false,
				 &l->plan, &l->err);
	return plan_make(in, l->n_sources, &l->wanted->view, l->lenient, true, &l->plan, &l->err);
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
	if (l->wants_fd >= 0)
		r = m->ops->fd_to_bytes(m, l->wants_fd, WANTS_BYTES_MAX, &l->wants_bytes,
					&l->wants_len);
	if (r < 0)
		return err_set(&l->err, CKPT_EPROTO, "read: its memfd cannot be read");
	r = read_wants_decode(l->wants_bytes, l->wants_len, &l->wants, &l->err);
	if (r == CKPT_ECORRUPT) /* the message is, nothing that is stored */
		l->err.code = r = CKPT_EPROTO;
	return r;
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

static void plan_run(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	struct load_plan p = { 0 };
	int r = open_wants(l);

	if (r == 0)
		r = open_sources(l);
	if (r == 0 && l->kind == LOAD_LOOK) {
		r = encode_held(l);
		w->status = r < 0 ? err_code(&l->err, r, "look at step %llu",
					     (unsigned long long)l->step)
				  : 0;
		return;
	}
	if (r == 0 && (l->kind == LOAD_OWN || l->wants.tensors))
		r = make_plan(l);
	if (r < 0) {
		w->status = r;
		return;
	}
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
	w->status = r < 0 ? r : 0;
}

/* ---- Ending ---- */

static void load_free(struct load *l)
{
	list_del(&l->link);
	list_del(&l->waiting);
	plan_fini(&l->plan);
	writer_free(&l->encoded);
	read_wants_fini(&l->wants);
	alloc_free(l->wants_bytes);
	if (l->wants_fd >= 0)
		l->memory->ops->close_fd(l->memory, l->wants_fd);
	wanted_by_fini(&l->others);
	alloc_free(l->order);
	alloc_free(l->sources);
	if (l->wanted)
		declared_unref(l->job, l->wanted);
	session_use(l->owner)->loads--;
	session_unref(l->owner);
	alloc_free(l);
}

static void close_run(struct work *w)
{
	struct load *l = container_of(w, struct load, work);

	for (uint32_t i = 0; i < l->n_sources; i++)
		if (l->sources[i].open)
			shard_close(&l->sources[i].reader);
	w->status = 0;
}

static void close_done(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	struct job *j = l->job;

	l->checkpoint->readers--;
	if (l->cached)
		sharing_end(l->checkpoint, l->kind == LOAD_OWN ? member_of_rank(j, l->rank) : NULL);
	load_free(l);
	job_poke(j);
}

/* Not while a worker has it. */
static void load_close(struct load *l)
{
	assert(l->state != LOAD_PLANNING && l->state != LOAD_CHECKING);
	l->session = NULL;
	list_del(&l->link);
	list_del(&l->waiting);
	if (!l->checkpoint) {
		load_free(l);
		return;
	}
	l->state = LOAD_CLOSING;
	l->work.run = close_run;
	l->work.done = close_done;
	work_submit(l->job->node->env.workers, WORK_META, &l->work);
}

void load_drop_all(struct session *s)
{
	struct load *l, *next;

	list_each_safe(l, next, session_loads(s), link) {
		bool busy = l->state == LOAD_PLANNING || l->state == LOAD_CHECKING;

		l->session = NULL;
		list_del(&l->link);
		if (!busy)
			load_close(l);
	}
}

void load_forget_all(struct session *s)
{
	struct load *l, *next;

	list_each_safe(l, next, session_loads(s), link) {
		close_run(&l->work);
		if (l->checkpoint)
			l->checkpoint->readers--;
		load_free(l);
	}
}

/* ---- Giving ---- */

static void give_error(struct load *l, int code, const char *text)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__LoadReply body = CKPT__LOAD_REPLY__INIT;
	char *problems[PROBLEMS_IN_REPLY];

	if (!l->session)
		return;
	reply.id = l->request;
	reply.code = code;
	reply.text = (char *)text;
	reply.body_case = CKPT__REPLY__BODY_LOAD;
	reply.load = &body;
	body.step = l->step;
	/* Nothing is there to load: the session is in the epoch, to save what it begins with. */
	if (l->latest && l->kind == LOAD_OWN && code == CKPT_ELOST)
		body.epoch = l->job->history.epoch.number;
	body.problems = problems;
	for (size_t i = 0; i < l->plan.n_problems && i < PROBLEMS_IN_REPLY; i++)
		problems[body.n_problems++] = l->plan.problems[i].text;
	session_reply(l->session, &reply, NULL, 0);
}

static int source_fd(struct load *l, uint32_t i)
{
	struct source *s = &l->sources[l->order[i]];
	struct memory *m = l->job->node->env.memory;

	if (s->kind == LOAD_MEMORY)
		return m->ops->export_fd(m, s->slot->region, false);
	if (s->reader.cached)
		return s->reader.cached->disk->ops->export_fd(s->reader.cached);
	return s->reader.file->disk->ops->export_fd(s->reader.file);
}

static void fill_reply(struct load *l, Ckpt__LoadReply *body, char **problems)
{
	body->load = l->id;
	body->step = l->step;
	body->epoch = l->epoch;
	body->attempt = (ProtobufCBinaryData){ 16, l->attempt.b };
	body->tier = CKPT_TIER_MEMORY;
	body->n_sources = l->n_order;
	for (uint32_t i = 0; i < l->n_order; i++)
		if (l->sources[l->order[i]].kind == LOAD_FILE)
			body->tier = CKPT_TIER_DISK;
	body->problems = problems;
	for (size_t i = 0; i < l->plan.n_problems && i < PROBLEMS_IN_REPLY; i++)
		problems[body->n_problems++] = l->plan.problems[i].text;
}

/* Messages of up to FDS_PER_MESSAGE descriptors: the plan, then the sources. */
static int give(struct load *l)
{
	struct memory *m = l->job->node->env.memory;
	char *problems[PROBLEMS_IN_REPLY];
	uint32_t next = 0;
	bool first = true;

	do {
		Ckpt__Reply reply = CKPT__REPLY__INIT;
		Ckpt__LoadReply body = CKPT__LOAD_REPLY__INIT;
		int fds[FDS_PER_MESSAGE + 1];
		size_t n = 0;
		int r = 0;

		if (first)
			r = m->ops->bytes_to_fd(m, l->encoded.buf, l->encoded.len);
		if (first && r >= 0)
			fds[n++] = r;
		while (r >= 0 && n < FDS_PER_MESSAGE && next < l->n_order) {
			r = source_fd(l, next);
			if (r >= 0) {
				fds[n++] = r;
				next++;
			}
		}
		if (r < 0) {
			for (size_t i = 0; i < n; i++)
				m->ops->close_fd(m, fds[i]);
			return r;
		}
		fill_reply(l, &body, problems);
		body.more = next < l->n_order;
		reply.id = l->request;
		reply.status = l->plan.n_problems ? CKPT_PARTIAL : 0;
		if (l->latest && epoch_fell_back(l->job, &body.fell_back_from))
			reply.status |= CKPT_FELL_BACK;
		reply.body_case = CKPT__REPLY__BODY_LOAD;
		reply.load = &body;
		session_reply(l->session, &reply, fds, n);
		first = false;
	} while (next < l->n_order);
	return 0;
}

static int give_look(struct load *l)
{
	struct memory *m = l->job->node->env.memory;
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__StoredReply body = CKPT__STORED_REPLY__INIT;
	Ckpt__CheckpointInfo info;
	int fd = m->ops->bytes_to_fd(m, l->encoded.buf, l->encoded.len);

	if (fd < 0)
		return fd;
	admin_fill_info(&info, l->checkpoint);
	body.info = &info;
	reply.id = l->request;
	reply.body_case = CKPT__REPLY__BODY_STORED;
	reply.stored = &body;
	session_reply(l->session, &reply, &fd, 1);
	return 0;
}

/* Another load may have found one of them bad while this one was planned (I11). */
static bool sources_are_good(const struct load *l)
{
	for (uint32_t i = 0; i < l->n_order; i++) {
		const struct source *s = &l->sources[l->order[i]];

		if (s->kind == LOAD_MEMORY ? s->slot->state != SLOT_DIGESTED
					   : l->checkpoint->disk_suspect)
			return false;
	}
	return true;
}

static void plan_done(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	int r = w->status;

	l->state = LOAD_GIVEN;
	if (l->cached)
		sharing_begin(l->checkpoint);
	if (!l->session) {
		load_close(l);
		return;
	}
	/* A file that cannot be read is a bad copy, like a leaf that does not match. */
	if (r == CKPT_ECORRUPT || r == -EIO || r == -ENOENT || r == CKPT_ENOTFOUND) {
		job_tell(l->job, 3, "step %llu: %s", (unsigned long long)l->step, l->err.text);
		checkpoint_suspect(l->checkpoint, "%s", l->err.text);
		indexing_put(l->checkpoint);
		r = checkpoint_restorable(l->checkpoint) ? -EAGAIN : CKPT_ECORRUPT;
	} else if (r == 0 && !sources_are_good(l)) {
		r = checkpoint_restorable(l->checkpoint) ? -EAGAIN : CKPT_ECORRUPT;
		err_code(&l->err, r, "load step %llu: a copy of it was just found bad",
			 (unsigned long long)l->step);
	}
	if (r == 0) {
		r = l->kind == LOAD_LOOK ? give_look(l) : give(l);
		if (r < 0)
			err_code(&l->err, r, "hand over step %llu", (unsigned long long)l->step);
	}
	if (r < 0) {
		give_error(l, r, l->err.text);
		load_close(l);
	} else if (l->kind == LOAD_LOOK) {
		load_close(l);
	}
}

/* ---- Choosing ---- */

static int choose_sources(struct load *l, struct checkpoint *c)
{
	l->sources = alloc_array(c->world, sizeof(*l->sources));
	if (!l->sources)
		return err_code(&l->err, -ENOMEM, "load step %llu", (unsigned long long)c->step);
	for (uint32_t r = 0; r < c->world; r++) {
		struct shard_state *sh = &c->shards[r];
		struct source *s = &l->sources[r];

		s->rank = r;
		if (sh->table && sh->slot && sh->slot->state == SLOT_DIGESTED) {
			s->kind = LOAD_MEMORY;
			s->slot = sh->slot;
			s->table_bytes = sh->table;
			s->table_len = sh->table_len;
		} else {
			assert(c->durable == DUR_DONE);
			s->kind = LOAD_FILE;
			s->footer = &c->commit->shards[r];
		}
	}
	l->n_sources = c->world;
	return 0;
}

static struct checkpoint *choose(struct load *l)
{
	struct job *j = l->job;
	struct record_epoch *ep = &j->history.epoch;
	struct checkpoint *c, *best = NULL;

	if (l->latest && BUG(LATEST_IS_NEWEST))
		return epoch_newest_restorable(j);
	if (l->latest)
		return checkpoint_find_attempt(j, ep->base_step, &ep->base_attempt);
	list_each(c, &j->checkpoints, link) {
		if (c->step != l->step || c->agreed != CP_COMMITTED || c->durable == DUR_GONE ||
		    (!l->any_attempt && !attempt_equal(&c->attempt, &l->attempt)))
			continue;
		if (!best || c->record_n > best->record_n)
			best = c;
	}
	return best;
}

static void fell_back(void *arg, int status)
{
	struct job *j = arg;
	struct load *l, *next;

	if (status == 0)
		return; /* job_step() goes on with the loads that wait */
	list_each_safe(l, next, &j->loads, waiting) {
		give_error(l, status, "load: the base is damaged, and the next epoch with an older "
				      "one could not be opened");
		load_close(l);
	}
}

/* There were checkpoints, and all are lost: who has to begin anew must be told (I11). */
static void all_lost(struct load *l)
{
	struct member *m = session_member(l->session);
	struct job *j = l->job;
	char text[ERR_TEXT_MAX];

	epoch_say_lost(j, text, sizeof(text));
	if (m && l->kind == LOAD_OWN)
		member_enter_epoch(m);
	give_error(l, CKPT_ELOST, text);
	load_close(l); /* which frees it */
	job_poke(j);
}

static void nothing(struct load *l)
{
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	struct member *m = session_member(l->session);
	struct job *j = l->job;

	reply.id = l->request;
	reply.status = CKPT_NOTHING;
	if (m && l->kind == LOAD_OWN)
		member_enter_epoch(m);
	session_reply(l->session, &reply, NULL, 0);
	load_close(l); /* which frees it */
	job_poke(j);
}

static void load_go(struct load *l)
{
	struct job *j = l->job;
	struct checkpoint *c;
	char text[ERR_TEXT_MAX];

	if (j->opening || !list_empty(&j->openings)) {
		list_del(&l->waiting);
		list_add_tail(&j->loads, &l->waiting);
		return;
	}
	list_del(&l->waiting);
	if (l->latest && !j->history.epoch.has_base) {
		if (epoch_lost(j) && !BUG(LOST_IS_NOTHING))
			all_lost(l);
		else
			nothing(l);
		return;
	}
	c = choose(l);
	if (!c || !checkpoint_restorable(c)) {
		if (l->latest) {
			snprintf(text, sizeof(text), "fell back: step %llu is damaged%s%.180s",
				 (unsigned long long)j->history.epoch.base_step,
				 c && c->disk_suspect ? ": " : "",
				 c && c->disk_suspect ? c->reason : "");
			list_add_tail(&j->loads, &l->waiting);
			job_tell(j, 3, "%s", text);
			epoch_fall_back(j, text, fell_back, j);
			return;
		}
		snprintf(text, sizeof(text), "load step %llu of job '%s': %s",
			 (unsigned long long)l->step, j->history.job.name,
			 c ? "no good copy of it is left" : "there is no such checkpoint");
		give_error(l, c ? CKPT_ELOST : CKPT_ENOTFOUND, text);
		load_close(l);
		return;
	}
	l->step = c->step;
	l->attempt = c->attempt;
	l->epoch = j->history.epoch.number;
	if (wanted_by_make(j, &l->others) < 0 || choose_sources(l, c) < 0) {
		give_error(l, -ENOMEM, l->err.text);
		load_close(l);
		return;
	}
	l->checkpoint = c;
	l->no_cache = c->no_cache;
	c->readers++;
	job_id_of(j, c->step, &c->attempt, &l->checkpoint_id);
	l->state = LOAD_PLANNING;
	l->work.run = plan_run;
	l->work.done = plan_done;
	work_submit(j->node->env.workers, WORK_META, &l->work);
}

void load_step(struct job *j)
{
	struct load *l, *next;

	list_each_safe(l, next, &j->loads, waiting) {
		/* The first may find that the next epoch must be opened: the rest wait for it too.
		 */
		if (j->opening || !list_empty(&j->openings))
			return;
		load_go(l);
	}
}

/* Of the member's job; NULL: the request was answered with why not. */
static struct load *load_new(struct session *s, uint64_t request, enum load_kind kind,
			     uint64_t step, const ProtobufCBinaryData *attempt)
{
	struct member *member = session_member(s);
	struct err e = { 0 };
	struct load *l;

	if (quota_load(s, &e) < 0) {
		session_reply_error(s, request, e.code, e.text);
		return NULL;
	}
	l = alloc_zero(sizeof(*l));
	if (!l) {
		session_reply_error(s, request, -ENOMEM, "load: out of memory");
		return NULL;
	}
	list_init(&l->waiting);
	l->id = ++member->job->node->next_load;
	l->request = request;
	l->session = s;
	l->owner = session_ref(s);
	session_use(s)->loads++;
	l->job = member->job;
	l->store = &member->job->node->store;
	l->rank = member->rank;
	l->world = member->job->history.epoch.world;
	l->memory = member->job->node->env.memory;
	l->kind = kind;
	l->wants_fd = -1;
	l->latest = step == CKPT_LATEST;
	l->step = step;
	l->any_attempt = attempt->len != 16;
	if (!l->any_attempt)
		memcpy(l->attempt.b, attempt->data, 16);
	list_add_tail(session_loads(s), &l->link);
	return l;
}

void load_start(struct session *s, uint64_t request, const Ckpt__Load *m)
{
	struct member *member = session_member(s);
	struct load *l;

	if (!member || !member->declared) {
		session_reply_error(s, request, CKPT_ESTATE, "load: open and declare first");
		return;
	}
	l = load_new(s, request, LOAD_OWN, m->step, &m->attempt);
	if (!l)
		return;
	l->lenient = m->lenient;
	l->wanted = member->declared;
	l->wanted->refs++;
	load_go(l);
}

void load_look(struct session *s, uint64_t request, const Ckpt__Stored *m)
{
	struct load *l = load_new(s, request, LOAD_LOOK, m->step, &m->attempt);

	if (l)
		load_go(l);
}

void load_read(struct session *s, uint64_t request, const Ckpt__Read *m, int *fds, size_t n_fds)
{
	struct load *l;

	if (m->in_fd && n_fds == 0) {
		session_reply_error(s, request, CKPT_EPROTO, "read: its memfd is missing");
		return;
	}
	l = load_new(s, request, LOAD_READ, m->step, &m->attempt);
	if (!l)
		return;
	l->lenient = m->lenient;
	if (m->in_fd) {
		l->wants_fd = fds[0];
		fds[0] = -1;
	} else {
		l->wants_len = m->wants.len;
		l->wants_bytes = alloc_copy(m->wants.data, m->wants.len);
	}
	if (!m->in_fd && !l->wants_bytes) {
		give_error(l, -ENOMEM, "read: out of memory");
		load_close(l);
		return;
	}
	load_go(l);
}

/* ---- A leaf that did not match ---- */

static int check_memory(struct load *l, struct source *s)
{
	uint64_t leaf = s->table.geometry.leaf, offset = l->check_leaf * leaf;
	uint64_t len = min_u64(leaf, s->table.image_len - offset);
	struct digest want = rank_table_leaf(&s->table, l->check_leaf);
	struct digest have = digest_of((const uint8_t *)s->slot->region->base + offset, len);

	return digest_equal(&want, &have) ? 0 : CKPT_ECORRUPT;
}

static void check_run(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	struct source *s = &l->sources[l->order[l->check_source]];

	w->status = s->kind == LOAD_MEMORY ? check_memory(l, s)
					   : shard_check_leaf(&s->reader, l->check_leaf, &l->err);
}

static void check_done(struct work *w)
{
	struct load *l = container_of(w, struct load, work);
	struct source *s = &l->sources[l->order[l->check_source]];
	struct checkpoint *c = l->checkpoint;
	char what[256];

	l->state = LOAD_GIVEN;
	if (w->status == CKPT_ECORRUPT || w->status == -EIO) {
		shard_describe(&s->table, l->check_leaf * s->table.geometry.leaf, what,
			       sizeof(what));
		job_tell(l->job, 3,
			 "step %llu, rank %u, %s: leaf %llu (%s) does not match its digest; "
			 "the copy is not used any more",
			 (unsigned long long)c->step, s->rank,
			 s->kind == LOAD_MEMORY ? "memory" : "file",
			 (unsigned long long)l->check_leaf, what);
		if (s->kind == LOAD_MEMORY) {
			s->slot->state = SLOT_QUARANTINED;
			c->memory = false;
		} else {
			checkpoint_suspect(c,
					   "rank %u: leaf %llu of its file (%.128s) does not "
					   "match its digest",
					   s->rank, (unsigned long long)l->check_leaf, what);
			indexing_put(c);
		}
	}
	/* The file is good: it was the memory that the kernel keeps of it. */
	if (w->status == 0 && s->kind == LOAD_FILE && s->reader.cached)
		c->no_cache = true;
	if (l->session)
		session_reply_ok(l->session, l->request);
	load_close(l);
	job_poke(c->job);
}

void load_end(struct session *s, uint64_t request, const Ckpt__LoadEnd *m)
{
	struct member *member = session_member(s);
	struct load *l, *found = NULL;
	uint64_t epoch;

	list_each(l, session_loads(s), link)
		if (l->id == m->load && l->state == LOAD_GIVEN)
			found = l;
	/* The epoch of the reply that was loaded: from the message, where ckptd has forgotten it.
	 */
	epoch = found ? found->epoch : m->epoch;
	if (m->complete && member && epoch == member->job->history.epoch.number)
		member_enter_epoch(member);
	if (!found) {
		session_reply_ok(s, request); /* ended before: the answer was lost (I10) */
		return;
	}
	l = found;
	if (m->failed && m->source < l->n_order &&
	    m->leaf < l->sources[l->order[m->source]].table.n_leaves) {
		l->request = request;
		l->check_source = m->source;
		l->check_leaf = m->leaf;
		l->state = LOAD_CHECKING;
		l->work.run = check_run;
		l->work.done = check_done;
		work_submit(l->job->node->env.workers, WORK_META, &l->work);
		return;
	}
	session_reply_ok(s, request);
	load_close(l);
}
