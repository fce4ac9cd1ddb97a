/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - one line and the record that it stands for.
 *
 * A line is "TIME WORD key=value ...". Fields come in any order and at most once; a field that is
 * not there has its default. What is read was written by anybody: every number is checked against
 * its width, every text against its room, and a line that has anything else is refused.
 */
#include <config.h>

#include "detect/trace.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "detect/trace_fields.h"

#define NS_PER_S 1000000000u

/* ---- writing ---- */

static char *put_u64(char *p, uint64_t v)
{
	char digits[20];
	int n = 0;

	do
		digits[n++] = (char)('0' + v % 10);
	while (v /= 10);
	while (n)
		*p++ = digits[--n];
	return p;
}

static char *put_seconds(char *p, uint64_t ns)
{
	uint64_t rest = ns % NS_PER_S;

	p = put_u64(p, ns / NS_PER_S);
	if (!rest)
		return p;
	*p++ = '.';
	for (uint64_t unit = NS_PER_S / 10; rest; unit /= 10) {
		*p++ = (char)('0' + rest / unit);
		rest %= unit;
	}
	return p;
}

/* The fewest digits of three lengths that give the same number again. */
static char *put_f64(char *p, double v, bool single)
{
	char text[40];
	int n = 0;

	for (int digits = 6; digits <= 17; digits = digits == 6 ? 9 : 17) {
		n = snprintf(text, sizeof(text), "%.*g", digits, v);
		if (isnan(v) || (single ? strtof(text, NULL) == (float)v : strtod(text, NULL) == v))
			break;
		if (digits == 17)
			break;
	}
	if (isnan(v))
		n = snprintf(text, sizeof(text), "nan");
	memcpy(p, text, (size_t)n);
	return p + n;
}

static char *put_text(char *p, const char *s, size_t size)
{
	static const char hex[] = "0123456789abcdef";
	size_t n = strnlen(s, size);

	*p++ = '"';
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];

		if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\') {
			*p++ = '\\';
			*p++ = hex[c >> 4];
			*p++ = hex[c & 15];
		} else {
			*p++ = (char)c;
		}
	}
	*p++ = '"';
	return p;
}

static char *put_classes(char *p, uint32_t classes)
{
	bool first = true;

	for (unsigned c = 0; c < CLASS_COUNT; c++) {
		if (!(classes & 1u << c))
			continue;
		if (!first)
			*p++ = ',';
		first = false;
		p = stpcpy(p, verdict_class_word((enum verdict_class)c));
	}
	return p;
}

static uint64_t load(const struct field *f, const void *at)
{
	uint64_t v64;
	uint32_t v32;
	uint16_t v16;

	switch (f->size) {
	case 1:
		return *(const uint8_t *)at;
	case 2:
		memcpy(&v16, at, 2);
		return v16;
	case 4:
		memcpy(&v32, at, 4);
		return v32;
	default:
		assert(f->size == 8);
		memcpy(&v64, at, 8);
		return v64;
	}
}

static uint64_t ones(const struct field *f)
{
	return f->size == 8 ? UINT64_MAX : (UINT64_C(1) << (8 * f->size)) - 1;
}

static double load_float(const struct field *f, const void *at)
{
	double d;
	float s;

	if (f->type == FIELD_F32) {
		memcpy(&s, at, sizeof(s));
		return (double)s;
	}
	memcpy(&d, at, sizeof(d));
	return d;
}

static bool is_default(const struct field *f, const struct trace_record *r, const void *at)
{
	if (f->presence)
		return !(r->sample.beat.flags & f->presence);
	if (f->flags & FIELD_REQUIRED)
		return false;
	if (f->type == FIELD_F32 || f->type == FIELD_F64)
		return isnan(load_float(f, at));
	if (f->type == FIELD_TEXT)
		return *(const char *)at == '\0';
	return load(f, at) == (f->flags & FIELD_NONE ? ones(f) : 0);
}

