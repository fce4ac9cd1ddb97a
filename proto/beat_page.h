/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beat_page.h - the pages through which a rank tells ckptd of its steps and phases without a
 * message, and ckptd tells the rank when it wants a checkpoint.
 *
 * The trainer writes, from one thread, and asks nobody; ckptd looks a few times a second. They
 * outlive ckptd: what the trainer writes while there is none is read by the next one. The trainer
 * may write anything: whoever reads checks every value, and that an entry was whole while it was
 * read is all that this header promises. Little-endian, never shrinks; fields are only added.
 *
 * An entry is whole while its sequence is the number that it was written under, from 1 on; the n-th
 * lies at (n - 1) % BEAT_ENTRIES. Writer: sequence 0, words, sequence n, then `written`. Reader:
 * sequence, words, sequence again. Texts (role, names of metrics) are whole while `texts` is even
 * and the same before and after. Everything else is one word.
 */
#ifndef PROTO_BEAT_PAGE_H
#define PROTO_BEAT_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define BEAT_PAGE_MAGIC   0x7461656274706b63u /* "ckptbeat" */
#define BEAT_PAGE_VERSION 1u
#define BEAT_PAGE_BYTES   12288u
#define BEAT_ENTRIES      64u
#define BEAT_METRICS      8u
#define BEAT_TEXT_BYTES   32u /* with the NUL */

enum beat_kind { BEAT_KIND_STEP = 1, BEAT_KIND_PHASE_BEGIN = 2, BEAT_KIND_PHASE_END = 3 };

/* flags of a step: which values were given */
#define BEAT_HAS_LOSS      1u
#define BEAT_HAS_GRAD_NORM 2u
#define BEAT_HAS_TOKENS    4u
#define BEAT_HAS_BUSY      8u
#define BEAT_HAS_METRIC(i) (0x100u << (i))

struct beat_record {
	uint64_t time_ns; /* CLOCK_MONOTONIC of the trainer */
	uint32_t kind;
	uint32_t flags; /* of a phase: which, enum ckpt_phase */
	union {
		struct {
			uint64_t step, busy_ns, tokens;
			double loss, grad_norm, metrics[BEAT_METRICS];
		};
		struct {
			uint64_t expected_ns; /* 0: it does not say */
			char what[BEAT_TEXT_BYTES];
		} phase;
	};
};
#define BEAT_RECORD_WORDS 15
_Static_assert(sizeof(struct beat_record) == BEAT_RECORD_WORDS * 8, "an entry's words");

struct beat_entry {
	_Atomic uint64_t sequence;
	_Atomic uint64_t word[BEAT_RECORD_WORDS];
};
struct beat_text {
	_Atomic uint64_t word[BEAT_TEXT_BYTES / 8];
};

/* Where it is: since when, and in which phase. */
#define BEAT_PHASE_BITS             4
#define BEAT_PLACE(phase, since_ns) ((uint64_t)(since_ns) << BEAT_PHASE_BITS | (phase))
#define BEAT_PLACE_PHASE(place)     ((uint32_t)((place) & ((1u << BEAT_PHASE_BITS) - 1)))
#define BEAT_PLACE_SINCE(place)     ((place) >> BEAT_PHASE_BITS)

struct beat_page {
	/* ckptd, before anybody else sees it */
	uint64_t magic;
	uint32_t version;
	uint32_t reserved;
	/* ckptd: the first checkpoint at or after this step is wanted; 0: none */
	_Alignas(64) _Atomic uint64_t wanted_step;
	/* ckptd, for the next ckptd: 1 + the first step of the credit that this rank was given
	 * last; 0: its turn to save ended without a save, or it was given none. */
	_Atomic uint64_t credit_from;
	/* the trainer */
	_Alignas(64) _Atomic uint64_t written; /* entries, ever */
	_Atomic uint64_t next_step;            /* the last finished one + 1; 0: has not said */
	_Atomic uint64_t place;                /* 0: has not said */
	_Atomic uint64_t long_place;           /* the outermost long phase; 0: it is in none */
	_Atomic uint64_t saving_epoch;         /* of the one below */
	/* The step of the newest begun save + 1, times 2, plus 1 while it waits for a credit; 0:
	 * none. */
	_Atomic uint64_t saving_step;
	_Alignas(64) _Atomic uint64_t texts;
	struct beat_text role;
	struct beat_text metrics[BEAT_METRICS]; /* names, in order; empty: none */
	_Alignas(4096) struct beat_entry ring[BEAT_ENTRIES];
};
_Static_assert(sizeof(struct beat_page) == BEAT_PAGE_BYTES, "three pages");

