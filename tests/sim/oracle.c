/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oracle.c - what a job's log says, record by record as it becomes durable, and whether it may.
 *
 * Records are decoded by coord/, which is the subject: a wrong decoder would be found by the loads
 * that do not give the right bytes. Everything that is concluded from them is concluded here.
 */
#include <config.h>

#include "tests/sim/oracle.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "coord/record.h"
#include "coord/single.h"
#include "model/trust.h"
#include "storage/object_uses.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define LL(x) ((unsigned long long)(x))

void oracle_init(struct oracle *o, struct sim *s)
{
	*o = (struct oracle){.sim = s, .memory = 1};
}

void oracle_fini(struct oracle *o)
{
	for (unsigned i = 0; i < o->n_jobs; i++) {
		free(o->jobs[i].digests);
		free(o->jobs[i].seals);
		free(o->jobs[i].commits);
		free(o->jobs[i].aborts);
		free(o->jobs[i].hits);
	}
}

static void hex(char *to, const uint8_t *b)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < 16; i++) {
		to[2 * i] = digits[b[i] >> 4];
		to[2 * i + 1] = digits[b[i] & 15];
	}
	to[32] = '\0';
}

void oracle_memory_lost(struct oracle *o)
{
	o->memory++;
	world_note(o->sim->w, "memory lost", o->memory, 0, 0);
}

struct oracle_job *oracle_find(struct oracle *o, const struct job_id *id)
{
	for (unsigned i = 0; i < o->n_jobs; i++) {
		if (memcmp(&o->jobs[i].id, id, sizeof(*id)) == 0)
			return &o->jobs[i];
	}
	if (o->n_jobs == ORACLE_JOBS) {
		sim_accuse(o->sim, "there are more jobs than anybody opened");
		return &o->jobs[0];
	}
	o->jobs[o->n_jobs] = (struct oracle_job){.id = *id};
	return &o->jobs[o->n_jobs++];
}

bool oracle_is_gone(struct oracle *o, const struct oracle_job *j)
{
	char id[33], path[64];

	hex(id, j->id.b);
	snprintf(path, sizeof(path), "jobs/%s", id);
	return j->removing && !disk_exists(o->sim->disk, path);
}

struct commit_seen *oracle_commit(struct oracle_job *j, uint64_t step, const struct attempt_id *a)
{
	for (size_t i = j->n_commits; i-- > 0;) {
		if (j->commits[i].step == step &&
		    memcmp(&j->commits[i].attempt, a, sizeof(*a)) == 0)
			return &j->commits[i];
	}
	return NULL;
}

/* ---- Files ---- */

/* Called so often that sprintf() was a tenth of a run. */
static void file_of(const struct oracle_job *j, const struct commit_seen *c, int rank, char *ret,
		    size_t size)
{
	char id[33], attempt[33], name[32] = "COMMIT";

	hex(id, j->id.b);
	hex(attempt, c->attempt.b);
	if (rank >= 0)
		snprintf(name, sizeof(name), "rank-%d.shard", rank);
	snprintf(ret, size, "jobs/%s/%" PRIu64 ".%s/%s", id, c->step, attempt, name);
}

void oracle_memory_hit(struct oracle *o, const struct job_id *id, uint64_t step,
		       const struct attempt_id *a, uint32_t rank)
{
	struct oracle_job *j = oracle_find(o, id);
	const struct commit_seen *c = oracle_commit(j, step, a);

	sim_grow(j->hits, j->n_hits, j->cap_hits);
	j->hits[j->n_hits++] = (struct memory_hit){
		.attempt = *a, .rank = rank, .was_durable = c && c->said_durable};
}

bool oracle_memory_was_hit(const struct oracle_job *j, const struct attempt_id *a, uint32_t rank,
			   bool file)
{
	for (size_t i = 0; i < j->n_hits; i++) {
		const struct memory_hit *h = &j->hits[i];

		if (h->rank == rank && !(file && h->was_durable) &&
		    memcmp(&h->attempt, a, sizeof(*a)) == 0)
			return true;
	}
	return false;
}

static bool folder_was_unreadable(struct oracle *o, const struct oracle_job *j,
				  const struct commit_seen *c)
{
	char path[256];

	file_of(j, c, -1, path, sizeof(path));
	*strrchr(path, '/') = '\0';
	return disk_was_unreadable(o->sim->disk, path);
}

/* The disk was made to damage a file of it, or to refuse to read it; or what it was written from
 * was damaged. */
