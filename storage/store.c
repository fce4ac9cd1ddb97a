/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - one data folder: FORMAT, ID, LOCK, and small files that are published whole.
 *
 * 1. Who writes holds LOCK: an exclusive lock of the open file, gone with the process, however it
 *    ends. The pid inside is only for the message.
 * 2. A published name has all of its bytes: temporary, fdatasync, rename. After a failed sync the
 *    temporary is removed and never synced again.
 * 3. FORMAT is there before any folder is: only LOCK comes before it. A folder without it gets it,
 *    whatever lies there: each file says in its own head which features it needs.
 *
 * Threads: open and close by one; the rest by any.
 */
#include <config.h>

#include "storage/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"
#include "storage/disk_format.h"
#include "storage/folder_id.h"
#include "storage/object_uses.h"
#include "storage/paths.h"
#include "storage/shard_file.h"
#include "storage/spare.h"

#define FORMAT_FILE_BYTES (DISK_FORMAT_HEAD + DISK_FORMAT_DIGEST)
#define TRANSFER_DEFAULT (2u << 20)

static const char *const folders[] = { "jobs", "declarations", "layouts", "spare" };

/* ---- Whole small files ---- */

int store_read_file(struct store *s, const char *path, size_t max, void **ret, size_t *ret_len)
{
	const struct disk_ops *ops = s->disk->ops;
	struct disk_file *f = NULL;
	uint64_t size = 0;
	void *p = NULL;
	int r = ops->open(s->disk, path, DISK_READ, &f);

	if (r < 0)
		return r;
	r = ops->size(f, &size);
	if (r == 0 && size > max)
		r = -EFBIG;
	if (r == 0) {
		p = alloc_zero(size);
		r = p ? ops->read(f, p, size, 0) : -ENOMEM;
	}
	ops->close(f);
	if (r < 0) {
		alloc_free(p);
		return r;
	}
	*ret = p;
	*ret_len = size;
	return 0;
}

/* A new file with these bytes, synced. */
static int write_temporary(struct disk *d, const char *path, const void *bytes, size_t len)
{
	struct disk_file *f = NULL;
	int r = d->ops->open(d, path, DISK_CREATE | DISK_EXCL, &f);

	if (r == -EEXIST) { /* left by a crash */
		r = d->ops->unlink(d, path);
		if (r == 0)
			r = d->ops->open(d, path, DISK_CREATE | DISK_EXCL, &f);
	}
	if (r < 0)
		return r;
	r = d->ops->write(f, bytes, len, 0);
	if (r == 0 && FAULT(PUBLISH_TEMP))
		r = -EIO;
	if (r == 0)
		r = d->ops->sync(f);
	if (r == 0 && FAULT(PUBLISH_SYNC))
		r = -EIO;
	d->ops->close(f);
	return r;
}

int store_place_file(struct store *s, const char *dir, const char *name, const void *bytes,
		     size_t len)
{
	char temp[DISK_PATH_MAX + 1], path[DISK_PATH_MAX + 1];
	uint64_t serial = atomic_fetch_add(&s->serial, 1);
	struct disk *d = s->disk;
	int r;

	if (snprintf(temp, sizeof(temp), "%s%s" TEMPORARY_PREFIX "%" PRIu64, dir, dir[0] ? "/" : "",
		     serial) >= (int)sizeof(temp) ||
	    snprintf(path, sizeof(path), "%s%s%s", dir, dir[0] ? "/" : "", name) >=
		    (int)sizeof(path))
		return -ENAMETOOLONG;
	r = write_temporary(d, temp, bytes, len);
	if (r == 0)
		r = d->ops->rename(d, temp, path);
	if (r < 0) {
		ignore_result(d->ops->unlink(d, temp)); /* swept at the next start otherwise */
		return r;
	}
	return FAULT(PUBLISH_RENAME) ? -EIO : 0;
}

int store_publish_file(struct store *s, const char *dir, const char *name, const void *bytes,
		       size_t len)
{
	int r = store_place_file(s, dir, name, bytes, len);

	return r < 0 ? r : s->disk->ops->sync_dir(s->disk, dir);
}

/* ---- FORMAT and LOCK ---- */

