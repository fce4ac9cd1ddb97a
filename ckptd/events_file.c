/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events_file.c - events in the data folder: EVENTS_FILE, and the one before it, EVENTS_FILE_OLD.
 *
 * Lines of JSON. They are appended as they come and not synced: nobody waits for them, a crash of
 * ckptd loses what was on its way, one of the machine the last seconds. A file that has grown to
 * EVENTS_FILE_BYTES takes the place of the old one. Whatever is not a whole line of ours is passed
 * over when they are read; so each batch begins with a newline, which ends what a crash tore.
 *
 * Failure modes: a batch that could not be written is lost for the file, and said once.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ckptd/events_priv.h"
#include "ckptd/node_priv.h"

#define PENDING_MAX (256u << 10)

/* ---- Writing ---- */

/* On a worker. */
static void write_run(struct work *w)
{
	struct events *ev = container_of(w, struct events, work);
	struct disk *d = ev->node->env.disk;
	struct disk_file *f = NULL;
	uint64_t size = 0;
	int r = d->ops->open(d, EVENTS_FILE, DISK_CREATE, &f);

	if (r == 0)
		r = d->ops->size(f, &size);
	if (r == 0)
		r = d->ops->write(f, ev->writing.bytes, ev->writing.len, size);
	if (f)
		d->ops->close(f);
	if (r == 0 && size + ev->writing.len >= EVENTS_FILE_BYTES)
		r = d->ops->rename(d, EVENTS_FILE, EVENTS_FILE_OLD);
	w->status = r;
}

static void write_start(struct events *ev);

static void write_done(struct work *w)
{
	struct events *ev = container_of(w, struct events, work);
	struct node *n = ev->node;
	char line[160];

	assert(ev->busy);
	ev->busy = false;
	n->works--;
	if (w->status < 0 && !ev->failed) {
		snprintf(line, sizeof(line),
			 "what happens cannot be kept in the data folder (%s): it is in the log, "
			 "and in 'ckptctl events' until ckptd ends",
			 err_text(w->status));
		n->env.log(n->env.log_arg, 4, NULL, line);
	}
	ev->failed = w->status < 0;
	alloc_free(ev->writing.bytes);
	ev->writing = (struct event_bytes){0};
	write_start(ev);
	node_stop_step(n);
}

static void write_start(struct events *ev)
{
	if (ev->busy || ev->pending.len == 0)
		return;
	ev->writing = ev->pending;
	ev->pending = (struct event_bytes){0};
	ev->busy = true;
	ev->node->works++;
	ev->work.run = write_run;
	ev->work.done = write_done;
	work_submit(ev->node->env.workers, WORK_META, FAIR_NODE, &ev->work);
}

void events_write(struct events *ev, const struct event *e)
{
	struct event_bytes *p = &ev->pending;
	size_t len = strlen(e->line);
	char *bytes;

	if (p->len + len + 2 > PENDING_MAX)
		return;
	bytes = alloc_resize(p->bytes, p->len + len + 2);
	if (!bytes)
		return;
	p->bytes = bytes;
	if (p->len == 0)
		p->bytes[p->len++] = '\n';
	memcpy(p->bytes + p->len, e->line, len);
	p->len += len;
	p->bytes[p->len++] = '\n';
	write_start(ev);
}

void events_file_init(struct events *ev)
{
	list_init(&ev->work.link);
}

void events_file_fini(struct events *ev)
{
	assert(!ev->busy || ev->writing.bytes);
	alloc_free(ev->pending.bytes);
	alloc_free(ev->writing.bytes);
}

bool events_written(const struct events *ev)
{
	return !ev->busy && ev->pending.len == 0;
}

/* ---- Reading ---- */

static bool number_of(const json_t *o, const char *key, uint64_t *ret)
{
	const json_t *v = json_object_get(o, key);

	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return false;
	*ret = (uint64_t)json_integer_value(v);
	return true;
}

/* A line that is an event of ours, with a number above all before it. */
static void take_line(struct events_found *f, size_t *n, const char *line, size_t len)
{
	json_t *o = len > 0 && len < EVENTS_LINE_MAX
			    ? json_loadb(line, len, JSON_REJECT_DUPLICATES, NULL)
			    : NULL;
	struct event head = {.uid = EVENT_FOR_ALL};
	struct event *e;
	uint64_t uid;
	char *text;

	if (o && json_is_object(o) && number_of(o, "seq", &head.seq) &&
	    number_of(o, "time_ns", &head.wall_ns) && head.seq >= f->next && head.seq < INT64_MAX) {
		if (number_of(o, "uid", &uid) && uid < EVENT_FOR_ALL)
			head.uid = (uint32_t)uid;
		text = alloc_copy(line, len + 1);
		if (text)
			text[len] = '\0';
		e = event_new(&head, text, o);
		if (e) {
			list_add_tail(&f->list, &e->link);
			f->next = head.seq + 1;
			(*n)++;
		}
	}
	json_decref(o);
	if (*n > EVENTS_KEPT) {
		event_drop(container_of(f->list.next, struct event, link));
		(*n)--;
	}
}

static void read_file(struct disk *d, const char *path, struct events_found *ret, size_t *n)
{
	CLEANUP_FREE char *bytes = NULL;
	struct disk_file *f = NULL;
	uint64_t size = 0, from;
	size_t len = 0;

	if (d->ops->open(d, path, DISK_READ, &f) < 0)
		return;
	/* A batch may have made it longer than it is allowed to grow. */
	if (d->ops->size(f, &size) == 0 && size > 0) {
		from = size > 2 * EVENTS_FILE_BYTES ? size - 2 * EVENTS_FILE_BYTES : 0;
		len = (size_t)(size - from);
		bytes = alloc_zero(len + 1);
		if (!bytes || d->ops->read(f, bytes, len, from) < 0)
			len = 0;
	}
	d->ops->close(f);
	for (size_t at = 0; at < len;) {
		const char *end = memchr(bytes + at, '\n', len - at);
		size_t line = end ? (size_t)(end - (bytes + at)) : len - at;

		take_line(ret, n, bytes + at, line);
		at += line + 1;
	}
}

void events_scan(struct disk *disk, struct events_found *ret)
{
	size_t n = 0;

	list_init(&ret->list);
	ret->next = 1;
	read_file(disk, EVENTS_FILE_OLD, ret, &n);
	read_file(disk, EVENTS_FILE, ret, &n);
}

void events_found_free(struct events_found *f)
{
	struct event *e, *next;

	list_each_safe(e, next, &f->list, link)
		event_drop(e);
}
