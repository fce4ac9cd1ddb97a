/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_load.c - a load as a process does it: sources read chunk by chunk, each leaf checked before
 * its bytes are used, pieces placed, then every byte compared with what was once saved.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "codec/compress.h"
#include "codec/digest.h"
#include "model/load_plan.h"
#include "model/trust.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define LOAD_NS    (10 * SIM_S)
#define LOAD_TRIES 8

struct loading {
	struct rank *r;
	uint64_t id, step, epoch;
	struct origin origin; /* once it is complete */
	struct attempt_id attempt;
	bool file;
	void *plan_bytes;
	struct load_plan plan;
	uint8_t *images[SIM_WORLD];
	uint8_t *parts[SIM_SHARDS];
	struct sim_channel *channel;
	bool bad, mismatch;
	uint32_t bad_source;
	uint64_t bad_leaf;
};

static void *take(size_t n)
{
	return sim_check(alloc_zero(n ? n : 1));
}

/* ---- Reading ---- */

static void blame(struct loading *l, uint32_t source, uint64_t leaf)
{
	l->bad = true;
	l->bad_source = source;
	l->bad_leaf = leaf;
}

/* From what is stored of a chunk to the chunk; what is missing stays as it is. */
static void spread(const struct load_source *s, uint64_t c, uint32_t missing, const uint8_t *from,
		   uint8_t *to, size_t len)
{
	uint64_t leaf = s->geometry.leaf, first = c * s->geometry.chunk / leaf;

	for (size_t at = 0; at < len; at += leaf) {
		if (missing && missing >> (at / leaf) & 1) /* with 32 leaves at most */
			continue;
		memcpy(to + at, from + chunk_leaf_offset(s->geometry, first + at / leaf, missing),
		       min_u64(leaf, len - at));
	}
}

static int read_chunk(struct loading *l, uint32_t i, uint64_t c, uint8_t *to, size_t len)
{
	const struct load_source *s = &l->plan.sources[i];
	struct chunk_place p;
	struct compressor *z = NULL;
	struct digest d;
	uint8_t *raw, *unpacked;
	size_t whole, stored;
	int r;

	if (s->kind == LOAD_MEMORY) {
		if (!l->r->maps[i] || c * s->geometry.chunk + len > l->r->maps[i]->size)
			return -EIO;
		memcpy(to, l->r->maps[i]->base + c * s->geometry.chunk, len);
		return 0;
	}
	p = chunk_place_get(s->places, c);
	stored = chunk_bytes_stored(s->image_len, s->geometry, c, p.missing);
	unpacked = take(s->geometry.chunk);
	whole = (size_t)round_up(p.stored, DISK_ALIGN);
	raw = aligned_alloc(DISK_ALIGN, whole + DISK_ALIGN);
	r = disk_fd_read(l->r->sim->w, l->r->fds[1 + i], raw, whole, p.offset);
	if (r >= 0)
		r = (size_t)r < p.stored ? -EIO : 0;
	if (r == 0 && p.encoding == ENCODING_RAW) {
		spread(s, c, p.missing, raw, to, len);
	} else if (r == 0) {
		d = digest_of(raw, p.stored);
		r = digest_equal(&d, &p.digest) ? compressor_new(s->geometry.chunk, 1, &z) : -EIO;
		if (r == 0)
			r = decompress_chunk(z, p.encoding, raw, p.stored, unpacked, stored);
		if (r == 0)
			spread(s, c, p.missing, unpacked, to, len);
		compressor_free(z);
	}
	alloc_free(unpacked);
	free(raw);
	return r;
}

static void check_leaves(struct loading *l, uint32_t i, uint64_t c, const uint8_t *bytes,
			 size_t len)
{
	const struct load_source *s = &l->plan.sources[i];
	uint64_t first = c * s->geometry.chunk / s->geometry.leaf;
	uint32_t missing = s->kind == LOAD_FILE ? chunk_place_get(s->places, c).missing : 0;

	for (size_t at = 0; at < len && !l->bad; at += s->geometry.leaf) {
		uint64_t leaf = first + at / s->geometry.leaf;
		struct digest d;

		if (missing && missing >> (at / s->geometry.leaf) & 1)
			continue;
		d = digest_of(bytes + at, min_u64(s->geometry.leaf, len - at));

		if (memcmp(d.b, s->leaves + 16 * leaf, 16) != 0) {
			blame(l, i, leaf);
			l->mismatch = true;
		}
	}
}

