/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fake.c - for tests: one thread, poll(2), everything under one mutex.
 */
#include <config.h>

#include "client/test_fake.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/lib/send_fds.h"
#include "tests/lib/test.h"

#define MESSAGE_MAX (64 << 10)
#define FDS_MAX	    64

void fake_abort(const char *what, const char *file, int line)
{
	fprintf(stderr, "%s:%d: this should hold: %s (errno %d)\n", file, line, what, errno);
	abort();
}

/* ---- Memory ---- */

static int new_memfd(uint64_t bytes, uint8_t **ret_base)
{
	int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *base;

	must(fd >= 0);
	must(ftruncate(fd, (off_t)bytes) == 0);
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(base != MAP_FAILED);
	*ret_base = base;
	return fd;
}

static void drop_slots(struct fake *f)
{
	for (uint32_t i = 0; i < f->n_taken; i++) {
		munmap(f->slots[i].base, f->slots[i].bytes);
		close(f->slots[i].fd);
	}
	f->n_taken = 0;
	f->ready = false;
}

static void drop_page(struct fake *f)
{
	if (f->page) {
		munmap(f->page, SESSION_PAGE_BYTES);
		close(f->page_fd);
	}
	f->page = NULL;
}

static void drop_beats(struct fake *f)
{
	if (f->beats) {
		munmap(f->beats, BEAT_PAGE_BYTES);
		close(f->beats_fd);
	}
	f->beats = NULL;
}

void fake_forget(struct fake *f)
{
	drop_slots(f);
	drop_beats(f);
	free(f->declaration);
	f->declaration = NULL;
	f->member = false;
	f->credit = 0;
	f->next_number = 0;
	f->next_slot = 0;
}

/* ---- Answers ---- */

static void send_bytes(int conn, const void *bytes, size_t len, const int *fds, size_t n_fds)
{
	const struct fds_message m = {.bytes = bytes, .len = len, .fds = fds, .n_fds = n_fds};

	/* The other end may be gone: that is what some tests want. */
	(void)!send_fds_message(conn, &m);
}

struct answer {
	int conn;
	enum fake_action action;
};

static void reply(const struct answer *a, Ckpt__Reply *m, const int *fds, size_t n_fds)
{
	static const char garbage[] = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
	uint8_t buf[MESSAGE_MAX];
	size_t len = ckpt__reply__get_packed_size(m);

	if (a->action == FAKE_SILENCE || a->action == FAKE_DO_AND_DROP)
		return;
	if (a->action == FAKE_GARBAGE) {
		send_bytes(a->conn, garbage, sizeof(garbage) - 1, fds, n_fds);
		return;
	}
	must(len <= sizeof(buf));
	ckpt__reply__pack(m, buf);
	send_bytes(a->conn, buf, len, fds, n_fds);
}

static void reply_code(const struct answer *a, uint64_t id, int code, const char *text)
{
	Ckpt__Reply m = CKPT__REPLY__INIT;

	m.id = id;
	m.code = code;
	m.text = (char *)(text ? text : "");
	reply(a, &m, NULL, 0);
}

/* ---- Credits ---- */

static bool credit_out(const struct fake *f)
{
	for (uint32_t i = 0; i < f->n_taken; i++)
		if (f->slots[i].writing)
			return true;
	return false;
}

void fake_give_credit(struct fake *f)
{
	struct fake_slot *s;
	struct answer a = { .conn = f->credit_conn };

	if (!f->ready || credit_out(f))
		return;
	s = &f->slots[f->next_slot++ % f->n_taken];
	s->writing = true;
	s->credit = ++f->credit;
	atomic_store(&f->page->credit_slot, s->number);
	atomic_store(&f->page->credit, f->credit);
	if (f->credit_request)
		reply_code(&a, f->credit_request, 0, NULL);
	f->credit_request = 0;
}

/* Before the answer to what made a slot free: tests can count on it. */
static void grant(struct fake *f)
{
	if (f->grant)
		fake_give_credit(f);
}

void fake_next_epoch(struct fake *f)
{
	f->epoch++;
	atomic_store(&f->page->epoch, f->epoch);
}

/* ---- Requests ---- */

