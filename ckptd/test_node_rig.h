/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_node_rig.h - for tests: one node with the real loop, threads, files and memfds, spoken to
 * over its socket in the session's own messages: open, declare, prepare, seal, wait, load. What
 * the disk answers can be changed under it, once it is ready.
 */
#ifndef CKPTD_TEST_NODE_RIG_H
#define CKPTD_TEST_NODE_RIG_H

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/listener.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/memory_memfd.h"
#include "ckptd/node.h"
#include "ckptd/workers.h"
#include "codec/digest.h"
#include "coord/single.h"
#include "model/load_plan.h"
#include "proto/session.pb-c.h"
#include "proto/session_page.h"
#include "storage/disk_posix.h"
#include "storage/paths.h"
#include "storage/store.h"
#include "tests/lib/test.h"

#define TURNS_MAX 20000
#define ELEMENTS  100000u

struct world {
	char *dir, socket[128];
	struct loop *loop;
	struct disk *disk;
	struct workers *workers;
	struct notify *notify;
	struct keeper *keeper;
	struct memory *memory;
	struct listener *listener;
	struct rng rng;
	struct log log;
	struct node *node;
	int ready;
	bool running;
};

struct rank {
	struct world *w;
	int fd;
	uint64_t next_id;
	struct session_page *page;
	uint8_t *slots[8];
	uint32_t numbers[8];
	size_t n_slots;
	uint64_t epoch, used_credit;
	struct digest declaration;
	uint64_t image_bytes;
	char text[512]; /* why its last prepare was refused */
};

/* ---- A disk whose answers can be changed ---- */

static struct disk_ops real_ops, changed_ops;
static _Atomic uint64_t pretended_room = UINT64_MAX; /* what there is */
static _Atomic int log_error;           /* of each new name in a job's log; 0: none */
static _Atomic int log_sync_error;      /* of the folder of a log */
static _Atomic int shard_error;         /* of each new shard file */
static _Atomic int token_error;         /* of each new small file of a job */
static atomic_bool log_wants_spare;     /* no room for a log while there are spare files */

static inline int changed_space(struct disk *d, uint64_t *ret_free, uint64_t *ret_total)
{
	int r = real_ops.space(d, ret_free, ret_total);

	if (r == 0 && pretended_room != UINT64_MAX)
		*ret_free = pretended_room;
	return r;
}

static inline int count_name(void *arg, const char *name, bool is_dir)
{
	(void)name;
	(void)is_dir;
	(*(unsigned *)arg)++;
	return 0;
}

static inline int changed_open(struct disk *d, const char *path, unsigned flags,
			       struct disk_file **ret)
{
	unsigned spare = 0;

	if (log_wants_spare && (flags & DISK_CREATE) && strstr(path, "/log/") &&
	    real_ops.list(d, "spare", count_name, &spare) == 0 && spare > 0)
		return -ENOSPC;
	if (log_error && (flags & DISK_CREATE) &&
	    (strstr(path, "/log/") || strstr(path, "/log.new/")))
		return log_error;
	if (token_error && (flags & DISK_CREATE) && strncmp(path, "jobs/", 5) == 0 &&
	    strstr(path, "/" TEMPORARY_PREFIX))
		return token_error;
	if (shard_error && (flags & DISK_CREATE) && strstr(path, "/rank-"))
		return shard_error;
	return real_ops.open(d, path, flags, ret);
}

static inline int changed_sync_dir(struct disk *d, const char *path)
{
	size_t len = strlen(path);

	if (log_sync_error && len > 4 && strcmp(path + len - 4, "/log") == 0)
		return log_sync_error;
	return real_ops.sync_dir(d, path);
}

static inline void change_disk(struct disk *d)
{
	real_ops = *d->ops;
	changed_ops = real_ops;
	changed_ops.space = changed_space;
	changed_ops.open = changed_open;
	changed_ops.sync_dir = changed_sync_dir;
	d->ops = &changed_ops;
}

/* ---- What it says ---- */

