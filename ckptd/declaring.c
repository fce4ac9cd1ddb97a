/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declaring.c - declarations: read, checked, shared by members and shards, written down.
 *
 *   CHECKING  what came in a memfd, up to DECLARATION_BYTES_MAX: a CPU worker copies, digests and
 *             parses it; a message's own 64 KiB are done at once, in less than a millisecond
 *   WAITING   until the ledger has room for it and for all that comes (ledgering.c): the next
 *             region is on the way, and one more where that was sized without it
 *   over      it is in the ledger and the member's, and the session is told
 *
 * Writing it down stays on the loop: copying and digesting in memory, 0.3 s a GiB, so less than
 * 0.1 s. A session has one under way. Failure modes: the session or its member went meanwhile: it
 * is forgotten. No memory for the region: the loop tries for one itself, and that is the answer.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>

#include "base/alloc.h"
#include "ckptd/job.h"
#include "ckptd/node_priv.h"
#include "ckptd/session.h"

struct declaring {
	struct work work;
	struct list link; /* in job->declaring, WAITING */
	struct job *job;
	struct memory *memory;
	struct session *session;
	uint64_t request;
	struct digest digest;
	uint32_t leaf;
	int fd;
	struct declared *declared; /* CHECKING: nobody else's; WAITING: a reference */
	bool asked;                /* for room in the ledger */
	struct err err;
};

/* ---- Shared ones ---- */

struct declared *declared_get(struct job *j, const struct digest *digest)
{
	struct declared *d;

	list_each(d, &j->declared, link) {
		if (digest_equal(&d->digest, digest)) {
			d->refs++;
			return d;
		}
	}
	return NULL;
}

static void declared_free(struct declared *d)
{
	if (!d)
		return;
	alloc_free(d->bytes);
	alloc_free(d);
}

void declared_unref(struct job *j, struct declared *d)
{
	(void)j;
	if (d->refs > 1) {
		d->refs--;
		return;
	}
	list_del(&d->link);
	declared_free(d);
}

/* Checks the bytes and takes them, whatever happens. Anywhere: it is nobody else's yet. */
static int declared_make(const struct digest *digest, uint32_t leaf, void *bytes, size_t len,
			 struct declared **ret, struct err *e)
{
	struct digest real = declaration_digest(bytes, len);
	struct declared *d = alloc_zero(sizeof(*d));
	int r;

	if (!d) {
		alloc_free(bytes);
		return err_code(e, -ENOMEM, "declaration of %zu bytes", len);
	}
	d->digest = *digest;
	d->bytes = bytes;
	d->len = len;
	d->refs = 1;
	list_init(&d->link);
	if (!digest_equal(&real, digest))
		r = err_set(e, CKPT_EPROTO, "declaration: its bytes are not those of its digest");
	else
		r = declaration_open(bytes, len, &d->view, e);
	if (r == 0 && d->view.geometry.leaf != leaf)
		r = err_set(e, CKPT_EVERSION, "declaration: leaf of %u bytes, ckptd has %u",
			    d->view.geometry.leaf, leaf);
	if (r < 0) {
		declared_free(d);
		return r;
	}
	*ret = d;
	return 0;
}

/* Puts it among the others, unless one like it is there: then that one. */
static struct declared *declared_share(struct job *j, struct declared *d)
{
	struct declared *same = declared_get(j, &d->digest);

	if (same) {
		declared_free(d);
		return same;
	}
	list_add_tail(&j->declared, &d->link);
	return d;
}

int declared_put(struct job *j, const struct digest *digest, const void *bytes, size_t len,
		 struct declared **ret, struct err *e)
{
	struct declared *d = declared_get(j, digest);
	void *copy = d ? NULL : alloc_copy(bytes, len);
	int r = 0;

	if (!d && !copy)
		return err_code(e, -ENOMEM, "declaration of %zu bytes", len);
	if (!d)
		r = declared_make(digest, j->node->options.geometry.leaf, copy, len, &d, e);
	if (r == 0)
		*ret = copy ? declared_share(j, d) : d;
	return r;
}

/* ---- Declare ---- */

static void declaring_end(struct declaring *x, int status)
{
	if (status < 0)
		session_reply_error(x->session, x->request, status,
				    x->err.code ? x->err.text : NULL);
	else
		session_reply_ok(x->session, x->request);
	list_del(&x->link);
	if (x->asked)
		x->job->ledger_need -= x->declared->len;
	if (x->declared)
		declared_unref(x->job, x->declared);
	session_use(x->session)->declaring = false;
	session_unref(x->session);
	alloc_free(x);
}