static bool files_hit(struct oracle *o, const struct oracle_job *j, const struct commit_seen *c)
{
	char path[256];

	for (uint32_t r = 0; r < c->world; r++)
		if (oracle_memory_was_hit(j, &c->attempt, r, true))
			return true;
	if (folder_was_unreadable(o, j, c))
		return true;
	for (int r = -1; r < (int)c->world; r++) {
		file_of(j, c, r, path, sizeof(path));
		if (disk_is_damaged(o->sim->disk, path) || disk_was_unreadable(o->sim->disk, path))
			return true;
	}
	return false;
}

/* Not even damaged ones go: what is written again from memory replaces them (I8). */
static bool shards_there(struct oracle *o, const struct oracle_job *j, const struct commit_seen *c)
{
	char path[256];

	for (int r = 0; r < (int)c->world; r++) {
		file_of(j, c, r, path, sizeof(path));
		if (!disk_exists(o->sim->disk, path))
			return false;
	}
	return true;
}

static bool files_there(struct oracle *o, const struct oracle_job *j, const struct commit_seen *c)
{
	char path[256];

	for (int r = -1; r < (int)c->world; r++) {
		file_of(j, c, r, path, sizeof(path));
		if (!disk_exists(o->sim->disk, path))
			return false;
	}
	return true;
}

/* At its name, or where a sweep has set it aside (storage/object_sweep.c). */
static bool object_path(struct oracle *o, const char *folder, const uint8_t *digest, char *ret,
			size_t size)
{
	char name[33];

	hex(name, digest);
	snprintf(ret, size, "%s/%s", folder, name);
	if (disk_exists(o->sim->disk, ret))
		return true;
	snprintf(ret, size, "%s/" OBJECT_ASIDE "%s", folder, name);
	return disk_exists(o->sim->disk, ret);
}

/* "CKPTLAYO", world, then of each rank its number and its declaration. */
static const char *object_gone(struct oracle *o, const struct commit_seen *c)
{
	uint8_t layout[12 + 20 * 64];
	char path[256];
	int64_t len;

	if (!object_path(o, "layouts", c->layout.b, path, sizeof(path)))
		return "its layout";
	len = disk_peek(o->sim->disk, path, layout, sizeof(layout));
	if (disk_is_damaged(o->sim->disk, path) || len != 12 + 20 * (int64_t)c->world)
		return NULL;
	for (uint32_t r = 0; r < c->world; r++)
		if (!object_path(o, "declarations", layout + 12 + 20 * r + 4, path, sizeof(path)))
			return "a declaration of its layout";
	return NULL;
}

static void check_objects(struct oracle *o, const struct oracle_job *j, const struct commit_seen *c)
{
	const char *gone;

	if (!c->said_durable || c->freed || c->lost || c->commit_lost || !files_there(o, j, c))
		return;
	gone = object_gone(o, c);
	if (gone)
		sim_accuse(o->sim,
			   "I8: step %llu of %s is DURABLE and has its COMMIT, and %s is gone",
			   LL(c->step), j->name, gone);
}

void oracle_check_files(struct oracle *o)
{
	for (unsigned i = 0; i < o->n_jobs; i++) {
		struct oracle_job *j = &o->jobs[i];
		bool gone = oracle_is_gone(o, j);

		if (j->removed && !gone)
			sim_accuse(o->sim, "job %s was removed, and is there again", j->name);
		for (size_t k = 0; !gone && k < j->n_commits; k++) {
			struct commit_seen *c = &j->commits[k];

			check_objects(o, j, c);
			if (c->said_durable && !c->freed && !c->lost && !c->commit_lost &&
			    !c->files_lost && !files_there(o, j, c) && !files_hit(o, j, c))
				sim_accuse(
					o->sim,
					"I4, I7: step %llu of %s was DURABLE, is not freed in the "
					"log, and its files are gone",
					LL(c->step), j->name);
			if (c->said_durable && !c->freed && !c->lost && !c->files_lost &&
			    !shards_there(o, j, c))
				sim_accuse(o->sim,
					   "I8: step %llu of %s was DURABLE, is not freed in the "
					   "log, and files of it were recycled",
					   LL(c->step), j->name);
		}
	}
}

