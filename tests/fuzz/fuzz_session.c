/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trainer or a tool may say to ckptd: a script of messages of the session, made whole and
 * then damaged, or raw bytes, from four processes of three users, to a whole node in virtual time
 * (tests/sim) with its machines, files and memory behind it.
 *
 * Whatever comes, nothing that ckptd asserts breaks, every request of a connection that is up is
 * answered with an id that was sent, and after the processes' end and an orderly stop nothing is
 * held: no block, no descriptor.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/node.h"
#include "codec/digest.h"
#include "coord/single.h"
#include "model/declaration.h"
#include "model/stored.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"
#include "storage/store.h"
#include "tests/fuzz/script.h"
#include "tests/sim/conn.h"
#include "tests/sim/disk.h"
#include "tests/sim/life.h"
#include "tests/sim/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PEERS = 4, LINES_MAX = 200, STEP_MS = 20, MESSAGE_MAX = 64 << 10 };

struct peer {
	struct fuzz *fuzz;
	struct sim_process *process;
	struct sim_channel *channel;
	uint64_t next_id;
	uint8_t token[32];
	struct digest declaration;
	uint64_t image_bytes;
	struct mapping *page; /* what the newest open gave; NULL: none */
};

struct fuzz {
	struct world *w;
	struct disk *disk;
	struct keeper *keeper;
	struct host *host;
	struct life *life;
	struct node *node;
	struct memory *memory;
	bool ready, stopped;
	struct peer peers[PEERS];
};

static const uint32_t uids[PEERS] = {1000, 1000, 1001, 0};

/* ---- The node ---- */

static int open_log(void *arg, const struct job_id *job, bool anew, struct joblog **ret,
		    struct err *e)
{
	struct fuzz *f = arg;
	char dir[DISK_PATH_MAX + 1];

	(anew ? path_log_new : path_log)(dir, job);
	return joblog_single_open(f->disk, dir, ret, e);
}

static void on_log(void *arg, int level, const struct log_about *about, const char *line)
{
	(void)arg;
	(void)about;
	(void)level;
	assert(line[0]);
}

static void on_ready(void *arg, int status, const char *text)
{
	(void)text;
	assert(status == 0);
	memory_sim_serves(((struct fuzz *)arg)->memory);
	((struct fuzz *)arg)->ready = true;
}

static void on_opened(void *arg, struct conn *c)
{
	node_conn_events.opened(((struct fuzz *)arg)->node, c);
}

static void on_message(void *arg, struct conn *c, const void *msg, size_t len, int *fds, size_t n)
{
	node_conn_events.message(((struct fuzz *)arg)->node, c, msg, len, fds, n);
}

static void on_closed(void *arg, struct conn *c)
{
	node_conn_events.closed(((struct fuzz *)arg)->node, c);
}

static void on_process_ended(void *arg, const struct process_id *p)
{
	node_conn_events.process_ended(((struct fuzz *)arg)->node, p);
}

static void on_process_exit(void *arg, const struct process_id *p, const struct process_exit *x)
{
	if (node_conn_events.process_exit)
		node_conn_events.process_exit(((struct fuzz *)arg)->node, p, x);
}

static const struct conn_events events = {
	.opened = on_opened,
	.message = on_message,
	.closed = on_closed,
	.process_ended = on_process_ended,
	.process_exit = on_process_exit,
};

static void daemon_main(void *arg)
{
	struct fuzz *f = arg;
	struct env env = {.loop = &f->life->loop,
			  .workers = &f->life->workers,
			  .disk = f->disk,
			  .rng = &f->life->rng.rng,
			  .joblog_open = open_log,
			  .joblog_arg = f,
			  .log = on_log};
	struct node_options o;
	struct err e;

	node_options_default(&o);
	o.geometry = (struct geometry){.leaf = 64, .chunk = 256};
	o.transfer = 8192;
	o.disk_reserve = 1 << 16;
	env.memory = f->memory = memory_sim_open(f->keeper, f->life);
	env.processes = host_listen(f->host, f->life, &events, f);
	assert(node_new(&env, &o, &f->node, &e) == 0);
	node_start(f->node, on_ready, f);
}

