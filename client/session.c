/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - joining ckptd, and joining it again when it was lost.
 *
 *   DOWN --connect, Hello, Open--> JOINED --the channel is lost--> DOWN
 *   DOWN --connect, Hello, Open(reconnect)--> slots still ours --> JOINED
 *                   --> not ours: Declare, they are dropped --> JOINED; saves take others
 *
 * The first join tries as long as connect_timeout allows; a later one is part of the call that
 * found the channel lost, and then repeats that call's request under its old id (I10). A load or a
 * wait (`patient`) gives it all of its time. The first other call gives it REJOIN_MS; if that was
 * not enough ckptd is away: further calls do not wait, and when it is time for it, or there is
 * another socket, try once without waiting for more than an answer. So a trainer whose ckptd is
 * away loses a second once, not at every save. One that takes requests and says nothing to them for
 * SILENT_MS, or to the end of a call that lasts a second, is away as well: a save that it does not
 * answer costs that once. What ckptd said at the first open (run id, token) is
 * kept in memory, so that a rejoin is the same rank of the same run. The epoch is kept too: a job
 * that went on meanwhile is found out by the next save, not papered over here (I5).
 *
 * Failure: CKPT_EUNAVAILABLE with the socket's path, the reason and what to do; the handle stays
 * usable and the next call tries again.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/client.h"
#include "client/reach.h"

#define REJOIN_MS  1000
#define ANSWER_MS   250  /* for a quick try, or a quarter of the pause before it */
#define QUICK_MS    50   /* what is refused as soon costs nothing to ask again */
#define AWAY_MIN_MS 1000 /* between tries while it is away, */
#define AWAY_MAX_MS 10000
#define BYE_MS	   1000
#define PAUSE_MIN  (1 * NS_PER_MS)
#define PAUSE_MAX  (100 * NS_PER_MS)
#define LOSSES_MAX 3 /* in one call: a request that kills ckptd is not fed to it for ever */

/* One Hello and Open. */
struct joining {
	struct request q;
	struct ckpt *c;
	bool again;
	int page_fd, beat_fd;
	uint32_t slots[SLOTS_MAX];
	uint32_t n_slots;
	struct digest declaration;
	bool has_declaration;
};

/* ---- Sentences ---- */

#define REMEDY_MAX (REACH_TEXT_MAX + 160)

/* Of the sockets that were tried the one that let this user not in. */
static const char *refusing(const struct ckpt *c)
{
	for (uint32_t i = 0; !c->joined && i < c->who.n_sockets; i++)
		if (access(c->who.sockets[i], W_OK) != 0 && errno == EACCES)
			return c->who.sockets[i];
	return c->socket;
}

static const char *remedy_of(const struct ckpt *c, int reason, char buf[REMEDY_MAX])
{
	char refused[REACH_TEXT_MAX];

	if (reason == -ENAMETOOLONG)
		return "the path of a socket has at most 107 bytes, choose a shorter one";
	if (reason == -EMFILE)
		return "raise this process's limit of open files (ulimit -n)";
	if (reason == CKPT_ETIMEDOUT)
		return "see `ckptctl status` and ckptd's log";
	if (reason == -EACCES || reason == -EPERM)
		snprintf(buf, REMEDY_MAX, "%s; or run `ckptd --user`",
			 reach_refused(refusing(c), '`', refused));
	else
		snprintf(buf, REMEDY_MAX,
			 "%sstart it with `systemctl start ckptd` or `ckptd --user`, or name its "
			 "socket in CKPT_SOCKET",
			 c->joined ? "it may be restarting, and a later call finds it then; if it "
				     "stays away, "
				   : reach_hint(c->socket));
	return buf;
}

static int unavailable(const struct ckpt *c, int reason, struct err *e)
{
	char remedy[REMEDY_MAX];

	if (c->who.n_sockets > 1 && !c->joined)
		return err_set(e, CKPT_EUNAVAILABLE, "ckptd cannot be reached at '%s' or '%s' "
			       "(%s); %s", c->who.sockets[0], c->who.sockets[1], err_text(reason),
			       remedy_of(c, reason, remedy));
	return err_set(e, CKPT_EUNAVAILABLE, "ckptd cannot be reached at '%s' (%s); %s", c->socket,
		       err_text(reason), remedy_of(c, reason, remedy));
}

