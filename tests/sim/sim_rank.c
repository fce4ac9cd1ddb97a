/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_rank.c - one rank of a job: a fiber with straight-line code, its connection to ckptd, and
 * requests that are repeated under their id when the connection was lost, as libckpt does it.
 *
 * The fiber belongs to no life: the driver plays its process. So it may be dropped at any park,
 * and what it had taken goes with its blocks, descriptors and mappings.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "proto/session_page.h"
#include "tests/sim/heap.h"
#include "tests/sim/sim.h"

#define JOIN_TRY_NS (20 * SIM_MS)
#define REPLY_NS    (500 * SIM_MS) /* ckptd answers so soon what waits for nobody (I13) */
#define REJOIN_NS   (40 * SIM_S)

/* ---- Memory for replies: of the rank's blocks ---- */

static void *reply_alloc(void *arg, size_t size)
{
	(void)arg;
	return sim_check(alloc_zero(size));
}

static void reply_free_one(void *arg, void *p)
{
	(void)arg;
	alloc_free(p);
}

static ProtobufCAllocator reply_allocator = {reply_alloc, reply_free_one, NULL};

void reply_free(Ckpt__Reply *reply)
{
	if (reply)
		ckpt__reply__free_unpacked(reply, &reply_allocator);
}

/* ---- The fiber ---- */

static void tick(void *arg);

uint64_t rank_now(const struct rank *r)
{
	return r->sim->w->now_ns;
}

static void resume(struct rank *r)
{
	struct alloc_watch *before = alloc_set_watch(&r->blocks.watch);

	r->running = true;
	r->parked = false;
	fiber_resume(&r->fiber);
	r->running = false;
	alloc_set_watch(before);
	if (r->fiber.ended) {
		r->done = true;
		job_rank_gone(r->job, r);
	}
}

/* Driver event: its time may have come, or a message. Old ones find nothing to do. */
static void tick(void *arg)
{
	struct rank *r = arg;
	bool news = r->heed && (!list_empty(&r->inbox) || !r->channel);

	if (r->parked && (news || rank_now(r) >= r->until_ns))
		resume(r);
}

static void park(struct rank *r, uint64_t until_ns, bool heed)
{
	assert(r->running);
	r->until_ns = until_ns;
	r->heed = heed;
	r->parked = true;
	world_at(r->sim->w, until_ns, NULL, tick, r);
	fiber_park();
}

void rank_sleep(struct rank *r, uint64_t ns)
{
	park(r, rank_now(r) + ns, false);
}

static void run(void *arg)
{
	struct rank *r = arg;

	rank_sleep(r, r->until_ns);
	trainer_main(r);
}

static void begin(void *arg)
{
	resume(arg);
}

struct rank *rank_start(struct sim_job *j, uint32_t rank, const char *run_id, uint64_t delay_ns)
{
	struct rank *r = sim_zero(sizeof(*r));

	r->sim = j->sim;
	r->job = j;
	r->rank = rank;
	r->world = j->world;
	r->layout = j->layout;
	r->launch = j->launches;
	snprintf(r->run_id, sizeof(r->run_id), "%s", run_id);
	list_init(&r->link);
	list_init(&r->inbox);
	blocks_init(&r->blocks);
	r->process = process_new(j->sim->host, j->uid, NULL);
	r->until_ns = delay_ns;
	fiber_init(&r->fiber, run, r);
	world_note(j->sim->w, "rank starts", j->index, rank, (uint64_t)r->process->id.pid);
	world_at(j->sim->w, j->sim->w->now_ns, NULL, begin, r);
	return r;
}

bool rank_alive(const struct rank *r)
{
	return r && !r->done && r->process->alive;
}

/* ---- What it holds ---- */

static void message_free(struct rank *r, struct message *m)
{
	for (size_t i = 0; i < m->n_fds; i++)
		sim_fd_close(r->sim->w, m->fds[i]);
	list_del(&m->link);
	free(m->bytes);
	free(m);
}

static void drop_inbox(struct rank *r)
{
	while (!list_empty(&r->inbox))
		message_free(r, list_first(&r->inbox, struct message, link));
}

