/* SPDX-License-Identifier: Apache-2.0 */
/*
 * single.c - a job's log as files of one folder, over base/disk.h.
 *
 *   <n as 20 digits>        record n
 *   trim-<n as 20 digits>   empty: records below n count no more, whether they are there or not
 *   tmp-<20 digits>         a record being written; worthless after a crash
 *
 * 1. A record's name appears when its bytes are synced: what has a name is whole. A temporary is
 *    never opened again: it may be a second name of a record.
 * 2. Success means that the folder was synced after the name was there (I4). What a scan hands
 *    out is synced too, since whoever reads a record acts on it.
 * 3. Records stand without a gap from the highest trim mark, or 0, to the newest. The mark is
 *    durable before the first record below it goes, so that any subset of them may come back
 *    after power loss.
 * 4. Nothing is removed before the first append: who only reads, beside a running daemon,
 *    disturbs nobody.
 *
 * Failure modes: an error before link(2) leaves the log as it was; after it the record may be
 * there or not, be durable or not (unclear), and the same append settles it (I10). An error of sync
 * ends that temporary's life; the next try writes another. An error of sync_dir may be tried again:
 * names are metadata, a file system whose journal failed does not report success later.
 *
 * Runs on WORK_LOG workers, one call at a time.
 */
#include <config.h>

#include "coord/single.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/fault.h"

enum {
	DIGITS = 20,
	NAME_SIZE = sizeof("trim-") + DIGITS, /* with NUL */
	BATCH = 128,                          /* names removed per walk of the folder */
	TEMPS_MAX = 64,                       /* names tried for one temporary */
};

#define LL(x) ((unsigned long long)(x))

struct single {
	struct joblog log;
	struct disk *disk;
	uint64_t first, next; /* records [first, next) are there, as far as this process knows */
	uint64_t temps;       /* names of temporaries used so far */
	bool looked;          /* first and next are known, leftovers were removed */
	bool unsynced;        /* the folder may hold names that are not durable */
	bool unclear;         /* record `next` may be one of them: an append of it failed late */
	uint8_t *buf;         /* the longest record that was read fits */
	size_t buf_len;
	char dir[DISK_PATH_MAX + 1];
};

static struct single *single_of(struct joblog *log)
{
	return container_of(log, struct single, log);
}

static void path_of(const struct single *s, const char *prefix, uint64_t n, char *ret)
{
	int len = snprintf(ret, DISK_PATH_MAX + 1, "%s/%s%020llu", s->dir, prefix, LL(n));

	assert(len > 0 && len <= DISK_PATH_MAX); /* joblog_single_open() left room */
}

/* Makes all names in the folder durable (2). */
static int sync_folder(struct single *s, struct err *e)
{
	int r;

	if (BUG(SKIP_LOG_DIR_SYNC))
		return 0;
	r = s->disk->ops->sync_dir(s->disk, s->dir);
	if (FAULT(LOG_DIR))
		r = -EIO;
	if (r < 0)
		return err_code(e, r, "sync log folder '%s'", s->dir);
	s->unsynced = false;
	return 0;
}

/* ---- What is in the folder ---- */

enum kind { KIND_OTHER, KIND_RECORD, KIND_TRIM, KIND_TEMP };

static enum kind parse_name(const char *name, uint64_t *ret)
{
	enum kind kind = KIND_RECORD;
	uint64_t v = 0;

	if (strncmp(name, "trim-", 5) == 0) {
		kind = KIND_TRIM;
		name += 5;
	} else if (strncmp(name, "tmp-", 4) == 0) {
		kind = KIND_TEMP;
		name += 4;
	}
	if (strlen(name) != DIGITS)
		return KIND_OTHER;
	for (const char *p = name; *p; p++)
		if (*p < '0' || *p > '9' || !size_mul(v, 10, &v) ||
		    !size_add(v, (uint64_t)(*p - '0'), &v))
			return KIND_OTHER;
	*ret = v;
	return kind;
}

struct extent {
	uint64_t first; /* the highest trim mark, or 0 */
	uint64_t end;   /* one above the highest record; at least first */
	bool marked;    /* there is a trim mark */
};

