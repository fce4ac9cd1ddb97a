/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_node.c - one node from its first open to loads after a restart that lost all memory, and
 * after one that found its log damaged.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "base/memory.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"
#include "ckptd/test_node_rig.h"
#include "model/declaration.h"
#include "model/stored.h"
#include "proto/session.pb-c.h"
#include "storage/disk_posix.h"
#include "storage/object_uses.h"

static void run_backend(struct node_test *t, const char *backend)
{

	t->backend = backend;
	begin_two(t);
	for (uint64_t step = 10; step <= 60; step += 10) {
		assert_int_equal(save_rank(&t->a, 0, step), 0);
		assert_int_equal(save_rank(&t->b, 1, step), 0);
		assert_int_equal(hand_wait(&t->a, step, CKPT_DURABLE), 0);
	}
	assert_int_equal(save_rank(&t->a, 0, 55), -EINVAL); /* steps rise (I5) */
	assert_int_equal(save_rank(&t->a, 0, 50), -EEXIST); /* and what is committed is */
	leave(&t->a);
	leave(&t->b);

	/* The same run may not come back as another process's; a new run gets memory. */
	assert_int_equal(join(t, &t->a, 0, 2, "run2"), 60);
	join(t, &t->b, 1, 2, "run2");
	declare_rank(&t->a, 0, 2);
	load_rank(&t->a, 0, 60, CKPT_TIER_MEMORY);
	end_node(t);

	begin_node(t);
	connect_rank(t, &t->a);
	assert_int_equal(open_rank(&t->a, 1, 2, "run1"), CKPT_EEPOCH);
	assert_int_equal(open_rank(&t->a, 1, 2, "run3"), 0);
	assert_int_equal(t->a.base_step, 60);
	declare_rank(&t->a, 1, 2);
	load_rank(&t->a, 1, 60, CKPT_TIER_DISK);
}

static void test_life_uring(void **state)
{
	struct err why = { 0 };

	if (!disk_uring_usable(&why)) {
		printf("io_uring: %s\n", why.text);
		skip();
	}
	run_backend(*state, "uring");
}

static void test_life_threads(void **state)
{
	run_backend(*state, "threads");
}

/* ---- Sentences that name who and what ---- */

static void test_skip_is_named(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip skip = CKPT__SKIP__INIT;
	struct node_test *t = *state;

	begin_two(t);
	skip.step = 58;
	skip.epoch = t->b.epoch;
	skip.reason = (char *)"tensors changed while it was copied";
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &skip;
	assert_int_equal(hand_ask_code(&t->b, &q), 0);
	assert_int_equal(save_rank(&t->a, 0, 58), 0);
	assert_int_equal(hand_wait(&t->a, 58, CKPT_COMMITTED), CKPT_EABORTED);
	assert_true(was_told("step 58 aborted: rank 1 skipped it: tensors changed while it was "
			     "copied"));
}

/* ---- A log that is damaged ---- */

static void damage_record(const struct node_test *t, unsigned n)
{
	char path[512];
	glob_t g;

	snprintf(path, sizeof(path), "%s/jobs/*/log/%020u", t->dir, n);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	assert_int_equal(g.gl_pathc, 1);
	assert_int_equal(truncate(g.gl_pathv[0], 20), 0);
	globfree(&g);
}

/* Two steps that are durable; the node has ended. */
static void save_two(struct node_test *t)
{
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	save_until(&t->a, 0, 20, CKPT_DURABLE);
	end_node(t);
}

/* The node starts, and the job is refused. */
static void start_fails(struct node_test *t)
{
	begin_node(t);
	assert_true(was_told("3 job 'job' is refused: its folder jobs/"));
	connect_rank(t, &t->a);
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), -EAGAIN);
	end_node(t);
}