void rank_close_fds(struct rank *r)
{
	for (size_t i = 0; i < r->n_fds; i++)
		sim_fd_close(r->sim->w, r->fds[i]);
	r->n_fds = 0;
	for (size_t i = 0; i < r->n_maps; i++)
		mapping_free(r->maps[i]);
	r->n_maps = 0;
}

void rank_unmap_slots(struct rank *r)
{
	for (uint32_t i = 0; i < r->n_slots; i++)
		mapping_free(r->slots[i].map);
	r->n_slots = 0;
	r->slots_said = false;
}

void rank_kill(struct rank *r)
{
	assert(!r->running);
	process_end(r->process);
	world_forget(r->sim->w, r);
	fiber_drop(&r->fiber);
	drop_inbox(r);
	rank_close_fds(r);
	rank_unmap_slots(r);
	mapping_free(r->page);
	mapping_free(r->beats);
	blocks_drop(&r->blocks);
	free(r->blocks.slots);
	list_del(&r->link);
	free(r);
}

/* ---- The connection ---- */

static void wake(struct rank *r)
{
	world_at(r->sim->w, rank_now(r), NULL, tick, r);
}

static void on_message(void *arg, struct sim_channel *c, const void *msg, size_t len,
		       const int *fds, size_t n_fds)
{
	struct rank *r = arg;
	struct message *m = sim_zero(sizeof(*m));

	assert(c == r->channel);
	m->bytes = sim_copy(msg, len);
	m->len = len;
	m->n_fds = n_fds;
	if (n_fds)
		memcpy(m->fds, fds, n_fds * sizeof(*fds));
	list_add_tail(&r->inbox, &m->link);
	wake(r);
}

static void on_closed(void *arg, struct sim_channel *c)
{
	struct rank *r = arg;

	assert(c == r->channel);
	r->channel = NULL;
	wake(r);
}

static const struct channel_events channel_events = {on_message, on_closed};

void rank_sever(struct rank *r)
{
	if (r->channel)
		channel_break(r->channel);
}

static void send_request(struct rank *r, const Ckpt__Request *q)
{
	size_t len = ckpt__request__get_packed_size(q);
	uint8_t *buf = sim_zero(len);

	ckpt__request__pack(q, buf);
	channel_send(r->channel, buf, len, NULL, 0);
	free(buf);
}

/* The same request twice has the same effect (I10); something else may have come in between. */
static void check_twice(struct rank *r, const Ckpt__Reply *second)
{
	uint64_t faults = r->sim->counts[COUNT_outages] + r->sim->counts[COUNT_errors_at_point];

	/* While the log cannot be written an aborted attempt's slot may be used again at once (I4).
	 */
	for (int f = 0; f < DISK_FAULTS; f++)
		faults += disk_fault_count(r->sim->disk, (enum disk_fault)f);
	if (faults == 0 && r->twice_code == 0 && second->code != 0 &&
	    second->code != CKPT_EABORTED && second->code != CKPT_EEPOCH)
		sim_accuse(
			r->sim,
			"I10: rank %u of %s: a seal was taken, and refused when it was sent again: "
			"%d %s",
			r->rank, r->job->name, second->code, second->text);
	r->twice_id = 0;
}

/* The reply with this id, or what ended the wait. Others are nobody's any more. */
static int receive(struct rank *r, uint64_t id, uint64_t deadline, Ckpt__Reply **ret)
{
	for (;;) {
		struct message *m = list_first(&r->inbox, struct message, link);
		Ckpt__Reply *reply;

		if (!m && !r->channel)
			return -EPIPE;
		if (!m && rank_now(r) >= deadline)
			return CKPT_ETIMEDOUT;
		if (!m) {
			park(r, deadline, true);
			continue;
		}
		reply = sim_check(ckpt__reply__unpack(&reply_allocator, m->len, m->bytes));
		if (reply->id == id) {
			rank_close_fds(r);
			r->n_fds = m->n_fds;
			memcpy(r->fds, m->fds, m->n_fds * sizeof(m->fds[0]));
			m->n_fds = 0;
			message_free(r, m);
			*ret = reply;
			return 0;
		}
		if (reply->id == r->twice_id)
			check_twice(r, reply);
		reply_free(reply);
		message_free(r, m);
	}
}

