/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oracle_rank.c - what ranks sent and were told, held against what the log says.
 */
#include <config.h>

#include <stdio.h>

#include "model/trust.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define LL(x) ((unsigned long long)(x))

static struct oracle *oracle_of(struct rank *r)
{
	return &r->sim->oracle;
}

void oracle_opened(struct rank *r, const struct job_id *id, uint64_t epoch, bool has_base,
		   uint64_t base_step, const struct attempt_id *base)
{
	struct oracle_job *j = oracle_find(oracle_of(r), id);

	if (r->job->oracle && r->job->oracle != j && !oracle_is_gone(oracle_of(r), r->job->oracle))
		sim_accuse(r->sim, "job %s was made a second time", r->job->name);
	r->job->oracle = j;
	if (!j->begun || epoch > j->epoch) {
		sim_accuse(r->sim,
			   "I4: rank %u of %s was let into epoch %llu, which is not in the log",
			   r->rank, r->job->name, LL(epoch));
		return;
	}
	if (epoch != j->epoch)
		return; /* the next one was opened while the answer was on its way */
	if (has_base != j->has_base ||
	    (has_base && (base_step != j->base_step || memcmp(base, &j->base_attempt, 16) != 0)))
		sim_accuse(
			r->sim,
			"I15: rank %u of %s was told another base of epoch %llu than the log has",
			r->rank, r->job->name, LL(epoch));
}

void oracle_removes(struct rank *r)
{
	if (r->job->oracle)
		r->job->oracle->removing = true;
}

void oracle_removed(struct rank *r)
{
	struct oracle_job *j = r->job->oracle;

	sim_count(r->sim, jobs_removed);
	if (!j)
		return;
	j->removed = true;
	if (!oracle_is_gone(oracle_of(r), j))
		sim_accuse(r->sim, "job %s is said to be removed, and its log is there",
			   r->job->name);
}

bool oracle_is_of_older(struct rank *r, uint64_t epoch, uint64_t step, const struct attempt_id *a)
{
	const struct commit_seen *c = oracle_commit(r->job->oracle, step, a);

	return c && c->epoch < epoch;
}

void oracle_seal_sent(struct rank *r, const struct save_key *k)
{
	struct oracle_job *j = r->job->oracle;
	bool placed = r->placed_epoch == k->epoch;
	enum origin_kind origin =
		placed == (r->origin.kind == ORIGIN_RESUMED) ? r->origin.kind : ORIGIN_UNSAID;

	sim_grow(j->seals, j->n_seals, j->cap_seals);
	j->seals[j->n_seals++] = (struct seal_seen){.key = *k,
						    .rank = r->rank,
						    .world = r->world,
						    .layout = r->layout,
						    .memory = r->sim->oracle.memory,
						    .origin = origin};
}

static bool same_key(const struct save_key *a, const struct save_key *b)
{
	return a->epoch == b->epoch && a->step == b->step && a->try == b->try;
}

void oracle_sealed(struct rank *r, const struct save_key *k, const struct attempt_id *a,
		   uint64_t log_epoch)
{
	struct oracle_job *j = r->job->oracle;

	r->job->sealed_ns = r->sim->w->now_ns;
	if (k->epoch < log_epoch)
		sim_accuse(r->sim,
			   "I11: rank %u of %s sealed step %llu of epoch %llu when the job was in "
			   "epoch %llu",
			   r->rank, r->job->name, LL(k->step), LL(k->epoch), LL(log_epoch));
	for (size_t i = 0; i < j->n_seals; i++) {
		struct seal_seen *s = &j->seals[i];
		bool same = s->acknowledged && memcmp(&s->attempt, a, 16) == 0;

		if (s->acknowledged && same != same_key(&s->key, k))
			sim_accuse(
				r->sim,
				"I1, I10: step %llu of %s, epoch %llu, try %u: its attempt is %s",
				LL(k->step), r->job->name, LL(k->epoch), k->try,
				same ? "that of another" : "another one than before");
		if (same_key(&s->key, k) && s->rank == r->rank) {
			s->acknowledged = true;
			s->attempt = *a;
		}
	}
}

static struct commit_seen *commit_of_step(struct oracle_job *j, uint64_t epoch, uint64_t step)
{
	for (size_t i = 0; i < j->n_commits; i++) {
		if (j->commits[i].epoch == epoch && j->commits[i].step == step)
			return &j->commits[i];
	}
	return NULL;
}

void oracle_waited(struct rank *r, uint64_t epoch, uint64_t step, uint32_t what)
{
	struct commit_seen *c = commit_of_step(r->job->oracle, epoch, step);

	if (what == CKPT_SEALED) {
		sim_count(r->sim, wait_sealed);
		return;
	}
	if (!c) {
		sim_accuse(r->sim,
			   "I4: rank %u of %s was told that step %llu is %s, and its record is not "
			   "in the log",
			   r->rank, r->job->name, LL(step),
			   what == CKPT_DURABLE ? "DURABLE" : "COMMITTED");
		return;
	}
	c->said_committed = true;
	if (what == CKPT_COMMITTED)
		sim_count(r->sim, wait_committed);
	if (what != CKPT_DURABLE)
		return;
	/* The next start would take its files away. */
	if (c->lost)
		sim_accuse(r->sim,
			   "I7: rank %u of %s was told that step %llu is DURABLE, and the log "
			   "calls it lost",
			   r->rank, r->job->name, LL(step));
	c->said_durable = true;
	sim_count(r->sim, wait_durable);
	oracle_check_files(oracle_of(r));
}

