/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beat.c - steps and phases, written into the page that ckptd looks at (proto/beat_page.h).
 *
 * Nothing here makes a system call but the first use of a page: the clock is the vDSO's, and the
 * question whether this is a forked child, elsewhere getpid(), is answered by memory that the
 * kernel wipes in a child (MADV_WIPEONFORK): `here` is 0 there, and the parent's page stays alone.
 * Where that cannot be had the calls ask getpid().
 *
 * What is true of the rank is remembered here, so that it can be written into another page when
 * ckptd had to give one. Only entries are lost with a page.
 *
 * Time of a step is from one beat to the next. What passes in CKPT_PHASE_SYNC and in long phases is
 * not the rank's own work; the rest is `busy`, said once it has marked a SYNC at all. Of phases in
 * one another the innermost counts, but within a long one all time is the long one's.
 *
 * Handle's thread alone: another one is refused, by one word of memory that a call takes and gives
 * back.
 */
#include <config.h>

#include "client/beat.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "client/client.h"

#define PAGE_SIZE_MIN 4096u
#define DEPTH         (CKPT_PHASE_DEPTH + 1) /* and one of the library's own */

_Static_assert(CKPT_BEAT_LOSS == BEAT_HAS_LOSS && CKPT_BEAT_GRAD_NORM == BEAT_HAS_GRAD_NORM &&
		       CKPT_BEAT_TOKENS == BEAT_HAS_TOKENS &&
		       CKPT_BEAT_METRIC(0) == BEAT_HAS_METRIC(0),
	       "the same bits in the call and in the page");
_Static_assert(CKPT_METRICS_MAX == BEAT_METRICS && CKPT_WORD_MAX + 1 == BEAT_TEXT_BYTES,
	       "the same bounds in the call and in the page");
_Static_assert(CKPT_PHASE_OTHER < 1 << BEAT_PHASE_BITS, "a phase fits its place");

struct level {
	uint32_t phase;
	uint64_t since_ns;
};

struct beating {
	uint64_t here;          /* 0: a forked child's */
	pid_t pid;              /* 0: `here` is enough */
	struct beat_page *page; /* NULL: there is none */
	uint64_t page_dev, page_ino;
	uint64_t written; /* into this page */
	uint64_t next_step;
	uint64_t place_ns; /* it is in STEP since */
	/* Of the step */
	uint64_t beat_ns; /* the last beat; 0: none yet */
	uint64_t mark_ns; /* what was waited until here is in: */
	uint64_t waited_ns;
	bool syncs; /* it has marked one */
	uint32_t depth, n_long,
		beyond; /* phases that are open; long ones; more than there is room */
	struct level levels[DEPTH];
	struct level outermost;             /* with n_long: the long one that is told */
	uint64_t saved_wanted, saved_epoch; /* this one was saved, in this epoch */
	uint64_t saving_next, saving_epoch; /* the newest save begun, + 1; 0: none */
	bool saving_waits;
	uint32_t n_metrics;
	char metrics[BEAT_METRICS][BEAT_TEXT_BYTES];
	char role[BEAT_TEXT_BYTES];
};
_Static_assert(sizeof(struct beating) <= PAGE_SIZE_MIN, "wiped as a whole");

static bool is_long(uint32_t phase)
{
	return phase >= CKPT_PHASE_CHECKPOINT;
}

/* ---- Life ---- */

