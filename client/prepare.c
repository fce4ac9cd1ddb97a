/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prepare.c - takes everything that saves will need, so that none of them takes anything.
 *
 *   declaration ended -> Declare -> Prepare: slots arrive -> mapped -> SlotsReady: ckptd fills
 *     them, one after another, and nobody else can write to them -> the thread populates each
 *
 * What can be missing (memory, disk, addresses) is found out here, by ckpt_prepare() before
 * training starts. It waits for all of this. A load does not: it asks for slots when it has placed
 * everything, maps them if they come at once, and the rest goes on beside the training.
 *
 * Training may run already: behind a load, when a ckptd came back without its memory and has new
 * slots to give, or at a first save where nobody prepared. No save waits for all this beyond its
 * deadline (I13), and but for the first only if it was asked to wait for a credit. So whatever
 * takes time goes on between the calls: ckptd's answer to a question comes when it comes (struct
 * asking), and the library's thread populates, pins and lets go of slots (mapping.c). A save
 * without slots, or whose slot is not populated yet, is skipped like one without a credit.
 *
 * All on the caller's thread.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/client.h"
#include "client/mapping.h"
#include "codec/copy.h"
#include "codec/digest.h"

/* Each blob begins at a multiple of 64 in the image: room for what BLOBS_MAX of them round up. */
#define BLOB_SLACK ((uint64_t)BLOBS_MAX * IMAGE_ALIGN)
#define LOOK_NS      (1 * NS_PER_MS) /* between two looks for the first credit */
#define HAND_OVER_MS 10 /* a load gives ckptd so long to hand over slots: it needs some */
/* The slowest machine that is worth waiting for faults pages in at this rate. */
#define POPULATE_BYTES_PER_MS (64ull << 10)
#define ROUNDS_MAX            24
#define LOSSES_MAX            3 /* of one question: what kills ckptd is not fed to it for ever */

uint64_t blobs_offset(const struct ckpt *c)
{
	return round_up(c->own.view.image_bytes, IMAGE_ALIGN_LARGE);
}

/* What a call waits for. */
enum need {
	NEED_MAPPED, /* they are mapped, and ckptd is told */
	NEED_ONE,    /* and the one that is saved into next is filled and populated */
	NEED_ALL,    /* and all are that ckptd does not fill later */
};

/* The question on the way to slots; its answer may come in a later call. */
struct asking {
	struct request q; /* without a body: nothing is asked */
	struct ckpt *c;
	Ckpt__Prepare prepare;
	Ckpt__SlotsReady ready;
	struct mapping *m; /* for Prepare's answer */
	uint64_t over;     /* the connection that it was sent over */
	struct err err;
};

/* ---- Questions ---- */

static bool asked(const struct ckpt *c)
{
	return c->asking && c->asking->q.message.body_case != CKPT__REQUEST__BODY__NOT_SET;
}

static void asking_end(struct ckpt *c)
{
	if (!asked(c))
		return;
	request_forget(&c->asking->q);
	c->asking->q.message.body_case = CKPT__REQUEST__BODY__NOT_SET;
	mapping_free(c->asking->m);
	c->asking->m = NULL;
}

static int prepare_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct asking *a = container_of(q, struct asking, q);
	struct ckpt *c = a->c;
	const Ckpt__PrepareReply *p = reply->prepare;
	struct mapping *m = a->m;
	int r = 0;

	if (q->status < 0)
		return 0;
	if (reply->body_case != CKPT__REPLY__BODY_PREPARE || p->n_slots == 0 ||
	    p->n_slots != n_fds || n_fds > SLOTS_MAX)
		return err_set(q->err, CKPT_EPROTO, "ckptd answered with %zu descriptors where it "
			       "should hand over slots", n_fds);
	if (p->slot_bytes < blobs_offset(c) + c->blob_bytes)
		return err_set(q->err, CKPT_EPROTO, "ckptd handed over slots of %llu bytes for a "
			       "state of %llu", (unsigned long long)p->slot_bytes,
			       (unsigned long long)(blobs_offset(c) + c->blob_bytes));
	for (size_t i = 0; i < n_fds && r == 0; i++)
		r = mapping_add(m, &fds[i], p->slots[i], p->slot_bytes, q->err);
	if (r < 0)
		return r;
	a->m = NULL;
	mapping_adopt(m, c);
	return 0;
}

