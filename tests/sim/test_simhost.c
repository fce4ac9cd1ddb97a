/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_simhost.c - index, memory, processes and connections of the simulator.
 */
#include <config.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/lib/test.h"
#include "tests/sim/conn.h"
#include "tests/sim/index.h"
#include "tests/sim/life.h"
#include "tests/sim/memory.h"

static const struct life_options plain = { .name = "node" };

static void nothing(void *arg)
{
	(void)arg;
}

/* ---- Index ---- */

static struct index_entry entry(const char *key, const char *value)
{
	return (struct index_entry){ key, strlen(key), value, value ? strlen(value) : 0 };
}

static int collect(void *arg, const void *key, size_t key_len, const void *value, size_t value_len)
{
	char *text = arg;

	sprintf(text + strlen(text), "%.*s=%.*s ", (int)key_len, (const char *)key, (int)value_len,
		(const char *)value);
	return 0;
}

static const char *scan(struct index *ix, const char *prefix, const char *from)
{
	static char text[256];

	text[0] = '\0';
	assert_int_equal(ix->ops->scan(ix, prefix, strlen(prefix), from, strlen(from), collect,
				       text), 0);
	return text;
}

static int put(struct index *ix, const char *key, const char *value, bool sync)
{
	struct index_entry e = entry(key, value);

	return ix->ops->write(ix, &e, 1, sync);
}

static void test_index_is_a_sorted_map(void **state)
{
	struct world *w = world_new(1);
	struct index_store *s = index_store_new(w, &(struct index_options){ 0 });
	struct index_entry batch[3] = { entry("b2", "x"), entry("a1", "y"), entry("b1", "z") };
	struct index *ix;
	char text[64] = "";
	bool fresh;

	(void)state;
	assert_int_equal(index_sim_open(s, &ix, &fresh, NULL), 0);
	assert_true(fresh);
	assert_int_equal(ix->ops->write(ix, batch, 3, true), 0);
	assert_string_equal(scan(ix, "b", ""), "b1=z b2=x ");
	assert_string_equal(scan(ix, "", "b1"), "b1=z b2=x ");
	assert_string_equal(scan(ix, "b", "b2"), "b2=x ");
	assert_int_equal(put(ix, "b1", NULL, true), 0);
	assert_int_equal(put(ix, "b1", NULL, true), 0);
	assert_int_equal(put(ix, "a1", "new", true), 0);
	assert_string_equal(scan(ix, "", ""), "a1=new b2=x ");
	assert_int_equal(ix->ops->get(ix, "a1", 2, collect, text), 0);
	assert_string_equal(text, "a1=new ");
	assert_int_equal(ix->ops->get(ix, "a", 1, collect, text), CKPT_ENOTFOUND);
	ix->ops->close(ix);
	assert_int_equal(index_sim_open(s, &ix, &fresh, NULL), 0);
	assert_false(fresh);
	assert_string_equal(scan(ix, "", ""), "a1=new b2=x ");
	ix->ops->close(ix);
	index_store_lose(s);
	assert_int_equal(index_sim_open(s, &ix, &fresh, NULL), 0);
	assert_true(fresh);
	assert_string_equal(scan(ix, "", ""), "");
	ix->ops->close(ix);
	index_store_free(s);
	world_free(w);
}

static void test_index_loses_a_suffix_of_what_was_not_synced(void **state)
{
	bool seen[4] = { false };

	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct world *w = world_new(seed);
		struct index_store *s = index_store_new(w, &(struct index_options){ 0 });
		struct index *ix;
		bool fresh;

		assert_int_equal(index_sim_open(s, &ix, &fresh, NULL), 0);
		assert_int_equal(put(ix, "0", "", true), 0);
		assert_int_equal(put(ix, "1", "", false), 0);
		assert_int_equal(put(ix, "2", "", false), 0);
		assert_int_equal(put(ix, "3", "", false), 0);
		ix->ops->close(ix);
		if (seed % 2)
			index_store_power_loss(s);
		assert_int_equal(index_sim_open(s, &ix, &fresh, NULL), 0);
		if (seed % 2 == 0)
			assert_string_equal(scan(ix, "", ""), "0= 1= 2= 3= ");
		for (size_t i = 0; i < index_store_entries(s); i++)
			assert_int_equal(scan(ix, "", "")[3 * i], '0' + (int)i);
		seen[index_store_entries(s) - 1] = true;
		ix->ops->close(ix);
		index_store_free(s);
		world_free(w);
	}
	assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
}

