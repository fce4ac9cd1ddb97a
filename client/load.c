/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - fills bound memory from a checkpoint saved under any layout.
 *
 *   asked -> problems -> ended (strict)
 *         -> plan and sources -> placed -> LoadEnd(complete): the session is in the reply's epoch
 *                             -> a leaf is bad -> LoadEnd(failed, where) -> asked again
 *         -> nothing to load
 *
 * Which copy of which bytes is read is ckptd's choice, and after a bad leaf another one: another
 * copy, or the next epoch with an older base (I11); this side only reports and asks again, at most
 * LOAD_TRIES_MAX times. What has been placed by then is placed again.
 *
 *   1. Bound memory gets only bytes that lead to the root: placer.c (I2).
 *   2. No two elements of it are in one place, but for twins: targets.c. Of those each is read, and
 *      they are compared.
 *   3. Whatever a load was given is given back, or slots would stay pinned: by LoadEnd however the
 *      load ends, and where the answer was not waited for, so that nobody knows its handle, by
 *      ending the connection.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/client.h"
#include "client/image.h"
#include "client/load.h"
#include "client/loaded.h"
#include "client/memfd.h"
#include "client/placer.h"
#include "client/targets.h"

#define PLAN_BYTES_MAX	(4ull << 30)
#define SOURCES_MAX	(1u << 20)
#define AGAIN		1 /* of one try: ask again */

/* One try. */
struct loading {
	struct request q;
	struct ckpt *c;
	const struct load_order *order;
	const uint32_t *twin; /* by shard: targets_check() */
	uint64_t deadline;
	bool again;           /* a copy was bad: files are read past the page cache alone */
	uint32_t sent;        /* which sending the parts belong to */
	uint64_t id;          /* for LoadEnd; 0: ckptd has given nothing */
	uint64_t step, epoch;
	struct origin origin; /* once it is complete */
	uint64_t fell_back_from;
	uint8_t attempt[16];
	int tier;
	bool nothing;
	int *fds;             /* the plan's, then the sources' */
	uint32_t n_fds, cap_fds;
	void *plan_bytes;
	struct load_plan plan;
	struct source *sources;
	struct place_target *targets;
	/* By shard: host memory for device shards that come in parts, and for all but one of those
	 * that go to the very same memory. */
	uint8_t **staging;
	uint64_t *placed_bytes; /* by shard: of the plan's pieces */
	uint32_t *same_as;      /* by shard: which one is placed where this one goes too; itself */
	struct plan_piece *pieces; /* the plan's and one for each blob */
	size_t n_pieces;
	struct placed placed;
};

/* ---- The answer ---- */

static void close_fds(struct loading *l)
{
	for (uint32_t i = 0; i < l->n_fds; i++)
		close(l->fds[i]);
	l->n_fds = 0;
}

static int keep_fds(struct loading *l, int *fds, size_t n)
{
	if (l->n_fds + n > l->cap_fds) {
		uint32_t cap = l->n_fds + (uint32_t)n + l->cap_fds;
		int *more = alloc_resize(l->fds, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		l->fds = more;
		l->cap_fds = cap;
	}
	for (size_t i = 0; i < n; i++) {
		l->fds[l->n_fds++] = fds[i];
		fds[i] = -1;
	}
	return 0;
}

static int load_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct loading *l = container_of(q, struct loading, q);
	const Ckpt__LoadReply *m = reply->load;
	int r;

	if (reply->body_case != CKPT__REPLY__BODY_LOAD)
		return q->status < 0 ? 0
				     : err_set(q->err, CKPT_EPROTO,
					       "ckptd answered a load with something else");
	if (l->sent != q->sent) { /* parts that came before a reconnect are of another load */
		close_fds(l);
		l->sent = q->sent;
	}
	l->id = q->status == 0 ? m->load : 0;
	r = loaded_problems(l->c->loaded, m);
	if (r == 0 && q->status < 0) {
		l->epoch = m->epoch; /* where all is lost; else 0 */
		return 0;            /* that and problems are all that an error brings */
	}
	if (r == 0 && l->n_fds + n_fds > SOURCES_MAX)
		r = -E2BIG;
	if (r == 0)
		r = keep_fds(l, fds, n_fds);
	if (r < 0)
		return err_code(q->err, r, "take a load of %u sources", m->n_sources);
	l->step = m->step;
	l->epoch = m->epoch;
	l->origin = origin_of(m->origin);
	l->fell_back_from = m->fell_back_from;
	l->tier = (int)m->tier;
	if (m->attempt.len == sizeof(l->attempt))
		memcpy(l->attempt, m->attempt.data, sizeof(l->attempt));
	return m->more ? REPLY_MORE : 0;
}

