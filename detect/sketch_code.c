/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sketch_code.c - the fields of records, in both directions by the same lines.
 *
 * Invariant: what code_sample() reads keeps the rules of sample.h, so that a receiver may feed it
 * to a detector; everything out of range makes the reader bad.
 */
#include <config.h>

#include <assert.h>
#include <math.h>
#include <string.h>

#include "detect/sketch_code.h"

#define NS_PER_MS 1000000u
#define NS_PER_US 1000u

/* ---- 16 bits: 6 of exponent, 10 of mantissa; value = 2^(e - 20) * (1 + m / 1024) ---- */

#define PACK_BIAS 20
#define PACK_NAN  0xffffu
#define PACK_MAX  0xfbffu /* e = 62: what is above it is free */

uint16_t sketch_pack(float x)
{
	int exponent;
	double mantissa;
	long packed;

	if (isnan(x))
		return PACK_NAN;
	if (!(x > 0))
		return 0;
	if (isinf(x))
		return PACK_MAX;
	mantissa = frexp((double)x, &exponent) * 2 - 1; /* 0 .. 1 */
	packed = ((long)exponent - 1 + PACK_BIAS) * 1024 + lround(mantissa * 1024);
	if (packed < 1)
		return 0;
	return packed > (long)PACK_MAX ? PACK_MAX : (uint16_t)packed;
}

float sketch_unpack(uint16_t v)
{
	if (v == PACK_NAN)
		return NAN;
	if (v == 0)
		return 0;
	return (float)ldexp(1 + (v & 1023) / 1024.0, (v >> 10) - PACK_BIAS);
}

/* ---- fields ---- */

static void code_u8(struct code *c, uint8_t *v)
{
	if (c->w)
		write_u8(c->w, *v);
	else
		*v = read_u8(c->r);
}

/* Seven bits a byte, the lowest first; the last byte has its highest bit clear. */
static void code_u64(struct code *c, uint64_t *v)
{
	uint64_t x = *v;
	unsigned shift = 0;
	uint8_t b;

	if (c->w) {
		for (; x >= 128; x >>= 7)
			write_u8(c->w, (uint8_t)(x | 128));
		write_u8(c->w, (uint8_t)x);
		return;
	}
	*v = 0;
	do {
		b = read_u8(c->r);
		if (shift == 63 && b > 1)
			c->r->bad = true;
		*v |= (uint64_t)(b & 127) << (shift < 64 ? shift : 63);
		shift += 7;
	} while (b >= 128 && shift < 64 && !c->r->bad);
	if (b >= 128)
		c->r->bad = true;
}

static void code_u32(struct code *c, uint32_t *v)
{
	uint64_t x = *v;

	code_u64(c, &x);
	if (c->r && x > UINT32_MAX)
		c->r->bad = true;
	*v = (uint32_t)x;
}

/* Of somebody, or SAMPLE_NONE: plus one. */
static void code_number(struct code *c, uint32_t *v)
{
	uint64_t x = *v == SAMPLE_NONE ? 0 : (uint64_t)*v + 1;

	code_u64(c, &x);
	if (c->r && x > UINT32_MAX)
		c->r->bad = true;
	*v = x ? (uint32_t)(x - 1) : SAMPLE_NONE;
}

/* Around the first step of the sketch. */
static void code_step(struct code *c, uint64_t *v)
{
	uint64_t d = *v - c->base_step, zigzag = d << 1 ^ (uint64_t)((int64_t)d >> 63);

	code_u64(c, &zigzag);
	*v = c->base_step + (zigzag >> 1 ^ (0 - (zigzag & 1)));
}

static void code_duration(struct code *c, uint64_t *ns, uint32_t unit)
{
	uint64_t x = *ns / unit + (*ns % unit >= unit / 2);

	code_u64(c, &x);
	if (c->r && x > UINT64_MAX / unit)
		c->r->bad = true;
	*ns = c->w ? *ns : x * unit;
}

