/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prepare.c - takes everything that saves will need, so that none of them takes anything.
 *
 *   declaration ended -> Declare -> Prepare: slots arrive -> mapped and populated -> SlotsReady
 *
 * After SlotsReady nobody but this process can write to its slots; before that they are not used.
 * What can be missing (memory, disk, addresses) is found out here and said before training starts.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
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

uint64_t blobs_offset(const struct ckpt *c)
{
	return round_up(c->view.image_bytes, IMAGE_ALIGN_LARGE);
}

/* ---- Slots ---- */

struct taking {
	struct request q;
	struct ckpt *c;
	uint64_t slot_bytes;
	uint32_t numbers[SLOTS_MAX];
	int fds[SLOTS_MAX];
	uint32_t n;
};

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
		t->numbers[i] = p->slots[i];
		t->fds[i] = fds[i];
		fds[i] = -1;
	}
	t->n = (uint32_t)n_fds;
	t->slot_bytes = p->slot_bytes;
	return 0;
}

static int map_slots(struct ckpt *c, struct taking *t, struct err *e)
{
	int r = 0;

	assert(c->n_slots == 0);
	for (uint32_t i = 0; i < t->n; i++) {
		if (r == 0)
			r = slot_map(t->fds[i], t->numbers[i], t->slot_bytes, false, &c->slots[i],
				     e);
		if (r == 0)
			c->n_slots++;
		close(t->fds[i]);
	}
	c->slot_bytes = t->slot_bytes;
	if (r < 0)
		prepare_drop_slots(c);
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

void prepare_drop_slots(struct ckpt *c)
{
	overlap_quiesce(c);
	for (uint32_t i = 0; i < c->n_slots; i++) {
		if (c->slots[i].pinned)
			devices_unpin(c->devices, c->slots[i].base);
		slot_unmap(&c->slots[i]);
	}
	c->n_slots = 0;
	c->generation++;
}

int prepare_slots(struct ckpt *c, uint64_t deadline, struct err *e)
{
	Ckpt__Prepare prepare = CKPT__PREPARE__INIT;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	struct taking t = { .c = c };
	int r;

	prepare_drop_slots(c);
	prepare.blob_bytes = c->blob_bytes;
	request_init(&t.q, e);
	t.q.message.body_case = CKPT__REQUEST__BODY_PREPARE;
	t.q.message.prepare = &prepare;
	t.q.reply = prepare_reply;
	r = session_call(c, &t.q, deadline);
	if (r == 0 && t.n == 0)
		r = err_set(e, CKPT_EPROTO, "ckptd handed over no slots");
	if (r == 0)
		r = map_slots(c, &t, e);
	if (r < 0)
		return r;
	request_init(&t.q, e);
	t.q.message.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	t.q.message.slots_ready = &ready;
	r = session_call(c, &t.q, deadline);
	if (r < 0)
		prepare_drop_slots(c);
	else
		pin_slots(c);
	return r;
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
	if (c->n_slots)
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
	uint64_t blob_bytes = BLOB_BYTES_DEFAULT;

	if (c->prepared && c->n_slots)
		return 0;
	if (c->prepared) { /* slots were lost with ckptd and could not be taken anew then */
		blob_bytes = c->blob_bytes - BLOB_SLACK;
		c->prepared = false;
	}
	return prepare(c, blob_bytes, e);
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