static void test_index_write_that_failed_may_appear(void **state)
{
	int appeared = 0, never = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct world *w = world_new(seed);
		struct index_store *s = index_store_new(w, &(struct index_options){ 0 });
		struct index *ix;
		bool fresh;

		assert_int_equal(index_sim_open(s, &ix, &fresh, NULL), 0);
		index_store_options(s)->write_fails = 1;
		assert_int_equal(put(ix, "ghost", "", true), -EIO);
		assert_string_equal(scan(ix, "", ""), "");
		index_store_options(s)->write_fails = 0;
		index_store_options(s)->read_fails = 1;
		assert_int_equal(ix->ops->get(ix, "a", 1, collect, NULL), -EIO);
		assert_int_equal(ix->ops->scan(ix, "a", 1, "a", 1, collect, NULL), -EIO);
		index_store_options(s)->read_fails = 0;
		ix->ops->close(ix);
		assert_int_equal(index_sim_open(s, &ix, &fresh, NULL), 0);
		appeared += strcmp(scan(ix, "", ""), "ghost= ") == 0;
		never += strcmp(scan(ix, "", ""), "") == 0;
		ix->ops->close(ix);
		index_store_free(s);
		world_free(w);
	}
	assert_int_equal(appeared + never, 60);
	assert_true(appeared > 10 && never > 10);
}

/* ---- Memory ---- */

struct rooms {
	struct world *w;
	struct keeper *keeper;
	struct memory *m;
	struct region *slot, *ledger;
	int slot_fd, adopted;
};

static void make_rooms(void *arg)
{
	struct rooms *r = arg;

	r->m = memory_sim_open(r->keeper, r->w->current);
	assert_int_equal(r->m->ops->create(r->m, "slot-1", 5000, &r->slot), 0);
	assert_int_equal(r->m->ops->create(r->m, "ledger", 100, &r->ledger), 0);
	memset(r->ledger->base, 7, 100);
	r->slot_fd = r->m->ops->export_fd(r->m, r->slot, true);
	assert_true(r->slot_fd >= 0);
	assert_int_equal(r->m->ops->seal(r->m, r->slot), 0);
	assert_int_equal(r->m->ops->export_fd(r->m, r->slot, true), -EPERM);
	sim_fd_move(r->w, r->slot_fd, NULL);
}

static void take_region(void *arg, struct region *region)
{
	struct rooms *r = arg;

	r->adopted++;
	if (strcmp(region->name, "slot-1") == 0)
		r->slot = region;
	else
		r->ledger = region;
}

static void find_rooms(void *arg)
{
	struct rooms *r = arg;

	r->m = memory_sim_open(r->keeper, r->w->current);
	r->slot = r->ledger = NULL;
	r->m->ops->adopt(r->m, take_region, r);
}

static void drop_slot(void *arg)
{
	struct rooms *r = arg;

	r->m->ops->destroy(r->m, r->slot);
}

