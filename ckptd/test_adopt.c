/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_adopt.c - a ledger in the fd store may hold anything: records that are whole, have the right
 * digest and contradict each other, the log, and the memory. ckptd starts, every job of it can be
 * opened, saved and loaded, and no contradiction comes into a job's state (job_state.h, which ends
 * this process if one does).
 */
#include <config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "ckptd/node_priv.h"
#include "ckptd/test_node_rig.h"
#include "codec/digest.h"
#include "model/attempt.h"
#include "proto/session.pb-c.h"

enum { JOBS = 24, STARTS = 6, RECORDS = 40, TURNS = 25, REGIONS = 4, REGION_BYTES = 1 << 19 };

/* What true records of a job are made of. */
struct truth {
	struct job_id id;
	uint64_t incarnation;
	struct process_id process; /* it lives */
	struct digest declaration;
	void *bytes, *table;
	size_t len, table_len;
	uint64_t image_len;
	struct blob_entry blob;
};

static struct truth truths[JOBS];
static uint64_t epoch; /* the newest of each job */
static struct memory_ops ops;
static struct rng_seeded seeded;
#define below(n) rng_below(&seeded.rng, n)

static struct hand *job_hand(void)
{
	static struct hand k;

	return &k;
}

/* ---- Jobs whose truth is known ---- */

static void note_truth(struct node_test *t, const char *name, struct truth *x)
{
	struct job *j;
	struct slot *s;

	list_each(j, &t->host.node->jobs, link) {
		if (strcmp(j->history.job.name, name) != 0)
			continue;
		x->id = j->history.job.id;
		x->incarnation = j->history.incarnation;
		list_each(s, &j->slots, link) {
			const struct shard_state *sh = s->holds ? &s->holds->shards[0] : NULL;

			if (!sh)
				continue;
			x->process = s->process;
			x->declaration = sh->declared->digest;
			x->bytes = alloc_copy(sh->declared->bytes, sh->declared->len);
			x->len = sh->declared->len;
			x->table = alloc_copy(sh->table, sh->table_len);
			x->table_len = sh->table_len;
			x->image_len = sh->image_len;
			x->blob = sh->blobs->at[0];
			x->blob.name = alloc_copy(x->blob.name, x->blob.name_len);
			return;
		}
	}
	fail_msg("job '%s' holds nothing", name);
}

static void make_jobs(struct node_test *t)
{
	begin_node(t);
	for (int i = 0; i < JOBS; i++) {
		struct hand *k = job_hand();
		char name[32];

		snprintf(name, sizeof(name), "job%d", i);
		connect_rank(t, k);
		assert_int_equal(hand_open(k, name, 0, 1, "run1"), 0);
		declare_and_prepare(k, 0, 1);
		save_until(k, 0, 10, CKPT_DURABLE);
		note_truth(t, name, &truths[i]);
		leave(k);
	}
	end_node(t);
}

/* ---- Ledgers of anything ---- */

static uint64_t pick(const uint64_t *values, size_t n)
{
	return values[below(n)];
}
#define PICK(...)                                                                                  \
	pick((const uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

static struct process_id any_process(const struct truth *x)
{
	struct process_id p = x->process;

	if (below(4) == 0)
		p.pid = (int32_t)PICK(0, 1, UINT32_MAX, 99999);
	if (below(8) == 0)
		p.start++;
	return p;
}

static void name_region(const struct truth *x, const char *kind, uint32_t i, char *buf, size_t size)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, x->id.b, 16);
	snprintf(buf, size, "%s.%s.%u", kind, hex, i);
}

static void region_name(const struct truth *x, uint32_t i, char *buf, size_t size)
{
	name_region(x, "slot", i, buf, size);
}

/* For a region that is missing, or has the bytes, other bytes, or fewer. */
static int any_annex(struct ledger *l, const struct truth *x, uint32_t slot)
{
	bool declaration = below(2);
	size_t len = declaration ? x->len : x->table_len;
	struct digest d = declaration ? x->declaration : digest_of(x->table, len);
	const char *kind = PICK(0, 0, 0, 1) ? "slot" : declaration ? "declaration" : "table";
	char name[REGION_NAME_MAX + 1];

	name_region(below(8) ? x : &truths[below(JOBS)], kind, (uint32_t)PICK(0, 1, 2, slot), name,
		    sizeof(name));
	if (below(8) == 0)
		len = PICK(0, 1, len + 1, REGION_BYTES, UINT64_MAX);
	if (below(8) == 0)
		d.b[5] ^= 1;
	return declaration ? ledger_declaration_in(l, &d, len, name)
			   : ledger_table_in(l, slot, &d, len, name);
}