static void on_hello(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__HelloReply body = CKPT__HELLO_REPLY__INIT;

	f->features = q->hello->features;
	body.version = SESSION_VERSION;
	body.program = (char *)"fake";
	body.leaf = f->geometry.leaf;
	body.chunk = f->geometry.chunk;
	m.id = q->id;
	m.body_case = CKPT__REPLY__BODY_HELLO;
	m.hello = &body;
	reply(a, &m, NULL, 0);
}

static void make_page(struct fake *f)
{
	uint8_t *base;

	drop_page(f);
	f->page_fd = new_memfd(SESSION_PAGE_BYTES, &base);
	f->page = (struct session_page *)base;
	f->page->magic = SESSION_PAGE_MAGIC;
	f->page->version = SESSION_VERSION;
	f->page->epoch = f->epoch;
	for (uint32_t i = 0; i < f->n_taken; i++)
		if (f->slots[i].writing)
			f->page->credit_slot = f->slots[i].number;
	f->page->credit = f->credit;
}

static void make_beats(struct fake *f)
{
	uint8_t *base;

	if (f->beats || f->no_beats || !(f->features & SESSION_FEATURE_BEATS))
		return;
	f->beats_fd = new_memfd(BEAT_PAGE_BYTES, &base);
	f->beats = (struct beat_page *)base;
	f->beats->magic = BEAT_PAGE_MAGIC;
	f->beats->version = BEAT_PAGE_VERSION;
}

static void on_open(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	static uint8_t token[32] = { 7 }, job[16] = { 9 };
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__OpenReply body = CKPT__OPEN_REPLY__INIT;
	uint32_t slots[FAKE_SLOTS];
	int fds[2];

	snprintf(f->run_id, sizeof(f->run_id), "%s", q->open->run_id);
	f->reconnect = q->open->reconnect;
	f->loaded_epoch = q->open->loaded_epoch;
	f->opened_origin = origin_of(q->open->origin).kind;
	f->own_state = q->open->own_state;
	f->token_len = (uint32_t)q->open->token.len;
	if (f->member && !q->open->reconnect)
		fake_forget(f);
	f->member = true;
	make_page(f);
	make_beats(f);
	fds[0] = f->page_fd;
	fds[1] = f->beats_fd;
	body.beats = f->beats != NULL;
	body.beat_fd = body.beats;
	body.job_id = (ProtobufCBinaryData){ 16, job };
	body.token = (ProtobufCBinaryData){ 32, token };
	body.epoch = f->epoch;
	body.run_id = f->run_id[0] ? f->run_id : (char *)"auto-1";
	body.slots = slots;
	body.n_slots = f->n_taken;
	for (uint32_t i = 0; i < f->n_taken; i++)
		slots[i] = f->slots[i].number;
	if (f->declaration)
		body.declaration = (ProtobufCBinaryData){ 16, f->digest.b };
	m.id = q->id;
	m.body_case = CKPT__REPLY__BODY_OPEN;
	m.open = &body;
	grant(f);
	reply(a, &m, fds, f->beats ? 2 : 1);
}

static void on_declare(struct fake *f, const struct answer *a, const Ckpt__Request *q,
		       const int *fds, size_t n_fds)
{
	const Ckpt__Declare *d = q->declare;

	free(f->declaration);
	must(d->digest.len == 16);
	memcpy(f->digest.b, d->digest.data, 16);
	if (d->in_fd) {
		off_t len;

		must(n_fds == 1);
		must(fcntl(fds[0], F_GET_SEALS) & F_SEAL_WRITE);
		len = lseek(fds[0], 0, SEEK_END);
		must(len > 0);
		f->declaration_len = (size_t)len;
		f->declaration = malloc(f->declaration_len);
		must(pread(fds[0], f->declaration, f->declaration_len, 0) == len);
	} else {
		f->declaration_len = d->bytes.len;
		f->declaration = malloc(d->bytes.len);
		memcpy(f->declaration, d->bytes.data, d->bytes.len);
	}
	reply_code(a, q->id, 0, NULL);
}

/* The image's length from the declaration's bytes is ckptd's business; here there is room. */
#define FAKE_SLOT_BYTES (4u << 20)