static char told[1u << 20]; /* all lines of this test; worker threads say some */
static pthread_mutex_t told_mutex = PTHREAD_MUTEX_INITIALIZER;

static inline void remember_line(void *arg, int level, const char *line)
{
	size_t len;

	pthread_mutex_lock(&told_mutex);
	len = strlen(told);
	snprintf(told + len, sizeof(told) - len, "%d %s\n", level, line);
	pthread_mutex_unlock(&told_mutex);
	log_line(arg, level, line);
}

static inline bool was_told(const char *words)
{
	bool found;

	pthread_mutex_lock(&told_mutex);
	found = strstr(told, words) != NULL;
	pthread_mutex_unlock(&told_mutex);
	return found;
}

/* ---- The node ---- */

static inline int open_log(void *arg, const struct job_id *job, bool anew, struct joblog **ret,
			   struct err *e)
{
	struct world *w = arg;
	char dir[DISK_PATH_MAX + 1];

	(anew ? path_log_new : path_log)(dir, job);
	return joblog_single_open(w->disk, dir, ret, e);
}

static inline void on_ready(void *arg, int status, const char *text)
{
	struct world *w = arg;

	if (status < 0)
		fprintf(stderr, "start: %s\n", text);
	w->ready = status < 0 ? status : 1;
}

static inline void disk_is_good(void)
{
	pretended_room = UINT64_MAX;
	log_error = 0;
	log_sync_error = 0;
	shard_error = 0;
	token_error = 0;
	log_wants_spare = false;
}

/* How many files of that pattern the data folder has. */
static inline size_t count_files(const struct world *w, const char *pattern)
{
	char path[512];
	glob_t g;
	size_t n;

	snprintf(path, sizeof(path), "%s/%s", w->dir, pattern);
	n = glob(path, 0, NULL, &g) == 0 ? g.gl_pathc : 0;
	globfree(&g);
	return n;
}

/* How large these files are, all of them. */
static inline uint64_t file_bytes(const struct world *w, const char *pattern)
{
	char path[512];
	struct stat st;
	uint64_t bytes = 0;
	glob_t g;

	snprintf(path, sizeof(path), "%s/%s", w->dir, pattern);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	for (size_t i = 0; i < g.gl_pathc; i++) {
		assert_int_equal(stat(g.gl_pathv[i], &st), 0);
		bytes += (uint64_t)st.st_size;
	}
	globfree(&g);
	return bytes;
}

