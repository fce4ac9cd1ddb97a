/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.h - a connection to ckptd for tools: Hello, then Admin requests (proto/session.proto).
 */
#ifndef TOOLS_CONNECT_H
#define TOOLS_CONNECT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/ids.h"
#include "proto/session.pb-c.h"

struct connection;

/* socket NULL: CKPT_SOCKET, or the first of $XDG_RUNTIME_DIR/ckptd.sock and
 * /run/ckptd/ckptd.sock on which somebody listens. CKPT_EUNAVAILABLE: nobody answers. */
MUST_CHECK int connection_open(const char *socket, struct connection **ret, struct err *e);
void connection_close(struct connection *c);

struct admin_question {
	Ckpt__Admin__Verb verb;
	const char *job; /* NULL: all */
	bool has_step;
	uint64_t step;
	const struct attempt_id *attempt; /* NULL: not said */
	bool dry_run;
	uint64_t since, since_ns; /* EVENTS */
	const char *text;         /* WHY and later; NULL: none */
	bool wait;
	uint32_t trust; /* of CKPT__ADMIN__VERB__TRUST */
	int timeout_ms; /* 0: the usual; -1: none */
};
/* The answer's document; NULL where the answer is only "done". ret may be NULL. An error of ckptd
 * is returned with its sentence; what else it says of a success is in e->text, with no code. */
MUST_CHECK int connection_ask(struct connection *c, const struct admin_question *q, json_t **ret,
			      struct err *e);
/* The same, again for some seconds while ckptd is busy with what has to end before (-EAGAIN). */
MUST_CHECK int connection_ask_again(struct connection *c, const struct admin_question *q,
				    json_t **ret, struct err *e);

#endif