static void read_source(struct loading *l, uint32_t i)
{
	const struct load_source *s = &l->plan.sources[i];
	struct world *w = l->r->sim->w;
	bool slow = world_one_in(w, l->r->sim->profile->slow_load);

	l->images[i] = take(s->image_len);
	for (uint64_t at = 0; at < s->image_len && !l->bad; at += s->geometry.chunk) {
		size_t len = min_u64(s->geometry.chunk, s->image_len - at);

		if (slow && world_one_in(w, 2))
			rank_sleep(l->r, world_random(w, 20 * SIM_MS));
		if (read_chunk(l, i, at / s->geometry.chunk, l->images[i] + at, len) < 0)
			blame(l, i, at / s->geometry.leaf);
		else
			check_leaves(l, i, at / s->geometry.chunk, l->images[i] + at, len);
	}
}

static bool take_plan(struct loading *l)
{
	struct rank *r = l->r;
	uint64_t targets[SIM_SHARDS], len = 0;
	const void *bytes = r->n_fds ? memory_fd_bytes(r->sim->w, r->fds[0], &len) : NULL;
	struct err e = {0};

	if (!bytes) {
		sim_accuse(r->sim, "rank %u: a load came without its plan", r->rank);
		return false;
	}
	l->plan_bytes = sim_check(alloc_copy(bytes, len));
	for (uint32_t i = 0; i < r->state.n_parts; i++)
		targets[i] = r->state.parts[i].bytes;
	if (load_plan_decode(l->plan_bytes, len, targets, r->state.n_parts, &l->plan, &e) < 0 ||
	    l->plan.n_sources + 1 != r->n_fds || l->plan.n_sources > SIM_WORLD) {
		sim_accuse(r->sim, "rank %u: a load plan cannot be used: %s", r->rank, e.text);
		return false;
	}
	for (uint32_t i = 0; i < l->plan.n_sources; i++) {
		l->file = l->file || l->plan.sources[i].kind == LOAD_FILE;
		if (l->plan.sources[i].kind == LOAD_MEMORY)
			r->maps[i] = mapping_new(r->sim->w, NULL, r->fds[1 + i]);
		else
			r->maps[i] = NULL;
		r->n_maps = i + 1;
	}
	return true;
}

/* ---- Comparing ---- */

static bool blob_is(struct loading *l, const struct save_key *k, uint32_t world)
{
	struct rank *r = l->r;
	uint64_t len = state_blob_bytes(k);
	uint8_t want[SIM_BLOB_MAX];
	const struct load_blob *b = l->plan.blobs;

	if (r->rank >= world)
		return l->plan.n_blobs == 0;
	if (l->plan.n_blobs != 1 || b->bytes != len)
		return false;
	state_blob(r->job->index, r->rank, k, want, len);
	return memcmp(l->images[b->source] + b->image_offset, want, len) == 0;
}

static bool parts_are(struct loading *l, const struct save_key *k, uint32_t world,
		      uint32_t *ret_part, uint64_t *ret_byte)
{
	struct rank *r = l->r;
	struct saved_by by = {.world = world, .layout = oracle_layout(r->job->oracle, k)};

	for (uint32_t i = 0; i < r->state.n_parts; i++) {
		uint64_t at =
			state_compare(&r->state.parts[i], r->job->index, k, &by, r, l->parts[i]);

		if (at != UINT64_MAX) {
			*ret_part = i;
			*ret_byte = at;
			return false;
		}
	}
	return true;
}

/* I1, I2: all bytes are those of one save. */
static void compare(struct loading *l)
{
	struct rank *r = l->r;
	struct save_key k = {0};
	uint32_t world, part = 99;
	uint64_t byte = 0;

	for (unsigned i = 0; oracle_key(r->job->oracle, l->step, &l->attempt, i, &k, &world); i++) {
		if (!parts_are(l, &k, world, &part, &byte) || !blob_is(l, &k, world))
			continue;
		oracle_loaded(r, l->step, &l->attempt, &k);
		if (world != r->world)
			sim_count(r->sim, load_reshard);
		return;
	}
	sim_accuse(r->sim,
		   "rank %u of %s: step %llu was loaded with bytes that were never saved so (part "
		   "%u, byte %llu)",
		   r->rank, r->job->name, (unsigned long long)l->step, part,
		   (unsigned long long)byte);
}