/* 1, or why it does not start. */
static inline int try_start(struct world *w, const char *backend, struct node_options *o)
{
	struct workers_options wo = {.threads = {2, 2, 2, 1, 2, 2}, .queue_depth = 8};
	struct listener_options lo = {.path = w->socket,
				      .fd = -1,
				      .mode = 0600,
				      .conns_max = 64,
				      .conns_per_uid = 64,
				      .handshake_ns = LISTENER_HANDSHAKE_NS,
				      .log = &w->log};
	struct memory_options mo = {.root = "", .huge_pages = true, .log = &w->log};
	struct err e = {0};
	struct env env;

	w->running = true;
	log_init(&w->log);
	w->log.level = 4;
	rng_system(&w->rng);
	assert_int_equal(loop_epoll_new(&w->loop, &e), 0);
	assert_int_equal(disk_posix_open(w->dir, backend, &w->disk, &e), 0);
	change_disk(w->disk);
	wo.disk = w->disk;
	assert_int_equal(workers_new(w->loop, &wo, &w->workers, &e), 0);
	assert_int_equal(notify_open(&w->notify, &e), 0);
	assert_int_equal(keeper_open(w->notify, &w->keeper, &e), 0);
	assert_int_equal(memory_memfd_new(w->keeper, &mo, &w->memory, &e), 0);
	assert_int_equal(listener_new(w->loop, &lo, &w->listener, &e), 0);
	env = (struct env){.loop = w->loop,
			   .workers = w->workers,
			   .disk = w->disk,
			   .memory = w->memory,
			   .processes = listener_processes(w->listener),
			   .rng = &w->rng,
			   .joblog_open = open_log,
			   .joblog_arg = w,
			   .log = remember_line,
			   .log_arg = &w->log};
	if (node_new(&env, o, &w->node, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(listener_start(w->listener, &node_conn_events, w->node, &e), 0);
	w->ready = 0;
	node_start(w->node, on_ready, w);
	for (int i = 0; i < TURNS_MAX && !w->ready; i++)
		loop_epoll_turn(w->loop, 100000000);
	return w->ready;
}

static inline void start(struct world *w, const char *backend, struct node_options *o)
{
	assert_int_equal(try_start(w, backend, o), 1);
}

/* As if killed: nothing is told to anybody. Without a keeper all memory is lost. */
static inline void stop(struct world *w)
{
	w->running = false;
	listener_stop(w->listener);
	workers_free(w->workers);
	node_free(w->node);
	listener_free(w->listener);
	memory_memfd_free(w->memory);
	keeper_free(w->keeper);
	notify_free(w->notify);
	disk_posix_close(w->disk);
	loop_epoll_free(w->loop);
}

/* ---- A rank that speaks the protocol by hand ---- */

static inline void send_request(struct rank *k, Ckpt__Request *q)
{
	uint8_t buf[65536];
	size_t len;

	q->id = ++k->next_id;
	len = ckpt__request__pack(q, buf);
	assert_int_equal(send(k->fd, buf, len, MSG_NOSIGNAL), len);
}

static inline Ckpt__Reply *receive(struct rank *k, int *fds, size_t *n_fds)
{
	for (int i = 0; i < TURNS_MAX; i++) {
		char control[CMSG_SPACE(64 * sizeof(int))];
		static uint8_t buf[65536];
		struct iovec iov = {buf, sizeof(buf)};
		struct msghdr m = {.msg_iov = &iov,
				   .msg_iovlen = 1,
				   .msg_control = control,
				   .msg_controllen = sizeof(control)};
		ssize_t n = recvmsg(k->fd, &m, MSG_DONTWAIT);
		struct cmsghdr *c;

		if (n < 0) {
			assert_int_equal(errno, EAGAIN);
			loop_epoll_turn(k->w->loop, 10000000);
			continue;
		}
		assert_true(n > 0);
		c = CMSG_FIRSTHDR(&m);
		*n_fds = c ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
		if (c)
			memcpy(fds, CMSG_DATA(c), *n_fds * sizeof(int));
		return ckpt__reply__unpack(NULL, (size_t)n, buf);
	}
	fail_msg("no reply");
	return NULL;
}

static inline Ckpt__Reply *ask(struct rank *k, Ckpt__Request *q, int *fds, size_t *n_fds)
{
	Ckpt__Reply *r;

	send_request(k, q);
	r = receive(k, fds, n_fds);
	assert_non_null(r);
	assert_int_equal(r->id, k->next_id);
	return r;
}

static inline void ask_ok(struct rank *k, Ckpt__Request *q)
{
	int fds[64];
	size_t n;
	Ckpt__Reply *r = ask(k, q, fds, &n);

	if (r->code)
		fail_msg("%s", r->text);
	ckpt__reply__free_unpacked(r, NULL);
}

/* Returns the code. */
static inline int ask_code(struct rank *k, Ckpt__Request *q)
{
	int fds[64], code;
	size_t n;
	Ckpt__Reply *r = ask(k, q, fds, &n);

	code = r->code;
	if (code)
		fprintf(stderr, "%s\n", r->text);
	ckpt__reply__free_unpacked(r, NULL);
	return code;
}

/* Of the answer to what was sent last. */
static inline int receive_code(struct rank *k)
{
	int fds[64], code;
	size_t n;
	Ckpt__Reply *r = receive(k, fds, &n);

	assert_non_null(r);
	assert_int_equal(r->id, k->next_id);
	code = r->code;
	ckpt__reply__free_unpacked(r, NULL);
	return code;
}

static inline void connect_rank(struct world *w, struct rank *k)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Hello hello = CKPT__HELLO__INIT;

	memset(k, 0, sizeof(*k));
	k->w = w;
	k->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strcpy(a.sun_path, w->socket);
	assert_int_equal(connect(k->fd, (struct sockaddr *)&a, sizeof(a)), 0);
	hello.version_min = hello.version_max = SESSION_VERSION;
	hello.program = (char *)"test";
	q.body_case = CKPT__REQUEST__BODY_HELLO;
	q.hello = &hello;
	ask_ok(k, &q);
}

/* Returns the code; the base's step in *ret_base, UINT64_MAX for none. */
static inline int open_rank(struct rank *k, uint32_t rank, uint32_t world, const char *run,
			    uint64_t *ret_base)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;
	Ckpt__Reply *r;
	int fds[64], code;
	size_t n;

	o.job = (char *)"job";
	o.rank = rank;
	o.world = world;
	o.run_id = (char *)run;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	r = ask(k, &q, fds, &n);
	code = r->code;
	if (code == 0) {
		assert_int_equal(n, 1);
		k->page = mmap(NULL, SESSION_PAGE_BYTES, PROT_READ, MAP_SHARED, fds[0], 0);
		close(fds[0]);
		assert_int_equal(k->page->magic, SESSION_PAGE_MAGIC);
		k->epoch = r->open->epoch;
		*ret_base = r->open->has_base ? r->open->base_step : UINT64_MAX;
	}
	ckpt__reply__free_unpacked(r, NULL);
	return code;
}

