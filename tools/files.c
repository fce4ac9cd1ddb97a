/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c - jobs and checkpoints of a data folder, from COMMIT files and logs.
 *
 * A daemon may work beside this: what is found may have gone a moment later. That never makes a
 * problem out of a good checkpoint, because (1) COMMIT is published after its commit record, so a
 * log that is read later knows it, and (2) a free record comes before COMMIT goes, so what the log
 * freed is expiring. One thread.
 */
#include <config.h>

#include "tools/files.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/near.h"
#include "coord/single.h"
#include "model/attempt.h"
#include "storage/commit_rebuild.h"
#include "storage/disk_posix.h"
#include "storage/folder_id.h"
#include "storage/recover.h"
#include "tools/document.h"
#include "tools/job_name.h"

/* For the user of a job whose files are ckptd's: a path that is too long may cut it. */
#define OTHER_WAYS                                                                                 \
	"; ask whoever runs ckptd, or read your own job through it (ckpt://, ckpt_stored_open(3))"
#define LOOK_AGAIN_MS 100
#define LOOKS 50 /* for what is being published in a whole folder */
#define TRIM_TRIES 10 /* a log that is trimmed while it is read is read again */

/* ---- The folder ---- */

bool data_is_there(const char *folder)
{
	struct beneath b;
	bool there;

	if (beneath_open(folder, &b, NULL) < 0)
		return false;
	there = beneath_access(&b, "FORMAT", F_OK) == 0;
	beneath_close(&b);
	return there;
}

/*
 * Whether the name leads here to the folder that ckptd works in, whose id is `id`: ckptd may see
 * another mount there, as under a unit of systemd's after an unmount. What cannot be read is said
 * by whoever opens it.
 */
static int check_is_ckptds(const char *path, const char *id, struct err *e)
{
	char here[FOLDER_ID_TEXT] = "none";
	struct disk *d;
	uint64_t n;
	int r = id[0] ? disk_posix_open(path, "threads", &d, NULL) : -ENOENT;

	if (r < 0)
		return 0;
	r = folder_id_read(d, &n);
	disk_posix_close(d);
	if (r == 0)
		folder_id_text(here, n);
	if (strcmp(here, id) == 0 || (r < 0 && r != -ENOENT && r != CKPT_ECORRUPT))
		return 0;
	return err_set(e, -EXDEV,
		       "folder '%.150s' is not the one that ckptd works in (its id is %s, ckptd's "
		       "folder has %s): ckptd sees another file system there, which is not mounted "
		       "here: mount it again, or name a folder with --data FOLDER",
		       path, here, id);
}

int data_of_ckptd(const char *socket, char ret[PATH_MAX], struct err *e)
{
	const struct ctl asked = {.socket = socket};
	json_t *doc = NULL;
	int r = live_document(&asked, &doc, e);

	if (r == 0 && !doc_text(doc, "data")[0])
		r = err_set(e, CKPT_ENOTFOUND,
			    "the ckptd that answers is too old to say which data folder it has: "
			    "name it with --data FOLDER");
	if (r == 0)
		r = check_is_ckptds(doc_text(doc, "data"), doc_text(doc, "data_id"), e);
	if (r == 0)
		snprintf(ret, PATH_MAX, "%s", doc_text(doc, "data"));
	json_decref(doc);
	return r;
}

/* A socket that somebody named leads to its ckptd's folder or to an error, never to another one. */
int data_find(const char *given, char ret[PATH_MAX], struct err *e)
{
	const char *share = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	const char *socket = getenv("CKPT_SOCKET");
	int r;

	if (!given || !given[0])
		given = getenv("CKPT_DATA");
	if (given && given[0]) {
		snprintf(ret, PATH_MAX, "%s", given);
		return 0;
	}
	if (socket && socket[0]) {
		r = data_of_ckptd(socket, ret, e);
		return r < 0 ? err_wrap(e, r, "find the data folder by CKPT_SOCKET") : 0;
	}
	r = data_of_ckptd(NULL, ret, e);
	if (r == 0 || r == -EXDEV)
		return r;
	err_clear(e);
	if (share && share[0]) {
		snprintf(ret, PATH_MAX, "%s/ckptd", share);
		if (data_is_there(ret))
			return 0;
	} else if (home && home[0]) {
		snprintf(ret, PATH_MAX, "%s/.local/share/ckptd", home);
		if (data_is_there(ret))
			return 0;
	}
	snprintf(ret, PATH_MAX, "/var/lib/ckptd");
	return 0;
}