static void place(struct loading *l)
{
	for (uint32_t i = 0; i < l->r->state.n_parts; i++)
		l->parts[i] = take(l->r->state.parts[i].bytes);
	for (size_t i = 0; i < l->plan.plan.n_pieces; i++) {
		const struct plan_piece *p = &l->plan.plan.pieces[i];

		plan_piece_copy(p, l->images[p->source], 0, l->plan.sources[p->source].image_len,
				l->parts[p->target]);
	}
}

/* ---- One try ---- */

static int say_end(struct loading *l, bool complete)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__LoadEnd m = CKPT__LOAD_END__INIT;
	Ckpt__Origin origin;

	m.load = l->id;
	m.complete = complete;
	m.epoch = l->epoch;
	m.origin = origin_message(l->origin, &origin);
	m.failed = l->bad;
	m.source = l->bad_source;
	m.leaf = l->bad_leaf;
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &m;
	return rank_ask(l->r, &q, 0, 0, NULL);
}

static void loading_fini(struct loading *l)
{
	load_plan_fini(&l->plan);
	alloc_free(l->plan_bytes);
	for (unsigned i = 0; i < SIM_WORLD; i++)
		alloc_free(l->images[i]);
	for (unsigned i = 0; i < SIM_SHARDS; i++)
		alloc_free(l->parts[i]);
	rank_close_fds(l->r);
}

/*
 * The bad leaf is told. A file of which a descriptor was given is never written again; memory is
 * kept as long as the connection is whole.
 */
static int report(struct loading *l)
{
	struct rank *r = l->r;
	const struct load_source *s = &l->plan.sources[l->bad_source];
	bool whole = l->channel == r->channel && r->channel && channel_intact(r->channel);
	bool file = s->kind == LOAD_FILE;
	bool hit = oracle_memory_was_hit(r->job->oracle, &l->attempt, s->rank, file) ||
		   (file && disk_fd_hit(r->sim->w, r->fds[1 + l->bad_source]));
	bool stale = file && disk_fd_stale(r->sim->w, r->fds[1 + l->bad_source]);
	int err;

	sim_count(r->sim, bad_leaf);
	r->sim->counts[COUNT_bad_memory] += !file;
	if (stale)
		sim_count(r->sim, stale_leaf);
	else if (!hit && (whole || file))
		oracle_bad_leaf(r, l->step, s->rank, file);
	err = say_end(l, false);
	if (err == 0 && whole && !stale && l->mismatch && l->channel == r->channel) {
		r->bad_told = true;
		r->bad_file = file;
		r->bad_number = file ? disk_fd_number(r->sim->w, r->fds[1 + l->bad_source]) : 0;
		r->bad_attempt = l->attempt;
		r->bad_rank = s->rank;
		r->bad_starts = r->sim->counts[COUNT_starts];
	}
	return -EAGAIN;
}

/* I11: a copy that was told to be bad, and is, is not offered again (by this life of ckptd). A file
 * may be another one by now. */
static void check_offer(struct loading *l)
{
	struct rank *r = l->r;

	for (uint32_t i = 0; i < l->plan.n_sources; i++) {
		bool file = l->plan.sources[i].kind == LOAD_FILE;

		if (r->bad_told && r->bad_file == file &&
		    l->plan.sources[i].rank == r->bad_rank &&
		    memcmp(&l->attempt, &r->bad_attempt, 16) == 0 &&
		    r->bad_starts == r->sim->counts[COUNT_starts] &&
		    (!file || r->bad_number == disk_fd_number(r->sim->w, r->fds[1 + i])))
			sim_accuse(r->sim,
				   "I2, I11: a damaged %s of step %llu of %s was offered again",
				   file ? "file" : "copy in memory", (unsigned long long)l->step,
				   r->job->name);
	}
}

