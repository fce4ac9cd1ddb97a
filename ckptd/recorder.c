/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recorder.c - see recorder.h.
 */
#include <config.h>

#include "ckptd/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/log.h"
#include "detect/trace.h"

#define WRITE_AT (64u << 10) /* bytes that a worker is worth */

struct bytes {
	char *at;
	size_t len, cap;
};

struct recorder {
	struct workers *workers;
	struct log *log;
	struct work work;
	int fd;
	uint64_t size; /* of the file, with what is being written */
	struct bytes waiting, writing;
	bool busy, full; /* full: said */
};

static int write_all(int fd, const char *p, size_t len)
{
	while (len) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

/* On a worker. */
static void write_run(struct work *w)
{
	struct recorder *r = container_of(w, struct recorder, work);

	w->status = write_all(r->fd, r->writing.at, r->writing.len);
}

static void write_done(struct work *w)
{
	struct recorder *r = container_of(w, struct recorder, work);

	if (w->status < 0 && !r->full) {
		r->full = true;
		log_print(r->log, LOG_WARNING, "detect.record: %s: nothing more is recorded",
			  err_text(w->status));
	}
	r->busy = false;
	r->writing.len = 0;
}

static void leave_out(struct recorder *r, const char *why)
{
	if (!r->full)
		log_print(r->log, LOG_WARNING, "detect.record: %s: nothing more is recorded", why);
	r->full = true;
}

static bool make_room(struct bytes *b, size_t len)
{
	size_t cap = b->cap ? b->cap : 2 * WRITE_AT;
	char *more;

	while (cap < b->len + len)
		cap *= 2;
	if (cap == b->cap)
		return true;
	more = cap <= RECORDER_WAITS_MAX ? alloc_resize(b->at, cap) : NULL;
	if (!more)
		return false;
	b->at = more;
	b->cap = cap;
	return true;
}

void recorder_put(void *recorder, const struct sample *s)
{
	struct recorder *r = recorder;
	struct trace_record t = {.sample = *s};
	struct bytes b;

	if (r->full)
		return;
	if (r->size >= RECORDER_FILE_MAX || !make_room(&r->waiting, TRACE_LINE_MAX)) {
		leave_out(r, r->size >= RECORDER_FILE_MAX ? "the file is as long as it may be"
							  : "the disk does not keep up");
		return;
	}
	r->waiting.len += trace_format(&t, r->waiting.at + r->waiting.len);
	r->waiting.at[r->waiting.len++] = '\n';
	if (r->busy || r->waiting.len < WRITE_AT)
		return;
	b = r->writing;
	r->writing = r->waiting;
	r->waiting = b;
	r->size += r->writing.len;
	r->busy = true;
	r->work.run = write_run;
	r->work.done = write_done;
	work_submit(r->workers, WORK_META, &r->work);
}

int recorder_new(struct workers *workers, struct log *log, const char *path, struct recorder **ret,
		 struct err *e)
{
	struct recorder *r = alloc_zero(sizeof(*r));
	struct stat st;

	if (!r)
		return err_code(e, -ENOMEM, "record samples");
	r->workers = workers;
	r->log = log;
	list_init(&r->work.link);
	r->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
		     0600);
	if (r->fd < 0 || fstat(r->fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		int err = r->fd < 0 ? -errno : -EINVAL;

		if (r->fd >= 0)
			close(r->fd);
		alloc_free(r);
		return err_code(e, err, "detect.record: open file '%s'", path);
	}
	r->size = (uint64_t)st.st_size;
	*ret = r;
	return 0;
}

void recorder_free(struct recorder *r)
{
	if (!r)
		return;
	if (!r->full && r->waiting.len)
		ignore_result(write_all(r->fd, r->waiting.at, r->waiting.len) /* it is the end */);
	close(r->fd);
	alloc_free(r->waiting.at);
	alloc_free(r->writing.at);
	alloc_free(r);
}