static uint64_t job_epoch(const struct ckpt *c)
{
	return c->page ? atomic_load_explicit(&c->page->epoch, memory_order_acquire) : c->epoch;
}

static int ask(struct loading *l, struct err *e)
{
	Ckpt__Load body = CKPT__LOAD__INIT;
	uint64_t epoch = job_epoch(l->c);
	int r;

	body.step = l->order->step;
	body.lenient = l->order->lenient;
	body.min_trust = l->order->min_trust;
	request_init(&l->q, e);
	if (l->order->read) {
		l->q.message.body_case = CKPT__REQUEST__BODY_READ;
		l->q.message.read = l->order->read;
		l->q.fd = l->order->read_fd;
	} else {
		l->q.message.body_case = CKPT__REQUEST__BODY_LOAD;
		l->q.message.load = &body;
	}
	l->q.reply = load_reply;
	r = session_call(l->c, &l->q, l->deadline);
	l->q.message.load = NULL;
	if (!l->q.done) /* (3) */
		channel_drop(&l->c->rq.channel);
	if (r < 0)
		/* Both: ckptd found that a copy is no good, and the next one may be. */
		return l->q.done && (r == -EAGAIN || r == CKPT_ECORRUPT) ? AGAIN : r;
	l->nothing = l->q.bits & CKPT_NOTHING;
	if (!l->nothing)
		return 0;
	/* Such an answer names no epoch. It was given in this one, unless the next was opened
	 * meanwhile: then nobody knows in which. */
	l->epoch = epoch;
	return job_epoch(l->c) == epoch ? 0 : AGAIN;
}

static int say_end(struct loading *l, bool complete, bool failed)
{
	Ckpt__LoadEnd body = CKPT__LOAD_END__INIT;
	Ckpt__Origin origin;
	struct request q;

	if (l->id == 0)
		return 0;
	body.load = l->id;
	body.complete = complete;
	body.epoch = l->epoch;
	body.origin = origin_message(l->origin, &origin);
	body.failed = failed;
	body.source = l->placed.bad_source;
	body.leaf = l->placed.bad_leaf;
	request_init(&q, NULL);
	q.message.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.message.load_end = &body;
	return session_call(l->c, &q, max_u64(l->deadline, deadline_in(ASK_MS)));
}

/* ---- Sources ---- */

/* Those that were asked for, in that order, of the sizes that were said. */
static int blobs_as_asked(const struct loading *l, struct err *e)
{
	bool same = l->plan.n_blobs == l->order->n_blobs;

	for (uint32_t i = 0; i < l->plan.n_blobs && same; i++) {
		const struct ckpt_stored_blob *asked = &l->order->blobs[i];
		const struct load_blob *given = &l->plan.blobs[i];

		same = given->bytes == asked->bytes && strcmp(given->name, asked->name) == 0 &&
		       l->plan.sources[given->source].rank == (uint32_t)asked->rank;
	}
	return same ? 0 : err_set(e, CKPT_EPROTO, "ckptd gave other blobs than were asked for");
}