/* A time that has been; on the way it is how long ago. What was before the clock is at 0. */
static void code_time(struct code *c, uint64_t *ns)
{
	uint64_t age = *ns < c->now_ns ? c->now_ns - *ns : 0;

	code_duration(c, &age, NS_PER_MS);
	if (c->r)
		*ns = age < c->now_ns ? c->now_ns - age : 0;
}

static void code_f32(struct code *c, double *v)
{
	float f = (float)*v;
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	if (c->w) {
		write_u32(c->w, bits);
		return;
	}
	bits = read_u32(c->r);
	memcpy(&f, &bits, sizeof(f));
	*v = (double)f;
}

static void code_f64(struct code *c, double *v)
{
	uint64_t bits;

	memcpy(&bits, v, sizeof(bits));
	if (c->w) {
		write_u64(c->w, bits);
		return;
	}
	bits = read_u64(c->r);
	memcpy(v, &bits, sizeof(bits));
}

static void code_pack(struct code *c, float *v)
{
	if (c->w)
		write_u16(c->w, sketch_pack(*v));
	else
		*v = sketch_unpack(read_u16(c->r));
}

static void code_bool(struct code *c, bool *v)
{
	uint8_t b = *v;

	code_u8(c, &b);
	if (b > 1)
		c->r->bad = true;
	*v = b == 1;
}

/* Into buf of size, terminated. */
static void code_text(struct code *c, char *buf, size_t size)
{
	const char *s;
	size_t len;

	if (c->w) {
		write_str(c->w, buf, strnlen(buf, size - 1));
		return;
	}
	s = read_str(c->r, size - 1, &len);
	if (!s)
		return;
	if (memchr(s, 0, len)) {
		c->r->bad = true;
		return;
	}
	memcpy(buf, s, len);
	buf[len] = '\0';
}

static void code_enum(struct code *c, uint32_t *v, uint32_t least, uint32_t end)
{
	uint8_t b = (uint8_t)*v;

	assert(end <= 256);
	code_u8(c, &b);
	if (c->r && (b < least || b >= end))
		c->r->bad = true;
	*v = b;
}
#define CODE_ENUM(c, field, type, least, end)                                                      \
	do {                                                                                       \
		uint32_t enum_ = (uint32_t)(field);                                                \
		code_enum(c, &enum_, least, end);                                                  \
		(field) = (type)enum_;                                                             \
	} while (0)

/* ---- records ---- */

static void code_beat(struct code *c, struct sample_beat *b)
{
	CODE_ENUM(c, b->flags, uint32_t, 0, 16);
	code_step(c, &b->step);
	code_u32(c, &b->missed);
	if (b->flags & BEAT_BUSY)
		code_duration(c, &b->busy_ns, NS_PER_US);
	if (b->flags & BEAT_TOKENS)
		code_u64(c, &b->tokens);
	if (b->flags & BEAT_LOSS)
		code_f32(c, &b->loss);
	else
		b->loss = NAN;
	if (b->flags & BEAT_GRAD_NORM)
		code_f32(c, &b->grad_norm);
	else
		b->grad_norm = NAN;
}

static bool is_state(uint8_t state)
{
	return state && strchr("RSDTZtXIPKW?", state);
}

static void code_activity(struct code *c, struct sample_activity *a)
{
	uint8_t state = (uint8_t)a->state;

	code_step(c, &a->step);
	code_time(c, &a->since_ns);
	code_enum(c, &a->phase, 0, PHASE_COUNT);
	if (c->w && !is_state(state))
		state = '?';
	code_u8(c, &state);
	if (c->r && !is_state(state))
		c->r->bad = true;
	a->state = (char)state;
	code_u8(c, &a->threads_running);
	if (c->w) {
		write_u16(c->w, a->cpu_permille);
		write_u16(c->w, a->gpu_permille);
	} else {
		a->cpu_permille = read_u16(c->r);
		a->gpu_permille = read_u16(c->r);
	}
	CODE_ENUM(c, a->timed, enum timed, TIMED_NO, TIMED_NOT_KNOWN + 1);
}