static bool is_ready(void *arg)
{
	return ((struct fuzz *)arg)->ready;
}

static void start(struct fuzz *f)
{
	struct keeper_options keeper = {.budget = 8u << 20};
	struct host_options host = {.delay_ns_max = 10 * SIM_US, .pids = 24};
	struct life_options life = {
		.name = "ckptd", .width = {1, 1, 1, 1, 1, 1, 1, 1}, .queue_depth = 4};
	struct disk_options disk;

	f->w = world_new(1);
	disk_options_default(&disk);
	f->disk = life.disk = disk_sim_new(f->w, &disk);
	f->keeper = keeper_new(f->w, &keeper);
	f->host = host_new(f->w, &host);
	f->life = life_start(f->w, &life, daemon_main, f);
	assert(world_run(f->w, 60 * SIM_S, is_ready, f));
}

static void on_stopped(void *arg)
{
	((struct fuzz *)arg)->stopped = true;
}

static void stop(void *arg)
{
	struct fuzz *f = arg;

	node_stop(f->node, 3 * SIM_S, on_stopped, f);
}

static bool has_stopped(void *arg)
{
	struct fuzz *f = arg;

	return f->stopped && life_idle(f->life);
}

static void free_node(void *arg)
{
	node_free(((struct fuzz *)arg)->node);
}

static void end(struct fuzz *f)
{
	world_run(f->w, f->w->now_ns + SIM_S, NULL, NULL);
	life_run(f->life, stop, f);
	assert(world_run(f->w, f->w->now_ns + 3600 * SIM_S, has_stopped, f));
	life_run(f->life, free_node, f);
	assert(life_end(f->life) == 0);
	life_free(f->life);
	host_free(f->host);
	keeper_free(f->keeper);
	disk_sim_free(f->disk);
	world_free(f->w);
}

/* ---- The other side ---- */

static void on_answer(void *arg, struct sim_channel *c, const void *msg, size_t len, const int *fds,
		      size_t n_fds)
{
	Ckpt__Reply *r = ckpt__reply__unpack(NULL, len, msg);
	struct peer *p = arg;

	(void)c;
	assert(r && len <= MESSAGE_MAX);
	assert(r->code <= 0 && (r->code == 0 || r->text[0]));
	if (r->body_case == CKPT__REPLY__BODY_OPEN) {
		assert(r->open->token.len == sizeof(p->token) && n_fds == 1);
		memcpy(p->token, r->open->token.data, sizeof(p->token));
		if (p->page)
			mapping_free(p->page);
		p->page = mapping_new(p->fuzz->w, NULL, fds[0]);
		assert(p->page && !p->page->writable);
	}
	ckpt__reply__free_unpacked(r, NULL);
	for (size_t i = 0; i < n_fds; i++)
		sim_fd_close(p->fuzz->w, fds[i]);
}

static void on_lost(void *arg, struct sim_channel *c)
{
	(void)c;
	((struct peer *)arg)->channel = NULL;
}

static const struct channel_events peer_events = {on_answer, on_lost};

static void send_bytes(struct peer *p, const void *bytes, size_t len, int fd)
{
	if (p->channel && len)
		channel_send(p->channel, bytes, len, &fd, fd >= 0);
	else if (fd >= 0)
		sim_fd_close(p->fuzz->w, fd);
}

static void send_request(struct peer *p, Ckpt__Request *q, const struct script_line *l, int fd)
{
	uint8_t buf[MESSAGE_MAX];
	size_t len;

	q->id = ++p->next_id;
	len = ckpt__request__get_packed_size(q);
	assert(len <= sizeof(buf));
	ckpt__request__pack(q, buf);
	script_patch(l, buf, len);
	send_bytes(p, buf, len, fd);
}

