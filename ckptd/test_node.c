/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_node.c - one node from its first open to loads after a restart that lost all memory, and
 * after one that found its log damaged.
 */
#include <config.h>

#include <pthread.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "ckptd/test_node_rig.h"

static void run_backend(const char *backend)
{
	struct world w = { .dir = test_dir_make(NULL) };
	struct node_options o;
	struct rank a, b;
	uint64_t base;

	node_options_default(&o);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	start(&w, backend, &o);
	connect_rank(&w, &a);
	connect_rank(&w, &b);
	assert_int_equal(open_rank(&a, 0, 2, "run1", &base), 0);
	assert_int_equal(base, UINT64_MAX);
	assert_int_equal(open_rank(&b, 1, 2, "run1", &base), 0);
	declare_rank(&a, 0, 2);
	declare_rank(&b, 1, 2);
	prepare_rank(&a);
	prepare_rank(&b);
	for (uint64_t step = 10; step <= 60; step += 10) {
		assert_int_equal(save_rank(&a, 0, step), 0);
		assert_int_equal(save_rank(&b, 1, step), 0);
		assert_int_equal(wait_rank(&a, step, CKPT_DURABLE), 0);
	}
	assert_int_equal(save_rank(&a, 0, 60), -EINVAL); /* steps rise (I5) */
	close(a.fd);
	close(b.fd);

	/* The same run may not come back as another process's; a new run gets memory. */
	connect_rank(&w, &a);
	connect_rank(&w, &b);
	assert_int_equal(open_rank(&a, 0, 2, "run2", &base), 0);
	assert_int_equal(base, 60);
	assert_int_equal(open_rank(&b, 1, 2, "run2", &base), 0);
	declare_rank(&a, 0, 2);
	load_rank(&a, 0, 60, CKPT_TIER_MEMORY);
	close(a.fd);
	close(b.fd);
	stop(&w);

	start(&w, backend, &o);
	connect_rank(&w, &a);
	assert_int_equal(open_rank(&a, 1, 2, "run1", &base), CKPT_EEPOCH);
	assert_int_equal(open_rank(&a, 1, 2, "run3", &base), 0);
	assert_int_equal(base, 60);
	declare_rank(&a, 1, 2);
	load_rank(&a, 1, 60, CKPT_TIER_DISK);
	close(a.fd);
	stop(&w);
	test_dir_remove(w.dir);
}

static void test_life_uring(void **state)
{
	struct err why = { 0 };

	(void)state;
	if (!disk_uring_usable(&why)) {
		printf("io_uring: %s\n", why.text);
		skip();
	}
	run_backend("uring");
}

static void test_life_threads(void **state)
{
	(void)state;
	run_backend("threads");
}

/* ---- Sentences that name who and what ---- */

static void test_skip_is_named(void **state)
{
	struct world w = {.dir = test_dir_make(NULL)};
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Skip skip = CKPT__SKIP__INIT;
	struct node_options o;
	struct rank a, b;
	uint64_t base;

	(void)state;
	node_options_default(&o);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	start(&w, "threads", &o);
	connect_rank(&w, &a);
	connect_rank(&w, &b);
	assert_int_equal(open_rank(&a, 0, 2, "run1", &base), 0);
	assert_int_equal(open_rank(&b, 1, 2, "run1", &base), 0);
	declare_rank(&a, 0, 2);
	declare_rank(&b, 1, 2);
	prepare_rank(&a);
	prepare_rank(&b);
	skip.step = 58;
	skip.epoch = b.epoch;
	skip.reason = (char *)"tensors changed while it was copied";
	q.body_case = CKPT__REQUEST__BODY_SKIP;
	q.skip = &skip;
	ask_ok(&b, &q);
	assert_int_equal(save_rank(&a, 0, 58), 0);
	assert_int_equal(wait_rank(&a, 58, CKPT_COMMITTED), CKPT_EABORTED);
	assert_true(was_told("step 58 aborted: rank 1 skipped it: tensors changed while it was "
			     "copied"));
	close(a.fd);
	close(b.fd);
	stop(&w);
	test_dir_remove(w.dir);
}