static int ask_once(struct rank *r, Ckpt__Request *q, uint64_t deadline, Ckpt__Reply **ret)
{
	bool twice = false;
	int err;

	if (!r->channel)
		return -EPIPE;
	send_request(r, q);
	/* Sent twice, as after a reconnect. Not a Load: ckptd would start it twice, and no LoadEnd
	 * would end the second one, which keeps its slots, while ckptd ends those of a lost
	 * connection. Nor a Declare: a connection may have one long declaration under way. */
	if (r->channel && q->body_case != CKPT__REQUEST__BODY_LOAD &&
	    q->body_case != CKPT__REQUEST__BODY_DECLARE && world_one_in(r->sim->w, 40)) {
		send_request(r, q);
		sim_count(r->sim, repeated);
		twice = q->body_case == CKPT__REQUEST__BODY_SEAL;
	}
	err = receive(r, q->id, deadline, ret);
	if (err == 0 && twice) {
		r->twice_id = q->id;
		r->twice_code = (*ret)->code;
	}
	if (err == 0 && (*ret)->code < 0)
		sim_tell(r->sim, "%s rank %u (pid %d): request %d: %d %s", r->job->name, r->rank,
			 r->process->id.pid, (int)q->body_case, (*ret)->code, (*ret)->text);
	return err < 0 ? err : (*ret)->code;
}

/* ---- Joining ---- */

static int hello(struct rank *r)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Hello m = CKPT__HELLO__INIT;
	Ckpt__Reply *reply = NULL;
	int err;

	m.version_min = m.version_max = SESSION_VERSION;
	m.features = SESSION_FEATURE_BEATS;
	m.program = (char *)"sim";
	q.id = ++r->next_id;
	q.body_case = CKPT__REQUEST__BODY_HELLO;
	q.hello = &m;
	err = ask_once(r, &q, rank_now(r) + REPLY_NS, &reply);
	reply_free(reply);
	return err;
}

static void note_opened(struct rank *r, const Ckpt__OpenReply *m)
{
	struct attempt_id base = {{0}};
	struct job_id id;

	if (m->job_id.len != 16 || (m->has_base && m->base_attempt.len != 16)) {
		sim_accuse(r->sim, "rank %u: an open was answered without ids", r->rank);
		return;
	}
	memcpy(id.b, m->job_id.data, 16);
	if (m->has_base)
		memcpy(base.b, m->base_attempt.data, 16);
	oracle_opened(r, &id, m->epoch, m->has_base, m->base_step, &base);
}

static bool has_slots(const struct rank *r, const Ckpt__OpenReply *m)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < r->n_slots; i++)
		for (size_t k = 0; k < m->n_slots; k++)
			found += r->slots[i].number == m->slots[k];
	return found == r->n_slots && m->n_slots == r->n_slots;
}

static int open_once(struct rank *r, bool *ret_kept)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open m = CKPT__OPEN__INIT;
	Ckpt__Origin origin;
	Ckpt__Reply *reply = NULL;
	int err;

	m.job = r->job->name;
	m.rank = r->rank;
	m.world = r->world;
	m.run_id = r->run_id;
	m.reconnect = r->opened_once;
	m.loaded_epoch = r->opened_once ? r->epoch : 0;
	m.origin = r->opened_once ? origin_message(r->origin, &origin) : NULL;
	q.id = ++r->next_id;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &m;
	err = ask_once(r, &q, rank_now(r) + 4 * SIM_S, &reply);
	if (err == 0) {
		struct mapping *page = mapping_new(r->sim->w, NULL, r->fds[reply->open->page_fd]);

		assert(page && ((struct session_page *)page->base)->magic == SESSION_PAGE_MAGIC);
		mapping_free(r->page);
		r->page = page;
		if (reply->open->beats)
			rank_take_beats(r, r->fds[reply->open->beat_fd]);
		else
			rank_lose_beats(r); /* ckptd could make none, and looks at no other */
		rank_close_fds(r);
		note_opened(r, reply->open);
		snprintf(r->run_id, sizeof(r->run_id), "%s", reply->open->run_id);
		if (!r->opened_once) {
			r->epoch = reply->open->epoch;
			r->origin.kind = ORIGIN_FRESH;
			r->step = reply->open->base_step; /* of one that forgets to load */
		}
		*ret_kept = reply->open->declaration.len == 16 &&
			    memcmp(reply->open->declaration.data, r->state.digest.b, 16) == 0 &&
			    has_slots(r, reply->open);
	}
	reply_free(reply);
	return err;
}