/* Begun anew beside the old one, which stays what it was until the new one is whole. */
static void test_log_begun_anew(void **state)
{
	struct node_test *t = *state;

	save_two(t);
	damage_record(t, 3);
	log_error = -EIO;
	start_fails(t);
	assert_int_equal(count_files(t, "jobs/*/log.old-*"), 0);
	assert_true(count_files(t, "jobs/*/log/0*") > 4);
#ifdef CKPT_FAULTS
	/* It ends where nothing but the whole new log is there. */
	fault_arm(FAULT_RELOG_ASIDE, FAULT_ERROR, fault_hits(FAULT_RELOG_ASIDE) + 1, false);
	start_fails(t);
	assert_int_equal(count_files(t, "jobs/*/log"), 0);
	/* the unfinished one was empty */
	assert_int_equal(count_files(t, "jobs/*/log.old-*"), 1);
	begin_node(t);
	assert_int_equal(count_files(t, "jobs/*/log.old-*"), 1); /* not begun anew again */
	end_node(t);
#endif
	begin_node(t);
	assert_int_equal(count_files(t, "jobs/*/log.new"), 0);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 20);
	declare_rank(&t->a, 0, 1);
	load_rank(&t->a, 0, 20, CKPT_TIER_DISK);
	prepare_rank(&t->a);
	save_until(&t->a, 0, 30, CKPT_DURABLE);
}

/* What its good records say of checkpoints stands: a pin, and that one is bad. */
static void test_log_begun_anew_keeps_marks(void **state)
{
	struct node_test *t = *state;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin m = CKPT__ADMIN__INIT;
	const struct history *h;
	uint64_t last;
	bool bad = false;

	t->o.retention.keep_last = 3;
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__PIN, 10), 0);
	for (uint64_t step = 20; step <= 40; step += 10)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	m.verb = CKPT__ADMIN__VERB__TRUST;
	m.job = (char *)"job";
	m.step = 40;
	m.trust = TRUST_BAD;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &m;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	save_until(&t->a, 0, 50, CKPT_DURABLE);
	for (int i = 0; i < 100; i++)
		host_turn(&t->host);
	last = the_job(t)->history.next_n - 1;
	end_node(t);
	damage_record(t, (unsigned)last);
	begin_node(t);
	assert_int_equal(count_files(t, "jobs/*/log.old-*"), 1);
	assert_true(the_job(t)->relogged);
	h = &the_job(t)->history;
	for (size_t i = 0; i < h->n_commits; i++)
		bad = bad || (h->commits[i].commit.step == 40 && h->commits[i].trust & TRUST_BAD);
	assert_true(bad);
	assert_int_equal(join(t, &t->a, 0, 1, "run2"), 50);
	declare_rank(&t->a, 0, 1);
	prepare_rank(&t->a);
	load_rank(&t->a, 0, 50, CKPT_TIER_DISK);
	for (uint64_t step = 60; step <= 90; step += 10)
		save_until(&t->a, 0, step, CKPT_DURABLE);
	for (int i = 0; i < 100; i++)
		host_turn(&t->host);
	assert_int_equal(count_files(t, "jobs/*/10.*/COMMIT"), 1);
	assert_int_equal(count_files(t, "jobs/*/20.*/COMMIT"), 0); /* retention goes on */
	assert_int_equal(hand_admin(&t->a, "job", CKPT__ADMIN__VERB__UNPIN, 10), 0);
}

#define NOBODY 65533

/* As that user: the peer's credentials are taken when it connects. */
static int open_as(struct node_test *t, uid_t uid, struct hand *k, const uint8_t *token, size_t len,
		   bool reconnect, char text[static 200])
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;
	struct hand_answer a;
	int code;

	assert_int_equal(seteuid(uid), 0);
	connect_rank(t, k);
	assert_int_equal(seteuid(0), 0);
	o.job = (char *)"job";
	o.rank = uid == 0 ? 0 : 1;
	o.world = 2;
	o.run_id = (char *)"run1";
	o.token = (ProtobufCBinaryData){len, (uint8_t *)token};
	o.reconnect = reconnect;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	code = hand_ask(k, &q, &a);
	assert_non_null(a.reply);
	snprintf(text, 200, "%s", a.reply->text);
	if (code == 0) {
		assert_true(a.reply->open->token.len == 32);
		memcpy(text, a.reply->open->token.data, 32);
		memcpy(text + 32, a.reply->open->job_id.data, 16);
	}
	hand_answer_free(&a);
	return code;
}

