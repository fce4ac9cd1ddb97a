/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ledgering.c - the memory of a job's ledger: taken before the first member joins, moved to another
 * region before it is full or when it has become far too large, let go with the last member and
 * the last slot.
 *
 * A META worker makes the region, which waits for memory and for the fd store; the loop only copies
 * the current state into it, in slices (ledger.h), one a step of the job. `coming` is the bytes of
 * declarations that wait and of the tables that slots have yet to write, so that there is room for
 * each table; for blobs, what a rank's next Seal and its table can name, as far as names fill the
 * message. If the old region is short of that, declarations and credits wait for the next one.
 *
 * Failure modes: no memory for the first one: opens are refused. For a later one: a smaller one is
 * taken, or it is tried again a tenth of a second later; until then a record that does not fit is
 * the last resort of ledger.h.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/user.h"
#include "model/table.h"

#define RETRY_NS     100000000u
#define SMALL_BYTES  640u  /* slot, ready, assign, sealed, empty and gone of a slot, and a table's
			      that names its region; of a member */
#define SHRINK_ABOVE (1u << 20)

struct ledger_making {
	struct work work;
	struct job *job;
	struct memory *memory;
	char name[REGION_NAME_MAX + 1];
	uint64_t size, size_min, generation;
	struct region *region;
};

/* ---- How large ---- */

uint64_t ledgering_table(const struct job *j, uint64_t declaration_len, uint64_t image_len,
			 uint64_t n_blobs, uint64_t names_len)
{
	uint64_t bytes = rank_table_bytes(declaration_len, image_len,
					  j->node->options.geometry.leaf, n_blobs, names_len);

	return size_add(bytes, SMALL_BYTES, &bytes) ? bytes : UINT64_MAX;
}

uint64_t ledgering_table_region(const struct job *j, uint64_t declaration_len,
				uint64_t slot_bytes)
{
	uint64_t bytes = ledgering_table(j, declaration_len, slot_bytes, 0, 0);

	if (bytes <= j->node->options.ledger_inline || bytes > LEDGER_PAYLOAD_MAX)
		return 0;
	/* A blob takes 7 bytes of a Seal, which is one message, at least, and 24 of a table. */
	return round_up(bytes + 5 * CONN_MESSAGE_MAX, 4096);
}

void ledgering_table_name(const struct job *j, uint32_t slot, char *buf, size_t size)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, j->history.job.id.b, sizeof(j->history.job.id.b));
	snprintf(buf, size, "table.%s.%u", hex, slot);
}

static uint64_t table_bytes(const struct slot *s)
{
	const struct shard_state *sh = s->holds ? &s->holds->shards[s->rank] : NULL;
	const struct declared *d = s->member ? s->member->declared : NULL;

	if (s->table || (sh && sh->table))
		return 0; /* it is there, or SMALL_BYTES */
	if (!sh)
		return ledgering_table(s->job, d ? d->len : 0, s->region->size, 0, 0);
	return ledgering_table(s->job, sh->declared->len, sh->image_len, sh->blobs->n,
			       sh->blobs->names_len);
}

/* The bytes that members and slots will write before any of it can be dropped. */
static uint64_t coming(const struct job *j)
{
	uint64_t bytes = j->ledger_need + LEDGER_SLACK;
	struct member *m;
	struct slot *s;

	list_each(s, &j->slots, link)
		bytes += SMALL_BYTES + table_bytes(s);
	list_each(m, &j->members, link)
		bytes += SMALL_BYTES + (m->prepared ? 2 * CONN_MESSAGE_MAX : 0);
	return bytes;
}

/* An upper bound of what a move will write. Measuring it exactly takes as long as the move. */
static uint64_t live_at_most(const struct job *j)
{
	uint64_t bytes = LEDGER_SLACK;
	struct declared *d;
	struct member *m;
	struct slot *s;

	list_each(d, &j->declared, link)
		bytes += SMALL_BYTES + declared_record_bytes(d);
	list_each(m, &j->members, link)
		bytes += SMALL_BYTES;
	for (uint32_t r = 0; j->seen && r < j->history.epoch.world; r++)
		bytes += j->seen[r] ? SMALL_BYTES : 0; /* those that have left, too */
	list_each(s, &j->slots, link) {
		const struct shard_state *sh = s->holds ? &s->holds->shards[s->rank] : NULL;

		bytes += SMALL_BYTES;
		if (sh)
			bytes += 24 * (uint64_t)sh->blobs->n + sh->blobs->names_len;
		bytes += sh && !sh->table_in_region ? sh->table_len : 0;
	}
	return bytes;
}

uint64_t ledgering_reserve(const struct member *m, uint64_t slot_bytes)
{
	uint64_t each = ledgering_table(m->job, m->declared->len, slot_bytes, 0, 0);
	uint64_t region = ledgering_table_region(m->job, m->declared->len, slot_bytes);
	uint64_t slots = m->job->node->options.slots;

	/* While it is moved there are two, each with room for twice what is there. */
	return 4 * (declared_record_bytes(m->declared) + (region ? 0 : slots * each) +
		    2 * CONN_MESSAGE_MAX) +
	       2 * LEDGER_SLACK + slots * region;
}

/* Whether records will need a feature that its header does not have. */
static bool lacks_feature(const struct ledger *l)
{
	return l->annexes_wanted && !l->annexes;
}