static int take_plan(struct loading *l, struct err *e)
{
	const struct wanted *w = l->order->wanted;
	uint64_t *bytes CLEANUP_FREE = alloc_array(w->n_shards, sizeof(*bytes));
	size_t len;
	int r;

	if (!bytes)
		return err_code(e, -ENOMEM, "take the load plan");
	for (uint32_t i = 0; i < w->n_shards; i++)
		bytes[i] = w->shards[i].bytes;
	if (l->n_fds == 0)
		return err_set(e, CKPT_EPROTO, "ckptd gave a load without a plan");
	r = memfd_read(l->fds[0], PLAN_BYTES_MAX, &l->plan_bytes, &len);
	if (r < 0)
		return err_code(e, r, "read the load plan");
	r = load_plan_decode(l->plan_bytes, len, bytes, w->n_shards, &l->plan, e);
	if (r == 0 && l->plan.n_sources != l->n_fds - 1)
		r = err_set(e, CKPT_EPROTO, "ckptd gave %u descriptors for %u sources",
			    l->n_fds - 1, l->plan.n_sources);
	if (r == 0 && l->order->read)
		r = blobs_as_asked(l, e);
	return r;
}

/* Where the source is one of our own slots, that is mapped already. */
static const uint8_t *own_slot(const struct ckpt *c, const struct load_source *s, int fd)
{
	struct stat st;

	if (s->kind != LOAD_MEMORY || fstat(fd, &st) < 0)
		return NULL;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (c->slots[i].inode == st.st_ino && c->slots[i].bytes >= s->image_len)
			return c->slots[i].base;
	return NULL;
}

/* It came with O_DIRECT where nobody else wants it and the file system can. */
static bool through_cache(const struct load_source *s, int fd)
{
	int flags = s->kind == LOAD_FILE ? fcntl(fd, F_GETFL) : -1;

	return flags >= 0 && !(flags & O_DIRECT);
}

static int take_sources(struct loading *l, struct err *e)
{
	uint32_t n = l->plan.n_sources;

	l->sources = alloc_array(n, sizeof(*l->sources));
	if (!l->sources)
		return err_code(e, -ENOMEM, "take %u sources", n);
	for (uint32_t i = 0; i < n; i++) {
		l->sources[i] = (struct source){
			.in = &l->plan.sources[i],
			.fd = l->fds[1 + i],
			.cached = through_cache(&l->plan.sources[i], l->fds[1 + i]),
			.mapped = own_slot(l->c, &l->plan.sources[i], l->fds[1 + i]),
		};
		source_map(&l->sources[i]);
	}
	return 0;
}

/* ---- Targets ---- */

/* Device shards that are not one contiguous piece after another are put together in host memory:
 * a copy to the device for each short row would take for ever. */
static int target_staging(struct loading *l, uint32_t i, struct place_target *t)
{
	const struct ckpt_binding *b = &l->order->tensors[i];
	bool whole = !b->strides;

	for (size_t k = 0; k < l->plan.plan.n_pieces && whole; k++)
		whole = l->plan.plan.pieces[k].target != i || l->plan.plan.pieces[k].ndim == 0;
	if (whole) {
		*t = (struct place_target){ .ptr = b->ptr, .device = true, .ordinal = b->device };
		return 0;
	}
	l->staging[i] = alloc_zero(l->order->wanted->shards[i].bytes);
	*t = (struct place_target){ .ptr = l->staging[i] };
	return l->staging[i] ? 0 : -ENOMEM;
}

static int shard_target(struct loading *l, uint32_t i, struct place_target *t)
{
	const struct ckpt_binding *b = &l->order->tensors[i];
	struct shard s;

	if (l->placed_bytes[i] == 0)
		return 0; /* no piece has it for its target */
	if (l->same_as[i] != i) {
		l->staging[i] = alloc_zero(l->order->wanted->shards[i].bytes);
		*t = (struct place_target){.ptr = l->staging[i]};
		return l->staging[i] ? 0 : -ENOMEM;
	}
	if (b->device != CKPT_HOST)
		return target_staging(l, i, t);
	*t = (struct place_target){ .ptr = b->ptr, .strided = b->strides != NULL };
	if (!b->strides)
		return 0;
	declared_shard(l->order->wanted, i, &s);
	return strided_init(&t->layout, &s, b->strides);
}