static int use(struct loading *l, uint64_t step)
{
	struct rank *r = l->r;
	int err;

	l->channel = r->channel;
	if (!take_plan(l))
		return -EPROTO;
	check_offer(l);
	if (l->file) {
		r->reading = r->channel;
		r->reading_step = l->step;
		r->reading_attempt = l->attempt;
	}
	for (uint32_t i = 0; i < l->plan.n_sources && !l->bad; i++)
		read_source(l, i);
	r->reading = NULL;
	if (l->bad)
		return report(l);
	place(l);
	compare(l);
	if (l->file)
		sim_count(r->sim, load_disk);
	else
		sim_count(r->sim, load_memory);
	if (oracle_is_of_older(r, l->epoch, l->step, &l->attempt))
		r->placed_epoch = l->epoch;
	err = say_end(l, true);
	if (err == 0 && (step == UINT64_MAX || r->epoch == l->epoch))
		r->origin = l->origin;
	if (err == 0 && step == UINT64_MAX) {
		r->epoch = l->epoch;
		r->step = l->step;
	}
	return err;
}

static void begin_afresh(struct rank *r, uint64_t epoch)
{
	if (r->epoch != epoch)
		r->origin = (struct origin){ORIGIN_FRESH, 0};
	r->epoch = epoch;
	r->step = 0;
}

static int once(struct rank *r, uint64_t step, uint32_t least, bool *ret_nothing)
{
	struct loading l = {.r = r};
	uint64_t asked_ns = r->sim->w->now_ns;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load m = CKPT__LOAD__INIT;
	Ckpt__Reply *reply = NULL;
	int err;

	m.step = step;
	m.min_trust = least;
	oracle_asks(r, least);
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &m;
	err = rank_ask(r, &q, ASK_MAY_WAIT | ASK_KEEP_FDS, rank_now(r) + LOAD_NS, &reply);
	*ret_nothing = err == 0 && (reply->status & CKPT_NOTHING);
	if (err == 0 && !*ret_nothing) {
		l.id = reply->load->load;
		l.step = reply->load->step;
		l.epoch = reply->load->epoch;
		l.origin = origin_of(reply->load->origin);
		if (reply->load->attempt.len == 16)
			memcpy(l.attempt.b, reply->load->attempt.data, 16);
		if (reply->status & CKPT_FELL_BACK)
			sim_count(r->sim, fell_back);
		oracle_given(r, l.epoch, step == UINT64_MAX, l.step, &l.attempt,
			     reply->status & CKPT_FELL_BACK);
		if (least > TRUST_LATEST)
			oracle_trusted(r, l.step, &l.attempt, least, asked_ns);
		if (step == UINT64_MAX)
			oracle_latest(r, l.epoch, false, l.step, &l.attempt);
	}
	if (err == CKPT_ELOST && step == UINT64_MAX && reply->load && reply->load->epoch) {
		sim_count(r->sim, load_lost);
		oracle_none(r, reply->load->epoch, true);
		oracle_latest(r, reply->load->epoch, true, 0, NULL);
		begin_afresh(r, reply->load->epoch);
	}
	reply_free(reply);
	if (err == 0 && !*ret_nothing)
		err = use(&l, step);
	loading_fini(&l);
	return err;
}

/* Ranks of one job do not all ask for the same. */
static uint32_t asked_trust(struct rank *r)
{
	struct world *w = r->sim->w;
	unsigned one_in = r->sim->profile->ask_trust ? r->sim->profile->ask_trust : 6;

	if (r->sim->peace || r->sim->options.recheck_rate == 0 || !world_one_in(w, one_in))
		return TRUST_LATEST;
	return world_one_in(w, 2) ? TRUST_COMPLETE : TRUST_VERIFIED;
}

int trainer_load(struct rank *r, uint64_t step, bool *ret_nothing)
{
	uint32_t least = asked_trust(r);
	uint64_t epoch = trainer_page_epoch(r);
	int err = -EAGAIN;

	for (int i = 0; i < LOAD_TRIES && (err == -EAGAIN || err == CKPT_ECORRUPT); i++)
		err = once(r, step, least, ret_nothing);
	if (err == 0 && *ret_nothing) {
		sim_count(r->sim, load_nothing);
		if (epoch == trainer_page_epoch(r)) {
			oracle_none(r, epoch, false);
			oracle_latest(r, epoch, true, 0, NULL);
		}
		begin_afresh(r, trainer_page_epoch(r));
	}
	if (err == 0 && step != UINT64_MAX)
		sim_count(r->sim, load_step);
	return err;
}