void oracle_flip(struct oracle *o, struct oracle_job *j)
{
	struct commit_seen *c;
	char path[256];

	if (j->n_commits == 0)
		return;
	c = &j->commits[world_random(o->sim->w, j->n_commits)];
	file_of(j, c, (int)world_random(o->sim->w, c->world + 1) - 1, path, sizeof(path));
	if (disk_flip(o->sim->disk, path, 0, UINT64_MAX) == 0)
		world_note(o->sim->w, "flipped", c->step, 0, 0);
}

/* Of the disk, and of points in the code that fail. */
static uint64_t faults(struct oracle *o)
{
	uint64_t n = o->sim->counts[COUNT_errors_at_point];

	for (int f = 0; f < DISK_FAULTS; f++)
		n += disk_fault_count(o->sim->disk, (enum disk_fault)f);
	return n;
}

static void look_for_commit(struct oracle *o, struct oracle_job *j, struct commit_seen *c)
{
	if (!c->commit_lost || daemon_refuses(o->sim, &j->id))
		return;
	c->commit_lost = !files_there(o, j, c);
	if (c->commit_lost && !c->files_lost && !c->freed && !c->lost && !files_hit(o, j, c) &&
	    c->lost_at_fault == faults(o))
		sim_accuse(o->sim,
			   "I8: COMMIT of step %llu of %s was removed, its files and the log are "
			   "good, and a start did not make it again",
			   LL(c->step), j->name);
}

void oracle_started(struct oracle *o)
{
	for (unsigned i = 0; i < o->n_jobs; i++) {
		/* No record says what a load has asked for: who asked asks again. */
		o->jobs[i].asked = TRUST_LATEST;
		if (oracle_is_gone(o, &o->jobs[i]))
			continue;
		for (size_t k = 0; k < o->jobs[i].n_commits; k++)
			look_for_commit(o, &o->jobs[i], &o->jobs[i].commits[k]);
	}
	oracle_check_files(o);
}

void oracle_lose_name(struct oracle *o, struct oracle_job *j, bool shard)
{
	size_t from = j->n_commits ? world_random(o->sim->w, j->n_commits) : 0;
	char path[256];
	int rank;

	for (size_t i = 0; i < j->n_commits; i++) {
		struct commit_seen *c = &j->commits[(from + i) % j->n_commits];

		rank = shard ? (int)world_random(o->sim->w, c->world) : -1;
		file_of(j, c, rank, path, sizeof(path));
		if (!c->said_durable || c->freed || c->lost || disk_remove(o->sim->disk, path) < 0)
			continue;
		world_note(o->sim->w, shard ? "file lost" : "COMMIT lost", c->step, 0, 0);
		if (shard) {
			c->files_lost |= UINT64_C(1) << rank;
			sim_count(o->sim, files_lost);
		} else {
			c->commit_lost = true;
			c->lost_at_fault = faults(o);
			sim_count(o->sim, commits_lost);
		}
		return;
	}
}

/* ---- Records ---- */

static struct commit_seen *newest(struct oracle_job *j);
static bool overtaken(const struct oracle_job *j, const struct commit_seen *c);
static bool aborted(const struct oracle_job *j, const struct attempt_id *a);

/* How many ranks were told that their shards of this attempt are sealed, and memory has them. */
static unsigned acknowledged(const struct oracle *o, const struct oracle_job *j,
			     const struct seal_seen *of)
{
	unsigned n = 0;

	for (size_t i = 0; i < j->n_seals; i++)
		n += j->seals[i].acknowledged && j->seals[i].memory == o->memory &&
		     memcmp(&j->seals[i].attempt, &of->attempt, sizeof(of->attempt)) == 0;
	return n;
}

void oracle_stopped(struct oracle *o, bool on_disk)
{
	for (unsigned i = 0; i < o->n_jobs; i++) {
		struct oracle_job *j = &o->jobs[i];
		struct commit_seen *c = newest(j);

		if (oracle_is_gone(o, j))
			continue;
		for (size_t k = 0; k < j->n_seals; k++) {
			struct seal_seen *s = &j->seals[k];

			if (s->acknowledged && s->key.epoch == j->epoch &&
			    acknowledged(o, j, s) == s->world && !aborted(j, &s->attempt) &&
			    !oracle_commit(j, s->key.step, &s->attempt))
				sim_accuse(
					o->sim,
					"I9: step %llu of %s was SEALED, and an orderly stop has "
					"neither committed nor aborted it",
					LL(s->key.step), j->name);
		}
		/* Where a person took a newer one away, only memory may have had it, until that
		 * one was committed. */
		if (on_disk && c && c->memory == o->memory && !overtaken(j, c) &&
		    !files_there(o, j, c) && !files_hit(o, j, c))
			sim_accuse(o->sim,
				   "I9: step %llu of %s is the newest, and an orderly stop has not "
				   "written it to disk",
				   LL(c->step), j->name);
	}
}