static void test_regions_outlive_the_daemon(void **state)
{
	struct rooms r = { .w = world_new(1) };
	struct mapping *trainer;
	struct life *l;

	(void)state;
	r.keeper = keeper_new(r.w, &(struct keeper_options){ .budget = 8192 });
	l = life_start(r.w, &plain, make_rooms, &r);
	world_run(r.w, UINT64_MAX, NULL, NULL);
	trainer = mapping_new(r.w, NULL, r.slot_fd);
	assert_non_null(trainer);
	assert_true(trainer->writable && trainer->size == 5000);
	sim_fd_close(r.w, r.slot_fd);
	assert_null(mapping_new(r.w, NULL, r.slot_fd));
	life_free(l); /* killed */
	trainer->base[17] = 42; /* the trainer does not notice */

	l = life_start(r.w, &plain, find_rooms, &r);
	world_run(r.w, UINT64_MAX, NULL, NULL);
	assert_int_equal(r.adopted, 2);
	assert_int_equal(((uint8_t *)r.ledger->base)[99], 7);
	assert_int_equal(((uint8_t *)r.slot->base)[17], 42);
	assert_int_equal(keeper_used(r.keeper), 5100);
	life_run(l, drop_slot, &r);
	trainer->base[4999] = 1; /* still its memory */
	assert_int_equal(keeper_used(r.keeper), 5100);
	mapping_free(trainer);
	assert_int_equal(keeper_used(r.keeper), 100);
	assert_int_equal(keeper_regions(r.keeper), 1);

	keeper_die(r.keeper);
	assert_int_equal(keeper_regions(r.keeper), 0);
	assert_int_equal(keeper_used(r.keeper), 100); /* the daemon has it mapped */
	life_free(l);
	assert_int_equal(keeper_used(r.keeper), 0);
	keeper_free(r.keeper);
	world_free(r.w);
}

static void exhaust(void *arg)
{
	struct rooms *r = arg;
	struct memory_room room;
	uint64_t budget;
	void *copy;
	uint64_t len;
	int fd;

	r->m = memory_sim_open(r->keeper, r->w->current);
	assert_int_equal(r->m->ops->create(r->m, "a", 9000, &r->slot), -ENOMEM);
	assert_int_equal(r->m->ops->create(r->m, "a", 8000, &r->slot), 0);
	assert_int_equal(r->m->ops->available(r->m, &budget), 192);
	assert_int_equal(budget, 8192);
	keeper_options(r->keeper)->create_fails = 1;
	assert_int_equal(r->m->ops->create(r->m, "b", 1, &r->ledger), -ENOMEM);
	assert_int_equal(r->m->ops->bytes_to_fd(r->m, "x", 1), -ENOMEM);
	keeper_options(r->keeper)->create_fails = 0;
	keeper_options(r->keeper)->places = 1;
	r->m->ops->room(r->m, &room);
	assert_true(room.used == 1 && room.max == 1 && room.left == 0);
	assert_int_equal(r->m->ops->create(r->m, "b", 1, &r->ledger), CKPT_ENOSPACE);
	assert_int_equal(r->m->ops->create_small(r->m, "b", 1, &r->ledger), 0);
	r->m->ops->destroy(r->m, r->ledger);
	keeper_options(r->keeper)->places = 0;

	fd = r->m->ops->bytes_to_fd(r->m, "hello", 5);
	assert_int_equal(r->m->ops->fd_to_bytes(r->m, fd, 4, &copy, &len), -E2BIG);
	assert_int_equal(r->m->ops->fd_to_bytes(r->m, fd, 5, &copy, &len), 0);
	assert_int_equal(len, 5);
	assert_memory_equal(copy, "hello", 5);
	alloc_free(copy);
	r->m->ops->close_fd(r->m, fd);
	fd = memory_bytes_fd(r->w, r->w->current, "open", 4, false);
	assert_int_equal(r->m->ops->fd_to_bytes(r->m, fd, 5, &copy, &len), -EINVAL);
	r->m->ops->close_fd(r->m, fd);
	fd = r->m->ops->export_fd(r->m, r->slot, false);
	assert_int_equal(r->m->ops->fd_to_bytes(r->m, fd, 9000, &copy, &len), -EINVAL);
	r->m->ops->close_fd(r->m, fd);
}