static int any_slot(struct ledger *l, const struct truth *x, uint32_t slot)
{
	struct process_id p = any_process(x);
	char name[REGION_NAME_MAX + 1];

	region_name(below(8) ? x : &truths[below(JOBS)],
		    below(4) ? slot : (uint32_t)below(REGIONS), name,
		    sizeof(name));
	return ledger_slot(l, slot, (uint32_t)PICK(0, 0, 0, 0, 0, 1, UINT32_MAX), name, &p);
}

static int any_seal(struct ledger *l, const struct truth *x, uint32_t slot)
{
	struct blob_entry blobs[2] = { x->blob, x->blob };
	struct ledger_seal s = {
		.slot = slot,
		.try_number = (uint32_t)PICK(0, 0, 0, 1, UINT32_MAX),
		.world = (uint32_t)PICK(1, 1, 1, 1, 0, 2, 70000, UINT32_MAX),
		.n_blobs = (uint32_t)PICK(1, 1, 1, 1, 0, 2),
		.step = PICK(10, 20, 30, 30, 40, 0, UINT64_MAX),
		.epoch = PICK(epoch, epoch, epoch, 0, epoch - 1, epoch + 1, UINT64_MAX),
		.image_len = PICK(x->image_len, x->image_len, x->image_len, 0, REGION_BYTES,
				  UINT64_MAX),
		.declaration = x->declaration,
		.blobs = blobs,
	};

	if (below(6) == 0)
		blobs[0].image_offset = PICK(0, REGION_BYTES, UINT64_MAX, UINT64_MAX / 2);
	if (below(6) == 0)
		blobs[0].bytes = PICK(0, REGION_BYTES, UINT64_MAX, UINT64_MAX / 2);
	s.attempt = attempt_id_make(&x->id, x->incarnation, s.epoch, s.step, s.try_number);
	if (below(8) == 0)
		s.attempt.b[3] ^= 1;
	if (below(8) == 0)
		s.declaration.b[3] ^= 1;
	return ledger_sealed(l, &s);
}

static int any_record(struct ledger *l, const struct truth *x)
{
	uint32_t slot = (uint32_t)PICK(0, 1, 2, 3, 0, 1, 2, 3, 4, UINT32_MAX);
	struct process_id p = any_process(x);
	size_t cut;

	switch (below(15)) {
	case 12:
	case 13:
		return any_annex(l, x, slot);
	case 0:
		return ledger_declaration(l, &x->declaration, x->bytes, x->len);
	case 1:
	case 2:
		return any_slot(l, x, slot);
	case 3:
		return ledger_ready(l, slot);
	case 4:
	case 5:
		return ledger_assign(l, slot, PICK(1, 2, 3, 0, UINT64_MAX));
	case 6:
	case 7:
		return any_seal(l, x, slot);
	case 8:
		cut = below(4) ? x->table_len : below(x->table_len) + 1;
		return ledger_table(l, slot, x->table, cut);
	case 9:
		return below(2) ? ledger_empty(l, slot) : ledger_gone(l, slot);
	case 10:
		return below(3) ? 0 : ledger_left(l, (uint32_t)PICK(0, 1, UINT32_MAX));
	default:
		return ledger_member(l, (uint32_t)PICK(0, 0, 0, 1, UINT32_MAX), &p,
				     PICK(epoch, epoch, 0, epoch + 1, UINT64_MAX),
				     PICK(1, 2, 0, UINT64_MAX),
				     below(2), PICK(4096, 4096, 0, UINT64_MAX),
				     below(3) ? &x->declaration : NULL);
	}
}

static int rewrite_nothing(void *owner, struct ledger *into)
{
	(void)owner;
	(void)into;
	return 0;
}

/* What a real one begins with, so that most of what follows is about something. */
static void begin_true(struct ledger *l, const struct truth *x)
{
	char name[REGION_NAME_MAX + 1];

	assert_int_equal(ledger_declaration(l, &x->declaration, x->bytes, x->len), 0);
	assert_int_equal(
		ledger_member(l, 0, &x->process, epoch, 1, false, 4096, &x->declaration), 0);
	for (uint32_t i = 0; i < REGIONS; i++) {
		region_name(x, i, name, sizeof(name));
		assert_int_equal(ledger_slot(l, i, 0, name, &x->process), 0);
		assert_int_equal(ledger_ready(l, i), 0);
	}
}

