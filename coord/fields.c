/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fields.c - the parts that bodies of log records are made of, and those bodies that are one part.
 *
 * Each thing has one encoding: what a reader takes, a writer gives back byte for byte. Whatever is
 * not an encoding sets the reader's bad. Pure; any thread.
 */
#include <config.h>

#include "coord/fields.h"

#include <assert.h>

enum { ID_SIZE = sizeof(struct digest) }; /* of every id */

void field_put_text(struct writer *w, const char *s, size_t max)
{
	size_t len = strnlen(s, max + 1);

	assert(len <= max);
	write_str(w, s, len);
}

void field_get_text(struct reader *rd, char *ret, size_t max)
{
	size_t len = 0;
	const char *s = read_str(rd, max, &len);

	if (!s)
		return;
	if (memchr(s, '\0', len))
		rd->bad = true;
	memcpy(ret, s, len);
	ret[len] = '\0';
}

void field_get_id(struct reader *rd, void *ret)
{
	const void *p = read_bytes(rd, ID_SIZE);

	if (p)
		memcpy(ret, p, ID_SIZE);
}

bool field_get_flag(struct reader *rd)
{
	uint8_t v = read_u8(rd);

	if (v > 1)
		rd->bad = true;
	return v == 1;
}

void field_put_job(struct writer *w, const struct record_job *j)
{
	assert(name_is_safe(j->name));
	write_bytes(w, j->id.b, sizeof(j->id.b));
	write_u32(w, j->uid);
	write_bytes(w, j->token.b, sizeof(j->token.b));
	field_put_text(w, j->name, CKPT_JOB_MAX);
}

void field_get_job(struct reader *rd, struct record_job *j)
{
	field_get_id(rd, j->id.b);
	j->uid = read_u32(rd);
	field_get_id(rd, j->token.b);
	field_get_text(rd, j->name, CKPT_JOB_MAX);
	if (!name_is_safe(j->name))
		rd->bad = true;
}

void field_put_epoch(struct writer *w, const struct record_epoch *p)
{
	write_u64(w, p->number);
	write_u64(w, p->parent);
	write_u8(w, p->has_base);
	write_u64(w, p->has_base ? p->base_step : 0);
	if (p->has_base)
		write_bytes(w, p->base_attempt.b, sizeof(p->base_attempt.b));
	else
		write_zero(w, sizeof(p->base_attempt.b));
	write_u32(w, p->world);
	field_put_text(w, p->run_id, RUN_ID_MAX);
	field_put_text(w, p->reason, REASON_MAX);
}

void field_get_epoch(struct reader *rd, struct record_epoch *p)
{
	static const struct attempt_id none;

	p->number = read_u64(rd);
	p->parent = read_u64(rd);
	p->has_base = field_get_flag(rd);
	p->base_step = read_u64(rd);
	field_get_id(rd, p->base_attempt.b);
	p->world = read_u32(rd);
	field_get_text(rd, p->run_id, RUN_ID_MAX);
	field_get_text(rd, p->reason, REASON_MAX);
	if (!p->has_base && (p->base_step || !attempt_equal(&p->base_attempt, &none)))
		rd->bad = true;
}

void field_put_commit(struct writer *w, const struct record_commit *c)
{
	write_u64(w, c->step);
	write_bytes(w, c->attempt.b, sizeof(c->attempt.b));
	write_bytes(w, c->root.b, sizeof(c->root.b));
	write_bytes(w, c->layout.b, sizeof(c->layout.b));
	write_u32(w, c->world);
	write_u32(w, c->f);
	write_u64(w, c->bytes);
}

void field_get_commit(struct reader *rd, struct record_commit *c)
{
	c->step = read_u64(rd);
	field_get_id(rd, c->attempt.b);
	field_get_id(rd, c->root.b);
	field_get_id(rd, c->layout.b);
	c->world = read_u32(rd);
	c->f = read_u32(rd);
	c->bytes = read_u64(rd);
}

void field_put_abort(struct writer *w, const struct record_abort *a)
{
	write_u64(w, a->step);
	write_bytes(w, a->attempt.b, sizeof(a->attempt.b));
	write_u32(w, a->next_try);
	field_put_text(w, a->reason, REASON_MAX);
}

void field_get_abort(struct reader *rd, struct record_abort *a)
{
	a->step = read_u64(rd);
	field_get_id(rd, a->attempt.b);
	a->next_try = read_u32(rd);
	field_get_text(rd, a->reason, REASON_MAX);
}

void field_put_mark(struct writer *w, const struct record_mark *m)
{
	write_u64(w, m->step);
	write_bytes(w, m->attempt.b, sizeof(m->attempt.b));
	write_u32(w, m->value);
}

void field_get_mark(struct reader *rd, struct record_mark *m)
{
	m->step = read_u64(rd);
	field_get_id(rd, m->attempt.b);
	m->value = read_u32(rd);
}