static int open_data_store(struct data *ret, struct err *e)
{
	const struct beneath folder = *disk_posix_folder(ret->disk);
	struct store_options o = { .read_only = true };
	int r = store_open(ret->disk, &o, &ret->store, e);
	if (r < 0) {
		disk_posix_close(ret->disk);
		ret->disk = NULL;
		if (r == -EACCES && folder.as_owner)
			return err_set(e, r,
				       "cannot read data folder '%.150s' as user %u, to whom it "
				       "belongs: a file in it is another user's: 'chown -R %u "
				       "%.150s'",
				       ret->path, (unsigned)folder.uid, (unsigned)folder.uid,
				       ret->path);
		if (r == -EACCES || r == -EPERM)
			return err_set(e, r,
				       "cannot read data folder '%.150s': only its owner and "
				       "root can" OTHER_WAYS,
				       ret->path);
		if (r == CKPT_ENOTFOUND)
			return err_set(e, r,
				       "folder '%.150s' has no FORMAT: ckptd has never used it: "
				       "name its data folder with --data FOLDER",
				       ret->path);
		return err_wrap(e, r, "data folder '%.150s'", ret->path);
	}
	return 0;
}

int data_open(const char *given, struct data *ret, struct err *e)
{
	struct err why = { 0 };
	int r;

	*ret = (struct data){ 0 };
	r = data_find(given, ret->path, e);
	if (r < 0)
		return r;
	r = disk_posix_open(ret->path, "threads", &ret->disk, &why);
	if (r == -EACCES)
		return err_set(e, r, "%s: only its owner and root can read it" OTHER_WAYS,
			       why.text);
	if (r == -EPERM)
		return err_set(e, r, "%s", why.text);
	if (r < 0)
		return err_set(e, r, "%s: name the right one with --data FOLDER", why.text);
	return open_data_store(ret, e);
}

int data_open_again(struct disk *disk, const char *path, struct data *ret, struct err *e)
{
	int r;

	*ret = (struct data){ 0 };
	snprintf(ret->path, sizeof(ret->path), "%s", path);
	r = disk_posix_again(disk, "threads", &ret->disk, e);
	return r < 0 ? r : open_data_store(ret, e);
}

bool data_is_same(const char *a, const char *b)
{
	struct stat x, y;

	if (strcmp(a, b) == 0)
		return true;
	return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int data_check_same(const char *said, const char *given, struct err *e)
{
	if (data_is_same(given, said))
		return 0;
	return err_set(e, -EINVAL,
		       "the ckptd that answers has the folder '%.150s', not '%.150s': "
		       "leave out --socket or --data",
		       said, given);
}

static void job_fini(struct data_job *j)
{
	for (size_t i = 0; i < j->n_checkpoints; i++)
		if (j->checkpoints[i].has_commit)
			commit_file_fini(&j->checkpoints[i].commit);
	alloc_free(j->checkpoints);
	history_fini(&j->history);
}

void data_close(struct data *d)
{
	for (size_t i = 0; i < d->n_jobs; i++)
		job_fini(&d->jobs[i]);
	alloc_free(d->jobs);
	if (d->disk) {
		store_close(&d->store);
		disk_posix_close(d->disk);
	}
	*d = (struct data){ 0 };
}

/* Whether a ckptd, or a tool that changes the folder, runs. The lock is not taken. */
static bool lock_is_held(const struct data *d)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int fd = beneath_file(disk_posix_folder(d->disk), "LOCK", O_RDONLY);
	bool held;

	if (fd < 0)
		return fd != -ENOENT; /* cannot tell: it may run */
	held = fcntl(fd, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
	close(fd);
	return held;
}

/* ---- Checkpoints ---- */

struct reading {
	struct data *data;
	struct data_job *job;
	struct err *err;
};

static int grow(void **array, size_t n, size_t *cap, size_t size)
{
	size_t more = *cap ? 2 * *cap : 16;
	void *p;

	if (n < *cap)
		return 0;
	p = alloc_resize(*array, more * size);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = more;
	return 0;
}

static int read_checkpoint(void *arg, const struct checkpoint_id *id,
			   const struct commit_file *commit, const struct err *why)
{
	struct reading *x = arg;
	struct data_job *j = x->job;
	struct data_checkpoint *c;
	void *list = j->checkpoints;
	int r = grow(&list, j->n_checkpoints, &j->cap_checkpoints, sizeof(*c));

	(void)why; /* asked again below: commit is not ours to keep */
	j->checkpoints = list;
	if (r < 0)
		return err_code(x->err, r, "read the checkpoints of a job");
	c = &j->checkpoints[j->n_checkpoints];
	*c = (struct data_checkpoint){ .id = *id };
	r = commit ? commit_read(&x->data->store, id, &c->commit, &c->why) : why->code;
	if (!commit)
		c->why = *why;
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE)
		return err_set(x->err, r, "%s", c->why.text);
	c->has_commit = r == 0;
	c->state = r == 0 ? FILES_DURABLE : r == CKPT_ENOTFOUND ? FILES_LEFTOVER : FILES_DAMAGED;
	if (c->state == FILES_LEFTOVER)
		err_set(&c->why, CKPT_ENOTFOUND,
			"it has no COMMIT: it is being written, or a crash "
			"left it and the next start of ckptd removes it");
	j->n_checkpoints++;
	return 0;
}

