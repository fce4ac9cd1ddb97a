/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preparing.c - takes the slots of a rank, and lets regions go: each may take a second per GiB, so
 * a MEMORY worker does it; the loop never waits for pages. A process that asks for its descriptors
 * early gets them before there are pages: slot_fill.c makes these.
 *
 * A region is in the fd store before the ledger names it: a crash in between leaves a region that
 * nobody names, which adoption destroys. If the member ends meanwhile its slots are let go.
 *
 * A slot whose tables will be too long for records of the ledger has a second region for them, made
 * and destroyed with it: so a save needs neither memory nor a place in the fd store.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fault.h"
#include "ckptd/disk_need.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

#define BLOB_BYTES_MAX (1ull << 40)
#define TRIES_MAX      3
#define SLOTS_LEAST    2u /* of memory.slots (config.c) */

struct preparing {
	struct work work;
	struct job *job;
	struct memory *memory;
	struct process_id process;
	uint32_t rank, first_slot, n_slots;
	bool early; /* the answer comes before the pages */
	uint64_t bytes;
	struct session *session; /* who asked last */
	uint64_t request;
	struct user *user; /* has taken so much: */
	uint32_t places;
	uint64_t memory_bytes;
	struct region *regions[CONN_FDS_MAX];
	uint32_t n_regions;
	uint64_t table_bytes; /* of each slot's region for tables; 0: they have none */
	struct region *tables[CONN_FDS_MAX];
	uint32_t n_tables;
	struct disk_need *disk_need;
	struct replicas_wait known; /* the work begins then, */
	struct list link;           /* or, in node->memory_waits, when what is destroyed is gone, or
				     in job->room_waits, when an expiry is over */
	bool lacks_disk;            /* disk_need.c has found no room, and nothing was made */
	int tries;
	struct err err;
};

struct destruction {
	struct work work;
	struct node *node;
	struct region *region;
	uint64_t bytes;
	struct region_charge charge;
};

/* ---- Letting go ---- */

static void destroy_run(struct work *w)
{
	struct destruction *d = container_of(w, struct destruction, work);

	d->node->env.memory->ops->destroy(d->node->env.memory, d->region);
	w->status = 0;
}

static void discharge(struct region_charge charge)
{
	if (!charge.user)
		return;
	user_give(charge.user, USER_REGIONS, 1);
	user_give(charge.user, USER_MEMORY_BYTES, charge.memory);
	user_put(charge.user);
}

static bool lacks_memory(const struct preparing *p)
{
	uint64_t budget;

	return p->memory_bytes > p->memory->ops->available(p->memory, &budget);
}

static void create_submit(struct preparing *p)
{
	/* What only takes memory is not to wait behind what makes pages. */
	job_submit(p->job, p->early ? WORK_META : WORK_MEMORY, &p->work);
}

static void destroy_done(struct work *w)
{
	struct destruction *d = container_of(w, struct destruction, work);
	struct node *n = d->node;
	struct preparing *p, *next;

	n->side_works--;
	assert(n->destroying >= d->bytes);
	n->destroying -= d->bytes;
	discharge(d->charge);
	alloc_free(d);
	list_each_safe(p, next, &n->memory_waits, link) {
		if (n->destroying > 0 && lacks_memory(p))
			continue;
		list_del(&p->link);
		create_submit(p);
	}
}

void region_destroy_charged(struct node *n, uint32_t uid, struct region *r,
			    struct region_charge charge)
{
	struct destruction *d = alloc_zero(sizeof(*d));

	if (!d) {
		n->env.memory->ops->destroy(n->env.memory, r); /* slow, but it goes */
		discharge(charge);
		return;
	}
	d->node = n;
	d->region = r;
	d->bytes = r->size;
	d->charge = charge;
	n->destroying += d->bytes;
	d->work.run = destroy_run;
	d->work.done = destroy_done;
	n->side_works++;
	work_submit(n->env.workers, WORK_MEMORY, uid, &d->work);
}

void region_destroy(struct node *n, uint32_t uid, struct region *r)
{
	region_destroy_charged(n, uid, r, (struct region_charge){0});
}

/* ---- Taking ---- */

#define MIB (1u << 20) /* what is missing is rounded up, what there is down */

_Static_assert(DECLARATION_BYTES_MAX <= LEDGER_PAYLOAD_MAX / 4, "tables hold one, and more");