/* ---- Loads ---- */

bool oracle_key(struct oracle_job *j, uint64_t step, const struct attempt_id *a, unsigned i,
		struct save_key *ret, uint32_t *ret_world)
{
	struct commit_seen *c = oracle_commit(j, step, a);

	if (!c)
		return false;
	*ret_world = c->world;
	if (c->known) {
		*ret = c->key;
		return i == 0;
	}
	for (size_t k = 0; k < j->n_seals; k++) {
		const struct seal_seen *s = &j->seals[k];

		if (s->acknowledged && memcmp(&s->attempt, a, sizeof(*a)) == 0) {
			*ret = s->key;
			return i == 0;
		}
	}
	for (size_t k = 0; k < j->n_seals; k++) {
		const struct seal_seen *s = &j->seals[k];

		if (s->key.epoch == c->epoch && s->key.step == step && s->rank == 0 && i-- == 0) {
			*ret = s->key;
			return true;
		}
	}
	return false;
}

unsigned oracle_layout(const struct oracle_job *j, const struct save_key *k)
{
	for (size_t i = 0; i < j->n_seals; i++)
		if (same_key(&j->seals[i].key, k))
			return j->seals[i].layout;
	return 0;
}

void oracle_loaded(struct rank *r, uint64_t step, const struct attempt_id *a,
		   const struct save_key *k)
{
	struct commit_seen *c = oracle_commit(r->job->oracle, step, a);

	world_note(r->sim->w, "loaded", r->rank, step, k->epoch);
	c->known = true;
	c->key = *k;
}

void oracle_latest(struct rank *r, uint64_t epoch, bool nothing, uint64_t step,
		   const struct attempt_id *a)
{
	struct oracle_job *j = r->job->oracle;

	if (epoch != j->epoch)
		return; /* it went on meanwhile: the rank's next save is refused */
	if (nothing != !j->has_base ||
	    (!nothing && (step != j->base_step || memcmp(a, &j->base_attempt, 16) != 0)))
		sim_accuse(r->sim,
			   "I15: rank %u of %s was given step %llu as latest in epoch %llu, whose "
			   "base is step %llu",
			   r->rank, r->job->name, LL(step), LL(epoch), LL(j->base_step));
}

/* Of an older epoch, and nobody has taken it away. */
static bool is_missed(const struct commit_seen *c, uint64_t epoch)
{
	return c->epoch < epoch && !c->freed && !c->asked;
}

void oracle_none(struct rank *r, uint64_t epoch, bool lost)
{
	struct oracle_job *j = r->job->oracle;

	if (epoch != j->epoch)
		return;
	if (lost && j->n_commits == 0)
		sim_accuse(r->sim,
			   "I11: %s never had a checkpoint, and all of them are called lost",
			   r->job->name);
	for (size_t i = 0; i < j->n_commits && !lost; i++) {
		const struct commit_seen *c = &j->commits[i];

		if (is_missed(c, epoch) && c->lost)
			sim_accuse(r->sim,
				   "I11: step %llu of %s was lost, and rank %u was told that there "
				   "never was a checkpoint",
				   LL(c->step), r->job->name, r->rank);
	}
}

void oracle_given(struct rank *r, uint64_t epoch, bool latest, uint64_t step,
		  const struct attempt_id *a, bool fell_back)
{
	struct oracle_job *j = r->job->oracle;
	const struct commit_seen *c = oracle_commit(j, step, a);

	if (c && c->freed && r->channel && channel_intact(r->channel))
		sim_accuse(r->sim,
			   "I15: step %llu of %s is freed in the log, and rank %u was given it",
			   LL(step), r->job->name, r->rank);
	if (!latest || epoch != j->epoch || !c || fell_back)
		return;
	for (size_t i = (size_t)(c - j->commits) + 1; i < j->n_commits; i++) {
		const struct commit_seen *d = &j->commits[i];

		if (is_missed(d, epoch) && d->said_durable && !d->lost && !d->passed)
			sim_accuse(r->sim,
				   "I11: rank %u of %s was given step %llu and not told that step "
				   "%llu, which was DURABLE, is passed over",
				   r->rank, r->job->name, LL(step), LL(d->step));
	}
}

void oracle_asks(struct rank *r, uint32_t least)
{
	struct oracle_job *j = r->job->oracle;

	if (least > j->asked_ever)
		j->asked_ever = least;
}

void oracle_trusted(struct rank *r, uint64_t step, const struct attempt_id *a, uint32_t least,
		    uint64_t asked_ns)
{
	const struct commit_seen *c = oracle_commit(r->job->oracle, step, a);
	uint32_t trust = c ? c->trust : 0;

	if (c && c->bad_ns >= asked_ns)
		trust &= ~(uint32_t)TRUST_BAD; /* a person said so while it was being answered */
	if (c && !trust_reaches(trust, (enum trust_level)least))
		sim_accuse(r->sim,
			   "I4, I11: rank %u of %s asked for %s, and was given step %llu, of which "
			   "the "
			   "log says %s",
			   r->rank, r->job->name, trust_word(least), LL(step),
			   trust_word(c->trust));
	sim_count(r->sim, trusted);
}

/* A rank found a leaf that does not match, in a copy that nothing had happened to. */
void oracle_bad_leaf(struct rank *r, uint64_t step, uint32_t rank, bool file)
{
	sim_accuse(r->sim,
		   "I2, I9: step %llu of %s: the %s of rank %u does not match its digests, and "
		   "nothing had damaged it",
		   LL(step), r->job->name, file ? "file" : "memory", rank);
}