static struct commit_seen *newest(struct oracle_job *j)
{
	for (size_t i = j->n_commits; i-- > 0;) {
		if (!j->commits[i].freed && !j->commits[i].lost)
			return &j->commits[i];
	}
	return NULL;
}

static void on_job(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	if (j->begun)
		sim_accuse(o->sim, "I4: the log of %s was begun anew; nothing had happened to it",
			   j->name);
	j->begun = true;
	snprintf(j->name, sizeof(j->name), "%s", r->job.name);
	j->uid = r->job.uid;
	j->incarnation = r->incarnation;
}

static bool fell_back(const char *reason)
{
	return strncmp(reason, "fell back", 9) == 0;
}

/* Which level the epoch's base has to have: of loads that went back; a damaged base keeps it, a new
 * launch, or life of ckptd, begins at the lowest. Whether this epoch is opened for that. */
static bool asked_of(struct oracle_job *j, const char *reason)
{
	char word[16] = "";

	if (sscanf(reason, "went back: %15s", word) == 1) {
		enum trust_level level = TRUST_LATEST;

		if (trust_parse(word, &level) && level > j->asked)
			j->asked = level;
		return true;
	}
	if (!fell_back(reason))
		j->asked = TRUST_LATEST;
	return false;
}

/* An epoch may pass over what is newer only for want of trust. Which level its base had to have, if
 * damage sent the job back and somebody asks for more than latest, nobody says: at most its own. */
static uint32_t passes_for(struct oracle *o, const struct oracle_job *j, const struct record *r,
			   const struct commit_seen *base, bool went_back)
{
	uint32_t level = base ? trust_level(base->trust) : TRUST_LATEST;

	if (!r->opened.passes || went_back)
		return j->asked;
	if (!fell_back(r->opened.reason) || j->asked_ever == TRUST_LATEST)
		sim_accuse(o->sim,
			   "I5: epoch %llu of %s (%s) passes over what is newer, and nobody asked "
			   "for more than latest",
			   LL(r->opened.number), j->name, r->opened.reason);
	level = level < j->asked_ever ? level : j->asked_ever;
	return level > j->asked ? level : j->asked;
}

/*
 * A commit behind the base must have been let go: by a record, or, where only memory had it, by a
 * newer commit (I4).
 */
static void check_base(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	const struct commit_seen *base = NULL;
	bool went_back = asked_of(j, r->opened.reason);
	uint32_t asked;
	size_t first = 0;

	if (went_back)
		sim_count(o->sim, went_back);
	if (r->opened.has_base) {
		base = oracle_commit(j, r->opened.base_step, &r->opened.base_attempt);
		if (!base || base->freed || base->lost) {
			sim_accuse(
				o->sim,
				"I15: epoch %llu of %s begins with step %llu, which is not there",
				LL(r->opened.number), j->name, LL(r->opened.base_step));
			return;
		}
		first = (size_t)(base - j->commits) + 1;
		if (went_back && !trust_reaches(base->trust, j->asked))
			sim_accuse(
				o->sim,
				"I4, I11: epoch %llu of %s goes back to step %llu for %s, and it "
				"is %s",
				LL(r->opened.number), j->name, LL(base->step), trust_word(j->asked),
				trust_word(base->trust));
	}
	asked = passes_for(o, j, r, base, went_back);
	for (size_t i = first; i < j->n_commits; i++) {
		const struct commit_seen *c = &j->commits[i];
		/* What power loss leaves of a write may look like damage: kept, not called lost. */
		bool in_memory = i + 1 == j->n_commits && c->memory == o->memory;
		bool kept = (in_memory || (c->said_durable && !c->commit_lost)) &&
			    !c->files_lost && !files_hit(o, j, c);

		if (kept && !c->freed && !c->lost && trust_reaches(c->trust, asked) && !c->passed)
			sim_accuse(
				o->sim,
				"I5, I15: epoch %llu of %s begins with step %llu, and step %llu is "
				"newer",
				LL(r->opened.number), j->name, LL(base ? base->step : 0),
				LL(c->step));
	}
	for (size_t i = first; i < j->n_commits && r->opened.passes; i++)
		j->commits[i].passed = true;
}

