/* SPDX-License-Identifier: Apache-2.0 */
/*
 * service.c - the daemon: makes every table of struct env over Linux, runs a node on them, stops.
 *
 *   start   signals blocked (threads inherit it) -> descriptors of the fd store -> loop, disk,
 *           workers, memory, socket and LOCK given back by a ckptd that was killed -> node (LOCK,
 *           then the index) -> READY=1 when it has adopted and read all
 *   stop    STOPPING=1 -> node_stop persists what is only in memory -> loop ends -> what is lost is
 *           said, and WATCHDOG_USEC=0 -> workers drained
 *           -> node freed -> the rest in reverse; regions stay in the fd store throughout
 *
 * The control thread alone. Failure modes: whatever cannot be had at the start is an error with a
 * sentence, but the index: without it everything works from the files.
 */
#include <config.h>

#include "ckptd/service.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/bytes.h"
#include "ckptd/collect.h"
#include "ckptd/data_folder.h"
#include "ckptd/keeper.h"
#include "ckptd/listener.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/memory_memfd.h"
#include "ckptd/node.h"
#include "ckptd/notify.h"
#include "ckptd/predecessor.h"
#include "ckptd/service_detect.h"
#include "ckptd/workers.h"
#include "ckptd/xid_table.h"
#include "coord/single.h"
#include "detect/xid_policy.h"
#include "storage/disk_posix.h"
#include "storage/index_rocksdb.h"
#include "storage/store.h"

struct service {
	const struct service_options *o;
	struct config config; /* as it is now */
	struct log *log;
	struct loop *loop;
	struct disk *disk;
	struct workers *workers;
	struct index *index;
	struct notify *notify;
	struct keeper *keeper;
	struct memory *memory;
	struct listener *listener;
	struct collectors *collectors; /* NULL: nothing is watched */
	struct node *node;
	struct service_detect detect;
	struct xid_policy *xid;
	struct rng rng;
	struct watch signals;
	struct timer tick; /* watchdog and status */
	uint64_t tick_ns;
	bool ready, stopping, hurried; /* hurried: it was told to stop twice */
	bool unheard; /* the service manager: said once */
	struct err failure; /* code 0: none */
};

/* ---- What is told to the service manager ---- */

static void tell(struct service *s, const char *text)
{
	int r = notify_send(s->notify, text, NULL, 0);
	bool gone = r == -ECONNREFUSED || r == -ENOENT;

	if (r && !s->unheard)
		log_print(s->log, LOG_WARNING, "could not tell the service manager: %s%s",
			  err_text(r),
			  gone ? "; systemd or the supervisor that started this ckptd is gone: "
				 "nobody keeps its memory when it ends"
			       : "");
	s->unheard = r != 0;
}

static void tell_status(struct service *s, const char *what)
{
	char summary[200], text[300];

	node_summary(s->node, summary, sizeof(summary));
	snprintf(text, sizeof(text), "%s\nSTATUS=%s", what, summary);
	tell(s, text);
}

static void tick_fire(struct timer *t)
{
	struct service *s = container_of(t, struct service, tick);

	tell_status(s, "WATCHDOG=1"); /* from the loop alone: a loop that hangs is seen */
	timer_arm(s->loop, t, loop_now(s->loop) + s->tick_ns);
}

/* ---- Signals ---- */