static void say_hello(struct peer *p)
{
	static const struct script_line no_patch;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Hello hello = CKPT__HELLO__INIT;

	hello.version_min = hello.version_max = SESSION_VERSION;
	q.body_case = CKPT__REQUEST__BODY_HELLO;
	q.hello = &hello;
	send_request(p, &q, &no_patch, -1);
}

static void hang_up(struct peer *p)
{
	if (p->channel)
		channel_close(p->channel);
	p->channel = NULL;
}

static void die(struct peer *p)
{
	hang_up(p);
	if (p->process)
		process_end(p->process);
	if (p->page)
		mapping_free(p->page);
	p->process = NULL;
	p->page = NULL;
}

static struct peer *peer_of(struct fuzz *f, const struct script_line *l)
{
	size_t i = script_number(l, 0, 0) % PEERS;
	struct peer *p = &f->peers[i];

	p->fuzz = f;
	if (!p->process)
		p->process = process_new(f->host, uids[i], NULL);
	if (!p->channel) {
		p->channel = channel_open(p->process, &peer_events, p);
		if (p->channel && strcmp(l->word, "raw") != 0 && strcmp(l->word, "hello") != 0)
			say_hello(p);
	}
	return p;
}

/* ---- Messages: number 0 is who says it, the rest what the message has ----
 *
 * What ckptd has told (credit, slot, epoch, digest, token) is taken from there: numbers in a script
 * are added to it.
 */

#define N(i, otherwise) script_number(l, i, otherwise)

static void say_open(struct peer *p, const struct script_line *l)
{
	static char *const runs[] = {(char *)"", (char *)"run1", (char *)"run2", (char *)"auto-1"};
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open m = CKPT__OPEN__INIT;

	m.job = (char *)(N(7, 0) ? "other" : "job");
	m.rank = (uint32_t)N(1, 0);
	m.world = (uint32_t)N(2, 1);
	m.run_id = runs[N(3, 1) % 4];
	m.reconnect = N(4, 0);
	m.loaded_epoch = N(5, 0);
	if (N(6, 0)) /* of whoever has it */
		m.token = (ProtobufCBinaryData){32, p->fuzz->peers[N(6, 1) % PEERS].token};
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &m;
	send_request(p, &q, l, -1);
}

/* A quarter of "w" by its place, of so many elements. */
static void *declare_w(uint64_t elements, uint64_t place, size_t *ret_len)
{
	struct geometry g = {.leaf = 64, .chunk = 256};
	struct declaration_builder *b;
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .trained = true,
			  .global = {1, {4 * elements}},
			  .box = {1, {elements * place}, {elements}}};
	void *bytes;

	assert(declaration_builder_new(g, &b) == 0 && declaration_add(b, &s, NULL) == 0);
	assert(declaration_finish(b, &bytes, ret_len, NULL) == 0);
	declaration_builder_free(b);
	return bytes;
}

static void say_declare(struct peer *p, const struct script_line *l)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare m = CKPT__DECLARE__INIT;
	uint64_t elements = 1 + N(1, 100) % 4096;
	struct declaration view;
	size_t len;
	void *bytes = declare_w(elements, N(2, 0) % 4, &len);
	int fd = -1;

	assert(declaration_open(bytes, len, &view, NULL) == 0);
	p->image_bytes = view.image_bytes;
	if (N(4, 0)) /* the declaration is damaged, and its digest matches */
		script_patch(l, bytes, len);
	p->declaration = declaration_digest(bytes, len);
	m.digest = (ProtobufCBinaryData){16, p->declaration.b};
	m.in_fd = N(3, 0);
	if (m.in_fd)
		fd = memory_bytes_fd(p->fuzz->w, NULL, bytes, len, N(3, 0) == 1);
	else
		m.bytes = (ProtobufCBinaryData){len, bytes};
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &m;
	send_request(p, &q, N(4, 0) ? &(struct script_line){0} : l, fd);
	alloc_free(bytes);
}