/* In place of a try. */
static int still_away(const struct ckpt *c, uint64_t now, struct err *e)
{
	return err_set(
		e, CKPT_EUNAVAILABLE,
		"ckptd at '%s' has been away for %llu s (%s): it may be restarting, and the "
		"library tries again in %llu s; if it stays away, start it",
		c->socket, (unsigned long long)div_up(now - c->away.since_ns, 1000 * NS_PER_MS),
		c->away.why, (unsigned long long)div_up(c->away.next_ns - now, 1000 * NS_PER_MS));
}

static int timed_out(const struct ckpt *c, struct err *e)
{
	return err_set(e, CKPT_ETIMEDOUT, "ckptd at '%s' did not answer in time; see `ckptctl "
		       "status`, or give the call a longer timeout", c->socket);
}

/* ---- Calls ---- */

/* One request over the channel as it is. -EPIPE: it was lost. */
static int call_once(struct ckpt *c, struct request *q, uint64_t deadline)
{
	int r = request_start(&c->rq, q, deadline);

	while (r == 0 && !q->done)
		r = requests_pump(&c->rq, deadline);
	if (r == 0)
		return q->status;
	if (!c->rq.channel.up)
		return -EPIPE;
	/* While joining the sentence is unavailable()'s: only what ckptd said itself is kept. */
	return r == CKPT_ETIMEDOUT && !c->joining ? timed_out(c, q->err) : r;
}

/* ckptd answers it in the turn of its loop that reads it, or in one of the next. */
static bool answered_at_once(const struct request *q)
{
	return q->message.body_case == CKPT__REQUEST__BODY_SEAL ||
	       q->message.body_case == CKPT__REQUEST__BODY_SKIP ||
	       q->message.body_case == CKPT__REQUEST__BODY_LIST;
}

/* One that a call without patience waits for. */
static int call_in_time(struct ckpt *c, struct request *q, uint64_t deadline)
{
	bool soon = answered_at_once(q) && !c->joining && !c->patient;
	int r;

	if (soon)
		deadline = min_u64(deadline, deadline_in(SILENT_MS));
	r = call_once(c, q, deadline);
	/* An interrupted call has not given it the time that an answer may take. */
	if (soon && r == CKPT_ETIMEDOUT && !q->done && !c->interrupt.came)
		ignore_result(session_is_silent(c, ASK_MS) /* the call has failed */);
	return r;
}

/* generation: of the slots that the request speaks of; NULL: of none. */
static int call(struct ckpt *c, struct request *q, const uint64_t *generation, uint64_t deadline)
{
	int r = -EPIPE;

	for (int losses = 0; losses <= LOSSES_MAX && r == -EPIPE; losses++) {
		r = c->joining ? 0 : session_ensure(c, deadline, q->err);
		if (r == 0 && generation && *generation != c->generation)
			r = err_set(q->err, CKPT_EUNAVAILABLE, "ckptd at '%s' was restarted "
				    "without its memory: what was being saved is gone, the next "
				    "save works again", c->socket); /* (2) */
		if (r == 0)
			r = call_in_time(c, q, deadline);
		if (c->joining)
			break;
	}
	request_forget(q);
	if (r != -EPIPE || c->joining)
		return r;
	return unavailable(c, -ECONNRESET, q->err);
}

int session_call(struct ckpt *c, struct request *q, uint64_t deadline)
{
	return call(c, q, NULL, deadline);
}

int session_call_slots(struct ckpt *c, struct request *q, uint64_t generation, uint64_t deadline)
{
	return call(c, q, &generation, deadline);
}

/* ---- Hello ---- */