static void test_memory_runs_out_and_bytes_travel(void **state)
{
	struct rooms r = { .w = world_new(1) };
	struct life *l;

	(void)state;
	r.keeper = keeper_new(r.w, &(struct keeper_options){ .budget = 8192 });
	l = life_start(r.w, &plain, exhaust, &r);
	world_run(r.w, UINT64_MAX, NULL, NULL);
	assert_int_equal(life_end(l), 0);
	life_free(l);
	keeper_power_loss(r.keeper);
	assert_int_equal(keeper_regions(r.keeper), 0);
	keeper_free(r.keeper);
	world_free(r.w);
}

/* ---- Connections ---- */

struct server {
	struct world *w;
	struct host *host;
	struct processes *processes;
	struct conn *conn; /* the last one opened */
	char heard[512];
	int opened, closed, ended, last_fd;
	bool hang_up, die, keep_fd;
};

static void on_opened(void *arg, struct conn *c)
{
	struct server *s = arg;

	s->opened++;
	s->conn = c;
	assert_true(loop_is_current(&s->w->current->loop));
}

static void on_message(void *arg, struct conn *c, const void *msg, size_t len, int *fds,
		       size_t n_fds)
{
	struct server *s = arg;

	assert_ptr_equal(c, s->conn);
	strncat(s->heard, msg, len);
	if (s->die)
		life_die(s->w->current);
	if (s->keep_fd && n_fds) {
		s->last_fd = fds[0];
		fds[0] = -1;
	}
	if (s->hang_up) {
		c->ops->send(c, "bye", 3, NULL, 0);
		c->ops->close(c);
	} else {
		c->ops->send(c, "ok", 2, NULL, 0);
	}
}

static void on_closed(void *arg, struct conn *c)
{
	struct server *s = arg;

	assert_ptr_equal(c, s->conn);
	s->conn = NULL;
	s->closed++;
}

static void on_ended(void *arg, const struct process_id *p)
{
	struct server *s = arg;

	assert_int_equal(p->uid, 1000);
	s->ended++;
}

static const struct conn_events server_events = {.opened = on_opened,
						 .message = on_message,
						 .closed = on_closed,
						 .process_ended = on_ended};

static void server_main(void *arg)
{
	struct server *s = arg;

	s->processes = host_listen(s->host, s->w->current, &server_events, s);
}

struct client {
	struct sim_channel *channel;
	char heard[512];
	int closed;
};

static void client_message(void *arg, struct sim_channel *ch, const void *msg, size_t len,
			   const int *fds, size_t n_fds)
{
	struct client *c = arg;

	(void)ch;
	(void)fds;
	assert_int_equal(n_fds, 0);
	strncat(c->heard, msg, len);
}

static void client_closed(void *arg, struct sim_channel *ch)
{
	struct client *c = arg;

	assert_ptr_equal(ch, c->channel);
	c->closed++;
}

static const struct channel_events client_events = { client_message, client_closed };

static struct life *serve(struct server *s, uint64_t seed)
{
	struct life *l;

	s->w = world_new(seed);
	s->host = host_new(s->w, &(struct host_options){ .delay_ns_max = SIM_MS, .pids = 5 });
	l = life_start(s->w, &plain, server_main, s);
	assert_false(host_listening(s->host));
	world_run(s->w, UINT64_MAX, NULL, NULL);
	assert_true(host_listening(s->host));
	return l;
}

static void put_away(struct server *s, struct life *l)
{
	life_free(l);
	host_free(s->host);
	assert_int_equal(sim_fd_count(s->w, NULL), 0);
	world_free(s->w);
}