/* Each save writes one, which has to fit in a record of the ledger. */
static int admit_table(const struct member *m, uint64_t bytes, struct err *e)
{
	uint64_t table = ledgering_table(m->job, m->declared->len, bytes, SEAL_BLOBS_MAX,
					 CONN_MESSAGE_MAX);

	if (table <= LEDGER_PAYLOAD_MAX)
		return 0;
	return err_set(e, -E2BIG,
		       "rank %u: the table of digests of its %llu MiB would have %llu MiB, at most "
		       "%u can be kept; use more ranks",
		       m->rank, (unsigned long long)div_up(bytes, MIB),
		       (unsigned long long)div_up(table, MIB), LEDGER_PAYLOAD_MAX / MIB);
}

/* ", or lower memory.slots to 2", which is the least, where that would be enough. */
static const char *fewer_slots(const struct member *m, uint64_t bytes, uint32_t n_slots,
			       uint64_t coming)
{
	uint64_t want;
	bool helps = n_slots > SLOTS_LEAST && m->job->node->options.slots > SLOTS_LEAST &&
		     size_mul(bytes, SLOTS_LEAST, &want) &&
		     size_add(want, ledgering_reserve(m, bytes), &want) && want <= coming;

	return helps ? " or lower memory.slots to 2" : "";
}

/* Says what is missing before training starts (C10, A6). */
static int prepare_admit(struct member *m, uint64_t bytes, uint32_t n_slots, struct err *e)
{
	struct node *n = m->job->node;
	uint64_t budget, available, coming, want, needed;

	if (!size_mul(bytes, n_slots, &want) ||
	    !size_add(want, ledgering_reserve(m, bytes), &want))
		return err_set(e, CKPT_ENOSPACE, "rank %u: its state is too large", m->rank);
	available = n->env.memory->ops->available(n->env.memory, &budget);
	/* What a process that has just ended leaves is not free yet, and is waited for. */
	if (!size_add(available, n->destroying, &coming))
		coming = UINT64_MAX;
	needed = div_up(budget, MIB) + div_up(want - min_u64(want, coming), MIB);
	if (want > coming)
		return err_set(
			e, CKPT_ENOSPACE,
			"rank %u: %u slots of %llu MiB and what is written down of them need %llu "
			"MiB of memory, %llu MiB of the budget of %llu MiB are left; set "
			"memory.budget to at least %lluM%s (ckptd.conf, or ckptd --set "
			"memory.budget=%lluM), or end other jobs",
			m->rank, n_slots, (unsigned long long)div_up(bytes, MIB),
			(unsigned long long)div_up(want, MIB), (unsigned long long)(coming >> 20),
			(unsigned long long)(budget >> 20), (unsigned long long)needed,
			fewer_slots(m, bytes, n_slots, coming), (unsigned long long)needed);
	return 0;
}

/* Places of a slot, which may have a region for tables. */
static uint32_t places(uint32_t n_slots, uint64_t table_bytes)
{
	return n_slots * (table_bytes ? 2 : 1);
}

/*
 * Takes the user's share of memory and of the fd store's places; each slot that is made then counts
 * by itself. The places matter as memory that the store does not keep is lost when ckptd ends,
 * committed or not (I6).
 */
static int take_share(struct preparing *p, struct member *m, uint64_t bytes, uint32_t n_slots,
		      struct err *e)
{
	uint64_t table = ledgering_table_region(m->job, m->declared->len, bytes), all;
	struct user *u = session_user(p->session);
	char what[64];
	int r;

	snprintf(what, sizeof(what), "rank %u: prepare %u slots", m->rank, n_slots);
	if (!size_add(bytes, table, &all) || !size_mul(all, n_slots, &all))
		return err_set(e, CKPT_ENOSPACE, "rank %u: its state is too large", m->rank);
	r = user_may_store(u, places(n_slots, table), what, e);
	if (r == 0)
		r = user_take(u, USER_MEMORY_BYTES, all, what, e);
	if (r < 0)
		return r;
	p->user = user_ref(u);
	p->memory_bytes = all;
	p->places = places(n_slots, table);
	user_add(u, USER_REGIONS, p->places);
	return 0;
}

static void give_share(struct preparing *p)
{
	user_give(p->user, USER_REGIONS, p->places);
	user_give(p->user, USER_MEMORY_BYTES, p->memory_bytes);
	user_put(p->user);
}

