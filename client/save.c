/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - one save: a credit, a copy, a seal.
 *
 *   checked -> the last save's credit settled -> credit taken -> copied -> sealed
 *                                           no credit -> Skip: CKPT_SKIPPED
 *   refused before a credit was looked for -> Skip that says so: nothing waits for this save
 *   copied with an error, or Seal refused or not heard of -> Skip with the credit: it is unused
 *
 * Invariants: those of client.h. A save waits for ckptd on its own node and nobody else (I13): the
 * credit lies in a page that is only read, and every wait has the caller's deadline. What cannot be
 * known (no answer to a Seal) is an error here, whatever became of it there; the next save first
 * settles it, so that a slot is never written that may be sealed.
 *
 * The first save of a handle waits for its slots and for a credit, as every save does that has
 * CKPT_WAIT_CREDIT: nothing was copied yet that could be had instead.
 *
 * From ckpt_prepare() on no path of a save that works allocates or touches a fresh page.
 */
#include <config.h>

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "client/client.h"
#include "client/image.h"
#include "client/mapping.h"
#include "client/skip.h"
#include "codec/copy.h"

#define CREDIT_SLICE_MS 1000 /* how often a wait for a credit looks whether the epoch went on */
/* A save that does not wait for a credit gives ckptd this long for an answer about new slots. */
#define SLOTS_STEP_MS 20

/* No load would find it, and no step could come after it. */
static int step_check(uint64_t step, struct err *e)
{
	if (step != CKPT_LATEST)
		return 0;
	return err_set(e, -EINVAL, "CKPT_LATEST, %llu or -1, is no step that can be saved",
		       (unsigned long long)step);
}

int save_args_known(const struct ckpt_save_args *a, struct ckpt_save_args *ret, struct err *e)
{
	struct ckpt_save_args known = { .size = sizeof(known),
					.timeout_ms = CKPT_DEFAULT_TIMEOUT };

	if (!a || a->size < offsetof(struct ckpt_save_args, blobs))
		return err_set(e, -EINVAL, "arguments: size must be set to sizeof(struct "
			       "ckpt_save_args)");
	memcpy(&known, a, min_u64(a->size, sizeof(known)));
	known.size = sizeof(known);
	if (known.flags & ~(CKPT_WAIT_CREDIT | CKPT_FULL_COMPARE))
		return err_set(e, -EINVAL, "unknown flags %#x", known.flags);
	*ret = known;
	return timeout_check(known.timeout_ms, e) < 0 ? -EINVAL : step_check(known.step, e);
}

/* ---- Blobs ---- */

static bool same_name(const struct blob_entry *a, const struct blob_entry *b)
{
	return a->name_len == b->name_len && memcmp(a->name, b->name, a->name_len) == 0;
}

/* Names are copied: they go into the Seal, which may be sent after the caller's are gone. */
static int blob_names(struct ckpt *c, const struct ckpt_blob *blobs, uint32_t n, struct err *e)
{
	size_t used = 0;

	for (uint32_t i = 0; i < n; i++) {
		size_t len = blobs[i].name ? strnlen(blobs[i].name, CKPT_NAME_MAX + 1) : 0;

		if (len == 0 || len > CKPT_NAME_MAX)
			return err_set(e, -EINVAL, "blob %u: its name must have 1 to %d bytes", i,
				       CKPT_NAME_MAX);
		if (text_utf8_len(blobs[i].name, len) != len)
			return err_set(e, -EINVAL,
				       "blob %u: its name of %zu bytes is not UTF-8 behind the "
				       "first %zu; encode it",
				       i, len, text_utf8_len(blobs[i].name, len));
		if (!blobs[i].data && blobs[i].bytes)
			return err_set(e, -EINVAL, "blob '%.100s': its data is missing",
				       blobs[i].name);
		/* 40: what a blob needs in the message beside its name. */
		if (len + 1 + 40 > BLOB_NAMES_MAX - used)
			return err_set(e, -E2BIG, "%u blobs: their names do not fit one message; "
				       "use fewer or shorter names", n);
		memcpy(c->blob_names + used, blobs[i].name, len + 1);
		c->blobs[i] = (struct blob_entry){ .name = c->blob_names + used,
						   .name_len = (uint32_t)len,
						   .bytes = blobs[i].bytes };
		used += len + 1 + 40;
		for (uint32_t k = 0; k < i; k++)
			if (same_name(&c->blobs[k], &c->blobs[i]))
				return err_set(e, -EINVAL, "blob '%.100s' is given twice",
					       blobs[i].name);
	}
	return 0;
}