/* One that was removed and is there again may not be the one that COMMIT knows, for a while, or for
 * good if that was the end of a life. */
static bool file_is_good(struct oracle *o, const struct oracle_job *j, const struct commit_seen *c,
			 int rank)
{
	char path[256];

	if (rank >= 0 && (c->files_lost & UINT64_C(1) << rank))
		return false;
	file_of(j, c, rank, path, sizeof(path));
	return disk_exists(o->sim->disk, path) && !disk_is_damaged(o->sim->disk, path) &&
	       !disk_was_unreadable(o->sim->disk, path);
}

/* I6: of each rank there is a good copy, be it in memory or on disk; one load may mix them. */
static bool is_there(struct oracle *o, const struct oracle_job *j, const struct commit_seen *c)
{
	bool durable = c->said_durable && file_is_good(o, j, c, -1) &&
		       !folder_was_unreadable(o, j, c);

	for (uint32_t r = 0; r < c->world; r++) {
		bool memory =
			damage_has_memory(o->sim, &j->id, c->step, &c->attempt, r) &&
			!oracle_memory_was_hit(j, &c->attempt, r, false);

		if (!memory && !(durable && file_is_good(o, j, c, (int)r) &&
				 !oracle_memory_was_hit(j, &c->attempt, r, true)))
			return false;
	}
	return true;
}

static void check_fall_back(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	const struct commit_seen *base =
		j->has_base ? oracle_commit(j, j->base_step, &j->base_attempt) : NULL;

	if (base && !o->replaying && fell_back(r->opened.reason) && !base->freed &&
	    !(base->trust & TRUST_BAD) && is_there(o, j, base))
		sim_accuse(o->sim,
			   "I6: epoch %llu of %s falls back (%s), and of each rank there is a good "
			   "copy of step %llu, in memory or on disk",
			   LL(r->opened.number), j->name, r->opened.reason, LL(base->step));
}

static void on_epoch(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	if (r->opened.number <= j->epoch)
		sim_accuse(o->sim, "epoch %llu of %s follows epoch %llu", LL(r->opened.number),
			   j->name, LL(j->epoch));
	check_fall_back(o, j, r);
	check_base(o, j, r);
	j->epoch = r->opened.number;
	j->epoch_n = r->n;
	j->has_base = r->opened.has_base;
	j->base_step = r->opened.base_step;
	j->base_attempt = r->opened.base_attempt;
	snprintf(j->run_id, sizeof(j->run_id), "%s", r->opened.run_id);
	sim_count(o->sim, epochs);
}

/* Whether one try of this step was sealed by all ranks: sent, that is. */
static bool all_sealed(const struct oracle_job *j, uint64_t epoch, uint64_t step, uint32_t world)
{
	for (uint32_t try = 0; try < 64; try++) {
		uint64_t ranks = 0;
		bool any = false;

		for (size_t i = 0; i < j->n_seals; i++) {
			const struct seal_seen *s = &j->seals[i];

			if (s->key.epoch != epoch || s->key.step != step)
				continue;
			any = any || s->key.try >= try;
			if (s->key.try == try && s->rank < 64)
				ranks |= UINT64_C(1) << s->rank;
		}
		if (ranks == (UINT64_C(1) << world) - 1)
			return true;
		if (!any)
			return false;
	}
	return false;
}

static bool aborted(const struct oracle_job *j, const struct attempt_id *a)
{
	for (size_t i = 0; i < j->n_aborts; i++) {
		if (memcmp(&j->aborts[i].attempt, a, sizeof(*a)) == 0)
			return true;
	}
	return false;
}

/* What ranks that have loaded and ranks that have not saved as one. */
static bool is_mixed(const struct oracle_job *j, const struct attempt_id *a)
{
	bool seen[ORIGIN_RESUMED + 1] = {false};

	for (size_t i = 0; i < j->n_seals; i++)
		if (j->seals[i].acknowledged && memcmp(&j->seals[i].attempt, a, sizeof(*a)) == 0)
			seen[j->seals[i].origin] = true;
	return seen[ORIGIN_FRESH] && seen[ORIGIN_RESUMED];
}