static void answer_prepare(struct fake *f, const struct answer *a, uint64_t id)
{
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__PrepareReply body = CKPT__PREPARE_REPLY__INIT;
	uint64_t slot_bytes = f->slot_bytes ? f->slot_bytes : FAKE_SLOT_BYTES;
	uint32_t numbers[FAKE_SLOTS];
	int fds[FAKE_SLOTS];

	for (; f->n_taken < f->n_slots; f->n_taken++) {
		struct fake_slot *s = &f->slots[f->n_taken];

		*s = (struct fake_slot){ .number = f->next_number++, .bytes = slot_bytes };
		s->fd = new_memfd(s->bytes, &s->base);
	}
	for (uint32_t i = 0; i < f->n_taken; i++) {
		numbers[i] = f->slots[i].number;
		fds[i] = f->slots[i].fd;
	}
	body.slot_bytes = slot_bytes;
	body.slots = numbers;
	body.n_slots = f->n_taken;
	m.id = id;
	m.body_case = CKPT__REPLY__BODY_PREPARE;
	m.prepare = &body;
	reply(a, &m, fds, f->n_taken);
}

static void on_prepare(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	f->blob_bytes = q->prepare->blob_bytes;
	f->prepare_request = q->id;
	f->prepare_conn = a->conn;
	if (!f->late_slots)
		answer_prepare(f, a, q->id);
}

void fake_answer_prepare(struct fake *f)
{
	struct answer a = { .conn = f->prepare_conn };

	f->late_slots = false;
	answer_prepare(f, &a, f->prepare_request);
}

static void on_slots_ready(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__SlotsReadyReply body = CKPT__SLOTS_READY_REPLY__INIT;

	for (uint32_t i = 0; i + f->later < f->n_taken; i++)
		must(fallocate(f->slots[i].fd, 0, 0, (off_t)f->slots[i].bytes) == 0);
	f->ready = true;
	grant(f);
	body.later = f->later;
	m.id = q->id;
	m.body_case = CKPT__REPLY__BODY_SLOTS_READY;
	m.slots_ready = &body;
	reply(a, &m, NULL, 0);
}

static void on_seal(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	static uint8_t attempt[16] = { 1 };
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__SealReply body = CKPT__SEAL_REPLY__INIT;
	struct fake_seal *s = &f->seals[f->n_seals % FAKE_SEALS];
	struct fake_slot *slot = NULL;

	for (uint32_t i = 0; i < f->n_taken; i++)
		if (f->slots[i].number == q->seal->slot)
			slot = &f->slots[i];
	m.id = q->id;
	m.body_case = CKPT__REPLY__BODY_SEAL;
	m.seal = &body;
	body.attempt = (ProtobufCBinaryData){ 16, attempt };
	if (slot && !slot->writing && slot->credit == q->seal->credit) {
		reply(a, &m, NULL, 0); /* repeated: the answer was lost */
		return;
	}
	if (!slot || slot->credit != q->seal->credit || q->seal->epoch != f->epoch) {
		reply_code(a, q->id, slot && q->seal->epoch != f->epoch ? CKPT_EEPOCH : CKPT_ESTATE,
			   "fake: no such credit, or another epoch");
		return;
	}
	slot->writing = false;
	free(s->image);
	*s = (struct fake_seal){ .step = q->seal->step, .epoch = q->seal->epoch,
				 .credit = q->seal->credit, .image_len = q->seal->image_len,
				 .slot = q->seal->slot, .try = q->seal->try_ };
	s->image = malloc(slot->bytes);
	memcpy(s->image, slot->base, slot->bytes);
	for (size_t i = 0; i < q->seal->n_blobs && i < 8; i++) {
		snprintf(s->blobs[i].name, sizeof(s->blobs[i].name), "%s", q->seal->blobs[i]->name);
		s->blobs[i].offset = q->seal->blobs[i]->image_offset;
		s->blobs[i].bytes = q->seal->blobs[i]->bytes;
	}
	s->n_blobs = (uint32_t)q->seal->n_blobs;
	f->n_seals++;
	grant(f);
	if (f->seal_note)
		m.text = (char *)f->seal_note;
	f->seal_note = NULL;
	reply(a, &m, NULL, 0);
}

