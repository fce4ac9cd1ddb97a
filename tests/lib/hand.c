/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/hand.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/load_plan.h"
#include "proto/session.pb-c.h"
#include "proto/beat_page.h"
#include "proto/session_page.h"
#include "tests/lib/send_fds.h"

#define TURNS_MAX 6000 /* of 10 ms */

static int fail(struct hand *k, int code, const char *what)
{
	snprintf(k->text, sizeof(k->text), "%.200s: %s", what, err_text(code));
	return code;
}

/* ---- Messages ---- */

int hand_take(struct hand *k, struct hand_answer *ret)
{
	for (int i = 0; i < TURNS_MAX; i++) {
		char control[CMSG_SPACE(HAND_FDS_MAX * sizeof(int))];
		static uint8_t buf[65536];
		struct iovec iov = { buf, sizeof(buf) };
		struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
				    .msg_controllen = sizeof(control) };
		ssize_t n = recvmsg(k->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		struct cmsghdr *c;

		if (n < 0 && errno == EAGAIN) {
			host_turn(k->host);
			continue;
		}
		if (n <= 0)
			return fail(k, n < 0 ? -errno : -ECONNRESET, "receive");
		c = CMSG_FIRSTHDR(&m);
		ret->n_fds = c ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
		if (c)
			memcpy(ret->fds, CMSG_DATA(c), ret->n_fds * sizeof(int));
		ret->reply = ckpt__reply__unpack(NULL, (size_t)n, buf);
		return ret->reply ? 0 : fail(k, -EBADMSG, "receive");
	}
	return fail(k, -ETIMEDOUT, "no answer");
}

void hand_answer_free(struct hand_answer *a)
{
	for (size_t i = 0; i < a->n_fds; i++)
		close(a->fds[i]);
	if (a->reply)
		ckpt__reply__free_unpacked(a->reply, NULL);
}

int hand_send(struct hand *k, Ckpt__Request *q)
{
	uint8_t buf[65536];
	size_t len;

	k->text[0] = '\0';
	q->id = ++k->next_id;
	len = ckpt__request__get_packed_size(q);
	if (len > sizeof(buf))
		return fail(k, -EMSGSIZE, "request");
	ckpt__request__pack(q, buf);
	return send(k->fd, buf, len, MSG_NOSIGNAL) == (ssize_t)len ? 0 : fail(k, -errno, "send");
}

int hand_send_fd(struct hand *k, Ckpt__Request *q, int fd)
{
	uint8_t buf[4096];
	size_t len;

	k->text[0] = '\0';
	q->id = ++k->next_id;
	len = ckpt__request__get_packed_size(q);
	if (len > sizeof(buf))
		return fail(k, -EMSGSIZE, "request");
	ckpt__request__pack(q, buf);
	return send_fd_copies(k->fd, buf, len, fd, 1, 0) > 0 ? 0 : fail(k, -errno, "send");
}

int hand_receive(struct hand *k, uint64_t *ret_id)
{
	struct hand_answer a = {0};
	int r = hand_take(k, &a);

	if (r == 0) {
		*ret_id = a.reply->id;
		r = a.reply->code;
		snprintf(k->text, sizeof(k->text), "%s", r < 0 ? a.reply->text : "");
	}
	hand_answer_free(&a);
	return r;
}

int hand_ask(struct hand *k, Ckpt__Request *q, struct hand_answer *ret)
{
	int r;

	memset(ret, 0, sizeof(*ret));
	r = hand_send(k, q);
	if (r < 0)
		return r;
	r = hand_take(k, ret);
	if (r < 0)
		return r;
	if (ret->reply->id != q->id)
		return fail(k, -EPROTO, "the answer is to another request");
	if (ret->reply->code < 0)
		snprintf(k->text, sizeof(k->text), "%s", ret->reply->text);
	return ret->reply->code;
}

int hand_ask_code(struct hand *k, Ckpt__Request *q)
{
	struct hand_answer a;
	int r = hand_ask(k, q, &a);

	hand_answer_free(&a);
	return r;
}

/* ---- Session ---- */

