/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.h - one connected process as the machines see it: who it is, and how to answer it.
 *
 * A session lives as long as its connection, and longer while something holds a reference; after
 * the connection's end answers to it go nowhere.
 */
#ifndef CKPTD_SESSION_H
#define CKPTD_SESSION_H

#include "ckptd/job.h"
#include "proto/session.pb-c.h"

struct session;
struct load;
struct opening;
struct user;

struct session *session_ref(struct session *s);
void session_unref(struct session *s);
bool session_connected(const struct session *s);
/* Whether it takes a message full of descriptors now; else load_room() follows, or its end. */
bool session_room(struct session *s);
const struct process_id *session_process(const struct session *s);
struct user *session_user(const struct session *s); /* its reference */
struct node *session_node(const struct session *s);
/* It can write beats (SESSION_FEATURE_BEATS). */
bool session_beats(const struct session *s);
/* Its member has gone or belongs to another connection now. */
void session_forget_member(struct session *s);
/* From here on its process's end is told, however its connection ends; false: it was told before,
 * or the connection has ended. */
bool session_follow(struct session *s);
void session_set_member(struct session *s, struct member *m);
struct member *session_member(const struct session *s);
/* It knows how to look at a job without a rank (SESSION_FEATURE_LOOKS); from here on it does. */
bool session_looks(const struct session *s);
void session_look_at(struct session *s, const struct job *j);
/* Its member's job, or the one that it looks at; NULL: none, or it has gone or is stopped. */
struct job *session_job(const struct session *s);

/* What it has under way, beside what its user has (user.h). */
struct session_use {
	uint32_t waits, loads;
	uint32_t answers; /* answer.c */
	struct opening *opening; /* epoch.c; NULL: none */
	bool declaring;
	struct work *checking; /* of a declaration, on a worker; or NULL */
};
struct session_use *session_use(struct session *s);

/* Answers. fds are taken. */
void session_reply_ok(struct session *s, uint64_t request);
void session_reply_error(struct session *s, uint64_t request, int code, const char *text);
void session_reply(struct session *s, const Ckpt__Reply *reply, const int *fds, size_t n_fds);

/* The member's slots are there: hands them over. */
void session_prepared(struct session *s, uint64_t request, struct member *m);
/* later: slots that are not filled; code: 0, or why, with its sentence. */
void session_slots_ready(struct session *s, uint64_t request, uint32_t later, int code,
			 const char *text);

/* Loads of this session: load.c keeps them here; and waits: waiting.c. */
struct list *session_loads(struct session *s);
struct list *session_waits(struct session *s);

/* From node.c. */
void session_opened(struct node *n, struct conn *c);
void session_message(struct session *s, const void *msg, size_t len, int *fds, size_t n_fds);
void session_closed(struct session *s);
void session_has_room(struct session *s);
/* The node has stopped: what works do for sessions ends soon. */
void session_cancel_all(struct node *n);
void session_free_all(struct node *n);

#endif