static void on_skip(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	struct fake_skip *s = &f->skips[f->n_skips++ % FAKE_SEALS];

	*s = (struct fake_skip){ .step = q->skip->step, .epoch = q->skip->epoch,
				 .credit = q->skip->credit, .try = q->skip->try_,
				 .kind = q->skip->kind,
				 .only_credit = q->skip->only_credit };
	snprintf(s->reason, sizeof(s->reason), "%s", q->skip->reason);
	for (uint32_t i = 0; i < f->n_taken; i++)
		if (f->slots[i].writing && f->slots[i].credit == q->skip->credit)
			f->slots[i].writing = false;
	grant(f);
	reply_code(a, q->id, 0, NULL);
}

static void on_wait(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	f->wait_request = 0;
	if (q->wait->what <= f->wait_answer) {
		reply_code(a, q->id, 0, NULL);
	} else if (f->refuse_code == CKPT_ESUPERSEDED) {
		Ckpt__Reply m = CKPT__REPLY__INIT;
		Ckpt__WaitReply body = CKPT__WAIT_REPLY__INIT;

		body.newer_step = q->wait->step + 1;
		m.id = q->id;
		m.code = CKPT_ESUPERSEDED;
		m.text = (char *)"fake: superseded";
		m.body_case = CKPT__REPLY__BODY_WAIT;
		m.wait = &body;
		reply(a, &m, NULL, 0);
	} else {
		f->wait_request = q->id;
		f->wait_conn = a->conn;
	}
}

static void on_cancel(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	if (f->wait_request && f->wait_request == q->cancel->request)
		reply_code(a, f->wait_request, CKPT_ETIMEDOUT, "fake: cancelled");
	if (f->credit_request && f->credit_request == q->cancel->request) {
		reply_code(a, f->credit_request, CKPT_ETIMEDOUT, "fake: cancelled");
		f->credit_request = 0;
	}
	f->wait_request = 0;
	reply_code(a, q->id, 0, NULL);
}

static void on_list(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	static uint8_t attempt[16] = { 5 };
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__ListReply body = CKPT__LIST_REPLY__INIT, in_fd = CKPT__LIST_REPLY__INIT;
	Ckpt__CheckpointInfo *infos = calloc(f->n_list + 1, sizeof(*infos));
	Ckpt__CheckpointInfo **list = calloc(f->n_list + 1, sizeof(*list));
	int fd = -1;

	for (uint32_t i = 0; i < f->n_list; i++) {
		list[i] = &infos[i];
		infos[i] = (Ckpt__CheckpointInfo)CKPT__CHECKPOINT_INFO__INIT;
		infos[i].step = 1000 - i;
		infos[i].attempt = (ProtobufCBinaryData){ 16, attempt };
		infos[i].bytes = 77;
		infos[i].world = 4;
		infos[i].disk = i % 2;
		infos[i].latest = i == 0;
	}
	m.id = q->id;
	m.body_case = CKPT__REPLY__BODY_LIST;
	m.list = &body;
	body.checkpoints = list;
	body.n_checkpoints = f->n_list;
	if (f->list_in_fd) {
		uint8_t *base;
		size_t len = ckpt__list_reply__get_packed_size(&body);

		fd = new_memfd(len, &base);
		ckpt__list_reply__pack(&body, base);
		munmap(base, len);
		in_fd.in_fd = true;
		m.list = &in_fd;
	}
	reply(a, &m, &fd, fd >= 0);
	if (fd >= 0)
		close(fd);
	free(infos);
	free(list);
}