/* Another user joins with the job's token and not with a wrong one; without one, a job of that name
 * is their own. */
static void test_token(void **state)
{
	struct node_test *t = *state;
	struct hand other[4];
	char mine[200], text[200];
	uint8_t wrong[32];

	if (geteuid() != 0) /* nobody else can be played */
		return;
	begin_node(t);
	assert_int_equal(chmod(t->socket, 0666), 0);
	assert_int_equal(chmod(t->dir, 0755), 0);
	assert_int_equal(open_as(t, 0, &t->a, NULL, 0, false, mine), 0);
	memcpy(wrong, mine, 32);
	wrong[7] ^= 1;
	assert_int_equal(open_as(t, NOBODY, &other[0], wrong, 32, false, text), CKPT_EDENIED);
	assert_non_null(strstr(text, "token"));
	assert_int_equal(open_as(t, NOBODY, &other[1], (uint8_t *)mine, 32, false, text), 0);
	assert_memory_equal(text, mine, 48); /* the same job */
	assert_int_equal(open_as(t, NOBODY, &other[2], NULL, 0, false, text), 0);
	assert_memory_not_equal(text + 32, mine + 32, 16);
	assert_int_equal(open_as(t, NOBODY, &other[3], wrong, 32, false, text), -EAGAIN);
	for (int i = 0; i < 4; i++)
		leave(&other[i]);
}

/* A process that has the rank already is not told to end itself: with a run id, and without. */
static void test_open_twice(void **state)
{
	const char *const runs[] = {"run1", ""};
	struct node_test *t = *state;
	char own[64];

	snprintf(own, sizeof(own), "this process, %d, has the job open already, as rank 0",
		 getpid());
	begin_node(t);
	for (int i = 0; i < 2; i++) {
		join(t, &t->a, 0, 1, runs[i]);
		connect_rank(t, &t->b);
		assert_int_equal(open_rank(&t->b, 0, 1, runs[i]), -EAGAIN);
		assert_non_null(strstr(t->b.text, own));
		assert_null(strstr(t->b.text, "end it"));
		leave(&t->b);
		leave(&t->a);
	}
}

/* ---- What is written down ---- */

static const struct memory_ops *memory_ops;
static pthread_t loop_thread;
static _Atomic int ledgers_of_loop, ledgers;

static int slow_create(struct memory *m, const char *name, uint64_t size, struct region **ret)
{
	if (strncmp(name, "ledger.", 7) == 0) {
		ledgers++;
		ledgers_of_loop += pthread_equal(pthread_self(), loop_thread) != 0;
		usleep(20000);
	}
	return memory_ops->create(m, name, size, ret);
}

static void count_ledgers(struct host *h)
{
	static struct memory_ops slow;

	memory_ops = h->memory->ops;
	slow = *memory_ops;
	slow.create = slow_create;
	h->memory->ops = &slow;
	loop_thread = pthread_self();
	ledgers = ledgers_of_loop = 0;
}

/* In a memfd of `size` bytes that begins with these; returns at once. */
static void send_declaration(struct hand *k, const void *bytes, size_t len, size_t size)
{
	struct digest digest = declaration_digest(bytes, len);
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare d = CKPT__DECLARE__INIT;
	int fd = memfd_create("declaration", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, len, 0), len);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK), 0);
	d.digest = (ProtobufCBinaryData){16, digest.b};
	d.in_fd = true;
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &d;
	assert_int_equal(hand_send_fd(k, &q, fd), 0);
	close(fd);
}

/* Of the answer to what was sent last. */
static int receive_code(struct hand *k)
{
	uint64_t id = 0;
	int code = hand_receive(k, &id);

	assert_int_equal(id, k->next_id);
	return code;
}

