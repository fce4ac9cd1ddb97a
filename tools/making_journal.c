/* SPDX-License-Identifier: Apache-2.0 */
/*
 * making_journal.c - incoming/<job-id>.making: what is being made, by whom, and how far.
 *
 *   note    u32 kind, u32 length of what follows, that, digest of all three
 *   BEGIN   the first: what it is; the next run goes on only with exactly the same
 *   PART    a rank's chunks that are durable, behind those of the notes before: places, digests
 *   DONE    a rank's file is finished and synced: its line of COMMIT
 *
 * 1. A note is written after what it says is durable, and synced before more is written. A note
 *    that a crash tore does not match its digest: it ends the journal, and is written over.
 * 2. Whoever holds the exclusive lock of the file makes the checkpoint; nobody else writes.
 * 3. Finding and beginning are done under the lock of incoming/LOCK: two that begin the same at the
 *    same time see each other.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "codec/digest.h"
#include "model/attempt.h"
#include "model/load_plan.h"
#include "storage/disk_posix.h"
#include "tools/making_parts.h"

#define NOTE_HEAD    8u
#define NOTE_MAX     MAKING_NOTE_MAX
#define LOCK_PATH    "incoming/LOCK"
#define LOCK_TRIES   500
#define LOCK_WAIT_NS 20000000

enum note { NOTE_BEGIN = 0x4e474542, NOTE_PART = 0x54524150, NOTE_DONE = 0x454e4f44 };
#define JOURNAL_VERSION 1u

/* ---- Notes ---- */

/* (1) is about names too. */
static int sync_names(struct making *m)
{
	struct disk *d = m->store.disk;
	char path[DISK_PATH_MAX + 1];
	int r;

	if (!m->names_unsynced)
		return 0;
	path_checkpoint(path, &m->id);
	r = d->ops->sync_dir(d, path);
	path_job(path, &m->id.job);
	if (r == 0)
		r = d->ops->sync_dir(d, path);
	if (r == 0)
		r = d->ops->sync_dir(d, "incoming");
	if (r == 0)
		m->names_unsynced = false;
	return r;
}

static int append(struct making *m, struct writer *notes)
{
	const struct disk_ops *ops = m->making->disk->ops;
	int r = notes->bad ? -ENOMEM : sync_names(m);

	if (r == 0)
		r = ops->write(m->making, notes->buf, notes->len, m->journal_end);
	if (r == 0)
		r = ops->sync(m->making);
	if (r == 0)
		m->journal_end += notes->len;
	return r;
}

/* Ends the note that begins at `from`. */
static void note_end(struct writer *w, size_t from)
{
	struct digest d;

	if (w->bad)
		return;
	put_le32(w->buf + from + 4, (uint32_t)(w->len - from - NOTE_HEAD));
	d = digest_of(w->buf + from, w->len - from);
	write_bytes(w, d.b, sizeof(d.b));
}

static size_t note_begin(struct writer *w, enum note kind)
{
	size_t from = w->len;

	write_u32(w, kind);
	write_u32(w, 0);
	return from;
}

/* What must be the same for one to go on with what the other left. */
static void write_what(const struct making *m, struct writer *w)
{
	struct geometry g = m->store.geometry;

	write_u32(w, JOURNAL_VERSION);
	write_str(w, m->job, strlen(m->job));
	write_u32(w, m->o.uid);
	write_u64(w, m->o.step);
	write_bytes(w, m->layout.b, sizeof(m->layout.b));
	write_bytes(w, m->o.from.b, sizeof(m->o.from.b));
	write_u32(w, m->world);
	write_u32(w, (uint32_t)m->o.compression);
	write_u32(w, g.leaf);
	write_u32(w, g.chunk);
	for (uint32_t i = 0; i < m->world; i++)
		write_u64(w, m->ranks[i].image_len); /* the blobs' sizes count too */
}