static int check_room(const struct ckpt *c, const struct save *s, struct err *e)
{
	if (s->image_len <= c->slot_bytes)
		return 0;
	return err_set(e, CKPT_ENOSPACE,
		       "the blobs of step %llu need %llu bytes and have room for %llu: call "
		       "ckpt_prepare(), in Python prepare(blob_space=%llu), before the first save "
		       "or load",
		       (unsigned long long)s->step,
		       (unsigned long long)(s->image_len - blobs_offset(c)),
		       (unsigned long long)(c->slot_bytes - blobs_offset(c)),
		       (unsigned long long)(s->image_len - blobs_offset(c)));
}

static int place_blobs(struct ckpt *c, const struct ckpt_save_args *a, struct save *s,
		       struct err *e)
{
	uint32_t n = (uint32_t)a->n_blobs;
	int r;

	if (a->n_blobs > BLOBS_MAX)
		return err_set(e, -E2BIG, "%zu blobs: a save holds at most %u", a->n_blobs,
			       BLOBS_MAX);
	if (n && !a->blobs)
		return err_set(e, -EINVAL, "blobs are missing");
	r = blob_names(c, a->blobs, n, e);
	if (r < 0)
		return r;
	s->n_blobs = n;
	if (blobs_place(&c->own.view, c->blobs, n, &s->image_len) < 0)
		s->image_len = UINT64_MAX;
	return check_room(c, s, e);
}

/* Slots begin as zeros and shards always lie in the same places; only the gaps behind blobs hold
 * what an earlier save left there. Zeroed, so that equal states have equal digests. */
static void copy_blobs(struct ckpt *c, const struct ckpt_blob *blobs, const struct save *s)
{
	uint8_t *image = c->slots[s->slot].base;

	for (uint32_t i = 0; i < s->n_blobs; i++) {
		const struct blob_entry *b = &c->blobs[i];
		uint64_t end = b->image_offset + b->bytes;
		uint64_t next = i + 1 < s->n_blobs ? c->blobs[i + 1].image_offset
						   : min_u64(round_up(end, IMAGE_ALIGN_LARGE),
							     c->slot_bytes);

		assert(next >= end && next <= c->slot_bytes);
		copy_large(image + b->image_offset, blobs[i].data, b->bytes);
		memset(image + end, 0, next - end);
		c->places[i].name = (char *)b->name;
		c->places[i].image_offset = b->image_offset;
		c->places[i].bytes = b->bytes;
	}
}

/* ---- Skip and Seal ---- */

static int say_skip(struct ckpt *c, const struct save *s, uint64_t credit, int kind,
		    const char *reason, uint64_t deadline, struct err *e)
{
	Ckpt__Skip skip = CKPT__SKIP__INIT;
	struct request q;

	skip.step = s->step;
	skip.epoch = s->epoch;
	skip.credit = credit;
	skip.try_ = s->try;
	skip.kind = (uint32_t)kind;
	skip.reason = (char *)reason;
	request_init(&q, e);
	q.message.body_case = CKPT__REQUEST__BODY_SKIP;
	q.message.skip = &skip;
	if (credit)
		return session_call_slots(c, &q, s->generation, deadline);
	return session_call(c, &q, deadline);
}

/* Nothing depends on the answer: a save whose time is over does not wait for it. */
static int tell_skipped(struct ckpt *c, const struct save *s, const char *reason, uint64_t deadline,
			struct err *e)
{
	bool late = call_is_over(c, deadline);
	int r = say_skip(c, s, 0, s->skip_reason, reason, deadline, e);