int hand_connect_as(struct hand *k, struct host *h, uint64_t features)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Hello hello = CKPT__HELLO__INIT;

	memset(k, 0, sizeof(*k));
	k->host = h;
	k->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strcpy(a.sun_path, h->socket);
	if (connect(k->fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return fail(k, -errno, "connect");
	hello.version_min = hello.version_max = SESSION_VERSION;
	hello.features = features;
	hello.program = (char *)"test by hand";
	q.body_case = CKPT__REQUEST__BODY_HELLO;
	q.hello = &hello;
	return hand_ask_code(k, &q);
}

int hand_connect(struct hand *k, struct host *h)
{
	return hand_connect_as(k, h, SESSION_FEATURE_BEATS);
}

void hand_close(struct hand *k)
{
	for (size_t i = 0; i < k->n_slots; i++)
		munmap(k->slots[i], k->slot_bytes);
	if (k->page)
		munmap(k->page, SESSION_PAGE_BYTES);
	if (k->beats)
		munmap(k->beats, BEAT_PAGE_BYTES);
	close(k->fd);
	memset(k, 0, sizeof(*k));
	k->fd = -1;
}

static int open_job(struct hand *k, const char *job, uint32_t rank, uint32_t world, const char *run,
		    bool reconnect)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;
	struct hand_answer a;
	int r;

	o.job = (char *)job;
	o.rank = rank;
	o.world = world;
	o.run_id = (char *)run;
	o.reconnect = reconnect;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	r = hand_ask(k, &q, &a);
	if (r == 0 && a.n_fds == 1u + (a.reply->open->beats != 0)) {
		k->page = mmap(NULL, SESSION_PAGE_BYTES, PROT_READ, MAP_SHARED, a.fds[0], 0);
		k->epoch = a.reply->open->epoch;
		k->base_step = a.reply->open->has_base ? a.reply->open->base_step : HAND_BASE_NONE;
		if (k->page == MAP_FAILED || k->page->magic != SESSION_PAGE_MAGIC)
			r = fail(k, -EPROTO, "the session page is none");
		if (a.n_fds > 1)
			k->beats = mmap(NULL, BEAT_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
					a.fds[1], 0);
		if (k->beats == MAP_FAILED || (k->beats && k->beats->magic != BEAT_PAGE_MAGIC))
			r = fail(k, -EPROTO, "the beat page is none");
	} else if (r == 0) {
		r = fail(k, -EPROTO, "open: not a descriptor for each page");
	}
	hand_answer_free(&a);
	return r;
}

int hand_open(struct hand *k, const char *job, uint32_t rank, uint32_t world, const char *run)
{
	return open_job(k, job, rank, world, run, false);
}

int hand_rejoin(struct hand *k, const char *job, uint32_t rank, uint32_t world, const char *run)
{
	return open_job(k, job, rank, world, run, true);
}

/* Where the declaration puts each shard. */
static void find_places(struct hand *k, const struct declaration *d)
{
	for (uint32_t i = 0; i < d->n_shards; i++) {
		struct shard s;
		uint32_t at = declaration_order(d, i);

		declaration_get(d, i, &s);
		k->shards[at].image_offset = s.image_offset;
		k->shards[at].bytes = s.bytes;
	}
	k->image_bytes = d->image_bytes;
}

int hand_declare(struct hand *k, struct geometry g, const struct shard *shards, uint32_t n)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare m = CKPT__DECLARE__INIT;
	struct declaration_builder *b = NULL;
	struct declaration view;
	struct err e = { 0 };
	void *bytes = NULL;
	size_t len = 0;
	int r = declaration_builder_new(g, &b);

	for (uint32_t i = 0; i < n && r >= 0; i++) {
		k->shards[i] = shards[i];
		r = declaration_add(b, &shards[i], &e);
	}
	k->n_shards = n;
	if (r >= 0)
		r = declaration_finish(b, &bytes, &len, &e);
	declaration_builder_free(b);
	if (r == 0)
		r = declaration_open(bytes, len, &view, &e);
	if (r < 0)
		return fail(k, r, e.text);
	find_places(k, &view);
	k->declaration = declaration_digest(bytes, len);
	m.digest = (ProtobufCBinaryData){ 16, k->declaration.b };
	m.bytes = (ProtobufCBinaryData){ len, bytes };
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &m;
	r = hand_ask_code(k, &q);
	alloc_free(bytes);
	return r;
}

static int map_slots(struct hand *k, const struct hand_answer *a)
{
	const Ckpt__PrepareReply *p = a->reply->prepare;

	if (a->n_fds != p->n_slots || a->n_fds > HAND_SLOTS_MAX)
		return fail(k, -EPROTO, "prepare: descriptors and slots do not agree");
	k->slot_bytes = p->slot_bytes;
	for (size_t i = 0; i < a->n_fds; i++) {
		void *at = mmap(NULL, p->slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
				a->fds[i], 0);

		if (at == MAP_FAILED)
			return fail(k, -errno, "map a slot");
		k->slots[i] = at;
		k->numbers[i] = p->slots[i];
		k->n_slots = i + 1;
	}
	return 0;
}