static void write_part(struct writer *w, struct geometry g, uint32_t rank, uint64_t from,
		       const struct stream_state *s, uint64_t image_len)
{
	uint64_t leaf = from * (g.chunk / g.leaf);
	uint64_t end = div_up(min_u64(s->n_chunks * g.chunk, image_len), g.leaf);
	size_t at = note_begin(w, NOTE_PART);

	write_u32(w, rank);
	write_u64(w, from);
	write_u64(w, s->n_chunks);
	write_u64(w, s->data_end);
	write_u64(w, s->stored);
	write_bytes(w, s->places + from * CHUNK_PLACE_BYTES,
		    (s->n_chunks - from) * CHUNK_PLACE_BYTES);
	write_bytes(w, s->leaves + leaf, (end - leaf) * sizeof(*s->leaves));
	note_end(w, at);
}

int making_note_open(struct making *m, struct err *e)
{
	struct writer w = {0};
	struct stream_state s;
	int r = 0;

	for (uint32_t i = 0; i < m->world && r == 0; i++) {
		struct making_rank_state *k = &m->ranks[i];

		if (!k->stream)
			continue;
		r = shard_stream_sync(k->stream, &s, e);
		if (r == 0 && s.n_chunks > k->noted)
			write_part(&w, m->store.geometry, i, k->noted, &s, k->image_len);
		if (r == 0)
			k->noted = s.n_chunks;
	}
	if (r == 0 && w.len > 0) {
		r = append(m, &w);
		if (r < 0)
			err_code(e, r, "note what is finished of job '%s'", m->job);
	}
	writer_free(&w);
	m->since = 0;
	return r;
}

int making_note_done(struct making *m, uint32_t rank, struct err *e)
{
	const struct shard_footer *f = &m->ranks[rank].footer;
	struct writer w = {0};
	size_t at = note_begin(&w, NOTE_DONE);
	int r;

	write_u32(&w, rank);
	write_u64(&w, f->footer_offset);
	write_u64(&w, f->footer_len);
	write_bytes(&w, f->footer.b, sizeof(f->footer.b));
	write_u64(&w, f->table_len);
	write_bytes(&w, f->table.b, sizeof(f->table.b));
	write_u64(&w, f->stored);
	note_end(&w, at);
	r = append(m, &w);
	writer_free(&w);
	return r < 0 ? err_code(e, r, "note that rank %u of job '%s' is finished", rank, m->job)
		     : 0;
}

/* ---- Reading ---- */

struct journal {
	struct disk_file *f;
	uint64_t at, size;
	uint8_t *note; /* the one read last; owned */
	uint64_t cap;
};

static int journal_begin(struct journal *j, struct disk_file *f)
{
	*j = (struct journal){.f = f};
	return f->disk->ops->size(f, &j->size);
}

/* bytes of the note at j->at; 0: it cannot be one. */
static int note_bytes(struct journal *j, uint64_t *ret)
{
	uint64_t least = NOTE_HEAD + sizeof(struct digest), left = j->size - j->at;
	uint8_t head[NOTE_HEAD];
	int r;

	*ret = 0;
	if (left < least)
		return 0;
	r = j->f->disk->ops->read(j->f, head, sizeof(head), j->at);
	if (r == 0 && get_le32(head + 4) <= min_u64(NOTE_MAX, left - least))
		*ret = least + get_le32(head + 4);
	return r;
}

/*
 * The next good note: 1, 0 when there is none, or an error. One at a time is in memory: what lies
 * here may be anything of any size. ret points into j, up to the next call.
 */
static int next_note(struct journal *j, uint32_t *ret_kind, struct reader *ret)
{
	uint64_t bytes, len;
	struct digest d;
	int r = note_bytes(j, &bytes);

	if (r < 0 || bytes == 0)
		return r == -ENODATA ? 0 : r;
	if (bytes > j->cap) {
		alloc_free(j->note);
		j->cap = 0;
		j->note = alloc_zero(bytes);
		if (!j->note)
			return -ENOMEM;
		j->cap = bytes;
	}
	r = j->f->disk->ops->read(j->f, j->note, bytes, j->at);
	if (r < 0)
		return r == -ENODATA ? 0 : r;
	len = bytes - sizeof(d);
	d = digest_of(j->note, len);
	if (memcmp(d.b, j->note + len, sizeof(d.b)) != 0)
		return 0;
	*ret_kind = get_le32(j->note);
	*ret = reader_of(j->note + NOTE_HEAD, len - NOTE_HEAD);
	j->at += bytes;
	return 1;
}

