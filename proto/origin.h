/* SPDX-License-Identifier: Apache-2.0 */
/*
 * origin.h - where the state that a rank saves in an epoch comes from.
 *
 * A rank that joins is FRESH. A load of a checkpoint of an earlier epoch makes it RESUMED, and so
 * it stays until the next epoch: a load of what this epoch has saved changes nothing. UNSAID: it is
 * an older libckpt's, or the trainer has said that its state comes from elsewhere (CKPT_OWN_STATE)
 * or has read parts of a checkpoint by itself; ckptd demands nothing of such a rank.
 *
 * ckptd decides, with the answer to a load; the process keeps it for a ckptd that was restarted. It
 * travels as the message Origin, which is missing where it is UNSAID.
 */
#ifndef PROTO_ORIGIN_H
#define PROTO_ORIGIN_H

#include <stdint.h>

#include "proto/session.pb-c.h"

/* The numbers stand in the ledger. */
enum origin_kind { ORIGIN_UNSAID = 0, ORIGIN_FRESH = 1, ORIGIN_RESUMED = 2 };

struct origin {
	enum origin_kind kind;
	uint64_t step; /* RESUMED: of the checkpoint that was loaded */
};

static inline struct origin origin_of(const Ckpt__Origin *m)
{
	if (!m)
		return (struct origin){0};
	return (struct origin){m->resumed ? ORIGIN_RESUMED : ORIGIN_FRESH, m->step};
}

/* For a field of a message: *body, or NULL. */
static inline Ckpt__Origin *origin_message(struct origin o, Ckpt__Origin *body)
{
	*body = (Ckpt__Origin)CKPT__ORIGIN__INIT;
	body->resumed = o.kind == ORIGIN_RESUMED;
	body->step = o.step;
	return o.kind == ORIGIN_UNSAID ? NULL : body;
}

#endif