/* As a worker may have left them. */
static void give_annexes(struct memory *m, const struct truth *x, region_fn *fn, void *arg)
{
	char name[REGION_NAME_MAX + 1];
	struct region *r;

	for (uint32_t i = 0; i < 2 * REGIONS; i++) {
		bool declaration = i >= REGIONS;
		size_t len = declaration ? x->len : x->table_len;

		if (below(4) == 0)
			continue;
		name_region(x, declaration ? "declaration" : "table", i % REGIONS, name,
			    sizeof(name));
		assert_int_equal(m->ops->create(m, name, round_up(len, 4096), &r), 0);
		memcpy(r->base, declaration ? x->bytes : x->table, below(4) ? len : len / 2);
		fn(arg, r);
	}
}

static void give_job(struct memory *m, const struct truth *x, region_fn *fn, void *arg)
{
	struct ledger l = { .rewrite = rewrite_nothing };
	char name[REGION_NAME_MAX + 1];
	struct region *r;

	for (uint32_t i = 0; i < REGIONS; i++) {
		region_name(x, i, name, sizeof(name));
		assert_int_equal(m->ops->create(m, name, REGION_BYTES, &r), 0);
		fn(arg, r);
	}
	give_annexes(m, x, fn, arg);
	l.annexes_wanted = true;
	assert_int_equal(ledger_create(&l, m, &x->id), 0);
	if (below(4))
		begin_true(&l, x);
	for (int i = 0; i < RECORDS; i++)
		if (ledger_room(&l) > x->len + x->table_len + 1024)
			assert_int_equal(any_record(&l, x), 0);
	fn(arg, ledger_detach(&l));
}

static void adopt_anything(struct memory *m, region_fn *fn, void *arg)
{
	for (int i = 0; i < JOBS; i++)
		give_job(m, &truths[i], fn, arg);
}

static void give_anything(struct node_test *t)
{
	ops = *t->host.memory->ops;
	ops.adopt = adopt_anything;
	t->host.memory->ops = &ops;
}

/* The next launch of each: what is on disk can be loaded, or something that is newer. */
static void use_jobs(struct node_test *t, int start)
{
	for (int i = 0; i < JOBS; i++) {
		struct hand *k = job_hand();
		char name[32], run[32];

		snprintf(name, sizeof(name), "job%d", i);
		snprintf(run, sizeof(run), "again%d", start);
		connect_rank(t, k);
		assert_int_equal(hand_open(k, name, 0, 1, run), 0);
		assert_true(k->base_step != HAND_BASE_NONE);
		declare_and_prepare(k, 0, 1);
		leave(k);
	}
}

static void test_any_ledger(void **state)
{
	struct node_test *t = *state;
	struct job *j;

	rng_seed(&seeded, 20);
	make_jobs(t);
	for (int start = 0; start < STARTS; start++) {
		epoch = (uint64_t)start + 1;
		t->before = give_anything;
		begin_node(t);
		for (int i = 0; i < TURNS; i++)
			host_turn(&t->host);
		list_each(j, &t->host.node->jobs, link)
			assert_true(job_state_check(j));
		assert_true(list_empty(&t->host.node->stopped_jobs));
		use_jobs(t, start);
		end_node(t);
	}
	for (int i = 0; i < JOBS; i++) {
		alloc_free(truths[i].bytes);
		alloc_free(truths[i].table);
		alloc_free((void *)truths[i].blob.name);
	}
}

/* ---- Annexes ---- */

/* What a ckptd that was killed leaves, as the fd store hands it over: copies of all regions. */
static struct {
	char name[REGION_NAME_MAX + 1];
	void *bytes;
	uint64_t size;
} kept[16];
static uint32_t n_kept;

static void keep(const struct region *r)
{
	assert_true(n_kept < sizeof(kept) / sizeof(kept[0]));
	snprintf(kept[n_kept].name, sizeof(kept[n_kept].name), "%s", r->name);
	kept[n_kept].bytes = alloc_copy(r->base, r->size);
	kept[n_kept++].size = r->size;
}

static void keep_job(struct job *j)
{
	struct declared *d;
	struct slot *s;

	keep(j->ledger.region);
	list_each(d, &j->declared, link) {
		assert_non_null(d->region);
		keep(d->region);
	}
	list_each(s, &j->slots, link) {
		assert_non_null(s->table);
		keep(s->region);
		keep(s->table);
	}
}