static int by_step(const void *a, const void *b)
{
	const struct data_checkpoint *x = a, *y = b;

	if (x->id.step != y->id.step)
		return x->id.step < y->id.step ? -1 : 1;
	return memcmp(x->id.attempt.b, y->id.attempt.b, sizeof(x->id.attempt.b));
}

static void commit_of_log(const struct data_job *j, const struct history_commit *h,
			  const struct checkpoint_id *id, struct commit_file *ret)
{
	*ret = (struct commit_file){
		.id = *id,
		.uid = j->history.job.uid,
		.incarnation = j->history.incarnation,
		.record_n = h->n,
		.epoch = h->epoch,
		.wall_ns = h->wall_ns,
		.root = h->commit.root,
		.layout = h->commit.layout,
		.world = h->commit.world,
		.bytes = h->commit.bytes,
	};
	memcpy(ret->job_name, j->history.job.name, sizeof(ret->job_name));
}

static void damaged(struct data_checkpoint *c, int code, const char *what, const char *why)
{
	c->state = FILES_DAMAGED;
	err_set(&c->why, code, "%s%.300s", what, why);
}

/*
 * Where whoever has LOCK is just about to publish it, COMMIT comes soon, or the folder goes. True:
 * it came. A look is no promise: after a while the missing COMMIT is taken for lost, and those of
 * the other steps are not waited for again.
 */
static bool commit_comes(struct data *d, struct data_checkpoint *c)
{
	static const struct timespec pause = {.tv_nsec = LOOK_AGAIN_MS * 1000000};
	bool came;

	for (;;) {
		came = commit_read(&d->store, &c->id, &c->commit, NULL) == 0;
		if (came || d->looks >= LOOKS || !lock_is_held(d))
			return came;
		d->looks++;
		nanosleep(&pause, NULL);
	}
}

/* The log has its record and has not freed it, and there is no COMMIT. */
static int judge_without(struct data *d, struct data_job *j, struct data_checkpoint *c)
{
	enum shards_state state = SHARDS_NONE;
	struct err why = {0};
	struct commit_file want;
	int r;

	commit_of_log(j, c->logged, &c->id, &want);
	r = commit_shards(&d->store, &want, &state, &why);
	commit_file_fini(&want);
	if (r < 0)
		return err_set(&c->why, r, "%s", why.text);
	if (state == SHARDS_WHOLE && commit_comes(d, c)) {
		c->has_commit = true;
		c->state = FILES_DURABLE;
		err_clear(&c->why);
	} else if (state == SHARDS_WHOLE) {
		damaged(c, CKPT_ECORRUPT,
			"its COMMIT is gone; its files lead to the root in the log: the next start "
			"of ckptd reads them and makes it again", "");
	} else if (state == SHARDS_DAMAGED) {
		damaged(c, CKPT_ECORRUPT, "its COMMIT is gone, and cannot be made again: ",
			why.text);
	} else {
		err_set(&c->why, CKPT_ENOTFOUND,
			"it has no COMMIT: it is being written, or a crash left it, or files of it "
			"are gone: %.200s", why.text);
	}
	return 0;
}