/* ---- A log that is damaged ---- */

static void damage_record(const struct world *w, unsigned n)
{
	char path[512];
	glob_t g;

	snprintf(path, sizeof(path), "%s/jobs/*/log/%020u", w->dir, n);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	assert_int_equal(g.gl_pathc, 1);
	assert_int_equal(truncate(g.gl_pathv[0], 20), 0);
	globfree(&g);
}

static void save_two(struct world *w, struct rank *k, struct node_options *o)
{
	uint64_t base;

	node_options_default(o);
	snprintf(w->socket, sizeof(w->socket), "%s/sock", w->dir);
	start(w, "threads", o);
	connect_rank(w, k);
	assert_int_equal(open_rank(k, 0, 1, "run1", &base), 0);
	declare_rank(k, 0, 1);
	prepare_rank(k);
	for (uint64_t step = 10; step <= 20; step += 10) {
		assert_int_equal(save_rank(k, 0, step), 0);
		assert_int_equal(wait_rank(k, step, CKPT_DURABLE), 0);
	}
	close(k->fd);
	stop(w);
}

/* Begun anew beside the old one, which stays what it was until the new one is whole. */
static void test_log_begun_anew(void **state)
{
	struct world w = {.dir = test_dir_make(NULL)};
	struct node_options o;
	struct rank k;
	uint64_t base;

	(void)state;
	save_two(&w, &k, &o);
	damage_record(&w, 3);
	log_error = -EIO;
	assert_int_equal(try_start(&w, "threads", &o), -EIO);
	stop(&w);
	disk_is_good();
	assert_int_equal(count_files(&w, "jobs/*/log.old-*"), 0);
	assert_true(count_files(&w, "jobs/*/log/0*") > 4);
#ifdef CKPT_FAULTS
	/* It ends where nothing but the whole new log is there. */
	fault_arm(FAULT_RELOG_ASIDE, FAULT_ERROR, fault_hits(FAULT_RELOG_ASIDE) + 1, false);
	assert_int_equal(try_start(&w, "threads", &o), -EIO);
	stop(&w);
	assert_int_equal(count_files(&w, "jobs/*/log"), 0);
	assert_int_equal(count_files(&w, "jobs/*/log.old-*"), 1); /* the unfinished one was empty */
	start(&w, "threads", &o);
	assert_int_equal(count_files(&w, "jobs/*/log.old-*"), 1); /* not begun anew again */
	stop(&w);
#endif
	start(&w, "threads", &o);
	assert_int_equal(count_files(&w, "jobs/*/log.new"), 0);
	connect_rank(&w, &k);
	assert_int_equal(open_rank(&k, 0, 1, "run2", &base), 0);
	assert_int_equal(base, 20);
	declare_rank(&k, 0, 1);
	load_rank(&k, 0, 20, CKPT_TIER_DISK);
	prepare_rank(&k);
	assert_int_equal(save_rank(&k, 0, 30), 0);
	assert_int_equal(wait_rank(&k, 30, CKPT_DURABLE), 0);
	close(k.fd);
	stop(&w);
	test_dir_remove(w.dir);
}

/* What cannot be read is said with the job that it is of. */
static void test_unreadable_is_named(void **state)
{
	struct world w = {.dir = test_dir_make(NULL)};
	struct node_options o;
	char path[512];
	struct rank k;
	glob_t g;

	(void)state;
	save_two(&w, &k, &o);
	snprintf(path, sizeof(path), "%s/jobs/*/20.*/COMMIT", w.dir);
	assert_int_equal(glob(path, 0, NULL, &g), 0);
	assert_int_equal(truncate(g.gl_pathv[0], 20), 0);
	globfree(&g);
	start(&w, "threads", &o);
	assert_true(was_told("3 job 'job': step 20 on disk cannot be used: "));
	stop(&w);
	test_dir_remove(w.dir);
}

#define NOBODY 65533