/* Rows of "w"; in a world of 1 all of it: who declares that twice declares the same. */
static inline void declare_elements(struct rank *k, uint32_t rank, uint32_t world,
				    uint64_t elements)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare d = CKPT__DECLARE__INIT;
	struct declaration_builder *b;
	struct declaration view;
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .trained = true,
			  .global = {1, {elements * world}},
			  .box = {1, {elements * rank}, {elements}}};
	void *bytes;
	size_t len;

	assert_int_equal(declaration_builder_new(GEOMETRY_DEFAULT, &b), 0);
	assert_int_equal(declaration_add(b, &s, NULL), 0);
	assert_int_equal(declaration_finish(b, &bytes, &len, NULL), 0);
	declaration_builder_free(b);
	assert_int_equal(declaration_open(bytes, len, &view, NULL), 0);
	k->image_bytes = view.image_bytes;
	k->declaration = declaration_digest(bytes, len);
	d.digest = (ProtobufCBinaryData){16, k->declaration.b};
	d.bytes = (ProtobufCBinaryData){len, bytes};
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &d;
	ask_ok(k, &q);
	alloc_free(bytes);
}

static inline void declare_rank(struct rank *k, uint32_t rank, uint32_t world)
{
	declare_elements(k, rank, world, ELEMENTS);
}

/* Returns the code. */
static inline int try_prepare(struct rank *k)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare p = CKPT__PREPARE__INIT;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	Ckpt__Reply *r;
	int fds[64];
	size_t n;

	p.blob_bytes = 4096;
	q.body_case = CKPT__REQUEST__BODY_PREPARE;
	q.prepare = &p;
	r = ask(k, &q, fds, &n);
	if (r->code) {
		int code = r->code;

		fprintf(stderr, "prepare: %s\n", r->text);
		snprintf(k->text, sizeof(k->text), "%s", r->text);
		ckpt__reply__free_unpacked(r, NULL);
		return code;
	}
	assert_int_equal(n, r->prepare->n_slots);
	for (size_t i = 0; i < n; i++) {
		k->slots[i] = mmap(NULL, r->prepare->slot_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
				   fds[i], 0);
		assert_ptr_not_equal(k->slots[i], MAP_FAILED);
		k->numbers[i] = r->prepare->slots[i];
		close(fds[i]);
	}
	k->n_slots = n;
	ckpt__reply__free_unpacked(r, NULL);
	q.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	q.slots_ready = &ready;
	ask_ok(k, &q);
	return 0;
}

static inline void prepare_rank(struct rank *k)
{
	assert_int_equal(try_prepare(k), 0);
}