static bool read_done(struct making *m, struct reader *r)
{
	uint32_t rank = read_u32(r);
	struct shard_footer f = {.rank = rank};
	const void *footer, *table;

	f.footer_offset = read_u64(r);
	f.footer_len = read_u64(r);
	footer = read_bytes(r, sizeof(f.footer.b));
	f.table_len = read_u64(r);
	table = read_bytes(r, sizeof(f.table.b));
	f.stored = read_u64(r);
	if (r->bad || reader_left(r) || rank >= m->world)
		return false;
	memcpy(f.footer.b, footer, sizeof(f.footer.b));
	memcpy(f.table.b, table, sizeof(f.table.b));
	m->ranks[rank].footer = f;
	m->ranks[rank].done = true;
	return true;
}

/* Room for the whole image's: it is needed soon anyway. */
static int make_room(struct made *d, uint64_t image_len, struct geometry g)
{
	if (d->places)
		return 0;
	d->places = alloc_array(div_up(image_len, g.chunk), CHUNK_PLACE_BYTES);
	d->leaves = alloc_array(div_up(image_len, g.leaf), sizeof(*d->leaves));
	return d->places && d->leaves ? 0 : -ENOMEM;
}

/* 1, 0: it cannot be, or -ENOMEM. */
static int read_part(struct making *m, struct reader *r)
{
	struct geometry g = m->store.geometry;
	uint32_t rank = read_u32(r);
	uint64_t from = read_u64(r), to = read_u64(r), data_end = read_u64(r), stored = read_u64(r);
	struct making_rank_state *k = rank < m->world ? &m->ranks[rank] : NULL;
	const void *places, *leaves;
	uint64_t leaf, end;

	if (r->bad || !k || from != k->made.n_chunks || to < from ||
	    to > div_up(k->image_len, g.chunk))
		return 0;
	leaf = from * (g.chunk / g.leaf);
	end = div_up(min_u64(to * g.chunk, k->image_len), g.leaf);
	places = read_bytes(r, (to - from) * CHUNK_PLACE_BYTES);
	leaves = read_bytes(r, (end - leaf) * sizeof(struct digest));
	if (r->bad || reader_left(r))
		return 0;
	if (make_room(&k->made, k->image_len, g) < 0)
		return -ENOMEM;
	memcpy(k->made.places + from * CHUNK_PLACE_BYTES, places, (to - from) * CHUNK_PLACE_BYTES);
	memcpy(k->made.leaves + leaf, leaves, (end - leaf) * sizeof(struct digest));
	k->made.n_chunks = k->noted = to;
	k->made.data_end = data_end;
	k->made.stored = stored;
	return 1;
}

/* Everything behind BEGIN, up to what is not good (1). */
static int read_notes(struct making *m, struct journal *j)
{
	struct reader note;
	uint32_t kind;
	int r = 1;

	m->journal_end = j->at;
	while (r == 1) {
		r = next_note(j, &kind, &note);
		if (r == 1 && kind == NOTE_DONE)
			r = read_done(m, &note);
		else if (r == 1)
			r = kind == NOTE_PART ? read_part(m, &note) : 0;
		if (r == 1)
			m->journal_end = j->at;
	}
	return r;
}

/* ---- What an earlier run left ---- */

struct finding {
	struct making *m;
	struct writer what; /* what is to be made */
	bool locked;        /* incoming/LOCK is held */
	bool found;
	struct err *err;
};

/* What a .making says that it is for. */
enum begun {
	BEGUN_NOT, /* its maker was killed before that was written, or it is damaged */
	BEGUN_OTHER,
	BEGUN_NAME, /* the same name, of the same user */
	BEGUN_SAME, /* all of it */
};

