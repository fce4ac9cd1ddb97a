/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_trainer.c - what a rank does, from its first open until it is killed or out:
 *
 *   open -> declare -> (slots) -> load latest -> train, save, wait, now and then load a step
 *   CKPT_EEPOCH at any time: load, then go on from there
 *   Seal refused, or not heard of: its credit is given back before the next save
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/trust.h"
#include "proto/session_page.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define STEP_NS       (6 * SIM_MS)
#define CREDIT_NS     (60 * SIM_MS)
#define WAIT_NS       (300 * SIM_MS)
#define PEACE_WAIT_NS (20 * SIM_S)

#define THROWN_AWAY_MIN 2 /* a rank that begins its save just when its window is chosen */

/* ---- Declare, prepare ---- */

int trainer_declare(struct rank *r)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare m = CKPT__DECLARE__INIT;

	m.digest = (ProtobufCBinaryData){16, r->state.digest.b};
	m.bytes = (ProtobufCBinaryData){r->state.declaration_len, r->state.declaration};
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &m;
	return rank_ask(r, &q, 0, 0, NULL);
}

static int map_slots(struct rank *r, const Ckpt__PrepareReply *m)
{
	if (m->n_slots != r->n_fds || m->n_slots > SIM_SLOTS) {
		sim_accuse(r->sim, "rank %u: prepare gave %zu slots and %zu descriptors", r->rank,
			   m->n_slots, r->n_fds);
		return -EPROTO;
	}
	if (m->n_slots != r->sim->options.slots)
		sim_accuse(r->sim, "liveness: rank %u was given %zu of %u slots", r->rank,
			   m->n_slots, r->sim->options.slots);
	rank_unmap_slots(r);
	for (size_t i = 0; i < m->n_slots; i++) {
		r->slots[i].number = m->slots[i];
		r->slots[i].map = mapping_new(r->sim->w, NULL, r->fds[i]);
		r->n_slots = (uint32_t)i + 1;
		if (!r->slots[i].map || !r->slots[i].map->writable) {
			sim_accuse(r->sim, "rank %u: slot %u cannot be mapped for writing", r->rank,
				   r->slots[i].number);
			rank_unmap_slots(r);
			return -EPROTO;
		}
	}
	return 0;
}

static int prepare(struct rank *r)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare m = CKPT__PREPARE__INIT;
	Ckpt__Reply *reply = NULL;
	int err;

	m.blob_bytes = SIM_BLOB_MAX;
	m.early = r->rank % 2 == 0;
	q.body_case = CKPT__REQUEST__BODY_PREPARE;
	q.prepare = &m;
	err = rank_ask(r, &q, ASK_KEEP_FDS, 0, &reply);
	if (err == 0)
		err = map_slots(r, reply->prepare);
	reply_free(reply);
	rank_close_fds(r);
	if (err < 0)
		return err;
	rank_sleep(r, world_random(r->sim->w, SIM_MS)); /* it populates them */
	return 0;
}

int trainer_take_slots(struct rank *r)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	int err = 0;

	/* What is mapped stays: ckptd may have sealed some of them already. */
	if (r->n_slots == 0)
		err = prepare(r);
	if (err < 0)
		return err;
	q.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	q.slots_ready = &ready;
	err = rank_ask(r, &q, 0, 0, NULL);
	r->slots_said = err == 0 && r->n_slots > 0; /* a lost ckptd may have taken them */
	return err;
}

/* ---- Saving ---- */

static struct session_page *page_of(struct rank *r)
{
	return (struct session_page *)r->page->base;
}

uint64_t trainer_page_epoch(struct rank *r)
{
	return page_of(r)->epoch;
}

static uint32_t count_try(struct rank *r, uint64_t step)
{
	for (unsigned i = 0; i < 16; i++) {
		if (r->tries[i].n && r->tries[i].step == step && r->tries[i].epoch == r->epoch)
			return r->tries[i].n++;
	}
	r->tries[r->next_try % 16].epoch = r->epoch;
	r->tries[r->next_try % 16].step = step;
	r->tries[r->next_try++ % 16].n = 1;
	return 0;
}

static int say_skip(struct rank *r, const struct save_key *k, uint64_t credit)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip m = CKPT__SKIP__INIT;

	m.step = k->step;
	m.epoch = k->epoch;
	m.try_ = k->try;
	m.credit = credit;
	m.kind = credit ? CKPT_SKIP_FAILED : CKPT_SKIP_NONE;
	m.reason = (char *)(credit ? "its save failed" : "no credit");
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &m;
	sim_count(r->sim, skipped);
	return rank_ask(r, &q, credit ? ASK_SLOTS : 0, 0, NULL);
}