/* As that user: the peer's credentials are taken when it connects. */
static int open_as(struct world *w, uid_t uid, struct rank *k, const uint8_t *token, size_t len,
		   bool reconnect, char text[static 200])
{
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Open o = CKPT__OPEN__INIT;
	Ckpt__Reply *r;
	int fds[64], code;
	size_t n;

	assert_int_equal(seteuid(uid), 0);
	connect_rank(w, k);
	assert_int_equal(seteuid(0), 0);
	o.job = (char *)"job";
	o.rank = uid == 0 ? 0 : 1;
	o.world = 2;
	o.run_id = (char *)"run1";
	o.token = (ProtobufCBinaryData){len, (uint8_t *)token};
	o.reconnect = reconnect;
	q.body_case = CKPT__REQUEST__BODY_OPEN;
	q.open = &o;
	r = ask(k, &q, fds, &n);
	code = r->code;
	snprintf(text, 200, "%s", r->text);
	if (code == 0) {
		assert_true(r->open->token.len == 32);
		memcpy(text, r->open->token.data, 32);
		memcpy(text + 32, r->open->job_id.data, 16);
		close(fds[0]);
	}
	ckpt__reply__free_unpacked(r, NULL);
	return code;
}

/* Another user joins with the job's token and not with a wrong one; without one, a job of that name
 * is their own. */
static void test_token(void **state)
{
	struct node_options o;
	struct world w = {.dir = test_dir_make(NULL)};
	struct rank owner, other[4];
	char mine[200], text[200];
	uint8_t wrong[32];

	(void)state;
	if (geteuid() != 0) { /* nobody else can be played */
		test_dir_remove(w.dir);
		return;
	}
	node_options_default(&o);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	start(&w, "threads", &o);
	assert_int_equal(chmod(w.socket, 0666), 0);
	assert_int_equal(chmod(w.dir, 0755), 0);
	assert_int_equal(open_as(&w, 0, &owner, NULL, 0, false, mine), 0);
	memcpy(wrong, mine, 32);
	wrong[7] ^= 1;
	assert_int_equal(open_as(&w, NOBODY, &other[0], wrong, 32, false, text), CKPT_EDENIED);
	assert_non_null(strstr(text, "token"));
	assert_int_equal(open_as(&w, NOBODY, &other[1], (uint8_t *)mine, 32, false, text), 0);
	assert_memory_equal(text, mine, 48); /* the same job */
	assert_int_equal(open_as(&w, NOBODY, &other[2], NULL, 0, false, text), 0);
	assert_memory_not_equal(text + 32, mine + 32, 16);
	assert_int_equal(open_as(&w, NOBODY, &other[3], wrong, 32, false, text), -EAGAIN);
	for (int i = 0; i < 4; i++)
		close(other[i].fd);
	close(owner.fd);
	stop(&w);
	test_dir_remove(w.dir);
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

static void count_ledgers(struct world *w)
{
	static struct memory_ops slow;

	memory_ops = w->memory->ops;
	slow = *memory_ops;
	slow.create = slow_create;
	w->memory->ops = &slow;
	loop_thread = pthread_self();
	ledgers = ledgers_of_loop = 0;
}

/* In a memfd of `size` bytes that begins with these; returns at once. */
static void send_declaration(struct rank *k, const void *bytes, size_t len, size_t size)
{
	struct digest digest = declaration_digest(bytes, len);
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Declare d = CKPT__DECLARE__INIT;
	char control[CMSG_SPACE(sizeof(int))] = {0};
	uint8_t buf[1000];
	struct iovec iov = {.iov_base = buf};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
			   .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int fd = memfd_create("declaration", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, len, 0), len);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK), 0);
	d.digest = (ProtobufCBinaryData){16, digest.b};
	d.in_fd = true;
	q.id = ++k->next_id;
	q.body_case = CKPT__REQUEST__BODY_DECLARE;
	q.declare = &d;
	iov.iov_len = ckpt__request__pack(&q, buf);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	assert_int_equal(sendmsg(k->fd, &m, MSG_NOSIGNAL), iov.iov_len);
	close(fd);
}