static void many_shards(uint32_t n, void **ret, size_t *ret_len)
{
	struct declaration_builder *b;
	char name[32];
	struct shard s = {.name = name, .dtype = CKPT_F32, .global = {1, {16}},
			  .box = {1, {0}, {16}}};

	assert_int_equal(declaration_builder_new(GEOMETRY_DEFAULT, &b), 0);
	for (uint32_t i = 0; i < n; i++) {
		s.name_len = (uint32_t)snprintf(name, sizeof(name), "layer.%08u", i);
		assert_int_equal(declaration_add(b, &s, NULL), i);
	}
	assert_int_equal(declaration_finish(b, ret, ret_len, NULL), 0);
	declaration_builder_free(b);
}

enum { RANKS = 8 };

/* Its memory is never made by the loop, which is everybody's, however many declare at once. */
static void test_declarations_at_once(void **state)
{
	struct node_test *t = *state;
	struct hand k[RANKS];
	void *bytes;
	size_t len;

	many_shards(20000, &bytes, &len);
	begin_node(t);
	count_ledgers(&t->host);
	for (uint32_t i = 0; i < RANKS; i++)
		join(t, &k[i], i, RANKS, "run1");
	for (uint32_t i = 0; i < RANKS; i++)
		send_declaration(&k[i], bytes, len, len);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(receive_code(&k[i]), 0);
	assert_in_range(ledgers, 2, 8);
	assert_int_equal(ledgers_of_loop, 0);
	for (uint32_t i = 0; i < RANKS; i++)
		leave(&k[i]);
	alloc_free(bytes);
}

static atomic_bool reading, read_waits;
static _Atomic int closes_of_loop;

static int slow_read(struct memory *m, int fd, uint64_t max, void **ret, uint64_t *ret_len)
{
	reading = true;
	for (int i = 0; read_waits && i < 60000; i++)
		usleep(1000);
	return memory_ops->fd_to_bytes(m, fd, max, ret, ret_len);
}

static void counted_close(struct memory *m, int fd)
{
	closes_of_loop += pthread_equal(pthread_self(), loop_thread) != 0;
	memory_ops->close_fd(m, fd);
}

/* Its check is cancelled, and the loop does not free what it sent. */
static void test_declaration_of_the_dead(void **state)
{
	static struct memory_ops slow;
	struct node_test *t = *state;
	struct session *s;
	struct work *check;
	uint64_t end = 0;
	void *bytes;
	size_t len;

	many_shards(20000, &bytes, &len);
	begin_node(t);
	memory_ops = t->host.memory->ops;
	loop_thread = pthread_self();
	slow = *memory_ops;
	slow.fd_to_bytes = slow_read;
	slow.close_fd = counted_close;
	reading = false;
	read_waits = true;
	closes_of_loop = 0;
	t->host.memory->ops = &slow;
	join(t, &t->a, 0, 1, "run1");
	send_declaration(&t->a, bytes, len, len);
	while (!reading)
		assert_true(turn_on(t, &end));
	s = session_ref(member_of_rank(the_job(t), 0)->session);
	check = session_use(s)->checking;
	assert_non_null(check);
	assert_false(work_cancelled(check));
	leave(&t->a);
	while (session_connected(s))
		assert_true(turn_on(t, &end));
	assert_true(work_cancelled(check));
	read_waits = false;
	while (session_use(s)->checking)
		assert_true(turn_on(t, &end));
	assert_false(session_use(s)->declaring);
	assert_int_equal(closes_of_loop, 0);
	session_unref(s);
	t->host.memory->ops = memory_ops;
	alloc_free(bytes);
}

/* The loop asks for it at each save that goes to disk: it looks at no shard then. */
static void test_element_is_known(void **state)
{
	struct node_test *t = *state;
	struct declared *d;

	begin_one(t);
	d = list_first(&the_job(t)->declared, struct declared, link);
	assert_int_equal(d->element, declaration_element(&d->view));
	assert_true(d->element > 0);
}

static const struct region *declaration_region(struct node_test *t)
{
	struct declared *d = list_first(&the_job(t)->declared, struct declared, link);

	return d ? d->region : NULL;
}

static _Atomic int destroyed, destroyed_by_loop;

static void counted_destroy(struct memory *m, struct region *r)
{
	bool mine = strncmp(r->name, "declaration.", 12) == 0;

	destroyed += mine;
	destroyed_by_loop += mine && pthread_equal(pthread_self(), loop_thread) != 0;
	memory_ops->destroy(m, r);
}