/* A blob is a piece of its own, to memory of its own or, where it was asked for, the caller's. */
static int blob_target(struct loading *l, uint32_t i, struct place_target *t)
{
	const struct load_blob *from = &l->plan.blobs[i];
	struct loaded *keep = l->c->loaded;

	if (l->order->read) {
		*t = (struct place_target){.ptr = l->order->blobs[i].data};
		if (from->bytes == 0)
			return 0;
	} else {
		struct loaded_blob *to = &keep->blobs[keep->n_blobs++];

		to->bytes = from->bytes;
		to->name = alloc_str(from->name);
		to->data = alloc_zero(from->bytes);
		if (!to->name || !to->data)
			return -ENOMEM;
		*t = (struct place_target){.ptr = to->data};
	}
	l->pieces[l->n_pieces++] = (struct plan_piece){
		.source = from->source,
		.target = l->order->wanted->n_shards + i,
		.src = from->image_offset,
		.run = from->bytes,
	};
	return 0;
}

static int twins_differ(const struct loading *l, uint32_t i, struct err *e)
{
	char one[NAME_TEXT_MAX], other[NAME_TEXT_MAX];
	struct shard a, b;

	declared_shard(l->order->wanted, l->same_as[i], &a);
	declared_shard(l->order->wanted, i, &b);
	return err_set(e, CKPT_EMISMATCH,
		       "'%.80s' and '%.80s' are bound to the same memory, and step %llu has other "
		       "bytes for one than for the other; bind them to memory of their own",
		       name_text(one, a.name, a.name_len), name_text(other, b.name, b.name_len),
		       (unsigned long long)l->step);
}

/*
 * Of twins the first that the plan places is placed, the others beside it, to be compared: that
 * one place holds what is stored for both is then known, not hoped for. In a lenient load one may
 * have holes, and what should be in them is not known.
 */
static int choose_twins(struct loading *l, struct err *e)
{
	const struct wanted *w = l->order->wanted;

	for (size_t k = 0; k < l->plan.plan.n_pieces; k++) {
		const struct plan_piece *p = &l->plan.plan.pieces[k];
		uint64_t bytes = p->run;

		for (uint32_t d = 0; d < p->ndim; d++)
			bytes *= p->count[d]; /* inside the target: it was checked */
		l->placed_bytes[p->target] += bytes;
	}
	for (uint32_t i = 0; i < w->n_shards; i++) {
		uint32_t first = l->twin[i];

		l->same_as[i] = i;
		if (first == i || l->placed_bytes[i] == 0)
			continue;
		if (l->placed_bytes[l->same_as[first]] == 0) {
			l->same_as[first] = i; /* for the twins that follow */
			continue;
		}
		l->same_as[i] = l->same_as[first];
		if (l->placed_bytes[i] != w->shards[i].bytes ||
		    l->placed_bytes[l->same_as[i]] != w->shards[i].bytes)
			return twins_differ(l, i, e);
	}
	return 0;
}

/* Of what was placed twice, beside each other. */
static int compare_twin(struct loading *l, uint32_t i, struct err *e)
{
	const struct wanted *w = l->order->wanted;
	uint8_t *scratch CLEANUP_FREE = alloc_zero(SCRATCH_BYTES);
	uint64_t bytes = w->shards[i].bytes;

	if (!scratch)
		return err_code(e, -ENOMEM, "compare tensors in one place");
	for (uint64_t at = 0; at < bytes; at += SCRATCH_BYTES) {
		size_t n = min_u64(SCRATCH_BYTES, bytes - at);
		int r = image_read(l->c, w, i, &l->order->tensors[i], at, scratch, n, e);

		if (r < 0)
			return r;
		if (memcmp(scratch, l->staging[i] + at, n) != 0)
			return twins_differ(l, i, e);
	}
	return 0;
}