static int extent_name(void *arg, const char *name, bool is_dir)
{
	struct extent *x = arg;
	uint64_t n = 0;
	enum kind kind = is_dir ? KIND_OTHER : parse_name(name, &n);

	if (kind == KIND_TRIM) {
		x->first = max_u64(x->first, n);
		x->marked = true;
	} else if (kind == KIND_RECORD && n < UINT64_MAX) {
		x->end = max_u64(x->end, n + 1);
	}
	return 0;
}

static int look(struct single *s, struct extent *ret, struct err *e)
{
	struct extent x = { 0 };
	int r = s->disk->ops->list(s->disk, s->dir, extent_name, &x);

	if (r < 0)
		return err_code(e, r, "list log folder '%s'", s->dir);
	x.end = max_u64(x.end, x.first);
	s->first = x.first;
	s->next = x.end;
	*ret = x;
	return 0;
}

struct leftovers {
	uint64_t first;
	unsigned n;
	char names[BATCH][NAME_SIZE];
};

static int leftover_name(void *arg, const char *name, bool is_dir)
{
	struct leftovers *l = arg;
	uint64_t n = 0;
	enum kind kind = is_dir ? KIND_OTHER : parse_name(name, &n);

	if (kind == KIND_TEMP || ((kind == KIND_RECORD || kind == KIND_TRIM) && n < l->first))
		strcpy(l->names[l->n++], name);
	return l->n == BATCH;
}

/*
 * Removes temporaries and what the trim mark took out of the log. The mark may be one that an
 * earlier process never made durable (3). What cannot be removed stays: harmless.
 */
static int remove_leftovers(struct single *s, struct err *e)
{
	struct leftovers l;
	char path[DISK_PATH_MAX + 1 + NAME_SIZE];
	int r = s->unsynced ? sync_folder(s, e) : 0;

	if (r < 0)
		return r;
	do {
		l.n = 0;
		l.first = s->first;
		r = s->disk->ops->list(s->disk, s->dir, leftover_name, &l);
		for (unsigned i = 0; i < l.n && r >= 0; i++) {
			snprintf(path, sizeof(path), "%s/%s", s->dir, l.names[i]);
			r = s->disk->ops->unlink(s->disk, path);
			r = r == -ENOENT ? 0 : r;
		}
	} while (r >= 0 && l.n == BATCH);
	return 0;
}

/* ---- Append ---- */

static int write_temp(struct single *s, const void *bytes, size_t len, char *ret_path)
{
	const struct disk_ops *ops = s->disk->ops;
	struct disk_file *f;
	int r = -EEXIST;

	for (int i = 0; i < TEMPS_MAX && r == -EEXIST; i++) { /* never one that is there (1) */
		path_of(s, "tmp-", s->temps++, ret_path);
		r = ops->open(s->disk, ret_path, DISK_CREATE | DISK_EXCL, &f);
	}
	if (r < 0)
		return r == -EEXIST ? -EBUSY : r; /* -EEXIST is said of records only */
	r = ops->write(f, bytes, len, 0);
	if (FAULT(LOG_TEMP))
		r = -EIO;
	if (r >= 0)
		r = ops->sync(f);
	if (FAULT(LOG_SYNC))
		r = -EIO;
	ops->close(f);
	return r < 0 ? r : 0;
}

static int reserve_buf(struct single *s, size_t len)
{
	void *p;

	if (len <= s->buf_len)
		return 0;
	len = round_up(len, 4096);
	p = alloc_resize(s->buf, len);
	if (!p)
		return -ENOMEM;
	s->buf = p;
	s->buf_len = len;
	return 0;
}

/* Reads record n into s->buf; *ret_len is JOBLOG_RECORD_MAX + 1 when it is longer than any. */
static int read_record(struct single *s, uint64_t n, size_t *ret_len)
{
	const struct disk_ops *ops = s->disk->ops;
	struct disk_file *f;
	char path[DISK_PATH_MAX + 1];
	uint64_t size = 0;
	int r;

	path_of(s, "", n, path);
	r = ops->open(s->disk, path, DISK_READ, &f);
	if (r < 0)
		return r;
	r = ops->size(f, &size);
	size = min_u64(size, JOBLOG_RECORD_MAX + 1);
	if (r >= 0)
		r = reserve_buf(s, size);
	if (r >= 0 && size > 0)
		r = ops->read(f, s->buf, size, 0);
	ops->close(f);
	if (r < 0)
		return r;
	*ret_len = size;
	return 0;
}