static void say_seal(struct peer *p, const struct script_line *l)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Seal m = CKPT__SEAL__INIT;
	Ckpt__BlobPlace blob = CKPT__BLOB_PLACE__INIT, *blobs[1] = {&blob};
	static const struct session_page none;
	const struct session_page *page = p->page ? (void *)p->page->base : &none;
	uint64_t at = round_up(p->image_bytes, IMAGE_ALIGN_LARGE);

	m.step = N(1, 1);
	m.credit = page->credit + N(2, 0);
	m.slot = page->credit_slot + (uint32_t)N(3, 0);
	m.epoch = page->epoch + N(4, 0);
	m.try_ = (uint32_t)N(5, 0);
	m.image_len = N(7, N(6, 0) ? at + 8 : p->image_bytes);
	blob.name = (char *)"rng";
	blob.image_offset = at;
	blob.bytes = 8;
	m.blobs = blobs;
	m.n_blobs = N(6, 0) % 2;
	m.declaration = (ProtobufCBinaryData){16, p->declaration.b};
	q.body_case = CKPT__REQUEST__BODY_SEAL;
	q.seal = &m;
	send_request(p, &q, l, -1);
}

static void say_load(struct peer *p, const struct script_line *l, bool ends)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load load = CKPT__LOAD__INIT;
	Ckpt__LoadEnd load_end = CKPT__LOAD_END__INIT;

	if (ends) {
		load_end.load = N(1, 1);
		load_end.failed = N(2, 0);
		load_end.source = (uint32_t)N(3, 0);
		load_end.leaf = N(4, 0);
		load_end.complete = N(5, 1);
		load_end.epoch = N(6, 1);
		q.body_case = CKPT__REQUEST__BODY_LOAD_END;
		q.load_end = &load_end;
	} else {
		load.step = N(1, UINT64_MAX);
		load.lenient = N(2, 0);
		q.body_case = CKPT__REQUEST__BODY_LOAD;
		q.load = &load;
	}
	send_request(p, &q, l, -1);
}

/* read STEP BLOBS RANK LENIENT ELEMENTS PLACE IN_FD; what is wanted may be damaged before it goes.
 */
static void say_read(struct peer *p, const struct script_line *l, bool looks)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Stored look = CKPT__STORED__INIT;
	Ckpt__Read read = CKPT__READ__INIT;
	struct stored_blob blobs[2] = {{.rank = (uint32_t)N(3, 0), .name = "rng", .name_len = 3},
				       {.rank = 1, .name = "none", .name_len = 4}};
	struct writer w = {0};
	void *declaration = NULL;
	size_t len = 0;
	int fd = -1;

	look.step = read.step = N(1, UINT64_MAX);
	q.body_case = looks ? CKPT__REQUEST__BODY_STORED : CKPT__REQUEST__BODY_READ;
	if (looks) {
		q.stored = &look;
		send_request(p, &q, l, -1);
		return;
	}
	if (N(5, 100))
		declaration = declare_w(1 + N(5, 100) % 4096, N(6, 0) % 4, &len);
	assert(read_wants_encode(declaration, len, blobs, (uint32_t)(N(2, 0) % 3), &w) == 0);
	read.lenient = N(4, 0);
	read.in_fd = N(7, 0);
	script_patch(l, w.buf, w.len);
	if (read.in_fd)
		fd = memory_bytes_fd(p->fuzz->w, NULL, w.buf, w.len, N(7, 0) == 1);
	else
		read.wants = (ProtobufCBinaryData){w.len, w.buf};
	q.read = &read;
	send_request(p, &q, &(struct script_line){0}, fd);
	writer_free(&w);
	alloc_free(declaration);
}

