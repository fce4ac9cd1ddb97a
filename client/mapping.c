/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapping.c - slots from ckptd to their end: mapped on the caller's thread, which is quick, then
 * populated, pinned and unmapped by the library's, all of which takes a part of a second per GiB.
 *
 *   1. A page of a slot is touched only when ckptd has made all of them: else it would count for
 *      this process, and be a small one.
 *   2. Slots are populated in the order in which ckptd gives credits for them.
 *   3. No save begins with a slot that the thread is still to populate or pin: a copy to memory of
 *      which a part is pinned is refused. Where a device comes into use after the slots, none is
 *      ready again until the thread has pinned it.
 *   4. A mapping is freed by the thread, or after its end: a step may be at it until then.
 *      Unmapping frees the pages if ckptd has no reference any more, a quarter of a second per GiB.
 */
#include <config.h>

#include "client/mapping.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"

#define PIECE_BYTES (16u << 20)     /* populated in one step: some milliseconds */
#define LOOK_MIN_NS (1 * NS_PER_MS) /* between two looks whether a slot has its pages */
#define LOOK_MAX_NS (64 * NS_PER_MS)

/* From mapping_adopt() on the thread's, but for what is atomic. */
struct mapping {
	struct mapping *next; /* in c->retired */
	uint64_t slot_bytes;
	int fds[SLOTS_MAX]; /* -1: closed */
	uint32_t n;
	struct slot_map slots[SLOTS_MAX];
	struct devices *devices; /* with context: to pin them for */
	void *context;           /* NULL: they are not pinned by the thread */
	bool code;               /* what a save runs through is to be faulted in, too */
	uint64_t at, pause_ns;   /* in the slot that is being populated; of the last look */
	atomic_uint n_ready;     /* slots, from the first on, that a save may use */
	atomic_int status; /* < 0: populating failed, with err; the caller's to set to 0 */
	struct err err;
	atomic_bool unwanted;
};

struct mapping *mapping_new(void)
{
	return alloc_zero(sizeof(struct mapping));
}

int mapping_add(struct mapping *m, int *fd, uint32_t number, uint64_t bytes, struct err *e)
{
	int r;

	assert(m->n < SLOTS_MAX);
	r = slot_map(*fd, number, bytes, &m->slots[m->n], e);
	if (r < 0)
		return r;
	m->slot_bytes = bytes;
	m->fds[m->n++] = *fd;
	*fd = -1;
	return 0;
}

static void mapping_close(struct mapping *m)
{
	for (uint32_t i = 0; i < m->n; i++) {
		if (m->fds[i] >= 0)
			close(m->fds[i]);
		m->fds[i] = -1;
	}
}

void mapping_free(struct mapping *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->n; i++) {
		if (m->slots[i].pinned)
			devices_unpin(m->devices, m->context, m->slots[i].base);
		slot_unmap(&m->slots[i]);
	}
	mapping_close(m);
	alloc_free(m);
}

/* ---- Populating ---- */

static bool has_its_pages(const struct mapping *m, uint32_t slot)
{
	return m->fds[slot] < 0;
}

/* Returns what the thread does next. */
static uint64_t finish_slot(struct mapping *m, uint32_t i)
{
	struct slot_map *s = &m->slots[i];

	assert(has_its_pages(m, i) && m->at == 0);
	/* One that cannot be pinned is copied to all the same. */
	if (m->context && !s->pinned)
		s->pinned = devices_pin(m->devices, m->context, s->base, s->bytes);
	atomic_store_explicit(&m->n_ready, i + 1, memory_order_release);
	return i + 1 == m->n ? OVERLAP_OVER : 0;
}