/* After an answer that says nothing certain: are these bytes record n? */
static int read_back(struct single *s, uint64_t n, const void *bytes, size_t len, int answer,
		     struct err *e)
{
	size_t have = 0;
	int r = read_record(s, n, &have);

	assert(answer < 0);
	if (r == -ENOENT) {
		s->unclear = false;
		return err_code(e, answer, "link log record %llu in '%s'", LL(n), s->dir);
	}
	if (r < 0)
		return err_code(e, r, "read log record %llu in '%s' back", LL(n), s->dir);
	s->next = max_u64(s->next, n + 1);
	if (have != len || memcmp(s->buf, bytes, len) != 0)
		return err_set(e, -EEXIST, "log '%s' has another record %llu: read it, then decide",
			       s->dir, LL(n));
	return 0;
}

static int place(struct single *s, uint64_t n, const void *bytes, size_t len, struct err *e)
{
	char temp[DISK_PATH_MAX + 1], path[DISK_PATH_MAX + 1];
	int r = write_temp(s, bytes, len, temp);

	if (r < 0) {
		ignore_result(s->disk->ops->unlink(s->disk, temp)); /* a leftover at worst */
		return err_code(e, r, "write log record %llu of '%s'", LL(n), s->dir);
	}
	path_of(s, "", n, path);
	s->unclear = true;
	r = s->disk->ops->link(s->disk, temp, path);
	if (FAULT(LOG_LINK))
		r = -EIO;
	ignore_result(s->disk->ops->unlink(s->disk, temp)); /* a leftover at worst */
	return r < 0 ? read_back(s, n, bytes, len, r, e) : 0;
}

/* Before the first append; and again when n lies beyond what this process has seen. */
static int prepare(struct single *s, uint64_t n, struct err *e)
{
	struct extent x;
	int r;

	if (s->looked && n <= s->next)
		return 0;
	r = look(s, &x, e);
	if (r < 0)
		return r;
	if (!s->looked)
		r = remove_leftovers(s, e);
	s->looked = r == 0;
	return r;
}

static int single_append(struct joblog *log, uint64_t n, const void *bytes, size_t len,
			 struct err *e)
{
	struct single *s = single_of(log);
	int r;

	assert(log->ops->append == single_append && len > 0);
	if (n == UINT64_MAX) /* the log says which number comes next */
		return err_set(e, -EOVERFLOW, "log '%s' has no number left for a record", s->dir);
	if (len > JOBLOG_RECORD_MAX)
		return err_set(e, -E2BIG, "log record %llu has %zu bytes, the limit is %d", LL(n),
			       len, JOBLOG_RECORD_MAX);
	r = prepare(s, n, e);
	if (r < 0)
		return r;
	if (n < s->first)
		return err_set(e, -EEXIST, "log '%s' was trimmed up to record %llu", s->dir,
			       LL(s->first));
	if (n > s->next)
		return err_set(e, -EINVAL, "record %llu of log '%s' comes next, not %llu",
			       LL(s->next), s->dir, LL(n));
	s->unsynced = true; /* until sync_folder() */
	if (n < s->next)
		r = read_back(s, n, bytes, len, -EEXIST, e);
	else
		r = place(s, n, bytes, len, e);
	s->unclear = s->unclear || r == 0;
	if (r == 0)
		r = sync_folder(s, e); /* (2) */
	if (r == 0) {
		s->next = max_u64(s->next, n + 1);
		s->unclear = false;
	}
	return r;
}

static bool single_unclear(struct joblog *log)
{
	return single_of(log)->unclear;
}

/* ---- Scan ---- */

/* Record n has no name: damage, unless another process trimmed the log under this walk. */
static int explain_missing(struct single *s, uint64_t n, struct err *e)
{
	struct extent x;
	int r = look(s, &x, e);

	if (r < 0)
		return r;
	if (n < x.first)
		return err_set(e, -EAGAIN, "log '%s' was trimmed while it was read: read it again",
			       s->dir);
	return err_set(e, CKPT_ECORRUPT,
		       "log '%s' is damaged: record %llu is missing, it should have %llu to %llu",
		       s->dir, LL(n), LL(x.first), LL(max_u64(x.end, x.first + 1) - 1));
}