	return late && r == CKPT_ETIMEDOUT ? 0 : r;
}

/* (3) of client.h. */
static int settle(struct ckpt *c, uint64_t deadline, struct err *e)
{
	int r = 0;

	if (c->unsettled.credit == 0)
		return 0;
	if (c->unsettled.generation == c->generation)
		r = say_skip(c, &c->unsettled, c->unsettled.credit, CKPT_SKIP_FAILED,
			     "its save failed", deadline, e);
	if (c->unsettled.generation != c->generation)
		r = 0; /* the credit is gone with its slots */
	if (r == 0)
		c->unsettled = (struct save){ 0 };
	return r;
}

void save_give_up(struct ckpt *c, struct save *s, const char *reason, uint64_t deadline)
{
	struct err e = { 0 };

	c->unsettled = *s;
	/* Not while there is no connection: the save has failed, it need not also be slow. */
	if (c->rq.channel.up && s->generation == c->generation &&
	    say_skip(c, s, s->credit, CKPT_SKIP_FAILED, reason,
		     min_u64(deadline, deadline_in(ASK_MS)), &e) == 0)
		c->unsettled = (struct save){ 0 };
}

/* Nothing of it waits in ckptd: this is for whoever looks why the job has no new checkpoint. */
static void tell_refused(struct ckpt *c, const struct save *s, const struct err *why)
{
	struct err e = {0};
	char text[SKIP_TEXT_MAX];

	/* The save has failed, it need not also be slow. */
	if (!c->rq.channel.up || call_is_over(c, s->deadline))
		return;
	text_put(text, sizeof(text), why && why->text[0] ? why->text : "its save failed");
	ignore_result(say_skip(c, s, 0, CKPT_SKIP_REFUSED, text,
			       min_u64(s->deadline, deadline_in(ASK_MS)), &e));
}

struct sealing {
	struct request q;
	struct ckpt *c;
};

static int seal_reply(struct request *q, const Ckpt__Reply *reply, int *fds, size_t n_fds)
{
	struct ckpt *c = container_of(q, struct sealing, q)->c;

	(void)fds;
	(void)n_fds;
	if (q->status < 0 || !reply->text || !reply->text[0])
		return 0;
	snprintf(c->note, sizeof(c->note), "%s", reply->text);
	c->noted = true;
	return 0;
}

int save_seal(struct ckpt *c, struct save *s, uint64_t deadline, struct err *e)
{
	Ckpt__Seal seal = CKPT__SEAL__INIT;
	struct sealing l = {.c = c};
	int r;

	seal.step = s->step;
	seal.epoch = s->epoch;
	seal.credit = s->credit;
	seal.slot = c->slots[s->slot].number;
	seal.image_len = s->image_len;
	seal.try_ = s->try;
	seal.blobs = c->place_list;
	seal.n_blobs = s->n_blobs;
	seal.declaration = (ProtobufCBinaryData){ sizeof(c->digest.b), c->digest.b };
	request_init(&l.q, e);
	l.q.message.body_case = CKPT__REQUEST__BODY_SEAL;
	l.q.message.seal = &seal;
	l.q.reply = seal_reply;
	c->unsettled = *s;
	r = session_call_slots(c, &l.q, s->generation, deadline);
	if (r == 0) {
		c->unsettled = (struct save){ 0 };
		c->sealed_step = s->step;
		c->sealed_epoch = s->epoch;
	} else if (l.q.done) { /* refused, and ckptd listens: better now than at the next save */
		save_give_up(c, s, "its seal was refused", deadline);
	}
	return r;
}

/* ---- Credit ---- */

static uint32_t count_try(struct ckpt *c, uint64_t step)
{
	struct step_tries *t;

	for (uint32_t i = 0; i < TRIES_MAX; i++) {
		t = &c->tries[i];
		if (t->n && t->step == step && t->epoch == c->epoch)
			return t->n++;
	}
	t = &c->tries[c->next_try++ % TRIES_MAX];
	*t = (struct step_tries){ .step = step, .epoch = c->epoch, .n = 1 };
	return 0;
}

