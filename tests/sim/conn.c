/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conn.c - processes, channels and the daemon's side of them. See conn.h.
 *
 * A channel has one queue for each direction; each item in it has an event in the world's queue,
 * and an event takes the first item there is. Channels are freed with their host, so that an
 * event never finds one gone.
 */
#include <config.h>

#include "tests/sim/conn.h"

#include <assert.h>
#include <errno.h>

#include "base/bytes.h"
#include "tests/sim/heap.h"

enum item_kind { ITEM_OPENED, ITEM_MESSAGE, ITEM_CLOSED };

struct item {
	struct list link;
	enum item_kind kind;
	void *msg;
	size_t len, n_fds;
	int fds[CONN_FDS_MAX];
};

struct direction {
	struct list items;
	struct item *current; /* being delivered */
	uint64_t last_ns;     /* when the last one arrives */
	bool ended;           /* nothing more is put in */
};

struct sim_channel {
	struct list link;
	struct conn conn; /* the daemon's end */
	struct host *host;
	struct sim_process *process;
	const struct channel_events *events;
	void *arg;
	struct direction to_daemon, to_process;
	bool daemon_gone, process_gone; /* that end will hear nothing more */
	bool wants_room;                /* room() has returned false to the daemon */
};

struct watch {
	struct list link;
	struct host *host;
	struct process_id id;
	bool cancelled; /* or told */
};

struct host {
	struct world *world;
	struct host_options options;
	struct list channels, process_list, watches;
	int32_t next_pid;
	uint64_t next_start;
	/* The daemon, while it listens. */
	struct life *daemon;
	const struct conn_events *events;
	void *arg;
	struct processes processes;
	struct life_hook hook;
};

static bool same_process(const struct process_id *a, const struct process_id *b)
{
	return a->pid == b->pid && a->start == b->start;
}

/* ---- Queues ---- */

static void item_free(struct world *w, struct item *i)
{
	if (!i)
		return;
	for (size_t k = 0; k < i->n_fds; k++) {
		if (i->fds[k] >= 0)
			sim_fd_close(w, i->fds[k]);
	}
	list_del(&i->link);
	free(i->msg);
	free(i);
}

static void drop_items(struct world *w, struct direction *d)
{
	while (!list_empty(&d->items))
		item_free(w, list_first(&d->items, struct item, link));
}

/* Also the one whose receiver died while it was told. */
static void drop_direction(struct world *w, struct direction *d)
{
	drop_items(w, d);
	item_free(w, d->current);
	d->current = NULL;
}

/* Some of what was last put in never left its sender. That it ended is noticed all the same. */
static void cut_items(struct world *w, struct direction *d)
{
	struct item *last = list_last(&d->items, struct item, link), *end = NULL;

	if (last && last->kind == ITEM_CLOSED) {
		end = last;
		list_del(&end->link);
	}
	while (!list_empty(&d->items) && world_one_in(w, 2))
		item_free(w, list_last(&d->items, struct item, link));
	if (end)
		list_add_tail(&d->items, &end->link);
}

static void deliver_to_daemon(void *arg);
static void deliver_to_process(void *arg);

static void put(struct sim_channel *c, struct direction *d, struct item *i)
{
	struct host *h = c->host;
	uint64_t at = h->world->now_ns + world_random(h->world, h->options.delay_ns_max + 1);

	d->last_ns = max_u64(d->last_ns, at);
	list_add_tail(&d->items, &i->link);
	if (d == &c->to_daemon)
		world_at(h->world, d->last_ns, h->daemon, deliver_to_daemon, c);
	else
		world_at(h->world, d->last_ns, c->process->life, deliver_to_process, c);
}

static void put_kind(struct sim_channel *c, struct direction *d, enum item_kind kind)
{
	struct item *i = sim_zero(sizeof(*i));

	i->kind = kind;
	put(c, d, i);
}

static struct item *item_new(struct world *w, const void *msg, size_t len, const int *fds,
			     size_t n_fds)
{
	struct item *i = sim_zero(sizeof(*i));

	assert(len <= CONN_MESSAGE_MAX && n_fds <= CONN_FDS_MAX);
	list_init(&i->link);
	i->kind = ITEM_MESSAGE;
	i->msg = sim_copy(msg, len);
	i->len = len;
	i->n_fds = n_fds;
	for (size_t k = 0; k < n_fds; k++) {
		i->fds[k] = fds[k];
		sim_fd_move(w, fds[k], NULL);
	}
	return i;
}

