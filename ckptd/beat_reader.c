/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beat_reader.c - one rank's beat page, read by somebody who trusts nothing in it.
 *
 *   look -> records that were whole, checked, with times that fit    (changes: seen, told_ns)
 *   sample, for each                                                  (changes: step, phase)
 *
 * Every number of the page is loaded once and then judged; a record is a private copy. Failure
 * modes: an entry overwritten before it was read, or torn by a writer that does not keep the rules,
 * is counted and left out; after that the long phase is compared with what was told.
 */
#include <config.h>

#include "ckptd/beat_reader.h"

#include <assert.h>

#include "base/bytes.h"
#include "ckpt.h"

#define ELSEWHERE_NS   1000000000u /* so far off: not our clock */
#define EXPECTED_MAX   (366ull * 86400 * 1000000000u)
#define PHASES_OF_STEP PHASE_FIRST_LONG

_Static_assert(BEAT_HAS_LOSS == BEAT_LOSS && BEAT_HAS_GRAD_NORM == BEAT_GRAD_NORM &&
		       BEAT_HAS_TOKENS == BEAT_TOKENS && BEAT_HAS_BUSY == BEAT_BUSY,
	       "the same bits in the page and in samples");
_Static_assert((int)PHASE_SYNC == CKPT_PHASE_SYNC &&
		       (int)PHASE_CHECKPOINT == CKPT_PHASE_CHECKPOINT &&
		       (int)PHASE_OTHER == CKPT_PHASE_OTHER && PHASE_COUNT == PHASE_OTHER + 1,
	       "the same phases in ckpt.h and in samples");
_Static_assert(PHASE_COUNT <= 1u << BEAT_PHASE_BITS, "a phase fits its place");
_Static_assert(BEAT_TEXT_BYTES <= sizeof(((struct sample *)0)->member.role) &&
		       BEAT_TEXT_BYTES <= sizeof(((struct sample *)0)->phase.what),
	       "texts fit");

