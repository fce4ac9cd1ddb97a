/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fields.h - the parts that bodies of log records are made of. Private to coord/.
 *
 * field_get_*(): a sticky rd->bad when the bytes are not what field_put_*() writes.
 */
#ifndef COORD_FIELDS_H
#define COORD_FIELDS_H

#include "coord/record.h"

void field_put_text(struct writer *w, const char *s, size_t max); /* s has at most max bytes */
void field_get_text(struct reader *rd, char *ret, size_t max);    /* ret holds max + 1 */
void field_get_id(struct reader *rd, void *ret);                  /* 16 bytes */
bool field_get_flag(struct reader *rd);                           /* 0 or 1 */

void field_put_job(struct writer *w, const struct record_job *j);
void field_get_job(struct reader *rd, struct record_job *j);
void field_put_epoch(struct writer *w, const struct record_epoch *p);
void field_get_epoch(struct reader *rd, struct record_epoch *p);
void field_put_commit(struct writer *w, const struct record_commit *c);
void field_get_commit(struct reader *rd, struct record_commit *c);
void field_put_abort(struct writer *w, const struct record_abort *a);
void field_get_abort(struct reader *rd, struct record_abort *a);
void field_put_mark(struct writer *w, const struct record_mark *m);
void field_get_mark(struct reader *rd, struct record_mark *m);

#endif