static bool same_save(const struct save_key *a, const struct save_key *b)
{
	return a->epoch == b->epoch && a->step == b->step && a->try == b->try && a->epoch != 0;
}

/*
 * A trouble in the middle of a save costs the other ranks' copies of it: a rank dies, or ckptd
 * does, or the ledger loses what a rank had. So does the first save of an epoch, which ranks that
 * had no credit for it yet may come back to. A rank with the wrong window is one without a trouble.
 */
static uint64_t thrown_away_max(const struct sim *s)
{
	static const enum count troubles[] = {
		COUNT_epochs, COUNT_starts,          COUNT_rank_kills,
		COUNT_breaks, COUNT_errors_at_point, COUNT_torn_ledgers,
	};
	uint64_t n = 0;

	for (size_t i = 0; i < sizeof(troubles) / sizeof(troubles[0]); i++)
		n += s->counts[troubles[i]];
	return THROWN_AWAY_MIN + n * (SIM_WORLD - 1);
}

/* Copies that one rank made for nothing, because another had no credit for that step. */
static void count_thrown_away(struct rank *r, const struct save_key *k, bool sealed)
{
	uint64_t max = thrown_away_max(r->sim);

	for (uint32_t i = 0; i < r->world; i++) {
		const struct rank *o = r->job->ranks[i];

		if (!o || o == r || !same_save(k, sealed ? &o->newest_skipped : &o->newest_sealed))
			continue;
		sim_count(r->sim, thrown_away);
		sim_tell(r->sim, "%s: step %llu was %s by rank %u and %s by rank %u: %llu of %llu",
			 r->job->name, (unsigned long long)k->step, sealed ? "sealed" : "skipped",
			 r->rank, sealed ? "skipped" : "sealed", o->rank,
			 (unsigned long long)r->sim->counts[COUNT_thrown_away],
			 (unsigned long long)max);
	}
	if (r->sim->counts[COUNT_thrown_away] > max)
		sim_accuse(r->sim,
			   "more than %llu copies were made for nothing: ranks of %s have credits "
			   "for different steps",
			   (unsigned long long)max, r->job->name);
}

/* The credit of a save whose end is not known: not used until ckptd has said that it is free. */
static int settle(struct rank *r)
{
	int err = 0;

	if (r->unsettled_credit && r->unsettled_generation == r->generation)
		err = say_skip(r, &r->unsettled, r->unsettled_credit);
	if (err == 0 || r->unsettled_generation != r->generation) {
		r->unsettled_credit = 0;
		return 0;
	}
	return err;
}

static struct rank_slot *take_credit(struct rank *r, uint64_t step)
{
	struct session_page *page = page_of(r);
	uint64_t credit = page->credit;

	if (credit <= r->credit_used || step < page->credit_from)
		return NULL;
	for (uint32_t i = 0; i < r->n_slots; i++) {
		if (r->slots[i].number == page->credit_slot) {
			r->credit_used = credit;
			return &r->slots[i];
		}
	}
	sim_accuse(r->sim, "rank %u of %s: credit %llu is for slot %u, which it does not have",
		   r->rank, r->job->name, (unsigned long long)credit, (unsigned)page->credit_slot);
	return NULL;
}

/* The credit that its page shows is for a later step. */
static bool passed(struct rank *r, uint64_t step)
{
	struct session_page *page = page_of(r);

	return page->credit > r->credit_used && page->credit_from != CREDIT_NOT_YET &&
	       step < page->credit_from;
}

static int wait_credit(struct rank *r, uint64_t step, uint64_t wait_ns, struct rank_slot **ret)
{
	uint64_t deadline = rank_now(r) + wait_ns;

	for (;;) {
		Ckpt__Request q = CKPT__REQUEST__INIT, stop = CKPT__REQUEST__INIT;
		Ckpt__Credit m = CKPT__CREDIT__INIT;
		Ckpt__Cancel cancel = CKPT__CANCEL__INIT;
		int err;

		trainer_begins_save(r, step, wait_ns > 0);
		*ret = take_credit(r, step);
		if (*ret)
			return 0;
		if (page_of(r)->epoch != r->epoch)
			return CKPT_EEPOCH;
		if (rank_now(r) >= deadline || passed(r, step))
			return 0;
		q.body_case = CKPT__REQUEST__BODY_CREDIT;
		q.credit = &m;
		err = rank_ask(r, &q, ASK_MAY_WAIT, deadline, NULL);
		if (err == 0)
			continue;
		if (err != CKPT_ETIMEDOUT)
			return err;
		cancel.request = q.id;
		stop.body_case = CKPT__REQUEST__BODY_CANCEL;
		stop.cancel = &cancel;
		err = rank_ask(r, &stop, 0, 0, NULL);
		if (err < 0)
			return err;
	}
}