static int hello_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct ckpt *c = container_of(q, struct joining, q)->c;
	struct geometry g;

	(void)fds;
	(void)n_fds;
	if (reply->body_case != CKPT__REPLY__BODY_HELLO || reply->hello->version != SESSION_VERSION)
		return err_set(q->err, CKPT_EVERSION, "ckptd at '%s' speaks another version of the "
			       "session protocol; install a libckpt of its release", c->socket);
	g = (struct geometry){ .leaf = reply->hello->leaf, .chunk = reply->hello->chunk };
	if (!geometry_valid(g))
		return err_set(q->err, CKPT_EPROTO, "ckptd at '%s' named a leaf of %u and a chunk "
			       "of %u bytes", c->socket, g.leaf, g.chunk);
	if (c->own.n_shards && (g.leaf != c->geometry.leaf || g.chunk != c->geometry.chunk))
		return err_set(q->err, CKPT_EVERSION, "ckptd at '%s' came back with another leaf "
			       "or chunk size; open the job anew", c->socket);
	c->geometry = g;
	return 0;
}

static int say_hello(struct joining *j, uint64_t deadline, struct err *e)
{
	Ckpt__Hello hello = CKPT__HELLO__INIT;

	hello.version_min = hello.version_max = SESSION_VERSION;
	hello.features = SESSION_FEATURE_BEATS | SESSION_FEATURE_LOOKS;
	hello.program = (char *)"libckpt " PACKAGE_VERSION;
	request_init(&j->q, e);
	j->q.message.body_case = CKPT__REQUEST__BODY_HELLO;
	j->q.message.hello = &hello;
	j->q.reply = hello_reply;
	return session_call(j->c, &j->q, deadline);
}

/* ---- Open ---- */

static int open_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct joining *j = container_of(q, struct joining, q);
	struct ckpt *c = j->c;
	const Ckpt__OpenReply *o = reply->open;

	if (q->status < 0)
		return 0;
	if (reply->body_case != CKPT__REPLY__BODY_OPEN || (!o->looks && o->page_fd >= n_fds) ||
	    o->n_slots > SLOTS_MAX || o->token.len > TOKEN_BYTES ||
	    strlen(o->run_id) > RUN_ID_BYTES_MAX)
		return err_set(q->err, CKPT_EPROTO, "ckptd at '%s' answered an open with something "
			       "else", c->socket);
	c->looks = o->looks;
	if (!o->looks) {
		j->page_fd = fds[o->page_fd];
		fds[o->page_fd] = -1;
	}
	if (o->beats && o->beat_fd < n_fds && o->beat_fd != o->page_fd) {
		j->beat_fd = fds[o->beat_fd];
		fds[o->beat_fd] = -1;
	}
	j->n_slots = (uint32_t)o->n_slots;
	if (o->n_slots)
		memcpy(j->slots, o->slots, o->n_slots * sizeof(j->slots[0]));
	j->has_declaration = o->declaration.len == sizeof(j->declaration);
	if (j->has_declaration)
		memcpy(j->declaration.b, o->declaration.data, sizeof(j->declaration.b));
	if (o->token.len)
		memcpy(c->who.token, o->token.data, o->token.len);
	c->who.token_len = (uint32_t)o->token.len;
	snprintf(c->who.run_id, sizeof(c->who.run_id), "%s", o->run_id);
	if (!c->joined) {
		c->epoch = o->epoch;
		c->origin.kind = c->who.own_state ? ORIGIN_UNSAID : ORIGIN_FRESH;
	}
	return 0;
}

static void unmap_page(struct ckpt *c)
{
	if (c->page)
		munmap((void *)c->page, SESSION_PAGE_BYTES);
	c->page = NULL;
}

static int map_page(struct ckpt *c, int fd, struct err *e)
{
	const struct session_page *page;
	struct stat st;
	int r = 0;

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)SESSION_PAGE_BYTES)
		r = -EBADMSG; /* a shorter one would be a SIGBUS later */
	page = r < 0 ? MAP_FAILED : mmap(NULL, SESSION_PAGE_BYTES, PROT_READ,
					 MAP_SHARED | MAP_POPULATE, fd, 0);
	if (r == 0 && page == MAP_FAILED)
		r = -errno;
	close(fd);
	if (r < 0)
		return err_code(e, r, "map the session page of ckptd at '%s'", c->socket);
	if (page->magic != SESSION_PAGE_MAGIC || page->version < SESSION_VERSION) {
		munmap((void *)page, SESSION_PAGE_BYTES);
		return err_set(e, CKPT_EVERSION, "the session page of ckptd at '%s' is not one "
			       "that this libckpt knows", c->socket);
	}
	unmap_page(c);
	c->page = page;
	return 0;
}