static void node_options_of(const struct config *c, struct node_options *o)
{
	node_options_default(o);
	_Static_assert(sizeof(o->name) == sizeof(c->name), "a name fits");
	memcpy(o->name, c->name, sizeof(o->name));
	_Static_assert(sizeof(o->data) == sizeof(c->data), "a path fits");
	memcpy(o->data, c->data, sizeof(o->data));
	o->transfer = (uint32_t)c->transfer;
	o->slots = (uint32_t)c->slots;
	o->compression = (int)c->compression;
	o->retention.keep_last = (uint32_t)c->keep_last;
	o->retention.keep_every = c->keep_every;
	o->keep_verified = c->keep_verified;
	o->recheck_rate = c->recheck_rate;
	o->healthy_steps = c->healthy_steps;
	_Static_assert(sizeof(o->hook) == sizeof(c->hook), "a path fits");
	memcpy(o->hook, c->hook, sizeof(o->hook));
	o->hook_timeout_ns = c->hook_timeout_ns;
	o->persist_every = (uint32_t)c->persist_every;
	o->dedup = c->dedup;
	o->spare_bytes = c->spare;
	o->disk_reserve = c->disk_reserve;
	o->attempt_timeout_ns = c->attempt_timeout_ns;
	o->warn_after_ns = c->warn_after_ns;
	o->settle_timeout_ns = c->settle_timeout_ns;
	o->log_trim = c->log_trim;
	o->sessions_per_uid = (uint32_t)c->sessions_per_uid;
	o->jobs_per_uid = (uint32_t)c->jobs_per_uid;
	o->waits_per_session = (uint32_t)c->waits_per_session;
	o->loads_per_session = (uint32_t)c->loads_per_session;
	o->waits_per_uid = (uint32_t)c->waits_per_uid;
	o->loads_per_uid = (uint32_t)c->loads_per_uid;
	o->load_files_per_uid = (uint32_t)c->load_files_per_uid;
	o->declaration_bytes_per_uid = c->declaration_bytes_per_uid;
	o->plan_bytes_per_uid = c->plan_bytes_per_uid;
	o->held_bytes_per_uid = c->held_bytes_per_uid;
	o->memory_per_uid = c->memory_per_uid;
	o->detect = c->detect;
	o->admission = c->admission;
	o->dry_run = c->dry_run;
	o->actions_per_hour = (uint32_t)c->actions_per_hour;
}

static void apply(struct service *s, const struct config *wanted)
{
	struct node_options options;
	char restart[300];

	config_needs_restart(&s->config, wanted, restart, sizeof(restart));
	if (restart[0])
		log_print(s->log, LOG_WARNING, "changed, but only a restart applies it: %s",
			  restart);
	node_options_of(wanted, &options);
	node_reload(s->node, &options);
	s->log->level = (int)wanted->log_level;
	s->config.log_level = wanted->log_level;
	s->config.keep_last = wanted->keep_last;
	s->config.keep_every = wanted->keep_every;
	s->config.persist_every = wanted->persist_every;
	s->config.warn_after_ns = wanted->warn_after_ns;
	s->config.dedup = wanted->dedup;
	s->config.sessions_per_uid = wanted->sessions_per_uid;
	s->config.jobs_per_uid = wanted->jobs_per_uid;
	s->config.waits_per_session = wanted->waits_per_session;
	s->config.loads_per_session = wanted->loads_per_session;
	s->config.waits_per_uid = wanted->waits_per_uid;
	s->config.loads_per_uid = wanted->loads_per_uid;
	s->config.load_files_per_uid = wanted->load_files_per_uid;
	s->config.declaration_bytes_per_uid = wanted->declaration_bytes_per_uid;
	s->config.plan_bytes_per_uid = wanted->plan_bytes_per_uid;
	s->config.held_bytes_per_uid = wanted->held_bytes_per_uid;
	s->config.memory_per_uid = wanted->memory_per_uid;
	memcpy(s->config.policy, wanted->policy, sizeof(s->config.policy));
	s->config.dry_run = wanted->dry_run;
	s->config.actions_per_hour = wanted->actions_per_hour;
	service_detect_policy(&s->config, s->log, s->node);
	log_print(s->log, LOG_INFO, "configuration read again");
}

static void reload_failed(struct service *s, const char *why)
{
	log_print(s->log, LOG_ERR, "the configuration stays as it was: %s", why);
	node_reload_failed(s->node, why);
}

static void reload(struct service *s)
{
	struct err e = { 0 };
	struct config wanted;
	char text[64];

	snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%llu",
		 (unsigned long long)(loop_now(s->loop) / 1000));
	tell(s, text);
	if (s->o->reload(s->o->reload_arg, &wanted, &e) == 0)
		apply(s, &wanted);
	else
		reload_failed(s, e.text);
	tell(s, "READY=1");
}

static void stopped(void *arg)
{
	loop_epoll_stop(((struct service *)arg)->loop);
}

static void stop(struct service *s, const char *signal_name)
{
	if (s->stopping) {
		log_print(s->log, LOG_WARNING, "%s again: not waiting for what is being persisted",
			  signal_name);
		s->hurried = true;
		if (s->ready)
			node_stop_now(s->node);
		loop_epoll_stop(s->loop);
		return;
	}
	s->stopping = true;
	log_print(s->log, LOG_NOTICE, "%s: stopping", signal_name);
	tell_status(s, "STOPPING=1");
	if (s->ready)
		node_stop(s->node, s->config.stop_timeout_ns, stopped, s);
	else
		loop_epoll_stop(s->loop);
}

