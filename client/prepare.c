/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prepare.c - takes everything that saves will need, so that none of them takes anything.
 *
 *   declaration ended -> Declare -> Prepare: slots arrive -> mapped and populated -> SlotsReady
 *
 * After SlotsReady nobody but this process can write to its slots; before that they are not used.
 * What can be missing (memory, disk, addresses) is found out here and said before training starts.
 *
 * A ckptd that comes back without its memory has new slots to give. Training runs then, and no save
 * waits for their pages (I13): the library's thread maps them (struct mapping), the saves meanwhile
 * are skipped as without a credit, or wait within their time if they were asked to.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "client/client.h"
#include "codec/copy.h"
#include "codec/digest.h"

/* Each blob begins at a multiple of 64 in the image: room for what BLOBS_MAX of them round up. */
#define BLOB_SLACK ((uint64_t)BLOBS_MAX * IMAGE_ALIGN)
/* The slowest machine that is worth waiting for faults pages in at this rate. */
#define POPULATE_BYTES_PER_MS (64ull << 10)
#define AGAIN_MAX             12

uint64_t blobs_offset(const struct ckpt *c)
{
	return round_up(c->view.image_bytes, IMAGE_ALIGN_LARGE);
}

/* ---- Slots ---- */

struct taking {
	struct request q;
	struct ckpt *c;
	struct mapping *m;
};

/* Slots on their way from ckptd to the handle. */
struct mapping {
	uint64_t slot_bytes;
	uint32_t numbers[SLOTS_MAX];
	int fds[SLOTS_MAX];
	uint32_t n;
	struct slot_map slots[SLOTS_MAX];
	uint32_t n_mapped;
	int status;
	struct err err;
	atomic_bool unwanted;
	atomic_uint left; /* of the two that know it, those that have let go of it */
};

static void mapping_free(struct mapping *m)
{
	for (uint32_t i = 0; i < m->n_mapped; i++)
		slot_unmap(&m->slots[i]);
	for (uint32_t i = 0; i < m->n; i++)
		close(m->fds[i]);
	alloc_free(m);
}

/* Handle and thread each do this once; the later one frees it. */
static void mapping_leave(struct mapping *m)
{
	if (atomic_fetch_add(&m->left, 1) == 1)
		mapping_free(m);
}

static void mapping_run(struct mapping *m)
{
	m->status = 0;
	while (m->n_mapped < m->n && m->status == 0 && !atomic_load(&m->unwanted)) {
		uint32_t i = m->n_mapped;

		m->status = slot_map(m->fds[i], m->numbers[i], m->slot_bytes, false, &m->slots[i],
				     &m->err);
		if (m->status == 0)
			m->n_mapped++;
	}
}

static void mapping_in_thread(void *arg)
{
	struct mapping *m = arg;

	mapping_run(m);
	mapping_leave(m);
}

static int prepare_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct taking *t = container_of(q, struct taking, q);
	const Ckpt__PrepareReply *p = reply->prepare;

	if (q->status < 0)
		return 0;
	if (reply->body_case != CKPT__REPLY__BODY_PREPARE || p->n_slots == 0 ||
	    p->n_slots != n_fds || n_fds > SLOTS_MAX)
		return err_set(q->err, CKPT_EPROTO, "ckptd answered with %zu descriptors where it "
			       "should hand over slots", n_fds);
	if (p->slot_bytes < blobs_offset(t->c) + t->c->blob_bytes)
		return err_set(q->err, CKPT_EPROTO, "ckptd handed over slots of %llu bytes for a "
			       "state of %llu", (unsigned long long)p->slot_bytes,
			       (unsigned long long)(blobs_offset(t->c) + t->c->blob_bytes));
	for (size_t i = 0; i < n_fds; i++) {
		t->m->numbers[i] = p->slots[i];
		t->m->fds[i] = fds[i];
		fds[i] = -1;
	}
	t->m->n = (uint32_t)n_fds;
	t->m->slot_bytes = p->slot_bytes;
	return 0;
}

