/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making_place.c - a made checkpoint gets its place in jobs/.
 *
 * Whoever holds the data folder's LOCK moves it: a ckptd that runs is asked to adopt it, so that
 * nobody opens a job of that name meanwhile; without one the tool holds LOCK while it looks for
 * the name again and moves it, and the next start finds it like a job whose log was lost. That a
 * ckptd which has the folder can be asked is found out before anything is written.
 *
 * One thread.
 */
#include <config.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "storage/beneath.h"
#include "storage/disk_posix.h"
#include "tools/connect.h"
#include "tools/document.h"
#include "tools/files.h"
#include "tools/making_parts.h"

#define LOCK_TRIES   250
#define LOCK_WAIT_NS 20000000
#define LOCK_LONG_MS 10000 /* a ckptd that hangs is not asked as often */
#define LOOK_TRIES   50    /* one that was killed has given LOCK back by then */

static int say_taken(const struct making *m, struct err *e)
{
	return err_set(e, -EEXIST, "user %u has a job '%s' already in '%.150s': take another name",
		       m->o.uid, m->job, m->path);
}

int making_check_name(const struct making *m, struct err *e)
{
	struct data d;
	int r = data_open_again(m->disk, m->path, &d, e);

	if (r < 0)
		return r;
	r = data_read_jobs(&d, m->job, e);
	if (r == CKPT_ENOTFOUND)
		r = 0;
	for (size_t i = 0; i < d.n_jobs && r == 0; i++)
		if (d.jobs[i].uid == m->o.uid && !job_id_equal(&d.jobs[i].id, &m->id.job))
			r = say_taken(m, e);
	data_close(&d);
	if (r == 0)
		err_clear(e);
	return r;
}

/* ---- Without ckptd ---- */

/* -EBUSY: somebody has it. Who comes meanwhile is told what for. */
static int lock_data(struct making *m, struct disk_file **ret, struct err *e)
{
	char who[LOCK_WHO_MAX + 1];

	snprintf(who, sizeof(who), "ckptctl, which puts job '%s' into its place", m->job);
	return store_lock(m->store.disk, who, ret, e);
}

static int place_here(struct making *m, struct err *e)
{
	int r = making_check_name(m, e);

	return r < 0 ? r : staging_publish(&m->real, &m->id.job, e);
}

/* ---- With one ---- */

static int check_folder(struct making *m, struct connection *c, struct err *e)
{
	struct admin_question q = {.verb = CKPT__ADMIN__VERB__STATUS};
	json_t *doc = NULL;
	int r = connection_ask(c, &q, &doc, e);

	if (r == 0 && !data_is_same(doc_text(doc, "data"), m->path))
		r = err_set(e, CKPT_EUNAVAILABLE,
			    "the ckptd that answers has the folder '%.150s', not '%.150s'",
			    doc_text(doc, "data"), m->path);
	json_decref(doc);
	return r;
}

static int ask_ckptd(struct making *m, struct err *e)
{
	struct admin_question q = {.verb = CKPT__ADMIN__VERB__ADOPT, .timeout_ms = -1};
	struct connection *c = NULL;
	char hex[ID_TEXT_MAX];
	int r = connection_open(m->socket, &c, e);

	if (r == 0)
		r = check_folder(m, c, e);
	hex_format(hex, m->id.job.b, sizeof(m->id.job.b));
	q.job = hex;
	if (r == 0)
		r = connection_ask(c, &q, NULL, e);
	connection_close(c);
	if (r == 0)
		err_clear(e);
	return r;
}

/* 1: a process has LOCK that is no tool, which would give it back by itself; 0: none has it now.
 * Nothing is written, and no process is kept from it. */
static int is_locked(const struct making *m, struct err *e)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char text[LOCK_WHO_MAX + 32] = "";
	int fd = beneath_file(disk_posix_folder(m->disk), "LOCK", O_RDWR | O_CLOEXEC), r;

	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return err_code(e, fd, "cannot open LOCK of data folder '%.150s'", m->path);
	r = fcntl(fd, F_OFD_GETLK, &l) < 0
		    ? err_code(e, -errno, "look at LOCK of data folder '%.150s'", m->path)
		    : l.l_type != F_UNLCK;
	/* "PID" of a ckptd, "PID WHO" of a tool. */
	if (r == 1 && read(fd, text, sizeof(text) - 1) > 0)
		r = text[strcspn(text, " \n")] != ' ';
	close(fd);
	return r;
}

/* As ask_ckptd(), but nothing is asked of it yet. */
static int reach_ckptd(struct making *m, struct err *e)
{
	struct connection *c = NULL;
	int r = connection_open(m->socket, &c, e);

	if (r == 0)
		r = check_folder(m, c, e);
	connection_close(c);
	if (r == 0)
		err_clear(e);
	return r;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int making_check_ckptd(struct making *m, struct err *e)
{
	const struct timespec pause = {.tv_nsec = LOCK_WAIT_NS};
	int64_t until = now_ms() + LOCK_LONG_MS;
	int r, asked;

	for (int i = 0;; i++) {
		r = is_locked(m, e);
		if (r <= 0)
			return r;
		asked = reach_ckptd(m, e);
		if (asked == 0)
			return 0;
		if (i == LOOK_TRIES || now_ms() >= until)
			return err_wrap(e, asked,
					"data folder '%.150s' is in use, and nothing was written: "
					"whoever has it cannot be asked to take job '%s'",
					m->path, m->job);
		nanosleep(&pause, NULL); /* it may be ending, or starting */
	}
}

int making_place(struct making *m, struct err *e)
{
	const struct timespec pause = {.tv_nsec = LOCK_WAIT_NS};
	int64_t until = now_ms() + LOCK_LONG_MS;
	struct disk_file *lock = NULL;
	struct err why = {0};
	int r = lock_data(m, &lock, &why), asked = 0;

	/* Another tool may have it, or be having it adopted: both are soon done. */
	for (int i = 0; i < LOCK_TRIES && r == -EBUSY && (i == 0 || now_ms() < until); i++) {
		asked = ask_ckptd(m, e);
		if (asked == -EEXIST || asked == 0)
			return asked;
		if (asked != CKPT_EUNAVAILABLE && asked != -EAGAIN)
			break;
		nanosleep(&pause, NULL);
		r = lock_data(m, &lock, &why);
	}
	if (r == -EBUSY)
		return err_wrap(e, asked,
				"the ckptd that has '%.100s' did not take job '%s', which %s",
				m->path, m->job,
				m->o.keep ? "is written: the same command tries again"
					  : "is taken away again: nothing was made");
	if (r < 0) {
		*e = why;
		return err_wrap(e, r, "data folder '%.150s'", m->path);
	}
	err_clear(e);
	r = place_here(m, e);
	lock->disk->ops->close(lock);
	return r;
}