/* An older ckptd says no more than that it is done: this is not called then. */
static int ready_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct ckpt *c = container_of(q, struct asking, q)->c;

	(void)fds;
	(void)n_fds;
	if (reply->body_case == CKPT__REPLY__BODY_SLOTS_READY)
		c->slots_later = (uint32_t)min_u64(reply->slots_ready->later, c->n_slots);
	return 0;
}

static void asking_begin(struct ckpt *c)
{
	assert(!asked(c));
	request_init(&c->asking->q, &c->asking->err);
	err_clear(&c->asking->err);
	c->asking->over = 0;
}

static int ask_for_slots(struct ckpt *c, struct err *e)
{
	struct asking *a = c->asking;
	struct mapping *m = mapping_new();

	if (!m)
		return err_code(e, -ENOMEM, "prepare for %u tensors", c->own.n_shards);
	asking_begin(c);
	a->m = m;
	a->prepare = (Ckpt__Prepare)CKPT__PREPARE__INIT;
	a->prepare.blob_bytes = c->blob_bytes;
	a->prepare.early = true; /* the thread touches no page before ckptd has made it */
	a->q.message.body_case = CKPT__REQUEST__BODY_PREPARE;
	a->q.message.prepare = &a->prepare;
	a->q.reply = prepare_reply;
	return 0;
}

/* That they are mapped: ckptd fills them and seals them against other writers. Repeating it is
 * free. */
static void ask_to_seal(struct ckpt *c)
{
	struct asking *a = c->asking;

	asking_begin(c);
	c->slots_later = 0; /* if nothing else is said */
	a->ready = (Ckpt__SlotsReady)CKPT__SLOTS_READY__INIT;
	a->q.message.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	a->q.message.slots_ready = &a->ready;
	a->q.reply = ready_reply;
}

static int answered(struct ckpt *c, struct err *e)
{
	struct asking *a = c->asking;
	bool slots = a->q.message.body_case == CKPT__REQUEST__BODY_PREPARE;
	int r = a->q.status;

	if (r < 0 && e)
		*e = a->err;
	asking_end(c);
	if (r == 0 && slots && !c->n_slots)
		r = err_set(e, CKPT_EPROTO, "ckptd handed over no slots");
	if (r == 0 && !slots)
		c->slots_said = true;
	return r < 0 ? r : -EAGAIN;
}

/* As step(). What is not answered by `until` stays asked. */
static int look_for_answer(struct ckpt *c, uint64_t until, uint64_t deadline, struct err *e)
{
	struct asking *a = c->asking;
	int r = a->q.done ? 0 : session_ensure(c, deadline, e);
	uint64_t connection = c->stats.reconnects + 1;

	if (r < 0)
		return r;
	if (!asked(c))
		return -EAGAIN; /* it spoke of slots that are gone */
	if (!a->q.done && a->q.sent > LOSSES_MAX) {
		asking_end(c);
		return err_set(e, CKPT_EUNAVAILABLE, "ckptd at '%s' was lost each time it was "
			       "asked for slots; see its log", c->socket);
	}
	if (!a->q.done && a->over != connection) {
		r = request_start(&c->rq, &a->q, until);
		a->over = r == 0 ? connection : 0;
	}
	while (r == 0 && !a->q.done)
		r = requests_pump(&c->rq, until);
	if (a->q.done)
		return answered(c, e);
	if (!c->rq.channel.up)
		return -EAGAIN;
	return r == CKPT_ETIMEDOUT ? 0 : r;
}

/* ---- From one to the next ---- */

void prepare_stop(struct ckpt *c)
{
	asking_end(c);
	overlap_steps_end(c);
	if (c->taken)
		mapping_stop(c->taken);
}

