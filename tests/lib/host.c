/* SPDX-License-Identifier: Apache-2.0 */
#include <config.h>

#include "tests/lib/host.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckptd/listener.h"
#include "ckptd/log.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/memory_memfd.h"
#include "ckptd/workers.h"
#include "coord/single.h"
#include "storage/disk_posix.h"
#include "storage/index_rocksdb.h"
#include "storage/store.h"

#define TURN_NS 10000000u
#define START_TURNS 6000

static int open_log(void *arg, const struct job_id *job, bool anew, struct joblog **ret,
		    struct err *e)
{
	struct host *h = arg;
	char dir[DISK_PATH_MAX + 1];

	(anew ? path_log_new : path_log)(dir, job);
	return joblog_single_open(h->disk, dir, ret, e);
}

static struct index *open_index(void *arg, bool *ret_fresh)
{
	struct host *h = arg;
	struct err e = {0};
	char path[128];

	snprintf(path, sizeof(path), "%s/index", h->folder);
	if (index_rocksdb_open(disk_posix_folder(h->disk), path, &h->index, ret_fresh, &e) != 0)
		return NULL;
	return h->index;
}

static pthread_mutex_t lines_mutex = PTHREAD_MUTEX_INITIALIZER; /* worker threads say some */

static void note_made_again(struct host *h, const char *line)
{
	const char *step = strstr(line, "step ");

	if (strstr(line, "has its COMMIT again") && step && h->n_made_again < HOST_MADE_AGAIN_MAX)
		h->made_again[h->n_made_again++] = strtoull(step + 5, NULL, 10);
}

/* A line that names a job, or a step of it, has them as fields too: people filter by those. */
static void check_about(const struct log_about *about, const char *line)
{
	char job[CKPT_JOB_MAX + 1];
	unsigned long long step;

	if (sscanf(line, "job '%64[^']':", job) == 1)
		assert(about && about->job && strcmp(about->job, job) == 0);
	if (sscanf(line, "job '%*[^']': step %llu", &step) == 1)
		assert(about && about->has_step && about->step == step);
}

static void on_line(void *arg, int level, const struct log_about *about, const char *line)
{
	struct host *h = arg;

	check_about(about, line);
	pthread_mutex_lock(&lines_mutex);
	h->logs_begun_anew += strstr(line, "beginning it anew") != NULL;
	note_made_again(h, line);
	if (level <= LOG_ERR) {
		h->errors++;
		snprintf(h->error, sizeof(h->error), "%.*s", ERR_TEXT_MAX - 1, line);
	}
	if (getenv("CKPT_TEST_VERBOSE"))
		log_line(&h->log, level, line);
	if (h->on_line)
		h->on_line(h->on_line_arg, level, about, line);
	pthread_mutex_unlock(&lines_mutex);
}

static void on_ready(void *arg, int status, const char *text)
{
	struct host *h = arg;

	pthread_mutex_lock(&lines_mutex);
	if (status < 0)
		snprintf(h->error, sizeof(h->error), "%s", text);
	pthread_mutex_unlock(&lines_mutex);
	h->ready = status < 0 ? status : 1;
}

static int no_sync(struct disk_file *f)
{
	(void)f;
	return 0;
}

static int start_world(struct host *h, const struct host_options *o, struct err *e)
{
	struct workers_options wo = { .threads = { 2, 1, 1, 1, 1, 1, 1, 1 }, .queue_depth = 4 };
	struct workers_options more = {.threads = {2, 2, 2, 2, 1, 2, 2, 2}, .queue_depth = 8};
	struct listener_options lo = { .path = h->socket, .fd = -1, .mode = 0600, .conns_max = 512,
				       .conns_per_uid = 512, .handshake_ns = LISTENER_HANDSHAKE_NS,
				       .log = &h->log };
	struct memory_options mo = {
		.root = "", .budget = o->memory_budget, .huge_pages = o->as_ckptd, .log = &h->log};
	const char *top = getenv("top_builddir");
	int r;

	snprintf(h->program, sizeof(h->program), "%s/ckptd/ckptd", top ? top : ".");
	lo.program = h->program;
	if (o->as_ckptd)
		wo = more;
	r = loop_epoll_new(&h->loop, e);
	if (r == 0)
		r = disk_posix_open(o->folder, o->backend, &h->disk, e);
	if (r < 0)
		return r;
	wo.disk = h->disk;
	r = workers_new(h->loop, &wo, &h->workers, e);
	if (r == 0)
		r = notify_open(&h->notify, e);
	if (r == 0)
		r = keeper_open(h->notify, &h->keeper, e);
	if (r == 0)
		r = memory_memfd_new(h->keeper, &mo, &h->memory, e);
	if (r == 0)
		r = listener_new(h->loop, &lo, &h->listener, e);
	return r;
}

int host_start(struct host *h, const struct host_options *o, struct err *e)
{
	struct env env;
	int r;

	memset(h, 0, sizeof(*h));
	snprintf(h->socket, sizeof(h->socket), "%s", o->socket);
	snprintf(h->folder, sizeof(h->folder), "%s", o->folder);
	h->on_line = o->log;
	h->on_line_arg = o->log_arg;
	log_init(&h->log);
	h->log.level = getenv("CKPT_TEST_VERBOSE") ? LOG_DEBUG : LOG_CRIT;
	rng_system(&h->rng);
	r = start_world(h, o, e);
	if (r < 0)
		return r;
	env = (struct env){.loop = h->loop,
			   .workers = h->workers,
			   .disk = h->disk,
			   .memory = h->memory,
			   .processes = listener_processes(h->listener),
			   .rng = &h->rng,
			   .checks = o->checks,
			   .index_open = o->index ? open_index : NULL,
			   .index_arg = h,
			   .joblog_open = open_log,
			   .joblog_arg = h,
			   .log = on_line,
			   .log_arg = h};
	r = node_new(&env, o->node, &h->node, e);
	if (r == 0)
		r = listener_start(h->listener, &node_conn_events, h->node, e);
	if (r < 0)
		return r;
	if (o->before)
		o->before(o->before_arg);
	node_start(h->node, on_ready, h);
	for (int i = 0; i < START_TURNS && h->ready == 0; i++)
		host_turn(h);
	if (h->ready == 1 && o->skip_file_sync) {
		h->disk_ops = *h->disk->ops;
		h->disk_ops.sync = no_sync;
		h->disk->ops = &h->disk_ops; /* no work is under way that would see half of it */
	}
	if (h->ready == 1)
		return 0;
	return h->ready < 0 ? err_set(e, h->ready, "%s", h->error)
			    : err_set(e, -ETIMEDOUT, "the node does not get ready");
}

void host_turn(struct host *h)
{
	loop_epoll_turn(h->loop, TURN_NS);
}

void host_stop(struct host *h)
{
	if (h->listener)
		listener_stop(h->listener);
	workers_free(h->workers);
	node_free(h->node);
	if (h->index)
		h->index->ops->close(h->index);
	if (h->listener)
		listener_free(h->listener);
	if (h->memory)
		memory_memfd_free(h->memory);
	if (h->keeper)
		keeper_free(h->keeper);
	if (h->notify)
		notify_free(h->notify);
	if (h->disk)
		disk_posix_close(h->disk);
	if (h->loop)
		loop_epoll_free(h->loop);
	memset(h, 0, sizeof(*h));
}
