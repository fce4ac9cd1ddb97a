/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live.c - the document of `status` from a running ckptd, and the choice between it and files.
 */
#include <config.h>

#include <errno.h>
#include <time.h>

#include "tools/connect.h"
#include "tools/ctl.h"
#include "tools/document.h"

bool ctl_offline(const struct ctl *c)
{
	return c->data && !c->socket;
}

/* What there is is not known while ckptd reads its jobs: looked at again, so long. */
enum { READY_TRIES = 100, READY_PAUSE_MS = 100 };

int live_document(const struct ctl *c, json_t **ret, struct err *e)
{
	struct admin_question q = { .verb = CKPT__ADMIN__VERB__STATUS };
	struct connection *conn = NULL;
	json_t *doc = NULL;
	int r = connection_open(c->socket, &conn, e);

	if (r == 0)
		r = connection_ask(conn, &q, &doc, e);
	connection_close(conn);
	if (r < 0)
		return r;
	if (!json_is_object(doc) || !json_is_array(json_object_get(doc, "jobs"))) {
		json_decref(doc);
		return err_set(e, CKPT_EPROTO, "ckptd's answer has no list of jobs: are ckptd and "
			       "ckptctl of one version?");
	}
	json_object_set_new(doc, "source", json_string("daemon"));
	*ret = doc;
	return 0;
}

static bool is_starting(const json_t *doc)
{
	return json_is_false(json_object_get(doc, "ready"));
}

static int ready_document(const struct ctl *c, json_t **ret, struct err *e)
{
	const struct timespec pause = {.tv_nsec = READY_PAUSE_MS * 1000000};
	int r = live_document(c, ret, e);

	for (int i = 0; i < READY_TRIES && r == 0 && is_starting(*ret); i++) {
		json_decref(*ret);
		*ret = NULL;
		nanosleep(&pause, NULL);
		r = live_document(c, ret, e);
	}
	if (r == 0 && is_starting(*ret))
		return err_set(e, -EAGAIN,
			       "ckptd is starting and still reads which jobs there are: ask again "
			       "when 'ckptctl status' has them");
	return r;
}

static int sorted_document(const struct ctl *c, const char *job, bool now, json_t **ret,
			   struct err *e)
{
	json_t *doc = NULL;
	int r = ctl_offline(c) ? files_document(c, &doc, e)
		: now          ? live_document(c, &doc, e)
			       : ready_document(c, &doc, e);

	if (r == 0 && job)
		r = doc_keep_job(doc, job, e);
	if (r == 0) {
		r = doc_sort(doc);
		if (r < 0)
			err_code(e, r, "sort the jobs");
	}
	if (r < 0) {
		json_decref(doc);
		return r;
	}
	*ret = doc;
	return 0;
}

int status_document(const struct ctl *c, const char *job, json_t **ret, struct err *e)
{
	return sorted_document(c, job, false, ret, e);
}

int status_now(const struct ctl *c, json_t **ret, struct err *e)
{
	return sorted_document(c, NULL, true, ret, e);
}