static void on_load(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	struct fake_offer *o = &f->offers[f->next_offer];
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__LoadReply body = CKPT__LOAD_REPLY__INIT;
	Ckpt__Origin origin;
	uint8_t attempt[16], *base;
	int fds[FDS_MAX], plan_fd = -1;
	uint32_t next = 0, per = o->per_message ? o->per_message : FDS_MAX;

	if (f->next_offer + 1 < f->n_offers)
		f->next_offer++;
	memset(attempt, o->attempt, sizeof(attempt));
	m.id = q->id;
	m.code = o->code;
	m.text = (char *)(o->text ? o->text : "");
	m.status = o->status;
	m.body_case = CKPT__REPLY__BODY_LOAD;
	m.load = &body;
	body.load = 100 + f->next_offer;
	body.step = o->step;
	body.epoch = o->epoch ? o->epoch : f->epoch;
	body.attempt = (ProtobufCBinaryData){ 16, attempt };
	body.tier = o->tier;
	body.fell_back_from = o->fell_back_from;
	body.n_sources = o->n_fds;
	body.origin =
		origin_message((struct origin){(enum origin_kind)f->origin, o->step}, &origin);
	body.problems = (char **)o->problems;
	while (body.n_problems < 4 && o->problems[body.n_problems])
		body.n_problems++;
	if (o->plan) {
		plan_fd = new_memfd(o->plan_len, &base);
		memcpy(base, o->plan, o->plan_len);
		munmap(base, o->plan_len);
	}
	for (bool first = true; first || next < o->n_fds; first = false) {
		uint32_t n = 0;

		if (first && plan_fd >= 0)
			fds[n++] = plan_fd;
		while (n < per && next < o->n_fds)
			fds[n++] = o->fds[next++];
		body.more = next < o->n_fds;
		reply(a, &m, fds, n);
		if (a->action == FAKE_PART_AND_DROP)
			break;
	}
	if (plan_fd >= 0)
		close(plan_fd);
}

static void on_stored(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	static uint8_t attempt[16] = {5};
	Ckpt__Reply m = CKPT__REPLY__INIT;
	Ckpt__StoredReply body = CKPT__STORED_REPLY__INIT;
	Ckpt__CheckpointInfo info = CKPT__CHECKPOINT_INFO__INIT;
	uint8_t *base;
	int fd;

	m.id = q->id;
	if (!f->stored) {
		m.status = CKPT_NOTHING;
		reply(a, &m, NULL, 0);
		return;
	}
	fd = new_memfd(f->stored_len, &base);
	memcpy(base, f->stored, f->stored_len);
	munmap(base, f->stored_len);
	info.step = q->stored->step == CKPT_LATEST ? 12 : q->stored->step;
	info.attempt = (ProtobufCBinaryData){16, attempt};
	info.world = 1;
	body.info = &info;
	m.body_case = CKPT__REPLY__BODY_STORED;
	m.stored = &body;
	reply(a, &m, &fd, 1);
	close(fd);
}

static void on_read(struct fake *f, const struct answer *a, const Ckpt__Request *q, const int *fds,
		    size_t n_fds)
{
	const Ckpt__Read *r = q->read;

	free(f->wants);
	f->wants_len = r->wants.len;
	if (r->in_fd) {
		must(n_fds == 1 && (fcntl(fds[0], F_GET_SEALS) & F_SEAL_WRITE));
		f->wants_len = (size_t)lseek(fds[0], 0, SEEK_END);
	}
	f->wants = malloc(f->wants_len + 1);
	if (r->in_fd)
		must(pread(fds[0], f->wants, f->wants_len, 0) == (ssize_t)f->wants_len);
	else
		memcpy(f->wants, r->wants.data, r->wants.len);
	f->read_step = r->step;
	f->read_attempt = r->attempt.len == 16 ? r->attempt.data[0] : 0;
	on_load(f, a, q);
}

static void on_load_end(struct fake *f, const struct answer *a, const Ckpt__Request *q)
{
	f->ends[f->n_ends++ % FAKE_OFFERS] = (struct fake_load_end){
		.load = q->load_end->load,
		.leaf = q->load_end->leaf,
		.source = q->load_end->source,
		.failed = q->load_end->failed,
		.complete = q->load_end->complete,
	};
	reply_code(a, q->id, 0, NULL);
}

