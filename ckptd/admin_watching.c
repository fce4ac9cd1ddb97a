/* SPDX-License-Identifier: Apache-2.0 */
/*
 * admin_watching.c - what operators ask about events and verdicts, and tell about them.
 *
 * Everybody sees what is said of the node and its devices, and of their own jobs; root and ckptd's
 * own user see all.
 */
#include <config.h>

#include "ckptd/admin.h"
#include "ckptd/events.h"
#include "ckptd/node_priv.h"

static void events(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	struct events_question q = {.since = m->since,
				    .since_ns = m->since_ns,
				    .wait = m->wait,
				    .uid = session_process(s)->uid,
				    .sees_all = admin_sees_all(s)};

	events_ask(session_node(s)->events, s, request, &q);
}

void admin_watching(struct session *s, uint64_t request, const Ckpt__Admin *m)
{
	switch ((int)m->verb) {
	case CKPT__ADMIN__VERB__EVENTS:
		events(s, request, m);
		return;
	default:
		session_reply_error(s, request, CKPT_EVERSION,
				    "ckptd does not know this verb: it is older than ckptctl");
	}
}