static int take_targets(struct loading *l, struct err *e)
{
	uint32_t shards = l->order->wanted->n_shards, blobs = l->plan.n_blobs;
	struct loaded *keep = l->c->loaded;
	int r = -ENOMEM;

	loaded_blobs_free(keep);
	l->targets = alloc_array((size_t)shards + blobs, sizeof(*l->targets));
	l->staging = alloc_array(shards, sizeof(*l->staging));
	l->placed_bytes = alloc_array(shards, sizeof(*l->placed_bytes));
	l->same_as = alloc_array(shards, sizeof(*l->same_as));
	l->pieces = alloc_array(l->plan.plan.n_pieces + blobs, sizeof(*l->pieces));
	keep->blobs = alloc_array(blobs, sizeof(*keep->blobs));
	if (l->targets && l->staging && l->placed_bytes && l->same_as && l->pieces &&
	    keep->blobs) {
		r = choose_twins(l, e);
		if (r < 0)
			return r;
		l->n_pieces = l->plan.plan.n_pieces;
		if (l->n_pieces)
			memcpy(l->pieces, l->plan.plan.pieces, l->n_pieces * sizeof(*l->pieces));
	}
	for (uint32_t i = 0; i < shards && r == 0; i++)
		r = shard_target(l, i, &l->targets[i]);
	for (uint32_t i = 0; i < blobs && r == 0; i++)
		r = blob_target(l, i, &l->targets[shards + i]);
	return r < 0 ? err_code(e, r, "make room for what is loaded") : 0;
}

/* ---- One try ---- */

static int place(struct loading *l, struct err *e)
{
	struct placing p = {
		.sources = l->sources,
		.n_sources = l->plan.n_sources,
		.pieces = l->pieces,
		.n_pieces = l->n_pieces,
		.targets = l->targets,
		.devices = l->c->devices,
		.deadline = l->deadline,
		.interrupt = &l->c->interrupt,
		.memory = l->c->who.load_memory,
		.pace = l->again ? NULL : &l->c->pace,
	};
	bool disk = false;
	int r;

	for (uint32_t i = 0; i < p.n_sources; i++) {
		disk = disk || l->plan.sources[i].kind == LOAD_FILE;
		if (l->sources[i].cached) /* others read it too */
			p.place = l->c->who.rank;
	}
	p.threads = load_threads(l->c->who.world, disk);
	r = placer_run(&p, &l->placed, e);
	for (uint32_t i = 0; i < l->order->wanted->n_shards && r == 0; i++)
		if (l->staging[i] && l->same_as[i] == i)
			r = image_write(l->c, l->order->wanted, i, &l->order->tensors[i],
					l->staging[i], e);
	for (uint32_t i = 0; i < l->order->wanted->n_shards && r == 0; i++)
		if (l->same_as[i] != i && l->staging[i])
			r = compare_twin(l, i, e);
	if (r == CKPT_ETIMEDOUT)
		return err_set(e, r, "step %llu could not be read in time",
			       (unsigned long long)l->step);
	return r;
}

static void loading_fini(struct loading *l)
{
	for (uint32_t i = 0; l->staging && i < l->order->wanted->n_shards; i++)
		alloc_free(l->staging[i]);
	alloc_free(l->staging);
	alloc_free(l->placed_bytes);
	alloc_free(l->same_as);
	alloc_free(l->targets);
	alloc_free(l->pieces);
	for (uint32_t i = 0; l->sources && i < l->plan.n_sources; i++)
		source_unmap(&l->sources[i]);
	alloc_free(l->sources);
	load_plan_fini(&l->plan);
	alloc_free(l->plan_bytes);
	close_fds(l);
	alloc_free(l->fds);
}

static int bad_leaf(struct loading *l, struct err *e)
{
	int r = say_end(l, false, true);

	if (r < 0 && r != CKPT_EUNAVAILABLE)
		return err_code(e, r, "report leaf %llu of rank %u of step %llu, which does not "
				"match its digest", (unsigned long long)l->placed.bad_leaf,
				l->plan.sources[l->placed.bad_source].rank,
				(unsigned long long)l->step);
	err_set(e, CKPT_ECORRUPT, "step %llu: leaf %llu of rank %u does not match its digest and "
		"no other copy was offered", (unsigned long long)l->step,
		(unsigned long long)l->placed.bad_leaf,
		l->plan.sources[l->placed.bad_source].rank);
	return AGAIN;
}