static int say_open(struct joining *j, uint64_t deadline, struct err *e)
{
	struct ckpt *c = j->c;
	Ckpt__Open open = CKPT__OPEN__INIT;
	Ckpt__Origin origin;
	int r;

	open.job = c->who.job;
	open.rank = c->who.rank;
	open.world = c->who.world;
	open.run_id = c->who.run_id;
	open.token = (ProtobufCBinaryData){ c->who.token_len, c->who.token };
	open.reconnect = j->again;
	/* A trainer that was in may make a job anew that was lost with its folder. */
	open.existing = c->who.existing && !(j->again && c->who.trains);
	open.trains = c->who.trains;
	open.assumed = c->who.assumed;
	open.loaded_epoch = j->again ? c->epoch : 0;
	open.own_state = c->who.own_state;
	open.origin = j->again ? origin_message(c->origin, &origin) : NULL;
	request_init(&j->q, e);
	j->q.message.body_case = CKPT__REQUEST__BODY_OPEN;
	j->q.message.open = &open;
	j->q.reply = open_reply;
	j->page_fd = j->beat_fd = -1;
	r = session_call(c, &j->q, deadline);
	if (j->beat_fd >= 0)
		beating_take(c->beat, j->beat_fd);
	if (r == 0 && c->looks) {
		unmap_page(c);
		return 0;
	}
	if (r == 0 && j->page_fd < 0)
		r = err_set(e, CKPT_EPROTO, "ckptd at '%s' answered an open without its page",
			    c->socket);
	return r < 0 ? r : map_page(c, j->page_fd, e);
}

/* ---- What the handle had ---- */

static bool slots_are_ours(const struct ckpt *c, const struct joining *j)
{
	uint32_t mine[SLOTS_MAX], found = 0, n = prepare_numbers(c, mine);

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < j->n_slots; k++)
			found += mine[i] == j->slots[k];
	return found == n && j->n_slots == n;
}

/* A credit that was granted over slots that are no longer mapped cannot be used (1). With the slots
 * goes the save that has no answer yet, if there is one: of that step ckptd is told. */
static int forfeit_credit(struct ckpt *c, uint64_t deadline, struct err *e)
{
	uint64_t credit = atomic_load_explicit(&c->page->credit, memory_order_acquire);
	struct save lost = c->unsettled;
	Ckpt__Skip skip = CKPT__SKIP__INIT;
	struct request q;

	c->credit_used = credit;
	c->unsettled = (struct save){ 0 };
	if (credit == 0)
		return 0;
	skip.credit = credit;
	skip.only_credit = lost.credit == 0;
	skip.step = lost.step;
	skip.epoch = lost.credit ? lost.epoch : c->epoch;
	skip.try_ = lost.try;
	skip.kind = CKPT_SKIP_FAILED;
	skip.reason = (char *)"its slots were replaced";
	request_init(&q, e);
	q.message.body_case = CKPT__REQUEST__BODY_SKIP;
	q.message.skip = &skip;
	return session_call(c, &q, deadline);
}

static int restore(struct ckpt *c, const struct joining *j, uint64_t deadline, struct err *e)
{
	bool known = j->has_declaration && digest_equal(&j->declaration, &c->digest);
	int r = 0;

	if (c->own.declaration && !known)
		r = declare_send(c, deadline, e);
	if (r < 0 || !prepare_has_slots(c) || (known && slots_are_ours(c, j)))
		return r;
	r = forfeit_credit(c, deadline, e);
	/* Neither making others nor letting go of these is done in the time of the call that found
	 * this out (I13): prepare.c. */
	if (r == 0)
		prepare_drop_slots(c);
	return r;
}