/* Its member, if it still may declare. */
static struct member *declarer(struct declaring *x, int *ret_status)
{
	struct member *m = session_member(x->session);

	if (!m || m->job != x->job)
		*ret_status = err_set(&x->err, CKPT_EEPOCH,
				      "declare: the rank was taken over "
				      "meanwhile; open first");
	else if (!m->declared || !digest_equal(&m->declared->digest, &x->digest))
		*ret_status = member_may_declare(m, &x->err);
	else
		*ret_status = 0;
	return *ret_status < 0 ? NULL : m;
}

/* Goes on when the ledger has room, or will have none: then what it says is the answer. */
static void declaring_go(struct declaring *x)
{
	struct job *j = x->job;
	struct member *m;
	int r;

	m = declarer(x, &r);
	if (m && (!m->declared || !digest_equal(&m->declared->digest, &x->digest))) {
		if (!x->asked) {
			x->asked = true;
			j->ledger_need += x->declared->len;
		}
		/* Each time: the region that came may have been sized before this one did. */
		ledgering_step(j);
		if (ledgering_short(j))
			return; /* WAITING */
		r = member_declare(m, x->declared, &x->err);
		if (r == 0)
			x->declared->refs++;
	}
	declaring_end(x, r);
}

void declaring_step(struct job *j)
{
	struct declaring *x, *next;

	list_each_safe(x, next, &j->declaring, link)
		declaring_go(x);
}

void declaring_fini(struct job *j)
{
	while (!list_empty(&j->declaring)) {
		struct declaring *x = list_first(&j->declaring, struct declaring, link);

		declaring_end(x, job_stopped(j) ? err_set(&x->err, CKPT_ESTOPPED, "%s",
							  j->defect_text)
						: -ECANCELED);
	}
}

static void check_run(struct work *w)
{
	struct declaring *x = container_of(w, struct declaring, work);
	void *bytes = NULL;
	uint64_t len = 0;
	int r = x->memory->ops->fd_to_bytes(x->memory, x->fd, DECLARATION_BYTES_MAX, &bytes, &len);

	if (r < 0)
		err_code(&x->err, r, "declare: read the declaration's memfd");
	else
		r = declared_make(&x->digest, x->leaf, bytes, len, &x->declared, &x->err);
	w->status = r;
}

static void checked(struct declaring *x, int status)
{
	if (status == 0 && job_stopped(x->job))
		status = err_set(&x->err, CKPT_ESTOPPED, "%s", x->job->defect_text);
	if (status < 0) {
		declaring_end(x, status);
		return;
	}
	x->declared = declared_share(x->job, x->declared);
	list_add_tail(&x->job->declaring, &x->link);
	declaring_go(x);
}

static void check_done(struct work *w)
{
	struct declaring *x = container_of(w, struct declaring, work);

	x->memory->ops->close_fd(x->memory, x->fd);
	checked(x, w->status);
}

int declaring_start(struct session *s, uint64_t request, const struct digest *digest,
		    const struct declare_bytes *b, struct err *e)
{
	struct member *m = session_member(s);
	struct node *n = m->job->node;
	struct declaring *x;
	void *copy;

	if (session_use(s)->declaring)
		return err_set(e, CKPT_ESTATE, "declare: another one of this session is under way");
	x = alloc_zero(sizeof(*x));
	if (!x)
		return err_code(e, -ENOMEM, "declare");
	list_init(&x->link);
	x->job = m->job;
	x->memory = n->env.memory;
	x->session = session_ref(s);
	x->request = request;
	x->digest = *digest;
	x->leaf = n->options.geometry.leaf;
	session_use(s)->declaring = true;
	if (b->fd >= 0) {
		x->fd = b->fd;
		x->work.run = check_run;
		x->work.done = check_done;
		work_submit(n->env.workers, WORK_CPU, &x->work);
		return 0;
	}
	copy = alloc_copy(b->bytes, b->len);
	checked(x, copy ? declared_make(digest, x->leaf, copy, b->len, &x->declared, &x->err)
			: err_code(&x->err, -ENOMEM, "declare"));
	return 0;
}
