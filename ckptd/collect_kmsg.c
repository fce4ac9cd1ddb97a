/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collect_kmsg.c - kernel messages as they come. On the loop's thread, but the thread that notes
 * how far it has read.
 *
 *   1. Each message is told once, also when ckptd is started again: the boot and the number of the
 *      last one stand in the data folder. Of a boot of which nothing stands there, what is younger
 *      than KMSG_YOUNG_NS is told: ckptd may have been started by what the message says. Messages
 *      that came while ckptd was not running are told when it starts.
 *   2. What is written there is written by a thread, at most once a second, and need not be synced:
 *      after a crash of the machine it is another boot. What was told in the last second before a
 *      crash of ckptd may be told again.
 *   3. A FIFO has all that is written to it told; a file what comes after its present end. Neither
 *      tells where its messages are from, so nothing is noted.
 *   4. Facilities stay what they are: it is the detector that believes the kernel alone.
 *
 * Messages that the kernel's buffer lost before they were read (EPIPE) are counted and said.
 * Failure modes: without CAP_SYSLOG (kernel.dmesg_restrict), or where there is no such device, that
 * is said once and everything else goes on.
 */
#include <config.h>

#include "ckptd/collect_kmsg.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/collect_file.h"
#include "ckptd/log.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/reader.h"
#include "detect/kernel_line.h"
#include "storage/beneath.h"

#define KMSG_SEEN_NEW KMSG_SEEN ".tmp"

#define SECOND  1000000000ull
#define POLL_NS (SECOND / 4) /* a file tells nobody that it grew */
#define SAVE_NS SECOND
enum {
	RECORDS_MAX = 64,  /* in one turn */
	RECORD_SIZE = 8192 /* the kernel's are shorter */
};

enum kind { DEVICE, PIPE, PLAIN };

/* What a thread writes. */
struct seen {
	struct beneath data;
	char text[80];
};

struct kmsg {
	struct loop *loop;
	struct log *log;
	const struct collect_config *config;
	kmsg_tell_fn *tell;
	void *arg;
	enum kind kind;
	struct watch watch; /* fd -1: it could not be opened */
	struct timer timer; /* PLAIN: the next look; DEVICE: the next save */
	struct err failure; /* why not */
	char boot[48];      /* id of this boot; "": cannot be told */
	uint64_t seq;       /* DEVICE: of the last one told or passed over */
	bool any;           /* which there was */
	uint64_t overruns;
	struct log_limit limit;
	struct reader *saver; /* NULL: it cannot be had, and nothing is noted */
	struct seen *seen;    /* of the saver while it is busy */
	uint64_t saved;
	size_t n;  /* bytes of a line that has not ended */
	bool skip; /* PIPE, PLAIN: a line that was too long has not ended */
	char buf[RECORD_SIZE];
};

/* ---- How far it has been read (1, 2) ---- */

static void save_run(void *arg)
{
	struct seen *s = arg;
	size_t len = strlen(s->text);
	int fd = beneath_file(&s->data, KMSG_SEEN_NEW, O_WRONLY | O_CREAT | O_TRUNC);
	bool good;

	if (fd < 0)
		return; /* it is told again after a restart */
	good = write(fd, s->text, len) == (ssize_t)len;
	close(fd);
	if (!good || beneath_rename(&s->data, KMSG_SEEN_NEW, KMSG_SEEN) < 0)
		ignore_result(beneath_remove(&s->data, KMSG_SEEN_NEW, false) /* written anew */);
}

static void save(struct kmsg *k)
{
	if (!k->saver || !k->any || !k->boot[0] || k->kind != DEVICE || k->saved == k->seq)
		return;
	if (reader_busy(k->saver)) {
		timer_arm(k->loop, &k->timer, loop_now(k->loop) + SAVE_NS);
		return;
	}
	snprintf(k->seen->text, sizeof(k->seen->text), "%s %" PRIu64 "\n", k->boot, k->seq);
	k->saved = k->seq;
	reader_ask(k->saver);
}

static void save_done(void *arg)
{
	(void)arg; /* the timer knows whether there is more */
}

static void free_seen(void *arg)
{
	struct seen *s = arg;

	beneath_close(&s->data);
	alloc_free(s);
}

static const struct reader_ops save_ops = {
	.run = save_run,
	.done = save_done,
	.free = free_seen,
};

static void start_saver(struct kmsg *k)
{
	struct seen *s = alloc_zero(sizeof(*s));

	if (!s)
		return;
	if (beneath_open(k->config->data, &s->data, NULL) < 0) {
		alloc_free(s);
		return;
	}
	if (reader_new(k->loop, "ckpt-kmsg", &save_ops, s, &k->saver) != 0)
		k->saver = NULL;
	else
		k->seen = s;
}