static int single_scan(struct joblog *log, joblog_fn *fn, void *arg, struct err *e)
{
	struct single *s = single_of(log);
	struct extent x;
	size_t len = 0;
	int r = look(s, &x, e);

	if (r == 0 && s->unsynced)
		r = sync_folder(s, e);
	if (r < 0)
		return r;
	if (x.marked && x.end == x.first)
		return explain_missing(s, x.first, e); /* a mark without its summing record */
	for (uint64_t n = x.first; n < x.end; n++) {
		r = read_record(s, n, &len);
		if (r == -ENOENT)
			return explain_missing(s, n, e);
		if (r < 0)
			return err_code(e, r, "read record %llu of log '%s'", LL(n), s->dir);
		if (len == 0 || len > JOBLOG_RECORD_MAX)
			return err_set(e, CKPT_ECORRUPT,
				       "log '%s' is damaged: record %llu has an impossible length",
				       s->dir, LL(n));
		r = fn(arg, n, s->buf, len);
		if (r != 0)
			return r;
	}
	return 0;
}

/* ---- Trim, open, close ---- */

static int mark_trimmed(struct single *s, uint64_t n)
{
	const struct disk_ops *ops = s->disk->ops;
	struct disk_file *f;
	char path[DISK_PATH_MAX + 1];
	int r;

	path_of(s, "", n, path);
	r = ops->open(s->disk, path, DISK_READ, &f);
	if (r < 0)
		return r; /* without a record that sums up, nothing goes */
	ops->close(f);
	s->unsynced = true;
	path_of(s, "trim-", n, path);
	r = ops->open(s->disk, path, DISK_CREATE, &f);
	if (r < 0)
		return r;
	ops->close(f);
	s->first = n;
	return 0; /* remove_leftovers() makes it durable (3) */
}

static int single_trim(struct joblog *log, uint64_t n)
{
	struct single *s = single_of(log);
	int r = prepare(s, n, NULL);

	if (r < 0)
		return r;
	if (n > s->first) {
		r = mark_trimmed(s, n);
		if (FAULT(LOG_TRIM))
			r = -EIO;
		if (r < 0)
			return r;
	}
	return remove_leftovers(s, NULL);
}

static void single_close(struct joblog *log)
{
	struct single *s = single_of(log);

	alloc_free(s->buf);
	alloc_free(s);
}

static const struct joblog_ops single_ops = {
	.append = single_append,
	.unclear = single_unclear,
	.scan = single_scan,
	.trim = single_trim,
	.close = single_close,
};

/* Makes each folder on the way, and its name durable, whoever made it. */
static int make_folders(struct disk *disk, const char *dir, struct err *e)
{
	char path[DISK_PATH_MAX + 1], parent[DISK_PATH_MAX + 1] = "";

	for (const char *end = dir; *end; end += *end == '/') {
		int r;

		end = strchrnul(end, '/');
		memcpy(path, dir, (size_t)(end - dir));
		path[end - dir] = '\0';
		r = disk->ops->mkdir(disk, path);
		if (r < 0)
			return err_code(e, r, "make folder '%s' for a log", path);
		r = disk->ops->sync_dir(disk, parent);
		if (r < 0)
			return err_code(e, r, "sync folder '%s' for a log", parent);
		memcpy(parent, path, sizeof(parent));
	}
	return 0;
}

int joblog_single_open(struct disk *disk, const char *dir, struct joblog **ret, struct err *e)
{
	struct single *s;
	size_t len = strlen(dir);
	int r;

	assert(len > 0 && dir[0] != '/' && dir[len - 1] != '/');
	if (len + 1 + NAME_SIZE > DISK_PATH_MAX)
		return err_set(e, -ENAMETOOLONG, "the path of log folder '%s' is too long", dir);
	r = make_folders(disk, dir, e);
	if (r < 0)
		return r;
	s = alloc_zero(sizeof(*s));
	if (!s)
		return err_code(e, -ENOMEM, "open log '%s'", dir);
	s->log.ops = &single_ops;
	s->disk = disk;
	s->unsynced = true; /* an earlier process may have died before its sync */
	memcpy(s->dir, dir, len + 1);
	*ret = &s->log;
	return 0;
}