void prepare_drop_slots(struct ckpt *c)
{
	prepare_stop(c);
	if (c->taken) {
		/* Between begin and fence alone, and so in no save: the copy into them ends soon,
		 * and the tensors that it reads are the caller's again after the fence. */
		if (overlap_busy(c))
			overlap_finish(c);
		mapping_retire(c->taken, c);
	}
	c->taken = NULL;
	c->n_slots = 0;
	c->generation++;
	if (c->retired && overlap_quiesce(c, 0))
		mapping_let_go(c);
}

bool prepare_has_slots(const struct ckpt *c)
{
	return c->n_slots > 0;
}

uint32_t prepare_numbers(const struct ckpt *c, uint32_t numbers[SLOTS_MAX])
{
	for (uint32_t i = 0; i < c->n_slots; i++)
		numbers[i] = c->slots[i].number;
	return c->n_slots;
}

/* How many slots have to be populated: up to the one that there is a credit for. */
static uint32_t slots_needed(const struct ckpt *c)
{
	uint64_t credit = atomic_load_explicit(&c->page->credit, memory_order_acquire);
	uint32_t number = atomic_load_explicit(&c->page->credit_slot, memory_order_relaxed);

	for (uint32_t i = 0; i < c->n_slots && credit > c->credit_used; i++)
		if (c->slots[i].number == number)
			return i + 1;
	return 0;
}

static bool has_no_credit_yet(const struct ckpt *c)
{
	return c->credit_used == 0 &&
	       atomic_load_explicit(&c->page->credit, memory_order_acquire) == 0;
}

/*
 * As step(): SlotsReady is asked. Slots are used as credits for them come, and then only its
 * failure is news. The first credit comes when ckptd has filled the first slot, without a message.
 */
static int look_for_filled(struct ckpt *c, enum need need, uint64_t until, uint64_t deadline,
			   struct err *e)
{
	int r;

	if (need == NEED_ALL)
		return look_for_answer(c, until, deadline, e);
	do {
		bool wait = need == NEED_ONE && has_no_credit_yet(c);

		r = look_for_answer(c, wait ? min_u64(until, clock_ns() + LOOK_NS) : 0, deadline,
				    e);
		if (!wait)
			break;
	} while (r == 0 && !call_is_over(c, until));
	return r;
}

/*
 * ckptd could not fill some slot, and has filled another: saves go on with that. It says itself
 * what is missing (problems.c there), and fills the slot when it can. One that does not say how
 * many are left is asked again by the next save, and has filled a slot at least when it has given a
 * credit.
 */
static bool is_for_later(const struct ckpt *c, enum need need, int r)
{
	bool some = c->slots_later > 0 && c->slots_later < c->n_slots;

	return r < 0 && r != -EAGAIN && need != NEED_ALL && !asked(c) &&
	       (some || slots_needed(c) > 0);
}

/* ckptd fills the first one of a rank however many slots earlier processes of it have left. */
static uint32_t slots_now(const struct ckpt *c)
{
	assert(c->slots_later <= c->n_slots && c->n_slots > 0);
	return (uint32_t)max_u64(1, c->n_slots - c->slots_later);
}

/* One step nearer to slots: 1, 0 as prepare_slots(), or -EAGAIN: there is a next step. */
static int step(struct ckpt *c, enum need need, uint64_t until, uint64_t deadline, struct err *e)
{
	int r = 0;

	if (asked(c) && !c->n_slots)
		return look_for_answer(c, until, deadline, e);
	if (asked(c)) {
		r = look_for_filled(c, need, until, deadline, e);
		if (is_for_later(c, need, r)) {
			c->slots_said = c->slots_later > 0;
			err_clear(e);
		} else if (r != 0 || need == NEED_ALL) {
			return r;
		}
	} else if (c->n_slots && !c->slots_said) {
		ask_to_seal(c);
		return -EAGAIN;
	}
	if (c->n_slots && need == NEED_MAPPED)
		return 1;
	if (c->n_slots)
		return mapping_wait(c, need == NEED_ALL ? slots_now(c) : slots_needed(c), until, e);
	if (!overlap_quiesce(c, until))
		return 0;
	if (c->retired) {
		/* Before others are asked for: there may not be memory for both. */
		mapping_let_go(c);
		return -EAGAIN;
	}
	r = ask_for_slots(c, e);
	return r < 0 ? r : -EAGAIN;
}