static int judge_names(struct data *d, struct data_checkpoint *c)
{
	CLEANUP_FREE uint8_t *gone = NULL;
	uint32_t rank = 0;
	int r = commit_missing_files(&d->store, &c->commit, &gone);

	if (err_is_shortage(r))
		return r;
	if (r == 0 && !gone)
		return 0;
	c->state = FILES_DAMAGED;
	if (r < 0) {
		err_code(&c->why, r, "cannot look for its files");
		return 0;
	}
	while (!gone[rank])
		rank++;
	c->rank_gone = true;
	err_set(&c->why, CKPT_ENOTFOUND, "rank %" PRIu32 ": its file is gone", rank);
	return 0;
}

static int judge_commit(struct data *d, struct data_job *j, struct data_checkpoint *c)
{
	const struct history *h = &j->history;
	struct commit_file want = {0};
	const char *differs = NULL;

	if (c->logged) {
		commit_of_log(j, c->logged, &c->id, &want);
		differs = commit_differs(&c->commit, &want);
	}
	if (differs) {
		damaged(c, CKPT_ECORRUPT, differs, "");
	} else if (c->logged && c->logged->freed) {
		c->state = FILES_EXPIRING;
		err_set(&c->why, CKPT_ENOTFOUND,
			"the log freed it: its files are being removed, or "
			"the next start of ckptd removes them");
	} else if (!c->logged && j->log_err.code == 0 &&
		   (c->commit.incarnation < h->incarnation || c->commit.record_n < h->first_n)) {
		c->state = FILES_EXPIRING;
		err_set(&c->why, CKPT_ENOTFOUND, "the log freed it before it was trimmed: the next "
						 "start of ckptd removes its files");
	} else if (!c->logged && j->log_err.code == 0) {
		c->state = FILES_UNLOGGED;
		err_set(&c->why, CKPT_ESTALE,
			"the job's log does not know it: ckptd begins the log "
			"anew from the COMMIT files at its next start");
	} else {
		return judge_names(d, c);
	}
	return 0;
}

/* What the log makes of it; see start_commit.c of ckptd, which does the same at its start.
 * Negative: what this process lacks. */
static int judge(struct data *d, struct data_job *j, struct data_checkpoint *c)
{
	const struct history *h = &j->history;
	bool no_commit = c->state == FILES_LEFTOVER;
	int r = 0;

	if (!c->has_commit && !no_commit)
		return 0;
	c->logged = history_find(&j->history, c->id.step, &c->id.attempt);
	if (no_commit && c->logged && !c->logged->freed)
		r = judge_without(d, j, c);
	else if (no_commit && !c->logged &&
		 (j->log_err.code ||
		  (h->incarnation > 0 &&
		   !attempt_is_of(&c->id.attempt, &j->id, h->incarnation, h->epoch.number,
				  c->id.step))))
		damaged(c, CKPT_ECORRUPT, "it has no COMMIT, and the log that knew it was lost",
			"");
	return r < 0 || !c->has_commit ? r : judge_commit(d, j, c);
}

/* ---- Jobs ---- */

static int no_name(void *arg, const char *name, bool is_dir)
{
	(void)arg;
	(void)name;
	(void)is_dir;
	return 0;
}

static int load_history(struct data *d, struct data_job *j, struct err *e)
{
	char dir[DISK_PATH_MAX + 1];
	struct joblog *log = NULL;
	int r;

	path_log(dir, &j->id);
	/* Opening a log makes its folder: not from here. */
	r = d->disk->ops->list(d->disk, dir, no_name, NULL);
	if (r == -ENOENT)
		return err_set(e, CKPT_ENOTFOUND, "the job has no log");
	if (r < 0)
		return err_code(e, r, "cannot list '%s'", dir);
	r = joblog_single_open(d->disk, dir, &log, e);
	if (r < 0)
		return r;
	for (int i = 0; i < TRIM_TRIES; i++) {
		history_fini(&j->history);
		r = history_load(&j->history, log, e);
		if (r != -EAGAIN)
			break;
	}
	log->ops->close(log);
	if (r == 0 && j->history.next_n == 0)
		r = err_set(e, CKPT_ENOTFOUND, "the job's log is empty");
	return r;
}