static void say_admin(struct peer *p, const struct script_line *l)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;

	m.verb = (Ckpt__Admin__Verb)(N(1, 0) % 24);
	m.job = (char *)(N(4, 1) ? "job" : "");
	m.step = N(2, 0);
	m.dry_run = N(3, 0);
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	send_request(p, &q, l, -1);
}

/* Those that have next to nothing in them. */
static bool say_small(struct peer *p, const struct script_line *l)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare prepare = CKPT__PREPARE__INIT;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	Ckpt__Credit credit = CKPT__CREDIT__INIT;
	Ckpt__Skip skip = CKPT__SKIP__INIT;
	Ckpt__Wait wait = CKPT__WAIT__INIT;
	Ckpt__Cancel cancel = CKPT__CANCEL__INIT;
	Ckpt__List list = CKPT__LIST__INIT;
	Ckpt__Bye bye = CKPT__BYE__INIT;
	const struct {
		const char *word;
		Ckpt__Request__BodyCase body;
		void *message;
	} all[] = {
		{"prepare", CKPT__REQUEST__BODY_PREPARE, &prepare},
		{"ready", CKPT__REQUEST__BODY_SLOTS_READY, &ready},
		{"credit", CKPT__REQUEST__BODY_CREDIT, &credit},
		{"skip", CKPT__REQUEST__BODY_SKIP, &skip},
		{"wait", CKPT__REQUEST__BODY_WAIT, &wait},
		{"cancel", CKPT__REQUEST__BODY_CANCEL, &cancel},
		{"list", CKPT__REQUEST__BODY_LIST, &list},
		{"bye", CKPT__REQUEST__BODY_BYE, &bye},
	};

	prepare.blob_bytes = N(1, 4096);
	skip.step = wait.step = N(1, 1);
	skip.credit = N(2, 0) && p->page ? ((struct session_page *)p->page->base)->credit : 0;
	wait.what = (uint32_t)N(2, 3);
	skip.epoch = wait.epoch = N(3, 1);
	skip.reason = (char *)"its save failed";
	cancel.request = N(1, p->next_id);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (strcmp(all[i].word, l->word) != 0)
			continue;
		q.body_case = all[i].body;
		q.prepare = all[i].message; /* any member of the union */
		send_request(p, &q, l, -1);
		return true;
	}
	return false;
}

static void run_line(struct fuzz *f, const struct script_line *l)
{
	struct peer *p;

	if (!l->word[0])
		return;
	if (strcmp(l->word, "run") == 0) {
		world_run(f->w, f->w->now_ns + N(0, 1) % 100000 * SIM_MS, NULL, NULL);
		return;
	}
	p = peer_of(f, l);
	if (strcmp(l->word, "open") == 0)
		say_open(p, l);
	else if (strcmp(l->word, "declare") == 0)
		say_declare(p, l);
	else if (strcmp(l->word, "seal") == 0)
		say_seal(p, l);
	else if (strcmp(l->word, "load") == 0 || strcmp(l->word, "loaded") == 0)
		say_load(p, l, l->word[4] != '\0');
	else if (strcmp(l->word, "look") == 0 || strcmp(l->word, "read") == 0)
		say_read(p, l, l->word[0] == 'l');
	else if (strcmp(l->word, "admin") == 0)
		say_admin(p, l);
	else if (strcmp(l->word, "raw") == 0)
		send_bytes(p, l->patch, l->patch_len, -1);
	else if (strcmp(l->word, "close") == 0)
		hang_up(p);
	else if (strcmp(l->word, "kill") == 0)
		die(p);
	else if (!say_small(p, l))
		return;
	world_run(f->w, f->w->now_ns + STEP_MS * SIM_MS, NULL, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script script = {data, data + size};
	struct fuzz f = {0};
	struct script_line line;

	start(&f);
	for (int i = 0; i < LINES_MAX && script_next(&script, &line); i++)
		run_line(&f, &line);
	for (int i = 0; i < PEERS; i++)
		die(&f.peers[i]);
	end(&f);
	return 0;
}