static void signal_came(struct watch *w, uint32_t events)
{
	struct service *s = container_of(w, struct service, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (read(w->fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
		if (info.ssi_signo != SIGHUP)
			stop(s, info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT");
		else if (s->ready && !s->stopping)
			reload(s);
	}
}

static int open_signals(struct service *s, struct err *e)
{
	sigset_t set;
	int r;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
		return err_code(e, -errno, "block signals");
	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN); /* a lease that was broken: storage/disk_posix.c */
	watch_init(&s->signals, signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), signal_came);
	if (s->signals.fd < 0)
		return err_code(e, -errno, "make a signal descriptor");
	r = watch_set(s->loop, &s->signals, EPOLLIN);
	return r ? err_code(e, r, "watch signals") : 0;
}

/* ---- The world ---- */

static int open_joblog(void *arg, const struct job_id *job, bool anew, struct joblog **ret,
		       struct err *e)
{
	struct service *s = arg;
	char dir[DISK_PATH_MAX + 1];

	(anew ? path_log_new : path_log)(dir, job);
	return joblog_single_open(s->disk, dir, ret, e);
}

static unsigned cores(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return 1;
	return (unsigned)max_u64(1, (uint64_t)CPU_COUNT(&set));
}

static int open_workers(struct service *s, struct err *e)
{
	const struct config *c = &s->config;
	struct workers_options o = { .disk = s->disk, .queue_depth = (unsigned)c->queue_depth };
	unsigned cpu = (unsigned)c->cpu_threads;

	o.threads[WORK_DATA] = (unsigned)c->data_threads;
	o.threads[WORK_META] = (unsigned)c->meta_threads;
	o.threads[WORK_PLAN] = (unsigned)c->plan_threads;
	o.threads[WORK_CPU] = cpu ? cpu : (unsigned)min_u64(cores(), 8);
	o.threads[WORK_CHECK] = div_up(o.threads[WORK_CPU], 2); /* at most half as much */
	o.threads[WORK_INDEX] = 1; /* what is written to the index is written in order */
	o.threads[WORK_LOG] = (unsigned)c->log_threads;
	o.threads[WORK_MEMORY] = (unsigned)c->memory_threads;
	return workers_new(s->loop, &o, &s->workers, e);
}

/* On a worker, while the loop knows nothing of it yet. */
static struct index *open_index(void *arg, bool *ret_fresh)
{
	struct service *s = arg;
	char path[sizeof(s->config.data) + 8];
	struct err e = { 0 };

	snprintf(path, sizeof(path), "%s/index", s->config.data);
	if (index_rocksdb_open(disk_posix_folder(s->disk), path, &s->index, ret_fresh, &e) != 0) {
		s->index = NULL;
		log_print(s->log, LOG_ERR, "going on without the index: %s", e.text);
	} else if (e.code) {
		log_print(s->log, LOG_WARNING, "%s", e.text);
	}
	return s->index;
}

static int open_memory(struct service *s, struct err *e)
{
	struct memory_options o = { .budget = s->config.memory_budget,
				    .huge_pages = s->config.huge_pages, .root = "",
				    .log = s->log };

	return memory_memfd_new(s->keeper, &o, &s->memory, e);
}

static int open_listener(struct service *s, struct err *e)
{
	struct listener_options o = { .mode = s->o->socket_mode,
				      .group = s->o->socket_group,
				      .conns_max = (unsigned)s->config.conns_max,
				      .conns_per_uid = (unsigned)s->config.conns_per_uid,
				      .handshake_ns = LISTENER_HANDSHAKE_NS,
				      .program = "/proc/self/exe", .log = s->log };

	o.fd = keeper_take(s->keeper, "socket", NULL);
	if (o.fd < 0) {
		o.fd = -1;
		o.path = s->config.socket;
	}
	return listener_new(s->loop, &o, &s->listener, e);
}

/* A table that cannot be used stops nobody from training: the one that is built in serves. */
static int open_xid(struct service *s, struct err *e)
{
	struct err why = {0};
	int r = xid_table_read(s->config.xid_table, &s->xid, &why);

	if (r < 0 && s->xid)
		log_print(s->log, LOG_ERR, "going on with the table of Xids that is built in: %s",
			  why.text);
	else if (r < 0)
		return err_set(e, r, "%s", why.text);
	return 0;
}

static int open_collectors(struct service *s, struct err *e)
{
	const struct config *c = &s->config;
	struct collect_options o = {.root = strcmp(c->detect_root, "/") ? c->detect_root : "",
				    .kmsg = c->detect_kmsg,
				    .data = c->data,
				    .interval_ns = c->detect_interval_ns,
				    .log = s->log};

	if (!c->detect)
		return 0;
	o.on[COLLECT_KERNEL] = c->detect_kernel;
	o.on[COLLECT_NET] = c->detect_net;
	o.on[COLLECT_DISK] = c->detect_disk;
	o.on[COLLECT_MEMORY] = c->detect_memory;
	o.on[COLLECT_PRESSURE] = c->detect_pressure;
	o.on[COLLECT_NVML] = c->detect_nvml;
	return collectors_new(s->loop, &o, &s->collectors, e);
}

/* 0: not known, or without a limit. */
static uint64_t descriptors(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
		return 0;
	return files.rlim_cur;
}

static int check_folder(void *arg, struct err *e)
{
	struct service *s = arg;

	return data_folder_check(s->disk, s->config.data, e);
}

static int open_node(struct service *s, struct err *e)
{
	struct node_options options;
	struct env env = {.loop = s->loop,
			  .workers = s->workers,
			  .disk = s->disk,
			  .index_open = open_index,
			  .index_arg = s,
			  .memory = s->memory,
			  .processes = listener_processes(s->listener),
			  .collectors = s->collectors,
			  .rng = &s->rng,
			  .folder_check = check_folder,
			  .folder_arg = s,
			  .joblog_open = open_joblog,
			  .joblog_arg = s,
			  .log = log_entry,
			  .log_arg = s->log};
	int r;

	node_options_of(&s->config, &options);
	options.descriptors = descriptors();
	options.xid = s->xid;
	r = service_detect_open(&s->detect, &s->config, s->log, &env, e);
	if (r == 0)
		r = node_new(&env, &options, &s->node, e);
	if (r == 0)
		r = service_detect_start(&s->detect, &s->config, s->log, s->loop, s->node, e);
	return r ? r : listener_start(s->listener, &node_conn_events, s->node, e);
}

static int service_open(struct service *s, struct err *e)
{
	int r;

	rng_system(&s->rng);
	r = loop_epoll_new(&s->loop, e);
	if (r == 0)
		r = open_signals(s, e);
	if (r == 0)
		r = notify_open(&s->notify, e);
	if (r == 0)
		r = keeper_open(s->notify, &s->keeper, e);
	if (r == 0)
		keeper_set_max(s->keeper, s->config.descriptors);
	if (r == 0)
		r = data_folder_make(s->config.data, keeper_has(s->keeper, "ledger."),
				     s->o->user || geteuid() == 0, e);
	if (r == 0)
		r = disk_posix_open(s->config.data, config_backend(&s->config), &s->disk, e);
	if (r == 0)
		r = beneath_check_private(disk_posix_folder(s->disk), s->config.data, e);
	if (r == 0 && data_folder_in_memory(s->disk))
		log_print(s->log, LOG_WARNING,
			  "data folder '%s' is on a file system of memory: what is called durable "
			  "is lost with the node; name one on a disk with --data",
			  s->config.data);
	if (r == 0)
		r = open_workers(s, e);
	if (r == 0)
		r = open_memory(s, e);
	if (r == 0)
		r = open_listener(s, e);
	if (r == 0)
		predecessor_wait_lock(s->config.data, s->log);
	if (r == 0)
		r = open_xid(s, e);
	if (r == 0)
		r = open_collectors(s, e);
	if (r == 0)
		r = open_node(s, e);
	return r;
}

/* Logs how long calls of the loop took: see base/loop.h. */
static void tell_calls(const struct service *s)
{
	const struct loop_calls *c = loop_calls(s->loop);

	if (c->n > 0)
		log_print(s->log, LOG_INFO,
			  "loop: %llu calls, %llu of them above %u us; the longest took %llu us "
			  "(%s)",
			  (unsigned long long)c->n, (unsigned long long)c->over,
			  (unsigned)(LOOP_CALL_NS / 1000),
			  (unsigned long long)(c->longest_ns / 1000), c->longest);
}

static void service_close(struct service *s)
{
	if (s->loop)
		tell_calls(s);
	if (s->listener)
		listener_stop(s->listener);
	workers_free(s->workers);
	service_detect_close(&s->detect);
	node_free(s->node);
	xid_policy_free(s->xid);
	collectors_free(s->collectors);
	listener_free(s->listener);
	memory_memfd_free(s->memory);
	if (s->index)
		s->index->ops->close(s->index);
	if (s->disk)
		disk_posix_close(s->disk);
	keeper_free(s->keeper);
	notify_free(s->notify);
	if (s->signals.fd >= 0) {
		watch_remove(s->loop, &s->signals);
		close(s->signals.fd);
	}
	loop_epoll_free(s->loop);
}

/* ---- Life ---- */

static void node_ready(void *arg, int status, const char *text)
{
	struct service *s = arg;

	if (status < 0) {
		err_set(&s->failure, status, "start with data '%s': %s", s->config.data, text);
		loop_epoll_stop(s->loop);
		return;
	}
	if (s->stopping)
		return;
	s->ready = true;
	loop_epoll_forget_calls(s->loop); /* no client has waited until now */
	log_print(s->log, LOG_NOTICE, "ready: node '%s', socket '%s', data '%s' (%s)",
		  s->config.name, s->config.socket, s->config.data, s->disk->backend);
	tell_status(s, "READY=1");
}

static void run(struct service *s)
{
	uint64_t watchdog_ns = notify_watchdog_ns();

	timer_init(&s->tick, tick_fire);
	if (watchdog_ns) {
		s->tick_ns = watchdog_ns / 2;
		timer_arm(s->loop, &s->tick, loop_now(s->loop) + s->tick_ns);
	}
	node_start(s->node, node_ready, s);
	loop_epoll_run(s->loop);
	timer_disarm(s->loop, &s->tick);
}

/* To free memory takes a quarter of a second for each GiB; twice that, and this for the rest. */
#define END_GIB_US 500000u
#define END_US	   30000000u

/*
 * The loop has ended: nothing is acknowledged any more, and nobody says WATCHDOG=1 while workers
 * free memory, in as many seconds as a watchdog allows. systemd (service_start_watchdog) and our
 * supervisor do not watch a service that has said WATCHDOG_USEC=0 until its next start; each
 * WATCHDOG=1 during the stop had armed systemd's again. EXTEND_TIMEOUT_USEC moves the end of its
 * TimeoutStopSec=, of which most may have passed.
 */
static void tell_unwatched(struct service *s, const char *text)
{
	uint64_t budget, us;
	char said[200];

	s->memory->ops->available(s->memory, &budget);
	us = END_US + div_up(budget, 1u << 30) * END_GIB_US;
	snprintf(said, sizeof(said), "STATUS=%.80s\nWATCHDOG_USEC=0\nEXTEND_TIMEOUT_USEC=%llu",
		 text, (unsigned long long)us);
	tell(s, said);
}

/* How it ended; returns how much is lost. */
static unsigned tell_end(struct service *s)
{
	char when[100], text[100] = "stopped: all that is committed is on disk";
	unsigned lost = 0;

	snprintf(when, sizeof(when), "within service.stop_timeout (%llu s)",
		 (unsigned long long)(s->config.stop_timeout_ns / 1000000000u));
	if (s->ready)
		lost = node_stop_lost(s->node,
				      s->hurried ? "before a second signal came" : when);
	else
		snprintf(text, sizeof(text), "stopped before it was ready");
	if (lost)
		snprintf(text, sizeof(text),
			 "stopped: %u checkpoint%s saved and not on disk, or not committed",
			 lost, lost == 1 ? " is" : "s are");
	log_print(s->log, lost ? LOG_ERR : LOG_NOTICE, "%s", text);
	tell_unwatched(s, text);
	return lost;
}

int service_run(const struct service_options *o, unsigned *ret_lost, struct err *e)
{
	struct service s = { .o = o, .config = o->config, .log = o->log, .signals.fd = -1 };
	int r;

	assert(o->reload && o->log);
	r = service_open(&s, e);
	if (r == 0)
		run(&s);
	*ret_lost = r == 0 && s.stopping ? tell_end(&s) : 0;
	service_close(&s);
	if (r == 0 && s.failure.code)
		r = err_set(e, s.failure.code, "%s", s.failure.text);
	return r;
}