static int check_epoch(const struct ckpt *c, uint64_t step, struct err *e)
{
	uint64_t now = atomic_load_explicit(&c->page->epoch, memory_order_acquire);

	if (now == c->epoch)
		return 0;
	return err_set(e, CKPT_EEPOCH, "step %llu belongs to epoch %llu and job '%s' is in epoch "
		       "%llu now; load, then go on", (unsigned long long)step,
		       (unsigned long long)c->epoch, c->who.job, (unsigned long long)now);
}

/* Whether the credit that the page shows is for this step; else s->skip_reason is why not. */
static bool credit_fits(const struct ckpt *c, struct save *s, uint64_t credit)
{
	uint64_t from = atomic_load(&c->page->credit_from);

	if (credit > c->credit_used && s->step >= from)
		return true;
	if (credit > c->credit_used && from != CREDIT_NOT_YET) {
		s->skip_reason = CKPT_SKIP_PASSED;
		return false;
	}
	s->skip_reason = (int)atomic_load_explicit(&c->page->blocked, memory_order_relaxed);
	/* Nothing keeps ckptd from giving it: it has not come to that. */
	if (s->skip_reason == CKPT_SKIP_NONE)
		s->skip_reason = CKPT_SKIP_PENDING;
	s->skip_rank = atomic_load_explicit(&c->page->blocked_rank, memory_order_relaxed);
	/* This rank does not owe the step before, it has sealed a newer one: its step falls. */
	if (s->skip_reason == CKPT_SKIP_BEHIND && s->skip_rank == c->who.rank &&
	    c->sealed_epoch == c->epoch && s->step < c->sealed_step)
		s->skip_reason = CKPT_SKIP_PASSED;
	return false;
}

/* 1: taken (1), 0: there is none, or an error. The step was written into the beat page before:
 * sequentially consistent, as there. */
static int take_credit(struct ckpt *c, struct save *s, struct err *e)
{
	uint64_t credit = atomic_load(&c->page->credit);
	uint32_t number = atomic_load(&c->page->credit_slot);

	if (!credit_fits(c, s, credit))
		return 0;
	for (uint32_t i = 0; i < c->n_slots; i++) {
		if (c->slots[i].number != number)
			continue;
		if (!mapping_has(c, i)) { /* it came since prepare_slots() looked */
			s->skip_reason = CKPT_SKIP_SLOTS;
			s->skip_rank = c->who.rank;
			return 0;
		}
		s->slot = i;
		s->credit = credit;
		s->generation = c->generation;
		c->credit_used = credit;
		return 1;
	}
	return err_set(e, CKPT_EPROTO, "ckptd gave a credit for slot %u, which this rank does not "
		       "have", number);
}

/* Asks to be told of a credit; CKPT_ETIMEDOUT: none came. */
static int ask_credit(struct ckpt *c, uint64_t until, struct err *e)
{
	Ckpt__Credit credit = CKPT__CREDIT__INIT;
	Ckpt__Cancel cancel = CKPT__CANCEL__INIT;
	struct request q, stop;
	int r;

	request_init(&q, e);
	q.message.body_case = CKPT__REQUEST__BODY_CREDIT;
	q.message.credit = &credit;
	r = session_call(c, &q, until);
	if (r != CKPT_ETIMEDOUT || !c->rq.channel.up)
		return r;
	cancel.request = q.message.id;
	request_init(&stop, NULL);
	stop.message.body_case = CKPT__REQUEST__BODY_CANCEL;
	stop.message.cancel = &cancel;
	ignore_result(request_start(&c->rq, &stop, 0) /* an answer nobody waits for is dropped */);
	request_forget(&stop);
	return r;
}