static int check_format(struct store *s, bool writing, struct err *e)
{
	void *bytes = NULL;
	size_t len = 0;
	bool read_only = false;
	struct err why = { 0 };
	int r = store_read_file(s, "FORMAT", FORMAT_FILE_BYTES, &bytes, &len);

	if (r == -ENOENT)
		return err_set(e, CKPT_ENOTFOUND, "the data folder has no FORMAT: ckptd has never "
						  "used it");
	if (r < 0)
		return err_code(e, r, "cannot read FORMAT of the data folder");
	if (len != FORMAT_FILE_BYTES)
		r = err_set(&why, CKPT_ECORRUPT,
			    "FORMAT of the data folder has %zu bytes instead of %u", len,
			    FORMAT_FILE_BYTES);
	else
		r = format_check(bytes, len, FORMAT_FOLDER, DISK_FORMAT_HEAD,
				 "FORMAT of the data folder", &read_only, &why);
	alloc_free(bytes);
	if (r == CKPT_ECORRUPT) /* nothing else is in it than that this is a data folder */
		return err_set(e, r, "%s: if this is ckptd's data folder, remove the file FORMAT; "
			       "ckptd makes it anew", why.text);
	if (r < 0)
		return err_set(e, r, "%s", why.text);
	if (r == 0 && read_only && writing)
		r = err_set(e, CKPT_EVERSION,
			    "a newer ckptd made the data folder: this one may only "
			    "read it");
	return r;
}

static int make_format(struct store *s, struct err *e)
{
	uint8_t buf[FORMAT_FILE_BYTES] = { 0 };
	int r;

	format_begin(buf, FORMAT_FOLDER, DISK_FORMAT_HEAD, sizeof(buf));
	format_end(buf, sizeof(buf));
	r = store_publish_file(s, "", "FORMAT", buf, sizeof(buf));
	return r < 0 ? err_code(e, r, "cannot write FORMAT of the data folder") : 0;
}

/* Who has LOCK, by what it wrote there: "PID" of a ckptd, "PID WHO", nothing where the disk is
 * full. */
static int say_holder(struct disk *d, struct disk_file *f, struct err *e)
{
	char text[LOCK_WHO_MAX + 32] = {0}, *who = text;
	uint64_t size = 0;
	long long pid = 0;

	if (d->ops->size(f, &size) == 0 && size < sizeof(text) &&
	    d->ops->read(f, text, size, 0) >= 0)
		pid = strtoll(text, &who, 10);
	who += strspn(who, " ");
	who[strcspn(who, "\n")] = '\0';
	if (pid <= 0)
		return err_set(e, -EBUSY,
			       "the data folder is in use by a process that has not said which it "
			       "is (fuser LOCK shows it): stop that ckptd, or wait until that "
			       "ckptctl has ended");
	if (!*who)
		return err_set(
			e, -EBUSY,
			"the data folder is in use by process %lld: stop that ckptd, or give "
			"this one another folder",
			pid);
	return err_set(
		e, -EBUSY,
		"the data folder is in use by process %lld, %s: it gives it back when it has "
		"ended, then start this one again",
		pid, who);
}

/* A full disk keeps nobody from starting: what is in memory waits to be adopted. */
static bool is_full(int error)
{
	return error == -ENOSPC || error == -EDQUOT;
}

static int write_holder(struct disk_file *f, const char *who)
{
	char text[LOCK_WHO_MAX + 32];
	int len = snprintf(text, sizeof(text), "%lld%s%.*s\n", (long long)getpid(), who ? " " : "",
			   LOCK_WHO_MAX, who ? who : "");
	int r = f->disk->ops->truncate(f, 0);

	return r < 0 ? r : f->disk->ops->write(f, text, (size_t)len, 0);
}

int store_lock(struct disk *disk, const char *who, struct disk_file **ret, struct err *e)
{
	struct disk_file *f = NULL;
	int r = disk->ops->open(disk, "LOCK", DISK_CREATE, &f);

	if (r == -EACCES || r == -EPERM)
		return err_set(e, r,
			       "cannot open LOCK of the data folder: %s: it is another user's: run "
			       "as that user or as root, or name another folder",
			       err_text(r));
	if (r == -ENOSPC || r == -EDQUOT)
		return err_set(e, r,
			       "cannot make LOCK of the data folder: %s: free some room on its "
			       "disk, or name another folder",
			       err_text(r));
	if (r == -EROFS)
		return err_set(
			e, r,
			"cannot open LOCK of the data folder: %s: a unit of systemd's may write "
			"only where ReadWritePaths= of a drop-in says ('systemctl "
			"daemon-reload' behind it); else its file system is mounted read-only",
			err_text(r));
	if (r < 0)
		return err_code(e, r, "cannot open LOCK of the data folder");
	r = disk->ops->lock(f, true);
	if (r == -EAGAIN)
		r = say_holder(disk, f, e);
	else if (r < 0)
		r = err_code(e, r, "cannot lock the data folder");
	else if ((r = write_holder(f, who)) < 0 && !is_full(r))
		r = err_code(e, r, "cannot write LOCK of the data folder");
	else
		r = 0;
	if (r < 0)
		disk->ops->close(f);
	else
		*ret = f;
	return r;
}