static char *put_value(char *p, const struct field *f, const void *at)
{
	switch (f->type) {
	case FIELD_SECONDS:
		return put_seconds(p, load(f, at));
	case FIELD_F32:
	case FIELD_F64:
		return put_f64(p, load_float(f, at), f->type == FIELD_F32);
	case FIELD_TEXT:
		return put_text(p, at, f->size);
	case FIELD_WORD:
		assert(load(f, at) < f->n_words);
		return stpcpy(p, f->word((uint32_t)load(f, at)));
	case FIELD_CLASSES:
		return put_classes(p, (uint32_t)load(f, at));
	case FIELD_I32:
		if ((int32_t)(uint32_t)load(f, at) < 0) {
			*p++ = '-';
			return put_u64(p, 0 - (uint64_t)(int64_t)(int32_t)(uint32_t)load(f, at));
		}
		return put_u64(p, load(f, at));
	case FIELD_CHAR:
		*p++ = *(const char *)at;
		return p;
	default:
		return put_u64(p, load(f, at));
	}
}

static const struct line_kind *kind_of(const struct trace_record *r)
{
	if (r->is_label) {
		assert((unsigned)r->label.kind < LABEL_KIND_COUNT);
		return &trace_label_kinds[r->label.kind];
	}
	assert((unsigned)r->sample.kind < SAMPLE_KIND_COUNT);
	return &trace_sample_kinds[r->sample.kind];
}

/* The longest line has a text of 256 bytes, each escaped, or 16 floats: well within the limit. */
_Static_assert(3 * SAMPLE_TEXT_MAX + 512 <= TRACE_LINE_MAX, "a line has room for its text");

size_t trace_format(const struct trace_record *r, char *buf)
{
	const struct line_kind *k = kind_of(r);
	char *p = put_seconds(buf, trace_time(r));

	*p++ = ' ';
	memcpy(p, k->word, k->word_len);
	p += k->word_len;
	for (uint32_t i = 0; i < k->n_fields; i++) {
		const struct field *f = &k->fields[i];
		const void *at = (const char *)r + f->offset;

		if (is_default(f, r, at))
			continue;
		*p++ = ' ';
		memcpy(p, f->key, f->key_len);
		p += f->key_len;
		*p++ = '=';
		p = put_value(p, f, at);
	}
	assert((size_t)(p - buf) < TRACE_LINE_MAX);
	return (size_t)(p - buf);
}

/* ---- reading: p is moved behind what was taken; false: the text is not what it should be ---- */

struct text {
	const char *p, *end;
};

static bool take_u64(struct text *t, uint64_t max, uint64_t *ret)
{
	const char *begin = t->p;
	uint64_t v = 0;

	while (t->p < t->end && (unsigned)(*t->p - '0') <= 9) {
		unsigned digit = (unsigned)(*t->p - '0');

		if (v > (UINT64_MAX - digit) / 10)
			return false;
		v = v * 10 + digit;
		t->p++;
	}
	*ret = v;
	return t->p > begin && v <= max;
}

static bool take_seconds(struct text *t, uint64_t *ret)
{
	uint64_t s, rest = 0, unit = NS_PER_S / 10;

	if (!take_u64(t, UINT64_MAX / NS_PER_S - 1, &s))
		return false;
	if (t->p < t->end && *t->p == '.') {
		const char *begin = ++t->p;

		while (t->p < t->end && (unsigned)(*t->p - '0') <= 9) {
			if (unit == 0)
				return false;
			rest += (uint64_t)(*t->p++ - '0') * unit;
			unit /= 10;
		}
		if (t->p == begin)
			return false;
	}
	*ret = s * NS_PER_S + rest;
	return true;
}