static void test_messages_arrive_in_order_with_their_descriptors(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct server s = { .keep_fd = seed % 2 };
		struct client c = { 0 };
		struct life *l = serve(&s, seed);
		struct sim_process *p = process_new(s.host, 1000, NULL);
		int fds[2] = { memory_bytes_fd(s.w, NULL, "x", 1, true),
			       memory_bytes_fd(s.w, NULL, "y", 1, true) };
		uint64_t len;

		c.channel = channel_open(p, &client_events, &c);
		channel_send(c.channel, "a", 1, fds, 2);
		channel_send(c.channel, "b", 1, NULL, 0);
		channel_send(c.channel, "c", 1, NULL, 0);
		world_run(s.w, UINT64_MAX, NULL, NULL);
		assert_int_equal(s.opened, 1);
		assert_string_equal(s.heard, "abc");
		assert_string_equal(c.heard, "okokok");
		assert_int_equal(sim_fd_count(s.w, l), s.keep_fd); /* the rest were closed */
		if (s.keep_fd)
			assert_memory_equal(memory_fd_bytes(s.w, s.last_fd, &len), "x", 1);
		channel_send(c.channel, "d", 1, NULL, 0);
		channel_close(c.channel);
		world_run(s.w, UINT64_MAX, NULL, NULL);
		assert_string_equal(s.heard, "abcd"); /* sent before an orderly close */
		assert_int_equal(s.closed, 1);
		assert_int_equal(c.closed, 0);
		put_away(&s, l);
	}
}

static void test_daemon_hangs_up_or_dies(void **state)
{
	(void)state;
	for (int dies = 0; dies < 2; dies++) {
		struct server s = { .hang_up = !dies, .die = dies };
		struct client c = { 0 };
		struct life *l = serve(&s, 3);
		struct sim_process *p = process_new(s.host, 1000, NULL);
		int fd = memory_bytes_fd(s.w, NULL, "x", 1, true);

		c.channel = channel_open(p, &client_events, &c);
		channel_send(c.channel, "a", 1, &fd, 1);
		channel_send(c.channel, "b", 1, NULL, 0);
		world_run(s.w, UINT64_MAX, NULL, NULL);
		assert_string_equal(s.heard, "a");
		assert_string_equal(c.heard, dies ? "" : "bye");
		assert_int_equal(c.closed, 1);
		assert_int_equal(s.closed, !dies);
		assert_int_equal(l->alive, !dies);
		if (dies)
			assert_null(channel_open(p, &client_events, &c));
		put_away(&s, l);
	}
}

static void watch_conn(void *arg)
{
	struct server *s = arg;

	assert_true(s->conn->ops->process_alive(s->conn));
	assert_int_equal(s->processes->ops->watch(s->processes, &s->conn->process), 0);
}

static void ask_dead(void *arg)
{
	struct server *s = arg;
	struct process_id id = { .pid = 100, .uid = 1000, .start = 1 };

	assert_int_equal(s->processes->ops->watch(s->processes, &id), -ESRCH);
}

static void test_a_process_ends_once(void **state)
{
	int socket_first = 0, process_first = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct server s = { 0 };
		struct client c = { 0 };
		struct life *l = serve(&s, seed);
		struct sim_process *p = process_new(s.host, 1000, NULL), *q;

		c.channel = channel_open(p, &client_events, &c);
		world_run(s.w, UINT64_MAX, NULL, NULL);
		life_run(l, watch_conn, &s);
		process_end(p);
		process_end(p);
		while (!s.closed && !s.ended)
			assert_true(world_step(s.w));
		socket_first += s.closed > s.ended;
		process_first += s.ended > s.closed;
		world_run(s.w, UINT64_MAX, NULL, NULL);
		assert_int_equal(s.ended, 1);
		assert_int_equal(s.closed, 1);
		assert_int_equal(c.closed, 0); /* the dead hear nothing */
		for (int i = 0; i < 5; i++)
			q = process_new(s.host, 1000, NULL);
		assert_int_equal(q->id.pid, p->id.pid); /* the number comes again */
		assert_true(q->id.start != p->id.start);
		life_run(l, ask_dead, &s);
		put_away(&s, l);
	}
	assert_true(socket_first > 3 && process_first > 3);
}