/* A bit for each that is known, then those. */
static void code_metrics(struct code *c, float *m)
{
	uint32_t known = 0;

	_Static_assert(METRIC_COUNT <= 32, "a bit for each");
	for (int i = 0; i < METRIC_COUNT; i++)
		known |= (uint32_t)!isnan(m[i]) << i;
	code_u32(c, &known);
	if (c->r && known >> METRIC_COUNT)
		c->r->bad = true;
	for (int i = 0; i < METRIC_COUNT; i++) {
		if (known >> i & 1)
			code_pack(c, &m[i]);
		else
			m[i] = NAN;
	}
}

static void code_link(struct code *c, struct sample *s)
{
	code_bool(c, &s->link.up);
	code_pack(c, &s->link.rate_gbps);
	code_u64(c, &s->link.sent);
	code_u64(c, &s->link.received);
	code_u64(c, &s->link.errors);
	code_u64(c, &s->link.retries);
	code_u32(c, &s->link.downs);
}

static void code_pair(struct code *c, struct sample *s)
{
	code_u32(c, &s->pair.peer);
	if (c->r && (s->pair.peer == s->node || s->pair.peer == SAMPLE_NONE))
		c->r->bad = true;
	code_u64(c, &s->pair.bytes);
	code_duration(c, &s->pair.ns, NS_PER_US);
}

static void code_disk(struct code *c, struct sample *s)
{
	code_u64(c, &s->disk.ops);
	code_u64(c, &s->disk.bytes);
	code_duration(c, &s->disk.busy_ns, NS_PER_US);
	code_u64(c, &s->disk.errors);
}

static void code_phase(struct code *c, struct sample *s)
{
	code_enum(c, &s->phase.phase, PHASE_FIRST_LONG, PHASE_COUNT);
	code_bool(c, &s->phase.begins);
	code_duration(c, &s->phase.expected_ns, NS_PER_MS);
	code_text(c, s->phase.what, sizeof(s->phase.what));
}

static void code_check(struct code *c, struct sample *s)
{
	code_text(c, s->check.what, sizeof(s->check.what));
	code_f64(c, &s->check.value);
	code_f64(c, &s->check.low);
	code_f64(c, &s->check.high);
	code_bool(c, &s->check.passed);
}

static void code_member(struct code *c, struct sample *s)
{
	code_bool(c, &s->member.leaves);
	code_text(c, s->member.role, sizeof(s->member.role));
}

static void code_exit(struct code *c, struct sample *s)
{
	uint32_t value = (uint32_t)s->exit.value;

	CODE_ENUM(c, s->exit.how, enum exit_how, 0, EXIT_HOWS);
	code_u32(c, &value);
	s->exit.value = (int32_t)value;
}

static void code_digests(struct code *c, struct sample *s)
{
	code_step(c, &s->digests.step);
	code_u32(c, &s->digests.other);
	code_text(c, s->digests.tensor, sizeof(s->digests.tensor));
}

enum { OF_NODE, OF_RANK = 1, OF_DEVICE = 2, NOT_TAKEN = 4 };

/* Whose number a record has. */
static unsigned subject_of(enum sample_kind kind)
{
	switch ((unsigned)kind) {
	case SAMPLE_MEMBER:
	case SAMPLE_BEAT:
	case SAMPLE_PHASE:
	case SAMPLE_ACTIVITY:
	case SAMPLE_EXIT:
	case SAMPLE_DIGESTS:
		return OF_RANK;
	case SAMPLE_LINK:
	case SAMPLE_DISK:
		return OF_DEVICE;
	case SAMPLE_ALIVE:
	case SAMPLE_METRICS:
	case SAMPLE_PAIR:
	case SAMPLE_MEMORY:
	case SAMPLE_CHECK:
		return OF_NODE;
	default:
		return NOT_TAKEN;
	}
}

bool sketch_takes(enum sample_kind kind)
{
	return subject_of(kind) != NOT_TAKEN;
}