/* ---- Joining ---- */

static int connect_any(struct ckpt *c)
{
	int r = -ENOENT, first = 0;

	if (c->joined)
		return channel_connect(&c->rq.channel, c->socket);
	for (uint32_t i = 0; i < c->who.n_sockets; i++) {
		c->socket = c->who.sockets[i];
		r = channel_connect(&c->rq.channel, c->socket);
		if (r == 0)
			return 0;
		/* Somebody listening who does not let us in says more than nobody at all. */
		if (first == 0 || first == -ENOENT)
			first = r;
	}
	return first;
}

/* until: of connecting and Open; deadline: of what the handle had. No sentence: unavailable. */
static int join_once(struct ckpt *c, uint64_t until, uint64_t deadline, struct err *e)
{
	struct joining j = { .c = c, .again = c->joined };
	int r;

	err_clear(e);
	r = connect_any(c);
	if (r < 0)
		return r;
	c->rq.asked_ns = 0;
	c->joining = true;
	r = say_hello(&j, until, e);
	if (r == 0) {
		r = say_open(&j, until, e);
		if (r == CKPT_ETIMEDOUT && e->code == 0) /* it is there, and said Hello */
			err_set(e, r,
				"ckptd at '%s' has not opened job '%s' in time: it waits until the "
				"job's log can be written (is the disk full?), or for its older "
				"ranks; see `ckptctl status`, or give connect_timeout more time",
				c->socket, c->who.job);
	}
	if (r == 0 && j.again && !c->looks)
		r = restore(c, &j, deadline, e);
	c->joining = false;
	if (r < 0)
		channel_drop(&c->rq.channel);
	return r;
}

static bool worth_another_try(int r)
{
	return r == -ENOENT || r == -ECONNREFUSED || r == -EAGAIN || r == -EPIPE;
}

/*
 * What ckptd refused with, as the caller's call gives it. No log that can be written, or, for a
 * rank that was in, a ckptd that starts or stops, is no ckptd for now: a call that waits for
 * something else must not mistake it for an answer.
 */
static int refused(const struct ckpt *c, int r, struct err *e)
{
	if (e->code == 0)
		return unavailable(c, r, e);
	if (r == CKPT_ETIMEDOUT || (r == -EAGAIN && c->joined))
		e->code = r = CKPT_EUNAVAILABLE;
	return r;
}

static int join(struct ckpt *c, uint64_t until, uint64_t answer_by, uint64_t deadline,
		struct err *ret_e)
{
	uint64_t pause = PAUSE_MIN, now, tried;
	struct err e = { 0 }, before;
	int r = 0, r_before;

	for (;;) {
		before = e;
		r_before = r;
		tried = clock_ns();
		r = join_once(c, answer_by, deadline, &e);
		now = clock_ns();
		/* A full queue of connections says that ckptd is there, and busy. */
		if (r == -EAGAIN && e.code == 0)
			until = max_u64(until, min_u64(answer_by, now + PAUSE_MAX));
		if (!worth_another_try(r) || now >= until)
			break;
		ignore_result(clock_poll(NULL, 0, min_u64(now + pause, until),
					 &c->interrupt) /* only waits */);
		if (c->interrupt.came)
			break;
		pause = min_u64(2 * pause, PAUSE_MAX);
	}
	/* A last try for which no time was left: the one before it says more. */
	if (r == CKPT_ETIMEDOUT && e.code == 0 && before.code) {
		r = r_before;
		e = before;
	}
	if (r < 0) {
		c->away.refused = e.code != 0 && now - tried < QUICK_MS * NS_PER_MS;
		snprintf(c->away.why, sizeof(c->away.why), "%.*s", (int)sizeof(c->away.why) - 1,
			 e.code ? e.text : err_text(r));
		r = refused(c, r, &e);
	}
	if (r < 0 && ret_e)
		*ret_e = e;
	return r;
}