/* Piece by piece, so that it may die in the middle. */
static void fill(struct rank *r, struct rank_slot *slot, const struct save_key *k)
{
	uint8_t *base = slot->map->base;
	struct world *w = r->sim->w;

	if (!mapping_has_pages(slot->map))
		sim_accuse(r->sim, "I13: rank %u has a credit for slot %u, which has no pages",
			   r->rank, slot->number);
	for (uint32_t i = 0; i < r->state.n_parts; i++) {
		state_fill(&r->state.parts[i], r->job->index, k, r->rank,
			   base + r->state.parts[i].image_offset);
		if (world_one_in(w, 3))
			rank_sleep(r, world_random(w, SIM_MS));
	}
	memset(base + r->state.blob_offset, 0, SIM_BLOB_MAX);
	state_blob(r->job->index, r->rank, k, base + r->state.blob_offset, state_blob_bytes(k));
	if (world_one_in(w, 20))
		rank_sleep(r, world_random(w, 200 * SIM_MS));
}

static int seal(struct rank *r, struct rank_slot *slot, const struct save_key *k, uint64_t credit,
		uint64_t generation)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Seal m = CKPT__SEAL__INIT;
	Ckpt__BlobPlace blob = CKPT__BLOB_PLACE__INIT, *blobs[] = {&blob};
	Ckpt__Reply *reply = NULL;
	uint64_t log_epoch = r->job->oracle->epoch;
	struct attempt_id a;
	int err;

	if (generation != r->generation)
		return CKPT_EUNAVAILABLE; /* its slots were replaced while it wrote */
	blob.name = (char *)"rng";
	blob.image_offset = r->state.blob_offset;
	blob.bytes = state_blob_bytes(k);
	m.step = k->step;
	m.epoch = k->epoch;
	m.try_ = k->try;
	m.credit = credit;
	m.slot = slot->number;
	m.image_len = blob.image_offset + blob.bytes;
	m.blobs = blobs;
	m.n_blobs = 1;
	m.declaration = (ProtobufCBinaryData){16, r->state.digest.b};
	q.body_case = CKPT__REQUEST__BODY_SEAL;
	q.seal = &m;
	oracle_seal_sent(r, k);
	err = rank_ask(r, &q, ASK_SLOTS, 0, &reply);
	if (err == 0) {
		memcpy(a.b, reply->seal->attempt.data, 16);
		oracle_sealed(r, k, &a, log_epoch);
		sim_count(r->sim, sealed);
		r->newest_sealed = *k;
		count_thrown_away(r, k, true);
	}
	reply_free(reply);
	return err;
}

/* 0, CKPT_SKIPPED, or why not. */
static int save(struct rank *r, struct save_key *ret_key)
{
	struct save_key k = {.epoch = r->epoch, .step = r->step};
	struct rank_slot *slot;
	struct world *w = r->sim->w;
	uint64_t credit, generation;
	int err = settle(r);

	if (err < 0)
		return err;
	if (page_of(r)->epoch != r->epoch)
		return CKPT_EEPOCH;
	k.try = count_try(r, r->step);
	*ret_key = k;
	err = wait_credit(r, k.step,
			  r->sim->peace        ? PEACE_WAIT_NS
			  : world_one_in(w, 4) ? 0
					       : CREDIT_NS,
			  &slot);
	trainer_begins_save(r, k.step, false);
	if (err < 0)
		return err;
	if (!slot) {
		r->newest_skipped = k;
		count_thrown_away(r, &k, false);
		/* The client says it to a ckptd that is there, and to none later. */
		err = r->channel ? say_skip(r, &k, 0) : 0;
		return err < 0 ? err : CKPT_SKIPPED;
	}
	credit = r->credit_used;
	generation = r->generation;
	fill(r, slot, &k);
	r->unsettled = k;
	r->unsettled_credit = credit;
	r->unsettled_generation = generation;
	err = seal(r, slot, &k, credit, generation);
	if (err == 0)
		r->unsettled_credit = 0;
	return err;
}

/* ---- Waiting ---- */