/* The bytes that the loop writes for a declaration do not depend on its length: it lies in a region
 * of its own, once, which a worker destroys after the last reference. */
static void test_long_declaration_off_the_loop(void **state)
{
	static struct memory_ops counting;
	struct node_test *t = *state;
	const char *shards = getenv("CKPT_TEST_SHARDS"); /* to measure with more */
	const struct loop_calls *calls;
	uint64_t end = 0, longest;
	struct hand k[2];
	void *bytes;
	size_t len;

	many_shards(shards ? (uint32_t)atoi(shards) : 20000, &bytes, &len);
	assert_true(len > 2 * LEDGER_INLINE_MAX);
	if (getenv("CKPT_TEST_INLINE"))
		t->o.ledger_inline = UINT32_MAX;
	begin_node(t);
	memory_ops = t->host.memory->ops;
	counting = *memory_ops;
	counting.destroy = counted_destroy;
	t->host.memory->ops = &counting;
	loop_thread = pthread_self();
	destroyed = destroyed_by_loop = 0;
	calls = loop_calls(t->host.loop);
	for (uint32_t i = 0; i < 2; i++)
		join(t, &k[i], i, 2, "run1");
	longest = calls->longest_ns;
	for (uint32_t i = 0; i < 2; i++) {
		send_declaration(&k[i], bytes, len, len);
		assert_int_equal(receive_code(&k[i]), 0);
	}
	print_message("declaring %zu bytes: longest call %llu us (%s), %llu us before\n", len,
		      (unsigned long long)(calls->longest_ns / 1000), calls->longest,
		      (unsigned long long)(longest / 1000));
	if (!getenv("CKPT_TEST_INLINE")) {
		assert_non_null(declaration_region(t));
		assert_memory_equal(declaration_region(t)->base, bytes, len);
		assert_true(the_job(t)->ledger.annexes);
		assert_true(the_job(t)->ledger.region->size < len);
		assert_int_equal(destroyed, 0);
	}
	for (uint32_t i = 0; i < 2; i++)
		declare_rank(&k[i], i, 2); /* something else, so that no rank has it any more */
	while (!destroyed && t->o.ledger_inline != UINT32_MAX)
		assert_true(turn_on(t, &end));
	assert_null(declaration_region(t));
	assert_int_equal(destroyed_by_loop, 0);
	for (uint32_t i = 0; i < 2; i++)
		leave(&k[i]);
	t->host.memory->ops = memory_ops;
	alloc_free(bytes);
}

enum { BLOBS = 58, NAME = 1000 };

/* Blobs of no bytes with long names. */
static int save_names(struct hand *k, uint64_t step)
{
	static char names[BLOBS][NAME + 1];
	Ckpt__BlobPlace blob[BLOBS], *blobs[BLOBS];

	assert_int_equal(hand_credit(k), 0);
	for (int i = 0; i < BLOBS; i++) {
		memset(names[i], 'a' + i % 26, NAME);
		names[i][0] = (char)('a' + i / 26);
		blobs[i] = &blob[i];
		blob[i] = (Ckpt__BlobPlace)CKPT__BLOB_PLACE__INIT;
		blob[i].name = names[i];
		blob[i].image_offset = round_up(k->image_bytes, 4096);
	}
	return hand_seal(k, step, blobs, BLOBS, blob[0].image_offset);
}

static void test_names_of_blobs_have_their_room(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	count_ledgers(&t->host);
	join(t, &t->a, 0, 1, "run1");
	declare_and_prepare(&t->a, 0, 1);
	for (uint64_t step = 10; step < 100; step += 10) {
		assert_int_equal(save_names(&t->a, step), 0);
		assert_int_equal(hand_wait(&t->a, step, CKPT_COMMITTED), 0);
	}
	assert_true(ledgers > 1);
	assert_int_equal(ledgers_of_loop, 0);
}

