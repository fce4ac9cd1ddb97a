/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "detect/replay/runner.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"

/* A detector, the world it asks (NULL: a file, which cannot answer), and who listens. */
struct lead {
	struct watcher *watcher;
	struct world *world;
	struct score *score;
	bool in_gap;
	uint64_t samples, refused, last_ns;
	uint64_t watched_ns; /* from the first sample with a time on, without gaps */
	uint32_t nodes; /* the highest number + 1 */
};

static void on_verdict(void *arg, const struct verdict *v)
{
	struct lead *l = arg;

	score_verdict(l->score, v);
}

static void on_probe(void *arg, uint32_t job, uint32_t rank, bool wanted)
{
	struct lead *l = arg;

	(void)job;
	if (l->world)
		world_probe(l->world, rank, wanted);
}

static int lead_new(struct lead *l, enum watcher_kind kind, const struct watcher_settings *set)
{
	struct detector_events events = {.verdict = on_verdict, .probe = on_probe, .arg = l};

	return watcher_new(kind, set, &events, &l->watcher);
}

static void pass_time(struct lead *l, uint64_t to_ns)
{
	uint64_t before = 0;

	for (;;) {
		uint64_t next = l->watcher->next(l->watcher);

		if (next >= to_ns)
			return;
		/* One that asks for the past is given the present, once. */
		if (next <= before || next < l->last_ns)
			next = before > l->last_ns ? before + 1 : l->last_ns + 1;
		if (next >= to_ns)
			return;
		l->watcher->advance(l->watcher, next);
		before = next;
	}
}

static int take(struct lead *l, const struct trace_record *r)
{
	if (r->is_label) {
		if (r->label.kind == LABEL_GAP)
			l->in_gap = true;
		return score_label(l->score, &r->label);
	}
	if (!l->in_gap)
		pass_time(l, r->sample.time_ns);
	if (!l->in_gap && l->last_ns)
		l->watched_ns += r->sample.time_ns - l->last_ns;
	l->in_gap = false;
	l->last_ns = r->sample.time_ns;
	l->samples++;
	score_sample(l->score, &r->sample);
	if (r->sample.node != SAMPLE_NONE && r->sample.node >= l->nodes)
		l->nodes = r->sample.node + 1;
	if (l->watcher->feed(l->watcher, &r->sample) == -EINVAL)
		l->refused++;
	return 0;
}

static int run_one(struct run *run)
{
	struct lead l = {.score = &run->score};
	const struct trace_record *r;
	int result;

	score_init(&run->score);
	run->score.log = run->log;
	run->score.any_class = run->kind != WATCH_CKPTD;
	result = world_new(&run->world, &l.world);
	if (result < 0)
		return result;
	result = lead_new(&l, run->kind, &run->settings);
	while (result == 0 && world_next(l.world, &r))
		result = take(&l, r);
	if (result == 0)
		result = score_end(&run->score,
				   (run->world.nodes + run->world.spares) * run->world.days);
	run->samples = l.samples;
	run->refused = l.refused;
	if (l.watcher)
		l.watcher->free(l.watcher);
	world_free(l.world);
	return result;
}

/* ---- several at a time ---- */

struct crew {
	pthread_mutex_t lock;
	struct run *runs;
	unsigned n, next;
};

static void *work(void *arg)
{
	struct crew *c = arg;

	for (;;) {
		unsigned i;

		pthread_mutex_lock(&c->lock);
		i = c->next++;
		pthread_mutex_unlock(&c->lock);
		if (i >= c->n)
			return NULL;
		c->runs[i].result = run_one(&c->runs[i]);
	}
}

int run_all(struct run *runs, unsigned n, unsigned threads)
{
	struct crew c = {.runs = runs, .n = n};
	pthread_t others[16];
	unsigned started = 0;

	pthread_mutex_init(&c.lock, NULL);
	while (started + 1 < threads && started < 16 &&
	       pthread_create(&others[started], NULL, work, &c) == 0)
		started++;
	work(&c);
	while (started)
		pthread_join(others[--started], NULL);
	pthread_mutex_destroy(&c.lock);
	for (unsigned i = 0; i < n; i++)
		if (runs[i].result < 0)
			return runs[i].result;
	return 0;
}