static int create_table(struct preparing *p, uint32_t i)
{
	char name[REGION_NAME_MAX + 1];
	int r;

	if (!p->table_bytes)
		return 0;
	ledgering_table_name(p->job, p->first_slot + i, name, sizeof(name));
	r = p->memory->ops->create(p->memory, name, p->table_bytes, &p->tables[i]);
	if (r == 0)
		p->n_tables++;
	return r;
}

static int create_slot(struct preparing *p, const char *name)
{
	const struct memory_ops *ops = p->memory->ops;

	return (p->early ? ops->reserve : ops->create)(p->memory, name, p->bytes,
						       &p->regions[p->n_regions]);
}

static void create_run(struct work *w)
{
	struct preparing *p = container_of(w, struct preparing, work);
	char hex[ID_TEXT_MAX], name[REGION_NAME_MAX + 1];

	p->lacks_disk = false;
	if (work_cancelled(w)) {
		w->status = -ECANCELED;
		return;
	}
	assert(p->n_regions == 0 && p->n_tables == 0); /* also when it is tried again */
	hex_format(hex, p->job->history.job.id.b, 16);
	w->status = disk_need_admit(p->disk_need, &w->cancel, &p->err);
	p->lacks_disk = w->status == CKPT_ENOSPACE;
	while (p->n_regions < p->n_slots && w->status == 0) {
		if (work_cancelled(w)) {
			w->status = -ECANCELED;
			return;
		}
		snprintf(name, sizeof(name), "slot.%s.%u", hex, p->first_slot + p->n_regions);
		w->status = create_slot(p, name);
		if (w->status == 0) {
			p->n_regions++;
			w->status = create_table(p, p->n_regions - 1);
		}
	}
}

void preparing_cancel(struct member *m)
{
	if (m->preparing)
		atomic_store_explicit(&m->preparing->work.cancel, true, memory_order_relaxed);
}

static struct member *still_there(struct preparing *p)
{
	struct member *m = member_of_rank(p->job, p->rank);

	return m && m->alive && m->preparing == p ? m : NULL;
}

static int take_regions(struct preparing *p, struct member *m)
{
	struct job *j = p->job;
	int r = 0;

	for (uint32_t i = 0; i < p->n_regions && r == 0; i++) {
		struct slot *s = alloc_zero(sizeof(*s));

		r = s ? ledger_slot(&j->ledger, p->first_slot + i, m->rank, p->regions[i]->name,
				    &m->process)
		      : -ENOMEM;
		if (r < 0) {
			alloc_free(s);
			break;
		}
		s->job = j;
		s->number = p->first_slot + i;
		s->rank = m->rank;
		s->region = p->regions[i];
		s->table = p->tables[i];
		s->process = m->process;
		list_init(&s->of_member);
		slot_give(s, m);
		s->state = SLOT_MAPPING;
		list_add_tail(&j->slots, &s->link);
		slot_count(s);
		p->regions[i] = p->tables[i] = NULL;
		if (s->table)
			j->ledger.annexes_wanted = true; /* before a credit */
	}
	return r;
}

static void destroy_left(const struct preparing *p, struct region *const *regions, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct region_charge charge = {0};

		if (!regions[i])
			continue;
		charge = (struct region_charge){user_ref(p->user), regions[i]->size};
		user_add(p->user, USER_REGIONS, 1);
		user_add(p->user, USER_MEMORY_BYTES, charge.memory);
		region_destroy_charged(p->job->node, p->job->history.job.uid, regions[i], charge);
	}
}