static const char *damaged; /* regions whose names begin so */

static void adopt_kept(struct memory *m, region_fn *fn, void *arg)
{
	struct region *r;

	for (uint32_t i = 0; i < n_kept; i++) {
		if (!kept[i].bytes) { /* it had no pages yet */
			assert_int_equal(m->ops->reserve(m, kept[i].name, kept[i].size, &r), 0);
			fn(arg, r);
			continue;
		}
		assert_int_equal(m->ops->create(m, kept[i].name, kept[i].size, &r), 0);
		memcpy(r->base, kept[i].bytes, kept[i].size);
		if (damaged && strncmp(r->name, damaged, strlen(damaged)) == 0)
			((uint8_t *)r->base)[100] ^= 1;
		fn(arg, r);
	}
}

static void give_kept(struct node_test *t)
{
	ops = *t->host.memory->ops;
	ops.adopt = adopt_kept;
	t->host.memory->ops = &ops;
}

static struct checkpoint *held(struct node_test *t)
{
	struct checkpoint *c = list_first(&the_job(t)->checkpoints, struct checkpoint, link);

	assert_non_null(c);
	return c;
}

/* Keeps the memory of a node that ended with one commit, which is not on disk. */
static void keep_a_commit(struct node_test *t)
{
	t->o.ledger_inline = 64;
	t->o.persist_every = 1000;
	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run1"), HAND_BASE_NONE);
	declare_and_prepare(&t->a, 0, 1);
	save_until(&t->a, 0, 10, CKPT_COMMITTED);
	assert_true(held(t)->shards[0].table_in_region);
	keep_job(the_job(t));
	leave(&t->a);
	end_node(t);
}

static void adopt_with(struct node_test *t, const char *what)
{
	uint64_t end = 0;

	damaged = what;
	t->before = give_kept;
	begin_node(t);
	while (!what && !held(t)->memory)
		assert_true(turn_on(t, &end));
}

/* A committed checkpoint that only memory has, its declaration and table in regions of their own:
 * it is found whole, and not used if one of them is damaged; a message says so. */
static void test_annexes_after_a_crash(void **state)
{
	struct node_test *t = *state;

	keep_a_commit(t);

	adopt_with(t, NULL);
	assert_true(held(t)->shards[0].table_in_region);
	assert_int_equal(held(t)->agreed, CP_COMMITTED);
	assert_non_null(held(t)->shards[0].declared->region);
	end_node(t);

	adopt_with(t, "table.");
	assert_false(held(t)->memory);
	assert_true(was_told("its copy in memory is not whole, it is not used"));
	end_node(t);

	adopt_with(t, "declaration.");
	assert_true(was_told("the declaration of what slot 1 holds is missing in memory"));
	assert_true(was_told("what it has declared is missing in memory"));
	assert_true(list_empty(&the_job(t)->declared));
	end_node(t);
	while (n_kept)
		alloc_free(kept[--n_kept].bytes);
}

/* ---- Memory of another version ---- */

/* The header's word at `at`, as another version would have it. */
static void set_in_ledger(size_t at, uint32_t value)
{
	uint8_t *p = kept[0].bytes;
	struct digest d;

	assert_int_equal(strncmp(kept[0].name, "ledger.", 7), 0);
	put_le32(p + at, value);
	d = digest_of(p, 48);
	memcpy(p + 48, d.b, 16);
}

static void expect_refused(struct node_test *t, const char *words)
{
	unsigned n = 0;
	struct region *r;

	t->before = give_kept;
	begin_node(t);
	assert_true(list_empty(&t->host.node->jobs));
	assert_true(was_told("3 job 'job' is refused: its memory cannot be read: its ledger"));
	assert_true(was_told(words));
	list_each(r, &t->host.node->kept_regions, link)
		n++;
	assert_int_equal(n, n_kept);
	connect_rank(t, &t->a);
	assert_int_equal(open_rank(&t->a, 0, 1, "run2"), -EAGAIN);
	assert_non_null(strstr(t->a.text, "start the ckptd that wrote it"));
	hand_close(&t->a);
	end_node(t);
}

/* Memory of another version is kept for the ckptd that wrote it, which adopts it again. */
static void test_memory_of_another_version(void **state)
{
	struct node_test *t = *state;

	keep_a_commit(t);

	set_in_ledger(12, 0x81);
	expect_refused(t, "of version 1 with features 129, this ckptd knows version 1");
	set_in_ledger(12, 1);
	set_in_ledger(8, 2);
	expect_refused(t, "of version 2 with features 1, this ckptd knows version 1");

	set_in_ledger(8, 1);
	adopt_with(t, NULL);
	assert_int_equal(held(t)->agreed, CP_COMMITTED);
	end_node(t);
	while (n_kept)
		alloc_free(kept[--n_kept].bytes);
}