static int declared(struct rank *k)
{
	int fds[64], code;
	size_t n;
	Ckpt__Reply *r = receive(k, fds, &n);

	assert_int_equal(r->id, k->next_id);
	code = r->code;
	ckpt__reply__free_unpacked(r, NULL);
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
	struct world w = {.dir = test_dir_make(NULL)};
	struct node_options o;
	struct rank k[RANKS];
	uint64_t base;
	void *bytes;
	size_t len;

	(void)state;
	node_options_default(&o);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	many_shards(20000, &bytes, &len);
	start(&w, "threads", &o);
	count_ledgers(&w);
	for (uint32_t i = 0; i < RANKS; i++) {
		connect_rank(&w, &k[i]);
		assert_int_equal(open_rank(&k[i], i, RANKS, "run1", &base), 0);
	}
	for (uint32_t i = 0; i < RANKS; i++)
		send_declaration(&k[i], bytes, len, len);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(declared(&k[i]), 0);
	assert_in_range(ledgers, 2, 8);
	assert_int_equal(ledgers_of_loop, 0);
	for (uint32_t i = 0; i < RANKS; i++)
		close(k[i].fd);
	stop(&w);
	test_dir_remove(w.dir);
	alloc_free(bytes);
}

enum { BLOBS = 58, NAME = 1000 };

/* Blobs of no bytes with long names. */
static int save_names(struct rank *k, uint64_t step)
{
	static char names[BLOBS][NAME + 1];
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Seal seal = CKPT__SEAL__INIT;
	Ckpt__BlobPlace blob[BLOBS], *blobs[BLOBS];
	Ckpt__Reply *r;
	int fds[64], code;
	size_t n;

	for (int i = 0; i < TURNS_MAX && k->page->credit == k->used_credit; i++)
		loop_epoll_turn(k->w->loop, 10000000);
	for (int i = 0; i < BLOBS; i++) {
		memset(names[i], 'a' + i % 26, NAME);
		names[i][0] = (char)('a' + i / 26);
		blobs[i] = &blob[i];
		blob[i] = (Ckpt__BlobPlace)CKPT__BLOB_PLACE__INIT;
		blob[i].name = names[i];
		blob[i].image_offset = round_up(k->image_bytes, 4096);
	}
	seal.credit = k->used_credit = k->page->credit;
	seal.slot = k->page->credit_slot;
	seal.step = step;
	seal.epoch = k->epoch;
	seal.image_len = blob[0].image_offset;
	seal.blobs = blobs;
	seal.n_blobs = BLOBS;
	seal.declaration = (ProtobufCBinaryData){16, k->declaration.b};
	q.body_case = CKPT__REQUEST__BODY_SEAL;
	q.seal = &seal;
	r = ask(k, &q, fds, &n);
	code = r->code;
	ckpt__reply__free_unpacked(r, NULL);
	return code;
}

static void test_names_of_blobs_have_their_room(void **state)
{
	struct world w = {.dir = test_dir_make(NULL)};
	struct node_options o;
	struct rank k;
	uint64_t base;

	(void)state;
	node_options_default(&o);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	start(&w, "threads", &o);
	count_ledgers(&w);
	connect_rank(&w, &k);
	assert_int_equal(open_rank(&k, 0, 1, "run1", &base), 0);
	declare_rank(&k, 0, 1);
	prepare_rank(&k);
	for (uint64_t step = 10; step < 100; step += 10) {
		assert_int_equal(save_names(&k, step), 0);
		assert_int_equal(wait_rank(&k, step, CKPT_COMMITTED), 0);
	}
	assert_true(ledgers > 1);
	assert_int_equal(ledgers_of_loop, 0);
	close(k.fd);
	stop(&w);
	test_dir_remove(w.dir);
}