/* m: NULL: it has left. */
static void refuse(struct preparing *p, struct member *m, int r)
{
	uint64_t budget, left = p->memory->ops->available(p->memory, &budget);

	if (r == -ECANCELED && p->job->node->stopping)
		return; /* the connection ends: the next ckptd is asked */
	/* disk_need_admit() says why, if its rank has not left meanwhile. */
	assert(r == -ECANCELED || !p->lacks_disk || p->err.code == r);
	if (p->err.code == 0 && r == -ENOSPC)
		err_set(&p->err, r,
			"rank %u: take %u slots of %llu MiB: %s: %llu of %llu MiB are left",
			p->rank, p->n_slots, (unsigned long long)(p->bytes >> 20),
			memory_error_text(r), (unsigned long long)(left >> 20),
			(unsigned long long)(budget >> 20));
	else if (p->err.code == 0 && r == -ENOMEM)
		err_set(&p->err, r,
			"rank %u: take %u slots of %llu MiB: %s, though %llu of %llu MiB of "
			"memory.budget are left: the cgroup of ckptd or the machine has no more "
			"(MemoryMax= of the unit, systemd-cgtop)",
			p->rank, p->n_slots, (unsigned long long)(p->bytes >> 20),
			memory_error_text(r), (unsigned long long)(left >> 20),
			(unsigned long long)(budget >> 20));
	else if (p->err.code == 0)
		err_set(&p->err, r, "rank %u: take %u slots of %llu MiB: %s", p->rank, p->n_slots,
			(unsigned long long)(p->bytes >> 20), memory_error_text(r));
	if (m)
		problems_prepare_refused(m,
					 p->lacks_disk  ? PREPARE_DISK
					 : r == -ENOSPC ? PREPARE_BUDGET
					 : r == -ENOMEM ? PREPARE_MEMORY
							: PREPARE_OTHER,
					 p->err.text);
	session_reply_error(p->session, p->request, r == -ENOSPC ? CKPT_ENOSPACE : r, p->err.text);
}

/* Several ranks may have counted on the same memory that is about to be free: again when it is. */
static bool waits_again(struct preparing *p)
{
	struct node *n = p->job->node;

	if (n->destroying == 0 || n->stopping || p->tries++ == TRIES_MAX)
		return false;
	destroy_left(p, p->regions, p->n_regions);
	destroy_left(p, p->tables, p->n_tables);
	memset(p->regions, 0, sizeof(p->regions));
	memset(p->tables, 0, sizeof(p->tables));
	p->n_regions = p->n_tables = 0;
	list_add_tail(&n->memory_waits, &p->link);
	return true;
}

void preparing_has_room(struct job *j)
{
	struct preparing *p, *next;

	list_each_safe(p, next, &j->room_waits, link) {
		list_del(&p->link);
		create_submit(p);
	}
}

/* What is kept only while the disk has room gives way to it: again when an expiry is over, or the
 * slice of what is read again is. Without the log nothing goes: it may be down for long. */
static bool waits_for_room(struct preparing *p)
{
	if (p->job->node->stopping || job_stopped(p->job) || job_log_down(p->job) ||
	    !retain_make_room(p->job))
		return false;
	memset(&p->err, 0, sizeof(p->err));
	list_add_tail(&p->job->room_waits, &p->link);
	return true;
}

static void create_done(struct work *w)
{
	struct preparing *p = container_of(w, struct preparing, work);
	struct member *m = still_there(p);
	int r = m && !job_stopped(p->job) ? w->status : -ECANCELED;

	if (r == -ENOSPC && waits_again(p))
		return;
	/* The fd store has the same code: no checkpoint's files make room there. */
	if (r == CKPT_ENOSPACE && p->lacks_disk && waits_for_room(p))
		return;
	if (m && disk_need_one(p->disk_need))
		p->job->next_bytes = disk_need_one(p->disk_need);
	if (r == 0 && FAULT(SLOTS_CREATED))
		r = -ENOMEM;
	if (r == 0)
		r = take_regions(p, m);
	destroy_left(p, p->regions, p->n_regions);
	destroy_left(p, p->tables, p->n_tables);
	give_share(p); /* what there is counts by itself now */
	if (m)
		m->preparing = NULL;
	/* All of them were made by a Prepare that failed: none is filled, or has a credit. */
	if (m && r < 0 && !job_stopped(p->job) && JOB_ASSERT(p->job, !m->prepared && !m->sealing))
		member_drop_slots(m);
	if (r < 0)
		refuse(p, m, r);
	else
		session_prepared(p->session, p->request, m);
	session_unref(p->session);
	disk_need_free(p->disk_need);
	p->job->works--;
	job_poke(p->job);
	alloc_free(p);
}

static int write_member(struct member *m, struct err *e)
{
	int r = ledger_member(&m->job->ledger, m->rank, &m->process, m->epoch, m->credit,
			      m->credit_unused, m->blob_bytes, &m->declared->digest);

	return r < 0 ? err_code(e, r, "rank %u: write to the ledger", m->rank) : 0;
}