/* ---- Memory of another data folder ---- */

static void set_folder_in_ledger(uint64_t id)
{
	put_le64((uint8_t *)kept[0].bytes + 40, id);
	set_in_ledger(8, 1);
}

/* It does not start, destroys nothing, and makes nothing in the folder. */
static void expect_another_folder(struct node_test *t)
{
	struct region *r;
	unsigned n = 0;

	t->before = give_kept;
	assert_int_equal(try_begin_node(t), -EXDEV);
	list_each(r, &t->host.node->kept_regions, link)
		n++;
	assert_int_equal(n, n_kept);
	end_node(t);
	assert_int_equal(count_files(t, "[A-Z]*") + count_files(t, "jobs"), 0);
}

/* An empty folder where the data folder was, as a mount point whose disk is not mounted, or another
 * data folder: memory waits for the one that has its jobs. */
static void test_memory_of_another_folder(void **state)
{
	struct node_test *t = *state;
	char away[512], path[512];
	uint64_t id;

	keep_a_commit(t);
	id = get_le64((uint8_t *)kept[0].bytes + 40);
	assert_true(id != 0);
	snprintf(away, sizeof(away), "%s.away", t->dir);
	assert_int_equal(rename(t->dir, away), 0);

	assert_int_equal(mkdir(t->dir, 0700), 0);
	expect_another_folder(t);
	set_folder_in_ledger(0); /* of an older ckptd */
	expect_another_folder(t);
	assert_int_equal(rmdir(t->dir), 0);

	assert_int_equal(rename(away, t->dir), 0);
	set_folder_in_ledger(id ^ 1);
	t->before = give_kept;
	assert_int_equal(try_begin_node(t), -EXDEV);
	end_node(t);
	set_folder_in_ledger(0);
	adopt_with(t, NULL);
	assert_int_equal(held(t)->agreed, CP_COMMITTED);
	end_node(t);
	set_folder_in_ledger(id);
	adopt_with(t, NULL);
	assert_int_equal(held(t)->agreed, CP_COMMITTED);
	end_node(t);

	/* If only its ID is lost, the folder that has the job gets it again. */
	snprintf(path, sizeof(path), "%s/ID", t->dir);
	assert_int_equal(truncate(path, 3), 0);
	adopt_with(t, NULL);
	assert_int_equal(held(t)->agreed, CP_COMMITTED);
	end_node(t);
	assert_int_equal(unlink(path), 0);
	adopt_with(t, NULL);
	assert_true(t->host.node->store.folder_id == id);
	end_node(t);

	/* If somebody has taken the job's folder away, what is lost with it is said. */
	snprintf(path, sizeof(path), "rm -r %s/jobs/*", t->dir);
	assert_int_equal(system(path), 0);
	t->before = give_kept;
	assert_int_equal(try_begin_node(t), 0);
	assert_true(was_told("memory of a job is dropped, as the data folder has no folder jobs/"));
	assert_int_equal(times_told("memory of a job is dropped"), 1);
	end_node(t);
	while (n_kept)
		alloc_free(kept[--n_kept].bytes);
}

/* ---- Ranks that have left ---- */

/* They are known over a move of the ledger and a restart: one that comes back begins an epoch. */
static void test_a_rank_that_left_before_a_move(void **state)
{
	struct node_test *t = *state;
	uint64_t generation, end = 0;
	struct slot *s;
	struct job *j;

	begin_two(t);
	j = the_job(t);
	member_left(member_of_rank(j, 1), MEMBER_ENDED);
	leave(&t->b);
	generation = j->ledger.generation;
	j->ledger.annexes_wanted = true; /* which its header does not say */
	job_poke(j);
	while ((j->ledger.generation == generation || j->ledger.next) && turn_on(t, &end))
		;
	keep(j->ledger.region);
	list_each(s, &j->slots, link)
		keep(s->region);
	end_node(t);
	damaged = NULL;
	t->before = give_kept;
	begin_node(t);
	j = the_job(t);
	assert_int_equal(j->history.epoch.number, 1);
	assert_true(j->rank_left && j->left_rank == 1);
	join(t, &t->b, 1, 2, "run1");
	assert_int_equal(j->history.epoch.number, 2);
	end_node(t);
	while (n_kept)
		alloc_free(kept[--n_kept].bytes);
}