/* The usual: at most 15 digits and no exponent, exact in a double before one division. */
static bool take_plain_f64(struct text *t, double *ret)
{
	static const double powers[] = {1,   1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
					1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
	const char *p = t->p;
	uint64_t v = 0;
	unsigned n = 0, decimals = 0;
	bool minus = p < t->end && *p == '-';

	p += minus;
	for (; p < t->end && (unsigned)(*p - '0') <= 9 && n <= 15; n++)
		v = v * 10 + (unsigned)(*p++ - '0');
	if (n && p < t->end && *p == '.') {
		p++;
		for (; p < t->end && (unsigned)(*p - '0') <= 9 && n <= 15; n++, decimals++)
			v = v * 10 + (unsigned)(*p++ - '0');
		if (!decimals)
			return false;
	}
	if (!n || n > 15 || (p < t->end && *p != ' '))
		return false;
	*ret = (double)v / powers[decimals];
	if (minus)
		*ret = -*ret;
	t->p = p;
	return true;
}

static bool take_f64(struct text *t, bool single, double *ret)
{
	char buf[40], *end;
	size_t n = 0;

	if (take_plain_f64(t, ret)) {
		if (single)
			*ret = (double)(float)*ret;
		return true;
	}
	while (t->p + n < t->end && t->p[n] != ' ' && n < sizeof(buf) - 1) {
		if (!memchr("0123456789+-.einfa", t->p[n], 18))
			return false;
		buf[n] = t->p[n];
		n++;
	}
	buf[n] = '\0';
	if (!n || buf[0] == '+' || buf[n - 1] == '.')
		return false;
	*ret = single ? (double)strtof(buf, &end) : strtod(buf, &end);
	t->p += n;
	return *end == '\0';
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool take_text(struct text *t, char *ret, size_t size)
{
	size_t n = 0;

	if (t->p >= t->end || *t->p++ != '"')
		return false;
	while (t->p < t->end && *t->p != '"') {
		char c = *t->p++;

		if (c == '\\') {
			int high, low;

			if (t->end - t->p < 2)
				return false;
			high = hex_digit(t->p[0]);
			low = hex_digit(t->p[1]);
			if (high < 0 || low < 0 || (high == 0 && low == 0))
				return false;
			c = (char)(high << 4 | low);
			t->p += 2;
		} else if ((unsigned char)c < 0x20 || (unsigned char)c >= 0x7f) {
			return false;
		}
		if (n + 1 >= size)
			return false;
		ret[n++] = c;
	}
	ret[n] = '\0';
	return t->p < t->end && *t->p++ == '"';
}

/* A word up to a space or comma. */
static bool take_word(struct text *t, field_word_fn *word, uint32_t n_words, uint32_t *ret)
{
	const char *begin = t->p;

	while (t->p < t->end && *t->p != ' ' && *t->p != ',')
		t->p++;
	for (uint32_t i = 0; i < n_words; i++) {
		const char *w = word(i);

		if (strncmp(w, begin, (size_t)(t->p - begin)) == 0 && !w[t->p - begin]) {
			*ret = i;
			return true;
		}
	}
	return false;
}

static const char *class_word(uint32_t v)
{
	return verdict_class_word((enum verdict_class)v);
}

static bool take_classes(struct text *t, uint32_t *ret)
{
	uint32_t classes = 0, v;

	do {
		t->p += classes != 0;
		if (!take_word(t, class_word, CLASS_COUNT, &v) || classes & 1u << v)
			return false;
		classes |= 1u << v;
	} while (t->p < t->end && *t->p == ',');
	*ret = classes;
	return true;
}

static bool take_number(struct text *t, const struct field *f, void *at)
{
	bool minus = f->type == FIELD_I32 && t->p < t->end && *t->p == '-';
	uint64_t v;

	t->p += minus;
	if (f->type == FIELD_SECONDS) {
		if (!take_seconds(t, &v))
			return false;
	} else if (f->type == FIELD_I32) {
		if (!take_u64(t, (uint64_t)INT32_MAX + minus, &v))
			return false;
		v = minus ? 0 - v : v;
	} else if (!take_u64(t, f->type == FIELD_BOOL ? 1 : ones(f), &v)) {
		return false;
	}
	memcpy(at, &v, f->size); /* little-endian; checked in trace_parse() */
	return true;
}

static bool take_value(struct text *t, const struct field *f, void *at)
{
	uint32_t word;
	double d;
	float s;

	switch (f->type) {
	case FIELD_F32:
	case FIELD_F64:
		if (!take_f64(t, f->type == FIELD_F32, &d))
			return false;
		s = (float)d;
		memcpy(at, f->type == FIELD_F32 ? (void *)&s : (void *)&d, f->size);
		return true;
	case FIELD_TEXT:
		return take_text(t, at, f->size);
	case FIELD_WORD:
		if (!take_word(t, f->word, f->n_words, &word))
			return false;
		memcpy(at, &word, sizeof(word));
		return true;
	case FIELD_CLASSES:
		return take_classes(t, at);
	case FIELD_CHAR:
		if (t->p >= t->end || *t->p <= ' ' || *t->p >= 0x7f)
			return false;
		*(char *)at = *t->p++;
		return true;
	default:
		return take_number(t, f, at);
	}
}

static const struct line_kind *find_kind(const char *word, size_t len, struct trace_record *ret)
{
	/* The usual one first. */
	static const uint8_t order[] = {SAMPLE_BEAT, SAMPLE_METRICS, SAMPLE_LINK, SAMPLE_PAIR,
					SAMPLE_ALIVE};
	const struct line_kind *k;

	for (unsigned i = 0; i < sizeof(order) + SAMPLE_KIND_COUNT; i++) {
		unsigned kind = i < sizeof(order) ? order[i] : i - sizeof(order);

		k = &trace_sample_kinds[kind];
		if (k->word_len != len || memcmp(k->word, word, len) != 0)
			continue;
		ret->sample.kind = (enum sample_kind)kind;
		return k;
	}
	for (unsigned i = 0; i < LABEL_KIND_COUNT; i++) {
		k = &trace_label_kinds[i];
		if (k->word_len != len || memcmp(k->word, word, len) != 0)
			continue;
		ret->is_label = true;
		ret->label.kind = (enum label_kind)i;
		return k;
	}
	return NULL;
}

static void set_defaults(const struct line_kind *k, struct trace_record *ret, uint64_t time_ns)
{
	if (ret->is_label) {
		ret->label.time_ns = time_ns;
		ret->label.factor = NAN;
		ret->label.subject = (struct subject){.node = SAMPLE_NONE,
						      .job = SAMPLE_NONE,
						      .rank = SAMPLE_NONE,
						      .device = SAMPLE_NONE,
						      .peer = SAMPLE_NONE};
		return;
	}
	ret->sample.time_ns = time_ns;
	ret->sample.node = ret->sample.job = SAMPLE_NONE;
	ret->sample.rank = ret->sample.device = SAMPLE_NONE;
	for (uint32_t i = 0; i < k->n_fields; i++) {
		const struct field *f = &k->fields[i];
		void *at = (char *)ret + f->offset;

		if (f->type == FIELD_F32)
			*(float *)at = NAN;
		else if (f->type == FIELD_F64)
			*(double *)at = NAN;
		else if (f->flags & FIELD_NONE && f->size < 4)
			memset(at, 0xff, f->size);
	}
}

/* Which field begins at t: the one after the last is the usual answer. */
static uint32_t find_field(const struct line_kind *k, const struct text *t, uint32_t from)
{
	for (uint32_t n = 0; n < k->n_fields; n++) {
		uint32_t i = from + n < k->n_fields ? from + n : from + n - k->n_fields;
		const struct field *f = &k->fields[i];

		if (t->end - t->p > f->key_len && t->p[f->key_len] == '=' &&
		    memcmp(t->p, f->key, f->key_len) == 0)
			return i;
	}
	return UINT32_MAX;
}

static bool has_required(const struct line_kind *k, uint32_t seen)
{
	for (uint32_t i = 0; i < k->n_fields; i++)
		if (k->fields[i].flags & FIELD_REQUIRED && !(seen & 1u << i))
			return false;
	return true;
}

static const char *take_fields(struct text *t, const struct line_kind *k, struct trace_record *ret)
{
	uint32_t seen = 0, i = 0;

	while (t->p < t->end) {
		const struct field *f;

		if (*t->p++ != ' ')
			return "there is no space between two fields";
		i = find_field(k, t, i);
		if (i == UINT32_MAX)
			return "it has a field that lines of its kind do not have";
		f = &k->fields[i];
		if (seen & 1u << i)
			return "it has a field twice";
		seen |= 1u << i;
		t->p += f->key_len + 1;
		if (!take_value(t, f, (char *)ret + f->offset))
			return "the value of a field is not of its type or out of its range";
		if (f->presence)
			ret->sample.beat.flags |= f->presence;
		i++;
	}
	return has_required(k, seen) ? NULL : "it lacks a field that lines of its kind must have";
}

int trace_parse(const char *buf, size_t len, struct trace_record *ret, const char **ret_why)
{
	struct text t = {buf, buf + len};
	const struct line_kind *k;
	const char *word;
	uint64_t time_ns;

	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they are");
	memset(ret, 0, sizeof(*ret));
	if (!take_seconds(&t, &time_ns) || t.p == t.end || *t.p++ != ' ') {
		*ret_why = "it does not begin with a time in seconds";
		return -EINVAL;
	}
	word = t.p;
	while (t.p < t.end && *t.p != ' ')
		t.p++;
	k = find_kind(word, (size_t)(t.p - word), ret);
	if (!k) {
		*ret_why = "there is no such kind of line";
		return -EINVAL;
	}
	assert(k->n_fields <= TRACE_FIELDS_MAX);
	set_defaults(k, ret, time_ns);
	*ret_why = take_fields(&t, k, ret);
	return *ret_why ? -EINVAL : 0;
}