/* Nothing more comes this way; the other end hears of the end after what is on its way. */
static void finish(struct sim_channel *c, struct direction *d)
{
	bool gone = d == &c->to_daemon ? c->daemon_gone : c->process_gone;

	if (d->ended)
		return;
	d->ended = true;
	if (gone)
		drop_items(c->host->world, d);
	else
		put_kind(c, d, ITEM_CLOSED);
}

void channel_break(struct sim_channel *c)
{
	struct world *w = c->host->world;

	world_note(w, "break", (uint64_t)c->process->id.pid, 0, 0);
	cut_items(w, &c->to_daemon);
	cut_items(w, &c->to_process);
	finish(c, &c->to_daemon);
	finish(c, &c->to_process);
}

bool channel_intact(const struct sim_channel *c)
{
	return !c->daemon_gone && !c->process_gone && !c->to_daemon.ended && !c->to_process.ended;
}

static struct item *take(struct direction *d)
{
	struct item *i = list_first(&d->items, struct item, link);

	if (i) {
		list_del(&i->link);
		list_init(&i->link);
	}
	return i;
}

static void send_item(struct sim_channel *c, struct direction *d, struct item *i)
{
	struct host *h = c->host;

	if (d->ended) {
		item_free(h->world, i);
		return;
	}
	put(c, d, i);
	if (world_one_in(h->world, h->options.breaks))
		channel_break(c);
}

/* ---- The daemon's end ---- */

static struct sim_channel *channel_of(struct conn *conn)
{
	struct sim_channel *c = container_of(conn, struct sim_channel, conn);

	assert(!c->daemon_gone); /* used after closed() */
	assert(c->host->world->current == c->host->daemon);
	return c;
}

static void sim_send(struct conn *conn, const void *msg, size_t len, const int *fds, size_t n_fds)
{
	struct sim_channel *c = channel_of(conn);

	world_note(c->host->world, "to process", (uint64_t)conn->process.pid, len,
		   world_digest(msg, len));
	send_item(c, &c->to_process, item_new(c->host->world, msg, len, fds, n_fds));
}

static void sim_close(struct conn *conn)
{
	struct sim_channel *c = channel_of(conn);

	drop_items(c->host->world, &c->to_daemon);
	finish(c, &c->to_process);
	c->to_daemon.ended = false;
	finish(c, &c->to_daemon);
}

static void room_came(void *arg)
{
	struct sim_channel *c = arg;

	c->wants_room = false;
	if (!c->daemon_gone)
		c->host->events->room(c->host->arg, &c->conn);
}

/* As if the other end were slow to read what has descriptors. */
static bool sim_room(struct conn *conn)
{
	struct sim_channel *c = channel_of(conn);
	struct host *h = c->host;

	if (c->wants_room)
		return false;
	if (!world_one_in(h->world, h->options.full))
		return true;
	c->wants_room = true;
	world_at(h->world, h->world->now_ns + world_random(h->world, h->options.delay_ns_max + 1),
		 h->daemon, room_came, c);
	return false;
}

static void add_watch(struct host *h, const struct process_id *id)
{
	struct watch *x;

	list_each(x, &h->watches, link) {
		if (!x->cancelled && same_process(&x->id, id))
			return;
	}
	x = sim_zero(sizeof(*x));
	x->host = h;
	x->id = *id;
	list_add_tail(&h->watches, &x->link);
}

static bool sim_process_alive(struct conn *conn)
{
	struct sim_channel *c = channel_of(conn);

	if (c->process->alive)
		add_watch(c->host, &conn->process);
	return c->process->alive;
}

static const struct conn_ops conn_ops = {
	.send = sim_send,
	.close = sim_close,
	.room = sim_room,
	.process_alive = sim_process_alive,
};

static void hand_over(struct host *h, struct sim_channel *c, struct item *i)
{
	for (size_t k = 0; k < i->n_fds; k++)
		sim_fd_move(h->world, i->fds[k], h->daemon);
	h->events->message(h->arg, &c->conn, i->msg, i->len, i->fds, i->n_fds);
}

