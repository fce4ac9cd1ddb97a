/* SPDX-License-Identifier: Apache-2.0 */
/*
 * declaring.c - declarations: read, checked, shared by members and shards, written down.
 *
 *   CHECKING  what came in a memfd, up to DECLARATION_BYTES_MAX: a CHECK worker copies, digests and
 *             parses it; a message's own 64 KiB are done at once, in less than a millisecond. What
 *             is too long for a record (LEDGER_INLINE_MAX) lies in a region from here on
 *   WAITING   until the ledger has room for it and for all that comes (ledgering.c): the next
 *             region is on the way, and one more where that was sized without it
 *   over      the ledger and the member have it, and the session is answered
 *
 * The loop writes the record: one of at most LEDGER_INLINE_MAX bytes, or one that names the region
 * in which a long declaration lies. That region is its only copy. It is in the fd store before the
 * ledger names it; a worker destroys it after the last reference.
 *
 * A session has one under way. Failure modes: the session or its member has ended: the declaration
 * is dropped, with its region, and a worker that still checks it is cancelled (work.cancel). No
 * memory for the ledger's next region: the loop tries to make one itself, and answers with the
 * result. No memory or place for the declaration's own region: the answer says so, unless another
 * rank has declared the same by then. ckptd is killed before the ledger names the region: adoption
 * destroys it.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
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
	int fd;         /* -1: */
	void *bytes;    /* what the message had, until it is checked */
	uint64_t len;
	size_t inline_max;
	char name[REGION_NAME_MAX + 1]; /* of its region, if it gets one */
	bool verified;             /* its bytes are those of its digest */
	bool known;                /* the job had such a one when this began */
	struct declared *declared; /* CHECKING: private, or known; WAITING: a reference */
	bool asked;                /* for room in the ledger */
	bool placed;               /* CHECKING: counts a region that it may get */
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

/* Bytes of memory: the view points into d->bytes. */
static uint64_t declared_bytes(const struct declared *d)
{
	return sizeof(*d) + d->len;
}

/* A worker destroys its region. If only this process's memory is freed, the region stays for the
 * next process, and so does a stopped job's. */
static void declared_free(struct job *j, struct declared *d)
{
	if (!d)
		return;
	if (!d->region)
		alloc_free(d->bytes);
	else if (!j->freeing && !job_stopped(j))
		region_destroy_charged(j->node, j->history.job.uid, d->region,
				       (struct region_charge){d->user, 0});
	else if (d->user)
		user_give(d->user, USER_REGIONS, 1);
	if (!d->region || j->freeing || job_stopped(j))
		user_put(d->user);
	alloc_free(d);
}

uint64_t declared_record_bytes(const struct declared *d)
{
	return d->region ? ANNEX_RECORD_BYTES : d->len;
}

int declared_write(struct ledger *l, const struct declared *d)
{
	return d->region ? ledger_declaration_in(l, &d->digest, d->len, d->region->name)
			 : ledger_declaration(l, &d->digest, d->bytes, d->len);
}

void declared_name(struct job *j, char *buf, size_t size)
{
	char hex[ID_TEXT_MAX];

	hex_format(hex, j->history.job.id.b, sizeof(j->history.job.id.b));
	snprintf(buf, size, DECLARED_PREFIX "%s.%llu", hex,
		 (unsigned long long)j->next_declaration++);
}

void declared_unref(struct job *j, struct declared *d)
{
	if (d->refs > 1) {
		d->refs--;
		return;
	}
	list_del(&d->link);
	if (d->user)
		user_give(d->user, USER_DECLARATION_BYTES, declared_bytes(d));
	declared_free(j, d);
}

static int digest_check(const struct digest *digest, const void *bytes, size_t len, struct err *e)
{
	struct digest real = declaration_digest(bytes, len);

	return digest_equal(&real, digest)
		       ? 0
		       : err_set(e, CKPT_EPROTO,
				 "declaration: its bytes are not those of its digest");
}

/* Takes the bytes if it succeeds. Any thread: not shared yet. */
static int declared_make(const struct digest *digest, uint32_t leaf, void *bytes, size_t len,
			 const atomic_bool *cancel, struct declared **ret, struct err *e)
{
	struct declared *d = alloc_zero(sizeof(*d));
	int r;

	if (!d)
		return err_code(e, -ENOMEM, "declaration of %zu bytes", len);
	d->digest = *digest;
	d->bytes = bytes;
	d->len = len;
	d->refs = 1;
	list_init(&d->link);
	r = digest_check(digest, bytes, len, e);
	if (r == 0)
		r = cancel ? declaration_open_until(bytes, len, cancel, &d->view, e)
			   : declaration_open(bytes, len, &d->view, e);
	if (r == 0 && d->view.geometry.leaf != leaf)
		r = err_set(e, CKPT_EVERSION, "declaration: leaf of %u bytes, ckptd has %u",
			    d->view.geometry.leaf, leaf);
	if (r < 0) {
		alloc_free(d);
		return r;
	}
	d->element = declaration_element(&d->view);
	*ret = d;
	return 0;
}