static int wait_for(struct rank *r, const struct save_key *k, uint32_t what)
{
	Ckpt__Request q = CKPT__REQUEST__INIT, stop = CKPT__REQUEST__INIT;
	Ckpt__Wait m = CKPT__WAIT__INIT;
	Ckpt__Cancel cancel = CKPT__CANCEL__INIT;
	uint64_t deadline = rank_now(r) + (r->sim->peace ? PEACE_WAIT_NS : WAIT_NS);
	int err;

	m.step = k->step;
	m.epoch = k->epoch;
	m.what = what;
	q.body_case = CKPT__REQUEST__BODY_WAIT;
	q.wait = &m;
	err = rank_ask(r, &q, ASK_MAY_WAIT, deadline, NULL);
	if (err == 0)
		oracle_waited(r, k->epoch, k->step, what);
	if (err == CKPT_ESUPERSEDED)
		sim_count(r->sim, superseded);
	if (err != CKPT_ETIMEDOUT)
		return err;
	sim_count(r->sim, wait_timeout);
	cancel.request = q.id;
	stop.body_case = CKPT__REQUEST__BODY_CANCEL;
	stop.cancel = &cancel;
	err = rank_ask(r, &stop, 0, 0, NULL);
	return err < 0 ? err : CKPT_ETIMEDOUT;
}

static int wait_some(struct rank *r, const struct save_key *k)
{
	struct world *w = r->sim->w;
	int err;

	if (r->sim->peace) {
		err = wait_for(r, k, CKPT_DURABLE);
		if (err == 0 && r->job->goal)
			r->job->goal--;
		return err;
	}
	if (world_one_in(w, r->sim->profile->wait_durable))
		return wait_for(r, k, CKPT_DURABLE);
	if (world_one_in(w, 3))
		return wait_for(r, k, CKPT_COMMITTED);
	return world_one_in(w, 6) ? wait_for(r, k, CKPT_SEALED) : 0;
}

/* ---- The life of a trainer ---- */

static bool is_out(int err)
{
	return err == -ESHUTDOWN || err == CKPT_ESTATE;
}

static int ask_adopt(struct rank *r)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	char hex[ID_TEXT_MAX];
	int err;

	hex_format(hex, r->sim->made.id.job.b, sizeof(r->sim->made.id.job.b));
	m.verb = CKPT__ADMIN__VERB__ADOPT;
	m.job = hex;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	err = rank_ask(r, &q, ASK_MAY_WAIT, rank_now(r) + WAIT_NS, NULL);
	if (err == 0)
		made_adopted(r);
	return err;
}

/* What a person does with ckptctl, at any time: to one of the newest, most often. */
static int admin(struct rank *r)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	struct oracle_job *j = r->job->oracle;
	struct world *w = r->sim->w;
	struct commit_seen *c;
	struct attempt_id attempt;
	int err;

	if (made_is_for(r) && world_one_in(w, 2))
		return ask_adopt(r);
	if (j->n_commits == 0)
		return 0;
	c = &j->commits[j->n_commits - 1 - world_random(w, min_u64(j->n_commits, 4))];
	attempt = c->attempt;
	m.trust = world_one_in(w, 8) ? TRUST_BAD : TRUST_VERIFIED;
	m.verb = world_one_in(w, r->sim->profile->ask_trust ? 2 : 8) ? CKPT__ADMIN__VERB__TRUST
		 : world_one_in(w, 2)                                  ? CKPT__ADMIN__VERB__REMOVE
		 : world_one_in(w, 3) ? CKPT__ADMIN__VERB__PIN
				      : CKPT__ADMIN__VERB__UNPIN;
	m.job = r->job->name;
	m.step = c->step;
	m.attempt = (ProtobufCBinaryData){16, attempt.b};
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	c->asked = c->asked || m.verb == CKPT__ADMIN__VERB__REMOVE;
	err = rank_ask(r, &q, ASK_MAY_WAIT, rank_now(r) + WAIT_NS, NULL);
	if (err < 0)
		return err;
	c = oracle_commit(j, m.step, &attempt);
	if (m.verb == CKPT__ADMIN__VERB__TRUST) {
		sim_count(r->sim, vouched);
		if (trust_add(c->trust, m.trust) != c->trust)
			sim_accuse(r->sim,
				   "I4: trust in step %llu of %s is said to be recorded, and is "
				   "not in the log",
				   (unsigned long long)m.step, r->job->name);
		return 0;
	}
	if (m.verb != CKPT__ADMIN__VERB__REMOVE) {
		sim_count(r->sim, pinned);
		return 0;
	}
	sim_count(r->sim, removed);
	if (!c->freed)
		sim_accuse(r->sim, "I4: step %llu of %s is said to be removed, without a record",
			   (unsigned long long)m.step, r->job->name);
	return 0;
}