/* A credit of slots that were replaced cannot be used. */
static int forfeit(struct rank *r)
{
	struct session_page *page = (struct session_page *)r->page->base;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip m = CKPT__SKIP__INIT;
	Ckpt__Reply *reply = NULL;
	int err;

	r->credit_used = page->credit;
	r->unsettled_credit = 0;
	if (page->credit == 0)
		return 0;
	m.epoch = r->epoch;
	m.credit = page->credit;
	m.only_credit = true;
	m.reason = (char *)"its slots were replaced";
	q.id = ++r->next_id;
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &m;
	err = ask_once(r, &q, rank_now(r) + REPLY_NS, &reply);
	reply_free(reply);
	return err;
}

static int take_up(struct rank *r, bool kept)
{
	bool had = r->n_slots > 0;
	int err = 0;

	if (!r->state.declaration || kept)
		return 0;
	sim_count(r->sim, rejoined);
	err = trainer_declare(r);
	if (err < 0 || !had)
		return err;
	err = forfeit(r);
	r->generation++;
	rank_unmap_slots(r);
	return err < 0 ? err : trainer_take_slots(r);
}

static int join_once(struct rank *r)
{
	bool kept = false;
	int err;

	if (r->channel)
		channel_close(r->channel);
	drop_inbox(r);
	r->channel = channel_open(r->process, &channel_events, r);
	if (!r->channel)
		return -EPIPE;
	err = hello(r);
	if (err == 0 && r->removes)
		return 0;
	if (err == 0)
		err = open_once(r, &kept);
	r->joining = true;
	if (err == 0 && r->opened_once)
		err = take_up(r, kept);
	r->joining = false;
	return err;
}

int rank_join(struct rank *r)
{
	uint64_t deadline = rank_now(r) + REJOIN_NS;

	for (;;) {
		int err = join_once(r);

		if (err == 0) {
			r->opened_once = true;
			r->joins++;
			return 0;
		}
		if (err == CKPT_EEPOCH || err == -EINVAL || rank_now(r) >= deadline) {
			sim_tell(r->sim, "rank %u of %s is out: %d", r->rank, r->job->name, err);
			sim_count(r->sim, refused);
			return -ESHUTDOWN;
		}
		rank_sleep(r, 1 + world_random(r->sim->w, JOIN_TRY_NS));
	}
}

/* ---- Asking ---- */

/* Nobody waits for others but where the protocol says so (I13). */
static void check_promptness(struct rank *r, const Ckpt__Request *q, unsigned flags, int err)
{
	if (err == CKPT_ETIMEDOUT && !(flags & ASK_MAY_WAIT) && r->channel && r->sim->daemon.life &&
	    r->sim->daemon.ready && !r->sim->daemon.stopping)
		sim_accuse(r->sim, "rank %u of %s: request %d was not answered in time", r->rank,
			   r->job->name, (int)q->body_case);
}

int rank_ask(struct rank *r, Ckpt__Request *q, unsigned flags, uint64_t deadline, Ckpt__Reply **ret)
{
	uint64_t generation = r->generation;
	Ckpt__Reply *reply = NULL;
	int err = -EPIPE;

	q->id = ++r->next_id;
	while (err == -EPIPE) {
		uint64_t until;

		err = r->channel || r->joining ? 0 : rank_join(r);
		if (err < 0)
			break;
		if ((flags & ASK_SLOTS) && generation != r->generation) {
			err = CKPT_EUNAVAILABLE;
			break;
		}
		until = flags & ASK_MAY_WAIT ? deadline : rank_now(r) + REPLY_NS;
		err = ask_once(r, q, until, &reply);
		check_promptness(r, q, flags, err);
		if (r->joining)
			break;
	}
	if (!(flags & ASK_KEEP_FDS))
		rank_close_fds(r);
	if (ret)
		*ret = reply;
	else
		reply_free(reply);
	return err;
}