int declared_adopt(struct job *j, const struct digest *digest, const void *bytes, size_t len,
		   struct region *region)
{
	void *own = region ? region->base : alloc_copy(bytes, len);
	struct declared *d;
	int r;

	if (!own)
		return -ENOMEM;
	r = declared_make(digest, j->node->options.geometry.leaf, own, len, NULL, &d, NULL);
	if (r < 0 && !region)
		alloc_free(own);
	if (r < 0)
		return r;
	d->region = region;
	/* Declared to an earlier ckptd: charged without a limit. */
	if (j->user) {
		d->user = user_ref(j->user);
		user_add(d->user, USER_DECLARATION_BYTES, declared_bytes(d));
		user_add(d->user, USER_REGIONS, d->region ? 1 : 0);
	}
	list_add_tail(&j->declared, &d->link);
	return 0;
}

/* ---- Declare ---- */

static void declaring_end(struct declaring *x, int status)
{
	if (status == -ECANCELED && x->job->node->stopping)
		; /* not answered: the next ckptd is asked */
	else if (status < 0)
		session_reply_error(x->session, x->request, status,
				    x->err.code ? x->err.text : NULL);
	else
		session_reply_ok(x->session, x->request);
	list_del(&x->link);
	if (x->asked)
		x->job->ledger_need -= declared_record_bytes(x->declared);
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

static bool is_news(const struct declaring *x, const struct member *m)
{
	return !m->declared || !digest_equal(&m->declared->digest, &x->digest);
}

/* Adds to what the ledger's next region must hold, ahead of its own turn: the region serves all
 * that wait. */
static void declaring_ask(struct declaring *x)
{
	struct job *j = x->job;

	x->asked = true;
	j->ledger_need += declared_record_bytes(x->declared);
	if (x->declared->region)
		j->ledger.annexes_wanted = true;
}

/* Goes on when the ledger has room, or will have none: then what it says is the answer. */
static void declaring_go(struct declaring *x)
{
	struct job *j = x->job;
	struct member *m;
	int r;

	m = declarer(x, &r);
	if (m && is_news(x, m)) {
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
	struct declaring *x = list_first(&j->declaring, struct declaring, link);

	if (!x)
		return;
	/* One in a call: each may write 64 KiB, or move a part of the ledger. */
	declaring_go(x);
	if (!list_empty(&j->declaring) && list_first(&j->declaring, struct declaring, link) != x)
		job_poke(j);
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

/* ---- Checking ---- */

static int check_read(struct declaring *x)
{
	int r;

	if (x->fd < 0)
		return 0;
	r = x->memory->ops->fd_to_bytes(x->memory, x->fd, DECLARATION_BYTES_MAX, &x->bytes,
					&x->len);
	/* On the worker: closing the last descriptor frees all its pages. */
	x->memory->ops->close_fd(x->memory, x->fd);
	if (r < 0)
		err_code(&x->err, r, "declare: read the declaration's memfd");
	return r;
}

/* Moves the bytes into a region, which is then their only copy. */
static int check_region(struct declaring *x, struct region **ret)
{
	char size[TEXT_SIZE_MAX];
	int r = x->memory->ops->create(x->memory, x->name, round_up(x->len, 4096), ret);

	if (r < 0)
		return err_set(&x->err, r == -ENOSPC ? CKPT_ENOSPACE : r,
			       "declare: keep a declaration of %s: %s", text_size(size, x->len),
			       memory_error_text(r));
	memcpy((*ret)->base, x->bytes, x->len);
	alloc_free(x->bytes);
	x->bytes = (*ret)->base;
	return 0;
}

/* After it the loop has no long buffer to free. */
static int check_bytes(struct declaring *x)
{
	struct region *region = NULL;
	int r = digest_check(&x->digest, x->bytes, x->len, &x->err);

	x->verified = r == 0;
	if (r == 0 && !x->known && x->len > x->inline_max)
		r = check_region(x, &region);
	if (r == 0 && !x->known)
		r = declared_make(&x->digest, x->leaf, x->bytes, x->len, &x->work.cancel,
				  &x->declared, &x->err);
	if (r == 0 && !x->known) {
		x->declared->region = region;
		x->bytes = NULL;
		return 0;
	}
	if (region)
		x->memory->ops->destroy(x->memory, region);
	else
		alloc_free(x->bytes);
	x->bytes = NULL;
	return r;
}

static void check_run(struct work *w)
{
	struct declaring *x = container_of(w, struct declaring, work);

	w->status = check_read(x);
	if (w->status == 0)
		w->status = check_bytes(x);
}

/* Charges its bytes, unless the job has an equal declaration: then it takes that one. */
static int declaring_share(struct declaring *x)
{
	struct declared *same = declared_get(x->job, &x->digest), *d = x->declared;
	struct user *u = session_user(x->session);
	int r = 0;

	if (same) {
		declared_free(x->job, d);
		x->declared = same;
		return 0;
	}
	r = user_take(u, USER_DECLARATION_BYTES, declared_bytes(d), "declare", &x->err);
	if (r < 0)
		return r; /* declaring_end() lets it go */
	user_add(u, USER_REGIONS, d->region ? 1 : 0);
	d->user = user_ref(u);
	list_add_tail(&x->job->declared, &d->link);
	return 0;
}

static void checked(struct declaring *x, int status)
{
	struct declared *same = NULL;

	if (x->placed)
		user_give(session_user(x->session), USER_REGIONS, 1);
	x->placed = false;
	if (status == 0 && job_stopped(x->job))
		status = err_set(&x->err, CKPT_ESTOPPED, "%s", x->job->defect_text);
	if (status < 0 && status != CKPT_ESTOPPED && x->verified)
		same = declared_get(x->job, &x->digest); /* so it needs no memory of its own */
	if (status < 0 && !same) {
		declaring_end(x, status);
		return;
	}
	x->err.code = 0;
	if (same)
		x->declared = same;
	status = same || x->known ? 0 : declaring_share(x);
	if (status < 0) {
		declaring_end(x, status);
		return;
	}
	list_add_tail(&x->job->declaring, &x->link);
	declaring_ask(x);
	if (list_first(&x->job->declaring, struct declaring, link) == x)
		declaring_go(x);
}

static void check_done(struct work *w)
{
	struct declaring *x = container_of(w, struct declaring, work);

	struct job *j = x->job;

	session_use(x->session)->checking = NULL;
	checked(x, w->status);
	j->works--;
}

void declaring_drop(struct session *s)
{
	struct work *w = session_use(s)->checking;

	if (w)
		atomic_store_explicit(&w->cancel, true, memory_order_relaxed);
}

/* Takes a place in the fd store for a region that it may get: the length of a memfd is not known
 * yet. */
static int take_place(struct declaring *x, struct err *e)
{
	struct user *u = session_user(x->session);
	int r;

	if (x->known)
		return 0;
	r = user_may_store(u, 1, "declare: a long declaration", e);
	if (r < 0)
		return r;
	user_add(u, USER_REGIONS, 1);
	x->placed = true;
	return 0;
}

int declaring_start(struct session *s, uint64_t request, const struct digest *digest,
		    const struct declare_bytes *b, struct err *e)
{
	struct member *m = session_member(s);
	struct node *n = m->job->node;
	bool is_short = b->fd < 0 && b->len <= n->options.ledger_inline;
	struct declaring *x;
	int r;

	if (session_use(s)->declaring)
		return err_set(e, CKPT_ESTATE, "declare: another one of this session is under way");
	if (n->stopping) { /* not answered: the next ckptd is asked */
		if (b->fd >= 0)
			node_close_unsent(n, session_process(s)->uid, &b->fd, 1);
		return 0;
	}
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
	x->inline_max = n->options.ledger_inline;
	x->fd = b->fd;
	x->len = b->fd < 0 ? b->len : 0;
	x->bytes = b->fd < 0 ? alloc_copy(b->bytes, b->len) : NULL;
	x->declared = declared_get(x->job, digest);
	x->known = x->declared != NULL;
	r = b->fd < 0 && !x->bytes ? err_code(e, -ENOMEM, "declare")
	    : is_short             ? 0
				   : take_place(x, e);
	if (r < 0) {
		if (x->declared)
			declared_unref(x->job, x->declared);
		session_unref(s);
		alloc_free(x->bytes);
		alloc_free(x);
		return r;
	}
	session_use(s)->declaring = true;
	if (is_short) {
		checked(x, check_bytes(x));
		return 0;
	}
	declared_name(x->job, x->name, sizeof(x->name));
	x->work.run = check_run;
	x->work.done = check_done;
	session_use(s)->checking = &x->work;
	x->job->works++;
	work_submit(n->env.workers, WORK_CHECK, session_process(s)->uid, &x->work);
	return 0;
}