static inline void wait_credit(struct rank *k)
{
	for (int i = 0; i < TURNS_MAX && k->page->credit == k->used_credit; i++)
		loop_epoll_turn(k->w->loop, 10000000);
	assert_int_not_equal(k->page->credit, k->used_credit);
}

/* Seals the slot of the credit. Returns the code. */
static inline int seal_rank(struct rank *k, uint64_t step, Ckpt__BlobPlace **blobs, size_t n_blobs,
			    uint64_t image_len)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Seal seal = CKPT__SEAL__INIT;
	int code;

	seal.credit = k->page->credit;
	seal.slot = k->page->credit_slot;
	seal.step = step;
	seal.epoch = k->epoch;
	seal.image_len = image_len;
	seal.blobs = blobs;
	seal.n_blobs = n_blobs;
	seal.declaration = (ProtobufCBinaryData){16, k->declaration.b};
	q.body_case = CKPT__REQUEST__BODY_SEAL;
	q.seal = &seal;
	code = ask_code(k, &q);
	if (code == 0)
		k->used_credit = seal.credit;
	return code;
}

/* Fills the slot of the credit with bytes of (step, rank) and seals it. Returns the code. */
static inline int save_rank(struct rank *k, uint32_t rank, uint64_t step)
{
	Ckpt__BlobPlace blob = CKPT__BLOB_PLACE__INIT, *blobs[] = {&blob};

	wait_credit(k);
	blob.name = (char *)"rng";
	blob.image_offset = round_up(k->image_bytes, 4096);
	blob.bytes = 100;
	for (size_t i = 0; i < k->n_slots; i++) {
		if (k->numbers[i] != k->page->credit_slot)
			continue;
		test_fill(k->slots[i], k->image_bytes, step * 100 + rank);
		test_fill(k->slots[i] + blob.image_offset, blob.bytes, step);
	}
	return seal_rank(k, step, blobs, 1, blob.image_offset + blob.bytes);
}

static inline int wait_rank(struct rank *k, uint64_t step, uint32_t what)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Wait w = CKPT__WAIT__INIT;

	w.step = step;
	w.what = what;
	q.body_case = CKPT__REQUEST__BODY_WAIT;
	q.wait = &w;
	return ask_code(k, &q);
}

/* Saves a step that must be taken and become what is said. */
static inline void save_until(struct rank *k, uint32_t rank, uint64_t step, uint32_t what)
{
	assert_int_equal(save_rank(k, rank, step), 0);
	assert_int_equal(wait_rank(k, step, what), 0);
}

/* Loads a step (UINT64_MAX: latest) and compares every byte with what save_rank() wrote at `step`.
 */
static inline void load_rank_at(struct rank *k, uint32_t rank, uint64_t step, uint32_t tier,
				uint64_t which)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Load l = CKPT__LOAD__INIT;
	Ckpt__LoadEnd end = CKPT__LOAD_END__INIT;
	struct load_plan plan;
	uint64_t target = ELEMENTS * 4;
	struct err e = {0};
	uint8_t *got = calloc(1, target), *want = calloc(1, target), *bytes;
	Ckpt__Reply *r;
	int fds[64];
	size_t n;
	off_t len;

	l.step = which;
	q.body_case = CKPT__REQUEST__BODY_LOAD;
	q.load = &l;
	r = ask(k, &q, fds, &n);
	if (r->code)
		fail_msg("%s", r->text);
	assert_int_equal(r->load->step, step);
	assert_int_equal(r->load->tier, tier);
	len = lseek(fds[0], 0, SEEK_END);
	bytes = mmap(NULL, (size_t)len, PROT_READ, MAP_PRIVATE, fds[0], 0);
	if (load_plan_decode(bytes, (size_t)len, &target, 1, &plan, &e) < 0)
		fail_msg("%s", e.text);
	assert_int_equal(plan.n_sources + 1, n);
	assert_int_equal(plan.n_blobs, 1);
	assert_string_equal(plan.blobs[0].name, "rng");
	for (size_t i = 0; i < plan.plan.n_pieces; i++) {
		struct plan_piece *p = &plan.plan.pieces[i];
		struct load_source *s = &plan.sources[p->source];
		uint8_t *image = calloc(1, s->image_len);

		for (uint64_t c = 0; c * s->geometry.chunk < s->image_len; c++) {
			uint64_t at = c * s->geometry.chunk;
			size_t size = min_u64(s->geometry.chunk, s->image_len - at);
			uint64_t from =
				s->kind == LOAD_FILE ? chunk_place_get(s->places, c).offset : at;
			uint8_t *page = aligned_alloc(4096, round_up(size, 4096));

			assert_true(pread(fds[1 + p->source], page, round_up(size, 4096),
					  (off_t)from) >= (ssize_t)size);
			memcpy(image + at, page, size);
			free(page);
		}
		plan_piece_copy(p, image, 0, s->image_len, got);
		free(image);
	}
	test_fill(want, target, step * 100 + rank);
	assert_memory_equal(got, want, target);
	end.load = r->load->load;
	end.complete = true;
	ckpt__reply__free_unpacked(r, NULL);
	q.body_case = CKPT__REQUEST__BODY_LOAD_END;
	q.load_end = &end;
	ask_ok(k, &q);
	load_plan_fini(&plan);
	munmap(bytes, (size_t)len);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	free(got);
	free(want);
}