/* ---- The writer's side ---- */

/* n: of this entry, one more than the last. */
static inline void beat_page_put(struct beat_page *p, uint64_t n, const struct beat_record *r)
{
	struct beat_entry *e = &p->ring[(n - 1) % BEAT_ENTRIES];
	uint64_t words[BEAT_RECORD_WORDS];

	memcpy(words, r, sizeof(words));
	atomic_store_explicit(&e->sequence, 0, memory_order_relaxed);
	/* Each behind the sequence: release is free here, and no fence is needed. */
	for (unsigned i = 0; i < BEAT_RECORD_WORDS; i++)
		atomic_store_explicit(&e->word[i], words[i], memory_order_release);
	atomic_store_explicit(&e->sequence, n, memory_order_release);
	atomic_store_explicit(&p->written, n, memory_order_release);
}

/* text: BEAT_TEXT_BYTES of them. */
static inline void beat_page_put_text(struct beat_page *p, struct beat_text *t, const char *text)
{
	uint64_t n = atomic_load_explicit(&p->texts, memory_order_relaxed), word;

	n |= 1;
	atomic_store_explicit(&p->texts, n, memory_order_relaxed);
	for (unsigned i = 0; i < BEAT_TEXT_BYTES / 8; i++) {
		memcpy(&word, text + 8 * i, 8);
		atomic_store_explicit(&t->word[i], word, memory_order_release);
	}
	atomic_store_explicit(&p->texts, n + 1, memory_order_release);
}

/*
 * A save begins: before it looks for a credit. waits: it waits for one, so that its step may be the
 * first of the next credit. Sequentially consistent like the reader: either
 * ckptd sees it when it chooses the first step of a credit, or the save sees that credit.
 */
static inline void beat_page_put_saving(struct beat_page *p, uint64_t epoch, uint64_t step,
					bool waits)
{
	if (atomic_load_explicit(&p->saving_epoch, memory_order_relaxed) != epoch)
		atomic_store(&p->saving_step, 0);
	atomic_store(&p->saving_epoch, epoch);
	atomic_store(&p->saving_step, (step + 1) << 1 | waits); /* one word: never half of it */
}

/* ---- The reader's side ---- */

/* The first step that this rank saves from now on, of this epoch: the one that it waits to save,
 * else the next one. again: where it comes back to the newest one that it has begun. False: it has
 * begun none. */
static inline bool beat_page_next_save(const struct beat_page *p, uint64_t epoch, bool again,
				       uint64_t *ret)
{
	uint64_t step = atomic_load(&p->saving_step);

	if (step < 2 || atomic_load(&p->saving_epoch) != epoch)
		return false;
	*ret = (step >> 1) - (again || step & 1);
	return true;
}

/* False: the n-th entry is not there, not whole, or overwritten. */
static inline bool beat_page_get(const struct beat_page *p, uint64_t n, struct beat_record *ret)
{
	const struct beat_entry *e = &p->ring[(n - 1) % BEAT_ENTRIES];
	uint64_t words[BEAT_RECORD_WORDS];

	if (atomic_load_explicit(&e->sequence, memory_order_acquire) != n)
		return false;
	for (unsigned i = 0; i < BEAT_RECORD_WORDS; i++)
		words[i] = atomic_load_explicit(&e->word[i], memory_order_acquire);
	if (atomic_load_explicit(&e->sequence, memory_order_relaxed) != n)
		return false;
	memcpy(ret, words, sizeof(words));
	return true;
}

/* Every byte as it is, but for a NUL at the end. */
static inline void beat_page_get_text(const struct beat_text *t, char ret[BEAT_TEXT_BYTES])
{
	uint64_t word;

	for (unsigned i = 0; i < BEAT_TEXT_BYTES / 8; i++) {
		word = atomic_load_explicit(&t->word[i], memory_order_acquire);
		memcpy(ret + 8 * i, &word, 8);
	}
	ret[BEAT_TEXT_BYTES - 1] = '\0';
}

#endif