/* ---- Open ---- */

struct leftovers {
	struct disk *disk;
	const char *folder;
	uint64_t serial; /* above every spare file's */
};

static int remove_leftover(void *arg, const char *name, bool is_dir)
{
	struct leftovers *l = arg;
	char path[DISK_PATH_MAX + 1];
	uint64_t serial, bytes;

	if (spare_name_parse(name, &serial, &bytes) == 0 && serial >= l->serial)
		l->serial = serial + 1;
	if (is_dir || strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) != 0)
		return 0;
	if (snprintf(path, sizeof(path), "%s/%s", l->folder, name) >= (int)sizeof(path))
		return 0;
	ignore_result(l->disk->ops->unlink(l->disk, path)); /* the next start tries again */
	return 0;
}

static int make_folders(struct store *s, struct err *e)
{
	struct disk *d = s->disk;
	struct leftovers l = { .disk = d };
	int r;

	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		l.folder = folders[i];
		r = d->ops->mkdir(d, folders[i]);
		if (r == 0 && strcmp(folders[i], "jobs") != 0)
			r = d->ops->list(d, folders[i], remove_leftover, &l);
		if (r < 0)
			return err_code(e, r, "cannot make folder '%s' in the data folder",
					folders[i]);
	}
	r = d->ops->sync_dir(d, "");
	if (r < 0)
		return err_code(e, r, "cannot sync the data folder");
	r = d->ops->sync_dir(d, "jobs"); /* of jobs whose maker was killed before it did */
	if (r < 0)
		return err_code(e, r, "cannot sync folder 'jobs' in the data folder");
	s->serial = l.serial;
	return 0;
}

static int open_for_writing(struct store *s, const struct store_options *o, struct err *e)
{
	int r = store_lock(s->disk, o->who, &s->lock, e);
	bool new;

	if (r < 0)
		return r;
	r = check_format(s, true, e);
	new = r == CKPT_ENOTFOUND;
	if (r == 0 || new)
		r = make_folders(s, e);
	if (r == 0 && new) /* last: a folder that has FORMAT has all that its readers look for */
		r = make_format(s, e);
	if (r == 0 && o->rng)
		r = folder_id_ensure(s, o->folder_id, o->rng, &s->folder_id, e);
	if (r == 0 && (r = spares_new(&s->spares)) < 0)
		err_code(e, r, "cannot open the data folder");
	if (r == 0 && !(s->uses = object_uses_new()))
		r = err_code(e, -ENOMEM, "cannot open the data folder");
	if (r < 0)
		store_close(s);
	return r;
}

int store_open(struct disk *disk, const struct store_options *o, struct store *ret, struct err *e)
{
	struct store s = {.disk = disk,
			  .geometry = o->geometry,
			  .compression = o->compression,
			  .reserve = o->reserve};
	uint64_t transfer = o->transfer ? o->transfer : TRANSFER_DEFAULT;
	int r;

	if (s.geometry.leaf == 0 && s.geometry.chunk == 0)
		s.geometry = GEOMETRY_DEFAULT;
	if (!geometry_valid(s.geometry) || s.geometry.chunk > SHARD_CHUNK_MAX)
		return err_set(e, -EINVAL,
			       "leaf %u and chunk %u are no sizes for digests and chunks",
			       s.geometry.leaf, s.geometry.chunk);
	s.transfer = (uint32_t)min_u64(round_up(transfer, DISK_ALIGN), DISK_TRANSFER_MAX);
	r = o->read_only ? check_format(&s, false, e) : open_for_writing(&s, o, e);
	if (r < 0)
		return r;
	err_clear(e);
	*ret = s;
	return 0;
}

void store_close(struct store *s)
{
	if (s->lock)
		s->disk->ops->close(s->lock);
	s->lock = NULL;
	spares_free(s->spares);
	s->spares = NULL;
	object_uses_free(s->uses);
	s->uses = NULL;
}