/* Statuses, listings and exports show it as text. */
static void test_name_of_a_blob_that_is_no_text(void **state)
{
	static const char *const names[] = {"rng\xc3", "\xff", "ok", "r\xc3\xa4ng"};
	static const int codes[] = {-EINVAL, -EINVAL, 0, 0};
	Ckpt__BlobPlace blob = CKPT__BLOB_PLACE__INIT, *blobs[] = {&blob};
	struct node_test *t = *state;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	declare_and_prepare(&t->a, 0, 1);
	blob.image_offset = round_up(t->a.image_bytes, 4096);
	for (uint64_t i = 0; i < 4; i++) {
		blob.name = (char *)(uintptr_t)names[i];
		assert_int_equal(hand_credit(&t->a), 0);
		assert_int_equal(hand_seal(&t->a, 10 + i, blobs, 1, blob.image_offset), codes[i]);
	}
	assert_int_equal(hand_wait(&t->a, 13, CKPT_COMMITTED), 0);
}

/* What no record of the ledger would hold is refused before anything is made for it. */
static void test_too_large_to_be_written_down(void **state)
{
	struct node_test *t = *state;

	begin_node(t);
	join(t, &t->a, 0, 1, "run1");
	send_declaration(&t->a, "", 1, DECLARATION_BYTES_MAX + 1);
	assert_int_equal(receive_code(&t->a), -E2BIG);
	declare_elements(&t->a, 0, 1, 1ull << 40); /* 4 TiB: 1 GiB of digests */
	assert_int_equal(hand_prepare(&t->a), -E2BIG);
	declare_and_prepare(&t->a, 0, 1);
}

/* ---- Adoption ---- */

/* What save_two() left becomes one that a tool has made: in incoming/, without a log. */
static void move_to_incoming(const struct node_test *t, char hex[ID_TEXT_MAX])
{
	char command[1024];
	glob_t g;

	snprintf(command, sizeof(command), "%s/jobs/*", t->dir);
	assert_int_equal(glob(command, 0, NULL, &g), 0);
	assert_int_equal(g.gl_pathc, 1);
	snprintf(hex, ID_TEXT_MAX, "%s", strrchr(g.gl_pathv[0], '/') + 1);
	globfree(&g);
	snprintf(command, sizeof(command),
		 "cd %s && mkdir incoming && mv jobs/%s incoming/ && rm -r incoming/%s/log "
		 "incoming/%s/token",
		 t->dir, hex, hex, hex);
	assert_int_equal(system(command), 0);
}

/* Two ask for the same one: neither hears that it is there before it is (I7). */
static void test_adopted_once(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin admin = CKPT__ADMIN__INIT;
	struct node_test *t = *state;
	char hex[ID_TEXT_MAX];

	save_two(t);
	move_to_incoming(t, hex);
	begin_node(t);
	connect_rank(t, &t->a);
	connect_rank(t, &t->b);
	admin.verb = CKPT__ADMIN__VERB__ADOPT;
	admin.job = hex;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &admin;
	log_error = -EIO;
	assert_int_equal(hand_send(&t->a, &q), 0);
	assert_int_equal(hand_send(&t->b, &q), 0);
	assert_true(receive_code(&t->a) < 0);
	assert_true(receive_code(&t->b) < 0);
	assert_int_equal(count_files(t, "jobs/*"), 0); /* its name is free */
	assert_int_equal(count_files(t, "incoming/*/*/COMMIT"), 2);
	disk_is_good();
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	assert_int_equal(hand_ask_code(&t->b, &q), 0); /* whose answer was lost */
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), 0);
	assert_int_equal(t->a.base_step, 20);
}

static bool may_sweep(const struct node *n)
{
	if (!object_uses_sweep(n->store.uses))
		return false;
	object_uses_swept(n->store.uses);
	return true;
}