/* ---- files ---- */

static long file_source(void *arg, void *buf, size_t size)
{
	FILE *f = arg;
	size_t n = fread(buf, 1, size, f);

	return n == 0 && ferror(f) ? -EIO : (long)n;
}

static int file_sink(void *arg, const void *buf, size_t len)
{
	return fwrite(buf, 1, len, arg) == len ? 0 : -EIO;
}

static FILE *open_file(const char *path, const char *mode, FILE *standard, struct err *e)
{
	FILE *f = strcmp(path, "-") == 0 ? standard : fopen(path, mode);

	if (!f)
		err_code(e, -errno, "cannot open trace '%s'", path);
	return f;
}

static int feed_all(struct trace_reader *reader, struct lead *l, struct err *e)
{
	struct trace_record rec;
	int r;

	while ((r = trace_next(reader, &rec, e)) > 0) {
		r = take(l, &rec);
		if (r < 0)
			return err_code(e, r, "cannot score");
	}
	return r;
}

int run_file(const char *path, enum watcher_kind kind, const struct watcher_settings *settings,
	     bool verbose, struct score *score, uint64_t *ret_samples, struct err *e)
{
	FILE *f = open_file(path, "rb", stdin, e);
	struct lead l = {.score = score};
	struct trace_reader *reader = NULL;
	int r;

	if (!f)
		return e->code;
	score->log = verbose ? stdout : NULL;
	score->any_class = kind != WATCH_CKPTD;
	r = trace_reader_new(path, file_source, f, &reader, e);
	if (r == 0) {
		r = lead_new(&l, kind, settings);
		r = r < 0 ? err_code(e, r, "cannot make the detector") : feed_all(reader, &l, e);
	}
	if (r == 0 && score_end(score, l.nodes * (double)l.watched_ns / 86400e9) < 0)
		r = err_code(e, -ENOMEM, "cannot score");
	*ret_samples = l.samples;
	if (l.watcher)
		l.watcher->free(l.watcher);
	trace_reader_free(reader);
	if (f != stdin)
		fclose(f);
	return r;
}

/* The worlds' records, one after the other in time. */
static int merge(struct world **worlds, unsigned n, struct trace_writer *writer)
{
	const struct trace_record *next[JOBS_MAX];

	for (unsigned i = 0; i < n; i++)
		if (!world_next(worlds[i], &next[i]))
			next[i] = NULL;
	for (;;) {
		unsigned first = n;
		int r;

		for (unsigned i = 0; i < n; i++)
			if (next[i] &&
			    (first == n || trace_time(next[i]) < trace_time(next[first])))
				first = i;
		if (first == n)
			return trace_flush(writer);
		r = trace_put(writer, next[first]);
		if (r < 0)
			return r;
		if (!world_next(worlds[first], &next[first]))
			next[first] = NULL;
	}
}

int run_generate(const struct world_config *configs, unsigned n, const char *path, struct err *e)
{
	size_t len = strlen(path);
	bool packed = len > 4 && strcmp(path + len - 4, ".zst") == 0;
	struct world *worlds[JOBS_MAX] = {NULL};
	struct trace_writer *writer = NULL;
	FILE *f = open_file(path, "wb", stdout, e);
	int r;

	assert(n <= JOBS_MAX);
	if (!f)
		return e->code;
	r = trace_writer_new(packed ? 3 : 0, file_sink, f, &writer);
	for (unsigned i = 0; r == 0 && i < n; i++)
		r = world_new(&configs[i], &worlds[i]);
	if (r == 0)
		r = merge(worlds, n, writer);
	for (unsigned i = 0; i < n; i++)
		world_free(worlds[i]);
	trace_writer_free(writer);
	if ((f == stdout ? fflush(f) : fclose(f)) != 0 && r == 0)
		r = -EIO;
	return r < 0 ? err_code(e, r, "cannot write trace '%s'", path) : 0;
}
