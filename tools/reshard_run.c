/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard_run.c - batch after batch from the one checkpoint to the other: a thread of its own
 * reads the next while this one writes the one before.
 *
 *   slot:  EMPTY --reader fills and fetches--> FULL --writer puts--> EMPTY
 *
 * The reader has `reading` and the cursor for as long as it runs, the writer has `making`; what
 * they share is under the mutex. The first error of either ends both.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>

#include "base/alloc.h"
#include "tools/plural.h"
#include "tools/progress.h"
#include "tools/reshard.h"

#define SLOTS 2

struct slot {
	struct reshard_batch batch;
	bool full;
};

struct run {
	struct reshard *x;
	uint32_t first, end;  /* targets of the group */
	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t turned;
	struct slot slots[SLOTS];
	bool ended;   /* the reader has nothing more */
	bool stopped; /* the writer wants nothing more */
	int result;   /* the reader's */
	struct err err;
	uint64_t read; /* the reader's, until it ended */
};

/* ---- Reader ---- */

/* An empty slot, or NULL when the writer has failed. */
static struct slot *wait_empty(struct run *r, unsigned turn)
{
	struct slot *s = &r->slots[turn % SLOTS];
	bool stopped;

	pthread_mutex_lock(&r->lock);
	while (s->full && !r->stopped)
		pthread_cond_wait(&r->turned, &r->lock);
	stopped = r->stopped;
	pthread_mutex_unlock(&r->lock);
	return stopped ? NULL : s;
}

static void set_full(struct run *r, struct slot *s, bool full)
{
	pthread_mutex_lock(&r->lock);
	s->full = full;
	pthread_cond_broadcast(&r->turned);
	pthread_mutex_unlock(&r->lock);
}

static int read_batches(struct run *r, struct reshard_cursor *c, struct err *e)
{
	struct slot *s;
	int rc = 1;

	for (unsigned turn = 0; rc == 1 && (s = wait_empty(r, turn)); turn++) {
		struct reshard_batch *b = &s->batch;

		rc = batch_fill(b, c, e);
		if (rc != 1)
			break;
		rc = reading_fetch(r->x->reading, b->wants, b->n_wants, &r->read, e);
		if (rc < 0)
			break;
		set_full(r, s, true);
		rc = 1;
	}
	return rc < 0 ? rc : 0;
}