/* An enum begun, or an error. */
static int compare_begin(const struct finding *x, struct journal *j)
{
	const struct making *m = x->m;
	struct reader note, name;
	const char *job;
	uint32_t kind;
	size_t len;
	int r = next_note(j, &kind, &note);

	if (r < 0)
		return r;
	if (r == 0 || kind != NOTE_BEGIN)
		return BEGUN_NOT;
	name = note;
	read_u32(&name);
	job = read_str(&name, CKPT_JOB_MAX, &len);
	if (!job || len != strlen(m->job) || memcmp(job, m->job, len) != 0 ||
	    read_u32(&name) != m->o.uid)
		return BEGUN_OTHER;
	return reader_left(&note) == x->what.len && memcmp(note.p, x->what.buf, x->what.len) == 0
		       ? BEGUN_SAME
		       : BEGUN_NAME;
}

static int open_making(struct making *m, const struct job_id *job, unsigned flags,
		       struct disk_file **ret)
{
	struct disk *d = m->store.disk;
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	uint64_t links = 0;
	int r;

	path_making(path, job);
	r = d->ops->open(d, path, flags, &f);
	if (r < 0)
		return r;
	r = f->disk->ops->lock(f, true);
	if (r == 0)
		r = f->disk->ops->links(f, &links);
	if (r == 0 && links == 0)
		r = -ENOENT; /* it was finished, and taken away, before we had the lock */
	if (r < 0) {
		f->disk->ops->close(f);
		return r;
	}
	*ret = f;
	return 0;
}

static int say_busy(const struct making *m, struct err *e)
{
	return err_set(e, -EBUSY,
		       "job '%s' is being made by another process: wait for it, or take "
		       "another name",
		       m->job);
}

/* Goes on with it: once the lock is taken, what was noted is read. f: of a dry run, which takes
 * none. */
static int take_over(struct finding *x, const struct job_id *job, struct disk_file *f)
{
	struct making *m = x->m;
	struct journal j = {0};
	int r = m->o.dry_run ? 0 : open_making(m, job, 0, &m->making);

	if (r == -EAGAIN)
		return say_busy(m, x->err);
	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = journal_begin(&j, m->o.dry_run ? f : m->making);
	if (r == 0)
		r = compare_begin(x, &j);
	if (r >= 0) /* it may have been damaged since: then it stays for gc */
		r = r == BEGUN_SAME ? read_notes(m, &j) : -ESTALE;
	alloc_free(j.note);
	if (r < 0)
		return err_code(x->err, r, "go on with job '%s'", m->job);
	m->id.job = *job;
	m->resumed = true;
	x->found = true;
	return 0;
}

struct sizes {
	const struct beneath *in;
	const char *folder;
	uint64_t sum;
};

/* What cannot be looked at is not counted: it is about room alone. */
static int add_size(void *arg, const char *name, bool is_dir)
{
	struct sizes *x = arg, below = {.in = x->in};
	char path[DISK_PATH_MAX + 1];
	struct stat st;

	if (snprintf(path, sizeof(path), "%s/%s", x->folder, name) >= (int)sizeof(path))
		return 0;
	if (is_dir) {
		below.folder = path;
		ignore_result(beneath_list(x->in, path, add_size, &below));
		x->sum += below.sum;
	} else if (beneath_stat(x->in, path, &st) == 0 && S_ISREG(st.st_mode)) {
		x->sum += (uint64_t)st.st_blocks * 512;
	}
	return 0;
}

/* What staging_remove() would give back. */
static uint64_t disk_bytes(const struct making *m, const struct job_id *job)
{
	struct sizes x = {.in = disk_posix_folder(m->disk)};
	char staged[DISK_PATH_MAX + 1];

	path_staged(staged, job);
	x.folder = staged;
	ignore_result(beneath_list(x.in, staged, add_size, &x));
	return x.sum;
}

static int look_at(struct finding *x, const struct staged *s, struct disk_file *f)
{
	struct making *m = x->m;
	struct journal j = {0};
	int begun = journal_begin(&j, f);

	if (begun == 0)
		begun = compare_begin(x, &j);
	alloc_free(j.note);
	if (begun < 0)
		return err_code(x->err, begun, "cannot read what is being made in '%.150s'",
				m->path);
	if (begun == BEGUN_NOT && x->locked && !s->busy && !s->folder)
		return staging_remove(&m->store, &s->job, x->err); /* (3): nobody goes on with it */
	if (begun >= BEGUN_NAME && s->busy)
		return say_busy(m, x->err);
	if (begun != BEGUN_SAME)
		return 0;
	if (m->o.keep)
		return take_over(x, &s->job, f);
	if (!m->o.dry_run) /* what it left is in nobody's way, and nobody's any more */
		return staging_remove(&m->store, &s->job, x->err);
	m->freed += disk_bytes(m, &s->job);
	return 0;
}