static void test_connections_break_under_both(void **state)
{
	int lost = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 40; seed++) {
		struct server s = { 0 };
		struct client c = { 0 };
		struct life *l = serve(&s, seed);
		struct sim_process *p = process_new(s.host, 1000, NULL);

		c.channel = channel_open(p, &client_events, &c);
		world_run(s.w, UINT64_MAX, NULL, NULL);
		for (int i = 0; i < 4; i++)
			channel_send(c.channel, "m", 1, NULL, 0);
		channel_break(c.channel);
		channel_send(c.channel, "x", 1, NULL, 0);
		world_run(s.w, UINT64_MAX, NULL, NULL);
		assert_int_equal(s.closed, 1);
		assert_int_equal(c.closed, 1);
		assert_null(strchr(s.heard, 'x'));
		lost += strlen(s.heard) < 4;
		/* It comes back. */
		c.channel = channel_open(p, &client_events, &c);
		channel_send(c.channel, "again", 5, NULL, 0);
		world_run(s.w, UINT64_MAX, NULL, NULL);
		assert_non_null(strstr(s.heard, "again"));
		put_away(&s, l);
	}
	assert_true(lost > 5 && lost < 40);
}

/* A trainer as a life of its own: straight-line code that waits, and dies with its mapping. */
struct trainer {
	struct server *s;
	struct life *life;
	struct sim_process *process;
	struct client c;
	int slot_fd;
};

static void trainer_main(void *arg)
{
	struct trainer *t = arg;

	t->c.channel = channel_open(t->process, &client_events, &t->c);
	life_sleep(t->s->w, SIM_MS);
	assert_non_null(mapping_new(t->s->w, t->life, t->slot_fd));
	channel_send(t->c.channel, "hi", 2, NULL, 0);
}

static void test_a_trainer_is_a_life(void **state)
{
	struct server s = { 0 };
	struct life *l = serve(&s, 9);
	struct rooms r = { .w = s.w };
	struct trainer t = { .s = &s };
	struct life *node;

	(void)state;
	r.keeper = keeper_new(s.w, &(struct keeper_options){ .budget = 8192 });
	node = life_start(s.w, &plain, make_rooms, &r);
	world_run(s.w, UINT64_MAX, NULL, NULL);
	t.slot_fd = r.slot_fd;
	t.life = life_start(s.w, &plain, trainer_main, &t);
	t.process = process_new(s.host, 1000, t.life);
	world_run(s.w, UINT64_MAX, NULL, NULL);
	assert_string_equal(t.c.heard, "ok");
	assert_string_equal(s.heard, "hi");
	sim_fd_close(s.w, r.slot_fd);
	life_free(node);
	keeper_die(r.keeper);
	assert_int_equal(keeper_used(r.keeper), 5000); /* the trainer's mapping */
	process_end(t.process);
	assert_int_equal(keeper_used(r.keeper), 0);
	world_run(s.w, UINT64_MAX, NULL, NULL);
	assert_int_equal(s.closed, 1);
	life_free(t.life);
	keeper_free(r.keeper);
	put_away(&s, l);
}

static void test_nobody_listens(void **state)
{
	struct world *w = world_new(1);
	struct host *h = host_new(w, &(struct host_options){ .delay_ns_max = 1, .pids = 2 });
	struct life *l = life_start(w, &plain, nothing, NULL);

	(void)state;
	assert_null(channel_open(process_new(h, 1, NULL), &client_events, NULL));
	life_free(l);
	host_free(h);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_index_is_a_sorted_map),
		cmocka_unit_test(test_index_loses_a_suffix_of_what_was_not_synced),
		cmocka_unit_test(test_index_write_that_failed_may_appear),
		cmocka_unit_test(test_regions_outlive_the_daemon),
		cmocka_unit_test(test_memory_runs_out_and_bytes_travel),
		cmocka_unit_test(test_messages_arrive_in_order_with_their_descriptors),
		cmocka_unit_test(test_daemon_hangs_up_or_dies),
		cmocka_unit_test(test_a_process_ends_once),
		cmocka_unit_test(test_connections_break_under_both),
		cmocka_unit_test(test_a_trainer_is_a_life),
		cmocka_unit_test(test_nobody_listens),
	};
	int r = cmocka_run_group_tests_name("sim host", tests, NULL, NULL);

	fiber_pool_free();
	return r;
}