bool ledgering_short(const struct job *j)
{
	return (j->ledger_making || j->ledger.next) &&
	       (!j->ledger.region || lacks_feature(&j->ledger) ||
		ledger_room(&j->ledger) < coming(j));
}

/* ---- Charging the user ---- */

void ledgering_uncount(struct job *j)
{
	if (j->ledger_user)
		user_give(j->ledger_user, USER_REGIONS, 1);
	user_put(j->ledger_user);
	j->ledger_user = NULL;
}

/* Charged from the moment when the first one is being made. */
static void recount(struct job *j)
{
	if (!j->ledger.region && !j->ledger_making) {
		ledgering_uncount(j);
	} else if (!j->ledger_user && j->user) {
		j->ledger_user = user_ref(j->user);
		user_add(j->ledger_user, USER_REGIONS, 1);
	}
}

/* ---- Taking and moving ---- */

static void make_run(struct work *w)
{
	struct ledger_making *k = container_of(w, struct ledger_making, work);

	w->status = k->memory->ops->create(k->memory, k->name, k->size, &k->region);
	while (w->status < 0 && w->status != CKPT_ENOSPACE && k->size > k->size_min) {
		k->size = max_u64(k->size / 2, k->size_min); /* memory is short */
		w->status = k->memory->ops->create(k->memory, k->name, k->size, &k->region);
	}
}

static void make_done(struct work *w)
{
	struct ledger_making *k = container_of(w, struct ledger_making, work);
	struct job *j = k->job;
	struct region *old = NULL;
	int r = w->status;

	j->node->works--;
	j->ledger_making = NULL;
	if (r == 0 && job_stopped(j)) {
		r = -ECANCELED; /* what its state is written from cannot be true */
		old = k->region;
	}
	if (r == 0) {
		r = j->ledger.region ? ledger_move_begin(&j->ledger, k->region, k->generation)
				     : ledger_move(&j->ledger, k->region, k->generation, &old);
		if (r < 0)
			old = k->region;
	}
	if (old)
		region_destroy(j->node, j->history.job.uid, old);
	if (r < 0 && r != CKPT_ESTALE)
		j->ledger_retry_ns = loop_now(j->node->env.loop) + RETRY_NS;
	recount(j);
	if (!j->ledger.region)
		epoch_no_ledger(j, r);
	job_poke(j);
	node_stop_step(j->node);
	alloc_free(k);
}

static int make_start(struct job *j, uint64_t size, uint64_t size_min)
{
	struct ledger_making *k;

	if (!JOB_ASSERT(j, !j->ledger_making))
		return -ECANCELED;
	k = alloc_zero(sizeof(*k));
	if (!k)
		return -ENOMEM;
	j->ledger.job = j->history.job.id;
	j->ledger.folder_id = j->node->store.folder_id;
	k->job = j;
	k->memory = j->node->env.memory;
	k->size = size;
	k->size_min = min_u64(size_min, size);
	ledger_next_name(&j->ledger, k->name, sizeof(k->name), &k->generation);
	k->work.run = make_run;
	k->work.done = make_done;
	j->ledger_making = k;
	recount(j);
	j->node->works++;
	job_submit(j, WORK_META, &k->work);
	return 0;
}

bool ledgering_ready(struct job *j)
{
	int r;

	if (j->ledger.region)
		return true;
	if (!j->ledger_making) {
		r = make_start(j, ledger_size(0, 0), ledger_size(0, 0));
		if (r < 0)
			epoch_no_ledger(j, r);
	}
	return false;
}

static void move_on(struct job *j)
{
	struct region *old = NULL;
	int r = ledger_move_slice(&j->ledger, &old);

	if (r < 0) {
		old = ledger_move_give_up(&j->ledger);
		j->ledger_retry_ns = loop_now(j->node->env.loop) + RETRY_NS;
	}
	if (old)
		region_destroy(j->node, j->history.job.uid, old);
	job_poke(j); /* to make the next one, or to go on with what waited for this one */
}

static void let_go(struct job *j)
{
	if (j->ledger.next)
		region_destroy(j->node, j->history.job.uid, ledger_move_give_up(&j->ledger));
	region_destroy_charged(j->node, j->history.job.uid, ledger_detach(&j->ledger),
			       (struct region_charge){j->ledger_user, 0});
	j->ledger_user = NULL;
}

static bool unused(const struct job *j)
{
	return list_empty(&j->members) && list_empty(&j->slots) && !epoch_opens(j) &&
	       !j->ledger_making;
}

void ledgering_step(struct job *j)
{
	struct ledger *l = &j->ledger;
	uint64_t more, live, size, least;
	bool full;

	recount(j); /* adoption has brought one */
	if (!l->region || j->ledger_making)
		return;
	if (unused(j)) {
		let_go(j);
		return;
	}
	if (l->next) {
		move_on(j);
		return;
	}
	more = coming(j);
	full = ledger_room(l) < 2 * more || lacks_feature(l);
	if ((!full && !(l->loose && l->region->size > SHRINK_ABOVE)) ||
	    loop_now(j->node->env.loop) < j->ledger_retry_ns)
		return;
	live = live_at_most(j);
	size = ledger_size(live, more);
	least = max_u64(ledger_size(0, 0), round_up(live + more, 4096) + LEDGER_SLACK);
	l->loose = false;
	if (full || l->region->size / 4 > size)
		ignore_result(make_start(j, size, least) /* the next event tries again */);
}