/* In the library's thread: a part of a slot. */
static uint64_t mapping_step(void *arg)
{
	struct mapping *m = arg;
	uint32_t i = atomic_load_explicit(&m->n_ready, memory_order_relaxed);
	struct slot_map *s = &m->slots[i];
	uint64_t bytes;
	int r;

	if (i == m->n || atomic_load(&m->unwanted))
		return OVERLAP_OVER;
	if (m->code) {
		m->code = false;
		fault_in_code();
		return 0;
	}
	if (has_its_pages(m, i))
		return finish_slot(m, i);
	if (m->at == 0 && !slot_has_pages(m->fds[i], m->slot_bytes)) { /* (1) */
		m->pause_ns = min_u64(LOOK_MAX_NS, max_u64(LOOK_MIN_NS, 2 * m->pause_ns));
		return m->pause_ns;
	}
	bytes = min_u64(PIECE_BYTES, m->slot_bytes - m->at);
	r = slot_populate(s, m->at, bytes, false, &m->err);
	if (r < 0) {
		atomic_store_explicit(&m->status, r, memory_order_release);
		return OVERLAP_OVER;
	}
	m->at += bytes;
	if (m->at < m->slot_bytes)
		return 0;
	close(m->fds[i]);
	m->fds[i] = -1;
	m->at = m->pause_ns = 0;
	return finish_slot(m, i);
}

static bool failed(const struct mapping *m)
{
	return atomic_load_explicit(&m->status, memory_order_acquire) < 0;
}

static uint32_t ready(const struct mapping *m)
{
	return atomic_load_explicit(&m->n_ready, memory_order_acquire);
}

/* Where the process uses a device already; else when the first device tensor is bound. */
static void choose_pinning(struct ckpt *c, struct mapping *m)
{
	if (!c->devices && devices_in_use_here())
		ignore_result(devices_open(&c->devices, NULL) /* then they are not pinned */);
	m->devices = c->devices;
	m->context = c->devices ? devices_context(c->devices) : NULL;
	if (m->context)
		c->pin_tried = c->generation;
}

void mapping_adopt(struct mapping *m, struct ckpt *c)
{
	assert(c->n_slots == 0 && !c->taken && m->n > 0);
	memcpy(c->slots, m->slots, sizeof(c->slots));
	c->n_slots = m->n;
	c->slot_bytes = m->slot_bytes;
	c->slots_said = false;
	c->slots_later = 0;
	c->generation++;
	c->taken = m;
	m->code = !c->prepared;
	choose_pinning(c, m);
	overlap_steps(c, mapping_step, m);
}

bool mapping_has(const struct ckpt *c, uint32_t slot)
{
	return c->taken && slot < ready(c->taken);
}

void mapping_pin(struct ckpt *c)
{
	struct mapping *m = c->taken;

	/* They may be gone since they were looked at: ckptd was lost meanwhile. While the thread is
	 * at them, its own fields are not touched. */
	if (!m || !c->devices || c->pin_tried == c->generation || ready(m) < m->n)
		return;
	c->pin_tried = c->generation; /* what cannot be pinned is not tried at every save */
	m->devices = c->devices;
	m->context = devices_context(c->devices);
	if (!m->context)
		return;
	atomic_store_explicit(&m->n_ready, 0, memory_order_relaxed); /* (3) */
	overlap_steps(c, mapping_step, m);
}

/* ---- Waiting ---- */

/* What is waited for of the thread. */
struct awaited {
	const struct mapping *m;
	uint32_t n; /* slots, from the first on */
};

static bool is_ready(const void *arg)
{
	const struct awaited *a = arg;

	return failed(a->m) || ready(a->m) >= a->n;
}

int mapping_wait(struct ckpt *c, uint32_t n, uint64_t until, struct err *e)
{
	struct awaited a = {.m = c->taken, .n = n};
	struct mapping *m = c->taken;
	int r;

	if (!is_ready(&a) && !overlap_await(c, is_ready, &a, until))
		return 0;
	r = atomic_load_explicit(&m->status, memory_order_acquire);
	if (r == 0)
		return 1;
	if (e)
		*e = m->err;
	/* They cannot be mapped again, as ckptd may have sealed them: the next call tries again. */
	atomic_store(&m->status, 0);
	overlap_steps(c, mapping_step, m);
	return r;
}

/* ---- The end ---- */

void mapping_stop(struct mapping *m)
{
	atomic_store(&m->unwanted, true);
}

static void retired_free(void *arg)
{
	for (struct mapping *m = arg, *next; m; m = next) {
		next = m->next;
		mapping_free(m);
	}
}

void mapping_retire(struct mapping *m, struct ckpt *c)
{
	m->next = c->retired;
	c->retired = m;
}

void mapping_let_go(struct ckpt *c)
{
	struct mapping *m = c->retired;

	c->retired = NULL;
	if (c->overlap)
		overlap_run(c, retired_free, m);
	else
		retired_free(m);
}