/* Anybody may ask for any id: while ckptd looks for it, a sweep of files may begin. */
static void test_adopting_nothing_keeps_no_sweep_away(void **state)
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin admin = CKPT__ADMIN__INIT;
	struct node_test *t = *state;
	struct node *n;

	begin_node(t);
	n = t->host.node;
	connect_rank(t, &t->a);
	admin.verb = CKPT__ADMIN__VERB__ADOPT;
	admin.job = (char *)"00112233445566778899aabbccddeeff";
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &admin;
	/* What the start does, with the index too, has ended. */
	for (uint64_t end = 0; n->works + n->index_works > 0 || !may_sweep(n);)
		assert_true(turn_on(t, &end));
	assert_int_equal(hand_send(&t->a, &q), 0);
	for (uint64_t end = 0; n->works == 0 && turn_on(t, &end);)
		;
	assert_int_equal(n->works, 1); /* until the next turn */
	assert_true(may_sweep(n));
	assert_int_equal(receive_code(&t->a), CKPT_ENOTFOUND);
}

/* Single elements of "w", each a piece of its own, as what a read wants; a sealed memfd. */
static int want_elements(uint32_t n)
{
	struct shard s = {.name = "w",
			  .name_len = 1,
			  .dtype = CKPT_F32,
			  .global = {1, {ELEMENTS}},
			  .box = {1, {0}, {1}}};
	int fd = memfd_create("wants", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct declaration_builder *b = NULL;
	struct writer w = {0};
	struct err e = {0};
	void *bytes = NULL;
	size_t len = 0;

	assert_int_equal(declaration_builder_new(GEOMETRY_DEFAULT, &b), 0);
	for (uint32_t i = 0; i < n; i++) {
		s.box.offset[0] = 2 * i;
		assert_int_equal(declaration_add(b, &s, &e), i);
	}
	assert_int_equal(declaration_finish(b, &bytes, &len, &e), 0);
	declaration_builder_free(b);
	assert_int_equal(read_wants_encode(bytes, len, NULL, 0, &w), 0);
	assert_int_equal(write(fd, w.buf, w.len), w.len);
	assert_int_equal(
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL),
		0);
	writer_free(&w);
	alloc_free(bytes);
	return fd;
}

/* What a session has under way it may have for ever: of a plan that it was given nothing stays. */
static void test_given_plans_are_let_go(void **state)
{
	enum { WANTS = 20000, READS = 8, PIECE = 200 }; /* bytes of a piece, at least */
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Read read = CKPT__READ__INIT;
	struct node_test *t = *state;
	int fd = want_elements(WANTS);
	struct mallinfo2 before, after;
	uint64_t id;

	mallopt(M_MMAP_THRESHOLD, 128 << 10); /* what is large is counted, whoever has it */
	begin_one(t);
	save_until(&t->a, 0, 10, CKPT_DURABLE);
	read.step = 10;
	read.in_fd = true;
	q.body_case = CKPT__REQUEST__BODY_READ;
	q.read = &read;
	before = mallinfo2();
	for (int i = 0; i < READS; i++) {
		assert_int_equal(hand_send_fd(&t->a, &q, fd), 0);
		assert_int_equal(hand_receive(&t->a, &id), 0);
	}
	assert_int_equal(hand_ask_code(&t->a, &(Ckpt__Request)CKPT__REQUEST__INIT), CKPT_EVERSION);
	after = mallinfo2();
	assert_true(after.hblkhd <= before.hblkhd + (size_t)WANTS * PIECE);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_life_threads),
		NODE_TEST(test_life_uring),
		NODE_TEST(test_skip_is_named),
		NODE_TEST(test_log_begun_anew),
		NODE_TEST(test_log_begun_anew_keeps_marks),
		NODE_TEST(test_open_twice),
		NODE_TEST(test_token),
		NODE_TEST(test_declarations_at_once),
		NODE_TEST(test_declaration_of_the_dead),
		NODE_TEST(test_element_is_known),
		NODE_TEST(test_long_declaration_off_the_loop),
		NODE_TEST(test_names_of_blobs_have_their_room),
		NODE_TEST(test_name_of_a_blob_that_is_no_text),
		NODE_TEST(test_too_large_to_be_written_down),
		NODE_TEST(test_adopted_once),
		NODE_TEST(test_adopting_nothing_keeps_no_sweep_away),
		NODE_TEST(test_given_plans_are_let_go),
	};

	return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