static void dispatch(struct fake *f, const struct answer *a, const Ckpt__Request *q, int *fds,
		     size_t n_fds)
{
	switch ((int)q->body_case) {
	case CKPT__REQUEST__BODY_HELLO:
		on_hello(f, a, q);
		break;
	case CKPT__REQUEST__BODY_OPEN:
		on_open(f, a, q);
		break;
	case CKPT__REQUEST__BODY_DECLARE:
		on_declare(f, a, q, fds, n_fds);
		break;
	case CKPT__REQUEST__BODY_PREPARE:
		on_prepare(f, a, q);
		break;
	case CKPT__REQUEST__BODY_SLOTS_READY:
		on_slots_ready(f, a, q);
		break;
	case CKPT__REQUEST__BODY_CREDIT:
		f->credit_request = q->id;
		f->credit_conn = a->conn;
		break;
	case CKPT__REQUEST__BODY_SEAL:
		on_seal(f, a, q);
		break;
	case CKPT__REQUEST__BODY_SKIP:
		on_skip(f, a, q);
		break;
	case CKPT__REQUEST__BODY_WAIT:
		on_wait(f, a, q);
		break;
	case CKPT__REQUEST__BODY_CANCEL:
		on_cancel(f, a, q);
		break;
	case CKPT__REQUEST__BODY_LIST:
		on_list(f, a, q);
		break;
	case CKPT__REQUEST__BODY_LOAD:
		on_load(f, a, q);
		break;
	case CKPT__REQUEST__BODY_STORED:
		on_stored(f, a, q);
		break;
	case CKPT__REQUEST__BODY_READ:
		on_read(f, a, q, fds, n_fds);
		break;
	case CKPT__REQUEST__BODY_LOAD_END:
		on_load_end(f, a, q);
		break;
	case CKPT__REQUEST__BODY_BYE:
		f->failed = q->bye->failed;
		reply_code(a, q->id, 0, NULL);
		break;
	default:
		reply_code(a, q->id, 0, NULL);
		break;
	}
}

/* False: the connection is to end. */
static bool handle(struct fake *f, int conn, const uint8_t *msg, size_t len, int *fds, size_t n_fds)
{
	Ckpt__Request *q = ckpt__request__unpack(NULL, len, msg);
	struct answer a = { .conn = conn };

	must(q && (unsigned)q->body_case < 32);
	f->n_requests[q->body_case]++;
	if (f->hook)
		a.action = f->hook(f, q, f->hook_arg);
	if (a.action == FAKE_REFUSE)
		reply_code(&a, q->id, f->refuse_code, f->refuse_text);
	else if (a.action != FAKE_DROP)
		dispatch(f, &a, q, fds, n_fds);
	ckpt__request__free_unpacked(q, NULL);
	return a.action != FAKE_DROP && a.action != FAKE_DO_AND_DROP &&
	       a.action != FAKE_PART_AND_DROP;
}

/* ---- Its thread ---- */

static bool receive(struct fake *f, int conn)
{
	uint8_t buf[MESSAGE_MAX];
	struct iovec iov = { .iov_base = buf, .iov_len = sizeof(buf) };
	union {
		char buf[CMSG_SPACE(FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr h = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			    .msg_controllen = sizeof(control.buf) };
	ssize_t n = recvmsg(conn, &h, MSG_CMSG_CLOEXEC);
	int fds[FDS_MAX];
	size_t n_fds = 0;
	bool stays;

	if (n <= 0)
		return false;
	for (struct cmsghdr *cm = CMSG_FIRSTHDR(&h); cm; cm = CMSG_NXTHDR(&h, cm)) {
		n_fds = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(cm), n_fds * sizeof(int));
	}
	fake_lock(f);
	stays = handle(f, conn, buf, (size_t)n, fds, n_fds);
	fake_unlock(f);
	for (size_t i = 0; i < n_fds; i++)
		close(fds[i]);
	return stays;
}

static void serve(struct fake *f, const struct pollfd *p)
{
	if (p[1].revents) {
		int conn = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);

		for (int i = 0; i < FAKE_CONNS && conn >= 0; i++) {
			if (f->conns[i] >= 0)
				continue;
			f->conns[i] = conn;
			conn = -1;
		}
		must(conn < 0);
	}
	for (int i = 0; i < FAKE_CONNS; i++) {
		if (p[2 + i].fd < 0 || !p[2 + i].revents || receive(f, p[2 + i].fd))
			continue;
		close(f->conns[i]);
		f->conns[i] = -1;
	}
}