static inline void load_rank(struct rank *k, uint32_t rank, uint64_t step, uint32_t tier)
{
	load_rank_at(k, rank, step, tier, UINT64_MAX);
}

/* ---- One test ---- */

/* A node in a folder of its own and up to two ranks; what still runs is stopped behind the test. */
struct node_test {
	struct world w;
	const char *backend;
	struct node_options o; /* to be changed before it begins */
	struct rank a, b;
};

#define NODE_TEST(f) cmocka_unit_test_setup_teardown(f, node_test_setup, node_test_teardown)

/* *state: a struct node_test of which nothing runs yet. */
static inline int node_test_setup(void **state)
{
	static struct node_test test;

	disk_is_good(); /* also where the test before this one failed */
	told[0] = '\0';
	test = (struct node_test){.w.dir = test_dir_make(NULL), .backend = "threads"};
	snprintf(test.w.socket, sizeof(test.w.socket), "%s/sock", test.w.dir);
	test.a.fd = test.b.fd = -1;
	node_options_default(&test.o);
	*state = &test;
	return 0;
}

static inline void leave(struct rank *k)
{
	if (k->fd >= 0)
		close(k->fd);
	k->fd = -1;
}

/* The node ends; its folder stays. */
static inline void end(struct node_test *t)
{
	leave(&t->a);
	leave(&t->b);
	stop(&t->w);
	disk_is_good();
}

static inline int node_test_teardown(void **state)
{
	struct node_test *t = *state;

	if (t->w.running)
		end(t);
	disk_is_good();
	test_dir_remove(t->w.dir);
	return 0;
}

static inline void begin(struct node_test *t)
{
	start(&t->w, t->backend, &t->o);
}

/* Connects and opens; returns the base, as open_rank(). */
static inline uint64_t join(struct node_test *t, struct rank *k, uint32_t rank, uint32_t world,
			    const char *run)
{
	uint64_t base;

	connect_rank(&t->w, k);
	assert_int_equal(open_rank(k, rank, world, run, &base), 0);
	return base;
}

static inline void declare_and_prepare(struct rank *k, uint32_t rank, uint32_t world)
{
	declare_rank(k, rank, world);
	prepare_rank(k);
}

/* With one rank that can save, and with two. */
static inline void begin_one(struct node_test *t)
{
	begin(t);
	join(t, &t->a, 0, 1, "run1");
	declare_and_prepare(&t->a, 0, 1);
}

static inline void begin_two(struct node_test *t)
{
	begin(t);
	assert_int_equal(join(t, &t->a, 0, 2, "run1"), UINT64_MAX);
	join(t, &t->b, 1, 2, "run1");
	declare_rank(&t->a, 0, 2);
	declare_rank(&t->b, 1, 2);
	prepare_rank(&t->a);
	prepare_rank(&t->b);
}

#endif