int hand_prepare(struct hand *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare p = CKPT__PREPARE__INIT;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	struct hand_answer a;
	int r;

	p.blob_bytes = HAND_BLOB_MAX;
	q.body_case = CKPT__REQUEST__BODY_PREPARE;
	q.prepare = &p;
	r = hand_ask(k, &q, &a);
	if (r == 0)
		r = map_slots(k, &a);
	hand_answer_free(&a);
	if (r < 0)
		return r;
	q.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	q.slots_ready = &ready;
	return hand_ask_code(k, &q);
}

static int prepare_early_by(struct hand *k, int (*send_it)(struct hand *k, Ckpt__Request *q))
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare p = CKPT__PREPARE__INIT;

	p.blob_bytes = HAND_BLOB_MAX;
	p.early = true;
	q.body_case = CKPT__REQUEST__BODY_PREPARE;
	q.prepare = &p;
	return send_it(k, &q);
}

int hand_prepare_early(struct hand *k)
{
	return prepare_early_by(k, hand_ask_code);
}

int hand_send_prepare_early(struct hand *k)
{
	return prepare_early_by(k, hand_send);
}

/* ---- Save ---- */

static uint8_t *slot_of(struct hand *k, uint32_t number)
{
	for (size_t i = 0; i < k->n_slots; i++)
		if (k->numbers[i] == number)
			return k->slots[i];
	return NULL;
}

int hand_credit(struct hand *k)
{
	for (int i = 0; i < TURNS_MAX && k->page->credit == k->used_credit; i++)
		host_turn(k->host);
	return k->page->credit == k->used_credit ? fail(k, -ETIMEDOUT, "no credit") : 0;
}

int hand_seal(struct hand *k, uint64_t step, Ckpt__BlobPlace **blobs, size_t n_blobs,
	      uint64_t image_len)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Seal seal = CKPT__SEAL__INIT;
	int r;

	seal.credit = k->page->credit;
	seal.slot = k->page->credit_slot;
	seal.step = step;
	seal.epoch = k->epoch;
	seal.image_len = image_len;
	seal.blobs = blobs;
	seal.n_blobs = n_blobs;
	seal.declaration = (ProtobufCBinaryData){ 16, k->declaration.b };
	q.body_case = CKPT__REQUEST__BODY_SEAL;
	q.seal = &seal;
	r = hand_ask_code(k, &q);
	if (r == 0)
		k->used_credit = seal.credit;
	return r;
}

int hand_save(struct hand *k, uint64_t step, hand_fill_fn *fill, void *arg, const void *blob,
	      uint64_t blob_bytes)
{
	Ckpt__BlobPlace place = CKPT__BLOB_PLACE__INIT, *places[] = {&place};
	uint8_t *image;
	int r = hand_credit(k);

	if (r < 0)
		return r;
	image = slot_of(k, k->page->credit_slot);
	if (!image)
		return fail(k, -EPROTO, "the credit names a slot that is not ours");
	for (uint32_t i = 0; i < k->n_shards; i++)
		fill(arg, &k->shards[i], image + k->shards[i].image_offset);
	place.name = (char *)"rng";
	place.image_offset = round_up(k->image_bytes, 4096);
	place.bytes = blob_bytes;
	memcpy(image + place.image_offset, blob, blob_bytes);
	return hand_seal(k, step, places, 1, place.image_offset + blob_bytes);
}

static int wait_by(struct hand *k, uint64_t step, uint32_t what,
		   int (*how)(struct hand *k, Ckpt__Request *q))
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Wait w = CKPT__WAIT__INIT;

	w.step = step;
	w.what = what;
	q.body_case = CKPT__REQUEST__BODY_WAIT;
	q.wait = &w;
	return how(k, &q);
}

int hand_wait(struct hand *k, uint64_t step, uint32_t what)
{
	return wait_by(k, step, what, hand_ask_code);
}

int hand_send_wait(struct hand *k, uint64_t step, uint32_t what)
{
	return wait_by(k, step, what, hand_send);
}

/* ---- List, load, admin ---- */

int hand_list(struct hand *k, struct hand_info *infos, size_t n, size_t *ret_n)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__List l = CKPT__LIST__INIT;
	struct hand_answer a;
	int r;

	q.body_case = CKPT__REQUEST__BODY_LIST;
	q.list = &l;
	r = hand_ask(k, &q, &a);
	if (r == 0 && a.reply->list->n_checkpoints > n)
		r = fail(k, -E2BIG, "list");
	for (size_t i = 0; r == 0 && i < a.reply->list->n_checkpoints; i++) {
		const Ckpt__CheckpointInfo *c = a.reply->list->checkpoints[i];

		infos[i] = (struct hand_info){ .step = c->step, .epoch = c->epoch, .disk = c->disk,
					       .pinned = c->pinned, .latest = c->latest };
		memcpy(infos[i].attempt.b, c->attempt.data, sizeof(infos[i].attempt.b));
		*ret_n = i + 1;
	}
	if (r == 0 && a.reply->list->n_checkpoints == 0)
		*ret_n = 0;
	hand_answer_free(&a);
	return r;
}