static int wait_credit(struct ckpt *c, struct save *s, uint64_t deadline, struct err *e)
{
	for (;;) {
		/* ckptd may be lost meanwhile, and they */
		int r = prepare_slots(c, deadline, deadline, e);

		if (r > 0)
			r = check_room(c, s, e);
		if (r == 0)
			r = take_credit(c, s, e);
		if (r == 0)
			r = check_epoch(c, s->step, e);
		/* Of these two no credit comes, however long it waits. */
		if (r != 0 || s->skip_reason == CKPT_SKIP_PASSED ||
		    s->skip_reason == CKPT_SKIP_LEFT || call_is_over(c, deadline))
			return r;
		r = ask_credit(c, min_u64(deadline, deadline_in(CREDIT_SLICE_MS)), e);
		/* ckptd answers the request that takes an older one back. */
		if (r < 0 && (r != CKPT_ETIMEDOUT || session_is_silent(c, SILENT_MS)))
			return r;
		if (r == 0 && c->page->credit <= c->credit_used)
			return err_set(e, CKPT_EPROTO, "ckptd announced a credit that is not "
				       "there");
	}
}

/* ---- The parts that save and save_begin share ---- */

/* A channel that was lost is found out before the copy, not after it. */
static int look_for_ckptd(struct ckpt *c, uint64_t deadline, struct err *e)
{
	int r = 0;

	while (r == 0)
		r = requests_pump(&c->rq, 0);
	return session_ensure(c, deadline, e);
}

/* One rank of several may have nothing of its own; a job that has nothing forgot to declare it. */
static int check_something(const struct ckpt *c, const struct ckpt_save_args *a, struct err *e)
{
	if (c->own.n_shards || a->n_blobs || c->who.world > 1)
		return 0;
	return err_set(e, -EINVAL,
		       "step %llu: job '%s' has one rank, which has declared no tensor and gives "
		       "no blob, so there is nothing to save; declare each tensor",
		       (unsigned long long)a->step, c->who.job);
}

/* CKPT_SKIPPED (> 0): all is well, and there are no slots yet. */
static int check(struct ckpt *c, const struct ckpt_save_args *a, struct save *s, uint64_t until,
		 uint64_t deadline, struct err *e)
{
	int r = check_something(c, a, e);
	bool slots = false;

	if (r == 0)
		r = prepare_begin(c, deadline, e); /* which ends the declaration */
	if (r == 0)
		r = bindings_check(&c->own, a->tensors, a->n_tensors, e);
	if (r == 0)
		r = image_devices(c, &c->own, a->tensors, e);
	if (r == 0)
		r = look_for_ckptd(c, deadline, e);
	if (r == 0)
		mapping_pin(c);
	if (r == 0)
		r = prepare_slots(c, until, deadline, e);
	if (r > 0) {
		slots = true;
		r = place_blobs(c, a, s, e);
	}
	if (r == 0)
		r = settle(c, deadline, e);
	if (r == 0)
		r = check_epoch(c, a->step, e);
	return r == 0 && !slots ? CKPT_SKIPPED : r;
}

int save_start(struct ckpt *c, const struct ckpt_save_args *a, struct save *s, uint64_t deadline,
	       struct err *e)
{
	bool waits = (a->flags & CKPT_WAIT_CREDIT || !c->waited) && a->timeout_ms != 0;
	uint64_t until = waits ? deadline : min_u64(deadline, deadline_in(SLOTS_STEP_MS));
	char reason[SKIP_TEXT_MAX];
	int r;

	*s = (struct save){.step = a->step,
			   .epoch = c->epoch,
			   .timeout_ms = a->timeout_ms,
			   .started_ns = clock_ns(),
			   .deadline = deadline};
	s->falls = beating_passed(c->beat, a->step, c->epoch);
	beating_saved(c->beat, a->step, c->epoch, waits);
	r = check(c, a, s, until, deadline, e);
	if (r < 0) {
		beating_waited(c->beat);
		return r;
	}
	s->try = count_try(c, a->step);
	if (r == CKPT_SKIPPED) {
		s->skip_reason = CKPT_SKIP_SLOTS;
		s->skip_rank = c->who.rank;
		r = 0;
	} else {
		r = waits ? wait_credit(c, s, deadline, e) : take_credit(c, s, e);
	}
	beating_waited(c->beat);
	if (r < 0)
		return r;
	c->waited = true;
	if (r == 0) {
		skip_reason_text(s, reason);
		r = tell_skipped(c, s, reason, deadline, e);
		return r < 0 ? r : CKPT_SKIPPED;
	}
	copy_blobs(c, a->blobs, s);
	return 0;
}