/* 0, AGAIN, or an error. */
static int try_once(struct loading *l, struct err *e)
{
	int r = ask(l, e);

	if (r == AGAIN || l->nothing)
		return r;
	if (r == 0)
		r = take_plan(l, e);
	if (r == 0)
		r = take_sources(l, e);
	if (r == 0)
		r = take_targets(l, e);
	if (r == 0)
		r = place(l, e);
	if (r == CKPT_ECORRUPT && l->placed.bad)
		return bad_leaf(l, e);
	if (r < 0) {
		/* Not heard of, it ends with the session. */
		ignore_result(say_end(l, false, false));
		return r;
	}
	r = say_end(l, l->order->enter, false);
	return r < 0 ? err_code(e, r, "end the load of step %llu", (unsigned long long)l->step) : 0;
}

/* ---- The call ---- */

static int load_args_known(const struct ckpt_load_args *a, struct ckpt_load_args *ret,
			   struct err *e)
{
	struct ckpt_load_args known = { .size = sizeof(known),
					.timeout_ms = CKPT_DEFAULT_TIMEOUT };

	if (!a || a->size < offsetof(struct ckpt_load_args, timeout_ms))
		return err_set(e, -EINVAL, "arguments: size must be set to sizeof(struct "
			       "ckpt_load_args)");
	memcpy(&known, a, min_u64(a->size, sizeof(known)));
	known.size = sizeof(known);
	if (known.flags & ~CKPT_LENIENT)
		return err_set(e, -EINVAL, "unknown flags %#x", known.flags);
	if (known.min_trust > CKPT_TRUST_VERIFIED)
		return err_set(e, -EINVAL, "min_trust: there is no level %u", known.min_trust);
	*ret = known;
	return timeout_check(known.timeout_ms, e);
}

static void fill(struct ckpt_loaded *ret, const struct loading *l)
{
	struct ckpt_loaded out = {
		.size = ret->size,
		.step = l->step,
		.tier = l->tier,
		.bytes = l->plan.plan.bytes,
		.bytes_read = l->placed.bytes_read,
		.fell_back_from = l->fell_back_from,
	};

	memcpy(out.attempt, l->attempt, sizeof(out.attempt));
	memcpy(ret, &out, min_u64(ret->size, sizeof(out)));
}

/* What ckptd gave first; another try may have been given something else, or nothing. */
struct given {
	bool any;
	uint64_t step;
	uint8_t attempt[16];
};

static int lost_since(const struct ckpt *c, const struct given *first, struct err *e)
{
	return err_set(e, CKPT_ELOST,
		       "step %llu of job '%s' is damaged and there is no other checkpoint any "
		       "more; look with `ckptctl status %s`; what was bound is overwritten",
		       (unsigned long long)first->step, c->who.job, c->who.job);
}

/* ckptd has moved the session there. */
static void enter_epoch(struct ckpt *c, uint64_t epoch)
{
	if (c->epoch != epoch && c->origin.kind == ORIGIN_RESUMED) /* in the one before */
		c->origin = (struct origin){ORIGIN_FRESH, 0};
	c->epoch = epoch;
}

/* What a try that worked means. */
static int conclude(struct ckpt *c, struct loading *l, const struct given *first,
		    struct ckpt_loaded *ret, struct err *e)
{
	int r = CKPT_OK;