/* Until a load has said what the epoch begins with. */
static int load_latest(struct rank *r)
{
	bool nothing;
	int err;

	for (int i = 0; i < 50; i++) {
		err = trainer_load(r, UINT64_MAX, &nothing);
		if (err == CKPT_ELOST)
			return 0; /* somebody has decided to begin anew */
		if (err == 0 || is_out(err))
			return err;
		if (err == CKPT_EEPOCH)
			return -ESHUTDOWN; /* no longer a member: its run is over */
		rank_sleep(r, 1 + world_random(r->sim->w, 20 * SIM_MS));
	}
	if (r->sim->peace)
		sim_accuse(r->sim, "rank %u of %s: the base cannot be loaded in peace: %d", r->rank,
			   r->job->name, err);
	return -ESHUTDOWN;
}

static int train(struct rank *r)
{
	struct world *w = r->sim->w;
	struct save_key k = {0};
	bool nothing;
	int err;

	for (;;) {
		rank_sleep(r, 1 + world_random(w, STEP_NS));
		if (r->sim->peace && r->job->goal == 0)
			rank_sleep(r, SIM_S);
		r->step++;
		trainer_beat(r);
		if (r->forgets && (r->sim->peace || world_one_in(w, 16))) {
			r->forgets = false;
			r->loaded_late = true;
			err = load_latest(r);
			if (err < 0)
				return err;
		}
		if (r->step % 2)
			continue;
		if (!r->sim->peace && world_one_in(w, 30))
			rank_sleep(r, world_random(w, 100 * SIM_MS)); /* a straggler */
		err = r->slots_said ? 0 : trainer_take_slots(r);
		if (err == CKPT_EEPOCH || is_out(err))
			return err;
		err = save(r, &k);
		if (err == 0)
			err = wait_some(r, &k);
		if (err < 0 && world_one_in(w, 3) && r->step > 1 && err != CKPT_EEPOCH)
			r->step--, r->step--; /* the same step again */
		if (err == CKPT_EEPOCH || is_out(err))
			return err;
		if (!r->sim->peace && r->sim->profile->admin &&
		    world_one_in(w, r->sim->profile->admin) && admin(r) == -ESHUTDOWN)
			return -ESHUTDOWN;
		if (!r->sim->peace &&
		    world_one_in(w, r->sim->profile->load_step ? r->sim->profile->load_step : 20) &&
		    is_out(trainer_load(r, r->step > 8 ? r->step - 2 * world_random(w, 5) : 2,
					&nothing)))
			return -ESHUTDOWN;
	}
}

/* Until ckptd has heard of the ends of all its ranks, reads no more of it, or has it no longer. */
static void remove_job(struct rank *r)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	int err = -EAGAIN;

	m.verb = CKPT__ADMIN__VERB__REMOVE_JOB;
	m.job = r->job->name;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	for (int i = 0; i < 30 && (err == -EAGAIN || err == -EBUSY); i++) {
		oracle_removes(r);
		err = rank_ask(r, &q, ASK_MAY_WAIT, rank_now(r) + PEACE_WAIT_NS, NULL);
		if (err == 0)
			oracle_removed(r);
		else
			rank_sleep(r, 1 + world_random(r->sim->w, 20 * SIM_MS));
	}
	sim_tell(r->sim, "%s is removed: %d", r->job->name, err);
}

void trainer_main(void *arg)
{
	struct rank *r = arg;
	int err;

	if (r->removes) {
		remove_job(r);
		return;
	}

	state_make(&r->state, r->job->index, r->rank, r->world, r->layout,
		   r->sim->options.geometry);
	err = rank_join(r);
	if (err == 0)
		err = trainer_declare(r);
	for (int i = 0; err == 0 && i < 100; i++) {
		err = trainer_take_slots(r);
		if (err == 0 || is_out(err) || err == CKPT_EEPOCH)
			break;
		rank_sleep(r, 1 + world_random(r->sim->w, 20 * SIM_MS));
		err = 0;
	}
	r->forgets = !r->sim->peace && world_one_in(r->sim->w, 8);
	while (err == 0) {
		err = r->forgets ? 0 : load_latest(r);
		if (err == 0)
			err = train(r);
		r->forgets = false;
		if (err == CKPT_EEPOCH)
			err = 0;
	}
	sim_tell(r->sim, "rank %u of %s ends: %d", r->rank, r->job->name, err);
}