/* Asks for slots; they are not mapped yet. */
static int take_slots(struct ckpt *c, uint64_t deadline, struct mapping **ret, struct err *e)
{
	Ckpt__Prepare prepare = CKPT__PREPARE__INIT;
	struct taking t = {.c = c, .m = alloc_zero(sizeof(*t.m))};
	int r;

	if (!t.m)
		return err_code(e, -ENOMEM, "prepare for %u tensors", c->n_shards);
	prepare.blob_bytes = c->blob_bytes;
	request_init(&t.q, e);
	t.q.message.body_case = CKPT__REQUEST__BODY_PREPARE;
	t.q.message.prepare = &prepare;
	t.q.reply = prepare_reply;
	r = session_call(c, &t.q, deadline);
	if (r == 0 && t.m->n == 0)
		r = err_set(e, CKPT_EPROTO, "ckptd handed over no slots");
	if (r < 0)
		mapping_free(t.m);
	else
		*ret = t.m;
	return r;
}

/* Mapped slots become the handle's. m is still to be let go of. */
static int adopt_slots(struct ckpt *c, struct mapping *m, struct err *e)
{
	assert(c->n_slots == 0);
	if (m->status < 0) {
		if (e)
			*e = m->err;
		return m->status;
	}
	memcpy(c->slots, m->slots, sizeof(c->slots));
	c->n_slots = m->n_mapped;
	c->slot_bytes = m->slot_bytes;
	c->slots_said = false;
	c->generation++;
	m->n_mapped = 0;
	return 0;
}

/* ckptd seals them against other writers. Repeating it is free. */
static int say_slots(struct ckpt *c, uint64_t deadline, struct err *e)
{
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	struct request q;
	int r;

	assert(c->n_slots);
	if (c->slots_said)
		return 0;
	request_init(&q, e);
	q.message.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	q.message.slots_ready = &ready;
	r = session_call_slots(c, &q, c->generation, deadline);
	if (r == 0)
		c->slots_said = true;
	return r;
}

/* Where the process uses a device already; else when the first device tensor is bound. */
static void pin_slots(struct ckpt *c)
{
	if (!c->devices && (!devices_in_use_here() || devices_open(&c->devices, NULL) < 0))
		return;
	for (uint32_t i = 0; i < c->n_slots; i++)
		if (!c->slots[i].pinned)
			c->slots[i].pinned = devices_pin(c->devices, c->slots[i].base,
							 c->slots[i].bytes);
}

void prepare_pin(struct ckpt *c)
{
	if (!c->devices || c->pin_tried == c->generation)
		return;
	c->pin_tried = c->generation; /* what cannot be pinned is not tried at every save */
	pin_slots(c);
}

void prepare_stop(struct ckpt *c)
{
	if (c->mapping) {
		atomic_store(&c->mapping->unwanted, true);
		mapping_leave(c->mapping);
	}
	c->mapping = NULL;
}

void prepare_drop_slots(struct ckpt *c)
{
	prepare_stop(c);
	/* A copy into them ends soon. What the thread maps is waited for by nobody. */
	if (c->n_slots)
		ignore_result(overlap_quiesce(c, NEVER) /* no deadline: true */);
	for (uint32_t i = 0; i < c->n_slots; i++) {
		if (c->slots[i].pinned)
			devices_unpin(c->devices, c->slots[i].base);
		slot_unmap(&c->slots[i]);
	}
	c->n_slots = 0;
	c->generation++;
}

bool prepare_has_slots(const struct ckpt *c)
{
	return c->n_slots || c->mapping;
}

uint32_t prepare_numbers(const struct ckpt *c, uint32_t numbers[SLOTS_MAX])
{
	uint32_t n = c->mapping ? c->mapping->n : c->n_slots;

	for (uint32_t i = 0; i < n; i++)
		numbers[i] = c->mapping ? c->mapping->numbers[i] : c->slots[i].number;
	return n;
}

/* In the caller's time: before training. */
static int prepare_slots(struct ckpt *c, uint64_t deadline, struct err *e)
{
	struct mapping *m;
	int r = 0;

	if (c->n_slots == 0) {
		r = take_slots(c, deadline, &m, e);
		if (r < 0)
			return r;
		mapping_run(m);
		r = adopt_slots(c, m, e);
		mapping_free(m);
	} else if (c->slot_bytes < blobs_offset(c) + c->blob_bytes) {
		r = err_set(e, CKPT_ESTATE, "already prepared with less room for blobs");
	}
	if (r == 0)
		r = say_slots(c, deadline, e);
	if (r == 0)
		pin_slots(c);
	return r;
}