static void code_said(struct code *c, struct sample *s)
{
	switch ((unsigned)s->kind) {
	case SAMPLE_MEMBER:
		code_member(c, s);
		break;
	case SAMPLE_BEAT:
		code_beat(c, &s->beat);
		break;
	case SAMPLE_PHASE:
		code_phase(c, s);
		break;
	case SAMPLE_ACTIVITY:
		code_activity(c, &s->activity);
		break;
	case SAMPLE_EXIT:
		code_exit(c, s);
		break;
	case SAMPLE_DIGESTS:
		code_digests(c, s);
		break;
	case SAMPLE_METRICS:
		code_metrics(c, s->metrics);
		break;
	case SAMPLE_LINK:
		code_link(c, s);
		break;
	case SAMPLE_PAIR:
		code_pair(c, s);
		break;
	case SAMPLE_DISK:
		code_disk(c, s);
		break;
	case SAMPLE_MEMORY:
		code_u64(c, &s->memory.corrected);
		code_u64(c, &s->memory.uncorrected);
		break;
	case SAMPLE_CHECK:
		code_check(c, s);
		break;
	default: /* SAMPLE_ALIVE: that it is said is all */
		break;
	}
}

bool code_sample(struct code *c, struct sample *s)
{
	uint8_t kind = (uint8_t)s->kind;
	unsigned of;

	code_u8(c, &kind);
	of = subject_of((enum sample_kind)kind);
	if (c->r && (c->r->bad || of == NOT_TAKEN)) {
		c->r->bad = true;
		return false;
	}
	assert(of != NOT_TAKEN);
	s->kind = (enum sample_kind)kind;
	code_time(c, &s->time_ns);
	if (of & (OF_RANK | OF_DEVICE))
		code_u32(c, of & OF_RANK ? &s->rank : &s->device);
	if (c->r && ((of & OF_RANK && s->rank == SAMPLE_NONE) ||
		     (of & OF_DEVICE && s->device == SAMPLE_NONE)))
		c->r->bad = true;
	code_said(c, s);
	return c->w ? !c->w->bad : !c->r->bad;
}

static void code_subject(struct code *c, struct subject *s)
{
	CODE_ENUM(c, s->kind, enum subject_kind, 0, SUBJECT_DISK + 1);
	code_number(c, &s->node);
	code_number(c, &s->rank);
	code_number(c, &s->device);
	code_number(c, &s->peer);
}

bool code_verdict(struct code *c, struct verdict *v)
{
	uint8_t kind = CODE_VERDICT;

	code_u8(c, &kind);
	code_u64(c, &v->id);
	code_subject(c, &v->subject);
	CODE_ENUM(c, v->class, enum verdict_class, 0, CLASS_COUNT);
	CODE_ENUM(c, v->cause, enum verdict_cause, 0, CAUSE_COUNT);
	CODE_ENUM(c, v->level, enum verdict_level, 0, LEVEL_ALARM + 1);
	CODE_ENUM(c, v->state, enum verdict_state, 0, VERDICT_CLEARED + 1);
	CODE_ENUM(c, v->advice, enum verdict_action, 0, ACTION_COUNT);
	code_f32(c, &v->confidence);
	if (c->r && !(v->confidence >= 0 && v->confidence <= 1))
		c->r->bad = true;
	code_time(c, &v->since_ns);
	code_time(c, &v->raised_ns);
	code_time(c, &v->changed_ns);
	code_u32(c, &v->code);
	code_u32(c, &v->subcode);
	code_enum(c, &v->n_evidence, 0, EVIDENCE_MAX + 1);
	for (uint32_t i = 0; i < v->n_evidence && i < EVIDENCE_MAX; i++) {
		struct evidence *e = &v->evidence[i];

		code_text(c, e->signal, sizeof(e->signal));
		code_text(c, e->unit, sizeof(e->unit));
		code_f64(c, &e->value);
		code_f64(c, &e->threshold);
		code_time(c, &e->since_ns);
	}
	code_text(c, v->words, sizeof(v->words));
	return c->w ? !c->w->bad : kind == CODE_VERDICT && !c->r->bad;
}