int beating_new(struct beating **ret)
{
	struct beating *b = mmap(NULL, PAGE_SIZE_MIN, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (b == MAP_FAILED)
		return -errno;
	b->here = 1;
	if (madvise(b, PAGE_SIZE_MIN, MADV_WIPEONFORK) != 0)
		b->pid = getpid();
	b->place_ns = b->mark_ns = clock_ns();
	*ret = b;
	return 0;
}

void beating_free(struct beating *b)
{
	if (!b)
		return;
	if (b->page)
		munmap(b->page, BEAT_PAGE_BYTES);
	munmap(b, PAGE_SIZE_MIN);
}

static void write_place(struct beating *b)
{
	uint64_t place = BEAT_PLACE(CKPT_PHASE_STEP, b->place_ns), outermost = 0;

	if (!b->page)
		return;
	if (b->depth) {
		const struct level *l = &b->levels[b->depth - 1];

		place = BEAT_PLACE(l->phase, l->since_ns);
	}
	if (b->n_long)
		outermost = BEAT_PLACE(b->outermost.phase, b->outermost.since_ns);
	atomic_store_explicit(&b->page->long_place, outermost, memory_order_relaxed);
	atomic_store_explicit(&b->page->place, place, memory_order_release);
}

static void write_saving(struct beating *b)
{
	if (b->page && b->saving_next)
		beat_page_put_saving(b->page, b->saving_epoch, b->saving_next - 1, b->saving_waits);
}

static void write_entry(struct beating *b, const struct beat_record *r)
{
	if (b->page)
		beat_page_put(b->page, ++b->written, r);
}

static struct beat_page *map_page(int fd, struct stat *ret)
{
	struct beat_page *page;

	if (fstat(fd, ret) < 0 || ret->st_size < (off_t)BEAT_PAGE_BYTES)
		return NULL; /* a shorter one would be a SIGBUS later */
	page = mmap(NULL, BEAT_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
		    0);
	if (page == MAP_FAILED)
		return NULL;
	ignore_result(madvise(page, BEAT_PAGE_BYTES, MADV_DONTFORK) /* it would not be used */);
	if (page->magic == BEAT_PAGE_MAGIC && page->version >= BEAT_PAGE_VERSION)
		return page;
	munmap(page, BEAT_PAGE_BYTES);
	return NULL;
}

/* All that is true of the rank, into a page that knows nothing of it. */
static void write_all(struct beating *b)
{
	struct beat_page *p = b->page;

	b->written = 0;
	atomic_store_explicit(&p->next_step, b->next_step, memory_order_relaxed);
	beat_page_put_text(p, &p->role, b->role);
	for (uint32_t i = 0; i < b->n_metrics; i++)
		beat_page_put_text(p, &p->metrics[i], b->metrics[i]);
	write_place(b);
	write_saving(b);
	if (b->n_long)
		write_entry(b, &(struct beat_record){.time_ns = b->outermost.since_ns,
						     .kind = BEAT_KIND_PHASE_BEGIN,
						     .flags = b->outermost.phase});
}

void beating_take(struct beating *b, int fd)
{
	struct beat_page *page;
	struct stat st = {0};

	if (b->page && fstat(fd, &st) == 0 && st.st_dev == b->page_dev &&
	    st.st_ino == b->page_ino) {
		close(fd);
		return;
	}
	page = map_page(fd, &st);
	close(fd);
	if (!page)
		return; /* the one that it has is nobody's any more, and does no harm */
	if (b->page)
		munmap(b->page, BEAT_PAGE_BYTES);
	b->page = page;
	b->page_dev = st.st_dev;
	b->page_ino = st.st_ino;
	write_all(b);
}

/* ---- What every call begins with ---- */

/* Apart, and never inlined: a sentence has half a KiB that would be zeroed at each beat. */
static __attribute__((noinline)) int refuse(const struct ckpt *c, const char *call, bool here)
{
	struct err e = {0};

	if (!c)
		return error_keep(call, err_set(&e, -EINVAL, "no handle"), &e);
	if (here)
		return error_keep(call, call_refuse(c, &e), &e);
	return error_keep(call,
			  err_set(&e, -EPERM,
				  "this process was forked from the one that "
				  "opened job '%s'; open a handle of its own here",
				  c->who.job),
			  &e);
}

static int enter(struct ckpt *c, const char *call)
{
	bool here = c && c->beat->here && (!c->beat->pid || c->beat->pid == getpid());

	if (__builtin_expect(here && call_take(c), 1))
		return 0;
	return refuse(c, call, here);
}

/* Copies with zeros behind it; false: longer than there is room. */
static bool word(char to[BEAT_TEXT_BYTES], const char *from)
{
	size_t len = strlen(from);

	if (len > CKPT_WORD_MAX)
		return false;
	memset(to, 0, BEAT_TEXT_BYTES);
	memcpy(to, from, len);
	return true;
}

/* ---- Steps ---- */

/* The time up to now belongs to the phase that is open. */
static void account(struct beating *b, uint64_t now)
{
	bool waits = b->n_long || (b->depth && b->levels[b->depth - 1].phase == CKPT_PHASE_SYNC);

	if (waits && now > b->mark_ns)
		b->waited_ns += now - b->mark_ns;
	b->mark_ns = now;
}

static void beat(struct beating *s, const struct ckpt_beat *b)
{
	struct beat_record r;
	uint64_t now = clock_ns();

	account(s, now);
	r.time_ns = now;
	r.kind = BEAT_KIND_STEP;
	r.flags = b->flags & (CKPT_BEAT_METRIC(CKPT_METRICS_MAX) - CKPT_BEAT_METRIC(0) +
			      CKPT_BEAT_LOSS + CKPT_BEAT_GRAD_NORM + CKPT_BEAT_TOKENS);
	r.step = b->step;
	r.tokens = b->tokens;
	r.loss = b->loss;
	r.grad_norm = b->grad_norm;
	r.busy_ns = 0;
	memcpy(r.metrics, b->metrics, sizeof(r.metrics));
	if (s->beat_ns && s->syncs) {
		r.flags |= BEAT_HAS_BUSY;
		r.busy_ns = now - s->beat_ns - min_u64(s->waited_ns, now - s->beat_ns);
	}
	s->beat_ns = now;
	s->waited_ns = 0;
	s->next_step = b->step + 1;
	if (s->depth == 0)
		s->place_ns = now;
	if (!s->page)
		return;
	beat_page_put(s->page, ++s->written, &r);
	atomic_store_explicit(&s->page->next_step, s->next_step, memory_order_relaxed);
	if (s->depth == 0)
		atomic_store_explicit(&s->page->place, BEAT_PLACE(CKPT_PHASE_STEP, now),
				      memory_order_release);
}

/* Of a caller that was compiled with other members: those beyond them are not given. */
static __attribute__((noinline)) int beat_of_size(struct ckpt *c, const struct ckpt_beat *b)
{
	struct ckpt_beat known = {0};
	struct err e = {0};

	if (!b || b->size < offsetof(struct ckpt_beat, tokens))
		return call_leave_plain(c, "ckpt_beat",
					err_set(&e, -EINVAL,
						"size must be set to sizeof(struct ckpt_beat)"),
					&e);
	memcpy(&known, b, min_u64(b->size, sizeof(known)));
	beat(c->beat, &known);
	call_release(c);
	return CKPT_OK;
}

int ckpt_beat(struct ckpt *c, const struct ckpt_beat *b)
{
	int r = enter(c, "ckpt_beat");

	if (r < 0)
		return r;
	if (__builtin_expect(!b || b->size != sizeof(*b), 0))
		return beat_of_size(c, b);
	beat(c->beat, b);
	call_release(c);
	return CKPT_OK;
}

static int metric(struct beating *b, const char *name, struct err *e)
{
	char text[BEAT_TEXT_BYTES];

	if (!name || !name[0] || !word(text, name))
		return err_set(e, -EINVAL, "a metric's name has 1 to %d bytes", CKPT_WORD_MAX);
	for (uint32_t i = 0; i < b->n_metrics; i++)
		if (strcmp(b->metrics[i], text) == 0)
			return (int)i;
	if (b->n_metrics == CKPT_METRICS_MAX)
		return err_set(e, -ENOSPC,
			       "metric '%s': there are %d already, and no room for more", text,
			       CKPT_METRICS_MAX);
	memcpy(b->metrics[b->n_metrics], text, sizeof(text));
	if (b->page)
		beat_page_put_text(b->page, &b->page->metrics[b->n_metrics], text);
	return (int)b->n_metrics++;
}

int ckpt_metric(struct ckpt *c, const char *name)
{
	struct err e = {0};
	int r = enter(c, "ckpt_metric");

	if (r < 0)
		return r;
	r = metric(c->beat, name, &e);
	return call_leave_plain(c, "ckpt_metric", r, &e);
}

int ckpt_role(struct ckpt *c, const char *role)
{
	struct err e = {0};
	int r = enter(c, "ckpt_role");

	if (r < 0)
		return r;
	if (!role || !role[0] || !word(c->beat->role, role))
		r = err_set(&e, -EINVAL, "a role has 1 to %d bytes", CKPT_WORD_MAX);
	else if (c->beat->page)
		beat_page_put_text(c->beat->page, &c->beat->page->role, c->beat->role);
	return call_leave_plain(c, "ckpt_role", r, &e);
}

/* ---- Phases ---- */

static void tell_long(struct beating *b, enum beat_kind kind, uint32_t phase, const char *what,
		      uint64_t expected_ns, uint64_t now)
{
	struct beat_record r = {.time_ns = now,
				.kind = kind,
				.flags = phase,
				.phase = {.expected_ns = expected_ns}};

	if (what)
		strncpy(r.phase.what, what, sizeof(r.phase.what) - 1);
	write_entry(b, &r);
}

/* Only the outermost long phase is told: one in it is part of it. */
static void begin(struct beating *b, uint32_t phase, const char *what, uint64_t expected_ns)
{
	uint64_t now = clock_ns();

	assert(b->depth < DEPTH);
	account(b, now);
	b->levels[b->depth++] = (struct level){.phase = phase, .since_ns = now};
	b->syncs = b->syncs || phase == CKPT_PHASE_SYNC;
	if (is_long(phase) && b->n_long++ == 0) {
		b->outermost = b->levels[b->depth - 1];
		tell_long(b, BEAT_KIND_PHASE_BEGIN, phase, what, expected_ns, now);
	}
	write_place(b);
}

static void end(struct beating *b)
{
	uint64_t now = clock_ns();
	uint32_t phase;

	assert(b->depth > 0);
	account(b, now);
	phase = b->levels[--b->depth].phase;
	if (is_long(phase) && --b->n_long == 0)
		tell_long(b, BEAT_KIND_PHASE_END, phase, NULL, 0, now);
	if (b->depth == 0)
		b->place_ns = now;
	write_place(b);
}

void beating_begin(struct beating *b, enum ckpt_phase phase, const char *what)
{
	if (b->depth < DEPTH)
		begin(b, phase, what, 0);
	else
		b->beyond++;
}

void beating_end(struct beating *b)
{
	if (b->beyond)
		b->beyond--;
	else
		end(b);
}

static int check_phase(const struct beating *b, int phase, const char *what, int64_t expected_ms,
		       struct err *e)
{
	if (phase < CKPT_PHASE_STEP || phase > CKPT_PHASE_OTHER || expected_ms < 0)
		return err_set(e, -EINVAL, "phase %d for %lld ms: there is no such phase or time",
			       phase, (long long)expected_ms);
	if (what && strlen(what) > CKPT_WORD_MAX)
		return err_set(e, -EINVAL, "what a phase is for has at most %d bytes",
			       CKPT_WORD_MAX);
	if (b->depth >= CKPT_PHASE_DEPTH)
		return err_set(e, CKPT_ESTATE,
			       "%d phases are begun in one another already; is an "
			       "end missing?",
			       CKPT_PHASE_DEPTH);
	return 0;
}

int ckpt_phase_begin(struct ckpt *c, enum ckpt_phase phase, const char *what, int64_t expected_ms)
{
	struct err e = {0};
	uint64_t expected_ns;
	int r = enter(c, "ckpt_phase_begin");

	if (r < 0)
		return r;
	r = check_phase(c->beat, (int)phase, what, expected_ms, &e);
	if (r < 0)
		return call_leave_plain(c, "ckpt_phase_begin", r, &e);
	if (!size_mul((uint64_t)expected_ms, NS_PER_MS, &expected_ns))
		expected_ns = UINT64_MAX;
	begin(c->beat, phase, what, expected_ns);
	call_release(c);
	return CKPT_OK;
}

int ckpt_phase_end(struct ckpt *c)
{
	struct err e = {0};
	int r = enter(c, "ckpt_phase_end");

	if (r < 0)
		return r;
	if (c->beat->depth == 0)
		r = err_set(&e, CKPT_ESTATE, "no phase was begun");
	else
		end(c->beat);
	return call_leave_plain(c, "ckpt_phase_end", r, &e);
}

/* ---- A checkpoint that ckptd wants ---- */

/* A step that was passed in an older epoch may be wanted once more in this one. */
static uint64_t wanted_step(const struct beating *b, uint64_t epoch)
{
	uint64_t wanted =
		b->page ? atomic_load_explicit(&b->page->wanted_step, memory_order_acquire) : 0;

	return wanted == b->saved_wanted && epoch == b->saved_epoch ? 0 : wanted;
}

int ckpt_should_save(struct ckpt *c, uint64_t step)
{
	uint64_t wanted;
	int r = enter(c, "ckpt_should_save");

	if (r < 0)
		return r;
	wanted = wanted_step(c->beat, c->epoch);
	call_release(c);
	return wanted && step >= wanted;
}

bool beating_passed(const struct beating *b, uint64_t step, uint64_t epoch)
{
	return b->saving_epoch == epoch && step < b->saving_next;
}

void beating_saved(struct beating *b, uint64_t step, uint64_t epoch, bool waits)
{
	uint64_t wanted = wanted_step(b, epoch);

	b->saving_next = step + 1;
	b->saving_epoch = epoch;
	b->saving_waits = waits;
	write_saving(b);
	if (!wanted || step < wanted)
		return;
	b->saved_wanted = wanted;
	b->saved_epoch = epoch;
}

void beating_waited(struct beating *b)
{
	if (!b->saving_waits)
		return;
	b->saving_waits = false;
	write_saving(b);
}