/* One step nearer to slots: 1, 0 as prepare_again(), or -EAGAIN: there is a next step. */
static int step_again(struct ckpt *c, uint64_t until, struct err *e)
{
	uint64_t ask_by = until ? until : deadline_in(ASK_MS);
	struct mapping *m = c->mapping;
	int r;

	if (c->n_slots) {
		r = say_slots(c, ask_by, e);
		return r == 0 ? 1 : r == CKPT_ETIMEDOUT ? 0 : r;
	}
	/* Its own, or one that was given up: there is one thread. */
	if (!overlap_quiesce(c, until))
		return 0;
	if (m) {
		c->mapping = NULL;
		r = adopt_slots(c, m, e);
		mapping_leave(m);
		return r < 0 ? r : -EAGAIN;
	}
	r = take_slots(c, ask_by, &m, e);
	if (r < 0)
		return r == CKPT_ETIMEDOUT ? 0 : r; /* ckptd is still at it, and will know */
	c->mapping = m;
	overlap_run(c, mapping_in_thread, m);
	return -EAGAIN;
}

int prepare_again(struct ckpt *c, uint64_t until, struct err *e)
{
	int r = -EAGAIN;

	assert(c->prepared);
	if (c->n_slots && c->slots_said)
		return 1;
	/* Each round is a step of the three, or one back by a ckptd that was lost again. */
	for (int rounds = 0; rounds < AGAIN_MAX && r == -EAGAIN; rounds++) {
		uint64_t generation = c->generation;

		r = step_again(c, until, e);
		if (r < 0 && c->generation != generation)
			r = -EAGAIN;
	}
	return r == -EAGAIN ? 0 : r;
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
	if (!c->places || !c->place_list || !c->blobs || !c->blob_names) {
		prepare_fini(c);
		return -ENOMEM;
	}
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
	if (prepare_has_slots(c))
		prepare_drop_slots(c);
	devices_free(c->devices);
	c->devices = NULL;
	alloc_free(c->places);
	alloc_free(c->place_list);
	alloc_free(c->blobs);
	alloc_free(c->blob_names);
	c->places = NULL;
	c->place_list = NULL;
	c->blobs = NULL;
	c->blob_names = NULL;
}

/*
 * Goes through the motions of a save without one: symbols that are bound at their first call are
 * bound now, and what the messages of a save need is faulted in.
 */
static void rehearse(struct ckpt *c)
{
	Ckpt__Request request = CKPT__REQUEST__INIT;
	Ckpt__Reply reply = CKPT__REPLY__INIT;
	Ckpt__Seal seal = CKPT__SEAL__INIT;
	Ckpt__SealReply sealed = CKPT__SEAL_REPLY__INIT;
	uint8_t *half = c->rq.tx + CONN_MESSAGE_MAX / 2;
	struct digest d;

	fault_in_code();
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

static int prepare(struct ckpt *c, uint64_t max_blob_bytes, struct err *e)
{
	uint64_t deadline, state;
	int r;

	if (max_blob_bytes > IMAGE_BYTES_MAX)
		return err_set(e, -EINVAL, "%llu bytes of blobs are too many",
			       (unsigned long long)max_blob_bytes);
	if (c->prepared)
		return max_blob_bytes + BLOB_SLACK <= c->blob_bytes
			       ? 0
			       : err_set(e, CKPT_ESTATE, "already prepared with %llu bytes for "
					 "blobs; call ckpt_prepare() once, before the first save "
					 "or load",
					 (unsigned long long)(c->blob_bytes - BLOB_SLACK));
	r = declare_finish(c, e);
	if (r < 0)
		return r;
	c->blob_bytes = max_blob_bytes + BLOB_SLACK;
	state = blobs_offset(c) + c->blob_bytes;
	deadline = call_deadline(c, CKPT_DEFAULT_TIMEOUT);
	if (deadline != NEVER)
		deadline += state / POPULATE_BYTES_PER_MS * NS_PER_MS;
	r = take_memory(c);
	if (r < 0)
		return err_code(e, r, "prepare for %u tensors", c->n_shards);
	r = declare_send(c, deadline, e);
	if (r == 0)
		r = prepare_slots(c, deadline, e);
	if (r == 0)
		r = overlap_init(c, e);
	if (r < 0)
		return r;
	rehearse(c);
	c->prepared = true;
	return 0;
}

int prepare_if_needed(struct ckpt *c, struct err *e)
{
	return c->prepared ? 0 : prepare(c, BLOB_BYTES_DEFAULT, e);
}

int ckpt_prepare(struct ckpt *c, uint64_t max_blob_bytes)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_prepare", r, &e);
	r = prepare(c, max_blob_bytes, &e);
	return call_leave(c, "ckpt_prepare", r, &e);
}