	if (l->order->enter)
		enter_epoch(c, l->epoch);
	if (l->order->enter && !l->nothing)
		c->origin = l->origin;
	else if (c->origin.kind == ORIGIN_FRESH) /* as ckptd takes a read of its own */
		c->origin.kind = l->nothing ? ORIGIN_FRESH : ORIGIN_UNSAID;
	if (l->nothing)
		return first->any ? lost_since(c, first, e) : CKPT_NOTHING;
	if (l->order->step == CKPT_LATEST && first->any &&
	    memcmp(first->attempt, l->attempt, sizeof(l->attempt)) != 0) {
		r |= CKPT_FELL_BACK;
		l->fell_back_from = first->step;
	}
	if (l->q.bits & CKPT_FELL_BACK)
		r |= CKPT_FELL_BACK;
	if (l->plan.plan.bytes < l->order->wanted->bytes)
		r |= CKPT_PARTIAL;
	if (ret)
		fill(ret, l);
	return r;
}

int load_tries(struct ckpt *c, const struct load_order *o, struct ckpt_loaded *ret, struct err *e)
{
	uint64_t deadline = call_deadline(c, o->timeout_ms);
	uint32_t *twin CLEANUP_FREE = alloc_array(o->wanted->n_shards, sizeof(*twin));
	struct given first = {0};
	int r;

	loaded_free(c->loaded);
	c->loaded = alloc_zero(sizeof(*c->loaded));
	if (!c->loaded || !twin)
		return err_code(e, -ENOMEM, "load");
	r = targets_check(o->wanted, o->tensors, o->blobs, o->n_blobs, twin, e);
	if (r < 0)
		return r;
	r = AGAIN;
	for (int n = 0; n < LOAD_TRIES_MAX && r == AGAIN; n++) {
		struct loading l = {
			.c = c, .order = o, .twin = twin, .deadline = deadline, .again = n > 0};

		r = try_once(&l, e);
		if (r == 0)
			r = conclude(c, &l, &first, ret, e);
		else if (r == AGAIN && n + 1 == LOAD_TRIES_MAX)
			r = CKPT_ECORRUPT;
		else if (r == CKPT_ELOST && l.epoch)
			enter_epoch(c, l.epoch); /* to save: there is nothing else to do */
		if (!first.any && l.id && !l.nothing) {
			memcpy(first.attempt, l.attempt, sizeof(first.attempt));
			first.step = l.step;
			first.any = true;
		}
		loading_fini(&l);
	}
	return r;
}

static int load(struct ckpt *c, const struct ckpt_load_args *given, struct ckpt_loaded *ret,
		struct err *e)
{
	struct ckpt_load_args a = {0};
	struct load_order o;
	int r = load_args_known(given, &a, e);

	if (r == 0 && ret && ret->size < sizeof(ret->size))
		r = err_set(e, -EINVAL, "result: size must be set to sizeof(struct ckpt_loaded)");
	if (r == 0)
		r = overlap_ended(c, e);
	if (r == 0)
		r = call_as_rank(c, e);
	if (r == 0)
		r = prepare_begin(c, call_deadline(c, CKPT_DEFAULT_TIMEOUT), e);
	if (r == 0)
		r = bindings_check(&c->own, a.tensors, a.n_tensors, e);
	if (r == 0)
		r = image_devices(c, &c->own, a.tensors, e);
	if (r < 0)
		return r;
	o = (struct load_order){
		.step = a.step,
		.timeout_ms = a.timeout_ms,
		.lenient = a.flags & CKPT_LENIENT,
		.min_trust = (uint32_t)max_u64(a.min_trust, c->who.min_trust),
		.enter = true,
		.wanted = &c->own,
		.tensors = a.tensors,
	};
	r = load_tries(c, &o, ret, e);
	/* Only now: what is loaded goes to the trainer's own memory, and slots would take cores
	 * and memory from that. Room for saves is not what a load is refused for: without it the
	 * state would be out of reach where it is needed most. */
	if (r >= 0)
		prepare_ask(c);
	return r;
}

int ckpt_load(struct ckpt *c, const struct ckpt_load_args *args, struct ckpt_loaded *ret)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_load", r, &e);
	c->patient = true;
	beating_begin(c->beat, CKPT_PHASE_LOAD, "load");
	r = load(c, args, ret, &e);
	beating_end(c->beat);
	return call_leave(c, "ckpt_load", r, &e);
}