int session_open(struct ckpt *c, struct err *e)
{
	uint64_t now = clock_ns(), answer_by, until = now;
	int r;

	assert(!c->joined && !c->rq.channel.up);
	if (c->who.connect_ms)
		until = deadline_in(c->who.connect_ms);
	answer_by = c->who.connect_ms ? until : deadline_in(c->who.timeout_ms);
	r = join(c, until, answer_by, answer_by, e);
	if (r == 0)
		c->joined = true;
	return r;
}

/* ---- A ckptd that is away ---- */

/* Whether there is another socket than at the last try; a ckptd that starts makes its own. */
static bool socket_changed(struct ckpt *c)
{
	struct away now = c->away;
	struct stat st = {0};
	bool there = stat(c->socket, &st) == 0;

	now.device = st.st_dev;
	now.inode = st.st_ino;
	now.changed_ns = (uint64_t)st.st_ctim.tv_sec * 1000000000u + (uint64_t)st.st_ctim.tv_nsec;
	if (now.device == c->away.device && now.inode == c->away.inode &&
	    now.changed_ns == c->away.changed_ns)
		return false;
	c->away = now;
	return there;
}

static void back_off(struct ckpt *c)
{
	struct away *a = &c->away;
	uint64_t now = clock_ns();

	a->pause_ms = max_u64(AWAY_MIN_MS, min_u64(2 * a->pause_ms, AWAY_MAX_MS));
	a->next_ns = now;
	/* One that refuses at once costs nothing to ask again. */
	if (!a->refused)
		a->next_ns += a->pause_ms * NS_PER_MS;
}

/* The connection is given up: what was asked may have arrived, which is as if it had been lost
 * (I10), and an old one's messages count for nothing once this process has joined over another. */
bool session_is_silent(struct ckpt *c, uint64_t ms)
{
	uint64_t asked = c->rq.asked_ns;

	if (!c->rq.channel.up || asked == 0 || clock_ns() - asked < ms * NS_PER_MS)
		return false;
	channel_drop(&c->rq.channel);
	c->away = (struct away){.since_ns = asked};
	snprintf(c->away.why, sizeof(c->away.why), "it does not answer");
	ignore_result(socket_changed(c) /* noted: the same socket is no news */);
	back_off(c);
	return true;
}

int session_ensure(struct ckpt *c, uint64_t deadline, struct err *e)
{
	struct away *a = &c->away;
	uint64_t now, until, answer_by;
	bool changed;
	int r;

	assert(c->joined && !c->joining);
	if (c->rq.channel.up)
		return 0;
	now = clock_ns();
	a->since_ns = a->since_ns ? a->since_ns : now;
	changed = socket_changed(c);
	if (c->patient) {
		until = answer_by = deadline;
	} else if (a->next_ns == 0) {
		until = answer_by = min_u64(deadline, now + REJOIN_MS * NS_PER_MS);
	} else if (changed || now >= a->next_ns) {
		until = now;
		answer_by = min_u64(max_u64(ANSWER_MS, a->pause_ms / 4), REJOIN_MS);
		answer_by = min_u64(deadline, now + answer_by * NS_PER_MS);
	} else {
		return still_away(c, now, e);
	}
	if (changed)
		a->pause_ms = 0; /* the pause behind it is the shortest */
	r = join(c, until, answer_by, deadline, e);
	if (r < 0) {
		back_off(c);
		return r;
	}
	*a = (struct away){0};
	c->rejoined = true;
	c->stats.reconnects++;
	return 0;
}

/* Says goodbye and waits until ckptd has heard it: the same rank may be opened again at once. */
void session_close(struct ckpt *c, bool failed)
{
	Ckpt__Bye bye = CKPT__BYE__INIT;
	struct request q;

	if (c->joined && c->rq.channel.up) {
		request_init(&q, NULL);
		q.message.body_case = CKPT__REQUEST__BODY_BYE;
		q.message.bye = &bye;
		bye.failed = failed;
		ignore_result(call_once(c, &q, deadline_in(BYE_MS)) /* it ends in every case */);
		request_forget(&q);
	}
	unmap_page(c);
}