static void name_job(struct data_job *j)
{
	const struct commit_file *c = NULL;

	for (size_t i = 0; i < j->n_checkpoints; i++)
		if (j->checkpoints[i].has_commit)
			c = &j->checkpoints[i].commit;
	if (j->history.next_n > 0) {
		memcpy(j->name, j->history.job.name, sizeof(j->history.job.name));
		j->uid = j->history.job.uid;
	} else if (c) {
		memcpy(j->name, c->job_name, sizeof(c->job_name));
		j->uid = c->uid;
	} else {
		hex_format(j->name, j->id.b, sizeof(j->id.b));
	}
}

/* By a tool (storage/staging.h): no ckptd has seen it yet, and it never had a log or a token. */
static bool was_made(const struct data_job *j)
{
	static const struct digest none;
	const struct data_checkpoint *c = j->n_checkpoints == 1 ? j->checkpoints : NULL;
	struct record r;

	return c && c->has_commit && j->log_err.code == CKPT_ENOTFOUND && j->history.next_n == 0 &&
	       record_decode(c->commit.job_record, c->commit.job_record_len, &r, NULL, NULL) == 0 &&
	       r.type == RECORD_JOB && digest_equal(&r.job.token, &none);
}

/* Its first open never came to record 0. */
static bool never_began(const struct data_job *j)
{
	return j->n_checkpoints == 0 && j->history.next_n == 0 &&
	       j->log_err.code == CKPT_ENOTFOUND;
}

static int read_folder(struct reading *x, struct data_job *j)
{
	struct data *d = x->data;
	int r = store_each_checkpoint(&d->store, &j->id, read_checkpoint, x, x->err);

	if (r < 0)
		return r;
	if (j->n_checkpoints)
		qsort(j->checkpoints, j->n_checkpoints, sizeof(*j->checkpoints), by_step);
	r = load_history(d, j, &j->log_err); /* (1): after the COMMIT files */
	if (r == -ENOMEM || r == -EACCES || r == -EPERM)
		return err_set(x->err, r, "%s", j->log_err.text);
	for (size_t i = 0; i < j->n_checkpoints; i++)
		if (judge(d, j, &j->checkpoints[i]) < 0)
			return err_set(x->err, j->checkpoints[i].why.code, "%s",
				       j->checkpoints[i].why.text);
	return 0;
}

/* What this process lacks, or may not do: it is so for all jobs. */
static bool is_own(int code)
{
	return err_is_shortage(code) || code == -EACCES || code == -EPERM;
}

/* A bad sector below one job's folder says nothing of the others. */
static void leave_unread(struct data_job *j, const struct err *why)
{
	const struct job_id id = j->id;

	job_fini(j);
	*j = (struct data_job){.id = id, .unread = true};
	history_init(&j->history);
	err_set(&j->log_err, why->code, "its folder cannot be read: %s", why->text);
}

static int read_job(void *arg, const struct job_id *id)
{
	struct reading *x = arg;
	struct data *d = x->data;
	struct err why = {0};
	void *list = d->jobs;
	struct data_job *j;
	int r = grow(&list, d->n_jobs, &d->cap_jobs, sizeof(*j));

	d->jobs = list;
	if (r < 0)
		return err_code(x->err, r, "read the jobs");
	j = &d->jobs[d->n_jobs++];
	*j = (struct data_job){ .id = *id };
	history_init(&j->history);
	r = read_folder(&(struct reading){.data = d, .job = j, .err = &why}, j);
	if (r < 0 && is_own(r))
		return err_set(x->err, r, "%s", why.text);
	if (r < 0)
		leave_unread(j, &why);
	name_job(j);
	j->made = was_made(j);
	if (j->made)
		err_clear(&j->log_err);
	if (!j->unread && never_began(j)) {
		job_fini(j);
		d->n_jobs--;
	}
	return 0;
}

static bool is_called(const struct data_job *j, const char *name)
{
	char id[ID_TEXT_MAX];

	hex_format(id, j->id.b, sizeof(j->id.b));
	return job_name_fits(name, j->name, j->uid, id);
}