static int on_staged(void *arg, const struct staged *s)
{
	struct finding *x = arg;
	struct disk *d = x->m->store.disk;
	char path[DISK_PATH_MAX + 1];
	struct disk_file *f = NULL;
	int r;

	if (x->found || !s->making)
		return 0;
	path_making(path, &s->job);
	r = d->ops->open(d, path, DISK_READ, &f);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return err_code(x->err, r, "cannot open '%s'", path);
	r = look_at(x, s, f);
	d->ops->close(f);
	return r;
}

/* Without the lock (3): what is found may be another's a moment later. */
int making_look(struct making *m, struct err *e)
{
	struct finding x = {.m = m, .err = e};
	int r;

	write_what(m, &x.what);
	r = x.what.bad ? err_code(e, -ENOMEM, "look for job '%s'", m->job)
		       : staging_each(&m->store, on_staged, &x, e);
	writer_free(&x.what);
	return r == 0 ? making_check_name(m, e) : r;
}

static int begin_anew(struct finding *x)
{
	struct making *m = x->m;
	struct writer w = {0};
	struct rng rng;
	size_t at;
	int r;

	rng_system(&rng);
	rng.fill(&rng, m->id.job.b, sizeof(m->id.job.b));
	r = open_making(m, &m->id.job, DISK_CREATE | DISK_EXCL, &m->making);
	if (r == 0) {
		at = note_begin(&w, NOTE_BEGIN);
		write_bytes(&w, x->what.buf, x->what.len);
		note_end(&w, at);
		r = append(m, &w);
	}
	if (r == 0)
		r = m->store.disk->ops->sync_dir(m->store.disk, "incoming");
	writer_free(&w);
	return r < 0 ? err_code(x->err, r, "begin job '%s' in incoming/ of '%.150s'", m->job,
				m->path)
		     : 0;
}

/* (3) */
static int lock_incoming(struct making *m, struct disk_file **ret, struct err *e)
{
	const struct timespec pause = {.tv_nsec = LOCK_WAIT_NS};
	struct disk *d = m->store.disk;
	struct disk_file *f = NULL;
	int r = d->ops->open(d, LOCK_PATH, DISK_CREATE, &f);

	if (r < 0)
		return err_code(e, r, "cannot open '" LOCK_PATH "' of '%.150s'", m->path);
	r = f->disk->ops->lock(f, true);
	for (int i = 0; i < LOCK_TRIES && r == -EAGAIN; i++) {
		nanosleep(&pause, NULL);
		r = f->disk->ops->lock(f, true);
	}
	if (r < 0) {
		f->disk->ops->close(f);
		return err_code(e, r, "cannot lock '" LOCK_PATH "' of '%.150s'", m->path);
	}
	*ret = f;
	return 0;
}

int making_begin(struct making *m, struct err *e)
{
	struct finding x = {.m = m, .err = e};
	struct disk_file *lock = NULL;
	int r = staging_make_folder(&m->store, e);

	if (r == 0)
		r = lock_incoming(m, &lock, e);
	if (r < 0)
		return r;
	x.locked = true;
	write_what(m, &x.what);
	r = x.what.bad ? err_code(e, -ENOMEM, "begin job '%s'", m->job)
		       : staging_each(&m->store, on_staged, &x, e);
	if (r == 0 && !x.found) {
		r = making_check_name(m, e);
		if (r == 0)
			r = begin_anew(&x);
	}
	lock->disk->ops->close(lock);
	writer_free(&x.what);
	if (r == 0)
		m->id.attempt = attempt_id_make(&m->id.job, 1, 1, m->id.step, 0);
	return r;
}