static uint64_t load(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

static bool is_long(uint32_t phase)
{
	return phase >= PHASES_OF_STEP && phase < PHASE_COUNT;
}

/* Printable ASCII, to the end. */
static void clean(char *text, size_t size)
{
	size_t n = strnlen(text, size - 1);

	for (size_t i = 0; i < n; i++)
		if (text[i] < 0x20 || text[i] > 0x7e)
			text[i] = '?';
	memset(text + n, 0, size - n);
}

/* ---- Looking ---- */

void beat_reader_begin(struct beat_reader *r, const struct beat_page *p)
{
	uint64_t written = load(&p->written), oldest;
	struct beat_record b;

	*r = (struct beat_reader){.seen = written};
	oldest = written > BEAT_ENTRIES ? written - BEAT_ENTRIES : 0;
	for (uint64_t n = written; n > oldest; n--) {
		if (!beat_page_get(p, n, &b) || b.kind != BEAT_KIND_STEP)
			continue;
		r->seen = n - 1;
		return;
	}
}

static uint64_t judge_time(uint64_t t, uint64_t from, uint64_t now)
{
	if (t > now || (t < from && from - t > ELSEWHERE_NS))
		return now;
	return max_u64(t, from);
}

static bool judge(struct beat_record *b)
{
	if (b->kind == BEAT_KIND_STEP) {
		b->flags &= BEAT_HAS_LOSS | BEAT_HAS_GRAD_NORM | BEAT_HAS_TOKENS | BEAT_HAS_BUSY |
			    (BEAT_HAS_METRIC(BEAT_METRICS) - BEAT_HAS_METRIC(0));
		return true;
	}
	if ((b->kind != BEAT_KIND_PHASE_BEGIN && b->kind != BEAT_KIND_PHASE_END) ||
	    !is_long(b->flags))
		return false;
	clean(b->phase.what, sizeof(b->phase.what));
	b->phase.expected_ns = min_u64(b->phase.expected_ns, EXPECTED_MAX);
	return true;
}

static struct beat_record phase_record(uint32_t kind, uint32_t phase, uint64_t time_ns)
{
	return (struct beat_record){.time_ns = time_ns, .kind = kind, .flags = phase};
}

/* Entries were lost, perhaps one that began or ended a phase: the page says where it is. */
static uint32_t catch_up(const struct beat_reader *r, const struct beat_page *p, uint64_t now,
			 struct beat_record *records, uint32_t n)
{
	uint32_t phase = BEAT_PLACE_PHASE(load(&p->long_place)), told = r->long_phase;
	bool in = r->in_long;

	for (uint32_t i = 0; i < n; i++) {
		if (records[i].kind == BEAT_KIND_STEP)
			continue;
		in = records[i].kind == BEAT_KIND_PHASE_BEGIN;
		told = records[i].flags;
	}
	if (in && told != phase)
		records[n++] = phase_record(BEAT_KIND_PHASE_END, told, now);
	if (is_long(phase) && (!in || told != phase))
		records[n++] = phase_record(BEAT_KIND_PHASE_BEGIN, phase, now);
	return n;
}

uint32_t beat_reader_look(struct beat_reader *r, const struct beat_page *p, uint64_t from_ns,
			  uint64_t now_ns, struct beat_record ret[BEAT_LOOK_MAX])
{
	uint64_t written = load(&p->written), lost = 0;
	uint32_t n = 0;

	assert(from_ns <= now_ns);
	if (written < r->seen) { /* it went back: another's writing */
		r->nonsense++;
		r->seen = written;
	}
	if (written - r->seen > BEAT_ENTRIES) {
		lost = written - r->seen - BEAT_ENTRIES;
		r->seen = written - BEAT_ENTRIES;
	}
	while (r->seen < written) {
		struct beat_record *b = &ret[n];

		if (!beat_page_get(p, ++r->seen, b)) {
			lost++;
		} else if (!judge(b)) {
			r->nonsense++;
		} else {
			b->time_ns = max_u64(judge_time(b->time_ns, from_ns, now_ns), r->told_ns);
			r->told_ns = b->time_ns;
			n++;
		}
	}
	if (lost) {
		r->overruns += lost;
		n = catch_up(r, p, now_ns, ret, n);
	}
	assert(n <= BEAT_LOOK_MAX);
	return n;
}

/* ---- Samples ---- */

static bool sample_step(struct beat_reader *r, const struct beat_record *b, struct sample *ret)
{
	struct sample_beat *s = &ret->beat;

	ret->kind = SAMPLE_BEAT;
	s->step = b->step;
	s->flags = b->flags & (BEAT_LOSS | BEAT_GRAD_NORM | BEAT_TOKENS | BEAT_BUSY);
	if (r->stepped && b->step > r->step) {
		s->missed = (uint32_t)min_u64(b->step - r->step - 1, UINT32_MAX);
		r->interval_ns = (b->time_ns - r->step_ns) / (b->step - r->step);
	}
	/* Longer at work than there was time. */
	if (!r->stepped || b->busy_ns > b->time_ns - r->step_ns + ELSEWHERE_NS)
		s->flags &= ~BEAT_BUSY;
	s->busy_ns = s->flags & BEAT_BUSY ? b->busy_ns : 0;
	s->tokens = b->flags & BEAT_HAS_TOKENS ? b->tokens : 0;
	s->loss = b->flags & BEAT_HAS_LOSS ? b->loss : __builtin_nan("");
	s->grad_norm = b->flags & BEAT_HAS_GRAD_NORM ? b->grad_norm : __builtin_nan("");
	r->stepped = true;
	r->step = b->step;
	r->step_ns = b->time_ns;
	for (unsigned i = 0; i < BEAT_METRICS; i++) {
		if (!(b->flags & BEAT_HAS_METRIC(i)))
			continue;
		r->metrics_given |= 1u << i;
		r->metrics[i] = b->metrics[i];
	}
	return true;
}

static bool sample_phase(struct beat_reader *r, const struct beat_record *b, struct sample *ret)
{
	bool begins = b->kind == BEAT_KIND_PHASE_BEGIN;

	/* What did not begin does not end, and nothing begins twice. */
	if (begins ? r->in_long : !r->in_long || r->long_phase != b->flags) {
		r->nonsense++;
		return false;
	}
	r->in_long = begins;
	r->long_phase = b->flags;
	ret->kind = SAMPLE_PHASE;
	ret->phase.phase = b->flags;
	ret->phase.begins = begins;
	ret->phase.expected_ns = begins ? b->phase.expected_ns : 0;
	memcpy(ret->phase.what, b->phase.what, sizeof(b->phase.what));
	return true;
}

bool beat_reader_sample(struct beat_reader *r, const struct beat_record *b, struct sample *ret)
{
	ret->time_ns = b->time_ns;
	return b->kind == BEAT_KIND_STEP ? sample_step(r, b, ret) : sample_phase(r, b, ret);
}

/* ---- What is not an entry ---- */

bool beat_reader_texts(struct beat_reader *r, const struct beat_page *p)
{
	char role[BEAT_TEXT_BYTES], names[BEAT_METRICS][BEAT_TEXT_BYTES];
	uint64_t texts = load(&p->texts);
	bool other;

	if (texts == r->texts || texts % 2)
		return false;
	beat_page_get_text(&p->role, role);
	for (unsigned i = 0; i < BEAT_METRICS; i++)
		beat_page_get_text(&p->metrics[i], names[i]);
	if (atomic_load_explicit(&p->texts, memory_order_relaxed) != texts)
		return false; /* the next look */
	clean(role, sizeof(role));
	for (unsigned i = 0; i < BEAT_METRICS; i++)
		clean(names[i], sizeof(names[i]));
	other = memcmp(role, r->role, sizeof(role)) || memcmp(names, r->names, sizeof(names));
	memcpy(r->role, role, sizeof(role));
	memcpy(r->names, names, sizeof(names));
	r->texts = texts;
	return other;
}

void beat_page_now(const struct beat_page *p, uint64_t now_ns, struct beat_now *ret)
{
	uint64_t place = load(&p->place), step = load(&p->next_step);
	uint32_t phase = BEAT_PLACE_PHASE(place);
	uint64_t since = BEAT_PLACE_SINCE(place);

	*ret = (struct beat_now){.step = step, .stepped = step != 0};
	if (phase >= PHASE_COUNT)
		return;
	ret->phase = phase;
	ret->since_ns = since <= now_ns ? since : 0;
}
