/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify_shards.c - reads shard files again, several at a time.
 *
 * Workers take the next task by a counter and own it until they are done; what they count for the
 * bar is atomic. A shard that cannot be found is no damage if its COMMIT has gone too: the
 * checkpoint expired while it was looked at.
 */
#include <config.h>

#include "tools/plural.h"
#include "tools/verify.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "base/alloc.h"
#include "storage/shard_reader.h"
#include "tools/progress.h"

#define DRAW_MS 200

struct crew {
	struct shard_tasks *tasks;
	pthread_mutex_t lock;
	pthread_cond_t left; /* one of them has ended */
	uint32_t running;
};

/* One shard, on a worker. */
struct one {
	struct shard_tasks *tasks;
	struct shard_task *task;
	uint64_t told; /* bytes already counted in tasks->done */
};

static void keep_sentence(void *arg, const char *sentence)
{
	struct one *o = arg;
	struct shard_task *t = o->task;

	if (t->n_sentences < SENTENCES_MAX)
		t->sentences[t->n_sentences] = alloc_str(sentence);
	t->n_sentences++;
	o->tasks->problems++;
}

static int count_bytes(void *arg, uint64_t bytes)
{
	struct one *o = arg;

	assert(bytes >= o->told);
	o->tasks->done += bytes - o->told;
	o->told = bytes;
	return 0;
}

bool is_damage(int code)
{
	return code == CKPT_ECORRUPT || code == CKPT_EPROTO || code == CKPT_ENOTFOUND ||
	       code == CKPT_ESTALE || code == -EIO || code == -ENODATA || code == -ENOENT;
}

static bool has_expired(struct store *s, const struct checkpoint_id *id)
{
	struct commit_file c = { 0 };
	int r = commit_read(s, id, &c, NULL);

	if (r == 0)
		commit_file_fini(&c);
	return r == CKPT_ENOTFOUND;
}

static int read_shard(struct one *o, struct err *e)
{
	const struct verify_hooks hooks = { .progress = count_bytes, .report = keep_sentence,
					    .arg = o };
	struct shard_task *t = o->task;
	struct shard_reader reader;
	struct digest got;
	int r = shard_open(o->tasks->store, t->id, t->footer, &reader, e);

	if (r < 0)
		return r;
	t->partial = reader.present != NULL;
	got = declaration_digest(reader.table.declaration.bytes, reader.table.declaration.len);
	if (t->declaration && !digest_equal(&got, t->declaration))
		r = err_set(e, CKPT_ECORRUPT,
			    "rank %u has another declaration than the layout says",
			    t->footer->rank);
	if (r == 0)
		r = shard_verify(&reader, &hooks, &t->bad_leaves, e);
	shard_close(&reader);
	return r;
}

static void do_task(struct shard_tasks *tasks, struct shard_task *t)
{
	struct one o = { .tasks = tasks, .task = t };
	struct err e = { 0 };

	t->code = read_shard(&o, &e);
	if (t->code < 0 && has_expired(tasks->store, t->id))
		t->expired = true;
	else if (t->code < 0)
		keep_sentence(&o, e.text);
	/* What could not be read is done too, for the bar. */
	ignore_result(count_bytes(&o, o.told > t->bytes ? o.told : t->bytes));
}

static void *work(void *arg)
{
	struct crew *c = arg;
	struct shard_tasks *tasks = c->tasks;
	size_t i;

	while ((i = tasks->next++) < tasks->n)
		do_task(tasks, &tasks->at[i]);
	pthread_mutex_lock(&c->lock);
	c->running--;
	pthread_cond_signal(&c->left);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static void watch_crew(struct crew *c, const struct progress *p)
{
	struct timespec t;

	progress_draw(p, 0, 0);
	pthread_mutex_lock(&c->lock);
	while (c->running > 0) {
		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += DRAW_MS * 1000000;
		t.tv_sec += t.tv_nsec / 1000000000;
		t.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&c->left, &c->lock, &t);
		progress_draw(p, c->tasks->done, c->tasks->problems);
	}
	pthread_mutex_unlock(&c->lock);
	progress_clear(p);
}

int shard_tasks_run(struct shard_tasks *t, uint32_t n, bool bar, double *ret_seconds,
		    struct err *e)
{
	struct crew c = { .tasks = t, .lock = PTHREAD_MUTEX_INITIALIZER,
			  .left = PTHREAD_COND_INITIALIZER };
	CLEANUP_FREE pthread_t *threads = NULL;
	struct progress p;
	uint32_t started = 0;
	int r = 0;

	n = n > t->n ? (uint32_t)t->n : n;
	threads = alloc_array(n, sizeof(*threads));
	if (!threads)
		return err_code(e, -ENOMEM, "start %u reader%s", n, plural(n));
	progress_start(&p, t->bytes, bar);
	pthread_mutex_lock(&c.lock);
	while (r == 0 && started < n) {
		r = pthread_create(&threads[started], NULL, work, &c);
		started += r == 0;
	}
	c.running = started;
	pthread_mutex_unlock(&c.lock);
	if (started == 0 && n > 0)
		return err_code(e, -r, "start a reader");
	watch_crew(&c, &p); /* with fewer of them it only takes longer */
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	*ret_seconds = progress_seconds(&p);
	return 0;
}

void shard_tasks_free(struct shard_tasks *t)
{
	for (size_t i = 0; i < t->n; i++)
		for (unsigned k = 0; k < SENTENCES_MAX; k++)
			alloc_free(t->at[i].sentences[k]);
	alloc_free(t->at);
}