static void *reader(void *arg)
{
	struct run *r = arg;
	struct reshard_cursor c;
	struct err e = {0};
	int rc;

	cursor_init(&c, r->x, r->first, r->end);
	rc = read_batches(r, &c, &e);
	cursor_fini(&c);
	pthread_mutex_lock(&r->lock);
	r->result = rc;
	r->err = e;
	r->ended = true;
	pthread_cond_broadcast(&r->turned);
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* ---- Writer ---- */

/* NULL: the reader has ended. */
static struct slot *wait_full(struct run *r, unsigned turn)
{
	struct slot *s = &r->slots[turn % SLOTS];
	bool full;

	pthread_mutex_lock(&r->lock);
	while (!s->full && !r->ended)
		pthread_cond_wait(&r->turned, &r->lock);
	full = s->full;
	pthread_mutex_unlock(&r->lock);
	return full ? s : NULL;
}

static int put_batch(struct making *m, const struct reshard_batch *b, const struct progress *p,
		     struct reshard_done *done, struct err *e)
{
	int r = 0;

	for (size_t i = 0; i < b->n_puts && r == 0; i++) {
		const struct reshard_put *put = &b->puts[i];

		r = making_put(m, put->rank, put->image_offset, put->from, put->len, e);
		done->put += put->len;
		if (i % 64 == 0)
			progress_draw(p, done->put, 0);
	}
	return r;
}

static int write_batches(struct run *r, struct making *m, const struct progress *p,
			 struct reshard_done *done, struct err *e)
{
	struct slot *s;
	int rc = 0;

	for (unsigned turn = 0; rc == 0 && (s = wait_full(r, turn)); turn++) {
		rc = put_batch(m, &s->batch, p, done, e);
		progress_draw(p, done->put, 0);
		set_full(r, s, false);
	}
	pthread_mutex_lock(&r->lock);
	r->stopped = true;
	pthread_cond_broadcast(&r->turned);
	pthread_mutex_unlock(&r->lock);
	return rc;
}

static int run_group(struct run *r, struct making *m, const struct progress *p,
		     struct reshard_done *done, struct err *e)
{
	pthread_t thread;
	int rc;

	r->ended = r->stopped = false;
	for (int i = 0; i < SLOTS; i++)
		r->slots[i].full = false;
	rc = -pthread_create(&thread, NULL, reader, r);
	if (rc < 0)
		return err_code(e, rc, "start a thread that reads");
	rc = write_batches(r, m, p, done, e);
	pthread_join(thread, NULL);
	if (rc == 0 && r->result < 0)
		rc = e ? (*e = r->err, r->result) : r->result;
	for (uint32_t i = r->first; i < r->end && rc == 0; i++)
		rc = making_finish(m, i, e);
	return rc;
}

static int run_groups(struct run *r, struct making *m, const struct progress *p,
		      struct reshard_done *done, struct err *e)
{
	int rc = 0;

	for (r->first = 0; r->first < r->x->world && rc == 0; r->first = r->end) {
		r->end = group_end(r->x, r->first);
		rc = run_group(r, m, p, done, e);
	}
	return rc;
}

int reshard_run(struct reshard *x, struct making *m, bool bar, struct reshard_done *ret,
		struct err *e)
{
	struct run r = {
		.x = x, .lock = PTHREAD_MUTEX_INITIALIZER, .turned = PTHREAD_COND_INITIALIZER};
	struct progress p;
	int rc = 0;

	*ret = (struct reshard_done){0};
	for (uint32_t i = 0; i < x->world; i++) {
		x->targets[i].position = making_position(m, i);
		ret->put += x->targets[i].position;
	}
	progress_start(&p, target_bytes(x), bar);
	for (int i = 0; i < SLOTS && rc == 0; i++)
		rc = batch_init(&r.slots[i].batch, x->memory.batch);
	if (rc < 0)
		err_code(e, rc, "make two buffers of %llu byte%s",
			 (unsigned long long)x->memory.batch, plural(x->memory.batch));
	else
		rc = run_groups(&r, m, &p, ret, e);
	for (int i = 0; i < SLOTS; i++)
		batch_fini(&r.slots[i].batch);
	progress_clear(&p);
	ret->read = r.read;
	return rc;
}

/* ---- Counting ---- */

static int count_group(struct reshard *x, struct reshard_batch *b, uint32_t first, uint32_t end,
		       struct reshard_done *ret, struct err *e)
{
	struct reshard_cursor c;
	int r;

	cursor_init(&c, x, first, end);
	while ((r = batch_fill(b, &c, e)) == 1) {
		r = reading_cost(x->reading, b->wants, b->n_wants, &ret->read, e);
		if (r < 0)
			break;
		for (size_t i = 0; i < b->n_puts; i++)
			ret->put += b->puts[i].len;
	}
	cursor_fini(&c);
	return r;
}

int reshard_count(struct reshard *x, struct reshard_done *ret, struct err *e)
{
	struct reshard_batch b = {0};
	int r = batch_init(&b, x->memory.batch);

	*ret = (struct reshard_done){0};
	if (r < 0)
		err_code(e, r, "make a buffer of %llu byte%s", (unsigned long long)x->memory.batch,
			 plural(x->memory.batch));
	for (uint32_t first = 0, end; first < x->world && r == 0; first = end) {
		end = group_end(x, first);
		r = count_group(x, &b, first, end, ret, e);
	}
	batch_fini(&b);
	return r;
}