static void on_commit(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	const struct commit_seen *last = j->n_commits ? &j->commits[j->n_commits - 1] : NULL;

	if (r->epoch != j->epoch)
		sim_accuse(o->sim,
			   "I5: step %llu of %s was committed in epoch %llu when the job was in "
			   "epoch %llu",
			   LL(r->commit.step), j->name, LL(r->epoch), LL(j->epoch));
	if (last && last->epoch == r->epoch && r->commit.step <= last->step)
		sim_accuse(o->sim,
			   "I5: step %llu of %s was committed after step %llu of the same epoch",
			   LL(r->commit.step), j->name, LL(last->step));
	if (aborted(j, &r->commit.attempt))
		sim_accuse(o->sim, "step %llu of %s was committed and aborted", LL(r->commit.step),
			   j->name);
	if (!all_sealed(j, r->epoch, r->commit.step, r->commit.world))
		sim_accuse(
			o->sim,
			"I1, I3: step %llu of %s was committed, and not every rank had sealed it",
			LL(r->commit.step), j->name);
	if (is_mixed(j, &r->commit.attempt))
		sim_accuse(
			o->sim,
			"I15: step %llu of %s was committed, and some ranks had loaded and others "
			"had not",
			LL(r->commit.step), j->name);
	sim_grow(j->commits, j->n_commits, j->cap_commits);
	j->commits[j->n_commits++] = (struct commit_seen){
		.n = r->n,
		.epoch = r->epoch,
		.step = r->commit.step,
		.attempt = r->commit.attempt,
		.world = r->commit.world,
		.layout = r->commit.layout,
		.memory = o->replaying ? j->memory_tried : o->memory,
	};
	sim_count(o->sim, committed);
}

static void on_abort(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	if (oracle_commit(j, r->aborted.step, &r->aborted.attempt))
		sim_accuse(o->sim, "I4: step %llu of %s was aborted after it had been committed",
			   LL(r->aborted.step), j->name);
	sim_grow(j->aborts, j->n_aborts, j->cap_aborts);
	j->aborts[j->n_aborts++] =
		(struct abort_seen){r->n, r->epoch, r->aborted.step, r->aborted.attempt};
	sim_count(o->sim, aborted);
}

static bool reads_files(const struct rank *r, const struct oracle_job *j,
			const struct commit_seen *c)
{
	return r && rank_alive(r) && r->job->oracle == j && r->reading &&
	       r->reading == r->channel && r->reading_step == c->step &&
	       memcmp(&r->reading_attempt, &c->attempt, 16) == 0 && channel_intact(r->channel);
}

static void check_readers(struct oracle *o, struct oracle_job *j, const struct commit_seen *c)
{
	struct rank *z;
	bool read = false;

	for (unsigned i = 0; i < o->sim->n_jobs; i++)
		for (unsigned k = 0; k < SIM_WORLD; k++)
			read = read || reads_files(o->sim->jobs[i].ranks[k], j, c);
	list_each(z, &o->sim->zombies, link)
		read = read || reads_files(z, j, c);
	if (read)
		sim_accuse(o->sim, "I9: step %llu of %s was freed while a rank read its files",
			   LL(c->step), j->name);
}

/* I9: K newer ones are durable and clean. Their files must be there. */
static void check_free(struct oracle *o, struct oracle_job *j, struct commit_seen *c)
{
	unsigned newer = 0;

	for (size_t i = (size_t)(c - j->commits) + 1; i < j->n_commits; i++) {
		const struct commit_seen *d = &j->commits[i];

		newer += !d->freed && !d->lost && (files_there(o, j, d) || files_hit(o, j, d));
	}
	if (c->pinned)
		sim_accuse(o->sim, "I9: step %llu of %s was freed, and it is pinned", LL(c->step),
			   j->name);
	if (j->has_base && c->step == j->base_step &&
	    memcmp(&c->attempt, &j->base_attempt, sizeof(c->attempt)) == 0)
		sim_accuse(o->sim,
			   "I15: step %llu of %s was freed, and it is the base of epoch %llu",
			   LL(c->step), j->name, LL(j->epoch));
	if (newer < o->sim->options.retention.keep_last && !o->replaying && !c->asked)
		sim_accuse(o->sim,
			   "I9: step %llu of %s was freed, and only %u newer ones are DURABLE",
			   LL(c->step), j->name, newer);
	if (!o->replaying)
		check_readers(o, j, c);
}

/* A newer one was there, until a person took it away or it was lost: memory let c go for it. */
static bool overtaken(const struct oracle_job *j, const struct commit_seen *c)
{
	for (const struct commit_seen *d = c + 1; d < j->commits + j->n_commits; d++) {
		if ((d->asked && d->freed) || d->lost)
			return true;
	}
	return false;
}