/* ---- Memory of our own ---- */

static int take_memory(struct ckpt *c)
{
	if (c->blob_names)
		return 0;
	c->places = alloc_array(BLOBS_MAX, sizeof(*c->places));
	c->place_list = alloc_array(BLOBS_MAX, sizeof(*c->place_list));
	c->blobs = alloc_array(BLOBS_MAX, sizeof(*c->blobs));
	c->blob_names = alloc_zero(BLOB_NAMES_MAX);
	c->asking = alloc_zero(sizeof(*c->asking));
	if (!c->places || !c->place_list || !c->blobs || !c->blob_names || !c->asking) {
		prepare_fini(c);
		return -ENOMEM;
	}
	c->asking->c = c;
	for (uint32_t i = 0; i < BLOBS_MAX; i++) {
		c->places[i] = (Ckpt__BlobPlace)CKPT__BLOB_PLACE__INIT;
		c->place_list[i] = &c->places[i];
	}
	memset(c->blobs, 0xa5, BLOBS_MAX * sizeof(*c->blobs));
	memset(c->blob_names, 0xa5, BLOB_NAMES_MAX);
	return 0;
}

void prepare_fini(struct ckpt *c)
{
	prepare_drop_slots(c);
	devices_free(c->devices);
	c->devices = NULL;
	alloc_free(c->places);
	alloc_free(c->place_list);
	alloc_free(c->blobs);
	alloc_free(c->blob_names);
	alloc_free(c->asking);
	c->asking = NULL;
	c->places = NULL;
	c->place_list = NULL;
	c->blobs = NULL;
	c->blob_names = NULL;
}

/*
 * Goes through the motions of a save without one: symbols that are bound at their first call are
 * bound now, and what the messages of a save need is faulted in. The code the thread faults in.
 */
static void rehearse(struct ckpt *c)
{
	Ckpt__Request request = CKPT__REQUEST__INIT;
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__Seal seal = CKPT__SEAL__INIT;
	Ckpt__SealReply sealed = CKPT__SEAL_REPLY__INIT;
	uint8_t *half = c->rq.tx + CONN_MESSAGE_MAX / 2;
	struct digest d;

	fault_in_stack();
	c->places[0].name = (char *)"rehearsal";
	seal.blobs = c->place_list;
	seal.n_blobs = 1;
	seal.declaration = (ProtobufCBinaryData){ sizeof(c->digest.b), c->digest.b };
	request.body_case = CKPT__REQUEST__BODY_SEAL;
	request.seal = &seal;
	ckpt__request__pack(&request, c->rq.tx);
	d = digest_of(c->rq.tx, CONN_MESSAGE_MAX / 2);
	copy_large(half, c->rq.tx, CONN_MESSAGE_MAX / 2);
	sealed.attempt = (ProtobufCBinaryData){ sizeof(d.b), d.b };
	reply.id = UINT64_MAX; /* of no request: it is unpacked and dropped */
	reply.body_case = CKPT__REPLY__BODY_SEAL;
	reply.seal = &sealed;
	requests_rehearse(&c->rq, &reply);
}

/* ---- The call ---- */

static int slots(struct ckpt *c, enum need need, uint64_t until, uint64_t deadline, struct err *e)
{
	int r = -EAGAIN;

	assert(c->overlap);
	/* Each round is a step, or one back by a ckptd that was lost again. */
	for (int rounds = 0; rounds < ROUNDS_MAX && r == -EAGAIN; rounds++) {
		uint64_t generation = c->generation;

		r = step(c, need, until, deadline, e);
		if (r < 0 && c->generation != generation)
			r = -EAGAIN;
	}
	if (c->n_slots && !c->prepared) {
		rehearse(c);
		c->prepared = true;
	}
	return r == -EAGAIN ? 0 : r;
}

int prepare_slots(struct ckpt *c, uint64_t until, uint64_t deadline, struct err *e)
{
	return slots(c, NEED_ONE, until, deadline, e);
}