static int by_name(const void *a, const void *b)
{
	const struct data_job *x = a, *y = b;
	int c = strcmp(x->name, y->name);

	if (c == 0)
		c = x->uid < y->uid ? -1 : x->uid > y->uid;
	return c ? c : memcmp(x->id.b, y->id.b, sizeof(x->id.b));
}

/* One that cannot be read may be called like the one that is asked for. */
static const struct data_job *hides(const struct data *d, const char *job)
{
	const struct data_job *unread = NULL;
	bool found = false;

	for (size_t i = 0; i < d->n_jobs; i++) {
		bool called = is_called(&d->jobs[i], job);

		if (called && d->jobs[i].unread)
			return &d->jobs[i];
		found = found || called;
		if (d->jobs[i].unread)
			unread = &d->jobs[i];
	}
	return found ? NULL : unread;
}

int data_read_jobs(struct data *d, const char *job, struct err *e)
{
	struct reading x = { .data = d, .err = e };
	const struct data_job *unread;
	char hint[NEAR_TEXT_MAX];
	struct near near;
	size_t kept = 0;
	int r;

	assert(d->disk && d->n_jobs == 0);
	r = store_each_job(&d->store, read_job, &x, e);
	if (r < 0)
		return err_wrap(e, r, "data folder '%.150s'", d->path);
	unread = job ? hides(d, job) : NULL;
	if (unread)
		return err_set(e, unread->log_err.code,
			       "data folder '%.150s': job %s, which may be '%.80s': %.300s",
			       d->path, unread->name, job, unread->log_err.text);
	near_begin(&near, job ? job : "");
	for (size_t i = 0; i < d->n_jobs; i++) {
		near_try(&near, d->jobs[i].name);
		if (job && !is_called(&d->jobs[i], job))
			job_fini(&d->jobs[i]);
		else
			d->jobs[kept++] = d->jobs[i];
	}
	d->n_jobs = kept;
	if (job && kept == 0)
		return err_set(e, CKPT_ENOTFOUND,
			       "there is no job '%.80s' in '%.150s'%s: 'ckptctl status --data "
			       "%.150s' lists them",
			       job, d->path, near_text(&near, hint), d->path);
	if (d->n_jobs)
		qsort(d->jobs, d->n_jobs, sizeof(*d->jobs), by_name);
	return 0;
}

/* What the job went back behind comes after all others (I5). */
static bool is_newer(const struct data_checkpoint *c, const struct data_checkpoint *than)
{
	bool c_passed = c->logged && (c->logged->trust & TRUST_PASSED);
	bool than_passed = than->logged && (than->logged->trust & TRUST_PASSED);

	if (c_passed != than_passed)
		return than_passed;
	if (c->commit.incarnation != than->commit.incarnation)
		return c->commit.incarnation > than->commit.incarnation;
	return c->commit.record_n > than->commit.record_n;
}

const struct data_checkpoint *data_latest(const struct data_job *j)
{
	return data_trusted(j, TRUST_LATEST);
}

const struct data_checkpoint *data_trusted(const struct data_job *j, enum trust_level least)
{
	const struct data_checkpoint *best = NULL;

	for (size_t i = 0; i < j->n_checkpoints; i++) {
		const struct data_checkpoint *c = &j->checkpoints[i];

		if ((c->state != FILES_DURABLE && c->state != FILES_UNLOGGED) ||
		    !trust_reaches(c->logged ? c->logged->trust : TRUST_LATEST, least))
			continue;
		if (!best || is_newer(c, best))
			best = c;
	}
	return best;
}

bool data_is_base(const struct data_job *j, const struct history_commit *h)
{
	const struct record_epoch *ep = &j->history.epoch;

	return h && ep->has_base && ep->base_step == h->commit.step &&
	       attempt_equal(&ep->base_attempt, &h->commit.attempt);
}

bool data_maybe_in_memory(const struct data_job *j, const struct history_commit *h)
{
	if (h->freed)
		return false;
	for (size_t i = 0; i < j->n_checkpoints; i++) {
		const struct data_checkpoint *c = &j->checkpoints[i];

		if (c->logged && c->logged->n >= h->n)
			return false;
		/* Its COMMIT may be the damaged one. */
		if (!c->has_commit && c->id.step == h->commit.step &&
		    attempt_equal(&c->id.attempt, &h->commit.attempt))
			return false;
	}
	return true;
}