/* The whole image of a source; the caller frees. */
static uint8_t *read_image(const struct load_source *s, int fd)
{
	uint8_t *image = alloc_zero(s->image_len);

	for (uint64_t c = 0; image && c * s->geometry.chunk < s->image_len; c++) {
		uint64_t at = c * s->geometry.chunk, from = at;
		size_t size = min_u64(s->geometry.chunk, s->image_len - at);
		size_t whole = round_up(size, 4096);
		void *page = NULL;

		if (s->kind == LOAD_FILE)
			from = chunk_place_get(s->places, c).offset;
		if (posix_memalign(&page, 4096, whole) != 0 ||
		    pread(fd, page, whole, (off_t)from) < (ssize_t)size) {
			free(page);
			alloc_free(image);
			return NULL;
		}
		memcpy(image + at, page, size);
		free(page);
	}
	return image;
}

static int place_all(struct hand *k, const struct load_plan *p, const int *fds,
		     struct hand_loaded *ret)
{
	for (uint32_t s = 0; s < p->n_sources; s++) {
		uint8_t *image = read_image(&p->sources[s], fds[s]);

		if (!image)
			return fail(k, -EIO, "read a source");
		for (size_t i = 0; i < p->plan.n_pieces; i++)
			if (p->plan.pieces[i].source == s)
				plan_piece_copy(&p->plan.pieces[i], image, 0,
						p->sources[s].image_len,
						ret->shards[p->plan.pieces[i].target]);
		for (uint32_t i = 0; i < p->n_blobs; i++) {
			const struct load_blob *b = &p->blobs[i];

			if (b->source != s || strcmp(b->name, "rng") != 0 ||
			    b->bytes > HAND_BLOB_MAX)
				continue;
			memcpy(ret->blob, image + b->image_offset, b->bytes);
			ret->blob_bytes = b->bytes;
		}
		alloc_free(image);
	}
	return 0;
}

static int follow_plan(struct hand *k, const struct hand_answer *a, struct hand_loaded *ret)
{
	uint64_t targets[HAND_SHARDS_MAX];
	struct load_plan plan;
	struct err e = { 0 };
	off_t len = lseek(a->fds[0], 0, SEEK_END);
	void *bytes = mmap(NULL, (size_t)len, PROT_READ, MAP_PRIVATE, a->fds[0], 0);
	int r;

	if (bytes == MAP_FAILED)
		return fail(k, -errno, "map the load plan");
	for (uint32_t i = 0; i < k->n_shards; i++)
		targets[i] = k->shards[i].bytes;
	r = load_plan_decode(bytes, (size_t)len, targets, k->n_shards, &plan, &e);
	if (r < 0) {
		munmap(bytes, (size_t)len);
		return fail(k, r, e.text);
	}
	if (plan.n_sources + 1 != a->n_fds)
		r = fail(k, -EPROTO, "load: descriptors and sources do not agree");
	else
		r = place_all(k, &plan, a->fds + 1, ret);
	load_plan_fini(&plan);
	munmap(bytes, (size_t)len);
	return r;
}

int hand_load(struct hand *k, uint64_t step, const struct attempt_id *attempt,
	      struct hand_loaded *ret)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load l = CKPT__LOAD__INIT;
	Ckpt__LoadEnd end = CKPT__LOAD_END__INIT;
	struct hand_answer a;
	int r;

	l.step = step;
	l.min_trust = k->min_trust;
	if (attempt)
		l.attempt = (ProtobufCBinaryData){ 16, (uint8_t *)attempt->b };
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &l;
	r = hand_ask(k, &q, &a);
	if (r == 0 && !a.reply->load)
		r = fail(k, CKPT_ENOTFOUND, "there is nothing to load");
	if (r == 0) {
		ret->step = a.reply->load->step;
		ret->tier = a.reply->load->tier;
		end.load = a.reply->load->load;
		r = follow_plan(k, &a, ret);
	}
	hand_answer_free(&a);
	if (r < 0)
		return r;
	end.complete = true;
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &end;
	return hand_ask_code(k, &q);
}

int hand_admin(struct hand *k, const char *job, int verb, uint64_t step)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = (Ckpt__Admin__Verb)verb;
	m.job = (char *)job;
	m.step = step;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	return hand_ask_code(k, &q);
}