/* What no record of the ledger would hold is refused before anything is made for it. */
static void test_too_large_to_be_written_down(void **state)
{
	struct world w = {.dir = test_dir_make(NULL)};
	struct node_options o;
	struct rank k;
	uint64_t base;

	(void)state;
	node_options_default(&o);
	snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
	start(&w, "threads", &o);
	connect_rank(&w, &k);
	assert_int_equal(open_rank(&k, 0, 1, "run1", &base), 0);
	send_declaration(&k, "", 1, DECLARATION_BYTES_MAX + 1);
	assert_int_equal(declared(&k), -E2BIG);
	declare_elements(&k, 0, 1, 1ull << 40); /* 4 TiB: 1 GiB of digests */
	assert_int_equal(try_prepare(&k), -E2BIG);
	declare_rank(&k, 0, 1);
	prepare_rank(&k);
	close(k.fd);
	stop(&w);
	test_dir_remove(w.dir);
}

/* ---- Adoption ---- */

/* What save_two() left becomes one that a tool has made: in incoming/, without a log. */
static void move_to_incoming(const struct world *w, char hex[ID_TEXT_MAX])
{
	char command[1024];
	glob_t g;

	snprintf(command, sizeof(command), "%s/jobs/*", w->dir);
	assert_int_equal(glob(command, 0, NULL, &g), 0);
	assert_int_equal(g.gl_pathc, 1);
	snprintf(hex, ID_TEXT_MAX, "%s", strrchr(g.gl_pathv[0], '/') + 1);
	globfree(&g);
	snprintf(command, sizeof(command),
		 "cd %s && mkdir incoming && mv jobs/%s incoming/ && rm -r incoming/%s/log "
		 "incoming/%s/token",
		 w->dir, hex, hex, hex);
	assert_int_equal(system(command), 0);
}

static int adoption_code(struct rank *k)
{
	int fds[64], code;
	size_t n;
	Ckpt__Reply *r = receive(k, fds, &n);

	assert_non_null(r);
	code = r->code;
	ckpt__reply__free_unpacked(r, NULL);
	return code;
}

/* Two ask for the same one: neither hears that it is there before it is (I7). */
static void test_adopted_once(void **state)
{
	struct world w = {.dir = test_dir_make(NULL)};
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Admin admin = CKPT__ADMIN__INIT;
	char hex[ID_TEXT_MAX];
	struct node_options o;
	struct rank a, b;
	uint64_t base;

	(void)state;
	save_two(&w, &a, &o);
	move_to_incoming(&w, hex);
	start(&w, "threads", &o);
	connect_rank(&w, &a);
	connect_rank(&w, &b);
	admin.verb = CKPT__ADMIN__VERB__ADOPT;
	admin.job = hex;
	q.body_case = CKPT__REQUEST__BODY_ADMIN;
	q.admin = &admin;
	log_error = -EIO;
	send_request(&a, &q);
	send_request(&b, &q);
	assert_true(adoption_code(&a) < 0);
	assert_true(adoption_code(&b) < 0);
	assert_int_equal(count_files(&w, "jobs/*"), 0); /* its name is free */
	assert_int_equal(count_files(&w, "incoming/*/*/COMMIT"), 2);
	disk_is_good();
	send_request(&a, &q);
	assert_int_equal(adoption_code(&a), 0);
	send_request(&b, &q); /* whose answer was lost */
	assert_int_equal(adoption_code(&b), 0);
	assert_int_equal(open_rank(&a, 0, 1, "run2", &base), 0);
	assert_int_equal(base, 20);
	close(a.fd);
	close(b.fd);
	stop(&w);
	test_dir_remove(w.dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_life_threads),
		cmocka_unit_test(test_life_uring),
		cmocka_unit_test(test_skip_is_named),
		cmocka_unit_test(test_log_begun_anew),
		cmocka_unit_test(test_unreadable_is_named),
		cmocka_unit_test(test_token),
		cmocka_unit_test(test_declarations_at_once),
		cmocka_unit_test(test_names_of_blobs_have_their_room),
		cmocka_unit_test(test_too_large_to_be_written_down),
		cmocka_unit_test(test_adopted_once),
	};

	return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