/* ---- A Prepare that was cut short ---- */

/* As adoption leaves a rank whose ckptd was killed behind the first record of its Prepare: it has
 * one slot, which is not mapped. The next Prepare makes the others, and the rank gets credits. */
static void test_a_prepare_that_was_cut_short(void **state)
{
	struct node_test *t = *state;
	struct slot *s, *next;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	Ckpt__Prepare p = CKPT__PREPARE__INIT;
	struct hand_answer a;
	struct job *j;

	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run1"), HAND_BASE_NONE);
	declare_rank(&t->a, 0, 1);
	p.blob_bytes = 1 << 16;
	q.body_case = CKPT__REQUEST__BODY_PREPARE;
	q.prepare = &p;
	assert_int_equal(hand_ask(&t->a, &q, &a), 0);
	hand_answer_free(&a);
	j = list_first(&t->host.node->jobs, struct job, link);
	list_each_safe(s, next, &j->slots, link) {
		if (s == list_first(&j->slots, struct slot, link))
			continue;
		slot_give(s, NULL);
		slot_let_go(s);
	}
	prepare_rank(&t->a);
	assert_int_equal(t->a.n_slots, t->o.slots);
	for (uint64_t step = 1; step <= 3; step++)
		save_until(&t->a, 0, step, CKPT_DURABLE);
}

/* ---- Slots without pages ---- */

static bool has_pages(struct node_test *t, const struct slot *s)
{
	struct memory *m = t->host.memory;
	int fd = m->ops->export_fd(m, s->region, false);
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	m->ops->close_fd(m, fd);
	return (uint64_t)st.st_blocks * 512 >= s->region->size;
}

/* Keeps the memory of a node that was killed when it had handed slots over and filled none. */
static void keep_slots_without_pages(struct node_test *t)
{
	struct slot *s;

	begin_node(t);
	assert_int_equal(join(t, &t->a, 0, 1, "run1"), HAND_BASE_NONE);
	declare_rank(&t->a, 0, 1);
	assert_int_equal(hand_prepare_early(&t->a), 0);
	keep(the_job(t)->ledger.region);
	list_each(s, &the_job(t)->slots, link) {
		assert_false(has_pages(t, s));
		keep(s->region);
		alloc_free(kept[n_kept - 1].bytes);
		kept[n_kept - 1].bytes = NULL;
	}
	assert_int_equal(n_kept, 1 + t->o.slots);
	end_node(t);
}

/* The rank that a ckptd was killed under before its slots had pages comes back: the next ckptd
 * gives it no credit before they have. */
static void test_slots_without_pages_after_a_crash(void **state)
{
	struct node_test *t = *state;
	Ckpt__SlotsReady ready = CKPT__SLOTS_READY__INIT;
	Ckpt__Request q = CKPT__REQUEST__INIT;
	struct slot *s;

	keep_slots_without_pages(t);
	damaged = NULL;
	t->before = give_kept;
	begin_node(t);
	connect_rank(t, &t->a);
	assert_int_equal(hand_rejoin(&t->a, "job", 0, 1, "run1"), 0);
	for (int i = 0; i < 500; i++) {
		job_poke(the_job(t));
		host_turn(&t->host);
		usleep(100);
	}
	assert_int_equal(t->a.page->credit, 0);
	list_each(s, &the_job(t)->slots, link)
		assert_false(has_pages(t, s));
	assert_int_equal(hand_prepare_early(&t->a), 0); /* again, for their descriptors */
	assert_int_equal(t->a.page->credit, 0);
	q.body_case = CKPT__REQUEST__BODY_SLOTS_READY;
	q.slots_ready = &ready;
	assert_int_equal(hand_ask_code(&t->a, &q), 0);
	list_each(s, &the_job(t)->slots, link)
		assert_true(has_pages(t, s));
	assert_int_equal(hand_credit(&t->a), 0);
	end_node(t);
	while (n_kept)
		alloc_free(kept[--n_kept].bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		NODE_TEST(test_any_ledger),
		NODE_TEST(test_annexes_after_a_crash),
		NODE_TEST(test_memory_of_another_version),
		NODE_TEST(test_memory_of_another_folder),
		NODE_TEST(test_a_rank_that_left_before_a_move),
		NODE_TEST(test_a_prepare_that_was_cut_short),
		NODE_TEST(test_slots_without_pages_after_a_crash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