static void create_start(struct replicas_wait *known)
{
	struct preparing *p = container_of(known, struct preparing, known);
	struct node *n = p->job->node;

	if (n->destroying > 0 && lacks_memory(p))
		list_add_tail(&n->memory_waits, &p->link);
	else
		create_submit(p);
}

static int prepare_start(struct member *m, struct session *s, const struct slots_wanted *wanted,
			 uint64_t bytes, uint32_t n_slots, struct err *e)
{
	struct node *n = m->job->node;
	struct preparing *p = alloc_zero(sizeof(*p));
	int r;

	if (p)
		p->disk_need = disk_need_new(m);
	if (!p || !p->disk_need) {
		alloc_free(p);
		return err_code(e, -ENOMEM, "rank %u: prepare", m->rank);
	}
	p->session = s;
	r = take_share(p, m, bytes, n_slots, e);
	if (r == 0)
		r = write_member(m, e);
	if (r < 0) {
		if (p->user)
			give_share(p);
		disk_need_free(p->disk_need);
		alloc_free(p);
		return r;
	}
	p->job = m->job;
	p->memory = n->env.memory;
	p->process = m->process;
	p->rank = m->rank;
	p->n_slots = n_slots;
	p->first_slot = m->job->next_slot;
	m->job->next_slot += p->n_slots;
	p->bytes = bytes;
	p->table_bytes = ledgering_table_region(m->job, m->declared->len, bytes);
	p->early = wanted->early;
	p->session = session_ref(s);
	p->request = wanted->request;
	p->work.run = create_run;
	p->work.done = create_done;
	p->known.known = create_start;
	m->preparing = p;
	p->job->works++;
	if (!disk_need_wait(p->disk_need, &p->known))
		create_start(&p->known);
	return 0;
}

/*
 * How many slots a Prepare has to make. ckptd may have been killed while it wrote them into the
 * ledger: a rank whose Prepare was never answered then has some of its slots, none of them mapped,
 * and needs the others, or it would never get a credit.
 */
static uint32_t slots_missing(const struct member *m)
{
	uint32_t wanted = m->job->node->options.slots, n = 0;
	struct slot *s;

	list_each(s, &m->slots, of_member) {
		if (s->state != SLOT_MAPPING || s->busy)
			return 0;
		n++;
	}
	if (BUG(SLOTS_LEFT_OUT) && n > 0)
		return 0;
	return n < wanted ? wanted - n : 0;
}

int member_prepare(struct member *m, struct session *s, const struct slots_wanted *wanted,
		   enum prepare_lacks *ret_lacks, struct err *e)
{
	uint64_t bytes, blob_bytes = wanted->blob_bytes;
	uint32_t missing = slots_missing(m);
	int r;

	*ret_lacks = PREPARE_OTHER;
	if (!m->declared)
		return err_set(e, CKPT_ESTATE, "rank %u: declare before prepare", m->rank);
	if ((m->preparing || member_has_slots(m)) && m->blob_bytes < blob_bytes)
		return err_set(e, CKPT_ESTATE, "rank %u: already prepared for %llu bytes of blobs",
			       m->rank, (unsigned long long)m->blob_bytes);
	if (m->preparing) { /* asked again after a reconnect: the newest asker is answered */
		session_unref(m->preparing->session);
		m->preparing->session = session_ref(s);
		m->preparing->request = wanted->request;
		return 0;
	}
	if (missing == 0 || m->sealing) {
		session_prepared(s, wanted->request, m);
		return 0;
	}
	if (m->job->node->stopping)
		return 0; /* not answered: the next ckptd is asked */
	if (member_has_slots(m)) /* they have room for what was asked for first */
		blob_bytes = m->blob_bytes;
	if (blob_bytes > BLOB_BYTES_MAX)
		return err_set(e, -EINVAL, "rank %u: %llu bytes of blobs are too many", m->rank,
			       (unsigned long long)blob_bytes);
	m->blob_bytes = blob_bytes;
	bytes = member_slot_bytes(m);
	r = admit_table(m, bytes, e);
	if (r < 0)
		return r;
	r = prepare_admit(m, bytes, missing, e);
	if (r < 0) {
		*ret_lacks = PREPARE_BUDGET;
		return r;
	}
	r = prepare_start(m, s, wanted, bytes, missing, e);
	if (r == -ENOMEM)
		*ret_lacks = PREPARE_MEMORY;
	return r;
}