static void deliver_to_daemon(void *arg)
{
	struct sim_channel *c = arg;
	struct host *h = c->host;
	struct item *i = c->daemon_gone ? NULL : take(&c->to_daemon);

	if (!i)
		return;
	world_note(h->world, "at daemon", (uint64_t)c->conn.process.pid, i->kind,
		   world_digest(i->msg, i->len));
	c->to_daemon.current = i; /* the daemon may die in its callback */
	switch (i->kind) {
	case ITEM_OPENED:
		h->events->opened(h->arg, &c->conn);
		break;
	case ITEM_MESSAGE:
		hand_over(h, c, i);
		break;
	case ITEM_CLOSED:
		h->events->closed(h->arg, &c->conn);
		c->daemon_gone = true;
		break;
	}
	c->to_daemon.current = NULL;
	item_free(h->world, i);
}

/* ---- The process's end ---- */

struct sim_channel *channel_open(struct sim_process *p, const struct channel_events *events,
				 void *arg)
{
	struct host *h = p->host;
	struct sim_channel *c;

	assert(p->alive);
	if (!h->daemon)
		return NULL;
	c = sim_zero(sizeof(*c));
	c->conn.ops = &conn_ops;
	c->conn.process = p->id;
	c->host = h;
	c->process = p;
	c->events = events;
	c->arg = arg;
	list_init(&c->to_daemon.items);
	list_init(&c->to_process.items);
	list_add_tail(&h->channels, &c->link);
	put_kind(c, &c->to_daemon, ITEM_OPENED);
	return c;
}

void channel_send(struct sim_channel *c, const void *msg, size_t len, const int *fds, size_t n_fds)
{
	assert(!c->process_gone && c->process->alive);
	send_item(c, &c->to_daemon, item_new(c->host->world, msg, len, fds, n_fds));
}

void channel_close(struct sim_channel *c)
{
	c->process_gone = true;
	finish(c, &c->to_daemon);
	c->to_process.ended = true;
	drop_items(c->host->world, &c->to_process);
}

static void deliver_to_process(void *arg)
{
	struct sim_channel *c = arg;
	struct item *i = c->process_gone ? NULL : take(&c->to_process);

	if (!i)
		return;
	world_note(c->host->world, "at process", (uint64_t)c->process->id.pid, i->kind,
		   world_digest(i->msg, i->len));
	c->to_process.current = i;
	if (i->kind == ITEM_MESSAGE) {
		for (size_t k = 0; k < i->n_fds; k++)
			sim_fd_move(c->host->world, i->fds[k], c->process->life);
		c->events->message(c->arg, c, i->msg, i->len, i->fds, i->n_fds);
		i->n_fds = 0;
	} else {
		c->process_gone = true;
		finish(c, &c->to_daemon);
		c->events->closed(c->arg, c);
	}
	c->to_process.current = NULL;
	item_free(c->host->world, i);
}

/* ---- Processes ---- */

static void tell_end(void *arg)
{
	struct watch *x = arg;

	if (x->cancelled)
		return;
	world_note(x->host->world, "process ended", (uint64_t)x->id.pid, x->id.start, 0);
	x->cancelled = true;
	x->host->events->process_ended(x->host->arg, &x->id);
	if (x->host->events->process_exit)
		x->host->events->process_exit(x->host->arg, &x->id,
					      &(struct process_exit){PROCESS_END_SIGNAL, 9});
}

static void gone(struct sim_process *p)
{
	struct host *h = p->host;
	struct sim_channel *c;
	struct watch *x;

	p->alive = false;
	world_note(h->world, "process dies", (uint64_t)p->id.pid, p->id.start, 0);
	list_each(c, &h->channels, link) {
		if (c->process != p || c->process_gone)
			continue;
		cut_items(h->world, &c->to_daemon);
		c->process_gone = true;
		c->to_process.ended = true;
		drop_direction(h->world, &c->to_process);
		finish(c, &c->to_daemon);
	}
	list_each(x, &h->watches, link) {
		if (!x->cancelled && same_process(&x->id, &p->id))
			world_after(h->world, world_random(h->world, h->options.delay_ns_max + 1),
				    h->daemon, tell_end, x);
	}
}