static bool memory_hit(const struct oracle_job *j, const struct commit_seen *c)
{
	bool hit = false;

	for (uint32_t r = 0; r < c->world; r++)
		hit = hit || oracle_memory_was_hit(j, &c->attempt, r, false);
	return hit;
}

/* I6, I7: what was called lost must have had a reason. */
static void check_lost(struct oracle *o, struct oracle_job *j, struct commit_seen *c)
{
	if (c == newest(j) && c->memory == o->memory && !overtaken(j, c) && !memory_hit(j, c))
		sim_accuse(
			o->sim,
			"I6: step %llu of %s was COMMITTED, its memory was never lost, and it is "
			"called lost",
			LL(c->step), j->name);
	if (c->said_durable && !c->files_lost && !files_hit(o, j, c))
		sim_accuse(
			o->sim,
			"I7: step %llu of %s was DURABLE, its files were never damaged, and it is "
			"called lost",
			LL(c->step), j->name);
}

static void on_free(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	struct commit_seen *c = oracle_commit(j, r->mark.step, &r->mark.attempt);

	if (!c) {
		sim_accuse(o->sim, "step %llu of %s was freed and never committed",
			   LL(r->mark.step), j->name);
		return;
	}
	if (r->mark.value == 1) {
		if (!c->lost) /* else its loss is taken note of */
			check_free(o, j, c);
		c->freed = true;
		sim_count(o->sim, freed);
	} else {
		check_lost(o, j, c);
		c->lost = true;
		sim_count(o->sim, lost);
	}
}

static void on_pin(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	struct commit_seen *c = oracle_commit(j, r->mark.step, &r->mark.attempt);

	/* Of what is lost a pin may be taken back. */
	if (!c || c->freed || (c->lost && r->mark.value == 1))
		sim_accuse(o->sim, "I4: step %llu of %s was pinned, and it is not there",
			   LL(r->mark.step), j->name);
	else
		c->pinned = r->mark.value == 1;
}

static void on_trust(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	struct commit_seen *c = oracle_commit(j, r->mark.step, &r->mark.attempt);

	if (!c || c->freed || c->lost)
		sim_accuse(o->sim, "I4: something was said of step %llu of %s, and it is not there",
			   LL(r->mark.step), j->name);
	else
		c->trust = trust_add(c->trust, r->mark.value);
	if (c && (c->trust & TRUST_BAD) && c->bad_ns == 0)
		c->bad_ns = o->sim->w->now_ns;
	/* If ckptd dies now, the next epoch begins behind it, and nobody asked for that. */
	if (c && (r->mark.value & TRUST_PASSED) && !c->passed)
		sim_accuse(o->sim,
			   "I5: step %llu of %s is passed over, and no epoch went back behind it",
			   LL(c->step), j->name);
}

static void on_lead(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	if (r->term <= j->term)
		sim_accuse(o->sim, "I4: term %llu of %s follows term %llu", LL(r->term), j->name,
			   LL(j->term));
	j->term = r->term;
}

static void fold(struct oracle *o, struct oracle_job *j, const struct record *r)
{
	if (r->type != RECORD_LEAD && r->type != RECORD_JOB && r->term != j->term)
		sim_accuse(o->sim, "I4: a record of term %llu of %s was appended in term %llu",
			   LL(r->term), j->name, LL(j->term));
	switch (r->type) {
	case RECORD_JOB:
		on_job(o, j, r);
		break;
	case RECORD_LEAD:
		on_lead(o, j, r);
		break;
	case RECORD_EPOCH:
		on_epoch(o, j, r);
		break;
	case RECORD_COMMIT:
		on_commit(o, j, r);
		break;
	case RECORD_ABORT:
		on_abort(o, j, r);
		break;
	case RECORD_FREE:
		on_free(o, j, r);
		break;
	case RECORD_PIN:
		on_pin(o, j, r);
		break;
	case RECORD_TRUST:
		on_trust(o, j, r);
		break;
	case RECORD_SUM:
		break;
	}
}