static void count_skip(struct ckpt *c, const struct save *s)
{
	assert(s->skip_reason >= 0);
	c->stats.skipped++;
	c->stats.skipped_by[min_u64((uint64_t)s->skip_reason, CKPT_SKIP_REASONS_MAX - 1)]++;
	c->stats.skip_step = s->step;
	c->stats.skip_reason = s->skip_reason;
	c->stats.skip_rank = (int)s->skip_rank;
}

void save_end(struct ckpt *c, const char *call, const struct save *s, int result, uint64_t bytes,
	      struct err *e)
{
	if (result < 0) {
		c->stats.failed++;
		c->stats.failed_step = s->step;
		/* Not a step of an epoch that is over, and not what ckptd itself has refused. */
		if (s->credit == 0 && s->deadline && result != CKPT_EEPOCH &&
		    result != CKPT_ETIMEDOUT)
			tell_refused(c, s, e);
	} else if (result & CKPT_SKIPPED) {
		count_skip(c, s);
		skip_sentence(s, c->who.job, e);
		error_note(call, CKPT_SKIPPED, e);
	} else {
		c->stats.saves++;
		c->stats.sealed_step = s->step;
		c->stats.last_bytes = bytes;
		c->stats.last_stall_ns = clock_ns() - s->started_ns;
	}
}

/* ---- The call ---- */

static int save(struct ckpt *c, const struct ckpt_save_args *given, struct err *e)
{
	struct ckpt_save_args a;
	struct save s = { 0 };
	uint64_t deadline;
	int r = save_args_known(given, &a, e);

	if (r == 0)
		r = overlap_ended(c, e);
	if (r == 0)
		r = call_as_rank(c, e);
	if (r < 0)
		return r;
	deadline = call_deadline(c, a.timeout_ms);
	r = save_start(c, &a, &s, deadline, e);
	if (r == 0) {
		r = image_fill(c, a.tensors, c->slots[s.slot].base, e);
		if (r < 0)
			save_give_up(c, &s, "its copy failed", deadline);
		else
			r = save_seal(c, &s, deadline, e);
	}
	save_end(c, "ckpt_save", &s, r, s.image_len, e);
	return r;
}

int ckpt_save(struct ckpt *c, const struct ckpt_save_args *args)
{
	struct err e = { 0 };
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_save", r, &e);
	beating_begin(c->beat, CKPT_PHASE_CHECKPOINT, "save");
	r = save(c, args, &e);
	beating_end(c->beat);
	return call_leave(c, "ckpt_save", r, &e);
}

static int skip(struct ckpt *c, uint64_t step, const char *reason, struct err *e)
{
	uint64_t deadline = call_deadline(c, CKPT_DEFAULT_TIMEOUT);
	struct save s = {.step = step, .started_ns = clock_ns(), .skip_reason = CKPT_SKIP_CALLER};
	char text[SKIP_TEXT_MAX];
	int r = overlap_ended(c, e);

	if (r == 0)
		r = call_as_rank(c, e);
	if (r == 0)
		r = step_check(step, e);
	if (r == 0)
		r = settle(c, deadline, e);
	if (r == 0)
		r = check_epoch(c, step, e);
	if (r < 0)
		return r;
	beating_saved(c->beat, step, c->epoch, false);
	text_put(text, sizeof(text), reason && reason[0] ? reason : "the trainer skipped it");
	s.epoch = c->epoch;
	s.try = count_try(c, step);
	count_skip(c, &s);
	return tell_skipped(c, &s, text, deadline, e);
}

int ckpt_skip(struct ckpt *c, uint64_t step, const char *reason)
{
	struct err e = {0};
	int r = call_enter(c, &e);

	if (r < 0)
		return error_keep("ckpt_skip", r, &e);
	r = skip(c, step, reason, &e);
	return call_leave(c, "ckpt_skip", r, &e);
}
