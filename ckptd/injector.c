/* SPDX-License-Identifier: Apache-2.0 */
/*
 * injector.c - samples from a FIFO, for tests of what follows from verdicts: recorder.h. Whoever
 * may write to it can make ckptd believe anything, so only builds with fault injection open one.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "ckptd/log.h"
#include "ckptd/loop_epoll.h"
#include "ckptd/node.h"
#include "ckptd/recorder.h"
#include "detect/trace.h"

struct injector {
	struct loop *loop;
	struct log *log;
	struct node *node;
	struct watch watch;
	char line[2 * TRACE_LINE_MAX];
	size_t len;
};

static void take_line(struct injector *i, const char *line, size_t len)
{
	struct trace_record t;
	const char *why = "it is a label";
	int r = trace_parse(line, len, &t, &why);

	if (r < 0 || t.is_label) {
		log_print(i->log, LOG_WARNING, "detect.inject: '%.*s': %s", (int)len, line, why);
		return;
	}
	t.sample.time_ns = 0; /* now */
	node_sample(i->node, &t.sample);
}

static void ready(struct watch *w, uint32_t events)
{
	struct injector *i = container_of(w, struct injector, watch);
	char *end;
	ssize_t n;

	(void)events;
	n = read(w->fd, i->line + i->len, sizeof(i->line) - i->len);
	if (n > 0)
		i->len += (size_t)n;
	while ((end = memchr(i->line, '\n', i->len))) {
		size_t len = (size_t)(end - i->line);

		if (len > 0)
			take_line(i, i->line, len);
		i->len -= len + 1;
		memmove(i->line, end + 1, i->len);
	}
	if (i->len == sizeof(i->line))
		i->len = 0; /* no line is that long */
}

int injector_new(struct loop *loop, struct log *log, const char *path, struct node *node,
		 struct injector **ret, struct err *e)
{
	struct injector *i = alloc_zero(sizeof(*i));
	struct stat st;
	int r;

	if (!i)
		return err_code(e, -ENOMEM, "inject samples");
	i->loop = loop;
	i->log = log;
	i->node = node;
	/* For writing too: then it has no end when the last writer goes. */
	watch_init(&i->watch, open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK), ready);
	r = i->watch.fd < 0 || fstat(i->watch.fd, &st) < 0 ? -errno : 0;
	if (r == 0 && !S_ISFIFO(st.st_mode))
		r = -EINVAL;
	if (r == 0)
		r = watch_set(loop, &i->watch, EPOLLIN);
	if (r < 0) {
		if (i->watch.fd >= 0)
			close(i->watch.fd);
		alloc_free(i);
		return err_code(e, r, "detect.inject: open FIFO '%s'", path);
	}
	*ret = i;
	return 0;
}

void injector_free(struct injector *i)
{
	if (!i)
		return;
	watch_remove(i->loop, &i->watch);
	close(i->watch.fd);
	alloc_free(i);
}