static void see(struct oracle *o, const struct job_id *id, uint64_t n, const void *bytes,
		size_t len)
{
	struct oracle_job *j = oracle_find(o, id);
	uint64_t digest = world_digest(bytes, len);
	struct record r;

	world_note(o->sim->w, "record", n, len, digest);
	if (j->made)
		return;
	if (record_decode(bytes, len, &r, NULL, NULL) < 0) {
		sim_accuse(o->sim, "record %llu of %s cannot be read", LL(n), j->name);
		return;
	}
	if (n < j->n_records) {
		if (r.type == RECORD_JOB && r.incarnation != j->incarnation)
			sim_accuse(o->sim,
				   "I4: the log of %s was begun anew; nothing had happened to it",
				   j->name);
		else if (j->digests[n] != digest)
			sim_accuse(o->sim, "I4: record %llu of %s has changed", LL(n), j->name);
		return;
	}
	if (n > j->n_records) {
		sim_accuse(o->sim, "record %llu of %s came before record %llu", LL(n), j->name,
			   LL(j->n_records));
		return;
	}
	sim_grow(j->digests, j->n_records, j->cap_digests);
	j->digests[j->n_records++] = digest;
	sim_count(o->sim, records);
	fold(o, j, &r);
}

/* ---- The log that ckptd sees ---- */

struct watched_log {
	struct joblog log;
	struct joblog *real;
	struct oracle *oracle;
	struct job_id id;
};

struct scan {
	struct watched_log *log;
	joblog_fn *fn;
	void *arg;
	uint64_t next; /* one behind the last that was seen */
};

static struct watched_log *of(struct joblog *l)
{
	return container_of(l, struct watched_log, log);
}

static int watched_append(struct joblog *l, uint64_t n, const void *bytes, size_t len,
			  struct err *e)
{
	struct watched_log *x = of(l);
	int r;

	oracle_find(x->oracle, &x->id)->memory_tried = x->oracle->memory;
	r = x->real->ops->append(x->real, n, bytes, len, e);
	if (r == 0) {
		see(x->oracle, &x->id, n, bytes, len);
		oracle_find(x->oracle, &x->id)->n_sure = n + 1;
	}
	return r;
}

static bool watched_unclear(struct joblog *l)
{
	return of(l)->real->ops->unclear(of(l)->real);
}

static int scanned(void *arg, uint64_t n, const void *bytes, size_t len)
{
	struct scan *s = arg;

	s->log->oracle->replaying = true;
	see(s->log->oracle, &s->log->id, n, bytes, len);
	s->log->oracle->replaying = false;
	s->next = n + 1;
	return s->fn(s->arg, n, bytes, len);
}

/* What was appended is there; what an append left unclear is there now or never. */
static int watched_scan(struct joblog *l, joblog_fn *fn, void *arg, struct err *e)
{
	struct watched_log *x = of(l);
	struct scan s = {x, fn, arg, 0};
	struct oracle_job *j = oracle_find(x->oracle, &x->id);
	uint64_t sure = j->n_sure;
	int r = x->real->ops->scan(x->real, scanned, &s, e);

	if (j->made)
		return r;
	if (r == CKPT_ECORRUPT)
		sim_accuse(x->oracle->sim,
			   "I4: the log of %s is damaged at record %llu; nothing had "
			   "happened to it",
			   j->name, LL(s.next));
	if (r == 0 && s.next < sure)
		sim_accuse(x->oracle->sim,
			   "I4: the log of %s ends with record %llu, and record %llu was "
			   "appended",
			   j->name, LL(s.next) - 1, LL(sure) - 1);
	if (r == 0) {
		/* A record that was seen on its way and never became durable. */
		j->n_sure = s.next;
	}
	return r;
}

static int watched_trim(struct joblog *l, uint64_t n)
{
	return of(l)->real->ops->trim(of(l)->real, n);
}

static void watched_close(struct joblog *l)
{
	of(l)->real->ops->close(of(l)->real);
	alloc_free(of(l));
}

static const struct joblog_ops watched_ops = {
	.append = watched_append,
	.unclear = watched_unclear,
	.scan = watched_scan,
	.trim = watched_trim,
	.close = watched_close,
};

int oracle_open_log(void *arg, const struct job_id *job, bool anew, struct joblog **ret,
		    struct err *e)
{
	struct sim *s = arg;
	struct watched_log *x = sim_check(alloc_zero(sizeof(*x)));
	char id[33], dir[64];
	int r;

	hex(id, job->b);
	snprintf(dir, sizeof(dir), "jobs/%s/log%s", id, anew ? ".new" : "");
	x->log.ops = &watched_ops;
	x->oracle = &s->oracle;
	x->id = *job;
	r = joblog_single_open(s->disk, dir, &x->real, e);
	if (r < 0) {
		alloc_free(x);
		return r;
	}
	*ret = &x->log;
	return 0;
}
