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

#define WRITE_AT       (64u << 10)  /* bytes that a worker is worth */
#define WRITE_AFTER_NS 10000000000u /* or less, after so long: people look at it meanwhile */

struct bytes {
	char *at;
	size_t len, cap;
};

struct recorder {
	struct workers *workers;
	struct log *log;
	struct work work;
	int fd;
	uint64_t size;       /* of the file, with what is being written */
	bool begun;          /* a line was put in this life of ckptd */
	uint64_t written_ns; /* time of the last sample that was handed on */
	uint64_t last_ns;    /* of the line that was there before; 0: none */
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

static void add(struct recorder *r, const struct trace_record *t)
{
	r->waiting.len += trace_format(t, r->waiting.at + r->waiting.len);
	r->waiting.at[r->waiting.len++] = '\n';
}

/* What is there already is of a ckptd before this one: nobody looked in between. */
static void begin(struct recorder *r, uint64_t now_ns)
{
	struct trace_record gap = {.is_label = true,
				   .label = {.kind = LABEL_GAP, .time_ns = now_ns}};

	if (r->size > 0) {
		add(r, &gap);
		return;
	}
	memcpy(r->waiting.at, TRACE_FIRST_LINE, strlen(TRACE_FIRST_LINE));
	r->waiting.len = strlen(TRACE_FIRST_LINE);
}

void recorder_put(void *recorder, const struct sample *s)
{
	struct recorder *r = recorder;
	struct trace_record t = {.sample = *s};
	struct bytes b;

	if (r->full)
		return;
	if (s->time_ns < r->last_ns) {
		leave_out(r, "what the file has is from before the machine was started, and times "
			     "would go back: move it away");
		return;
	}
	if (r->size >= RECORDER_FILE_MAX || !make_room(&r->waiting, 2 * TRACE_LINE_MAX)) {
		leave_out(r, r->size >= RECORDER_FILE_MAX ? "the file is as long as it may be"
							  : "the disk does not keep up");
		return;
	}
	if (!r->begun)
		begin(r, s->time_ns);
	r->begun = true;
	add(r, &t);
	if (r->busy || (r->waiting.len < WRITE_AT && s->time_ns < r->written_ns + WRITE_AFTER_NS))
		return;
	r->written_ns = s->time_ns;
	b = r->writing;
	r->writing = r->waiting;
	r->waiting = b;
	r->size += r->writing.len;
	r->busy = true;
	r->work.run = write_run;
	r->work.done = write_done;
	work_submit(r->workers, WORK_META, FAIR_NODE, &r->work);
}

/* The time of the last record among these lines; people add empty ones and comments. */
static int last_time(const char *lines, const char *end, uint64_t *ret)
{
	struct trace_record t;
	const char *line, *why;

	for (; end > lines; end = line - 1) {
		line = memrchr(lines, '\n', (size_t)(end - lines));
		line = line ? line + 1 : lines;
		if (line == end || line[0] == '#')
			continue;
		if (trace_parse(line, (size_t)(end - line), &t, &why) < 0)
			return -EINVAL;
		*ret = trace_time(&t);
		return 0;
	}
	return -EINVAL;
}

/* A file that was there: it is a trace, the time of its last record is known, and a line that was
 * not written to its end, when a ckptd was killed, is taken away. */
static int go_on(struct recorder *r)
{
	const size_t first = strlen(TRACE_FIRST_LINE);
	char head[sizeof(TRACE_FIRST_LINE)], tail[2 * TRACE_LINE_MAX];
	uint64_t from = r->size > sizeof(tail) ? r->size - sizeof(tail) : 0;
	ssize_t n = pread(r->fd, head, first, 0);
	const char *end;

	if (n != (ssize_t)first || memcmp(head, TRACE_FIRST_LINE, first) != 0)
		return -EINVAL;
	n = pread(r->fd, tail, sizeof(tail), (off_t)from);
	end = n > 0 ? memrchr(tail, '\n', (size_t)n) : NULL;
	if (!end)
		return -EINVAL;
	r->size = from + (uint64_t)(end - tail) + 1;
	if (ftruncate(r->fd, (off_t)r->size) < 0)
		return -errno;
	return r->size == first ? 0 : last_time(from ? tail : tail + first, end, &r->last_ns);
}

static int open_file(struct recorder *r, const char *path)
{
	struct stat st;

	r->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (r->fd < 0 || fstat(r->fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	r->size = (uint64_t)st.st_size;
	return r->size ? go_on(r) : 0;
}

int recorder_new(struct workers *workers, struct log *log, const char *path, struct recorder **ret,
		 struct err *e)
{
	struct recorder *r = alloc_zero(sizeof(*r));
	int error;

	if (!r)
		return err_code(e, -ENOMEM, "record samples");
	r->workers = workers;
	r->log = log;
	list_init(&r->work.link);
	error = open_file(r, path);
	if (error < 0) {
		if (r->fd >= 0)
			close(r->fd);
		alloc_free(r);
		return error == -EINVAL ? err_set(e, error,
						  "detect.record: file '%s' is there and is no "
						  "trace: nothing is added to it",
						  path)
					: err_code(e, error, "detect.record: open file '%s'", path);
	}
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