static void life_of_process_ended(struct life_hook *hook)
{
	struct sim_process *p = container_of(hook, struct sim_process, hook);

	p->life = NULL;
	gone(p);
}

static struct sim_process *find_alive(struct host *h, int32_t pid)
{
	struct sim_process *p;

	list_each(p, &h->process_list, link) {
		if (p->alive && p->id.pid == pid)
			return p;
	}
	return NULL;
}

struct sim_process *process_new(struct host *h, uint32_t uid, struct life *l)
{
	struct sim_process *p = sim_zero(sizeof(*p));

	do
		h->next_pid = 100 + (h->next_pid - 99) % (int32_t)h->options.pids;
	while (find_alive(h, h->next_pid));
	p->id = (struct process_id){ h->next_pid, uid, ++h->next_start };
	p->alive = true;
	p->host = h;
	p->life = l;
	p->hook.ended = life_of_process_ended;
	list_init(&p->hook.link);
	list_add_tail(&h->process_list, &p->link);
	if (l)
		life_on_end(l, &p->hook);
	return p;
}

void process_end(struct sim_process *p)
{
	if (!p->alive)
		return;
	if (p->life)
		life_kill(p->life);
	else
		gone(p);
	assert(!p->alive);
}

static int sim_watch(struct processes *processes, struct process_id *id)
{
	struct host *h = container_of(processes, struct host, processes);
	struct sim_process *p = find_alive(h, id->pid);

	if (!p || !same_process(&p->id, id))
		return -ESRCH;
	add_watch(h, id);
	return 0;
}

static void sim_unwatch(struct processes *processes, const struct process_id *id)
{
	struct host *h = container_of(processes, struct host, processes);
	struct watch *x;

	list_each(x, &h->watches, link) {
		if (same_process(&x->id, id))
			x->cancelled = true;
	}
}

static const struct processes_ops processes_ops = {
	.watch = sim_watch,
	.unwatch = sim_unwatch,
};

/* ---- The host ---- */

struct host *host_new(struct world *w, const struct host_options *o)
{
	struct host *h = sim_zero(sizeof(*h));

	assert(o->pids > 0);
	h->world = w;
	h->options = *o;
	h->next_pid = 99;
	h->processes.ops = &processes_ops;
	list_init(&h->channels);
	list_init(&h->process_list);
	list_init(&h->watches);
	list_init(&h->hook.link);
	return h;
}

struct host_options *host_options(struct host *h)
{
	return &h->options;
}

bool host_listening(const struct host *h)
{
	return h->daemon != NULL;
}

static void drop_watches(struct host *h)
{
	while (!list_empty(&h->watches)) {
		struct watch *x = list_first(&h->watches, struct watch, link);

		list_del(&x->link);
		free(x);
	}
}

/* What it had been sent is lost with it; of what it sent, a prefix is on its way. */
static void daemon_ended(struct life_hook *hook)
{
	struct host *h = container_of(hook, struct host, hook);
	struct sim_channel *c;

	h->daemon = NULL;
	list_each(c, &h->channels, link) {
		if (c->daemon_gone)
			continue;
		c->daemon_gone = true;
		c->to_daemon.ended = true;
		drop_direction(h->world, &c->to_daemon);
		cut_items(h->world, &c->to_process);
		finish(c, &c->to_process);
	}
	drop_watches(h);
}

struct processes *host_listen(struct host *h, struct life *daemon, const struct conn_events *events,
			      void *arg)
{
	assert(!h->daemon && daemon->alive);
	h->daemon = daemon;
	h->events = events;
	h->arg = arg;
	h->hook.ended = daemon_ended;
	life_on_end(daemon, &h->hook);
	return &h->processes;
}

void host_free(struct host *h)
{
	if (!h)
		return;
	assert(!h->daemon);
	while (!list_empty(&h->channels)) {
		struct sim_channel *c = list_first(&h->channels, struct sim_channel, link);

		drop_direction(h->world, &c->to_daemon);
		drop_direction(h->world, &c->to_process);
		world_forget(h->world, c);
		list_del(&c->link);
		free(c);
	}
	while (!list_empty(&h->process_list)) {
		struct sim_process *p = list_first(&h->process_list, struct sim_process, link);

		assert(!p->life);
		list_del(&p->link);
		free(p);
	}
	drop_watches(h);
	free(h);
}