static void *fake_thread(void *arg)
{
	struct fake *f = arg;
	struct pollfd p[2 + FAKE_CONNS];

	for (;;) {
		p[0] = (struct pollfd){ .fd = f->wake[0], .events = POLLIN };
		p[1] = (struct pollfd){ .fd = f->listener, .events = POLLIN };
		for (int i = 0; i < FAKE_CONNS; i++)
			p[2 + i] = (struct pollfd){ .fd = f->conns[i], .events = POLLIN };
		if (poll(p, 2 + FAKE_CONNS, -1) < 0 && errno == EINTR)
			continue;
		if (p[0].revents)
			return NULL;
		serve(f, p);
	}
}

void fake_start(struct fake *f)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	must(!f->running);
	strcpy(a.sun_path, f->path);
	unlink(f->path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	must(f->listener >= 0);
	must(bind(f->listener, (struct sockaddr *)&a, sizeof(a)) == 0);
	must(listen(f->listener, 4) == 0);
	must(pipe2(f->wake, O_CLOEXEC) == 0);
	must(pthread_create(&f->thread, NULL, fake_thread, f) == 0);
	f->running = true;
}

void fake_stop(struct fake *f)
{
	if (!f->running)
		return;
	must(write(f->wake[1], "x", 1) == 1);
	pthread_join(f->thread, NULL);
	for (int i = 0; i < FAKE_CONNS; i++) {
		if (f->conns[i] >= 0)
			close(f->conns[i]);
		f->conns[i] = -1;
	}
	close(f->listener);
	close(f->wake[0]);
	close(f->wake[1]);
	unlink(f->path);
	f->running = false;
}

static void clear_environment(void)
{
	static const char *const names[] = {
		"CKPT_JOB", "CKPT_RUN_ID", "CKPT_RANK", "CKPT_WORLD", "CKPT_SOCKET", "CKPT_TOKEN",
		"CKPT_TIMEOUT", "CKPT_CONNECT_TIMEOUT", "CKPT_LIBCUDA", "CKPT_LOAD_THREADS",
		"CKPT_LOAD_MEMORY",
		"XDG_RUNTIME_DIR", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID",
		"TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_PROCID",
		"SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_RANK",
		"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
}

struct ckpt *fake_open(struct fake *f)
{
	struct ckpt_options o = { .size = sizeof(o), .run_id = "r", .socket = f->path };
	struct ckpt *c = NULL;
	int r = ckpt_open("j", 0, 1, &o, &c);

	if (r < 0)
		fprintf(stderr, "%s\n", ckpt_last_error(NULL));
	must(r == 0);
	return c;
}

void fake_declare(struct ckpt *c, const char *name, int ndim, const uint64_t *shape)
{
	struct ckpt_tensor t = { .size = sizeof(t), .name = name, .dtype = CKPT_F32, .ndim = ndim,
				 .global_shape = shape };
	int r = ckpt_declare(c, &t);

	if (r < 0)
		fprintf(stderr, "%s\n", ckpt_last_error(NULL));
	must(r >= 0);
}

uint32_t fake_count(struct fake *f, int body)
{
	uint32_t n;

	fake_lock(f);
	n = f->n_requests[body];
	fake_unlock(f);
	return n;
}

struct fake *fake_new(void)
{
	struct fake *f = calloc(1, sizeof(*f));

	must(f);
	clear_environment();
	f->dir = test_dir_make(NULL);
	snprintf(f->path, sizeof(f->path), "%s/s", f->dir);
	pthread_mutex_init(&f->mutex, NULL);
	for (int i = 0; i < FAKE_CONNS; i++)
		f->conns[i] = -1;
	f->geometry = (struct geometry){ .leaf = 4096, .chunk = 16384 };
	f->epoch = 1;
	f->n_slots = FAKE_SLOTS;
	f->grant = true;
	f->wait_answer = CKPT_DURABLE;
	fake_start(f);
	return f;
}

void fake_free(struct fake *f)
{
	fake_stop(f);
	fake_forget(f);
	drop_page(f);
	free(f->wants);
	for (int i = 0; i < FAKE_SEALS; i++)
		free(f->seals[i].image);
	test_dir_remove(f->dir);
	pthread_mutex_destroy(&f->mutex);
	free(f);
}

void fake_lock(struct fake *f)
{
	pthread_mutex_lock(&f->mutex);
}

void fake_unlock(struct fake *f)
{
	pthread_mutex_unlock(&f->mutex);
}