/* The number of the last one told in this boot; false: nothing is noted of it. */
static bool read_seen(const struct kmsg *k, uint64_t *ret)
{
	char text[80] = "", boot[48];
	struct beneath data;
	uint64_t seq;
	ssize_t n = -1;
	int fd;

	if (!k->boot[0] || beneath_open(k->config->data, &data, NULL) < 0)
		return false;
	fd = beneath_file(&data, KMSG_SEEN, O_RDONLY | O_NONBLOCK);
	beneath_close(&data);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	if (n <= 0)
		return false;
	if (sscanf(text, "%47s %20" SCNu64, boot, &seq) != 2 || strcmp(boot, k->boot) != 0)
		return false;
	*ret = seq;
	return true;
}

/* ---- Records ---- */

static bool is_old(const struct kmsg *k, const struct kmsg_record *r)
{
	uint64_t now_us = loop_now(k->loop) / 1000;

	if (k->kind != DEVICE)
		return false;
	if (k->any)
		return r->seq <= k->seq;
	return now_us > r->usec && now_us - r->usec > KMSG_YOUNG_NS / 1000;
}

static void take_record(struct kmsg *k, const char *text, size_t len)
{
	struct sample s = {.kind = SAMPLE_KERNEL,
			   .time_ns = loop_now(k->loop),
			   .job = SAMPLE_NONE,
			   .rank = SAMPLE_NONE,
			   .device = SAMPLE_NONE};
	struct kmsg_record r;

	if (kmsg_record_parse(text, len, &r) != 0 || is_old(k, &r))
		return;
	k->seq = r.seq;
	k->any = true;
	s.kernel.facility = r.facility;
	s.kernel.level = r.level;
	memcpy(s.kernel.text, r.text, sizeof(s.kernel.text));
	k->tell(k->arg, &s);
}

static void lost(struct kmsg *k, int error)
{
	watch_remove(k->loop, &k->watch);
	timer_disarm(k->loop, &k->timer);
	close(k->watch.fd);
	k->watch.fd = -1;
	err_code(&k->failure, error, "read kernel messages from '%s'", k->config->kmsg);
	log_print(k->log, LOG_WARNING, "going on without kernel messages: %s", k->failure.text);
}

/* Each read is one record. */
static void read_device(struct kmsg *k)
{
	for (int i = 0; i < RECORDS_MAX; i++) {
		ssize_t n = read(k->watch.fd, k->buf, sizeof(k->buf));

		if (n > 0) {
			take_record(k, k->buf, (size_t)n);
		} else if (n < 0 && errno == EPIPE) {
			k->overruns++;
			log_limited(k->log, &k->limit, loop_now(k->loop), LOG_WARNING,
				    "the kernel wrote more messages than its buffer holds before "
				    "they were read: some are lost");
		} else if (n < 0 && errno == EINVAL) {
			continue; /* longer than any: the next one comes */
		} else {
			if (n == 0 || errno != EAGAIN)
				lost(k, n == 0 ? -EPIPE : -errno);
			break;
		}
	}
	if (k->watch.fd >= 0 && !k->timer.armed && k->saved != k->seq)
		timer_arm(k->loop, &k->timer, loop_now(k->loop) + SAVE_NS);
}

/* Takes the lines that are whole; those that begin with a blank belong to the one before. */
static void take_lines(struct kmsg *k)
{
	char *at = k->buf, *end = k->buf + k->n, *newline;

	while ((newline = memchr(at, '\n', (size_t)(end - at)))) {
		if (!k->skip && newline > at && *at != ' ')
			take_record(k, at, (size_t)(newline - at));
		k->skip = false;
		at = newline + 1;
	}
	k->n = (size_t)(end - at);
	memmove(k->buf, at, k->n);
	if (k->n == sizeof(k->buf)) {
		k->skip = true;
		k->n = 0;
	}
}

/* Some bytes of a FIFO or file; false: there are no more now. */
static bool read_stream(struct kmsg *k)
{
	ssize_t n = read(k->watch.fd, k->buf + k->n, sizeof(k->buf) - k->n);

	if (n < 0 && errno != EAGAIN)
		lost(k, -errno);
	if (n <= 0)
		return false;
	k->n += (size_t)n;
	take_lines(k);
	return true;
}

static void readable(struct watch *w, uint32_t events)
{
	struct kmsg *k = container_of(w, struct kmsg, watch);

	(void)events;
	if (k->kind == DEVICE)
		read_device(k);
	else
		read_stream(k);
}

/* A file that was cut begins anew. */
static void read_plain(struct kmsg *k)
{
	off_t at = lseek(k->watch.fd, 0, SEEK_CUR);
	struct stat st;

	if (at >= 0 && fstat(k->watch.fd, &st) == 0 && st.st_size < at) {
		if (lseek(k->watch.fd, 0, SEEK_SET) != 0)
			return;
		k->n = 0;
		k->skip = false;
	}
	for (int i = 0; i < RECORDS_MAX && read_stream(k); i++)
		;
}