void prepare_ask(struct ckpt *c)
{
	uint64_t until = deadline_in(HAND_OVER_MS);
	struct err e = {0};

	if (c->rq.channel.up)
		ignore_result(slots(c, NEED_MAPPED, until, until, &e) /* the first save says it */);
}

static uint64_t slot_bytes_needed(const struct ckpt *c, uint64_t max_blob_bytes)
{
	return blobs_offset(c) + max_blob_bytes + BLOB_SLACK;
}

/* Slots that were asked for before stay what they are. */
static int choose_room(struct ckpt *c, uint64_t max_blob_bytes, struct err *e)
{
	if (prepare_has_slots(c) && c->slot_bytes < slot_bytes_needed(c, max_blob_bytes))
		return err_set(e, CKPT_ESTATE, "already prepared with less room for blobs");
	if (c->blob_bytes != max_blob_bytes + BLOB_SLACK && !prepare_has_slots(c))
		asking_end(c);
	c->blob_bytes = max_blob_bytes + BLOB_SLACK;
	return 0;
}

/* Everything but the slots. */
static int begin(struct ckpt *c, uint64_t max_blob_bytes, uint64_t deadline, struct err *e)
{
	int r;

	if (max_blob_bytes > IMAGE_BYTES_MAX)
		return err_set(e, -EINVAL, "%llu bytes of blobs are too many",
			       (unsigned long long)max_blob_bytes);
	if (c->prepared)
		return max_blob_bytes + BLOB_SLACK <= c->blob_bytes
			       ? 0
			       : err_set(e, CKPT_ESTATE,
					 "already prepared with %llu bytes for "
					 "blobs; call prepare once, before the first save "
					 "or load",
					 (unsigned long long)(c->blob_bytes - BLOB_SLACK));
	r = declare_finish(c, e);
	if (r == 0)
		r = choose_room(c, max_blob_bytes, e);
	if (r < 0)
		return r;
	r = take_memory(c);
	if (r < 0)
		return err_code(e, r, "prepare for %u tensors", c->own.n_shards);
	r = overlap_init(c, e);
	if (r == 0 && !c->declared)
		r = declare_send(c, deadline, e);
	if (r == 0)
		c->declared = true; /* a reconnect sees to it from now on */
	return r;
}

/* In the caller's time: before training. */
static int prepare(struct ckpt *c, uint64_t max_blob_bytes, struct err *e)
{
	uint64_t deadline = call_deadline(c, CKPT_DEFAULT_TIMEOUT);
	int r = call_as_rank(c, e);

	if (r == 0)
		r = begin(c, max_blob_bytes, deadline, e);
	if (r < 0)
		return r;
	if (c->slots_later > 0)
		c->slots_said = false; /* what could not be filled then is asked for again */
	if (deadline != NEVER)
		deadline += slot_bytes_needed(c, max_blob_bytes) / POPULATE_BYTES_PER_MS *
			    NS_PER_MS;
	r = slots(c, NEED_ALL, deadline, deadline, e);
	if (r == 0)
		return err_set(e, CKPT_ETIMEDOUT, "ckptd at '%s' did not make this rank's slots in "
			       "time, or their pages were not there in time; see `ckptctl status`, "
			       "then try again", c->socket);
	return r < 0 ? r : 0;
}

/* What ckpt_prepare() was given, if it was called and failed. */
static uint64_t blob_bytes_chosen(const struct ckpt *c)
{
	return c->blob_bytes ? c->blob_bytes - BLOB_SLACK : BLOB_BYTES_DEFAULT;
}

int prepare_begin(struct ckpt *c, uint64_t deadline, struct err *e)
{
	return c->prepared ? 0 : begin(c, blob_bytes_chosen(c), deadline, e);
}

int ckpt_prepare(struct ckpt *c, uint64_t max_blob_bytes)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_prepare", r, &e);
	c->patient = true;
	beating_begin(c->beat, CKPT_PHASE_CHECKPOINT, "prepare");
	r = prepare(c, max_blob_bytes, &e);
	beating_end(c->beat);
	return call_leave(c, "ckpt_prepare", r, &e);
}