static void time_came(struct timer *t)
{
	struct kmsg *k = container_of(t, struct kmsg, timer);

	if (k->kind == DEVICE) {
		save(k);
		return;
	}
	read_plain(k);
	if (k->watch.fd >= 0)
		timer_arm(k->loop, t, loop_now(k->loop) + POLL_NS);
}

/* ---- Opening ---- */

static int open_failed(struct kmsg *k, int error)
{
	const char *why = error == -EPERM || error == -EACCES
				  ? ": ckptd needs CAP_SYSLOG where kernel.dmesg_restrict is 1"
			  : error == -ENOENT
				  ? ": it is not in this container, or detect.kmsg is wrong"
				  : "";

	return err_set(&k->failure, error, "open '%s': %s%s", k->config->kmsg, err_text(error),
		       why);
}

static int watch_it(struct kmsg *k)
{
	struct stat st;

	if (fstat(k->watch.fd, &st) != 0)
		return -errno;
	k->kind = S_ISCHR(st.st_mode) ? DEVICE : S_ISFIFO(st.st_mode) ? PIPE : PLAIN;
	if (k->kind == PLAIN) {
		if (!S_ISREG(st.st_mode))
			return -EINVAL;
		if (lseek(k->watch.fd, 0, SEEK_END) < 0)
			return -errno;
		timer_arm(k->loop, &k->timer, loop_now(k->loop) + POLL_NS);
		return 0;
	}
	if (k->kind == DEVICE && !k->any)
		k->any = read_seen(k, &k->seq); /* (1) */
	k->saved = k->seq;
	return watch_set(k->loop, &k->watch, EPOLLIN);
}

static int open_it(struct kmsg *k)
{
	struct stat st;
	/* A FIFO that is open for writing too does not end when its writers go. */
	bool fifo = stat(k->config->kmsg, &st) == 0 && S_ISFIFO(st.st_mode);
	int fd = open(k->config->kmsg,
		      (fifo ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC | O_NOCTTY),
	    r;

	if (fd < 0)
		return open_failed(k, -errno);
	k->n = 0;
	k->skip = false;
	watch_init(&k->watch, fd, readable);
	r = watch_it(k);
	if (r) {
		close(fd);
		k->watch.fd = -1;
		return open_failed(k, r);
	}
	err_clear(&k->failure);
	return 0;
}

void kmsg_try_again(struct kmsg *k)
{
	struct err before = k->failure;

	if (k->watch.fd >= 0)
		return;
	if (open_it(k) != 0) {
		if (strcmp(before.text, k->failure.text) != 0)
			log_print(k->log, LOG_WARNING, "going on without kernel messages: %s",
				  k->failure.text);
	} else if (before.code) {
		log_print(k->log, LOG_NOTICE, "kernel messages can be read again");
	}
}

int kmsg_new(struct loop *loop, struct log *log, const struct collect_config *config,
	     kmsg_tell_fn *tell, void *arg, struct kmsg **ret)
{
	struct kmsg *k = alloc_zero(sizeof(*k));

	assert(loop_is_current(loop));
	if (!k)
		return -ENOMEM;
	k->loop = loop;
	k->log = log;
	k->config = config;
	k->tell = tell;
	k->arg = arg;
	k->watch.fd = -1;
	timer_init(&k->timer, time_came);
	if (collect_text(k->boot, sizeof(k->boot), "%s/proc/sys/kernel/random/boot_id",
			 config->root) < 0 ||
	    strchr(k->boot, ' '))
		k->boot[0] = '\0';
	start_saver(k);
	kmsg_try_again(k);
	*ret = k;
	return 0;
}

void kmsg_free(struct kmsg *k)
{
	if (!k)
		return;
	assert(loop_is_current(k->loop));
	timer_disarm(k->loop, &k->timer);
	if (k->watch.fd >= 0) {
		watch_remove(k->loop, &k->watch);
		close(k->watch.fd);
	}
	save(k);
	timer_disarm(k->loop, &k->timer);
	ignore_result(reader_free(k->saver, SECOND / 5)); /* then it is told again */
	alloc_free(k);
}

bool kmsg_state(const struct kmsg *k, char text[ERR_TEXT_MAX])
{
	static const char *const kinds[] = {"device", "FIFO", "file"};

	if (k->watch.fd < 0)
		snprintf(text, ERR_TEXT_MAX, "%s", k->failure.text);
	else
		snprintf(text, ERR_TEXT_MAX, "%s '%s'%s", kinds[k->kind], k->config->kmsg,
			 k->overruns ? "; some messages were lost" : "");
	return k->watch.fd >= 0;
}
